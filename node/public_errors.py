"""The errors that clients get: the one place that decides which.

Three things come in: errors of the cluster and of the log (exceptions), refusals of the projections
(results with a ``Reason``), and the public exceptions themselves, which the edge raises for bad
input. All become an ``OnelogError``, and that becomes a status with ``google.rpc`` details, or an
``Error`` inside of an answer. Anything else is a mistake of ours: the client gets INTERNAL and a
number, the log gets the number and the traceback.

``onelog.reasons`` says of which class the error of a reason is.
"""

import logging
import secrets
from collections.abc import Callable
from typing import Any

from google.protobuf import any_pb2  # type: ignore[import-untyped]
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from onelog import errors
from onelog.cluster.errors import (
    ClusterError,
    Discarded,
    Diverged,
    Expired,
    MembershipRefused,
    NotLeader,
    OutcomeUnknown,
    ProposalRefused,
    ReplicaStopped,
    ResultNeeded,
    StaleBoundExceeded,
    StateDiverged,
    StorageFull,
    TransferFailed,
)
from onelog.errors import OnelogError
from onelog.node.replica.driver import Stopping
from onelog.projections.errors import BadDocument, BadPayload
from onelog.projections.limits import NAMESPACE_DEFAULT, OutOfBounds
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.timeseries.types import FieldType
from onelog.reasons import CALLS, find_class
from onelog.status import DOMAIN
from onelog.ual.entry import Unreadable
from onelog.ual.errors import (
    DataError,
    DiskFull,
    EntriesDamaged,
    IndexDropped,
    IndexInFuture,
    TooManyOpenFiles,
)
from onelog.ual.files import OUT_OF_DESCRIPTORS
from onelog.v1 import common_pb2, pipeline_pb2

_log = logging.getLogger("onelog.node.api")

# How long to wait before the next attempt: an election, a full queue, work in the background,
# somebody freeing a disk.
RETRY_ELECTION_S = 0.1
RETRY_BUSY_S = 0.05
RETRY_WORK_S = 1.0
RETRY_DISK_S = 5.0
MS_NS = 1_000_000

# How much of a name a message quotes.
NAME_SHOWN_MAX = 64
# Sequences of producers begin with 1 on the wire, where 0 is what is not set; in the log with 0.
_FROM_ONE = frozenset((Reason.PRODUCER_SEQUENCE_GAP, Reason.PRODUCER_SEQUENCE_FORGOTTEN))
# The field of a request that a reason is about, by the reason or by its first word.
_SUBJECTS = {
    "ALREADY_EXISTS": "key",
    "CONDITION_FAILED": "key",
    "COUNTER_OVERFLOW": "key",
    "DEAD_LETTER_STREAM_UNKNOWN": "config.dead_letter_stream",
    "FIELD": "field",
    "FIELDS": "measurement",
    "FILTER": "group",
    "GENERATION": "group",
    "GROUP": "group",
    "HOLD": "name",
    "JSON": "key",
    "KEY_NOT_FOUND": "key",
    "KEY_RESERVED": "key",
    "LEASE_TOKEN_STALE": "queue",
    "MEASUREMENT": "measurement",
    "MEMBER": "group",
    "MEMBERS": "group",
    "MESSAGE": "queue",
    "NAMESPACE": "namespace",
    "NOT_A_NUMBER": "key",
    "OFFSET": "group",
    "PARTITION": "stream",
    "PARTITION_NOT_OWNED": "group",
    "PENDING": "group",
    "POINT": "measurement",
    "PRODUCER": "stream",
    "QUERY_TOO_LARGE": "measurement",
    "QUEUE": "queue",
    "RECORD": "group",
    "REDRIVE": "queue",
    "REDRIVES": "queue",
    "RULE_UNKNOWN": "rule",
    "RULES": "measurement",
    "SCHEDULE": "queue",
    "SCHEDULES": "queue",
    "SERIES": "measurement",
    "STREAM": "stream",
    "TRIM_BLOCKED": "stream",
    "VALUE_TOO_LARGE": "key",
}
# The operations of a transaction that are several, by what they have in them.
_MANY = {"append_records": "records", "enqueue": "messages"}
# How values of a type are sent.
_COLUMNS = {FieldType.F64: "doubles", FieldType.I64: "integers", FieldType.BOOL: "bools"}
_TYPES = {
    "doubles": "F64 (floats)",
    "integers": "I64 (integers)",
    "bools": "BOOL (booleans)",
}
# A message may quote a name that a client sent. Status and details travel in headers, and clients
# take 8 KiB of those: a text is there twice, once with three bytes for each that is not ASCII.
TEXT_BYTES_MAX = 1_024

# When to retry, for each error of replication that clients get; ``onelog.reasons`` has its class.
_RETRIES: dict[type[ClusterError], float | None] = {
    NotLeader: None,
    OutcomeUnknown: None,
    Discarded: RETRY_BUSY_S,
    Expired: None,
    ProposalRefused: RETRY_BUSY_S,
    StorageFull: RETRY_DISK_S,
    ResultNeeded: None,
    StaleBoundExceeded: RETRY_BUSY_S,
    MembershipRefused: None,
    TransferFailed: None,
    ReplicaStopped: RETRY_ELECTION_S,
    Stopping: RETRY_ELECTION_S,
    Diverged: None,
    StateDiverged: None,
}

# Refusals that pass by themselves: the leader makes a block of the buffer, the next request
# acknowledges results, unused sessions expire, redrives end. Others last until somebody acts.
_PASSING: dict[Reason, float] = {
    Reason.SERIES_BUFFER_FULL: RETRY_BUSY_S,
    Reason.SESSION_RESULTS_FULL: RETRY_BUSY_S,
    Reason.SESSIONS_FULL: RETRY_WORK_S,
    Reason.REDRIVES_FULL: RETRY_WORK_S,
}


def error_of_refusal(refused: Refused) -> OnelogError:
    """Return the error that a refused entry or read is answered with.

    What was refused as a whole because of one part has the class of that part's reason.
    """
    detail = refused.detail + 1 if refused.reason in _FROM_ONE else refused.detail
    metadata = {"detail": str(detail)}
    if refused.cause is not None:
        metadata = {"position": str(refused.detail), "cause": refused.cause.name}
    deciding = refused.reason if refused.cause is None else refused.cause
    return find_class(deciding.name)(
        refused.message,
        reason=refused.reason.name,
        metadata=metadata,
        retry_after_s=_PASSING.get(deciding),
    )


def error_of_reason(reason: Reason, detail: int = 0, message: str = "") -> OnelogError:
    """Return the error for input that a projection would refuse for this reason.

    ``message`` says it in the words of the request, where the caller knows them.
    """
    error = error_of_refusal(Refused(reason, detail))
    return type(error)(message or error.message, reason=reason.name, metadata=error.metadata)


def error_of_bounds(
    reason: Reason, what: str, value: int, most: int, least: int = 1
) -> OnelogError:
    """Return the error for a number of a request, or a count, that is not within its bounds."""
    message = f"{what} is {value}; allowed: {least} to {most}"
    error = error_of_reason(reason, value, message)
    error.metadata["limit"] = str(most)
    return error


def error_of_setting(reason: Reason, found: OutOfBounds) -> OnelogError:
    """Return the error for a setting that a projection would refuse."""
    name, value, least, most = found
    if name.endswith("_ns"):  # in requests all of these are milliseconds
        name, value, least, most = (
            f"{name[:-3]}_ms", value // MS_NS, -(-least // MS_NS), most // MS_NS,
        )  # fmt: skip
    return error_of_bounds(reason, name, value, most, least)


def name_subject(error: OnelogError, request: Any) -> None:
    """Say in an error which thing of a request it is about, unless it says so already.

    Of a transaction that is the thing of the condition, or of the operation, that was refused.
    """
    reason = error.metadata.get("cause", error.reason)
    path = _SUBJECTS.get(reason, _SUBJECTS.get(reason.partition("_")[0]))
    if path is None:
        return
    conditions = 0
    if isinstance(request, pipeline_pb2.TransactRequest) and path != "namespace":
        if error.reason == Reason.BATCH_REFUSED.name:
            request = _find_operation(request, int(error.metadata["position"]))
        elif error.reason == Reason.CONDITION_FAILED.name:
            conditions = len(request.conditions)
            request = request.conditions[int(error.metadata["detail"])]
    value, field = request, ""
    for field in path.split("."):
        value = getattr(value, field, None)
    if field in error.metadata:
        return
    if field == "namespace":
        value = value or NAMESPACE_DEFAULT
    elif reason == Reason.FIELD_TYPE_MISMATCH.name:
        value = _name_mismatch(error, request)
    if isinstance(value, str | bytes) and value:
        text = value if isinstance(value, str) else value.decode(errors="backslashreplace")
        shown = text if len(text) <= NAME_SHOWN_MAX else f"{text[:NAME_SHOWN_MAX]}…"
        error.metadata[field] = text
        if conditions:
            number = int(error.metadata["detail"]) + 1
            which = f" (condition {number} of {conditions})" if conditions > 1 else ""
            error.message = f"the condition on key {shown!r} does not hold{which}"
        else:
            error.message = f"{error.message} ({field} {shown!r})"


def _find_operation(request: pipeline_pb2.TransactRequest, position: int) -> Any:
    """Return the operation at a position of a transaction, where records and messages count."""
    for each in request.operations:
        kind = each.WhichOneof("operation")
        operation = getattr(each, kind)
        many = _MANY.get(kind)
        position -= 1 if many is None else len(getattr(operation, many))
        if position < 0:
            return operation
    return None


def _name_mismatch(error: OnelogError, request: Any) -> str:
    """Return the fields of points whose type is not the one that a field has already.

    The error gets the names of both types. Of a transaction the type that a field has is not known.
    """
    number = error.metadata.get("detail")
    kept = "" if number is None else _COLUMNS[FieldType(int(number))]
    found = {
        column.field: column.WhichOneof("values")
        for each in getattr(request, "series", ())
        for column in each.columns
        if column.WhichOneof("values") != kept
    }
    if kept and found:
        given = " and ".join(_TYPES[each] for each in dict.fromkeys(found.values()))
        error.message = f"the field keeps its first type, {_TYPES[kept]}; the values are {given}"
    return ", ".join(found)


def error_of_cluster(error: ClusterError) -> OnelogError:
    """Return the error that a failed proposal or read is answered with."""
    for kind in type(error).__mro__:
        if kind in _RETRIES:
            public, _ = CALLS[error.reason]
            return public(str(error), reason=error.reason, retry_after_s=_RETRIES[kind])
    return _internal(error)


def error_of_exception(error: BaseException) -> OnelogError:
    """Return the error that a client is answered when its call raised ``error``."""
    match error:
        case OnelogError():
            return error
        case ClusterError():
            return error_of_cluster(error)
        case BadPayload():
            return error_of_reason(error.reason, error.detail, error.message)
        case BadDocument():
            return error_of_reason(error.reason, error.detail)
        case IndexDropped():
            metadata = {"first_index": str(error.first_index)}
            return errors.OutOfRange(str(error), reason="COMPACTED", metadata=metadata)
        case IndexInFuture():
            return errors.OutOfRange(str(error), reason="INDEX_IN_FUTURE")
        case DiskFull():
            return errors.ResourceExhausted(
                str(error), reason=error.reason, retry_after_s=RETRY_DISK_S
            )
        case OSError(errno=number) if number in OUT_OF_DESCRIPTORS:
            reason = TooManyOpenFiles.reason
            return errors.ResourceExhausted(str(error), reason=reason, retry_after_s=RETRY_DISK_S)
        case EntriesDamaged():
            return damaged(Unreadable(error.first_index, error.last_index))
        case DataError():
            _log.error("damage met while serving a call", exc_info=error)
            return errors.DataLoss("stored bytes are damaged; see the server's log")
        case MemoryError():
            _log.error("no memory for a call")
            message = "this node has no memory for the call"
            return errors.ResourceExhausted(
                message, reason="OUT_OF_MEMORY", retry_after_s=RETRY_DISK_S
            )
        case TimeoutError():
            return errors.DeadlineExceeded("the deadline passed", reason="EXPIRED")
        case _:
            return _internal(error)


def member_removed() -> OnelogError:
    """Return the error of every call to a node that was removed from its cluster."""
    message = "this node was removed from its cluster; call a member"
    return errors.Unavailable(message, reason="MEMBER_REMOVED", retry_after_s=RETRY_ELECTION_S)


def damaged(entries: Unreadable, message: str = "") -> OnelogError:
    """Return the error of a read that needs entries which cannot be read."""
    first, last = entries
    which = f"entry {first}" if first == last else f"entries {first} to {last}"
    return errors.DataLoss(
        message or f"{which} of the log cannot be read: the file is damaged, and no copy has come",
        reason=EntriesDamaged.reason,
        metadata={"first_index": str(first), "last_index": str(last)},
    )


def too_large(size: int, limit: int) -> OnelogError:
    """Return the error for a request of too many bytes."""
    metadata = {"size": str(size), "limit": str(limit)}
    return errors.TooLarge(f"a request of {size} bytes, limit {limit}", metadata=metadata)


def answer_too_large(message: str, limit: int, **metadata: int) -> OnelogError:
    """Return the error for an answer that no message can hold; what was asked for is too much."""
    shown = {"limit": str(limit)} | {key: str(value) for key, value in metadata.items()}
    return errors.TooLarge(message, reason="ANSWER_TOO_LARGE", metadata=shown)


def _internal(error: BaseException) -> OnelogError:
    number = secrets.token_hex(4)
    _log.error("call failed, number %s", number, exc_info=error)
    metadata = {"number": number}
    return errors.Internal(f"see the server's log for {number}", metadata=metadata)


def to_rpc_status(error: OnelogError, cost: common_pb2.Cost | None = None) -> status_pb2.Status:
    """Return the status with its details, and what the call has cost, if that was asked for."""
    metadata = {key: cut_text(value) for key, value in error.metadata.items()}
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    status = status_pb2.Status(code=error.code, message=cut_text(error.message))
    _pack(status.details.add, info)
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        _pack(status.details.add, retry)
    cost = cost if error.cost is None else error.cost
    if cost is not None:
        _pack(status.details.add, cost)
    return status


def cut_text(text: str) -> str:
    """Return a text, or the beginning of one that no header can hold."""
    if len(text) <= TEXT_BYTES_MAX // 4:  # UTF-8 takes up to four bytes for a character
        return text
    data = text.encode()
    if len(data) <= TEXT_BYTES_MAX:
        return text
    return data[:TEXT_BYTES_MAX].decode(errors="ignore") + "…"


def _pack(add: Callable[[], any_pb2.Any], detail: Any) -> None:
    add().Pack(detail)


def fill_error(target: common_pb2.Error, error: OnelogError) -> None:
    """Write an error into the answer of one operation of many."""
    target.code = error.code
    target.reason = error.reason
    target.message = cut_text(error.message)
    target.metadata.update({key: cut_text(value) for key, value in error.metadata.items()})
    if error.retry_after_s is not None:
        target.retry_after_ms = max(1, round(error.retry_after_s * 1000))
