"""Clients that mean harm, each a process of its own, over real sockets.

    python -m tests.attacks.clients NAME HOST:PORT [--seconds S] [--times N] [--until-goaway]

An attack sends the same bytes over and over, as fast as they are taken, and begins again when it is
sent away, ``--times`` times or until the time is over. One line of JSON says what it sent and what
it was answered. A GOAWAY may be lost: a socket that is closed while something is unread is reset.
"""

import argparse
import gzip
import json
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, repeat

from onelog.v1 import kv_pb2
from tests.onelog.wire.frames import (
    ACKNOWLEDGE,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    WINDOW_UPDATE,
    block,
    data,
    frame,
    message,
    reset,
    settings,
    window_update,
)

CHUNK_BYTES = 64 << 10
ANSWER_S = 30.0
# A large value, which an innocent client has written before.
LARGE_KEY, LARGE_BYTES = b"large", 1 << 20
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE = 1, 4
WINDOW_MAX = (1 << 31) - 1
WINDOW_DEFAULT, STREAM_WINDOW = 65_535, 1 << 20


def call_of(path: str, *more: tuple[str, str]) -> bytes:
    """Return the header block of a call."""
    return block(
        (
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
            ("te", "trailers"), ("content-type", "application/grpc"), *more,
        )
    )  # fmt: skip


GET, PUT = call_of("/onelog.v1.KV/Get"), call_of("/onelog.v1.KV/Put")
REFLECT = call_of("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
EXECUTE = call_of("/onelog.v1.Pipeline/Execute")
GET_LARGE = message(kv_pb2.GetRequest(key=LARGE_KEY).SerializeToString())
# A field with a value of 4,000 bytes that the table keeps, and a reference to it.
TABLE_ENTRY, TABLE_FIRST = b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000, b"\xbe"
SMALL_ENTRY = b"\x40\x01a\x01b"


def numbers() -> Iterator[int]:
    """Return the numbers of a client's streams."""
    return count(1, 2)


def opened(stream: int, of: bytes, *, is_end: bool = False) -> bytes:
    return frame(HEADERS, END_HEADERS | is_end, stream, of)


def called(stream: int, of: bytes, request: bytes) -> bytes:
    return opened(stream, of) + data(request, stream=stream, is_end=True)


@dataclass(frozen=True)
class Flood:
    """What a client sends once it is connected, and whether it reads what it gets."""

    begin: bytes
    parts: Callable[[], Iterator[bytes]]
    reads: bool = True
    # Whether all parts are data of stream 1 that waits for its windows.
    obeys: bool = False
    preface: bytes = PREFACE + settings() + ACKNOWLEDGE


def always(part: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: repeat(part)


def for_each(make: Callable[[int], bytes]) -> Callable[[], Iterator[bytes]]:
    return lambda: map(make, numbers())


BOMB = gzip.compress(bytes(64 << 20), 9)
# As large as a message may be, and one that says so and is not.
ALLOWED_BOMB = gzip.compress(bytes(16 << 20), 9)
LYING_BOMB = BOMB[:-4] + ALLOWED_BOMB[-4:]
GZIP_PUT = call_of("/onelog.v1.KV/Put", ("grpc-encoding", "gzip"))
ZERO_WINDOWS = PREFACE + settings((INITIAL_WINDOW_SIZE, 0)) + ACKNOWLEDGE
WIDE_WINDOWS = (
    PREFACE
    + settings((INITIAL_WINDOW_SIZE, WINDOW_MAX))
    + ACKNOWLEDGE
    + window_update(0, WINDOW_MAX - 65_535)
)


def bombed(stream: int, bomb: bytes = BOMB) -> bytes:
    """A message of some 64 KiB that would be 64 MiB."""
    whole = message(bomb, flag=1)
    pieces = [whole[at : at + 16_000] for at in range(0, len(whole), 16_000)]
    return opened(stream, GZIP_PUT) + b"".join(
        data(piece, stream=stream, is_end=piece is pieces[-1]) for piece in pieces
    )


def half_a_message(stream: int) -> bytes:
    """A put of 8 MiB of which the last byte never comes: as much as a stream's window holds."""
    piece = bytes(16_000)
    first = data(struct.pack(">BI", 0, 8 << 20) + piece[5:], stream=stream)
    return opened(stream, PUT) + first + data(piece, stream=stream) * 60


FLOODS = {
    # Those that everybody knows
    "rapid reset": Flood(b"", for_each(lambda n: called(n, GET, GET_LARGE) + reset(n))),
    "rapid reset of headers": Flood(b"", for_each(lambda n: opened(n, GET) + reset(n))),
    "continuations": Flood(
        frame(HEADERS, 0, 1, GET), always(frame(CONTINUATION, 0, 1, block((("a", "b"),))))
    ),
    "empty continuations": Flood(frame(HEADERS, 0, 1, GET), always(frame(CONTINUATION, 0, 1))),
    "a bomb of HPACK": Flood(
        b"", for_each(lambda n: opened(n, GET + TABLE_ENTRY + TABLE_FIRST * 12_000))
    ),
    "a table beyond the limit": Flood(b"", for_each(lambda n: opened(n, b"\x3f\xe2\x1f" + GET))),
    "tables that change": Flood(b"", for_each(lambda n: opened(n, b"\x20\x3f\xe1\x1f" * 4000))),
    "settings": Flood(b"", always(settings((HEADER_TABLE_SIZE, 4096)))),
    "pings": Flood(b"", always(frame(PING, 0, 0, bytes(8)))),
    "empty frames": Flood(opened(1, GET), always(data(b""))),
    "padding": Flood(opened(1, GET), always(frame(DATA, PADDED, 1, b"\xff" + bytes(255)))),
    "priorities": Flood(b"", always(frame(PRIORITY, 0, 9, bytes(5)))),
    "windows in drops": Flood(b"", always(window_update(0, 1))),
    "zero windows": Flood(b"", for_each(lambda n: called(n, GET, GET_LARGE)), preface=ZERO_WINDOWS),
    "a reader that reads nothing": Flood(
        b"", for_each(lambda n: called(n, GET, GET_LARGE)), reads=False, preface=WIDE_WINDOWS
    ),
    "header lists beyond the limit": Flood(
        b"", for_each(lambda n: opened(n, GET + SMALL_ENTRY * 500, is_end=True))
    ),
    "half-open calls": Flood(b"", for_each(lambda n: opened(n, GET))),
    "bombs of gzip": Flood(b"", for_each(bombed)),
    "bombs of gzip as large as is allowed": Flood(b"", for_each(lambda n: bombed(n, ALLOWED_BOMB))),
    "bombs of gzip that lie about it": Flood(b"", for_each(lambda n: bombed(n, LYING_BOMB))),
    "garbage": Flood(b"", always(bytes(range(256)) * 16), preface=b""),
    "http/1.1": Flood(b"", always(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), preface=b""),
    # And others
    "calls without waiting": Flood(b"", for_each(lambda n: called(n, GET, message(b"")))),
    "methods that nobody has": Flood(
        b"", for_each(lambda n: opened(n, call_of("/" + "\xff" * 15_000), is_end=True))
    ),
    "fields by reference": Flood(
        b"", for_each(lambda n: opened(n, GET + SMALL_ENTRY + TABLE_FIRST * 450, is_end=True))
    ),
    "questions of one byte": Flood(
        opened(1, REFLECT), always(data(message(b"") * 3000)), obeys=True, preface=WIDE_WINDOWS
    ),
    "questions with long answers": Flood(
        opened(1, REFLECT),
        always(data(message(b"\x22\x0conelog.v1.KV") * 800)),
        obeys=True,
        preface=WIDE_WINDOWS,
    ),
    "questions whose answers nobody reads": Flood(
        opened(1, REFLECT), always(data(message(b"") * 3000)), obeys=True, preface=ZERO_WINDOWS
    ),
    "empty messages of a pipeline": Flood(
        opened(1, EXECUTE), always(data(message(b"") * 3000)), obeys=True
    ),
    "half messages": Flood(b"", for_each(half_a_message)),
}


@dataclass
class Outcome:
    """What an attacker sent, and was answered."""

    connections: int = 0
    closed: int = 0
    sent_bytes: int = 0
    sent_parts: int = 0
    seconds: float = 0.0
    goaways: Counter[int] = field(default_factory=Counter)
    resets: Counter[int] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)


class Attacker:
    """One connection of a flood."""

    def __init__(self, address: tuple[str, int], flood: Flood, outcome: Outcome) -> None:
        self._flood = flood
        self._outcome = outcome
        self._socket = socket.create_connection(address)
        self._socket.setblocking(False)
        self._parts = flood.parts()
        self._output = memoryview(flood.preface + flood.begin)
        self._input = b""
        self._windows = {0: WINDOW_DEFAULT, 1: STREAM_WINDOW}
        outcome.connections += 1

    def run(self, until_s: float) -> None:
        """Send until the server ends it, or the time is over."""
        try:
            while (left_s := until_s - time.monotonic()) > 0:
                if not self._output and self._may_send():
                    self._output = memoryview(self._next_chunk())
                readers = [self._socket] if self._flood.reads else []
                writers = [self._socket] if self._output else []
                readable, writable, _ = select.select(readers, writers, [], left_s)
                if readable and not self._read():
                    self._outcome.closed += 1
                    return
                if writable:
                    self._write()
        except ConnectionError:
            self._read_last()
            self._outcome.closed += 1
        finally:
            self._socket.close()

    def _may_send(self) -> bool:
        return not self._flood.obeys or min(self._windows.values()) >= 2 * CHUNK_BYTES

    def _next_chunk(self) -> bytes:
        chunk, size = [], 0
        for part in self._parts:
            chunk.append(part)
            size += len(part)
            if size >= CHUNK_BYTES:
                break
        for stream in self._windows:
            self._windows[stream] -= size - 9 * len(chunk)
        self._outcome.sent_parts += len(chunk)
        return b"".join(chunk)

    def _write(self) -> None:
        sent = self._socket.send(self._output)
        self._outcome.sent_bytes += sent
        self._output = self._output[sent:]

    def _read_last(self) -> None:
        """Read what came before the connection was reset."""
        try:
            while select.select([self._socket], [], [], 0)[0] and self._read():
                pass
        except ConnectionError:
            pass

    def _read(self) -> bool:
        received = self._socket.recv(1 << 20)
        raw, at = self._input + received, 0
        while len(raw) - at >= 9:
            stop = at + 9 + int.from_bytes(raw[at : at + 3], "big")
            if stop > len(raw):
                break
            stream = int.from_bytes(raw[at + 5 : at + 9], "big")
            self._take(raw[at + 3], stream, raw[at + 9 : stop])
            at = stop
        self._input = raw[at:]
        return bool(received)

    def _take(self, kind: int, stream: int, payload: bytes) -> None:
        outcome = self._outcome
        if kind == WINDOW_UPDATE and stream in self._windows:
            self._windows[stream] += struct.unpack(">I", payload)[0]
        elif kind == GOAWAY:
            outcome.goaways[struct.unpack_from(">I", payload, 4)[0]] += 1
        elif kind == RST_STREAM:
            outcome.resets[struct.unpack(">I", payload)[0]] += 1
        elif kind == HEADERS and (at := payload.find(b"grpc-status")) >= 0:
            # The server's blocks are literals.
            size, text = payload[at + 11], payload[at + 12 :]
            outcome.statuses[int(text[:size])] += 1


def flood(
    address: tuple[str, int], name: str, seconds: float, times: int, *, until_goaway: bool
) -> Outcome:
    outcome, begin_s = Outcome(), time.monotonic()
    until_s = begin_s + seconds
    while outcome.connections < times and time.monotonic() < until_s:
        Attacker(address, FLOODS[name], outcome).run(until_s)
        if until_goaway and outcome.goaways:
            break
    outcome.seconds = time.monotonic() - begin_s
    return outcome


# Attacks of many connections


def connect_and_leave(address: tuple[str, int], seconds: float, times: int) -> Outcome:
    """Connections that are closed at once, with a reset."""
    outcome, begin_s = Outcome(), time.monotonic()
    while outcome.connections < times and time.monotonic() - begin_s < seconds:
        with socket.create_connection(address) as each:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        outcome.connections += 1
    outcome.seconds = time.monotonic() - begin_s
    return outcome


def stay(address: tuple[str, int], seconds: float, times: int, said: bytes) -> Outcome:
    """Connections that say this and nothing more, ``times`` of them, until all are closed."""
    outcome, begin_s, held = Outcome(), time.monotonic(), []
    try:
        for number in range(times):
            # One address has some 28,000 ports to call from.
            source = (f"127.0.0.{2 + number // 20_000}", 0)
            each = socket.create_connection(address, source_address=source)
            held.append(each)
            each.sendall(said)
            outcome.sent_bytes += len(said)
        outcome.connections = len(held)
        while outcome.closed < times and time.monotonic() - begin_s < seconds:
            time.sleep(0.1)
            outcome.closed = sum(map(_is_closed, held))
    finally:
        for each in held:
            each.close()
    outcome.seconds = time.monotonic() - begin_s
    return outcome


def call_in_two_parts(address: tuple[str, int]) -> str:
    """Send a get's headers, and its request when the server has seen those; return the status."""
    request = message(kv_pb2.GetRequest(key=b"k").SerializeToString())
    with socket.create_connection(address, timeout=ANSWER_S) as connection:
        ping = frame(PING, 0, 0, bytes(8))
        connection.sendall(PREFACE + settings() + ACKNOWLEDGE + opened(1, GET) + ping)
        received = b""
        while more := connection.recv(1 << 16):
            received += more
            while len(received) >= 9 + (size := int.from_bytes(received[:3], "big")):
                kind, payload, received = received[3], received[9 : 9 + size], received[9 + size :]
                if kind == PING:
                    connection.sendall(data(request, is_end=True))
                elif kind == HEADERS and (at := payload.find(b"grpc-status")) >= 0:
                    return payload[at + 12 :][: payload[at + 11]].decode()
    return ""


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


# The first bytes of a ClientHello that announces some hundred more.
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)
IDLE_STREAMS = "idle streams"
HANDSHAKES = "handshakes that never end"  # for a server with TLS
HALF_OPEN_STREAMS = "half-open streams"
CROWDS = {
    "idle connections": PREFACE + settings() + ACKNOWLEDGE,
    "connections without a preface": b"",
    HANDSHAKES: HALF_A_HELLO,
    # Streams that say nothing, as many as a connection may have: each is a call under way.
    IDLE_STREAMS: PREFACE
    + settings()
    + ACKNOWLEDGE
    + b"".join(opened(number, EXECUTE) for number in range(1, 2 * 1024, 2)),
    # The same of calls whose request does not come.
    HALF_OPEN_STREAMS: PREFACE
    + settings()
    + ACKNOWLEDGE
    + b"".join(opened(number, GET) for number in range(1, 2 * 1024, 2)),
}
LEAVING = "connections that leave at once"
NAMES = (*FLOODS, *CROWDS, LEAVING)


def attack(
    address: tuple[str, int], name: str, seconds: float, times: int, *, until_goaway: bool = False
) -> Outcome:
    """Carry one attack out."""
    if name in CROWDS:
        return stay(address, seconds, times, CROWDS[name])
    if name == LEAVING:
        return connect_and_leave(address, seconds, times)
    return flood(address, name, seconds, times, until_goaway=until_goaway)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("address")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--until-goaway", action="store_true")
    arguments = parser.parse_args()
    host, port = arguments.address.rsplit(":", 1)
    found = attack(
        (host, int(port)),
        arguments.name,
        arguments.seconds,
        arguments.times,
        until_goaway=arguments.until_goaway,
    )
    sys.stdout.write(json.dumps(vars(found)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
