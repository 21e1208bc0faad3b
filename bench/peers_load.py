"""What all loads of bench/peers.py share: callers that repeat a step, and commands on stdin.

All systems are measured by the same loop, which needs only the standard library, because the other
systems' clients have their own environment. A load gets its settings as JSON in its first argument,
connects, prints a line, and then runs each measurement that a line of JSON on its input asks for,
until the input ends. It is idle between commands: what a row opens is closed before the answer.
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
# How many messages a consumer leases at a time, and how many it may have unsettled.
LEASED = 256
CREDIT = 1024
# How long to wait after filling, while the system is still at work.
SETTLE_S = 1.0

Step = Callable[[int], Awaitable[int]]


@dataclass(frozen=True)
class Ask:
    """A command: a row, the number of callers, and the seconds of warm-up and measurement."""

    row: str
    callers: int
    seconds: float
    warm_up_s: float

    def stock(self, per_s: int) -> int:
        """Return how many messages must be stored before, at this highest rate of consumption."""
        return int(per_s * (self.seconds + self.warm_up_s)) + CREDIT


# Prepares a row outside the measured time, yields the step, and cleans up.
Row = Callable[[Ask], AbstractAsyncContextManager[Step]]


async def measure(step: Step, callers: int, seconds: float) -> dict[str, Any]:
    """Run callers that repeat a step, each at least once; wait for calls in flight at the end."""
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
    # The time of the last answer, not of now: a client may do more before all callers are notified.
    took_s = last_s - begun_s
    ordered = sorted(durations_s)
    return {
        "per_s": round(done / took_s),
        "p50_ms": round(ordered[len(ordered) // 2] * 1e3, 3),
        "p99_ms": round(ordered[len(ordered) * 99 // 100] * 1e3, 3),
        "done": done,
    }


async def fill(step: Step, callers: int, count: int) -> None:
    """Run a step of one operation ``count`` times, and wait until the system has settled."""
    turns = iter(range(count))

    async def call(caller: int) -> None:
        for _ in turns:
            await step(caller)

    async with asyncio.TaskGroup() as group:
        for caller in range(callers):
            group.create_task(call(caller))
    await asyncio.sleep(SETTLE_S)


async def serve(rows: Mapping[str, Row]) -> None:
    """Run the measurements that commands ask for, until the input ends."""
    # As programs with high rates do: exempt everything loaded so far from garbage collection.
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
