"""A process with an empty disk joins a cluster that has dropped the beginning of its log."""

import sys
import time
from pathlib import Path
from typing import Any

from tests.system.load import Load
from tests.system.processes import Cluster, Status, cluster, until
from tests.system.test_kills import caught_up, run

# Segments of a few hundred operations, chunks so small that there are many.
SETTINGS: dict[str, Any] = {"segment_bytes": 64 << 10, "shipping": {"chunk_bytes": 16 << 10}}


async def trimmed(nodes: Cluster, load: Load) -> int:
    """Take snapshots until every log begins later; return the lowest first index."""
    for _ in range(3):
        await load.answered(400)
        for node in list(nodes.connections)[:3]:
            await nodes.connections[node].ask("snapshot", timeout_s=10.0)
            await nodes.connections[node].ask("trim")
    return int(min(status["first_index"] for status in (await nodes.statuses()).values()))


async def change(nodes: Cluster, how: str, node: int, **fields: Any) -> None:
    """Change the members through whoever leads, until it has happened."""

    async def ask() -> bool | None:
        leader, _ = await nodes.leader()
        answer = await nodes.connections[leader].ask("change", how=how, node=node, **fields)
        status: Status = await nodes.status(leader)
        members = status["voters"] if how == "promote" else status["learners"]
        return "error" not in answer or node in members or None

    await until(ask)


def test_a_process_with_an_empty_disk_joins_by_snapshot_and_ranges_under_load(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with cluster(tmp_path, settings=SETTINGS) as nodes:
            await nodes.leader()
            async with Load(nodes) as load:
                assert await trimmed(nodes, load) > 1
                _, before = await nodes.leader()
                joiner = nodes.add_process(tmp_path)
                nodes.start(joiner)
                began_s = time.monotonic()
                await change(nodes, "add", joiner, address=nodes.peer_addresses[joiner])

                async def shipped() -> Status | None:
                    status = (await nodes.statuses()).get(joiner)
                    return status if status is not None and status["base"] else None

                status = await until(shipped)
                installed_s = time.monotonic() - began_s
                await until(lambda: caught_up(nodes, joiner))
                caught_up_s = time.monotonic() - began_s
                await change(nodes, "promote", joiner)
                await load.answered(200)
                pause_s = load.longest_pause_after(began_s)
                _, after = await nodes.leader()
            await load.verify()
            nodes.assert_running()
            statuses = await nodes.settled()

        sys.stdout.write(
            f"installed at {status['base']} after {installed_s:.2f} s, caught up after "
            f"{caught_up_s:.2f} s; longest pause of writes {pause_s:.2f} s\n"
        )
        assert statuses[joiner]["voters"] == [1, 2, 3, joiner]
        assert statuses[joiner]["first_index"] > 1
        assert len({each["state_hash"] for each in statuses.values()}) == 1
        assert after["term"] == before["term"], "joining cost the leader its leadership"

    run(test())


def test_a_member_that_was_away_for_too_long_is_shipped_to_and_may_then_lead(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with cluster(tmp_path, settings=SETTINGS) as nodes:
            leader, _ = await nodes.leader()
            away = next(node for node in nodes.processes if node != leader)
            async with Load(nodes) as load:
                await load.answered(50)
                nodes.processes[away].kill()
                for _ in range(3):
                    await load.answered(400)
                    for node in nodes.processes:
                        if node != away:
                            await nodes.connections[node].ask("snapshot", timeout_s=10.0)
                            await nodes.connections[node].ask("trim")
                nodes.start(away)

                async def shipped() -> bool | None:
                    status = (await nodes.statuses()).get(away)
                    return (status is not None and bool(status["base"])) or None

                await until(shipped)
                await until(lambda: caught_up(nodes, away))
                # It counts: without it there is no majority now.
                other = next(node for node in nodes.processes if node not in (leader, away))
                nodes.processes[other].kill()
                await load.answered(100)
                nodes.processes[away].kill()
                nodes.start(away, other)
                await load.answered(100)
            await load.verify()

    run(test())
