"""Operations on the cluster: ``client.admin``. Answers are the protobuf messages."""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from onelog.client.connection import Connection
from onelog.client.options import LONG_TIMEOUT_S, Scope, to_route
from onelog.client.validation import refuse_unsendable
from onelog.client.values import milliseconds
from onelog.errors import AlreadyExists
from onelog.v1 import admin_pb2, log_pb2


@refuse_unsendable
class AsyncAdmin:
    """Status, topology, members, leadership, snapshots, the log itself, namespaces, holds.

    ``endpoint`` says which node to ask; without it any node, or the shard's leader.
    """

    def __init__(self, connection: Connection, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope

    async def status(self, *, endpoint: str | None = None) -> admin_pb2.GetStatusResponse:
        """Return the status of a node and all of its shards."""
        request = admin_pb2.GetStatusRequest()
        answer: admin_pb2.GetStatusResponse = await self._ask("GetStatus", request, endpoint)
        return answer

    async def topology(self) -> admin_pb2.GetTopologyResponse:
        """Return which endpoint serves which shard."""
        request = admin_pb2.GetTopologyRequest()
        answer: admin_pb2.GetTopologyResponse = await self._ask("GetTopology", request)
        return answer

    async def members(self) -> admin_pb2.ListMembersResponse:
        """List the members of every shard's Raft group."""
        request = admin_pb2.ListMembersRequest()
        answer: admin_pb2.ListMembersResponse = await self._ask("ListMembers", request)
        return answer

    async def add_member(self, node_id: str, node_name: str, peer_address: str) -> None:
        """Add a node as a learner, in every shard; ``promote_member`` makes it a voter."""
        request = admin_pb2.AddMemberRequest(
            node_id=node_id, node_name=node_name, peer_address=peer_address
        )
        await self._do("AddMember", request)

    async def promote_member(self, node_id: str) -> None:
        """Promote a learner that has caught up to a voter, in every shard."""
        await self._do("PromoteMember", admin_pb2.PromoteMemberRequest(node_id=node_id))

    async def remove_member(self, node_id: str) -> None:
        """Remove a node from every shard."""
        await self._do("RemoveMember", admin_pb2.RemoveMemberRequest(node_id=node_id))

    async def transfer_leadership(self, shard: int, node_id: str = "") -> str:
        """Transfer a shard's leadership to a node, or to the most up-to-date one; return its id."""
        request = admin_pb2.TransferLeadershipRequest(shard=shard, node_id=node_id)
        answer: admin_pb2.TransferLeadershipResponse = await self._do(
            "TransferLeadership", request, shard
        )
        return answer.leader_id

    async def take_snapshot(
        self, shard: int, *, endpoint: str | None = None, timeout_s: float = LONG_TIMEOUT_S
    ) -> admin_pb2.TakeSnapshotResponse:
        """Take a snapshot of a shard on a node; a large state takes its time."""
        request = admin_pb2.TakeSnapshotRequest(shard=shard)
        answer: admin_pb2.TakeSnapshotResponse = await self._do(
            "TakeSnapshot", request, shard, endpoint, timeout_s
        )
        return answer

    async def state_hash(
        self, shard: int, *, endpoint: str | None = None
    ) -> admin_pb2.GetStateHashResponse:
        """Return the hash of a shard's state on a node, and the index of that state."""
        request = admin_pb2.GetStateHashRequest(shard=shard)
        answer: admin_pb2.GetStateHashResponse = await self._ask(
            "GetStateHash", request, endpoint, shard
        )
        return answer

    async def log_ranges(
        self, shard: int, *, endpoint: str | None = None
    ) -> admin_pb2.ListLogRangesResponse:
        """List which indexes of a shard's log a node holds, and in which storage."""
        request = admin_pb2.ListLogRangesRequest(shard=shard)
        answer: admin_pb2.ListLogRangesResponse = await self._ask(
            "ListLogRanges", request, endpoint, shard
        )
        return answer

    async def damage(self, *, endpoint: str | None = None) -> admin_pb2.ListDamageResponse:
        """List the damaged files of a node's logs, and what cannot be read because of them."""
        request = admin_pb2.ListDamageRequest()
        answer: admin_pb2.ListDamageResponse = await self._ask("ListDamage", request, endpoint)
        return answer

    async def read_log(
        self,
        shard: int,
        *,
        first_index: int = 0,
        last_index: int = 0,
        follow: bool = False,
        with_voids: bool = False,
        pass_damage: bool = False,
        endpoint: str | None = None,
    ) -> AsyncIterator[log_pb2.Entry]:
        """Yield committed entries in order; with ``follow`` continue with new ones, endlessly.

        It begins at ``first_index``, or at the first entry that is kept. What the node cannot read
        raises DataLoss; with ``pass_damage`` it is an entry with ``unreadable_through`` instead.
        """
        request = admin_pb2.ReadLogRequest(
            shard=shard,
            first_index=first_index,
            last_index=last_index,
            follow=follow,
            with_voids=with_voids,
            pass_damage=pass_damage,
        )
        connection = self._connection
        await connection.ready(self._scope.timeout_s)
        answers = connection.calls.stream(
            "Admin/ReadLog",
            lambda: request,
            timeout_s=self._scope.timeout_s,
            route=to_route(endpoint) or partial(connection.topology.find_endpoint, shard),
            shard=shard,
        )
        async with aclosing(answers):
            async for answer in answers:
                for entry in answer.entries:
                    yield entry
                request.first_index = max(request.first_index, answer.last_index + 1)
                if last_index and request.first_index > last_index:
                    return

    async def create_namespace(
        self,
        name: str,
        limits: admin_pb2.NamespaceLimits | None = None,
        *,
        exist_ok: bool = False,
    ) -> None:
        """Create a namespace in every shard; with ``exist_ok`` an existing one stays as it is."""
        request = admin_pb2.CreateNamespaceRequest(namespace=name, limits=limits)
        try:
            await self._do("CreateNamespace", request)
        except AlreadyExists:
            if not exist_ok:
                raise

    async def configure_namespace(self, name: str, limits: admin_pb2.NamespaceLimits) -> None:
        """Change the limits of a namespace."""
        await self._do(
            "ConfigureNamespace", admin_pb2.ConfigureNamespaceRequest(namespace=name, limits=limits)
        )

    async def delete_namespace(self, name: str) -> None:
        """Delete a namespace with everything in it."""
        await self._do("DeleteNamespace", admin_pb2.DeleteNamespaceRequest(namespace=name))

    async def namespaces(self) -> dict[str, admin_pb2.NamespaceLimits]:
        """Return the namespaces with their limits."""
        answer = await self._ask("ListNamespaces", admin_pb2.ListNamespacesRequest())
        return {each.namespace: each.limits for each in answer.namespaces}

    async def set_hold(
        self,
        name: str,
        *,
        move: bool = False,
        indexes: Mapping[int, int] | None = None,
        from_start: bool = False,
        ttl_s: float | None = None,
        bytes_max: int = 0,
    ) -> dict[int, int]:
        """Set a hold: the log is kept from an index on for a reader. Return its index, by shard.

        In shards that ``indexes`` does not name a new hold begins after the end of the log, or with
        ``from_start`` at the first entry that is kept. With ``move`` an existing hold advances to
        ``indexes``, stays in other shards, and its lifetime starts again. A hold breaks, with an
        alarm, when it was not set for ``ttl_s`` (default 7 days), or when it keeps more than
        ``bytes_max`` bytes of log in a shard (default 16 GiB).
        """
        request = admin_pb2.SetHoldRequest(
            name=name,
            move=move,
            indexes=dict(indexes or {}),
            from_start=from_start,
            ttl_ms=milliseconds(ttl_s),
            bytes_max=bytes_max,
        )
        call = self._ask if move else self._do  # a move is idempotent, so it may be repeated
        answer: admin_pb2.SetHoldResponse = await call("SetHold", request)
        return dict(sorted(answer.indexes.items()))

    async def list_holds(self) -> list[admin_pb2.Hold]:
        """Return the holds of every shard, by name and shard."""
        answer: admin_pb2.ListHoldsResponse = await self._ask(
            "ListHolds", admin_pb2.ListHoldsRequest()
        )
        return list(answer.holds)

    async def release_hold(self, name: str) -> None:
        """Remove a hold in every shard, broken or not."""
        await self._do("ReleaseHold", admin_pb2.ReleaseHoldRequest(name=name))

    async def _ask(
        self, method: str, request: object, endpoint: str | None = None, shard: int | None = None
    ) -> Any:
        await self._connection.ready(self._scope.timeout_s)
        return await self._connection.calls.unary(
            f"Admin/{method}",
            request,
            timeout_s=self._scope.timeout_s,
            route=to_route(endpoint),
            shard=shard,
            is_repeatable=True,
        )

    async def _do(
        self,
        method: str,
        request: object,
        shard: int | None = None,
        endpoint: str | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        await self._connection.ready(self._scope.timeout_s)
        return await self._connection.calls.unary(
            f"Admin/{method}",
            request,
            timeout_s=self._scope.timeout_s if timeout_s is None else timeout_s,
            route=to_route(endpoint),
            shard=shard,
        )
