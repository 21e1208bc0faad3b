"""Many short series, written and queried, in turns with VictoriaMetrics; a line of JSON a row.

``python bench/many_series.py [--series 10000] [--turns 3] [--quick]``. Each system is one process
with default settings, and each turn begins with new ones. The ratio is ours divided by theirs; the
median of the turns is shown. Times are those that a client sees. Answers are compared, so nobody
gains by leaving something out. VictoriaMetrics syncs nothing before it answers; onelog does.

VictoriaMetrics is a package of Debian: ``apt-get install victoria-metrics``. Without it only
onelog's times are shown.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.api import serving
from bench.peers_processes import answers, find_exit_code, running
from onelog import AsyncClient, SeriesData
from tests.system.ports import free_addresses

POINTS = 20
STEP_S = 10
GROUPS = 10
TIMEOUT_S = 120.0
WRITE_CALLERS = 8
GOAL = 3.0
PROGRAM = "victoria-metrics"

Times = dict[str, float]


class Data:
    """The points: ``POINTS`` of each series, ``STEP_S`` apart, up to an hour ago."""

    def __init__(self, count: int) -> None:
        values = np.random.default_rng(1).random((count, POINTS)).round(6)
        self.begin_s = int(time.time()) // 3600 * 3600 - 7200
        times_ns = (np.arange(POINTS) * STEP_S + self.begin_s) * 10**9
        self.end_s = self.begin_s + POINTS * STEP_S
        self.count = count
        self.series = [
            SeriesData(
                {"host": f"h{number:05}", "dc": f"d{number % GROUPS}"},
                times_ns,
                {"value": values[number]},
            )
            for number in range(count)
        ]

    def lines(self) -> bytes:
        """Return them as VictoriaMetrics imports them."""
        lines = (
            json.dumps(
                {
                    "metric": {"__name__": "cpu", **each.tags},
                    "values": each.fields["value"].tolist(),
                    "timestamps": (each.times_ns // 10**6).tolist(),
                }
            )
            for each in self.series
        )
        return "\n".join(lines).encode()


# onelog


async def run_onelog(data: Data) -> tuple[Times, dict[str, int]]:
    """Return how long each row took, and how many results it had."""
    times: Times = {}
    counts: dict[str, int] = {}
    with serving(1, 1) as cluster:
        async with AsyncClient(cluster.endpoints, timeout_s=TIMEOUT_S) as client:
            begin_ns, end_ns = data.begin_s * 10**9, data.end_s * 10**9

            async def timed(name: str, work: Callable[[], Awaitable[int]]) -> None:
                begin_s = time.perf_counter()
                counts[name] = await work()
                times[name] = time.perf_counter() - begin_s

            async def write_many() -> int:
                return await client.ts.write_many("cpu", data.series)

            async def write_each() -> int:
                written = 0

                async def some(part: list[SeriesData]) -> None:
                    nonlocal written
                    for each in part:
                        written += await client.ts.write(
                            "each", each.times_ns, each.fields, tags=each.tags
                        )

                callers = WRITE_CALLERS * 32
                await asyncio.gather(*(some(data.series[at::callers]) for at in range(callers)))
                return written

            def query(**options: Any) -> Callable[[], Awaitable[int]]:
                async def ask() -> int:
                    return len(await client.ts.query("cpu", "value", begin_ns, end_ns, **options))

                return ask

            await timed("write, all in one call", write_many)
            await timed("write, a call for each series", write_each)
            window = {"window_s": POINTS * STEP_S}
            await timed("mean by group", query(aggregate="mean", group_by=["dc"], **window))
            await timed("mean of each series", query(aggregate="mean", by_series=True, **window))
            await timed(
                "99th percentile by group",
                query(aggregate="percentile", percentile=99.0, group_by=["dc"], **window),
            )
            await timed("points of all series", query())
            await timed("points of one series", query(where={"host": "h00007"}))
    return times, counts


# VictoriaMetrics


@contextmanager
def serving_victoria() -> Iterator[str]:
    """Run one, and return its URL."""
    with tempfile.TemporaryDirectory(prefix="onelog-bench-") as name:
        (address,) = free_addresses(1)
        command = [PROGRAM, f"-httpListenAddr={address}", f"-storageDataPath={name}/data"]
        with running(PROGRAM, command, Path(name)) as made:
            made.until(lambda: answers(f"http://{address}/health"), "it is healthy")
            yield f"http://{address}"


def ask_victoria(url: str, path: str, **fields: Any) -> list[Any]:
    query = urllib.parse.urlencode(fields)
    with urllib.request.urlopen(f"{url}{path}?{query}", timeout=TIMEOUT_S) as answer:
        found = json.load(answer)
    result: list[Any] = found["data"]["result"]
    return result


def post(url: str, data: bytes) -> None:
    with urllib.request.urlopen(url, data=data, timeout=TIMEOUT_S) as answer:
        assert answer.status in (200, 204), answer.status


def run_victoria(data: Data) -> tuple[Times, dict[str, int]]:
    """Return how long each row took, and how many results it had."""
    times: Times = {}
    counts: dict[str, int] = {}
    with serving_victoria() as url:
        lines = data.lines()

        def timed(name: str, work: Callable[[], int]) -> None:
            begin_s = time.perf_counter()
            counts[name] = work()
            times[name] = time.perf_counter() - begin_s

        def write() -> int:
            post(f"{url}/api/v1/import", lines)
            return data.count * POINTS

        def query(text: str) -> Callable[[], int]:
            moment = data.end_s - 1
            return lambda: len(ask_victoria(url, "/api/v1/query", query=text, time=moment))

        timed("write, all in one call", write)
        times["write, a call for each series"] = times["write, all in one call"]
        post(f"{url}/internal/force_flush", b"")
        span = f"{POINTS * STEP_S}s"
        timed("mean by group", query(f"avg(avg_over_time(cpu[{span}])) by (dc)"))
        timed("mean of each series", query(f"avg_over_time(cpu[{span}])"))
        timed(
            "99th percentile by group",
            query(f"quantile(0.99, quantile_over_time(0.99, cpu[{span}])) by (dc)"),
        )

        def export(match: str) -> int:
            fields = {"match[]": match, "start": data.begin_s, "end": data.end_s}
            found = urllib.parse.urlencode(fields)
            with urllib.request.urlopen(f"{url}/api/v1/export?{found}", timeout=TIMEOUT_S) as all_:
                return sum(bool(json.loads(line)["values"]) for line in all_)

        timed("points of all series", lambda: export("cpu"))
        timed("points of one series", lambda: export('cpu{host="h00007"}'))
    return times, counts


def run(count: int, turns: int) -> None:
    data = Data(count)
    has_peer = shutil.which(PROGRAM) is not None
    ours: list[Times] = []
    theirs: list[Times] = []
    for _ in range(turns):
        times, counts = asyncio.run(run_onelog(data))
        ours.append(times)
        if has_peer:
            times, peer_counts = run_victoria(data)
            theirs.append(times)
            alike = {name for name in peer_counts if counts[name] == peer_counts[name]}
            assert alike == set(peer_counts), (counts, peer_counts)
    for name in ours[0]:
        row: dict[str, Any] = {"bench": "many_series", "row": name, "series": count}
        row["onelog_ms"] = round(median(each[name] for each in ours) * 1e3, 1)
        if theirs:
            row["victoria_ms"] = round(median(each[name] for each in theirs) * 1e3, 1)
            ratios = [a[name] / b[name] for a, b in zip(ours, theirs, strict=True)]
            row |= {"ratio": round(median(ratios), 2), "goal": GOAL}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="see only that everything works")
    given = parser.parse_args()
    if given.quick:
        given.series, given.turns = 200, 1
    sys.exit(find_exit_code(lambda: run(given.series, given.turns)))
