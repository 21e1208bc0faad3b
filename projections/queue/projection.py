"""The queue projection, owner 0x02: messages that consumers lease, work on and acknowledge.

Operations are in commands.py, reads in reads.py, and the state of one queue in store.py.

Every effect of time is in the log: the ends of leases, delays and lifetimes are items of ``expire``
entries; firings of schedules and steps of redrives are entries of their own that the leader
proposes (``chores``).
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from onelog.projections.codec import Reader, chunked
from onelog.projections.namespaces import Namespace
from onelog.projections.projection import Due, Handler, Projection, one_by_one
from onelog.projections.queue.changes import Kind
from onelog.projections.queue.commands import (
    FAILURE_LEASE_EXPIRED,
    QUEUE_OPERATIONS,
    Command,
    Moment,
    QueueCreate,
    QueueOperation,
    QueueWrites,
    RedriveStep,
    ScheduleFire,
    encode_command,
    fail,
    payload_head,
)
from onelog.projections.queue.deadlines import (
    DELAY_ENDS,
    LEASE_ENDS,
    TTL_ENDS,
    unpack_deadline,
)
from onelog.projections.queue.snapshot import dump_parts, load_section
from onelog.projections.queue.store import Total
from onelog.projections.queue.table import DELAYED, DUE, EXPIRES, LEASED, READY, STATE_MASK
from onelog.projections.reasons import Reason
from onelog.projections.result import Outcome, Refused
from onelog.projections.state_hash import reduce_total
from onelog.ual.entry import OWNER_QUEUE, Draft

ITEM = struct.Struct("<BQQ")  # of an expire entry: kind, queue, message


class Queue(QueueWrites, Projection):
    """The state of all queues."""

    owner = OWNER_QUEUE
    operations = QUEUE_OPERATIONS

    def find_name(self, queue_id: int) -> tuple[str, str] | None:
        """Return namespace and name of a queue, also of a recently deleted one."""
        queue = self._queues.get(queue_id)
        return self.changes.find_name(queue_id) if queue is None else (queue.namespace, queue.name)

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each operation."""
        return {
            OWNER_QUEUE << 8 | each.number: partial(each.execute, self)
            if each.takes_spans
            else one_by_one(partial(self._apply, each))
            for each in QUEUE_OPERATIONS
        }

    def _apply(
        self, operation: QueueOperation, namespace: str, reader: Reader, index: int, now_ns: int
    ) -> Outcome:
        command: Command = operation.decode(reader)
        reader.finish()
        if namespace not in self._names:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        moment = Moment(index, now_ns)
        if isinstance(command, QueueCreate):
            return self.create_queue(namespace, command, moment)
        queue = self._queues.get(command.queue)
        if queue is None or queue.namespace != namespace:
            return Refused(Reason.QUEUE_UNKNOWN, command.queue)
        outcome: Outcome = operation.execute(self, queue, command, moment)
        return outcome

    def namespace_created(self, namespace: Namespace) -> None:
        """Prepare an empty namespace."""
        self._names[namespace.name] = {}

    def namespace_deleted(self, namespace: Namespace) -> None:
        """Drop all its queues."""
        for queue_id in sorted(self._names[namespace.name].values()):
            self._remove(self._queues[queue_id])
        del self._names[namespace.name]

    def next_deadline(self) -> int | None:
        """Return the time at which something is due first."""
        return self._wakeups.first()

    def due(self, now_ns: int, limit: int) -> list[Due]:
        """Return leases, delays and lifetimes that are over, earliest first."""
        found: list[Due] = []
        for queue_id in self._wakeups.until(now_ns):
            for key in self._queues[queue_id].deadlines.due(now_ns, limit):
                deadline_ns, message_id, kind = unpack_deadline(key)
                item = ITEM.pack(kind, queue_id, message_id)
                found.append(Due(deadline_ns, OWNER_QUEUE, item, 1))
        return sorted(found)[:limit]

    def expire(self, item: bytes, index: int, timestamp_ns: int) -> bool:
        """End a lease, delay or lifetime if it is due."""
        if len(item) != ITEM.size:
            return False
        kind, queue_id, message_id = ITEM.unpack(item)
        queue = self._queues.get(queue_id)
        place = None if queue is None else queue.table.find(message_id)
        if queue is None or place is None:
            return False
        block, at = place
        span, meta = (block, at, at + 1), block.meta[at]
        state, due_ns = meta & STATE_MASK, block.value(DUE, at)
        if kind == TTL_ENDS:
            if state == LEASED or not 0 < block.value(EXPIRES, at) <= timestamp_ns:
                return False
            queue.remove([span])
            queue.count(Total.EXPIRED)
            self.changes.add(index, Kind.EXPIRED, queue_id, [message_id])
            return True
        if due_ns > timestamp_ns:
            return False
        if kind == LEASE_ENDS and state == LEASED:
            dead = fail(self._queues, queue, [span], FAILURE_LEASE_EXPIRED, timestamp_ns, None)
            self.changes.add(index, Kind.LEASE_EXPIRED, queue_id, [message_id])
            if dead:
                self.changes.add(index, Kind.DEAD, queue_id, dead)
            return True
        if kind == DELAY_ENDS and state == DELAYED:
            queue.change_rows(span, [meta & ~STATE_MASK | READY], 0, 0)
            self.changes.add(index, Kind.DUE, queue_id, [message_id])
            return True
        return False

    def chores(self, now_ns: int, limit: int) -> list[Draft]:
        """Return the schedules to fire and the redrives to continue."""
        found: list[tuple[int, int, Command, str]] = []
        for queue_id in self._wakeups.until(now_ns):
            queue = self._queues[queue_id]
            for schedule in queue.schedules.values():
                due_ns = schedule.next_ns
                if due_ns <= now_ns:
                    command: Command = ScheduleFire(queue_id, schedule.id, due_ns)
                    found.append((due_ns, schedule.id, command, queue.namespace))
            for redrive in queue.redrives.values():
                if redrive.next_ns <= now_ns:
                    command = RedriveStep(queue_id, redrive.id, redrive.cursor)
                    found.append((redrive.next_ns, redrive.id, command, queue.namespace))
        found.sort(key=lambda chore: chore[:2])
        return [encode_command(command, name) for _, _, command, name in found[:limit]]

    def pinned(self, first_index: int, last_index: int) -> Sequence[int]:
        """Return the entries of a range that hold bodies of messages."""
        found: set[int] = set()
        for queue in self._queues.values():
            found.update(queue.pinned(first_index, last_index))
        return sorted(found)

    def state_hash(self) -> int:
        """Return the hash of all queues."""
        return reduce_total(sum(queue.state_total() for queue in self._queues.values()))

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind, over all queues."""
        total: dict[str, int] = {"changes": self.changes.size}
        for queue in self._queues.values():
            for kind, size in queue.memory().items():
                total[kind] = total.get(kind, 0) + size
        return total

    def counts(self) -> dict[str, int]:
        """Return the number of objects, by kind."""
        queues = self._queues.values()
        return {
            "queues": len(self._queues),
            "messages_ready": sum(queue.counts[READY] for queue in queues),
            "messages_delayed": sum(queue.counts[DELAYED] for queue in queues),
            "messages_leased": sum(queue.counts[LEASED] for queue in queues),
            "dedup_ids": sum(len(queue.dedup) for queue in queues),
            "schedules": sum(len(queue.schedules) for queue in queues),
            "redrives": sum(len(queue.redrives) for queue in queues),
        }

    def dump(self) -> Iterator[bytes]:
        """Yield the snapshot section."""
        return chunked(dump_parts(self._queues))

    def load(self, chunks: Iterable[bytes]) -> None:
        """Load a section; the namespaces exist already."""
        load_section(chunks, self._open)
        self.changes.reset(self._position.applied_index + 1)

    def check(self) -> None:
        """Assert every invariant."""
        assert not self._undo.active, "a batch is open"
        named = {
            (namespace, name): queue_id
            for namespace, names in self._names.items()
            for name, queue_id in names.items()
        }
        queues = self._queues.values()
        assert named == {(queue.namespace, queue.name): queue.id for queue in queues}
        assert sorted(self._by_head) == sorted(payload_head(queue) for queue in queues)
        held: set[int] = set()
        for queue in queues:
            assert self._by_head[payload_head(queue)] is queue
            queue.check()
            ids = {row.id for row in queue.table.rows()}
            assert not held & ids, "a message in two queues"
            held |= ids
            target = queue.config.dead_queue
            assert not target or self._queues[target].namespace == queue.namespace
        self._wakeups.check(self._queues)
