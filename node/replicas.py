"""The replicated part of a node, put together: directory, shards, driver, streams to the peers.

One object owns them and fixes their order. Starting: the directory is locked and checked before
anything is read, the shards recover, the server listens, peers are dialled. Stopping: requests
under way get a bounded time, the streams end, the logs are synced and closed, the lock is released.
An error in any part ends ``run`` with that error.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

import grpc.aio  # type: ignore[import-untyped]

from cluster.config import RaftConfig
from cluster.handshake import Identity
from cluster.transport import SERVER_OPTIONS, PeerTransport, TransportConfig
from cluster.wire import WireError
from node.driver import Driver
from node.requests import ShardConfig
from node.shard import Shard
from ual.directory import DataDirectory, Topology
from ual.files import DiskFiles, Files
from ual.log_config import LogConfig


class SystemClock:
    """The machine's clocks and chance."""

    def now_s(self) -> float:
        """See ``NodeClock``."""
        return time.monotonic()

    def wall_ns(self) -> int:
        """See ``NodeClock``."""
        return time.time_ns()

    def random(self) -> float:
        """See ``NodeClock``."""
        return random.random()  # noqa: S311 - spreads elections, decides nothing


@dataclass(frozen=True, slots=True)
class ReplicasConfig:
    """Who a node is, where its data and its peers are."""

    data_dir: Path
    cluster_id: UUID
    node_id: UUID
    node_name: str
    created_at: str
    listen: str  # host:port of the peer service
    peers: Mapping[UUID, str]  # where the others listen
    topology: Topology = field(default_factory=Topology)
    log: LogConfig = field(default_factory=LogConfig)
    raft: RaftConfig = field(default_factory=RaftConfig)
    # Smaller groups than a shard allows: the next ones are synced while these are applied, and one
    # is applied in a few milliseconds, between two heartbeats. At 512 the cost of a proposal is
    # already spread thin.
    shard: ShardConfig = field(default_factory=lambda: ShardConfig(group_entries_max=512))
    transport: TransportConfig = field(default_factory=TransportConfig)
    # Without credentials peers are not authenticated: for loopback and tests only.
    server_credentials: grpc.ServerCredentials | None = None
    channel_credentials: grpc.ChannelCredentials | None = None


class Replicas:
    """All shards of a node, replicated. Made and used on one loop."""

    def __init__(self, config: ReplicasConfig, files: Files | None = None) -> None:
        self.config = config
        self.clock = SystemClock()
        files = files or DiskFiles()
        topology = config.topology
        self._directory = DataDirectory.open_or_create(
            files,
            config.data_dir,
            topology=topology,
            node_name=config.node_name,
            cluster_id=config.cluster_id,
            node_id=config.node_id,
            created_at=config.created_at,
        )
        identity = Identity(
            config.cluster_id,
            config.node_id,
            topology.shards,
            topology.partitions,
            incarnation=secrets.randbits(63),
        )
        self.driver = Driver(refuse=self._refuse)
        self.transport = PeerTransport(
            identity,
            self.driver.deliver,
            config=config.transport,
            credentials=config.channel_credentials,
        )
        for number in range(topology.shards):
            self.driver.add(number, self._open(files, number))
        self.transport.set_peers(config.peers)
        self.port = 0

    def _open(self, files: Files, number: int) -> Shard:
        config, send = self.config, self.transport.send
        return Shard(
            files,
            self._directory.shard_path(number),
            number,
            config.node_id,
            sorted(config.peers),
            self.clock,
            lambda target, message: send(target, number, message),
            config=config.shard,
            log_config=config.log,
            raft_config=config.raft,
        )

    def _refuse(self, sender: UUID, error: WireError) -> None:
        """End the stream of a peer that sent something damaged."""
        self.transport.refuse(sender, error)

    async def run(self, started: asyncio.Event | None = None) -> None:
        """Serve until ``stop``; raises what failed."""
        config = self.config
        server = grpc.aio.server(options=SERVER_OPTIONS)
        self.transport.attach(server)
        if config.server_credentials is None:
            self.port = server.add_insecure_port(config.listen)
        else:
            self.port = server.add_secure_port(config.listen, config.server_credentials)
        await server.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.transport.run(), name="transport")
                driving = group.create_task(self.driver.run(), name="driver")
                if started is not None:
                    started.set()
                driving.add_done_callback(partial(_stop_transport, self.transport))
        finally:
            await server.stop(None)
            self._directory.close()

    async def stop(self, grace_s: float = 2.0) -> None:
        """Let what is under way finish, for a bounded time; ``run`` returns."""
        await self.driver.stop(grace_s)


def _stop_transport(transport: PeerTransport, _task: object) -> None:
    transport.stop()
