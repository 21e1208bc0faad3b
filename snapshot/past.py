"""A state of the past: the newest snapshot at or below an index, and the log from there to it.

``onelog log replay --at`` and reads of a running server as of an index both use this, and both
replay as recovery does (snapshot/replay.py), so that they see what a restart would have found.

* A past state stands at one index and moves forward only. Requests that were committed together
  still have an order: the index may be inside of a group. Inside of an atomic batch the state is
  the one before it, because a batch changes nothing until its last entry.
* Whatever interrupts ``advance``, the state is whole, at the index that it has reached.
* If snapshots and log no longer lead to an index, that is ``NoSnapshot`` or ``LogGap``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from onelog.projections.result import PENDING, Applied
from onelog.projections.shard_state import Projections
from onelog.projections.system.commands import TYPE_BATCH
from onelog.snapshot.errors import LogGap, NoSnapshot
from onelog.snapshot.loading import Rejected, load_newest
from onelog.snapshot.notes import CoveredNotes
from onelog.snapshot.progress import Progress, no_progress
from onelog.snapshot.replay import check_hash, replay
from onelog.ual.entry import Entry
from onelog.ual.files import Files
from onelog.ual.manifest import SnapshotRecord
from onelog.ual.segments.notes import ApplyNotes

# The committed entries from first to last index.
Entries = Callable[[int, int], Iterable[Entry]]


class Step(NamedTuple):
    """Entries that were applied together and took effect."""

    batch_index: int  # the entry that opens their batch; 0: it is one entry alone
    entries: list[Entry]


class PastState:
    """The projections of a shard as they were; see the module."""

    __slots__ = ("_hashes", "base_index", "entry_count", "projections", "rejected")

    def __init__(
        self,
        projections: Projections,
        base_index: int,
        rejected: tuple[Rejected, ...],
        snapshots: Sequence[SnapshotRecord],
    ) -> None:
        self.projections = projections
        self.base_index = base_index  # of the snapshot that it started from; 0: the log's beginning
        self.entry_count = 0  # replayed since
        self.rejected = rejected  # snapshots that could not be used
        self._hashes = {record.index: record.state_hash for record in snapshots}

    @property
    def index(self) -> int:
        """The last entry in the state."""
        return self.projections.router.applied_index

    def steps(self, entries: Entries, index: int) -> Iterator[Step]:
        """Move forward to right after the entry ``index``, and yield each step that took effect.

        Yields one entry, or all of an atomic batch, right after it was applied. Refused ones
        change nothing and are passed over. The state must not stand inside of a batch.
        """
        router = self.projections.router
        assert not router.in_batch, "the earlier entries of the batch are not known"
        unit: list[Entry] = []
        for entry in entries(self.index + 1, index):
            if entry.index != self.index + 1:
                raise LogGap(self.index + 1, entry.index - 1)
            result = router.apply(entry)
            self.entry_count += 1
            unit.append(entry)
            if result is PENDING:
                continue
            if isinstance(result, Applied):
                head = unit[0]
                yield Step(head.index if head.entry_type == TYPE_BATCH else 0, unit)
            unit = []
            if entry.index in self._hashes and not entry.group_left:
                check_hash(router, self._hashes[entry.index])
        if self.index != index:
            raise LogGap(self.index + 1, index)

    def advance(self, entries: Entries, index: int, progress: Progress = no_progress) -> None:
        """Move forward to right after the entry ``index``; check the hash of every snapshot."""
        router, start = self.projections.router, self.index
        assert start <= index, (start, index)
        try:
            # If the state is inside a group, the rest of that group comes first here.
            replay(
                router,
                entries(start + 1, index),
                last_index=index,
                hashes=self._hashes,
                progress=progress,
            )
            if self.index < index:
                for entry in entries(self.index + 1, index):
                    router.apply(entry)
        finally:
            self.entry_count += self.index - start
        if self.index != index:
            raise LogGap(self.index + 1, index)


def start_past(
    files: Files,
    directory: Path,
    shard: int,
    snapshots: Sequence[SnapshotRecord],
    *,
    first_index: int,
    make_state: Callable[[], Projections],
    on_notes: Callable[[CoveredNotes], None] = lambda _: None,
    progress: Progress = no_progress,
) -> PastState:
    """Return the state of the newest usable of these snapshots, or the empty one.

    ``first_index`` is where the log begins: the empty state is useful only if that is 1.
    """
    loaded, rejected = load_newest(
        files,
        directory,
        shard,
        snapshots,
        lambda _: make_state(),
        ApplyNotes(),
        progress=progress,
    )
    if loaded is not None:
        on_notes(loaded.notes)
        return PastState(loaded.state, loaded.record.index, tuple(rejected), snapshots)
    if first_index > 1:
        why = "; ".join(at.why for at in rejected) or "no snapshot is kept at or below the index"
        raise NoSnapshot(
            f"{why}, and the log begins at {first_index}; ask for a later index, or ask another "
            "replica"
        )
    return PastState(make_state(), 0, tuple(rejected), snapshots)
