"""Time series: the cost of writing, keeping, compressing and querying points.

One JSON line per case. Writes go through ``router.apply`` as the log passes entries on (plain, and
with their payload compressed, as in a log). Each is compared with a bare loop in the same run that
appends as many bytes to as many bytearrays, without names, hash or state. ``goal`` is the target of
a figure. All times are CPU time of this process, so other work on the machine matters less; queries
show the best of several rounds and the median.

    .venv/bin/python bench/models_ts.py [--series N] [--points N] [--seed N]
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onelog.projections.kv.projection import KV
from onelog.projections.projection import Position, Projection
from onelog.projections.result import Applied
from onelog.projections.router import ProjectionRouter
from onelog.projections.system.projection import System
from onelog.projections.system.sessions import Fingerprints
from onelog.projections.timeseries.aggregate import Function
from onelog.projections.timeseries.commands import Write, encode_command, encode_write_batch
from onelog.projections.timeseries.limits import BUFFER_POINTS
from onelog.projections.timeseries.names import Matcher, Operator, series_name
from onelog.projections.timeseries.point_batch import Run, encode_batch
from onelog.projections.timeseries.projection import TimeSeries
from onelog.projections.timeseries.query import Query
from onelog.projections.timeseries.types import FieldType
from onelog.ual.entry import FLAG_ZSTD, OWNER_KV, OWNER_TIMESERIES, Draft, Entry, compress
from tests.projections.timeseries.ts_queries import Queries

SERIES = 100
POINTS = 10_000  # per series
BATCH_POINTS = 5_000
NAMESPACE = "default"
STEP_NS = 10_000_000_000
START_NS = 1_700_000_000_000_000_000
MINUTE_NS = 60_000_000_000
GOAL_WRITE = 1.0  # million points a second
GOAL_QUERY_MS = 14.0
GOAL_ONE_MS = 1.0
GOAL_BYTES = 3.0
ROUNDS = 15


class NoNotes:
    def add_record(self, stream_id: int, index: int) -> None:
        raise AssertionError(f"no streams here: {stream_id} {index}")

    def add_void(self, first_index: int, last_index: int) -> None:
        raise AssertionError(f"refused: {first_index} to {last_index}")


class Shard:
    """Keys and time series with a log that is a dict."""

    def __init__(self) -> None:
        position = Position()
        kv = KV(position)
        self.series = TimeSeries(position, kv)
        table: dict[int, Projection] = {OWNER_KV: kv, OWNER_TIMESERIES: self.series}
        self.router = ProjectionRouter(
            table,
            NoNotes(),
            system=System(table),
            checker=kv,
            position=position,
            fingerprints=Fingerprints({}, {}),
        )
        self.log: dict[int, bytes] = {}
        self.queries = Queries(self.series, self.log.__getitem__)

    def entry(self, draft: Draft, *, packed: bool = False) -> Entry:
        payload, flags = draft.payload, 0
        if packed:
            smaller = compress(payload)
            if smaller is not None:
                payload, flags = smaller, FLAG_ZSTD
        return Entry(draft.entry_type, flags, 1, self.router.applied_index + 1, 1, 0, payload)

    def apply(self, draft: Draft) -> None:
        entry = self.entry(draft)
        self.log[entry.index] = draft.payload
        assert isinstance(self.router.apply(entry), Applied)

    def work(self) -> int:
        """Apply the blocks that a leader proposes; return how many."""
        count = 0
        while drafts := self.router.due(1, 1_000):
            for draft in drafts:
                self.apply(draft)
                count += 1
        return count


def report(case: str, **figures: float | int | str) -> None:
    rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps({"case": case, **rounded}), flush=True)


def resident_size() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def make_names(count: int) -> list[bytes]:
    return [series_name("cpu", {"host": f"h{n:05d}", "zone": f"z{n % 4}"}) for n in range(count)]


def gauge(draw: np.random.Generator, points: int) -> NDArray[np.float64]:
    """Return a gauge that moves slowly and has two decimals."""
    return np.round(20 + np.cumsum(draw.normal(0, 0.05, points)), 2)


def batches(names: list[bytes], points: int, draw: np.random.Generator) -> Iterator[Draft]:
    """Yield batches of BATCH_POINTS over all series, which together hold ``points`` of each."""
    values = [gauge(draw, points) for _ in names]
    size = max(1, BATCH_POINTS // len(names))
    for start in range(0, points, size):
        times = START_NS + np.arange(start, min(start + size, points)) * STEP_NS
        runs = [
            Run(name, "usage", FieldType.F64, times, of_series[start : start + len(times)])
            for name, of_series in zip(names, values, strict=True)
        ]
        yield encode_write_batch(encode_batch(runs), NAMESPACE)


def own_times(names: list[bytes], points: int, draw: np.random.Generator) -> list[Draft]:
    """Return batches in which every series has timestamps of its own."""
    size = max(1, BATCH_POINTS // len(names))
    drafts = []
    for start in range(0, points, size):
        runs = []
        for name in names:
            jitter = draw.integers(0, 1_000_000_000, size)
            times = START_NS + np.arange(start, start + size) * STEP_NS + jitter
            runs.append(Run(name, "usage", FieldType.F64, times, gauge(draw, size)))
        drafts.append(encode_write_batch(encode_batch(runs), NAMESPACE))
    return drafts


def bare_append(drafts: list[Draft], series: int) -> float:
    """Return the seconds that bare appends of the same amounts of bytes take."""
    columns = [(bytearray(), bytearray()) for _ in range(series)]
    size = max(1, BATCH_POINTS // series) * 8
    data = bytes(16 * BATCH_POINTS)
    started = time.process_time()
    for _ in drafts:
        view = memoryview(data)
        for at, (times, values) in enumerate(columns):
            times += view[at * size : (at + 1) * size]
            values += view[at * size : (at + 1) * size]
    return time.process_time() - started


def run_writes(case: str, drafts: list[Draft], series: int, *, packed: bool = False) -> None:
    best = 0.0
    rates = []
    for _ in range(3):
        shard = Shard()
        shard.router.apply(shard.entry(drafts[0]))  # creates the series
        spent = points = 0.0
        for draft in drafts[1:]:
            entry = shard.entry(draft, packed=packed)
            started = time.process_time()
            result = shard.router.apply(entry)
            spent += time.process_time() - started
            assert isinstance(result, Applied), result
            points += result.number
            shard.work()
        rates.append(points / spent / 1e6)
        best = max(best, rates[-1])
    bare = points / bare_append(drafts[1:], series) / 1e6
    report(
        case,
        million_points_s=best,
        median=statistics.median(rates),
        goal=GOAL_WRITE,
        bare_append_million_points_s=bare,
    )


def run_rows(names: list[bytes]) -> None:
    shard = Shard()
    drafts = [
        encode_command(Write(name, START_NS + n * STEP_NS, (("usage", n / 4),)), NAMESPACE)
        for n in range(200)
        for name in names[:100]
    ]
    entries = [
        Entry(draft.entry_type, 0, 1, index, 1, 0, draft.payload)
        for index, draft in enumerate(drafts, 1)
    ]
    started = time.process_time()
    for entry in entries:
        shard.router.apply(entry)
    report("ts_write, one point", operation_us=(time.process_time() - started) / len(drafts) * 1e6)


def run_new_series(count: int) -> None:
    shard = Shard()
    drafts = []
    names = make_names(count)
    for start in range(0, count, 1_000):
        part = names[start : start + 1_000]
        runs = [Run(name, "usage", FieldType.F64, [START_NS], [1.0]) for name in part]
        drafts.append(encode_write_batch(encode_batch(runs), NAMESPACE))
    for case in ("new series, one point each", "scrape: known series, one point each"):
        started = time.process_time()
        for draft in drafts:
            shard.router.apply(shard.entry(draft))
        report(case, point_us=(time.process_time() - started) / count * 1e6)


def timed(work: Callable[[], object], rounds: int = ROUNDS) -> tuple[float, float]:
    """Return the best and the median time in milliseconds."""
    spent = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        spent.append((time.process_time() - started) * 1e3)
    return min(spent), statistics.median(spent)


def run_queries(shard: Shard) -> None:
    def ask(query: Query) -> Callable[[], object]:
        return lambda: shard.queries.query(NAMESPACE, query)

    mean = Function.MEAN
    one = (Matcher("host", Operator.EQUAL, "h00007"),)
    cases: list[tuple[str, Query, float]] = [
        ("each series", Query("cpu", "usage", function=mean, window_ns=MINUTE_NS), GOAL_QUERY_MS),
        (
            "all together",
            Query("cpu", "usage", function=mean, window_ns=MINUTE_NS, group_by=()),
            GOAL_QUERY_MS,
        ),
        (
            "by zone",
            Query("cpu", "usage", function=mean, window_ns=MINUTE_NS, group_by=("zone",)),
            GOAL_QUERY_MS,
        ),
        (
            "one series",
            Query("cpu", "usage", function=mean, window_ns=MINUTE_NS, matchers=one),
            GOAL_ONE_MS,
        ),
    ]
    for name, query, goal in cases:
        best, median = timed(ask(query))
        report(f"mean per minute, {name}", best_ms=best, median_ms=median, goal_ms=goal)

    def cold(query: Query) -> Callable[[], object]:
        def run() -> None:
            shard.queries.cache.clear()
            shard.queries.query(NAMESPACE, query)

        return run

    for name, query, _ in (cases[0], cases[3]):
        best, median = timed(cold(query), 5)
        report(f"mean per minute, {name}, no block decoded", best_ms=best, median_ms=median)
    for function in Function:
        query = Query("cpu", "usage", function=function, window_ns=MINUTE_NS)
        best, median = timed(ask(query), 3)
        report(f"{function} per minute, each series", best_ms=best, median_ms=median)


def run_blocks(shard: Shard, blocks: int, seconds: float) -> None:
    indexes = shard.router.pinned(0, shard.router.applied_index)
    size = sum(len(shard.log[index]) for index in indexes)
    points = blocks * BUFFER_POINTS
    report(
        "blocks of a slow gauge",
        bytes_per_point=size / points,
        goal=GOAL_BYTES,
        make_and_apply_ms=seconds / blocks * 1e3,
    )
    sections: dict[int, list[bytes]] = {}

    def dump() -> None:
        sections.update({owner: list(chunks) for owner, chunks in shard.router.dump().items()})

    best, _ = timed(dump, 3)
    other = Shard()
    started = time.process_time()
    other.router.load(sections)
    load_ms = (time.process_time() - started) * 1e3
    assert other.router.state_hash() == shard.router.state_hash()
    report("dump and load", dump_ms=best, load_ms=load_ms)


def run_memory(seed: int) -> None:
    """Fill a fresh process with buffered points and compare its growth with the accounts."""
    for series, points in ((1_000, 1_000), (1_000, 100), (50_000, 1)):
        code = (
            "import sys; sys.path.insert(0, '.');"
            "from bench.models_ts import fill_and_report;"
            f"fill_and_report({series}, {points}, {seed})"
        )
        root = Path(__file__).resolve().parent.parent
        subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def fill_and_report(series: int, points: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    shard = Shard()
    names = make_names(series)
    shard.apply(next(batches(make_names(1), 1, draw)))
    shard.log.clear()
    before = resident_size()
    for start in range(0, points, 50):
        times = START_NS + np.arange(start, min(start + 50, points)) * STEP_NS
        for first in range(0, series, 100):
            runs = [
                Run(name, "usage", FieldType.F64, times, gauge(draw, len(times)))
                for name in names[first : first + 100]
            ]
            draft = encode_write_batch(encode_batch(runs), NAMESPACE)
            shard.router.apply(shard.entry(draft))
    grown = resident_size() - before
    accounted = sum(sum(kinds.values()) for kinds in shard.router.memory().values())
    report(
        f"memory, {series} series of {points} buffered points",
        rss_per_point=grown / series / points,
        accounted_per_point=accounted / series / points,
        rss_per_series=grown / series,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=SERIES)
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = np.random.default_rng(arguments.seed)
    names = make_names(arguments.series)

    drafts = list(batches(names, arguments.points, draw))
    run_writes("ts_write_batch, shared times", drafts, len(names))
    run_writes("ts_write_batch, shared times, zstd", drafts, len(names), packed=True)
    some = own_times(names, arguments.points // 4, draw)
    run_writes("ts_write_batch, times of their own", some, len(names))
    run_rows(names)
    run_new_series(20_000)

    shard = Shard()
    blocks = 0
    seconds = 0.0
    for draft in drafts:
        shard.apply(draft)
        started = time.process_time()
        blocks += shard.work()
        seconds += time.process_time() - started
    run_blocks(shard, blocks, seconds)
    run_queries(shard)
    run_memory(arguments.seed)


if __name__ == "__main__":
    main()
