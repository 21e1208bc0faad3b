"""``onelog admin``: what operators ask a running cluster."""

from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.cli import hold_commands, member_commands, namespace_commands
from onelog.cli.command import Session, command, group
from onelog.cli.connect import CONNECT_S, VARIABLES
from onelog.cli.messages import document_of, shown_hash, word_of
from onelog.cli.output import cell
from onelog.cli.values import endpoint_of, shown_duration, shown_time

if TYPE_CHECKING:
    from onelog.v1 import admin_pb2

app = group("Status, members, leaders, snapshots, namespaces, holds.")
app.add_typer(member_commands.app, name="members")
app.add_typer(namespace_commands.app, name="namespaces")
app.add_typer(hold_commands.app, name="hold")

Shard = Annotated[int, typer.Argument(metavar="SHARD", min=0, help="The shard.")]
Node = Annotated[
    str | None,
    typer.Option(
        "--node",
        metavar="HOST:PORT",
        parser=endpoint_of,
        help="Who is asked; else the shard's leader.",
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-F", help="Go on with new ones.")]


@command(app)
def status(
    session: Session,
    *,
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="HOST:PORT", parser=endpoint_of, help="Only this node."),
    ] = None,
) -> None:
    """Show every node with its shards: roles, terms, positions, lag, holds, alarms.

    Exits with 5 if a node does not answer.

    \b
    Examples:
      onelog admin status
      onelog admin status --json
    """
    from onelog.errors import OnelogError

    output, failed = session.output, None
    documents: list[dict[str, Any]] = []
    for name, endpoint in _nodes(session, node):
        timeout_s = min(CONNECT_S, session.timeout_s)
        try:
            found = session.client.scoped(timeout_s=timeout_s).admin.status(endpoint=endpoint)
        except OnelogError as error:
            failed = error
            documents.append({"node_name": name, "endpoint": endpoint, "error": str(error)})
            if not output.as_json:
                output.result(None, f"node {name} at {endpoint}: no answer: {error}")
            continue
        documents.append(document_of(found) | {"endpoint": endpoint})
        if not output.as_json:
            _print_status(session, found, endpoint)
    if output.as_json:
        output.result({"nodes": documents}, "")
    if failed is not None:
        raise failed


def _nodes(session: Session, only: str | None) -> Iterator[tuple[str, str]]:
    """Yield the nodes by name and endpoint."""
    for node in session.client.admin.topology().nodes:
        if node.endpoints and (only is None or only in node.endpoints):
            yield node.node_name or node.node_id, only or node.endpoints[0]
            if only is not None:
                return
    if only is not None:
        yield only, only


def _print_status(session: Session, found: "admin_pb2.GetStatusResponse", endpoint: str) -> None:
    from onelog.v1 import admin_pb2

    output = session.output
    up = shown_duration(found.uptime_ms // 1000)
    output.result(
        None, f"node {found.node_name} ({found.node_id}) at {endpoint}, {found.version}, up {up}"
    )
    output.table(found.shards, (
        ("shard", lambda each: each.shard),
        ("role", lambda each: word_of(admin_pb2.Role, each.role)),
        ("term", lambda each: each.term),
        ("last", lambda each: each.last_index),
        ("committed", lambda each: each.commit_index),
        ("applied", lambda each: each.applied_index),
        ("snapshot", lambda each: each.snapshot_index),
        ("lag", lambda each: max((lag.proposals for lag in each.lags), default=None)),
        ("contents", lambda each: {name: n for name, n in sorted(each.counts.items()) if n}),
    ))  # fmt: skip
    for shard in found.shards:
        for hold in shard.holds:
            text = f"hold {hold.name} in shard {hold.shard}: {hold_commands.shown_hold(hold)}"
            output.result(None, text)
    for alarm in found.alarms:
        output.result(
            None,
            f"alarm: {alarm.reason} in shard {alarm.shard} since {shown_time(alarm.since_ns)}: "
            f"{alarm.message}",
        )


@command(app)
def topology(session: Session) -> None:
    """Say which node leads which shard, and where all of them serve.

    \b
    Examples:
      onelog admin topology
      onelog admin topology --json
    """
    found = session.client.admin.topology()
    if session.output.as_json:
        session.output.result(document_of(found), "")
        return
    names = {node.node_id: node.node_name or node.node_id for node in found.nodes}
    session.output.result(
        None,
        f"cluster {found.cluster_id}: {found.shard_count} shards, "
        f"{found.partition_count} partitions",
    )
    session.output.table(found.shards, (
        ("shard", lambda each: each.shard),
        ("leader", lambda each: names.get(each.leader_id, each.leader_id) or "none"),
        ("at", lambda each: each.leader_endpoint),
        ("term", lambda each: each.term),
        ("replicas", lambda each: list(each.endpoints)),
    ))  # fmt: skip


@command(app)
def transfer(
    session: Session,
    shard: Shard,
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="NODE_ID", help="Else to the one that has most.")
    ] = "",
) -> None:
    """Hand the leadership of a shard to another node; prints who leads.

    \b
    Examples:
      onelog admin transfer 0 --to "$(onelog admin members list --ids | head -n 1)"
    """
    leader_id = session.client.admin.transfer_leadership(shard, to)
    session.output.result({"shard": shard, "leader_id": leader_id}, leader_id)


@command(app)
def snapshot(session: Session, shard: Shard, *, node: Node = None) -> None:
    """Take a snapshot of a shard on a node.

    \b
    Examples:
      onelog admin snapshot 0
    """
    made = session.client.admin.take_snapshot(shard, endpoint=node)
    text = f"index {made.index}, {made.size} bytes, state hash {shown_hash(made.state_hash)}"
    session.output.result(document_of(made), text)


@command(app, "hash")
def hash_(session: Session, shard: Shard, *, node: Node = None) -> None:
    """Print the hash of a shard's state and its index; equal on all replicas at an index.

    \b
    Examples:
      onelog admin hash 0
      onelog admin hash 0 --json
    """
    found = session.client.admin.state_hash(shard, endpoint=node)
    text = f"{shown_hash(found.state_hash)} at index {found.index}"
    session.output.result(document_of(found), text)


@command(app)
def config(session: Session) -> None:
    """Show how this command line connects: each setting, its value, and where that came from.

    The settings of a server are shown by `onelog config show`.

    \b
    Examples:
      onelog admin config
      onelog admin config --endpoint a:7400,b:7400 --json
    """
    rows = [
        {
            "setting": name,
            "value": "(hidden)" if name == "token" and found.text else found.text,
            "origin": found.origin,
            "variable": VARIABLES[name],
        }
        for name, found in session.settings.items()
    ]
    titles = ("setting", "value", "origin", "variable")
    session.output.table(rows, [(title, itemgetter(title)) for title in titles])


@command(app, "log-ranges")
def log_ranges(session: Session, shard: Shard, *, node: Node = None) -> None:
    """List which indexes of a shard's log a node holds, and where.

    \b
    Examples:
      onelog admin log-ranges 0
    """
    from onelog.v1 import common_pb2

    found = session.client.admin.log_ranges(shard, endpoint=node)
    if session.output.as_json:
        session.output.result(document_of(found), "")
        return
    session.output.table(found.ranges, (
        ("first", lambda each: each.first_index),
        ("last", lambda each: each.last_index),
        ("entries", lambda each: each.entry_count),
        ("bytes", lambda each: each.size),
        ("tier", lambda each: word_of(common_pb2.Tier, each.tier)),
        ("from", lambda each: shown_time(each.first_timestamp_ns)),
        ("to", lambda each: shown_time(each.last_timestamp_ns)),
    ))  # fmt: skip
    session.output.result(None, f"committed up to {found.commit_index}")


@command(app, "read-log")
def read_log(
    session: Session,
    shard: Shard,
    *,
    first: Annotated[
        int,
        typer.Option(
            "--from", min=0, metavar="INDEX", help="From this index on; 0: the first that is kept."
        ),
    ] = 0,
    last: Annotated[
        int, typer.Option("--to", min=0, metavar="INDEX", help="Up to this one; 0: all.")
    ] = 0,
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="At most so many.")] = 0,
    follow: Follow = False,
    voids: Annotated[bool, typer.Option("--voids", help="Also entries that were refused.")] = False,
    node: Node = None,
) -> None:
    """Print committed entries of a shard's log; `onelog log dump` decodes them, offline.

    \b
    Examples:
      onelog admin read-log 0 --limit 5
      onelog admin read-log 0 --limit 3 --voids --json
    """
    entries = session.client.admin.read_log(
        shard, first_index=first, last_index=last, follow=follow, with_voids=voids, endpoint=node
    )
    for count, entry in enumerate(entries, 1):
        text = (
            f"{entry.index:>10}  {entry.term:>5}  {shown_time(entry.timestamp_ns):<30}  "
            f"0x{entry.entry_type:04x}  {cell(entry.payload)}"
        )
        session.output.line(document_of(entry), text)
        if count == limit:
            return
