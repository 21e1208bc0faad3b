"""``onelog/client/tail.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from typing import Self

from onelog.client.blocking import Facade
from onelog.client.values import Record


class Tail(Facade):
    """An iterator over records. Ends when it is closed, or at the end of ``with``.

    After each record ``cursor`` says where to go on after it. A record with a ``gap`` stands for
    records that are gone; a tail that is broken off right behind it may be told again.
    """

    @property
    def cursor(self) -> bytes:
        """Where to go on after the last record that was taken."""
        found: bytes = self._core.cursor
        return found

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        try:
            found: Record = self._thread.run(self._core.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
        return found

    def start(self) -> None:
        """Wait until the tail has begun: what is appended from now on is seen."""
        self._thread.run(self._core.start())

    def close(self) -> None:
        """End the tail."""
        self._thread.run(self._core.close())

    def __enter__(self) -> Self:
        self._thread.run(self._core.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(self._core.__aexit__(*error))
