"""Planning by the streams tables of files: what cannot hold a wanted record is not read."""

from pathlib import Path

from onelog.projections.stream.commands import Append, Create
from onelog.projections.stream.commands import encode_command as encode_stream
from onelog.spark.columns.views import VIEWS
from onelog.spark.options import ReadOptions
from onelog.spark.table import load_table
from tests.spark.shard_dirs import Shard


def test_files_without_records_of_the_wanted_streams_are_not_read(tmp_path: Path) -> None:
    """A rare stream of a large log is found by the tables of the files, not by reading them all."""
    shard = Shard(tmp_path / "data", seed=2)
    create = [encode_stream(Create(name), "default") for name in ("rare", "busy")]
    shard.live.do(create)
    records = {name: Append(name, b"value") for name in ("rare", "busy")}
    for number in range(200):
        name = "rare" if number in (3, 150) else "busy"
        shard.live.do([encode_stream(records[name], "default")])
    shard.live.snapshot()
    shard.seal()
    options = {"view": "stream", "path": str(shard.path)}
    everything = load_table(ReadOptions.parse(options, VIEWS))
    table = load_table(ReadOptions.parse({**options, "streams": "rare"}, VIEWS))
    splits = table.origin.splits(table.ranges, table.selection(), 1)
    batches = [batch for split in splits for batch in table.batches(split, None)]
    found = [row["stream"] for batch in batches for row in batch.to_pylist()]
    assert found == ["rare", "rare"]
    all_splits = everything.origin.splits(everything.ranges, everything.selection(), 1)
    assert len(splits) <= 3 < len(all_splits)  # two files, and the tail that no table is of
    # A stream that the snapshot does not know may be the one: nothing is left out then.
    for path in shard.live.paths.snapshots.iterdir():
        path.write_bytes(b"")
    again = table.origin.splits(table.ranges, table.selection(), 1)
    assert len(again) > len(splits)
