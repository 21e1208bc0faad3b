"""What Prometheus is told of snapshots, trims and states of the past; read when it asks."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from onelog.node.context import NodeContext
from onelog.node.replica.shard import NodeClock
from onelog.node.snapshots.past import PastStates
from onelog.node.snapshots.taking import SnapshotReport
from onelog.snapshot.format import parse_snapshot_name
from onelog.ual.manifest import SnapshotRecord

_REPORT_GAUGES: tuple[tuple[str, str, Callable[[SnapshotReport], float]], ...] = (
    ("snapshot_build_seconds", "How long the last build took", lambda r: r.seconds),
    ("snapshot_builder_bytes", "Memory of the last builder", lambda r: r.builder_bytes_peak),
    ("snapshot_failing", "1 if the last build failed", lambda r: r.failed_s is not None),
    ("snapshot_mismatch", "1 if the last one differed from the live state: an alarm",
     lambda r: bool(r.mismatch)),
)  # fmt: skip
_REPORT_COUNTERS: tuple[tuple[str, str, Callable[[SnapshotReport], float]], ...] = (
    ("snapshots", "Snapshots that were accepted", lambda r: r.taken),
    ("snapshot_failures", "Builds that failed", lambda r: r.failures),
    ("trims", "Times that the log lost something", lambda r: r.trims),
    ("trimmed_segments", "Segments that it lost", lambda r: r.trimmed_segments),
)
_PAST_GAUGES: tuple[tuple[str, str, Callable[[PastStates], float]], ...] = (
    ("past_states", "States of the past in memory", lambda p: len(p.states)),
    ("past_bytes", "About what they hold", lambda p: p.memory_bytes),
    ("past_builds_under_way", "States that are being built", lambda p: p.builds),
)
_PAST_COUNTERS: tuple[tuple[str, str, Callable[[PastStates], float]], ...] = (
    ("past_builds", "States of the past that were built", lambda p: p.built),
    ("past_refused", "Reads of the past that were refused for a limit", lambda p: p.refused),
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
        size = GaugeMetricFamily("onelog_snapshot_bytes", "Its size", labels=["shard"])
        age = GaugeMetricFamily(
            "onelog_snapshot_age_seconds", "Its age, by the wall clock", labels=["shard"]
        )
        for number, driver in self._drivers.items():
            newest = driver.shard.snapshots.newest
            index.add_metric([str(number)], 0.0 if newest is None else float(newest.index))
            if newest is not None:
                size.add_metric([str(number)], float(newest.size))
                age.add_metric([str(number)], age_s(newest, self._clock))
        yield from (index, size, age)


def age_s(record: SnapshotRecord, clock: NodeClock) -> float:
    """Return how long ago a snapshot was made, by the wall clock."""
    named = parse_snapshot_name(record.file)
    assert named is not None, record
    return max(0.0, clock.wall_ns() / 1e9 - named.created_s)
