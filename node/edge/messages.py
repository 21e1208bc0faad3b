"""Conversions between API messages and values of the projections, shared by several services.

**Stream records.** Which records to read is decided on the state, on the loop. The log is read on
another thread, because that may wait for a disk. Records that are trimmed in between would be
missing silently, so the decision is repeated and the answer reports the gap
(``PageRead.is_current``). A decision on a state of the past cannot be repeated: records that the
log has lost since are COMPACTED (``PageRead.is_whole``). Records that cannot be read, because a
file is damaged, are waited for as long as a copy may come and the caller has time; then they are
gaps.

**Points of series.** Columns stay arrays, and no code loops over values: a packed field is the
bytes of its array (onelog/packed.py), and so is a column of a batch
(projections/timeseries/point_batch.py). Errors that do not depend on the state (names, counts,
times, values) are found here, before anything is written.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from onelog.errors import OutOfRange, TooLarge, Unavailable
from onelog.node.edge.shards import Edge, invalid
from onelog.node.public_errors import error_of_bounds, error_of_reason, error_of_refusal
from onelog.node.replica.driver import ShardDriver
from onelog.node.snapshots.past import Past
from onelog.packed import PointsPacker, join_times, unsized
from onelog.projections.kv.reads import KeyValue
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.shard_state import Projections
from onelog.projections.stream.commands import Cause
from onelog.projections.stream.filters import EVERYTHING, RecordFilter
from onelog.projections.stream.limits import READ_SIZE_MAX, RECORD_KEY_SIZE_MAX
from onelog.projections.stream.reads import Gap, Page, PageRead, Record
from onelog.projections.timeseries.limits import (
    BATCH_FIELDS_MAX,
    BATCH_POINTS_MAX,
    BATCH_RUNS_MAX,
    BATCH_SERIES_MAX,
)
from onelog.projections.timeseries.names import parse_series, series_name
from onelog.projections.timeseries.point_batch import Run
from onelog.projections.timeseries.types import FieldType
from onelog.ual.log import Log
from onelog.v1 import kv_pb2, stream_pb2, timeseries_pb2


def fill_item(target: kv_pb2.KeyValue, item: KeyValue, *, with_value: bool = True) -> None:
    """Fill in a key with its value and version."""
    target.key = item.key
    if with_value:
        target.value = item.value
    target.version = item.version
    if item.expires_ns is not None:
        target.expires_ns = item.expires_ns
    if item.lease is not None:
        target.lease_id = item.lease


# Stream records

# How often a page is read again because its records were trimmed meanwhile.
READS_MAX = 10
FILTER_VALUES_MAX = 1_000  # keys, tags, headers or names of headers that one filter names

FoundT = TypeVar("FoundT")
PlanT = TypeVar("PlanT")
Decide = Callable[[Projections, Log], PageRead]

_REASONS = {
    None: "DAMAGED",
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
    """Run work that reads the log on a thread."""
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
    deadline_s: float,
    limit: int,
    size_max: int = READ_SIZE_MAX,
    past: Past | None = None,
) -> Page:
    """Return a page of the records that ``decide`` chooses on the state as it is, or as it was.

    A repair of what is damaged is waited for as long as the deadline allows.
    """

    def run(read: PageRead, log: Log) -> Page:
        return read.run(log, limit, size_max)

    while True:
        if past is None:
            _, page = await read_current(edge, driver, decide, run, PageRead.is_current)
        else:
            page = await _read_past(edge, driver, decide, run, past)
        if not page.unreadable or not await edge.until_repaired(
            driver.number, page.unreadable, deadline_s
        ):
            return page


async def _read_past(
    edge: Edge,
    driver: ShardDriver,
    decide: Decide,
    run: Callable[[PageRead, Log], Page],
    past: Past,
) -> Page:
    """Return a page of records of a past state, which the log must still hold."""
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


def parse_filter(wanted: stream_pb2.RecordFilter) -> RecordFilter:
    """Return which records a request wants."""
    for values in (wanted.keys, wanted.tags, wanted.headers, wanted.header_names):
        if len(values) > FILTER_VALUES_MAX:
            what = "the number of keys, tags, headers or header names of a filter"
            raise error_of_bounds(Reason.LIMIT_INVALID, what, len(values), FILTER_VALUES_MAX, 0)
    prefix_size = len(wanted.key_prefix)
    if prefix_size > RECORD_KEY_SIZE_MAX:
        raise error_of_bounds(
            Reason.KEY_SIZE_INVALID, "key_prefix", prefix_size, RECORD_KEY_SIZE_MAX, 0
        )
    headers: list[tuple[str, bytes | None]]
    headers = [(header.name, header.value) for header in wanted.headers]
    headers += ((name, None) for name in wanted.header_names)
    found = RecordFilter(
        frozenset(wanted.keys), wanted.key_prefix, frozenset(wanted.tags), tuple(headers)
    )
    return EVERYTHING if found == EVERYTHING else found


def fill_filter(target: stream_pb2.RecordFilter, wanted: RecordFilter) -> None:
    """Write a filter, its values in order."""
    target.keys.extend(sorted(wanted.keys))
    target.key_prefix = wanted.key_prefix
    target.tags.extend(sorted(wanted.tags))
    for name, value in wanted.headers:
        if value is None:
            target.header_names.append(name)
        else:
            target.headers.add(name=name, value=value)


def origins(items: Iterable[Record | Gap]) -> Iterator[int]:
    """Yield where the bytes of records are."""
    for item in items:
        if isinstance(item, Record):
            yield item.offset if item.dead_letter is None else item.dead_letter.origin


def fill_record(target: stream_pb2.Record, item: Record | Gap, stream: str = "") -> None:
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
        fill_headers(target, item.headers)


def fill_headers(target: stream_pb2.Record, headers: Sequence[tuple[str, bytes]]) -> None:
    """Write the headers of a record."""
    add = target.headers.add
    for name, value in headers:
        add(name=name, value=value)


# Series points

# Names that are remembered: at most 16 MiB of them.
NAMES_MAX = 16_384
NAMES_SIZE_MAX = 256
_TYPES: dict[str, tuple[FieldType, Any]] = {
    "doubles": (FieldType.F64, np.dtype("<f8")),
    "integers": (FieldType.I64, np.dtype("<i8")),
    "bools": (FieldType.BOOL, np.dtype("u1")),
}


class _Names:
    """Canonical names of series that were written before, which most are: making and checking one
    takes 9 µs, finding it 2. Forgets everything when it is full.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, tuple[tuple[str, str], ...]], bytes] = {}

    def find_name(self, measurement: str, tags: Mapping[str, str]) -> bytes:
        """Return the name of a series; refuse what cannot be one."""
        key = measurement, tuple(tags.items())
        name = self._names.get(key)
        if name is None:
            name = series_name(measurement, tags)
            parse_series(name)
            if len(name) <= NAMES_SIZE_MAX:
                if len(self._names) >= NAMES_MAX:
                    self._names.clear()
                self._names[key] = name
        return name


_NAMES = _Names()


def count_values(series: Sequence[timeseries_pb2.SeriesPoints]) -> int:
    """Return how many values points have, all columns together."""
    return sum(len(each.times_ns) * len(each.columns) for each in series)


def parse_runs(measurement: str, series: Sequence[timeseries_pb2.SeriesPoints]) -> list[Run]:
    """Return the points of a request as runs of a batch; refuse invalid points."""
    _check_count(len(series), BATCH_SERIES_MAX, "series")
    _check_count(sum(len(each.columns) for each in series), BATCH_RUNS_MAX, "columns")
    raw_times, sizes = join_times(series)
    value_count = sum(size * len(each.columns) for size, each in zip(sizes, series, strict=True))
    _check_count(value_count, BATCH_POINTS_MAX, "values")
    all_times = np.frombuffer(raw_times, "<i8")
    runs: list[Run] = []
    types: dict[str, FieldType] = {}
    end = 0
    for size, points in zip(sizes, series, strict=True):
        begin, end = end, end + size
        _add_runs(runs, types, measurement, points, all_times[begin:end])
    if not runs:
        raise invalid("POINTS_MISSING", "there are no points to write")
    _check_count(len(types), BATCH_FIELDS_MAX, "fields")
    return runs


def _check_count(count: int, limit: int, what: str) -> None:
    if count > limit:
        metadata = {"limit": str(limit), "of": what}
        message = f"{count} {what} in one write, limit {limit}"
        raise TooLarge(message, reason="POINTS_TOO_LARGE", metadata=metadata)


def _add_runs(
    runs: list[Run],
    types: dict[str, FieldType],
    measurement: str,
    points: timeseries_pb2.SeriesPoints,
    times: NDArray[np.int64],
) -> None:
    name = _NAMES.find_name(measurement, points.tags)
    if not len(times) or not points.columns:
        raise invalid("POINTS_MISSING", f"a series without points: {name.decode()}")
    fields = set()
    for column in points.columns:
        field, kind = column.field, column.WhichOneof("values")
        if kind is None:
            raise invalid("FIELDS_INVALID", f"field {field!r} has no values")
        field_type, dtype = _TYPES[kind]
        values = np.frombuffer(unsized(getattr(column, kind).SerializeToString()), dtype)
        if len(values) != len(times):
            raise invalid(
                "FIELDS_INVALID", f"field {field!r} has {len(values)} values for {len(times)} times"
            )
        if types.setdefault(field, field_type) is not field_type:
            message = f"the request has the field {field!r} with values of two types"
            error = error_of_reason(Reason.FIELD_TYPE_MISMATCH, types[field], message)
            error.metadata["field"] = field
            raise error
        fields.add(field)
        runs.append(Run(name, field, field_type, times, values))
    if len(fields) < len(points.columns):
        raise invalid("FIELDS_INVALID", "a field comes twice in the points of one series")


def pack_runs(runs: Iterable[Run]) -> Iterator[tuple[str, timeseries_pb2.SeriesPoints]]:
    """Yield the points of a batch as they were written: measurement and message, series by series.

    Columns of one series that have the same times follow each other and are one message.
    """
    last: tuple[bytes, bytes] | None = None
    name, times, columns = b"", np.empty(0, dtype=np.int64), list[tuple[str, NDArray[Any]]]()
    for run in runs:
        run_times = np.asarray(run.times, dtype=np.int64)
        values = np.asarray(run.values)
        if run.field_type is FieldType.BOOL:
            values = values.astype(np.bool_)
        mark = run.series, run_times.tobytes()
        if last is not None and mark != last:
            yield _packed(name, times, columns)
            columns = []
        last, name, times = mark, run.series, run_times
        columns.append((run.field, values))
    if last is not None:
        yield _packed(name, times, columns)


def _packed(
    name: bytes, times: NDArray[np.int64], columns: list[tuple[str, NDArray[Any]]]
) -> tuple[str, timeseries_pb2.SeriesPoints]:
    parsed = parse_series(name)
    data = PointsPacker().pack(parsed.tags, times, columns)
    return parsed.measurement, timeseries_pb2.SeriesPoints.FromString(data)
