"""A disk in memory that forgets, tears, fills up and fails: ``Files`` for crash and fault tests.

Files are inodes reached through directory entries. Both exist as the process sees them and as the
disk holds them, with an ordered list of unsynced changes in between. Invariants:

* durable + unsynced changes, applied in order = what the process sees (contents and names alike).
* ``File.sync`` covers what was changed before it began, ``sync_directory`` likewise for names.
* ``crash`` returns another disk and leaves this one as it is: fork a workload at each operation.

What a power loss may leave (``CrashPolicy.RANDOM``), each independent of the others:

* of a file's size: the state after any one of its unsynced changes, or part of an extension. A
  truncate that came later than that did not happen, except that it may have zeroed its own page;
* of a page: its content after any of the unsynced writes to it (writeback may run at any time), or
  a prefix of one version and the rest of an older one. Where nothing was written there are zeros;
* of a directory: any of its unsynced operations. One that finds its name missing, or belonging to
  another file, is skipped. A rename is one operation: it happened or it did not.

All follows from the calls and the ``Random`` handed to ``crash``. Space is counted by file size,
holes included, and an unlinked file costs nothing. A directory is durable once made, unless
``forget_directories`` is set. The working directory is the root: ``a/b`` is ``/a/b``.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from onelog.ual.files import File, FileLock

PAGE_SIZE = 4096
FREE_BYTES_UNLIMITED = 1 << 60

# Drawn once per file and directory: with one fixed chance, "nearly all" and "nearly nothing" of a
# long list would hardly ever survive, and those are where the bugs are.
SURVIVAL_CHANCES = (0.1, 0.5, 0.9)
TORN_PAGE_CHANCE = 0.25

Operation = Literal[
    "open", "create", "read", "map", "write", "truncate", "sync", "list", "make_directory",
    "rename", "remove", "sync_directory", "lock",
]  # fmt: skip


class CrashPolicy(Enum):
    """What becomes of changes that were not synced."""

    LOST = "lost"  # the power failed before any writeback
    KEPT = "kept"  # the process died, the machine did not: all is there, and still unsynced
    RANDOM = "random"  # the power failed in the midst of writeback; what is left is durable


Content = TypeVar("Content")
Change = TypeVar("Change")


@dataclass(slots=True, eq=False)
class Layered(Generic[Content, Change]):
    """Something as the disk holds it, as the process sees it, and the way from one to the other."""

    durable: Content
    visible: Content
    unsynced: list[Change] = field(default_factory=list)
    synced_count: int = 0

    @staticmethod
    def applied(content: Content, change: Change) -> Content:
        raise NotImplementedError

    def change(self, change: Change) -> None:
        self.visible = self.applied(self.visible, change)
        self.unsynced.append(change)

    def change_count(self) -> int:
        return self.synced_count + len(self.unsynced)

    def settle(self, change_count: int) -> None:
        """Make the first ``change_count`` changes durable, if no other sync was faster."""
        count = max(0, change_count - self.synced_count)
        for change in self.unsynced[:count]:
            self.durable = self.applied(self.durable, change)
        del self.unsynced[:count]
        self.synced_count += count


class ContentChange(NamedTuple):
    """A write of ``data`` at ``offset``, or (``data`` None) a truncate to ``offset`` bytes."""

    offset: int
    data: bytes | None

    def pages(self, page_size: int) -> Iterable[int]:
        """Return the pages that the change dirties; a truncate zeroes the rest of its page."""
        if self.data is None:
            return (self.offset // page_size,) if self.offset % page_size else ()
        return range(self.offset // page_size, (self.offset + len(self.data) - 1) // page_size + 1)


class Inode(Layered[bytes | bytearray, ContentChange]):
    """A file's content; ``bytes`` may be shared with other disks, a ``bytearray`` is its own."""

    @staticmethod
    def applied(content: bytes | bytearray, change: ContentChange) -> bytearray:
        if isinstance(content, bytes):
            content = bytearray(content)
        offset, data = change
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : None if data is None else offset + len(data)] = data or b""
        return content

    def __deepcopy__(self, _memo: object) -> "Inode":
        self.durable = bytes(self.durable)
        visible = bytes(self.visible) if self.unsynced else self.durable
        return Inode(self.durable, visible, list(self.unsynced))

    def survivor(self, rng: Random | None, page_size: int) -> "Inode":
        """Return the file that a power loss leaves; without ``rng``, only what was synced."""
        content = self.durable = bytes(self.durable)
        if self.unsynced and rng is not None:
            # The pages below the first change are as they were: most of a log is never copied here.
            first = min(len(content), *(change.offset for change in self.unsynced))
            start = first - first % page_size
            changes = [ContentChange(offset - start, data) for offset, data in self.unsynced]
            tail = writeback(content[start:], changes, rng, page_size)
            content = b"".join((memoryview(content)[:start], tail))
        return Inode(content, content)


def writeback(durable: bytes, changes: list[ContentChange], rng: Random, page_size: int) -> bytes:
    """Return one of the contents that writeback may have left (see the module's text)."""
    size_changes = rng.randint(0, len(changes))  # how many of them reached the disk
    cache = bytearray(durable)
    size = durable_size = len(cache)
    versions: dict[int, list[bytes]] = {}
    for number, change in enumerate(changes, start=1):
        size_before = len(cache)
        cache = Inode.applied(cache, change)
        if number <= size_changes:
            size = len(cache)
            if size < size_before:
                # The cut happened: nothing from before it may come back above it.
                durable_size = min(durable_size, size)
                for page, older in versions.items():
                    left = max(0, size - page * page_size)
                    versions[page] = [version[:left] for version in older]
        elif number == size_changes + 1 and len(cache) > size:
            size = rng.randint(size, len(cache))
        for page in change.pages(page_size):
            start = page * page_size
            versions.setdefault(page, []).append(bytes(cache[start : start + page_size]))

    content = bytearray(durable[:durable_size])
    content.extend(bytes(max(size, (max(versions, default=0) + 1) * page_size) - len(content)))
    chance = rng.choice(SURVIVAL_CHANCES)
    for page, newer in versions.items():
        here = slice(page * page_size, (page + 1) * page_size)
        padded = [version.ljust(page_size, b"\0") for version in newer]
        content[here] = surviving_page([bytes(content[here]), *padded], chance, rng)
    return bytes(content[:size])


def surviving_page(versions: list[bytes], chance: float, rng: Random) -> bytes:
    """Pick what the disk holds of a page: one of its versions, or a mixture of two."""
    newest = len(versions) - 1
    number = newest if rng.random() < chance else rng.randrange(newest)
    page = versions[number]
    if number > 0 and rng.random() < TORN_PAGE_CHANCE:
        torn_at = rng.randrange(len(page))
        page = page[:torn_at] + versions[rng.randrange(number)][torn_at:]
    return page


class NameChange(NamedTuple):
    """A name given (no ``source``), taken away (no ``target``) or moved."""

    node: "Node"
    source: str | None
    target: str | None


class Directory(Layered[dict[str, "Node"], NameChange]):
    """The names in a directory."""

    @staticmethod
    def applied(names: dict[str, "Node"], change: NameChange) -> dict[str, "Node"]:
        """Change ``names``, unless an earlier operation that this one builds on is missing."""
        node, source, target = change
        possible = target not in names if source is None else names.get(source) is node
        if possible and source is not None:
            del names[source]
        if possible and target is not None:
            names[target] = node
        return names

    def survivor(self, rng: Random | None, page_size: int) -> "Directory":
        """Return the directory that a power loss leaves, with all below it."""
        names = dict(self.durable)
        if rng is not None:
            chance = rng.choice(SURVIVAL_CHANCES)
            for change in self.unsynced:
                if rng.random() < chance:
                    self.applied(names, change)
        survivors = {name: node.survivor(rng, page_size) for name, node in names.items()}
        return Directory(survivors, dict(survivors))


Node = Inode | Directory
NodeT = TypeVar("NodeT", bound=Layered[Any, Any])


@dataclass(slots=True)
class Fault:
    """An error to raise: after ``after`` matching calls, ``times`` times (``math.inf``: always)."""

    operation: Operation
    error: int
    path_contains: str
    after: int
    times: float


@dataclass(slots=True, eq=False)
class SimFile:
    """An open file; it goes on working when its name is renamed or removed."""

    _disk: "SimDisk"
    _path: Path  # as opened: faults and descriptions go by it even after a rename
    _inode: Inode
    _writable: bool

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write, or take part of the data and raise: what fits a full disk, half for a fault."""
        if not self._writable:
            raise _os_error(errno.EBADF, self._path)
        disk, taken = self._disk, bytes(data)
        fitting_size = len(self._inode.visible) + disk.free_bytes(Path("/")) - offset
        error = _os_error(errno.ENOSPC, self._path) if fitting_size < len(taken) else None
        try:
            disk._raise_fault("write", self._path)
        except OSError as fault:
            error, taken = fault, taken[: len(taken) // 2]
        taken = taken[: max(0, fitting_size)]
        half = len(taken) // 2 if disk.tear_writes else 0
        for start, end, verb in ((0, half, "torn write"), (half, len(taken), "write")):
            if start < end:
                change = ContentChange(offset + start, taken[start:end])
                disk._change(self._inode, change, f"{verb} {self._path.name} {offset}+{end}")
        if error is not None:
            raise error

    def read(self, size: int, offset: int) -> bytes:
        self._disk._raise_fault("read", self._path)
        data = bytes(self._inode.visible[offset : offset + size])
        self._disk.bytes_read += len(data)
        return data

    def truncate(self, size: int) -> None:
        if not self._writable:
            raise _os_error(errno.EINVAL, self._path)
        self._disk._raise_fault("truncate", self._path)
        change = ContentChange(size, None)
        self._disk._change(self._inode, change, f"truncate {self._path.name} {size}")

    def sync(self) -> None:
        self._disk._sync("sync", self._path, self._inode)

    def size(self) -> int:
        return len(self._inode.visible)


@dataclass(slots=True, eq=False)
class SimLock:
    """A held lock. It belongs to the disk it was taken on, so a crash leaves it behind."""

    _disk: "SimDisk"
    _path: Path
    _inode: Inode

    def is_in_place(self) -> bool:
        return self._disk.exists(self._path) and self._disk._find(self._path, Inode) is self._inode

    def release(self) -> None:
        self._disk._locked.remove(self._inode)


@dataclass(eq=False)
class SimDisk:
    """See the module's text. Public attributes may be set at any time."""

    page_size: int = PAGE_SIZE
    capacity: int | None = None  # bytes of all files together; None: unlimited
    tear_writes: bool = False  # the hook also sees each write half done
    lie_about_sync: bool = False  # syncs succeed and make nothing durable
    forget_directories: bool = False  # a new directory is a name like another

    # Called after each change, with a description; may raise, which ends the workload there.
    after_operation: Callable[[str], None] | None = field(default=None, init=False)
    # Called when a sync begins. What is written from then on is not covered by that sync.
    before_sync: Callable[[str], None] | None = field(default=None, init=False)
    operations: int = field(default=0, init=False)  # calls due to the hook: numbers a crash point
    bytes_read: int = field(default=0, init=False)
    bytes_mapped: int = field(default=0, init=False)
    _root: Directory = field(default_factory=lambda: Directory({}, {}), init=False)
    _locked: set[Inode] = field(default_factory=set, init=False)
    _faults: list[Fault] = field(default_factory=list, init=False)
    # The code under test may sync in a thread of its own. Hooks run outside of the guard.
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)

    def crash(self, policy: CrashPolicy, rng: Random | None = None) -> "SimDisk":
        """Return the disk as the next process finds it: no locks, hooks, faults or counts."""
        assert rng is not None or policy is not CrashPolicy.RANDOM, "RANDOM needs an rng"
        disk = replace(self)
        with self._guard:
            if policy is CrashPolicy.KEPT:
                disk._root = deepcopy(self._root)
            else:
                chance = rng if policy is CrashPolicy.RANDOM else None
                disk._root = self._root.survivor(chance, self.page_size)
        return disk

    def fail(
        self,
        operation: Operation,
        error: int,
        *,
        path_contains: str = "",
        after: int = 0,
        times: float = 1,
    ) -> None:
        """Make ``operation`` raise ``OSError(error)``. A failed sync makes nothing durable."""
        self._faults.append(Fault(operation, error, path_contains, after, times))

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    def contents(self, path: Path) -> bytes:
        """Return what a process would read, without counting it as read."""
        return bytes(self._find(path, Inode).visible)

    def put(self, path: Path, content: bytes) -> None:
        """Put ``content`` at ``path``, durable at once with all names in its directory."""
        directory = self._make_directories(path.parent, durable=True)
        if path.name not in directory.visible:
            directory.change(NameChange(Inode(b"", b""), None, path.name))
        inode = self._find(path, Inode)
        inode.change(ContentChange(0, None))
        inode.change(ContentChange(0, content))
        inode.settle(inode.change_count())
        directory.settle(directory.change_count())

    def flip(self, path: Path, bit_position: int) -> None:
        """Flip a bit as if it had rotted on disk; the file and its name count as synced."""
        content = bytearray(self.contents(path))
        content[bit_position >> 3] ^= 1 << (bit_position & 7)
        self.put(path, bytes(content))

    def open(self, path: Path, *, create: bool = False) -> File:
        if create:
            return SimFile(self, path, self._create(path), _writable=True)
        self._raise_fault("open", path)
        return SimFile(self, path, self._find(path, Inode), _writable=True)

    def open_read(self, path: Path) -> File:
        self._raise_fault("open", path)
        return SimFile(self, path, self._find(path, Inode), _writable=False)

    def map(self, path: Path) -> memoryview:
        self._raise_fault("map", path)
        content = self.contents(path)
        if not content:
            raise ValueError("cannot mmap an empty file")
        self.bytes_mapped += len(content)
        return memoryview(content)

    def exists(self, path: Path) -> bool:
        try:
            self._find(path, Layered)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: Path) -> list[str]:
        self._raise_fault("list", path)
        return sorted(self._find(path, Directory).visible)

    def make_directory(self, path: Path) -> None:
        self._raise_fault("make_directory", path)
        self._make_directories(path, durable=not self.forget_directories)
        self._done(f"make_directory {path.name}")

    def rename(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent, (source, target)
        self._raise_fault("rename", source, target)
        change = NameChange(self._find(source, Inode), source.name, target.name)
        if self.exists(target):
            self._find(target, Inode)  # raises for a directory, which is not replaced
        parent = self._find(source.parent, Directory)
        self._change(parent, change, f"rename {source.name} -> {target.name}")

    def remove(self, path: Path) -> None:
        self._raise_fault("remove", path)
        change = NameChange(self._find(path, Inode), path.name, None)
        self._change(self._find(path.parent, Directory), change, f"remove {path.name}")

    def sync_directory(self, path: Path) -> None:
        self._sync("sync_directory", path, self._find(path, Directory))

    def restrict(self, path: Path) -> Sequence[Path]:
        self._find(path, Directory)
        return []  # there are no other users

    def free_bytes(self, path: Path) -> int:
        self._find(path, Layered)
        if self.capacity is None:
            return FREE_BYTES_UNLIMITED
        return max(0, self.capacity - _size(self._root))

    def lock(self, path: Path) -> FileLock | None:
        self._raise_fault("lock", path)
        inode = self._find(path, Inode) if self.exists(path) else self._create(path)
        if inode in self._locked:
            return None
        self._locked.add(inode)
        return SimLock(self, path, inode)

    def _find(self, path: Path, kind: type[NodeT]) -> NodeT:
        node: Node = self._root
        for part in _parts(path):
            if not isinstance(node, Directory):
                raise _os_error(errno.ENOTDIR, path)
            if part not in node.visible:
                raise _os_error(errno.ENOENT, path)
            node = node.visible[part]
        if not isinstance(node, kind):
            raise _os_error(errno.ENOTDIR if isinstance(node, Inode) else errno.EISDIR, path)
        return node

    def _create(self, path: Path) -> Inode:
        self._raise_fault("create", path)
        directory = self._find(path.parent, Directory)
        if path.name in directory.visible:
            raise _os_error(errno.EEXIST, path)
        inode = Inode(b"", b"")
        self._change(directory, NameChange(inode, None, path.name), f"create {path.name}")
        return inode

    def _make_directories(self, path: Path, *, durable: bool) -> Directory:
        directory = self._root
        for part in _parts(path):
            if part not in directory.visible:
                change = NameChange(Directory({}, {}), None, part)
                with self._guard:
                    directory.change(change)
                    if durable:  # which leaves the change in the list, where it does nothing
                        directory.applied(directory.durable, change)
            child = directory.visible[part]
            if not isinstance(child, Directory):
                raise _os_error(errno.EEXIST, path)
            directory = child
        return directory

    def _change(self, node: Layered[Any, Change], change: Change, description: str) -> None:
        with self._guard:
            node.change(change)
        self._done(description)

    def _sync(self, operation: Operation, path: Path, node: Node) -> None:
        change_count = node.change_count()
        if self.before_sync is not None:
            self.before_sync(f"{operation} {path.name}")
        self._raise_fault(operation, path)
        if not self.lie_about_sync:
            with self._guard:
                node.settle(change_count)
        self._done(f"{operation} {path.name}")

    def _done(self, description: str) -> None:
        self.operations += 1
        if self.after_operation is not None:
            self.after_operation(description)

    def _raise_fault(self, operation: Operation, *paths: Path) -> None:
        for fault in self._faults:
            names_match = any(fault.path_contains in str(path) for path in paths)
            if fault.operation == operation and names_match:
                if fault.after == 0 and fault.times > 0:
                    fault.times -= 1
                    raise _os_error(fault.error, paths[0])
                fault.after = max(0, fault.after - 1)


def _parts(path: Path) -> tuple[str, ...]:
    return path.parts[1:] if path.is_absolute() else path.parts


def _size(node: Node) -> int:
    return len(node.visible) if isinstance(node, Inode) else sum(map(_size, node.visible.values()))


def _os_error(error: int, path: Path) -> OSError:
    return OSError(error, os.strerror(error), str(path))
