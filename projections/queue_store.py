"""One queue: its messages, and all that follows from them.

Every change of a message goes through ``swap``, which swaps one row for another and keeps columns,
counts, hash, deadlines, groups and ready messages in step. It is its own inverse, and that is how
batches are undone. The exception is queue_plain.py, which repeats the part of it that concerns a
message without options.

Invariants, all asserted by ``check``:

* the law: enqueued + redriven + arrived = ready + delayed + leased + acked + expired + dead +
  cancelled + purged + moved. ``arrived`` and ``moved`` are about queues that take dead letters:
  what came in as one, and what was redriven from here;
* ``hash_total`` is the sum of all rows' hashes;
* ``deadlines`` holds the end of each lease and delay, and the lifetime of what is not leased;
* each ready message whose turn it is has an entry among the ready ones.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import TypeVar

import numpy as np

from projections.payload import U8, U64, encode_sized
from projections.queue_columns import BODY, GROUP, Table
from projections.queue_config import QueueConfig
from projections.queue_deadlines import (
    DELAY_ENDS,
    LEASE_ENDS,
    TTL_ENDS,
    PackedDeadlines,
    pack_deadline,
)
from projections.queue_dedup import DedupWindow
from projections.queue_groups import GROUP_SIZE, MEMBER_SIZE, Group
from projections.queue_limits import BLOCK_ROWS, GARBAGE_MAX
from projections.queue_ready import ReadyMessages
from projections.queue_row import (
    DELAYED,
    HAS_GROUP,
    LEASED,
    PLAIN,
    PRIORITY_MASK,
    PRIORITY_SHIFT,
    READY,
    STATE_MASK,
    STATES,
    Row,
    encode_row,
)
from projections.queue_schedule import Cron
from projections.state_hash import item_hash
from projections.undo import UndoLog

QUEUE_SIZE = 6_000  # bytes of a queue without messages
SCHEDULE_SIZE = 900
REDRIVE_SIZE = 700

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
    DEDUP_DROPPED = 10  # dedup ids let go of before their time
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
    """A message that the queue sends itself; body and headers are in the entry ``id``."""

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
    """A redrive that is not done; ids below ``cursor`` have been looked at."""

    id: int
    target: int
    last_id: int
    failed_from_ns: int
    failed_until_ns: int
    left: int  # messages that may still be moved; 0: no limit
    rate_per_s: int
    started_ns: int  # what died later is none of its business
    cursor: int
    next_ns: int
    moved_count: int
    skipped_count: int  # matched, but the queue that they came from is gone
    failure: bytes

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        numbers = [getattr(self, name) for name in self.__slots__ if name != "failure"]
        return REDRIVE.pack(*numbers) + encode_sized(U8, self.failure)


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
        self.table = Table()
        self.ready = ReadyMessages()
        self.deadlines = PackedDeadlines()
        self.dedup = DedupWindow(queue_id, undo)
        self.groups: dict[bytes, Group] = {}
        self.schedules: dict[int, Schedule] = {}
        self.redrives: dict[int, RunningRedrive] = {}
        self.bodies: dict[int, int] = {}  # entries that hold bodies of other messages; how many
        self.counts = [0] * STATES
        self.totals = [0] * len(Total)
        self.hash_total = 0
        self.undo = undo
        self.wake = wake

    @property
    def live_count(self) -> int:
        """How many messages there are, in any state."""
        return sum(self.counts)

    def swap(self, before: Row | None, after: Row | None) -> None:
        """Replace a row by another one of the same id; None: it is not (or no longer) here."""
        if self.undo.active:
            self.undo.note(partial(self.swap, after, before))
        if before is not None:
            self.hash_total -= item_hash(encode_row(before), self.id)
            self.counts[before.state] -= 1
            if before.state == READY:
                self.ready.outdated_count += 1
            if before.due_ns or before.expires_ns:
                for deadline in _deadlines_of(before):
                    self.deadlines.cancel(*deadline)
            if before.body:
                self._count_body(before.body, -1)
        if after is None:
            assert before is not None, "nothing becomes nothing"
            self.table.remove(before.id)
        else:
            if before is None:
                self.table.insert(after)
            else:
                self.table.replace(after)
            self.hash_total += item_hash(encode_row(after), self.id)
            self.counts[after.state] += 1
            if after.due_ns or after.expires_ns:
                for deadline in _deadlines_of(after):
                    self.deadlines.add(*deadline)
                    self.wake(self.id, deadline[0])
            if after.body:
                self._count_body(after.body, 1)
        row = before or after
        assert row is not None
        if row.group:
            self._follow_group(row.group, before, after)
        elif after is not None and after.state == READY:
            self.ready.push(after.id, after.since_ns, after.priority, after.tenant)
        if self.ready.outdated_count > self.counts[READY] + GARBAGE_MAX:
            self.rebuild_ready()

    def restore_plain(self, message_id: int, since_ns: int, meta: int) -> None:
        """Add a ready message without options whose id is above all others."""
        blocks = self.table.blocks
        block = blocks[-1] if blocks else None
        if block is None or len(block.ids) >= BLOCK_ROWS:
            block = self.table.append_block(message_id)
        block.append_plain(message_id, since_ns, meta)
        self.counts[READY] += 1
        self.hash_total += item_hash(PLAIN.pack(message_id, since_ns, meta), self.id)
        self.ready.push(message_id, since_ns, meta >> PRIORITY_SHIFT & PRIORITY_MASK, b"")

    def take_back_plain(self, message_id: int) -> None:
        """Take the enqueue of a plain message back."""
        self.swap(self.table.get(message_id), None)
        self._uncount(Total.ENQUEUED, 1)

    def is_next(self, message_id: int, since_ns: int, priority: int) -> bool:
        """Whether an entry of the ready messages is true, and its message's turn."""
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
        name = self.table.groups.name(block.value(GROUP, at))
        return self.groups[name].turn() == message_id

    def next_ready(self) -> tuple[Row, bytes] | None:
        """Return the message that the next lease gets, and the tenant whose turn it is."""
        found = self.ready.next(self.last_tenant, self.config.ageing_ns, self.is_next)
        if found is None:
            return None
        message_id, tenant = found
        row = self.table.get(message_id)
        assert row is not None, f"no message {message_id}"
        return row, tenant

    def rebuild_ready(self) -> None:
        """Drop all outdated entries of the ready messages."""
        self.ready = ReadyMessages()
        for group in self.groups.values():
            group.placed = 0
        waiting = []
        for block, at in self.table.places():
            meta = block.meta[at]
            if meta & STATE_MASK == READY:
                row = self.table.read(block, at)
                if not row.group or self.groups[row.group].turn() == row.id:
                    waiting.append((row.since_ns, row.id, row.priority, row.tenant))
                    if row.group:
                        self.groups[row.group].placed = row.id
        for since_ns, message_id, priority, tenant in sorted(waiting):
            self.ready.push(message_id, since_ns, priority, tenant)

    def count(self, total: Total, change: int = 1) -> None:
        """Count what happened."""
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
        """Set a plain attribute, so that it can be taken back."""
        if self.undo.active:
            self.undo.note(partial(setattr, self, name, getattr(self, name)))
        setattr(self, name, value)

    def first_chore(self) -> int | None:
        """Return when the next schedule or redrive step is due."""
        times = [schedule.next_ns for schedule in self.schedules.values()]
        times += [redrive.next_ns for redrive in self.redrives.values()]
        return min(times, default=None)

    def first_due(self) -> int | None:
        """Return when anything is due first."""
        times = (self.deadlines.first(), self.first_chore())
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def oldest_ready_ns(self) -> int | None:
        """Return since when the message waits that is ready for longest."""
        oldest = []
        for block in self.table.blocks:
            is_ready = (np.frombuffer(block.meta, np.uint32) & STATE_MASK) == READY
            if is_ready.any():
                oldest.append(int(np.frombuffer(block.since, np.uint64)[is_ready].min()))
        return min(oldest, default=None)

    def pinned(self, first_index: int, last_index: int) -> list[int]:
        """Return the entries in a range that hold bodies, in no order."""
        found = [index for index in self.bodies if first_index <= index <= last_index]
        found += [index for index in self.schedules if first_index <= index <= last_index]
        for block, at in self.table.places(first_index):
            if block.ids[at] > last_index:
                break
            if not block.value(BODY, at):
                found.append(block.ids[at])
        return found

    def first_pinned(self) -> int | None:
        """Return the lowest entry that holds a body; a body is never above its message."""
        first = self.table.first_id()
        indexes = [*self.bodies, *self.schedules, *([] if first is None else [first])]
        return min(indexes, default=None)

    def encode_head(self) -> bytes:
        """Return the canonical bytes of all but messages, dedup ids, schedules and redrives."""
        names = (self.namespace.encode(), self.name.encode())
        head = U64.pack(self.id) + b"".join(encode_sized(U8, name) for name in names)
        state = U8.pack(self.is_paused) + encode_sized(U8, self.last_tenant)
        return head + self.config.encode() + state + TOTALS.pack(*self.totals)

    def state_total(self) -> int:
        """Return the unreduced hash of everything."""
        total = self.hash_total + self.dedup.hash_total
        total += item_hash(_KIND_QUEUE + self.encode_head(), self.id)
        for schedule in self.schedules.values():
            total += item_hash(_KIND_SCHEDULE + schedule.encode(), self.id)
        for redrive in self.redrives.values():
            total += item_hash(_KIND_REDRIVE + redrive.encode(), self.id)
        return total

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind."""
        members = self.table.groups.counts()
        sizes = self.table.memory()
        groups = sum(GROUP_SIZE + MEMBER_SIZE * members[name] for name in self.groups)
        return {
            "messages": sizes["columns"],
            "ready": self.ready.memory(),
            "groups": int(groups) + sizes["names"],
            "dead": sizes["dead"],
            "queue_deadlines": self.deadlines.memory(),
            "dedup": self.dedup.memory(),
            "queues": QUEUE_SIZE
            + SCHEDULE_SIZE * len(self.schedules)
            + REDRIVE_SIZE * len(self.redrives),
        }

    def keeps_law(self) -> bool:
        """Tell whether what came in is what went out and what is here."""
        incoming = sum(self.totals[total] for total in INCOMING)
        outgoing = sum(self.totals[total] for total in OUTGOING)
        return incoming == outgoing + self.live_count

    def check(self) -> None:
        """Assert the invariants of this file."""
        self.table.check()
        self.dedup.check()
        assert self.keeps_law(), f"the law of queue {self.id}: {self.totals}"
        counts = [0] * STATES
        hash_total = 0
        deadlines: list[int] = []
        members: dict[bytes, list[Row]] = {}
        bodies: dict[int, int] = {}
        entries = self.ready.entries()
        for row in self.table.rows():
            counts[row.state] += 1
            hash_total += item_hash(encode_row(row), self.id)
            deadlines += (pack_deadline(*deadline) for deadline in _deadlines_of(row))
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
        assert members.keys() == self.groups.keys(), "groups"
        for name, rows in members.items():
            self._check_group(self.groups[name], rows, entries)

    @staticmethod
    def _check_group(
        group: Group, rows: list[Row], entries: set[tuple[int, int, int, bytes]]
    ) -> None:
        assert group.ids() == [row.id for row in rows], "members of a group"
        leased = [row.id for row in rows if row.state == LEASED]
        assert leased in ([], [group.leased]), f"{leased} are leased at once"
        assert bool(leased) == bool(group.leased), group.leased
        row = rows[0]
        if not leased and row.state == READY:
            assert group.placed == row.id, f"{row.id} is not offered"
            assert (row.id, row.since_ns, row.priority, row.tenant) in entries, row

    def _follow_group(self, name: bytes, before: Row | None, after: Row | None) -> None:
        """Keep a group in step with one of its messages, and offer the one whose turn it is."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group()
        if before is None:
            assert after is not None
            group.add(after.id)
        elif before.state == LEASED:
            group.leased = 0
        if after is None:
            assert before is not None
            group.remove(before.id)
            if not len(group):
                del self.groups[name]
                return
        elif after.state == LEASED:
            group.leased = after.id
        changed = before or after
        assert changed is not None
        turn = group.turn()
        if changed.id == group.placed or turn != group.placed:
            group.placed = 0  # its entry is outdated, and may be dropped before its turn comes
        if turn and turn != group.placed:
            row = after if after is not None and after.id == turn else self.table.get(turn)
            assert row is not None, f"no message {turn}"
            if row.state == READY:
                group.placed = turn
                self.ready.push(row.id, row.since_ns, row.priority, row.tenant)

    def _count_body(self, index: int, change: int) -> None:
        count = self.bodies.get(index, 0) + change
        if count:
            self.bodies[index] = count
        else:
            del self.bodies[index]


def _deadlines_of(row: Row) -> list[tuple[int, int, int]]:
    """Return the deadlines of a row as (time, id, kind): a lease protects from a lifetime's end."""
    if row.state == LEASED:
        return [(row.due_ns, row.id, LEASE_ENDS)]
    found = []
    if row.state == DELAYED:
        found.append((row.due_ns, row.id, DELAY_ENDS))
    if row.expires_ns:
        found.append((row.expires_ns, row.id, TTL_ENDS))
    return found
