"""The Pipeline service: what goes across the models.

A stream of messages keeps a bounded number of them under way and reads no further until one is
answered: that is its flow control. Answers leave when they are ready. Messages begin in the order
in which they came, so what two of them write to one shard is written in that order.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from onelog.node.edge.calls import Call, complete_cost, stopping
from onelog.node.edge.operation import applied, fill_header, run_write
from onelog.node.edge.shards import Edge
from onelog.node.public_errors import (
    error_of_bounds,
    error_of_exception,
    fill_error,
)
from onelog.node.services.executor import Executor
from onelog.node.services.transact import TRANSACT
from onelog.node.watch.watch import Watches
from onelog.projections.limits import SESSION_TTL_NS_MAX, SESSION_TTL_NS_MIN
from onelog.projections.reasons import Reason
from onelog.projections.system.commands import (
    Command,
    SessionClose,
    SessionKeepalive,
    SessionOpen,
    encode_command,
)
from onelog.v1 import common_pb2, pipeline_pb2

MESSAGES_MAX = 64  # under way on one stream
MESSAGE_DEADLINE_S = 10.0
ANSWERS_BYTES_MAX = 1 << 20  # that leave in one message of gRPC; a single one may be larger
SESSION_TTL_DEFAULT_MS = 600_000

_NO_OPTIONS = common_pb2.WriteOptions()
Send = Callable[[Any], Awaitable[None]]


class PipelineService:
    """See ``pipeline.proto``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._executor = Executor(edge)
        self._watches = Watches(edge)

    async def execute_once(
        self, request: pipeline_pb2.ExecuteRequest, call: Call
    ) -> pipeline_pb2.ExecuteResponse:
        """Carry out one message."""
        return await self._executor.execute(request, call, request.ByteSize())

    async def execute(
        self, messages: AsyncIterator[pipeline_pb2.ExecuteRequest], call: Call, send: Send
    ) -> None:
        """Carry out messages as they come, until the client or the node ends it.

        A node that stops takes no more of them and answers those that it has.
        """
        slots = asyncio.Semaphore(MESSAGES_MAX)
        answers = _Answers(send, slots)

        async def answer(request: pipeline_pb2.ExecuteRequest) -> None:
            await answers.add(await self._carry_out(request, call))

        async def take(group: asyncio.TaskGroup) -> None:
            async for message in messages:
                requests = _taken_apart(message)
                # Who sends several messages in one can read answers in one.
                answers.are_joined = answers.are_joined or len(requests) > 1
                for request in requests:
                    await slots.acquire()
                    group.create_task(answer(request))

        try:
            async with asyncio.TaskGroup() as group:
                taking = group.create_task(take(group))
                with self._edge.calls.ending(taking):
                    await asyncio.wait((taking,))
        except* Exception as errors:  # noqa: BLE001 - each is raised again
            raise _first(errors) from None
        if taking.cancelled():
            raise stopping()

    async def _carry_out(
        self, request: pipeline_pb2.ExecuteRequest, stream: Call
    ) -> pipeline_pb2.ExecuteResponse:
        """Return the answer to one message of a stream; a refused one does not end the stream."""
        now_s = self._edge.context.clock.now_s()
        call = Call(
            stream.method, stream.response, stream.client, now_s, now_s + MESSAGE_DEADLINE_S
        )
        call.is_forwarded, call.metadata = stream.is_forwarded, stream.metadata
        admission, size = self._edge.calls.admission, request.ByteSize()
        if self._edge.calls.tracer is not None:
            call.span = self._edge.calls.begin_span(call, request.traceparent)
        try:
            self._edge.calls.check_request(size)
            admission.enter(call.client, size)
            try:
                response = await self._executor.execute(request, call, size)
            finally:
                admission.leave(call.client, size)
            self._edge.calls.check_answer(response.ByteSize())
        except Exception as error:  # noqa: BLE001 - concerns this message, not the others
            response = pipeline_pb2.ExecuteResponse(request_id=request.request_id)
            refused = error_of_exception(error)
            self._edge.context.metrics.rpc_refused.labels(refused.reason).inc()
            elapsed_s = self._edge.context.clock.now_s() - now_s
            for _ in request.operations:
                target = response.results.add().error
                fill_error(target, refused)
                if request.with_cost:
                    complete_cost(target.cost, elapsed_s)
            if call.span is not None:
                call.span.fail(refused.reason, refused.code)
        finally:
            if call.span is not None:
                call.span.end()
        return response

    async def transact(
        self, request: pipeline_pb2.TransactRequest, call: Call
    ) -> pipeline_pb2.TransactResponse:
        """Carry out a batch, all of it or nothing."""
        return await run_write(self._edge, TRANSACT, request, call)

    # Sessions

    async def open_session(
        self, request: pipeline_pb2.OpenSessionRequest, call: Call
    ) -> pipeline_pb2.OpenSessionResponse:
        """Open a session in a shard."""
        ttl_ns = (request.ttl_ms or SESSION_TTL_DEFAULT_MS) * 1_000_000
        if not SESSION_TTL_NS_MIN <= ttl_ns <= SESSION_TTL_NS_MAX:
            least, most = SESSION_TTL_NS_MIN // 1_000_000, SESSION_TTL_NS_MAX // 1_000_000
            raise error_of_bounds(Reason.TTL_INVALID, "ttl_ms", request.ttl_ms, most, least)
        answer = pipeline_pb2.OpenSessionResponse()
        answer.session_id = await self._system(request, SessionOpen(ttl_ns), answer, call)
        return answer

    async def keep_session(
        self, request: pipeline_pb2.KeepSessionRequest, call: Call
    ) -> pipeline_pb2.KeepSessionResponse:
        """Extend the lifetime of a session."""
        answer = pipeline_pb2.KeepSessionResponse()
        await self._system(request, SessionKeepalive(request.session_id), answer, call)
        return answer

    async def close_session(
        self, request: pipeline_pb2.CloseSessionRequest, call: Call
    ) -> pipeline_pb2.CloseSessionResponse:
        """End a session."""
        answer = pipeline_pb2.CloseSessionResponse()
        await self._system(request, SessionClose(request.session_id), answer, call)
        return answer

    async def _system(self, request: Any, command: Command, answer: Any, call: Call) -> int:
        shard = self._edge.check_shard(request.shard)
        written = await self._edge.write(shard, [encode_command(command)], _NO_OPTIONS, call)
        done = applied(written.results[0])
        fill_header(answer.header, shard, written.first_index, written.results[0])
        return done.number

    # Watching

    def watch(
        self, request: pipeline_pb2.WatchRequest, call: Call
    ) -> AsyncIterator[pipeline_pb2.WatchResponse]:
        """Send what happens from a cursor on."""
        return self._watches.watch(request, call)


def _taken_apart(message: pipeline_pb2.ExecuteRequest) -> list[pipeline_pb2.ExecuteRequest]:
    """Return a message and those that travelled along, each by itself."""
    more = list(message.more)
    if len(more) > MESSAGES_MAX:
        what = "the number of messages in more"
        raise error_of_bounds(Reason.LIMIT_INVALID, what, len(more), MESSAGES_MAX, 0)
    message.ClearField("more")
    return [message, *more]


class _Answers:
    """The answers of one stream on their way out.

    ``are_joined``: those that are ready at the same time leave in one message of gRPC.
    """

    def __init__(self, send: Send, slots: asyncio.Semaphore) -> None:
        self.are_joined = False
        self._send = send
        self._slots = slots
        self._ready: list[pipeline_pb2.ExecuteResponse] = []
        self._is_sending = False

    async def add(self, response: pipeline_pb2.ExecuteResponse) -> None:
        """Send an answer; its slot is free again afterwards."""
        self._ready.append(response)
        if self._is_sending:
            return  # the task that sends takes it along
        self._is_sending = True
        try:
            await asyncio.sleep(0)  # for what became ready with it
            while self._ready:
                message = self._ready.pop(0)
                size, count = message.ByteSize(), 1
                while self._ready and self.are_joined:
                    size += self._ready[0].ByteSize()
                    if size > ANSWERS_BYTES_MAX:
                        break
                    message.more.append(self._ready.pop(0))
                    count += 1
                try:
                    await self._send(message)
                finally:
                    for _ in range(count):
                        self._slots.release()
        finally:
            self._is_sending = False


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
