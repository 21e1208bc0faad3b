"""The Log service of real nodes: frames are the log, whichever replica sends them."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc.aio  # type: ignore[import-untyped]
import numpy as np
import pytest

from onelog import errors
from onelog.errors import OnelogError
from onelog.node.config.schema import LimitSettings
from onelog.status import error_of
from onelog.ual.entry import HEADER_SIZE, Entry, check_entry
from onelog.ual.files import DiskFiles
from onelog.ual.segments.format import ENTRIES_OFFSET
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.sealing import compact_segment
from onelog.ual.segments.unsealed import UnsealedSegment
from onelog.v1 import admin_pb2 as admin
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import log_pb2
from tests.node.server import test_workers
from tests.node.services.nodes import Node, cluster, eventually, refusal, run, single, until
from tests.node.snapshots.test_as_of import SMALL_LOG, History, put, snapshot, trim, write

SMALL: dict[str, Any] = {"shards": 1, "log": SMALL_LOG}
# So slow that a stream has not ended before something happens to it; frames have 16 KiB then.
SLOW = 100_000


@dataclass
class Read:
    """What a stream of frames has brought."""

    entries: list[Entry] = field(default_factory=list)
    voids: list[int] = field(default_factory=list)
    data: bytes = b""
    frames: int = 0
    next_index: int = 0


def wanted(first: int, last: int, **fields: Any) -> log_pb2.ReadLogFramesRequest:
    return log_pb2.ReadLogFramesRequest(first_index=first, last_index=last, **fields)


async def read(node: Node, first: int, last: int, timeout_s: float = 20, **fields: Any) -> Read:
    """Read a range to its end, verifying each frame."""
    found = Read(next_index=first)
    async for frame in node.log.ReadLogFrames(wanted(first, last, **fields), timeout=timeout_s):
        take(found, frame)
    assert found.next_index == last + 1
    return found


def take(found: Read, frame: log_pb2.LogFrame) -> None:
    assert frame.first_index == found.next_index <= frame.last_index
    end = 0
    for offset in np.frombuffer(frame.offsets, "<u4").tolist():
        assert offset == end
        index = int.from_bytes(frame.data[offset + 16 : offset + 24], "little")
        entry = check_entry(frame.data, offset, index)
        assert frame.first_index <= index <= frame.last_index
        found.entries.append(entry)
        end += HEADER_SIZE + len(entry.payload)
    assert end == len(frame.data)
    for each in frame.voids:
        assert frame.first_index <= each.first_index <= each.last_index <= frame.last_index
        found.voids += range(each.first_index, each.last_index + 1)
    found.data += frame.data
    found.frames += 1
    found.next_index = frame.last_index + 1


async def describe(node: Node, shard: int = 0) -> log_pb2.DescribeLogResponse:
    request = log_pb2.DescribeLogRequest(shard=shard)
    answer: log_pb2.DescribeLogResponse = await node.log.DescribeLog(request, timeout=20)
    return answer


async def read_log(node: Node, last: int, **fields: Any) -> list[log_pb2.Entry]:
    request = admin.ReadLogRequest(last_index=last, **fields)
    return [entry async for page in node.admin.ReadLog(request) for entry in page.entries]


def shown(entry: Entry) -> tuple[int, int, int, int, int, bytes]:
    payload = entry.plain_payload()
    return (
        entry.index, entry.term, entry.timestamp_ns, entry.entry_type, entry.group_left, payload,
    )  # fmt: skip


def sent(entry: log_pb2.Entry) -> tuple[int, int, int, int, int, bytes]:
    return (
        entry.index, entry.term, entry.timestamp_ns, entry.entry_type, entry.group_left,
        entry.payload,
    )  # fmt: skip


def stored(node: Node) -> bytes:
    """Return the entries of all files of a log, as they are on the disk."""
    found = b""
    for segment in node.context.drivers[0].shard.log.segments.segments:
        data = segment.path.read_bytes()
        if isinstance(segment, SealedSegment):
            found += data[ENTRIES_OFFSET : segment.footer.entries_end]
        else:
            assert isinstance(segment, UnsealedSegment)
            found += data[ENTRIES_OFFSET : segment.end]
    return found


def sealed(node: Node) -> list[SealedSegment]:
    segments = node.context.drivers[0].shard.log.segments.segments
    return [each for each in segments if isinstance(each, SealedSegment)]


async def fill(node: Node, count: int = 8) -> int:
    """Write files full of entries of 10 KiB; return the last index."""
    last = 0
    for number in range(count):
        draw = random.Random(number)
        last = await write(node, *(put(b"k", draw.randbytes(10 << 10)) for _ in range(3)))
    await until(lambda: len(sealed(node)) >= count * 30 // 64 - 1)
    return last


async def failure(stream: Any) -> OnelogError:
    """Return the error that a stream ends with, sooner or later."""
    try:
        async for _ in stream:
            pass
    except grpc.aio.AioRpcError as error:
        return error_of(error)
    raise AssertionError("not refused")


@pytest.mark.parametrize("seed", [1, 2])
def test_frames_are_the_log_over_a_random_history_of_all_models(tmp_path: Path, seed: int) -> None:
    async def test() -> None:
        async with single(tmp_path, **SMALL) as node:
            history = History(node, seed)
            await history.go_on(80)
            await fill(node)
            await history.go_on(40)
            await until(lambda: len(sealed(node)) > 3)
            # There are refused ones in a sealed file; let there be one in the tail.
            await refusal(node.kv.Put(kv.PutRequest(key=b"k", expected_version=1)))
            cut = (await describe(node)).cut_index
            everything = await read_log(node, cut, with_voids=True)
            plain = {entry.index for entry in await read_log(node, cut)}
            voids = [entry.index for entry in everything if entry.index not in plain]
            tail = sealed(node)[-1].last_index
            assert voids[0] <= tail < voids[-1]

            found = await read(node, 1, cut)
            assert [shown(entry) for entry in found.entries] == [sent(each) for each in everything]
            assert found.voids == voids
            assert found.data == stored(node)[: len(found.data)]
            first, last = sorted(random.Random(seed).sample(range(1, cut), 2))
            part = await read(node, first, last, bytes_per_second_max=1 << 40)
            assert part.entries == found.entries[first - 1 : last]
            assert part.voids == [index for index in voids if first <= index <= last]
            owners = [log_pb2.OWNER_QUEUE, log_pb2.OWNER_SYSTEM]
            some = await read(node, 1, cut, owners=owners)
            assert some.entries == [each for each in found.entries if each.owner in owners]
            assert some.voids == voids
            # What compaction leaves of two files, and the rest as before.
            gone = set()
            for segment, step in zip(sealed(node)[1:3], (2, 1 << 40), strict=True):
                kept = np.arange(segment.first_index, segment.last_index + 1, step)
                compact_segment(DiskFiles(), segment.path, kept[1:].astype(np.uint64))
                segment.unmap()
                indexes = range(segment.first_index, segment.last_index + 1)
                gone |= set(indexes) - set(kept[1:].tolist())
            left = await read(node, 1, cut)
            assert left.entries == [each for each in found.entries if each.index not in gone]

    run(test())


def test_a_description_has_a_cut_above_all_that_was_acknowledged_through_any_node(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=2, log=SMALL_LOG) as nodes:
            for number in range(12):
                request = kv.PutRequest(key=b"{a}%d" % number, value=random.randbytes(20 << 10))
                header = (await nodes[number % 3].kv.Put(request)).header
                answer = await describe(nodes[(number + 1) % 3], header.shard)
                assert answer.cut_index >= header.index
            shard = header.shard
            leader = next(node for node in nodes if node.leads(shard))
            log = leader.context.drivers[shard].shard.log
            await until(lambda: log.segments.sealed_index > 1)
            for node in nodes:
                answer = await describe(node, shard)
                assert answer.cluster_id == str(node.context.topology.cluster_id)
                assert (answer.shard, answer.shard_count) == (shard, 2)
                assert (answer.first_index, answer.first_as_of_index) == (1, 1)
                found = await read(node, 1, answer.cut_index, shard=shard)
                assert found.entries[-1].group_left == 0
                assert found.entries[-1].timestamp_ns == answer.cut_timestamp_ns
                at = 1
                for span in answer.spans:
                    inside = found.entries[at - 1 : span.last_index]
                    assert span.first_index == at
                    assert span.entry_count == len(inside) == span.last_index - at + 1
                    assert span.first_timestamp_ns == inside[0].timestamp_ns
                    assert span.last_timestamp_ns == inside[-1].timestamp_ns
                    assert span.size >= ENTRIES_OFFSET + sum(
                        HEADER_SIZE + len(each.payload) for each in inside
                    )
                    counts = [sum(each.owner == owner for each in inside) for owner in range(16)]
                    assert list(span.owner_counts) == (counts if span.sealed else [])
                    assert not span.damaged
                    at = span.last_index + 1
                assert at == answer.cut_index + 1
                assert [each.sealed for each in answer.spans][0::len(answer.spans) - 1] == [
                    True, False,
                ]  # fmt: skip

    run(test())


def test_what_is_not_committed_is_never_sent_or_described(tmp_path: Path) -> None:
    """Entries of a leader that has lost its majority may be cut, and others written there."""

    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            last = (await nodes[0].kv.Put(kv.PutRequest(key=b"a", value=b"1"))).header.index
            leader = next(node for node in nodes if node.leads(0))
            log = leader.context.drivers[0].shard.log
            for node in nodes:
                if node is not leader:
                    await node.stop()
            lost = leader.kv.Put(kv.PutRequest(key=b"lost", value=b"1"), timeout=0.5)
            await until(lambda: log.last_index > log.commit_index)
            await refusal(lost)
            assert log.applied_index >= last

            found = await read(leader, 1, log.applied_index)
            assert [each.index for each in found.entries] == list(range(1, log.applied_index + 1))
            behind = wanted(1, log.last_index)
            error = await failure(leader.log.ReadLogFrames(behind, timeout=1))
            assert (type(error), error.reason) == (errors.Unavailable, "REPLICA_BEHIND")
            with pytest.raises(grpc.aio.AioRpcError):
                await leader.log.DescribeLog(log_pb2.DescribeLogRequest(), timeout=0.5)

    run(test())


def test_a_replica_that_is_behind_waits_as_long_as_its_caller_and_then_says_so(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            follower = next(node for node in nodes if not node.leads(0))
            driver = follower.context.drivers[0]
            held: list[Any] = []
            deliver = driver.deliver
            driver.deliver = lambda *message: held.append(message)  # type: ignore[method-assign]
            other = next(node for node in nodes if node is not follower)
            last = (await other.kv.Put(kv.PutRequest(key=b"a", value=b"1"))).header.index
            applied = driver.shard.log.applied_index
            assert applied < last

            for timeout_s in (0.6, None):
                stream = follower.log.ReadLogFrames(wanted(1, last), timeout=timeout_s)
                error = await failure(stream)
                assert (type(error), error.reason) == (errors.Unavailable, "REPLICA_BEHIND")
                assert error.metadata == {"applied_index": str(applied)}
                assert error.retry_after_s
            assert (await read(follower, 1, applied)).entries[-1].index == applied
            waiting = asyncio.create_task(read(follower, 1, last))
            await until(lambda: follower.context.edge and len(follower.context.edge.waits(0)))
            driver.deliver = deliver  # type: ignore[method-assign]
            for message in held:
                deliver(*message)
            assert (await waiting).entries[-1].index == last

    run(test())


def test_a_range_that_is_dropped_before_or_during_the_stream_is_compacted(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, **SMALL) as node:
            last = await fill(node, 16)
            driver = node.context.drivers[0]
            for _ in range(2):
                await write(node, put(b"k", b""))
                await snapshot(node)
            stream = aiter(node.log.ReadLogFrames(wanted(1, last, bytes_per_second_max=SLOW)))
            found = Read(next_index=1)
            take(found, await anext(stream))
            await until(lambda: trim(node) or driver.shard.log.first_index > 1)
            error = await failure(stream)
            assert (error.code, error.reason) == (11, "COMPACTED")
            first = driver.shard.log.first_index
            assert error.metadata == {"first_index": str(first)}
            assert first > found.next_index
            error = await failure(node.log.ReadLogFrames(wanted(first - 1, last)))
            assert (error.code, error.reason) == (11, "COMPACTED")
            assert error.metadata == {"first_index": str(first)}
            answer = await describe(node)
            assert (answer.first_index, answer.spans[0].first_index) == (first, first)
            assert answer.first_as_of_index == answer.snapshots[0].index
            await read(node, first, last)

    run(test())


async def frames_of(node: Node, first: int, last: int) -> list[log_pb2.LogFrame]:
    return [each async for each in node.log.ReadLogFrames(wanted(first, last))]


def test_a_damaged_file_is_data_loss_and_is_set_aside(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, **SMALL) as node:
            last = await fill(node)
            segment = sealed(node)[1]
            with segment.path.open("r+b") as file:
                file.seek(ENTRIES_OFFSET + 16)  # the index of its first entry
                file.write(b"\xff")
            for _ in range(2):
                error = await failure(node.log.ReadLogFrames(wanted(1, last)))
                assert isinstance(error, errors.DataLoss)
                status = await node.admin.GetStatus(admin.GetStatusRequest())
                assert [each.reason for each in status.alarms] == ["SEGMENT_DAMAGED"]
            spans = (await describe(node)).spans
            assert [each.first_index for each in spans if each.damaged] == [segment.first_index]
            await read(node, segment.last_index + 1, last)

    run(test())


def test_streams_are_limited_in_number_and_in_bytes_a_second(tmp_path: Path) -> None:
    async def test() -> None:
        limits = LimitSettings(log_streams_max=2)
        async with single(tmp_path, **SMALL, limits=limits) as node:
            last = await fill(node)
            await snapshot(node)
            loop, rate = asyncio.get_running_loop(), 400_000
            began = loop.time()
            found = await read(node, 1, last, bytes_per_second_max=rate)
            assert found.frames > 4
            # The last frame is sent when those before it have had their time.
            assert loop.time() - began >= (len(found.data) - rate // 8) / rate
            streams = [
                node.log.ReadLogFrames(wanted(1, last, bytes_per_second_max=SLOW)) for _ in range(2)
            ]
            for stream in streams:
                await stream.read()
            refused: list[AsyncIterator[Any]] = [
                node.log.ReadLogFrames(wanted(1, last)),
                node.log.ReadSnapshot(log_pb2.ReadSnapshotRequest()),
            ]
            for each in refused:
                error = await failure(each)
                assert isinstance(error, errors.ResourceExhausted)
                assert (error.reason, error.metadata) == ("TOO_MANY_LOG_STREAMS", {"limit": "2"})
                assert error.retry_after_s
            streams[0].cancel()
            await eventually(lambda: read(node, 1, last))
            streams[1].cancel()

    run(test())


def test_bulk_reads_give_way_to_writes_and_to_nothing_else(tmp_path: Path) -> None:
    """A job that reads the whole log must not take the database from those who write to it."""

    async def test() -> None:
        # So slow that a stream which gives way once does not end within any deadline.
        limits = LimitSettings(log_bytes_per_s_beside_writes=1)
        async with single(tmp_path, **SMALL, limits=limits) as node:
            last = await fill(node)
            # Of a slow stream the frames are small: there are several, and time for a write.
            several: dict[str, Any] = {"bytes_per_second_max": 400_000}
            found = await read(node, 1, last, **several)
            assert found.frames > 4

            async def overwrite() -> None:
                while True:
                    await write(node, put(b"k", b"v"))

            writer = asyncio.create_task(overwrite())
            stream = node.log.ReadLogFrames(wanted(1, last, **several), timeout=3)
            error = await failure(stream)
            writer.cancel()
            assert isinstance(error, errors.DeadlineExceeded)

    run(test())


def test_an_entry_above_a_megabyte_is_a_frame_and_one_above_a_message_is_named(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        draw = random.Random(1)
        async with single(tmp_path, shards=1) as node:
            large = await write(node, put(b"k", draw.randbytes(3 << 20)))
            last = await write(node, put(b"k", b"1"))
            found = await frames_of(node, 1, last)
            ranges = [(each.first_index, each.last_index) for each in found]
            assert ranges[-3][1] == large - 1
            assert ranges[-2:] == [(large, large), (last, last)]
            assert len(found[-2].data) > 3 << 20
        async with single(tmp_path, shards=1, limits=LimitSettings(message_bytes_max=1 << 20)) as n:
            error = await failure(n.log.ReadLogFrames(wanted(1, last)))
            assert (type(error), error.reason) == (errors.TooLarge, "ANSWER_TOO_LARGE")
            assert error.metadata["index"] == str(large)
            assert [each.last_index for each in await frames_of(n, large + 1, last)] == [last]

    run(test())


def test_any_worker_passes_on_what_another_one_holds(tmp_path: Path) -> None:
    async def test() -> None:
        nodes = await test_workers.start(tmp_path / "n1")
        try:
            for shard in range(test_workers.SHARDS):
                answers = [await describe(node, shard) for node in nodes]
                assert {each.shard for each in answers} == {shard}
                cut = min(each.cut_index for each in answers)
                first, second = [await read(node, 1, cut, shard=shard) for node in nodes]
                assert first.data == second.data
                for node in nodes:
                    request = log_pb2.ReadSnapshotRequest(shard=shard)
                    error = await failure(node.log.ReadSnapshot(request))
                    assert error.reason == "SNAPSHOT_UNKNOWN"
        finally:
            for node in nodes:
                await node.stop()

    run(test())


BAD: list[tuple[dict[str, Any], str]] = [
    ({"shard": 9, "first_index": 1, "last_index": 1}, "SHARD_UNKNOWN"),
    ({}, "RANGE_INVALID"),
    ({"first_index": 1}, "RANGE_INVALID"),
    ({"last_index": 1}, "RANGE_INVALID"),
    ({"first_index": 3, "last_index": 2}, "RANGE_INVALID"),
    ({"first_index": 1, "last_index": 1, "owners": [cast(Any, 99)]}, "OWNER_INVALID"),
    ({"first_index": 1, "last_index": 10_000}, "INDEX_IN_FUTURE"),
    ({"first_index": 10_000, "last_index": 2**64 - 1}, "INDEX_IN_FUTURE"),
]


def test_bad_input_is_refused_with_a_reason_before_a_frame(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as node:
            for fields, reason in BAD:
                request = log_pb2.ReadLogFramesRequest(**fields)
                stream = node.log.ReadLogFrames(request, timeout=20)
                error = await refusal(stream.read())
                assert error.reason == reason, fields
                assert not isinstance(error, errors.Unavailable | errors.Internal)
            error = await refusal(describe(node, 9))
            assert error.reason == "SHARD_UNKNOWN"
            error = await failure(node.log.ReadSnapshot(log_pb2.ReadSnapshotRequest(shard=2)))
            assert error.reason == "SHARD_UNKNOWN"

    run(test())
