"""Writes the record batches of one partition into the database, in chunks, each exactly once.

::

    with ChunkWriter(target, Job("nightly"), "0", endpoints, options) as writer:
        for batch in batches:
            writer.write(batch)
        outcome = writer.finish()

Rows are grouped by shard and divided into chunks in their order. Where a chunk ends depends on the
rows alone and not on their batches, so another attempt makes the same chunks. A chunk is sent when
the next row does not fit into it, so that the last chunk is known to be the last.

A partition that is completely written is marked in each of its shards. A later attempt with rows
for another shard is then refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.client.blocking import LoopThread
from onelog.client.connection import Connection
from onelog.client.kv import AsyncKV
from onelog.client.options import ClientOptions, Scope
from onelog.client.values import Item
from onelog.errors import FailedPrecondition
from onelog.spark.load.columns import DIGEST_SIZE, digest_rows, estimate_sizes
from onelog.spark.load.progress import (
    Job,
    Progress,
    decode_done,
    decode_progress,
    done_key,
    encode_done,
    find_tags,
    progress_key,
)
from onelog.spark.load.shard_writer import Chunk, Limits, ShardWriter
from onelog.spark.load.targets import Target

# The size of a chunk's rows together; a larger row is a chunk of its own.
CHUNK_BYTES_MAX = 1 << 20
# Several chunks travel in one message; the limits of a session allow for one more such message.
_MESSAGE_OPERATIONS = 5_000
_MESSAGE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """What was written to a shard; all of it is between these two indexes."""

    shard: int
    first_index: int
    last_index: int
    row_count: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a partition; skipped rows were written by an earlier attempt."""

    row_count: int
    skipped_row_count: int
    shards: tuple[ShardOutcome, ...]


@dataclass(slots=True)
class _Pending:
    """Rows of a shard that wait until their chunk is full."""

    chunk: int  # its number
    digest: bytes  # of the rows before
    row_count: int  # of the rows before
    parts: list[pa.RecordBatch] = field(default_factory=list)
    positions: list[NDArray[np.int64]] = field(default_factory=list)
    count: int = 0
    size: int = 0


class ChunkWriter:
    """See the module's docstring. It is used by one thread; its connection has its own."""

    def __init__(
        self,
        target: Target,
        job: Job,
        partition: str,
        endpoints: Sequence[str],
        options: ClientOptions | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._target = target
        self._job = job
        self._partition = partition
        self._limits = limits or Limits()
        self._connection = Connection(list(endpoints), _for_chunks(options or ClientOptions()))
        self._thread = LoopThread()
        self._shards: dict[int, ShardWriter] = {}
        self._pending: dict[int, _Pending] = {}
        self._known: list[Item | None] = []
        self._keys: list[bytes] = []
        self._row_count = 0
        seed = blake2b(target.description.encode(), digest_size=DIGEST_SIZE).digest()
        self._begin = Progress(job.batch, 0, 0, 0, seed)
        self._is_over = False  # another attempt has written the whole partition

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; unfinished rows may or may not be written."""
        if not self._thread.is_closed:
            self._thread.run(self._connection.close())
            self._thread.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows; refuse all of them if one cannot be written."""
        rows = self._target.prepare(batch, self._row_count)
        if not rows.num_rows:
            return
        if not self._keys:
            self._thread.run(self._open())
        shards = self._target.shards(rows, self._connection.topology.find_shard)
        sizes = estimate_sizes(rows)
        positions = np.arange(self._row_count, self._row_count + rows.num_rows, dtype=np.int64)
        self._row_count += rows.num_rows
        for shard in np.unique(shards).tolist():
            at = np.flatnonzero(shards == shard)
            own = rows if len(at) == rows.num_rows else rows.take(pa.array(at))
            self._add(shard, own, sizes[at], positions[at])

    def finish(self) -> Outcome:
        """Write the remaining rows; return the outcome when all are written."""
        for shard in self._pending:
            self._flush(shard, is_last=True)
        for writer in self._shards.values():
            self._thread.run(writer.finish())
        self._refuse_missing()
        found = tuple(
            ShardOutcome(shard, writer.first_index, writer.last_index, writer.row_count)
            for shard, writer in sorted(self._shards.items())
        )
        skipped = sum(writer.skipped_row_count for writer in self._shards.values())
        return Outcome(self._row_count, skipped, found)

    def _refuse_missing(self) -> None:
        """Refuse if an earlier attempt had rows for a shard for which there are none now."""
        for shard, item in enumerate(self._known):
            if shard not in self._shards and self._is_ours(item):
                raise FailedPrecondition(
                    f"the rows are not those that this job has written before: it had some for "
                    f"shard {shard}",
                    reason="WRITE_ROWS_CHANGED",
                )

    def _is_ours(self, item: Item | None) -> bool:
        return item is not None and decode_progress(item.value).batch == self._job.batch

    async def _open(self) -> None:
        """Connect, and read the partition's progress."""
        limits = self._limits
        await self._connection.ready(limits.connect_timeout_s or limits.timeout_s)
        topology = self._connection.topology
        tags = find_tags(topology.shard_count, topology.find_shard)
        self._keys = [progress_key(tag, self._job, self._partition) for tag in tags]
        kv = AsyncKV(self._connection, Scope(self._target.namespace, self._limits.timeout_s))
        *self._known, whole = await kv.get_many([*self._keys, done_key(tags[0], self._job)])
        if whole is not None:
            self._check_partition(*decode_done(whole.value))
        self._is_over = any(
            item is not None and self._is_ours(item) and decode_progress(item.value).is_last
            for item in self._known
        )

    def _check_partition(self, batch: int, partition_count: int) -> None:
        """Refuse a partition that the job did not have when it was completed."""
        if batch == self._job.batch and not any(map(self._is_ours, self._known)):
            raise FailedPrecondition(
                f"the job is written already, with {partition_count} partitions, and this one "
                f"({self._partition}) had no rows; give the job another name to write them",
                reason="WRITE_ROWS_CHANGED",
            )

    def _add(
        self,
        shard: int,
        rows: pa.RecordBatch,
        sizes: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> None:
        pending = self._pending.get(shard)
        if pending is None:
            pending = self._pending[shard] = _Pending(1, self._begin.digest, 0)
        ends = np.cumsum(sizes)
        at, count = 0, rows.num_rows
        while at < count:
            before = int(ends[at - 1]) if at else 0
            room = CHUNK_BYTES_MAX - pending.size
            fitting = int(np.searchsorted(ends, before + room, side="right")) - at
            taken = min(fitting, self._target.chunk_rows_max - pending.count)
            if taken <= 0 and pending.count:
                pending = self._flush(shard, is_last=False)
                continue
            taken = max(taken, 1)
            pending.parts.append(rows.slice(at, taken))
            pending.positions.append(positions[at : at + taken])
            pending.count += taken
            pending.size += int(ends[at + taken - 1]) - before
            at += taken

    def _flush(self, shard: int, *, is_last: bool) -> _Pending:
        """Send the rows of a shard as a chunk, and begin the next."""
        pending = self._pending[shard]
        writer = self._shards.get(shard) or self._open_shard(shard)
        parts = pending.parts
        rows = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        digest = digest_rows(pending.digest, rows)
        row_count = pending.row_count + pending.count
        before = self._begin
        if pending.chunk > 1:
            before = writer.next_progress(pending.chunk - 1, pending.row_count, pending.digest)
        after = writer.next_progress(pending.chunk, row_count, digest, is_last=is_last)
        positions = np.concatenate(pending.positions)
        request: Any = None
        if pending.chunk > writer.skips_until:
            request = writer.new_request(before, after)
            self._target.fill(request.operations, rows)
            writer.add_progress(request, after)
        by_operation = tuple(positions.tolist()) if self._target.is_by_row else ()
        chunk = Chunk(after, request, int(positions[0]), by_operation)
        self._thread.run(writer.submit(chunk))
        fresh = self._pending[shard] = _Pending(pending.chunk + 1, digest, row_count)
        return fresh

    def _open_shard(self, shard: int) -> ShardWriter:
        item = self._known[shard]
        if self._is_over and not self._is_ours(item):
            raise FailedPrecondition(
                f"the rows are not those that this job has written before: it had none for "
                f"shard {shard}",
                reason="WRITE_ROWS_CHANGED",
            )
        writer = ShardWriter(
            self._connection, self._target.namespace, self._keys[shard], self._begin, self._limits
        )
        self._thread.run(writer.open(item))
        self._shards[shard] = writer
        return writer


def mark_done(
    job: Job,
    namespace: str,
    partition_count: int,
    endpoints: Sequence[str],
    options: ClientOptions | None = None,
    limits: Limits | None = None,
) -> None:
    """Record that all partitions of a job are written, so that no other one can be."""
    options, limits = options or ClientOptions(), limits or Limits()
    connection, thread = Connection(list(endpoints), options), LoopThread()

    async def mark() -> None:
        await connection.ready(limits.timeout_s)
        topology = connection.topology
        tag = find_tags(topology.shard_count, topology.find_shard)[0]
        kv = AsyncKV(connection, Scope(namespace, limits.timeout_s))
        value = encode_done(job.batch, partition_count)
        await kv.put(done_key(tag, job), value, ttl_s=limits.progress_ttl_s)

    try:
        thread.run(mark())
    finally:
        thread.run(connection.close())
        thread.close()


def _for_chunks(options: ClientOptions) -> ClientOptions:
    return replace(
        options,
        messages_in_flight_max=1,
        batch_operations_max=_MESSAGE_OPERATIONS,
        batch_bytes_max=_MESSAGE_BYTES,
    )
