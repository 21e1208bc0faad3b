"""Streams through a client that is made of the protos alone: set up, read and trimmed."""

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onelog import errors
from onelog.projections.stream.commands import KeyHash
from onelog.v1 import admin_pb2, common_pb2, log_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import stream_pb2 as pb
from tests.documents import ROOT
from tests.node.services.nodes import Node, cluster, eventually, refusal, run, until
from tests.node.services.streams import (
    S,
    append,
    new,
    on_a_node,
    read,
    values,
)
from tests.projections.stream.stream_model import hash_key


def test_a_stream_is_created_shown_configured_listed_and_deleted(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        retention = pb.Retention(age_ms=60_000, size_max=1 << 20, count_max=500, past_groups=True)
        created = await node.stream.CreateStream(
            pb.CreateStreamRequest(stream=S, partition_count=2, retention=retention)
        )
        assert created.stream_id == created.header.index
        await append(node, b"1", b"22", partition=1)
        shown = (await node.stream.GetStream(pb.GetStreamRequest(stream=S))).stream
        assert (shown.namespace, shown.stream, shown.stream_id) == (
            "default",
            S,
            created.stream_id,
        )
        assert shown.retention == retention
        assert [each.record_count for each in shown.partitions] == [0, 2]
        empty, full = shown.partitions
        assert (empty.first_offset, empty.last_offset, empty.size) == (0, 0, 0)
        assert 0 < full.first_offset < full.last_offset
        assert full.size > 3
        changed = pb.Retention(count_max=7)
        await node.stream.ConfigureStream(pb.ConfigureStreamRequest(stream=S, retention=changed))
        shown = (await node.stream.GetStream(pb.GetStreamRequest(stream=S))).stream
        assert shown.retention == changed
        await node.stream.DeleteStream(pb.DeleteStreamRequest(stream=S))
        error = await refusal(node.stream.GetStream(pb.GetStreamRequest(stream=S)))
        assert (type(error), error.reason) == (errors.NotFound, "STREAM_UNKNOWN")

    on_a_node(tmp_path, test)


def test_streams_of_all_shards_are_listed_in_order_of_names_page_by_page(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=2) as nodes:
            names = [f"orders-{number:02}" for number in range(23)]
            for name in (*names, "other"):
                request = pb.CreateStreamRequest(stream=name)
                await eventually(partial(nodes[0].stream.CreateStream, request))
            edge = nodes[0].context.edge
            assert edge is not None
            assert {edge.find_shard(name.encode()) for name in names} == {0, 1}
            for node in nodes:
                found: list[str] = []
                listing = pb.ListStreamsRequest(prefix="orders-", page_size=5)
                while True:
                    page = await node.stream.ListStreams(listing)
                    assert len(page.streams) <= 5
                    found += [each.stream for each in page.streams]
                    if not page.next_page_token:
                        break
                    listing.page_token = page.next_page_token
                assert found == names

    run(test())


def test_records_of_a_key_stay_in_one_partition_in_order(tmp_path: Path) -> None:
    """E1"""

    async def test(node: Node) -> None:
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S, partition_count=4))
        records = [
            pb.NewRecord(key=b"user%d" % (number % 5), value=b"%d" % number) for number in range(40)
        ]
        records += [pb.NewRecord(value=b"any"), pb.NewRecord(value=b"three", partition=3)]
        answer = await node.stream.AppendRecords(pb.AppendRecordsRequest(stream=S, records=records))
        for record, result in zip(records[:40], answer.results, strict=False):
            assert result.partition == hash_key(record.key, KeyHash.MIXED) % 4
        assert answer.results[40].partition == answer.results[40].offset % 4
        assert answer.results[41].partition == 3
        assert len({each.partition for each in answer.results}) > 1
        told = {(each.partition, each.offset) for each in answer.results}
        seen: set[tuple[int, int]] = set()
        by_key: dict[bytes, list[int]] = {}
        for partition in range(4):
            for each in (await read(node, partition=partition)).records:
                seen.add((each.partition, each.offset))
                if each.key:
                    by_key.setdefault(each.key, []).append(int(each.value))
        assert seen == told
        assert by_key == {b"user%d" % key: list(range(key, 40, 5)) for key in range(5)}

    on_a_node(tmp_path, test)


def vectors() -> list[tuple[str, list[int]]]:
    """Return the keys of the table in docs/streams.md, with their partitions of 4 and of 7."""
    text = (ROOT / "docs" / "streams.md").read_text()
    rows = re.findall(r"^\| `(.+?)` \| 0x\w+ \| 0x\w+ \| \d, (\d) \| \d, (\d) \|$", text, re.M)
    return [(key, [int(of_four), int(of_seven)]) for key, of_four, of_seven in rows]


def test_keys_that_differ_in_their_last_byte_are_in_all_partitions(tmp_path: Path) -> None:
    """E1: as docs/streams.md has it, for programs that predict the partition of a record."""

    async def test(node: Node) -> None:
        placed: dict[int, dict[str, int]] = {}
        keys = [f"user:{number}" for number in range(10)] + [key for key, _ in vectors()]
        for count in (4, 7):
            name = f"s{count}"
            await node.stream.CreateStream(
                pb.CreateStreamRequest(stream=name, partition_count=count)
            )
            shown = (await node.stream.GetStream(pb.GetStreamRequest(stream=name))).stream
            assert shown.key_hash == pb.KEY_HASH_MIXED
            records = [pb.NewRecord(key=key.encode(), value=b"") for key in keys]
            request = pb.AppendRecordsRequest(stream=name, records=records)
            answer = await node.stream.AppendRecords(request)
            told = {key: each.partition for key, each in zip(keys, answer.results, strict=True)}
            placed[count] = told
            found: dict[str, int] = {}
            for partition in range(count):
                for record in (await read(node, name, partition=partition)).records:
                    found[record.key.decode()] = record.partition
            assert found == told
        assert {placed[4][f"user:{number}"] for number in range(10)} == {0, 1, 2, 3}
        assert len(vectors()) >= 7
        assert vectors() == [(key, [placed[4][key], placed[7][key]]) for key, _ in vectors()]

    on_a_node(tmp_path, test)


def test_records_are_read_by_offset_time_and_page_with_all_that_they_had(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S))
        assert values((await read(node)).records) == []
        full = pb.NewRecord(value=b"v", key=b"k", tag="red")
        full.headers.add(name="trace", value=b"1")
        first = (
            await node.stream.AppendRecords(pb.AppendRecordsRequest(stream=S, records=[full]))
        ).results[0]
        offsets = await append(node, *(b"%d" % number for number in range(9)))
        page = await read(node, limit=4)
        got = page.records[0]
        assert (got.offset, got.value, got.key, got.tag) == (first.offset, b"v", b"k", "red")
        assert [(each.name, each.value) for each in got.headers] == [("trace", b"1")]
        assert got.timestamp_ns
        assert values(page.records) == [b"v", b"0", b"1", b"2"]
        rest = await read(node, from_offset=page.next_offset)
        assert values(rest.records) == [b"%d" % number for number in range(3, 9)]
        assert rest.next_offset > offsets[-1]
        assert rest.header.applied_index >= offsets[-1]
        by_time = await read(node, from_ns=got.timestamp_ns)
        assert by_time.records[0].offset == first.offset
        later = await read(node, from_ns=rest.records[-1].timestamp_ns + 10**9)
        assert not later.records
        stale = common_pb2.ReadOptions(level=common_pb2.READ_LEVEL_STALE, min_index=offsets[-1])
        assert len((await read(node, options=stale)).records) == 10

    on_a_node(tmp_path, test)


def test_a_reader_filters_by_key_tag_and_header_where_the_records_are(tmp_path: Path) -> None:
    """E7"""

    async def test(node: Node) -> None:
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S))
        for number in range(12):
            record = pb.NewRecord(value=b"%d" % number, key=b"k%d" % (number % 3))
            record.tag = ("red", "blue")[number % 2]
            record.headers.add(name="size", value=b"big" if number % 4 == 0 else b"small")
            await node.stream.AppendRecords(pb.AppendRecordsRequest(stream=S, records=[record]))

        async def chosen(**fields: Any) -> list[int]:
            wanted = pb.RecordFilter(**fields)
            return [int(each.value) for each in (await read(node, filter=wanted)).records]

        big = kv_header("size", b"big")
        assert await chosen(keys=[b"k1"]) == [1, 4, 7, 10]
        assert await chosen(keys=[b"k1", b"k2"], tags=["red"]) == [2, 4, 8, 10]
        assert await chosen(headers=[big]) == [0, 4, 8]
        assert await chosen(headers=[big], keys=[b"k2"]) == [8]
        assert await chosen(tags=["green"]) == []
        nothing = await read(node, filter=pb.RecordFilter(tags=["green"]))
        assert nothing.next_offset > nothing.header.applied_index - 1

    on_a_node(tmp_path, test)


def kv_header(name: str, value: bytes) -> Any:
    record = pb.NewRecord()
    return record.headers.add(name=name, value=value)


def test_a_read_waits_for_the_first_record_and_no_longer_than_it_says(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S))
        assert not (await read(node, wait_ms=20)).records
        edge = node.context.edge
        assert edge is not None
        waits = edge.waits(edge.find_shard(S.encode()))
        waiting = [asyncio.create_task(read(node, wait_ms=30_000)) for _ in range(3)]
        await until(lambda: len(waits) == 3)
        await node.kv.Put(kv.PutRequest(key=b"{t}other", value=b""))
        await append(node, b"here")
        for answer in await asyncio.gather(*waiting):
            assert values(answer.records) == [b"here"]
        # A stream that goes ends the wait; a client that goes leaves nothing.
        after = (await read(node)).next_offset
        waiting = [asyncio.create_task(read(node, from_offset=after, wait_ms=30_000))] * 2
        await until(lambda: len(waits) == 1)
        await node.stream.DeleteStream(pb.DeleteStreamRequest(stream=S))
        assert (await refusal(waiting[0])).reason == "STREAM_UNKNOWN"
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S))
        call = node.stream.ReadRecords(pb.ReadRecordsRequest(stream=S, wait_ms=30_000))
        await until(lambda: len(waits) == 1)
        call.cancel()
        await until(lambda: len(waits) == 0)

    on_a_node(tmp_path, test)


def test_a_trim_respects_groups_and_readers_are_told_exactly_what_is_gone(tmp_path: Path) -> None:
    """E5, E6"""

    async def test(node: Node) -> None:
        created = await node.stream.CreateStream(pb.CreateStreamRequest(stream=S))
        offsets = await append(node, *(b"%d" % number for number in range(10)))
        group: dict[str, Any] = {"stream": S, "group": "g"}
        await node.stream.CreateGroup(pb.CreateGroupRequest(**group, from_offset=offsets[4]))
        error = await refusal(node.stream.Trim(pb.TrimRequest(stream=S, below_offset=offsets[6])))
        assert (type(error), error.reason) == (errors.FailedPrecondition, "TRIM_BLOCKED")
        assert error.metadata["detail"] == str(offsets[4])
        assert len((await read(node)).records) == 10
        await node.stream.Trim(pb.TrimRequest(stream=S, below_offset=offsets[3]))
        assert values((await read(node)).records) == [b"%d" % number for number in range(3, 10)]
        past = pb.TrimRequest(stream=S, below_offset=offsets[6], past_groups=True)
        await node.stream.Trim(past)
        page = await read(node, from_offset=1)
        (gap, *records) = page.records
        assert gap.gap == pb.Gap(
            first_offset=created.stream_id + 1, last_offset=offsets[6] - 1, reason="TRIMMED"
        )
        assert values(records) == [b"6", b"7", b"8", b"9"]
        assert not any(each.HasField("gap") for each in records)
        # From the first one that is kept nothing is missing.
        assert not any(each.HasField("gap") for each in (await read(node)).records)
        await node.stream.Trim(pb.TrimRequest(stream=S, keep_count=1, past_groups=True))
        await node.stream.Trim(pb.TrimRequest(stream=S, keep_size=1 << 30))
        await node.stream.Trim(pb.TrimRequest(stream=S, age_ms=3_600_000, partition=0))
        assert values((await read(node)).records)[-1] == b"9"

    on_a_node(tmp_path, test)


@pytest.mark.parametrize(
    ("retention", "reason"),
    [
        ({"count_max": 64}, "RETENTION_COUNT"),
        ({"size_max": 6_400}, "RETENTION_SIZE"),
        ({"age_ms": 1}, "RETENTION_AGE"),
    ],
)
def test_a_policy_lets_old_records_go_and_says_so(
    tmp_path: Path, retention: dict[str, Any], reason: str
) -> None:
    """E4, E6"""

    async def test(node: Node) -> None:
        created = await node.stream.CreateStream(
            pb.CreateStreamRequest(stream=S, retention=pb.Retention(**retention))
        )
        watch = node.pipeline.Watch(
            pipeline.WatchRequest(filters=[pipeline.WatchFilter(owner=log_pb2.OWNER_STREAM)])
        )
        await watch.read()
        for _ in range(10):
            await append(node, *(bytes(100) for _ in range(20)))

        async def first_kept() -> int:
            partition = (
                await node.stream.GetStream(pb.GetStreamRequest(stream=S))
            ).stream.partitions[0]
            assert partition.record_count <= 64 + 8
            return int(partition.first_offset)

        await eventually(first_kept)
        gap = (await read(node, from_offset=1)).records[0].gap
        assert (gap.first_offset, gap.reason) == (created.stream_id + 1, reason)
        kinds: set[int] = set()
        while pipeline.StreamEvent.TRIMMED not in kinds:
            kinds |= {event.stream.kind for event in (await watch.read()).events}

    on_a_node(tmp_path, test, shards=1)


def test_any_node_takes_the_calls_of_a_stream(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            await nodes[0].admin.CreateNamespace(admin_pb2.CreateNamespaceRequest(namespace="n"))
            create = pb.CreateStreamRequest(stream=S, namespace="n")
            await eventually(lambda: nodes[0].stream.CreateStream(create))
            for number, node in enumerate(nodes):
                await node.stream.AppendRecords(
                    pb.AppendRecordsRequest(
                        stream=S, namespace="n", records=new(b"%d" % number, b"more")
                    )
                )
            for node in nodes:
                found = await read(node, namespace="n")
                assert values(found.records) == [b"0", b"more", b"1", b"more", b"2", b"more"]

    run(test())
