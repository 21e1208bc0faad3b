"""What stands around every call of a shard: after an error nobody expected, nothing goes on."""

from typing import Protocol

from onelog.cluster.errors import ReplicaStopped


class Guarded(Protocol):
    """A replica that can stop."""

    failure: Exception | None

    def stop_for(self, error: Exception) -> None:
        """Stop, and remember why."""


class Guard:
    """Lets nothing go on after an error that was not expected where it happened."""

    __slots__ = ("_shard",)

    def __init__(self, shard: Guarded) -> None:
        self._shard = shard

    def __enter__(self) -> None:
        failure = self._shard.failure
        if failure is not None:
            raise ReplicaStopped(str(failure)) from failure

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        # A callback may call in again, so this may be the inner one of two: the first error counts.
        if isinstance(error, Exception) and self._shard.failure is None:
            self._shard.stop_for(error)
