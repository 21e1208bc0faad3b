"""Metrics of operations and contents, as Prometheus reads them from a real server."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.client.client import AsyncClient
from onelog.errors import OnelogError
from onelog.node.server import content_metrics
from onelog.projections.stream.commands import Retention
from onelog.projections.stream.limits import MARKS_PER_LIMIT
from onelog.projections.stream.partition import Partition
from onelog.projections.stream.tables import StreamIndexes
from onelog.v1 import kv_pb2, pipeline_pb2
from tests.documents import ROOT
from tests.node.services.nodes import Node, cluster, run, single

LINE = re.compile(r"^(onelog_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
METRIC = re.compile(r"\b(?:onelog|process)_\w+")
LABEL = re.compile(r'\w+="((?:[^"\\]|\\.)*)"')

Page = Callable[..., float]


async def read_page(node: Node) -> Page:
    """Return the values of a new page by name and values of labels, in any order."""
    node.server.metrics._page_s = float("-inf")  # or it might be a second old
    page = (await node.server.metrics.page()).decode()
    values = {
        (name, *sorted(LABEL.findall(labels))): float(value)
        for name, labels, value in LINE.findall(page)
    }
    return lambda name, *labels: values.get((f"onelog_{name}", *sorted(labels)), 0.0)


def test_operations_of_pipelines_are_counted_by_model_kind_and_reason(tmp_path: Path) -> None:
    """The client sends its calls in pipelines, so calls alone would show one method."""

    async def test() -> None:
        async with single(tmp_path, shards=1) as node, AsyncClient(node.endpoint) as client:
            await client.queue("jobs").create()
            before = await read_page(node)
            await asyncio.gather(
                *(client.kv.put(f"key{number}", "v" * 100) for number in range(20)),
                *(client.queue("jobs").enqueue("job") for _ in range(5)),
            )
            version = await client.kv.put("key0", "w")
            assert await client.kv.get("key0") is not None
            with pytest.raises(OnelogError) as refused:
                await client.kv.put("key0", "x", expected_version=version - 1)
            after = await read_page(node)

            def grown(name: str, *labels: str) -> float:
                return after(name, *labels) - before(name, *labels)

            count = "operation_seconds_count"
            puts = sum(grown(count, "kv", kind, "") for kind in ("put", "batch_put"))
            assert 2 <= puts <= 21, "some puts are one operation"
            assert 1 <= grown(count, "queue", "enqueue", "") <= 5
            assert grown(count, "kv", "get", "") == 1
            assert grown(count, "kv", "put", refused.value.reason) == 1
            sizes = [
                grown("operation_request_bytes_total", "kv", kind) for kind in ("put", "batch_put")
            ]
            assert 2_000 < sum(sizes) < 8_000
            assert after("operation_seconds_sum", "kv", "get", "") > 0

    run(test())


def test_a_forwarded_operation_is_counted_once(tmp_path: Path) -> None:
    """By the node that the client calls: it sees what the client waits for."""

    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            follower = next(each for each in nodes if not each.leads(0))
            put = kv_pb2.PutRequest(key=b"key", value=b"value")
            request = pipeline_pb2.ExecuteRequest(operations=[pipeline_pb2.Operation(put=put)])
            answer = await follower.pipeline.ExecuteOnce(request)
            assert answer.forwarded
            counts = [
                (await read_page(node))("operation_seconds_count", "kv", "put", "")
                for node in nodes
            ]
            assert sum(counts) == 1
            assert counts[nodes.index(follower)] == 1

    run(test())


def test_contents_are_shown_by_shard_and_the_largest_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_metrics, "NAMED_MAX", 2)
    monkeypatch.setattr(content_metrics, "OBJECTS_PER_TURN", 1)

    async def test() -> None:
        async with single(tmp_path, shards=1) as node, AsyncClient(node.endpoint) as client:
            for number in range(1, 4):
                queue = client.queue(f"q{number}")
                await queue.create()
                await queue.enqueue_many(["body"] * number)
            await client.queue("q3").lease(1)
            stream = client.stream("events")
            await stream.create()
            group = stream.group("workers")
            await group.create()
            await stream.append_many(["record"] * 7)
            await client.kv.put("key", "value")
            await client.ts.write("cpu", [1], {"busy": [0.5]}, tags={"host": "a"})

            page = await read_page(node)
            assert page("messages", "0", "ready") == 5
            assert page("messages", "0", "leased") == 1
            assert page("oldest_message_seconds", "0") >= 0
            assert page("queue_messages", "0", "default", "q3", "ready") == 2
            assert page("queue_messages", "0", "default", "q3", "leased") == 1
            assert page("queue_messages", "0", "default", "q2", "ready") == 2
            assert page("queue_messages", "0", "default", "q1", "ready") == 0, "only two have names"
            assert page("group_lag_records_max", "0") == 7
            assert page("group_lag_records", "0", "default", "events", "workers") == 7
            assert page("stream_records", "0") == 7
            assert page("keys", "0") >= 1
            assert page("series", "0") == 1
            assert page("sessions", "0") >= 1
            memory = node.context.drivers[0].shard.router.memory()
            assert page("memory_bytes", "0", "queue", "messages") > 0
            assert page("memory_bytes", "0", "kv", "records") > 0
            names = {"system": 0, "kv": 1, "queue": 2, "timeseries": 3, "stream": 4}
            for model, owner in names.items():
                shown = sum(page("memory_bytes", "0", model, kind) for kind in memory[owner])
                assert shown > 0, model

            assert page("watchers", "0") == 0
            async with client.watch() as watch:
                await client.kv.put("key", "seen")
                await anext(aiter(watch))
                assert (await read_page(node))("watchers", "0") == 1

            member = await group.join()
            records = await member.fetch(wait_s=30.0)
            await member.ack(records)
            assert (await read_page(node))("group_lag_records", "0", "default", "events",
                                           "workers") == 0  # fmt: skip

    run(test())


@given(
    st.one_of(
        st.lists(st.integers(1, 9), min_size=1, max_size=100),
        st.builds(lambda gap, count: [gap] * count, st.integers(1, 9), st.integers(1, 200)),
    ),
    st.integers(1, 4_000),
)
def test_the_estimate_of_a_lag_is_near_and_exact_at_the_ends(gaps: list[int], keep: int) -> None:
    """Off by at most a run of records, by one if they are evenly spread; 0 only at the end."""
    partition = Partition(StreamIndexes(), 1, 0, Retention(count_max=keep))
    offsets, offset = [], 1
    for gap in gaps:
        offset += gap
        offsets.append(offset)
        partition.add(offset, 0, 1)
    off_max = 1 if len(set(gaps)) == 1 else keep // MARKS_PER_LIMIT + 1
    for cursor in range(offset + 3):
        true = sum(each >= cursor for each in offsets)
        found = partition.estimate_after(cursor)
        assert (found == 0) == (true == 0)
        assert abs(found - true) <= off_max
    assert partition.estimate_after(0) == len(offsets)


def test_the_dashboard_shows_metrics_that_exist(tmp_path: Path) -> None:
    """A panel with a wrong name would stay empty, and look like silence."""
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "onelog.json").read_text())
    queries = [target["expr"] for each in dashboard["panels"] for target in each.get("targets", ())]
    wanted = {name for query in queries for name in METRIC.findall(query)}
    wanted |= set(METRIC.findall(json.dumps(dashboard["templating"])))

    async def test() -> None:
        async with single(tmp_path, shards=1) as node, AsyncClient(node.endpoint) as client:
            await client.queue("jobs").create()
            await client.queue("jobs").enqueue("job")
            await client.stream("events").create()
            await client.stream("events").group("workers").create()
            await client.admin.take_snapshot(0)
            node.server.metrics.rpc_refused.labels("TOO_LARGE").inc()
            page = (await node.server.metrics.page()).decode()
            shown = {name for name, _, _ in SAMPLE.findall(page)}
            assert len(wanted) > 20
            assert wanted - shown == set()

    run(test())
