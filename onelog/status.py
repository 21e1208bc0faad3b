"""From a failed call to an exception: reads the ``google.rpc`` details that a server sends.

A status without details did not come from the database but from gRPC itself (no connection, a
deadline on this side, a proxy): it has the class of its code and that code's name as its reason.
Those that stand for limits of ours are told by their words, since gRPC says nothing else of them.
"""

from typing import Any

from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from onelog.errors import OnelogError, ResourceExhausted, TooLarge, Unavailable, make_error
from onelog.v1 import common_pb2

DOMAIN = "onelog"
DETAILS_KEY = "grpc-status-details-bin"
# What gRPC answers in place of the server when that has too much to do, or when the connection has
# (HTTP/2, REFUSED_STREAM: before anything was looked at), and how long to wait then.
_CALLS_FULL = "Concurrent RPC limit exceeded"
_STREAM_REFUSED = "Received RST_STREAM with error code 7"
RETRY_S = 0.1
_REQUEST_TOO_LARGE = (
    "SERVER: Received message larger than max",
    "CLIENT: Sent message larger than max",
)


def error_of(rpc_error: Any) -> OnelogError:
    """Return what a ``grpc.RpcError`` (or an ``AioRpcError``) of a call means."""
    code: int = rpc_error.code().value[0]
    details: str = rpc_error.details() or ""
    for key, value in rpc_error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            status = status_pb2.Status.FromString(value)
            if status.code == code:
                return error_of_status(status)
    return _error_of_grpc(code, details) or make_error(code, details, rpc_error.code().name)


def _error_of_grpc(code: int, details: str) -> OnelogError | None:
    """Return what a limit of gRPC itself means; nothing was done then."""
    if code == Unavailable.code and _STREAM_REFUSED in details:
        return Unavailable(details, reason="STREAM_REFUSED", retry_after_s=RETRY_S)
    if code != ResourceExhausted.code:
        return None
    if _CALLS_FULL in details:
        return ResourceExhausted(details, reason="TOO_MANY_CALLS", retry_after_s=RETRY_S)
    if any(words in details for words in _REQUEST_TOO_LARGE):
        return TooLarge(details)
    return None  # an answer was too large: what was asked for may have been done


def error_of_status(status: status_pb2.Status) -> OnelogError:
    """Return what a status with details means."""
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    retry_after_s: float | None = None
    for detail in status.details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    reason = info.reason if info.domain == DOMAIN else ""
    # Some refusals begin with their reason, for callers who see the words alone.
    message = status.message.removeprefix(f"{reason}: ")
    return make_error(status.code, message, reason, info.metadata, retry_after_s)


def error_of_result(error: common_pb2.Error) -> OnelogError:
    """Return what the error of one operation of many means."""
    retry_after_s = error.retry_after_ms / 1000 if error.retry_after_ms else None
    return make_error(error.code, error.message, error.reason, error.metadata, retry_after_s)
