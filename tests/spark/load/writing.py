"""Partitions as tests write them."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from onelog import Client
from onelog.spark.load.chunks import ChunkWriter, Outcome
from onelog.spark.load.progress import Job
from onelog.spark.load.settings import parse_write


def writer_of(
    endpoint: str, options: Mapping[str, str], job: Job | str, partition: str = "0"
) -> ChunkWriter:
    """Return the writer of a partition."""
    settings = parse_write({"endpoint": endpoint, "timeout": "60s", **options})
    found = job if isinstance(job, Job) else Job(job)
    return ChunkWriter(
        settings.target, found, partition, settings.endpoints, settings.options, settings.limits
    )


def write(
    endpoint: str,
    options: Mapping[str, str],
    columns: Mapping[str, Any] | Iterable[pa.RecordBatch],
    job: Job | str,
    partition: str = "0",
) -> Outcome:
    """Write a partition as one attempt of a task does."""
    batches = [pa.RecordBatch.from_pydict(columns)] if isinstance(columns, Mapping) else columns
    with writer_of(endpoint, options, job, partition) as writer:
        for batch in batches:
            writer.write(batch)
        return writer.finish()


def values_of(client: Client, stream: str) -> list[bytes]:
    """Return everything that a stream holds."""
    return [record.value for record in client.stream(stream).read()]


def numbered(count: int, first: int = 0, size: int = 20) -> list[bytes]:
    """Return values that differ."""
    return [b"%0*d" % (size, number) for number in range(first, first + count)]
