"""One real shard on a simulated disk whose peers are played by the test, message by message."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from onelog.cluster.raft.member import LEADER
from onelog.cluster.raft.membership import Membership
from onelog.cluster.raft.messages import Ack, Append, Message, Vote, VoteRequest
from onelog.node.replica.requests import Outcome, ShardConfig
from onelog.node.replica.shard import Shard
from onelog.projections.kv.commands import Put, encode_command
from onelog.ual.entry import Draft, Group, encode_group
from onelog.ual.log_config import LogConfig
from tests.simulation.disk import SimDisk
from tests.ual.shards import make_shard

ME, PEER, OTHER, STRANGER = (UUID(int=each) for each in (1, 2, 3, 99))
# Several groups fit what may be unsynced, as with the usual limits.
SHARD = ShardConfig(group_bytes_max=1 << 10, request_bytes_max=4 << 10)
LOG = LogConfig(ring_bytes=4096, unsynced_bytes_max=8 << 10, free_bytes_min=0)
SECOND = 1_000_000_000


class HandClock:
    """Time passes when the test says so: at once, or at one of the next looks."""

    def __init__(self) -> None:
        self.time_s = 1000.0
        self.jumps_s: list[float] = []

    def now_s(self) -> float:
        if self.jumps_s:
            self.time_s += self.jumps_s.pop(0)
        return self.time_s

    def wall_ns(self) -> int:
        return int(self.time_s * SECOND)

    def random(self) -> float:
        return 0.5


class LoneShard:
    """A shard of three, or of as many as ``founders`` says; ``sent`` is what it told its peers."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        founders: Sequence[UUID] | None = None,
        config: ShardConfig | None = None,
        me: UUID = ME,
    ) -> None:
        self.disk = disk or SimDisk()
        self.clock = HandClock()
        self.sent: list[tuple[UUID, Message]] = []
        self.outcomes: list[Outcome] = []
        members = [ME, PEER, OTHER] if founders is None else founders
        self.shard = Shard(
            self.disk,
            make_shard(self.disk),
            0,
            me,
            [each for each in members if each != me],
            self.clock,
            lambda target, message: self.sent.append((target, message)),
            config=config or SHARD,
            log_config=LOG,
            founders=Membership.of(members),
        )
        self.member = self.shard.member

    def hear(self, sender: UUID, message: Message) -> list[Message]:
        """Take a message; return what was sent because of it."""
        before = len(self.sent)
        self.run(lambda: self.shard.on_message(sender, message))
        return [message for _, message in self.sent[before:]]

    def sync(self) -> None:
        """Run the sync that is due, if one is."""
        job = self.shard.sync_begin()
        if job is not None:
            job.run()
            self.run(lambda: self.shard.on_synced(job))

    def tick(self) -> None:
        """Tick, and call back."""
        self.run(self.shard.tick)

    def start(self) -> None:
        """Start the requests and reads that were queued, and call back."""
        self.run(self.shard.start_waiting)

    def run(self, act: Callable[[], None]) -> None:
        """Do something and call back, as a driver does, also when it raises."""
        try:
            act()
        finally:
            self.shard.deliver()

    def pass_time(self, seconds: float) -> None:
        """Move the clock, tick by tick."""
        for _ in range(int(seconds / 0.03) + 1):
            self.clock.time_s += 0.03
            self.tick()

    def elect(self) -> None:
        """Make it a leader with the votes of a peer; nothing is synced or acknowledged yet."""
        self.pass_time(1.0)
        term = self.member.term + 1
        if self.member.state != LEADER:
            self.hear(PEER, Vote(term, pre_vote=True))
            self.tick()
            assert VoteRequest in {type(message) for _, message in self.sent}
            self.hear(PEER, Vote(term))
        assert self.member.state == LEADER

    def lead(self) -> None:
        """Make it a leader whose no-op is committed and applied."""
        self.elect()
        self.acknowledge()
        assert self.member.has_applied_noop

    def acknowledge(self) -> None:
        """Sync, and let a peer say that it has everything."""
        self.sync()
        self.hear(PEER, self.ack())
        self.tick()

    def ack(self) -> Ack:
        """What a peer answers that has everything."""
        member = self.member
        return Ack(member.term, member.leadership.round, member.journal.last + 1, True, False)

    def propose(self, value: bytes = b"v", key: bytes = b"k") -> None:
        """Put a key; the outcome is collected."""
        deadline_s = self.clock.time_s + 5.0
        self.shard.propose([put(key, value)], deadline_s, self.outcomes.append)
        self.start()

    def value(self, key: bytes = b"k") -> bytes | None:
        """What the state holds."""
        found: Any = self.shard.projections.kv.get("default", key)
        return None if found is None else bytes(found.value)

    def append(self, groups: Sequence[bytes], *, term: int, previous: int | None = None) -> Append:
        """What the leader of ``term`` would send behind ``previous``, by default the last one."""
        journal = self.member.journal
        at = journal.last if previous is None else previous
        return Append(term, 1, at, journal.find_term(at), tuple(groups), at)

    def next_group(self, value: bytes, *, term: int) -> Group:
        """A group that fits the end of the log."""
        log = self.shard.log
        return encode_group(
            [put(b"k", value)],
            term=term,
            first_index=log.last_index + 1,
            timestamp_ns=log.last_timestamp_ns + SECOND,
        )


def put(key: bytes, value: bytes) -> Draft:
    """The entry that puts a key."""
    return encode_command(Put(key, value), "default")
