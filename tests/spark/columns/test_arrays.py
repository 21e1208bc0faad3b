"""Spans and numbers as Arrow columns."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.spark.columns import arrays
from onelog.spark.columns.fields import Spans
from tests.spark.kv_rows import text_or_none

values = st.lists(st.binary(max_size=6), max_size=12)


def spans_of(
    parts: list[tuple[bytes, bytes]],
) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], Spans]:
    """Return a buffer of gaps and values, and the spans of the values."""
    starts, ends, data = [], [], b""
    for gap, value in parts:
        data += gap
        starts.append(len(data))
        data += value
        ends.append(len(data))
    spans = Spans(np.array(starts, np.int64), np.array(ends, np.int64))
    return np.frombuffer(data, np.uint8), spans


@given(
    st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=5), st.booleans()), max_size=12),
    st.data(),
)
def test_spans_become_bytes_with_gaps_nulls_and_rows_that_share(
    parts: list[tuple[bytes, bytes, bool]], draws: st.DataObject
) -> None:
    data, spans = spans_of([(gap, value) for gap, value, _ in parts])
    valid = np.array([is_there for _, _, is_there in parts], np.bool_)
    # What is not there may be anywhere.
    for span in spans:
        span[~valid] = draws.draw(st.integers(0, 50))
    kept = [value if is_there else None for _, value, is_there in parts]
    before = [span.copy() for span in spans]
    assert arrays.binary(data, spans, valid=valid).to_pylist() == kept
    assert all((a == b).all() for a, b in zip(before, spans, strict=True))
    if parts:
        rows = draws.draw(st.lists(st.integers(0, len(parts) - 1), max_size=20))
        found = arrays.binary(data, spans, valid=valid, rows=np.array(rows, np.intp))
        found.validate(full=True)
        assert found.to_pylist() == [kept[row] for row in rows]


def test_spans_that_do_not_ascend_are_a_mistake() -> None:
    data = np.frombuffer(b"abc", np.uint8)
    with pytest.raises(AssertionError, match="ascend"):
        arrays.binary(data, Spans(np.array([1, 0]), np.array([2, 1])))


@given(st.lists(st.one_of(st.none(), st.binary(max_size=5), st.text(max_size=3).map(str.encode))))
def test_text_is_what_python_can_decode_and_null_otherwise(parts: list[bytes | None]) -> None:
    found = arrays.to_text(pa.array(parts, pa.binary()))
    assert found.type == pa.string()
    found.validate(full=True)
    assert found.to_pylist() == [text_or_none(part) for part in parts]


def test_every_pair_of_bytes_is_text_or_null_as_python_says() -> None:
    """Surrogates, overlong forms and numbers beyond Unicode among them."""
    pairs = [bytes((first, second)) for first in range(256) for second in range(256)]
    edges = [bytes((first, second, 0x80)) for first in range(0xE0, 0xF0) for second in range(256)]
    longest = [
        bytes((first, second, 0xBF, 0xBF)) for first in range(0xF0, 256) for second in range(256)
    ]
    parts = [b"\xff", *pairs, *edges, *longest, b"a\nb\xc3\xa4\0", b"\xed\xa0\x80"]
    found = arrays.to_text(pa.array(parts, pa.binary()))
    assert found.to_pylist() == [text_or_none(part) for part in parts]


@pytest.mark.parametrize("kind", ["<u1", "<u2", "<u4", "<i8", ">u8", ">i4"])
def test_numbers_of_every_width_and_order_become_64_bits(kind: str) -> None:
    numbers = np.array([0, 1, 100], kind)
    found = arrays.numbers(numbers, valid=np.array([True, False, True]))
    assert found.type == pa.int64()
    assert found.to_pylist() == [0, None, 100]


def test_ids_of_64_bits_keep_their_bits() -> None:
    numbers = np.array([0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1], np.uint64)
    assert arrays.numbers(numbers).to_pylist() == [0, (1 << 63) - 1, -(1 << 63), -1]


def test_fields_of_headers_are_read_though_they_are_not_side_by_side() -> None:
    records = np.zeros(5, np.dtype([("skipped", "<u2"), ("number", "<u8")]))
    records["number"] = range(5)
    assert arrays.numbers(records["number"]).to_pylist() == [0, 1, 2, 3, 4]


def test_moments_are_microseconds_in_utc() -> None:
    found = arrays.timestamps(np.array([0, 1_999, 1_767_225_600_123_456_789], np.uint64))
    assert found.type == arrays.TIMESTAMP
    assert found.cast(pa.int64()).to_pylist() == [0, 1, 1_767_225_600_123_456]


def test_names_constants_and_lists() -> None:
    assert arrays.named(np.array([1, 0, 1], np.uint8), ["a", None]).to_pylist() == [None, "a", None]
    assert arrays.constant(7, 3, pa.int32()).to_pylist() == [7, 7, 7]
    items = pa.array([1, 2, 3])
    valid = np.array([True, False, True, True])
    found = arrays.lists(np.array([2, 0, 0, 1]), items, valid)
    assert found.to_pylist() == [[1, 2], None, [], [3]]
    assert arrays.lists(np.array([3]), items).to_pylist() == [[1, 2, 3]]
