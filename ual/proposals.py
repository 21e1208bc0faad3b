"""Proposals by number: what Raft sees of the log.

Raft counts proposals, the log counts entries; a proposal is one group. Nothing here holds a group:
a ``ProposalRange`` is a window of numbers that costs nothing to slice, and bytes are read when one
item is asked for, because Raft libraries like to ask for ``log[n:]`` and use one of it.

Only the thread that changes the log uses this: it goes past the commit index.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, overload

from onelog.ual.entry import decode_entry
from onelog.ual.errors import IndexDropped, IndexInFuture
from onelog.ual.ring import HotRing
from onelog.ual.segments.chain import SegmentSet
from onelog.ual.segments.unsealed import UnsealedSegment


class GroupedLog(Protocol):
    """What is needed of a log."""

    ring: HotRing
    segments: SegmentSet
    durable_index: int

    @property
    def first_proposal(self) -> int:
        """The number of the first group that is kept."""

    @property
    def last_proposal(self) -> int:
        """The number of the last group."""


class ProposalRange(Sequence[bytes]):
    """The stored groups of the proposals ``numbers``, read one by one when asked for."""

    __slots__ = ("_read", "numbers")

    def __init__(self, read: Callable[[int], bytes], numbers: range) -> None:
        self._read = read
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> "ProposalRange": ...
    def __getitem__(self, at: int | slice) -> "bytes | ProposalRange":
        if isinstance(at, slice):
            return ProposalRange(self._read, self.numbers[at])
        return self._read(self.numbers[at])


class Proposals:
    """The groups of a log by number."""

    __slots__ = ("_log",)

    def __init__(self, log: GroupedLog) -> None:
        self._log = log

    @property
    def durable(self) -> int:
        """The number of the last group that is durable."""
        return self.of_index(self._log.durable_index)

    def all(self) -> ProposalRange:
        """Return every kept proposal, lazily."""
        return ProposalRange(
            self.data, range(self._log.first_proposal, self._log.last_proposal + 1)
        )

    def data(self, number: int) -> bytes:
        """Return the stored group; verified, unless it comes from memory."""
        first_index, last_index = self.indexes(number)
        data = self._log.ring.read_range(first_index, last_index)
        return data if data is not None else self._log.segments.proposal(number).data

    def indexes(self, number: int) -> tuple[int, int]:
        """Return the first and last index of a proposal."""
        first, last = self._log.first_proposal, self._log.last_proposal
        if not first <= number <= last:
            raise (IndexDropped if number < first else IndexInFuture)(number, first, last)
        return self._log.segments.proposal_range(number)

    def term(self, number: int) -> int:
        """Return the term of a proposal."""
        first_index, _ = self.indexes(number)
        data = self._log.ring.read(first_index)
        return decode_entry(data).term if data else self._log.segments.read(first_index).term

    def of_index(self, index: int) -> int:
        """Return the proposal of an index that is not sealed, or is the last that is."""
        for segment in reversed(self._log.segments.segments):
            assert isinstance(segment, UnsealedSegment), (index, segment.last_index)
            if segment.first_index <= index:
                return segment.proposal_of(index)
            if segment.first_index == index + 1:
                return segment.first_proposal - 1
        raise AssertionError(f"index {index} is not in the log")
