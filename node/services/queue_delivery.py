"""Pushing messages to a client, as many as its credit allows: the stream of ``Consume``.

A stream leases what there is room for whenever there is something, in line with everybody else who
waits for the queue (node/services/queue_lines.py), and sends it. Room comes back when messages are
settled (node/services/queue_credit.py). One batch is on its way at a time: a client that does not
read is not leased more, and is dropped after a while (node/edge/calls.py).

However a stream ends, what it still holds is given back (node/services/queue_returns.py), and so is
what a lease gets that was on its way. When this node leads no more the stream ends with where to go
(NOT_LEADER).
"""

import asyncio
from collections.abc import AsyncIterator

from onelog.cluster.raft.member import LEADER
from onelog.errors import FailedPrecondition
from onelog.node.edge.calls import Call, stopping
from onelog.node.edge.forwarding import Elsewhere
from onelog.node.edge.operation import put_content
from onelog.node.edge.shards import Edge, namespace_of
from onelog.node.public_errors import error_of_reason
from onelog.node.services.queue_content import put_leased
from onelog.node.services.queue_credit import Credit, Held
from onelog.node.services.queue_lines import Lines
from onelog.node.services.queue_operations import LEASE
from onelog.node.services.queue_requests import check_name, draft_of, lease_of, queue_of
from onelog.node.services.queue_returns import Returns, items_of, leased_of
from onelog.projections.queue.limits import ITEMS_MAX
from onelog.projections.reasons import Reason
from onelog.v1 import common_pb2, queue_pb2

CREDIT_DEFAULT = 100
CREDIT_MAX = 10_000
# A wait is begun anew now and then; nothing depends on how often.
WAIT_S = 60.0
WRITE_DEADLINE_S = 10.0

_NO_OPTIONS = common_pb2.WriteOptions()


class Consumers:
    """The streams of one process."""

    def __init__(self, edge: Edge, lines: Lines, returns: Returns) -> None:
        self._edge = edge
        self._lines = lines
        self._returns = returns
        self._credits: dict[int, Credit] = {}

    def __len__(self) -> int:
        """Return how many streams there are."""
        return sum(map(len, self._credits.values()))

    async def consume(
        self, request: queue_pb2.ConsumeRequest, call: Call
    ) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        """Yield messages as they come."""
        edge, clock = self._edge, self._edge.context.clock
        if request.credit > CREDIT_MAX:
            raise error_of_reason(Reason.LIMIT_INVALID, request.credit)
        credit = request.credit or CREDIT_DEFAULT
        namespace, shard = namespace_of(request.namespace), edge.shard_of(check_name(request.queue))
        lease = queue_pb2.LeaseRequest(
            namespace=request.namespace, queue=request.queue, visibility_ms=request.visibility_ms
        )
        lease_of(0, lease)
        own = Call(call.method, call.response, call.client, call.arrived_s, 0.0)
        own.deadline_s = clock.now_s() + WRITE_DEADLINE_S
        queue_id = await edge.bind(
            shard, own, lambda state, _: queue_of(state, namespace, request.queue).id
        )
        held = self._credit(shard).open(queue_id)
        try:
            yield queue_pb2.ConsumeResponse()  # it has begun
            while True:
                await self._has_room(shard, held, credit)
                lease.count = min(credit - len(held), ITEMS_MAX)
                own.deadline_s = clock.now_s() + WAIT_S + WRITE_DEADLINE_S
                answer = await self._next(shard, lease, held, own)
                if answer.messages:
                    yield answer
        except Elsewhere as elsewhere:
            raise elsewhere.error() from None  # not passed on: the client has a way to go there
        finally:
            self._credit(shard).close(held)
            self._returns.begin(lease, list(held.by_id.items()), call, held.writing)

    async def _has_room(self, shard: int, held: Held, credit: int) -> None:
        """Wait until there is credit; raises if nothing comes of it here."""
        member = self._edge.leading(shard).shard.member
        waits = self._edge.waits(shard)

        def condition() -> bool:
            return len(held) < credit or member.state != LEADER

        while not await waits.until(condition, WAIT_S):
            self._check(shard)
        self._check(shard)

    def _check(self, shard: int) -> None:
        if self._edge.context.stopping.is_set():
            raise stopping()
        self._edge.leading(shard)

    async def _next(
        self, shard: int, lease: queue_pb2.LeaseRequest, held: Held, call: Call
    ) -> queue_pb2.ConsumeResponse:
        """Return the next messages; none if there were none for a while."""
        edge, answer = self._edge, queue_pb2.ConsumeResponse()
        with self._lines.ticket(shard, held.queue_id, lease.count) as ticket:
            is_called = await ticket.called(WAIT_S)
            self._check(shard)
            if not is_called:
                return answer
            namespace = namespace_of(lease.namespace)
            # Of the state of now: raises if the queue is gone.
            queue_of(edge.leading(shard).shard.projections, namespace, lease.queue)
            lease.count = ticket.promised
            drafts = draft_of(lease_of(held.queue_id, lease), namespace, None)
            held.writing = asyncio.ensure_future(edge.write(shard, drafts, _NO_OPTIONS, call))
            # If this is cancelled, what it gets is given back: see the end of ``consume``.
            written = await asyncio.shield(held.writing)
            held.writing = None
            try:
                leased = leased_of(written)
            except FailedPrecondition as refused:
                if refused.reason != Reason.QUEUE_PAUSED.name:
                    raise
                return answer
            held.by_id.update(items_of(leased))
        lacking = put_leased(edge.replica(shard).shard.projections, lease, answer, leased)
        if lacking:
            await put_content(edge, shard, ((LEASE.content, lease, answer, lacking),), call)
        return answer

    def _credit(self, shard: int) -> Credit:
        credit = self._credits.get(shard)
        if credit is None:
            driver = self._edge.replica(shard)
            credit = self._credits[shard] = Credit(driver, self._edge.waits(shard))
        return credit
