"""Tables and exports of a server that seals, drops and is replaced underneath."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest
from pyspark.errors import PySparkException

from onelog import Client
from onelog.spark import register
from tests.documents import ROOT
from tests.spark.jvm.jobs import job, writing
from tests.spark.test_restored import Restored
from tests.system.nodes import ServeProcess, nodes, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark_long

TIMEOUT_S = 300
# Snapshots every second and files of some hundred entries: the log is trimmed all the time.
TRIMMING = {
    "log_segment_bytes_max": "64KiB",
    "snapshot_log_bytes_min": "128KiB",
    "snapshot_interval_s": "1",
}


@contextmanager
def server(directory: Path, **flags: str) -> Iterator[ServeProcess]:
    with nodes(directory, "n1", shards="1", **flags) as made:
        node = made["n1"].start()
        node.until_ready()
        yield node


def find_endpoint(node: ServeProcess) -> str:
    return node.flags["listen"]


def first_index(node: ServeProcess) -> int:
    with Client(find_endpoint(node)) as client:
        return client.log.describe(0).first_index


def load(spark: "SparkSession", **options: str) -> "DataFrame":
    register(spark)
    return spark.read.format("onelog").options(**options).load()


def test_a_table_of_another_cluster_at_the_same_endpoint_is_refused(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Also by a DataFrame whose tasks were planned before: Spark does not plan those again."""
    with server(tmp_path) as node:
        with Client(find_endpoint(node)) as client:
            client.kv.put_many({f"k{n}": b"value" for n in range(50)})
        tables = [
            load(spark, view=view, endpoint=find_endpoint(node))
            for view in ("kv_operations", "kv", "kv_changes")
        ]
        for table in tables:
            assert len(table.collect()) == 50
        node.kill()
        shutil.rmtree(node.flags["data-dir"])
        node.start()
        node.until_ready()
        with Client(find_endpoint(node)) as client:
            client.kv.put_many({f"k{n}": b"other" for n in range(100)})
            client.kv.put_many({f"k{n}": b"other" for n in range(100)})
        for table in tables:
            with pytest.raises(Exception, match="OTHER_CLUSTER"):
                table.collect()
            with pytest.raises(Exception, match="OTHER_CLUSTER"):
                table.count()


def test_a_stream_ends_when_its_log_was_restored_and_does_not_begin_again(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """While it runs, and with its checkpoint: the table keeps the rows of the log that is lost."""
    with server(tmp_path) as node:
        restored = Restored(node)
        restored.write("before", 20)
        restored.copy()
        restored.write("lost", 30)
        options = {"view": "kv_operations", "endpoint": restored.endpoint}
        with job(tmp_path / "job", **options) as query:
            query.start()
            query.until_batches(1)
            rows = sorted(spark.read.parquet(query.table).select("index", "value").collect())
            assert len(rows) == 50
            restored.restore()
            assert "CHECKPOINT_AHEAD: " in query.until_ended()
            restored.write("other", 40)
            query.start()
            assert "CHECKPOINT_DIFFERS: entry " in query.until_ended()
            assert (
                sorted(spark.read.parquet(query.table).select("index", "value").collect()) == rows
            )


@pytest.mark.parametrize("where", ["endpoint", "path"])
def test_two_queries_of_a_table_agree_or_say_what_was_dropped(
    spark: "SparkSession", tmp_path: Path, where: str
) -> None:
    with (
        server(tmp_path, **TRIMMING) as node,
        Client(find_endpoint(node)) as client,
        writing([find_endpoint(node)], value=os.urandom(400)) as writers,
    ):
        options = {"endpoint": find_endpoint(node), "path": node.flags["data-dir"]}
        for number in range(3):
            name = f"query-{number}"
            client.admin.set_hold(name, from_start=True)
            writers.until_done(500)  # files alone show only what is sealed
            table = load(spark, view="log", **{where: options[where]})
            count = count_or_dropped(table)
            assert count
            writers.until_done(500)  # several files are closed and sealed
            assert count_or_dropped(table) == count
            client.admin.release_hold(name)
            # While files go away it is one or the other, and never another number.
            assert count_or_dropped(table) in (count, None)
            begin = first_index(node)
            until(lambda begin=begin: first_index(node) > begin, 120)  # type: ignore[misc]
            assert count_or_dropped(table) is None


def count_or_dropped(table: "DataFrame") -> int | None:
    """Count the rows and the different ones; None if some are dropped, and it is said."""
    try:
        row = table.selectExpr("count(*)", "count(distinct index)").collect()[0]
    except PySparkException as error:
        if "COMPACTED: " in str(error):
            return None
        raise
    assert row[0] == row[1]
    return int(row[0])


def run(node: ServeProcess, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "onelog.cli.main", *arguments, "--endpoint", find_endpoint(node)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=TIMEOUT_S,
        capture_output=True,
        text=True,
    )


def export(node: ServeProcess, target: Path, *arguments: str) -> dict[str, Any]:
    done = run(node, "export", "log", str(target), "--master", "local[1]", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def exported(target: Path) -> list[int]:
    table = pyarrow.dataset.dataset(target / "log", format="parquet").to_table(columns=["index"])
    return sorted(table.column("index").to_pylist())


def files_of(target: Path) -> list[str]:
    return sorted(str(path) for path in target.rglob("*") if path.is_file())


def test_a_nightly_export_loses_nothing_with_a_hold_and_says_what_it_lost_without(
    tmp_path: Path,
) -> None:
    target = tmp_path / "lake"
    with server(tmp_path, **TRIMMING) as node:
        done = run(node, "admin", "hold", "set", "nightly", "--from-start")
        assert done.returncode == 0, done.stderr
        with writing([find_endpoint(node)], value=os.urandom(400)) as writers:
            writers.until_done(500)
            export(node, target)
            writers.until_done(500)
            export(node, target, "--since", str(target))
            verified = run(node, "export", "verify", str(target))
            assert verified.returncode == 0, verified.stdout + verified.stderr
            indexes = exported(target)
            assert indexes == list(range(1, indexes[-1] + 1))  # nothing was refused here
            with Client(find_endpoint(node)) as client:
                client.admin.release_hold("nightly")
            until(lambda: first_index(node) > indexes[-1] + 1, 120)
            before = files_of(target)
            refused = run(
                node, "export", "log", str(target), "--since", str(target), "--master", "local[1]"
            )
            assert refused.returncode != 0
            assert f"shard 0: entries {indexes[-1] + 1} to " in refused.stderr, refused.stderr
            assert "COMPACTED" in refused.stderr
            assert files_of(target) == before
            gone = run(
                node, "export", "log", str(tmp_path / "all"), "--from-index", "1",
                "--master", "local[1]",
            )  # fmt: skip
            assert gone.returncode != 0
            assert "shard 0: entries 1 to " in gone.stderr
            assert not exported_anything(tmp_path / "all")


def exported_anything(target: Path) -> bool:
    return any("/log/" in name or "receipt" in name for name in files_of(target))
