"""How chunks of a snapshot delay the heartbeats between two nodes, a line of JSON for each case.

Two real transports on loopback in one process. Chunks keep their window full, as when a new member
fetches a snapshot, while a heartbeat is sent every few milliseconds; the delay of heartbeats is
reported. Case 1 has no chunks. In case 2 chunks have their own stream, as the transport provides.
In case 3 they share the stream of the heartbeats.
"""

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parent.parent))

import uvloop

from onelog.cluster.config import ShippingConfig
from onelog.cluster.raft.messages import Append, Chunk, Message
from tests.cluster.transport.pairs import (
    LARGE,
    SMALL,
    Endpoint,
    connected,
    endpoint,
    identity,
    until,
)

SECONDS = 5.0
HEARTBEAT_S = 0.005
CONFIG = ShippingConfig()


def chunk() -> Chunk:
    size = CONFIG.chunk_bytes
    return Chunk(1, True, 1, 2, 0, 1, 2, size, 0, bytes(size))


class Pair:
    """Two connected transports; what arrives at the second is counted, or its delay noted."""

    def __init__(self, source: Endpoint, target: Endpoint, *, is_shared: bool) -> None:
        self._transport = source.transport
        self._target_id = target.node_id
        self._is_shared = is_shared
        self.delays_s: list[float] = []
        self.chunks = 0
        target.transport._deliver = self._take  # instead of the list that tests read

    def send(self, message: Message) -> None:
        if self._is_shared:
            link = self._transport._peers[self._target_id].exchange.link
            assert link is not None
            link.send(0, message)
        else:
            self._transport.send(self._target_id, 0, message)

    def _take(self, _sender: UUID, messages: list[tuple[int, Message]]) -> None:
        for _, message in messages:
            if isinstance(message, Append):
                self.delays_s.append((time.perf_counter_ns() - message.log_time_ns) / 1e9)
            elif isinstance(message, Chunk):
                self.chunks += 1
                self.send(message)  # the next one of the window


async def measure(name: str, pair: Pair, window: int) -> None:
    for _ in range(window):
        pair.send(chunk())
    until_s = time.perf_counter() + SECONDS
    while time.perf_counter() < until_s:
        stamp = time.perf_counter_ns()
        pair.send(Append(1, 1, 1, 1, (), 1, log_time_ns=stamp))
        await asyncio.sleep(HEARTBEAT_S)
    delays_s = sorted(pair.delays_s)
    row = {
        "case": name,
        "heartbeats": len(delays_s),
        "p50_ms": round(delays_s[len(delays_s) // 2] * 1e3, 2),
        "p99_ms": round(delays_s[len(delays_s) * 99 // 100] * 1e3, 2),
        "max_ms": round(delays_s[-1] * 1e3, 2),
        "mb_per_s": round(pair.chunks * CONFIG.chunk_bytes / SECONDS / 1e6),
    }
    print(json.dumps(row), flush=True)


async def main() -> None:
    window = CONFIG.window_chunks
    cases = (("no chunks", 0, False), ("two streams", window, False), ("one stream", window, True))
    for name, chunks, is_shared in cases:
        async with AsyncExitStack() as stack:
            ends = [
                await stack.enter_async_context(endpoint(identity(node))) for node in (SMALL, LARGE)
            ]
            await connected(*ends)
            ship = ends[0].transport._peers[LARGE].ship
            await until(lambda ship=ship: ship.link)  # type: ignore[misc]
            await measure(name, Pair(*ends, is_shared=is_shared), chunks)


if __name__ == "__main__":
    uvloop.run(main())
