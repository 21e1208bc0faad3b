"""``onelog admin``: operations on a running cluster.

Its groups are ``members`` (the nodes of the cluster), ``namespaces`` (with their limits) and
``hold`` (the log is kept for readers that have not read it yet).
"""

import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from onelog.cli.command import IfMissing, Session, command, create_or_find, group
from onelog.cli.connect import CONNECT_S, VARIABLES
from onelog.cli.failure import EXIT_NOT_FOUND, EXIT_REFUSED, CommandFailed
from onelog.cli.output import cell, counted, progress, shown_hash, to_document, to_word
from onelog.cli.values import (
    STDIN,
    U64_MAX,
    duration_s,
    parse_endpoint,
    shown_duration,
    shown_size,
    shown_time,
    size_bytes,
)

if TYPE_CHECKING:
    from onelog.client.sync.admin import Admin
    from onelog.v1 import admin_pb2

U32_MAX = (1 << 32) - 1
LEARNER, VOTER = "learner", "voter"

member_app = group(
    "Members of the cluster: list, add, promote, remove.",
    "onelog admin members list",
    "onelog admin members list --json",
)

NodeId = Annotated[str, typer.Argument(metavar="NODE_ID", help="The node.")]


@command(member_app, "list")
def list_(
    session: Session,
    *,
    ids: Annotated[
        bool, typer.Option("--ids", help="Print the ids of nodes and nothing else.")
    ] = False,
) -> None:
    """List the members of every shard.

    \b
    Examples:
      onelog admin members list
      onelog admin members list --ids
    """
    found = session.client.admin.members()
    rows = [
        {"shard": shard.shard, **to_document(member)}
        for shard in found.shards
        for member in shard.members
    ]
    if ids:
        for node_id in sorted({str(row["node_id"]) for row in rows}):
            typer.echo(node_id)
        return
    session.output.table(rows, (
        ("shard", lambda row: row["shard"]),
        ("node", lambda row: row["node_name"]),
        ("id", lambda row: row["node_id"]),
        ("peer address", lambda row: row["peer_address"]),
        ("", lambda row: LEARNER if row["is_learner"] else VOTER),
    ))  # fmt: skip


@command(member_app)
def add(
    session: Session,
    node_id: NodeId,
    peer_address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Where its peer service listens.")
    ],
    *,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The node's name.")] = "",
) -> None:
    """Add a node as a learner in every shard: it receives the data but does not vote yet.

    docs/server.md explains how to start a node that joins, and where its id comes from.

    \b
    Examples:
      onelog admin members add 018f3c5e-0000-7000-8000-000000000004 10.0.0.4:7401 --name node-4
    """
    admin = session.client.admin
    if _roles(admin, node_id) == {VOTER}:
        raise CommandFailed(
            "ALREADY_A_VOTER", f"{node_id} is a member already, and votes", EXIT_REFUSED
        )
    admin.add_member(node_id, name, peer_address)
    session.output.result({"node_id": node_id}, f"{node_id} is a learner now")


@command(member_app)
def promote(session: Session, node_id: NodeId) -> None:
    """Promote a learner that has caught up to a voter, in every shard.

    \b
    Examples:
      onelog admin members promote 018f3c5e-0000-7000-8000-000000000004
    """
    session.client.admin.promote_member(node_id)
    session.output.result({"node_id": node_id}, f"{node_id} votes now")


@command(member_app)
def remove(session: Session, node_id: NodeId) -> None:
    """Remove a node from every shard; exits with 3 if it is a member of none.

    \b
    Examples:
      onelog admin members remove 018f3c5e-0000-7000-8000-000000000004
    """
    admin = session.client.admin
    roles = _roles(admin, node_id)
    admin.remove_member(node_id)  # called for an unknown node too: the server checks the id
    if not roles:
        raise CommandFailed("MEMBER_UNKNOWN", f"{node_id} is no member", EXIT_NOT_FOUND)
    session.output.result({"node_id": node_id}, f"{node_id} is no member any more")


def _roles(admin: "Admin", node_id: str) -> set[str]:
    """Return the roles of a node in the shards; empty if it is a member of none."""
    return {
        LEARNER if member.is_learner else VOTER
        for shard in admin.members().shards
        for member in shard.members
        if member.node_id == node_id.lower()
    }


# Namespace

namespace_app = group(
    "Namespaces and their limits.",
    "onelog admin namespaces create orders --if-missing",
    "onelog admin namespaces list",
    "onelog kv put a 1 --namespace orders",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The namespace.")]
VersionsMax = Annotated[
    int | None,
    typer.Option("--versions", min=0, max=255, metavar="N", help="Versions kept of a key; 0: 8."),
]
ValueSizeMax = Annotated[
    int | None,
    typer.Option(
        "--value-size",
        min=0,
        max=U64_MAX,
        metavar="BYTES",
        help="The largest value; 0: an entry's limit.",
    ),
]
KeysMax = Annotated[
    int | None,
    typer.Option(
        "--keys", min=0, max=U64_MAX, metavar="N", help="Keys in each shard; 0: no limit."
    ),
]
TombstonesMax = Annotated[
    int | None,
    typer.Option(
        "--tombstones", min=0, max=U64_MAX, metavar="N", help="Tombstones in each shard; 0: 65,536."
    ),
]


def _limits(
    old: "admin_pb2.NamespaceLimits",
    versions: int | None,
    value_size: int | None,
    keys: int | None,
    tombstones: int | None,
) -> "admin_pb2.NamespaceLimits":
    from onelog.v1 import admin_pb2

    limits = admin_pb2.NamespaceLimits()
    limits.CopyFrom(old)
    given = {"versions_max": versions, "value_size_max": value_size, "keys_max": keys,
             "tombstones_max": tombstones}  # fmt: skip
    for name, value in given.items():
        if value is not None:
            setattr(limits, name, value)
    return limits


@command(namespace_app)
def create(
    session: Session,
    name: Name,
    *,
    versions: VersionsMax = None,
    value_size: ValueSizeMax = None,
    keys: KeysMax = None,
    tombstones: TombstonesMax = None,
    if_missing: IfMissing = False,
) -> None:
    """Create a namespace in every shard; exits with 4 if it exists.

    \b
    Examples:
      onelog admin namespaces create shop --if-missing
      onelog admin namespaces create shop --versions 20 --keys 1000000
      onelog kv put a 1 --namespace shop
    """
    from onelog.v1 import admin_pb2

    limits = _limits(admin_pb2.NamespaceLimits(), versions, value_size, keys, tombstones)
    make = partial(session.client.admin.create_namespace, name, limits)
    _, what = create_or_find(make, if_missing)
    session.output.result({"namespace": name}, f"namespace {name} {what}")


@command(namespace_app)
def configure(
    session: Session,
    name: Name,
    *,
    versions: VersionsMax = None,
    value_size: ValueSizeMax = None,
    keys: KeysMax = None,
    tombstones: TombstonesMax = None,
) -> None:
    """Change limits of a namespace; those that are not given stay.

    \b
    Examples:
      onelog admin namespaces configure shop --versions 50
    """
    admin = session.client.admin
    old = admin.namespaces().get(name)
    if old is None:
        raise CommandFailed("NAMESPACE_UNKNOWN", f"there is no namespace {name}", EXIT_NOT_FOUND)
    limits = _limits(old, versions, value_size, keys, tombstones)
    admin.configure_namespace(name, limits)
    session.output.result(
        {"namespace": name, "limits": to_document(limits)}, f"namespace {name} configured"
    )


@command(namespace_app)
def delete(session: Session, name: Name) -> None:
    """Delete a namespace with everything in it.

    \b
    Examples:
      onelog admin namespaces delete old-shop
    """
    session.client.admin.delete_namespace(name)
    session.output.result({"namespace": name}, f"namespace {name} deleted")


@command(namespace_app, "list")
def namespace_list_(session: Session) -> None:
    """List namespaces and their limits; 0 is the default.

    \b
    Examples:
      onelog admin namespaces list
    """
    found = session.client.admin.namespaces()
    rows = [{"namespace": name, **to_document(limits)} for name, limits in sorted(found.items())]
    session.output.table(rows, (
        ("namespace", lambda row: row["namespace"]),
        ("versions", lambda row: row["versions_max"]),
        ("value size", lambda row: row["value_size_max"]),
        ("keys", lambda row: row["keys_max"]),
        ("tombstones", lambda row: row["tombstones_max"]),
    ))  # fmt: skip


# Hold

hold_app = group(
    "Holds: parts of the log that a reader still needs.",
    "onelog admin hold set morning-export --from-start --for 2d",
    "onelog admin hold list",
    "onelog admin hold release morning-export",
)

HoldName = Annotated[str, typer.Argument(metavar="NAME", help="The hold.")]
_INDEX = re.compile(r"(?:([0-9]{1,9})=)?([0-9]{1,20})")


@command(hold_app, "set")
def set_(
    session: Session,
    name: HoldName,
    *,
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            metavar="INDEX | SHARD=INDEX,…",
            help="The first entry to keep, in all shards or by shard; default: the next one.",
        ),
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="If no index is given: keep the whole log.")
    ] = False,
    move: Annotated[
        bool,
        typer.Option("--move", help="Advance a hold; without --index only renew it."),
    ] = False,
    lifetime_s: Annotated[
        float | None,
        typer.Option(
            "--for",
            metavar="TIME",
            parser=duration_s,
            help="Break it if it is not set for this long; default 7d.",
        ),
    ] = None,
    bytes_max: Annotated[
        int | None,
        typer.Option(
            "--max-bytes",
            metavar="SIZE",
            parser=size_bytes,
            help="Break it if it keeps more of a shard; default 16GiB.",
        ),
    ] = None,
) -> None:
    """Create or move a hold, which keeps the log from an index on for a reader.

    Without --move it exits with 4 if the hold exists. The log is kept until the hold is moved or
    released, or is too old or too large: then it breaks, keeps nothing, and raises an alarm.

    \b
    Examples:
      onelog admin hold set nightly-export --from-start
      onelog admin hold set nightly-export --move --index 0=5
      onelog admin hold set clicks-query --for 2d --max-bytes 4GiB
    """
    if move and from_start:
        raise CommandFailed("USAGE", "--from-start is for a new hold")
    for option, given in (("--for", lifetime_s), ("--max-bytes", bytes_max)):
        if given == 0:
            raise CommandFailed("USAGE", f"{option} 0 would break it at once")
    found = session.client.admin.set_hold(
        name,
        move=move,
        indexes=_indexes(session, index),
        from_start=from_start,
        ttl_s=lifetime_s,
        bytes_max=bytes_max or 0,
    )
    places = ", ".join(f"{at} in shard {shard}" for shard, at in found.items())
    session.output.result(
        {"name": name, "indexes": {str(shard): at for shard, at in found.items()}},
        f"hold {name} keeps the log from index {places} on",
    )


@command(hold_app, "list")
def hold_list_(session: Session) -> None:
    """List holds: how much they keep, their limits, and whether they are broken.

    \b
    Examples:
      onelog admin hold list
      onelog admin hold list --json
    """
    found = session.client.admin.list_holds()
    session.output.table([to_document(hold) for hold in found], (
        ("hold", lambda row: row["name"]),
        ("shard", lambda row: row["shard"]),
        ("from index", lambda row: row["index"]),
        ("keeps", lambda row: shown_size(int(row["bytes"]))),
        ("of", lambda row: shown_size(int(row["bytes_max"]))),
        ("set", lambda row: f"{shown_duration(int(row['age_ms']) // 1000)} ago"),
        ("lives", lambda row: shown_duration(int(row["ttl_ms"]) / 1000)),
        ("broken by", lambda row: row["cause"] if row["broken_index"] else ""),
    ))  # fmt: skip


@command(hold_app)
def release(session: Session, name: HoldName) -> None:
    """Release a hold; the next trims may drop what it kept. Exits with 3 if there is none.

    \b
    Examples:
      onelog admin hold release old-export
    """
    session.client.admin.release_hold(name)
    session.output.result({"name": name}, f"hold {name} released")


def shown_hold(hold: "admin_pb2.Hold") -> str:
    """Describe a hold of one shard in one line."""
    from onelog.v1 import admin_pb2

    if hold.cause:
        cause = to_word(admin_pb2.HoldCause, hold.cause)
        return f"broken by {cause} at index {hold.broken_index}"
    size = f"{shown_size(hold.bytes)} of {shown_size(hold.bytes_max)}"
    return f"from index {hold.index} on, {size}, set {shown_duration(hold.age_ms // 1000)} ago"


def _indexes(session: Session, text: str | None) -> dict[int, int]:
    """Parse ``12`` (all shards) or ``0=12,1=99``; return the index by shard."""
    if text is None:
        return {}
    found: dict[int, int] = {}
    for part in text.split(","):
        match = _INDEX.fullmatch(part.strip())
        if match is None or int(match[2]) > U64_MAX or (match[1] is None and part != text):
            raise CommandFailed("USAGE", f"--index {text} is neither 12 nor 0=12,1=99")
        if match[1] is None:
            shards = session.client.admin.topology().shard_count
            return dict.fromkeys(range(shards), int(match[2]))
        if int(match[1]) in found:
            raise CommandFailed("USAGE", f"--index {text} names shard {match[1]} twice")
        found[int(match[1])] = int(match[2])
    return found


# Sessions

session_app = group(
    "Sessions: what makes the retries of writes exact, for programs without ours.",
    "ID=$(onelog admin session open --ttl 10m)",
    "onelog admin session keep $ID",
    "onelog admin session close $ID",
)

OfShard = Annotated[
    int, typer.Option("--shard", min=0, max=U32_MAX, metavar="N", help="The session's shard.")
]
SessionId = Annotated[
    int, typer.Argument(metavar="ID", min=1, max=U64_MAX, help="As `open` printed it.")
]


@command(session_app, "open")
def open_(
    session: Session,
    *,
    shard: OfShard = 0,
    ttl: Annotated[
        float,
        typer.Option("--ttl", metavar="TIME", parser=duration_s, help="Lifetime without requests."),
    ] = "10m",  # type: ignore[assignment] # typer parses it
) -> None:
    """Open a session in a shard; prints its id. The Python client opens its own.

    \b
    Examples:
      onelog admin session open --ttl 1h
    """
    from onelog.client.values import milliseconds
    from onelog.v1 import pipeline_pb2

    request = pipeline_pb2.OpenSessionRequest(shard=shard, ttl_ms=milliseconds(ttl))
    opened = session.client.call("Pipeline/OpenSession", request, shard=shard)
    session.output.result({"session_id": opened.session_id}, str(opened.session_id))


@command(session_app, "keep")
def keep_session(session: Session, session_id: SessionId, *, shard: OfShard = 0) -> None:
    """Renew a session: its lifetime starts again.

    \b
    Examples:
      ID=$(onelog admin session open)
      onelog admin session keep $ID
    """
    from onelog.v1 import pipeline_pb2

    request = pipeline_pb2.KeepSessionRequest(shard=shard, session_id=session_id)
    session.client.call("Pipeline/KeepSession", request, shard=shard)
    session.output.result({"session_id": session_id}, f"session {session_id} renewed")


@command(session_app, "close")
def close_session(session: Session, session_id: SessionId, *, shard: OfShard = 0) -> None:
    """Close a session; what it remembers of requests is forgotten.

    \b
    Examples:
      ID=$(onelog admin session open)
      onelog admin session close $ID
    """
    from onelog.v1 import pipeline_pb2

    request = pipeline_pb2.CloseSessionRequest(shard=shard, session_id=session_id)
    session.client.call("Pipeline/CloseSession", request, shard=shard)
    session.output.result({"session_id": session_id}, f"session {session_id} closed")


# Admin

app = group(
    "Status, members, leaders, snapshots, namespaces, holds.",
    "onelog admin status",
    "onelog admin topology",
    "onelog admin snapshot 0",
    "onelog admin namespaces list",
)
app.add_typer(member_app, name="members")
app.add_typer(namespace_app, name="namespaces")
app.add_typer(hold_app, name="hold")
app.add_typer(session_app, name="session")
ping_app = typer.Typer(add_completion=False, rich_markup_mode=None)

Shard = Annotated[int, typer.Argument(metavar="SHARD", min=0, help="The shard.")]
Node = Annotated[
    str | None,
    typer.Option(
        "--node",
        metavar="HOST:PORT",
        parser=parse_endpoint,
        help="The node to ask; default: the shard's leader.",
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-F", help="Continue with new entries.")]


@command(app)
def status(
    session: Session,
    *,
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="HOST:PORT", parser=parse_endpoint, help="Only this node."),
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
        documents.append(to_document(found) | {"endpoint": endpoint})
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


def _shown_moment(time_ns: int) -> str:
    """Format a time; the first entry of a log has none."""
    return shown_time(time_ns) if time_ns else "-"


def _print_status(session: Session, found: "admin_pb2.GetStatusResponse", endpoint: str) -> None:
    from onelog.v1 import admin_pb2

    output = session.output
    up = shown_duration(found.uptime_ms // 1000)
    output.result(
        None, f"node {found.node_name} ({found.node_id}) at {endpoint}, {found.version}, up {up}"
    )
    output.table(found.shards, (
        ("shard", lambda each: each.shard),
        ("role", lambda each: to_word(admin_pb2.Role, each.role)),
        ("term", lambda each: each.term),
        ("last", lambda each: each.last_index),
        ("committed", lambda each: each.commit_index),
        ("applied", lambda each: each.applied_index),
        ("snapshot", lambda each: each.snapshot_index),
        ("past from", lambda each: each.snapshots.first_as_of_index),
        ("past since", lambda each: _shown_moment(each.snapshots.first_as_of_ns)),
        ("lag", lambda each: max((lag.proposals for lag in each.lags), default=None)),
        ("contents", lambda each: {name: n for name, n in sorted(each.counts.items()) if n}),
    ))  # fmt: skip
    for shard in found.shards:
        for hold in shard.holds:
            text = f"hold {hold.name} in shard {hold.shard}: {shown_hold(hold)}"
            output.result(None, text)
    for alarm in found.alarms:
        output.result(
            None,
            f"alarm: {alarm.reason} in shard {alarm.shard} since {shown_time(alarm.since_ns)}: "
            f"{alarm.message}",
        )


@command(app)
def topology(session: Session) -> None:
    """Show which node leads which shard, and the endpoints of all nodes.

    \b
    Examples:
      onelog admin topology
      onelog admin topology --json
    """
    found = session.client.admin.topology()
    if session.output.as_json:
        session.output.result(to_document(found), "")
        return
    names = {node.node_id: node.node_name or node.node_id for node in found.nodes}
    session.output.result(
        None,
        f"cluster {found.cluster_id}: {counted(found.shard_count, 'shard')}, "
        f"{counted(found.partition_count, 'partition')}",
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
        str, typer.Option("--to", metavar="NODE_ID", help="Default: the most up-to-date node.")
    ] = "",
) -> None:
    """Transfer the leadership of a shard to another node; prints the new leader.

    \b
    Examples:
      onelog admin transfer 0 --to "$(onelog admin members list --ids | head -n 1)"
    """
    leader_id = session.client.admin.transfer_leadership(shard, to)
    session.output.result({"shard": shard, "leader_id": leader_id}, leader_id)


@command(app)
def snapshot(session: Session, shard: Shard, *, node: Node = None) -> None:
    """Take a snapshot of a shard on a node; waits until it is done, up to an hour by default.

    \b
    Examples:
      onelog admin snapshot 0
    """
    with progress(f"taking a snapshot of shard {shard}"):
        admin, timeout_s = session.client.admin, session.long_timeout_s
        made = admin.take_snapshot(shard, endpoint=node, timeout_s=timeout_s)
    size, state_hash = counted(made.size, "byte"), shown_hash(made.state_hash)
    text = f"index {made.index}, {size}, state hash {state_hash}"
    session.output.result(to_document(made), text)


@command(app, "hash")
def hash_(session: Session, shard: Shard, *, node: Node = None) -> None:
    """Print the hash of a shard's state and its index; equal on all replicas at the same index.

    \b
    Examples:
      onelog admin hash 0
      onelog admin hash 0 --json
    """
    found = session.client.admin.state_hash(shard, endpoint=node)
    text = f"{shown_hash(found.state_hash)} at index {found.index}"
    session.output.result(to_document(found), text)


@command(app)
def config(session: Session) -> None:
    """Show how this command line connects: each setting, its value, and where it comes from.

    The settings of a server are shown by `onelog config show`.

    \b
    Examples:
      onelog admin config
      onelog admin config --endpoint a:7400,b:7400 --json
    """
    rows = [
        {
            "setting": name,
            "value": found.text,
            "origin": found.origin,
            "variable": VARIABLES[name],
        }
        for name, found in session.settings.items()
    ]
    titles = ("setting", "value", "origin", "variable")
    session.output.table(rows, [(title, itemgetter(title)) for title in titles])


@command(ping_app)
def ping(session: Session) -> None:
    """Ask every node for an answer; exits with 5 if one does not give it.

    \b
    Examples:
      onelog ping
      onelog --json ping
    """
    from onelog.errors import OnelogError

    failed, rows = None, []
    client = session.client.scoped(timeout_s=min(CONNECT_S, session.timeout_s))
    for name, endpoint in _nodes(session, None):
        try:
            took_ms, error = round(client.ping(endpoint=endpoint) * 1000, 3), ""
        except OnelogError as failure:
            failed, took_ms, error = failure, None, failure.message
        rows.append({"node": name, "endpoint": endpoint, "ms": took_ms, "error": error})
    session.output.table(rows, (
        ("node", itemgetter("node")),
        ("endpoint", itemgetter("endpoint")),
        ("answered in", lambda row: None if row["ms"] is None else f"{row['ms']:g} ms"),
        ("", itemgetter("error")),
    ))  # fmt: skip
    if failed is not None:
        raise failed


@command(app, "describe-log")
def describe_log(session: Session, shard: Shard) -> None:
    """Show the files and snapshots of a shard's log, and up to which index it is written.

    \b
    Examples:
      onelog admin describe-log 0
      onelog admin describe-log 0 --json
    """
    found = session.client.log.describe(shard)
    if session.output.as_json:
        session.output.result(to_document(found), "")
        return
    session.output.result(
        None,
        f"shard {shard} of {found.shard_count}: entries {found.first_index} to {found.cut_index}; "
        f"reads of the past from index {found.first_as_of_index} on",
    )
    session.output.table(found.spans, (
        ("first", lambda each: each.first_index),
        ("last", lambda each: each.last_index),
        ("entries", lambda each: each.entry_count),
        ("bytes", lambda each: each.size),
        ("file", lambda each: "sealed" if each.sealed else "grows"),
        ("", lambda each: "damaged" if each.damaged else None),
    ))  # fmt: skip
    if found.snapshots:
        session.output.table(found.snapshots, (
            ("snapshot", lambda each: each.index),
            ("bytes", lambda each: each.size),
            ("state hash", lambda each: shown_hash(each.state_hash)),
            ("taken at", lambda each: shown_time(each.timestamp_ns) if each.timestamp_ns else None),
        ))  # fmt: skip


ToFile = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="The output file; - is stdout.")
]


@command(app, "fetch-log")
def fetch_log(
    session: Session,
    shard: Shard,
    *,
    first: Annotated[
        int, typer.Option("--from", min=0, metavar="INDEX", help="The first; 0: of those kept.")
    ] = 0,
    last: Annotated[
        int, typer.Option("--to", min=0, metavar="INDEX", help="The last; 0: all written so far.")
    ] = 0,
    output: ToFile,
    node: Node = None,
) -> None:
    """Copy entries of a shard's log as they are stored, back to back (docs/formats.md).

    \b
    Examples:
      onelog admin fetch-log 0 -o entries.bin
      onelog admin fetch-log 0 --from 2 --to 5 -o - | wc -c
    """
    log = session.client.log
    described = log.describe(shard)
    begin, end = first or described.first_index, last or described.cut_index
    with _opened(output) as target, progress("fetching entries", end - begin + 1) as advance:
        for frame in log.frames(shard, begin, end, endpoint=node):
            target.write(frame.data)
            advance(frame.last_index - frame.first_index + 1)
    if str(output) != STDIN:
        text = f"entries {begin} to {end} are in {output}"
        found = {"first_index": begin, "last_index": end, "path": str(output)}
        session.output.result(found, text)


@command(app, "fetch-snapshot")
def fetch_snapshot(
    session: Session,
    shard: Shard,
    *,
    index: Annotated[
        int, typer.Option("--index", min=0, metavar="INDEX", help="Its index; 0: the newest.")
    ] = 0,
    output: ToFile,
    node: Node = None,
) -> None:
    """Copy a snapshot of a shard as it is stored (docs/snapshots.md).

    \b
    Examples:
      onelog admin snapshot 0
      onelog admin fetch-snapshot 0 -o shard-0.snapshot
    """
    size = 0
    with _opened(output) as target, progress("fetching bytes") as advance:
        for chunk in session.client.log.snapshot(shard, index, endpoint=node):
            size += len(chunk)
            target.write(chunk)
            advance(len(chunk))
    if str(output) != STDIN:
        found = {"path": str(output), "size": size}
        session.output.result(found, f"{counted(size, 'byte')} are in {output}")


def _opened(path: Path) -> AbstractContextManager[BinaryIO]:
    """Return a file to write to; ``-`` is stdout."""
    return nullcontext(sys.stdout.buffer) if str(path) == STDIN else path.open("wb")


@command(app, "log-ranges")
def log_ranges(session: Session, shard: Shard, *, node: Node = None) -> None:
    """List which indexes of a shard's log a node holds, and in which storage.

    \b
    Examples:
      onelog admin log-ranges 0
    """
    from onelog.v1 import common_pb2

    found = session.client.admin.log_ranges(shard, endpoint=node)
    if session.output.as_json:
        session.output.result(to_document(found), "")
        return
    session.output.table(found.ranges, (
        ("first", lambda each: each.first_index),
        ("last", lambda each: each.last_index),
        ("entries", lambda each: each.entry_count),
        ("bytes", lambda each: each.size),
        ("tier", lambda each: to_word(common_pb2.Tier, each.tier)),
        ("from", lambda each: _shown_moment(each.first_timestamp_ns)),
        ("to", lambda each: _shown_moment(each.last_timestamp_ns)),
    ))  # fmt: skip
    session.output.result(None, f"committed up to {found.commit_index}")


@command(app)
def damage(session: Session, *, node: Node = None) -> None:
    """List the damaged files of a node's logs, and what cannot be read because of them.

    \b
    Examples:
      onelog admin damage
      onelog admin damage --json
    """
    found = session.client.admin.damage(endpoint=node)
    if session.output.as_json:
        session.output.result(to_document(found), "")
        return
    session.output.table(found.segments, (
        ("shard", lambda each: each.shard),
        ("entries", lambda each: f"{each.first_index}-{each.last_index}"),
        ("unreadable", lambda each: " ".join(map(_shown_range, each.unreadable))),
        ("repair", lambda each: "no member has a copy" if each.no_copy else "under way"),
        ("found by", lambda each: each.found_by),
        ("rule", lambda each: each.rule),
        ("file", lambda each: each.path),
    ), nothing="nothing is damaged")  # fmt: skip
    messages = [message for each in found.segments for message in each.messages]
    if messages:
        session.output.table(messages, (
            ("namespace", lambda each: each.namespace),
            ("queue", lambda each: each.queue),
            ("unreadable message", lambda each: each.message_id),
        ))  # fmt: skip


def _shown_range(entries: Any) -> str:
    first, last = entries.first_index, entries.last_index
    return str(first) if first == last else f"{first}-{last}"


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
        int, typer.Option("--to", min=0, metavar="INDEX", help="Up to this index; 0: all.")
    ] = 0,
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="At most N.")] = 0,
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
    from onelog.cli.log.output import shown_type

    entries = session.client.admin.read_log(
        shard,
        first_index=first,
        last_index=last,
        follow=follow,
        with_voids=voids,
        pass_damage=True,
        endpoint=node,
    )
    for count, entry in enumerate(entries, 1):
        moment = _shown_moment(entry.timestamp_ns)
        text = (
            f"{entry.index:>10}  {entry.term:>5}  {moment:<30}  "
            f"{shown_type(entry.entry_type):<24}  {cell(entry.payload)}"
        )
        if last_one := entry.unreadable_through:
            text = f"{entry.index:>10}  cannot be read up to {last_one}: the file is damaged"
        session.output.line(to_document(entry), text)
        if count == limit:
            return
