"""Snapshots as the Log service sends them: their files, also of one that goes meanwhile."""

import random
from pathlib import Path

from onelog import errors
from onelog.snapshot.format import HEADER_SIZE, SnapshotHeader
from onelog.v1 import log_pb2
from tests.node.services.nodes import Node, run, single, until
from tests.node.services.test_log_service import describe, failure
from tests.node.snapshots.test_as_of import put, snapshot, write

# More than what gRPC takes from a server whose client does not read.
VALUES, VALUE_SIZE = 24, 1 << 20


def kept(node: Node) -> dict[int, Path]:
    store = node.context.drivers[0].shard.snapshots
    return {record.index: store.path(record) for record in store.records}


async def read(node: Node, index: int = 0) -> bytes:
    request = log_pb2.ReadSnapshotRequest(index=index)
    chunks = [each async for each in node.log.ReadSnapshot(request)]
    assert all(0 < len(each.data) <= 1 << 20 for each in chunks)
    data = b"".join(each.data for each in chunks)
    assert {each.size for each in chunks} == {len(data)}
    return data


def test_a_kept_snapshot_is_described_and_sent_as_its_file_is(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            none = log_pb2.ReadSnapshotRequest()
            error = await failure(node.log.ReadSnapshot(none))
            assert (type(error), error.reason) == (errors.NotFound, "SNAPSHOT_UNKNOWN")
            assert error.metadata == {"indexes": ""}
            assert not (await describe(node)).snapshots
            for number in range(2):
                await write(node, put(b"k", b"%d" % number))
                await snapshot(node)
            older, newer = kept(node)
            assert await read(node) == await read(node, newer) == kept(node)[newer].read_bytes()
            assert await read(node, older) == kept(node)[older].read_bytes()
            answer = await describe(node)
            records = node.context.drivers[0].shard.snapshots.records
            assert [each.index for each in answer.snapshots] == [older, newer]
            for each, record in zip(answer.snapshots, records, strict=True):
                data = kept(node)[each.index].read_bytes()
                header = SnapshotHeader.decode("", data[:HEADER_SIZE])
                assert (each.term, each.timestamp_ns) == (header.term, header.timestamp_ns)
                assert each.size == len(data)
                assert each.state_hash == int(record.state_hash, 16)
            unknown = log_pb2.ReadSnapshotRequest(index=newer + 1)
            error = await failure(node.log.ReadSnapshot(unknown))
            assert (type(error), error.reason) == (errors.NotFound, "SNAPSHOT_UNKNOWN")
            assert error.metadata == {"indexes": f"{older},{newer}"}

    run(test())


def test_a_snapshot_that_newer_ones_replace_is_read_to_its_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            draw = random.Random(1)
            for number in range(VALUES):
                await write(node, put(b"large-%d" % number, draw.randbytes(VALUE_SIZE)))
            index = await snapshot(node)
            path = kept(node)[index]
            expected = path.read_bytes()
            assert len(expected) > VALUES * VALUE_SIZE
            stream = aiter(node.log.ReadSnapshot(log_pb2.ReadSnapshotRequest(index=index)))
            chunks = [await anext(stream)]
            for number in range(VALUES):
                await write(node, put(b"large-%d" % number, b""))
            for _ in range(2):
                await write(node, put(b"k", b""))
                await snapshot(node)
            await until(lambda: not path.exists())
            assert index not in kept(node)
            chunks += [each async for each in stream]
            assert b"".join(each.data for each in chunks) == expected

    run(test())
