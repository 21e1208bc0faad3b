"""The data source ``onelog``: ``spark.read.format("onelog")``.

The table is loaded once, when ``load()`` makes the source: its cut travels with it, and every query
of the DataFrame sees that. Planning and tasks use what was loaded and never look for a newer cut.

Filters are not pushed into the source: Spark keeps what one query pushed for later queries of the
same DataFrame, which then silently miss rows. Options prune instead.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from onelog.errors import InvalidArgument
from onelog.spark.columns.views import VIEWS
from onelog.spark.options import ReadOptions, bad
from onelog.spark.origin import Split
from onelog.spark.table import Table, load_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "onelog"


def register(spark: "SparkSession") -> None:
    """Make ``format("onelog")`` known to a session; say first what keeps it from working."""
    from onelog.spark.session import find_problem

    problem = find_problem()
    if problem is not None:
        raise problem
    spark.dataSource.register(OnelogDataSource)


class OnelogDataSource(DataSource):
    """Views of the log as tables."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Load the table of a read, which names a view; a writer has none."""
        super().__init__(dict(options))
        self._table: Table | None = None
        if "view" in options:
            self._table = load_table(ReadOptions.parse(options, VIEWS))

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    @property
    def table(self) -> Table:
        """What was loaded."""
        if self._table is None:
            raise bad("VIEW_UNKNOWN", "view", "", f"one of {', '.join(sorted(VIEWS))}")
        return self._table

    def schema(self) -> StructType:
        """Return the columns that are read: of the option ``columns``, or all."""
        chosen = self.table.options.columns
        schema = self.table.view.schema
        if chosen is not None:
            schema = pa.schema([schema.field(name) for name in chosen])
        return from_arrow_schema(schema, prefer_timestamp_ntz=False)

    def reader(self, schema: StructType) -> "OnelogReader":
        """Return a reader of these columns; a schema of other columns or types is refused."""
        refuse_other_schema(self.table, schema)
        return OnelogReader(self.table, schema)


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
        # Where nothing is to be read Spark asks for one partition all the same.
        if isinstance(partition, SplitPartition):
            yield from read_batches(self._table, partition.split, self._schema)


def read_batches(table: Table, split: Split, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split with the columns of a schema, in its order."""
    for batch in table.batches(split, frozenset(schema.names)):
        if not schema.names:  # a count
            yield batch
            continue
        columns = [batch.column(name) for name in schema.names]
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def refuse_other_schema(table: Table, schema: StructType) -> None:
    """Refuse columns that the view does not have, or has with another type."""
    view = table.view
    there = from_arrow_schema(view.schema, prefer_timestamp_ntz=False)
    for field in schema.fields:
        if field.name not in there.names:
            names = ", ".join(there.names)
            raise InvalidArgument(
                f"the schema has a column {field.name!r}; allowed: columns of {view.name}: {names}",
                reason="COLUMN_UNKNOWN",
            )
        kind = there[field.name].dataType
        if field.dataType.simpleString() != kind.simpleString():
            raise InvalidArgument(
                f"the schema has {field.name} as {field.dataType.simpleString()}; "
                f"allowed: {kind.simpleString()}",
                reason="SCHEMA_MISMATCH",
            )
