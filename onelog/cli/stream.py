"""``onelog stream``: streams of records. Consumer groups are in ``groups.py``."""

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.cli import groups
from onelog.cli.command import (
    IfMissing,
    Raw,
    RoutingKey,
    Session,
    command,
    create_or_find,
    group,
)
from onelog.cli.failure import CommandFailed
from onelog.cli.groups import Headers, KeyPrefix, Keys, Tags, parse_filter
from onelog.cli.output import cell, counted, naming_lines, progress, shown_headers
from onelog.cli.values import (
    duration_s,
    offset_number,
    parse_headers,
    read_lines,
    read_value,
    shown_duration,
    shown_time,
    time_ns,
    to_bytes,
)

if TYPE_CHECKING:
    from onelog import Producer, Record, Retention
    from onelog.client.sync.stream import Stream
    from onelog.client.sync.tail import Tail
    from onelog.client.values import StreamInfo

APPEND_CHUNK = 1_000  # lines that are read from the input before they are sent

app = group(
    "Streams: append, read, tail, consumer groups.",
    "onelog stream create orders --if-missing",
    "onelog stream append orders 'two apples' --key ann",
    "onelog stream tail orders --from 0 --limit 1",
    "onelog stream group create orders billing --from 0 --if-missing",
    "onelog stream group consume orders billing --limit 1",
)
app.add_typer(groups.app, name="group")

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")]
Age = Annotated[
    float | None,
    typer.Option("--age", metavar="TIME", parser=duration_s, help="Keep records for this long."),
]
SizeMax = Annotated[
    int | None, typer.Option("--size", min=0, metavar="BYTES", help="Keep at most this many bytes.")
]
CountMax = Annotated[
    int | None, typer.Option("--count", min=0, metavar="N", help="Keep at most N records.")
]
PastGroups = Annotated[
    bool | None,
    typer.Option(
        "--past-groups/--not-past-groups", help="Also delete records that a group still needs."
    ),
]
PartitionNumber = Annotated[
    int | None, typer.Option("--partition", min=0, metavar="N", help="The partition.")
]


def _retention(kept: "Retention", **given: Any) -> "Retention":
    return replace(kept, **{name: each for name, each in given.items() if each is not None})


@command(app)
def create(
    session: Session,
    stream: StreamName,
    *,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, metavar="N", help="The number of partitions.")
    ] = 1,
    age: Age = None,
    size: SizeMax = None,
    count: CountMax = None,
    past_groups: PastGroups = None,
    if_missing: IfMissing = False,
) -> None:
    """Create a stream; exits with 4 if it exists.

    \b
    Examples:
      onelog stream create events
      onelog stream create clicks --partitions 4 --age 7d
      onelog stream create events --if-missing
    """
    from onelog import Retention

    retention = _retention(
        Retention(), age_s=age, size_max=size, count_max=count, past_groups=past_groups
    )
    make = partial(session.client.stream(stream).create, partitions=partitions, retention=retention)
    stream_id, what = create_or_find(make, if_missing)
    session.output.result({"stream": stream, "stream_id": stream_id}, f"stream {stream} {what}")


@command(app)
def configure(
    session: Session,
    stream: StreamName,
    *,
    age: Age = None,
    size: SizeMax = None,
    count: CountMax = None,
    past_groups: PastGroups = None,
) -> None:
    """Change the retention of a stream; bounds that are not given stay, and 0 is no bound.

    \b
    Examples:
      onelog stream configure events --age 30d --count 1000000
    """
    target = session.client.stream(stream)
    retention = _retention(
        target.info().retention, age_s=age, size_max=size, count_max=count, past_groups=past_groups
    )
    target.configure(retention)
    session.output.result({"stream": stream, "retention": retention}, f"stream {stream} configured")


@command(app)
def delete(session: Session, stream: StreamName) -> None:
    """Delete a stream with its records and groups.

    \b
    Examples:
      onelog stream delete old-events
    """
    session.client.stream(stream).delete()
    session.output.result({"stream": stream}, f"stream {stream} deleted")


@command(app, "list", reads=True)
def list_(
    session: Session,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only names with this prefix.")
    ] = "",
    *,
    routing_key: RoutingKey = "",
) -> None:
    """List streams.

    \b
    Examples:
      onelog stream list
      onelog stream list ev --json
    """
    columns = (
        ("stream", lambda info: info.stream),
        ("partitions", lambda info: len(info.partitions)),
        ("records", lambda info: sum(each.record_count for each in info.partitions)),
        ("bytes", lambda info: sum(each.size for each in info.partitions)),
        ("groups", lambda info: info.groups),
    )
    found = session.client.streams(prefix, routing_key=routing_key, read=session.read)
    session.output.table(found, columns, nothing="there is no such stream")


@command(app, reads=True)
def show(session: Session, stream: StreamName) -> None:
    """Show a stream: partitions, offsets, retention, groups.

    \b
    Examples:
      onelog stream show events
      onelog stream show events --json
    """
    info = session.client.stream(stream).info(read=session.read)
    session.output.listing(info, _rows(info))
    if not session.output.as_json:
        columns = (
            ("partition", lambda each: each.partition),
            ("first offset", lambda each: each.first_offset if each.record_count else None),
            ("last offset", lambda each: each.last_offset if each.record_count else None),
            ("records", lambda each: each.record_count),
            ("bytes", lambda each: each.size),
        )
        typer.echo()
        session.output.table(info.partitions, columns)


def _rows(info: "StreamInfo") -> list[tuple[str, Any]]:
    kept = info.retention
    bounds = [
        shown_duration(kept.age_s) if kept.age_s else "",
        counted(kept.size_max, "byte") if kept.size_max else "",
        counted(kept.count_max, "record") if kept.count_max else "",
    ]
    return [
        ("stream", info.stream),
        ("kept", [each for each in bounds if each] or "everything"),
        ("past groups", kept.past_groups),
        ("hash of keys", info.key_hash),
        ("groups", info.groups),
    ]


@command(app)
def append(
    session: Session,
    stream: StreamName,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="The record; - reads it from stdin.")
    ] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read it from a file.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Every line of --file, or of stdin, is a record.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Records with the same key stay in order."),
    ] = None,
    tag: Annotated[str, typer.Option("--tag", metavar="TAG", help="A tag to filter by.")] = "",
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="Repeatable.")
    ] = None,
    partition: PartitionNumber = None,
    producer_text: Annotated[
        str,
        typer.Option(
            "--producer",
            metavar="ID:EPOCH:SEQUENCE",
            help="Append no record twice; SEQUENCE is of the first record.",
        ),
    ] = "",
) -> None:
    """Append a record; prints its offset.

    With --producer a repeated command appends nothing and prints the offset of the first time. Of
    each producer the last 8 sequences are kept; the first one of an epoch is 1.

    \b
    Examples:
      onelog stream append events 'signed up' --key ann --tag account
      onelog stream append events --file picture.jpg --header type=image/jpeg
      onelog stream append events 'paid' --producer 7:1:1
      seq 100 | onelog stream append events --lines
    """
    from onelog import NewRecord

    producer = _parse_producer(producer_text) if producer_text else None
    target = session.client.stream(stream)
    settings: dict[str, Any] = {
        "key": None if key is None else to_bytes(key), "headers": parse_headers(header), "tag": tag,
        "partition": partition,
    }  # fmt: skip
    if lines:
        if value not in (None, "-"):
            raise CommandFailed("USAGE", "--lines takes no value")
        count, duplicates = _append_lines(target, file, settings, producer)
        words = f"{counted(count, 'record')} appended" + f", {duplicates} were before" * bool(
            duplicates
        )
        found = {"appended": count} | ({"duplicates": duplicates} if producer else {})
        session.output.result(found, words)
        return
    record = NewRecord(read_value(value, file), **settings)
    (appended,) = target.append_many([record], producer=producer)
    words = ", appended before" * appended.duplicate
    place = f"offset {appended.offset} of partition {appended.partition}{words}"
    session.output.result(appended, place)


def _parse_producer(text: str) -> "Producer":
    from onelog import Producer

    numbers = text.split(":")
    if len(numbers) != 3 or not all(each.isdecimal() for each in numbers):
        raise CommandFailed("USAGE", f"'{text}' is no producer like 7:1:1, its id, epoch, sequence")
    return Producer(*map(int, numbers))


def _append_lines(
    target: "Stream", file: Path | None, settings: dict[str, Any], producer: "Producer | None"
) -> tuple[int, int]:
    """Return how many lines were appended, and how many had been appended before."""
    from onelog import NewRecord

    count, duplicates, source = 0, 0, read_lines(file)
    with progress("appending") as advance:
        while chunk := list(islice(source, APPEND_CHUNK)):
            records = [NewRecord(line, **settings) for line in chunk]
            with naming_lines(count + duplicates, len(chunk)):
                appended = target.append_many(records, producer=producer)
            repeated = sum(each.duplicate for each in appended)
            count, duplicates = count + len(chunk) - repeated, duplicates + repeated
            producer = producer and producer.after(len(chunk))
            advance(len(chunk))
    return count, duplicates


RECORD_COLUMNS = (
    ("offset", lambda record: record.offset),
    ("time", lambda record: shown_time(record.timestamp_ns) if record.timestamp_ns else None),
    ("key", lambda record: record.key),
    ("tag", lambda record: record.tag),
    ("headers", lambda record: shown_headers(record.headers)),
    ("value", lambda record: record.value if record.gap is None else shown_gap(record)),
)


def shown_gap(record: "Record") -> str:
    """Format a gap: a range of records that were deleted or are damaged."""
    assert record.gap is not None
    gap = record.gap
    what = "cannot be read" if gap.reason == "DAMAGED" else "are gone"
    return f"{gap.first_offset} to {gap.last_offset} {what}: {gap.reason}"


@command(app, reads=True)
def read(
    session: Session,
    stream: StreamName,
    *,
    from_offset: Annotated[
        int,
        typer.Option(
            "--from", metavar="OFFSET", parser=offset_number, help="From this offset, or start."
        ),
    ] = "0",  # type: ignore[assignment] # typer parses it
    to_offset: Annotated[
        int | None, typer.Option("--to", min=0, metavar="OFFSET", help="Up to this offset.")
    ] = None,
    since: Annotated[
        int, typer.Option("--since", metavar="WHEN", parser=time_ns, help="From this time on.")
    ] = "0",  # type: ignore[assignment] # typer parses it
    partition: PartitionNumber = None,
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="At most N.")] = 0,
    keys: Keys = None,
    tags: Tags = None,
    headers: Headers = None,
    key_prefix: KeyPrefix = "",
    raw: Raw = False,
) -> None:
    """Print the records of one partition that exist now.

    \b
    Examples:
      onelog stream read events --limit 10
      onelog stream read events --since now-1h --key ann --json
      onelog stream read events --limit 1 --raw > record
    """
    session.output.check_raw(raw)
    records: Iterator[Record] = session.client.stream(stream).read(
        from_offset=from_offset, from_ns=since, to_offset=to_offset, partition=partition or 0,
        limit=limit, only=parse_filter(keys, tags, headers, key_prefix), read=session.read,
    )  # fmt: skip
    if raw:
        for record in records:
            session.output.raw(record.value)
        return
    session.output.table(records, RECORD_COLUMNS, nothing="there is no such record")


@command(app)
def tail(
    session: Session,
    streams: Annotated[list[str], typer.Argument(metavar="STREAM...", help="The streams.")],
    *,
    from_offset: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="OFFSET",
            parser=offset_number,
            help="From this offset, or start, which several streams need.",
        ),
    ] = None,
    since: Annotated[
        int, typer.Option("--since", metavar="WHEN", parser=time_ns, help="From this time on.")
    ] = "0",  # type: ignore[assignment] # typer parses it
    partition: PartitionNumber = None,
    limit: Annotated[
        int,
        typer.Option("--limit", min=0, metavar="N", help="Stop after N records; 0: never."),
    ] = 0,
    cursor: Annotated[
        str | None,
        typer.Option("--cursor", metavar="CURSOR", help="Continue where another tail ended."),
    ] = None,
    keys: Keys = None,
    tags: Tags = None,
    headers: Headers = None,
    key_prefix: KeyPrefix = "",
    raw: Raw = False,
) -> None:
    """Print records as they are appended; Ctrl-C ends it.

    The cursor says where to continue. It is printed at the end, with --json in every line. Give it
    with the same streams, and the same --from or --since if there was one.

    \b
    Examples:
      onelog stream tail events --from start --limit 3
      onelog stream tail events clicks --since now-1h --limit 1
      onelog stream tail events clicks --json
      onelog stream tail events --limit 1 --raw > record
    """
    from onelog.cli.watch import note_cursor, parse_cursor, shown_cursor

    session.output.check_raw(raw)
    token = None if cursor is None else parse_cursor(cursor)
    only = parse_filter(keys, tags, headers, key_prefix)
    tailing = _open_tail(
        session, streams, from_offset, partition, from_ns=since, only=only, cursor=token
    )
    output, count, begun = session.output, 0, tailing.cursor
    try:
        with tailing:
            for record in tailing:
                count += 1
                document = {each.name: getattr(record, each.name) for each in fields(record)}
                document["cursor"] = shown_cursor(tailing.cursor)
                name = f"{record.stream}  " if len(streams) > 1 else ""
                value = cell(record.value) if record.gap is None else shown_gap(record)
                if raw:
                    output.raw(record.value)
                else:
                    output.line(document, f"{name}{record.offset}  {cell(record.key)}  {value}")
                if count == limit:
                    break
    finally:
        start = "" if from_offset is None else f"--from {from_offset or 'start'} "
        start += f"--since {shown_time(since)} " if since else ""
        note_cursor(output, f"{start}--cursor", tailing.cursor, begun)


def _open_tail(
    session: Session,
    streams: list[str],
    from_offset: int | None,
    partition: int | None,
    **common: Any,
) -> "Tail":
    """Tail one stream, or several together."""
    if len(streams) == 1:
        one = session.client.stream(streams[0])
        return one.tail(from_offset=from_offset, partition=partition, **common)
    if from_offset or partition is not None:
        what = "several streams have no offset and partition, only --from start"
        raise CommandFailed("USAGE", what)
    return session.client.tail(*streams, from_start=from_offset == 0, **common)


@command(app)
def trim(
    session: Session,
    stream: StreamName,
    *,
    below: Annotated[
        int | None,
        typer.Option("--below", min=0, metavar="OFFSET", help="Delete records below this offset."),
    ] = None,
    age: Annotated[
        float | None,
        typer.Option(
            "--older-than", metavar="TIME", parser=duration_s, help="Delete older records."
        ),
    ] = None,
    keep_size: Annotated[
        int | None,
        typer.Option("--keep-size", min=0, metavar="BYTES", help="Keep the newest bytes."),
    ] = None,
    keep_count: Annotated[
        int | None,
        typer.Option("--keep-count", min=0, metavar="N", help="Keep the newest N records."),
    ] = None,
    partition: PartitionNumber = None,
    past_groups: Annotated[
        bool, typer.Option("--past-groups", help="Also delete records that a group still needs.")
    ] = False,
) -> None:
    """Delete records from the start of a stream, by one bound; shows what is left.

    \b
    Examples:
      onelog stream trim events --older-than 90d
      onelog stream trim events --keep-count 1000
    """
    trimmed = session.client.stream(stream).trim(
        below_offset=below, age_s=age, keep_size=keep_size, keep_count=keep_count,
        partition=partition, past_groups=past_groups,
    )  # fmt: skip
    if session.output.as_json:
        session.output.result({"stream": stream, "partitions": trimmed}, "")
        return
    columns = (
        ("partition", lambda each: each.left.partition),
        ("first offset", lambda each: each.left.first_offset if each.left.record_count else None),
        ("records", lambda each: each.left.record_count),
        ("bytes", lambda each: each.left.size),
        ("kept for group", lambda each: each.kept_for_group),
    )
    session.output.table(trimmed, columns)
