"""The Queue service: calls that wait, take several entries or read several shards.

The other calls are one write or one read each (node/services/queue_operations.py).
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from onelog.errors import FailedPrecondition, NotFound, OnelogError, OutcomeUnknown
from onelog.node.edge.calls import Call, Elsewhere, stopping
from onelog.node.edge.messages import found
from onelog.node.edge.operation import answer_written, applied, fill_header
from onelog.node.edge.pages import list_by_name
from onelog.node.edge.shards import (
    Edge,
    View,
    parse_namespace,
    parse_session,
    write_options,
)
from onelog.node.services import queue_operations as op
from onelog.node.services.queue_delivery import Consumers, Lines, Returns
from onelog.projections.queue import commands
from onelog.projections.queue.limits import PURGE_MESSAGES_MAX, QUEUE_NAME_SIZE_MAX
from onelog.projections.queue.message import decode_cursor
from onelog.projections.reasons import Reason
from onelog.v1 import queue_pb2

# A long poll ends this long before its call's deadline, so that the answer arrives in time.
POLL_MARGIN_S = 0.25


class QueueService:
    """What ``queue_operations.OPERATIONS`` lacks of ``queue.proto``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self.lines = Lines(edge)
        self.returns = Returns(edge)
        self.consumers = Consumers(edge, self.lines, self.returns)
        edge.context.chores.append(self.consumers.absent.run)

    def consume(
        self, request: queue_pb2.ConsumeRequest, call: Call
    ) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        """Send messages as they come."""
        return self.consumers.consume(request, call)

    # Waiting for messages

    async def lease(self, request: queue_pb2.LeaseRequest, call: Call) -> queue_pb2.LeaseResponse:
        """Take messages; wait for the first, in line with others, if there is none."""
        edge, options = self._edge, write_options(request)
        namespace, session = parse_namespace(request.namespace), parse_session(options)
        shard = edge.find_shard(op.check_name(request.queue))

        command = await edge.bind(
            shard,
            call,
            lambda state, _: op.parse_lease(
                state, op.find_queue(state, namespace, request.queue), request
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
                state = edge.leading(shard).shard.projections
                passed = op.find_passed(state, op.find_queue(state, namespace, request.queue))
                command = replace(command, passed=passed) if passed != command.passed else command
                drafts = [commands.encode_command(command, namespace, session)]
                writing = asyncio.ensure_future(edge.write(shard, drafts, options, call))
                try:
                    written = await asyncio.shield(writing)
                    answer = await answer_written(edge, op.LEASE, request, written, call)
                except FailedPrecondition as refused:
                    if refused.reason != Reason.QUEUE_PAUSED.name:
                        raise
                    answer = _nothing(shard)
                except asyncio.CancelledError:
                    if session is None:
                        self.returns.begin(request, (), call, writing)
                    else:  # the client may ask for the answer again; nobody awaits this one
                        writing.add_done_callback(lambda done: done.cancelled() or done.exception())
                    raise
            is_something = answer.messages or answer.unreadable_ids
            if is_something or session is not None or now_s() >= until_s:
                return answer

    # More than one entry

    async def purge(self, request: queue_pb2.PurgeRequest, call: Call) -> queue_pb2.PurgeResponse:
        """Remove what was there when it began, with as many entries as that takes.

        The first of them carries the session. Those that follow continue where it ended, below its
        own index: whatever came later is above.
        """
        edge, options = self._edge, write_options(request)
        namespace, session = parse_namespace(request.namespace), parse_session(options)
        shard = edge.find_shard(op.check_name(request.queue))
        queue_id = await edge.bind(
            shard, call, lambda state, _: op.find_queue(state, namespace, request.queue).id
        )
        command = commands.Purge(
            queue_id,
            below_id=request.below_id,
            before_ns=request.before_ns,
            limit=PURGE_MESSAGES_MAX,
            leased_too=request.leased_too,
        )
        drafts = [commands.encode_command(command, namespace, session)]
        written = await edge.write(shard, drafts, options, call)
        done = applied(written.results[0])
        answer = queue_pb2.PurgeResponse(purged_count=done.number)
        fill_header(answer.header, shard, written.first_index, written.results[0])
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
        namespace, options = parse_namespace(request.namespace), write_options(request)
        rest = queue_pb2.PurgeRequest()
        rest.CopyFrom(request)
        rest.ClearField("options")
        rest.below_id = command.below_id

        async def attempt() -> None:
            nonlocal command, count
            while True:
                drafts = [commands.encode_command(command, namespace)]
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
            names = found(state.queue.list_queues(namespace, limit, after, prefix))
            for name, _ in names:
                op.fill_info(state, answer.queues.add(), op.find_queue(state, namespace, name))
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
