"""A client that begins what ends by itself, leaves it alone, and expects it to end in time.

Keys with lifetimes, some of them touched; leases with keys, some kept alive; messages with
lifetimes and delays; messages that are leased and not settled, some of them extended; and short
sessions, with a request in them. When each is over is for the judge (tests/simulation/due.py).
"""

from collections.abc import Callable
from random import Random

from onelog.node.replica.shard import Shard
from onelog.projections.codec import SessionRef
from onelog.projections.kv import commands as kv_commands
from onelog.projections.queue import commands as queue_commands
from onelog.projections.queue.message import Enqueue, QueueConfig, decode_leased, decode_verdicts
from onelog.projections.queue.table import DELAYED, LEASED
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Refused, Result
from onelog.projections.system import commands as system_commands
from tests.simulation.caller import NAMESPACE, Caller
from tests.simulation.due import DueJudge, to_ns
from tests.simulation.model_clients import find_message
from tests.simulation.replica import Replica
from tests.simulation.schedule import Schedule

LASTS_S = (0.2, 1.5)
SESSION_LASTS_S = (1.0, 1.5)  # no session is shorter

Finish = Callable[[Applied | Refused], None]


class DeadlineClient(Caller):
    """See the module's text."""

    def __init__(
        self,
        number: int,
        replicas: list[Replica],
        schedule: Schedule,
        rng: Random,
        due: DueJudge,
        *,
        deadline_s: float,
    ) -> None:
        super().__init__(number, replicas, schedule, rng, deadline_s=deadline_s)
        self.think_s = 0.8
        self._due = due
        self._brief = self._held = 0  # queues: one where messages end, one where leases do

    def _operate(self) -> None:
        if not self._brief or not self._held:
            self._create_queue()
            return
        kinds = (self._put, self._grant, self._enqueue, self._delay, self._lease, self._open)
        self._rng.choice(kinds)()

    def _lasts_s(self) -> float:
        return round(self._rng.uniform(*LASTS_S), 3)

    # Keys

    def _put(self) -> None:
        """Put a key with a lifetime; give some of them another one."""
        key, lasts_s = b"brief-%d-%d" % (self.number, self._sequence), self._lasts_s()

        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            if self._rng.random() < 0.3:
                self._touch(key)
            else:
                self._expect_gone(key, lasts_s, result)

        self._send_kv(kv_commands.Put(key, b"x", to_ns(lasts_s)), finish)

    def _touch(self, key: bytes) -> None:
        lasts_s = self._lasts_s()

        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied) or result.reason is Reason.KEY_NOT_FOUND, result
            self._expect_gone(key, lasts_s, result)

        self._sequence += 1
        self._send_kv(kv_commands.Touch(key, to_ns(lasts_s)), finish)

    def _grant(self) -> None:
        """Grant a lease, put a key under it, and keep some of them alive once."""
        lasts_s = self._lasts_s()

        def granted(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            self._put_under(result.number, lasts_s)

        self._send_kv(kv_commands.LeaseGrant(to_ns(lasts_s)), granted)

    def _put_under(self, lease: int, lasts_s: float) -> None:
        key = b"leased-%d-%d" % (self.number, self._sequence)

        def put(result: Applied | Refused) -> None:
            assert isinstance(result, Applied) or result.reason is Reason.LEASE_LOST, result
            if isinstance(result, Refused):
                self._next()
            elif self._rng.random() < 0.5:
                self._sequence += 1
                self._send_kv(kv_commands.LeaseKeepalive(lease), kept)
            else:
                self._answer_index = lease  # it counts from there
                self._expect_gone(key, lasts_s, result)

        def kept(result: Applied | Refused) -> None:
            assert isinstance(result, Applied) or result.reason is Reason.LEASE_LOST, result
            self._expect_gone(key, lasts_s, result)

        self._sequence += 1
        self._send_kv(kv_commands.Put(key, b"x", lease=lease), put)

    def _expect_gone(self, key: bytes, lasts_s: float, result: Result) -> None:
        """Expect a key to live as long as the entry says that was answered last, if it could."""

        def is_gone(shard: Shard) -> bool:
            return shard.projections.kv.get(NAMESPACE, key) is None

        index = self._answer_index if isinstance(result, Applied) else None
        self._due.expect(f"key {key!r}", lasts_s, is_gone, index)
        self._next()

    def _send_kv(self, command: kv_commands.Command, finish: Finish) -> None:
        self._write(lambda session: kv_commands.encode_command(command, NAMESPACE, session), finish)

    # Messages

    def _create_queue(self) -> None:
        name = f"held-{self.number}" if self._brief else f"brief-{self.number}"

        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            if self._brief:
                self._held = result.number
            else:
                self._brief = result.number
            self._next()

        self._send_queue(queue_commands.QueueCreate(name, QueueConfig()), finish)

    def _enqueue(self) -> None:
        """Enqueue a message that nobody will take."""
        queue, lasts_s = self._brief, self._lasts_s()

        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            message = self._answer_index

            def is_gone(shard: Shard) -> bool:
                row = find_message(shard, queue, message)
                return row is None

            self._due.expect(f"the life of message {message}", lasts_s, is_gone, message)
            self._next()

        self._send_queue(Enqueue(queue, b"x", ttl_ns=to_ns(lasts_s)), finish)

    def _delay(self) -> None:
        """Enqueue a message that can be leased later."""
        queue, lasts_s = self._held, self._lasts_s()

        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            message = self._answer_index

            def is_ready(shard: Shard) -> bool:
                row = find_message(shard, queue, message)
                return row is None or row.state != DELAYED

            self._due.expect(f"the delay of message {message}", lasts_s, is_ready, message)
            self._next()

        self._send_queue(Enqueue(queue, b"x", delay_ns=to_ns(lasts_s)), finish)

    def _lease(self) -> None:
        """Lease messages and forget them, or extend the lease first."""
        queue, lasts_s = self._held, self._lasts_s()

        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            leased = decode_leased(result)
            items = tuple((message.id, leased.token) for message in leased.messages)
            if items and self._rng.random() < 0.3:
                self._extend(items)
            else:
                self._expect_released(items, lasts_s, leased.token)

        count = self._rng.randint(1, 3)
        self._send_queue(queue_commands.Lease(queue, count, to_ns(lasts_s)), finish)

    def _extend(self, items: queue_commands.Items) -> None:
        lasts_s = self._lasts_s()

        def finish(result: Applied | Refused) -> None:
            is_refused = isinstance(result, Refused) or any(decode_verdicts(result, len(items)))
            # Some of those that are refused were over already.
            self._expect_released(items, lasts_s, None if is_refused else self._answer_index)

        self._sequence += 1
        self._send_queue(queue_commands.Extend(self._held, items, to_ns(lasts_s)), finish)

    def _expect_released(
        self, items: queue_commands.Items, lasts_s: float, index: int | None
    ) -> None:
        queue = self._held

        def are_released(shard: Shard) -> bool:
            for message, token in items:
                row = find_message(shard, queue, message)
                if row is not None and (row.state, row.token) == (LEASED, token):
                    return False
            return True

        if items:
            self._due.expect(f"the leases {items}", lasts_s, are_released, index)
        self._next()

    def _send_queue(self, command: queue_commands.Command, finish: Finish) -> None:
        self._write(
            lambda session: queue_commands.encode_command(command, NAMESPACE, session), finish
        )

    # Sessions

    def _open(self) -> None:
        """Open a session, put a key in it, and come back no more."""
        lasts_s = round(self._rng.uniform(*SESSION_LASTS_S), 3)

        def opened(result: Result) -> None:
            assert isinstance(result, Applied), result
            self._use(result.number, lasts_s)

        opening = system_commands.SessionOpen(to_ns(lasts_s))
        self._submit([system_commands.encode_command(opening)], opened)

    def _use(self, session: int, lasts_s: float) -> None:
        key = b"in-session-%d-%d" % (self.number, self._sequence)

        def finish(result: Result) -> None:
            def is_over(shard: Shard) -> bool:
                return shard.projections.system.sessions.get(session) is None

            index = self._answer_index if isinstance(result, Applied) else None
            self._due.expect(f"session {session}", lasts_s, is_over, index)
            self._expect_gone(key, lasts_s, result)

        put = kv_commands.Put(key, b"x", to_ns(lasts_s))
        draft = kv_commands.encode_command(put, NAMESPACE, SessionRef(session, 1, 1))
        self._submit([draft], finish)
