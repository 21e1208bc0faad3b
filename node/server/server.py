"""One process of a node, put together: from settings to a database, and back to an empty port.

Starting: the directory is claimed; HTTP and the API listen, so that whoever asks hears how far it
is; the cluster is founded, joined or known; shards recover on a thread; peers are dialled; with
leaders known the process is ready. Calls of clients get through once all shards have recovered
(``node/edge/gate.py``).

Stopping, on SIGTERM or SIGINT or when asked: not ready any more; clients are asked to go elsewhere
and new calls are refused; those under way get ``shutdown.drain_s``; leaderships are handed over
within ``shutdown.transfer_s``; the logs are synced and closed; the directory is free. A second
signal ends the process at once, which loses nothing that was acknowledged: it is what a crash is.

An error in any part ends ``run`` with that error, after the rest was closed.
"""

import asyncio
import logging
import os
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from uuid import UUID

from onelog.cluster.raft.membership import Membership
from onelog.node.config.schema import Config
from onelog.node.context import NodeContext, Service, ServiceFactory
from onelog.node.credentials import (
    forward_tls,
    peer_client_tls,
    peer_server_tls,
)
from onelog.node.edge.gate import Gate
from onelog.node.edge.port import CUT_S, ApiServer
from onelog.node.edge.shards import edge_of
from onelog.node.errors import ConfigError, NodeError
from onelog.node.membership.balance import LeaderBalance
from onelog.node.membership.formation import Formation, Place
from onelog.node.membership.peer_port import PeerPort, watch_siblings
from onelog.node.membership.topology import LeaderView, LiveTopology, NodeView
from onelog.node.metrics import CONTENT_TYPE, Metrics
from onelog.node.readiness import Readiness
from onelog.node.replica.driver import ShardDriver
from onelog.node.replica.retention import Holding
from onelog.node.replicas import RecoveryStopped, Replicas, ReplicasConfig, SystemClock
from onelog.node.server.http import HttpLimits, HttpServer, Response
from onelog.node.server.snapshot_schedule import SnapshotMetrics, SnapshotSchedule
from onelog.node.services.health import Health
from onelog.node.services.reflection import make_reflection
from onelog.node.snapshots.past import PastStates
from onelog.node.snapshots.taking import Snapshots
from onelog.node.tracing import Tracer, open_tracer
from onelog.ual.directory import Claim, DataDirectory, Node, System
from onelog.ual.errors import UalError
from onelog.ual.files import DiskFiles

# How often readiness is looked at, and the other workers of this node are asked for leaders.
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
        """``node``: who this is, where a supervisor of several workers has decided it."""
        self.config = config
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

    def stop(self) -> None:
        """Begin to stop."""
        self.readiness.stop()
        self._stop.set()

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
        claim = DataDirectory.claim(DiskFiles(), path, self._node or new_node(config))
        http = HttpServer(
            {"/metrics": self._metrics_page, "/healthz": self._health_page, "/ready": self._ready},
            HttpLimits(
                config.http.connections_max,
                config.http.request_s_max,
                config.http.header_bytes_max,
            ),
        )
        port = PeerPort(str(config.listen.peers.plus(worker)), peer_server_tls(config.security))
        api: ApiServer | None = None
        tracer: Tracer | None = None
        try:
            tracer = self._open_tracer(claim.node)
            await self._listen_http(http)
            # The ports are part of what a node says of itself: they come first.
            api = ApiServer(config, worker, self._gate)
            self.api_port = await api.bind()
            await port.start()
            place = Place(
                config, claim.node, worker, self._endpoints(self.api_port), self._peer_address(port)
            )
            self._make_context(place, tracer)
            self._add_services(api)
            api.start()
            await self._serve(place, claim, port, api)
        finally:
            self.readiness.stop()
            if api is not None:
                await api.stop(0.0)
            if self.context is not None:
                await self.context.close()
            await port.stop()
            await http.stop()
            if tracer is not None:
                tracer.close()
            claim.close()
            _log.info("stopped")

    # Starting

    async def _listen_http(self, http: HttpServer) -> None:
        address = self.config.listen.http.plus(self.worker)
        try:
            self.http_port = await http.start(address.host, address.port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen for HTTP on {address}: {error.strerror or error}; change "
                "listen.http"
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

    def _make_context(self, place: Place, tracer: Tracer | None) -> None:
        view = NodeView(
            place.node.node_id,
            place.node.name,
            place.endpoints,
            place.peer_address,
            is_connected=True,
        )
        drivers: dict[int, ShardDriver] = {}
        self.context = NodeContext(
            self.config,
            place.node.node_id,
            place.node.name,
            self.clock,
            self.metrics,
            LiveTopology(view, self.worker),
            Snapshots(self.clock, self.config.builder_limits()),
            PastStates(drivers, self.clock, self.config.as_of_config()),
            Holding(drivers, self.clock),
            self.clock.now_s(),
            drivers,
            forward_tls=forward_tls(self.config.security),
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
        calls = edge_of(self.context).calls
        names = [each.name for each in self._services]
        for each in (*self._services, self._health.service(calls), *make_reflection(calls, names)):
            api.add(each)

    # Serving

    async def _serve(self, place: Place, claim: Claim, port: PeerPort, api: ApiServer) -> None:
        self._set_health(is_ready=False)
        system = await self._form(place, claim, port)
        if system is None:
            return
        directory = claim.complete(system)
        assert port.introducer is not None
        port.introducer.found(system)
        _log.info(
            "node %s (%s) of cluster %s (%s)",
            place.node.name, place.node.node_id, system.cluster_name, system.cluster_id,
        )  # fmt: skip
        config = self._replicas_config(place, system)
        self.readiness.recover(list(config.shards or ()))
        try:
            replicas = await Replicas.open(config, directory, port, self.readiness.progress)
        except RecoveryStopped:
            return
        context = self._enter(place, system, replicas, port)
        _log.info(
            "serving on %s",
            place.endpoints[self.worker],
            extra={
                "fields": {
                    "api": place.endpoints[self.worker],
                    "http": f"{self.config.listen.http.host}:{self.http_port}",
                    "data_dir": str(claim.path),
                }
            },
        )
        await self._run(context, replicas, api, self._siblings(place))

    async def _form(self, place: Place, claim: Claim, port: PeerPort) -> System | None:
        """Return the cluster; None if the process should stop before there is one."""
        formation = Formation(
            place, claim, port, peer_client_tls(self.config.security), self.readiness.say
        )
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

    def _replicas_config(self, place: Place, system: System) -> ReplicasConfig:
        config, self_id = self.config, place.node.node_id
        # Nodes may have moved since: what the settings say of a founder's address counts.
        moved = {name: str(address) for name, address in config.cluster.initial}
        founders = system.founders
        return ReplicasConfig(
            data_dir=config.node.data_dir,
            cluster_id=system.cluster_id,
            node_id=self_id,
            node_name=place.node.name,
            created_at=system.created_at,
            listen=str(config.listen.peers.plus(self.worker)),
            peers={
                each.node_id: shifted(moved.get(each.name, each.address), self.worker)
                for each in founders
                if each.node_id != self_id
            },
            founders=Membership.of(each.node_id for each in founders) if founders else None,
            shards=tuple(range(self.worker, system.topology.shards, system.workers)),
            endpoints=place.endpoints,
            topology=system.topology,
            log=config.log_config(),
            raft=config.raft_config(),
            shard=config.shard_config(),
            transport=config.transport_config(),
            client_tls=peer_client_tls(config.security),
        )

    def _enter(
        self, place: Place, system: System, replicas: Replicas, port: PeerPort
    ) -> NodeContext:
        """Make the recovered shards available to the services."""
        context = self.context
        assert context is not None
        transport = replicas.transport
        context.transport = transport
        context.drivers.update(replicas.drivers)
        context.topology.found(system.cluster_id, system.topology)

        def leader_of(shard: int) -> LeaderView | None:
            driver = context.drivers.get(shard)
            if driver is None:
                return None
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

        context.topology.attach(peers, leader_of)
        port.leaders = lambda: {
            shard: view for shard in context.drivers if (view := leader_of(shard)) is not None
        }
        context.balance = LeaderBalance(
            place.node.node_id,
            context.drivers,
            lambda: [each for each, status in transport.status().items() if status.is_connected],
            self.metrics,
            self.config.cluster.balance_period_s,
        )
        self.metrics.watch(context.drivers, replicas.driver, transport)
        self.metrics.registry.register(SnapshotMetrics(context))
        self.readiness.elect(context.drivers)
        if place.node.node_id not in {each.node_id for each in system.founders}:
            self.readiness.say(
                f"to be added as a member: {place.node.node_id} ({place.node.name}) at "
                f"{place.peer_address}"
            )
        return context

    def _siblings(self, place: Place) -> dict[int, str]:
        """Return where the other workers of this node answer."""
        at = self.config.listen.peers
        return {
            each: str(at.plus(each))
            for each in range(self.config.node.workers)
            if each != self.worker and place.config.node.workers > 1
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
        driving = asyncio.create_task(replicas.run(), name="replicas")
        schedule = SnapshotSchedule(context)
        background = [
            asyncio.create_task(self._watch_readiness(), name="readiness"),
            asyncio.create_task(schedule.run(), name="snapshots"),
            asyncio.create_task(context.holding.run(schedule.trim_now), name="holds"),
        ]
        if self.config.cluster.balance_leaders:
            background.append(asyncio.create_task(context.balance.run(), name="balance"))
        if siblings:
            watching = watch_siblings(
                siblings,
                context.node_id,
                peer_client_tls(self.config.security),
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
            for each in (stopping, *background):
                each.cancel()
            ended = await asyncio.gather(*background, return_exceptions=True)
        if not driving.done():
            await self._leave(context, replicas, api)
        try:
            await driving
        except* (NodeError, UalError) as errors:
            raise errors.exceptions[0] from errors
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

    def _set_health(self, *, is_ready: bool) -> None:
        self.metrics.ready.set(is_ready)
        for name in ("", *(each.name for each in self._services)):
            self._health.set(name, is_serving=is_ready)

    # HTTP

    def _metrics_page(self) -> Response:
        return Response(HTTPStatus.OK, self.metrics.text(), CONTENT_TYPE)

    def _health_page(self) -> Response:
        return Response(HTTPStatus.OK, b"ok\n")

    def _ready(self) -> Response:
        report = self.readiness.report()
        status = HTTPStatus.OK if report["ready"] else HTTPStatus.SERVICE_UNAVAILABLE
        return Response.of_json(status, report)


def new_node(config: Config) -> Node:
    """Return who a directory that is nobody's yet belongs to."""
    created_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    node_id = UUID(bytes=secrets.token_bytes(16), version=4)
    return Node(node_id, config.node.name, created_at)


def shifted(address: str, worker: int) -> str:
    """Return where a worker of a node listens whose worker 0 listens at ``address``."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + worker}" if worker else address
