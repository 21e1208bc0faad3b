"""Every bound that apply enforces, in one place.

A bound is part of the format: all replicas must refuse the same entry, so changing a number here
changes what old entries mean and needs a new payload version. Bounds that only shape an answer
(pages, chunks) or move bytes between memory and disk (eviction) are at the end and may change.
"""

from collections.abc import Iterable
from typing import NamedTuple

U64_MAX = 2**64 - 1
I64_MAX = 2**63 - 1
I64_MIN = -(2**63)


class OutOfBounds(NamedTuple):
    """A setting that is not allowed, and what would be."""

    name: str
    value: int
    least: int
    most: int


def find_out_of_bounds(settings: Iterable[tuple[str, int, int, int]]) -> OutOfBounds | None:
    """Return the first of these (name, value, least, most) whose value is not allowed."""
    for name, value, least, most in settings:
        if not least <= value <= most:
            return OutOfBounds(name, value, least, most)
    return None


# Names and namespaces. Some operations take one step per namespace, hence at most a thousand.
NAMESPACE_SIZE_MAX = 128
NAMESPACES_MAX = 1_000
NAMESPACE_DEFAULT = "default"

# Keys and values. A value must leave room for its key and headers in an entry of 8 MiB.
KEY_SIZE_MAX = 4_096
VALUE_SIZE_MAX = (8 << 20) - (64 << 10)
VERSIONS_DEFAULT = 8
VERSIONS_MAX = 255  # a record counts its versions in one byte
TOMBSTONES_DEFAULT = 65_536
TOMBSTONES_MAX = 16_777_216
KEYS_RESERVED = (b"cg:", b"_ts:")  # written by other projections only

# Time. A lifetime above a hundred years is a mistake; below it, sums of times fit 64 bits.
TTL_NS_MAX = 100 * 365 * 86_400 * 1_000_000_000

# What one entry may touch, so that one apply stays within milliseconds.
TRANSACTION_OPERATIONS_MAX = 1_000
PUT_MANY_KEYS_MAX = 1_000
CONDITIONS_MAX = 1_000
DELETE_RANGE_KEYS_MAX = 10_000
DELETE_RANGE_VISITS_MAX = 40_000  # keys that it may visit, deleted ones included
RESULT_SIZE_MAX = 1 << 20  # bytes that the reads of one transaction may return
LEASES_MAX = 100_000  # per namespace
LEASE_KEYS_MAX = 10_000
EXPIRE_IDS_MAX = 1_000
EXPIRE_ID_SIZE_MAX = 2 + NAMESPACE_SIZE_MAX + 8 + KEY_SIZE_MAX
BATCH_ENTRIES_MAX = 1_000
PASSED_RANGES_MAX = 100  # ranges of entries whose messages or records an entry passes over
RAFT_CONFIG_SIZE_MAX = 1 << 20

# Holds, per shard.
HOLDS_MAX = 100
HOLD_NAME_SIZE_MAX = 128

# JSON. The depth bound is checked before parsing: a parser's own limit depends on its stack.
JSON_SIZE_MAX = 256 << 10  # parsed and written again by each change of a field
JSON_DEPTH_MAX = 64
JSON_PATH_MAX = JSON_DEPTH_MAX

# Sessions.
SESSIONS_MAX = 100_000
SESSION_TTL_NS_MIN = 1_000_000_000
SESSION_TTL_NS_MAX = 24 * 3_600 * 1_000_000_000
SESSION_RESULTS_MAX = 10_000
SESSION_RESULTS_SIZE_MAX = 1 << 20  # checked before an operation runs: one result may exceed it

# Not part of the format.
SCAN_KEYS_MAX = 10_000  # keys that one page may visit, found or not
SCAN_SIZE_MAX = 4 << 20  # bytes of keys and values after which a page ends
CHUNK_SIZE_MAX = 256 << 10  # of a snapshot section
INLINE_SIZE_MAX = 512  # larger values are stored outside their record (projections/kv/record.py)
SPILL_SIZE_MIN = 64  # moving a smaller value out frees too little
EVICT_KEYS_MAX = 50_000  # records that one call of evict may visit
RECENT_KEYS_MAX = 16_384  # recently read keys per namespace, which eviction spares
EXPIRE_WEIGHT_MAX = 10_000  # keys that the ids of one proposed expire entry may remove
CHORES_MAX = 64  # entries that one projection may ask a leader to propose at a time
