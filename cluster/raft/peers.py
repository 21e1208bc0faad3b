"""What a leader knows about its peers: progress, votes, its lease, and the age of states.

``Peer`` is the progress of one peer, ``Ballot`` counts votes, ``Matched`` is what a follower may
acknowledge.

**Lease.** While a leader holds its lease, no other member can have been elected, so reads need no
round. Each ack of an append carries a *promise*: the voter helps to elect no other member for this
long after it received that append (``PreVote.hears_leader``; its own candidacy counts as help). The
leader does not know when that was, but not before the round of the append began. So it counts from
there, by its own clock, and subtracts what the voter's clock may run faster. While promises of a
majority hold, no other member leads a later term or commits, and what this leader has applied is
everything. It rests on this:

* Clocks are trusted in one respect: of two members' monotonic clocks the faster one gains at most
  ``CLOCK_RATE_DIFFERENCE_MAX`` on the slower one. What they show does not matter. A machine that is
  suspended, and whose clock stands still meanwhile, breaks this.
* A voter that acknowledged anything in this term has not voted in a later one: it would have
  answered ``Stale`` instead. So only its later votes matter, and those it has promised not to give.
* A restarted voter does not know which leader it heard, and helps nobody for as long as if it had
  just heard one, unless it never took part in any term.
* The voters are determined when the lease is checked, not when promises are made: majorities of the
  membership in effect and of any other that a successor could know overlap
  (cluster/raft/membership.py). That needs a leader that has applied an entry of its term
  (``ReadRounds.may_look``).
* A handover is an election in spite of all promises. So the leader gives up its lease before it
  asks the target, until its term ends: the target may get the message late.

The clock is read in the same step as the state: a process that was stopped in between answers with
what was true when it read, and one that was stopped before finds its lease expired.

**Staleness.** How old a replica's state is at most, by its own clock only. A replica is *fresh as
of* a moment t of its own monotonic clock if it has applied everything that was committed anywhere
before t. Its state is then at most ``now - t`` old. The arrival time of a message proves nothing:
it may have been on its way for long. Instead

1. a follower puts a *stamp* into its acks, and remembers when it made it: t;
2. the leader begins a *round* with its next appends, and notes its commit index and the stamps that
   it had by then. A majority that answers this round, in this term, had not elected another leader
   when it answered: so when the round began, after t, no other leader could commit, and the noted
   index was everything. (Without the round, a replaced leader that does not know it would vouch for
   its followers.) A leader that has not applied an entry of its own term does not know what is
   committed, and notes nothing;
3. it echoes the stamps of the newest round that was answered. Once the follower has applied the
   commit index of the append that brought the echo, it is fresh as of t.

The leader itself is fresh as of the beginning of such a round. Freshness stays true under later
leaders, and is lost with the process. Only differences of one clock are used: on a machine whose
monotonic clock is one percent slow, a bound is one percent longer, and a suspended machine, whose
clock stands still, does not notice that it aged. Stamps begin at a random number, so that the echo
of a stamp of an earlier process is not mistaken for one of this process.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple
from uuid import UUID

from onelog.cluster.raft.messages import Ack
from onelog.cluster.raft.pysyncobj_seam import Clock


class Peer:
    """Progress of one peer under the present leadership.

    ``match`` is what the peer has durably, by its acks; pysyncobj gets no more of it than is
    durable here as well. ``received`` is what it has written, synced or not. ``next`` is what it is
    sent next; it moves back only on a reset, and each reset begins a new round, so that the answers
    to what was on its way before do not move it back again. ``promised_s`` is when its promise to
    elect nobody else ends, by our clock.
    """

    __slots__ = (
        "_in_flight", "in_flight_bytes", "match", "next", "promised_s", "received", "reset_round",
        "round", "spoken_s", "stamp",
    )  # fmt: skip

    def __init__(self, following: int) -> None:
        self.match = 0
        self.received = 0
        self.next = following
        self.round = 0  # the newest round that it answered
        self.reset_round = 0
        self.spoken_s = float("-inf")  # when something was last sent
        self.stamp = 0  # the last one that it sent
        self.promised_s = float("-inf")
        self.in_flight_bytes = 0
        self._in_flight: deque[tuple[int, int]] = deque()  # number, size

    def sent(self, number: int, size: int) -> None:
        """Count a proposal as in flight."""
        self._in_flight.append((number, size))
        self.in_flight_bytes += size
        self.next = number + 1

    def confirmed(self, match: int) -> None:
        """Note that the peer has everything up to ``match`` durably."""
        self.match = max(self.match, match)
        self.next = max(self.next, self.match + 1)
        while self._in_flight and self._in_flight[0][0] <= self.match:
            self.in_flight_bytes -= self._in_flight.popleft()[1]

    def rewound(self, following: int, round_: int) -> None:
        """Forget what is in flight: it is sent again, from ``following`` on, in a new round."""
        self._in_flight.clear()
        self.in_flight_bytes = 0
        self.next = max(following, self.match + 1)
        self.reset_round = round_


class Ballot:
    """The members that said yes to one question; each counts once."""

    __slots__ = ("term", "until_s", "yes")

    def __init__(self) -> None:
        self.term = -1
        self.until_s = float("-inf")
        self.yes: set[UUID] = set()

    def open(self, term: int, until_s: float = float("inf")) -> None:
        """Ask about a term; answers count until ``until_s``."""
        self.term = term
        self.until_s = until_s
        self.yes = set()

    def add(self, term: int, member: UUID) -> bool:
        """Count an answer; return whether it is a new one to the present question."""
        if term != self.term or member in self.yes:
            return False
        self.yes.add(member)
        return True

    def has_majority(self, others: Collection[UUID]) -> bool:
        """Return whether the yes votes and the asking member are a majority."""
        return len(self.yes.intersection(others)) + 1 > (len(others) + 1) / 2

    def close(self) -> None:
        """The question is moot."""
        self.term = -1
        self.yes = set()


class Matched:
    """What a follower may acknowledge: how far its leader has vouched for this log, in one term.

    Within a term this only grows: a leader never revokes what it sent, and a late message cannot
    lower it.
    """

    __slots__ = ("_promise_ms", "_stamp", "number", "round", "term")

    def __init__(self, stamp: Callable[[], int], promise_ms: int) -> None:
        self.term = self.round = self.number = 0
        self._stamp = stamp
        self._promise_ms = promise_ms

    def note(self, term: int, round_: int, number: int) -> int:
        """Note what an append covered; return how far the leader has vouched by now."""
        self.number = max(number, self.number) if term == self.term else number
        self.term, self.round = term, round_
        return self.number

    def ack(self, durable: int) -> Ack:
        """Return the ack for the leader, of whose log this much is durable here."""
        following = min(self.number, durable) + 1
        position = (self.term, self.round, following, True, False, self.number)
        return Ack(*position, self._stamp(), self._promise_ms)


# Lease

# The clocks of ordinary machines differ by less than a thousandth.
CLOCK_RATE_DIFFERENCE_MAX = 0.2
# Rounds are noted at least this part of a heartbeat apart, and this many are kept: promises in
# answers to older ones are expired, or nearly.
ROUNDS_PER_HEARTBEAT = 5
ROUNDS_KEPT = 64


class Lease:
    """When a leader's rounds began, and until when promises in answers to them hold."""

    def __init__(self, clock: Clock, heartbeat_s: float) -> None:
        self._clock = clock
        self._period_s = heartbeat_s / ROUNDS_PER_HEARTBEAT
        self._rounds: deque[tuple[int, float]] = deque(maxlen=ROUNDS_KEPT)  # number, began
        self._is_given_up = False

    def begin_leading(self) -> None:
        """Begin a leadership, in which nobody has promised anything yet."""
        self._rounds.clear()
        self._is_given_up = False

    def begin_round(self, number: int) -> None:
        """A round begins: nothing of it has been sent yet."""
        now_s = self._clock.now_s()
        if not self._rounds or now_s - self._rounds[-1][1] >= self._period_s:
            self._rounds.append((number, now_s))

    def until_s(self, number: int, promise_ms: int) -> float:
        """Return when the promise that an answer to this round carried ends."""
        for noted, began_s in reversed(self._rounds):
            if noted <= number:
                return began_s + promise_ms / 1000 / (1 + CLOCK_RATE_DIFFERENCE_MAX)
        return float("-inf")

    def give_up(self) -> None:
        """Hold no lease for the rest of this term."""
        self._is_given_up = True

    def holds_until(self, promised_s: float) -> bool:
        """Return whether promises of a majority that hold until ``promised_s`` are a lease now."""
        return not self._is_given_up and self._clock.now_s() < promised_s


# Staleness

STAMP_START_MAX = 1 << 54
# Stamps and rounds are at least this part of a heartbeat apart, and this many are kept: the echo of
# a stamp that is seconds old is useless.
STAMPS_PER_HEARTBEAT = 5
STAMPS_KEPT = 256
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
        self._known: list[tuple[float, int]] = []  # time, and what must be applied
        self._as_of_s = _LONG_AGO_S
        self._rounds: deque[_Round] = deque()  # of this leadership, not answered yet
        self._round_s = _LONG_AGO_S
        self._echoes: Mapping[UUID, int] = {}

    def age_s(self, applied: int) -> float:
        """Return how old a state that has applied ``applied`` can be; infinite if unknown."""
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

    def travelled_s(self, stamp: int) -> float:
        """Return how long a message with this echo can have travelled; infinite if unknown.

        Its sender had the stamp before it sent it.
        """
        made_s = self._made_s(stamp)
        return float("inf") if made_s is None else self._clock.now_s() - made_s

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
        """Whether the last noted round is old enough for another."""
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
