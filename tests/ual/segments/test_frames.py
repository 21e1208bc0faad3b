"""Frames: stored bytes of any range, from every tier, without a hole and without damage."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.ual.entry import HEADER_SIZE, Entry, check_entry
from onelog.ual.errors import EntriesDamaged, IndexDropped
from onelog.ual.frames import Frame, read_frame
from onelog.ual.log import Log
from onelog.ual.log_config import LogConfig
from onelog.ual.segments.chain import SegmentSet
from onelog.ual.segments.notes import ApplyNotes
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from onelog.ual.segments.sealing import compact_segment
from onelog.ual.segments.unsealed import UnsealedSegment
from tests.simulation.disk import SimDisk
from tests.ual.shards import (
    SECOND,
    append_one,
    close_active,
    drop_before,
    new_log,
    seal_closed,
    settle,
)

KINDS = (0x0001, 0x0101, 0x0201, 0x0401)
LARGE = LogConfig(segment_bytes_max=1 << 20, unsynced_bytes_max=1 << 20, free_bytes_min=0)
OWNER_AT = 5  # the high byte of an entry's type, in its header


def random_log(disk: SimDisk, seed: int, groups: int = 60) -> tuple[Log, list[int]]:
    """Make a log of random groups, some of them void; return it with the void indexes."""
    rng, log = Random(seed), new_log(disk)
    voids: list[int] = []
    for _ in range(groups):
        first = log.last_index + 1
        drafts = [
            (rng.choice(KINDS), rng.randbytes(rng.randrange(60)), 0)
            for _ in range(rng.randint(1, 4))
        ]
        log.append(drafts, term=1, timestamp_ns=log.last_timestamp_ns + SECOND)
        if rng.random() < 0.3:
            log.notes.add_void(first, log.last_index)
            voids += range(first, log.last_index + 1)
    settle(log)
    return log, voids


def frames(log: Log, first: int, last: int, **options: object) -> list[Frame]:
    """Read a range to its end, and see that nothing of it is left out."""
    found: list[Frame] = []
    at = first
    while at <= last:
        frame = read_frame(log, at, last, **options)  # type: ignore[arg-type]
        assert frame.first_index == at <= frame.last_index <= last
        found.append(frame)
        at = frame.last_index + 1
    return found


def entries_of(found: list[Frame]) -> list[Entry]:
    """Decode and verify what frames hold; entries stand back to back from the first byte on."""
    entries: list[Entry] = []
    for frame in found:
        end = 0
        for offset in frame.offsets.tolist():
            assert offset == end
            index = int.from_bytes(frame.data[offset + 16 : offset + 24], "little")
            entry = check_entry(frame.data, offset, index)
            assert frame.first_index <= entry.index <= frame.last_index
            entries.append(entry)
            end = offset + HEADER_SIZE + len(entry.payload)
        assert end == len(frame.data)
    return entries


def voids_of(found: list[Frame]) -> list[int]:
    for frame in found:
        for first, last in frame.voids.tolist():
            assert frame.first_index <= first <= last <= frame.last_index
    ranges = [each for frame in found for each in frame.voids.tolist()]
    return [index for first, last in ranges for index in range(first, last + 1)]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_frames_of_any_range_are_the_entries_and_voids_of_the_log_in_every_tier(
    data: st.DataObject,
) -> None:
    log, voids = random_log(SimDisk(), data.draw(st.integers(0, 1000), label="seed"))
    first = data.draw(st.integers(1, log.last_index), label="first")
    last = data.draw(st.integers(first, log.last_index), label="last")
    bytes_max = data.draw(st.sampled_from((1, 100, 500, 1 << 20)), label="bytes")
    voids_max = data.draw(st.sampled_from((1, 3, 1_000)), label="voids")
    owners = data.draw(st.sets(st.sampled_from((0, 1, 2, 4, 7)), max_size=2), label="owners")
    expected = [each for each in log.scan(first, last) if not owners or each.owner in owners]
    for _ in range(2):
        found = frames(log, first, last, owners=owners, bytes_max=bytes_max, voids_max=voids_max)
        assert entries_of(found) == expected
        assert voids_of(found) == [index for index in voids if first <= index <= last]
        for frame in found:
            assert len(frame.data) <= bytes_max or len(frame.offsets) == 1
            assert len(frame.voids) <= voids_max
        seal_closed(log)  # all but the active file


def test_without_a_filter_the_bytes_are_those_of_the_files() -> None:
    disk = SimDisk()
    log, _ = random_log(disk, 3)
    seal_closed(log)
    assert sum(isinstance(each, SealedSegment) for each in log.segments.segments) > 2

    for frame in frames(log, 1, log.last_index, bytes_max=300):
        path = log.segments.covering(frame.first_index).path
        assert bytes(frame.data) in disk.contents(path)


def test_a_frame_is_as_large_as_it_may_be_and_one_larger_entry_is_alone() -> None:
    log = new_log(config=LARGE)
    for size in (60, 60, 60, 400, 60):
        append_one(log, bytes(size))
    settle(log)

    for _ in range(2):
        sizes = [len(each.offsets) for each in frames(log, 1, 5, bytes_max=200)]
        assert sizes == [2, 1, 1, 1]
        exact = [len(each.offsets) for each in frames(log, 1, 5, bytes_max=300)]
        assert exact == [3, 1, 1]
        assert [len(each.offsets) for each in frames(log, 1, 5, bytes_max=840)] == [5]
        assert [len(each.offsets) for each in frames(log, 1, 5, bytes_max=839)] == [4, 1]
        close_active(log)
        settle(log)
        seal_closed(log)


def test_a_compacted_segment_has_gaps_inside_of_frames_and_none_between() -> None:
    disk = SimDisk()
    log, voids = random_log(disk, 8)
    seal_closed(log)
    segments = [each for each in log.segments.segments if isinstance(each, SealedSegment)]
    some, emptied = segments[1], segments[2]
    kept = [index for index in range(some.first_index, some.last_index + 1) if index % 3 == 0]
    compact_segment(disk, some.path, np.array(kept, np.uint64))
    compact_segment(disk, emptied.path, np.array([], np.uint64))
    expected = list(log.scan(1, log.last_index))
    assert {each.index for each in expected} >= set(kept)
    assert len(expected) < log.last_index

    for bytes_max in (1, 150, 1 << 20):
        found = frames(log, 1, log.last_index, bytes_max=bytes_max)
        assert entries_of(found) == expected
        left = {each.index for each in expected}
        assert {index for index in voids_of(found) if index in left} == left & set(voids)
        inside = frames(log, some.first_index + 1, some.last_index - 1, bytes_max=bytes_max)
        wanted = [index for index in kept if some.first_index < index < some.last_index]
        assert [each.index for each in entries_of(inside)] == wanted


def test_a_file_that_is_sealed_while_a_frame_is_made_still_says_what_is_void(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sealing forgets the notes in memory, and the reader still has the unsealed segment."""
    log, voids = random_log(SimDisk(), 4)
    real = SegmentSet.covering

    def covering(segments: SegmentSet, index: int) -> object:
        found = real(segments, index)
        seal_closed(log)
        return found

    monkeypatch.setattr(SegmentSet, "covering", covering)
    first = voids[0]
    assert isinstance(log.notes, ApplyNotes)
    assert log.notes.is_void(first)
    frame = read_frame(log, first, first)

    assert not log.notes.is_void(first)
    assert frame.voids.tolist() == [[first, first]]


def test_a_log_with_many_voids_makes_shorter_frames() -> None:
    log = new_log(config=LARGE)
    for number in range(100):
        index = append_one(log)
        if number % 2:
            log.notes.add_void(index, index)
    settle(log)

    found = frames(log, 1, 100, voids_max=10)

    assert len(found) == 5
    assert voids_of(found) == list(range(2, 101, 2))


def test_a_range_that_was_dropped_says_where_the_log_begins() -> None:
    log, _ = random_log(SimDisk(), 5)
    seal_closed(log)
    second = log.segments.segments[1]
    before = log.segments
    drop_before(log, second.first_index)

    with pytest.raises(IndexDropped) as caught:
        read_frame(log, 1, second.last_index)
    assert caught.value.first_index == second.first_index
    log.segments = before  # a reader that took its segments before
    with pytest.raises(IndexDropped) as caught:
        read_frame(log, 1, second.last_index)
    assert caught.value.first_index == second.first_index


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize(
    ("at", "owners"), [(16, ()), (32, ()), (OWNER_AT, (4,)), (HEADER_SIZE, ()), (HEADER_SIZE, (4,))]
)
def test_an_entry_that_is_not_what_the_tables_say_is_named_and_not_sent(
    at: int,
    owners: tuple[int, ...],
    is_sealed: bool,  # noqa: FBT001
) -> None:
    """Its index, size, owner or payload, whether it would be sent or filtered out."""
    disk = SimDisk()
    log, _ = random_log(disk, 6)
    if is_sealed:
        seal_closed(log)
    segment = log.segments.segments[1]
    assert isinstance(segment, SealedSegment) == is_sealed
    index = next(
        each.index
        for each in log.scan(segment.first_index, segment.last_index)
        if each.owner != 4 and each.index > segment.first_index and each.payload
    )
    if isinstance(segment, SealedSegment):
        position = int(segment.locate(np.array([index], np.uint64))[0][0])
        segment.unmap()
    else:
        assert isinstance(segment, UnsealedSegment)
        position = segment.bounds[index - segment.first_index]
    damaged = bytearray(disk.contents(segment.path))
    damaged[position + at] ^= 2
    disk.put(segment.path, bytes(damaged))

    before = read_frame(log, segment.first_index, segment.last_index, owners=owners)
    assert before.last_index == index - 1
    with pytest.raises(EntriesDamaged) as caught:
        read_frame(log, index, segment.last_index, owners=owners)
    assert caught.value.path == str(segment.path)
    assert (caught.value.first_index, caught.value.last_index) == (index, index)
    assert {error.path for error in log.segments.met} == {str(segment.path)}
    if isinstance(segment, SealedSegment):
        aside = DamagedSegment(segment.path, segment.header, "rot", None, segment)
        log.segments = log.segments.with_replaced(segment, aside)
    behind = read_frame(log, index + 1, segment.last_index, owners=owners)
    assert behind.last_index > index
