"""Golden files: the bytes of every format as hex that a person can read.

A ``.hex`` file is pairs of hex digits, spaces and line breaks; ``#`` starts a comment that runs to
the end of its line. Comments say what starts where. They are for people: only bytes are compared.

Golden files do not follow the code. They are the files that exist on somebody's disk already, so
``python -m tests.formats.generate`` is run when a format was changed on purpose, and never to make
a test pass.
"""

from collections.abc import Mapping
from pathlib import Path

FORMATS = Path(__file__).parent
BYTES_PER_LINE = 16


def golden_path(name: str) -> Path:
    return FORMATS / f"{name}.hex"


def load_golden(name: str) -> bytes:
    return parse_hex(golden_path(name).read_text("ascii"))


def parse_hex(text: str) -> bytes:
    """Return the bytes of a hex text without its comments."""
    return bytes.fromhex("\n".join(line.partition("#")[0] for line in text.splitlines()))


def render_hex(title: str, data: bytes, marks: Mapping[int, str]) -> str:
    """Return the text of a golden file; each mark starts a line of its own at its offset."""
    assert all(offset < len(data) for offset in marks), "a mark behind the end"
    lines = [f"# {title}, {len(data)} bytes"]
    starts = sorted({0, *marks})
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        if start in marks:
            lines.append(f"# {start}: {marks[start]}")
        pieces = range(start, end, BYTES_PER_LINE)
        lines += [data[at : min(at + BYTES_PER_LINE, end)].hex(" ") for at in pieces]
    return "\n".join(lines) + "\n"


def first_difference(expected: bytes, found: bytes) -> int:
    """Return the offset of the first byte that differs, or where the shorter one ends."""
    shorter = min(len(expected), len(found))
    return next((at for at in range(shorter) if expected[at] != found[at]), shorter)
