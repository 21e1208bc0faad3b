"""Durability, read levels and the comparison of states, with real processes, disks and sockets."""

import asyncio
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.system.load import Load
from tests.system.processes import Cluster, Unreachable, cluster, until

TEST_S_MAX = 60.0
SLOW_MS = 300


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, TEST_S_MAX))


def put(key: str, value: str) -> dict[str, Any]:
    return {"kind": "put", "key": key, "value": value}


async def ask(nodes: Cluster, node: int, op: str, **fields: Any) -> dict[str, Any]:
    return await nodes.connections[node].ask(op, timeout_s=10.0, **fields)


def test_async_writes_do_not_wait_for_slow_disks_and_survive_the_leaders_process(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with cluster(tmp_path) as nodes:
            leader, status = await nodes.leader()
            for node in nodes.processes:
                await ask(nodes, node, "slow", ms=SLOW_MS)
            began_s = time.monotonic()
            await ask(nodes, leader, "propose", commands=[put("k", "sync")])
            sync_s = time.monotonic() - began_s
            latencies_s = []
            for number in range(5):
                began_s = time.monotonic()
                answer = await ask(
                    nodes, leader, "propose", commands=[put("k", str(number))], durability="async"
                )
                latencies_s.append(time.monotonic() - began_s)
                assert "received" in answer, answer
            async_s = sorted(latencies_s)[2]
            sys.stdout.write(f"SYNC {sync_s * 1000:.1f} ms, ASYNC {async_s * 1000:.1f} ms\n")
            assert async_s < SLOW_MS / 1000 < sync_s

            nodes.processes[leader].kill()  # before anything of it was synced, perhaps
            following, _ = await nodes.leader(term_above=status["term"])
            answer = await ask(nodes, following, "read", keys=["k"])
            assert answer["values"] == {"k": "4"}
            refused = await ask(
                nodes, following, "propose", durability="async",
                commands=[{"kind": "increment", "key": "n", "by": 1}],
            )  # fmt: skip
            assert refused["error"] == "ASYNC_NEEDS_RESULT"

    run(test())


def test_followers_answer_stale_reads_within_their_bound_and_refuse_when_they_hear_nobody(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with cluster(tmp_path) as nodes:
            leader, _ = await nodes.leader()
            written = await ask(
                nodes, leader, "propose", commands=[put("k", "1")], durability="async"
            )
            index = written["received"][1]
            for node in nodes.processes:
                stale = partial(ask, nodes, node, "read", keys=["k"], level="stale")
                assert (await stale(min_index=index))["values"] == {"k": "1"}

                async def young(stale: Any = stale) -> bool | None:
                    answer = await stale(max_staleness_s=2.0, min_index=index)
                    return answer.get("values") == {"k": "1"} or None

                await until(young)
            (follower, silent) = (node for node in nodes.processes if node != leader)
            for node in (leader, silent):
                nodes.processes[node].signal(signal.SIGSTOP)

            async def too_old() -> bool | None:
                answer = await ask(
                    nodes, follower, "read", keys=["k"], level="stale", max_staleness_s=1.0
                )
                return answer.get("error") == "STALE_BOUND_EXCEEDED" or None

            await until(too_old)
            answer = await ask(nodes, follower, "read", keys=["k"], level="stale")
            assert answer["values"] == {"k": "1"}
            assert (await nodes.status(follower))["age_s"] > 1.0

    run(test())


def test_a_leader_answers_by_its_lease_and_sees_every_write(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path) as nodes:
            leader, _ = await nodes.leader()
            for at in range(20):
                await ask(nodes, leader, "propose", commands=[put("k", str(at))])
                answer = await ask(nodes, leader, "read", keys=["k"], level="lease")
                assert answer["values"] == {"k": str(at)}
            follower = next(node for node in nodes.processes if node != leader)
            answer = await ask(nodes, follower, "read", keys=["k"], level="lease")
            assert answer["error"] == "NOT_LEADER"

    run(test())


def test_a_process_whose_state_is_wrong_ends_and_says_why(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path) as nodes:
            leader, _ = await nodes.leader()
            follower = next(node for node in nodes.processes if node != leader)
            async with Load(nodes) as load:
                await load.answered(300)

                async def agreed() -> bool | None:
                    status = await nodes.status(leader)
                    assert status["alarms"] == []
                    return status["agreed_index"] > 256 or None

                await until(agreed)
                await ask(nodes, follower, "corrupt")

                async def ended() -> bool | None:
                    try:
                        await nodes.status(follower)
                    except Unreachable:
                        return not nodes.processes[follower].is_running or None
                    return None

                await until(ended)
                await load.answered(100)
            assert "StateDiverged" in nodes.processes[follower].output
            nodes.assert_running(*(node for node in nodes.processes if node != follower))
            leader, status = await nodes.leader()
            assert "STATE_DIVERGED" in [reason for reason, *_ in status["alarms"]]

    run(test())
