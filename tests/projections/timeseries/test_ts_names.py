"""Names of series, matchers, and patterns that cannot run away."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.errors import BadPayload
from onelog.projections.reasons import Reason
from onelog.projections.timeseries.limits import (
    PATTERN_DEPTH_MAX,
    PATTERN_REPEAT_MAX,
    PATTERN_SIZE_MAX,
    TAGS_MAX,
)
from onelog.projections.timeseries.names import (
    Matcher,
    Operator,
    SeriesName,
    compile_matchers,
    format_series,
    parse_series,
    passes_all,
    series_name,
)
from onelog.projections.timeseries.regex import Pattern
from onelog.projections.timeseries.tag_index import TagIndex
from onelog.projections.undo import UndoLog

texts = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=9
) | st.text("a,={}\\", min_size=1, max_size=6)


@given(measurement=texts, tags=st.dictionaries(texts, texts, max_size=4))
def test_a_name_comes_back_as_it_was(measurement: str, tags: dict[str, str]) -> None:
    raw = series_name(measurement, tags)

    assert parse_series(raw) == SeriesName(measurement, tuple(sorted(tags.items())))
    assert format_series(parse_series(raw)) == raw


@given(raw=st.binary(max_size=30) | st.text("ab,={}\\", max_size=12).map(str.encode))
def test_what_is_a_name_is_canonical(raw: bytes) -> None:
    """Two names of one series would be two series."""
    reason: Reason | None = None
    try:
        parsed = parse_series(raw)
    except BadPayload as error:
        reason = error.reason
    if reason is None:
        assert format_series(parsed) == raw
    else:
        assert reason in {Reason.SERIES_NAME_INVALID, Reason.PAYLOAD_NOT_UTF8}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"cpu",
        b"{}",
        b"cpu{",
        b"cpu{}x",
        b"cpu{a}",
        b"cpu{a=}",
        b"cpu{=a}",
        b"cpu{b=1,a=2}",
        b"cpu{a=1,a=2}",
        b"cpu{a=1,}",
        b"cpu{a=1}}",
        b"c\\pu{}",
        b"cpu\\",
        b"c\npu{}",
        b"cpu{a=\x7f}",
        b"m" * 129 + b"{}",
        b"cpu{a=" + b"v" * 257 + b"}",
        series_name("m", {f"t{number:02}": "x" for number in range(TAGS_MAX + 1)}),
    ],
)
def test_what_is_not_canonical_is_refused(raw: bytes) -> None:
    with pytest.raises(BadPayload) as caught:
        parse_series(raw)
    assert caught.value.reason is Reason.SERIES_NAME_INVALID


atoms = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "[a-c1]", r"\.", r"[\d.]"])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        inner.map(lambda part: f"(?:{part}|)"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@given(pattern=patterns, candidates=st.lists(st.text("abc1.", max_size=7), max_size=6))
@settings(max_examples=200)
def test_a_pattern_means_what_it_means_elsewhere(pattern: str, candidates: list[str]) -> None:
    ours = Pattern(pattern)

    for text in candidates:
        assert ours.matches(text) == (re.fullmatch(pattern, text) is not None)


@given(pattern=st.text("ab(|)*+?{}[]^-$\\.,1d", max_size=14))
@settings(max_examples=300)
def test_any_text_is_a_pattern_or_a_named_mistake(pattern: str) -> None:
    reason: Reason | None = None
    try:
        Pattern(pattern).matches("aab1")
    except BadPayload as error:
        reason = error.reason
    assert reason in {None, Reason.MATCHER_INVALID}


@pytest.mark.parametrize("pattern", ["(a|a)*" * 8 + "b", "(a*)*b", "(a+)+" * 4, "(.*)(.*)(.*)x"])
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    ours = Pattern(pattern)
    started = time.perf_counter()

    ours.matches("a" * 256)

    assert time.perf_counter() - started < 1.0


@pytest.mark.parametrize(
    "pattern", ["a{201}", "(a{200}){200}", "(" * 40 + ")" * 40, "a" * (PATTERN_SIZE_MAX + 1), "a**"]
)
def test_a_pattern_that_is_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(BadPayload) as caught:
        Pattern(pattern)
    assert caught.value.reason is Reason.MATCHER_INVALID


def test_a_pattern_forgets_what_it_learned_before_that_grows() -> None:
    pattern = Pattern("[^x]*y")
    for number in range(12_000):
        assert pattern.matches(chr(0x4E00 + number) + "y")
    assert len(pattern._moves) <= 10_001
    assert not pattern.matches("xy")


def test_what_a_pattern_has_remembered_does_not_change_what_it_costs() -> None:
    """Where a delete stops follows from it, on replicas that may remember more or less."""
    fresh, used = Pattern("(a|b)*[0-9]{2,4}"), Pattern("(a|b)*[0-9]{2,4}")
    texts = ["abab12", "b1234", "ab", "zz", "", "aaaa1"]
    for text in texts:
        used.matches(text)
    before = used.effort
    for text in texts:
        assert fresh.matches(text) == used.matches(text)
    assert used.effort == 2 * before
    assert fresh.effort == before > 0


def test_patterns_go_as_far_as_the_limits_say() -> None:
    deepest = PATTERN_DEPTH_MAX - 1
    for largest, larger in (
        (f"a{{{PATTERN_REPEAT_MAX}}}", f"a{{{PATTERN_REPEAT_MAX + 1}}}"),
        ("(" * deepest + "a" + ")" * deepest, "(" * (deepest + 1) + "a" + ")" * (deepest + 1)),
        ("(a{100}){10}", "(a{100}){10}a"),
        ("(a{99}){0,10}", "(a{100}){0,10}"),
        ("(a{99}){9}(a{99})*", "(a{100}){9}(a{99})*"),
    ):
        Pattern(largest)
        with pytest.raises(BadPayload) as caught:
            Pattern(larger)
        assert caught.value.reason is Reason.MATCHER_INVALID


SERIES = [
    {},
    {"host": "a"},
    {"host": "b"},
    {"host": "web-1", "zone": "eu"},
    {"host": "web-2", "zone": "us"},
    {"zone": "eu"},
]


@pytest.mark.parametrize("tag", ["host", "zone", "none"])
@pytest.mark.parametrize("operator", Operator)
@pytest.mark.parametrize("value", ["", "a", "eu", "web-.*", ".*", ".+", "a|b", "x?"])
def test_the_index_selects_what_the_matchers_say(tag: str, operator: Operator, value: str) -> None:
    index = TagIndex(UndoLog())
    for number, tags in enumerate(SERIES, 1):
        index.add(number, tuple(sorted(tags.items())))
    tests = compile_matchers([Matcher(tag, operator, value)])

    expected = [
        number
        for number, tags in enumerate(SERIES, 1)
        if passes_all(tests, tuple(sorted(tags.items())))
    ]
    assert index.select(tests).tolist() == expected
    is_pattern = operator in (Operator.MATCHES, Operator.MATCHES_NOT)
    wanted = operator in (Operator.EQUAL, Operator.MATCHES)
    for number, tags in enumerate(SERIES, 1):
        found = tags.get(tag, "")
        equal = re.fullmatch(value, found) is not None if is_pattern else found == value
        assert (number in expected) == (equal is wanted)
