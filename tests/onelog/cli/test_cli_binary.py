"""The installed program against a real server: every command, and how each of them fails.

Every line is a process of its own; what is asked, and what comes back, goes over sockets. The first
line of each command that works is started as people start it, and so are those about servers and
the log, and the first of each group that fails. For what repeats them a process that has loaded
everything forks (tests/onelog/cli/forking.py), which saves the third of a second that a start
takes. The lines are in tests/onelog/cli/command_lines.py, and a command that is added to the
program must be added there.
"""

import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from string import Template
from typing import Any, TypeVar

import pytest

from onelog.cli.failure import EXIT_UNAVAILABLE
from onelog.ual.directory import read_node
from onelog.ual.files import DiskFiles
from tests.node.membership.test_formation import SMALL, newcomer
from tests.onelog.cli.cluster.test_cluster_commands import free_base
from tests.onelog.cli.command_lines import (
    CLUSTER,
    ELSEWHERE,
    LOG,
    MEMBERS,
    NAMES,
    NUMBERS,
    SCENES,
    STEPS,
    Step,
    Wrong,
)
from tests.onelog.cli.forking import forking
from tests.onelog.cli.log.models import Result
from tests.onelog.cli.test_cli_help import ALL
from tests.onelog.cli.test_cli_numbers import values_of
from tests.system.nodes import ServeProcess, nodes, until
from tests.system.ports import free_addresses
from tests.system.processes import ROOT

TIMEOUT_S = 120
AT_ONCE = 3  # processes; a start of one is half a second of work
SCRIPT = Path(sys.executable).with_name("onelog")
# Where the package is not installed: what its script calls, see the test of that.
PROGRAM = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "onelog.cli.main"]
# With flags for a server, and yet it asks nobody, because it shows what they are; or a test of
# another file has lines for it.
SILENT = ("admin config", *ELSEWHERE)
TALKING = [
    path
    for path, command in ALL.items()
    if any("--endpoint" in each.opts for each in command.params) and path not in SILENT
]

T = TypeVar("T")
Line = TypeVar("Line", Step, Wrong)


@dataclass(frozen=True)
class Program:
    """Runs the program in a directory, with a server that it finds by itself."""

    directory: Path
    endpoint: str
    timeout: str = "60s"
    forking: Path | None = None  # what runs lines that are not started as people do

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("ONELOG_")}
        return kept | {
            "ONELOG_ENDPOINTS": self.endpoint,
            "ONELOG_CLIENT_TIMEOUT": self.timeout,
            "XDG_CONFIG_HOME": str(self.directory),
            # The installed package may be that of another checkout.
            "PYTHONPATH": str(ROOT),
        }

    def run(self, line: str, stdin: str = "", *, is_started: bool = True) -> Result:
        is_started = is_started or self.forking is None
        command = PROGRAM if is_started else [str(self.forking)]
        done = subprocess.run(
            [*command, *shlex.split(line)], cwd=self.directory, env=self.environment,
            input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stdout + done.stderr, (line, done)
        return Result(done.returncode, done.stdout, done.stderr)

    def play(self, steps: Iterable[Step], **kept: str) -> None:
        """Run lines that all work, one after the other."""
        for step in steps:
            line = Template(step.line).substitute(kept)
            ran = self.run(line, step.stdin, is_started=step in FIRST)
            assert (ran.code, ran.err) == (0, ""), (line, ran)
            documents = check_output(step, ran)
            name, form = step.keeps
            if name:
                kept[name] = " ".join(form.format(**each) for each in documents)

    def fail(
        self, line: str, code: int, reason: str = "", stdin: str = "", *, is_started: bool
    ) -> str:
        """Run a line that fails as all of them do; return what it said."""
        ran = self.run(line, stdin, is_started=is_started)
        assert (ran.code, ran.out) == (code, ""), (line, ran)
        assert ran.err.startswith(f"error: {reason}"), (line, ran)
        assert ran.err.count("\n") == 1, (line, ran)
        assert ran.err.endswith("\n"), (line, ran)
        return ran.err


def check_output(step: Step, ran: Result) -> list[dict[str, Any]]:
    """Hold what a line printed against what it should; return the documents."""
    if isinstance(step.prints, str):
        assert step.prints in ran.out, (step.line, ran)
        return []
    try:
        documents = [json.loads(ran.out)]
    except ValueError:
        documents = [json.loads(line) for line in ran.out.splitlines()]
    wanted = step.prints
    assert any({name: each.get(name) for name in wanted} == wanted for each in documents), (
        step.line,
        ran,
    )
    return documents


def all_of(work: Callable[[T], object], items: Iterable[T]) -> None:
    """Do a few of them at a time; tell all that went wrong, not only the first."""

    def attempt(item: T) -> Exception | None:
        try:
            work(item)
        except Exception as error:  # noqa: BLE001 - told below
            return error
        return None

    with ThreadPoolExecutor(AT_ONCE) as workers:
        failed = [error for error in workers.map(attempt, items) if error is not None]
    if failed:
        raise ExceptionGroup(f"{len(failed)} failed", failed)


def path_of(line: str) -> str:
    """Return the command that a line is of."""
    words = shlex.split(line)
    found = (path for path in ALL if words[: len(path.split())] == path.split())
    return max(found, key=len, default="")


def group_of(path: str) -> str:
    return path.rpartition(" ")[0] or path


def first_of_groups(lines: Iterable[Line]) -> list[Line]:
    """Return the first line of each group of commands."""
    found: dict[str, Line] = {}
    for each in lines:
        found.setdefault(group_of(path_of(each.line)), each)
    return list(found.values())


# Each of all commands once.
FIRST = list({path_of(step.line): step for step in reversed(STEPS)}.values())


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with forking(tmp_path_factory.mktemp("forking")) as programs:
        yield programs / "onelog"


@pytest.fixture
def program(endpoint: str, tmp_path: Path, forks: Path) -> Program:
    return Program(tmp_path, endpoint, forking=forks)


def test_the_program_is_the_installed_script_with_the_code_of_this_checkout(
    tmp_path: Path,
) -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="onelog")
    assert script.value == "onelog.cli.main:main"  # so it is python -m onelog.cli.main
    program = Program(tmp_path, "127.0.0.1:1")
    loaded = subprocess.run(
        [sys.executable, "-c", "import onelog.cli.main as main; print(main.__file__)"],
        cwd=tmp_path, env=program.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(loaded.stdout.strip()) == ROOT / "onelog" / "cli" / "main.py"
    version = importlib.metadata.version("onelogdb")
    assert program.run("--version") == Result(0, f"onelog {version}\n", "")


def test_every_command_has_a_line_that_is_run_as_a_process() -> None:
    assert {path_of(step.line) for step in STEPS} | set(ELSEWHERE) == set(ALL)
    for place in ELSEWHERE.values():
        module, _, name = place.partition(":")
        assert callable(getattr(import_module(module), name))


def test_every_group_has_a_wrong_name_and_a_bad_number() -> None:
    with_names = {
        group_of(path)
        for path, command in ALL.items()
        if any(each.param_type_name == "argument" for each in command.params)
    }
    with_numbers = {
        group_of(path) for path, command in ALL.items() if any(map(values_of, command.params))
    }
    assert with_names - {group_of(path_of(each.line)) for each in NAMES} == set()
    assert with_numbers - {group_of(path_of(each.line)) for each in NUMBERS} == set()


def test_every_command_does_what_it_says(program: Program) -> None:
    all_of(program.play, SCENES)


def test_every_command_that_asks_a_server_says_in_one_line_that_there_is_none(
    tmp_path: Path, forks: Path
) -> None:
    (nobody,) = free_addresses(1)
    program = Program(tmp_path, nobody, timeout="200ms", forking=forks)
    # What an earlier line would have kept; nobody looks at it.
    kept = {"RECEIPT": "1:1", "PLACE": "0:1", "PEER": nobody}
    kept |= dict.fromkeys(("ID", "LEASE", "NODE", "OFFSET", "JOINING"), "1")
    asked = {path: step for step in STEPS if (path := path_of(step.line)) in TALKING}
    first = first_of_groups(asked.values())

    def ask(step: Step) -> None:
        line = Template(step.line).substitute(kept)
        said = program.fail(line, EXIT_UNAVAILABLE, stdin=step.stdin, is_started=step in first)
        assert nobody in said, (line, said)

    assert set(asked) == set(TALKING)
    all_of(ask, asked.values())


@pytest.mark.parametrize("lines", [NAMES, NUMBERS], ids=["names", "numbers"])
def test_what_cannot_be_done_is_said_in_one_line(
    lines: tuple[Wrong, ...], program: Program
) -> None:
    first = first_of_groups(lines)

    def ask(wrong: Wrong) -> None:
        reason = f"{wrong.reason}: "
        # gRPC asks only when it is loaded whether to say what it thinks of a certificate.
        is_started = wrong in first or "--tls" in wrong.line
        program.fail(wrong.line, wrong.code, reason, wrong.stdin, is_started=is_started)

    all_of(ask, lines)


class Served(ServeProcess):
    """A server that the installed program is."""

    @property
    def command(self) -> list[str]:
        return [*PROGRAM, *super().command[3:]]


def test_servers_are_joined_ended_in_order_and_read_offline(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", **SMALL) as cluster, ExitStack() as ending:
        founder = Served(tmp_path / "n1", "n1", cluster["n1"].flags)
        joining = newcomer(tmp_path, "n2", founder)
        joining = Served(tmp_path / "n2", "n2", joining.flags)
        for each in (founder, joining):
            ending.callback(each.kill)
            each.start()
        founder.until_ready()
        joining.until_report(stage="electing")
        program = Program(tmp_path, founder.flags["listen"])
        node_id = str(read_node(DiskFiles(), joining.directory / "data").node_id)
        kept = {"JOINING": node_id, "PEER": joining.flags["peer-listen"]}
        program.play(MEMBERS[:2], **kept)

        def caught_up() -> bool:
            ran = program.run(f"admin members promote {node_id}")
            assert ran.code == 0 or ran.err.count("\n") == 1, ran
            return ran.code == 0

        until(caught_up)
        program.play(MEMBERS[2:], **kept)  # to promote it once more changes nothing
        assert founder.terminate() == 0
    program.play(LOG, DIR=str(founder.directory / "data"))


def test_a_cluster_is_started_killed_restarted_and_stopped(tmp_path: Path) -> None:
    program = Program(tmp_path, "127.0.0.1:1")
    with ExitStack() as failing:
        failing.callback(program.run, "cluster down --dir made --stop-within 0")
        program.play(CLUSTER, DIR="made", PORT=str(free_base()))
        failing.pop_all()
