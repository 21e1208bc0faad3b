"""G10: the calls of a block are part of a trace, through the pipeline and without it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest

from onelog import AsyncClient, Client, traced
from onelog.client.batch import GET, Batch, Call
from onelog.client.lanes import ReadLane
from onelog.client.observing import add_parents
from onelog.client.options import ClientOptions
from onelog.traceparent import PARENTS_MAX
from onelog.v1 import pipeline_pb2
from tests.node.services.nodes import cluster, run, single, until
from tests.node.services.otlp import PARENT, SPAN, TRACE, UNSAMPLED, servers, spans_of, traced_to
from tests.onelog.client.serving import serving

EXECUTE = "onelog.v1.Pipeline/Execute"


def parent_of(number: int) -> str:
    return f"00-{number:032x}-{number:016x}-01"


def test_calls_of_a_block_are_part_of_its_trace_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"

    async def test() -> None:
        settings = traced_to(path)
        async with single(tmp_path, trace=settings) as node, AsyncClient(node.endpoint) as client:
            await client.kv.put("before", "1")
            with traced(PARENT):
                await client.kv.put("a", "1")
                await client.kv.get("a")
                await client.queue("jobs").create()
                assert [item.key async for item in client.kv.scan()] == [b"a", b"before"]
                with traced(None):
                    await client.kv.put("b", "1")
                with traced("malformed"):
                    await client.kv.put("b", "1")
                with traced(UNSAMPLED):
                    await client.kv.put("b", "1")
            await client.kv.put("after", "1")
            await client.kv.get("after")
            await client.queue("after").create()

    run(test())
    found = servers(spans_of(path))
    # Sessions are opened where they are first needed: that is a part of what it takes.
    names = [span.name for span in found if not span.name.endswith("/OpenSession")]
    assert names == [EXECUTE, EXECUTE, "onelog.v1.Queue/CreateQueue", "onelog.v1.KV/Scan"]
    assert {(span.trace_id, span.parent_id) for span in found} == {(TRACE, SPAN)}


def test_an_unsampled_block_is_not_traced_whatever_the_ratio(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"

    async def test() -> None:
        settings = traced_to(path, 1.0)
        async with single(tmp_path, trace=settings) as node, AsyncClient(node.endpoint) as client:
            with traced(UNSAMPLED):
                await client.kv.put("a", "1")
                await client.kv.history("a")
            await client.kv.delete("a")

    run(test())
    names = [span.name for span in servers(spans_of(path))]
    assert names.count(EXECUTE) == 1  # the last one
    assert "onelog.v1.KV/GetHistory" not in names


def test_what_a_client_does_by_itself_is_in_nobody_s_trace(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    kept = b'onelog_rpc_seconds_count{code="OK",method="KeepSession",'

    async def test() -> None:
        async with (
            single(tmp_path, shards=1, trace=traced_to(path)) as node,
            AsyncClient(node.endpoint, options=ClientOptions(session_ttl_s=1.0)) as client,
        ):
            with traced(PARENT):
                await client.kv.put("a", "1")
            await until(lambda: kept in generate_latest(node.server.metrics.registry))

    run(test())
    names = {span.name.partition("/")[2] for span in servers(spans_of(path))}
    assert names == {"OpenSession", "Execute"}


def test_callers_whose_operations_travel_together_are_all_named(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"

    async def test() -> None:
        settings = traced_to(path)
        async with (
            single(tmp_path, shards=1, trace=settings) as node,
            AsyncClient(node.endpoint) as client,
        ):
            await client.kv.put("before", "1")

            async def put(number: int) -> None:
                with traced(parent_of(number)):
                    await client.kv.put("k", "v")
                    await asyncio.sleep(0)

            await asyncio.gather(*map(put, (1, 2, 2, 3)))

    run(test())
    (span,) = servers(spans_of(path))
    assert (span.trace_id, span.parent_id) == (f"{1:032x}", f"{1:016x}")
    assert span.links == tuple((f"{each:032x}", f"{each:016x}") for each in (2, 3))
    assert span.attributes["onelog.operations"] == 4


def test_a_message_that_is_forwarded_stays_in_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"

    async def test() -> None:
        async with cluster(tmp_path, shards=1, trace=traced_to(path)) as nodes:
            follower = next(node for node in nodes if not node.leads(0))
            async with AsyncClient(follower.endpoint) as client:
                await client.connect()
                client._connection.topology.redirect(0, follower.endpoint)
                with traced(PARENT):
                    await client.kv.put("a", "1")

    run(test())
    found = {span.span_id: span for span in servers(spans_of(path))}
    (last,) = (span for span in found.values() if span.name.endswith("/ExecuteOnce"))
    assert last.trace_id == TRACE
    assert found[last.parent_id].name == EXECUTE
    assert found[last.parent_id].parent_id == SPAN
    assert found[last.parent_id].resource != last.resource


def test_a_message_names_so_many_callers_and_keeps_them_when_it_is_sent_again() -> None:
    batch = Batch()
    for number in range(1, 2 * PARENTS_MAX):
        add_parents(batch.request, [parent_of(number)])
        add_parents(batch.request, [parent_of(1)])
    wanted = [parent_of(number) for number in range(1, PARENTS_MAX + 1)]
    assert list(batch.request.traceparent) == wanted
    loop = asyncio.new_event_loop()
    for is_done in (True, False):
        future: asyncio.Future[None] = loop.create_future()
        if is_done:
            future.set_result(None)
        batch.calls.append(Call(GET, 0, ("", b"a", None), future, 0.0))
    batch.build()
    loop.close()
    assert len(batch.request.operations) == 1
    assert list(batch.request.traceparent) == wanted
    assert isinstance(batch.request, pipeline_pb2.ExecuteRequest)


def test_a_read_that_another_lane_takes_over_stays_in_its_trace() -> None:
    """It is taken over in a callback that began in somebody else's block."""
    loop = asyncio.new_event_loop()
    connection: Any = SimpleNamespace(
        loop=loop,
        options=ClientOptions(),
        began=lambda _batch, _lane: None,
        flush_soon=lambda _lane: None,
    )
    first, second = (ReadLane(connection, f"127.0.0.1:{port}") for port in (1, 2))
    with traced(PARENT):
        first.call(GET, 0, ("", b"a", None), 1, 1.0)
    batch = first._open
    assert batch is not None
    with traced(parent_of(1)):
        second.adopt(batch.calls[0], batch)
    assert second._open is not None
    assert list(second._open.request.traceparent) == [PARENT]
    loop.close()


def test_the_blocking_client_is_traced_too(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    flags = ("--trace-file", str(path), "--trace-ratio", "0")
    with serving(tmp_path / "data", *flags) as endpoint, Client(endpoint) as client:
        client.kv.put("before", "1")
        with traced(PARENT):
            client.kv.put("a", "1")
        client.kv.put("after", "1")
    found = [span for span in servers(spans_of(path)) if span.name == EXECUTE]
    assert [(span.trace_id, span.parent_id) for span in found] == [(TRACE, SPAN)]
