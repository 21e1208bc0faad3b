"""Spark tables compared with Parquet, with ready Arrow batches and with loops: JSON lines.

``python bench/spark.py [--rows N] [--only CASE,…] [--views VIEW,…]``. Contenders run in turns, and
a result is the median of five ratios within one run, with the CPU time of Java and Python.
``speed`` is how many times as fast as the other contender the first one is; ``goal`` is the least
that it should be.

Cases: tables, headers, loops, snapshot, series, export, scaling, appends, memory, planning.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.spark_data import DRAFTS, write_directory, write_many_segments
from bench.spark_turns import TURNS, compare, measure, report
from onelog.spark.columns.views import VIEWS
from onelog.spark.options import ReadOptions
from onelog.spark.session import find_problem, start_session
from onelog.spark.table import Table, load_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEADER_COLUMNS = ("shard", "index", "timestamp_ns")
LOOP_ROWS_MAX = 60_000  # a loop is slow, and its speed does not depend on how long it runs
SEGMENTS = 10_000
GOAL_PLANNING_S = 10
APPENDS_MAX = 50_000
BLOCK_POINTS_RATIO = 5  # points from blocks are faster than rows, and have to be more


class Bench:
    """A session, and a directory with the data of each view."""

    def __init__(self, root: Path, rows: int, master: str, views: list[str]) -> None:
        self.root = root
        self.rows = rows
        self.views = views
        self.master = master
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> "SparkSession":
        """The session, started on first use."""
        if self._spark is None:
            self._spark = self.start(self.master)
        return self._spark

    def start(self, master: str) -> "SparkSession":
        """Start a session that keeps to this machine."""
        session = start_session(
            master=master,
            app_name="bench",
            settings={
                "spark.driver.memory": "1g",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.sql.shuffle.partitions": "2",
                "spark.local.dir": str(self.root / "scratch"),
            },
        )
        session.sparkContext.setLogLevel("ERROR")
        return session

    def stop(self) -> None:
        """End the session."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    def log(self, view: str) -> Path:
        """Return a data directory for a view."""
        path = self.root / "logs" / DRAFTS[view].__name__
        if not path.exists():
            write_directory(path, DRAFTS[view](self.rows))
        return path

    def table(self, view: str, rows: int | None = None) -> Table:
        """Return a view without Spark, of at most these entries."""
        options = {"view": view, "path": str(self.log(view))}
        if rows is not None:
            last = load_table(ReadOptions.parse(options, VIEWS)).ranges[0].last_index
            options["to_index"] = str(min(rows, last))
        return load_table(ReadOptions.parse(options, VIEWS))

    def copy(self, view: str, kind: str) -> Path:
        """Return the rows of a view in one file for each split, as Parquet or as Arrow."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        folder = self.root / kind / view
        if not folder.exists():
            folder.mkdir(parents=True)
            table = self.table(view)
            schema = table.view.schema
            for number, split in enumerate(table.splits()):
                path = folder / f"{number:05d}.{kind}"
                writer: Any = (
                    pq.ParquetWriter(path, schema)
                    if kind == "parquet"
                    else pa.ipc.new_file(str(path), schema)
                )
                with writer:
                    for batch in table.batches(split, None):
                        writer.write_batch(batch)
        return folder

    def read(self, view: str, **options: str) -> "DataFrame":
        """Return a view as Spark sees it."""
        reader = self.spark.read.format("onelog").options(view=view, **options)
        return reader.load(str(self.log(view)))


def consume(frame: "DataFrame") -> None:
    """Read all rows and columns of a frame, and do nothing with them."""
    frame.write.format("noop").mode("overwrite").save()


def bench_tables(bench: Bench) -> None:
    """Compare all columns of each view with Parquet, and those of the log with ready batches."""
    register_ready(bench.spark)
    for view in bench.views:
        ours = bench.read(view)
        steps = {
            "onelog": partial(consume, ours),
            "parquet": partial(consume, bench.spark.read.parquet(str(bench.copy(view, "parquet")))),
        }
        goals = {"parquet": 0.3 if view == "log" else 0.25}
        if view == "log":
            ready = bench.spark.read.format("ready").load(str(bench.copy(view, "arrow")))
            steps["ready batches"] = partial(consume, ready)
            goals["ready batches"] = 0.6
        compare(f"all columns of {view}", steps, goals=goals, rows=ours.count())


def register_ready(spark: "SparkSession") -> None:
    """Register a source that returns batches of Arrow files, the least possible work."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.pandas.types import from_arrow_schema

    class Reader(DataSourceReader):
        def __init__(self, path: str) -> None:
            self.path = path

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(str(each)) for each in sorted(Path(self.path).iterdir())]

        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            with pa.memory_map(partition.value) as source:
                file = pa.ipc.open_file(source)
                for number in range(file.num_record_batches):
                    yield file.get_batch(number)

    class Ready(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> Any:
            first = min(Path(self.options["path"]).iterdir())
            with pa.memory_map(str(first)) as source:
                schema = pa.ipc.open_file(source).schema
            return from_arrow_schema(schema, prefer_timestamp_ntz=False)

        def reader(self, schema: Any) -> Reader:  # noqa: ARG002 - Spark's
            return Reader(self.options["path"])

    spark.dataSource.register(Ready)


def bench_headers(bench: Bench) -> None:
    """Compare three columns that headers have with the same columns of Parquet."""
    parquet = bench.spark.read.parquet(str(bench.copy("log", "parquet")))
    ours = bench.read("log", columns=",".join(HEADER_COLUMNS))
    steps = {
        "onelog": partial(consume, ours),
        "parquet": partial(consume, parquet.select(*HEADER_COLUMNS)),
    }
    compare("three header columns", steps, goals={"parquet": 0.4}, rows=ours.count())


def bench_loops(bench: Bench) -> None:
    """Compare the columns of each view, without Spark, with a loop over the same entries."""
    from bench.spark_loops import loop_over

    for view in bench.views:
        entries = LOOP_ROWS_MAX if view != "timeseries_operations" else LOOP_ROWS_MAX // 1_000
        table = bench.table(view, entries)
        rows = read_alone(table)
        steps = {
            "columns": partial(read_alone, table),
            "loop": partial(loop_over, bench.log(view), view, entries),
        }
        compare(f"decoding {view}", steps, goals={"loop": 5}, rows=rows)


def read_alone(table: Table) -> int:
    """Read a table in this process; return its rows."""
    splits = table.splits()
    return sum(batch.num_rows for each in splits for batch in table.batches(each, None))


def bench_snapshot(bench: Bench) -> None:
    """Compare a snapshot as a table with loading it."""
    from bench.spark_loops import write_keys
    from onelog.projections.shard_state import build_projections
    from onelog.snapshot.reader import SnapshotReader
    from onelog.snapshot.state import load_state
    from onelog.spark.columns.sections import SECTION_TABLES
    from onelog.ual.files import DiskFiles
    from onelog.ual.segments.notes import ApplyNotes

    path = write_keys(bench.root / "snapshot", bench.rows)
    kv = SECTION_TABLES["kv"]

    def as_table() -> int:
        reader = SnapshotReader.open(DiskFiles(), path)
        return sum(batch.num_rows for batch in kv.rows(reader.chunks(kv.section_type)))

    def load() -> None:
        state = build_projections(ApplyNotes())
        load_state(SnapshotReader.open(DiskFiles(), path), state.router)

    assert as_table() == bench.rows
    compare(
        "a snapshot", {"table": as_table, "loading": load}, goals={"loading": 5}, rows=bench.rows
    )


def bench_series(bench: Bench) -> None:
    """Report points a second of one process, all columns: from batches, and from blocks."""
    from bench.spark_loops import write_series
    from onelog.spark.state import STATE_VIEWS, load_state_table

    batches = bench.table("timeseries_operations")
    path = write_series(bench.root / "series", bench.rows * BLOCK_POINTS_RATIO)
    read = ReadOptions.parse({"view": "timeseries", "path": str(path)}, STATE_VIEWS)
    state = load_state_table(read, {})

    def from_blocks() -> int:
        parts = state.parts
        return sum(batch.num_rows for each in parts for batch in state.batches(each, None))

    for case, step, goal in (
        ("points from batches", partial(read_alone, batches), 1_000_000),
        ("points from blocks", from_blocks, 5_000_000),
    ):
        points = step()
        costs = [measure(step) for _ in range(TURNS)]
        report(
            case,
            points_per_s=round(points / median(each.wall_s for each in costs)),
            points_per_cpu_s=round(points / median(each.python_s for each in costs)),
            goal=goal,
            points=points,
        )


def bench_export(bench: Bench) -> None:
    """Compare an export with Spark's copy of the same rows from Parquet to Parquet."""
    parquet = bench.spark.read.parquet(str(bench.copy("log", "parquet")))
    copied = str(bench.root / "copied")
    steps = {
        "export": export_step(bench, bench.spark),
        "copy": lambda: parquet.write.mode("overwrite").parquet(copied),
    }
    compare("an export of the log", steps, goals={"copy": 1.0}, rows=bench.rows)


def export_step(bench: Bench, spark: "SparkSession") -> Callable[[], None]:
    """Return an export of the log to a directory that is new each time."""
    from onelog.spark.export.job import run_export
    from onelog.spark.export.plan import ExportRequest
    from onelog.spark.export.spark_runner import SparkRunner
    from onelog.spark.export.target import DirectoryTarget
    from onelog.spark.table import open_origin

    target = bench.root / "exported"
    options = ReadOptions.parse({"view": "log", "path": str(bench.log("log"))}, VIEWS)
    # Several parts for each core, however few rows there are.
    size = sum(each.stat().st_size for each in bench.log("log").rglob("*.flseg"))

    def export() -> None:
        shutil.rmtree(target, ignore_errors=True)
        request = ExportRequest(
            options,
            open_origin(options),
            DirectoryTarget(str(target), target),
            split_bytes=max(min(64 << 20, size // 6), 1 << 20),
        )
        run_export(request, SparkRunner(spark))

    return export


def bench_scaling(bench: Bench) -> None:
    """Compare an export with two cores with one with one; each session is a new one."""
    ratios = []
    for _ in range(3):
        walls = []
        for master in ("local[2]", "local[1]"):
            bench.stop()
            spark = bench.start(master)
            step = export_step(bench, spark)
            step()
            walls.append(min(measure(step).wall_s for _ in range(3)))
            spark.stop()
        ratios.append(walls[1] / walls[0])
    report(
        "an export with local[2] beside local[1]",
        speed=round(sorted(ratios)[1], 2),
        speeds=[round(each, 2) for each in ratios],
        goal=1.6,
        rows=bench.rows,
    )


def bench_appends(bench: Bench) -> None:
    """Compare a frame that is written to a stream once with ``append_many`` of the same records."""
    from bench.spark_loops import serving
    from onelog import Client

    rows = min(bench.rows, APPENDS_MAX)
    value = "v" * 100
    with serving(bench.root / "server") as endpoint, Client(endpoint) as client:
        stream = client.stream("records")
        stream.create()
        frame = bench.spark.range(0, rows, numPartitions=2).selectExpr(f"'{value}' as value")

        def write() -> None:
            frame.write.format("onelog").mode("append").options(
                endpoint=endpoint, to="stream", stream="records"
            ).save()

        def append() -> None:
            for first in range(0, rows, 1_000):
                stream.append_many([value] * min(1_000, rows - first))

        compare(
            "appends that are written once",
            {"df.write": write, "append_many": append},
            goals={"append_many": 0.5},
            rows=rows,
        )


def bench_memory(bench: Bench) -> None:
    """Report how much the memory of a process grows when it reads all columns."""
    for view in bench.views:
        table = bench.table(view)
        splits = table.splits()
        pid = os.fork()
        if pid == 0:
            before = peak_after_reset()
            for split in splits:
                for batch in table.batches(split, None):
                    del batch
            report(f"memory of {view}", mib=round((peak() - before) / 1024, 1), goal_mib_max=300)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0


def peak_after_reset() -> int:
    """Forget the peak of this process; return what it has now, in KiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """Return the most memory that this process has had, in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("the kernel says no peak")


def bench_planning(bench: Bench) -> None:
    """Report how long the plan of a query over many segments takes."""
    path = write_many_segments(bench.root / "many", SEGMENTS)
    started = time.perf_counter()
    table = load_table(ReadOptions.parse({"view": "log", "path": str(path)}, VIEWS))
    loaded = time.perf_counter()
    splits = table.splits()
    ended = time.perf_counter()
    report(
        f"planning {SEGMENTS:,} segments",
        seconds=round(ended - started, 2),
        cut_s=round(loaded - started, 2),
        splits_s=round(ended - loaded, 2),
        splits=len(splits),
        goal_s_max=GOAL_PLANNING_S,
    )


CASES: dict[str, Callable[[Bench], None]] = {
    "tables": bench_tables,
    "headers": bench_headers,
    "loops": bench_loops,
    "snapshot": bench_snapshot,
    "series": bench_series,
    "export": bench_export,
    "scaling": bench_scaling,
    "appends": bench_appends,
    "memory": bench_memory,
    "planning": bench_planning,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--only", help=f"some of {', '.join(CASES)}, with commas")
    parser.add_argument("--views", help="only these, of cases that go through views")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--directory", type=Path, help="where to write; default: a temporary one")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else list(CASES)
    views = arguments.views.split(",") if arguments.views else list(DRAFTS)
    unknown = {*chosen} - {*CASES} | {*views} - {*DRAFTS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    problem = find_problem()
    if problem is not None:
        report("spark", left_out=str(problem))
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        bench = Bench(Path(name), arguments.rows, arguments.master, views)
        try:
            for case in chosen:
                CASES[case](bench)
        finally:
            bench.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
