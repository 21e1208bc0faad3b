"""Tables that were loaded travel to processes that run elsewhere."""

import pickle
from pathlib import Path

import pytest

from onelog.spark.columns.views import VIEWS
from onelog.spark.options import ReadOptions
from onelog.spark.table import load_table
from tests.spark.shard_dirs import Shard


def test_a_relative_path_means_the_drivers_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors run in directories of their own."""
    shard = Shard(tmp_path / "data", seed=3)
    shard.write(40)
    shard.seal()
    elsewhere = tmp_path / "executor"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    loaded = pickle.dumps(load_table(ReadOptions.parse({"view": "log", "path": "data"}, VIEWS)))
    monkeypatch.chdir(elsewhere)
    table = pickle.loads(loaded)
    rows = [batch.num_rows for split in table.splits() for batch in table.batches(split, None)]
    assert sum(rows) == len(shard.expected(shard.sealed_index)) > 0
