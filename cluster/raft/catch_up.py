"""Catching up by snapshot: what a leader ships, and how a peer fetches it. No I/O, no clock.

``Shipments`` is the leader's side. A peer that lacks what the leader's log no longer has is offered
a snapshot with every heartbeat and fetches it, and the entries up to it, at its own pace. From its
first fetch on the shipment is *open*: the same snapshot is offered until it is confirmed, and the
log is kept from the index where it began then (``floor``), so that neither what is being fetched
nor what Raft sends next is dropped meanwhile. Invariants:

* A shipment is open for a bounded time only. One that makes no progress for ``give_up_s`` is given
  up, and its pin is released; the peer may begin again. A peer that keeps beginning again does not
  count as making progress (``RESTARTS_MAX``).
* A confirmed peer stays pinned until it has what was committed when it confirmed: under load the
  log could otherwise be trimmed past it again and again.
* Only leaders ship snapshots; all shipments end with the leadership.

``PieceFetch`` is the receiver's side: it fetches one piece, a snapshot or a sealed range, chunk by
chunk. It requests bytes by offset, with a bounded number on the way. A chunk that does not arrive
is requested again, one that arrives twice or unasked is dropped. So loss, repetition, reordering
and a new connection need no handling of their own. If the sender's piece turns out to be another
one than at the start (it was restarted, or its segments have changed), the piece begins again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from onelog.cluster.config import ShippingConfig
from onelog.cluster.raft.messages import Chunk, Fetch, Offer

RESTARTS_MAX = 3


@dataclass(frozen=True, slots=True)
class Offered:
    """A snapshot that a leader offers, and the size of the log up to it."""

    index: int
    proposal: int
    term: int
    size: int
    state_hash: int
    log_bytes: int

    def message(self, term: int, round_: int, commit: int) -> Offer:
        """Return the message that offers it to a peer."""
        return Offer(
            term,
            round_,
            self.index,
            self.proposal,
            self.term,
            self.size,
            self.state_hash,
            self.log_bytes,
            commit,
        )


@dataclass(slots=True)
class Shipment:
    """One peer's progress."""

    offered: Offered
    pin_index: int  # the log is kept from here on
    moved_s: float
    done_bytes: int = 0
    restarts: int = 0
    # What was committed when the peer confirmed the snapshot; None while it is being fetched.
    target: int | None = None
    match: int = 0
    place: tuple[bool, int, int] = (False, 0, -1)

    @property
    def total_bytes(self) -> int:
        """About how much there is to ship."""
        return max(self.offered.size + self.offered.log_bytes, self.done_bytes)


@dataclass(slots=True)
class Shipments:
    """The shipments of a leader, by peer; see the module."""

    config: ShippingConfig
    open: dict[UUID, Shipment] = field(default_factory=dict)
    given_up: int = 0

    def pinned(self, peer_id: UUID) -> Offered | None:
        """Return the snapshot that a peer is fetching."""
        shipment = self.open.get(peer_id)
        return shipment.offered if shipment is not None and shipment.target is None else None

    def begin(self, peer_id: UUID, offered: Offered, pin_index: int, now_s: float) -> None:
        """Note the first fetch of a snapshot that was offered."""
        shipment = self.open.get(peer_id)
        if shipment is None or shipment.offered != offered or shipment.target is not None:
            self.open[peer_id] = Shipment(offered, pin_index, now_s)

    def fetched(self, peer_id: UUID, fetch: Fetch, now_s: float) -> None:
        """Note a fetch; one further on than before is progress."""
        shipment = self.open.get(peer_id)
        if shipment is None:
            return
        # The snapshot first, then the entries in order.
        place = (not fetch.is_snapshot, fetch.first_index, fetch.offset)
        if fetch.is_snapshot and fetch.offset == 0 and shipment.restarts < RESTARTS_MAX:
            shipment.restarts += shipment.place[2] >= 0
            shipment.done_bytes = 0
        elif place <= shipment.place:
            return
        shipment.place, shipment.moved_s = place, now_s
        shipment.done_bytes += fetch.length

    def advance(self, now_s: float, find_match: Callable[[UUID], int], commit: int) -> None:
        """End shipments that are complete, and those without progress."""
        for peer_id, shipment in list(self.open.items()):
            match = find_match(peer_id)
            if match > shipment.match:
                shipment.match, shipment.moved_s = match, now_s
            if shipment.target is None and match >= shipment.offered.proposal:
                shipment.target = commit
                shipment.pin_index = max(shipment.pin_index, shipment.offered.index + 1)
            if shipment.target is not None and match >= shipment.target:
                del self.open[peer_id]
            elif now_s - shipment.moved_s > self.config.give_up_s:
                del self.open[peer_id]
                self.given_up += 1

    def clear(self) -> None:
        """Drop all shipments: this member no longer leads."""
        self.open.clear()

    @property
    def floor(self) -> int | None:
        """The first index that must stay in the log, if any must."""
        return min((each.pin_index for each in self.open.values()), default=None)


# Fetching


@dataclass(frozen=True, slots=True)
class Wanted:
    """The snapshot or range to fetch; see ``Fetch``."""

    is_snapshot: bool
    first_index: int
    last_index: int
    proposal: int


class ChunkOutcome(Enum):
    """The outcome of a received chunk."""

    DROPPED = "dropped"
    KEPT = "kept"
    CHANGED = "changed"  # the sender has another piece now: begin again


class PieceFetch:
    """One piece on its way. ``size`` is known with the first chunk."""

    __slots__ = (
        "_asked", "_config", "_next", "_tag", "last_s", "piece_first", "piece_last",
        "received_bytes", "size", "wanted",
    )  # fmt: skip

    def __init__(self, wanted: Wanted, config: ShippingConfig, now_s: float) -> None:
        self.wanted = wanted
        self.size: int | None = None
        self.piece_first = self.piece_last = 0
        self.received_bytes = 0
        self.last_s = now_s  # when the last chunk came
        self._config = config
        self._tag = 0
        self._next = 0
        self._asked: dict[int, float] = {}

    @property
    def is_complete(self) -> bool:
        """Whether every byte has arrived."""
        return self.size is not None and self.received_bytes == self.size

    def due(self, term: int, now_s: float, held: int) -> list[Fetch]:
        """Return the fetches to send now; ``held``: chunks that arrived and are not written yet."""
        config = self._config
        offsets = [at for at, asked_s in self._asked.items() if now_s - asked_s >= config.retry_s]
        if self.size is None:
            if not self._asked:
                offsets.append(0)
        else:
            while self._next < self.size and len(self._asked) + held < config.window_chunks:
                offsets.append(self._next)
                self._asked[self._next] = now_s
                self._next += config.chunk_bytes
        wanted = self.wanted
        fetches = []
        for offset in offsets:
            self._asked[offset] = now_s
            fetches.append(
                Fetch(
                    term,
                    wanted.is_snapshot,
                    wanted.first_index,
                    wanted.last_index,
                    wanted.proposal,
                    offset,
                    config.chunk_bytes,
                )
            )
        return fetches

    def is_for(self, chunk: Chunk) -> bool:
        """Tell whether a chunk belongs to this piece."""
        wanted = self.wanted
        return (chunk.is_snapshot, chunk.first_index, chunk.last_index) == (
            wanted.is_snapshot,
            wanted.first_index,
            wanted.last_index,
        )

    def take(self, chunk: Chunk, now_s: float) -> ChunkOutcome:
        """Check a received chunk; if it is kept, write its data at its offset in the piece."""
        if not self.is_for(chunk) or chunk.offset not in self._asked:
            return ChunkOutcome.DROPPED
        config = self._config
        if len(chunk.data) != min(config.chunk_bytes, chunk.size - chunk.offset):
            return ChunkOutcome.DROPPED
        facts = (chunk.piece_first, chunk.piece_last, chunk.size, chunk.tag)
        if self.size is None:
            self.piece_first, self.piece_last, self.size, self._tag = facts
            self._next = config.chunk_bytes
        elif facts != (self.piece_first, self.piece_last, self.size, self._tag):
            return ChunkOutcome.CHANGED
        del self._asked[chunk.offset]
        self.received_bytes += len(chunk.data)
        self.last_s = now_s
        return ChunkOutcome.KEPT
