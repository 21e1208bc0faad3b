"""Three real servers under a load of all models while they are killed, paused and deposed."""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from onelog import AsyncClient
from onelog.errors import OnelogError
from tests.simulation.linearizability import Operation
from tests.system.mixed_load import (
    Appender,
    Consumer,
    Gauge,
    Mover,
    Producer,
    Program,
    Registers,
    Watcher,
)
from tests.system.nodes import ServeProcess, nodes

FAULTS = int(os.environ.get("FAULTS", "6"))
SHARDS = 2
# What every program has to get done between two faults.
STEPS = 8
WAIT_S = 60.0
PAUSE_S = 1.5


@asynccontextmanager
async def servers(directory: Path) -> AsyncIterator[list[ServeProcess]]:
    with nodes(directory, "n1", "n2", "n3", shards=str(SHARDS)) as made:
        processes = [each.start() for each in made.values()]
        for each in processes:
            await asyncio.to_thread(each.until_ready)
        yield processes


async def progress(programs: list[Program], tasks: list["asyncio.Task[None]"]) -> None:
    """Wait until every program has got something done."""
    before = [each.done for each in programs]
    async with asyncio.timeout(WAIT_S):
        while any(now.done < then + STEPS for now, then in zip(programs, before, strict=True)):
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)


async def fault(
    kind: str, client: AsyncClient, processes: list[ServeProcess], chance: random.Random
) -> None:
    """Kill a server, pause one, or move a leadership."""
    victim = chance.choice(processes)
    if kind == "kill":
        victim.kill()
        victim.start()
        await asyncio.to_thread(victim.until_ready)
    elif kind == "pause":
        assert victim.process is not None
        victim.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(PAUSE_S)  # this is the fault: longer than an election takes
        finally:
            victim.process.send_signal(signal.SIGCONT)
    else:
        # Moved by somebody else, or not possible just now: another time.
        with suppress(OnelogError):
            await client.admin.transfer_leadership(chance.randrange(SHARDS))


def test_no_effect_is_lost_doubled_or_told_twice_in_any_model_while_servers_fail(
    tmp_path: Path,
) -> None:
    """A1, B8, C8, D1, E11, F8, G1, G3: what was acknowledged is there, once, and was told once."""
    seed = random.randrange(10**9)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)

    async def test() -> None:
        async with servers(tmp_path) as processes:
            endpoints = [each.flags["listen"] for each in processes]
            history: dict[str, list[Operation]] = {}
            acked: Counter[int] = Counter()
            clients = [AsyncClient(endpoints, timeout_s=WAIT_S) for _ in range(4)]
            first = clients[0]
            producer = Producer(clients[1], "producer", chance)
            appenders = [Appender(clients[each], f"appender {each}", chance) for each in (1, 2)]
            gauge = Gauge(clients[2], "gauge", chance)
            programs: list[Program] = [
                *(Registers(each, at, chance, history) for at, each in enumerate(clients)),
                producer,
                *(Consumer(clients[each], each, chance, acked) for each in (2, 3)),
                *appenders,
                gauge,
                Mover(first, "mover", chance),
            ]
            watcher = Watcher(clients[3])
            try:
                await watcher.watch.start()
                for each in (producer, appenders[0], programs[-1]):
                    await each.set_up()
                tasks = [asyncio.create_task(each.run()) for each in programs]
                watching = asyncio.create_task(watcher.run())
                kinds = [("kill", "transfer", "pause")[each % 3] for each in range(FAULTS)]
                for kind in kinds:
                    await progress(programs, [*tasks, watching])
                    await fault(kind, first, processes, chance)
                await progress(programs, [*tasks, watching])
                await settle(programs, tasks, acked, producer)
                for each in programs:
                    await each.check()
                async with asyncio.timeout(WAIT_S):
                    while missing := watcher.missing(history, producer.done, appenders, gauge):
                        assert not watching.done(), (watching.exception(), missing)
                        await asyncio.sleep(0.05)
                watching.cancel()
            finally:
                for client in clients:
                    await client.close()

    asyncio.run(asyncio.wait_for(test(), 5 * WAIT_S + FAULTS * WAIT_S))


async def settle(
    programs: list[Program],
    tasks: list["asyncio.Task[None]"],
    acked: Counter[int],
    producer: Producer,
) -> None:
    """Let the programs end, the consumers last; every message was acknowledged once."""
    consumers = [each for each in programs if isinstance(each, Consumer)]
    for each in programs:
        each.is_stopping = not isinstance(each, Consumer)
    ending = [task for each, task in zip(programs, tasks, strict=True) if each not in consumers]
    await asyncio.gather(*ending)
    async with asyncio.timeout(WAIT_S):
        while len(acked) < producer.done:
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)
    for each in consumers:
        each.is_stopping = True
    await asyncio.gather(*tasks)
    assert acked == Counter(range(producer.done))
    info = await producer.client.queue("jobs").info()
    assert (info.enqueued, info.acked) == (producer.done, producer.done)
