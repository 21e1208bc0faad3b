"""Verifying: whatever was done to an export is named, and so is what could not be compared."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from onelog.errors import DataLoss, FailedPrecondition, NotFound
from onelog.spark.directory import DirectoryOrigin
from onelog.spark.export.verify import Report, verify_export
from tests.spark.exports import directory, export, three_days
from tests.spark.shard_dirs import Shard
from tests.ual.shards import drop_before


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return three_days(tmp_path_factory.mktemp("log") / "data")


@pytest.fixture(scope="module")
def exported(shard: Shard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "out"
    export(shard.path, directory(path))
    return path


@pytest.fixture
def out(exported: Path, tmp_path: Path) -> Path:
    shutil.copytree(exported, tmp_path / "out")
    return tmp_path / "out"


def found(report: Report) -> list[tuple[str, str]]:
    return [(each.kind, each.name) for each in report.differences]


def files_of(out: Path) -> list[Path]:
    return sorted(out.glob("log/*/*/*.parquet"))


def test_an_export_that_nobody_touched_is_good(out: Path, shard: Shard) -> None:
    read: list[int] = []
    report = verify_export(directory(out), DirectoryOrigin(str(shard.path)), read.append)
    assert report.is_good
    assert report.files == report.log_compared == len(files_of(out))
    assert report.log_not_compared == []
    assert report.rows == len(shard.expected(shard.sealed_index))
    assert sum(read) == report.size_bytes == sum(each.stat().st_size for each in files_of(out))


def test_each_byte_of_a_file_counts(out: Path) -> None:
    rng = Random(2)
    path = files_of(out)[1]
    data = path.read_bytes()
    for position in rng.sample(range(len(data)), 20):
        path.write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        assert found(verify_export(directory(out))) == [
            ("CHANGED", path.relative_to(out).as_posix())
        ]
    path.write_bytes(data[:-1])
    assert found(verify_export(directory(out))) == [("CHANGED", path.relative_to(out).as_posix())]


def remove(first: Path, _second: Path) -> None:
    first.unlink()


def add(first: Path, _second: Path) -> None:
    shutil.copy(first, first.with_name("00000-0000009000-0000009999.parquet"))


def exchange(first: Path, second: Path) -> None:
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)


@pytest.mark.parametrize(
    ("change", "kinds"),
    [(remove, ["MISSING"]), (add, ["ADDED"]), (exchange, ["EXCHANGED", "EXCHANGED"])],
)
def test_a_file_that_was_removed_added_or_exchanged_is_named(
    change: Callable[[Path, Path], None], kinds: list[str], out: Path
) -> None:
    first, second = files_of(out)[0], files_of(out)[-1]
    change(first, second)
    report = verify_export(directory(out))
    assert [each.kind for each in report.differences] == kinds
    if change is exchange:
        assert second.name in report.differences[0].message


def test_entries_that_the_log_has_otherwise_are_found(out: Path, tmp_path: Path) -> None:
    """The same cluster id, indexes and files, but another history."""
    other = three_days_of_another_seed(tmp_path / "other")
    report = verify_export(directory(out), DirectoryOrigin(str(other.path)))
    assert {each.kind for each in report.differences} == {"LOG_DIFFERS"}
    names = {each.name for each in report.differences}
    assert files_of(out)[0].relative_to(out).as_posix() in names


def test_a_payload_of_the_log_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    """The header is as it was exported, and is believed only with what its checksum covers."""
    shard = three_days(tmp_path / "data")
    export(shard.path, directory(tmp_path / "out"))
    path = sorted(shard.segments.glob("*.flseg"))[1]
    content = bytearray(path.read_bytes())
    content[content.index(b"key-")] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataLoss) as caught:
        verify_export(directory(tmp_path / "out"), DirectoryOrigin(str(shard.path)))
    assert caught.value.reason == "CORRUPT_FILE"


def test_entries_that_gave_no_row_are_compared_by_the_range(shard: Shard, tmp_path: Path) -> None:
    target = directory(tmp_path / "out")
    receipt = export(shard.path, target, view="kv_operations", namespaces="nobody").receipt
    assert receipt.files == ()
    assert verify_export(target, DirectoryOrigin(str(shard.path))).is_good
    other = three_days_of_another_seed(tmp_path / "other")
    report = verify_export(target, DirectoryOrigin(str(other.path)))
    assert found(report) == [("LOG_DIFFERS", "receipt-000001.json")]


def three_days_of_another_seed(path: Path) -> Shard:
    from tests.spark.exports import DAY_NS, seal

    shard = Shard(path, seed=9)
    for step_ns in (0, DAY_NS, DAY_NS):
        shard.live.write(shard.work.group(shard.last_index + 1), step_ns=step_ns + 1)
        shard.live.log.sync()
        shard.live.commit()
        shard.write(30)
    return seal(shard)


def test_what_the_log_dropped_is_not_compared_and_that_is_said(tmp_path: Path) -> None:
    shard = three_days(tmp_path / "data")
    export(shard.path, directory(tmp_path / "out"))
    drop_before(shard.live.log, 90)
    kept = shard.live.log.first_index
    report = verify_export(directory(tmp_path / "out"), DirectoryOrigin(str(shard.path)))
    assert report.is_good
    assert 0 < report.log_compared < report.files
    assert report.log_not_compared == [
        f"receipt-000001.json: entries 1 to {kept - 1} of shard 0: the log begins at {kept}"
    ]


def test_rows_that_were_selected_by_name_are_compared_by_the_entries_they_came_of(
    shard: Shard, tmp_path: Path
) -> None:
    target = directory(tmp_path / "out")
    receipt = export(
        shard.path, target, view="kv_operations", types="put,delete", key_prefix="key-1"
    ).receipt
    assert 0 < receipt.rows < receipt.ranges[0].entries
    report = verify_export(target, DirectoryOrigin(str(shard.path)))
    assert report.is_good
    assert report.log_compared == len(receipt.files) > 0


def test_another_cluster_cannot_be_compared(out: Path, shard: Shard) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        verify_export(directory(out), DirectoryOrigin(str(shard.segments)))
    assert caught.value.reason == "RECEIPT_OF_ANOTHER_CLUSTER"


def test_a_receipt_that_is_not_there_or_was_edited_is_an_error(out: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound) as missing:
        verify_export(directory(tmp_path / "nothing"))
    assert missing.value.reason == "NO_RECEIPT"
    receipt = out / "receipt-000001.json"
    receipt.write_bytes(receipt.read_bytes().replace(b'"rows": ', b'"rows": 1', 1))
    with pytest.raises(DataLoss) as edited:
        verify_export(directory(out))
    assert edited.value.reason == "RECEIPT_EDITED"


def test_a_receipt_in_the_place_of_another_is_an_error(out: Path) -> None:
    shutil.copy(out / "receipt-000001.json", out / "receipt-000002.json")
    with pytest.raises(DataLoss) as caught:
        verify_export(directory(out))
    assert caught.value.reason == "RECEIPT_EDITED"
