"""What producers and consumers of a queue do: ``onelog queue enqueue``, ``consume``, ``ack``, …

A leased message is named by its receipt, ``ID:TOKEN``, which ``lease`` prints: whoever has it may
settle the message, in another process as well.
"""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.cli.command import Session, command
from onelog.cli.failure import EXIT_NOT_FOUND, CommandFailed, code_of_answer
from onelog.cli.output import cell, progress
from onelog.cli.values import (
    duration_s,
    headers_of,
    lines_of,
    number_pairs_of,
    shown_time,
    time_ns,
    to_bytes,
    value_of,
)

if TYPE_CHECKING:
    from onelog import Message
    from onelog.client.sync.queue import Queue
    from onelog.client.values import Settled

ENQUEUE_CHUNK = 1_000  # lines that are read from the input before they are sent
VISIBILITY_S = 30.0
STOP_S = 86_400.0  # commands under way are waited for when no more messages are taken

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
Receipts = Annotated[
    list[str], typer.Argument(metavar="ID:TOKEN...", help="As `queue lease` prints them.")
]
Visibility = Annotated[
    float | None,
    typer.Option("--visibility", metavar="TIME", parser=duration_s, help="Length of the lease."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``onelog queue``."""
    for each in (enqueue, lease, consume, ack, nack, extend, release):
        command(app)(each)
    command(app, reads=True)(peek)


def enqueue(
    session: Session,
    queue: QueueName,
    body: Annotated[
        str | None, typer.Argument(metavar="BODY", help="The message; - reads it from stdin.")
    ] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read it from a file.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Every line of --file, or of stdin, is a message.")
    ] = False,
    priority: Annotated[
        int, typer.Option("--priority", min=0, max=15, metavar="N", help="0 is the most urgent.")
    ] = 8,
    delay: Annotated[
        float, typer.Option("--delay", metavar="TIME", parser=duration_s, help="Not before.")
    ] = "0",  # type: ignore[assignment] # typer parses it
    at: Annotated[
        int, typer.Option("--at", metavar="WHEN", parser=time_ns, help="Not before this time.")
    ] = "0",  # type: ignore[assignment] # typer parses it
    ttl: Annotated[
        float, typer.Option("--ttl", metavar="TIME", parser=duration_s, help="Let it live so long.")
    ] = "0",  # type: ignore[assignment] # typer parses it
    dedup_id: Annotated[
        str, typer.Option("--dedup-id", metavar="TEXT", help="Only once, whoever sends it again.")
    ] = "",
    group: Annotated[
        str, typer.Option("--group", metavar="NAME", help="In order within a group.")
    ] = "",
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="NAME", help="Tenants have equal shares.")
    ] = "",
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="Repeatable.")
    ] = None,
) -> None:
    """Put a message into a queue; prints its id.

    \b
    Examples:
      onelog queue enqueue 'jobs{jobs}' 'resize 1.jpg' --priority 2
      onelog queue enqueue 'jobs{jobs}' later --delay 5m --header by=ann
      onelog queue enqueue 'jobs{jobs}' --file picture.jpg
      seq 100 | onelog queue enqueue 'jobs{jobs}' --lines
    """
    from onelog import NewMessage

    target = session.client.queue(queue)
    settings: dict[str, Any] = {
        "priority": priority, "delay_s": delay, "at_ns": at, "ttl_s": ttl,
        "dedup_id": to_bytes(dedup_id), "group": to_bytes(group), "tenant": to_bytes(tenant),
        "headers": headers_of(header),
    }  # fmt: skip
    if lines:
        if body not in (None, "-") or dedup_id:
            raise CommandFailed("USAGE", "--lines has no body and no --dedup-id")
        count = _enqueue_lines(target, file, settings)
        session.output.result({"enqueued": count}, f"{count} enqueued")
        return
    (enqueued,) = target.enqueue_many([NewMessage(value_of(body, file), **settings)])
    session.output.result(enqueued, str(enqueued.message_id))


def _enqueue_lines(target: "Queue", file: Path | None, settings: dict[str, Any]) -> int:
    from onelog import NewMessage

    count, source = 0, lines_of(file)
    with progress("enqueueing") as advance:
        while chunk := list(islice(source, ENQUEUE_CHUNK)):
            target.enqueue_many(NewMessage(line, **settings) for line in chunk)
            count += len(chunk)
            advance(len(chunk))
    return count


MESSAGE_COLUMNS = (
    ("receipt", lambda message: f"{message.message_id}:{message.token}"),
    ("deliveries", lambda message: message.delivery_count),
    ("priority", lambda message: message.priority),
    ("leased until", lambda message: shown_time(message.lease_expires_ns)),
    ("headers", lambda message: message.headers),
    ("body", lambda message: message.body),
)


def lease(
    session: Session,
    queue: QueueName,
    *,
    count: Annotated[
        int, typer.Option("--count", min=1, max=1000, metavar="N", help="Up to so many.")
    ] = 1,
    visibility: Visibility = None,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="TIME", parser=duration_s, help="Wait for the first."),
    ] = "0",  # type: ignore[assignment] # typer parses it
    receipts: Annotated[
        bool, typer.Option("--receipts", help="Print receipts and nothing else.")
    ] = False,
) -> None:
    """Take messages for a while; exits with 3 if there is none.

    Who has a receipt settles the message with ack, nack, extend or release.

    \b
    Examples:
      onelog queue lease 'jobs{jobs}' --count 10 --visibility 1m
      onelog queue lease 'jobs{jobs}' --wait 5s --json
    """
    messages = session.client.queue(queue).lease(count, visibility_s=visibility, wait_s=wait)
    if receipts:
        for message in messages:
            typer.echo(f"{message.message_id}:{message.token}")
    else:
        session.output.table(messages, MESSAGE_COLUMNS)
    if not messages:
        raise CommandFailed("QUEUE_EMPTY", f"{queue} has nothing to give out", EXIT_NOT_FOUND)


def consume(
    session: Session,
    queue: QueueName,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="Run it for each message."),
    ] = None,
    *,
    limit: Annotated[
        int,
        typer.Option("--limit", min=0, metavar="N", help="End after so many messages; 0: never."),
    ] = 0,
    visibility: Visibility = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=256, metavar="N", help="Commands at a time.")
    ] = 1,
) -> None:
    """Print messages as they come, and acknowledge each that was printed; Ctrl-C ends it.

    With a command, that gets the body on stdin, and ONELOG_MESSAGE_ID and ONELOG_DELIVERY_COUNT in
    its environment. When it succeeds the message is acknowledged; else the message failed, and
    comes again or is dead. Leases are kept alive meanwhile.

    \b
    Examples:
      onelog queue consume 'jobs{jobs}' --limit 2
      onelog queue consume 'jobs{jobs}' --json
      onelog queue consume 'jobs{jobs}' --limit 2 --concurrency 2 -- sh -c 'cat; echo'
    """
    target = session.client.queue(queue)
    if arguments:
        _work(target, arguments, limit, visibility, concurrency)
        return
    messages = target.consume(credit=1 if limit else 100, visibility_s=visibility)
    for count, message in enumerate(messages, 1):
        session.output.line(message, f"{message.message_id}  {cell(message.body)}")
        target.ack(message)
        if count == limit:
            return


def _work(
    target: "Queue", arguments: Sequence[str], limit: int, visibility_s: float | None, workers: int
) -> None:
    from onelog import Reject

    if shutil.which(arguments[0]) is None:
        # Before a message is taken: a slip of the pen must not make dead letters of them.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])

    def run(message: "Message") -> None:
        environment = os.environ | {
            "ONELOG_MESSAGE_ID": str(message.message_id),
            "ONELOG_DELIVERY_COUNT": str(message.delivery_count),
        }
        try:
            done = subprocess.run(arguments, input=message.body, env=environment, check=False)  # noqa: S603 - it was asked for
        except OSError as error:
            raise Reject(f"{arguments[0]} cannot be run: {error.strerror}") from None
        if done.returncode:
            raise Reject(f"{arguments[0]} ended with {done.returncode}")

    worker = target.worker(
        run,
        concurrency=workers,
        visibility_s=visibility_s or VISIBILITY_S,
        stop_timeout_s=STOP_S,
        limit=limit,
    )
    worker.run()


def _messages(receipts: Sequence[str]) -> "list[Message]":
    from onelog import Message

    return [
        Message(number, b"", token)
        for number, token in number_pairs_of(receipts, "a receipt like 12:3456")
    ]


def show_settled(session: Session, settled: "list[Settled]", what: str) -> None:
    """Print what became of messages; fails if one of them was refused."""
    columns = (
        ("message", lambda each: each.message_id),
        ("", lambda each: each.reason or ("dead" if each.dead else what)),
    )
    session.output.table(settled, columns)
    refused = [each for each in settled if each.reason]
    if refused:
        from onelog.client.queue_values import error_of_settled

        raise CommandFailed(
            refused[0].reason,
            f"{len(refused)} of {len(settled)} were not {what}",
            code_of_answer(error_of_settled(refused[0])),
        )


Strict = Annotated[bool, typer.Option("--strict", help="All of them, or none.")]


def ack(session: Session, queue: QueueName, receipts: Receipts, *, strict: Strict = False) -> None:
    """Leased messages are done; exits with 4 if a lease is lost.

    \b
    Examples:
      onelog queue ack 'jobs{jobs}' $(onelog queue lease 'jobs{jobs}' --receipts)
    """
    settled = session.client.queue(queue).ack_many(_messages(receipts), strict=strict)
    show_settled(session, settled, "acknowledged")


def nack(
    session: Session,
    queue: QueueName,
    receipts: Receipts,
    *,
    delay: Annotated[
        float | None,
        typer.Option("--delay", metavar="TIME", parser=duration_s, help="Else as the queue says."),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")] = "",
    strict: Strict = False,
) -> None:
    """Leased messages failed: they come again after a delay, or are dead.

    \b
    Examples:
      onelog queue nack 'jobs{jobs}' --delay 1m $(onelog queue lease 'jobs{jobs}' --receipts)
    """
    settled = session.client.queue(queue).nack_many(
        _messages(receipts), delay_s=delay, reason=reason, strict=strict
    )
    show_settled(session, settled, "failed")


def extend(
    session: Session, queue: QueueName, receipts: Receipts, *, visibility: Visibility = None
) -> None:
    """Leases are to last so long from now on; exits with 4 if one is lost.

    \b
    Examples:
      onelog queue extend 'jobs{jobs}' --visibility 5m $(onelog queue lease 'jobs{jobs}' --receipts)
    """
    settled = session.client.queue(queue).extend_many(_messages(receipts), visibility)
    show_settled(session, settled, "extended")


def release(session: Session, queue: QueueName, receipts: Receipts) -> None:
    """Give messages back as if they had not been taken.

    \b
    Examples:
      onelog queue release 'jobs{jobs}' $(onelog queue lease 'jobs{jobs}' --receipts)
    """
    show_settled(session, session.client.queue(queue).release_many(_messages(receipts)), "released")


def peek(
    session: Session,
    queue: QueueName,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="So many.")] = 10,
    from_id: Annotated[int, typer.Option("--from", min=0, metavar="ID", help="From here on.")] = 0,
    since: Annotated[
        int, typer.Option("--since", metavar="WHEN", parser=time_ns, help="Enqueued since.")
    ] = "0",  # type: ignore[assignment] # typer parses it
) -> None:
    """Show messages without taking them, by id.

    \b
    Examples:
      onelog queue peek 'jobs{jobs}'
      onelog queue peek 'jobs.dead{jobs}' --since now-1h --json
    """
    messages: Iterator[Message] = iter(
        session.client.queue(queue).peek(limit, from_id=from_id, from_ns=since, read=session.read)
    )
    columns = (
        ("id", lambda message: message.message_id),
        ("state", lambda message: message.state),
        ("deliveries", lambda message: message.delivery_count),
        ("priority", lambda message: message.priority),
        ("due", lambda message: shown_time(message.due_ns) if message.due_ns else None),
        ("enqueued", lambda message: shown_time(message.enqueued_ns)),
        ("headers", lambda message: message.headers),
        ("body", lambda message: message.body),
    )
    session.output.table(messages, columns, nothing=f"{queue} is empty")
