"""Looking at a data directory from outside: finding its shards, reading without writing.

The offline commands read a directory that may be damaged, and that a server may be writing at the
same time. Both make a mapping dangerous: a page that the disk cannot read, or that was cut off
meanwhile, ends the process by a signal. ``ReadOnlyFiles`` therefore copies where others map, and
an unreadable page is an ``OSError`` like any other. It also refuses every operation that changes
something, so whoever is handed one can only look.

A name that was listed may be gone or mean another file by the time it is opened (sealing renames,
retention deletes). ``FileNotFoundError`` passes through; the callers list again, once.
"""

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from onelog.ual.directory import LOCK_NAME, NODE_NAME, SYSTEM_NAME
from onelog.ual.errors import DirectoryError, NotADataDirectory
from onelog.ual.files import File, FileLock, Files

COPY_SIZE = 4 << 20  # how much is read between two reports of progress

REPAIR_PREFIX = "repair-"  # directories with what repairs have cut or replaced

_SHARD_NAME = re.compile(r"[0-9]{5}")
_SEGMENTS_NAME = "segs"
_ROOT_NAMES = frozenset((LOCK_NAME, NODE_NAME, SYSTEM_NAME, "lost+found"))
_ROOT_LEFTOVERS = (f"{NODE_NAME}.tmp", f"{SYSTEM_NAME}.tmp")

Progress = Callable[[int, int, Path], None]


class ReadOnlyFiles:
    """``Files`` that copies instead of mapping and changes nothing."""

    def __init__(self, files: Files, on_copied: Callable[[int, Path], None] | None = None) -> None:
        self._files = files
        self._on_copied = on_copied  # told how many more bytes of which file were read

    def open_read(self, path: Path) -> File:
        """See ``Files.open_read``."""
        return self._files.open_read(path)

    def map(self, path: Path) -> memoryview:
        """Return a copy of the whole file; empty is allowed."""
        file = self._files.open_read(path)
        content = bytearray(file.size())
        offset = 0
        while offset < len(content):
            piece = file.read(min(COPY_SIZE, len(content) - offset), offset)
            if not piece:  # cut meanwhile
                del content[offset:]
                break
            content[offset : offset + len(piece)] = piece
            offset += len(piece)
            if self._on_copied is not None:
                self._on_copied(len(piece), path)
        return memoryview(content).toreadonly()

    def exists(self, path: Path) -> bool:
        """See ``Files.exists``."""
        return self._files.exists(path)

    def list(self, path: Path) -> list[str]:
        """See ``Files.list``."""
        return self._files.list(path)

    def free_bytes(self, path: Path) -> int:
        """See ``Files.free_bytes``."""
        return self._files.free_bytes(path)

    def open(self, path: Path, *, create: bool = False) -> File:  # noqa: ARG002 - the port's
        """Refused."""
        self._refuse(path)

    def make_directory(self, path: Path) -> None:
        """Refused."""
        self._refuse(path)

    def rename(self, source: Path, target: Path) -> None:  # noqa: ARG002 - the port's
        """Refused."""
        self._refuse(source)

    def remove(self, path: Path) -> None:
        """Refused."""
        self._refuse(path)

    def sync_directory(self, path: Path) -> None:
        """Refused."""
        self._refuse(path)

    def lock(self, path: Path) -> FileLock | None:
        """Refused: taking a lock creates its file."""
        self._refuse(path)

    @staticmethod
    def _refuse(path: Path) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


@dataclass(frozen=True, slots=True)
class Root:
    """The names in a data directory, sorted by what they are."""

    path: Path
    shards: tuple[int, ...]  # the shard directories that are there
    leftovers: tuple[str, ...]  # of small files that were being replaced
    foreign: tuple[str, ...]

    def choose(self, shard: int | None, shards: int | None) -> tuple[int, ...]:
        """Return the shards to look at: the one asked for, or all.

        ``shards`` is how many SYSTEM says there are; without it, the directories count.
        """
        known = self.shards if shards is None else tuple(range(shards))
        if shard is None:
            return known
        if shard not in known:
            there = f"shards 0 to {known[-1]}" if known else "no shards"
            raise DirectoryError(f"shard {shard} is not in {self.path}, which has {there}")
        return (shard,)


def look_at_root(files: Files, path: Path) -> Root:
    """List a data directory, however damaged; refuse what was never one."""
    if not files.exists(path):
        raise NotADataDirectory(f"{path} does not exist; give the path of a data directory")
    try:
        names = files.list(path)
    except NotADirectoryError as error:
        raise NotADataDirectory(f"{path} is a file; {_advice(files, path)}") from error
    shard_names = [name for name in names if _SHARD_NAME.fullmatch(name)]
    if SYSTEM_NAME not in names and NODE_NAME not in names:
        # The two files may be what was lost, so segments are accepted as proof as well.
        shard_names = [name for name in shard_names if files.exists(path / name / _SEGMENTS_NAME)]
        if not shard_names:
            raise NotADataDirectory(
                f"{path} is not a data directory: it has no {SYSTEM_NAME} file; "
                f"{_advice(files, path)}"
            )
    foreign = [
        name
        for name in names
        if name not in _ROOT_NAMES
        and name not in _ROOT_LEFTOVERS
        and name not in shard_names
        and not name.startswith(REPAIR_PREFIX)
    ]
    return Root(
        path,
        tuple(int(name) for name in shard_names),
        tuple(name for name in _ROOT_LEFTOVERS if name in names),
        tuple(foreign),
    )


def _advice(files: Files, path: Path) -> str:
    """Point to the data directory if the path is something inside of one."""
    for parent in list(path.parents)[:3]:
        if files.exists(parent / SYSTEM_NAME):
            return f"did you mean {parent}?"
    return "give the path of a data directory"
