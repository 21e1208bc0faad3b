"""Tables of immutable values that hash their rows and can be rolled back.

All state of streams except the counters of a partition is in such tables. ``set`` is the only way
to change one. It also updates everything derived from a change (hash, undo, indexes of subclasses),
so a rollback is a ``set`` of the old value.

Invariants: ``total`` is the sum of the items of the rows; ``StreamIndexes.total`` is the sum over
all tables and settled partitions that are attached, that is, belong to a stream that exists.
"""

from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from sortedcontainers import SortedDict  # type: ignore[import-untyped]

from onelog.projections.deadlines import Deadlines
from onelog.projections.undo import UndoLog

if TYPE_CHECKING:
    from onelog.projections.stream.groups import Group
    from onelog.projections.stream.partition import Partition

Key = TypeVar("Key", int, str)
Value = TypeVar("Value")


class StreamIndexes:
    """Shared by the tables of all streams: the undo log, the hash, and indexes across streams."""

    __slots__ = (
        "dead_groups",
        "dirty",
        "member_deadlines",
        "member_groups",
        "partitions",
        "retention",
        "total",
        "undo",
    )

    def __init__(self) -> None:
        self.undo = UndoLog()
        self.total = 0
        self.dirty: list[Partition] = []  # partitions whose counters moved since they were hashed
        self.partitions: dict[int, Partition] = {}  # by their ids in the log
        self.member_deadlines: Deadlines[int] = Deadlines()
        self.member_groups: dict[int, Group] = {}
        self.retention: Deadlines[int] = Deadlines()  # at or before the time when a trim is due
        self.dead_groups: dict[int, Group] = {}  # groups with records that wait to be moved

    def settle(self) -> int:
        """Hash the dirty partitions; return the unreduced hash of all streams."""
        for partition in self.dirty:
            partition.dirty = False
            if partition.attached:
                digest = partition.item()
                self.total += digest - partition.digest
                partition.digest = digest
        self.dirty.clear()
        return self.total


class Rows(Generic[Key, Value]):
    """A table from keys to immutable values; ``item`` hashes one row."""

    __slots__ = ("_indexes", "_item", "rows", "total")

    def __init__(
        self, indexes: StreamIndexes, item: Callable[[Key, Value], int], *, ordered: bool = False
    ) -> None:
        self._indexes = indexes
        self._item: Callable[[Key, Value], int] = item
        self.rows: MutableMapping[Key, Value] = SortedDict() if ordered else {}
        self.total = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the keys in order."""
        return iter(sorted(self.rows))

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, if there is one."""
        return self.rows.get(key)

    def set(self, key: Key, value: Value | None) -> None:
        """Set, replace or (None) remove a row."""
        before = self.rows.get(key)
        change = 0
        if before is not None:
            change -= self._item(key, before)
        if value is not None:
            change += self._item(key, value)
            self.rows[key] = value
        elif before is not None:
            del self.rows[key]
        self.total += change
        self._indexes.total += change
        self.follow(key, before, value)
        if self._indexes.undo.active:
            self._indexes.undo.note(partial(self.set, key, before))

    def follow(self, key: Key, before: Value | None, value: Value | None) -> None:
        """Update what a subclass derives from the rows."""

    def attach(self) -> None:
        """Count in the hash of all streams again."""
        self._indexes.total += self.total

    def detach(self) -> None:
        """Stop counting in the hash: the stream is deleted."""
        self._indexes.total -= self.total

    def check(self) -> None:
        """Assert the invariants of this file."""
        assert self.total == sum(self._item(key, value) for key, value in self.rows.items())
