"""The bytes between two processes: messages to frames and back; everything received is checked.

A frame is one ``PeerFrame`` of ``proto/onelog/v1/peer.proto`` and at most ``FRAME_SIZE_MAX`` bytes.
A message that does not fit travels in fragments and is put together again here.

* What comes from a peer is checked in full before it becomes a ``Message``: kinds, shards, ranges,
  sizes, counts, and that the terms of groups never fall. A broken rule is a ``WireError`` with a
  stable ``Reason``; a peer cannot make this module raise anything else.
* Nothing is allocated because a peer announced a size: only bytes that arrived are held, and never
  more than ``MESSAGE_SIZE_MAX`` of an unfinished message.
* Groups of an append and the data of a chunk are large, so they are framed by hand and copied once;
  the generated code copies them three times: 17 against 570 µs for 256 KiB. The bytes are the same.

The log verifies the checksums inside a group when it appends.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onelog.cluster.config import CHUNK_SIZE_MAX
from onelog.cluster.raft.membership import LEARNERS_MAX, VOTERS_MAX
from onelog.cluster.raft.messages import (
    Ack,
    Append,
    Chunk,
    Fetch,
    Message,
    Offer,
    Stale,
    StateReport,
    StateRow,
    TimeoutNow,
    Unavailable,
    Vote,
    VoteRequest,
)
from onelog.ual.directory import PARTITIONS_MAX, SHARDS_MAX
from onelog.ual.entry import GROUP_SIZE_MAX, HEADER_SIZE
from onelog.v1 import peer_pb2


class Reason(StrEnum):
    """Why a peer, or something that it sent, is refused."""

    # The handshake
    CLUSTER_MISMATCH = "CLUSTER_MISMATCH"
    TOPOLOGY_MISMATCH = "TOPOLOGY_MISMATCH"
    PROTOCOL_TOO_OLD = "PROTOCOL_TOO_OLD"
    PROTOCOL_TOO_NEW = "PROTOCOL_TOO_NEW"
    UNKNOWN_NODE = "UNKNOWN_NODE"
    WRONG_TARGET = "WRONG_TARGET"
    WRONG_DIRECTION = "WRONG_DIRECTION"
    STALE_SESSION = "STALE_SESSION"
    HELLO_EXPECTED = "HELLO_EXPECTED"
    HANDSHAKE_TIMEOUT = "HANDSHAKE_TIMEOUT"
    CERTIFICATE_MISMATCH = "CERTIFICATE_MISMATCH"
    # Introductions
    CLUSTER_NAME_MISMATCH = "CLUSTER_NAME_MISMATCH"
    FOUNDERS_MISMATCH = "FOUNDERS_MISMATCH"
    NAME_TAKEN = "NAME_TAKEN"
    NODE_REPLACED = "NODE_REPLACED"
    NOT_FOUNDED = "NOT_FOUNDED"
    NOT_A_PEER_PORT = "NOT_A_PEER_PORT"  # never sent: the other end is not a peer
    # Frames
    UNREADABLE = "UNREADABLE"
    FRAME_TOO_LARGE = "FRAME_TOO_LARGE"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    TOO_MANY_MESSAGES = "TOO_MANY_MESSAGES"
    BAD_FRAGMENT = "BAD_FRAGMENT"
    UNEXPECTED_HELLO = "UNEXPECTED_HELLO"
    # Messages
    UNKNOWN_KIND = "UNKNOWN_KIND"
    UNKNOWN_SHARD = "UNKNOWN_SHARD"
    BAD_NUMBER = "BAD_NUMBER"
    BAD_GROUP = "BAD_GROUP"
    BAD_ID = "BAD_ID"
    BAD_CHUNK = "BAD_CHUNK"
    BAD_STATE_REPORT = "BAD_STATE_REPORT"


class WireError(Exception):
    """What a peer sent is refused; ``reason`` is stable, ``detail`` is for people."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


# Wire shipping

POSITION_MAX = 1 << 56
SHIPPED_SIZE_MAX = 1 << 44
WIRE_SHIPPING_REASON_SIZE_MAX = 256

_DATA_TAG = bytes([peer_pb2.PeerChunk.DESCRIPTOR.fields_by_name["data"].number << 3 | 2])
_CHUNK_TAG = bytes([peer_pb2.PeerMessage.DESCRIPTOR.fields_by_name["chunk"].number << 3 | 2])


class BadShipping(ValueError):
    """A number or size that no sender of ours would send."""


def fill_shipping(outer: peer_pb2.PeerMessage, message: Offer | Fetch | Unavailable) -> None:
    """Put a small message into its envelope."""
    match message:
        case Offer():
            inner = outer.offer
            inner.round, inner.commit = message.round, message.commit
            inner.index, inner.proposal = message.index, message.proposal
            inner.snapshot_term, inner.size = message.snapshot_term, message.size
            inner.state_hash, inner.log_bytes = message.state_hash, message.log_bytes
            inner.SetInParent()
        case Fetch():
            asked = outer.fetch
            asked.is_snapshot = message.is_snapshot
            asked.first_index, asked.last_index = message.first_index, message.last_index
            asked.proposal, asked.offset = message.proposal, message.offset
            asked.length = message.length
            asked.SetInParent()
        case Unavailable():
            answer = outer.unavailable
            answer.is_snapshot = message.is_snapshot
            answer.first_index, answer.last_index = message.first_index, message.last_index
            answer.reason = message.reason[:WIRE_SHIPPING_REASON_SIZE_MAX]
            answer.SetInParent()


def split_chunk(outer: peer_pb2.PeerMessage, chunk: Chunk) -> tuple[bytes, ...]:
    """Return an encoded chunk in parts that are joined once, in the frame."""
    head = peer_pb2.PeerChunk(
        is_snapshot=chunk.is_snapshot,
        first_index=chunk.first_index,
        last_index=chunk.last_index,
        offset=chunk.offset,
        piece_first=chunk.piece_first,
        piece_last=chunk.piece_last,
        size=chunk.size,
        tag=chunk.tag,
    ).SerializeToString()
    if chunk.data:
        head += _DATA_TAG + varint(len(chunk.data))
    size = len(head) + len(chunk.data)
    return outer.SerializeToString() + _CHUNK_TAG + varint(size) + head, chunk.data


def decode_shipping(outer: peer_pb2.PeerMessage, term: int) -> Message:
    """Return the message in an envelope; raise ``BadShipping`` for impossible values."""
    match outer.WhichOneof("kind"):
        case "offer":
            return _offer(outer.offer, term)
        case "fetch":
            return _fetch(outer.fetch, term)
        case "chunk":
            return _chunk(outer.chunk, term)
        case _:
            answer = outer.unavailable
            _check_range(answer.first_index, answer.last_index)
            reason = "".join(each if each.isprintable() else "?" for each in answer.reason)
            return Unavailable(
                term,
                answer.is_snapshot,
                answer.first_index,
                answer.last_index,
                reason[:WIRE_SHIPPING_REASON_SIZE_MAX],
            )


def _offer(inner: peer_pb2.PeerOffer, term: int) -> Offer:
    index, proposal, snapshot_term = inner.index, inner.proposal, inner.snapshot_term
    if not 1 <= proposal <= index <= POSITION_MAX or snapshot_term > term or term < 1:
        raise BadShipping(f"a snapshot at {index}, {proposal} of {snapshot_term}, in {term}")
    if max(inner.round, inner.commit) > POSITION_MAX:
        raise BadShipping(f"an offer of round {inner.round}, commit {inner.commit}")
    if not 1 <= inner.size <= SHIPPED_SIZE_MAX or inner.log_bytes > SHIPPED_SIZE_MAX:
        raise BadShipping(f"a snapshot of {inner.size} bytes, a log of {inner.log_bytes}")
    return Offer(
        term,
        inner.round,
        index,
        proposal,
        snapshot_term,
        inner.size,
        inner.state_hash,
        inner.log_bytes,
        inner.commit,
    )


def _fetch(asked: peer_pb2.PeerFetch, term: int) -> Fetch:
    _check_range(asked.first_index, asked.last_index)
    if not 1 <= asked.proposal <= asked.first_index:
        raise BadShipping(f"proposal {asked.proposal} at index {asked.first_index}")
    if asked.offset > SHIPPED_SIZE_MAX or not 1 <= asked.length <= CHUNK_SIZE_MAX:
        raise BadShipping(f"{asked.length} bytes at {asked.offset}, limit {CHUNK_SIZE_MAX}")
    return Fetch(
        term,
        asked.is_snapshot,
        asked.first_index,
        asked.last_index,
        asked.proposal,
        asked.offset,
        asked.length,
    )


def _chunk(chunk: peer_pb2.PeerChunk, term: int) -> Chunk:
    _check_range(chunk.first_index, chunk.last_index)
    size, offset, data = chunk.size, chunk.offset, chunk.data
    if len(data) > CHUNK_SIZE_MAX or size > SHIPPED_SIZE_MAX or offset + len(data) > size:
        raise BadShipping(f"{len(data)} bytes at {offset} of {size}")
    first, last = chunk.piece_first, chunk.piece_last
    if not 1 <= first <= last + 1 <= POSITION_MAX or bool(data) != bool(size):
        raise BadShipping(f"a piece of {first} to {last} with {len(data)} bytes of {size}")
    return Chunk(
        term,
        chunk.is_snapshot,
        chunk.first_index,
        chunk.last_index,
        offset,
        first,
        last,
        size,
        chunk.tag,
        data,
    )


def _check_range(first_index: int, last_index: int) -> None:
    if not 1 <= first_index <= last_index <= POSITION_MAX:
        raise BadShipping(f"a range of {first_index} to {last_index}")


# Protobuf bytes


def field_tag(message: Any, field: str) -> bytes:
    """Return the byte before a length-delimited field of a generated class."""
    number: int = message.DESCRIPTOR.fields_by_name[field].number
    assert number < 16, "a larger number needs more bytes"
    return bytes([number << 3 | 2])


def varint(number: int) -> bytes:
    """Return a length as protobuf writes it."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


# State rows

ROWS_MAX = VOTERS_MAX + LEARNERS_MAX
OWNERS_MAX = 256
_ID_SIZE = 16


def encode_rows(rows: Iterable[StateRow]) -> list[peer_pb2.PeerStateRow]:
    """Return the generated form of rows."""
    return [
        peer_pb2.PeerStateRow(
            node_id=row.node_id.bytes,
            hashes=[peer_pb2.PeerStateHash(owner=owner, hash=each) for owner, each in row.hashes],
        )
        for row in rows
    ]


def decode_rows(encoded: Iterable[peer_pb2.PeerStateRow], count: int) -> tuple[StateRow, ...]:
    """Return the rows that a peer sent; ``ValueError`` if they break a rule."""
    if not 1 <= count <= ROWS_MAX:
        raise ValueError(f"{count} rows of state hashes, limit {ROWS_MAX}")
    rows = []
    for row in encoded:
        if len(row.node_id) != _ID_SIZE:
            raise ValueError(f"a node id of {len(row.node_id)} bytes")
        if len(row.hashes) > OWNERS_MAX:
            raise ValueError(f"{len(row.hashes)} state hashes, limit {OWNERS_MAX}")
        hashes = tuple((each.owner, each.hash) for each in row.hashes)
        owners = [owner for owner, _ in hashes]
        if owners != sorted(set(owners)) or any(owner >= OWNERS_MAX for owner in owners):
            raise ValueError("owners of state hashes are out of order or range")
        rows.append(StateRow(UUID(bytes=row.node_id), hashes))
    if len({row.node_id for row in rows}) != count:
        raise ValueError("two rows of state hashes of one node")
    return tuple(rows)


# Wire

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1

FRAME_SIZE_MAX = 256 << 10
# A leader fills an append until it has a frame's worth, so the last group may come on top of that.
MESSAGE_SIZE_MAX = GROUP_SIZE_MAX + 2 * FRAME_SIZE_MAX
FRAME_MESSAGES_MAX = 4096
APPEND_GROUPS_MAX = 2 * FRAME_SIZE_MAX // HEADER_SIZE
# Terms, rounds and proposal numbers: a thousand million a second for two years.
NUMBER_MAX = 1 << 56
TIME_NS_MAX = (1 << 63) - 1
PROMISE_MS_MAX = 600_000  # the longest election timeout that can be set
REASON_SIZE_MAX = 64
DETAIL_SIZE_MAX = 512
NAME_SIZE_MAX = 255
ENDPOINT_SIZE_MAX = 512
ENDPOINTS_MAX = 256
_Generated = TypeVar("_Generated")
_TERM_AT = slice(8, 16)  # in the header of a group's first entry


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a process says it is; see ``PeerHello``."""

    protocol_min: int
    protocol_max: int
    cluster_id: UUID
    node_id: UUID
    target_id: UUID
    shards: int
    partitions: int
    incarnation: int
    session: int
    node_name: str = ""
    endpoints: tuple[str, ...] = ()  # where clients call it, by worker


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the other side refuses us; its own text, which is only reported."""

    reason: str
    detail: str


_IN_FRAME_MESSAGE = field_tag(peer_pb2.PeerFrame, "messages")
_IN_FRAME_FRAGMENT = field_tag(peer_pb2.PeerFrame, "fragment")
_IN_MESSAGE_APPEND = field_tag(peer_pb2.PeerMessage, "append")
_IN_APPEND_GROUP = field_tag(peer_pb2.PeerAppend, "groups")
_IN_FRAGMENT_DATA = field_tag(peer_pb2.PeerFragment, "data")
# Around a message in a frame: its tag and at most a four-byte length.
MESSAGE_OVERHEAD = 1 + 4
# Around a fragment's data: tags, lengths and the three numbers.
FRAGMENT_OVERHEAD = 48
# A frame before its messages: the session.
FRAME_OVERHEAD = 16


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded ``PeerMessage`` in pieces that are joined when the frame is."""

    parts: tuple[bytes, ...]
    size: int


def encode_message(shard: int, message: Message) -> Encoded:
    """Return a message as a ``PeerMessage``."""
    outer = peer_pb2.PeerMessage(shard=shard, term=message.term)
    match message:
        case Append(groups=groups) if groups:
            return _encode_append(outer, message)
        case Append():
            outer.append.CopyFrom(_append_head(message))
            outer.append.echo = message.echo
            outer.append.log_time_ns = message.log_time_ns
        case Ack():
            outer.ack.round = message.round
            outer.ack.next = message.next
            outer.ack.success = message.success
            outer.ack.reset = message.reset
            outer.ack.received = message.received
            outer.ack.stamp = message.stamp
            outer.ack.promise_ms = message.promise_ms
            outer.ack.SetInParent()
        case VoteRequest():
            outer.vote_request.last_proposal = message.last_proposal
            outer.vote_request.last_term = message.last_term
            outer.vote_request.pre_vote = message.pre_vote
            outer.vote_request.is_handed = message.is_handed
            outer.vote_request.SetInParent()
        case Vote():
            outer.vote.pre_vote = message.pre_vote
            outer.vote.SetInParent()
        case Stale():
            outer.stale.SetInParent()
        case TimeoutNow():
            outer.timeout_now.hold_ms = message.hold_ms
            outer.timeout_now.SetInParent()
        case Chunk():
            parts = split_chunk(outer, message)
            return Encoded(parts, sum(map(len, parts)))
        case Offer() | Fetch() | Unavailable():
            fill_shipping(outer, message)
        case StateReport():
            outer.state_report.index = message.index
            outer.state_report.rows.extend(encode_rows(message.rows))
    data = outer.SerializeToString()
    return Encoded((data,), len(data))


def _append_head(message: Append) -> peer_pb2.PeerAppend:
    """Return the fields before the groups."""
    return peer_pb2.PeerAppend(
        round=message.round,
        previous=message.previous,
        previous_term=message.previous_term,
        commit=message.commit,
    )


def _encode_append(outer: peer_pb2.PeerMessage, message: Append) -> Encoded:
    """Frame the groups by hand: protobuf fields may be concatenated, each copied once."""
    head = _append_head(message).SerializeToString()
    parts = [b"", head]
    size = len(head)
    for group in message.groups:
        before = _IN_APPEND_GROUP + varint(len(group))
        parts.append(before)
        parts.append(group)
        size += len(before) + len(group)
    tail = peer_pb2.PeerAppend(echo=message.echo, log_time_ns=message.log_time_ns)
    parts.append(tail.SerializeToString())
    size += len(parts[-1])
    parts[0] = outer.SerializeToString() + _IN_MESSAGE_APPEND + varint(size)
    return Encoded(tuple(parts), len(parts[0]) + size)


def encode_frame(session: int, messages: Iterable[Encoded], fragment: bytes = b"") -> bytes:
    """Return a frame of whole messages, and of a fragment that ``encode_fragment`` made."""
    parts = [peer_pb2.PeerFrame(session=session).SerializeToString()]
    for message in messages:
        parts.append(_IN_FRAME_MESSAGE + varint(message.size))
        parts += message.parts
    parts.append(fragment)
    return b"".join(parts)


def encode_fragment(number: int, offset: int, total_size: int, data: memoryview) -> bytes:
    """Return a piece of a message, as a field of a frame."""
    head = peer_pb2.PeerFragment(number=number, offset=offset, total_size=total_size)
    inner = head.SerializeToString() + _IN_FRAGMENT_DATA + varint(len(data))
    return b"".join((_IN_FRAME_FRAGMENT, varint(len(inner) + len(data)), inner, data))


def encode_hello(hello: Hello) -> bytes:
    """Return the first frame of a stream."""
    frame = peer_pb2.PeerFrame(
        session=hello.session,
        hello=peer_pb2.PeerHello(
            protocol_min=hello.protocol_min,
            protocol_max=hello.protocol_max,
            cluster_id=hello.cluster_id.bytes,
            node_id=hello.node_id.bytes,
            target_id=hello.target_id.bytes,
            shards=hello.shards,
            partitions=hello.partitions,
            incarnation=hello.incarnation,
            session=hello.session,
            node_name=hello.node_name,
            api_endpoints=hello.endpoints,
        ),
    )
    return bytes(frame.SerializeToString())


def encode_refusal(session: int, reason: str, detail: str) -> bytes:
    """Return the last frame of a side that refuses the other."""
    refusal = peer_pb2.PeerRefusal(
        reason=reason[:REASON_SIZE_MAX], detail=printable(detail, DETAIL_SIZE_MAX)
    )
    return bytes(peer_pb2.PeerFrame(session=session, refusal=refusal).SerializeToString())


def decode_first(data: bytes) -> Hello | Refused:
    """Decode the first frame of the other side."""
    frame = _parse(data)
    if frame.HasField("refusal"):
        return _refused(frame)
    if not frame.HasField("hello") or frame.messages or frame.HasField("fragment"):
        raise WireError(Reason.HELLO_EXPECTED, "the first frame of a stream is not a hello")
    hello = frame.hello
    if hello.session != frame.session or not 1 <= hello.session <= NUMBER_MAX:
        raise WireError(Reason.BAD_NUMBER, f"session {frame.session} of a hello")
    if not 1 <= hello.protocol_min <= hello.protocol_max:
        raise WireError(
            Reason.BAD_NUMBER, f"protocols {hello.protocol_min} to {hello.protocol_max}"
        )
    if not 1 <= hello.shards <= SHARDS_MAX or not 1 <= hello.partitions <= PARTITIONS_MAX:
        raise WireError(
            Reason.BAD_NUMBER, f"{hello.shards} shards over {hello.partitions} partitions"
        )
    return Hello(
        hello.protocol_min,
        hello.protocol_max,
        _uuid(hello.cluster_id, "cluster_id"),
        _uuid(hello.node_id, "node_id"),
        _uuid(hello.target_id, "target_id"),
        hello.shards,
        hello.partitions,
        hello.incarnation,
        hello.session,
        printable(hello.node_name, NAME_SIZE_MAX),
        checked_endpoints(hello.api_endpoints),
    )


def checked_endpoints(endpoints: Sequence[str]) -> tuple[str, ...]:
    """Return the endpoints that a peer announces for its clients, checked."""
    if len(endpoints) > ENDPOINTS_MAX or any(len(e) > ENDPOINT_SIZE_MAX for e in endpoints):
        raise WireError(Reason.BAD_NUMBER, f"{len(endpoints)} endpoints, or one that is too long")
    return tuple(printable(each, ENDPOINT_SIZE_MAX) for each in endpoints)


class FrameDecoder:
    """Decodes the frames of one stream, in order, after its handshake."""

    def __init__(self, session: int, shards: int) -> None:
        self._session = session
        self._shards = shards
        self._number = 0  # of the message whose fragments arrive
        self._pieces: list[bytes] = []
        self._received_size = 0
        self._total_size = 0
        self.dropped_frames = 0  # of another session

    def decode(self, data: bytes) -> list[tuple[int, Message]] | Refused:
        """Return the messages that a frame completes, with their shards."""
        frame = _parse(data)
        if frame.HasField("refusal"):
            return _refused(frame)
        if frame.HasField("hello"):
            raise WireError(Reason.UNEXPECTED_HELLO, "a second hello in one stream")
        if frame.session != self._session:
            self.dropped_frames += 1
            return []
        count = len(frame.messages)
        if count > FRAME_MESSAGES_MAX:
            raise WireError(
                Reason.TOO_MANY_MESSAGES, f"{count} messages, limit {FRAME_MESSAGES_MAX}"
            )
        messages = [decode_message(each, self._shards) for each in frame.messages]
        if frame.HasField("fragment"):
            whole = self._add_fragment(frame.fragment)
            if whole is not None:
                messages.append(decode_message(whole, self._shards))
        return messages

    def _add_fragment(self, fragment: peer_pb2.PeerFragment) -> peer_pb2.PeerMessage | None:
        size, total_size = len(fragment.data), fragment.total_size
        if not 0 < total_size <= MESSAGE_SIZE_MAX:
            raise WireError(
                Reason.MESSAGE_TOO_LARGE, f"a message of {total_size}, limit {MESSAGE_SIZE_MAX}"
            )
        if fragment.number > self._number and fragment.offset == 0:
            self._number, self._total_size = fragment.number, total_size
            self._pieces, self._received_size = [], 0
        if (
            fragment.number != self._number
            or total_size != self._total_size
            or fragment.offset != self._received_size
            or not 0 < size <= total_size - self._received_size
        ):
            raise WireError(
                Reason.BAD_FRAGMENT,
                f"{size} bytes at {fragment.offset} of {total_size}, message {fragment.number}; "
                f"at {self._received_size} of {self._total_size}, message {self._number}",
            )
        self._pieces.append(fragment.data)
        self._received_size += size
        if self._received_size < total_size:
            return None
        data = b"".join(self._pieces)
        # No further piece of this message fits: it would begin where the message ended.
        self._pieces = []
        return _parsed(peer_pb2.PeerMessage, data)


def decode_message(outer: peer_pb2.PeerMessage, shards: int) -> tuple[int, Message]:
    """Return a message and its shard, after checking everything about them."""
    if outer.shard >= shards:
        raise WireError(Reason.UNKNOWN_SHARD, f"shard {outer.shard}, there are {shards}")
    decode = _DECODERS.get(outer.WhichOneof("kind") or "")
    if decode is None:
        raise WireError(Reason.UNKNOWN_KIND, "a message of a kind that is not known here")
    term = outer.term
    if term > NUMBER_MAX:
        raise WireError(Reason.BAD_NUMBER, f"term {term}")
    try:
        return outer.shard, decode(outer, term)
    except BadShipping as error:
        raise WireError(Reason.BAD_CHUNK, str(error)) from error


def _decode_vote_request(outer: peer_pb2.PeerMessage, term: int) -> Message:
    request = outer.vote_request
    last_proposal, last_term = request.last_proposal, request.last_term
    if last_proposal > NUMBER_MAX or last_term > term or term < 1:
        raise WireError(
            Reason.BAD_NUMBER, f"a candidate of term {term} with {last_proposal} of {last_term}"
        )
    return VoteRequest(term, last_proposal, last_term, request.pre_vote, request.is_handed)


def _decode_append(outer: peer_pb2.PeerMessage, term: int) -> Message:
    append = outer.append
    round_, previous, commit = append.round, append.previous, append.commit
    previous_term = append.previous_term
    echo, log_time_ns = append.echo, append.log_time_ns
    is_absurd = max(round_, previous, commit, echo) > NUMBER_MAX or log_time_ns > TIME_NS_MAX
    if is_absurd or previous_term > term or term < 1:
        raise WireError(
            Reason.BAD_NUMBER,
            f"an append of term {term}, round {round_}, commit {commit}, "
            f"after {previous} of {previous_term}",
        )
    count = len(append.groups)
    if count > APPEND_GROUPS_MAX:
        raise WireError(Reason.BAD_GROUP, f"{count} groups, limit {APPEND_GROUPS_MAX}")
    groups = tuple(append.groups)
    at_least = previous_term
    for group in groups:
        if not HEADER_SIZE <= len(group) <= GROUP_SIZE_MAX:
            raise WireError(Reason.BAD_GROUP, f"a group of {len(group)} bytes")
        group_term = int.from_bytes(group[_TERM_AT], "little")
        if not at_least <= group_term <= term:
            raise WireError(
                Reason.BAD_GROUP, f"a group of term {group_term} after {at_least}, in {term}"
            )
        at_least = group_term
    return Append(term, round_, previous, previous_term, groups, commit, echo, log_time_ns)


def _decode_ack(outer: peer_pb2.PeerMessage, term: int) -> Message:
    ack = outer.ack
    round_, following, success, reset = ack.round, ack.next, ack.success, ack.reset
    promise_ms = ack.promise_ms
    is_absurd = max(round_, ack.received, ack.stamp) > NUMBER_MAX or promise_ms > PROMISE_MS_MAX
    if is_absurd or not 1 <= following <= NUMBER_MAX:
        raise WireError(
            Reason.BAD_NUMBER,
            f"an ack of round {round_}, next {following}, received {ack.received}, "
            f"promise {promise_ms}",
        )
    if success and reset:
        raise WireError(Reason.BAD_NUMBER, "an ack that is a success and a reset")
    return Ack(term, round_, following, success, reset, ack.received, ack.stamp, promise_ms)


def _decode_state_report(outer: peer_pb2.PeerMessage, term: int) -> Message:
    report = outer.state_report
    try:
        rows = decode_rows(report.rows, len(report.rows))
    except ValueError as error:
        raise WireError(Reason.BAD_STATE_REPORT, str(error)) from error
    if not 1 <= report.index <= NUMBER_MAX:
        raise WireError(Reason.BAD_NUMBER, f"a state report of index {report.index}")
    return StateReport(term, report.index, rows)


_DECODERS: dict[str, Callable[[peer_pb2.PeerMessage, int], Message]] = {
    "vote_request": _decode_vote_request,
    "vote": lambda outer, term: Vote(term, outer.vote.pre_vote),
    "append": _decode_append,
    "ack": _decode_ack,
    "stale": lambda _outer, term: Stale(term),
    "timeout_now": lambda outer, term: TimeoutNow(term, outer.timeout_now.hold_ms),
    **dict.fromkeys(("offer", "fetch", "chunk", "unavailable"), decode_shipping),
    "state_report": _decode_state_report,
}


def _parse(data: bytes) -> peer_pb2.PeerFrame:
    if len(data) > FRAME_SIZE_MAX:
        raise WireError(Reason.FRAME_TOO_LARGE, f"{len(data)} bytes, limit {FRAME_SIZE_MAX}")
    return _parsed(peer_pb2.PeerFrame, data)


def _parsed(kind: type[_Generated], data: bytes) -> _Generated:
    message = kind()
    try:
        message.ParseFromString(data)  # type: ignore[attr-defined]
    except DecodeError as error:
        raise WireError(Reason.UNREADABLE, "these bytes are not protobuf") from error
    return message


def _refused(frame: peer_pb2.PeerFrame) -> Refused:
    refusal = frame.refusal
    return Refused(
        printable(refusal.reason, REASON_SIZE_MAX), printable(refusal.detail, DETAIL_SIZE_MAX)
    )


def printable(text: str, size_max: int) -> str:
    """Return a text of a peer, shortened and fit for a log line."""
    return "".join(each if each.isprintable() else "?" for each in text[:size_max])


def _uuid(data: bytes, field: str) -> UUID:
    if len(data) != 16:
        raise WireError(Reason.BAD_ID, f"{field} has {len(data)} bytes")
    return UUID(bytes=data)
