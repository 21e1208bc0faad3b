"""Pushing messages to a client, as many as its credit allows: the stream of ``Consume``.

A stream leases messages whenever it has credit and the queue has messages, taking its turn among
all callers that wait for the queue. Settling messages frees credit. One batch is sent at a time: a
client that does not read is leased no more, and is dropped after a while (node/edge/calls.py). When
this node stops leading the shard, the stream ends with the leader's address (NOT_LEADER). What a
client that names itself holds then is kept for its next stream (node/services/queue_absent.py).

``Credit``: a message counts against its stream from its lease until the state no longer has it
leased with that token, for whatever reason: settled through any call on any node, expired, purged,
its queue deleted. It learns this from applied entries: one that names messages is checked for
those; after any other that may end leases, everything held in the shard is checked. Invariant:
``held`` of every stream is what it was given and has not lost since, as of the last group that was
checked.

``Lines``: callers that wait for a queue are served first come, first served. A message that becomes
ready is promised to the caller that has waited longest, and to nobody else until its lease is
applied or has failed. So a hundred callers that wait for one message cost one entry of the log, and
none while there is nothing. Messages next in their message group count once per group. Invariants:
``promised`` is the sum of what called tickets may take; a ticket is in its line from when it is
drawn until it is called or put away (``with``); a line without tickets is forgotten. A promise is a
guess about a state that changes: a caller whose lease gets nothing draws again.

``Returns``: when a client goes while its stream holds messages, or while a lease is being
committed, these messages are released by an entry, at whichever node leads the queue by then. That
is tried a few times; if it fails, the leases expire by themselves. Nobody waits for it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from onelog.cluster.raft.member import LEADER
from onelog.errors import FailedPrecondition, NotFound, OnelogError, Unavailable
from onelog.node.edge.calls import Call, Elsewhere, stopping
from onelog.node.edge.operation import applied, fill_content, run_write
from onelog.node.edge.shards import Edge, Written, parse_namespace
from onelog.node.edge.waits import Waits
from onelog.node.public_errors import error_of_bounds
from onelog.node.replica.driver import ShardDriver
from onelog.node.services.queue_absent import Absent, Place, find_leased
from onelog.node.services.queue_operations import (
    LEASE,
    RELEASE,
    check_name,
    fill_leased,
    find_passed,
    find_queue,
    parse_lease,
    was_answered,
)
from onelog.projections.codec import U64, Ranges, SessionRef, read_prefix
from onelog.projections.queue.changes import acked_one
from onelog.projections.queue.commands import (
    OPERATIONS,
    TYPE_ACK,
    Ack,
    Nack,
    Purge,
    QueueDelete,
    Release,
    decode_command,
    encode_command,
    named_ids,
)
from onelog.projections.queue.limits import ITEMS_MAX, MESSAGE_KEY_SIZE_MAX
from onelog.projections.queue.message import Leased, LeasedMessage, decode_leased
from onelog.projections.queue.store import QueueState
from onelog.projections.queue.table import LEASED, READY
from onelog.projections.reasons import Reason
from onelog.projections.result import Result
from onelog.projections.system.commands import TYPE_EXPIRE, TYPE_NAMESPACE_DELETE
from onelog.ual.entry import OWNER_QUEUE, Entry
from onelog.v1 import common_pb2, queue_pb2

_NAMING = frozenset(OWNER_QUEUE << 8 | OPERATIONS[each].number for each in (Ack, Nack, Release))
_SWEEPING = frozenset(
    (
        TYPE_EXPIRE,
        TYPE_NAMESPACE_DELETE,
        *(OWNER_QUEUE << 8 | OPERATIONS[each].number for each in (Purge, QueueDelete)),
    )
)


class Held:
    """What one stream holds: messages and the tokens of their leases, and a lease on its way."""

    __slots__ = ("by_id", "consumer", "ended", "is_replaced", "queue_id", "task", "writing")

    def __init__(self, queue_id: int, consumer: bytes = b"") -> None:
        self.queue_id = queue_id
        self.by_id: dict[int, int] = {}
        self.writing: asyncio.Future[Written] | None = None
        self.consumer = consumer  # empty: a client that does not name itself
        self.task = asyncio.current_task()
        self.is_replaced = False  # by a newer stream of the same consumer
        self.ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self.by_id)


class Credit:
    """What the streams of one shard hold. Everything happens on the loop."""

    def __init__(self, driver: ShardDriver, waits: Waits) -> None:
        self._shard = driver.shard
        self._waits = waits
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, set[Held]] = {}  # by queue
        self._entries: list[Entry] = []
        self._is_sweep_due = False
        self._is_scheduled = False

    def __len__(self) -> int:
        """Return how many streams there are."""
        return sum(map(len, self._streams.values()))

    def open(self, held: Held) -> None:
        """Begin to follow what a stream holds."""
        if not self._streams:
            self._shard.listeners.append(self._on_applied)
        queue_id = held.queue_id
        self._streams.setdefault(queue_id, set()).add(held)

    def close(self, held: Held) -> None:
        """Follow it no more."""
        streams = self._streams[held.queue_id]
        streams.discard(held)
        if not streams:
            del self._streams[held.queue_id]
        if not self._streams:
            self._shard.listeners.remove(self._on_applied)
            self._entries.clear()

    def _on_applied(self, entries: list[Entry], _results: list[Result]) -> None:
        """Take what matters of a group; the work is done later, outside of Raft's."""
        for entry in entries:
            if entry.entry_type in _NAMING:
                self._entries.append(entry)
            elif entry.entry_type in _SWEEPING:
                self._is_sweep_due = True
        if (self._entries or self._is_sweep_due) and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_scheduled = False
        entries, self._entries = self._entries, []
        if self._is_sweep_due:
            self._is_sweep_due = False
            for streams in self._streams.values():
                for held in streams:
                    self._drop(held, list(held.by_id))
        else:
            for entry in entries:
                self._look_at(entry)
        self._waits.look_soon()

    def _look_at(self, entry: Entry) -> None:
        payload = entry.plain_payload()
        if entry.entry_type == TYPE_ACK:  # most of all, and most name one message
            one = acked_one(payload)
            if one is not None:
                queue_id, message_id = one
                for held in self._streams.get(queue_id, ()):
                    self._drop(held, (message_id,))
                return
        _, reader = read_prefix(payload)
        start = reader.position
        queue_id = reader.number(U64)
        streams = self._streams.get(queue_id)
        if streams is None:
            return
        reader.position = start
        ids = named_ids(decode_command(entry.entry_type & 0xFF, reader))
        for held in streams:
            self._drop(held, ids)

    def _drop(self, held: Held, ids: Sequence[int]) -> None:
        """Forget messages that are no longer leased to the stream."""
        queue = self._shard.projections.queue.queue_by_id(held.queue_id)
        by_id = held.by_id
        for message_id in ids:
            token = by_id.get(message_id)
            if token is None:
                continue
            row = None if queue is None else queue.table.get(message_id)
            if row is None or row.state != LEASED or row.token != token:
                del by_id[message_id]


# Lines


class Line:
    """The callers that wait for one queue of a shard that is led here."""

    def __init__(self, driver: ShardDriver, waits: Waits, queue_id: int) -> None:
        self.promised = 0
        self.tickets = 0
        self.waiting: dict[Ticket, None] = {}  # in the order in which they were drawn
        self.waits = waits
        self._driver = driver
        self._queue_id = queue_id

    @property
    def queue(self) -> QueueState | None:
        """The queue, unless it is gone."""
        return self._driver.shard.projections.queue.queue_by_id(self._queue_id)

    @property
    def is_over(self) -> bool:
        """Whether nothing comes of waiting here: somebody else leads, or the queue is gone."""
        return self._driver.shard.member.state != LEADER or self.queue is None

    def free(self) -> int:
        """Return how many messages are ready and promised to nobody."""
        queue = self.queue
        if queue is None or queue.is_paused:
            return 0
        passed = find_passed(self._driver.shard.projections, queue)
        if passed:
            return self._free_besides(queue, passed)
        ready = queue.counts[READY]
        groups = queue.table.groups
        if groups:
            ready = min(ready, len(groups))
        free = ready - self.promised
        return free if free > 0 and queue.next_ready() is not None else 0

    def _free_besides(self, queue: QueueState, passed: Ranges) -> int:
        """Return what ``free`` does, at least one if there is one and nobody is promised any."""
        if queue.next_ready(passed) is None:
            return 0
        free = queue.counts[READY] - len(queue.passed) - self.promised
        return max(free, 0 if self.promised else 1)

    def was_answered(self, session: SessionRef) -> bool:
        """Whether the session has had an answer to this request: then it has it again."""
        return was_answered(self._driver.shard.projections, session)


class Ticket:
    """One caller; ``promised`` messages may be taken once it is called."""

    __slots__ = ("_line", "_session", "_wanted", "promised")

    def __init__(self, line: Line, wanted: int, session: SessionRef | None) -> None:
        self.promised = 0
        self._line = line
        self._wanted = wanted
        self._session = session

    async def called(self, wait_s: float) -> bool:
        """Wait for one's turn; tell whether it has come, rather than the end of the time."""
        return await self._line.waits.until(self._is_called, wait_s)

    @property
    def is_over(self) -> bool:
        """Whether nothing comes of waiting here."""
        return self._line.is_over

    def _is_called(self) -> bool:
        line = self._line
        if self.promised or line.is_over:
            return True
        if self._session is not None and line.was_answered(self._session):
            return True
        if next(iter(line.waiting)) is not self:
            return False
        self.promised = min(self._wanted, line.free())
        if not self.promised:
            return False
        line.promised += self.promised
        del line.waiting[self]
        return True


class Lines:
    """The lines of a process."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._lines: dict[tuple[int, int], Line] = {}

    def __len__(self) -> int:
        """Return for how many queues somebody waits."""
        return len(self._lines)

    @contextmanager
    def ticket(
        self, shard: int, queue_id: int, wanted: int, session: SessionRef | None = None
    ) -> Iterator[Ticket]:
        """Draw a ticket for a queue; it is put away at the end, and others may have its turn."""
        edge = self._edge
        if edge.context.stopping.is_set():
            raise stopping()
        driver = edge.leading(shard)
        place = shard, queue_id
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = Line(driver, edge.waits(shard), queue_id)
        line.tickets += 1
        ticket = Ticket(line, wanted, session)
        line.waiting[ticket] = None
        try:
            yield ticket
        finally:
            line.promised -= ticket.promised
            line.waiting.pop(ticket, None)
            line.tickets -= 1
            if line.waiting:
                line.waits.look_soon()
            elif not line.tickets:
                del self._lines[place]


# Returns

ATTEMPTS = 3
DEADLINE_S = 5.0
RELEASE_METHOD = "/onelog.v1.Queue/Release"

_log = logging.getLogger("onelog.node.queues")

Items = Sequence[tuple[int, int]]


def to_leased(written: Written) -> Leased:
    """Return what a lease got."""
    return decode_leased(applied(written.results[0]))


def to_items(leased: Leased) -> Items:
    """Return the messages of a lease and their token."""
    token = leased.token
    return [(message.id, token) for message in leased.messages]


class Returns:
    """Releases the messages of clients that disconnected; one task for each of them."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return the number of clients whose messages are being released."""
        return len(self._tasks)

    def begin(
        self,
        request: queue_pb2.LeaseRequest,
        items: Items,
        call: Call,
        writing: Awaitable[Written] | None = None,
    ) -> None:
        """Release messages, and those of a lease that is not committed yet."""
        if items or writing is not None:
            task = asyncio.create_task(self._give_back(request, items, call, writing))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _give_back(
        self,
        request: queue_pb2.LeaseRequest,
        items: Items,
        caller: Call,
        writing: Awaitable[Written] | None,
    ) -> None:
        if writing is not None:
            try:
                items = [*items, *to_items(to_leased(await writing))]
            except Exception as error:  # noqa: BLE001 - whatever it was, it got nothing
                _log.info("the lease of a client that went: %s", error)
        for first in range(0, len(items), ITEMS_MAX):
            release = queue_pb2.ReleaseRequest(namespace=request.namespace, queue=request.queue)
            for message_id, token in items[first : first + ITEMS_MAX]:
                release.messages.add(message_id=message_id, token=token)
            for _ in range(ATTEMPTS):
                if await self._is_released(release, caller):
                    break

    async def _is_released(self, release: queue_pb2.ReleaseRequest, caller: Call) -> bool:
        """Release messages wherever the queue is led; tell whether that needs no other attempt."""
        calls, now_s = self._edge.calls, self._edge.context.clock.now_s()
        call = Call(
            RELEASE_METHOD, queue_pb2.SettleResponse, caller.client, now_s, now_s + DEADLINE_S
        )
        call.metadata = caller.metadata
        try:
            await calls.run_on_leader(
                call,
                lambda: run_write(self._edge, RELEASE, release, call),
                lambda elsewhere: calls.forward(call, elsewhere, release),
            )
        except (FailedPrecondition, NotFound):
            return True  # somebody else has it by now, or nobody can
        except OnelogError as error:
            _log.info("messages of a client that went are not released: %s", error)
            return False
        return True


# Consume

CREDIT_DEFAULT = 100
CREDIT_MAX = 10_000
# A wait is begun anew now and then; nothing depends on how often.
WAIT_S = 60.0
WRITE_DEADLINE_S = 10.0
RETRY_S = 0.05

_NO_OPTIONS = common_pb2.WriteOptions()


class Consumers:
    """The streams of one process."""

    def __init__(self, edge: Edge, lines: Lines, returns: Returns) -> None:
        self._edge = edge
        self._lines = lines
        self._returns = returns
        self._credits: dict[int, Credit] = {}
        self._named: dict[tuple[int, Place], Held] = {}  # the streams of named consumers, by shard
        self.absent = Absent(edge, lambda shard, place: (shard, place) in self._named)

    def __len__(self) -> int:
        """Return how many streams there are."""
        return sum(map(len, self._credits.values()))

    async def consume(
        self, request: queue_pb2.ConsumeRequest, call: Call
    ) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        """Yield messages as they come."""
        edge, clock = self._edge, self._edge.context.clock
        if request.credit > CREDIT_MAX:
            raise error_of_bounds(Reason.LIMIT_INVALID, "credit", request.credit, CREDIT_MAX)
        consumer_size = len(request.consumer_id)
        if consumer_size > MESSAGE_KEY_SIZE_MAX:
            raise error_of_bounds(
                Reason.MESSAGE_KEY_INVALID, "consumer_id", consumer_size, MESSAGE_KEY_SIZE_MAX
            )
        credit = request.credit or CREDIT_DEFAULT
        namespace, shard = (
            parse_namespace(request.namespace),
            edge.find_shard(check_name(request.queue)),
        )
        lease = queue_pb2.LeaseRequest(
            namespace=request.namespace, queue=request.queue, visibility_ms=request.visibility_ms
        )
        own = Call(call.method, call.response, call.client, call.arrived_s, 0.0)
        own.deadline_s = clock.now_s() + WRITE_DEADLINE_S
        command = await edge.bind(
            shard,
            own,
            lambda state, _: parse_lease(state, find_queue(state, namespace, request.queue), lease),
        )
        held = Held(command.queue, request.consumer_id)
        self._credit(shard).open(held)
        has_gone = False
        try:
            if held.consumer:
                await self._resume(shard, held, request.received_token, own)
            yield queue_pb2.ConsumeResponse()  # it has begun
            while True:
                await self._has_room(shard, held, credit)
                lease.count = min(credit - len(held), ITEMS_MAX)
                own.deadline_s = clock.now_s() + WAIT_S + WRITE_DEADLINE_S
                answer = await self._next(shard, lease, held, own)
                if answer.messages or answer.unreadable_ids:
                    yield answer
        except Elsewhere as elsewhere:
            raise elsewhere.error() from None  # not passed on: the client has a way to go there
        except GeneratorExit:
            has_gone = True
            raise
        except asyncio.CancelledError:
            has_gone = True
            if not held.is_replaced or held.task is None:
                raise
            held.task.uncancel()
            raise FailedPrecondition(
                "a newer stream has the same consumer_id", reason="CONSUMER_REPLACED"
            ) from None
        finally:
            self._end(shard, held, lease, call, has_gone=has_gone)

    async def _resume(self, shard: int, held: Held, received: int, call: Call) -> None:
        """Take over what the consumer had on earlier streams and has received."""
        place = held.queue_id, held.consumer
        while (older := self._named.get((shard, place))) is not None:
            older.is_replaced = True
            assert older.task is not None, "a stream is served by a task"
            older.task.cancel()
            await older.ended.wait()
            if older.writing is not None:
                with suppress(Exception):  # whatever it was, it got nothing
                    older.by_id.update(to_items(to_leased(await older.writing)))
            self.absent.keep(shard, place, older.by_id)
        self._named[shard, place] = held
        received_here = await self.absent.claim(shard, place, received, call)
        queue = self._edge.leading(shard).shard.projections.queue.queue_by_id(held.queue_id)
        if queue is not None:
            held.by_id.update(find_leased(queue, received_here))

    def _end(
        self,
        shard: int,
        held: Held,
        lease: queue_pb2.LeaseRequest,
        call: Call,
        *,
        has_gone: bool,
    ) -> None:
        """Release what a stream holds, or keep it for the next one of its consumer."""
        self._credit(shard).close(held)
        place = shard, (held.queue_id, held.consumer)
        if self._named.get(place) is held:
            del self._named[place]
        held.ended.set()
        if held.is_replaced:
            return
        if held.consumer and (not has_gone or self._edge.context.stopping.is_set()):
            self.absent.keep(shard, place[1], held.by_id)
        else:
            self._returns.begin(lease, list(held.by_id.items()), call, held.writing)

    async def _has_room(self, shard: int, held: Held, credit: int) -> None:
        """Wait until there is credit; raises if nothing comes of it here."""
        member = self._edge.leading(shard).shard.member
        waits = self._edge.waits(shard)

        def condition() -> bool:
            return len(held) < credit or member.state != LEADER

        while not await waits.until(condition, WAIT_S):
            self._check(shard)
        self._check(shard)

    def _check(self, shard: int) -> None:
        if self._edge.context.stopping.is_set():
            raise stopping()
        self._edge.leading(shard)

    async def _next(
        self, shard: int, lease: queue_pb2.LeaseRequest, held: Held, call: Call
    ) -> queue_pb2.ConsumeResponse:
        """Return the next messages; none if there were none for a while."""
        edge, answer = self._edge, queue_pb2.ConsumeResponse()
        with self._lines.ticket(shard, held.queue_id, lease.count) as ticket:
            is_called = await ticket.called(WAIT_S)
            self._check(shard)
            if not is_called:
                return answer
            namespace = parse_namespace(lease.namespace)
            lease.count = ticket.promised
            # Of the state of now: raises if the queue is gone.
            state = edge.leading(shard).shard.projections
            command = parse_lease(
                state, find_queue(state, namespace, lease.queue), lease, held.consumer
            )
            command = replace(command, queue=held.queue_id)  # not of one that took its place
            drafts = [encode_command(command, namespace)]
            held.writing = asyncio.ensure_future(edge.write(shard, drafts, _NO_OPTIONS, call))
            # If this is cancelled, what it gets is released: see the end of ``consume``.
            written = await asyncio.shield(held.writing)
            held.writing = None
            try:
                leased = to_leased(written)
            except FailedPrecondition as refused:
                if refused.reason != Reason.QUEUE_PAUSED.name:
                    raise
                return answer
            held.by_id.update(to_items(leased))
        lacking = fill_leased(edge.replica(shard).shard.projections, lease, answer, leased)
        if lacking:
            await fill_content(edge, shard, ((LEASE.content, lease, answer, lacking),), call)
        if held.consumer and len(answer.messages) < len(leased.messages):
            self._check_unsent(shard, held, leased.messages[len(answer.messages) :])
        return answer

    def _check_unsent(self, shard: int, held: Held, unsent: Sequence[LeasedMessage]) -> None:
        """Raise unless what does not fit an answer was released: the client would not miss it."""
        queue = self._edge.leading(shard).shard.projections.queue.queue_by_id(held.queue_id)
        tokens = {each.id: held.by_id.get(each.id, 0) for each in unsent}
        if queue is not None and find_leased(queue, tokens):
            raise Unavailable(
                "messages that did not fit an answer are not released yet",
                reason="DISCARDED",
                retry_after_s=RETRY_S,
            )

    def _credit(self, shard: int) -> Credit:
        credit = self._credits.get(shard)
        if credit is None:
            driver = self._edge.replica(shard)
            credit = self._credits[shard] = Credit(driver, self._edge.waits(shard))
        return credit
