"""Waiting for what a shard applies: it ends when it should, and leaves nothing behind."""

import asyncio
from pathlib import Path

from onelog.node.edge.shards import get_edge
from onelog.node.edge.waits import Waits
from onelog.v1 import kv_pb2
from tests.node.services.nodes import WAIT_S, Node, run, single, until


def _waits(node: Node) -> Waits:
    return get_edge(node.context).waits(0)


def test_a_wait_ends_when_what_is_waited_for_is_applied(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            shard = node.context.drivers[0].shard
            kv = shard.projections.kv
            waits = _waits(node)
            wait = asyncio.create_task(
                waits.until(lambda: kv.get("default", b"k") is not None, WAIT_S)
            )
            await until(lambda: len(waits) == 1)
            await node.kv.Put(kv_pb2.PutRequest(key=b"other", value=b"v"))
            assert not wait.done()
            await node.kv.Put(kv_pb2.PutRequest(key=b"k", value=b"v"))
            assert await wait
            assert not len(waits)
            assert not shard.listeners

    run(test())


def test_what_is_no_entry_ends_a_wait_too(tmp_path: Path) -> None:
    """A deposed leader applies nothing for a while; who waits there is to hear of it."""

    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            flag = asyncio.Event()
            wait = asyncio.create_task(_waits(node).until(flag.is_set, WAIT_S))
            await until(lambda: len(_waits(node)) == 1)
            flag.set()
            assert await wait

    run(test())


def test_a_wait_ends_with_its_time_and_with_its_caller(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            waits, shard = _waits(node), node.context.drivers[0].shard
            assert not await waits.until(lambda: False, 0.01)
            assert not await waits.until(lambda: False, 0)
            wait = asyncio.create_task(waits.until(lambda: False, WAIT_S))
            await until(lambda: len(waits) == 1)
            wait.cancel()
            await asyncio.gather(wait, return_exceptions=True)
            assert not len(waits)
            assert not shard.listeners

    run(test())


def test_a_node_that_stops_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            waits = _waits(node)
            wait = asyncio.create_task(waits.until(lambda: False, WAIT_S))
            await until(lambda: len(waits) == 1)
            node.context.stopping.set()
            assert not await wait
            assert not await waits.until(lambda: False, WAIT_S)

    run(test())
