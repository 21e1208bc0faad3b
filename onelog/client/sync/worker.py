"""``onelog/client/worker.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from typing import Self

from onelog.client.blocking import Facade


class Worker(Facade):
    """Runs a handler for each message of a queue and settles it by the outcome.

    A handler that returns acknowledges its message; one that raises fails the delivery, with
    ``Reject`` after a delay of its choice. Leases are extended while handlers run. Call ``run``,
    which returns after ``stop``, or use the worker in ``with``. Delivery is at least once.
    """

    @property
    def done_count(self) -> int:
        """The number of messages that were acknowledged."""
        found: int = self._core.done_count
        return found

    @property
    def failed_count(self) -> int:
        """The number of messages whose handler failed."""
        found: int = self._core.failed_count
        return found

    def run(self) -> None:
        """Work until ``stop`` or until ``limit`` messages are settled; NotFound without a queue."""
        self._thread.run(self._core.run())

    def stop(self) -> None:
        """Lease no more messages; return when those under way are settled."""
        self._thread.run(self._core.stop())

    def __enter__(self) -> Self:
        self._thread.run(self._core.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(self._core.__aexit__(*error))
