"""The state of one queue: its messages, and everything that is derived from them.

Four methods change messages: ``append`` and ``insert`` add, ``lease`` and ``change_rows`` change
the state, ``remove`` removes. Each updates columns, counts, hash, deadlines, groups and ready
messages for consecutive rows at once, and notes how it is undone. A message without options needs
only the loop; options add a step before or after it: ``_bind`` when it is added, ``_admit`` when it
is leased, ``_follow`` when it changes, ``_unbind`` when it is removed. The canonical bytes of a row
with options are those of a plain row plus a tail (``Table.tail``).

Invariants, all asserted by ``check``:

* conservation: enqueued + redriven + arrived = ready + delayed + leased + acked + expired + dead +
  cancelled + purged + moved. ``arrived`` and ``moved`` are about dead-letter queues: messages that
  arrived as dead letters, and messages that were redriven from here;
* ``hash_total`` is the sum of all rows' hashes;
* ``deadlines`` holds the end of each lease and delay, and the lifetime of messages not leased;
* each ready message that may be next has an entry among the ready ones.

``DedupWindow`` remembers the ids that producers gave their messages, and which message came first.
It is bounded by time and by count; the oldest id is dropped first. The timestamp of the asking
entry decides whether an id is inside the window, so an id that is too old but still here means the
same as one that was dropped. Only an enqueue with a dedup id drops old ones, a few at a time.
Invariants: ``_order`` holds each remembered id once with its message, oldest first, and otherwise
only pairs that ``_messages`` no longer has; ``hash_total`` is the sum of the remembered ids.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import chain, repeat
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from onelog.projections.codec import U8, U16, U64, Ranges, encode_sized, is_within
from onelog.projections.limits import U64_MAX
from onelog.projections.queue.cron import Cron
from onelog.projections.queue.deadlines import (
    DELAY_ENDS,
    LEASE_ENDS,
    TTL_ENDS,
    PackedDeadlines,
    pack_deadline,
)
from onelog.projections.queue.limits import BLOCK_ROWS, DEDUP_TRIM_STEP, GARBAGE_MAX
from onelog.projections.queue.message import LEASE_ROW, QueueConfig
from onelog.projections.queue.ready import Level, ReadyMessages
from onelog.projections.queue.table import (
    BODY,
    DELAYED,
    DELAYED_ROW,
    DELIVERIES_SHIFT,
    DELIVERY,
    DUE,
    EXPIRES,
    GROUP,
    HAS_BODY,
    HAS_DEAD,
    HAS_EXPIRES,
    HAS_GROUP,
    HAS_TENANT,
    LEASED,
    LEASED_ROW,
    PLAIN,
    PRIORITY_MASK,
    PRIORITY_SHIFT,
    READY,
    STATE_MASK,
    STATES,
    TENANT,
    TOKEN,
    UNUSUAL,
    Block,
    Dead,
    Group,
    Row,
    Span,
    Table,
    encode_dead,
    encode_row,
    encode_state,
    pack_meta,
)
from onelog.projections.state_hash import item_hash
from onelog.projections.undo import UndoLog

DEDUP_SIZE = 265  # bytes of an id beside its text: table slot, two numbers, a pair

_ITEM = struct.Struct("<BQQ")
_KIND = 0x02
_SHIFT = 64


class DedupWindow:
    """What one queue remembers; ``seed`` is the queue's id."""

    __slots__ = ("_messages", "_order", "_seed", "_text_size", "_undo", "hash_total")

    def __init__(self, seed: int, undo: UndoLog) -> None:
        self._seed = seed
        self._undo = undo
        self._messages: dict[bytes, int] = {}  # time << 64 | message
        self._order: deque[tuple[bytes, int]] = deque()
        self._text_size = 0
        self.hash_total = 0

    def __len__(self) -> int:
        return len(self._messages)

    def find(self, dedup: bytes, now_ns: int, window_ns: int) -> int | None:
        """Return the first message with this id inside the window."""
        packed = self._messages.get(dedup)
        if packed is None or (packed >> _SHIFT) + window_ns <= now_ns:
            return None
        return packed & U64_MAX

    def add(self, dedup: bytes, message_id: int, now_ns: int) -> None:
        """Remember an id that ``find`` does not find."""
        before = self._messages.get(dedup)
        if before is not None:
            self._forget(dedup, before)
        self._messages[dedup] = now_ns << _SHIFT | message_id
        self._text_size += len(dedup)
        self.hash_total += item_hash(_ITEM.pack(_KIND, now_ns, message_id) + dedup, self._seed)
        self._order.append((dedup, message_id))
        if self._undo.active:
            self._undo.note(partial(self._undo_add, dedup, before))

    def trim(self, now_ns: int, window_ns: int, count_max: int) -> int:
        """Drop a few ids that are too old or too many; return how many were dropped as too many."""
        oldest, message_id = self._order[0] if self._order else (b"", 0)
        packed = self._messages.get(oldest, 0)
        if (
            packed & U64_MAX == message_id
            and (packed >> _SHIFT) + window_ns > now_ns
            and len(self._messages) <= count_max
        ):
            return 0  # the usual case
        dropped = 0
        for _ in range(DEDUP_TRIM_STEP):
            self._drop_garbage()
            if not self._order:
                break
            dedup, _ = self._order[0]
            packed = self._messages[dedup]
            is_old = (packed >> _SHIFT) + window_ns <= now_ns
            if not is_old and len(self._messages) <= count_max:
                break
            self._order.popleft()
            self._forget(dedup, packed)
            dropped += not is_old
            if self._undo.active:
                self._undo.note(partial(self._undo_trim, dedup, packed))
        return dropped

    def entries(self) -> Iterator[tuple[bytes, int, int]]:
        """Iterate over (id, message, time), oldest first."""
        for dedup, message_id in self._order:
            packed = self._messages.get(dedup)
            if packed is not None and packed & U64_MAX == message_id:
                yield dedup, message_id, packed >> _SHIFT

    def memory(self) -> int:
        """Return the bytes held."""
        return self._text_size + len(self._order) * DEDUP_SIZE

    def check(self) -> None:
        """Assert the invariants of this file."""
        entries = list(self.entries())
        assert len(entries) == len({dedup for dedup, *_ in entries}) == len(self._messages)
        times = [time_ns for *_, time_ns in entries]
        assert times == sorted(times), "dedup ids out of order"
        total = sum(self._hash(dedup, self._messages[dedup]) for dedup, *_ in entries)
        assert self.hash_total == total, "the hash of the dedup window"
        assert self._text_size == sum(len(dedup) for dedup in self._messages)

    def _remember(self, dedup: bytes, packed: int) -> None:
        self._messages[dedup] = packed
        self._text_size += len(dedup)
        self.hash_total += self._hash(dedup, packed)

    def _forget(self, dedup: bytes, packed: int) -> None:
        del self._messages[dedup]
        self._text_size -= len(dedup)
        self.hash_total -= self._hash(dedup, packed)

    def _undo_add(self, dedup: bytes, before: int | None) -> None:
        """Undo ``add``."""
        self._forget(dedup, self._messages[dedup])
        self._order.pop()
        if before is not None:
            self._remember(dedup, before)

    def _undo_trim(self, dedup: bytes, packed: int) -> None:
        """Undo one step of ``trim``."""
        self._remember(dedup, packed)
        self._order.appendleft((dedup, packed & U64_MAX))

    def _drop_garbage(self) -> None:
        """Drop pairs whose id was added again since; not in a batch, which may restore them."""
        order = self._order
        while order:
            dedup, message_id = order[0]
            packed = self._messages.get(dedup)
            if packed is not None and packed & U64_MAX == message_id:
                return
            order.popleft()
            if self._undo.active:
                self._undo.note(partial(order.appendleft, (dedup, message_id)))

    def _hash(self, dedup: bytes, packed: int) -> int:
        head = _ITEM.pack(_KIND, packed >> _SHIFT, packed & U64_MAX)
        return item_hash(head + dedup, self._seed)


# Store

QUEUE_SIZE = 6_000  # bytes of a queue without messages
SCHEDULE_SIZE = 900
REDRIVE_SIZE = 700

More = tuple[int, int, int, int, bytes, bytes, Dead | None]
"""Due time, token, expiry, body, group, tenant and dead letter of a message; 0 or empty: none."""

_pack_u64 = U64.pack
_pack_plain = PLAIN.pack
_pack_leased = LEASED_ROW.pack
_pack_row = LEASE_ROW.pack
_PACKS = PLAIN.pack, DELAYED_ROW.pack, LEASED_ROW.pack  # by state
_ENDS = 0, DELAY_ENDS, LEASE_ENDS  # by state
_TAKEN = DELIVERY | LEASED
_META_LOW = DELIVERY - 1
_META_TURN = STATE_MASK | PRIORITY_MASK << PRIORITY_SHIFT
_META_FULL = 0xFFFF << DELIVERIES_SHIFT
_META_SHOWN = _META_FULL | HAS_DEAD

_KIND_QUEUE = b"\x01"
_KIND_SCHEDULE = b"\x03"
_KIND_REDRIVE = b"\x04"

SCHEDULE = struct.Struct("<QBQQ")  # id, priority, ttl_ns, next_ns
REDRIVE = struct.Struct("<12Q")


class Total(IntEnum):
    """What happened to messages since the queue was created; the order is that of a snapshot."""

    ENQUEUED = 0
    REDRIVEN = 1  # came back from a queue of dead letters
    ARRIVED = 2  # came as a dead letter
    ACKED = 3
    EXPIRED = 4
    DEAD = 5
    CANCELLED = 6
    PURGED = 7
    MOVED = 8  # were redriven from here
    DUPLICATES = 9  # enqueues that were answered with the id of an earlier message
    DEDUP_DROPPED = 10  # dedup ids dropped before their time
    MISSED = 11  # firings of a schedule that found the queue full


INCOMING = (Total.ENQUEUED, Total.REDRIVEN, Total.ARRIVED)
OUTGOING = (
    Total.ACKED,
    Total.EXPIRED,
    Total.DEAD,
    Total.CANCELLED,
    Total.PURGED,
    Total.MOVED,
)
TOTALS = struct.Struct(f"<{len(Total)}Q")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A message added at the times of a cron expression; the entry ``id`` holds its content."""

    id: int
    cron_text: bytes
    cron: Cron
    priority: int
    ttl_ns: int
    group: bytes
    tenant: bytes
    next_ns: int

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        head = SCHEDULE.pack(self.id, self.priority, self.ttl_ns, self.next_ns)
        names = (self.cron_text, self.group, self.tenant)
        return head + b"".join(encode_sized(U8, name) for name in names)


@dataclass(frozen=True, slots=True)
class RunningRedrive:
    """A running redrive; ids below ``cursor`` have been visited."""

    id: int
    target: int
    last_id: int
    failed_from_ns: int
    failed_until_ns: int
    left: int  # messages that may still be moved; 0: no limit
    rate_per_s: int
    started_ns: int  # later dead letters are not moved
    cursor: int
    next_ns: int
    moved_count: int
    skipped_count: int  # matched, but their original queue was deleted
    failure: bytes

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        numbers = [getattr(self, name) for name in self.__slots__ if name != "failure"]
        return REDRIVE.pack(*numbers) + encode_sized(U8, self.failure)

    def matches(self, row: Row) -> bool:
        """Return whether to move a dead letter: it matches, is not leased, died before."""
        dead = row.dead
        if dead is None or row.state == LEASED or row.since_ns > self.started_ns:
            return False
        if not self.failed_from_ns <= dead.failed_ns <= self.failed_until_ns:
            return False
        return self.failure in dead.failure


Value = TypeVar("Value")


class QueueState:
    """The state of one queue."""

    def __init__(
        self,
        queue_id: int,
        namespace: str,
        name: str,
        config: QueueConfig,
        undo: UndoLog,
        wake: Callable[[int, int], None],
    ) -> None:
        self.id = queue_id
        self.namespace = namespace
        self.name = name
        self.config = config
        self.is_paused = False
        self.last_tenant = b""  # served last; the next one has its turn
        self.turn_count = 0  # messages that it got in its turn so far; 0: its turn is over
        self.table = Table()
        self.ready = ReadyMessages()
        # Ready messages that a lease has passed over, out of the way of the next one that passes
        # over the same: their entries of ``ready``. Only the two together say which are ready.
        self.passed: list[tuple[int, int, int, bytes]] = []
        self._passed_for: Ranges = ()
        self.deadlines = PackedDeadlines()
        self.dedup = DedupWindow(queue_id, undo)
        self.schedules: dict[int, Schedule] = {}
        self.redrives: dict[int, RunningRedrive] = {}
        self.bodies: dict[int, int] = {}  # other entries that hold bodies, with their use counts
        self.counts = [0] * STATES
        self.totals = [0] * len(Total)
        self.hash_total = 0
        self.undo = undo
        self.wake = wake

    @property
    def live_count(self) -> int:
        """The number of messages, in any state."""
        return sum(self.counts)

    def append(self, message_id: int, since_ns: int, meta: int, more: More | None = None) -> None:
        """Add a message whose id is above all others.

        ``more`` holds the options; None for a ready message without any.
        """
        blocks = self.table.blocks
        block = blocks[-1] if blocks else self.table.append_block(message_id)
        ids = block.ids
        if len(ids) >= BLOCK_ROWS:
            block = self.table.append_block(message_id)
            ids = block.ids
        ids.append(message_id)
        block.since.append(since_ns)
        block.meta.append(meta)
        if block.has_columns:
            for column in block.columns:
                if column is not None:
                    column.append(0)
        if more is None:
            priority = meta >> PRIORITY_SHIFT & PRIORITY_MASK
            level = self.ready.plain.levels[priority] or self.ready.open_level(priority, b"")
            if since_ns >= level.last_ns:
                level.last_ns = since_ns
                level.last_id = message_id
                level.ids.append(message_id)
                level.since.append(since_ns)
            else:
                level.push(message_id, since_ns)
            packed = _pack_plain(message_id, since_ns, meta)
            self.counts[READY] += 1
        else:
            packed = self._bind(block, len(ids) - 1, message_id, since_ns, meta, more)
            self.counts[meta & STATE_MASK] += 1
        self.hash_total += item_hash(packed, self.id)
        if self.undo.active:
            self.undo.note(partial(self._take_out, message_id))

    def insert(self, row: Row) -> None:
        """Add a message that comes from another queue; it keeps its id."""
        message_id, since_ns, meta = row.id, row.since_ns, pack_meta(row)
        more = row.due_ns, row.token, row.expires_ns, row.body, row.group, row.tenant, row.dead
        block, at = self.table.make_room(message_id)
        block.since[at] = since_ns
        block.meta[at] = meta
        packed = self._bind(block, at, message_id, since_ns, meta, more)
        self.counts[row.state] += 1
        self.hash_total += item_hash(packed, self.id)
        if self.undo.active:
            self.undo.note(partial(self._take_out, message_id))

    def _bind(
        self, block: Block, at: int, message_id: int, since_ns: int, meta: int, more: More
    ) -> bytes:
        """Store the options of a new message, whose row exists; return its canonical bytes."""
        due_ns, token, expires_ns, body, key, tenant, dead = more
        state, columns, table = meta & STATE_MASK, block.columns, self.table
        if state == READY:
            packed = _pack_plain(message_id, since_ns, meta)
        else:
            packed = encode_state(message_id, since_ns, meta, due_ns, token)
            (columns[DUE] or block.column(DUE))[at] = due_ns
            if state == LEASED:
                (columns[TOKEN] or block.column(TOKEN))[at] = token
            self.deadlines.add(due_ns, message_id, _ENDS[state])
            self.wake(self.id, due_ns)
        if expires_ns:
            (columns[EXPIRES] or block.column(EXPIRES))[at] = expires_ns
            packed += _pack_u64(expires_ns)
            if state != LEASED:
                self.deadlines.add(expires_ns, message_id, TTL_ENDS)
                self.wake(self.id, expires_ns)
        if body:
            (columns[BODY] or block.column(BODY))[at] = body
            packed += _pack_u64(body)
            self.bodies[body] = self.bodies.get(body, 0) + 1
        is_next = state == READY
        if key:
            group = table.groups.join(key, message_id)
            (columns[GROUP] or block.column(GROUP))[at] = group.number
            packed += group.tail
            if state == LEASED:
                group.leased, group.placed = message_id, 0
            elif group.leased or group.members[group.head] != message_id:
                is_next = False
            else:
                group.placed = message_id if is_next else 0
        if tenant:
            number = table.tenants.use(tenant)
            (columns[TENANT] or block.column(TENANT))[at] = number
            packed += table.tenants.tails[number]
        if dead is not None:
            table.dead[message_id] = dead
            packed += encode_dead(dead)
        if is_next:
            priority = meta >> PRIORITY_SHIFT & PRIORITY_MASK
            self.ready.push(message_id, since_ns, priority, tenant)
        return packed

    def lease(self, tokens: Sequence[int], deadline_ns: int, passed: Ranges = ()) -> list[bytes]:
        """Lease the next messages, one for each token, in order.

        Those whose bodies are in ``passed`` are left where they are. Return the encoded result
        rows; there are fewer than tokens if no more are ready.
        """
        if passed is not self._passed_for:
            self._pass_over(passed)
        ready, ageing_ns, tenant = self.ready, self.config.ageing_ns, self.last_tenant
        config, turn_count = self.config, self.turn_count
        rows: list[bytes] = []
        count = len(tokens)
        is_next = self._is_next_besides if passed else self.is_next
        while len(rows) < count:
            stays = 0 < turn_count < config.find_weight(tenant)
            found = ready.turn(tenant, ageing_ns, is_next, stays=stays)
            if found is None:
                break
            level, name, is_alone = found
            before = len(rows)
            # Entries may be outdated, of which other replicas have others: only messages count.
            had = turn_count if stays and name == tenant else 0
            if passed:
                if level.first(level.priority, is_next) is not None:
                    self._lease_from(level, 1, deadline_ns, tokens, rows)
            elif is_alone:
                self._lease_from(level, count - before, deadline_ns, tokens, rows)
            elif ageing_ns or level.late:
                self._lease_from(level, 1, deadline_ns, tokens, rows)
            elif config.tenant_weights:
                left = config.find_weight(name) - had
                self._lease_from(level, min(left, count - before), deadline_ns, tokens, rows)
            else:
                name = self._lease_in_turns(name, deadline_ns, tokens, rows)
            if len(rows) > before:
                tenant = name
                turn_count = (had + len(rows) - before) % config.find_weight(name)
        if rows:
            if tenant != self.last_tenant:
                self.change("last_tenant", tenant)
            if turn_count != self.turn_count:
                self.change("turn_count", turn_count)
            self.counts[READY] -= len(rows)
            self.counts[LEASED] += len(rows)
            self.wake(self.id, deadline_ns)
        return rows

    def _lease_from(
        self,
        level: Level,
        count: int,
        deadline_ns: int,
        tokens: Sequence[int],
        rows: list[bytes],
    ) -> None:
        """Lease the messages of the next entries of a level; outdated entries are dropped."""
        ids, since, start = level.ids, level.since, level.head
        stop = min(start + count, len(ids))
        if level.late:
            ids, since = level.pop(count)
            start, stop = 0, len(ids)
        blocks, at = self.table.blocks, start
        while at < stop and blocks:
            message_id = ids[at]
            try:
                block, first = blocks[level.near_block], level.near_row
                if block.ids[first] != message_id:
                    first += 1
                is_found = block.ids[first] == message_id
            except IndexError:
                is_found = False
            if not is_found:
                # An id below the first block gives the last one, which does not hold it either.
                level.near_block = bisect_right(self.table.firsts, message_id) - 1
                block = blocks[level.near_block]
                first = bisect_left(block.ids, message_id)
                if first == len(block.ids) or block.ids[first] != message_id:
                    at += 1
                    continue
            last = first + 1 if stop - at == 1 else block.match(first, ids, at, stop)
            size = last - first
            level.near_row = last - 1
            tails = None
            for meta in (block.meta[first],) if size == 1 else set(block.meta[first:last]):
                # Ready, of this priority, without options, and not at the maximum of deliveries.
                # Such a message has waited since it was added, so its entry is current.
                if meta & _META_LOW != level.meta or meta >= _META_FULL:
                    wanted = repeat(level.meta)
                    tails = self._admit(block, first, zip(wanted, since[at : at + size]))  # noqa: B905
                    break
            if tails is None or None not in tails:
                self._lease_rows(block, first, last, tails, deadline_ns, tokens, rows)
            else:
                for row, tail in enumerate(tails, first):
                    if tail is not None:
                        self._lease_rows(block, row, row + 1, [tail], deadline_ns, tokens, rows)
            at += size
        if ids is level.ids:
            level.skip(stop - start)

    def _lease_in_turns(
        self, tenant: bytes, deadline_ns: int, tokens: Sequence[int], rows: list[bytes]
    ) -> bytes:
        """Lease messages of tenants in turn, ``tenant`` first, up to the first outdated entry.

        Return the tenant of the last message, if there was one.
        """
        names, levels, rounds = self.ready.in_turn(tenant, len(tokens) - len(rows))
        heads = [slice(level.head, level.head + rounds) for level in levels]
        by_level = [level.ids[head] for level, head in zip(levels, heads, strict=True)]
        ids = array("Q", chain.from_iterable(zip(*by_level, strict=True)))
        del ids[len(tokens) - len(rows) :]
        by_level = [level.since[head] for level, head in zip(levels, heads, strict=True)]
        since = array("Q", chain.from_iterable(zip(*by_level, strict=True)))
        wanted = [level.meta for level in levels] * rounds
        at, is_outdated = 0, False
        while at < len(ids) and not is_outdated:
            span = self.table.find_span(ids, at)
            is_outdated = span is None
            if span is not None:
                block, first, last = span
                stop = at + last - first
                pairs = zip(wanted[at:stop], since[at:stop], strict=True)
                tails = self._admit(block, first, pairs, is_strict=True)
                last = first + len(tails)
                if tails:
                    self._lease_rows(block, first, last, tails, deadline_ns, tokens, rows)
                at += len(tails)
                is_outdated = at < stop
        rounds, more = divmod(at + is_outdated, len(levels))
        for turn, level in enumerate(levels):
            level.skip(rounds + (turn < more))
        return names[(at - 1) % len(levels)]

    def _admit(
        self,
        block: Block,
        first: int,
        entries: Iterable[tuple[int, int]],
        *,
        is_strict: bool = False,
    ) -> list[bytes | None]:
        """Lock the groups and cancel the lifetimes of messages, where entries (meta, time) match.

        Return the tail of the canonical bytes of each, None where an entry is outdated; if
        ``is_strict``, stop there.
        """
        columns, table = block.columns, self.table
        tails: list[bytes | None] = []
        for at, (wanted, since_ns) in enumerate(entries, first):
            meta = block.meta[at]
            is_true = meta & _META_TURN == wanted and block.since[at] == since_ns
            if is_true and meta & HAS_GROUP:
                message_id = block.ids[at]
                group = table.groups.by_number[columns[GROUP][at]]  # type: ignore[index]
                is_true = not group.leased and group.members[group.head] == message_id
                if is_true:
                    group.leased, group.placed = message_id, 0
            if is_true:
                if meta & HAS_EXPIRES:
                    expires_ns = columns[EXPIRES][at]  # type: ignore[index]
                    self.deadlines.cancel(expires_ns, block.ids[at], TTL_ENDS)
                tails.append(table.tail(block, at, meta) if meta & UNUSUAL else b"")
            elif is_strict:
                break
            else:
                tails.append(None)
        return tails

    def _lease_rows(
        self,
        block: Block,
        first: int,
        last: int,
        tails: Sequence[bytes | None] | None,
        deadline_ns: int,
        tokens: Sequence[int],
        rows: list[bytes],
    ) -> None:
        """Lease rows that are ready; ``tails`` holds the tail of the canonical bytes of each."""
        columns, seed, change, done = block.columns, self.id, 0, len(rows)
        if self.undo.active:
            self._note_rows(block, first, last)
        due, holders = columns[DUE] or block.column(DUE), columns[TOKEN] or block.column(TOKEN)
        fields: Iterable[tuple[int, int, int, int, int]]
        if last - first == 1:
            message_id, meta, token = block.ids[first], block.meta[first], tokens[done]
            after = meta + (_TAKEN if meta < _META_FULL else LEASED)
            fields = ((message_id, block.since[first], meta, after, token),)
            block.meta[first], due[first], holders[first] = after, deadline_ns, token
            self.deadlines.add(deadline_ns, message_id, LEASE_ENDS)
        else:
            size = last - first
            ids, metas = block.ids[first:last], block.meta[first:last]
            if tails is None:
                afters = [meta + _TAKEN for meta in metas]
            else:
                afters = [meta + (_TAKEN if meta < _META_FULL else LEASED) for meta in metas]
            given = tokens[done : done + size]
            fields = zip(ids, block.since[first:last], metas, afters, given, strict=True)
            block.meta[first:last] = array("I", afters)
            due[first:last] = array("Q", (deadline_ns,)) * size
            holders[first:last] = array("Q", given)
            self.deadlines.add_all(deadline_ns, ids, LEASE_ENDS)
        if tails is None:
            for message_id, since_ns, meta, after, token in fields:
                packed = _pack_leased(message_id, since_ns, after, deadline_ns, token)
                change += item_hash(packed, seed)
                change -= item_hash(_pack_plain(message_id, since_ns, meta), seed)
                rows.append(_pack_row(message_id, message_id, after & _META_FULL))
        else:
            for at, (message_id, since_ns, meta, after, token) in enumerate(fields, first):
                tail = tails[at - first]
                assert tail is not None, "an entry that is outdated"
                packed = _pack_leased(message_id, since_ns, after, deadline_ns, token)
                change += item_hash(packed + tail, seed)
                change -= item_hash(_pack_plain(message_id, since_ns, meta) + tail, seed)
                body = block.value(BODY, at) if meta & HAS_BODY else message_id
                row = _pack_row(message_id, body, after & _META_SHOWN)
                if meta & HAS_DEAD:
                    row += encode_dead(self.table.dead[message_id])
                rows.append(row)
        self.hash_total += change

    def change_rows(
        self, span: Span, afters: Sequence[int], due_ns: int, token: int | None = None
    ) -> None:
        """Set meta and due time of rows; all have one state before and one state after.

        ``token`` leases them (None: the token stays). Nothing else of a message ever changes.
        """
        block, first, last = span
        columns, seed, change = block.columns, self.id, 0
        before, after = block.meta[first] & STATE_MASK, afters[0] & STATE_MASK
        if self.undo.active:
            self._note_rows(block, first, last)
        if before == READY:
            self.ready.outdated_count += last - first
        else:
            dues = columns[DUE]
            assert dues is not None, "rows that wait for something"
            self.deadlines.cancel_all(dues[first:last], block.ids[first:last], _ENDS[before])
        for at, meta_after in enumerate(afters, first):
            message_id, since_ns, meta = block.ids[at], block.since[at], block.meta[at]
            tail = self.table.tail(block, at, meta) if meta & UNUSUAL else b""
            due_before, held = block.value(DUE, at), block.value(TOKEN, at)
            packed = encode_state(message_id, since_ns, meta, due_before, held)
            change -= item_hash(packed + tail, seed)
            holder = held if token is None else token
            packed = encode_state(message_id, since_ns, meta_after, due_ns, holder)
            change += item_hash(packed + tail, seed)
            block.meta[at] = meta_after
            if due_ns != due_before:
                (columns[DUE] or block.column(DUE))[at] = due_ns
            if holder != held:
                (columns[TOKEN] or block.column(TOKEN))[at] = holder
        self.hash_total += change
        self.counts[before] -= last - first
        self.counts[after] += last - first
        if after != READY:
            self.deadlines.add_all(due_ns, block.ids[first:last], _ENDS[after])
            self.wake(self.id, due_ns)
        self._follow(span, before, after)

    def _follow(self, span: Span, before: int, after: int) -> None:
        """Update lifetimes, groups and ready messages after rows changed."""
        block, first, last = span
        for at in range(first, last):
            message_id, meta = block.ids[at], block.meta[at]
            if meta & HAS_EXPIRES and (before == LEASED) != (after == LEASED):
                expires_ns = block.value(EXPIRES, at)
                if after == LEASED:
                    self.deadlines.cancel(expires_ns, message_id, TTL_ENDS)
                else:
                    self.deadlines.add(expires_ns, message_id, TTL_ENDS)
                    self.wake(self.id, expires_ns)
            if meta & HAS_GROUP:
                group = self.table.groups.by_number[block.value(GROUP, at)]
                if before == LEASED:
                    group.leased = 0
                if after == LEASED:
                    group.leased = message_id
                self._offer(group, message_id)
            elif after == READY:
                self._push(block, at)
        self._drop_outdated()

    def remove(self, spans: list[Span]) -> None:
        """Remove messages; all of one span have one state."""
        for span in spans:
            block, first, last = span
            seed, total, count, meta = self.id, 0, last - first, block.meta[first]
            if self.undo.active:
                for at in range(first, last):
                    self.undo.note(partial(self.insert, self.table.read(block, at)))
            state, due, tokens = meta & STATE_MASK, block.columns[DUE], block.columns[TOKEN]
            fields: Iterable[tuple[int, ...]]
            if count == 1 and state == LEASED:
                message_id, due_ns = block.ids[first], due[first]  # type: ignore[index]
                fields = ((message_id, block.since[first], meta, due_ns, tokens[first]),)  # type: ignore[index]
                is_unusual = bool(meta & UNUSUAL)
                self.deadlines.cancel(due_ns, message_id, LEASE_ENDS)
            else:
                ids, metas = block.ids[first:last], block.meta[first:last]
                is_unusual = any(meta & UNUSUAL for meta in set(metas))
                more: tuple[array[int], ...] = ()
                if state == READY:
                    self.ready.outdated_count += count
                else:
                    times = due[first:last]  # type: ignore[index]
                    self.deadlines.cancel_all(times, ids, _ENDS[state])
                    more = (times, tokens[first:last]) if state == LEASED else (times,)  # type: ignore[index]
                fields = zip(ids, block.since[first:last], metas, *more, strict=True)
            pack = _PACKS[state]
            if is_unusual:
                for each, tail in zip(fields, self._unbind(span, state), strict=True):
                    total += item_hash(pack(*each) + tail, seed)
            else:
                for each in fields:
                    total += item_hash(pack(*each), seed)
            self.hash_total -= total
            self.counts[state] -= count
        self.table.delete(spans)
        if self.ready.outdated_count:
            self._drop_outdated()

    def take_out(self, spans: list[Span]) -> list[Row]:
        """Remove messages and return them."""
        read = self.table.read
        rows = [read(block, at) for block, first, last in spans for at in range(first, last)]
        self.remove(spans)
        return rows

    def _unbind(self, span: Span, state: int) -> list[bytes]:
        """Release the options of rows that are removed.

        Return the tail of the canonical bytes of each.
        """
        block, first, last = span
        columns, table = block.columns, self.table
        tails: list[bytes] = []
        for at in range(first, last):
            message_id, meta = block.ids[at], block.meta[at]
            if not meta & UNUSUAL:
                tails.append(b"")
                continue
            tails.append(table.tail(block, at, meta))
            if meta & HAS_EXPIRES and state != LEASED:
                self.deadlines.cancel(columns[EXPIRES][at], message_id, TTL_ENDS)  # type: ignore[index]
            if meta & HAS_BODY:
                body = columns[BODY][at]  # type: ignore[index]
                self.bodies[body] -= 1
                if not self.bodies[body]:
                    del self.bodies[body]
            if meta & HAS_GROUP:
                group = table.groups.by_number[columns[GROUP][at]]  # type: ignore[index]
                if state == LEASED:
                    group.leased = 0
                if table.groups.leave(group, message_id):
                    self._offer(group, message_id)
            if meta & HAS_TENANT:
                table.tenants.drop(columns[TENANT][at])  # type: ignore[index]
            if meta & HAS_DEAD:
                del table.dead[message_id]
        return tails

    def _offer(self, group: Group, changed: int) -> None:
        """Add the next message of a group to the ready ones."""
        turn = 0 if group.leased else group.members[group.head]
        if changed == group.placed or turn != group.placed:
            group.placed = 0  # its entry is outdated, and may be dropped before it is next
            if turn:
                place = self.table.find(turn)
                assert place is not None, f"no message {turn}"
                block, at = place
                if block.meta[at] & STATE_MASK == READY:
                    group.placed = turn
                    self._push(block, at)

    def _push(self, block: Block, at: int) -> None:
        """Add a message to the ready ones."""
        meta = block.meta[at]
        tenant = self.table.tenants.name(block.value(TENANT, at)) if meta & HAS_TENANT else b""
        priority = meta >> PRIORITY_SHIFT & PRIORITY_MASK
        self.ready.push(block.ids[at], block.since[at], priority, tenant)

    def _drop_outdated(self) -> None:
        if self.ready.outdated_count > self.counts[READY] + GARBAGE_MAX:
            self.rebuild_ready()

    def _note_rows(self, block: Block, first: int, last: int) -> None:
        """Note rows before they change, for a rollback."""
        for at in range(first, last):
            due_ns, token = block.value(DUE, at), block.value(TOKEN, at)
            restore = partial(self._restore, block.ids[at], block.meta[at], due_ns, token)
            self.undo.note(restore)

    def _restore(self, message_id: int, meta: int, due_ns: int, token: int) -> None:
        place = self.table.find(message_id)
        assert place is not None, f"no message {message_id}"
        block, at = place
        self.change_rows((block, at, at + 1), [meta], due_ns, token)

    def _take_out(self, message_id: int) -> None:
        place = self.table.find(message_id)
        assert place is not None, f"no message {message_id}"
        block, at = place
        self.remove([(block, at, at + 1)])

    def is_next(self, message_id: int, since_ns: int, priority: int) -> bool:
        """Return whether an entry of the ready messages is current, and its message next."""
        place = self.table.find(message_id)
        if place is None:
            return False
        block, at = place
        meta = block.meta[at]
        if meta & STATE_MASK != READY or block.since[at] != since_ns:
            return False
        if meta >> PRIORITY_SHIFT & PRIORITY_MASK != priority:
            return False
        if not meta & HAS_GROUP:
            return True
        return self.table.groups.by_number[block.value(GROUP, at)].turn() == message_id

    def next_ready(self, passed: Ranges = ()) -> int | None:
        """Return the id that the next lease gets, None if there is none."""
        if passed is not self._passed_for:
            self._pass_over(passed)
        is_next = self._is_next_besides if passed else self.is_next
        stays = 0 < self.turn_count < self.config.find_weight(self.last_tenant)
        return self.ready.next(self.last_tenant, self.config.ageing_ns, is_next, stays=stays)

    def _pass_over(self, passed: Ranges) -> None:
        """Make ready what was passed over, unless it is the same that is passed over now."""
        if passed != self._passed_for:
            for entry in self.passed:
                self.ready.push(*entry)
            self.passed.clear()
        self._passed_for = passed

    def _is_next_besides(self, message_id: int, since_ns: int, priority: int) -> bool:
        """Return whether a message is next, setting it aside if its body is to be passed over."""
        if not self.is_next(message_id, since_ns, priority):
            return False
        place = self.table.find(message_id)
        assert place is not None, f"no message {message_id}"
        block, at = place
        if not is_within(self._passed_for, block.value(BODY, at) or message_id):
            return True
        meta = block.meta[at]
        tenant = self.table.tenants.name(block.value(TENANT, at)) if meta & HAS_TENANT else b""
        self.passed.append((message_id, since_ns, priority, tenant))
        return False

    def count_within(self, ranges: Ranges) -> int:
        """Return how many ready messages have their bodies in ranges of entries."""
        return sum(
            block.meta[at] & STATE_MASK == READY
            for first, last in ranges
            for block, at in self.find_within(first, last)
        )

    def find_within(self, first: int, last: int) -> Iterator[tuple[Block, int]]:
        """Yield the places of the messages whose bodies are in a range of entries."""
        for block, at in self.table.places(first):
            if block.ids[at] > last:
                break
            if not block.value(BODY, at):
                yield block, at
        if any(first <= body <= last for body in self.bodies):
            for block, at in self.table.places():
                if first <= block.value(BODY, at) <= last:
                    yield block, at

    def rebuild_ready(self) -> None:
        """Drop all outdated entries of the ready messages."""
        self.ready = ReadyMessages()
        self.passed.clear()
        by_number = self.table.groups.by_number
        for group in by_number.values():
            group.placed = 0
        waiting = []
        for block, at in self.table.places():
            meta = block.meta[at]
            if meta & STATE_MASK == READY:
                message_id = block.ids[at]
                if meta & HAS_GROUP:
                    group = by_number[block.value(GROUP, at)]
                    if group.turn() != message_id:
                        continue
                    group.placed = message_id
                waiting.append((block.since[at], message_id, block, at))
        waiting.sort(key=lambda each: each[:2])
        for _, _, block, at in waiting:
            self._push(block, at)

    def count(self, total: Total, change: int = 1) -> None:
        """Add to a total."""
        self.totals[total] += change
        if self.undo.active:
            self.undo.note(partial(self._uncount, total, change))

    def _uncount(self, total: Total, change: int) -> None:
        self.totals[total] -= change

    def put(self, table: dict[int, Value], key: int, value: Value | None) -> None:
        """Set or delete an entry of ``schedules`` or ``redrives``."""
        if self.undo.active:
            self.undo.note(partial(self.put, table, key, table.get(key)))
        if value is None:
            del table[key]
        else:
            table[key] = value
        first_ns = self.first_chore()
        if first_ns is not None:
            self.wake(self.id, first_ns)

    def change(self, name: str, value: object) -> None:
        """Set a plain attribute, noting the old value for a rollback."""
        if self.undo.active:
            self.undo.note(partial(setattr, self, name, getattr(self, name)))
        setattr(self, name, value)

    def first_chore(self) -> int | None:
        """Return the time at which the next schedule or redrive step is due."""
        times = [schedule.next_ns for schedule in self.schedules.values()]
        times += [redrive.next_ns for redrive in self.redrives.values()]
        return min(times, default=None)

    def first_due(self) -> int | None:
        """Return the earliest time at which anything is due."""
        times = (self.deadlines.first(), self.first_chore())
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def oldest_ready_ns(self) -> int | None:
        """Return the time since which the oldest ready message waits."""
        oldest = []
        for block in self.table.blocks:
            is_ready = (np.frombuffer(block.meta, np.uint32) & STATE_MASK) == READY
            if is_ready.any():
                oldest.append(int(np.frombuffer(block.since, np.uint64)[is_ready].min()))
        return min(oldest, default=None)

    def find_leases(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the ids of all leased messages, and the token of each."""
        ids, tokens = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
        for block in self.table.blocks if self.counts[LEASED] else ():
            of_block = block.columns[TOKEN]
            if of_block is not None:
                is_leased = (np.frombuffer(block.meta, np.uint32) & STATE_MASK) == LEASED
                ids.append(np.frombuffer(block.ids, np.uint64)[is_leased])
                tokens.append(np.frombuffer(of_block, np.uint64)[is_leased])
        return np.concatenate(ids), np.concatenate(tokens)

    def pinned(self, first_index: int, last_index: int) -> list[int]:
        """Return the entries in a range that hold bodies, unsorted."""
        found = [index for index in self.bodies if first_index <= index <= last_index]
        found += [index for index in self.schedules if first_index <= index <= last_index]
        for block, at in self.table.places(first_index):
            if block.ids[at] > last_index:
                break
            if not block.value(BODY, at):
                found.append(block.ids[at])
        return found

    def may_pin(self, first_index: int, last_index: int) -> bool:
        """Return whether ``pinned`` may find any, from what costs little to know."""
        place = next(self.table.places(first_index), None)
        return (
            (place is not None and place[0].ids[place[1]] <= last_index)
            or any(first_index <= index <= last_index for index in self.bodies)
            or any(first_index <= index <= last_index for index in self.schedules)
        )

    def encode_head(self) -> bytes:
        """Return the canonical bytes of all except messages, dedup ids, schedules and redrives.

        Snapshots store them and ``encode_shares``, and the state hash covers them.
        """
        names = (self.namespace.encode(), self.name.encode())
        head = U64.pack(self.id) + b"".join(encode_sized(U8, name) for name in names)
        state = U8.pack(self.is_paused) + encode_sized(U8, self.last_tenant)
        return head + self.config.encode_settings() + state + TOTALS.pack(*self.totals)

    def encode_shares(self) -> bytes:
        """Return the canonical bytes of the weights of tenants, and of the turn."""
        return self.config.encode_weights() + U16.pack(self.turn_count)

    def state_total(self) -> int:
        """Return the unreduced hash of everything."""
        total = self.hash_total + self.dedup.hash_total
        shares = self.encode_shares() if self.config.tenant_weights else b""
        total += item_hash(_KIND_QUEUE + self.encode_head() + shares, self.id)
        for schedule in self.schedules.values():
            total += item_hash(_KIND_SCHEDULE + schedule.encode(), self.id)
        for redrive in self.redrives.values():
            total += item_hash(_KIND_REDRIVE + redrive.encode(), self.id)
        return total

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind."""
        sizes = self.table.memory()
        return {
            "messages": sizes["columns"],
            "ready": self.ready.memory(),
            "groups": sizes["groups"],
            "dead": sizes["dead"],
            "queue_deadlines": self.deadlines.memory(),
            "dedup": self.dedup.memory(),
            "queues": QUEUE_SIZE
            + SCHEDULE_SIZE * len(self.schedules)
            + REDRIVE_SIZE * len(self.redrives),
        }

    def is_conserved(self) -> bool:
        """Return whether the messages that came in are those that left or are still here."""
        incoming = sum(self.totals[total] for total in INCOMING)
        outgoing = sum(self.totals[total] for total in OUTGOING)
        return incoming == outgoing + self.live_count

    def check(self) -> None:
        """Assert the invariants of this file."""
        self.table.check()
        self.dedup.check()
        assert self.config.tenant_weights or not self.turn_count, f"a turn of {self.turn_count}"
        assert self.is_conserved(), f"the law of queue {self.id}: {self.totals}"
        counts = [0] * STATES
        hash_total = 0
        deadlines: list[int] = []
        members: dict[bytes, list[Row]] = {}
        bodies: dict[int, int] = {}
        entries = self.ready.entries() | set(self.passed)
        for row in self.table.rows():
            counts[row.state] += 1
            hash_total += item_hash(encode_row(row), self.id)
            deadlines += (pack_deadline(*deadline) for deadline in _list_deadlines(row))
            assert (row.due_ns == 0) == (row.state == READY), row
            assert (row.token == 0) == (row.state != LEASED), row
            if row.body:
                bodies[row.body] = bodies.get(row.body, 0) + 1
            if row.group:
                members.setdefault(row.group, []).append(row)
            elif row.state == READY:
                assert (row.id, row.since_ns, row.priority, row.tenant) in entries, row
        assert counts == self.counts, (counts, self.counts)
        assert hash_total == self.hash_total, f"the hash of queue {self.id}"
        assert bodies == self.bodies, (bodies, self.bodies)
        self.deadlines.check(deadlines)
        for group in self.table.groups.by_number.values():
            self._check_group(group, members[group.name], entries)

    @staticmethod
    def _check_group(
        group: Group, rows: list[Row], entries: set[tuple[int, int, int, bytes]]
    ) -> None:
        leased = [row.id for row in rows if row.state == LEASED]
        assert leased in ([], [group.leased]), f"{leased} are leased at once"
        assert bool(leased) == bool(group.leased), group.leased
        row = rows[0]
        if not leased and row.state == READY:
            assert group.placed == row.id, f"{row.id} is not offered"
            assert (row.id, row.since_ns, row.priority, row.tenant) in entries, row


def _list_deadlines(row: Row) -> list[tuple[int, int, int]]:
    """Return the deadlines of a row as (time, id, kind); a leased message does not expire."""
    if row.state == LEASED:
        return [(row.due_ns, row.id, LEASE_ENDS)]
    found = []
    if row.state == DELAYED:
        found.append((row.due_ns, row.id, DELAY_ENDS))
    if row.expires_ns:
        found.append((row.expires_ns, row.id, TTL_ENDS))
    return found
