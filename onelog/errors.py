"""What a database can answer instead of a result: the exceptions of the API.

::

    OnelogError
    ├── InvalidArgument      the call is wrong: it will be wrong again
    │   └── TooLarge         a key, value, batch or answer is above its limit
    ├── NotFound             what the call names does not exist
    ├── AlreadyExists        what the call creates is there
    ├── ConditionFailed      a version, a condition or a generation is not as expected: read again
    ├── FailedPrecondition   not in this state of things
    │   ├── NotLeader        another node leads the shard: ``leader`` is its endpoint
    │   ├── LeaseLost        the lease is over: whatever it protected belongs to others
    │   └── SessionExpired   the session is over: what was sent in it may have taken effect
    ├── OutOfRange           an index is before what is kept, or after what there is
    ├── ResourceExhausted    a limit is reached; with ``retry_after_s`` it passes by itself
    ├── Unavailable          nothing was done; try again after ``retry_after_s``
    ├── DeadlineExceeded     no answer in time; nothing was done if the reason is EXPIRED
    │   └── OutcomeUnknown   it may or may not take effect: a retry in a session is exact
    ├── PermissionDenied, Unauthenticated
    ├── Cancelled, Unimplemented
    ├── DataLoss             stored bytes are damaged: somebody has to look
    └── Internal             a mistake of the server; the message has a number to look for

``reason`` is stable and for programs (``CONDITION_FAILED``), the message is for people and may
change, ``metadata`` holds what the reason speaks of. A reason that this version does not know still
has the right class, which follows from the status code.

This module knows nothing of gRPC but its code numbers; ``onelog.status`` reads them off a call.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar


class OnelogError(Exception):
    """Base of every error that the API answers with."""

    # A google.rpc.Code, and the reason where an error says none.
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

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


class InvalidArgument(OnelogError):
    """The call is wrong: it will be wrong again."""

    code = 3
    default_reason = "INVALID_ARGUMENT"


class TooLarge(InvalidArgument):
    """Something is above its limit."""

    default_reason = "TOO_LARGE"


class NotFound(OnelogError):
    """What the call names does not exist."""

    code = 5
    default_reason = "NOT_FOUND"


class AlreadyExists(OnelogError):
    """What the call creates is there."""

    code = 6
    default_reason = "ALREADY_EXISTS"


class ConditionFailed(OnelogError):
    """Something is not as the call expects: read again, decide again."""

    code = 10
    default_reason = "CONDITION_FAILED"


class FailedPrecondition(OnelogError):
    """Not in this state of things."""

    code = 9
    default_reason = "FAILED_PRECONDITION"


class NotLeader(FailedPrecondition):
    """Another node leads the shard."""

    default_reason = "NOT_LEADER"

    @property
    def leader(self) -> str:
        """The leader's endpoint; empty while it is not known."""
        return self.metadata.get("leader", "")


class LeaseLost(FailedPrecondition):
    """The lease is over."""

    default_reason = "LEASE_LOST"


class SessionExpired(FailedPrecondition):
    """The session is over; this call did nothing, earlier ones of it may have."""

    default_reason = "SESSION_EXPIRED"


class OutOfRange(OnelogError):
    """An index is before what is kept, or after what there is."""

    code = 11
    default_reason = "OUT_OF_RANGE"


class ResourceExhausted(OnelogError):
    """A limit is reached."""

    code = 8
    default_reason = "RESOURCE_EXHAUSTED"


class Unavailable(OnelogError):
    """Nothing was done; try again, here or elsewhere."""

    code = 14
    default_reason = "UNAVAILABLE"


class DeadlineExceeded(OnelogError):
    """No answer in time."""

    code = 4
    default_reason = "DEADLINE_EXCEEDED"


class OutcomeUnknown(DeadlineExceeded):
    """It may or may not take effect; the same request again, in the same session, tells."""

    default_reason = "OUTCOME_UNKNOWN"


class PermissionDenied(OnelogError):
    """The caller may not do this."""

    code = 7
    default_reason = "PERMISSION_DENIED"


class Unauthenticated(OnelogError):
    """The caller did not say who it is, or nobody believes it."""

    code = 16
    default_reason = "UNAUTHENTICATED"


class Cancelled(OnelogError):
    """The caller gave up."""

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
    """A mistake of the server."""

    code = 13
    default_reason = "INTERNAL"


def _all(base: type[OnelogError]) -> Iterator[type[OnelogError]]:
    for each in base.__subclasses__():
        yield each
        yield from _all(each)


_BY_CODE = {each.code: each for each in OnelogError.__subclasses__()}
_BY_REASON = {each.default_reason: each for each in _all(OnelogError)}
_BY_REASON["LEASE_TOKEN_STALE"] = LeaseLost  # of a message; it tells the token that is valid now


def class_of(code: int, reason: str) -> type[OnelogError]:
    """Return the class of an error: by its code, and more closely by its reason."""
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
    """Return the exception that stands for an answer of the API."""
    kind = class_of(code, reason)
    return kind(message, reason=reason, metadata=metadata, retry_after_s=retry_after_s)
