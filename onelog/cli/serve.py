"""``onelog serve`` and ``onelog config``: the only commands that import the server.

The server is imported inside the commands, so that every other command starts without it. Its
settings are the flags; ``node/config/sources.py`` describes them once, parses them and makes their
help.
"""

import inspect
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from onelog.cli.command import group
from onelog.cli.failure import EXIT_STATE_DIVERGED, CommandFailed

HELP_FLAGS = ("--help", "-h")
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

config_app = group(
    "Show the settings of a server.",
    "onelog config show",
    "onelog config show --config onelog.toml --shards 2 --json",
)


class SettingsCommand(TyperCommand):
    """A command that takes every setting of a server as a flag, with shell completion.

    The settings are parameters only during completion: else every command would have to import
    them.
    """

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters; during completion with the settings."""
        own = super().get_params(ctx)
        if not ctx.resilient_parsing:
            return own
        known = {name for each in own for name in each.opts}
        return [*own, *(each for each in _settings() if not known & set(each.opts))]


def _settings() -> list[Any]:
    """Return a parameter for each flag that ``node/config/sources.py`` reads."""
    from onelog.node import main

    def nothing(**_: object) -> None: ...

    # Typer can make parameters only from the signature of a function.
    parameters = [
        _parameter(f"flag_{number}", flag) for number, flag in enumerate(main.serve_flags())
    ]
    nothing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    nothing.__annotations__ = {each.name: each.annotation for each in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(nothing)
    return list(typer.main.get_command(app).params)


def _parameter(name: str, flag: Any) -> inspect.Parameter:
    def choices() -> list[str]:
        return list(flag.choices)

    option = typer.Option(*flag.names, help=flag.help, autocompletion=choices)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if flag.takes_value else False,
        annotation=Annotated[str | None if flag.takes_value else bool, option],
    )


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command(cls=SettingsCommand, context_settings=_PASS_ON)(serve)
    app.add_typer(config_app, name="config")


def serve(context: typer.Context) -> None:
    """Run a database; without any flag, a single node on this machine.

    \b
    Examples:
      onelog serve
      onelog serve --data-dir ./mine --listen 127.0.0.1:7700 --shards 4
      onelog serve --config onelog.toml --logging-format json
      onelog serve --name n4 --join 127.0.0.1:7500
    """
    from onelog.node import main

    if any(each in HELP_FLAGS for each in context.args):
        assert serve.__doc__ is not None
        typer.echo(main.serve_help(inspect.cleandoc(serve.__doc__).replace("\b\n", "")))
        return
    with _server_errors():
        main.serve(context.args, os.environ)


@config_app.command(
    cls=SettingsCommand,
    context_settings={**_PASS_ON, "help_option_names": ["--help", "-h"]},
)
def show(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Show every setting, its value, and where it comes from.

    Takes the flags of ``onelog serve``, so you can check a command line before you run it.

    \b
    Examples:
      onelog config show
      onelog config show --shards 4 --raft-heartbeat-s 0.05
      onelog config show --config onelog.toml --json | jq '."cluster.shards"'
    """
    from onelog.node import main

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
    # A file has no width: do not cut values there.
    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False, markup=False).print(table)


@contextmanager
def _server_errors() -> Iterator[None]:
    """Turn errors that end a node into errors of the command."""
    from onelog.cluster.errors import ClusterError, StateDiverged
    from onelog.node.errors import NodeError, WorkerFailed

    try:
        yield
    except StateDiverged as error:
        raise CommandFailed(error.reason, str(error), EXIT_STATE_DIVERGED) from error
    except NodeError as error:
        code = error.exit_code
        if isinstance(error, WorkerFailed) and error.code == EXIT_STATE_DIVERGED:
            code = error.code
        raise CommandFailed(error.reason, str(error), code) from error
    except ClusterError as error:
        raise CommandFailed(error.reason, str(error)) from error
