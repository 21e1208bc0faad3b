"""``onelog watch``: events of all models, each once and in order."""

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.cli.command import Session, command
from onelog.cli.failure import CommandFailed
from onelog.cli.output import Output, cell, counted, note, plain, to_text
from onelog.cli.values import duration_s, shown_time, to_bytes

if TYPE_CHECKING:
    from onelog import Event, Watched

MODELS = ("kv", "queue", "stream", "ts")
START = "start"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app)
def watch(
    session: Session,
    watched: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL[:NAME]...",
            help="A model (kv, queue, stream, ts), a name (kv:a) or a prefix (kv:user:*).",
        ),
    ] = None,
    *,
    cursor: Annotated[
        str | None,
        typer.Option("--from", metavar="CURSOR", help="A cursor to continue from, or start."),
    ] = None,
    previous: Annotated[
        bool, typer.Option("--previous", help="Also print the previous values of keys.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option("--limit", min=0, metavar="N", help="Stop after N events; 0: never."),
    ] = 0,
    progress: Annotated[
        float,
        typer.Option(
            "--progress", metavar="TIME", parser=duration_s,
            help="How often the cursor advances without events; 10s.",
        ),
    ] = "0",  # type: ignore[assignment] # typer parses it
) -> None:  # fmt: skip
    """Print changes as they happen; Ctrl-C ends it.

    Each event is printed once and in order, across reconnects and new leaders. At the end the
    cursor is printed on stderr; with --json it is in every line. --from continues there without a
    gap, if the same names are given. --from start begins with the first entry, or, if that is not
    kept, behind the oldest kept snapshot. Without names it watches all models.

    \b
    Examples:
      onelog watch --from start --limit 3
      onelog watch kv:user:* queue:jobs --previous
      onelog watch kv --json
    """
    chosen = [_watched(text) for text in watched or MODELS]
    print_events(session, chosen, cursor, with_previous=previous, limit=limit, progress_s=progress)


def _watched(text: str) -> "Watched":
    from onelog import Watched

    model, separator, name = text.partition(":")
    if model not in MODELS:
        raise CommandFailed("USAGE", f"'{text}' does not begin with one of {', '.join(MODELS)}")
    kind: Any = model
    if not separator:
        return Watched(kind)
    if name.endswith("*"):
        return Watched(kind, prefix=to_bytes(name[:-1]))
    return Watched(kind, name=to_bytes(name))


def print_events(
    session: Session,
    watched: Sequence["Watched"],
    cursor: str | None,
    *,
    with_previous: bool,
    limit: int,
    progress_s: float = 0.0,
) -> None:
    """Print events until there were ``limit`` of them, or until an interrupt."""
    output, count = session.output, 0
    watch = session.client.watch(
        *watched,
        cursor=None if cursor in (None, START) else parse_cursor(cursor),
        from_start=cursor == START,
        with_previous=with_previous,
        progress_s=progress_s,
    )
    begun = watch.cursor
    try:
        with watch:
            for event in watch:
                count += 1
                document = _document(event) | {"cursor": shown_cursor(watch.cursor)}
                output.line(document, _text(event))
                if count == limit:
                    break
    finally:
        note_cursor(output, "--from", watch.cursor, begun)


def note_cursor(output: Output, flag: str, token: bytes, begun: bytes) -> None:
    """Print where to continue, if the cursor has moved; in JSON every line has it."""
    if not output.as_json and token != begun:
        note(f"to continue here: {flag} {shown_cursor(token)}")


def shown_cursor(token: bytes) -> str:
    """Format a cursor for pasting."""
    return base64.urlsafe_b64encode(token).decode()


def parse_cursor(text: str) -> bytes:
    """Parse a cursor that was pasted."""
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True)
    except ValueError:  # also of what is not ASCII
        raise CommandFailed("USAGE", f"'{text}' is no cursor") from None


def _document(event: "Event") -> dict[str, Any]:
    """Return an event with the fields that its model has."""
    document = {
        "model": event.model,
        "kind": event.kind,
        "name": event.name,
        "namespace": event.namespace,
        "shard": event.shard,
        "index": event.index,
        "timestamp_ns": event.timestamp_ns,
    }
    match event.model:
        case "kv":
            document |= {"item": event.item}
            if event.previous is not None:
                document |= {"previous": event.previous}
        case "queue":
            document |= {"message_ids": list(event.message_ids)}
        case "stream":
            document |= {"record": event.record}
        case _:
            document |= {"points": list(event.points)}
    found: dict[str, Any] = plain(document)
    return found


def _text(event: "Event") -> str:
    name = to_text(event.name)
    if event.namespace not in ("", "default"):
        name = f"{event.namespace}/{name}"
    shown = f"{shown_time(event.timestamp_ns)}  {event.model:<6}  {event.kind:<9}  {name}"
    if event.item is not None:
        shown += f"  {cell(event.item.value)}"
    if event.previous is not None:
        shown += f"  (was {cell(event.previous.value)})"
    if event.message_ids:
        shown += f"  {cell(event.message_ids)}"
    if event.record is not None:
        shown += f"  {event.record.offset}  {cell(event.record.value)}"
    for points in event.points:
        shown += f"  {counted(len(points), 'point')} of {cell(points.tags) or 'no tags'}"
    return shown
