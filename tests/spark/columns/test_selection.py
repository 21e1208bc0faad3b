"""Which entries and names are wanted, compared with Python's own bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.spark.columns.fields import Spans
from onelog.spark.columns.selection import Selection, compare, is_one_of, starts_with
from onelog.ual.segments.tables import ENTRY_DTYPE

words = st.one_of(
    st.binary(max_size=4),
    st.sampled_from([b"\0", b"a\0", b"a", b"a\0\0", b"x" * 32, b"x" * 33, b"x" * 31 + b"y" * 40]),
)
prefixes = st.one_of(words, st.sampled_from([b"x" * 64, b"x" * 31 + b"y"]))


def spans_of(values: list[bytes]) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], Spans]:
    sizes = np.array([len(value) for value in values], np.int64)
    end = np.cumsum(sizes)
    return np.frombuffer(b"".join(values), np.uint8), Spans(end - sizes, end)


@given(st.lists(words, max_size=12), prefixes)
def test_a_prefix_is_found_as_python_finds_it(values: list[bytes], prefix: bytes) -> None:
    """Zeros at the end count, and so does every byte of a long prefix."""
    expected = [value.startswith(prefix) for value in values]
    assert starts_with(*spans_of(values), prefix).tolist() == expected


def test_a_long_prefix_is_compared_to_its_end() -> None:
    values = [b"x" * 70, b"x" * 69 + b"y", b"x" * 32 + b"y" * 38, b"x" * 69]
    assert starts_with(*spans_of(values), b"x" * 70).tolist() == [True, False, False, False]


@given(st.lists(words, max_size=12), st.frozensets(words, max_size=6))
def test_values_of_a_set_are_found_as_python_finds_them(
    values: list[bytes], wanted: frozenset[bytes]
) -> None:
    data, spans = spans_of(values)
    assert is_one_of(data, spans, wanted).tolist() == [value in wanted for value in values]
    assert is_one_of(data, spans, None).all()


@given(st.lists(words, max_size=12), prefixes)
def test_spans_are_ordered_as_python_orders_bytes(values: list[bytes], other: bytes) -> None:
    expected = [(value > other) - (value < other) for value in values]
    assert compare(*spans_of(values), other).tolist() == expected


def headers() -> np.ndarray[tuple[int], np.dtype[np.void]]:
    made = np.zeros(4, ENTRY_DTYPE)
    made["entry_type"] = (0x0001, 0x0101, 0x010D, 0x0401)
    made["timestamp_ns"] = (0, 10, 10, 20)
    return made


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [
        (Selection(), [True, True, True, True]),
        (Selection(types=frozenset((0x0101, 0x0401))), [False, True, False, True]),
        (Selection(types=frozenset()), [False] * 4),
        (Selection(owners=frozenset((1,))), [False, True, True, False]),
        (
            Selection(owners=frozenset((1,)), types=frozenset((0x010D,))),
            [False, False, True, False],
        ),
        (Selection(from_time_ns=10), [False, True, True, True]),
        (Selection(to_time_ns=10), [True, True, True, False]),
        (Selection(from_time_ns=11, to_time_ns=19), [False] * 4),
        (Selection(to_time_ns=0), [True, False, False, False]),
    ],
)
def test_headers_decide_by_type_owner_and_time(selection: Selection, wanted: list[bool]) -> None:
    assert selection.wants_headers(headers()).tolist() == wanted
