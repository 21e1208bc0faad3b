"""Names that must be in one shard: by their tags, and never by the luck of a hash."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from onelog import AsyncClient, errors
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import queue_pb2 as q
from onelog.v1 import stream_pb2 as s
from onelog.v1 import timeseries_pb2 as ts
from tests.node.services.nodes import Node, refusal, run, single

Attempt = Callable[[Node, str, str], Awaitable[Any]]
"""A request that names two things."""


async def txn(node: Node, first: str, second: str) -> None:
    request = kv.TxnRequest(conditions=[kv.Condition(key=first.encode(), exists=False)])
    request.then.add().put.CopyFrom(kv.PutRequest(key=second.encode(), value=b"v"))
    await node.kv.Txn(request)


async def transact(node: Node, first: str, second: str) -> None:
    await node.pipeline.Transact(transaction(first, second))


def transaction(first: str, second: str, **fields: Any) -> pipeline.TransactRequest:
    request = pipeline.TransactRequest(**fields)
    for name in (first, second):
        request.operations.add().put.CopyFrom(kv.PutRequest(key=name.encode(), value=b"v"))
    return request


async def piped(node: Node, first: str, second: str) -> None:
    request = pipeline.ExecuteRequest()
    request.operations.add(transact=transaction(first, second))
    (result,) = (await node.pipeline.ExecuteOnce(request)).results
    if result.HasField("error"):
        raise errors.InvalidArgument(result.error.message, reason=result.error.reason)


async def dead_queue(node: Node, first: str, second: str) -> None:
    config = q.QueueConfig(max_deliveries=3, dead_letter_queue=second)
    await node.queue.CreateQueue(q.CreateQueueRequest(queue=second))
    await node.queue.CreateQueue(q.CreateQueueRequest(queue=first, config=config))


async def dead_stream(node: Node, first: str, second: str) -> None:
    for name in (first, second):
        await node.stream.CreateStream(s.CreateStreamRequest(stream=name))
    config = s.GroupConfig(max_deliveries=3, dead_letter_stream=second)
    request = s.CreateGroupRequest(stream=first, group="g", config=config)
    await node.stream.CreateGroup(request)


async def rule(node: Node, first: str, second: str) -> None:
    for name in (first, second):
        await node.ts.CreateMeasurement(ts.CreateMeasurementRequest(measurement=name))
    wanted = ts.Rule(
        name="r", window_ns=10**9, aggregates=[ts.AGGREGATE_MEAN], target_measurement=second
    )
    await node.ts.SetRule(ts.SetRuleRequest(measurement=first, rule=wanted))


ATTEMPTS: dict[str, Attempt] = {
    "keys": txn, "names": transact, "queues": dead_queue, "streams": dead_stream,
    "measurements": rule,
}  # fmt: skip


def neighbours(node: Node) -> tuple[str, str]:
    """Return two names with different tags that happen to be in one shard."""
    edge = node.context.edge
    assert edge is not None
    shard = edge.find_shard(b"work")
    found = (f"work-{number}" for number in range(100))
    return "work", next(name for name in found if edge.find_shard(name.encode()) == shard)


async def caught(attempt: Awaitable[Any]) -> errors.OnelogError:
    try:
        return await refusal(attempt)
    except errors.OnelogError as error:
        return error


@pytest.mark.parametrize("nouns", ATTEMPTS)
def test_names_with_different_tags_are_refused_also_if_they_are_in_one_shard(
    tmp_path: Path, nouns: str
) -> None:
    """A program that works must not stop working because of another name."""

    async def test() -> None:
        async with single(tmp_path, shards=2) as node:
            first, second = neighbours(node)
            error = await caught(ATTEMPTS[nouns](node, first, second))
            assert (type(error), error.reason) == (errors.InvalidArgument, "SEVERAL_SHARDS")
            assert error.message.startswith(f"the {nouns} {first} and {second} may be in")
            # The names that the message shows work.
            shown = re.search(r"such as (\S+) and (\S+)$", error.message)
            assert shown is not None, error.message
            assert shown.groups() == (first, f"{second}{{{first}}}")
            await ATTEMPTS[nouns](node, "other{x}", "another{x}")
            await ATTEMPTS[nouns](node, "fresh", "fresh.dead{fresh}")

    run(test())


@pytest.mark.parametrize("nouns", ATTEMPTS)
def test_a_database_of_one_shard_takes_any_names_together(tmp_path: Path, nouns: str) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await ATTEMPTS[nouns](node, "one", "two{x}")

    run(test())


def test_the_python_client_and_pipelines_refuse_the_same(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            single(tmp_path, shards=2) as node,
            AsyncClient([node.endpoint], timeout_s=20) as client,
        ):
            first, second = neighbours(node)
            error = await caught(piped(node, first, second))
            assert error.reason == "SEVERAL_SHARDS"
            with pytest.raises(errors.InvalidArgument, match="SEVERAL_SHARDS"):
                async with client.transact() as batch:
                    batch.put(first, b"").put(second, b"")
            txn = client.kv.txn()
            txn.then.put(first, b"")
            txn.then.put(second, b"")
            with pytest.raises(errors.InvalidArgument, match="SEVERAL_SHARDS"):
                await txn.commit()
            async with client.transact() as batch:
                batch.put("a{x}", b"").put("b{x}", b"")
            # Many puts are not a transaction: they go by shard, whatever their tags.
            await client.kv.put_many({f"key-{number}": b"v" for number in range(50)})

    run(test())


def test_a_program_that_computes_shards_may_write_by_shard(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=2) as node:
            first, second = neighbours(node)
            answer = await node.pipeline.Transact(transaction(first, second, by_shard=True))
            assert len(answer.results) == 2
            edge = node.context.edge
            assert edge is not None
            apart = next(
                f"far-{number}"
                for number in range(100)
                if edge.find_shard(b"far-%d" % number) != edge.find_shard(first.encode())
            )
            error = await refusal(node.pipeline.Transact(transaction(first, apart, by_shard=True)))
            assert error.reason == "SEVERAL_SHARDS"

    run(test())
