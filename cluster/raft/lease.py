"""A leader's lease: for how long nobody else can have been elected, so that reads need no round.

A *promise* comes with each ack of an append: the voter that sent it helps to elect nobody for so
long, counted from when it heard that append (``PreVote.hears_leader``; its own candidacy counts as
help). The leader does not know when that was, but not before the round of the append was begun. So
it counts from there, by its own clock, and takes off what the voter's clock may run faster. While
promises of a majority hold, nobody else leads a later term, nobody else commits, and what this
leader has applied is all there is.

What it rests on:

* Clocks are trusted in one respect: of two members' monotonic clocks the faster one gains at most
  ``CLOCK_RATE_DIFFERENCE_MAX`` on the slower one. What they show does not matter. A machine that is
  suspended, and whose clock stands still meanwhile, breaks this.
* A voter that acknowledged anything in this term has not voted in a later one: it would have told
  the leader so instead. So only its later votes matter, and for those it made the promise.
* A voter that was started again has forgotten whom it heard, and helps nobody for as long as if it
  had just heard a leader, unless it never took part in any term.
* Who is a voter is asked when the lease is, not when promises are made: of the membership in effect
  and of any other that a successor could know of, majorities meet (cluster/raft/membership.py).
  That needs a leader that has applied an entry of its term (``ReadRounds.may_look``).
* A leadership that is handed over is an election in spite of all promises. So the leader gives its
  lease up before it asks the target, until its term ends: the target may get the message late.

The member's clock is looked at in the same step as the state: a process that was stopped in between
answers with what was true when it looked, and one that was stopped before finds its lease over.
"""

from collections import deque

from onelog.cluster.raft.pysyncobj_seam import Clock

# The clocks of ordinary machines differ by less than a thousandth.
CLOCK_RATE_DIFFERENCE_MAX = 0.2
# Rounds are noted when they are at least this part of a heartbeat apart, and so many are kept: the
# promise in an answer to an older one is over, or nearly.
ROUNDS_PER_HEARTBEAT = 5
ROUNDS_KEPT = 64


class Lease:
    """When a leader's rounds began, and what promises in answers to them are worth."""

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
        """Return until when a promise holds that came with an answer to this round."""
        for noted, began_s in reversed(self._rounds):
            if noted <= number:
                return began_s + promise_ms / 1000 / (1 + CLOCK_RATE_DIFFERENCE_MAX)
        return float("-inf")

    def give_up(self) -> None:
        """Have no lease any more in this term."""
        self._is_given_up = True

    def holds_until(self, promised_s: float) -> bool:
        """Tell whether promises of a majority, which hold until then, are a lease now."""
        return not self._is_given_up and self._clock.now_s() < promised_s
