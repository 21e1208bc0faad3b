"""What a view is, and what all views share: the columns of an entry's header.

A view turns a block into rows. A ``View`` describes it: its columns, the entry types that have rows
in it, and two functions. ``count`` returns the number of rows of each entry, so that a block with
many rows is decoded in parts of at most ``BATCH_ROWS_MAX``. ``decode`` fills an ``Output``. Rows
are in the order of the log: by index, then by position within an entry.

``Output`` holds a function for each column, which is called only if the column is wanted.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.block import TYPE_BATCH, Block
from onelog.spark.columns.operations import NESTED, OPERATIONS, OWNERS
from onelog.spark.columns.selection import Selection

# Rows of one record batch, unless a single entry has more.
BATCH_ROWS_MAX = 131_072

Rows = NDArray[np.intp]

_OPERATION_NAMES = [(OPERATIONS | NESTED).get(number) for number in range((len(OWNERS) << 8) + 1)]

# What every view of entries has; a row is identified by shard, index and position.
ENTRY_FIELDS = (
    pa.field("shard", pa.int32(), nullable=False),
    pa.field("index", pa.int64(), nullable=False),
    pa.field("position", pa.int32(), nullable=False),
    pa.field("term", pa.int64(), nullable=False),
    pa.field("timestamp", arrays.TIMESTAMP, nullable=False),
    pa.field("timestamp_ns", pa.int64(), nullable=False),
    pa.field("operation", pa.string()),
    pa.field("transaction", pa.int64()),
)


@dataclass(frozen=True, slots=True)
class Request:
    """What a reader wants of a view; it travels with every task."""

    selection: Selection = field(default_factory=Selection)
    columns: frozenset[str] | None = None  # None: all
    queue_names: Mapping[int, str] = field(default_factory=dict)  # of the queues that are known


class Output:
    """The columns of one batch, each made when it is wanted."""

    def __init__(self, request: Request, schema: pa.Schema) -> None:
        self.request = request
        self._schema = schema
        self._makers: dict[str, Callable[[], pa.Array]] = {}
        self.row_count = 0  # set by the view

    def wants(self, *names: str) -> bool:
        """Tell whether any of some columns is wanted."""
        wanted = self.request.columns
        return wanted is None or not wanted.isdisjoint(names)

    def add(self, name: str, make: Callable[[], pa.Array]) -> None:
        """Add the function that makes a column."""
        assert name not in self._makers, name
        self._makers[name] = make

    def add_entry_columns(
        self,
        block: Block,
        rows: Rows,
        position: NDArray[np.int64],
        types: NDArray[np.uint16] | None = None,
    ) -> None:
        """Add the columns of every view; ``rows``: each row's entry, ``position``: its place in it.

        ``types``: the type that names the operation of each row, if it is not the type of its
        entry.
        """
        self.row_count = len(rows)
        headers = block.headers
        in_batch = block.transaction[rows] != 0

        def kinds() -> NDArray[np.uint16]:
            return headers["entry_type"][rows] if types is None else types

        self.add("shard", lambda: arrays.constant(block.shard, len(rows), pa.int32()))
        self.add("index", lambda: arrays.numbers(headers["index"][rows]))
        self.add("position", lambda: arrays.numbers(position, pa.int32()))
        self.add("term", lambda: arrays.numbers(headers["term"][rows]))
        self.add("timestamp", lambda: arrays.timestamps(headers["timestamp_ns"][rows]))
        self.add("timestamp_ns", lambda: arrays.numbers(headers["timestamp_ns"][rows]))
        self.add("operation", lambda: operation_names(kinds()))
        self.add("transaction", lambda: arrays.numbers(block.transaction[rows], valid=in_batch))

    def clear(self) -> None:
        """Drop the functions that make columns.

        They refer to this object and to the block. This cycle would keep the block's bytes, which
        may be a whole file, in memory until the garbage collector runs.
        """
        self._makers.clear()

    def batch(self) -> pa.RecordBatch:
        """Return the wanted columns, in the order of the view's schema."""
        fields = [each for each in self._schema if self.wants(each.name)]
        columns = [self._makers[each.name]() for each in fields]
        schema = pa.schema(fields)
        if not columns:  # only the number of rows is wanted
            return pa.RecordBatch.from_arrays([pa.nulls(self.row_count)], [""]).select([])
        return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class View:
    """A table over entries of the log."""

    name: str
    schema: pa.Schema
    types: frozenset[int] | None  # entry types that have rows; None: all
    count: Callable[[Block], NDArray[np.int64]] | None  # rows of each entry; None: one each
    decode: Callable[[Block, Output], None]
    is_replayed: bool = False  # its rows are changes, which only replay shows

    @property
    def shows_state(self) -> bool:
        """Whether it is a table of the state, in which no entry has rows."""
        return self.types is not None and not self.types

    def batches(self, block: Block, request: Request) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of a block, in order and in bounded batches."""
        for part in self._parts(block):
            output = Output(request, self.schema)
            self.decode(part, output)
            batch = output.batch() if output.row_count else None
            output.clear()
            if batch is not None:
                yield batch

    def narrowed(self, selection: Selection) -> frozenset[int] | None:
        """Return the entry types that can have rows under a selection; None: all."""
        if self.types is None or selection.types is None:
            return selection.types if self.types is None else self.types
        return self.types & selection.types

    def _parts(self, block: Block) -> Iterator[Block]:
        if self.count is None:
            yield block
            return
        ends = np.cumsum(self.count(block))
        first = 0
        while first < len(block):
            before = ends[first - 1] if first else 0
            stop = int(np.searchsorted(ends, before + BATCH_ROWS_MAX, "right"))
            stop = max(stop, first + 1)
            yield block if stop - first == len(block) else block.select(np.arange(first, stop))
            first = stop


def operation_names(entry_types: NDArray[np.uint16]) -> pa.Array:
    """Return the names of operations; null for a type unknown to this version."""
    codes = np.minimum(entry_types, len(_OPERATION_NAMES) - 1)
    return arrays.named(codes, _OPERATION_NAMES)


assert OPERATIONS[TYPE_BATCH] == "batch"
