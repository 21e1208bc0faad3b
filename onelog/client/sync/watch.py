"""``onelog/client/watch.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from typing import Self

from onelog.client.blocking import Facade
from onelog.client.watch import Event


class Watch(Facade):
    """An iterator over events. Ends when it is closed, or at the end of ``with``."""

    @property
    def cursor(self) -> bytes:
        """Where to continue after the last event: pass it to another watch."""
        found: bytes = self._core.cursor
        return found

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        found: Event = self._take_next()
        return found

    def start(self) -> None:
        """Wait until the watch has begun: it will see every change from now on."""
        self._thread.run(self._core.start())

    def close(self) -> None:
        """End the watch."""
        self._thread.run(self._core.close())

    def __enter__(self) -> Self:
        self._thread.run(self._core.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(self._core.__aexit__(*error))
