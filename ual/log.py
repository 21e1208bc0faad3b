"""The Unified Append Log of one shard: append groups, make them durable, read entries.

Positions, always in this order::

    first_index <= sealed <= applied_index <= commit_index         (readers stop at commit_index)
                                      durable_index <= last_index

Invariants:

* Indexes are dense from ``first_index`` to ``last_index``; a group is in one file.
* ``durable_index`` is covered by an fdatasync that began after its bytes were written, with no cut
  in between. No entry is reported as safe before that.
* At most ``unsynced_bytes_max`` bytes are written and not synced: recovery depends on it.
* Only applied, hence committed, entries are sealed; only uncommitted ones are ever cut.
* At most one change of MANIFEST is under way.

Threads. Appending and syncing are separate, so that many groups share one fdatasync: ``sync_begin``
notes what a sync will cover, its ``run`` blocks and belongs on another thread, ``sync_finish``
takes the result. The change to the next file is part of such a sync: appends continue in the new
file, which gets its name when everything before it is durable (``Roll``). Sealing is split in the
same way, and so is a change of MANIFEST for a snapshot or a trim (``ManifestFile``), which takes
several syncs. Every other call that changes the log comes from one thread; ``read``, ``scan`` and
``seek_time`` may come from any.

Raft counts proposals, the log counts entries; a proposal is one group. ``Proposals`` is the log by
proposal number. It reads past the commit index, so only the thread that changes the log uses it.

Failure: a full disk, or a process without descriptors, refuses the write that met it, and
everything before it stays (``DiskFull``). ``WriteGuard.refusal`` says so until a write succeeds.
Any other failed write or sync leaves unknown bytes on disk, so the log refuses all further writes
(``LogFailed``) until it is opened again and recovery finds out (``WriteGuard``).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from onelog.ual.directory import ShardIdentity, ShardPaths
from onelog.ual.entry import Entry, Group, Unreadable, decode_entry, encode_group
from onelog.ual.errors import (
    DirectoryLost,
    DiskFull,
    GroupTooLarge,
    IndexDropped,
    IndexInFuture,
    LogFailed,
)
from onelog.ual.files import EXHAUSTED, Files, FreeSpace, to_disk_full
from onelog.ual.hard_state import HardStateFile
from onelog.ual.jobs import ManifestJob, Roll, SealJob, SyncJob
from onelog.ual.log_config import LogConfig
from onelog.ual.manifest import Base, Checkpoint, ColdRange, Manifest, SnapshotRecord
from onelog.ual.ring import HotRing
from onelog.ual.segments.chain import Segment, SegmentSet
from onelog.ual.segments.format import SegmentHeader
from onelog.ual.segments.unsealed import UnsealedSegment


class WriteGuard:
    """Turns errors of a log's files into ``DiskFull``, or stops all further writes."""

    def __init__(self, space: FreeSpace) -> None:
        self._space = space
        self.failure: str | None = None
        self.refusal: DiskFull | None = None  # of the last append, until one succeeds

    def refuse_if_failed(self) -> None:
        """Raise ``LogFailed`` if an earlier write failed."""
        if self.failure is not None:
            raise LogFailed(f"{self.failure}; open the log again to recover")

    def refuse_or_fail(self, what: str, error: OSError) -> NoReturn:
        """Raise ``DiskFull`` for what passes, which allows a retry; otherwise fail."""
        if error.errno in EXHAUSTED:
            self._space.invalidate()
            raise to_disk_full(what, error) from error
        self.fail(what, error)

    @contextmanager
    def fatal_errors(self, what: str) -> Iterator[None]:
        """Fail on any error: MANIFEST has already decided on what is done here."""
        try:
            yield
        except OSError as error:
            self.fail(what, error)

    def fail(self, what: str, error: OSError) -> NoReturn:
        """Refuse all further writes."""
        self.failure = f"{what} failed: {error}"
        raise LogFailed(f"{self.failure}; open the log again to recover") from error


# Manifest file


class ManifestFile:
    """The MANIFEST of an open log, and the one change of it that may be under way.

    The log's thread begins a change, a job on any thread carries it out, and the log's thread
    finishes it. ``content`` is the new manifest from the beginning, so that nobody opens a file
    that is about to be removed; a full disk restores the old one. A caller that makes the next
    change settles the last one first, which may block, and builds on ``content``.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        content: Manifest,
        guard: WriteGuard,
        restore_segments: Callable[[tuple[Segment, ...]], None],
    ) -> None:
        """``restore_segments`` receives segments that could not be dropped."""
        self.content = content
        self._files = files
        self._path = path
        self._guard = guard
        self._restore_segments = restore_segments
        self._under_way: ManifestJob | None = None

    def begin(
        self,
        content: Manifest,
        *,
        segments: tuple[Segment, ...] = (),
        snapshots: tuple[Path, ...] = (),
        added: tuple[Path, ...] = (),
    ) -> ManifestJob:
        """Return the job that replaces MANIFEST and then removes the files of these.

        ``added`` is a new snapshot, which is removed if MANIFEST cannot be written.
        """
        self._guard.refuse_if_failed()
        assert self._under_way is None, "the last change is not settled"
        job = ManifestJob(
            self._files, self._path, self.content, content, segments, snapshots, added
        )
        self.content, self._under_way = content, job
        return job

    def finish(self, job: ManifestJob) -> None:
        """Take the result of a job whose ``run`` has returned, settled before or not."""
        if job is self._under_way:
            self._under_way = None
            if not job.is_decided:
                self.content = job.before
                self._restore_segments(job.segments)
        if job.error is None:
            assert job.is_decided, "the job did not run"
        elif job.is_decided:
            self._guard.fail("remove files that MANIFEST no longer lists", job.error)
        else:
            self._guard.refuse_or_fail("write MANIFEST", job.error)

    def settle(self) -> None:
        """Finish the change that is under way, if there is one, on this thread."""
        job = self._under_way
        if job is not None:
            job.run()
            with suppress(DiskFull):  # the caller that began it gets the error
                self.finish(job)

    def save(self, content: Manifest) -> None:
        """Replace MANIFEST on this thread; a full disk leaves the old one."""
        job = self.begin(content)
        job.run()
        self.finish(job)


# Proposals


class Proposals:
    """The groups of a log by number."""

    __slots__ = ("_log",)

    def __init__(self, log: "Log") -> None:
        self._log = log

    @property
    def durable(self) -> int:
        """The number of the last group that is durable."""
        return self.of_index(self._log.durable_index)

    def data(self, number: int) -> bytes:
        """Return the stored group; verified, unless it comes from memory."""
        first_index, last_index = self.indexes(number)
        data = self._log.ring.read_range(first_index, last_index)
        return data if data is not None else self._log.segments.proposal(number).data

    def indexes(self, number: int) -> tuple[int, int]:
        """Return the first and last index of a proposal."""
        segments = self._log.segments
        newest = segments.segments[-1]
        assert isinstance(newest, UnsealedSegment), newest.path
        first, last = segments.segments[0].first_proposal, newest.last_proposal
        if not first <= number <= last:
            raise (IndexDropped if number < first else IndexInFuture)(number, first, last)
        if number >= newest.first_proposal:  # as most are
            return newest.proposal_at(number)
        return segments.proposal_range(number)

    def term(self, number: int) -> int:
        """Return the term of a proposal."""
        first_index, _ = self.indexes(number)
        data = self._log.ring.read(first_index)
        return decode_entry(data).term if data else self._log.segments.read(first_index).term

    def of_index(self, index: int) -> int:
        """Return the proposal of an index that is unsealed, or the last sealed one."""
        for segment in reversed(self._log.segments.segments):
            assert isinstance(segment, UnsealedSegment), (index, segment.last_index)
            if segment.first_index <= index:
                return segment.find_proposal(index)
            if segment.first_index == index + 1:
                return segment.first_proposal - 1
        raise AssertionError(f"index {index} is not in the log")


# Log


class Log:
    """One shard's log over its segment files. Made by ``open_log`` (ual/recovery.py)."""

    def __init__(
        self,
        files: Files,
        paths: ShardPaths,
        hard_state: HardStateFile,
        config: LogConfig,
        segments: SegmentSet,
        *,
        commit_index: int,
        generation: int,
        snapshots: tuple[SnapshotRecord, ...],
        cold: tuple[ColdRange, ...],
        base: Base | None = None,
        identity: ShardIdentity | None = None,
    ) -> None:
        self.config = config
        self.notes = segments.notes
        self.commit_index = commit_index
        # The number of suffix cuts: a position from before a cut is meaningless after it.
        self.generation = generation
        self._files = files
        self._paths = paths
        self._hard_state = hard_state
        self.segments = segments  # replaced as a whole; a set never changes
        self.proposals = Proposals(self)  # the log as Raft sees it: by group, past the commit index
        active = segments.segments[-1]
        assert isinstance(active, UnsealedSegment), active.path
        self._active = active
        self.applied_index = segments.sealed_index
        self.last_index = self.durable_index = active.last_index
        self.last_term, self.last_timestamp_ns = segments.last_term_and_time(base)
        self._durable_position = active.end
        self.ring = HotRing(config.ring_bytes, active.last_index + 1)
        self._space = FreeSpace(files, paths.segments, config.free_bytes_min)
        self.guard = WriteGuard(self._space)
        self._roll: Roll | None = None  # the change of files that the next sync must finish
        self.is_sealing = False  # one seal at a time
        manifest = Manifest(
            self._checkpoint(), None, snapshots, cold, base, identity=identity or paths.identity
        )
        self.manifest_file = ManifestFile(
            files, paths.manifest, manifest, self.guard, self._restore_segments
        )

    @property
    def first_index(self) -> int:
        """The first index that is kept."""
        return self.segments.first_index

    def spare_bytes(self) -> int:
        """Return what the disk has above the minimum that stays free; negative below it."""
        return self._space.spare_bytes()

    @property
    def manifest(self) -> Manifest:
        """The content of MANIFEST, including a change under way."""
        return self.manifest_file.content

    @property
    def base(self) -> Base | None:
        """The end of the last snapshot that a peer sent, if any."""
        return self.manifest.base

    @property
    def first_proposal(self) -> int:
        """The number of the first group that is kept."""
        return self.segments.segments[0].first_proposal

    @property
    def last_proposal(self) -> int:
        """The number of the last group."""
        return self._active.last_proposal

    @property
    def unsynced_bytes(self) -> int:
        """The number of bytes that a power loss could destroy."""
        closing = 0 if self._roll is None else self._roll.unsynced_bytes
        return closing + self._active.end - self._durable_position

    @property
    def needs_sync(self) -> bool:
        """Whether a sync would make anything durable."""
        return self._roll is not None or self._active.end > self._durable_position

    def has_room(self, size: int) -> bool:
        """Return whether a group of ``size`` bytes can be appended without waiting for a sync."""
        if not self.needs_sync:
            return True
        if self.unsynced_bytes + size > self.config.unsynced_bytes_max:
            return False
        return self._roll is None or self._active.end + size <= self.config.segment_bytes_max

    # Writing. One thread only.

    def append(
        self, drafts: Sequence[tuple[int, bytes, int]], *, term: int, timestamp_ns: int
    ) -> Group:
        """Append drafts as the next group, stamped; not durable before a sync."""
        group = encode_group(
            drafts, term=term, first_index=self.last_index + 1, timestamp_ns=timestamp_ns
        )
        self.append_group(group)
        return group

    def append_group(self, group: Group) -> None:
        """Append a group that ``encode_group`` made or ``check_group`` verified."""
        assert group.first_index == self.last_index + 1, (group.first_index, self.last_index)
        assert group.term >= self.last_term, (group.term, self.last_term)
        assert group.first_timestamp_ns >= self.last_timestamp_ns, group.first_timestamp_ns
        size = len(group.data)
        if size > self.config.unsynced_bytes_max:
            limit = self.config.unsynced_bytes_max
            raise GroupTooLarge(f"a group of {size} bytes, limit {limit}")
        if self.guard.failure is not None:
            self.guard.refuse_if_failed()
        try:
            self._append(group, size)
        except DiskFull as error:
            self.guard.refusal = error
            raise
        self.guard.refusal = None
        self.ring.append(group)
        self.last_term = group.term
        self.last_timestamp_ns = group.last_timestamp_ns
        self.last_index = group.last_index

    def _append(self, group: Group, size: int) -> None:
        self._space.reserve(size)
        if self.manifest_file.content.cut_from_index is not None:
            self.manifest_file.settle()
            self.manifest_file.save(replace(self.manifest, cut_from_index=None))
        if self._active.is_outgrown_by(group, self.config):
            self._begin_roll()
        if self.unsynced_bytes + size > self.config.unsynced_bytes_max:
            self.sync()
        try:
            self._active.append(group)
        except OSError as error:
            self._undo_write(error)

    def sync_begin(self) -> SyncJob:
        """Note what a sync started now will cover."""
        self.guard.refuse_if_failed()
        active = self._active
        return SyncJob(active.file, self.generation, self.last_index, active.end, self._roll)

    def sync_finish(self, job: SyncJob) -> None:
        """Take the result of a sync whose ``run`` has returned.

        After a failed fdatasync the kernel may have dropped the pages and forgotten the error,
        so trying again proves nothing: the log has failed.
        """
        if job.error is not None:
            self.guard.fail("sync", job.error)
        assert job.done, "the job did not run"
        if job.roll is self._roll:
            self._roll = None
        if job.generation != self.generation or job.index <= self.durable_index:
            return
        if job.file is self._active.file:
            # A sync of a removed file succeeds, and nobody will ever find its bytes.
            if self._roll is None and not self._files.exists(self._active.path):
                self.guard.failure = f"{self._active.path} was removed"
                raise DirectoryLost(str(self._active.path))
            self._durable_position = job.position
        elif self._roll is not None and job.file is self._roll.closing.file:
            self._roll.unsynced_bytes = self._roll.closing.end - job.position
        self.durable_index = job.index
        self._save_hint()

    def sync(self) -> None:
        """Make everything appended so far durable, on this thread."""
        job = self.sync_begin()
        job.run()
        self.sync_finish(job)

    def mark_committed(self, index: int) -> None:
        """Make everything up to ``index`` visible to readers."""
        assert self.commit_index <= index <= self.last_index, (self.commit_index, index)
        self.commit_index = index

    def mark_applied(self, index: int) -> None:
        """Record that everything up to ``index`` is applied and its notes are made."""
        assert self.applied_index <= index <= self.commit_index, (self.applied_index, index)
        self.applied_index = index

    def _begin_roll(self) -> None:
        """Direct the next group to a new file; the next sync makes the change durable."""
        self.settle_roll()
        active = self._active
        header = SegmentHeader(
            active.header.shard,
            active.header.segment_id + 1,
            self.last_index + 1,
            active.last_proposal + 1,
        )
        try:
            successor = UnsealedSegment.create_successor(self._files, self._paths.segments, header)
        except OSError as error:
            self.guard.refuse_or_fail("create a segment", error)
        self._roll = Roll(self._files, active, successor, active.end - self._durable_position)
        self.segments = self.segments.with_segments((*self.segments.segments, successor))
        self._active = successor
        self._durable_position = successor.end

    def settle_roll(self) -> None:
        """Finish a change of files that is under way; blocks."""
        if self._roll is not None:
            self.sync()

    def close_aged(self, now_ns: int) -> None:
        """Begin the next file if the active one's first entry is too old in log time."""
        self.guard.refuse_if_failed()
        age_ns = now_ns - self._active.first_timestamp_ns
        if self._active.entry_count and age_ns >= self.config.segment_age_ns_max:
            self._begin_roll()

    def seal_begin(self) -> SealJob | None:
        """Return the job that seals the oldest closed segment, if all of it is applied."""
        self.guard.refuse_if_failed()
        if self.is_sealing:
            return None
        for segment in self.segments.segments:
            if not isinstance(segment, UnsealedSegment):
                continue
            if segment is self._active or segment.last_index > self.applied_index:
                return None
            if self._roll is not None and segment is self._roll.closing:
                return None
            notes = self.notes.select(segment.first_index, segment.last_index)
            self.is_sealing = True
            return SealJob(self._files, segment, notes)
        return None

    def seal_finish(self, job: SealJob) -> None:
        """Replace the closed segment with the sealed one.

        A full disk leaves the segment closed and readable, and a later seal starts again.
        """
        self.is_sealing = False
        if isinstance(job.error, OSError):
            self.guard.refuse_or_fail("seal a segment", job.error)
        if job.error is not None:
            raise job.error
        assert job.sealed is not None, "the job did not run"
        segments = tuple(
            job.sealed if part is job.segment else part for part in self.segments.segments
        )
        self.segments = self.segments.with_segments(segments)
        # A reader that still scans the unsealed one checks this before it trusts the notes.
        job.segment.sealed = job.sealed
        self.notes.forget_through(job.segment.last_index)

    def truncate_from(self, index: int) -> None:
        """Cut the log from ``index``, the start of a group, to its end. Durable on return.

        The intent is recorded together with the lowered checkpoint: after a crash, recovery
        finishes the cut and does not mistake what is missing for a loss.
        """
        assert self.commit_index < index <= self.last_index, (self.commit_index, index)
        self.guard.refuse_if_failed()
        self.settle_roll()
        self.manifest_file.settle()
        parts = list(self.segments.segments)
        while parts[-1].first_index > index:
            parts.pop()
        last = parts[-1]
        assert isinstance(last, UnsealedSegment), "only uncommitted entries are cut"
        removed = self.segments.segments[len(parts) :]
        proposal = last.find_proposal(index)
        assert last.proposal_at(proposal)[0] == index, f"index {index} does not start a group"
        checkpoint = replace(
            self._checkpoint(),
            end_index=index - 1,
            end_proposal=proposal - 1,
            durable_index=min(self.durable_index, index - 1),
            active_file=last.path.name,
            generation=self.generation + 1,
        )
        self.manifest_file.save(replace(self.manifest, checkpoint=checkpoint, cut_from_index=index))
        self.generation += 1
        with self.guard.fatal_errors("cut"):
            for segment in reversed(removed):
                self._files.remove(segment.path)
            self._files.sync_directory(self._paths.segments)
            last.cut_from(index)
        self.segments = self.segments.with_segments(tuple(parts))
        self._active = last
        self._durable_position = last.end
        self.last_index = self.durable_index = index - 1
        self.last_term, self.last_timestamp_ns = self.segments.last_term_and_time(self.base)
        self.ring.clear(index)
        self.notes.cut_from(index)
        self.manifest_file.save(replace(self.manifest, cut_from_index=None))

    def drop_begin(self, index: int) -> ManifestJob | None:
        """Drop the sealed segments that end before ``index``; return the job that deletes them.

        The newest segment with an entry stays: the log must know its last term and time.
        """
        self.guard.refuse_if_failed()
        self.manifest_file.settle()
        parts = self.segments.segments
        count = 0
        while not isinstance(parts[count], UnsealedSegment) and parts[count].last_index < min(
            index, self.last_index
        ):
            count += 1
        if not count:
            return None
        # No new reader sees them from here on. Until MANIFEST is written, a crash restores them.
        self.segments = self.segments.with_segments(parts[count:])
        return self.manifest_file.begin(self.checkpointed(), segments=parts[:count])

    def _restore_segments(self, dropped: tuple[Segment, ...]) -> None:
        self.segments = self.segments.with_segments((*dropped, *self.segments.segments))

    def begin_behind(self, base: Base, segments: SegmentSet) -> None:
        """Continue after a base whose install (ual/install.py) is durable and applied."""
        active = segments.segments[-1]
        assert isinstance(active, UnsealedSegment), active.path
        self.segments, self.notes, self._active = segments, segments.notes, active
        self.last_index = self.durable_index = self.commit_index = self.applied_index = base.index
        self.last_term, self.last_timestamp_ns = base.term, base.timestamp_ns
        self._durable_position = active.end
        self.ring.clear(base.index + 1)

    def checkpoint(self) -> None:
        """Record in MANIFEST how far the log is known to be good."""
        self.manifest_file.settle()
        self.manifest_file.save(self.checkpointed())

    def checkpointed(self) -> Manifest:
        """Return the manifest with a checkpoint of now."""
        return replace(self.manifest, checkpoint=self._checkpoint())

    def close(self) -> None:
        """Sync and record the end; the log is not used after this."""
        if self.guard.failure is None:
            self.sync()
            self._save_hint()
            self.checkpoint()
            self.guard.failure = "the log was closed"

    # Reading. Any thread.

    def read(self, index: int) -> Entry:
        """Return a committed entry, from the ring or a segment."""
        if index > self.commit_index:
            raise IndexInFuture(index, self.first_index, self.commit_index)
        data = self.ring.read(index)
        if data is not None:
            return decode_entry(data)
        segments = self.segments
        if index < segments.first_index:
            raise IndexDropped(index, segments.first_index, self.commit_index)
        return segments.read(index)

    def scan(
        self,
        first_index: int,
        last_index: int | None = None,
        *,
        stream_id: int | None = None,
        skip_voids: bool = False,
    ) -> Iterator[Entry]:
        """Yield committed entries in order, up to ``last_index`` or the commit index of now.

        Streams and voids are known up to ``applied_index``; a scan that filters by them ends
        there. Memory stays bounded by a block of entries, however long the range is.
        """
        is_noted = stream_id is not None or skip_voids
        segments, last_index = self._bound(first_index, last_index, is_noted=is_noted)
        return segments.scan(first_index, last_index, stream_id=stream_id, skip_voids=skip_voids)

    def scan_readable(
        self,
        first_index: int,
        last_index: int | None = None,
        *,
        stream_id: int | None = None,
        skip_voids: bool = False,
    ) -> Iterator[Entry | Unreadable]:
        """Yield what ``scan`` does, and in its place what cannot be read, instead of an error."""
        is_noted = stream_id is not None or skip_voids
        segments, last_index = self._bound(first_index, last_index, is_noted=is_noted)
        return segments.scan_readable(
            first_index, last_index, stream_id=stream_id, skip_voids=skip_voids
        )

    def _bound(
        self, first_index: int, last_index: int | None, *, is_noted: bool
    ) -> tuple[SegmentSet, int]:
        """Return the segments of a scan and where it ends."""
        # The end first: a log that continues after a peer's snapshot replaces its segments, then
        # moves its indexes. In the other order, a reader could take an uncommitted suffix of the
        # old segments for committed.
        end = self.applied_index if is_noted else self.commit_index
        segments = self.segments
        if first_index < segments.first_index:
            raise IndexDropped(first_index, segments.first_index, end)
        return segments, end if last_index is None else min(last_index, end)

    def seek_time(self, timestamp_ns: int) -> int | None:
        """Return the first committed index with at least this timestamp, if there is one."""
        end = self.commit_index  # before the segments; see ``scan``
        return self.segments.seek_time(timestamp_ns, end)

    def check(self) -> None:
        """Assert the invariants at the top of this file."""
        self.segments.check()
        self.ring.check()
        assert self._active is self.segments.segments[-1]
        assert self.last_index == self._active.last_index
        assert self.ring.next_index == self.last_index + 1
        assert self.applied_index <= self.commit_index <= self.last_index
        assert self.durable_index <= self.last_index
        assert 0 <= self.unsynced_bytes <= self.config.unsynced_bytes_max
        assert self.segments.sealed_index <= self.applied_index

    def _checkpoint(self) -> Checkpoint:
        start = self.segments.segments[0]
        return Checkpoint(
            first_index=start.first_index,
            first_proposal=start.first_proposal,
            end_index=self.last_index,
            end_proposal=self.last_proposal,
            durable_index=self.durable_index,
            commit_index=self.commit_index,
            active_file=self._active.path.name,
            generation=self.generation,
        )

    def _undo_write(self, error: OSError) -> NoReturn:
        """Truncate what a failed append may have left after the end, and report the error."""
        try:
            self._active.file.truncate(self._active.end)
            # Without the sync, refused bytes could reappear after what is written next.
            self._active.file.sync()
        except OSError as second:
            self.guard.fail("undo a write", second)
        self.guard.refuse_or_fail("append", error)

    def _save_hint(self) -> None:
        try:
            self._hard_state.save_hint(self.commit_index, self.durable_index, self.generation)
        except DiskFull:
            pass  # costs no more than an older hint; the sync itself has succeeded
        except LogFailed as error:
            self.guard.failure = str(error)
            raise
