"""Sealed segments: reading them back, and outliving their names."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.ual.entry import Entry
from onelog.ual.files import DiskFiles, File
from onelog.ual.segments.format import FOOTER_SIZE, HEADER_SIZE
from onelog.ual.segments.sealed import BLOCK_ENTRIES, SealedSegment
from tests.simulation.disk import SimDisk
from tests.ual.segments.segment_files import (
    DIRECTORY,
    SECOND_NS,
    TYPES,
    SegmentModel,
    interesting_times,
    make_model,
    naive_seek,
    open_sealed,
    ranges_of,
    seal,
    sealed_bytes,
    segment_models,
)

SMALL = make_model(Random(3), group_sizes=[1, 2, 1], payload_size_max=4, stream_count=0)
SMALL = replace(SMALL, records={7: [1, 3], 300: [2]}, void_indexes=[2, 4])
LARGE = make_model(Random(4), group_sizes=[1, 300, 7, 500, 90], first_index=41)
PATH = DIRECTORY / "0000000001.flseg"


def disk_with(data: bytes, path: Path = PATH) -> SimDisk:
    disk = SimDisk()
    disk.put(path, data)
    return disk


def read_all(segment: SealedSegment) -> list[Entry]:
    return [segment.read(index) for index in range(segment.first_index, segment.last_index + 1)]


@given(segment_models(), st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_was_sealed_is_read_back(model: SegmentModel, data: st.DataObject) -> None:
    segment, entries = open_sealed(model), model.entries
    indexes = st.integers(segment.first_index, segment.last_index)
    first, last = sorted((data.draw(indexes), data.draw(indexes)))
    inside = [entry for entry in entries if first <= entry.index <= last]

    assert segment.read(first) == inside[0]
    assert list(segment.entries(first, last)) == inside
    assert b"".join(group.data for group in model.groups) == bytes(
        segment.raw_range(segment.first_index, segment.last_index)
    )
    columns = segment.columns(first, last)
    assert columns.term.tolist() == [entry.term for entry in inside]
    assert list(columns.entries()) == inside
    assert segment.voids.tolist() == ranges_of(model.void_indexes)
    assert [e.index for e in entries if segment.is_void(e.index)] == model.void_indexes
    assert segment.stream_ids().tolist() == sorted(model.records)
    for stream_id, records in model.records.items():
        assert segment.stream_records(stream_id).tolist() == records
    assert (segment.first_timestamp_ns, segment.last_timestamp_ns) == (
        entries[0].timestamp_ns,
        entries[-1].timestamp_ns,
    )
    assert segment.entry_count == len(entries) == sum(segment.owner_counts)
    assert (segment.shard, segment.segment_id) == (model.header.shard, model.header.segment_id)


@given(segment_models(), st.data())
@settings(max_examples=40, deadline=None)
def test_scans_filter_like_a_plain_loop(model: SegmentModel, data: st.DataObject) -> None:
    segment = open_sealed(model)
    indexes = st.integers(segment.first_index, segment.last_index)
    first, last = sorted((data.draw(indexes), data.draw(indexes)))
    types = data.draw(st.none() | st.frozensets(st.sampled_from((*TYPES, 0x7777))))
    stream_id = data.draw(st.none() | st.sampled_from((*model.records, 5)))
    skip_voids = data.draw(st.booleans())
    records = None if stream_id is None else model.records.get(stream_id, [])

    found = segment.entries(first, last, types=types, stream_id=stream_id, skip_voids=skip_voids)

    assert list(found) == [
        entry
        for entry in model.entries
        if first <= entry.index <= last
        and (types is None or entry.entry_type in types)
        and (records is None or entry.index in records)
        and not (skip_voids and entry.index in model.void_indexes)
    ]


def test_a_scan_goes_on_over_its_blocks() -> None:
    model = make_model(Random(9), group_sizes=[BLOCK_ENTRIES, 3], payload_size_max=0)

    assert list(open_sealed(model).entries(2, model.last_index)) == model.entries[1:]


def test_an_empty_range_has_no_entries() -> None:
    segment = open_sealed(SMALL)

    assert list(segment.entries(3, 2)) == []
    assert len(segment.columns(3, 2)) == 0


@given(segment_models())
@settings(max_examples=40, deadline=None)
def test_seeking_a_time_equals_a_plain_loop(model: SegmentModel) -> None:
    segment = open_sealed(model)
    for timestamp_ns in interesting_times(model.entries):
        assert segment.seek_time(timestamp_ns) == naive_seek(model.entries, timestamp_ns)


def test_seeking_finds_entries_between_the_rows_of_the_time_table() -> None:
    """Thousands of entries within one second: the table has one row, the rest is searched."""
    model = make_model(Random(8), group_sizes=[1] * 500, gaps_ns=(0, 1, 500), stream_count=0)
    segment = open_sealed(model)
    assert segment.footer.time.count == 1
    for timestamp_ns in interesting_times(model.entries):
        assert segment.seek_time(timestamp_ns) == naive_seek(model.entries, timestamp_ns)


@given(segment_models())
@settings(max_examples=40, deadline=None)
def test_proposals_equal_a_plain_loop(model: SegmentModel) -> None:
    segment = open_sealed(model)
    assert segment.proposal_count() == len(model.groups)
    for number, group in enumerate(model.groups, start=model.header.first_proposal):
        assert segment.proposal_at(number) == (group.first_index, group.last_index)
        assert bytes(segment.raw_range(*segment.proposal_at(number))) == group.data


class CountingFiles(DiskFiles):
    """Notes which bytes of files are read, and what is mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int]] = []
        self.mapped: list[Path] = []

    def open_read(self, path: Path) -> "CountingFile":
        return CountingFile(super().open_read(path), self.reads)

    def map(self, path: Path) -> memoryview:
        self.mapped.append(path)
        return super().map(path)


class CountingFile:
    def __init__(self, file: File, reads: list[tuple[int, int]]) -> None:
        self._file = file
        self._reads = reads

    def read(self, size: int, offset: int) -> bytes:
        self._reads.append((offset, size))
        return self._file.read(size, offset)

    def size(self) -> int:
        return self._file.size()

    def write(self, data: bytes | memoryview, offset: int) -> None:
        raise AssertionError("a sealed file is not written to")

    def truncate(self, size: int) -> None:
        raise AssertionError("a sealed file is not truncated")

    def sync(self) -> None:
        raise AssertionError("a sealed file needs no sync")


def put_file(directory: Path, model: SegmentModel) -> Path:
    """Seal the model on the real disk."""
    path = model.unsealed_path(directory)
    path.write_bytes(model.data)
    return seal(DiskFiles(), model, path)


def test_opening_touches_header_footer_and_three_tables_only(tmp_path: Path) -> None:
    path, files = put_file(tmp_path, LARGE), CountingFiles()

    segment = SealedSegment.open(files, path)

    footer, size = segment.footer, path.stat().st_size
    spans = (footer.sparse, footer.time, footer.voids)
    assert files.reads == [
        (0, HEADER_SIZE),
        (size - FOOTER_SIZE, FOOTER_SIZE),
        *[(span.position, span.size) for span in spans],
    ]
    assert files.mapped == []
    assert not segment.is_mapped
    # What the summary in memory answers, it answers without the file.
    assert segment.is_void(LARGE.void_indexes[0])
    assert segment.seek_time(0) == segment.first_index
    assert files.mapped == []


def test_the_mapping_is_made_once_and_again_after_it_was_dropped(tmp_path: Path) -> None:
    path, files = put_file(tmp_path, LARGE), CountingFiles()
    segment = SealedSegment.open(files, path)
    assert read_all(segment) == LARGE.entries
    assert files.mapped == [path]
    segment.unmap()
    assert not segment.is_mapped
    assert read_all(segment) == LARGE.entries
    assert files.mapped == [path] * 2
    assert segment.proposal_count() == len(LARGE.groups)


def test_a_copy_under_any_other_name_is_opened() -> None:
    """A cache of the cold tier has names of its own."""
    path = DIRECTORY / "cached-17"
    assert read_all(SealedSegment.open(disk_with(sealed_bytes(SMALL), path), path)) == SMALL.entries


def test_a_segment_notices_that_another_file_has_its_name() -> None:
    """Compaction replaces the file; a segment opened before must not read the new one by it."""
    disk = disk_with(sealed_bytes(SMALL))
    segment = SealedSegment.open(disk, PATH)
    other = make_model(Random(77), group_sizes=[9], stream_count=0)
    disk.put(PATH, sealed_bytes(other))
    with pytest.raises(FileNotFoundError, match="replaced"):
        segment.read(1)
    disk.remove(PATH)
    with pytest.raises(FileNotFoundError):
        segment.read(1)


def test_a_reader_with_the_mapping_survives_unmap_rename_and_unlink(tmp_path: Path) -> None:
    path = put_file(tmp_path, LARGE)
    segment = SealedSegment.open(DiskFiles(), path)
    scan = segment.entries(41, LARGE.last_index)
    held = segment.columns(41, LARGE.last_index)
    read = [next(scan)]

    segment.unmap()
    path.rename(tmp_path / "elsewhere")
    read.append(next(scan))
    (tmp_path / "elsewhere").unlink()
    read += scan

    assert read == LARGE.entries
    assert list(held.entries()) == LARGE.entries


def test_a_reader_survives_what_another_process_does_to_the_file(tmp_path: Path) -> None:
    """Compaction, then removal, by a process of its own, while a scan is under way."""
    path = put_file(tmp_path, LARGE)
    segment = SealedSegment.open(DiskFiles(), path)
    scan = segment.entries(41, LARGE.last_index)
    read = [next(scan)]
    script = """
import sys
from pathlib import Path
import numpy as np
from onelog.ual.segments.sealing import compact_segment
from onelog.ual.files import DiskFiles, File
path = Path(sys.argv[1])
left = compact_segment(DiskFiles(), path, np.array([50, 51], np.uint64))
assert left.entry_count == 2
path.unlink()
"""
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, env=environment)

    assert list(tmp_path.iterdir()) == []
    read += scan
    assert read == LARGE.entries
    assert read_all(segment) == LARGE.entries


def test_threads_read_while_others_unmap() -> None:
    segment = open_sealed(LARGE)
    entries = LARGE.entries
    failures: list[BaseException] = []
    done = threading.Event()

    def read(seed: int) -> None:
        rng = Random(seed)
        try:
            for _ in range(60):
                entry = rng.choice(entries)
                assert segment.read(entry.index) == entry
                assert segment.seek_time(entry.timestamp_ns) == naive_seek(
                    entries, entry.timestamp_ns
                )
                first = rng.randrange(41, LARGE.last_index)
                assert next(iter(segment.entries(first, LARGE.last_index))) == entries[first - 41]
                assert segment.proposal_count() == len(LARGE.groups)
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            failures.append(error)

    def unmap() -> None:
        while not done.is_set():
            segment.unmap()

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    unmapper = threading.Thread(target=unmap)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in (*readers, unmapper):
            thread.start()
        for thread in readers:
            thread.join()
    finally:
        done.set()
        unmapper.join()
        sys.setswitchinterval(interval_s)

    assert not failures, failures[0]


def test_timestamps_far_apart_are_found() -> None:
    """An idle log: every entry a row of the time table."""
    model = make_model(Random(2), group_sizes=[1] * 30, gaps_ns=(SECOND_NS, 3600 * SECOND_NS))
    segment = open_sealed(model)
    assert segment.footer.time.count == 30
    for timestamp_ns in interesting_times(model.entries):
        assert segment.seek_time(timestamp_ns) == naive_seek(model.entries, timestamp_ns)
