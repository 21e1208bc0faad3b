"""Three real servers under a load of all models while they are killed, paused and deposed."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from onelog import AsyncClient
from onelog.errors import DeadlineExceeded, NotLeader, Unavailable
from tests.system.leaders import Leader, Leaders, kill_leader, leaders_of
from tests.system.mixed_load import WAIT_S, MixedLoad
from tests.system.nodes import ServeProcess, nodes

FAULTS = int(os.environ.get("FAULTS", "6"))
SHARDS = 2
KINDS = ("kill", "transfer", "pause")


@asynccontextmanager
async def servers(directory: Path) -> AsyncIterator[tuple[list[ServeProcess], Leaders]]:
    with nodes(directory, "n1", "n2", "n3", shards=str(SHARDS)) as made:
        processes = [each.start() for each in made.values()]
        for each in processes:
            await asyncio.to_thread(each.until_ready)
        async with leaders_of(processes) as leaders:
            yield processes, leaders


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
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A1, B8, C8, D1, E11, F8, G1, G3: what was acknowledged is there, once, and was told once."""
    seed = random.randrange(10**9)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)

    async def test() -> None:
        async with servers(tmp_path) as (processes, leaders):
            endpoints = [each.flags["listen"] for each in processes]
            async with MixedLoad(endpoints, chance) as load:
                for number in range(FAULTS):
                    await load.progress()
                    kind = KINDS[number % len(KINDS)]
                    await fault(kind, load.clients[0], leaders, number % SHARDS)
                await load.progress()
                await load.verify()
                record_property("figures", f"{FAULTS} faults, {load.done:,} steps of clients")

    asyncio.run(asyncio.wait_for(test(), 5 * WAIT_S + FAULTS * WAIT_S))
