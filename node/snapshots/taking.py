"""Taking snapshots of running shards: one build at a time in this process.

The builder is another process (snapshot/builder_process.py). Starting it, waiting for it and
cleaning up behind it happen on a thread: a process that held gigabytes takes a while to go, and no
shard should wait for that. Its result is accepted on the loop, if it has the hash that the live
state had, and MANIFEST is replaced on a thread. Who asks while a build runs waits, and is given the
newest snapshot if nothing is newer by then.

``reports`` says of each shard how it went, for operators. A snapshot that differs from the live
state is an alarm until one does not: replay and apply disagree, and this replica should be rebuilt.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from onelog.node.replica.driver import ShardDriver
from onelog.node.replica.retention import needed_by_state
from onelog.node.replica.shard import NodeClock
from onelog.snapshot.build import BuildRequest, BuildResult, Capture, plan_build
from onelog.snapshot.builder_process import TIMEOUT_S, BuilderProcess
from onelog.snapshot.errors import BuilderFailed, StateMismatch
from onelog.snapshot.format import parse_snapshot_name
from onelog.ual.errors import LogFailed, UalError
from onelog.ual.files import DiskFiles, Files
from onelog.ual.manifest import SnapshotRecord

DURABLE_POLL_S = 0.005
# What is applied is synced soon, or the disk is stuck: then the build is put off.
DURABLE_S_MAX = 30.0

_log = logging.getLogger("onelog.node.snapshots")


@dataclass(frozen=True, slots=True)
class BuilderLimits:
    """What a builder may take."""

    # One that takes longer is killed. A state that needs longer needs a higher limit.
    seconds_max: float = TIMEOUT_S
    # Memory; it needs as much as the state is large. 0: as much as there is.
    memory_bytes_max: int = 0


@dataclass(slots=True)
class SnapshotReport:
    """The outcome of snapshot builds of one shard since the process started."""

    taken: int = 0
    taken_s: float | None = None  # when the last one was accepted, by the node's clock
    seconds: float = 0.0  # that it took
    builder_bytes_peak: int = 0  # memory of its builder
    failures: int = 0
    failed_s: float | None = None  # when the last build failed, if it did
    failure: str = ""  # why
    mismatch: str = ""  # the last one differed from the live state: an alarm
    damaged: str = ""  # a kept one could not be read any more, and is not kept any more
    trims: int = 0
    trimmed_segments: int = 0


class Snapshots:
    """See the module's text. One for each process."""

    def __init__(
        self,
        clock: NodeClock,
        limits: BuilderLimits | None = None,
        *,
        start: Callable[..., BuilderProcess] = BuilderProcess,
        files: Files | None = None,
    ) -> None:
        """``start`` starts a builder."""
        self._clock = clock
        self._limits = limits or BuilderLimits()
        self._start = start
        self._files = files or DiskFiles()
        self._reports: dict[int, SnapshotReport] = {}
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="snapshots")

    def report(self, shard: int) -> SnapshotReport:
        """Return the report on the snapshots of a shard."""
        return self._reports.setdefault(shard, SnapshotReport())

    async def take(self, driver: ShardDriver) -> SnapshotRecord:
        """Return a snapshot that holds everything that was applied when it was asked for."""
        asked_index = driver.shard.router.applied_index
        async with self._turn:
            newest = driver.shard.snapshots.newest
            if newest is not None and newest.index >= asked_index:
                return newest
            report = self.report(driver.number)
            started_s = self._clock.now_s()
            try:
                result = await self._build(driver)
            except (UalError, OSError) as error:
                report.failures += 1
                report.failed_s = self._clock.now_s()
                report.failure = str(error)
                if isinstance(error, BuilderFailed) and error.damage is not None:
                    driver.shard.log.segments.report(error.damage)
                if isinstance(error, StateMismatch):
                    report.mismatch = str(error)
                    _log.critical("shard %d: %s", driver.number, error)
                elif not isinstance(error, LogFailed):  # which ends the process, and says so
                    _log.error("shard %d: no snapshot: %s", driver.number, error)
                raise
            report.taken += 1
            report.taken_s = self._clock.now_s()
            report.seconds = report.taken_s - started_s
            report.failed_s, report.failure, report.mismatch = None, "", ""
            if result is not None:
                report.builder_bytes_peak = result.memory_bytes_peak
                report.damaged = "; ".join(result.rejected)
            newest = driver.shard.snapshots.newest
            assert newest is not None
            return newest

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _build(self, driver: ShardDriver) -> BuildResult | None:
        """Build and accept; None if a peer's snapshot has made it needless meanwhile."""
        shard = driver.shard
        store = shard.snapshots
        capture = Capture.of(shard.router)
        needed_from = needed_by_state(shard.log, shard.projections)
        with suppress(TimeoutError):
            async with asyncio.timeout(DURABLE_S_MAX):
                while capture.index > shard.log.durable_index:  # noqa: ASYNC110 - sets no event
                    await asyncio.sleep(DURABLE_POLL_S)
        if store.newest is not None and store.newest.index >= capture.index:
            return None
        request = plan_build(
            capture,
            shard.log,
            store,
            data_dir=store.directory.parent.parent,
            shard=driver.number,
            created_s=max(self._clock.wall_ns() // 1_000_000_000, 0),
            memory_bytes_max=self._limits.memory_bytes_max,
        )
        result = await self._run(request)
        for why in result.rejected:
            _log.error("shard %d: a kept snapshot is damaged: %s", driver.number, why)
        rejected = [each for each in store.records if each.file in result.rejected_files]
        await driver.record(
            lambda: store.accept_begin(result.record, capture.state_hash, rejected, needed_from)
        )
        _log.info(
            "shard %d: snapshot at index %d, %d bytes, %d entries replayed",
            driver.number, result.record.index, result.record.size, result.entry_count,
        )  # fmt: skip
        return result

    async def _run(self, request: BuildRequest) -> BuildResult:
        """Wait for a builder; it is stopped when this is cancelled, and leaves nothing behind."""
        stop_read, stop_write = os.pipe()
        loop = asyncio.get_running_loop()
        building = loop.run_in_executor(self._thread, self._work, request, stop_read)
        try:
            return await asyncio.shield(building)
        except asyncio.CancelledError:
            os.close(stop_write)
            stop_write = -1
            with suppress(UalError, OSError):
                await building
                # It was done in that very moment; nobody will list it.
                self._files.remove(request.directory / request.file_name)
            raise
        finally:
            if stop_write >= 0:
                os.close(stop_write)

    def _work(self, request: BuildRequest, stop: int) -> BuildResult:
        """Start a builder and wait for it, on the thread; ``stop`` is closed at its other end."""
        try:
            builder = self._start(self._files, request, timeout_s=self._limits.seconds_max)
            return builder.wait(stop)
        finally:
            os.close(stop)


def age_s(record: SnapshotRecord, clock: NodeClock) -> float:
    """Return how long ago a snapshot was made, by the wall clock."""
    named = parse_snapshot_name(record.file)
    assert named is not None, record
    return max(0.0, clock.wall_ns() / 1e9 - named.created_s)
