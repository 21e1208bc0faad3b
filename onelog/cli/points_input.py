"""Points as people and programs write them: lines like those of other databases, and CSV.

A line is ``MEASUREMENT,TAG=VALUE FIELD=VALUE,FIELD=VALUE [TIME]``. Numbers are floats, ``3i`` is an
integer, ``true`` and ``false`` are bools. A backslash takes the meaning of a space, a comma or an
equals sign away. Without a time it is now.

Whatever is wrong is refused with its line. Points are given on in chunks of bounded size; those of
one series and the same fields become arrays.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from onelog.cli.failure import CommandFailed
from onelog.cli.values import time_ns

if TYPE_CHECKING:
    from onelog.client.series_arrays import SeriesData

CHUNK_POINTS = 5_000

_ESCAPED = re.compile(r"\\([ ,=\\])")
_BOOLS = {"true": True, "t": True, "false": False, "f": False}
_I64 = 1 << 63


class Point(NamedTuple):
    """One point: values of several fields at a time."""

    measurement: str
    tags: tuple[tuple[str, str], ...]
    fields: dict[str, float | int | bool]
    time_ns: int


def point_of_line(text: str, where: str, now_ns: int) -> Point:
    """Return the point of a line."""
    parts = [part for part in _split(text, " ") if part]
    if len(parts) not in (2, 3):
        raise _wrong(where, f"'{text}' is not MEASUREMENT[,TAG=VALUE] FIELD=VALUE [TIME]")
    name, *tags = _split(parts[0], ",")
    fields = {field: _value(value, where) for field, value in _pairs(_split(parts[1], ","), where)}
    at = time_of(parts[2], where) if len(parts) == 3 else now_ns
    return Point(_plain(name), tuple(sorted(_pairs(tags, where))), fields, at)


def points_of_csv(
    lines: Iterable[bytes],
    measurement: str,
    time_column: str,
    tag_columns: Sequence[str],
    integer_columns: Sequence[str],
) -> Iterator[Point]:
    """Yield the points of a CSV file; an empty cell is no value."""
    rows = _rows(lines)
    _, columns = next(rows, (0, []))
    if not columns:
        raise CommandFailed("POINTS_INVALID", "nothing was read; the first line names the columns")
    for column in (time_column, *tag_columns, *integer_columns):
        if column not in columns:
            raise CommandFailed(
                "POINTS_INVALID", f"there is no column '{column}' in {', '.join(columns)}"
            )
    others = [each for each in columns if each not in (time_column, *tag_columns)]
    for number, cells in rows:
        where = f"line {number}"
        if len(cells) != len(columns):
            raise _wrong(where, f"has not {len(columns)} columns")
        row = dict(zip(columns, cells, strict=True))
        fields = {
            name: _value(row[name] + "i" * (name in integer_columns), where)
            for name in others
            if row[name]
        }
        if fields:
            tags = tuple(sorted((name, row[name]) for name in tag_columns if row[name]))
            yield Point(measurement, tags, fields, time_of(row[time_column], where))


def _rows(lines: Iterable[bytes]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file that are not empty, each with the number of its line."""
    rows = csv.reader(line.decode("utf-8-sig", "replace") for line in lines)
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:
        raise _wrong(f"line {rows.line_num}", str(error)) from None


def chunks(points: Iterable[Point]) -> Iterator[tuple[str, int, "list[SeriesData]"]]:
    """Yield measurements with how many points, as arrays by series."""
    from onelog.client.series_arrays import SeriesData

    source = iter(points)
    while chunk := list(islice(source, CHUNK_POINTS)):
        by_measurement: dict[str, dict[Any, list[Point]]] = {}
        for point in chunk:
            shape = (point.tags, tuple((name, type(each)) for name, each in point.fields.items()))
            by_measurement.setdefault(point.measurement, {}).setdefault(shape, []).append(point)
        for measurement, series in by_measurement.items():
            arrays = [_arrays(same, SeriesData) for same in series.values()]
            yield measurement, sum(map(len, series.values())), arrays


def _arrays(points: Sequence[Point], make: Any) -> Any:
    import numpy as np

    first = points[0]
    return make(
        dict(first.tags),
        np.array([point.time_ns for point in points], dtype=np.int64),
        {name: np.array([point.fields[name] for point in points]) for name in first.fields},
    )


def time_of(text: str, where: str) -> int:
    """Return a time of the input."""
    try:
        found = time_ns(text)
    except typer.BadParameter as error:
        raise _wrong(where, error.message) from None
    if found >= _I64:
        raise _wrong(where, f"{text} is too late a time")
    return found


def _value(text: str, where: str) -> float | int | bool:
    if text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    try:
        if text.endswith("i"):
            number = int(text[:-1])
            if -_I64 <= number < _I64:
                return number
        return float(text)
    except ValueError:
        raise _wrong(
            where, f"'{text}' is no number, no integer like 3i, no true or false"
        ) from None


def _split(text: str, separator: str) -> list[str]:
    """Split at separators that no backslash stands before; escapes stay."""
    parts, at = [io.StringIO()], 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            parts[-1].write(text[at : at + 2])
            at += 2
            continue
        if text[at] == separator:
            parts.append(io.StringIO())
        else:
            parts[-1].write(text[at])
        at += 1
    return [part.getvalue() for part in parts]


def _pairs(texts: Sequence[str], where: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        parts = _split(text, "=")
        if len(parts) != 2 or not all(parts):
            raise _wrong(where, f"'{text}' is not NAME=VALUE")
        pairs.append((_plain(parts[0]), _plain(parts[1])))
    return pairs


def _plain(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)


def _wrong(where: str, why: str) -> CommandFailed:
    return CommandFailed("POINTS_INVALID", f"{where}: {why}")
