"""Nodes that leave the cluster for good while Spark reads from all of them.

A node that was removed goes on answering until it is stopped, with a log that does not grow any
more. Jobs know it by their endpoints, which name it still.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onelog import Client
from onelog.errors import OnelogError
from onelog.ual.directory import read_node
from onelog.ual.files import DiskFiles
from tests.spark.jvm.jobs import job, writing
from tests.spark.jvm.test_executors import SLOW, VALUES
from tests.spark.jvm.test_kills import (
    NAMES,
    SHARDS,
    Nodes,
    assert_each_once,
    find_leader,
    places,
    read_log,
    servers,
)
from tests.system.nodes import ServeProcess, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark_long


def remove(made: Nodes, node: ServeProcess) -> list[str]:
    """Remove a node from all shards; return the endpoints of the others."""
    del made[node.name]
    others = [each.flags["listen"] for each in made.values()]
    node_id = str(read_node(DiskFiles(), Path(node.flags["data-dir"])).node_id)
    with Client(others) as client:
        until(partial(_is_removed, client, node_id), 120)
    return others


def _is_removed(client: Client, node_id: str) -> bool:
    try:
        client.admin.remove_member(node_id)
    except OnelogError:  # the change before is not complete yet, or a leader is elected
        return False
    shards = client.admin.members().shards
    return not any(each.node_id == node_id for shard in shards for each in shard.members)


def test_a_stream_has_each_row_once_when_nodes_leave(spark: "SparkSession", tmp_path: Path) -> None:
    """First a leader leaves, then one of the two that are left."""
    with (
        servers(tmp_path / "nodes", *NAMES) as (made, everybody),
        job(tmp_path / "job", view="kv_operations", endpoint=",".join(everybody)) as query,
    ):
        present, endpoints = dict(made), everybody
        with writing(everybody) as writers:
            query.start()
            query.until_batches(2)
            for _ in range(2):
                leaving = find_leader(present, 0)
                endpoints = remove(present, leaving)
                writers.until_done(20)
                query.until_batches(2)
                leaving.kill()
                writers.until_done(20)
                query.until_batches(2)
            query.kill()
        query.finish()
        assert_each_once(spark, query, endpoints, writers)


def test_a_batch_read_has_each_row_once_when_nodes_leave(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Both tasks are under way, and each node that is stopped may be the one that they read."""
    with servers(tmp_path / "nodes", *NAMES) as (made, everybody):
        with Client(everybody) as client:
            client.kv.put_many(VALUES)
        options = {"view": "kv_operations", "endpoint": ",".join(everybody), **SLOW}
        with job(tmp_path / "job", **options) as query:
            query.start("batch")
            query.until_writing()
            present, endpoints = dict(made), everybody
            for name in NAMES[:2]:
                endpoints = remove(present, made[name])
                made[name].kill()
            assert not query.is_written
            query.until_finished()
            table = spark.read.parquet(query.table)
            assert {row["key_text"] for row in table.select("key_text").collect()} == set(VALUES)
            assert places(table) == places(read_log(spark, endpoints, "kv_operations"))
            assert {row["shard"] for row in table.select("shard").collect()} == set(range(SHARDS))
