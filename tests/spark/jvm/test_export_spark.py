"""Exports through real Spark: its tasks write what one process would, and its tables have it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onelog.cli.main import run
from onelog.errors import OnelogError, ResourceExhausted
from onelog.spark.export.job import run_export
from onelog.spark.export.spark_runner import SparkRunner
from onelog.spark.export.target import LOCK_NAME
from onelog.spark.export.verify import verify_export
from tests.spark.exports import (
    FullTarget,
    ask,
    directory,
    everything,
    export,
    object_store,
    open_store,
    three_days,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.shard_dirs import Shard


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return three_days(tmp_path_factory.mktemp("log") / "data")


@pytest.mark.parametrize("file_format", ["parquet", "orc", "json", "csv"])
def test_tasks_of_spark_write_the_files_of_one_process_and_spark_reads_them(
    file_format: str, spark: SparkSession, shard: Shard, tmp_path: Path
) -> None:
    target = directory(tmp_path / "out")
    outcome = run_export(ask(shard.path, target, format=file_format), SparkRunner(spark))
    export(shard.path, directory(tmp_path / "alone"), format=file_format)
    assert everything(target) == everything(directory(tmp_path / "alone"))
    read = spark.read
    if file_format == "csv":
        read = read.option("header", "true")
    table = read.format(file_format).load(str(tmp_path / "out" / "log"))
    rows = table.select("shard", "index", "date").collect()
    assert len(rows) == outcome.receipt.rows
    assert sorted(int(row["index"]) for row in rows) == [
        entry[0] for entry in shard.expected(shard.sealed_index)
    ]
    assert {str(row["date"]) for row in rows} == {"1970-01-01", "1970-01-02", "1970-01-03"}
    assert {int(row["shard"]) for row in rows} == {0}


def test_tasks_of_spark_write_into_an_object_store(
    spark: SparkSession, shard: Shard, tmp_path: Path
) -> None:
    """Connection and keys travel to the workers, which are processes of their own."""
    pytest.importorskip("moto.server", reason="moto is not installed")
    export(shard.path, directory(tmp_path / "alone"))
    there = everything(directory(tmp_path / "alone"))
    del there[LOCK_NAME]
    with ExitStack() as stack:
        store = stack.enter_context(object_store())
        target = open_store(store, "out")
        run_export(ask(shard.path, target), SparkRunner(spark))
        assert everything(target) == there

        def run_without_store(*arguments: Any) -> None:
            stack.close()
            SparkRunner(spark)(*arguments)

        with pytest.raises(OnelogError) as caught:
            run_export(ask(shard.path, open_store(store, "lost")), run_without_store)
        assert caught.value.reason == "TARGET_UNWRITABLE"


def test_tasks_of_spark_export_states_and_changes(
    spark: SparkSession, shard: Shard, tmp_path: Path
) -> None:
    for view in ("kv", "kv_changes"):
        target = directory(tmp_path / "out" / view)
        outcome = run_export(ask(shard.path, target, view=view), SparkRunner(spark))
        alone = directory(tmp_path / "alone" / view)
        export(shard.path, alone, view=view)
        assert everything(target) == everything(alone)
        table = spark.read.parquet(str(target.path / view))
        assert table.count() == outcome.receipt.rows > 0


def test_an_error_of_a_task_has_its_reason_and_a_rerun_finishes(
    spark: SparkSession, shard: Shard, tmp_path: Path
) -> None:
    target = FullTarget("out", tmp_path / "out")
    (tmp_path / "full").touch()
    with pytest.raises(ResourceExhausted) as caught:
        run_export(ask(shard.path, target), SparkRunner(spark))
    assert caught.value.reason == "TARGET_FULL"
    assert not list((tmp_path / "out").rglob("*.tmp"))
    (tmp_path / "full").unlink()
    run_export(ask(shard.path, target), SparkRunner(spark))
    export(shard.path, directory(tmp_path / "alone"))
    assert everything(target) == everything(directory(tmp_path / "alone"))


def test_the_command_exports_and_verifies(
    spark: SparkSession, shard: Shard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert run(["export", "kv_operations", out, "--data", str(shard.path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["receipt"] == "receipt-000001.json"
    assert document["rows"] == spark.read.parquet(f"{out}/kv_operations").count() > 0
    assert run(["export", "verify", out, "--data", str(shard.path)]) == 0
    assert verify_export(directory(tmp_path / "out")).is_good
