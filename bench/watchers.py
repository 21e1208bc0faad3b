"""What waiting costs a server: memory by watcher and by long poll, a line of JSON for each.

A server in a process of its own with the settings as they are, and one client of the library with
1,000 watches of all keys and 200 long polls of a queue. Told is how much the resident memory of the
server grew by each, and how long it takes until an ordinary call is answered and all are told.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.api import Cluster, serving
from onelog.client.aio import AsyncClient
from onelog.client.watch import AsyncWatch, Watched

WATCHERS = 1_000
POLLS = 200
POLL_S = 50.0
TIMEOUT_S = 60.0
SHARDS = 4


def main() -> None:
    with serving(1, SHARDS) as cluster:
        asyncio.run(measure(cluster))


async def measure(cluster: Cluster) -> None:
    (pid,) = cluster.pids.values()
    async with AsyncClient(cluster.endpoints, timeout_s=TIMEOUT_S) as client:
        queue = client.queue("jobs")
        await queue.create()
        warm = [client.watch(Watched("kv")) for _ in range(10)]
        await asyncio.gather(*(watch.start() for watch in warm))
        await queue.lease(wait_s=0.1)
        before = resident(pid)
        watches = [client.watch(Watched("kv")) for _ in range(WATCHERS)]
        await asyncio.gather(*(watch.start() for watch in watches))
        report("watcher", "rss_bytes", (resident(pid) - before) / WATCHERS)
        before = resident(pid)
        polls = [asyncio.ensure_future(queue.lease(wait_s=POLL_S)) for _ in range(POLLS)]
        await settled(cluster)
        assert not any(poll.done() for poll in polls), "a poll did not wait"
        report("long poll", "rss_bytes", (resident(pid) - before) / POLLS)
        began = time.perf_counter()
        await queue.info()
        report(f"a call beside {WATCHERS} watchers and {POLLS} polls", "ms", since_ms(began))
        began = time.perf_counter()
        await client.kv.put(b"k", b"v")
        await asyncio.gather(*map(next_event, watches))
        report(f"a put until {WATCHERS} watchers were told", "ms", since_ms(began))
        began = time.perf_counter()
        await queue.enqueue_many(b"%d" % number for number in range(POLLS))
        leased = await asyncio.gather(*polls)
        assert sum(map(len, leased)) == POLLS, "a poll got nothing, or too much"
        report(f"{POLLS} messages until {POLLS} polls had one each", "ms", since_ms(began))
        for watch in (*warm, *watches):
            await watch.close()


async def next_event(watch: AsyncWatch) -> Any:
    return await anext(watch)


async def settled(cluster: Cluster) -> None:
    """Wait until the server has nothing to do any more."""
    spent_s = -1.0
    while (now_s := sum(cluster.cpu_s().values())) - spent_s > 0.05:
        spent_s = now_s
        await asyncio.sleep(1.0)


def report(name: str, unit: str, value: float) -> None:
    print(json.dumps({"name": name, unit: round(value, 1)}))


def since_ms(began_s: float) -> float:
    return (time.perf_counter() - began_s) * 1e3


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
