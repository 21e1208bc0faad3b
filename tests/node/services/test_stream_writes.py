"""Records are appended once: by producers, in sessions, pipelines and batches; and watched."""

import asyncio
from pathlib import Path
from typing import Any

from onelog import errors
from onelog.node.services.stream_operations import APPEND_RECORDS
from onelog.projections.codec import SessionRef
from onelog.projections.stream.commands import KeyHash
from onelog.v1 import common_pb2, log_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import stream_pb2 as pb
from tests.node.services.nodes import Node, refusal
from tests.node.services.streams import (
    S,
    append,
    in_session,
    new,
    on_a_node,
    open_session,
    read,
    values,
)
from tests.projections.stream.stream_model import hash_key


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
        apart = [pb.AppendRecordsRequest(stream=S, records=[each]) for each in records]
        both = [pb.AppendRecordsRequest(stream=S, records=records)]
        make = APPEND_RECORDS.drafts
        assert make(None, apart, "default", session) == make(None, both, "default", session)

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
        assert of_key == [hash_key(b"a", KeyHash.MIXED) % 4] * 2
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
        assert appended.append_records.results[0].partition == hash_key(b"k", KeyHash.MIXED) % 2
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
        several.operations.add(append_records=pb.AppendRecordsRequest(stream=S, records=new(b"3")))
        written = await node.pipeline.Transact(several)
        first, last = written.results
        assert [each.offset for each in first.append_records.results] == [
            written.header.index + 1, written.header.index + 2,
        ]  # fmt: skip
        assert last.append_records.header.index == written.header.index + 3
        two.records.extend(new(*[b""] * 998))
        several.operations[0].append_records.CopyFrom(two)
        assert (await refusal(node.pipeline.Transact(several))).reason == "LIMIT_INVALID"
        del several.operations[1]
        assert (
            len((await node.pipeline.Transact(several)).results[0].append_records.results) == 1_000
        )

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


Summary = tuple[str, str, bytes | None]


def test_what_happens_to_streams_is_watched_and_repetitions_are_no_events(tmp_path: Path) -> None:
    def summarise(event: pipeline.Event) -> Summary:
        stream = event.stream
        kind = pipeline.StreamEvent.Kind.Name(stream.kind)
        return kind, stream.stream, stream.record.value if stream.HasField("record") else None

    async def collect(node: Node, cursor: common_pb2.Cursor, number: int) -> list[Summary]:
        filters = [pipeline.WatchFilter(owner=log_pb2.OWNER_STREAM)]
        watch = node.pipeline.Watch(pipeline.WatchRequest(filters=filters, cursor=cursor))
        events: list[Summary] = []
        async with asyncio.timeout(15):
            while len(events) < number:
                events += map(summarise, (await watch.read()).events)
        watch.cancel()
        return events

    async def test(node: Node) -> None:
        start = (await node.pipeline.Watch(pipeline.WatchRequest()).read()).cursor
        live = asyncio.create_task(collect(node, start, 8))
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S, partition_count=2))
        (first,) = await append(node, b"1", key=b"k", tag="t")
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
        await node.stream.Trim(pb.TrimRequest(stream=S, below_offset=first + 1))
        await append(node, b"4")
        expected: list[Summary] = [
            ("CREATED", S, None), ("APPENDED", S, b"1"), ("APPENDED", S, b"2"),
            ("APPENDED", S, b"3"), ("CONFIGURED", S, None), ("TRIMMED", S, None),
            ("APPENDED", S, b"4"),
        ]  # fmt: skip
        # The same whether it is told later or at once.
        assert await collect(node, start, 7) == expected
        await node.stream.DeleteStream(pb.DeleteStreamRequest(stream=S))
        assert await live == [*expected, ("DELETED", S, None)]
        assert await collect(node, start, 8) == [*expected, ("DELETED", S, None)]

    on_a_node(tmp_path, test, shards=1)
