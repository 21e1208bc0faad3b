"""How durable a write is when it is answered, and what is answered then.

``SYNC``, the default: a majority has synced the entries, they are committed and applied, and the
answer is their results. Only the loss of the disks of a majority takes them away.

``ASYNC``: a majority, the leader included, has *written* the entries, and the answer is
``Received``. Nothing is visible yet: commit and apply wait for the syncs of a majority as always,
and follow by themselves. Until then the entries survive processes that die, but each replica that
loses its power before its sync forgets them. If that leaves a majority without them, and those that
still have them cannot vote, they are gone. An answer that comes before apply has no result, so
operations that need one are refused with ``ResultNeeded`` (``projections/early_answers.py``
decides). Other failures are those of any proposal.

Only the present leadership answers: what an earlier one wrote may still be replaced, however many
have it, until something of the present term is committed. Such a request waits for its apply.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from onelog.cluster.errors import ResultNeeded
from onelog.projections.early_answers import needs_result


class Durability(Enum):
    """When a write is answered."""

    SYNC = "sync"
    ASYNC = "async"


@dataclass(frozen=True, slots=True)
class Received:
    """A majority has written the entries ``first_index`` … ``last_index``; not applied yet."""

    first_index: int
    last_index: int

    def part(self, at: int, count: int) -> "Received":
        """Return the same about some of the entries."""
        assert at + count <= self.last_index - self.first_index + 1
        return Received(self.first_index + at, self.first_index + at + count - 1)


def refusal_of(drafts: Sequence[tuple[int, bytes, int]]) -> ResultNeeded | None:
    """Return why these entries cannot be ASYNC, if they cannot."""
    for entry_type, payload, flags in drafts:
        if needs_result((entry_type, payload, flags)):
            return ResultNeeded(f"entry type {entry_type:#06x} has a result to wait for; use SYNC")
    return None


class Early:
    """The proposals of one term that hold ASYNC requests and are not received yet, in order."""

    def __init__(self) -> None:
        self._term = 0
        self._numbers: deque[int] = deque()

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def note(self, number: int, term: int) -> None:
        """A proposal has ASYNC requests."""
        if term != self._term:  # those of an earlier one wait for their apply
            self._term = term
            self._numbers.clear()
        self._numbers.append(number)

    def take(self, term: int, received: int) -> list[int]:
        """Return those that a majority has received by now, in this term."""
        numbers = []
        while self._numbers and term == self._term and self._numbers[0] <= received:
            numbers.append(self._numbers.popleft())
        return numbers
