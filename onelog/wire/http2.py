"""HTTP/2 (RFC 9113) without sockets, as far as gRPC needs it, in both roles.

``receive`` handles the frames of one read, as many as its caller likes at a time; what they mean is
handed to the hooks of a subclass (``grpc.py``), and what is to be sent collects until
``take_output``. Section numbers are the RFC's.

Invariants:

* A stream is in ``streams`` from its first HEADERS until both sides have ended it or one has reset
  it. Its number is never used again.
* Nothing is sent beyond a window of the peer. What waits for one is in ``Stream.waiting``, and
  ``unsent_bytes`` counts it, for each stream and for all.
* What was received and not released is at most ``buffered_bytes_max`` and one connection window:
  beyond that the peer gets no more credit.
* An error of the connection ends it: GOAWAY is the last thing in the output, ``is_closed`` is set,
  and later input is ignored.

A peer can waste our time with frames that cost it nothing (settings, pings, resets, empty frames).
Each kind takes from a budget, which ``tick`` refills; a peer that overdraws it is disconnected with
ENHANCE_YOUR_CALM. Frames that take us longer than others count as several, in budgets and in what
one ``receive`` handles. Nothing here reads a clock.
"""

import struct
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from onelog.wire.headers import TABLE_OFF, BadHeaders, HeaderDecoder, HeadersTooLarge

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_SIZE = 9
_HEAD = struct.Struct(
    ">"
    "H"  # the length of the payload, its upper 16 bits
    "B"  # and the lower 8
    "B"  # type
    "B"  # flags
    "I"  # a reserved bit, and the stream
)
_SETTING = struct.Struct(">HI")
_U32 = struct.Struct(">I")
assert _HEAD.size == HEAD_SIZE

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE = 0, 1, 2, 3, 4, 5
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9

# How a port for other nodes answers a client of the API: SETTINGS, and GOAWAY (PROTOCOL_ERROR) with
# a text, which any client of HTTP/2 can show.
PEER_PORT_TEXT = b"this is a port for other nodes, not the port of the API"
PEER_PORT_ANSWER = (
    bytes((0, 0, 0, SETTINGS, 0, 0, 0, 0, 0, 0, 0, 8 + len(PEER_PORT_TEXT), GOAWAY, 0, 0, 0, 0, 0))
    + bytes((0, 0, 0, 0, 0, 0, 0, 1))
    + PEER_PORT_TEXT
)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6

FRAME_BYTES_MAX = 16_384  # what we accept; a peer may send larger ones only to those that allow it
PEER_FRAME_BYTES_MAX = (1 << 24) - 1
STREAM_ID_MAX = (1 << 31) - 1
WINDOW_MAX = (1 << 31) - 1
WINDOW_DEFAULT = 65_535
# What we allow a peer to have on its way, for a stream and for a connection. One stream must not be
# able to take all of the connection's.
STREAM_WINDOW = 1 << 20
CONNECTION_WINDOW = 8 << 20
# What a client starts before it knows what its server allows (6.5.2: no less should be allowed).
STREAMS_BEFORE_SETTINGS = 100
# A header list beyond what we announce is answered; one beyond this many times that is not decoded.
HEADER_LIST_FACTOR = 4
# A block in more pieces than this is sent to cost us something (CONTINUATION flood).
HEADER_FRAMES_MAX = 16
# Streams that we have reset, of which frames may still be on their way (5.1, "closed").
RESETS_REMEMBERED_MAX = 1_000
# Fields of a header block that are not charged, and those that cost one frame more beyond: a field
# that is one byte on the wire takes as long to decode as a whole frame.
HEADER_FIELDS_FREE, HEADER_FIELDS_PER_CONTROL_FRAME = 64, 16
# Windows of streams that a SETTINGS frame moves for the price of one frame more.
WINDOWS_PER_CONTROL_FRAME = 16
# Budgets: at once, and again with each tick, which is about a second.
CONTROL_FRAMES_BURST, CONTROL_FRAMES_PER_TICK = 4_000, 1_000
RESETS_BURST, RESETS_PER_TICK = 2_000, 200


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFault(Exception):
    """The peer broke a rule that ends the connection; raised and caught in this package alone."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class StreamFault(Exception):
    """The peer broke a rule that ends one stream; raised and caught in this package alone."""

    def __init__(self, stream_id: int, code: ErrorCode) -> None:
        super().__init__(stream_id, code)
        self.stream_id = stream_id
        self.code = code


@dataclass(frozen=True, slots=True)
class WireLimits:
    """What one connection may take of this process."""

    # Calls under way; further ones are refused, and clients that obey wait.
    streams_max: int = 1024
    # One message, also after it was decompressed.
    message_bytes_max: int = 16 << 20
    # A header list; beyond it a call is refused.
    header_bytes_max: int = 16 << 10
    # Messages, whole or in part, that were received and not released.
    buffered_bytes_max: int = 64 << 20
    # Answers that wait for a window of the peer; beyond it new calls are refused.
    unsent_bytes_max: int = 64 << 20


class Stream:
    """One stream: both windows, what waits, and which sides have ended it."""

    __slots__ = (
        "buffered", "content_left", "credit", "head_bytes", "held", "is_local_over", "is_over",
        "is_remote_over", "send_window", "stream_id", "unsent_bytes", "waiting", "window",
    )  # fmt: skip

    def __init__(self, stream_id: int, send_window: int) -> None:
        self.stream_id = stream_id
        self.send_window = send_window
        self.window = STREAM_WINDOW  # what the peer may still send
        self.credit = 0  # what was received and may be allowed again
        self.buffered = 0  # what was received and is kept: whole messages, and a part of one
        self.held = 0  # of these, whole messages that their owner has not released
        self.head_bytes = 0  # of the headers of a request, which are kept as long as the stream
        self.is_over = False  # nothing more can be sent: END_STREAM was sent or waits, or a reset
        self.is_local_over = False  # END_STREAM was sent, or the stream is reset
        self.is_remote_over = False
        self.unsent_bytes = 0
        # Frames in order: data, with whether it ends the stream, or a block that does.
        self.waiting: deque[tuple[memoryview, bool] | bytes] | None = None
        # Bytes that ``content-length`` has promised and that have not come; None: nothing promised.
        self.content_left: int | None = None

    @property
    def kept_bytes(self) -> int:
        """What this stream holds: headers, and data on its way in or out."""
        return self.head_bytes + self.buffered + self.unsent_bytes


class Http2Connection:
    """See the module's text. Subclasses have the hooks at the end."""

    is_server: bool

    def __init__(self, limits: WireLimits, decoder: HeaderDecoder[Any]) -> None:
        self.limits = limits
        self.streams: dict[int, Any] = {}
        self.is_closed = False
        self.unsent_bytes = 0
        self.buffered_bytes = 0
        self.head_bytes = 0
        self._partial_bytes = 0  # of these, of messages that are not complete
        self.peer_streams_max = STREAMS_BEFORE_SETTINGS
        self._decoder = decoder
        self._input = b""
        self._input_at = 0  # where frames begin that were not handled for lack of ``_frames_left``
        self._frames_left = 0
        self.has_more = False  # something can be handled without more input, by ``receive``
        # What takes several turns, and comes before all other frames; see ``_continue``.
        self._unfinished: Any = None
        self._output: list[bytes | memoryview] = []
        self._awaits_preface = self.is_server
        self._has_settings = False
        self._block: bytearray | None = None  # of a header block whose end has not come
        self._block_of = self._block_flags = self._block_frames = 0
        self._last_peer_id = 0  # the highest stream that the peer has opened
        self._send_window = WINDOW_DEFAULT
        self._stream_send_window = WINDOW_DEFAULT
        self._peer_frame_max = FRAME_BYTES_MAX
        self._window = CONNECTION_WINDOW
        self._credit = 0
        self._is_held = False
        self._has_sent_block = False
        self._goaway_id: int | None = None  # streams above it are not taken any more
        # Streams that wait for the connection's window and not for their own, in turn.
        self._ready: dict[int, Any] = {}
        self._resets: dict[int, None] = {}  # in order; see RESETS_REMEMBERED_MAX
        self._resets_forgotten_id = 0  # up to it a stream may have been one of them
        self._control_budget = CONTROL_FRAMES_BURST
        self._reset_budget = RESETS_BURST
        self._handlers = (
            self._on_data, self._on_headers, self._on_priority, self._on_reset, self._on_settings,
            self._on_push_promise, self._on_ping, self._on_goaway, self._on_window_update,
            self._on_continuation,
        )  # fmt: skip
        self._send_preface()

    # Bytes in, bytes out

    @property
    def has_output(self) -> bool:
        """Whether there is something to write."""
        return bool(self._output)

    def take_output(self) -> bytes:
        """Return what is to be written now."""
        data = b"".join(self._output)
        self._output.clear()
        return data

    def _receive(self, data: bytes, frames_max: int) -> None:
        """Handle frames that are complete with ``data``; ``has_more`` tells whether some wait."""
        if self.is_closed:
            return
        at, self._frames_left = self._input_at, frames_max
        if data and self._input:
            data, at = self._input[at:] + data, 0
        elif not data:
            data = self._input
        self.has_more = False
        try:
            if self._awaits_preface:
                found = self._read_preface(data)
                if found is None:
                    self._input = data
                    return
                at = found
            at = self._read_frames(data, at)
            if self.has_more:
                self._input, self._input_at = data, at
            else:
                self._input, self._input_at = data[at:], 0
        except ConnectionFault as fault:
            self._fail(fault.code, fault.text)

    def _read_frames(self, data: bytes, at: int) -> int:
        end, handlers, unpack = len(data), self._handlers, _HEAD.unpack_from
        if self._unfinished is not None:
            self._continue()
        while end - at >= HEAD_SIZE and not self.is_closed and self._unfinished is None:
            high, low, kind, flags, stream_id = unpack(data, at)
            size = high << 8 | low
            if size > FRAME_BYTES_MAX:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            stop = at + HEAD_SIZE + size
            if stop > end:
                break
            if self._frames_left <= 0:
                self.has_more = True
                break
            self._frames_left -= 1
            stream_id &= STREAM_ID_MAX
            if not self._has_settings and kind != SETTINGS:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is no SETTINGS")
            if self._block is not None and (kind != CONTINUATION or stream_id != self._block_of):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
            payload = data[at + HEAD_SIZE : stop]
            at = stop
            try:
                if kind <= CONTINUATION:
                    handlers[kind](flags, stream_id, payload)
                else:
                    self._spend_control()  # unknown types are ignored (4.1)
            except StreamFault as fault:
                # A peer that makes us reset its streams wastes as much as one that does it itself.
                self._spend_reset()
                self._reset_stream(fault.stream_id, fault.code)
        if self._unfinished is not None:
            self.has_more = True
        return at

    def _read_preface(self, data: bytes) -> int | None:
        """Return where frames begin; None if the preface is not complete."""
        if len(data) < len(PREFACE):
            if PREFACE.startswith(data):
                return None
        elif data.startswith(PREFACE):
            self._awaits_preface = False
            return len(PREFACE)
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2")

    # What the owner of the connection says

    def ping(self) -> None:
        """Ask the peer whether it is there."""
        if not self.is_closed:
            self._frame(PING, 0, 0, b"onelog\x00\x00")

    def tick(self) -> None:
        """Refill the budgets; about once a second."""
        self._control_budget = min(
            self._control_budget + CONTROL_FRAMES_PER_TICK, CONTROL_FRAMES_BURST
        )
        self._reset_budget = min(self._reset_budget + RESETS_PER_TICK, RESETS_BURST)

    def hold(self) -> None:
        """Keep back data and answers: the socket takes no more.

        An answer that waits keeps its stream, so a peer that never reads has at most
        ``streams_max`` of them.
        """
        self._is_held = True

    def resume(self) -> None:
        """Send again what was kept back."""
        self._is_held = False
        # Trailers need no window.
        for stream in [each for each in self._ready.values() if type(each.waiting[0]) is bytes]:
            del self._ready[stream.stream_id]
            self._send_piece(stream)
        self._send_waiting()

    def close(self, code: ErrorCode = ErrorCode.NO_ERROR, text: str = "") -> None:
        """End the connection with a reason; calls under way end with it."""
        if not self.is_closed:
            self._fail(code, text)

    # Frames of the peer

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA of no stream")
        self._window -= size
        if self._window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is used")
        self._credit += size
        if self._credit >= CONNECTION_WINDOW // 2:
            self._allow()
        if flags & PADDED:
            payload = _unpadded(payload)
        stream = self.streams.get(stream_id)
        is_end = bool(flags & END_STREAM)
        if not payload and not is_end:
            self._spend_control()
        if stream is None or stream.is_remote_over:
            self._check_closed(stream_id, "DATA", is_end=is_end)
            return
        stream.window -= size
        if stream.window < 0:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        stream.credit += size
        if stream.content_left is not None:
            stream.content_left -= len(payload)
            if stream.content_left < 0 or (is_end and stream.content_left):
                raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)  # 8.1.1
        if is_end:
            stream.is_remote_over = True
        self._data_received(stream, payload, is_end)
        if is_end:
            if stream.is_local_over:
                self._forget(stream)
        elif stream.credit >= STREAM_WINDOW // 2:
            self._allow_stream(stream)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS of no stream")
        if flags & PADDED:
            payload = _unpadded(payload)
        if flags & HAS_PRIORITY:
            if len(payload) < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without its priority")
            payload = payload[5:]
        if flags & END_HEADERS:
            self._headers(stream_id, flags, payload)
            return
        self._block, self._block_of = bytearray(payload), stream_id
        self._block_flags, self._block_frames = flags, 1

    def _on_continuation(self, flags: int, _stream_id: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of no header block")
        self._block_frames += 1
        block += payload
        # HPACK never makes a list longer than its block but by the table, so this is enough.
        limit = self.limits.header_bytes_max * HEADER_LIST_FACTOR
        if self._block_frames > HEADER_FRAMES_MAX or len(block) > limit:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block without an end")
        if flags & END_HEADERS:
            self._block = None
            self._headers(self._block_of, self._block_flags, bytes(block))

    def _headers(self, stream_id: int, flags: int, block: bytes) -> None:
        try:
            head = self._decoder.decode(block)
        except BadHeaders as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        except HeadersTooLarge as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from None
        beyond = self._decoder.fields - HEADER_FIELDS_FREE
        if beyond > 0:
            self._spend_control(beyond // HEADER_FIELDS_PER_CONTROL_FRAME)
        is_end = bool(flags & END_STREAM)
        stream = self.streams.get(stream_id)
        if stream is not None:
            if stream.is_remote_over:
                raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED)
            if is_end:
                stream.is_remote_over = True
                if stream.content_left:
                    raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)
            self._more_headers_received(stream, head, is_end)
            if is_end and stream.is_local_over:
                self._forget(stream)
            return
        if not self.is_server or not stream_id & 1 or stream_id <= self._last_peer_id:
            if not is_end:
                self._spend_control()  # an answer and its trailers may be late, hardly more
            self._check_closed(stream_id, "HEADERS", is_end=is_end)
            return
        self._last_peer_id = stream_id
        if self._goaway_id is not None:
            self._spend_control()
            return  # 6.8: its client learns that it was not processed
        self._headers_received(stream_id, head, is_end)

    def _on_priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY of no stream")
        self._spend_control()
        if len(payload) != 5:
            if stream_id in self.streams:
                raise StreamFault(stream_id, ErrorCode.FRAME_SIZE_ERROR)
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a PRIORITY of another size")

    def _on_reset(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a RST_STREAM of another size")
        self._check_not_idle(stream_id, "RST_STREAM")
        if stream_id in self._resets:
            del self._resets[stream_id]  # both sides had enough of it
            return
        stream = self.streams.get(stream_id)
        # A server resets what its client has started, which needs no other limit.
        if self.is_server:
            self._spend_reset()
        elif stream is None:
            self._spend_control()
        if stream is not None:
            self._drop(stream)
            self._reset_received(stream, _U32.unpack(payload)[0])

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an ACK with settings")
            if not self._has_settings:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is an ACK")
            self._spend_control()
            return
        if len(payload) % _SETTING.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of another size")
        if not self._has_settings:
            self._has_settings, self.peer_streams_max = True, STREAM_ID_MAX
        self._spend_control()
        window_before = self._stream_send_window
        for number, value in _SETTING.iter_unpack(payload):
            self._set(number, value)
        if self._stream_send_window != window_before:
            self._move_windows(self._stream_send_window - window_before)
        self._frame(SETTINGS, ACK, 0, b"")
        self._send_waiting()

    def _set(self, number: int, value: int) -> None:
        """Follow a setting of the peer (6.5.2); unknown ones are ignored."""
        if number == ENABLE_PUSH:
            if value > (1 if self.is_server else 0):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")
        elif number == MAX_CONCURRENT_STREAMS:
            self.peer_streams_max = value
        elif number == INITIAL_WINDOW_SIZE:
            if value > WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value}")
            self._stream_send_window = value
        elif number == MAX_FRAME_SIZE:
            if not FRAME_BYTES_MAX <= value <= PEER_FRAME_BYTES_MAX:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE of {value}")
            self._peer_frame_max = value

    def _move_windows(self, more: int) -> None:
        """Follow a change of what streams begin with (6.9.2), once for all settings of a frame."""
        self._spend_control(len(self.streams) // WINDOWS_PER_CONTROL_FRAME)
        for stream in self.streams.values():
            stream.send_window += more
            if stream.send_window > WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
            if stream.waiting and stream.send_window >= 0:
                self._ready[stream.stream_id] = stream

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE was not asked for")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a PING of another size")
        self._spend_control()
        if flags & ACK:
            self._ping_acknowledged()
            return
        self._frame(PING, ACK, 0, payload)

    def _on_goaway(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a GOAWAY of another size")
        self._spend_control()
        last_id, code = struct.unpack_from(">II", payload)
        self._goaway_received(last_id & STREAM_ID_MAX, code, payload[8:])

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a WINDOW_UPDATE of another size")
        more = _U32.unpack(payload)[0] & WINDOW_MAX
        if not stream_id:
            self._send_window += more
            if not more or self._send_window > WINDOW_MAX:
                code = ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR
                raise ConnectionFault(code, f"a WINDOW_UPDATE of {more}")
            self._send_waiting()
            return
        self._check_not_idle(stream_id, "WINDOW_UPDATE")
        stream = self.streams.get(stream_id)
        if stream is None:
            return  # it was on its way when the stream ended
        stream.send_window += more
        if not more:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)
        if stream.send_window > WINDOW_MAX:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if stream.waiting:
            self._ready[stream_id] = stream
            self._send_waiting()

    def _check_closed(self, stream_id: int, what: str, *, is_end: bool) -> None:
        """Decide about a frame of a stream that is not open: late, or wrong (5.1)."""
        self._check_not_idle(stream_id, what)
        if stream_id in self.streams:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED)
        if stream_id in self._resets:  # it was on its way when we reset the stream
            if is_end:
                del self._resets[stream_id]
            return
        is_refused = self._goaway_id is not None and stream_id > self._goaway_id
        if not is_refused and stream_id > self._resets_forgotten_id:
            text = f"{what} of stream {stream_id}, which ended"
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, text)
        if self.is_server:  # a client that cancels thousands of calls expects such frames
            self._spend_control()

    def _check_not_idle(self, stream_id: int, what: str) -> None:
        if not stream_id or self._is_idle(stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{what} of stream {stream_id}")

    def _is_idle(self, stream_id: int) -> bool:
        return not stream_id & 1 or stream_id > self._last_peer_id

    def _spend_control(self, count: int = 1) -> None:
        self._control_budget -= count
        self._frames_left -= max(0, count - 1)  # the frame itself is counted
        if self._control_budget < 0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames to no purpose")

    def _spend_reset(self) -> None:
        self._reset_budget -= 1
        if self._reset_budget < 0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many streams were reset")

    # What the peer may send

    def _keep(self, stream: Stream, size: int, *, held: int = 0) -> None:
        """Count bytes that are kept (fewer, if ``size`` is negative), and whole messages."""
        self.buffered_bytes += size
        self._partial_bytes += size - held
        stream.buffered += size
        stream.held += held

    def _release(self, stream: Stream, size: int) -> None:
        """Count bytes of whole messages that are kept no longer; the peer may send as many again.

        A stream that has ended has released everything.
        """
        if stream.stream_id not in self.streams:
            return
        assert 0 <= size <= stream.held, (size, stream.held)
        self._keep(stream, -size, held=-size)
        self._allow_stream(stream)
        self._allow()

    def _allow_stream(self, stream: Stream) -> None:
        """Give a stream its window again, unless its owner leaves too much."""
        if stream.credit < STREAM_WINDOW // 2 or stream.held > STREAM_WINDOW:
            return
        if not stream.is_remote_over:
            stream.window += stream.credit
            self._frame(WINDOW_UPDATE, 0, stream.stream_id, _U32.pack(stream.credit))
            stream.credit = 0

    def _allow(self) -> None:
        """Give the connection its window again, unless too much is kept."""
        if self._credit < CONNECTION_WINDOW // 2:
            return
        if self.buffered_bytes <= self.limits.buffered_bytes_max and not self.is_closed:
            self._window += self._credit
            self._frame(WINDOW_UPDATE, 0, 0, _U32.pack(self._credit))
            self._credit = 0

    # What is sent

    def _send_preface(self) -> None:
        limits = self.limits
        settings = [
            (INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (MAX_HEADER_LIST_SIZE, limits.header_bytes_max),
        ]
        if self.is_server:
            settings.append((MAX_CONCURRENT_STREAMS, limits.streams_max))
        else:
            settings.append((ENABLE_PUSH, 0))
            self._output.append(PREFACE)
        payload = b"".join(_SETTING.pack(number, value) for number, value in settings)
        self._frame(SETTINGS, 0, 0, payload)
        self._frame(WINDOW_UPDATE, 0, 0, _U32.pack(CONNECTION_WINDOW - WINDOW_DEFAULT))

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._output.append(_HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload)

    def _send_headers(self, stream: Stream, block: bytes, *, is_end: bool = False) -> None:
        """Send a header block, behind data that waits if it ends the stream."""
        if is_end:
            stream.is_over = True
        if stream.waiting:
            assert is_end, "headers in the middle of a stream"
            stream.waiting.append(block)
            return
        if is_end and self._is_held:
            stream.waiting = deque((block,))
            self._ready[stream.stream_id] = stream
            return
        if not self._has_sent_block:
            self._has_sent_block = True
            block = TABLE_OFF + block
        flags, kind, limit = END_STREAM if is_end else 0, HEADERS, self._peer_frame_max
        while len(block) > limit:
            self._frame(kind, flags, stream.stream_id, block[:limit])
            flags, kind, block = 0, CONTINUATION, block[limit:]
        self._frame(kind, flags | END_HEADERS, stream.stream_id, block)
        if is_end:
            self._end_local(stream)

    def _send_data(self, stream: Stream, data: bytes, *, is_end: bool = False) -> None:
        """Send data as far as the windows allow; the rest waits."""
        size = len(data)
        stream.is_over = is_end
        if (
            not stream.waiting
            and size <= self._peer_frame_max
            and size <= stream.send_window
            and size <= self._send_window
            and not self._is_held
        ):
            stream.send_window -= size
            self._send_window -= size
            self._frame(DATA, END_STREAM if is_end else 0, stream.stream_id, data)
            if is_end:
                self._end_local(stream)
            return
        if stream.waiting is None:
            stream.waiting = deque()
        stream.waiting.append((memoryview(data), is_end))
        stream.unsent_bytes += size
        self.unsent_bytes += size
        self._ready[stream.stream_id] = stream
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Send what waits, one frame of each stream in turn, as far as the windows allow.

        A stream whose own window is used leaves the turn until that grows: otherwise a peer could
        make us scan a thousand of them for each byte that it allows.
        """
        ready = self._ready
        while ready and self._send_window > 0 and not self._is_held:
            stream_id = next(iter(ready))
            stream = ready.pop(stream_id)
            if stream.waiting and self._send_piece(stream):
                ready[stream_id] = stream

    def _send_piece(self, stream: Any) -> bool:
        """Send the next frame of a stream that waits; tell whether it has more and a window."""
        waiting = stream.waiting
        if type(waiting[0]) is bytes:
            block, stream.waiting = waiting[0], None
            self._send_headers(stream, block, is_end=True)
            return False
        data, is_end = waiting[0]
        size = min(len(data), stream.send_window, self._send_window, self._peer_frame_max)
        # What is empty needs no window, but a negative one (6.9.2): some peers insist.
        if size < 0 or (not size and len(data)):
            return False
        is_whole = size == len(data)
        flags = END_STREAM if is_whole and is_end else 0
        head = _HEAD.pack(size >> 8, size & 0xFF, DATA, flags, stream.stream_id)
        self._output += (head, data[:size])
        stream.send_window -= size
        self._send_window -= size
        stream.unsent_bytes -= size
        self.unsent_bytes -= size
        if not is_whole:
            waiting[0] = (data[size:], is_end)
            return True
        waiting.popleft()
        if waiting:
            return type(waiting[0]) is not bytes or self._send_piece(stream)
        stream.waiting = None
        if is_end:
            self._end_local(stream)
        else:
            self._drained(stream)
        return False

    def _end_local(self, stream: Stream) -> None:
        stream.is_local_over = True
        if stream.is_remote_over:
            self._forget(stream)
        else:
            self._local_ended(stream)

    def _reset_stream(self, stream_id: int, code: int) -> None:
        """End a stream for both sides."""
        self._resets[stream_id] = None
        if len(self._resets) > RESETS_REMEMBERED_MAX:
            oldest = next(iter(self._resets))
            del self._resets[oldest]
            self._resets_forgotten_id = max(self._resets_forgotten_id, oldest)
        self._frame(RST_STREAM, 0, stream_id, _U32.pack(code))
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._drop(stream)
            self._faulted(stream, code)

    def _drop(self, stream: Any) -> None:
        """Forget a stream that ends for both sides at once."""
        stream.is_over = stream.is_remote_over = stream.is_local_over = True
        self._forget(stream)

    def _forget(self, stream: Any) -> None:
        """Forget a stream that has ended, with what waits to be sent on it and what is kept."""
        if self.streams.pop(stream.stream_id, None) is None:
            return
        self.head_bytes -= stream.head_bytes
        if stream.unsent_bytes:
            self.unsent_bytes -= stream.unsent_bytes
            stream.unsent_bytes = 0
        if stream.waiting is not None:
            stream.waiting = None
            self._ready.pop(stream.stream_id, None)
        if stream.buffered:
            self._keep(stream, -stream.buffered, held=-stream.held)
            self._allow()

    def _say_goaway(self, last_id: int, code: int, text: str = "") -> None:
        if self._goaway_id is not None:
            last_id = min(last_id, self._goaway_id)  # 6.8: never more than was said before
        self._goaway_id = last_id
        payload = struct.pack(">II", last_id, code) + text.encode()[:256]
        self._frame(GOAWAY, 0, 0, payload)

    def _fail(self, code: ErrorCode, text: str) -> None:
        """End the connection: say why, then end every stream."""
        self._say_goaway(self._last_peer_id, code, text)
        self.is_closed = True
        self._input, self._input_at, self.has_more = b"", 0, False
        self._unfinished = None
        self._end_all(text or "the connection was closed")

    def _end_all(self, text: str) -> None:
        for stream in list(self.streams.values()):
            self._drop(stream)
            self._lost(stream, text)

    def check(self) -> None:
        """Assert what holds between two calls of any method; for tests."""
        streams = list(self.streams.values())
        assert self.unsent_bytes == sum(each.unsent_bytes for each in streams), self.unsent_bytes
        assert self.buffered_bytes == sum(each.buffered for each in streams), self.buffered_bytes
        assert self.head_bytes == sum(each.head_bytes for each in streams), self.head_bytes
        partial = sum(each.buffered - each.held for each in streams)
        assert self._partial_bytes == partial, (self._partial_bytes, partial)
        assert partial <= self.limits.buffered_bytes_max, partial
        assert len(self._resets) <= RESETS_REMEMBERED_MAX, len(self._resets)
        assert not self._resets.keys() & self.streams.keys(), "a stream is open and reset"
        assert self._ready.keys() <= self.streams.keys(), "a stream that ended has its turn"
        assert self._send_window >= 0, self._send_window
        if self.is_closed:
            assert not streams, "a closed connection has streams"
            return
        assert self._send_window <= WINDOW_MAX, self._send_window
        assert self._window + self._credit == CONNECTION_WINDOW, (self._window, self._credit)
        assert self._control_budget >= 0, self._control_budget
        assert self._reset_budget >= 0, self._reset_budget
        can_send = self._send_window > 0 and not self._is_held
        assert not (can_send and self._ready), "something could be sent, and waits"
        for stream in streams:
            self._check_stream(stream)

    def _check_stream(self, stream: Stream) -> None:
        number, waiting = stream.stream_id, stream.waiting
        assert self.streams[number] is stream, number
        assert not (stream.is_local_over and stream.is_remote_over), f"{number} has ended"
        assert 0 <= stream.held <= stream.buffered, (number, stream.held, stream.buffered)
        assert stream.window + stream.credit == STREAM_WINDOW, (number, stream.window)
        assert stream.send_window <= WINDOW_MAX, (number, stream.send_window)
        assert stream.is_over or not stream.is_local_over, number
        if waiting is None:
            assert stream.is_over == stream.is_local_over, f"the end of {number} is lost"
            assert not stream.unsent_bytes, (number, stream.unsent_bytes)
            assert number not in self._ready, number
            return
        assert waiting, f"{number} waits with nothing"
        assert not stream.is_local_over, f"{number} waits and has ended"
        sizes = [0 if isinstance(each, bytes) else len(each[0]) for each in waiting]
        assert stream.unsent_bytes == sum(sizes), (number, stream.unsent_bytes, sizes)
        ends = [isinstance(each, bytes) or each[1] for each in waiting]
        assert not any(ends[:-1]), f"something follows the end of {number}"
        assert ends[-1] == stream.is_over, (number, ends)
        # A stream that is not in turn, and has the window that it needs, would wait forever.
        needed = 1 if sizes[0] else 0
        assert number in self._ready or stream.send_window < needed, f"{number} was forgotten"

    # Hooks of a role

    def _continue(self) -> None:
        """Continue what is ``_unfinished``, as far as ``_frames_left`` goes."""
        raise NotImplementedError

    def _headers_received(self, stream_id: int, head: Any, is_end: bool) -> None:  # noqa: FBT001
        """The peer of a server has opened a stream."""
        raise NotImplementedError

    def _more_headers_received(self, stream: Any, head: Any, is_end: bool) -> None:  # noqa: FBT001
        """Headers of an answer, or trailers."""
        raise NotImplementedError

    def _data_received(self, stream: Any, data: bytes, is_end: bool) -> None:  # noqa: FBT001
        """Data has arrived; what is kept of it is counted (``_keep``)."""
        raise NotImplementedError

    def _reset_received(self, stream: Any, code: int) -> None:
        """The peer has reset a stream, which is forgotten already."""
        raise NotImplementedError

    def _faulted(self, stream: Any, code: int) -> None:
        """We have reset a stream, since its peer broke a rule."""
        raise NotImplementedError

    def _lost(self, stream: Any, text: str) -> None:
        """The connection is gone, and with it a stream."""
        raise NotImplementedError

    def _local_ended(self, stream: Any) -> None:
        """We have ended a stream that the peer has not."""
        raise NotImplementedError

    def _drained(self, stream: Any) -> None:
        """A stream has sent everything that waited."""
        raise NotImplementedError

    def _ping_acknowledged(self) -> None:
        raise NotImplementedError

    def _goaway_received(self, last_id: int, code: int, text: bytes) -> None:
        raise NotImplementedError


def _unpadded(payload: bytes) -> bytes:
    """Return a payload without its padding (6.1)."""
    if not payload:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without a length")
    padding = payload[0]
    if padding >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - padding]
