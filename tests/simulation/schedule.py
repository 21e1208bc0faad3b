"""Simulated time: events in order of time, and of their making where times are equal."""

import heapq
from collections.abc import Callable


class Schedule:
    """A queue of things to do and the time that passes between them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Do something at a time that has not passed."""
        self._count += 1
        heapq.heappush(self._events, (max(time_s, self.now_s), self._count, act))

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do something later."""
        self.at(self.now_s + delay_s, act)

    def run_until(self, end_s: float) -> None:
        """Run everything that is due by then."""
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
        self.now_s = end_s
