"""Fetching: the next records of a group for one of its members, and waiting for them.

A fetch is an entry, because what a member holds is part of the state: records that nobody holds any
more are claimed, else those behind the group's cursors are read from the log and delivered. One
that finds nothing writes nothing and waits.

Members that would take the same records stand in a line: one of them looks, waits and writes, the
others wait for their turn, first come first served. So one new record wakes one member, however
many wait, and a delivery is never decided on a cursor that another is just moving. Whoever hangs up
leaves the line. When the node stops, each comes to its turn, finds no time left and is answered.

In a session a fetch is exact: the same request is given the same records again, read from where its
entry stands in the log.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onelog.cluster.raft.member import LEADER
from onelog.node.edge.calls import Call
from onelog.node.edge.messages import found, in_thread, origins, put_record, read_current
from onelog.node.edge.operation import applied, put_header
from onelog.node.edge.shards import (
    Edge,
    Written,
    namespace_of,
    put_log_read,
    session_of,
    write_options,
)
from onelog.node.public_errors import error_of_reason
from onelog.node.replica.driver import ShardDriver, own_task
from onelog.node.services.stream_operations import (
    by_stream,
    encode_checked,
    limit_of,
    names_of,
    ns_of,
)
from onelog.projections.codec import SessionRef, read_prefix
from onelog.projections.limits import U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import Duplicate, Refused
from onelog.projections.shard_state import Projections
from onelog.projections.stream.commands import Claim, Deliver, decode_command
from onelog.projections.stream.groups import Group
from onelog.projections.stream.limits import OFFSETS_MAX, PENDING_MAX, READ_SIZE_MAX
from onelog.projections.stream.operations import (
    claimable_from,
    decode_claimed,
    refuse_member,
)
from onelog.projections.stream.reads import (
    Gap,
    Page,
    PageRead,
    Record,
    estimate_size,
    gaps,
    open_record,
)
from onelog.projections.stream.state import StreamState
from onelog.projections.system.commands import TYPE_BATCH, Batch, encode_batch
from onelog.projections.system.commands import decode_command as decode_system_command
from onelog.ual.entry import Draft
from onelog.ual.log import Log
from onelog.v1 import common_pb2, stream_pb2

FETCH_DEFAULT = 100
WAIT_MS_MAX = 60_000
ANSWER_S = 0.1  # an answer that finds nothing leaves so long before the call's deadline
# How often it is looked whether a record was given back whose delay is over.
RETURNED_LOOK_S = 0.1
_PRESENT = common_pb2.ReadOptions()


def wait_s_of(wait_ms: int) -> float:
    """Return how long a call wants to wait."""
    if wait_ms > WAIT_MS_MAX:
        raise error_of_reason(Reason.LIMIT_INVALID, wait_ms)
    return wait_ms / 1000


@dataclass(slots=True)
class _Line:
    """Those who would take the same records."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # wakes in the order of asking
    count: int = 0
    is_idle: bool = False  # whoever has the turn waits for something to be there


@dataclass(frozen=True, slots=True)
class _Asked:
    """One fetch: who asks for what."""

    shard: int
    namespace: str
    stream: str
    group: str
    member: int
    generation: int
    limit: int
    session: SessionRef | None
    options: common_pb2.WriteOptions


class Fetches:
    """The fetches and claims of one process."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._clock = edge.context.clock
        self._lines: dict[tuple[int, int, int], _Line] = {}

    async def fetch(
        self, request: stream_pb2.FetchRecordsRequest, call: Call
    ) -> stream_pb2.FetchRecordsResponse:
        """Return the next records for a member."""
        wait_s = wait_s_of(request.wait_ms)
        asked = self._asked(request, limit_of(request.limit, FETCH_DEFAULT, OFFSETS_MAX))
        answer = stream_pb2.FetchRecordsResponse()
        # Certain that this state knows of everything that was acknowledged.
        await self._edge.read(asked.shard, _PRESENT, call)
        until_s = min(self._clock.now_s() + wait_s, call.deadline_s - ANSWER_S)
        _, group = self._look(asked)
        place = asked.shard, group.id, 0 if group.head.config.shared else asked.member
        line = self._lines.setdefault(place, _Line())
        line.count += 1
        try:
            if line.is_idle and wait_s == 0 and self._before(asked) is None:
                return self._nothing(asked, answer)
            try:
                await own_task()
                async with asyncio.timeout(max(until_s - self._clock.now_s(), ANSWER_S)):
                    await line.turn.acquire()
            except TimeoutError:
                return self._nothing(asked, answer)
            try:
                return await self._take_turn(asked, line, until_s, answer, call)
            finally:
                line.turn.release()
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[place]

    async def claim(
        self, request: stream_pb2.ClaimRecordsRequest, call: Call
    ) -> stream_pb2.ClaimRecordsResponse:
        """Return records that a member took over from others."""
        idle_ns = ns_of(request.idle_ms, Reason.TTL_INVALID)
        asked = self._asked(request, limit_of(request.limit, FETCH_DEFAULT, OFFSETS_MAX))
        answer = stream_pb2.ClaimRecordsResponse()
        await self._claim(asked, idle_ns, answer, call)
        return answer

    def _asked(self, request: Any, limit: int) -> _Asked:
        options = write_options(request)
        return _Asked(
            self._edge.shard_of_all(by_stream(request)),
            namespace_of(request.namespace),
            *names_of(request),
            request.member_id,
            request.generation,
            limit,
            session_of(options),
            options,
        )

    def _nothing(
        self, asked: _Asked, answer: stream_pb2.FetchRecordsResponse
    ) -> stream_pb2.FetchRecordsResponse:
        answer.header.shard = asked.shard
        return answer

    # A turn

    async def _take_turn(
        self,
        asked: _Asked,
        line: _Line,
        until_s: float,
        answer: stream_pb2.FetchRecordsResponse,
        call: Call,
    ) -> stream_pb2.FetchRecordsResponse:
        """Take what there is, or wait for something to be there."""
        before = self._before(asked)
        if before is not None:
            await self._answer(asked, Written(asked.shard, before.index, (before,)), answer)
            return answer
        driver = self._edge.leading(asked.shard)
        ready = _Ready(self, asked, driver)
        if not ready():
            line.is_idle = True
            try:
                left_s = until_s - self._clock.now_s()
                is_ready = await self._edge.waits(asked.shard).until(ready, left_s)
            finally:
                line.is_idle = False
            if not is_ready:
                return self._nothing(asked, answer)
        _, group = self._look(asked)
        if ready.is_returned(group):
            await self._claim(asked, U64_MAX, answer, call)
        else:
            await self._deliver(asked, answer, call)
        return answer

    def _before(self, asked: _Asked) -> Duplicate | None:
        """Return what became of the same request of the same session, if it came before."""
        if asked.session is None:
            return None
        projections = self._edge.leading(asked.shard).shard.projections
        return projections.system.sessions.answered(asked.session)

    def _look(self, asked: _Asked) -> tuple[StreamState, Group]:
        """Return stream and group of a fetch, if this node leads and its member may take."""
        reads = self._edge.leading(asked.shard).shard.projections.stream
        stream, group = found(reads.find_group(asked.namespace, asked.stream, asked.group))
        found(refuse_member(group, asked.member, asked.generation))
        return stream, group

    async def _claim(self, asked: _Asked, idle_ns: int, answer: Any, call: Call) -> None:
        command = Claim(
            asked.stream, asked.group, asked.member, asked.generation, idle_ns, asked.limit
        )
        draft = encode_checked(command, asked.namespace, asked.session)
        written = await self._edge.write(asked.shard, [draft], asked.options, call)
        await self._answer(asked, written, answer)

    async def _deliver(self, asked: _Asked, answer: Any, call: Call) -> None:
        """Read what is next and hand it to the member."""
        plan, pages = await read_current(
            self._edge,
            self._edge.leading(asked.shard),
            lambda projections, log: self._plan(asked, projections, log),
            _Plan.run,
            _Plan.is_current,
        )
        drafts: list[Draft] = []
        items: list[Record | Gap] = []
        for (number, start, end, _), page in zip(plan.parts, pages, strict=False):
            offsets = tuple(each.offset for each in page.items if isinstance(each, Record))
            command = Deliver(
                asked.stream, asked.group, asked.member, asked.generation, number,
                start, min(page.next_offset, end), offsets,
            )  # fmt: skip
            session = asked.session if len(pages) == 1 else None
            drafts.append(encode_checked(command, asked.namespace, session))
            items += page.items
        if len(drafts) > 1:
            drafts = encode_batch(drafts, (), asked.namespace, asked.session)
        written = await self._edge.write(asked.shard, drafts, asked.options, call)
        if isinstance(written.results[0], Duplicate):
            await self._answer(asked, written, answer)
            return
        applied(written.results[0])
        _put_header(answer, written)
        _put_cost(answer, self._edge.replica(asked.shard).shard.log, items)
        for item in items:
            _put(answer, item, 1)

    def _plan(self, asked: _Asked, projections: Projections, log: Log) -> "_Plan":
        """Return what to read: from all partitions of the member, furthest behind first."""
        stream, group = self._look(asked)
        room = PENDING_MAX - len(group.pending)
        if room <= 0:
            raise error_of_reason(Reason.PENDING_FULL, len(group.pending))
        cursors, page_read = group.cursors.rows, projections.stream.page_read
        parts = [
            _Part(number, cursors[number], partition.end_offset, page_read(log, chosen, 0))
            for number in group.owned(asked.member)
            if cursors[number] < (partition := stream.partitions[number]).end_offset
            for chosen in ([(partition, cursors[number])],)
        ]
        parts.sort(key=lambda part: part.start)
        return _Plan(parts, min(asked.limit, room))

    # Answers

    async def _answer(self, asked: _Asked, written: Written, answer: Any) -> None:
        """Answer with the records of a claim or a delivery that is in the log."""
        result = written.results[0]
        done = applied(result)
        _put_header(answer, written)
        driver = self._edge.replica(asked.shard)
        log = driver.shard.log
        if done.value is not None:  # a claim, which says which records it took
            taken = decode_claimed(done.value)
            records = await in_thread(
                self._edge,
                lambda: [
                    (open_record(log, log.read(offset), 0, number), deliveries)
                    for number, offset, deliveries in taken
                ],
            )
            _put_cost(answer, log, [record for record, _ in records])
            for record, deliveries in records:
                _put(answer, record, deliveries)
            return
        index = answer.header.index
        delivered = await in_thread(self._edge, lambda: _read_delivered(log, index))
        _put_cost(answer, log, [record for _, its in delivered for record in its])
        for command, its in delivered:
            for gap in self._gaps_of(driver, asked, command):
                _put(answer, gap, 1)
            for record in its:
                _put(answer, record, 1)

    def _gaps_of(self, driver: ShardDriver, asked: _Asked, command: Deliver) -> Sequence[Gap]:
        """Return what was gone when a delivery was made that is answered again."""
        stream = driver.shard.projections.stream.find(asked.namespace, asked.stream)
        if isinstance(stream, Refused) or command.partition >= len(stream.partitions):
            return ()
        first = command.offsets[0] if command.offsets else command.next_offset
        lost = gaps(stream.partitions[command.partition], command.from_offset)
        return [gap for gap in lost if gap.last_offset < first]


class _Ready:
    """Whether a fetch has something to do: a condition for node/edge/waits.py."""

    def __init__(self, fetches: Fetches, asked: _Asked, driver: ShardDriver) -> None:
        self._fetches = fetches
        self._asked = asked
        self._shard = driver.shard
        self._returned_ns: int | None = None
        self._looked_s = float("-inf")

    def __call__(self) -> bool:
        """Tell whether there is something to take, or the fetch is in vain."""
        if self._shard.member.state != LEADER:
            return True
        asked = self._asked
        found_group = self._shard.projections.stream.find_group(
            asked.namespace, asked.stream, asked.group
        )
        if isinstance(found_group, Refused):
            return True
        stream, group = found_group
        if isinstance(refuse_member(group, asked.member, asked.generation), Refused):
            return True
        cursors, partitions = group.cursors.rows, stream.partitions
        for number in group.owned(asked.member):
            if cursors[number] < partitions[number].end_offset:
                return True
        return self.is_returned(group)

    def is_returned(self, group: Group) -> bool:
        """Tell whether there is a record that nobody holds any more, as of a moment ago."""
        if not group.pending.rows:
            return False
        now_s = self._shard.clock.now_s()
        if now_s - self._looked_s >= RETURNED_LOOK_S:
            self._looked_s = now_s
            owned = frozenset(group.owned(self._asked.member))
            self._returned_ns = claimable_from(group, U64_MAX, owned)
        returned_ns = self._returned_ns
        return returned_ns is not None and returned_ns <= self._shard.log_time.now_ns()


class _Part(NamedTuple):
    """What is to be delivered of one partition: from the cursor on, up to its end of now."""

    partition: int
    start: int
    end: int
    read: PageRead


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be read for a delivery."""

    parts: list[_Part]
    limit: int

    def is_current(self) -> bool:
        """Tell whether nothing of it was trimmed since."""
        return all(part.read.is_current() for part in self.parts)

    def run(self, log: Log) -> list[Page]:
        """Read partitions one after the other, as far as limits allow; in a thread."""
        pages: list[Page] = []
        limit, size = self.limit, 0
        for part in self.parts:
            if limit <= 0 or size >= READ_SIZE_MAX:
                break
            page = part.read.run(log, limit, READ_SIZE_MAX - size)
            records = [each for each in page.items if isinstance(each, Record)]
            limit -= len(records)
            size += sum(map(estimate_size, records))
            pages.append(page)
        return pages


def _read_delivered(log: Log, index: int) -> list[tuple[Deliver, list[Record]]]:
    """Return the deliveries that a request was, one or a batch, with their records; in a thread."""
    entry = log.read(index)
    _, reader = read_prefix(entry.plain_payload())
    entries = [entry]
    if entry.entry_type == TYPE_BATCH:
        batch = decode_system_command(TYPE_BATCH, reader)
        assert isinstance(batch, Batch), batch
        entries = [log.read(index + 1 + at) for at in range(batch.entry_count)]
    deliveries = []
    for each in entries:
        _, reader = read_prefix(each.plain_payload())
        command = decode_command(each.entry_type & 0xFF, reader)
        assert isinstance(command, Deliver), command
        records = [
            open_record(log, log.read(offset), 0, command.partition) for offset in command.offsets
        ]
        deliveries.append((command, records))
    return deliveries


def _put_header(answer: Any, written: Written) -> None:
    put_header(answer.header, written.shard, written.first_index, written.results[0])
    if written.cost is not None:
        answer.header.cost.CopyFrom(written.cost)


def _put_cost(answer: Any, log: Log, items: Sequence[Record | Gap]) -> None:
    if answer.header.HasField("cost"):
        read = list(origins(items))
        if read:
            put_log_read(answer.header.cost, log, len(read), min(read))


def _put(answer: Any, item: Record | Gap, deliveries: int) -> None:
    target = answer.records.add()
    put_record(target, item)
    if isinstance(item, Record):
        target.delivery_count = deliveries
