"""The replicated part of a node, put together: directory, shards, driver, streams to the peers.

One object owns them and fixes their order. Starting: the directory is locked and checked before
anything is read, the shards recover, the server listens, peers are dialled. Stopping: requests
under way get a bounded time, the streams end, the logs are synced and closed, the lock is released.
An error in any part ends ``run`` with that error.

Shards recover on a thread (``Replicas.open``), one after the other: a large log takes a while, and
the loop has others to answer. A shard belongs to the loop from the moment it is handed over.

A shard whose log is damaged where its replay needs it does not keep the others from starting: what
it lacks is fetched from other members first (node/replica/start_repair.py), and it starts later
(``started``). Without other members the start fails with ``ShardDamaged``.
"""

import asyncio
import logging
import random
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from onelog.cluster.config import RaftConfig, ShippingConfig
from onelog.cluster.raft.membership import Membership
from onelog.cluster.transport.handshake import Identity
from onelog.cluster.transport.peers import PeerTransport, TransportConfig
from onelog.cluster.transport.wire import WireError
from onelog.node.errors import ShardDamaged
from onelog.node.membership.peer_port import PeerPort
from onelog.node.replica.driver import Driver, RepairDriver, ShardDriver
from onelog.node.replica.requests import ShardConfig
from onelog.node.replica.shard import Shard
from onelog.node.replica.start_repair import (
    REPAIRS_MAX,
    START_ERRORS,
    FoundDamage,
    StartRepair,
    find_damage,
)
from onelog.snapshot.progress import Phase, Progress
from onelog.snapshot.store import KeepConfig
from onelog.ual.directory import DataDirectory, Topology
from onelog.ual.errors import UnknownVersion
from onelog.ual.files import DiskFiles, Files
from onelog.ual.log_config import LogConfig

DISK = DiskFiles()

_log = logging.getLogger("onelog.node.replicas")


class SystemClock:
    """The machine's clocks and chance."""

    # See ``NodeClock``. Nothing around them: a group reads the clock many times.
    now_s = staticmethod(time.monotonic)
    wall_ns = staticmethod(time.time_ns)
    random = staticmethod(random.random)  # spreads elections, decides nothing


@dataclass(frozen=True, slots=True)
class ReplicasConfig:
    """Who a node is, where its data and its peers are."""

    cluster_id: UUID
    node_id: UUID
    node_name: str
    peers: Mapping[UUID, str]  # where the others listen: of a new cluster all, else some
    cluster_name: str = ""
    # The names of founders, which their certificates have; those of others are in the log.
    names: Mapping[UUID, str] = field(default_factory=dict)
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
    keep: KeepConfig = field(default_factory=KeepConfig)
    # Without it peers are not authenticated: for loopback and tests only.
    client_tls: ssl.SSLContext | None = None


# How often a node looks whether its data directory is still there.
DIRECTORY_CHECK_S = 0.5


class RecoveryStopped(Exception):
    """Somebody asked the process to end while its shards recovered."""


# Called with a shard's recovery progress, on the recovering thread; may raise to stop it.
ShardProgress = Callable[[int, Phase, int, int], None]


def _refuse_start(
    number: int, error: Exception, found: FoundDamage | None, *, is_alone: bool
) -> ShardDamaged:
    """Return why a shard cannot start, and what an operator can do about it."""
    what = f"shard {number} cannot start: {error}"
    if found is not None:
        why = "there is no other member to fetch that from"
        if not is_alone:
            why = f"it was repaired {REPAIRS_MAX} times and is damaged again: replace the disk"
        what = f"shard {number} cannot start: it needs {found.describe()}, and {why}"
    advice = "onelog log verify lists all damage, and onelog log repair what can be repaired here"
    last = "restore the shard from a backup"
    if not is_alone:
        last = "remove this node from the cluster, and add a new one with an empty directory"
    return ShardDamaged(f"{what}; {advice}; else {last}")


class Replicas:
    """All shards of a node, replicated. Made and used on one loop."""

    def __init__(
        self, config: ReplicasConfig, directory: DataDirectory, port: PeerPort, files: Files
    ) -> None:
        """Without its shards, which ``open`` recovers."""
        self.config = config
        self.clock = SystemClock()
        self._files = files
        self._directory = directory
        self._port = port
        topology = config.topology
        identity = Identity(
            config.cluster_id,
            config.node_id,
            topology.shards,
            topology.partitions,
            incarnation=secrets.randbits(63),
            node_name=config.node_name,
            endpoints=config.endpoints,
            cluster_name=config.cluster_name,
        )
        self.driver = Driver(refuse=self._refuse)
        self.transport = PeerTransport(
            identity,
            self.driver.deliver,
            config=config.transport,
            tls=config.client_tls,
        )
        self.drivers: dict[int, ShardDriver] = {}
        # The shards that cannot start before their logs are repaired.
        self.repairs: dict[int, StartRepair] = {}
        # Called with a shard that has started later than the others.
        self.started: Callable[[int, ShardDriver], None] = lambda _number, _driver: None
        self._repairing: dict[int, RepairDriver] = {}
        self._repaired: Counter[tuple[int, int]] = Counter()  # by shard and first index
        self._progress: ShardProgress = lambda _number, _phase, _done, _total: None

    @classmethod
    async def open(
        cls,
        config: ReplicasConfig,
        directory: DataDirectory,
        port: PeerPort,
        progress: ShardProgress,
        files: Files = DISK,
    ) -> "Replicas":
        """Recover the shards without holding up the loop; ``directory`` is taken over."""
        made = cls(config, directory, port, files)
        loop = asyncio.get_running_loop()
        made._progress = progress
        with ThreadPoolExecutor(1, thread_name_prefix="recovery") as executor:
            try:
                for number in made.shard_numbers:
                    opened = await loop.run_in_executor(executor, made._open_or_repair, number)
                    if isinstance(opened, StartRepair):
                        made._repair(opened)
                    else:
                        made._add(number, opened)
            except BaseException:
                await made.stop(0)
                directory.close()
                raise
        made._meet_members()
        return made

    def _add(self, number: int, shard: Shard) -> None:
        driver = self.drivers[number] = self.driver.add(number, shard)
        driver.on_members = self._meet_members

    def _repair(self, repair: StartRepair) -> None:
        self.repairs[repair.number] = repair
        self._repairing[repair.number] = self.driver.add_repair(repair)
        _log.error("shard %d starts when its log is repaired: it needs %s", repair.number,
                   repair.found.describe())  # fmt: skip

    async def _start_repaired(self, number: int) -> None:
        """Open a shard as soon as its log is repaired."""
        loop = asyncio.get_running_loop()
        while True:
            await self._repairing[number].is_over.wait()
            self.driver.end_repair(number)
            # It ends with the process: the directory is not released while it runs.
            with ThreadPoolExecutor(1, thread_name_prefix="recovery") as executor:
                try:
                    opened = await loop.run_in_executor(executor, self._open_or_repair, number)
                except RecoveryStopped:
                    return
            if isinstance(opened, Shard):
                break
            self._repair(opened)
            self._meet_members()
        del self.repairs[number], self._repairing[number]
        self._add(number, opened)
        self._meet_members()
        self.started(number, self.drivers[number])
        _log.warning("shard %d has started: its log is repaired", number)

    @property
    def shard_numbers(self) -> Iterable[int]:
        """The shards of this process."""
        numbers = self.config.shards
        return range(self.config.topology.shards) if numbers is None else numbers

    def _open_or_repair(self, number: int) -> Shard | StartRepair:
        """Open a shard; if members can repair what keeps it from starting, return the repair."""
        config = self.config
        paths = self._directory.shard_path(number)
        try:
            return self._open(number, partial(self._progress, number))
        except START_ERRORS as error:
            found = find_damage(self._files, paths, number, config.log, error)
            known = None if found is None else found.membership
            members = set(config.peers if known is None else known.members) - {config.node_id}
            if isinstance(error, UnknownVersion):
                raise
            if found is None or not members:
                raise _refuse_start(number, error, found, is_alone=not members) from error
            for each in found.in_the_way:
                self._repaired[number, each.first_index] += 1
                if self._repaired[number, each.first_index] > REPAIRS_MAX:
                    raise _refuse_start(number, error, found, is_alone=False) from error
        return StartRepair(
            self._files,
            paths,
            number,
            found,
            members,
            lambda: {node for node, peer in self.transport.status().items() if peer.is_connected},
            config.shipping,
            lambda target, message: self.transport.send(target, number, message),
            self.clock.now_s,
        )

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
            keep=config.keep,
            progress=progress,
        )

    def _meet_members(self) -> None:
        """Keep streams to all members of all shards, at the newest addresses and names known.

        A node that is not a member yet uses the peers that it was given.
        """
        config, members, addresses = self.config, set[UUID](), dict(self.config.peers)
        names = dict(config.names)
        memberships = [each.shard.member.membership for each in self.drivers.values()]
        for repair in self.repairs.values():
            if repair.found.membership is None:  # it asks the founders
                members.update(config.peers)
            else:
                memberships.append(repair.found.membership)
        for membership in memberships:
            members.update(membership.members)
            addresses.update(membership.addresses)
            names.update(membership.names)
        is_founder_asked = any(each.found.membership is None for each in self.repairs.values())
        if config.node_id not in members or is_founder_asked:
            members.update(config.peers)
        members.discard(config.node_id)
        known = {each: addresses[each] for each in members if each in addresses}
        self.transport.set_peers(known, names)

    def _refuse(self, sender: UUID, error: WireError) -> None:
        """End the stream of a peer that sent something damaged."""
        self.transport.refuse(sender, error)

    async def run(self) -> None:
        """Serve until ``stop``; raises what failed."""
        self._port.transport = self.transport
        try:
            await self._port.start()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.transport.run(), name="transport")
                driving = group.create_task(self.driver.run(), name="driver")
                others = [group.create_task(self._watch_directory(), name="directory")]
                for number in self.repairs:
                    starting = self._start_repaired(number)
                    others.append(group.create_task(starting, name=f"start {number}"))
                driving.add_done_callback(partial(_stop_transport, self.transport))
                for each in others:
                    driving.add_done_callback(lambda _, each=each: each.cancel())  # type: ignore[misc]
        finally:
            await self._port.stop()
            self._directory.close()

    async def _watch_directory(self) -> None:
        """Raise ``DirectoryLost`` when the data directory is not there any more."""
        while True:
            await asyncio.to_thread(self._directory.check_in_place, self._files)
            await asyncio.sleep(DIRECTORY_CHECK_S)

    async def stop(self, grace_s: float = 2.0) -> None:
        """Stop after at most ``grace_s`` for requests under way; ``run`` returns then."""
        await self.driver.stop(grace_s)


def _stop_transport(transport: PeerTransport, _task: object) -> None:
    transport.stop()
