"""Where an export is written: a directory, or a URL that pyarrow has a file system for (S3).

Every target guarantees:

* A file appears under its name complete or not at all; ``Output.finish`` makes it visible. In a
  directory it is a temporary file that is synced and renamed; in an object store it is one upload
  under the final name.
* Writing a name again replaces the file. All attempts at one split write the same bytes, so it does
  not matter which comes last.
* Of two exports at the same time, one gets the lock. In a directory, the kernel releases the lock
  of a dead process. In an object store, an object names the owner of the lock, and stays if that
  process dies.

Names are relative, with slashes. Files of the export itself are below ``_export/``: readers of
tables ignore names that begin with an underscore.
"""

import errno
import io
import json
import os
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from crc32c import crc32c

from onelog.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OnelogError,
    ResourceExhausted,
    Unavailable,
)
from onelog.ual.files import OUT_OF_SPACE, DiskFiles, File, Files, replace_file, sync_new_name

OWN_DIRECTORY = "_export"
LOCK_NAME = f"{OWN_DIRECTORY}/LOCK"
TEMPORARY_SUFFIX = ".tmp"
READ_BYTES = 4 << 20
WALK_DEPTH_MAX = 16


class Output(io.RawIOBase, ABC):
    """A file that is being written; counts and checksums what goes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0
        self.crc32c = 0

    def write(self, data: Any) -> int:
        """Append bytes; pyarrow's writers call it."""
        view = memoryview(data)
        self._append(view)
        self.crc32c = crc32c(view, self.crc32c)
        self.size_bytes += len(view)
        return len(view)

    def writable(self) -> bool:
        """Return True; part of Python's file protocol."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written; part of Python's file protocol."""
        return self.size_bytes

    @abstractmethod
    def _append(self, data: memoryview) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """Make the file durable and visible."""

    @abstractmethod
    def discard(self) -> None:
        """Leave nothing of an unfinished file."""


class Lock(Protocol):
    """The right to write into a target."""

    def check(self) -> None:
        """Raise if another export has taken the lock."""

    def release(self) -> None:
        """Release the lock."""


class Target(Protocol):
    """See the module's docstring; a target pickles and travels with every task."""

    name: str  # as the user gave it

    def lock(self) -> Lock:
        """Create the target if needed and take its lock; refuse with TARGET_IN_USE."""

    def create(self, name: str) -> Output:
        """Begin a file."""

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a small file; None: there is none."""

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield a file piece by piece."""

    def size(self, name: str) -> int | None:
        """Return a file's size; None: there is none."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def names(self, prefix: str = "") -> list[str]:
        """Return all files below a folder, sorted; an empty list if it does not exist."""

    def log(self, name: str) -> "AppendLog":
        """Return a file that grows."""


class AppendLog(Protocol):
    """A file that only grows, in a target that may not be able to append to files."""

    def read(self) -> bytes:
        """Return the whole content; empty if it does not exist."""

    def keep(self, size: int) -> None:
        """Cut off what is behind ``size``: the torn end that a crash left."""

    def create(self, data: bytes) -> None:
        """Create it with a first record, which appears complete or not at all."""

    def append(self, data: bytes) -> None:
        """Append; durable when this returns."""

    def remove(self) -> None:
        """Remove it."""


def open_target(text: str) -> Target:
    """Return the target that a user names: a path, ``file:///path`` or another URL."""
    if not text:
        raise InvalidArgument("the target is empty; give a directory or a URL", reason="TARGET")
    parts = urlsplit(text)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InvalidArgument(f"{text} is on another host; use file:///path", reason="TARGET")
        return DirectoryTarget(text, Path(unquote(parts.path)))
    if "://" in text:
        from onelog.spark.export.object_target import open_url

        return open_url(text)
    return DirectoryTarget(text, Path(text).absolute())


def in_use(target: str) -> FailedPrecondition:
    """Return the error for a second export into one target."""
    return FailedPrecondition(
        f"another export writes into {target}; wait for it, or use another target",
        reason="TARGET_IN_USE",
    )


def target_error(error: OSError) -> OnelogError:
    """Return the error to show for a target that cannot be written."""
    if error.errno in OUT_OF_SPACE:
        return ResourceExhausted(
            f"the target is full: {error}; free some space and run the same command again",
            reason="TARGET_FULL",
        )
    if error.errno == errno.ENOENT:
        return NotFound(f"the target is gone: {error}", reason="TARGET_GONE")
    return Unavailable(
        f"the target cannot be written: {error}; run the same command again",
        reason="TARGET_UNWRITABLE",
    )


# Directories -------------------------------------------------------------------------------------


class DirectoryTarget:
    """A directory that the driver and all tasks see."""

    def __init__(self, name: str, path: Path, files: Files | None = None) -> None:
        self.name = name
        self.path = path
        self._files = files or DiskFiles(is_shared=True)

    def lock(self) -> Lock:
        """See ``Target.lock``."""
        self._check_names()
        _make_directories(self._files, self.path / OWN_DIRECTORY)
        held = self._files.lock(self.path / LOCK_NAME)
        if held is None:
            raise in_use(self.name)
        return _DirectoryLock(held)

    def _check_names(self) -> None:
        """Refuse a directory that is not empty and has no export."""
        try:
            names = self._files.list(self.path)
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise InvalidArgument(f"{self.name} is no directory", reason="TARGET") from None
        if names and OWN_DIRECTORY not in names:
            raise not_empty(self.name)

    def create(self, name: str) -> Output:
        """See ``Target.create``."""
        if not self._files.exists(self.path / OWN_DIRECTORY):
            # Not created again: an export that lost its journal must not look complete.
            raise OSError(errno.ENOENT, "the target is gone", str(self.path))
        return _FileOutput(self._files, self.path, self.path / name)

    def write(self, name: str, data: bytes) -> None:
        """See ``Target.write``."""
        _make_directories(self._files, (self.path / name).parent, self.path)
        replace_file(self._files, self.path / name, [data])

    def read(self, name: str) -> bytes | None:
        """See ``Target.read``."""
        try:
            file = self._files.open_read(self.path / name)
        except FileNotFoundError:
            return None
        return file.read(file.size(), 0)

    def chunks(self, name: str) -> Iterator[bytes]:
        """See ``Target.chunks``."""
        file = self._files.open_read(self.path / name)
        offset = 0
        while data := file.read(READ_BYTES, offset):
            offset += len(data)
            yield data

    def size(self, name: str) -> int | None:
        """See ``Target.size``."""
        try:
            return self._files.open_read(self.path / name).size()
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """See ``Target.remove``."""
        path = self.path / name
        if self._files.exists(path):
            self._files.remove(path)
            self._files.sync_directory(path.parent)

    def names(self, prefix: str = "") -> list[str]:
        """See ``Target.names``."""
        found: list[str] = []
        self._walk(self.path / prefix, prefix.strip("/"), found, 0)
        return sorted(found)

    def _walk(self, path: Path, prefix: str, found: list[str], depth: int) -> None:
        try:
            children = self._files.list(path)
        except NotADirectoryError:
            found.append(prefix)
            return
        except FileNotFoundError:
            return
        if depth == WALK_DEPTH_MAX:
            raise OSError(errno.ELOOP, "folders are nested too deep", str(path))
        for child in children:
            self._walk(path / child, f"{prefix}/{child}" if prefix else child, found, depth + 1)

    def log(self, name: str) -> AppendLog:
        """See ``Target.log``."""
        return _FileLog(self._files, self.path / name)


def not_empty(target: str) -> FailedPrecondition:
    """Return the error for a target that holds something else."""
    return FailedPrecondition(
        f"{target} is not empty and holds no export; use another target",
        reason="TARGET_NOT_EMPTY",
    )


class _DirectoryLock:
    """The kernel's lock on a file of the target."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def check(self) -> None:
        """See ``Lock.check``: a lock of the kernel cannot be taken over."""

    def release(self) -> None:
        """See ``Lock.release``."""
        self._held.release()


class _FileOutput(Output):
    """Writes to a unique temporary name, which two attempts of one task never share."""

    def __init__(self, files: Files, root: Path, path: Path) -> None:
        super().__init__()
        self._files = files
        self._path = path
        _make_directories(files, path.parent, root)
        token = secrets.token_hex(8)
        # Readers of tables ignore names with an underscore.
        self._temporary = path.with_name(f"_{path.name}.{token}{TEMPORARY_SUFFIX}")
        self._file: File = files.open(self._temporary, create=True)

    def _append(self, data: memoryview) -> None:
        self._file.write(data, self.size_bytes)

    def finish(self) -> None:
        """See ``Output.finish``."""
        self._file.sync()
        self._files.rename(self._temporary, self._path)
        sync_new_name(self._files, self._path.parent)

    def discard(self) -> None:
        """See ``Output.discard``."""
        if self._files.exists(self._temporary):
            self._files.remove(self._temporary)


class _FileLog:
    """A file that is appended to in place."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path

    def read(self) -> bytes:
        """See ``AppendLog.read``."""
        if not self._files.exists(self._path):
            return b""
        file = self._files.open_read(self._path)
        return file.read(file.size(), 0)

    def keep(self, size: int) -> None:
        """See ``AppendLog.keep``."""
        file = self._files.open(self._path)
        if file.size() > size:
            file.truncate(size)
            file.sync()

    def create(self, data: bytes) -> None:
        """See ``AppendLog.create``."""
        replace_file(self._files, self._path, [data])

    def append(self, data: bytes) -> None:
        """See ``AppendLog.append``."""
        file = self._files.open(self._path)
        file.write(data, file.size())
        file.sync()

    def remove(self) -> None:
        """See ``AppendLog.remove``."""
        if self._files.exists(self._path):
            self._files.remove(self._path)
            self._files.sync_directory(self._path.parent)


def _make_directories(files: Files, path: Path, root: Path | None = None) -> None:
    """Make a directory and its parents; sync them from ``root``, or the first existing one, on."""
    missing = []
    while not files.exists(path):
        missing.append(path)
        if path in (root, path.parent):
            break
        path = path.parent
    if missing:
        files.make_directory(missing[0])
        for made in missing:
            files.sync_directory(made.parent)


def owner_text(token: str) -> str:
    """Return the text that names the holder of an object store's lock."""
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "token": token})
