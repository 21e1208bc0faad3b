"""Clients of queues, streams and series, and what must be true of these in the end.

* Queue: every message whose enqueue was answered is in the queue or among the dead letters, or was
  acknowledged, once; what was acknowledged is gone. (The law of each queue is part of ``check``.)
* Stream: every record that was answered is there, once, and those of one client are in order.
* Series: every point that was answered is there, with its value.

Bodies, records and blocks are read from the log of each member: they must have survived trimming,
shipping and repair.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from node.shard import Shard
from projections import queue_commands, stream_commands, ts_commands
from projections.queue_config import QueueConfig
from projections.queue_message import Enqueue, decode_message
from projections.queue_reads import Peeked
from projections.queue_results import decode_leased, decode_verdicts
from projections.reasons import Reason
from projections.result import Applied, Refused
from projections.stream_commands import Retention
from projections.stream_pages import Page, Record
from projections.stream_record import Append
from projections.ts_names import series_name
from projections.ts_query import Query, QueryEngine
from tests.simulation.caller import NAMESPACE, Caller
from tests.simulation.replica import Replica
from tests.simulation.schedule import Schedule
from ual.errors import UalError

SECOND_NS = 10**9
PARTITIONS = 2
RECORDS_KEPT = 30


Finish = Callable[[Applied | Refused], None]


@dataclass
class Answered:
    """What clients were told, together; bodies, records and times are unique."""

    enqueued: set[bytes] = field(default_factory=set)
    acking: Counter[bytes] = field(default_factory=Counter)  # sent, perhaps not answered
    acked: Counter[bytes] = field(default_factory=Counter)
    appended: set[bytes] = field(default_factory=set)
    written: dict[int, float] = field(default_factory=dict)


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
        self.think_s = 0.3
        self._answered = answered
        self._lets_go = lets_go

    def wrong_on(self, shard: Shard) -> str | None:
        """Say what is not as it should be, if anything."""
        raise NotImplementedError


class QueueClient(ModelClient):
    """Enqueues, leases, and settles most of what it leased."""

    _dead = _jobs = 0

    def _operate(self) -> None:
        chance = self._rng.random()
        if not self._jobs:
            self._create()
        elif chance < 0.5:
            self._enqueue()
        else:
            self._lease()

    def _create(self) -> None:
        if not self._dead:
            name, config = "dead", QueueConfig()
        else:
            name = "jobs"
            deliveries = 0 if self._lets_go else 3
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

        priority = self._rng.choice((0, 8, 8))
        self._send(Enqueue(self._jobs, body, priority=priority, delay_ns=delay_ns), finish)

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


class StreamClient(ModelClient):
    """Appends numbered records."""

    _exists = False

    def _operate(self) -> None:
        value = b"%d-%d" % (self.number, self._sequence)

        def finish(result: Applied | Refused) -> None:
            if not self._exists:
                assert isinstance(result, Applied) or result.reason is Reason.STREAM_EXISTS, result
                self._exists = True
            else:
                assert isinstance(result, Applied), result
                self._answered.appended.add(value)
            self._next()

        retention = Retention(count_max=RECORDS_KEPT if self._lets_go else 0)
        command: stream_commands.Command = stream_commands.Create("events", PARTITIONS, retention)
        if self._exists:
            command = Append("events", value, key=b"%d" % self.number)
        self._write(
            lambda session: stream_commands.encode_command(command, NAMESPACE, session), finish
        )

    def wrong_on(self, shard: Shard) -> str | None:
        """See the module's text."""
        if not self._exists:
            return None
        found: list[bytes] = []
        for partition in range(PARTITIONS):
            offset: int | None = None
            while True:
                page = shard.projections.stream.read(
                    shard.log, NAMESPACE, "events", partition, offset
                )
                assert isinstance(page, Page), page
                for item in page.items:
                    if not isinstance(item, Record):
                        return f"stream: {item}"
                    if item.value.startswith(b"%d-" % self.number):
                        found.append(item.value)
                if not page.items:
                    break
                offset = page.next_offset
        numbers = [int(value.split(b"-")[1]) for value in found]
        if numbers != sorted(set(numbers)):
            return f"records of client {self.number} are out of order: {numbers}"
        missing = self._answered.appended - set(found)
        if self._lets_go and len(found) >= RECORDS_KEPT:
            missing = {value for value in missing if int(value.split(b"-")[1]) > numbers[0]}
        return f"records {missing} are missing" if missing else None


class SeriesClient(ModelClient):
    """Writes one point at a time to a series of its own."""

    def _operate(self) -> None:
        time_ns, value = self._sequence * SECOND_NS, self._rng.random()
        name = series_name("load", {"client": str(self.number)})

        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            self._answered.written[time_ns] = value
            self._next()

        write = ts_commands.Write(name, time_ns, (("v", value),))
        self._write(lambda session: ts_commands.encode_command(write, NAMESPACE, session), finish)

    def wrong_on(self, shard: Shard) -> str | None:
        """See the module's text."""
        written = self._answered.written
        if not written:
            return None
        engine = QueryEngine(
            shard.projections.series, lambda index: shard.log.read(index).plain_payload()
        )
        rows = engine.query(NAMESPACE, Query("load", "v"))
        assert not isinstance(rows, Refused), rows
        name = series_name("load", {"client": str(self.number)})
        for row in rows:
            if row.name == name:
                found = dict(zip(row.times.tolist(), row.values.tolist(), strict=True))
                wrong = {time: value for time, value in written.items() if found.get(time) != value}
                return f"points {wrong} are missing or others" if wrong else None
        return f"no series of client {self.number}"
