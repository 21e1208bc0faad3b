"""Operands of operations as columns, for the views of queues and streams.

Each operation has a layout: a function that reads, through a ``Part``, the fields of all entries of
one type in the order of the byte tables, and names the column of each. ``Operands`` keeps one value
of a field for each entry and turns them into columns of rows. A column is null in the rows of an
operation that has no such operand.

Most entries become one row. An operation that names several things (the items of an ack, the
offsets of a delivery) ends with a counted list of items of one size, and becomes one row for each
item, in order; with an empty list it still has one row.

Headers and body, which a producer sent, are at the end of an entry. They are read last, only for
wanted rows, and only if a column of them is wanted.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.block import Block
from onelog.spark.columns.fields import Fields, Spans, gather
from onelog.spark.columns.headers import Headers, map_column, read_headers
from onelog.spark.columns.selection import Selection, is_one_of
from onelog.spark.columns.view import ENTRY_FIELDS, Output
from onelog.ual.errors import CorruptPayload

Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]
Numbers = NDArray[np.int64]

Layout = Callable[["Part"], None]

RANGES_MAX = 100  # of entries, at the end of an operation that passes over them


class _List(NamedTuple):
    """The counted lists at the end of the entries of one type."""

    rows: Rows  # the entries, as rows of the block
    at: Numbers  # where the first element of each is
    counts: Numbers
    size: int  # bytes of an element
    columns: Mapping[str, tuple[int, str]]  # place and type of a number within an element


class Operands:
    """The operands of the entries of a block, by name of column."""

    def __init__(self, block: Block, layouts: Mapping[int, Layout]) -> None:
        count = len(block)
        self.block = block
        self.row_counts = np.ones(count, np.int64)
        self.entries = np.arange(count)  # the entry of each row
        self.positions = np.zeros(count, np.int64)
        self._first_rows = self.entries  # the first row of each entry; -1: it has no row
        self._numbers: dict[str, tuple[NDArray[np.uint64], Mask]] = {}
        self._spans: dict[str, tuple[Spans, Mask]] = {}
        self._lists: list[_List] = []
        self._has_message = np.zeros(count, np.bool_)
        self._has_headers = np.zeros(count, np.bool_)
        self._message_at = np.zeros(count, np.int64)
        fields = Fields(block.data, block.start, block.end)
        self.namespace = fields.prefix()
        self.set_span("namespace", self.entries, self.namespace)
        types = block.headers["entry_type"]
        for kind in np.unique(types).tolist():
            rows = np.flatnonzero(types == kind)
            part = Part(self, fields.take(rows), rows)
            layouts[kind](part)
            part.fields.finish()

    def select(self, wanted: Mask) -> None:
        """Lay out the rows of wanted entries, and of no others."""
        chosen = np.flatnonzero(wanted)
        counts = self.row_counts[chosen]
        firsts = np.cumsum(counts) - counts
        self.entries = np.repeat(chosen, counts)
        self.positions = np.arange(len(self.entries)) - np.repeat(firsts, counts)
        self._first_rows = np.full(len(self.block), -1)
        self._first_rows[chosen] = firsts

    def in_namespaces(self, selection: Selection) -> Mask:
        """Tell which entries are in a wanted namespace."""
        return is_one_of(self.block.data, self.namespace, selection.namespaces)

    def number(self, name: str) -> tuple[NDArray[np.uint64], Mask]:
        """Return a number of each entry, and which entries have it."""
        found = self._numbers.get(name)
        if found is None:
            count = len(self.block)
            return np.zeros(count, np.uint64), np.zeros(count, np.bool_)
        return found

    def span(self, name: str) -> tuple[Spans, Mask]:
        """Return where some bytes of each entry are, and which entries have them."""
        found = self._spans.get(name)
        if found is None:
            count = len(self.block)
            nowhere = Spans(np.zeros(count, np.int64), np.zeros(count, np.int64))
            return nowhere, np.zeros(count, np.bool_)
        return found

    def set_number(self, name: str, rows: Rows, numbers: NDArray[Any]) -> None:
        """Set a number of some entries."""
        values, valid = self._numbers[name] = self.number(name)
        values[rows] = numbers
        valid[rows] = True

    def set_span(self, name: str, rows: Rows, spans: Spans) -> None:
        """Set where some bytes of some entries are."""
        place, valid = self._spans[name] = self.span(name)
        place.start[rows], place.end[rows] = spans
        valid[rows] = True

    def set_list(self, found: _List) -> None:
        """Set the lists of entries of one type; each item has a row."""
        self._lists.append(found)
        self.row_counts[found.rows] = np.maximum(found.counts, 1)

    def set_message(self, rows: Rows, at: Numbers, has_headers: Mask) -> None:
        """Set where the headers and bodies of some entries begin."""
        self._has_message[rows] = True
        self._message_at[rows] = at
        self._has_headers[rows] = has_headers

    def add_columns(self, output: Output, schema: pa.Schema, body: str | None = None) -> None:
        """Add the columns of ``schema``, each from the operand of its name.

        ``body`` names the column of message bodies. Columns that the view adds itself are not in
        ``schema``.
        """
        output.add_entry_columns(self.block, self.entries, self.positions)
        for field in schema:
            output.add(field.name, partial(self.column, field.name, field.type))
        if body is not None and output.wants("headers", body):
            message = _Message(self)
            output.add("headers", message.headers_column)
            output.add(body, message.body_column)

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return an operand of each row as a column."""
        if not self._is_anywhere(name):  # most operands are absent: saves a third of the time
            return pa.nulls(len(self.entries), kind)
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            spans, valid = self.span(name)
            found = arrays.binary(self.block.data, spans, valid=valid, rows=self.entries)
            return found if pa.types.is_binary(kind) else arrays.to_readable(found)
        values, valid = self.row_numbers(name)
        if pa.types.is_boolean(kind):
            return arrays.numbers(values != 0, kind, valid)
        return arrays.numbers(values, kind, valid)

    def _is_anywhere(self, name: str) -> bool:
        in_lists = any(name in each.columns for each in self._lists)
        return in_lists or name in self._numbers or name in self._spans

    def row_numbers(self, name: str) -> tuple[NDArray[np.uint64], Mask]:
        """Return a number of each row, from its entry or from its item of the entry's list."""
        by_entry, has_it = self.number(name)
        values, valid = by_entry[self.entries], has_it[self.entries]
        for each in self._lists:
            if name not in each.columns:
                continue
            place, kind = each.columns[name]
            kept = self._first_rows[each.rows] >= 0
            counts = each.counts[kept]
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            rows = np.repeat(self._first_rows[each.rows[kept]], counts) + within
            at = np.repeat(each.at[kept], counts) + within * each.size + place
            values[rows] = gather(self.block.data, at, np.dtype(kind))
            valid[rows] = True
        return values, valid

    def messages(self) -> tuple[Rows, Fields, Mask]:
        """Return the rows that carry a message, cursors to it, and which have headers."""
        rows = np.flatnonzero(self._has_message[self.entries])
        entries = self.entries[rows]
        ends = self.block.end[entries]
        fields = Fields(self.block.data, self._message_at[entries], ends)
        return rows, fields, self._has_headers[entries]


class Part:
    """The entries of one type; each call reads their next field into a named column.

    ``where`` tells which entries have the field; the column is null in the others.
    """

    def __init__(self, operands: Operands, fields: Fields, rows: Rows) -> None:
        self.fields = fields
        self._operands = operands
        self._rows = rows

    def index(self, *names: str) -> None:
        """Use the entry's own index, which is the id of what it creates."""
        for name in names:
            indexes = self._operands.block.headers["index"][self._rows]
            self._operands.set_number(name, self._rows, indexes)

    def u8(self, name: str, where: Mask | None = None) -> None:
        """Read a number of one byte."""
        if where is None or where.any():
            self._set_number(name, self.fields.u8(where), where)

    def u16(self, name: str, where: Mask | None = None) -> None:
        """Read a number of two bytes."""
        if where is None or where.any():
            self._set_number(name, self.fields.u16(where), where)

    def u32(self, name: str) -> None:
        """Read a number of four bytes."""
        self._set_number(name, self.fields.u32(), None)

    def u64(self, name: str, where: Mask | None = None) -> None:
        """Read a number of eight bytes."""
        if where is None or where.any():
            self._set_number(name, self.fields.u64(where), where)

    def bytes8(self, name: str, where: Mask | None = None) -> None:
        """Read bytes after a size of one byte."""
        if where is None or where.any():
            self._set_span(name, self.fields.bytes8(where), where)

    def name8(self, name: str, where: Mask) -> Mask:
        """Read bytes after a size of one byte, of which none means null; return where there are."""
        spans = self.fields.bytes8(where)
        has_any = spans.end > spans.start
        self._set_span(name, spans, has_any)
        return has_any

    def ranges(self, where: Mask) -> Mask:
        """Read ranges of entries at the end, which have no column; return where there are any."""
        fields = self.fields
        counts = fields.u16(where)
        if (counts > RANGES_MAX).any():
            raise CorruptPayload("too many ranges")
        last_before = np.zeros(len(counts), np.uint64)
        is_first = np.ones(len(counts), np.bool_)
        for rows, part in fields.each(counts):
            first, last = part.u64(), part.u64()
            if ((first <= last_before[rows]) & ~is_first[rows] | (first > last)).any():
                raise CorruptPayload("ranges do not ascend")
            last_before[rows], is_first[rows] = last, False
        return counts > 0

    def bytes16(self, name: str, where: Mask | None = None) -> None:
        """Read bytes after a size of two bytes."""
        if where is None or where.any():
            self._set_span(name, self.fields.bytes16(where), where)

    def options(self, known: int) -> NDArray[np.uint8]:
        """Read option bits; refuse an unknown one, which may change the layout."""
        options = self.fields.u8()
        if (options & np.uint8(0xFF ^ known)).any():
            raise CorruptPayload("an operation has an unknown option")
        return options

    def flag(self, name: str, options: NDArray[np.uint8], bit: int) -> None:
        """Use an option bit as an operand."""
        self._set_number(name, has(options, bit), None)

    def number(self, name: str, numbers: NDArray[Any], where: Mask) -> None:
        """Use a number that was read before, ``where`` it is valid."""
        if where.any():
            self._set_number(name, numbers, where)

    def span(self, name: str, spans: Spans) -> None:
        """Use bytes that were read before."""
        self._set_span(name, spans, None)

    def list(self, size: int, columns: Mapping[str, tuple[int, str]]) -> None:
        """Read a count and that many elements of ``size`` bytes; each element has a row.

        ``columns``: the offset and type of each number in an element, by name.
        """
        counts = self.fields.u16().astype(np.int64)
        at = self.fields.fixed(counts * size).start
        self._operands.set_list(_List(self._rows, at, counts, size, columns))

    def message(self, has_headers: Mask) -> None:
        """Note where headers, if any, and the body are; they are read later, if at all."""
        at = self.fields.rest().start
        self._operands.set_message(self._rows, at, has_headers)

    def _set_number(self, name: str, numbers: NDArray[Any], where: Mask | None) -> None:
        if where is None:
            self._operands.set_number(name, self._rows, numbers)
        else:
            self._operands.set_number(name, self._rows[where], numbers[where])

    def _set_span(self, name: str, spans: Spans, where: Mask | None) -> None:
        if where is None:
            self._operands.set_span(name, self._rows, spans)
        else:
            self._operands.set_span(name, self._rows[where], spans.take(where))


class _Message:
    """Headers and bodies of the rows that have them."""

    def __init__(self, operands: Operands) -> None:
        self._data = operands.block.data
        self._count = len(operands.entries)
        self._rows, fields, has_headers = operands.messages()
        self._headers: Headers = read_headers(fields, has_headers)
        self._body = fields.rest()

    def headers_column(self) -> pa.Array:
        return map_column(self._data, self._headers, self._rows, self._count)

    def body_column(self) -> pa.Array:
        if len(self._rows) == self._count:
            return arrays.binary(self._data, self._body)
        spans = Spans(np.zeros(self._count, np.int64), np.zeros(self._count, np.int64))
        spans.start[self._rows], spans.end[self._rows] = self._body
        valid = np.zeros(self._count, np.bool_)
        valid[self._rows] = True
        return arrays.binary(self._data, spans, valid=valid)


def has(options: NDArray[np.uint8], bit: int) -> Mask:
    """Tell which of some options have a bit set."""
    found: Mask = (options & np.uint8(bit)) != 0
    return found


def list_rows(
    block: Block, layouts: Mapping[int, Layout], with_list: frozenset[int]
) -> NDArray[np.int64]:
    """Return the number of rows of each entry; ``with_list``: types that may have several."""
    counts = np.ones(len(block), np.int64)
    several = np.array(sorted(with_list), np.uint16)
    rows = np.flatnonzero(np.isin(block.headers["entry_type"], several))
    if len(rows):
        counts[rows] = Operands(block.select(rows), layouts).row_counts
    return counts


def own_schema(*fields: pa.Field) -> pa.Schema:
    """Return the columns that a view of operations has besides those of every entry."""
    return pa.schema([pa.field("namespace", pa.string(), nullable=False), *fields])


def whole_schema(own: pa.Schema) -> pa.Schema:
    """Return all columns of a view of operations."""
    return pa.schema([*ENTRY_FIELDS, *own])
