"""Both ends of a connection in one place: the ``h2`` library as an independent peer, and ours.

``Oracle`` and ``Ours`` have the same few verbs, so a test can set one against the other in either
role. Each keeps what arrived; neither sends beyond what its peer allows (``Oracle`` by asking h2,
which raises when *we* do).
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
from h2.exceptions import StreamClosedError

from onelog.wire.grpc import (
    Call,
    CallCancelled,
    CallEnded,
    CallStarted,
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
from tests.onelog.wire.frames import ANSWER, PREFACE, REQUEST, message

LIMITS = WireLimits(message_bytes_max=1 << 20, buffered_bytes_max=1 << 20)


@dataclass
class Talk:
    """One call as one end has seen it."""

    received: list[bytes] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    status: Status | None = None
    has_all: bool = False  # the peer has ended its side, and not by a reset
    is_broken: bool = False  # a reset of either side
    is_ended: bool = False  # this end has said its last word
    has_begun: bool = False  # a server has sent its headers


def messages_of(raw: bytes) -> list[bytes]:
    found = []
    while raw:
        size = int.from_bytes(raw[1:5], "big")
        assert raw[0] == 0
        assert len(raw) >= 5 + size, "half a message"
        found.append(bytes(raw[5 : 5 + size]))
        raw = raw[5 + size :]
    return found


class Oracle:
    """h2, with a queue for what its peer's windows do not allow yet."""

    def __init__(self, *, is_client: bool) -> None:
        config = h2.config.H2Configuration(client_side=is_client, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.is_client = is_client
        self.talks: defaultdict[int, Talk] = defaultdict(Talk)
        self.raw: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.waiting: defaultdict[int, deque[Any]] = defaultdict(deque)
        self.unacknowledged: list[tuple[int, int]] = []
        self.input = bytearray()
        self.pongs = 0
        self.goaways: list[int] = []

    def start(self, metadata: list[tuple[str, str]]) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, [*REQUEST, *metadata])
        self.talks[stream_id] = Talk()
        return stream_id

    def send(self, stream_id: int, payload: bytes) -> None:
        if not self.is_client and not self.talks[stream_id].has_begun:
            self.talks[stream_id].has_begun = True
            self.h2.send_headers(stream_id, ANSWER)
        self.talks[stream_id].sent.append(payload)
        self.waiting[stream_id].append(message(payload))
        self.flush()

    def end(self, stream_id: int, trailers: list[tuple[str, str]] | None = None) -> None:
        self.talks[stream_id].is_ended = True
        self.waiting[stream_id].append(trailers)
        self.flush()

    def reset(self, stream_id: int, code: int = 8) -> None:
        self.talks[stream_id].is_broken = True
        self.waiting.pop(stream_id, None)
        self.h2.reset_stream(stream_id, code)

    def flush(self) -> None:
        for stream_id, queue in list(self.waiting.items()):
            while queue:
                if isinstance(queue[0], bytes):
                    room = min(
                        self.h2.local_flow_control_window(stream_id),
                        self.h2.max_outbound_frame_size,
                    )
                    if room <= 0:
                        break
                    piece, rest = queue[0][:room], queue[0][room:]
                    self.h2.send_data(stream_id, piece)
                    queue[0] = rest
                    if not rest:
                        queue.popleft()
                elif self.is_client and queue[0] is None:
                    self.h2.end_stream(stream_id)
                    queue.popleft()
                else:
                    trailers = queue.popleft()
                    if not self.is_client and not self.talks[stream_id].has_begun:
                        trailers = [*ANSWER, *trailers]
                    self.h2.send_headers(stream_id, trailers, end_stream=True)

    def receive(self, data: bytes) -> None:
        """Feed h2 frame by frame: a larger MAX_FRAME_SIZE counts from its next read on."""
        self.input += data
        while len(self.input) >= 9:
            size = 9 + int.from_bytes(self.input[:3], "big")
            if self.input.startswith(PREFACE[:9]):
                size = len(PREFACE)
            if len(self.input) < size:
                break
            for event in self.h2.receive_data(bytes(self.input[:size])):
                self._on(event)
            del self.input[:size]
        self.flush()

    def _on(self, event: h2.events.Event) -> None:
        match event:
            case (
                h2.events.RequestReceived()
                | h2.events.ResponseReceived()
                | h2.events.TrailersReceived()
            ):
                fields = {str(k): str(v) for k, v in event.headers or ()}
                self.talks[event.stream_id or 0].headers.append(fields)
            case h2.events.DataReceived():
                assert event.stream_id is not None
                assert event.data is not None
                self.raw[event.stream_id] += event.data
                self.unacknowledged.append((event.flow_controlled_length or 0, event.stream_id))
            case h2.events.StreamEnded():
                assert event.stream_id is not None
                self.talks[event.stream_id].has_all = True
            case h2.events.StreamReset():
                assert event.stream_id is not None
                self.talks[event.stream_id].is_broken = True
                self.waiting.pop(event.stream_id, None)
            case h2.events.PingAckReceived():
                self.pongs += 1
            case h2.events.ConnectionTerminated():
                self.goaways.append(int(event.error_code or 0))
            case _:
                pass

    def acknowledge(self, count: int) -> None:
        """Give credit for what arrived, the oldest first."""
        for size, stream_id in self.unacknowledged[:count]:
            try:
                self.h2.acknowledge_received_data(size, stream_id)
            except StreamClosedError:
                self.h2.acknowledge_received_data(0, stream_id)
        del self.unacknowledged[:count]

    def messages(self, stream_id: int) -> list[bytes]:
        raw = bytes(self.raw[stream_id])
        talk = self.talks[stream_id]
        if talk.has_all:
            return messages_of(raw)
        whole = raw
        while True:  # a reset may cut a message
            try:
                return messages_of(whole)
            except AssertionError:
                whole = whole[:-1]

    def take_output(self) -> bytes:
        return self.h2.data_to_send()


class Ours:
    """One of our connections; ``calls`` are those under way, by stream."""

    def __init__(self, *, is_client: bool) -> None:
        self.connection: ClientConnection | ServerConnection = (
            ClientConnection(LIMITS, "x") if is_client else ServerConnection(LIMITS)
        )
        self.is_client = is_client
        self.calls: dict[int, Call] = {}
        self.talks: defaultdict[int, Talk] = defaultdict(Talk)
        self.unreleased: list[MessageReceived] = []
        self.pongs = 0
        self.goaways: list[int] = []

    def receive(self, data: bytes) -> None:
        self.take(self.connection.receive(data))

    def take(self, events: list[Any]) -> None:
        self.connection.check()
        for event in events:
            if isinstance(event, PingAcknowledged):
                self.pongs += 1
                continue
            if isinstance(event, GoingAway):
                self.goaways.append(event.code)
                continue
            talk = self.talks[event.call.stream_id]
            assert talk.status is None, "nothing follows the end of a call"
            self._on(event, talk)

    def _on(self, event: Any, talk: Talk) -> None:
        stream_id = event.call.stream_id
        match event:
            case CallStarted():
                assert stream_id not in self.calls
                self.calls[stream_id] = event.call
                talk.headers.append({str(k): str(v) for k, v in event.call.metadata})
            case ResponseStarted():
                talk.headers.append({str(k): str(v) for k, v in event.call.metadata})
            case MessageReceived():
                assert not talk.has_all
                talk.received.append(event.data)
                talk.has_all = event.is_last
                self.unreleased.append(event)
            case RequestEnded():
                assert not talk.has_all
                talk.has_all = True
            case CallCancelled():
                talk.is_broken = True
                self.calls.pop(stream_id)
            case CallEnded():
                talk.status = event.status
                talk.has_all = True
                self.calls.pop(stream_id)
            case _:
                assert type(event).__name__ == "CallWritable"

    def start(self, metadata: list[tuple[str, str]]) -> int:
        assert isinstance(self.connection, ClientConnection)
        call = self.connection.start("/a.B/C", tuple(metadata))
        self.calls[call.stream_id] = call
        return call.stream_id

    def send(self, stream_id: int, payload: bytes) -> None:
        self.talks[stream_id].sent.append(payload)
        self.connection.send(self.calls[stream_id], payload)

    def end(self, stream_id: int, trailers: list[tuple[str, str]] | None = None) -> None:
        call = self.calls[stream_id]
        self.talks[stream_id].is_ended = True
        if isinstance(self.connection, ClientConnection):
            self.connection.end(call)
            return
        code, *rest = trailers or [("grpc-status", "0")]
        self.connection.finish(call, Status(int(code[1]), "why", None, tuple(rest)))

    def reset(self, stream_id: int) -> None:
        self.talks[stream_id].is_broken = True
        self.connection.cancel(self.calls.pop(stream_id))

    def acknowledge(self, count: int) -> None:
        for event in self.unreleased[:count]:
            self.connection.release(event.call, len(event.data))
        del self.unreleased[:count]

    def messages(self, stream_id: int) -> list[bytes]:
        return self.talks[stream_id].received

    def take_output(self) -> bytes:
        self.connection.check()
        return self.connection.take_output()
