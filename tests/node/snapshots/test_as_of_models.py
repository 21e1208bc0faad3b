"""G2: queues and streams as they were, through their own calls."""

import random
from pathlib import Path
from typing import Any

import pytest

from onelog import AsyncClient, Read, errors
from onelog.v1 import common_pb2, queue_pb2, stream_pb2
from tests.node.services.nodes import Node, refusal, until
from tests.node.services.streams import S, append, on_a_node, read, values
from tests.node.snapshots.test_as_of import SMALL_LOG, first_index, put, snapshot, trim, write

JOBS: dict[str, Any] = {"queue": "jobs"}
SMALL: dict[str, Any] = {"shards": 1, "log": SMALL_LOG}


def as_of(index: int) -> common_pb2.ReadOptions:
    return common_pb2.ReadOptions(as_of_index=index)


async def fill(node: Node) -> None:
    """Write segments full of something else."""
    for number in range(12):
        await write(node, put(b"filler", random.Random(number).randbytes(20 << 10)))


def test_a_queue_is_seen_as_it_was_with_its_messages(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        queue = node.queue
        await queue.CreateQueue(queue_pb2.CreateQueueRequest(**JOBS))
        messages = [queue_pb2.NewMessage(body=b"%d" % number) for number in range(3)]
        enqueued = await queue.Enqueue(queue_pb2.EnqueueRequest(**JOBS, messages=messages))
        full = enqueued.results[-1].message_id
        leased = await queue.Lease(queue_pb2.LeaseRequest(**JOBS, count=2))
        done = [
            queue_pb2.Leased(message_id=each.message_id, token=each.token)
            for each in leased.messages
        ]
        await queue.Ack(queue_pb2.AckRequest(**JOBS, messages=done))

        async def counts(index: int) -> tuple[int, int, int]:
            request = queue_pb2.GetQueueRequest(**JOBS, options=as_of(index))
            info = (await queue.GetQueue(request)).queue
            return info.ready_count, info.leased_count, info.acked_count

        async def bodies(index: int) -> list[bytes]:
            request = queue_pb2.PeekRequest(**JOBS, options=as_of(index))
            return [each.body for each in (await queue.Peek(request)).messages]

        assert await counts(full) == (3, 0, 0)
        assert await counts(leased.header.index) == (1, 2, 0)
        assert await counts(leased.header.index + 1) == (1, 0, 2)
        assert await bodies(full - 1) == [b"0", b"1"]
        assert await bodies(full) == [b"0", b"1", b"2"]
        assert await bodies(leased.header.index + 1) == [b"2"]
        listing = queue_pb2.ListQueuesRequest(options=as_of(1))
        assert not (await queue.ListQueues(listing)).queues
        error = await refusal(queue.Peek(queue_pb2.PeekRequest(**JOBS, options=as_of(1))))
        assert (type(error), error.reason) == (errors.NotFound, "QUEUE_UNKNOWN")
        error = await refusal(queue.Peek(queue_pb2.PeekRequest(**JOBS, options=as_of(10**9))))
        assert (type(error), error.reason) == (errors.OutOfRange, "INDEX_IN_FUTURE")

    on_a_node(tmp_path, test, shards=1)


def test_a_stream_is_read_as_it_was_before_a_trim(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        stream = node.stream
        await stream.CreateStream(stream_pb2.CreateStreamRequest(stream=S))
        offsets = await append(node, b"0", b"1", b"2", b"3")
        await stream.Trim(stream_pb2.TrimRequest(stream=S, below_offset=offsets[2]))
        later = await append(node, b"4")

        async def seen(index: int, **fields: Any) -> list[bytes]:
            found = (await read(node, options=as_of(index), **fields)).records
            return values([each for each in found if not each.HasField("gap")])

        assert await seen(offsets[1]) == [b"0", b"1"]
        assert await seen(offsets[3]) == [b"0", b"1", b"2", b"3"]
        assert await seen(offsets[3], from_offset=offsets[2], limit=1) == [b"2"]
        assert await seen(later[0]) == [b"2", b"3", b"4"]
        # Nothing comes any more, so there is nothing to wait for.
        assert await seen(offsets[1], from_offset=offsets[2], wait_ms=30_000) == []
        request = stream_pb2.GetStreamRequest(stream=S, options=as_of(offsets[3]))
        (partition,) = (await stream.GetStream(request)).stream.partitions
        assert (partition.first_offset, partition.record_count) == (offsets[0], 4)

    on_a_node(tmp_path, test, shards=1)


def test_records_that_the_log_has_lost_since_are_not_left_out_in_silence(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        stream = node.stream
        await stream.CreateStream(stream_pb2.CreateStreamRequest(stream=S))
        offsets = await append(node, b"0", b"1")
        await fill(node)
        older = await snapshot(node)
        then = await write(node, put(b"after", b"the snapshot"))
        assert values((await read(node, options=as_of(then))).records) == [b"0", b"1"]
        await stream.Trim(stream_pb2.TrimRequest(stream=S, below_offset=then))
        await fill(node)
        await snapshot(node)
        await fill(node)
        await until(lambda: trim(node) >= 0 and first_index(node) > offsets[1])
        assert offsets[1] < first_index(node) <= older
        error = await refusal(
            stream.ReadRecords(stream_pb2.ReadRecordsRequest(stream=S, options=as_of(then)))
        )
        assert (type(error), error.reason) == (errors.OutOfRange, "COMPACTED")
        assert int(error.metadata["first_index"]) == first_index(node)

    on_a_node(tmp_path, test, **SMALL)


def test_lists_of_names_as_they_were_in_the_shard_of_a_routing_key(tmp_path: Path) -> None:
    """An index is of one shard: without a word which, it is refused."""

    async def test(node: Node) -> None:
        async with AsyncClient(node.endpoint) as client:

            async def create(name: str) -> None:
                await client.queue(name).create()
                await client.stream(name).create()
                await client.ts.create(name)

            async def names(**arguments: Any) -> list[list[str]]:
                return [
                    [each.queue async for each in client.queues("n", **arguments)],
                    [each.stream async for each in client.streams("n", **arguments)],
                    [each.measurement async for each in client.ts.measurements("n", **arguments)],
                ]

            tags = [f"{{{number}}}" for number in range(20)]
            here = tags[0]
            find_shard = client._connection.topology.find_shard
            there = next(each for each in tags if find_shard(each.encode()) != find_shard(b"{0}"))
            await create(f"n1{here}")
            await create(f"n2{there}")
            index = await client.kv.put(here, "")
            await create(f"n3{here}")

            assert await names() == [[f"n1{here}", f"n2{there}", f"n3{here}"]] * 3
            assert await names(routing_key=here) == [[f"n1{here}", f"n3{here}"]] * 3
            for read in (Read(as_of_index=index), Read(as_of_index=index, stale=True)):
                assert await names(routing_key=here, read=read) == [[f"n1{here}"]] * 3
            with pytest.raises(errors.InvalidArgument) as refused:
                await names(read=Read(as_of_index=index))
            assert refused.value.reason == "SEVERAL_SHARDS"

    on_a_node(tmp_path, test, shards=3)
