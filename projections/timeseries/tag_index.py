"""The tag index of one measurement: which series have which value of which tag.

Ids of series rise with their creation, so every list here is ascending by appending. Removing
walks whole lists once per call, not once per series: an entry that deletes a thousand
series of a million costs milliseconds. Lists are replaced, never shortened in place, so
undoing a removal puts the old lists back.

A selection may be made by another thread than the one that changes the state (``cut``): what a
cut holds is only ever appended to, by ids above those of the cut, or replaced by other lists. It is
read by single operations on lists and arrays, which the interpreter does not interrupt.

Derived data: rebuilt by loading, not part of the state hash.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from onelog.projections.timeseries.names import CompiledMatcher, Tags
from onelog.projections.undo import UndoLog

Ids = NDArray[np.uint64]

PAUSE_VALUES = 64  # of a tag, between two pauses of a selection
POSTING_SIZE = 220  # bytes of a value with one series: texts, list, slots of the tables
_NONE: Ids = np.empty(0, dtype=np.uint64)


class TagIndex:
    """The series of one measurement by tag and value."""

    __slots__ = ("_tags", "_undo", "ids", "posting_count")

    def __init__(self, undo: UndoLog) -> None:
        self._undo = undo
        self.ids = array("Q")
        self._tags: dict[str, dict[str, array[int]]] = {}
        self.posting_count = 0

    def add(self, series_id: int, tags: Tags) -> None:
        """Add a series whose id is above all others."""
        assert not self.ids or series_id > self.ids[-1], f"{series_id} after {self.ids[-1]}"
        self.ids.append(series_id)
        for tag, value in tags:
            values = self._tags.setdefault(tag, {})
            posting = values.get(value)
            if posting is None:
                posting = values[value] = array("Q")
                self.posting_count += 1
            posting.append(series_id)
        self._undo.note(partial(self._take_last, series_id, tags))

    def remove(self, removed: Sequence[tuple[int, Tags]]) -> None:
        """Remove series that are there."""
        gone = np.array(sorted(series_id for series_id, _ in removed), dtype=np.uint64)
        touched: dict[tuple[str, str], None] = {}
        for _, tags in removed:
            touched.update(dict.fromkeys(tags))
        before: list[tuple[str, str, array[int]]] = []
        for tag, value in touched:
            values = self._tags[tag]
            before.append((tag, value, values[value]))
            rest = _without(values[value], gone)
            if rest:
                values[value] = rest
                continue
            del values[value]
            self.posting_count -= 1
            if not values:
                del self._tags[tag]
        self._undo.note(partial(self._put_back, self.ids, before))
        self.ids = _without(self.ids, gone)

    def cut(self, tests: Sequence[CompiledMatcher]) -> "IndexCut":
        """Return the postings that the tests need, for a selection on any thread."""
        values = []
        for test in tests:
            postings = self._tags.get(test.tag, {})
            if test.only_value is None:
                values.append((list(postings), list(postings.values())))
            else:  # all other values pass or fail alike
                one = postings.get(test.only_value)
                values.append(([], []) if one is None else ([test.only_value], [one]))
        return IndexCut(tests, self.ids, values)

    def select(self, tests: Sequence[CompiledMatcher]) -> Ids:
        """Return the ids of the series that pass all tests, ascending."""
        return self.cut(tests).select()

    def after(self, series_id: int) -> Iterator[int]:
        """Iterate over the ids above ``series_id``."""
        start = int(np.searchsorted(as_ids(self.ids), np.uint64(series_id), side="right"))
        ids = self.ids
        return (ids[at] for at in range(start, len(ids)))

    def tags(self) -> dict[str, int]:
        """Return how many values each tag has, by tag."""
        return {tag: len(self._tags[tag]) for tag in sorted(self._tags)}

    def memory(self) -> int:
        """Return the bytes held."""
        depth = 8 * sum(map(len, self._tags))
        return self.posting_count * POSTING_SIZE + 8 * len(self.ids) * (1 + len(self._tags)) + depth

    def check(self, series: Iterable[tuple[int, Tags]]) -> None:
        """Assert that exactly these series are in here."""
        fresh = TagIndex(UndoLog())
        for series_id, tags in series:
            fresh.add(series_id, tags)
        assert fresh.ids == self.ids, "the index knows other series"
        assert fresh._tags == self._tags, "the index has other values"
        assert fresh.posting_count == self.posting_count, "values are counted wrong"

    def _take_last(self, series_id: int, tags: Tags) -> None:
        assert self.ids.pop() == series_id, f"{series_id} is not the last"
        for tag, value in tags:
            values = self._tags[tag]
            values[value].pop()
            if not values[value]:
                del values[value]
                self.posting_count -= 1
                if not values:
                    del self._tags[tag]

    def _put_back(self, ids: "array[int]", before: list[tuple[str, str, "array[int]"]]) -> None:
        self.ids = ids
        for tag, value, posting in before:
            values = self._tags.setdefault(tag, {})
            if value not in values:
                self.posting_count += 1
            values[value] = posting


class IndexCut:
    """The series at one moment, for a selection on any thread."""

    __slots__ = ("_count", "_ids", "_tests", "_values", "last_id")

    def __init__(
        self,
        tests: Sequence[CompiledMatcher],
        ids: "array[int]",
        values: list[tuple[list[str], list["array[int]"]]],
    ) -> None:
        self.last_id = ids[-1] if ids else 0
        self._tests = tests
        self._ids = ids
        self._count = len(ids)
        self._values = values

    @property
    def effort(self) -> int:
        """The number of tag values that are tested one by one."""
        return sum(len(values) for values, _ in self._values)

    def select(self, pause: Callable[[], None] = lambda: None) -> Ids:
        """Return the ids that pass all tests, ascending; ``pause`` is called now and then."""
        found = as_ids(self._ids)[: self._count]
        for test, (values, postings) in zip(self._tests, self._values, strict=True):
            keeps_others = test.passes("")
            chosen = array("Q")
            for number, (value, ids) in enumerate(zip(values, postings, strict=True)):
                if number % PAUSE_VALUES == 0:
                    pause()
                if test.passes(value) is not keeps_others:
                    chosen.extend(ids)
            # Ids above the cut may have been added since; they are not in the result.
            others = as_ids(chosen)
            found = found[np.isin(found, others, assume_unique=True, invert=keeps_others)]
        return found


def as_ids(ids: "array[int]") -> Ids:
    """Return a copy of ``ids`` for numpy; the list cannot grow while a view of it exists."""
    return np.frombuffer(ids.tobytes(), dtype=np.uint64) if ids else _NONE


def _without(ids: "array[int]", gone: Ids) -> "array[int]":
    kept = as_ids(ids)
    kept = kept[np.isin(kept, gone, assume_unique=True, invert=True)]
    return array("Q", kept.tobytes())
