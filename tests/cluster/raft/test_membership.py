"""Members as bytes, and the rules by which they change."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.cluster.errors import MembershipRefused, NotLeader, TransferFailed
from onelog.cluster.raft.member import LEADER
from onelog.cluster.raft.membership import LEARNERS_MAX, VOTERS_MAX, Membership, decode_membership
from onelog.cluster.raft.messages import Ack, Append, TimeoutNow
from onelog.ual.entry import encode_group
from onelog.ual.errors import CorruptEntry
from tests.cluster.raft.lone_shard import ME, OTHER, PEER, LoneShard
from tests.simulation.disk import CrashPolicy

NEW = UUID(int=7)
ids = st.lists(st.uuids(), unique=True, min_size=1, max_size=VOTERS_MAX + LEARNERS_MAX)


texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)


@given(ids, st.integers(1, VOTERS_MAX), st.data())
def test_a_membership_survives_its_bytes(
    members: list[UUID], voters: int, data: st.DataObject
) -> None:
    known = {each: data.draw(texts) for each in members}
    names = {each: data.draw(texts) + data.draw(st.sampled_from(("", "ä"))) for each in members}
    membership = Membership.of(members[:voters], members[voters:][:LEARNERS_MAX], known, names)
    payload = membership.draft().payload
    assert decode_membership(payload) == membership
    # Without names it is what earlier versions read.
    assert payload[0] == (3 if membership.names else 2)


def test_a_name_stays_with_its_member_through_every_change() -> None:
    founders = Membership.of([ME, PEER])
    named = founders.with_learner(NEW).named({NEW: "n4"})
    assert named.with_promoted(NEW).names == ((NEW, "n4"),)
    assert named.with_promoted(NEW).without(PEER).names == ((NEW, "n4"),)
    assert named.without(NEW).names == ()
    for bad in ("a\nb", "x" * 256):
        with pytest.raises(MembershipRefused, match="the name"):
            founders.named({ME: bad})


@pytest.mark.parametrize("cut", range(1, 12))
def test_names_that_are_cut_short_or_followed_by_more_are_refused(cut: int) -> None:
    payload = Membership.of([ME, PEER], names={ME: "node-1", PEER: "n2"}).draft().payload
    with pytest.raises(CorruptEntry):
        decode_membership(payload[:-cut])
    with pytest.raises(CorruptEntry):
        decode_membership(payload + bytes(cut))


@settings(max_examples=200)
@given(st.binary(max_size=80))
def test_other_bytes_are_refused_by_name(payload: bytes) -> None:
    try:
        membership = decode_membership(payload)
    except CorruptEntry:
        return
    assert membership.draft().payload == payload


def change(lone: LoneShard, membership: Membership) -> None:
    lone.shard.change_membership(membership, lone.clock.time_s + 5, lone.outcomes.append)
    lone.start()


def catch_up(lone: LoneShard, member: UUID) -> None:
    lone.hear(member, lone.ack())


def test_a_newcomer_learns_then_votes_then_leaves() -> None:
    lone = LoneShard()
    lone.lead()
    founders = lone.member.membership
    change(lone, founders.with_learner(NEW))
    lone.acknowledge()
    assert lone.member.membership.learners == (NEW,)

    change(lone, lone.member.membership.with_promoted(NEW))
    assert isinstance(lone.outcomes[-1], MembershipRefused), "it has not caught up"
    catch_up(lone, NEW)
    change(lone, lone.member.membership.with_promoted(NEW))
    lone.acknowledge()
    assert lone.member.applied < lone.member.journal.last, "two of four are no majority"
    lone.hear(OTHER, lone.ack())
    assert lone.member.applied == lone.member.journal.last

    change(lone, lone.member.membership.without(NEW))
    lone.acknowledge()
    assert lone.member.membership == founders


def test_a_learner_is_part_of_no_majority() -> None:
    lone = LoneShard()
    lone.lead()
    change(lone, lone.member.membership.with_learner(NEW))
    lone.acknowledge()
    lone.propose()
    lone.sync()
    lone.hear(NEW, lone.ack())
    lone.tick()
    assert len(lone.outcomes) == 1

    lone.hear(PEER, lone.ack())
    assert len(lone.outcomes) == 2


def test_the_next_change_waits_for_the_last_one() -> None:
    lone = LoneShard()
    lone.lead()
    change(lone, lone.member.membership.with_learner(NEW))
    change(lone, lone.member.membership.without(OTHER))
    assert isinstance(lone.outcomes[0], MembershipRefused)


def test_nothing_changes_before_the_leader_knows_what_is_committed() -> None:
    lone = LoneShard()
    lone.elect()
    change(lone, lone.member.membership.with_learner(NEW))
    assert isinstance(lone.outcomes[0], MembershipRefused)


def test_a_leader_does_not_remove_itself() -> None:
    lone = LoneShard()
    lone.lead()
    change(lone, lone.member.membership.without(ME))
    assert isinstance(lone.outcomes[0], MembershipRefused)


def test_a_follower_changes_nothing() -> None:
    lone = LoneShard()
    change(lone, lone.member.membership.with_learner(NEW))
    assert isinstance(lone.outcomes[0], NotLeader)


def test_a_change_counts_when_it_is_in_the_log_and_not_when_it_was_cut() -> None:
    lone = LoneShard()
    founders = lone.member.membership
    draft = founders.with_learner(NEW).draft()
    group = encode_group([draft], term=1, first_index=2, timestamp_ns=0)
    lone.hear(PEER, Append(1, 1, 1, 0, (group.data,), 1))
    assert lone.member.membership.learners == (NEW,)

    other = encode_group([(0x0101, b"", 0)], term=2, first_index=2, timestamp_ns=0)
    lone.hear(OTHER, Append(2, 1, 1, 0, (other.data,), 1))
    assert lone.member.membership == founders


def test_a_restart_finds_the_members_again_committed_or_not() -> None:
    lone = LoneShard()
    lone.lead()
    change(lone, lone.member.membership.with_learner(NEW))
    lone.sync()
    again = LoneShard(lone.disk.crash(CrashPolicy.LOST))
    assert again.member.membership.learners == (NEW,)

    lone.acknowledge()
    again = LoneShard(lone.disk.crash(CrashPolicy.LOST))
    assert again.member.membership.learners == (NEW,)


def test_a_change_of_members_that_a_power_loss_took_was_promised_to_nobody() -> None:
    """The leader had not synced it, so it was not committed: the old members count again."""
    lone = LoneShard()
    lone.lead()
    change(lone, lone.member.membership.with_learner(NEW))
    lone.hear(PEER, lone.ack())
    lone.hear(OTHER, lone.ack())
    lone.tick()
    assert lone.outcomes == []
    again = LoneShard(lone.disk.crash(CrashPolicy.LOST))
    assert again.member.membership.learners == ()


def test_who_is_no_voter_does_not_stand_for_election() -> None:
    lone = LoneShard(founders=[PEER, OTHER])
    lone.pass_time(5.0)
    assert lone.sent == []
    assert lone.member.term == 0


def test_a_transfer_holds_new_groups_until_the_target_has_everything() -> None:
    lone = LoneShard()
    lone.lead()
    ends: list[object] = []
    lone.propose(b"before")
    lone.shard.transfer(PEER, ends.append)
    last = lone.member.journal.last
    lone.propose(b"meanwhile")
    assert lone.member.journal.last == last
    lone.sync()
    assert TimeoutNow not in {type(message) for _, message in lone.sent}

    lone.hear(PEER, lone.ack())
    assert (PEER, TimeoutNow(lone.member.term)) in lone.sent
    assert ends == []


def test_a_transfer_that_leads_to_nothing_ends_after_an_election_timeout() -> None:
    lone = LoneShard()
    lone.lead()
    ends: list[object] = []
    lone.shard.transfer(PEER, ends.append)
    lone.propose(b"held")
    last = lone.member.journal.last
    for _ in range(40):
        lone.clock.time_s += 0.03
        lone.tick()
        lone.hear(OTHER, Ack(lone.member.term, 0, 1, success=True, reset=False))
    assert [type(end) for end in ends] == [TransferFailed]
    assert lone.member.state == LEADER
    assert lone.member.journal.last == last + 1


@pytest.mark.parametrize("target", [ME, NEW])
def test_only_another_voter_is_handed_the_leadership(target: UUID) -> None:
    lone = LoneShard()
    lone.lead()
    ends: list[object] = []
    lone.shard.transfer(target, ends.append)
    lone.start()
    assert [type(end) for end in ends] == [TransferFailed]
