"""Why something was refused: stable names for programs, codes for disks, words for people.

Codes are stored with the results of sessions and in snapshots: append, never renumber or reuse.
Words are made from the reason and one number when somebody reads them, so that they may be
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


MESSAGES = {
    Reason.PAYLOAD_TRUNCATED: "the payload ends inside a field",
    Reason.PAYLOAD_VERSION_UNKNOWN: "payload version {detail} is not known here",
    Reason.PAYLOAD_NOT_UTF8: "a name is not UTF-8",
    Reason.PAYLOAD_COUNT_TOO_LARGE: "a count of {detail} is above its limit",
    Reason.PAYLOAD_TRAILING_BYTES: "{detail} bytes follow the last field",
    Reason.PAYLOAD_FIELD_INVALID: "a field holds {detail}, which means nothing there",
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
    Reason.BATCH_REFUSED: "entry {detail} of the batch was refused: {cause}",
}
