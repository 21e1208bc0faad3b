"""Results as tables: in notebooks, as pandas.DataFrame and as pyarrow.Table.

``Rows`` is the list that methods with several results return. A result has one row and a column for
each of its fields; a series of points has a row for each time, and a column for each tag and field.
Values stay as they are: bytes are bytes, times are nanoseconds.

pandas and pyarrow are not needed otherwise, so they are imported when they are used.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from importlib import import_module
from typing import Any, TypeVar

from onelog.errors import FailedPrecondition

T = TypeVar("T")
Columns = dict[str, list[Any]]

# Rows of a table in a notebook, and characters of a cell.
SHOWN_ROWS_MAX = 60
SHOWN_SIZE_MAX = 120


class Rows(list[T]):
    """A list of results that can be shown and converted as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return the table as notebooks show it."""
        if not self:
            return "<p>no results</p>"
        shown = to_columns(self[:SHOWN_ROWS_MAX])
        table = to_html(shown, SHOWN_ROWS_MAX)
        left = len(self) - SHOWN_ROWS_MAX
        return table + (f"<p>… {left:,} more</p>" if left > 0 else "")

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame, with a row for each result."""
        library = import_library("pandas", "to_pandas")
        columns = to_columns(self)
        return library.DataFrame(
            {name: _to_pandas_column(library, each) for name, each in columns.items()}
        )

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table, with a row for each result."""
        arrow = import_library("pyarrow", "to_arrow")
        columns = to_columns(self)
        return arrow.table({name: _to_arrow_array(arrow, each) for name, each in columns.items()})


class Row:
    """Base of a result: notebooks show it as a table with one row."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return the table as notebooks show it."""
        return to_html(to_columns([self]), 1)


def import_library(name: str, method: str) -> Any:
    """Import an optional library; FailedPrecondition (MODULE_MISSING) if it is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        what = f"{method} needs {name}: pip install {name}"
        raise FailedPrecondition(what, reason="MODULE_MISSING") from None


def to_columns(results: Sequence[Any]) -> Columns:
    """Return the columns of a table; where a result has no value there is None."""
    tables = [_to_table(each) for each in results]
    names = dict.fromkeys(name for _, table in tables for name in table)
    columns: Columns = {name: [] for name in names}
    for length, table in tables:
        for name, column in columns.items():
            column += table.get(name, [None] * length)
    return columns


def _to_table(result: Any) -> tuple[int, Columns]:
    """Return the number of rows of a result, and its columns."""
    to_table = getattr(result, "_to_columns", None)
    if to_table is not None:
        return len(result), to_table()
    if is_dataclass(result):
        return 1, {each.name: [getattr(result, each.name)] for each in fields(result)}
    if result is None:
        return 1, {}
    return 1, {"value": [result]}


def to_html(columns: Columns, rows_max: int) -> str:
    """Return a table of HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = list(zip(*columns.values(), strict=True))[:rows_max]
    body = "".join(f"<tr>{''.join(map(_to_cell, line))}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _to_cell(value: Any) -> str:
    if isinstance(value, bytes):
        try:
            shown = value.decode()
        except UnicodeDecodeError:
            shown = value.hex(" ")
    else:
        shown = "" if value is None else str(value)
    if len(shown) > SHOWN_SIZE_MAX:
        shown = shown[: SHOWN_SIZE_MAX - 1] + "…"
    return f"<td>{escape(shown)}</td>"


def _to_pandas_column(library: Any, values: list[Any]) -> Any:
    """Return a column; integers with a gap stay integers, which floats would round."""
    kinds = set(map(type, values))
    for kind, name in ((int, "Int64"), (bool, "boolean")):
        if kinds == {kind, type(None)}:
            return library.array(values, dtype=name)
    return values


def _to_arrow_array(arrow: Any, values: Iterable[Any]) -> Any:
    plain = [_to_plain(each) for each in values]
    if any(isinstance(each, Mapping) for each in plain):
        # As a map: a struct would give each row the names of all rows.
        pairs = [None if each is None else list(each.items()) for each in plain]
        inner = arrow.array([value for each in pairs for _, value in each or ()])
        kind = arrow.binary() if arrow.types.is_null(inner.type) else inner.type
        return arrow.array(pairs, arrow.map_(arrow.string(), kind))
    return arrow.array(plain)


def _to_plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: str(getattr(value, each.name)) for each in fields(value)}
    return list(value) if isinstance(value, tuple) else value
