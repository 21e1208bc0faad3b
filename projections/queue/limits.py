"""Every bound of the queue projection, in one place.

Like those of projections/limits.py they are part of the format: all replicas must refuse the same
entry, so a changed number changes what old entries mean and needs a new payload version. What only
shapes an answer or the layout in memory is at the end and may change.
"""

from onelog.projections.limits import TTL_NS_MAX, VALUE_SIZE_MAX

SECOND_NS = 1_000_000_000

# Queues. Some operations take one step per queue of a shard.
QUEUES_MAX = 10_000  # per shard, over all namespaces
QUEUE_NAME_SIZE_MAX = 128

# Messages. Sixteen priorities: a lease may have to check the head of each.
PRIORITY_MAX = 15
PRIORITY_DEFAULT = 8
MESSAGE_SIZE_MAX = VALUE_SIZE_MAX  # of a body; leaves room for headers in an entry of 8 MiB
MESSAGE_KEY_SIZE_MAX = 128  # dedup id, group key, tenant
HEADERS_MAX = 64
HEADER_NAME_SIZE_MAX = 128
HEADER_VALUE_SIZE_MAX = 4_096
HEADERS_RESERVED = b"dlq."  # written by the database only
DELAY_NS_MAX = TTL_NS_MAX
DELIVERIES_MAX = 65_535  # counted in two bytes; the count stops there
GROUPS_MAX = 1_000_000  # per queue, with messages in it
TENANTS_MAX = 10_000  # per queue, with messages in it
TENANT_WEIGHTS_MAX = 100  # per queue, of tenants with another weight than 1
TENANT_WEIGHT_MAX = 1_000  # messages of one turn; others wait meanwhile

# Leases. One entry touches a thousand messages at most, as an expire entry does.
ITEMS_MAX = 1_000  # messages that one lease, ack, nack, extend, release, cancel may name
LEASED_MAX = 1_000_000  # per queue
VISIBILITY_NS_MAX = 7 * 86_400 * SECOND_NS
VISIBILITY_NS_DEFAULT = 30 * SECOND_NS
BACKOFF_STEPS_MAX = 16
FAILURE_SIZE_MAX = 256  # of a failure reason

# Dedup window.
DEDUP_ENTRIES_DEFAULT = 100_000
DEDUP_ENTRIES_MAX = 1_000_000
DEDUP_WINDOW_NS_DEFAULT = 300 * SECOND_NS
DEDUP_TRIM_STEP = 4  # entries dropped per enqueue; more than one, so that it catches up

# Purge and redrive: what one entry may remove and visit.
PURGE_MESSAGES_MAX = 10_000
PURGE_VISITS_MAX = 40_000
REDRIVES_MAX = 16  # running at a time per queue
REDRIVE_STEP_MAX = 1_000
REDRIVE_VISITS_MAX = 10_000
REDRIVE_STEPS_PER_S = 10  # steps per second over which a rate is spread

# Schedules.
SCHEDULES_MAX = 1_000  # per queue
CRON_SIZE_MAX = 255
CRON_DAYS_MAX = 366 * 8 + 1  # 29 February may be eight years away

# Not part of the format.
PEEK_MESSAGES_MAX = 1_000
PEEK_VISITS_MAX = 50_000
REMAINING_VISITS_MAX = 10_000  # to count what running redrives have yet to move, 2 µs each
BLOCK_ROWS = 512  # rows of one block of columns (table.py)
GARBAGE_MAX = 1_024  # outdated entries of a heap or list that are kept, plus as many as live ones
