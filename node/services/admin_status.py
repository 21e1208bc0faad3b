"""How a node and its shards are, as messages."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from onelog.cluster.raft.member import CANDIDATE, FOLLOWER, LEADER
from onelog.node.context import NodeContext
from onelog.node.replica.driver import ShardDriver
from onelog.node.replica.holds import held_bytes, is_let_go, trouble
from onelog.node.replica.shard import NodeClock, Shard
from onelog.node.server.snapshot_metrics import age_s
from onelog.node.snapshots.past import first_as_of_index
from onelog.node.snapshots.taking import SnapshotReport
from onelog.projections.system.holds import Cause, Hold
from onelog.ual.segments.damaged import DamagedSegment
from onelog.ual.segments.sealed import SealedSegment
from onelog.v1 import admin_pb2, common_pb2, log_pb2

_ROLES = {
    FOLLOWER: admin_pb2.ROLE_FOLLOWER,
    CANDIDATE: admin_pb2.ROLE_CANDIDATE,
    LEADER: admin_pb2.ROLE_LEADER,
}
_CAUSES = {
    None: admin_pb2.HOLD_CAUSE_UNSPECIFIED,
    Cause.BYTES: admin_pb2.HOLD_CAUSE_BYTES,
    Cause.TIME: admin_pb2.HOLD_CAUSE_TIME,
    Cause.DISK: admin_pb2.HOLD_CAUSE_DISK,
}


class FirstSeen:
    """When each of the things that are there was first seen, by the wall clock.

    It is asked when somebody asks for the status, so that is also who sees. What is gone is
    forgotten: if it comes again, it is new.
    """

    def __init__(self, clock: NodeClock) -> None:
        self._clock = clock
        self._since_ns: dict[Hashable, int] = {}

    def update(self, present: Iterable[Hashable]) -> Mapping[Hashable, int]:
        """Return for each of the things that are there since when they are."""
        now_ns = max(self._clock.wall_ns(), 0)
        self._since_ns = {each: self._since_ns.get(each, now_ns) for each in present}
        return self._since_ns


def node_status(context: NodeContext, seen: FirstSeen) -> admin_pb2.GetStatusResponse:
    """Return how the node that answers is; ``seen`` remembers its alarms."""
    status = admin_pb2.GetStatusResponse(
        cluster_id=str(context.topology.cluster_id),
        node_id=str(context.node_id),
        node_name=context.node_name,
        version=_version(),
        uptime_ms=int((context.clock.now_s() - context.started_s) * 1000),
    )
    alarms: list[AlarmFound] = []
    for number, driver in sorted(context.drivers.items()):
        report = context.snapshots.report(number)
        put_shard(status.shards.add(), number, driver.shard)
        put_snapshots(status.shards[-1].snapshots, driver, report, context.clock)
        alarms += _alarms_of(number, driver.shard, report)
    put_alarms(status, alarms, seen)
    if context.transport is not None:
        for node_id, peer in context.transport.status().items():
            status.peers.add(
                node_id=str(node_id),
                address=peer.address,
                connected=peer.is_connected,
                last_error=peer.last_error,
                sent_bytes=peer.traffic.sent_bytes,
                received_bytes=peer.traffic.received_bytes,
            )
    return status


def put_shard(target: admin_pb2.ShardStatus, number: int, shard: Shard) -> None:
    """Show one replica."""
    member, log, router = shard.member, shard.log, shard.router
    target.shard = number
    target.role = _ROLES[member.state]
    if member.self_id in member.membership.learners:
        target.role = admin_pb2.ROLE_LEARNER
    target.term = member.term
    target.leader_id = "" if member.leader_id is None else str(member.leader_id)
    target.first_index = log.first_index
    target.last_index = log.last_index
    target.durable_index = log.durable_index
    target.commit_index = log.commit_index
    target.applied_index = log.applied_index
    newest = shard.snapshots.newest
    target.snapshot_index = 0 if newest is None else newest.index
    target.log_time_ns = router.log_time_ns
    if member.state == LEADER:
        sending = shard.shipping.status.sending
        for peer_id in member.membership.members:
            if peer_id != member.self_id:
                behind = member.journal.last - member.match_of(peer_id)
                lag = target.lags.add(node_id=str(peer_id), proposals=max(0, behind))
                if peer_id in sending:
                    lag.shipped_bytes = sending[peer_id].done_bytes
                    lag.shipping_bytes = sending[peer_id].total_bytes
    target.counts.update(router.counts())
    for owner, sizes in router.memory().items():
        name = log_pb2.Owner.Name(owner).removeprefix("OWNER_").lower()
        target.memory.update({f"{name}.{kind}": size for kind, size in sizes.items()})
    for hold in shard.projections.system.holds:
        put_hold(target.holds.add(), number, shard, hold)


def put_hold(target: admin_pb2.Hold, number: int, shard: Shard, hold: Hold) -> None:
    """Show a hold as one replica sees it."""
    now_ns = max(shard.log_time.estimate_ns(), shard.router.log_time_ns)
    target.name = hold.name
    target.shard = number
    target.index = hold.index
    target.kept_index = max(hold.index, shard.log.first_index)
    target.bytes = held_bytes(shard, hold)
    target.bytes_max = hold.bytes_max
    target.age_ms = max(0, now_ns - hold.set_ns) // 1_000_000
    target.ttl_ms = hold.ttl_ns // 1_000_000
    target.expires_ns = hold.expires_ns
    target.cause = _CAUSES[hold.cause]
    target.broken_index = hold.broken_index
    target.broken_ns = hold.broken_ns
    target.created_index = hold.created_index


def put_snapshots(
    target: admin_pb2.SnapshotStatus, driver: ShardDriver, report: SnapshotReport, clock: NodeClock
) -> None:
    """Show how it goes with the snapshots of a replica."""
    newest = driver.shard.snapshots.newest
    if newest is not None:
        target.size = newest.size
        target.age_ms = int(age_s(newest, clock) * 1000)
    target.first_as_of_index = first_as_of_index(driver.shard)
    target.taken = report.taken
    target.build_ms = int(report.seconds * 1000)
    target.failures = report.failures
    target.failure = report.failure
    target.trimmed_segments = report.trimmed_segments


class AlarmFound(NamedTuple):
    """What is wrong with a shard, and with what of it, where there may be several."""

    reason: str
    shard: int
    subject: str
    message: str


def put_alarms(
    status: admin_pb2.GetStatusResponse, alarms: Sequence[AlarmFound], seen: FirstSeen
) -> None:
    """Show what needs attention, and since when."""
    since_ns = seen.update(each[:3] for each in alarms)  # a message may change, the alarm stays
    for each in alarms:
        status.alarms.add(
            reason=each.reason,
            shard=each.shard,
            message=each.message,
            since_ns=since_ns[each[:3]],
        )


def _alarms_of(number: int, shard: Shard, report: SnapshotReport) -> Iterator[AlarmFound]:
    """Yield what of a shard needs attention."""
    if shard.failure is not None:
        yield AlarmFound("REPLICA_STOPPED", number, "", str(shard.failure))
    if shard.log_time.is_alarming:
        words = "the wall clock is far from log time and is not followed"
        yield AlarmFound("CLOCK_JUMPED", number, "", words)
    for damage in shard.shipping.mending.damages.values():
        yield AlarmFound("SEGMENT_DAMAGED", number, damage.path, f"{damage.path}: {damage.rule}")
    alarm = shard.comparison.status().alarm
    if alarm is not None:
        yield AlarmFound("STATE_DIVERGED", number, "", str(alarm))
    if report.mismatch:
        yield AlarmFound("STATE_MISMATCH", number, "", report.mismatch)
    if report.damaged:
        yield AlarmFound("SNAPSHOT_DAMAGED", number, "", report.damaged)
    for hold in shard.projections.system.holds:
        if words := trouble(shard, hold):
            reason = "HOLD_NOT_KEPT" if is_let_go(shard, hold) else "HOLD_BROKEN"
            yield AlarmFound(reason, number, hold.name, words)


def log_ranges(driver: ShardDriver) -> admin_pb2.ListLogRangesResponse:
    """Show which indexes a replica holds, and where."""
    log = driver.shard.log
    answer = admin_pb2.ListLogRangesResponse(commit_index=log.commit_index)
    for cold in log.manifest.cold:
        answer.ranges.add(
            first_index=cold.first_index,
            last_index=cold.last_index,
            size=cold.size,
            tier=common_pb2.TIER_COLD,
        )
    for segment in log.segments.segments:
        if not segment.entry_count or isinstance(segment, DamagedSegment):
            continue
        size = segment.size_bytes if isinstance(segment, SealedSegment) else segment.end
        answer.ranges.add(
            first_index=segment.first_index,
            last_index=segment.last_index,
            first_timestamp_ns=segment.first_timestamp_ns,
            last_timestamp_ns=segment.last_timestamp_ns,
            size=size,
            tier=common_pb2.TIER_WARM,
            entry_count=segment.entry_count,
        )
    return answer


def _version() -> str:
    try:
        return version("onelogdb")
    except PackageNotFoundError:  # run from a source tree
        return "0"
