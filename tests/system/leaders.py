"""Who leads which shard of real servers: each is asked, and says so itself.

For tests that fail a leader and want to be sure that it was one, and that another took over.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio  # type: ignore[import-untyped]

from onelog.v1 import admin_pb2, admin_pb2_grpc
from tests.system.nodes import ServeProcess

WAIT_S = 120.0
ASK_S = 1.0
POLL_S = 0.02
OPTIONS = (("grpc.max_reconnect_backoff_ms", 200), ("grpc.initial_reconnect_backoff_ms", 50))


@dataclass(frozen=True, slots=True)
class Leader:
    """A server that led a shard when it was asked."""

    process: ServeProcess
    node_id: str
    term: int

    def __str__(self) -> str:
        return f"{self.process.name} in term {self.term}"


class Leaders:
    """Asks servers. Made by ``leaders_of``."""

    def __init__(self, admins: Mapping[str, Any], processes: Mapping[str, ServeProcess]) -> None:
        self._admins = admins
        self._processes = processes

    async def of(
        self, shard: int, *, above_term: int = 0, but: ServeProcess | None = None
    ) -> Leader:
        """Wait until somebody leads a shard, in a term above one, and return it.

        ``but`` is not asked: it does not answer, or does not know yet that it leads no more.
        """
        names = [name for name, each in self._processes.items() if each is not but]
        async with asyncio.timeout(WAIT_S):
            while True:
                answers = await asyncio.gather(*(self._ask(name, shard) for name in names))
                found = [each for each in answers if each is not None and each.term > above_term]
                if found:
                    return max(found, key=lambda each: each.term)
                await asyncio.sleep(POLL_S)

    async def _ask(self, name: str, shard: int) -> Leader | None:
        process = self._processes[name]
        if not process.is_running:
            return None
        try:
            status = await self._admins[name].GetStatus(admin_pb2.GetStatusRequest(), timeout=ASK_S)
        except grpc.aio.AioRpcError:
            return None
        for each in status.shards:
            if each.shard == shard and each.role == admin_pb2.ROLE_LEADER:
                return Leader(process, status.node_id, each.term)
        return None


@asynccontextmanager
async def leaders_of(processes: list[ServeProcess]) -> AsyncIterator[Leaders]:
    """Make it for servers that are running, and let go of it."""
    channels = {
        each.name: grpc.aio.insecure_channel(each.flags["listen"], OPTIONS) for each in processes
    }
    admins = {
        name: admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        for name, channel in channels.items()
    }
    try:
        yield Leaders(admins, {each.name: each for each in processes})
    finally:
        for channel in channels.values():
            await channel.close()


async def kill_leader(leaders: Leaders, shard: int) -> tuple[Leader, Leader]:
    """Kill the leader of a shard, start it again when another has taken over; return both."""
    killed = await leaders.of(shard)
    killed.process.kill()
    successor = await leaders.of(shard, above_term=killed.term)
    assert successor.process is not killed.process
    killed.process.start()
    await asyncio.to_thread(killed.process.until_ready)
    return killed, successor
