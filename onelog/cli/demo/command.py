"""``onelog demo``: the five-minute tour, on a temporary database.

The steps are in ``tour``; here they are run, shown and checked. The exit code is 0 only if every
command showed what the tour claims.

``DemoShell`` runs the lines: in a temporary directory, with a program ``onelog`` in its path. Every
line has a session of its own, so that it can be ended with everything that it started. When the
shell is closed nothing of it runs any more and its directory is removed, whatever happened before:
signals that end a process are turned into interrupts. Only SIGKILL leaves something behind: a
temporary directory ``onelog-demo-…`` and its processes.

The environment is the caller's without the settings of onelog: the tour uses its own server, never
one that the caller works with.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

import onelog
from onelog.cli.failure import CommandFailed

if TYPE_CHECKING:
    from rich.console import Console

    from onelog.cli.demo.tour import Command, Step

WAIT_S_MAX = 60.0

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    *,
    no_pause: Annotated[
        bool, typer.Option("--no-pause", help="Do not wait for Enter between steps.")
    ] = False,
) -> None:
    """Show what onelog can do: a tour of five minutes, on a temporary database.

    Every line is run exactly as shown, in a temporary directory, against a temporary server.
    Nothing is left at the end, and nothing else is touched. Into a file or a pipe it does not wait
    for Enter.

    \b
    Exit codes:
      0  everything was as the tour says
      1  something was not; it says what

    \b
    Examples:
      onelog demo
      onelog demo --no-pause
    """
    from rich.console import Console

    from onelog.cli.cluster.processes import HOST, find_ports, hold_ports
    from onelog.cli.demo.tour import STEPS

    console = Console(highlight=False, markup=False, soft_wrap=True)
    has_pauses = sys.stdin.isatty() and sys.stdout.isatty() and not no_pause
    with hold_ports(1, asked=None, remembered=None) as block:
        ports = find_ports(block.base, 1)
        known = {name: f"{HOST}:{getattr(ports, name)}" for name in ("api", "peers", "http")}
        with DemoShell({"ONELOG_ENDPOINTS": known["api"]}) as shell:
            console.print(f"A directory of its own: cd {shell.directory}", style="dim")
            console.print(f"export ONELOG_ENDPOINTS={known['api']}", style="dim")
            block.hand_over(1)
            for number, step in enumerate(STEPS, 1):
                _show(console, shell, number, step, known)
                if has_pauses and number < len(STEPS):
                    console.input("\nEnter continues, Ctrl-C ends it. ")
    console.print("\nAll of it held. The server and its directory are gone.", style="bold")


def _show(
    console: "Console", shell: "DemoShell", number: int, step: "Step", known: dict[str, str]
) -> None:
    """Run a step; later commands may use values that its commands printed."""
    from onelog.cli.demo.tour import How

    console.print(f"\n{number}. {step.title}", style="bold")
    console.print(step.why)
    for command in step.commands:
        line = Template(command.line).substitute(known)
        end = " &" if command.how is How.BACKGROUND else ""
        console.print(f"\n$ {line}{end}", style="cyan")
        if command.how is How.BACKGROUND:
            shell.start(line)
            continue
        if command.how is How.STOP:
            shell.stop(int(re.findall(r"%(\d+)", line)[0]))
            continue
        shown = _run(shell, command, line, known)
        if shown:
            console.print(shown)
    console.print(f"\n✓ {step.held}", style="green")


def _run(shell: "DemoShell", command: "Command", line: str, known: dict[str, str]) -> str:
    """Run a line and return its output; fail if that is not as expected."""
    from onelog.cli.demo.tour import How

    expected = re.compile(Template(command.shows).substitute(known), re.MULTILINE)
    deadline_s = time.monotonic() + WAIT_S_MAX
    while True:
        code, shown = shell.run(line)
        found = expected.search(shown)
        if found is not None and code == command.code:
            known |= found.groupdict()
            return shown
        if command.how is not How.REPEATED or time.monotonic() > deadline_s:
            what = (
                f"{line}: exit code {code}, expected {command.code} and {expected.pattern!r}; got"
            )
            raise CommandFailed("DEMO_FAILED", f"{what}: {shown}")
        shell.wait_a_little()


# Shell

LINE_S_MAX = 60.0
STOP_S_MAX = 30.0
OUTPUT_BYTES_MAX = 1 << 20
PROGRAM = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m onelog.cli.main "$@"\n'
_POLL_S = 0.1
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class DemoShell:
    """Runs lines one at a time, or in the background."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Make a shell; ``settings`` are environment variables for all lines."""
        self.directory = Path(tempfile.mkdtemp(prefix="onelog-demo-"))
        self._jobs: list[subprocess.Popen[bytes]] = []
        self._handlers: dict[signal.Signals, Any] = {}
        programs = self.directory / "bin"
        programs.mkdir()
        program = programs / "onelog"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        kept = {name: text for name, text in os.environ.items() if not name.startswith("ONELOG_")}
        loaded_from = str(Path(onelog.__file__).parents[1])
        self._environment = kept | {
            "PATH": os.pathsep.join((str(programs), os.environ.get("PATH", os.defpath))),
            "PYTHONPATH": os.pathsep.join(filter(None, (loaded_from, kept.get("PYTHONPATH")))),
            "XDG_CONFIG_HOME": str(self.directory),
            **settings,
        }

    def __enter__(self) -> Self:
        self._handlers = {each: signal.signal(each, _interrupt) for each in _ENDING_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        # A second Ctrl-C must not prevent the cleanup.
        for each in (*_ENDING_SIGNALS, signal.SIGINT):
            self._handlers.setdefault(each, signal.signal(each, signal.SIG_IGN))
        try:
            for job in self._jobs:
                _end(job)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
            for each, handler in self._handlers.items():
                signal.signal(each, handler)

    def run(self, line: str) -> tuple[int, str]:
        """Run a line until it ends; return its exit code, and its stdout and stderr together."""
        with tempfile.TemporaryFile() as output:
            process = self._start(line, output.fileno())
            try:
                code = process.wait(LINE_S_MAX)
            except subprocess.TimeoutExpired:
                raise CommandFailed(
                    "DEMO_FAILED", f"no end after {LINE_S_MAX:g} s: {line}"
                ) from None
            finally:
                _end(process)
            output.seek(0)
            return code, output.read(OUTPUT_BYTES_MAX).decode(errors="replace").rstrip("\n")

    def start(self, line: str) -> None:
        """Run a line in the background."""
        with (self.directory / f"job-{len(self._jobs) + 1}.log").open("wb") as output:
            # ``exec`` replaces the shell, so that signals reach the program.
            self._jobs.append(self._start(f"exec {line}", output.fileno()))

    def stop(self, number: int) -> None:
        """Ask a background line to end, and wait for it; the first one is 1."""
        job = self._jobs[number - 1]
        job.terminate()
        try:
            code = job.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            raise CommandFailed(
                "DEMO_FAILED", f"no end after {STOP_S_MAX:g} s: %{number}"
            ) from None
        if code:
            raise CommandFailed(
                "DEMO_FAILED", f"%{number} ended with {code}: {self._last_words(number)}"
            )

    def wait_a_little(self) -> None:
        """Wait before a retry; fail if a background line has ended meanwhile."""
        time.sleep(_POLL_S)
        for number, job in enumerate(self._jobs, 1):
            if (code := job.poll()) is not None:
                said = self._last_words(number)
                raise CommandFailed("DEMO_FAILED", f"%{number} ended with {code}: {said}")

    def _last_words(self, number: int) -> str:
        lines = (self.directory / f"job-{number}.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"

    def _start(self, line: str, output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - the lines are our own
            ["/bin/sh", "-c", line],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a line and everything that it started, unless it was already waited for.

    Until it is waited for, its process id, which is also its session's, cannot be reused.
    """
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
