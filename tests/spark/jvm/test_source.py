"""Tables of Spark over directories and clusters: the same rows as other readers find."""

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onelog.client.sync.client import Client
from onelog.errors import FailedPrecondition
from onelog.spark import register, session
from onelog.spark.columns.views import VIEWS
from onelog.spark.options import ReadOptions
from onelog.spark.table import load_table
from tests.formats.independent_reader import NEVER
from tests.formats.independent_shard import read_shard
from tests.node.services.nodes import Node, single
from tests.spark.shard_dirs import Shard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S = 60.0


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    """A shard with sealed files, and a tail that a snapshot covers."""
    shard = Shard(tmp_path_factory.mktemp("source") / "data", seed=5)
    shard.write_queues(("jobs", "other"))
    shard.write(60)
    shard.seal()
    shard.write(30)
    shard.live.snapshot()
    return shard


def load(spark: "SparkSession", path: Path, view: str = "log", **options: str) -> "DataFrame":
    register(spark)
    return spark.read.format("onelog").options(view=view, **options).load(str(path))


def rows_of(frame: "DataFrame") -> list[dict[str, Any]]:
    """Return all rows in the order of the log."""
    return [row.asDict() for row in frame.orderBy("shard", "index", "position").collect()]


def comparable(value: Any) -> Any:
    """Return a value of Arrow as Spark shows it: times without a zone, maps as dictionaries."""
    if isinstance(value, list | dict) and not value:
        return {}  # an empty map is a list for Arrow
    if isinstance(value, list) and isinstance(value[0], tuple):
        return dict(value)
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value


def test_rows_of_the_log_equal_those_of_the_independent_reader(
    spark: "SparkSession", shard: Shard
) -> None:
    entries, segments = read_shard(shard.live.paths.root)
    last_index = shard.last_index
    voids = [void for segment in segments for void in segment.voids]
    voids += shard.live.log.notes.voids(1, last_index).tolist()
    void = {index for first, last in voids for index in range(first, min(last, NEVER) + 1)}
    frame = load(spark, shard.path)
    found = [
        (row["index"], row["term"], row["timestamp_ns"], row["type"], row["group_left"])
        for row in rows_of(frame)
    ]
    assert found == [
        (entry.index, entry.term, entry.timestamp_ns, entry.entry_type, entry.group_left)
        for entry in entries
        if entry.index <= last_index and entry.index not in void
    ]
    assert frame.count() == len(found)
    assert len(found) > 150


@pytest.mark.parametrize("view", sorted(VIEWS))
def test_rows_of_each_view_equal_those_of_its_decoder(
    spark: "SparkSession", shard: Shard, view: str
) -> None:
    table = load_table(ReadOptions.parse({"view": view, "path": str(shard.path)}, VIEWS))
    batches = [each for split in table.splits() for each in table.batches(split, None)]
    expected = pa.Table.from_batches(batches, table.view.schema).to_pylist()
    found = rows_of(load(spark, shard.path, view))
    assert [{name: comparable(value) for name, value in row.items()} for row in found] == [
        {name: comparable(value) for name, value in row.items()} for row in expected
    ]


def test_columns_are_chosen_by_option_or_schema_and_counted_without_any(
    spark: "SparkSession", shard: Shard
) -> None:
    count = load(spark, shard.path).count()
    chosen = load(spark, shard.path, columns="payload,index")
    assert chosen.columns == ["payload", "index"]
    assert chosen.count() == count
    assert chosen.select().count() == count
    by_schema = (
        spark.read.format("onelog")
        .option("view", "log")
        .schema("index long, timestamp timestamp, name_text string")
        .load(str(shard.path))
    )
    assert by_schema.columns == ["index", "timestamp", "name_text"]
    assert by_schema.filter("name_text = 'key-1'").count() > 0
    for schema, reason in (("index int", "SCHEMA_MISMATCH"), ("indexes long", "COLUMN_UNKNOWN")):
        other = spark.read.format("onelog").option("view", "log").schema(schema)
        with pytest.raises(Exception, match=f"{reason}: the schema has"):
            other.load(str(shard.path)).count()


def test_options_prune_rows(spark: "SparkSession", shard: Shard) -> None:
    everything = rows_of(load(spark, shard.path))
    for options, wanted in (
        ({"from_index": "50", "to_time": "1970-01-01T00:00:30Z"},
         lambda row: row["index"] >= 50 and row["timestamp_ns"] <= 30 * 10**9),
        ({"types": "put", "key_prefix": "key-1"},
         lambda row: row["type"] == 257 and row["name"].startswith(b"key-1")),
        ({"queues": "other"}, lambda row: row["index"] in (3, 4)),
    ):  # fmt: skip
        found = {row["index"] for row in rows_of(load(spark, shard.path, **options))}
        assert found == {row["index"] for row in everything if wanted(row)}
        assert found


def test_all_queries_of_a_table_see_its_cut_while_a_directory_is_written(
    spark: "SparkSession", tmp_path: Path
) -> None:
    shard = Shard(tmp_path / "data", seed=8)
    shard.write(40)
    shard.seal()
    shard.live.snapshot()
    frame = load(spark, shard.path)
    filtered = frame.filter("index % 3 = 0")
    before, some = frame.count(), filtered.count()
    assert 0 < some < before == len(shard.expected(shard.last_index))
    shard.write(40)
    shard.seal()
    shard.live.snapshot()
    assert frame.count() == before
    assert filtered.count() == some
    assert filtered.join(filtered, ["shard", "index"], "left_anti").count() == 0
    assert frame.count() == before
    assert load(spark, shard.path).count() == len(shard.expected(shard.last_index)) > before


@contextmanager
def running_node(directory: Path, **changes: Any) -> Iterator[Node]:
    """A node on a loop of its own: this thread is Spark's."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    node = single(directory, **changes)

    def run(step: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(step, loop).result(WAIT_S)

    try:
        yield run(node.__aenter__())
    finally:
        run(node.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()


@contextmanager
def load_on(write: Callable[[int], object]) -> Iterator[None]:
    """Write on and on, beside what the caller does."""
    is_over = threading.Event()
    written = threading.Event()

    def run() -> None:
        number = 0
        while not is_over.is_set():
            write(number)
            number += 1
            written.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert written.wait(WAIT_S)
        yield
    finally:
        is_over.set()
        thread.join(WAIT_S)


def test_all_queries_of_a_table_see_its_cut_while_a_cluster_is_written(
    spark: "SparkSession", tmp_path: Path
) -> None:
    register(spark)
    with running_node(tmp_path, shards=2) as node, Client(node.endpoint) as client:
        for number in range(100):
            client.kv.put(f"before-{number}", b"x")
        with load_on(lambda number: client.kv.put(f"k-{number % 50}", b"y" * 100)):
            reader = spark.read.format("onelog").options(
                view="kv_operations", endpoint=node.endpoint
            )
            frame = reader.load()
            filtered = frame.filter("key_text like 'k-%' and index % 2 = 0")
            counts = [(frame.count(), filtered.count()) for _ in range(3)]
            assert len(set(counts)) == 1
            assert filtered.join(filtered, ["shard", "index", "position"], "left_anti").count() == 0
            # All that was acknowledged before the cut is in it.
            assert frame.filter("key_text like 'before-%'").count() == 100
        assert reader.load().count() > counts[0][0]


def test_errors_reach_the_user_with_their_reason(spark: "SparkSession", tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data", seed=2)
    shard.write(60)
    shard.seal()
    with pytest.raises(Exception, match="INDEX_IN_FUTURE: option from_index is 99999"):
        load(spark, shard.path, from_index="99999")
    with pytest.raises(Exception, match="VIEW_UNKNOWN: option view is ''"):
        spark.read.format("onelog").load(str(shard.path))
    frame = load(spark, shard.path)
    path = sorted(shard.segments.glob("*.flseg"))[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(Exception, match=r"CORRUPT_FILE: .*checksum of the file"):
        frame.count()
    shutil.rmtree(shard.path)
    with pytest.raises(Exception, match="NOT_A_DATA_DIRECTORY"):
        frame.count()


def test_what_keeps_spark_from_working_is_said_by_register(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SPARK_VERSION_MIN", (99, 0))
    with pytest.raises(FailedPrecondition, match=r"99\.0 is needed") as refused:
        register(spark)
    assert refused.value.reason == "SPARK_TOO_OLD"


def test_spark_still_keeps_pushed_filters_for_later_queries(spark: "SparkSession") -> None:
    """The day this fails, filters can be pushed into the source ``onelog``."""
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Reader(DataSourceReader):
        least = 0

        def pushFilters(self, filters: Any) -> Iterator[Any]:  # noqa: N802 - Spark's
            for each in filters:
                if type(each).__name__ == "GreaterThan":
                    self.least = each.value + 1
                else:
                    yield each

        def read(self, partition: Any) -> Iterator[tuple[int]]:
            return iter([(number,) for number in range(self.least, 1_000)])

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "id long"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    spark.dataSource.register(Numbers)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("numbers").load()
        assert frame.filter("id > 990").count() == 9
        assert frame.count() == 9, "Spark has mended this: 1000 is right"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
