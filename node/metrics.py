"""What a process counts and measures, for Prometheus.

One registry for each process: several nodes may live in one test. Two kinds of metrics:

* What happens often is counted where it happens: calls by service, method and outcome, operations
  of pipeline messages, and syncs. A call costs so little that Prometheus's own histograms would be
  a twentieth of it: ``Durations``. The operations of a message that are of one kind are counted
  together.
* What somebody keeps anyway (positions of the log, traffic to the peers, ticks) is read when
  Prometheus asks, and costs nothing in between.

The page is made at most once in ``PAGE_S``, however often it is requested, and in slices: other
work has a turn of the loop after ``SAMPLES_PER_TURN`` values. What the system counts of the process
is read on a thread, since that takes longer with more connections.

Labels are bounded: shards, nodes, and the methods that a server really has. Nothing that a client
can choose becomes a label.
"""

import asyncio
import time
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

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
from onelog.cluster.transport.accepting import Acceptor
from onelog.cluster.transport.peers import PeerStatus, PeerTransport
from onelog.node.replica.driver import Driver, ShardDriver
from onelog.node.replica.retention import most_held_bytes
from onelog.projections.queue.reads import QueueReads

# Creation times would double the number of series, and nobody uses them.
disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# How old the page may be, and the values that are written to it in one turn of the loop.
PAGE_S = 1.0
SAMPLES_PER_TURN = 200

# From a sync of a fast disk to a call that timed out.
_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
)  # fmt: skip
_BOUNDS = (*(str(float(each)) for each in _SECONDS), "+Inf")  # as Prometheus has them

_CODE_NAMES = {value: name for name, value in code_pb2.Code.items()}

# What is read of each shard: name, help, how.
_SHARD_GAUGES: tuple[tuple[str, str, Callable[[ShardDriver], float]], ...] = (
    ("is_leader", "1 if this replica is the leader", lambda d: d.shard.member.state == LEADER),
    ("has_leader", "1 while a leader is known", lambda d: d.shard.member.leader_id is not None),
    ("raft_term", "The Raft term", lambda d: d.shard.member.term),
    ("log_first_index", "First index still in the log", lambda d: d.shard.log.first_index),
    ("log_last_index", "Last index in the log", lambda d: d.shard.log.last_index),
    ("log_commit_index", "Last committed index", lambda d: d.shard.log.commit_index),
    ("log_applied_index", "Last applied index", lambda d: d.shard.log.applied_index),
    ("log_unsynced_bytes", "Bytes not yet synced to disk", lambda d: d.shard.log.unsynced_bytes),
    (
        "commit_lag_proposals",
        "Proposals in the log that are not yet committed",
        lambda d: d.shard.member.journal.last - d.shard.member.commit,
    ),
    (
        "apply_lag_proposals",
        "Committed proposals that are not yet applied",
        lambda d: d.shard.member.commit - d.shard.member.applied,
    ),
    ("requests_waiting", "Requests waiting for their outcome", lambda d: d.waiting),
    (
        "holds",
        "Active holds, which keep log entries for a reader",
        lambda d: len(d.shard.projections.system.holds.active()),
    ),
    (
        "holds_broken",
        "Holds that were broken and not yet released",
        lambda d: d.shard.projections.system.holds.broken_count,
    ),
    ("held_bytes", "Approximate log bytes kept by holds", lambda d: most_held_bytes(d.shard)),
    (
        "state_agreed_index",
        "Last index at which all voters had the same state",
        lambda d: d.shard.comparison.status().agreed_index,
    ),
    (
        "states_differ",
        "1 while replicas are known to have different states",
        lambda d: d.shard.comparison.status().alarm is not None,
    ),
    (
        "segments_damaged",
        "Damaged log segments that are not repaired yet",
        lambda d: len(d.shard.shipping.repair.damages),
    ),
    (
        "entries_unreadable",
        "Log entries that cannot be read because of damage",
        lambda d: sum(last - first + 1 for first, last in d.shard.shipping.repair.unreadable),
    ),
    (
        "messages_unreadable",
        "Ready queue messages that are not delivered because their bodies cannot be read",
        lambda d: count_unreadable(d.shard.projections.queue),
    ),
)
_SHARD_COUNTERS: tuple[tuple[str, str, Callable[[ShardDriver], float]], ...] = (
    # Entries by proposals is the size of a group.
    ("raft_proposals", "Proposals in the log since its beginning",
     lambda d: d.shard.member.journal.last),
    ("passes", "Passes of the shard's work loop", lambda d: d.passes),
    ("syncs", "Syncs of the log", lambda d: d.syncs.count),
    ("bad_messages", "Invalid messages from peers", lambda d: d.bad_messages),
    ("seal_failures", "Failed attempts to seal a segment", lambda d: d.seal_failures),
    ("state_comparisons", "Comparisons with the state hashes of another replica",
     lambda d: d.shard.comparison.status().comparisons),
    ("state_differences", "Indexes at which replicas had different states",
     lambda d: d.shard.comparison.status().alarms),
    ("damage_met", "Reads that came upon damage of the log", lambda d: d.shard.shipping.repair.met),
    ("damage_found", "Damaged log segments found", lambda d: d.shard.shipping.repair.found),
    ("damage_repaired", "Damaged log segments replaced by a peer's copy",
     lambda d: d.shard.shipping.repair.repaired),
    ("scrubbed_bytes", "Bytes of sealed segments read to find damage",
     lambda d: d.shard.shipping.repair.scrubbed_bytes),
)  # fmt: skip
_PEER_COUNTERS: tuple[tuple[str, str, Callable[[PeerStatus], float]], ...] = (
    ("peer_sent_bytes", "Bytes sent to a peer", lambda p: p.traffic.sent_bytes),
    ("peer_received_bytes", "Bytes received from a peer", lambda p: p.traffic.received_bytes),
    ("peer_sent_messages", "Messages sent to a peer", lambda p: p.traffic.sent_messages),
    (
        "peer_received_messages",
        "Messages received from a peer",
        lambda p: p.traffic.received_messages,
    ),
    ("peer_dropped_appends", "Appends dropped before sending", lambda p: p.traffic.dropped_appends),
    ("peer_attempts", "Attempts to connect to a peer", lambda p: p.attempts),
    ("peer_sessions", "Streams that completed the handshake", lambda p: p.sessions),
)


def count_unreadable(queues: QueueReads) -> int:
    """Return how many ready messages cannot be read, of all queues."""
    if not queues.unreadable:
        return 0
    return sum(queue.count_within(queues.unreadable) for queue in queues.all_queues())


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._page = b""
        self._page_s = float("-inf")
        self._rendering: asyncio.Task[bytes] | None = None
        # Collectors that take long, and give way to other work in between.
        self.sliced: list[Callable[[], AsyncIterator[Metric]]] = []
        self.rpcs = Rpcs()
        self.registry.register(self.rpcs)
        self.operations = PipelineOperations()
        self.registry.register(self.operations)
        self.rpc_under_way = Gauge(
            "onelog_rpc_under_way", "Calls in progress", registry=self.registry
        )
        self.rpc_refused = Counter(
            "onelog_rpc_refused",
            "Calls and pipeline messages refused as a whole",
            ("reason",),
            registry=self.registry,
        )
        self.sync_seconds = Histogram(
            "onelog_sync_seconds",
            "Duration of one fdatasync",
            ("shard",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.transfers = Counter(
            "onelog_leadership_transfers",
            "Leadership transfers, for balance or before a shutdown",
            ("outcome",),
            registry=self.registry,
        )
        self.trace_spans_dropped = Counter(
            "onelog_trace_spans_dropped",
            "Spans dropped: the queue was full, or the file could not be written",
            ("reason",),
            registry=self.registry,
        )
        self.certificate_expiry = Gauge(
            "onelog_certificate_expiry_timestamp_seconds",
            "When a certificate expires, in seconds since 1970",
            ("certificate",),
            registry=self.registry,
        )
        self.ready = Gauge(
            "onelog_ready", "1 while this process serves clients", registry=self.registry
        )

    def watch(
        self, drivers: Mapping[int, ShardDriver], driver: Driver, transport: PeerTransport
    ) -> None:
        """Report these at each scrape, and time the syncs of the shards."""
        for number, each in drivers.items():
            self.watch_shard(number, each)
        self.registry.register(_Live(drivers, driver, transport))

    def watch_shard(self, number: int, driver: ShardDriver) -> None:
        """Time the syncs of a shard."""
        driver.syncs.observe = self.sync_seconds.labels(str(number)).observe

    def watch_ports(self, ports: Mapping[str, Acceptor[Any]]) -> None:
        """Report the connections of these ports at each scrape."""
        self.registry.register(_Ports(ports))

    async def page(self) -> bytes:
        """Return everything in Prometheus's text format, at most ``PAGE_S`` old."""
        if time.monotonic() - self._page_s < PAGE_S:
            return self._page
        if self._rendering is None:
            self._rendering = asyncio.create_task(self._render(), name="metrics")
            self._rendering.add_done_callback(self._rendered)
        # Who leaves does not take the page from those who wait for it as well.
        return await asyncio.shield(self._rendering)

    async def _render(self) -> bytes:
        begin_s = time.monotonic()
        parts = [await asyncio.to_thread(generate_latest, self._process)]
        async for family in self._collect():
            for at in range(0, max(1, len(family.samples)), SAMPLES_PER_TURN):
                parts.append(_write_slice(family, at))
                await asyncio.sleep(0)
        self._page, self._page_s = b"".join(parts), begin_s
        return self._page

    async def _collect(self) -> AsyncIterator[Metric]:
        for family in self.registry.collect():
            yield family
        for collect in self.sliced:
            async for family in collect():
                yield family

    def _rendered(self, task: "asyncio.Task[bytes]") -> None:
        self._rendering = None
        if not task.cancelled():
            task.exception()  # those who wait get it, if there are any


@dataclass(frozen=True, slots=True)
class _Slice:
    """Some values of a family, as a registry that has nothing else."""

    family: Metric

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's ``Collector``."""
        yield self.family


def _write_slice(family: Metric, at: int) -> bytes:
    """Return the values of a family from ``at`` on as text; the first have its help before them."""
    part = copy(family)
    part.samples = family.samples[at : at + SAMPLES_PER_TURN]
    text = bytes(generate_latest(_Slice(part)))
    if at:
        lines = text.splitlines(keepends=True)
        text = b"".join(each for each in lines if not each.startswith(b"# "))
    return text


class _Ports:
    """Collects what the ports of a process count."""

    def __init__(self, ports: Mapping[str, Acceptor[Any]]) -> None:
        self._ports = ports

    def describe(self) -> Iterable[Metric]:
        """Return nothing, as ``_Live`` does."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's ``Collector``."""
        open_ = GaugeMetricFamily("onelog_connections", "Open connections", labels=["port"])
        most = GaugeMetricFamily(
            "onelog_connections_max", "Connections that may be open", labels=["port"]
        )
        refused = CounterMetricFamily(
            "onelog_connections_refused",
            "Connections refused or closed by a limit",
            labels=["port", "reason"],
        )
        for name, port in self._ports.items():
            open_.add_metric([name], port.count)
            most.add_metric([name], port.limits.connections_max)
            for reason, count in port.refused.items():
                refused.add_metric([name, reason], count)
        yield from (open_, most, refused)


class Durations:
    """How long things took, by labels."""

    def __init__(self) -> None:
        # How many took up to each bound of ``_SECONDS``, or longer; the last is their sum.
        self._taken: dict[tuple[str, ...], list[float]] = {}

    def observe(self, labels: tuple[str, ...], seconds: float, count: int = 1) -> None:
        """Count things that took as long."""
        taken = self._taken.get(labels)
        if taken is None:
            taken = self._taken[labels] = [0.0] * (len(_SECONDS) + 2)
        taken[bisect_left(_SECONDS, seconds)] += count
        taken[-1] += seconds * count

    def fill(self, family: HistogramMetricFamily) -> HistogramMetricFamily:
        """Add the values to a family, and return it."""
        for labels, (*counts, total) in self._taken.items():
            buckets, count = [], 0.0
            for bound, each in zip(_BOUNDS, counts, strict=True):
                count += each
                buckets.append((bound, count))
            family.add_metric(labels, buckets, total)
        return family


class PipelineOperations:
    """Operations of pipeline messages: how long they took, by outcome, and their bytes.

    An operation takes as long as its message, which is answered as a whole.
    """

    def __init__(self) -> None:
        self.durations = Durations()
        self.request_bytes: Tally[tuple[str, str]] = Tally()

    def describe(self) -> Iterable[Metric]:
        """Return nothing, as ``_Live`` does."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's ``Collector``."""
        yield self.durations.fill(
            HistogramMetricFamily(
                "onelog_operation_seconds",
                "Duration of operations in pipeline messages; no reason: success",
                labels=["model", "operation", "reason"],
            )
        )
        sizes = CounterMetricFamily(
            "onelog_operation_request_bytes",
            "Bytes of operations in pipeline messages",
            labels=["model", "operation"],
        )
        for labels, size in self.request_bytes.items():
            sizes.add_metric(labels, size)
        yield sizes


class Rpcs:
    """How long calls took, by service, method and code, and the bytes of their requests."""

    def __init__(self) -> None:
        self.request_bytes = 0
        self._durations = Durations()

    def observe(self, service: str, method: str, code: int, seconds: float) -> None:
        """Count a call that has ended."""
        self._durations.observe((service, method, _CODE_NAMES[code]), seconds)

    def describe(self) -> Iterable[Metric]:
        """Return nothing, as ``_Live`` does."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's ``Collector``."""
        yield self._durations.fill(
            HistogramMetricFamily(
                "onelog_rpc_seconds",
                "Duration of calls; of a stream, until it ends",
                labels=["service", "method", "code"],
            )
        )
        yield CounterMetricFamily(
            "onelog_rpc_request_bytes", "Bytes of requests received", value=self.request_bytes
        )


class _Live:
    """Collects values that other objects keep, at each scrape."""

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
        late = CounterMetricFamily(
            "onelog_async_refused",
            "Entries of ASYNC writes that were refused after their answer",
            labels=["shard", "reason"],
        )
        for number, driver in self._drivers.items():
            for reason, count in driver.shard.requests.late_refusals.items():
                late.add_metric([str(number), reason], count)
        yield late
        yield from self._peers()
        yield GaugeMetricFamily(
            "onelog_tick_late_seconds_max",
            "Longest delay of a tick of the shards",
            value=self._driver.tick_late_s_max,
        )

    def _peers(self) -> Iterator[Metric]:
        peers = self._transport.status()
        connected = GaugeMetricFamily(
            "onelog_peer_connected", "1 while connected to a peer", labels=["node"]
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
            "Connections refused by the peer port",
            value=self._transport.refused_callers,
        )
