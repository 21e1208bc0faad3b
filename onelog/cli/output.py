"""What commands print: tables, lines and charts for people, JSON for scripts.

With ``--json`` one thing is one document, and many things are one line each. A field of bytes is
text if it is UTF-8 (``value``), else base64 under a name that says so (``value_base64``); in a list
such an element is ``{"base64": …}``. In protobuf messages numbers stay numbers, and enums are
lower-case words.

For people, control characters are escaped, so that no key or value can send commands to the
terminal: anybody may have written them.
"""

import base64
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import islice, pairwise
from typing import Any

from onelog.cli.failure import CommandFailed
from onelog.cli.values import shown_time
from onelog.errors import OnelogError

# Rows that are held to find the widths of columns; more rows make another table.
TABLE_ROWS_MAX = 500
_PLURALS = {"entry": "entries", "series": "series"}
TIME_HEADERS = frozenset(("dlq.last_failure",))  # of dead letters, in nanoseconds
CELL_SIZE_MAX = 200  # characters of a value in a table; JSON and ``get`` have all of it

Column = tuple[str, Callable[[Any], Any]]


class Output:
    """Prints the results of a command, as text or as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def result(self, document: Any, text: str) -> None:
        """Print what a command did: a document, or a line of text."""
        if self.as_json:
            self._write(json.dumps(plain(document), indent=2, ensure_ascii=False))
        else:
            self._write(printable(text))

    def document(self, document: Any) -> None:
        """Print a document, for people and scripts alike."""
        self._write(json.dumps(plain(document), indent=2, ensure_ascii=False))

    def listing(self, document: Any, rows: Iterable[tuple[str, Any]]) -> None:
        """Print one thing: a document, or its fields line by line."""
        if self.as_json:
            self._write(json.dumps(plain(document), indent=2, ensure_ascii=False))
        else:
            self._print_table(("", ""), [(name, cell(value)) for name, value in rows], ())

    def table(self, items: Iterable[Any], columns: Sequence[Column], nothing: str = "") -> int:
        """Print many things as they arrive; return how many there were."""
        count = 0
        if self.as_json:
            for item in items:
                self.line(item)
                count += 1
            return count
        source = iter(items)
        while chunk := list(islice(source, TABLE_ROWS_MAX)):
            rows = [[cell(get(item)) for _, get in columns] for item in chunk]
            right = {
                at for at, (_, get) in enumerate(columns)
                if all(isinstance(get(item), int | float) for item in chunk)
            }  # fmt: skip
            titles = [title if not count else "" for title, _ in columns]
            self._print_table(titles, rows, right)
            count += len(chunk)
        if not count and nothing:
            note(nothing)
        return count

    def line(self, document: Any, text: str = "") -> None:
        """Print one of many things and flush: a reader may be waiting for it."""
        shown = json.dumps(plain(document), ensure_ascii=False) if self.as_json else printable(text)
        self._write(shown)
        sys.stdout.flush()

    def value(self, data: bytes) -> None:
        """Print a value and a newline; escaped if the output is a terminal."""
        if sys.stdout.isatty():
            self._write("\n".join(printable(line) for line in to_text(data).split("\n")))
        else:
            self.raw(data + b"\n")

    def raw(self, data: bytes) -> None:
        """Print these bytes and nothing else, wherever they go."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()  # a reader may be waiting for it

    def check_raw(self, raw: bool, *others: bool) -> None:  # noqa: FBT001 - as it was given
        """Refuse ``--raw`` with another form of output."""
        if raw and (self.as_json or any(others)):
            raise CommandFailed("USAGE", "--raw goes with no other form of output and no command")

    def _write(self, text: str) -> None:
        sys.stdout.write(text + "\n")

    def _print_table(
        self, titles: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int]
    ) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(titles))
        for at, title in enumerate(titles):
            table.add_column(title, justify="right" if at in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(each) for each in row))
        # A file has no width: do not cut values there.
        width = None if sys.stdout.isatty() else sum(map(_width_max, zip(titles, *rows))) + 100  # noqa: B905
        Console(width=width, highlight=False, markup=False, file=sys.stdout).print(table)


def _width_max(column: Sequence[str]) -> int:
    # A character is at most two columns wide on a terminal.
    return 2 * max(map(len, column)) + 2


def to_text(data: bytes) -> str:
    """Return bytes as printable text."""
    return data.decode("utf-8", "backslashreplace")


def cell(value: Any) -> str:
    """Format a value for a table, in one line."""
    match value:
        case None:
            return ""
        case bytes():
            shown = printable(to_text(value))
        case bool():
            shown = "yes" if value else "no"
        case float():
            shown = f"{value:.10g}"
        case Mapping():
            shown = ", ".join(f"{cell(name)}={cell(each)}" for name, each in value.items())
        case list() | tuple():
            shown = ", ".join(map(cell, value))
        case _:
            shown = printable(str(value))
    return shown if len(shown) <= CELL_SIZE_MAX else shown[: CELL_SIZE_MAX - 1] + "…"


def counted(number: int, noun: str) -> str:
    """Return a number with what it counts, in the singular or plural: ``1 key``, ``2 entries``."""
    if number != 1:
        noun = _PLURALS.get(noun) or f"{noun}s"
    return f"{number:,} {noun}"


def shown_headers(headers: Mapping[str, bytes]) -> dict[str, Any]:
    """Return headers as people read them: the database's own times are not nanoseconds."""
    return {
        name: shown_time(int(value)) if name in TIME_HEADERS and value.isdigit() else value
        for name, value in headers.items()
    }


def plain(value: Any) -> Any:
    """Convert a value to what JSON can hold; see the module's docstring."""
    if isinstance(value, bytes):
        found = _bytes(value)
        return found if isinstance(found, str) else {"base64": found[0]}
    if isinstance(value, float):
        # JSON has no infinity or NaN; null would be ambiguous.
        return value if value - value == 0 else str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return plain({each.name: getattr(value, each.name) for each in fields(value)})
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return dict(_field(name, each) for name, each in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return value


def _field(name: Any, value: Any) -> tuple[str, Any]:
    if isinstance(name, bytes):
        name = to_text(name)
    if isinstance(value, bytes):
        found = _bytes(value)
        return (name, found) if isinstance(found, str) else (f"{name}_base64", found[0])
    return name, plain(value)


def _bytes(value: bytes) -> str | tuple[str]:
    """Return text, or base64 in a tuple."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return (base64.b64encode(value).decode(),)


def note(message: str) -> None:
    """Print a note on stderr."""
    sys.stderr.write(f"note: {printable(message)}\n")


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr while the block runs, if it is a terminal.

    It yields a function to call with the amount of progress.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def naming_lines(before: int, count: int) -> Iterator[None]:
    """Say in an error of the block which lines of the input were sent together."""
    try:
        yield
    except OnelogError as error:
        error.add_note(f"in lines {before + 1} to {before + count}")
        raise


# Protobuf messages


def to_document(message: Any, *, with_unset: bool = True) -> dict[str, Any]:
    """Convert a protobuf message to a document, by the proto names of its fields.

    ``with_unset``: all fields, else those that differ from their defaults.
    """
    if with_unset:
        return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}
    return {
        field.name: _value(message, field, with_unset=False) for field, _ in message.ListFields()
    }


def to_word(enum: Any, value: int) -> str:
    """Return a value of an enum as a word: ``leader`` for ROLE_LEADER."""
    return _word(enum.DESCRIPTOR, value)


def shown_hash(number: int) -> str:
    """Format a state hash."""
    return f"{number:016x}"


def enum_words(enum: Any) -> dict[str, int]:
    """Return the values of an enum by their words; ``enum`` is its descriptor."""
    return {_word(enum, number): number for number in enum.values_by_number}


def _value(message: Any, field: Any, *, with_unset: bool = True) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_map = field.message_type.fields_by_name["value"]
        return {
            str(key): _one(of_map, each, with_unset=with_unset)
            for key, each in sorted(value.items())
        }
    if field.is_repeated:
        return [_one(field, each, with_unset=with_unset) for each in value]
    if field.message_type is not None and not message.HasField(field.name):
        return None
    return _one(field, value, with_unset=with_unset)


def _one(field: Any, value: Any, *, with_unset: bool) -> Any:
    if field.message_type is not None:
        return to_document(value, with_unset=with_unset)
    if field.enum_type is not None:
        return _word(field.enum_type, value)
    # The fixed64 fields of the API are hashes, which are shown in hex.
    if field.type == field.TYPE_FIXED64:
        return shown_hash(value)
    return value


def _word(enum: Any, value: int) -> str:
    known = enum.values_by_number.get(value)
    if known is None:
        return str(value)
    name: str = known.name
    prefix = "".join(f"_{each}" if each.isupper() else each.upper() for each in enum.name)
    return name.removeprefix(prefix.lstrip("_") + "_").lower()


# Chart

WIDTH = 60
_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Draw values as bars in one line; if they do not all fit, the means of equal parts.

    A value that is not a number is a space.
    """
    scale = max((abs(each) for each in values if each - each == 0), default=0.0) or 1.0
    # Scaled to between -1 and 1, so that no calculation below overflows.
    numbers = [_mean([each / scale for each in part]) for part in _stretches(values, width)]
    finite = [each for each in numbers if each is not None]
    if not finite:
        return " " * len(numbers)
    low, high = min(finite), max(finite)
    step = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join(" " if each is None else _BARS[round((each - low) / step)] for each in numbers)


def _stretches(values: Sequence[float], width: int) -> list[Sequence[float]]:
    count = min(len(values), width)
    bounds = [at * len(values) // count for at in range(count + 1)] if count else [0]
    return [values[first:last] for first, last in pairwise(bounds)]


def _mean(values: Sequence[float]) -> float | None:
    finite = [each for each in values if each - each == 0]
    return sum(finite) / len(finite) if finite else None


def printable(text: str) -> str:
    """Escape control characters: names and values may have been written by anybody."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )
