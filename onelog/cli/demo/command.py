"""``onelog demo``: the five-minute tour, on a database of its own that is gone afterwards.

The steps are in ``demo_tour``; here they are shown and held against what they claim. The tour ends
with 0 only if everything that it showed was as it says.
"""

import re
import sys
import time
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer

from onelog.cli.failure import CommandFailed

if TYPE_CHECKING:
    from rich.console import Console

    from onelog.cli.demo.shell import DemoShell
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

    Every line that is shown is run as it stands, by a shell in a temporary directory, against a
    server of its own. Nothing of it is left in the end, and nothing else is touched. Into a file
    or a pipe it goes on without Enter.

    \b
    Exit codes:
      0  everything was as the tour says
      1  something was not; it says what

    \b
    Usage:
      onelog demo
      onelog demo --no-pause
    """
    from rich.console import Console

    from onelog.cli.cluster.ports import HOST, hold_ports, ports_of
    from onelog.cli.demo.shell import DemoShell
    from onelog.cli.demo.tour import STEPS

    console = Console(highlight=False, markup=False, soft_wrap=True)
    has_pauses = sys.stdin.isatty() and sys.stdout.isatty() and not no_pause
    with hold_ports(1, asked=None, remembered=None) as block:
        ports = ports_of(block.base, 1)
        known = {name: f"{HOST}:{getattr(ports, name)}" for name in ("api", "peers", "http")}
        with DemoShell({"ONELOG_ENDPOINTS": known["api"]}) as shell:
            console.print(f"A directory of its own: cd {shell.directory}", style="dim")
            console.print(f"export ONELOG_ENDPOINTS={known['api']}", style="dim")
            block.hand_over(1)
            for number, step in enumerate(STEPS, 1):
                _show(console, shell, number, step, known)
                if has_pauses and number < len(STEPS):
                    console.input("\nEnter goes on, Ctrl-C ends it. ")
    console.print("\nAll of it held. The server and its directory are gone.", style="bold")


def _show(
    console: "Console", shell: "DemoShell", number: int, step: "Step", known: dict[str, str]
) -> None:
    """Run a step; what its commands have shown is known to those that follow."""
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
    """Run a line and return what it showed, which is what it was to show."""
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
