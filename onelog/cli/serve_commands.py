"""``onelog serve`` and ``onelog config``: the only commands that know the server.

Thin, and lazy: the server is imported inside the commands, because every other command must start
without it. Its settings are the flags; they are read, and their help is made, by
``node/config_sources.py``, where they are described once.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from onelog.cli.failure import CommandFailed

HELP_FLAGS = ("--help", "-h")
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

config_app = typer.Typer(help="Look at the settings of a server.", rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command(context_settings=_PASS_ON)(serve)
    app.add_typer(config_app, name="config")


def serve(context: typer.Context) -> None:
    """Run a database; without any flag, a single node on this machine."""
    from node import main

    if any(each in HELP_FLAGS for each in context.args):
        typer.echo(main.serve_help())
        return
    with _server_errors():
        main.serve(context.args, os.environ)


@config_app.callback(invoke_without_command=True)
def config(context: typer.Context) -> None:
    """Look at the settings of a server."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@config_app.command(context_settings={**_PASS_ON, "help_option_names": ["--help", "-h"]})
def show(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Show every setting, its value, and where that came from.

    Takes the flags of ``onelog serve``, so that what a command line would mean can be seen first.
    """
    from node import main

    with _server_errors():
        rows = main.effective(context.args, os.environ)
    if as_json:
        shown = {key: {"value": value, "origin": origin} for key, value, origin, _ in rows}
        typer.echo(json.dumps(shown, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("setting", "value", "origin"):
        table.add_column(title, overflow="fold")
    for key, value, origin, _ in rows:
        table.add_row(key, value, origin, style=None if origin != "default" else "dim")
    # Into a file as wide as it is: a value must not be cut by the width of no terminal.
    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False, markup=False).print(table)


@contextmanager
def _server_errors() -> Iterator[None]:
    """Let what ends a node on purpose end the command with its reason."""
    from cluster.errors import ClusterError
    from node.errors import NodeError

    try:
        yield
    except (NodeError, ClusterError) as error:
        raise CommandFailed(error.reason, str(error)) from error
