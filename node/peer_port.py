"""The port that other nodes call, from before a cluster is founded until the process ends.

One server for both lives: at first it answers introductions only, and streams are told to come
again; once the shards have recovered ``transport`` answers those. So a node that is still forming,
or replaying a large log, can be told from one that is not there.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from cluster.introduction import Introduction, decode_introduction, encode_answer
from cluster.transport import METHODS, SERVER_OPTIONS, PeerTransport
from cluster.wire_errors import WireError
from node.errors import ConfigError
from node.introducer import Introducer
from node.topology import LeaderView
from onelog.v1 import peer_pb2

SERVICE = peer_pb2.DESCRIPTOR.services_by_name["Peer"].full_name
# Callers may come again and again; each difference is said once.
REFUSALS_SAID_MAX = 256

_log = logging.getLogger("onelog.node.peers")


class PeerPort:
    """See the module's text."""

    def __init__(
        self,
        listen: str,
        credentials: grpc.ServerCredentials | None = None,
        introducer: Introducer | None = None,
    ) -> None:
        self.introducer = introducer
        self.transport: PeerTransport | None = None
        self.leaders: Callable[[], Mapping[int, LeaderView]] = dict
        self.port = 0
        # Called after every introduction that was taken: something may be known now.
        self.heard: Callable[[], None] = lambda: None
        self._listen = listen
        self._credentials = credentials
        self._server: grpc.aio.Server | None = None
        self._said: set[str] = set()

    async def start(self) -> None:
        """Listen; starting again does nothing."""
        if self._server is not None:
            return
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((_Handlers(self),))
        try:
            if self._credentials is None:
                self.port = server.add_insecure_port(self._listen)
            else:
                self.port = server.add_secure_port(self._listen, self._credentials)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen for other nodes on {self._listen}: another process does, or it is "
                "not an address of this machine; change listen.peers"
            ) from error
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """End all calls and close the port."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    # What callers ask

    async def introduce(self, request: bytes, context: Any) -> bytes:
        """Answer ``Introduce``."""
        introducer = self.introducer
        if introducer is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not ready to be asked")
        assert introducer is not None
        try:
            theirs = decode_introduction(request)
        except WireError as error:
            self._say(f"refused an introduction from {context.peer()}: {error}")
            return encode_answer(introducer.mine, error)
        try:
            mine: Introduction = introducer.answer(theirs)
        except WireError as error:
            self._say(f"refused {theirs.node_name} ({theirs.node_id}): {error}")
            return encode_answer(introducer.mine, error)
        self.heard()
        return encode_answer(mine, None)

    async def list_leaders(self, request: bytes, context: Any) -> bytes:
        """Answer ``ListLeaders``, to workers of the same node."""
        message = peer_pb2.PeerLeadersRequest()
        introducer = self.introducer
        try:
            message.ParseFromString(request)
        except Exception:  # noqa: BLE001 - protobuf's own classes differ; any of them says the same
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a request")
        if introducer is None or message.node_id != introducer.mine.node_id.bytes:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "only for the same node")
        return encode_leaders(self.leaders())

    def _say(self, text: str) -> None:
        if text not in self._said and len(self._said) < REFUSALS_SAID_MAX:
            self._said.add(text)
            _log.warning("%s", text)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler at the time of the call, since they change."""

    def __init__(self, port: PeerPort) -> None:
        self._port = port
        self._unary = {
            f"/{SERVICE}/Introduce": grpc.unary_unary_rpc_method_handler(port.introduce),
            f"/{SERVICE}/ListLeaders": grpc.unary_unary_rpc_method_handler(port.list_leaders),
        }
        self._later = grpc.stream_stream_rpc_method_handler(_come_again)

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        """See gRPC's ``GenericRpcHandler``."""
        service, _, method = details.method.rpartition("/")
        if service == f"/{SERVICE}" and method in METHODS:
            transport = self._port.transport
            return self._later if transport is None else transport.handlers()[method]
        return self._unary.get(details.method)


async def _come_again(_requests: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "this node is starting")


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
    credentials: grpc.ChannelCredentials | None,
    learn: Callable[[Mapping[int, LeaderView]], None],
    period_s: float,
) -> None:
    """Ask the other workers of this node again and again who leads their shards."""
    request = peer_pb2.PeerLeadersRequest(node_id=node_id.bytes).SerializeToString()

    async def watch(address: str) -> None:
        async with (
            grpc.aio.insecure_channel(address)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials)
        ) as channel:
            ask = channel.unary_unary(f"/{SERVICE}/ListLeaders")
            while True:
                try:
                    learn(decode_leaders(await ask(request, timeout=2 * period_s)))
                except grpc.RpcError as error:
                    _log.debug("worker at %s: %s", address, error)
                await asyncio.sleep(period_s)

    async with asyncio.TaskGroup() as group:
        for each in addresses.values():
            group.create_task(watch(each))
