"""Streams through a client that is made of the protos alone: records, reads, retention, events."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from node.services.execute_appends import take_appends
from node.services.stream_operations import append_drafts
from onelog import errors
from onelog.v1 import admin_pb2, common_pb2, log_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import stream_pb2 as pb
from projections.payload import SessionRef
from tests.services.nodes import Node, cluster, eventually, refusal, run, single, until

S = "s{t}"


def on_a_node(directory: Path, test: Callable[[Node], Awaitable[None]], **changes: Any) -> None:
    async def main() -> None:
        async with single(directory, **changes) as node:
            await test(node)

    run(main())


def new(*values: bytes, **fields: Any) -> list[pb.NewRecord]:
    return [pb.NewRecord(value=value, **fields) for value in values]


async def append(node: Node, *values: bytes, stream: str = S, **fields: Any) -> list[int]:
    """Append records and return their offsets."""
    request = pb.AppendRecordsRequest(stream=stream, records=new(*values, **fields))
    answer = await node.stream.AppendRecords(request)
    assert not any(each.HasField("error") for each in answer.results)
    return [each.offset for each in answer.results]


async def read(node: Node, stream: str = S, **fields: Any) -> pb.ReadRecordsResponse:
    answer = await node.stream.ReadRecords(pb.ReadRecordsRequest(stream=stream, **fields))
    assert isinstance(answer, pb.ReadRecordsResponse)
    return answer


def values(records: Sequence[pb.Record]) -> list[bytes]:
    return [each.value for each in records]


async def open_session(node: Node, stream: str = S) -> int:
    edge = node.context.edge
    assert edge is not None
    request = pipeline.OpenSessionRequest(shard=edge.shard_of(stream.encode()))
    return int((await node.pipeline.OpenSession(request)).session_id)


def in_session(session_id: int, sequence: int) -> common_pb2.WriteOptions:
    session = common_pb2.Session(session_id=session_id, sequence=sequence, first_unacknowledged=1)
    return common_pb2.WriteOptions(session=session)


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
            assert {edge.shard_of(name.encode()) for name in names} == {0, 1}
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
            assert result.partition == crc32c(record.key) % 4
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
        waits = edge.waits(edge.shard_of(S.encode()))
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


def test_a_producer_that_sends_again_writes_once(tmp_path: Path) -> None:
    """E9"""

    async def test(node: Node) -> None:
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S, partition_count=2))

        def request(sequence: int, *records: bytes, epoch: int = 0) -> pb.AppendRecordsRequest:
            producer = pb.Producer(producer_id=7, epoch=epoch, sequence=sequence)
            return pb.AppendRecordsRequest(stream=S, records=new(*records), producer=producer)

        first = (await node.stream.AppendRecords(request(1, b"a", b"b"))).results
        again = (await node.stream.AppendRecords(request(1, b"a", b"b", b"c"))).results
        assert [each.duplicate for each in first] == [False, False]
        assert [each.duplicate for each in again] == [True, True, False]
        assert [(each.offset, each.partition) for each in again[:2]] == [
            (each.offset, each.partition) for each in first
        ]
        (gap,) = [await refusal(node.stream.AppendRecords(request(9, b"z")))]
        assert (type(gap), gap.reason) == (errors.FailedPrecondition, "PRODUCER_SEQUENCE_GAP")
        results = (await node.stream.AppendRecords(request(9, b"y", b"z"))).results
        assert [each.error.reason for each in results] == ["PRODUCER_SEQUENCE_GAP"] * 2
        await node.stream.AppendRecords(request(1, b"new life", epoch=1))
        fenced = await refusal(node.stream.AppendRecords(request(4, b"ghost")))
        assert (type(fenced), fenced.reason) == (errors.ConditionFailed, "PRODUCER_FENCED")
        found = [
            value
            for partition in range(2)
            for value in values((await read(node, partition=partition)).records)
        ]
        assert sorted(found) == [b"a", b"b", b"c", b"new life"]

    on_a_node(tmp_path, test)


def test_many_records_in_a_session_are_appended_once_however_often_they_are_sent(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S, partition_count=3))
        session_id = await open_session(node)
        request = pb.AppendRecordsRequest(
            stream=S, records=new(b"1", b"2", b"3"), options=in_session(session_id, 1)
        )
        request.records[1].tag = "other way"
        first = await node.stream.AppendRecords(request)
        again = await node.stream.AppendRecords(request)
        assert list(again.results) == list(first.results)
        assert again.header.duplicate
        assert again.header.index == first.header.index
        # Each record has taken a sequence.
        request.options.session.sequence = 4
        fourth = await node.stream.AppendRecords(request)
        assert not fourth.header.duplicate
        # The same through a pipeline, with other writes before and behind.
        message = pipeline.ExecuteRequest(session=in_session(session_id, 7).session)
        message.operations.add(put=kv.PutRequest(key=b"{t}a", value=b""))
        append_many = pb.AppendRecordsRequest(stream=S, records=new(b"x", b"y"))
        message.operations.add(append_records=append_many)
        message.operations.add(count=kv.CountRequest(key=b"{t}n", add=1))
        results = (await node.pipeline.ExecuteOnce(message)).results
        repeated = (await node.pipeline.ExecuteOnce(message)).results
        assert [each.offset for each in results[1].append_records.results] == [
            each.offset for each in repeated[1].append_records.results
        ]
        assert results[2].count.number == repeated[2].count.number == 1
        total = 0
        for partition in range(3):
            total += len((await read(node, partition=partition)).records)
        assert total == 3 + 3 + 2

    on_a_node(tmp_path, test)


def test_appends_of_a_pipeline_are_the_entries_that_calls_of_their_own_would_be(
    tmp_path: Path,
) -> None:
    records = [pb.NewRecord(value=b"plain"), pb.NewRecord(value=b"", key=b"k" * 300)]
    for session in (None, SessionRef(5, 7, 2)):
        operations = [
            pipeline.Operation(append_records=pb.AppendRecordsRequest(stream=S, records=[each]))
            for each in records
        ]
        drafts: list[tuple[int, bytes, int]] = []
        noted: list[int] = []
        left = take_appends(
            operations, range(2), session, lambda _: 0, lambda _: (drafts.append, noted.append)
        )
        assert (left, noted) == (None, [0, 1])
        both = pb.AppendRecordsRequest(stream=S, records=records)
        assert drafts == append_drafts(both, "default", session)

    async def test(node: Node) -> None:
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S, partition_count=4))
        await node.stream.CreateStream(pb.CreateStreamRequest(stream="t{t}"))
        session_id = await open_session(node)
        message = pipeline.ExecuteRequest(session=in_session(session_id, 1).session)
        message.operations.add(put=kv.PutRequest(key=b"{t}before", value=b""))
        expected: list[tuple[str, dict[str, Any]]] = [
            (S, {"value": b"0", "key": b"a"}), ("t{t}", {"value": b"1"}), (S, {"value": b"2"}),
            ("none{t}", {"value": b"lost"}), (S, {"value": b"bad", "key": b""}),
            (S, {"value": b"3", "tag": "t"}), (S, {"value": b"4", "key": b"a"}),
        ]  # fmt: skip
        for stream, fields in expected:
            request = pb.AppendRecordsRequest(stream=stream, records=[pb.NewRecord(**fields)])
            message.operations.add(append_records=request)
        message.operations.add(count=kv.CountRequest(key=b"{t}after", add=1))
        first = (await node.pipeline.ExecuteOnce(message)).results
        again = (await node.pipeline.ExecuteOnce(message)).results
        reasons = ["", "", "", "", "STREAM_UNKNOWN", "KEY_SIZE_INVALID", "", "", ""]
        for results in (first, again):
            assert [each.error.reason for each in results] == reasons
        offsets = [each.append_records.results[0].offset for each in first[1:4]]
        assert offsets == sorted(set(offsets))
        for before, after in zip(first, again, strict=True):
            assert list(before.append_records.results) == list(after.append_records.results)
        of_key = [first[at].append_records.results[0].partition for at in (1, 7)]
        assert of_key == [crc32c(b"a") % 4] * 2
        assert again[1].append_records.header.duplicate
        tail = node.stream.Tail(
            pb.TailRequest(
                streams=[pb.TailStart(stream=name, from_offset=0) for name in (S, "t{t}")]
            )
        )
        found: list[bytes] = []
        while len(found) < 5:
            found += values((await tail.read()).records)
        assert found == [b"0", b"1", b"2", b"3", b"4"]

    on_a_node(tmp_path, test)


def test_records_offsets_and_keys_change_together_or_not_at_all(tmp_path: Path) -> None:
    """E10"""

    async def test(node: Node) -> None:
        for name in (S, "out{t}"):
            await node.stream.CreateStream(pb.CreateStreamRequest(stream=name, partition_count=2))
        group: dict[str, Any] = {"stream": S, "group": "g"}
        await node.stream.CreateGroup(pb.CreateGroupRequest(**group, from_offset=0))
        offsets = await append(node, b"in", b"in too", partition=0)
        member = await node.stream.JoinGroup(pb.JoinGroupRequest(**group))
        fence = {"member_id": member.member_id, "generation": member.generation}
        fetched = await node.stream.FetchRecords(pb.FetchRecordsRequest(**group, **fence))
        assert [each.offset for each in fetched.records] == offsets
        batch = pipeline.TransactRequest()
        batch.operations.add(put=kv.PutRequest(key=b"{t}done", value=b"1"))
        out = pb.AppendRecordsRequest(stream="out{t}", records=new(b"out", key=b"k"))
        batch.operations.add(append_records=out)
        places = [pb.Place(offset=offsets[0])]
        ack = pb.AckRecordsRequest(**group, member_id=member.member_id, places=places)
        batch.operations.add(ack_records=ack)
        answer = await node.pipeline.Transact(batch)
        _, appended, acked = answer.results
        assert appended.append_records.results[0].offset == answer.header.index + 2
        assert appended.append_records.results[0].partition == crc32c(b"k") % 2
        assert acked.ack_records.acked_count == 1
        # The same again: the record is not pending any more, so nothing of it happens.
        error = await refusal(node.pipeline.Transact(batch))
        assert error.metadata["cause"] == "RECORD_NOT_PENDING"
        found = [
            len((await read(node, "out{t}", partition=partition)).records) for partition in range(2)
        ]
        assert sum(found) == 1
        commit = pipeline.TransactRequest()
        commit.operations.add(append_records=out)
        places = [pb.Place(offset=offsets[1] + 1)]
        commit.operations.add(
            commit_offsets=pb.CommitOffsetsRequest(**group, **fence, places=places)
        )
        await node.pipeline.Transact(commit)
        shown = await node.stream.GetGroup(pb.GetGroupRequest(**group))
        assert shown.partitions[0].committed_offset == offsets[1] + 1
        two = pb.AppendRecordsRequest(stream=S, records=new(b"1", b"2"))
        several = pipeline.TransactRequest()
        several.operations.add(append_records=two)
        assert (await refusal(node.pipeline.Transact(several))).reason == "BATCH_INVALID"

    on_a_node(tmp_path, test)


def test_a_write_that_does_not_wait_for_disks_says_where_its_record_will_be(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S))
        options = common_pb2.WriteOptions(durability=common_pb2.DURABILITY_ASYNC)
        request = pb.AppendRecordsRequest(stream=S, records=new(b"1", b"2"), options=options)
        early = await node.stream.AppendRecords(request)
        fresh = common_pb2.ReadOptions(min_index=early.results[1].offset)
        page = await read(node, options=fresh)
        assert [each.offset for each in page.records] == [each.offset for each in early.results]
        request.producer.CopyFrom(pb.Producer(producer_id=1, sequence=1))
        error = await refusal(node.stream.AppendRecords(request))
        assert error.reason == "ASYNC_NEEDS_RESULT"

    on_a_node(tmp_path, test)


Told = tuple[str, str, bytes | None]


def test_what_happens_to_streams_is_watched_and_repetitions_are_no_events(tmp_path: Path) -> None:
    def told(event: pipeline.Event) -> Told:
        stream = event.stream
        kind = pipeline.StreamEvent.Kind.Name(stream.kind)
        return kind, stream.stream, stream.record.value if stream.HasField("record") else None

    async def collect(node: Node, cursor: common_pb2.Cursor, number: int) -> list[Told]:
        filters = [pipeline.WatchFilter(owner=log_pb2.OWNER_STREAM)]
        watch = node.pipeline.Watch(pipeline.WatchRequest(filters=filters, cursor=cursor))
        events: list[Told] = []
        async with asyncio.timeout(15):
            while len(events) < number:
                events += map(told, (await watch.read()).events)
        watch.cancel()
        return events

    async def test(node: Node) -> None:
        start = (await node.pipeline.Watch(pipeline.WatchRequest()).read()).cursor
        live = asyncio.create_task(collect(node, start, 8))
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S, partition_count=2))
        await append(node, b"1", key=b"k", tag="t")
        producer = pb.Producer(producer_id=1, sequence=1)
        for _ in range(2):
            request = pb.AppendRecordsRequest(stream=S, records=new(b"2"), producer=producer)
            await node.stream.AppendRecords(request)
        batch = pipeline.TransactRequest()
        for _ in range(2):
            # A repetition in a batch counts as done, and is no event either.
            request = pb.AppendRecordsRequest(
                stream=S,
                records=new(b"3"),
                producer=pb.Producer(producer_id=1, sequence=2),
            )
            batch.operations.add(append_records=request)
        await node.pipeline.Transact(batch)
        failing = pipeline.TransactRequest(conditions=[kv.Condition(key=b"{t}", exists=True)])
        failing.operations.add(append_records=request)
        await refusal(node.pipeline.Transact(failing))
        await refusal(node.stream.CreateStream(pb.CreateStreamRequest(stream=S)))
        retention = pb.Retention(count_max=9)
        await node.stream.ConfigureStream(pb.ConfigureStreamRequest(stream=S, retention=retention))
        await node.stream.Trim(pb.TrimRequest(stream=S, below_offset=1))
        await append(node, b"4")
        expected: list[Told] = [
            ("CREATED", S, None), ("APPENDED", S, b"1"), ("APPENDED", S, b"2"),
            ("APPENDED", S, b"3"), ("CONFIGURED", S, None), ("TRIMMED", S, None),
            ("APPENDED", S, b"4"),
        ]  # fmt: skip
        # The same whether it is told later or at once.
        assert await collect(node, start, 7) == expected
        await node.stream.DeleteStream(pb.DeleteStreamRequest(stream=S))
        assert await live == [*expected, ("DELETED", S, None)]
        gone = [(kind, name, None) for kind, name, _ in [*expected, ("DELETED", S, None)]]
        assert await collect(node, start, 8) == gone

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
