"""The log of a running cluster: frames from any replica, verified; directories of live servers."""

import asyncio
import pickle
import socket
from pathlib import Path

import pytest

from onelog.client.client import AsyncClient
from onelog.errors import DataLoss, FailedPrecondition, NotFound, OutOfRange, Unavailable
from onelog.spark import endpoint as endpoint_module
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.views import VIEWS
from onelog.spark.directory import DirectoryOrigin
from onelog.spark.endpoint import EndpointOrigin
from onelog.spark.faults import reported
from onelog.spark.options import ReadOptions
from onelog.spark.origin import Range, ShardCut, Split
from onelog.spark.table import load_table
from onelog.v1 import admin_pb2, log_pb2
from tests.node.services.nodes import WAIT_S, Node, cluster, run, single, until
from tests.spark.shard_dirs import Row, read_all, rows_of

EVERYTHING = Selection()


async def fill(endpoints: list[str], count: int = 300) -> None:
    """Write keys, a stream, a queue, transactions and one that is refused."""
    async with AsyncClient(endpoints) as client:
        await asyncio.gather(*(client.kv.put(f"k{n}", f"v{n}") for n in range(count)))
        await client.queue("jobs").create()
        await client.queue("jobs").enqueue(b"work")
        for n in range(20):
            batch = client.transact()
            batch.put(f"{{t}}a{n}", b"1")
            batch.put(f"{{t}}b{n}", b"2")
            await batch.commit()


async def read(origin: EndpointOrigin | DirectoryOrigin) -> list[Row]:
    return await asyncio.to_thread(read_all, origin)


async def read_split(
    origin: EndpointOrigin, split: Split, selection: Selection = EVERYTHING
) -> list[Row]:
    return await asyncio.to_thread(lambda: rows_of(origin.blocks(split, selection)))


async def read_part(origin: EndpointOrigin, part: ShardCut) -> list[Row]:
    """Read what a cut has of one shard."""
    wanted = Range(part.shard, part.first_index, part.last_index)
    splits = await asyncio.to_thread(origin.splits, [wanted], EVERYTHING)
    return [row for split in splits for row in await read_split(origin, split)]


def applied(node: Node, shard: int) -> list[Row]:
    """Return what the node's own log says that may be seen."""
    log = node.context.drivers[shard].shard.log
    voids = {
        index
        for part in log.segments.segments
        for first, last in getattr(part, "voids", ())
        for index in range(first, last + 1)
    }
    noted = log.segments.notes.voids(1, log.applied_index).tolist()
    voids |= {index for first, last in noted for index in range(first, last + 1)}
    return [
        (entry.index, entry.term, entry.entry_type, entry.timestamp_ns, entry.plain_payload())
        for entry in log.segments.scan(log.first_index, log.applied_index)
        if entry.index not in voids
    ]


def test_everything_acknowledged_before_the_cut_is_read_from_any_node(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=2) as nodes:
            await fill([node.endpoint for node in nodes])
            origin = EndpointOrigin([nodes[2].endpoint])
            cut = await asyncio.to_thread(origin.cut)
            assert [part.shard for part in cut.shards] == [0, 1]
            assert cut.cluster_id
            seen = {part.shard: await read_part(origin, part) for part in cut.shards}
            for part in cut.shards:  # a follower may be behind, or an election have gone further
                log = nodes[0].context.drivers[part.shard].shard.log
                last = part.last_index
                await until(lambda log=log, last=last: log.applied_index >= last)  # type: ignore[misc]
                rows = applied(nodes[0], part.shard)
                assert seen[part.shard] == [row for row in rows if row[0] <= part.last_index]
            expected = seen[0] + seen[1]
            travelled: EndpointOrigin = pickle.loads(pickle.dumps(origin))
            selection = Selection(owners=frozenset((1,)))
            ranges = [Range(p.shard, p.first_index, p.last_index) for p in cut.shards]
            splits = await asyncio.to_thread(travelled.splits, ranges, selection)
            # One node goes away for good: the others have it all.
            await nodes[0].stop()
            found = []
            for split in splits:
                found += await read_split(travelled, split, selection)
            assert found == [row for row in expected if row[2] >> 8 == 1]
            assert len(found) > 20

    run(test())


def test_a_node_and_its_directory_show_the_same(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await fill([node.endpoint])
            log = node.context.drivers[0].shard.log
            origin = EndpointOrigin([node.endpoint])
            seen = await read(origin)
            assert seen == applied(node, 0)
            directory = DirectoryOrigin(str(tmp_path / "n1"))
            (part,) = directory.cut().shards
            assert part.last_index == log.segments.sealed_index
            request = admin_pb2.TakeSnapshotRequest(shard=0)
            await node.admin.TakeSnapshot(request, timeout=WAIT_S)
            await until(lambda: log.manifest.snapshots)
            taken = log.manifest.snapshots[-1].index
            assert await read(directory) == [row for row in applied(node, 0) if row[0] <= taken]
            assert taken > 40

    run(test())


def test_queues_are_selected_by_name_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=2) as node:
            await fill([node.endpoint])
            options = {"endpoint": node.endpoint, "view": "log", "queues": "jobs"}

            def names(options: dict[str, str]) -> list[tuple[str, bytes]]:
                table = load_table(ReadOptions.parse(options, VIEWS))
                wanted = frozenset(("name", "operation"))
                return [
                    (row["operation"], row["name"])
                    for split in table.splits()
                    for batch in table.batches(split, wanted)
                    for row in batch.to_pylist()
                ]

            found = await asyncio.to_thread(names, options)
            assert found == [("queue_create", b"jobs"), ("enqueue", b"jobs")]
            with pytest.raises(NotFound, match=r"QUEUE_UNKNOWN.*'other'"):
                await asyncio.to_thread(names, {**options, "queues": "jobs,other"})

    run(test())


def test_ranges_that_are_gone_or_of_another_cluster_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await fill([node.endpoint], 10)
            origin = EndpointOrigin([node.endpoint])
            await asyncio.to_thread(origin.cut)
            with pytest.raises(NotFound, match="SHARD_UNKNOWN"):
                await asyncio.to_thread(origin.cut, [7])
            beyond = Split(0, 1, 100_000, 0)
            with pytest.raises(OutOfRange, match="INDEX_IN_FUTURE"):
                await read_split(origin, beyond)
            other = EndpointOrigin([node.endpoint], cluster_id="another")
            with pytest.raises(FailedPrecondition, match="OTHER_CLUSTER"):
                await asyncio.to_thread(other.splits, [Range(0, 1, 5)], EVERYTHING)
            # A task plans nothing: it must find out by itself.
            with pytest.raises(FailedPrecondition, match="OTHER_CLUSTER"):
                await read_split(other, Split(0, 1, 5, 0))
            with pytest.raises(FailedPrecondition, match="OTHER_CLUSTER"):
                await asyncio.to_thread(other.group_end, 0, 1, 5)

    run(test())


def test_an_endpoint_that_never_answered_is_given_up_after_a_connection_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mistyped endpoint is no cluster to wait for; the time of calls does not count."""
    monkeypatch.setattr(endpoint_module, "CONNECT_S", 0.5)
    monkeypatch.setattr(endpoint_module, "TIMEOUT_S", 1e6)
    with socket.socket() as mute, socket.socket() as closed:
        for each in (mute, closed):
            each.bind(("127.0.0.1", 0))
        mute.listen()  # connected to, it says nothing
        for each in (mute, closed):
            name = "{}:{}".format(*each.getsockname())
            with pytest.raises(Unavailable, match=f"NOT_CONNECTED: .*{name}"):
                EndpointOrigin([name]).cut()


def test_a_frame_that_was_changed_on_its_way_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await fill([node.endpoint], 10)
            async with AsyncClient(node.endpoint) as client:
                cut = (await client.log.describe(0)).cut_index
                frames = [frame async for frame in client.log.frames(0, 1, cut)]
            frame = max(frames, key=lambda each: len(each.data))
            check = endpoint_module._check_frame
            piece, _ = check("", frame)
            assert len(piece.headers) > 1
            for at in range(0, len(frame.data), 7):
                changed = log_pb2.LogFrame()
                changed.CopyFrom(frame)
                data = bytearray(frame.data)
                data[at] ^= 1
                changed.data = bytes(data)
                with (
                    pytest.raises(DataLoss, match=r"checksum|differ|offsets"),
                    reported(),
                ):
                    check("", changed)
            for offsets in (frame.offsets[4:], frame.offsets[:-4], b"", b"\xff" * 8):
                changed = log_pb2.LogFrame()
                changed.CopyFrom(frame)
                changed.offsets = offsets
                with pytest.raises(DataLoss), reported():
                    check("", changed)

    run(test())
