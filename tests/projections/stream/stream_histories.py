"""Random commands on streams that mostly take effect, and every question that can be asked."""

from random import Random

from onelog.projections.limits import U64_MAX
from onelog.projections.result import Refused
from onelog.projections.stream.commands import (
    Ack,
    Append,
    Cause,
    Claim,
    Command,
    Configure,
    Create,
    Delete,
    Deliver,
    GroupCommit,
    GroupConfig,
    GroupConfigure,
    GroupCreate,
    GroupDelete,
    GroupHeartbeat,
    GroupJoin,
    GroupLeave,
    GroupSeek,
    KeyHash,
    Nack,
    PartitionOffset,
    ProducerRef,
    Retention,
    Trim,
    TrimCut,
    TrimTo,
    encode_command,
)
from onelog.projections.stream.filters import EVERYTHING, RecordFilter
from onelog.projections.stream.limits import PARTITION_ANY
from onelog.projections.stream.operations import claimable_from
from onelog.projections.stream.projection import Stream
from onelog.projections.stream.reads import GroupDescription, StreamDescription
from onelog.ual.entry import Draft
from tests.projections.stream.stream_pages import PendingRecord, find_group, list_pending

NAMESPACE = "default"
SECOND = 1_000_000_000
STREAMS = ("orders", "events", "dead")
GROUPS = ("billing", "audit")
IDLE_NS = (0, SECOND, U64_MAX)
_FILTER = RecordFilter(frozenset((b"a",)), b"a", frozenset(("red",)), (("h", b"1"), ("i", None)))


def random_commands(rng: Random, state: Stream) -> list[Draft]:
    """Return one to three drafts, drawn with a look at what exists."""
    if rng.random() < 0.05 and (trim := _draw_trim(rng, state)):
        return [encode_command(trim, NAMESPACE)]
    count = rng.choice((1, 1, 2, 3))
    return [encode_command(draw_command(rng, state), NAMESPACE) for _ in range(count)]


def _draw_trim(rng: Random, state: Stream) -> TrimTo | None:
    """Draw a trim with counts that can be right; mostly below the first mark after a place."""
    streams = [*state._streams.by_id.values()]
    if not streams:
        return None
    stream = rng.choice(streams)
    cuts = []
    for partition in stream.partitions:
        before = rng.randint(partition.first_offset, partition.end_offset)
        marks = [*partition.marks, partition.end_offset, 0, partition.count, partition.size]
        later = [at for at in range(0, len(marks), 4) if marks[at] >= before]
        at = later[0] if later else 0
        first, _, records, size = marks[at : at + 4]
        cuts.append(TrimCut(partition.number, before, first, records + (rng.random() < 0.1), size))
    return TrimTo(stream.id, rng.choice((Cause.REQUEST, Cause.COUNT)), tuple(cuts), True)


def answers(state: Stream) -> list[object]:
    """Return every answer that the state gives, for a comparison of replicas."""
    found: list[object] = [
        sorted(state.kept_streams().items()),
        state.pinned(0, U64_MAX),
        state.next_deadline(),
        state.due(U64_MAX, 1_000),
        state.chores(U64_MAX // 2, 1_000),
        state.counts(),
    ]
    for namespace in sorted(state._streams.names):
        names = state.list_streams(namespace)
        assert not isinstance(names, Refused)
        for name in names:
            described = state.describe(namespace, name)
            assert isinstance(described, StreamDescription)
            found.append(described)
            for group in described.groups:
                found += (
                    state.describe_group(namespace, name, group),
                    list_pending(state, name, group, namespace),
                    claimable_from(find_group(state, name, group, namespace), SECOND),
                )
    return found


def draw_command(rng: Random, state: Stream) -> Command:
    """Draw one command; about one in ten has no chance to take effect."""
    existing = state.list_streams(NAMESPACE)
    if isinstance(existing, Refused) or not existing or len(existing) < 2 or rng.random() < 0.03:
        return _create(rng)
    name = rng.choice(existing)
    stream = state.describe(NAMESPACE, name)
    assert isinstance(stream, StreamDescription)
    chance = rng.random()
    if chance < 0.35:
        return _append(rng, state, stream)
    if chance < 0.43:
        return _change(rng, stream)
    if not stream.groups or chance < 0.46:
        start = rng.choice((0, U64_MAX, rng.randint(1, stream.partitions[0].end_offset)))
        return GroupCreate(name, rng.choice(GROUPS), start, _group_config(rng))
    group = state.describe_group(NAMESPACE, name, rng.choice(stream.groups))
    assert isinstance(group, GroupDescription)
    pending = list_pending(state, name, group.name)
    return _group_command(rng, stream, group, pending)


def _create(rng: Random) -> Create:
    key_hash = rng.choice(tuple(KeyHash))
    return Create(rng.choice(STREAMS), rng.choice((1, 1, 3)), _retention(rng), key_hash)


def _retention(rng: Random) -> Retention:
    return Retention(
        rng.choice((0, 0, 0, 3 * SECOND)),
        rng.choice((0, 0, 0, 200)),
        rng.choice((0, 0, 5, 40)),
        rng.random() < 0.4,
    )


def _append(rng: Random, state: Stream, stream: StreamDescription) -> Append:
    producer = _producer(rng, state, stream.name) if rng.random() < 0.4 else None
    count = len(stream.partitions)
    return Append(
        stream.name,
        rng.randbytes(rng.choice((0, 3, 20))),
        rng.choice((None, b"a", b"b", b"c")),
        rng.choice(((), (), (("h", b"1"),), (("h", b"2"), ("i", b"")))),
        rng.choice((None, None, "red", "blue")),
        rng.choice((None, None, None, rng.randrange(count), rng.randrange(count + 1))),
        producer,
    )


def _producer(rng: Random, state: Stream, name: str) -> ProducerRef:
    """Return mostly the next record of a producer, else a repetition, a gap, another epoch."""
    stream = state._streams.find(NAMESPACE, name)
    assert not isinstance(stream, Refused)
    producer = rng.randint(1, 3)
    known = stream.producers.get(producer)
    if known is None:
        return ProducerRef(producer, 0, rng.choice((0, 0, 0, 1)))
    sequence = known.sequence + rng.choice((1, 1, 1, 1, 0, -1, -9, 2))
    if rng.random() < 0.1:
        return ProducerRef(producer, max(0, known.epoch + rng.choice((1, -1))), 0)
    return ProducerRef(producer, known.epoch, max(0, sequence))


def _change(rng: Random, stream: StreamDescription) -> Command:
    ends = stream.partitions[-1]
    draw = rng.random()
    if draw < 0.06:
        return Delete(stream.name)
    if draw < 0.4:
        return Configure(stream.name, _retention(rng))
    partition = rng.choice((PARTITION_ANY, 0, 1))
    past_groups = rng.random() < 0.5
    if draw < 0.8:
        before = rng.randint(ends.first_offset, max(ends.first_offset, ends.end_offset) + 1)
        return Trim(stream.name, Cause.REQUEST, before, partition, past_groups)
    cause = rng.choice((Cause.AGE, Cause.SIZE, Cause.COUNT))
    operand = SECOND if cause is Cause.AGE else rng.randint(1, 50)
    return Trim(stream.name, cause, operand, partition, past_groups)


def _group_config(rng: Random) -> GroupConfig:
    shared = rng.random() < 0.7
    wanted = rng.choice((EVERYTHING, EVERYTHING, _FILTER))
    if rng.random() < 0.4:
        return GroupConfig(shared, filter=wanted)
    return GroupConfig(shared, rng.randint(1, 2), "dead", wanted)


def _group_command(
    rng: Random,
    stream: StreamDescription,
    group: GroupDescription,
    pending: tuple[PendingRecord, ...],
) -> Command:
    names = stream.name, group.name
    member = rng.choice(group.members)[0] if group.members else 0
    generation = max(0, group.generation - (rng.random() < 0.1))
    if not member and rng.random() < 0.8:
        return GroupJoin(*names, rng.randint(3, 30) * SECOND)
    partition = rng.choice(stream.partitions)
    if not group.config.shared and member in group.owners and rng.random() < 0.9:
        partition = stream.partitions[group.owners.index(member)]
    delivered = group.delivered[partition.partition]
    if any(each.member for each in pending) and rng.random() < 0.25:
        holder, places = _held(rng, member, pending)
        if rng.random() < 0.3:
            return Ack(*names, holder, places)
        return Nack(*names, holder, places, 0, b"again")
    match rng.randrange(20):
        case 0:
            return GroupJoin(*names, rng.randint(1, 30) * SECOND)
        case 1 if rng.random() < 0.4:
            return GroupLeave(*names, member)
        case 3:
            return GroupHeartbeat(*names, member)
        case 4 if rng.random() < 0.5:
            return GroupSeek(*names, rng.choice((PARTITION_ANY, 0, 1)), rng.choice((0, delivered)))
        case 5 | 6:
            committed = group.committed[partition.partition]
            offset = rng.randint(committed, max(committed, partition.end_offset))
            return GroupCommit(*names, member, generation, ((partition.partition, offset),))
        case 7:
            return GroupConfigure(*names, _group_config(rng))
        case 8 if rng.random() < 0.3:
            return GroupDelete(*names)
        case 9 | 10 | 11 | 12:
            # The last record of a partition is the one whose offset the state knows.
            last = partition.end_offset - 1
            offsets = (last,) if last >= delivered else ()
            end = max(partition.end_offset, delivered)
            fence = (member, generation, partition.partition)
            return Deliver(*names, *fence, delivered, end, offsets)
        case 13 | 14:
            return Ack(*names, *_held(rng, member, pending))
        case 15 | 16 | 17:
            holder, places = _held(rng, member, pending)
            delay_ns = rng.choice((0, 0, SECOND))
            return Nack(*names, holder, places, delay_ns, rng.choice((b"", b"why")))
        case _:
            return Claim(*names, member, generation, rng.choice(IDLE_NS), rng.randint(1, 3))


def _held(
    rng: Random, member: int, pending: tuple[PendingRecord, ...]
) -> tuple[int, tuple[PartitionOffset, ...]]:
    """Return a member and some records that it holds, if anybody holds any."""
    if pending and rng.random() < 0.9:
        member = rng.choice([each.member for each in pending if each.member] or [member])
    held = [(each.partition, each.offset) for each in pending if each.member == member]
    if not held:
        return member, ((0, 1),)
    return member, tuple(sorted(rng.sample(held, rng.randint(1, len(held)))))
