"""gRPC over HTTP/2 without sockets: calls, messages and statuses, for servers and for clients.

A connection is fed with ``receive``, which returns events, and asked for what to write with
``take_output``; in between, its owner answers. Many calls that came in one read are answered in one
write. See gRPC's PROTOCOL-HTTP2.md for what is on the wire.

* A call is an object of this connection; its owner may hang its own things on it (``owner``).
  Answering a call that is over does nothing: its peer left meanwhile, and an event said so.
* A server sees ``CallStarted``, its messages, and ``CallCancelled`` if the peer or the connection
  leaves before the answer. A client sees exactly one ``CallEnded`` of each call, unless it has
  cancelled the call itself.
* The bytes of messages count until their owner releases them or the call ends; while there are too
  many the peer may not send (``http2.py``).
* Requests that are no gRPC are answered here with the HTTP status of PROTOCOL-HTTP2.md. A message
  that is too large is an event, since the owner has something to say about it.

Answers are sent as they are. Compressed messages are understood (gzip), within the same limit. What
they inflate to counts into the frames that one ``receive`` handles, so a large one takes several.
"""

import struct
import sys
import zlib
from dataclasses import dataclass
from typing import Any

from onelog.wire.headers import (
    CONNECTION_FIELDS,
    TRANSPORT_FIELDS,
    HeaderDecoder,
    Metadata,
    RawHeaders,
    decode_message,
    decode_metadata,
    decode_timeout,
    encode_headers,
    encode_message,
    encode_metadata,
    encode_timeout,
    shown,
)
from onelog.wire.http2 import (
    CONNECTION_WINDOW,
    HEADER_LIST_FACTOR,
    STREAM_ID_MAX,
    ConnectionFault,
    ErrorCode,
    Http2Connection,
    Stream,
    StreamFault,
    WireLimits,
)

_PREFIX = struct.Struct(
    ">"
    "B"  # 1: compressed, as grpc-encoding says
    "I"  # the length of the message
)
PREFIX_SIZE = 5
assert _PREFIX.size == PREFIX_SIZE

CANCELLED, UNKNOWN, INVALID_ARGUMENT = 1, 2, 3
PERMISSION_DENIED, RESOURCE_EXHAUSTED = 7, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 12, 13, 14, 16

DETAILS_KEY = "grpc-status-details-bin"
# Gzip in zlib's words: 15 bits of window, and 16 for the format.
_GZIP = 31
# What compresses better than most things is charged as if each piece of it were a frame to no
# purpose: a bomb of 16 KiB takes as much of our time as a thousand calls.
GZIP_RATIO = 16
GZIP_BYTES_PER_FRAME = 1 << 16
# What is inflated and fed at a time, and how much of it takes as long as a frame does: a message of
# megabytes is inflated in several turns.
GZIP_STEP_BYTES, GZIP_INPUT_BYTES = 1 << 18, 1 << 16
GZIP_STEP_BYTES_PER_FRAME = 1 << 13
# The last four bytes tell what the message inflates to (RFC 1952, 2.3.1). No byte of it can mean
# more than this many, so what says so is no gzip.
GZIP_LENGTH_SIZE, GZIP_RATIO_MAX = 4, 1_032
# What a client that ignores the limit of headers is charged for.
HEADER_BYTES_PER_FRAME = 1 << 10
# What a message that waits for its owner counts besides its bytes: an empty one takes memory, too.
MESSAGE_COST = 64

# What a client that got no gRPC answer makes of an HTTP status (http-grpc-status-mapping.md).
_CODE_OF_HTTP = {
    400: INTERNAL, 401: UNAUTHENTICATED, 403: PERMISSION_DENIED, 404: UNIMPLEMENTED,
    429: UNAVAILABLE, 502: UNAVAILABLE, 503: UNAVAILABLE, 504: UNAVAILABLE,
}  # fmt: skip
# And of the code that a stream was reset with (PROTOCOL-HTTP2.md, "Errors").
_CODE_OF_RESET = {
    ErrorCode.REFUSED_STREAM: UNAVAILABLE,
    ErrorCode.CANCEL: CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: PERMISSION_DENIED,
}


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ended."""

    code: int
    message: str = ""
    details: bytes | None = None  # a serialized google.rpc.Status
    metadata: Metadata = ()
    # The peer guarantees that it has not processed the call.
    is_unprocessed: bool = False


OK = Status(0)


class Call(Stream):
    """One call, in either role."""

    __slots__ = (
        "encoding", "has_started", "input", "is_announced", "metadata", "owner", "path", "skips",
        "timeout_s",
    )  # fmt: skip

    def __init__(
        self, stream_id: int, send_window: int, path: str, metadata: Metadata = ()
    ) -> None:
        super().__init__(stream_id, send_window)
        self.path = path
        # Of the request at a server, of the answer's headers at a client.
        self.metadata = metadata
        self.timeout_s: float | None = None  # what a client said
        self.owner: Any = None
        self.encoding = b""  # of compressed messages of the peer
        self.has_started = False  # headers of the answer were sent, or received
        self.input = bytearray()  # of a message that is not complete
        self.skips = False  # the rest of the input is ignored
        self.is_announced = False  # server: CallStarted was given, and CallCancelled may follow


# Events


@dataclass(slots=True)
class CallStarted:
    """Server: a client calls; its messages follow."""

    call: Call


@dataclass(slots=True)
class MessageReceived:
    """A message; at a server ``is_last`` says that no other follows."""

    call: Call
    data: bytes
    is_last: bool


@dataclass(slots=True)
class MessageTooLarge:
    """Server: a message of this size is not taken; the owner ends the call with a status."""

    call: Call
    size: int


@dataclass(slots=True)
class RequestEnded:
    """Server: the client has sent its last message before."""

    call: Call


@dataclass(slots=True)
class CallCancelled:
    """Server: the client left, or broke a rule; nobody waits for an answer."""

    call: Call


@dataclass(slots=True)
class ResponseStarted:
    """Client: the headers of the answer are there (``call.metadata``)."""

    call: Call


@dataclass(slots=True)
class CallEnded:
    """Client: the outcome of a call."""

    call: Call
    status: Status


@dataclass(slots=True)
class CallWritable:
    """All that waited for the peer's window has been sent."""

    call: Call


@dataclass(slots=True)
class PingAcknowledged:
    """The peer is there."""


@dataclass(slots=True)
class GoingAway:
    """The peer takes no new calls; it has not processed those above ``last_stream_id``."""

    last_stream_id: int
    code: int
    text: str


Event = (
    CallStarted
    | MessageReceived
    | MessageTooLarge
    | RequestEnded
    | CallCancelled
    | ResponseStarted
    | CallEnded
    | CallWritable
    | PingAcknowledged
    | GoingAway
)


class Inflation:
    """A compressed message on its way to what it was; the rest of it is in ``call.input``."""

    __slots__ = ("call", "fed", "inflater", "is_end", "parts", "size", "size_stated")

    def __init__(self, call: Call, size_stated: int, *, is_end: bool) -> None:
        self.call = call
        self.is_end = is_end  # its frame was the last one of the stream
        self.size_stated = size_stated
        self.inflater = zlib.decompressobj(_GZIP)
        self.fed = 0
        self.parts: list[bytes] = []
        self.size = 0

    def step(self, data: bytearray, at: int, stop: int) -> bool:
        """Inflate the next part of a message; return whether that was the last.

        Raises zlib.error if it is no gzip, or is not as long as it says.
        """
        inflater, begin = self.inflater, at + self.fed
        piece = inflater.unconsumed_tail
        if not piece:
            piece = bytes(data[begin : min(begin + GZIP_INPUT_BYTES, stop)])
            self.fed += len(piece)
        # One byte more than it says: a peer that lies is found out.
        room = min(GZIP_STEP_BYTES, self.size_stated + 1 - self.size)
        found = inflater.decompress(piece, room)
        self.parts.append(found)
        self.size += len(found)
        is_fed = at + self.fed == stop
        is_whole = inflater.eof and is_fed and not inflater.unused_data
        is_short = is_fed and not inflater.unconsumed_tail and len(found) < room
        if self.size > self.size_stated or (not is_whole and (inflater.eof or is_short)):
            raise zlib.error("not one member of gzip")
        return is_whole


def _inflation_charge(size: int, packed_size: int) -> int:
    """Return how many frames to no purpose a message of ``packed_size`` counts as."""
    return max(0, size - GZIP_RATIO * packed_size) // GZIP_BYTES_PER_FRAME


class GrpcConnection(Http2Connection):
    """What both roles have in common."""

    def __init__(self, limits: WireLimits, decoder: HeaderDecoder[Any]) -> None:
        self._events: list[Event] = []
        super().__init__(limits, decoder)

    @property
    def call_count(self) -> int:
        """How many calls are under way."""
        return len(self.streams)

    def receive(self, data: bytes, frames_max: int = sys.maxsize) -> list[Event]:
        """Handle the frames of one read and return what they mean.

        ``has_more`` tells whether some of them wait, beyond ``frames_max``, for another ``receive``
        of nothing or of what follows.
        """
        self._receive(data, frames_max)
        return self.take_events()

    @property
    def kept_bytes(self) -> int:
        """What this connection holds.

        That is headers and messages on their way in, and answers on their way out.
        """
        size = self.head_bytes + self.buffered_bytes + self.unsent_bytes
        if self._block is not None:
            size += len(self._block)
        if self._unfinished is not None:
            size += self._unfinished.size
        return size

    def take_events(self) -> list[Event]:
        """Return what has happened since the last time; ``resume`` may make calls writable."""
        events, self._events = self._events, []
        return events

    def lose(self, text: str) -> list[Event]:
        """End all calls: the socket is gone."""
        self.is_closed, self.has_more = True, False
        self._end_all(text)
        return self.take_events()

    def release(self, call: Call, size: int) -> None:
        """Say that a message of ``size`` bytes was taken, so that the peer may send more."""
        self._release(call, size + MESSAGE_COST)

    def cancel(self, call: Call, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """Reset a call; no event follows."""
        if call.stream_id in self.streams and not self.is_closed:
            self._drop(call)
            self._reset_stream(call.stream_id, code)

    # Messages

    def _data_received(self, call: Call, data: bytes, is_end: bool) -> None:  # noqa: FBT001
        if call.skips:
            return
        if not call.has_started and not self.is_server:
            raise StreamFault(call.stream_id, ErrorCode.PROTOCOL_ERROR)  # 8.1: headers come first
        size = len(data)
        if not call.input and size >= PREFIX_SIZE:
            flag, length = _PREFIX.unpack_from(data)
            if (
                size == PREFIX_SIZE + length
                and not flag
                and length <= self._message_max
                and (self.is_server or not is_end)
            ):
                # The usual case: one message, one frame.
                cost = length + MESSAGE_COST
                self._keep(call, cost, held=cost)
                self._events.append(MessageReceived(call, data[PREFIX_SIZE:], is_end))
                return
        if size:
            self._keep(call, size)
            call.input += data
            self._read_messages(call, is_end=is_end)
        elif is_end:
            self._input_ended(call)

    def _input_ended(self, call: Call) -> None:
        """The peer has sent all of its messages, the last one perhaps in part."""
        if call.input:
            self._refuse(call, Status(INTERNAL, "the last message was cut short"))
        else:
            self._request_ended(call)

    @property
    def _message_max(self) -> int:
        return self.limits.message_bytes_max

    def _read_messages(self, call: Call, *, is_end: bool) -> None:
        """Take all whole messages out of the input of a call."""
        data, at, end = call.input, 0, len(call.input)
        was_last = False
        while end - at >= PREFIX_SIZE:
            flag, length = _PREFIX.unpack_from(data, at)
            if length > self._message_max:
                self._too_large(call, length)
                return
            stop = at + PREFIX_SIZE + length
            if stop > end:
                break
            if not flag:
                message: bytes | None = bytes(data[at + PREFIX_SIZE : stop])
            else:
                message = self._decompress(call, flag, at + PREFIX_SIZE, stop, is_end=is_end)
            if message is None:
                if self._unfinished is not None:
                    del data[:at]  # it stays until it is inflated
                return
            was_last = is_end and stop == end and self.is_server
            cost = len(message) + MESSAGE_COST
            self._keep(call, cost - (stop - at), held=cost)
            self._events.append(MessageReceived(call, message, was_last))
            self._frames_left -= 1  # a frame may hold three thousand of them
            at = stop
        del data[:at]
        if is_end and not was_last:
            self._input_ended(call)
        elif self._partial_bytes > self.limits.buffered_bytes_max:
            # They would wait for each other's ends, for which no window is left.
            self._refuse(call, Status(RESOURCE_EXHAUSTED, "too many messages are under way"))

    def _decompress(
        self, call: Call, flag: int, at: int, stop: int, *, is_end: bool
    ) -> bytes | None:
        """Return a message of the input, decompressed if it is compressed.

        None if it was refused, or takes another turn: then it is ``_unfinished``.
        """
        inflation: Inflation | None = self._unfinished
        if inflation is None:
            inflation = self._begin_inflating(call, flag, at, stop, is_end=is_end)
            if inflation is None:
                return None
        self._unfinished = None
        try:
            while self._frames_left > 0:
                before, charged = inflation.size, _inflation_charge(inflation.size, stop - at)
                is_whole = inflation.step(call.input, at, stop)
                self._frames_left -= 1 + (inflation.size - before) // GZIP_STEP_BYTES_PER_FRAME
                self._spend_control(_inflation_charge(inflation.size, stop - at) - charged)
                if is_whole:
                    return b"".join(inflation.parts)
        except zlib.error:
            if inflation.size > self._message_max:
                self._too_large(call, inflation.size)
            else:
                self._refuse(call, Status(INTERNAL, "a message cannot be decompressed"))
            return None
        self._unfinished = inflation
        return None

    def _begin_inflating(
        self, call: Call, flag: int, at: int, stop: int, *, is_end: bool
    ) -> Inflation | None:
        """Begin to inflate a message; refuse it if the size that it states is too large."""
        if flag != 1 or not call.encoding:
            self._refuse(call, Status(INTERNAL, "a message is marked as compressed, and is not"))
            return None
        size, limit = stop - at, self._message_max
        stated = int.from_bytes(call.input[max(at, stop - GZIP_LENGTH_SIZE) : stop], "little")
        most = GZIP_RATIO_MAX * size
        if most <= GZIP_STEP_BYTES:
            stated = min(most, limit)  # it is inflated before it is judged, which takes no time
        elif stated > most:
            self._refuse(call, Status(INTERNAL, "a message cannot be decompressed"))
            return None
        # A window limits the bytes on their way, not what they inflate to.
        room = max(0, self.limits.buffered_bytes_max + CONNECTION_WINDOW - self.buffered_bytes)
        if stated > limit:
            self._spend_control(_inflation_charge(limit + 1, size))
            self._too_large(call, limit + 1)
        elif stated > room:
            self._spend_control(_inflation_charge(stated, size))
            self._refuse(call, Status(RESOURCE_EXHAUSTED, "too many messages are not taken"))
        else:
            return Inflation(call, stated, is_end=is_end)
        return None

    def _continue(self) -> None:
        inflation: Inflation = self._unfinished
        call = inflation.call
        if call.stream_id in self.streams and not call.skips:
            self._read_messages(call, is_end=inflation.is_end)
        else:
            self._unfinished = None  # nobody waits for it any more

    def _skip(self, call: Call) -> None:
        """Ignore the rest of a call's input."""
        call.skips = True
        self._keep(call, -(call.buffered - call.held))
        call.input.clear()

    def _check_stream(self, call: Any) -> None:
        super()._check_stream(call)
        assert call.buffered - call.held == len(call.input), (call.stream_id, call.buffered)
        assert not (call.skips and call.input), f"{call.stream_id} keeps what nobody looks at"

    def _write_message(self, call: Call, message: bytes, *, is_last: bool = False) -> None:
        self._send_data(call, _PREFIX.pack(0, len(message)) + message, is_end=is_last)

    # Hooks of HTTP/2

    def _drained(self, call: Call) -> None:
        self._events.append(CallWritable(call))

    def _ping_acknowledged(self) -> None:
        self._events.append(PingAcknowledged())

    def _goaway_received(self, last_id: int, code: int, text: bytes) -> None:
        self._events.append(GoingAway(last_id, code, text.decode("utf-8", "replace")))

    # Hooks of a role

    def _request_ended(self, call: Call) -> None:
        """The peer has sent all of its messages."""
        raise NotImplementedError

    def _too_large(self, call: Call, size: int) -> None:
        """A message is beyond the limit."""
        raise NotImplementedError

    def _refuse(self, call: Call, status: Status) -> None:
        """The peer's messages are no gRPC."""
        raise NotImplementedError


# Heads of requests and answers, as the cache of blocks keeps them

_NAME_BYTES = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_REQUEST_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_FIELD_OVERHEAD = 32  # RFC 7541, 4.1: what each field counts besides its bytes


@dataclass(frozen=True, slots=True)
class Head:
    """A header list, read once."""

    is_malformed: bool = False  # 8.1.1: the stream is reset
    size: int = 0
    pseudo: tuple[tuple[bytes, bytes], ...] = ()
    metadata: Metadata = ()
    timeout_s: float | None = None
    encoding: bytes = b""
    content_length: int | None = None
    # Server: why this is no call, as an HTTP status or a gRPC status.
    http_refusal: int = 0
    refusal: Status | None = None
    path: str = ""
    # Client: the HTTP status, and how the call ended if these are trailers.
    http_status: int = 0
    is_grpc: bool = False
    status: Status | None = None


def _split(headers: RawHeaders) -> tuple[dict[bytes, bytes], RawHeaders] | None:
    """Return pseudo-fields and fields; None if the list is malformed (8.2, 8.3)."""
    pseudo: dict[bytes, bytes] = {}
    for name, value in headers:
        if not name.startswith(b":"):
            break
        if name in pseudo:
            return None
        pseudo[name] = value
    fields = headers[len(pseudo) :]
    for name, value in fields:
        if not name or not _NAME_BYTES.issuperset(name) or name in CONNECTION_FIELDS:
            return None
        if name == b"te" and value != b"trailers":
            return None
    for _, value in headers:
        if b"\0" in value or b"\r" in value or b"\n" in value or value.strip(b" \t") != value:
            return None
    return pseudo, fields


def _content_length(fields: RawHeaders) -> tuple[bool, int | None]:
    """Return whether it is sound, and what it says."""
    values = {value for name, value in fields if name == b"content-length"}
    if not values:
        return True, None
    value = values.pop()
    is_sound = not values and value.isdigit() and len(value) < 16
    return is_sound, int(value) if is_sound else None


_MALFORMED = Head(is_malformed=True)


def parse_request(headers: RawHeaders) -> Head:
    """Return the head of a request, or of its trailers, which have no pseudo-fields."""
    split = _split(headers)
    if split is None:
        return _MALFORMED
    pseudo, field_list = split
    size = sum(len(name) + len(value) + _FIELD_OVERHEAD for name, value in headers)
    if not pseudo:
        return Head(size=size)
    if not pseudo.keys() <= _REQUEST_PSEUDO or not pseudo.get(b":path"):
        return _MALFORMED
    if b":method" not in pseudo or b":scheme" not in pseudo:
        return _MALFORMED
    fields = dict(field_list)
    is_sound, length = _content_length(field_list)
    if not is_sound:
        return _MALFORMED
    known: dict[str, Any] = {
        "size": size, "pseudo": tuple(pseudo.items()), "content_length": length,
        "path": pseudo[b":path"].decode("latin-1"),
    }  # fmt: skip
    if pseudo[b":method"] != b"POST":
        return Head(**known, http_refusal=405)
    if not _is_grpc(fields.get(b"content-type", b"")):
        return Head(**known, http_refusal=415)
    timeout_s, encoding = None, fields.get(b"grpc-encoding", b"")
    if b"grpc-timeout" in fields:
        timeout_s = decode_timeout(fields[b"grpc-timeout"])
        if timeout_s is None:
            return Head(**known, refusal=Status(INVALID_ARGUMENT, "grpc-timeout is malformed"))
    if encoding not in (b"", b"identity", b"gzip"):
        text = f"grpc-encoding {shown(encoding.decode('latin-1'))} is not known here; gzip is"
        return Head(**known, refusal=Status(UNIMPLEMENTED, text))
    try:
        metadata = decode_metadata(each for each in field_list if each[0] not in TRANSPORT_FIELDS)
    except ValueError:
        return Head(**known, refusal=Status(INVALID_ARGUMENT, "binary metadata is no base64"))
    encoding = b"" if encoding == b"identity" else encoding
    return Head(**known, timeout_s=timeout_s, encoding=encoding, metadata=metadata)


def _is_grpc(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind in (b"application/grpc", b"application/grpc+proto")


def parse_answer(headers: RawHeaders) -> Head:
    """Return the head of an answer, or its trailers, or both in one."""
    split = _split(headers)
    if split is None:
        return _MALFORMED
    pseudo, field_list = split
    http_status = 0
    if pseudo:
        text = pseudo.get(b":status", b"")
        if len(pseudo) > 1 or len(text) != 3 or not text.isdigit():
            return _MALFORMED
        http_status = int(text)
    fields = dict(field_list)
    is_sound, length = _content_length(field_list)
    if not is_sound:
        return _MALFORMED
    try:
        metadata = decode_metadata(each for each in field_list if each[0] not in TRANSPORT_FIELDS)
    except ValueError:
        metadata = ()
    return Head(
        size=sum(len(name) + len(value) + _FIELD_OVERHEAD for name, value in headers),
        metadata=metadata,
        encoding=b"" if (found := fields.get(b"grpc-encoding", b"")) == b"identity" else found,
        content_length=length,
        http_status=http_status,
        is_grpc=_is_grpc(fields.get(b"content-type", b"")),
        status=_parse_status(fields, metadata),
    )


def _parse_status(fields: dict[bytes, bytes], metadata: Metadata) -> Status | None:
    text = fields.get(b"grpc-status")
    if text is None:
        return None
    code = int(text) if text.isdigit() and len(text) < 4 else UNKNOWN
    code = code if code <= UNAUTHENTICATED else UNKNOWN
    if code == 0 and len(metadata) == 0:
        return OK
    details = None
    for key, value in metadata:
        if key == DETAILS_KEY and isinstance(value, bytes):
            details = value
    rest = tuple(each for each in metadata if each[0] != DETAILS_KEY)
    return Status(code, decode_message(fields.get(b"grpc-message", b"")), details, rest)


# The server


_ACCEPTED = (b"grpc-accept-encoding", b"identity,gzip")
_ANSWER_FIELDS = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_ANSWER_BLOCK = encode_headers([*_ANSWER_FIELDS, _ACCEPTED])
_OK_BLOCK = encode_headers([(b"grpc-status", b"0")])


def _status_fields(status: Status) -> list[tuple[bytes, bytes]]:
    fields = [(b"grpc-status", b"%d" % status.code)]
    if status.message:
        fields.append((b"grpc-message", encode_message(status.message)))
    metadata = status.metadata
    fields += encode_metadata(metadata)
    if status.details is not None:
        # Our own key begins like gRPC's reserved ones, which metadata may not have.
        name = "details-bin"
        ((_, value),) = encode_metadata(((name, status.details),))
        fields.append((DETAILS_KEY.encode(), value))
    return fields


class ServerConnection(GrpcConnection):
    """A connection of a client, seen by its server."""

    is_server = True

    def __init__(self, limits: WireLimits) -> None:
        longest = limits.header_bytes_max * HEADER_LIST_FACTOR
        super().__init__(limits, HeaderDecoder(parse_request, longest))

    @property
    def is_draining(self) -> bool:
        """Whether no new call is taken."""
        return self._goaway_id is not None

    def respond(self, call: Call, message: bytes) -> None:
        """Answer a unary call."""
        if call.is_over:
            return
        self._start(call, _ANSWER_BLOCK)
        self._write_message(call, message)
        self._end(call, _OK_BLOCK)

    def start(self, call: Call, metadata: Metadata = ()) -> None:
        """Send the headers of an answer before its first message."""
        if call.is_over:
            return
        block = _ANSWER_BLOCK
        if metadata:
            block = encode_headers([*_ANSWER_FIELDS, _ACCEPTED, *encode_metadata(metadata)])
        self._start(call, block)

    def send(self, call: Call, message: bytes) -> None:
        """Send a message of a stream; it waits where ``call.unsent_bytes`` is above 0."""
        if not call.is_over:
            self._start(call, _ANSWER_BLOCK)
            self._write_message(call, message)

    def finish(self, call: Call, status: Status = OK) -> None:
        """End a call."""
        if call.is_over:
            return
        fields = _status_fields(status)
        if not call.has_started:  # "Trailers-Only"
            fields = [*_ANSWER_FIELDS, _ACCEPTED, *fields]
        self._end(call, encode_headers(fields))

    def drain(self) -> None:
        """Take no new calls; those under way continue."""
        if not self.is_draining and not self.is_closed:
            self._say_goaway(self._last_peer_id, ErrorCode.NO_ERROR)

    def _start(self, call: Call, block: bytes) -> None:
        if not call.has_started:
            call.has_started = True
            self._send_headers(call, block)

    def _end(self, call: Call, block: bytes) -> None:
        """Send trailers; the rest of the input is ignored."""
        if not call.is_remote_over:
            self._skip(call)
        self._send_headers(call, block, is_end=True)

    # Hooks

    def _headers_received(self, stream_id: int, head: Head, is_end: bool) -> None:  # noqa: FBT001
        if head.is_malformed or not head.pseudo or (is_end and head.content_length):
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)
        limits = self.limits
        if len(self.streams) >= limits.streams_max or self.unsent_bytes > limits.unsent_bytes_max:
            self._spend_control()
            self._reset_stream(stream_id, ErrorCode.REFUSED_STREAM)
            return
        call = Call(stream_id, self._stream_send_window, head.path, head.metadata)
        call.timeout_s, call.encoding = head.timeout_s, head.encoding
        call.is_remote_over, call.content_left = is_end, head.content_length
        self.streams[stream_id] = call
        call.head_bytes = head.size
        self.head_bytes += head.size
        if head.http_refusal:
            self._spend_control()
            status = b"%d" % head.http_refusal
            fields = [(b":status", status), (b"content-type", b"text/plain")]
            self._end(call, encode_headers(fields))
        elif head.size > limits.header_bytes_max:
            self._spend_control(head.size // HEADER_BYTES_PER_FRAME)  # the limit was announced
            text = f"headers of {head.size} bytes, limit {limits.header_bytes_max}"
            self.finish(call, Status(RESOURCE_EXHAUSTED, text))
        elif head.refusal is not None:
            self.finish(call, head.refusal)
        else:
            call.is_announced = True
            self._events.append(CallStarted(call))
            if is_end:
                self._events.append(RequestEnded(call))

    def _more_headers_received(self, call: Call, head: Head, is_end: bool) -> None:  # noqa: FBT001
        if head.is_malformed or head.pseudo or not is_end:
            raise StreamFault(call.stream_id, ErrorCode.PROTOCOL_ERROR)  # 8.1: trailers end it
        if not call.skips:
            self._input_ended(call)

    def _request_ended(self, call: Call) -> None:
        self._events.append(RequestEnded(call))

    def _too_large(self, call: Call, size: int) -> None:
        self._skip(call)
        self._events.append(MessageTooLarge(call, size))

    def _refuse(self, call: Call, status: Status) -> None:
        self._spend_reset()  # its owner has worked for nothing, as if the client had reset it
        self._skip(call)
        self._cancelled(call)
        self.finish(call, status)

    def _cancelled(self, call: Call) -> None:
        if call.is_announced:
            call.is_announced = False
            self._events.append(CallCancelled(call))

    def _reset_received(self, call: Call, _code: int) -> None:
        self._cancelled(call)

    def _faulted(self, call: Call, _code: int) -> None:
        self._cancelled(call)

    def _lost(self, call: Call, _text: str) -> None:
        self._cancelled(call)

    def _local_ended(self, call: Call) -> None:
        # A client that still sends is asked to stop (8.1).
        self._drop(call)
        self._reset_stream(call.stream_id, ErrorCode.NO_ERROR)


# The client


class ClientConnection(GrpcConnection):
    """A connection to a server, seen by its client."""

    is_server = False

    def __init__(self, limits: WireLimits, authority: str, scheme: str = "http") -> None:
        longest = limits.header_bytes_max * HEADER_LIST_FACTOR
        self.is_draining = False
        self._next_id = 1
        self._authority = authority.encode()
        self._scheme = scheme.encode()
        self._heads: dict[tuple[str, Metadata], bytes] = {}
        super().__init__(limits, HeaderDecoder(parse_answer, longest))

    @property
    def can_start(self) -> bool:
        """Whether a call can be started on this connection now."""
        return (
            not self.is_draining
            and not self.is_closed
            and len(self.streams) < self.peer_streams_max
        )

    def start(self, path: str, metadata: Metadata = (), timeout_s: float | None = None) -> Call:
        """Begin a call: its headers are in the output."""
        assert self.can_start, "asked before"
        block = self._head(path, metadata)  # raises for what no header can hold
        if timeout_s is not None:
            block += encode_headers([(b"grpc-timeout", encode_timeout(timeout_s))])
        call = Call(self._next_id, self._stream_send_window, path)
        self._next_id += 2
        if self._next_id > STREAM_ID_MAX:
            self.is_draining = True  # numbers are used up (5.1.1)
        self.streams[call.stream_id] = call
        self._send_headers(call, block)
        return call

    def send(self, call: Call, message: bytes, *, is_last: bool = False) -> None:
        """Send a message; it waits where ``call.unsent_bytes`` is above 0."""
        if not call.is_over:
            self._write_message(call, message, is_last=is_last)

    def end(self, call: Call) -> None:
        """Say that no message follows."""
        if not call.is_over:
            self._send_data(call, b"", is_end=True)

    def _head(self, path: str, metadata: Metadata) -> bytes:
        """Return the block of a request but for its timeout; the same few come again and again."""
        key = path, metadata
        block = self._heads.get(key)
        if block is None:
            block = encode_headers(
                [
                    (b":method", b"POST"),
                    (b":scheme", self._scheme),
                    (b":path", path.encode()),
                    (b":authority", self._authority),
                    (b"te", b"trailers"),
                    (b"content-type", b"application/grpc"),
                    (b"grpc-accept-encoding", b"gzip"),
                    *encode_metadata(metadata),
                ]
            )
            if len(self._heads) >= HEADS_KEPT_MAX:
                self._heads.clear()
            self._heads[key] = block
        return block

    # Hooks

    def _is_idle(self, stream_id: int) -> bool:
        return not stream_id & 1 or stream_id >= self._next_id

    def _more_headers_received(self, call: Call, head: Head, is_end: bool) -> None:  # noqa: FBT001
        if head.is_malformed:
            raise StreamFault(call.stream_id, ErrorCode.PROTOCOL_ERROR)
        if not call.has_started:
            self._answer_started(call, head, is_end=is_end)
        elif not is_end or head.http_status:
            raise StreamFault(call.stream_id, ErrorCode.PROTOCOL_ERROR)
        elif not call.skips:
            self._ended(call, head.status or Status(UNKNOWN, "the trailers have no grpc-status"))

    def _answer_started(self, call: Call, head: Head, *, is_end: bool) -> None:
        status = head.http_status
        if not status:
            raise StreamFault(call.stream_id, ErrorCode.PROTOCOL_ERROR)
        if status < 200:
            if is_end:
                raise StreamFault(call.stream_id, ErrorCode.PROTOCOL_ERROR)
            self._spend_control()
            return  # the real one follows
        if is_end and head.content_length:
            raise StreamFault(call.stream_id, ErrorCode.PROTOCOL_ERROR)
        call.has_started = True
        call.content_left = head.content_length
        if head.size > self.limits.header_bytes_max:
            self._refuse(call, Status(RESOURCE_EXHAUSTED, f"headers of {head.size} bytes"))
        elif status != 200 or not head.is_grpc:
            code = UNKNOWN if status == 200 else _CODE_OF_HTTP.get(status, UNKNOWN)
            self._refuse(call, head.status or Status(code, f"an answer of HTTP, status {status}"))
        elif is_end:
            self._ended(call, head.status or Status(UNKNOWN, "the answer has no grpc-status"))
        elif head.encoding not in (b"", b"gzip"):
            self._refuse(call, Status(INTERNAL, "the answer's encoding was not asked for"))
        else:
            call.metadata, call.encoding = head.metadata, head.encoding
            self._events.append(ResponseStarted(call))

    def _ended(self, call: Call, status: Status) -> None:
        """End a call that the server has answered; the rest of its request is not sent."""
        if call.input and not status.code:
            status = Status(INTERNAL, "the last message was cut short")
        self._skip(call)
        self._events.append(CallEnded(call, status))
        if not call.is_local_over:
            self._drop(call)
            self._reset_stream(call.stream_id, ErrorCode.CANCEL)

    def _request_ended(self, call: Call) -> None:
        self._refuse(call, Status(INTERNAL, "the answer ended without trailers"))

    def _too_large(self, call: Call, size: int) -> None:
        limit = self.limits.message_bytes_max
        text = f"received a message of {size} bytes, limit {limit}"
        self._refuse(call, Status(RESOURCE_EXHAUSTED, text))

    def _refuse(self, call: Call, status: Status) -> None:
        self._skip(call)
        self._events.append(CallEnded(call, status))
        has_ended = call.is_remote_over and call.is_local_over
        self._drop(call)
        if not has_ended:
            self._reset_stream(call.stream_id, ErrorCode.CANCEL)

    def _local_ended(self, call: Call) -> None:
        pass  # the answer follows

    def _reset_received(self, call: Call, code: int) -> None:
        if call.skips:
            return  # the answer was there before
        status = Status(
            _CODE_OF_RESET.get(code, INTERNAL),  # type: ignore[call-overload]
            f"the server has reset the stream, code {code}",
            is_unprocessed=code == ErrorCode.REFUSED_STREAM,
        )
        self._events.append(CallEnded(call, status))

    def _faulted(self, call: Call, code: int) -> None:
        if not call.skips:
            text = f"the server broke a rule of HTTP/2, code {code}"
            self._events.append(CallEnded(call, Status(INTERNAL, text)))

    def _lost(self, call: Call, text: str) -> None:
        self._events.append(CallEnded(call, Status(UNAVAILABLE, text)))

    def _goaway_received(self, last_id: int, code: int, text: bytes) -> None:
        super()._goaway_received(last_id, code, text)
        self.is_draining = True
        for call in [each for each in self.streams.values() if each.stream_id > last_id]:
            self._drop(call)
            status = Status(UNAVAILABLE, "the server is going away", is_unprocessed=True)
            self._events.append(CallEnded(call, status))


# Of one connection: methods with their metadata, which is the same for all calls of most clients.
HEADS_KEPT_MAX = 256

__all__ = [
    "OK", "Call", "CallCancelled", "CallEnded", "CallStarted", "CallWritable", "ClientConnection",
    "ConnectionFault", "ErrorCode", "Event", "GoingAway", "GrpcConnection", "MessageReceived",
    "MessageTooLarge", "Metadata", "PingAcknowledged", "RequestEnded", "ResponseStarted",
    "ServerConnection", "Status", "WireLimits",
]  # fmt: skip
