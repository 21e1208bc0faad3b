"""Writes that are answered before they are applied: which there are, in every model.

docs/guarantees.md names them. All others are refused before anything is written.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from onelog import AsyncClient, errors
from onelog.client.values import Producer
from onelog.v1 import admin_pb2, common_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import queue_pb2 as q
from onelog.v1 import stream_pb2 as s
from onelog.v1 import timeseries_pb2 as ts
from tests.node.services.nodes import Node, eventually, refusal, run, single
from tests.node.services.streams import on_a_node
from tests.node.services.test_timeseries_service import FOREVER, points

ASYNC = common_pb2.DURABILITY_ASYNC
Operation = pipeline.Operation


def options(**fields: Any) -> common_pb2.WriteOptions:
    return common_pb2.WriteOptions(durability=ASYNC, **fields)


async def prepare(node: Node) -> None:
    await node.queue.CreateQueue(q.CreateQueueRequest(queue="q"))
    await node.stream.CreateStream(s.CreateStreamRequest(stream="s", partition_count=2))


def early() -> dict[str, Operation]:
    """Return a write of every kind whose answer says nothing that only apply knows."""
    rich = q.NewMessage(body=b"2", priority=3, delay_ms=1, group=b"g", tenant=b"t", ttl_ms=60_000)
    rich.headers.add(name="h", value=b"v")
    record = s.NewRecord(value=b"r", key=b"k", tag="t")
    record.headers.add(name="h", value=b"v")
    columns = points([10**9], {"v": [1.0]})
    return {
        "put": Operation(put=kv.PutRequest(key=b"a", value=b"1")),
        "put_ttl": Operation(put=kv.PutRequest(key=b"b", value=b"1", ttl_ms=60_000)),
        "batch_put": Operation(
            batch_put=kv.BatchPutRequest(keys=[b"c", b"d"], values=[b"1", b"2"])
        ),
        "enqueue": Operation(
            enqueue=q.EnqueueRequest(queue="q", messages=[q.NewMessage(body=b"1"), rich])
        ),
        "append_records": Operation(
            append_records=s.AppendRecordsRequest(
                stream="s", records=[record, s.NewRecord(value=b"p", partition=1)]
            )
        ),
        "write_points": Operation(
            write_points=ts.WritePointsRequest(measurement="m", series=[columns])
        ),
    }


def late() -> dict[str, Operation]:
    """Return writes whose answer is the result of apply, or may be."""
    message = q.NewMessage(body=b"1", dedup_id=b"d")
    producer = s.Producer(producer_id=1, sequence=1)
    session = common_pb2.Session(session_id=1, sequence=1)
    transaction = pipeline.TransactRequest()
    transaction.operations.add().put.CopyFrom(kv.PutRequest(key=b"x", value=b"1"))
    return {
        "expected": Operation(put=kv.PutRequest(key=b"x", value=b"1", expected_version=0)),
        "lease": Operation(put=kv.PutRequest(key=b"x", value=b"1", lease_id=7)),
        "session": Operation(
            put=kv.PutRequest(key=b"x", value=b"1", options=options(session=session))
        ),
        "delete": Operation(delete=kv.DeleteRequest(key=b"x")),
        "count": Operation(count=kv.CountRequest(key=b"x", add=1)),
        "touch": Operation(touch=kv.TouchRequest(key=b"x", ttl_ms=1)),
        "append": Operation(append=kv.AppendRequest(key=b"x", data=b"1")),
        "transact": Operation(transact=transaction),
        "dedup": Operation(enqueue=q.EnqueueRequest(queue="q", messages=[message])),
        "queue_lease": Operation(lease=q.LeaseRequest(queue="q", count=1)),
        "producer": Operation(
            append_records=s.AppendRecordsRequest(
                stream="s", records=[s.NewRecord(value=b"r")], producer=producer
            )
        ),
    }


METHODS: dict[str, Callable[[Node], Callable[[Any], Awaitable[Any]]]] = {
    "put": lambda node: node.kv.Put,
    "delete": lambda node: node.kv.Delete,
    "count": lambda node: node.kv.Count,
    "touch": lambda node: node.kv.Touch,
    "append": lambda node: node.kv.Append,
    "batch_put": lambda node: node.kv.BatchPut,
    "transact": lambda node: node.pipeline.Transact,
    "enqueue": lambda node: node.queue.Enqueue,
    "lease": lambda node: node.queue.Lease,
    "append_records": lambda node: node.stream.AppendRecords,
    "write_points": lambda node: node.ts.WritePoints,
}


def marked(operation: Operation) -> tuple[str, Any]:
    """Return the kind of an operation, and its request with the durability ASYNC."""
    kind = operation.WhichOneof("operation")
    assert kind is not None
    request = getattr(operation, kind)
    request.options.durability = ASYNC
    return kind, request


@pytest.mark.parametrize("way", ["unary", "piped"])
def test_every_model_takes_writes_whose_answer_does_not_depend_on_apply(
    tmp_path: Path, way: str
) -> None:
    async def test(node: Node) -> None:
        await prepare(node)
        answers: dict[str, Any] = {}
        for name, operation in early().items():
            kind, request = marked(operation)
            if way == "piped":
                message = pipeline.ExecuteRequest(operations=[operation])
                (result,) = (await node.pipeline.ExecuteOnce(message)).results
                assert not result.HasField("error"), (name, result.error)
                answers[name] = getattr(result, kind)
            else:
                answers[name] = await METHODS[kind](node)(request)
        last = max(answer.header.index for answer in answers.values()) + 2
        await node.kv.Put(kv.PutRequest(key=b"after", value=b"1"))
        reads = common_pb2.ReadOptions(min_index=last)
        for key, name in ((b"a", "put"), (b"b", "put_ttl"), (b"c", "batch_put")):
            got = await node.kv.Get(kv.GetRequest(key=key, options=reads))
            assert got.item.version == answers[name].header.index
        first, second = answers["enqueue"].results
        peeked = await node.queue.Peek(q.PeekRequest(queue="q", options=reads))
        assert {each.message_id for each in peeked.messages} == {
            first.message_id, second.message_id,
        }  # fmt: skip
        for result in answers["append_records"].results:
            asked = s.ReadRecordsRequest(stream="s", partition=result.partition, options=reads)
            page = await node.stream.ReadRecords(asked)
            assert result.offset in [each.offset for each in page.records]
        asked = ts.QueryRequest(measurement="m", field="v", **FOREVER)
        assert len((await node.ts.Query(asked)).groups) == 1

    on_a_node(tmp_path, test, shards=1)


@pytest.mark.parametrize("name", late())
def test_a_write_whose_answer_is_a_result_is_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    async def test(node: Node) -> None:
        await prepare(node)
        await node.queue.Enqueue(q.EnqueueRequest(queue="q", messages=[q.NewMessage(body=b"1")]))
        edge = node.context.edge
        assert edge is not None
        before = edge.replica(0).shard.log.last_index
        kind, request = marked(late()[name])
        error = await refusal(METHODS[kind](node)(request))
        assert (type(error), error.reason) == (errors.InvalidArgument, "ASYNC_NEEDS_RESULT")
        message = pipeline.ExecuteRequest(operations=[Operation(**{kind: request})])
        (result,) = (await node.pipeline.ExecuteOnce(message)).results
        assert result.error.reason == "ASYNC_NEEDS_RESULT"
        assert edge.replica(0).shard.log.last_index == before

    on_a_node(tmp_path, test, shards=1)


def test_what_apply_refuses_of_them_is_counted_by_reason(tmp_path: Path) -> None:
    """Nobody is told, so somebody has to see it."""

    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            config = q.QueueConfig(messages_max=1)
            await node.queue.CreateQueue(q.CreateQueueRequest(queue="full", config=config))
            await node.stream.CreateStream(s.CreateStreamRequest(stream="s"))
            limits = admin_pb2.NamespaceLimits(value_size_max=100)
            await node.admin.CreateNamespace(
                admin_pb2.CreateNamespaceRequest(namespace="small", limits=limits)
            )
            put = kv.PutRequest(key=b"k", value=bytes(101), namespace="small", options=options())
            await node.kv.Put(put)
            batch = kv.BatchPutRequest(keys=[b"k"], values=[bytes(101)], namespace="small")
            batch.options.CopyFrom(options())
            await node.kv.BatchPut(batch)
            messages = [q.NewMessage(body=b"%d" % number) for number in range(3)]
            enqueue = q.EnqueueRequest(queue="full", messages=messages, options=options())
            assert len((await node.queue.Enqueue(enqueue)).results) == 3
            records = [s.NewRecord(value=b"r", partition=9)]
            append = s.AppendRecordsRequest(stream="s", records=records, options=options())
            await node.stream.AppendRecords(append)
            for field, values in (("v", [1.0]), ("v", [True])):
                write = ts.WritePointsRequest(
                    measurement="m", series=[points([10**9], {field: values})], options=options()
                )
                await node.ts.WritePoints(write)
            # A refusal that its writer hears of is none of these.
            assert (await refusal(node.kv.Delete(kv.DeleteRequest(key=b"cg:k")))).reason
            expected = {
                "VALUE_TOO_LARGE": 1.0, "TRANSACTION_REFUSED": 1.0, "QUEUE_FULL": 2.0,
                "PARTITION_UNKNOWN": 1.0, "FIELD_TYPE_MISMATCH": 1.0,
            }  # fmt: skip

            async def counted() -> None:
                text = (await node.server.metrics.page()).decode()
                found = {
                    line.split('reason="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1])
                    for line in text.splitlines()
                    if line.startswith("onelog_async_refused_total{")
                }
                assert found == expected

            await eventually(counted)

    run(test())


def test_the_python_client_scoped_async_works_for_every_model(tmp_path: Path) -> None:
    """With prefer-async, writes that need a result wait for it."""

    async def test() -> None:
        async with (
            single(tmp_path, shards=1) as node,
            AsyncClient([node.endpoint], timeout_s=20) as client,
        ):
            await prepare(node)
            fast = client.scoped(durability="prefer-async")
            await fast.kv.put("a", "1")
            await fast.kv.put("a", "2", ttl_s=60)
            await fast.kv.put_many({"b": "1", "c": "2"})
            await fast.queue("q").enqueue("1")
            await fast.stream("s").append("r", key="k")
            await fast.ts.write("m", [10**9], {"v": [1.0]})
            assert await fast.kv.increment("n") == 1
            assert await fast.kv.delete("a")
            await fast.kv.put("x", "1", expected_version=0)
            with pytest.raises(errors.AlreadyExists):
                await fast.kv.put("x", "1", expected_version=0)
            sent = [await fast.queue("q").enqueue("d", dedup_id="d") for _ in range(2)]
            assert [each.deduplicated for each in sent] == [False, True]
            producer = Producer(7, 0, 1)
            kept = [await fast.stream("s").append("p", producer=producer) for _ in range(2)]
            assert [each.duplicate for each in kept] == [False, True]
            async with fast.transact() as batch:
                batch.put("y", "1")
            keys = [item.key async for item in client.kv.scan()]
            assert [key for key in keys if not key.startswith(b"_ts:")] == [
                b"b", b"c", b"n", b"x", b"y",
            ]  # fmt: skip

    run(test())
