"""Trims by request: where each partition is cut, exactly, and what is left.

The state of a partition counts records in runs (projections/stream/partition.py), so it knows in
which run a trim ends and not where in it. The leader reads that run in the log, finds the first
record that stays, and proposes both with the counts that go with it. Apply cuts there, so what it
counts afterwards is exact, whatever the bound was. A trim reads at most one run of each partition.

A consumer group ends a trim by age, size or count at its committed offset. The answer names the
group. A trim below an offset that a group still needs is refused as a whole.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import le
from typing import NamedTuple

from onelog.node.edge.calls import Call
from onelog.node.edge.messages import found, read_current
from onelog.node.edge.operation import applied, fill_header
from onelog.node.edge.shards import Edge, invalid, parse_namespace, parse_session, write_options
from onelog.node.public_errors import error_of_bounds, error_of_reason
from onelog.node.services.stream_operations import (
    check_stream,
    encode_checked,
    fill_partition,
    parse_partition,
)
from onelog.projections.codec import read_prefix
from onelog.projections.limits import TTL_NS_MAX, U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import Result
from onelog.projections.shard_state import Projections
from onelog.projections.stream.commands import Cause, TrimCut, TrimTo
from onelog.projections.stream.limits import COUNT_MAX, PARTITION_ANY
from onelog.projections.stream.partition import MARK_ROW, Partition
from onelog.projections.stream.state import StreamState
from onelog.ual.entry import Entry
from onelog.ual.log import Log
from onelog.v1 import common_pb2, stream_pb2

_PRESENT = common_pb2.ReadOptions()


class Bound(NamedTuple):
    """What a trim removes: everything below an offset, or all but a time, bytes or records."""

    cause: Cause
    operand: int


class Trims:
    """The trims of one process."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def trim(self, request: stream_pb2.TrimRequest, call: Call) -> stream_pb2.TrimResponse:
        """Remove records from the start of partitions, and say what is left."""
        edge, options = self._edge, write_options(request)
        namespace, name = parse_namespace(request.namespace), check_stream(request.stream)
        bound, number = _parse_bound(request), parse_partition(request)
        shard = edge.find_shard(name.encode())
        # Certain that this state knows of everything that was acknowledged.
        await edge.read(shard, _PRESENT, call)
        session = parse_session(options)
        driver = edge.leading(shard)
        answer = stream_pb2.TrimResponse()
        answer.header.shard = shard
        before: Result | None = None
        if session is not None:
            stream = found(driver.shard.projections.stream.find(namespace, name))
            # What was asked for tells a repetition, not where it has ended.
            cut = TrimCut(0, 0, 0, 0, 0)
            asked = TrimTo(stream.id, bound.cause, (cut,), request.past_groups)
            draft = encode_checked(asked, namespace, session)
            before = driver.shard.projections.router.answered(draft)
        held: dict[int, str] = {}
        if before is None:

            def decide(projections: Projections, _log: Log) -> _Plan:
                stream = found(projections.stream.find(namespace, name))
                now_ns = driver.shard.log_time.now_ns()
                return plan_trim(stream, number, bound, now_ns, past_groups=request.past_groups)

            plan, cuts = await read_current(edge, driver, decide, _Plan.run, _Plan.is_current)
            held = {each.cut.partition: each.kept_for for each in cuts if each.kept_for}
            command = plan.command([each.cut for each in cuts])
            if command is not None:
                draft = encode_checked(command, namespace, session)
                written = await edge.write(shard, [draft], options, call)
                applied(written.results[0])
                fill_header(answer.header, shard, written.first_index, written.results[0])
                if written.cost is not None:
                    answer.header.cost.CopyFrom(written.cost)
        else:
            applied(before)  # or why it is refused
            fill_header(answer.header, shard, 0, before)
        described = found(edge.replica(shard).shard.projections.stream.describe(namespace, name))
        for each in described.partitions:
            if number in (PARTITION_ANY, each.partition):
                left = answer.partitions.add(kept_for_group=held.get(each.partition, ""))
                fill_partition(left.left, each)
        return answer


def _parse_bound(request: stream_pb2.TrimRequest) -> Bound:
    kind, reason = request.WhichOneof("bound"), Reason.LIMIT_INVALID
    if kind in ("age_ms", "keep_size", "keep_count"):
        # To keep nothing, trim by an offset: so 0 is a mistake.
        value = getattr(request, kind)
        most = TTL_NS_MAX // 1_000_000 if kind == "age_ms" else COUNT_MAX
        if not 0 < value <= most:
            raise error_of_bounds(reason, kind, value, most)
    match kind:
        case "below_offset":
            return Bound(Cause.REQUEST, request.below_offset)
        case "age_ms":
            return Bound(Cause.AGE, request.age_ms * 1_000_000)
        case "keep_size":
            return Bound(Cause.SIZE, request.keep_size)
        case "keep_count":
            return Bound(Cause.COUNT, request.keep_count)
    message = "none of below_offset, age_ms, keep_size and keep_count is given"
    raise invalid("BOUND_INVALID", message)


def plan_trim(
    stream: StreamState,
    number: int,
    bound: Bound,
    now_ns: int,
    *,
    past_groups: bool,
) -> "_Plan":
    """Return what to look for in each partition; refuse what a group does not allow."""
    if number == PARTITION_ANY:
        partitions = stream.partitions
    elif number < len(stream.partitions):
        partitions = [stream.partitions[number]]
    else:
        raise error_of_reason(Reason.PARTITION_UNKNOWN, number)
    searches = []
    for partition in partitions:
        floor, group = U64_MAX, ""
        if not past_groups:
            cursors = {
                each.committed[partition.number]: name for name, each in stream.groups.items()
            }
            floor = min(cursors, default=U64_MAX)
            group = cursors.get(floor, "")
        if bound.cause == Cause.REQUEST and min(bound.operand, partition.end_offset) > floor:
            raise error_of_reason(Reason.TRIM_BLOCKED, floor)
        searches.append(_search(partition, bound, now_ns, floor, group))
    return _Plan(stream, bound.cause, past_groups, searches)


def _search(partition: Partition, bound: Bound, now_ns: int, floor: int, group: str) -> "_Search":
    """Return the run of a partition in which a trim ends, and what ends it there."""
    cause, operand = bound
    offset = time_ns = records = size = U64_MAX
    match cause:
        case Cause.REQUEST:
            offset = operand
        case Cause.AGE:
            time_ns = max(now_ns - operand, 0)
        case Cause.SIZE:
            size = max(partition.size - operand, 0)
        case _:
            records = max(partition.count - operand, 0)
    marks = partition.marks
    limits = array("Q", (min(offset, floor), time_ns, records, size))
    at = 0
    for start in range(0, len(marks), MARK_ROW):
        if all(map(le, marks[start : start + MARK_ROW], limits)):
            at = start
    # All before the run after this one, and the first record of that one, which ends the search.
    after = marks[at + MARK_ROW : at + 2 * MARK_ROW]
    first, _, records_before, size_before = marks[at : at + MARK_ROW] or (0, 0, 0, 0)
    return _Search(
        partition,
        partition.first_offset,
        _Limits(offset, time_ns, records, size, floor, group),
        first=first,
        last=after[0] if after else partition.end_offset - 1,
        before=(records_before, size_before) if first >= partition.first_offset else None,
        after=(after[2], after[3]) if after else (partition.count, partition.size),
        has_next=bool(after),
        is_first=not at,
    )


@dataclass(frozen=True, slots=True)
class _Limits:
    """What ends a trim: an offset, a time, the records or bytes before, a group."""

    offset: int
    time_ns: int
    records: int
    size: int
    floor: int
    group: str


class _Found(NamedTuple):
    """Where a partition is cut; ``kept_for`` is the group that keeps what lies behind."""

    cut: TrimCut
    kept_for: str


@dataclass(frozen=True, slots=True)
class _Search:
    """One partition of a planned trim: the run to read, and when to stop."""

    partition: Partition
    first_offset: int
    limits: _Limits
    first: int
    last: int
    before: tuple[int, int] | None  # records and bytes ever appended before the run, if known
    after: tuple[int, int]  # the same, up to its end
    has_next: bool  # the last record is that of the next run
    is_first: bool

    def find(self, log: Log) -> _Found:
        """Find the first record that stays; on a thread."""
        limits, number = self.limits, self.partition.number
        records, size = self._before(log) if self.before is None else self.before
        is_idle = self.is_first
        for entry in self._entries(log):
            body_size = _body_size(entry)
            stays = (
                entry.index >= limits.offset
                or entry.timestamp_ns > limits.time_ns
                or records >= limits.records
                or size + body_size > limits.size
            )
            if stays or entry.index >= limits.floor:
                before = min(limits.offset, limits.floor, entry.index)
                if is_idle:  # no record goes, so nobody has missed any
                    before = self.first_offset
                cut = TrimCut(number, before, max(before, entry.index), records, size)
                return _Found(cut, "" if stays else limits.group)
            is_idle = False
            records += 1
            size += body_size
        end = self.partition.first_offset if is_idle else self.last + 1
        return _Found(TrimCut(number, end, end, *self.after), "")

    def _before(self, log: Log) -> tuple[int, int]:
        """Count back from the end of the run, of which a part is gone.

        Trims by offset were not counted in former times.
        """
        end = self.last if self.has_next else self.last + 1
        left = [_body_size(entry) for entry in self._entries(log) if entry.index < end]
        return self.after[0] - len(left), self.after[1] - sum(left)

    def _entries(self, log: Log) -> Iterator[Entry]:
        first = max(self.first, self.first_offset, log.first_index)
        if first <= self.last:
            yield from log.scan(first, self.last, stream_id=self.partition.id)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A trim of some partitions."""

    stream: StreamState
    cause: Cause
    past_groups: bool
    searches: list[_Search]

    def is_current(self) -> bool:
        """Return whether nothing of it was trimmed or deleted since."""
        return all(
            each.partition.attached and each.partition.first_offset == each.first_offset
            for each in self.searches
        )

    def run(self, log: Log) -> list[_Found]:
        """Find where each partition is cut; on a thread."""
        return [each.find(log) for each in self.searches]

    def command(self, cuts: Sequence[TrimCut]) -> TrimTo | None:
        """Return the command; None if there is nothing to trim."""
        kept_from = {each.partition.number: each.first_offset for each in self.searches}
        left = tuple(cut for cut in cuts if cut.before > kept_from[cut.partition])
        return TrimTo(self.stream.id, self.cause, left, self.past_groups) if left else None


def _body_size(entry: Entry) -> int:
    """Return the bytes that a record counts: all behind the prefix."""
    _, reader = read_prefix(entry.plain_payload())
    return reader.left
