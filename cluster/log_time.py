"""Log time: the clock that leases, delays and expiries follow.

A leader stamps each group with it. Invariants:

* It never runs backwards along the log, whichever member leads and whatever the wall clocks say.
* While a member leads, it runs by that member's monotonic clock, at most 10 % faster or slower to
  come closer to the wall clock. A wall clock that jumps is not followed but reported: following it
  would freeze every lease of the cluster, or let all of them expire at once.
* The same goes for a new leader whose wall clock is seconds away from where the last one's log
  time must be by now: it continues from there. Every append carries the log time, so that members
  know it even if nothing has been written for long. An append may have been on its way for as long
  as a network was cut: what it says is the log time of then, and members know how long ago that is
  at the most.
"""

from collections.abc import Callable
from math import inf

SLEW = 0.1  # at most this much faster or slower than real time
ALARM_NS = 2_000_000_000  # at this distance, the wall clock or log time is wrong: raise an alarm


class LogTime:
    """The log's clock on one member; ``now_ns`` is for one that leads."""

    def __init__(
        self,
        monotonic_ns: Callable[[], int],
        wall_ns: Callable[[], int],
        last_ns: Callable[[], int],
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self._last_ns = last_ns
        self._at_ns = 0  # monotonic time of the last reading, here or of a leader that was heard
        self._now_ns = 0  # log time then; 0: there was none
        self.offset_ns = 0  # wall clock minus log time, at the last reading

    def heard(self, log_time_ns: int, travelled_s: float) -> None:
        """Note the log time in a leader's message, which travelled for at most ``travelled_s``."""
        at_ns = self._monotonic_ns()
        now_ns = max(log_time_ns, self._now_ns and self._now_ns + at_ns - self._at_ns)
        if travelled_s < inf:  # or a leader that slows down would not be followed
            now_ns = min(now_ns, log_time_ns + int(travelled_s * 1e9))
        if now_ns > self._now_ns:
            self._at_ns, self._now_ns = at_ns, now_ns
        if travelled_s * 1e9 < ALARM_NS:  # else it may be log time that is wrong here
            self.offset_ns = self._wall_ns() - now_ns

    def start(self) -> None:
        """Begin a leadership: at the wall clock, unless that is far from the last leader's.

        Never before the last entry. A replica that has neither led nor heard a leader since it was
        started knows no better than its wall clock.
        """
        at_ns, wall_ns = self._monotonic_ns(), self._wall_ns()
        start_ns = wall_ns
        if self._now_ns:
            expected_ns = self._now_ns + at_ns - self._at_ns
            if abs(wall_ns - expected_ns) > ALARM_NS:
                start_ns = expected_ns
        self._at_ns, self._now_ns = at_ns, max(self._last_ns(), start_ns)
        self.offset_ns = wall_ns - self._now_ns

    def now_ns(self) -> int:
        """Return the time for the next group."""
        at_ns = self._monotonic_ns()
        elapsed_ns = max(at_ns - self._at_ns, 0)
        self._at_ns = at_ns
        offset_ns = self._wall_ns() - (self._now_ns + elapsed_ns)
        slew_ns = int(elapsed_ns * SLEW)
        step_ns = elapsed_ns + max(-slew_ns, min(slew_ns, offset_ns))
        self._now_ns = max(self._now_ns + step_ns, self._last_ns())
        self.offset_ns = offset_ns
        return self._now_ns

    def estimate_ns(self) -> int:
        """Return an estimate of the leader's log time; 0 if it was never heard."""
        return self._now_ns and self._now_ns + max(self._monotonic_ns() - self._at_ns, 0)

    @property
    def is_alarming(self) -> bool:
        """Whether log time and wall clock are too far apart to be right."""
        return abs(self.offset_ns) > ALARM_NS
