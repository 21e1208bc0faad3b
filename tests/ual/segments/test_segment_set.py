"""Segments as one sequence, while files below a reader are compacted or dropped."""

from pathlib import Path

import numpy as np
import pytest

from onelog.ual.errors import CorruptFile, IndexDropped
from onelog.ual.files import DiskFiles
from onelog.ual.log import Log
from onelog.ual.segments.chain import MAPPED_SEGMENTS_MAX, check_touching
from onelog.ual.segments.sealing import compact_segment
from tests.simulation.disk import SimDisk
from tests.ual.shards import (
    SECOND,
    append_one,
    close_active,
    drop_before,
    make_shard,
    new_log,
    open_shard,
    seal_closed,
    settle,
)


def sealed_log(disk: SimDisk) -> Log:
    """Three sealed files of ten entries, a second apart, and an empty active one."""
    log = new_log(disk)
    for _ in range(3):
        for _ in range(10):
            log.append(
                [(0x0101, b"x" * 20, 0)], term=1, timestamp_ns=log.last_timestamp_ns + SECOND
            )
        close_active(log)
    settle(log)
    assert seal_closed(log) == 3
    return log


def keep(*indexes: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return np.array(indexes, np.uint64)


def test_a_segment_that_was_compacted_below_a_reader_is_read_as_it_is_now() -> None:
    disk = SimDisk()
    log = sealed_log(disk)
    compact_segment(disk, log.segments.segments[1].path, keep(17, 18))

    assert [entry.index for entry in log.scan(9, 21)] == [9, 10, 17, 18, 21]
    assert log.segments.read(17).index == 17
    with pytest.raises(IndexDropped):
        log.segments.read(16)


def test_a_seek_by_time_goes_on_behind_a_compacted_segment() -> None:
    """The segment still says when it ended, but its last entries are gone."""
    disk = SimDisk()
    log = sealed_log(disk)
    compact_segment(disk, log.segments.segments[1].path, keep(11, 12))

    assert log.seek_time(12 * SECOND) == 12
    assert log.seek_time(19 * SECOND) == 21


def test_a_removed_segment_says_dropped_even_to_a_reader_with_an_old_set() -> None:
    disk = SimDisk()
    log = sealed_log(disk)
    before = log.segments
    drop_before(log, 21)

    with pytest.raises(IndexDropped):
        before.read(5)
    with pytest.raises(IndexDropped):
        list(before.scan(1, 30))


def test_only_so_many_files_are_mapped_at_once(tmp_path: Path) -> None:
    """Each mapping holds a descriptor, and a log may have thousands of segments."""
    files = DiskFiles()
    log, _ = open_shard(files, make_shard(files, tmp_path / "data"))
    for _ in range(MAPPED_SEGMENTS_MAX + 20):
        append_one(log)
        close_active(log)
    settle(log)
    seal_closed(log)

    entries = [log.segments.read(index).index for index in range(1, log.last_index + 1)]

    assert entries == list(range(1, log.last_index + 1))
    mapped = [part for part in log.segments.segments[:-1] if part.is_mapped]  # type: ignore[union-attr]
    assert len(mapped) <= MAPPED_SEGMENTS_MAX


def test_an_overlap_is_refused() -> None:
    disk = SimDisk()
    parts = sealed_log(disk).segments.segments
    with pytest.raises(CorruptFile, match="the one before ends at"):
        check_touching(Path("/data"), [parts[0], parts[0]], 1)
