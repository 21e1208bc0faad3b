"""Reads of damaged files: what is intact is read, what is not is named, nothing is passed over."""

from random import Random
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.ual.entry import Entry, Unreadable
from onelog.ual.errors import CorruptFile, EntriesDamaged
from onelog.ual.segments.chain import SegmentSet
from onelog.ual.segments.format import ENTRIES_OFFSET, FOOTER_SIZE
from onelog.ual.segments.notes import ApplyNotes
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from tests.simulation.disk import SimDisk
from tests.ual.segments.segment_files import (
    DIRECTORY,
    SegmentModel,
    interesting_times,
    make_model,
    sealed_bytes,
)

STREAM = 7
# Random bits of a file: as a place in it, from 0 to 1, and the number of the bit.
FLIPS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 7)), min_size=1, max_size=4)


def put(model: SegmentModel, disk: SimDisk) -> SealedSegment:
    path = DIRECTORY / f"{model.header.first_index:010}.flseg"
    disk.put(path, sealed_bytes(model))
    return SealedSegment.open(disk, path)


def flip(disk: SimDisk, segment: SealedSegment, flips: list[tuple[float, int]]) -> None:
    """Flip bits of a file that is open, in the footer as well; the header and it are in memory."""
    file = disk.open(segment.path)
    for place, bit in flips:
        offset = min(int(place * segment.size_bytes), segment.size_bytes - 1)
        file.write(bytes([file.read(1, offset)[0] ^ 1 << bit]), offset)


def make_set(
    seed: int, flips: list[tuple[float, int]], disk: SimDisk | None = None
) -> tuple[SegmentSet, list[Entry], set[int]]:
    """Three segments, the second damaged; all entries as written, and those of the stream."""
    rng = Random(seed)
    disk = disk or SimDisk()
    segments, entries, records = [], list[Entry](), set[int]()
    for _ in range(3):
        first = entries[-1].index + 1 if entries else 1
        sizes = [rng.randrange(1, 40) for _ in range(8)]
        model = make_model(rng, group_sizes=sizes, first_index=first, stream_count=0)
        model.records[STREAM] = chosen = [each.index for each in model.entries][
            :: rng.randrange(1, 9)
        ]
        records.update(chosen)
        entries += model.entries
        segments.append(put(model, disk))
    flip(disk, segments[1], flips)
    return SegmentSet(tuple(segments), ApplyNotes()), entries, records


def set_aside(found: SegmentSet) -> SegmentSet:
    segment = found.segments[1]
    assert isinstance(segment, SealedSegment)
    aside = DamagedSegment(segment.path, segment.header, "rot", None, segment)
    return found.with_replaced(segment, aside)


@given(st.integers(0, 2**32), FLIPS, st.sets(st.sampled_from(("stream", "voids", "aside"))))
def test_a_scan_names_all_that_it_cannot_read(
    seed: int, flips: list[tuple[float, int]], how: set[str]
) -> None:
    found, entries, records = make_set(seed, flips)
    of_stream, no_voids = "stream" in how, "voids" in how
    if "aside" in how:
        found = set_aside(found)
    rng = Random(seed)
    first, last = sorted(rng.choices([each.index for each in entries], k=2))
    stream_id = STREAM if of_stream else None
    voids = {
        index
        for segment in found.segments
        for first_void, last_void in cast("Any", getattr(segment, "opened", segment)).voids
        for index in range(int(first_void), int(last_void) + 1)
    }
    wanted = {
        each.index: each
        for each in entries[first - 1 : last]
        if (not of_stream or each.index in records) and not (no_voids and each.index in voids)
    }

    items = list(found.scan_readable(first, last, stream_id=stream_id, skip_voids=no_voids))
    seen = set[int]()
    at = first
    for item in items:
        if isinstance(item, Unreadable):
            assert at <= item.first_index <= item.last_index <= last
            seen.update(range(item.first_index, item.last_index + 1))
            at = item.last_index + 1
        else:
            assert item == wanted[item.index], "bytes that nobody wrote, or did not ask for"
            assert item.index >= at
            seen.add(item.index)
            at = item.index + 1
    assert wanted.keys() <= seen, "passed over without a word"

    is_whole = not any(isinstance(item, Unreadable) for item in items)
    assert is_whole or found.met
    strict = found.scan(first, last, stream_id=stream_id, skip_voids=no_voids)
    if is_whole:
        assert list(strict) == items
        return
    with pytest.raises(EntriesDamaged) as caught:
        list(strict)
    named = next(item for item in items if isinstance(item, Unreadable))
    assert (caught.value.first_index, caught.value.last_index) == named


@given(st.integers(0, 2**32), FLIPS)
def test_a_seek_by_time_passes_over_nothing_that_may_be_as_new(
    seed: int, flips: list[tuple[float, int]]
) -> None:
    found, entries, _ = make_set(seed, flips)
    if seed % 2:
        found = set_aside(found)
    for timestamp_ns in interesting_times(entries):
        true = next((each.index for each in entries if each.timestamp_ns >= timestamp_ns), None)
        index = found.seek_time(timestamp_ns, entries[-1].index)
        if true is not None:
            assert index is not None
            assert index <= true
            between = found.scan_readable(index, true - 1) if index < true else ()
            assert all(isinstance(each, Unreadable) for each in between)


def test_entries_beside_a_damaged_one_are_read_and_it_is_named() -> None:
    disk = SimDisk()
    found, entries, _ = make_set(3, [], disk)
    segment = found.segments[1]
    assert isinstance(segment, SealedSegment)
    flip(disk, segment, [((ENTRIES_OFFSET + 5) / segment.size_bytes, 0)])

    for each in (found, set_aside(found)):
        each.met.clear()
        with pytest.raises(EntriesDamaged, match=f"entry {segment.first_index}: ") as caught:
            each.read(segment.first_index)
        assert (caught.value.first_index, caught.value.last_index) == (segment.first_index,) * 2
        assert [error.path for error in each.met] == [str(segment.path)]
        for entry in entries:
            if entry.index != segment.first_index:
                assert each.read(entry.index) == entry


def test_a_file_that_could_not_be_opened_is_unreadable_as_a_whole() -> None:
    found, entries, _ = make_set(3, [])
    segment = found.segments[1]
    assert isinstance(segment, SealedSegment)
    aside = DamagedSegment(segment.path, segment.header, "the footer's magic", FOOTER_SIZE)
    closed = found.with_replaced(segment, aside)

    items = list(closed.scan_readable(1, entries[-1].index))
    assert Unreadable(segment.first_index, segment.last_index) in items
    with pytest.raises(CorruptFile, match="footer's magic"):
        closed.read(segment.last_index)


def test_an_offset_that_rots_after_it_was_checked_leads_nowhere() -> None:
    """The table is mapped, and checked once: what it has become must not end the process."""
    disk = SimDisk()
    model = make_model(Random(3), group_sizes=[8] * 8, first_index=1, stream_count=0)
    segment = put(model, disk)
    segment.read(1)
    row = 5
    file = disk.open(segment.path)
    offset = segment.footer.offsets.position + 4 * row + 3
    file.write(bytes([file.read(1, offset)[0] ^ 0x20]), offset)
    segment.mapped().offsets = np.frombuffer(
        disk.contents(segment.path), "<u4", segment.entry_count, segment.footer.offsets.position
    )
    # The entry before it seems to end there.
    assert segment.find_unreadable() == [Unreadable(row, row + 1)]
    with pytest.raises(CorruptFile, match="an offset outside of the entries"):
        list(segment.entries(1, 20))
