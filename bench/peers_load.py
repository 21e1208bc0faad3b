"""What all loads of bench/peers.py share: callers that repeat a step, and commands by lines.

All systems are measured by the same loop, which has nothing but the standard library: the clients
of others are in an environment of their own. A load is started with what it needs to know as JSON
in its first argument, connects, says so by a line, and then measures whatever it is asked for by a
line of JSON until its input ends. Nothing goes on between two commands: what a row has opened is
closed before the answer.
"""

import asyncio
import gc
import json
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

VALUE = bytes(100)
KEYS = 20_000
BATCH = 128
# Consumers take so many at a time, and are sent so many before they have settled some.
LEASED = 256
CREDIT = 1024
# After so much was put in that it is still at work.
SETTLE_S = 1.0

Step = Callable[[int], Awaitable[int]]


@dataclass(frozen=True)
class Ask:
    """A command: a row, so many callers, and for how long before it counts and while it does."""

    row: str
    callers: int
    seconds: float
    warm_up_s: float

    def stock(self, per_s: int) -> int:
        """How many messages have to be there, where nobody takes more than that of them."""
        return int(per_s * (self.seconds + self.warm_up_s)) + CREDIT


# Makes ready, outside of the time that counts, gives the step, and ends what it began.
Row = Callable[[Ask], AbstractAsyncContextManager[Step]]


async def measure(step: Step, callers: int, seconds: float) -> dict[str, Any]:
    """Let callers repeat a step, each at least once; calls under way in the end are waited for."""
    now_s = time.perf_counter
    durations_s = array("d")
    done = 0
    begun_s = last_s = now_s()
    until_s = begun_s + seconds

    async def call(caller: int) -> None:
        nonlocal done, last_s
        ended_s = now_s()
        while True:
            started_s = ended_s
            count = await step(caller)
            ended_s = now_s()
            durations_s.append(ended_s - started_s)
            done += count
            if ended_s >= until_s:
                last_s = max(last_s, ended_s)
                return

    async with asyncio.TaskGroup() as group:
        for caller in range(callers):
            group.create_task(call(caller))
    # Not until now: until all are told that the last one has ended, a client may do some more.
    took_s = last_s - begun_s
    ordered = sorted(durations_s)
    return {
        "per_s": round(done / took_s),
        "p50_ms": round(ordered[len(ordered) // 2] * 1e3, 3),
        "p99_ms": round(ordered[len(ordered) * 99 // 100] * 1e3, 3),
        "done": done,
    }


async def fill(step: Step, callers: int, count: int) -> None:
    """Do a step of one operation so many times, and wait until that is digested."""
    turns = iter(range(count))

    async def call(caller: int) -> None:
        for _ in turns:
            await step(caller)

    async with asyncio.TaskGroup() as group:
        for caller in range(callers):
            group.create_task(call(caller))
    await asyncio.sleep(SETTLE_S)


async def serve(rows: Mapping[str, Row]) -> None:
    """Measure what is asked for, until nobody asks any more."""
    # As programs do that care for rates: what is loaded by now stays, and is not looked at again.
    gc.collect()
    gc.freeze()
    _say({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        ask = Ask(**json.loads(line))
        async with rows[ask.row](ask) as step:
            await measure(step, ask.callers, ask.warm_up_s)
            result = await measure(step, ask.callers, ask.seconds)
        _say(result)


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
