"""``onelog/client/watch.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from onelog.client.blocking import PagesFacade
from onelog.client.watch import Event


class Watch(PagesFacade[Event]):
    """An iterator over events. Ends when it is closed, or at the end of ``with``."""

    @property
    def cursor(self) -> bytes:
        """Where to continue after the last event: pass it to another watch."""
        found: bytes = self._core.cursor
        return found
