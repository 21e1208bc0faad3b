"""The Raft log is the Unified Append Log: pysyncobj's journal interface over ``ual.log.Log``.

pysyncobj numbers proposals 1, 2, 3, …; each is one group of the log. An item is a triple (command,
number, term). A command is one byte of pysyncobj's own (0 data, 1 no-op), then the stored group;
without that byte, one group in 256 would be taken for a membership change. Invariants:

* Nothing is held twice: items read their bytes from the log when they are asked for.
* What is in the log stays there until another term takes its place. pysyncobj deletes what follows
  an append, even if it is the same, and a late duplicate would take acknowledged entries with it;
  so ``deleteEntriesFrom`` does nothing, and ``add`` cuts only where the terms differ.
* Term and vote are durable when ``setCurrentTerm`` returns.
* The first proposal of a new log is a no-op of term 0 and time 0, the same bytes on every replica.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, overload
from uuid import UUID

from cluster.errors import Diverged
from ual.entry import TYPE_NOOP, Draft, check_group
from ual.errors import CorruptEntry
from ual.hard_state import HardStateFile
from ual.log import Log

KIND_DATA = b"\0"
KIND_NOOP = b"\1"
_TYPE_AT = slice(4, 6)
_TERM_AT = slice(8, 16)
_NOOP_TYPE = TYPE_NOOP.to_bytes(2, "little")
_NOOP = (Draft(TYPE_NOOP, b""),)


class Proposal(NamedTuple):
    """What a leader hands to pysyncobj: entries that have no index, term and time yet."""

    drafts: Sequence[tuple[int, bytes, int]]


class Item:
    """One proposal as pysyncobj sees it: a triple whose first part is read when needed."""

    __slots__ = ("_log", "number", "term")

    def __init__(self, log: Log, number: int, term: int) -> None:
        self._log = log
        self.number = number
        self.term = term

    def __getitem__(self, at: int) -> Any:
        if at == 1:
            return self.number
        if at == 2:
            return self.term
        assert at == 0, at
        return command_of(self._log.proposals.data(self.number))


class Items(Sequence[Item]):
    """A range of items; slicing it reads nothing."""

    __slots__ = ("_journal", "_numbers")

    def __init__(self, journal: "RaftJournal", numbers: range) -> None:
        self._journal = journal
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> "Items": ...
    def __getitem__(self, at: int | slice) -> "Item | Items":
        if isinstance(at, slice):
            return Items(self._journal, self._numbers[at])
        return self._journal.item(self._numbers[at])


class RaftJournal:
    """See the module's text. ``is_leading`` says whether ``add`` stamps or verifies."""

    def __init__(
        self,
        log: Log,
        hard_state: HardStateFile,
        now_ns: Callable[[], int],
        *,
        start: int = 1,
        start_term: int = 0,
    ) -> None:
        self.log = log
        self.is_leading: Callable[[], bool] = lambda: False  # the member sets it
        # The window that Raft works in begins with this proposal; its body may be gone.
        self.start = start
        self._start_term = start_term
        self._hard_state = hard_state
        self._now_ns = now_ns
        self._last = start
        self._last_term = start_term
        if log.last_proposal >= log.first_proposal:
            self._note_last()
        else:
            assert start == 1, "a window that begins later needs its entries"

    # What pysyncobj calls

    def add(self, command: Any, number: int, term: int) -> None:
        """Append a proposal; see the module's text for what happens to one that is there."""
        if self._is_empty:
            assert (command, number, term) == (KIND_NOOP, 1, 0), (number, term)
            self.log.append(_NOOP, term=0, timestamp_ns=0)
        elif self.is_leading():
            assert number == self._last + 1, (number, self._last)
            drafts = _NOOP if command == KIND_NOOP else command.drafts
            self.log.append(drafts, term=term, timestamp_ns=self._now_ns())
        elif not self._add_as_follower(command, number, term):
            return
        self._note_last()

    def clear(self) -> None:
        """Refuse: nothing may empty the log."""
        raise AssertionError("pysyncobj tried to clear the log")

    def deleteEntriesFrom(self, _at: int) -> None:  # noqa: N802 - pysyncobj's name
        """Do nothing: ``add`` decides what must go."""

    def deleteEntriesTo(self, at: int) -> None:  # noqa: N802
        """Move Raft's own start; what storage keeps is the business of retention."""
        self.move_start(self.start + at)

    def __len__(self) -> int:
        return 0 if self._is_empty else self._last - self.start + 1

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> Items: ...
    def __getitem__(self, at: int | slice) -> "Item | Items":
        if isinstance(at, slice):
            return Items(self, range(self.start, self._last + 1)[at])
        return self.item(range(self.start, self._last + 1)[at])

    def __iter__(self) -> Iterator[Item]:
        return iter(self[:])

    def setCurrentTerm(self, term: int, vote: UUID | None) -> None:  # noqa: N802
        """Make term and vote durable."""
        self._hard_state.save(term, vote)

    def getCurrentTerm(self) -> int:  # noqa: N802
        """Return the durable term."""
        return self._hard_state.term

    def getVotedForNodeId(self) -> UUID | None:  # noqa: N802
        """Return the durable vote."""
        return self._hard_state.vote

    def setRaftCommitIndex(self, _number: int) -> None:  # noqa: N802
        """Do nothing: the member marks what is committed, when it applies it."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """Return where pysyncobj should start; the member sets the real value right after."""
        return self.start

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Do nothing: hints are written with each sync."""

    def _destroy(self) -> None:
        """Do nothing: the log belongs to the shard."""

    # What the member asks

    @property
    def last(self) -> int:
        """The number of the last proposal."""
        return self._last

    @property
    def last_term(self) -> int:
        """The term of the last proposal."""
        return self._last_term

    @property
    def durable(self) -> int:
        """The number of the last proposal that this replica has synced."""
        return self.log.proposals.durable

    def item(self, number: int) -> Item:
        """Return one item of the window."""
        return Item(self.log, number, self.term_of(number))

    def term_of(self, number: int) -> int:
        """Return the term of a proposal of the window."""
        if number == self._last:
            return self._last_term
        if number == self.start:
            return self._start_term
        return self.log.proposals.term(number)

    def move_start(self, number: int) -> None:
        """Let the window begin later."""
        assert self.start <= number <= self._last, (self.start, number, self._last)
        self._start_term = self.term_of(number)
        self.start = number

    @property
    def _is_empty(self) -> bool:
        return self.log.last_proposal < self.log.first_proposal

    def _note_last(self) -> None:
        self._last = self.log.last_proposal
        self._last_term = self.log.last_term

    def _add_as_follower(self, command: bytes, number: int, term: int) -> bool:
        """Store a group as the leader sent it; return whether the log changed."""
        data = memoryview(command)[1:]
        if number <= self._last:
            if number <= self.start:
                return False
            if self.term_of(number) == term:
                if self.log.proposals.data(number) != data:
                    raise Diverged(number, term)
                return False
            self.log.truncate_from(self.log.proposals.indexes(number)[0])
            self._note_last()
        assert number == self._last + 1, (number, self._last)
        # From a peer: nothing about it is trusted before this.
        group = check_group(data, 0, self.log.last_index + 1, self.log.last_timestamp_ns)
        if len(group.data) != len(data):
            raise CorruptEntry(len(group.data), "bytes follow the group of a proposal")
        self.log.append_group(group)
        return True


def command_of(data: bytes) -> bytes:
    """Return the command of a stored group."""
    return (KIND_NOOP if data[_TYPE_AT] == _NOOP_TYPE else KIND_DATA) + data


def term_of_group(data: bytes) -> int:
    """Return the term that a stored group was written in."""
    return int.from_bytes(data[_TERM_AT], "little")
