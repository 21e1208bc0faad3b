"""The files of an export: a task writes the rows of one split, one file for each day.

A file is named after its content: ``view/shard=00000/date=2026-11-18/``, then the shard and the
first and last index of the split. For a state, both are its index. The day is that of the log time,
in UTC. Shard and day are in the path and not in the files, as in Spark's partitioned tables.

The bytes of a file follow from its split alone. Where a row group ends depends on the plain sizes
of the entries, or of the rows in views of state and changes (``row_sizes``), and not on the batches
in which they were read. A task that runs twice, even against another node, writes the same file, so
attempts need no coordination.

An unfinished file is discarded when its task fails; a killed task leaves a temporary file, which
the next export removes.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet
from numpy.typing import NDArray

from onelog.spark.changes import ChangesPart, ChangesTable
from onelog.spark.columns.arrays import conform
from onelog.spark.columns.block import Block
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import Request, View
from onelog.spark.export.journal import SplitFacts
from onelog.spark.export.mix import add_mixes, compute_mix
from onelog.spark.export.receipt import FileFacts
from onelog.spark.export.target import Output, Target
from onelog.spark.export.text import csv_columns, csv_schema, json_lines
from onelog.spark.origin import Range, Split
from onelog.spark.state import StatePart, StateTable
from onelog.spark.table import Table
from onelog.ual.entry import HEADER_SIZE


def row_sizes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the plain size of each row; a row has the same size in any batch."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        sizes += _sizes(column)
    return sizes


def _sizes(values: pa.Array) -> NDArray[np.int64]:
    """Return the plain size of each value; a null of variable width has size 0."""
    kind = values.type
    if pa.types.is_map(kind):
        return _sizes(values.cast(pa.list_(pa.struct([
            pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type),
        ]))))  # fmt: skip
    if pa.types.is_list(kind):
        counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(counts, dtype=np.int64)
        before = np.append(0, np.cumsum(_sizes(values.flatten())))
        found: NDArray[np.int64] = before[ends] - before[ends - counts]
        return found
    if pa.types.is_struct(kind):
        found = np.zeros(len(values), np.int64)
        for number in range(kind.num_fields):
            found += _sizes(pc.struct_field(values, [number]))
        return found
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
        return np.asarray(lengths, np.int64)
    return np.full(len(values), (kind.bit_width + 7) // 8, np.int64)


ExportedTable = Table | StateTable | ChangesTable

# Plain bytes of entries or rows in a row group of Parquet or a stripe of ORC; also in text formats.
ROW_GROUP_BYTES = 16 << 20
TEXT_BYTES = 2 << 20  # of columns that are converted to text at a time
ZSTD_LEVEL = 1
DAY_NS = 86_400 * 10**9
PARTITION_COLUMNS = ("shard", "date")
EXTENSIONS = {"parquet": "parquet", "orc": "orc", "json": "json", "csv": "csv"}

# Ascending numbers, whose differences are small.
_DELTA_CODED = frozenset(("index", "timestamp", "timestamp_ns"))
# Texts with few distinct values. Bodies and keys rarely repeat, and trying takes time.
_DICTIONARY_CODED = frozenset(("operation", "owner", "namespace", "stream", "queue", "measurement"))


def file_name(view: str, split: Split, day: str, file_format: str) -> str:
    """Return the name of a file in its target."""
    stem = f"{split.shard:05d}-{split.first_index:010d}-{split.last_index:010d}"
    extension = EXTENSIONS[file_format]
    return f"{view}/shard={split.shard:05d}/date={day}/{stem}.{extension}"


def file_schema(view: View, columns: tuple[str, ...] | None) -> pa.Schema:
    """Return the columns of a file, in the order of the view: shard and day are in the path."""
    return pa.schema(
        [
            each
            for each in view.schema
            if each.name not in PARTITION_COLUMNS and (columns is None or each.name in columns)
        ]
    )


def day_text(number: int) -> str:
    """Return a day by its number since 1970."""
    return (date(1970, 1, 1) + timedelta(days=number)).isoformat()


@dataclass(frozen=True)
class SplitTask:
    """Writes a split of a table into a target; it pickles and travels to tasks."""

    table: ExportedTable
    target: Target
    format: str
    columns: tuple[str, ...]  # of the files

    @property
    def view(self) -> View:
        """The view that is exported."""
        return self.table.options.view

    def __call__(self, number: int, split: Split) -> SplitFacts:
        """Write the files of a split."""
        writer = _SplitWriter(self, split)
        table = self.table
        try:
            if isinstance(table, Table):
                self._write_entries(table, split, writer)
            elif isinstance(table, StateTable):
                self._write_state(table, split, writer)
            else:
                self._write_changes(table, split, writer)
            return writer.finish(number)
        except BaseException:
            writer.discard()
            raise

    def _write_entries(self, table: Table, split: Split, writer: "_SplitWriter") -> None:
        request = table.request(split.shard, frozenset(self.columns))
        for block in table.origin.blocks(split, request.selection):
            writer.add_entries(block, request)

    def _write_state(self, table: StateTable, split: Split, writer: "_SplitWriter") -> None:
        schema = file_schema(self.view, self.columns)
        part = StatePart(split.shard, split.last_index)
        with table.open(part, frozenset(schema.names)) as (time_ns, batches):
            writer.note_state(time_ns)
            for batch in batches:
                times = np.full(batch.num_rows, time_ns, np.int64)
                writer.add_rows(conform(batch, schema), times)

    def _write_changes(self, table: ChangesTable, split: Split, writer: "_SplitWriter") -> None:
        """Write changes; the log is read again for the entries' headers, which is cheap."""
        schema = file_schema(self.view, self.columns)
        origin, read = table.origin, table.options
        times = Selection(from_time_ns=read.from_time_ns, to_time_ns=read.to_time_ns)
        entries = Range(split.shard, split.first_index, split.last_index)
        for each in origin.splits([entries], times):
            for block in origin.blocks(each, times):
                writer.count(block)
        last = next(each.last_index for each in table.cut.shards if each.shard == split.shard)
        end = split.last_index
        if end < last:
            end = origin.group_end(split.shard, end, last)
        part = ChangesPart(split.shard, split.first_index, split.last_index, end)
        for batch in table.batches(part):
            writer.add_rows(conform(batch, schema), batch.column("timestamp_ns").to_numpy())


class _Counts:
    """Counts the entries that a file was made of: those of its split and day."""

    def __init__(self) -> None:
        self.entries = 0
        self.mix = 0
        self.first_index = self.last_index = 0

    def add(self, block: Block) -> None:
        """Add entries that follow those added before."""
        indexes = block.headers["index"]
        self.first_index = self.first_index or int(indexes[0])
        self.last_index = int(indexes[-1])
        self.entries += len(block)
        self.mix = add_mixes(self.mix, compute_mix(block.headers))


class _SplitWriter:
    """Divides a split into days; entries and rows come in the order of their times."""

    def __init__(self, task: SplitTask, split: Split) -> None:
        self._task = task
        self._split = split
        self._day: _DayFile | None = None
        self._day_number = -1
        self._counts: dict[int, _Counts] = {}
        self._files: list[FileFacts] = []

    def add_entries(self, block: Block, request: Request) -> None:
        """Write the rows of a block."""
        for number, part in _days(block):
            self._count(number, part)
            self._open_day(number).add_entries(part, request)

    def count(self, block: Block) -> None:
        """Count entries whose rows are added separately."""
        for number, part in _days(block):
            self._count(number, part)

    def note_state(self, time_ns: int) -> None:
        """Note that the rows are a state: the one at the end of the split."""
        counts = self._counts[time_ns // DAY_NS] = _Counts()
        counts.first_index = counts.last_index = self._split.last_index

    def add_rows(self, batch: pa.RecordBatch, times_ns: NDArray[np.int64]) -> None:
        """Write rows, each with its log time."""
        days = times_ns // DAY_NS
        for first, stop in _runs(days):
            day = self._open_day(int(days[first]))
            day.add_rows(batch.slice(first, stop - first))

    def finish(self, number: int) -> SplitFacts:
        """Return what was written."""
        self._close_day()
        entries = mix = 0
        for each in self._counts.values():
            entries += each.entries
            mix = add_mixes(mix, each.mix)
        return SplitFacts(number, entries, mix, tuple(self._files))

    def discard(self) -> None:
        """Leave nothing of an unfinished file."""
        if self._day is not None:
            self._day.discard()

    def _count(self, number: int, part: Block) -> None:
        self._counts.setdefault(number, _Counts()).add(part)

    def _open_day(self, number: int) -> "_DayFile":
        if self._day is None or number != self._day_number:
            self._close_day()
            self._day_number = number
            counts = self._counts[number]
            self._day = _DayFile(self._task, self._split, day_text(number), counts)
        return self._day

    def _close_day(self) -> None:
        if self._day is not None:
            facts = self._day.finish()
            self._day = None
            if facts is not None:
                self._files.append(facts)


class _DayFile:
    """The file of one split and one day; created with its first row."""

    def __init__(self, task: SplitTask, split: Split, day: str, counts: _Counts) -> None:
        self._task = task
        self._split = split
        self._day = day
        self._counts = counts
        self._encoder: _Encoder | None = None
        self._output: Output | None = None
        self._batches: list[pa.RecordBatch] = []  # of the current row group
        self._group = 0
        self._plain_bytes = 0
        self._rows = 0

    def add_entries(self, block: Block, request: Request) -> None:
        """Add the rows of some entries of the day."""
        for first, stop in self._groups(block.end - block.start + HEADER_SIZE):
            self._batches += self._task.view.batches(_part(block, first, stop), request)

    def add_rows(self, batch: pa.RecordBatch) -> None:
        """Add some rows of the day."""
        for first, stop in self._groups(row_sizes(batch)):
            self._batches.append(batch.slice(first, stop - first))

    def _groups(self, sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Divide items by their sizes among row groups; yield the first and stop of each."""
        before = self._plain_bytes + np.cumsum(sizes) - sizes
        self._plain_bytes += int(sizes.sum())
        groups = before // ROW_GROUP_BYTES
        for first, stop in _runs(groups):
            if int(groups[first]) != self._group:
                self._write_group()
                self._group = int(groups[first])
            yield first, stop

    def finish(self) -> FileFacts | None:
        """Write what is left; return the facts of the file, if there is one."""
        self._write_group()
        encoder, output = self._encoder, self._output
        if encoder is None or output is None:
            return None
        encoder.close()
        output.finish()
        return FileFacts(
            name=self._name(),
            shard=self._split.shard,
            date=self._day,
            rows=self._rows,
            entries=self._counts.entries,
            first_index=self._counts.first_index,
            last_index=self._counts.last_index,
            size_bytes=output.size_bytes,
            crc32c=output.crc32c,
            mix=self._counts.mix,
        )

    def discard(self) -> None:
        """Remove what was written."""
        if self._output is not None:
            self._output.discard()

    def _name(self) -> str:
        return file_name(self._task.view.name, self._split, self._day, self._task.format)

    def _write_group(self) -> None:
        if not self._batches:
            return
        # One array for each column: the boundaries of batches must not show in the file.
        batch = pa.Table.from_batches(self._batches).combine_chunks().to_batches()[0]
        self._batches = []
        self._rows += batch.num_rows
        if self._encoder is None:
            self._output = self._task.target.create(self._name())
            self._encoder = _ENCODERS[self._task.format](self._output, batch.schema)
        self._encoder.write(batch)


def _days(block: Block) -> Iterator[tuple[int, Block]]:
    """Yield the entries of each day."""
    days = (block.headers["timestamp_ns"] // np.uint64(DAY_NS)).astype(np.int64)
    for first, stop in _runs(days):
        yield int(days[first]), _part(block, first, stop)


def _runs(values: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the first and stop of each stretch of equal values."""
    bounds = np.flatnonzero(values[1:] != values[:-1]) + 1
    edges = [0, *bounds.tolist(), len(values)]
    return itertools.pairwise(edges) if len(values) else iter(())


def _part(block: Block, first: int, stop: int) -> Block:
    return block if stop - first == len(block) else block.select(np.arange(first, stop))


# Formats -----------------------------------------------------------------------------------------


class _Encoder(Protocol):
    """Writes rows in one format."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a row group."""

    def close(self) -> None:
        """Write what ends the file."""


class _ParquetEncoder:
    """Parquet with zstd; ascending numbers are delta-coded, names dictionary-coded."""

    def __init__(self, output: Output, schema: pa.Schema) -> None:
        names = set(schema.names)
        self._writer = pyarrow.parquet.ParquetWriter(
            pa.PythonFile(output, mode="w"),
            schema,
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=sorted(_DICTIONARY_CODED & names),
            column_encoding=dict.fromkeys(sorted(_DELTA_CODED & names), "DELTA_BINARY_PACKED"),
            store_schema=False,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """See ``_Encoder.write``."""
        self._writer.write_batch(batch, row_group_size=max(batch.num_rows, 1))

    def close(self) -> None:
        """See ``_Encoder.close``."""
        self._writer.close()


class _OrcEncoder:
    """ORC with zstd."""

    def __init__(self, output: Output, _schema: pa.Schema) -> None:
        self._writer = pyarrow.orc.ORCWriter(pa.PythonFile(output, mode="w"), compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        """See ``_Encoder.write``."""
        self._writer.write(pa.Table.from_batches([batch]))

    def close(self) -> None:
        """See ``_Encoder.close``."""
        self._writer.close()


class _JsonEncoder:
    """JSON lines."""

    def __init__(self, output: Output, _schema: pa.Schema) -> None:
        self._output = output

    def write(self, batch: pa.RecordBatch) -> None:
        """See ``_Encoder.write``."""
        for part in _text_parts(batch):
            self._output.write(json_lines(part))

    def close(self) -> None:
        """See ``_Encoder.close``: a file of lines needs no end."""


class _CsvEncoder:
    """CSV with a header line; texts are quoted, a null is an empty cell."""

    def __init__(self, output: Output, schema: pa.Schema) -> None:
        sink = pa.PythonFile(output, mode="w")
        self._writer = pyarrow.csv.CSVWriter(sink, csv_schema(schema))

    def write(self, batch: pa.RecordBatch) -> None:
        """See ``_Encoder.write``."""
        for part in _text_parts(batch):
            self._writer.write_batch(csv_columns(part))

    def close(self) -> None:
        """See ``_Encoder.close``."""
        self._writer.close()


def _text_parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts: text takes several times the memory, and parts do not show in it."""
    count = max(batch.num_rows * TEXT_BYTES // max(batch.nbytes, 1), 1)
    for first in range(0, batch.num_rows, count):
        yield batch.slice(first, count)


_ENCODERS: dict[str, Any] = {
    "parquet": _ParquetEncoder,
    "orc": _OrcEncoder,
    "json": _JsonEncoder,
    "csv": _CsvEncoder,
}
