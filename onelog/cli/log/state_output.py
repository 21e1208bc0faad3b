"""What the commands about state share on their way out: a bar, JSON, warnings, escapes."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from onelog.snapshot.progress import Progress as ProgressCall


@contextmanager
def progress_bar(*, is_shown: bool) -> "Iterator[ProgressCall]":
    """Show a bar on stderr while the block runs, if somebody is there to see it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from onelog.snapshot.progress import Phase, no_progress

    console = Console(stderr=True)
    if not is_shown or not console.is_terminal:
        yield no_progress
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(phase: Phase, done: int, total: int) -> None:
            bar.update(task, description=phase.value, completed=done, total=total or None)

        yield show


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def warn(message: str) -> None:
    """Print a warning beside the output."""
    typer.echo(f"warning: {printable(message)}", err=True)


def printable(text: str) -> str:
    """Return a text that no terminal obeys: names and values come from anybody's files."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )
