"""What a leader ships to peers that lack what its log no longer has: a book without any I/O.

A peer that is behind is told of a snapshot with every heartbeat and fetches it, and the entries up
to it, at its own pace. From its first fetch on the shipment is *open*: the same snapshot is offered
until it is confirmed, and the log is kept from where it began then (``floor``), so that neither
what is being fetched nor what Raft sends next is dropped meanwhile. Invariants:

* A shipment is open for a bounded time only. One that makes no progress for ``give_up_s`` is given
  up, and what it pinned is free; whoever comes back begins again. A peer that begins again does not
  count as making progress for ever (``RESTARTS_MAX``).
* A confirmed peer stays pinned until it has what was committed when it confirmed: under load the
  log could otherwise be trimmed past it again and again.
* Only leaders ship snapshots; with the leadership all shipments end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from onelog.cluster.config import ShippingConfig
from onelog.cluster.raft.messages import Fetch, Offer

RESTARTS_MAX = 3


@dataclass(frozen=True, slots=True)
class Offered:
    """A snapshot and what there is of the log up to it."""

    index: int
    proposal: int
    term: int
    size: int
    state_hash: int
    log_bytes: int

    def message(self, term: int, round_: int, commit: int) -> Offer:
        """Return what a leader tells a peer of it."""
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
    """See the module's text."""

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
        """Note a fetch: of a place further on it is progress."""
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

    def advance(self, now_s: float, match_of: Callable[[UUID], int], commit: int) -> None:
        """End what is complete, and what makes no progress."""
        for peer_id, shipment in list(self.open.items()):
            match = match_of(peer_id)
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
        """Forget everything: somebody else leads."""
        self.open.clear()

    @property
    def floor(self) -> int | None:
        """The first index that must stay in the log, if any must."""
        return min((each.pin_index for each in self.open.values()), default=None)
