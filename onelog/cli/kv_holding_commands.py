"""``onelog kv lease`` and ``onelog kv lock``: what lasts as long as somebody holds it."""

import os
import signal
import subprocess
from typing import Annotated

import typer

from onelog.cli.command import Session, command, group
from onelog.cli.failure import EXIT_REFUSED, CommandFailed
from onelog.cli.values import duration_s, shown_duration, shown_time, to_bytes

# How often a lock is looked at while its command runs, and how long that has to end without it.
LOOK_S = 0.2
TERMINATE_S = 10.0

lease_app = group("Leases: keys that are put with one go when it goes.")

LeaseId = Annotated[int, typer.Argument(metavar="ID", min=1, help="The lease.")]
OfKey = Annotated[
    str, typer.Option("--key", metavar="KEY", help="A key of the lease's shard, as when granted.")
]


@command(lease_app)
def grant(
    session: Session,
    ttl: Annotated[
        float, typer.Argument(metavar="TIME", parser=duration_s, help="How long it lives.")
    ],
    *,
    key: OfKey,
) -> None:
    """Grant a lease for the keys of one shard, the one of --key; prints its id.

    \b
    Examples:
      onelog kv lease grant 30s --key 'online{ann}'
    """
    lease = session.client.kv.lease(ttl, key=to_bytes(key))
    session.output.result({"lease_id": lease.lease_id, "ttl_s": ttl}, str(lease.lease_id))


@command(lease_app)
def keep(session: Session, lease_id: LeaseId, *, key: OfKey) -> None:
    """Let a lease live for its whole lifetime again.

    \b
    Examples:
      ID=$(onelog kv lease grant 30s --key 'online{ann}')
      onelog kv lease keep $ID --key 'online{ann}'
    """
    lease = session.client.kv.find_lease(lease_id, key=to_bytes(key))
    lease.keep()
    session.output.result({"lease_id": lease_id}, f"lease {lease_id} lives on")


@command(lease_app)
def show(session: Session, lease_id: LeaseId, *, key: OfKey) -> None:
    """Show a lease and the keys that go with it.

    \b
    Examples:
      ID=$(onelog kv lease grant 30s --key 'online{ann}')
      onelog kv lease show $ID --key 'online{ann}'
    """
    info = session.client.kv.find_lease(lease_id, key=to_bytes(key)).info()
    rows = [
        ("lifetime", shown_duration(info.ttl_s)),
        ("expires", shown_time(info.expires_ns)),
        ("keys", info.keys),
    ]
    session.output.listing(info, rows)


@command(lease_app)
def revoke(session: Session, lease_id: LeaseId, *, key: OfKey) -> None:
    """End a lease, and its keys with it.

    \b
    Examples:
      ID=$(onelog kv lease grant 30s --key 'online{ann}')
      onelog kv lease revoke $ID --key 'online{ann}'
    """
    count = session.client.kv.find_lease(lease_id, key=to_bytes(key)).revoke()
    session.output.result({"deleted": count}, f"{count} keys deleted")


def register(app: typer.Typer) -> None:
    """Add what is no group of its own."""
    command(app)(lock)


def lock(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The key that is the lock.")],
    arguments: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="What to run meanwhile.")
    ],
    *,
    ttl: Annotated[
        float,
        typer.Option(
            "--ttl", metavar="TIME", parser=duration_s,
            help="How long others wait if this machine dies.",
        ),
    ] = "10s",  # type: ignore[assignment] # typer parses it
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", metavar="TIME", parser=duration_s,
            help="Give up after so long; without, wait for ever.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Run a command while holding a lock that all machines share.

    The command finds the fencing token in ONELOG_LOCK_TOKEN. If the lock is lost while it runs, it
    is terminated. The exit code is the command's; 4 if the lock was not free or was lost.

    \b
    Examples:
      onelog kv lock nightly -- echo 'only one of us'
      onelog kv lock nightly --wait 0 -- sh -c 'echo token $ONELOG_LOCK_TOKEN'
    """
    from onelog.errors import DeadlineExceeded

    held = session.client.kv.lock(to_bytes(name), ttl_s=ttl)
    if wait == 0:
        is_free = held.try_acquire()
    else:
        try:
            is_free = bool(held.acquire(wait))
        except DeadlineExceeded as error:
            if error.reason != "EXPIRED":
                raise
            is_free = False
    if not is_free:
        raise CommandFailed("LOCK_BUSY", f"somebody else holds {name}", EXIT_REFUSED)
    try:
        environment = os.environ | {"ONELOG_LOCK_TOKEN": str(held.token)}
        process = subprocess.Popen(arguments, env=environment)  # noqa: S603 - it was asked for
        while process.poll() is None:
            try:
                process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                if held.is_held:
                    continue
                _end(process)
                raise CommandFailed(
                    "LEASE_LOST", f"the lock {name} was lost; the command was ended", EXIT_REFUSED
                ) from None
            except KeyboardInterrupt:
                # The terminal has told the command as well, and it decides when it ends.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Ended by a signal: as shells say it.
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    finally:
        held.release()
    raise typer.Exit(code)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(TERMINATE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
