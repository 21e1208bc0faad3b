"""Events of streams that are gone: told again as they were told live."""

import asyncio
from pathlib import Path

import pytest

from onelog.client.client import AsyncClient
from onelog.client.watch import Event, Watched
from onelog.node.watch import feeds
from onelog.projections.stream.state import GoneStream, GoneStreams
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import stream_pb2 as pb
from tests.node.services.nodes import Node, until
from tests.node.services.streams import S, append, on_a_node
from tests.node.snapshots.test_as_of import snapshot
from tests.node.watch.test_watch import Watcher
from tests.node.watch.test_watch_past import applied, is_at, position, read_all, read_to

APPENDED, TRIMMED = pipeline.StreamEvent.APPENDED, pipeline.StreamEvent.TRIMMED


async def live_and_die(node: Node, partitions: int) -> None:
    """Create a stream whose retention takes records away, fill it and delete it."""
    retention = pb.Retention(count_max=4)
    await node.stream.CreateStream(
        pb.CreateStreamRequest(stream=S, partition_count=partitions, retention=retention)
    )
    for number in range(8):
        await append(node, b"v%d" % number, key=b"k%d" % number, tag="t")
    state = node.context.drivers[0].shard.projections.stream
    stream = state.find("default", S)
    async with asyncio.timeout(10):
        while not any(each.trims for each in stream.partitions):  # type: ignore[union-attr]
            await append(node, b"more", key=b"k")
    await node.stream.DeleteStream(pb.DeleteStreamRequest(stream=S))


async def tell(node: Node) -> list[pipeline.Event]:
    """Create and delete two streams of one name; return the events that a watcher got meanwhile."""
    live = await Watcher(node, cursor=position(0)).begin()
    following = asyncio.create_task(read_to(live, 1 << 62))
    await live_and_die(node, 3)
    await live_and_die(node, 2)
    await node.stream.CreateStream(pb.CreateStreamRequest(stream=S, partition_count=5))
    await append(node, b"last")
    last = applied(node)
    await until(lambda: is_at(live, last))
    following.cancel()
    return live.events


def test_a_stream_that_was_deleted_is_told_again_as_it_was_told_live(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        live = await tell(node)
        kinds = [event.stream.kind for event in live]
        assert kinds.count(TRIMMED) >= 2
        assert all(each.stream.record.value for each in live if each.stream.kind == APPENDED)
        assert len({each.stream.record.partition for each in live}) >= 3
        built = node.context.past.built
        assert await read_all(node, position(0)) == live
        assert node.context.past.built == built  # the newest that went are remembered
        # Where they are forgotten, a state of the past remembers.
        node.context.drivers[0].shard.projections.stream.gone.streams_max = 0
        for gone in list(node.context.drivers[0].shard.projections.stream.gone._by_id):
            node.context.drivers[0].shard.projections.stream.gone.forget(gone)
        assert await read_all(node, position(0)) == live
        assert node.context.past.built > built

    on_a_node(tmp_path, test, shards=1)


def test_after_a_restart_streams_that_went_before_it_are_told_by_the_past(tmp_path: Path) -> None:
    live: list[pipeline.Event] = []

    async def first(node: Node) -> None:
        live.extend(await tell(node))
        await snapshot(node)

    async def second(node: Node) -> None:
        found = await read_all(node, position(0))
        assert [each for each in found if each.index <= live[-1].index] == live
        assert node.context.past.built

    on_a_node(tmp_path, first, shards=1)
    on_a_node(tmp_path, second, shards=1)


def test_a_client_that_stops_anywhere_misses_nothing_of_a_stream_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token counts events that were taken: one that vanished would cost another."""
    monkeypatch.setattr(feeds, "PAGE_EVENTS_MAX", 7)

    async def test(node: Node) -> None:
        async with AsyncClient(node.endpoint) as client:
            watch = client.watch(Watched("stream"))
            async with watch:
                start = watch.cursor
                await live_and_die(node, 3)
                live: list[Event] = []
                while not live or live[-1].kind != "deleted":
                    live.append(await anext(watch))
            found: list[Event] = []
            cursor = start
            for count in [1, 4, 9, *[2] * len(live)]:
                async with client.watch(Watched("stream"), cursor=cursor) as watch:
                    for _ in range(min(count, len(live) - len(found))):
                        found.append(await anext(watch))  # noqa: PERF401
                    cursor = watch.cursor
            assert found == live

    on_a_node(tmp_path, test, shards=1)


def test_the_stream_that_had_a_name_is_never_mistaken_for_another() -> None:
    gone = GoneStreams()
    gone.streams_max = 3
    for stream_id, name in ((1, "a"), (5, "b"), (9, "a"), (14, "a")):
        gone.add(GoneStream(stream_id, "n", name, stream_id))
        gone.check()
    # The first is forgotten: nobody is told of another in its place.
    assert gone.at("n", "a", 4) is None
    assert gone.at("n", "a", 9) is None
    assert [gone.at("n", "a", index) for index in (10, 14, 15)] == [
        GoneStream(9, "n", "a", 9), GoneStream(9, "n", "a", 9), GoneStream(14, "n", "a", 14),
    ]  # fmt: skip
    assert gone.at("other", "a", 15) is None
    assert gone.by_id(1) is None
    gone.forget(14)
    gone.check()
    assert gone.at("n", "a", 15) == GoneStream(9, "n", "a", 9)
    assert len(gone) == 2
