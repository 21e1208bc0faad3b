"""Clients that write with durability ASYNC and go on as soon as a majority has received it.

Each write has a key of its own and is tried once: if it was answered with ``Received``, every
member must hold it in the end, unless power failed. What was not answered may be there or not.
"""

from random import Random

from onelog.cluster.errors import ClusterError, NotLeader
from onelog.node.replica.requests import Durability, Outcome, Received
from onelog.projections.kv import commands
from onelog.projections.result import Refused
from tests.simulation.replica import Replica
from tests.simulation.schedule import Schedule

NAMESPACE = "default"
PATIENCE_S = 0.3


class AsyncWriter:
    """See the module's text."""

    def __init__(
        self, number: int, replicas: list[Replica], schedule: Schedule, rng: Random
    ) -> None:
        self.stopped = False
        self.received: dict[bytes, int] = {}  # key, index
        self._number = number
        self._replicas = replicas
        self._schedule = schedule
        self._rng = rng
        self._count = 0
        self._target = rng.randrange(len(replicas))

    def start(self) -> None:
        """Begin to write."""
        self._schedule.after(self._rng.uniform(0.0, 0.1), self._write)

    def lost_on(self, replica: Replica) -> list[bytes]:
        """Return what was answered and is not in a replica's state."""
        assert replica.shard is not None
        kv = replica.shard.projections.kv
        lost = []
        for key, index in self.received.items():
            found = kv.get(NAMESPACE, key)
            assert not isinstance(found, Refused), found
            if found is None or found.version != index:
                lost.append(key)
        return lost

    def _write(self) -> None:
        if self.stopped:
            return
        self._count += 1
        count, key = self._count, b"async-%d-%d" % (self._number, self._count)
        draft = commands.encode_command(commands.Put(key, b"x"), NAMESPACE)
        replica = self._replicas[self._target]

        def answered(outcome: Outcome) -> None:
            if isinstance(outcome, Received):
                assert outcome.first_index == outcome.last_index
                self.received[key] = outcome.first_index
            else:
                assert isinstance(outcome, ClusterError), outcome
                leader = outcome.leader if isinstance(outcome, NotLeader) else None
                at = self._rng.randrange(len(self._replicas))
                self._target = at if leader is None else leader.int - 1
            if count == self._count:
                self._schedule.after(self._rng.uniform(0.0, 0.1), self._write)

        def gave_up() -> None:
            if count == self._count and key not in self.received:
                self._target = self._rng.randrange(len(self._replicas))
                self._write()

        deadline_s = replica.clock.now_s() + PATIENCE_S
        replica.run(
            lambda shard: shard.propose([draft], deadline_s, answered, durability=Durability.ASYNC)
        )
        self._schedule.after(2 * PATIENCE_S, gave_up)
