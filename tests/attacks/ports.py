"""Callers of the HTTP port and the peer port that mean harm, over real sockets.

    python -m tests.attacks.ports NAME HOST:PORT [--seconds S] [--connections N]

Each connection sends the same bytes over and over, as fast as they are taken, reads what it gets,
and begins again when it is closed, until the time is over. One line of JSON says how much it was.
Attacks on the port for clients are in tests/attacks/clients.py.
"""

import argparse
import json
import selectors
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass
from uuid import UUID

from onelog.cluster.transport.handshake import Introduction, encode_introduction

CHUNK_BYTES = 32 << 10
WAIT_S = 0.05


@dataclass(frozen=True)
class Caller:
    """What a connection says once, and again and again; nothing for one that only stays."""

    opening: bytes
    part: bytes = b""
    reads: bool = True
    leaves: bool = False  # with a reset, when the opening is sent


def framed(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


STRANGER = Introduction("onelog", "stranger", UUID(int=7, version=4), 0, 0, 1, is_joining=True)
INTRODUCE = framed(b"onelog-peer/1 introduce")
METRICS = b"GET /metrics HTTP/1.1\r\n\r\n"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what is unsent is discarded
HTTP = {
    "pipelined metrics": Caller(b"", METRICS),
    "pipelined metrics that nobody reads": Caller(b"", METRICS, reads=False),
    "pipelined probes": Caller(b"", b"GET /ready HTTP/1.1\r\n\r\n"),
    "slow heads": Caller(b"GET /ready HTTP/1.1\r\nX: "),
    "heads without an end": Caller(b"GET /ready HTTP/1.1\r\n", b"X: y\r\n"),
    "a connection for each probe": Caller(b"GET /ready HTTP/1.1\r\nConnection: close\r\n\r\n"),
    "requests of somebody who leaves": Caller(METRICS * 40, leaves=True),
}
PEERS = {
    "introductions": Caller(INTRODUCE, framed(encode_introduction(STRANGER))),
    "empty questions": Caller(INTRODUCE, framed(b"")),
    "callers that say nothing": Caller(b""),
    "a connection for each opening": Caller(framed(b"onelog-peer/1 somebody else")),
    "introductions of somebody who leaves": Caller(
        INTRODUCE + framed(encode_introduction(STRANGER)) * 40, leaves=True
    ),
}
CALLERS = HTTP | PEERS


@dataclass
class Outcome:
    """How much it was."""

    connections: int = 0
    closed: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0


class Connection:
    """One connection of an attack, which is opened again when it is closed."""

    def __init__(self, address: tuple[str, int], caller: Caller, outcome: Outcome) -> None:
        self._caller = caller
        self._outcome = outcome
        self.socket = socket.create_connection(address)
        self.socket.setblocking(False)
        self._chunk = caller.part * (CHUNK_BYTES // max(1, len(caller.part)))
        self._output = memoryview(caller.opening or self._chunk)
        outcome.connections += 1

    @property
    def events(self) -> int:
        wanted = selectors.EVENT_READ if self._caller.reads else 0
        return wanted | (selectors.EVENT_WRITE if self._output else 0) or selectors.EVENT_READ

    def act(self, events: int) -> bool:
        """Send and receive; return whether it is still open."""
        try:
            if events & selectors.EVENT_READ and self._caller.reads:
                received = len(self.socket.recv(1 << 18))
                self._outcome.received_bytes += received
                if not received:
                    return False
            if events & selectors.EVENT_WRITE:
                sent = self.socket.send(self._output)
                self._outcome.sent_bytes += sent
                self._output = self._output[sent:] or memoryview(self._chunk)
                if self._caller.leaves and not self._output:
                    self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    return False
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        return True


def attack(address: tuple[str, int], name: str, seconds: float, connections: int) -> Outcome:
    """Carry one attack out."""
    outcome, begin_s = Outcome(), time.monotonic()
    with selectors.DefaultSelector() as selector:

        def begin() -> None:
            made = Connection(address, CALLERS[name], outcome)
            selector.register(made.socket, made.events, made)

        for _ in range(connections):
            begin()
        while time.monotonic() - begin_s < seconds:
            for key, events in selector.select(WAIT_S):
                found: Connection = key.data
                if found.act(events):
                    selector.modify(found.socket, found.events, found)
                    continue
                selector.unregister(found.socket)
                found.socket.close()
                outcome.closed += 1
                begin()
        for key in list(selector.get_map().values()):
            key.data.socket.close()
    outcome.seconds = time.monotonic() - begin_s
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=CALLERS)
    parser.add_argument("address")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--connections", type=int, default=3)
    arguments = parser.parse_args()
    host, port = arguments.address.rsplit(":", 1)
    found = attack((host, int(port)), arguments.name, arguments.seconds, arguments.connections)
    sys.stdout.write(json.dumps(asdict(found)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
