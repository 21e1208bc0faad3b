"""Cursors that are ahead: of a replica, which is no error, and of everybody, which is one."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onelog import errors
from onelog.node.edge.waits import Waits
from onelog.node.watch import watch
from onelog.v1 import common_pb2
from onelog.v1 import kv_pb2 as kv
from tests.node.services.nodes import Node, cluster, eventually, refusal, run
from tests.node.services.streams import S, on_a_node
from tests.node.services.test_stream_tail import Tail, at, create_streams
from tests.node.watch.test_watch import Watcher
from tests.node.watch.test_watch_past import applied, position


async def put(node: Node, value: bytes) -> int:
    """Write a key, and return the index that it has then."""
    answer = await eventually(partial(node.kv.Put, kv.PutRequest(key=b"k", value=value)))
    return int(answer.header.index)


def leader_and_follower(nodes: list[Node]) -> tuple[Node, Node]:
    leader = next(node for node in nodes if node.leads(0))
    return leader, next(node for node in nodes if not node.leads(0))


def test_a_cursor_of_another_cluster_is_refused_by_watches_and_tails(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_streams(node, S)
        for ahead in (1, 10**12):
            cursor = position(applied(node) + ahead)
            for call in (Watcher(node, cursor=cursor).call, Tail(node, at(), cursor=cursor).call):
                error = await refusal(call.read())
                assert (type(error), error.reason) == (errors.OutOfRange, "INDEX_IN_FUTURE")
        cursor = position(applied(node))
        await Tail(node, at(), cursor=cursor).begin()
        watcher = await Watcher(node, cursor=cursor).begin()
        index = await put(node, b"1")
        assert [each[1] for each in await watcher.collect(1)] == [index]

    on_a_node(tmp_path, test, shards=1)


def test_a_follower_asks_the_leader_about_a_cursor_that_is_ahead_of_both(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            _, follower = leader_and_follower(nodes)
            for cursor in (position(10**12), common_pb2.Cursor(positions=[
                common_pb2.Position(index=10**9, events_sent=3)
            ])):  # fmt: skip
                error = await refusal(Watcher(follower, cursor=cursor).call.read())
                assert (type(error), error.reason) == (errors.OutOfRange, "INDEX_IN_FUTURE")

    run(test())


def test_a_follower_that_catches_up_with_a_cursor_serves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LEADER_WAIT_S", 20.0)

    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            leader, follower = leader_and_follower(nodes)
            first = await put(leader, b"0")
            watcher = Watcher(follower, cursor=position(first + 2))
            begun = asyncio.ensure_future(watcher.begin())
            for value in (b"1", b"2", b"3"):
                index = await put(leader, value)
            await begun
            assert [(each[1], each[3]) for each in await watcher.collect(1)] == [(index, b"3")]
            assert follower.context.edge.sources[0]._feeds  # type: ignore[union-attr]

    run(test())


def test_a_follower_that_stays_behind_lets_the_leader_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            leader, follower = leader_and_follower(nodes)
            cursor = position(await put(leader, b"0") + 1)

            async def until(_waits: Waits, _condition: Callable[[], bool], _wait_s: float) -> bool:
                """The leader goes on, and this replica does not hear of it."""
                await put(leader, b"1")
                return False

            monkeypatch.setattr(Waits, "until", until)
            watcher: Any = await Watcher(follower, cursor=cursor).begin()
            monkeypatch.undo()
            index = await put(leader, b"2")
            assert [(each[1], each[3]) for each in await watcher.collect(1)] == [(index, b"2")]
            assert not follower.context.edge.sources  # type: ignore[union-attr]
            assert [each.index for each in watcher.cursor.positions] == [index]

    run(test())
