"""The files of an export: the rows that the log has, by day, the same bytes for every writer."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.orc
import pyarrow.parquet
import pytest

from onelog.spark.columns.block import Block
from onelog.spark.columns.selection import Selection
from onelog.spark.directory import DirectoryOrigin
from onelog.spark.export import files
from onelog.spark.export.mix import compute_mix
from onelog.spark.origin import Range, Split
from onelog.spark.table import Table
from tests.spark.exports import DAY_NS, ask, directory, everything, export, serial, three_days
from tests.spark.shard_dirs import Shard


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return three_days(tmp_path_factory.mktemp("log") / "data")


@pytest.mark.parametrize("file_format", ["parquet", "orc", "json", "csv"])
def test_the_files_have_the_rows_of_the_log(file_format: str, shard: Shard, tmp_path: Path) -> None:
    receipt = export(shard.path, directory(tmp_path / "out"), format=file_format).receipt
    expected = shard.expected(shard.sealed_index)
    found = []
    for facts in receipt.files:
        path = tmp_path / "out" / facts.name
        indexes = [int(index) for index in read_column(path, "index")]
        times = [int(each) for each in read_column(path, "timestamp_ns")]
        assert facts.rows == len(indexes)
        assert (facts.first_index, facts.last_index) == (indexes[0], indexes[-1])
        assert {files.day_text(each // DAY_NS) for each in times} == {facts.date}
        assert f"/date={facts.date}/" in facts.name
        found += list(zip(indexes, times, strict=True))
    assert found == [(row[0], row[3]) for row in expected]
    assert receipt.rows == len(expected)
    assert len({facts.date for facts in receipt.files}) == 3


def read_column(path: Path, name: str) -> Sequence[Any]:
    match path.suffix:
        case ".parquet":
            table = pyarrow.parquet.ParquetFile(path).read([name])
        case ".orc":
            table = pyarrow.orc.ORCFile(path).read([name])
        case ".json":
            return [json.loads(line)[name] for line in path.read_text().splitlines()]
        case _:
            with path.open(newline="") as lines:
                return [row[name] for row in csv.DictReader(lines)]
    column: Sequence[Any] = table[name].to_pylist()
    return column


def test_a_split_that_spans_midnight_gives_a_file_for_each_day(
    shard: Shard, tmp_path: Path
) -> None:
    request = ask(shard.path, directory(tmp_path / "out"))
    cut = request.origin.cut()
    whole = Split(0, 1, shard.sealed_index, 0)
    table = Table(request.options, request.origin, cut, (), {})
    request.target.lock()
    task = files.SplitTask(table, request.target, "parquet", ("index",))
    facts = task(0, whole)
    assert [each.date for each in facts.files] == ["1970-01-01", "1970-01-02", "1970-01-03"]
    assert len({each.name.rpartition("/")[2] for each in facts.files}) == 1
    assert facts.entries == sum(each.entries for each in facts.files)


def test_parquet_is_compressed_and_delta_coded(shard: Shard, tmp_path: Path) -> None:
    receipt = export(shard.path, directory(tmp_path / "out")).receipt
    file = pyarrow.parquet.ParquetFile(tmp_path / "out" / receipt.files[0].name)
    group = file.metadata.row_group(0)
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    assert "shard" not in columns
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    for name in ("index", "timestamp", "timestamp_ns"):
        assert "DELTA_BINARY_PACKED" in columns[name].encodings
    assert columns["index"].statistics.min == receipt.files[0].first_index


class SingleEntries(DirectoryOrigin):
    """A directory whose blocks have one entry each: as if read from another place."""

    def blocks(self, split: Split, selection: Selection) -> Iterator[Block]:
        for block in super().blocks(split, selection):
            for row in range(len(block)):
                yield block.select(np.array([row]))


@pytest.mark.parametrize("file_format", ["parquet", "orc", "json", "csv"])
def test_the_bytes_do_not_depend_on_how_entries_are_read(
    file_format: str, shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from onelog.spark.export.job import run_export

    monkeypatch.setattr(files, "ROW_GROUP_BYTES", 3_000)  # several in each file
    export(shard.path, directory(tmp_path / "one"), format=file_format)
    monkeypatch.setattr(files, "TEXT_BYTES", 700)  # several in each row group
    request = ask(shard.path, directory(tmp_path / "two"), format=file_format)
    run_export(replace(request, origin=SingleEntries(str(shard.path))), serial)
    assert everything(directory(tmp_path / "one")) == everything(directory(tmp_path / "two"))
    if file_format == "parquet":
        names = directory(tmp_path / "one").names("log")
        counts = [
            pyarrow.parquet.ParquetFile(tmp_path / "one" / name).num_row_groups for name in names
        ]
        assert max(counts) > 1


def test_columns_are_those_that_were_asked_for(shard: Shard, tmp_path: Path) -> None:
    target = directory(tmp_path / "out")
    receipt = export(shard.path, target, columns="payload,shard,index").receipt
    assert [name for name, _ in receipt.contents.columns] == ["index", "payload"]
    file = pyarrow.parquet.ParquetFile(tmp_path / "out" / receipt.files[0].name)
    assert file.schema_arrow.names == ["index", "payload"]


def test_a_view_of_some_entries_has_the_mix_of_those(shard: Shard, tmp_path: Path) -> None:
    request = ask(shard.path, directory(tmp_path / "out"), view="kv_operations", types="put")
    receipt = export(
        shard.path, directory(tmp_path / "out"), view="kv_operations", types="put",
        namespaces="nobody",
    ).receipt  # fmt: skip
    # The rows are selected by name, and the mix by headers: all puts are in it, none has a row.
    selection = Table(request.options, request.origin, request.origin.cut(), ()).selection()
    ranges = [Range(0, 1, shard.sealed_index)]
    headers = np.concatenate(
        [
            block.headers
            for split in request.origin.splits(ranges, selection)
            for block in request.origin.blocks(split, selection)
        ]
    )
    assert len(headers) > 10
    assert (receipt.rows, receipt.files) == (0, ())
    assert receipt.ranges[0].entries == len(headers)
    assert receipt.ranges[0].mix == compute_mix(headers)


def test_a_mix_changes_with_every_entry() -> None:
    from onelog.ual.segments.tables import ENTRY_DTYPE

    headers = np.zeros(1_000, ENTRY_DTYPE)
    headers["index"] = np.arange(1, 1_001)
    headers["crc"] = np.arange(1_000) * 7919
    whole = compute_mix(headers)
    assert whole == (compute_mix(headers[:300]) + compute_mix(headers[300:])) % (1 << 64)
    assert compute_mix(headers[::-1]) == whole
    assert compute_mix(headers[:-1]) != whole
    exchanged = headers.copy()
    exchanged["crc"][[3, 4]] = headers["crc"][[4, 3]]
    assert compute_mix(exchanged) != whole
    doubled = headers.copy()
    doubled[5] = headers[6]
    assert compute_mix(doubled) != whole


def test_rows_without_a_column_are_refused(shard: Shard, tmp_path: Path) -> None:
    from onelog.errors import InvalidArgument

    with pytest.raises(InvalidArgument, match="COLUMNS_EMPTY"):
        export(shard.path, directory(tmp_path / "out"), columns="shard")
    assert not (tmp_path / "out").exists()
