"""How a node learns that it was removed from its cluster.

The leader of a shard stops sending to a member as soon as it proposes the removal, so the member
gets no entry that says so. To it, the leader has fallen silent. It then asks the other members that
it knows, on a connection of its own (``Purpose.MEMBERSHIP``), until a leader is heard again.

An answer counts if all of these hold; then the node was removed from that shard:

* It comes from a member: with TLS the certificate names the peer that was asked. (Without TLS,
  which is for loopback, it is believed.)
* The answering replica hears a leader, and has applied more than the one that asks. So its answer
  is newer than all that this node knows, and not that of another node that was left behind.
* The node was a member as of its own last applied entry. A node that waits to be added was none,
  and one that has lost its directory has another id.

Nothing of this is kept on disk. After a restart the node hears no leader and asks again; if it was
added again meanwhile, the leader calls it, and it does not ask.

A node is removed when none of the shards of its process has it. A removal that reached only some
of the shards is to be repeated; until then the node serves the others and is not ready.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from uuid import UUID

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onelog.cluster.raft.member import RaftMember
from onelog.cluster.transport.certificate import check_certificate
from onelog.cluster.transport.connection import Purpose, ask
from onelog.cluster.transport.link import LinkEnded
from onelog.cluster.transport.peers import PeerTransport
from onelog.cluster.transport.wire import WireError
from onelog.v1 import peer_pb2

# How often shards are checked and members asked, once the leader has been silent for so long.
LOOK_S = 1.0
SILENCE_S = 2.0
ANSWER_S = 2.0

_log = logging.getLogger("onelog.node.removal")


def describe_membership(
    replicas: Mapping[int, RaftMember], node_id: UUID
) -> peer_pb2.PeerMembership:
    """Return the answer to a node that asks whether it is a member."""
    answer = peer_pb2.PeerMembership()
    for number, member in replicas.items():
        if member.hears_leader:
            is_member = node_id in member.applied_membership.members
            answer.shards.add(shard=number, applied=member.applied, is_member=is_member)
    return answer


class RemovalWatch:
    """Watches whether this node is still a member; see the module's text."""

    def __init__(
        self,
        replicas: Mapping[int, RaftMember],
        transport: PeerTransport,
        tls: ssl.SSLContext | None,
        now_s: Callable[[], float],
    ) -> None:
        self.removed: set[int] = set()  # the shards that this node was removed from
        self._replicas = replicas
        self._transport = transport
        self._tls = tls
        self._now_s = now_s
        self._heard_s = dict.fromkeys(replicas, now_s())

    async def run(self) -> None:
        """Return when this node was removed from all shards of this process."""
        while not self._replicas or len(self.removed) < len(self._replicas):
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Ask the other members if a leader is not heard."""
        if self._find_silent():
            transport = self._transport
            peers = [
                (transport.find_name(peer_id), peer.address)
                for peer_id, peer in transport.status().items()
            ]
            await asyncio.gather(*(self._ask(*each) for each in peers))

    def _find_silent(self) -> list[int]:
        """Return the shards that have heard no leader for long."""
        now_s = self._now_s()
        for number, member in self._replicas.items():
            self._heard_s.setdefault(number, now_s)  # it may have started late
            if member.hears_leader:
                self._heard_s[number] = now_s
                self.removed.discard(number)  # it was added again
        return [
            number
            for number, heard_s in self._heard_s.items()
            if number not in self.removed and now_s - heard_s >= SILENCE_S
        ]

    async def _ask(self, name: str, address: str) -> None:
        """Ask one member."""
        identity = self._transport.identity
        question = peer_pb2.PeerMembershipRequest(
            cluster_id=identity.cluster_id.bytes,
            node_id=identity.node_id.bytes,
            node_name=identity.node_name,
        )
        try:
            data, certificate = await ask(
                address, Purpose.MEMBERSHIP, question.SerializeToString(), self._tls, ANSWER_S
            )
            # Without a name to prove, no certificate proves anything.
            check_certificate(certificate, identity.cluster_name, name)
            answer = peer_pb2.PeerMembership.FromString(data)
        except (LinkEnded, WireError, DecodeError) as error:
            _log.debug("%s at %s does not say whether this is a member: %s", name, address, error)
            return
        self._take(answer, name or address)

    def _take(self, answer: peer_pb2.PeerMembership, peer: str) -> None:
        silent = self._find_silent()
        for each in answer.shards:
            if each.shard not in silent or each.is_member:
                continue
            member = self._replicas[each.shard]
            was_member = member.self_id in member.applied_membership.members
            if was_member and each.applied > member.applied:
                self.removed.add(each.shard)
                _log.warning(
                    "removed from shard %d: %s has applied proposal %d, and this node, which has "
                    "applied %d, is no member there",
                    each.shard,
                    peer,
                    each.applied,
                    member.applied,
                )
