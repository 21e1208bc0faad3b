"""The undo log: reversed order, marks, and work that waits."""

import pytest

from onelog.projections.undo import UndoLog


def test_changes_are_taken_back_from_the_newest_to_the_oldest() -> None:
    undo, done = UndoLog(), list[str]()
    undo.begin()
    undo.note(lambda: done.append("first"))
    undo.note(lambda: done.append("second"))

    undo.rollback()

    assert done == ["second", "first"]
    assert not undo.active


def test_nothing_is_noted_outside_of_a_batch() -> None:
    undo, done = UndoLog(), list[str]()
    undo.note(lambda: done.append("never"))
    undo.defer(lambda: done.append("at once"))
    assert done == ["at once"]

    undo.begin()
    undo.rollback()

    assert done == ["at once"]


def test_a_mark_divides_what_is_taken_back_from_what_stays() -> None:
    undo, done = UndoLog(), list[str]()
    undo.begin()
    undo.note(lambda: done.append("outer"))
    undo.defer(lambda: done.append("outer work"))
    mark = undo.mark()
    undo.note(lambda: done.append("inner"))
    undo.defer(lambda: done.append("inner work"))

    undo.rollback_to(mark)
    assert done == ["inner"]
    undo.commit()

    assert done == ["inner", "outer work"]


def test_deferred_work_is_dropped_by_a_rollback_and_done_by_a_commit() -> None:
    undo, done = UndoLog(), list[str]()
    undo.begin()
    undo.defer(lambda: done.append("dropped"))
    undo.rollback()
    undo.begin()
    undo.defer(lambda: done.append("done"))
    assert done == []
    undo.commit()
    assert done == ["done"]


def test_a_batch_inside_of_a_batch_is_a_programmers_error() -> None:
    undo = UndoLog()
    undo.begin()
    with pytest.raises(AssertionError):
        undo.begin()
    undo.commit()
    with pytest.raises(AssertionError):
        undo.commit()
