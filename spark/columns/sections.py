"""The sections of a snapshot as tables, without loading them into projections.

Each table comes from one section: ``rows`` takes the content as chunks that may end anywhere and
yields batches of bounded size. The reader of the file compares checksums; content that still breaks
the format raises ``CorruptPayload``. The tables show the state at the snapshot's index.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from onelog.spark.columns.kv_section import (
    KV_SCHEMA,
    KV_VERSIONS_SCHEMA,
    kv_rows,
    kv_version_rows,
)
from onelog.spark.columns.operations import OWNERS
from onelog.spark.columns.queue_section import (
    QUEUE_SCHEMA,
    QUEUES_SCHEMA,
    queue_info_rows,
    queue_rows,
)
from onelog.spark.columns.series_section import (
    BUFFERED_POINTS_SCHEMA,
    SERIES_SCHEMA,
    buffered_point_rows,
    series_rows,
)
from onelog.spark.columns.stream_section import (
    GROUPS_SCHEMA,
    STREAMS_SCHEMA,
    group_rows,
    stream_rows,
)


@dataclass(frozen=True, slots=True)
class SectionTable:
    """A table that a section of a snapshot holds."""

    name: str
    section_type: int
    schema: pa.Schema
    rows: Callable[[Iterable[bytes]], Iterator[pa.RecordBatch]]


def _table(
    name: str,
    owner: str,
    schema: pa.Schema,
    rows: Callable[[Iterable[bytes]], Iterator[pa.RecordBatch]],
) -> SectionTable:
    return SectionTable(name, OWNERS.index(owner), schema, rows)


SECTION_TABLES = {
    table.name: table
    for table in (
        _table("kv", "kv", KV_SCHEMA, kv_rows),
        _table("kv_versions", "kv", KV_VERSIONS_SCHEMA, kv_version_rows),
        _table("queue", "queue", QUEUE_SCHEMA, queue_rows),
        _table("queues", "queue", QUEUES_SCHEMA, queue_info_rows),
        _table("streams", "stream", STREAMS_SCHEMA, stream_rows),
        _table("groups", "stream", GROUPS_SCHEMA, group_rows),
        _table("series", "timeseries", SERIES_SCHEMA, series_rows),
        _table("buffered_points", "timeseries", BUFFERED_POINTS_SCHEMA, buffered_point_rows),
    )
}
