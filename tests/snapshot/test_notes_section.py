"""The notes section: round trip, restoring, and refusing what could not have been noted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.errors import CorruptSection
from onelog.snapshot.notes import CoveredNotes, decode_notes, encode_notes, restore_notes
from onelog.ual.segments.notes import ApplyNotes, SegmentNotes

# Each entry is a record of a stream (1 to 3), void (0), or neither (None).
kinds = st.lists(st.sampled_from((None, 0, 0, 1, 2, 3)), max_size=60)


def noted(what: list[int | None], first_index: int) -> ApplyNotes:
    notes = ApplyNotes()
    for index, kind in enumerate(what, first_index):
        if kind == 0:
            notes.add_void(index, index)
        elif kind is not None:
            notes.add_record(kind << 40, index)
    return notes


def as_lists(notes: SegmentNotes) -> tuple[dict[int, list[int]], list[list[int]]]:
    streams = {key: value.tolist() for key, value in notes.streams.items()}
    return streams, notes.voids.tolist()


def encoded(covered: CoveredNotes) -> bytes:
    return b"".join(encode_notes(covered))


@settings(deadline=None)
@given(kinds, st.integers(1, 1 << 40), st.integers(1, 9))
def test_notes_come_back_however_the_bytes_are_cut(
    what: list[int | None], first_index: int, piece: int
) -> None:
    last_index = first_index + len(what) - 1
    notes = noted(what, first_index).select(first_index, last_index)
    data = encoded(CoveredNotes(first_index, notes))

    chunks = [data[at : at + piece] for at in range(0, len(data), piece)]
    decoded = decode_notes(chunks, last_index)

    assert decoded.first_index == first_index
    assert as_lists(decoded.notes) == as_lists(notes)
    assert encoded(decoded) == data, "equal notes have equal bytes"


@settings(deadline=None)
@given(kinds, st.data())
def test_restored_notes_are_what_apply_would_have_noted(
    what: list[int | None], data: st.DataObject
) -> None:
    """From any index on, and going on from there gives what an undisturbed log would have."""
    split = data.draw(st.integers(0, len(what)), label="snapshot at")
    sealed = data.draw(st.integers(0, split), label="sealed at")
    whole = noted(what, 1)
    section = encoded(CoveredNotes(1, noted(what[:split], 1).select(1, split)))

    again = ApplyNotes()
    restore_notes(again, decode_notes([section], split), sealed)
    for index, kind in enumerate(what[split:], split + 1):
        if kind == 0:
            again.add_void(index, index)
        elif kind is not None:
            again.add_record(kind << 40, index)

    last = len(what)
    assert as_lists(again.select(sealed + 1, last)) == as_lists(whole.select(sealed + 1, last))
    assert as_lists(again.select(1, sealed)) == ({}, [])


@settings(deadline=None)
@given(kinds)
def test_a_section_cut_anywhere_is_refused(what: list[int | None]) -> None:
    data = encoded(CoveredNotes(1, noted(what, 1).select(1, len(what))))
    for size in range(len(data)):
        with pytest.raises(CorruptSection):
            decode_notes([data[:size]], len(what))
    with pytest.raises(CorruptSection, match="behind the last"):
        decode_notes([data, b"\0"], len(what))


@settings(deadline=None)
@given(st.binary(max_size=120), st.integers(0, 50))
def test_junk_is_refused_or_is_a_section(data: bytes, last_index: int) -> None:
    """Whatever is accepted is exactly what these notes are written as."""
    try:
        decoded = decode_notes([data], last_index)
    except CorruptSection:
        return
    assert encoded(decoded) == data


def section(
    *numbers: int, version: int = 1, streams: int = 0, first: int = 1, voids: int = 0
) -> bytes:
    head = version.to_bytes(4, "little") + streams.to_bytes(4, "little")
    return head + b"".join(number.to_bytes(8, "little") for number in (first, voids, *numbers))


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (section(version=2), "version 2"),
        (section(first=0), "starts at index 0"),
        (section(first=12), "starts at index 12"),
        (section(voids=11), "11 voids in 10 entries"),
        (section(3, 2, voids=1), "ends before it starts"),
        (section(1, 2, 3, 4, voids=2), "touch"),
        (section(9, 11, voids=1), "11"),
        (section(7, 0, streams=1), "without a record"),
        (section(7, 2, 3, 3, streams=1), "descend"),
        (section(7, 1, 11, streams=1), "11"),
        (section(7, 1, 2, 7, 1, 3, streams=2), "stream 7 after 7"),
        (section(7, 1 << 60, 3, streams=1), "ends inside"),
        (section(streams=(1 << 32) - 1), "ends inside"),
    ],
)
def test_what_could_not_have_been_noted_is_refused(data: bytes, rule: str) -> None:
    with pytest.raises(CorruptSection, match=rule):
        decode_notes([data], 10)
