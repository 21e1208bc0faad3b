"""Every bound of the time series projection.

Bounds of the first part are enforced by apply and are part of the format: all replicas must
refuse the same entry. Those at the end shape what a leader proposes or what a query may cost on
one node; they may change freely.
"""

# Time of a point, in ns since 1970: 1823 to 2116. Half of what 64 bits hold, so that sums and
# differences of two times, and the end of any window, stay inside 64 bits without a test.
TIME_NS_MIN = -(2**62)
TIME_NS_MAX = 2**62 - 1

# Names. A series name is also a key under ``_ts:meta:``, hence below 4,096 with room for escapes.
NAME_SIZE_MAX = 128  # of a measurement, a tag or a field
TAG_VALUE_SIZE_MAX = 256
TAGS_MAX = 32  # per series
SERIES_NAME_SIZE_MAX = 4_000

# Numbers of objects. A field id is a u16; one series may have all fields.
MEASUREMENTS_MAX = 10_000  # per namespace
FIELDS_MAX = 1_000  # per measurement
SERIES_DEFAULT = 100_000  # cardinality limit of a measurement unless it says otherwise
SERIES_MAX = 10_000_000  # the highest cardinality limit
RULES_MAX = 8  # downsampling rules per measurement
RULE_WINDOW_NS_MIN = 1_000_000  # a millisecond
RULE_WINDOW_NS_MAX = 366 * 86_400 * 1_000_000_000
RULE_AGGREGATES_MAX = 8

# What one entry may bring. 100,000 points are 1.6 MB and are applied within some ms.
WRITE_FIELDS_MAX = 256  # of one ts_write
BATCH_POINTS_MAX = 100_000
BATCH_SERIES_MAX = 5_000  # new ones cost 35 µs each
BATCH_FIELDS_MAX = 1_000
BATCH_TIMES_MAX = 20_000  # runs of timestamps
BATCH_RUNS_MAX = 20_000  # runs of values
BLOCK_POINTS_MAX = 4_096
BLOCK_BODY_SIZE_MAX = 1 << 20

# Buffers. A column with this many points accepts no more until the leader has made a block. One
# batch may pass the number once.
BUFFER_POINTS_MAX = 65_536

# What one entry may remove, so that one apply stays within milliseconds.
MATCHERS_MAX = 32
PATTERN_SIZE_MAX = 256
PATTERN_STEPS_MAX = 1_000  # instructions of a compiled pattern
PATTERN_DEPTH_MAX = 32  # nested groups, the pattern itself counted
PATTERN_REPEAT_MAX = 200  # the highest number in braces
DELETE_VISITS_MAX = 4_000  # series that one entry visits
DELETE_COLUMNS_MAX = 4_000  # columns of them that it visits
DELETE_SERIES_MAX = 1_000  # series that it changes
DELETE_BLOCKS_MAX = 100_000  # blocks after which it stops
DELETE_EFFORT_MAX = 100_000  # positions of patterns after which it stops: at most 20 ms
DELETE_RANGES_MAX = 20_000  # deleted ranges of columns that it changes: 60 ms
DELETED_RANGES_MAX = 4_096  # per column, while some block still holds points of them
UNMERGED_RANGES_MAX = 64  # the same for a delete that does not merge them
TRIM_COLUMNS_MAX = 4_000  # columns that one ts_trim visits
TRIM_GRACE_NS = 86_400 * 1_000_000_000  # that a trim waits for a rule that makes no progress

# Not part of the format.
BUFFER_POINTS = 1_024  # a leader makes a block of a buffer of at least this many
CHORE_SIZE_MAX = 4 << 20  # bytes of one entry that a leader proposes by itself
BLOCKS_PER_CHORE_MAX = 32  # that one call compresses: at 0.2 ms each, 6 ms
ROLLUP_POINTS_MAX = 20_000  # written by one ts_rollup
ROLLUP_NAMES_SIZE_MAX = 1 << 20  # bytes of the names in one: of series and of fields
ROLLUP_READ_POINTS_MAX = 500_000  # read for one: 27 ms to decode and join, on a busy CPU
TRIM_SLACK_DIVISOR = 32  # a trim waits until 1/32 of the retention has passed since the last
TRIM_SLACK_NS_MIN = 1_000_000_000
TRIM_SLACK_NS_MAX = 3_600 * 1_000_000_000
CACHE_SIZE_MAX = 64 << 20  # bytes of decoded blocks that are kept for queries
LIST_SERIES_MAX = 10_000  # per page
PATTERN_CACHE_MAX = 10_000  # transitions remembered per pattern
