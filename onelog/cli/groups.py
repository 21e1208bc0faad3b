"""``onelog stream group``: consumer groups.

``consume`` is a member while it runs. ``join``, ``fetch``, ``ack`` and ``leave`` are the same in
single steps, for scripts: after each of them the member lives for its session.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.cli.command import IfMissing, Raw, Session, command, create_or_find, group
from onelog.cli.failure import EXIT_NOT_FOUND, CommandFailed
from onelog.cli.output import cell, counted, note, plain, shown_headers
from onelog.cli.values import (
    dead_letters_name,
    duration_s,
    offset_number,
    parse_headers,
    parse_number_pairs,
    shown_time,
    time_ns,
    to_bytes,
)

if TYPE_CHECKING:
    from onelog import GroupConfig, Record, RecordFilter
    from onelog.client.sync.group import Consumer, Group

app = group(
    "Consumer groups: readers that share the records of a stream.",
    "onelog stream create sold --if-missing",
    "onelog stream append sold 'one pear'",
    "onelog stream group create sold billing --from 0 --if-missing",
    "onelog stream group list sold",
    "onelog stream group consume sold billing --limit 1",
)

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]
Places = Annotated[
    list[str], typer.Argument(metavar="PARTITION:OFFSET...", help="As fetch prints them.")
]
MemberId = Annotated[
    int, typer.Option("--member", min=1, metavar="ID", help="The member's id, as join printed it.")
]
Shared = Annotated[
    bool | None,
    typer.Option("--shared/--exclusive", help="Shared: any member may read any partition."),
]
MaxDeliveries = Annotated[
    int | None,
    typer.Option(
        "--max-deliveries", min=0, metavar="N", help="Deliveries until a record is dead; 0: never."
    ),
]
DeadLetters = Annotated[
    str | None,
    typer.Option(
        "--dead-letters", metavar="[STREAM]",
        help="The stream for dead records, which is created if it does not exist; without a value "
        "STREAM.dead{STREAM}.",
    ),
]  # fmt: skip
Keys = Annotated[
    list[str] | None, typer.Option("--key", metavar="KEY", help="Only these keys; repeatable.")
]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="Only these tags; repeatable.")
]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header", metavar="NAME[=VALUE]",
        help="Only with this header, with this value if there is one; repeatable.",
    ),
]  # fmt: skip
KeyPrefix = Annotated[
    str, typer.Option("--key-prefix", metavar="PREFIX", help="Only keys with this prefix.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most N.")]


def _group(session: Session, stream: str, name: str) -> "Group":
    return session.client.stream(stream).group(name)


def _member(session: Session, stream: str, name: str, member_id: int) -> "Consumer":
    return _group(session, stream, name).rejoin(member_id)


def _records(places: Sequence[str]) -> "list[Record]":
    from onelog import Record

    return [
        Record(offset, b"", partition=partition)
        for partition, offset in parse_number_pairs(places, "a place like 0:17")
    ]


def parse_filter(
    keys: list[str] | None, tags: list[str] | None, headers: list[str] | None, key_prefix: str
) -> "RecordFilter | None":
    """Parse the options that select records; None if none of them is given."""
    from onelog import RecordFilter

    if not (keys or tags or headers or key_prefix):
        return None
    wanted = tuple(to_bytes(key) for key in keys or ())
    named: dict[str, str | bytes | None] = {}
    for text in headers or ():
        named |= parse_headers([text]) if "=" in text else {text: None}
    return RecordFilter(wanted, tuple(tags or ()), named, to_bytes(key_prefix))


def _create_dead_letters(session: Session, stream: str, config: "GroupConfig") -> None:
    """Create the stream for dead letters if it does not exist."""
    name = config.dead_letter_stream
    if bool(config.max_deliveries) != bool(name):
        raise CommandFailed(
            "USAGE",
            "--max-deliveries and --dead-letters need each other; --dead-letters may stand without "
            "a value",
        )
    if name:
        session.check_same_shard("streams", stream, name)
        session.client.stream(name).create(exist_ok=True)


@command(app)
def create(
    session: Session,
    stream: StreamName,
    name: GroupName,
    *,
    from_offset: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="OFFSET", parser=offset_number, help="Begin at this offset, or start."
        ),
    ] = None,
    since: Annotated[
        int, typer.Option("--since", metavar="WHEN", parser=time_ns, help="Begin at this time.")
    ] = "0",  # type: ignore[assignment] # typer parses it
    shared: Shared = None,
    max_deliveries: MaxDeliveries = None,
    dead_letters: DeadLetters = None,
    keys: Keys = None,
    tags: Tags = None,
    headers: Headers = None,
    key_prefix: KeyPrefix = "",
    if_missing: IfMissing = False,
) -> None:
    """Create a group; without --from and --since it begins with new records.

    With --key, --key-prefix, --tag or --header its members get only records that match; all others
    count as done.

    \b
    Examples:
      onelog stream group create events billing --from start
      onelog stream group create events alerts --tag alert --header severity
      onelog stream group create events mails --max-deliveries 3 --dead-letters
      onelog stream group create events mailing --shared --since now-1h
      onelog stream group create events mailing --if-missing
    """
    from onelog import GroupConfig

    only = parse_filter(keys, tags, headers, key_prefix)
    if dead_letters == "":
        dead_letters = dead_letters_name(stream)
    config = GroupConfig(bool(shared), max_deliveries or 0, dead_letters or "", only)
    _create_dead_letters(session, stream, config)
    make = partial(
        _group(session, stream, name).create, from_offset=from_offset, from_ns=since, config=config
    )
    _, what = create_or_find(make, if_missing)
    session.output.result({"stream": stream, "group": name}, f"group {name} {what}")


@command(app)
def configure(
    session: Session,
    stream: StreamName,
    name: GroupName,
    *,
    shared: Shared = None,
    max_deliveries: MaxDeliveries = None,
    dead_letters: DeadLetters = None,
    keys: Keys = None,
    tags: Tags = None,
    headers: Headers = None,
    key_prefix: KeyPrefix = "",
    all_records: Annotated[
        bool, typer.Option("--all-records", help="Without a filter from now on.")
    ] = False,
) -> None:
    """Change settings of a group; those that are not given stay.

    --key, --key-prefix, --tag and --header replace the filter as a whole.

    \b
    Examples:
      onelog stream group configure events billing --shared
      onelog stream group configure events billing --key-prefix user:
      onelog stream group configure events billing --all-records
    """
    from onelog import GroupConfig

    target = _group(session, stream, name)
    old, only = target.info().config, parse_filter(keys, tags, headers, key_prefix)
    if only is None and not all_records:
        only = old.only
    if dead_letters == "":
        dead_letters = dead_letters_name(stream)
    elif dead_letters is None and max_deliveries == 0:
        dead_letters = ""  # nothing dies any more
    config = GroupConfig(
        old.shared if shared is None else shared,
        old.max_deliveries if max_deliveries is None else max_deliveries,
        old.dead_letter_stream if dead_letters is None else dead_letters,
        only,
    )
    if dead_letters is not None or max_deliveries is not None:
        _create_dead_letters(session, stream, config)
    target.configure(config)
    session.output.result({"group": name, "config": config}, f"group {name} configured")


@command(app)
def delete(session: Session, stream: StreamName, name: GroupName) -> None:
    """Delete a group.

    \b
    Examples:
      onelog stream group delete events old-group
    """
    _group(session, stream, name).delete()
    session.output.result({"stream": stream, "group": name}, f"group {name} deleted")


@command(app, "list", reads=True)
def list_(session: Session, stream: StreamName) -> None:
    """List the groups of a stream: their members, pending records and lag.

    \b
    Examples:
      onelog stream group list events
      onelog stream group list events --json
    """
    target = session.client.stream(stream)
    names = target.info(read=session.read).groups
    found = [(name, target.group(name).info(read=session.read)) for name in names]
    if session.output.as_json:
        for name, info in found:
            session.output.line({"group": name, **plain(info)})
        return
    session.output.table(found, (
        ("group", lambda each: each[0]),
        ("members", lambda each: len(each[1].members)),
        ("pending", lambda each: sum(part.pending_count for part in each[1].partitions)),
        ("lag", lambda each: sum(part.lag for part in each[1].partitions)),
        ("max deliveries", lambda each: each[1].config.max_deliveries or "no limit"),
        ("dead letters", lambda each: each[1].config.dead_letter_stream),
    ), nothing=f"{stream} has no group")  # fmt: skip


@command(app, reads=True)
def show(session: Session, stream: StreamName, name: GroupName) -> None:
    """Show a group: its progress, members and pending records.

    The lag is the number of offsets from the group's position to the end of the partition. It is 0
    when everything is processed. Otherwise it may exceed the number of records: offsets are indexes
    in the log of the shard, which holds other entries too.

    \b
    Examples:
      onelog stream group show events billing
      onelog stream group show events billing --json
    """
    info, output = _group(session, stream, name).info(read=session.read), session.output
    config = info.config
    rows: list[tuple[str, Any]] = [
        ("members take from", "any partition" if config.shared else "their own partitions"),
        ("max deliveries", config.max_deliveries or "no limit"),
        ("dead letters", config.dead_letter_stream),
        ("only", "all records" if config.only is None else _rows(config.only)),
        ("generation", info.generation),
    ]
    output.listing(info, rows)
    if output.as_json:
        return
    typer.echo()
    output.table(info.partitions, (
        ("partition", lambda each: each.partition),
        ("committed", lambda each: each.committed_offset),
        ("next", lambda each: each.next_offset),
        ("lag", lambda each: each.lag),
        ("pending", lambda each: each.pending_count),
    ))  # fmt: skip
    if info.members:
        typer.echo()
        output.table(info.members, (
            ("member", lambda each: str(each.member_id)),
            ("partitions", lambda each: each.partitions),
            ("pending", lambda each: each.pending_count),
            ("until", lambda each: shown_time(each.expires_ns)),
        ))  # fmt: skip


def _rows(only: "RecordFilter") -> list[str]:
    shown = [f"key {cell(key)}" for key in only.keys]
    shown += [f"key {cell(only.key_prefix)}…"] if only.key_prefix else []
    shown += [f"tag {tag}" for tag in only.tags]
    for name, value in only.headers.items():
        shown.append(f"header {name}" if value is None else f"header {name}={cell(value)}")
    return shown


@command(app)
def seek(
    session: Session,
    stream: StreamName,
    name: GroupName,
    *,
    offset: Annotated[
        int | None,
        typer.Option(
            "--to", metavar="OFFSET", parser=offset_number, help="To this offset, or start."
        ),
    ] = None,
    at: Annotated[
        int | None, typer.Option("--at", metavar="WHEN", parser=time_ns, help="To this time.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, metavar="N", help="Only in this partition.")
    ] = None,
) -> None:
    """Move a group back or forward, to an offset or a time.

    \b
    Examples:
      onelog stream group seek events billing --to start
      onelog stream group seek events billing --at now-1h
    """
    if (offset is None) == (at is None):
        raise CommandFailed("USAGE", "give --to or --at")
    _group(session, stream, name).seek(offset=offset, time_ns=at, partition=partition)
    session.output.result({"stream": stream, "group": name}, f"group {name} moved")


@command(app)
def consume(
    session: Session,
    stream: StreamName,
    name: GroupName,
    *,
    limit: Annotated[
        int,
        typer.Option("--limit", min=0, metavar="N", help="Stop after N records; 0: never."),
    ] = 0,
    raw: Raw = False,
) -> None:
    """Print records as a member of a group, and acknowledge each; Ctrl-C ends it.

    \b
    Examples:
      onelog stream group consume events billing --limit 2
      onelog stream group consume events billing --json
      onelog stream group consume events billing --limit 1 --raw > record
    """
    from onelog.errors import FailedPrecondition

    session.output.check_raw(raw)
    with _group(session, stream, name).join(limit=limit or 100) as member:
        for count, record in enumerate(member, 1):
            place = f"{record.partition}:{record.offset}"
            if raw:
                session.output.raw(record.value)
            else:
                session.output.line(record, f"{place}  {cell(record.key)}  {cell(record.value)}")
            try:
                record.ack()
            except FailedPrecondition as error:
                if error.reason != "RECORD_NOT_PENDING":
                    raise
                note(f"{place} is delivered again: the session of this member had run out")
            if count == limit:
                return


@command(app)
def join(
    session: Session,
    stream: StreamName,
    name: GroupName,
    *,
    lifetime: Annotated[
        float,
        typer.Option(
            "--session", metavar="TIME", parser=duration_s,
            help="How long the member lives between commands.",
        ),
    ] = "5m",  # type: ignore[assignment] # typer parses it
) -> None:  # fmt: skip
    """Join a group as a member; prints the member's id.

    \b
    Examples:
      onelog stream group join events billing --session 1m
    """
    member = _group(session, stream, name).join(session_s=lifetime)
    found = {"member_id": member.member_id, "partitions": member.partitions}
    session.output.result(found, str(member.member_id))


@command(app)
def leave(session: Session, stream: StreamName, name: GroupName, *, member: MemberId) -> None:
    """Leave a group; other members may claim the pending records.

    \b
    Examples:
      M=$(onelog stream group join events billing)
      onelog stream group leave events billing --member $M
    """
    _member(session, stream, name, member).close()
    session.output.result({"member_id": member}, f"member {member} left")


@command(app)
def heartbeat(session: Session, stream: StreamName, name: GroupName, *, member: MemberId) -> None:
    """Keep a member alive for another session; shows its partitions. Exits with 3 if it is gone.

    Every fetch does the same, and `consume` by itself.

    \b
    Examples:
      M=$(onelog stream group join events billing)
      onelog stream group heartbeat events billing --member $M
    """
    found = _member(session, stream, name, member)
    document = {
        "member_id": member, "generation": found.generation, "partitions": found.partitions
    }  # fmt: skip
    parts = cell(found.partitions) or "no partition"
    session.output.result(document, f"generation {found.generation}, partitions: {parts}")


RECORD_COLUMNS = (
    ("place", lambda record: f"{record.partition}:{record.offset}"),
    ("deliveries", lambda record: record.delivery_count),
    ("key", lambda record: record.key),
    ("tag", lambda record: record.tag),
    ("headers", lambda record: shown_headers(record.headers)),
    ("value", lambda record: record.value),
)


@command(app)
def fetch(
    session: Session,
    stream: StreamName,
    name: GroupName,
    *,
    member: MemberId,
    limit: Limit = 100,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="TIME", parser=duration_s, help="Wait this long for the first."
        ),
    ] = "0",  # type: ignore[assignment] # typer parses it
    places: Annotated[
        bool, typer.Option("--places", help="Print places and nothing else.")
    ] = False,
    raw: Raw = False,
) -> None:
    """Fetch the next records, pending until acknowledged; exits with 3 if there is none.

    \b
    Examples:
      M=$(onelog stream group join events billing)
      onelog stream group fetch events billing --member $M --limit 1
    """
    session.output.check_raw(raw, places)
    records = _member(session, stream, name, member).fetch(wait_s=wait, limit=limit)
    if places:
        for record in records:
            typer.echo(f"{record.partition}:{record.offset}")
    elif raw:
        for record in records:
            session.output.raw(record.value)
    else:
        session.output.table(records, RECORD_COLUMNS)
    if not records:
        raise CommandFailed("NOTHING_NEW", f"{stream} has nothing for {name}", EXIT_NOT_FOUND)


@command(app)
def ack(
    session: Session, stream: StreamName, name: GroupName, places: Places, *, member: MemberId
) -> None:
    """Acknowledge records.

    \b
    Examples:
      M=$(onelog stream group join events billing)
      PLACES=$(onelog stream group fetch events billing --member $M --limit 1 --places)
      onelog stream group ack events billing --member $M $PLACES
    """
    records = _records(places)
    count = _member(session, stream, name, member).ack(records)
    session.output.result({"acked": count}, f"{counted(count, 'record')} acknowledged")


@command(app)
def nack(
    session: Session,
    stream: StreamName,
    name: GroupName,
    places: Places,
    *,
    member: MemberId,
    delay: Annotated[
        float,
        typer.Option(
            "--delay", metavar="TIME", parser=duration_s, help="Not claimable before this."
        ),
    ] = "0",  # type: ignore[assignment] # typer parses it
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")] = "",
) -> None:
    """Record failed deliveries: the records can be claimed after a delay, or are dead.

    \b
    Examples:
      M=$(onelog stream group join events billing)
      PLACES=$(onelog stream group fetch events billing --member $M --limit 1 --places)
      onelog stream group nack events billing --member $M --delay 1m $PLACES
    """
    records = _records(places)
    count = _member(session, stream, name, member).nack(records, delay_s=delay, reason=reason)
    session.output.result({"nacked": count}, f"{counted(count, 'record')} failed")


@command(app)
def claim(
    session: Session,
    stream: StreamName,
    name: GroupName,
    *,
    member: MemberId,
    idle: Annotated[
        float,
        typer.Option(
            "--idle", metavar="TIME", parser=duration_s, help="Pending for at least this long."
        ),
    ] = "1m",  # type: ignore[assignment] # typer parses it
    limit: Limit = 100,
) -> None:
    """Take over records that have been pending for too long, or whose member is gone.

    \b
    Examples:
      M=$(onelog stream group join events billing)
      onelog stream group claim events billing --member $M --idle 30s
    """
    records = _member(session, stream, name, member).claim(idle, limit=limit)
    session.output.table(records, RECORD_COLUMNS, nothing="there is nothing to take over")


@command(app)
def commit(
    session: Session,
    stream: StreamName,
    name: GroupName,
    places: Places,
    *,
    member: Annotated[
        int,
        typer.Option(
            "--member", min=0, metavar="ID", help="The member; omit it if the group has none."
        ),
    ] = 0,
) -> None:
    """Commit everything up to these places, for readers that do not fetch.

    \b
    Examples:
      onelog stream group commit events reading 0:17
    """
    records = _records(places)
    target: Any = _group(session, stream, name)
    (target.rejoin(member) if member else target).commit(records)
    session.output.result({"stream": stream, "group": name}, f"group {name} moved")
