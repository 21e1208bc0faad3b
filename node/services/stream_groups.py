"""Fetching: the next records of a group for one of its members, and waiting for them.

A fetch is an entry, because what a member holds is part of the state: records that nobody holds any
more are claimed, else those behind the group's cursors are read from the log and delivered. One
that finds nothing writes nothing and waits. Records that the filter of a group leaves out are
passed over without an entry, up to the next delivery or the end of the fetch: a group that wants
few records of many costs one entry for each fetch and not one for each record.

Members that would take the same records stand in a line: one of them looks, waits and writes, the
others wait for their turn, first come first served. So one new record wakes one member, however
many wait, and a delivery is never decided on a cursor that another is just moving. Whoever hangs up
leaves the line. When the node stops, each comes to its turn, finds no time left and is answered.
While a fetch waits it keeps its member in the group, as heartbeats do.

In a session a fetch is exact: the same request is given the same records again, read from where its
entry stands in the log, also if its member has no part in the group any more.

Damage is no failure of a member. What is to be handed over is read before the entry is written, so
no delivery of a record is counted that cannot be read. It is waited for while a peer may give a
copy: a group does not move past it until every member of the cluster was asked. Then it is shown as
a gap, and the cursor passes it; a claim leaves it to a later claim, when it can be read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from onelog.cluster.raft.member import LEADER
from onelog.errors import OnelogError
from onelog.node.edge.calls import Call
from onelog.node.edge.messages import fill_record, found, in_thread, origins, read_current
from onelog.node.edge.operation import applied, fill_header
from onelog.node.edge.shards import (
    Edge,
    Written,
    fill_log_read,
    parse_namespace,
    parse_session,
    write_options,
)
from onelog.node.public_errors import error_of_bounds, error_of_reason
from onelog.node.replica.driver import ShardDriver, own_task
from onelog.node.services.stream_operations import (
    encode_checked,
    parse_limit,
    parse_names,
    parse_ns,
)
from onelog.projections.codec import Ranges, SessionRef, bound_ranges, read_prefix
from onelog.projections.limits import U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import Duplicate, Refused
from onelog.projections.shard_state import Projections
from onelog.projections.stream.commands import Claim, Deliver, GroupHeartbeat, decode_command
from onelog.projections.stream.filters import EVERYTHING, RecordFilter
from onelog.projections.stream.groups import Group
from onelog.projections.stream.limits import OFFSETS_MAX, PENDING_MAX, READ_SIZE_MAX
from onelog.projections.stream.operations import (
    claimable_from,
    decode_claimed,
    list_claimable,
    refuse_member,
)
from onelog.projections.stream.reads import (
    Gap,
    LostRecord,
    Page,
    PageRead,
    Record,
    estimate_size,
    gaps,
    read_at,
)
from onelog.projections.stream.state import StreamState
from onelog.projections.system.commands import TYPE_BATCH, Batch, encode_batch
from onelog.projections.system.commands import decode_command as decode_system_command
from onelog.ual.entry import Unreadable
from onelog.ual.errors import EntriesDamaged
from onelog.ual.log import Log
from onelog.v1 import common_pb2, stream_pb2

FETCH_DEFAULT = 100
WAIT_MS_MAX = 60_000
ANSWER_S = 0.1  # a fetch that finds nothing is answered this long before the call's deadline
# How often to check for nacked records whose delay is over.
RETURNED_LOOK_S = 0.1
_PRESENT = common_pb2.ReadOptions()


def parse_wait_s(wait_ms: int) -> float:
    """Return how long a call wants to wait."""
    if wait_ms > WAIT_MS_MAX:
        raise error_of_bounds(Reason.LIMIT_INVALID, "wait_ms", wait_ms, WAIT_MS_MAX, 0)
    return wait_ms / 1000


@dataclass(slots=True)
class _Line:
    """Those who would take the same records."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # wakes in the order of asking
    count: int = 0
    is_idle: bool = False  # the member whose turn it is waits for a record


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


class _Repeated(Exception):
    """A request was done before in its session; ``written`` is its outcome."""

    def __init__(self, written: Written) -> None:
        super().__init__(written)
        self.written = written


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
        wait_s = parse_wait_s(request.wait_ms)
        asked = self._asked(request, parse_limit(request.limit, FETCH_DEFAULT, OFFSETS_MAX))
        answer = stream_pb2.FetchRecordsResponse()
        # Certain that this state knows of everything that was acknowledged.
        await self._edge.read(asked.shard, _PRESENT, call)
        until_s = min(self._clock.now_s() + wait_s, call.deadline_s - ANSWER_S)
        try:
            _, group = self._look(asked)
            session_s = group.members.rows[asked.member].session_ns / 1e9
            renewed = self._renew(asked, call)
            if renewed is not None:
                await renewed
            with self._staying(asked, session_s / 3, call):
                return await self._queue_up(asked, group, wait_s, until_s, answer, call)
        except _Repeated as repeated:
            await self._answer(asked, repeated.written, answer, call)
            return answer

    async def claim(
        self, request: stream_pb2.ClaimRecordsRequest, call: Call
    ) -> stream_pb2.ClaimRecordsResponse:
        """Return records that a member took over from others."""
        idle_ns = parse_ns("idle_ms", request.idle_ms, Reason.TTL_INVALID)
        asked = self._asked(request, parse_limit(request.limit, FETCH_DEFAULT, OFFSETS_MAX))
        answer = stream_pb2.ClaimRecordsResponse()
        # As for a fetch: a new leader may not have applied the first of two.
        await self._edge.read(asked.shard, _PRESENT, call)
        try:
            await self._claim(asked, idle_ns, answer, call)
        except _Repeated as repeated:
            await self._answer(asked, repeated.written, answer, call)
        return answer

    async def _queue_up(
        self,
        asked: _Asked,
        group: Group,
        wait_s: float,
        until_s: float,
        answer: stream_pb2.FetchRecordsResponse,
        call: Call,
    ) -> stream_pb2.FetchRecordsResponse:
        """Take a turn in the line of those who would take the same records."""
        place = asked.shard, group.id, 0 if group.head.config.shared else asked.member
        line = self._lines.setdefault(place, _Line())
        line.count += 1
        try:
            if line.is_idle and wait_s == 0:
                self._check_new(asked)
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

    def _asked(self, request: Any, limit: int) -> _Asked:
        options = write_options(request)
        stream, group = parse_names(request)
        return _Asked(
            self._edge.find_shard(stream.encode()),
            parse_namespace(request.namespace),
            stream,
            group,
            request.member_id,
            request.generation,
            limit,
            parse_session(options),
            options,
        )

    def _nothing(
        self,
        asked: _Asked,
        answer: stream_pb2.FetchRecordsResponse,
        passed: "_Passed | None" = None,
    ) -> stream_pb2.FetchRecordsResponse:
        answer.header.shard = asked.shard
        if asked.options.with_cost:
            answer.header.cost.tier = common_pb2.TIER_HOT
            if passed is not None and passed.visit_count:
                log = self._edge.replica(asked.shard).shard.log
                fill_log_read(answer.header.cost, log, passed.visit_count, passed.lowest)
        return answer

    def _renew(self, asked: _Asked, call: Call) -> Awaitable[object] | None:
        """Renew the member's session if a third of it has passed: a fetch is a heartbeat.

        Whatever its outcome: who looks at the group next finds the member in it, or not.
        """
        _, group = self._look(asked)
        driver = self._edge.leading(asked.shard)
        member = group.members.rows[asked.member]
        left_ns = member.deadline_ns - driver.shard.log_time.now_ns()
        if left_ns * 3 > member.session_ns * 2:
            return None
        beat = GroupHeartbeat(asked.stream, asked.group, asked.member)
        return driver.propose([encode_checked(beat, asked.namespace)], call.deadline_s)

    @contextmanager
    def _staying(self, asked: _Asked, third_s: float, call: Call) -> Iterator[None]:
        """Look at the member's session after each third of it, while its fetch waits."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def look_again() -> None:
            nonlocal timer
            with suppress(OnelogError, _Repeated):  # the fetch comes to know it when it looks
                self._renew(asked, call)
                timer = loop.call_later(third_s, look_again)

        timer = loop.call_later(third_s, look_again)
        try:
            yield
        finally:
            timer.cancel()

    # A turn

    async def _take_turn(
        self,
        asked: _Asked,
        line: _Line,
        until_s: float,
        answer: stream_pb2.FetchRecordsResponse,
        call: Call,
    ) -> stream_pb2.FetchRecordsResponse:
        """Claim or deliver what is ready, or wait until something is."""
        self._check_new(asked)
        driver = self._edge.leading(asked.shard)
        ready = _Ready(self, asked, driver)
        while await self._wait(ready, line, asked, until_s):
            stream, group = self._look(asked)
            if ready.is_returned(stream, group):
                await self._claim(asked, U64_MAX, answer, call)
                return answer
            if await self._deliver(asked, ready.passed, answer, call):
                return answer
            if self._clock.now_s() >= call.deadline_s - ANSWER_S:
                break
        await self._pass_over(asked, ready.passed, call)
        return self._nothing(asked, answer, ready.passed)

    async def _wait(self, ready: "_Ready", line: _Line, asked: _Asked, until_s: float) -> bool:
        """Wait until ``ready`` says so; False if it did not in time."""
        if ready():
            return True
        line.is_idle = True
        try:
            left_s = until_s - self._clock.now_s()
            return await self._edge.waits(asked.shard).until(ready, left_s)
        finally:
            line.is_idle = False

    def _check_new(self, asked: _Asked) -> None:
        """Raise ``_Repeated`` if the session of a request has its outcome already."""
        if asked.session is None:
            return
        # A repetition is recognised by its caller, whatever was claimed or delivered then.
        fetch = Claim(asked.stream, asked.group, asked.member, asked.generation, 0, asked.limit)
        draft = encode_checked(fetch, asked.namespace, asked.session)
        before = found(self._edge.leading(asked.shard).shard.projections.router.answered(draft))
        if before is not None:
            raise _Repeated(Written(asked.shard, before.index, (before,)))

    def _look(self, asked: _Asked) -> tuple[StreamState, Group]:
        """Return stream and group of a fetch, if this node leads and its member may take.

        Whether the member may is not asked for a repetition: it was when it first came.
        """
        reads = self._edge.leading(asked.shard).shard.projections.stream
        stream, group = found(reads.find_group(asked.namespace, asked.stream, asked.group))
        self._check_new(asked)
        found(refuse_member(group, asked.member, asked.generation))
        return stream, group

    async def _claim(self, asked: _Asked, idle_ns: int, answer: Any, call: Call) -> None:
        passed = await self._find_passed(asked, idle_ns, call)
        command = Claim(
            asked.stream, asked.group, asked.member, asked.generation, idle_ns, asked.limit, passed
        )
        draft = encode_checked(command, asked.namespace, asked.session)
        written = await self._edge.write(asked.shard, [draft], asked.options, call)
        await self._answer(asked, written, answer, call)

    async def _find_passed(self, asked: _Asked, idle_ns: int, call: Call) -> Ranges:
        """Return which entries a claim passes over: it would count a delivery of nothing."""
        edge, shard = self._edge, self._edge.leading(asked.shard).shard
        now_ns = shard.log_time.now_ns()
        entries = list_claimable(self._look(asked), asked.member, idle_ns, asked.limit, now_ns)
        while True:
            unreadable = await in_thread(edge, lambda: _find_unreadable(shard.log, entries))
            if not unreadable or not await edge.until_repaired(
                asked.shard, unreadable, call.deadline_s
            ):
                return bound_ranges(shard.shipping.repair.unreadable)

    async def _deliver(self, asked: _Asked, passed: "_Passed", answer: Any, call: Call) -> bool:
        """Read what is next and deliver it to the member; False: the filter left all of it out."""
        plan, pages, is_cut = await self._read_next(asked, passed, call)
        commands: list[Deliver] = []
        items: list[Record | Gap] = []
        for (number, start, end, _), page in zip(plan.parts, pages, strict=False):
            passed.add(number, page, end)
            if page.next_offset <= start:
                continue  # what is next may be repaired soon
            offsets = tuple(each.offset for each in page.items if isinstance(each, Record))
            commands.append(Deliver(
                asked.stream, asked.group, asked.member, asked.generation, number,
                start, min(page.next_offset, end), offsets,
            ))  # fmt: skip
            items += page.items
        if not commands or (not items and plan.is_filtered):
            if is_cut:  # the next fetch may find it repaired
                self._nothing(asked, answer, passed)
            return is_cut
        session = asked.session if len(commands) == 1 else None
        drafts = [encode_checked(each, asked.namespace, session) for each in commands]
        if len(drafts) > 1:
            drafts = encode_batch(drafts, (), asked.namespace, asked.session)
        written = await self._edge.write(asked.shard, drafts, asked.options, call)
        if isinstance(written.results[0], Duplicate):
            await self._answer(asked, written, answer, call)
            return True
        applied(written.results[0])
        _fill_header(answer, written)
        if answer.header.HasField("cost") and passed.visit_count:
            log = self._edge.replica(asked.shard).shard.log
            lowest = min([passed.lowest, *origins(items)])
            fill_log_read(answer.header.cost, log, passed.visit_count, lowest)
        for item in items:
            _fill_item(answer, item, 1)
        return True

    async def _pass_over(self, asked: _Asked, passed: "_Passed", call: Call) -> None:
        """Move the cursors behind records that the filter left out.

        The outcome does not matter: without it, the next fetch visits the same records again.
        """
        stream, group = self._look(asked)
        cursors = group.cursors.rows
        drafts = [
            encode_checked(
                Deliver(
                    asked.stream, asked.group, asked.member, asked.generation, number,
                    cursors[number], offset, (),
                ),
                asked.namespace,
            )
            for number, offset in sorted(passed.offsets(group).items())
            if cursors[number] < offset <= stream.partitions[number].end_offset
        ]  # fmt: skip
        if drafts:
            await self._edge.leading(asked.shard).propose(drafts, call.deadline_s)

    async def _read_next(
        self, asked: _Asked, passed: "_Passed", call: Call
    ) -> tuple["_Plan", list[Page], bool]:
        """Return what is next of each partition, and whether some may still be repaired.

        What may be repaired, and what is behind it in its partition, is not in the pages.
        """
        edge, driver = self._edge, self._edge.leading(asked.shard)
        while True:
            plan, pages = await read_current(
                edge,
                driver,
                lambda projections, log: self._plan(asked, passed, projections, log),
                _Plan.run,
                _Plan.is_current,
            )
            unreadable = [each for page in pages for each in page.unreadable]
            if not unreadable or not await edge.until_repaired(
                asked.shard, unreadable, call.deadline_s
            ):
                break
        is_cut = driver.shard.shipping.repair.is_pending(unreadable)
        if is_cut:
            pages = [page.before_damage() for page in pages]
        return plan, pages, is_cut

    def _plan(
        self, asked: _Asked, passed: "_Passed", projections: Projections, log: Log
    ) -> "_Plan":
        """Return what to read: from all partitions of the member, furthest behind first."""
        stream, group = self._look(asked)
        room = PENDING_MAX - len(group.pending)
        if room <= 0:
            raise error_of_reason(Reason.PENDING_FULL, len(group.pending))
        cursors, wanted, offsets = (
            group.cursors.rows,
            group.head.config.filter,
            passed.offsets(group),
        )
        parts = []
        for number in group.owned(asked.member):
            partition, cursor = stream.partitions[number], cursors[number]
            start = max(cursor, offsets.get(number, 0))
            if start < partition.end_offset:
                read = projections.stream.page_read(log, [(partition, start)], 0, wanted)
                parts.append(_Part(number, cursor, partition.end_offset, read))
        parts.sort(key=lambda part: part.start)
        return _Plan(parts, min(asked.limit, room), wanted is not EVERYTHING)

    # Answers

    async def _answer(self, asked: _Asked, written: Written, answer: Any, call: Call) -> None:
        """Answer with the records of a claim or a delivery that is in the log."""
        result = written.results[0]
        done = applied(result)
        _fill_header(answer, written)
        driver = self._edge.replica(asked.shard)
        log = driver.shard.log
        if done.value is not None:  # a claim, which says which records it took
            taken = decode_claimed(done.value)
            records = await self._read_all(
                asked,
                call,
                lambda: [read_at(log, offset, 0, number) for number, offset, _ in taken],
            )
            _fill_cost(answer, log, records)
            for record, (_, _, deliveries) in zip(records, taken, strict=True):
                _fill_item(answer, record, deliveries)
            return
        index = answer.header.index
        commands = await in_thread(self._edge, lambda: _read_delivered(log, index))
        records = await self._read_all(
            asked,
            call,
            lambda: [
                read_at(log, offset, 0, command.partition)
                for command in commands
                for offset in command.offsets
            ],
        )
        found_records = iter(records)
        delivered = [
            (command, list(islice(found_records, len(command.offsets)))) for command in commands
        ]
        _fill_cost(answer, log, [record for _, its in delivered for record in its])
        for command, its in delivered:
            for gap in self._find_gaps(driver, asked, command):
                _fill_item(answer, gap, 1)
            for record in its:
                _fill_item(answer, record, 1)

    async def _read_all(
        self, asked: _Asked, call: Call, read: Callable[[], list[Record | LostRecord]]
    ) -> list[Record | Gap]:
        """Return records, and gaps for those that cannot be read and are not repaired in time."""
        edge, deadline_s = self._edge, call.deadline_s
        while True:
            records = await in_thread(edge, read)
            lost = [each.entries for each in records if isinstance(each, LostRecord)]
            if not lost or not await edge.until_repaired(asked.shard, lost, deadline_s):
                return [each.gap if isinstance(each, LostRecord) else each for each in records]

    def _find_gaps(self, driver: ShardDriver, asked: _Asked, command: Deliver) -> Sequence[Gap]:
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
        self.passed = _Passed()

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
        offsets = self.passed.offsets(group)
        for number in group.owned(asked.member):
            if max(cursors[number], offsets.get(number, 0)) < partitions[number].end_offset:
                return True
        return self.is_returned(stream, group)

    def is_returned(self, stream: StreamState, group: Group) -> bool:
        """Tell whether there was a pending record without a holder, at the last check."""
        if not group.pending.rows:
            return False
        now_s = self._shard.clock.now_s()
        if now_s - self._looked_s >= RETURNED_LOOK_S:
            self._looked_s = now_s
            owned = frozenset(group.owned(self._asked.member))
            passed = bound_ranges(self._shard.shipping.repair.unreadable)
            self._returned_ns = claimable_from((stream, group), U64_MAX, owned, passed)
        returned_ns = self._returned_ns
        return returned_ns is not None and returned_ns <= self._shard.log_time.now_ns()


class _Passed:
    """What one fetch has visited: how far in each partition, how many records, from which on."""

    def __init__(self) -> None:
        self._mark: tuple[int, int, RecordFilter] | None = None
        self._offsets: dict[int, int] = {}
        self.visit_count = 0
        self.lowest = U64_MAX

    def offsets(self, group: Group) -> dict[int, int]:
        """Return up to where partitions hold nothing for a group, if that is still so.

        A new filter or a seek begins again.
        """
        mark = group.id, group.head.generation, group.head.config.filter
        if mark != self._mark:
            self._mark = mark
            self._offsets.clear()
        return self._offsets

    def add(self, partition: int, page: Page, end: int) -> None:
        """Note a page that was read."""
        self._offsets[partition] = min(page.next_offset, end)
        self.visit_count += page.visit_count
        if page.first_visited is not None:
            self.lowest = min(self.lowest, page.first_visited)


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
    is_filtered: bool

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


def _find_unreadable(log: Log, indexes: Sequence[int]) -> list[Unreadable]:
    """Return which entries cannot be read; in a thread."""
    found = []
    for index in indexes:
        try:
            log.read(index)
        except EntriesDamaged as error:
            found.append(Unreadable(error.first_index, error.last_index))
    return found


def _read_delivered(log: Log, index: int) -> list[Deliver]:
    """Return the deliveries that a request was, one or a batch; in a thread."""
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
        deliveries.append(command)
    return deliveries


def _fill_header(answer: Any, written: Written) -> None:
    fill_header(answer.header, written.shard, written.first_index, written.results[0])
    if written.cost is not None:
        answer.header.cost.CopyFrom(written.cost)


def _fill_cost(answer: Any, log: Log, items: Sequence[Record | Gap]) -> None:
    if answer.header.HasField("cost"):
        read = list(origins(items))
        if read:
            fill_log_read(answer.header.cost, log, len(read), min(read))


def _fill_item(answer: Any, item: Record | Gap, deliveries: int) -> None:
    target = answer.records.add()
    fill_record(target, item)
    if isinstance(item, Record):
        target.delivery_count = deliveries
