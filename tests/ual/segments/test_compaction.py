"""Compaction: what is kept is unchanged, what is dropped is named, a crash leaves a whole file."""

import errno
import threading
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.ual.errors import CorruptFile, DataError, IndexDropped
from onelog.ual.files import DiskFiles
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.sealing import compact_segment
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.segments.segment_files import (
    DIRECTORY,
    CrashRecorder,
    SegmentModel,
    interesting_times,
    make_model,
    naive_seek,
    put_unsealed,
    ranges_of,
    seal,
    segment_models,
)

MODEL = make_model(Random(21), group_sizes=[3, 300, 1, 200], first_index=1000, payload_size_max=30)


def sealed_on(disk: SimDisk, model: SegmentModel) -> Path:
    return seal(disk, model, put_unsealed(disk, model))


def indexes_of(indexes: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(indexes, np.uint64)


def reduced_voids(model: SegmentModel, kept: set[int]) -> list[list[int]]:
    """Return each void's first and last kept index, for voids that keep any."""
    ranges = []
    for first, last in ranges_of(model.void_indexes):
        left = [index for index in range(first, last + 1) if index in kept]
        if left:
            ranges.append([left[0], left[-1]])
    return ranges


def assert_holds(segment: SealedSegment, model: SegmentModel, kept: set[int]) -> None:
    """Compare a compacted segment with what a plain loop would keep."""
    segment.check_file()
    left = [entry for entry in model.entries if entry.index in kept]
    assert segment.entry_count == len(left) == sum(segment.owner_counts)
    assert (segment.first_index, segment.last_index) == (model.header.first_index, model.last_index)
    assert segment.first_proposal == model.header.first_proposal
    for entry in model.entries:
        if entry.index in kept:
            assert segment.read(entry.index) == entry
        else:
            with pytest.raises(IndexDropped) as caught:
                segment.read(entry.index)
            assert caught.value.index == entry.index
    assert list(segment.entries(segment.first_index, segment.last_index)) == left
    for stream_id in model.records:
        records = [index for index in model.records[stream_id] if index in kept]
        assert segment.stream_records(stream_id).tolist() == records
        found = segment.entries(segment.first_index, segment.last_index, stream_id=stream_id)
        assert [entry.index for entry in found] == records
    assert segment.voids.tolist() == reduced_voids(model, kept)
    for timestamp_ns in interesting_times(model.entries):
        assert segment.seek_time(timestamp_ns) == naive_seek(left, timestamp_ns)


def draw_kept(data: st.DataObject, model: SegmentModel, label: str) -> list[int]:
    rng = Random(data.draw(st.integers(0, 1 << 32), label=label))
    chance = rng.choice((0.0, 0.01, 0.5, 0.95, 1.0))
    return [entry.index for entry in model.entries if rng.random() < chance]


@given(segment_models(), st.data())
@settings(max_examples=40, deadline=None)
def test_what_is_kept_is_as_it_was_and_what_is_dropped_is_named(
    model: SegmentModel, data: st.DataObject
) -> None:
    disk = SimDisk()
    path = sealed_on(disk, model)
    kept = draw_kept(data, model, "keep")

    segment = compact_segment(disk, path, indexes_of(kept))

    assert disk.list(DIRECTORY) == [path.name]
    assert segment.is_compacted == (len(kept) < len(model.entries))
    assert_holds(segment, model, set(kept))
    assert_holds(SealedSegment.open(disk.crash(CrashPolicy.LOST), path), model, set(kept))


@given(segment_models(), st.data())
@settings(max_examples=20, deadline=None)
def test_a_compacted_segment_can_be_compacted_again(
    model: SegmentModel, data: st.DataObject
) -> None:
    disk = SimDisk()
    path = sealed_on(disk, model)
    once = draw_kept(data, model, "keep first")
    twice = sorted(set(once) & set(draw_kept(data, model, "keep then")))
    compact_segment(disk, path, indexes_of(once))

    segment = compact_segment(disk, path, indexes_of(twice))

    # A void may have shrunk in two steps, to the same first and last kept entry.
    assert_holds(segment, model, set(twice))


def test_a_partial_range_skips_what_was_dropped() -> None:
    disk = SimDisk()
    path = sealed_on(disk, MODEL)
    segment = compact_segment(disk, path, indexes_of([1000, 1007, 1300, 1503]))

    assert [entry.index for entry in segment.entries(1001, 1502)] == [1007, 1300]
    assert segment.columns(1008, 1299).index.tolist() == []
    assert segment.columns(1007, 1300).index.tolist() == [1007, 1300]


def test_keeping_everything_leaves_the_file_alone() -> None:
    disk = SimDisk()
    path = sealed_on(disk, MODEL)
    operations = disk.operations

    segment = compact_segment(disk, path, indexes_of([entry.index for entry in MODEL.entries]))

    assert disk.operations == operations
    assert not segment.is_compacted


def test_an_index_that_is_not_there_is_a_programmers_error() -> None:
    disk = SimDisk()
    path = sealed_on(disk, MODEL)
    compact_segment(disk, path, indexes_of([1005, 1010]))
    for wrong in ([1006], [1010, 1005], [1400]):
        with pytest.raises(AssertionError):
            compact_segment(disk, path, indexes_of(wrong))


def test_damage_anywhere_in_the_old_file_stops_it() -> None:
    """The damaged entry would not even be kept; still nobody knows what else is wrong."""
    disk = SimDisk()
    path = sealed_on(disk, MODEL)
    disk.flip(path, (MODEL.offsets()[400] + 11) * 8)
    damaged = disk.contents(path)
    with pytest.raises(CorruptFile, match="checksum of the file"):
        compact_segment(disk, path, indexes_of([1001, 1002]))
    assert disk.list(DIRECTORY) == [path.name]
    assert disk.contents(path) == damaged


def test_any_flipped_bit_of_a_compacted_file_is_a_named_error_and_never_a_wrong_entry() -> None:
    model = make_model(Random(31), group_sizes=[2, 5], payload_size_max=4, stream_count=1)
    disk = SimDisk()
    path = sealed_on(disk, model)
    kept = {2, 3, 6}
    compact_segment(disk, path, indexes_of(sorted(kept)))
    data = disk.contents(path)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        disk.put(path, bytes(damaged))
        try:
            segment = SealedSegment.open(disk, path)
        except DataError:
            continue
        with pytest.raises(CorruptFile):
            segment.check_file()
        for entry in model.entries:
            try:
                assert segment.read(entry.index) == entry, bit
            except IndexDropped:
                assert entry.index not in kept, bit
            except DataError:
                continue


def test_a_full_disk_gets_its_space_back_and_keeps_the_old_file() -> None:
    disk = SimDisk()
    path = sealed_on(disk, MODEL)
    before = disk.contents(path)
    disk.capacity = len(before) + 300
    with pytest.raises(OSError, match="No space left"):
        compact_segment(disk, path, indexes_of([1001, 1002]))
    assert disk.list(DIRECTORY) == [path.name]
    assert disk.contents(path) == before


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
def test_a_failed_compaction_keeps_the_old_file_and_can_be_repeated(operation: str) -> None:
    disk = SimDisk()
    path = sealed_on(disk, MODEL)
    before = disk.contents(path)
    disk.fail(operation, errno.EIO)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="Input/output error"):
        compact_segment(disk, path, indexes_of([1001, 1002]))
    assert disk.contents(path) == before

    assert_holds(compact_segment(disk, path, indexes_of([1001, 1002])), MODEL, {1001, 1002})
    assert disk.list(DIRECTORY) == [path.name]


def test_a_stale_new_file_is_replaced() -> None:
    disk = SimDisk()
    path = sealed_on(disk, MODEL)
    disk.put(DIRECTORY / "0000001000.flseg.new", bytes(100_000))

    assert_holds(compact_segment(disk, path, indexes_of([1001, 1002])), MODEL, {1001, 1002})
    assert disk.list(DIRECTORY) == [path.name]


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=3, deadline=None)
def test_a_crash_at_any_point_leaves_the_old_file_or_the_new_one(seed: int) -> None:
    model = make_model(Random(seed), group_sizes=[4, 30, 1], payload_size_max=40)
    disk = SimDisk(page_size=512, tear_writes=True)
    path = sealed_on(disk, model)
    every = {entry.index for entry in model.entries}
    kept = {index for index in every if index % 3 == 0}
    crashes = CrashRecorder(disk, seed, random_count=5)

    disk.after_operation = crashes.record
    compact_segment(disk, path, indexes_of(sorted(kept)))

    def check(left: SimDisk) -> str:
        segment = SealedSegment.open(left, path)
        assert_holds(segment, model, kept if segment.is_compacted else every)
        # And whatever lies beside it is no obstacle.
        assert_holds(compact_segment(left, path, indexes_of(sorted(kept))), model, kept)
        return "new" if segment.is_compacted else "old"

    assert crashes.check(check) == {"old", "new"}


def test_readers_of_the_old_file_go_on_while_another_thread_compacts(tmp_path: Path) -> None:
    unsealed = MODEL.unsealed_path(tmp_path)
    unsealed.write_bytes(MODEL.data)
    files = DiskFiles()
    path = seal(files, MODEL, unsealed)
    segment = SealedSegment.open(files, path)
    scan = segment.entries(1000, MODEL.last_index)
    read = [next(scan)]
    compacted: list[SealedSegment] = []

    def compact() -> None:
        compacted.append(compact_segment(files, path, indexes_of([1001, 1002])))

    thread = threading.Thread(target=compact)
    thread.start()
    thread.join()
    read += scan

    assert read == MODEL.entries
    assert segment.read(1500) == MODEL.entries[500]
    assert_holds(compacted[0], MODEL, {1001, 1002})
    # Once the old mapping is dropped the old segment is over, and says so.
    segment.unmap()
    with pytest.raises(FileNotFoundError, match="replaced"):
        segment.read(1500)
