"""The notes of apply about unsealed entries."""

import sys
import threading
from array import array
from bisect import bisect_right
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onelog.ual.segments import notes as notes_module
from onelog.ual.segments.notes import ApplyNotes, SegmentNotes
from tests.ual.segments.segment_files import ranges_of

WHOLE = (1, 1 << 40)


def voids_of(notes: ApplyNotes, first_index: int = 1, last_index: int = 1 << 40) -> list[list[int]]:
    found: list[list[int]] = notes.select(first_index, last_index).voids.tolist()
    return found


def test_records_are_returned_by_stream_and_range() -> None:
    notes = ApplyNotes()
    for index in (3, 5, 9):
        notes.add_record(7, index)
    notes.add_record(8, 6)

    assert notes.records(7, 1, 100).tolist() == [3, 5, 9]
    assert notes.records(7, 4, 9).tolist() == [5, 9]
    assert notes.records(7, 10, 20).tolist() == []
    assert notes.records(99, 1, 100).tolist() == []
    assert notes.records(8, 6, 6).dtype == np.uint64


def test_touching_voids_become_one() -> None:
    notes = ApplyNotes()
    notes.add_void(3, 4)
    notes.add_void(5, 6)
    notes.add_void(8, 8)

    assert voids_of(notes) == [[3, 6], [8, 8]]
    assert [index for index in range(1, 12) if notes.is_void(index)] == [3, 4, 5, 6, 8]


def test_a_segment_gets_only_what_lies_in_it() -> None:
    notes = ApplyNotes()
    notes.add_void(1, 2)
    notes.add_void(4, 20)
    notes.add_record(7, 3)
    notes.add_record(8, 30)

    selected = notes.select(5, 12)

    assert selected.voids.tolist() == [[5, 12]]
    assert selected.streams == {}
    assert list(notes.select(21, 40).streams) == [8]
    assert notes.select(21, 40).voids.shape == (0, 2)


def test_a_seal_in_the_midst_of_a_void_keeps_its_other_half() -> None:
    notes = ApplyNotes()
    notes.add_void(4, 20)
    notes.forget_through(10)

    assert voids_of(notes) == [[11, 20]]
    assert not notes.is_void(10)
    assert notes.is_void(11)


def test_a_cut_in_the_midst_of_a_void_keeps_its_first_half() -> None:
    notes = ApplyNotes()
    notes.add_void(4, 20)
    notes.cut_from(10)
    notes.add_void(10, 10)
    notes.add_void(12, 12)

    assert voids_of(notes) == [[4, 10], [12, 12]]


@pytest.mark.parametrize(
    "bad",
    [
        SegmentNotes({1: np.array([], np.uint64)}),
        SegmentNotes({1: np.array([4], np.uint64)}),
        SegmentNotes({1: np.array([11], np.uint64)}),
        SegmentNotes({1: np.array([6, 6], np.uint64)}),
        SegmentNotes({}, np.array([[7, 6]], np.uint64)),
        SegmentNotes({}, np.array([[4, 6]], np.uint64)),
        SegmentNotes({}, np.array([[6, 11]], np.uint64)),
        SegmentNotes({}, np.array([[6, 6], [7, 7]], np.uint64)),
    ],
)
def test_notes_that_must_not_reach_a_disk_are_a_programmers_error(bad: SegmentNotes) -> None:
    with pytest.raises(AssertionError):
        bad.check(5, 10)


def test_records_out_of_order_are_found_when_the_notes_are_taken() -> None:
    notes = ApplyNotes()
    notes.add_record(7, 5)
    notes.add_record(7, 5)
    with pytest.raises(AssertionError, match="descend"):
        notes.select(1, 10)


class NotesMachine(RuleBasedStateMachine):
    """The notes against sets of indexes."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = ApplyNotes()
        self.records: dict[int, set[int]] = defaultdict(set)
        self.voids: set[int] = set()
        self.last_index = 0
        self.sealed_index = 0

    @rule(stream_id=st.integers(0, 3), step=st.integers(1, 4))
    def add_record(self, stream_id: int, step: int) -> None:
        self.last_index += step
        self.notes.add_record(stream_id, self.last_index)
        self.records[stream_id].add(self.last_index)

    @rule(step=st.integers(1, 3), length=st.integers(1, 5))
    def add_void(self, step: int, length: int) -> None:
        first = self.last_index + step
        self.last_index = first + length - 1
        self.notes.add_void(first, self.last_index)
        self.voids.update(range(first, self.last_index + 1))

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        self.sealed_index = data.draw(st.integers(self.sealed_index, self.last_index))
        self.notes.forget_through(self.sealed_index)
        self._keep(self.sealed_index + 1, self.last_index)

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.sealed_index + 1, self.last_index + 1))
        self.notes.cut_from(index)
        self._keep(1, index - 1)
        self.last_index = index - 1

    def _keep(self, first: int, last: int) -> None:
        for indexes in (*self.records.values(), self.voids):
            indexes.intersection_update(range(first, last + 1))

    @rule(data=st.data())
    def select_a_range(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(1, self.last_index + 1))
        last = data.draw(st.integers(first, self.last_index + 1))
        selected = self.notes.select(first, last)
        expected = {
            stream_id: [index for index in sorted(indexes) if first <= index <= last]
            for stream_id, indexes in self.records.items()
        }
        found = {stream_id: array.tolist() for stream_id, array in selected.streams.items()}
        assert found == {stream_id: listed for stream_id, listed in expected.items() if listed}
        inside = [index for index in sorted(self.voids) if first <= index <= last]
        assert selected.voids.tolist() == ranges_of(inside)

    @invariant()
    def reads_agree(self) -> None:
        for stream_id in range(4):
            found = self.notes.records(stream_id, *WHOLE).tolist()
            assert found == sorted(self.records[stream_id])
        for index in range(self.last_index + 2):
            assert self.notes.is_void(index) == (index in self.voids)


NotesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestNotesAgainstSets = NotesMachine.TestCase


@pytest.mark.parametrize("shorten", ["forget_through", "cut_from"])
def test_a_position_that_a_reader_looked_up_stays_right(
    shorten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer shortens the array between a reader's look-up and its copy."""
    notes = ApplyNotes()
    for index in range(1, 101):
        notes.add_record(1, index)

    def interrupted_bisect(values: "array[int]", index: int) -> int:
        position = bisect_right(values, index)
        monkeypatch.undo()
        getattr(notes, shorten)(50)
        return position

    monkeypatch.setattr(notes_module, "bisect_right", interrupted_bisect)

    assert notes.records(1, 40, 60).tolist() == list(range(40, 61))


def test_readers_never_disturb_the_writer_nor_see_half_a_note() -> None:
    """A reader that held a buffer of a live array would make the writer's append fail."""
    notes = ApplyNotes()
    notes.add_record(1, 3)
    done = threading.Event()
    failures: list[BaseException] = []
    reads = [0, 0]

    def read(number: int) -> None:
        try:
            while not done.is_set():
                records = notes.records(1, *WHOLE)
                assert (np.diff(records.astype(np.int64)) == 3).all()
                last = int(records[-1])
                some = notes.records(2, last - 60, last)
                assert ((some >= last - 60) & (some <= last)).all()
                selected = notes.select(*WHOLE)
                assert (selected.voids % np.uint64(3) == 1).all()
                notes.is_void(last + 1)
                reads[number] += 1
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            failures.append(error)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    try:
        for thread in threads:
            thread.start()
        index, step = 3, 0
        while (step < 4000 or min(reads) < 100) and not failures:
            index += 3
            step += 1
            notes.add_record(1, index)
            notes.add_record(2, index)
            notes.add_void(index + 1, index + 1)
            if step % 10 == 0:
                notes.forget_through(index - 3000)
            if step % 700 == 0:
                notes.cut_from(index - 30 + 1)
                index -= 30
    finally:
        done.set()
        sys.setswitchinterval(interval_s)
        for thread in threads:
            thread.join()

    assert not failures, failures[0]
