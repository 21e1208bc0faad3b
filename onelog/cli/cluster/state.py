"""The directory of a local cluster, through which commands share what they know.

::

    onelog-cluster/cluster.json    ports, shards, further flags, and which process each node is
    onelog-cluster/LOCK            held while a command changes something
    onelog-cluster/certs           with --tls: certificates of an authority, the nodes and a client
    onelog-cluster/n1/data         node 1's data directory
    onelog-cluster/n1/log          the output of node 1

The file is replaced atomically, so that a reader sees one state or the next. It may be out of date
at any time: nodes end by themselves, machines lose power. So it says which process a node *was*,
and readers check whether that one still runs.
"""

import fcntl
import json
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from onelog.cli.cluster.processes import BASE_MAX, HOST, NodePorts, ProcessIdentity, find_ports
from onelog.cli.failure import CommandFailed

DEFAULT_PATH = Path("onelog-cluster")
NODES_MAX = 9  # the most founders of a cluster
STATE_FILE = "cluster.json"
LOCK_FILE = "LOCK"
VERSION = 1
# How long a command waits for another one to release the directory: stopping nodes takes long.
LOCK_S_MAX = 30.0
_LOCK_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One node; the first has number 1. ``process`` is the last one that was started for it."""

    number: int
    ports: NodePorts
    process: ProcessIdentity | None

    @property
    def name(self) -> str:
        """The node's name in the cluster."""
        return f"n{self.number}"

    @property
    def endpoint(self) -> str:
        """The address for clients."""
        return f"{HOST}:{self.ports.api}"

    @property
    def peer_address(self) -> str:
        """The address for other nodes."""
        return f"{HOST}:{self.ports.peers}"

    @property
    def http(self) -> str:
        """The address for HTTP, with ``/ready``."""
        return f"{HOST}:{self.ports.http}"

    @property
    def pid(self) -> int | None:
        """Its process id, if it runs."""
        process = self.process
        return process.pid if process is not None and process.is_running else None


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A cluster; ``is_up`` from ``up`` to ``down``, whatever happens to its nodes in between."""

    is_up: bool
    base_port: int
    shards: int
    flags: tuple[str, ...]  # of ``onelog serve``, for every node
    processes: tuple[ProcessIdentity | None, ...]
    is_tls: bool = False

    @property
    def nodes(self) -> tuple[LocalNode, ...]:
        """All nodes in order."""
        return tuple(
            LocalNode(number, find_ports(self.base_port, number), process)
            for number, process in enumerate(self.processes, start=1)
        )

    @property
    def running(self) -> tuple[LocalNode, ...]:
        """The nodes whose processes run."""
        return tuple(node for node in self.nodes if node.pid is not None)

    def node(self, number: int) -> LocalNode:
        """Return a node; the number is the user's, so an unknown one is an error."""
        if not 1 <= number <= len(self.processes):
            raise CommandFailed(
                "UNKNOWN_NODE", f"there is no node {number}; they are 1 to {len(self.processes)}"
            )
        return self.nodes[number - 1]

    def with_process(self, number: int, process: ProcessIdentity) -> "LocalCluster":
        """Return the cluster with another process for a node."""
        processes = list(self.processes)
        processes[number - 1] = process
        return replace(self, processes=tuple(processes))


class ClusterDirectory:
    """A directory that holds a local cluster, or will."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def line(self, words: str) -> str:
        """Return a command line for this cluster, to show to the user."""
        where = "" if self.path == DEFAULT_PATH else f" --dir {shlex.quote(str(self.path))}"
        return f"onelog cluster {words}{where}"

    @property
    def certificates(self) -> Path:
        """The directory of the certificates of a cluster with TLS."""
        return self.path / "certs"

    def node_path(self, number: int) -> Path:
        """Return the directory of a node."""
        return self.path / f"n{number}"

    def log_path(self, number: int) -> Path:
        """Return the file with a node's output."""
        return self.node_path(number) / "log"

    def find(self) -> LocalCluster | None:
        """Return the cluster in this directory, or None."""
        try:
            text = (self.path / STATE_FILE).read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return _read(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise CommandFailed(
                "CLUSTER_FILE_DAMAGED",
                f"{self.path / STATE_FILE}: {type(error).__name__} {error}; end its nodes by hand "
                "if they run, then remove the file: data is elsewhere",
            ) from error

    def load(self) -> LocalCluster:
        """Return the cluster in this directory; fail if there is none."""
        found = self.find()
        if found is None:
            raise CommandFailed(
                "NO_CLUSTER", f"there is no cluster in {self.path}; begin with: {self.line('up')}"
            )
        return found

    def save(self, cluster: LocalCluster) -> None:
        """Store the cluster; the caller holds the lock."""
        document = asdict(cluster) | {"version": VERSION}
        temporary = self.path / f"{STATE_FILE}.tmp"
        temporary.write_text(json.dumps(document, indent=2) + "\n")
        temporary.replace(self.path / STATE_FILE)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Lock the directory, so that no other command changes anything meanwhile."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        deadline_s = time.monotonic() + LOCK_S_MAX
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    raise CommandFailed(
                        "CLUSTER_BUSY", f"another command is at work in {self.path}; try again"
                    ) from None
                time.sleep(_LOCK_POLL_S)
            else:
                return


def _read(document: dict[str, Any]) -> LocalCluster:
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']} is not known here")
    processes = tuple(
        None if each is None else ProcessIdentity(int(each["pid"]), str(each["started"]))
        for each in document["processes"]
    )
    base_port, shards = int(document["base_port"]), int(document["shards"])
    if not 1 <= len(processes) <= NODES_MAX or not 0 < base_port <= BASE_MAX or shards < 1:
        raise ValueError(f"nodes: {len(processes)}, shards: {shards}, port {base_port}")
    return LocalCluster(
        is_up=bool(document["is_up"]),
        base_port=base_port,
        shards=shards,
        flags=tuple(map(str, document["flags"])),
        processes=processes,
        is_tls=bool(document.get("is_tls", False)),  # missing in files of before
    )
