"""Ranges cut out of a log as sealed files, and put together again where boundaries differ."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.ual.errors import CorruptFile, RangeNotWhole
from onelog.ual.log import Log
from onelog.ual.segments.chain import Segment
from onelog.ual.segments.check import check_sealed
from onelog.ual.segments.exchange import Piece, compare_intact, cut_piece, join_pieces
from onelog.ual.segments.format import HEADER_SIZE
from onelog.ual.segments.notes import SegmentNotes
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from onelog.ual.segments.sealing import compact_segment
from onelog.ual.segments.unsealed import UnsealedSegment
from tests.simulation.disk import SimDisk
from tests.ual.shards import SECOND, SMALL, close_active, make_shard, open_shard, seal_closed


def noted_log(boundaries: int, *, groups: int = 40) -> tuple[SimDisk, Log]:
    """The same entries, streams and voids every time; ``boundaries`` decides where files end."""
    disk = SimDisk()
    log, _ = open_shard(disk, make_shard(disk), SMALL)
    rng, ends = Random(7), Random(boundaries)
    for _ in range(groups):
        count = rng.randint(1, 3)
        drafts = [(0x0101, rng.randbytes(20), 0) for _ in range(count)]
        term = 1 + log.last_index // 30
        log.append(drafts, term=term, timestamp_ns=log.last_timestamp_ns + SECOND)
        log.sync()
        log.mark_committed(log.last_index)
        for index in range(log.last_index - count + 1, log.last_index + 1):
            if rng.random() < 0.3:
                log.notes.add_void(index, index)
            elif rng.random() < 0.5:
                log.notes.add_record(rng.randint(1, 3), index)
        log.mark_applied(log.last_index)
        if ends.random() < 0.15:
            close_active(log)
    seal_closed(log)
    return disk, log


def pieces_of(disk: SimDisk, log: Log, first_index: int, last_index: int) -> list[Piece]:
    """Cut a range as a server would, piece by piece."""
    pieces = []
    while first_index <= last_index:
        segment = log.segments.covering(first_index)
        end = min(segment.last_index, last_index)
        notes = SegmentNotes()
        if isinstance(segment, UnsealedSegment):
            notes = log.notes.select(first_index, end)
        pieces.append(cut_piece(disk, segment, first_index, end, 1, notes))
        first_index = end + 1
    return pieces


def damaged(segment: Segment) -> DamagedSegment:
    return DamagedSegment(segment.path, segment.header, "for a test")


def test_a_copy_that_differs_from_what_is_intact_here_is_refused() -> None:
    """Its checksums hold, and it is not the log that this replica has applied."""
    disk, log = noted_log(1)
    segment = log.segments.segments[1]
    assert isinstance(segment, SealedSegment)
    pieces = pieces_of(disk, log, segment.first_index, segment.last_index)
    joined = join_pieces(damaged(segment), [bytes(each.data) for each in pieces], 0)
    start = int(segment.locate(np.array([segment.first_index + 2], np.uint64))[0][0])
    disk.flip(segment.path, 8 * (start + 45))
    rotten = DamagedSegment(segment.path, segment.header, "rot", None, segment.reopen())
    compare_intact(rotten, joined)  # what is damaged here may differ

    content = bytearray(joined.parts[1])
    second = int(joined.offsets[1]) - HEADER_SIZE
    content[second : second + 4] = bytes(4)  # as if it were another entry
    other = replace(joined, parts=(joined.parts[0], bytes(content), joined.parts[2]))
    with pytest.raises(CorruptFile, match=f"entry {segment.first_index + 1} is intact here"):
        compare_intact(rotten, other)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 1000))
def test_pieces_of_another_replica_make_the_very_file_that_was_sealed_here(
    ours: int, theirs: int
) -> None:
    _, log = noted_log(ours)
    disk, other = noted_log(theirs)
    for segment in log.segments.segments:
        if isinstance(segment, SealedSegment):
            pieces = pieces_of(disk, other, segment.first_index, segment.last_index)
            joined = join_pieces(damaged(segment), [bytes(each.data) for each in pieces], 0)

            assert b"".join(joined.parts) == bytes(segment.mapped_bytes())
            assert joined.proposal_count == segment.proposal_count()


def test_a_piece_of_an_unsealed_segment_has_its_notes() -> None:
    disk, log = next(
        made for made in map(noted_log, range(100)) if made[1].segments.segments[-1].entry_count > 9
    )
    active = log.segments.segments[-1]
    assert isinstance(active, UnsealedSegment)
    last_index = active.proposal_at(active.last_proposal - 1)[1]
    [piece] = pieces_of(disk, log, active.first_index, last_index)
    part, problems = check_sealed(active.path, piece.data, 0)

    assert not problems
    assert part is not None
    assert (part.first_index, part.last_index) == (active.first_index, last_index)
    path = active.path.with_name(f"{active.first_index:010d}.flseg")
    disk.put(path, bytes(piece.data))
    notes, expected = (
        SealedSegment.open(disk, path).notes(),
        log.notes.select(active.first_index, last_index),
    )
    assert {key: value.tolist() for key, value in notes.streams.items()} == {
        key: value.tolist() for key, value in expected.streams.items()
    }
    assert notes.voids.tolist() == expected.voids.tolist()


def test_a_part_of_a_compacted_segment_keeps_what_is_left_of_it() -> None:
    disk, log = noted_log(3)
    segment = next(
        each
        for each in log.segments.segments
        if isinstance(each, SealedSegment) and each.proposal_count() > 4
    )
    middle = segment.proposal_at(segment.first_proposal + 2)[0]
    keep = np.arange(segment.first_index, segment.last_index + 1, 2, dtype=np.uint64)
    compacted = compact_segment(disk, segment.path, keep)
    log.segments = log.segments.with_replaced(segment, compacted)

    whole = cut_piece(disk, compacted, segment.first_index, segment.last_index, 1, SegmentNotes())
    assert bytes(whole.data) == disk.contents(segment.path)
    proposal = segment.first_proposal + 2
    part = cut_piece(disk, compacted, middle, segment.last_index, proposal, SegmentNotes())
    found, problems = check_sealed(segment.path.with_name("piece"), part.data, 0)
    assert not problems
    assert found is not None
    assert (found.first_index, found.first_proposal) == (middle, proposal)

    joined = join_pieces(damaged(segment), [bytes(whole.data)], 0)
    assert joined.proposal_count is None
    assert b"".join(joined.parts) == bytes(whole.data)


def test_damage_is_not_handed_out() -> None:
    disk, log = noted_log(3)
    segment = log.segments.segments[0]
    disk.flip(segment.path, 8 * 100)
    with pytest.raises(CorruptFile):
        cut_piece(disk, segment, 1, segment.last_index, 1, SegmentNotes())


@pytest.mark.parametrize("case", ["missing", "twice", "swapped", "flipped", "other shard"])
def test_pieces_that_do_not_fit_are_refused(case: str) -> None:
    _, log = noted_log(3)
    disk, other = noted_log(11)
    segment = max(
        (each for each in log.segments.segments if isinstance(each, SealedSegment)),
        key=lambda each: len(pieces_of(disk, other, each.first_index, each.last_index)),
    )
    data = [
        bytes(each.data) for each in pieces_of(disk, other, segment.first_index, segment.last_index)
    ]
    assert len(data) > 1, "choose other boundaries"
    if case == "missing":
        data.pop()
    elif case == "twice":
        data.insert(0, data[0])
    elif case == "swapped":
        data[0], data[1] = data[1], data[0]
    elif case == "flipped":
        data[0] = data[0][:80] + bytes([data[0][80] ^ 1]) + data[0][81:]
    with pytest.raises(CorruptFile):
        join_pieces(damaged(segment), data, 1 if case == "other shard" else 0)


def test_a_range_that_cuts_groups_is_refused_and_no_damage() -> None:
    """Who asks wrongly must not get a good segment set aside."""
    disk, log = noted_log(1)
    refused = 0
    for number in range(1, log.last_proposal + 1):
        first, last = log.proposals.indexes(number)
        segment = log.segments.covering(first)
        if first == last or not isinstance(segment, SealedSegment):
            continue
        for cut in ((segment.first_index, last - 1), (last, segment.last_index)):
            with pytest.raises(RangeNotWhole):
                cut_piece(disk, segment, *cut, 1, SegmentNotes())
            refused += 1
    assert refused > 20
