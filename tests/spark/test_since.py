"""A read behind an export's receipt: exactly what follows, or a reason why that cannot be."""

from pathlib import Path

import pytest

from onelog.errors import DataLoss, FailedPrecondition, InvalidArgument, OnelogError, OutOfRange
from onelog.spark.columns.views import VIEWS
from onelog.spark.export.target import DirectoryTarget
from onelog.spark.options import ReadOptions
from onelog.spark.table import load_table
from tests.spark.exports import export, seal, three_days
from tests.spark.shard_dirs import rows_of
from tests.ual.shards import drop_before


def read_since(path: Path, receipt: Path, **options: str) -> list[int]:
    """Return the indexes that a read behind a receipt has."""
    given = {"view": "log", "path": str(path), "since": str(receipt), **options}
    table = load_table(ReadOptions.parse(given, VIEWS))
    selection = table.selection(0)
    return [
        row[0] for split in table.splits() for row in rows_of(table.origin.blocks(split, selection))
    ]


def test_what_follows_behind_a_receipt_is_read_and_other_receipts_are_refused(
    tmp_path: Path,
) -> None:
    shard = three_days(tmp_path / "data", 10)
    export(shard.path, DirectoryTarget("out", tmp_path / "out"))
    (receipt,) = (tmp_path / "out").glob("receipt-*.json")
    last = shard.sealed_index
    assert read_since(shard.path, receipt) == []
    shard.write(30)
    seal(shard)
    after = [row[0] for row in shard.expected(shard.sealed_index) if row[0] > last]
    assert after
    assert read_since(shard.path, receipt) == after
    assert read_since(shard.path, receipt, to_index=str(after[5])) == after[:6]

    def refused(kind: type[OnelogError], reason: str, receipt: Path, **options: str) -> None:
        with pytest.raises(kind) as error:
            read_since(shard.path, receipt, **options)
        assert error.value.reason == reason

    edited = tmp_path / "edited.json"
    edited.write_bytes(receipt.read_bytes().replace(b'"view": "log"', b'"view": "lag"'))
    refused(DataLoss, "RECEIPT_EDITED", edited)
    refused(InvalidArgument, "OPTION_INVALID", tmp_path / "nothing.json")
    refused(FailedPrecondition, "RECEIPT_OF_ANOTHER_VIEW", receipt, view="kv_operations")
    younger = three_days(tmp_path / "younger", 1)
    assert younger.sealed_index < last
    with pytest.raises(FailedPrecondition, match="RECEIPT_AHEAD_OF_LOG"):
        read_since(younger.path, receipt)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in shard.segments.glob("*.flseg"):
        (copy / path.name).write_bytes(path.read_bytes())
    with pytest.raises(FailedPrecondition, match="RECEIPT_OF_ANOTHER_CLUSTER"):
        read_since(copy, receipt)
    shard.live.snapshot()
    drop_before(shard.live.log, shard.sealed_index)
    refused(OutOfRange, "COMPACTED", receipt)
