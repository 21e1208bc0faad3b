"""``onelog/client/json_document.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from typing import Any

from onelog.client.blocking import Facade
from onelog.client.kv_requests import Path
from onelog.client.values import Read


class Document(Facade):
    """A path is a member name, an element number, or a sequence of both; () is the whole."""

    def get(self, path: Path = (), *, read: Read | None = None) -> Any:
        """Return a part of the document; None if the key does not exist."""
        found: Any = self._thread.run(self._core.get(path, read=read))
        return found

    def set(self, path: Path, value: Any, *, create_parents: bool = True) -> int:
        """Set a part of the document and return the key's new version."""
        found: int = self._thread.run(self._core.set(path, value, create_parents=create_parents))
        return found

    def delete(self, path: Path) -> int:
        """Delete a part of the document and return the key's new version."""
        found: int = self._thread.run(self._core.delete(path))
        return found
