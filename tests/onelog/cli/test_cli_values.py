"""What people type, read as they meant it or refused with a reason."""

import time

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from onelog.cli import values
from onelog.cli.failure import CommandFailed

ENDLESS = "9" * 5_000  # more digits than Python reads


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("100ms", 0.1), ("5m", 300), ("1h30m", 5400), ("1.5s", 1.5), ("2d", 172_800),
     ("1w", 604_800), ("10us", 1e-5), ("0", 0), ("10", 10), ("0.5", 0.5)],
)  # fmt: skip
def test_a_duration_is_numbers_with_units_or_of_seconds(text: str, seconds: float) -> None:
    assert values.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "1 s", "-5s", "-5", "5x", "1s2", "s1", "²s", "²"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no duration"):
        values.duration_s(text)


@pytest.mark.parametrize("text", [f"{ENDLESS}s", f"{'9' * 400}w", f"1s{'9' * 400}s"])
def test_a_duration_that_no_number_holds_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="longer than any duration"):
        values.duration_s(text)


@given(st.integers(0, 400 * 86_400_000).map(lambda ms: ms / 1000))
def test_a_duration_that_is_shown_can_be_typed(seconds: float) -> None:
    assert values.duration_s(values.shown_duration(seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size", "shown"),
    [("0", 0, "0 B"), ("500", 500, "500 B"), ("7B", 7, "7 B"), ("2KiB", 2048, "2 KiB"),
     ("3mib", 3 << 20, "3 MiB"), ("16GiB", 16 << 30, "16 GiB"), ("2TiB", 2 << 40, "2 TiB"),
     ("1536", 1536, "1.5 KiB")],
)  # fmt: skip
def test_a_size_is_a_number_with_or_without_a_unit(text: str, size: int, shown: str) -> None:
    assert values.size_bytes(text) == size
    assert values.shown_size(size) == shown


@pytest.mark.parametrize(
    "text", ["", "GiB", "16GB", "1.5GiB", "-1", "1 GiB", "²", ENDLESS, "9" * 20]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no size"):
        values.size_bytes(text)


@given(st.integers(0, 2**64 - 1))
def test_a_time_that_is_shown_can_be_typed(moment_ns: int) -> None:
    assert values.time_ns(values.shown_time(moment_ns)) == moment_ns


def test_a_time_is_relative_to_now_or_a_number() -> None:
    before, found, after = time.time_ns(), values.time_ns("now-1h"), time.time_ns()
    assert before <= found + 3600 * 10**9 <= after
    assert values.time_ns("now+1s") > values.time_ns("now")
    assert values.time_ns("123") == 123
    assert values.time_ns("1970-01-01T01:00:00.5+01:00") == 500_000_000


@pytest.mark.parametrize(
    "text", ["", "yesterday", "now-x", "now*2s", "2026-13-01T00:00:00Z", "2026-11-16T12:00:00",
             "1969-01-01T00:00:00Z", str(1 << 64), "-5", ENDLESS, "²", f"now+{'9' * 400}w"],
)  # fmt: skip
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        values.time_ns(text)


@pytest.mark.parametrize(
    ("text", "steps"),
    [(".", []), ("a", ["a"]), ("a.b", ["a", "b"]), ("tags[0].name", ["tags", 0, "name"]),
     ("[2]", [2]), ("[-1].a", [-1, "a"]), (".a", ["a"]), ('["a.b", 0]', ["a.b", 0]),
     ('"x y"', ["x y"])],
)  # fmt: skip
def test_a_path_leads_into_a_document(text: str, steps: list[str | int]) -> None:
    assert values.parse_path(text) == steps


@pytest.mark.parametrize(
    "text", ["a[", "a]", "a[x]", "[1.5]", "[true]", '["a"', "a..b", "a.", f"a[{ENDLESS}]",
             f"[{ENDLESS}]"],
)  # fmt: skip
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed):
        values.parse_path(text)


def test_arguments_may_hold_any_byte() -> None:
    assert values.to_bytes("a\udcff") == b"a\xff"
    assert values.to_bytes(r"a\x00\n", escaped=True) == b"a\x00\n"
    assert values.to_bytes(r"a\x00") == rb"a\x00"
    with pytest.raises(typer.BadParameter, match="bad escape"):
        values.to_bytes(r"\x0", escaped=True)


@pytest.mark.parametrize(
    "text", ["1", "1:", ":1", "1:2:3", "a:1", "-1:2", f"1:{1 << 64}", f"{ENDLESS}:1", "²:1"]
)
def test_what_is_no_receipt_is_refused(text: str) -> None:
    assert values.parse_number_pairs(["1:2"], "a receipt") == [(1, 2)]
    with pytest.raises(CommandFailed, match="is not a receipt"):
        values.parse_number_pairs([text], "a receipt")


def test_json_that_nobody_can_read_is_refused() -> None:
    for text, what in (("[" * 200_000, "nested too deeply"), (ENDLESS, "is no JSON")):
        with pytest.raises(CommandFailed, match=what):
            values.parse_json(text.encode(), "the value")


@pytest.mark.parametrize("text", ["", "a:", ":1", "a:0", "a:65536", "a:²", f"a:{ENDLESS}", "7400"])
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    assert values.parse_endpoint("[::1]:7400") == "[::1]:7400"
    assert values.parse_endpoint("a") == "a:7400"
    with pytest.raises(typer.BadParameter, match=r"is not HOST:PORT|has no port of 1 to 65535"):
        values.parse_endpoint(text)
