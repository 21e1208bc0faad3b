"""What counting operations for /metrics takes of the CPU of a put, in lines of JSON.

A node runs in this process, and its callers in another one, so that the CPU of this process is the
server's. Each call that counts the operations of a message is measured; its CPU includes that of
asking the clock.

    python bench/operation_metrics.py
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from onelog import AsyncClient
from onelog.node.config.schema import ClusterSettings, Config, ListenSettings, NodeSettings
from onelog.node.config.settings import Address
from onelog.node.server.server import Server
from onelog.node.services import SERVICES, executor

PUTS = {1: 3_000, 64: 60_000, 1_024: 100_000}  # by the number of callers
READY_S = 30.0


class Timed:
    """Times the calls that count operations."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._count = executor.Message.count

    def count(self, message: Any, operations: Any, seconds: float) -> None:
        """Count the operations of a message."""
        began_s = time.thread_time()
        self._count(message, operations, seconds)
        self.spent_s += time.thread_time() - began_s


async def put(endpoint: str, callers: int, count: int) -> None:
    """Write keys with this number of concurrent callers."""
    async with AsyncClient(endpoint, timeout_s=READY_S) as client:

        async def call(number: int) -> None:
            for each in range(number, count, callers):
                await client.kv.put(f"key{each % 1_000}", "value")

        await asyncio.gather(*map(call, range(callers)))


async def spend(endpoint: str, callers: int) -> float:
    """Return the CPU that puts take of the server, in seconds."""
    arguments = (__file__, endpoint, str(callers), str(PUTS[callers]))
    began_s = time.process_time()
    load = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    assert await load.wait() == 0
    return time.process_time() - began_s


async def main() -> None:
    any_port = Address("127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as directory:
        config = Config(
            node=NodeSettings(name="counted", data_dir=Path(directory) / "data"),
            listen=ListenSettings(api=any_port, peers=any_port, http=any_port),
            cluster=ClusterSettings(shards=1, balance_leaders=False),
        )
        server = Server(config, SERVICES)
        task: Awaitable[None] = asyncio.create_task(server.run())
        async with asyncio.timeout(READY_S):
            while not server.api_port:  # noqa: ASYNC110 - sets no event
                await asyncio.sleep(0.01)
        endpoint = f"127.0.0.1:{server.api_port}"
        timed = Timed()
        executor.Message.count = lambda *given: timed.count(*given)  # type: ignore[method-assign]
        for callers, count in PUTS.items():
            timed.spent_s = 0.0
            cpu_s = await spend(endpoint, callers)
            result = {
                "bench": "operation_metrics",
                "callers": callers,
                "cpu_us_of_a_put": round(cpu_s / count * 1e6, 1),
                "us_of_counting": round(timed.spent_s / count * 1e6, 3),
                "percent": round(100 * timed.spent_s / cpu_s, 2),
            }
            print(json.dumps(result), flush=True)
        server.stop()
        await task


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(put(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
    else:
        asyncio.run(main())
