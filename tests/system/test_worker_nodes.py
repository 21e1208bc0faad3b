"""Three real nodes of two worker processes each: any of the six endpoints serves everything.

A shard is in one worker of each node, so a call may have to go to another process of its node, to
another node, or both. One node dies with all of its processes, and the other four endpoints go on.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
from crc32c import crc32c

from onelog.v1 import (
    kv_pb2,
    kv_pb2_grpc,
    pipeline_pb2,
    pipeline_pb2_grpc,
    queue_pb2,
    queue_pb2_grpc,
    stream_pb2,
    stream_pb2_grpc,
    timeseries_pb2,
    timeseries_pb2_grpc,
)
from tests.node.services.nodes import eventually
from tests.system.leaders import OPTIONS, leaders_of
from tests.system.nodes import ServeProcess, nodes
from tests.system.ports import free_ports

NAMES = ("n1", "n2", "n3")
WORKERS = 2
SHARDS = 4
PARTITIONS = 16
CALL_S = 10.0
TEST_S = 120.0


def tag_of(shard: int) -> str:
    """Return a name that belongs to a shard."""
    for number in count():
        if crc32c(str(number).encode()) % PARTITIONS % SHARDS == shard:
            return str(number)
    raise AssertionError


class Endpoint:
    """A client of one worker process, which asks nobody else."""

    def __init__(self, channel: Any) -> None:
        self.kv = kv_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]
        self.queue = queue_pb2_grpc.QueueStub(channel)  # type: ignore[no-untyped-call]
        self.stream = stream_pb2_grpc.StreamStub(channel)  # type: ignore[no-untyped-call]
        self.ts = timeseries_pb2_grpc.TimeSeriesStub(channel)  # type: ignore[no-untyped-call]
        self.pipeline = pipeline_pb2_grpc.PipelineStub(channel)  # type: ignore[no-untyped-call]

    async def is_serving(self, shard: int) -> None:
        """Raise unless a shard can be written through here."""
        request = kv_pb2.PutRequest(key=f"{{{tag_of(shard)}}}".encode())
        await self.kv.Put(request, timeout=CALL_S)

    async def write(self, shard: int, name: str) -> None:
        """Write to all models of a shard."""
        name = f"{{{tag_of(shard)}}}{name}"
        own = {"timeout": CALL_S}
        put = kv_pb2.PutRequest(key=name.encode(), value=b"1")
        assert (await self.kv.Put(put, **own)).header.shard == shard
        await self.queue.CreateQueue(queue_pb2.CreateQueueRequest(queue=name), **own)
        await self.stream.CreateStream(stream_pb2.CreateStreamRequest(stream=name), **own)
        enqueue = queue_pb2.EnqueueRequest(queue=name, messages=[{"body": b"1"}])
        append = stream_pb2.AppendRecordsRequest(stream=name, records=[{"value": b"1"}])
        points = timeseries_pb2.WritePointsRequest(measurement=name)
        values = {"field": "value", "integers": {"values": [1]}}
        points.series.add(times_ns=[1], columns=[values])
        await self.queue.Enqueue(enqueue, **own)
        await self.stream.AppendRecords(append, **own)
        assert (await self.ts.WritePoints(points, **own)).written_count == 1
        put.value = enqueue.messages[0].body = append.records[0].value = b"2"
        points.series[0].times_ns[0] = points.series[0].columns[0].integers.values[0] = 2
        batch = pipeline_pb2.TransactRequest()
        batch.operations.add(put=put)
        batch.operations.add(enqueue=enqueue)
        batch.operations.add(append_records=append)
        batch.operations.add(write_points=points)
        assert len((await self.pipeline.Transact(batch, **own)).results) == 4

    async def read(self, shard: int, name: str) -> None:
        """Find in all models of a shard what was written, and take the messages."""
        name = f"{{{tag_of(shard)}}}{name}"
        own = {"timeout": CALL_S}
        got = await self.kv.Get(kv_pb2.GetRequest(key=name.encode()), **own)
        assert got.item.value == b"2"
        lease = queue_pb2.LeaseRequest(queue=name, count=3)
        leased = (await self.queue.Lease(lease, **own)).messages
        assert [each.body for each in leased] == [b"1", b"2"]
        done = [{"message_id": each.message_id, "token": each.token} for each in leased]
        ack = queue_pb2.AckRequest(queue=name, messages=done)
        assert [each.reason for each in (await self.queue.Ack(ack, **own)).results] == ["", ""]
        read = stream_pb2.ReadRecordsRequest(stream=name)
        records = (await self.stream.ReadRecords(read, **own)).records
        assert [each.value for each in records] == [b"1", b"2"]
        query = timeseries_pb2.QueryRequest(measurement=name, field="value", to_ns=3)
        (points,) = (await self.ts.Query(query, **own)).groups
        assert list(points.columns[0].integers.values) == [1, 2]


@contextmanager
def servers(directory: Path) -> Iterator[list[ServeProcess]]:
    """Start the nodes; whatever happens, none of their processes is left running."""
    with nodes(directory, *NAMES, shards=str(SHARDS), partitions=str(PARTITIONS)) as made:
        ports = count(free_ports(3 * WORKERS * len(NAMES)), WORKERS)
        for node in made.values():
            for setting in ("listen", "peer-listen", "http-listen"):
                node.flags[setting] = f"127.0.0.1:{next(ports)}"
        peers = ",".join(f"{each.name}={each.flags['peer-listen']}" for each in made.values())
        try:
            for node in made.values():
                node.flags |= {"workers": str(WORKERS), "initial-cluster": peers}
                # Leaderships stay: what is tried here is not how a call meets a move.
                node.flags["balance-leaders"] = "false"
                node.start()
            yield list(made.values())
        finally:
            for node in made.values():
                kill(node)


def kill(node: ServeProcess) -> None:
    """Kill all processes of a node, as when its machine goes."""
    node.kill()
    for line in node.logged("is process"):
        with suppress(ProcessLookupError):
            os.kill(int(line["message"].split()[-1]), signal.SIGKILL)


@asynccontextmanager
async def endpoints_of(processes: list[ServeProcess]) -> AsyncIterator[dict[str, list[Endpoint]]]:
    """Make clients of all workers, by node."""
    async with AsyncExitStack() as stack:
        found: dict[str, list[Endpoint]] = {}
        for node in processes:
            host, port = node.flags["listen"].split(":")
            for worker in range(WORKERS):
                channel = grpc.aio.insecure_channel(f"{host}:{int(port) + worker}", OPTIONS)
                await stack.enter_async_context(channel)
                found.setdefault(node.name, []).append(Endpoint(channel))
        yield found


async def serve_everything(endpoints: list[Endpoint], part: str) -> None:
    """Write all models of all shards through each endpoint, and read it through the next one."""
    shards = range(SHARDS)
    await asyncio.gather(
        *(eventually(partial(each.is_serving, shard)) for each in endpoints for shard in shards)
    )
    names = [f"{part}-{number}" for number in range(len(endpoints))]
    through = zip(endpoints, names, strict=True)
    await asyncio.gather(*(each.write(shard, name) for each, name in through for shard in shards))
    others = zip(endpoints[1:] + endpoints[:1], names, strict=True)
    await asyncio.gather(*(each.read(shard, name) for each, name in others for shard in shards))


def test_any_worker_of_any_node_serves_all_models_also_when_a_node_is_killed(
    tmp_path: Path,
) -> None:
    async def test(processes: list[ServeProcess]) -> None:
        for node in processes:
            for worker in range(WORKERS):
                report = await asyncio.to_thread(node.until_ready, worker)
                assert [int(each) for each in report["shards"]] == [worker, worker + WORKERS]
        async with endpoints_of(processes) as endpoints, leaders_of(processes) as leaders:
            everywhere = [each for of_node in endpoints.values() for each in of_node]
            await serve_everything(everywhere, "all")
            victim = (await leaders.of(0)).process
            kill(victim)
            for shard in range(SHARDS):
                assert (await leaders.of(shard)).process is not victim
            for each in endpoints.pop(victim.name):
                everywhere.remove(each)
            await serve_everything(everywhere, "rest")
            for shard in range(SHARDS):
                request = kv_pb2.GetRequest(key=f"{{{tag_of(shard)}}}all-0".encode())
                for each in everywhere:
                    assert (await each.kv.Get(request, timeout=CALL_S)).item.value == b"2"

    with servers(tmp_path) as processes:
        asyncio.run(asyncio.wait_for(test(processes), TEST_S))
