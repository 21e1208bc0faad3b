"""The hot ring against a plain dict of everything that was ever appended."""

import threading
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onelog.ual.entry import Group, encode_group
from onelog.ual.ring import SIZE_BYTES_MIN, HotRing


def make_group(first_index: int, sizes: list[int], fill: int = 0) -> Group:
    drafts = [(0x0101, bytes([(fill + at) % 256]) * size, 0) for at, size in enumerate(sizes)]
    return encode_group(drafts, term=1, first_index=first_index, timestamp_ns=0)


def stored(group: Group) -> list[bytes]:
    ends = [*group.offsets[1:], len(group.data)]
    return [group.data[start:end] for start, end in zip(group.offsets, ends, strict=True)]


class RingMachine(RuleBasedStateMachine):
    """Reads give the newest bytes of an index or nothing; the newest that fit are always there."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = HotRing(SIZE_BYTES_MIN, 1)
        self.written: dict[int, bytes] = {}
        self.next_index = 1

    @rule(sizes=st.lists(st.integers(0, 900), min_size=1, max_size=8), fill=st.integers(0, 255))
    def append(self, sizes: list[int], fill: int) -> None:
        group = make_group(self.next_index, sizes, fill)
        self.ring.append(group)
        self.written.update(zip(range(self.next_index, 10**9), stored(group), strict=False))
        self.next_index = group.last_index + 1
        if len(group.data) <= SIZE_BYTES_MIN:
            assert self.ring.read_range(group.first_index, group.last_index) == group.data

    @rule(count=st.integers(1, 150))
    def append_tiny_entries(self, count: int) -> None:
        """More entries than slots per byte: bounded by slots, not by bytes."""
        self.append([0] * count, 0)

    @rule(back=st.integers(0, 5))
    def cut(self, back: int) -> None:
        self.next_index = max(1, self.next_index - back)
        self.ring.clear(self.next_index)

    @invariant()
    def reads_are_right_or_nothing(self) -> None:
        self.ring.check()
        for index in range(max(1, self.next_index - 200), self.next_index + 2):
            data = self.ring.read(index)
            held = self.ring.first_index <= index < self.ring.next_index
            assert data == (self.written[index] if held else None)


RingMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
test_ring_against_a_model = RingMachine.TestCase


def test_a_group_larger_than_the_ring_empties_it_and_the_next_one_is_held() -> None:
    ring = HotRing(SIZE_BYTES_MIN, 1)
    ring.append(make_group(1, [10]))
    ring.append(make_group(2, [900] * 6))

    assert [ring.read(index) for index in (1, 2, 7)] == [None, None, None]
    after = make_group(8, [10])
    ring.append(after)
    assert ring.read(8) == after.data
    ring.check()


def test_a_range_is_returned_only_if_all_of_it_is_held() -> None:
    ring = HotRing(SIZE_BYTES_MIN, 1)
    for index in range(1, 20):
        ring.append(make_group(index, [400]))

    assert ring.read_range(1, 19) is None
    assert ring.read_range(18, 20) is None
    assert ring.read_range(18, 19) is not None


def test_a_reader_in_another_thread_never_sees_overwritten_bytes() -> None:
    """The writer laps the reader all the time; what is returned is an entry or nothing."""
    ring = HotRing(SIZE_BYTES_MIN, 1)
    rng = Random(3)
    groups_all = []
    index = 1
    for _ in range(4000):
        group = make_group(index, [rng.randrange(200) for _ in range(3)], index)
        groups_all.append(group)
        index = group.last_index + 1
    expected = dict(enumerate((data for group in groups_all for data in stored(group)), start=1))
    wrong: list[int] = []
    hit, done = threading.Event(), threading.Event()

    def read() -> None:
        reader = Random(4)
        while not done.is_set():
            wanted = max(1, ring.next_index - reader.randrange(1, 40))
            data = ring.read(wanted)
            if data is not None:
                if data != expected[wanted]:
                    wrong.append(wanted)
                hit.set()

    thread = threading.Thread(target=read)
    thread.start()
    for group in groups_all:
        ring.append(group)
    has_hit = hit.wait(20)  # a busy machine may not have let it run before
    done.set()
    thread.join(timeout=10)
    assert not wrong
    assert has_hit


def test_groups_must_follow_each_other() -> None:
    ring = HotRing(SIZE_BYTES_MIN, 1)
    with pytest.raises(AssertionError):
        ring.append(make_group(2, [1]))
