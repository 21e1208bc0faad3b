"""Who is next: callers that wait for messages of a queue, first come, first served.

A message that becomes ready is promised to the one who has waited for longest, and to nobody else
until the lease that takes it is applied, or has failed. So a hundred callers who wait for one
message cost one entry of the log, and none while there is nothing: all else is looked up in the
state. Messages that are the turn of their group count once for each group.

Invariants: ``promised`` is the sum of what tickets that were called may take; a ticket is in its
line from when it is drawn until it is called or put away; a line without tickets is forgotten.
Whoever draws a ticket puts it away, however it ends (``with``). A promise is only a guess about a
state that changes: a lease that gets nothing draws again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from onelog.cluster.raft.member import LEADER
from onelog.node.edge.calls import stopping
from onelog.node.edge.shards import Edge
from onelog.node.edge.waits import Waits
from onelog.node.replica.driver import ShardDriver
from onelog.node.services.queue_requests import was_answered
from onelog.projections.codec import SessionRef
from onelog.projections.queue.row import READY
from onelog.projections.queue.store import QueueState


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
        ready = queue.counts[READY]
        groups = queue.table.groups
        if groups:
            ready = min(ready, len(groups))
        free = ready - self.promised
        return free if free > 0 and queue.next_ready() is not None else 0

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
