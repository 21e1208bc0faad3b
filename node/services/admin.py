"""The Admin service: what operators ask.

Three kinds of calls:

* About the node that is called: status, snapshot, state hash, log.
* About one shard, at its leader: transfer of the leadership.
* About all shards, each at its leader: members, namespaces, holds.

There is no transaction over shards, so a call of the third kind may fail with the change made in
some of them. Repeating it finishes the work: a shard where the change is already made does not
refuse it. If that is so in all shards, a namespace or a hold that is made or ended again is refused
(``every_shard``), and a change of members succeeds.

A new hold is tried on all shards before it is set in the first: an index that one of them lacks
refuses the call before anything is written. Moving a hold needs no trial, because repeating a move
is harmless. What a hold is to keep stays while its entry is being committed
(node/replica/retention.py).

A page of ``ReadLog`` is made on a thread. It has at least one entry if there is one to send, at
most ``READ_ENTRIES_MAX``, and is never larger than a message may be. The expanded payload counts:
the log stores payloads compressed, and a megabyte of zeros takes a few bytes there.
"""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple
from uuid import UUID

from onelog.cluster.errors import ClusterError
from onelog.cluster.raft.member import CANDIDATE, FOLLOWER, LEADER
from onelog.cluster.raft.membership import Membership
from onelog.cluster.raft.state_comparison import ComparisonStatus
from onelog.errors import AlreadyExists, FailedPrecondition, NotFound, OnelogError
from onelog.node.context import NodeContext
from onelog.node.edge.calls import Call, Elsewhere, gather
from onelog.node.edge.messages import found
from onelog.node.edge.operation import applied, fill_header
from onelog.node.edge.shards import REPAIR_S_MAX, Edge, invalid, parse_namespace
from onelog.node.membership.balance import HOLD_S, transfer
from onelog.node.public_errors import (
    answer_too_large,
    damaged,
    error_of_bounds,
    error_of_reason,
    error_of_setting,
)
from onelog.node.replica.driver import ShardDriver, own_task
from onelog.node.replica.repair import Damage
from onelog.node.replica.retention import (
    BYTES_MAX_DEFAULT,
    TTL_MS_DEFAULT,
    held_bytes,
    is_let_go,
    is_short,
    trouble,
)
from onelog.node.replica.shard import NodeClock, Shard
from onelog.node.replica.status import find_alarms
from onelog.node.snapshots.past import first_as_of_index, first_as_of_ns
from onelog.node.snapshots.taking import SnapshotReport, age_s
from onelog.projections.limits import HOLD_NAME_SIZE_MAX, TTL_NS_MAX
from onelog.projections.namespaces import Limits
from onelog.projections.queue.reads import QueueReads
from onelog.projections.reasons import Reason
from onelog.projections.system.commands import (
    Command,
    HoldRelease,
    HoldSet,
    NamespaceConfigure,
    NamespaceCreate,
    NamespaceDelete,
    encode_command,
)
from onelog.projections.system.holds import Cause, Hold
from onelog.snapshot.store import RESERVE_BYTES
from onelog.ual.entry import Entry, Unreadable
from onelog.ual.errors import DiskFull, IndexDropped, IndexInFuture, PayloadTooLarge
from onelog.ual.log import Log
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from onelog.v1 import admin_pb2, common_pb2, log_pb2

READ_ENTRIES_MAX = 1_000
READ_BYTES_MAX = 1 << 20  # a single entry may be larger
# The numbers of an entry and of its page, encoded, at most.
ENTRY_OVERHEAD_MAX = 128


def read_page(
    log: Log,
    shard: int,
    first_index: int,
    last_index: int,
    with_voids: bool,  # noqa: FBT001 - called by an executor
    owners: frozenset[int],
    message_bytes_max: int,
) -> tuple[admin_pb2.ReadLogResponse, Unreadable | None]:
    """Return the next entries, and up to where that is all: before ``first_index`` if nothing is.

    A page ends before what cannot be read, which is returned as well if the page would begin with
    it. Raises TooLarge if the first entry alone is above what a message may be.
    """
    end = min(last_index, log.commit_index if with_voids else log.applied_index)
    page = admin_pb2.ReadLogResponse(last_index=end)
    left = min(READ_BYTES_MAX, message_bytes_max - ENTRY_OVERHEAD_MAX)
    for entry in log.scan_readable(first_index, end, skip_voids=not with_voids):
        if isinstance(entry, Unreadable):
            page.last_index = entry.first_index - 1
            return page, None if page.entries else entry
        if owners and entry.owner not in owners:
            continue
        size_max = left if page.entries else message_bytes_max - ENTRY_OVERHEAD_MAX
        try:
            payload = entry.plain_payload(size_max)  # what does not fit is not even expanded
            size = len(payload)
        except PayloadTooLarge as error:
            size = error.size
        if size > size_max:
            if not page.entries:
                raise _entry_too_large(shard, entry, size, message_bytes_max)
            page.last_index = entry.index - 1
            break
        _fill_entry(page.entries.add(), shard, entry, payload)
        left -= size + ENTRY_OVERHEAD_MAX
        if len(page.entries) >= READ_ENTRIES_MAX or left <= 0:
            page.last_index = entry.index
            break
    return page, None


def _fill_entry(target: log_pb2.Entry, shard: int, entry: Entry, payload: bytes) -> None:
    target.shard = shard
    target.index = entry.index
    target.term = entry.term
    target.timestamp_ns = entry.timestamp_ns
    target.entry_type = entry.entry_type
    target.group_left = entry.group_left
    target.payload = payload


def _show_damage(damage: Unreadable, shard: int, *, passes: bool) -> admin_pb2.ReadLogResponse:
    """Return a page that shows what cannot be read; raise if the caller does not want that."""
    if not passes:
        raise damaged(damage)
    page = admin_pb2.ReadLogResponse(last_index=damage.last_index)
    page.entries.add(shard=shard, index=damage.first_index, unreadable_through=damage.last_index)
    return page


def _entry_too_large(shard: int, entry: Entry, size: int, limit: int) -> Exception:
    return answer_too_large(
        f"entry {entry.index} of shard {shard} has {size} bytes, and a message {limit}; continue "
        "behind it, or raise limits.message_bytes_max",
        limit,
        index=entry.index,
        size=size,
    )


# Admin status

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

    Each request for the status updates it. What is gone is forgotten: if it comes again, it is
    new.
    """

    def __init__(self, clock: NodeClock) -> None:
        self._clock = clock
        self._since_ns: dict[Hashable, int] = {}

    def update(self, present: Iterable[Hashable]) -> Mapping[Hashable, int]:
        """Return for each of the things that are there since when they are."""
        now_ns = max(self._clock.wall_ns(), 0)
        self._since_ns = {each: self._since_ns.get(each, now_ns) for each in present}
        return self._since_ns


def fill_states(
    target: admin_pb2.StateComparison, status: ComparisonStatus, names: Mapping[UUID, str]
) -> None:
    """Show how the states of replicas compare; ``names`` are those of nodes."""
    target.compared_index = status.marked_index
    target.agreed_index = status.agreed_index
    target.comparisons = status.comparisons
    alarm = status.alarm
    if alarm is None:
        return
    target.difference.index = alarm.index
    target.difference.projections.extend(alarm.owners)
    target.difference.has_majority = alarm.wrong is not None
    for row in alarm.rows:
        hashes = dict(row.hashes)
        target.difference.replicas.add(
            node_id=str(row.node_id),
            node_name=names.get(row.node_id, ""),
            hashes=[hashes.get(owner, 0) for owner in alarm.owners],
            has_stopped=row.node_id in (alarm.wrong or ()),
        )


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
    names = {each.node_id: each.name for each in context.topology.nodes()}
    for number, driver in sorted(context.drivers.items()):
        report = context.snapshots.report(number)
        fill_shard(status.shards.add(), number, driver.shard)
        fill_snapshots(status.shards[-1].snapshots, driver, report, context.clock)
        fill_states(status.shards[-1].states, driver.shard.comparison.status(), names)
        alarms += _find_alarms(number, driver.shard, report, names)
    for number, repair in context.repairs.items():
        for each in repair.repair.damages.values():
            text = f"the shard starts when this is repaired: {each.describe()}"
            alarms.append(AlarmFound("SEGMENT_DAMAGED", number, each.path, text))
    if context.credentials is not None and context.topology.worker == 0:
        for alarm in context.credentials.alarms():
            alarms.append(AlarmFound(alarm.reason, 0, alarm.setting, alarm.message))
    fill_alarms(status, alarms, seen)
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


def fill_shard(target: admin_pb2.ShardStatus, number: int, shard: Shard) -> None:
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
                behind = member.journal.last - member.find_match(peer_id)
                lag = target.lags.add(node_id=str(peer_id), proposals=max(0, behind))
                if peer_id in sending:
                    lag.shipped_bytes = sending[peer_id].done_bytes
                    lag.shipping_bytes = sending[peer_id].total_bytes
    target.counts.update(router.counts())
    for owner, sizes in router.memory().items():
        name = log_pb2.Owner.Name(owner).removeprefix("OWNER_").lower()
        target.memory.update({f"{name}.{kind}": size for kind, size in sizes.items()})
    for hold in shard.projections.system.holds:
        fill_hold(target.holds.add(), number, shard, hold)


def fill_hold(target: admin_pb2.Hold, number: int, shard: Shard, hold: Hold) -> None:
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


def fill_snapshots(
    target: admin_pb2.SnapshotStatus, driver: ShardDriver, report: SnapshotReport, clock: NodeClock
) -> None:
    """Show how it goes with the snapshots of a replica."""
    records, newest = driver.shard.snapshots.records, driver.shard.snapshots.newest
    if newest is not None:
        target.size = newest.size
        target.age_ms = int(age_s(newest, clock) * 1000)
    target.first_as_of_index = first_as_of_index(driver.shard)
    target.first_as_of_ns = first_as_of_ns(driver.shard)
    target.kept = len(records)
    target.kept_bytes = sum(each.size for each in records)
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


def fill_alarms(
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


def _find_alarms(
    number: int, shard: Shard, report: SnapshotReport, names: Mapping[UUID, str]
) -> Iterator[AlarmFound]:
    """Yield what of a shard needs attention."""
    for each in find_alarms(shard, names):
        yield AlarmFound(each.reason, number, each.subject, each.message)
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


@cache
def _version() -> str:
    try:
        return version("onelogdb")
    except PackageNotFoundError:  # run from a source tree
        return "0"


MESSAGES_SHOWN_MAX = 1_000  # of one damaged segment


def fill_damage(
    target: admin_pb2.DamagedSegment, number: int, damage: Damage, queues: QueueReads | None
) -> None:
    """Show a damaged segment, and the messages whose bodies cannot be read because of it.

    ``queues``: None for a shard that has not started.
    """
    target.shard = number
    target.path, target.rule, target.found_by = damage.path, damage.rule, damage.found_by
    target.first_index, target.last_index = damage.first_index, damage.last_index
    target.no_copy = damage.is_refused
    for first_index, last_index in damage.unreadable:
        target.unreadable.add(first_index=first_index, last_index=last_index)
        for queue in () if queues is None else queues.all_queues():
            for block, at in queue.find_within(first_index, last_index):
                if len(target.messages) == MESSAGES_SHOWN_MAX:
                    return
                target.messages.add(
                    namespace=queue.namespace, queue=queue.name, message_id=block.ids[at]
                )


# Members

# A learner that lacks more proposals than this would hold up commits as a voter.
LAG_PROPOSALS_MAX = 64


class Members:
    """Changes the members of shards."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def add(
        self, shard: int, node_id: UUID, name: str, address: str, deadline_s: float
    ) -> None:
        """Make a node a learner of a shard."""
        driver = await self._leader(shard, deadline_s)
        membership = driver.shard.member.membership
        if node_id not in membership.members:
            membership = _with_newcomer(membership, node_id, name, address)
            await self._change(driver, membership, deadline_s)

    async def promote(self, shard: int, node_id: UUID, deadline_s: float) -> None:
        """Make a learner that has caught up a voter."""
        driver = await self._leader(shard, deadline_s)
        member = driver.shard.member
        if node_id in member.membership.voters:
            return
        if node_id not in member.membership.learners:
            raise NotFound(f"{node_id} is not a learner of shard {shard}", reason="MEMBER_UNKNOWN")
        behind = member.journal.last - member.find_match(node_id)
        if behind > LAG_PROPOSALS_MAX:
            raise FailedPrecondition(
                f"{node_id} lacks {behind} proposals of shard {shard}; wait until it has caught up",
                reason="LEARNER_BEHIND",
                metadata={"shard": str(shard), "proposals": str(behind)},
                retry_after_s=1.0,
            )
        await self._change(driver, member.membership.with_promoted(node_id), deadline_s)

    async def remove(self, shard: int, node_id: UUID, deadline_s: float) -> None:
        """Take a node out of a shard; a leader hands over first, and its successor does it."""
        driver = await self._leader(shard, deadline_s)
        member = driver.shard.member
        if node_id not in member.membership.members:
            return
        if node_id == member.self_id and len(member.membership.voters) > 1:
            await self._hand_over(shard, None, deadline_s, hold_s=0.0)
            raise Elsewhere(shard, self._edge.context.topology.leader_endpoint(shard))
        await self._change(driver, member.membership.without(node_id), deadline_s)

    async def transfer(self, shard: int, target: UUID | None, deadline_s: float) -> UUID:
        """Hand the leadership of a shard over, to stay there; return the new leader."""
        return await self._hand_over(shard, target, deadline_s, hold_s=HOLD_S)

    async def _hand_over(
        self, shard: int, target: UUID | None, deadline_s: float, *, hold_s: float
    ) -> UUID:
        driver = self._edge.leading(shard)
        member = driver.shard.member
        if target == member.self_id:
            balance = self._edge.context.balance
            if balance is not None:
                balance.hold(shard, hold_s)
            return target
        others = [each for each in member.membership.voters if each != member.self_id]
        if target is None:
            if not others:
                message = f"no other member of shard {shard} can vote, so none can lead it"
                raise FailedPrecondition(message, reason="TRANSFER_FAILED")
            target = max(others, key=member.find_match)
        elif target not in others:
            is_learner = target in member.membership.learners
            what = "a learner; promote it first" if is_learner else "no member"
            raise FailedPrecondition(
                f"{target} cannot lead shard {shard}: it is {what}", reason="TRANSFER_FAILED"
            )
        left_s = max(0.0, deadline_s - self._edge.context.clock.now_s())
        await own_task()
        async with asyncio.timeout(left_s):
            error = await transfer(driver, target, hold_s=hold_s)
            if error is not None:
                raise self._edge.failure(shard, error)
            while member.leader_id in (None, member.self_id):  # noqa: ASYNC110 - it sets no event
                await asyncio.sleep(0.01)
        found = member.leader_id
        assert found is not None
        return found

    async def _leader(self, shard: int, deadline_s: float) -> ShardDriver:
        """Return who leads a shard here, as soon as it can change the members.

        One that was elected just now has to commit something first, which a read waits for.
        """
        driver = self._edge.leading(shard)
        if not driver.shard.member.has_applied_noop:
            error = await driver.read(deadline_s)
            if error is not None:
                raise self._edge.failure(shard, error)
        return driver

    async def _change(self, driver: ShardDriver, membership: Membership, deadline_s: float) -> None:
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def finished(outcome: object) -> None:
            if not done.done():
                done.set_result(outcome)

        driver.shard.change_membership(membership, deadline_s, finished)
        outcome = await done
        if isinstance(outcome, ClusterError):
            raise self._edge.failure(driver.number, outcome)


def _with_newcomer(membership: Membership, node_id: UUID, name: str, address: str) -> Membership:
    """Return it with a learner. Name and address are for those who have not met the node yet."""
    return membership.with_learner(node_id).at({node_id: address}).named({node_id: name})


# Every shard


async def every_shard(
    edge: Edge,
    request: Any,
    call: Call,
    part: Callable[[int], Awaitable[Any]],
    done: type[OnelogError] | None,
) -> dict[int, Any]:
    """Return by shard what its part came to: an answer, or the refusal that says it is so already.

    ``done`` is the class of that refusal. If all say so there was nothing to do, and that is
    raised. Asked for one shard by another node, it is only that one.
    """

    async def outcome(shard: int) -> Any:
        try:
            (answer,) = await edge.parts(request, call, (shard,), part)
        except OnelogError as error:
            if done is not None and isinstance(error, done):
                return error
            raise
        return answer

    shards = range(edge.shards) if call.only_shard is None else (call.only_shard,)
    outcomes = await gather(*map(outcome, shards))
    refused = [each for each in outcomes if isinstance(each, OnelogError)]
    if len(refused) == len(outcomes):
        raise refused[0]
    return dict(zip(shards, outcomes, strict=True))


# Admin holds

_NO_OPTIONS = common_pb2.WriteOptions()
_READ = common_pb2.ReadOptions()
_NS_PER_MS = 1_000_000


class AdminHolds:
    """See the module's text and ``admin.proto``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def set_hold(
        self, request: admin_pb2.SetHoldRequest, call: Call
    ) -> admin_pb2.SetHoldResponse:
        """Create a hold in every shard, or move it."""
        self._check(request)
        is_whole = call.only_shard is None and self._edge.shards > 1
        if is_whole and not request.move and not request.validate_only:
            trial = admin_pb2.SetHoldRequest()
            trial.CopyFrom(request)
            trial.validate_only = True
            await self._set(trial, call)
        return await self._set(request, call)

    async def list_holds(
        self, request: admin_pb2.ListHoldsRequest, call: Call
    ) -> admin_pb2.ListHoldsResponse:
        """List the holds of every shard, by name."""

        async def part(shard: int) -> admin_pb2.ListHoldsResponse:
            view = await self._edge.read(shard, _READ, call)
            replica = self._edge.leading(shard).shard
            answer = admin_pb2.ListHoldsResponse()
            for hold in view.projections.system.holds:
                fill_hold(answer.holds.add(), shard, replica, hold)
            return answer

        found: list[admin_pb2.Hold] = []
        for each in await self._edge.parts(request, call, range(self._edge.shards), part):
            found.extend(each.holds)
        found.sort(key=lambda hold: (hold.name, hold.shard))
        return admin_pb2.ListHoldsResponse(holds=found)

    async def release_hold(
        self, request: admin_pb2.ReleaseHoldRequest, call: Call
    ) -> admin_pb2.ReleaseHoldResponse:
        """End a hold in every shard."""
        drafts = [encode_command(HoldRelease(_check_name(request.name)))]

        async def part(shard: int) -> admin_pb2.ReleaseHoldResponse:
            written = await self._edge.write(shard, drafts, _NO_OPTIONS, call)
            applied(written.results[0])
            one = admin_pb2.ReleaseHoldResponse()
            fill_header(one.headers.add(), shard, written.first_index, written.results[0])
            return one

        answer = admin_pb2.ReleaseHoldResponse()
        outcomes = await every_shard(self._edge, request, call, part, NotFound)
        for each in outcomes.values():
            if not isinstance(each, OnelogError):
                answer.headers.extend(each.headers)
        return answer

    async def _set(
        self, request: admin_pb2.SetHoldRequest, call: Call
    ) -> admin_pb2.SetHoldResponse:
        async def part(shard: int) -> admin_pb2.SetHoldResponse:
            return await self._set_in(shard, request, call)

        done = None if request.move else AlreadyExists
        answer = admin_pb2.SetHoldResponse()
        outcomes = await every_shard(self._edge, request, call, part, done)
        for shard, each in outcomes.items():
            if isinstance(each, OnelogError):
                answer.indexes[shard] = int(each.metadata["detail"])
            else:
                answer.headers.extend(each.headers)
                answer.indexes.update(each.indexes)
        return answer

    async def _set_in(
        self, shard: int, request: admin_pb2.SetHoldRequest, call: Call
    ) -> admin_pb2.SetHoldResponse:
        edge, answer = self._edge, admin_pb2.SetHoldResponse()
        if request.validate_only:
            await edge.read(shard, _READ, call)  # so that what is judged is what is so
        replica = edge.leading(shard).shard
        command = _make_command(shard, request, replica)
        if request.validate_only:
            answer.indexes[shard] = _judged(command, replica)
            return answer
        log = replica.log
        with edge.context.holding.asking(shard, command.index or log.last_index + 1):
            written = await edge.write(shard, [encode_command(command)], _NO_OPTIONS, call)
        answer.indexes[shard] = applied(written.results[0]).number
        fill_header(answer.headers.add(), shard, written.first_index, written.results[0])
        return answer

    def _check(self, request: admin_pb2.SetHoldRequest) -> None:
        """Refuse what no shard could take."""
        _check_name(request.name)
        for shard, index in request.indexes.items():
            self._edge.check_shard(shard)
            if not index:
                message = f"the index of shard {shard} is 0; the first entry of a log has index 1"
                raise invalid("HOLD_INDEX_INVALID", message)
        if request.move and request.from_start:
            raise invalid(
                "FROM_START_INVALID", "from_start is for a new hold; to move one, give an index"
            )
        ttl_ns = request.ttl_ms * _NS_PER_MS
        if ttl_ns > TTL_NS_MAX:
            most = TTL_NS_MAX // _NS_PER_MS
            raise error_of_bounds(Reason.HOLD_LIMIT_INVALID, "ttl_ms", request.ttl_ms, most)


def _make_command(shard: int, request: admin_pb2.SetHoldRequest, replica: Shard) -> HoldSet:
    """Return the command for a shard; refuse what its log or its disk does not allow."""
    log, index = replica.log, request.indexes.get(shard, 0)
    ttl_ms, bytes_max = request.ttl_ms, request.bytes_max
    if index > log.last_index + 1:
        raise IndexInFuture(index, log.first_index, log.last_index)
    if not request.move:
        # A hold that moves continues where its reader is: that may be a replica that keeps more.
        if index and index < log.first_index:
            raise IndexDropped(index, log.first_index, log.commit_index)
        if is_short(replica):
            raise DiskFull(
                f"shard {shard}: a hold needs a disk with {RESERVE_BYTES} bytes more than "
                "log.free_bytes_min; free some space"
            )
        if request.from_start:
            index = index or log.first_index
        ttl_ms, bytes_max = ttl_ms or TTL_MS_DEFAULT, bytes_max or BYTES_MAX_DEFAULT
    return HoldSet(request.name, request.move, index, ttl_ms * _NS_PER_MS, bytes_max)


def _judged(command: HoldSet, replica: Shard) -> int:
    """Return the index that a hold would keep; refuse what apply would refuse now."""
    holds, at = replica.projections.system.holds, (replica.log.last_index + 1, 0)
    judge = holds.moved if command.is_move else holds.created
    return found(judge(command.name, command.index, command.ttl_ns, command.bytes_max, at)).index


def _check_name(name: str) -> str:
    size = len(name.encode())
    if not 1 <= size <= HOLD_NAME_SIZE_MAX:
        raise error_of_reason(Reason.HOLD_NAME_INVALID, size)
    if not name.isprintable():
        raise invalid(
            "HOLD_NAME_INVALID", f"the name {name!r:.70} has characters that cannot be shown"
        )
    return name


# Admin

INDEX_MAX = 1 << 63
NAME_SIZE_MAX = 128
ADDRESS_SIZE_MAX = 255
PORT_MAX = (1 << 16) - 1


class AdminService:
    """See ``admin.proto``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._members = Members(edge)
        holds = AdminHolds(edge)
        self.set_hold, self.list_holds = holds.set_hold, holds.list_holds
        self.release_hold = holds.release_hold
        clock = edge.context.clock
        self._alarms, self._unreachable = FirstSeen(clock), FirstSeen(clock)

    # The node that is asked

    async def get_status(
        self, request: admin_pb2.GetStatusRequest, call: Call
    ) -> admin_pb2.GetStatusResponse:
        """Show the node and its shards, those of its other workers included."""
        calls = self._edge.calls
        status = node_status(self._edge.context, self._alarms)
        if call.is_forwarded:
            return status
        unreachable = []
        for worker, endpoint in self._other_workers():
            try:
                data = await calls.forward(call, Elsewhere(worker, endpoint), request)
            except OnelogError as error:
                unreachable.append(AlarmFound("WORKER_UNREACHABLE", worker, "", str(error)))
                continue
            other = admin_pb2.GetStatusResponse.FromString(data)
            status.shards.extend(other.shards)
            status.alarms.extend(other.alarms)
        fill_alarms(status, unreachable, self._unreachable)
        status.shards.sort(key=lambda each: each.shard)
        return status

    async def get_topology(
        self, _request: admin_pb2.GetTopologyRequest, _call: Call
    ) -> admin_pb2.GetTopologyResponse:
        """Say who serves what."""
        topology = self._edge.context.topology
        answer = admin_pb2.GetTopologyResponse(
            cluster_id=str(topology.cluster_id),
            shard_count=topology.shards,
            partition_count=topology.partitions,
        )
        for shard in range(topology.shards):
            view = topology.leader(shard)
            answer.shards.add(
                shard=shard,
                leader_id="" if view.leader_id is None else str(view.leader_id),
                leader_endpoint=topology.leader_endpoint(shard) or "",
                endpoints=topology.endpoints(shard),
                term=view.term,
            )
        for node in topology.nodes():
            answer.nodes.add(
                node_id=str(node.node_id), node_name=node.name, endpoints=node.endpoints
            )
        return answer

    async def take_snapshot(
        self, request: admin_pb2.TakeSnapshotRequest, call: Call
    ) -> admin_pb2.TakeSnapshotResponse:
        """Take a snapshot of a shard here."""
        driver = self._edge.replica(self._edge.check_shard(request.shard))
        clock = self._edge.context.clock
        await own_task()
        async with asyncio.timeout(max(0.0, call.deadline_s - clock.now_s())):
            record = await self._edge.context.snapshots.take(driver)
        return admin_pb2.TakeSnapshotResponse(
            index=record.index,
            size=record.size,
            state_hash=int(record.state_hash, 16),
        )

    async def get_state_hash(
        self, request: admin_pb2.GetStateHashRequest, _call: Call
    ) -> admin_pb2.GetStateHashResponse:
        """Return the hash of a shard's state here."""
        router = self._edge.replica(self._edge.check_shard(request.shard)).shard.router
        return admin_pb2.GetStateHashResponse(
            index=router.applied_index,
            state_hash=router.state_hash(),
            by_owner=router.state_hashes(),
        )

    async def list_log_ranges(
        self, request: admin_pb2.ListLogRangesRequest, _call: Call
    ) -> admin_pb2.ListLogRangesResponse:
        """List which indexes of a shard are here."""
        return log_ranges(self._edge.replica(self._edge.check_shard(request.shard)))

    async def read_log(
        self, request: admin_pb2.ReadLogRequest, _call: Call
    ) -> AsyncIterator[admin_pb2.ReadLogResponse]:
        """Read committed entries in order, a page when the last one was taken."""
        shard_number = self._edge.check_shard(request.shard)
        shard = self._edge.replica(shard_number).shard
        log = shard.log
        last = request.last_index or INDEX_MAX
        if request.last_index and request.last_index < request.first_index:
            first, end = request.first_index, request.last_index
            message = f"last_index is {end}, which is below first_index, {first}"
            raise error_of_reason(Reason.RANGE_INVALID, 0, message)
        at = request.first_index or log.first_index
        if at < log.first_index:
            raise IndexDropped(at, log.first_index, log.commit_index)
        waited_for = 0  # the last entry whose repair has been waited for
        owners = frozenset(request.owners)
        if not owners <= set(log_pb2.Owner.values()):
            raise invalid("OWNER_INVALID", f"there is no owner {max(owners)}")
        loop, wake = asyncio.get_running_loop(), asyncio.Event()

        def listen(_entries: object, _results: object) -> None:
            wake.set()

        shard.listeners.append(listen)
        try:
            while True:
                wake.clear()
                page, damage = await loop.run_in_executor(
                    self._edge.readers,
                    read_page,
                    log,
                    shard_number,
                    at,
                    last,
                    request.with_voids,
                    owners,
                    self._edge.context.config.limits.message_bytes_max,
                )
                if damage is not None and page.last_index < at:
                    until_s = self._edge.context.clock.now_s() + REPAIR_S_MAX
                    is_new, waited_for = waited_for < damage.first_index, damage.first_index
                    if is_new and await self._edge.until_repaired(shard_number, [damage], until_s):
                        continue
                    page = _show_damage(damage, shard_number, passes=request.pass_damage)
                if page.last_index >= at:
                    yield page
                    at = page.last_index + 1
                elif not request.follow or at > last:
                    return
                else:
                    await wake.wait()
        finally:
            shard.listeners.remove(listen)

    async def list_damage(
        self, request: admin_pb2.ListDamageRequest, call: Call
    ) -> admin_pb2.ListDamageResponse:
        """List what is damaged on this node, in the shards of its other workers as well."""
        answer = admin_pb2.ListDamageResponse()
        for number, driver in self._edge.context.drivers.items():
            queues = driver.shard.projections.queue
            for damage in driver.shard.shipping.repair.damages.values():
                fill_damage(answer.segments.add(), number, damage, queues)
        for number, repair in self._edge.context.repairs.items():
            for damage in repair.repair.damages.values():
                fill_damage(answer.segments.add(), number, damage, None)
        for _, endpoint in () if call.is_forwarded else self._other_workers():
            data = await self._edge.calls.forward(call, Elsewhere(0, endpoint), request)
            answer.segments.extend(admin_pb2.ListDamageResponse.FromString(data).segments)
        answer.segments.sort(key=lambda each: (each.shard, each.first_index))
        return answer

    def _other_workers(self) -> list[tuple[int, str]]:
        """Return the other processes of this node: number and endpoint."""
        topology = self._edge.context.topology
        node = topology.node(topology.self_id)
        endpoints = () if node is None else node.endpoints
        return [each for each in enumerate(endpoints) if each[0] != topology.worker]

    # One shard, where it is led

    async def transfer_leadership(
        self, request: admin_pb2.TransferLeadershipRequest, call: Call
    ) -> admin_pb2.TransferLeadershipResponse:
        """Hand the leadership of a shard over."""
        shard = self._edge.check_shard(request.shard)
        target = _node_id(request.node_id) if request.node_id else None
        leader = await self._members.transfer(shard, target, call.deadline_s)
        return admin_pb2.TransferLeadershipResponse(leader_id=str(leader))

    # All shards

    async def list_members(
        self, request: admin_pb2.ListMembersRequest, call: Call
    ) -> admin_pb2.ListMembersResponse:
        """List the members of every shard."""
        topology = self._edge.context.topology

        async def part(shard: int) -> admin_pb2.ListMembersResponse:
            membership = self._edge.leading(shard).shard.member.membership
            answer = admin_pb2.ListMembersResponse()
            members = answer.shards.add(shard=shard).members
            for node_id in membership.members:
                node = topology.node(node_id)
                members.add(
                    node_id=str(node_id),
                    node_name="" if node is None else node.name,
                    peer_address="" if node is None else node.peer_address,
                    is_learner=node_id in membership.learners,
                )
            return answer

        answer = admin_pb2.ListMembersResponse()
        for each in await self._edge.parts(request, call, range(self._edge.shards), part):
            answer.shards.extend(each.shards)
        return answer

    async def add_member(
        self, request: admin_pb2.AddMemberRequest, call: Call
    ) -> admin_pb2.AddMemberResponse:
        """Add a node as a learner."""
        node_id, address = _node_id(request.node_id), request.peer_address
        name = request.node_name
        host, _, port = address.rpartition(":")
        is_port = port.isdecimal() and 0 < int(port) <= PORT_MAX
        if not host or not is_port or len(address.encode()) > ADDRESS_SIZE_MAX:
            message = (
                f"peer_address is {address!r:.70}; it is host:port, with a port up to {PORT_MAX}"
            )
            raise invalid("ADDRESS_INVALID", message)
        if len(name.encode()) > NAME_SIZE_MAX or not name.isprintable():
            text = f"{name!r:.70}: names have up to {NAME_SIZE_MAX} bytes that can be shown"
            raise invalid("NODE_NAME_INVALID", text)
        if self._edge.context.config.security.peer_cert is not None:
            nodes = self._edge.context.topology.nodes()
            if not name or any(name == each.name and node_id != each.node_id for each in nodes):
                text = "with TLS a new node needs a name of its own, which its certificate has"
                raise invalid("NODE_NAME_INVALID", text)

        async def part(shard: int) -> admin_pb2.AddMemberResponse:
            await self._members.add(shard, node_id, name, address, call.deadline_s)
            return admin_pb2.AddMemberResponse()

        await self._edge.parts(request, call, range(self._edge.shards), part)
        return admin_pb2.AddMemberResponse()

    async def promote_member(
        self, request: admin_pb2.PromoteMemberRequest, call: Call
    ) -> admin_pb2.PromoteMemberResponse:
        """Make a learner a voter."""
        node_id = _node_id(request.node_id)

        async def part(shard: int) -> admin_pb2.PromoteMemberResponse:
            await self._members.promote(shard, node_id, call.deadline_s)
            return admin_pb2.PromoteMemberResponse()

        await self._edge.parts(request, call, range(self._edge.shards), part)
        return admin_pb2.PromoteMemberResponse()

    async def remove_member(
        self, request: admin_pb2.RemoveMemberRequest, call: Call
    ) -> admin_pb2.RemoveMemberResponse:
        """Remove a node."""
        node_id = _node_id(request.node_id)

        async def part(shard: int) -> admin_pb2.RemoveMemberResponse:
            await self._members.remove(shard, node_id, call.deadline_s)
            return admin_pb2.RemoveMemberResponse()

        await self._edge.parts(request, call, range(self._edge.shards), part)
        return admin_pb2.RemoveMemberResponse()

    async def create_namespace(
        self, request: admin_pb2.CreateNamespaceRequest, call: Call
    ) -> admin_pb2.CreateNamespaceResponse:
        """Create a namespace."""
        name = parse_namespace(request.namespace)
        if not name.isprintable():
            raise invalid(
                "NAMESPACE_NAME_INVALID",
                f"the name {name!r:.70} has characters that cannot be shown",
            )
        command = NamespaceCreate(_parse_limits(request.limits))
        answer = admin_pb2.CreateNamespaceResponse()
        await self._namespaces(request, call, name, command, answer, AlreadyExists)
        return answer

    async def configure_namespace(
        self, request: admin_pb2.ConfigureNamespaceRequest, call: Call
    ) -> admin_pb2.ConfigureNamespaceResponse:
        """Change the limits of a namespace."""
        command = NamespaceConfigure(_parse_limits(request.limits))
        answer = admin_pb2.ConfigureNamespaceResponse()
        name = parse_namespace(request.namespace)
        await self._namespaces(request, call, name, command, answer, None)
        return answer

    async def delete_namespace(
        self, request: admin_pb2.DeleteNamespaceRequest, call: Call
    ) -> admin_pb2.DeleteNamespaceResponse:
        """Delete a namespace and all that is in it."""
        answer = admin_pb2.DeleteNamespaceResponse()
        name = parse_namespace(request.namespace)
        await self._namespaces(request, call, name, NamespaceDelete(), answer, NotFound)
        return answer

    async def list_namespaces(
        self, request: admin_pb2.ListNamespacesRequest, call: Call
    ) -> admin_pb2.ListNamespacesResponse:
        """List the namespaces that any shard has."""

        async def part(shard: int) -> admin_pb2.ListNamespacesResponse:
            view = await self._edge.read(shard, _READ, call)
            answer = admin_pb2.ListNamespacesResponse()
            for each in view.projections.system.namespaces:
                limits = admin_pb2.NamespaceLimits(
                    versions_max=each.limits.versions_max,
                    value_size_max=each.limits.value_size_max,
                    keys_max=each.limits.keys_max,
                    tombstones_max=each.limits.tombstones_max,
                )
                answer.namespaces.add(namespace=each.name, limits=limits)
            return answer

        found: dict[str, Any] = {}
        for each in await self._edge.parts(request, call, range(self._edge.shards), part):
            for info in each.namespaces:
                found.setdefault(info.namespace, info)
        answer = admin_pb2.ListNamespacesResponse()
        answer.namespaces.extend(found[name] for name in sorted(found))
        return answer

    async def _namespaces(
        self,
        request: Any,
        call: Call,
        name: str,
        command: Command,
        answer: Any,
        done: type[OnelogError] | None,
    ) -> None:
        """Change a namespace in every shard; ``done``: what a shard says where it is so already."""
        drafts = [encode_command(command, name)]

        async def part(shard: int) -> Any:
            written = await self._edge.write(shard, drafts, _NO_OPTIONS, call)
            applied(written.results[0])
            one = call.response()
            fill_header(one.headers.add(), shard, written.first_index, written.results[0])
            return one

        outcomes = await every_shard(self._edge, request, call, part, done)
        for each in outcomes.values():
            if not isinstance(each, OnelogError):
                answer.headers.extend(each.headers)


def _parse_limits(limits: admin_pb2.NamespaceLimits) -> Limits:
    default = Limits()
    made = Limits(
        limits.versions_max or default.versions_max,
        limits.value_size_max or default.value_size_max,
        limits.keys_max,
        limits.tombstones_max or default.tombstones_max,
    )
    wrong = made.invalid()
    if wrong is not None:
        raise error_of_setting(Reason.NAMESPACE_LIMIT_INVALID, wrong)
    return made


def _node_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise invalid("NODE_ID_INVALID", f"{text[:64]!r} is not the id of a node") from None
