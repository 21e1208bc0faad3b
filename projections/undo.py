"""Undo: how a batch or a transaction rolls back what it did.

State changes are noted as the call that reverses them. Rolling back runs those calls from the
newest to the oldest, so each finds the state that its change produced. Work that
cannot be undone (freeing a value that was moved out of memory) waits for the commit.

Nesting is by marks: a transaction in a batch rolls back to its own mark and the batch continues.
"""

from collections.abc import Callable


class UndoLog:
    """The changes since ``begin``; when inactive it costs one test per change."""

    __slots__ = ("_changes", "_deferred", "active")

    def __init__(self) -> None:
        self.active = False
        self._changes: list[Callable[[], None]] = []
        self._deferred: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Start noting changes."""
        assert not self.active, "an undo log is begun once"
        self.active = True

    def note(self, reverse: Callable[[], None]) -> None:
        """Note the call that reverses a change that is being made."""
        if self.active:
            self._changes.append(reverse)

    def defer(self, work: Callable[[], None]) -> None:
        """Do ``work`` once it can no longer be rolled back: now, or at the commit."""
        if self.active:
            self._deferred.append(work)
        else:
            work()

    def mark(self) -> tuple[int, int]:
        """Return the argument for ``rollback_to``."""
        return len(self._changes), len(self._deferred)

    def rollback_to(self, mark: tuple[int, int]) -> None:
        """Roll back everything since ``mark``."""
        assert self.active, "nothing to roll back"
        self.active = False  # the reversing calls must not be noted themselves
        changes, deferred = mark
        while len(self._changes) > changes:
            self._changes.pop()()
        del self._deferred[deferred:]
        self.active = True

    def commit(self) -> None:
        """Keep everything and do what was deferred."""
        assert self.active, "nothing to commit"
        self.active = False
        self._changes.clear()
        deferred, self._deferred = self._deferred, []
        for work in deferred:
            work()

    def rollback(self) -> None:
        """Roll back everything and stop."""
        self.rollback_to((0, 0))
        self.active = False
