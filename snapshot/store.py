"""The snapshots that a shard keeps: MANIFEST's list and the files in snaps/.

Invariants:

* MANIFEST is the truth. A file that it does not list is not a snapshot, however complete it looks;
  a crash, a kill or a refused build left it, and it is removed when the shard opens.
* A file is durable before MANIFEST lists it, and it is removed only when a durable MANIFEST no
  longer lists it. So after any crash every listed file exists, whole.
* ``KEEP`` snapshots are kept. If the newest turns out damaged, the older one and the log after it
  give the same state: the log is kept from ``keep_from_index`` on. With fewer than two snapshots
  that is index 1, because there is no replacement for the only one.

Used by the thread that owns the log: it writes MANIFEST.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from onelog.snapshot.errors import NotDurable, StateMismatch
from onelog.snapshot.format import parse_snapshot_name
from onelog.ual.directory import ShardPaths
from onelog.ual.files import File, Files, remove_files
from onelog.ual.jobs import ManifestJob
from onelog.ual.log import Log
from onelog.ual.manifest import SnapshotRecord

KEEP = 2


class SnapshotStore:
    """The kept snapshots of one shard, beside its open log."""

    def __init__(self, files: Files, paths: ShardPaths, log: Log) -> None:
        self._files = files
        self._log = log
        self.directory = paths.snapshots

    @classmethod
    def open(cls, files: Files, paths: ShardPaths, log: Log) -> "SnapshotStore":
        """Open the store and remove what crashes left; see ``tidy``."""
        store = cls(files, paths, log)
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
        return self.records[-KEEP].index + 1 if len(self.records) >= KEEP else 1

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
        """Begin to keep a snapshot whose file is durable, and to drop the oldest.

        ``rejected`` ones, which are unusable, are dropped too: one that stayed would count as one
        of the two that are kept, and displace a good one.
        """
        self._log.manifest_file.settle()
        newest = self.newest
        assert newest is None or record.index > newest.index, (record, newest)
        if record.index > self._log.durable_index:
            raise NotDurable(record.index, self._log.durable_index)
        kept = [each for each in self.records if each not in rejected]
        return self._replace_begin((*kept, record)[-KEEP:], added=(self.path(record),))

    def install(self, record: SnapshotRecord) -> None:
        """Keep a snapshot, on this thread."""
        self._finish(self.install_begin(record))

    def accept_begin(
        self, record: SnapshotRecord, live_hash: str, rejected: Collection[SnapshotRecord] = ()
    ) -> ManifestJob | None:
        """Install a snapshot if it holds the state that the server had at that index.

        Otherwise the file is removed and ``StateMismatch`` raised: replay and apply disagree. If a
        newer one is kept by now, the file is removed too, and there is no job to run.
        """
        # First, because a full disk may revert a change of the list that is under way.
        self._log.manifest_file.settle()
        if record.state_hash != live_hash:
            self._remove([record])
            raise StateMismatch(record.index, live_hash, record.state_hash, "the live state")
        if self.newest is not None and record.index <= self.newest.index:
            self.remove_unlisted([record])
            return None
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
        # With a new checkpoint: MANIFEST must record that the entries up to the snapshot are
        # durable, or recovery could take damage below it for a torn tail.
        manifest = replace(self._log.checkpointed(), snapshots=records)
        return self._log.manifest_file.begin(manifest, snapshots=dropped, added=added)

    def _finish(self, job: ManifestJob) -> None:
        job.run()
        self._log.manifest_file.finish(job)

    def _remove(self, records: Iterable[SnapshotRecord]) -> None:
        remove_files(self._files, [self.path(record) for record in records])
