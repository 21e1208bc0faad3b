"""Clients that write, count and read a few keys, and never give up on an operation.

Every operation takes effect once, or the history that they record will not be linearizable. Values
are unique, so that a read names its write. Half of the reads are answered by the leader's lease if
it has one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from onelog.cluster.errors import ClusterError
from onelog.node.replica.stale_reads import Level
from onelog.projections.kv import commands
from onelog.projections.result import Applied, Refused
from tests.simulation.caller import NAMESPACE, RETRY_S, Caller
from tests.simulation.linearizability import Operation
from tests.simulation.replica import Replica
from tests.simulation.schedule import Schedule

KEYS = [b"a", b"b", b"c"]
COUNTERS = [b"n", b"m"]


@dataclass
class History:
    """What the clients saw, by key."""

    by_key: dict[bytes, list[Operation]] = field(default_factory=dict)

    def begin(self, key: bytes, operation: Operation) -> Operation:
        """Record that an operation has begun."""
        self.by_key.setdefault(key, []).append(operation)
        return operation


class Client(Caller):
    """See the module's text."""

    def __init__(
        self,
        number: int,
        replicas: list[Replica],
        schedule: Schedule,
        rng: Random,
        history: History,
        *,
        deadline_s: float,
        uses_sessions: bool,
    ) -> None:
        super().__init__(
            number, replicas, schedule, rng, deadline_s=deadline_s, uses_sessions=uses_sessions
        )
        # Some do little but read, and so stay where they are while others learn of a new leader.
        self._reads = 0.95 if number % 3 == 2 else 0.4
        self._history = history

    def _operate(self) -> None:
        rng, now_s = self._rng, self._schedule.now_s
        choice = rng.random()
        if choice < self._reads:
            self._read(rng.choice(KEYS + COUNTERS))
        elif rng.random() < 0.5:
            keys = rng.sample(KEYS, rng.choice([1, 1, 2, 3]))
            value = b"%d-%d" % (self.number, self._sequence)
            operations = [
                self._history.begin(key, Operation(self.number, value, now_s)) for key in keys
            ]
            command: commands.Command = commands.Put(keys[0], value)
            if len(keys) > 1:
                bodies = commands.put_bodies(keys, [value] * len(keys), None)
                command = commands.PutMany(bodies)
            self._change(command, operations, lambda _: "ok")
        else:
            key = rng.choice(COUNTERS)
            operation = self._history.begin(key, Operation(self.number, 1, now_s))
            increment = commands.Increment(key, 1)
            self._change(increment, [operation], lambda result: result.number)

    def _change(
        self,
        command: commands.Command,
        operations: list[Operation],
        answer: Callable[[Applied], Any],
    ) -> None:
        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            for operation in operations:
                operation.ended_s = self._schedule.now_s
                operation.result = answer(result)
            self._next()

        self._write(lambda session: commands.encode_command(command, NAMESPACE, session), finish)

    def _read(self, key: bytes) -> None:
        operation = self._history.begin(key, Operation(self.number, None, self._schedule.now_s))
        self._ask(key, operation, self._rng.choice([Level.LEASE, Level.LINEARIZABLE]))

    def _ask(self, key: bytes, operation: Operation, level: Level) -> None:
        self._attempt += 1
        attempt = self._attempt
        replica = self._replicas[self._target]

        def may_look(error: ClusterError | None) -> None:
            if attempt != self._attempt:
                return
            shard = replica.shard
            if error is not None or shard is None:
                again(error)
                return
            found = shard.projections.kv.get(NAMESPACE, key)
            assert not isinstance(found, Refused), found
            self._attempt += 1
            operation.ended_s = self._schedule.now_s
            operation.result = None if found is None else found.value
            self._next()

        def again(error: ClusterError | None = None) -> None:
            if attempt == self._attempt:
                self._attempt += 1
                self._look_elsewhere(error)
                self._schedule.after(RETRY_S, lambda: self._ask(key, operation, level))

        self._schedule.after(
            self._rng.uniform(0.0002, 0.003),
            lambda: replica.run(lambda shard: shard.read(may_look, level=level)),
        )
        self._schedule.after(self._deadline_s, again)
