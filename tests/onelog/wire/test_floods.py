"""Peers that mean harm: each attack has an answer, and a limit with a name.

Work is counted in frames, calls of methods and bytes, never in time. An honest client that is as
busy as it can be is never sent away.
"""

import gzip
import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from onelog.wire import headers as header_blocks
from onelog.wire.grpc import (
    GZIP_STEP_BYTES,
    CallCancelled,
    CallEnded,
    CallStarted,
    ClientConnection,
    Event,
    Inflation,
    MessageReceived,
    MessageTooLarge,
    RequestEnded,
    ServerConnection,
    Status,
    WireLimits,
)
from onelog.wire.http2 import (
    CONNECTION_WINDOW,
    CONTROL_FRAMES_BURST,
    CONTROL_FRAMES_PER_TICK,
    FRAME_BYTES_MAX,
    HEADER_FIELDS_FREE,
    HEADER_FRAMES_MAX,
    HEADER_LIST_FACTOR,
    RESETS_BURST,
    RESETS_PER_TICK,
    RESETS_REMEMBERED_MAX,
    STREAM_WINDOW,
    WINDOWS_PER_CONTROL_FRAME,
)
from tests.onelog.wire.frames import (
    ACK,
    ACKNOWLEDGE,
    ANSWER,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    REFUSED_STREAM,
    REQUEST,
    RST_STREAM,
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

LIMITS = WireLimits()
GET = [(":method", "GET"), *REQUEST[1:]]
UPPER = [*REQUEST, ("X", "y")]
SMALL_ENTRY = block(REQUEST) + b"\x40\x01a\x01b"
# A field with a value of 4,000 bytes, which the table keeps.
ENTRY = b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000
OPEN_ONE = headers(stream=1)
RESET_ONE = headers(UPPER, stream=1)


def numbers() -> Iterator[int]:
    return count(3, 2)


def flood(peer: Peer, parts: Iterator[bytes], limit: int) -> int:
    """Send until the connection ends; return after how many."""
    connection = peer.connection
    for index, part in enumerate(parts, 1):
        connection.receive(part)
        if connection.is_closed:
            peer.collect()
            return index
        assert index <= limit, "nobody stops it"
    raise AssertionError


def forever(part: bytes) -> Iterator[bytes]:
    return (part for _ in count())


# Frames that cost a client nothing: what comes before, and what comes again and again.
CONTROL_FLOODS: dict[str, tuple[bytes, Iterator[bytes]]] = {
    "settings": (b"", forever(settings())),
    "acknowledgements": (b"", forever(ACKNOWLEDGE)),
    "pings": (b"", forever(frame(PING, 0, 0, bytes(8)))),
    "answers to pings": (b"", forever(frame(PING, ACK, 0, bytes(8)))),
    "empty frames": (OPEN_ONE, forever(data(b""))),
    "empty frames with padding": (OPEN_ONE, forever(frame(DATA, 8, 1, b"\x09" + bytes(9)))),
    "empty frames of a stream that was reset": (RESET_ONE, forever(data(b""))),
    "headers of a stream that was reset": (RESET_ONE, forever(headers([("a", "b")]))),
    "priorities": (b"", forever(frame(PRIORITY, 0, 9, bytes(5)))),
    "unknown frames": (b"", forever(frame(0xEE, 0, 0, bytes(9)))),
    "goaways": (b"", forever(goaway(0))),
    "requests that are no gRPC": (b"", (headers(GET, stream=each) for each in numbers())),
    "late frames of streams whose resets are forgotten": (
        b"".join(headers(UPPER, stream=each) for each in range(1, 2 * 1100, 2)),
        forever(data(b"", stream=3, is_end=True)),
    ),
}


@pytest.mark.parametrize("name", CONTROL_FLOODS)
def test_frames_to_no_purpose_are_counted_and_end_the_connection(name: str) -> None:
    first, parts = CONTROL_FLOODS[name]
    peer = server()
    peer.send(first)
    peer.frames.clear()
    sent = flood(peer, parts, CONTROL_FRAMES_BURST)
    assert sent > CONTROL_FRAMES_BURST - 10
    assert peer.frames[-1].kind == GOAWAY
    assert peer.frames[-1].code == ENHANCE_YOUR_CALM
    assert len(peer.connection._input) == 0
    peer.connection.check()


@pytest.mark.parametrize("name", ["settings", "pings", "empty frames"])
def test_a_tick_restores_the_budget_of_frames(name: str) -> None:
    first, parts = CONTROL_FLOODS[name]
    peer = server()
    peer.send(first)
    for _ in range(12):
        for _ in range(CONTROL_FRAMES_PER_TICK):
            peer.connection.receive(next(parts))
        peer.connection.tick()
    peer.connection.check()
    assert not peer.connection.is_closed
    assert peer.connection._control_budget <= CONTROL_FRAMES_BURST
    assert flood(peer, parts, CONTROL_FRAMES_BURST + 1)


def interim(peer: Peer) -> Iterator[bytes]:
    connection = peer.connection
    assert isinstance(connection, ClientConnection)
    connection.start("/a")
    return forever(headers([(":status", "103")]))


def test_interim_answers_and_resets_of_streams_that_ended_are_counted_at_a_client() -> None:
    peer = client()
    assert flood(peer, interim(peer), CONTROL_FRAMES_BURST + 1) > 1
    assert peer.sent(GOAWAY)[0].code == ENHANCE_YOUR_CALM
    peer = client()
    interim(peer)
    assert flood(peer, forever(reset(1)), CONTROL_FRAMES_BURST + 2) > 1


def test_calls_after_a_drain_are_counted() -> None:
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    connection.drain()
    flood(peer, (headers(stream=each) for each in numbers()), CONTROL_FRAMES_BURST + 1)
    assert peer.sent(GOAWAY)[-1].code == ENHANCE_YOUR_CALM
    assert {each.last_id for each in peer.sent(GOAWAY)} == {0}


# Streams that end before their time, by the client or by a fault that makes us reset them.
RESET_FLOODS: dict[str, Any] = {
    "rapid reset": lambda number: headers(stream=number) + reset(number),
    "malformed headers": lambda number: headers(UPPER, stream=number),
    "an increment of 0": lambda number: headers(stream=number) + window_update(number, 0),
    "a window that is too large": lambda number: (
        headers(stream=number) + window_update(number, (1 << 31) - 1)
    ),
    "data behind the end": lambda number: (
        headers(stream=number, is_end=True) + data(b"x", stream=number)
    ),
    "headers behind the end": lambda number: (
        headers(stream=number, is_end=True) + headers(stream=number)
    ),
    "a priority of another size": lambda number: (
        headers(stream=number) + frame(PRIORITY, 0, number, b"x")
    ),
    "headers in the middle": lambda number: headers(stream=number) * 2,
    "less than content-length": lambda number: (
        headers([*REQUEST, ("content-length", "1")], stream=number)
        + data(b"", stream=number, is_end=True)
    ),
    "a message that is no gRPC": lambda number: (
        headers(stream=number) + data(message(b"", flag=9), stream=number)
    ),
    "half a message": lambda number: (
        headers(stream=number) + data(b"\0", stream=number, is_end=True)
    ),
}


@pytest.mark.parametrize("name", RESET_FLOODS)
def test_streams_that_end_before_their_time_are_counted(name: str) -> None:
    """Each has made its owner work for nothing (rapid reset, and "made you reset")."""
    peer = server()
    parts = (RESET_FLOODS[name](number) for number in numbers())
    assert flood(peer, parts, RESETS_BURST + 1) == RESETS_BURST + 1
    assert peer.frames[-1].code == ENHANCE_YOUR_CALM
    connection = peer.connection
    assert len(connection._resets) <= RESETS_REMEMBERED_MAX
    assert connection.call_count == connection.buffered_bytes == 0
    connection.check()


def test_a_tick_restores_the_budget_of_resets() -> None:
    peer = server()
    number = numbers()
    for _ in range(20):
        for each, _ in zip(number, range(RESETS_PER_TICK), strict=False):
            peer.connection.receive(headers(stream=each) + reset(each))
        peer.connection.tick()
        peer.connection.take_output()
    assert not peer.connection.is_closed
    assert peer.connection._reset_budget == RESETS_BURST


def test_resets_of_a_server_and_refusals_never_end_its_clients_connection() -> None:
    """Each is of a call that the client has started: an overloaded server refuses thousands."""
    peer = client()
    connection = peer.connection
    assert isinstance(connection, ClientConnection)
    for _ in range(3 * RESETS_BURST):
        call = connection.start("/a")
        (ended,) = connection.receive(reset(call.stream_id, REFUSED_STREAM))
        assert isinstance(ended, CallEnded)
        call = connection.start("/a")
        connection.receive(
            headers([*ANSWER, ("grpc-status", "0")], stream=call.stream_id, is_end=True)
        )
        connection.receive(reset(call.stream_id, 0))
    peer.collect()
    assert not connection.is_closed
    assert not connection._resets


# Headers


def test_a_block_without_an_end_is_cut_off() -> None:
    """CONTINUATION flood: by the number of frames, and by their bytes."""
    peer = server()
    peer.send(frame(HEADERS, 0, 1))
    assert flood(peer, forever(frame(CONTINUATION, 0, 1)), HEADER_FRAMES_MAX) == HEADER_FRAMES_MAX
    assert peer.frames[-1].code == ENHANCE_YOUR_CALM
    peer = server()
    peer.send(frame(HEADERS, 0, 1))
    kept = LIMITS.header_bytes_max * HEADER_LIST_FACTOR
    part = frame(CONTINUATION, 0, 1, bytes(FRAME_BYTES_MAX))
    assert flood(peer, forever(part), 99) == kept // FRAME_BYTES_MAX + 1
    assert peer.frames[-1].code == ENHANCE_YOUR_CALM


def test_a_small_block_that_means_a_long_list_is_not_decoded_to_its_end() -> None:
    """HPACK bomb: one entry of the table, referred to again and again."""
    peer = server()
    peer.send(frame(HEADERS, END_HEADERS, 1, ENTRY))
    assert [each.code for each in peer.sent(RST_STREAM)] == [1], "no request, but an entry"
    peer.send(frame(HEADERS, END_HEADERS, 3, b"\xbe" * 16_000))
    assert peer.frames[-1].code == ENHANCE_YOUR_CALM
    assert peer.connection.is_closed


def test_lists_that_are_much_longer_than_their_blocks_are_not_cached() -> None:
    decoder = header_blocks.HeaderDecoder(lambda found: found, 1 << 16)
    decoder.decode(ENTRY)
    for times in range(1, 16):
        assert len(decoder.decode(b"\xbe" * times)) == times
    assert sum(len(value) for each in decoder._cached.values() for _, value in each) < 8192
    for number in range(1_000):
        decoder.decode(block([("x", str(number))]))
    assert len(decoder._cached) <= header_blocks.CACHED_BLOCKS_MAX


def test_a_header_list_beyond_the_limit_is_answered_and_far_beyond_ends_the_connection() -> None:
    peer = server()
    over = LIMITS.header_bytes_max
    peer.send(headers([*REQUEST, ("x", "y" * (over // 2)), ("z", "y" * (over // 4))], is_end=True))
    assert isinstance(peer.events[0], CallStarted)
    peer.send(headers(stream=3, flags=0) + _continued(3, over))
    assert peer.header_lists(3)[0]["grpc-status"] == "8"
    assert not peer.connection.is_closed
    peer.send(headers(stream=5, flags=0) + _continued(5, 2 * over) + _continued(5, 1))
    assert peer.connection.is_closed


@pytest.mark.parametrize(
    "make",
    [
        lambda each: frame(HEADERS, END_HEADERS | 1, each, SMALL_ENTRY + b"\xbe" * 400),
        lambda each: headers(stream=each, flags=1) + _continued(each, LIMITS.header_bytes_max),
    ],
    ids=["references", "beyond the limit"],
)
def test_header_lists_that_take_long_are_counted_as_several_frames(
    make: Callable[[int], bytes],
) -> None:
    """A field of one byte takes as long to decode as a frame; so few such blocks are taken."""
    peer = server()
    sent = flood(peer, map(make, numbers()), CONTROL_FRAMES_BURST)
    assert sent <= CONTROL_FRAMES_BURST // 15
    assert peer.frames[-1].code == ENHANCE_YOUR_CALM


def test_calls_with_as_much_metadata_as_programs_have_are_never_charged() -> None:
    peer = server()
    fields = [*REQUEST, *((f"x-{each}", "value") for each in range(HEADER_FIELDS_FREE - 10))]
    budget = peer.connection._control_budget
    for each in range(1, 99, 2):
        peer.send(headers([*fields, ("x-id", str(each))], stream=each, is_end=True))
    assert peer.connection._control_budget == budget


@pytest.mark.parametrize(("updates", "is_taken"), [(1, True), (2, True), (3, False)])
def test_a_block_changes_the_size_of_the_table_twice_at_most(
    updates: int, *, is_taken: bool
) -> None:
    """RFC 7541, 4.2. They add nothing to a list, so no limit of lists would end them."""
    peer = server()
    block_of = b"\x3f\xe1\x1f" * updates + block(REQUEST)
    peer.send(frame(HEADERS, END_HEADERS, 1, block_of))
    assert peer.connection.is_closed != is_taken
    if not is_taken:
        assert peer.frames[-1].code == COMPRESSION_ERROR


def _continued(stream: int, size: int) -> bytes:
    """Return CONTINUATIONs with one long field."""
    raw = block([("long", "x" * size)])
    pieces = [raw[at : at + FRAME_BYTES_MAX] for at in range(0, len(raw), FRAME_BYTES_MAX)]
    return b"".join(
        frame(CONTINUATION, END_HEADERS * (piece is pieces[-1]), stream, piece) for piece in pieces
    )


# Windows


class Counting(dict[int, Any]):
    """Streams that know how often all of them were looked at."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def blocked(limits: WireLimits = LIMITS) -> Peer:
    """Return a server with a thousand answers that wait for their streams' windows."""
    peer = server(limits)
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(settings((4, 0)), *(headers(stream=2 * n + 1, is_end=True) for n in range(1_000)))
    for call in list(connection.streams.values()):
        connection.respond(call, bytes(100))
    assert connection.unsent_bytes == 105_000
    peer.collect()
    peer.frames.clear()
    return peer


def test_windows_in_drops_cost_one_piece_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand streams that wait must not be looked at for each byte that is allowed."""
    peer = blocked()
    connection = peer.connection
    pieces = 0
    send_piece = connection._send_piece

    def counted(stream: Any) -> bool:
        nonlocal pieces
        pieces += 1
        return send_piece(stream)

    monkeypatch.setattr(connection, "_send_piece", counted)
    connection.streams = Counting(connection.streams)
    for _ in range(2_000):
        connection.receive(window_update(0, 1))
    assert pieces == 0, "none of them has a window of its own"
    for number in range(1_000):
        connection.receive(window_update(2 * number + 1, 1))
    assert pieces <= 2_000
    assert sum(len(each.payload) for each in peer.sent(DATA)) == 1_000
    pieces = connection.streams.looks = 0
    connection._send_window = 0
    for number in range(1_000):
        connection.receive(window_update(2 * number + 1, 50))
    for _ in range(2_000):
        connection.receive(window_update(0, 1))
    assert pieces <= 2 * 2_000
    assert connection.streams.looks == 0
    connection.check()


def test_one_frame_of_settings_moves_all_windows_once() -> None:
    """It can name the window 2,730 times."""
    peer = blocked()
    connection = peer.connection
    connection.streams = Counting(connection.streams)
    pairs = [(4, number % 2) for number in range(FRAME_BYTES_MAX // 6)]
    connection.receive(settings(*pairs))
    assert connection.streams.looks == 1
    assert not connection.is_closed
    sent = flood(peer, (settings((4, each % 2)) for each in count()), 2 * CONTROL_FRAMES_BURST)
    assert sent <= CONTROL_FRAMES_BURST // (1_000 // WINDOWS_PER_CONTROL_FRAME) + 1
    assert peer.frames[-1].code == ENHANCE_YOUR_CALM


def test_a_client_that_never_opens_its_window_gets_no_new_calls() -> None:
    """What waits for it is bounded, and it may go on when it has read."""
    limits = WireLimits(unsent_bytes_max=1 << 20)
    peer = server(limits)
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    peer.send(settings((4, 0)))
    number = numbers()
    started = 0
    for _ in range(100):
        for event in peer.send(headers(stream=next(number), is_end=True)):
            if isinstance(event, CallStarted):
                started += 1
                connection.respond(event.call, bytes(100_000))
    assert started == (1 << 20) // 100_005 + 1
    assert connection.unsent_bytes <= limits.unsent_bytes_max + 100_005
    assert {each.code for each in peer.sent(RST_STREAM)} == {REFUSED_STREAM}
    assert len(peer.sent(RST_STREAM)) == 100 - started
    peer.send(window_update(0, 1 << 24), settings((4, 1 << 20)))
    assert connection.unsent_bytes == connection.call_count == 0
    assert isinstance(peer.send(headers(stream=next(number)))[0], CallStarted)


def test_calls_that_nobody_ends_are_bounded() -> None:
    peer = server(WireLimits(streams_max=10))
    budget = peer.connection._control_budget
    sent = flood(peer, (headers(stream=each) for each in numbers()), CONTROL_FRAMES_BURST + 20)
    assert sent == budget + 10 + 1
    assert peer.frames[-1].code == ENHANCE_YOUR_CALM


# Messages


def test_headers_are_kept_bytes_from_their_first_piece_to_the_end_of_their_call() -> None:
    """A thousand calls may have 16 KiB each, and send no message at all."""
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    value = "v" * 10_000
    for each in range(1, 21, 2):
        peer.send(headers([*REQUEST, ("a", value)], stream=each))
    assert 10 * len(value) < connection.kept_bytes < 11 * len(value)
    block = header_blocks.encode_headers([(b"a", value.encode())])
    peer.send(frame(HEADERS, 0, 21, block))
    assert connection.kept_bytes > 11 * len(value)
    connection.check()
    peer.send(frame(CONTINUATION, END_HEADERS, 21))  # no call: it is reset
    for event in peer.events:
        if isinstance(event, CallStarted):
            connection.finish(event.call)
    assert connection.call_count == connection.kept_bytes == 0
    connection.check()


def test_half_messages_on_a_thousand_streams_are_bounded_and_do_not_wait_for_ever() -> None:
    """Once the limit is reached, no window is left for the end of any: some are refused."""
    limits = WireLimits(buffered_bytes_max=8 << 20)
    peer = server(limits)
    connection = peer.connection
    peer.send(*(headers(stream=2 * n + 1) for n in range(1_000)))
    prefix = message(bytes(16 << 20))[:5]
    piece = prefix + bytes(FRAME_BYTES_MAX - 5)
    most = 0
    for round_number in range(2):
        for number in range(1_000):
            stream = 2 * number + 1
            part = data(bytes(FRAME_BYTES_MAX) if round_number else piece, stream=stream)
            connection.receive(part)
            most = max(most, connection.buffered_bytes)
            connection.take_output()
    assert limits.buffered_bytes_max - FRAME_BYTES_MAX <= most <= limits.buffered_bytes_max
    assert not connection.is_closed, "the peer has never been without a window"
    assert 0 < connection.call_count < 1_000
    connection.check()


def test_a_client_refuses_half_answers_beyond_the_limit() -> None:
    peer = client(WireLimits(buffered_bytes_max=100_000))
    connection = peer.connection
    assert isinstance(connection, ClientConnection)
    for _ in range(10):
        number = connection.start("/a").stream_id
        peer.send(headers(ANSWER, stream=number))
        peer.send(data(message(bytes(1 << 20))[:FRAME_BYTES_MAX], stream=number))
    ended = [each for each in peer.events if isinstance(each, CallEnded)]
    assert {each.status.code for each in ended} == {8}
    assert connection.buffered_bytes <= 100_000


def test_a_message_that_is_announced_too_large_is_never_kept() -> None:
    peer = server()
    connection = peer.connection
    _, too_large = peer.send(headers(), data(b"\0\xff\xff\xff\xff"))
    assert isinstance(too_large, MessageTooLarge)
    assert too_large.size == 0xFFFFFFFF
    for _ in range(600):  # more than the connection's window
        assert connection.receive(data(bytes(FRAME_BYTES_MAX))) == []
        assert connection.buffered_bytes == 0
        peer.collect()
    assert not connection.is_closed


def test_a_gzip_bomb_is_not_inflated_beyond_the_limit() -> None:
    limits = WireLimits(message_bytes_max=1 << 20)
    peer = server(limits)
    bomb = gzip.compress(bytes(10 << 20), mtime=0)
    fields = [*REQUEST, ("grpc-encoding", "gzip")]
    _, too_large = peer.send(headers(fields), data(message(bomb, flag=1)))
    assert isinstance(too_large, MessageTooLarge)
    assert too_large.size == limits.message_bytes_max + 1
    assert peer.connection.buffered_bytes == 0


@pytest.mark.parametrize("is_kept", [True, False])
def test_many_messages_that_inflate_a_thousand_times_end_the_connection(*, is_kept: bool) -> None:
    """Each is within the limit; in sum they take time, and memory beyond any window."""
    limits = WireLimits(buffered_bytes_max=48 << 20)
    peer = server(limits)
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    fields = [*REQUEST, ("grpc-encoding", "gzip")]
    bomb = message(gzip.compress(bytes(16 << 20), mtime=0), flag=1)
    assert len(bomb) <= FRAME_BYTES_MAX
    most = 0
    for each in numbers():
        events: list[Event] = connection.receive(
            headers(fields, stream=each) + data(bomb, stream=each, is_end=True)
        )
        most = max(most, connection.buffered_bytes)
        if connection.is_closed:
            break
        if not is_kept:
            for event in events:
                if isinstance(event, MessageReceived):
                    connection.respond(event.call, b"")
        assert each < 100
    peer.collect()
    assert peer.frames[-1].code == ENHANCE_YOUR_CALM
    assert most <= limits.buffered_bytes_max + CONNECTION_WINDOW
    refused = [frame for frame in peer.sent(HEADERS) if b"too many messages" in frame.payload]
    assert bool(refused) == is_kept


@pytest.mark.parametrize("size", [0, 1, 30])
def test_small_messages_that_nobody_takes_close_the_window_of_their_stream(size: int) -> None:
    """Each takes memory of its own: a million empty ones would be of no bytes at all."""
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    (started,) = peer.send(OPEN_ONE)
    assert isinstance(started, CallStarted)
    part = message(bytes(size))
    frames = data(part * (FRAME_BYTES_MAX // len(part)))
    taken = 0
    while started.call.window >= len(frames):
        taken += len(peer.send(frames))
        assert taken * len(part) <= 2 * STREAM_WINDOW
    for _ in range(taken):
        connection.release(started.call, size)
    assert started.call.window > STREAM_WINDOW // 2
    assert connection.buffered_bytes == 0


def test_frames_of_a_read_are_handled_a_few_at_a_time_with_the_same_outcome() -> None:
    """A server with other clients stops in the middle of a read, and goes on later."""
    raw = b"".join(
        headers(stream=each) + data(message(b"x" * each), stream=each, is_end=True)
        for each in range(1, 99, 2)
    )
    cut = len(raw) - 20
    whole, parts = server(), server().connection
    expected = [(type(event), event.call.stream_id) for event in whole.send(raw)]  # type: ignore[union-attr]
    found: list[Event] = parts.receive(raw[:cut], 3)
    assert parts.has_more
    assert len(found) == 3
    found += parts.receive(raw[cut:], 3)
    while parts.has_more:
        more = parts.receive(b"", 3)
        assert len(more) <= 3
        found += more
        parts.check()
    assert [(type(event), event.call.stream_id) for event in found] == expected
    parts.receive(frame(PING, 0, 5, bytes(8)) * 5, 3)
    assert parts.is_closed
    assert not parts.has_more


def test_a_frame_of_many_messages_is_the_last_one_of_its_turn() -> None:
    peer = server()
    events = peer.connection.receive(OPEN_ONE + data(message(b"x") * 1_000) * 2, 64)
    assert len(events) == 1 + 1_000
    assert peer.connection.has_more


def test_a_message_that_takes_long_to_inflate_takes_many_turns_and_keeps_its_order() -> None:
    """The look at the clock between two turns is for others; a turn inflates two steps at most."""
    peer = server()
    connection = peer.connection
    fields = [*REQUEST, ("grpc-encoding", "gzip")]
    whole = bytes(15 << 20)
    bomb = message(gzip.compress(whole, mtime=0), flag=1)
    small = message(gzip.compress(b"behind", mtime=0), flag=1)
    raw = b"".join(
        headers(fields, stream=each)
        + data(bomb[:9], stream=each)
        + data(bomb[9:] + small + message(b"plain"), stream=each, is_end=True)
        for each in (1, 3)
    )
    events: list[Event] = connection.receive(raw, 64)
    assert [type(event) for event in events] == [CallStarted]
    assert connection._unfinished is not None
    turns, inflated = 1, connection._unfinished.size
    assert inflated <= 2 * GZIP_STEP_BYTES
    while connection.has_more:
        more: list[Event] = connection.receive(b"", 64)
        if connection._unfinished is not None:
            size = connection._unfinished.size
            assert size <= (inflated if size >= inflated else 0) + 2 * GZIP_STEP_BYTES
            inflated = size
        connection.check()
        events += more
        turns += 1
    assert turns > 2 * len(whole) // (2 * GZIP_STEP_BYTES)
    found = [event for event in events if isinstance(event, MessageReceived)]
    assert [event.call.stream_id for event in found] == [1, 1, 1, 3, 3, 3]
    assert [event.data for event in found] == [whole, b"behind", b"plain"] * 2
    assert [event.is_last for event in found] == [False, False, True] * 2


@pytest.mark.parametrize("ending", ["reset", "answer", "close"])
def test_what_is_inflated_for_nobody_is_dropped(ending: str) -> None:
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    bomb = message(gzip.compress(bytes(15 << 20), mtime=0), flag=1)
    raw = headers([*REQUEST, ("grpc-encoding", "gzip")]) + data(bomb, is_end=True)
    (started,) = connection.receive(raw, 64)
    assert isinstance(started, CallStarted)
    if ending == "reset":
        connection.cancel(started.call)
    elif ending == "answer":
        connection.respond(started.call, b"")
    else:
        connection.close()
    assert not [event for event in connection.receive(b"", 64) if type(event) is MessageReceived]
    assert connection._unfinished is None
    assert not connection.has_more
    assert connection.buffered_bytes == 0
    connection.check()


def test_a_message_that_says_it_is_too_large_is_not_inflated_and_a_lie_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gzip of 64 MiB costs what its 64 KiB cost, and one that says it is small no more."""
    inflated = 0

    def counted(self: Inflation, *where: Any) -> bool:
        nonlocal inflated
        before = self.size
        try:
            return step(self, *where)
        finally:
            inflated += self.size - before

    step = Inflation.step
    monkeypatch.setattr(Inflation, "step", counted)
    peer = server()
    bomb = gzip.compress(bytes(32 << 20), mtime=0)
    lie = bomb[:-4] + (1 << 20).to_bytes(4, "little")
    for number, packed in enumerate((bomb, lie)):
        stream, raw = 2 * number + 1, message(packed, flag=1)
        frames = [
            data(raw[at : at + FRAME_BYTES_MAX], stream=stream)
            for at in range(0, len(raw), FRAME_BYTES_MAX)
        ]
        peer.send(headers([*REQUEST, ("grpc-encoding", "gzip")], stream=stream), *frames)
        if packed is bomb:
            assert isinstance(peer.events[-1], MessageTooLarge)
            assert inflated == 0
    assert isinstance(peer.events[-1], CallCancelled)
    assert inflated == (1 << 20) + 1


def test_a_charge_of_nothing_gives_no_frame_of_the_turn_back() -> None:
    """Blocks of 65 fields are charged for nothing; a turn of three of them is over all the same."""
    peer = server()
    fields = [*REQUEST, *(("a", "b") for _ in range(65 - len(REQUEST)))]
    raw = b"".join(headers(fields, stream=each) for each in range(1, 40, 2))
    assert len(peer.connection.receive(raw, 3)) == 3
    assert peer.connection.has_more


def test_what_compresses_as_things_do_is_never_charged() -> None:
    peer = server(WireLimits())
    connection = peer.connection
    chance = random.Random(1)
    text = b"".join(b"%d=%d;" % (each, chance.randrange(99)) for each in range(8_000))
    packed = message(gzip.compress(text, mtime=0), flag=1)
    peer.send(headers([*REQUEST, ("grpc-encoding", "gzip")]))
    budget = connection._control_budget
    for at in range(0, len(packed), FRAME_BYTES_MAX):
        peer.send(data(packed[at : at + FRAME_BYTES_MAX]))
    assert isinstance(peer.events[-1], MessageReceived)
    assert peer.events[-1].data == text
    assert connection._control_budget == budget


def test_half_a_frame_is_all_that_is_kept_of_a_read() -> None:
    peer = server()
    connection = peer.connection
    connection.receive(headers() + frame(DATA, 0, 1, bytes(FRAME_BYTES_MAX))[:-1])
    assert len(connection._input) == FRAME_BYTES_MAX + 8
    connection.receive(b"\0")
    assert len(connection._input) == 0


# And those who mean none


def test_an_honest_client_with_ten_thousand_calls_is_never_sent_away() -> None:
    """It cancels, pings, streams, changes settings, and is answered early, as busy clients do."""
    ours, calling = ServerConnection(WireLimits()), ClientConnection(WireLimits(), "x")
    ours.receive(calling.take_output())
    calling.receive(ours.take_output())
    chance = random.Random(7)
    done = cancelled = 0
    for number in range(10_000):
        call = calling.start("/a.B/C", (("k", str(number % 50)),), 1.0)
        if chance.random() < 0.15:
            calling.send(call, b"x")
            ours.receive(calling.take_output())
            calling.cancel(call)
            cancelled += 1
        else:
            calling.send(call, bytes(chance.randrange(3_000)), is_last=chance.random() < 0.8)
        if number % 100 == 0:
            calling.ping()
            ours.ping()
        for event in ours.receive(calling.take_output()):
            if isinstance(event, MessageReceived):
                ours.respond(event.call, bytes(chance.randrange(3_000)))
            assert not isinstance(event, CallCancelled) or event.call.is_over
        for event in calling.receive(ours.take_output()):
            done += isinstance(event, CallEnded) and event.status.code == 0
        if number % 1_000 == 0:
            ours.tick()
            calling.tick()
            ours.check()
            calling.check()
    assert cancelled > 1_000
    assert done > 8_000
    assert not ours.is_closed
    assert not calling.is_closed
    assert ours.call_count == calling.call_count == 0
    assert ours.unsent_bytes == ours.buffered_bytes == calling.buffered_bytes == 0


def test_a_client_that_streams_in_small_frames_is_never_sent_away() -> None:
    """Frames with a purpose cost nothing, whatever their number."""
    peer = server()
    connection = peer.connection
    assert isinstance(connection, ServerConnection)
    (started,) = peer.send(headers())
    assert isinstance(started, CallStarted)
    small = data(message(b"x" * 100)) * 100
    for _ in range(300):
        for event in connection.receive(small):
            assert isinstance(event, MessageReceived)
            connection.release(event.call, len(event.data))
        connection.take_output()
    assert connection._control_budget == CONTROL_FRAMES_BURST - 2  # its settings and ACK
    assert [type(each) for each in connection.receive(data(b"", is_end=True))] == [RequestEnded]
    connection.finish(started.call, Status(0))
    assert connection.call_count == 0
