"""Operands of time series operations other than points: settings, rules, ranges, blocks.

They are read once for each entry, all entries of one operation together, and repeated for the rows
of the entry. An operand that no entry of a block has costs only a column of nulls.
"""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.block import Block
from onelog.spark.columns.fields import Fields, Spans, ragged
from onelog.spark.columns.operations import TYPES
from onelog.ual.errors import CorruptPayload

POLICY_NAMES = (None, "last", "first", "reject")
AGGREGATE_NAMES = (None, "mean", "sum", "count", "min", "max", "first", "last", "stddev")
SIGNS = (None, "=", "!=", "=~", "!~")

# Columns of the view behind those of a point, in order.
OPERANDS: dict[str, pa.DataType] = {
    "source": pa.string(),
    "rule": pa.string(),
    "target": pa.string(),
    "window_ns": pa.int64(),
    "delay_ns": pa.int64(),
    "aggregates": pa.list_(pa.string()),
    "policy": pa.string(),
    "retention_ns": pa.int64(),
    "series_max": pa.int64(),
    "matchers": pa.string(),
    "first_ns": pa.int64(),
    "last_ns": pa.int64(),
    "from_ns": pa.int64(),
    "to_ns": pa.int64(),
    "cutoff_ns": pa.int64(),
    "created_index": pa.int64(),
    "config_index": pa.int64(),
    "rule_index": pa.int64(),
    "slice_index": pa.int64(),
    "after_series": pa.int64(),
    "after_field": pa.int32(),
    "last_series": pa.int64(),
    "last_field": pa.int32(),
    "series_id": pa.int64(),
    "field_id": pa.int32(),
    "base": pa.int64(),
    "taken": pa.int64(),
    "points": pa.int64(),
}

_TEXTS = ("measurement", "source", "rule", "target")
_RANGE_SIZE = 24  # first, last and after of a delete, behind its matchers
_MARK = 0x80  # of a delete whose ranges are merged, in the count of its matchers
_U16 = struct.Struct("<H")

Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]


@dataclass(slots=True)
class Text:
    """A text operand of each entry, where it has one."""

    spans: Spans
    valid: Mask


@dataclass(slots=True)
class Operands:
    """The operands of each entry of a block, other than points."""

    count: int
    texts: dict[str, Text] = field(default_factory=dict)
    numbers: dict[str, tuple[NDArray[np.int64], Mask]] = field(default_factory=dict)
    # Columns with one value for each entry; null for entries without the operand.
    made: dict[str, pa.Array] = field(default_factory=dict)

    def columns(
        self, data: NDArray[np.uint8], find_rows: Callable[[], Rows]
    ) -> Iterator[tuple[str, Callable[[], pa.Array]]]:
        """Yield each operand's name and a function that makes its column of rows."""
        for name, kind in OPERANDS.items():
            yield name, partial(self._column, name, kind, data, find_rows)

    def _column(
        self, name: str, kind: pa.DataType, data: NDArray[np.uint8], find_rows: Callable[[], Rows]
    ) -> pa.Array:
        rows = find_rows()
        if name in self.numbers:
            values, valid = self.numbers[name]
            return arrays.numbers(values[rows], kind, valid[rows])
        if name in self.made:
            return self.made[name].take(pa.array(rows))
        text = self.texts.get(name)
        if text is not None and text.valid.any():
            return arrays.text(data, text.spans, valid=text.valid, rows=rows)
        return pa.nulls(len(rows), kind)


class _Reader(Fields):
    """Reads operands of the entries of one operation into the columns of all entries."""

    __slots__ = ("_operands", "_rows")

    def __init__(self, block: Block, rows: Rows, operands: Operands) -> None:
        super().__init__(block.data, block.start[rows], block.end[rows])
        self._operands = operands
        self._rows = rows
        self.prefix()

    def text(self, name: str) -> None:
        """Read a name."""
        found = self._operands.texts[name]
        found.spans.start[self._rows], found.spans.end[self._rows] = self.bytes8()
        found.valid[self._rows] = True

    def numbers(self, **names: str) -> None:
        """Read numbers, in order: ``name="u64"``."""
        for name, kind in names.items():
            self.number(name, getattr(self, kind)())

    def number(self, name: str, found: NDArray[Any]) -> None:
        """Keep a number of each entry."""
        if name not in self._operands.numbers:
            count = self._operands.count
            self._operands.numbers[name] = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        values, valid = self._operands.numbers[name]
        values[self._rows] = found.view(np.int64) if found.dtype == np.uint64 else found
        valid[self._rows] = True

    def names(self, name: str, codes: NDArray[Any], names: tuple[str | None, ...]) -> None:
        """Keep a name of each entry, given as a position in ``names``."""
        if (codes < 1).any() or (codes >= len(names)).any():
            raise CorruptPayload(f"an unknown {name}")
        every = np.zeros(self._operands.count, np.int64)
        every[self._rows] = codes
        before = self._operands.made.get(name)
        found = arrays.named(every, names)
        self._operands.made[name] = found if before is None else pc.coalesce(found, before)

    def settings(self) -> None:
        """Read the settings of a measurement."""
        self.names("policy", self.u8(), POLICY_NAMES)
        self.numbers(retention_ns="u64", series_max="u32")
        self.finish()

    def aggregates(self) -> None:
        """Read the aggregates of a rule, a byte each."""
        spans = self.bytes8()
        codes = self.data[ragged(spans.start, spans.size)]
        if (codes < 1).any() or (codes >= len(AGGREGATE_NAMES)).any():
            raise CorruptPayload("an unknown aggregate")
        sizes = np.zeros(self._operands.count, np.int64)
        sizes[self._rows] = spans.size
        offsets = pa.array(np.append(0, np.cumsum(sizes)), pa.int32())
        absent = np.ones(self._operands.count, np.bool_)
        absent[self._rows] = False
        self._operands.made["aggregates"] = pa.ListArray.from_arrays(
            offsets, arrays.named(codes, AGGREGATE_NAMES), mask=pa.array(absent)
        )

    def matchers(self) -> None:
        """Read matchers, behind which a range follows, as text."""
        found: list[str | None] = [None] * self._operands.count
        sizes = []
        ends = self.end - _RANGE_SIZE
        for row, start, end in zip(
            self._rows.tolist(), self.at.tolist(), ends.tolist(), strict=True
        ):
            found[row], size = format_matchers(self.data[start:end].tobytes())
            sizes.append(size)
        self.fixed(np.array(sizes, np.int64))
        self._operands.made["matchers"] = pa.array(found, pa.string())


def read_operands(block: Block) -> Operands:
    """Read the operands of the entries of a block, other than points."""
    count = len(block)
    operands = Operands(count)
    for name in _TEXTS:
        spans = Spans(block.start.copy(), block.start.copy())
        operands.texts[name] = Text(spans, np.zeros(count, np.bool_))
    types = block.headers["entry_type"]
    for operation, read in _READERS.items():
        rows = np.flatnonzero(types == TYPES["timeseries", operation])
        if len(rows):
            read(_Reader(block, rows, operands))
    return operands


def format_matchers(data: bytes) -> tuple[str, int]:
    """Return the matchers that bytes begin with as text, and their size.

    The text is like ``host=~"web-.*",zone!="eu"``; values are quoted as in JSON.
    """
    try:
        count, at = data[0] & ~_MARK, 1
        parts = []
        for _ in range(count):
            sign, tag_end = SIGNS[data[at]], at + 2 + data[at + 1]
            (size,) = _U16.unpack_from(data, tag_end)
            tag, value = data[at + 2 : tag_end].decode(), data[tag_end + 2 : tag_end + 2 + size]
            at = tag_end + 2 + size
            if sign is None:
                break
            parts.append(f"{tag}{sign}{json.dumps(value.decode(), ensure_ascii=False)}")
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise CorruptPayload("matchers that cannot be read") from error
    if at > len(data) or len(parts) != count:
        raise CorruptPayload("matchers that cannot be read")
    return ",".join(parts), at


def _block(reader: _Reader) -> None:
    reader.numbers(series_id="u64", field_id="u16", config_index="u64", base="u64")
    reader.numbers(taken="u32", points="u32", first_ns="i64", last_ns="i64")
    reader.skip(16)  # hashes; the body follows


def _create(reader: _Reader) -> None:
    reader.text("measurement")
    reader.settings()


def _drop(reader: _Reader) -> None:
    reader.text("measurement")
    _skip_bound(reader)
    reader.finish()


def _delete(reader: _Reader) -> None:
    reader.text("measurement")
    reader.matchers()
    reader.numbers(first_ns="i64", last_ns="i64", after_series="u64")
    _skip_bound(reader)
    reader.finish()


def _skip_bound(reader: _Reader) -> None:
    """Pass over the index that entries have which continue a deletion."""
    reader.skip(8, reader.at < reader.end)


def _rule_set(reader: _Reader) -> None:
    for name in ("measurement", "rule", "target"):
        reader.text(name)
    reader.numbers(window_ns="u64", delay_ns="u64")
    reader.aggregates()
    reader.finish()


def _rule_drop(reader: _Reader) -> None:
    reader.text("measurement")
    reader.text("rule")
    reader.finish()


def _trim(reader: _Reader) -> None:
    reader.text("measurement")
    reader.numbers(created_index="u64", cutoff_ns="i64", after_series="u64")
    reader.finish()


def _rollup(reader: _Reader) -> None:
    reader.text("source")
    reader.text("rule")
    reader.numbers(created_index="u64", rule_index="u64", slice_index="u64")
    reader.numbers(from_ns="i64", to_ns="i64")
    reader.numbers(after_series="u64", after_field="u16", last_series="u64", last_field="u16")


def _rollup_begin(reader: _Reader) -> None:
    reader.text("measurement")
    reader.text("rule")
    reader.numbers(created_index="u64", rule_index="u64", to_ns="i64")
    reader.finish()


_READERS: dict[str, Callable[[_Reader], None]] = {
    "ts_block": _block,
    "measurement_create": _create,
    "measurement_configure": _create,
    "measurement_drop": _drop,
    "ts_delete": _delete,
    "rule_set": _rule_set,
    "rule_drop": _rule_drop,
    "ts_trim": _trim,
    "ts_rollup": _rollup,
    "ts_rollup_begin": _rollup_begin,
}
