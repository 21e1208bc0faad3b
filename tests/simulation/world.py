"""A whole cluster in one thread: replicas, network, disks, clocks, clients, faults and the judge.

Everything follows from the seed. ``run`` raises ``Violation`` with the seed and the last events if
anything that Raft and this database promise does not hold:

* at most one leader per term; terms never go back;
* what was applied at a number is the same everywhere and for ever, through any crash;
* the clients' histories are linearizable: every answered operation took effect once, and no
  read was stale;
* equal indexes have equal state hashes; after the faults stop there is a leader, everybody
  catches up, and the clients make progress within a bound.
"""

from collections import deque
from random import Random
from typing import Any
from uuid import UUID

from cluster.config import ALL_ON, Protections, RaftConfig
from cluster.member import LEADER
from cluster.messages import Message
from tests.simulation.clients import COUNTERS, Client, History
from tests.simulation.disk import CrashPolicy
from tests.simulation.linearizability import is_linearizable
from tests.simulation.network import Network
from tests.simulation.replica import Replica
from tests.simulation.schedule import Schedule

HEAL_S = 15.0  # after the faults stop, everything must be well again within this
EVENTS_KEPT = 60


class Violation(AssertionError):
    """A promise was broken; the message names the seed that breaks it again."""


class World:
    """One run of the simulator."""

    def __init__(
        self,
        seed: int,
        *,
        members: int = 3,
        clients: int = 3,
        faults_s: float = 60.0,
        protections: Protections = ALL_ON,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.schedule = Schedule()
        self.events: deque[str] = deque(maxlen=EVENTS_KEPT)
        self.history = History()
        self._faults_s = faults_s
        self._leaders: dict[int, UUID] = {}
        self._terms: dict[UUID, int] = {}
        self._applied: dict[int, bytes] = {}
        self._hashes: dict[int, int] = {}
        self.elections = 0
        ids = [UUID(int=number + 1) for number in range(members)]
        self.network = Network(self.schedule, Random(self.rng.getrandbits(64)), self._deliver)
        self.replicas = [
            Replica(
                node_id,
                [peer for peer in ids if peer != node_id],
                self.schedule,
                self.network,
                Random(self.rng.getrandbits(64)),
                protections,
                RaftConfig(),
            )
            for node_id in ids
        ]
        self._by_id = {replica.node_id: replica for replica in self.replicas}
        self.clients = [
            Client(
                number, self.replicas, self.schedule, Random(self.rng.getrandbits(64)), self.history
            )
            for number in range(clients)
        ]

    def run(self) -> None:
        """Run the whole course: faults, then healing, then judgement."""
        try:
            self._run()
        except Violation:
            raise
        except Exception as error:
            raise Violation(self._report(f"{type(error).__name__}: {error}")) from error

    def _run(self) -> None:
        for replica in self.replicas:
            replica.start()
            self._watch(replica)
        for client in self.clients:
            client.start()
        self.schedule.after(0.0, self._observe)
        self.schedule.after(1.0, self._misfortune)
        self.schedule.run_until(self._faults_s)
        self._heal()
        done_before = [client.done for client in self.clients]
        self.schedule.run_until(self._faults_s + HEAL_S)
        for client, before in zip(self.clients, done_before, strict=True):
            if client.done - before < 3:
                raise Violation(self._report(f"client {client.number} makes no progress"))
            client.stopped = True
        self.schedule.run_until(self._faults_s + HEAL_S + 3.0)
        self._judge()

    # Faults

    def _misfortune(self) -> None:
        """Do something unpleasant, and come again."""
        if self.schedule.now_s >= self._faults_s:
            return
        rng = self.rng
        choice = rng.random()
        if choice < 0.35:
            self._crash(rng.choice(self.replicas))
        elif choice < 0.42:
            self._note("all crash")
            for replica in self.replicas:
                self._crash(replica)
        elif choice < 0.65:
            self._cut_off(rng.choice(self.replicas), both_ways=rng.random() < 0.6)
        elif choice < 0.72:
            self.network.cut.clear()
        elif choice < 0.82:
            self.network.loss = rng.choice([0.0, 0.01, 0.1])
            self.network.repeat = rng.choice([0.0, 0.02, 0.2])
            self.network.slow = rng.choice([0.0, 0.01, 0.1])
        elif choice < 0.9:
            replica = rng.choice(self.replicas)
            replica.slow_sync = rng.choice([0.0, 0.05, 0.5])
        else:
            rng.choice(self.replicas).clock.wall_offset_s += rng.choice([-900.0, -2.0, 2.0, 900.0])
        self.schedule.after(rng.expovariate(1.0), self._misfortune)

    def _crash(self, replica: Replica) -> None:
        policy = self.rng.choice([CrashPolicy.RANDOM, CrashPolicy.LOST, CrashPolicy.KEPT])
        self._note(f"crash {replica.node_id.int} {policy.value}")
        was_up = replica.shard is not None
        replica.crash(policy)
        if was_up:
            self.schedule.after(self.rng.uniform(0.0, 2.0), lambda: self._restart(replica))

    def _restart(self, replica: Replica) -> None:
        if replica.shard is None:
            self._note(f"start {replica.node_id.int}")
            replica.start()
            self._watch(replica)

    def _cut_off(self, replica: Replica, *, both_ways: bool) -> None:
        self._note(f"cut off {replica.node_id.int} {'' if both_ways else 'one way'}")
        for other in self.replicas:
            if other is not replica:
                self.network.cut.add((replica.node_id, other.node_id))
                if both_ways:
                    self.network.cut.add((other.node_id, replica.node_id))
        self.schedule.after(self.rng.uniform(0.2, 4.0), self.network.cut.clear)

    def _heal(self) -> None:
        self._note("heal")
        self.network.cut.clear()
        self.network.loss = self.network.repeat = self.network.slow = 0.0
        for replica in self.replicas:
            replica.slow_sync = 0.0
            replica.disk.heal()
            self._restart(replica)
        for client in self.clients:
            client.lost_answers = 0.0

    # Observation

    def _deliver(self, source: UUID, target: UUID, message: Message) -> None:
        self._by_id[target].deliver(source, message)

    def _watch(self, replica: Replica) -> None:
        """Look at every group that the replica applies."""
        shard = replica.shard
        assert shard is not None
        apply = shard.apply

        def watched(number: int, data: bytes) -> None:
            known = self._applied.setdefault(number, data)
            if known != data:
                raise Violation(self._report(f"proposal {number} differs on {replica.node_id.int}"))
            apply(number, data)
            state_hash = shard.router.state_hash()
            if self._hashes.setdefault(shard.router.applied_index, state_hash) != state_hash:
                raise Violation(self._report(f"state differs at {shard.router.applied_index}"))

        shard.apply = watched  # type: ignore[method-assign]

    def _observe(self) -> None:
        """Look at terms and leaders, often."""
        for replica in self.replicas:
            if replica.shard is None:
                continue
            member = replica.shard.member
            if member.term < self._terms.get(replica.node_id, 0):
                raise Violation(self._report(f"term of {replica.node_id.int} went back"))
            self._terms[replica.node_id] = member.term
            if member.state == LEADER:
                if member.term not in self._leaders:
                    self.elections += 1
                    self._note(f"{replica.node_id.int} leads term {member.term}")
                leader = self._leaders.setdefault(member.term, replica.node_id)
                if leader != replica.node_id:
                    raise Violation(self._report(f"two leaders in term {member.term}"))
        self.schedule.after(0.005, self._observe)

    def _note(self, event: str) -> None:
        self.events.append(f"{self.schedule.now_s:8.3f}  {event}")

    def _report(self, what: str) -> str:
        return f"seed {self.seed}: {what}\n" + "\n".join(self.events)

    # Judgement

    def _judge(self) -> None:
        applied = {replica.shard.member.applied for replica in self.replicas if replica.shard}
        if len(applied) != 1:
            raise Violation(self._report(f"replicas stand at {applied}"))
        for key, operations in self.history.by_key.items():
            model = counter if key in COUNTERS else register
            if not is_linearizable(operations, model, None):
                raise Violation(self._report(f"the history of {key!r} is not linearizable"))
        for replica in self.replicas:
            assert replica.shard is not None
            replica.shard.log.check()
            replica.shard.router.check()


def register(state: Any, argument: Any) -> tuple[Any, Any]:
    """A key: an argument is written, None reads."""
    return (state, state) if argument is None else (argument, "ok")


def counter(state: Any, argument: Any) -> tuple[Any, Any]:
    """A counter: an argument is added and the sum returned; None reads what the key holds."""
    if argument is None:
        return state, None if state is None else b"%d" % state
    total = (state or 0) + argument
    return total, total
