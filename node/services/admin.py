"""The Admin service: what operators ask.

Three kinds of calls. About the node that is asked: status, snapshot, hash, log. About one shard,
where it is led: moving its leadership. About all shards, each where it is led: members, namespaces,
holds (node/services/admin_holds.py).
Those are done shard by shard and can be repeated: what is so already is not refused, as long as one
shard still had something to do.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from onelog.errors import AlreadyExists, NotFound, OnelogError
from onelog.node.edge.calls import Call
from onelog.node.edge.forwarding import Elsewhere
from onelog.node.edge.operation import applied, put_header
from onelog.node.edge.shards import Edge, invalid, namespace_of
from onelog.node.edge.waits import own_task
from onelog.node.public_errors import error_of_reason
from onelog.node.services.admin_holds import AdminHolds
from onelog.node.services.admin_log import read_page
from onelog.node.services.admin_status import (
    AlarmFound,
    FirstSeen,
    log_ranges,
    node_status,
    put_alarms,
)
from onelog.node.services.every_shard import every_shard
from onelog.node.services.members import Members
from onelog.projections.namespaces import Limits
from onelog.projections.reasons import Reason
from onelog.projections.system.commands import (
    Command,
    NamespaceConfigure,
    NamespaceCreate,
    NamespaceDelete,
    encode_command,
)
from onelog.ual.errors import IndexDropped
from onelog.v1 import admin_pb2, common_pb2, log_pb2

INDEX_MAX = 1 << 63
NAME_SIZE_MAX = 128
ADDRESS_SIZE_MAX = 255
PORT_MAX = (1 << 16) - 1
_NO_OPTIONS = common_pb2.WriteOptions()
_READ = common_pb2.ReadOptions()


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
        topology, calls = self._edge.context.topology, self._edge.calls
        status = node_status(self._edge.context, self._alarms)
        node = topology.node(topology.self_id)
        if call.is_forwarded or node is None:
            return status
        unreachable = []
        for worker, endpoint in enumerate(node.endpoints):
            if worker == topology.worker:
                continue
            try:
                data = await calls.forward(call, Elsewhere(worker, endpoint), request)
            except OnelogError as error:
                unreachable.append(AlarmFound("WORKER_UNREACHABLE", worker, "", str(error)))
                continue
            other = admin_pb2.GetStatusResponse.FromString(data)
            status.shards.extend(other.shards)
            status.alarms.extend(other.alarms)
        put_alarms(status, unreachable, self._unreachable)
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
            raise error_of_reason(Reason.RANGE_INVALID)
        at = request.first_index or log.first_index
        if at < log.first_index:
            raise IndexDropped(at, log.first_index, log.commit_index)
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
                page = await loop.run_in_executor(
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
                if page.last_index >= at:
                    yield page
                    at = page.last_index + 1
                elif not request.follow or at > last:
                    return
                else:
                    await wake.wait()
        finally:
            shard.listeners.remove(listen)

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
        host, _, port = address.rpartition(":")
        is_port = port.isdecimal() and 0 < int(port) <= PORT_MAX
        if not host or not is_port or len(address.encode()) > ADDRESS_SIZE_MAX:
            raise invalid("ADDRESS_INVALID", "the peer address is host:port")
        if len(request.node_name.encode()) > NAME_SIZE_MAX:
            raise invalid("NODE_NAME_INVALID", f"a node's name has up to {NAME_SIZE_MAX} bytes")

        async def part(shard: int) -> admin_pb2.AddMemberResponse:
            await self._members.add(shard, node_id, address, call.deadline_s)
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
        name = namespace_of(request.namespace)
        if not name.isprintable():
            raise invalid("NAMESPACE_NAME_INVALID", "a name is of characters that can be shown")
        command = NamespaceCreate(_limits_of(request.limits))
        answer = admin_pb2.CreateNamespaceResponse()
        await self._namespaces(request, call, name, command, answer, AlreadyExists)
        return answer

    async def configure_namespace(
        self, request: admin_pb2.ConfigureNamespaceRequest, call: Call
    ) -> admin_pb2.ConfigureNamespaceResponse:
        """Change the limits of a namespace."""
        command = NamespaceConfigure(_limits_of(request.limits))
        answer = admin_pb2.ConfigureNamespaceResponse()
        name = namespace_of(request.namespace)
        await self._namespaces(request, call, name, command, answer, None)
        return answer

    async def delete_namespace(
        self, request: admin_pb2.DeleteNamespaceRequest, call: Call
    ) -> admin_pb2.DeleteNamespaceResponse:
        """Delete a namespace and all that is in it."""
        answer = admin_pb2.DeleteNamespaceResponse()
        name = namespace_of(request.namespace)
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
            put_header(one.headers.add(), shard, written.first_index, written.results[0])
            return one

        outcomes = await every_shard(self._edge, request, call, part, done)
        for each in outcomes.values():
            if not isinstance(each, OnelogError):
                answer.headers.extend(each.headers)


def _limits_of(limits: admin_pb2.NamespaceLimits) -> Limits:
    default = Limits()
    made = Limits(
        limits.versions_max or default.versions_max,
        limits.value_size_max or default.value_size_max,
        limits.keys_max,
        limits.tombstones_max or default.tombstones_max,
    )
    wrong = made.invalid()
    if wrong is not None:
        raise error_of_reason(Reason.NAMESPACE_LIMIT_INVALID, wrong)
    return made


def _node_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise invalid("NODE_ID_INVALID", f"{text[:64]!r} is not the id of a node") from None
