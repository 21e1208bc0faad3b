"""Results as bytes: sessions keep them, so they must survive, and nothing else must pass."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.projections.errors import BadResult
from onelog.projections.limits import I64_MAX, I64_MIN, U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import (
    APPLIED,
    Applied,
    Outcome,
    Refused,
    decode_result,
    encode_result,
)

reasons = st.sampled_from(list(Reason))
refusals = st.builds(Refused, reasons, st.integers(I64_MIN, U64_MAX), st.one_of(st.none(), reasons))
plain = st.one_of(
    refusals,
    st.just(APPLIED),  # which has a way of its own inside of others
    st.builds(Applied, st.integers(I64_MIN, I64_MAX), st.one_of(st.none(), st.binary(max_size=20))),
)
nested = st.builds(
    lambda number, results: Applied(number, None, tuple(results)),
    st.integers(0, 9),
    st.lists(plain, max_size=3),
)
outcomes = st.one_of(
    plain,
    nested,
    st.builds(lambda results: Applied(1, None, tuple(results)), st.lists(nested, max_size=3)),
)


@given(outcomes)
def test_a_result_comes_back_as_it_was(outcome: Outcome) -> None:
    assert decode_result(encode_result(outcome)) == outcome


@given(outcomes, st.data())
def test_a_result_cut_at_any_byte_is_not_a_result(outcome: Outcome, data: st.DataObject) -> None:
    raw = encode_result(outcome)
    end = data.draw(st.integers(0, len(raw) - 1))

    with pytest.raises(BadResult):
        decode_result(raw[:end])
    with pytest.raises(BadResult):
        decode_result(raw + b"\x00")


@given(st.binary(max_size=40))
def test_any_bytes_are_a_result_or_bad(data: bytes) -> None:
    try:
        outcome = decode_result(data)
    except BadResult:
        return
    assert encode_result(outcome) == data


def test_nesting_is_bounded() -> None:
    result = APPLIED
    for _ in range(5):
        result = Applied(0, None, (result,))

    with pytest.raises(BadResult, match="deep"):
        decode_result(encode_result(result))


def test_a_refusal_has_words_for_people() -> None:
    refused = Refused(Reason.BATCH_REFUSED, 3, Reason.LEASE_LOST)

    assert refused.message == "operation 3, counted from 0, was refused: LEASE_LOST"
    assert all(Refused(reason, 7, reason).message for reason in Reason)
