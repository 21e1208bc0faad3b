"""The state hash of points and blocks, for whole arrays at a time.

A point is an item of the state like any other, but hashing them one by one would cost more than
storing them. So they are hashed as arrays: each item is mixed to 64 bits from its column, its
place in the order of arrival, its time and the bits of its value; the hash is the sum of all items
modulo 2**64. Mixing is integer arithmetic on numpy arrays (the finaliser of MurmurHash3), so it
is the same on every machine, and it costs about 10 ns a point.

The place in the order of arrival is hashed until a point is in a block: it decides which of
two points of the same time counts. The grouping of points into entries is not hashed.
"""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from onelog.projections.state_hash import HASH_MODULUS, item_hash

U64Array = NDArray[np.uint64]

_MASK = HASH_MODULUS - 1
GOLDEN = 0x9E37_79B9_7F4A_7C15
_FIRST = 0xFF51_AFD7_ED55_8CCD
_SECOND = 0xC4CE_B9FE_1A85_EC53
_BLOCK_SEED = 0x6C62_272E_07BB_0142

_GOLDEN = np.uint64(GOLDEN)
_FIRST_FACTOR = np.uint64(_FIRST)
_SECOND_FACTOR = np.uint64(_SECOND)
_SHIFT_HALF = np.uint64(32)
_SHIFT = np.uint64(33)


def column_seed(series_id: int, field_id: int) -> int:
    """Return the seed that distinguishes the points of one column from those of another."""
    return item_hash(series_id.to_bytes(8, "little") + field_id.to_bytes(2, "little"), 1)


def run_seed(seed: int, sequence: int) -> int:
    """Return the seed of the point at this place of its column; the next one's is GOLDEN higher."""
    return (seed + sequence * GOLDEN) & _MASK


def hash_point(seed: int, time_ns: int, bits: int) -> int:
    """Return the item of one point; the same number as ``hash_points`` of it alone."""
    mixed = (seed + time_ns) * _FIRST & _MASK
    mixed ^= mixed >> 32
    mixed = (mixed + bits) & _MASK
    mixed ^= mixed >> 33
    mixed = mixed * _FIRST & _MASK
    mixed ^= mixed >> 33
    mixed = mixed * _SECOND & _MASK
    return mixed ^ mixed >> 33


def hash_points(seeds: U64Array, times: U64Array, bits: U64Array) -> int:
    """Return the sum of the items of many points; ``seeds`` is overwritten."""
    seeds += times
    seeds *= _FIRST_FACTOR
    seeds ^= seeds >> _SHIFT_HALF
    seeds += bits
    return _finish(seeds)


def hash_run(seed: int, times: U64Array, bits: U64Array) -> int:
    """Return the sum of the items of consecutive points of one column."""
    seeds = np.arange(len(times), dtype=np.uint64)
    seeds *= _GOLDEN
    seeds += np.uint64(seed)
    return hash_points(seeds, times, bits)


def spread_seeds(seeds: list[int], sizes: NDArray[np.int64], starts: NDArray[np.int64]) -> U64Array:
    """Return the seed of each point of several runs, given those of their first points."""
    firsts = np.array(seeds, dtype=np.uint64)
    firsts -= starts.view(np.uint64) * _GOLDEN
    total = int(sizes.sum())
    steps = np.arange(total, dtype=np.uint64)
    steps *= _GOLDEN
    steps += np.repeat(firsts, sizes)
    return steps


def hash_rows(seed: int, rows: NDArray[np.int64]) -> int:
    """Return the sum of the items of a column's blocks, one row of numbers each."""
    words = rows.view(np.uint64)
    mixed = np.full(len(rows), (seed + _BLOCK_SEED) & _MASK, dtype=np.uint64)
    for word in range(words.shape[1]):
        mixed += words[:, word]
        mixed *= _FIRST_FACTOR
        mixed ^= mixed >> _SHIFT_HALF
    return _finish(mixed)


def _finish(mixed: U64Array) -> int:
    mixed ^= mixed >> _SHIFT
    mixed *= _FIRST_FACTOR
    mixed ^= mixed >> _SHIFT
    mixed *= _SECOND_FACTOR
    mixed ^= mixed >> _SHIFT
    return cast("int", mixed.sum().item())
