"""Waiting for what a shard will apply: what long polls and tails have in common.

A waiter says what it waits for as a condition on the state. All conditions of a shard are checked
after each group that it applies, in one loop and without a task switch for those that stay false.
They are also checked when a damaged segment was repaired, and now and then, because not everything
that ends a wait is an entry: a leader is deposed, a state is taken over from a peer, the node
stops.

A condition is called outside of Raft's work and may not raise, wait, or take long. Who waits holds
no lock and no lease: a client that hangs up cancels the wait, and nothing stays behind.

``Wake`` is a flag for one waiter, and ``Timeouts`` has one timer for many of them. ``own_task`` is
for waits of other kinds: a unary call has no task of its own at first (node/edge/exchange.py), and
``asyncio.timeout`` cannot be used without one.
"""

import asyncio
from collections.abc import Callable
from itertools import takewhile

from onelog.errors import ResourceExhausted
from onelog.node.public_errors import RETRY_BUSY_S
from onelog.node.replica.driver import ShardDriver
from onelog.projections.result import Result
from onelog.ual.entry import Entry

# For each shard; a waiter costs a check of each group that is applied.
WAITERS_MAX = 10_000
RECHECK_S = 0.25
# What a loop's timer may be early: uvloop counts milliseconds.
TIMER_RESOLUTION_S = 0.001

Condition = Callable[[], bool]


class Wake:
    """A flag that one task waits for.

    An ``asyncio.Event`` with a timeout takes 1.5 KB for each task that waits: there are thousands
    of watchers, and each has one of these.
    """

    __slots__ = ("_future", "_is_set", "_timeouts")

    def __init__(self, timeouts: "Timeouts") -> None:
        self._timeouts = timeouts
        self._future: asyncio.Future[None] | None = None
        self._is_set = False

    def set(self) -> None:
        """Wake the task, or keep it from waiting."""
        self._is_set = True
        if self._future is not None:
            _wake(self._future)

    def clear(self) -> None:
        """Reset the flag."""
        self._is_set = False

    async def wait(self, wait_s: float | None = None) -> bool:
        """Wait until it is set; False: it was not in time."""
        if self._is_set:
            return True
        assert self._future is None, "somebody waits already"
        future = self._future = asyncio.get_running_loop().create_future()
        if wait_s is not None:
            self._timeouts.start(future, wait_s)
        try:
            await future
        finally:
            self._future = None
            if wait_s is not None:
                self._timeouts.stop(future, wait_s)
        return self._is_set


class _Line:
    """Futures that wait equally long, with when each has waited enough; so the first is first."""

    __slots__ = ("due_s", "timer")

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.due_s: dict[asyncio.Future[None], float] = {}
        self.timer = timer


class Timeouts:
    """Wakes futures after a time, with one timer of the loop for all that wait equally long.

    A timer takes 0.7 KB, and of thousands of watchers most wait for the same time.
    """

    def __init__(self) -> None:
        self._lines: dict[float, _Line] = {}

    def start(self, future: "asyncio.Future[None]", wait_s: float) -> None:
        """Wake a future in ``wait_s``, unless it is stopped before."""
        loop = future.get_loop()
        line = self._lines.get(wait_s)
        if line is None:
            line = self._lines[wait_s] = _Line(loop.call_later(wait_s, self._ring, loop, wait_s))
        line.due_s[future] = loop.time() + wait_s

    def stop(self, future: "asyncio.Future[None]", wait_s: float) -> None:
        """Forget a future that was started with this time, whether it was woken or not."""
        line = self._lines.get(wait_s)
        if line is not None and line.due_s.pop(future, None) is not None and not line.due_s:
            line.timer.cancel()
            del self._lines[wait_s]

    def _ring(self, loop: asyncio.AbstractEventLoop, wait_s: float) -> None:
        line = self._lines[wait_s]
        until_s = loop.time() + TIMER_RESOLUTION_S
        for future in [*takewhile(lambda each: line.due_s[each] <= until_s, line.due_s)]:
            del line.due_s[future]
            _wake(future)
        if line.due_s:
            first_s = next(iter(line.due_s.values()))
            line.timer = loop.call_at(first_s, self._ring, loop, wait_s)
        else:
            del self._lines[wait_s]


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Waits:
    """The waiters of one shard. Everything happens on the loop."""

    def __init__(self, driver: ShardDriver, stopping: asyncio.Event) -> None:
        self._shard = driver.shard
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[asyncio.Future[None], Condition] = {}
        self._is_scheduled = False
        self._recheck: asyncio.TimerHandle | None = None
        driver.shard.shipping.repair.listeners.append(self.look_soon)

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiters)

    async def until(self, condition: Condition, wait_s: float) -> bool:
        """Wait for the condition; tell whether it held, rather than time or the node ended it."""
        if condition():
            return True
        if wait_s <= 0 or self._stopping.is_set():
            return False
        if len(self._waiters) >= WAITERS_MAX:
            raise ResourceExhausted(
                f"{WAITERS_MAX} calls wait for this shard",
                reason="TOO_MANY_REQUESTS",
                metadata={"limit": str(WAITERS_MAX)},
                retry_after_s=RETRY_BUSY_S,
            )
        future: asyncio.Future[None] = self._loop.create_future()
        self._enter(future, condition)
        timer = self._loop.call_later(wait_s, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            self._leave(future)
        return condition()

    def _enter(self, future: "asyncio.Future[None]", condition: Condition) -> None:
        if not self._waiters:
            self._shard.listeners.append(self._on_applied)
            self._recheck = self._loop.call_later(RECHECK_S, self._look_again)
        self._waiters[future] = condition

    def _leave(self, future: "asyncio.Future[None]") -> None:
        del self._waiters[future]
        if not self._waiters:
            self._shard.listeners.remove(self._on_applied)
            assert self._recheck is not None
            self._recheck.cancel()

    def _on_applied(self, _entries: list[Entry], _results: list[Result]) -> None:
        self.look_soon()

    def look_soon(self) -> None:
        """Check the conditions soon: something that they may depend on has changed."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_scheduled = False
        is_over = self._stopping.is_set()
        for future, condition in self._waiters.items():
            if not future.done() and (is_over or condition()):
                future.set_result(None)

    def _look_again(self) -> None:
        self._look()
        self._recheck = self._loop.call_later(RECHECK_S, self._look_again)
