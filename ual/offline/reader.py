"""Reading a data directory from outside: no LOCK, no writes, damage expected.

The directory may be damaged, and a server may be writing it at the same time. Both make a mapping
dangerous: a page that the disk cannot read, or that was cut off meanwhile, ends the process by a
signal. ``ReadOnlyFiles`` therefore copies instead of mapping, and an unreadable page is an
``OSError`` like any other. It also refuses every operation that would change something.

``OfflineLog`` is the log of one shard. It opens what can be opened and keeps the error of what
cannot, so that damage in one file does not hide the others. Then it compares what it found with
what MANIFEST and the hint in RAFT promise, by the rules of recovery: ``losses`` are the ranges that
should be there and cannot be read. A torn tail, which opening would cut, is not a loss. Reading
stops with an error when it reaches a loss and never skips it: what is returned is always a gapless
part of the log.

A server refuses a sealed file whose checksum fails. An offline reader wants to see what is left: if
the checksum of the file or of a block fails, entries are read one by one, each by its own checksum,
and the error is raised at the damaged entry, with its number. So the result does not depend on how
many entries were asked for.

In a directory in use, names change: sealing renames files, retention deletes them. If something
seems to be lost, the names are listed again, once, because a rename between two names of one file,
a cut or a drop looks the same. A file that disappears while entries are read is looked up in a new
listing; if it is still missing, ``FileNotFoundError`` passes through. Streams and voids of unsealed
files exist only in the server's memory, so a scan that asks for them ends at ``sealed_index``.
"""

import errno
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np

from onelog.ual.directory import (
    LOCK_NAME,
    NODE_NAME,
    SYSTEM_NAME,
    ShardPaths,
    read_system,
    shard_paths,
)
from onelog.ual.entry import GROUP_SIZE_MAX, Entry
from onelog.ual.errors import (
    CorruptFile,
    DataError,
    DirectoryError,
    IndexDropped,
    IndexInFuture,
    MissingSegment,
    NotADataDirectory,
)
from onelog.ual.files import File, FileLock, Files
from onelog.ual.hard_state import FILE_SIZE, HardStateReport, Hint, inspect_hard_state
from onelog.ual.manifest import Manifest
from onelog.ual.manifest import load as load_manifest
from onelog.ual.recovery import (
    Known,
    combine_known,
    finish_deletions,
    refuse_corruption,
    scan_file,
    sort_names,
    successor_header,
)
from onelog.ual.segments.chain import Segment
from onelog.ual.segments.format import HEADER_SIZE, SegmentHeader, SegmentKind
from onelog.ual.segments.sealed import ENTRIES_CHECKED_SINGLY_MAX, DamagedSegment, SealedSegment
from onelog.ual.segments.tables import Indexes
from onelog.ual.segments.unsealed import UnsealedSegment

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
        self._on_copied = on_copied  # called with the number of bytes read, and the file

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

    def restrict(self, path: Path) -> Sequence[Path]:
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
        """Return the shards to read: the one asked for, or all.

        ``shards`` is the number of shards in SYSTEM; None: use the directories that exist.
        """
        known = self.shards if shards is None else tuple(range(shards))
        if shard is None:
            return known
        if shard not in known:
            there = f"shards 0 to {known[-1]}" if known else "no shards"
            raise DirectoryError(f"shard {shard} is not in {self.path}, which has {there}")
        return (shard,)


def list_root(files: Files, path: Path) -> Root:
    """List a data directory, however damaged; refuse any other directory."""
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


# Offline scan


@dataclass(frozen=True, slots=True)
class Wanted:
    """The filter of a scan."""

    types: Collection[int] | None
    stream_id: int | None
    skip_voids: bool
    is_limited: bool  # the scan may end early, so no more is read ahead than a block


def scan_segment(
    segment: Segment, first_index: int, last_index: int, wanted: Wanted
) -> Iterator[Entry]:
    """Yield the wanted entries of a range that lies within one file."""
    if isinstance(segment, SealedSegment):
        try:
            yield from _scan_sealed(segment, first_index, last_index, wanted)
        finally:
            segment.unmap()
    elif isinstance(segment, DamagedSegment):
        segment.refuse()
    elif wanted.stream_id is None:
        yield from segment.entries(first_index, last_index, types=wanted.types)


def _scan_sealed(
    segment: SealedSegment, first_index: int, last_index: int, wanted: Wanted
) -> Iterator[Entry]:
    """Yield entries up to the first damaged one, however many were asked for."""
    is_long = last_index - first_index >= ENTRIES_CHECKED_SINGLY_MAX
    if is_long and not wanted.is_limited:
        try:
            segment.check_file()
        except CorruptFile:
            pass  # the checksums of the entries show where the damage is
        else:
            yield from _filtered(segment, first_index, last_index, wanted)
            return
    indexes = _indexes_left(segment, first_index, last_index, wanted.stream_id)
    for start in range(0, len(indexes), ENTRIES_CHECKED_SINGLY_MAX):
        block = indexes[start : start + ENTRIES_CHECKED_SINGLY_MAX]
        try:
            found = list(_filtered(segment, int(block[0]), int(block[-1]), wanted))
        except CorruptFile as error:
            yield from _up_to_damage(segment, block, wanted, error)
        else:
            yield from found


def _filtered(
    segment: SealedSegment, first_index: int, last_index: int, wanted: Wanted
) -> Iterator[Entry]:
    return segment.entries(
        first_index,
        last_index,
        types=wanted.types,
        stream_id=wanted.stream_id,
        skip_voids=wanted.skip_voids,
    )


def _indexes_left(
    segment: SealedSegment, first_index: int, last_index: int, stream_id: int | None
) -> Indexes | range:
    """Return the indexes of a range that the file holds, or holds of a stream."""
    if stream_id is not None:
        indexes = segment.stream_records(stream_id)
    elif segment.is_compacted:
        table = segment.footer.indexes
        view = segment.mapped_bytes()  # its tables were compared with their checksums
        indexes = np.frombuffer(view, "<u8", segment.entry_count, table.position)
    else:
        return range(first_index, last_index + 1)
    return indexes[(indexes >= first_index) & (indexes <= last_index)]


def _up_to_damage(
    segment: SealedSegment, indexes: Indexes | range, wanted: Wanted, damage: CorruptFile
) -> Iterator[Entry]:
    """Yield the entries of a block one by one, and raise at the damaged one, with its number."""
    for index in map(int, indexes):
        try:
            entry = segment.read(index)
        except CorruptFile as error:
            rule = f"entry {index} is damaged: {error.rule}"
            raise CorruptFile(error.path, rule, error.offset) from error
        if wanted.types is not None and entry.entry_type not in wanted.types:
            continue
        if not (wanted.skip_voids and segment.is_void(index)):
            yield entry
    raise damage


# Offline log


@dataclass(frozen=True, slots=True, eq=False)
class OfflineFile:
    """One file of segs/; ``segment`` is its content, ``error`` why that is unknown."""

    path: Path
    kind: SegmentKind
    first_index: int  # by its name
    size_bytes: int
    segment: Segment | None = None
    error: DataError | OSError | None = None
    damage: DataError | None = None  # after the end of ``segment``, and not a torn tail
    tail_bytes: int = 0  # after the last whole group of an unsealed file
    is_dropped: bool = False  # no part of the log (any more); opening removes it


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """Entries that should be there and cannot be read, and why."""

    first_index: int
    last_index: int
    error: DataError | OSError


class NotCommitted(IndexInFuture):
    """The index is in the log, above what is known to be committed."""

    def __init__(self, index: int, first_index: int, last_index: int, commit_index: int) -> None:
        super().__init__(index, first_index, commit_index)
        self.args = (
            f"entries {max(commit_index + 1, first_index)} to {last_index} are in the log, but not "
            "known to be committed; --all shows them",
        )


class OfflineLog:
    """The files of one shard, listed and opened for reading."""

    def __init__(self, files: Files, data_dir: Path, shard: int) -> None:
        self.shard = shard
        self.paths: ShardPaths = shard_paths(data_dir, shard)
        self.manifest: Manifest | None = None
        self.hard_state: HardStateReport | None = None
        self.files: tuple[OfflineFile, ...] = ()
        self.foreign: tuple[str, ...] = ()
        self.losses: tuple[Loss, ...] = ()  # in order
        self.errors: list[DataError | OSError] = []  # of MANIFEST and RAFT, if they are there
        self.has_manifest = False
        self.has_hard_state = False
        self.system_error: DataError | OSError | None = None  # set by ``open_offline_log``
        self._reader = ReadOnlyFiles(files)
        self._known = Known(None, 1, 0, 0, None, GROUP_SIZE_MAX)
        self.refresh()

    def refresh(self) -> None:
        """List and open everything again."""
        self._open_all()
        vanished = any(isinstance(file.error, FileNotFoundError) for file in self.files)
        if vanished or self.losses:
            self._open_all()

    # Facts

    @property
    def parts(self) -> list[OfflineFile]:
        """The files that the log consists of, in order."""
        kinds = (SegmentKind.SEALED, SegmentKind.UNSEALED)
        return [file for file in self.files if file.kind in kinds and not file.is_dropped]

    @property
    def hint(self) -> Hint | None:
        """The hint in RAFT, if there is a readable one."""
        return self.hard_state.hint.hint if self.hard_state else None

    @property
    def first_index(self) -> int:
        """The first index that is kept."""
        parts = self.parts
        return parts[0].first_index if parts else self._known.first_index or 1

    @property
    def last_index(self) -> int:
        """The last index in a file that can be read."""
        last = [file.segment.last_index for file in self.parts if file.segment is not None]
        return max(last, default=self.first_index - 1)

    @property
    def sealed_index(self) -> int:
        """The last index in a sealed file that can be read."""
        segments = [file.segment for file in self.parts]
        sealed = [part.last_index for part in segments if isinstance(part, SealedSegment)]
        return max(sealed, default=self.first_index - 1)

    @property
    def commit_index(self) -> int:
        """How far the log is known to be committed; the server may know more."""
        return min(self._recorded_commit_index, self.last_index)

    @property
    def end_index(self) -> int:
        """Where the log ends, or should end: durable entries count even if unreadable."""
        lost = self.losses[-1].last_index if self.losses else 0
        return max(self.last_index, lost)

    @property
    def _recorded_commit_index(self) -> int:
        recorded = [self.sealed_index]
        if self.manifest is not None:
            recorded.append(self.manifest.checkpoint.commit_index)
        if self.hint is not None:
            recorded.append(self.hint.commit_index)
        return max(recorded)

    @property
    def durable_index(self) -> int:
        """How far the log is known to be durable."""
        return self._known.durable_index

    @property
    def generation(self) -> int:
        """How often a suffix was cut."""
        return self._known.generation

    # Entries

    def resolve_range(
        self, first_index: int | None, last_index: int | None, *, past_commit: bool
    ) -> tuple[int, int]:
        """Return the indexes to read: what was asked for, within what there is."""
        end = self.end_index
        if not past_commit:
            end = min(self._recorded_commit_index, end)
        first = self.first_index if first_index is None else first_index
        if first < self.first_index and self.loss_within(first, first) is None:
            raise IndexDropped(first, self.first_index, end)
        if first_index is not None and first > end:
            if first <= self.last_index:
                raise NotCommitted(first, self.first_index, self.last_index, end)
            raise IndexInFuture(first, self.first_index, end)
        return first, end if last_index is None else min(last_index, end)

    def loss_within(self, first_index: int | None, last_index: int | None) -> Loss | None:
        """Return the first loss that touches a range; None as a bound is the log's own."""
        for loss in self.losses:
            begins_before = last_index is None or loss.first_index <= last_index
            if begins_before and (first_index is None or loss.last_index >= first_index):
                return loss
        return None

    def entries(
        self,
        first_index: int,
        last_index: int,
        *,
        types: Collection[int] | None = None,
        stream_id: int | None = None,
        skip_voids: bool = False,
        limit: int | None = None,
    ) -> Iterator[Entry]:
        """Yield the entries of a range in order, verified, holding one file at a time.

        With ``limit``, at most that many; nothing after the last of them is read.
        """
        wanted = Wanted(types, stream_id, skip_voids, limit is not None)
        return islice(self._entries(first_index, last_index, wanted), limit)

    def _entries(self, first_index: int, last_index: int, wanted: Wanted) -> Iterator[Entry]:
        next_index = first_index
        refreshed_at: int | None = None
        while next_index <= last_index:
            try:
                segment = self._segment_with(next_index)
                last = min(segment.last_index, last_index)
                for entry in scan_segment(segment, next_index, last, wanted):
                    next_index = entry.index + 1
                    yield entry
                next_index = last + 1
            except FileNotFoundError:
                # Sealed, replaced or dropped since it was listed; a new listing shows which.
                if refreshed_at == next_index:
                    raise
                refreshed_at = next_index
                self.refresh()

    def _segment_with(self, index: int) -> Segment:
        """Return the segment that holds an index, or raise why it cannot be read."""
        loss = self.loss_within(index, index)
        if loss is not None:
            raise loss.error
        if index < self.first_index:
            raise IndexDropped(index, self.first_index, self.last_index)
        before = [file.segment for file in self.parts if file.first_index <= index]
        segment = before[-1] if before else None
        if segment is None or segment.last_index < index:
            raise MissingSegment(str(self.paths.segments), index, index)
        return segment

    # Opening

    def _open_all(self) -> None:
        self.errors = []
        self._open_small_files()
        self._known = combine_known(self.manifest, self.hint, GROUP_SIZE_MAX)
        directory = self.paths.segments
        names, listing = sort_names(self._reader, directory)
        self.foreign = tuple(listing.foreign)
        dropped = {action.path for action in finish_deletions(directory, names, self._known)}
        found = [
            (first, directory / name, kind)
            for kind, group in names.items()
            for first, name in group.items()
        ]
        found.sort(key=lambda item: item[0])
        unsealed = [
            first
            for first, path, kind in found
            if kind is SegmentKind.UNSEALED and path not in dropped
        ]
        successors = dict(pairwise(unsealed))
        opened: list[OfflineFile] = []
        for first, path, kind in found:
            # A successor without its final name counts if it continues where the last file ends.
            if kind is SegmentKind.SUCCESSOR and path not in dropped:
                if self._is_next(path, opened[-1].segment if opened else None):
                    kind = SegmentKind.UNSEALED
                else:
                    dropped.add(path)
            opened.append(self._open_file(first, path, kind, successors.get(first)))
        self.files = tuple(
            replace(file, is_dropped=file.is_dropped or file.path in dropped) for file in opened
        )
        self.losses = tuple(_find_losses(directory, self.parts, self._known))

    def _is_next(self, path: Path, last: Segment | None) -> bool:
        if not isinstance(last, UnsealedSegment):
            return False
        expected = SegmentHeader(self.shard, 0, last.last_index + 1, last.last_proposal + 1)
        try:
            return successor_header(self._reader, path, expected) is not None
        except OSError:
            return False

    def _open_small_files(self) -> None:
        self.manifest = self.hard_state = None
        self.has_manifest = self._reader.exists(self.paths.manifest)
        self.has_hard_state = self._reader.exists(self.paths.hard_state)
        try:
            self.manifest = load_manifest(self._reader, self.paths.manifest, durable=False)
        except (DataError, OSError) as error:
            self.errors.append(error)
        if not self.has_hard_state:
            return
        try:
            data = self._reader.open_read(self.paths.hard_state).read(FILE_SIZE, 0)
        except OSError as error:
            self.errors.append(error)
            return
        self.hard_state = inspect_hard_state(data)
        states = {slot.state for slot in self.hard_state.slots if slot.state is not None}
        if len({state.sequence for state in states}) < max(len(states), 1):
            # No valid slot, or two that contradict each other.
            rule = "; ".join(self.hard_state.problems)
            self.errors.append(CorruptFile(str(self.paths.hard_state), rule))

    def _open_file(
        self, first_index: int, path: Path, kind: SegmentKind, successor: int | None
    ) -> OfflineFile:
        opened = OfflineFile(path, kind, first_index, 0)
        try:
            opened = replace(opened, size_bytes=self._reader.open_read(path).size())
            if kind is SegmentKind.SEALED:
                segment = SealedSegment.open(self._reader, path)
                _refuse_other_shard(path, segment.header, self.shard)
                return replace(opened, segment=segment)
            if kind is SegmentKind.UNSEALED:
                return self._open_unsealed(opened, successor)
        except (DataError, OSError) as error:
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(path)  # an error of a descriptor does not name the file
            # Without its traceback, which would keep this frame and the file's copy alive.
            return replace(opened, error=error.with_traceback(None))
        return opened

    def _open_unsealed(self, opened: OfflineFile, successor: int | None) -> OfflineFile:
        """Scan a file's whole groups; bytes after them may be a write in progress.

        ``successor`` is the first index of the next unsealed file. The rules are those
        of recovery (ual/recovery.py).
        """
        path, size, known = opened.path, opened.size_bytes, self._known
        file = self._reader.open_read(path)
        try:
            header = SegmentHeader.decode_identity(str(path), file.read(HEADER_SIZE, 0))
        except CorruptFile:
            if size > HEADER_SIZE or successor is not None:
                raise
            # Created by a crash before its header was written.
            return replace(opened, is_dropped=True)
        if header.first_index != opened.first_index:
            raise CorruptFile(str(path), f"the header says first index {header.first_index}", 0)
        _refuse_other_shard(path, header, self.shard)
        segment = UnsealedSegment(path, file, header)
        limits = [] if successor is None else [successor - 1]
        if known.cut_from_index is not None:
            limits.append(known.cut_from_index - 1)
        damage: CorruptFile | None = None
        try:
            stopped_by = scan_file(self._reader, segment, size, min(limits, default=None))
            if stopped_by is not None and successor is None:
                refuse_corruption(self._reader, segment, size, stopped_by, known)
        except CorruptFile as error:
            damage = error.with_traceback(None)
        else:
            if stopped_by is not None and successor is not None:
                rule = f"entries {segment.last_index + 1} to {successor - 1} are damaged"
                damage = CorruptFile(str(path), f"{rule}: {stopped_by}", segment.end)
        tail = max(size - segment.end, 0)
        return replace(opened, segment=segment, damage=damage, tail_bytes=tail)


def _refuse_other_shard(path: Path, header: SegmentHeader, shard: int) -> None:
    if header.shard != shard:
        raise CorruptFile(str(path), f"belongs to shard {header.shard}", 0)


def _find_losses(directory: Path, parts: Sequence[OfflineFile], known: Known) -> Iterator[Loss]:
    """Yield the ranges of the promised log that are missing or unreadable, in order."""
    # The next index that must be there; None after a file whose end is unknown.
    expected = known.first_index
    if parts:
        # Lower than recorded is fine: a drop was recorded and is not carried out yet.
        lowest = parts[0].first_index
        expected = lowest if expected is None else min(lowest, expected)
    behind = [*(part.first_index for part in parts[1:]), known.durable_index + 1]
    for part, next_index in zip(parts, behind, strict=False):
        first = part.first_index
        if expected is not None and first > expected:
            missing = MissingSegment(str(directory), expected, first - 1)
            yield Loss(expected, first - 1, missing)
        elif expected is not None and first < expected:
            rule = f"starts at {first}, but the file before ends at {expected - 1}"
            yield Loss(first, expected - 1, CorruptFile(str(part.path), rule))
        error = part.error or part.damage
        expected = None if part.segment is None else part.segment.last_index + 1
        if error is not None:
            lost = first if expected is None else expected
            yield Loss(lost, max(next_index - 1, lost), error)
            expected = None
    if not parts:
        expected = known.first_index or 1
    if expected is not None and expected <= known.durable_index:
        missing = MissingSegment(str(directory), expected, known.durable_index)
        yield Loss(expected, known.durable_index, missing)


def open_offline_log(files: Files, data_dir: Path, shard: int) -> OfflineLog:
    """Open one shard of a data directory for reading; refuse one that does not exist."""
    reader = ReadOnlyFiles(files)
    root = list_root(reader, data_dir)
    shards: int | None = None
    system_error: DataError | OSError | None = None
    try:
        shards = read_system(reader, data_dir).topology.shards
    except (DataError, OSError) as error:
        # The segments can still be read; the existing directories show which shards there are.
        system_error = error.with_traceback(None)
    root.choose(shard, shards)
    log = OfflineLog(reader, data_dir, shard)
    log.system_error = system_error
    return log
