"""docs/formats.md says what the golden files say: its examples are their bytes.

A fenced block ``hex NAME OFFSET`` is a part of a golden file, ``hex NAME`` all of it, and
``json NAME`` its text.
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.formats.golden import load_golden, parse_hex
from tests.formats.samples import SAMPLES

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats.md"
BLOCK = re.compile(r"^```(hex|json)\b(.*)\n((?:.*\n)*?)^```$", re.MULTILINE)
BYTE_TABLE_HEAD = "| offset | size | type | field | meaning | covered by |"


class Block(NamedTuple):
    """An example in the document."""

    kind: str
    name: str
    offset: int | None
    text: str


def blocks() -> list[Block]:
    found = []
    for match in BLOCK.finditer(DOCUMENT.read_text("utf-8")):
        name, *offset = match[2].split()
        found.append(Block(match[1], name, int(offset[0]) if offset else None, match[3]))
    return found


def byte_tables() -> list[list[list[str]]]:
    """Return the rows of each table of bytes, cell by cell."""
    tables: list[list[list[str]]] = []
    is_inside = False
    for line in DOCUMENT.read_text("utf-8").splitlines():
        if line == BYTE_TABLE_HEAD:
            tables.append([])
            is_inside = True
        elif not line.startswith("|"):
            is_inside = False
        elif is_inside and not line.startswith("|---"):
            tables[-1].append([cell.strip() for cell in line.strip("|").split("|")])
    return tables


@pytest.mark.parametrize("block", blocks(), ids=lambda block: f"{block.name}-{block.offset}")
def test_an_example_is_the_golden_bytes(block: Block) -> None:
    golden = load_golden(block.name)
    data = block.text.encode("ascii") if block.kind == "json" else parse_hex(block.text)

    if block.offset is None:
        assert data == golden
    else:
        assert data
        assert data == golden[block.offset : block.offset + len(data)]


def test_every_golden_file_is_in_the_document() -> None:
    assert {block.name for block in blocks()} == {sample.name for sample in SAMPLES}


def test_no_block_of_bytes_is_left_unchecked() -> None:
    """A block whose first line the expression above does not match would never be compared."""
    text = DOCUMENT.read_text("utf-8")
    fences = re.findall(r"^```(\w+)", text, re.MULTILINE)

    assert fences.count("hex") + fences.count("json") == len(blocks()) > len(SAMPLES)
    assert set(fences) == {"hex", "json", "text"}


def test_tables_of_bytes_have_no_holes() -> None:
    tables = byte_tables()

    assert len(tables) == 9
    for rows in tables:
        for (offset, size, *_), (following, *_) in pairwise(rows):
            if offset.isdecimal() and size.isdecimal() and following.isdecimal():
                assert int(offset) + int(size) == int(following), (rows[0], offset)
        assert rows[0][0] == "0"
