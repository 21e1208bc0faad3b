"""Metrics of what a node's shards hold: messages, groups, series, sessions, watchers, memory.

There may be tens of thousands of queues and streams, so they are visited in slices: after
``OBJECTS_PER_TURN`` of them other work has a turn of the loop. What changes in between is counted
as it is when it is visited.

Totals are by shard. The deepest queues and the groups that are furthest behind have values of their
own, ``NAMED_MAX`` of each in a shard, so the page stays small however many there are.

Every replica reports its own state. To add up a cluster, take the values of leaders
(``onelog_is_leader``), or the maximum by shard.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from heapq import nlargest

from prometheus_client.core import GaugeMetricFamily, Metric

from onelog.node.context import NodeContext
from onelog.node.replica.driver import ShardDriver
from onelog.projections.queue.store import QueueState
from onelog.projections.queue.table import DELAYED, LEASED, READY
from onelog.projections.stream.groups import Group
from onelog.projections.stream.state import StreamState

OBJECTS_PER_TURN = 100
NAMED_MAX = 100
_STATES = {READY: "ready", DELAYED: "delayed", LEASED: "leased"}


class ContentMetrics:
    """Collects them; see the module's text."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._visited = 0

    async def collect(self) -> AsyncIterator[Metric]:
        """Yield the metrics of all shards of this process."""
        families = _Families()
        for number, driver in list(self._context.drivers.items()):
            shard = str(number)
            memory: Counter[tuple[str, str]] = Counter()
            self._add_totals(families, shard, driver, memory)
            await self._add_queues(families, shard, driver, memory)
            await self._add_streams(families, shard, driver, memory)
            for (model, kind), size in sorted(memory.items()):
                families.memory.add_metric([shard, model, kind], size)
        for family in families:
            yield family

    async def _pause(self) -> None:
        self._visited += 1
        if self._visited % OBJECTS_PER_TURN == 0:
            await asyncio.sleep(0)

    def _add_totals(
        self,
        families: "_Families",
        shard: str,
        driver: ShardDriver,
        memory: Counter[tuple[str, str]],
    ) -> None:
        projections = driver.shard.projections
        for model, sizes in (
            ("system", projections.system.memory()),
            ("kv", projections.kv.memory()),
            ("timeseries", projections.series.memory()),
            ("log", {"ring": driver.shard.log.ring.size}),
        ):
            for kind, size in sizes.items():
                memory[model, kind] += size
        families.keys.add_metric([shard], projections.kv.counts()["keys"])
        families.series.add_metric([shard], projections.series.counts()["series"])
        families.sessions.add_metric([shard], projections.system.counts()["sessions"])
        edge = self._context.edge
        source = None if edge is None else edge.sources.get(driver.number)
        families.watchers.add_metric([shard], 0 if source is None else source.feed_count)

    async def _add_queues(
        self,
        families: "_Families",
        shard: str,
        driver: ShardDriver,
        memory: Counter[tuple[str, str]],
    ) -> None:
        depth: Counter[str] = Counter()
        oldest: list[tuple[int, QueueState]] = []
        log_time_ns = driver.shard.router.log_time_ns
        queues = list(driver.shard.projections.queue.all_queues())
        for queue in queues:
            for state, name in _STATES.items():
                depth[name] += queue.counts[state]
            for kind, size in queue.memory().items():
                memory["queue", kind] += size
            since_ns = queue.oldest_ready_ns()
            if since_ns is not None:
                oldest.append((max(0, log_time_ns - since_ns), queue))
            await self._pause()
        for name in _STATES.values():
            families.messages.add_metric([shard, name], depth[name])
        age_ns = max((age_ns for age_ns, _ in oldest), default=0)
        families.oldest.add_metric([shard], age_ns / 1e9)
        ages = {queue.id: age_ns for age_ns, queue in oldest}
        for queue in nlargest(NAMED_MAX, queues, key=_count_messages):
            labels = [shard, queue.namespace, queue.name]
            for state, name in _STATES.items():
                families.queue_messages.add_metric([*labels, name], queue.counts[state])
            families.queue_oldest.add_metric(labels, ages.get(queue.id, 0) / 1e9)

    async def _add_streams(
        self,
        families: "_Families",
        shard: str,
        driver: ShardDriver,
        memory: Counter[tuple[str, str]],
    ) -> None:
        records = 0
        lags: list[tuple[int, int, StreamState, str, Group]] = []
        for stream in list(driver.shard.projections.stream.all_streams()):
            records += sum(partition.kept[0] for partition in stream.partitions)
            for kind, size in stream.memory().items():
                memory["stream", kind] += size
            for name, group in stream.groups.items():
                parts = zip(stream.partitions, group.committed, strict=True)
                lag = sum(partition.estimate_after(cursor) for partition, cursor in parts)
                lags.append((lag, len(lags), stream, name, group))
            await self._pause()
        families.records.add_metric([shard], records)
        families.lag.add_metric([shard], max((each[0] for each in lags), default=0))
        for lag, _, stream, name, group in nlargest(NAMED_MAX, lags):
            labels = [shard, stream.namespace, stream.name, name]
            families.group_lag.add_metric(labels, lag)
            families.group_pending.add_metric(labels, len(group.pending))


def _count_messages(queue: QueueState) -> int:
    return sum(queue.counts[state] for state in _STATES)


class _Families:
    """The families of one page, empty at first."""

    def __init__(self) -> None:
        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"onelog_{name}", text, labels=["shard", *labels])

        self.keys = gauge("keys", "Keys")
        self.series = gauge("series", "Time series")
        self.sessions = gauge("sessions", "Open sessions")
        self.watchers = gauge("watchers", "Watches and tails served by this process")
        self.messages = gauge("messages", "Messages in all queues, by state", "state")
        self.oldest = gauge(
            "oldest_message_seconds", "Longest time that a ready message has waited"
        )
        self.records = gauge("stream_records", "Records kept by all streams, at most")
        self.lag = gauge(
            "group_lag_records_max", "Records behind the slowest consumer group, about"
        )
        self.memory = gauge("memory_bytes", "Estimated memory", "model", "kind")
        self.queue_messages = gauge(
            "queue_messages", "Messages of the deepest queues", "namespace", "queue", "state"
        )
        self.queue_oldest = gauge(
            "queue_oldest_seconds",
            "Longest wait of a ready message in the deepest queues",
            "namespace",
            "queue",
        )
        self.group_lag = gauge(
            "group_lag_records",
            "Records behind of the slowest consumer groups, about",
            "namespace",
            "stream",
            "group",
        )
        self.group_pending = gauge(
            "group_pending_records",
            "Unacknowledged records of the slowest consumer groups",
            "namespace",
            "stream",
            "group",
        )

    def __iter__(self) -> Iterator[Metric]:
        return iter(vars(self).values())
