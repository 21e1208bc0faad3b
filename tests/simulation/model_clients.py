"""Clients of queues and series, and what must be true of these in the end.

* Queue: every message whose enqueue was answered is in the queue or among the dead letters, or was
  acknowledged, once; what was acknowledged is gone. Redrives move dead letters back meanwhile, and
  messages of a group are worked on one after the other. (The judge knows the law of queues.)
* Release: a message that was released is delivered again as if it had never been delivered.
* Series: every point that was answered is there, with its value, in a buffer or in a block.

Bodies and blocks are read from the log of each member: they must have survived trimming, shipping
and repair. Streams are in stream_clients.py, batches over all models in transact_client.py.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np

from onelog.node.replica.shard import Shard
from onelog.projections.codec import SessionRef
from onelog.projections.queue import commands as queue_commands
from onelog.projections.queue.message import (
    Enqueue,
    Leased,
    QueueConfig,
    decode_leased,
    decode_message,
    decode_verdicts,
)
from onelog.projections.queue.reads import Peeked
from onelog.projections.queue.table import Row
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Refused
from onelog.projections.timeseries import commands as ts_commands
from onelog.projections.timeseries.names import series_name
from onelog.projections.timeseries.point_batch import Run, encode_batch
from onelog.projections.timeseries.query import Query
from onelog.projections.timeseries.types import FieldType
from onelog.ual.entry import Draft
from onelog.ual.errors import UalError
from tests.projections.timeseries.ts_queries import Queries
from tests.simulation.caller import NAMESPACE, Caller
from tests.simulation.replica import Replica
from tests.simulation.schedule import Schedule

SECOND_NS = 10**9
GROUPS = (b"", b"", b"left", b"right")
FORGOTTEN = 0.1  # of the leases of released messages
HOLD_NS = 30 * SECOND_NS  # leases that are released end by that, as a rule
BATCH_POINTS = 180  # six such batches make a block, and one is about the largest request

Finish = Callable[[Applied | Refused], None]


@dataclass
class Answered:
    """What clients were told, together; bodies and times are unique."""

    enqueued: set[bytes] = field(default_factory=set)
    acking: Counter[bytes] = field(default_factory=Counter)  # sent, perhaps not answered
    acked: Counter[bytes] = field(default_factory=Counter)
    written: dict[int, float] = field(default_factory=dict)
    appended: dict[int, bytes] = field(default_factory=dict)  # records by offset


class ModelClient(Caller):
    """A client whose findings are compared with the state of every member in the end."""

    def __init__(
        self,
        number: int,
        replicas: list[Replica],
        schedule: Schedule,
        rng: Random,
        answered: Answered,
        *,
        deadline_s: float,
        lets_go: bool,
    ) -> None:
        """``lets_go``: nothing is kept for ever, so that the log can be dropped behind it."""
        super().__init__(number, replicas, schedule, rng, deadline_s=deadline_s)
        self.think_s = 0.8
        self._answered = answered
        self._lets_go = lets_go
        self._set_up()

    def _set_up(self) -> None:
        """Begin what this kind of client keeps to itself."""

    def wrong_on(self, shard: Shard) -> str | None:
        """Say what is not as it should be, if anything."""
        raise NotImplementedError


class QueueClient(ModelClient):
    """Enqueues, leases, settles most of what it leased, and redrives what died."""

    _dead = _jobs = 0

    def _operate(self) -> None:
        chance = self._rng.random()
        if not self._jobs:
            self._create()
        elif chance < 0.5:
            self._enqueue()
        elif chance < 0.54:
            self._redrive()
        else:
            self._lease()

    def _create(self) -> None:
        if not self._dead:
            name, config = "dead", QueueConfig()
        else:
            name = "jobs"
            deliveries = 0 if self._lets_go else 2
            config = QueueConfig(
                max_deliveries=deliveries, dead_queue=self._dead, visibility_ns=SECOND_NS
            )
        command = queue_commands.QueueCreate(name, config)

        def finish(result: Applied | Refused) -> None:
            if isinstance(result, Refused):
                assert result.reason is Reason.QUEUE_EXISTS, result
            number = result.detail if isinstance(result, Refused) else result.number
            if name == "dead":
                self._dead = number
            else:
                self._jobs = number
            self._next()

        self._send(command, finish)

    def _enqueue(self) -> None:
        body = b"%d-%d" % (self.number, self._sequence)
        delay_ns = SECOND_NS if self._rng.random() < 0.2 else None

        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            self._answered.enqueued.add(body)
            self._next()

        priority, group = self._rng.choice((0, 8, 8)), self._rng.choice(GROUPS)
        message = Enqueue(self._jobs, body, priority=priority, delay_ns=delay_ns, group=group)
        self._send(message, finish)

    def _redrive(self) -> None:
        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied) or result.reason is Reason.REDRIVES_FULL, result
            self._next()

        self._send(queue_commands.Redrive(self._dead, rate_per_s=2), finish)

    def _lease(self) -> None:
        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            leased = decode_leased(result)
            shard = self._replicas[self._target].shard
            bodies = {}
            for message in leased.messages:
                try:
                    assert shard is not None
                    bodies[message.id] = decode_message(shard.log.read(message.body_index)).body
                except (AssertionError, UalError):
                    continue  # asked a replica that is down or behind; the lease will run out
            if bodies and self._rng.random() < 0.9:
                self._settle(leased.token, bodies)
            else:
                self._next()

        self._send(queue_commands.Lease(self._jobs, self._rng.randint(1, 3)), finish)

    def _settle(self, token: int, bodies: dict[int, bytes]) -> None:
        items = tuple((message_id, token) for message_id in bodies)
        is_ack = self._rng.random() < 0.8
        self._sequence += 1
        if is_ack:
            self._answered.acking.update(bodies.values())

        def finish(result: Applied | Refused) -> None:
            if is_ack and isinstance(result, Applied):
                verdicts = decode_verdicts(result, len(items))
            else:
                verdicts = [Reason.LEASE_LOST] * len(items)
            for body, verdict in zip(bodies.values(), verdicts, strict=True):
                if is_ack:
                    self._answered.acking[body] -= 1
                if verdict is None:
                    self._answered.acked[body] += 1
            self._next()

        if is_ack:
            self._send(queue_commands.Ack(self._jobs, items), finish)
        else:
            self._send(queue_commands.Nack(self._jobs, items, failure=b"no luck"), finish)

    def _send(self, command: queue_commands.Command, finish: Finish) -> None:
        self._write(
            lambda session: queue_commands.encode_command(command, NAMESPACE, session), finish
        )

    def wrong_on(self, shard: Shard) -> str | None:
        """See the module's text."""
        queue = shard.projections.queue
        held: Counter[bytes] = Counter()
        for queue_id in (self._jobs, self._dead):
            next_id: int | None = 0
            while queue_id and next_id is not None:
                peeked = queue.peek(NAMESPACE, queue_id, limit=1_000, from_id=next_id)
                assert isinstance(peeked, Peeked), peeked
                next_id = peeked.next_id
                for row in peeked.messages:
                    held[decode_message(shard.log.read(row.body_index)).body] += 1
        work = self._answered
        for body in work.enqueued:
            known = held[body] + work.acked[body]
            if known != 1 and not (known == 0 and work.acking[body]):
                return f"message {body!r}: held {held[body]}, acknowledged {work.acked[body]}"
        return None


class ReleaseClient(ModelClient):
    """Leases messages of a queue of its own, releases most of them, and counts deliveries.

    The leases name a consumer, as those of pushed messages do. Now and then one is forgotten, like
    those of a leader that dies. Every replica must find out whose it is as long as it lasts.
    """

    _queue = 0

    def _set_up(self) -> None:
        self.think_s = 1.6
        self._deliveries: dict[int, int] = {}  # those that count, of messages whose lease ended

    def _operate(self) -> None:
        if not self._queue:
            self._create()
        elif self._rng.random() < 0.2:
            self._send(Enqueue(self._queue, b"x"), lambda _: self._next())
        else:
            count = self._rng.randint(1, 3)
            command = queue_commands.Lease(self._queue, count, HOLD_NS, self._consumer)
            self._send(command, self._leased)

    @property
    def _consumer(self) -> bytes:
        return b"consumer-%d" % self.number

    def _create(self) -> None:
        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            self._queue = result.number
            self._next()

        self._send(queue_commands.QueueCreate(f"released-{self.number}", QueueConfig()), finish)

    def _leased(self, result: Applied | Refused) -> None:
        assert isinstance(result, Applied), result
        leased = decode_leased(result)
        for message in leased.messages:
            counted = self._deliveries.pop(message.id, message.deliveries - 1)
            delivered = message.deliveries
            assert delivered == counted + 1, f"{message.id} is released: {counted}, {delivered}"
        if leased.messages and self._rng.random() >= FORGOTTEN:
            self._settle(leased)
        else:
            self._next()

    def _settle(self, leased: Leased) -> None:
        """Release them; now and then acknowledge them, so that the log can be let go."""
        items = tuple((message.id, leased.token) for message in leased.messages)
        is_ack = self._rng.random() < 0.2

        def finish(result: Applied | Refused) -> None:
            verdicts: list[Reason | None] = [Reason.LEASE_LOST] * len(items)
            if isinstance(result, Applied):
                verdicts = decode_verdicts(result, len(items))
            for message, verdict in zip(leased.messages, verdicts, strict=True):
                if verdict is None and not is_ack:
                    self._deliveries[message.id] = message.deliveries - 1
            self._next()

        self._sequence += 1
        settle = queue_commands.Ack if is_ack else queue_commands.Release
        self._send(settle(self._queue, items), finish)

    def _send(self, command: queue_commands.Command, finish: Finish) -> None:
        self._write(
            lambda session: queue_commands.encode_command(command, NAMESPACE, session), finish
        )

    def wrong_on(self, shard: Shard) -> str | None:
        """See the module's text."""
        for message, counted in self._deliveries.items():
            row = find_message(shard, self._queue, message)
            if row is None or row.deliveries != counted:
                return f"message {message} was released after {counted} deliveries: {row}"
        queue = shard.projections.queue.queue_by_id(self._queue)
        tokens = [] if queue is None else queue.find_leases()[1].tolist()
        for token in set(tokens):
            consumer = queue_commands.find_consumer(shard.log.read(token))
            if consumer != self._consumer:
                return f"lease {token} is that of {consumer!r}"
        return None


def find_message(shard: Shard, queue_id: int, message_id: int) -> Row | None:
    """Return the row of a message on a replica, if it has it."""
    queue = shard.projections.queue.queue_by_id(queue_id)
    return None if queue is None else queue.table.get(message_id)


class SeriesClient(ModelClient):
    """Writes to a series of its own, one point at a time or many, of which leaders make blocks."""

    def _operate(self) -> None:
        # Blocks stay in the log for as long as their points: not where it shall be let go.
        count = BATCH_POINTS if not self._lets_go and self._rng.random() < 0.25 else 1
        start, value = self._sequence * 1_000, self._rng.random()
        points = {(start + at) * SECOND_NS: value + at % 7 for at in range(count)}
        name = series_name("load", {"client": str(self.number)})

        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            self._answered.written |= points
            self._next()

        def encode(session: SessionRef | None) -> Draft:
            if count == 1:
                write = ts_commands.Write(name, start * SECOND_NS, (("v", value),))
                return ts_commands.encode_command(write, NAMESPACE, session)
            times = np.fromiter(points, np.int64)
            run = Run(name, "v", FieldType.F64, times, list(points.values()))
            return ts_commands.encode_write_batch(encode_batch([run]), NAMESPACE, session)

        self._write(encode, finish)

    def wrong_on(self, shard: Shard) -> str | None:
        """See the module's text."""
        written = self._answered.written
        if not written:
            return None
        found = points_of(shard, "load", series_name("load", {"client": str(self.number)}))
        wrong = {time: value for time, value in written.items() if found.get(time) != value}
        return f"{len(wrong)} points are missing or others: {sorted(wrong)[:5]}" if wrong else None


def points_of(shard: Shard, measurement: str, name: bytes) -> dict[int, float]:
    """Return the points of a series' field v, by time."""
    queries = Queries(shard.projections.series, lambda index: shard.log.read(index).plain_payload())
    rows = queries.query(NAMESPACE, Query(measurement, "v"))
    if isinstance(rows, Refused):
        return {}
    for row in rows:
        if row.name == name:
            return dict(zip(row.times.tolist(), row.values.tolist(), strict=True))
    return {}
