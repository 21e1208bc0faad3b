"""What clients are told when something is refused: the one place that decides it.

Three things come in: errors of the cluster and of the log (exceptions), refusals of the projections
(results with a ``Reason``), and the public exceptions themselves, which the edge raises for bad
input. All become an ``OnelogError``, and that becomes a status with ``google.rpc`` details, or an
``Error`` inside of an answer. Anything else is a mistake of ours: the client gets INTERNAL and a
number, the log gets the number and the traceback.

Reasons of projections are classed by their ending (``…_UNKNOWN`` is NOT_FOUND), so a new one needs
no line here unless it means something else; ``_EXCEPTIONS`` has those.
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
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.status import DOMAIN
from onelog.ual.errors import DataError, DiskFull, IndexDropped, IndexInFuture
from onelog.v1 import common_pb2

_log = logging.getLogger("onelog.node.api")

# How long to wait before the next attempt: an election, a full queue, somebody freeing a disk.
RETRY_ELECTION_S = 0.1
RETRY_BUSY_S = 0.05
RETRY_DISK_S = 5.0

_CLUSTER: dict[type[Exception], tuple[type[OnelogError], float | None]] = {
    NotLeader: (errors.NotLeader, None),
    OutcomeUnknown: (errors.OutcomeUnknown, None),
    Discarded: (errors.Unavailable, RETRY_BUSY_S),
    Expired: (errors.DeadlineExceeded, None),
    ProposalRefused: (errors.ResourceExhausted, RETRY_BUSY_S),
    StorageFull: (errors.ResourceExhausted, RETRY_DISK_S),
    ResultNeeded: (errors.InvalidArgument, None),
    StaleBoundExceeded: (errors.Unavailable, RETRY_BUSY_S),
    MembershipRefused: (errors.FailedPrecondition, None),
    TransferFailed: (errors.Unavailable, RETRY_ELECTION_S),
    ReplicaStopped: (errors.Unavailable, RETRY_ELECTION_S),
    Stopping: (errors.Unavailable, RETRY_ELECTION_S),
    Diverged: (errors.DataLoss, None),
    StateDiverged: (errors.DataLoss, None),
}

_ENDINGS: tuple[tuple[str, type[OnelogError]], ...] = (
    ("_UNKNOWN", errors.NotFound),
    ("_NOT_FOUND", errors.NotFound),
    ("_EXISTS", errors.AlreadyExists),
    ("_FULL", errors.ResourceExhausted),
    ("_TOO_LARGE", errors.TooLarge),
    ("_STALE", errors.ConditionFailed),
    ("_FENCED", errors.ConditionFailed),
    ("_IN_FUTURE", errors.OutOfRange),
    ("_INVALID", errors.InvalidArgument),
)

# Reasons whose ending says something else, or nothing.
_EXCEPTIONS: dict[str, type[OnelogError]] = {
    # Bytes that our own codecs do not make: a client never causes them.
    "PAYLOAD_TRUNCATED": errors.Internal,
    "PAYLOAD_VERSION_UNKNOWN": errors.Internal,
    "PAYLOAD_TRAILING_BYTES": errors.Internal,
    "PAYLOAD_CORRUPT": errors.Internal,
    "OWNER_UNKNOWN": errors.Internal,
    "OPERATION_UNKNOWN": errors.Internal,
    "BATCH_MISSING": errors.Internal,
    "BATCH_INCOMPLETE": errors.Internal,
    "BATCH_MALFORMED": errors.Internal,
    "PAYLOAD_NOT_UTF8": errors.InvalidArgument,
    "KEY_RESERVED": errors.InvalidArgument,
    "JSON_TOO_DEEP": errors.InvalidArgument,
    "JSON_PATH_INVALID": errors.FailedPrecondition,
    "NAMESPACE_PROTECTED": errors.FailedPrecondition,
    "NOT_A_NUMBER": errors.FailedPrecondition,
    "COUNTER_OVERFLOW": errors.FailedPrecondition,
    "CONDITION_FAILED": errors.ConditionFailed,
    "COMPACTED": errors.OutOfRange,
    "LEASE_LOST": errors.LeaseLost,
    "LEASE_TOKEN_STALE": errors.LeaseLost,
    "CRON_NEVER": errors.InvalidArgument,
    "SESSION_EXPIRED": errors.SessionExpired,
    "SEQUENCE_ACKNOWLEDGED": errors.FailedPrecondition,
    "VALUE_NOT_FINITE": errors.InvalidArgument,
    "POINT_TOO_OLD": errors.OutOfRange,
    "QUERY_TOO_LARGE": errors.ResourceExhausted,
    # Of what they hold, unless nothing is said: see error_of_refusal.
    "TRANSACTION_REFUSED": errors.FailedPrecondition,
    "BATCH_REFUSED": errors.FailedPrecondition,
}


def class_of_reason(reason: Reason) -> type[OnelogError]:
    """Return the class of what a projection refuses for this reason."""
    found = _EXCEPTIONS.get(reason.name)
    if found is not None:
        return found
    for ending, kind in _ENDINGS:
        if reason.name.endswith(ending):
            return kind
    return errors.FailedPrecondition


def error_of_refusal(refused: Refused) -> OnelogError:
    """Return the error that a refused entry or read is answered with.

    What was refused as a whole because of one part has the class of that part's reason.
    """
    metadata = {"detail": str(refused.detail)}
    if refused.cause is not None:
        metadata = {"position": str(refused.detail), "cause": refused.cause.name}
    kind = class_of_reason(refused.reason if refused.cause is None else refused.cause)
    return kind(refused.message, reason=refused.reason.name, metadata=metadata)


def error_of_reason(reason: Reason, detail: int = 0) -> OnelogError:
    """Return the error for input that a projection would refuse for this reason."""
    return error_of_refusal(Refused(reason, detail))


def error_of_cluster(error: ClusterError) -> OnelogError:
    """Return the error that a failed proposal or read is answered with."""
    for kind in type(error).__mro__:
        if kind in _CLUSTER:
            public, retry_after_s = _CLUSTER[kind]
            return public(str(error), reason=error.reason, retry_after_s=retry_after_s)
    return _internal(error)


def error_of_exception(error: BaseException) -> OnelogError:
    """Return the error that a client is answered when its call raised ``error``."""
    match error:
        case OnelogError():
            return error
        case ClusterError():
            return error_of_cluster(error)
        case BadPayload() | BadDocument():
            return error_of_reason(error.reason, error.detail)
        case IndexDropped():
            metadata = {"first_index": str(error.first_index)}
            return errors.OutOfRange(str(error), reason="COMPACTED", metadata=metadata)
        case IndexInFuture():
            return errors.OutOfRange(str(error), reason="INDEX_IN_FUTURE")
        case DiskFull():
            return errors.ResourceExhausted(
                str(error), reason="DISK_FULL", retry_after_s=RETRY_DISK_S
            )
        case DataError():
            _log.error("damage met while serving a call", exc_info=error)
            return errors.DataLoss("stored bytes are damaged; see the server's log")
        case TimeoutError():
            return errors.DeadlineExceeded("the deadline passed", reason="EXPIRED")
        case _:
            return _internal(error)


def too_large(size: int, limit: int) -> OnelogError:
    """Return the error for a request of too many bytes."""
    metadata = {"size": str(size), "limit": str(limit)}
    return errors.TooLarge(f"a request of {size} bytes, limit {limit}", metadata=metadata)


def answer_too_large(message: str, limit: int, **metadata: int) -> OnelogError:
    """Return the error for an answer that no message can hold; what was asked for is too much."""
    told = {"limit": str(limit)} | {key: str(value) for key, value in metadata.items()}
    return errors.TooLarge(message, reason="ANSWER_TOO_LARGE", metadata=told)


def _internal(error: BaseException) -> OnelogError:
    number = secrets.token_hex(4)
    _log.error("call failed, number %s", number, exc_info=error)
    metadata = {"number": number}
    return errors.Internal(f"see the server's log for {number}", metadata=metadata)


def status_of(error: OnelogError) -> status_pb2.Status:
    """Return the status with its details."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    status = status_pb2.Status(code=error.code, message=error.message)
    _pack(status.details.add, info)
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        _pack(status.details.add, retry)
    return status


def _pack(add: Callable[[], any_pb2.Any], detail: Any) -> None:
    add().Pack(detail)


def put_error(target: common_pb2.Error, error: OnelogError) -> None:
    """Write an error into the answer of one operation of many."""
    target.code = error.code
    target.reason = error.reason
    target.message = error.message
    target.metadata.update(error.metadata)
    if error.retry_after_s is not None:
        target.retry_after_ms = max(1, round(error.retry_after_s * 1000))
