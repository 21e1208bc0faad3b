"""``onelog admin namespaces``: namespaces and what they allow."""

from typing import TYPE_CHECKING, Annotated

import typer

from onelog.cli.command import Session, command, group
from onelog.cli.failure import EXIT_NOT_FOUND, CommandFailed
from onelog.cli.messages import document_of
from onelog.cli.values import U64_MAX

if TYPE_CHECKING:
    from onelog.v1 import admin_pb2

app = group("Namespaces and what they allow.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The namespace.")]
VersionsMax = Annotated[
    int | None,
    typer.Option("--versions", min=0, max=255, metavar="N", help="Kept for each key; 0: 8."),
]
ValueSizeMax = Annotated[
    int | None,
    typer.Option(
        "--value-size", min=0, max=U64_MAX, metavar="BYTES", help="Of a value; 0: as an entry can."
    ),
]
KeysMax = Annotated[
    int | None,
    typer.Option("--keys", min=0, max=U64_MAX, metavar="N", help="In each shard; 0: no limit."),
]
TombstonesMax = Annotated[
    int | None,
    typer.Option("--tombstones", min=0, max=U64_MAX, metavar="N", help="In each shard; 0: 65,536."),
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


@command(app)
def create(
    session: Session,
    name: Name,
    *,
    versions: VersionsMax = None,
    value_size: ValueSizeMax = None,
    keys: KeysMax = None,
    tombstones: TombstonesMax = None,
) -> None:
    """Create a namespace in every shard; exits with 4 if it is there.

    \b
    Examples:
      onelog admin namespaces create shop --versions 20 --keys 1000000
      onelog kv put a 1 --namespace shop
    """
    from onelog.v1 import admin_pb2

    limits = _limits(admin_pb2.NamespaceLimits(), versions, value_size, keys, tombstones)
    session.client.admin.create_namespace(name, limits)
    session.output.result({"namespace": name}, f"namespace {name} created")


@command(app)
def configure(
    session: Session,
    name: Name,
    *,
    versions: VersionsMax = None,
    value_size: ValueSizeMax = None,
    keys: KeysMax = None,
    tombstones: TombstonesMax = None,
) -> None:
    """Change limits of a namespace; those that are not named stay as they are.

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
        {"namespace": name, "limits": document_of(limits)}, f"namespace {name} configured"
    )


@command(app)
def delete(session: Session, name: Name) -> None:
    """Delete a namespace and all that is in it.

    \b
    Examples:
      onelog admin namespaces delete old-shop
    """
    session.client.admin.delete_namespace(name)
    session.output.result({"namespace": name}, f"namespace {name} deleted")


@command(app, "list")
def list_(session: Session) -> None:
    """List namespaces and their limits; 0 is the default.

    \b
    Examples:
      onelog admin namespaces list
    """
    found = session.client.admin.namespaces()
    rows = [{"namespace": name, **document_of(limits)} for name, limits in sorted(found.items())]
    session.output.table(rows, (
        ("namespace", lambda row: row["namespace"]),
        ("versions", lambda row: row["versions_max"]),
        ("value size", lambda row: row["value_size_max"]),
        ("keys", lambda row: row["keys_max"]),
        ("tombstones", lambda row: row["tombstones_max"]),
    ))  # fmt: skip
