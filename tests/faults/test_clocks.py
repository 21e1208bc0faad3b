"""Three real nodes whose wall clocks jump, by libfaketime: log time goes on, and says so.

libfaketime changes what a process reads of the wall clock, and nothing of the monotonic one, like
an operator who sets the clock, or a virtual machine whose host was wrong.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onelog import AsyncClient
from onelog.errors import OnelogError
from tests.system.leaders import Leaders, leaders_of
from tests.system.mixed_load import WAIT_S, MixedLoad
from tests.system.nodes import ServeProcess, nodes

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
pytestmark = pytest.mark.skipif(not LIBRARIES, reason="needs libfaketime")
NAMES = ("a", "b", "c")
FLAGS = {"shards": "1", "balance_leaders": "false"}
# Busy machines: a leader that waits for a core must not be deposed.
PATIENT = {
    "raft_election_s_min": "3",
    "raft_election_s_max": "5",
    "raft_leader_silence_s_max": "10",
}
HOUR_S = 3600
LONG_S = 600.0  # shorter than a jump
POLL_S = 0.05


def set_clock(process: ServeProcess, offset_s: int) -> None:
    """Set how wrong the wall clock of a process is."""
    file = process.directory / "clock"
    new = file.with_suffix(".new")
    new.write_text(f"{offset_s:+d}s\n")
    new.rename(file)


def fake_clock(process: ServeProcess) -> None:
    """Prepare a process, before it starts, for a wall clock that can be set."""
    set_clock(process, 0)
    process.prefix = [
        "env",
        f"LD_PRELOAD={LIBRARIES[0]}",
        f"FAKETIME_TIMESTAMP_FILE={process.directory / 'clock'}",
        "FAKETIME_CACHE_DURATION=1",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
        "DONT_FAKE_MONOTONIC=1",
    ]


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[list[ServeProcess], Leaders]]:
    with nodes(directory, *NAMES, **FLAGS, **PATIENT) as made:
        processes = list(made.values())
        for each in processes:
            fake_clock(each)
            each.start()
        for each in processes:
            await asyncio.to_thread(each.until_ready)
        async with leaders_of(processes) as leaders:
            yield processes, leaders


async def until_alarmed(
    client: AsyncClient, processes: list[ServeProcess], *, of_jumps: bool
) -> None:
    """Wait until these nodes say that their clocks are wrong, or no longer do."""
    async with asyncio.timeout(WAIT_S):
        for each in processes:
            while True:
                try:
                    status = await client.admin.status(endpoint=each.flags["listen"])
                except OnelogError:
                    continue
                if {alarm.reason for alarm in status.alarms} == (
                    {"CLOCK_JUMPED"} if of_jumps else set()
                ):
                    break
                await asyncio.sleep(POLL_S)


@pytest.mark.parametrize(
    ("offset_s", "whose"),
    [(HOUR_S, "the leader's"), (-HOUR_S, "everybody's"), (HOUR_S, "a follower's")],
)
def test_a_clock_that_jumps_an_hour_ends_nothing_early_and_deposes_nobody(
    offset_s: int, whose: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """What lives for ten minutes is still there; what lives for a moment goes; reads are exact."""

    async def test() -> None:
        async with running(tmp_path) as (processes, leaders):
            leader = await leaders.of(0)
            wrong = {
                "everybody's": processes,
                "the leader's": [leader.process],
                "a follower's": [next(each for each in processes if each is not leader.process)],
            }[whose]
            endpoints = [each.flags["listen"] for each in processes]
            async with MixedLoad(endpoints, random.Random()) as load:
                client = load.clients[0]
                await load.progress()
                await client.kv.put("long", "lived", ttl_s=LONG_S)
                for each in wrong:
                    set_clock(each, offset_s)
                await until_alarmed(client, wrong, of_jumps=True)
                await load.progress()
                found = await client.kv.get("long")
                assert found is not None
                for each in wrong:
                    set_clock(each, 0)
                await until_alarmed(client, processes, of_jumps=False)
                await load.progress()
                await load.verify()
                assert await client.kv.get("long") is not None
            assert (await leaders.of(0)).term == leader.term
            record_property("figures", f"{load.done:,} steps of clients")
            for each in processes:
                assert "Traceback" not in each.output

    asyncio.run(asyncio.wait_for(test(), 6 * WAIT_S))
