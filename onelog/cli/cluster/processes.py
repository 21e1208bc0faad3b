"""The processes and ports of a local cluster.

Processes: a process id is reused after its process has ended, so it is no identity by itself. The
identity here adds when the kernel started the process, and in which boot. A signal is sent through
a descriptor of the process (pidfd), opened before the identity is checked, so that it cannot reach
another process. A process that has ended counts as gone even if its parent has not reaped it yet (a
zombie).

Ports: a cluster has a block of ports from ``base`` on. The first node has ``base`` for clients,
``base + 100`` for the other nodes and ``base + 200`` for HTTP; node N has these plus N - 1. Blocks
are below the ephemeral ports, which any program could get while a node is down. This process
listens on each port until its node needs it, so that no other program gets it. A node's three ports
are released just before it starts. The last port of the block stays held until all nodes are up,
which keeps other clusters away from the block in the meantime.
"""

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from onelog.cli.failure import CommandFailed

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Fields of /proc/PID/stat after the name, which is in brackets and may hold anything.
_STATE_FIELD, _THREADS_FIELD, _START_FIELD = 0, 17, 19
_ENDED_STATES = ("Z", "X")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, never another one with the same process id."""

    pid: int
    started: str

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return _started(self.pid) == self.started


def launch(
    command: Sequence[str], *, directory: Path, output: Path, environment: Mapping[str, str]
) -> ProcessIdentity:
    """Start a process that outlives this one and gets no signals from its terminal."""
    with output.open("ab") as sink:
        process = subprocess.Popen(  # noqa: S603 - the command is our own
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    # Its process id cannot be reused before it is waited for, even if it has ended already.
    started = _started(process.pid) or "ended"
    # The process is meant to continue; this silences the warning that it was not waited for.
    process.returncode = 0
    return ProcessIdentity(process.pid, started)


def send(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Send a signal to this process and no other; return whether it was running."""
    with _descriptor(identity) as descriptor:
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        return True


def wait_for_end(identities: Iterable[ProcessIdentity], within_s: float) -> list[ProcessIdentity]:
    """Wait until these processes have ended; return those that have not in time."""
    deadline_s = time.monotonic() + within_s
    left = []
    for identity in identities:
        with _descriptor(identity) as descriptor:
            if descriptor is None:
                continue
            wait_ms = max(0.0, deadline_s - time.monotonic()) * 1000
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)  # readable: it has ended
            if not poll.poll(wait_ms):
                left.append(identity)
    return left


@contextmanager
def _descriptor(identity: ProcessIdentity) -> Iterator[int | None]:
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor if identity.is_running else None
    finally:
        os.close(descriptor)


def _started(pid: int) -> str | None:
    """Return the boot and the tick in which a process was started; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        boot = _BOOT_ID.read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[_STATE_FIELD] in _ENDED_STATES and int(fields[_THREADS_FIELD]) <= 1:
        return None  # a zombie with other threads left still has its ports and files
    return f"{boot}/{fields[_START_FIELD]}"


# Ports

HOST = "127.0.0.1"
FIRST_BASE = 7400  # the default port of clients
BLOCK_SIZE = 300
BASE_MAX = 65_536 - BLOCK_SIZE
_PEERS_PLUS, _HTTP_PLUS, _GUARD_PLUS = 100, 200, BLOCK_SIZE - 1
_OUTGOING_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The ports on which one node listens."""

    api: int
    peers: int
    http: int


def find_ports(base: int, number: int) -> NodePorts:
    """Return the ports of a node; the first one has number 1."""
    api = base + number - 1
    return NodePorts(api, api + _PEERS_PLUS, api + _HTTP_PLUS)


class PortBlock:
    """A block of ports that this process holds."""

    def __init__(self, base: int, nodes: int) -> None:
        """Hold all ports of the block; if one is taken, raise ``PortTaken`` and hold none."""
        self.base = base
        self._sockets: dict[int, socket.socket] = {}
        with ExitStack() as undo:
            undo.callback(self.close)
            self._hold(base + _GUARD_PLUS)
            for number in range(1, nodes + 1):
                ports = find_ports(base, number)
                for port in (ports.api, ports.peers, ports.http):
                    self._hold(port)
            undo.pop_all()

    def _hold(self, port: int) -> None:
        holder = self._sockets[port] = socket.socket()
        # Ignore connections that have just ended (TIME_WAIT), as the server itself does.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((HOST, port))
            holder.listen(1)
        except OSError as error:
            raise PortTaken(port) from error

    def hand_over(self, number: int) -> None:
        """Release a node's ports, because it starts now."""
        ports = find_ports(self.base, number)
        for port in (ports.api, ports.peers, ports.http):
            self._sockets.pop(port).close()

    def close(self) -> None:
        """Release the ports that are still held."""
        for holder in self._sockets.values():
            holder.close()
        self._sockets.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PortTaken(Exception):
    """Another process listens on ``port``."""

    def __init__(self, port: int) -> None:
        super().__init__(f"port {port} is taken")
        self.port = port


@contextmanager
def hold_ports(
    nodes: int, *, asked: int | None, remembered: int | None, first: int = FIRST_BASE
) -> Iterator[PortBlock]:
    """Hold the requested block; else the last one if it is free, else the next free one."""
    if asked is not None:
        try:
            block = PortBlock(asked, nodes)
        except PortTaken as error:
            raise CommandFailed(
                "PORT_TAKEN", f"{error}; give another --port, or none to have one chosen"
            ) from error
    else:
        block = _find(nodes, [] if remembered is None else [remembered], first)
    with block:
        yield block


def _find(nodes: int, preferred: list[int], first: int) -> PortBlock:
    end = int(_OUTGOING_RANGE.read_text().split()[0])
    for base in (*preferred, *range(first, end - BLOCK_SIZE, BLOCK_SIZE)):
        try:
            return PortBlock(base, nodes)
        except PortTaken:
            continue
    raise CommandFailed("PORT_TAKEN", f"no block of ports is free from {first} on; give a --port")
