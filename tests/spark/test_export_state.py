"""Exports of states and of changes: the rows of their tables, in files that are always the same."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from onelog.errors import FailedPrecondition, InvalidArgument, OnelogError, OutOfRange
from onelog.spark.changes import CHANGE_VIEWS
from onelog.spark.directory import DirectoryOrigin
from onelog.spark.export import files
from onelog.spark.export.files import row_sizes
from onelog.spark.export.job import Numbered, Outcome, Task, read_since, run_export
from onelog.spark.export.journal import SplitFacts
from onelog.spark.export.verify import verify_export
from onelog.spark.source import OnelogDataSource
from onelog.spark.state import STATE_VIEWS, StatePart, StateTable
from tests.simulation.disk import SimDisk
from tests.spark.exports import (
    ask,
    directory,
    everything,
    export,
    seal,
    simulated,
    three_days,
)
from tests.spark.shard_dirs import Shard
from tests.spark.written import write_history

Row = dict[str, Any]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory in which every view has rows."""
    path = tmp_path_factory.mktemp("history")
    return write_history(path, seed=4, steps=600, snapshots=2).path.parent


def table_rows(path: Path, view: str, **options: str) -> list[Row]:
    """Return the rows of a table, which an export of it must have."""
    source = OnelogDataSource({"view": view, "path": str(path), **options})
    source.reader(source.schema())
    table: Any = source._table
    return [
        row for part in table.parts for batch in table.batches(part) for row in batch.to_pylist()
    ]


def file_rows(out: Path, outcome: Outcome) -> list[Row]:
    """Return the rows of the files of an export, in their order."""
    found: list[Row] = []
    for facts in outcome.receipt.files:
        table = pyarrow.parquet.ParquetFile(out / facts.name).read()
        found += [{"shard": facts.shard, **row} for row in table.to_pylist()]
    return found


@pytest.mark.parametrize("view", sorted(STATE_VIEWS | CHANGE_VIEWS))
def test_the_files_of_a_view_have_the_rows_of_its_table(
    view: str, history: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    outcome = export(history, directory(out), view=view)
    found = file_rows(out, outcome)
    assert found == table_rows(history, view)
    assert len(found) == outcome.receipt.rows > 0
    report = verify_export(directory(out), DirectoryOrigin(str(history)))
    assert report.is_good
    # Changes are replayed each time, and have no types that states lack.
    for file_format in ("orc", "json", "csv") if view in STATE_VIEWS else ():
        other = export(history, simulated(SimDisk()), view=view, format=file_format)
        assert other.receipt.rows == len(found)
    (last,) = outcome.receipt.cut
    (there,) = outcome.receipt.ranges
    if view in STATE_VIEWS:
        assert (there.first_index, there.last_index) == (last.last_index, last.last_index)
        assert report.log_compared == 0
        assert report.log_not_compared == [
            f"receipt-000001.json: the state of shard 0 at {last.last_index}: it has no entries of "
            "its own"
        ]
    else:
        assert (there.first_index, there.last_index) == (1, last.last_index)
        assert report.log_compared == report.files > 0
        assert report.log_not_compared == []


class OtherBatches(StateTable):
    """Yields the same rows in other batches."""

    @contextmanager
    def open(
        self, part: StatePart, columns: frozenset[str] | None = None
    ) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        with super().open(part, columns) as (time_ns, batches):
            rows = pa.Table.from_batches(batches)
            yield time_ns, iter(rows.to_batches(max_chunksize=7))


@pytest.mark.parametrize("view", sorted(STATE_VIEWS))
def test_the_bytes_of_a_state_do_not_depend_on_batches_or_snapshots(
    view: str, history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 20_000 if view == "timeseries" else 100
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", size)
    (snapshot,) = sorted((history / "00000" / "snaps").glob("*.fsnap"))[-1:]
    index = snapshot.name.partition("-")[0].lstrip("0")
    out = tmp_path / "out"
    outcome = export(history, directory(out), view=view, as_of_index=index)
    data = pyarrow.parquet.ParquetFile(out / outcome.receipt.files[0].name)
    assert data.metadata.num_row_groups > 1

    # Without that snapshot, older ones and the log lead to the same rows.
    hidden = snapshot.rename(snapshot.with_suffix(".hidden"))
    replayed = directory(tmp_path / "replayed")
    try:
        export(history, replayed, view=view, as_of_index=index)
    finally:
        hidden.rename(snapshot)
    assert everything(replayed) == everything(directory(out))

    monkeypatch.setattr("onelog.spark.export.plan.StateTable", OtherBatches)
    others = directory(tmp_path / "others")
    export(history, others, view=view, as_of_index=index)
    assert everything(others) == everything(directory(out))


def test_rows_have_one_size_in_any_batch() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "number": pa.array([1, None, 3, 4], pa.int32()),
            "text": pa.array(["a", None, "ccc", ""]),
            "tags": pa.array([[("k", b"vv")], None, [], [("a", None)]], pa.map_(
                pa.string(), pa.binary())),
            "list": pa.array([[{"a": 1, "b": "xy"}, None], [], None, [{"a": 2, "b": None}]]),
            "flag": pa.array([True, None, False, True]),
        }
    )  # fmt: skip
    sizes = row_sizes(batch).tolist()
    assert sizes == [4 + 1 + 3 + 18 + 1, 4 + 1, 4 + 3 + 1, 4 + 1 + 8 + 1]
    for first in range(4):
        assert row_sizes(batch.slice(first)).tolist() == sizes[first:]


def stop_after_one(
    work: Sequence[Numbered], task: Task, on_done: Callable[[Sequence[SplitFacts]], None]
) -> None:
    on_done([task(*work[0])])
    raise KeyboardInterrupt


@pytest.mark.parametrize("view", sorted(CHANGE_VIEWS))
def test_changes_that_are_interrupted_go_on_although_snapshots_changed(
    view: str, history: Path
) -> None:
    whole, target = simulated(SimDisk()), simulated(SimDisk())
    assert len(export(history, whole, view=view).receipt.files) == 3
    with pytest.raises(KeyboardInterrupt):
        run_export(ask(history, target, view=view), stop_after_one)
    snapshot = sorted((history / "00000" / "snaps").glob("*.fsnap"))[0]
    hidden = snapshot.rename(snapshot.with_suffix(".hidden"))
    try:
        export(history, target, view=view)
    finally:
        hidden.rename(snapshot)
    assert everything(target) == everything(whole)


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    shard = three_days(tmp_path / "data", groups=6)
    shard.live.snapshot()
    return shard


def test_changes_are_in_the_day_of_their_entry_and_a_state_in_the_day_of_its_own(
    shard: Shard, tmp_path: Path
) -> None:
    out = tmp_path / "changes"
    receipt = export(shard.path, directory(out), view="kv_changes").receipt
    assert [each.date for each in receipt.files] == [f"1970-01-0{day}" for day in (1, 2, 3)]
    report = verify_export(directory(out), DirectoryOrigin(str(shard.path)))
    assert report.is_good
    assert report.log_compared == 3
    entries = shard.expected(shard.last_index)
    time_ns = [row[3] for row in entries if row[3] // files.DAY_NS == 1][-1]
    by_time = export(
        shard.path, directory(tmp_path / "time"), view="kv", as_of_time=str(time_ns)
    ).receipt
    (found,) = by_time.ranges
    assert found.last_index == max(row[0] for row in entries if row[3] <= time_ns)
    (facts,) = by_time.files
    assert facts.name == (
        f"kv/shard=00000/date=1970-01-02/00000-{found.last_index:010d}-{found.last_index:010d}"
        ".parquet"
    )
    assert by_time.contents.selection.to_time_ns == time_ns
    as_of = str(found.last_index)
    by_index = export(
        shard.path, directory(tmp_path / "index"), view="kv", as_of_index=as_of
    ).receipt
    assert by_index.files == by_time.files


def test_continuations_of_changes_have_every_row_once(shard: Shard, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = export(shard.path, directory(out), view="kv_changes")
    shard.write(8)
    seal(shard)
    since = read_since(first.receipt_name, (out / first.receipt_name).read_bytes())
    second = export(shard.path, directory(out), view="kv_changes", since=since)
    assert second.receipt.rows > 0
    assert file_rows(out, first) + file_rows(out, second) == table_rows(shard.path, "kv_changes")
    again = export(shard.path, directory(out), view="kv_changes", since=since)
    assert (again.is_new, again.receipt) == (False, second.receipt)
    assert verify_export(directory(out), DirectoryOrigin(str(shard.path))).is_good
    some = export(
        shard.path, directory(tmp_path / "some"), view="kv_changes", from_index="9", to_index="40"
    )
    assert file_rows(tmp_path / "some", some) == table_rows(
        shard.path, "kv_changes", from_index="9", to_index="40"
    )
    with pytest.raises(InvalidArgument) as caught:
        export(shard.path, directory(out), view="kv", since=since)
    assert caught.value.reason == "VIEW_NOT_CONTINUED"


def test_a_complete_state_is_found_by_the_same_request_only(shard: Shard, tmp_path: Path) -> None:
    target = directory(tmp_path / "out")
    receipt = export(shard.path, target, view="kv").receipt
    index = receipt.ranges[0].last_index
    shard.write(8)
    seal(shard)
    for same in ({}, {"as_of_index": str(index)}, {"as_of_index": f"0={index}"}):
        again = export(shard.path, target, None, view="kv", **same)
        assert (again.is_new, again.receipt) == (False, receipt)
    for other in ({"as_of_index": "5"}, {"as_of_time": "5"}, {"key_prefix": "k"}):
        with pytest.raises(FailedPrecondition) as caught:
            export(shard.path, target, None, view="kv", **other)
        assert caught.value.reason == "TARGET_HAS_ANOTHER_EXPORT"
    by_time = directory(tmp_path / "time")
    receipt = export(shard.path, by_time, view="kv", as_of_time="10").receipt
    assert export(shard.path, by_time, view="kv", as_of_time="10").receipt == receipt
    assert not export(shard.path, by_time, view="kv", as_of_time="10").is_new


def test_an_index_inside_of_a_transaction_is_refused_before_the_target_is_bound_to_it(
    history: Path, tmp_path: Path
) -> None:
    rows = [row for row in table_rows(history, "kv_changes") if row["transaction"]]
    inside = next(row["index"] for row in rows if row["index"] == row["transaction"] + 1)
    target = directory(tmp_path / "out")
    with pytest.raises(OutOfRange) as caught:
        export(history, target, view="kv", as_of_index=str(rows[0]["transaction"]))
    assert caught.value.reason == "AS_OF_INSIDE_TRANSACTION"
    assert export(history, target, view="kv", as_of_index=str(inside - 2)).is_new
    # Changes may end there: a transaction takes effect at its end, and its rows are complete.
    out, last = tmp_path / "changes", str(inside)
    outcome = export(history, directory(out), view="kv_changes", to_index=last)
    found = file_rows(out, outcome)
    assert found[-1]["index"] == inside
    assert found == table_rows(history, "kv_changes", to_index=last)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"view": "log", "as_of_index": "5"}, "OPTION_UNCONCERNED"),
        ({"view": "kv_changes", "as_of_time": "5"}, "OPTION_UNCONCERNED"),
        ({"view": "kv", "from_kept": True}, "OPTION_UNCONCERNED"),
        ({"view": "kv", "from_index": "5"}, "OPTION_UNCONCERNED"),
        ({"view": "kv", "as_of_index": "99999"}, "INDEX_IN_FUTURE"),
        ({"view": "kv_changes", "to_index": "99999"}, "INDEX_IN_FUTURE"),
    ],
)
def test_what_a_view_does_not_have_is_refused(
    given: dict[str, Any], reason: str, history: Path, tmp_path: Path
) -> None:
    with pytest.raises(OnelogError) as caught:
        export(history, directory(tmp_path / "out"), **given)
    assert caught.value.reason == reason
    assert not list((tmp_path / "out").rglob("journal*"))


def test_a_state_before_the_first_entry_is_empty(shard: Shard, tmp_path: Path) -> None:
    """The first entry has time 0 or later, so an empty log is the only one; its range says so."""
    empty = Shard(tmp_path / "empty")
    target = directory(tmp_path / "out")
    receipt = export(empty.path, target, view="kv").receipt
    assert receipt.files == ()
    assert [(each.first_index, each.last_index) for each in receipt.ranges] == [(1, 0)]
    assert not export(empty.path, target, view="kv").is_new
    assert verify_export(target).is_good
