"""Replay: the log turned into state, the same way everywhere.

Recovery, the builder and the offline commands all use this, so that what a snapshot proves is what
a restart does. Entries are applied by whole groups, in order and without a gap; an incomplete group
at the end is left out. Callers pass committed entries only.

On its way a replay meets the indexes of kept snapshots. MANIFEST holds the state hash of each, so
every replay past one checks, at no cost, that it arrives at the same state.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onelog.snapshot.errors import LogGap, StateMismatch
from onelog.snapshot.progress import Phase, Progress, no_progress
from onelog.snapshot.state import Router, hash_text
from onelog.ual.entry import Entry

PROGRESS_ENTRIES = 4_096  # between two reports


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay has applied. Term and time are those of the last entry; zeros for none."""

    entry_count: int
    group_count: int
    last_term: int
    last_timestamp_ns: int


def replay(
    router: Router,
    entries: Iterable[Entry],
    *,
    last_index: int,
    hashes: Mapping[int, str] | None = None,
    progress: Progress = no_progress,
) -> Replayed:
    """Apply the entries after the applied index, up to ``last_index``.

    ``hashes`` has the expected state hash by index, checked where a group ends; a difference raises
    ``StateMismatch``. A gap between the entries raises ``LogGap``.
    """
    expected = {} if hashes is None else hashes
    start_index = router.applied_index
    next_index = start_index + 1
    report_at = next_index + PROGRESS_ENTRIES
    total = max(last_index - start_index, 0)
    group_count = 0
    last: Entry | None = None
    group: list[Entry] = []
    for entry in entries:
        index = entry.index
        assert index <= last_index, (index, last_index)
        if index != next_index:
            raise LogGap(next_index, index - 1)
        next_index += 1
        group.append(entry)
        if entry.group_left:
            continue
        router.apply_group(group)
        group = []
        group_count += 1
        last = entry
        if index in expected:
            check_hash(router, expected[index])
        if index >= report_at:
            report_at = index + PROGRESS_ENTRIES
            progress(Phase.REPLAY, index - start_index, total)
    applied = router.applied_index - start_index
    progress(Phase.REPLAY, applied, total)
    if last is None:
        return Replayed(0, 0, 0, 0)
    assert last.index == router.applied_index, (last.index, router.applied_index)
    return Replayed(applied, group_count, last.term, last.timestamp_ns)


def check_hash(router: Router, expected: str) -> None:
    """Raise ``StateMismatch`` unless the state has the hash that MANIFEST recorded."""
    found = hash_text(router)
    if found != expected:
        raise StateMismatch(router.applied_index, expected, found, "MANIFEST")
