"""A node of two processes' worth of workers: each has half of the shards and serves all of them."""

import asyncio
from dataclasses import replace
from pathlib import Path

from onelog.node.config.settings import Address
from onelog.node.server.server import Server, new_node
from onelog.node.services import SERVICES
from onelog.v1 import admin_pb2, pipeline_pb2, stream_pb2
from onelog.v1 import kv_pb2 as kv
from tests.node.services.nodes import Node, parse_config, run, until
from tests.node.services.streams import append
from tests.node.services.test_stream_tail import Tail, at
from tests.node.watch.test_watch import Watcher, summarise
from tests.system.ports import free_ports

SHARDS = 4


def two_ports() -> Address:
    """Return an address whose port and the next one nobody listens on."""
    return Address("127.0.0.1", free_ports(2))


async def start(directory: Path) -> list[Node]:
    config = parse_config(directory, shards=SHARDS)
    config = replace(
        config,
        node=replace(config.node, workers=2),
        listen=replace(config.listen, api=two_ports(), peers=two_ports(), http=two_ports()),
    )
    identity = new_node(config)
    nodes = []
    for worker in range(2):
        server = Server(config, SERVICES, worker=worker, node=identity)
        nodes.append(Node(server, asyncio.create_task(server.run())))

    def is_ready() -> bool:
        for node in nodes:
            if node.task.done():
                node.task.result()
        return all(
            node.server.context is not None
            and node.context.topology.shards == SHARDS
            and all(node.context.topology.leader_endpoint(shard) for shard in range(SHARDS))
            for node in nodes
        )

    await until(is_ready)
    return [await node.connect() for node in nodes]


def test_any_worker_serves_every_shard_and_watches_all_of_them(tmp_path: Path) -> None:
    async def test() -> None:
        nodes = await start(tmp_path / "n1")
        try:
            assert [sorted(node.context.drivers) for node in nodes] == [[0, 2], [1, 3]]
            watchers = [await Watcher(node).begin() for node in nodes]
            keys = sorted(b"k%d" % (number * number * 7919) for number in range(40))
            operations = [
                pipeline_pb2.Operation(put=kv.PutRequest(key=key, value=b"v")) for key in keys
            ]
            request = pipeline_pb2.ExecuteRequest(operations=operations)
            answer = await nodes[0].pipeline.ExecuteOnce(request)
            assert {each.put.header.shard for each in answer.results} == set(range(SHARDS))
            for node in nodes:
                for key in keys:
                    assert (await node.kv.Get(kv.GetRequest(key=key))).item.value == b"v"
                listed = await node.kv.List(kv.ListRequest())
                assert [item.key for item in listed.items] == keys
                for shard in range(SHARDS):
                    state = await node.admin.GetStateHash(
                        admin_pb2.GetStateHashRequest(shard=shard)
                    )
                    assert state.index > 1
                    pages = node.admin.ReadLog(admin_pb2.ReadLogRequest(shard=shard))
                    entries = [entry async for page in pages for entry in page.entries]
                    assert {entry.shard for entry in entries} == {shard}
                status = await node.admin.GetStatus(admin_pb2.GetStatusRequest())
                assert [each.shard for each in status.shards] == list(range(SHARDS))
            seen = []
            for watcher in watchers:
                found = await watcher.collect(len(keys))
                assert sorted(each[2] for each in found) == keys
                assert {each.shard for each in watcher.cursor.positions} == set(range(SHARDS))
                seen.append(sorted(found))
            assert seen[0] == seen[1]
            # And from a cursor, over both.
            cursor = watchers[0].cursor
            await nodes[1].kv.Put(kv.PutRequest(key=keys[0], value=b"w"))
            await nodes[1].kv.Put(kv.PutRequest(key=keys[1], value=b"w"))
            again = Watcher(nodes[0], cursor=cursor)
            assert [each[3] for each in await again.collect(2)] == [b"w", b"w"]
            assert {summarise(event)[2] for event in again.events} == set(keys[:2])
            for watcher in (*watchers, again):
                watcher.call.cancel()
        finally:
            for node in nodes:
                await node.stop()

    run(test())


def test_one_tail_follows_streams_of_both_workers(tmp_path: Path) -> None:
    """E11"""

    async def test() -> None:
        nodes = await start(tmp_path / "n1")
        try:
            names = [f"stream {number}" for number in range(8)]
            for name in names:
                await nodes[0].stream.CreateStream(stream_pb2.CreateStreamRequest(stream=name))
            listed = await nodes[1].stream.ListStreams(stream_pb2.ListStreamsRequest())
            assert [each.stream for each in listed.streams] == names
            starts = [at(name) for name in names]
            tails = [await Tail(node, *starts).begin() for node in nodes]
            shards = {each.shard for each in tails[0].cursor.positions}
            assert shards & {0, 2}
            assert shards & {1, 3}
            for name in names:
                await append(nodes[1], b"1", b"2", stream=name)
            for tail in tails:
                await tail.collect(2 * len(names))
                for name in names:
                    assert [each.value for each in tail.records if each.stream == name] == [
                        b"1",
                        b"2",
                    ]
                tail.call.cancel()
            # And on from its cursor, on the other one.
            await append(nodes[0], b"3", stream=names[0])
            again = Tail(nodes[1], *starts, cursor=tails[0].cursor)
            assert await again.collect(1) == [b"3"]
            again.call.cancel()
        finally:
            for node in nodes:
                await node.stop()

    run(test())
