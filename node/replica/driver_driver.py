"""The shards of one process under an event loop: who ticks them, and what happens when one fails.

Ticks come at most a third of a heartbeat apart and never stop: elections, stepping down and
applying live in them. Whatever raises in a pass, a timer or a thread ends ``run`` with that error,
and with it the process: a replica that is unsure of itself must not go on.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from onelog.cluster.raft.messages import Message
from onelog.cluster.transport.wire_errors import WireError
from onelog.node.replica.driver import ShardDriver
from onelog.node.replica.job_thread import JobThread
from onelog.node.replica.shard import Shard
from onelog.ual.jobs import SealJob

TICKS_PER_HEARTBEAT = 4
# How often somebody looks for segments to seal.
SEAL_PERIOD_S = 1.0


class Driver:
    """Drives the shards of one process."""

    def __init__(self, refuse: Callable[[UUID, WireError], None] | None = None) -> None:
        self._shards: dict[int, ShardDriver] = {}
        self._refuse = refuse or (lambda _sender, _error: None)
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Sealing reads and writes whole files: a sync must not wait behind it.
        self._seals: JobThread[SealJob] = JobThread("seal", self._fail)
        self._stopped = asyncio.Event()
        self.tick_late_s_max = 0.0

    def add(self, number: int, shard: Shard) -> ShardDriver:
        """Take a shard over."""
        assert number not in self._shards, number
        driver = ShardDriver(number, shard, self._fail, self._refuse, self._seals)
        self._shards[number] = driver
        return driver

    def __getitem__(self, number: int) -> ShardDriver:
        return self._shards[number]

    def deliver(self, sender: UUID, messages: list[tuple[int, Message]]) -> None:
        """Take messages of a peer; those of shards that are not here are dropped."""
        shards = self._shards
        for number, message in messages:
            driver = shards.get(number)
            if driver is not None:
                driver.deliver(sender, message)

    async def run(self) -> None:
        """Tick until ``stop``; raises what made a shard fail."""
        ticking = asyncio.ensure_future(self._tick_forever())
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait(
                (ticking, stopped, self._failure), return_when=asyncio.FIRST_COMPLETED
            )
            if self._failure.done():
                self._failure.result()
            if ticking.done():
                ticking.result()
        finally:
            for task in (ticking, stopped):
                task.cancel()
            await asyncio.gather(ticking, stopped, return_exceptions=True)
            if self._failure.done() and not self._failure.cancelled():
                self._failure.exception()  # or asyncio complains that nobody looked at it

    async def stop(self, grace_s: float = 2.0) -> None:
        """Refuse what is new, wait for what is under way, close; ``run`` returns."""
        drivers = list(self._shards.values())
        under_way = [future for driver in drivers for future in driver.refuse_new()]
        if under_way:
            await asyncio.wait(under_way, timeout=grace_s)
        self._stopped.set()
        self._seals.stop()
        for driver in drivers:
            driver.close()

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    async def _tick_forever(self) -> None:
        """Tick every shard at least three times a heartbeat."""
        loop = asyncio.get_running_loop()
        period_s = (
            min(
                (each.shard.member.config.heartbeat_s for each in self._shards.values()),
                default=0.1,
            )
            / TICKS_PER_HEARTBEAT
        )
        due_s = seal_s = loop.time()
        while True:
            now_s = loop.time()
            self.tick_late_s_max = max(self.tick_late_s_max, now_s - due_s)
            for driver in self._shards.values():
                driver.tick()
                driver.expire()
                if now_s >= seal_s:
                    driver.begin_seal()
            if now_s >= seal_s:
                seal_s = now_s + SEAL_PERIOD_S
            due_s = now_s + period_s
            await asyncio.sleep(max(due_s - loop.time(), 0))


def run_until_complete(main: Coroutine[Any, Any, None]) -> None:
    """Run a process's main coroutine, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        factory = asyncio.new_event_loop
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)
