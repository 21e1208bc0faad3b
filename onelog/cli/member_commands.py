"""``onelog admin members``: who belongs to the cluster."""

from typing import TYPE_CHECKING, Annotated

import typer

from onelog.cli.command import Session, command, group
from onelog.cli.failure import EXIT_NOT_FOUND, EXIT_REFUSED, CommandFailed
from onelog.cli.messages import document_of

if TYPE_CHECKING:
    from onelog.client.sync.admin import Admin

LEARNER, VOTER = "learner", "voter"

app = group("Members of the cluster: list, add, promote, remove.")

NodeId = Annotated[str, typer.Argument(metavar="NODE_ID", help="The node.")]


@command(app, "list")
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
        {"shard": shard.shard, **document_of(member)}
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


@command(app)
def add(
    session: Session,
    node_id: NodeId,
    peer_address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Where its peer service listens.")
    ],
    *,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What to call it.")] = "",
) -> None:
    """Add a node as a learner in every shard; it gets the data and does not vote yet.

    docs/server.md says how a node is started that joins, and where its id comes from.

    \b
    Usage:
      onelog admin members add 018f3c5e-0000-7000-8000-000000000004 10.0.0.4:7401 --name node-4
    """
    admin = session.client.admin
    if _roles(admin, node_id) == {VOTER}:
        raise CommandFailed(
            "ALREADY_A_VOTER", f"{node_id} is a member already, and votes", EXIT_REFUSED
        )
    admin.add_member(node_id, name, peer_address)
    session.output.result({"node_id": node_id}, f"{node_id} is a learner now")


@command(app)
def promote(session: Session, node_id: NodeId) -> None:
    """Make a learner that has caught up a voter, in every shard.

    \b
    Usage:
      onelog admin members promote 018f3c5e-0000-7000-8000-000000000004
    """
    session.client.admin.promote_member(node_id)
    session.output.result({"node_id": node_id}, f"{node_id} votes now")


@command(app)
def remove(session: Session, node_id: NodeId) -> None:
    """Remove a node from every shard; exits with 3 if it is a member of none.

    \b
    Usage:
      onelog admin members remove 018f3c5e-0000-7000-8000-000000000004
    """
    admin = session.client.admin
    roles = _roles(admin, node_id)
    admin.remove_member(node_id)  # also a stranger: it says whether this is an id at all
    if not roles:
        raise CommandFailed("MEMBER_UNKNOWN", f"{node_id} is no member", EXIT_NOT_FOUND)
    session.output.result({"node_id": node_id}, f"{node_id} is no member any more")


def _roles(admin: "Admin", node_id: str) -> set[str]:
    """Return what a node is in the shards; nothing if it is a member of none."""
    return {
        LEARNER if member.is_learner else VOTER
        for shard in admin.members().shards
        for member in shard.members
        if member.node_id == node_id.lower()
    }
