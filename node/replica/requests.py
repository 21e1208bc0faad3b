"""The requests of one replica, from when they come in until they are answered, each once.

A request is *pending* until it becomes part of a group that is proposed, then it *waits* under that
proposal's number. It leaves with the results of its entries when the proposal is applied, as
``Received`` when it is ASYNC and a majority has it, or with an error that says what is certain.

A number may stand for proposals of several terms: only a request of the term that was applied has
the results, the others were replaced. Answers are collected here, and given by the shard outside
of Raft's own work.

Durability
----------
How durable a write is when it is answered, and what is answered then.

``SYNC``, the default: a majority has synced the entries, they are committed and applied, and the
answer is their results. Only the loss of the disks of a majority takes them away.

``ASYNC``: a majority, the leader included, has *written* the entries, and the answer is
``Received``. Nothing is visible yet: commit and apply wait for the syncs of a majority as always,
and follow by themselves. Until then the entries survive processes that die, but each replica that
loses its power before its sync forgets them. If that leaves a majority without them, and those that
still have them cannot vote, they are gone. An answer that comes before apply has no result, so
operations that need one are refused with ``ResultNeeded`` (``projections/shard_state.py``
decides). Other failures are those of any proposal.

Only the present leadership answers: what an earlier one wrote may still be replaced, however many
have it, until something of the present term is committed. Such a request waits for its apply.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from onelog.cluster.errors import (
    ClusterError,
    Discarded,
    Expired,
    OutcomeUnknown,
    ProposalRefused,
    ReplicaStopped,
    ResultNeeded,
)
from onelog.projections.result import Result
from onelog.projections.shard_state import needs_result
from onelog.ual.entry import HEADER_SIZE


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


# Requests

Drafts = Sequence[tuple[int, bytes, int]]


class Results(list[Result]):
    """The results of a request's entries, and where in the log these stand, one after the other.

    ``proposed_s`` is when they became part of a group, by the shard's clock.
    """

    __slots__ = ("first_index", "proposed_s")

    def __init__(self, results: Sequence[Result], first_index: int, proposed_s: float) -> None:
        super().__init__(results)
        self.first_index = first_index
        self.proposed_s = proposed_s

    def part(self, at: int, count: int) -> "Results":
        """Return the same about some of the entries."""
        return Results(self[at : at + count], self.first_index + at, self.proposed_s)


Outcome = Results | Received | ClusterError
Callback = Callable[[Outcome], None]
Answers = deque[tuple[Callable[[Any], None], Any]]


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """Limits of one replica."""

    # A group stays far below what may be unsynced, so that several fit one sync.
    group_bytes_max: int = 1 << 20
    group_entries_max: int = 4096
    # All entries of one request; it must fit a group of its own.
    request_bytes_max: int = 8 << 20
    # Requests that wait to become part of a group; more are refused.
    pending_requests_max: int = 65_536
    # How often deadlines are looked at.
    deadline_check_s: float = 0.02
    # How far apart replicas compare their states, in entries or in log time, whichever comes
    # first; the same on all of them, or they find nothing to compare.
    hash_index_step: int = 16_384
    hash_time_step_ns: int = 10 * 10**9


@dataclass(slots=True)
class Request:
    """One request and where its entries are."""

    drafts: Drafts
    callback: Callback
    deadline_s: float
    durability: Durability = Durability.SYNC
    term: int = 0
    at: int = 0  # where its entries stand in its group
    first_index: int = 0
    proposed_s: float = 0.0
    size: int = field(init=False)  # the bytes that its entries take in the log, at most

    def __post_init__(self) -> None:
        """Look at the entries once: they may be thousands, and their size is asked for often."""
        self.size = sum(HEADER_SIZE + len(payload) for _, payload, _ in self.drafts)

    def received(self) -> Received:
        """Return the answer to an ASYNC request."""
        return Received(self.first_index, self.first_index + len(self.drafts) - 1)


class Requests:
    """See the module's text."""

    def __init__(self, config: ShardConfig, answers: Answers) -> None:
        self._config = config
        self._answers = answers
        self._pending: deque[Request] = deque()
        self._waiting: dict[int, list[Request]] = {}
        self._early = Early()
        self._checked_s = float("-inf")

    @property
    def is_pending(self) -> bool:
        """Whether there is something to propose."""
        return bool(self._pending)

    @property
    def next_bytes_max(self) -> int:
        """The bytes of the next group, at most."""
        first = self._pending[0].size if self._pending else 0
        return max(first, self._config.group_bytes_max)

    def add(self, request: Request) -> bool:
        """Let a request wait for its group, or refuse it; tell whether it waits."""
        config, size = self._config, request.size
        if len(self._pending) >= config.pending_requests_max:
            error = f"{config.pending_requests_max} requests are waiting"
        elif size > config.request_bytes_max:
            error = f"{size} bytes, limit {config.request_bytes_max}"
        else:
            self._pending.append(request)
            return True
        self.answer([request], ProposalRefused(error))
        return False

    def next_group(self, now_s: float) -> list[Request]:
        """Take the requests of the next group from those that wait and are not too late."""
        config, pending = self._config, self._pending
        requests: list[Request] = []
        count = size = 0
        while pending:
            request = pending[0]
            added = request.size
            if requests and (
                size + added > config.group_bytes_max
                or count + len(request.drafts) > config.group_entries_max
            ):
                break
            pending.popleft()
            if request.deadline_s <= now_s:
                self._expire(request)
                continue
            request.at, request.proposed_s = count, now_s
            count += len(request.drafts)
            size += added
            requests.append(request)
        return requests

    def proposed(self, requests: list[Request], number: int, term: int, first_index: int) -> None:
        """A group is in the log, as this proposal."""
        for request in requests:
            request.term, request.first_index = term, first_index + request.at
        if any(request.durability is Durability.ASYNC for request in requests):
            self._early.note(number, term)
        # There may be some of an earlier leadership, whose proposal is gone from the log.
        self._waiting.setdefault(number, []).extend(requests)

    def answer(self, requests: list[Request], outcome: Outcome) -> None:
        """Give all of these the same answer."""
        self._answers.extend((request.callback, outcome) for request in requests)

    def applied(self, number: int, term: int, results: list[Result]) -> None:
        """A proposal has been applied."""
        for request in self._waiting.pop(number, ()):
            outcome: Outcome
            if request.term != term:
                outcome = Discarded(number)
            elif request.durability is Durability.ASYNC:
                outcome = request.received()
            else:
                part = results[request.at : request.at + len(request.drafts)]
                outcome = Results(part, request.first_index, request.proposed_s)
            self._answers.append((request.callback, outcome))

    @property
    def is_early(self) -> bool:
        """Whether an ASYNC request waits for a majority."""
        return bool(self._early)

    def received(self, term: int, received: int) -> None:
        """The leader of ``term`` knows that a majority has everything up to ``received``."""
        for number in self._early.take(term, received):
            left = []
            for request in self._waiting.pop(number, ()):
                if request.durability is Durability.ASYNC and request.term == term:
                    self._answers.append((request.callback, request.received()))
                else:
                    left.append(request)
            if left:
                self._waiting[number] = left

    def replaced(self, number: int) -> None:
        """A snapshot took the place of the log up to a proposal: nobody knows what became of it."""
        unknown = OutcomeUnknown("a snapshot took the place of what it was proposed in")
        for each in [each for each in self._waiting if each <= number]:
            self.answer(self._waiting.pop(each), unknown)

    def turn_away(self, error: ClusterError) -> None:
        """Refuse what was not proposed."""
        pending, self._pending = self._pending, deque()
        self.answer(list(pending), error)

    def expire(self, now_s: float) -> None:
        """Give up on requests whose time is over."""
        if now_s - self._checked_s < self._config.deadline_check_s:
            return
        self._checked_s = now_s
        if any(each.deadline_s <= now_s for each in self._pending):
            pending, self._pending = self._pending, deque()
            for request in pending:
                if request.deadline_s <= now_s:
                    self._expire(request)
                else:
                    self._pending.append(request)
        for number, requests in list(self._waiting.items()):
            left = [each for each in requests if each.deadline_s > now_s]
            if len(left) == len(requests):
                continue
            late = [each for each in requests if each.deadline_s <= now_s]
            self.answer(late, OutcomeUnknown("the deadline passed after it was proposed"))
            if left:
                self._waiting[number] = left
            else:
                del self._waiting[number]

    def stop(self, stopped: ReplicaStopped) -> None:
        """Answer everything: this replica goes no further."""
        self.turn_away(stopped)
        unknown = OutcomeUnknown("this replica has stopped after it was proposed")
        for requests in self._waiting.values():
            self.answer(requests, unknown)
        self._waiting.clear()

    def _expire(self, request: Request) -> None:
        self.answer([request], Expired("the deadline passed before it was proposed"))
