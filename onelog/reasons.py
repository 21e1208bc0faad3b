"""Every stable reason and alarm, once: what the code, the protos and the documents may name.

A line is a reason or an alarm; to add one, add a line. docs/reasons.md is made of this file and of
``onelog.projections.reasons``, which has the refusals that are decided when an entry is applied:
their codes are stored in logs. ``python -m scripts.write_reasons`` writes the document.
tests/test_promises.py holds the code, the protos and the documents against the list.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onelog.errors import (
    AlreadyExists,
    Cancelled,
    ConditionFailed,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    LeaseLost,
    NotFound,
    NotLeader,
    OnelogError,
    OutcomeUnknown,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    SessionExpired,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)

Kind = type[OnelogError]

# Errors of calls, made by the server.
CALLS: dict[str, tuple[Kind, str]] = {
    "ADDRESS_INVALID": (InvalidArgument, "a peer address is not host:port"),
    "ALREADY_EXISTS": (AlreadyExists, "the key, or what the call creates, exists"),
    "ANSWER_FULL": (ResourceExhausted, "the answer to a message is full; repeat the operation"),
    "ANSWER_TOO_LARGE": (TooLarge, "no message can hold the answer; ask for less"),
    "ASYNC_NEEDS_RESULT": (InvalidArgument, "the answer needs the result of the operation"),
    "BLOCK_DAMAGED": (DataLoss, "a block of points that a query needs is damaged"),
    "BLOCK_MISSING": (DataLoss, "a block of points that a query needs is not in the log"),
    "BOUND_INVALID": (InvalidArgument, "a trim has no bound, or several"),
    "CANCELLED": (Cancelled, "the caller, or the server, gave the call up"),
    "CHANGE_MISSING": (InvalidArgument, "a count says neither what to add nor a bound"),
    "CLUSTER_ERROR": (Unavailable, "replication failed"),
    "COMPACTED": (OutOfRange, "the log, or a version, is no longer kept there"),
    "CONDITION_FAILED": (ConditionFailed, "a version or condition is not as expected"),
    "CONDITION_INVALID": (InvalidArgument, "a condition has no test, or an unknown comparison"),
    "CONSUMER_REPLACED": (FailedPrecondition, "a newer stream of the same consumer began"),
    "CURSOR_INVALID": (InvalidArgument, "a cursor is not one of this call"),
    "DATA_LOSS": (DataLoss, "stored bytes are damaged; the server's log says which"),
    "DEADLINE_EXCEEDED": (DeadlineExceeded, "the deadline of the call passed"),
    "DISCARDED": (Unavailable, "another leader's proposal took the place; nothing was done"),
    "DISK_FULL": (ResourceExhausted, "the leader's disk is short of space; nothing was written"),
    "DIVERGED": (DataLoss, "two replicas have different bytes in one place; this one stopped"),
    "DURABILITY_INVALID": (InvalidArgument, "there is no such durability"),
    "ENTRY_DAMAGED": (DataLoss, "entries of the log cannot be read, and no copy has come"),
    "EXPIRED": (DeadlineExceeded, "the deadline passed before anything was done"),
    "FAILED_PRECONDITION": (FailedPrecondition, "the call does not fit the present state"),
    "FIELDS_INVALID": (InvalidArgument, "columns do not fit the times of their points"),
    "FROM_START_INVALID": (InvalidArgument, "a hold that moves needs an index"),
    "INTERNAL": (Internal, "a bug; the message has a number to find it in the server's log"),
    "INVALID_ARGUMENT": (InvalidArgument, "the call is wrong"),
    "JSON_PATH_TOO_LARGE": (TooLarge, "a path has too many steps, or too long a member"),
    "LEADER_UNREACHABLE": (Unavailable, "the leader cannot be reached; nothing was done"),
    "LEARNER_BEHIND": (FailedPrecondition, "the learner lacks too many proposals to vote"),
    "LEVEL_INVALID": (InvalidArgument, "there is no such level of reads"),
    "MEMBERSHIP_REFUSED": (FailedPrecondition, "the change of members is not possible now"),
    "MEMBER_REMOVED": (Unavailable, "the node was removed from its cluster; call a member"),
    "MORE_INVALID": (InvalidArgument, "messages are nested where they cannot be"),
    "NAMESPACE_NAME_INVALID": (InvalidArgument, "a namespace has 1 to 128 printable bytes"),
    "NODE_ID_INVALID": (InvalidArgument, "the id of a node is not a UUID"),
    "NODE_NAME_INVALID": (InvalidArgument, "the name of a node is too long, or taken"),
    "NOT_FOUND": (NotFound, "what the call names does not exist"),
    "NOT_LEADER": (NotLeader, "another node leads the shard; the metadata has its endpoint"),
    "NO_LEADER": (Unavailable, "the shard has no leader at the moment; nothing was done"),
    "OPERATION_MISSING": (InvalidArgument, "an operation is of no kind that is known here"),
    "OUTCOME_UNKNOWN": (OutcomeUnknown, "a write may or may not take effect; retry in a session"),
    "OUT_OF_MEMORY": (ResourceExhausted, "the node has no memory for the call"),
    "OUT_OF_RANGE": (OutOfRange, "an index is older than what is kept, or beyond the end"),
    "OVERLOADED": (ResourceExhausted, "too many proposals of the shard are under way"),
    "OWNER_INVALID": (InvalidArgument, "there is no such owner of entries"),
    "PAGE_TOKEN_INVALID": (InvalidArgument, "a page token is not of a page of this listing"),
    "PAST_TOO_LARGE": (ResourceExhausted, "the past state does not fit the memory for it"),
    "PERMISSION_DENIED": (PermissionDenied, "the caller may not do this"),
    "POINTS_MISSING": (InvalidArgument, "a write or a series has no points"),
    "POINTS_TOO_LARGE": (TooLarge, "one write has too many series, columns, fields or values"),
    "PRODUCER_INVALID": (InvalidArgument, "an epoch or sequence of a producer is out of range"),
    "PROGRESS_INVALID": (InvalidArgument, "progress messages are wanted too often"),
    "REPLICA_BEHIND": (Unavailable, "the replica has not applied the index yet"),
    "REPLICA_STOPPED": (Unavailable, "the replica met an error after which it must not go on"),
    "REQUEST_MALFORMED": (InvalidArgument, "the bytes are no message of the call"),
    "RESOURCE_EXHAUSTED": (ResourceExhausted, "a limit is reached"),
    "ROUTING_KEY_MISSING": (InvalidArgument, "a transaction names no key of its shard"),
    "SCHEDULE_MESSAGE_INVALID": (InvalidArgument, "a schedule's message has a delay or dedup id"),
    "SERVICE_UNKNOWN": (NotFound, "health: there is no such service"),
    "SESSION_INVALID": (InvalidArgument, "the id of a session is 0"),
    "SEVERAL_SHARDS": (InvalidArgument, "what must be in one shard is in several; use a {tag}"),
    "SHARD_UNKNOWN": (InvalidArgument, "there is no such shard"),
    "SLOW_READER": (ResourceExhausted, "a stream was not read for 30 s; resume it"),
    "SNAPSHOT_UNKNOWN": (NotFound, "no snapshot is kept at the index"),
    "SPILL_FULL": (ResourceExhausted, "the store for values that left memory is full"),
    "STALENESS_INVALID": (InvalidArgument, "a staleness is too long, or the read is not stale"),
    "STALE_BOUND_EXCEEDED": (Unavailable, "the state may be older than the read allows"),
    "START_INVALID": (InvalidArgument, "a read begins at an offset and at a time, or beyond"),
    "STATE_DIVERGED": (DataLoss, "a majority has another state at the same index"),
    "STOPPING": (Unavailable, "the node is shutting down; nothing was done"),
    "TAG_INVALID": (InvalidArgument, "the tag of a record is too long"),
    "TARGET_INVALID": (InvalidArgument, "a seek has neither an offset nor a time"),
    "TOO_LARGE": (TooLarge, "the request is above limits.message_bytes_max"),
    "TOO_MANY_BYTES": (ResourceExhausted, "requests of the process take too many bytes"),
    "TOO_MANY_CALLS": (ResourceExhausted, "too many calls of the process are under way"),
    "TOO_MANY_LOG_STREAMS": (ResourceExhausted, "too many streams of the log are under way"),
    "TOO_MANY_OPEN_FILES": (ResourceExhausted, "the leader may open no more files"),
    "TOO_MANY_PAST_STATES": (ResourceExhausted, "too many past states are in use"),
    "TOO_MANY_QUERIES": (ResourceExhausted, "too many queries are under way"),
    "TOO_MANY_REQUESTS": (ResourceExhausted, "too many requests of the client, or of the shard"),
    "TRANSFER_FAILED": (FailedPrecondition, "the leadership stays: the target cannot take it"),
    "TRIMMED_MEANWHILE": (Unavailable, "records were trimmed faster than they were read"),
    "UNAUTHENTICATED": (Unauthenticated, "the caller sent no credentials, or wrong ones"),
    "UNAVAILABLE": (Unavailable, "nothing was done"),
    "UNIMPLEMENTED": (Unimplemented, "the server does not know the call"),
    "UNKNOWN": (OnelogError, "a failure that no part of onelog made, such as of a proxy"),
    "VALUES_INVALID": (InvalidArgument, "there are not as many values as keys"),
    "WAIT_INVALID": (InvalidArgument, "a wait is too long, or inside a message of others"),
}

# Errors that the Python client, or the command line through it, makes by itself.
CLIENT: dict[str, tuple[Kind, str]] = {
    "AGGREGATE_INVALID": (InvalidArgument, "there is no such aggregate"),
    "BATCH_EMPTY": (InvalidArgument, "a transaction has no operations"),
    "CERTIFICATE_INVALID": (InvalidArgument, "a certificate or key cannot be used"),
    "CERTIFICATE_REFUSED": (Unavailable, "TLS could not be agreed on with the server"),
    "CLIENT_CLOSED": (FailedPrecondition, "the client is closed"),
    "COMMITTED": (FailedPrecondition, "the transaction was committed before"),
    "COMPARISON_INVALID": (InvalidArgument, "there is no such comparison"),
    "CONNECTION_CLOSED": (Unavailable, "the other end closed the connection without a word"),
    "DUPLICATES_INVALID": (InvalidArgument, "there is no such policy for duplicates"),
    "DURATION_INVALID": (InvalidArgument, "a duration is negative, not finite or too long"),
    "FORKED": (FailedPrecondition, "a client does not work in a forked process"),
    "HOST_UNKNOWN": (Unavailable, "the name of the host is not known"),
    "LEASE_LOST": (LeaseLost, "the lease has ended"),
    "LOCK_HELD": (FailedPrecondition, "somebody else holds the lock"),
    "MODEL_INVALID": (InvalidArgument, "there is no such model to watch"),
    "NOT_COMMITTED": (FailedPrecondition, "the transaction has no results yet"),
    "NOT_CONNECTED": (Unavailable, "there is no connection; nothing was sent"),
    "NOT_LEASED": (
        FailedPrecondition,
        "the message is not a leased one, or the record not a fetched one",
    ),
    "NOT_ONELOG": (Unavailable, "what answers there is no onelog server"),
    "NOT_SENT": (Unavailable, "the call was not sent"),
    "NO_TOPOLOGY": (Unavailable, "the server does not know its topology yet"),
    "NUMBER_INVALID": (InvalidArgument, "a number does not fit its field"),
    "SESSION_EXPIRED": (SessionExpired, "the session has ended"),
    "SNAPSHOT_INTERRUPTED": (FailedPrecondition, "a snapshot broke off; read it again"),
    "STREAM_REFUSED": (Unavailable, "the connection takes no more calls; nothing was done"),
    "TEXT_INVALID": (InvalidArgument, "a text is not valid Unicode"),
    "TLS_MISMATCH": (Unavailable, "one end speaks TLS and the other does not"),
    "TOPOLOGY_MISMATCH": (FailedPrecondition, "an endpoint is of another cluster"),
    "TYPE_INVALID": (InvalidArgument, "an argument has a wrong type"),
    "WORKER_INVALID": (InvalidArgument, "a worker cannot have these settings"),
}

# Reasons that have a second class: what is wrong follows from the call or from the state, or the
# call was under way.
ALSO: dict[str, Kind] = {
    "CLIENT_CLOSED": Unavailable,
    "JSON_PATH_INVALID": InvalidArgument,
    "WRITE_PROGRESS_LOST": DataLoss,
}

# What `onelog admin status` shows as an alarm.
ALARMS: dict[str, str] = {
    "CERTIFICATE_EXPIRED": "a certificate of the node has expired",
    "CERTIFICATE_EXPIRES": "a certificate of the node expires within 30 days",
    "CERTIFICATE_UNUSABLE": "certificate files have changed, and the new ones cannot be used",
    "CLOCK_JUMPED": "the wall clock is far from log time, and is not followed",
    "DISK_FULL": "the disk is short of space: the shard refuses writes",
    "HOLD_BROKEN": "a hold is broken, until it is released",
    "HOLD_NOT_KEPT": "this replica's disk was nearly full, and it dropped held entries",
    "REPLICA_STOPPED": "a replica has stopped, with the error",
    "SEGMENT_DAMAGED": "a sealed segment is damaged",
    "SNAPSHOT_DAMAGED": "a kept snapshot cannot be read",
    "STATE_DIVERGED": "replicas had different states at one index",
    "STATE_MISMATCH": "replaying the log gave another state than the replica has",
    "TOO_MANY_OPEN_FILES": "the process may open no more files: the shard refuses writes",
    "WORKER_UNREACHABLE": "a worker process of the node does not answer",
}

# Why a server does not start, or ends; and what it or an offline command says of its directory.
SERVERS: dict[str, str] = {
    "BAD_CONFIG": "a setting cannot be used: which, where it came from, what would be right",
    "BUILDER_CANCELLED": "the building of a snapshot was cancelled",
    "BUILDER_ERROR": "a snapshot could not be built",
    "BUILDER_FAILED": "the process that builds a snapshot failed, or died",
    "BUILDER_TIMEOUT": "the building of a snapshot took too long",
    "CERTIFICATE_UNFIT": "a certificate names another node, or is not for its purpose",
    "CORRUPT_ENTRY": "an entry of the log breaks a rule",
    "CORRUPT_FILE": "a file breaks a rule; nothing from it is served",
    "CORRUPT_PAYLOAD": "a compressed payload cannot be decompressed",
    "CORRUPT_SNAPSHOT": "a snapshot breaks a rule",
    "DATA_ERROR": "bytes are not what was written",
    "DIRECTORY_ERROR": "the data directory cannot be opened as asked",
    "DIRECTORY_EXPOSED": "others have access to the data directory, and it cannot be narrowed",
    "DIRECTORY_IN_USE": "another process uses the data directory",
    "DIRECTORY_LOST": "the data directory was removed or replaced while it was in use",
    "ENTRY_ERROR": "an entry cannot be decoded",
    "FOREIGN_SHARD": "the directory of a shard is of another shard, node or cluster",
    "FORMATION_REFUSED": "the cluster does not want the node as it is",
    "GROUP_TOO_LARGE": "a group of entries is above its limit",
    "INDEX_DROPPED": "the log is no longer kept there",
    "INDEX_UNAVAILABLE": "the log does not hold the index",
    "KEY_EXPOSED": "others can read a private key",
    "KEY_MISMATCH": "a private key does not belong to its certificate",
    "LOG_FAILED": "a write or sync failed; only a restart tells what the disk holds",
    "LOG_GAP": "the log does not continue where the snapshot ends",
    "MEMBER_REMOVED": "the cluster has removed the node",
    "MISSING_SEGMENT": "no file holds a range of entries",
    "NODE_ERROR": "the node ended on purpose",
    "NOT_A_DATA_DIRECTORY": "the directory has files, and none of them is SYSTEM",
    "NOT_DURABLE": "a snapshot needs entries that are not synced yet",
    "NOT_UNDERSTOOD": "the process that builds a snapshot wrote something else",
    "NO_SNAPSHOT": "no snapshot can be read",
    "OUT_OF_MEMORY": "the process has no more memory; the message says what it held",
    "PAYLOAD_TOO_LARGE": "a payload is above the limit",
    "RANGE_NOT_WHOLE": "a range begins or ends inside a group",
    "SHARD_DAMAGED": "a shard cannot start, and no other member can repair its log",
    "SNAPSHOT_AHEAD": "a snapshot is ahead of the log",
    "SNAPSHOT_ERROR": "a snapshot cannot be used",
    "TOPOLOGY_MISMATCH": "shards, partitions, workers or cluster differ from those asked for",
    "TORN_ENTRY": "the log ends inside an entry or a group",
    "UAL_ERROR": "the log refused something",
    "UNKNOWN_VERSION": "a file was written by a newer onelog",
    "USAGE": "the command line was not understood",
    "WORKER_FAILED": "a worker process ended by itself",
    "WRONG_NODE": "the data directory is another node's",
}

# What `onelog log verify` finds.
FINDINGS: dict[str, str] = {
    "COMMIT_BEYOND_END": "RAFT has a commit index behind the end of the log",
    "ENTRY_DAMAGED": "an entry of a sealed segment is damaged",
    "FILE_CHECKSUM": "the checksum of a sealed segment is wrong",
    "FOOTER_DAMAGED": "the footer of a sealed segment is damaged",
    "FOREIGN_SHARD": "the directory of a shard is of another shard, node or cluster",
    "HEADER_DAMAGED": "the header of a segment is damaged, or differs from its entries",
    "INTERRUPTED_CUT": "a cut of the log is not finished; the next start finishes it",
    "INTERRUPTED_SEAL": "a seal is not finished; the next start finishes it",
    "MANIFEST_DAMAGED": "MANIFEST cannot be read",
    "MANIFEST_MISSING": "there is no MANIFEST",
    "MISSING_END": "the log ends before an entry that was durable",
    "MISSING_RANGE": "no file holds a range of entries",
    "NODE_DAMAGED": "NODE cannot be read",
    "NOTES_DAMAGED": "the notes about a segment are damaged",
    "NO_HEADER": "a file has no header yet",
    "OS_ERROR": "the operating system refused something",
    "RAFT_HINT": "the hint in RAFT is damaged, or from before a cut",
    "RAFT_LOST": "RAFT is missing, or both of its slots are damaged",
    "RAFT_SLOT": "one slot of RAFT is damaged; the other one counts",
    "READ_FAILED": "a file cannot be read",
    "SHARD_MISSING": "the directory of a shard is missing",
    "SNAPSHOT_MISSING": "a snapshot that MANIFEST lists is not there",
    "SYSTEM_DAMAGED": "SYSTEM cannot be read",
    "TABLE_DAMAGED": "a table of a sealed segment differs from its entries",
    "TOO_SHORT": "a file is too short to be a sealed segment",
    "TORN_TAIL": "the log ends inside a group; the next start cuts it",
    "UNFINISHED_ROLL": "a change to the next file is not finished",
    "UNLISTED_SNAPSHOT": "a snapshot is not in MANIFEST",
    "UNUSED_SUMMARY": "a summary belongs to no segment",
    "WRONG_NAME": "a file has another first index than its name says",
    "WRONG_ORDER": "entries or files are not in order",
    "WRONG_PROPOSAL": "a file begins with another proposal than the one before ends with",
    "WRONG_SHARD": "a file belongs to another shard",
}

# Why a node refuses another one, or what it sends (docs/replication.md).
PEERS: dict[str, str] = {
    "BAD_CHUNK": "a part of a file that was sent is malformed",
    "BAD_FRAGMENT": "a part of a large message is out of order",
    "BAD_GROUP": "a group of entries breaks a rule",
    "BAD_ID": "the id of a node is malformed",
    "BAD_NUMBER": "a number is out of range",
    "BAD_STATE_REPORT": "a report about a state is malformed",
    "CERTIFICATE_MISMATCH": "the certificate is not that of the node",
    "CLUSTER_MISMATCH": "the node is of another cluster",
    "CLUSTER_NAME_MISMATCH": "the node asks for a cluster of another name",
    "FOUNDERS_MISMATCH": "the nodes do not name the same founders",
    "FRAME_TOO_LARGE": "a frame is above its limit",
    "HANDSHAKE_TIMEOUT": "the other end did not introduce itself in time",
    "HELLO_EXPECTED": "the first message is no introduction",
    "MESSAGE_TOO_LARGE": "a message is above its limit",
    "NAME_TAKEN": "another node has the name",
    "NODE_REPLACED": "the node has another id than before",
    "NOT_A_PEER_PORT": "the other end is no peer port",
    "NOT_FOUNDED": "there is no cluster to join yet",
    "PROTOCOL_TOO_NEW": "the other end speaks a newer protocol",
    "PROTOCOL_TOO_OLD": "the other end speaks an older protocol",
    "STALE_SESSION": "the connection is older than the present one",
    "TOO_MANY_MESSAGES": "a frame has too many messages",
    "TOPOLOGY_MISMATCH": "shards, partitions or workers differ",
    "UNEXPECTED_HELLO": "an introduction came a second time",
    "UNKNOWN_KIND": "a message is of an unknown kind",
    "UNKNOWN_NODE": "the node is no member",
    "UNKNOWN_SHARD": "there is no such shard",
    "UNREADABLE": "the bytes are no frame",
    "WRONG_DIRECTION": "the other side has to open the connection",
    "WRONG_TARGET": "another node answers under the address",
}

# Errors of commands, beside those of calls.
COMMANDS: dict[str, str] = {
    "ALREADY_A_VOTER": "the node is a member that votes",
    "ALREADY_UP": "the cluster runs",
    "AUTHORITY_INCOMPLETE": "of certificate and key of the authority one is missing",
    "CALLS_FAILED": "calls of a benchmark failed",
    "CERTIFICATE_INVALID": "a certificate or key cannot be used",
    "CLUSTER_BUSY": "another command is at work in the directory",
    "CLUSTER_FILE_DAMAGED": "the file about the nodes of the cluster cannot be read",
    "CONFIG_INVALID": "the file with settings of the client has a mistake",
    "DEMO_FAILED": "a step of the tour failed",
    "DOCUMENT_INVALID": "a document of operations has a mistake; the message says where",
    "INTERNAL": "a bug; please report it",
    "JSON_INVALID": "a line is no JSON object",
    "KEY_NOT_FOUND": "there is no such key",
    "LEASE_LOST": "a lock was lost, and its command was ended",
    "LOCK_BUSY": "somebody else holds the lock",
    "MEMBER_UNKNOWN": "the node is no member",
    "MODULE_MISSING": "a library is missing; the message says how to install it",
    "NAMESPACE_UNKNOWN": "there is no such namespace",
    "NODE_ENDED": "a node ended while it started",
    "NOTHING_NEW": "a stream has nothing for a group",
    "NOT_ENDED": "a node was killed and has not ended",
    "NOT_READY": "a node was not ready in time",
    "NOT_RUNNING": "a node does not run",
    "NO_CLUSTER": "there is no cluster in the directory",
    "NO_POINTS": "no points match in this time",
    "OS_ERROR": "the operating system refused something",
    "OUT_OF_MEMORY": "there is no more memory for the command",
    "POINTS_INVALID": "a line of points has a mistake; the message says where",
    "PORT_TAKEN": "no block of ports is free",
    "PYARROW_MISSING": "pyarrow is missing",
    "QUEUE_EMPTY": "no message is ready",
    "TOPOLOGY_MISMATCH": "the cluster has other numbers of nodes or shards",
    "UNKNOWN_NODE": "the cluster has no node of this number",
    "USAGE": "the command line was not understood",
}

# Why records of a stream are missing (``Gap.reason``).
GAPS: dict[str, str] = {
    "RETENTION_AGE": "they were older than the retention allows",
    "RETENTION_COUNT": "there were more than the retention allows",
    "RETENTION_SIZE": "they took more bytes than the retention allows",
    "SEVERAL": "for several reasons",
    "TRIMMED": "by Trim",
}

# Errors of tables, exports and imports.
TABLES: dict[str, tuple[Kind, str]] = {
    "AS_OF_INSIDE_TRANSACTION": (OutOfRange, "an index is inside a transaction"),
    "CHECKPOINT_AHEAD": (FailedPrecondition, "a checkpoint is ahead of the log"),
    "CHECKPOINT_DIFFERS": (FailedPrecondition, "a checkpoint has read other entries"),
    "CHECKPOINT_OF_ANOTHER_CLUSTER": (FailedPrecondition, "a checkpoint is of another cluster"),
    "CHECKPOINT_OTHER_SHARDS": (FailedPrecondition, "a checkpoint lacks a shard"),
    "CLIENT_MISSING": (FailedPrecondition, "libraries of the client are missing"),
    "COLUMNS_CONFLICT": (InvalidArgument, "two columns say the same"),
    "COLUMNS_EMPTY": (InvalidArgument, "an export has no columns"),
    "COLUMN_MISSING": (InvalidArgument, "a column is missing"),
    "COLUMN_NULL": (InvalidArgument, "a column has no value where it needs one"),
    "COLUMN_TWICE": (InvalidArgument, "a column occurs twice"),
    "COLUMN_TYPE_INVALID": (InvalidArgument, "a column is of another type"),
    "COLUMN_UNKNOWN": (InvalidArgument, "there is no such column"),
    "CORRUPT_FRAME": (DataLoss, "a frame of the log is damaged"),
    "ENDPOINT_INVALID": (InvalidArgument, "an endpoint is not host:port"),
    "EXPORT_AHEAD_OF_LOG": (FailedPrecondition, "an unfinished export is ahead of the log"),
    "EXPORT_DIFFERS": (DataLoss, "a file of an export is not what its receipt says"),
    "EXPORT_TOO_LARGE": (FailedPrecondition, "an export has too many files"),
    "FILES_TOO_MANY": (InvalidArgument, "there are too many files"),
    "FILE_GONE": (NotFound, "a file is gone"),
    "FILE_INVALID": (InvalidArgument, "a path is not a file"),
    "FILE_REFUSED": (PermissionDenied, "a file may not be read"),
    "FILE_UNKNOWN": (NotFound, "there is no such file"),
    "FILE_UNREADABLE": (Unavailable, "a file cannot be read"),
    "FORMAT_UNKNOWN": (InvalidArgument, "the format of a file is not known"),
    "HOLD_AHEAD": (FailedPrecondition, "a hold stands behind the beginning of a query"),
    "ICEBERG_MISSING": (FailedPrecondition, "the library for Iceberg is missing"),
    "IMPORT_IS_RESTORE": (InvalidArgument, "an import cannot bring indexes back"),
    "JAVA_MISSING": (FailedPrecondition, "there is no Java"),
    "JAVA_TOO_OLD": (FailedPrecondition, "Java is too old"),
    "JOB_NAME_INVALID": (InvalidArgument, "the name of a job is empty or too long"),
    "JOURNAL_DAMAGED": (DataLoss, "the journal of an export is damaged"),
    "LINE_TOO_LARGE": (InvalidArgument, "a line of a file is too long"),
    "LOG_DIFFERS": (DataLoss, "an export differs from the log"),
    "MODULE_MISSING": (FailedPrecondition, "an executor lacks libraries"),
    "NO_RECEIPT": (NotFound, "a target has no receipt"),
    "OPTION_CONFLICT": (InvalidArgument, "two options exclude each other"),
    "OPTION_INVALID": (InvalidArgument, "an option has a value that is not allowed"),
    "OPTION_UNCONCERNED": (InvalidArgument, "an option is not for this view"),
    "OPTION_UNKNOWN": (InvalidArgument, "there is no such option"),
    "OTHER_CLUSTER": (FailedPrecondition, "an endpoint is of another cluster"),
    "OVERWRITE_UNSUPPORTED": (InvalidArgument, "rows cannot be overwritten"),
    "OWNER_UNKNOWN": (InvalidArgument, "there is no such owner of entries"),
    "PYTHON_MISMATCH": (FailedPrecondition, "executors have another Python than the driver"),
    "PYTHON_MISSING": (FailedPrecondition, "an executor has no Python"),
    "QUEUE_UNKNOWN": (NotFound, "there is no such queue"),
    "RANGE_BACKWARDS": (InvalidArgument, "a range ends before it begins"),
    "RECEIPT_AHEAD_OF_LOG": (FailedPrecondition, "a receipt is ahead of the log"),
    "RECEIPT_DIFFERS": (FailedPrecondition, "a receipt is of another log"),
    "RECEIPT_EDITED": (DataLoss, "a receipt is not as it was written"),
    "RECEIPT_NOT_THE_LAST": (FailedPrecondition, "a target has a newer receipt"),
    "RECEIPT_OF_ANOTHER_CLUSTER": (FailedPrecondition, "a receipt is of another cluster"),
    "RECEIPT_OF_ANOTHER_VIEW": (FailedPrecondition, "a receipt is of another view"),
    "RECEIPT_OF_OTHER_SHARDS": (FailedPrecondition, "a receipt lacks a shard"),
    "RECEIPT_UNWRITABLE": (FailedPrecondition, "a receipt cannot be written"),
    "RECEIPT_VERSION_UNKNOWN": (FailedPrecondition, "a newer onelog wrote the receipt"),
    "SCHEMA_MISMATCH": (InvalidArgument, "the schema has another type for a column"),
    "SERIES_NAME_INVALID": (InvalidArgument, "a measurement, tag or field is too long"),
    "SHARD_UNKNOWN": (NotFound, "there is no such shard"),
    "SOURCE_MISSING": (InvalidArgument, "neither a path nor endpoints are given"),
    "SPARK_FAILED": (Internal, "Spark could not run an export"),
    "SPARK_MISSING": (FailedPrecondition, "Spark is missing"),
    "SPARK_TOO_OLD": (FailedPrecondition, "Spark is too old"),
    "STATE_MISSING": (FailedPrecondition, "the source has no state"),
    "TABLE_CHANGED": (FailedPrecondition, "somebody else wrote the table"),
    "TABLE_FORMAT": (InvalidArgument, "a table needs Parquet files"),
    "TABLE_TARGET": (InvalidArgument, "an Iceberg table needs a directory"),
    "TABLE_UNKNOWN": (InvalidArgument, "there is no such format of tables"),
    "TARGET": (InvalidArgument, "the target of an export is malformed"),
    "TARGET_FULL": (ResourceExhausted, "the target is full"),
    "TARGET_GONE": (NotFound, "the target is gone"),
    "TARGET_HAS_ANOTHER_EXPORT": (FailedPrecondition, "the target has another export"),
    "TARGET_IN_USE": (FailedPrecondition, "another export writes into the target"),
    "TARGET_NOT_EMPTY": (FailedPrecondition, "the target is not empty"),
    "TARGET_UNKNOWN": (InvalidArgument, "rows cannot be written there"),
    "TARGET_UNWRITABLE": (Unavailable, "the target cannot be written"),
    "TIME_INVALID": (InvalidArgument, "a time is malformed"),
    "TIME_IN_FUTURE": (OutOfRange, "a time is behind the last entry"),
    "TYPE_UNKNOWN": (InvalidArgument, "there is no such type of entries"),
    "VIEW_NOT_CONTINUED": (InvalidArgument, "a view of the state is exported whole"),
    "VIEW_NOT_STREAMED": (InvalidArgument, "a view cannot be streamed"),
    "VIEW_UNKNOWN": (InvalidArgument, "there is no such view"),
    "WRITE_BATCH_OVER": (FailedPrecondition, "another attempt writes the batch"),
    "WRITE_BATCH_UNKNOWN": (FailedPrecondition, "Spark does not name the batch"),
    "WRITE_PROGRESS_LOST": (FailedPrecondition, "the progress of a job is not known any more"),
    "WRITE_ROWS_CHANGED": (FailedPrecondition, "an attempt brings other rows than before"),
}

# Refusals of ``onelog.projections.reasons`` are classed by their ending.
_ENDINGS: tuple[tuple[str, Kind], ...] = (
    ("_UNKNOWN", NotFound),
    ("_NOT_FOUND", NotFound),
    ("_EXISTS", AlreadyExists),
    ("_FULL", ResourceExhausted),
    ("_TOO_LARGE", TooLarge),
    ("_STALE", ConditionFailed),
    ("_FENCED", ConditionFailed),
    ("_IN_FUTURE", OutOfRange),
    ("_INVALID", InvalidArgument),
)

# Reasons whose ending says something else, or nothing.
_EXCEPTIONS: dict[str, Kind] = {
    # Bytes that our own codecs do not make: a client never causes them.
    "PAYLOAD_TRUNCATED": Internal,
    "PAYLOAD_VERSION_UNKNOWN": Internal,
    "PAYLOAD_TRAILING_BYTES": Internal,
    "PAYLOAD_CORRUPT": Internal,
    "OWNER_UNKNOWN": Internal,
    "OPERATION_UNKNOWN": Internal,
    "BATCH_MISSING": Internal,
    "BATCH_INCOMPLETE": Internal,
    "BATCH_MALFORMED": Internal,
    "PAYLOAD_NOT_UTF8": InvalidArgument,
    "KEY_RESERVED": InvalidArgument,
    "JSON_TOO_DEEP": InvalidArgument,
    "JSON_PATH_INVALID": FailedPrecondition,
    "NAMESPACE_PROTECTED": FailedPrecondition,
    "NOT_A_NUMBER": FailedPrecondition,
    "COUNTER_OVERFLOW": FailedPrecondition,
    "CONDITION_FAILED": ConditionFailed,
    "COMPACTED": OutOfRange,
    "LEASE_LOST": LeaseLost,
    "LEASE_TOKEN_STALE": LeaseLost,
    "CRON_NEVER": InvalidArgument,
    "SESSION_EXPIRED": SessionExpired,
    "SEQUENCE_ACKNOWLEDGED": FailedPrecondition,
    "SEQUENCE_REUSED": FailedPrecondition,
    "VALUE_NOT_FINITE": InvalidArgument,
    "POINT_TOO_OLD": OutOfRange,
    "QUERY_TOO_LARGE": ResourceExhausted,
    # Of what they hold, unless nothing is said: see error_of_refusal.
    "TRANSACTION_REFUSED": FailedPrecondition,
    "BATCH_REFUSED": FailedPrecondition,
}


def find_class(name: str) -> Kind:
    """Return the class of what is refused for a reason when an entry is applied."""
    found = _EXCEPTIONS.get(name)
    if found is not None:
        return found
    for ending, kind in _ENDINGS:
        if name.endswith(ending):
            return kind
    return FailedPrecondition


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a reason means in one place where it occurs."""

    reason: str
    kinds: tuple[Kind, ...]  # of an error; none: it is none
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the list."""

    title: str
    about: str
    meanings: tuple[Meaning, ...]


def list_sections(refusals: Mapping[str, str]) -> list[Section]:
    """Return the whole list; ``refusals``: the texts of those that apply decides, by name."""
    calls = {name: (find_class(name), text) for name, text in refusals.items()} | CALLS
    return [
        _errors("Errors of calls", "A call to a server ends with one of these.", calls),
        _errors("Errors of the client", "The Python client makes these by itself.", CLIENT),
        _words("Alarms", "`onelog admin status` shows them, as `Admin.GetStatus` does.", ALARMS),
        _words(
            "Servers and directories",
            "Why a server does not start or ends, and why a command cannot read a directory.",
            SERVERS,
        ),
        _words("Findings", "What `onelog log verify` finds.", FINDINGS),
        _words("Peers", "Why a node refuses another one, or what it sends.", PEERS),
        _words("Commands", "Errors of commands, beside those of calls.", COMMANDS),
        _words("Gaps in streams", "Why records are missing (`Gap.reason`).", GAPS),
        _errors("Tables, exports and imports", "Errors of Spark tables and of files.", TABLES),
    ]


def _errors(title: str, about: str, found: Mapping[str, tuple[Kind, str]]) -> Section:
    meanings = []
    for name, (kind, text) in sorted(found.items()):
        second = (ALSO[name],) if name in ALSO and ALSO[name] is not kind else ()
        meanings.append(Meaning(name, (kind, *second), text))
    return Section(title, about, tuple(meanings))


def _words(title: str, about: str, found: Mapping[str, str]) -> Section:
    meanings = [Meaning(name, (), text) for name, text in sorted(found.items())]
    return Section(title, about, tuple(meanings))
