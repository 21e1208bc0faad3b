"""The state of a shard at an index, from files or from a cluster, for views of the state.

If there is a snapshot at exactly that index, its sections are read as they are. Otherwise the
newest snapshot below it is loaded and the log replayed from there, by the code that recovery uses;
the resulting state is written as sections again, so that one decoder serves both cases. A snapshot
of a cluster is first downloaded into a temporary directory.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from onelog.errors import FailedPrecondition, NotFound, OutOfRange
from onelog.snapshot.errors import CorruptSnapshot, LogGap, NoSnapshot
from onelog.snapshot.loading import open_recorded
from onelog.snapshot.offline import fresh_projections, open_shard
from onelog.snapshot.past import Entries, PastState, start_past
from onelog.snapshot.reader import SnapshotReader
from onelog.snapshot.state import Router
from onelog.spark.directory import DirectoryOrigin
from onelog.spark.endpoint import EndpointOrigin
from onelog.spark.faults import REASON_DROPPED, reported
from onelog.spark.origin import Origin, Split
from onelog.spark.shard_files import ShardFiles
from onelog.ual.entry import Entry
from onelog.ual.files import DiskFiles, Files
from onelog.ual.manifest import SnapshotRecord
from onelog.ual.offline.reader import ReadOnlyFiles
from onelog.ual.segments.tables import Columns

# Another leader may keep other snapshots: how often to ask again if the leader changes meanwhile.
SNAPSHOT_ATTEMPTS_MAX = 5


class Past(Protocol):
    """The state of a shard at one index."""

    @property
    def log_time_ns(self) -> int:
        """The log time of the entry at the index."""
        ...

    def chunks(self, owner: int) -> Iterable[bytes]:
        """Return the section that a snapshot at the index would have for an owner."""
        ...


@dataclass(frozen=True)
class _Saved:
    """A snapshot at exactly the index."""

    reader: SnapshotReader

    @property
    def log_time_ns(self) -> int:
        """See ``Past``."""
        return self.reader.header.timestamp_ns

    def chunks(self, owner: int) -> Iterable[bytes]:
        """See ``Past``."""
        return self.reader.chunks(owner)


@dataclass(frozen=True)
class Replayed:
    """A state that was replayed up to the index."""

    state: PastState

    @property
    def router(self) -> Router:
        """The router with the replayed state."""
        return self.state.projections.router

    @property
    def log_time_ns(self) -> int:
        """See ``Past``."""
        return self.state.projections.router.log_time_ns

    def chunks(self, owner: int) -> Iterable[bytes]:
        """See ``Past``."""
        return self.router.dump()[owner]


@contextmanager
def open_past(origin: Origin, shard: int, index: int) -> Iterator[Past]:
    """Open the state of a shard right behind an index; it must be at or below the cut."""
    with reported(), _open_source(origin, shard, index) as source:
        yield _read_saved(source, shard, index) or _replay(source, shard, index)


@contextmanager
def open_replayed(origin: Origin, shard: int, index: int) -> Iterator[PastState]:
    """Open the state as projections, whether or not there is a snapshot at the index."""
    with reported(), _open_source(origin, shard, index) as source:
        yield _replay(source, shard, index).state


@contextmanager
def open_start(origin: Origin, shard: int, index: int) -> Iterator[tuple[PastState, Entries]]:
    """Open the state at an index (0: the empty one), and the log to replay forward from it.

    Inside a transaction there is no state: then it is the state before the transaction.
    """
    with reported(), _open_source(origin, shard, index) as source, _lost(shard, index):
        past = _start(source, shard, index)
        if past.projections.router.in_batch:
            past = _start(source, shard, past.projections.router.batch_index - 1)
        yield past, source.entries


@dataclass(frozen=True, slots=True)
class KeptState:
    """A state that replay can start from: a snapshot, or (0, 0) if the log has entry 1."""

    index: int
    timestamp_ns: int


def find_starts(origin: Origin, shard: int) -> list[KeptState]:
    """Return the states of a shard that replay can start from, oldest first."""
    if isinstance(origin, EndpointOrigin):
        with origin.connect() as client:
            described = client.log.describe(shard)
        first_index = described.first_index
        # A snapshot without a time has an unreadable file.
        kept = [KeptState(each.index, each.timestamp_ns) for each in described.snapshots]
        kept = [each for each in kept if each.timestamp_ns]
    elif isinstance(origin, DirectoryOrigin):
        with reported():
            files = origin.find_files(shard)
            listing = files.list()
            first_index = listing.first_index
            kept = list(_read_headers(files, listing.snapshots))
    else:
        raise _no_state(origin)
    if first_index == 1:
        kept.insert(0, KeptState(0, 0))
    return [each for each in kept if each.index >= first_index - 1]


def _read_headers(files: ShardFiles, records: Sequence[SnapshotRecord]) -> Iterator[KeptState]:
    for record in records:
        try:
            path = files.paths.snapshots / record.file
            header = open_recorded(files.reader, path, files.shard, record).header
        except (CorruptSnapshot, FileNotFoundError):
            continue
        yield KeptState(record.index, header.timestamp_ns)


class _Source(Protocol):
    """Snapshots of a shard in a directory, and its log."""

    files: Files
    directory: Path
    snapshots: Sequence[SnapshotRecord]  # at or below the index, oldest first
    first_index: int

    def entries(self, first_index: int, last_index: int) -> Iterable[Entry]:
        """Return committed entries, refused ones included."""
        ...


def _read_saved(source: _Source, shard: int, index: int) -> Past | None:
    """Return the snapshot at exactly this index; None if there is none, or it is damaged."""
    for record in source.snapshots:
        if record.index != index:
            continue
        try:
            path = source.directory / record.file
            reader = open_recorded(source.files, path, shard, record)
            reader.verify()  # before any row of it is returned
        except (CorruptSnapshot, FileNotFoundError):
            return None  # an older snapshot and the log give the same state
        return _Saved(reader)
    return None


def _start(source: _Source, shard: int, index: int) -> PastState:
    past = start_past(
        source.files,
        source.directory,
        shard,
        source.snapshots,
        first_index=source.first_index,
        make_state=fresh_projections,
    )
    past.advance(source.entries, index)
    return past


@contextmanager
def _lost(shard: int, index: int) -> Iterator[None]:
    """Raise an error of the API if the state can no longer be built."""
    try:
        yield
    except (NoSnapshot, LogGap) as error:
        raise OutOfRange(
            f"the state of shard {shard} at {index} can no longer be built: {error}",
            reason=REASON_DROPPED,
            metadata={"shard": str(shard), "index": str(index)},
        ) from error


def _replay(source: _Source, shard: int, index: int) -> Replayed:
    with _lost(shard, index):
        past = _start(source, shard, index)
    if past.projections.router.in_batch:
        raise OutOfRange(
            f"index {index} of shard {shard} is inside a transaction, where there is no state; "
            "ask for the index of its last entry, or for one before it",
            reason="AS_OF_INSIDE_TRANSACTION",
            metadata={"shard": str(shard), "index": str(index)},
        )
    return Replayed(past)


@contextmanager
def _open_source(origin: Origin, shard: int, index: int) -> Iterator[_Source]:
    if isinstance(origin, DirectoryOrigin):
        yield _Directory(origin, shard, index)
    elif isinstance(origin, EndpointOrigin):
        with tempfile.TemporaryDirectory(prefix="onelog-spark-") as folder:
            yield _Cluster(origin, shard, index, Path(folder))
    else:
        raise _no_state(origin)


def _no_state(origin: Origin) -> FailedPrecondition:
    return FailedPrecondition(
        f"{origin.name} has no state: read it from a data directory or an endpoint",
        reason="STATE_MISSING",
    )


class _Directory:
    """The files of a data directory."""

    def __init__(self, origin: DirectoryOrigin, shard: int, index: int) -> None:
        self._log = open_shard(DiskFiles(), origin.find_shard(shard).root.parent, shard)
        self.files: Files = ReadOnlyFiles(DiskFiles())
        self.directory = self._log.paths.snapshots
        manifest = self._log.manifest
        kept = () if manifest is None else manifest.snapshots
        self.snapshots: Sequence[SnapshotRecord] = [each for each in kept if each.index <= index]
        self.first_index = self._log.first_index

    def entries(self, first_index: int, last_index: int) -> Iterable[Entry]:
        """See ``_Source``."""
        return self._log.entries(first_index, last_index)


class _Cluster:
    """What a cluster sends: one snapshot, and the log behind it."""

    def __init__(self, origin: EndpointOrigin, shard: int, index: int, folder: Path) -> None:
        self._origin = origin
        self._shard = shard
        self.files: Files = DiskFiles()
        self.directory = folder
        self.snapshots: Sequence[SnapshotRecord] = []
        self.first_index = 1
        for attempt in range(SNAPSHOT_ATTEMPTS_MAX):
            try:
                self._fetch(index)
            except (NotFound, FailedPrecondition) as error:
                lost = ("SNAPSHOT_UNKNOWN", "SNAPSHOT_INTERRUPTED")
                if error.reason not in lost or attempt + 1 == SNAPSHOT_ATTEMPTS_MAX:
                    raise
            else:
                return

    def entries(self, first_index: int, last_index: int) -> Iterable[Entry]:
        """See ``_Source``."""
        if first_index > last_index:
            return
        split = Split(self._shard, first_index, last_index, 0)
        for piece in self._origin.pieces(split):
            view = memoryview(piece.data)
            yield from Columns.of_headers(view, piece.headers, piece.offsets).entries()

    def _fetch(self, index: int) -> None:
        """Download the newest snapshot at or below the index."""
        with self._origin.connect() as client:
            described = client.log.describe(self._shard)
            self.first_index = described.first_index
            usable = [each for each in described.snapshots if each.index <= index]
            if not usable:
                return
            kept = usable[-1]
            name = f"{kept.index:010d}-0.fsnap"
            with (self.directory / name).open("wb") as file:
                for data in client.log.snapshot(self._shard, kept.index):
                    file.write(data)
        state_hash = f"{kept.state_hash:016x}"
        self.snapshots = [SnapshotRecord(name, kept.index, kept.term, kept.size, state_hash)]
