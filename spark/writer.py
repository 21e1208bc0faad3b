"""Writers for Spark: ``df.write.format("onelog")`` and ``df.writeStream.format("onelog")``.

Options and columns are checked on the driver, before a task starts. A task writes its partition
through ``onelog.spark.load``: chunks in transactions with a progress key. A task that is retried,
runs twice at the same time, or runs again after a restart writes nothing twice.

Each batch write is a new job, unless the option ``job`` names it. A batch of a streaming query is
identified by the query and the batch's number, which Spark keeps in the checkpoint.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as spark_types
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from onelog.errors import FailedPrecondition, InvalidArgument
from onelog.spark.load.chunks import ChunkWriter, Outcome, mark_done
from onelog.spark.load.progress import Job
from onelog.spark.load.settings import WriteSettings, parse_write

# Local properties of the tasks of a streaming query.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
# Arrow types that columns have when they arrive in a task.
_ARROW_TYPES: dict[type[spark_types.DataType], pa.DataType] = {
    spark_types.BinaryType: pa.binary(),
    spark_types.StringType: pa.string(),
    spark_types.VarcharType: pa.string(),
    spark_types.CharType: pa.string(),
    spark_types.ByteType: pa.int8(),
    spark_types.ShortType: pa.int16(),
    spark_types.IntegerType: pa.int32(),
    spark_types.LongType: pa.int64(),
    spark_types.FloatType: pa.float32(),
    spark_types.DoubleType: pa.float64(),
    spark_types.BooleanType: pa.bool_(),
    spark_types.TimestampType: pa.timestamp("us", "UTC"),
    spark_types.TimestampNTZType: pa.timestamp("us"),
    spark_types.NullType: pa.null(),
}
# Stands for types that no target takes: decimals, dates, lists and the like.
_OTHER_TYPE = pa.list_(pa.null())


@dataclass
class Written(WriterCommitMessage):
    """What a task has written."""

    outcome: Outcome
    job: Job


def make_writer(
    options: Mapping[str, str], schema: spark_types.StructType, *, overwrite: bool = False
) -> DataSourceArrowWriter:
    """Return the writer of ``df.write``; refuse options and columns that cannot be written."""
    settings = _check(options, schema, overwrite=overwrite)
    return _BatchWriter(settings, settings.job or Job(uuid4().hex))


def make_stream_writer(
    options: Mapping[str, str], schema: spark_types.StructType, *, overwrite: bool = False
) -> DataSourceStreamArrowWriter:
    """Return the writer of ``df.writeStream``; refuse what ``make_writer`` refuses."""
    settings = _check(options, schema, overwrite=overwrite)
    if settings.job is not None:
        raise InvalidArgument(
            "a streaming query is named by its checkpoint; leave the option job out",
            reason="OPTION_UNKNOWN",
            metadata={"option": "job"},
        )
    return _StreamWriter(settings)


def _check(
    options: Mapping[str, str], schema: spark_types.StructType, *, overwrite: bool
) -> WriteSettings:
    if overwrite:
        raise InvalidArgument(
            'rows are added, and existing ones are never replaced: use mode("append"), or '
            'outputMode("append") or ("update") for a query',
            reason="OVERWRITE_UNSUPPORTED",
        )
    settings = parse_write(options)
    columns = [(each.name, _to_arrow(each.dataType)) for each in schema.fields]
    settings.target.check_schema(pa.schema(columns))
    return settings


def _to_arrow(found: spark_types.DataType) -> pa.DataType:
    """Return the type that a column has in a task; Spark's own function is not public."""
    if isinstance(found, spark_types.MapType):
        return pa.map_(_to_arrow(found.keyType), _to_arrow(found.valueType))
    if isinstance(found, spark_types.StructType):
        return pa.struct([(each.name, _to_arrow(each.dataType)) for each in found.fields])
    return _ARROW_TYPES.get(type(found), _OTHER_TYPE)


class _BatchWriter(DataSourceArrowWriter):
    """The partitions of one DataFrame."""

    def __init__(self, settings: WriteSettings, job: Job) -> None:
        self._settings = settings
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition; runs in a task."""
        return _write(self._settings, self._job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remember that the job is written; runs on the driver."""
        _mark_done(self._settings, self._job, len(messages))


class _StreamWriter(DataSourceStreamArrowWriter):
    """The partitions of each batch of a query."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition of a batch; runs in a task."""
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
        if not query or not batch:
            raise FailedPrecondition(
                "Spark does not tell the task which batch of which query it belongs to",
                reason="WRITE_BATCH_UNKNOWN",
            )
        return _write(self._settings, Job(query, int(batch), is_query=True), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Remember that the batch is written; runs on the driver."""
        for each in messages:
            if isinstance(each, Written):
                _mark_done(self._settings, each.job, len(messages))
                return


def _write(settings: WriteSettings, job: Job, iterator: Iterator[pa.RecordBatch]) -> Written:
    context = TaskContext.get()
    partition = str(context.partitionId()) if context is not None else "0"
    with ChunkWriter(
        settings.target, job, partition, settings.endpoints, settings.options, settings.limits
    ) as writer:
        for batch in iterator:
            writer.write(batch)
        return Written(writer.finish(), job)


def _mark_done(settings: WriteSettings, job: Job, partition_count: int) -> None:
    mark_done(
        job,
        settings.target.namespace,
        partition_count,
        settings.endpoints,
        settings.options,
        settings.limits,
    )
