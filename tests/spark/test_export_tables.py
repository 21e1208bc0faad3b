"""Exports registered as tables: other programs open them, and find the rows of the receipts."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.parquet import ParquetFile

from onelog.errors import FailedPrecondition, InvalidArgument
from onelog.spark.export.delta import register_delta
from onelog.spark.export.iceberg import register_iceberg
from onelog.spark.export.job import read_receipts, read_since, run_export
from onelog.spark.export.plan import EXPORTED_VIEWS
from onelog.spark.export.verify import verify_export
from tests.spark.exports import ask, directory, export, seal, serial, three_days
from tests.spark.shard_dirs import Shard
from tests.spark.written import write_history

GIB = 1 << 30
CONTINUED = ("log", "queue_operations", "kv_changes")


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return three_days(tmp_path / "data", groups=6)


def grow_export(shard: Shard, out: Path, view: str) -> None:
    """Export, or continue the export with more."""
    receipts = read_receipts(directory(out))
    since = None
    if receipts:
        name = f"receipt-{len(receipts):06d}.json"
        since = read_since(name, (out / name).read_bytes())
        shard.write(6)
        seal(shard)
    export(shard.path, directory(out), view=view, since=since)


@pytest.mark.parametrize("view", CONTINUED)
def test_deltalake_opens_an_export_and_its_continuations(
    view: str, shard: Shard, tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    out = tmp_path / "out"
    ids = set()
    for version in range(2):
        grow_export(shard, out, view)
        receipts = read_receipts(directory(out))
        folder = register_delta(directory(out), EXPORTED_VIEWS[view], receipts)
        table = deltalake.DeltaTable(folder)
        assert table.version() == version
        ids.add(table.metadata().id)
        counted = pa.table(table.get_add_actions(flatten=True))["num_records"].to_pylist()
        assert sorted(counted) == sorted(facts.rows for each in receipts for facts in each.files)
        rows = table.to_pyarrow_table()
        assert rows.num_rows == sum(each.rows for each in receipts)
        assert set(EXPORTED_VIEWS[view].schema.names) | {"date"} == set(rows.schema.names)
        if rows.num_rows:
            assert set(rows["shard"].to_pylist()) == {0}
            assert {str(each) for each in rows["date"].to_pylist()} <= {
                f"1970-01-0{day}" for day in (1, 2, 3)
            }
    assert len(ids) == 1  # the same table
    if view == "log":
        expected = [row[0] for row in shard.expected(shard.sealed_index)]
        assert sorted(rows["index"].to_pylist()) == expected
    # Registering again changes nothing, and the files are still those of the receipts.
    before = sorted(path.read_bytes() for path in out.rglob("_delta_log/*.json"))
    register_delta(directory(out), EXPORTED_VIEWS[view], receipts)
    assert sorted(path.read_bytes() for path in out.rglob("_delta_log/*.json")) == before
    assert verify_export(directory(out)).is_good


@pytest.mark.parametrize("view", CONTINUED)
def test_pyiceberg_opens_an_export_and_its_continuations(
    view: str, shard: Shard, tmp_path: Path
) -> None:
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
    from pyiceberg.table import StaticTable

    out = tmp_path / "out"
    for count in (1, 2):
        grow_export(shard, out, view)
        receipts = read_receipts(directory(out))
        newest = register_iceberg(directory(out), EXPORTED_VIEWS[view], receipts)
        assert newest == register_iceberg(directory(out), EXPORTED_VIEWS[view], receipts)
        table = StaticTable.from_metadata(newest)
        assert len(table.metadata.snapshots) == count
        files = [each.file for each in table.scan().plan_files()]
        assert {(each.file_size_in_bytes, each.record_count) for each in files} == {
            (facts.size_bytes, facts.rows) for each in receipts for facts in each.files
        }
        rows = table.scan().to_arrow()
        assert rows.num_rows == sum(each.rows for each in receipts)
        assert set(EXPORTED_VIEWS[view].schema.names) | {"date"} == set(rows.schema.names)
        found = table.scan(row_filter="date = '1970-01-02' and shard = 0").to_arrow()
        assert found.num_rows == sum(
            facts.rows for each in receipts for facts in each.files if facts.date == "1970-01-02"
        )
    if view == "log":
        expected = [row[0] for row in shard.expected(shard.sealed_index)]
        assert sorted(rows["index"].to_pylist()) == expected
        assert set(rows["shard"].to_pylist()) == {0}
    assert verify_export(directory(out)).is_good


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory in which every view has rows."""
    return write_history(tmp_path_factory.mktemp("history"), seed=4, steps=600).path.parent


@pytest.mark.parametrize("view", sorted(EXPORTED_VIEWS))
def test_the_rows_of_every_view_are_in_its_tables(view: str, history: Path, tmp_path: Path) -> None:
    """Maps, lists, structs and times come through as they are in the files."""
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
    from pyiceberg.table import StaticTable

    out, schema = tmp_path / "out", EXPORTED_VIEWS[view].schema
    request = replace(ask(history, directory(out), view=view, as_table="delta"), split_bytes=GIB)
    delta = run_export(request, serial)
    iceberg = run_export(replace(request, as_table="iceberg"), serial)
    files = [ParquetFile(out / each.name).read() for each in delta.receipt.files]
    expected = in_order(pa.concat_tables(files))
    assert expected.num_rows == delta.receipt.rows > 0
    for opened in (
        deltalake.DeltaTable(delta.table).to_pyarrow_table(),
        StaticTable.from_metadata(iceberg.table).scan().to_arrow(),
    ):
        found = in_order(opened)
        assert found.schema.names == [*schema.names, "date"]
        assert set(found["shard"].to_pylist()) == {0}
        for name in expected.schema.names:
            values, wanted = found[name], expected[name]
            assert nullable(values.type) == nullable(wanted.type)
            if is_list_of_structs(wanted.type) and not values.null_count:
                # pyiceberg reads a null list of structs as an empty one (iceberg-python 3833).
                assert values.to_pylist() == [each or [] for each in wanted.to_pylist()]
            else:
                assert values.cast(wanted.type).combine_chunks().equals(wanted.combine_chunks())


def in_order(rows: pa.Table) -> pa.Table:
    """Return rows of entries as the log has them; a state is one file, and in its order."""
    if "position" not in rows.schema.names:
        return rows
    return rows.sort_by([("index", "ascending"), ("position", "ascending")])


def nullable(kind: pa.DataType) -> str:
    """Return a type without what may be null, and names inside of maps: a table has neither."""
    return re.sub(r" not null| \('\w+'\)", "", str(kind))


def is_list_of_structs(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_struct(kind.value_type))


def test_a_table_that_somebody_else_changed_is_left_alone(shard: Shard, tmp_path: Path) -> None:
    out = tmp_path / "out"
    grow_export(shard, out, "log")
    log = out / "log" / "_delta_log"
    log.mkdir()
    (log / "00000000000000000000.json").write_text("{}\n")
    with pytest.raises(FailedPrecondition) as caught:
        register_delta(directory(out), EXPORTED_VIEWS["log"], read_receipts(directory(out)))
    assert caught.value.reason == "TABLE_CHANGED"
    assert (log / "00000000000000000000.json").read_text() == "{}\n"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"as_table": "delta", "format": "csv"}, "TABLE_FORMAT"),
        ({"as_table": "hudi"}, "TABLE_UNKNOWN"),
    ],
)
def test_a_table_that_cannot_be_is_refused_before_anything_is_written(
    given: dict[str, Any], reason: str, shard: Shard, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        export(shard.path, directory(tmp_path / "out"), **given)
    assert caught.value.reason == reason
    assert not (tmp_path / "out").exists()


def test_a_missing_library_is_named_before_anything_is_written(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(FailedPrecondition, match=r"pip install 'onelogdb\[iceberg\]'") as caught:
        export(shard.path, directory(tmp_path / "out"), as_table="iceberg")
    assert caught.value.reason == "ICEBERG_MISSING"
    assert not (tmp_path / "out").exists()


def test_an_export_registers_its_table_when_it_is_told_to(shard: Shard, tmp_path: Path) -> None:
    export(shard.path, directory(tmp_path / "out"))
    outcome = export(shard.path, directory(tmp_path / "out"), as_table="delta")
    assert not outcome.is_new
    assert (Path(outcome.table) / "_delta_log" / "00000000000000000000.json").exists()
