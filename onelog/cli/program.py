"""The tree of commands.

Most groups are imported when they are used: a group is a line here, with the text that ``onelog
--help`` shows and the module whose ``app`` has the commands.
"""

import os
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from onelog.cli import completion, serve
from onelog.cli.command import Group, first_sentence
from onelog.cli.log import commands, state

GROUPS = {
    "kv": ("onelog.cli.kv", "Keys: put, get, list, watch, lock, transactions, leases."),
    "queue": ("onelog.cli.queue", "Queues: enqueue, consume, acknowledge, dead letters."),
    "stream": ("onelog.cli.stream", "Streams: append, read, tail, consumer groups."),
    "ts": ("onelog.cli.timeseries", "Time series: write, import, query, downsample."),
    "import": (
        "onelog.cli.import_rows",
        "Import rows of Parquet, JSON lines or CSV, exactly once.",
    ),
    "watch": ("onelog.cli.watch", "Watch changes in all models as they happen."),
    "transact": ("onelog.cli.transact", "Change several things atomically."),
    "ping": ("onelog.cli.admin:ping_app", "Whether the nodes answer, and how fast."),
    "call": ("onelog.cli.call", "Any call of the API, with JSON."),
    "admin": ("onelog.cli.admin", "Status, members, leaders, snapshots, namespaces."),
    "cluster": ("onelog.cli.cluster.commands", "A cluster on this machine: up, kill, restart."),
    "spark": ("onelog.cli.spark", "The zip that Spark executors need."),
    "export": ("onelog.cli.export", "Views of the log as files, with a receipt to verify them."),
    "bench": ("onelog.cli.bench.command", "Load on any endpoint: rates and latencies."),
    "demo": ("onelog.cli.demo.command", "The five-minute tour, on a temporary database."),
    "explain": ("onelog.cli.explain", "What a reason of an error, or an alarm, means."),
    "completion": ("onelog.cli.completion", "A script that completes commands in your shell."),
}

# How the help of the root shows them.
SECTIONS = {
    "Data": ("kv", "queue", "stream", "ts", "watch", "transact", "import", "export"),
    "Servers": ("serve", "config", "cluster", "ping", "admin", "log"),
    "Tools": ("demo", "bench", "explain", "call", "spark", "completion"),
}
# Where a command is looked for that was given without its group.
NESTED = ("kv", "queue", "stream", "ts", "admin", "cluster", "log")


class Program(Group):
    """The root command; imports a group of GROUPS when it is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._unloaded = {
            name: TyperCommand(name, help=text, rich_markup_mode=None)
            for name, (_, text) in GROUPS.items()
        }
        self.commands = {**self._unloaded, **self.commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command and return it."""
        if self._unloaded.pop(cmd_name, None) is not None:
            module, text = GROUPS[cmd_name]
            module, _, name = module.partition(":")
            loaded = typer.main.get_command(getattr(import_module(module), name or "app"))
            loaded.name = cmd_name
            loaded.short_help = text
            self.commands[cmd_name] = loaded
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return a command and its arguments; say in which group a missing one is."""
        name = args[0]
        if self.get_command(ctx, name) is None:
            groups = {each: self.get_command(ctx, each) for each in NESTED}
            found = [each for each, group in groups.items() if group.get_command(ctx, name)]
            if found:
                there = " or ".join(f"'onelog {each} {name}'" for each in found)
                ctx.fail(f"No such command '{name}'. Did you mean {there}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """List the commands by what they are for, without importing them."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, first_sentence(self.commands[name])) for name in names])


app = typer.Typer(
    name="onelog",
    cls=Program,
    help="""onelog: a replicated database of keys, queues, streams and time series on one log.

Each command has --help with examples. Flags like -e HOST:PORT, -n NAMESPACE and --json may stand
before or behind the command; without -e the server is at 127.0.0.1:7400.

\b
Examples:
  onelog serve                          # a database in ./onelog-data
  onelog ping                           # is it there?
  onelog kv put greeting hello
  onelog kv get greeting
  onelog queue create work --max-deliveries 3 --dead-letters
  onelog queue enqueue work 'resize 1.jpg'
  onelog queue consume work --limit 1
  onelog -e 10.0.0.1:7400 --json admin status
""",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
state.register(commands.app)
serve.register(app)
app.add_typer(commands.app, name="log")


if os.environ.get(completion.VARIABLE):
    completion.get_ready()


@cache
def tree() -> Any:
    """Return the root command; built once."""
    return typer.main.get_command(app)


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it
    if asked:
        import importlib.metadata

        typer.echo(f"onelog {importlib.metadata.version('onelogdb')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Print the help if no command is given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
