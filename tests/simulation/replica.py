"""One simulated node: a real shard on a simulated disk, with clocks of its own."""

from collections.abc import Callable
from random import Random
from uuid import UUID

from cluster.config import Protections, RaftConfig
from cluster.messages import Message
from node.shard import Shard, ShardConfig
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.simulation.network import Network
from tests.simulation.schedule import Schedule
from tests.ual.shards import make_shard
from ual.errors import DiskFull, LogFailed
from ual.jobs import SyncJob
from ual.log_config import LogConfig

LOG = LogConfig(
    ring_bytes=16 << 10, segment_bytes_max=8 << 10, unsynced_bytes_max=8 << 10, free_bytes_min=0
)
SHARD = ShardConfig(group_bytes_max=1 << 10, group_entries_max=16)
TICK_S = 0.03


class SimClock:
    """A monotonic clock that runs a little fast or slow, and a wall clock that jumps."""

    def __init__(self, schedule: Schedule, rng: Random) -> None:
        self._schedule = schedule
        self._rng = Random(rng.getrandbits(64))
        self._rate = rng.uniform(0.95, 1.05)
        self.wall_offset_s = rng.uniform(-1.0, 1.0)

    def now_s(self) -> float:
        """See ``NodeClock``."""
        return self._schedule.now_s * self._rate

    def wall_ns(self) -> int:
        """See ``NodeClock``."""
        return int((1_000_000 + self._schedule.now_s + self.wall_offset_s) * 1e9)

    def random(self) -> float:
        """See ``NodeClock``."""
        return self._rng.random()


class Replica:
    """A node that can be crashed and started again; ``shard`` is None while it is down."""

    def __init__(
        self,
        node_id: UUID,
        peer_ids: list[UUID],
        schedule: Schedule,
        network: Network,
        rng: Random,
        protections: Protections,
        raft_config: RaftConfig,
    ) -> None:
        self.node_id = node_id
        self.clock = SimClock(schedule, rng)
        self.sync_s_max = 0.003
        self.slow_sync = 0.0
        self.failures: list[str] = []
        self.shard: Shard | None = None
        self._peer_ids = peer_ids
        self._schedule = schedule
        self._network = network
        self._rng = rng
        self._protections = protections
        self._raft_config = raft_config
        self._lives = 0
        self.disk = SimDisk(page_size=rng.choice([256, 1024]))
        self._paths = make_shard(self.disk)

    def start(self) -> None:
        """Start the process on what the disk holds."""
        assert self.shard is None, "it runs"
        self._lives += 1
        self.shard = Shard(
            self.disk,
            self._paths,
            0,
            self.node_id,
            self._peer_ids,
            self.clock,
            lambda target, message: self._network.send(self.node_id, target, message),
            config=SHARD,
            log_config=LOG,
            raft_config=self._raft_config,
            protections=self._protections,
        )
        self._tick(self._lives)

    def crash(self, policy: CrashPolicy) -> None:
        """Lose the process, and of the disk what the policy says."""
        if self.shard is not None:
            self.shard = None
            self._lives += 1
        for peer in self._peer_ids:
            self._network.break_link(self.node_id, peer)
            self._network.break_link(peer, self.node_id)
        self.disk = self.disk.crash(policy, Random(self._rng.getrandbits(64)))

    def deliver(self, sender: UUID, message: Message) -> None:
        """Take a message from the network."""
        self.run(lambda shard: shard.on_message(sender, message))

    def run(self, act: Callable[[Shard], None]) -> None:
        """Do something on the shard, then see to its syncs; a failed log ends the process."""
        shard = self.shard
        if shard is None:
            return
        try:
            act(shard)
        except DiskFull:
            pass  # refused, and nothing has changed: the peer will send it again
        except LogFailed as error:
            self.failures.append(str(error))
            self.crash(CrashPolicy.KEPT)
            return
        self._maybe_sync()

    def _tick(self, life: int) -> None:
        if life == self._lives and self.shard is not None:
            self.run(lambda shard: shard.tick())
            self._schedule.after(self._rng.uniform(0.5, 1.0) * TICK_S, lambda: self._tick(life))

    def _maybe_sync(self) -> None:
        shard = self.shard
        job = None if shard is None else shard.sync_begin()
        if job is None:
            return
        life, rng = self._lives, self._rng
        delay_s = rng.uniform(0.0001, self.sync_s_max)
        if rng.random() < self.slow_sync:
            delay_s += rng.uniform(0.0, 0.5)
        # The disk may do it at once or at the end of the time it takes; both happen.
        if rng.random() < 0.5:
            job.run()
            self._schedule.after(delay_s, lambda: self._synced(life, job))
        else:
            self._schedule.after(delay_s, lambda: self._run_and_finish(life, job))

    def _run_and_finish(self, life: int, job: SyncJob) -> None:
        if life == self._lives:
            job.run()
            self._synced(life, job)

    def _synced(self, life: int, job: SyncJob) -> None:
        if life == self._lives:
            self.run(lambda shard: shard.on_synced(job))
