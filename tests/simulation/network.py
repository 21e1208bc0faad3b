"""A network that delays, loses, repeats, cuts and reorders, all from one random source.

A link is one stream: what is sent in one session arrives in order, or not at all from some message
on. A new session begins when a link breaks; what is still on its way from an older one arrives and
is dropped by the receiver. Now and then a message arrives twice, the second time late: no stream
does that, but nothing that is safe depends on it. So a late one may come from an older session,
and across a restart of either side.
"""

from collections.abc import Callable
from random import Random
from uuid import UUID

from onelog.cluster.raft.messages import Message
from tests.simulation.schedule import Schedule

ROUGH = 0.1  # with this share of messages lost or late, a replica may stay behind for long

Deliver = Callable[[UUID, UUID, Message], None]


class Network:
    """All links between the replicas. ``watch`` sees every message that is sent."""

    def __init__(
        self, schedule: Schedule, rng: Random, deliver: Deliver, watch: Deliver, late_s_max: float
    ) -> None:
        self._schedule = schedule
        self._rng = rng
        self._deliver = deliver
        self._watch = watch
        self._late_s_max = late_s_max
        self._sessions: dict[tuple[UUID, UUID], int] = {}
        self._arrived_s: dict[tuple[UUID, UUID], float] = {}
        self.cut: set[tuple[UUID, UUID]] = set()  # one-way
        self.loss = 0.0
        self.repeat = 0.0
        self.slow = 0.0
        self.sent = 0

    @property
    def is_fair(self) -> bool:
        """Whether so little is lost and late that who is behind catches up soon."""
        return self.loss < ROUGH and self.slow < ROUGH

    def send(self, source: UUID, target: UUID, message: Message) -> None:
        """Put a message on its way, if there is one."""
        rng, link = self._rng, (source, target)
        self.sent += 1
        self._watch(source, target, message)
        if link in self.cut or rng.random() < self.loss:
            self.break_link(source, target)
            return
        delay_s = rng.uniform(0.0002, 0.003)
        if rng.random() < self.slow:
            delay_s += rng.uniform(0.0, 0.5)
        arrival_s = max(self._schedule.now_s + delay_s, self._arrived_s.get(link, 0.0))
        self._arrived_s[link] = arrival_s
        session = self._sessions.get(link, 0)
        self._schedule.at(arrival_s, lambda: self._arrive(link, session, message))
        if rng.random() < self.repeat:
            late_s = arrival_s + rng.uniform(0.0, rng.choice((0.01, self._late_s_max)))
            self._schedule.at(late_s, lambda: self._arrive_again(link, message))

    def break_link(self, source: UUID, target: UUID) -> None:
        """End the session of a link: what is on its way will be dropped, what comes is new."""
        link = (source, target)
        self._sessions[link] = self._sessions.get(link, 0) + 1
        self._arrived_s.pop(link, None)

    def break_links(self, node_id: UUID) -> None:
        """End all sessions of a node."""
        for link in [each for each in self._arrived_s if node_id in each]:
            self.break_link(*link)

    def mend(self) -> None:
        """Repair every link."""
        self.cut.clear()

    def _arrive(self, link: tuple[UUID, UUID], session: int, message: Message) -> None:
        if self._sessions.get(link, 0) == session and link not in self.cut:
            self._deliver(*link, message)

    def _arrive_again(self, link: tuple[UUID, UUID], message: Message) -> None:
        if link not in self.cut:
            self._deliver(*link, message)
