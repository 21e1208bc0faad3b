"""Damage that nobody can repair, and what is none: it keeps no replica from going on."""

import pytest

from onelog.cluster.raft.messages import Fetch, Message, Unavailable
from onelog.ual.entry import HEADER_SIZE, Unreadable
from onelog.ual.errors import CorruptFile, EntriesDamaged
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.unsealed import UnsealedSegment
from tests.cluster.raft.lone_shard import put
from tests.node.replica.group import IDS, Group, Node, trim
from tests.ual.shards import close_active, seal_closed

AWAY = IDS[2]
JOINER = IDS[3]


def entries(node: Node, first_index: int) -> list[object]:
    log = node.shard.log
    return list(log.segments.scan(first_index, log.applied_index))


def damaged_and_dropped_elsewhere() -> tuple[Group, Node, SealedSegment]:
    """A leader with a rotten segment that the others have dropped, so nobody can repair it."""
    group = Group()
    group.write(40)
    leader = group.leader
    group.until(group.is_settled)
    for _ in range(3):
        group.write(40)
        group.until(group.is_settled)
        for node in group.nodes.values():
            group.snapshot(node)
            if node is not leader:
                trim(node.shard)
    assert group.leader is leader
    dropped = min(each.shard.log.first_index for each in group.nodes.values() if each is not leader)
    segments = leader.shard.log.segments.segments
    segment = next(each for each in segments[1:] if each.last_index < dropped)
    assert isinstance(segment, SealedSegment)
    leader.shard.shipping.note_damage(CorruptFile(str(segment.path), "rot"))
    return group, leader, segment


def test_damage_that_others_have_dropped_keeps_nobody_from_joining() -> None:
    """Nobody can repair it and nobody needs it; a newcomer would be refused its log for ever."""
    group, leader, segment = damaged_and_dropped_elsewhere()
    joiner = group.join(JOINER)
    group.until(group.is_settled)

    assert len(group.hashes()) == 1
    first_index = joiner.shard.log.first_index
    assert first_index > segment.last_index
    assert entries(joiner, first_index) == entries(leader, first_index)
    [damage] = leader.shard.shipping.status.damages
    assert not damage.is_alarming


def test_damage_that_others_have_dropped_is_trimmed_with_the_rest() -> None:
    """A log that keeps one rotten segment for ever grows for ever."""
    group, leader, segment = damaged_and_dropped_elsewhere()
    assert trim(leader.shard) == 1  # what is before it; of itself nobody knows yet
    repair = leader.shard.shipping.repair
    group.until(lambda: repair.needless_before > segment.last_index)

    assert trim(leader.shard) > 0
    assert leader.shard.log.first_index > segment.last_index


def test_a_peer_that_lacks_a_damaged_group_is_sent_the_snapshot() -> None:
    """Raft would wait for ever for a group that nobody can read."""
    group = Group()
    group.write(5)
    if group.elect().node_id == AWAY:
        group.down.add(AWAY)
        group.until(lambda: group.elect().node_id != AWAY)
    group.down.add(AWAY)
    group.write(60)
    leader, away = group.leader, group.nodes[AWAY]
    for node in group.nodes.values():
        if node is not away:
            group.snapshot(node)
    segments = leader.shard.log.segments.segments
    segment = next(each for each in segments if each.first_index > away.shard.log.last_index)
    for node in group.nodes.values():
        if node is not away:
            damaged = node.shard.log.segments.covering(segment.first_index)
            node.shard.log.ring.clear(node.shard.log.last_index + 1)
            node.shard.shipping.note_damage(CorruptFile(str(damaged.path), "rot"))
    group.down.discard(AWAY)
    group.until(lambda: away.shard.shipping.receiver.failures > 0)

    # The snapshot is offered; the log below it is what nobody has.
    assert "damaged" in away.shard.shipping.receiver.failure


def rotten_everywhere(group: Group) -> tuple[Node, SealedSegment]:
    """A leader with a segment of which the others have only damaged copies."""
    leader = group.leader
    for node in group.nodes.values():
        seal_closed(node.shard.log)
    segment = next(
        each
        for each in leader.shard.log.segments.segments
        if isinstance(each, SealedSegment) and each.entry_count > 3
    )
    for node in group.nodes.values():
        node.disk.flip(node.shard.log.segments.covering(segment.first_index).path, 8 * 200)
    return leader, segment


def test_new_damage_is_repaired_at_once_though_older_damage_has_no_copy() -> None:
    """All members are asked again for the older one after a while, and nobody waits for that."""
    group = Group()
    group.write(80)
    group.until(group.is_settled)
    leader, hopeless = rotten_everywhere(group)
    repair = leader.shard.shipping.repair
    leader.shard.shipping.note_damage(CorruptFile(str(hopeless.path), "rot"))
    group.until(lambda: any(each.is_alarming for each in repair.damages.values()))
    began_s = leader.clock.time_s
    other = next(
        each
        for each in leader.shard.log.segments.segments
        if isinstance(each, SealedSegment) and each.first_index > hopeless.last_index
    )
    leader.shard.shipping.note_damage(CorruptFile(str(other.path), "rot"))
    group.until(lambda: repair.repaired == 1)

    assert leader.clock.time_s - began_s < repair._config.give_up_s / 2
    assert [*repair.damages] == [hopeless.first_index]


def test_damage_of_a_file_that_is_not_sealed_is_listed_and_named() -> None:
    group = Group(1)
    group.write(5)
    node = group.leader
    log, repair = node.shard.log, node.shard.shipping.repair
    segment = log.segments.segments[-1]
    assert isinstance(segment, UnsealedSegment)
    log.ring.clear(log.last_index + 1)
    node.disk.flip(segment.path, 8 * (segment.bounds[2] + HEADER_SIZE))
    index = segment.first_index + 2
    with pytest.raises(EntriesDamaged, match=f"entry {index}: "):
        log.read(index)
    node.shard.tick()

    assert repair.unreadable == (Unreadable(index, index),)
    assert not repair.is_pending(repair.unreadable), "nobody replaces a file that is written to"
    [alarm] = [each for each in node.shard.status().alarms if each.reason == "SEGMENT_DAMAGED"]
    assert str(segment.path) in alarm.message
    assert log.read(index + 1).index == index + 1


def test_a_fetch_that_cuts_a_group_is_refused_and_sets_nothing_aside() -> None:
    group = Group()
    group.write(10)
    leader = group.leader
    both = [put(b"a", b"1"), put(b"b", b"2")]
    leader.shard.propose(both, leader.clock.time_s + 60.0, group.outcomes.append)
    group.until(lambda: len(group.outcomes) == 11)
    last = leader.shard.log.last_index
    group.write(10)
    group.until(group.is_settled)
    close_active(leader.shard.log)
    seal_closed(leader.shard.log)
    segment = leader.shard.log.segments.covering(last)
    assert isinstance(segment, SealedSegment)
    answers: list[Message] = []
    group.filter = lambda _source, target, message: (
        answers.append(message) if target == AWAY and isinstance(message, Unavailable) else message
    )
    for first_index, last_index in ((segment.first_index, last - 1), (last, last)):
        fetch = Fetch(leader.shard.member.term, False, first_index, last_index, 1, 0, 100)
        leader.shard.on_message(AWAY, fetch)
        group.step()
    group.until(lambda: len(answers) == 2)

    assert all("no whole groups" in each.reason for each in answers)  # type: ignore[union-attr]
    assert leader.shard.shipping.status.damages == ()
