"""Streaming queries through kills: each row of the log once in the table, and none missing.

Drivers, nodes and writers are processes or threads of their own, and nothing is asked to stop: it
is killed. What the writers were acknowledged is the truth that does not come out of the log.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onelog import Client
from onelog.errors import OnelogError
from onelog.spark import register
from onelog.v1 import admin_pb2
from tests.spark.jvm.jobs import Job, Writers, job, writing
from tests.system.nodes import ServeProcess, nodes, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Nodes = dict[str, ServeProcess]
Place = tuple[int, int, int]

SHARDS = 2
NAMES = ("n1", "n2", "n3")
# Snapshots every second and files of some hundred entries: the log is trimmed all the time.
TRIMMING = {
    "log_segment_bytes_max": "64KiB",
    "snapshot_log_bytes_min": "128KiB",
    "snapshot_interval_s": "1",
}


@contextmanager
def servers(directory: Path, *names: str, **flags: str) -> Iterator[tuple[Nodes, list[str]]]:
    """Run a cluster; return its processes and the endpoints of all."""
    directory.mkdir()
    with nodes(directory, *names, shards=str(SHARDS), **flags) as made:
        for each in made.values():
            each.start()
        for each in made.values():
            each.until_ready()
        yield made, [each.flags["listen"] for each in made.values()]


def find_leader(made: Nodes, shard: int) -> ServeProcess:
    """Return the process that leads a shard."""

    def look() -> ServeProcess | None:
        for each in made.values():
            endpoint = each.flags["listen"]
            try:
                with Client(endpoint, timeout_s=5) as client:
                    status = client.admin.status(endpoint=endpoint)
            except OnelogError:
                continue
            for found in status.shards:
                if found.shard == shard and found.role == admin_pb2.ROLE_LEADER:
                    return each
        return None

    return until(look, 60)


def places(frame: "DataFrame") -> list[Place]:
    rows = frame.select("shard", "index", "position").collect()
    return sorted((row["shard"], row["index"], row["position"]) for row in rows)


def keys_of(frame: "DataFrame") -> set[str]:
    return {row["key_text"] for row in frame.select("key_text").collect()}


def read_log(spark: "SparkSession", endpoints: list[str], view: str) -> "DataFrame":
    register(spark)
    options = {"view": view, "endpoint": ",".join(endpoints)}
    return spark.read.format("onelog").options(**options).load()


def assert_each_once(
    spark: "SparkSession", query: Job, endpoints: list[str], writers: Writers
) -> None:
    """Compare the table with a batch read and with what was acknowledged.

    Entries that were written after the query had ended, by the system, are not the table's.
    """
    table = spark.read.parquet(query.table)
    seen, log = places(table), places(read_log(spark, endpoints, query.options["view"]))
    repeated = [place for place, count in Counter(seen).items() if count > 1]
    assert not repeated, repeated[:10]
    ends = {shard: max(index for at, index, _ in seen if at == shard) for shard in range(SHARDS)}
    assert seen == [place for place in log if place[1] <= ends[place[0]]]
    missing = writers.keys - keys_of(table)
    assert not missing, (len(missing), sorted(missing)[:10])


@pytest.mark.spark_long
def test_a_table_has_each_row_once_when_driver_and_leader_are_killed(
    spark: "SparkSession", tmp_path: Path
) -> None:
    with (
        servers(tmp_path / "nodes", *NAMES) as (made, endpoints),
        job(tmp_path / "job", view="kv_operations", endpoint=",".join(endpoints)) as query,
    ):
        with writing(endpoints) as writers:
            query.start()
            query.until_batches(2)
            query.kill()
            query.start()
            query.until_batches(1)
            leader = find_leader(made, 0)
            leader.kill()
            writers.until_done(10)
            query.until_batches(2)
            leader.start()
            query.kill()
        query.finish()
        assert_each_once(spark, query, endpoints, writers)


@pytest.mark.spark_long
@pytest.mark.parametrize("limits", [{}, {"max_rows": "20"}], ids=["unlimited", "small"])
def test_a_table_has_each_row_once_when_everything_is_killed_in_turn(
    spark: "SparkSession", tmp_path: Path, limits: dict[str, str]
) -> None:
    options = {"view": "kv_operations", "hold": "query", **limits}
    with (
        servers(tmp_path / "nodes", *NAMES) as (made, endpoints),
        job(tmp_path / "job", endpoint=",".join(endpoints), **options) as query,
    ):
        with writing(endpoints) as writers:
            query.start()
            for turn in range(2):
                query.until_batches(2, restarts=True)
                assert query.kill_workers() > 0
                query.until_batches(2, restarts=True)
                find_leader(made, turn).kill()
                query.until_batches(2, restarts=True)
                query.kill()
                query.start()
                for each in made.values():
                    if not each.is_running:
                        each.start()
                query.until_batches(2, restarts=True)
                # The process that plans batches: the query cannot go on without it.
                query.kill_workers("python_streaming_source_runner")
                for each in made.values():
                    each.kill()
                for each in made.values():
                    each.start()
                writers.until_done(50)
            query.until_batches(2, restarts=True)
            query.kill()
        query.finish()
        assert_each_once(spark, query, endpoints, writers)


@pytest.mark.spark_long
def test_a_hold_keeps_what_a_killed_query_has_not_read(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """The log is trimmed all the time, on three nodes, while the query is down."""
    options = {"view": "kv_operations", "hold": "query", "max_rows": "500"}
    with (
        servers(tmp_path / "nodes", *NAMES, **TRIMMING) as (made, endpoints),
        job(tmp_path / "job", endpoint=",".join(endpoints), **options) as query,
    ):
        query.start()
        with Client(endpoints) as client:
            until(lambda: client.admin.list_holds() or None, 240)
            with writing(endpoints, value=os.urandom(500)) as writers:
                for shard in range(SHARDS):
                    query.until_batches(2)
                    query.kill()
                    writers.until_done(1_000)
                    leader = find_leader(made, shard)
                    leader.kill()
                    leader.start()
                    query.start()
                query.until_batches(2)
                until_trimmed(endpoints)
                query.kill()
        query.finish()
        table = spark.read.parquet(query.table)
        seen = places(table)
        assert len(seen) == len(set(seen))
        missing = writers.keys - keys_of(table)
        assert not missing, (len(missing), sorted(missing)[:10])


@pytest.mark.spark_long
def test_without_a_hold_what_is_lost_is_an_error_or_covered_by_gaps(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """No write is refused here, so each index of the log is a row, or in one gap."""
    where = {"view": "log", "max_rows": "300"}
    with servers(tmp_path / "nodes", "n1", **TRIMMING) as (_, endpoints):
        where["endpoint"] = endpoints[0]
        with (
            job(tmp_path / "gaps", on_loss="gap", **where) as gaps,
            job(tmp_path / "fails", **where) as fails,
        ):
            with Client(endpoints) as client:  # little enough to be kept until both have it
                client.kv.put_many({f"first-{n}": b"value" for n in range(20)})
            for query in (gaps, fails):
                query.start()
                query.until_batches(1)
                query.kill()
            with writing(endpoints, value=os.urandom(500)) as writers:
                for _ in range(2):
                    lost_before = first_indexes(endpoints)
                    writers.until_done(500)
                    until_trimmed(endpoints, lost_before)
                    gaps.start()
                    gaps.until_batches(3)
                    gaps.kill()
                fails.start()
                said = fails.until_ended()
                assert "COMPACTED: entries" in said, said[-4000:]
            gaps.finish()
    table = spark.read.parquet(gaps.table)
    rows = table.select("shard", "index", "gap_first_index", "gap_last_index").collect()
    lost = 0
    for shard in range(SHARDS):
        covered: Counter[int] = Counter()
        for row in rows:
            if row["shard"] == shard:
                first, last = row["gap_first_index"], row["gap_last_index"]
                if first is None:
                    covered[row["index"]] += 1
                else:
                    covered.update(range(first, last + 1))
                    lost += last - first + 1
        repeated = sorted(index for index, count in covered.items() if count > 1)
        assert not repeated, (shard, repeated[:10])
        silent = sorted(set(range(min(covered), max(covered) + 1)) - set(covered))
        assert not silent, (shard, len(silent), silent[:10])
    assert lost > 0


def first_indexes(endpoints: list[str]) -> dict[int, int]:
    with Client(endpoints) as client:
        return {shard: client.log.describe(shard).first_index for shard in range(SHARDS)}


def until_trimmed(endpoints: list[str], before: dict[int, int] | None = None) -> None:
    """Wait until each shard has lost entries, since it began at other ones."""
    known = before or dict.fromkeys(range(SHARDS), 1)

    def look() -> bool:
        found = first_indexes(endpoints)
        return all(found[shard] > known[shard] for shard in known)

    until(look, 120)
