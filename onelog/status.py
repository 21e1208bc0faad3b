"""Turns a failed call into an exception of ``onelog.errors``.

A server sends ``google.rpc`` details with its errors. A status without them comes from the
transport (no connection, a deadline on this side, a proxy): its class follows from the code, and
its reason is the code's name. If our own transport knows that the server did not process the call,
nothing was done, and the reason says so. grpcio, which generated stubs use, says some of this only
in its message.
"""

from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.rpc import (  # type: ignore[import-untyped]
    code_pb2,
    error_details_pb2,
    status_pb2,
)

from onelog.channel import RpcError
from onelog.errors import (
    DeadlineExceeded,
    OnelogError,
    ResourceExhausted,
    TooLarge,
    Unavailable,
    make_error,
)
from onelog.v1 import common_pb2

DOMAIN = "onelog"
DETAILS_KEY = "grpc-status-details-bin"
# What grpcio says when the server, or the connection (HTTP/2 REFUSED_STREAM), refuses a call for
# lack of capacity before it processed anything; and how long to wait then.
_CALLS_FULL = "Concurrent RPC limit exceeded"
_STREAM_REFUSED = "Received RST_STREAM with error code 7"
RETRY_S = 0.1
_REQUEST_TOO_LARGE = (
    "SERVER: Received message larger than max",
    "CLIENT: Sent message larger than max",
)


def error_of(failure: Any) -> OnelogError:
    """Return the exception for a failed call: our ``RpcError``, or one of grpcio or grpc.aio."""
    if isinstance(failure, RpcError):
        code, message, details = failure.code, failure.message, failure.details
        is_unprocessed = failure.is_unprocessed
    else:
        code, message = failure.code().value[0], failure.details() or ""
        trailers = dict(failure.trailing_metadata() or ())
        details, is_unprocessed = trailers.get(DETAILS_KEY), False
    if details is not None:
        try:
            status = status_pb2.Status.FromString(details)
        except DecodeError:
            status = None  # not from a server of ours: a proxy, say
        if status is not None and status.code == code:
            return error_of_status(status)
    if is_unprocessed:
        return _not_begun(code, message)
    return _error_of_grpc(code, message) or make_error(code, message, _find_name(code))


def _not_begun(code: int, message: str) -> OnelogError:
    """Return the exception for a call that the server did not process, or did not receive."""
    if code == DeadlineExceeded.code:
        return DeadlineExceeded(message, reason="EXPIRED")
    if code == ResourceExhausted.code:
        return TooLarge(message)
    if code == Unavailable.code:
        return Unavailable(message, reason="STREAM_REFUSED", retry_after_s=RETRY_S)
    return make_error(code, message, _find_name(code))


def _find_name(code: int) -> str:
    name: str = code_pb2.Code.Name(code) if code in code_pb2.Code.values() else "UNKNOWN"
    return name


def _error_of_grpc(code: int, details: str) -> OnelogError | None:
    """Return the exception for a limit that grpcio reports by its message; nothing was done."""
    if code == Unavailable.code and _STREAM_REFUSED in details:
        return Unavailable(details, reason="STREAM_REFUSED", retry_after_s=RETRY_S)
    if code != ResourceExhausted.code:
        return None
    if _CALLS_FULL in details:
        return ResourceExhausted(details, reason="TOO_MANY_CALLS", retry_after_s=RETRY_S)
    if any(words in details for words in _REQUEST_TOO_LARGE):
        return TooLarge(details)
    return None  # the answer was too large: the operation may have been carried out


def error_of_status(status: status_pb2.Status) -> OnelogError:
    """Return the exception for a status with details."""
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    retry_after_s: float | None = None
    cost: common_pb2.Cost | None = None
    for detail in status.details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
        elif detail.Is(common_pb2.Cost.DESCRIPTOR):
            cost = common_pb2.Cost()
            detail.Unpack(cost)
    reason = info.reason if info.domain == DOMAIN else ""
    # Some messages begin with the reason, for callers who see only the message.
    message = status.message.removeprefix(f"{reason}: ")
    error = make_error(status.code, message, reason, info.metadata, retry_after_s)
    error.cost = cost
    return error


def error_of_result(error: common_pb2.Error) -> OnelogError:
    """Return the exception for the error of one operation in a pipeline message."""
    retry_after_s = error.retry_after_ms / 1000 if error.retry_after_ms else None
    made = make_error(error.code, error.message, error.reason, error.metadata, retry_after_s)
    if error.HasField("cost"):
        made.cost = error.cost
    return made
