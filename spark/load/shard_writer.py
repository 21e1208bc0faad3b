"""Writes the chunks of one partition into one shard, in order, each exactly once.

A chunk is a transaction: it writes its rows and moves the progress key, on condition that the key
has the value that the chunk before left. So a chunk takes effect at most once, however often it is
sent. If it is refused, the key tells why:

* another attempt has written the same chunk (the digests agree): it is skipped;
* another attempt has written different rows: WRITE_ROWS_CHANGED;
* the chunk had no effect: it is sent again.

Several chunks are in flight at a time. If one is refused, those behind it are refused as well,
because their conditions do not hold.

Invariants: ``_sent`` holds consecutive chunks, and ``_confirmed`` is the progress right before the
first of them. While ``_ahead`` is set, nothing is in flight, and the key was read at that progress.
"""

import asyncio
from asyncio import Future
from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import Any

from onelog.client.calls import Backoff, Verdict, judge
from onelog.client.connection import Connection
from onelog.client.kv import AsyncKV
from onelog.client.options import Scope
from onelog.client.values import Item
from onelog.errors import (
    ConditionFailed,
    FailedPrecondition,
    OnelogError,
    make_error,
)
from onelog.spark.load.progress import Progress, decode_progress
from onelog.v1 import kv_pb2, pipeline_pb2

# Chunks of a shard that may await an answer, and how long one attempt at them may take.
CHUNKS_IN_FLIGHT_MAX = 8
ATTEMPT_S_MAX = 20.0
_BACKOFF_FIRST_S, _BACKOFF_MAX_S = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are written together."""

    after: Progress  # once the chunk is written
    request: pipeline_pb2.TransactRequest | None  # None: the chunk is only compared
    first_row: int
    rows: tuple[int, ...]  # row of each operation in the partition; empty: operations are no rows


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to try, and how long the database remembers a job."""

    # How long to try without any progress, retries included.
    timeout_s: float = 120.0
    progress_ttl_s: float = 7 * 86_400.0

    # How long to wait for the first answer of a server; None: timeout_s.
    connect_timeout_s: float | None = None


class ShardWriter:
    """See the module's docstring. It runs in the event loop of the connection."""

    def __init__(
        self, connection: Connection, namespace: str, key: bytes, begin: Progress, limits: Limits
    ) -> None:
        self.key = key
        self.first_index = 0  # of the entry that began it
        self.last_index = 0  # of the last entry of the last chunk
        self.row_count = 0
        self.skipped_row_count = 0
        self._connection = connection
        self._namespace = namespace
        self._begin = begin
        self._limits = limits
        self._kv = AsyncKV(connection, Scope(namespace, min(limits.timeout_s, ATTEMPT_S_MAX)))
        self._confirmed = begin
        self._ahead: Progress | None = None
        self._sent: deque[tuple[Chunk, Future[Any]]] = deque()
        self._backoff = Backoff(_BACKOFF_FIRST_S, _BACKOFF_MAX_S)
        self._moved_s = 0.0  # time of the last progress

    @property
    def skips_until(self) -> int:
        """The last chunk known to be written; chunks up to it are only compared."""
        return 0 if self._ahead is None else self._ahead.chunk

    async def open(self, found: Item | None) -> None:
        """Begin, or continue where an earlier attempt ended."""
        self._moved()
        while True:
            known = None if found is None else decode_progress(found.value)
            if known is not None and known.batch > self._begin.batch:
                raise FailedPrecondition(
                    f"batch {known.batch} is being written, and this is {self._begin.batch}",
                    reason="WRITE_BATCH_OVER",
                )
            if known is not None and known.batch == self._begin.batch:
                assert found is not None
                self._resume(found, known)
                return
            try:
                request = self._request(None if found is None else found.value, self._begin)
                self.first_index = self.last_index = await self._transact(request)
            except ConditionFailed:
                pass
            except OnelogError as error:
                await self._wait(error)
            else:
                return
            found = await self._read()

    def _resume(self, found: Item, known: Progress) -> None:
        self.first_index = known.opened_index or found.version
        self.last_index = found.version
        if known.chunk:
            self._ahead = known
        elif known.digest != self._begin.digest:
            raise _rows_changed("the job wrote to another target")

    def next_progress(
        self, chunk: int, row_count: int, digest: bytes, *, is_last: bool = False
    ) -> Progress:
        """Return the value of the key after a chunk."""
        return Progress(self._begin.batch, chunk, row_count, self.first_index, digest, is_last)

    def new_request(self, before: Progress, after: Progress) -> pipeline_pb2.TransactRequest:
        """Return a transaction from one progress to the next, with no rows yet."""
        return self._request(before.encode(), after)

    def _request(self, before: bytes | None, after: Progress) -> pipeline_pb2.TransactRequest:
        request = pipeline_pb2.TransactRequest(namespace=self._namespace, by_shard=True)
        condition = request.conditions.add(key=self.key)
        if before is None:
            condition.exists = False
        else:
            condition.value.comparison = kv_pb2.COMPARISON_EQUAL
            condition.value.value = before
        if after.chunk == 0:
            self.add_progress(request, after)
        return request

    def add_progress(self, request: pipeline_pb2.TransactRequest, after: Progress) -> None:
        """Add the put of the key. It is the last operation, so its version is the last index."""
        put = request.operations.add().put
        put.key = self.key
        put.value = after.encode()
        put.ttl_ms = max(1, round(self._limits.progress_ttl_s * 1000))

    async def submit(self, chunk: Chunk) -> None:
        """Write a chunk behind the others; wait while too many are in flight."""
        ahead = self._ahead
        if ahead is not None:
            self._compare(chunk, ahead)
            return
        while len(self._sent) >= CHUNKS_IN_FLIGHT_MAX:
            await self._settle()
            if self._ahead is not None:  # another attempt has overtaken this one
                self._compare(chunk, self._ahead)
                return
        await self._send(chunk)

    async def finish(self) -> None:
        """Wait until everything is written."""
        while self._sent:
            await self._settle()
        if self._ahead is not None:
            raise _rows_changed(f"there were {self._ahead.row_count} rows and more")

    def _compare(self, chunk: Chunk, ahead: Progress, *, is_ours: bool = False) -> None:
        """Skip a chunk that is already written; refuse one that differs from it."""
        after = chunk.after
        if after.chunk < ahead.chunk and not after.is_last:
            self._skip(after, is_ours=is_ours)
        elif after == ahead:
            self._skip(after, is_ours=is_ours)
            self._ahead = None
        else:
            raise _rows_changed(f"chunk {after.chunk} from row {chunk.first_row} on is another one")

    def _skip(self, after: Progress, *, is_ours: bool) -> None:
        rows = after.row_count - self._confirmed.row_count
        self.row_count += rows
        self.skipped_row_count += 0 if is_ours else rows
        self._confirmed = after

    async def _send(self, chunk: Chunk) -> None:
        assert chunk.request is not None, chunk.after
        self._sent.append((chunk, await self._begin_transact(chunk.request)))

    async def _begin_transact(self, request: pipeline_pb2.TransactRequest) -> Future[Any]:
        timeout_s = min(self._limits.timeout_s, ATTEMPT_S_MAX)
        while (lane := self._connection.write_lane(self.key)) is None:
            await self._connection.ready(timeout_s)
        answer: Future[Any] = lane.transact(request, timeout_s, None)
        answer.add_done_callback(_retrieve)
        return answer

    async def _transact(self, request: pipeline_pb2.TransactRequest) -> int:
        """Run a transaction; return the index of its last entry."""
        answer = await (await self._begin_transact(request))
        return int(answer.results[-1].put.header.index)

    async def _settle(self) -> None:
        """Wait for the first chunk in flight, and act on its outcome."""
        chunk, future = self._sent[0]
        try:
            answer = await future
        except ConditionFailed:
            await self._resolve()
        except OnelogError as error:
            if judge(error) is Verdict.FINAL:
                await self._drain()
                raise _of_row(error, chunk) from None
            await self._wait(error)
            await self._resolve()
        else:
            self._sent.popleft()
            self.last_index = int(answer.results[-1].put.header.index)
            self.row_count += chunk.after.row_count - self._confirmed.row_count
            self._confirmed = chunk.after
            self._moved()

    async def _resolve(self) -> None:
        """Read how far the partition has come, by this attempt or another, and continue there."""
        await self._drain()
        sent = list(self._sent)
        self._sent.clear()
        found = await self._read()
        known = None if found is None else decode_progress(found.value)
        if found is None or known is None or known.chunk < self._confirmed.chunk:
            raise FailedPrecondition(
                "what the database remembers of the job is gone: it has expired, was deleted, or "
                "the database was restored",
                reason="WRITE_PROGRESS_LOST",
            )
        if known.batch > self._begin.batch:
            raise FailedPrecondition(
                f"batch {known.batch} is being written", reason="WRITE_BATCH_OVER"
            )
        if known.chunk == self._confirmed.chunk:
            if known != self._confirmed:
                raise _rows_changed(f"chunk {known.chunk} is another one")
        else:
            self._ahead = known
            self.last_index = found.version
            self._moved()
        for chunk, future in sent:
            if self._ahead is not None:
                # One of our chunks may have been written behind a chunk of another attempt.
                self._compare(chunk, self._ahead, is_ours=future.exception() is None)
            else:
                await self._send(chunk)

    async def _drain(self) -> None:
        """Wait until nothing is in flight, whatever the outcome."""
        await asyncio.gather(*(future for _, future in self._sent), return_exceptions=True)

    async def _read(self) -> Item | None:
        while True:
            try:
                return await self._kv.get(self.key)
            except OnelogError as error:
                await self._wait(error)

    async def _wait(self, error: OnelogError) -> None:
        """Wait before another attempt; raise the error if it is final or time is up."""
        if judge(error) is Verdict.FINAL:
            raise error
        if monotonic() - self._moved_s >= self._limits.timeout_s:
            error.add_note(f"there was no progress for {self._limits.timeout_s:g} s")
            raise error
        await asyncio.sleep(self._backoff.next_s(error))

    def _moved(self) -> None:
        self._moved_s = monotonic()
        self._backoff.attempts = 0


def _retrieve(answer: Future[Any]) -> None:
    """Retrieve the outcome: asyncio prints errors that an abandoned writer never retrieves."""
    if not answer.cancelled():
        answer.exception()


def _rows_changed(what: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"the rows are not those that this job has written before: {what}; "
        "each attempt must bring the same rows of a partition in the same order",
        reason="WRITE_ROWS_CHANGED",
    )


def _of_row(error: OnelogError, chunk: Chunk) -> OnelogError:
    """Return a refusal with the row that caused it and the reason for that row."""
    position = error.metadata.get("position", "")
    metadata = dict(error.metadata)
    what = f"of the rows from {chunk.first_row} on"
    if position.isdigit() and int(position) < len(chunk.rows):
        metadata["row"] = str(chunk.rows[int(position)])
        what = f"row {metadata['row']}"
    reason = error.metadata.get("cause", error.reason)
    return make_error(error.code, f"{what}: {error.message}", reason, metadata)
