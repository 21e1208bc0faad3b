"""Group commit: the requests of one replica, from their arrival to their outcome.

This is the only place that merges requests into groups, bounds how many are under way, and ends
those whose deadline has passed. A request is *pending* until its group is formed. Then it is
*proposed* and waits under the number of its proposal. It ends with the results of its entries when
the proposal is applied, as ``Received`` when it is ASYNC and a majority has it, or with an error
that says what is certain:

* A request whose deadline has passed when its group is formed, or whose caller has left, is not
  proposed and leaves no trace in the log, whatever it would have been merged with. Its outcome is
  ``Expired``: nothing was proposed. After that a missed deadline is ``OutcomeUnknown``.
* Every request gets exactly one outcome. Each keeps its own deadline and durability: requests of
  both durabilities share a group.
* A number may stand for proposals of several terms. Only the requests of the term that was applied
  have its results; those of the others were replaced and are ``Discarded``.

Outcomes are appended to a queue that belongs to the shard, which calls the callbacks outside of
Raft's own work (``Shard.deliver``).

Durability says when a write is answered, and with what.

``SYNC``, the default: a majority has synced the entries, they are committed and applied, and the
answer is their results. Only the loss of the disks of a majority takes them away.

``ASYNC``: a majority, the leader included, has *written* the entries, and the answer is
``Received``. Nothing is visible yet: commit and apply wait for the syncs of a majority as always,
and follow by themselves. Until then the entries survive processes that die, but each replica that
loses its power before its sync forgets them. If that leaves a majority without them, and those that
still have them cannot vote, they are gone. An answer that comes before apply has no result, so
operations that need one are refused with ``ResultNeeded`` (``projections/shard_state.py``
decides). Other failures are those of any proposal. What apply refuses of them afterwards nobody is
waiting for: it is counted by reason (``late_refusals``).

Only the present leadership answers ASYNC requests early: what an earlier one wrote may still be
replaced, however many members have it, until an entry of the present term is committed. Such a
request waits until it is applied.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from onelog.cluster.errors import (
    ClusterError,
    Discarded,
    Expired,
    OutcomeUnknown,
    ProposalRefused,
    ResultNeeded,
)
from onelog.cluster.raft.reads import Answers
from onelog.projections.result import Refused, Result
from onelog.projections.shard_state import needs_result


class Durability(Enum):
    """When a write is answered."""

    SYNC = "sync"
    ASYNC = "async"


@dataclass(frozen=True, slots=True)
class Received:
    """A majority has written the entries ``first_index`` … ``last_index``; not applied yet."""

    first_index: int
    last_index: int


def find_refusal(drafts: Sequence[tuple[int, bytes, int]]) -> ResultNeeded | None:
    """Return why these entries cannot be ASYNC, if they cannot."""
    for entry_type, payload, flags in drafts:
        if needs_result((entry_type, payload, flags)):
            message = "the answer to this operation needs its result: write it with DURABILITY_SYNC"
            return ResultNeeded(message)
    return None


Drafts = Sequence[tuple[int, bytes, int]]


class Results(list[Result]):
    """The results of a request's entries, and their place in the log, one after the other.

    ``proposed_s`` is when their group was formed, by the shard's clock.
    """

    __slots__ = ("first_index", "proposed_s")

    def __init__(self, results: Sequence[Result], first_index: int, proposed_s: float) -> None:
        super().__init__(results)
        self.first_index = first_index
        self.proposed_s = proposed_s


Outcome = Results | Received | ClusterError
Callback = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """Limits of one replica."""

    # A group stays far below what may be unsynced, so that several fit one sync.
    group_bytes_max: int = 1 << 20
    group_entries_max: int = 4096
    # All entries of one request; it must fit a group of its own.
    request_bytes_max: int = 8 << 20
    # Requests without an outcome, proposed or not; more are refused.
    pending_requests_max: int = 65_536
    # How often deadlines are checked.
    deadline_check_s: float = 0.02
    # How far apart replicas compare their states, in entries or in log time, whichever comes
    # first; the same on all of them, or they find nothing to compare.
    hash_index_step: int = 16_384
    hash_time_step_ns: int = 10 * 10**9


@dataclass(slots=True, eq=False)
class Request:
    """One request."""

    drafts: Drafts
    size: int  # the bytes that its entries take in the log, at most
    callback: Callback
    deadline_s: float
    durability: Durability
    has_left: Callable[[], bool] | None = None  # whether nobody waits for the outcome any more
    at: int = 0  # where its entries stand in its group


@dataclass(slots=True, eq=False)
class ProposedGroup:
    """The requests of one proposal that have no outcome yet."""

    requests: list[Request]
    term: int
    first_index: int
    proposed_s: float
    # Where the entries of ASYNC requests are that were answered, and how many each has.
    early: list[tuple[int, int]] = field(default_factory=list)

    def received(self, request: Request) -> Received:
        """Return the answer to an ASYNC request, which then is one of those that were answered."""
        self.early.append((request.at, len(request.drafts)))
        first_index = self.first_index + request.at
        return Received(first_index, first_index + len(request.drafts) - 1)


class Requests:
    """See the module.

    ``count`` is the number of requests without an outcome: those in ``pending`` and those in
    groups. ``is_async_pending`` says that a pending request does not wait for a sync.
    """

    def __init__(self, config: ShardConfig, answers: Answers) -> None:
        self.count = 0
        self.pending: deque[Request] = deque()
        self.is_async_pending = False
        # The terms and numbers of proposals with ASYNC requests that are not received yet.
        self.unreceived: deque[tuple[int, int]] = deque()
        # Entries of ASYNC requests that apply has refused, by the name of the reason.
        self.late_refusals: Counter[str] = Counter()
        self._config = config
        self._answers = answers
        # By number. Groups of an earlier leadership may have the same, gone from the log.
        self._groups: dict[int, list[ProposedGroup]] = {}
        # No request has an earlier deadline, so most checks need not visit the requests.
        self._deadline_s_min = float("inf")
        self._checked_s = float("-inf")

    @property
    def next_bytes_max(self) -> int:
        """The size of the next group, at most."""
        first = self.pending[0].size if self.pending else 0
        return max(first, self._config.group_bytes_max)

    def add(self, request: Request) -> ClusterError | None:
        """Queue a request for the next group; return why it is refused, if it is."""
        config = self._config
        if self.count >= config.pending_requests_max:
            return ProposalRefused(f"{config.pending_requests_max} requests are waiting")
        if request.size > config.request_bytes_max:
            return ProposalRefused(f"{request.size} bytes, limit {config.request_bytes_max}")
        if request.durability is Durability.ASYNC:
            refusal = find_refusal(request.drafts)
            if refusal is not None:
                return refusal
            self.is_async_pending = True
        self.pending.append(request)
        self.count += 1
        if request.deadline_s < self._deadline_s_min:
            self._deadline_s_min = request.deadline_s
        return None

    def add_proposed(self, request: Request, number: int, term: int, index: int) -> None:
        """Track a request of one entry that was proposed alone, at this index."""
        self.count += 1
        self._deadline_s_min = min(self._deadline_s_min, request.deadline_s)
        self.proposed([request], number, term, index, 0.0)

    def next_group(self, now_s: float) -> list[Request]:
        """Remove and return the pending requests of the next group, within its limits."""
        bytes_max, entries_max = self._config.group_bytes_max, self._config.group_entries_max
        pending = self.pending
        requests: list[Request] = []
        entries = size = 0
        while pending:
            request = pending[0]
            count = len(request.drafts)
            if requests and (size + request.size > bytes_max or entries + count > entries_max):
                return requests
            pending.popleft()
            if request.deadline_s <= now_s:
                self._expire(request)
            elif request.has_left is not None and request.has_left():
                self._end(request, Expired("its caller left before it was proposed"))
            else:
                request.at = entries
                entries += count
                size += request.size
                requests.append(request)
        self.is_async_pending = False
        return requests

    def proposed(
        self, requests: list[Request], number: int, term: int, first_index: int, now_s: float
    ) -> None:
        """Track the requests of a group that is in the log, as this proposal."""
        self._groups.setdefault(number, []).append(
            ProposedGroup(requests, term, first_index, now_s)
        )
        for request in requests:
            if request.durability is Durability.ASYNC:
                self.unreceived.append((term, number))
                return

    def refuse(self, requests: list[Request], error: ClusterError) -> None:
        """End requests of a group that could not be proposed."""
        for request in requests:
            self._end(request, error)

    def applied(self, number: int, term: int, results: list[Result]) -> None:
        """Answer the requests of a proposal that has been applied."""
        answers = self._answers
        for group in self._groups.pop(number, ()):
            if group.term != term:
                self.refuse(group.requests, Discarded(number))
                continue
            first_index, proposed_s = group.first_index, group.proposed_s
            self.count -= len(group.requests)
            for request in group.requests:
                at = request.at
                outcome: Outcome
                if request.durability is Durability.SYNC:
                    part = results[at : at + len(request.drafts)]
                    outcome = Results(part, first_index + at, proposed_s)
                else:
                    outcome = group.received(request)
                answers.append((request.callback, outcome))
            for at, count in group.early:
                for result in results[at : at + count]:
                    if isinstance(result, Refused):
                        self.late_refusals[result.reason.name] += 1

    def received(self, term: int, received: int) -> None:
        """Answer ASYNC requests: as leader of ``term``, a majority has this much of the log."""
        unreceived = self.unreceived
        while unreceived and (unreceived[0][0] < term or unreceived[0][1] <= received):
            its_term, number = unreceived.popleft()
            if its_term < term:
                continue  # it waits until it is applied
            for group in self._groups.get(number, ()):
                if group.term == term:
                    left = []
                    for request in group.requests:
                        if request.durability is Durability.ASYNC:
                            self._end(request, group.received(request))
                        else:
                            left.append(request)
                    group.requests = left

    def replaced(self, number: int) -> None:
        """End what was proposed up to a number: a snapshot has replaced that part of the log."""
        unknown = OutcomeUnknown("a snapshot replaced the proposal that it was part of")
        for each in [each for each in self._groups if each <= number]:
            for group in self._groups.pop(each):
                self.refuse(group.requests, unknown)

    def turn_away(self, error: ClusterError) -> None:
        """Refuse what was not proposed."""
        pending, self.pending = self.pending, deque()
        self.is_async_pending = False
        self.refuse(list(pending), error)

    def expire(self, now_s: float) -> None:
        """End the requests whose deadline has passed."""
        if now_s < self._deadline_s_min or now_s - self._checked_s < self._config.deadline_check_s:
            return
        self._checked_s = now_s
        deadline_s_min = float("inf")
        pending, self.pending = self.pending, deque()
        for request in pending:
            if request.deadline_s <= now_s:
                self._expire(request)
            else:
                self.pending.append(request)
                deadline_s_min = min(deadline_s_min, request.deadline_s)
        unknown = OutcomeUnknown("the deadline passed after it was proposed")
        for number, groups in list(self._groups.items()):
            for group in groups:
                left = []
                for request in group.requests:
                    if request.deadline_s <= now_s:
                        self._end(request, unknown)
                    else:
                        left.append(request)
                        deadline_s_min = min(deadline_s_min, request.deadline_s)
                group.requests = left
            self._groups[number] = [group for group in groups if group.requests or group.early]
            if not self._groups[number]:
                del self._groups[number]  # or they add up while nothing can be committed
        self._deadline_s_min = deadline_s_min

    def stop(self, error: ClusterError) -> None:
        """End everything: what was not proposed with this error, the rest with no known outcome."""
        self.turn_away(error)
        unknown = OutcomeUnknown(f"{error}; it was proposed before")
        for groups in self._groups.values():
            for group in groups:
                self.refuse(group.requests, unknown)
        self._groups.clear()

    def _expire(self, request: Request) -> None:
        self._end(request, Expired("the deadline passed before it was proposed"))

    def _end(self, request: Request, outcome: Outcome) -> None:
        self.count -= 1
        self._answers.append((request.callback, outcome))
