"""The data source ``onelog``: ``spark.read.format("onelog")``, and ``df.write`` likewise.

The table is loaded once, when ``load()`` makes the source. Its cut is kept, and every query of the
DataFrame reads up to that cut; neither planning nor tasks look for a newer one.

Filters are not pushed into the source: Spark keeps the filters of one query for later queries of
the same DataFrame, which would then silently miss rows. Options prune instead.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from onelog.errors import InvalidArgument, OutOfRange
from onelog.spark.changes import CHANGE_VIEWS, ChangesTable, load_changes_table
from onelog.spark.columns.arrays import conform
from onelog.spark.columns.views import VIEWS
from onelog.spark.faults import REASON_DROPPED
from onelog.spark.options import ReadOptions, bad
from onelog.spark.origin import Split
from onelog.spark.state import (
    AS_OF_OPTIONS,
    STATE_VIEWS,
    StatePart,
    StateTable,
    load_state_table,
)
from onelog.spark.streaming import (
    STREAM_OPTIONS,
    STREAMED_VIEWS,
    ChangesPartition,
    OnelogStreamReader,
    StreamOptions,
    schema_with_gaps,
)
from onelog.spark.table import Table, load_table
from onelog.spark.writer import make_stream_writer, make_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "onelog"
_ALL_VIEWS = {**VIEWS, **STATE_VIEWS, **CHANGE_VIEWS}


def register(spark: "SparkSession") -> None:
    """Register ``format("onelog")`` with a session; raise first if it cannot work there."""
    from onelog.spark.session import find_problem
    from onelog.spark.workers import check_workers

    problem = find_problem()
    if problem is not None:
        raise problem
    check_workers(spark)
    spark.dataSource.register(OnelogDataSource)


class OnelogDataSource(DataSource):
    """Views of the log as tables, and writers into the database."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Load the table of a read, which names a view; a writer has none."""
        super().__init__(dict(options))
        self._read: ReadOptions | None = None
        self._table: Table | StateTable | ChangesTable | None = None
        self._refusal: OutOfRange | None = None
        if "view" not in options:
            return
        # Options of streams and of views of the state; refused below where they have no meaning.
        others = (*STREAM_OPTIONS, *AS_OF_OPTIONS)
        self._read = ReadOptions.parse(options, _ALL_VIEWS, others=others)
        if self._read.view.shows_state:
            self._table = load_state_table(self._read, options)
            return
        self._refuse(AS_OF_OPTIONS, "only for a view of the state")
        load = load_changes_table if self._read.view.is_replayed else load_table
        try:
            self._table = load(self._read)
        except OutOfRange as error:
            if error.reason != REASON_DROPPED:
                raise
            # Kept for later: a stream that resumes from its checkpoint may name a beginning that is
            # long gone, and Spark does not say here whether this is a stream.
            self._refusal = error.with_traceback(None)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns that are read: those of the option ``columns``, or all."""
        read = self._asked()
        schema = read.view.schema
        if read.columns is not None:
            schema = pa.schema([schema.field(name) for name in read.columns])
        if self.options.get("on_loss") == "gap":
            schema = schema_with_gaps(schema)
        return from_arrow_schema(schema, prefer_timestamp_ntz=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of these columns; a schema of other columns or types is refused."""
        read = self._asked()
        self._refuse(STREAM_OPTIONS, "only for a stream")
        if self._refusal is not None:
            raise self._refusal
        assert self._table is not None
        refuse_other_schema(read.view.name, read.view.schema, schema)
        if isinstance(self._table, StateTable):
            return StateReader(self._table, schema)
        if isinstance(self._table, ChangesTable):
            return ChangesReader(self._table, schema)
        return OnelogReader(self._table, schema)

    def streamReader(self, schema: StructType) -> OnelogStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of micro-batches."""
        read = self._asked()
        if read.view.name not in STREAMED_VIEWS:
            allowed = f"one of {', '.join(STREAMED_VIEWS)}"
            raise bad("VIEW_NOT_STREAMED", "view", read.view.name, allowed)
        stream = StreamOptions.parse(self.options, read)
        there = schema_with_gaps(read.view.schema) if stream.with_gaps else read.view.schema
        refuse_other_schema(read.view.name, there, schema)
        return OnelogStreamReader(read, stream, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001
        """Return a writer of rows to keys, a stream, a queue or series."""
        return make_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamArrowWriter:
        """Return a writer of micro-batches."""
        return make_stream_writer(self.options, schema, overwrite=overwrite)

    def _asked(self) -> ReadOptions:
        if self._read is None:
            raise bad("VIEW_UNKNOWN", "view", "", f"one of {', '.join(sorted(_ALL_VIEWS))}")
        return self._read

    def _refuse(self, names: tuple[str, ...], allowed: str) -> None:
        for name in names:
            if name in self.options:
                raise bad("OPTION_UNCONCERNED", name, self.options[name], allowed)


class SplitPartition(InputPartition):
    """What one task reads."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


class OnelogReader(DataSourceReader):
    """Plans and reads one query of a table."""

    def __init__(self, table: Table, schema: StructType) -> None:
        self._table = table
        # Spark compares a batch with this, names and order included.
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each split."""
        return [SplitPartition(split) for split in self._table.splits()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split as Arrow."""
        # If there are no partitions, Spark still asks for one.
        if isinstance(partition, SplitPartition):
            yield from read_batches(self._table, partition.split, self._schema)


class StatePartition(InputPartition):
    """What one task reads of a table of the state."""

    def __init__(self, part: StatePart) -> None:
        super().__init__(part)
        self.part = part


class StateReader(DataSourceReader):
    """Reads a table of the state, one task a shard."""

    def __init__(self, table: StateTable, schema: StructType) -> None:
        self._table = table
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each shard."""
        return [StatePartition(part) for part in self._table.parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a shard."""
        if isinstance(partition, StatePartition):
            for batch in self._table.batches(partition.part, frozenset(self._schema.names)):
                yield conform(batch, self._schema)


class ChangesReader(DataSourceReader):
    """Reads a table of changes by replay."""

    def __init__(self, table: ChangesTable, schema: StructType) -> None:
        self._table = table
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each part."""
        return [ChangesPartition(part) for part in self._table.parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        if isinstance(partition, ChangesPartition):
            for batch in self._table.batches(partition.part):
                yield conform(batch, self._schema)


def read_batches(table: Table, split: Split, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split with the columns of a schema, in its order."""
    for batch in table.batches(split, frozenset(schema.names)):
        yield conform(batch, schema)


def refuse_other_schema(view: str, columns: pa.Schema, schema: StructType) -> None:
    """Refuse columns that a view does not have, or has with another type."""
    there = from_arrow_schema(columns, prefer_timestamp_ntz=False)
    for field in schema.fields:
        if field.name not in there.names:
            names = ", ".join(there.names)
            raise InvalidArgument(
                f"the schema has a column {field.name!r}; allowed: columns of {view}: {names}",
                reason="COLUMN_UNKNOWN",
            )
        kind = there[field.name].dataType
        if field.dataType.simpleString() != kind.simpleString():
            raise InvalidArgument(
                f"the schema has {field.name} as {field.dataType.simpleString()}; "
                f"allowed: {kind.simpleString()}",
                reason="SCHEMA_MISMATCH",
            )
