"""Frames and header blocks as bytes, written down apart from the code under test.

A ``Peer`` is the other end of one of our connections: it sends what it is given, whole or byte by
byte, and keeps what comes back as events and frames.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from hpack import Decoder
from hpack.hpack import encode_integer

from onelog.wire.grpc import ClientConnection, Event, ServerConnection, WireLimits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE = range(6)
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(6, 10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 32

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT = range(5)
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = range(5, 10)
CONNECT_ERROR, ENHANCE_YOUR_CALM, INADEQUATE_SECURITY, HTTP_1_1_REQUIRED = range(10, 14)

Fields = Iterable[tuple[str, str]]
REQUEST = (
    (":method", "POST"), (":scheme", "http"), (":path", "/a.B/C"), (":authority", "x"),
    ("te", "trailers"), ("content-type", "application/grpc"),
)  # fmt: skip
ANSWER = ((":status", "200"), ("content-type", "application/grpc"))
TRAILERS = (("grpc-status", "0"),)


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def block(fields: Fields) -> bytes:
    """Return literals that no table keeps."""
    found = b""
    for name, value in fields:
        for index, text in enumerate((name, value)):
            raw = text.encode("latin-1")
            found += b"\0" * (not index) + bytes(encode_integer(len(raw), 7)) + raw
    return found


def headers(
    fields: Fields = REQUEST, *, stream: int = 1, is_end: bool = False, flags: int = END_HEADERS
) -> bytes:
    return frame(HEADERS, flags | is_end, stream, block(fields))


def data(payload: bytes, *, stream: int = 1, is_end: bool = False) -> bytes:
    return frame(DATA, int(is_end), stream, payload)


def message(payload: bytes, *, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(payload)) + payload


def reset(stream: int, code: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", more))


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def goaway(last: int, code: int = NO_ERROR, text: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last, code) + text)


ACKNOWLEDGE = frame(SETTINGS, ACK)


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """Of RST_STREAM and GOAWAY; the increment of WINDOW_UPDATE."""
        return int(struct.unpack(">I", self.payload[4 * (self.kind == GOAWAY) :][:4])[0])

    @property
    def last_id(self) -> int:
        return int(struct.unpack_from(">I", self.payload)[0])


def frames_of(raw: bytes) -> list[Frame]:
    found = []
    while raw:
        size = int.from_bytes(raw[:3], "big")
        kind, flags, stream = struct.unpack_from(">BBI", raw, 3)
        assert len(raw) >= 9 + size, "half a frame was sent"
        found.append(Frame(kind, flags, stream, raw[9 : 9 + size]))
        raw = raw[9 + size :]
    return found


@dataclass
class Peer:
    """The other end of a connection of ours, which has shaken hands unless asked not to."""

    connection: ServerConnection | ClientConnection
    is_cut: bool = False  # each byte is a read of its own
    events: list[Event] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    decoder: Decoder = field(default_factory=Decoder)

    def send(self, *parts: bytes) -> list[Event]:
        raw = b"".join(parts)
        pieces = [raw[at : at + 1] for at in range(len(raw))] if self.is_cut else [raw]
        found = [event for piece in pieces for event in self.connection.receive(piece)]
        self.connection.check()
        self.events += found
        self.collect()
        return found

    def collect(self) -> list[Frame]:
        """Take what the connection sends."""
        self.connection.check()
        found = frames_of(self.connection.take_output().removeprefix(PREFACE))
        self.frames += found
        return found

    def sent(self, kind: int, stream: int | None = None) -> list[Frame]:
        self.collect()
        return [
            each
            for each in self.frames
            if each.kind == kind and (stream is None or each.stream == stream)
        ]

    def header_lists(self, stream: int = 1) -> list[dict[str, str]]:
        """Decode what was sent on one stream; call it once, and for a peer with one stream."""
        found, raw = [], b""
        self.collect()
        for each in self.frames:
            if each.kind in (HEADERS, CONTINUATION):
                assert each.stream == stream
                raw += each.payload
                if each.flags & END_HEADERS:
                    found.append({str(k): str(v) for k, v in self.decoder.decode(raw)})
                    raw = b""
        return found


def server(limits: WireLimits | None = None, *, is_cut: bool = False) -> Peer:
    peer = Peer(ServerConnection(limits or WireLimits()), is_cut=is_cut)
    peer.send(PREFACE, settings(), ACKNOWLEDGE)
    peer.frames.clear()
    return peer


def client(limits: WireLimits | None = None, *, is_cut: bool = False) -> Peer:
    peer = Peer(ClientConnection(limits or WireLimits(), "x"), is_cut=is_cut)
    peer.send(settings(), ACKNOWLEDGE)
    peer.frames.clear()
    return peer
