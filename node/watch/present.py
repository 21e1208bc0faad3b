"""Where the present of a shard begins: the index that a watcher without a cursor begins behind.

A write that was acknowledged before a watch was called must not be one of its events. A replica
that follows may not have applied it yet, so its own index is of the past. Only a leader that makes
sure that it leads knows all that was acknowledged. It is asked once for all watchers of this
process that wait for it: a question that was sent before a watcher came is not for that one, but
the next question is for all who came in between.
"""

import asyncio
from typing import Any

from onelog.errors import Unavailable
from onelog.node.edge.calls import Call
from onelog.node.edge.shards import Edge
from onelog.v1 import common_pb2, kv_pb2

# How long a leader may take to answer, and this replica to apply what the leader has.
PRESENT_WAIT_S = 5.0
# A read of no keys: its answer has the index of each shard that is asked.
_METHOD = f"/{kv_pb2.DESCRIPTOR.services_by_name['KV'].full_name}/BatchGet"
_LINEARIZABLE = common_pb2.ReadOptions()


class Present:
    """The present of one shard, for the watchers of this process."""

    def __init__(self, edge: Edge, shard: int) -> None:
        self._edge = edge
        self._shard = shard
        self._asking: asyncio.Task[int] | None = None
        self._next: asyncio.Task[int] | None = None

    async def find(self, call: Call) -> int:
        """Return an index above which everything is newer than this call; it is applied here."""
        if self._next is None:
            self._next = asyncio.create_task(self._ask(call.client, self._asking), name="present")
            self._next.add_done_callback(_retrieve)
        # Who leaves does not take the answer from those who wait for it as well.
        index = await asyncio.shield(self._next)
        held = self._edge.replica(self._shard).shard
        waits = self._edge.waits(self._shard)
        if not await waits.until(lambda: held.log.applied_index >= index, PRESENT_WAIT_S):
            raise Unavailable(
                f"this replica has not applied index {index} yet; ask another one",
                reason="REPLICA_BEHIND",
                metadata={"applied_index": str(held.log.applied_index)},
                retry_after_s=0.1,
            )
        return index

    async def _ask(self, client: str, before: "asyncio.Task[int] | None") -> int:
        if before is not None:
            await asyncio.wait((before,))
        self._asking, self._next = self._next, None
        edge, shard = self._edge, self._shard
        now_s = edge.context.clock.now_s()
        deadline_s = now_s + PRESENT_WAIT_S
        asked = Call(_METHOD, kv_pb2.BatchGetResponse, client, now_s, deadline_s)

        async def part(number: int) -> Any:
            view = await edge.read(number, _LINEARIZABLE, asked)
            answer = kv_pb2.BatchGetResponse()
            view.header(answer.headers.add())
            return answer

        (answer,) = await edge.parts(kv_pb2.BatchGetRequest(), asked, (shard,), part)
        return int(answer.headers[0].applied_index)


def _retrieve(task: "asyncio.Task[int]") -> None:
    """Retrieve the error of a task that may have no waiter: asyncio would log it."""
    if not task.cancelled():
        task.exception()


def get_present(edge: Edge, shard: int) -> Present:
    """Return the present of a shard of this process, which all who begin there share."""
    found: Present | None = edge.presents.get(shard)
    if found is None:
        found = edge.presents[shard] = Present(edge, shard)
    return found
