"""G11: a block of calls learns what each of them has cost, through the pipeline and without it."""

import asyncio
from pathlib import Path

from onelog import AsyncClient, Client, Cost, costs
from onelog.client.values import Read
from tests.node.services.nodes import cluster, run, single
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
                assert client._connection.topology.endpoint_of(0) == follower.endpoint
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
