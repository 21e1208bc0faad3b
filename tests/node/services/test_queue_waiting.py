"""Long polls and streams of messages: in line, within credit, and nothing stays behind.

Every test here is about D12: long poll and push with credit, release on disconnect.
"""

import asyncio
import gc
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
import pytest

from onelog.errors import OutcomeUnknown
from onelog.node.edge import calls
from onelog.node.edge.shards import Edge, get_edge
from onelog.node.services import queue as queue_service
from onelog.status import error_of
from onelog.v1 import common_pb2, queue_pb2_grpc
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import queue_pb2 as q
from tests.node.services.nodes import Node, refusal, until
from tests.node.services.queues import Jobs, on_a_node

WAIT_MS = 9_000
POLLS = 200


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> list[queue_service.QueueService]:
    """The services that nodes make, to look into."""
    made: list[queue_service.QueueService] = []
    make = queue_service.QueueService.__init__

    def noted(self: queue_service.QueueService, edge: Edge) -> None:
        make(self, edge)
        made.append(self)

    monkeypatch.setattr(queue_service.QueueService, "__init__", noted)
    return made


def waiting(node: Node) -> int:
    return len(get_edge(node.context).waits(0))


def are_waiting(node: Node, count: int) -> bool:
    return waiting(node) == count


class Stream:
    """A stream of ``Consume``, and what it has sent."""

    def __init__(self, stub: Any, **fields: Any) -> None:
        self.call = stub.Consume(q.ConsumeRequest(queue="jobs", **fields))
        self.messages: list[q.Message] = []

    async def begin(self) -> "Stream":
        assert not (await self.call.read()).messages
        return self

    async def collect(self, count: int) -> list[q.Message]:
        async with asyncio.timeout(15):
            while len(self.messages) < count:
                answer = await self.call.read()
                assert answer is not grpc.aio.EOF
                self.messages += answer.messages
        return self.messages


def test_two_hundred_who_wait_cost_one_entry_for_each_message(tmp_path: Path) -> None:
    """D12: whoever has waited for longest has the next message; nobody else writes anything."""

    async def test(jobs: Jobs) -> None:
        index = jobs.last_index
        polls: list[asyncio.Task[list[q.Message]]] = []
        for number in range(POLLS):
            polls.append(asyncio.create_task(jobs.lease(wait_ms=WAIT_MS)))
            if number in (0, POLLS - 1):  # the first one is the first in line
                await until(partial(are_waiting, jobs.node, number + 1))
        assert jobs.last_index == index
        await jobs.send(b"one")
        await until(polls[0].done)
        assert [message.body for message in polls[0].result()] == [b"one"]
        assert jobs.last_index == index + 2
        assert waiting(jobs.node) == POLLS - 1
        await jobs.send(*[b"more"] * (POLLS - 1))
        taken = await asyncio.gather(*polls)
        assert sorted(len(messages) for messages in taken) == [1] * POLLS
        assert len({messages[0].message_id for messages in taken}) == POLLS
        assert jobs.last_index == index + 2 * POLLS
        assert waiting(jobs.node) == 0

    on_a_node(tmp_path, test)


def test_a_poll_that_finds_nothing_writes_nothing(tmp_path: Path) -> None:
    """D12: neither do those of a pipeline, nor those in a session."""

    async def test(jobs: Jobs) -> None:
        opened = await jobs.node.pipeline.OpenSession(pipeline.OpenSessionRequest())
        session = common_pb2.Session(session_id=opened.session_id, sequence=1)
        index = jobs.last_index
        assert await jobs.lease() == []
        assert await jobs.lease(wait_ms=20) == []
        assert await jobs.lease(options=common_pb2.WriteOptions(session=session)) == []
        message = pipeline.ExecuteRequest(
            operations=[pipeline.Operation(lease=q.LeaseRequest(queue="jobs"))], session=session
        )
        answer = await jobs.node.pipeline.ExecuteOnce(message)
        assert answer.results[0].HasField("lease")
        assert not answer.results[0].lease.messages
        assert jobs.last_index == index

    on_a_node(tmp_path, test)


def test_a_repeated_poll_of_a_session_has_the_first_answer_although_nothing_is_left(
    tmp_path: Path,
) -> None:
    async def test(jobs: Jobs) -> None:
        opened = await jobs.node.pipeline.OpenSession(pipeline.OpenSessionRequest())
        session = common_pb2.Session(session_id=opened.session_id, sequence=1)
        options = common_pb2.WriteOptions(session=session)
        await jobs.send(b"only")
        first = await jobs.lease(options=options, wait_ms=WAIT_MS)
        assert [message.body for message in first] == [b"only"]
        assert await jobs.lease(options=options, wait_ms=WAIT_MS) == first
        operations = [pipeline.Operation(lease=q.LeaseRequest(queue="jobs"))]
        message = pipeline.ExecuteRequest(operations=operations, session=session)
        answer = await jobs.node.pipeline.ExecuteOnce(message)
        assert list(answer.results[0].lease.messages) == first
        assert answer.results[0].lease.header.duplicate

    on_a_node(tmp_path, test)


def test_a_poll_wakes_for_what_becomes_ready_in_any_way(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        async def poll() -> "asyncio.Task[list[q.Message]]":
            task = asyncio.create_task(jobs.lease(wait_ms=WAIT_MS))
            await until(lambda: waiting(jobs.node) == 1)
            return task

        wait = await poll()
        await jobs.send(b"delayed", delay_ms=5)
        (message,) = await wait
        wait = await poll()
        await jobs.stub.Release(q.ReleaseRequest(**jobs.leased([message])))
        (message,) = await wait
        wait = await poll()
        await jobs.nack([message], delay_ms=0)
        (message,) = await wait
        await jobs.stub.PauseQueue(q.PauseQueueRequest(queue="jobs", paused=True))
        await jobs.nack([message], delay_ms=0)
        wait = await poll()
        await jobs.stub.PauseQueue(q.PauseQueueRequest(queue="jobs"))
        assert len(await wait) == 1
        wait = await poll()
        await jobs.stub.DeleteQueue(q.DeleteQueueRequest(queue="jobs"))
        assert (await refusal(wait)).reason == "QUEUE_UNKNOWN"

    on_a_node(tmp_path, test)


def test_those_who_wait_for_a_group_do_not_all_write(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        polls = [asyncio.create_task(jobs.lease(wait_ms=WAIT_MS)) for _ in range(20)]
        await until(lambda: waiting(jobs.node) == len(polls))
        index = jobs.last_index
        await jobs.send(*[b""] * 10, group=b"one")
        await until(lambda: waiting(jobs.node) == len(polls) - 1)
        assert jobs.last_index == index + 10 + 1
        for poll in polls:
            poll.cancel()

    on_a_node(tmp_path, test)


def test_a_caller_who_hangs_up_leaves_nothing_behind(
    tmp_path: Path, services: list[queue_service.QueueService]
) -> None:
    async def test(jobs: Jobs) -> None:
        polls = [asyncio.create_task(jobs.lease(wait_ms=WAIT_MS)) for _ in range(5)]
        await until(lambda: waiting(jobs.node) == 5)
        assert len(services[0].lines) == 1
        for poll in polls[:4]:
            poll.cancel()
        await until(lambda: waiting(jobs.node) == 1)
        await jobs.send(b"for the one who stayed")
        assert len(await polls[4]) == 1
        await until(lambda: not len(services[0].lines))
        assert not jobs.node.context.drivers[0].shard.listeners

    on_a_node(tmp_path, test)


def test_what_was_leased_for_a_caller_who_went_is_given_back(
    tmp_path: Path, services: list[queue_service.QueueService], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(jobs: Jobs) -> None:
        await jobs.send(b"work")
        edge = get_edge(jobs.node.context)
        write, gate, is_writing = edge.write, asyncio.Event(), asyncio.Event()

        async def slow(*arguments: Any) -> Any:
            written = await write(*arguments)
            is_writing.set()
            await gate.wait()
            return written

        monkeypatch.setattr(edge, "write", slow)
        poll = jobs.stub.Lease(q.LeaseRequest(queue="jobs"))
        await is_writing.wait()
        monkeypatch.setattr(edge, "write", write)
        assert (await jobs.info()).leased_count == 1
        poll.cancel()
        await until(lambda: len(services[0].returns) == 1)
        gate.set()
        await until(lambda: not len(services[0].returns))
        (again,) = await jobs.lease()
        assert again.delivery_count == 1

    on_a_node(tmp_path, test)


def test_the_error_of_a_lease_in_a_session_whose_caller_went_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to be logged with a traceback, as an error that was never retrieved."""
    unhandled: list[str] = []

    async def test(jobs: Jobs) -> None:
        loop, edge = asyncio.get_running_loop(), get_edge(jobs.node.context)
        loop.set_exception_handler(lambda _loop, context: unhandled.append(str(context)))
        gate, is_writing, has_failed = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def fail(*_arguments: Any) -> None:
            is_writing.set()
            await gate.wait()
            has_failed.set()
            raise OutcomeUnknown("the leader has lost the others")

        await jobs.send(b"work")
        with monkeypatch.context() as patched:
            patched.setattr(edge, "write", fail)
            session = common_pb2.Session(session_id=1, sequence=1)
            options = common_pb2.WriteOptions(session=session)
            poll = jobs.stub.Lease(q.LeaseRequest(queue="jobs", options=options))
            await is_writing.wait()
        poll.cancel()
        under_way = jobs.node.server.metrics.registry.get_sample_value
        await until(lambda: under_way("onelog_rpc_under_way") == 0)
        gate.set()
        await has_failed.wait()
        assert len(await jobs.lease()) == 1  # the loop has turned, and all goes on
        gc.collect()

    on_a_node(tmp_path, test)
    assert not unhandled


def test_a_node_that_stops_sends_those_who_wait_elsewhere(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        poll = asyncio.create_task(jobs.lease(wait_ms=WAIT_MS))
        stream = await Stream(jobs.stub).begin()
        await until(lambda: waiting(jobs.node) == 2)
        jobs.node.context.stopping.set()
        assert (await refusal(poll)).reason == "STOPPING"
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stream.call.read()
        assert error_of(ended.value).reason == "STOPPING"

    on_a_node(tmp_path, test)


def test_a_stream_never_has_more_unsettled_messages_than_its_credit(tmp_path: Path) -> None:
    """D12: credit comes back by ack, nack, release, expiry and purge, whoever does it."""

    async def test(jobs: Jobs) -> None:
        stream = await Stream(jobs.stub, credit=4, visibility_ms=600_000).begin()
        await jobs.send(*(b"%d" % number for number in range(40)))
        first = list(await stream.collect(4))
        assert [message.body for message in first] == [b"0", b"1", b"2", b"3"]
        assert all(message.token and message.delivery_count == 1 for message in first)

        async def follow(count: int) -> list[q.Message]:
            before = len(stream.messages)
            more = (await stream.collect(before + count))[before:]
            info = await jobs.info()
            assert (len(more), info.leased_count) == (count, 4)
            return more

        assert (await jobs.info()).leased_count == 4
        await jobs.ack(first[:2])
        await follow(2)
        await jobs.ack([*first[1:3]])  # one of them a second time
        await follow(1)
        dead_end = q.NackRequest(**jobs.leased(first[3:]), delay_ms=3_600_000)
        await jobs.stub.Nack(dead_end)
        await follow(1)
        last = stream.messages[-1]
        await jobs.stub.Extend(q.ExtendRequest(**jobs.leased([last]), visibility_ms=1))
        await follow(1)
        await jobs.stub.Purge(
            q.PurgeRequest(queue="jobs", below_id=stream.messages[-1].message_id, leased_too=True)
        )
        await follow(3)
        stream.call.cancel()

    on_a_node(tmp_path, test)


def test_credit_comes_back_with_the_ack_of_a_single_message(tmp_path: Path) -> None:
    """D12: one is pushed for each that is done, and none for an ack that was refused."""

    async def test(jobs: Jobs) -> None:
        stream = await Stream(jobs.stub, credit=2, visibility_ms=600_000).begin()
        await jobs.send(*(b"%d" % number for number in range(6)))
        for number in range(4):
            message = (await stream.collect(number + 2))[number]
            stale = q.Leased(message_id=message.message_id, token=message.token + 1)
            with pytest.raises(grpc.aio.AioRpcError, match="the lease is over"):
                await jobs.stub.Ack(q.AckRequest(queue="jobs", messages=[stale]))
            assert len(stream.messages) == number + 2
            assert await jobs.ack([message]) == [""]
        assert [message.body for message in await stream.collect(6)] == [
            b"%d" % number for number in range(6)
        ]
        stream.call.cancel()

    on_a_node(tmp_path, test)


def test_what_a_stream_holds_is_released_when_its_client_goes(
    tmp_path: Path, services: list[queue_service.QueueService]
) -> None:
    """D12: by a cancelled call, and by a connection that is gone."""

    async def test(jobs: Jobs) -> None:
        await jobs.send(*(b"%d" % number for number in range(30)))
        stream = await Stream(jobs.stub, credit=10).begin()
        await stream.collect(10)
        stream.call.cancel()
        channel = grpc.aio.insecure_channel(jobs.node.endpoint)
        other = await Stream(queue_pb2_grpc.QueueStub(channel), credit=20).begin()  # type: ignore[no-untyped-call]
        await other.collect(20)
        await channel.close()

        def are_back() -> bool:
            queue = jobs.node.context.drivers[0].shard.projections.queue
            return queue.counts()["messages_ready"] == 30

        await until(are_back)
        await until(lambda: not len(services[0].consumers) and not len(services[0].returns))
        assert not jobs.node.context.drivers[0].shard.listeners
        assert {message.delivery_count for message in await jobs.lease(100)} == {1}

    on_a_node(tmp_path, test)


def test_streams_and_polls_share_a_queue_in_line(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        stream = await Stream(jobs.stub, credit=1).begin()
        await until(lambda: waiting(jobs.node) == 1)
        poll = asyncio.create_task(jobs.lease(wait_ms=WAIT_MS))
        await until(lambda: waiting(jobs.node) == 2)
        await jobs.send(b"to the stream", b"to the poll")
        assert [message.body for message in await poll] == [b"to the poll"]
        assert [message.body for message in await stream.collect(1)] == [b"to the stream"]
        stream.call.cancel()

    on_a_node(tmp_path, test)


def test_a_stream_whose_client_does_not_read_is_dropped_and_its_messages_come_again(
    tmp_path: Path,
    services: list[queue_service.QueueService],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D12: what it was sent is bounded, and given back."""
    monkeypatch.setattr(calls, "STALL_S", 0.2)
    caplog.set_level("CRITICAL", "grpc._cython.cygrpc")  # it cannot even be told

    async def test(jobs: Jobs) -> None:
        for _ in range(16):
            await jobs.send(bytes(range(256)) * (1 << 12))
        call = jobs.stub.Consume(q.ConsumeRequest(queue="jobs"))
        assert not (await call.read()).messages
        queue = jobs.node.context.drivers[0].shard.projections.queue
        await until(lambda: queue.counts()["messages_leased"])
        await until(lambda: not len(services[0].consumers) and not len(services[0].returns))
        assert queue.counts()["messages_ready"] == 16
        with pytest.raises(grpc.aio.AioRpcError):  # noqa: PT012 - reads what came until it ends
            while await call.read() is not grpc.aio.EOF:
                pass

    on_a_node(tmp_path, test)


def test_there_is_a_limit_to_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.node.edge.waits.WAITERS_MAX", 1)

    async def test(jobs: Jobs) -> None:
        poll = asyncio.create_task(jobs.lease(wait_ms=WAIT_MS))
        await until(lambda: waiting(jobs.node) == 1)
        assert (await refusal(jobs.lease(wait_ms=WAIT_MS))).reason == "TOO_MANY_REQUESTS"
        await jobs.send(b"")
        assert len(await poll) == 1

    on_a_node(tmp_path, test)
