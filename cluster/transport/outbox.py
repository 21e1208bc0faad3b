"""The messages that wait on one stream, in the order in which they should leave.

Votes, acks and heartbeats go first: an election must not be caused by a large append in front of
a heartbeat. Appends with groups follow in their order, divided where they do not fit a frame. The
bytes of snapshots and segments come last; in a cluster they have a stream of their own.

* Only the newest heartbeat of a shard waits; it replaces the older ones.
* An ack that says that more is written than synced is *early*: the next one follows when the sync
  is done. It leaves with the next message, or is replaced by its successor; only if neither happens
  for ``EARLY_S`` it leaves by itself. Without this a follower sends two frames for a group, and
  frames are most of the cost of small groups.
* A heartbeat that overtakes appends of its shard would ask for a proposal that they still have to
  bring, and the peer would have everything sent again. So it leaves with the position of the first
  append that has not left in full, which its leader also vouched for in this term.
* The bytes and messages that wait are bounded. Appends are dropped when there are too many, with
  all others of the same shard, since none of those would find its predecessor; Raft sends them
  again. Chunks likewise: the peer requests them again. Votes, acks and heartbeats are never
  dropped: if thousands of them wait, the peer is gone, and ``Stuck`` is raised.
"""

from collections import deque
from dataclasses import dataclass, replace

from onelog.cluster.raft.messages import Ack, Append, Chunk, Message
from onelog.cluster.transport.wire import (
    FRAGMENT_OVERHEAD,
    FRAME_MESSAGES_MAX,
    FRAME_OVERHEAD,
    FRAME_SIZE_MAX,
    MESSAGE_OVERHEAD,
    MESSAGE_SIZE_MAX,
    Encoded,
    encode_fragment,
    encode_frame,
    encode_message,
)

_BUDGET = FRAME_SIZE_MAX - FRAME_OVERHEAD
# How long an early ack may wait: about as long as a sync on a fast disk, and far less than any
# timeout.
EARLY_S = 0.004
# A piece of a message smaller than this is not worth its overhead: wait for the next frame.
_PIECE_SIZE_MIN = 4 << 10


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """How much may wait for one peer."""

    # Appends of all shards: a window each, and room for one of the largest groups.
    bulk_bytes_max: int = 64 << 20
    bulk_messages_max: int = 8192
    # Votes and acks. Heartbeats need no limit: there is one for each shard.
    control_messages_max: int = 16_384
    # Chunks of snapshots and segments; a window of theirs for a few shards.
    chunks_max: int = 64

    def __post_init__(self) -> None:
        if self.bulk_bytes_max < MESSAGE_SIZE_MAX:
            raise ValueError("the largest append must fit the queue")
        if min(self.bulk_messages_max, self.control_messages_max, self.chunks_max) < 1:
            raise ValueError("a queue must hold a message")


class Stuck(Exception):
    """A peer is connected but reads nothing: its stream should end."""


@dataclass(slots=True)
class _Bulk:
    shard: int
    append: Append
    size: int
    encoded: Encoded | None = None


class Outbox:
    """The queue of one stream. Not thread-safe: everything happens on the loop."""

    def __init__(self, limits: OutboxLimits | None = None) -> None:
        self._limits = limits or OutboxLimits()
        self._heartbeats: dict[int, Append] = {}
        self._early: dict[int, Ack] = {}
        self._control: deque[tuple[int, Message]] = deque()
        self._bulk: deque[_Bulk] = deque()
        self._chunks: deque[tuple[int, Chunk]] = deque()
        self._bulk_bytes = 0
        self._bulk_terms: dict[int, int] = {}  # of the last append with groups of a shard
        self._fragments = 0  # messages divided so far
        self._dividing: tuple[memoryview, int] | None = None  # the first of bulk, and how far
        self.dropped_messages = 0
        self.sent_messages = 0

    def __len__(self) -> int:
        """Return the number of waiting messages, without early acks."""
        waiting = len(self._heartbeats) + len(self._control) + len(self._bulk)
        return waiting + len(self._chunks)

    @property
    def has_early(self) -> bool:
        """Whether an early ack waits for another message."""
        return bool(self._early)

    def push(self, shard: int, message: Message) -> None:
        """Queue a message; may drop appends, see the module."""
        if isinstance(message, Chunk):
            self._chunks.append((shard, message))
            if len(self._chunks) > self._limits.chunks_max:
                self._chunks.popleft()
                self.dropped_messages += 1
            return
        if not isinstance(message, Append):
            if isinstance(message, Ack) and message.success:
                if message.received >= message.next:
                    self._early[shard] = message
                    return
                self._early.pop(shard, None)
            if len(self._control) >= self._limits.control_messages_max:
                raise Stuck(f"{len(self._control)} votes and acks are waiting")
            self._control.append((shard, message))
            return
        if self._bulk_terms.get(shard, message.term) < message.term:
            self._drop_shard(shard)  # of a leadership that is over
        if not message.groups:
            self._heartbeats[shard] = message
            return
        size = sum(map(len, message.groups))
        limits = self._limits
        while self._bulk and (
            self._bulk_bytes + size > limits.bulk_bytes_max
            or len(self._bulk) >= limits.bulk_messages_max
        ):
            self._drop_shard(self._bulk[0].shard)
        self._bulk.append(_Bulk(shard, message, size))
        self._bulk_terms[shard] = message.term
        self._bulk_bytes += size

    def next_frame(self, session: int, *, with_early: bool = False) -> bytes | None:
        """Return the next frame, if any; early acks alone only ``with_early``."""
        if not self and not (with_early and self._early):
            return None
        chosen: list[Encoded] = []
        used = self._take_control(chosen)
        fragment = b""
        while self._bulk and len(chosen) < FRAME_MESSAGES_MAX:
            if self._dividing is not None:
                fragment = self._next_piece(_BUDGET - used)
                break
            first = self._bulk[0]
            encoded = first.encoded or encode_message(first.shard, first.append)
            first.encoded = encoded
            if used + encoded.size + MESSAGE_OVERHEAD <= _BUDGET:
                chosen.append(encoded)
                used += encoded.size + MESSAGE_OVERHEAD
                self._pop_bulk()
            elif encoded.size + MESSAGE_OVERHEAD > _BUDGET:
                self._dividing = memoryview(b"".join(encoded.parts)), 0
                self._fragments += 1
            else:
                break  # fits the next frame
        if self._chunks and not self._bulk and used < _BUDGET // 8:  # so that any chunk fits
            chosen.append(encode_message(*self._chunks.popleft()))
        self.sent_messages += len(chosen)
        return encode_frame(session, chosen, fragment)

    def _take_control(self, chosen: list[Encoded]) -> int:
        """Choose heartbeats, then votes and acks; return the bytes that they take."""
        used = 0
        while self._heartbeats and len(chosen) < FRAME_MESSAGES_MAX and used < _BUDGET // 2:
            shard = next(iter(self._heartbeats))
            heartbeat = self._heartbeats.pop(shard)
            encoded = encode_message(shard, self._in_place(shard, heartbeat))
            chosen.append(encoded)
            used += encoded.size + MESSAGE_OVERHEAD
        while self._early and len(chosen) < FRAME_MESSAGES_MAX // 2 and used < _BUDGET // 2:
            shard = next(iter(self._early))
            encoded = encode_message(shard, self._early.pop(shard))
            chosen.append(encoded)
            used += encoded.size + MESSAGE_OVERHEAD
        # Half a frame at most, so that appends progress under any load of acks.
        while self._control and len(chosen) < FRAME_MESSAGES_MAX // 2 and used < _BUDGET // 2:
            encoded = encode_message(*self._control.popleft())
            chosen.append(encoded)
            used += encoded.size + MESSAGE_OVERHEAD
        return used

    def _in_place(self, shard: int, heartbeat: Append) -> Append:
        """Return a heartbeat whose position is before the waiting appends of its shard."""
        for bulk in self._bulk:
            if bulk.shard == shard:
                first = bulk.append
                if first.term == heartbeat.term and first.previous < heartbeat.previous:
                    return replace(
                        heartbeat, previous=first.previous, previous_term=first.previous_term
                    )
                break
        return heartbeat

    def _next_piece(self, room: int) -> bytes:
        assert self._dividing is not None
        data, offset = self._dividing
        size = min(len(data) - offset, room - FRAGMENT_OVERHEAD)
        if size < min(_PIECE_SIZE_MIN, len(data) - offset):
            return b""
        piece = encode_fragment(self._fragments, offset, len(data), data[offset : offset + size])
        if offset + size == len(data):
            self._pop_bulk()
            self.sent_messages += 1
        else:
            self._dividing = data, offset + size
        return piece

    def _pop_bulk(self) -> None:
        self._bulk_bytes -= self._bulk.popleft().size
        self._dividing = None

    def _drop_shard(self, shard: int) -> None:
        """Drop the waiting appends of a shard, also one whose first pieces have left."""
        self._bulk_terms.pop(shard, None)
        if self._bulk and self._bulk[0].shard == shard:
            self._dividing = None  # the next number makes the peer drop the pieces
        left = deque(bulk for bulk in self._bulk if bulk.shard != shard)
        self.dropped_messages += len(self._bulk) - len(left)
        self._bulk = left
        self._bulk_bytes = sum(bulk.size for bulk in left)
