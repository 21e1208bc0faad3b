"""``onelog/client/leases.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from typing import Self

from onelog.client.blocking import Facade
from onelog.client.values import LeaseInfo


class Lease(Facade):
    """A lifetime shared by keys of one shard. Inside ``with`` it is renewed in the background."""

    @property
    def lease_id(self) -> int:
        """The id to pass as ``lease`` when putting keys."""
        found: int = self._core.lease_id
        return found

    @property
    def is_lost(self) -> bool:
        """Whether the lease has ended, or may have as far as this client can tell."""
        found: bool = self._core.is_lost
        return found

    def keep(self) -> None:
        """Renew the lease for its full lifetime from now; LeaseLost if it has ended."""
        self._thread.run(self._core.keep())

    def revoke(self) -> int:
        """End the lease and delete its keys; return how many there were."""
        found: int = self._thread.run(self._core.revoke())
        return found

    def info(self) -> LeaseInfo:
        """Return the lease's lifetime, when it expires, and its keys."""
        found: LeaseInfo = self._thread.run(self._core.info())
        return found

    def __enter__(self) -> Self:
        self._thread.run(self._core.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(self._core.__aexit__(*error))


class Lock(Facade):
    """A lock that all clients share, with a fencing token.

    It is not reentrant. One object is one holder: make another one for another task.
    """

    @property
    def token(self) -> int:
        """The fencing token; raises LeaseLost if the lock is not held."""
        found: int = self._core.token
        return found

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock, as far as this client can tell."""
        found: bool = self._core.is_held
        return found

    def acquire(self, timeout_s: float | None = None) -> int:
        """Wait for the lock and return the fencing token; DeadlineExceeded after ``timeout_s``."""
        found: int = self._thread.run(self._core.acquire(timeout_s))
        return found

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free; return whether it was."""
        found: bool = self._thread.run(self._core.try_acquire())
        return found

    def release(self) -> None:
        """Release the lock; does nothing if it was lost."""
        self._thread.run(self._core.release())

    def __enter__(self) -> Self:
        self._thread.run(self._core.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(self._core.__aexit__(*error))
