"""One shard's log as a reader outside of the server sees it: read-only, without LOCK.

It opens what can be opened and keeps the error of what cannot, so that damage in one file does not
hide the others. Reading stops with that error when it comes to such a file, and never passes over a
hole: what is returned is always a gapless piece of the log, as far as it goes.

The directory may be in use. The names are listed again, once, if a listed file has gone or the
files do not touch, which a rename between two names of one file can look like. While entries are
read, sealing and retention go on; a file that went away is looked for in a new listing.

Streams and voids of unsealed files exist only in the server's memory. So a scan that asks for them
knows them up to ``sealed_index``.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ual.directory import DataDirectory, ShardPaths, shard_paths
from ual.entry import GROUP_SIZE_MAX, Entry
from ual.errors import (
    CorruptFile,
    DataError,
    IndexDropped,
    IndexInFuture,
    MissingSegment,
)
from ual.files import Files
from ual.hard_state import FILE_SIZE, HardStateReport, Hint, inspect_hard_state
from ual.manifest import Manifest
from ual.manifest import load as load_manifest
from ual.offline import ReadOnlyFiles, look_at_root
from ual.opening import what_is_known
from ual.recovery import Known, finish_deletions, scan_file, sort_names
from ual.sealed import SealedSegment
from ual.segment_format import HEADER_SIZE, SegmentHeader, SegmentKind
from ual.segment_set import Segment
from ual.unsealed import UnsealedSegment


@dataclass(frozen=True, slots=True, eq=False)
class OfflineFile:
    """One file of segs/; ``segment`` is what it holds, ``error`` why that cannot be told."""

    path: Path
    kind: SegmentKind
    first_index: int  # by its name
    size_bytes: int
    segment: Segment | None = None
    error: DataError | OSError | None = None
    tail_bytes: int = 0  # behind the last whole group of an unsealed file
    is_dropped: bool = False  # no part of the log any more; opening removes it


class OfflineLog:
    """The files of one shard, listed and opened for reading."""

    def __init__(self, files: Files, data_dir: Path, shard: int) -> None:
        self.shard = shard
        self.paths: ShardPaths = shard_paths(data_dir, shard)
        self.manifest: Manifest | None = None
        self.hard_state: HardStateReport | None = None
        self.files: tuple[OfflineFile, ...] = ()
        self.foreign: tuple[str, ...] = ()
        self.errors: list[DataError | OSError] = []  # of MANIFEST and RAFT
        self._reader = ReadOnlyFiles(files)
        self._known = Known(None, 1, 0, 0, None, GROUP_SIZE_MAX)
        self.refresh()

    def refresh(self) -> None:
        """List and open everything again."""
        self._open_all()
        vanished = any(isinstance(file.error, FileNotFoundError) for file in self.files)
        if vanished or not self._is_touching():
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
        recorded = [self.sealed_index]
        if self.manifest is not None:
            recorded.append(self.manifest.checkpoint.commit_index)
        if self.hint is not None:
            recorded.append(self.hint.commit_index)
        return min(max(recorded), self.last_index)

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
        end = self.last_index if past_commit else self.commit_index
        first = self.first_index if first_index is None else first_index
        if first < self.first_index:
            raise IndexDropped(first, self.first_index, end)
        if first_index is not None and first > end:
            raise IndexInFuture(first, self.first_index, end)
        return first, end if last_index is None else min(last_index, end)

    def entries(
        self,
        first_index: int,
        last_index: int,
        *,
        types: Collection[int] | None = None,
        stream_id: int | None = None,
        skip_voids: bool = False,
    ) -> Iterator[Entry]:
        """Yield the entries of a range in order, verified, holding one file at a time."""
        next_index = first_index
        refreshed_at: int | None = None
        while next_index <= last_index:
            file = self._file_with(next_index)
            try:
                if file.error is not None:
                    raise file.error
                assert file.segment is not None, file.path
                last = min(file.segment.last_index, last_index)
                for entry in _scan_segment(
                    file.segment, next_index, last, types, stream_id, skip_voids=skip_voids
                ):
                    next_index = entry.index + 1
                    yield entry
                next_index = last + 1
            except FileNotFoundError:
                # Sealed, replaced or dropped since it was listed; the names of now say which.
                if refreshed_at == next_index:
                    raise
                refreshed_at = next_index
                self.refresh()

    def _file_with(self, index: int) -> OfflineFile:
        """Return the file that holds an index, or would if it could be read."""
        if index < self.first_index:
            raise IndexDropped(index, self.first_index, self.last_index)
        before = [file for file in self.parts if file.first_index <= index]
        for file in reversed(before):
            if file.segment is None or file.segment.last_index >= index:
                return file
        after = [file.first_index for file in self.parts if file.first_index > index]
        missing_last = min(after, default=index + 1) - 1
        raise MissingSegment(str(self.paths.segments), index, missing_last)

    # Opening

    def _open_all(self) -> None:
        self.errors = []
        self._open_small_files()
        self._known = what_is_known(self.manifest, self.hint, GROUP_SIZE_MAX)
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
        self.files = tuple(
            self._open_file(first, path, kind, is_dropped=path in dropped)
            for first, path, kind in found
        )

    def _open_small_files(self) -> None:
        self.manifest = self.hard_state = None
        try:
            self.manifest = load_manifest(self._reader, self.paths.manifest, durable=False)
        except (DataError, OSError) as error:
            self.errors.append(error)
        if not self._reader.exists(self.paths.hard_state):
            return
        try:
            data = self._reader.open_read(self.paths.hard_state).read(FILE_SIZE, 0)
        except OSError as error:
            self.errors.append(error)
            return
        self.hard_state = inspect_hard_state(data)
        if all(slot.state is None for slot in self.hard_state.slots):
            rule = "; ".join(self.hard_state.problems)
            self.errors.append(CorruptFile(str(self.paths.hard_state), rule))

    def _open_file(
        self, first_index: int, path: Path, kind: SegmentKind, *, is_dropped: bool
    ) -> OfflineFile:
        size = tail = 0
        segment: Segment | None = None
        error: DataError | OSError | None = None
        try:
            size = self._reader.open_read(path).size()
            if kind is SegmentKind.SEALED:
                segment = SealedSegment.open(self._reader, path)
            elif kind is SegmentKind.UNSEALED:
                segment = self._open_unsealed(path)
                tail = max(size - segment.end, 0)
        except (DataError, OSError) as raised:
            # Without its traceback, which would keep this frame and the file's copy alive.
            error = raised.with_traceback(None)
        return OfflineFile(path, kind, first_index, size, segment, error, tail, is_dropped)

    def _open_unsealed(self, path: Path) -> UnsealedSegment:
        """Scan a file's whole groups; what stands behind them may be a write in progress."""
        file = self._reader.open_read(path)
        header = SegmentHeader.decode_identity(str(path), file.read(HEADER_SIZE, 0))
        segment = UnsealedSegment(path, file, header)
        cut_from = self._known.cut_from_index
        scan_file(self._reader, segment, file.size(), None if cut_from is None else cut_from - 1)
        return segment

    def _is_touching(self) -> bool:
        return all(
            before.segment is None or before.segment.last_index + 1 == after.first_index
            for before, after in pairwise(self.parts)
        )


def _scan_segment(
    segment: Segment,
    first_index: int,
    last_index: int,
    types: Collection[int] | None,
    stream_id: int | None,
    *,
    skip_voids: bool,
) -> Iterator[Entry]:
    if isinstance(segment, SealedSegment):
        try:
            yield from segment.entries(
                first_index, last_index, types=types, stream_id=stream_id, skip_voids=skip_voids
            )
        finally:
            segment.unmap()
    elif stream_id is None:
        yield from segment.entries(first_index, last_index, types=types)


def open_offline_log(files: Files, data_dir: Path, shard: int) -> OfflineLog:
    """Open one shard of a data directory for reading; refuse one that is not there."""
    reader = ReadOnlyFiles(files)
    root = look_at_root(reader, data_dir)
    shards: int | None = None
    # With SYSTEM or NODE damaged, the segments can still be read; the directories say which.
    with suppress(DataError, OSError):
        shards = DataDirectory.open_existing(reader, data_dir, lock=False).system.topology.shards
    root.choose(shard, shards)
    return OfflineLog(reader, data_dir, shard)
