"""Operations on one message each that follow each other in a pipeline: together, yet each alone."""

from pathlib import Path
from typing import Any, cast

from onelog.node.edge.shards import get_edge
from onelog.node.services.executor import Message
from onelog.v1 import common_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import queue_pb2 as q
from tests.node.services.queues import Jobs, on_a_node

BODIES = [b"a", b"b", b"c", b"d"]


def enqueue_of(body: bytes) -> pipeline.Operation:
    request = q.EnqueueRequest(queue="jobs", messages=[q.NewMessage(body=body)])
    return pipeline.Operation(enqueue=request)


def ack_of(message: Any, queue: str = "jobs", **fields: Any) -> pipeline.Operation:
    leased = q.Leased(message_id=message.message_id, token=message.token)
    return pipeline.Operation(ack=q.AckRequest(queue=queue, messages=[leased], **fields))


def parse_put(key: bytes) -> pipeline.Operation:
    return pipeline.Operation(put=kv.PutRequest(key=key, value=b"v"))


async def execute(jobs: Jobs, *operations: Any, **fields: Any) -> list[pipeline.OperationResult]:
    message = pipeline.ExecuteRequest(operations=operations, **fields)
    return list((await jobs.node.pipeline.ExecuteOnce(message)).results)


async def leased_by(jobs: Jobs) -> list[Any]:
    """Enqueue and lease some messages, in one pipeline."""
    results = await execute(
        jobs,
        *map(enqueue_of, BODIES),
        pipeline.Operation(lease=q.LeaseRequest(queue="jobs", count=len(BODIES))),
    )
    messages = list(results[-1].lease.messages)
    assert [message.body for message in messages] == BODIES
    return messages


def test_acks_of_one_message_each_are_answered_one_by_one(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        one, two, three, four = await leased_by(jobs)
        stale = q.Message(message_id=three.message_id, token=three.token - 1)
        results = await execute(
            jobs, *map(ack_of, (one, two, one, stale, three)), ack_of(four, strict=True)
        )

        reasons = [result.error.reason for result in results]
        assert reasons == ["", "", "MESSAGE_UNKNOWN", "LEASE_TOKEN_STALE", "", ""]
        for result, message in ((results[0], one), (results[4], three), (results[5], four)):
            assert [each.message_id for each in result.settle.results] == [message.message_id]
        indexes = [result.settle.header.index for result in results if result.HasField("settle")]
        assert indexes == sorted(set(indexes))
        info = await jobs.info()
        assert (info.acked_count, info.leased_count) == (4, 0)

    on_a_node(tmp_path, test)


def test_acks_that_are_repeated_in_a_session_are_answered_again(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        one, two, three, _ = await leased_by(jobs)
        opened = await jobs.node.pipeline.OpenSession(pipeline.OpenSessionRequest())
        session = common_pb2.Session(session_id=opened.session_id, sequence=1)
        operations = (ack_of(one), ack_of(two), enqueue_of(b"more"), ack_of(one), ack_of(three))
        first = await execute(jobs, *operations, session=session)
        again = await execute(jobs, *operations, session=session)

        assert first[3].error.reason == again[3].error.reason == "MESSAGE_UNKNOWN"
        assert first[2].enqueue.results == again[2].enqueue.results
        for before, after in zip(first[:2], again[:2], strict=True):
            assert not before.settle.header.duplicate
            assert after.settle.header.duplicate
            assert after.settle.header.index == before.settle.header.index
            assert after.settle.results == before.settle.results
        info = await jobs.info()
        assert (info.acked_count, info.enqueued_count) == (3, len(BODIES) + 1)

    on_a_node(tmp_path, test)


def test_an_ack_for_no_queue_does_not_concern_those_around_it(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        one, two, *_ = await leased_by(jobs)
        results = await execute(jobs, ack_of(one), ack_of(two, "nowhere"), ack_of(two))

        assert [result.error.reason for result in results] == ["", "QUEUE_UNKNOWN", ""]
        assert (await jobs.info()).acked_count == 2

    on_a_node(tmp_path, test)


def test_what_takes_turns_with_other_writes_is_not_taken_apart(tmp_path: Path) -> None:
    """Steps of a shard wait for each other: a message of several kinds of writes is one step."""

    async def test(jobs: Jobs) -> None:
        message = q.Message(message_id=1, token=1)
        operations = [ack_of(message)]
        for number in range(20):
            operations += [parse_put(b"k%d" % number), ack_of(message), enqueue_of(b"x")]
        request = pipeline.ExecuteRequest(operations=operations)
        sorted_message = Message(get_edge(jobs.node.context), request, cast(Any, None), 0)
        sorted_message.sort()

        ((step,),) = sorted_message.shards.values()
        assert step.positions == list(range(len(operations)))

    on_a_node(tmp_path, test)


def test_single_messages_behind_other_writes_keep_their_places(tmp_path: Path) -> None:
    """In a session, and again in it: what goes together there is answered in the order of calls."""

    async def test(jobs: Jobs) -> None:
        one, two, three, four = await leased_by(jobs)
        opened = await jobs.node.pipeline.OpenSession(pipeline.OpenSessionRequest())
        lease = pipeline.Operation(lease=q.LeaseRequest(queue="jobs", count=9))
        both = [q.Leased(message_id=each.message_id, token=each.token) for each in (one, two)]
        operations = (
            pipeline.Operation(ack=q.AckRequest(queue="jobs", messages=both)),
            enqueue_of(b"1"), enqueue_of(b"2"), ack_of(three), ack_of(three), ack_of(four, "none"),
            lease, enqueue_of(b"3"), ack_of(four), lease,
        )  # fmt: skip
        session = common_pb2.Session(session_id=opened.session_id, sequence=1)
        first = await execute(jobs, *operations, session=session)
        again = await execute(jobs, *operations, session=session)

        for results in (first, again):
            reasons = [result.error.reason for result in results]
            assert reasons == [*[""] * 4, "MESSAGE_UNKNOWN", "QUEUE_UNKNOWN", *[""] * 4]
            bodies = [[each.body for each in results[at].lease.messages] for at in (6, 9)]
            assert bodies == [[b"1", b"2"], [b"3"]]
            sent = [results[at].enqueue.results[0].message_id for at in (1, 2, 7)]
            leased = [each.message_id for at in (6, 9) for each in results[at].lease.messages]
            assert sent == leased == sorted(leased)
            settled = [each.message_id for at in (0, 3, 8) for each in results[at].settle.results]
            assert settled == [each.message_id for each in (one, two, three, four)]
        info = await jobs.info()
        assert (info.acked_count, info.leased_count, info.ready_count) == (4, 3, 0)

    on_a_node(tmp_path, test)


def test_single_messages_behind_other_writes_go_together(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        ack = q.AckRequest(queue="jobs", messages=[q.Leased(message_id=1, token=1)] * 2)
        operations = [pipeline.Operation(ack=ack), *map(enqueue_of, BODIES)]
        request = pipeline.ExecuteRequest(operations=operations)
        message = Message(get_edge(jobs.node.context), request, cast(Any, None), 0)
        message.sort()

        ((step,),) = message.shards.values()
        assert [len(span.positions) for span in step.spans] == [1, len(BODIES)]
        assert step.positions == list(range(len(operations)))

    on_a_node(tmp_path, test)
