"""``onelog queue``: producing and consuming messages, and managing queues.

A leased message is named by its receipt, ``ID:TOKEN``, which ``lease`` prints. Any process that has
the receipt may settle the message.
"""

import errno
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.cli.command import (
    IfMissing,
    Raw,
    RoutingKey,
    Session,
    command,
    create_or_find,
    group,
)
from onelog.cli.failure import EXIT_NOT_FOUND, CommandFailed, find_exit_code
from onelog.cli.output import cell, counted, naming_lines, note, progress, shown_headers, to_text
from onelog.cli.values import (
    dead_letters_name,
    duration_s,
    parse_headers,
    parse_number_pairs,
    read_lines,
    read_value,
    shown_duration,
    shown_time,
    time_ns,
    to_bytes,
)

if TYPE_CHECKING:
    from onelog import Message, QueueConfig
    from onelog.client.sync.queue import Queue
    from onelog.client.values import QueueInfo, Redrive, Settled

LOOK_S = 0.1  # how often the progress of a redrive is checked
ENQUEUE_CHUNK = 1_000  # lines that are read from the input before they are sent
VISIBILITY_S = 30.0
STOP_S = 86_400.0  # how long commands under way may take to end after Ctrl-C

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
        float,
        typer.Option("--delay", metavar="TIME", parser=duration_s, help="Deliver after this long."),
    ] = "0",  # type: ignore[assignment] # typer parses it
    at: Annotated[
        int, typer.Option("--at", metavar="WHEN", parser=time_ns, help="Deliver at this time.")
    ] = "0",  # type: ignore[assignment] # typer parses it
    ttl: Annotated[
        float,
        typer.Option("--ttl", metavar="TIME", parser=duration_s, help="Expire after this long."),
    ] = "0",  # type: ignore[assignment] # typer parses it
    dedup_id: Annotated[
        str, typer.Option("--dedup-id", metavar="TEXT", help="Drop it if this id was sent before.")
    ] = "",
    group: Annotated[
        str, typer.Option("--group", metavar="NAME", help="Deliver in order within this group.")
    ] = "",
    tenant: Annotated[
        str,
        typer.Option("--tenant", metavar="NAME", help="Tenants get equal shares of deliveries."),
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
        "headers": parse_headers(header),
    }  # fmt: skip
    if lines:
        if body not in (None, "-") or dedup_id:
            raise CommandFailed("USAGE", "--lines takes no body and no --dedup-id")
        count = _enqueue_lines(target, file, settings)
        session.output.result({"enqueued": count}, f"{counted(count, 'message')} enqueued")
        return
    (enqueued,) = target.enqueue_many([NewMessage(read_value(body, file), **settings)])
    session.output.result(enqueued, str(enqueued.message_id))


def _enqueue_lines(target: "Queue", file: Path | None, settings: dict[str, Any]) -> int:
    from onelog import NewMessage

    count, source = 0, read_lines(file)
    with progress("enqueueing") as advance:
        while chunk := list(islice(source, ENQUEUE_CHUNK)):
            with naming_lines(count, len(chunk)):
                target.enqueue_many(NewMessage(line, **settings) for line in chunk)
            count += len(chunk)
            advance(len(chunk))
    return count


MESSAGE_COLUMNS = (
    ("receipt", lambda message: f"{message.message_id}:{message.token}"),
    ("deliveries", lambda message: message.delivery_count),
    ("priority", lambda message: message.priority),
    ("leased until", lambda message: shown_time(message.lease_expires_ns)),
    ("headers", lambda message: shown_headers(message.headers)),
    ("body", lambda message: message.body),
)


def lease(
    session: Session,
    queue: QueueName,
    *,
    count: Annotated[
        int, typer.Option("--count", min=1, max=1000, metavar="N", help="At most N.")
    ] = 1,
    visibility: MessageVisibility = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="TIME", parser=duration_s, help="Wait this long for the first."
        ),
    ] = "0",  # type: ignore[assignment] # typer parses it
    receipts: Annotated[
        bool, typer.Option("--receipts", help="Print receipts and nothing else.")
    ] = False,
    raw: Raw = False,
) -> None:
    """Lease messages and print their receipts; exits with 3 if there is none.

    Settle a message with its receipt: ack, nack, extend or release.

    \b
    Examples:
      onelog queue lease 'jobs{jobs}' --count 10 --visibility 1m
      onelog queue lease 'jobs{jobs}' --wait 5s --json
      onelog queue lease 'jobs{jobs}' --raw > body
    """
    session.output.check_raw(raw, receipts)
    messages = session.client.queue(queue).lease(count, visibility_s=visibility, wait_s=wait)
    if receipts:
        for message in messages:
            typer.echo(f"{message.message_id}:{message.token}")
    elif raw:
        for message in messages:
            session.output.raw(message.body)
    else:
        session.output.table(messages, MESSAGE_COLUMNS)
    if not messages:
        is_paused = session.client.queue(queue).info().paused
        why = _paused(queue) if is_paused else f"{queue} has no message that is ready"
        raise CommandFailed("QUEUE_EMPTY", why, EXIT_NOT_FOUND)


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
        typer.Option("--limit", min=0, metavar="N", help="Stop after N messages; 0: never."),
    ] = 0,
    visibility: MessageVisibility = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=256, metavar="N", help="Commands at a time.")
    ] = 1,
    raw: Raw = False,
) -> None:
    """Print messages as they arrive, and acknowledge each that was printed; Ctrl-C ends it.

    A command gets the body on stdin, and ONELOG_MESSAGE_ID and ONELOG_DELIVERY_COUNT in its
    environment. If it succeeds, the message is acknowledged; else the delivery has failed, and the
    message is retried or dead. Leases are extended while commands run.

    \b
    Examples:
      onelog queue consume 'jobs{jobs}' --limit 2
      onelog queue consume 'jobs{jobs}' --json
      onelog queue consume 'jobs{jobs}' --limit 2 --concurrency 2 -- sh -c 'cat; echo'
      onelog queue consume 'jobs{jobs}' --limit 1 --raw > body
    """
    session.output.check_raw(raw, bool(arguments))
    target = session.client.queue(queue)
    if arguments and shutil.which(arguments[0]) is None:
        # Before a message is leased: a typo must not turn messages into dead letters.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])
    if target.info().paused:
        note(f"{_paused(queue)}; waiting until then")
    if arguments:
        _work(target, arguments, limit, visibility, concurrency)
        return
    messages = target.consume(credit=1 if limit else 100, visibility_s=visibility)
    for count, message in enumerate(messages, 1):
        if raw:
            session.output.raw(message.body)
        else:
            session.output.line(message, f"{message.message_id}  {cell(message.body)}")
        target.ack(message)
        if count == limit:
            return


def _paused(queue: str) -> str:
    return f"{queue} is paused; go on with: onelog queue resume {shlex.quote(queue)}"


def _work(
    target: "Queue", arguments: Sequence[str], limit: int, visibility_s: float | None, workers: int
) -> None:
    from onelog import Reject

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
        for number, token in parse_number_pairs(receipts, "a receipt like 12:3456")
    ]


def show_settled(session: Session, settled: "list[Settled]", what: str) -> None:
    """Print the outcome for each message; fail if one of them was refused."""
    columns = (
        ("message", lambda each: each.message_id),
        ("", lambda each: each.reason or ("dead" if each.dead else what)),
    )
    session.output.table(settled, columns)
    refused = [each for each in settled if each.reason]
    if refused:
        from onelog.client.values import to_settle_error

        raise CommandFailed(
            refused[0].reason,
            f"{len(refused)} of {len(settled)} were not {what}",
            find_exit_code(to_settle_error(refused[0])),
        )


Strict = Annotated[bool, typer.Option("--strict", help="All of them, or none.")]


def ack(session: Session, queue: QueueName, receipts: Receipts, *, strict: Strict = False) -> None:
    """Acknowledge leased messages; exits with 4 if a lease is lost.

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
        typer.Option(
            "--delay", metavar="TIME", parser=duration_s, help="By default the queue's backoff."
        ),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")] = "",
    strict: Strict = False,
) -> None:
    """Record failed deliveries: retry the messages after a delay, or move them to dead letters.

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
    """Extend leases to --visibility from now; exits with 4 if one is lost.

    \b
    Examples:
      onelog queue extend 'jobs{jobs}' --visibility 5m $(onelog queue lease 'jobs{jobs}' --receipts)
    """
    settled = session.client.queue(queue).extend_many(_messages(receipts), visibility)
    show_settled(session, settled, "extended")


def release(session: Session, queue: QueueName, receipts: Receipts) -> None:
    """Release leased messages: they are ready again as if they had not been leased.

    \b
    Examples:
      onelog queue release 'jobs{jobs}' $(onelog queue lease 'jobs{jobs}' --receipts)
    """
    show_settled(session, session.client.queue(queue).release_many(_messages(receipts)), "released")


def peek(
    session: Session,
    queue: QueueName,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most N.")] = 10,
    from_id: Annotated[
        int, typer.Option("--from", min=0, metavar="ID", help="From this id on.")
    ] = 0,
    since: Annotated[
        int, typer.Option("--since", metavar="WHEN", parser=time_ns, help="Enqueued since.")
    ] = "0",  # type: ignore[assignment] # typer parses it
    failure: Annotated[
        str,
        typer.Option(
            "--failure", metavar="TEXT", help="Only dead letters whose failure contains this."
        ),
    ] = "",
    raw: Raw = False,
) -> None:
    """Show messages in the order of their ids, without leasing them.

    \b
    Examples:
      onelog queue peek 'jobs{jobs}'
      onelog queue peek 'jobs.dead{jobs}' --since now-1h --json
      onelog queue peek 'jobs{jobs}' --limit 1 --raw > body
      onelog queue peek 'jobs.dead{jobs}' --failure timeout
    """
    session.output.check_raw(raw)
    messages: Iterator[Message] = iter(
        session.client.queue(queue).peek(
            limit, from_id=from_id, from_ns=since, failure_contains=failure, read=session.read
        )
    )
    columns = (
        ("id", lambda message: message.message_id),
        ("state", lambda message: "unreadable" if message.unreadable else message.state),
        ("deliveries", lambda message: message.delivery_count),
        ("priority", lambda message: message.priority),
        ("due", lambda message: shown_time(message.due_ns) if message.due_ns else None),
        ("enqueued", lambda message: shown_time(message.enqueued_ns)),
        ("headers", lambda message: shown_headers(message.headers)),
        ("body", lambda message: message.body),
    )
    if raw:
        for message in messages:
            session.output.raw(message.body)
        return
    session.output.table(messages, columns, nothing=f"{queue} is empty")


# Commands

app = group(
    "Queues: enqueue, consume, acknowledge, dead letters.",
    "onelog queue create mail --max-deliveries 3 --dead-letters --if-missing",
    "seq 5 | onelog queue enqueue mail --lines",
    "onelog queue consume mail --limit 2 -- sh -c 'echo working on $(cat)'",
    "onelog queue ack mail $(onelog queue lease mail --receipts)",
    "onelog queue peek 'mail.dead{mail}'",
    "onelog queue redrive 'mail.dead{mail}'",
)
schedule_app = group(
    "Messages that a queue enqueues by itself, by a cron expression in UTC.",
    "onelog queue create reports --if-missing",
    "onelog queue schedule add reports '30 3 * * *' 'nightly report'",
    "onelog queue schedule list reports",
)
register(app)
app.add_typer(schedule_app, name="schedule")

MessageIds = Annotated[list[int], typer.Argument(metavar="ID...", min=1, help="The messages.")]


def _duration_option(flag: str, text: str) -> Any:
    return typer.Option(flag, metavar="TIME", parser=duration_s, help=text)


MaxDeliveries = Annotated[
    int | None,
    typer.Option(
        "--max-deliveries", min=0, metavar="N", help="Failures until a message is dead; 0: never."
    ),
]
DeadLetters = Annotated[
    str | None,
    typer.Option(
        "--dead-letters", metavar="[QUEUE]",
        help="The queue for dead messages, which is created if it does not exist; without a value "
        "QUEUE.dead{QUEUE}.",
    ),
]  # fmt: skip
Visibility = Annotated[
    float | None, _duration_option("--visibility", "Default length of a lease; 30s.")
]
Ageing = Annotated[
    float | None, _duration_option("--ageing", "Waiting this long counts as one step of priority.")
]
Ttl = Annotated[float | None, _duration_option("--ttl", "Default lifetime of a message.")]
DedupWindow = Annotated[
    float | None, _duration_option("--dedup-window", "How long a dedup id is remembered; 5m.")
]
DedupMax = Annotated[
    int | None,
    typer.Option("--dedup-max", min=0, metavar="N", help="The most dedup ids to remember."),
]
MessagesMax = Annotated[
    int | None,
    typer.Option("--messages-max", min=0, metavar="N", help="The most messages it may hold."),
]
Backoff = Annotated[
    str | None,
    typer.Option("--backoff", metavar="TIME,...", help="Delay after each failure, like 1s,10s,1m."),
]


TenantWeights = Annotated[
    list[str] | None,
    typer.Option(
        "--tenant-weight", metavar="TENANT=N",
        help="Messages of a tenant's turn, 1 to 1000; =N is of messages without one. Repeatable.",
    ),
]  # fmt: skip


def _create_dead_letters(session: Session, queue: str, config: "QueueConfig") -> None:
    """Create the queue for dead letters if it does not exist."""
    name = config.dead_letter_queue
    if config.max_deliveries and not name:
        what = "--max-deliveries needs --dead-letters, which may stand without a value"
        raise CommandFailed("USAGE", what)
    if name:
        session.check_same_shard("queues", queue, name)
        session.client.queue(name).create(exist_ok=True)


def _changed(queue: str, config: "QueueConfig", **given: Any) -> "QueueConfig":
    """Return the settings with the given ones changed."""
    if given["dead_letter_queue"] == "":
        given["dead_letter_queue"] = dead_letters_name(queue)
    if given["backoff_s"] is not None:
        texts = [each for each in given["backoff_s"].split(",") if each]
        given["backoff_s"] = tuple(duration_s(each) for each in texts)
    if given["tenant_weights"] is not None:
        weights = dict(config.tenant_weights)
        for text in given["tenant_weights"]:
            tenant, sign, number = text.rpartition("=")
            if not sign or not number.isdecimal():
                raise CommandFailed("USAGE", f"'{text}' is not a tenant and its weight, like ann=3")
            weights[tenant.encode()] = int(number)
        given["tenant_weights"] = weights
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
    if_missing: IfMissing = False,
    tenant_weights: TenantWeights = None,
) -> None:
    """Create a queue; exits with 4 if it exists.

    With several shards a queue and that of its dead letters need the same {tag}, as names without a
    value for --dead-letters have.

    \b
    Examples:
      onelog queue create work --max-deliveries 5 --dead-letters
      onelog queue create 'jobs{jobs}' --max-deliveries 5 --dead-letters 'jobs.dead{jobs}'
      onelog queue create work --if-missing
      onelog queue create mails --tenant-weight paying=3 --tenant-weight free=1
    """
    from onelog import QueueConfig

    config = _changed(
        queue, QueueConfig(), max_deliveries=max_deliveries, dead_letter_queue=dead_letters,
        visibility_s=visibility, ageing_s=ageing, ttl_s=ttl, dedup_window_s=dedup_window,
        dedup_max=dedup_max, messages_max=messages_max, backoff_s=backoff,
        tenant_weights=tenant_weights,
    )  # fmt: skip
    _create_dead_letters(session, queue, config)
    queue_id, what = create_or_find(partial(session.client.queue(queue).create, config), if_missing)
    session.output.result({"queue": queue, "queue_id": queue_id}, f"queue {queue} {what}")


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
    tenant_weights: TenantWeights = None,
) -> None:
    """Change settings of a queue; those that are not given stay, as do weights of other tenants.

    \b
    Examples:
      onelog queue configure 'jobs{jobs}' --visibility 2m --max-deliveries 8
      onelog queue configure 'jobs{jobs}' --tenant-weight ann=1
    """
    target = session.client.queue(queue)
    config = _changed(
        queue, target.info().config, max_deliveries=max_deliveries, dead_letter_queue=dead_letters,
        visibility_s=visibility, ageing_s=ageing, ttl_s=ttl, dedup_window_s=dedup_window,
        dedup_max=dedup_max, messages_max=messages_max, backoff_s=backoff,
        tenant_weights=tenant_weights,
    )  # fmt: skip
    if dead_letters is not None or max_deliveries:
        _create_dead_letters(session, queue, config)
    target.configure(config)
    session.output.result({"queue": queue, "config": config}, f"queue {queue} configured")


@command(app)
def delete(session: Session, queue: QueueName) -> None:
    """Delete a queue with all of its messages.

    \b
    Examples:
      onelog queue delete old-jobs
    """
    session.client.queue(queue).delete()
    session.output.result({"queue": queue}, f"queue {queue} deleted")


@command(app, "list", reads=True)
def list_(
    session: Session,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only names with this prefix.")
    ] = "",
    *,
    routing_key: RoutingKey = "",
) -> None:
    """List queues and their counts of messages.

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
    found = session.client.queues(prefix, routing_key=routing_key, read=session.read)
    session.output.table(found, columns, nothing="there is no such queue")


@command(app, reads=True)
def show(session: Session, queue: QueueName) -> None:
    """Show a queue: its messages by state, totals since it was created, and its settings.

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
    weights = {
        name if isinstance(name, str) else to_text(name): weight
        for name, weight in config.tenant_weights.items()
    }
    return [
        ("queue", info.queue),
        ("paused", info.paused),
        ("ready", info.ready),
        ("unreadable", info.unreadable),
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
        ("dead letters arrived", info.arrived),
        ("dead letters moved", info.moved),
        ("deduplicated", info.deduplicated),
        ("max deliveries", config.max_deliveries or "no limit"),
        ("dead letters", config.dead_letter_queue),
        ("visibility", shown_duration(config.visibility_s)),
        ("ageing", shown_duration(config.ageing_s) if config.ageing_s else "priority is strict"),
        ("lifetime", shown_duration(config.ttl_s) if config.ttl_s else "for ever"),
        ("dedup", f"{counted(config.dedup_max, 'id')} for {shown_duration(config.dedup_window_s)}"),
        ("holds", config.messages_max or "no limit"),
        ("backoff", backoff),
        ("tenant weights", weights),
    ]


@command(app)
def pause(session: Session, queue: QueueName) -> None:
    """Deliver no more messages until `queue resume`.

    \b
    Examples:
      onelog queue pause 'jobs{jobs}'
    """
    session.client.queue(queue).pause()
    session.output.result({"queue": queue, "paused": True}, f"queue {queue} paused")


@command(app)
def resume(session: Session, queue: QueueName) -> None:
    """Deliver messages again after `queue pause`.

    \b
    Examples:
      onelog queue resume 'jobs{jobs}'
    """
    session.client.queue(queue).resume()
    session.output.result({"queue": queue, "paused": False}, f"queue {queue} resumed")


@command(app)
def cancel(session: Session, queue: QueueName, message_ids: MessageIds) -> None:
    """Delete messages that are not leased; exits with 4 if one cannot be deleted.

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
    """Change the priority of messages that are not leased; exits with 4 if one is refused.

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
            "--before", metavar="WHEN", parser=time_ns, help="Only messages enqueued before."
        ),
    ] = "0",  # type: ignore[assignment] # typer parses it
    leased_too: Annotated[
        bool, typer.Option("--leased-too", help="Also messages that are leased.")
    ] = False,
) -> None:
    """Delete all messages of a queue, or the older ones.

    \b
    Examples:
      onelog queue purge 'jobs{jobs}' --before now-1d
      onelog queue purge 'jobs{jobs}'
    """
    with progress("purging"):
        count = session.client.queue(queue).purge(
            below_id=below_id, before_ns=before, leased_too=leased_too
        )
    session.output.result({"purged": count}, f"{counted(count, 'message')} purged")


@command(app)
def redrive(
    session: Session,
    queue: QueueName,
    *,
    target: Annotated[
        str,
        typer.Option(
            "--to", metavar="QUEUE", help="Move them here instead of to their own queues."
        ),
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
        str, typer.Option("--failure", metavar="TEXT", help="Only if the failure contains this.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="At most N.")] = 0,
    rate: Annotated[
        int, typer.Option("--rate", min=0, metavar="N", help="At most N a second.")
    ] = 0,
) -> None:
    """Move dead letters back to their queues; says how many it has moved.

    The server moves them, also after this command has ended: with --rate that takes its time.
    `queue show` counts what was moved, and cancel-redrive stops it.

    \b
    Examples:
      onelog queue redrive 'jobs.dead{jobs}'
      onelog queue redrive 'jobs.dead{jobs}' --rate 100 --failure timeout
    """
    dead_letters = session.client.queue(queue)
    before = dead_letters.info()
    redrive_id = dead_letters.redrive(
        target=target, first_id=first_id, last_id=last_id, failed_from_ns=failed_from,
        failed_until_ns=failed_until, failure_contains=failure, limit=limit, rate_per_s=rate,
    )  # fmt: skip
    there = before.ready + before.delayed
    expected = min(limit or there, there)
    chooses = any((first_id, last_id, failed_from, failed_until, failure))
    patience_s = 0.0 if chooses or rate else session.timeout_s
    moved = _await_moved(dead_letters, before, expected, patience_s)
    is_done = moved >= expected
    place = f"to {target}" if target else "back"
    text = f"redrive {redrive_id}: {counted(moved, 'message')} moved {place}"
    if not is_done:
        text += f", of {there} there; it goes on while any is left that fits"
    document = {"redrive_id": redrive_id, "moved": moved, "there": there, "done": is_done}
    session.output.result(document, text)


def _await_moved(
    dead_letters: "Queue", before: "QueueInfo", expected: int, patience_s: float
) -> int:
    """Return how many dead letters were moved: all that are expected, or those of a while."""
    ends_s = monotonic() + patience_s
    while True:
        now = dead_letters.info()
        moved = now.moved - before.moved
        if moved >= expected or not now.ready + now.delayed or monotonic() >= ends_s:
            return moved
        sleep(LOOK_S)


@command(app, reads=True)
def redrives(session: Session, queue: QueueName) -> None:
    """List the redrives from a queue that have not ended, and how far they are.

    \b
    Examples:
      onelog queue redrives 'jobs.dead{jobs}'
      onelog queue redrives 'jobs.dead{jobs}' --json
    """
    found = session.client.queue(queue).redrives(read=session.read)
    columns = (
        ("id", lambda each: each.redrive_id),
        ("target", _shown_target),
        ("failure", lambda each: each.failure_contains or None),
        ("rate", lambda each: f"{each.rate_per_s}/s" if each.rate_per_s else None),
        ("moved", lambda each: each.moved),
        ("skipped", lambda each: each.skipped),
        ("remaining", lambda each: f"{each.remaining}{'+' * each.remaining_is_partial}"),
        ("started", lambda each: shown_time(each.started_ns)),
    )
    session.output.table(found, columns, nothing="there is no redrive")


def _shown_target(redrive: "Redrive") -> str:
    if redrive.target:
        return redrive.target
    return "deleted" if redrive.target_id else "where each died"


@command(app, "cancel-redrive")
def cancel_redrive(
    session: Session,
    queue: QueueName,
    redrive_id: Annotated[
        int, typer.Argument(metavar="ID", min=1, help="As `redrive` and `redrives` print it.")
    ],
) -> None:
    """Stop a redrive; messages that it moved stay where they are.

    \b
    Examples:
      onelog queue cancel-redrive 'jobs.dead{jobs}' 40
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
    """Add a schedule: the queue enqueues the message whenever CRON says so; prints its id.

    \b
    Examples:
      onelog queue schedule add 'jobs{jobs}' '30 3 * * *' 'nightly report'
    """
    from onelog import NewMessage

    message = NewMessage(read_value(body, file), priority=priority, headers=parse_headers(header))
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
    """Delete a schedule; messages that it enqueued stay.

    \b
    Examples:
      ID=$(onelog queue schedule add 'jobs{jobs}' '0 0 * * *' x)
      onelog queue schedule delete 'jobs{jobs}' $ID
    """
    session.client.queue(queue).unschedule(schedule_id)
    session.output.result({"schedule_id": schedule_id}, f"schedule {schedule_id} deleted")
