"""One member, its peers played by hand: what pysyncobj gets wrong, bad messages, full disks."""

import re
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pysyncobj.syncobj
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.cluster.errors import Discarded, ReplicaStopped, StorageFull
from onelog.cluster.raft.member import FOLLOWER, LEADER, TERM_STEP_MAX
from onelog.cluster.raft.membership import Membership
from onelog.cluster.raft.messages import Ack, Append, Offer, Stale, TimeoutNow, Vote, VoteRequest
from onelog.cluster.transport.wire import NUMBER_MAX
from onelog.projections.system.commands import TYPE_RAFT_CONFIG
from onelog.ual.entry import FLAG_ZSTD, encode_group
from tests.cluster.raft.lone_shard import ME, OTHER, PEER, SECOND, STRANGER, LoneShard


def test_the_installed_pysyncobj_has_the_private_names_that_are_fenced() -> None:
    """Another version may have renamed them, and an override that overrides nothing is silent."""
    source = Path(pysyncobj.syncobj.__file__).read_text()
    known = set(re.findall(r"self\.__(\w+)", source)) | set(re.findall(r"def __(\w+)", source))
    used = set(re.findall(r"_SyncObj__(\w+)", Path("cluster/raft/member.py").read_text()))
    assert "sendAppendEntries" in used
    assert used - known == set()


def test_a_follower_acknowledges_at_once_but_only_what_is_durable() -> None:
    lone = LoneShard()
    group = lone.next_group(b"1", term=5)

    (ack,) = lone.hear(PEER, lone.append([group.data], term=5))
    assert isinstance(ack, Ack)
    assert ack == Ack(
        5, 1, 2, success=True, reset=False, received=2, stamp=ack.stamp, promise_ms=400
    )

    lone.sync()
    assert lone.sent[-1] == (PEER, replace(ack, next=3))


def test_a_leader_commits_only_what_it_has_synced_itself() -> None:
    lone = LoneShard()
    lone.lead()
    lone.propose()
    lone.hear(PEER, lone.ack())
    lone.hear(OTHER, lone.ack())
    lone.tick()
    assert lone.outcomes == []

    lone.sync()
    assert len(lone.outcomes) == 1
    assert lone.value() == b"v"


def test_a_group_of_one_commits_only_what_is_synced() -> None:
    lone = LoneShard(founders=[ME])
    lone.pass_time(1.0)
    lone.sync()
    lone.propose()
    lone.pass_time(1.0)
    assert lone.outcomes == []

    lone.sync()
    assert len(lone.outcomes) == 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_group_is_dropped_and_costs_nothing(data: st.DataObject) -> None:
    """Not even uncommitted entries, in whose place it would be: they may be acknowledged."""
    lone = LoneShard()
    first = lone.next_group(b"first", term=3)
    lone.hear(PEER, lone.append([first.data], term=3))
    lone.sync()
    good = encode_group(
        [(0x0101, b"other", 0)], term=4, first_index=2, timestamp_ns=first.last_timestamp_ns
    ).data
    bad = bytearray(good)
    at = data.draw(st.integers(0, len(bad) * 8 - 1))
    bad[at >> 3] ^= 1 << (at & 7)
    append = lone.append([bytes(bad)], term=4, previous=1)

    assert lone.hear(OTHER, append) == []
    assert (lone.member.term, lone.member.journal.last) == (3, 2)
    assert lone.shard.log.proposals.data(2) == first.data
    assert lone.member.refusal.startswith(f"from {OTHER}")
    assert lone.member.damaged_messages == 1

    lone.hear(OTHER, replace(append, groups=(good,)))
    assert lone.shard.log.proposals.data(2) == good


@pytest.mark.parametrize("groups", [(b"",), (b"x" * 39,), (b"\0" * 200,)])
def test_a_forged_append_is_dropped(groups: tuple[bytes, ...]) -> None:
    lone = LoneShard()
    assert lone.hear(PEER, lone.append(groups, term=7)) == []
    assert (lone.member.term, lone.member.journal.last) == (0, 1)


CONFIG = Membership.of([ME, PEER]).draft()


@pytest.mark.parametrize(
    "drafts",
    [
        [(TYPE_RAFT_CONFIG, b"no zstd frame", FLAG_ZSTD)],
        [(TYPE_RAFT_CONFIG, zstandard.compress(bytes(80 << 20)), FLAG_ZSTD)],
        [(0x0101, b"", 0), CONFIG],
        [CONFIG, (0x0101, b"", 0)],
    ],
    ids=["no zstd", "a bomb", "behind another", "before another"],
)
def test_a_forged_membership_is_dropped(drafts: list[tuple[int, bytes, int]]) -> None:
    """With good checksums, as a peer with a defect may send it; nobody stops for that."""
    lone = LoneShard()
    group = encode_group(drafts, term=7, first_index=2, timestamp_ns=0)

    assert lone.hear(PEER, lone.append([group.data], term=7)) == []
    assert (lone.member.term, lone.member.journal.last) == (0, 1)
    assert lone.member.damaged_messages == 1


def test_the_time_of_a_leader_is_heard_where_nothing_is_written() -> None:
    """Or a successor whose wall clock is wrong would let every lease expire at once."""
    lone = LoneShard()
    lone.clock.time_s = 10_000.0
    now_ns = lone.clock.wall_ns() - 3600 * SECOND  # so our own clock is an hour ahead
    lone.hear(PEER, replace(lone.append([], term=1), log_time_ns=now_ns))
    lone.lead()

    passed_ns = lone.shard.log.last_timestamp_ns - now_ns
    assert 0 <= passed_ns <= 60 * SECOND
    assert lone.shard.log_time.is_alarming
    heartbeats = [each for _, each in lone.sent if isinstance(each, Append)]
    assert all(0 <= each.log_time_ns - now_ns <= 60 * SECOND for each in heartbeats)


def test_an_append_that_a_cut_network_held_back_says_what_time_it_was_then() -> None:
    """TCP delivers it when the network is whole again, and who then leads begins at that time."""
    lone = LoneShard()
    lone.clock.time_s = 10_000.0
    begin_ns = lone.clock.wall_ns()
    (ack,) = lone.hear(PEER, replace(lone.append([], term=1), log_time_ns=begin_ns))
    assert isinstance(ack, Ack)
    lone.clock.time_s += 8.0
    late = replace(lone.append([], term=1), log_time_ns=begin_ns + SECOND, echo=ack.stamp)
    lone.hear(PEER, late)
    lone.lead()
    assert not lone.shard.log_time.is_alarming
    assert lone.shard.log.last_timestamp_ns - begin_ns >= 8 * SECOND


def test_a_group_of_a_term_above_its_leaders_is_dropped() -> None:
    lone = LoneShard()
    assert lone.hear(PEER, lone.append([lone.next_group(b"1", term=9).data], term=8)) == []
    assert lone.member.term == 0


def test_a_stranger_changes_no_term_and_gets_no_vote() -> None:
    lone = LoneShard()
    journal = lone.member.journal
    for message in (
        VoteRequest(50, journal.last, journal.last_term),
        VoteRequest(50, journal.last, journal.last_term, pre_vote=True),
        Vote(50),
        Ack(50, 1, 5, success=True, reset=False),
        Stale(50),
        TimeoutNow(50),
    ):
        assert lone.hear(STRANGER, message) == []
    assert lone.member.term == 0


def test_a_stranger_is_not_followed_while_a_leader_is_heard() -> None:
    """Without one it may lead by a change that this replica missed."""
    lone = LoneShard()
    lone.hear(PEER, lone.append([], term=1))
    offer = Offer(50, 1, 9, 9, 49, 100, 0, 0, 9)
    for message in (lone.append([], term=50), offer):
        assert lone.hear(STRANGER, message) == []
        assert (lone.member.term, lone.member.leader_id) == (1, PEER)

    leader = LoneShard()
    leader.lead()
    assert leader.hear(STRANGER, leader.append([], term=50)) == []
    assert leader.member.state == LEADER

    lone.clock.time_s += 1.0
    lone.hear(STRANGER, lone.append([], term=50))
    lone.hear(STRANGER, lone.append([], term=50))
    assert (lone.member.term, lone.member.leader_id) == (50, STRANGER)


def test_a_stranger_cannot_depose_a_leader_that_is_heard() -> None:
    lone = LoneShard()
    lone.hear(PEER, lone.append([], term=1))
    assert lone.hear(STRANGER, VoteRequest(50, 100, 49)) == []
    assert lone.hear(STRANGER, VoteRequest(50, 100, 49, pre_vote=True)) == []

    leader = LoneShard()
    leader.lead()
    assert leader.hear(STRANGER, VoteRequest(50, 100, 49)) == []
    assert leader.member.state == LEADER


def test_a_replica_that_missed_a_change_votes_for_those_whom_it_added() -> None:
    lone = LoneShard()
    lone.pass_time(0.1)
    newer = VoteRequest(lone.member.term + 1, lone.member.journal.last + 5, lone.member.term)
    pre_vote = replace(newer, pre_vote=True)

    assert lone.hear(STRANGER, pre_vote) == [Vote(newer.term, pre_vote=True)]
    assert lone.hear(STRANGER, newer) == [Vote(newer.term)]


def test_an_absurd_term_is_no_term() -> None:
    lone = LoneShard()
    for term in (TERM_STEP_MAX + 1, NUMBER_MAX):  # the wire carries no larger one
        assert lone.hear(PEER, Stale(term)) == []
        assert lone.hear(PEER, Append(term, 0, 1, 0, (), 0)) == []
    assert lone.member.term == 0


def test_a_second_leader_of_the_same_term_is_not_followed() -> None:
    lone = LoneShard()
    lone.hear(PEER, lone.append([], term=2))
    assert lone.hear(OTHER, lone.append([], term=2)) == []
    assert lone.member.leader_id == PEER


def test_a_leader_of_an_older_term_is_told_so() -> None:
    lone = LoneShard()
    lone.hear(PEER, lone.append([], term=5))
    assert lone.hear(OTHER, lone.append([], term=4)) == [Stale(5)]


def test_acks_of_another_leadership_do_not_count() -> None:
    lone = LoneShard()
    lone.lead()
    lone.propose()
    lone.sync()
    lone.hear(PEER, replace(lone.ack(), term=lone.member.term - 1))
    lone.tick()
    assert lone.outcomes == []


def test_a_vote_counts_once() -> None:
    lone = LoneShard(founders=[ME, PEER, OTHER, UUID(int=4), UUID(int=5)])
    lone.pass_time(1.0)
    for peer in (PEER, OTHER):
        lone.hear(peer, Vote(1, pre_vote=True))
    lone.tick()
    for _ in range(3):
        lone.hear(PEER, Vote(1))
    assert lone.member.state != LEADER
    lone.hear(OTHER, Vote(1))
    assert lone.member.state == LEADER


def test_a_mismatch_is_settled_by_one_question() -> None:
    """pysyncobj goes back one by one: thousands of round trips for a deposed leader's tail."""
    lone = LoneShard()
    for at in range(5):
        append = lone.append([lone.next_group(b"%d" % at, term=1).data], term=1)
        lone.hear(PEER, replace(append, commit=1))
    (ack,) = lone.hear(OTHER, Append(2, 1, 5, 2, (), 0))
    assert ack == Ack(2, 1, 2, success=False, reset=True)


def test_a_follower_whose_disk_is_full_stays_alive_and_takes_it_later() -> None:
    lone = LoneShard()
    append = lone.append([lone.next_group(b"1", term=1).data], term=1)
    lone.disk.capacity = 0
    assert lone.hear(PEER, append) == [Ack(1, 1, 2, success=False, reset=False)]
    assert lone.member.journal.last == 1

    lone.disk.capacity = None
    lone.hear(PEER, append)
    assert lone.member.journal.last == 2


def test_a_leader_whose_disk_is_full_refuses_and_goes_on_later() -> None:
    lone = LoneShard()
    lone.lead()
    lone.shard.log._space.invalidate()
    lone.disk.capacity = 0
    lone.propose()
    assert isinstance(lone.outcomes[0], StorageFull)

    lone.disk.capacity = None
    lone.propose()
    lone.acknowledge()
    assert lone.value() == b"v"


def test_nobody_leads_who_has_no_room_for_its_first_entry() -> None:
    lone = LoneShard()
    lone.pass_time(1.0)
    lone.hear(PEER, Vote(1, pre_vote=True))
    lone.tick()
    lone.shard.log._space.invalidate()
    lone.disk.capacity = 0
    lone.hear(PEER, Vote(1))
    assert lone.member.state == FOLLOWER
    assert not lone.member.has_applied_noop


def test_a_pause_in_the_wrong_place_does_not_mix_up_outcomes() -> None:
    """With a second between two looks at the clock, pysyncobj takes nothing from its queue."""
    lone = LoneShard()
    lone.lead()
    lone.clock.jumps_s = [0.0, 1.0]
    number, _ = lone.member.propose([(0x0101, b"x", 0)])
    assert number == lone.member.journal.last == 3


def test_a_request_whose_place_was_taken_is_told_so_and_called_back_once() -> None:
    lone = LoneShard()
    lone.lead()
    lone.propose(b"mine")
    theirs = encode_group(
        [(0x0101, b"", 0)],
        term=9,
        first_index=3,
        timestamp_ns=lone.shard.log.last_timestamp_ns,
    )
    append = Append(9, 1, 2, lone.member.journal.find_term(2), (theirs.data,), 2)
    lone.hear(PEER, append)
    assert lone.outcomes == []
    lone.hear(PEER, replace(append, previous=3, previous_term=9, groups=(), commit=3))
    lone.tick()
    assert [type(outcome) for outcome in lone.outcomes] == [Discarded]
    assert lone.value() is None


def test_requests_of_two_leaderships_at_the_same_number_are_both_answered() -> None:
    lone = LoneShard()
    lone.lead()
    for _ in range(3):  # proposals 3, 4 and 5
        lone.propose(b"old")
    theirs = encode_group(
        [(0x0101, b"", 0)],
        term=2,
        first_index=3,
        timestamp_ns=lone.shard.log.last_timestamp_ns,
    )
    lone.hear(OTHER, Append(2, 1, 2, 1, (theirs.data,), 2))
    assert lone.member.journal.last == 3
    lone.elect()  # its no-op is number 4
    lone.propose(b"new")
    assert lone.member.journal.last == 5
    lone.acknowledge()

    ends = sorted(type(outcome).__name__ for outcome in lone.outcomes)
    assert ends == ["Discarded", "Discarded", "Discarded", "Results"]
    assert lone.value() == b"new"


def test_an_error_in_apply_stops_the_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    lone = LoneShard()
    lone.lead()
    lone.propose()

    def fail(_entries: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(lone.shard.router, "apply_group", fail)
    with pytest.raises(RuntimeError):
        lone.acknowledge()
    assert [type(outcome).__name__ for outcome in lone.outcomes] == ["OutcomeUnknown"]
    with pytest.raises(ReplicaStopped):
        lone.tick()


def test_a_callback_that_raises_takes_nothing_with_it() -> None:
    lone = LoneShard()
    lone.lead()

    def explode(_outcome: object) -> None:
        raise RuntimeError("in the caller")

    deadline_s = lone.clock.time_s + 5
    lone.shard.propose([(0x0101, b"junk", 0)], deadline_s, explode)
    lone.start()
    lone.propose(b"after")
    with pytest.raises(RuntimeError):
        lone.acknowledge()
    lone.tick()
    assert lone.member.applied == lone.member.journal.last
    assert len(lone.outcomes) == 1


def test_a_group_of_one_elects_itself_at_once() -> None:
    """There is nobody whose silence it could wait for, and somebody waits for the database."""
    lone = LoneShard(founders=[ME])
    lone.tick()
    lone.sync()
    lone.tick()
    assert lone.member.has_applied_noop
