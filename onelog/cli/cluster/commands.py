"""``onelog cluster``: a cluster of real servers on this machine, for trials and development.

The client is imported inside the commands that need it, so that the others start fast.
"""

import asyncio
import json
import sys
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from onelog.cli.cluster.certificates import (
    DAYS_DEFAULT,
    DAYS_MAX,
    Authority,
    parse_node,
)
from onelog.cli.cluster.lifecycle import (
    CLUSTER_NAME,
    STOP_S_MAX,
    UpRequest,
    client_pair,
    kill_node,
    last_words,
    remember_flags,
    restart_node,
    start_cluster,
    stop_cluster,
)
from onelog.cli.cluster.processes import BASE_MAX
from onelog.cli.cluster.state import DEFAULT_PATH, NODES_MAX, ClusterDirectory
from onelog.cli.command import group
from onelog.cli.failure import CommandFailed
from onelog.cli.output import counted, printable

if TYPE_CHECKING:
    from onelog.cli.cluster.status import ClusterStatus

EXIT_NOT_WHOLE = 3
EXIT_INTERRUPTED = 130
SHARDS_MAX = 65_535
READY_S = 60.0
FOLLOW_S = 0.2
LINES_MAX = 100_000
WIDTH = 120  # of a table that is not for a terminal

app = group(
    "Run a cluster on this machine.",
    "onelog cluster up --detach",
    "onelog cluster status",
    "onelog cluster kill 1",
    "onelog cluster restart 1",
    "onelog cluster down",
)

Dir = Annotated[
    Path, typer.Option("--dir", help="The cluster's directory, with all data and logs.")
]
Number = Annotated[int, typer.Argument(metavar="N", help="The node's number; the first is 1.")]
ReadyWithin = Annotated[
    float,
    typer.Option("--ready-within", min=0.1, max=86_400, help="Seconds for nodes to get ready."),
]
FirstPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=BASE_MAX,
        help="The first of 300 ports that the nodes share; default: a free block.",
    ),
]
WithTls = Annotated[
    bool | None,
    typer.Option(
        "--tls/--no-tls", help="Require certificates, made in DIR/certs; default: as last time."
    ),
]
StopWithin = Annotated[
    float,
    typer.Option(
        "--stop-within", min=0, max=86_400, help="Seconds for a clean stop; then it is killed."
    ),
]


@app.callback(invoke_without_command=True)
def cluster(context: typer.Context) -> None:
    """Run a cluster on this machine."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def up(
    flags: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- FLAGS]", help="Further flags of onelog serve for every node, after --."
        ),
    ] = None,
    *,
    path: Dir = DEFAULT_PATH,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=NODES_MAX, help="Nodes; 3 in a new directory.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, max=SHARDS_MAX, help="Shards; 4, or 1 for a single node.")
    ] = None,
    port: FirstPort = None,
    is_tls: WithTls = None,
    is_detached: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when all nodes are ready.")
    ] = False,
    ready_within: ReadyWithin = READY_S,
    stop_within: StopWithin = STOP_S_MAX,
) -> None:
    """Start a cluster and show its status; Ctrl-C brings it down.

    A cluster that exists in the directory is started again with its data; without flags, with those
    of the last successful start. Node N has its data in DIR/nN/data and its output in DIR/nN/log.
    A node that does not start is named; if the others serve without it, they stay up (exit code 3
    with --detach).

    \b
    Examples:
      onelog cluster up
      onelog cluster up --nodes 5 --detach
      onelog cluster up --tls
      onelog cluster up --dir /tmp/quick -- --raft-heartbeat-s 0.05
    """
    from onelog.cli.cluster.view import see_up

    directory = ClusterDirectory(path)
    known = directory.find()
    with ExitStack() as held, ExitStack() as failing:
        request = UpRequest(nodes, shards, port, tuple(flags or ()), is_tls)
        start_cluster(directory, request, held)
        # Flags are remembered only when the nodes got ready with them.
        failing.callback(remember_flags, directory, () if known is None else known.flags)
        if known is not None and known.is_up:
            typer.echo(f"note: {path} was not brought down last time; its nodes recover", err=True)

        lame: list[int] = []

        def ready(status: "ClusterStatus") -> None:
            failing.pop_all()
            held.close()
            lame.extend(_print_ready(directory, status))

        was_ready = asyncio.run(
            see_up(
                directory,
                ready,
                ready_s=ready_within,
                stop_s=stop_within,
                is_detached=is_detached,
            )
        )
    if not was_ready or (is_detached and lame):
        raise typer.Exit(EXIT_NOT_WHOLE if was_ready else EXIT_INTERRUPTED)


def _print_ready(directory: ClusterDirectory, status: "ClusterStatus") -> list[int]:
    """Say how clients reach the cluster; return the nodes that do not serve, after naming them."""
    serving = [node for node in status.members if node.is_ready]
    endpoints = ",".join(node.endpoint for node in serving)
    count = len(serving)
    typer.echo(
        f"cluster {directory.path} is up: {counted(count, 'node')}, clients call {endpoints}"
    )
    typer.echo(f"for commands in another terminal: export ONELOG_ENDPOINTS={endpoints}")
    for node in status.nodes:
        if node not in status.members:
            typer.echo(f"note: node {node.number} was removed from the cluster", err=True)
        elif node.pid is None:
            said = printable(last_words(directory, node.number))
            typer.echo(f"warning: node {node.number} did not start: {said}", err=True)
        elif not node.is_ready:
            said = printable(f"is {node.state}, waiting for {node.waiting_for}")
            typer.echo(f"warning: node {node.number} {said}", err=True)
    if directory.load().is_tls:
        own, path = client_pair(directory), directory.certificates
        typer.echo(
            f"with --tls-ca {path / 'ca.crt'} --tls-cert {own.certificate} --tls-key {own.key}"
        )
    return [node.number for node in status.members if not node.is_ready]


@app.command()
def certs(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the files.")],
    *,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="NAME=HOST[,HOST]",
            help="A node, and the names and addresses that it is called by; repeat for more.",
        ),
    ] = None,
    clients: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="A client; repeat for more."),
    ] = None,
    cluster_name: Annotated[
        str, typer.Option("--cluster-name", metavar="NAME", help="The cluster's name.")
    ] = CLUSTER_NAME,
    days: Annotated[
        float, typer.Option("--days", min=0, max=DAYS_MAX, help="How long certificates last.")
    ] = DAYS_DEFAULT,
) -> None:
    """Make certificates for the nodes and clients of a cluster, and an authority if there is none.

    The authority is DIR/ca.crt with DIR/ca.key; keep that key away from servers. Repeat the command
    to renew certificates: a server that is given the new files uses them without a restart.

    \b
    Examples:
      onelog cluster certs certs --node n1=db1.example.com,10.0.0.1 --node n2=db2.example.com
      onelog cluster certs certs --client reports --days 90
    """
    authority = Authority(path, cluster_name)
    made = [authority.issue_node(parse_node(text), days) for text in nodes or ()]
    made += [authority.issue_client(name, days) for name in clients or ()]
    typer.echo(f"authority {authority.pair.certificate}")
    for pair in made:
        typer.echo(f"made {pair.certificate} and {pair.key}")


@app.command()
def status(
    *,
    path: Dir = DEFAULT_PATH,
    is_watched: Annotated[
        bool, typer.Option("--watch", "-w", help="Update until Ctrl-C, or until it is down.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON, for scripts; with --watch a line per update."),
    ] = False,
) -> None:
    """Show the nodes, and which of them leads which shard.

    ``behind`` is the number of committed entries that a node has not applied yet. For a node that
    is down it is known only with --watch, if the node was running before.

    A node that was removed from the cluster does not count.

    \b
    Exit codes:
      0  every node serves and every shard has a leader
      1  the command failed
      2  the command was not understood
      3  a node does not serve, or a shard has no leader

    \b
    Examples:
      onelog cluster status
      onelog cluster status --watch
      onelog cluster status --json | jq '.shards[] | {shard, leader, behind}'
    """
    from rich.console import Console

    from onelog.cli.cluster import view
    from onelog.cli.cluster.view import watch

    directory = ClusterDirectory(path)
    directory.load()
    if is_watched:
        asyncio.run(watch(directory, is_json=as_json))
        return
    found = asyncio.run(_look(directory))
    if as_json:
        typer.echo(json.dumps(view.as_json(path, found), indent=2))
    else:
        width = None if sys.stdout.isatty() else WIDTH
        Console(width=width, highlight=False, markup=False).print(view.render(path, found))
    if not found.is_whole:
        raise typer.Exit(EXIT_NOT_WHOLE)


async def _look(directory: ClusterDirectory) -> "ClusterStatus":
    from onelog.cli.cluster.status import Observer

    async with Observer(directory) as observer:
        return await observer.look()


@app.command()
def down(*, path: Dir = DEFAULT_PATH, stop_within: StopWithin = STOP_S_MAX) -> None:
    """Stop all nodes cleanly; the data stays.

    \b
    Examples:
      onelog cluster down
      onelog cluster down --stop-within 60
    """
    count, killed = stop_cluster(ClusterDirectory(path), stop_within)
    if not count:
        typer.echo("no node was running")
        return
    for number in killed:
        typer.echo(f"warning: node {number} was killed after {stop_within:g} s", err=True)
    typer.echo(f"{count} node{'s have' if count > 1 else ' has'} ended")


@app.command()
def kill(number: Number, *, path: Dir = DEFAULT_PATH) -> None:
    """Kill a node, as a crash of its machine would (SIGKILL).

    \b
    Examples:
      onelog cluster kill 2
    """
    pid = kill_node(ClusterDirectory(path), number)
    typer.echo(f"node {number} was killed, process {pid}")


@app.command()
def restart(
    number: Number,
    *,
    path: Dir = DEFAULT_PATH,
    ready_within: ReadyWithin = READY_S,
    stop_within: StopWithin = STOP_S_MAX,
) -> None:
    """Restart a node; returns when it is ready.

    \b
    Examples:
      onelog cluster restart 2
    """
    from onelog.cli.cluster.view import wait_until_ready

    directory = ClusterDirectory(path)
    restart_node(directory, number, stop_within)
    found = asyncio.run(wait_until_ready(directory, [number], ready_within))
    typer.echo(f"node {number} is ready, process {found.nodes[number - 1].pid}")


@app.command()
def logs(
    number: Number,
    *,
    path: Dir = DEFAULT_PATH,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=LINES_MAX, help="The number of last lines.")
    ] = 50,
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new lines until Ctrl-C.")
    ] = False,
) -> None:
    """Show the output of a node.

    \b
    Examples:
      onelog cluster logs 1
      onelog cluster logs 1 -n 200 --follow
    """
    directory = ClusterDirectory(path)
    directory.load().node(number)
    log = directory.log_path(number)
    if not log.exists():
        raise CommandFailed("NOT_RUNNING", f"node {number} was never started")
    with log.open("rb") as file:
        for line in deque(file, maxlen=lines):
            _write(line)
        while is_followed:
            _follow(file)
            time.sleep(FOLLOW_S)


def _follow(file: BinaryIO) -> None:
    for line in file:
        _write(line)


def _write(line: bytes) -> None:
    """Write a line of a log, with control characters escaped."""
    typer.echo(printable(line.decode(errors="replace").rstrip("\n")))
