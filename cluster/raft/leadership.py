"""A leader's view of its peers: what each has, what it is sent next, which rounds it answered.

It begins anew with each leadership: what a peer had under an earlier one may have been cut since.
Invariants:

* A peer is sent each proposal once, in order, unless it asks for an earlier one (a reset). A reset
  begins a new round, and resets that answer an earlier round are ignored: they are about messages
  sent before.
* At most ``window_bytes_max`` are on their way to a peer, and every peer hears something within a
  heartbeat, even one that lacks what the log no longer has.
* A round is a question to all peers whether this member still leads.

pysyncobj is not involved: cluster/raft/member.py passes it what peers have.
"""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar
from uuid import UUID

from onelog.cluster.config import RaftConfig
from onelog.cluster.raft.catch_up import Offered
from onelog.cluster.raft.journal import RaftJournal
from onelog.cluster.raft.messages import Ack, Append, Message
from onelog.cluster.raft.peers import Freshness, Lease, Peer
from onelog.cluster.raft.pysyncobj_seam import Clock
from onelog.ual.errors import CorruptFile

_Number = TypeVar("_Number", int, float)


class Leadership:
    """See the module. Followers keep ``peers`` as well, without using it."""

    def __init__(
        self,
        config: RaftConfig,
        journal: RaftJournal,
        clock: Clock,
        send: Callable[[UUID, Message], None],
    ) -> None:
        self.peers: dict[UUID, Peer] = {}
        self.round = 0
        # Called when a proposal cannot be read; set by the repairer.
        self.on_damage: Callable[[CorruptFile], None] = lambda _error: None
        self.freshness = Freshness(clock, config.heartbeat_s)
        self.lease = Lease(clock, config.heartbeat_s)
        self._voter_ids: Collection[UUID] = ()
        self._config = config
        self._journal = journal
        self._clock = clock
        self._send = send
        # Returns the snapshot to offer to a peer that lacks the window's start; set by the shipper.
        self.offer_to: Callable[[UUID], Offered | None] = lambda _peer_id: None

    def begin(self) -> None:
        """Begin a leadership without any knowledge about peers."""
        following = self._journal.last + 1
        self.peers = {peer_id: Peer(following) for peer_id in self.peers}
        self.freshness.begin_leading()
        self.lease.begin_leading()

    def reconfigure(self, peer_ids: Collection[UUID], voter_ids: Collection[UUID]) -> None:
        """Set the peers and those of them that vote; drop the others."""
        known, following = self.peers, self._journal.last + 1
        self._voter_ids = voter_ids
        self.peers = {each: known.get(each) or Peer(following) for each in peer_ids}

    @property
    def peers_behind(self) -> list[UUID]:
        """The peers that lack what this log no longer has: only a snapshot helps them."""
        start = self._journal.start
        return [each for each, peer in self.peers.items() if peer.next <= start]

    def confirmed_round(self) -> int:
        """Return the newest round that a majority, with this member, has answered."""
        return _reached_by_majority(
            (self.peers[each].round for each in self._voter_ids), self.round
        )

    @property
    def holds_lease(self) -> bool:
        """Whether promises of a majority hold, so that no other member can be elected."""
        promised_s = (self.peers[each].promised_s for each in self._voter_ids)
        return self.lease.holds_until(_reached_by_majority(promised_s, float("inf")))

    def received_by_majority(self) -> int:
        """Return the last proposal that a majority, with this member, has written."""
        last = self._journal.last
        return _reached_by_majority((self.peers[each].received for each in self._voter_ids), last)

    def begin_round(self, commit: int | None) -> None:
        """Begin a round with the next appends; ``commit`` is the commit index, if known."""
        self.round += 1
        self.lease.begin_round(self.round)
        if commit is not None and self.freshness.wants_round:
            stamps = {peer_id: peer.stamp for peer_id, peer in self.peers.items()}
            self.freshness.begin_round(self.round, commit, stamps)
            self.freshness.answered(self.confirmed_round())

    def send_all(self, term: int, commit: int, *, ask: bool = False) -> None:
        """Send every peer what it lacks, within its window; at least a heartbeat when due."""
        for peer_id in self.peers:
            self.send_to(peer_id, term, commit, ask=ask)

    def send_to(self, peer_id: UUID, term: int, commit: int, *, ask: bool = False) -> None:
        """Send one peer what it lacks; ``ask``: at least a heartbeat, even if none is due."""
        journal, peer, now_s = self._journal, self.peers[peer_id], self._clock.now_s()
        due = ask or now_s - peer.spoken_s >= self._config.heartbeat_s * 0.9
        while True:
            previous = peer.next - 1
            groups: tuple[bytes, ...] = ()
            if previous < journal.start:
                offered = self.offer_to(peer_id) if due else None
                if offered is not None:
                    self._send(peer_id, offered.message(term, self.round, commit))
                    peer.spoken_s = now_s
                    return
                previous = journal.last  # a heartbeat; the peer answers that it lacks this
            else:
                groups = self._take(peer)
            if not groups and not due:
                return
            try:
                previous_term = journal.find_term(previous)
            except CorruptFile as error:  # send a plain heartbeat instead
                self.on_damage(error)
                previous, groups = journal.last, ()
                previous_term = journal.last_term
            echo = self.freshness.echo_to(peer_id)
            position = (term, self.round, previous, previous_term, groups, commit)
            self._send(peer_id, Append(*position, echo, journal.now_ns()))
            peer.spoken_s, due = now_s, False

    def _take(self, peer: Peer) -> tuple[bytes, ...]:
        """Return the groups of the next frame and count them as sent."""
        journal, config = self._journal, self._config
        groups: list[bytes] = []
        size = 0
        while (
            peer.next <= journal.last
            and size < config.frame_bytes_max
            and peer.in_flight_bytes < config.window_bytes_max
        ):
            try:
                group = journal.log.proposals.data(peer.next)
            except CorruptFile as error:  # damaged here; other replicas may have it
                self.on_damage(error)
                break
            peer.sent(peer.next, len(group))
            groups.append(group)
            size += len(group)
        return tuple(groups)

    def is_ours(self, ack: Ack, term: int | None) -> bool:
        """Return whether an ack belongs to the leadership of ``term`` and to something it sent."""
        exists = not ack.success or max(ack.next - 1, ack.received) <= self._journal.last
        return term is None or (ack.term == term and exists)

    def on_ack(self, peer: Peer, ack: Ack) -> None:
        """Take an answer that belongs to this leadership."""
        peer.round = max(peer.round, ack.round)
        peer.stamp = ack.stamp or peer.stamp
        if ack.promise_ms:
            until_s = self.lease.until_s(ack.round, ack.promise_ms)
            peer.promised_s = max(peer.promised_s, until_s)
        if self.freshness.is_asking:
            self.freshness.answered(self.confirmed_round())
        if ack.success:
            peer.confirmed(ack.next - 1)
            peer.received = max(peer.received, peer.match, ack.received)
        elif ack.reset and ack.round >= peer.reset_round:
            self.round += 1
            peer.rewound(min(ack.next, self._journal.last + 1), self.round)


def _reached_by_majority(theirs: Iterable[_Number], own: _Number) -> _Number:
    """Return the highest value reached by a majority, counting this member."""
    numbers = sorted(theirs, reverse=True)
    return numbers[(len(numbers) + 1) // 2 - 1] if numbers else own
