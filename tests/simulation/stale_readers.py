"""Clients that read from any replica, and the true times that their bounds are held against.

``Visible`` notes when each proposal was first applied anywhere, by the time of the simulation,
which no replica knows. A stale read with a bound that is answered must be of a state that has
everything that was visible before the bound; a replica's clock runs at a rate of its own, and so
do its seconds.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from random import Random

from onelog.cluster.errors import ClusterError, Expired, ReplicaStopped, StaleBoundExceeded
from onelog.node.replica.shard import Shard
from onelog.node.replica.stale_reads import Level
from tests.simulation.replica import Replica
from tests.simulation.schedule import Schedule

BOUNDS_S = [None, 0.05, 0.15, 0.4, 1.0, 3.0]
TOLERANCE_S = 1e-6


class Visible:
    """What could have been read since when."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._times_s: list[float] = []
        self._numbers: list[int] = []
        self.index = 0

    def note(self, number: int, index: int) -> None:
        """A proposal, whose last entry has this index, is applied for the first time."""
        self._times_s.append(self._schedule.now_s)
        self._numbers.append(number)
        self.index = index

    def at(self, time_s: float) -> int:
        """Return the last proposal that was visible somewhere at a time."""
        at = bisect_right(self._times_s, time_s)
        return self._numbers[at - 1] if at else 0


class StaleReader:
    """See the module's text."""

    def __init__(
        self,
        replicas: list[Replica],
        schedule: Schedule,
        rng: Random,
        visible: Visible,
        fail: Callable[[str], None],
    ) -> None:
        self.asked: Counter[tuple[str, float | None]] = Counter()
        self.answered: Counter[tuple[str, float | None]] = Counter()
        self._replicas = replicas
        self._schedule = schedule
        self._rng = rng
        self._visible = visible
        self._fail = fail

    def start(self) -> None:
        """Read now and then, for as long as the run lasts."""
        self._schedule.after(self._rng.uniform(0.0, 0.06), self._read)

    def _read(self) -> None:
        rng = self._rng
        replica, bound_s = rng.choice(self._replicas), rng.choice(BOUNDS_S)
        min_index = self._visible.index if rng.random() < 0.2 else 0
        asked_by_s = replica.clock.now_s()
        deadline_s = asked_by_s + 0.5

        def act(shard: Shard) -> None:
            def answer(error: ClusterError | None) -> None:
                self._answered(replica, shard, bound_s, min_index, error)

            self.asked[replica.name, bound_s] += 1
            shard.read(
                answer,
                level=Level.STALE,
                max_staleness_s=bound_s,
                min_index=min_index,
                deadline_s=deadline_s,
            )

        replica.run(act)
        self.start()

    def _answered(
        self,
        replica: Replica,
        shard: Shard,
        bound_s: float | None,
        min_index: int,
        error: ClusterError | None,
    ) -> None:
        if error is not None:
            assert isinstance(error, StaleBoundExceeded | Expired | ReplicaStopped), error
            return
        self.answered[replica.name, bound_s] += 1
        if shard.router.applied_index < min_index:
            self._fail(f"{replica.name} answers before index {min_index} is applied")
        if bound_s is None:
            return
        then_s = self._schedule.now_s - bound_s / replica.clock.rate - TOLERANCE_S
        expected = self._visible.at(then_s)
        if shard.member.applied < expected:
            what = f"state {shard.member.applied} is older than {bound_s} s: {expected} was visible"
            self._fail(f"{replica.name} answers a stale read: {what}")
