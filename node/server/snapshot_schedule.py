"""When the shards of a process are snapshotted and their logs trimmed, without being asked.

One task checks the shards in turn. A snapshot that is due (snapshot/trigger.py) is built at once
and waited for, so there is at most one builder, and the shard that waited longest is next. The
first snapshots are spread over an interval, so the shards do not become due together.

A failed build is reported (node/snapshots/taking.py) and retried after ``retry_s``; the shard
continues with a longer log. Only an error of the log itself ends the schedule and the process: a
log that cannot write its MANIFEST cannot be trusted with more.

The log is trimmed after each snapshot, and periodically, because acks and repairs also free entries
(``Shard.trim_begin``). Entries stay that a read of the past is replaying, or that a hold is about
to protect. Files are removed on a thread; which ones may go is decided on the loop, a few at a
time.

``SnapshotMetrics`` reports snapshots, trims and states of the past; it is read when Prometheus
asks.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from onelog.node.context import NodeContext
from onelog.node.replica.driver import ShardDriver
from onelog.node.replica.retention import log_bytes_behind
from onelog.node.snapshots.past import PastStates, first_as_of_index, first_as_of_ns
from onelog.node.snapshots.taking import SnapshotReport, age_s
from onelog.snapshot.errors import SnapshotError
from onelog.snapshot.store import KEPT_MIN
from onelog.snapshot.trigger import Cause, Growth, snapshot_due
from onelog.ual.errors import DiskFull

# How often shards are checked, and trimmed without a new snapshot, at most.
LOOK_S = 1.0
TRIM_S = 10.0
# Segments that one trim removes. The rest comes at the next look.
TRIM_SEGMENTS_MAX = 8

_log = logging.getLogger("onelog.node.snapshots")


class SnapshotSchedule:
    """See the module's text. One for each process."""

    def __init__(self, context: NodeContext) -> None:
        self._drivers = context.drivers
        self._snapshots = context.snapshots
        self._clock = context.clock
        self._past = context.past
        self._holding = context.holding
        self._config = config = context.config.trigger_config()
        now_s, numbers = self._clock.now_s(), sorted(self._drivers)
        share_s = config.interval_s / max(len(numbers), 1)
        self._since_s = {
            number: now_s - config.interval_s + (at + 1) * share_s
            for at, number in enumerate(numbers)
        }
        self._trim_at_s = dict.fromkeys(numbers, now_s)

    async def run(self) -> None:
        """Look after the shards until cancelled; a build that runs is stopped then."""
        pause_s = min(LOOK_S, self._config.interval_s, self._config.retry_s)
        while True:
            for number in sorted(self._drivers):
                driver = self._drivers[number]
                if driver.shard.failure is not None:
                    continue
                cause = self.due(driver)
                if cause is not None:
                    await self._take(driver, cause)
                await self._trim(driver)
                await asyncio.sleep(0)
            await asyncio.sleep(pause_s)

    def due(self, driver: ShardDriver) -> Cause | None:
        """Tell whether a shard is due for a snapshot, and why."""
        shard, now_s = driver.shard, self._clock.now_s()
        report, newest = self._snapshots.report(driver.number), shard.snapshots.newest
        index = 0 if newest is None else newest.index
        # A shard may start late, when its log has been repaired.
        since_s = report.taken_s or self._since_s.setdefault(driver.number, now_s)
        return snapshot_due(
            Growth(
                applied_entries=shard.log.applied_index - index,
                log_bytes=log_bytes_behind(shard.log, index),
                last_snapshot_bytes=0 if newest is None else newest.size,
                elapsed_s=now_s - since_s,
                since_failure_s=None if report.failed_s is None else now_s - report.failed_s,
            ),
            self._config,
        )

    async def trim_now(self, driver: ShardDriver) -> None:
        """Trim a log at once, without waiting for its turn."""
        self._trim_at_s[driver.number] = self._clock.now_s()
        await self._trim(driver)

    async def _take(self, driver: ShardDriver, cause: Cause) -> None:
        _log.debug("shard %d: a snapshot is due by %s", driver.number, cause.value)
        try:
            await self._snapshots.take(driver)
        except (SnapshotError, DiskFull, OSError):
            return  # reported; the trigger knows when to try again
        self._trim_at_s[driver.number] = self._clock.now_s()

    async def _trim(self, driver: ShardDriver) -> None:
        """Trim the log, if it is time to."""
        number, shard, now_s = driver.number, driver.shard, self._clock.now_s()
        if now_s < self._trim_at_s.get(number, now_s) or shard.failure is not None:
            return
        self._trim_at_s[number] = now_s + min(TRIM_S, self._config.interval_s)
        await self._shorten_past(driver)
        if shard.log.segments.segments[0].last_index >= shard.snapshots.keep_from_index:
            return
        try:
            job = await driver.record(
                lambda: shard.trim_begin(self._needed_from(number), TRIM_SEGMENTS_MAX)
            )
        except DiskFull:
            return  # another time
        if job is None:
            return
        count = len(job.segments)
        report = self._snapshots.report(number)
        report.trims += 1
        report.trimmed_segments += count
        if count == TRIM_SEGMENTS_MAX:
            self._trim_at_s[number] = now_s
        _log.info(
            "shard %d: dropped %d segments, the log begins at %d",
            number, count, shard.log.first_index,
        )  # fmt: skip

    async def _shorten_past(self, driver: ShardDriver) -> None:
        """Keep no more of the past than a restart needs while the disk is short of space."""
        store = driver.shard.snapshots
        if not store.gives_way or len(store.records) <= KEPT_MIN:
            return
        count = len(store.records)
        try:
            await driver.record(store.give_way_begin)
        except DiskFull:
            return  # another time
        _log.warning(
            "shard %d: the disk is short of space: %d snapshots were dropped, and reads as of an "
            "index reach back to %d only",
            driver.number, count - len(store.records), store.records[0].index,
        )  # fmt: skip

    def _needed_from(self, number: int) -> int | None:
        needed = (self._past.needed_from(number), self._holding.asked_from(number))
        return min((each for each in needed if each is not None), default=None)


# Snapshot metrics

_REPORT_GAUGES: tuple[tuple[str, str, Callable[[SnapshotReport], float]], ...] = (
    ("snapshot_build_seconds", "Duration of the last snapshot build", lambda r: r.seconds),
    ("snapshot_builder_bytes", "Peak memory of the last builder", lambda r: r.builder_bytes_peak),
    ("snapshot_failing", "1 if the last snapshot build failed", lambda r: r.failed_s is not None),
    ("snapshot_mismatch", "1 if the last one differed from the live state: an alarm",
     lambda r: bool(r.mismatch)),
)  # fmt: skip
_REPORT_COUNTERS: tuple[tuple[str, str, Callable[[SnapshotReport], float]], ...] = (
    ("snapshots", "Snapshots taken", lambda r: r.taken),
    ("snapshot_failures", "Builds that failed", lambda r: r.failures),
    ("trims", "Trims that removed segments of the log", lambda r: r.trims),
    ("trimmed_segments", "Segments removed by trims", lambda r: r.trimmed_segments),
)
_PAST_GAUGES: tuple[tuple[str, str, Callable[[PastStates], float]], ...] = (
    ("past_states", "States of the past in memory", lambda p: len(p.states)),
    ("past_bytes", "Approximate bytes of states of the past", lambda p: p.memory_bytes),
    ("past_builds_under_way", "States of the past being built", lambda p: p.builds),
)
_PAST_COUNTERS: tuple[tuple[str, str, Callable[[PastStates], float]], ...] = (
    ("past_builds", "States of the past built", lambda p: p.built),
    ("past_refused", "Reads of the past refused because of a limit", lambda p: p.refused),
    ("past_failures", "Builds that failed", lambda p: p.failed),
)


class SnapshotMetrics:
    """A collector; see prometheus_client."""

    def __init__(self, context: NodeContext) -> None:
        self._drivers = context.drivers
        self._snapshots = context.snapshots
        self._past = context.past
        self._clock = context.clock

    def describe(self) -> Iterable[Metric]:
        """Return nothing: a registry would otherwise collect in order to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's ``Collector``."""
        yield from self._newest()
        yield from self._kept()
        for name, text, read in _REPORT_GAUGES:
            gauge = GaugeMetricFamily(f"onelog_{name}", text, labels=["shard"])
            for number in self._drivers:
                gauge.add_metric([str(number)], float(read(self._snapshots.report(number))))
            yield gauge
        for name, text, read in _REPORT_COUNTERS:
            counter = CounterMetricFamily(f"onelog_{name}", text, labels=["shard"])
            for number in self._drivers:
                counter.add_metric([str(number)], float(read(self._snapshots.report(number))))
            yield counter
        for name, text, look in _PAST_GAUGES:
            yield GaugeMetricFamily(f"onelog_{name}", text, value=float(look(self._past)))
        for name, text, look in _PAST_COUNTERS:
            yield CounterMetricFamily(f"onelog_{name}", text, value=float(look(self._past)))

    def _newest(self) -> Iterator[Metric]:
        index = GaugeMetricFamily(
            "onelog_snapshot_index", "The index of the newest snapshot", labels=["shard"]
        )
        size = GaugeMetricFamily(
            "onelog_snapshot_bytes", "Size of the newest snapshot", labels=["shard"]
        )
        age = GaugeMetricFamily(
            "onelog_snapshot_age_seconds",
            "Age of the newest snapshot, by the wall clock",
            labels=["shard"],
        )
        for number, driver in self._drivers.items():
            newest = driver.shard.snapshots.newest
            index.add_metric([str(number)], 0.0 if newest is None else float(newest.index))
            if newest is not None:
                size.add_metric([str(number)], float(newest.size))
                age.add_metric([str(number)], age_s(newest, self._clock))
        yield from (index, size, age)

    def _kept(self) -> Iterator[Metric]:
        count = GaugeMetricFamily("onelog_snapshots_kept", "Snapshots kept", labels=["shard"])
        size = GaugeMetricFamily(
            "onelog_snapshots_kept_bytes", "Size of all kept snapshots", labels=["shard"]
        )
        index = GaugeMetricFamily(
            "onelog_past_first_index", "The oldest index for reads as of an index", labels=["shard"]
        )
        past = GaugeMetricFamily(
            "onelog_past_seconds",
            "How far reads as of an index reach back from the newest entry, by log time",
            labels=["shard"],
        )
        for number, driver in self._drivers.items():
            shard, labels = driver.shard, [str(number)]
            records, first_ns = shard.snapshots.records, first_as_of_ns(shard)
            count.add_metric(labels, float(len(records)))
            size.add_metric(labels, float(sum(each.size for each in records)))
            index.add_metric(labels, float(first_as_of_index(shard)))
            reach_ns = shard.router.log_time_ns - first_ns if first_ns else 0
            past.add_metric(labels, max(0, reach_ns) / 1e9)
        yield from (count, size, index, past)
