"""``onelog/client/tail.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from onelog.client.blocking import PagesFacade
from onelog.client.values import Record


class Tail(PagesFacade[Record]):
    """An iterator over records. Ends when it is closed, or at the end of ``with``.

    After each record ``cursor`` is where another tail can continue. A record with a ``gap`` stands
    for records that were deleted; a tail that resumes right after it may see the gap again.
    """

    @property
    def cursor(self) -> bytes:
        """Where to continue after the last record: pass it to another tail."""
        found: bytes = self._core.cursor
        return found
