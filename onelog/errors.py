"""The exceptions of the API: the errors that a call can fail with.

::

    OnelogError
    ├── InvalidArgument      the call is wrong; a retry fails the same way
    │   └── TooLarge         a key, value, batch or answer is above its limit
    ├── NotFound             the key, queue, stream, … does not exist
    ├── AlreadyExists        what the call should create exists already
    ├── ConditionFailed      a version, condition or generation is not as expected: read it again
    ├── FailedPrecondition   the call does not fit the current state
    │   ├── NotLeader        another node leads the shard: ``leader`` is its endpoint
    │   ├── LeaseLost        the lease has ended: what it protected may belong to others
    │   └── SessionExpired   the session has ended: earlier writes in it may have taken effect
    ├── OutOfRange           an index is older than what is kept, or beyond the end
    ├── ResourceExhausted    a limit is reached; if ``retry_after_s`` is set, a retry may succeed
    ├── Unavailable          nothing was done; retry after ``retry_after_s``
    ├── DeadlineExceeded     no answer in time; with the reason EXPIRED nothing was done
    │   └── OutcomeUnknown   it may or may not take effect; a retry in the same session is exact
    ├── PermissionDenied, Unauthenticated
    ├── Cancelled, Unimplemented
    ├── DataLoss             stored bytes are damaged: an operator has to act
    └── Internal             a bug in the server; the message has a number to find it in its logs

``reason`` is stable and for programs (``CONDITION_FAILED``). The message is for people and may
change. ``metadata`` has the details of the reason. A reason that this version does not know still
gets the right class, which follows from the status code.

The client raises them, too: InvalidArgument for an argument of a wrong type (TYPE_INVALID) or
value, before anything is sent, and Unavailable with the reason why it has no connection
(NOT_CONNECTED, NOT_ONELOG, …; docs/client.md has them).

This module knows only gRPC's code numbers; ``onelog.status`` makes these errors from failed calls.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar


class OnelogError(Exception):
    """Base class of all errors of the API; has ``reason``, ``message``, ``metadata``."""

    # The google.rpc.Code, and the reason of an error that gives none.
    code: ClassVar[int] = 2
    default_reason: ClassVar[str] = "UNKNOWN"

    def __init__(
        self,
        message: str = "",
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s
        # A Cost of the protos, of a call that asked for it and was refused.
        self.cost: Any = None

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


class InvalidArgument(OnelogError):
    """The call is wrong; a retry fails the same way."""

    code = 3
    default_reason = "INVALID_ARGUMENT"


class TooLarge(InvalidArgument):
    """A key, value, batch or answer is above its limit."""

    default_reason = "TOO_LARGE"


class NotFound(OnelogError):
    """The key, queue, stream or other thing that the call names does not exist."""

    code = 5
    default_reason = "NOT_FOUND"


class AlreadyExists(OnelogError):
    """What the call should create exists already."""

    code = 6
    default_reason = "ALREADY_EXISTS"


class ConditionFailed(OnelogError):
    """A version or condition is not as the call expects: read again, then decide again."""

    code = 10
    default_reason = "CONDITION_FAILED"


class FailedPrecondition(OnelogError):
    """The call does not fit the current state; change that before you retry."""

    code = 9
    default_reason = "FAILED_PRECONDITION"


class NotLeader(FailedPrecondition):
    """Another node leads the shard; ``leader`` is its endpoint."""

    default_reason = "NOT_LEADER"

    @property
    def leader(self) -> str:
        """The leader's endpoint; empty if it is not known."""
        return self.metadata.get("leader", "")


class LeaseLost(FailedPrecondition):
    """The lease has ended: what it protected may belong to others."""

    default_reason = "LEASE_LOST"


class SessionExpired(FailedPrecondition):
    """The session has ended. This call did nothing; earlier ones may have taken effect."""

    default_reason = "SESSION_EXPIRED"


class OutOfRange(OnelogError):
    """An index is older than what is kept, or beyond the end."""

    code = 11
    default_reason = "OUT_OF_RANGE"


class ResourceExhausted(OnelogError):
    """A limit is reached; if ``retry_after_s`` is set, a retry may succeed."""

    code = 8
    default_reason = "RESOURCE_EXHAUSTED"


class Unavailable(OnelogError):
    """Nothing was done; retry, at this node or another one."""

    code = 14
    default_reason = "UNAVAILABLE"


class DeadlineExceeded(OnelogError):
    """No answer in time; with the reason EXPIRED nothing was done."""

    code = 4
    default_reason = "DEADLINE_EXCEEDED"


class OutcomeUnknown(DeadlineExceeded):
    """It may or may not take effect. To find out, repeat the request in the same session."""

    default_reason = "OUTCOME_UNKNOWN"


class PermissionDenied(OnelogError):
    """The caller may not do this."""

    code = 7
    default_reason = "PERMISSION_DENIED"


class Unauthenticated(OnelogError):
    """The caller sent no credentials, or wrong ones."""

    code = 16
    default_reason = "UNAUTHENTICATED"


class Cancelled(OnelogError):
    """The caller cancelled the call."""

    code = 1
    default_reason = "CANCELLED"


class Unimplemented(OnelogError):
    """The server does not know this call."""

    code = 12
    default_reason = "UNIMPLEMENTED"


class DataLoss(OnelogError):
    """Stored bytes are damaged."""

    code = 15
    default_reason = "DATA_LOSS"


class Internal(OnelogError):
    """A bug in the server; the message has a number to find it in its logs."""

    code = 13
    default_reason = "INTERNAL"


def _all(base: type[OnelogError]) -> Iterator[type[OnelogError]]:
    for each in base.__subclasses__():
        yield each
        yield from _all(each)


_BY_CODE = {each.code: each for each in OnelogError.__subclasses__()}
_BY_REASON = {each.default_reason: each for each in _all(OnelogError)}
_BY_REASON["LEASE_TOKEN_STALE"] = LeaseLost  # metadata: the token that is valid


def choose_class(code: int, reason: str) -> type[OnelogError]:
    """Return the class for a code, or the subclass for a reason that has one."""
    general = _BY_CODE.get(code, OnelogError)
    if general is InvalidArgument and reason.endswith("TOO_LARGE"):
        return TooLarge
    special = _BY_REASON.get(reason, general)
    return special if issubclass(special, general) else general


def make_error(
    code: int,
    message: str,
    reason: str,
    metadata: Mapping[str, str] | None = None,
    retry_after_s: float | None = None,
) -> OnelogError:
    """Return the exception for an error that the API answered with."""
    kind = choose_class(code, reason)
    return kind(message, reason=reason, metadata=metadata, retry_after_s=retry_after_s)
