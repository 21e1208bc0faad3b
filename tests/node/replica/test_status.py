"""What a replica says about itself: as leader, follower, learner, and after it has stopped."""

from dataclasses import replace

import pytest

from onelog.cluster.errors import StateDiverged
from onelog.cluster.raft.messages import StateReport, StateRow
from onelog.node.replica.status import PeerLag
from tests.cluster.raft.lone_shard import ME, OTHER, PEER, SECOND, LoneShard


def test_a_leader_knows_how_far_its_peers_are_behind() -> None:
    lone = LoneShard()
    lone.lead()
    lone.propose()
    last = lone.member.journal.last
    lone.hear(PEER, replace(lone.ack(), next=last, received=last))

    status = lone.shard.status()
    assert (status.role, status.term, status.leader) == ("leader", lone.member.term, ME)
    assert status.lag == {
        PEER: PeerLag(unsynced=1, unreceived=0, needs_snapshot=False),
        OTHER: PeerLag(unsynced=last, unreceived=last, needs_snapshot=False),
    }
    assert (status.first_index, status.last_index) == (1, 3)
    assert (status.durable_index, status.commit_index, status.applied_index) == (2, 2, 2)
    assert status.alarms == ()


def test_a_follower_says_whom_it_follows_and_how_old_its_state_is() -> None:
    lone = LoneShard()
    assert lone.shard.status().age_s == float("inf")
    lone.hear(PEER, lone.append([], term=5))
    status = lone.shard.status()
    assert (status.role, status.leader, status.lag) == ("follower", PEER, {})


def test_a_replica_outside_of_the_group_says_so() -> None:
    assert LoneShard(founders=[PEER, OTHER]).shard.status().role == "removed"


def test_a_wall_clock_that_is_off_is_an_alarm() -> None:
    lone = LoneShard()
    lone.lead()
    lone.shard.log_time.offset_ns = 5 * SECOND
    (alarm,) = lone.shard.status().alarms
    assert alarm.reason == "CLOCK_JUMPED"
    assert alarm.message.startswith("the wall clock is +5.0 s")


def test_a_stopped_replica_still_says_why() -> None:
    lone = LoneShard()
    lone.lead()
    index = lone.shard.comparison.status().marked_index
    reports = [
        StateReport(lone.member.term, index, (StateRow(each, ((1, 99),)),))
        for each in (PEER, OTHER)
    ]
    lone.hear(PEER, reports[0])
    with pytest.raises(StateDiverged):
        lone.hear(OTHER, reports[1])

    status = lone.shard.status()
    assert (status.role, status.leader) == ("stopped", None)
    assert [alarm.reason for alarm in status.alarms] == ["REPLICA_STOPPED", "STATE_DIVERGED"]
    assert status.comparison.alarm is not None
    assert {row.node_id for row in status.comparison.alarm.rows} == {ME, PEER, OTHER}
