"""Many of everything on one node, and more callers than it can serve: a line of JSON for each case.

``python bench/scale.py [--only NAME] [--quick] [--table]``. The node is a process of its own with
default limits; all ratios are within a run, because a machine that is shared has no steady rates.

* Overload: callers that call again as soon as they are answered. As many as saturate the node, and
  four times as many, in turns; only what is answered within ``DEADLINE_S`` counts. ``ratio`` is the
  rate of the second by that of the first.
* Watchers: a put until each watcher has its event, with a quarter of them and with all; ``ratio``
  is that of the events a second.
* Populations: half of the objects are made, then the other half; after each the node is killed and
  started again. ``made_ratio`` is the rate of the second half by that of the first; ``restart_s``
  how long a start takes with none, half and all, and ``restart_cpu_s`` what it uses of a core;
  ``restart_ratio`` what the second half adds to that by what the first half adds (1 where it is
  linear); ``put_ms`` the median of a put before and beside all of them; ``rss_mib`` what the node
  holds with none, half, all, and started again.

``--table`` prints rows of docs/operations.md instead.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import uvloop

from bench.watch_streams import WatchStreams
from onelog import AsyncClient
from onelog.channel import Channel
from onelog.cli.bench.workloads import Load, Run, Step, append, enqueue, get, lease_and_ack, put
from onelog.projections.limits import VALUE_SIZE_MAX
from onelog.v1 import pipeline_pb2
from tests.system.nodes import ServeProcess, nodes

SATURATING, OVERLOADING = 128, 512
DEADLINE_S = 1.0
TURNS, TURN_S, WARM_UP_S = 3, 2.0, 0.5
AMOUNT = 20_000
VALUE = bytes(100)
WATCHERS, PUTS = 1_000, 30
QUICK_PART, QUICK_S = 200, 0.1
MAKERS = 128
TIMEOUT_S = 60.0
HOUR_S = 3600.0
KEYS_AT_ONCE = 1_000
PROBES = 100
RESTARTS = 3
SESSION_SHARDS = 2


@dataclass(frozen=True)
class Population:
    """Many objects of one kind: ``make`` makes those with these numbers."""

    name: str
    count: int
    make: Callable[[AsyncClient, Channel, range], Awaitable[None]]
    makers: int = MAKERS
    at_once: int = 1
    shards: int = 1  # as many as the limits of a shard need


async def make_queue(client: AsyncClient, _channel: Channel, numbers: range) -> None:
    queue = client.queue(f"queue-{numbers.start}")
    await queue.create()
    await queue.enqueue(VALUE)


async def make_stream(client: AsyncClient, _channel: Channel, numbers: range) -> None:
    stream = client.stream(f"stream-{numbers.start}")
    await stream.create()
    await stream.append(VALUE)


async def make_lease(client: AsyncClient, _channel: Channel, numbers: range) -> None:
    key = f"leased-{numbers.start}"
    lease = await client.kv.lease(HOUR_S, key=key)
    await client.kv.put(key, VALUE, lease=lease)


async def open_session(_client: AsyncClient, channel: Channel, numbers: range) -> None:
    shard = numbers.start % SESSION_SHARDS
    request = pipeline_pb2.OpenSessionRequest(shard=shard, ttl_ms=int(HOUR_S * 1e3))
    path = "/onelog.v1.Pipeline/OpenSession"
    await channel.unary(path, request.SerializeToString(), TIMEOUT_S)


async def put_keys(client: AsyncClient, _channel: Channel, numbers: range) -> None:
    await client.kv.put_many((f"many-{number}", VALUE) for number in numbers)


async def put_largest(client: AsyncClient, _channel: Channel, numbers: range) -> None:
    key, value = f"large-{numbers.start}", os.urandom(VALUE_SIZE_MAX)
    await client.kv.put(key, value)
    found = await client.kv.get(key)
    assert found is not None
    assert found.value == value


POPULATIONS = (
    Population("queues, each with a message", 20_000, make_queue, shards=4),
    Population("streams, each with a record", 20_000, make_stream, shards=4),
    Population("leases, each with a key", 100_000, make_lease),
    Population("sessions", 100_000, open_session, shards=SESSION_SHARDS),
    Population("keys", 1_000_000, put_keys, makers=4, at_once=KEYS_AT_ONCE),
    Population("values of the largest size", 32, put_largest, makers=2),
)
OVERLOADS: dict[str, Callable[[Load], Awaitable[Step]]] = {
    "put": put,
    "get": get,
    "enqueue": enqueue,
    "lease and ack": lease_and_ack,
    "append": append,
}


@asynccontextmanager
async def serving(shards: int = 1) -> AsyncIterator[ServeProcess]:
    """Run a node until the end."""
    with (
        tempfile.TemporaryDirectory(prefix="onelog-bench-") as directory,
        nodes(Path(directory), "n1", shards=str(shards)) as made,
    ):
        node = made["n1"].start()
        await asyncio.to_thread(node.until_ready)
        yield node


# Overload


async def overload(name: str, part: int) -> dict[str, Any]:
    """Measure a case with enough callers and with too many."""
    seconds = TURN_S if part == 1 else QUICK_S
    rates: dict[int, list[float]] = {SATURATING: [], OVERLOADING: []}
    errors: dict[int, int] = {SATURATING: 0, OVERLOADING: 0}
    p99_ms: dict[int, list[float]] = {SATURATING: [], OVERLOADING: []}
    async with serving() as node:
        before_mib = node.rss_mib
        endpoints = [node.flags["listen"]]
        async with AsyncClient(endpoints, timeout_s=DEADLINE_S) as client:
            load = Load(client, VALUE, amount=AMOUNT // part)
            step = await OVERLOADS[name](load)
            await Run().repeat(step, SATURATING, seconds=WARM_UP_S)
            for _ in range(TURNS):
                for callers in (SATURATING, OVERLOADING):
                    run = Run()
                    await run.repeat(step, callers, seconds=seconds)
                    rates[callers].append(run.per_s)
                    errors[callers] += run.errors.total()
                    p99_ms[callers].append(run.durations.percentile_s(0.99) * 1e3)
        after_mib = node.rss_mib
    many = median(rates[OVERLOADING])
    enough = median(rates[SATURATING])
    return {
        "case": f"{name} by {OVERLOADING} callers",
        "per_s": [round(enough), round(many)],
        "ratio": round(many / enough, 2),
        "p99_ms": [round(median(each), 1) for each in p99_ms.values()],
        "not_in_time": list(errors.values()),
        "rss_mib": [round(before_mib), round(after_mib)],
    }


async def watch(part: int) -> dict[str, Any]:
    """Measure events a second with some watchers and with all."""
    rates = []
    counts = [max(1, WATCHERS // 4 // part), max(2, WATCHERS // part)]
    async with serving() as node:
        rss = [round(node.rss_mib)]
        async with AsyncClient([node.flags["listen"]], timeout_s=TIMEOUT_S) as client:
            streams = WatchStreams(node.flags["listen"])
            for count in counts:
                await streams.open(count - streams.count)
                begun_s = time.perf_counter()
                for _ in range(max(2, PUTS // part)):
                    streams.expect_event()
                    await client.kv.put(b"k", b"v")
                    await streams.all_received()
                taken_s = time.perf_counter() - begun_s
                rates.append(count * max(2, PUTS // part) / taken_s)
                rss.append(round(node.rss_mib))
            streams.close()
    return {
        "case": f"events to {counts[1]} watchers",
        "per_s": [round(each) for each in rates],
        "ratio": round(rates[1] / rates[0], 2),
        "rss_mib": rss,
    }


# Populations


async def populate(population: Population, part: int) -> dict[str, Any]:
    """Make objects, and measure the node before, with half of them, and with all."""
    count = max(4, population.count // part)
    half = count // 2
    async with serving(population.shards) as node:
        starts, rss = [await restart(node)], [round(node.rss_mib)]
        put_ms = [await probe(node)]
        rates = []
        for numbers in (range(half), range(half, count)):
            begun_s = time.perf_counter()
            await make_all(node, population, numbers)
            rates.append(len(numbers) / (time.perf_counter() - begun_s))
            put_ms.append(await probe(node))
            rss.append(round(node.rss_mib))
            starts.append(await restart(node))
        rss.append(round(node.rss_mib))
    empty_s, half_s, full_s = (cpu_s for _, cpu_s in starts)
    return {
        "case": f"{count:,} {population.name}",
        "made_per_s": [round(each) for each in rates],
        "made_ratio": round(rates[1] / rates[0], 2),
        "restart_s": [round(wall_s, 2) for wall_s, _ in starts],
        "restart_cpu_s": [round(cpu_s, 2) for _, cpu_s in starts],
        "restart_ratio": round((full_s - half_s) / max(half_s - empty_s, 0.01), 2),
        "put_ms": [round(put_ms[0], 2), round(put_ms[-1], 2)],
        "rss_mib": rss,
    }


async def make_all(node: ServeProcess, population: Population, numbers: range) -> None:
    """Make all of these with ``at_once`` makers; any error ends the run."""
    step = population.at_once
    parts = iter([numbers[at : at + step] for at in range(0, len(numbers), step)])
    endpoint = node.flags["listen"]
    channel = Channel(endpoint)
    try:
        async with AsyncClient([endpoint], timeout_s=TIMEOUT_S) as client:

            async def work() -> None:
                for each in parts:
                    await population.make(client, channel, each)

            async with asyncio.TaskGroup() as group:
                for _ in range(population.makers):
                    group.create_task(work())
    finally:
        await channel.close()


async def probe(node: ServeProcess) -> float:
    """Return the median of a put by a client that makes no other call, in milliseconds."""
    taken_s = []
    async with AsyncClient([node.flags["listen"]], timeout_s=TIMEOUT_S) as client:
        for number in range(PROBES):
            begun_s = time.perf_counter()
            await client.kv.put(f"probe-{number % 10}", VALUE)
            taken_s.append(time.perf_counter() - begun_s)
    return median(taken_s) * 1e3


async def restart(node: ServeProcess) -> tuple[float, float]:
    """Kill the node and start it until it serves: seconds, and those of a core, medians of some."""
    taken_s, cpu_s = [], []
    for _ in range(RESTARTS):
        node.kill()
        begun_s = time.perf_counter()
        node.start()
        await asyncio.to_thread(node.until_ready)
        taken_s.append(time.perf_counter() - begun_s)
        cpu_s.append(node.cpu_s)
    return median(taken_s), median(cpu_s)


def write_row(row: dict[str, Any]) -> str:
    """Return a row of one of the two tables of docs/operations.md."""
    if "ratio" in row:
        cells = [row["case"], " and ".join(f"{each:,}" for each in row["per_s"]), row["ratio"]]
        cells.append(" and ".join(f"{each:g}" for each in row.get("p99_ms", ())) or "-")
        cells.append(" and ".join(map(str, row.get("not_in_time", ()))) or "-")
    else:
        made = " and ".join(f"{each:,}" for each in row["made_per_s"])
        restart_s = ", ".join(f"{each:g}" for each in row["restart_cpu_s"])
        put_ms = " and ".join(f"{each:g}" for each in row["put_ms"])
        cells = [row["case"], made, row["made_ratio"], restart_s, put_ms]
    cells.append(", ".join(map(str, row["rss_mib"])))
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only cases whose names contain this")
    parser.add_argument("--quick", action="store_true", help="see only that everything works")
    parser.add_argument("--table", action="store_true", help="print rows of docs/operations.md")
    given = parser.parse_args()
    part = QUICK_PART if given.quick else 1

    cases: dict[str, Callable[[], Coroutine[Any, Any, dict[str, Any]]]] = {
        **{f"overload: {name}": partial(overload, name, part) for name in OVERLOADS},
        "watchers": partial(watch, part),
        **{each.name: partial(populate, each, part) for each in POPULATIONS},
    }
    for name, measure in cases.items():
        if given.only in name:
            row = uvloop.run(measure())
            print(write_row(row) if given.table else json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
