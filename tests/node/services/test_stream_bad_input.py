"""What is wrong with calls of streams, each with its reason, and nothing in the log."""

from pathlib import Path
from typing import Any

from onelog import errors
from onelog.v1 import common_pb2
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import stream_pb2 as pb
from tests.node.services.nodes import Node, refusal
from tests.node.services.streams import S, append, new, on_a_node

HUGE = 2**64 - 1
INVALID, LARGE, LOST = errors.InvalidArgument, errors.TooLarge, errors.NotFound
G: dict[str, Any] = {"stream": S, "group": "g"}
Cases = list[tuple[dict[str, Any], type[Exception], str]]
AS_OF = common_pb2.ReadOptions(as_of_index=10**9)


def header(name: str, value: bytes = b"") -> Any:
    return pb.NewRecord().headers.add(name=name, value=value)


def record(**fields: Any) -> dict[str, Any]:
    return {"stream": S, "records": [pb.NewRecord(**fields)]}


def producer(count: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "stream": S,
        "records": new(*[b""] * count),
        "producer": pb.Producer(producer_id=1, **fields),
    }


def position(**fields: Any) -> common_pb2.Cursor:
    return common_pb2.Cursor(positions=[common_pb2.Position(**fields)])


NAME: Cases = [
    ({"stream": ""}, INVALID, "STREAM_NAME_INVALID"),
    ({"stream": "n" * 129}, INVALID, "STREAM_NAME_INVALID"),
    ({"stream": "n" * 5_000}, INVALID, "STREAM_NAME_INVALID"),
    ({"stream": "a:b"}, INVALID, "STREAM_NAME_INVALID"),
    ({"stream": S, "namespace": "n" * 129}, INVALID, "NAMESPACE_NAME_INVALID"),
]
GROUP: Cases = [
    ({"stream": "", "group": "g"}, INVALID, "STREAM_NAME_INVALID"),
    ({"stream": S, "group": ""}, INVALID, "GROUP_NAME_INVALID"),
    ({"stream": S, "group": "é" * 65}, INVALID, "GROUP_NAME_INVALID"),
]
PLACES: Cases = [
    ({**G, "places": []}, INVALID, "LIMIT_INVALID"),
    ({**G, "places": [pb.Place(offset=each) for each in range(1_001)]}, INVALID, "LIMIT_INVALID"),
    ({**G, "places": [pb.Place(partition=256)]}, LOST, "PARTITION_UNKNOWN"),
    ({**G, "places": [pb.Place(offset=5), pb.Place(offset=5)]}, INVALID, "OFFSETS_INVALID"),
]
START = {"from_offset": 1, "from_ns": 1}

# By call: what is wrong in itself, so that nothing may be written.
BAD: dict[str, Cases] = {
    "CreateStream": [
        *NAME,
        ({"stream": S, "partition_count": 257}, INVALID, "STREAM_LIMIT_INVALID"),
        ({"stream": S, "partition_count": 2**32 - 1}, INVALID, "STREAM_LIMIT_INVALID"),
        ({"stream": S, "retention": pb.Retention(age_ms=HUGE)}, INVALID, "STREAM_LIMIT_INVALID"),
        ({"stream": S, "retention": pb.Retention(size_max=HUGE)}, INVALID, "STREAM_LIMIT_INVALID"),
        ({"stream": S, "retention": pb.Retention(count_max=HUGE)}, INVALID, "STREAM_LIMIT_INVALID"),
    ],
    "ConfigureStream": [
        *NAME,
        ({"stream": S, "retention": pb.Retention(age_ms=HUGE)}, INVALID, "STREAM_LIMIT_INVALID"),
    ],
    "DeleteStream": NAME,
    "GetStream": [*NAME, ({"stream": S, "options": AS_OF}, errors.OutOfRange, "INDEX_IN_FUTURE")],
    "ListStreams": [
        ({"page_size": 1_001}, INVALID, "LIMIT_INVALID"),
        ({"page_token": b"?"}, INVALID, "PAGE_TOKEN_INVALID"),
        ({"page_token": b"\x01\xff"}, INVALID, "PAGE_TOKEN_INVALID"),
        ({"page_token": b"\x01" + b"n" * 200}, INVALID, "PAGE_TOKEN_INVALID"),
        ({"options": AS_OF}, INVALID, "SEVERAL_SHARDS"),
    ],
    "AppendRecords": [
        ({"stream": "", "records": new(b"")}, INVALID, "STREAM_NAME_INVALID"),
        ({"stream": S}, INVALID, "LIMIT_INVALID"),
        ({"stream": S, "records": new(*[b""] * 1_001)}, INVALID, "LIMIT_INVALID"),
        ({"stream": S, "records": new(*[bytes(1 << 20)] * 9)}, LARGE, "TOO_LARGE"),
        (record(value=bytes(8 << 20)), LARGE, "VALUE_TOO_LARGE"),
        (record(key=b""), INVALID, "KEY_SIZE_INVALID"),
        (record(key=bytes(4_097)), INVALID, "KEY_SIZE_INVALID"),
        (record(key=bytes(70_000), tag="t"), INVALID, "KEY_SIZE_INVALID"),
        (record(tag="t" * 256), INVALID, "TAG_INVALID"),
        (record(partition=256), LOST, "PARTITION_UNKNOWN"),
        (record(headers=[header("n" * 256)]), INVALID, "HEADER_INVALID"),
        (record(headers=[header("")]), INVALID, "HEADER_INVALID"),
        (record(headers=[header("dlq.group")]), INVALID, "HEADER_INVALID"),
        (record(headers=[header("n", bytes(65_536))]), INVALID, "HEADER_INVALID"),
        (record(headers=[header("n")] * 65), LARGE, "PAYLOAD_COUNT_TOO_LARGE"),
        (producer(sequence=0), INVALID, "PRODUCER_INVALID"),
        (producer(sequence=HUGE), INVALID, "PRODUCER_INVALID"),
        (producer(sequence=1, epoch=65_536), INVALID, "PRODUCER_INVALID"),
        (producer(9, sequence=1), INVALID, "LIMIT_INVALID"),
    ],
    "ReadRecords": [
        *NAME,
        ({"stream": S, "limit": 10_001}, INVALID, "LIMIT_INVALID"),
        ({"stream": S, "wait_ms": 60_001}, INVALID, "LIMIT_INVALID"),
        ({"stream": S, **START}, INVALID, "START_INVALID"),
        ({"stream": S, "partition": 1}, LOST, "PARTITION_UNKNOWN"),
        ({"stream": S, "options": AS_OF}, errors.OutOfRange, "INDEX_IN_FUTURE"),
        (
            {"stream": S, "filter": pb.RecordFilter(tags=["t"] * 1_001)},
            INVALID,
            "LIMIT_INVALID",
        ),
    ],
    "Tail": [
        ({}, INVALID, "LIMIT_INVALID"),
        ({"streams": [pb.TailStart(stream=S)] * 1_001}, INVALID, "LIMIT_INVALID"),
        ({"streams": [pb.TailStart(stream="")]}, INVALID, "STREAM_NAME_INVALID"),
        ({"streams": [pb.TailStart(stream="none")]}, LOST, "STREAM_UNKNOWN"),
        ({"streams": [pb.TailStart(stream=S, partition=1)]}, LOST, "PARTITION_UNKNOWN"),
        ({"streams": [pb.TailStart(stream=S, partition=256)]}, LOST, "PARTITION_UNKNOWN"),
        ({"streams": [pb.TailStart(stream=S, **START)]}, INVALID, "START_INVALID"),
        ({"streams": [pb.TailStart(stream=S, from_offset=2**63)]}, INVALID, "START_INVALID"),
        (
            {"streams": [pb.TailStart(stream=S)], "cursor": position(shard=9)},
            INVALID,
            "SHARD_UNKNOWN",
        ),
        (
            {
                "streams": [pb.TailStart(stream=S)],
                "cursor": common_pb2.Cursor(
                    positions=[common_pb2.Position(shard=each, index=2**63) for each in (0, 1)]
                ),
            },
            INVALID,
            "CURSOR_INVALID",
        ),
    ],
    "Trim": [
        ({"stream": S}, INVALID, "BOUND_INVALID"),
        ({"stream": S, "keep_count": 0}, INVALID, "LIMIT_INVALID"),
        ({"stream": S, "keep_size": HUGE}, INVALID, "LIMIT_INVALID"),
        ({"stream": S, "age_ms": HUGE}, INVALID, "LIMIT_INVALID"),
        ({"stream": S, "below_offset": 1, "partition": 256}, LOST, "PARTITION_UNKNOWN"),
    ],
    "CreateGroup": [
        *GROUP,
        ({**G, **START}, INVALID, "START_INVALID"),
        ({**G, "config": pb.GroupConfig(max_deliveries=65_536)}, INVALID, "STREAM_LIMIT_INVALID"),
        ({**G, "config": pb.GroupConfig(max_deliveries=3)}, INVALID, "STREAM_LIMIT_INVALID"),
        (
            {**G, "config": pb.GroupConfig(dead_letter_stream="d{t}")},
            INVALID,
            "STREAM_LIMIT_INVALID",
        ),
        (
            {**G, "config": pb.GroupConfig(dead_letter_stream="x:y{t}", max_deliveries=1)},
            INVALID,
            "STREAM_NAME_INVALID",
        ),
    ],
    "ConfigureGroup": GROUP,
    "DeleteGroup": GROUP,
    "GetGroup": [*GROUP, ({**G, "options": AS_OF}, errors.OutOfRange, "INDEX_IN_FUTURE")],
    "JoinGroup": [
        *GROUP,
        ({**G, "session_ms": 999}, INVALID, "MEMBER_SESSION_INVALID"),
        ({**G, "session_ms": HUGE}, INVALID, "MEMBER_SESSION_INVALID"),
    ],
    "LeaveGroup": GROUP,
    "HeartbeatGroup": GROUP,
    "FetchRecords": [
        *GROUP,
        ({**G, "limit": 1_001}, INVALID, "LIMIT_INVALID"),
        ({**G, "wait_ms": 60_001}, INVALID, "LIMIT_INVALID"),
        ({**G, "member_id": 77}, LOST, "MEMBER_UNKNOWN"),
        ({"stream": S, "group": "none"}, LOST, "GROUP_UNKNOWN"),
        ({"stream": "none", "group": "g"}, LOST, "STREAM_UNKNOWN"),
    ],
    "AckRecords": [*GROUP[:1], *PLACES],
    "NackRecords": [
        *PLACES,
        ({**G, "places": [pb.Place()], "delay_ms": HUGE}, INVALID, "TTL_INVALID"),
        ({**G, "places": [pb.Place()], "reason": "r" * 129}, LARGE, "FAILURE_TOO_LARGE"),
    ],
    "ClaimRecords": [
        ({**G, "limit": 1_001}, INVALID, "LIMIT_INVALID"),
        ({**G, "idle_ms": HUGE}, INVALID, "TTL_INVALID"),
    ],
    "CommitOffsets": PLACES,
    "SeekGroup": [
        ({**G}, INVALID, "TARGET_INVALID"),
        ({**G, "offset": 1, "partition": 256}, LOST, "PARTITION_UNKNOWN"),
    ],
}


async def begin(node: Node) -> list[int]:
    """Create a stream with a group; return where the logs end."""
    await node.stream.CreateStream(pb.CreateStreamRequest(stream=S))
    await append(node, b"1")
    await node.stream.CreateGroup(pb.CreateGroupRequest(**G))
    return ends(node)


def ends(node: Node) -> list[int]:
    return [driver.shard.log.last_index for driver in node.context.drivers.values()]


def test_what_is_wrong_in_itself_is_refused_for_a_stable_reason_and_not_written(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        before = await begin(node)
        assert set(BAD) == {each.name for each in pb.DESCRIPTOR.services_by_name["Stream"].methods}
        for method, cases in BAD.items():
            request_type = pb.DESCRIPTOR.services_by_name["Stream"].methods_by_name[method]
            request = getattr(pb, request_type.input_type.name)
            for fields, kind, reason in cases:
                call = getattr(node.stream, method)(request(**fields))
                error = await refusal(call.read() if method == "Tail" else call)
                assert (error.reason, type(error)) == (reason, kind), (method, fields)
        assert ends(node) == before

    on_a_node(tmp_path, test)


def test_what_the_state_refuses_has_its_reason(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await begin(node)
        unknown = pb.AppendRecordsRequest(stream="none{t}", records=new(b""))
        other = pb.AppendRecordsRequest(stream=S, records=new(b"", partition=9))
        message = pipeline.ExecuteRequest()
        for each in (unknown, other):
            message.operations.add(append_records=each)
        found = [each.error for each in (await node.pipeline.ExecuteOnce(message)).results]
        assert [each.reason for each in found] == ["STREAM_UNKNOWN", "PARTITION_UNKNOWN"]
        error = await refusal(node.stream.AppendRecords(unknown))
        assert (type(error), error.reason) == (LOST, "STREAM_UNKNOWN")
        many = pb.AppendRecordsRequest(stream=S, records=[*new(b"fine"), other.records[0]])
        fine, refused = (await node.stream.AppendRecords(many)).results
        assert fine.offset
        assert (refused.offset, refused.error.reason) == (0, "PARTITION_UNKNOWN")
        exists = await refusal(node.stream.CreateStream(pb.CreateStreamRequest(stream=S)))
        assert (type(exists), exists.reason) == (errors.AlreadyExists, "STREAM_EXISTS")
        exists = await refusal(node.stream.CreateGroup(pb.CreateGroupRequest(**G)))
        assert (type(exists), exists.reason) == (errors.AlreadyExists, "GROUP_EXISTS")
        edge = node.context.edge
        assert edge is not None
        elsewhere = next(
            name
            for name in map(str, range(100))
            if edge.find_shard(name.encode()) != edge.find_shard(S.encode())
        )
        for name, reason in ((elsewhere, "SEVERAL_SHARDS"), ("d{t}", "DEAD_LETTER_STREAM_UNKNOWN")):
            config = pb.GroupConfig(max_deliveries=1, dead_letter_stream=name)
            request = pb.CreateGroupRequest(stream=S, group="h", config=config)
            assert (await refusal(node.stream.CreateGroup(request))).reason == reason
        lost = pb.HeartbeatGroupRequest(**G, member_id=1)
        assert (await refusal(node.stream.HeartbeatGroup(lost))).reason == "MEMBER_UNKNOWN"

    on_a_node(tmp_path, test)
