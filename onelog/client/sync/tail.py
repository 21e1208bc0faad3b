"""``onelog/client/tail.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from typing import Self

from onelog.client.blocking import Facade
from onelog.client.values import Record


class Tail(Facade):
    """An iterator over records. Ends when it is closed, or at the end of ``with``.

    After each record ``cursor`` is where another tail can continue. A record with a ``gap`` stands
    for records that were deleted; a tail that resumes right after it may see the gap again.
    """

    @property
    def cursor(self) -> bytes:
        """Where to continue after the last record: pass it to another tail."""
        found: bytes = self._core.cursor
        return found

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        found: Record = self._take_next()
        return found

    def start(self) -> None:
        """Wait until the tail has begun: it will see every record appended from now on."""
        self._thread.run(self._core.start())

    def close(self) -> None:
        """End the tail."""
        self._thread.run(self._core.close())

    def __enter__(self) -> Self:
        self._thread.run(self._core.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(self._core.__aexit__(*error))
