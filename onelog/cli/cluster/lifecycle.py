"""Starting and stopping the nodes of a local cluster. They are ordinary ``onelog serve`` processes.

All nodes get the same list of founders and form the cluster themselves (docs/server.md). Their
settings come only from flags, which are remembered. Environment variables are not used: those of
the shell that calls ``up`` would be missing in the one that calls ``restart``, and the nodes of a
cluster must agree.

Each process is recorded right after it was started. If this program dies in between, the node runs
unrecorded; it locks its directory, and the next ``up`` reports that.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from onelog.cli.cluster.certificates import (
    CA_NAME,
    DAYS_DEFAULT,
    Authority,
    NodeRequest,
    Pair,
    is_lasting,
)
from onelog.cli.cluster.processes import HOST, hold_ports, launch, send, wait_for_end
from onelog.cli.cluster.state import ClusterDirectory, LocalCluster
from onelog.cli.failure import CommandFailed

NODES_DEFAULT = 3
SHARDS_DEFAULT = 4  # as for the founders of any cluster; a node by itself has one
# A node that stops finishes its calls and transfers leaderships; after this long it is killed.
STOP_S_MAX = 20.0
KILL_S_MAX = 10.0
# A log that is longer is moved aside when its node starts; one such file is kept.
LOG_BYTES_MAX = 64 << 20
_LOG_END_BYTES = 4096

# The reason of a node that its cluster has removed.
MEMBER_REMOVED = "MEMBER_REMOVED"

# The client whose certificate ``up --tls`` makes, and that the other commands use.
CLIENT_NAME = "local"
CLUSTER_NAME = "onelog"  # the default of onelog serve

# Flags that this command sets itself; ``--tls`` sets those of certificates.
_OWN_FLAGS = frozenset(
    f"--{name}"
    for name in (
        "name", "data-dir", "workers", "listen", "peer-listen", "http-listen", "advertise",
        "peer-advertise", "initial-cluster", "join", "shards", "config", "insecure-bind",
        "tls-cert", "tls-key", "tls-client-ca", "peer-tls-cert", "peer-tls-key", "peer-tls-ca",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UpRequest:
    """The arguments of ``up``; None: the remembered value, or the default."""

    nodes: int | None = None
    shards: int | None = None
    port: int | None = None
    flags: tuple[str, ...] = ()
    is_tls: bool | None = None


def start_cluster(directory: ClusterDirectory, request: UpRequest, held: ExitStack) -> LocalCluster:
    """Start every node; the caller closes ``held``, which holds ports, when all are ready."""
    for flag in request.flags:
        if flag.partition("=")[0] in _OWN_FLAGS:
            raise CommandFailed("USAGE", f"{flag} is decided by onelog cluster itself")
    with directory.changing():
        known = directory.find()
        if known is not None and known.running:
            raise CommandFailed(
                "ALREADY_UP",
                f"{len(known.running)} of {len(known.nodes)} nodes of {directory.path} run; "
                f"see: {directory.line('status')}, restart N, down",
            )
        nodes, shards = _shape(directory, known, request)
        block = held.enter_context(
            hold_ports(
                nodes, asked=request.port, remembered=None if known is None else known.base_port
            )
        )
        flags_before = () if known is None else known.flags
        flags = request.flags or flags_before
        is_tls = request.is_tls
        if is_tls is None:
            is_tls = known is not None and known.is_tls
        cluster = LocalCluster(True, block.base, shards, flags, (None,) * nodes, is_tls)
        if is_tls:
            if any(flag.partition("=")[0] == "--cluster-name" for flag in flags):
                text = "--cluster-name is decided by onelog cluster itself with --tls"
                raise CommandFailed("USAGE", text)
            _make_certificates(directory, cluster)
        directory.save(cluster)
        try:
            for number in range(1, nodes + 1):
                block.hand_over(number)
                cluster = _start(directory, cluster, number)
        except BaseException:
            _stop(directory, cluster, [node.number for node in cluster.running], 0.0)
            directory.save(replace(cluster, is_up=False, flags=flags_before))
            raise
    return cluster


def _make_certificates(directory: ClusterDirectory, cluster: LocalCluster) -> None:
    """Make the certificates that are missing or expire soon."""
    path = directory.certificates
    authority = Authority(path, CLUSTER_NAME)
    for node in cluster.nodes:
        if not is_lasting(Pair.at(path, node.name)):
            authority.issue_node(NodeRequest(node.name, (HOST, "localhost")), DAYS_DEFAULT)
    if not is_lasting(client_pair(directory)):
        authority.issue_client(CLIENT_NAME, DAYS_DEFAULT)


def client_pair(directory: ClusterDirectory) -> Pair:
    """Return the certificate by which clients on this machine are known."""
    return Pair.at(directory.certificates, f"client-{CLIENT_NAME}")


def _tls_flags(directory: ClusterDirectory, name: str) -> list[str]:
    path = directory.certificates.absolute()
    own, authority = Pair.at(path, name), Pair.at(path, CA_NAME)
    files = {
        "tls-cert": own.certificate, "tls-key": own.key, "tls-client-ca": authority.certificate,
        "peer-tls-cert": own.certificate, "peer-tls-key": own.key,
        "peer-tls-ca": authority.certificate,
    }  # fmt: skip
    return [part for flag, file in files.items() for part in (f"--{flag}", str(file))]


def _shape(
    directory: ClusterDirectory, known: LocalCluster | None, request: UpRequest
) -> tuple[int, int]:
    """Return the numbers of nodes and shards, which are fixed when a cluster is founded."""
    if known is None:
        count = request.nodes or NODES_DEFAULT
        return count, request.shards or (SHARDS_DEFAULT if count > 1 else 1)
    nodes, shards = len(known.nodes), known.shards
    if (request.nodes or nodes) != nodes or (request.shards or shards) != shards:
        raise CommandFailed(
            "TOPOLOGY_MISMATCH",
            f"{directory.path} holds a cluster with --nodes {nodes} --shards {shards}, which "
            "cannot change; use another --dir, or remove the directory and all its data",
        )
    return nodes, shards


def last_words(directory: ClusterDirectory, number: int) -> str:
    """Return the last line of a node's output."""
    log = directory.log_path(number)
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_END_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    return lines[-1] if lines else "it said nothing"


def ended_as_removed(directory: ClusterDirectory, number: int) -> bool:
    """Return whether a node that does not run ended because the cluster had removed it."""
    return last_words(directory, number).startswith(f"error: {MEMBER_REMOVED}:")


def _start(directory: ClusterDirectory, cluster: LocalCluster, number: int) -> LocalCluster:
    node = cluster.node(number)
    path, log = directory.node_path(number).absolute(), directory.log_path(number).absolute()
    path.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".old"))
    command = [
        sys.executable, "-m", "onelog.cli.main", "serve",
        "--name", node.name,
        "--data-dir", str(path / "data"),
        "--listen", node.endpoint,
        "--peer-listen", node.peer_address,
        "--http-listen", node.http,
        "--shards", str(cluster.shards),
    ]  # fmt: skip
    if len(cluster.nodes) > 1:
        founders = ",".join(f"{each.name}={each.peer_address}" for each in cluster.nodes)
        command += ["--initial-cluster", founders]
    if cluster.is_tls:
        command += _tls_flags(directory, node.name)
    process = launch(
        [*command, *cluster.flags], directory=path, output=log, environment=_environment()
    )
    cluster = cluster.with_process(number, process)
    directory.save(cluster)
    return cluster


def _environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("ONELOG_")}


def kill_node(directory: ClusterDirectory, number: int) -> int:
    """Kill a node as a crash would; return its process id."""
    node = directory.load().node(number)
    process = node.process
    if process is None or not send(process, signal.SIGKILL):
        raise CommandFailed(
            "NOT_RUNNING", f"node {number} does not run; see: {directory.line(f'restart {number}')}"
        )
    _insist_on_end(directory.path, [number], wait_for_end([process], KILL_S_MAX))
    return process.pid


def restart_node(directory: ClusterDirectory, number: int, within_s: float) -> None:
    """Stop a node if it runs, by force if it takes too long, and start it again."""
    with directory.changing():
        cluster = directory.load()
        cluster.node(number)
        if not cluster.is_up:
            raise CommandFailed(
                "NOT_RUNNING",
                f"the cluster in {directory.path} is down; see: {directory.line('up')}",
            )
        _stop(directory, cluster, [number], within_s)
        _start(directory, cluster, number)


def stop_cluster(directory: ClusterDirectory, within_s: float) -> tuple[int, list[int]]:
    """Stop all nodes; return how many ran, and which of them had to be killed."""
    with directory.changing():
        cluster = directory.load()
        running = [node.number for node in cluster.running]
        killed = _stop(directory, cluster, running, within_s)
        directory.save(replace(cluster, is_up=False, processes=(None,) * len(cluster.nodes)))
    return len(running), killed


def remember_flags(directory: ClusterDirectory, flags: tuple[str, ...]) -> None:
    """Remember the flags for the next ``up`` without flags."""
    with directory.changing():
        directory.save(replace(directory.load(), flags=flags))


def kill_all(directory: ClusterDirectory) -> None:
    """Kill all running nodes: the user does not want to wait for a clean stop."""
    for node in directory.load().running:
        assert node.process is not None
        send(node.process, signal.SIGKILL)


def _stop(
    directory: ClusterDirectory, cluster: LocalCluster, numbers: Sequence[int], within_s: float
) -> list[int]:
    """Ask nodes to stop, then kill those that have not; return the killed ones."""
    processes = {number: cluster.node(number).process for number in numbers}
    asked = {
        number: process
        for number, process in processes.items()
        if process is not None and send(process, signal.SIGTERM)
    }
    left = set(wait_for_end(asked.values(), within_s))
    killed = [number for number, process in asked.items() if process in left]
    for process in left:
        send(process, signal.SIGKILL)
    _insist_on_end(directory.path, killed, wait_for_end(left, KILL_S_MAX))
    return killed


def _insist_on_end(path: Path, numbers: Sequence[int], left: Sequence[object]) -> None:
    if left:
        names = ", ".join(map(str, numbers))
        raise CommandFailed(
            "NOT_ENDED", f"node {names} of {path} was killed and has not ended; is its disk stuck?"
        )
