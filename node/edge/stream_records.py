"""Records for calls: decided on the state, read from the log by other threads, made into messages.

Reading the log may wait for a disk, so it never happens on the loop. What is trimmed between the
decision and the end of the reading would be missing without a word; the decision is then made
again, with the gap in it (``PageRead.is_current``). A state of the past cannot be decided again:
what it had and the log has lost since is COMPACTED (``PageRead.is_whole``).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from onelog.errors import OutOfRange, Unavailable
from onelog.node.edge.shards import Edge
from onelog.node.public_errors import error_of_reason, error_of_refusal
from onelog.node.replica.driver import ShardDriver
from onelog.node.snapshots.past import Past
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.shard_state import Projections
from onelog.projections.stream.commands import Cause
from onelog.projections.stream.limits import READ_SIZE_MAX
from onelog.projections.stream.pages import EVERYTHING, Gap, Page, PageRead, Record, RecordFilter
from onelog.ual.log import Log
from onelog.v1 import stream_pb2

# How often a page is read again because its records were trimmed meanwhile.
READS_MAX = 10
FILTER_VALUES_MAX = 1_000  # keys, tags or headers that one filter names

FoundT = TypeVar("FoundT")
PlanT = TypeVar("PlanT")
Decide = Callable[[Projections, Log], PageRead]

_REASONS = {
    Cause.REQUEST: "TRIMMED",
    Cause.AGE: "RETENTION_AGE",
    Cause.SIZE: "RETENTION_SIZE",
    Cause.COUNT: "RETENTION_COUNT",
    Cause.SEVERAL: "SEVERAL",
}


def found(result: FoundT | Refused) -> FoundT:
    """Return what a read of the state returned; raise why it was refused."""
    if isinstance(result, Refused):
        raise error_of_refusal(result)
    return result


async def in_thread(edge: Edge, work: Callable[[], FoundT]) -> FoundT:
    """Do something that reads the log."""
    return await asyncio.get_running_loop().run_in_executor(edge.readers, work)


async def read_current(
    edge: Edge,
    driver: ShardDriver,
    decide: Callable[[Projections, Log], PlanT],
    run: Callable[[PlanT, Log], FoundT],
    is_current: Callable[[PlanT], bool],
) -> tuple[PlanT, FoundT]:
    """Decide on the state what to read, and return that with what was read."""
    for _ in range(READS_MAX):
        shard = driver.shard
        projections, log = shard.projections, shard.log
        plan = decide(projections, log)
        result = await in_thread(edge, partial(run, plan, log))
        if shard.projections is projections and is_current(plan):
            return plan, result
    message = "records were trimmed faster than they could be read"
    raise Unavailable(message, reason="TRIMMED_MEANWHILE", retry_after_s=0.1)


async def read_page(
    edge: Edge,
    driver: ShardDriver,
    decide: Decide,
    limit: int,
    size_max: int = READ_SIZE_MAX,
    past: Past | None = None,
) -> Page:
    """Return a page of the records that ``decide`` chooses on the state as it is, or as it was."""

    def run(read: PageRead, log: Log) -> Page:
        return read.run(log, limit, size_max)

    if past is None:
        _, page = await read_current(edge, driver, decide, run, PageRead.is_current)
        return page
    log = driver.shard.log
    plan = decide(past.projections, log)
    page = await in_thread(edge, partial(run, plan, log))
    if not plan.is_whole(driver.shard.projections.stream.find_by_id, log.first_index):
        raise OutOfRange(
            "records that were there then are not kept any more",
            reason=Reason.COMPACTED.name,
            metadata={"first_index": str(log.first_index)},
        )
    return page


async def offset_at_time(
    edge: Edge,
    driver: ShardDriver,
    namespace: str,
    stream: str,
    timestamp_ns: int,
    past: Past | None = None,
) -> int:
    """Return the offset from which on a stream's records are at least as new as a log time."""
    log, reads = driver.shard.log, (past or driver.shard).projections.stream
    found(reads.find(namespace, stream))
    return found(
        await in_thread(edge, lambda: reads.offset_at_time(log, namespace, stream, timestamp_ns))
    )


def filter_of(wanted: stream_pb2.RecordFilter) -> RecordFilter:
    """Return which records a request wants."""
    for values in (wanted.keys, wanted.tags, wanted.headers):
        if len(values) > FILTER_VALUES_MAX:
            raise error_of_reason(Reason.LIMIT_INVALID, len(values))
    if not (wanted.keys or wanted.tags or wanted.headers):
        return EVERYTHING
    return RecordFilter(
        frozenset(wanted.keys),
        tags=frozenset(wanted.tags),
        headers=tuple((header.name, header.value) for header in wanted.headers),
    )


def origins(items: Iterable[Record | Gap]) -> Iterator[int]:
    """Yield where the bytes of records are."""
    for item in items:
        if isinstance(item, Record):
            yield item.offset if item.dead_letter is None else item.dead_letter.origin


def put_record(target: stream_pb2.Record, item: Record | Gap, stream: str = "") -> None:
    """Write a record, or the gap that is in its place, as a reader gets it."""
    if stream:
        target.stream = stream
    if item.partition:
        target.partition = item.partition
    if isinstance(item, Gap):
        gap = target.gap
        gap.first_offset, gap.last_offset = item.first_offset, item.last_offset
        gap.reason = _REASONS[item.cause]
        target.timestamp_ns = item.trimmed_ns
        return
    target.offset = item.offset
    target.timestamp_ns = item.timestamp_ns
    target.value = item.value
    if item.key is not None:
        target.key = item.key
    if item.tag:
        target.tag = item.tag
    if item.headers:
        put_headers(target, item.headers)


def put_headers(target: stream_pb2.Record, headers: Sequence[tuple[str, bytes]]) -> None:
    """Write the headers of a record."""
    add = target.headers.add
    for name, value in headers:
        add(name=name, value=value)
