"""Snapshots and ranges between real shards, message by message: what is taken, and what is not."""

import errno
from dataclasses import replace
from random import Random
from uuid import UUID

import pytest

from onelog.cluster.raft.messages import Ack, Append, Chunk, Fetch, Message, Offer
from onelog.node.replica.shipping import Shipping
from onelog.node.services.admin import fill_shard
from onelog.ual.errors import CorruptFile, EntriesDamaged
from onelog.ual.segments.sealed import SealedSegment
from onelog.v1.admin_pb2 import ShardStatus
from tests.node.replica.group import IDS, Group, Node, trim
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.shards import close_active, seal_closed

AWAY = IDS[2]
JOINER = IDS[3]


def behind(groups: int = 40) -> Group:
    """Three replicas, one of which lacks what the others have dropped."""
    group = Group()
    group.write(5)
    if group.elect().node_id == AWAY:
        group.down.add(AWAY)
        group.until(lambda: group.elect().node_id != AWAY)
    group.fall_behind(AWAY, groups)
    return group


def come_back(group: Group) -> Node:
    group.down.discard(AWAY)
    return group.nodes[AWAY]


def entries(node: Node, first_index: int) -> list[object]:
    log = node.shard.log
    return list(log.segments.scan(first_index, log.applied_index))


def test_a_replica_with_an_empty_disk_joins_while_writes_go_on() -> None:
    group = Group()
    group.fall_behind(None)
    joiner = group.join(JOINER)
    group.write(30)
    group.until(group.is_settled)

    leader = group.leader
    assert joiner.shard.log.base is not None
    assert len(group.hashes()) == 1
    # It has every entry that the leader keeps, in segments of its own.
    first_index = leader.shard.log.first_index
    assert joiner.shard.log.first_index == first_index > 1
    assert entries(joiner, first_index) == entries(leader, first_index)
    assert leader.shard.shipping.status.sending == {}
    joiner.shard.log.check()


def test_the_log_of_a_replica_that_was_away_goes_on_behind_its_own_segments() -> None:
    group = behind()
    away = come_back(group)
    own = away.shard.log.last_index
    group.until(group.is_settled)

    log = away.shard.log
    assert own < log.base.index if log.base else False
    assert len(group.hashes()) == 1
    assert entries(away, log.first_index) == entries(group.leader, log.first_index)
    # And through a restart.
    again = group.start(AWAY, away.disk.crash(CrashPolicy.LOST))
    group.until(group.is_settled)
    assert again.shard.log.base == log.base
    assert len(group.hashes()) == 1


def test_every_crash_on_the_way_leaves_a_replica_that_comes_up_and_catches_up() -> None:
    group = behind(groups=12)
    away = come_back(group)
    crashes: list[tuple[str, SimDisk]] = []
    rng = Random(11)
    before = away.shard.router.applied_index

    def crash(operation: str) -> None:
        crashes.extend(
            (operation, away.disk.crash(policy, Random(rng.getrandbits(32))))
            for policy in (CrashPolicy.LOST, CrashPolicy.KEPT, CrashPolicy.RANDOM)
        )

    away.disk.after_operation = crash
    group.until(lambda: away.shard.log.base is not None)
    away.disk.after_operation = None
    base = away.shard.log.base
    assert base is not None
    seen = set()
    for number, (operation, disk) in enumerate(crashes):
        queue, group.queue = group.queue, []
        again = group.start(AWAY, disk)  # compares the state with what others had there
        index = again.shard.router.applied_index
        assert index <= before or index == base.index, operation
        seen.add(index == base.index)
        again.shard.log.check()
        left = again.disk.list(again.shard.snapshots.directory)
        assert left == [record.file for record in again.shard.snapshots.records], operation
        group.queue = queue
        if number % 40 == 0:
            # This is the past: nobody may remember what it has confirmed since.
            for each in (IDS[0], IDS[1]):
                group.start(each, group.nodes[each].disk.crash(CrashPolicy.KEPT))
            group.until(group.is_settled)
            assert len(group.hashes()) == 1, operation
    assert seen == {True, False}
    assert len(crashes) > 100


@pytest.mark.parametrize("what", ["snapshot", "entries", "another state"])
def test_bytes_that_are_damaged_on_the_way_are_not_installed_nor_confirmed(what: str) -> None:
    group = behind()
    away = come_back(group)
    applied = away.shard.member.applied
    confirmed: list[Ack] = []

    def damage(source: UUID, target: UUID, message: Message) -> Message:
        if isinstance(message, Ack) and source == AWAY and message.success:
            confirmed.append(message)
        if what == "another state":
            if isinstance(message, Offer):
                return replace(message, state_hash=message.state_hash ^ 1)
        elif isinstance(message, Chunk) and message.is_snapshot == (what == "snapshot"):
            # In the midst of the first chunk: where values and payloads are.
            at = 150
            if target == AWAY and message.offset == 0 and len(message.data) > at:
                flipped = bytes([message.data[at] ^ 1])
                return replace(message, data=message.data[:at] + flipped + message.data[at + 1 :])
        return message

    group.filter = damage
    group.until(lambda: away.shard.shipping.status.failures >= 3)

    assert away.shard.log.base is None
    assert away.shard.member.applied == applied
    assert all(ack.next <= applied + 1 for ack in confirmed)
    assert away.shard.shipping.status.failure
    group.step()
    refusals = group.leader.shard.shipping.status.refusals
    assert refusals[AWAY], "both sides know"
    group.filter = lambda _source, _target, message: message
    group.until(group.is_settled)
    assert len(group.hashes()) == 1


def test_loss_repetition_and_reordering_of_chunks_are_harmless() -> None:
    group = behind()
    away = come_back(group)
    rng = Random(3)
    late: list[tuple[UUID, UUID, Message]] = []

    def weather(source: UUID, target: UUID, message: Message) -> Message | None:
        if isinstance(message, Chunk | Fetch):
            if rng.random() < 0.2:
                return None
            if rng.random() < 0.3:
                late.append((source, target, message))
            if late and rng.random() < 0.3:
                group.queue.append(late.pop(rng.randrange(len(late))))
        return message

    group.filter = weather
    group.until(group.is_settled)
    assert away.shard.log.base is not None
    assert len(group.hashes()) == 1


def test_a_snapshot_of_what_is_applied_is_ignored_and_confirmed() -> None:
    group = Group()
    group.fall_behind(None)
    group.until(group.is_settled)
    leader = group.leader
    follower = next(each for each in group.nodes.values() if each is not leader)
    record = leader.shard.snapshots.newest
    assert record is not None
    offered = leader.shard.shipping._offer_to(follower.node_id)
    assert offered is not None
    group.write(5)
    group.until(group.is_settled)
    applied, state_hash = follower.shard.member.applied, follower.shard.router.state_hash()
    group.queue.clear()

    follower.shard.on_message(
        leader.node_id, offered.message(leader.shard.member.term, 1, leader.shard.member.commit)
    )

    sent = [message for source, _, message in group.queue if source == follower.node_id]
    assert [type(message) for message in sent] == [Ack]
    assert isinstance(sent[0], Ack)
    assert sent[0].success
    assert follower.shard.shipping.receiver.current is None
    assert (follower.shard.member.applied, follower.shard.router.state_hash()) == (
        applied,
        state_hash,
    )


def test_what_follows_a_snapshot_in_the_log_stays() -> None:
    """The follower has the proposals, and has not heard yet that they are committed."""
    group = Group()
    group.write(3)
    leader = group.leader
    follower = next(each for each in group.nodes.values() if each is not leader)
    journal = follower.shard.member.journal
    group.until(group.is_settled)
    held = journal.last - 1
    term = journal.find_term(held)
    follower.shard.member._SyncObj__raftLastApplied = held - 1
    group.queue.clear()

    index = follower.shard.log.proposals.indexes(held)[1]
    offer = Offer(follower.shard.member.term, 1, index, held, term, 100, 1, 0, 99)
    follower.shard.on_message(leader.node_id, offer)

    [answer] = [message for source, _, message in group.queue if source == follower.node_id]
    assert isinstance(answer, Ack)
    assert answer.success
    assert answer.next > held
    assert journal.last == held + 1
    assert follower.shard.shipping.receiver.current is None


def test_an_offer_commits_nothing() -> None:
    group = behind()
    away = come_back(group)
    member = away.shard.member
    commit = member.commit
    offer = Offer(member.term + 1, 1, 1000, 900, member.term + 1, 100, 1, 0, commit + 50)
    group.queue.clear()

    away.shard.on_message(group.leader.node_id, offer)

    assert member.commit == commit
    answers = [message for source, _, message in group.queue if source == AWAY]
    assert Ack(offer.term, 1, member.applied + 1, False, False) in answers


def test_what_is_being_fetched_is_not_trimmed_and_a_silent_peer_pins_nothing_for_long() -> None:
    group = behind()
    away = come_back(group)
    leader = group.leader
    group.until(lambda: bool(leader.shard.shipping.status.sending))
    first_index = leader.shard.log.first_index
    group.down.add(AWAY)  # in the midst of it
    for _ in range(3):
        group.write(20)
        group.snapshot(leader)
        trim(leader.shard)

    assert leader.shard.log.first_index == first_index
    [shipment] = leader.shard.shipping.status.sending.values()
    assert 0 < shipment.done_bytes <= shipment.total_bytes
    shown = ShardStatus()
    fill_shard(shown, 0, leader.shard)
    told = {each.node_id: (each.shipped_bytes, each.shipping_bytes) for each in shown.lags}
    assert told.pop(str(AWAY)) == (shipment.done_bytes, shipment.total_bytes)
    assert set(told.values()) == {(0, 0)}

    group.until(lambda: not leader.shard.shipping.status.sending)
    assert leader.shard.shipping.status.given_up == 1
    assert trim(leader.shard) > 0
    assert leader.shard.log.first_index > first_index
    come_back(group)
    group.until(group.is_settled)
    assert away.shard.log.base is not None
    assert len(group.hashes()) == 1


def test_a_new_leader_in_the_midst_begins_again() -> None:
    group = behind()
    away = come_back(group)
    first = group.leader
    group.until(lambda: away.shard.shipping.receiver.current is not None)
    for _ in range(3):
        group.step()
    other = next(each for each in group.nodes.values() if each not in (first, away))
    first.shard.transfer(other.node_id, lambda _error: None)
    group.until(lambda: other.shard.member.has_applied_noop)
    assert first.shard.shipping.status.sending == {}
    group.until(group.is_settled)

    assert len(group.hashes()) == 1
    assert away.shard.log.base is not None


def test_a_full_disk_puts_a_transfer_off() -> None:
    group = behind()
    away = come_back(group)
    away.disk.capacity = 0
    group.until(lambda: away.shard.shipping.status.failures >= 2)
    assert away.shard.log.base is None

    away.disk.capacity = None
    group.until(group.is_settled)
    assert len(group.hashes()) == 1


def test_a_stranger_is_given_nothing() -> None:
    group = behind()
    leader = group.leader
    group.queue.clear()
    fetch = Fetch(1, False, leader.shard.log.first_index, leader.shard.log.first_index, 1, 0, 100)

    leader.shard.on_message(UUID(int=99), fetch)

    assert leader.shard.ship_begin() is None
    assert not [message for _, target, message in group.queue if target.int == 99]


def rotten(group: Group, *, seal: bool = False) -> tuple[Node, SealedSegment]:
    node = next(each for each in group.nodes.values() if each is not group.leader)
    if seal:
        seal_closed(node.shard.log)
    segment = next(
        each
        for each in node.shard.log.segments.segments
        if isinstance(each, SealedSegment) and each.entry_count > 3
    )
    node.disk.flip(segment.path, 8 * 200)
    return node, segment


@pytest.mark.parametrize("found_by", ["scrub", "reading"])
def test_a_rotten_segment_is_set_aside_and_replaced_by_a_peers_copy(found_by: str) -> None:
    group = Group()
    group.write(60)
    group.until(group.is_settled)
    for each in group.nodes.values():
        seal_closed(each.shard.log)
    # Boundaries differ between replicas: the copy comes in several pieces, or as a part of one.
    leader = group.leader
    close_active(leader.shard.log)
    node, segment = rotten(group)
    good = entries(leader, 1)
    shipping: Shipping = node.shard.shipping
    if found_by == "reading":
        with pytest.raises(EntriesDamaged, match="checksum") as caught:
            list(node.shard.log.segments.scan(segment.first_index, segment.last_index))
        node.shard.tick()
        [damage] = shipping.status.damages
        assert damage.unreadable == ((caught.value.first_index, caught.value.last_index),)
        with pytest.raises(EntriesDamaged):
            node.shard.log.segments.read(caught.value.first_index)
        intact = {*range(segment.first_index, segment.last_index + 1)} - {caught.value.first_index}
        assert {node.shard.log.segments.read(each).index for each in intact} == intact
    else:
        group.until(lambda: bool(shipping.status.damages or shipping.status.mended))
        damage = (*shipping.status.damages, *shipping.status.mended)[0]
    assert damage.path == str(segment.path)
    assert (damage.first_index, damage.last_index) == (segment.first_index, segment.last_index)
    assert damage.found_by == found_by
    assert "checksum" in damage.rule
    group.until(lambda: shipping.status.repaired == 1)
    group.write(5)

    assert not shipping.status.damages
    assert entries(node, 1)[: len(good)] == good
    node.shard.log.check()
    again = group.start(node.node_id, node.disk.crash(CrashPolicy.LOST))
    assert entries(again, 1)[:40] == good[:40]


def test_a_late_append_that_meets_a_rotten_segment_stops_nobody() -> None:
    group = Group()
    sent: list[Append] = []

    def watch(_source: UUID, _target: UUID, message: Message) -> Message:
        if isinstance(message, Append) and message.groups:
            sent.append(message)
        return message

    group.filter = watch
    group.write(40)
    group.until(group.is_settled)
    node, segment = rotten(group, seal=True)
    node.shard.log.ring.clear(node.shard.log.last_index + 1)
    last = node.shard.member.journal.last
    for append in sent:
        node.shard.on_message(group.leader.node_id, append)

    status = node.shard.shipping.status
    assert [damage.path for damage in status.damages] == [str(segment.path)]
    assert status.damages[0].found_by == "reading"
    assert node.shard.member.journal.last == last
    group.until(lambda: node.shard.shipping.status.repaired == 1)
    group.write(3)
    group.until(group.is_settled)
    assert len(group.hashes()) == 1


def test_a_damaged_segment_comes_anew_with_all_that_follows_it() -> None:
    group = Group()
    group.write(5)
    if group.elect().node_id == AWAY:
        group.down.add(AWAY)
        group.until(lambda: group.elect().node_id != AWAY)
        group.down.discard(AWAY)
    group.until(group.is_settled)
    log = group.nodes[AWAY].shard.log
    close_active(log)
    seal_closed(log)
    group.fall_behind(AWAY, 40)
    damaged = log.segments.segments[0]
    assert isinstance(damaged, SealedSegment)
    away = come_back(group)
    receiver = away.shard.shipping.receiver
    away.shard.shipping.note_damage(CorruptFile(str(damaged.path), "rot"))
    group.until(lambda: receiver.current is not None)

    assert receiver.current is not None
    assert receiver.current.keep_through == 0
    assert receiver.current.next_index == damaged.first_index
    group.until(group.is_settled)
    first_index = log.first_index
    assert entries(away, first_index) == entries(group.leader, first_index)


def test_a_trim_does_not_count_on_a_snapshot_that_a_full_disk_refuses_meanwhile() -> None:
    group = Group(1)
    node = group.elect()
    for _ in range(2):
        group.write(40)
        group.snapshot(node)
    group.write(40)
    assert node.shard.snapshots.accept_begin(*group.build(node)) is not None
    node.disk.fail("write", errno.ENOSPC, path_contains="MANIFEST")
    assert trim(node.shard) > 0
    assert node.shard.log.first_index <= node.shard.snapshots.keep_from_index
