"""Errors of files as errors of the API, so that each error of a task or driver has a stable reason.

Spark shows users the text of an exception: ``REASON: message``. The message says what to do.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from onelog.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OnelogError,
    OutOfRange,
    PermissionDenied,
    Unavailable,
)
from onelog.ual.errors import (
    DataError,
    DirectoryError,
    IndexDropped,
    IndexUnavailable,
    NotADataDirectory,
    UalError,
)

_REFUSED = (errno.EACCES, errno.EPERM)
# The server's reason for an index below the first one that is kept.
REASON_DROPPED = "COMPACTED"


@contextmanager
def reported() -> Iterator[None]:
    """Raise errors of files as errors of the API; let others pass."""
    try:
        yield
    except (UalError, OSError) as error:
        raise to_api_error(error) from error


def to_api_error(error: UalError | OSError) -> OnelogError:
    """Return the error of the API that says the same."""
    if isinstance(error, OSError):
        return _of_system(error)
    reason = error.reason
    text = str(error)
    match error:
        case NotADataDirectory():
            return InvalidArgument(text, reason=reason)
        case DirectoryError():
            return FailedPrecondition(text, reason=reason)
        case IndexDropped():
            return OutOfRange(
                text, reason=REASON_DROPPED, metadata={"first_index": str(error.first_index)}
            )
        case IndexUnavailable():
            return OutOfRange(text, reason=reason)
        case DataError():
            return DataLoss(text, reason=reason)
    return FailedPrecondition(text, reason=reason)


def _of_system(error: OSError) -> OnelogError:
    if error.errno == errno.ENOENT:
        return NotFound(f"{error.filename} is gone: {error.strerror}", reason="FILE_GONE")
    if error.errno in _REFUSED:
        return PermissionDenied(f"{error}; run as a user who may read it", reason="FILE_REFUSED")
    return Unavailable(f"cannot be read: {error}", reason="FILE_UNREADABLE")
