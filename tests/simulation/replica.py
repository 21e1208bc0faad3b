"""One simulated node: a real shard on a simulated disk, with clocks of its own."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import UUID

from onelog.cluster.config import Protections, RaftConfig, ShippingConfig
from onelog.cluster.errors import StateDiverged
from onelog.cluster.raft.membership import Membership
from onelog.cluster.raft.messages import Message
from onelog.node.replica.jobs import ShipJob
from onelog.node.replica.requests import ShardConfig
from onelog.node.replica.shard import Shard
from onelog.projections.shard_state import build_projections
from onelog.snapshot.build import Capture, build_in_process, plan_build
from onelog.snapshot.errors import NotDurable
from onelog.ual.errors import CorruptFile, DiskFull, LogFailed
from onelog.ual.jobs import ManifestJob, SealJob, SyncJob
from onelog.ual.log_config import LogConfig
from onelog.ual.segments.sealed import SealedSegment
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.simulation.network import Network
from tests.simulation.schedule import Schedule
from tests.ual.shards import make_shard

LOG = LogConfig(
    ring_bytes=16 << 10, segment_bytes_max=2 << 10, unsynced_bytes_max=8 << 10, free_bytes_min=0
)
# Chunks so small that a transfer takes many of them, and may be interrupted at any.
SHIPPING = ShippingConfig(
    chunk_bytes=700, window_chunks=3, retry_s=0.3, give_up_s=2.0, pause_s=0.1, scrub_pause_s=5.0
)
SHARD = ShardConfig(
    group_bytes_max=1 << 10,
    group_entries_max=16,
    request_bytes_max=4 << 10,
    hash_index_step=16,
    hash_time_step_ns=10**9,
)
TICK_SHARE = 0.33  # of a heartbeat
SLOW_SYNC_MIN = 0.1  # with this share of slow syncs, a replica may fall ever further behind
RATE_MIN, RATE_MAX = 0.95, 1.05  # of monotonic clocks


class PowerLoss(Exception):
    """The power fails in the midst of a file operation."""


class SimClock:
    """A monotonic clock that runs a little fast or slow, and a wall clock that jumps."""

    def __init__(self, schedule: Schedule, rng: Random) -> None:
        self._schedule = schedule
        self._rng = Random(rng.getrandbits(64))
        self.rate = rng.uniform(RATE_MIN, RATE_MAX)
        self.wall_offset_s = rng.uniform(-1.0, 1.0)

    def now_s(self) -> float:
        """See ``NodeClock``."""
        return self._schedule.now_s * self.rate

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
        founders: Membership,
        schedule: Schedule,
        network: Network,
        rng: Random,
        protections: Protections,
        raft_config: RaftConfig,
        *,
        is_liar: bool,
        note: Callable[[str], None],
    ) -> None:
        self.node_id = node_id
        self.clock = SimClock(schedule, rng)
        self.sync_s_max = 0.003
        self.slow_sync = 0.0
        self.is_liar = is_liar
        self.on_start: Callable[[Shard], None] = lambda _: None
        self.on_down: Callable[[], None] = lambda: None
        self.may_diverge = False
        self.was_full = False  # its disk, at some time
        self.diverged: StateDiverged | None = None
        self.shard: Shard | None = None
        self._note = note
        self._founders = founders
        self._schedule = schedule
        self._network = network
        self._rng = rng
        self._protections = protections
        self._raft_config = raft_config
        self._lives = 0
        self._paused_until_s = 0.0
        self.disk = SimDisk(page_size=rng.choice([256, 1024]))
        self._paths = make_shard(self.disk)
        self.disk.lie_about_sync = is_liar

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return str(self.node_id.int)

    def start(self, *, power_loss_after: int | None = None) -> None:
        """Start the process on what the disk holds; it may not get through recovery."""
        assert self.shard is None, "it runs"
        self._lives += 1
        self._paused_until_s = 0.0
        if power_loss_after is not None:
            self.lose_power_after(power_loss_after)
        try:
            self.shard = Shard(
                self.disk,
                self._paths,
                0,
                self.node_id,
                [each for each in self._founders.voters if each != self.node_id],
                self.clock,
                lambda target, message: self._network.send(self.node_id, target, message),
                config=SHARD,
                log_config=LOG,
                raft_config=self._raft_config,
                protections=self._protections,
                founders=self._founders,
                shipping=SHIPPING,
            )
        except (PowerLoss, DiskFull, LogFailed, OSError) as error:
            self._note(f"{self.name} does not start: {type(error).__name__} {error}")
            self.crash(CrashPolicy.RANDOM)
            self.on_down()
            return
        self.on_start(self.shard)
        self._tick(self._lives)

    def crash(self, policy: CrashPolicy) -> None:
        """Lose the process, and of the disk what the policy says."""
        self.shard = None
        self._lives += 1
        if self.is_liar:
            policy = CrashPolicy.KEPT
        self._network.break_links(self.node_id)
        self.disk = self.disk.crash(policy, Random(self._rng.getrandbits(64)))

    def lose_power_after(self, operations: int) -> None:
        """Let the power fail once the disk has done so many more operations."""
        left = operations

        def count(_description: str) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                raise PowerLoss

        self.disk.after_operation = count

    def pause(self, seconds: float) -> None:
        """Stop the process for a while, as SIGSTOP does: what arrives is dealt with afterwards."""
        self._paused_until_s = self._schedule.now_s + seconds

    @property
    def is_well(self) -> bool:
        """Whether it runs, on a disk that is quick, has room, and no damage that it knows of."""
        return (
            self.shard is not None
            and self.slow_sync < SLOW_SYNC_MIN
            and self._schedule.now_s >= self._paused_until_s
            and self.disk.capacity is None
            and not self.shard.shipping.repair.damages
        )

    def deliver(self, sender: UUID, message: Message) -> None:
        """Take a message from the network."""
        self.run(lambda shard: shard.on_message(sender, message))

    def run(self, act: Callable[[Shard], None]) -> None:
        """Do something on the shard, then what its driver does; a failed log ends the process."""
        if self.shard is None:
            return
        if self._schedule.now_s < self._paused_until_s:
            life = self._lives
            self._schedule.at(
                self._paused_until_s, lambda: self.run(act) if life == self._lives else None
            )
            return
        shard = self.shard
        try:
            try:
                act(shard)
                shard.start_waiting()
                self._maybe_sync()
                if shard.is_due:
                    shard.tick()
                    self._maybe_sync()
                self._maybe_ship()
            finally:
                shard.deliver()
        except (LogFailed, PowerLoss, OSError) as error:
            self._note(f"{self.name} is down: {type(error).__name__} {error}")
            self.crash(CrashPolicy.RANDOM)
            self.on_down()
        except StateDiverged as error:
            if not self.may_diverge:
                raise
            self.diverged = error
            self.crash(CrashPolicy.KEPT)  # and stays down: somebody must look at it

    def snapshot(self) -> None:
        """Seal what can be sealed, and take a snapshot if something is new."""
        self.run(self._snapshot)

    def _snapshot(self, shard: Shard) -> None:
        job: SealJob | None
        while (job := shard.seal_begin()) is not None:
            job.run()
            if not shard.on_sealed(job):
                return
        newest = shard.snapshots.newest
        if newest is not None and newest.index >= shard.router.applied_index:
            return
        capture = Capture.of(shard.router)
        with suppress(NotDurable, DiskFull):
            request = plan_build(
                capture,
                shard.log,
                shard.snapshots,
                data_dir=Path("/data"),
                shard=0,
                created_s=1_700_000_000 + int(self._schedule.now_s),
            )
            with suppress(OSError):  # the builder is another process
                result = build_in_process(self.disk, request, build_projections)
                self._record(shard.snapshots.accept_begin(result.record, capture.state_hash))

    def has_rotten_files(self) -> bool:
        """Tell whether a sealed file on the disk is damaged, known or not."""
        directory = self._paths.segments
        for name in self.disk.list(directory):
            if name.endswith(".flseg"):
                try:
                    SealedSegment.open(self.disk, directory / name).check_file()
                except CorruptFile:
                    return True
        return False

    def trim(self) -> None:
        """Drop the log before the older snapshot."""
        self.run(self._trim)

    def _trim(self, shard: Shard) -> None:
        job = shard.trim_begin()
        if job is not None:
            self._note(f"trim {self.name} to {shard.log.first_index}")
            self._record(job)

    def _record(self, job: ManifestJob | None) -> None:
        """Replace MANIFEST beside everything else; who cannot wait for it finishes it."""
        if job is None:
            return
        life, rng = self._lives, self._rng
        delay_s = rng.uniform(0.0001, 5 * self.sync_s_max)
        if rng.random() < self.slow_sync:
            delay_s += rng.uniform(0.0, 2.5)
        if rng.random() < 0.5:
            job.run()
        self._schedule.after(delay_s, lambda: self._recorded(life, job))

    def _recorded(self, life: int, job: ManifestJob) -> None:
        def act(shard: Shard) -> None:
            job.run()
            with suppress(DiskFull):
                shard.log.manifest_file.finish(job)

        if life == self._lives:
            self.run(act)

    def _tick(self, life: int) -> None:
        if life == self._lives and self.shard is not None:
            self.run(lambda shard: shard.tick())
            period_s = self._raft_config.heartbeat_s * TICK_SHARE
            self._schedule.after(self._rng.uniform(0.7, 1.0) * period_s, lambda: self._tick(life))

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

    def _maybe_ship(self) -> None:
        shard = self.shard
        job = None if shard is None else shard.ship_begin()
        if job is None:
            return
        life, rng = self._lives, self._rng
        delay_s = rng.uniform(0.0001, 0.005)
        if rng.random() < 0.5:
            job.run()
            self._schedule.after(delay_s, lambda: self._shipped(life, job))
        else:
            self._schedule.after(delay_s, lambda: self._run_and_ship(life, job))

    def _run_and_ship(self, life: int, job: ShipJob) -> None:
        def act(shard: Shard) -> None:
            job.run()
            shard.on_shipped(job)

        if life == self._lives:
            self.run(act)

    def _shipped(self, life: int, job: ShipJob) -> None:
        if life == self._lives:
            self.run(lambda shard: shard.on_shipped(job))

    def _run_and_finish(self, life: int, job: SyncJob) -> None:
        def act(shard: Shard) -> None:
            job.run()
            shard.on_synced(job)

        if life == self._lives:
            self.run(act)

    def _synced(self, life: int, job: SyncJob) -> None:
        if life == self._lives:
            self.run(lambda shard: shard.on_synced(job))
