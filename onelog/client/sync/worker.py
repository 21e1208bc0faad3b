"""``onelog/client/worker.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from typing import Self

from onelog.client.blocking import Facade


class Worker(Facade):
    """See the module's text. ``run`` until ``stop``, or use it in ``with``."""

    @property
    def done_count(self) -> int:
        """Messages that were acknowledged."""
        found: int = self._core.done_count
        return found

    @property
    def failed_count(self) -> int:
        """Messages whose handler failed."""
        found: int = self._core.failed_count
        return found

    def run(self) -> None:
        """Work until ``stop``, or through ``limit`` messages; raises if there is no queue."""
        self._thread.run(self._core.run())

    def stop(self) -> None:
        """Take no new messages; returns when those under way are settled."""
        self._thread.run(self._core.stop())

    def __enter__(self) -> Self:
        self._thread.run(self._core.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(self._core.__aexit__(*error))
