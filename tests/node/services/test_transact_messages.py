"""Transactions as operations of a message: proposed together, atomic each by itself."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onelog.node.replica.driver import ShardDriver
from onelog.v1 import common_pb2, queue_pb2, stream_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from tests.node.services.nodes import WAIT_S, Node, cluster, run, single

Operation = pipeline.Operation
Part = pipeline.TransactOperation
ASYNC = common_pb2.WriteOptions(durability=common_pb2.DURABILITY_ASYNC)


def put(key: bytes, value: bytes = b"v", **fields: Any) -> kv.PutRequest:
    return kv.PutRequest(key=key, value=value, **fields)


def count(key: bytes, add: int = 1) -> kv.CountRequest:
    return kv.CountRequest(key=key, add=add)


def parts(*requests: Any) -> list[pipeline.TransactOperation]:
    """Return operations of a transaction that are puts and counts."""
    return [
        Part(put=each) if isinstance(each, kv.PutRequest) else Part(count=each) for each in requests
    ]


def transact(*requests: Any, **fields: Any) -> pipeline.Operation:
    request = pipeline.TransactRequest(operations=parts(*requests), **fields)
    return Operation(transact=request)


def message(*operations: pipeline.Operation, **fields: Any) -> pipeline.ExecuteRequest:
    return pipeline.ExecuteRequest(operations=operations, **fields)


async def value(node: Node, key: bytes) -> bytes | None:
    answer = await node.kv.Get(kv.GetRequest(key=key))
    return answer.item.value if answer.HasField("item") else None


@pytest.fixture
def proposals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries were proposed at a time."""
    found: list[int] = []
    propose: Any = ShardDriver.propose

    def noted(self: ShardDriver, drafts: Any, *rest: Any) -> Any:
        found.append(len(drafts))
        return propose(self, drafts, *rest)

    monkeypatch.setattr(ShardDriver, "propose", noted)
    return found


def test_transactions_and_the_writes_around_them_are_one_proposal_in_order(
    tmp_path: Path, proposals: list[int]
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            proposals.clear()
            request = message(
                Operation(put=put(b"a", b"1")),
                Operation(put=put(b"n", b"1")),
                transact(put(b"a", b"2"), put(b"b", b"2"), count(b"n", 5)),
                Operation(count=count(b"n", 10)),
                transact(count(b"n", 100), put(b"a", b"3")),
                Operation(put=put(b"b", b"4")),
            )
            results = (await node.pipeline.ExecuteOnce(request)).results
            assert proposals == [2 + 3 + 1 + 3 + 1]
            first = results[0].put.header.index
            assert results[1].put.header.index == first + 1
            one, other = results[2].transact, results[4].transact
            assert (one.header.index, other.header.index) == (first + 2, first + 6)
            assert [each.WhichOneof("result") for each in one.results] == ["put", "put", "count"]
            assert [each.put.header.index - first for each in one.results[:2]] == [3, 3]
            assert one.results[2].count.number == 6
            assert results[3].count.number == 16
            assert other.results[0].count.number == 116
            assert other.results[1].put.header.index == first + 8
            assert results[5].put.header.index == first + 9
            assert [await value(node, each) for each in (b"a", b"b")] == [b"3", b"4"]

    run(test())


def test_writes_of_several_kinds_are_one_proposal_unless_it_would_be_too_large(
    tmp_path: Path, proposals: list[int]
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await node.queue.CreateQueue(queue_pb2.CreateQueueRequest(queue="q"))
            await node.stream.CreateStream(stream_pb2.CreateStreamRequest(stream="s"))
            append = stream_pb2.AppendRecordsRequest(stream="s")
            append.records.add(value=b"r")
            proposals.clear()
            small = message(*[Operation(append_records=append)] * 2, transact(count(b"n")))
            results = (await node.pipeline.ExecuteOnce(small)).results
            assert proposals == [4]
            offsets = [each.append_records.results[0].offset for each in results[:2]]
            assert results[2].transact.header.index == offsets[1] + 1 == offsets[0] + 2
            # Nothing is there to be leased, whatever keys are put before.
            idle = message(
                Operation(put=put(b"k")), Operation(lease=queue_pb2.LeaseRequest(queue="q"))
            )
            results = (await node.pipeline.ExecuteOnce(idle)).results
            assert results[0].put.header.index == offsets[1] + 3
            assert results[1].WhichOneof("result") == "lease"
            assert proposals == [4, 1]
            large = [Operation(put=put(b"k", bytes(5 << 20)))] * 2
            results = (
                await node.pipeline.ExecuteOnce(message(*large, transact(count(b"n"))))
            ).results
            assert results[2].transact.results[0].count.number == 2
            assert proposals == [4, 1, 1, 3]

    run(test())


async def refused_operations(node: Node) -> list[tuple[pipeline.Operation, str]]:
    """Return transactions that are refused, and why; those of the log are last."""
    many = stream_pb2.AppendRecordsRequest(stream="s{t}")
    for _ in range(1_000):
        many.records.add(value=b"r")
    unknown = queue_pb2.EnqueueRequest(queue="nowhere{t}")
    unknown.messages.add(body=b"m")
    several, nothing, no_queue = transact(put(b"no{t}")), transact(put(b"no{t}")), transact()
    several.transact.operations.add().append_records.CopyFrom(many)
    nothing.transact.operations.add()
    no_queue.transact.operations.add().enqueue.CopyFrom(unknown)
    await node.stream.CreateStream(stream_pb2.CreateStreamRequest(stream="s{t}"))
    return [
        (transact(), "LIMIT_INVALID"),
        (transact(*[count(b"no{t}")] * 1_001), "LIMIT_INVALID"),
        (nothing, "OPERATION_MISSING"),
        (several, "LIMIT_INVALID"),
        (no_queue, "QUEUE_UNKNOWN"),
        (transact(*(put(b"no%d" % number) for number in range(20))), "SEVERAL_SHARDS"),
        (transact(put(b"no{t}"), namespace="n" * 129), "NAMESPACE_NAME_INVALID"),
        (transact(put(b"no{t}"), conditions=[kv.Condition(key=b"no{t}")]), "CONDITION_INVALID"),
        (transact(put(b"no{t}"), options=ASYNC), "ASYNC_NEEDS_RESULT"),
        (transact(*[put(b"no{t}", bytes(3 << 20))] * 3), "TOO_LARGE"),
        (transact(put(b"no{t}", expected_version=7)), "BATCH_REFUSED"),
        (
            transact(put(b"no{t}"), conditions=[kv.Condition(key=b"no{t}", exists=True)]),
            "CONDITION_FAILED",
        ),
        (transact(put(b"no{t}"), namespace="nowhere"), "BATCH_REFUSED"),
    ]


def test_a_transaction_that_is_refused_leaves_those_around_it_alone(
    tmp_path: Path, proposals: list[int]
) -> None:
    """Before anything is written, as far as it can be told then."""

    async def test() -> None:
        async with single(tmp_path, shards=2) as node:
            refused = await refused_operations(node)
            proposals.clear()
            operations, wanted = [], []
            for operation, reason in refused:
                operations += [transact(put(b"k{t}"), count(b"n{t}")), operation]
                wanted += ["", reason]
            operations.append(Operation(put=put(b"last{t}", options=ASYNC)))
            answer = await node.pipeline.ExecuteOnce(message(*operations))
            found = [each.error.reason for each in answer.results]
            assert found == [*wanted, ""]
            # Of all that are in order, and of the last three, which the state refuses; what another
            # durability is asked for is apart.
            before = wanted.index("ASYNC_NEEDS_RESULT") // 2 + 1
            assert proposals == [3 * before, 3 * (len(refused) - before) + 3 * 2, 1]
            assert await value(node, b"n{t}") == b"%d" % len(refused)
            assert await value(node, b"no{t}") is None
            async with asyncio.timeout(WAIT_S):
                # It was answered before it is there.
                while await value(node, b"last{t}") != b"v":  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
            error = answer.results[wanted.index("BATCH_REFUSED")].error
            assert dict(error.metadata) == {"position": "0", "cause": "CONDITION_FAILED"}
            assert "no1{no0}" in answer.results[wanted.index("SEVERAL_SHARDS")].error.message

    run(test())


def test_transactions_of_a_session_are_done_once_and_answered_alike_by_every_node(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            opened = await nodes[0].pipeline.OpenSession(pipeline.OpenSessionRequest())
            session = common_pb2.Session(session_id=opened.session_id, sequence=1)
            request = message(
                Operation(put=put(b"a", b"1")),
                transact(put(b"a", b"2"), count(b"n", 5), put(b"b"), put(b"c")),
                transact(count(b"n"), conditions=[kv.Condition(key=b"b", exists=False)]),
                transact(count(b"n", 20)),
                Operation(count=count(b"n", 100)),
                session=session,
            )
            first = (await nodes[0].pipeline.ExecuteOnce(request)).results
            assert first[2].error.reason == "CONDITION_FAILED"
            assert first[3].transact.results[0].count.number == 25
            assert first[4].count.number == 125
            await nodes[0].kv.Put(put(b"a", b"later"))
            for node in (*nodes, *nodes):
                answer = await node.pipeline.ExecuteOnce(request)
                assert answer.forwarded == (not node.leads(0))
                again = answer.results
                for at in (1, 3):
                    assert again[at].transact.header.duplicate
                    assert again[at].transact.header.index == first[at].transact.header.index
                    assert again[at].transact.results == first[at].transact.results
                assert again[2] == first[2]
                assert again[4].count.number == 125
            assert await value(nodes[0], b"a") == b"later"
            # Each has taken one number, however many operations it has.
            request.session.sequence = 6
            answer = await nodes[0].pipeline.ExecuteOnce(request)
            assert answer.results[3].transact.results[0].count.number == 150

    run(test())


def test_what_follows_a_refused_transaction_has_its_own_number_wherever_it_is_done(
    tmp_path: Path,
) -> None:
    """A follower finds it wrong and sends on what is left: the others keep their sequences."""

    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            opened = await nodes[0].pipeline.OpenSession(pipeline.OpenSessionRequest())
            session = common_pb2.Session(session_id=opened.session_id, sequence=1)
            wrong, right = transact(), transact(count(b"n"), put(b"k"))
            request = message(wrong, right, wrong, right, session=session)
            for node in (*nodes, *nodes):
                results = (await node.pipeline.ExecuteOnce(request)).results
                assert [each.error.reason for each in results] == ["LIMIT_INVALID", ""] * 2
                numbers = [results[at].transact.results[0].count.number for at in (1, 3)]
                assert numbers == [1, 2]

    run(test())


def test_transactions_of_a_message_whose_entries_need_the_state(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await node.queue.CreateQueue(queue_pb2.CreateQueueRequest(queue="q"))
            enqueue = queue_pb2.EnqueueRequest(queue="q")
            enqueue.messages.add(body=b"m")
            mixed = transact(put(b"a"), put(b"b"))
            mixed.transact.operations.add().enqueue.CopyFrom(enqueue)
            mixed.transact.operations.add().put.CopyFrom(put(b"c"))
            request = message(mixed, Operation(enqueue=enqueue), transact(put(b"d")), mixed)
            results = (await node.pipeline.ExecuteOnce(request)).results
            first = results[0].transact
            ids = [first.results[2].enqueue.results[0].message_id]
            ids.append(results[1].enqueue.results[0].message_id)
            ids.append(results[3].transact.results[2].enqueue.results[0].message_id)
            assert [each - first.header.index for each in ids] == [2, 4, 9]
            leased = await node.queue.Lease(queue_pb2.LeaseRequest(queue="q", count=9))
            assert [each.message_id for each in leased.messages] == ids
            # Settled with what came of them; one that somebody else has undoes its own alone.
            operations = []
            for each, token in zip(leased.messages, (0, 1, 0), strict=True):
                done = transact(count(b"done"))
                ack = done.transact.operations.add().ack
                ack.queue, ack.strict = "q", True
                ack.messages.add(message_id=each.message_id, token=each.token + token)
                operations.append(done)
            results = (await node.pipeline.ExecuteOnce(message(*operations))).results
            assert [each.error.reason for each in results] == ["", "BATCH_REFUSED", ""]
            assert results[1].error.metadata["position"] == "1"
            assert results[2].transact.results[1].settle.results[0].message_id == ids[2]
            assert await value(node, b"done") == b"2"

    run(test())


def test_a_transaction_says_what_it_cost_if_it_or_its_message_is_asked(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            asking = transact(put(b"a"), options=common_pb2.WriteOptions(with_cost=True))
            for with_cost in (False, True):
                request = message(asking, transact(put(b"b")), with_cost=with_cost)
                results = (await node.pipeline.ExecuteOnce(request)).results
                found = [each.transact.header.HasField("cost") for each in results]
                assert found == [True, with_cost]

    run(test())
