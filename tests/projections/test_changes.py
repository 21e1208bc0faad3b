"""Notes of what entries did: full ones cost no more than empty ones, and say what is missing."""

import time
from collections.abc import Callable

import pytest

from onelog.projections.kv.changes import Change, Changes
from onelog.projections.queue.changes import NOTE_OVERHEAD, TRIM_SHARE, Kind, QueueChanges
from onelog.projections.queue.message import LEASE_HEAD

NOTES = 30_000
NOTES_KEPT = 20_000
LEASED = LEASE_HEAD.pack(7, 9, 0)
COST_MAX = 4  # times that of notes which forget nothing; a slow way to the oldest is far above


def _lease(size_max: int) -> Callable[[int], None]:
    changes = QueueChanges(size_max)
    return lambda index: changes.add_lease(index, 1, LEASED)


def _put(size_max: int) -> Callable[[int], None]:
    changes = Changes(size_max)
    change = Change("default", b"key", LEASED)
    return lambda index: changes.add(index, change)


def _cost(add: Callable[[int], None]) -> float:
    for index in range(NOTES_KEPT):
        add(index)
    began = time.thread_time()
    for index in range(NOTES_KEPT, NOTES_KEPT + NOTES):
        add(index)
    return time.thread_time() - began


@pytest.mark.parametrize("make", [_lease, _put])
def test_a_note_costs_no_more_once_the_oldest_have_to_go(
    make: Callable[[int], Callable[[int], None]],
) -> None:
    unlimited_s = _cost(make(1 << 40))
    full_s = _cost(make(NOTES_KEPT * (NOTE_OVERHEAD + len(LEASED))))

    assert full_s < COST_MAX * unlimited_s, (full_s, unlimited_s)


def test_what_is_kept_of_the_notes_is_within_the_limit_and_without_gaps() -> None:
    size_max = 1_000 * (NOTE_OVERHEAD + len(LEASED))
    changes = QueueChanges(size_max)
    for index in range(1, 10_000):
        if index % 3:
            changes.add_lease(index, 1, LEASED)
        else:
            changes.add(index, Kind.EXPIRED, 1, [index, index + 1])

        assert changes.size <= size_max, index
        known = range(changes.complete_from, index + 1)
        assert all(changes.get(each) is not None for each in (known[0], known[-1]))
        assert changes.complete_from == 1 or changes.size > size_max * (1 - 2 / TRIM_SHARE)
    assert changes.get(changes.complete_from - 1) is None
