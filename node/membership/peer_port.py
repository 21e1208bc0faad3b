"""The port that other nodes call, from before a cluster is founded until the process ends.

At first the port answers introductions only and closes streams, which peers then retry. Once the
shards have recovered, ``transport`` serves the streams. So peers can tell a node that is still
forming, or replaying a large log, from one that is down.

``Introducer`` holds the rules by which founders agree on a cluster, without I/O:

* A founder knows the others' names and addresses from its settings and learns their ids. It founds
  the cluster when it knows all ids and *every* other founder has sent the same list. So two
  different lists can never both be founded, even if a node is wiped in between.
* A founder that meets another for which the cluster exists adopts that one's list, if the list has
  its own name with its own id. So a node that was killed before it wrote SYSTEM can continue.
* With TLS a caller's certificate must name the node that it introduces as, and the answerer's the
  node that answers. A caller whose certificate does not is refused and learns nothing else.
* A newcomer with the name of a member but another id is refused: that member has lost its
  directory, and an operator has to remove it first.
* The node that is asked refuses what does not fit, with a reason, and both sides log it. Between
  founders either may be wrong, so they keep asking. An existing cluster is right: a node that it
  refuses gives up.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID, uuid5

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onelog.cluster.transport.accepting import LINES_AT_ONCE, RareLog, Turns
from onelog.cluster.transport.certificate import Certificate, check_certificate
from onelog.cluster.transport.connection import (
    CONNECTIONS_MAX,
    Connection,
    Listener,
    Purpose,
    connect,
)
from onelog.cluster.transport.handshake import (
    Identity,
    Introduction,
    decode_introduction,
    encode_answer,
)
from onelog.cluster.transport.link import LinkEnded
from onelog.cluster.transport.peers import PeerTransport
from onelog.cluster.transport.wire import Reason, WireError
from onelog.node.errors import ConfigError
from onelog.node.membership.topology import LeaderView
from onelog.ual.directory import Founder, System
from onelog.v1 import peer_pb2

# The namespace of cluster ids.
NAMESPACE = UUID("8c6f5b0e-3d0f-5a55-9a2e-6f1d0c7b4e21")


def make_cluster_id(cluster_name: str, node_ids: list[UUID]) -> UUID:
    """Return the id of the cluster that these nodes found."""
    ids = ",".join(str(each) for each in sorted(node_ids))
    return uuid5(NAMESPACE, f"{cluster_name}\n{ids}")


class Introducer:
    """One process's part in it. ``mine`` is its introduction, brought up to date as it learns."""

    def __init__(self, mine: Introduction, addresses: dict[str, str]) -> None:
        """``addresses``: of all founders by name; empty for a newcomer."""
        self.mine = mine
        # The names and ids of the members that this node knows, once it is one.
        self.members: Callable[[], Mapping[str, UUID]] = dict
        self._addresses = addresses
        self._said: dict[str, dict[str, UUID]] = {}  # the whole lists of others, by their names
        if addresses:
            assert mine.node_name in addresses, "a founder is one of the founders"
            self._know({mine.node_name: mine.node_id})

    @classmethod
    def founded(cls, mine: Introduction, system: System) -> "Introducer":
        """Return that of a node whose cluster exists."""
        made = cls(mine, {})
        made.found(system)
        return made

    def found(self, system: System) -> None:
        """Speak for a cluster that exists from now on."""
        self.mine = replace(
            self.mine,
            cluster_name=system.cluster_name,
            cluster_id=system.cluster_id,
            shards=system.topology.shards,
            partitions=system.topology.partitions,
            founders={each.name: (each.node_id, each.address) for each in system.founders},
        )

    @property
    def unknown_names(self) -> list[str]:
        """The founders not heard of; else those that have not said that they know the same."""
        mine, ids = self.mine, self.mine.agreed
        if ids is None:
            return sorted(name for name, (node_id, _) in mine.founders.items() if node_id is None)
        others = (name for name in self._addresses if name != mine.node_name)
        return sorted(name for name in others if self._said.get(name) != ids)

    def answer(self, theirs: Introduction) -> Introduction:
        """Return what to say to a caller, or raise a ``WireError`` that says what does not fit."""
        mine = self.mine
        if theirs.target_name not in ("", mine.node_name):
            raise WireError(
                Reason.WRONG_TARGET, f"it looks for {theirs.target_name}, this is {mine.node_name}"
            )
        self._check(theirs)
        if theirs.is_joining:
            if not mine.is_founded:
                raise WireError(Reason.NOT_FOUNDED, "there is no cluster to join yet; ask again")
            known = self.members().get(theirs.node_name, theirs.node_id)
            if known != theirs.node_id:
                raise WireError(
                    Reason.NODE_REPLACED,
                    f"{theirs.node_name} is a member of this cluster with id {known}, not "
                    f"{theirs.node_id}: its directory was lost, or two nodes have one name; remove "
                    "the old member first, or choose another name",
                )
            return mine
        if theirs.node_name == mine.node_name and theirs.node_id != mine.node_id:
            raise WireError(
                Reason.NAME_TAKEN,
                f"this is {mine.node_name}, too, with id {mine.node_id}; give each its own name",
            )
        self._check_founder(theirs)
        self._hear(theirs)
        return self.mine

    def heard(self, theirs: Introduction, name: str) -> tuple[Founder, ...] | None:
        """Take the answer of ``name``; return the founders if it says that they are agreed."""
        if theirs.node_name != name:
            raise WireError(
                Reason.WRONG_TARGET, f"{theirs.node_name} answers where {name} should listen"
            )
        self._check(theirs)
        if theirs.is_founded:
            return self._adopt(theirs)
        self._check_founder(theirs)
        self._hear(theirs)
        return self.agreed()

    def agreed(self) -> tuple[Founder, ...] | None:
        """Return the founders, in the order of their ids, if all have named the same."""
        if self.unknown_names or self.mine.agreed is None:
            return None
        return _founders(self.mine)

    def joined(self, theirs: Introduction) -> tuple[Founder, ...]:
        """Take a member's answer to a newcomer."""
        self._check(theirs)
        if not theirs.is_founded or theirs.agreed is None:
            raise WireError(Reason.NOT_FOUNDED, "there is no cluster to join yet")
        return _founders(theirs)

    # Inside

    def _check(self, theirs: Introduction) -> None:
        """Refuse what no two processes of a cluster differ in."""
        mine = self.mine
        if theirs.protocol_max < mine.protocol_min or theirs.protocol_min > mine.protocol_max:
            is_old = theirs.protocol_max < mine.protocol_min
            raise WireError(
                Reason.PROTOCOL_TOO_OLD if is_old else Reason.PROTOCOL_TOO_NEW,
                f"{theirs.node_name} speaks {theirs.protocol_min} to {theirs.protocol_max}, "
                f"{mine.node_name} {mine.protocol_min} to {mine.protocol_max}",
            )
        if theirs.cluster_name != mine.cluster_name and "" not in (
            theirs.cluster_name,
            mine.cluster_name,
        ):
            raise WireError(
                Reason.CLUSTER_NAME_MISMATCH,
                f"{theirs.node_name} is of cluster {theirs.cluster_name}, "
                f"{mine.node_name} of {mine.cluster_name}",
            )
        for what in ("shards", "partitions", "workers"):
            there, here = getattr(theirs, what), getattr(mine, what)
            if there != here and 0 not in (there, here):
                raise WireError(
                    Reason.TOPOLOGY_MISMATCH,
                    f"{theirs.node_name} has {there} {what}, {mine.node_name} has {here}",
                )
        if theirs.worker != mine.worker:
            raise WireError(
                Reason.WRONG_TARGET, f"worker {theirs.worker} talks to worker {mine.worker}"
            )

    def _check_founder(self, theirs: Introduction) -> None:
        """Refuse a founder of another cluster, and one that has changed since."""
        mine = self.mine
        if mine.is_founded:
            known = mine.founders.get(theirs.node_name)
            if known is None:
                raise WireError(
                    Reason.UNKNOWN_NODE,
                    f"{theirs.node_name} is no founder of this cluster; start it with --join, and "
                    "add it as a new member",
                )
            if known[0] != theirs.node_id:
                raise WireError(
                    Reason.NODE_REPLACED,
                    f"{theirs.node_name} has id {known[0]} in this cluster, not {theirs.node_id}: "
                    "its directory was lost; remove the old member, start this one with --join, "
                    "and add it as a new member",
                )
        elif set(theirs.founders) != set(mine.founders):
            raise WireError(
                Reason.FOUNDERS_MISMATCH,
                f"the initial cluster of {theirs.node_name} is "
                f"{', '.join(sorted(theirs.founders)) or 'empty'}, that of {mine.node_name} is "
                f"{', '.join(sorted(mine.founders)) or 'empty'}",
            )

    def _hear(self, theirs: Introduction) -> None:
        """Take over what a founder says of itself, and what it knows of others."""
        if self.mine.is_founded:
            return
        self._know({theirs.node_name: theirs.node_id})
        said = theirs.agreed
        if said is None:
            self._said.pop(theirs.node_name, None)
        else:
            self._said[theirs.node_name] = said

    def _know(self, ids: dict[str, UUID]) -> None:
        known = {name: node_id for name, (node_id, _) in self.mine.founders.items()} | ids
        self.mine = replace(
            self.mine,
            founders={name: (known.get(name), at) for name, at in self._addresses.items()},
        )

    def _adopt(self, theirs: Introduction) -> tuple[Founder, ...]:
        """Take the list of a founder whose cluster exists, if this node is on it."""
        mine = self.mine
        known = theirs.founders.get(mine.node_name)
        if known is None or known[0] != mine.node_id or theirs.agreed is None:
            raise WireError(
                Reason.NODE_REPLACED,
                f"the cluster of {theirs.node_name} was founded without {mine.node_name} as "
                f"{mine.node_id}; remove the old member, start this one with --join, and add it as "
                "a new member",
            )
        return _founders(theirs)


def _founders(introduction: Introduction) -> tuple[Founder, ...]:
    ids = introduction.agreed
    assert ids is not None
    return tuple(
        sorted(Founder(ids[name], name, at) for name, (_, at) in introduction.founders.items())
    )


# Peer port

# Connections that ask questions, and how long they may say nothing.
ASKING_MAX = 512
ASKING_IDLE_S_MAX = 30.0
# Introductions of all callers together; a founder asks each other one less than 20 times a second.
INTRODUCTIONS_PER_S = 200.0
# Callers may retry for ever; each difference is logged once, as long as this many are remembered.
REFUSALS_SAID_MAX = 256

_log = logging.getLogger("onelog.node.peers")


class PeerPort:
    """See the module's text."""

    def __init__(
        self,
        listen: str,
        tls: ssl.SSLContext | None = None,
        introducer: Introducer | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self.introducer = introducer
        self.transport: PeerTransport | None = None
        self.leaders: Callable[[], Mapping[int, LeaderView]] = dict
        # What the shards here say of a node that asks whether it is a member.
        self.describe_membership: Callable[[UUID], peer_pb2.PeerMembership] = lambda _node_id: (
            peer_pb2.PeerMembership()
        )
        self.listener = Listener(listen, tls, self._answer, connections_max)
        # Called after every introduction that was taken: something may be known now.
        self.heard: Callable[[], None] = lambda: None
        self._listen = listen
        self._is_listening = False
        # Workers of this node, and members, do not wait behind strangers.
        self._turns = {
            Purpose.INTRODUCE: Turns(INTRODUCTIONS_PER_S),
            Purpose.LEADERS: Turns(),
            Purpose.MEMBERSHIP: Turns(INTRODUCTIONS_PER_S),
        }
        self._asking = 0
        self._callers = RareLog(_log, LINES_AT_ONCE)
        self._said: set[str] = set()

    @property
    def port(self) -> int:
        """The port, once it listens."""
        return self.listener.port

    async def start(self) -> None:
        """Listen; starting again does nothing."""
        if self._is_listening:
            return
        try:
            await self.listener.start()
        except OSError as error:
            raise ConfigError(
                f"cannot listen for other nodes on {self._listen}: another process does, or it is "
                f"not an address of this machine ({error.strerror or error}); change listen.peers "
                "(--peer-listen)"
            ) from error
        self._is_listening = True

    async def stop(self) -> None:
        """End all connections and close the port."""
        if self._is_listening:
            self._is_listening = False
            await self.listener.stop()

    # What callers ask

    async def _answer(self, purpose: Purpose, connection: Connection) -> None:
        if purpose in (Purpose.EXCHANGE, Purpose.SHIP):
            if self.transport is not None:  # else this node is starting, and they come again
                await self.transport.answer(purpose, connection)
            return
        answer = {
            Purpose.INTRODUCE: self.introduce,
            Purpose.LEADERS: self.list_leaders,
            Purpose.MEMBERSHIP: self.answer_member,
        }[purpose]
        if self._asking >= ASKING_MAX:
            self._callers.warn("turned %s away: %d others ask", connection.peer, self._asking)
            return
        self._asking += 1
        turns = self._turns[purpose]
        try:
            while (question := await self._question(connection)) is not None:
                if not await connection.wait_unless_closed(turns.enter()):
                    return
                reply = answer(question, connection.peer, connection.certificate)
                if reply is None:
                    return
                await connection.write(reply)
        finally:
            self._asking -= 1

    async def _question(self, connection: Connection) -> bytes | None:
        try:
            async with asyncio.timeout(ASKING_IDLE_S_MAX):
                return await connection.read()
        except TimeoutError:
            return None

    def introduce(
        self, question: bytes, caller: str, certificate: Certificate | None
    ) -> bytes | None:
        """Answer an introduction; None while this node has nothing to say of itself."""
        introducer = self.introducer
        if introducer is None:
            return None
        try:
            theirs = decode_introduction(question)
            check_certificate(certificate, introducer.mine.cluster_name, theirs.node_name)
        except WireError as error:
            shown = "" if certificate is None else f" (certificate: {certificate})"
            self._say(f"refused an introduction from {caller}: {error}{shown}")
            return encode_answer(introducer.mine if certificate is None else None, error)
        try:
            mine: Introduction = introducer.answer(theirs)
        except WireError as error:
            self._say(f"refused {theirs.node_name} ({theirs.node_id}): {error}")
            return encode_answer(introducer.mine, error)
        self.heard()
        return encode_answer(mine, None)

    def list_leaders(
        self, question: bytes, caller: str, certificate: Certificate | None
    ) -> bytes | None:
        """Answer a worker of the same node; None to anybody else."""
        message = peer_pb2.PeerLeadersRequest()
        introducer = self.introducer
        try:
            message.ParseFromString(question)
        except DecodeError:
            self._say(f"{caller} asks who leads, in a way that cannot be read")
            return None
        mine = None if introducer is None else introducer.mine
        if (
            mine is None
            or message.node_id != mine.node_id.bytes
            or not (
                certificate is None or certificate.names_node(mine.cluster_name, mine.node_name)
            )
        ):
            self._say(f"{caller} asks who leads, but is not of this node")
            return None
        return encode_leaders(self.leaders())

    def answer_member(
        self, question: bytes, caller: str, certificate: Certificate | None
    ) -> bytes | None:
        """Answer a node that asks whether it is a member; None to a stranger."""
        message = peer_pb2.PeerMembershipRequest()
        introducer = self.introducer
        try:
            message.ParseFromString(question)
            node_id = UUID(bytes=message.node_id)
            mine = None if introducer is None else introducer.mine
            if mine is None or mine.cluster_id != UUID(bytes=message.cluster_id):
                return None
            check_certificate(certificate, mine.cluster_name, message.node_name)
        except (DecodeError, ValueError, WireError) as error:
            self._say(f"{caller} asks whether it is a member, and gets no answer: {error}")
            return None
        return bytes(self.describe_membership(node_id).SerializeToString())

    def _say(self, text: str) -> None:
        if text in self._said:
            return
        if len(self._said) >= REFUSALS_SAID_MAX:
            self._said.clear()  # or strangers could use up what may ever be said
        self._said.add(text)
        self._callers.warn("%s", text)


def encode_leaders(leaders: Mapping[int, LeaderView]) -> bytes:
    """Return who leads which shard as bytes."""
    message = peer_pb2.PeerLeaders(
        leaders=[
            peer_pb2.PeerLeader(
                shard=shard,
                term=view.term,
                leader_id=view.leader_id.bytes if view.leader_id else b"",
                members=[each.bytes for each in view.members],
            )
            for shard, view in leaders.items()
        ]
    )
    return bytes(message.SerializeToString())


def decode_leaders(data: bytes) -> dict[int, LeaderView]:
    """Take the answer of another worker of this node apart."""
    message = peer_pb2.PeerLeaders.FromString(data)
    return {
        each.shard: LeaderView(
            UUID(bytes=each.leader_id) if each.leader_id else None,
            each.term,
            tuple(UUID(bytes=member) for member in each.members),
        )
        for each in message.leaders
    }


async def watch_siblings(
    addresses: Mapping[int, str],
    node: Identity,
    tls: ssl.SSLContext | None,
    learn: Callable[[Mapping[int, LeaderView]], None],
    period_s: float,
) -> None:
    """Ask the other workers of this node again and again who leads their shards."""
    question = bytes(peer_pb2.PeerLeadersRequest(node_id=node.node_id.bytes).SerializeToString())

    async def ask(address: str) -> None:
        """Ask one of them until it does not answer; always raises."""
        async with asyncio.timeout(2 * period_s) as limit:
            connection = await connect(address, Purpose.LEADERS, tls)
            try:
                check_certificate(connection.certificate, node.cluster_name, node.node_name)
                while True:
                    await connection.write(question)
                    answer = await connection.read()
                    if answer is None:
                        raise LinkEnded("it was closed")
                    learn(decode_leaders(answer))
                    limit.reschedule(asyncio.get_running_loop().time() + 3 * period_s)
                    await asyncio.sleep(period_s)
            finally:
                await connection.close()

    async def watch(address: str) -> None:
        while True:
            try:
                await ask(address)
            except (LinkEnded, WireError, DecodeError, TimeoutError) as error:
                _log.debug("worker at %s: %s", address, error)
            await asyncio.sleep(period_s)

    async with asyncio.TaskGroup() as group:
        for each in addresses.values():
            group.create_task(watch(each))
