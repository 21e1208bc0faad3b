"""Three real servers under a load of all models while they are killed, paused and deposed."""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from onelog import AsyncClient
from onelog.errors import DeadlineExceeded, NotLeader, Unavailable
from tests.simulation.linearizability import Operation
from tests.system.leaders import Leader, Leaders, kill_leader, leaders_of
from tests.system.mixed_load import (
    Appender,
    Brief,
    Consumer,
    Gauge,
    Mover,
    Producer,
    Program,
    Registers,
    Watcher,
    told_alike,
)
from tests.system.nodes import ServeProcess, nodes

FAULTS = int(os.environ.get("FAULTS", "6"))
SHARDS = 2
# What every program has to get done between two faults.
STEPS = 8
WAIT_S = 60.0
KINDS = ("kill", "transfer", "pause")


@asynccontextmanager
async def servers(directory: Path) -> AsyncIterator[tuple[list[ServeProcess], Leaders]]:
    with nodes(directory, "n1", "n2", "n3", shards=str(SHARDS)) as made:
        processes = [each.start() for each in made.values()]
        for each in processes:
            await asyncio.to_thread(each.until_ready)
        async with leaders_of(processes) as leaders:
            yield processes, leaders


async def progress(programs: list[Program], tasks: list["asyncio.Task[None]"]) -> None:
    """Wait until every program has got something done."""
    before = [each.done for each in programs]
    async with asyncio.timeout(WAIT_S):
        while any(now.done < then + STEPS for now, then in zip(programs, before, strict=True)):
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)


async def fault(kind: str, client: AsyncClient, leaders: Leaders, shard: int) -> None:
    """Kill the leader of a shard, pause it, or let it hand over: another leads afterwards."""
    if kind == "kill":
        before, after = await kill_leader(leaders, shard)
    elif kind == "pause":
        before = await leaders.of(shard)
        assert before.process.process is not None
        before.process.process.send_signal(signal.SIGSTOP)
        try:
            after = await leaders.of(shard, above_term=before.term, but=before.process)
        finally:
            before.process.process.send_signal(signal.SIGCONT)
    else:
        before, after = await hand_over(client, leaders, shard)
    sys.stdout.write(f"{kind} in shard {shard}: {before} was followed by {after}\n")
    assert before.process is not after.process
    assert before.term < after.term


async def hand_over(client: AsyncClient, leaders: Leaders, shard: int) -> tuple[Leader, Leader]:
    """Move a leadership to whom the leader chooses; return who had it and who has it."""
    async with asyncio.timeout(WAIT_S):
        while True:
            before = await leaders.of(shard)
            try:
                target = await client.admin.transfer_leadership(shard)
            except (DeadlineExceeded, NotLeader, Unavailable):
                continue  # it moved by itself, or the chosen one is not there yet
            after = await leaders.of(shard, above_term=before.term)
            if after.node_id == target != before.node_id:
                return before, after


def test_no_effect_is_lost_doubled_or_told_twice_in_any_model_while_servers_fail(
    tmp_path: Path,
) -> None:
    """A1, B8, C8, D1, E11, F8, G1, G3: what was acknowledged is there, once, and was told once."""
    seed = random.randrange(10**9)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)

    async def test() -> None:
        async with servers(tmp_path) as (processes, leaders):
            endpoints = [each.flags["listen"] for each in processes]
            history: dict[str, list[Operation]] = {}
            acked: Counter[int] = Counter()
            clients = [AsyncClient(endpoints, timeout_s=WAIT_S) for _ in range(4)]
            first = clients[0]
            producer = Producer(clients[1], "producer", chance)
            appenders = [Appender(clients[each], f"appender {each}", chance) for each in (1, 2)]
            gauge = Gauge(clients[2], "gauge", chance)
            brief = Brief(clients[0], "brief", chance)
            programs: list[Program] = [
                *(Registers(each, at, chance, history) for at, each in enumerate(clients)),
                producer,
                *(Consumer(clients[each], each, chance, acked) for each in (2, 3)),
                *appenders,
                gauge,
                brief,
                Mover(first, "mover", chance),
            ]
            watchers = [Watcher(clients[each]) for each in (0, 3)]
            try:
                for watcher in watchers:
                    await watcher.watch.start()
                for each in (producer, appenders[0], programs[-1]):
                    await each.set_up()
                tasks = [asyncio.create_task(each.run()) for each in programs]
                watching = [asyncio.create_task(each.run()) for each in watchers]
                for number in range(FAULTS):
                    await progress(programs, [*tasks, *watching])
                    kind = KINDS[number % len(KINDS)]
                    await fault(kind, first, leaders, number % SHARDS)
                await progress(programs, [*tasks, *watching])
                await settle(programs, tasks, acked, producer)
                for each in programs:
                    await each.check()
                for watcher, task in zip(watchers, watching, strict=True):
                    async with asyncio.timeout(WAIT_S):
                        while missing := (
                            watcher.missing(history, producer.done, appenders, gauge)
                            or watcher.still_there(brief)
                        ):
                            assert not task.done(), (task.exception(), missing)
                            await asyncio.sleep(0.05)
                    task.cancel()
                told_alike(watchers)
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
