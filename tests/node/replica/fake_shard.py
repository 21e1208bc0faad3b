"""A shard that does what a test of its driver wants."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any
from uuid import UUID

from onelog.cluster.errors import ClusterError
from onelog.cluster.raft.messages import Message
from onelog.cluster.raft.reads import Answers
from onelog.node.replica.requests import Outcome, Requests, ShardConfig
from onelog.node.replica.stale_reads import Level
from onelog.ual.entry import Draft
from onelog.ual.jobs import SyncJob


class FakeMember:
    state = 2
    applied = commit = 0
    dropped_messages = 0
    damaged_messages = 0
    refusal = ""
    membership = None
    is_due = False

    class config:  # noqa: N801 - stands for the object of that name
        heartbeat_s = 0.04


class FakeClock:
    def now_s(self) -> float:
        return time.monotonic()


class FakeShard:
    """Counts calls and keeps callbacks; ``answers`` are delivered at the end of a pass."""

    def __init__(self) -> None:
        self.member = FakeMember()
        self.clock = FakeClock()
        self.log = self
        self.answers: Answers = deque()
        self.requests = Requests(ShardConfig(), self.answers)
        self.ticks: list[float] = []
        self.proposed: list[Callable[[Outcome], None]] = []
        self.reads: list[Callable[[ClusterError | None], None]] = []
        self.starts = 0
        self.messages: list[tuple[UUID, Message]] = []
        self.error: Exception | None = None
        self.job: SyncJob | None = None
        self.is_syncing = False

    @property
    def is_due(self) -> bool:
        return self.member.is_due and not self.is_syncing

    def may_look(self, _level: Level) -> bool:
        return False

    def tick(self) -> None:
        self.ticks.append(time.monotonic())
        if self.error is not None:
            raise self.error

    def on_message(self, sender: UUID, message: Message) -> None:
        self.messages.append((sender, message))

    def propose(
        self, _drafts: list[Draft], _deadline_s: float, callback: Callable[[Outcome], None], *_: Any
    ) -> None:
        self.proposed.append(callback)

    def read(self, callback: Callable[[ClusterError | None], None], **_: Any) -> None:
        self.reads.append(callback)

    def start_waiting(self) -> None:
        self.starts += 1

    def deliver(self) -> None:
        while self.answers:
            callback, outcome = self.answers.popleft()
            callback(outcome)

    def refuse_all(self, error: ClusterError) -> None:
        for callback in (*self.proposed, *self.reads):
            callback(error)

    def sync_begin(self) -> SyncJob | None:
        job, self.job = self.job, None
        self.is_syncing = self.is_syncing or job is not None
        return job

    def on_synced(self, _job: SyncJob) -> None:
        self.is_syncing = False

    def seal_begin(self) -> None:
        return None

    def ship_begin(self) -> None:
        return None

    def close(self) -> None:
        """The log's."""
