"""The snapshots that a shard keeps: MANIFEST's list and the files in snaps/.

Invariants:

* MANIFEST is the truth. A file that it does not list is not a snapshot, however complete it looks;
  a crash, a kill or a refused build left it, and it is removed when the shard opens.
* A file is durable before MANIFEST lists it, and it is removed only when a durable MANIFEST no
  longer lists it. So after any crash every listed file exists, whole.
* At least ``KEPT_MIN`` snapshots are kept. If the newest turns out damaged, the older one and the
  log after it give the same state: the log is kept from ``keep_from_index`` on. With fewer than two
  snapshots that is index 1, because there is no replacement for the only one.
* ``KeepConfig`` may ask for more, so that reads as of an index reach further back. Then the state
  at every entry whose log time is less than ``past_s_min`` before that of the newest snapshot can
  be built. While the disk is short of space, only what the other rules need is kept.

Used by the thread that owns the log: it writes MANIFEST.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onelog.snapshot.errors import NotDurable, StateMismatch
from onelog.snapshot.format import HEADER_SIZE, SnapshotHeader, parse_snapshot_name
from onelog.ual.directory import ShardPaths
from onelog.ual.errors import DataError
from onelog.ual.files import File, Files, remove_files
from onelog.ual.jobs import ManifestJob
from onelog.ual.log import Log
from onelog.ual.manifest import SnapshotRecord

KEPT_MIN = 2
# The most that a setting may ask for; MANIFEST has room for more.
KEPT_MAX = 100
PAST_S_MAX = 366 * 86_400
# Of the snapshots within the past that is kept, all but this many at most are dropped again.
PAST_PARTS = 8
# What the disk should have above ``log.free_bytes_min``: with less, the past gives way.
RESERVE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class KeepConfig:
    """Which snapshots are kept beside the newest two."""

    # The newest ones, whatever their age.
    snapshots_min: int = KEPT_MIN
    # How far reads as of an index reach back, by log time, whatever the number of snapshots.
    past_s_min: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what could not be kept, or would be unsafe."""
        if not (KEPT_MIN <= self.snapshots_min <= KEPT_MAX and 0 <= self.past_s_min <= PAST_S_MAX):
            raise ValueError(
                f"{KEPT_MIN} to {KEPT_MAX} snapshots and 0 to {PAST_S_MAX} s of the past are kept"
            )

    @property
    def past_ns(self) -> int:
        """The age in nanoseconds."""
        return int(self.past_s_min * 1e9)


_KEEP_LEAST = KeepConfig()


def choose_kept(times_ns: Sequence[int], config: KeepConfig) -> list[int]:
    """Return the positions of the snapshots to keep, by the log times of all, oldest first.

    Kept are the newest ones; the newest that is old enough, from which everything younger can be
    built; and of those between, as many as divide the past into ``PAST_PARTS``, so that one of them
    is there when its turn comes.
    """
    newest = len(times_ns) - 1
    first_kept = newest + 1 - config.snapshots_min
    old_ns = times_ns[newest] - config.past_ns
    start = max((at for at, time_ns in enumerate(times_ns) if time_ns <= old_ns), default=0)
    kept: list[int] = []
    next_ns = times_ns[start]
    for at in range(min(start, max(first_kept, 0)), newest + 1):
        is_part = at >= start and times_ns[at] >= next_ns
        if is_part:
            next_ns = times_ns[at] + config.past_ns // PAST_PARTS
        if is_part or at >= first_kept:
            kept.append(at)
    return kept


class SnapshotStore:
    """The kept snapshots of one shard, beside its open log."""

    def __init__(
        self, files: Files, paths: ShardPaths, log: Log, keep: KeepConfig | None = None
    ) -> None:
        self._files = files
        self._log = log
        self._keep = keep or KeepConfig()
        self._times_ns: dict[str, int] = {}  # by file, as far as they were asked for
        # By file: the first entry that the state refers to, or any up to the newest one.
        self._needed_from: dict[str, int] = {}
        self.directory = paths.snapshots

    @classmethod
    def open(
        cls, files: Files, paths: ShardPaths, log: Log, keep: KeepConfig | None = None
    ) -> "SnapshotStore":
        """Open the store and remove what crashes left; see ``tidy``."""
        store = cls(files, paths, log, keep)
        store.tidy()
        return store

    @property
    def records(self) -> tuple[SnapshotRecord, ...]:
        """The kept snapshots, oldest first, as MANIFEST lists them or is about to."""
        return self._log.manifest.snapshots

    @property
    def newest(self) -> SnapshotRecord | None:
        """The newest kept snapshot."""
        return self.records[-1] if self.records else None

    @property
    def keep_from_index(self) -> int:
        """The first index that the log must keep; retention and Raft's start stay at or below."""
        records = self.records
        if len(records) < KEPT_MIN:
            return 1
        if self.gives_way:
            return records[-KEPT_MIN].index + 1
        if self._keep.past_ns and self._log.first_index == 1:
            # The past begins with the log itself until a snapshot is old enough to take its place.
            times_ns = self._find_times_ns((records[0], records[-1]))
            if times_ns[0] > times_ns[1] - self._keep.past_ns:
                return 1
        keep_from = records[0].index + 1
        if self._keep.past_ns:
            # Bodies, records and blocks that are in the log only: states of the past refer to those
            # that their first one referred to, and to later ones. After a restart it is not known.
            keep_from = min(keep_from, self.needed_from(records[0]))
        return keep_from

    def needed_from(self, record: SnapshotRecord) -> int:
        """Return the first entry that a kept state may refer to."""
        return self._needed_from.get(record.file, self._log.first_index)

    @property
    def gives_way(self) -> bool:
        """Whether the disk is so short of space that the past is not kept."""
        keeps_more = self._keep != _KEEP_LEAST
        return keeps_more and self._log.spare_bytes() < RESERVE_BYTES

    def log_time_ns(self, record: SnapshotRecord) -> int:
        """Return the log time of a snapshot's state; 0 if its file cannot be read."""
        time_ns = self._times_ns.get(record.file)
        if time_ns is None:
            try:
                head = self.open_file(record).read(HEADER_SIZE, 0)
                time_ns = SnapshotHeader.decode(record.file, head).timestamp_ns
            except (OSError, DataError):
                return 0
            self._times_ns[record.file] = time_ns
        return time_ns

    def tidy(self) -> list[str]:
        """Remove temporary and unlisted files; return their names.

        With nothing listed and the beginning of the log gone, MANIFEST itself was lost: then whole
        snapshots are left for a person to decide about.
        """
        listed = {record.file for record in self.records}
        is_recoverable = bool(listed) or self._log.first_index == 1
        leftovers = []
        for name in self._files.list(self.directory):
            parsed = parse_snapshot_name(name)
            if parsed is None or name in listed:
                continue
            if parsed.is_temporary or is_recoverable:
                leftovers.append(name)
        for name in leftovers:
            self._files.remove(self.directory / name)
        # Also if there are none: a killed process may have removed or renamed without a sync.
        self._files.sync_directory(self.directory)
        return leftovers

    def install_begin(
        self, record: SnapshotRecord, rejected: Collection[SnapshotRecord] = ()
    ) -> ManifestJob:
        """Begin to keep a snapshot whose file is durable, and to drop those it takes the place of.

        ``rejected`` ones, which are unusable, are dropped too: one that stayed would count as one
        of the two that are kept, and displace a good one.
        """
        self._log.manifest_file.settle()
        newest = self.newest
        assert newest is None or record.index > newest.index, (record, newest)
        if record.index > self._log.durable_index:
            raise NotDurable(record.index, self._log.durable_index)
        kept = [*(each for each in self.records if each not in rejected), record]
        return self._replace_begin(self._to_keep(kept), added=(self.path(record),))

    def give_way_begin(self) -> ManifestJob | None:
        """Begin to drop what is kept for the past only, if the disk is short of space."""
        self._log.manifest_file.settle()
        if not self.gives_way or len(self.records) <= KEPT_MIN:
            return None
        return self._replace_begin(self._to_keep(self.records))

    def _to_keep(self, records: Sequence[SnapshotRecord]) -> tuple[SnapshotRecord, ...]:
        """Return which of these snapshots to keep; they ascend, the last one is new."""
        keep = _KEEP_LEAST if self.gives_way else self._keep
        if not keep.past_ns:
            return tuple(records[-keep.snapshots_min :])
        chosen = choose_kept(self._find_times_ns(records), keep)
        return tuple(records[at] for at in chosen)

    def _find_times_ns(self, records: Sequence[SnapshotRecord]) -> list[int]:
        """Return the log times; that of the newest for one that cannot be read."""
        newest_ns = self.log_time_ns(records[-1])
        return [self.log_time_ns(each) or newest_ns for each in records]

    def install(self, record: SnapshotRecord) -> None:
        """Keep a snapshot, on this thread."""
        self._finish(self.install_begin(record))

    def accept_begin(
        self,
        record: SnapshotRecord,
        live_hash: str,
        rejected: Collection[SnapshotRecord] = (),
        needed_from: int | None = None,
    ) -> ManifestJob | None:
        """Install a snapshot if it holds the state that the server had at that index.

        Otherwise the file is removed and ``StateMismatch`` raised: replay and apply disagree. If a
        newer one is kept by now, the file is removed too, and there is no job to run.

        ``needed_from`` is the first entry of the log that the state refers to, if that is known.
        """
        # First, because a full disk may revert a change of the list that is under way.
        self._log.manifest_file.settle()
        if record.state_hash != live_hash:
            self._remove([record])
            raise StateMismatch(record.index, live_hash, record.state_hash, "the live state")
        if self.newest is not None and record.index <= self.newest.index:
            self.remove_unlisted([record])
            return None
        if needed_from is not None:
            self._needed_from[record.file] = needed_from
        return self.install_begin(record, rejected)

    def forget(self, records: Collection[SnapshotRecord]) -> None:
        """Drop snapshots that turned out to be unusable, so that they do not count as kept."""
        if records:
            self._log.manifest_file.settle()
            kept = (record for record in self.records if record not in records)
            self._finish(self._replace_begin(tuple(kept)))

    def remove_unlisted(self, records: Iterable[SnapshotRecord]) -> None:
        """Remove the files of those snapshots that MANIFEST no longer lists."""
        listed = {record.file for record in self.records}
        self._remove([record for record in records if record.file not in listed])

    def path(self, record: SnapshotRecord) -> Path:
        """Return where a snapshot's file is."""
        return self.directory / record.file

    def open_file(self, record: SnapshotRecord) -> File:
        """Open a snapshot's file for reading, on any thread.

        An open file stays readable when the snapshot is removed: only the name goes, and the file
        is freed with its last reader.
        """
        return self._files.open_read(self.path(record))

    def _replace_begin(
        self, records: tuple[SnapshotRecord, ...], added: tuple[Path, ...] = ()
    ) -> ManifestJob:
        dropped = tuple(self.path(record) for record in self.records if record not in records)
        files = {record.file for record in records}
        self._times_ns = {file: at for file, at in self._times_ns.items() if file in files}
        self._needed_from = {file: at for file, at in self._needed_from.items() if file in files}
        # With a new checkpoint: MANIFEST must record that the entries up to the snapshot are
        # durable, or recovery could take damage below it for a torn tail.
        manifest = replace(self._log.checkpointed(), snapshots=records)
        return self._log.manifest_file.begin(manifest, snapshots=dropped, added=added)

    def _finish(self, job: ManifestJob) -> None:
        job.run()
        self._log.manifest_file.finish(job)

    def _remove(self, records: Iterable[SnapshotRecord]) -> None:
        remove_files(self._files, [self.path(record) for record in records])
