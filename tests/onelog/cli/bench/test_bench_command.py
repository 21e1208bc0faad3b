"""``onelog bench``: every workload against a real server, and nothing of it is left."""

import asyncio
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from typing import cast

import pytest

from onelog import AsyncClient, Client
from onelog.cli.bench.workloads import GROWTH, VALUES_MAX, WORKLOADS, Durations, Load, Run
from onelog.errors import Unavailable
from tests.onelog.cli.commands import Cli
from tests.onelog.cli.terminals import ERASE_LINE, HIDE_CURSOR, SHOW_CURSOR, Terminal
from tests.onelog.cli.test_cli_help import ALL
from tests.onelog.client.serving import ROOT

TIMEOUT_S = 120
FEW = ("--callers", 2, "--count", 4)


@pytest.fixture(autouse=True)
def _no_namespace_is_left(endpoint: str) -> object:
    yield
    with Client(endpoint, timeout_s=60) as client:
        assert [name for name in client.admin.namespaces() if name.startswith("bench")] == []


@pytest.mark.parametrize("batch", [128, 1_000, 30_000])
def test_batches_come_to_every_key_and_their_values_differ(batch: int) -> None:
    """Half of the keys would be a smaller database, and equal values would be compressed."""
    load = Load(cast(AsyncClient, None), bytes(100), batch, amount=20_000)
    seen: set[bytes] = set()
    for _ in range(20_000 // batch + 2):
        pairs = list(load.pairs(batch))
        assert len(pairs) == batch
        seen |= {key for key, _ in pairs}
    assert len(seen) == 20_000
    assert len({value for _, value in pairs}) == min(batch, VALUES_MAX)


def test_every_workload_is_measured_and_has_a_line(cli: Cli) -> None:
    rows = cli.lines("bench", *FEW)
    assert [row["workload"] for row in rows] == list(WORKLOADS)
    for row in rows:
        assert row["calls"] == 4, row
        assert row["operations"] == 4 * WORKLOADS[row["workload"]].batch, row
        assert row["errors"] == 0, row
        assert row["per_s"] > 0, row
        assert 0 < row["p50_ms"] <= row["p99_ms"], row


def test_people_get_a_table(cli: Cli) -> None:
    title, row = cli("bench", "enqueue", *FEW, "--batch", 3, "--value-size", 10).rows
    assert title[:3] == ["workload", "callers", "ops/s"]
    assert row[:2] == ["enqueue", "2"]
    assert row[5:] == ["12", "0"]


def test_without_a_count_it_is_the_time_that_ends_it(cli: Cli) -> None:
    (row,) = cli.lines("bench", "put", "--seconds", "50ms", "--callers", 8)
    assert row["calls"] == row["operations"] >= 1


def test_the_uses_of_the_help_work(cli: Cli) -> None:
    text = ALL["bench"].help
    uses = re.findall(r"^  onelog (bench.*)$", text, re.MULTILINE)
    assert len(uses) >= 3
    # The first one is all workloads for seconds each, and has a test above.
    for use in uses[1:]:
        use = re.sub(r"--(seconds|count) \S+", "", use)
        cli(*shlex.split(use), "--seconds", "10ms", "--count", 2)
    for name in WORKLOADS:
        assert re.search(rf"^  {name}  +\S", text, re.MULTILINE), name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dance"], "'dance' is none of put, get"),
        (["put", "--seconds", "0s"], "above 0"),
        (["put", "--callers", "0"], "--callers"),
        (["put", "--durability", "perhaps"], "neither sync nor async"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], said: str, cli: Cli) -> None:
    assert said in cli("bench", *arguments, code=2).err


def test_calls_that_fail_are_counted_and_told(cli: Cli) -> None:
    """More messages are asked for than a lease may have."""
    ran = cli("bench", "put", "lease-ack", *FEW, "--batch", 1_001, "--json", code=1)
    put, lease = ran.lines
    assert put["errors"] == 0
    assert lease["errors"] == 4
    ((reason, count),) = lease["reasons"].items()
    assert count == 4
    assert f"CALLS_FAILED: 4 calls failed, the first with {reason}" in ran.err


def test_an_interrupt_ends_it_and_cleans_up(endpoint: str) -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-m", "onelog.cli.main", "bench", "append", "--seconds", "1h"],
            cwd=ROOT,
            env=os.environ | {"ONELOG_ENDPOINTS": endpoint},
        ) as process,
        Client(endpoint, timeout_s=60) as client,
    ):
        while not any(name.startswith("bench") for name in client.admin.namespaces()):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130


def test_errors_are_counted_by_reason_and_do_not_end_a_run() -> None:
    async def step(caller: int) -> int:
        await asyncio.sleep(0)
        if caller:
            raise Unavailable("nobody leads", reason="NO_LEADER")
        return 3

    run = Run()
    asyncio.run(run.repeat(step, 2, seconds=60, calls=6))
    assert run.errors == {"NO_LEADER": 1}
    assert run.durations.count == 5
    assert run.done == 15


def test_a_percentile_is_off_by_one_step_at_most() -> None:
    numbers = random.Random(7)
    durations_s = sorted(numbers.lognormvariate(-6, 2) for _ in range(1_000))
    durations = Durations()
    for each in durations_s:
        durations.add(each)
    for part in (0.001, 0.5, 0.9, 0.99, 1.0):
        true_s = durations_s[max(0, round(part * 1_000) - 1)]
        assert true_s / GROWTH <= durations.percentile_s(part) <= true_s * GROWTH
    assert Durations().percentile_s(0.5) == 0.0


def test_a_terminal_sees_the_numbers_grow_and_then_the_table(endpoint: str) -> None:
    with Terminal("bench", "put", "-e", endpoint, "-c", 2, "-s", "1200ms") as terminal:
        terminal.until(HIDE_CURSOR)
        terminal.until(ERASE_LINE, times=2)  # a second look replaces the first
        assert terminal.end() == 0
    view, _, after = terminal.shown.rpartition(SHOW_CURSOR)
    assert len(re.findall(r"put +2 +\d+", view)) >= 2
    # The view goes away, and what stays is the table, once.
    assert ERASE_LINE in after
    assert len(re.findall(r"put +2 +\d+", after)) == 1
    assert "Traceback" not in terminal.shown
