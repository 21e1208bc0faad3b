"""Queues in pipelines, batches and sessions: together, all or nothing, exactly once."""

from pathlib import Path
from typing import Any

from onelog.v1 import common_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import queue_pb2 as q
from tests.node.services.nodes import Node, cluster, refusal, run
from tests.node.services.queues import Jobs, on_a_node

JOBS: dict[str, Any] = {"queue": "jobs"}


def enqueue(*bodies: bytes, **fields: Any) -> q.EnqueueRequest:
    return q.EnqueueRequest(**JOBS, messages=[q.NewMessage(body=body, **fields) for body in bodies])


async def parse_session(node: Node, **fields: Any) -> common_pb2.Session:
    opened = await node.pipeline.OpenSession(pipeline.OpenSessionRequest())
    return common_pb2.Session(session_id=opened.session_id, sequence=1, **fields)


async def execute(node: Node, *operations: Any, **fields: Any) -> list[pipeline.OperationResult]:
    message = pipeline.ExecuteRequest(operations=operations, **fields)
    return list((await node.pipeline.ExecuteOnce(message)).results)


def test_operations_of_one_message_see_those_before_them(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        operation = pipeline.Operation
        put = kv.PutRequest(key=b"k", value=b"v")
        results = await execute(
            jobs.node,
            operation(put=put),
            operation(enqueue=enqueue(b"a", b"b", b"c", b"d")),
            operation(lease=q.LeaseRequest(**JOBS, count=9)),
            operation(get=kv.GetRequest(key=b"k")),
            operation(lease=q.LeaseRequest(**JOBS)),
        )
        messages = results[2].lease.messages
        assert [message.body for message in messages] == [b"a", b"b", b"c", b"d"]
        assert results[3].get.item.value == b"v"
        assert results[4].HasField("lease")
        assert not results[4].lease.messages
        one, two, three, four = ([message] for message in messages)
        results = await execute(
            jobs.node,
            operation(extend=q.ExtendRequest(**jobs.leased(one), visibility_ms=1_000_000)),
            operation(ack=q.AckRequest(**jobs.leased(one))),
            operation(ack=q.AckRequest(**jobs.leased(one))),
            operation(nack=q.NackRequest(**jobs.leased(two), delay_ms=0, reason="no")),
            operation(release=q.ReleaseRequest(**jobs.leased(three))),
            operation(lease=q.LeaseRequest(**JOBS, count=9)),
            operation(ack=q.AckRequest(**jobs.leased([*three, *four]))),
        )
        assert [result.settle.results[0].reason for result in results[:2]] == ["", ""]
        assert results[2].error.reason == "MESSAGE_UNKNOWN"
        again = results[5].lease.messages
        assert [(each.body, each.delivery_count) for each in again] == [(b"b", 2), (b"c", 1)]
        reasons = [each.reason for each in results[6].settle.results]
        assert reasons == ["LEASE_TOKEN_STALE", ""]

    on_a_node(tmp_path, test)


def test_a_repeated_request_of_a_session_enqueues_once(tmp_path: Path) -> None:
    """D14: many messages of one request are exact too; each has a sequence of its own."""

    async def test(jobs: Jobs) -> None:
        session = await parse_session(jobs.node)
        request = enqueue(b"a", b"b", b"c")
        request.options.session.CopyFrom(session)
        first = await jobs.stub.Enqueue(request)
        again = await jobs.stub.Enqueue(request)
        assert list(again.results) == list(first.results)
        assert (again.header.duplicate, again.header.index) == (True, first.header.index)
        # The next request begins behind them, and may overlap with what was sent.
        following = enqueue(b"c", b"d", b"e")
        following.options.session.CopyFrom(session)
        following.options.session.sequence = 3
        overlap = await jobs.stub.Enqueue(following)
        assert overlap.results[0] == first.results[2]
        assert overlap.results[1].message_id > first.results[2].message_id
        assert await jobs.bodies() == [b"a", b"b", b"c", b"d", b"e"]
        # Another message under a used sequence is refused by itself.
        request.options.session.sequence = 5
        mixed = await jobs.stub.Enqueue(request)
        assert mixed.results[0].error.reason == "SEQUENCE_REUSED"
        assert await jobs.bodies() == [b"b", b"c"]
        # A session that is over refuses the request, not each message.
        request.options.session.session_id = 99
        assert (await refusal(jobs.stub.Enqueue(request))).reason == "SESSION_EXPIRED"

    on_a_node(tmp_path, test)


def test_a_repeated_message_of_a_session_does_nothing_twice(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        operation = pipeline.Operation
        session = await parse_session(jobs.node)
        operations = (
            operation(put=kv.PutRequest(key=b"k", value=b"v")),
            operation(enqueue=enqueue(b"a", b"b", b"c")),
            operation(enqueue=enqueue(b"urgent", priority=99)),  # refused, and has a number
            operation(lease=q.LeaseRequest(**JOBS, count=2)),
            operation(count=kv.CountRequest(key=b"n", add=1)),
        )
        first = await execute(jobs.node, *operations, session=session)
        again = await execute(jobs.node, *operations, session=session)
        assert first[2].error.reason == "PRIORITY_INVALID"
        assert [each.message_id for each in again[1].enqueue.results] == [
            each.message_id for each in first[1].enqueue.results
        ]
        assert list(again[3].lease.messages) == list(first[3].lease.messages)
        assert again[4].count.number == first[4].count.number == 1
        info = await jobs.info()
        assert (info.enqueued_count, info.leased_count) == (3, 2)

    on_a_node(tmp_path, test)


def test_a_message_that_is_forwarded_keeps_its_numbers(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            operation = pipeline.Operation
            leader = next(node for node in nodes if node.leads(0))
            others = [node for node in nodes if node is not leader]
            jobs = Jobs(others[0])
            await jobs.create()
            session = await parse_session(others[0])
            operations = (
                operation(enqueue=enqueue(b"a", b"b")),
                operation(count=kv.CountRequest(key=b"n", add=1)),
                operation(lease=q.LeaseRequest(**JOBS, count=5)),
            )
            first = await execute(others[0], *operations, session=session)
            assert [message.body for message in first[2].lease.messages] == [b"a", b"b"]
            for node in nodes:
                again = await execute(node, *operations, session=session)
                assert again[1].count.number == 1
                assert list(again[2].lease.messages) == list(first[2].lease.messages)

    run(test())


def test_a_batch_changes_keys_and_queues_or_nothing(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        operation = pipeline.TransactOperation
        dead = jobs.other("dead")
        await dead.create()
        config = q.QueueConfig(max_deliveries=1, dead_letter_queue="dead")
        await jobs.stub.ConfigureQueue(q.ConfigureQueueRequest(**JOBS, config=config))
        await jobs.send(b"a", b"b")
        one, two = await jobs.lease(2)
        request = pipeline.TransactRequest(
            conditions=[kv.Condition(key=b"k", exists=False)],
            operations=[
                operation(put=kv.PutRequest(key=b"k", value=b"v")),
                operation(enqueue=enqueue(b"new")),
                operation(ack=q.AckRequest(**jobs.leased([one]))),
                operation(nack=q.NackRequest(**jobs.leased([two]), reason="no")),
            ],
        )
        request.options.session.CopyFrom(await parse_session(jobs.node))
        answer = await jobs.node.pipeline.Transact(request)
        again = await jobs.node.pipeline.Transact(request)
        for each in (answer, again):
            enqueued = each.results[1].enqueue.results[0].message_id
            assert enqueued == answer.header.index + 2
            assert each.results[2].settle.results[0].reason == ""
            assert each.results[3].settle.results[0].dead
        assert again.header.duplicate
        assert await jobs.bodies() == [b"new"]
        assert await dead.bodies() == [b"b"]
        # The key is there now: nothing of it happens. Nor if one part is refused.
        index = jobs.last_index
        request.options.session.sequence = 2
        refused = await refusal(jobs.node.pipeline.Transact(request))
        assert refused.reason == "CONDITION_FAILED"
        del request.conditions[:]
        request.options.session.sequence = 3
        lost = await refusal(jobs.node.pipeline.Transact(request))
        assert (lost.metadata["cause"], lost.metadata["position"]) == ("MESSAGE_UNKNOWN", "2")
        assert (await jobs.info()).enqueued_count == 3
        request.operations[1].enqueue.messages.add()
        # The position counts messages: there is one more before it now.
        request.options.session.sequence = 4
        lost = await refusal(jobs.node.pipeline.Transact(request))
        assert (lost.metadata["cause"], lost.metadata["position"]) == ("MESSAGE_UNKNOWN", "3")
        request.operations[1].enqueue.queue = "nowhere"
        assert (await refusal(jobs.node.pipeline.Transact(request))).reason == "QUEUE_UNKNOWN"
        assert jobs.last_index == index + 2 * 5 + 6

    on_a_node(tmp_path, test)


def test_a_full_queue_refuses_each_message_by_itself(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        config = q.QueueConfig(messages_max=2)
        await jobs.stub.ConfigureQueue(q.ConfigureQueueRequest(**JOBS, config=config))
        answer = await jobs.stub.Enqueue(enqueue(b"a", b"b", b"c"))
        assert [each.error.reason for each in answer.results] == ["", "", "QUEUE_FULL"]
        alone = await refusal(jobs.send(b"d"))
        assert alone.reason == "QUEUE_FULL"
        assert await jobs.bodies() == [b"a", b"b"]

    on_a_node(tmp_path, test)
