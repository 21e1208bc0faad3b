"""Network namespaces joined by a switch of this process, which can lose, repeat and delay packets.

Each host of a ``Switch`` is a namespace of its own with one device, a TUN: what programs there send
is read here, packet by packet, and written to the device of the receiver, or not. So real processes
with real TCP meet partitions, in both directions or in one, lost and repeated packets, and packets
that overtake others, on kernels without ``tc netem`` as well. This process is a host, too, on which
no fault is laid unless that is asked for.

It needs root, ``ip`` and /dev/net/tun; ``find_problem`` says what is missing. Addresses are of the
network for tests of networks (RFC 2544), and nothing leaves this machine.
"""

import fcntl
import heapq
import os
import random
import selectors
import shutil
import struct
import subprocess
import threading
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType

TUN = Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKET_MAX = 1 << 16
PACKETS_PER_TURN = 64
DESTINATION = slice(16, 20)  # of an IPv4 header
HERE = "here"
NETWORKS = 512  # of 256 addresses, in 198.18.0.0/15


def find_problem() -> str | None:
    """Return why there can be no switch on this machine, if so."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("ip") is None:
        return "needs ip, of iproute2"
    if not TUN.exists():
        return f"needs {TUN}"
    name = f"onelog-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if tried.returncode != 0:
        return "needs the right to make network namespaces"
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return None


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to packets from one host to another; each part is a probability."""

    loss: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    late_s_max: float = 0.05


FAIR, CUT = Weather(), Weather(loss=1.0)


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace, its address and its device."""

    name: str
    address: str
    namespace: str  # empty: that of this process
    device: str
    file: int

    def command(self) -> list[str]:
        """Return what starts a program on this host, for ``ServeProcess.prefix``."""
        return ["ip", "netns", "exec", self.namespace]


class Switch:
    """See the module's text; from ``with`` to its end."""

    def __init__(self, *names: str) -> None:
        self._number = os.getpid() % NETWORKS
        self._prefix = f"onelog-{os.getpid()}"
        self._names = (HERE, *names)
        self.hosts: dict[str, Host] = {}
        self._weather: dict[tuple[str, str], Weather] = {}
        self._chance = random.Random()
        self._late: list[tuple[float, int, int, bytes]] = []
        self._counted = count()
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, name="switch", daemon=True)
        self.carried = self.lost = 0

    def __enter__(self) -> "Switch":
        try:
            for number, name in enumerate(self._names, start=1):
                self._add(number, name)
        except BaseException:
            self._remove()
            raise
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        os.write(self._wake, b".")
        self._thread.join()
        self._remove()

    # The weather

    def set_weather(self, sources: list[str], targets: list[str], weather: Weather) -> None:
        """Treat packets of these sources to these targets like this from now on."""
        changed = {(one, other): weather for one in sources for other in targets if one != other}
        self._weather = self._weather | changed  # the thread reads it

    def part(self, ones: list[str], others: list[str]) -> None:
        """Drop all packets between these, in both directions."""
        self.set_weather(ones, others, CUT)
        self.set_weather(others, ones, CUT)

    def mend(self) -> None:
        """Pass all packets again."""
        self._weather = {}

    # Inside

    def _add(self, number: int, name: str) -> None:
        address = f"198.{18 + self._number // 256}.{self._number % 256}.{number}"
        device = f"ol{os.getpid() % 10**8}-{number}"
        file = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        namespace = "" if name == HERE else f"{self._prefix}-{name}"
        self.hosts[name] = Host(name, address, namespace, device, file)
        request = struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI)
        fcntl.ioctl(file, TUNSETIFF, request)
        inside: list[str] = []
        if namespace:
            _ip("netns", "add", namespace)
            _ip("link", "set", device, "netns", namespace)
            inside = ["-n", namespace]
            _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "address", "add", f"{address}/24", "dev", device)
        _ip(*inside, "link", "set", device, "up")

    def _remove(self) -> None:
        for host in self.hosts.values():
            os.close(host.file)  # and the device is gone
            if host.namespace:
                subprocess.run(
                    ["ip", "netns", "delete", host.namespace], capture_output=True, check=False
                )
        os.close(self._woken)
        os.close(self._wake)

    def _run(self) -> None:
        files = {bytes(map(int, host.address.split("."))): host for host in self.hosts.values()}
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for host in self.hosts.values():
                selector.register(host.file, selectors.EVENT_READ, host)
            while True:
                wait_s = self._late[0][0] - time.monotonic() if self._late else None
                for key, _ in selector.select(wait_s):
                    if key.fd == self._woken:
                        return
                    self._forward(key.data, files)
                while self._late and self._late[0][0] <= time.monotonic():
                    _, _, file, packet = heapq.heappop(self._late)
                    self._write(file, packet)

    def _forward(self, source: Host, hosts: dict[bytes, Host]) -> None:
        for _ in range(PACKETS_PER_TURN):
            try:
                packet = os.read(source.file, PACKET_MAX)
            except BlockingIOError:
                return
            target = hosts.get(packet[DESTINATION])
            if target is None:  # of another protocol
                continue
            weather = self._weather.get((source.name, target.name), FAIR)
            chance = self._chance.random
            if weather is not FAIR and chance() < weather.loss:
                self.lost += 1
                continue
            self.carried += 1
            if weather is not FAIR and chance() < weather.late:
                until_s = time.monotonic() + chance() * weather.late_s_max
                late = (until_s, next(self._counted), target.file, packet)
                heapq.heappush(self._late, late)
            else:
                self._write(target.file, packet)
            if weather is not FAIR and chance() < weather.repeated:
                self._write(target.file, packet)

    def _write(self, file: int, packet: bytes) -> None:
        try:
            os.write(file, packet)
        except OSError:  # the device takes no more, as a switch may
            self.lost += 1


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
