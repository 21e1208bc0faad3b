"""The CPU time that the client takes for one operation, with the server in another process.

``python bench/client.py [ENDPOINT]``: without an endpoint it starts a server of its own. One line
of JSON for each row: rate by the clock, and microseconds of CPU of this process per operation.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from onelog import AsyncClient, Client, Read
from tests.system.ports import free_addresses

VALUE = bytes(100)
OPERATIONS = 8_000
ROUNDS = 6
CALLERS = (1, 64, 256, 1024)
READY_S = 60


async def measure(
    name: str, count: int, callers: int, work: Callable[[int, int], Awaitable[None]]
) -> None:
    """Print the best of several rounds: other work on the machine can only add time."""
    each = max(1, count // callers)
    best_cpu_s, best_wall_s = float("inf"), float("inf")
    for _ in range(ROUNDS):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work(caller * each, each) for caller in range(callers)))
        best_wall_s = min(best_wall_s, time.perf_counter() - wall_s)
        best_cpu_s = min(best_cpu_s, time.process_time() - cpu_s)
    done = each * callers
    row = {
        "name": name,
        "callers": callers,
        "per_s": round(done / best_wall_s),
        "client_cpu_us": round(best_cpu_s / done * 1e6, 2),
    }
    print(json.dumps(row), flush=True)


async def run(endpoint: str) -> None:
    async with AsyncClient(endpoint) as client:
        kv = client.kv

        async def puts(first: int, count: int) -> None:
            for number in range(first, first + count):
                await kv.put(b"key-%09d" % number, VALUE)

        async def gets(first: int, count: int) -> None:
            for number in range(first, first + count):
                await kv.get(b"key-%09d" % number)

        async def stale_gets(first: int, count: int) -> None:
            read = Read(stale=True)
            for number in range(first, first + count):
                await kv.get(b"key-%09d" % number, read=read)

        async def many(first: int, count: int) -> None:
            await kv.put_many([(b"key-%09d" % n, VALUE) for n in range(first, first + count)])

        await many(0, 2_000)
        for callers in CALLERS:
            await measure("put", min(OPERATIONS, 100 * callers), callers, puts)
        for callers in CALLERS:
            await measure("get", min(OPERATIONS, 100 * callers), callers, gets)
        await measure("stale get", OPERATIONS, 256, stale_gets)
        await measure("put_many", OPERATIONS, 1, many)


def start(stack: ExitStack) -> str:
    """Start a server and return its endpoint."""
    api, peers, http = free_addresses(3)
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    server = subprocess.Popen(
        [
            sys.executable, "-m", "onelog.cli.main", "serve", "--data-dir", directory,
            "--listen", api, "--peer-listen", peers, "--http-listen", http,
            "--logging-level", "error",
        ],
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    stack.callback(server.wait)
    stack.callback(server.terminate)
    wait_until_up(api)
    return api


def wait_until_up(endpoint: str) -> None:
    """Wait until a server that is starting answers."""
    client = Client(endpoint, timeout_s=READY_S)
    client.connect(refused_s=READY_S)
    client.close()


def main() -> None:
    with ExitStack() as stack:
        endpoint = sys.argv[1] if len(sys.argv) > 1 else start(stack)
        asyncio.run(run(endpoint))


if __name__ == "__main__":
    main()
