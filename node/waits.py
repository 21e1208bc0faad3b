"""Waiting for what a shard will apply: what long polls and tails have in common.

A waiter says what it waits for as a condition on the state. All conditions of a shard are looked at
after each group that it applies, in one loop and without a task switch for those that stay false.
They are looked at now and then besides, because not everything that ends a wait is an entry: a
leader is deposed, a state is taken over from a peer, the node stops.

A condition is called outside of Raft's work and may not raise, wait, or take long. Who waits holds
no lock and no lease: a client that hangs up cancels the wait, and nothing stays behind.
"""

import asyncio
from collections.abc import Callable

from node.shard_driver import ShardDriver
from onelog.errors import ResourceExhausted
from projections.result import Result
from ual.entry import Entry

# For each shard; a waiter costs a look at each group that is applied.
WAITERS_MAX = 10_000
RECHECK_S = 0.25

Condition = Callable[[], bool]


class Waits:
    """Who waits in one shard. Everything happens on the loop."""

    def __init__(self, driver: ShardDriver, stopping: asyncio.Event) -> None:
        self._shard = driver.shard
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[asyncio.Future[None], Condition] = {}
        self._is_scheduled = False
        self._recheck: asyncio.TimerHandle | None = None

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
            )
        future: asyncio.Future[None] = self._loop.create_future()
        self._enter(future, condition)
        try:
            async with asyncio.timeout(wait_s):
                await future
        except TimeoutError:
            pass
        finally:
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
        """Look at the conditions: something has changed that they may depend on."""
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
