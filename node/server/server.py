"""One process of a node, put together: from settings to a database, and back to an empty port.

Starting: the directory is claimed; HTTP and the API listen, so that probes see how far it
is; the cluster is founded, joined or known; shards recover on a thread; peers are dialled; with
leaders known the process is ready. Calls of clients get through once all shards have recovered
(``node/edge/gate.py``).

Stopping, on SIGTERM or SIGINT or when asked: not ready any more; clients are asked to go elsewhere
and new calls are refused; those under way get ``shutdown.drain_s``; leaderships are handed over
within ``shutdown.transfer_s``; the logs are synced and closed; the directory is free. A second
signal ends the process at once, which loses nothing that was acknowledged: it is what a crash is.

An error in any part ends ``run`` with that error, after the rest was closed. So does the removal of
this node from its cluster (node/membership/removal.py), unless the settings keep the process.
"""

import asyncio
import logging
import os
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any
from uuid import UUID

from starlette.responses import Response

from onelog.cluster.raft.member import RaftMember
from onelog.cluster.raft.membership import Membership
from onelog.node.config.schema import Config
from onelog.node.context import NodeContext, Service, ServiceFactory
from onelog.node.credentials import LOOK_S as CERTIFICATES_S
from onelog.node.credentials import Credentials
from onelog.node.edge.gate import Gate
from onelog.node.edge.port import CUT_S, ApiServer
from onelog.node.edge.shards import get_edge
from onelog.node.errors import ConfigError, MemberRemoved
from onelog.node.membership.balance import LeaderBalance
from onelog.node.membership.formation import Formation, LocalProcess
from onelog.node.membership.peer_port import PeerPort, watch_siblings
from onelog.node.membership.removal import RemovalWatch, describe_membership
from onelog.node.membership.topology import LeaderView, LiveTopology, NodeView
from onelog.node.metrics import CONTENT_TYPE, Metrics
from onelog.node.public_errors import member_removed
from onelog.node.readiness import Readiness
from onelog.node.replica.driver import ShardDriver
from onelog.node.replica.retention import Holding
from onelog.node.replicas import RecoveryStopped, Replicas, ReplicasConfig, SystemClock
from onelog.node.server.content_metrics import ContentMetrics
from onelog.node.server.descriptors import Shares, share
from onelog.node.server.http import HttpLimits, HttpServer, respond, respond_json
from onelog.node.server.memory import MemoryReserve, describe_held
from onelog.node.server.snapshot_schedule import SnapshotMetrics, SnapshotSchedule
from onelog.node.services.health import Health
from onelog.node.services.reflection import make_reflection
from onelog.node.snapshots.past import PastStates
from onelog.node.snapshots.taking import Snapshots
from onelog.node.tracing import Tracer, open_tracer
from onelog.ual.directory import Claim, DataDirectory, Node, System, require_data
from onelog.ual.errors import is_out_of_memory
from onelog.ual.files import DiskFiles

# How often readiness is checked, and the other workers of this node are asked for leaders.
LOOK_S = 0.1
SIBLINGS_S = 0.5
EXIT_AT_ONCE = 1

_log = logging.getLogger("onelog.node.server")


class Server:
    """See the module's text."""

    def __init__(
        self,
        config: Config,
        services: Sequence[ServiceFactory] = (),
        *,
        worker: int = 0,
        node: Node | None = None,
    ) -> None:
        """``node``: who this is, where a supervisor of several workers has decided it.

        Certificates are read here: a bad one ends the start before anything is opened.
        """
        self.config = config
        self._credentials = Credentials(config.security)
        self.worker = worker
        self.clock = SystemClock()
        self.metrics = Metrics()
        self.readiness = Readiness(self.clock.now_s)
        self.context: NodeContext | None = None
        self.api_port = self.http_port = 0
        self._node = node
        self._factories = services
        self._stop = asyncio.Event()
        self._health = Health()
        self._gate = Gate(
            self.readiness,
            self.metrics,
            limits=config.limits,
        )
        self._services: list[Service] = []
        self._reserve = MemoryReserve()
        self._members: dict[int, RaftMember] = {}  # of the shards that have started

    def stop(self) -> None:
        """Begin to stop."""
        self.readiness.stop()
        self._stop.set()

    def describe_held(self) -> str:
        """Return what this process holds in memory, for its last words."""
        self._reserve.release()
        return describe_held(self.context, self._gate)

    def stop_on_signals(self) -> None:
        """Stop on the first SIGTERM or SIGINT, at once on the second."""

        def on_signal(number: signal.Signals) -> None:
            if self._stop.is_set():
                os._exit(EXIT_AT_ONCE)
            _log.info("%s: stopping", number.name)
            self.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal, number)

    async def run(self) -> None:
        """Serve until ``stop``; raises what failed."""
        config, worker = self.config, self.worker
        path = config.node.data_dir
        if config.node.workers > 1:
            path /= f"worker-{worker}"
        shares = self._share_descriptors()
        if config.node.require_data:
            require_data(DiskFiles(), path)
        claim = DataDirectory.claim(DiskFiles(), path, self._node or new_node(config))
        log_narrowed(claim)
        http = self._make_http(shares.http)
        port = PeerPort(
            str(config.listen.peers.plus(worker)),
            self._credentials.peer_server,
            connections_max=shares.peers,
        )
        api: ApiServer | None = None
        tracer: Tracer | None = None
        watching: asyncio.Task[None] | None = None
        try:
            self._bind_credentials(claim)
            if self._credentials.is_used:
                watching = asyncio.create_task(self._watch_certificates(), name="certificates")
            tracer = self._open_tracer(claim.node)
            # The ports are part of what a node says of itself: they come first.
            api = ApiServer(config, worker, self._gate, self._credentials, shares.api)
            self.metrics.watch_ports(
                {"api": api.acceptor, "http": http.acceptor, "peers": port.listener.acceptor}
            )
            await self._listen(api, port, http)
            local = LocalProcess(
                config, claim.node, worker, self._endpoints(self.api_port), self._peer_address(port)
            )
            self._make_context(local, tracer)
            self._add_services(api)
            api.start()
            await self._serve(local, claim, port, api)
            self._reserve.release_all()
        finally:
            self.readiness.stop()
            if api is not None:
                await api.stop(0.0)
            if self.context is not None:
                await self.context.close()
            await port.stop()
            await http.stop()
            if watching is not None:
                watching.cancel()
            if tracer is not None:
                tracer.close()
            claim.close()
            self._credentials.node_names = tuple
            _log.info("stopped")

    # Starting

    def _bind_credentials(self, claim: Claim) -> None:
        """Check that the certificate is this node's, as far as its cluster is known."""
        cluster = self.config.cluster
        name = "" if cluster.join and "cluster.name" not in self.config.given else cluster.name
        if claim.system is not None:
            name = claim.system.cluster_name or name
        self._credentials.bind(name, claim.node.name)

    def _share_descriptors(self) -> Shares:
        config = self.config
        shares = share(config, -(-config.cluster.shards // config.node.workers))
        if shares.api < config.limits.connections_max:
            _log.warning(
                "the limit of open files leaves room for %d client connections, not for the %d of "
                "limits.connections_max; raise it (ulimit -n)",
                shares.api,
                config.limits.connections_max,
            )
        return shares

    def _make_http(self, connections_max: int) -> HttpServer:
        address, http = self.config.listen.http.plus(self.worker), self.config.http
        return HttpServer(
            address.host,
            address.port,
            {"/metrics": self._metrics_page},
            {"/healthz": self._health_page, "/ready": self._ready},
            HttpLimits(
                connections_max, http.request_s_max, http.header_bytes_max, http.keep_alive_s_max
            ),
        )

    async def _listen(self, api: ApiServer, port: PeerPort, http: HttpServer) -> None:
        """Take all ports; one error names all that cannot be had."""
        failed = []
        for take in (
            partial(self._listen_api, api),
            port.start,
            partial(self._listen_http, http),
        ):
            try:
                await take()
            except ConfigError as error:
                failed.append(error)
        if failed:
            raise ConfigError("; ".join(map(str, failed))) from failed[0]

    async def _listen_api(self, api: ApiServer) -> None:
        self.api_port = await api.bind()

    async def _listen_http(self, http: HttpServer) -> None:
        address = self.config.listen.http.plus(self.worker)
        try:
            self.http_port = await http.start()
        except OSError as error:
            raise ConfigError(
                f"cannot listen for HTTP on {address}: {error.strerror or error}; change "
                "listen.http (--http-listen)"
            ) from error

    def _endpoints(self, bound_port: int) -> tuple[str, ...]:
        """Return where clients call each worker of this node."""
        advertised = self.config.api_advertised
        if advertised.port == 0:
            return (f"{advertised.host}:{bound_port}",)
        return tuple(str(advertised.plus(each)) for each in range(self.config.node.workers))

    def _peer_address(self, port: PeerPort) -> str:
        """Return where other nodes call worker 0 of this one."""
        advertised = self.config.peers_advertised
        return str(advertised) if advertised.port else f"{advertised.host}:{port.port}"

    def _make_context(self, local: LocalProcess, tracer: Tracer | None) -> None:
        view = NodeView(
            local.node.node_id,
            local.node.name,
            local.endpoints,
            local.peer_address,
            is_connected=True,
        )
        drivers: dict[int, ShardDriver] = {}
        self.context = NodeContext(
            self.config,
            local.node.node_id,
            local.node.name,
            self.clock,
            self.metrics,
            LiveTopology(view, self.worker),
            Snapshots(self.clock, self.config.builder_limits()),
            PastStates(drivers, self.clock, self.config.as_of_config()),
            Holding(drivers, self.clock),
            self.clock.now_s(),
            drivers,
            credentials=self._credentials if self._credentials.is_used else None,
            tracer=tracer,
        )

    def _open_tracer(self, node: Node) -> Tracer | None:
        path = self.config.trace.file
        if path is None:
            return None
        if self.config.node.workers > 1:
            path = path.with_stem(f"{path.stem}-{self.worker}")  # each has one of its own
        about = {"service.instance.id": f"{node.node_id}/{self.worker}", "onelog.node": node.name}
        dropped = self.metrics.trace_spans_dropped
        return open_tracer(path, self.config.trace.ratio, about, dropped)

    def _add_services(self, api: ApiServer) -> None:
        assert self.context is not None
        self._services = [make(self.context) for make in self._factories]
        calls = get_edge(self.context).calls
        names = [each.name for each in self._services]
        for each in (*self._services, self._health.service(calls), *make_reflection(calls, names)):
            api.add(each)

    # Serving

    async def _serve(
        self, local: LocalProcess, claim: Claim, port: PeerPort, api: ApiServer
    ) -> None:
        self._set_health(is_ready=False)
        system = await self._form(local, claim, port)
        if system is None:
            return
        directory = claim.complete(system)
        assert port.introducer is not None
        port.introducer.found(system)
        _log.info(
            "node %s (%s) of cluster %s (%s)",
            local.node.name, local.node.node_id, system.cluster_name, system.cluster_id,
        )  # fmt: skip
        config = self._replicas_config(local, system)
        self.readiness.recover(list(config.shards or ()))
        try:
            replicas = await Replicas.open(config, directory, port, self.readiness.progress)
        except RecoveryStopped:
            return
        context = self._enter(local, system, replicas, port)
        _log.info(
            "serving on %s",
            local.endpoints[self.worker],
            extra={
                "fields": {
                    "api": local.endpoints[self.worker],
                    "http": f"{self.config.listen.http.host}:{self.http_port}",
                    "data_dir": str(claim.path),
                }
            },
        )
        await self._run(context, replicas, api, self._siblings(local))

    async def _form(self, local: LocalProcess, claim: Claim, port: PeerPort) -> System | None:
        """Return the cluster; None if the process should stop before there is one."""
        formation = Formation(local, claim, port, self._credentials.peer_client, self.readiness.say)
        forming = asyncio.create_task(formation.run())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((forming, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if forming.done():
            return forming.result()
        forming.cancel()
        with suppress(asyncio.CancelledError):
            await forming
        return None

    def _replicas_config(self, local: LocalProcess, system: System) -> ReplicasConfig:
        config, self_id = self.config, local.node.node_id
        # Nodes may have moved since: what the settings say of a founder's address counts.
        moved = {name: str(address) for name, address in config.cluster.initial}
        founders = system.founders
        return ReplicasConfig(
            cluster_id=system.cluster_id,
            node_id=self_id,
            node_name=local.node.name,
            cluster_name=system.cluster_name or config.cluster.name,
            names={each.node_id: each.name for each in founders},
            peers={
                each.node_id: shifted(moved.get(each.name, each.address), self.worker)
                for each in founders
                if each.node_id != self_id
            },
            founders=Membership.of(each.node_id for each in founders) if founders else None,
            shards=tuple(range(self.worker, system.topology.shards, system.workers)),
            endpoints=local.endpoints,
            topology=system.topology,
            log=config.log_config(),
            raft=config.raft_config(),
            shard=config.shard_config(),
            transport=config.transport_config(),
            shipping=config.shipping_config(),
            keep=config.keep_config(),
            client_tls=self._credentials.peer_client,
        )

    def _enter(
        self, local: LocalProcess, system: System, replicas: Replicas, port: PeerPort
    ) -> NodeContext:
        """Make the recovered shards available to the services."""
        context = self.context
        assert context is not None
        transport = replicas.transport
        context.transport = transport
        context.drivers.update(replicas.drivers)
        context.repairs = self.readiness.repairs = replicas.repairs
        context.topology.found(system.cluster_id, system.topology)

        def find_leader(shard: int) -> LeaderView | None:
            driver, repair = context.drivers.get(shard), context.repairs.get(shard)
            if driver is None:
                return None if repair is None else LeaderView(repair.leader_id, repair.leader_term)
            member = driver.shard.member
            return LeaderView(member.leader_id, member.term, member.membership.members)

        def peers() -> Iterator[NodeView]:
            names = {each.node_id: each.name for each in system.founders}
            for node_id, status in transport.status().items():
                yield NodeView(
                    node_id,
                    status.name or names.get(node_id, ""),
                    status.endpoints,
                    status.address,
                    status.is_connected,
                )

        context.topology.attach(peers, find_leader)
        self._credentials.bind(system.cluster_name or self.config.cluster.name, local.node.name)
        self._credentials.node_names = lambda: [each.name for each in context.topology.nodes()]
        assert port.introducer is not None
        port.introducer.members = lambda: {
            local.node.name: local.node.node_id,
            **{each.name: each.node_id for each in peers() if each.name},
        }
        port.leaders = lambda: {
            shard: view for shard in context.drivers if (view := find_leader(shard)) is not None
        }
        members = self._members
        members.update({number: each.shard.member for number, each in context.drivers.items()})
        port.describe_membership = partial(describe_membership, members)
        replicas.started = self._started
        context.balance = LeaderBalance(
            local.node.node_id,
            context.drivers,
            lambda: [each for each, status in transport.status().items() if status.is_connected],
            self.metrics,
            self.config.cluster.balance_period_s,
        )
        self.metrics.watch(context.drivers, replicas.driver, transport)
        self.metrics.registry.register(SnapshotMetrics(context))
        self.metrics.sliced.append(ContentMetrics(context).collect)
        self.readiness.elect(context.drivers)
        if local.node.node_id not in {each.node_id for each in system.founders}:
            self.readiness.say(
                f"to be added as a member: {local.node.node_id} ({local.node.name}) at "
                f"{local.peer_address}"
            )
        return context

    def _started(self, number: int, driver: ShardDriver) -> None:
        """Make a shard available that has started later than the others."""
        assert self.context is not None
        self._members[number] = driver.shard.member
        self.context.drivers[number] = driver
        self.metrics.watch_shard(number, driver)

    def _siblings(self, local: LocalProcess) -> dict[int, str]:
        """Return where the other workers of this node answer."""
        at = self.config.listen.peers
        return {
            each: str(at.plus(each))
            for each in range(self.config.node.workers)
            if each != self.worker and local.config.node.workers > 1
        }

    async def _run(
        self,
        context: NodeContext,
        replicas: Replicas,
        api: ApiServer,
        siblings: dict[int, str],
    ) -> None:
        """Serve until asked to stop or something fails; then end in order."""
        assert context.balance is not None
        asyncio.get_running_loop().set_exception_handler(partial(_on_loop_error, replicas))
        driving = asyncio.create_task(replicas.run(), name="replicas")
        schedule = SnapshotSchedule(context)
        background = [
            asyncio.create_task(self._watch_readiness(), name="readiness"),
            asyncio.create_task(schedule.run(), name="snapshots"),
            asyncio.create_task(context.holding.run(schedule.trim_now), name="holds"),
            asyncio.create_task(self._watch_removal(context, replicas, api), name="removal"),
        ]
        background += [asyncio.create_task(each()) for each in context.chores]
        if self.config.cluster.balance_leaders:
            background.append(asyncio.create_task(context.balance.run(), name="balance"))
        if siblings:
            watching = watch_siblings(
                siblings,
                replicas.transport.identity,
                self._credentials.peer_client,
                context.topology.learn,
                SIBLINGS_S,
            )
            background.append(asyncio.create_task(watching, name="siblings"))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait(
                (driving, stopping, *background), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self._reserve.release()  # what follows may be the end for lack of memory
            for each in (stopping, *background):
                each.cancel()
            ended = await asyncio.gather(*background, return_exceptions=True)
        if not driving.done():
            await self._leave(context, replicas, api)
        await driving
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _leave(self, context: NodeContext, replicas: Replicas, api: ApiServer) -> None:
        """Stop serving, in the order that hurts clients least."""
        shutdown = self.config.shutdown
        self.readiness.stop()
        context.stopping.set()
        self._set_health(is_ready=False)
        api.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(shutdown.drain_s):
                await self._gate.idle()
        if self._gate.under_way:
            _log.warning("%d calls did not end in %g s", self._gate.under_way, shutdown.drain_s)
        assert context.balance is not None
        await context.balance.leave(shutdown.transfer_s)
        await api.stop(CUT_S)
        await context.past.close()  # it reads the logs
        await replicas.stop()

    async def _watch_readiness(self) -> None:
        was_ready = False
        while True:
            is_ready = self.readiness.look()
            if is_ready != was_ready:
                was_ready = is_ready
                if is_ready:
                    self.readiness.say("")
                _log.info("ready" if is_ready else "not ready: %s", *(
                    () if is_ready else (self.readiness.report()["waiting_for"],)
                ))  # fmt: skip
                self._set_health(is_ready=is_ready)
            await asyncio.sleep(LOOK_S)

    async def _watch_removal(
        self, context: NodeContext, replicas: Replicas, api: ApiServer
    ) -> None:
        """Raise ``MemberRemoved`` when the cluster has removed this node; or stay, if so set."""
        tls = self._credentials.peer_client
        watch = RemovalWatch(self._members, replicas.transport, tls, self.clock.now_s)
        self.readiness.removed = watch.removed
        await watch.run()
        self.readiness.remove()
        self._set_health(is_ready=False)
        what = f"the cluster has removed {context.node_name} ({context.node_id})"
        advice = (
            "start a new node with an empty directory and --join to replace it; to take it back as "
            "it is, add it again (onelog admin members add) and start it"
        )
        if not self.config.node.keep_after_removal:
            raise MemberRemoved(f"{what}; {advice}")
        api.cut(member_removed())
        replicas.transport.set_peers({})  # they would refuse it again and again
        _log.error("%s, and this process stays for inspection; %s", what, advice)
        await self._stop.wait()

    async def _watch_certificates(self) -> None:
        while True:
            self._credentials.look()
            for setting, expires_s in self._credentials.expires_s.items():
                self.metrics.certificate_expiry.labels(setting).set(expires_s)
            await asyncio.sleep(CERTIFICATES_S)

    def _set_health(self, *, is_ready: bool) -> None:
        self.metrics.ready.set(is_ready)
        for name in ("", *(each.name for each in self._services)):
            self._health.set(name, is_serving=is_ready)

    # HTTP

    async def _metrics_page(self) -> Response:
        return respond(HTTPStatus.OK, await self.metrics.page(), CONTENT_TYPE)

    async def _health_page(self) -> Response:
        return respond(HTTPStatus.OK, b"ok\n")

    async def _ready(self) -> Response:
        report = self.readiness.report()
        status = HTTPStatus.OK if report["ready"] else HTTPStatus.SERVICE_UNAVAILABLE
        return respond_json(status, report)


def _on_loop_error(
    replicas: Replicas, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """End the process if a callback had no memory: nobody knows how far it came."""
    error = context.get("exception")
    if isinstance(error, BaseException) and is_out_of_memory(error):
        replicas.driver.fail(error)
    else:
        loop.default_exception_handler(context)


def new_node(config: Config) -> Node:
    """Return the identity of a new node, for a directory that has no owner."""
    created_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    node_id = UUID(bytes=secrets.token_bytes(16), version=4)
    return Node(node_id, config.node.name, created_at)


def log_narrowed(claim: Claim) -> None:
    """Say that others had access to the directory, if they had."""
    if claim.narrowed:
        _log.warning(
            "others had access to %s and %d more: only the owner has now",
            claim.narrowed[0],
            len(claim.narrowed) - 1,
        )


def shifted(address: str, worker: int) -> str:
    """Return where a worker of a node listens whose worker 0 listens at ``address``."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + worker}" if worker else address
