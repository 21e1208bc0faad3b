"""``onelog admin hold``: what readers have not read yet, and the log must keep."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from onelog.cli.command import Session, command, group
from onelog.cli.failure import CommandFailed
from onelog.cli.messages import document_of, word_of
from onelog.cli.values import U64_MAX, duration_s, shown_duration, shown_size, size_bytes

if TYPE_CHECKING:
    from onelog.v1 import admin_pb2

app = group("Holds: parts of the log that a reader still needs.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The hold.")]
_INDEX = re.compile(r"(?:([0-9]{1,9})=)?([0-9]{1,20})")


@command(app, "set")
def set_(
    session: Session,
    name: Name,
    *,
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            metavar="INDEX | SHARD=INDEX,…",
            help="The first entry to keep, in all shards or by shard; else the next one.",
        ),
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Where no index is given: all that is there.")
    ] = False,
    move: Annotated[
        bool,
        typer.Option("--move", help="Move a hold forward; without an index only renew it."),
    ] = False,
    lifetime_s: Annotated[
        float | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            parser=duration_s,
            help="It breaks when nobody sets it for so long; else 7d.",
        ),
    ] = None,
    bytes_max: Annotated[
        int | None,
        typer.Option(
            "--max-bytes",
            metavar="SIZE",
            parser=size_bytes,
            help="It breaks when it keeps more of a shard; else 16GiB.",
        ),
    ] = None,
) -> None:
    """Keep the log for a reader from an index on: create a hold, or move it.

    Exits with 4 if it is there, and without --move. What it keeps is not dropped until it is
    moved, released, or too old or too large: then it breaks, keeps nothing, and is an alarm.

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


@command(app, "list")
def list_(session: Session) -> None:
    """List holds: what they keep, of how much they may, and whether they are broken.

    \b
    Examples:
      onelog admin hold list
      onelog admin hold list --json
    """
    found = session.client.admin.list_holds()
    session.output.table([document_of(hold) for hold in found], (
        ("hold", lambda row: row["name"]),
        ("shard", lambda row: row["shard"]),
        ("from index", lambda row: row["index"]),
        ("keeps", lambda row: shown_size(int(row["bytes"]))),
        ("of", lambda row: shown_size(int(row["bytes_max"]))),
        ("set", lambda row: f"{shown_duration(int(row['age_ms']) // 1000)} ago"),
        ("lives", lambda row: shown_duration(int(row["ttl_ms"]) / 1000)),
        ("broken by", lambda row: row["cause"] if row["broken_index"] else ""),
    ))  # fmt: skip


@command(app)
def release(session: Session, name: Name) -> None:
    """End a hold; what it kept goes with the next trims. Exits with 3 if there is none.

    \b
    Examples:
      onelog admin hold release old-export
    """
    session.client.admin.release_hold(name)
    session.output.result({"name": name}, f"hold {name} released")


def shown_hold(hold: "admin_pb2.Hold") -> str:
    """Return a hold of one shard in a line, for people."""
    from onelog.v1 import admin_pb2

    if hold.cause:
        cause = word_of(admin_pb2.HoldCause, hold.cause)
        return f"broken by {cause} at index {hold.broken_index}"
    size = f"{shown_size(hold.bytes)} of {shown_size(hold.bytes_max)}"
    return f"from index {hold.index} on, {size}, set {shown_duration(hold.age_ms // 1000)} ago"


def _indexes(session: Session, text: str | None) -> dict[int, int]:
    """Return the index by shard of ``12`` (all shards) or ``0=12,1=99``."""
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
