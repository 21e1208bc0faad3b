"""Giving back messages that were leased for somebody who is not there any more.

A client may go while its lease is on its way, or while its stream holds messages. They are released
by an entry, wherever the queue is led by then, tried a few times; if all of that fails the leases
end by themselves. Nobody waits for it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence

from onelog.errors import FailedPrecondition, NotFound, OnelogError
from onelog.node.edge.calls import Call
from onelog.node.edge.operation import applied, run_write
from onelog.node.edge.shards import Edge, Written
from onelog.node.services.queue_operations import RELEASE
from onelog.projections.queue.limits import ITEMS_MAX
from onelog.projections.queue.results import Leased, decode_leased
from onelog.v1 import queue_pb2

ATTEMPTS = 3
DEADLINE_S = 5.0
RELEASE_METHOD = "/onelog.v1.Queue/Release"

_log = logging.getLogger("onelog.node.queues")

Items = Sequence[tuple[int, int]]


def leased_of(written: Written) -> Leased:
    """Return what a lease got."""
    return decode_leased(applied(written.results[0]))


def items_of(leased: Leased) -> Items:
    """Return the messages of a lease and their token."""
    token = leased.token
    return [(message.id, token) for message in leased.messages]


class Returns:
    """What one process is giving back; one task for each client that went."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return for how many clients that is under way."""
        return len(self._tasks)

    def begin(
        self,
        request: queue_pb2.LeaseRequest,
        items: Items,
        call: Call,
        writing: Awaitable[Written] | None = None,
    ) -> None:
        """Give back messages, and what a lease gets that is still on its way."""
        if items or writing is not None:
            task = asyncio.create_task(self._give_back(request, items, call, writing))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _give_back(
        self,
        request: queue_pb2.LeaseRequest,
        items: Items,
        caller: Call,
        writing: Awaitable[Written] | None,
    ) -> None:
        if writing is not None:
            try:
                items = [*items, *items_of(leased_of(await writing))]
            except Exception as error:  # noqa: BLE001 - whatever it was, it got nothing
                _log.info("the lease of a client that went: %s", error)
        for first in range(0, len(items), ITEMS_MAX):
            release = queue_pb2.ReleaseRequest(namespace=request.namespace, queue=request.queue)
            for message_id, token in items[first : first + ITEMS_MAX]:
                release.messages.add(message_id=message_id, token=token)
            for _ in range(ATTEMPTS):
                if await self._is_released(release, caller):
                    break

    async def _is_released(self, release: queue_pb2.ReleaseRequest, caller: Call) -> bool:
        """Release messages wherever the queue is led; tell whether that needs no other attempt."""
        calls, now_s = self._edge.calls, self._edge.context.clock.now_s()
        call = Call(
            RELEASE_METHOD, queue_pb2.SettleResponse, caller.client, now_s, now_s + DEADLINE_S
        )
        call.metadata = caller.metadata
        try:
            await calls.somewhere(
                call,
                lambda: run_write(self._edge, RELEASE, release, call),
                lambda elsewhere: calls.forward(call, elsewhere, release),
            )
        except (FailedPrecondition, NotFound):
            return True  # somebody else has it by now, or nobody can
        except OnelogError as error:
            _log.info("messages of a client that went are not released: %s", error)
            return False
        return True
