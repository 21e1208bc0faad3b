"""Restart of a shard: from its files to the state of its committed log.

::

    MANIFEST -> newest usable snapshot -> its notes -> replay of what is committed -> ready

* Only committed entries are replayed. The log's commit index after opening is the recorded hint,
  but a snapshot holds applied, hence committed entries: the commit index is at least its index.
  Raft may still cut the entries after it.
* The replay goes through the same router as live traffic and checks the hash of every snapshot that
  it passes. So falling back to the older one must arrive at the state that the damaged one held, or
  recovery ends with ``StateMismatch``.
* Without a usable snapshot the log is replayed from index 1, if it is whole. If it is not, there is
  nothing to start from: ``NoSnapshot``.

Nothing is changed on disk before the state is complete. Then unusable snapshots leave MANIFEST: one
that stayed would count as one of the two that are kept, and push out a good one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic

from onelog.snapshot.errors import LogGap, NoSnapshot, SnapshotAhead
from onelog.snapshot.loading import Loaded, Rejected, load_newest
from onelog.snapshot.notes import restore_notes
from onelog.snapshot.progress import Progress, no_progress
from onelog.snapshot.replay import Replayed, replay
from onelog.snapshot.state import Router, StateT
from onelog.snapshot.store import SnapshotStore
from onelog.ual.entry import Entry
from onelog.ual.files import Files
from onelog.ual.log import Log
from onelog.ual.segments.notes import ApplyNotes

# Sealed entries have their notes in their files. A replay notes them again; those notes are dropped
# each time after this many entries.
FORGET_ENTRIES = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class Recovered(Generic[StateT]):
    """The state of a shard, ready for live traffic, and how it was reached."""

    state: StateT
    snapshot: Loaded[StateT] | None  # what it started from; None: index 1
    rejected: tuple[Rejected, ...]  # damaged snapshots, newest first: worth an alarm
    replayed: Replayed


def recover_state(
    files: Files,
    shard: int,
    log: Log,
    store: SnapshotStore,
    make_state: Callable[[ApplyNotes], StateT],
    progress: Progress = no_progress,
) -> Recovered[StateT]:
    """Rebuild the state of a freshly opened log and mark what is committed as applied.

    ``make_state`` is given the log's notes. Raises ``NoSnapshot``, ``SnapshotAhead``, ``LogGap`` or
    ``StateMismatch`` if the state cannot be rebuilt from the directory.
    """
    sealed_index = log.segments.sealed_index
    for record in store.records:
        if record.index > log.last_index:
            raise SnapshotAhead(str(store.path(record)), record.index, log.last_index)
    loaded, rejected = load_newest(
        files,
        store.directory,
        shard,
        store.records,
        make_state,
        log.notes,
        notes_from_index=sealed_index + 1,
        progress=progress,
    )
    if loaded is None:
        state = make_state(log.notes)
    else:
        state = loaded.state
        restore_notes(log.notes, loaded.notes, sealed_index)
    router = state.router
    # Kept snapshots hold committed entries, damaged or not: their records are enough to say so.
    newest = store.newest
    if newest is not None and newest.index > log.commit_index:
        log.mark_committed(newest.index)
    try:
        replayed = _replay(log, store, router, sealed_index, progress)
    except LogGap as error:
        if loaded is None:  # the beginning of the log was dropped or compacted
            raise _nothing_to_start_from(error, rejected) from error
        raise
    log.mark_applied(router.applied_index)
    store.forget([at.record for at in rejected])
    return Recovered(state, loaded, tuple(rejected), replayed)


def _replay(
    log: Log, store: SnapshotStore, router: Router, sealed_index: int, progress: Progress
) -> Replayed:
    """Replay what is committed; afterwards only notes about unsealed entries are kept."""
    replayed = replay(
        router,
        _entries(log, router.applied_index + 1, sealed_index),
        last_index=log.commit_index,
        hashes={record.index: record.state_hash for record in store.records},
        progress=progress,
    )
    if router.applied_index < sealed_index:
        raise LogGap(router.applied_index + 1, sealed_index)
    log.notes.forget_through(sealed_index)
    return replayed


def _entries(log: Log, first_index: int, sealed_index: int) -> Iterator[Entry]:
    """Yield the committed entries; drop the notes of sealed ones now and then."""
    forget_at = first_index + FORGET_ENTRIES
    for entry in log.segments.scan(first_index, log.commit_index):
        if forget_at <= entry.index <= sealed_index:
            log.notes.forget_through(entry.index - 1)
            forget_at = entry.index + FORGET_ENTRIES
        yield entry


def _nothing_to_start_from(gap: LogGap, rejected: list[Rejected]) -> NoSnapshot:
    why = "; ".join(at.why for at in rejected) or "MANIFEST lists none"
    return NoSnapshot(
        f"no usable snapshot ({why}), and {gap}; restore a snapshot and MANIFEST from a backup, or "
        "rebuild this replica from a peer"
    )
