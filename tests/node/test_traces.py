"""G10: traces of requests, as a stock collector reads them, through the API of real nodes."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from onelog.node import tracing
from onelog.node.config.schema import RaftSettings
from onelog.node.errors import ConfigError
from onelog.v1 import kv_pb2, pipeline_pb2
from tests.node.services.nodes import cluster, parse_config, refusal, run, single, start, until
from tests.node.services.otlp import (
    PARENT,
    SERVER,
    SPAN,
    TRACE,
    UNSAMPLED,
    Found,
    servers,
    spans_of,
    traced_to,
)

PUT = kv_pb2.PutRequest(key=b"k", value=b"v")
GET = kv_pb2.GetRequest(key=b"k")
METADATA = (("traceparent", PARENT),)
# What is asserted is one attempt: a busy machine must not have its leader deposed meanwhile.
CALM = RaftSettings(election_s_min=2.0, election_s_max=3.0, leader_silence_s_max=5.0)


def children(spans: list[Found], parent: Found) -> list[Found]:
    found = [span for span in spans if span.parent_id == parent.span_id]
    assert all(span.trace_id == parent.trace_id for span in found)
    return found


def test_a_request_with_a_traceparent_is_a_part_of_that_trace(tmp_path: Path) -> None:
    """The server's span is a child of the caller's, and says what it waited for."""
    path = tmp_path / "spans.jsonl"

    async def test() -> tuple[int, str]:
        async with single(tmp_path, trace=traced_to(path)) as node:
            await node.kv.Put(PUT)  # of no trace
            answer = await node.kv.Put(PUT, metadata=METADATA)
            await node.kv.Get(GET, metadata=METADATA)
            await node.kv.Get(GET)
            return answer.header.shard, str(node.context.node_id)

    began_ns = time.time_ns()
    shard, node_id = asyncio.run(test())
    spans = spans_of(path)
    assert len(spans) == 4
    put, get = servers(spans)
    assert [put.name, get.name] == ["onelog.v1.KV/Put", "onelog.v1.KV/Get"]
    for span in (put, get):
        assert (span.trace_id, span.parent_id, span.reason) == (TRACE, SPAN, "")
        assert span.attributes == {
            "rpc.system": "grpc",
            "rpc.service": "onelog.v1.KV",
            "rpc.method": span.name.partition("/")[2],
            "rpc.grpc.status_code": 0,
            "onelog.shard": shard,
        }
        assert span.resource == {
            "service.name": "onelog",
            "service.instance.id": f"{node_id}/0",
            "onelog.node": "n1",
        }
        (child,) = children(spans, span)
        assert began_ns <= span.started_ns <= child.started_ns
        assert child.ended_ns <= span.ended_ns <= time.time_ns()
        assert child.attributes == {"onelog.shard": shard}
    (commit,), (read,) = children(spans, put), children(spans, get)
    assert (commit.name, read.name) == ("onelog.commit", "onelog.read")
    assert commit.started_ns <= commit.events["proposed"] <= commit.ended_ns
    assert len({span.span_id for span in spans} | {SPAN}) == 5


def test_a_forwarded_request_is_one_trace_over_both_nodes(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"  # of all three nodes: lines are whole

    async def test() -> tuple[str, str]:
        async with cluster(tmp_path, shards=1, raft=CALM, trace=traced_to(path, 1.0)) as nodes:
            leader = next(node for node in nodes if node.leads(0))
            follower = next(node for node in nodes if not node.leads(0))
            await follower.kv.Put(PUT, metadata=METADATA)
            put = pipeline_pb2.Operation(put=PUT)
            message = pipeline_pb2.ExecuteRequest(operations=[put])
            stream = follower.pipeline.Execute(metadata=METADATA)
            await stream.write(message)
            assert (await stream.read()).results[0].put.header.index
            await stream.done_writing()
            # Whoever took it in has decided that it is not traced.
            follower.context.tracer._ratio = 0.0  # type: ignore[union-attr]
            await follower.kv.Put(PUT)
            return follower.context.node_name, leader.context.node_name

    follower, leader = asyncio.run(test())
    spans = spans_of(path)
    firsts = [span for span in servers(spans) if span.parent_id == SPAN]
    assert [(span.name, span.resource["onelog.node"]) for span in firsts] == [
        ("onelog.v1.KV/Put", follower),
        ("onelog.v1.Pipeline/Execute", follower),
    ]
    for first, name in zip(
        firsts, ("onelog.v1.KV/Put", "onelog.v1.Pipeline/ExecuteOnce"), strict=True
    ):
        assert first.attributes["onelog.shard"] == 0
        (second,) = children(spans, first)
        assert (second.name, second.kind, second.resource["onelog.node"]) == (name, SERVER, leader)
        assert [each.name for each in children(spans, second)] == ["onelog.commit"]
    assert len(spans) == 6
    assert {span.trace_id for span in spans} == {TRACE}


def test_a_node_that_does_not_trace_passes_a_trace_on(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"

    async def test() -> str:
        async with cluster(tmp_path, shards=1, raft=CALM, trace=traced_to(path)) as nodes:
            follower = next(node for node in nodes if not node.leads(0))
            follower.context.edge.calls.tracer = None  # type: ignore[union-attr]
            await follower.kv.Put(PUT, metadata=METADATA)
            stream = follower.pipeline.Execute()
            put = pipeline_pb2.Operation(put=PUT)
            await stream.write(pipeline_pb2.ExecuteRequest(operations=[put], traceparent=[PARENT]))
            await stream.read()
            return next(node for node in nodes if node.leads(0)).context.node_name

    leader = asyncio.run(test())
    found = [(s.name, s.trace_id, s.parent_id, s.resource["onelog.node"])
             for s in servers(spans_of(path))]  # fmt: skip
    assert found == [
        ("onelog.v1.KV/Put", TRACE, SPAN, leader),
        ("onelog.v1.Pipeline/ExecuteOnce", TRACE, SPAN, leader),
    ]


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_without_a_parent_the_ratio_decides_and_with_one_its_flag(
    tmp_path: Path, ratio: float
) -> None:
    path = tmp_path / "spans.jsonl"

    async def test() -> None:
        async with single(tmp_path, trace=traced_to(path, ratio)) as node:
            await node.kv.Put(PUT)
            for malformed in (
                PARENT.upper(),
                PARENT + "-more",
                "00-" + "0" * 32 + f"-{SPAN}-01",
                "",
            ):
                await node.kv.Put(PUT, metadata=(("traceparent", malformed),))
            await node.kv.Delete(
                kv_pb2.DeleteRequest(key=b"k"), metadata=(("traceparent", UNSAMPLED),)
            )
            await node.kv.Get(GET, metadata=METADATA)

    asyncio.run(test())
    found = servers(spans_of(path))
    last = found.pop()
    assert (last.name, last.parent_id) == ("onelog.v1.KV/Get", SPAN)
    roots = 5 if ratio else 0
    assert [(span.name, span.parent_id) for span in found] == [("onelog.v1.KV/Put", "")] * roots
    assert len({span.trace_id for span in found} | {TRACE}) == len(found) + 1


def test_a_refused_request_says_why(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"

    async def test() -> None:
        async with single(tmp_path, trace=traced_to(path)) as node:
            missing = kv_pb2.TouchRequest(key=b"missing", ttl_ms=1000)
            error = await refusal(node.kv.Touch(missing, metadata=METADATA))
            assert error.reason == "KEY_NOT_FOUND"
            touch = pipeline_pb2.Operation(touch=missing)
            put = pipeline_pb2.Operation(put=PUT)
            request = pipeline_pb2.ExecuteRequest(operations=[put, touch])
            await node.pipeline.ExecuteOnce(request, metadata=METADATA)
            too_many = pipeline_pb2.ExecuteRequest(operations=[put] * 10_001)
            assert (await refusal(node.pipeline.ExecuteOnce(too_many, metadata=METADATA))).reason

    asyncio.run(test())
    found = servers(spans_of(path))
    assert [(span.reason, span.attributes["rpc.grpc.status_code"]) for span in found] == [
        ("KEY_NOT_FOUND", 5),
        ("KEY_NOT_FOUND", 5),
        ("LIMIT_INVALID", 3),
    ]
    assert found[1].attributes["onelog.operations"] == 2


def test_messages_of_a_pipeline_have_a_span_each_and_link_to_all_who_called(
    tmp_path: Path,
) -> None:
    path = tmp_path / "spans.jsonl"
    others = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 30)]

    async def messages() -> AsyncIterator[pipeline_pb2.ExecuteRequest]:
        operations = [pipeline_pb2.Operation(get=GET)]
        for number, parents in enumerate(([], [UNSAMPLED, PARENT, *others], [PARENT], ["no"])):
            yield pipeline_pb2.ExecuteRequest(
                request_id=number, operations=operations, traceparent=parents
            )

    async def test() -> None:
        async with single(tmp_path, trace=traced_to(path)) as node:
            answers = [answer async for answer in node.pipeline.Execute(messages())]
            assert len(answers) == 4

    asyncio.run(test())
    spans = spans_of(path)
    many, one = servers(spans)
    for span in (many, one):
        assert (span.name, span.trace_id) == ("onelog.v1.Pipeline/Execute", TRACE)
        assert [each.name for each in children(spans, span)] == ["onelog.read"]
    # Sixteen in all are looked at.
    assert many.links == tuple((each[3:35], each[36:52]) for each in others[:14])
    assert one.links == ()


def test_a_stream_has_one_span_that_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"

    async def test() -> None:
        async with single(tmp_path, trace=traced_to(path)) as node:
            await node.kv.Put(PUT)
            pages = node.kv.Scan(kv_pb2.ListRequest(), metadata=METADATA)
            assert [item.key async for page in pages for item in page.items] == [b"k"]
            watch = node.pipeline.Watch(
                pipeline_pb2.WatchRequest(progress_ms=1000), metadata=METADATA
            )
            await watch.read()
            watch.cancel()
            await until(lambda: len(servers(spans_of(path))) == 2)

    run(test())
    assert [(span.name, span.reason) for span in spans_of(path)] == [
        ("onelog.v1.KV/Scan", ""),
        ("onelog.v1.Pipeline/Watch", "CANCELLED"),
    ]


# What is bounded, and what goes wrong


def test_spans_that_find_no_room_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "SPANS_WAITING_MAX", 5)
    monkeypatch.setattr(tracing, "FLUSH_S", 600.0)
    path = tmp_path / "spans.jsonl"

    async def test() -> bytes:
        async with single(tmp_path, trace=traced_to(path)) as node:
            for _ in range(4):  # two spans each
                await node.kv.Put(PUT, metadata=METADATA)
            return generate_latest(node.server.metrics.registry)

    text = asyncio.run(test())
    assert b'onelog_trace_spans_dropped_total{reason="FULL"} 3.0' in text
    assert len(spans_of(path)) == 5


def test_a_full_file_makes_room_once_and_older_spans_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 4000
    monkeypatch.setattr(tracing, "FILE_BYTES_MAX", limit)
    monkeypatch.setattr(tracing, "LINE_SPANS_MAX", 1)
    directory = tmp_path / "traces"
    directory.mkdir()
    path = directory / "spans.jsonl"

    async def test() -> None:
        for _ in range(2):  # the second node goes on in the file of the first
            async with single(tmp_path, trace=traced_to(path)) as node:
                for _ in range(15):
                    await node.kv.Get(GET, metadata=METADATA)

    asyncio.run(test())
    older = directory / "spans.jsonl.1"
    assert sorted(directory.iterdir()) == [path, older]
    assert 0 < path.stat().st_size <= limit
    assert 0 < older.stat().st_size <= limit
    kept = spans_of(older) + spans_of(path)
    assert 6 < len(kept) < 30
    assert [span.ended_ns for span in kept] == sorted(span.ended_ns for span in kept)


def test_spans_that_cannot_be_written_are_counted_and_concern_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_file: object, _line: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tracing, "LINE_SPANS_MAX", 1)
    monkeypatch.setattr(tracing.SpanFile, "write", full)

    async def test() -> None:
        async with single(tmp_path, trace=traced_to(tmp_path / "spans.jsonl")) as node:
            for _ in range(3):
                await node.kv.Get(GET, metadata=METADATA)
            lost = b'onelog_trace_spans_dropped_total{reason="WRITE_FAILED"} 6.0'
            await until(lambda: lost in generate_latest(node.server.metrics.registry))
            await node.kv.Get(GET, metadata=METADATA)

    run(test())
    said = [each for each in caplog.messages if "spans are lost" in each]
    assert len(said) == 1
    assert "No space left" in said[0]


def test_a_file_that_cannot_be_opened_ends_the_node_at_its_start(tmp_path: Path) -> None:
    async def refused(path: Path) -> str:
        with pytest.raises(ConfigError, match=r"trace\.file is .*; name another file") as error:
            await start(parse_config(tmp_path / "n1", trace=traced_to(path)))
        return str(error.value)

    assert "No such file or directory" in asyncio.run(refused(tmp_path / "missing" / "spans"))
    assert "it is no file" in asyncio.run(refused(tmp_path))
    assert "it is no file" in asyncio.run(refused(Path("/dev/null")))
