"""Comparing states: who compares, who is told, who is wrong, and what is not believed."""

from dataclasses import replace
from uuid import UUID

import pytest

from onelog.cluster.errors import ReplicaStopped, StateDiverged
from onelog.cluster.raft.member import FOLLOWER
from onelog.cluster.raft.messages import StateReport, StateRow
from onelog.cluster.raft.state_comparison import MARKS_KEPT, REPEAT_S
from onelog.node.replica.requests import ShardConfig
from onelog.ual.entry import OWNER_KV
from tests.cluster.raft.lone_shard import ME, OTHER, PEER, STRANGER, LoneShard, put

EVERY = ShardConfig(hash_index_step=1)
WRONG = ((OWNER_KV, 12345),)


def leading(founders: list[UUID] | None = None) -> LoneShard:
    """A leader that has taken a mark."""
    lone = LoneShard(founders=founders, config=EVERY)
    lone.lead()
    lone.propose()
    lone.acknowledge()
    lone.sent.clear()
    return lone


def following() -> LoneShard:
    """A follower of PEER that has taken a mark, and reported it."""
    lone = LoneShard(config=EVERY)
    group = lone.next_group(b"1", term=5)
    lone.hear(PEER, replace(lone.append([group.data], term=5), commit=2))
    lone.tick()
    return lone


def mark(lone: LoneShard) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The newest mark: its index, and the hashes that are right there."""
    hashes = lone.shard.router.state_hashes()
    index = lone.shard.comparison.status().marked_index
    assert index == lone.shard.router.applied_index
    return index, tuple((owner, each) for owner, each in hashes.items() if each)


def report(lone: LoneShard, **rows: tuple[tuple[int, int], ...]) -> StateReport:
    ids = {"me": ME, "peer": PEER, "other": OTHER}
    index, _ = mark(lone)
    return StateReport(5, index, tuple(StateRow(ids[who], each) for who, each in rows.items()))


def reports(lone: LoneShard) -> list[tuple[UUID, StateReport]]:
    return [(to, each) for to, each in lone.sent if isinstance(each, StateReport)]


def test_a_leader_that_finds_a_wrong_follower_tells_everybody_and_goes_on() -> None:
    lone = leading()
    index, right = mark(lone)
    lone.hear(PEER, report(lone, peer=right))
    assert reports(lone) == []
    assert lone.shard.comparison.status().agreed_index < index

    lone.hear(OTHER, report(lone, other=WRONG))
    sent = reports(lone)
    assert {to for to, _ in sent} == {PEER, OTHER}
    assert {row.node_id: row.hashes for row in sent[0][1].rows} == {
        ME: right,
        PEER: right,
        OTHER: WRONG,
    }
    alarm = lone.shard.comparison.status().alarm
    assert alarm is not None
    assert alarm.wrong is not None
    assert alarm.index == index
    assert OWNER_KV in alarm.owners
    assert lone.shard.failure is None


def test_what_all_have_in_common_is_agreed() -> None:
    lone = leading()
    index, right = mark(lone)
    lone.hear(PEER, report(lone, peer=right))
    lone.hear(OTHER, report(lone, other=right))
    status = lone.shard.comparison.status()
    assert (status.agreed_index, status.alarms) == (index, 0)


def test_a_leader_that_is_alone_with_its_state_tells_the_others_steps_down_and_stops() -> None:
    lone = leading()
    lone.hear(PEER, report(lone, peer=WRONG))
    assert lone.shard.failure is None  # one against one, of three
    with pytest.raises(StateDiverged) as caught:
        lone.hear(OTHER, report(lone, other=WRONG))
    assert caught.value.reason == "STATE_DIVERGED"
    assert lone.member.state == FOLLOWER
    assert {to for to, _ in reports(lone)} == {PEER, OTHER}
    with pytest.raises(ReplicaStopped):
        lone.shard.read(lambda _: None)
    with pytest.raises(ReplicaStopped):
        lone.tick()


def test_a_follower_that_is_shown_to_be_wrong_stops() -> None:
    lone = following()
    with pytest.raises(StateDiverged):
        lone.hear(PEER, report(lone, peer=WRONG, other=WRONG))


def test_only_the_leader_speaks_for_others() -> None:
    """One member with a defect must not be able to stop another that is right."""
    lone = following()
    lone.hear(OTHER, report(lone, peer=WRONG, other=WRONG))
    assert lone.shard.failure is None

    lone = following()
    report_of_old_term = replace(report(lone, peer=WRONG, other=WRONG), term=4)
    lone.hear(PEER, report_of_old_term)
    assert lone.shard.failure is None


def test_a_follower_is_judged_by_its_own_hashes_whatever_others_say_of_it() -> None:
    lone = following()
    _, right = mark(lone)
    lone.hear(PEER, report(lone, peer=right, me=WRONG, other=right))
    assert lone.shard.failure is None
    assert lone.shard.comparison.status().alarm is None


def test_one_against_one_alarms_and_stops_nobody() -> None:
    lone = leading([ME, PEER])
    lone.hear(PEER, report(lone, peer=WRONG))
    alarm = lone.shard.comparison.status().alarm
    assert alarm is not None
    assert alarm.wrong is None
    assert lone.shard.failure is None
    assert [to for to, _ in reports(lone)] == [PEER]


def test_a_learner_is_compared_and_told_but_does_not_count() -> None:
    lone = leading([ME, PEER])
    with_learner = lone.member.membership.with_learner(OTHER)
    lone.shard.change_membership(with_learner, lone.clock.time_s + 5.0, lone.outcomes.append)
    lone.acknowledge()
    _, right = mark(lone)
    lone.hear(OTHER, report(lone, other=WRONG))
    alarm = lone.shard.comparison.status().alarm
    assert alarm is not None
    assert alarm.wrong is None  # one voter of two

    lone.sent.clear()
    lone.hear(PEER, report(lone, peer=right))
    alarm = lone.shard.comparison.status().alarm
    assert alarm is not None
    assert alarm.wrong is not None
    assert {to for to, _ in reports(lone)} == {PEER, OTHER}
    assert lone.shard.failure is None


def test_strangers_and_indexes_beyond_the_log_are_ignored() -> None:
    lone = leading()
    right = report(lone, peer=WRONG, other=WRONG)
    lone.hear(STRANGER, right)
    lone.hear(PEER, replace(right, index=lone.shard.log.last_index + 1))
    assert lone.shard.comparison.status().alarm is None
    assert lone.shard.failure is None


def test_a_follower_reports_each_mark_again_after_a_while_and_to_a_new_leader() -> None:
    lone = following()
    assert [to for to, _ in reports(lone)] == [PEER]
    lone.tick()
    assert len(reports(lone)) == 1

    lone.clock.time_s += REPEAT_S
    lone.hear(PEER, lone.append([], term=5))
    assert [to for to, _ in reports(lone)] == [PEER, PEER]

    lone.hear(OTHER, lone.append([], term=6))
    assert [to for to, _ in reports(lone)] == [PEER, PEER, OTHER]


def test_what_is_kept_is_bounded_and_the_newest() -> None:
    lone = leading()
    for _ in range(MARKS_KEPT + 10):
        lone.propose()
        lone.acknowledge()
    kept = lone.shard.comparison._rows
    assert len(kept) == MARKS_KEPT
    assert max(kept) == lone.shard.router.applied_index
    old = StateReport(5, 2, (StateRow(PEER, WRONG), StateRow(OTHER, WRONG)))
    lone.hear(PEER, old)
    assert len(kept) == MARKS_KEPT
    assert lone.shard.failure is None


def test_where_marks_are_taken_follows_from_the_log_alone() -> None:
    """By index, and by log time where little is written; a restart in between changes nothing."""
    lone = LoneShard(config=ShardConfig(hash_index_step=5, hash_time_step_ns=2**62))
    lone.lead()
    assert lone.shard.log.applied_index == 2
    for _ in range(10):
        lone.propose()
        lone.acknowledge()
    lone.shard.propose([put(b"k", b"v")] * 7, lone.clock.time_s + 5.0, lone.outcomes.append)
    lone.start()
    lone.acknowledge()
    assert list(lone.shard.comparison._rows) == [5, 10, 19]  # the last group ends there

    lone = LoneShard(config=ShardConfig(hash_index_step=10**9, hash_time_step_ns=10**10))
    lone.lead()
    marks = []
    for _ in range(8):
        lone.clock.time_s += 3.0
        lone.propose()
        lone.elect()  # it was silent for long
        lone.acknowledge()
        marks.append(lone.shard.comparison.status().marks)
    assert marks[-1] in (3, 4)  # 24 seconds and more, one each ten, and the first entry of all


def test_all_members_hear_what_all_voters_agree_on_and_the_alarm_ends_with_it() -> None:
    lone = leading()
    index, right = mark(lone)
    lone.hear(PEER, report(lone, peer=right))
    lone.hear(OTHER, report(lone, other=WRONG))
    status = lone.shard.comparison.status()
    assert (status.alarms, status.comparisons) == (1, 2)
    assert status.alarm is not None
    assert status.alarm.wrong == (OTHER,)

    lone.propose()
    lone.acknowledge()
    later, right = mark(lone)
    lone.hear(PEER, report(lone, peer=right))
    assert lone.shard.comparison.status().alarm is not None  # the one in question has not spoken
    lone.sent.clear()
    lone.hear(OTHER, report(lone, other=right))
    status = lone.shard.comparison.status()
    assert (status.alarm, status.agreed_index, status.comparisons) == (None, later, 4)
    assert {to for to, _ in reports(lone)} == {PEER, OTHER}
    assert {row.hashes for _, each in reports(lone) for row in each.rows} == {right}

    # What was sent before arrives again, late.
    lone.hear(OTHER, StateReport(5, index, (StateRow(OTHER, WRONG),)))
    assert lone.shard.comparison.status().alarm is None

    # Such news is all that a follower needs.
    lone = following()
    index, right = mark(lone)
    lone.hear(PEER, report(lone, peer=right, other=WRONG))
    assert lone.shard.comparison.status().alarm is not None
    later_group = lone.next_group(b"2", term=5)
    lone.hear(PEER, replace(lone.append([later_group.data], term=5), commit=3))
    lone.tick()
    later, right = mark(lone)
    assert later > index
    lone.hear(PEER, report(lone, peer=right, other=right))
    status = lone.shard.comparison.status()
    assert (status.alarm, status.agreed_index) == (None, later)


def test_an_alarm_ends_when_the_replica_that_was_wrong_is_a_member_no_more() -> None:
    lone = leading()
    _, right = mark(lone)
    lone.hear(PEER, report(lone, peer=right))
    lone.hear(OTHER, report(lone, other=WRONG))
    without = lone.member.membership.without(OTHER)
    lone.shard.change_membership(without, lone.clock.time_s + 5.0, lone.outcomes.append)
    lone.acknowledge()
    assert lone.shard.comparison.status().alarm is not None
    _, right = mark(lone)
    lone.hear(PEER, report(lone, peer=right))
    assert lone.shard.comparison.status().alarm is None


def test_an_alarm_stays_however_many_marks_follow() -> None:
    lone = leading()
    _, right = mark(lone)
    lone.hear(PEER, report(lone, peer=right))
    lone.hear(OTHER, report(lone, other=WRONG))
    for _ in range(MARKS_KEPT + 1):
        lone.propose()
        lone.acknowledge()
        _, right = mark(lone)
        lone.hear(PEER, report(lone, peer=right))
    assert lone.shard.comparison.status().alarm is not None
