"""Undo: what a batch or a transaction needs to take back what it did.

State changes are noted as the call that reverses them. Rolling back runs those calls from the
newest to the oldest, so each of them finds the state that its change left behind. Work that
cannot be taken back (freeing a value that was moved out of memory) waits for the commit.

Nesting is by marks: a transaction inside a batch rolls back to its own mark and the batch goes on.
"""

from collections.abc import Callable


class UndoLog:
    """The changes since ``begin``; outside of one it is inactive and costs a test per change."""

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
        """Note the call that takes back a change that is being made."""
        if self.active:
            self._changes.append(reverse)

    def defer(self, work: Callable[[], None]) -> None:
        """Do ``work`` when nothing can be taken back any more: now, or at the commit."""
        if self.active:
            self._deferred.append(work)
        else:
            work()

    def mark(self) -> tuple[int, int]:
        """Return the place to which ``rollback_to`` can return."""
        return len(self._changes), len(self._deferred)

    def rollback_to(self, mark: tuple[int, int]) -> None:
        """Take back everything since ``mark``."""
        assert self.active, "nothing to take back"
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
        """Take back everything and stop."""
        self.rollback_to((0, 0))
        self.active = False
