"""Executors that are killed while they read: each row of the log once, in streams and batches.

An executor is a Java of its own, with the workers of its tasks below it. When it is killed, Spark
starts another one and runs its tasks again, elsewhere and from their beginning.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onelog import Client
from tests.spark.jvm.jobs import EXECUTOR, EXECUTORS, job, writing
from tests.spark.jvm.test_kills import assert_each_once, places, read_log, servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark_long

# What a task reads slowly: some seconds for each shard, whatever the machine.
SLOW = {"bytes_per_second_max": "300000"}
VALUES = {f"key-{number}": bytes([number % 256]) * 2_000 for number in range(2_000)}


def test_a_stream_has_each_row_once_when_executors_are_killed(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """One of two, whose work the other takes over, and then both at once."""
    options = {"view": "kv_operations", "hold": "query", "max_rows": "50"}
    with (
        servers(tmp_path / "nodes", "n1") as (_, endpoints),
        job(tmp_path / "job", EXECUTORS, endpoint=endpoints[0], **options) as query,
    ):
        with writing(endpoints) as writers:
            query.start()
            query.until_batches(2)
            for count in (1, 2, 1):
                assert query.kill_workers(EXECUTOR, count) == count
                query.until_batches(2, restarts=True)
            query.kill()
        query.finish()
        assert_each_once(spark, query, endpoints, writers)


@pytest.mark.parametrize("view", ["kv_operations", "kv_changes"])
def test_a_batch_read_has_each_row_once_when_an_executor_is_killed(
    spark: "SparkSession", tmp_path: Path, view: str
) -> None:
    with servers(tmp_path / "nodes", "n1") as (_, endpoints):
        with Client(endpoints) as client:
            client.kv.put_many(VALUES)
        options = {"view": view, "endpoint": endpoints[0], **SLOW}
        with job(tmp_path / "job", EXECUTORS, **options) as query:
            query.start("batch")
            query.until_writing()
            assert query.kill_workers(EXECUTOR, 1) == 1
            assert not query.is_written
            query.until_finished()
            assert "Lost executor" in query.output
            table = spark.read.parquet(query.table)
            assert {row["key_text"] for row in table.select("key_text").collect()} == set(VALUES)
            if view == "kv_operations":
                assert places(table) == places(read_log(spark, endpoints, view))
            else:
                assert table.count() == len(VALUES)
