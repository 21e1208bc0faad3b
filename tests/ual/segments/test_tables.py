"""The tables of sealed segments: bytes to arrays and back, and every way to be wrong."""

import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import FrameType
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from onelog.ual.entry import HEADER, HEADER_SIZE
from onelog.ual.errors import CorruptFile
from onelog.ual.segments import tables
from onelog.ual.segments.format import TIME_STEP_NS, SegmentHeader, TableSpan
from onelog.ual.segments.notes import SegmentNotes
from onelog.ual.segments.tables import StreamTable, Table
from tests.ual.segments.segment_files import make_model

TraceFunction = Callable[[FrameType, str, object], Any]
U64_MAX = (1 << 64) - 1
DENSE = SegmentHeader(0, 1, 100, 1, 699, 10**12, 10**12 + 10**11, 600)
COMPACTED = replace(DENSE, last_index=1999)
ENTRIES_END = 64 + 600 * 50


def table_of(data: bytes, count: int) -> Table:
    """Wrap bytes as a table whose checksum is right."""
    return Table("x.flseg", "test", TableSpan(4096, len(data), count, crc32c(data)), data)


def pack(row: str, rows: list[tuple[int, ...]]) -> Table:
    return table_of(b"".join(struct.pack("<" + row, *fields) for fields in rows), len(rows))


def naive_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


u64_values = (
    st.integers(0, U64_MAX) | st.integers(0, 300) | st.builds(lambda n: 1 << n, st.integers(0, 63))
)


@given(st.lists(u64_values, min_size=1, max_size=40))
@example([0, 127, 128, (1 << 63) - 1, 1 << 63, U64_MAX])
def test_varints_are_those_of_a_plain_loop_and_are_read_back(values: list[int]) -> None:
    data, ends = tables.encode_varints(np.array(values, np.uint64))

    expected = [naive_varint(value) for value in values]
    assert data.tobytes() == b"".join(expected)
    assert ends.tolist() == np.cumsum([len(one) for one in expected]).tolist()
    decoded, decoded_ends = tables.decode_varints(table_of(b"", 0), data)
    assert decoded.tolist() == values
    assert decoded_ends.tolist() == ends.tolist()


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "past the end"),
        (b"\x80", "past the end"),
        (b"\x01\xff\xff", "past the end"),
        (b"\xff" * 10 + b"\x01", "more than 10 bytes"),
        (b"\xff" * 100_000 + b"\x01", "more than 10 bytes"),
        (b"\x01" + b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (b"\x81\x00", "longer than needed"),
    ],
)
def test_bad_varints_are_refused(data: bytes, rule: str) -> None:
    with pytest.raises(CorruptFile, match=rule):
        tables.decode_varints(table_of(b"", 0), np.frombuffer(data, np.uint8))


def test_gathered_headers_are_those_that_struct_reads() -> None:
    model = make_model(Random(5), group_sizes=[1, 7, 300])
    data, offsets = model.data, np.array(model.offsets(), np.uint32)

    headers = tables.gather_headers(data, offsets)

    assert headers.tolist() == [HEADER.unpack_from(data, at) for at in model.offsets()]
    assert tables.gather_group_left(data, offsets).tolist() == headers["group_left"].tolist()
    # The last possible header is reachable, and one behind it is not.
    last = np.array([len(data) - HEADER_SIZE])
    assert tables.gather_headers(data, last)[0].item() == HEADER.unpack_from(data, int(last[0]))
    with pytest.raises(IndexError):
        tables.gather_headers(data, last + 1)
    assert len(tables.gather_headers(b"", offsets[:0])) == 0
    assert len(tables.gather_group_left(b"", offsets[:0])) == 0


def test_columns_give_the_entries_back() -> None:
    model = make_model(Random(6), group_sizes=[1, 7, 30])
    view, offsets = memoryview(model.data), np.array(model.offsets(), np.uint32)
    columns = tables.Columns.of_headers(view, tables.gather_headers(view, offsets), offsets)
    odd = columns.index % np.uint64(2) == 1

    assert list(columns.entries()) == model.entries
    assert list(columns.select(odd).entries()) == [e for e in model.entries if e.index % 2]


@pytest.mark.parametrize("block_entries", [1, 2, 3, 65_536])
def test_the_first_wrong_checksum_is_found(
    block_entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "CHECKSUM_BLOCK_ENTRIES", block_entries)
    model = make_model(Random(7), group_sizes=[5])
    offsets = np.array(model.offsets(), np.uint32)
    ends = np.append(offsets[1:], np.uint32(len(model.data)))
    data = bytearray(model.data)
    crcs = tables.gather_headers(bytes(data), offsets)["crc"]
    assert tables.first_bad_checksum(bytes(data), offsets, ends, crcs) is None
    data[offsets[3] + 5] ^= 1
    data[offsets[2] + 5] ^= 1

    assert tables.first_bad_checksum(bytes(data), offsets, ends, crcs) == 2


def naive_time_rows(timestamps_ns: list[int]) -> list[tuple[int, int]]:
    rows: list[tuple[int, int]] = []
    for index, timestamp_ns in enumerate(timestamps_ns, start=100):
        if not rows or timestamp_ns >= rows[-1][0] + TIME_STEP_NS:
            rows.append((timestamp_ns, index))
    return rows


gaps_ns = st.lists(
    st.sampled_from((0, 1, TIME_STEP_NS // 2, TIME_STEP_NS - 1, TIME_STEP_NS, 10**12)), max_size=40
)


@given(st.integers(0, 10**18), gaps_ns)
def test_time_rows_are_those_of_a_plain_loop(first_ns: int, gaps: list[int]) -> None:
    timestamps_ns = np.cumsum([first_ns, *gaps]).tolist()
    indexes = np.arange(100, 100 + len(timestamps_ns), dtype=np.uint64)

    data = tables.encode_time(np.array(timestamps_ns, np.uint64), indexes)

    assert list(struct.iter_unpack("<QQ", data)) == naive_time_rows(timestamps_ns)


def test_time_rows_at_the_end_of_time() -> None:
    """Adding a second to these wraps around; that must not make a row, nor a loop."""
    timestamps_ns = [U64_MAX - TIME_STEP_NS, U64_MAX - 5, U64_MAX, U64_MAX]
    indexes = np.arange(100, 104, dtype=np.uint64)

    data = tables.encode_time(np.array(timestamps_ns, np.uint64), indexes)

    assert list(struct.iter_unpack("<QQ", data)) == naive_time_rows(timestamps_ns)


Decoder = Callable[[Table], object]


def decode_sparse_dense(table: Table) -> object:
    return tables.decode_sparse(table, DENSE, ENTRIES_END)


def decode_sparse_compacted(table: Table) -> object:
    return tables.decode_sparse(table, COMPACTED, ENTRIES_END)


def decode_time_dense(table: Table) -> object:
    return tables.decode_time(table, DENSE)


def decode_time_compacted(table: Table) -> object:
    return tables.decode_time(table, COMPACTED)


def decode_voids(table: Table) -> object:
    return tables.decode_voids(table, DENSE)


def decode_offsets(table: Table) -> object:
    return tables.decode_offsets(table, ENTRIES_END)


def decode_indexes(table: Table) -> object:
    return tables.decode_indexes(table, COMPACTED)


SPARSE_ROWS: list[tuple[int, ...]] = [(100, 64), (356, 12864), (612, 25664)]
T0 = 10**12
GOOD: list[tuple[Decoder, str, list[tuple[int, ...]]]] = [
    (decode_sparse_dense, "QI", SPARSE_ROWS),
    (decode_sparse_compacted, "QI", [(107, 64), (500, 12864), (1999, 25664)]),
    (decode_sparse_compacted, "QI", []),
    (decode_time_dense, "QQ", [(T0, 100), (T0 + TIME_STEP_NS, 101)]),
    (decode_time_compacted, "QQ", [(T0 + 7, 107)]),
    (decode_time_compacted, "QQ", []),
    (decode_voids, "QQ", [(100, 100), (102, 110), (112, 699)]),
    (decode_voids, "QQ", []),
    (decode_offsets, "I", [(64,), (104,), (ENTRIES_END - 40,)]),
    (decode_indexes, "Q", [(100,), (101,), (1999,)]),
]


@pytest.mark.parametrize(("decode", "row", "rows"), GOOD)
def test_good_rows_are_accepted(decode: Decoder, row: str, rows: list[tuple[int, ...]]) -> None:
    decode(pack(row, rows))


BAD: list[tuple[Decoder, str, list[tuple[int, ...]]]] = [
    (decode_sparse_dense, "QI", [(100, 64), (612, 12864), (356, 25664)]),
    (decode_sparse_dense, "QI", [(100, 64), (100, 12864), (356, 25664)]),
    (decode_sparse_dense, "QI", [(100, 64), (357, 12864), (613, 25664)]),
    (decode_sparse_dense, "QI", [(99, 64), (355, 12864), (611, 25664)]),
    (decode_sparse_dense, "QI", [(100, 64), (356, 12864), (U64_MAX, 25664)]),
    (decode_sparse_dense, "QI", [(100, 0), (356, 12864), (612, 25664)]),
    (decode_sparse_dense, "QI", [(100, 104), (356, 12864), (612, 25664)]),
    (decode_sparse_dense, "QI", [(100, 64), (356, 65), (612, 25664)]),
    (decode_sparse_dense, "QI", [(100, 64), (356, 12864), (612, ENTRIES_END - 39)]),
    (decode_sparse_compacted, "QI", [(107, 64), (362, 12864)]),
    (decode_sparse_compacted, "QI", [(107, 64), (2000, 12864)]),
    (decode_time_dense, "QQ", [(T0 + 1, 100)]),
    (decode_time_dense, "QQ", [(T0, 101)]),
    (decode_time_dense, "QQ", [(T0, 100), (T0 + TIME_STEP_NS - 1, 101)]),
    (decode_time_dense, "QQ", [(T0, 100), (T0 + TIME_STEP_NS, 100)]),
    (decode_time_dense, "QQ", [(T0, 100), (T0 + TIME_STEP_NS, 700)]),
    (decode_time_dense, "QQ", [(T0, 100), (T0 + 10**11 + 1, 101)]),
    (decode_time_compacted, "QQ", [(T0 - 1, 107)]),
    (decode_time_compacted, "QQ", [(T0 + 5 * TIME_STEP_NS, 107), (T0, 108)]),
    (decode_time_compacted, "QQ", [(T0, 99)]),
    (decode_voids, "QQ", [(101, 100)]),
    (decode_voids, "QQ", [(99, 100)]),
    (decode_voids, "QQ", [(100, 700)]),
    (decode_voids, "QQ", [(100, 110), (111, 112)]),
    (decode_voids, "QQ", [(100, 110), (105, 112)]),
    (decode_voids, "QQ", [(110, 112), (100, 102)]),
    (decode_voids, "QQ", [(100, U64_MAX), (102, 104)]),
    (decode_offsets, "I", [(65,), (105,)]),
    (decode_offsets, "I", [(0,), (64,)]),
    (decode_offsets, "I", [(64,), (103,)]),
    (decode_offsets, "I", [(64,), (64,)]),
    (decode_offsets, "I", [(64,), (204,), (104,)]),
    (decode_offsets, "I", [(64,), (ENTRIES_END - 39,)]),
    (decode_offsets, "I", [(64,), ((1 << 32) - 1,)]),
    (decode_indexes, "Q", [(99,), (101,)]),
    (decode_indexes, "Q", [(100,), (2000,)]),
    (decode_indexes, "Q", [(100,), (100,)]),
    (decode_indexes, "Q", [(101,), (100,)]),
]


@pytest.mark.parametrize(("decode", "row", "rows"), BAD)
def test_bad_rows_with_a_right_checksum_are_refused(
    decode: Decoder, row: str, rows: list[tuple[int, ...]]
) -> None:
    with pytest.raises(CorruptFile, match=r"x\.flseg at offset 4096: test table: ") as caught:
        decode(pack(row, rows))
    assert caught.value.offset == 4096


def test_a_table_with_a_wrong_checksum_or_size_is_refused() -> None:
    with pytest.raises(CorruptFile, match="checksum"):
        Table("x", "time", TableSpan(0, 3, 1, crc32c(b"abc") ^ 1), b"abc")
    with pytest.raises(CorruptFile, match="2 bytes of 3"):
        Table("x", "time", TableSpan(0, 3, 1, crc32c(b"ab")), b"ab")


indexes_in_dense = st.sets(st.integers(100, 699), min_size=1, max_size=40)


@given(st.dictionaries(st.integers(0, U64_MAX), indexes_in_dense, max_size=8))
@example({0: {100}, U64_MAX: {699}})
def test_streams_are_read_back(streams: dict[int, set[int]]) -> None:
    arrays = {key: np.array(sorted(records), np.uint64) for key, records in streams.items()}

    data = tables.encode_streams(SegmentNotes(arrays), DENSE.first_index)
    table = StreamTable(table_of(data, len(streams)), DENSE)

    assert table.stream_ids.tolist() == sorted(streams)
    for stream_id, records in streams.items():
        assert table.records(stream_id).tolist() == sorted(records)
    found = {stream_id: records.tolist() for stream_id, records in table.all_records().items()}
    assert found == {stream_id: sorted(records) for stream_id, records in streams.items()}
    unknown = next(n for n in range(10) if n not in streams)
    assert table.records(unknown).tolist() == []


def test_the_streams_table_has_the_documented_bytes() -> None:
    arrays = {9: np.array([100, 101, 300], np.uint64), 4: np.array([105], np.uint64)}

    data = tables.encode_streams(SegmentNotes(arrays), DENSE.first_index)

    directory = struct.pack("<QIIQII", 4, 1, 32, 9, 3, 33)
    assert data == directory + b"\x05" + b"\x00\x01\xc7\x01"


def streams_table(rows: list[tuple[int, int, int]], records: bytes) -> Table:
    directory = b"".join(struct.pack("<QII", *row) for row in rows)
    return table_of(directory + records, len(rows))


@pytest.mark.parametrize(
    ("rows", "records", "rule"),
    [
        ([(4, 1, 17)], b"\x05", "records at 17"),
        ([(4, 1, 32), (4, 1, 33)], b"\x05\x05", "stream ids"),
        ([(4, 1, 32), (3, 1, 33)], b"\x05\x05", "stream ids"),
        ([(4, 0, 16)], b"\x05", "without records"),
        ([(4, 601, 16)], bytes(700), "with over 600"),
        ([(4, 2, 16)], b"\x05", "more records than bytes"),
        ([(4, (1 << 32) - 1, 16)], b"\x05", "with over 600"),
        ([(4, 1, 32), (5, 1, 99)], b"\x05\x05", "more records than bytes"),
        ([(4, 1, 32), (5, 1, 31)], b"\x05\x05", "more records than bytes"),
    ],
)
def test_a_bad_directory_is_refused_before_anything_is_decoded(
    rows: list[tuple[int, int, int]], records: bytes, rule: str
) -> None:
    with pytest.raises(CorruptFile, match=rule):
        StreamTable(streams_table(rows, records), DENSE)


@pytest.mark.parametrize(
    ("rows", "records", "rule"),
    [
        ([(4, 1, 16)], b"\x80", "past the end"),
        ([(4, 1, 16)], b"\x05\x05", "record count differs"),
        ([(4, 1, 32), (5, 2, 34)], b"\x05\x05\x85\x01", "record count differs"),
        ([(4, 1, 32), (5, 1, 33)], b"\x85\x01", "record count differs"),
        ([(4, 2, 16)], b"\x05\x00", "a record twice"),
        ([(4, 1, 16)], naive_varint(600), "outside the segment"),
        ([(4, 1, 16)], naive_varint(U64_MAX), "outside the segment"),
        ([(4, 2, 16)], naive_varint(400) + naive_varint(200), "outside the segment"),
        ([(4, 2, 16)], naive_varint(1) + naive_varint(U64_MAX), "outside the segment"),
    ],
)
def test_bad_records_are_refused(
    rows: list[tuple[int, int, int]], records: bytes, rule: str
) -> None:
    table = StreamTable(streams_table(rows, records), DENSE)
    with pytest.raises(CorruptFile, match=rule):
        table.all_records()


def test_a_bad_stream_does_not_hide_behind_a_good_one() -> None:
    """The bytes add up over both streams, but not for each."""
    table = StreamTable(streams_table([(4, 1, 32), (5, 1, 34)], b"\x05\x05\x06"), DENSE)
    with pytest.raises(CorruptFile, match="record count differs"):
        table.records(4)
    assert table.records(5).tolist() == [106]
    with pytest.raises(CorruptFile, match="record count differs"):
        table.all_records()


def test_a_million_records_pass_without_a_python_loop() -> None:
    """Counted in lines that the interpreter ran, which no slow machine can change."""
    count = 1_000_000
    header = SegmentHeader(0, 1, 1, 1, 2 * count, 0, 0, 2 * count)
    even = np.arange(2, 2 * count + 1, 2, dtype=np.uint64)
    streams = {1: even[: count // 2], 2: even[count // 2 :]}
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> TraceFunction:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        data = tables.encode_streams(SegmentNotes(streams), 1)
        found = StreamTable(table_of(data, 2), header).all_records()
    finally:
        sys.settrace(before)

    assert (found[1] == streams[1]).all()
    assert (found[2] == streams[2]).all()
    assert len(data) == 32 + count + 2  # a byte for each, two more for the second stream's first
    assert lines < 1000
