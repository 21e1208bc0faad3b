"""Exports that continue others, and ranges that the log does not have."""

from pathlib import Path

import pyarrow.parquet
import pytest

from onelog.errors import FailedPrecondition, OnelogError, OutOfRange
from onelog.spark.export.job import Outcome, read_since
from onelog.spark.export.receipt import Receipt, Since
from onelog.spark.export.verify import verify_export
from tests.spark.exports import directory, export, seal, three_days
from tests.spark.shard_dirs import Shard
from tests.ual.shards import drop_before


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return three_days(tmp_path / "data", groups=6)


def since(path: Path, outcome: Outcome) -> tuple[Receipt, Since]:
    return read_since(outcome.receipt_name, (path / outcome.receipt_name).read_bytes())


def indexes(path: Path) -> list[int]:
    names = sorted(path.glob("log/*/*/*.parquet"), key=lambda each: each.name)
    tables = [pyarrow.parquet.ParquetFile(name).read() for name in names]
    return [index for table in tables for index in table["index"].to_pylist()]


def grow(shard: Shard) -> Shard:
    shard.write(8)
    return seal(shard)


def test_continuations_in_one_target_have_every_row_once(shard: Shard, tmp_path: Path) -> None:
    out = tmp_path / "out"
    target = directory(out)
    outcome = export(shard.path, target, columns="index")
    for number in (2, 3):
        grow(shard)
        before = outcome
        outcome = export(shard.path, target, columns="index", since=since(out, before))
        assert outcome.receipt_name == f"receipt-{number:06d}.json"
        assert outcome.receipt.since == since(out, before)[1]
        assert outcome.receipt.ranges[0].first_index == before.receipt.ranges[0].last_index + 1
        # The same command again finds its receipt.
        again = export(shard.path, target, columns="index", since=since(out, before))
        assert (again.is_new, again.receipt) == (False, outcome.receipt)
    assert indexes(out) == [row[0] for row in shard.expected(shard.sealed_index)]
    assert verify_export(target).is_good


def test_a_continuation_may_go_to_another_target(shard: Shard, tmp_path: Path) -> None:
    first = export(shard.path, directory(tmp_path / "monday"))
    last = shard.sealed_index
    grow(shard)
    second = export(
        shard.path, directory(tmp_path / "tuesday"), since=since(tmp_path / "monday", first)
    )
    assert second.receipt.number == 1
    expected = [row[0] for row in shard.expected(shard.sealed_index) if row[0] > last]
    assert indexes(tmp_path / "tuesday") == expected


def test_a_continuation_of_nothing_new_is_empty(shard: Shard, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = export(shard.path, directory(out))
    second = export(shard.path, directory(out), since=since(out, first))
    assert second.receipt.files == ()
    (found,) = second.receipt.ranges
    assert found.first_index == found.last_index + 1 == first.receipt.ranges[0].last_index + 1
    grow(shard)
    third = export(shard.path, directory(out), since=since(out, second))
    assert third.receipt.ranges[0].first_index == found.first_index
    assert verify_export(directory(out)).is_good


def test_a_receipt_of_something_else_is_refused(shard: Shard, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = export(shard.path, directory(out))
    behind = since(out, first)
    other = three_days(tmp_path / "other", groups=2)
    # The copy of segments does not say which cluster it is of.
    segments = other.segments
    elsewhere = directory(tmp_path / "elsewhere")
    assert refusal(segments, elsewhere, since=behind) == "RECEIPT_OF_ANOTHER_CLUSTER"
    assert refusal(shard.path, elsewhere, since=behind, view="kv_operations") == (
        "RECEIPT_OF_ANOTHER_VIEW"
    )
    # The same cluster, restored to an earlier state.
    assert refusal(other.path, elsewhere, since=behind) == "RECEIPT_AHEAD_OF_LOG"
    grow(shard)
    export(shard.path, directory(out), since=behind)
    grow(shard)
    partly = export(shard.path, directory(tmp_path / "partly"), to_index="30")
    assert refusal(shard.path, directory(out), since=since(tmp_path / "partly", partly)) == (
        "RECEIPT_NOT_THE_LAST"
    )
    assert not list((tmp_path / "elsewhere").glob("log/**/*.parquet"))


def refusal(path: Path, *arguments: object, **given: object) -> str:
    with pytest.raises(OnelogError) as caught:
        export(path, *arguments, **given)  # type: ignore[arg-type]
    return caught.value.reason


def test_what_is_not_kept_any_more_is_named_before_anything_is_written(
    shard: Shard, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = export(shard.path, directory(out), to_index="3")
    grow(shard)
    drop_before(shard.live.log, 30)
    kept = shard.live.log.first_index
    assert kept > 4
    with pytest.raises(OutOfRange) as caught:
        export(shard.path, directory(out), since=since(out, first))
    assert caught.value.reason == "COMPACTED"
    assert f"shard 0: entries 4 to {kept - 1}" in str(caught.value)
    with pytest.raises(OutOfRange) as caught:
        export(shard.path, directory(tmp_path / "new"), from_index="2")
    assert f"shard 0: entries 2 to {kept - 1}" in str(caught.value)
    assert not (tmp_path / "new" / "log").exists()

    second = export(shard.path, directory(out), since=since(out, first), from_kept=True)
    (missing,) = second.receipt.missing
    assert (missing.first_index, missing.last_index) == (4, kept - 1)
    assert second.receipt.ranges[0].first_index == kept
    report = verify_export(directory(out))
    assert report.is_good
    assert any(f"lacks entries 4 to {kept - 1}" in note for note in report.notes)


def test_without_a_first_index_an_export_begins_with_what_is_kept(
    shard: Shard, tmp_path: Path
) -> None:
    drop_before(shard.live.log, 30)
    outcome = export(shard.path, directory(tmp_path / "out"))
    assert outcome.receipt.ranges[0].first_index == shard.live.log.first_index > 1
    assert outcome.receipt.missing == ()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"to_index": "100000"}, "INDEX_IN_FUTURE"),
        ({"from_index": "100000"}, "INDEX_IN_FUTURE"),
        ({"from_index": "3=1"}, "SHARD_UNKNOWN"),
        ({"shards": "7"}, "SHARD_UNKNOWN"),
        ({"from_time": "2200-01-01"}, "TIME_IN_FUTURE"),
        ({"format": "xml"}, "FORMAT_UNKNOWN"),
    ],
)
def test_a_range_that_is_not_in_the_log_is_refused(
    given: dict[str, str], reason: str, shard: Shard, tmp_path: Path
) -> None:
    assert refusal(shard.path, directory(tmp_path / "out"), **given) == reason
    assert not (tmp_path / "out" / "log").exists()


def test_a_refused_export_leaves_a_target_that_can_be_used(shard: Shard, tmp_path: Path) -> None:
    target = directory(tmp_path / "out")
    with pytest.raises((FailedPrecondition, OutOfRange)):
        export(shard.path, target, to_index="100000")
    assert export(shard.path, target).is_new
