"""Whether a failed attempt is worth another one, when, and until when.

Three facts decide: whether the error passes by itself, whether the attempt may have had an effect,
and whether doing it again is harmless (a read, or a write in a session).
"""

import random
from collections.abc import Callable
from enum import Enum

from onelog.errors import (
    DeadlineExceeded,
    NotLeader,
    OnelogError,
    OutcomeUnknown,
    ResourceExhausted,
    SessionExpired,
    Unavailable,
)

# What the transport says when a connection breaks or a server goes away in the middle of a call.
# The database gives reasons of its own, or details; of these nobody knows how far the call got.
_OF_THE_CONNECTION = frozenset(("UNAVAILABLE", "INTERNAL", "CANCELLED", "UNKNOWN"))


class Verdict(Enum):
    """What an error means for the next attempt."""

    FINAL = 0
    AGAIN = 1  # nothing was done
    UNKNOWN = 2  # it may have been done
    REOPEN = 3  # the session is over; this attempt did nothing


def judge(error: OnelogError) -> Verdict:
    """Return what an error means for the next attempt."""
    match error:
        case NotLeader():
            return Verdict.AGAIN
        case SessionExpired():
            return Verdict.REOPEN
        case OutcomeUnknown():
            return Verdict.UNKNOWN
        case DeadlineExceeded(reason="EXPIRED"):
            return Verdict.AGAIN
        case DeadlineExceeded():
            return Verdict.UNKNOWN
        case OnelogError(reason=reason) if reason in _OF_THE_CONNECTION and not error.metadata:
            return Verdict.UNKNOWN
        case Unavailable():
            return Verdict.AGAIN
        case ResourceExhausted() if error.retry_after_s is not None:
            return Verdict.AGAIN
        case ResourceExhausted(reason="SESSION_RESULTS_FULL"):
            # There is room when the answers under way are confirmed.
            return Verdict.AGAIN
        case _:
            return Verdict.FINAL


class Backoff:
    """Waiting times before retries: doubled each time up to a limit, each with jitter."""

    __slots__ = ("_first_s", "_limit_s", "_random", "attempts")

    def __init__(
        self,
        first_s: float,
        limit_s: float,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._random = uniform
        self.attempts = 0

    def next_s(self, error: OnelogError | None = None) -> float:
        """Return how long to wait now; a hint of the server is a lower bound.

        A redirect is followed at once, but only once in a row: two nodes that each take the other
        for the leader must not be asked in a tight loop.
        """
        self.attempts += 1
        if self.attempts == 1 and isinstance(error, NotLeader) and error.leader:
            return 0.0
        ceiling_s = min(self._limit_s, self._first_s * 2.0 ** min(self.attempts - 1, 20))
        wait_s = self._random(ceiling_s / 2, ceiling_s)
        hint_s = error.retry_after_s if error is not None else None
        return wait_s if hint_s is None else max(wait_s, hint_s * self._random(1.0, 1.25))
