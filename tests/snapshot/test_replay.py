"""Replay: whole groups, in order, nothing twice, and the hashes on the way."""

from collections.abc import Sequence

import pytest

from onelog.projections.shard_state import build_projections
from onelog.snapshot.errors import LogGap, StateMismatch
from onelog.snapshot.progress import Phase
from onelog.snapshot.replay import PROGRESS_ENTRIES, Replayed, replay
from onelog.snapshot.state import hash_text
from onelog.ual.entry import Entry, decode_entries, encode_group
from onelog.ual.segments.notes import ApplyNotes
from tests.snapshot.live import Work
from tests.snapshot.toys import Toy


def entries_of(sizes: Sequence[int], first_index: int = 1) -> list[Entry]:
    """Return groups of these sizes."""
    found: list[Entry] = []
    for number, size in enumerate(sizes):
        drafts = [(0x0101, b"payload %d" % number, 0)] * size
        first = first_index + len(found)
        group = encode_group(drafts, term=2 + number, first_index=first, timestamp_ns=number * 10)
        found += decode_entries(group.data)
    return found


def test_groups_go_in_whole() -> None:
    toy = Toy(ApplyNotes())
    done = replay(toy, entries_of([1, 3, 2]), last_index=6)
    assert toy.groups == [1, 3, 2]
    assert done == Replayed(6, 3, 4, 20)


def test_a_group_that_is_not_complete_is_left_out() -> None:
    """A commit index inside a group cannot be, but half a group must never be applied."""
    toy = Toy(ApplyNotes())
    done = replay(toy, entries_of([2, 3])[:4], last_index=4)
    assert toy.applied_index == 2
    assert done == Replayed(2, 1, 2, 0)


def test_nothing_to_replay_is_fine() -> None:
    toy = Toy(ApplyNotes())
    assert replay(toy, [], last_index=0) == Replayed(0, 0, 0, 0)


def test_a_gap_is_named() -> None:
    entries = entries_of([1, 1, 1, 1])
    toy = Toy(ApplyNotes())
    with pytest.raises(LogGap) as caught:
        replay(toy, [entries[0], entries[3]], last_index=4)
    assert (caught.value.first_index, caught.value.last_index) == (2, 3)
    with pytest.raises(LogGap):
        replay(Toy(ApplyNotes()), entries[1:], last_index=4)


def test_hashes_on_the_way_are_compared() -> None:
    entries = entries_of([1, 2, 1])
    hashes: dict[int, str] = {}
    for last in (1, 3, 4):
        toy = Toy(ApplyNotes())
        replay(toy, entries[:last], last_index=last)
        hashes[last] = hash_text(toy)

    replay(Toy(ApplyNotes()), entries, last_index=4, hashes=hashes)
    for index in hashes:
        wrong = {**hashes, index: "0" * 16}
        with pytest.raises(StateMismatch, match=f"at index {index}, MANIFEST says 0000"):
            replay(Toy(ApplyNotes()), entries, last_index=4, hashes=wrong)


def test_progress_is_told_now_and_then() -> None:
    steps: list[tuple[Phase, int, int]] = []
    count = 3 * PROGRESS_ENTRIES + 5
    entries = entries_of([1] * count)
    replay(Toy(ApplyNotes()), entries, last_index=count, progress=lambda *at: steps.append(at))
    assert steps[-1] == (Phase.REPLAY, count, count)
    assert 4 <= len(steps) <= 5
    assert all(total == count for _, _, total in steps)


@pytest.mark.parametrize("seed", range(5))
def test_the_router_is_the_same_applied_at_once_or_in_two_parts(seed: int) -> None:
    work = Work(seed)
    entries: list[Entry] = []
    ends: list[int] = [0]
    for number in range(60):
        first = len(entries) + 1
        group = encode_group(
            work.group(first), term=1, first_index=first, timestamp_ns=number * 10**9
        )
        entries += decode_entries(group.data)
        ends.append(len(entries))
    whole = build_projections(ApplyNotes()).router
    replay(whole, entries, last_index=len(entries))
    for split in ends[::7]:
        router = build_projections(ApplyNotes()).router
        replay(router, entries[:split], last_index=split)
        replay(router, entries[split:], last_index=len(entries))
        router.check()
        assert hash_text(router) == hash_text(whole)
