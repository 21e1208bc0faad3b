"""gRPC on the wire: PROTOCOL-HTTP2.md and the mappings beside it, for both roles."""

import gzip
import zlib
from typing import Any

import pytest

from onelog.wire.grpc import (
    MESSAGE_COST,
    OK,
    Call,
    CallCancelled,
    CallEnded,
    CallStarted,
    ClientConnection,
    MessageReceived,
    MessageTooLarge,
    Metadata,
    RequestEnded,
    ResponseStarted,
    ServerConnection,
    Status,
    WireLimits,
)
from onelog.wire.headers import (
    decode_message,
    decode_metadata,
    decode_timeout,
    encode_message,
    encode_metadata,
    encode_timeout,
)
from tests.onelog.wire.frames import (
    ANSWER,
    CANCEL,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    NO_ERROR,
    REFUSED_STREAM,
    REQUEST,
    RST_STREAM,
    TRAILERS,
    Fields,
    Peer,
    client,
    data,
    headers,
    message,
    reset,
    server,
    settings,
    window_update,
)

LIMITS = WireLimits(message_bytes_max=1000, header_bytes_max=2000)
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 3, 8, 12, 13, 14
UNKNOWN = 2


def changed(**changes: str | None) -> list[tuple[str, str]]:
    """Return a request with other fields; ``_`` is ``-``, and None leaves one out."""
    names = {name.replace("_", "-"): value for name, value in changes.items()}
    fields: dict[str, str | None] = dict(REQUEST)
    for name, value in names.items():
        fields[f":{name}" if f":{name}" in fields else name] = value
    return [(name, value) for name, value in fields.items() if value is not None]


# What the core answers by itself: an HTTP status without gRPC, or a gRPC status. 0: a call starts.
REQUESTS: dict[str, tuple[Fields, int, int | None]] = {
    "a plain request": (REQUEST, 200, 0),
    "+proto": (changed(content_type="application/grpc+proto"), 200, 0),
    "a charset": (changed(content_type="application/grpc; charset=utf-8"), 200, 0),
    "upper case": (changed(content_type="Application/GRPC"), 200, 0),
    "no te": (changed(te=None), 200, 0),
    "no authority": ([each for each in REQUEST if each[0] != ":authority"], 200, 0),
    "identity": (changed(grpc_encoding="identity"), 200, 0),
    "gzip": (changed(grpc_encoding="gzip"), 200, 0),
    "other fields": (changed(user_agent="x/1", grpc_accept_encoding="br"), 200, 0),
    "no content-type": (changed(content_type=None), 415, None),
    "JSON": (changed(content_type="application/json"), 415, None),
    "gRPC-Web": (changed(content_type="application/grpc-web"), 415, None),
    "a longer type": (changed(content_type="application/grpcx"), 415, None),
    "GET": (changed(method="GET"), 405, None),
    "an unknown method": (changed(method="post"), 405, None),
    "an unknown encoding": (changed(grpc_encoding="snappy"), 200, UNIMPLEMENTED),
    "a timeout without a unit": (changed(grpc_timeout="10"), 200, INVALID_ARGUMENT),
    "a timeout of nine digits": (changed(grpc_timeout="123456789m"), 200, INVALID_ARGUMENT),
    "a negative timeout": (changed(grpc_timeout="-1S"), 200, INVALID_ARGUMENT),
    "a timeout of an unknown unit": (changed(grpc_timeout="1s"), 200, INVALID_ARGUMENT),
    "an empty timeout": (changed(grpc_timeout=""), 200, INVALID_ARGUMENT),
    "binary metadata that is none": (changed(x_bin="a!"), 200, INVALID_ARGUMENT),
    "headers beyond the limit": (changed(x="y" * 2000), 200, RESOURCE_EXHAUSTED),
}


@pytest.mark.parametrize("is_end", [True, False])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_a_call_or_is_answered_at_once(name: str, *, is_end: bool) -> None:
    fields, http_status, grpc_status = REQUESTS[name]
    peer = server(LIMITS)
    peer.send(headers(fields, is_end=is_end))
    if grpc_status == 0:
        assert isinstance(peer.events[0], CallStarted)
        assert peer.events[0].call.path == "/a.B/C"
        assert peer.frames == []
        return
    assert peer.events == []
    assert peer.connection.call_count == 0
    (found,) = peer.header_lists()
    assert found[":status"] == str(http_status)
    assert found.get("grpc-status") == (None if grpc_status is None else str(grpc_status))
    if grpc_status is not None:
        assert found["content-type"] == "application/grpc"
        assert found["grpc-message"]
        assert found["grpc-accept-encoding"] == "identity,gzip"
    assert peer.frames[0].flags & END_STREAM
    assert [each.code for each in peer.sent(RST_STREAM)] == ([] if is_end else [NO_ERROR])


def gz(payload: bytes) -> bytes:
    return gzip.compress(payload, mtime=0)


# Frames of DATA, whether the last ends the stream, and what comes of it: messages, or a status.
BODIES: dict[str, tuple[list[bytes], list[bytes] | int]] = {
    "one message": ([message(b"abc")], [b"abc"]),
    "an empty message": ([message(b"")], [b""]),
    "two in one frame": ([message(b"a") + message(b"bc")], [b"a", b"bc"]),
    "one in two frames": ([message(b"abc")[:6], message(b"abc")[6:]], [b"abc"]),
    "a prefix in two frames": ([message(b"abc")[:2], message(b"abc")[2:]], [b"abc"]),
    "the longest": ([message(bytes(1000))], [bytes(1000)]),
    "compressed": ([message(gz(b"abc"), flag=1)], [b"abc"]),
    "compressed, and not": ([message(gz(b"a"), flag=1), message(b"b")], [b"a", b"b"]),
    "compressed to the longest": ([message(gz(bytes(1000)), flag=1)], [bytes(1000)]),
    "flag 2": ([message(b"abc", flag=2)], INTERNAL),
    "flag 2 of a gzip": ([message(gz(b"abc"), flag=2)], INTERNAL),
    "flag 255": ([message(b"abc", flag=255)], INTERNAL),
    "no gzip": ([message(b"abc", flag=1)], INTERNAL),
    "nothing, compressed": ([message(b"", flag=1)], INTERNAL),
    "half of a gzip": ([message(gz(b"abcdef")[:-9], flag=1)], INTERNAL),
    "a gzip without its check": ([message(gz(b"abcdef")[:-1], flag=1)], INTERNAL),
    "a gzip with a wrong check": ([message(gz(b"abc")[:-8] + bytes(8), flag=1)], INTERNAL),
    "a second gzip behind": ([message(gz(b"abc") + gz(b"def"), flag=1)], INTERNAL),
    "zlib's format": ([message(zlib.compress(b"abc"), flag=1)], INTERNAL),
    "half a prefix": ([b"\0\0"], INTERNAL),
    "half a message": ([message(b"abc")[:-1]], INTERNAL),
    "a message and a half": ([message(b"a") + message(b"abc")[:-1]], INTERNAL),
    "too long": ([message(bytes(1001))], RESOURCE_EXHAUSTED),
    "announced too long": ([message(bytes(1001))[:5]], RESOURCE_EXHAUSTED),
    "inflated too long": ([message(gz(bytes(1001)), flag=1)], RESOURCE_EXHAUSTED),
}
ENDS = ["END_STREAM", "an empty frame", "trailers"]


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", BODIES)
def test_messages_of_a_request(name: str, end: str, *, is_cut: bool) -> None:
    pieces, outcome = BODIES[name]
    peer = server(LIMITS, is_cut=is_cut)
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    parts = [data(each) for each in pieces]
    if end == "END_STREAM":
        parts[-1] = data(pieces[-1], is_end=True)
    elif end == "an empty frame":
        parts.append(data(b"", is_end=True))
    else:
        parts.append(headers([("x", "y")], is_end=True))
    (started, *events) = peer.send(headers(changed(grpc_encoding="gzip")), *parts)
    assert isinstance(started, CallStarted)
    assert not peer.sent(GOAWAY)
    if isinstance(outcome, list):
        is_last = [False] * (len(outcome) - 1) + [end == "END_STREAM"]
        expected: list[Any] = [
            MessageReceived(started.call, *each) for each in zip(outcome, is_last, strict=True)
        ]
        if end != "END_STREAM":
            expected.append(RequestEnded(started.call))
        assert events == expected
        assert connection.buffered_bytes == sum(len(each) + MESSAGE_COST for each in outcome)
    elif outcome == RESOURCE_EXHAUSTED:
        (too_large,) = events
        assert isinstance(too_large, MessageTooLarge)
        assert too_large.size == 1001
        assert connection.buffered_bytes == 0
        connection.finish(started.call, Status(outcome, "too large"))
    else:
        assert events[-1] == CallCancelled(started.call)
        assert RequestEnded not in map(type, events)
    if not isinstance(outcome, list):
        (found,) = peer.header_lists()
        assert (found[":status"], found["grpc-status"]) == ("200", str(outcome))
        assert connection.call_count == 0


def test_a_compressed_message_without_an_encoding_is_refused() -> None:
    """compression.md: the flag without grpc-encoding is INTERNAL."""
    for encoding in (None, "identity"):
        peer = server()
        peer.send(headers(changed(grpc_encoding=encoding)), data(message(gz(b"abc"), flag=1)))
        assert isinstance(peer.events[-1], CallCancelled)
        assert peer.header_lists()[0]["grpc-status"] == str(INTERNAL)


def test_a_refused_call_is_cancelled_once_even_if_its_answer_waits() -> None:
    """Its owner must not hear of it again when the client resets what it still waits for."""
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(settings((4, 3)), headers())
    call = connection.streams[1]
    connection.send(call, b"abcdef")
    assert peer.send(data(message(b"", flag=7))) == [CallCancelled(call)]
    assert call.is_over
    connection.send(call, b"more")
    assert connection.unsent_bytes == 8
    assert peer.send(reset(1)) == []
    assert connection.unsent_bytes == 0


def test_a_refused_request_whose_answer_waits_for_the_socket_is_no_event() -> None:
    peer = server()
    peer.connection.hold()
    peer.send(headers(changed(content_type="text/html")), reset(1))
    assert peer.events == []
    peer.connection.resume()
    assert peer.collect() == []


def test_answers_without_data_wait_for_the_socket_too() -> None:
    """Otherwise a client that never reads could have any number of them."""
    peer = server(WireLimits(streams_max=3))
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    connection.hold()
    for number in range(1, 12, 2):
        peer.send(headers(stream=number, is_end=True))
        if number in connection.streams:
            connection.finish(connection.streams[number], Status(5))
    assert peer.sent(HEADERS) == []
    assert [each.stream for each in peer.sent(RST_STREAM)] == [7, 9, 11]
    connection._send_window = 0  # trailers need none
    connection.resume()
    assert [each.stream for each in peer.sent(HEADERS)] == [1, 3, 5]
    assert connection.call_count == 0


# Answers


def test_a_unary_answer_is_headers_a_message_and_trailers() -> None:
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(headers(is_end=True))
    connection.respond(connection.streams[1], b"abc")
    assert [each.kind for each in peer.collect()] == [HEADERS, DATA, HEADERS]
    assert [each.flags & END_STREAM for each in peer.frames] == [0, 0, 1]
    assert peer.frames[1].payload == message(b"abc")
    first, last = peer.header_lists()
    assert (first[":status"], first["content-type"]) == ("200", "application/grpc")
    assert last == {"grpc-status": "0"}


def test_an_answer_that_is_only_a_status_is_one_frame() -> None:
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(headers(is_end=True))
    status = Status(9, "a b\n100 %, \u00e9", b"\xfb\xff", (("k", "v"), ("k-bin", b"\0\xfe")))
    connection.finish(connection.streams[1], status)
    (found,) = peer.header_lists()
    assert [each.flags & END_STREAM for each in peer.frames] == [1]
    assert found == {
        ":status": "200", "content-type": "application/grpc", "grpc-status": "9",
        "grpc-message": "a b%0A100 %25, %C3%A9", "grpc-status-details-bin": "+/8",
        "k": "v", "k-bin": "AP4", "grpc-accept-encoding": "identity,gzip",
    }  # fmt: skip


def test_a_stream_of_answers_has_its_metadata_first_and_a_status_last() -> None:
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(headers(is_end=True))
    call = connection.streams[1]
    connection.start(call, (("k", "v"),))
    connection.start(call, (("k", "again"),))
    connection.send(call, b"1")
    connection.send(call, b"2")
    connection.finish(call, Status(10, "x"))
    assert [each.kind for each in peer.collect()] == [HEADERS, DATA, DATA, HEADERS]
    first, last = peer.header_lists()
    assert first["k"] == "v"
    assert last == {"grpc-status": "10", "grpc-message": "x"}


def open_call(peer: Peer, *, is_end: bool = True) -> tuple[ClientConnection, Call]:
    connection = peer.connection
    assert isinstance(connection, ClientConnection)
    call = connection.start("/a.B/C")
    if is_end:
        connection.end(call)
    return connection, call


def test_a_request_has_the_fields_of_the_protocol() -> None:
    peer = client()
    connection = peer.connection
    assert isinstance(connection, ClientConnection)
    call = connection.start("/a.B/C", (("k", "v"), ("k-bin", b"\xff")), 1.5)
    connection.send(call, b"abc", is_last=True)
    assert peer.header_lists() == [
        {
            ":method": "POST", ":scheme": "http", ":path": "/a.B/C", ":authority": "x",
            "te": "trailers", "content-type": "application/grpc", "grpc-accept-encoding": "gzip",
            "k": "v", "k-bin": "/w", "grpc-timeout": "1500m",
        }
    ]  # fmt: skip
    assert [(each.flags, each.payload) for each in peer.sent(DATA)] == [(1, message(b"abc"))]


HTTP = {400: 13, 401: 16, 403: 7, 404: 12, 429: 14, 502: 14, 503: 14, 504: 14, 500: 2, 418: 2,
        204: 2, 302: 2}  # fmt: skip


@pytest.mark.parametrize("is_end", [True, False])
@pytest.mark.parametrize(("http_status", "code"), HTTP.items())
def test_an_http_status_becomes_a_status(http_status: int, code: int, *, is_end: bool) -> None:
    """http-grpc-status-mapping.md, whatever the body is."""
    peer = client()
    _, call = open_call(peer)
    events = peer.send(headers([(":status", str(http_status))], is_end=is_end))
    (ended,) = events
    assert isinstance(ended, CallEnded)
    assert (ended.call, ended.status.code) == (call, code)
    assert [each.code for each in peer.sent(RST_STREAM)] == ([] if is_end else [CANCEL])
    assert peer.connection.call_count == 0
    if not is_end:
        assert peer.send(data(b"<html>"), data(b"", is_end=True)) == []
        assert not peer.sent(GOAWAY)


RESETS = {0: 13, 1: 13, 2: 13, 3: 13, 4: 13, 5: 13, 6: 13, 7: 14, 8: 1, 9: 13, 10: 13, 11: 8,
          12: 7, 13: 13, 99: 13}  # fmt: skip


@pytest.mark.parametrize(("reset_code", "code"), RESETS.items())
def test_a_reset_becomes_a_status(reset_code: int, code: int) -> None:
    peer = client()
    _, call = open_call(peer)
    (ended,) = peer.send(reset(1, reset_code))
    assert isinstance(ended, CallEnded)
    assert (ended.call, ended.status.code) == (call, code)
    assert ended.status.is_unprocessed == (reset_code == REFUSED_STREAM)
    assert peer.sent(RST_STREAM) == []


TRAILING: dict[str, tuple[Fields, Status]] = {
    "0": ([("grpc-status", "0")], OK),
    "0 with metadata": ([("grpc-status", "0"), ("k", "v")], Status(0, metadata=(("k", "v"),))),
    "5": ([("grpc-status", "5"), ("grpc-message", "a%20b%C3%A9")], Status(5, "a b\u00e9")),
    "16": ([("grpc-status", "16")], Status(16)),
    "details": ([("grpc-status", "3"), ("grpc-status-details-bin", "+/8")],
                Status(3, details=b"\xfb\xff")),
    "a code that nobody knows": ([("grpc-status", "17")], Status(2)),
    "no number": ([("grpc-status", "x")], Status(2)),
    "nothing": ([("grpc-status", "")], Status(2)),
    "negative": ([("grpc-status", "-1")], Status(2)),
    "bad binary metadata": ([("grpc-status", "4"), ("k-bin", "!")], Status(4)),
    "a message that is no UTF-8": ([("grpc-status", "2"), ("grpc-message", "%FF%zz%")],
                                   Status(2, "\ufffd%zz%")),
    "none": ([("k", "v")], Status(2, "the trailers have no grpc-status")),
}  # fmt: skip


@pytest.mark.parametrize("is_only", [False, True], ids=["trailers", "trailers-only"])
@pytest.mark.parametrize("name", TRAILING)
def test_trailers_become_a_status(name: str, *, is_only: bool) -> None:
    fields, status = TRAILING[name]
    peer = client()
    _, call = open_call(peer)
    if is_only:
        (ended,) = peer.send(headers([*ANSWER, *fields], is_end=True))
    else:
        _, received, ended = peer.send(
            headers(ANSWER), data(message(b"abc")), headers(fields, is_end=True)
        )
        assert received == MessageReceived(call, b"abc", is_last=False)
    if name == "none" and is_only:
        status = Status(2, "the answer has no grpc-status")
    assert ended == CallEnded(call, status)
    assert peer.connection.call_count == peer.connection.buffered_bytes == 0
    assert peer.sent(RST_STREAM) == []


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("name", BODIES)
def test_messages_of_an_answer(name: str, *, is_cut: bool, is_open: bool) -> None:
    pieces, outcome = BODIES[name]
    peer = client(LIMITS, is_cut=is_cut)
    _, call = open_call(peer, is_end=not is_open)
    raw = b"".join(data(each) for each in pieces)
    first, *messages, ended = peer.send(
        headers([*ANSWER, ("grpc-encoding", "gzip")]), raw, headers(TRAILERS, is_end=True)
    )
    assert first == ResponseStarted(call)
    assert isinstance(ended, CallEnded)
    if isinstance(outcome, list):
        assert messages == [MessageReceived(call, each, is_last=False) for each in outcome]
        assert ended.status is OK
    else:
        assert ended.status.code == outcome
        is_cut_short = "half a" in name or name == "a message and a half"
        codes = [each.code for each in peer.sent(RST_STREAM)]
        assert codes == ([] if is_cut_short and not is_open else [CANCEL])
    assert peer.connection.call_count == peer.connection.buffered_bytes == 0
    assert not peer.sent(GOAWAY)


ODD_ANSWERS: dict[str, tuple[bytes, int]] = {
    "no trailers": (headers(ANSWER) + data(message(b"x"), is_end=True), INTERNAL),
    "no trailers and nothing": (headers(ANSWER) + data(b"", is_end=True), INTERNAL),
    "another content-type": (headers([(":status", "200"), ("content-type", "text/html")]), UNKNOWN),
    "no content-type": (headers([(":status", "200")], is_end=True), UNKNOWN),
    "a status in spite of HTTP": (
        headers([(":status", "503"), ("grpc-status", "9")], is_end=True), 9),
    "an encoding that was not asked for": (headers([*ANSWER, ("grpc-encoding", "br")]), INTERNAL),
    "headers beyond the limit": (headers([*ANSWER, ("x", "y" * 2000)]), RESOURCE_EXHAUSTED),
    "a rule of HTTP/2": (headers([*ANSWER, ("connection", "x")]), INTERNAL),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_ANSWERS)
def test_an_odd_answer_ends_its_call_and_no_other(name: str) -> None:
    raw, code = ODD_ANSWERS[name]
    peer = client(LIMITS)
    connection, call = open_call(peer)
    other = connection.start("/a.B/D")
    events = peer.send(raw)
    assert [each.status.code for each in events if isinstance(each, CallEnded)] == [code]
    assert [*connection.streams.values()] == [other]
    assert call.is_over
    assert not peer.sent(GOAWAY)


def test_calls_of_a_lost_connection_end_as_unavailable_once() -> None:
    peer = client()
    connection, call = open_call(peer)
    done = connection.start("/a.B/D")
    connection.cancel(done)
    assert connection.lose("gone") == [CallEnded(call, Status(UNAVAILABLE, "gone"))]
    assert connection.lose("again") == []
    assert not connection.can_start
    connection.check()
    serving = server()
    serving.send(headers(), headers(stream=3))
    assert list(map(type, serving.connection.lose("gone"))) == [CallCancelled] * 2


def test_a_call_that_its_client_cancels_has_no_event() -> None:
    peer = client()
    connection, call = open_call(peer)
    connection.cancel(call)
    connection.cancel(call)
    connection.send(call, b"x")
    assert [each.code for each in peer.sent(RST_STREAM)] == [CANCEL]
    raw = headers(ANSWER) + data(message(b"x")) + headers(TRAILERS, is_end=True)
    assert peer.send(raw) == []


@pytest.mark.parametrize(
    "bad",
    [(("Upper", "x"),), (("grpc-x", "x"),), (("a", "\n"),), (("a", " x"),), (("te", "x"),),
     (("connection", "x"),), (("content-type", "x"),), (("", "x"),), ((":path", "x"),),
     (("a", "\u00e9"),)],
)  # fmt: skip
def test_metadata_that_no_header_can_hold_leaves_nothing_behind(bad: Metadata) -> None:
    peer = client()
    connection = peer.connection
    assert isinstance(connection, ClientConnection)
    with pytest.raises(ValueError, match="metadata"):
        connection.start("/a", bad)
    assert connection.call_count == 0
    assert peer.collect() == []
    assert connection.start("/a").stream_id == 1
    serving = server()
    answering = serving.connection
    assert isinstance(answering, ServerConnection)
    serving.send(headers(is_end=True))
    with pytest.raises(ValueError, match="metadata"):
        answering.finish(answering.streams[1], Status(0, metadata=bad))
    assert serving.collect() == []
    answering.finish(answering.streams[1])
    assert answering.call_count == 0


# What stands in headers


@pytest.mark.parametrize(
    ("raw", "metadata"),
    [
        ([(b"k", b"v"), (b"k", b"w")], (("k", "v"), ("k", "w"))),
        ([(b"k-bin", b"AAE")], (("k-bin", b"\0\1"),)),
        ([(b"k-bin", b"AAE=")], (("k-bin", b"\0\1"),)),
        ([(b"k-bin", b"AA")], (("k-bin", b"\0"),)),
        ([(b"k-bin", b"AA==,AAE, AAEC,")],
         (("k-bin", b"\0"), ("k-bin", b"\0\1"), ("k-bin", b"\0\1\2"), ("k-bin", b""))),
        ([(b"k-bin", b"")], (("k-bin", b""),)),
        ([(b"k", b"\xe9")], (("k", "\u00e9"),)),
    ],
)  # fmt: skip
def test_metadata_is_read_padded_or_not_and_joined_or_not(
    raw: list[tuple[bytes, bytes]], metadata: Metadata
) -> None:
    assert decode_metadata(raw) == metadata


@pytest.mark.parametrize("value", [b"A", b"A!", b"\xff\xff", b"AAAAA", b"AA-_"])
def test_binary_metadata_that_is_no_base64_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_metadata([(b"k-bin", value)])


def test_metadata_that_was_written_is_read_again() -> None:
    metadata: Metadata = (
        ("a.b_c-1", "v ~"),
        ("k-bin", bytes(range(256))),
        ("e", ""),
        ("e-bin", b""),
    )
    assert decode_metadata(encode_metadata(metadata)) == metadata
    assert b"=" not in b"".join(value for _, value in encode_metadata(metadata))


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [(b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"4m", 0.004), (b"5u", 5e-6), (b"6n", 6e-9),
     (b"99999999H", 99999999 * 3600), (b"0S", 0)],
)  # fmt: skip
def test_timeouts_are_read_in_every_unit(raw: bytes, seconds: float) -> None:
    assert decode_timeout(raw) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("seconds", "raw"),
    [(1.5, b"1500m"), (0.0001, b"1m"), (0.0, b"1m"), (-5.0, b"1m"), (1.0001, b"1001m"),
     (99999.999, b"99999999m"), (100000.0, b"100000S"), (1e12, b"99999999S")],
)  # fmt: skip
def test_timeouts_are_written_in_eight_digits_and_rounded_up(seconds: float, raw: bytes) -> None:
    assert encode_timeout(seconds) == raw
    assert decode_timeout(raw) is not None


@pytest.mark.parametrize(
    ("text", "raw"),
    [("plain", b"plain"), ("100%", b"100%25"), ("a\nb", b"a%0Ab"), ("\u00e9", b"%C3%A9"), ("", b""),
     ("\U0001f600", b"%F0%9F%98%80"), ("~ !", b"~ !"), ("\x7f", b"%7F")],
)  # fmt: skip
def test_messages_are_percent_encoded_utf8(text: str, raw: bytes) -> None:
    assert encode_message(text) == raw
    assert decode_message(raw) == text


def test_a_message_with_half_a_surrogate_does_not_break_an_answer() -> None:
    assert encode_message("\ud800") == b"?"


def test_a_call_that_waits_is_writable_when_all_is_sent() -> None:
    peer = client()
    connection, call = open_call(peer, is_end=False)
    connection.send(call, bytes(70_000))
    assert call.unsent_bytes == 70_005 - 65_535
    assert peer.send(window_update(1, 10_000)) == []
    (writable,) = peer.send(window_update(0, 10_000))
    assert type(writable).__name__ == "CallWritable"
    assert call.unsent_bytes == 0
