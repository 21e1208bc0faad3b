"""Reads from one replica's own state: what it may answer, and what it must refuse."""

from dataclasses import replace
from unittest.mock import patch

import pytest

from onelog.cluster.errors import ClusterError, Expired, ReplicaStopped, StaleBoundExceeded
from onelog.cluster.raft.messages import Ack, Append
from onelog.node.replica.stale_reads import Level
from onelog.ual.entry import Group
from tests.cluster.raft.lone_shard import ME, OTHER, PEER, LoneShard

Answers = list[ClusterError | None]


def read(
    lone: LoneShard,
    bound_s: float | None = None,
    *,
    min_index: int = 0,
    deadline_s: float = float("inf"),
) -> Answers:
    """Ask for a stale read; what it is answered is collected."""
    answers: Answers = []
    lone.shard.read(
        answers.append,
        level=Level.STALE,
        max_staleness_s=bound_s,
        min_index=min_index,
        deadline_s=deadline_s,
    )
    return answers


def refused(answers: Answers) -> bool:
    """Tell whether a read was refused for its bound; anything else must be an answer."""
    (error,) = answers
    assert error is None or isinstance(error, StaleBoundExceeded)
    return error is not None


def stamp_of(lone: LoneShard, append: Append) -> int:
    """Send a follower an append; return the stamp in its ack."""
    (ack,) = (each for each in lone.hear(PEER, append) if isinstance(each, Ack))
    assert ack.stamp
    return ack.stamp


def heartbeat(lone: LoneShard, *, echo: int, commit: int | None = None) -> Append:
    append = lone.append([], term=5)
    return replace(append, echo=echo, commit=append.commit if commit is None else commit)


def test_the_age_is_counted_from_the_stamp_and_not_from_the_arrival_of_its_echo() -> None:
    lone = LoneShard()
    stamp = stamp_of(lone, heartbeat(lone, echo=0))
    assert refused(read(lone, 1000.0))  # nothing was echoed yet: the append may be of last week
    assert not refused(read(lone))

    lone.clock.time_s += 2.0  # the echo was on its way for as long
    lone.hear(PEER, heartbeat(lone, echo=stamp))
    assert refused(read(lone, 1.9))
    assert not refused(read(lone, 2.1))

    lone.clock.time_s += 1.0
    assert refused(read(lone, 2.1))
    assert not refused(read(lone, 3.1))


def test_the_echo_counts_when_what_its_leader_committed_is_applied() -> None:
    lone = LoneShard()
    stamp = stamp_of(lone, heartbeat(lone, echo=0))
    group: Group = lone.next_group(b"1", term=5)
    lone.hear(PEER, heartbeat(lone, echo=stamp, commit=2))  # proposal 2 is not here yet
    assert refused(read(lone, 10.0))

    lone.hear(PEER, replace(lone.append([group.data], term=5), commit=2))
    lone.tick()
    assert lone.value() == b"1"
    assert not refused(read(lone, 10.0))


def test_the_echo_of_a_stamp_that_was_not_made_here_is_worth_nothing() -> None:
    """As one of an earlier process of the same node, whose clock stood elsewhere."""
    lone = LoneShard()
    stamp = stamp_of(lone, heartbeat(lone, echo=0))
    for other in (stamp + 1, stamp - 1, 1, 2**56):
        lone.hear(PEER, heartbeat(lone, echo=other))
    assert refused(read(lone, 1000.0))


def test_a_leader_is_as_fresh_as_the_last_round_that_a_majority_answered() -> None:
    lone = LoneShard()
    lone.lead()
    lone.clock.time_s += 0.06
    lone.tick()
    asked_s = lone.clock.time_s
    lone.clock.time_s += 0.5
    lone.hear(PEER, lone.ack())
    age_s = lone.clock.time_s - asked_s
    assert not refused(read(lone, age_s + 0.01))
    assert refused(read(lone, age_s - 0.1))


def test_a_leader_echoes_a_stamp_only_when_a_round_that_began_after_it_is_answered() -> None:
    lone = LoneShard()
    lone.lead()

    def echoes(message: Ack) -> set[int]:
        """Take an ack of the peer, let heartbeats go out, and return what they echo to it."""
        lone.hear(PEER, message)
        lone.sent.clear()
        lone.clock.time_s += 0.1
        lone.tick()
        return {
            each.echo for to, each in lone.sent if to == PEER and isinstance(each, Append)
        } - {0}  # fmt: skip

    asked = lone.ack()
    assert echoes(replace(asked, stamp=77)) == set()  # nobody was asked since it came
    assert echoes(replace(asked, stamp=78)) == set()  # an answer to the question before it
    assert echoes(replace(lone.ack(), stamp=79)) == {78}


def test_a_leader_without_an_entry_of_its_own_term_vouches_for_nothing() -> None:
    lone = LoneShard()
    lone.elect()
    for _ in range(3):
        member = lone.member
        ack = Ack(member.term, member.leadership.round, 1, True, False, stamp=5)
        lone.hear(PEER, ack)
        lone.clock.time_s += 0.1
        lone.tick()
    assert not lone.member.has_applied_noop
    assert refused(read(lone, 1000.0))
    assert {each.echo for _, each in lone.sent if isinstance(each, Append)} == {0}


def test_a_group_of_one_needs_nobody_to_confirm_it() -> None:
    lone = LoneShard(founders=[ME])
    lone.pass_time(1.0)
    lone.sync()
    lone.pass_time(0.3)
    assert not refused(read(lone, 0.2))


def test_a_read_waits_for_its_index_until_its_deadline() -> None:
    lone = LoneShard()
    index = lone.shard.log.applied_index + 1
    early = read(lone, min_index=index, deadline_s=lone.clock.time_s + 0.5)
    patient = read(lone, min_index=index, deadline_s=lone.clock.time_s + 50.0)
    lone.clock.time_s += 0.6
    lone.tick()
    assert [type(each) for each in early] == [Expired]
    assert patient == []

    group = lone.next_group(b"1", term=5)
    lone.hear(PEER, replace(lone.append([group.data], term=5), commit=2))
    lone.tick()  # as whoever drives it does
    assert patient == [None]


def test_a_linearizable_read_can_wait_for_an_index_too() -> None:
    lone = LoneShard()
    lone.lead()
    answers: Answers = []
    lone.propose()
    lone.shard.read(answers.append, min_index=lone.shard.log.last_index)
    lone.hear(PEER, replace(lone.ack(), next=lone.member.journal.last))
    assert answers == []

    lone.acknowledge()
    lone.hear(PEER, lone.ack())
    assert answers == [None]


def test_a_stopped_replica_answers_no_read() -> None:
    lone = LoneShard()
    waiting = read(lone, min_index=10**6)

    group = lone.next_group(b"1", term=5)
    lone.hear(OTHER, replace(lone.append([group.data], term=5), commit=2))
    with (
        patch.object(lone.shard.router, "apply_group", side_effect=ZeroDivisionError),
        pytest.raises(ZeroDivisionError),
    ):
        lone.tick()
    assert [type(each) for each in waiting] == [ReplicaStopped]
    with pytest.raises(ReplicaStopped):
        read(lone)
