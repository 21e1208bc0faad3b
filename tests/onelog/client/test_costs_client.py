"""G11: a block of calls learns what each of them has cost, through the pipeline and without it."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onelog import AsyncClient, Client, Cost, costs
from onelog.client.values import Read
from onelog.errors import NotFound
from onelog.v1 import common_pb2, kv_pb2, pipeline_pb2
from tests.node.services.nodes import Node, cluster, eventually, run, single
from tests.onelog.client.serving import serving


def is_of_a_write(cost: Cost) -> bool:
    return cost.raft_ns > 0 and cost.fsync_ns > 0 and cost.tier == "hot"


def test_calls_of_a_block_say_what_they_cost_and_others_are_not_asked(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            queue, stream = client.queue("jobs"), client.stream("events")
            await client.kv.put("before", "1")
            with costs() as spent:
                await queue.create()
                await stream.create()
                await client.kv.put("a", "1")
                await client.kv.increment("n")
                await queue.enqueue("x")
                await stream.append("r")
                await client.ts.write("cpu", [1], {"load": [0.5]})
                await client.transact().put("a", "2").put("{a}", "3").commit()
            assert len(spent) == 8
            assert all(map(is_of_a_write, spent)), spent
            with costs() as spent:
                await asyncio.gather(*(client.kv.put(f"{n}", "v") for n in range(50)))
            assert len(spent) == 50
            assert all(map(is_of_a_write, spent))
            with costs() as spent:
                await client.kv.get("a")
                await client.kv.get("a", read=Read(min_index=1))
                (message,) = await queue.lease()
                await queue.ack(message)
            assert [cost.scanned for cost in spent] == [0, 0, 1, 0]
            assert {cost.tier for cost in spent} == {"hot"}
            await client.kv.put("after", "1")
            await client.kv.get("after")
            assert len(spent) == 4

    run(test())


def test_what_another_node_did_has_its_cost_too(tmp_path: Path) -> None:
    """A client that knows no leader yet, or a wrong one, has its messages passed on."""

    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            follower = next(node for node in nodes if not node.leads(0))
            async with AsyncClient(follower.endpoint) as client:
                await client.connect()
                client._connection.topology.redirect(0, follower.endpoint)
                assert client._connection.topology.find_endpoint(0) == follower.endpoint
                with costs() as spent:
                    await client.kv.put("a", "1")
                assert all(map(is_of_a_write, spent))
                assert len(spent) == 1

    run(test())


def test_costs_without_an_event_loop(tmp_path: Path) -> None:
    with serving(tmp_path) as endpoint, Client(endpoint, timeout_s=30) as client:
        client.kv.put("a", "1")
        with costs() as spent:
            client.kv.put("a", "2")
            client.kv.put_many({"b{x}": "1", "c{x}": "2"})  # one write: they are in one shard
            client.kv.history("a")
        assert [is_of_a_write(cost) for cost in spent] == [True, True, False]
        client.kv.put("a", "3")
        assert len(spent) == 3


def test_refusals_lists_and_messages_of_streams_have_their_cost(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            stream = client.stream("events")
            await stream.create()
            await stream.append("r")
            await client.kv.put("a", "1")
            with costs() as spent:
                with pytest.raises(NotFound):
                    await client.queue("nothing").lease()
                assert len(spent) == 1
                with pytest.raises(NotFound):
                    await client.stream("nothing").info()
                assert len(spent) == 2
                assert [each async for each in client.kv.scan("a")]
                assert len(spent) > 2
                seen = len(spent)
                async for _ in stream.tail(from_offset=0):
                    break
                assert len(spent) > seen
                assert spent[-1].scanned == 1
                seen = len(spent)
                assert await client.admin.namespaces() is not None
                assert len(spent) > seen
            assert all(cost.wait_ns > 0 for cost in spent), spent
            seen = len(spent)
            with pytest.raises(NotFound) as caught:
                await client.queue("nothing").lease()
            assert caught.value.cost is None
            assert len(spent) == seen

    run(test())


def test_a_linearizable_read_shows_its_round_and_no_other_does(tmp_path: Path) -> None:
    """By itself and in a pipeline message; a cluster of one has nobody to ask."""

    async def rounds(node: Node, level: Any) -> list[int]:
        options = common_pb2.ReadOptions(level=level, with_cost=True)
        request = kv_pb2.GetRequest(key=b"k", options=options)
        by_itself = (await node.kv.Get(request)).header.cost
        operation = pipeline_pb2.Operation(get=request)
        message = pipeline_pb2.ExecuteRequest(operations=[operation])
        (result,) = (await node.pipeline.ExecuteOnce(message)).results
        found = [by_itself, result.get.header.cost]
        assert all(cost.wait_ns > 0 and not cost.raft_ns for cost in found)
        return [cost.round_ns for cost in found]

    async def test() -> None:
        levels = common_pb2.ReadLevel.Value
        async with cluster(tmp_path, shards=1) as nodes:
            for node in nodes:  # the leader, and those that forward to it
                await eventually(partial(node.kv.Put, kv_pb2.PutRequest(key=b"k")))
                assert all(await rounds(node, levels("READ_LEVEL_LINEARIZABLE")))
                assert all(await rounds(node, levels("READ_LEVEL_UNSPECIFIED")))
                assert not any(await rounds(node, levels("READ_LEVEL_LEASE")))
                assert not any(await rounds(node, levels("READ_LEVEL_STALE")))
        async with single(tmp_path / "alone", shards=1) as node:
            assert await rounds(node, levels("READ_LEVEL_LINEARIZABLE")) == [0, 0]

    run(test())
