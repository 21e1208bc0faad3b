"""Random conversations with ``h2`` as an independent peer, in both roles, and of ours with ours.

What arrives is what was sent, no side finds a fault, and nothing is left behind; whatever the sizes
of messages, windows and frames, and wherever the bytes are cut. h2 checks our flow control: it
raises for each byte beyond its windows.
"""

import random
from typing import Any

import h2.config
import h2.connection
import h2.exceptions
import h2.settings
import pytest
from hpack import Decoder, Encoder, HeaderTuple, HPACKError, NeverIndexedHeaderTuple
from hpack.hpack import encode_integer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onelog.wire.grpc import ClientConnection
from onelog.wire.headers import TABLE_UPDATES_MAX, BadHeaders, HeaderDecoder
from tests.onelog.wire import frames
from tests.onelog.wire.oracle import Oracle, Ours

End = Oracle | Ours
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["start", "start", "send", "send", "send", "answer", "answer", "answer", "end",
             "finish", "finish", "reset", "cancel", "ping", "settings", "window", "acknowledge",
             "hold", "deliver", "deliver", "deliver", "tick", "metadata"]
        ),
        st.sampled_from([0, 1, 4, 100, 5_000, 16_379, 16_380, 70_000, 300_000]),
    ),
    min_size=10,
    max_size=80,
)  # fmt: skip
FAST = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Conversation:
    """A client, a server, and the bytes between them."""

    def __init__(self, client: End, server: End, chance: random.Random) -> None:
        self.client, self.server = client, server
        self.chance = chance
        self.on_way = {"up": bytearray(), "down": bytearray()}
        self.pings = {"client": 0, "server": 0}
        self.opened: dict[int, list[tuple[str, str]]] = {}
        self.finished: dict[int, str] = {}

    def deliver(self, *, is_all: bool = False) -> bool:
        """Move some bytes in both directions; tell whether there were any."""
        was_any = False
        for way, sender, receiver in (
            ("up", self.client, self.server),
            ("down", self.server, self.client),
        ):
            pipe = self.on_way[way]
            pipe += sender.take_output()
            while pipe:
                was_any = True
                size = self.chance.choice([1, 5, 9, 10, 100, 10_000, 1 << 20])
                receiver.receive(bytes(pipe[:size]))
                del pipe[:size]
                if not is_all and self.chance.random() < 0.3:
                    break
        return was_any

    def pick(self, end: End) -> int | None:
        """Return a call that this end can still say something on."""
        found = [
            number
            for number in self.opened
            if not end.talks[number].is_broken
            and not end.talks[number].is_ended
            and end.talks[number].status is None
            and (end is self.client or end.talks[number].headers)
            and (isinstance(end, Oracle) or number in end.calls)
        ]
        return self.chance.choice(found) if found else None

    def step(self, what: str, size: int) -> None:
        client, server, chance = self.client, self.server, self.chance
        match what:
            case "start":
                if len(self.opened) < 40:
                    metadata = [("k", str(chance.random())), ("j", "same")][: chance.randrange(3)]
                    self.opened[client.start(metadata)] = metadata
            case "send" | "answer":
                end = client if what == "send" else server
                if (number := self.pick(end)) is not None:
                    end.send(number, chance.randbytes(size))
            case "end":
                if (number := self.pick(client)) is not None:
                    client.end(number)
            case "finish":
                if (number := self.pick(server)) is not None:
                    self.finished[number] = str(chance.choice([0, 0, 5, 16]))
                    trailers = [("grpc-status", self.finished[number]), ("t", "v")]
                    server.end(number, trailers)
            case "reset" | "cancel":
                end = client if what == "reset" else server
                if (number := self.pick(end)) is not None:
                    end.reset(number)
            case "acknowledge":
                chance.choice([client, server]).acknowledge(chance.randrange(1, 20))
            case "ping":
                self.ping(client if chance.random() < 0.5 else server)
            case "deliver":
                self.deliver()
            case _:
                for end in (client, server):
                    self.disturb(end, what, size)

    def ping(self, end: End) -> None:
        self.pings["client" if end is self.client else "server"] += 1
        if isinstance(end, Ours):
            end.connection.ping()
        else:
            end.h2.ping(self.chance.randbytes(8))

    def disturb(self, end: End, what: str, size: int) -> None:
        """Things that change how bytes travel, and not what arrives."""
        codes = h2.settings.SettingCodes
        if isinstance(end, Ours):
            if what == "hold":
                end.connection.hold() if self.chance.random() < 0.5 else end.connection.resume()
                end.take(end.connection.take_events())
            elif what == "tick":
                end.connection.tick()
        elif what == "settings":
            end.h2.update_settings(
                {
                    codes.INITIAL_WINDOW_SIZE: size,
                    codes.MAX_FRAME_SIZE: self.chance.choice([16_384, 20_000, 1 << 20]),
                    codes.HEADER_TABLE_SIZE: self.chance.choice([0, 100, 4096, 8192]),
                }
            )
        elif what == "window" and size:
            numbers = [each for each in end.h2.streams if not end.talks[each].is_broken]
            number = self.chance.choice([None, *numbers])
            try:
                end.h2.increment_flow_control_window(size, number)
            except h2.exceptions.ProtocolError:
                assert number is not None, "the stream has ended"

    def settle(self) -> None:
        """End every call and deliver all, with credit for all."""
        self.run_dry()
        while any(self.pick(end) is not None for end in (self.client, self.server)):
            for end, what in ((self.client, "end"), (self.server, "finish")):
                while self.pick(end) is not None:
                    self.step(what, 0)
            self.run_dry()

    def run_dry(self) -> None:
        for end in (self.client, self.server):
            if isinstance(end, Ours):
                end.connection.resume()
                end.take(end.connection.take_events())
        for _ in range(10_000):
            for end in (self.client, self.server):
                end.acknowledge(1_000_000)
                if isinstance(end, Oracle):
                    self.open_windows(end)
            if not self.deliver(is_all=True):
                return
        raise AssertionError("it never ends")

    def open_windows(self, end: Oracle) -> None:
        """What settings made small must not stop the end of a conversation."""
        code = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
        if end.h2.local_settings.initial_window_size < 1 << 20:
            end.h2.update_settings({code: 1 << 22})
        if end.h2.inbound_flow_control_window < 1 << 20:
            end.h2.increment_flow_control_window(1 << 22)
        for number in list(end.h2.streams):
            talk = end.talks[number]
            if not talk.is_broken and not talk.has_all:
                try:
                    if end.h2.remote_flow_control_window(number) < 1 << 20:
                        end.h2.increment_flow_control_window(1 << 22, number)
                except h2.exceptions.ProtocolError:
                    assert end.talks[number].is_ended

    def check(self) -> None:
        """Compare what arrived with what was sent, call by call."""
        for end in (self.client, self.server):
            assert end.goaways == [], end.goaways
            assert end.pongs == self.pings["client" if end is self.client else "server"]
            if isinstance(end, Ours):
                connection = end.connection
                assert not connection.is_closed
                assert connection.call_count == connection.unsent_bytes == 0
                assert connection.buffered_bytes == 0
                assert not connection._ready
                connection.check()
        for number, metadata in self.opened.items():
            ours, theirs = self.client.talks[number], self.server.talks[number]
            up, down = self.server.messages(number), self.client.messages(number)
            assert up == ours.sent[: len(up)], f"request {number}"
            assert down == theirs.sent[: len(down)], f"answer {number}"
            if theirs.has_all and not theirs.is_broken:
                assert up == ours.sent
            if theirs.headers:
                assert dict(metadata).items() <= theirs.headers[0].items()
            if ours.has_all and not ours.is_broken and number in self.finished:
                assert down == theirs.sent
                self.check_status(number, ours)

    def check_status(self, number: int, talk: Any) -> None:
        if isinstance(self.client, Ours):
            assert talk.status is not None
            assert str(talk.status.code) == self.finished[number]
            if talk.status.code or isinstance(self.server, Ours):
                assert ("t", "v") in talk.status.metadata
        else:
            assert talk.headers[-1]["grpc-status"] == self.finished[number]
            assert talk.headers[-1]["t"] == "v"


def converse(client: End, server: End, steps: list[tuple[str, int]], seed: int) -> None:
    conversation = Conversation(client, server, random.Random(seed))
    while conversation.deliver(is_all=True):
        pass  # h2 takes the ACK of its first settings for one of settings that it sent meanwhile
    for step in [("start", 0)] * 4 + [("deliver", 0)] * 2 + steps:
        conversation.step(*step)
    conversation.settle()
    conversation.check()


SEEDS = st.integers(0, 1 << 32)


@FAST
@given(STEPS, SEEDS)
def test_our_server_and_h2s_client_understand_each_other(
    steps: list[tuple[str, int]], seed: int
) -> None:
    converse(Oracle(is_client=True), Ours(is_client=False), steps, seed)


@FAST
@given(STEPS, SEEDS)
def test_our_client_and_h2s_server_understand_each_other(
    steps: list[tuple[str, int]], seed: int
) -> None:
    converse(Ours(is_client=True), Oracle(is_client=False), steps, seed)


@FAST
@given(STEPS, SEEDS)
def test_our_client_and_our_server_understand_each_other(
    steps: list[tuple[str, int]], seed: int
) -> None:
    converse(Ours(is_client=True), Ours(is_client=False), steps, seed)


# Header blocks

NAMES = st.sampled_from([b"a", b"b", b":path", b"content-type", b"x-long-name", b"grpc-timeout"])
VALUES = st.sampled_from([b"", b"1", b"x" * 60, b"y" * 1500, b"y" * 1500, b"z" * 5000, b"\xff\0"])
FIELDS = st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=6)
BLOCKS = st.lists(
    st.tuples(st.one_of(st.integers(0, 3), FIELDS), st.sampled_from([None, None, 0, 70, 4096])),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(blocks=BLOCKS, is_huffman=st.booleans())
def test_a_cache_of_blocks_decodes_as_no_cache_does(
    *, blocks: list[tuple[Any, int | None]], is_huffman: bool
) -> None:
    """Blocks come again; between two of the same, the table may have changed in any way."""
    encoder, plain = Encoder(), Decoder(max_header_list_size=1 << 16)
    cached = HeaderDecoder(lambda found: found, 1 << 16)
    seen: list[list[tuple[bytes, bytes, bool]]] = [[(b"a", b"1", False)]]
    for what, table_size in blocks:
        fields = seen[-1 - what % len(seen)] if isinstance(what, int) else what
        seen.append(fields)
        if table_size is not None:
            encoder.header_table_size = table_size
        sensitive = [
            (NeverIndexedHeaderTuple if is_secret else HeaderTuple)(name, value)
            for name, value, is_secret in fields
        ]
        raw = encoder.encode(sensitive, huffman=is_huffman)
        for _ in range(2 if not table_size and _is_stateless(raw) else 1):
            found = tuple(
                (bytes(name), bytes(value)) for name, value in plain.decode(raw, raw=True)
            )
            assert cached.decode(raw) == found
        assert found == tuple((name, value) for name, value, _ in fields)


def _is_stateless(raw: bytes) -> bool:
    """Whether a block may be sent twice: nothing but references."""
    return all(byte & 0x80 for byte in raw)


def _entry(name: bytes, size: int) -> bytes:
    """Return a literal that the table keeps."""
    return b"\x40\x01" + name + bytes(encode_integer(size, 7)) + name * size


def _resize(size: int) -> bytes:
    raw = encode_integer(size, 5)
    raw[0] |= 0x20
    return bytes(raw)


A, B, C = (_entry(name, 1_500) for name in (b"a", b"b", b"c"))
FIRST, SECOND = b"\xbe", b"\xbf"  # the newest entry of the table, and the one before
EVICTIONS = {
    "an entry takes the place of another": [A, B, FIRST, SECOND, C, FIRST, SECOND],
    "the table is made small and large again": [
        A, B, SECOND, _resize(1_600) + _resize(4_096) + FIRST, FIRST, SECOND,
    ],
    "the table is made small": [A, B, SECOND, _resize(1_600), FIRST, SECOND],
    "the table is emptied": [A, FIRST, b"\x20", FIRST],
    "an entry is too large": [A, FIRST, _entry(b"d", 5_000), FIRST],
    "an empty table changes its size twice": [
        _resize(4_096) + b"\x83", b"\x20", _resize(4_096) + b"\x83", A, FIRST,
    ],
    "the same block adds twice": [_entry(b"e", 1), _entry(b"e", 1), FIRST, SECOND],
}  # fmt: skip


@pytest.mark.parametrize("name", EVICTIONS)
def test_a_block_means_what_the_table_says_now(name: str) -> None:
    """And it is an error again when its entry has gone."""
    plain = Decoder(max_header_list_size=1 << 16)
    cached = HeaderDecoder(lambda found: found, 1 << 16)
    for raw in EVICTIONS[name]:
        try:
            found = tuple((bytes(key), bytes(value)) for key, value in plain.decode(raw, raw=True))
        except HPACKError:
            with pytest.raises(BadHeaders):
                cached.decode(raw)
            return
        assert cached.decode(raw) == found


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=12), max_size=12))
def test_random_blocks_decode_as_no_cache_decodes_them(blocks: list[bytes]) -> None:
    plain = Decoder(max_header_list_size=1 << 16)
    cached = HeaderDecoder(lambda found: found, 1 << 16)
    for raw in [each for each in blocks for _ in range(2)]:
        try:
            expected = tuple(
                (bytes(name), bytes(value)) for name, value in plain.decode(raw, raw=True)
            )
        except HPACKError:
            with pytest.raises(BadHeaders):
                cached.decode(raw)
            return
        try:
            found = cached.decode(raw)
        except BadHeaders:  # it changes the size of the table more often than is allowed
            assert sum(byte & 0xE0 == 0x20 for byte in raw) > TABLE_UPDATES_MAX
            return
        assert found == expected


# Frames that break rules

STREAMS = st.sampled_from([0, 1, 1, 1, 2, 3, 3, 5, 0x80000001])
REQUESTS = st.sampled_from(
    [
        frames.block(frames.REQUEST), frames.block(frames.TRAILERS), b"\x83", b"\x80", b"\x20", b"",
        frames.block([*frames.REQUEST, ("X", "y")]), frames.block(frames.ANSWER), b"\x3f\xe2\x1f",
        frames.block([*frames.REQUEST, ("content-length", "8")]),
        frames.block([*frames.ANSWER, *frames.TRAILERS]),
    ]
)  # fmt: skip
BODIES = st.sampled_from(
    [b"", frames.message(b"abc"), frames.message(b"abc")[:3], b"\1\0\0\0\0", b"\0\xff\xff\xff\xff",
     bytes(16_384), bytes(16_385)]
)  # fmt: skip
NUMBERS = st.sampled_from([0, 1, 5, 0x7FFFFFFF, 0x80000000, 0x7FFF0000, 0xFFFFFFFF, 16_384])
SETTING = st.binary(min_size=6, max_size=6) | st.builds(
    lambda number, value: frames.settings((number, value))[9:], st.integers(0, 7), NUMBERS
)


def _frame(kind: int, payloads: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    flags = st.sampled_from([0, 0, 1, 4, 4, 5, 5, 8, 0x20, 0xFF])
    return st.builds(
        lambda flag, stream, payload: frames.frame(kind, flag, stream, payload),
        flags, STREAMS, payloads,
    )  # fmt: skip


def _u32(count: int) -> st.SearchStrategy[bytes]:
    return st.lists(NUMBERS, min_size=count, max_size=count).map(
        lambda numbers: b"".join(each.to_bytes(4, "big") for each in numbers)
    )


FRAMES = st.one_of(
    _frame(frames.HEADERS, REQUESTS),
    _frame(frames.HEADERS, REQUESTS),
    _frame(frames.DATA, BODIES),
    _frame(frames.PRIORITY, st.sampled_from([bytes(5), bytes(4)])),
    _frame(frames.RST_STREAM, _u32(1) | st.binary(max_size=6)),
    _frame(frames.SETTINGS, SETTING | st.binary(max_size=7)),
    _frame(frames.PUSH_PROMISE, REQUESTS),
    _frame(frames.PING, st.sampled_from([bytes(8), bytes(7)])),
    _frame(frames.GOAWAY, _u32(2) | st.binary(max_size=9)),
    _frame(frames.WINDOW_UPDATE, _u32(1) | st.binary(max_size=5)),
    _frame(frames.CONTINUATION, REQUESTS),
    _frame(0x77, st.binary(max_size=9)),
    st.binary(max_size=20),
)


def fresh(*, is_server: bool) -> Any:
    """Return a connection with two calls under way, one half-closed."""
    if is_server:
        peer = frames.server()
        peer.send(frames.headers(stream=1), frames.headers(stream=3, is_end=True))
    else:
        peer = frames.client()
        connection = peer.connection
        assert isinstance(connection, ClientConnection)
        connection.start("/a.B/C")
        connection.end(connection.start("/a.B/D"))
    peer.collect()
    peer.frames.clear()
    return peer.connection


def _seen(connection: Any, reads: list[bytes]) -> tuple[list[str], bytes]:
    events: list[Any] = []
    for read in reads:
        events += connection.receive(read)
        connection.check()
    # Calls are compared by what they are about.
    shown = [
        f"{type(each).__name__} "
        + " ".join(
            str(value.stream_id if hasattr(value, "stream_id") else value)
            for name in each.__slots__
            for value in [getattr(each, name)]
        )
        for each in events
    ]
    return shown, connection.take_output()


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(FRAMES, max_size=8), seed=SEEDS, is_server=st.booleans())
def test_whatever_arrives_means_the_same_wherever_it_is_cut(
    *, parts: list[bytes], seed: int, is_server: bool
) -> None:
    """No bytes make a connection raise, and the network decides where reads end."""
    raw, chance = b"".join(parts), random.Random(seed)
    whole = _seen(fresh(is_server=is_server), [raw])
    at, reads = 0, []
    while at < len(raw):
        size = chance.choice([1, 1, 2, 9, 50] if len(raw) < 5_000 else [1, 9, 500, 9_000])
        reads.append(raw[at : at + size])
        at += size
    assert _seen(fresh(is_server=is_server), reads) == whole


def twin(*, is_server: bool) -> h2.connection.H2Connection:
    """Return what ``fresh`` does, by h2."""
    config = h2.config.H2Configuration(client_side=not is_server, header_encoding=None)
    found = h2.connection.H2Connection(config)
    found.initiate_connection()
    if is_server:
        found.receive_data(frames.PREFACE + frames.settings() + frames.ACKNOWLEDGE)
        found.receive_data(frames.headers(stream=1) + frames.headers(stream=3, is_end=True))
    else:
        found.receive_data(frames.settings() + frames.ACKNOWLEDGE)
        found.send_headers(1, frames.REQUEST)
        found.send_headers(3, frames.REQUEST, end_stream=True)
    found.clear_outbound_data_buffer()
    return found


def is_beyond_h2(part: bytes, ours: Any) -> bool:
    """Whether h2 is no measure for what comes now."""
    if len(part) < 9 or len(part) != 9 + int.from_bytes(part[:3], "big"):
        return True  # the next frame begins somewhere else
    number = int.from_bytes(part[5:9], "big") & 0x7FFFFFFF
    if number in ours._resets:
        return True  # for reasons of gRPC, of which it knows nothing
    if part[3] == frames.WINDOW_UPDATE:
        # It does not ignore the reserved bit (6.9), nor an increment of 0 of a stream that ended.
        return bool(part[9:10] >= b"\x80") or (number > 0 and number not in ours.streams)
    return part[3] == frames.GOAWAY  # it takes nothing after it; 6.8 lets streams go on


def is_free(part: bytes, code: int) -> bool:
    """Whether h2 may go on where we end the connection with this code."""
    kind, number = part[3], int.from_bytes(part[5:9], "big") & 0x7FFFFFFF
    return (
        # 5.4: an error of a stream may end the connection; ours does not remember peers' resets.
        code == frames.STREAM_CLOSED
        # 5.1, idle: h2 takes these for late ones.
        or (code == frames.PROTOCOL_ERROR and kind in (frames.RST_STREAM, frames.HEADERS))
        or (kind == frames.PUSH_PROMISE and number > 0)
    )


@settings(max_examples=600, deadline=None)
@given(parts=st.lists(FRAMES, max_size=6), is_server=st.booleans())
def test_we_and_h2_agree_whether_a_connection_survives(
    *, parts: list[bytes], is_server: bool
) -> None:
    """Where h2 ends a connection, we do, or end the stream; where we do, h2 does, or is free."""
    ours, theirs = fresh(is_server=is_server), twin(is_server=is_server)
    for part in parts:
        if is_beyond_h2(part, ours):
            return
        ours.receive(part)
        sent = frames.frames_of(ours.take_output())
        try:
            theirs.receive_data(part)
        except h2.exceptions.ProtocolError:
            assert ours.is_closed or frames.RST_STREAM in [each.kind for each in sent]
            return
        if ours.is_closed:
            assert is_free(part, sent[-1].code), (part, sent)
            return


def test_a_connection_that_h2_ends_ends_here_with_its_code() -> None:
    """The last word of a peer reaches the owner."""
    client, server = Ours(is_client=True), Oracle(is_client=False)
    conversation = Conversation(client, server, random.Random(1))
    number = client.start([])
    conversation.deliver(is_all=True)
    server.h2.close_connection(error_code=11, additional_data=b"calm", last_stream_id=0)
    client.receive(server.take_output())
    assert client.goaways == [11]
    status = client.talks[number].status
    assert status is not None
    assert (status.code, status.is_unprocessed) == (14, True)
