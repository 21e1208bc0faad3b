"""The mix: a number that identifies the entries that a file was made of.

Each entry gives 64 bits that depend on all bits of its index and its crc32c; the *mix* of some
entries is their sum modulo 2^64. It needs headers only, and does not depend on the order or the
grouping of the entries: the mix of a range is the sum of the mixes of its parts. An entry more, an
entry less, or an entry with other bytes changes it.
"""

import numpy as np
from numpy.typing import NDArray

MIX_MODULUS = 1 << 64

# The constants of splitmix64, a mixer whose every output bit depends on every input bit.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix_entries(headers: NDArray[np.void]) -> NDArray[np.uint64]:
    """Return 64 bits for each entry; ``headers`` are of onelog.ual.segments.tables.ENTRY_DTYPE."""
    # The index is mixed first, so that a different checksum cannot cancel a different index.
    return _scramble(_scramble(headers["index"]) ^ headers["crc"].astype(np.uint64))


def compute_mix(headers: NDArray[np.void]) -> int:
    """Return the mix of some entries."""
    return int(np.sum(mix_entries(headers), dtype=np.uint64))


def add_mixes(first: int, second: int) -> int:
    """Return the mix of two disjoint sets of entries."""
    return (first + second) % MIX_MODULUS


def _scramble(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = values.astype(np.uint64) + _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))
