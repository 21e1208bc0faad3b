"""Clients that write, count and read a few keys, in sessions, and never give up on an operation.

A client has one operation under way at a time. It asks any replica, is sent away, loses answers,
and retries with the same session and sequence: every operation takes effect once, or the history
that it records will not be linearizable. Values are unique, so that a read names its write.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cluster.errors import ClusterError, NotLeader
from node.requests import Outcome
from projections import kv_commands, system_commands
from projections.payload import SessionRef
from projections.result import Applied, Duplicate, Refused, Result
from tests.simulation.linearizability import Operation
from tests.simulation.replica import Replica
from tests.simulation.schedule import Schedule
from ual.entry import Draft

NAMESPACE = "default"
KEYS = [b"a", b"b", b"c"]
COUNTERS = [b"n", b"m"]
SESSION_TTL_NS = 86_400 * 10**9  # longer than the jumps of wall clocks together
RETRY_S = 0.05


@dataclass
class History:
    """What the clients saw, by key."""

    by_key: dict[bytes, list[Operation]] = field(default_factory=dict)

    def begin(self, key: bytes, operation: Operation) -> Operation:
        """Record that an operation has begun."""
        self.by_key.setdefault(key, []).append(operation)
        return operation


class Client:
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
        self.number = number
        # Some do little but read, and so stay where they are while others learn of a new leader.
        self._reads = 0.95 if number % 3 == 2 else 0.4
        self._deadline_s = deadline_s
        self.done = 0
        self.stopped = False
        self._replicas = replicas
        self._schedule = schedule
        self._rng = rng
        self._history = history
        self._uses_sessions = uses_sessions
        self._session: int | None = None
        self._sequence = 0
        self._target = rng.randrange(len(replicas))
        self._attempt = 0
        self.lost_answers = 0.05

    def start(self) -> None:
        """Open a session, then begin."""
        opening = system_commands.encode_command(system_commands.SessionOpen(SESSION_TTL_NS))
        self._submit(lambda: opening, self._opened)

    def _opened(self, result: Result) -> None:
        assert isinstance(result, Applied), result
        self._session = result.number
        self._next()

    def _next(self) -> None:
        if self.stopped:
            return
        self._schedule.after(self._rng.uniform(0.0, 0.05), self._operate)

    def _operate(self) -> None:
        rng, now_s = self._rng, self._schedule.now_s
        self._sequence += 1
        self.done += 1
        choice = rng.random()
        if choice < self._reads:
            self._read(rng.choice(KEYS + COUNTERS))
        elif rng.random() < 0.5:
            key = rng.choice(KEYS)
            value = b"%d-%d" % (self.number, self._sequence)
            operation = self._history.begin(key, Operation(self.number, value, now_s))
            self._write(kv_commands.Put(key, value), operation, lambda _: "ok")
        else:
            key = rng.choice(COUNTERS)
            operation = self._history.begin(key, Operation(self.number, 1, now_s))
            self._write(kv_commands.Increment(key, 1), operation, lambda result: result.number)

    def _write(
        self,
        command: kv_commands.Command,
        operation: Operation,
        answer: Callable[[Applied], Any],
    ) -> None:
        assert self._session is not None
        sent = SessionRef(self._session, self._sequence, self._sequence)
        session = sent if self._uses_sessions else None
        draft = kv_commands.encode_command(command, NAMESPACE, session)

        def finish(result: Result) -> None:
            if isinstance(result, Duplicate):
                result = result.first
            assert isinstance(result, Applied), result
            operation.ended_s = self._schedule.now_s
            operation.result = answer(result)
            self._next()

        self._submit(lambda: draft, finish)

    def _submit(self, draft: Callable[[], Draft], finish: Callable[[Result], None]) -> None:
        """Propose until there is an answer; each attempt answers once, or is overtaken."""
        self._attempt += 1
        attempt = self._attempt
        replica = self._replicas[self._target]

        def answered(outcome: Outcome) -> None:
            if self._rng.random() < self.lost_answers:
                return
            delay_s = self._rng.uniform(0.0002, 0.003)
            self._schedule.after(delay_s, lambda: arrived(outcome))

        def arrived(outcome: Outcome) -> None:
            if attempt != self._attempt:
                return
            if isinstance(outcome, ClusterError):
                self._look_elsewhere(outcome)
                self._attempt += 1  # the timeout below must not retry a second time
                self._schedule.after(RETRY_S, lambda: self._submit(draft, finish))
                return
            self._attempt += 1
            assert isinstance(outcome, list), outcome
            finish(outcome[0])

        def timed_out() -> None:
            if attempt == self._attempt:
                self._look_elsewhere(None)
                self._submit(draft, finish)

        deadline_s = replica.clock.now_s() + self._deadline_s
        self._schedule.after(
            self._rng.uniform(0.0002, 0.003),
            lambda: replica.run(lambda shard: shard.propose([draft()], deadline_s, answered)),
        )
        self._schedule.after(self._deadline_s * 1.2, timed_out)

    def _look_elsewhere(self, error: ClusterError | None) -> None:
        """Go where the last replica pointed to, or anywhere: its word may be old."""
        leader = error.leader if isinstance(error, NotLeader) else None
        if leader is not None and self._rng.random() < 0.7:
            self._target = leader.int - 1
        else:
            self._target = self._rng.randrange(len(self._replicas))

    def _read(self, key: bytes) -> None:
        operation = self._history.begin(key, Operation(self.number, None, self._schedule.now_s))
        self._ask(key, operation)

    def _ask(self, key: bytes, operation: Operation) -> None:
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
                self._schedule.after(RETRY_S, lambda: self._ask(key, operation))

        self._schedule.after(
            self._rng.uniform(0.0002, 0.003),
            lambda: replica.run(lambda shard: shard.read(may_look)),
        )
        self._schedule.after(self._deadline_s, again)
