"""What a process counts and measures, for Prometheus.

One registry for each process: several nodes may live in one test. Two kinds of metrics:

* What happens often is counted where it happens: calls by service, method and outcome, and syncs.
  A call costs so little that Prometheus's own histograms would be a twentieth of it: ``Rpcs``.
* What somebody keeps anyway (positions of the log, traffic to the peers, ticks) is read when
  Prometheus asks, and costs nothing in between.

Labels are bounded: shards, nodes, and the methods that a server really has. Nothing that a client
can choose becomes a label.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping

from google.rpc import code_pb2  # type: ignore[import-untyped]
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector

from onelog.cluster.raft.member import LEADER
from onelog.cluster.transport.peers import PeerStatus, PeerTransport
from onelog.node.replica.driver import Driver, ShardDriver
from onelog.node.replica.retention import most_held_bytes

# When each counter was made is a series of its own for every series, and nobody asks.
disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# From a sync of a good disk to a call that somebody gave up on.
_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
)  # fmt: skip
_BOUNDS = (*(str(float(each)) for each in _SECONDS), "+Inf")  # as Prometheus has them

# What is read of each shard: name, help, how.
_SHARD_GAUGES: tuple[tuple[str, str, Callable[[ShardDriver], float]], ...] = (
    ("is_leader", "1 where this replica leads", lambda d: d.shard.member.state == LEADER),
    ("has_leader", "1 while a leader is known", lambda d: d.shard.member.leader_id is not None),
    ("raft_term", "The Raft term", lambda d: d.shard.member.term),
    ("log_first_index", "The first index that is kept", lambda d: d.shard.log.first_index),
    ("log_last_index", "The last index in the log", lambda d: d.shard.log.last_index),
    ("log_commit_index", "The last index that is committed", lambda d: d.shard.log.commit_index),
    ("log_applied_index", "The last index that is applied", lambda d: d.shard.log.applied_index),
    ("log_unsynced_bytes", "Bytes that no sync covers yet", lambda d: d.shard.log.unsynced_bytes),
    (
        "commit_lag_proposals",
        "Proposals in the log that are not committed",
        lambda d: d.shard.member.journal.last - d.shard.member.commit,
    ),
    (
        "apply_lag_proposals",
        "Committed proposals that are not applied",
        lambda d: d.shard.member.commit - d.shard.member.applied,
    ),
    ("requests_waiting", "Requests without an outcome yet", lambda d: d.waiting),
    (
        "holds",
        "Holds that keep the log for a reader",
        lambda d: len(d.shard.projections.system.holds.active()),
    ),
    (
        "holds_broken",
        "Holds that were overrun and not released",
        lambda d: d.shard.projections.system.holds.broken_count,
    ),
    ("held_bytes", "About what the earliest hold keeps", lambda d: most_held_bytes(d.shard)),
)
_SHARD_COUNTERS: tuple[tuple[str, str, Callable[[ShardDriver], float]], ...] = (
    # Entries by proposals is the size of a group.
    ("raft_proposals", "Proposals in the log since its beginning",
     lambda d: d.shard.member.journal.last),
    ("passes", "Passes of the shard's work", lambda d: d.passes),
    ("syncs", "Syncs of the log", lambda d: d.syncs.count),
    ("bad_messages", "Messages of peers that were refused", lambda d: d.bad_messages),
    ("seal_failures", "Segments that could not be sealed yet", lambda d: d.seal_failures),
)  # fmt: skip
_PEER_COUNTERS: tuple[tuple[str, str, Callable[[PeerStatus], float]], ...] = (
    ("peer_sent_bytes", "Bytes sent to a peer", lambda p: p.traffic.sent_bytes),
    ("peer_received_bytes", "Bytes received from a peer", lambda p: p.traffic.received_bytes),
    ("peer_sent_messages", "Messages sent to a peer", lambda p: p.traffic.sent_messages),
    ("peer_received_messages", "Messages received", lambda p: p.traffic.received_messages),
    ("peer_dropped_appends", "Appends that were dropped", lambda p: p.traffic.dropped_appends),
    ("peer_attempts", "Attempts to reach a peer", lambda p: p.attempts),
    ("peer_sessions", "Streams that got through the handshake", lambda p: p.sessions),
)


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.rpcs = Rpcs()
        self.registry.register(self.rpcs)
        self.rpc_under_way = Gauge(
            "onelog_rpc_under_way", "Calls that have no answer yet", registry=self.registry
        )
        self.rpc_refused = Counter(
            "onelog_rpc_refused",
            "Calls, and messages of pipelines, that were refused as a whole",
            ("reason",),
            registry=self.registry,
        )
        self.sync_seconds = Histogram(
            "onelog_sync_seconds",
            "How long the disk took for one fdatasync",
            ("shard",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.transfers = Counter(
            "onelog_leadership_transfers",
            "Leaderships that were handed over, to spread them or to stop",
            ("outcome",),
            registry=self.registry,
        )
        self.trace_spans_dropped = Counter(
            "onelog_trace_spans_dropped",
            "Spans that are in no file: too many waited, or they could not be written",
            ("reason",),
            registry=self.registry,
        )
        self.ready = Gauge(
            "onelog_ready", "1 while this process serves clients", registry=self.registry
        )

    def watch(
        self, drivers: Mapping[int, ShardDriver], driver: Driver, transport: PeerTransport
    ) -> None:
        """Read these when somebody asks, and time the syncs of the shards."""
        for number, each in drivers.items():
            each.syncs.observe = self.sync_seconds.labels(str(number)).observe
        self.registry.register(_Live(drivers, driver, transport))

    def text(self) -> bytes:
        """Return everything in Prometheus's text format."""
        return bytes(generate_latest(self.registry))


class Rpcs:
    """How long calls took, by service, method and code, and the bytes of their requests."""

    def __init__(self) -> None:
        self.request_bytes = 0
        # How many took up to each bound of ``_SECONDS``, or longer; the last is their sum.
        self._taken: dict[tuple[str, str, int], list[float]] = {}

    def observe(self, service: str, method: str, code: int, seconds: float) -> None:
        """Count a call that has ended."""
        taken = self._taken.get((service, method, code))
        if taken is None:
            taken = self._taken[service, method, code] = [0.0] * (len(_SECONDS) + 2)
        taken[bisect_left(_SECONDS, seconds)] += 1
        taken[-1] += seconds

    def describe(self) -> Iterable[Metric]:
        """Return nothing, as ``_Live`` does."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's ``Collector``."""
        calls = HistogramMetricFamily(
            "onelog_rpc_seconds",
            "How long calls took; a stream's, until its end",
            labels=["service", "method", "code"],
        )
        for (service, method, code), (*counts, total) in self._taken.items():
            buckets, count = [], 0.0
            for bound, each in zip(_BOUNDS, counts, strict=True):
                count += each
                buckets.append((bound, count))
            calls.add_metric([service, method, code_pb2.Code.Name(code)], buckets, total)
        yield calls
        yield CounterMetricFamily(
            "onelog_rpc_request_bytes", "Bytes of requests", value=self.request_bytes
        )


class _Live:
    """Reads what others keep."""

    def __init__(
        self, drivers: Mapping[int, ShardDriver], driver: Driver, transport: PeerTransport
    ) -> None:
        self._drivers = drivers
        self._driver = driver
        self._transport = transport

    def describe(self) -> Iterable[Metric]:
        """Return nothing: a registry would otherwise collect in order to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's ``Collector``."""
        for name, text, read in _SHARD_GAUGES:
            gauge = GaugeMetricFamily(f"onelog_{name}", text, labels=["shard"])
            for number, driver in self._drivers.items():
                gauge.add_metric([str(number)], float(read(driver)))
            yield gauge
        for name, text, read in _SHARD_COUNTERS:
            counter = CounterMetricFamily(f"onelog_{name}", text, labels=["shard"])
            for number, driver in self._drivers.items():
                counter.add_metric([str(number)], float(read(driver)))
            yield counter
        yield from self._peers()
        yield GaugeMetricFamily(
            "onelog_tick_late_seconds_max",
            "The longest that a tick of the shards came too late",
            value=self._driver.tick_late_s_max,
        )

    def _peers(self) -> Iterator[Metric]:
        peers = self._transport.status()
        connected = GaugeMetricFamily(
            "onelog_peer_connected", "1 while connected with a peer", labels=["node"]
        )
        for node_id, status in peers.items():
            connected.add_metric([str(node_id)], float(status.is_connected))
        yield connected
        for name, text, read in _PEER_COUNTERS:
            counter = CounterMetricFamily(f"onelog_{name}", text, labels=["node"])
            for node_id, status in peers.items():
                counter.add_metric([str(node_id)], float(read(status)))
            yield counter
        yield CounterMetricFamily(
            "onelog_peer_refused_callers",
            "Callers of the peer port that were turned away",
            value=self._transport.refused_callers,
        )
