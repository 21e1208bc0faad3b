"""``onelog/client/admin.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from collections.abc import Mapping

from onelog.client.blocking import Facade, Items
from onelog.client.options import LONG_TIMEOUT_S
from onelog.v1 import admin_pb2, log_pb2


class Admin(Facade):
    """Status, topology, members, leadership, snapshots, the log itself, namespaces, holds.

    ``endpoint`` says which node to ask; without it any node, or the shard's leader.
    """

    def status(self, *, endpoint: str | None = None) -> admin_pb2.GetStatusResponse:
        """Return the status of a node and all of its shards."""
        found: admin_pb2.GetStatusResponse = self._thread.run(self._core.status(endpoint=endpoint))
        return found

    def topology(self) -> admin_pb2.GetTopologyResponse:
        """Return which endpoint serves which shard."""
        found: admin_pb2.GetTopologyResponse = self._thread.run(self._core.topology())
        return found

    def members(self) -> admin_pb2.ListMembersResponse:
        """List the members of every shard's Raft group."""
        found: admin_pb2.ListMembersResponse = self._thread.run(self._core.members())
        return found

    def add_member(self, node_id: str, node_name: str, peer_address: str) -> None:
        """Add a node as a learner, in every shard; ``promote_member`` makes it a voter."""
        self._thread.run(self._core.add_member(node_id, node_name, peer_address))

    def promote_member(self, node_id: str) -> None:
        """Promote a learner that has caught up to a voter, in every shard."""
        self._thread.run(self._core.promote_member(node_id))

    def remove_member(self, node_id: str) -> None:
        """Remove a node from every shard."""
        self._thread.run(self._core.remove_member(node_id))

    def transfer_leadership(self, shard: int, node_id: str = "") -> str:
        """Transfer a shard's leadership to a node, or to the most up-to-date one; return its id."""
        found: str = self._thread.run(self._core.transfer_leadership(shard, node_id))
        return found

    def take_snapshot(
        self, shard: int, *, endpoint: str | None = None, timeout_s: float = LONG_TIMEOUT_S
    ) -> admin_pb2.TakeSnapshotResponse:
        """Take a snapshot of a shard on a node; a large state takes its time."""
        found: admin_pb2.TakeSnapshotResponse = self._thread.run(
            self._core.take_snapshot(shard, endpoint=endpoint, timeout_s=timeout_s)
        )
        return found

    def state_hash(
        self, shard: int, *, endpoint: str | None = None
    ) -> admin_pb2.GetStateHashResponse:
        """Return the hash of a shard's state on a node, and the index of that state."""
        found: admin_pb2.GetStateHashResponse = self._thread.run(
            self._core.state_hash(shard, endpoint=endpoint)
        )
        return found

    def log_ranges(
        self, shard: int, *, endpoint: str | None = None
    ) -> admin_pb2.ListLogRangesResponse:
        """List which indexes of a shard's log a node holds, and in which storage."""
        found: admin_pb2.ListLogRangesResponse = self._thread.run(
            self._core.log_ranges(shard, endpoint=endpoint)
        )
        return found

    def damage(self, *, endpoint: str | None = None) -> admin_pb2.ListDamageResponse:
        """List the damaged files of a node's logs, and what cannot be read because of them."""
        found: admin_pb2.ListDamageResponse = self._thread.run(self._core.damage(endpoint=endpoint))
        return found

    def read_log(
        self,
        shard: int,
        *,
        first_index: int = 0,
        last_index: int = 0,
        follow: bool = False,
        with_voids: bool = False,
        pass_damage: bool = False,
        endpoint: str | None = None,
    ) -> Items[log_pb2.Entry]:
        """Yield committed entries in order; with ``follow`` continue with new ones, endlessly.

        It begins at ``first_index``, or at the first entry that is kept. What the node cannot read
        raises DataLoss; with ``pass_damage`` it is an entry with ``unreadable_through`` instead.
        """
        return self._thread.iterate(
            self._core.read_log(
                shard,
                first_index=first_index,
                last_index=last_index,
                follow=follow,
                with_voids=with_voids,
                pass_damage=pass_damage,
                endpoint=endpoint,
            )
        )

    def create_namespace(
        self, name: str, limits: admin_pb2.NamespaceLimits | None = None, *, exist_ok: bool = False
    ) -> None:
        """Create a namespace in every shard; with ``exist_ok`` an existing one stays as it is."""
        self._thread.run(self._core.create_namespace(name, limits, exist_ok=exist_ok))

    def configure_namespace(self, name: str, limits: admin_pb2.NamespaceLimits) -> None:
        """Change the limits of a namespace."""
        self._thread.run(self._core.configure_namespace(name, limits))

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace with everything in it."""
        self._thread.run(self._core.delete_namespace(name))

    def namespaces(self) -> dict[str, admin_pb2.NamespaceLimits]:
        """Return the namespaces with their limits."""
        found: dict[str, admin_pb2.NamespaceLimits] = self._thread.run(self._core.namespaces())
        return found

    def set_hold(
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
        found: dict[int, int] = self._thread.run(
            self._core.set_hold(
                name,
                move=move,
                indexes=indexes,
                from_start=from_start,
                ttl_s=ttl_s,
                bytes_max=bytes_max,
            )
        )
        return found

    def list_holds(self) -> list[admin_pb2.Hold]:
        """Return the holds of every shard, by name and shard."""
        found: list[admin_pb2.Hold] = self._thread.run(self._core.list_holds())
        return found

    def release_hold(self, name: str) -> None:
        """Remove a hold in every shard, broken or not."""
        self._thread.run(self._core.release_hold(name))
