"""Why something was refused: a stable name for programs, a code on disk, a text for people.

One line is one reason. Codes are stored with the results of sessions and in snapshots: append,
never renumber or reuse. The text is made from the reason and one number when it is read, so it may
be improved without changing any state. Refusals that the server makes by itself have names only
(onelog/reasons.py); docs/reasons.md lists all.
"""

from enum import IntEnum

from onelog.projections.limits import (
    HOLD_NAME_SIZE_MAX,
    JSON_SIZE_MAX,
    KEY_SIZE_MAX,
    VALUE_SIZE_MAX,
)

# What the texts name besides their number. Limits of single models are written out there: this
# module must not import the models.
_LIMITS = {
    "HOLD_NAME_SIZE_MAX": HOLD_NAME_SIZE_MAX,
    "JSON_SIZE_MAX": JSON_SIZE_MAX,
    "KEY_SIZE_MAX": KEY_SIZE_MAX,
    "VALUE_SIZE_MAX": VALUE_SIZE_MAX,
}


class Reason(IntEnum):
    """Why an entry or a read was refused; the name is what clients see.

    A member is its code, its text, and if 0 needs other words, the text for that.
    """

    _texts: tuple[str, str]

    def __new__(cls, code: int, text: str = "", text_of_zero: str = "") -> "Reason":
        """Make a member; ``Reason(code)`` finds it."""
        made = int.__new__(cls, code)
        made._value_ = code
        made._texts = (text, text_of_zero or text)
        return made

    def message(self, detail: int, cause: str = "") -> str:
        """Return the text for people; ``cause``: the reason of the operation that was refused."""
        text = self._texts[not detail]
        return text.format(detail=detail, next=detail + 1, cause=cause, **_LIMITS)

    @property
    def meaning(self) -> str:
        """The text with letters for what differs, for documents."""
        return self._texts[0].format(detail="N", next="N", cause="REASON", **_LIMITS)

    PAYLOAD_TRUNCATED = 1, "the payload ends inside a field"
    PAYLOAD_VERSION_UNKNOWN = 2, "payload version {detail} is not known here"
    PAYLOAD_NOT_UTF8 = 3, "a name is not UTF-8"
    PAYLOAD_COUNT_TOO_LARGE = 4, "a count of {detail} is above its limit"
    PAYLOAD_TRAILING_BYTES = 5, "{detail} bytes follow the last field"
    PAYLOAD_FIELD_INVALID = 6, "a field holds {detail}, which is not a value of this field"
    PAYLOAD_CORRUPT = 7, "the compressed payload does not decompress"
    PAYLOAD_TOO_LARGE = 8, "the payload is {detail} bytes, above the limit"
    OWNER_UNKNOWN = 9, "no projection owns entries of owner {detail}"
    OPERATION_UNKNOWN = 10, "operation {detail} is not known to its owner"

    NAMESPACE_UNKNOWN = 20, "the namespace does not exist; create it first"
    NAMESPACE_EXISTS = 21, "the namespace exists, created at index {detail}"
    NAMESPACE_PROTECTED = 22, "the default namespace cannot be deleted"
    NAMESPACE_FULL = 23, "the namespace holds its limit of {detail} keys"
    NAMESPACES_FULL = 24, "there are {detail} namespaces, which is the limit"
    NAMESPACE_LIMIT_INVALID = 25, "a limit of {detail} is outside what a namespace may set"

    KEY_SIZE_INVALID = 40, "a key of {detail} bytes; keys have 1 to {KEY_SIZE_MAX}"
    KEY_RESERVED = 41, "keys that start with 'cg:' or '_ts:' are written by the database only"
    KEY_NOT_FOUND = 42, "the key does not exist"
    ALREADY_EXISTS = 43, "the key exists, at version {detail}"
    CONDITION_FAILED = (
        44,
        "the key's version is {detail}, and another one is expected",
        "the key does not exist, and a version of it is expected",
    )
    VALUE_TOO_LARGE = 45, "a value of {detail} bytes is above the limit of its namespace"
    TTL_INVALID = 46, "a lifetime of {detail} ns; allowed: 1 ns to 100 years"
    NOT_A_NUMBER = 47, "the value is not a decimal integer of 64 bits"
    COUNTER_OVERFLOW = 48, "the result does not fit 64 bits; the value stays {detail}"
    RANGE_INVALID = 49, "the range's end is not above its start"
    COMPACTED = 50, "versions before index {detail} are no longer kept"
    INDEX_IN_FUTURE = 51, "the index is above the applied index {detail}"
    LIMIT_INVALID = 52, "a limit or a number of items of {detail} is outside its bounds"

    JSON_INVALID = 60, "not a JSON text"
    JSON_TOO_LARGE = 61, "a JSON text of {detail} bytes; at most {JSON_SIZE_MAX} are allowed"
    JSON_TOO_DEEP = 62, "the JSON text is nested deeper than {detail} levels"
    JSON_PATH_NOT_FOUND = 63, "step {detail} of the path, counted from 0, leads nowhere"
    JSON_PATH_INVALID = 64, "step {detail} of the path, counted from 0, does not fit the document"

    LEASE_LOST = 70, "lease {detail} does not exist (any more)"
    LEASE_FULL = 71, "the lease holds {detail} keys, which is the limit"
    LEASES_FULL = 72, "the namespace has {detail} leases, which is the limit"

    TRANSACTION_REFUSED = 80, "operation {detail}, counted from 0, was refused: {cause}"
    RESULT_TOO_LARGE = 81, "the reads of the transaction return more than {detail} bytes"

    SESSION_EXPIRED = 90, "session {detail} does not exist (any more); nothing was executed"
    SESSIONS_FULL = 91, "there are {detail} sessions, which is the limit"
    SESSION_RESULTS_FULL = (
        92,
        "too many results wait for acknowledgement, from sequence {detail} on",
    )
    SEQUENCE_ACKNOWLEDGED = 93, "sequences below {detail} are acknowledged; result forgotten"
    SEQUENCE_INVALID = 94, "the sequence is below the first unacknowledged one, {detail}"
    SEQUENCE_REUSED = 95, "sequence {detail} belongs to another request; nothing was executed"

    BATCH_MISSING = 100, "the entry belongs to a batch that did not start"
    BATCH_INCOMPLETE = 101, "the batch names {detail} entries that its group does not hold"
    BATCH_MALFORMED = 102, "the batch cannot hold the entry at position {detail}"
    BATCH_REFUSED = 103, "operation {detail}, counted from 0, was refused: {cause}"

    QUEUE_UNKNOWN = 110, "there is no queue {detail} in the namespace (any more)"
    QUEUE_EXISTS = 111, "a queue of that name exists, created at index {detail}"
    QUEUES_FULL = 112, "there are {detail} queues, which is the limit"
    QUEUE_NAME_INVALID = (
        113,
        "a queue's name of {detail} bytes; names have 1 to 128",
    )
    QUEUE_CONFIG_INVALID = 114, "a setting of {detail} is outside what a queue may have"
    QUEUE_PAUSED = 115, "queue {detail} is paused: it accepts messages and delivers none"
    QUEUE_FULL = 116, "the queue holds its limit of {detail} messages"
    QUEUE_IN_USE = 117, "queue {detail} sends its dead letters there"
    DEAD_QUEUE_INVALID = (
        118,
        "queue {detail} cannot take the dead letters of this queue: it must be another "
        "queue of the same namespace",
        "max_deliveries needs a dead-letter queue",
    )
    QUEUE_LEASES_FULL = 119, "the queue has {detail} messages leased, which is the limit"
    GROUPS_FULL = 120, "the queue has {detail} message groups, which is the limit"
    TENANTS_FULL = 121, "the queue has {detail} tenants, which is the limit"
    MESSAGE_UNKNOWN = 122, "message {detail} is not in the queue (any more)"
    MESSAGE_LEASED = 123, "message {detail} is leased"
    LEASE_TOKEN_STALE = (
        124,
        "the lease is over: the message is leased again, with token {detail}",
        "the lease is over: the message is not leased",
    )
    MESSAGE_TOO_LARGE = 125, "a body of {detail} bytes; at most {VALUE_SIZE_MAX} are allowed"
    MESSAGE_KEY_INVALID = (
        126,
        "a dedup id, group, tenant or consumer of {detail} bytes; they have 1 to 128",
    )
    HEADER_INVALID = 127, "a header of {detail} bytes is too large, empty or reserved"
    PRIORITY_INVALID = 128, "priority {detail}; allowed: 0 to 15"
    DELAY_INVALID = 129, "a delay of {detail} ns; at most 100 years are allowed"
    VISIBILITY_INVALID = 130, "a lease of {detail} ns; allowed: 1 ns to 7 days"
    FAILURE_TOO_LARGE = 131, "a failure reason of {detail} bytes is above the limit"
    CRON_INVALID = 132, "field {detail} of the cron expression, counted from 0, cannot be read"
    CRON_NEVER = 133, "the cron expression names no time in the next {detail} days"
    SCHEDULES_FULL = 134, "the queue has {detail} schedules, which is the limit"
    SCHEDULE_UNKNOWN = 135, "there is no schedule {detail} in the queue (any more)"
    SCHEDULE_NOT_DUE = 136, "the schedule fires at {detail}, not now"
    REDRIVES_FULL = 137, "{detail} redrives are running, which is the limit"
    REDRIVE_UNKNOWN = 138, "there is no redrive {detail} in the queue (any more)"
    REDRIVE_NOT_DUE = 139, "the next step of the redrive is due at {detail}"

    STREAM_UNKNOWN = 150, "the stream does not exist; create it first"
    STREAM_EXISTS = 151, "the stream exists, created at index {detail}"
    STREAM_NAME_INVALID = (
        152,
        "a stream's name of {detail} bytes; names have 1 to 128, without ':'",
    )
    STREAMS_FULL = 153, "there are {detail} streams in the namespace, which is the limit"
    STREAM_LIMIT_INVALID = 154, "a stream or group cannot be configured with {detail}"
    PARTITION_UNKNOWN = 155, "the stream has no partition {detail}"
    PRODUCER_UNKNOWN = 156, "the producer is not known (any more): begin again at sequence 1"
    PRODUCER_FENCED = 157, "the producer is in epoch {detail} now"
    PRODUCER_SEQUENCE_GAP = 158, "the producer's next sequence is {next}"
    PRODUCER_SEQUENCE_FORGOTTEN = (
        159,
        "sequences below {next} were written; their offsets are forgotten",
    )
    TRIM_BLOCKED = 160, "a consumer group still needs the records from offset {detail} on"
    TRIM_NOT_DUE = 161, "the policy keeps what lies before offset {detail}"
    GROUP_UNKNOWN = 162, "the consumer group does not exist; create it first"
    GROUP_EXISTS = 163, "the consumer group exists, created at index {detail}"
    GROUP_NAME_INVALID = (
        164,
        "a group's name of {detail} bytes; names have 1 to 128",
    )
    STREAM_GROUPS_FULL = 165, "there are {detail} groups of the stream, which is the limit"
    MEMBER_UNKNOWN = 166, "member {detail} is not in the group (any more); join again"
    MEMBERS_FULL = 167, "there are {detail} members in the group, which is the limit"
    MEMBER_SESSION_INVALID = 168, "a member's session of {detail} ns; allowed: 1 s to 24 h"
    GENERATION_STALE = 169, "the group is in generation {detail}: partitions may have moved"
    PARTITION_NOT_OWNED = 170, "partition {detail} is not assigned to the member"
    CURSOR_BEHIND = 171, "the cursor stands at {detail}; only a seek moves it back"
    OFFSET_IN_FUTURE = 172, "the offset is beyond {detail}, where the next record can be"
    OFFSETS_INVALID = 173, "the offsets do not ascend at {detail}"
    DELIVERY_STALE = 174, "delivery continues from offset {detail}"
    PENDING_FULL = (
        175,
        "{detail} records wait for acknowledgement; with these more than 10000 would",
    )
    RECORD_NOT_PENDING = 176, "the member does not hold the record at offset {detail}"
    DEAD_LETTER_STREAM_UNKNOWN = 177, "the stream for dead letters does not exist"
    DEAD_LETTER_STALE = 178, "the record at offset {detail} is not waiting to be moved"
    DEAD_LETTERS_FULL = 179, "the stream holds {detail} dead letters, which is the limit"
    FILTER_TOO_LARGE = 180, "a filter of {detail} bytes is above the limit of a group"

    SERIES_NAME_INVALID = 190, "byte {detail} of a series name is not in canonical form"
    MEASUREMENT_UNKNOWN = 191, "the measurement does not exist"
    MEASUREMENT_EXISTS = 192, "the measurement exists, created at index {detail}"
    MEASUREMENTS_FULL = 193, "the namespace has {detail} measurements, which is the limit"
    MEASUREMENT_CONFIG_INVALID = 194, "a setting of {detail} is outside its bounds"
    SERIES_FULL = 195, "the measurement holds {detail} series, which is its cardinality limit"
    FIELD_UNKNOWN = 196, "the measurement has no such field"
    FIELD_TYPE_MISMATCH = (
        197,
        "the field was first written with type {detail} (1: F64, 2: I64, 3: BOOL) and keeps it",
    )
    FIELDS_FULL = 198, "the measurement has {detail} fields, which is the limit"
    POINT_TIME_INVALID = 199, "a point's time of {detail} ns is outside 1823 to 2116"
    POINT_TOO_OLD = 200, "points before {detail} ns are beyond the measurement's retention"
    POINT_NOT_NEWER = 201, "the measurement takes rising times only; the newest is {detail} ns"
    VALUE_NOT_FINITE = 202, "value {detail} is not a number or infinite; leave the point out"
    SERIES_BUFFER_FULL = 203, "{detail} points of a series wait for their block; try again later"
    SERIES_DELETES_FULL = 204, "a series keeps {detail} deleted ranges, which is the limit"
    BLOCK_STALE = 205, "the points that the block replaces do not exist (any more)"
    MATCHER_INVALID = 206, "the pattern of a matcher is not understood at character {detail}"
    RULE_UNKNOWN = 207, "the measurement has no such downsampling rule"
    RULES_FULL = 208, "the measurement has {detail} downsampling rules, which is the limit"
    RULE_INVALID = 209, "the downsampling rule has {detail} where that is not allowed"
    ROLLUP_STALE = 210, "the rollup continues from {detail}, but its rule stands elsewhere"
    TRIM_EARLY = 211, "retention does not allow to trim after {detail} ns"
    QUERY_INVALID = 212, "the query has {detail} where that is not allowed"
    QUERY_TOO_LARGE = 213, "the query would touch {detail} points or series, above the limit"
    TRIM_STALE = 214, "the trim continues after series {detail}"

    HOLD_UNKNOWN = 220, "there is no hold of that name"
    HOLD_EXISTS = 221, "a hold of that name exists, and keeps entries from index {detail} on"
    HOLDS_FULL = 222, "there are {detail} holds, which is the limit"
    HOLD_NAME_INVALID = 223, "a hold's name of {detail} bytes; names have 1 to {HOLD_NAME_SIZE_MAX}"
    HOLD_INDEX_INVALID = 224, "the hold stands at index {detail}; it moves forward only"
    HOLD_LIMIT_INVALID = 225, "a lifetime or size of {detail} is outside what a hold may have"
    HOLD_BROKEN = 226, "the hold broke at index {detail}; release it, then set it anew"
    HOLD_BREAK_STALE = 227, "the entry at index {detail} has set the hold anew"
