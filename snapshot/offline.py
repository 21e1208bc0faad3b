"""The state of a data directory without a server: rebuild it, read it as of an index, save it.

* ``rebuild_state`` gives the state at any index that snapshots and log still lead to. It only
  reads, takes no lock, and works beside a running server.
* ``make_snapshot`` opens the shard as a server would, with LOCK, and keeps one more snapshot.

The commit index is the one that the directory records; a running server knows a higher one. An
index above it that is in the log can be asked for: who names it says that it is committed. That
different ways lead to the same state is shown by snapshot/proof.py.

The state only refers to bodies of messages, records and blocks; ``read_entry`` reads them from the
log. The log keeps them for as long as the present state needs them. An older state may need more:
an entry that is gone since then is ``NotKept``, which is an answer and not a failure. Damage is
raised as it is.
"""

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onelog.projections.errors import BadPayload
from onelog.projections.kv.reads import KeyValue
from onelog.projections.result import Refused
from onelog.projections.shard_state import Projections, build_projections
from onelog.routing import find_shard
from onelog.snapshot.format import SnapshotHeader
from onelog.snapshot.loading import Rejected
from onelog.snapshot.notes import CoveredNotes
from onelog.snapshot.past import start_past
from onelog.snapshot.progress import Progress, no_progress
from onelog.snapshot.recovery import recover_state
from onelog.snapshot.state import hash_text, write_state
from onelog.snapshot.store import KEPT_MAX, KeepConfig, SnapshotStore
from onelog.ual.directory import DataDirectory
from onelog.ual.entry import Entry
from onelog.ual.errors import IndexDropped, IndexInFuture, MissingSegment
from onelog.ual.files import Files
from onelog.ual.log_config import LogConfig
from onelog.ual.manifest import SnapshotRecord
from onelog.ual.offline.reader import OfflineLog, ReadOnlyFiles, list_root, open_offline_log
from onelog.ual.recovery import open_hard_state, open_log
from onelog.ual.segments.notes import ApplyNotes

# A log that is opened for one snapshot has no readers.
_RING_BYTES = 1 << 20


class LastRecords:
    """Receives apply's notes when there is no log; keeps the last records of each stream."""

    def __init__(self, count_max: int = 0) -> None:
        self._count_max = count_max
        self._records: dict[int, deque[int]] = {}

    def add_record(self, stream_id: int, index: int) -> None:
        """Keep the record until enough newer ones have arrived."""
        if not self._count_max:
            return
        records = self._records.get(stream_id)
        if records is None:
            records = self._records[stream_id] = deque(maxlen=self._count_max)
        records.append(index)

    def add_void(self, first_index: int, last_index: int) -> None:
        """Ignore it."""

    def add_covered(self, covered: CoveredNotes) -> None:
        """Add the last records that a snapshot has, before any others."""
        for stream_id, records in covered.notes.streams.items():
            for index in records[len(records) - min(self._count_max, len(records)) :].tolist():
                self.add_record(stream_id, index)

    def of(self, stream_id: int) -> tuple[int, ...]:
        """Return the kept indexes of a stream, ascending."""
        return tuple(self._records.get(stream_id, ()))


@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """The state of a shard at ``index``, and how it was reached."""

    shard: int
    index: int
    base_index: int  # of the snapshot that it started from; 0: the beginning of the log
    entry_count: int  # replayed
    state_hash: str | None  # None inside of a batch, where there is no state of its own
    committed_index: int  # that the directory records; ``index`` may be above it
    rejected: tuple[Rejected, ...]
    projections: Projections
    source: OfflineLog  # for what the state only refers to: bodies, records, blocks
    records: LastRecords  # of entries that are in no sealed file

    @property
    def counts(self) -> dict[str, int]:
        """How many things there are, by kind."""
        return self.projections.router.counts()

    @property
    def counts_by_model(self) -> dict[str, dict[str, int]]:
        """The same, by the projection that they belong to."""
        found = self.projections
        models = {
            "system": found.system.counts(),
            "kv": found.kv.counts(),
            "queue": found.queue.counts(),
            "stream": found.stream.counts(),
            "timeseries": found.series.counts(),
        }
        owned = {name for counts in models.values() for name in counts}
        entries = {name: count for name, count in self.counts.items() if name not in owned}
        return {"entries": entries, **models}


@dataclass(frozen=True, slots=True)
class MadeSnapshot:
    """The newest snapshot of a shard; ``is_new`` unless nothing had changed since."""

    shard: int
    record: SnapshotRecord
    is_new: bool
    counts: dict[str, int]
    rejected: tuple[Rejected, ...]


def choose_shards(files: Files, data_dir: Path, shard: int | None) -> tuple[int, ...]:
    """Return the shards to read: the one asked for, which must exist, or all."""
    reader = ReadOnlyFiles(files)
    root = list_root(reader, data_dir)
    directory = DataDirectory.open_existing(reader, data_dir, lock=False)
    return root.choose(shard, directory.system.topology.shards)


def find_key_shard(files: Files, data_dir: Path, key: bytes) -> int:
    """Return the shard that a key lives in."""
    directory = DataDirectory.open_existing(ReadOnlyFiles(files), data_dir, lock=False)
    topology = directory.system.topology
    return find_shard(key, topology.partitions, topology.shards)


def rebuild_state(
    files: Files,
    data_dir: Path,
    shard: int,
    *,
    index: int | None = None,
    records_kept: int = 0,
    progress: Progress = no_progress,
) -> Rebuilt:
    """Rebuild the state right after the entry ``index``, or at the end of what is committed.

    ``records_kept`` is the number of records per stream partition that may be listed later. Starts
    from the newest usable snapshot at or below the index. Raises ``IndexInFuture`` above the
    end of the log, and ``NoSnapshot`` or ``LogGap`` if the state at the index cannot be rebuilt any
    more.
    """
    source = open_shard(files, data_dir, shard)
    snapshots = kept_snapshots(source)
    end = find_committed(source)
    if index is not None and index > source.last_index:
        raise IndexInFuture(index, source.first_index, source.last_index)
    target = end if index is None else index
    usable = [record for record in snapshots if record.index <= target]
    records = LastRecords(records_kept)
    past = start_past(
        ReadOnlyFiles(files),
        source.paths.snapshots,
        shard,
        usable,
        first_index=source.first_index,
        make_state=lambda: build_projections(records),
        on_notes=records.add_covered,
        progress=progress,
    )
    past.advance(source.entries, target, progress)
    router = past.projections.router
    state_hash = None if router.in_batch else hash_text(router)
    return Rebuilt(
        shard,
        target,
        past.base_index,
        past.entry_count,
        state_hash,
        end,
        past.rejected,
        past.projections,
        source,
        records,
    )


def read_key(rebuilt: Rebuilt, namespace: str, key: bytes) -> KeyValue | None:
    """Return what a key was at the index of a rebuilt state; None: it did not exist."""
    found = rebuilt.projections.kv.get(namespace, key)
    # A read of the present is refused for one reason only: there is no such namespace.
    return None if isinstance(found, Refused) else found


def make_snapshot(
    files: Files,
    data_dir: Path,
    shard: int,
    created_s: int,
    *,
    config: LogConfig | None = None,
    progress: Progress = no_progress,
) -> MadeSnapshot | None:
    """Snapshot what is committed, with LOCK held; None for a shard without entries."""
    with DataDirectory.open_existing(files, data_dir, lock=True) as directory:
        paths = directory.shard_path(shard)
        log, _ = open_log(
            files,
            paths,
            open_hard_state(files, paths),
            shard=shard,
            config=config or LogConfig(ring_bytes=_RING_BYTES),
        )
        # What the server's settings keep is not known here: its next snapshot drops the others.
        store = SnapshotStore.open(files, paths, log, KeepConfig(snapshots_min=KEPT_MAX))
        recovered = recover_state(files, shard, log, store, build_projections, progress)
        router = recovered.state.router
        index = router.applied_index
        newest = store.newest
        if index == 0:
            log.close()
            return None
        if newest is None or newest.index < index:
            entry = log.read(index)
            proposal = log.proposals.of_index(index)
            covered_from = log.segments.sealed_index + 1
            written = write_state(
                files,
                paths.snapshots,
                SnapshotHeader(shard, index, entry.term, proposal, entry.timestamp_ns),
                created_s,
                router,
                CoveredNotes(covered_from, log.notes.select(covered_from, index)),
                free_bytes_min=log.config.free_bytes_min,
                progress=progress,
            )
            size, name = written.header.size, written.path.name
            store.install(SnapshotRecord(name, index, entry.term, size, hash_text(router)))
        log.close()
        record = store.newest
        assert record is not None
        return MadeSnapshot(
            shard, record, record != newest, dict(router.counts()), recovered.rejected
        )


def open_shard(files: Files, data_dir: Path, shard: int) -> OfflineLog:
    """Open a shard for reading; a damaged MANIFEST is raised, since the state is then unknown."""
    source = open_offline_log(files, data_dir, shard)
    if source.last_index < source.durable_index:
        # Lost, unless a running server has cut its log since; then MANIFEST says so by now.
        source.refresh()
    if source.errors:
        raise source.errors[0]
    if source.last_index < source.durable_index:
        lost = source.last_index + 1, source.durable_index
        raise MissingSegment(str(source.paths.segments), *lost)
    return source


def find_committed(source: OfflineLog) -> int:
    """Return how far the log is known to be committed: a snapshot has committed entries only."""
    snapshots = kept_snapshots(source)
    end = max(source.commit_index, snapshots[-1].index if snapshots else 0)
    return min(end, source.last_index)


def kept_snapshots(source: OfflineLog) -> tuple[SnapshotRecord, ...]:
    """Return the snapshots that a shard keeps, oldest first."""
    return source.manifest.snapshots if source.manifest is not None else ()


def fresh_projections(_notes: ApplyNotes | None = None) -> Projections:
    """Return empty projections whose notes are discarded."""
    return build_projections(LastRecords())


# Offline entries


class NotKept(Exception):
    """The log does not keep the entry any more."""

    def __init__(self, index: int) -> None:
        super().__init__(f"the log no longer keeps entry {index}")
        self.index = index


def read_entry(source: OfflineLog, index: int) -> Entry:
    """Return one entry; raise ``NotKept`` if it was dropped or compacted away."""
    try:
        for entry in source.entries(index, index):
            return entry
    except IndexDropped as error:
        raise NotKept(index) from error
    raise NotKept(index)  # a compacted file has only some of its entries


def bytes_fields(name: str, data: bytes) -> dict[str, Any]:
    """Return bytes as text if all of it is printable, else as hex under another name."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    return {name: text} if text.isprintable() else {f"{name}_hex": data.hex()}


def unreadable(error: NotKept | BadPayload) -> dict[str, Any]:
    """Return the field that replaces unreadable content."""
    return {"error": str(error)}
