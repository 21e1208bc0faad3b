"""The port that other nodes call, from before a cluster is founded until the process ends.

One port for both lives: at first it answers introductions only, and streams are closed, to come
again; once the shards have recovered ``transport`` answers those. So a node that is still forming,
or replaying a large log, can be told from one that is not there.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from uuid import UUID

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onelog.cluster.transport.connection import Connection, Purpose, connect
from onelog.cluster.transport.introduction import Introduction, decode_introduction, encode_answer
from onelog.cluster.transport.link import LinkEnded
from onelog.cluster.transport.listener import Listener
from onelog.cluster.transport.peers import PeerTransport
from onelog.cluster.transport.wire_errors import WireError
from onelog.node.errors import ConfigError
from onelog.node.membership.introducer import Introducer
from onelog.node.membership.topology import LeaderView
from onelog.v1 import peer_pb2

# Connections that ask questions, and how long they may say nothing.
ASKING_MAX = 512
ASKING_IDLE_S_MAX = 30.0
# Callers may come again and again; each difference is said once.
REFUSALS_SAID_MAX = 256

_log = logging.getLogger("onelog.node.peers")


class PeerPort:
    """See the module's text."""

    def __init__(
        self,
        listen: str,
        tls: ssl.SSLContext | None = None,
        introducer: Introducer | None = None,
    ) -> None:
        self.introducer = introducer
        self.transport: PeerTransport | None = None
        self.leaders: Callable[[], Mapping[int, LeaderView]] = dict
        self.port = 0
        # Called after every introduction that was taken: something may be known now.
        self.heard: Callable[[], None] = lambda: None
        self._listen = listen
        self._tls = tls
        self._listener: Listener | None = None
        self._asking = 0
        self._said: set[str] = set()

    async def start(self) -> None:
        """Listen; starting again does nothing."""
        if self._listener is not None:
            return
        listener = Listener(self._listen, self._tls, self._answer)
        try:
            await listener.start()
        except OSError as error:
            raise ConfigError(
                f"cannot listen for other nodes on {self._listen}: another process does, or it is "
                f"not an address of this machine ({error.strerror or error}); change listen.peers"
            ) from error
        self.port, self._listener = listener.port, listener

    async def stop(self) -> None:
        """End all connections and close the port."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()

    # What callers ask

    async def _answer(self, purpose: Purpose, connection: Connection) -> None:
        if purpose in (Purpose.EXCHANGE, Purpose.SHIP):
            if self.transport is not None:  # else this node is starting, and they come again
                await self.transport.answer(purpose, connection)
            return
        answer = self.introduce if purpose is Purpose.INTRODUCE else self.list_leaders
        if self._asking >= ASKING_MAX:
            _log.warning("turned %s away: %d others ask", connection.peer, self._asking)
            return
        self._asking += 1
        try:
            while (question := await self._question(connection)) is not None:
                reply = answer(question, connection.peer)
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

    def introduce(self, question: bytes, caller: str) -> bytes | None:
        """Answer an introduction; None while this node has nothing to say of itself."""
        introducer = self.introducer
        if introducer is None:
            return None
        try:
            theirs = decode_introduction(question)
        except WireError as error:
            self._say(f"refused an introduction from {caller}: {error}")
            return encode_answer(introducer.mine, error)
        try:
            mine: Introduction = introducer.answer(theirs)
        except WireError as error:
            self._say(f"refused {theirs.node_name} ({theirs.node_id}): {error}")
            return encode_answer(introducer.mine, error)
        self.heard()
        return encode_answer(mine, None)

    def list_leaders(self, question: bytes, caller: str) -> bytes | None:
        """Answer a worker of the same node; None to anybody else."""
        message = peer_pb2.PeerLeadersRequest()
        introducer = self.introducer
        try:
            message.ParseFromString(question)
        except DecodeError:
            self._say(f"{caller} asks who leads, in a way that cannot be read")
            return None
        if introducer is None or message.node_id != introducer.mine.node_id.bytes:
            self._say(f"{caller} asks who leads, but is not of this node")
            return None
        return encode_leaders(self.leaders())

    def _say(self, text: str) -> None:
        if text not in self._said and len(self._said) < REFUSALS_SAID_MAX:
            self._said.add(text)
            _log.warning("%s", text)


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
    node_id: UUID,
    tls: ssl.SSLContext | None,
    learn: Callable[[Mapping[int, LeaderView]], None],
    period_s: float,
) -> None:
    """Ask the other workers of this node again and again who leads their shards."""
    question = bytes(peer_pb2.PeerLeadersRequest(node_id=node_id.bytes).SerializeToString())

    async def ask(address: str) -> None:
        """Ask one of them until it does not answer; always raises."""
        async with asyncio.timeout(2 * period_s) as limit:
            connection = await connect(address, Purpose.LEADERS, tls)
            try:
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
