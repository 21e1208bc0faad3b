"""Points, changes and events in real queries: of a data directory, and as a stream."""

from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onelog.spark import register
from onelog.spark.changes import ChangesTable
from onelog.spark.source import OnelogDataSource
from onelog.spark.state import StateTable
from tests.spark.written import write_history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S = 120
PLACE = ("shard", "index", "position")


def rows_of(frame: "DataFrame", order: tuple[str, ...]) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=itemgetter(*order))


def expected(path: Path, view: str) -> list[dict[str, Any]]:
    """Return the rows as the tasks make them, without Spark."""
    table = OnelogDataSource({"view": view, "path": str(path)})._table
    assert isinstance(table, StateTable | ChangesTable)
    rows = [
        row
        for part in table.parts
        for batch in table.batches(part)  # type: ignore[arg-type]
        for row in batch.to_pylist()
    ]
    for row in rows:
        for name in ("time", "timestamp"):
            if name in row:
                row[name] = row[name].replace(tzinfo=None)
        if "tags" in row:
            row["tags"] = dict(row["tags"])
    return rows


def test_points_changes_and_events_come_through_spark_as_tasks_make_them(
    spark: "SparkSession", tmp_path: Path
) -> None:
    path = write_history(tmp_path, seed=8, steps=200, snapshots=2).path.parent
    register(spark)
    for view, order in (
        ("timeseries", ("namespace", "series", "field", "time_ns")),
        ("kv_changes", PLACE),
        ("queue_events", PLACE),
    ):
        frame = spark.read.format("onelog").option("view", view).load(str(path))
        rows = rows_of(frame, order)
        assert rows == sorted(expected(path, view), key=itemgetter(*order))
        assert len(rows) > 50
    stream = (
        spark.readStream.format("onelog")
        .options(view="kv_changes", max_rows="300")
        .load(str(path))
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "table"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert stream.awaitTermination(WAIT_S)
    assert len(stream.recentProgress) > 1
    table = spark.read.parquet(str(tmp_path / "table"))
    assert rows_of(table, PLACE) == expected(path, "kv_changes")
