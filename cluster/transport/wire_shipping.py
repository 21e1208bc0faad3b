"""The bytes of messages that ship snapshots and ranges; a part of the codec in wire.py.

What comes from a peer is compared with the limits here before it becomes a message. A chunk's data
is framed by hand, as the groups of an append are: generated code would copy it three times.
"""

from onelog.cluster.raft.messages import Chunk, Fetch, Message, Offer, Unavailable
from onelog.v1 import peer_pb2

# A chunk is alone in its frame, and fits one with what stands around it.
CHUNK_SIZE_MAX = 224 << 10
POSITION_MAX = 1 << 56
SHIPPED_SIZE_MAX = 1 << 44
REASON_SIZE_MAX = 256

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
            answer.reason = message.reason[:REASON_SIZE_MAX]
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
        head += _DATA_TAG + _length(len(chunk.data))
    size = len(head) + len(chunk.data)
    return outer.SerializeToString() + _CHUNK_TAG + _length(size) + head, chunk.data


def decode_shipping(outer: peer_pb2.PeerMessage, term: int) -> Message:
    """Return the message in an envelope; raise ``BadShipping`` for what makes no sense."""
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
                reason[:REASON_SIZE_MAX],
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


def _length(number: int) -> bytes:
    """Return a length as protobuf writes it."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
