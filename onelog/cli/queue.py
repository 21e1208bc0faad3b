"""``onelog queue``: queues, and looking after them.

Message
-------
What producers and consumers of a queue do: ``onelog queue enqueue``, ``consume``, ``ack``, …

A leased message is named by its receipt, ``ID:TOKEN``, which ``lease`` prints: whoever has it may
settle the message, in another process as well.
"""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.cli.command import RoutingKey, Session, command, group
from onelog.cli.failure import EXIT_NOT_FOUND, CommandFailed, code_of_answer
from onelog.cli.output import cell, progress
from onelog.cli.values import (
    duration_s,
    headers_of,
    lines_of,
    number_pairs_of,
    shown_duration,
    shown_time,
    time_ns,
    to_bytes,
    value_of,
)

if TYPE_CHECKING:
    from onelog import Message, QueueConfig
    from onelog.client.sync.queue import Queue
    from onelog.client.values import QueueInfo, Settled

ENQUEUE_CHUNK = 1_000  # lines that are read from the input before they are sent
VISIBILITY_S = 30.0
STOP_S = 86_400.0  # commands under way are waited for when no more messages are taken

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
Receipts = Annotated[
    list[str], typer.Argument(metavar="ID:TOKEN...", help="As `queue lease` prints them.")
]
MessageVisibility = Annotated[
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
    visibility: MessageVisibility = None,
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
    visibility: MessageVisibility = None,
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
        from onelog.client.values import error_of_settled

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
    session: Session, queue: QueueName, receipts: Receipts, *, visibility: MessageVisibility = None
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


# Commands

app = group("Queues: enqueue, consume, acknowledge, dead letters.")
schedule_app = group("Messages that a queue sends itself, by a cron expression in UTC.")
register(app)
app.add_typer(schedule_app, name="schedule")

MessageIds = Annotated[list[int], typer.Argument(metavar="ID...", min=1, help="The messages.")]


def _duration_option(flag: str, text: str) -> Any:
    return typer.Option(flag, metavar="TIME", parser=duration_s, help=text)


MaxDeliveries = Annotated[
    int | None,
    typer.Option(
        "--max-deliveries", min=0, metavar="N", help="Failures after which one is dead; 0: never."
    ),
]
DeadLetters = Annotated[
    str | None, typer.Option("--dead-letters", metavar="QUEUE", help="The queue for dead ones.")
]
Visibility = Annotated[
    float | None, _duration_option("--visibility", "Length of a lease that asks for none; 30s.")
]
Ageing = Annotated[
    float | None, _duration_option("--ageing", "Waiting that makes up for one step of priority.")
]
Ttl = Annotated[float | None, _duration_option("--ttl", "Lifetime of messages that bring none.")]
DedupWindow = Annotated[
    float | None, _duration_option("--dedup-window", "How long a dedup id is remembered; 5m.")
]
DedupMax = Annotated[
    int | None, typer.Option("--dedup-max", min=0, metavar="N", help="Dedup ids remembered.")
]
MessagesMax = Annotated[
    int | None, typer.Option("--messages-max", min=0, metavar="N", help="How many it may hold.")
]
Backoff = Annotated[
    str | None,
    typer.Option("--backoff", metavar="TIME,...", help="Delay after each failure, like 1s,10s,1m."),
]


def _changed(config: "QueueConfig", **given: Any) -> "QueueConfig":
    """Return settings with those changed that were given."""
    if given["backoff_s"] is not None:
        texts = [each for each in given["backoff_s"].split(",") if each]
        given["backoff_s"] = tuple(duration_s(each) for each in texts)
    return replace(config, **{name: each for name, each in given.items() if each is not None})


@command(app)
def create(
    session: Session,
    queue: QueueName,
    *,
    max_deliveries: MaxDeliveries = None,
    dead_letters: DeadLetters = None,
    visibility: Visibility = None,
    ageing: Ageing = None,
    ttl: Ttl = None,
    dedup_window: DedupWindow = None,
    dedup_max: DedupMax = None,
    messages_max: MessagesMax = None,
    backoff: Backoff = None,
) -> None:
    """Create a queue; exits with 4 if it is there.

    \b
    Examples:
      onelog queue create 'jobs.dead{jobs}'
      onelog queue create 'jobs{jobs}' --max-deliveries 5 --dead-letters 'jobs.dead{jobs}'
    """
    from onelog import QueueConfig

    config = _changed(
        QueueConfig(), max_deliveries=max_deliveries, dead_letter_queue=dead_letters,
        visibility_s=visibility, ageing_s=ageing, ttl_s=ttl, dedup_window_s=dedup_window,
        dedup_max=dedup_max, messages_max=messages_max, backoff_s=backoff,
    )  # fmt: skip
    queue_id = session.client.queue(queue).create(config)
    session.output.result({"queue": queue, "queue_id": queue_id}, f"queue {queue} created")


@command(app)
def configure(
    session: Session,
    queue: QueueName,
    *,
    max_deliveries: MaxDeliveries = None,
    dead_letters: DeadLetters = None,
    visibility: Visibility = None,
    ageing: Ageing = None,
    ttl: Ttl = None,
    dedup_window: DedupWindow = None,
    dedup_max: DedupMax = None,
    messages_max: MessagesMax = None,
    backoff: Backoff = None,
) -> None:
    """Change settings of a queue; those that are not named stay as they are.

    \b
    Examples:
      onelog queue configure 'jobs{jobs}' --visibility 2m --max-deliveries 8
    """
    target = session.client.queue(queue)
    config = _changed(
        target.info().config, max_deliveries=max_deliveries, dead_letter_queue=dead_letters,
        visibility_s=visibility, ageing_s=ageing, ttl_s=ttl, dedup_window_s=dedup_window,
        dedup_max=dedup_max, messages_max=messages_max, backoff_s=backoff,
    )  # fmt: skip
    target.configure(config)
    session.output.result({"queue": queue, "config": config}, f"queue {queue} configured")


@command(app)
def delete(session: Session, queue: QueueName) -> None:
    """Delete a queue and all that is in it.

    \b
    Examples:
      onelog queue delete old-jobs
    """
    session.client.queue(queue).delete()
    session.output.result({"queue": queue}, f"queue {queue} deleted")


@command(app, "list", reads=True)
def list_(
    session: Session,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Names that begin so.")] = "",
    *,
    shard_of: RoutingKey = "",
) -> None:
    """List queues and what is in them.

    \b
    Examples:
      onelog queue list
      onelog queue list jobs --json
    """
    columns = (
        ("queue", lambda info: info.queue),
        ("ready", lambda info: info.ready),
        ("delayed", lambda info: info.delayed),
        ("leased", lambda info: info.leased),
        ("oldest", lambda info: shown_time(info.oldest_ns) if info.oldest_ns else None),
        ("dead", lambda info: info.dead),
        ("", lambda info: "paused" if info.paused else None),
    )
    found = session.client.queues(prefix, routing_key=shard_of, read=session.read)
    session.output.table(found, columns, nothing="there is no such queue")


@command(app, reads=True)
def show(session: Session, queue: QueueName) -> None:
    """Show a queue: what is in it, what became of the rest, and its settings.

    \b
    Examples:
      onelog queue show 'jobs{jobs}'
      onelog queue show 'jobs{jobs}' --json
    """
    info = session.client.queue(queue).info(read=session.read)
    session.output.listing(info, _rows(info))


def _rows(info: "QueueInfo") -> list[tuple[str, Any]]:
    config = info.config
    backoff = [shown_duration(each) for each in config.backoff_s]
    return [
        ("queue", info.queue),
        ("paused", info.paused),
        ("ready", info.ready),
        ("delayed", info.delayed),
        ("leased", info.leased),
        ("oldest", shown_time(info.oldest_ns) if info.oldest_ns else None),
        ("enqueued", info.enqueued),
        ("acknowledged", info.acked),
        ("expired", info.expired),
        ("dead", info.dead),
        ("redriven", info.redriven),
        ("cancelled", info.cancelled),
        ("purged", info.purged),
        ("deduplicated", info.deduplicated),
        ("max deliveries", config.max_deliveries or "no limit"),
        ("dead letters", config.dead_letter_queue),
        ("visibility", shown_duration(config.visibility_s)),
        ("ageing", shown_duration(config.ageing_s) if config.ageing_s else "priority is strict"),
        ("lifetime", shown_duration(config.ttl_s) if config.ttl_s else "for ever"),
        ("dedup", f"{config.dedup_max} ids for {shown_duration(config.dedup_window_s)}"),
        ("holds", config.messages_max or "no limit"),
        ("backoff", backoff),
    ]


@command(app)
def pause(session: Session, queue: QueueName) -> None:
    """Give out no more messages until `queue resume`.

    \b
    Examples:
      onelog queue pause 'jobs{jobs}'
    """
    session.client.queue(queue).pause()
    session.output.result({"queue": queue, "paused": True}, f"queue {queue} paused")


@command(app)
def resume(session: Session, queue: QueueName) -> None:
    """Give out messages again.

    \b
    Examples:
      onelog queue resume 'jobs{jobs}'
    """
    session.client.queue(queue).resume()
    session.output.result({"queue": queue, "paused": False}, f"queue {queue} resumed")


@command(app)
def cancel(session: Session, queue: QueueName, message_ids: MessageIds) -> None:
    """Remove messages that are not leased; exits with 4 if one cannot be.

    \b
    Examples:
      ID=$(onelog queue enqueue 'jobs{jobs}' 'not after all')
      onelog queue cancel 'jobs{jobs}' $ID
    """
    show_settled(session, session.client.queue(queue).cancel(message_ids), "cancelled")


@command(app)
def prioritise(
    session: Session,
    queue: QueueName,
    priority: Annotated[
        int, typer.Argument(metavar="PRIORITY", min=0, max=15, help="0 is the most urgent.")
    ],
    message_ids: MessageIds,
) -> None:
    """Give messages that are not leased another priority; exits with 4 if one cannot have it.

    \b
    Examples:
      ID=$(onelog queue enqueue 'jobs{jobs}' urgent)
      onelog queue prioritise 'jobs{jobs}' 0 $ID
    """
    settled = session.client.queue(queue).prioritise(message_ids, priority)
    show_settled(session, settled, "prioritised")


@command(app)
def purge(
    session: Session,
    queue: QueueName,
    *,
    below_id: Annotated[
        int, typer.Option("--below", min=0, metavar="ID", help="Only messages below this id.")
    ] = 0,
    before: Annotated[
        int,
        typer.Option(
            "--before", metavar="WHEN", parser=time_ns, help="Only those enqueued before."
        ),
    ] = "0",  # type: ignore[assignment] # typer parses it
    leased_too: Annotated[
        bool, typer.Option("--leased-too", help="Also those that somebody is working on.")
    ] = False,
) -> None:
    """Remove all messages of a queue, or the older ones.

    \b
    Examples:
      onelog queue purge 'jobs{jobs}' --before now-1d
      onelog queue purge 'jobs{jobs}'
    """
    with progress("purging"):
        count = session.client.queue(queue).purge(
            below_id=below_id, before_ns=before, leased_too=leased_too
        )
    session.output.result({"purged": count}, f"{count} purged")


@command(app)
def redrive(
    session: Session,
    queue: QueueName,
    *,
    target: Annotated[
        str, typer.Option("--to", metavar="QUEUE", help="Not to where they came from, but here.")
    ] = "",
    first_id: Annotated[
        int, typer.Option("--first", min=0, metavar="ID", help="From this id on.")
    ] = 0,
    last_id: Annotated[int, typer.Option("--last", min=0, metavar="ID", help="Up to this id.")] = 0,
    failed_from: Annotated[
        int, typer.Option("--failed-from", metavar="WHEN", parser=time_ns, help="Failed since.")
    ] = "0",  # type: ignore[assignment] # typer parses it
    failed_until: Annotated[
        int, typer.Option("--failed-until", metavar="WHEN", parser=time_ns, help="Failed before.")
    ] = "0",  # type: ignore[assignment] # typer parses it
    failure: Annotated[
        str, typer.Option("--failure", metavar="TEXT", help="Only those whose failure has this.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="So many.")] = 0,
    rate: Annotated[
        int, typer.Option("--rate", min=0, metavar="N", help="So many in a second.")
    ] = 0,
) -> None:
    """Move dead letters back to where they came from; it goes on by itself. Prints its id.

    \b
    Examples:
      onelog queue redrive 'jobs.dead{jobs}' --rate 100
    """
    redrive_id = session.client.queue(queue).redrive(
        target=target, first_id=first_id, last_id=last_id, failed_from_ns=failed_from,
        failed_until_ns=failed_until, failure_contains=failure, limit=limit, rate_per_s=rate,
    )  # fmt: skip
    session.output.result({"redrive_id": redrive_id}, str(redrive_id))


@command(app, "cancel-redrive")
def cancel_redrive(
    session: Session,
    queue: QueueName,
    redrive_id: Annotated[int, typer.Argument(metavar="ID", min=1, help="As redrive printed it.")],
) -> None:
    """Stop a redrive where it is.

    \b
    Usage:
      ID=$(onelog queue redrive 'jobs.dead{jobs}' --rate 1)
      onelog queue cancel-redrive 'jobs.dead{jobs}' $ID
    """
    session.client.queue(queue).cancel_redrive(redrive_id)
    session.output.result({"redrive_id": redrive_id}, f"redrive {redrive_id} stopped")


@command(schedule_app)
def add(
    session: Session,
    queue: QueueName,
    cron: Annotated[
        str, typer.Argument(metavar="CRON", help="minute hour day month weekday, in UTC.")
    ],
    body: Annotated[str | None, typer.Argument(metavar="BODY", help="- reads stdin.")] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read it from a file.")
    ] = None,
    priority: Annotated[
        int, typer.Option("--priority", min=0, max=15, metavar="N", help="0 is the most urgent.")
    ] = 8,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="Repeatable.")
    ] = None,
) -> None:
    """Let a queue send itself a message whenever the expression says so; prints the id.

    \b
    Examples:
      onelog queue schedule add 'jobs{jobs}' '30 3 * * *' 'nightly report'
    """
    from onelog import NewMessage

    message = NewMessage(value_of(body, file), priority=priority, headers=headers_of(header))
    schedule_id = session.client.queue(queue).schedule(cron, message)
    session.output.result({"schedule_id": schedule_id}, str(schedule_id))


@command(schedule_app, "list", reads=True)
def list_schedules(session: Session, queue: QueueName) -> None:
    """List the schedules of a queue, and when they fire next.

    \b
    Examples:
      onelog queue schedule list 'jobs{jobs}'
    """
    columns = (
        ("id", lambda each: each.schedule_id),
        ("cron", lambda each: each.cron),
        ("next", lambda each: shown_time(each.next_ns)),
    )
    schedules = session.client.queue(queue).schedules(read=session.read)
    session.output.table(schedules, columns, nothing="there is no schedule")


@command(schedule_app, "delete")
def delete_schedule(
    session: Session,
    queue: QueueName,
    schedule_id: Annotated[int, typer.Argument(metavar="ID", min=1, help="The schedule.")],
) -> None:
    """Stop a schedule; messages that it made stay.

    \b
    Examples:
      ID=$(onelog queue schedule add 'jobs{jobs}' '0 0 * * *' x)
      onelog queue schedule delete 'jobs{jobs}' $ID
    """
    session.client.queue(queue).unschedule(schedule_id)
    session.output.result({"schedule_id": schedule_id}, f"schedule {schedule_id} deleted")
