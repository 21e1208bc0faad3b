"""Trims by request: what is left is exactly what the bound says, and is counted exactly.

The property test runs the planner of the server on a state and a log in memory, because thousands
of records and trims are needed to reach every place of a trim in a run of records. The other tests
go through a client made of the protos alone.
"""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from onelog import errors
from onelog.node.services.stream_trims import Bound, plan_trim
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied
from onelog.projections.stream import commands
from onelog.projections.stream.commands import Cause, Create, GroupCreate, Retention, TrimTo
from onelog.projections.stream.limits import PARTITION_ANY
from onelog.projections.stream.reads import StreamDescription
from onelog.projections.stream.state import StreamState
from onelog.v1 import log_pb2
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import stream_pb2 as pb
from tests.node.services.nodes import Node, refusal, run, single
from tests.node.services.streams import S, append, in_session, on_a_node, open_session, read, values
from tests.projections.stream.stream_world import StreamWorld
from tests.projections.world import NAMESPACE, SECOND

G: dict[str, Any] = {"stream": S, "group": "g"}


# The planner against a model

Row = tuple[int, int, int]
"""Offset, time and size of a record."""


def stream_of(world: StreamWorld) -> StreamState:
    found = world.stream.find(NAMESPACE, "s")
    assert isinstance(found, StreamState)
    return found


def trim_world(world: StreamWorld, bound: Bound, *, past_groups: bool) -> None:
    """Do what the server does for a request."""
    now_ns = world.now_ns
    plan = plan_trim(stream_of(world), PARTITION_ANY, bound, now_ns, past_groups=past_groups)
    log: Any = world.memory_log
    log.dropped = set(range(1, world.index + 1))
    for partition_id, first in world.stream.kept_streams().items():
        log.dropped -= {each for each in log._notes.records.get(partition_id, ()) if each >= first}
    command = plan.command([each.cut for each in plan.run(log)])
    if command is not None:
        result = world.run(command)
        assert isinstance(result, Applied), result
        assert result.number == len(command.cuts)


def expected_rows(rows: list[Row], bound: Bound, now_ns: int, floor: int) -> list[Row]:
    """Return the records that a trim leaves, from the words of the proto alone."""
    left = list(rows)
    while left and left[0][0] < floor:
        offset, time_ns, size = left[0]
        match bound.cause:
            case Cause.REQUEST:
                goes = offset < bound.operand
            case Cause.AGE:
                goes = time_ns <= now_ns - bound.operand
            case Cause.COUNT:
                goes = len(left) > bound.operand
            case _:
                goes = sum(each[2] for each in left) - size >= bound.operand
        if not goes:
            break
        left.pop(0)
    return left


def draw_bound(rng: Random, rows: list[Row], now_ns: int) -> Bound:
    _, time_ns, _ = rng.choice(rows) if rows else (0, now_ns - 1, 0)
    match rng.choice((Cause.REQUEST, Cause.AGE, Cause.SIZE, Cause.COUNT)):
        case Cause.REQUEST:
            chosen = rng.choice(rows)[0] if rows else 1
            return Bound(Cause.REQUEST, chosen + rng.choice((0, 0, 1)))
        case Cause.AGE:
            return Bound(Cause.AGE, max(now_ns - time_ns + rng.choice((-1, 0, 0, 1)), 1))
        case Cause.SIZE:
            total = sum(row[2] for row in rows)
            return Bound(Cause.SIZE, rng.randint(1, total + 2))
        case _:
            return Bound(Cause.COUNT, rng.randint(1, len(rows) + 2))


@pytest.mark.parametrize("seed", range(12))
def test_a_partition_counts_exactly_what_any_trim_leaves(seed: int) -> None:
    rng = Random(seed)
    world = StreamWorld()
    retention = rng.choice((Retention(), Retention(count_max=64), Retention(size_max=900)))
    partition_count = rng.choice((1, 2))
    world.run(Create("s", partition_count, retention))
    world.run(Create("other"))
    world.run(GroupCreate("s", "g", 0))
    rows: list[list[Row]] = [[] for _ in range(partition_count)]
    floors = [stream_of(world).partitions[number].first_offset for number in range(partition_count)]
    for _ in range(60):
        for _ in range(rng.choice((0, 1, 5, 40))):
            world.now_ns += rng.choice((0, 1, SECOND))
            world.append("other")
            number = rng.randrange(partition_count)
            value = rng.randbytes(rng.choice((0, 3, 20)))
            offset = world.append("s", value, partition=number)
            size = len(commands.encode_body(commands.Append("s", value, partition=number)))
            rows[number].append((offset, world.now_ns, size))
        if rng.random() < 0.3:
            places = tuple((n, rng.choice(row)[0]) for n, row in enumerate(rows) if row)
            ahead = tuple(place for place in places if place[1] >= floors[place[0]])
            if ahead:
                world.run(commands.GroupCommit("s", "g", 0, 0, ahead))
                floors = [dict(ahead).get(n, floor) for n, floor in enumerate(floors)]
        if rng.random() < 0.3:
            policy_trims(world, rows)
        bound = draw_bound(rng, rng.choice(rows), world.now_ns)
        past_groups = rng.random() < 0.5
        if bound.cause is Cause.REQUEST and not past_groups:
            ends = [stream_of(world).partitions[n].end_offset for n in range(partition_count)]
            if any(
                min(bound.operand, end) > floor for end, floor in zip(ends, floors, strict=True)
            ):
                with pytest.raises(errors.FailedPrecondition):
                    trim_world(world, bound, past_groups=False)
                continue
        trim_world(world, bound, past_groups=past_groups)
        for number in range(partition_count):
            floor = 1 << 62 if past_groups else floors[number]
            rows[number] = expected_rows(rows[number], bound, world.now_ns, floor)
        same(world, rows)
        if rng.random() < 0.1:
            world = world.reloaded()
            same(world, rows)


def policy_trims(world: StreamWorld, rows: list[list[Row]]) -> None:
    """Carry out what the leader's policy asks for; the projection chooses what is deleted."""
    for draft in world.state.router.due(world.now_ns, 100):
        world.draft(draft)
    for partition in stream_of(world).partitions:
        rows[partition.number] = [
            row for row in rows[partition.number] if row[0] >= partition.first_offset
        ]
    same(world, rows)


def same(world: StreamWorld, rows: list[list[Row]]) -> None:
    world.state.router.check()
    described = world.stream.describe(NAMESPACE, "s")
    assert isinstance(described, StreamDescription)
    for partition, left in zip(described.partitions, rows, strict=True):
        assert partition.record_count_kept == len(left)
        assert partition.size_kept == sum(row[2] for row in left)
        if left:
            assert partition.first_record == left[0][0]
            assert partition.end_offset == left[-1][0] + 1


def test_a_trim_whose_numbers_cannot_be_right_is_refused() -> None:
    world = StreamWorld()
    stream_id = world.create("s")
    offsets = [world.append("s", bytes(10)) for _ in range(5)]
    size = stream_of(world).partitions[0].size // 5
    good = commands.TrimCut(0, offsets[2], offsets[2], 2, 2 * size)
    for wrong in (
        good._replace(records=5),
        good._replace(size=5 * size + 1),
        good._replace(first=offsets[4] + 1),
    ):
        result = world.run(TrimTo(stream_id, Cause.COUNT, (wrong,)))
        assert getattr(result, "reason", None) == Reason.OFFSETS_INVALID
        world.state.router.check()
    assert world.run(TrimTo(stream_id, Cause.COUNT, (good,))) == Applied(1)
    assert world.run(TrimTo(stream_id, Cause.COUNT, (good,))) == Applied(0)
    result = world.run(TrimTo(stream_id + 1, Cause.COUNT, (good,)))
    assert getattr(result, "reason", None) == Reason.STREAM_UNKNOWN
    world.state.router.check()


# Through the API


def counts(answer: pb.TrimResponse) -> list[tuple[int, str]]:
    return [(each.left.record_count, each.kept_for_group) for each in answer.partitions]


async def info(node: Node) -> pb.StreamInfo:
    answer = await node.stream.GetStream(pb.GetStreamRequest(stream=S))
    assert isinstance(answer, pb.GetStreamResponse)
    return answer.stream


def test_a_trim_leaves_exactly_what_it_says_and_answers_with_what_is_left(tmp_path: Path) -> None:
    """E5"""

    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await node.stream.CreateStream(pb.CreateStreamRequest(stream=S, partition_count=2))
            first = await append(node, *(b"%03d" % number for number in range(300)), partition=0)
            await append(node, b"x", b"y", partition=1)
            answer = await node.stream.Trim(pb.TrimRequest(stream=S, keep_count=10))
            assert answer.header.index > first[-1]
            assert counts(answer) == [(10, ""), (2, "")]
            shown = await info(node)
            assert [each.left for each in answer.partitions] == list(shown.partitions)
            assert shown.partitions[0].first_offset == first[290]
            kept = (await read(node)).records
            assert values(kept) == [b"%03d" % number for number in range(290, 300)]
            # Bytes: the fewest newest records that have at least so many together.
            one = shown.partitions[0].size // 10
            for keep, left in ((9 * one, 9), (8 * one - 1, 8), (7 * one + 1, 8), (1, 1)):
                request = pb.TrimRequest(stream=S, keep_size=keep, partition=0)
                answer = await node.stream.Trim(request)
                assert counts(answer) == [(left, "")]
                assert answer.partitions[0].left.size == left * one
            # Nothing to do: nothing is written, and no reader is told of a gap.
            again = await node.stream.Trim(pb.TrimRequest(stream=S, keep_count=2))
            assert (counts(again), again.header.index) == ([(1, ""), (2, "")], 0)
        # The counts are those of the log.
        async with single(tmp_path, shards=1) as node:
            assert [each.record_count for each in (await info(node)).partitions] == [1, 2]

    run(test())


def test_a_trim_by_age_ends_at_the_first_record_that_is_young_enough(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S))
        await append(node, b"old", b"old")
        young = await append(node, b"young", b"young")
        records = (await read(node)).records
        clock = node.context.drivers[0].shard.log_time
        age_ms = (clock.now_ns() - records[2].timestamp_ns) // 1_000_000 + 60_000
        answer = await node.stream.Trim(pb.TrimRequest(stream=S, age_ms=age_ms))
        assert counts(answer) == [(4, "")]
        answer = await node.stream.Trim(pb.TrimRequest(stream=S, below_offset=young[0]))
        assert counts(answer) == [(2, "")]
        assert answer.partitions[0].left.first_offset == young[0]
        answer = await node.stream.Trim(pb.TrimRequest(stream=S, below_offset=young[1] + 1))
        assert counts(answer) == [(0, "")]

    on_a_node(tmp_path, test)


def test_a_trim_says_which_group_keeps_more_than_was_asked_for(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S))
        offsets = await append(node, *(b"%d" % number for number in range(10)))
        await node.stream.CreateGroup(pb.CreateGroupRequest(**G, from_offset=offsets[4]))
        await node.stream.CreateGroup(pb.CreateGroupRequest(stream=S, group="fast"))
        for trim in (pb.TrimRequest(keep_count=2), pb.TrimRequest(keep_size=1)):
            trim.stream = S
            answer = await node.stream.Trim(trim)
            assert counts(answer) == [(6, "g")]
        answer = await node.stream.Trim(pb.TrimRequest(stream=S, keep_count=8))
        assert counts(answer) == [(6, "")]
        error = await refusal(node.stream.Trim(pb.TrimRequest(stream=S, below_offset=offsets[5])))
        assert error.reason == "TRIM_BLOCKED"
        past = pb.TrimRequest(stream=S, keep_count=2, past_groups=True)
        assert counts(await node.stream.Trim(past)) == [(2, "")]

    on_a_node(tmp_path, test)


def test_a_trim_in_a_session_is_done_once_and_watchers_hear_of_it(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S))
        watch = node.pipeline.Watch(
            pipeline.WatchRequest(filters=[pipeline.WatchFilter(owner=log_pb2.OWNER_STREAM)])
        )
        await watch.read()
        await append(node, b"1", b"2", b"3")
        session = await open_session(node)
        request = pb.TrimRequest(stream=S, keep_count=2, options=in_session(session, 1))
        first = await node.stream.Trim(request)
        assert (counts(first), first.header.duplicate) == ([(2, "")], False)
        await append(node, b"4")
        again = await node.stream.Trim(request)
        assert (again.header.index, again.header.duplicate) == (first.header.index, True)
        assert counts(again) == [(3, "")]
        other = pb.TrimRequest(stream=S, below_offset=9, options=in_session(session, 1))
        assert (await refusal(node.stream.Trim(other))).reason == "SEQUENCE_REUSED"
        kinds: list[int] = []
        while pipeline.StreamEvent.TRIMMED not in kinds:
            kinds += [each.stream.kind for each in (await watch.read()).events]
        assert kinds.count(pipeline.StreamEvent.TRIMMED) == 1
        watch.cancel()

    on_a_node(tmp_path, test)
