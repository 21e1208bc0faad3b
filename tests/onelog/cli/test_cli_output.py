"""What commands print: exact for programs, harmless for terminals."""

import ast
import base64
import json
import math
import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.cli.output import TABLE_ROWS_MAX, Output, cell, counted, plain, sparkline
from tests.onelog.client.serving import ROOT

# A number in front of a plural: "{count} keys". Not those of a rate, a range or a share.
PLURAL = re.compile(r"^ (?:\w+ )?(\w{3,}s)\b")
VERBS = frozenset(
    ("begins", "does", "has", "holds", "keeps", "leads", "looks", "names", "votes", "was")
)


class Pair(NamedTuple):
    key: bytes
    value: bytes | None


@dataclass(frozen=True)
class Thing:
    name: str
    pairs: tuple[Pair, ...]


@given(st.binary(max_size=20))
def test_bytes_are_text_or_say_that_they_are_base64(data: bytes) -> None:
    """A script must get back what was written, whatever it was."""
    document = json.loads(json.dumps(plain({"value": data})))
    if "value" in document:
        assert document["value"].encode() == data
    else:
        assert base64.b64decode(document["value_base64"]) == data
        with pytest.raises(UnicodeDecodeError):
            data.decode()


def test_values_of_the_client_become_documents() -> None:
    thing = Thing("n", (Pair(b"a", b"\xff"), Pair(b"b", None)))
    assert plain(thing) == {
        "name": "n",
        "pairs": [{"key": "a", "value_base64": "/w=="}, {"key": "b", "value": None}],
    }
    assert plain([b"x", b"\xff"]) == ["x", {"base64": "/w=="}]
    assert plain({"a": np.array([1, 2]), "b": np.array([0.5])}) == {"a": [1, 2], "b": [0.5]}
    assert plain([math.nan, math.inf, 1.5]) == ["nan", "inf", 1.5]


@given(st.binary(max_size=50))
def test_no_byte_of_a_value_reaches_the_terminal_as_a_command(data: bytes) -> None:
    assert cell(data).isprintable()
    assert cell({"h": data}).isprintable()


def test_a_long_value_is_cut_in_a_table_and_whole_in_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = (("value", lambda row: row["value"]),)
    for as_json in (False, True):
        Output(as_json=as_json).table([{"value": b"x" * 10_000}], columns)
    table, document = capsys.readouterr().out.split("\n", 2)[1:]
    assert table.strip().endswith("…")
    assert len(json.loads(document)["value"]) == 10_000


def test_a_table_of_any_length_has_one_header(capsys: pytest.CaptureFixture[str]) -> None:
    count = 2 * TABLE_ROWS_MAX + 1
    shown = Output(as_json=False).table(range(count), (("number", lambda row: row),))
    lines = capsys.readouterr().out.split()
    assert shown == count
    assert lines == ["number", *map(str, range(count))]


def test_a_wide_row_is_one_line_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs that read tables, as people's programs do, count lines."""
    row = dict.fromkeys("abcdef", "漢" * 150)
    columns = [(name, lambda row, name=name: row[name]) for name in row]
    Output(as_json=False).table([row], columns)
    assert capsys.readouterr().out.count("\n") == 2


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=200))
def test_a_chart_is_as_wide_as_it_may_be(values: list[float]) -> None:
    shown = sparkline(values, 60)
    assert len(shown) == min(len(values), 60)
    assert set(shown) <= set(" ▁▂▃▄▅▆▇█")


@pytest.mark.parametrize("values", [[-1.7e308, 1.7e308], [1.7e308] * 200, [5e-324, 0.0]])
def test_a_chart_of_the_greatest_and_smallest_numbers_is_drawn(values: list[float]) -> None:
    assert len(sparkline(values, 60)) == min(len(values), 60)


def test_a_chart_rises_with_its_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5, 5]) == "▁▁▁"
    assert sparkline([math.nan, 1, 2]) == " ▁█"
    assert sparkline([0, 0, 8, 8], 2) == "▁█"


def test_one_thing_is_no_plural() -> None:
    assert [counted(n, "key") for n in (0, 1, 2, 1000)] == [
        "0 keys", "1 key", "2 keys", "1,000 keys",
    ]  # fmt: skip
    assert (counted(1, "entry"), counted(2, "entry")) == ("1 entry", "2 entries")
    assert (counted(1, "series"), counted(2, "series")) == ("1 series", "2 series")


def test_numbers_and_what_they_count_are_put_together_in_one_place() -> None:
    """``counted`` makes plurals; "1 keys" comes from a text that does it by itself."""
    found = []
    for path in sorted((ROOT / "onelog" / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.JoinedStr):
                continue
            for before, value, text in zip(
                [None, *node.values], node.values, node.values[1:], strict=False
            ):
                if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                    continue
                # "1 of 1 nodes" has no other form.
                is_share = isinstance(before, ast.Constant) and str(before.value).endswith(" of ")
                is_number = "counted(" not in ast.unparse(value) and not is_share
                plural = PLURAL.match(str(text.value))
                if is_number and plural and plural[1] not in VERBS:
                    found.append(f"{path.name}:{text.lineno}: {ast.unparse(node)}")
    assert not found, "\n".join(found)
