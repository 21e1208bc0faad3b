"""A cluster that was restored from an older copy: what was read before is not continued blindly.

An operator stops a node, puts an older copy of its directory back and starts it again. The cluster
is the same by its id, and its log is shorter, or has grown anew with other entries at old indexes.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from onelog import Client
from onelog.errors import FailedPrecondition, OnelogError
from onelog.spark.columns.selection import Selection
from onelog.spark.export.job import Numbered, Task, read_since, run_export
from onelog.spark.export.plan import EXPORTED_VIEWS, ExportRequest
from onelog.spark.options import ReadOptions
from onelog.spark.table import load_table, open_origin
from tests.spark.exports import directory, serial
from tests.spark.shard_dirs import rows_of
from tests.spark.test_streaming import read, reader_of
from tests.system.nodes import ServeProcess, nodes

ALL = ReadAllAvailable()


class Restored:
    """A server of one shard, and an older copy of its directory."""

    def __init__(self, node: ServeProcess) -> None:
        self.node = node
        self.endpoint = node.flags["listen"]
        self._data = Path(node.flags["data-dir"])
        self._copy = self._data.with_name("copy")

    def write(self, name: str, count: int) -> None:
        """Put keys one by one: each is an entry."""
        with Client(self.endpoint, timeout_s=60) as client:
            for number in range(count):
                client.kv.put(f"{name}-{number}", name)

    def copy(self) -> None:
        """Copy the directory, as an operator does: the node is stopped."""
        self.node.kill()
        shutil.copytree(self._data, self._copy)
        self._start()

    def restore(self) -> None:
        """Put the copy back."""
        self.node.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self._start()

    def _start(self) -> None:
        self.node.start()
        self.node.until_ready()


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Restored]:
    with nodes(tmp_path, "n1", shards="1") as made:
        node = made["n1"].start()
        node.until_ready()
        found = Restored(node)
        found.write("before", 20)
        yield found


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(OnelogError) as caught:
        act()
    assert isinstance(caught.value, FailedPrecondition)
    return caught.value.reason


def test_a_stream_is_refused_by_a_log_that_ends_earlier_or_has_other_entries(
    restored: Restored,
) -> None:
    options = {"view": "kv_operations", "endpoint": restored.endpoint}
    running = reader_of(**options)
    begin = running.initialOffset()
    common = running.latestOffset(begin, ALL)
    restored.copy()  # a node that starts again writes entries: they are not the copy's
    restored.write("lost", 30)
    end = running.latestOffset(common, ALL)
    assert len(read(running, common, end)) == 30
    restored.restore()
    resumed = reader_of(**options)

    def refusals() -> set[str]:
        # Of a batch that was planned and not committed, Spark asks for the partitions at once.
        return {
            refused(partial(running.latestOffset, end, ALL)),
            refused(partial(resumed.latestOffset, end, ALL)),
            refused(partial(resumed.partitions, common, end)),
        }

    assert refusals() == {"CHECKPOINT_AHEAD"}
    restored.write("other", 40)
    assert refusals() == {"CHECKPOINT_DIFFERS"}
    # What was read before the copy is the past of both: a query that stands there goes on.
    again = reader_of(**options)
    later = again.latestOffset(common, ALL)
    assert {row["value"] for row in read(again, common, later)} == {b"other"}


def test_a_checkpoint_without_checksums_continues_and_gets_them(restored: Restored) -> None:
    """Checkpoints of versions before have none: they are known by cluster and index."""
    reader = reader_of(view="kv_operations", endpoint=restored.endpoint)
    new = reader.latestOffset(reader.initialOffset(), ALL)
    old = {name: value for name, value in new.items() if name != "crc32c"}
    assert set(new) - set(old) == {"crc32c"}
    assert reader.latestOffset(old, ALL) == new
    assert reader.partitions(old, new) == []
    assert reader.latestOffset(new, ALL) == new
    restored.write("more", 5)
    rows = read(reader, old, reader.latestOffset(old, ALL))
    assert [row["value"] for row in rows] == [b"more"] * 5


def test_a_table_that_was_loaded_before_is_refused_by_a_log_that_ends_earlier(
    restored: Restored,
) -> None:
    restored.copy()
    restored.write("lost", 30)
    options = {"view": "kv_operations", "endpoint": restored.endpoint}
    table = load_table(ReadOptions.parse(options, EXPORTED_VIEWS))
    assert sum(len(rows_of(table.origin.blocks(each, Selection()))) for each in table.splits()) > 30
    restored.restore()
    with pytest.raises(OnelogError, match=r"INDEX_IN_FUTURE: entries up to \d+ of shard 0"):
        table.splits()


def ask(restored: Restored, target: Path, **given: object) -> ExportRequest:
    options = ReadOptions.parse({"view": "log", "endpoint": restored.endpoint}, EXPORTED_VIEWS)
    return ExportRequest(options, open_origin(options), directory(target), **given)  # type: ignore[arg-type]


def test_a_receipt_is_not_continued_by_a_log_that_was_restored(
    restored: Restored, tmp_path: Path
) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    common = run_export(ask(restored, out), serial)
    past = read_since(common.receipt_name, (out / common.receipt_name).read_bytes())
    restored.copy()
    restored.write("lost", 30)
    lost = run_export(ask(restored, out, since=past), serial)
    path = out / lost.receipt_name
    since = read_since(lost.receipt_name, path.read_bytes())

    def read_behind() -> object:
        options = {"view": "log", "endpoint": restored.endpoint, "since": str(path)}
        return load_table(ReadOptions.parse(options, EXPORTED_VIEWS))

    def continue_it() -> object:
        return run_export(ask(restored, elsewhere, since=since), serial)

    restored.restore()
    assert refused(continue_it) == refused(read_behind) == "RECEIPT_AHEAD_OF_LOG"
    restored.write("other", 40)
    assert refused(continue_it) == refused(read_behind) == "RECEIPT_DIFFERS"
    assert not list(elsewhere.rglob("*.parquet"))
    assert run_export(ask(restored, elsewhere, since=past), serial).receipt.rows > 40


def test_an_unfinished_export_is_not_finished_with_a_log_that_was_restored(
    restored: Restored, tmp_path: Path
) -> None:
    restored.copy()
    restored.write("lost", 30)

    def interrupted(_work: list[Numbered], _task: Task, _on_done: object) -> None:
        raise KeyboardInterrupt

    def resume() -> object:
        return run_export(ask(restored, tmp_path / "out"), serial)

    with pytest.raises(KeyboardInterrupt):
        run_export(ask(restored, tmp_path / "out"), interrupted)  # type: ignore[arg-type]
    journal = tmp_path / "out" / "_export" / "journal-000001"
    assert json.loads(journal.read_text().splitlines()[0][9:])["last_checksums"]
    restored.restore()
    assert refused(resume) == "EXPORT_AHEAD_OF_LOG"
    restored.write("other", 40)
    assert refused(resume) == "EXPORT_DIFFERS"
    assert not list((tmp_path / "out").rglob("*.parquet"))
