"""One timer for many waiters: each is woken in its time, and nothing stays of those that left."""

import asyncio

from onelog.node.edge.waits import TIMER_RESOLUTION_S, Timeouts, Wake
from tests.node.services.nodes import run

WAIT_S = 0.05
LONG_S = 3_600.0


async def waited_s(wake: Wake, wait_s: float) -> float:
    """Wait for the time to end a wait; return how long that took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert not await wake.wait(wait_s)
    return loop.time() - began_s


def test_each_waits_for_its_own_time_though_they_share_a_timer() -> None:
    async def test() -> None:
        timeouts = Timeouts()
        first = asyncio.ensure_future(waited_s(Wake(timeouts), WAIT_S))
        await asyncio.sleep(WAIT_S / 2)
        others = [
            asyncio.ensure_future(waited_s(Wake(timeouts), wait_s))
            for wait_s in (WAIT_S, 2 * WAIT_S, WAIT_S)
        ]
        async with asyncio.timeout(30):
            spent_s = await asyncio.gather(first, *others)
        least_s = [WAIT_S, WAIT_S, 2 * WAIT_S, WAIT_S]
        for spent, least in zip(spent_s, least_s, strict=True):
            assert spent >= least - 2 * TIMER_RESOLUTION_S
        assert not timeouts._lines

    run(test())


def test_one_that_leaves_does_not_keep_those_behind_it_waiting() -> None:
    async def test() -> None:
        timeouts = Timeouts()
        wakes = [Wake(timeouts) for _ in range(3)]
        waits = [asyncio.ensure_future(wake.wait(WAIT_S)) for wake in wakes]
        await asyncio.sleep(0)
        assert len(timeouts._lines[WAIT_S].due_s) == len(wakes)
        wakes[0].set()
        waits[1].cancel()
        async with asyncio.timeout(30):
            found = await asyncio.gather(*waits, return_exceptions=True)
        assert (found[0], type(found[1]), found[2]) == (True, asyncio.CancelledError, False)
        assert not timeouts._lines

    run(test())


def test_nothing_stays_of_waits_that_ended_before_their_time() -> None:
    """A client that begins and ends watches of a day each must not fill the memory."""

    async def test() -> None:
        timeouts, timers = Timeouts(), list[asyncio.TimerHandle]()
        for number in range(10):
            wakes = [Wake(timeouts) for _ in range(3)]
            waits = [asyncio.ensure_future(wake.wait(LONG_S + number)) for wake in wakes]
            await asyncio.sleep(0)
            timers += [line.timer for line in timeouts._lines.values()]
            for wake in wakes:
                wake.set()
            assert all(await asyncio.gather(*waits))
            assert not timeouts._lines
        assert len(timers) == 10
        assert all(timer.cancelled() for timer in timers)

    run(test())
