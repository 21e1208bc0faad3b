"""From a failed call to an exception: reads the ``google.rpc`` details that a server sends.

A status without details did not come from the database but from gRPC itself (no connection, a
deadline on this side, a proxy): it has the class of its code and that code's name as its reason.
"""

from typing import Any

from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from onelog.errors import OnelogError, make_error
from onelog.v1 import common_pb2

DOMAIN = "onelog"
DETAILS_KEY = "grpc-status-details-bin"


def error_of(rpc_error: Any) -> OnelogError:
    """Return what a ``grpc.RpcError`` (or an ``AioRpcError``) of a call means."""
    code: int = rpc_error.code().value[0]
    details: str = rpc_error.details() or ""
    for key, value in rpc_error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            status = status_pb2.Status.FromString(value)
            if status.code == code:
                return error_of_status(status)
    return make_error(code, details, rpc_error.code().name)


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
