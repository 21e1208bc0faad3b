"""Rules of HTTP/2: one row for each MUST of RFC 9113 that concerns us, with its section.

A row says what a peer sends and what must come of it: nothing, the end of stream 1, or the end of
the connection, with the code. Each row runs with its bytes in one piece and one by one.
"""

import struct
from dataclasses import dataclass

import pytest

from onelog.wire.grpc import (
    OK,
    CallCancelled,
    CallEnded,
    CallStarted,
    CallWritable,
    ClientConnection,
    GoingAway,
    MessageReceived,
    PingAcknowledged,
    RequestEnded,
    ResponseStarted,
    ServerConnection,
    Status,
    WireLimits,
)
from tests.onelog.wire.frames import (
    ACK,
    ACKNOWLEDGE,
    ANSWER,
    CANCEL,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    TRAILERS,
    WINDOW_UPDATE,
    Fields,
    Peer,
    block,
    client,
    data,
    frame,
    goaway,
    headers,
    message,
    reset,
    server,
    settings,
    window_update,
)

WINDOW_MAX = (1 << 31) - 1
STREAM_WINDOW = 1 << 20
CONNECTION_WINDOW = 8 << 20


@dataclass(frozen=True)
class Outcome:
    what: str
    code: int = 0


FINE = Outcome("nothing")


def stream_ends(code: int) -> Outcome:
    return Outcome("stream", code)


def connection_ends(code: int) -> Outcome:
    return Outcome("connection", code)


def meet(peer: Peer, outcome: Outcome) -> None:
    """Check what came of it, and that a connection that lives still answers."""
    goaways, resets = peer.sent(GOAWAY), peer.sent(RST_STREAM)
    if outcome.what == "connection":
        assert [each.code for each in goaways] == [outcome.code]
        assert peer.frames[-1] is goaways[0], "GOAWAY is the last word"
        assert peer.connection.is_closed
        assert peer.connection.call_count == 0
        assert peer.send(headers(stream=99), frame(PING, 0, 0, b"12345678")) == []
        peer.connection.ping()
        assert peer.frames[-1] is goaways[0], "nobody listens any more"
        assert not peer.connection.has_output
        return
    assert not goaways, goaways
    assert not peer.connection.is_closed
    expected = [(1, outcome.code)] if outcome.what == "stream" else []
    assert [(each.stream, each.code) for each in resets] == expected
    peer.send(frame(PING, 0, 0, b"12345678"))
    assert peer.frames[-1].payload == b"12345678"


def pseudo(**changes: str | None) -> list[tuple[str, str]]:
    """Return a request with other pseudo-fields; those that are None are left out."""
    changed = {f":{name}": value for name, value in changes.items()}
    return [
        (name, value)
        for name, old in REQUEST
        if (value := changed.get(name, old) if name in changed else old) is not None
    ]


def request(*more: tuple[str, str]) -> list[tuple[str, str]]:
    return [*REQUEST, *more]


BIG = bytes(16_385)
PRIORITIES = bytes(5)
BAD_BLOCKS = {
    "index 0": b"\x80",
    "an index that no table has": b"\xff\xff\x03",
    "a literal that is cut short": b"\x00\x05ab",
    "an integer that is cut short": b"\x7f\xff",
    "a table beyond what was allowed": b"\x3f\xe2\x1f",
    "a table size behind a field": b"\x83\x20",
    "an integer of eleven bytes": b"\x7f" + b"\x80" * 10 + b"\x01",
    "Huffman padding of a whole byte": b"\x00\x82\x07\xff\x01a",
}
MALFORMED: dict[str, Fields] = {
    "8.2.1 an upper-case name": request(("Name", "x")),
    "8.2.1 a space in a name": request(("a b", "x")),
    "8.2.1 a control character in a name": request(("a\x7f", "x")),
    "8.2.1 a name beyond ASCII": request(("a\xe9", "x")),
    "8.2.1 a colon in a name": request(("a:b", "x")),
    "8.2.1 an empty name": request(("", "x")),
    "8.2.1 NUL in a value": request(("a", "x\0y")),
    "8.2.1 CR in a value": request(("a", "x\ry")),
    "8.2.1 LF in a value": request(("a", "x\ny")),
    "8.2.1 a value that begins with a space": request(("a", " x")),
    "8.2.1 a value that ends with a tab": request(("a", "x\t")),
    "8.2.1 LF in a pseudo-field": pseudo(path="/a\n"),
    "8.2.2 connection": request(("connection", "close")),
    "8.2.2 proxy-connection": request(("proxy-connection", "close")),
    "8.2.2 keep-alive": request(("keep-alive", "1")),
    "8.2.2 transfer-encoding": request(("transfer-encoding", "chunked")),
    "8.2.2 upgrade": request(("upgrade", "h2c")),
    "8.2.2 te beyond trailers": request(("te", "gzip")),
    "8.3 a pseudo-field behind a field": [*REQUEST[1:], REQUEST[0]],
    "8.3 an unknown pseudo-field": [(":new", "x"), *REQUEST],
    "8.3 a pseudo-field of answers": [(":status", "200"), *REQUEST],
    "8.3 a pseudo-field twice": [(":path", "/x"), *REQUEST],
    "8.3.1 no method": pseudo(method=None),
    "8.3.1 no scheme": pseudo(scheme=None),
    "8.3.1 no path": pseudo(path=None),
    "8.3.1 an empty path": pseudo(path=""),
    "8.3 no pseudo-field at all": TRAILERS,
    "8.1.1 a content-length that is no number": request(("content-length", "1x")),
    "8.1.1 a negative content-length": request(("content-length", "-1")),
    "8.1.1 two lengths": request(("content-length", "1"), ("content-length", "2")),
}

OPEN = headers()
HALF_CLOSED = headers(is_end=True)
SERVER_ROWS: dict[str, tuple[bytes, Outcome]] = {
    # Frames
    "4.1 an unknown frame is ignored": (frame(0xEE, 0xFF, 7, b"abc"), FINE),
    "4.1 flags without a meaning are ignored": (frame(PING, 0xFE, 0, bytes(8)), FINE),
    "4.1 the reserved bit is ignored": (headers(stream=1 | 1 << 31), FINE),
    "4.2 DATA that is too long": (OPEN + data(BIG), connection_ends(FRAME_SIZE_ERROR)),
    "4.2 HEADERS that are too long": (frame(HEADERS, 4, 1, BIG), connection_ends(FRAME_SIZE_ERROR)),
    "4.2 an unknown frame that is too long": (
        frame(0xEE, 0, 0, BIG), connection_ends(FRAME_SIZE_ERROR)),
    "4.2 the longest DATA": (OPEN + data(BIG[1:]), FINE),
    # Streams
    "5.1 idle: DATA": (data(b""), connection_ends(PROTOCOL_ERROR)),
    "5.1 idle: RST_STREAM": (reset(1), connection_ends(PROTOCOL_ERROR)),
    "5.1 idle: WINDOW_UPDATE": (window_update(1, 1), connection_ends(PROTOCOL_ERROR)),
    "5.1 idle: PRIORITY": (frame(PRIORITY, 0, 1, PRIORITIES), FINE),
    "5.1 idle above a used one: DATA": (OPEN + data(b"", stream=3), connection_ends(1)),
    "5.1 half-closed: DATA": (HALF_CLOSED + data(b"x"), stream_ends(STREAM_CLOSED)),
    "5.1 half-closed: HEADERS": (HALF_CLOSED + headers(TRAILERS, is_end=True), stream_ends(5)),
    "5.1 half-closed: WINDOW_UPDATE": (HALF_CLOSED + window_update(1, 1), FINE),
    "5.1 half-closed: PRIORITY": (HALF_CLOSED + frame(PRIORITY, 0, 1, PRIORITIES), FINE),
    "5.1 half-closed: RST_STREAM": (HALF_CLOSED + reset(1), FINE),
    "5.1 closed by its peer's reset: DATA": (OPEN + reset(1) + data(b"x"), connection_ends(5)),
    "5.1 closed by its peer's reset: HEADERS": (
        OPEN + reset(1) + headers(TRAILERS, is_end=True), connection_ends(STREAM_CLOSED)),
    "5.1 closed by its peer's reset: WINDOW_UPDATE": (OPEN + reset(1) + window_update(1, 9), FINE),
    "5.1 closed by its peer's reset: PRIORITY": (
        OPEN + reset(1) + frame(PRIORITY, 0, 1, PRIORITIES), FINE),
    "5.1 closed by its peer's reset: RST_STREAM": (OPEN + reset(1) + reset(1), FINE),
    "5.1 closed by our reset: what is late is ignored": (
        HALF_CLOSED + data(b"x") + data(b"y") + window_update(1, 5) + reset(1), stream_ends(5)),
    "5.1 closed by our reset: late HEADERS are ignored": (
        headers(MALFORMED["8.2.2 upgrade"]) + headers(TRAILERS, is_end=True), stream_ends(1)),
    "5.1 closed by our reset: not behind END_STREAM": (
        headers(MALFORMED["8.2.2 upgrade"]) + data(b"", is_end=True) + data(b"x"),
        connection_ends(STREAM_CLOSED)),
    "5.1.1 a stream of even number": (headers(stream=2), connection_ends(PROTOCOL_ERROR)),
    "5.1 idle, of even number: RST_STREAM": (headers(stream=5) + reset(2), connection_ends(1)),
    "5.1 idle, of even number: DATA": (
        headers(stream=5) + data(b"x", stream=2), connection_ends(PROTOCOL_ERROR)),
    "5.1.1 a stream of even number below the last": (
        headers(stream=5) + headers(stream=2), connection_ends(PROTOCOL_ERROR)),
    "5.1.1 a number below the last": (
        headers(stream=5) + headers(stream=3), connection_ends(STREAM_CLOSED)),
    # Padding
    "6.1 DATA of no stream": (data(b"", stream=0), connection_ends(PROTOCOL_ERROR)),
    "6.1 padding as long as the frame": (
        OPEN + frame(DATA, PADDED, 1, b"\x03abc"[:3]), connection_ends(PROTOCOL_ERROR)),
    "6.1 nothing but padding": (OPEN + frame(DATA, PADDED, 1, b"\x02ab"), FINE),
    "6.1 padded, and empty": (OPEN + frame(DATA, PADDED, 1), connection_ends(FRAME_SIZE_ERROR)),
    "6.2 HEADERS of no stream": (headers(stream=0), connection_ends(PROTOCOL_ERROR)),
    "6.2 HEADERS with padding and priority": (
        frame(HEADERS, END_HEADERS | PADDED | HAS_PRIORITY, 1,
              b"\x02" + PRIORITIES + block(REQUEST) + b"\0\0"), FINE),
    "6.2 more padding than HEADERS": (
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\x05abc"), connection_ends(PROTOCOL_ERROR)),
    "6.2 HEADERS too short for a priority": (
        frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"abc"), connection_ends(FRAME_SIZE_ERROR)),
    # Frames of one kind
    "6.3 PRIORITY of no stream": (
        frame(PRIORITY, 0, 0, PRIORITIES), connection_ends(PROTOCOL_ERROR)),
    "6.3 a PRIORITY of another size": (OPEN + frame(PRIORITY, 0, 1, b"abcd"), stream_ends(6)),
    "6.4 RST_STREAM of no stream": (reset(0), connection_ends(PROTOCOL_ERROR)),
    "6.4 a RST_STREAM of another size": (
        OPEN + frame(RST_STREAM, 0, 1, b"abc"), connection_ends(FRAME_SIZE_ERROR)),
    "6.4 a reset with an unknown code": (OPEN + reset(1, 0xFFFFFFFF), FINE),
    "6.5 SETTINGS of a stream": (frame(SETTINGS, 0, 1), connection_ends(PROTOCOL_ERROR)),
    "6.5 an ACK with settings": (
        frame(SETTINGS, ACK, 0, bytes(6)), connection_ends(FRAME_SIZE_ERROR)),
    "6.5 SETTINGS of another size": (
        frame(SETTINGS, 0, 0, bytes(5)), connection_ends(FRAME_SIZE_ERROR)),
    "6.5.2 ENABLE_PUSH 0 and 1": (settings((2, 0), (2, 1)), FINE),
    "6.5.2 ENABLE_PUSH 2": (settings((2, 2)), connection_ends(PROTOCOL_ERROR)),
    "6.5.2 the largest window": (settings((4, WINDOW_MAX)), FINE),
    "6.5.2 a window that is too large": (
        settings((4, WINDOW_MAX + 1)), connection_ends(FLOW_CONTROL_ERROR)),
    "6.5.2 MAX_FRAME_SIZE at both ends": (settings((5, 16_384), (5, (1 << 24) - 1)), FINE),
    "6.5.2 MAX_FRAME_SIZE below": (settings((5, 16_383)), connection_ends(PROTOCOL_ERROR)),
    "6.5.2 MAX_FRAME_SIZE above": (settings((5, 1 << 24)), connection_ends(PROTOCOL_ERROR)),
    "6.5.2 unknown settings are ignored": (settings((0xFF, 7), (0, 1)), FINE),
    "6.5.2 other settings take any value": (settings((1, 0xFFFFFFFF), (3, 0), (6, 0)), FINE),
    "6.6 PUSH_PROMISE of a client": (
        OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), connection_ends(PROTOCOL_ERROR)),
    "6.7 PING of a stream": (frame(PING, 0, 1, bytes(8)), connection_ends(PROTOCOL_ERROR)),
    "6.7 a PING of another size": (frame(PING, 0, 0, bytes(7)), connection_ends(FRAME_SIZE_ERROR)),
    "6.8 GOAWAY of a stream": (
        frame(GOAWAY, 0, 1, bytes(8)), connection_ends(PROTOCOL_ERROR)),
    "6.8 a GOAWAY that is too short": (
        frame(GOAWAY, 0, 0, bytes(7)), connection_ends(FRAME_SIZE_ERROR)),
    "6.8 a GOAWAY with an unknown code and text": (goaway(0, 0xFFFF, b"bye"), FINE),
    "6.9 no more for a stream": (OPEN + window_update(1, 0), stream_ends(PROTOCOL_ERROR)),
    "6.9 no more for the connection": (window_update(0, 0), connection_ends(PROTOCOL_ERROR)),
    "6.9 only the reserved bit": (window_update(0, 1 << 31), connection_ends(PROTOCOL_ERROR)),
    "6.9 the reserved bit is ignored": (window_update(0, 1 << 31 | 5), FINE),
    "6.9 a WINDOW_UPDATE of another size": (
        frame(WINDOW_UPDATE, 0, 0, bytes(3)), connection_ends(FRAME_SIZE_ERROR)),
    "6.9.1 a stream's window at its end": (OPEN + window_update(1, WINDOW_MAX - 65_535), FINE),
    "6.9.1 a stream's window above it": (
        OPEN + window_update(1, WINDOW_MAX - 65_534), stream_ends(FLOW_CONTROL_ERROR)),
    "6.9.1 the connection's window at its end": (window_update(0, WINDOW_MAX - 65_535), FINE),
    "6.9.1 the connection's window above it": (
        window_update(0, WINDOW_MAX - 65_534), connection_ends(FLOW_CONTROL_ERROR)),
    "6.9.2 settings move a window above its end": (
        OPEN + window_update(1, WINDOW_MAX - 65_535) + settings((4, 65_536)),
        connection_ends(FLOW_CONTROL_ERROR)),
    "6.9.2 settings do not move the connection's": (
        window_update(0, WINDOW_MAX - 65_535) + settings((4, 65_536)), FINE),
    "6.10 CONTINUATION of no block": (
        frame(CONTINUATION, END_HEADERS, 1, b""), connection_ends(PROTOCOL_ERROR)),
    "6.10 CONTINUATION behind a whole block": (
        OPEN + frame(CONTINUATION, END_HEADERS, 1, b""), connection_ends(PROTOCOL_ERROR)),
    "6.10 CONTINUATION of another stream": (
        headers(flags=0) + frame(CONTINUATION, END_HEADERS, 3), connection_ends(PROTOCOL_ERROR)),
    "6.10 another frame within a block": (
        headers(flags=0) + frame(PING, 0, 0, bytes(8)), connection_ends(PROTOCOL_ERROR)),
    "6.10 an unknown frame within a block": (
        headers(flags=0) + frame(0xEE, 0, 1), connection_ends(PROTOCOL_ERROR)),
    "6.10 other headers within a block": (headers(flags=0) + OPEN, connection_ends(PROTOCOL_ERROR)),
    "6.10 a block in three frames": (
        frame(HEADERS, 0, 1, block(REQUEST)[:7]) + frame(CONTINUATION, 0, 1, block(REQUEST)[7:9])
        + frame(CONTINUATION, END_HEADERS, 1, block(REQUEST)[9:]), FINE),
    # Messages
    "8.1 trailers end a request": (OPEN + headers(TRAILERS, is_end=True), FINE),
    "8.1 headers in the middle": (OPEN + headers(TRAILERS), stream_ends(PROTOCOL_ERROR)),
    "8.1 pseudo-fields in trailers": (OPEN + headers(is_end=True), stream_ends(PROTOCOL_ERROR)),
    "8.1 upper case in trailers": (OPEN + headers([("X", "y")], is_end=True), stream_ends(1)),
    "8.1.1 less than content-length": (
        headers(request(("content-length", "9"))) + data(message(b"abc"), is_end=True),
        stream_ends(PROTOCOL_ERROR)),
    "8.1.1 less than content-length, and trailers": (
        headers(request(("content-length", "9"))) + data(message(b"abc"))
        + headers(TRAILERS, is_end=True), stream_ends(PROTOCOL_ERROR)),
    "8.1.1 more than content-length": (
        headers(request(("content-length", "7"))) + data(message(b"abc")), stream_ends(1)),
    "8.1.1 a content-length, and no content": (
        headers(request(("content-length", "1")), is_end=True), stream_ends(PROTOCOL_ERROR)),
    "8.1.1 as much as content-length, without the padding": (
        headers(request(("content-length", "8")))
        + frame(DATA, PADDED | END_STREAM, 1, b"\x02" + message(b"abc") + b"\0\0"), FINE),
    "8.1.1 the same content-length twice": (
        headers(request(("content-length", "8"), ("content-length", "8"))), FINE),
    "8.3 te: trailers is allowed": (OPEN, FINE),
    **{f"4.3 {name}": (frame(HEADERS, END_HEADERS, 1, raw), connection_ends(COMPRESSION_ERROR))
       for name, raw in BAD_BLOCKS.items()},
    "4.3 bad blocks of refused streams count": (
        OPEN + reset(1) + frame(HEADERS, END_HEADERS, 1, b"\x80"),
        connection_ends(COMPRESSION_ERROR)),
    **{name: (headers(fields), stream_ends(PROTOCOL_ERROR))
       for name, fields in MALFORMED.items()},
}  # fmt: skip

BEGUN = headers(ANSWER)
ENDED = BEGUN + headers(TRAILERS, is_end=True)
BAD_ANSWERS: dict[str, Fields] = {
    "8.3.2 no status": ANSWER[1:],
    "8.3.2 a status of two digits": [(":status", "20")],
    "8.3.2 a status that is no number": [(":status", "2OO")],
    "8.3.2 status 0": [(":status", "000")],
    "8.3 a status twice": [(":status", "200"), *ANSWER],
    "8.3 a pseudo-field of requests": [(":path", "/"), *ANSWER],
    "8.3 a status behind a field": [ANSWER[1], ANSWER[0]],
    "8.2.1 an upper-case name": [*ANSWER, ("A", "x")],
    "8.2.2 connection": [*ANSWER, ("connection", "close")],
    "8.1.1 a content-length that is no number": [*ANSWER, ("content-length", "x")],
}
# The client has started call 1, which is half-closed here, and 3, which is not.
CLIENT_ROWS: dict[str, tuple[bytes, Outcome]] = {
    "5.1 idle: HEADERS": (headers(ANSWER, stream=5), connection_ends(PROTOCOL_ERROR)),
    "5.1 idle: DATA": (data(b"x", stream=5), connection_ends(PROTOCOL_ERROR)),
    "5.1 idle: RST_STREAM": (reset(5), connection_ends(PROTOCOL_ERROR)),
    "5.1 idle: WINDOW_UPDATE": (window_update(5, 1), connection_ends(PROTOCOL_ERROR)),
    "5.1 closed by both: DATA": (ENDED + data(b"x"), connection_ends(STREAM_CLOSED)),
    "5.1 closed by both: HEADERS": (ENDED + headers(ANSWER), connection_ends(STREAM_CLOSED)),
    "5.1 closed by both: WINDOW_UPDATE": (ENDED + window_update(1, 1), FINE),
    "5.1 closed by both: PRIORITY": (ENDED + frame(PRIORITY, 0, 1, PRIORITIES), FINE),
    "5.1 closed by both: RST_STREAM": (ENDED + reset(1, NO_ERROR), FINE),
    "5.1.1 a server opens a stream": (headers(ANSWER, stream=2), connection_ends(PROTOCOL_ERROR)),
    "6.5.2 a server allows pushes": (settings((2, 1)), connection_ends(PROTOCOL_ERROR)),
    "6.5.2 a server allows no pushes": (settings((2, 0)), FINE),
    "6.6 PUSH_PROMISE was not allowed": (
        frame(PUSH_PROMISE, END_HEADERS, 1, bytes(3) + b"\x02" + block(REQUEST)),
        connection_ends(PROTOCOL_ERROR)),
    "6.9 no more for a stream": (window_update(1, 0), stream_ends(PROTOCOL_ERROR)),
    "8.1 DATA before the answer": (data(message(b"x")), stream_ends(PROTOCOL_ERROR)),
    "8.1 nothing but interim answers": (headers([(":status", "103")], is_end=True), stream_ends(1)),
    "8.1 an interim answer": (headers([(":status", "100")]) + ENDED, FINE),
    "8.1 headers in the middle": (BEGUN + headers(TRAILERS), stream_ends(PROTOCOL_ERROR)),
    "8.1 a status in trailers": (BEGUN + headers(ANSWER, is_end=True), stream_ends(1)),
    "8.1.1 less than content-length": (
        headers([*ANSWER, ("content-length", "9")]) + data(message(b"abc"))
        + headers(TRAILERS, is_end=True), stream_ends(PROTOCOL_ERROR)),
    "8.1.1 more than content-length": (
        headers([*ANSWER, ("content-length", "7")]) + data(message(b"abc")), stream_ends(1)),
    "8.1.1 a content-length, and no content": (
        headers([*ANSWER, ("content-length", "1")], is_end=True), stream_ends(PROTOCOL_ERROR)),
    "8.1.1 as much as content-length": (
        headers([*ANSWER, ("content-length", "8")]) + data(message(b"abc"))
        + headers(TRAILERS, is_end=True), FINE),
    **{name: (headers(fields), stream_ends(PROTOCOL_ERROR))
       for name, fields in BAD_ANSWERS.items()},
    **{f"4.3 {name}": (frame(HEADERS, END_HEADERS, 1, raw), connection_ends(COMPRESSION_ERROR))
       for name, raw in BAD_BLOCKS.items()},
}  # fmt: skip


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("name", SERVER_ROWS)
def test_a_server_keeps_the_rule(name: str, *, is_cut: bool) -> None:
    raw, outcome = SERVER_ROWS[name]
    peer = server(is_cut=is_cut and len(raw) < 10_000)
    peer.send(raw)
    meet(peer, outcome)
    begun = [event for event in peer.events if isinstance(event, CallStarted)]
    over = [event for event in peer.events if isinstance(event, CallCancelled)]
    assert len(over) == len(begun) or outcome == FINE


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("name", CLIENT_ROWS)
def test_a_client_keeps_the_rule(name: str, *, is_cut: bool) -> None:
    raw, outcome = CLIENT_ROWS[name]
    peer = client(is_cut=is_cut)
    connection = peer.connection
    assert isinstance(connection, ClientConnection)
    first, second = connection.start("/a.B/C"), connection.start("/a.B/D")
    connection.end(first)
    peer.send(raw)
    meet(peer, outcome)
    ended = [event.call for event in peer.events if isinstance(event, CallEnded)]
    if outcome.what == "connection":
        assert sorted(call.stream_id for call in ended) == [1, 3]
    elif outcome.what == "stream":
        assert ended == [first]
    assert second in ended or second.stream_id in connection.streams


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX",
        b"\x16\x03\x01",
        b"\0",
    ],
    ids=["HTTP/1.1", "the last byte", "TLS", "NUL"],
)
@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "byte by byte"])
def test_3_4_a_server_wants_the_preface(raw: bytes, *, is_cut: bool) -> None:
    peer = Peer(ServerConnection(WireLimits()), is_cut=is_cut)
    peer.send(raw)
    meet(peer, connection_ends(PROTOCOL_ERROR))


@pytest.mark.parametrize("first", [ACKNOWLEDGE, frame(PING, 0, 0, bytes(8)), OPEN, frame(0xEE)])
@pytest.mark.parametrize("is_server", [True, False])
def test_3_4_the_first_frame_is_settings_and_no_acknowledgement(
    first: bytes, *, is_server: bool
) -> None:
    limits = WireLimits()
    if is_server:
        peer = Peer(ServerConnection(limits))
        peer.send(PREFACE, first)
    else:
        peer = Peer(ClientConnection(limits, "x"))
        peer.send(first)
    meet(peer, connection_ends(PROTOCOL_ERROR))


def test_3_4_a_client_begins_with_the_preface_and_a_server_with_settings() -> None:
    ours = ClientConnection(WireLimits(), "x").take_output()
    assert ours.startswith(PREFACE)
    for raw in (ours.removeprefix(PREFACE), ServerConnection(WireLimits()).take_output()):
        assert raw[3] == SETTINGS
        assert raw[4] == 0
    assert struct.pack(">HI", 2, 0) in ours, "8.4: pushes are off"


def test_5_1_1_a_client_counts_in_odd_numbers_and_stops_at_the_last() -> None:
    connection = ClientConnection(WireLimits(), "x")
    assert [connection.start("/a").stream_id for _ in range(3)] == [1, 3, 5]
    connection._next_id = WINDOW_MAX
    assert connection.start("/a").stream_id == WINDOW_MAX
    assert not connection.can_start


def test_5_1_2_streams_beyond_the_limit_are_refused_and_others_go_on() -> None:
    peer = server(WireLimits(streams_max=2))
    peer.send(*(headers(stream=number) for number in (1, 3, 5)), data(b"late", stream=5))
    assert [(each.stream, each.code) for each in peer.sent(RST_STREAM)] == [(5, REFUSED_STREAM)]
    assert peer.connection.call_count == 2
    assert sum(isinstance(each, CallStarted) for each in peer.events) == 2
    assert not peer.sent(GOAWAY)


def test_5_1_2_a_client_obeys_the_servers_limit_of_streams() -> None:
    peer = Peer(ClientConnection(WireLimits(), "x"))
    connection = peer.connection
    assert isinstance(connection, ClientConnection)
    started = 0
    while connection.can_start:
        connection.start("/a")
        started += 1
    assert started == 100, "before the server has said anything"
    peer.send(settings((3, 101)))
    connection.start("/a")
    assert not connection.can_start
    peer.send(settings((3, 5)))
    assert not connection.can_start
    peer.send(settings((3, 1000)), settings())
    assert connection.can_start


def test_5_1_many_late_frames_of_calls_that_a_client_gave_up_are_no_fault() -> None:
    """More calls may have been cancelled at once than are remembered."""
    peer = client()
    connection = peer.connection
    assert isinstance(connection, ClientConnection)
    calls = [connection.start("/a") for _ in range(1_500)]
    for call in calls:
        connection.cancel(call)
    for call in calls:
        number = call.stream_id
        peer.send(headers(ANSWER, stream=number), data(message(b"x"), stream=number))
        peer.send(headers(TRAILERS, stream=number, is_end=True))
    assert not peer.sent(GOAWAY)
    assert peer.events == []


def test_6_5_3_settings_are_acknowledged_once_each_and_acknowledgements_never() -> None:
    peer = server()
    peer.send(settings((4, 5)), settings(), ACKNOWLEDGE)
    assert [(each.flags, each.payload) for each in peer.sent(SETTINGS)] == [(ACK, b"")] * 2


def test_6_7_a_ping_is_answered_with_its_payload_and_an_answer_is_not() -> None:
    peer = server()
    assert peer.send(frame(PING, ACK, 0, b"abcdefgh")) == [PingAcknowledged()]
    assert peer.sent(PING) == []
    peer.send(frame(PING, 0, 0, b"hgfedcba"))
    assert [(each.flags, each.payload) for each in peer.sent(PING)] == [(ACK, b"hgfedcba")]


def test_6_8_a_client_ends_calls_above_the_last_id_as_unprocessed() -> None:
    peer = client()
    connection = peer.connection
    assert isinstance(connection, ClientConnection)
    calls = [connection.start("/a") for _ in range(3)]
    events = peer.send(goaway(3, NO_ERROR, b"bye"))
    assert events[0] == GoingAway(3, NO_ERROR, "bye")
    (ended,) = [each for each in events if isinstance(each, CallEnded)]
    assert ended.call is calls[2]
    assert (ended.status.code, ended.status.is_unprocessed) == (14, True)
    assert not connection.can_start
    assert connection.is_draining
    events = peer.send(headers(ANSWER), headers(TRAILERS, is_end=True))
    assert [type(each) for each in events] == [ResponseStarted, CallEnded]


def test_6_8_a_server_that_drains_ignores_new_streams_and_ends_the_old_ones() -> None:
    """A client that does not know yet sends whole calls; they must not harm those under way."""
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    (started,) = peer.send(OPEN)
    assert isinstance(started, CallStarted)
    connection.drain()
    connection.drain()
    assert [(each.last_id, each.code) for each in peer.sent(GOAWAY)] == [(1, NO_ERROR)]
    whole = headers(stream=3) + data(message(b"new"), stream=3) + data(b"", stream=3, is_end=True)
    assert peer.send(whole, headers(stream=5, is_end=True), reset(5)) == []
    window = connection._window
    assert window + 8 == CONNECTION_WINDOW, "they count for the connection's window"
    connection.respond(started.call, b"late")
    assert b"late" in b"".join(each.payload for each in peer.sent(DATA, 1))
    connection.close()
    assert [each.last_id for each in peer.sent(GOAWAY)] == [1, 1], "never more than before"


def test_6_9_nothing_is_sent_beyond_a_window_and_the_rest_follows_credit() -> None:
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(settings((4, 10)), headers(is_end=True))
    (started,) = [each for each in peer.events if isinstance(each, CallStarted)]
    connection.send(started.call, bytes(100))
    connection.send(started.call, b"second")

    def sizes() -> list[int]:
        return [len(each.payload) for each in peer.sent(DATA)]

    assert sizes() == [10]
    assert started.call.unsent_bytes == connection.unsent_bytes == 106
    peer.send(window_update(1, 5))
    assert sizes() == [10, 5]
    peer.send(settings((4, 0)))  # 6.9.2: the window is -10 now
    peer.send(window_update(1, 10))
    assert sizes() == [10, 5], "a negative window grows before anything is sent"
    peer.send(window_update(1, 1))
    assert sizes() == [10, 5, 1]
    assert not any(isinstance(each, CallWritable) for each in peer.events)
    peer.send(settings((4, 1000)))
    assert sizes() == [10, 5, 1, 89, 11], "SETTINGS let it go on"
    assert peer.events[-1] == CallWritable(started.call)
    assert connection.unsent_bytes == 0


def test_6_9_the_connections_window_holds_all_streams_and_is_shared_in_turn() -> None:
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(settings((4, WINDOW_MAX)), *(headers(stream=n, is_end=True) for n in (1, 3)))
    for each in list(connection.streams.values()):
        connection.respond(each, bytes(60_000))
    assert sum(len(each.payload) for each in peer.sent(DATA)) == 65_535
    peer.frames.clear()
    peer.send(window_update(0, 1_000_000))
    order = [each.stream for each in peer.sent(DATA)]
    assert set(order) <= {1, 3}
    assert connection.call_count == 0
    assert [each.flags & END_STREAM for each in peer.sent(HEADERS, 3)] == [1]


def test_6_9_trailers_need_no_window() -> None:
    """An answer that fills the connection's window to the last byte is a whole answer."""
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(settings((4, WINDOW_MAX)), headers(is_end=True))
    connection.respond(connection.streams[1], bytes(100_000))
    peer.send(window_update(0, connection.unsent_bytes))
    assert connection._send_window == connection.call_count == 0
    assert [each.flags & END_STREAM for each in peer.sent(HEADERS)] == [0, 1]


@pytest.mark.parametrize(
    "connection", [ServerConnection(WireLimits()), ClientConnection(WireLimits(), "x")]
)
def test_6_9_2_the_windows_that_are_announced_are_those_that_are_kept(
    connection: ServerConnection | ClientConnection,
) -> None:
    peer = Peer(connection)
    (announced,) = peer.sent(SETTINGS)
    assert struct.pack(">HI", 4, STREAM_WINDOW) in announced.payload
    (more,) = peer.sent(WINDOW_UPDATE)
    assert more.stream == 0
    assert 65_535 + more.code == connection._window == CONNECTION_WINDOW


def test_6_9_streams_take_turns_frame_by_frame() -> None:
    """One large answer must not hold up the others."""
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(settings((4, WINDOW_MAX)), *(headers(stream=n, is_end=True) for n in (1, 3, 5)))
    peer.connection.hold()
    for each in list(connection.streams.values()):
        connection.respond(each, bytes(20_000))
    assert peer.sent(DATA) == []
    connection.resume()
    assert [each.stream for each in peer.sent(DATA)] == [1, 3, 5, 1, 3, 5]


def test_6_9_an_empty_end_needs_no_window_but_not_a_negative_one() -> None:
    """It may be sent at once; h2 ends the connection for it, and would not for a window of 0."""
    peer = client()
    connection = peer.connection
    assert isinstance(connection, ClientConnection)
    call = connection.start("/a")
    connection.send(call, bytes(100))
    peer.send(settings((4, 0)))
    connection.end(call)
    assert [(len(each.payload), each.flags) for each in peer.sent(DATA)] == [(105, 0)]
    peer.send(settings((4, 105)))
    assert [(len(each.payload), each.flags) for each in peer.sent(DATA)] == [(105, 0), (0, 1)]
    other = connection.start("/a")
    connection.send(other, bytes(100))
    connection.end(other)
    assert [(len(each.payload), each.flags) for each in peer.sent(DATA, 3)] == [(105, 0), (0, 1)]


@pytest.mark.parametrize("size", [16_384, 16_385, 40_000])
def test_4_2_no_frame_is_longer_than_the_peer_allows(size: int) -> None:
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(headers(is_end=True))
    call = connection.streams[1]
    connection.start(call, (("long", "x" * 40_000),))
    connection.respond(call, bytes(size - 5))
    peer.collect()
    assert max(len(each.payload) for each in peer.frames) <= 16_384
    assert [each.kind for each in peer.frames[:3]] == [HEADERS, CONTINUATION, CONTINUATION]
    assert [each.flags for each in peer.frames[:3]] == [0, 0, END_HEADERS]
    assert peer.header_lists()[0]["long"] == "x" * 40_000
    assert sum(len(each.payload) for each in peer.sent(DATA)) == size


def test_6_2_only_headers_end_a_stream_and_their_continuations_do_not() -> None:
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(headers(is_end=True))
    connection.finish(connection.streams[1], Status(2, "x" * 40_000))
    assert [(each.kind, each.flags) for each in peer.collect()] == [
        (HEADERS, END_STREAM), (CONTINUATION, 0), (CONTINUATION, END_HEADERS),
    ]  # fmt: skip


def test_small_answers_wait_for_the_socket_like_large_ones() -> None:
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(headers(is_end=True))
    connection.hold()
    connection.respond(connection.streams[1], b"x")
    assert peer.sent(DATA) == []
    assert connection.unsent_bytes == 6
    connection.resume()
    assert len(peer.sent(DATA)) == 1
    assert connection.call_count == 0


def test_6_5_2_a_larger_frame_size_is_used() -> None:
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(settings((5, 30_000)), headers(is_end=True))
    connection.respond(connection.streams[1], bytes(29_995))
    assert [len(each.payload) for each in peer.sent(DATA)] == [30_000]


def test_6_9_1_a_stream_beyond_our_window_is_reset() -> None:
    peer = server()
    peer.send(OPEN, data(message(bytes(2 << 20))[:16_384]))
    peer.send(*(data(bytes(16_384)) for _ in range(63)))
    granted = sum(each.code for each in peer.sent(WINDOW_UPDATE, 1))
    assert granted == STREAM_WINDOW, "half a message is taken"
    stream = peer.connection.streams[1]
    stream.window = 10  # as if it had not been granted
    peer.connection.receive(data(bytes(11)))
    assert [each.code for each in peer.sent(RST_STREAM)] == [FLOW_CONTROL_ERROR]
    assert not peer.sent(GOAWAY)


def test_6_9_1_what_is_not_released_is_not_granted_again() -> None:
    """Whole messages that nobody takes close the stream's window, padding included."""
    peer = server()
    peer.send(OPEN)
    padded = frame(DATA, PADDED, 1, b"\x09" + message(bytes(1_000)) + bytes(9))
    sent = 0
    while not peer.sent(RST_STREAM):
        peer.send(padded)
        sent += len(padded) - 9
        assert sent < 4 * STREAM_WINDOW
    granted = STREAM_WINDOW + sum(each.code for each in peer.sent(WINDOW_UPDATE, 1))
    assert sent - len(padded) < granted < sent
    assert [each.code for each in peer.sent(RST_STREAM)] == [FLOW_CONTROL_ERROR]


def test_6_9_1_a_connection_beyond_our_window_ends() -> None:
    """Data of streams that were reset counts as well."""
    peer = server(WireLimits(buffered_bytes_max=1000))
    connection = peer.connection
    connection._window = 10  # as if it had not been granted
    peer.connection.receive(headers(MALFORMED["8.2.2 upgrade"]) + data(bytes(11)))
    assert connection.is_closed
    assert peer.sent(GOAWAY)[0].code == FLOW_CONTROL_ERROR


@pytest.mark.parametrize(
    "end", [b"", reset(1), window_update(1, 0)], ids=["held", "reset", "fault"]
)
def test_6_9_credit_of_a_connection_comes_back_when_a_stream_ends(end: bytes) -> None:
    peer = server(WireLimits(buffered_bytes_max=1 << 20))
    for number in range(1, 16, 2):
        peer.send(headers(stream=number))
        for _ in range(60):
            peer.send(data(message(bytes(16_000)), stream=number))
    granted = sum(each.code for each in peer.sent(WINDOW_UPDATE, 0))
    assert granted == 0, "too much is kept"
    if end:
        for number in range(1, 16, 2):
            peer.send(end.replace(struct.pack(">I", 1), struct.pack(">I", number), 1))
        assert peer.connection.buffered_bytes == 0
        assert sum(each.code for each in peer.sent(WINDOW_UPDATE, 0)) > CONNECTION_WINDOW // 2


def test_6_9_releasing_messages_opens_both_windows_again() -> None:
    peer = server(WireLimits(buffered_bytes_max=1 << 20))
    connection = peer.connection
    kept: list[MessageReceived] = []
    sent = 0
    for number in range(1, 16, 2):
        peer.send(headers(stream=number))
        for _ in range(60):
            events = peer.send(data(message(bytes(16_000)), stream=number))
            kept += [each for each in events if isinstance(each, MessageReceived)]
            sent += 16_005
    for each in kept:
        connection.release(each.call, len(each.data))
        connection.check()
    assert connection.buffered_bytes == 0
    total = sum(each.code for each in peer.sent(WINDOW_UPDATE, 0))
    assert sent - CONNECTION_WINDOW // 2 < total <= sent
    for number in range(1, 16, 2):
        assert sum(each.code for each in peer.sent(WINDOW_UPDATE, number)) > STREAM_WINDOW // 3


def test_8_1_a_server_that_answers_early_asks_the_client_to_stop() -> None:
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(OPEN)
    connection.finish(connection.streams[1])
    assert [each.kind for each in peer.collect()] == [HEADERS, RST_STREAM]
    assert peer.frames[-1].code == NO_ERROR
    assert connection.call_count == 0
    peer.send(data(b"late"), data(b"", is_end=True))
    assert not peer.sent(GOAWAY)


def test_8_1_a_client_that_is_answered_early_stops() -> None:
    peer = client()
    connection = peer.connection
    assert isinstance(connection, ClientConnection)
    call = connection.start("/a")
    connection.send(call, bytes(100_000))
    events = peer.send(headers([*ANSWER, *TRAILERS], is_end=True))
    assert events == [CallEnded(call, OK)]
    assert [each.code for each in peer.sent(RST_STREAM)] == [CANCEL]
    assert connection.unsent_bytes == connection.call_count == 0
    assert peer.send(reset(1, NO_ERROR)) == []


def test_5_1_nothing_is_sent_on_a_stream_that_both_have_ended() -> None:
    """An answer without trailers is an error of gRPC; for HTTP/2 its stream is closed."""
    peer = client()
    connection = peer.connection
    assert isinstance(connection, ClientConnection)
    connection.end(connection.start("/a"))
    (_, ended) = peer.send(BEGUN, data(b"", is_end=True))
    assert isinstance(ended, CallEnded)
    assert peer.sent(RST_STREAM) == []


def test_6_4_a_reset_call_is_over_for_its_owner_and_answers_do_nothing() -> None:
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(HALF_CLOSED)
    call = connection.streams[1]
    assert peer.send(reset(1)) == [CallCancelled(call)]
    assert call.is_over
    connection.respond(call, b"x")
    connection.send(call, b"x")
    connection.finish(call)
    connection.start(call)
    connection.cancel(call)
    connection.release(call, 7)
    assert peer.collect() == []


def test_nothing_follows_an_end_that_waits_for_a_window() -> None:
    """An owner that answers twice must not put frames behind END_STREAM (5.1)."""
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(settings((4, 0)), HALF_CLOSED)
    call = connection.streams[1]
    connection.respond(call, b"abc")
    assert call.is_over
    for _ in range(2):
        connection.send(call, b"more")
        connection.respond(call, b"more")
        connection.finish(call)
    peer.send(window_update(1, 1000))
    assert [(each.kind, each.payload[5:]) for each in peer.sent(DATA)] == [(DATA, b"abc")]
    assert len(peer.sent(HEADERS)) == 2

    other = client()
    ours = other.connection
    assert isinstance(ours, ClientConnection)
    other.send(settings((4, 0)))
    started = ours.start("/a")
    ours.send(started, b"abc", is_last=True)
    ours.end(started)
    ours.send(started, b"more")
    other.send(window_update(1, 1000))
    assert [(each.flags, each.payload[5:]) for each in other.sent(DATA)] == [(END_STREAM, b"abc")]


def test_a_request_is_given_in_order_with_its_end() -> None:
    peer = server()
    peer.send(OPEN, data(message(b"a")), data(message(b"b"), is_end=True))
    call = peer.connection.streams[1]
    assert peer.events == [
        CallStarted(call), MessageReceived(call, b"a", is_last=False),
        MessageReceived(call, b"b", is_last=True),
    ]  # fmt: skip
    peer.events.clear()
    peer.send(headers(stream=3), data(b"", stream=3, is_end=True))
    assert [type(each) for each in peer.events] == [CallStarted, RequestEnded]
