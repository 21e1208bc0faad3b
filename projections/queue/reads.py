"""Reads of queues: names, settings, counts, and the messages themselves. They change nothing.

A message that is read is a ``Row``: indexes and numbers. To serve it, fetch the entry
``row.body_index`` from the log and decode it with ``message.decode_message``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest

from onelog.projections.codec import Ranges
from onelog.projections.projection import Position
from onelog.projections.queue.limits import (
    PEEK_MESSAGES_MAX,
    PEEK_VISITS_MAX,
    REMAINING_VISITS_MAX,
)
from onelog.projections.queue.message import QueueConfig
from onelog.projections.queue.store import QueueState, RunningRedrive, Schedule, Total
from onelog.projections.queue.table import DELAYED, LEASED, READY, Row
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts of a queue by state, and totals by outcome since it was created."""

    ready: int
    delayed: int
    leased: int
    oldest_ready_ns: int | None  # since when the oldest ready message waits
    oldest_age_ns: int  # how long that is, in log time; 0 without ready messages
    groups: int
    tenants: int
    dedup_ids: int
    totals: dict[str, int]


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """Everything about a queue but its messages."""

    id: int
    namespace: str
    name: str
    config: QueueConfig
    is_paused: bool
    stats: QueueStats
    schedules: tuple[Schedule, ...]
    redrives: tuple[RunningRedrive, ...]


@dataclass(frozen=True, slots=True)
class Peeked:
    """Messages in the order of ids; ``next_id`` is where to continue, None at the end."""

    messages: tuple[Row, ...]
    next_id: int | None


class QueueReads:
    """The reads over all queues."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._queues: dict[int, QueueState] = {}
        self._names: dict[str, dict[str, int]] = {}  # by namespace and name
        # Entries of the log that this node cannot read now. Not state: a leader reads it when it
        # makes a lease, and apply never does (node/replica/repair.py).
        self.unreadable: Ranges = ()

    def find_queue(self, namespace: str, name: str) -> int | None:
        """Return the id of the queue called ``name``."""
        return self._names.get(namespace, {}).get(name)

    def get_queue(self, namespace: str, name: str) -> QueueState | Refused:
        """Return the queue called ``name``, for reading."""
        names = self._names.get(namespace)
        if names is None:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        queue_id = names.get(name)
        return Refused(Reason.QUEUE_UNKNOWN) if queue_id is None else self._queues[queue_id]

    def queue_by_id(self, queue_id: int) -> QueueState | None:
        """Return a queue, for reading."""
        return self._queues.get(queue_id)

    def all_queues(self) -> Iterable[QueueState]:
        """Return the queues of all namespaces, for reading."""
        return self._queues.values()

    def list_queues(
        self, namespace: str, limit: int = PEEK_MESSAGES_MAX, after: str = "", prefix: str = ""
    ) -> list[tuple[str, int]] | Refused:
        """Return up to ``limit`` names after ``after``, in order, with their ids."""
        names = self._names.get(namespace)
        if names is None:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        if not 1 <= limit <= PEEK_MESSAGES_MAX:
            return Refused(Reason.LIMIT_INVALID, limit)
        found = (name for name in names if name > after and name.startswith(prefix))
        return [(name, names[name]) for name in nsmallest(limit, found)]

    def describe_queue(self, namespace: str, queue_id: int) -> QueueInfo | Refused:
        """Return everything about a queue except its messages."""
        queue = self._find(namespace, queue_id)
        if isinstance(queue, Refused):
            return queue
        return QueueInfo(
            queue.id,
            queue.namespace,
            queue.name,
            queue.config,
            queue.is_paused,
            self._stats(queue),
            tuple(queue.schedules[key] for key in sorted(queue.schedules)),
            tuple(queue.redrives[key] for key in sorted(queue.redrives)),
        )

    def peek(
        self,
        namespace: str,
        queue_id: int,
        *,
        limit: int,
        from_id: int = 0,
        from_ns: int = 0,
        failure: bytes = b"",
    ) -> Peeked | Refused:
        """Return messages in any state, from an id and from a time on.

        The time is the one since which a message waits (``Row.since_ns``). With ``failure`` only
        dead letters whose failure reason contains it.
        """
        queue = self._find(namespace, queue_id)
        if isinstance(queue, Refused):
            return queue
        if not 1 <= limit <= PEEK_MESSAGES_MAX:
            return Refused(Reason.LIMIT_INVALID, limit)
        found: list[Row] = []
        for visits, (block, at) in enumerate(queue.table.places(from_id)):
            if len(found) == limit or visits == PEEK_VISITS_MAX:
                return Peeked(tuple(found), block.ids[at])
            if block.since[at] < from_ns:
                continue
            if failure:
                dead = queue.table.dead.get(block.ids[at])
                if dead is None or failure not in dead.failure:
                    continue
            found.append(queue.table.read(block, at))
        return Peeked(tuple(found), None)

    def list_redrives(self, queue: QueueState) -> list[tuple[RunningRedrive, int, bool]]:
        """Return the running redrives by id, each with how many messages it has yet to move.

        The last value is whether there may be more, since it visits a limited number of messages.
        """
        found = []
        visits_max = REMAINING_VISITS_MAX // max(1, len(queue.redrives))
        for _, redrive in sorted(queue.redrives.items()):
            count, is_partial = 0, False
            for visits, row in enumerate(queue.table.rows(redrive.cursor)):
                if row.id > redrive.last_id or (redrive.left and count == redrive.left):
                    break
                if visits == visits_max:
                    is_partial = True
                    break
                if redrive.matches(row):
                    assert row.dead is not None
                    target = self._queues.get(redrive.target or row.dead.source)
                    count += target is not None and target is not queue
            found.append((redrive, count, is_partial))
        return found

    def _find(self, namespace: str, queue_id: int) -> QueueState | Refused:
        if namespace not in self._names:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        queue = self._queues.get(queue_id)
        if queue is None or queue.namespace != namespace:
            return Refused(Reason.QUEUE_UNKNOWN, queue_id)
        return queue

    def _stats(self, queue: QueueState) -> QueueStats:
        oldest_ns = queue.oldest_ready_ns()
        now_ns = self._position.log_time_ns
        return QueueStats(
            queue.counts[READY],
            queue.counts[DELAYED],
            queue.counts[LEASED],
            oldest_ns,
            0 if oldest_ns is None else max(0, now_ns - oldest_ns),
            len(queue.table.groups),
            len(queue.table.tenants),
            len(queue.dedup),
            {total.name.lower(): queue.totals[total] for total in Total},
        )
