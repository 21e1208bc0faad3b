"""The snapshots that a shard keeps: MANIFEST's list and the files in snaps/.

Invariants:

* MANIFEST is the truth. A file that it does not list is no snapshot, however complete it looks; it
  is what a crash, a kill or a refused build left, and is removed when the shard opens.
* A file is durable before MANIFEST lists it, and MANIFEST has let go of it durably before it is
  removed. So after any crash every listed file is there, whole.
* ``KEEP`` snapshots are kept. If the newest turns out damaged, the older one and the log behind it
  give the same state: the log is kept from ``keep_from_index`` on. With fewer than two snapshots
  that is index 1, because nothing would stand in for the only one.

Used by the thread that owns the log: it writes MANIFEST.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from snapshot.errors import NotDurable, StateMismatch
from snapshot.format import parse_snapshot_name
from ual.directory import ShardPaths
from ual.files import Files
from ual.log import Log
from ual.manifest import SnapshotRecord

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
        """The kept snapshots, oldest first."""
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
        # Also without any: a killed process may have removed or renamed and not come to sync.
        self._files.sync_directory(self.directory)
        return leftovers

    def install(self, record: SnapshotRecord) -> None:
        """Keep a snapshot whose file is durable in the directory, and let go of the oldest."""
        newest = self.newest
        assert newest is None or record.index > newest.index, (record, newest)
        if record.index > self._log.durable_index:
            raise NotDurable(record.index, self._log.durable_index)
        # What was durable when the snapshot was made must be known to have been: then recovery
        # cannot take damage below the snapshot for a torn tail.
        self._log.checkpoint()
        self._replace((*self.records, record)[-KEEP:])

    def accept(self, record: SnapshotRecord, live_hash: str) -> bool:
        """Install a snapshot if it holds the state that the server had at that index.

        Otherwise the file is removed and ``StateMismatch`` raised: replay and apply disagree. One
        that is not newer than what is kept by now is removed too, and the answer is False.
        """
        if record.state_hash != live_hash:
            self._remove([record.file])
            raise StateMismatch(record.index, live_hash, record.state_hash, "the live state")
        if self.newest is not None and record.index <= self.newest.index:
            if record.file not in {kept.file for kept in self.records}:
                self._remove([record.file])
            return False
        self.install(record)
        return True

    def forget(self, records: Iterable[SnapshotRecord]) -> None:
        """Let go of snapshots that turned out to be unusable, so that they do not count as kept."""
        gone = set(records)
        if gone:
            self._replace(tuple(record for record in self.records if record not in gone))

    def remove_unlisted(self, records: Iterable[SnapshotRecord]) -> None:
        """Remove the files of snapshots that MANIFEST has let go of."""
        listed = {record.file for record in self.records}
        self._remove(record.file for record in records if record.file not in listed)

    def path(self, record: SnapshotRecord) -> Path:
        """Return where a snapshot's file is."""
        return self.directory / record.file

    def _replace(self, records: tuple[SnapshotRecord, ...]) -> None:
        dropped = [record.file for record in self.records if record not in records]
        self._log.save_manifest(replace(self._log.manifest, snapshots=records))
        self._remove(dropped)

    def _remove(self, names: Iterable[str]) -> None:
        present = [name for name in names if self._files.exists(self.directory / name)]
        for name in present:
            self._files.remove(self.directory / name)
        if present:
            self._files.sync_directory(self.directory)
