"""What a leader knows about each of its peers, and what a candidate heard from them."""

from collections import deque
from collections.abc import Callable, Collection
from uuid import UUID

from onelog.cluster.raft.messages import Ack


class Peer:
    """Progress of one peer under the present leadership.

    ``match`` is what the peer has durably, by its own word; what pysyncobj is told of it is never
    more than what is durable here as well. ``received`` is what it has written, synced or not.
    ``next`` is what it is sent next; it moves back only on a reset, and each reset begins a new
    round, so that the answers to what was on its way before do not move it back again.
    ``promised_s`` is until when it helps to elect nobody else, by our clock
    (cluster/raft/lease.py).
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
        self.stamp = 0  # the last one that it sent (cluster/raft/staleness.py)
        self.promised_s = float("-inf")
        self.in_flight_bytes = 0
        self._in_flight: deque[tuple[int, int]] = deque()  # number, size

    def sent(self, number: int, size: int) -> None:
        """Count a proposal as on its way."""
        self._in_flight.append((number, size))
        self.in_flight_bytes += size
        self.next = number + 1

    def confirmed(self, match: int) -> None:
        """Take the peer's word that it has everything up to ``match`` durably."""
        self.match = max(self.match, match)
        self.next = max(self.next, self.match + 1)
        while self._in_flight and self._in_flight[0][0] <= self.match:
            self.in_flight_bytes -= self._in_flight.popleft()[1]

    def rewound(self, following: int, round_: int) -> None:
        """Forget what is on its way: it is sent again, from ``following`` on, in a new round."""
        self._in_flight.clear()
        self.in_flight_bytes = 0
        self.next = max(following, self.match + 1)
        self.reset_round = round_


class Ballot:
    """Who said yes to one question; each counts once, however often it answers."""

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
        """Count an answer; tell whether it is a new one to the present question."""
        if term != self.term or member in self.yes:
            return False
        self.yes.add(member)
        return True

    def has_majority(self, others: Collection[UUID]) -> bool:
        """Tell whether those who said yes and the one who asked are a majority of all."""
        return len(self.yes.intersection(others)) + 1 > (len(others) + 1) / 2

    def close(self) -> None:
        """The question is moot."""
        self.term = -1
        self.yes = set()


class Matched:
    """What a follower may acknowledge: how far its leader has vouched for this log, in one term.

    Within a term this only grows: a leader does not take back what it sent, and a late message
    takes nothing back either.
    """

    __slots__ = ("_promise_ms", "_stamp", "number", "round", "term")

    def __init__(self, stamp: Callable[[], int], promise_ms: int) -> None:
        self.term = self.round = self.number = 0
        self._stamp = stamp
        self._promise_ms = promise_ms

    def note(self, term: int, round_: int, number: int) -> int:
        """Take what an append covered; return how far the leader has vouched by now."""
        self.number = max(number, self.number) if term == self.term else number
        self.term, self.round = term, round_
        return self.number

    def ack(self, durable: int) -> Ack:
        """Return what to tell the leader, of whose log this much is durable here."""
        following = min(self.number, durable) + 1
        position = (self.term, self.round, following, True, False, self.number)
        return Ack(*position, self._stamp(), self._promise_ms)
