"""A file of the log that compaction rewrites, before a query is planned and in the midst of it."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from onelog.spark.columns.selection import Selection
from onelog.spark.directory import DirectoryOrigin
from onelog.spark.pieces import open_sealed, sealed_pieces
from onelog.ual.files import DiskFiles
from onelog.ual.offline.reader import ReadOnlyFiles
from onelog.ual.segments.sealing import compact_segment
from tests.spark.shard_dirs import LARGE, Shard, read_all, rows_of
from tests.spark.test_directory import range_of, sealed_files

EVERYTHING = Selection()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    """A shard whose first segment is large enough to be read in parts."""
    shard = Shard(tmp_path_factory.mktemp("large") / "data", config=LARGE)
    shard.write_much(4_000)
    shard.seal()
    return shard


def test_a_large_compacted_file_is_read_in_parts(large: Shard, tmp_path: Path) -> None:
    shutil.copy(sealed_files(large)[0], tmp_path)
    (path,) = tmp_path.glob("*.flseg")
    entries = [entry.index for entry in large.live.log.segments.scan(1, 3_000)]
    kept = [index for index in entries if index % 3 and index <= 2_990]
    compact_segment(DiskFiles(), path, np.array(kept, np.uint64))
    origin = DirectoryOrigin(str(tmp_path))
    assert len(origin.splits([range_of(origin)], EVERYTHING, 10_000)) > 4
    last = range_of(origin).last_index
    left = [row for row in large.expected(last) if row[0] in set(kept)]
    assert read_all(origin, size_bytes=10_000) == read_all(origin) == left


def test_a_file_that_is_compacted_in_the_midst_of_a_query_gives_whole_entries(
    large: Shard, tmp_path: Path
) -> None:
    """Its parts are planned on the old file. One has it open, and those behind open the new one."""
    shutil.copy(sealed_files(large)[0], tmp_path)
    (path,) = tmp_path.glob("*.flseg")
    origin = DirectoryOrigin(str(tmp_path))
    expected = large.expected(range_of(origin).last_index)
    splits = origin.splits([range_of(origin)], EVERYTHING, 10_000)
    assert len(splits) > 4
    segment, file = open_sealed(ReadOnlyFiles(DiskFiles()), path)
    before = list(sealed_pieces(segment, file, 1, 500))
    kept = [index for index in range(1, segment.last_index + 1) if index % 3]
    seen = rows_of(origin.blocks(splits[0], EVERYTHING))
    compact_segment(DiskFiles(), path, np.array(kept, np.uint64))
    (opened,) = sealed_pieces(segment, file, 1, 500)
    assert [bytes(each.data) for each in before] == [bytes(opened.data)]
    for split in splits[1:]:
        seen += rows_of(origin.blocks(split, EVERYTHING))
    reached = splits[0].last_index
    assert seen == [row for row in expected if row[0] <= reached or row[0] % 3]
