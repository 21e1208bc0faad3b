"""Leases: when a leader has one, and what voters and candidates do so that it means something."""

from dataclasses import replace
from uuid import UUID

import pytest

from onelog.cluster.errors import ClusterError, NotLeader
from onelog.cluster.raft.member import CANDIDATE, FOLLOWER, LEADER
from onelog.cluster.raft.messages import Ack, Stale, TimeoutNow, Vote, VoteRequest
from onelog.cluster.raft.peers import CLOCK_RATE_DIFFERENCE_MAX
from onelog.node.replica.stale_reads import Level
from tests.cluster.raft.lone_shard import ME, OTHER, PEER, LoneShard

PROMISE_S = 0.4  # what members promise, as shipped
LEASE_S = PROMISE_S / (1 + CLOCK_RATE_DIFFERENCE_MAX)


def promise(lone: LoneShard) -> Ack:
    """What a peer answers that has everything, and stands by this leader."""
    return replace(lone.ack(), promise_ms=int(PROMISE_S * 1000))


def led() -> LoneShard:
    """A leader whose rounds nobody has promised anything for yet; a new one has just begun."""
    lone = LoneShard()
    lone.lead()
    lone.clock.time_s += 0.1
    lone.member.start_round()
    return lone


def read(lone: LoneShard) -> list[ClusterError | None]:
    """Ask for a read by lease; what it is answered is collected."""
    answers: list[ClusterError | None] = []
    lone.shard.read(answers.append, level=Level.LEASE)
    lone.start()
    return answers


def stands(lone: LoneShard, term: int) -> VoteRequest:
    """What a candidate says that has as much as this one."""
    return VoteRequest(term, lone.member.journal.last, lone.member.journal.last_term)


def restarted(lone: LoneShard) -> LoneShard:
    """The same replica, after a crash of its process."""
    lone.sync()
    return LoneShard(lone.disk)


# Leaders


def test_a_leader_with_promises_of_a_majority_answers_without_a_round() -> None:
    lone = led()
    lone.hear(PEER, promise(lone))
    before = len(lone.sent)

    assert read(lone) == [None]
    assert len(lone.sent) == before


def test_a_lease_lasts_from_the_start_of_its_round_and_then_reads_ask() -> None:
    lone = led()
    began_s = lone.clock.time_s
    lone.clock.time_s = began_s + LEASE_S - 0.01
    lone.hear(PEER, promise(lone))
    assert read(lone) == [None]

    lone.clock.time_s = began_s + LEASE_S
    answers = read(lone)
    assert answers == []
    lone.hear(PEER, lone.ack())
    assert answers == [None]


def test_an_answer_to_an_old_round_is_worth_what_is_left_of_it() -> None:
    lone = led()
    old = promise(lone)
    lone.clock.time_s += LEASE_S
    lone.member.start_round()
    lone.hear(PEER, old)
    assert read(lone) == []


def test_who_promises_nothing_gives_no_lease() -> None:
    """A member of an earlier version, say, that votes for whoever asks."""
    lone = led()
    lone.hear(PEER, lone.ack())
    assert read(lone) == []


def test_fewer_promises_than_a_majority_are_no_lease() -> None:
    lone = led()
    lone.hear(PEER, promise(lone))
    assert lone.shard.reads.may_look(by_lease=True)

    voters = [PEER, OTHER, UUID(int=4)]
    lone.member.leadership.reconfigure(voters, voters)  # as a change of members does
    assert not lone.shard.reads.may_look(by_lease=True)
    lone.hear(OTHER, promise(lone))
    assert lone.shard.reads.may_look(by_lease=True)


def test_learners_promises_do_not_count() -> None:
    lone = led()
    lone.member.leadership.reconfigure([PEER, OTHER], [OTHER])
    lone.hear(PEER, promise(lone))
    assert not lone.shard.reads.may_look(by_lease=True)


def test_a_group_of_one_always_has_a_lease() -> None:
    lone = LoneShard(founders=[ME])
    lone.pass_time(1.0)
    lone.sync()
    lone.tick()
    lone.clock.time_s += 3600.0
    assert read(lone) == [None]


def test_only_a_leader_that_is_the_only_voter_looks_without_asking() -> None:
    """No round could tell it anything, since nobody else can lead."""
    lone = LoneShard(founders=[ME])
    lone.pass_time(1.0)
    assert not lone.shard.reads.may_look(by_lease=False), (
        "the first entry of its term is not applied"
    )
    lone.sync()
    lone.tick()
    assert lone.shard.reads.may_look(by_lease=False)

    membership = lone.member.membership.with_learner(PEER)
    lone.shard.change_membership(membership, float("inf"), lone.outcomes.append)
    lone.sync()
    lone.tick()
    assert lone.shard.reads.may_look(by_lease=False), "a learner counts nowhere"

    assert not led().shard.reads.may_look(by_lease=False), "one of three"


def test_a_leader_that_has_applied_nothing_of_its_term_has_no_lease() -> None:
    lone = LoneShard()
    lone.elect()
    lone.member.start_round()
    lone.hear(PEER, replace(promise(lone), next=lone.member.journal.last))
    assert lone.member.leadership.holds_lease
    assert read(lone) == []


def test_a_read_by_lease_sees_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    lone = led()
    lone.propose(b"new")
    lone.sync()
    monkeypatch.setattr(type(lone.member), "_SyncObj__applyLogEntries", lambda _member: False)
    lone.hear(PEER, promise(lone))
    lone.tick()
    assert lone.member.commit > lone.member.applied
    answers = read(lone)
    assert answers == []

    monkeypatch.undo()
    lone.tick()
    lone.hear(PEER, promise(lone))
    assert answers == [None]
    assert lone.value() == b"new"


def test_who_does_not_lead_has_no_lease() -> None:
    lone = led()
    lone.hear(PEER, promise(lone))
    lone.hear(OTHER, Stale(9))
    (error,) = read(lone)
    assert isinstance(error, NotLeader)


def test_a_leadership_begins_without_promises_of_the_one_before() -> None:
    lone = led()
    lone.hear(PEER, promise(lone))
    lone.hear(OTHER, Stale(9))
    lone.lead()
    lone.clock.time_s -= 5.0  # as if all of this had taken no time
    assert not lone.shard.reads.may_look(by_lease=True)


def test_a_leader_that_hands_over_has_no_lease_in_its_term_any_more() -> None:
    """However the transfer ends: what it told the target may arrive at any time."""
    lone = led()
    lone.hear(PEER, promise(lone))
    ends: list[ClusterError | None] = []
    lone.shard.transfer(PEER, ends.append)
    assert (PEER, TimeoutNow(lone.member.term)) in lone.sent
    assert read(lone) == []

    for _ in range(40):
        lone.pass_time(0.03)
        lone.hear(PEER, promise(lone))
    assert len(ends) == 1
    assert lone.member.state == LEADER
    assert not lone.shard.reads.may_look(by_lease=True)

    lone.hear(OTHER, Stale(9))
    lone.lead()
    lone.member.start_round()
    lone.hear(PEER, promise(lone))
    assert lone.shard.reads.may_look(by_lease=True)


# Voters


def test_a_voter_that_hears_a_leader_ignores_candidates_and_their_terms() -> None:
    lone = LoneShard()
    (ack,) = lone.hear(PEER, lone.append([], term=1))
    assert isinstance(ack, Ack)
    assert ack.promise_ms == PROMISE_S * 1000
    lone.clock.time_s += PROMISE_S - 0.01
    assert lone.hear(OTHER, stands(lone, 2)) == []
    assert lone.member.term == 1
    (ack,) = lone.hear(PEER, lone.append([], term=1))
    assert isinstance(ack, Ack)

    lone.clock.time_s += PROMISE_S + 0.001
    assert lone.hear(OTHER, stands(lone, 2)) == [Vote(2)]


def test_a_voter_keeps_its_word_in_a_term_that_it_heard_of_meanwhile() -> None:
    lone = LoneShard()
    lone.hear(PEER, lone.append([], term=1))
    lone.hear(OTHER, Stale(5))
    assert lone.hear(OTHER, stands(lone, 5)) == []
    lone.clock.time_s += PROMISE_S + 0.001
    assert lone.hear(OTHER, stands(lone, 5)) == [Vote(5)]


def test_a_voter_that_was_started_again_waits_as_if_it_had_heard_a_leader() -> None:
    lone = LoneShard()
    lone.hear(PEER, lone.append([], term=1))
    lone = restarted(lone)
    assert lone.hear(OTHER, replace(stands(lone, 2), pre_vote=True)) == []
    assert lone.hear(OTHER, stands(lone, 2)) == []

    lone.clock.time_s += PROMISE_S + 0.001
    assert lone.hear(OTHER, stands(lone, 2)) == [Vote(2)]


def test_a_voter_that_never_took_part_in_a_term_waits_for_nothing() -> None:
    """Or every new cluster would be slower to elect its first leader."""
    lone = restarted(LoneShard())
    assert lone.hear(OTHER, replace(stands(lone, 1), pre_vote=True)) == [Vote(1, pre_vote=True)]
    assert lone.hear(OTHER, stands(lone, 1)) == [Vote(1)]


def test_a_voter_answers_a_candidate_to_whom_was_handed_over() -> None:
    lone = LoneShard()
    lone.hear(PEER, lone.append([], term=1))
    assert lone.hear(OTHER, replace(stands(lone, 2), is_handed=True)) == [Vote(2)]


def test_a_leader_learns_of_a_candidate_whom_all_others_ignore() -> None:
    """Or that one could never follow it: its term is higher."""
    lone = led()
    lone.hear(PEER, promise(lone))
    assert lone.hear(OTHER, stands(lone, 7)) == [Vote(7)]
    assert (lone.member.state, lone.member.term) == (FOLLOWER, 7)


# Candidates


def test_a_member_to_whom_was_handed_over_says_so() -> None:
    lone = LoneShard()
    lone.hear(PEER, lone.append([], term=1))
    lone.hear(PEER, TimeoutNow(1))
    lone.tick()
    request = stands(lone, 2)
    assert (OTHER, replace(request, is_handed=True)) in lone.sent

    lone.pass_time(2.0)  # nobody voted: the next attempt is an ordinary one
    lone.hear(OTHER, Vote(3, pre_vote=True))
    lone.tick()
    assert (OTHER, replace(request, term=3)) in lone.sent


def test_what_was_handed_over_in_an_earlier_term_is_over() -> None:
    """A leader of the later term may have a lease, which its own handing over would end."""
    lone = LoneShard()
    lone.hear(PEER, lone.append([], term=1))
    lone.hear(PEER, TimeoutNow(1))
    lone.hear(OTHER, replace(stands(lone, 2), is_handed=True))  # before the next tick
    lone.tick()
    assert (lone.member.term, lone.member.state) == (2, FOLLOWER)
    lone.pass_time(1.0)
    assert lone.member.state == FOLLOWER
    requests = [each for _, each in lone.sent if isinstance(each, VoteRequest)]
    assert requests
    assert all(each.pre_vote and not each.is_handed for each in requests)


def test_nobody_stands_for_election_while_it_hears_a_leader() -> None:
    lone = LoneShard()
    lone.hear(PEER, lone.append([], term=1))
    lone.member._SyncObj__raftElectionDeadline = 0.0
    lone.tick()
    assert not any(isinstance(each, VoteRequest) for _, each in lone.sent)
    lone.pass_time(PROMISE_S)
    lone.hear(OTHER, Vote(2, pre_vote=True))
    lone.tick()
    assert lone.member.state == CANDIDATE
