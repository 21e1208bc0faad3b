"""A watch or tail without a start begins behind everything that was acknowledged before it."""

import asyncio
from functools import partial
from pathlib import Path

from onelog.v1 import common_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import stream_pb2 as s
from tests.node.services.nodes import Node, cluster, eventually, refusal, run, until

ROUNDS = 60


async def first_cursor(node: Node) -> common_pb2.Cursor:
    call = node.pipeline.Watch(pipeline.WatchRequest())
    cursor: common_pb2.Cursor = (await call.read()).cursor
    call.cancel()
    return cursor


def test_a_watch_without_a_cursor_sees_no_write_that_was_acknowledged_before(
    tmp_path: Path,
) -> None:
    """On every node: a follower has not applied the newest writes when they are acknowledged."""

    async def test() -> None:
        async with cluster(tmp_path, shards=2) as nodes:
            leader = next(node for node in nodes if node.leads(0))
            edge = leader.context.edge
            assert edge is not None
            key = next(b"k%d" % n for n in range(50) if edge.find_shard(b"k%d" % n) == 0)
            await eventually(partial(leader.kv.Put, kv.PutRequest(key=key, value=b"")))
            for number in range(ROUNDS):
                put = await leader.kv.Put(kv.PutRequest(key=key, value=b"%d" % number))
                cursor = await first_cursor(nodes[number % 3])
                (begin,) = (each.index for each in cursor.positions if each.shard == 0)
                assert begin >= put.header.index, f"round {number} began in the past"
            # What comes after it has begun is one of its events, on all nodes.
            calls = [node.pipeline.Watch(pipeline.WatchRequest()) for node in nodes]
            await asyncio.gather(*(call.read() for call in calls))
            await leader.kv.Put(kv.PutRequest(key=key, value=b"last"))
            for call in calls:
                async with asyncio.timeout(20):
                    while not (events := (await call.read()).events):
                        pass
                assert [each.key.item.value for each in events] == [b"last"]
                call.cancel()

    run(test())


def test_a_tail_without_a_start_has_only_records_that_are_newer_than_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            leader = next(node for node in nodes if node.leads(0))
            await eventually(partial(leader.stream.CreateStream, s.CreateStreamRequest(stream="s")))
            for number in range(ROUNDS):
                records = [s.NewRecord(value=b"%d" % number)]
                request = s.AppendRecordsRequest(stream="s", records=records)
                appended = await leader.stream.AppendRecords(request)
                start = s.TailRequest(streams=[s.TailStart(stream="s")])
                call = nodes[number % 3].stream.Tail(start)
                (position,) = (await call.read()).cursor.positions
                assert position.index >= appended.results[0].offset, f"round {number}"
                call.cancel()

    run(test())


def test_watchers_that_begin_together_ask_the_leader_together(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            follower = next(node for node in nodes if not node.leads(0))
            edge = follower.context.edge
            assert edge is not None
            await first_cursor(follower)
            before = edge.calls.forwarder.count
            await asyncio.gather(*(first_cursor(follower) for _ in range(50)))
            assert edge.calls.forwarder.count - before <= 20

    run(test())


def test_a_watch_without_a_cursor_needs_a_leader_to_begin(tmp_path: Path) -> None:
    """One with a cursor does not."""

    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            cursor = await first_cursor(nodes[0])
            await asyncio.gather(nodes[1].stop(), nodes[2].stop())
            await until(lambda: not nodes[0].leads(0))
            call = nodes[0].pipeline.Watch(pipeline.WatchRequest())
            error = await refusal(call.read())
            assert error.reason in ("NO_LEADER", "LEADER_UNREACHABLE", "EXPIRED")
            call = nodes[0].pipeline.Watch(pipeline.WatchRequest(cursor=cursor))
            assert list((await call.read()).cursor.positions) == list(cursor.positions)
            call.cancel()

    run(test())
