"""What all commands that talk to a server have in common: flags, help, a session.

A command is a function whose first parameter is the session: ``session.client`` connects on first
use, ``session.output`` prints, ``session.read`` says how fresh a read must be. The flags for these
are added here, and shown in sections of their own, so that the help of a command begins with its
own flags. The client is imported only when a command runs.

Flags about the connection, and ``--json``, may also stand before a command's name or the name of
its group: ``onelog -e db:7400 kv get a``. ``Group`` passes them to the command. Common names of
other programs are aliases of ours (``ALIASES``).
"""

import inspect
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from onelog.cli.connect import DEFAULT_ORIGIN, connect, find_settings, parse_timeout
from onelog.cli.failure import CommandFailed
from onelog.cli.output import Output
from onelog.cli.values import dead_letters_name, duration_s

if TYPE_CHECKING:
    from onelog import Client, Read

EXIT_CODES = (
    ("0", "done"),
    ("1", "an error"),
    ("2", "the command was not understood"),
    ("3", "what it names does not exist"),
    (
        "4",
        "refused: a condition does not hold, it exists already, a lease is lost, or members or "
        "leaders cannot change so",
    ),
    ("5", "no server answered in time; a write may still take effect if the error says so"),
)

_AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
_CONNECTION: dict[str, Any] = {
    "endpoints": Annotated[
        list[str] | None,
        typer.Option(
            "--endpoint", "-e", metavar="HOST:PORT",
            help="Any nodes of the cluster; repeatable, or with commas.",
        ),
    ],
    "namespace": Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="The namespace.")
    ],
    "timeout": Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Timeout of each call, like 5s.")
    ],
    "durability": Annotated[
        str | None,
        typer.Option(
            "--durability", metavar="sync|async", help="async: answered sooner, less safe."
        ),
    ],
    "tls": Annotated[bool, typer.Option("--tls", help="Use TLS.")],
    "tls_ca": Annotated[
        str | None,
        typer.Option("--tls-ca", metavar="FILE", help="CA certificates (PEM); implies --tls."),
    ],
    "tls_cert": Annotated[
        str | None, typer.Option("--tls-cert", metavar="FILE", help="The client certificate (PEM).")
    ],
    "tls_key": Annotated[
        str | None, typer.Option("--tls-key", metavar="FILE", help="The client's key (PEM).")
    ],
    "tls_name": Annotated[
        str | None, typer.Option("--tls-name", metavar="HOST", help="The name in its certificate.")
    ],
    "config": Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings file; else ~/.config/onelog/client.toml."
        ),
    ],
}  # fmt: skip
_READS: dict[str, Any] = {
    "stale": Annotated[
        bool, typer.Option("--stale", help="Read from any replica, which may be behind.")
    ],
    "by_lease": Annotated[
        bool,
        typer.Option("--by-lease", help="The leader answers under its lease; trusts clocks."),
    ],
    "max_staleness": Annotated[
        float | None,
        typer.Option(
            "--max-staleness", metavar="TIME", parser=duration_s,
            help="With --stale: at most this far behind.",
        ),
    ],
    "min_index": Annotated[
        int, typer.Option("--min-index", min=0, metavar="N", help="Wait until it has this index.")
    ],
    "as_of": Annotated[
        int, typer.Option("--as-of", min=0, metavar="N", help="Read the state as of this index.")
    ],
}  # fmt: skip
# The flags that may stand before a command's name, and whether each takes a value.
_EARLY_FLAGS = {"--json": False} | {
    word: annotation.__origin__ is not bool
    for annotation in _CONNECTION.values()
    for option in annotation.__metadata__
    # Typer takes the first name for a default until it makes the option.
    for word in (option.default, *option.param_decls)
}
_FALSY: dict[str, Any] = {
    "stale": False,
    "by_lease": False,
    "tls": False,
    "min_index": 0,
    "as_of": 0,
}


# Names that users of etcdctl, nats and redis-cli try first, and ours; the first that exists.
ALIASES = {
    "add": ("create",),
    "del": ("delete",),
    "expire": ("touch",),
    "incr": ("increment",),
    "info": ("show",),
    "ls": ("list",),
    "pub": ("enqueue", "append"),
    "rm": ("delete",),
    "send": ("enqueue", "append"),
    "set": ("put",),
    "sub": ("consume", "tail"),
}
# Where flags before a command's name are kept until the command is known.
_EARLY = "onelog.early_flags"

T = TypeVar("T")


Raw = Annotated[
    bool,
    typer.Option("--raw", help="Print the bytes of each and nothing else, not even a newline."),
]
"""For commands that print bodies or records."""

IfMissing = Annotated[
    bool, typer.Option("--if-missing", help="Do nothing if it exists; its settings stay.")
]
"""For commands that create something."""

RoutingKey = Annotated[
    str, typer.Option("--shard-of", metavar="KEY", help="Only in the shard of this key or name.")
]
"""For commands that list all shards; with --as-of or --min-index, which belong to one shard."""


class Session:
    """One run of a command."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.output = Output(as_json=given["as_json"])
        flags = {name: given[name] for name in _CONNECTION if given.get(name)}
        if "endpoints" in flags:
            flags["endpoints"] = ",".join(flags["endpoints"])
        if "tls" in flags:
            flags["tls"] = "yes"
        config = flags.pop("config", None)
        self.settings = find_settings(flags, config, os.environ)
        self._given = given
        self._client: Client | None = None

    @property
    def client(self) -> "Client":
        """The client; connects on first use."""
        if self._client is None:
            self._client = connect(self.settings)
        return self._client

    @property
    def timeout_s(self) -> float:
        """How long a call may take."""
        return parse_timeout(self.settings["timeout"])

    @property
    def long_timeout_s(self) -> float:
        """How long a call may take whose time depends on how much data there is."""
        from onelog.client.options import LONG_TIMEOUT_S

        setting = self.settings["timeout"]
        return LONG_TIMEOUT_S if setting.origin == DEFAULT_ORIGIN else parse_timeout(setting)

    def check_same_shard(self, kind: str, name: str, dead_letters: str) -> None:
        """Refuse a name for dead letters that may be in another shard, before it is created."""
        from onelog.routing import routing_key

        if routing_key(name.encode()) == routing_key(dead_letters.encode()):
            return
        if self.client.admin.topology().shard_count > 1:
            own = dead_letters_name(name)
            raise CommandFailed(
                "SEVERAL_SHARDS",
                f"the {kind} {name} and {dead_letters} may be in different shards; a name with the "
                f"same tag works: {dead_letters.partition('{')[0]}{own[own.rindex('{') :]}, or "
                f"--dead-letters without a value: {own}",
            )

    @property
    def read(self) -> "Read | None":
        """How fresh a read must be; None: the default, which misses nothing."""
        given = self._given
        if not any(given[name] for name in _READS):
            return None
        from onelog import Read

        return Read(
            given["stale"],
            given["max_staleness"],
            given["min_index"],
            given["as_of"],
            given["by_lease"],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.close()


class ClientCommand(TyperCommand):
    """A command whose help shows its own flags first, then those that all commands have.

    An option whose value is shown in brackets may stand without one: then it is empty.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        optional = {
            name
            for each in self.params
            if each.param_type_name == "option" and str(each.metavar).startswith("[")
            for name in each.opts
        }
        given: list[str] = []
        for arg, after in zip(args, [*args[1:], "--"], strict=False):
            given.append(arg)
            if arg in optional and after.startswith("-"):
                given.append("")
        return super().parse_args(ctx, given)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line: what must be given has no brackets."""
        return [re.sub(r"^\{(.*)\}$", r"\1", each) for each in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the flags in sections."""
        sections: dict[str, list[tuple[str, str]]] = {
            "Arguments": [], "Options": [], "How fresh a read is": [], "Connection": [],
        }  # fmt: skip
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.name in _CONNECTION:
                title = "Connection"
            elif parameter.name in _READS:
                title = "How fresh a read is"
            else:
                title = "Arguments" if parameter.param_type_name == "argument" else "Options"
            sections[title].append(record)
        sections["Exit codes"] = list(EXIT_CODES)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Group(TyperGroup):
    """A group of commands: flags that all commands have may stand before the command's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put aside the flags that are for the command, and parse the rest."""
        early: list[str] = ctx.meta.setdefault(_EARLY, [])
        left = list(args)
        while left and (size := _count_words(left)):
            early += left[:size]
            left = left[size:]
        return super().parse_args(ctx, left)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return a command and its arguments: with the flags that stood before its name."""
        name, found, rest = super().resolve_command(ctx, args)
        if found is not None and not isinstance(found, TyperGroup):
            rest = [*ctx.meta.get(_EARLY, ()), *rest]
        return name, found, rest

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name or an alias of it."""
        found = super().get_command(ctx, cmd_name)
        if found is None and (name := self._find_alias(cmd_name)) is not None:
            return super().get_command(ctx, name)
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands, each with the first sentence of its help as a whole."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, first_sentence(each)) for name, each in found])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """List the aliases of the commands."""
        super().format_epilog(ctx, formatter)
        names = {alias: name for alias in ALIASES if (name := self._find_alias(alias))}
        if names:
            with formatter.section("Aliases"):
                formatter.write_dl(
                    [
                        (", ".join(each for each in names if names[each] == name), name)
                        for name in dict.fromkeys(names.values())
                    ]
                )

    def _find_alias(self, alias: str) -> str | None:
        if alias in self.commands:
            return None
        return next((name for name in ALIASES.get(alias, ()) if name in self.commands), None)


def create_or_find(create: Callable[..., T], if_missing: bool) -> tuple[T, str]:  # noqa: FBT001 - a flag
    """Create a thing; with ``if_missing`` it may exist. Return what it did, in a word, too."""
    from onelog.errors import AlreadyExists

    try:
        return create(exist_ok=False), "created"
    except AlreadyExists:
        if not if_missing:
            raise
    return create(exist_ok=True), "exists"


def first_sentence(command: Any) -> str:
    """Return what a command does, in short."""
    text = " ".join((command.short_help or command.help or "").partition("\n\n")[0].split())
    return re.split(r"[.;](?: |$)", text, maxsplit=1)[0]


def _count_words(args: list[str]) -> int:
    """Return how many words at the beginning are a flag that all commands have."""
    first, equals, _ = args[0].partition("=")
    takes_value = _EARLY_FLAGS.get(first)
    if takes_value is not None:
        return 2 if takes_value and not equals else 1
    is_short = len(first) > 2 and first[0] == "-" and first[1] != "-"
    return 1 if is_short and _EARLY_FLAGS.get(first[:2]) else 0  # -nshop


def group(text: str, *examples: str) -> typer.Typer:
    """Return a group of commands that prints its help if no command is given."""
    if examples:
        text += "\n\n\b\nExamples:\n" + "\n".join(f"  {each}" for each in examples)
    app = typer.Typer(help=text, cls=Group, add_completion=False, rich_markup_mode=None)

    @app.callback(invoke_without_command=True, help=text)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return app


def command(
    app: typer.Typer,
    name: str | None = None,
    *,
    reads: bool = False,
    connection: Collection[str] = tuple(_CONNECTION),
    **settings: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command; see the module's docstring.

    ``connection``: the flags about the connection that it uses.
    """
    flags = {each: _CONNECTION[each] for each in connection}
    common = {"as_json": _AS_JSON, **(_READS if reads else {}), **flags}

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function).parameters.values())[1:]
        added = [
            inspect.Parameter(
                each,
                inspect.Parameter.KEYWORD_ONLY,
                default=_FALSY.get(each, False if each == "as_json" else None),
                annotation=annotation,
            )
            for each, annotation in common.items()
        ]

        for parameter in (*own, *added):
            _hide_empty_default(parameter)

        def run(**arguments: Any) -> None:
            given = {each: arguments.pop(each) for each in common}
            with Session(given) as session:
                function(session, **arguments)

        run.__doc__ = function.__doc__
        run.__name__ = function.__name__
        run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in [*own, *added]}
        app.command(name, cls=ClientCommand, **settings)(run)
        return function

    return register


def _hide_empty_default(parameter: inspect.Parameter) -> None:
    """Hide a default that means "not given" from the help."""
    if parameter.default in (0, "0", ""):
        for each in getattr(parameter.annotation, "__metadata__", ()):
            each.show_default = False
