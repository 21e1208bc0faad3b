"""How a simulated client asks: any replica, in a session, again until there is an answer.

It is sent away, loses answers, and retries with the same session and sequence, so that every
operation takes effect once however often it was sent.
"""

from collections.abc import Callable
from random import Random

from onelog.cluster.errors import ClusterError, NotLeader
from onelog.node.replica.requests import Outcome, Results
from onelog.projections.codec import SessionRef
from onelog.projections.result import Applied, Duplicate, Refused, Result
from onelog.projections.system import commands
from onelog.ual.entry import Draft
from tests.simulation.replica import Replica
from tests.simulation.schedule import Schedule

NAMESPACE = "default"
SESSION_TTL_NS = 86_400 * 10**9  # longer than the jumps of wall clocks together
RETRY_S = 0.05

Encode = Callable[[SessionRef | None], Draft | list[Draft]]


class Caller:
    """One client with one operation under way at a time; ``_operate`` begins the next one."""

    def __init__(
        self,
        number: int,
        replicas: list[Replica],
        schedule: Schedule,
        rng: Random,
        *,
        deadline_s: float,
        uses_sessions: bool = True,
    ) -> None:
        self.number = number
        self.done = 0
        self.stopped = False
        self.lost_answers = 0.05
        self.think_s = 0.05  # at most, between two operations
        self._deadline_s = deadline_s
        self._replicas = replicas
        self._schedule = schedule
        self._rng = rng
        self._uses_sessions = uses_sessions
        self._session: int | None = None
        self._sequence = 0
        self._target = rng.randrange(len(replicas))
        self._attempt = 0
        self._answer_index = 0  # of the entry that the last answer is about

    def start(self) -> None:
        """Open a session, then begin."""
        opening = commands.encode_command(commands.SessionOpen(SESSION_TTL_NS))
        self._submit([opening], self._opened)

    def _opened(self, result: Result) -> None:
        assert isinstance(result, Applied), result
        self._session = result.number
        self._next()

    def _next(self) -> None:
        if not self.stopped:
            self._schedule.after(self._rng.uniform(0.0, self.think_s), self._begin)

    def _begin(self) -> None:
        self._sequence += 1
        self.done += 1
        self._operate()

    def _operate(self) -> None:
        raise NotImplementedError

    def _write(self, encode: Encode, finish: Callable[[Applied | Refused], None]) -> None:
        """Send a request of the session until it is answered."""
        assert self._session is not None
        session = SessionRef(self._session, self._sequence, self._sequence)

        def answered(result: Result) -> None:
            if isinstance(result, Duplicate):
                self._answer_index, result = result.index, result.first
            assert isinstance(result, Applied | Refused), result
            finish(result)

        drafts = encode(session if self._uses_sessions else None)
        self._submit(drafts if isinstance(drafts, list) else [drafts], answered)

    def _submit(self, drafts: list[Draft], finish: Callable[[Result], None]) -> None:
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
                self._schedule.after(RETRY_S, lambda: self._submit(drafts, finish))
                return
            self._attempt += 1
            assert isinstance(outcome, Results), outcome
            self._answer_index = outcome.first_index
            finish(outcome[0])

        def timed_out() -> None:
            if attempt == self._attempt:
                self._look_elsewhere(None)
                self._submit(drafts, finish)

        deadline_s = replica.clock.now_s() + self._deadline_s
        self._schedule.after(
            self._rng.uniform(0.0002, 0.003),
            lambda: replica.run(lambda shard: shard.propose(drafts, deadline_s, answered)),
        )
        self._schedule.after(self._deadline_s * 1.2, timed_out)

    def _look_elsewhere(self, error: ClusterError | None) -> None:
        """Go where the last replica pointed to, or anywhere: its word may be old."""
        leader = error.leader if isinstance(error, NotLeader) else None
        if leader is not None and self._rng.random() < 0.7:
            self._target = leader.int - 1
        else:
            self._target = self._rng.randrange(len(self._replicas))
