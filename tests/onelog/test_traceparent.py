"""The traceparent of W3C Trace Context: what is read, and what is as good as nothing."""

import pytest

from onelog.traceparent import TraceParent, parse

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # flags that nobody knows yet
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f"01-{TRACE}-{SPAN}-01", True),  # a later version, of which this much is certain
        (f"cc-{TRACE}-{SPAN}-01-what-follows", True),
    ],
)
def test_a_traceparent_says_which_span_and_whether_it_is_sampled(
    text: str, *, is_sampled: bool
) -> None:
    assert parse(text) == TraceParent(TRACE, SPAN, is_sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.what-follows",
        f"00_{TRACE}_{SPAN}_01",
    ],
)
def test_a_malformed_traceparent_is_none(text: str) -> None:
    assert parse(text) is None


def test_what_is_written_is_read() -> None:
    for is_sampled in (True, False):
        parent = TraceParent(TRACE, SPAN, is_sampled)
        assert parse(str(parent)) == parent
