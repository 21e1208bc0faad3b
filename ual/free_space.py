"""How much more may be written before the disk is called full.

A minimum stays free: sealing, MANIFEST and a cut need room when nothing else has any.
"""

from pathlib import Path

from onelog.ual.errors import DiskFull
from onelog.ual.files import Files

# Free space is asked for again after so many bytes; the call costs more than a small write.
CHECK_BYTES = 4 << 20


class FreeSpace:
    """The room in one directory, as of the last time it was asked for."""

    __slots__ = ("_credit", "_files", "_free_bytes_min", "_path")

    def __init__(self, files: Files, path: Path, free_bytes_min: int) -> None:
        self._files = files
        self._path = path
        self._free_bytes_min = free_bytes_min
        self._credit = 0

    def reserve(self, size: int) -> None:
        """Refuse a write that would go below the minimum of free space (``DiskFull``)."""
        if self._credit < size:
            available = self.spare_bytes()
            if available < size:
                raise DiskFull(
                    f"{available + self._free_bytes_min} bytes free in {self._path}, "
                    f"{self._free_bytes_min} must stay free; free some space"
                )
            self._credit = min(available, max(size, CHECK_BYTES))
        self._credit -= size

    def spare_bytes(self) -> int:
        """Return what the disk has above the minimum right now; negative below it."""
        return self._files.free_bytes(self._path) - self._free_bytes_min

    def ask_again(self) -> None:
        """Forget what was known: a write has found the disk full."""
        self._credit = 0
