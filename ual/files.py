"""The file port: the only way from the log to a disk.

Everything in ``ual``, and in the packages above it, opens, writes, syncs, renames and deletes files
through ``Files``. So there is one list of the operations whose order matters in a crash, and tests
can run the real code on a disk that forgets, tears and fails (``tests/simulation/disk.py``).

An implementation guarantees:

* ``File.write`` writes all of ``data`` or raises; after an error any part of it may be on disk.
* Nothing is durable before ``File.sync`` (content and size) or ``sync_directory`` (names) returned.
* ``rename`` replaces the target atomically: after a crash a name refers to one of the two files.
* A ``File`` or a mapping stays readable after its name was renamed or removed, and is released
  with its last reference. So a rename or delete never interrupts a reader in another thread.
* ``map`` is a read-only view. The mapped file must not be truncated while it is mapped; the log
  maps sealed segments only, and those are replaced or unlinked, never changed.

Files are for their owner alone: they are made with mode 0600 and directories with 0700, whatever
the umask. ``restrict`` narrows what an earlier version or somebody else has made wider.

Errors are ``OSError``; the callers turn those of ``EXHAUSTED`` into ``DiskFull`` (``to_disk_full``)
and the rest into ``LogFailed``. A process without descriptors is like a full disk: what needs a new
file is refused, and the log goes on with those that it has. ``DiskFiles`` keeps a few descriptors
in reserve, for what has to be finished once it has begun, such as making a rename durable.
``FreeSpace`` refuses writes before the disk is really full: sealing, MANIFEST and a cut need some
space even when appends are refused.
"""

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Protocol

from onelog.ual.errors import DiskFull, TooManyOpenFiles

OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)
FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
_SHARED_FILE_MODE, _SHARED_DIRECTORY_MODE = 0o644, 0o777  # less what the umask takes
_OTHERS = 0o077
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
# What passes: a later attempt may succeed, and nothing is unknown meanwhile.
EXHAUSTED = (*OUT_OF_SPACE, *OUT_OF_DESCRIPTORS)
# Descriptors kept in reserve; the last of them only for what is closed at once.
SPARES, SPARES_FOR_SHORT = 8, 4


def to_disk_full(what: str, error: OSError) -> DiskFull:
    """Return the refusal for an error of ``EXHAUSTED``."""
    if error.errno in OUT_OF_DESCRIPTORS:
        return TooManyOpenFiles(
            f"{what}: {error}; raise the limit of open files (ulimit -n) or close connections"
        )
    return DiskFull(f"{what}: {error}; free some space")


class File(Protocol):
    """An open file, addressed by offset. There is no file position to share or to lose."""

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of ``data`` at ``offset``, extending the file where needed."""

    def read(self, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes at ``offset``; fewer only at the end of the file."""

    def truncate(self, size: int) -> None:
        """Cut or extend the file to ``size`` bytes."""

    def sync(self) -> None:
        """Make content and size durable (fdatasync)."""

    def size(self) -> int:
        """Return the size in bytes."""


class FileLock(Protocol):
    """An exclusive lock on a file, held until ``release`` or the end of the process."""

    def is_in_place(self) -> bool:
        """Tell whether the file of that name is still the one that is locked."""

    def release(self) -> None:
        """Release the lock."""


class Files(Protocol):
    """A directory tree. Paths are ``Path`` objects, absolute or relative to the process."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; ``create`` makes it, and fails if it exists."""

    def open_read(self, path: Path) -> File:
        """Open an existing file for reading only."""

    def map(self, path: Path) -> memoryview:
        """Map a whole existing, non-empty file read-only."""

    def exists(self, path: Path) -> bool:
        """Tell whether a file or directory has this name."""

    def list(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents; an existing one is fine."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name in the same directory, replacing the target."""

    def remove(self, path: Path) -> None:
        """Remove a file's name."""

    def sync_directory(self, path: Path) -> None:
        """Make the directory's names durable."""

    def restrict(self, path: Path) -> Sequence[Path]:
        """Take a directory, and everything in it, from all but its owner; return what was wider."""

    def free_bytes(self, path: Path) -> int:
        """Return the space that an ordinary user may still fill."""

    def lock(self, path: Path) -> FileLock | None:
        """Take an exclusive lock on a file, created if missing; None if it is held elsewhere."""


class DiskFile:
    """A file descriptor that closes itself with its last reference.

    There is no ``close``: a reader in another thread may be inside ``read``, and closing under it
    would let the kernel hand the same number to another file.
    """

    __slots__ = ("_descriptor", "_sync_error", "_syncing")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # The kernel reports a lost page once: of two concurrent syncs, one would succeed
        # wrongly. So they take turns, and after the first failure no other succeeds.
        self._syncing = Lock()
        self._sync_error: OSError | None = None

    def __del__(self) -> None:
        os.close(self._descriptor)

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """See ``File.write``."""
        written = os.pwrite(self._descriptor, data, offset)
        # A short write is legal (a signal, or the last free bytes); writing the rest shows which.
        while written < len(data):
            step = os.pwrite(self._descriptor, memoryview(data)[written:], offset + written)
            if step == 0:
                raise OSError(errno.EIO, "a write made no progress")
            written += step

    def read(self, size: int, offset: int) -> bytes:
        """See ``File.read``."""
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def truncate(self, size: int) -> None:
        """See ``File.truncate``."""
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """See ``File.sync``."""
        with self._syncing:
            if self._sync_error is not None:
                raise OSError(errno.EIO, "an earlier sync of this file failed")
            try:
                os.fdatasync(self._descriptor)
            except OSError as error:
                self._sync_error = error
                raise

    def size(self) -> int:
        """See ``File.size``."""
        return os.fstat(self._descriptor).st_size


class DiskLock:
    """flock on an open descriptor; the kernel drops it when the process dies."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def is_in_place(self) -> bool:
        """See ``FileLock.is_in_place``."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except OSError:
            return False

    def release(self) -> None:
        """See ``FileLock.release``; a second call does nothing."""
        # Closing a descriptor twice would close another file that got the same number.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class _Spares:
    """Descriptors in reserve: closed when no others are left, and opened again when there are."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._descriptors: list[int] = []

    def __reduce__(self) -> tuple[type["_Spares"], tuple[()]]:
        """Pickle nothing: descriptors belong to one process, and another has its own."""
        return _Spares, ()

    def __del__(self) -> None:
        for each in self._descriptors:
            os.close(each)

    def open(self, path: Path, flags: int, mode: int = 0, *, is_short: bool) -> int:
        """Open with a descriptor of the reserve, if there is no other."""
        with self._lock:
            kept = 0 if is_short else SPARES_FOR_SHORT
            while True:
                try:
                    found = os.open(path, flags | os.O_CLOEXEC, mode)
                except OSError as error:
                    if error.errno not in OUT_OF_DESCRIPTORS or len(self._descriptors) <= kept:
                        raise
                    os.close(self._descriptors.pop())
                else:
                    self._refill()
                    return found

    def _refill(self) -> None:
        with suppress(OSError):
            while len(self._descriptors) < SPARES:
                self._descriptors.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


class DiskFiles:
    """The real file system."""

    def __init__(self, *, is_shared: bool = False) -> None:
        """``is_shared``: others may read what is made, as far as the umask allows."""
        self._is_shared = is_shared
        self._file_mode = _SHARED_FILE_MODE if is_shared else FILE_MODE
        self._directory_mode = _SHARED_DIRECTORY_MODE if is_shared else DIRECTORY_MODE
        self._spares = _Spares()

    def open(self, path: Path, *, create: bool = False) -> File:
        """See ``Files.open``."""
        if not create:
            return DiskFile(self._open(path, os.O_RDWR, is_short=False))
        descriptor = self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, is_short=False)
        if not self._is_shared:
            os.fchmod(descriptor, self._file_mode)  # the umask may have taken from the owner, too
        return DiskFile(descriptor)

    def open_read(self, path: Path) -> File:
        """See ``Files.open_read``."""
        return DiskFile(self._open(path, os.O_RDONLY, is_short=True))

    def map(self, path: Path) -> memoryview:
        """See ``Files.map``."""
        descriptor = self._open(path, os.O_RDONLY, is_short=True)
        try:
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)

    def exists(self, path: Path) -> bool:
        """See ``Files.exists``."""
        return path.exists()

    def list(self, path: Path) -> list[str]:
        """See ``Files.list``."""
        return sorted(os.listdir(path))

    def make_directory(self, path: Path) -> None:
        """See ``Files.make_directory``."""
        path.mkdir(self._directory_mode, parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        """See ``Files.rename``."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """See ``Files.remove``."""
        os.unlink(path)

    def sync_directory(self, path: Path) -> None:
        """See ``Files.sync_directory``."""
        descriptor = self._spares.open(path, os.O_RDONLY | os.O_DIRECTORY, is_short=True)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def restrict(self, path: Path) -> Sequence[Path]:
        """See ``Files.restrict``; what another user owns cannot be narrowed."""
        narrowed = [path] if _restrict(path, os.stat(path)) else []
        waiting = [path]
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    if _restrict(Path(entry.path), found):
                        narrowed.append(Path(entry.path))
                    elif found.st_uid != os.geteuid() and os.geteuid() != 0:
                        continue  # it is that user's alone, as lost+found is
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(Path(entry.path))
        return narrowed

    def free_bytes(self, path: Path) -> int:
        """See ``Files.free_bytes``."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def lock(self, path: Path) -> FileLock | None:
        """See ``Files.lock``."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(path, flags, self._file_mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return DiskLock(path, descriptor)

    def _open(self, path: Path, flags: int, *, is_short: bool) -> int:
        """Open a regular file; a pipe of that name would block, a device would never end."""
        mode = self._file_mode
        descriptor = self._spares.open(path, flags | os.O_NONBLOCK, mode, is_short=is_short)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return descriptor


def _restrict(path: Path, found: os.stat_result) -> bool:
    """Take a file or directory from all but its owner; tell whether others had it."""
    if stat.S_ISLNK(found.st_mode) or not found.st_mode & _OTHERS:
        return False
    os.chmod(path, stat.S_IMODE(found.st_mode) & ~_OTHERS & 0o777)
    return True


def replace_file(files: Files, path: Path, chunks: Iterable[bytes]) -> None:
    """Write ``path`` so that a crash leaves the old file or the new one, whole.

    The order is the point: the data is durable before the name refers to it, and the name is
    durable before this returns. A stale ``.tmp`` is harmless: nobody opens it, and it is removed
    here first.
    """
    temporary = path.with_name(path.name + ".tmp")
    if files.exists(temporary):
        files.remove(temporary)
    file = files.open(temporary, create=True)
    offset = 0
    for chunk in chunks:
        file.write(chunk, offset)
        offset += len(chunk)
    file.sync()
    files.rename(temporary, path)
    sync_new_name(files, path.parent)


def sync_new_name(files: Files, directory: Path) -> None:
    """Make a rename durable. After a failure it is unknown which file has the name.

    So it is an I/O error, even if the disk was only full: a caller that treats it as a refusal
    would continue as if the old file had stayed.
    """
    try:
        files.sync_directory(directory)
    except OSError as error:
        raise OSError(errno.EIO, f"a rename may or may not be durable: {error}") from error


def remove_files(files: Files, paths: Sequence[Path]) -> None:
    """Remove those files of one directory that exist; durable when this returns."""
    present = [path for path in paths if files.exists(path)]
    for path in present:
        files.remove(path)
    if present:
        files.sync_directory(present[0].parent)


# Free space

# Free space is checked again after this many bytes; the call costs more than a small write.
CHECK_BYTES = 4 << 20


class FreeSpace:
    """The space left in one directory, as of the last check."""

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

    def invalidate(self) -> None:
        """Discard the last check, because a write found the disk full."""
        self._credit = 0
