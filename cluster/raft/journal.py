"""The Raft log is the Unified Append Log: pysyncobj's journal interface over ``ual.log.Log``.

pysyncobj numbers proposals 1, 2, 3, …; each is one group of the log. An item is a triple (command,
number, term). A command is one byte of pysyncobj's own (0 data, 1 no-op), then the stored group;
without that byte, one group in 256 would be taken for a membership change. Invariants:

* Nothing is held twice: items read their bytes from the log when they are accessed.
* An entry stays in the log until one of another term replaces it. pysyncobj deletes what follows
  an append, even if it is the same, and a late duplicate would take acknowledged entries with it;
  so ``deleteEntriesFrom`` does nothing, and ``add`` cuts only where the terms differ.
* What a peer sent is verified as a whole before any of it is stored, and before anything is cut for
  it: a damaged message must not cost an entry that this replica has acknowledged.
* Term and vote are durable when ``setCurrentTerm`` returns.
* The first proposal of a new log is a no-op of term 0 and time 0, the same bytes on every replica.
* The window may begin at a proposal whose body is not in the log: the base of a snapshot that a
  peer sent (``begin_at_base``). Its number, term and time are known, and Raft needs no more of it.
* ``membership`` is that of the newest ``raft_config`` in the log, after each add and cut. On the
  leader such an entry is durable before any peer receives it: its author can always be elected.

A full disk (``DiskFull``) refuses one ``add``, and what was added before it stays.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, overload
from uuid import UUID

from onelog.cluster.errors import Diverged
from onelog.cluster.raft.membership import Membership, decode_membership
from onelog.projections.system.commands import TYPE_RAFT_CONFIG
from onelog.ual.entry import TYPE_NOOP, Draft, Group, check_group, decode_entries, decode_entry
from onelog.ual.errors import CorruptEntry, CorruptFile, CorruptPayload, PayloadTooLarge
from onelog.ual.hard_state import HardStateFile
from onelog.ual.log import Log
from onelog.ual.segments.sealed import DamagedSegment
from onelog.ual.segments.unsealed import UnsealedSegment

KIND_DATA = b"\0"
KIND_NOOP = b"\1"
_TYPE_AT = slice(4, 6)
_NOOP_TYPE = TYPE_NOOP.to_bytes(2, "little")
_CONFIG_TYPE = TYPE_RAFT_CONFIG.to_bytes(2, "little")
_NOOP = (Draft(TYPE_NOOP, b""),)


class Proposal(NamedTuple):
    """What a leader passes to pysyncobj: drafts, without index, term and time."""

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
        return to_command(self._log.proposals.data(self.number))


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
    """See the module. ``is_leading`` decides whether ``add`` stamps or verifies.

    ``last`` and ``last_term`` are the number and the term of the last proposal, ``membership`` is
    the one by the newest ``raft_config`` in the log.
    """

    def __init__(
        self,
        log: Log,
        hard_state: HardStateFile,
        now_ns: Callable[[], int],
        founders: Membership,
    ) -> None:
        self.log = log
        self.is_leading: Callable[[], bool] = lambda: False  # the member sets both
        self.on_membership: Callable[[], None] = lambda: None
        self._hard_state = hard_state
        self.now_ns = now_ns  # log time, while this member leads
        # Which proposals changed the membership, oldest first; the first one is settled.
        self._memberships: list[tuple[int, Membership]] = [(0, founders)]
        self.membership = founders
        # The window that Raft works in begins with this proposal, whose body need not be here.
        self.start = 1
        self.last = self.last_term = 0
        self._last_term_from = 0  # from here on all have the last term, since terms never fall
        self._start_term = 0
        # The last durable proposal, cached for this durable index and generation of the log.
        self._durable = 0
        self._durable_place = (0, -1)
        self._is_empty = log.last_proposal < log.first_proposal and log.base is None
        if self._is_empty:
            assert log.first_proposal == 1, "a log that begins later needs its entries"
        else:
            self._note_last()
            self._find_start()

    # What pysyncobj calls

    def add(self, command: Any, number: int, term: int) -> None:
        """Append a proposal; see the module for one whose number is in the log already."""
        try:
            if self._is_empty:
                assert (command, number, term) == (KIND_NOOP, 1, 0), (number, term)
                self.log.append(_NOOP, term=0, timestamp_ns=0)
                self._is_empty = False  # from now on: what is committed is never cut
            elif self.is_leading():
                self._add_as_leader(command, number, term)
            else:
                self._add_as_follower(command, number, term)
        finally:
            self._note_last()

    def clear(self) -> None:
        """Refuse: nothing may empty the log."""
        raise AssertionError("pysyncobj tried to clear the log")

    def deleteEntriesFrom(self, _at: int) -> None:  # noqa: N802 - pysyncobj's name
        """Do nothing: ``add`` decides what is cut."""

    def deleteEntriesTo(self, at: int) -> None:  # noqa: N802
        """Move Raft's own start; retention decides what storage keeps."""
        self.move_start(self.start + at)

    def __len__(self) -> int:
        return 0 if self._is_empty else self.last - self.start + 1

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> Items: ...
    def __getitem__(self, at: int | slice) -> "Item | Items":
        if at == -1:  # as pysyncobj asks most often
            return Item(self.log, self.last, self.last_term)
        if isinstance(at, slice):
            return Items(self, range(self.start, self.last + 1)[at])
        return self.item(range(self.start, self.last + 1)[at])

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
    def durable(self) -> int:
        """The number of the last proposal that this replica has synced."""
        log = self.log
        if log.durable_index == log.last_index:
            return self.last
        place = (log.durable_index, log.generation)
        if place != self._durable_place:  # asked for a dozen times per group
            self._durable, self._durable_place = log.proposals.durable, place
        return self._durable

    @property
    def membership_number(self) -> int:
        """The proposal with that ``raft_config``."""
        return self._memberships[-1][0]

    def find_membership(self, number: int) -> Membership:
        """Return the membership as of a proposal that is committed."""
        known = [membership for at, membership in self._memberships if at <= number]
        return known[-1] if known else self._memberships[0][1]

    def recover_membership(self, applied: int, config: bytes) -> None:
        """Start from the membership in the applied state, then read the changes in the log."""
        if config:
            self.membership = decode_membership(config)
            self._memberships = [(0, self.membership)]
        for number in range(max(applied + 1, self.start), self.last + 1):
            data = self.log.proposals.data(number)
            if data[_TYPE_AT] == _CONFIG_TYPE:
                self._note_membership(number, data)

    def begin_at_base(self, config: bytes) -> None:
        """Continue after a snapshot that a peer sent, with the membership in it."""
        self._note_last()
        self._find_start()
        founders = self._memberships[0][1]
        self.membership = decode_membership(config) if config else founders
        self._memberships = [(0, self.membership)]
        self.on_membership()

    def holds(self, number: int, term: int) -> bool:
        """Return whether the window has the proposal with this number and term."""
        return self.start <= number <= self.last and self.find_term(number) == term

    def check(self, previous: int, groups: Sequence[bytes], term_max: int) -> list[Group]:
        """Verify groups that a peer sent, which follow a proposal that is held here.

        Nothing about them is trusted before this. Raises ``EntryError``.
        """
        index, timestamp_ns = self._find_end(previous)
        term = self.find_term(previous)
        checked = []
        for data in groups:
            group = check_group(data, 0, index + 1, timestamp_ns, alone=TYPE_RAFT_CONFIG)
            if len(group.data) != len(data):
                raise CorruptEntry(len(group.data), "bytes follow the group of a proposal")
            if not term <= group.term <= term_max:
                raise CorruptEntry(0, f"term {group.term} between {term} and {term_max}")
            if data[_TYPE_AT] == _CONFIG_TYPE:
                _membership_in(group.data)
            index, timestamp_ns, term = group.last_index, group.last_timestamp_ns, group.term
            checked.append(group)
        return checked

    def item(self, number: int) -> Item:
        """Return one item of the window."""
        return Item(self.log, number, self.find_term(number))

    def find_term(self, number: int) -> int:
        """Return the term of a proposal of the window."""
        if self._last_term_from <= number <= self.last:
            return self.last_term
        if number == self.start:
            return self._start_term
        return self.log.proposals.term(number)

    def move_start(self, number: int) -> None:
        """Move the start of the window up; raise ``CorruptFile`` if that proposal is damaged."""
        assert self.start <= number <= self.last, (self.start, number, self.last)
        if number not in (self.start, self.last):
            # Read from disk, not from memory: entries before a damaged one must not be dropped.
            self._start_term = self.log.proposals.term(number)
        else:
            self._start_term = self.find_term(number)
        self.start = number

    def _find_start(self) -> None:
        """Begin the window at the earliest whole group, or at the log's base."""
        log, base = self.log, self.log.base
        start = log.first_proposal
        for segment in log.segments.segments:
            if not isinstance(segment, UnsealedSegment) and (
                segment.is_compacted or isinstance(segment, DamagedSegment)
            ):
                start = log.segments.after(segment).first_proposal
        if base is not None and base.proposal + 1 >= start:
            self.start, self._start_term = base.proposal, base.term
            return
        path = str(log.segments.segments[-1].path)
        damage = CorruptFile(path, "no whole proposal is left before it")
        starts = [each.first_proposal for each in log.segments.segments]
        for number in [each for each in starts if start <= each <= log.last_proposal]:
            try:
                self.start, self._start_term = number, log.proposals.term(number)
            except CorruptFile as error:
                damage = error  # the window begins after a damaged segment
            else:
                return
        raise damage

    def _find_end(self, number: int) -> tuple[int, int]:
        """Return the last index of a proposal and the time of that entry."""
        log = self.log
        if number == self.last:
            return log.last_index, log.last_timestamp_ns
        base = log.base
        if base is not None and number == base.proposal:
            return base.index, base.timestamp_ns
        index = log.proposals.indexes(number)[1]
        data = log.ring.read(index)
        entry = decode_entry(data) if data else log.segments.read(index)
        return index, entry.timestamp_ns

    def _note_last(self) -> None:
        term = self.log.last_term
        self.last = self.log.last_proposal
        if term != self.last_term or self.last < self._last_term_from:
            self.last_term, self._last_term_from = term, self.last

    def _add_as_leader(self, command: Any, number: int, term: int) -> None:
        assert number == self.last + 1, (number, self.last)
        drafts = _NOOP if command == KIND_NOOP else command.drafts
        group = self.log.append(drafts, term=term, timestamp_ns=self.now_ns())
        # A change of members takes effect here. A crash before its sync breaks no promise: nothing
        # from it on is committed before this replica has synced it.
        if group.data[_TYPE_AT] == _CONFIG_TYPE:
            self._note_membership(number, group.data)

    def _add_as_follower(self, group: Group, number: int, term: int) -> None:
        """Store a group that ``check`` has verified."""
        assert group.term == term, (group.term, term)
        if number <= self.last:
            if number <= self.start:
                return
            if self.find_term(number) == term:
                if self.log.proposals.data(number) != group.data:
                    raise Diverged(number, term)
                return
            self._cut_from(number, term)
        assert number == self.last + 1, (number, self.last)
        self.log.append_group(group)
        if group.data[_TYPE_AT] == _CONFIG_TYPE:
            self._note_membership(number, group.data)

    def _cut_from(self, number: int, term: int) -> None:
        """Cut uncommitted proposals, which another leader's proposals replace."""
        index = self.log.proposals.indexes(number)[0]
        if index <= self.log.commit_index:
            raise Diverged(number, term)
        try:
            self.log.truncate_from(index)
        finally:  # a full disk may refuse before the cut, or right after it
            self._note_last()
            while self._memberships[-1][0] > self.last:
                self._memberships.pop()
            self.membership = self._memberships[-1][1]
            self.on_membership()

    def _is_committed(self, number: int) -> bool:
        """Return whether a proposal is committed, and so is never cut."""
        return number <= self.log.proposals.of_index(self.log.commit_index)

    def _note_membership(self, number: int, data: bytes) -> None:
        self.membership = _membership_in(data)
        known = self._memberships
        known.append((number, self.membership))
        while len(known) > 1 and self._is_committed(known[1][0]):
            known.pop(0)
        self.on_membership()


def _membership_in(data: bytes) -> Membership:
    """Return the membership in a group with a raft_config entry; raise ``EntryError``."""
    try:
        return decode_membership(decode_entries(data)[0].plain_payload())
    except (CorruptPayload, PayloadTooLarge) as error:
        raise CorruptEntry(0, str(error)) from error


def to_command(data: bytes) -> bytes:
    """Return the command of a stored group."""
    return (KIND_NOOP if data[_TYPE_AT] == _NOOP_TYPE else KIND_DATA) + data
