"""``onelog demo``: everything that it claims holds, a false claim fails, nothing is left."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Protocol

import pytest

from onelog.cli.demo import tour as demo_tour
from onelog.cli.demo.tour import STEPS, Command, How, Step
from tests.onelog.cli.commands import Cli
from tests.onelog.cli.forking import forking
from tests.onelog.client.serving import ROOT

TIMEOUT_S = 240
DEMO = (sys.executable, "-m", "onelog.cli.main", "demo")


def environment(directory: Path) -> dict[str, str]:
    """Return an environment whose temporary directories a test can find."""
    # Settings of the caller that would break a tour that listened to them.
    return os.environ | {
        "TMPDIR": str(directory), "ONELOG_ENDPOINTS": "127.0.0.1:1", "ONELOG_SHARDS": "x",
    }  # fmt: skip


def processes_of(directory: Path) -> list[str]:
    """Return the command lines that run in a directory, as the system sees it."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if (each / "cwd").readlink().is_relative_to(directory):
                found.append((each / "cmdline").read_text())
        except OSError:  # it has ended, or is none of ours
            continue
    return found


# What ends by itself is forked from a process that has loaded everything; what gets signals, and
# every line of the other tests, is the program as it is.
QUICK = """
from onelog.cli import main
from onelog.cli.demo import command
start = command.PROGRAM.removeprefix("#!/bin/sh\\n")
forked = {quick!r} + ' "$@"'
command.PROGRAM = (
    f'#!/bin/sh\\ncase "$1" in serve|watch) {{start}};; esac\\nexec {{forked}}\\n'
)
main.main()
"""


def test_the_tour_shows_everything_and_leaves_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with forking(tmp_path_factory.mktemp("forking")) as programs:
        quick = QUICK.format(quick=str(programs / "onelog"))
        done = subprocess.run(
            (sys.executable, "-c", quick, "demo"), cwd=ROOT, env=environment(tmp_path),
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    for step in STEPS:
        assert f"✓ {step.held}\n" in done.stdout
    hashes = re.findall(r"\b[0-9a-f]{16} at index \d+", done.stdout)
    assert len(hashes) == 2
    assert hashes[0] == hashes[1]
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


def test_a_tour_that_is_ended_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        DEMO, cwd=ROOT, env=environment(tmp_path) | {"PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while "onelog watch" not in (line := process.stdout.readline()):
            assert line, "it ended before"
        assert any("serve" in each for each in processes_of(tmp_path))
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 130
    assert list(tmp_path.iterdir()) == []
    deadline_s = time.monotonic() + TIMEOUT_S
    while processes_of(tmp_path) and time.monotonic() < deadline_s:
        time.sleep(0.01)  # the system is not done with those that were killed
    assert processes_of(tmp_path) == []


class Tour(Protocol):
    """Runs a tour of one step with these commands; returns what it wrote as an error."""

    def __call__(self, *commands: Command, code: int = 0) -> str: ...


@pytest.fixture
def tour(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tour:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(*commands: Command, code: int = 0) -> str:
        step = Step("A step", "Because.", commands, "it held")
        monkeypatch.setattr(demo_tour, "STEPS", (step,))
        ran = cli("demo", code=code)
        assert list(tmp_path.glob("onelog-demo-*")) == []
        assert ("✓ it held" in ran.out) == (code == 0)
        return ran.err

    return run


@pytest.mark.parametrize(
    "wrong", [Command("echo 2", "^1$$"), Command("exit 1"), Command("true", code=4)]
)
def test_a_claim_that_does_not_hold_fails_the_tour(wrong: Command, tour: Tour) -> None:
    assert f"DEMO_FAILED: {wrong.line}: exit code" in tour(Command("true"), wrong, code=1)


def test_what_was_shown_can_be_used_and_claimed_again(tour: Tour) -> None:
    first = Command("echo 4711", r"(?P<number>\d+)")
    tour(first, Command("echo $number", "^$number$$"))
    assert "4712" in tour(first, Command("expr $number + 1", "^$number$$"), code=1)


def test_a_line_is_repeated_until_it_shows_what_it_should(tour: Tour) -> None:
    repeated = Command("cat made; test -e made || { echo 1 > made; false; }", "1", how=How.REPEATED)
    tour(repeated)


def test_a_server_that_ends_by_itself_is_told_with_its_last_words(tour: Tour) -> None:
    job = Command("sh -c 'echo no room; exit 3'", how=How.BACKGROUND)
    waiting = Command("false", how=How.REPEATED)
    assert "%1 ended with 3: no room" in tour(job, waiting, code=1)
    # Nor may it end in another way than by being asked to.
    waiting = Command("test -e there", how=How.REPEATED)
    job = Command("sh -c 'trap \"exit 5\" TERM; touch there; while :; do sleep 0.05; done'",
                  how=How.BACKGROUND)  # fmt: skip
    assert "%1 ended with 5" in tour(job, waiting, Command("kill %1", how=How.STOP), code=1)
