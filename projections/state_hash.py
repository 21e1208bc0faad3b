"""The state hash: one number per projection that says what it holds.

It is a multiset hash. Every logical item (a version of a key, a lease, a stored result, …) is
written as canonical bytes and hashed with xxh3, 64 bits, seeded with its version; the hash of a
projection is the sum of its items modulo 2**64. So adding and removing an item is one addition,
order and place do not matter, and a replica that reached the state in another way (by replay,
snapshot or eviction) has the same number at the same index.

64 bits find accidental differences, which is their purpose: two differing states agree with a
probability of 2**-64 at each comparison. They do not withstand somebody who constructs keys to
collide; such a client would still write the same keys on all replicas. Measured on CPython 3.11
for a 120-byte item: xxh3_64_intdigest 0.07 µs, xxh3_128_intdigest 0.20 µs, of a put of 3 µs.

Totals are kept unreduced: they never fall below zero as long as only items are subtracted that
were added, which is one more thing that ``check()`` can assert.
"""

import struct
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

HASH_MODULUS = 2**64

_PART = struct.Struct("<BQ")

item_hash = xxh3_64_intdigest
"""``item_hash(canonical_bytes, seed)``: the 64-bit hash of one item."""


def reduce_total(total: int) -> int:
    """Return the published hash of an unreduced sum of items."""
    assert total >= 0, f"more was subtracted than added: {total}"
    return total % HASH_MODULUS


def combine(applied_index: int, log_time_ns: int, parts: Iterable[tuple[int, int]]) -> int:
    """Return the hash of a whole router: where it stands, and (owner, hash) of each projection."""
    data = b"".join(_PART.pack(owner, part) for owner, part in parts)
    return item_hash(struct.pack("<QQ", applied_index, log_time_ns) + data, 0)
