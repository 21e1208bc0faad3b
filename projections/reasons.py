"""Why something was refused: a stable name for programs, a code on disk, a text for people.

Codes are stored with the results of sessions and in snapshots: append, never renumber or reuse.
The text is made from the reason and one number when it is read, so it may be
improved without changing any state.
"""

from enum import IntEnum


class Reason(IntEnum):
    """Why an entry or a read was refused; the name is what clients see."""

    PAYLOAD_TRUNCATED = 1
    PAYLOAD_VERSION_UNKNOWN = 2
    PAYLOAD_NOT_UTF8 = 3
    PAYLOAD_COUNT_TOO_LARGE = 4
    PAYLOAD_TRAILING_BYTES = 5
    PAYLOAD_FIELD_INVALID = 6
    PAYLOAD_CORRUPT = 7
    PAYLOAD_TOO_LARGE = 8
    OWNER_UNKNOWN = 9
    OPERATION_UNKNOWN = 10

    NAMESPACE_UNKNOWN = 20
    NAMESPACE_EXISTS = 21
    NAMESPACE_PROTECTED = 22
    NAMESPACE_FULL = 23
    NAMESPACES_FULL = 24
    NAMESPACE_LIMIT_INVALID = 25

    KEY_SIZE_INVALID = 40
    KEY_RESERVED = 41
    KEY_NOT_FOUND = 42
    ALREADY_EXISTS = 43
    CONDITION_FAILED = 44
    VALUE_TOO_LARGE = 45
    TTL_INVALID = 46
    NOT_A_NUMBER = 47
    COUNTER_OVERFLOW = 48
    RANGE_INVALID = 49
    COMPACTED = 50
    INDEX_IN_FUTURE = 51
    LIMIT_INVALID = 52

    JSON_INVALID = 60
    JSON_TOO_LARGE = 61
    JSON_TOO_DEEP = 62
    JSON_PATH_NOT_FOUND = 63
    JSON_PATH_INVALID = 64

    LEASE_LOST = 70
    LEASE_FULL = 71
    LEASES_FULL = 72

    TRANSACTION_REFUSED = 80
    RESULT_TOO_LARGE = 81

    SESSION_EXPIRED = 90
    SESSIONS_FULL = 91
    SESSION_RESULTS_FULL = 92
    SEQUENCE_ACKNOWLEDGED = 93
    SEQUENCE_INVALID = 94

    BATCH_MISSING = 100
    BATCH_INCOMPLETE = 101
    BATCH_MALFORMED = 102
    BATCH_REFUSED = 103

    QUEUE_UNKNOWN = 110
    QUEUE_EXISTS = 111
    QUEUES_FULL = 112
    QUEUE_NAME_INVALID = 113
    QUEUE_CONFIG_INVALID = 114
    QUEUE_PAUSED = 115
    QUEUE_FULL = 116
    QUEUE_IN_USE = 117
    DEAD_QUEUE_INVALID = 118
    QUEUE_LEASES_FULL = 119
    GROUPS_FULL = 120
    TENANTS_FULL = 121
    MESSAGE_UNKNOWN = 122
    MESSAGE_LEASED = 123
    LEASE_TOKEN_STALE = 124
    MESSAGE_TOO_LARGE = 125
    MESSAGE_KEY_INVALID = 126
    HEADER_INVALID = 127
    PRIORITY_INVALID = 128
    DELAY_INVALID = 129
    VISIBILITY_INVALID = 130
    FAILURE_TOO_LARGE = 131
    CRON_INVALID = 132
    CRON_NEVER = 133
    SCHEDULES_FULL = 134
    SCHEDULE_UNKNOWN = 135
    SCHEDULE_NOT_DUE = 136
    REDRIVES_FULL = 137
    REDRIVE_UNKNOWN = 138
    REDRIVE_NOT_DUE = 139

    STREAM_UNKNOWN = 150
    STREAM_EXISTS = 151
    STREAM_NAME_INVALID = 152
    STREAMS_FULL = 153
    STREAM_LIMIT_INVALID = 154
    PARTITION_UNKNOWN = 155
    PRODUCER_UNKNOWN = 156
    PRODUCER_FENCED = 157
    PRODUCER_SEQUENCE_GAP = 158
    PRODUCER_SEQUENCE_FORGOTTEN = 159
    TRIM_BLOCKED = 160
    TRIM_NOT_DUE = 161
    GROUP_UNKNOWN = 162
    GROUP_EXISTS = 163
    GROUP_NAME_INVALID = 164
    STREAM_GROUPS_FULL = 165
    MEMBER_UNKNOWN = 166
    MEMBERS_FULL = 167
    MEMBER_SESSION_INVALID = 168
    GENERATION_STALE = 169
    PARTITION_NOT_OWNED = 170
    CURSOR_BEHIND = 171
    OFFSET_IN_FUTURE = 172
    OFFSETS_INVALID = 173
    DELIVERY_STALE = 174
    PENDING_FULL = 175
    RECORD_NOT_PENDING = 176
    DEAD_LETTER_STREAM_UNKNOWN = 177
    DEAD_LETTER_STALE = 178
    DEAD_LETTERS_FULL = 179

    SERIES_NAME_INVALID = 190
    MEASUREMENT_UNKNOWN = 191
    MEASUREMENT_EXISTS = 192
    MEASUREMENTS_FULL = 193
    MEASUREMENT_CONFIG_INVALID = 194
    SERIES_FULL = 195
    FIELD_UNKNOWN = 196
    FIELD_TYPE_MISMATCH = 197
    FIELDS_FULL = 198
    POINT_TIME_INVALID = 199
    POINT_TOO_OLD = 200
    POINT_NOT_NEWER = 201
    VALUE_NOT_FINITE = 202
    SERIES_BUFFER_FULL = 203
    SERIES_DELETES_FULL = 204
    BLOCK_STALE = 205
    MATCHER_INVALID = 206
    RULE_UNKNOWN = 207
    RULES_FULL = 208
    RULE_INVALID = 209
    ROLLUP_STALE = 210
    TRIM_EARLY = 211
    QUERY_INVALID = 212
    QUERY_TOO_LARGE = 213
    TRIM_STALE = 214

    HOLD_UNKNOWN = 220
    HOLD_EXISTS = 221
    HOLDS_FULL = 222
    HOLD_NAME_INVALID = 223
    HOLD_INDEX_INVALID = 224
    HOLD_LIMIT_INVALID = 225
    HOLD_BROKEN = 226
    HOLD_BREAK_STALE = 227


MESSAGES = {
    Reason.PAYLOAD_TRUNCATED: "the payload ends inside a field",
    Reason.PAYLOAD_VERSION_UNKNOWN: "payload version {detail} is not known here",
    Reason.PAYLOAD_NOT_UTF8: "a name is not UTF-8",
    Reason.PAYLOAD_COUNT_TOO_LARGE: "a count of {detail} is above its limit",
    Reason.PAYLOAD_TRAILING_BYTES: "{detail} bytes follow the last field",
    Reason.PAYLOAD_FIELD_INVALID: "a field holds {detail}, which is not a value of this field",
    Reason.PAYLOAD_CORRUPT: "the compressed payload does not decompress",
    Reason.PAYLOAD_TOO_LARGE: "the payload is {detail} bytes, above the limit",
    Reason.OWNER_UNKNOWN: "no projection owns entries of owner {detail}",
    Reason.OPERATION_UNKNOWN: "operation {detail} is not known to its owner",
    Reason.NAMESPACE_UNKNOWN: "the namespace does not exist; create it first",
    Reason.NAMESPACE_EXISTS: "the namespace exists, created at index {detail}",
    Reason.NAMESPACE_PROTECTED: "the default namespace cannot be deleted",
    Reason.NAMESPACE_FULL: "the namespace holds its limit of {detail} keys",
    Reason.NAMESPACES_FULL: "there are {detail} namespaces, which is the limit",
    Reason.NAMESPACE_LIMIT_INVALID: "a limit of {detail} is outside what a namespace may set",
    Reason.KEY_SIZE_INVALID: "a key of {detail} bytes; keys have 1 to 4096",
    Reason.KEY_RESERVED: "keys that start with 'cg:' or '_ts:' are written by the database only",
    Reason.KEY_NOT_FOUND: "the key does not exist",
    Reason.ALREADY_EXISTS: "the key exists, at version {detail}",
    Reason.CONDITION_FAILED: "the condition does not hold (version or position {detail})",
    Reason.VALUE_TOO_LARGE: "a value of {detail} bytes is above the namespace's limit",
    Reason.TTL_INVALID: "a lifetime of {detail} ns is not between 1 ns and 100 years",
    Reason.NOT_A_NUMBER: "the value is not a decimal integer of 64 bits",
    Reason.COUNTER_OVERFLOW: "the result does not fit 64 bits; the value stays {detail}",
    Reason.RANGE_INVALID: "the range's end is not above its start",
    Reason.COMPACTED: "versions before index {detail} are no longer kept",
    Reason.INDEX_IN_FUTURE: "the index is above the applied index {detail}",
    Reason.LIMIT_INVALID: "a limit of {detail} is not positive or too large",
    Reason.JSON_INVALID: "not a JSON text",
    Reason.JSON_TOO_LARGE: "a JSON text of {detail} bytes is above the limit",
    Reason.JSON_TOO_DEEP: "the JSON text is nested deeper than {detail} levels",
    Reason.JSON_PATH_NOT_FOUND: "step {detail} of the path leads nowhere",
    Reason.JSON_PATH_INVALID: "step {detail} of the path does not fit the document",
    Reason.LEASE_LOST: "lease {detail} does not exist (any more)",
    Reason.LEASE_FULL: "the lease holds {detail} keys, which is the limit",
    Reason.LEASES_FULL: "the namespace has {detail} leases, which is the limit",
    Reason.TRANSACTION_REFUSED: "operation {detail} was refused: {cause}",
    Reason.RESULT_TOO_LARGE: "the reads of the transaction return more than {detail} bytes",
    Reason.SESSION_EXPIRED: "session {detail} does not exist (any more); nothing was executed",
    Reason.SESSIONS_FULL: "there are {detail} sessions, which is the limit",
    Reason.SESSION_RESULTS_FULL: "too many results wait for acknowledgement, from {detail} on",
    Reason.SEQUENCE_ACKNOWLEDGED: "sequences below {detail} are acknowledged; result forgotten",
    Reason.SEQUENCE_INVALID: "the sequence is below the first unacknowledged one, {detail}",
    Reason.BATCH_MISSING: "the entry belongs to a batch that did not start",
    Reason.BATCH_INCOMPLETE: "the batch names {detail} entries that its group does not hold",
    Reason.BATCH_MALFORMED: "the batch cannot hold the entry at position {detail}",
    Reason.BATCH_REFUSED: "operation {detail} of the batch was refused: {cause}",
    Reason.QUEUE_UNKNOWN: "there is no queue {detail} in the namespace (any more)",
    Reason.QUEUE_EXISTS: "a queue of that name exists, created at index {detail}",
    Reason.QUEUES_FULL: "there are {detail} queues, which is the limit",
    Reason.QUEUE_NAME_INVALID: "a queue's name of {detail} bytes; names have 1 to 128",
    Reason.QUEUE_CONFIG_INVALID: "a setting of {detail} is outside what a queue may have",
    Reason.QUEUE_PAUSED: "queue {detail} is paused: it accepts messages and delivers none",
    Reason.QUEUE_FULL: "the queue holds its limit of {detail} messages",
    Reason.QUEUE_IN_USE: "queue {detail} sends its dead letters there",
    Reason.DEAD_QUEUE_INVALID: "queue {detail} cannot take the dead letters of this queue",
    Reason.QUEUE_LEASES_FULL: "the queue has {detail} messages leased, which is the limit",
    Reason.GROUPS_FULL: "the queue has {detail} message groups, which is the limit",
    Reason.TENANTS_FULL: "the queue has {detail} tenants, which is the limit",
    Reason.MESSAGE_UNKNOWN: "message {detail} is not in the queue (any more)",
    Reason.MESSAGE_LEASED: "message {detail} is leased",
    Reason.LEASE_TOKEN_STALE: "the lease is over: the message's token is {detail} (0: not leased)",
    Reason.MESSAGE_TOO_LARGE: "a body of {detail} bytes is above the limit",
    Reason.MESSAGE_KEY_INVALID: "a dedup id, group or tenant of {detail} bytes; they have 1 to 128",
    Reason.HEADER_INVALID: "a header of {detail} bytes is too large, empty or reserved",
    Reason.PRIORITY_INVALID: "priority {detail} is not between 0 and 15",
    Reason.DELAY_INVALID: "a delay of {detail} ns is above 100 years",
    Reason.VISIBILITY_INVALID: "a lease of {detail} ns is not between 1 ns and 7 days",
    Reason.FAILURE_TOO_LARGE: "a failure reason of {detail} bytes is above the limit",
    Reason.CRON_INVALID: "field {detail} of the cron expression cannot be read",
    Reason.CRON_NEVER: "the cron expression names no time in the next {detail} days",
    Reason.SCHEDULES_FULL: "the queue has {detail} schedules, which is the limit",
    Reason.SCHEDULE_UNKNOWN: "there is no schedule {detail} in the queue (any more)",
    Reason.SCHEDULE_NOT_DUE: "the schedule fires at {detail}, not now",
    Reason.REDRIVES_FULL: "{detail} redrives are running, which is the limit",
    Reason.REDRIVE_UNKNOWN: "there is no redrive {detail} in the queue (any more)",
    Reason.REDRIVE_NOT_DUE: "the next step of the redrive is due at {detail}",
    Reason.STREAM_UNKNOWN: "the stream does not exist; create it first",
    Reason.STREAM_EXISTS: "the stream exists, created at index {detail}",
    Reason.STREAM_NAME_INVALID: "a stream name of {detail} bytes; names have 1 to 128, without ':'",
    Reason.STREAMS_FULL: "there are {detail} streams in the namespace, which is the limit",
    Reason.STREAM_LIMIT_INVALID: "a stream cannot be configured with {detail}",
    Reason.PARTITION_UNKNOWN: "the stream has no partition {detail}",
    Reason.PRODUCER_UNKNOWN: "the producer is not known (any more): begin again at sequence 0",
    Reason.PRODUCER_FENCED: "the producer is in epoch {detail} now",
    Reason.PRODUCER_SEQUENCE_GAP: "the producer's next sequence is {detail}",
    Reason.PRODUCER_SEQUENCE_FORGOTTEN: "sequences below {detail} were taken; offset forgotten",
    Reason.TRIM_BLOCKED: "a consumer group still needs the records from offset {detail} on",
    Reason.TRIM_NOT_DUE: "the policy keeps what lies before offset {detail}",
    Reason.GROUP_UNKNOWN: "the consumer group does not exist; create it first",
    Reason.GROUP_EXISTS: "the consumer group exists, created at index {detail}",
    Reason.GROUP_NAME_INVALID: "a group name of {detail} bytes; names have 1 to 128",
    Reason.STREAM_GROUPS_FULL: "there are {detail} groups of the stream, which is the limit",
    Reason.MEMBER_UNKNOWN: "member {detail} is not in the group (any more); join again",
    Reason.MEMBERS_FULL: "there are {detail} members in the group, which is the limit",
    Reason.MEMBER_SESSION_INVALID: "a member's session of {detail} ns is not between 1 s and 24 h",
    Reason.GENERATION_STALE: "the group is in generation {detail}: partitions may have moved",
    Reason.PARTITION_NOT_OWNED: "partition {detail} is not assigned to the member",
    Reason.CURSOR_BEHIND: "the cursor stands at {detail}; only a seek moves it back",
    Reason.OFFSET_IN_FUTURE: "the offset is beyond {detail}, where the next record can be",
    Reason.OFFSETS_INVALID: "the offsets do not ascend at {detail}",
    Reason.DELIVERY_STALE: "delivery continues from offset {detail}",
    Reason.PENDING_FULL: "{detail} records wait for acknowledgement; these would exceed the limit",
    Reason.RECORD_NOT_PENDING: "the member does not hold the record at offset {detail}",
    Reason.DEAD_LETTER_STREAM_UNKNOWN: "the stream for dead letters does not exist",
    Reason.DEAD_LETTER_STALE: "the record at offset {detail} is not waiting to be moved",
    Reason.DEAD_LETTERS_FULL: "the stream holds {detail} dead letters, which is the limit",
    Reason.SERIES_NAME_INVALID: "byte {detail} of a series name is not in canonical form",
    Reason.MEASUREMENT_UNKNOWN: "the measurement does not exist",
    Reason.MEASUREMENT_EXISTS: "the measurement exists, created at index {detail}",
    Reason.MEASUREMENTS_FULL: "the namespace has {detail} measurements, which is the limit",
    Reason.MEASUREMENT_CONFIG_INVALID: "a setting of {detail} is outside its bounds",
    Reason.SERIES_FULL: "the measurement holds {detail} series, which is its cardinality limit",
    Reason.FIELD_UNKNOWN: "the measurement has no such field",
    Reason.FIELD_TYPE_MISMATCH: "the field was first written with type {detail} and keeps it",
    Reason.FIELDS_FULL: "the measurement has {detail} fields, which is the limit",
    Reason.POINT_TIME_INVALID: "a point's time of {detail} ns is outside 1823 to 2116",
    Reason.POINT_TOO_OLD: "points before {detail} ns are beyond the measurement's retention",
    Reason.POINT_NOT_NEWER: "the measurement takes rising times only; the newest is {detail} ns",
    Reason.VALUE_NOT_FINITE: "value {detail} is not a number or infinite; leave the point out",
    Reason.SERIES_BUFFER_FULL: "{detail} points of a series wait for their block; try again later",
    Reason.SERIES_DELETES_FULL: "a series keeps {detail} deleted ranges, which is the limit",
    Reason.BLOCK_STALE: "the points that the block replaces do not exist (any more)",
    Reason.MATCHER_INVALID: "the pattern of a matcher is not understood at character {detail}",
    Reason.RULE_UNKNOWN: "the measurement has no such downsampling rule",
    Reason.RULES_FULL: "the measurement has {detail} downsampling rules, which is the limit",
    Reason.RULE_INVALID: "the downsampling rule is invalid: number {detail} does not fit",
    Reason.ROLLUP_STALE: "the rollup continues from {detail}, but its rule stands elsewhere",
    Reason.TRIM_EARLY: "retention does not allow to trim after {detail} ns",
    Reason.QUERY_INVALID: "the query is invalid: number {detail} does not fit",
    Reason.QUERY_TOO_LARGE: "the query would touch {detail} points or series, above the limit",
    Reason.TRIM_STALE: "the trim continues after series {detail}",
    Reason.HOLD_UNKNOWN: "there is no hold of that name",
    Reason.HOLD_EXISTS: "a hold of that name exists, and keeps entries from index {detail} on",
    Reason.HOLDS_FULL: "there are {detail} holds, which is the limit",
    Reason.HOLD_NAME_INVALID: "a hold's name of {detail} bytes; names have 1 to 128",
    Reason.HOLD_INDEX_INVALID: "the hold stands at index {detail}; it moves forward only",
    Reason.HOLD_LIMIT_INVALID: "a lifetime or size of {detail} is outside what a hold may have",
    Reason.HOLD_BROKEN: "the hold broke at index {detail}; release it, then set it anew",
    Reason.HOLD_BREAK_STALE: "the entry at index {detail} has set the hold anew",
}
