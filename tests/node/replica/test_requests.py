"""Group commit: which requests share a group, which are left out, and what each is answered."""

from collections import deque
from typing import Any

import pytest

from onelog.cluster.errors import (
    Discarded,
    Expired,
    NotLeader,
    OutcomeUnknown,
    ProposalRefused,
    ResultNeeded,
)
from onelog.cluster.raft.reads import Answers
from onelog.node.replica.requests import (
    Durability,
    Outcome,
    Received,
    Request,
    Requests,
    Results,
    ShardConfig,
)
from onelog.projections.kv.commands import Increment, encode_command
from onelog.projections.result import Applied
from tests.cluster.raft.lone_shard import LoneShard, put

CONFIG = ShardConfig(
    group_bytes_max=1000, group_entries_max=4, request_bytes_max=2000, pending_requests_max=6
)
FAR_S = 100.0


class Callers:
    """Requests under small limits, and the outcomes that were delivered, by name."""

    def __init__(self) -> None:
        self._answers: Answers = deque()
        self.requests = Requests(CONFIG, self._answers)
        self.left: set[str] = set()
        self._outcomes: dict[str, list[Outcome]] = {}

    def add(
        self,
        name: str,
        entries: int = 1,
        *,
        deadline_s: float = FAR_S,
        durability: Durability = Durability.SYNC,
        size: int = 100,
    ) -> Any:
        request = Request(
            [put(b"k", name.encode())] * entries,
            size,
            lambda outcome: self._outcomes.setdefault(name, []).append(outcome),
            deadline_s,
            durability,
            lambda: name in self.left,
        )
        return self.requests.add(request)

    def propose(self, number: int, *, term: int = 1, now_s: float = 0.0) -> int:
        """Propose the next group as this number; return how many requests it has."""
        group = self.requests.next_group(now_s)
        self.requests.proposed(group, number, term, 10 * number, now_s)
        return len(group)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """What each got, once."""
        while self._answers:
            callback, outcome = self._answers.popleft()
            callback(outcome)
        assert all(len(each) == 1 for each in self._outcomes.values())
        return {name: each[0] for name, each in self._outcomes.items()}


def test_each_request_of_a_group_gets_its_own_results_and_indexes() -> None:
    callers = Callers()
    callers.add("a")
    callers.add("b", 2)
    assert callers.propose(7, now_s=3.0) == 2
    assert callers.requests.count == 2
    callers.requests.applied(7, 1, [Applied(1), Applied(2), Applied(3)])

    first, second = callers.outcomes["a"], callers.outcomes["b"]
    assert isinstance(first, Results)
    assert isinstance(second, Results)
    assert (first, first.first_index, first.proposed_s) == ([Applied(1)], 70, 3.0)
    assert (second, second.first_index) == ([Applied(2), Applied(3)], 71)
    assert callers.requests.count == 0


def test_groups_keep_both_limits_and_the_order_of_requests() -> None:
    callers = Callers()
    for name, entries, size in [("a", 3, 10), ("b", 1, 10), ("c", 1, 600), ("d", 1, 500)]:
        callers.add(name, entries, size=size)
    assert [callers.propose(number) for number in range(1, 5)] == [2, 1, 1, 0]


def test_a_request_that_is_larger_than_a_group_is_one_of_its_own() -> None:
    callers = Callers()
    callers.add("a", size=2000)
    callers.add("b", 5)
    assert callers.requests.next_bytes_max == 2000
    assert [callers.propose(number) for number in (1, 2)] == [1, 1]


def test_more_than_the_limit_under_way_is_refused_proposed_or_not() -> None:
    """One bound for both: a leader that cannot commit must not collect requests either."""
    callers = Callers()
    for name in "abcd":
        assert callers.add(name) is None
    callers.propose(1)
    for name in "ef":
        assert callers.add(name) is None
    assert isinstance(callers.add("g"), ProposalRefused)
    assert isinstance(callers.add("h", size=2001), ProposalRefused)

    callers.requests.applied(1, 1, [Applied()] * 4)
    assert callers.add("g") is None
    assert callers.requests.count == 3


def test_a_late_request_and_one_whose_caller_left_are_in_no_group() -> None:
    callers = Callers()
    callers.add("late", deadline_s=1.0)
    callers.add("stays")
    callers.add("leaves")
    callers.left.add("leaves")
    assert callers.propose(1, now_s=1.0) == 1
    assert callers.requests.count == 1
    assert {name: type(each) for name, each in callers.outcomes.items()} == {
        "late": Expired,
        "leaves": Expired,
    }


def test_a_missed_deadline_says_whether_the_request_was_proposed() -> None:
    callers = Callers()
    callers.add("soon", deadline_s=2.0)
    callers.add("later", deadline_s=9.0)
    callers.propose(1)
    callers.add("pending", deadline_s=2.0)
    callers.requests.expire(1.9)
    assert callers.outcomes == {}
    callers.requests.expire(2.0)
    assert {name: type(each) for name, each in callers.outcomes.items()} == {
        "soon": OutcomeUnknown,
        "pending": Expired,
    }
    # The one that is left has the results of its own entry, behind that of the late one.
    callers.requests.applied(1, 1, [Applied(1), Applied(2)])
    assert callers.outcomes["later"] == [Applied(2)]
    assert callers.requests.count == 0


def test_deadlines_that_are_added_later_and_are_earlier_are_kept() -> None:
    callers = Callers()
    callers.add("later", deadline_s=9.0)
    callers.requests.expire(9.5)
    callers.add("far")
    callers.add("soon", deadline_s=10.0)
    callers.requests.expire(10.0)
    assert set(callers.outcomes) == {"later", "soon"}


def test_only_the_term_that_was_applied_has_the_results() -> None:
    callers = Callers()
    callers.add("old")
    callers.propose(5, term=1)
    callers.add("new")
    callers.propose(5, term=3)
    callers.requests.applied(5, 3, [Applied(1)])
    assert isinstance(callers.outcomes["old"], Discarded)
    assert callers.outcomes["new"] == [Applied(1)]


def test_async_requests_share_a_group_and_are_answered_by_their_own_term_alone() -> None:
    callers = Callers()
    callers.add("sync")
    assert not callers.requests.is_async_pending
    callers.add("async", 2, durability=Durability.ASYNC)
    assert callers.requests.is_async_pending
    assert callers.propose(4, term=2) == 2
    assert not callers.requests.is_async_pending
    callers.requests.received(2, 3)
    assert callers.outcomes == {}
    callers.requests.received(2, 4)
    assert callers.outcomes == {"async": Received(41, 42)}

    callers.add("earlier", durability=Durability.ASYNC)
    callers.propose(5, term=2)
    callers.requests.received(3, 9)
    assert set(callers.outcomes) == {"async"}
    callers.requests.applied(4, 2, [Applied(1), Applied(2), Applied(3)])
    callers.requests.applied(5, 2, [Applied(4)])
    assert callers.outcomes["sync"] == [Applied(1)]
    assert callers.outcomes["earlier"] == Received(50, 50)


def test_an_async_request_that_needs_its_result_is_refused_before_it_is_merged() -> None:
    callers = Callers()
    request = Request(
        [encode_command(Increment(b"n", 1), "default")],
        100,
        lambda _outcome: None,
        FAR_S,
        Durability.ASYNC,
    )
    assert isinstance(callers.requests.add(request), ResultNeeded)
    assert callers.requests.count == 0


def test_what_is_stopped_turned_away_or_replaced_is_answered_once() -> None:
    callers = Callers()
    callers.add("replaced")
    callers.propose(1)
    callers.add("proposed")
    callers.propose(2)
    callers.requests.replaced(1)
    callers.add("pending")
    callers.requests.turn_away(NotLeader(None))
    callers.add("last")
    callers.requests.stop(NotLeader(None))
    assert {name: type(each) for name, each in callers.outcomes.items()} == {
        "replaced": OutcomeUnknown,
        "pending": NotLeader,
        "last": NotLeader,
        "proposed": OutcomeUnknown,
    }
    assert callers.requests.count == 0


@pytest.mark.parametrize("count", [1, 10])
def test_requests_that_arrive_together_or_during_a_sync_are_one_proposal(count: int) -> None:
    lone = LoneShard()
    lone.lead()
    journal, deadline_s = lone.member.journal, lone.clock.time_s + 5.0
    last = journal.last
    for number in range(count):
        lone.shard.propose([put(b"%d" % number, b"v")], deadline_s, lone.outcomes.append)
    assert journal.last == last, "a group is formed when the pass comes"
    lone.start()
    assert journal.last == last + 1

    job = lone.shard.sync_begin()
    assert job is not None
    for number in range(count):
        lone.shard.propose([put(b"%d" % number, b"w")], deadline_s, lone.outcomes.append)
        lone.start()
    assert journal.last == last + 1, "they wait for the sync"
    job.run()
    lone.run(lambda: lone.shard.on_synced(job))
    assert journal.last == last + 2
    lone.acknowledge()
    assert lone.outcomes == [[Applied()]] * (2 * count)
