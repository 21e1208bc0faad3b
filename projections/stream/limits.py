"""Every bound that apply enforces for streams, and the ids of their partitions.

A bound is part of the format: all replicas must refuse the same entry, so a changed number needs a
new payload version. Bounds that only shape an answer are at the end and may change.
"""

from onelog.projections.limits import KEY_SIZE_MAX

# Names. A stream's name may not hold a colon: ``cg:<stream>:<group>`` must be unambiguous.
STREAM_NAME_SIZE_MAX = 128
GROUP_NAME_SIZE_MAX = 128
STREAMS_MAX = 10_000  # per namespace
PARTITIONS_MAX = 256  # per stream: some operations take one step per partition

# The id of a partition in the log's stream tables is its number above the stream's id. Indexes
# stay below 2**56 for two thousand years at a million entries a second.
PARTITION_SHIFT = 56
STREAM_ID_END = 1 << PARTITION_SHIFT
PARTITION_ANY = 0xFFFF  # where a command may name one partition or all

# Records.
RECORD_KEY_SIZE_MAX = KEY_SIZE_MAX
HEADERS_MAX = 64
PRODUCERS_MAX = 10_000  # per stream; above it those that wrote longest ago are dropped
PRODUCERS_FORGOTTEN = PRODUCERS_MAX // 16  # at a time, so that finding the oldest is rare
PRODUCER_WINDOW = 8  # offsets kept per producer, which bounds what it may have in flight
DEAD_LETTERS_MAX = 10_000  # per stream: each pins one older entry of the log

# Retention is kept coarse: a mark is the start of a run of records (partition.py).
MARKS_MAX = 128  # per partition, 32 bytes each
MARKS_PER_LIMIT = 32  # a run is closed at this fraction of what a policy keeps
MARK_RECORDS = 1_024  # the length of a run without a policy
MARK_SIZE = 1 << 20
MARK_NS = 60 * 1_000_000_000
TRIMS_MAX = 8  # kept per partition, to tell readers why records are missing
COUNT_MAX = 1 << 62  # of records or bytes in a policy

# Consumer groups.
GROUPS_MAX = 1_000  # per stream
MEMBERS_MAX = 1_000  # per group
PENDING_MAX = 10_000  # per group: delivered and not acknowledged
OFFSETS_MAX = 1_000  # that one entry may deliver, acknowledge, return or claim
NACK_REASON_SIZE_MAX = 128
GROUP_FILTER_SIZE_MAX = 16_384  # bytes of the filter of a group, which is in the state

# Not part of the format.
READ_RECORDS_MAX = 10_000  # records that one page may return
READ_VISITS_MAX = 50_000  # records that one page may visit, wanted or not
READ_SIZE_MAX = 4 << 20  # bytes of payloads after which a page ends
LIST_MAX = 1_000  # streams, groups or pending records that one page may list


def partition_id(stream_id: int, partition: int) -> int:
    """Return the id under which the log's stream tables know a partition."""
    return partition << PARTITION_SHIFT | stream_id
