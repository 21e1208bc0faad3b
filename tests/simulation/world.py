"""A whole cluster in one thread: replicas, network, disks, clocks, clients, faults and the judge.

Everything follows from the seed. ``run`` raises ``Violation`` with the seed and the last events if
anything that Raft and this database promise does not hold (tests/simulation/judge.py), or if the
cluster does not recover within a bound once the faults have stopped: then there is a leader, every
member catches up, and every client gets its answers.
"""

import logging
from collections import deque
from random import Random
from typing import NoReturn
from uuid import UUID

from onelog.cluster.config import ALL_ON, Protections
from onelog.cluster.raft.member import LEADER
from onelog.cluster.raft.membership import Membership
from onelog.cluster.raft.messages import Message
from tests.simulation.async_writer import AsyncWriter
from tests.simulation.clients import Client, History
from tests.simulation.deadline_client import DeadlineClient
from tests.simulation.due import DueJudge
from tests.simulation.faults import Faults
from tests.simulation.hold_client import HoldClient
from tests.simulation.judge import Judge
from tests.simulation.model_clients import (
    Answered,
    ModelClient,
    QueueClient,
    ReleaseClient,
    SeriesClient,
)
from tests.simulation.network import Network
from tests.simulation.profile import Profile, profile_of
from tests.simulation.replica import Replica
from tests.simulation.schedule import Schedule
from tests.simulation.stale_readers import StaleReader, Visible
from tests.simulation.stream_clients import ConsumerClient, ProducerClient, ReaderClient
from tests.simulation.transact_client import TransactClient

# What a replica has to say about its disk is in the report, if it matters.
logging.getLogger("onelog").addHandler(logging.NullHandler())

QUIET_S = 3.0  # in the end, without new requests, everybody comes to stand at the same place
SETTLE_S = 1.0  # what a leader proposes by itself at the very end reaches everybody within this
OBSERVE_S = 0.02
EVENTS_KEPT = 60


class Violation(AssertionError):
    """A promise was broken; the message names the seed that breaks it again."""


class World:
    """One run of the simulator."""

    def __init__(
        self, seed: int, profile: Profile | None = None, protections: Protections = ALL_ON
    ) -> None:
        self.seed = seed
        self.profile = profile = profile or profile_of(seed)
        self.rng = Random(seed)
        self.schedule = Schedule()
        self.events: deque[str] = deque(maxlen=EVENTS_KEPT)
        self.history = History()
        self.judge = Judge(self.fail, self.note)
        self.replicas: list[Replica] = []
        self._protections = protections
        self._founders = Membership.of(UUID(int=each + 1) for each in range(profile.members))
        self.network = Network(
            self.schedule,
            Random(self.rng.getrandbits(64)),
            self._deliver,
            self.judge.sent,
            profile.late_s_max,
        )
        for number in range(profile.members):
            self._add_replica(is_liar=number < profile.liars)
        self.faults = Faults(
            profile, self.schedule, self.network, self.rng, self.replicas, self._add_replica,
            self.note,
        )  # fmt: skip
        self.clients = [
            Client(
                number,
                self.replicas,
                self.schedule,
                Random(self.rng.getrandbits(64)),
                self.history,
                deadline_s=profile.deadline_s,
                uses_sessions=profile.sessions,
            )
            for number in range(profile.clients)
        ]
        self.model_clients = self._make_model_clients()
        if profile.models:  # as many requests as without them, about
            for client in self.clients:
                client.think_s *= 2.5
        self.due = DueJudge(
            self.replicas, self.schedule, self.network, self.judge.stamps, self.fail
        )
        self.deadline_clients = [
            DeadlineClient(
                len(self.clients) + len(self.model_clients) + at,
                self.replicas,
                self.schedule,
                Random(self.rng.getrandbits(64)),
                self.due,
                deadline_s=profile.deadline_s,
            )
            for at in range(profile.deadlines)
        ]
        self.writers = [
            AsyncWriter(number, self.replicas, self.schedule, Random(self.rng.getrandbits(64)))
            for number in range(profile.async_writers)
        ]
        self.visible = Visible(self.schedule)
        self.judge.on_first_applied = self.visible.note
        self.stale_readers = [
            StaleReader(
                self.replicas, self.schedule, Random(self.rng.getrandbits(64)), self.visible,
                self.fail,
            )
            for _ in range(profile.stale_readers)
        ]  # fmt: skip

    def run(self) -> None:
        """Run the whole course: faults, then healing, then judgement."""
        try:
            self._run()
        except Violation:
            raise
        except Exception as error:
            raise Violation(self._report(f"{type(error).__name__}: {error}")) from error

    def fail(self, what: str) -> NoReturn:
        """End the run: a promise was broken."""
        raise Violation(self._report(what))

    def note(self, event: str) -> None:
        """Remember what happened, for the report."""
        self.events.append(f"{self.schedule.now_s:8.3f}  {event}")

    def _run(self) -> None:
        end_s = self.profile.faults_s
        for replica in self.replicas:
            replica.start()
        everybody = (*self.clients, *self.model_clients, *self.deadline_clients)
        for client in everybody:
            client.start()
        for writer in self.writers:
            writer.start()
        for reader in self.stale_readers:
            reader.start()
        self.schedule.after(0.0, self._observe)
        self.schedule.after(0.0, self.due.look)
        self.faults.begin()
        self.schedule.run_until(end_s)
        self.faults.end()
        for client in everybody:
            client.lost_answers = 0.0
        done_before = [client.done for client in everybody]
        self.schedule.run_until(end_s + self.profile.heal_s)
        for client, before in zip(everybody, done_before, strict=True):
            if client.done - before < 3:
                self.fail(f"client {client.number} makes no progress")
            client.stopped = True
        for writer in self.writers:
            writer.stopped = True
        self.schedule.run_until(end_s + self.profile.heal_s + QUIET_S)
        settled_by_s = self.schedule.now_s + SETTLE_S
        while self.schedule.now_s < settled_by_s and not self._stand_alike():
            self.schedule.run_until(self.schedule.now_s + OBSERVE_S)
        if self.profile.stable_leader and self.judge.elections > 1:
            self.fail(f"a healthy leader was deposed: {self.judge.leaders}")
        self.judge.finish(self._members(), self.history, self.schedule.now_s)
        self._judge_models()
        self.due.finish(self._members(), end_s + self.profile.heal_s / 2)
        for writer in self.writers:
            for replica in self._members():
                if lost := writer.lost_on(replica):
                    self.fail(f"{replica.name} lost {lost}, which a majority had received")

    def _make_model_clients(self) -> list[ModelClient]:
        answered = Answered()
        kinds: tuple[type[ModelClient], ...] = (
            QueueClient, QueueClient, ReleaseClient, ProducerClient, ProducerClient,
            ConsumerClient, ReaderClient, SeriesClient, TransactClient,
        ) if self.profile.models else ()  # fmt: skip
        if self.profile.holds:
            kinds += (HoldClient, HoldClient)
        return [
            kind(
                len(self.clients) + at,
                self.replicas,
                self.schedule,
                Random(self.rng.getrandbits(64)),
                answered,
                deadline_s=self.profile.deadline_s,
                lets_go=self.profile.lets_go,
            )
            for at, kind in enumerate(kinds)
        ]

    def _judge_models(self) -> None:
        for replica in self._members():
            shard = replica.shard
            assert shard is not None
            if shard.shipping.repair.damages:
                continue  # nobody has what rotted there, which it says
            for client in self.model_clients:
                if wrong := client.wrong_on(shard):
                    self.fail(f"on {replica.name}: {wrong}")

    def _stand_alike(self) -> bool:
        """Tell whether every member has applied the same; somebody may be about to hear of it."""
        shards = [replica.shard for replica in self._members()]
        return len({shard and shard.member.applied for shard in shards}) == 1

    def _members(self) -> list[Replica]:
        """The replicas that the present leader takes for members, but for those beyond repair.

        One that cannot start waits for a range that the others have trimmed while it was cut off.
        docs/operations.md says what to do: remove it, and add a node with an empty directory.
        """
        leaders = [
            replica.shard.member
            for replica in self.replicas
            if replica.shard is not None and replica.shard.member.state == LEADER
        ]
        if not leaders:
            self.fail("nobody leads in the end")
        members = max(leaders, key=lambda each: each.term).membership.members
        found = [replica for replica in self.replicas if replica.node_id in members]
        first_indexes = [each.shard.log.first_index for each in found if each.shard is not None]
        return [each for each in found if not each.lacks_all_before(min(first_indexes))]

    def _add_replica(self, *, is_liar: bool = False) -> Replica:
        replica = Replica(
            UUID(int=len(self.replicas) + 1),
            self._founders,
            self.schedule,
            self.network,
            Random(self.rng.getrandbits(64)),
            self._protections,
            self.profile.raft,
            is_liar=is_liar,
            note=self.note,
        )
        replica.on_start = lambda shard: self.judge.started(replica, shard)
        replica.on_down = lambda: self.faults.went_down(replica)
        self.replicas.append(replica)
        return replica

    def _deliver(self, source: UUID, target: UUID, message: Message) -> None:
        self.replicas[target.int - 1].deliver(source, message)

    def _observe(self) -> None:
        for replica in self.replicas:
            self.judge.look(replica)
        self.judge.look_at_leases(self.replicas)
        self.schedule.after(OBSERVE_S, self._observe)

    def _report(self, what: str) -> str:
        return f"seed {self.seed}: {what}\n" + "\n".join(self.events)
