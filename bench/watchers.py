"""The cost of waiting clients: memory by watcher and by long poll, a line of JSON for each.

``python bench/watchers.py [--quick]``. A server in its own process with default settings. First
1,000 and then 10,000 Watch streams of all keys, by connections that cost hardly any CPU
(bench/watch_streams.py): how much the resident memory of the server grew by each, and how long a
put takes until all have its event, the median of some. Then, with a new server, one onelog client
with 1,000 watches and 200 long polls of a queue: the same as a program sees it, and how long an
ordinary call takes meanwhile.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.api import Cluster, serving
from bench.watch_streams import WatchStreams
from onelog.client.client import AsyncClient
from onelog.client.watch import AsyncWatch, Watched

WATCHERS = 1_000
STREAMS = (1_000, 10_000)
POLLS = 200
POLL_S = 50.0
TIMEOUT_S = 60.0
SHARDS = 4
PUTS = 5
WARM = 10
QUICK_PART = 50
# Of one watcher, and of a put until a thousand have it.
GOAL_BYTES = 6 << 10
GOAL_MS = 100.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="see only that everything works")
    part = QUICK_PART if parser.parse_args().quick else 1
    with serving(1, SHARDS) as cluster:
        asyncio.run(measure_streams(cluster, [count // part for count in STREAMS]))
    with serving(1, SHARDS) as cluster:
        asyncio.run(measure_library(cluster, WATCHERS // part, POLLS // part))


async def measure_streams(cluster: Cluster, counts: list[int]) -> None:
    """Report the cost of the streams alone."""
    (pid,) = cluster.pids.values()
    warm, streams = (WatchStreams(cluster.endpoints[0]) for _ in range(2))
    async with AsyncClient(cluster.endpoints, timeout_s=TIMEOUT_S) as client:
        await warm.open(WARM)
        await delivery_ms(client, warm)
        await settled(cluster)
        before = resident(pid)
        for count in counts:
            await streams.open(count - streams.count)
            await settled(cluster)
            grown = (resident(pid) - before) / count
            report(f"one of {count} watch streams", "rss_bytes", grown, GOAL_BYTES)
            ms = median([await delivery_ms(client, warm, streams) for _ in range(PUTS)])
            goal_ms = GOAL_MS if count == counts[0] else None
            report(f"a put until {count} watch streams had it", "ms", ms, goal_ms)
    warm.close()
    streams.close()


async def delivery_ms(client: AsyncClient, *streams: WatchStreams) -> float:
    """Return how long a put takes until all streams have it."""
    for each in streams:
        each.expect_event()
    began_s = time.perf_counter()
    await client.kv.put(b"k", b"v")
    await asyncio.gather(*(each.all_received() for each in streams))
    return since_ms(began_s)


async def measure_library(cluster: Cluster, watchers: int, polls: int) -> None:
    """Report what a program with many watches and polls sees."""
    (pid,) = cluster.pids.values()
    async with AsyncClient(cluster.endpoints, timeout_s=TIMEOUT_S) as client:
        queue = client.queue("jobs")
        await queue.create()
        warm = [client.watch(Watched("kv")) for _ in range(WARM)]
        await asyncio.gather(*(watch.start() for watch in warm))
        await queue.lease(wait_s=0.1)
        before = resident(pid)
        watches = [client.watch(Watched("kv")) for _ in range(watchers)]
        await asyncio.gather(*(watch.start() for watch in watches))
        report("watcher", "rss_bytes", (resident(pid) - before) / watchers, GOAL_BYTES)
        before = resident(pid)
        waiting = [asyncio.ensure_future(queue.lease(wait_s=POLL_S)) for _ in range(polls)]
        await settled(cluster)
        assert not any(poll.done() for poll in waiting), "a poll did not wait"
        report("long poll", "rss_bytes", (resident(pid) - before) / polls)
        began_s = time.perf_counter()
        await queue.info()
        report(f"a call beside {watchers} watchers and {polls} polls", "ms", since_ms(began_s))
        began_s = time.perf_counter()
        await client.kv.put(b"k", b"v")
        await asyncio.gather(*map(next_event, watches))
        report(
            f"a put until {watchers} watches of one client had it", "ms", since_ms(began_s), GOAL_MS
        )
        began_s = time.perf_counter()
        await queue.enqueue_many(b"%d" % number for number in range(polls))
        leased = await asyncio.gather(*waiting)
        assert sum(map(len, leased)) == polls, "a poll got nothing, or too much"
        report(f"{polls} messages until {polls} polls had one each", "ms", since_ms(began_s))
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


def report(name: str, unit: str, value: float, at_most: float | None = None) -> None:
    line: dict[str, Any] = {"name": name, unit: round(value, 1)}
    if at_most is not None:
        line |= {"goal": f"<= {at_most:g}", "reached": value <= at_most}
    print(json.dumps(line), flush=True)


def since_ms(began_s: float) -> float:
    return (time.perf_counter() - began_s) * 1e3


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
