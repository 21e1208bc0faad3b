"""The replicated part of a node, put together: directory, shards, driver, streams to the peers.

One object owns them and fixes their order. Starting: the directory is locked and checked before
anything is read, the shards recover, the server listens, peers are dialled. Stopping: requests
under way get a bounded time, the streams end, the logs are synced and closed, the lock is released.
An error in any part ends ``run`` with that error.

Shards recover on a thread (``Replicas.open``), one after the other: a large log takes a while, and
the loop has others to answer. A shard belongs to the loop from the moment it is handed over.
"""

import asyncio
import random
import secrets
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

from onelog.cluster.config import RaftConfig, ShippingConfig
from onelog.cluster.raft.membership import Membership
from onelog.cluster.transport.handshake import Identity
from onelog.cluster.transport.peers import PeerTransport, TransportConfig
from onelog.cluster.transport.wire import WireError
from onelog.node.membership.peer_port import PeerPort
from onelog.node.replica.driver import Driver, ShardDriver
from onelog.node.replica.requests import Outcome, ShardConfig
from onelog.node.replica.shard import Shard
from onelog.snapshot.progress import Phase, Progress, no_progress
from onelog.ual.directory import DataDirectory, Topology
from onelog.ual.files import DiskFiles, Files
from onelog.ual.log_config import LogConfig


class SystemClock:
    """The machine's clocks and chance."""

    # See ``NodeClock``; nothing around it, since a group asks some eighty times.
    now_s = staticmethod(time.monotonic)

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
    peers: Mapping[UUID, str]  # where the others listen: of a new cluster all, else some
    # Where others reach this node, if that is not what it listens on.
    advertise: str = ""
    # The first members of every group; None: this node and its peers.
    founders: Membership | None = None
    # The shards of this process; None: all.
    shards: tuple[int, ...] | None = None
    endpoints: tuple[str, ...] = ()  # where clients call this node, by worker
    topology: Topology = field(default_factory=Topology)
    log: LogConfig = field(default_factory=LogConfig)
    raft: RaftConfig = field(default_factory=RaftConfig)
    # Smaller groups than a shard allows: the next ones are synced while these are applied, and one
    # is applied in a few milliseconds, between two heartbeats. At 512 the cost of a proposal is
    # already spread thin.
    shard: ShardConfig = field(default_factory=lambda: ShardConfig(group_entries_max=512))
    transport: TransportConfig = field(default_factory=TransportConfig)
    shipping: ShippingConfig = field(default_factory=ShippingConfig)
    # Without them peers are not authenticated: for loopback and tests only.
    server_tls: ssl.SSLContext | None = None
    client_tls: ssl.SSLContext | None = None


class RecoveryStopped(Exception):
    """Somebody asked the process to end while its shards recovered."""


# Called with a shard's recovery progress, on the recovering thread; may raise to stop it.
ShardProgress = Callable[[int, Phase, int, int], None]


class Replicas:
    """All shards of a node, replicated. Made and used on one loop."""

    def __init__(
        self,
        config: ReplicasConfig,
        files: Files | None = None,
        *,
        directory: DataDirectory | None = None,
        port: PeerPort | None = None,
        is_open: bool = True,
    ) -> None:
        """Without ``directory`` it is opened or created; without ``is_open`` no shard is yet."""
        self.config = config
        self.clock = SystemClock()
        self._files = files or DiskFiles()
        topology = config.topology
        self._directory = directory or DataDirectory.open_or_create(
            self._files,
            config.data_dir,
            topology=topology,
            node_name=config.node_name,
            cluster_id=config.cluster_id,
            node_id=config.node_id,
            created_at=config.created_at,
        )
        self._port = port or PeerPort(config.listen, config.server_tls)
        identity = Identity(
            config.cluster_id,
            config.node_id,
            topology.shards,
            topology.partitions,
            incarnation=secrets.randbits(63),
            node_name=config.node_name,
            endpoints=config.endpoints,
        )
        self.driver = Driver(refuse=self._refuse)
        self.transport = PeerTransport(
            identity,
            self.driver.deliver,
            config=config.transport,
            tls=config.client_tls,
        )
        self.drivers: dict[int, ShardDriver] = {}
        if is_open:
            for number in self.shard_numbers:
                self._add(number, self._open(number, no_progress))
            self._meet_members()

    @classmethod
    async def open(
        cls,
        config: ReplicasConfig,
        directory: DataDirectory,
        port: PeerPort,
        progress: ShardProgress,
    ) -> "Replicas":
        """Recover the shards without holding up the loop; ``directory`` is taken over."""
        made = cls(config, directory=directory, port=port, is_open=False)
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="recovery") as executor:
            try:
                for number in made.shard_numbers:
                    opening = partial(made._open, number, partial(progress, number))
                    shard = await loop.run_in_executor(executor, opening)
                    made._add(number, shard)
            except BaseException:
                await made.stop(0)
                directory.close()
                raise
        made._meet_members()
        return made

    def _add(self, number: int, shard: Shard) -> None:
        driver = self.drivers[number] = self.driver.add(number, shard)
        driver.on_members = self._meet_members

    @property
    def shard_numbers(self) -> Iterable[int]:
        """The shards of this process."""
        numbers = self.config.shards
        return range(self.config.topology.shards) if numbers is None else numbers

    @property
    def port(self) -> int:
        """The port that peers call, once ``run`` has started."""
        return self._port.port

    def _open(self, number: int, progress: Progress) -> Shard:
        config, send = self.config, self.transport.send
        return Shard(
            self._files,
            self._directory.shard_path(number),
            number,
            config.node_id,
            sorted(config.peers),
            self.clock,
            lambda target, message: send(target, number, message),
            config=config.shard,
            log_config=config.log,
            raft_config=config.raft,
            founders=config.founders,
            shipping=config.shipping,
            progress=progress,
        )

    def _meet_members(self) -> None:
        """Keep streams to all members of all shards, at the newest addresses that are known.

        A node that is no member yet keeps to the peers that it was told of.
        """
        config, members, addresses = self.config, set[UUID](), dict(self.config.peers)
        for driver in self.drivers.values():
            membership = driver.shard.member.membership
            members.update(membership.members)
            addresses.update(membership.addresses)
        if config.node_id not in members:
            members.update(config.peers)
        members.discard(config.node_id)
        self.transport.set_peers({each: addresses[each] for each in members if each in addresses})

    def addressed(self, membership: Membership) -> Membership:
        """Return a membership with every address that this node knows, its own included."""
        config = self.config
        own = {config.node_id: config.advertise or config.listen}
        return membership.at({**config.peers, **own, **dict(membership.addresses)})

    async def add_learner(
        self, number: int, node_id: UUID, address: str, timeout_s: float
    ) -> Outcome:
        """As a shard's leader, add a learner; from then on the others know its address."""
        driver = self.driver[number]
        membership = driver.shard.member.membership.with_learner(node_id).at({node_id: address})
        deadline_s = self.clock.now_s() + timeout_s
        return await driver.change_membership(self.addressed(membership), deadline_s)

    async def promote(self, number: int, node_id: UUID, timeout_s: float) -> Outcome:
        """As a shard's leader, give a learner that has caught up a vote."""
        driver = self.driver[number]
        membership = driver.shard.member.membership.with_promoted(node_id)
        deadline_s = self.clock.now_s() + timeout_s
        return await driver.change_membership(self.addressed(membership), deadline_s)

    async def remove(self, number: int, node_id: UUID, timeout_s: float) -> Outcome:
        """As a shard's leader, remove a member."""
        driver = self.driver[number]
        membership = driver.shard.member.membership.without(node_id)
        deadline_s = self.clock.now_s() + timeout_s
        return await driver.change_membership(self.addressed(membership), deadline_s)

    def _refuse(self, sender: UUID, error: WireError) -> None:
        """End the stream of a peer that sent something damaged."""
        self.transport.refuse(sender, error)

    async def run(self, started: asyncio.Event | None = None) -> None:
        """Serve until ``stop``; raises what failed."""
        self._port.transport = self.transport
        try:
            await self._port.start()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.transport.run(), name="transport")
                driving = group.create_task(self.driver.run(), name="driver")
                if started is not None:
                    started.set()
                driving.add_done_callback(partial(_stop_transport, self.transport))
        finally:
            await self._port.stop()
            self._directory.close()

    async def stop(self, grace_s: float = 2.0) -> None:
        """Stop after at most ``grace_s`` for requests under way; ``run`` returns then."""
        await self.driver.stop(grace_s)


def _stop_transport(transport: PeerTransport, _task: object) -> None:
    transport.stop()
