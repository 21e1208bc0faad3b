"""How old a replica's state is at most, by its own clock and nobody else's.

A replica is *fresh as of* a moment t of its own monotonic clock if it has applied everything that
was committed anywhere before t. Its state is then at most ``now - t`` old. Nothing is ever
concluded from when a message arrived: it may have been on its way for long. Instead

1. a follower puts a *stamp* into its acks, and remembers when it made it: t;
2. the leader begins a *round* with its next appends, and notes its commit index and the stamps that
   it had by then. A majority that answers this round, in this term, had not elected anybody else
   when it answered: so when the round began, after t, nobody could commit beside this leader, and
   the noted index was all there was. (Without the round, a leader that was replaced and does not
   know it would vouch for its followers.) A leader that has not applied an entry of its own term
   does not know what is committed, and notes nothing;
3. it echoes the stamps of the newest round that was answered. Once the follower has applied what
   the append that brought the echo says is committed, it is fresh as of t.

The leader itself is fresh as of the beginning of such a round. What a replica was fresh as of stays
true whoever leads later, and is lost with the process.

Only differences of one clock are used, so clocks may say what they like as long as they run: on a
machine whose monotonic clock is one percent slow, a bound is one percent longer, and a suspended
machine, whose clock stands still, does not notice that it aged. Stamps begin at a
random number, so that the echo of a stamp of an earlier process is not taken for one of this.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from onelog.cluster.raft.pysyncobj_seam import Clock

STAMP_START_MAX = 1 << 54
# Stamps and rounds are at least this part of a heartbeat apart, and so many are remembered: the
# echo of an older stamp is worth nothing, seconds after it was made.
STAMPS_PER_HEARTBEAT = 5
STAMPS_KEPT = 256
ROUNDS_KEPT = 64
_LONG_AGO_S = float("-inf")


class _Round(NamedTuple):
    number: int
    began_s: float
    commit: int
    stamps: Mapping[UUID, int]


class Freshness:
    """What one member knows about the age of its state."""

    def __init__(self, clock: Clock, heartbeat_s: float) -> None:
        self._clock = clock
        self._period_s = heartbeat_s / STAMPS_PER_HEARTBEAT
        self._stamp = int(clock.random() * STAMP_START_MAX)
        self._stamps: dict[int, float] = {}  # when each was made, oldest first
        self._stamped_s = _LONG_AGO_S
        self._known: list[tuple[float, int]] = []  # fresh as of this when so much is applied
        self._as_of_s = _LONG_AGO_S
        self._rounds: deque[_Round] = deque()  # of this leadership, not answered yet
        self._round_s = _LONG_AGO_S
        self._echoes: Mapping[UUID, int] = {}

    def age_s(self, applied: int) -> float:
        """Return how old the state is at most, with so much applied; infinite if unknown."""
        left = []
        for as_of_s, commit in self._known:
            if commit <= applied:
                self._as_of_s = max(self._as_of_s, as_of_s)
            else:
                left.append((as_of_s, commit))
        self._known = left
        return self._clock.now_s() - self._as_of_s

    # As a follower

    def stamp(self) -> int:
        """Return the stamp for an ack: a new one, unless the last one is still good enough."""
        now_s = self._clock.now_s()
        if now_s - self._stamped_s >= self._period_s:
            self._stamp += 1
            self._stamped_s = self._stamps[self._stamp] = now_s
            if len(self._stamps) > STAMPS_KEPT:
                del self._stamps[next(iter(self._stamps))]
        return self._stamp

    def echoed(self, stamp: int, commit: int) -> None:
        """A leader, asked after this stamp was made, was sure of ``commit``."""
        made_s = self._made_s(stamp)
        if made_s is not None:
            self._learn(made_s, commit)

    def _made_s(self, stamp: int) -> float | None:
        return self._stamps.get(stamp)

    def _learn(self, as_of_s: float, commit: int) -> None:
        if self._known and self._known[-1] == (as_of_s, commit):
            return
        if len(self._known) >= ROUNDS_KEPT:
            self._known.pop()  # the oldest will be applied first, and then there is room
        self._known.append((as_of_s, commit))

    # As a leader

    def begin_leading(self) -> None:
        """Begin a leadership, in which nobody has answered anything yet."""
        self._rounds.clear()
        self._round_s = _LONG_AGO_S
        self._echoes = {}

    @property
    def wants_round(self) -> bool:
        """Whether the last round that was noted is so old that another is worth its cost."""
        return self._clock.now_s() - self._round_s >= self._period_s

    @property
    def is_asking(self) -> bool:
        """Whether a noted round has no answer yet."""
        return bool(self._rounds)

    def begin_round(self, number: int, commit: int, stamps: Mapping[UUID, int]) -> None:
        """A round begins, with this much committed and these stamps heard."""
        if len(self._rounds) >= ROUNDS_KEPT:
            self._rounds.pop()
        self._round_s = self._clock.now_s()
        self._rounds.append(_Round(number, self._round_s, commit, stamps))

    def answered(self, number: int) -> None:
        """A majority has answered all rounds up to this one."""
        rounds, newest = self._rounds, None
        while rounds and rounds[0].number <= number:
            newest = rounds.popleft()
        if newest is not None:
            self._learn(newest.began_s, newest.commit)
            self._echoes = newest.stamps

    def echo_to(self, peer_id: UUID) -> int:
        """Return what to echo to a peer with the present commit index; 0 for nothing."""
        return self._echoes.get(peer_id, 0)
