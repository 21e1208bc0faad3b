"""One simulated node: a real shard on a simulated disk, with clocks of its own."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
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
from onelog.node.replica.start_repair import START_ERRORS, StartRepair, find_damage
from onelog.projections.shard_state import build_projections
from onelog.snapshot.build import Capture, build_in_process, plan_build
from onelog.snapshot.errors import NotDurable
from onelog.ual.errors import CorruptFile, DiskFull, LogFailed
from onelog.ual.jobs import ManifestJob, SealJob, SyncJob
from onelog.ual.log_config import LogConfig
from onelog.ual.segments.format import HEADER_SIZE
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
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
        self.repairing: StartRepair | None = None  # what it lacks to start
        self._lost_file: Path | None = None
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
        assert self.repairing is None, "it is about to"
        self._lives += 1
        self._paused_until_s = 0.0
        if power_loss_after is not None:
            self.lose_power_after(power_loss_after)
        try:
            try:
                self.shard = self._open()
            except START_ERRORS as error:
                self.repairing = self._find_repair(error)
        except (PowerLoss, DiskFull, LogFailed, OSError) as error:
            self._note(f"{self.name} does not start: {type(error).__name__} {error}")
            self.crash(CrashPolicy.RANDOM)
            self.on_down()
            return
        if self.repairing is not None:
            self._note(f"{self.name} lacks {self.repairing.found.describe()}")
            self._repair_on(self._lives)
            return
        assert self.shard is not None
        self.on_start(self.shard)
        self._tick(self._lives)

    def _open(self) -> Shard:
        return Shard(
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

    def _find_repair(self, error: Exception) -> StartRepair:
        """Return the repair of what keeps the shard from starting, or raise the error."""
        found = find_damage(self.disk, self._paths, 0, LOG, error)
        if found is None:
            raise error
        membership = found.membership or self._founders
        members = [each for each in membership.members if each != self.node_id]
        return StartRepair(
            self.disk,
            self._paths,
            0,
            found,
            members,
            lambda: members,
            SHIPPING,
            lambda target, message: self._network.send(self.node_id, target, message),
            self.clock.now_s,
        )

    def _repair_on(self, life: int) -> None:
        """Tick the repair until the shard can be opened."""
        if life == self._lives and self.repairing is not None:
            self._repair(lambda repair: repair.advance())
            delay_s = self._raft_config.heartbeat_s * TICK_SHARE
            self._schedule.after(delay_s, lambda: self._repair_on(life))

    def _repair(self, act: Callable[[StartRepair], None]) -> None:
        repair, life, rng = self.repairing, self._lives, self._rng
        if repair is None or self._schedule.now_s < self._paused_until_s:
            return
        try:
            act(repair)
            job = repair.next_job()
            if job is not None:
                if has_run := rng.random() < 0.5:
                    job.run()
                delay_s = rng.uniform(0.0001, 0.005)
                finish = partial(self._finish_repair_job, life, job, has_run=has_run)
                self._schedule.after(delay_s, finish)
        except (LogFailed, PowerLoss, OSError) as error:
            self._note(f"{self.name} is down: {type(error).__name__} {error}")
            self.crash(CrashPolicy.RANDOM)
            self.on_down()
            return
        if repair.is_done:
            self._note(f"{self.name} has repaired its log")
            self.repairing = None
            self.start()

    def _finish_repair_job(self, life: int, job: ShipJob, *, has_run: bool) -> None:
        def act(repair: StartRepair) -> None:
            if not has_run:
                job.run()
            repair.finish(job)

        if life != self._lives:
            return
        if self._schedule.now_s < self._paused_until_s:
            again = partial(self._finish_repair_job, life, job, has_run=has_run)
            self._schedule.at(self._paused_until_s, again)
        else:
            self._repair(act)

    def crash(self, policy: CrashPolicy) -> None:
        """Lose the process, and of the disk what the policy says."""
        self.shard = self.repairing = None
        self._lives += 1
        if self.is_liar:
            policy = CrashPolicy.KEPT
        self._network.break_links(self.node_id)
        self.disk = self.disk.crash(policy, Random(self._rng.getrandbits(64)))

    def lose_power_after(self, operations: int) -> None:
        """Cut the power after this many more operations of the disk."""
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

    def lacks_all_before(self, index: int) -> bool:
        """Tell whether it cannot start for want of something, all of which is before an index."""
        damages = () if self.repairing is None else self.repairing.repair.damages.values()
        return bool(damages) and all(each.last_index < index for each in damages)

    def deliver(self, sender: UUID, message: Message) -> None:
        """Take a message from the network."""
        self._repair(lambda repair: repair.on_message(sender, message))
        self.run(lambda shard: shard.on_message(sender, message))

    def run(self, act: Callable[[Shard], object]) -> None:
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

    def seal(self) -> None:
        """Seal what can be sealed."""
        self.run(self._seal)

    def _seal(self, shard: Shard) -> bool:
        job: SealJob | None
        while (job := shard.seal_begin()) is not None:
            job.run()
            if not shard.on_sealed(job):
                return False
        return True

    def _snapshot(self, shard: Shard) -> None:
        if not self._seal(shard):
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

    @property
    def is_damaged(self) -> bool:
        """Whether something of its log is damaged or lost, known or not."""
        if self._lost_file is not None and self.shard is not None:
            segments = self.shard.log.segments.segments
            if not any(
                isinstance(each, DamagedSegment) and each.path == self._lost_file
                for each in segments
            ):
                self._lost_file = None
        return self.repairing is not None or self._lost_file is not None or self.has_rotten_files()

    def damage(self, path: Path, *, may_lose: bool) -> None:
        """Damage a sealed file while the process is down."""
        assert self.shard is None, "it runs"
        rng, content = self._rng, self.disk.contents(path)
        how = rng.choice(("flip", "flip", "header", "cut", "lose" if may_lose else "cut"))
        self._note(f"{path.name} of {self.name} is damaged while it is down: {how}")
        if how == "lose":
            self.disk.remove(path)
            self.disk.sync_directory(path.parent)
            self._lost_file = path
        elif how == "cut":
            self.disk.put(path, content[: rng.randrange(len(content))])
        else:
            size = HEADER_SIZE if how == "header" else len(content)
            self.disk.flip(path, rng.randrange(8 * size))

    def sealed_files(self) -> list[Path]:
        """Return the sealed files of its log, in order."""
        directory = self._paths.segments
        names = [each for each in self.disk.list(directory) if each.endswith(".flseg")]
        return [directory / each for each in sorted(names)]

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
