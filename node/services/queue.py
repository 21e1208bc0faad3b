"""The Queue service: one line for what is one entry or one look, and what is more than that."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from onelog.errors import FailedPrecondition, NotFound, OnelogError, OutcomeUnknown
from onelog.node.edge.calls import Call, Elsewhere, stopping
from onelog.node.edge.operation import answer_of, applied, put_header, run_read, run_write
from onelog.node.edge.pages import list_by_name
from onelog.node.edge.shards import (
    Edge,
    View,
    namespace_of,
    session_of,
    write_options,
)
from onelog.node.public_errors import error_of_refusal
from onelog.node.services import queue_operations as ask
from onelog.node.services import queue_operations as op
from onelog.node.services.queue_delivery import Consumers, Lines, Returns
from onelog.projections.queue import commands
from onelog.projections.queue.limits import PURGE_MESSAGES_MAX, QUEUE_NAME_SIZE_MAX
from onelog.projections.queue.message import decode_cursor
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.v1 import queue_pb2

# A long poll ends so long before its call's deadline: the answer has to arrive as well.
POLL_MARGIN_S = 0.25


class QueueService:
    """See ``queue.proto``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self.lines = Lines(edge)
        self.returns = Returns(edge)
        self.consumers = Consumers(edge, self.lines, self.returns)

    async def create_queue(
        self, request: queue_pb2.CreateQueueRequest, call: Call
    ) -> queue_pb2.CreateQueueResponse:
        """Create a queue."""
        return await run_write(self._edge, op.CREATE_QUEUE, request, call)

    async def configure_queue(
        self, request: queue_pb2.ConfigureQueueRequest, call: Call
    ) -> queue_pb2.ConfigureQueueResponse:
        """Replace the settings of a queue."""
        return await run_write(self._edge, op.CONFIGURE_QUEUE, request, call)

    async def delete_queue(
        self, request: queue_pb2.DeleteQueueRequest, call: Call
    ) -> queue_pb2.DeleteQueueResponse:
        """Delete a queue."""
        return await run_write(self._edge, op.DELETE_QUEUE, request, call)

    async def get_queue(
        self, request: queue_pb2.GetQueueRequest, call: Call
    ) -> queue_pb2.GetQueueResponse:
        """Show a queue."""
        return await run_read(self._edge, op.GET_QUEUE, request, call)

    async def pause_queue(
        self, request: queue_pb2.PauseQueueRequest, call: Call
    ) -> queue_pb2.PauseQueueResponse:
        """Stop or resume the giving out of messages."""
        return await run_write(self._edge, op.PAUSE_QUEUE, request, call)

    async def enqueue(
        self, request: queue_pb2.EnqueueRequest, call: Call
    ) -> queue_pb2.EnqueueResponse:
        """Put messages into a queue."""
        return await run_write(self._edge, op.ENQUEUE, request, call)

    async def ack(self, request: queue_pb2.AckRequest, call: Call) -> queue_pb2.SettleResponse:
        """Leased messages are done."""
        return await run_write(self._edge, op.ACK, request, call)

    async def nack(self, request: queue_pb2.NackRequest, call: Call) -> queue_pb2.SettleResponse:
        """Leased messages failed."""
        return await run_write(self._edge, op.NACK, request, call)

    async def extend(
        self, request: queue_pb2.ExtendRequest, call: Call
    ) -> queue_pb2.SettleResponse:
        """Leases are to last longer."""
        return await run_write(self._edge, op.EXTEND, request, call)

    async def release(
        self, request: queue_pb2.ReleaseRequest, call: Call
    ) -> queue_pb2.SettleResponse:
        """Give leased messages back."""
        return await run_write(self._edge, op.RELEASE, request, call)

    async def cancel(
        self, request: queue_pb2.CancelRequest, call: Call
    ) -> queue_pb2.SettleResponse:
        """Remove messages that are not leased."""
        return await run_write(self._edge, op.CANCEL, request, call)

    async def prioritise(
        self, request: queue_pb2.PrioritiseRequest, call: Call
    ) -> queue_pb2.SettleResponse:
        """Give messages another priority."""
        return await run_write(self._edge, op.PRIORITISE, request, call)

    async def peek(self, request: queue_pb2.PeekRequest, call: Call) -> queue_pb2.PeekResponse:
        """Show messages without taking them."""
        return await run_read(self._edge, op.PEEK, request, call)

    async def redrive(
        self, request: queue_pb2.RedriveRequest, call: Call
    ) -> queue_pb2.RedriveResponse:
        """Move dead letters back."""
        return await run_write(self._edge, op.REDRIVE, request, call)

    async def cancel_redrive(
        self, request: queue_pb2.CancelRedriveRequest, call: Call
    ) -> queue_pb2.CancelRedriveResponse:
        """Stop a redrive."""
        return await run_write(self._edge, op.CANCEL_REDRIVE, request, call)

    async def create_schedule(
        self, request: queue_pb2.CreateScheduleRequest, call: Call
    ) -> queue_pb2.CreateScheduleResponse:
        """Let a queue send itself messages."""
        return await run_write(self._edge, op.CREATE_SCHEDULE, request, call)

    async def delete_schedule(
        self, request: queue_pb2.DeleteScheduleRequest, call: Call
    ) -> queue_pb2.DeleteScheduleResponse:
        """Stop a schedule."""
        return await run_write(self._edge, op.DELETE_SCHEDULE, request, call)

    async def list_schedules(
        self, request: queue_pb2.ListSchedulesRequest, call: Call
    ) -> queue_pb2.ListSchedulesResponse:
        """List the schedules of a queue."""
        return await run_read(self._edge, op.LIST_SCHEDULES, request, call)

    def consume(
        self, request: queue_pb2.ConsumeRequest, call: Call
    ) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        """Send messages as they come."""
        return self.consumers.consume(request, call)

    # Waiting for messages

    async def lease(self, request: queue_pb2.LeaseRequest, call: Call) -> queue_pb2.LeaseResponse:
        """Take messages; wait for the first, in line with others, if there is none."""
        edge, options = self._edge, write_options(request)
        namespace, session = namespace_of(request.namespace), session_of(options)
        shard = edge.shard_of(ask.check_name(request.queue))
        command = await edge.bind(
            shard,
            call,
            lambda state, _: ask.lease_of(
                ask.queue_of(state, namespace, request.queue).id, request
            ),
        )
        now_s = edge.context.clock.now_s
        until_s = min(call.arrived_s + request.wait_ms / 1000, call.deadline_s - POLL_MARGIN_S)
        while True:
            with self.lines.ticket(shard, command.queue, command.count, session) as ticket:
                is_called = await ticket.called(until_s - now_s())
                edge.leading(shard)
                if not is_called:
                    if request.wait_ms and edge.context.stopping.is_set():
                        raise stopping()
                    return _nothing(shard)
                # Of the state of now: raises if the queue is gone.
                ask.queue_of(edge.leading(shard).shard.projections, namespace, request.queue)
                drafts = ask.draft_of(command, namespace, session)
                writing = asyncio.ensure_future(edge.write(shard, drafts, options, call))
                try:
                    written = await asyncio.shield(writing)
                    answer = await answer_of(edge, op.LEASE, request, written, call)
                except FailedPrecondition as refused:
                    if refused.reason != Reason.QUEUE_PAUSED.name:
                        raise
                    answer = _nothing(shard)
                except asyncio.CancelledError:
                    if session is None:  # in a session the client may ask for the answer again
                        self.returns.begin(request, (), call, writing)
                    raise
            if answer.messages or session is not None or now_s() >= until_s:
                return answer

    # More than one entry

    async def purge(self, request: queue_pb2.PurgeRequest, call: Call) -> queue_pb2.PurgeResponse:
        """Remove what was there when it began, with as many entries as that takes.

        The first of them carries the session. Those that follow go on where it ended, below its
        own index: whatever came later is above.
        """
        edge, options = self._edge, write_options(request)
        namespace, session = namespace_of(request.namespace), session_of(options)
        shard = edge.shard_of(ask.check_name(request.queue))
        queue_id = await edge.bind(
            shard, call, lambda state, _: ask.queue_of(state, namespace, request.queue).id
        )
        command = commands.Purge(
            queue_id,
            below_id=request.below_id,
            before_ns=request.before_ns,
            limit=PURGE_MESSAGES_MAX,
            leased_too=request.leased_too,
        )
        drafts = ask.draft_of(command, namespace, session)
        written = await edge.write(shard, drafts, options, call)
        done = applied(written.results[0])
        answer = queue_pb2.PurgeResponse(purged_count=done.number)
        put_header(answer.header, shard, written.first_index, written.results[0])
        if written.cost is not None:
            answer.header.cost.CopyFrom(written.cost)
        below_id = min(request.below_id or answer.header.index, answer.header.index)
        next_id = decode_cursor(done)
        if next_id is not None and next_id < below_id:
            command = replace(command, from_id=next_id, below_id=below_id)
            answer.purged_count += await self._purge_rest(shard, command, request, call)
        return answer

    async def _purge_rest(
        self, shard: int, command: commands.Purge, request: queue_pb2.PurgeRequest, call: Call
    ) -> int:
        """Go on with a purge, wherever the queue is led by now; return how many there were.

        Something was done already, so nothing here may say that the call as a whole can be made
        again as if it was new: it would have another bound.
        """
        edge, count = self._edge, 0
        namespace, options = namespace_of(request.namespace), write_options(request)
        rest = queue_pb2.PurgeRequest()
        rest.CopyFrom(request)
        rest.ClearField("options")
        rest.below_id = command.below_id

        async def attempt() -> None:
            nonlocal command, count
            while True:
                drafts = ask.draft_of(command, namespace, None)
                done = applied((await edge.write(shard, drafts, options, call)).results[0])
                count += done.number
                next_id = decode_cursor(done)
                if next_id is None or next_id >= command.below_id:
                    return
                command = replace(command, from_id=next_id)

        async def forward(elsewhere: Elsewhere) -> None:
            nonlocal count
            data = await edge.calls.forward(call, elsewhere, rest)
            count += queue_pb2.PurgeResponse.FromString(data).purged_count

        try:
            await edge.calls.run_on_leader(call, attempt, forward)
        except NotFound:
            raise  # the queue was deleted meanwhile
        except OnelogError as error:
            raise OutcomeUnknown(f"a part of the messages is purged: {error.message}") from error
        return count

    # Over several shards

    async def list_queues(
        self, request: queue_pb2.ListQueuesRequest, call: Call
    ) -> queue_pb2.ListQueuesResponse:
        """List queues by name, a page of them."""

        def look(view: View, namespace: str, after: str, limit: int, answer: Any) -> bool:
            state, prefix = view.projections, request.prefix
            names = state.queue.list_queues(namespace, limit, after, prefix)
            if isinstance(names, Refused):
                raise error_of_refusal(names)
            for name, _ in names:
                op.put_info(state, answer.queues.add(), ask.queue_of(state, namespace, name))
            return len(names) == limit and bool(
                state.queue.list_queues(namespace, 1, names[-1][0], prefix)
            )

        listed: queue_pb2.ListQueuesResponse = await list_by_name(
            self._edge,
            request,
            call,
            look,
            items="queues",
            name="queue",
            name_size_max=QUEUE_NAME_SIZE_MAX,
            name_invalid=Reason.QUEUE_NAME_INVALID,
        )
        return listed


def _nothing(shard: int) -> queue_pb2.LeaseResponse:
    answer = queue_pb2.LeaseResponse()
    answer.header.shard = shard
    return answer
