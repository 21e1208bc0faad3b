"""Everything the log can refuse or report, as one tree.

::

    UalError
    ├── DataError                 bytes that are not what was written
    │   ├── EntryError            one entry: offset and the rule that broke
    │   │   ├── TornEntry         the buffer ends inside the entry or its group
    │   │   └── CorruptEntry      the bytes are all there and wrong
    │   ├── CorruptPayload        a compressed payload that does not decompress
    │   ├── PayloadTooLarge       a compressed payload that would exceed the limit
    │   ├── CorruptFile           a header, table, footer or small file
    │   │   └── EntriesDamaged    entries of a damaged file that cannot be read
    │   ├── UnknownVersion        written by a newer onelog
    │   └── MissingSegment        a range of the log has no file
    ├── DirectoryError            the data directory is not ours to open
    │   ├── DirectoryInUse        another process holds LOCK
    │   ├── TopologyMismatch      shards, partitions or cluster differ from SYSTEM
    │   ├── WrongNode             NODE names another node
    │   ├── ForeignShard          a shard's directory is that of another shard, node or cluster
    │   ├── DirectoryExposed      others have access to it, and that cannot be taken from them
    │   ├── DirectoryLost         it was removed or replaced while this process used it
    │   └── NotADataDirectory     no SYSTEM file, or a foreign directory
    ├── IndexUnavailable          a read outside the log
    │   ├── IndexDropped          below the first index that is kept
    │   └── IndexInFuture         above what is committed, or written
    ├── RangeNotWhole             a range that begins or ends inside a group
    ├── GroupTooLarge             a group that no segment may hold
    ├── DiskFull                  below the minimum of free space; reads continue
    │   └── TooManyOpenFiles      the process or the system has no descriptors; likewise
    └── LogFailed                 a write or sync failed; only a reopen can tell what is on disk

``reason`` is stable and meant for programs; the message is meant for people and says what to do.
"""

import errno
from typing import ClassVar


class UalError(Exception):
    """Base of every error that this package raises on purpose."""

    reason: ClassVar[str] = "UAL_ERROR"


class DataError(UalError):
    """Bytes on disk or on the wire are not what was written."""

    reason = "DATA_ERROR"


class EntryError(DataError):
    """An entry cannot be decoded; ``offset`` is where it starts in the buffer."""

    reason = "ENTRY_ERROR"

    def __init__(self, offset: int, rule: str) -> None:
        super().__init__(f"entry at offset {offset}: {rule}")
        self.offset = offset
        self.rule = rule


class TornEntry(EntryError):
    """The buffer ends inside an entry or before its group is closed.

    It may be the harmless end of an interrupted write, or a loss: only the caller knows what was
    durable.
    """

    reason = "TORN_ENTRY"


class CorruptEntry(EntryError):
    """The entry is complete and breaks ``rule`` (checksum, index, term, group_left, …)."""

    reason = "CORRUPT_ENTRY"


class CorruptPayload(DataError):
    """A payload flagged as zstd is not a zstd frame of known size."""

    reason = "CORRUPT_PAYLOAD"


class PayloadTooLarge(DataError):
    """A compressed payload announces more bytes than the reader accepts."""

    reason = "PAYLOAD_TOO_LARGE"

    def __init__(self, size: int, size_max: int) -> None:
        super().__init__(f"payload decompresses to {size} bytes, limit {size_max}")
        self.size = size
        self.size_max = size_max


class CorruptFile(DataError):
    """A file breaks ``rule``; nothing from it is served."""

    reason = "CORRUPT_FILE"

    def __init__(self, path: str, rule: str, offset: int | None = None) -> None:
        where = "" if offset is None else f" at offset {offset}"
        super().__init__(f"{path}{where}: {rule}")
        self.path = path
        self.rule = rule
        self.offset = offset


class EntriesDamaged(CorruptFile):
    """Entries that cannot be read because their file is damaged; others of the file may be."""

    reason = "ENTRY_DAMAGED"

    def __init__(self, damage: CorruptFile, first_index: int, last_index: int) -> None:
        super().__init__(damage.path, damage.rule, damage.offset)
        self.first_index = first_index
        self.last_index = last_index

    def __str__(self) -> str:
        which = f"entry {self.first_index}"
        if self.last_index > self.first_index:
            which = f"entries {self.first_index} to {self.last_index}"
        return f"{which}: {super().__str__()}"


class UnknownVersion(DataError):
    """The file was written by a newer onelog than this one."""

    reason = "UNKNOWN_VERSION"

    def __init__(self, path: str, version: object, version_max: int) -> None:
        super().__init__(
            f"{path}: format version {version}, this onelog knows up to {version_max}; "
            "upgrade onelog before opening this directory"
        )
        self.path = path
        self.version = version
        self.version_max = version_max


class MissingSegment(DataError):
    """No file holds the entries ``first_index`` to ``last_index``."""

    reason = "MISSING_SEGMENT"

    def __init__(self, directory: str, first_index: int, last_index: int) -> None:
        super().__init__(
            f"{directory}: no file holds entries {first_index} to {last_index}; "
            "restore them from a backup or rebuild this replica from a peer"
        )
        self.first_index = first_index
        self.last_index = last_index


class DirectoryError(UalError):
    """The data directory cannot be opened by this process as asked."""

    reason = "DIRECTORY_ERROR"


class DirectoryInUse(DirectoryError):
    """Another process holds the directory's LOCK."""

    reason = "DIRECTORY_IN_USE"


class TopologyMismatch(DirectoryError):
    """Shards, partitions, workers or cluster in SYSTEM differ from those asked for."""

    reason = "TOPOLOGY_MISMATCH"


class WrongNode(DirectoryError):
    """NODE names another node: a directory is never taken over."""

    reason = "WRONG_NODE"


class ForeignShard(DirectoryError):
    """A shard's directory was copied or moved here: nothing in it is opened."""

    reason = "FOREIGN_SHARD"

    def __init__(self, path: str, theirs: str, ours: str) -> None:
        super().__init__(
            f"{path} is of {theirs}, but this is {ours}: it was copied or moved here; put the one "
            "back that belongs here, or remove this node from the cluster and add it as a new one "
            "with an empty directory"
        )


class DirectoryExposed(DirectoryError):
    """Other users have access to the directory, and this process may not take it from them."""

    reason = "DIRECTORY_EXPOSED"


class DirectoryLost(DirectoryError):
    """The directory, or a part of it, was removed or replaced while this process used it."""

    reason = "DIRECTORY_LOST"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} was removed or replaced while this node was using it; what it held is gone "
            "unless it was moved: mount or move it back, or restore it from a backup. A member of "
            "a cluster that has lost it is removed and added again as a new node"
        )


class NotADataDirectory(DirectoryError):
    """The directory holds files but no SYSTEM file, or does not exist where it must."""

    reason = "NOT_A_DATA_DIRECTORY"


class IndexUnavailable(UalError):
    """The log does not hold ``index`` (any more, or yet)."""

    reason = "INDEX_UNAVAILABLE"

    def __init__(self, index: int, first_index: int, last_index: int) -> None:
        super().__init__(f"index {index} is outside the log's {first_index} to {last_index}")
        self.index = index
        self.first_index = first_index
        self.last_index = last_index


class IndexDropped(IndexUnavailable):
    """``index`` is below the first entry that the log still keeps."""

    reason = "INDEX_DROPPED"


class IndexInFuture(IndexUnavailable):
    """``index`` is above what readers may see: the commit index."""

    reason = "INDEX_IN_FUTURE"


class RangeNotWhole(UalError):
    """The requested range begins or ends inside a group; nothing is damaged."""

    reason = "RANGE_NOT_WHOLE"

    def __init__(self, first_index: int, last_index: int, rule: str) -> None:
        super().__init__(f"entries {first_index} to {last_index} are no whole groups: {rule}")
        self.first_index = first_index
        self.last_index = last_index


class GroupTooLarge(UalError):
    """A group exceeds the named limits and would never fit a segment."""

    reason = "GROUP_TOO_LARGE"


class DiskFull(UalError):
    """Free space is below the minimum, or a write met ENOSPC; nothing of it was kept."""

    reason = "DISK_FULL"


class TooManyOpenFiles(DiskFull):
    """A file could not be opened (EMFILE, ENFILE); nothing of the write was kept."""

    reason = "TOO_MANY_OPEN_FILES"


class LogFailed(UalError):
    """An earlier write or sync failed, so what the disk holds is unknown until a reopen."""

    reason = "LOG_FAILED"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error, one of its group, or what caused it, is a failed allocation."""
    found, seen = [error], set[int]()
    while found:
        each = found.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, MemoryError) or getattr(each, "errno", None) == errno.ENOMEM:
            return True
        if isinstance(each, RuntimeError) and "can't start new thread" in str(each):
            return True  # there is no room for its stack
        if isinstance(each, BaseExceptionGroup):
            found += each.exceptions
        found += [cause for cause in (each.__cause__, each.__context__) if cause is not None]
    return False
