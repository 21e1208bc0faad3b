"""Fields of many payloads at once: equal to reading one payload after the other."""

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.projections.codec import SessionRef, encode_prefix
from onelog.spark.columns.fields import Fields, Spans, gather
from onelog.ual.errors import CorruptPayload

NUMBERS = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q", "i64": "<q"}
SIZED = {"bytes8": "<B", "bytes16": "<H", "bytes32": "<I"}


def cursors(payloads: Sequence[bytes], filler: bytes = b"") -> Fields:
    """Return cursors into payloads that stand in one buffer, with ``filler`` around each."""
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    ends = np.cumsum(sizes + len(filler))
    data = filler + b"".join(payload + filler for payload in payloads)
    return Fields(np.frombuffer(data, np.uint8), ends - sizes, ends)


def bytes_at(fields: Fields, spans: Spans) -> list[bytes]:
    return [fields.data[start:end].tobytes() for start, end in zip(*spans, strict=True)]


@pytest.mark.parametrize("name", NUMBERS)
@given(
    payloads=st.lists(st.binary(max_size=12), max_size=8),
    where=st.lists(st.booleans(), min_size=8, max_size=8),
    filler=st.sampled_from([b"", b"\xff" * 9]),
)
def test_a_number_is_read_where_it_is_or_refused(
    name: str, payloads: list[bytes], where: list[bool], filler: bytes
) -> None:
    """At the very end of the buffer, too; one short payload refuses the read."""
    layout = struct.Struct(NUMBERS[name])
    for mask in (None, np.array(where[: len(payloads)], np.bool_)):
        fields = cursors(payloads, filler)
        reads = [True] * len(payloads) if mask is None else mask.tolist()
        chosen = [payload for payload, read in zip(payloads, reads, strict=True) if read]
        if any(len(payload) < layout.size for payload in chosen):
            with pytest.raises(CorruptPayload):
                getattr(fields, name)(mask)
            continue
        before = fields.at.copy()
        found = getattr(fields, name)(mask)
        assert found.tolist() == [
            layout.unpack_from(payload)[0] if read else 0
            for payload, read in zip(payloads, reads, strict=True)
        ]
        assert (fields.at - before).tolist() == [layout.size * read for read in reads]


@pytest.mark.parametrize("name", SIZED)
@given(payloads=st.lists(st.binary(max_size=9), max_size=6), junk=st.integers(0, 3))
def test_sized_bytes_end_where_their_size_says_or_are_refused(
    name: str, payloads: list[bytes], junk: int
) -> None:
    layout = struct.Struct(SIZED[name])
    whole = [layout.pack(len(payload)) + payload + b"x" * junk for payload in payloads]
    fields = cursors(whole)
    assert bytes_at(fields, getattr(fields, name)()) == payloads
    assert bytes_at(fields, fields.rest()) == [b"x" * junk] * len(payloads)
    fields.finish()
    if payloads:
        short = cursors([*whole[:-1], layout.pack(len(payloads[-1]) + 1) + payloads[-1]], b"\0" * 9)
        with pytest.raises(CorruptPayload):
            getattr(short, name)()


@given(
    st.lists(
        st.tuples(
            st.text(max_size=20),
            st.one_of(st.none(), st.integers(0, 1 << 62)),
            st.binary(max_size=5),
        ),
        max_size=6,
    )
)
def test_a_prefix_with_or_without_a_session_is_passed(
    parts: list[tuple[str, int | None, bytes]],
) -> None:
    payloads = [
        encode_prefix(name, None if number is None else SessionRef(number, number, number)) + rest
        for name, number, rest in parts
    ]
    fields = cursors(payloads)
    assert bytes_at(fields, fields.prefix()) == [name.encode() for name, _, _ in parts]
    assert bytes_at(fields, fields.rest()) == [rest for _, _, rest in parts]


@pytest.mark.parametrize(
    "payload", [b"\x02\0\0", b"\0\0\0", b"\x01\x02\0", b"\x01\0", b"\x01\x01\0"]
)
def test_a_prefix_of_another_version_an_unknown_flag_or_no_room_is_refused(payload: bytes) -> None:
    with pytest.raises(CorruptPayload):
        cursors([b"\x01\0\0", payload], b"\0" * 40).prefix()


@given(st.lists(st.lists(st.binary(max_size=4), max_size=5), max_size=7))
def test_items_are_read_one_of_each_payload_at_a_time(lists: list[list[bytes]]) -> None:
    payloads = [b"".join(bytes((len(item),)) + item for item in items) + b"end" for items in lists]
    fields = cursors(payloads)
    found: list[list[bytes]] = [[] for _ in lists]
    for rows, part in fields.each(np.array([len(items) for items in lists], np.int64)):
        for row, item in zip(rows.tolist(), bytes_at(part, part.bytes8()), strict=True):
            found[row].append(item)
    assert found == lists
    assert bytes_at(fields, fields.rest()) == [b"end"] * len(lists)


def test_items_that_are_not_there_are_refused() -> None:
    items = cursors([b"\x01a", b"\x01a"], b"\x01" * 8).each(np.array([1, 2]))
    _, part = next(items)
    part.bytes8()
    rows, part = next(items)
    assert rows.tolist() == [1]
    with pytest.raises(CorruptPayload):
        part.bytes8()


def test_bytes_behind_the_last_field_are_refused() -> None:
    fields = cursors([b"a", b"ab"])
    fields.skip(1)
    with pytest.raises(CorruptPayload):
        fields.finish()


def test_a_negative_size_is_refused() -> None:
    fields = cursors([b"abc", b"abc"])
    fields.skip(2)
    with pytest.raises(CorruptPayload):
        fields.fixed(np.array([1, -1]))


def test_a_span_read_before_does_not_move_with_the_cursor() -> None:
    fields = cursors([b"\x01a\x01b", b"\x01c"])
    first = fields.bytes8()
    for _, part in fields.each(np.array([1, 0])):
        part.bytes8()
    assert bytes_at(fields, first) == [b"a", b"c"]


@given(st.binary(min_size=8, max_size=40), st.data())
def test_numbers_are_gathered_whatever_their_alignment(data: bytes, draws: st.DataObject) -> None:
    places = draws.draw(st.lists(st.integers(0, len(data) - 8), max_size=10))
    found = gather(np.frombuffer(data, np.uint8), np.array(places, np.int64), np.dtype("<u8"))
    assert found.tolist() == [struct.unpack_from("<Q", data, place)[0] for place in places]


def test_nothing_is_gathered_from_an_empty_buffer() -> None:
    nothing = np.empty(0, np.uint8)
    assert len(gather(nothing, np.empty(0, np.int64), np.dtype("<u8"))) == 0
    assert len(Fields(nothing, np.empty(0, np.int64), np.empty(0, np.int64)).prefix().start) == 0
