"""What importing ``onelog.spark`` costs, what travels with a task, and what it leaves behind."""

import gc
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from onelog.spark.columns.block import Block
from onelog.spark.columns.views import VIEWS
from onelog.spark.options import ReadOptions
from onelog.spark.table import load_table
from tests.spark.shard_dirs import Shard


@pytest.mark.parametrize(
    ("imported", "forbidden"),
    [
        ("onelog.spark", ("pyspark", "pyarrow", "grpc")),
        (
            "onelog.spark.columns.views",
            ("pyspark", "grpc", "onelog.snapshot", "onelog.projections"),
        ),
        ("onelog.spark.table", ("pyspark", "grpc", "onelog.snapshot", "onelog.projections")),
    ],
)
def test_no_more_is_imported_than_is_needed(imported: str, forbidden: tuple[str, ...]) -> None:
    program = f"import {imported}, sys; print([n for n in {forbidden!r} if n in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_what_is_not_there_is_an_attribute_error() -> None:
    import onelog.spark

    with pytest.raises(AttributeError, match="nothing"):
        onelog.spark.nothing  # noqa: B018


def test_a_table_travels_and_reads_the_same(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.write(30)
    shard.seal()
    table = load_table(ReadOptions.parse({"view": "log", "path": str(shard.path)}, VIEWS))
    travelled = pickle.loads(pickle.dumps(table))
    read = [
        [batch.to_pylist() for split in each.splits() for batch in each.batches(split, None)]
        for each in (table, travelled)
    ]
    assert read[0] == read[1] != []


@pytest.mark.parametrize("options", [{}, {"namespaces": "nobody"}])
@pytest.mark.parametrize("view", sorted(VIEWS))
def test_blocks_are_freed_without_the_collector(
    tmp_path: Path, view: str, options: dict[str, str]
) -> None:
    shard = Shard(tmp_path / "data")
    shard.write(30)
    shard.seal()
    given = {"view": view, "path": str(shard.path), **options}
    table = load_table(ReadOptions.parse(given, VIEWS))
    gc.collect()
    gc.disable()
    try:
        for split in table.splits():
            for _ in table.batches(split, None):
                pass
        assert not [each for each in gc.get_objects() if isinstance(each, Block)]
    finally:
        gc.enable()
