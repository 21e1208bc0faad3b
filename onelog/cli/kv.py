"""``onelog kv``: keys, with leases and locks, and JSON documents read and changed in parts."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.cli.command import RoutingKey, Session, command, group
from onelog.cli.failure import EXIT_NOT_FOUND, EXIT_REFUSED, CommandFailed
from onelog.cli.output import counted, progress, to_text
from onelog.cli.values import (
    duration_s,
    lifetime_s,
    parse_json,
    parse_path,
    read_file,
    read_lines,
    read_value,
    shown_duration,
    shown_time,
    to_bytes,
)

if TYPE_CHECKING:
    from onelog import Item

# How often a lock is checked while its command runs, and how long the command has to end if it is
# lost.
LOOK_S = 0.2
TERMINATE_S = 10.0

lease_app = group(
    "Leases: keys put with a lease are deleted when it ends.",
    "ID=$(onelog kv lease grant 30s --key 'online{bob}')",
    "onelog kv put 'online{bob}' yes --lease $ID",
    "onelog kv lease keep $ID --key 'online{bob}'",
    "onelog kv lease revoke $ID --key 'online{bob}'",
)

LeaseId = Annotated[int, typer.Argument(metavar="ID", min=1, help="The lease.")]
OfKey = Annotated[
    str, typer.Option("--key", metavar="KEY", help="A key in the lease's shard, as given to grant.")
]


@command(lease_app)
def grant(
    session: Session,
    ttl: Annotated[float, typer.Argument(metavar="TIME", parser=duration_s, help="Its lifetime.")],
    *,
    key: OfKey,
) -> None:
    """Grant a lease for keys in the shard of --key; prints its id.

    \b
    Examples:
      onelog kv lease grant 30s --key 'online{ann}'
    """
    lease = session.client.kv.lease(ttl, key=to_bytes(key))
    session.output.result({"lease_id": lease.lease_id, "ttl_s": ttl}, str(lease.lease_id))


@command(lease_app)
def keep(session: Session, lease_id: LeaseId, *, key: OfKey) -> None:
    """Renew a lease for its full lifetime.

    \b
    Examples:
      ID=$(onelog kv lease grant 30s --key 'online{ann}')
      onelog kv lease keep $ID --key 'online{ann}'
    """
    lease = session.client.kv.find_lease(lease_id, key=to_bytes(key))
    lease.keep()
    session.output.result({"lease_id": lease_id}, f"lease {lease_id} renewed")


@command(lease_app)
def show(session: Session, lease_id: LeaseId, *, key: OfKey) -> None:
    """Show a lease and its keys.

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
    """End a lease and delete its keys.

    \b
    Examples:
      ID=$(onelog kv lease grant 30s --key 'online{ann}')
      onelog kv lease revoke $ID --key 'online{ann}'
    """
    count = session.client.kv.find_lease(lease_id, key=to_bytes(key)).revoke()
    session.output.result({"deleted": count}, f"{counted(count, 'key')} deleted")


def register(app: typer.Typer) -> None:
    """Add the commands that are not in a group of their own."""
    command(app)(lock)


def lock(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The key that is the lock.")],
    arguments: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The command to run.")
    ],
    *,
    ttl: Annotated[
        float,
        typer.Option(
            "--ttl", metavar="TIME", parser=duration_s,
            help="How long the lock outlives a crash of this machine.",
        ),
    ] = "10s",  # type: ignore[assignment] # typer parses it
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", metavar="TIME", parser=duration_s,
            help="Give up after this long; by default never.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Run a command while holding a lock that all machines share.

    The variable ONELOG_LOCK_TOKEN has the fencing token. If the lock is lost while the command
    runs, it is terminated. The exit code is the command's; 4 if the lock was not free or was lost.

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
                # The terminal interrupts the command as well, which decides when to end.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Ended by a signal: the exit code that shells use.
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


# JSON documents

json_app = group(
    "JSON documents in keys, read and changed in parts.",
    'onelog kv json set theme . \'{"name": "dark", "sizes": []}\'',
    "onelog kv json set theme sizes[-1] 12",
    "onelog kv json get theme sizes[0]",
)

KeyText = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
PathText = Annotated[
    str, typer.Argument(metavar="PATH", help='Like tags[0].name; . is all; or ["a.b", 0].')
]


@command(json_app, "get", reads=True)
def json_get(
    session: Session,
    key: KeyText,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help='Like tags[0].name; or ["a.b", 0].')
    ] = ".",
) -> None:
    """Print a document, or a part of it.

    \b
    Examples:
      onelog kv json get profile
      onelog kv json get profile tags[0]
    """
    found = session.client.kv.json(to_bytes(key)).get(parse_path(path), read=session.read)
    if found is None and session.client.kv.get(to_bytes(key), read=session.read) is None:
        raise CommandFailed("KEY_NOT_FOUND", f"there is no key {key}", EXIT_NOT_FOUND)
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))


@command(json_app, "set")
def set_(
    session: Session,
    key: KeyText,
    path: PathText,
    value: Annotated[
        str | None, typer.Argument(metavar="JSON", help="The new part; - reads stdin.")
    ] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read it from a file.")
    ] = None,
    is_text: Annotated[bool, typer.Option("--text", help="The value is text, not JSON.")] = False,
    no_parents: Annotated[
        bool, typer.Option("--no-parents", help="Fail if the parents of the part do not exist.")
    ] = False,
) -> None:
    """Set a part of a document; creates the key if needed. Element -1 appends to a list.

    \b
    Examples:
      onelog kv json set profile . '{"name": "Ann", "tags": []}'
      onelog kv json set profile tags[-1] '"new"'
      onelog kv json set profile address.city --text Oslo
    """
    data = read_value(value, file)
    part = data.decode(errors="replace") if is_text else parse_json(data, "the value")
    version = session.client.kv.json(to_bytes(key)).set(
        parse_path(path), part, create_parents=not no_parents
    )
    session.output.result({"version": version}, f"version {version}")


@command(json_app, "delete")
def json_delete(session: Session, key: KeyText, path: PathText) -> None:
    """Delete a part of a document.

    \b
    Examples:
      onelog kv json delete profile tags[0]
    """
    version = session.client.kv.json(to_bytes(key)).delete(parse_path(path))
    session.output.result({"version": version}, f"version {version}")


# Commands

RESERVED = (b"_ts:", b"cg:")  # how keys begin that only the database writes
U32_MAX = (1 << 32) - 1
IMPORT_CHUNK = 1_000  # keys that are read from the input before they are sent

app = group(
    "Keys: put, get, list, watch, lock, transactions, leases.",
    "onelog kv put greeting hello",
    "onelog kv get greeting",
    "onelog kv put session:1 abc --ttl 30m",
    "onelog kv list session:",
    "onelog kv increment visits --by 5",
    "onelog kv watch user: --from start --limit 1",
    "onelog kv delete greeting",
)
app.add_typer(json_app, name="json")
app.add_typer(lease_app, name="lease")
register(app)

ValueText = Annotated[
    str | None, typer.Argument(metavar="VALUE", help="The value; - reads it from stdin.")
]
ValueFile = Annotated[
    Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the value from a file.")
]
Escaped = Annotated[
    bool, typer.Option("--escaped", "-x", help=r"Arguments have escapes: \x00, \n, \\.")
]
Ttl = Annotated[
    float | None,
    typer.Option("--ttl", metavar="TIME", parser=duration_s, help="Expire after this long."),
]
Expected = Annotated[
    int | None,
    typer.Option(
        "--expect", min=0, metavar="VERSION", help="Only if the version is this; 0: no key yet."
    ),
]
Prefix = Annotated[str | None, typer.Argument(metavar="PREFIX", help="Only keys with this prefix.")]
First = Annotated[str | None, typer.Option("--from", metavar="KEY", help="From this key on.")]
Last = Annotated[str | None, typer.Option("--to", metavar="KEY", help="To before this key.")]


def _range(prefix: str | None, first: str | None, last: str | None, escaped: bool) -> Any:  # noqa: FBT001
    if prefix is not None and (first is not None or last is not None):
        raise CommandFailed("USAGE", "give a prefix, or --from and --to")
    bounds = {"prefix": prefix, "start": first, "end": last}
    return {
        name: None if text is None else to_bytes(text, escaped=escaped)
        for name, text in bounds.items()
    }


@command(app)
def put(
    session: Session,
    key: KeyText,
    value: ValueText = None,
    *,
    file: ValueFile = None,
    ttl: Ttl = None,
    lease: Annotated[
        int, typer.Option("--lease", min=0, metavar="ID", help="Delete it when this lease ends.")
    ] = 0,
    expect: Expected = None,
    escaped: Escaped = False,
) -> None:
    """Write a key; prints its version.

    \b
    Examples:
      onelog kv put greeting hello
      onelog kv put session:1 abc --ttl 30m
      onelog kv put config --file settings.json
      date | onelog kv put today -
      onelog kv put created-once yes --expect 0
      onelog kv put -x 'bin\\x00key' '\\xff\\x00'
    """
    data = read_value(value, file, escaped=escaped)
    version = session.client.kv.put(
        to_bytes(key, escaped=escaped), data, ttl_s=ttl, lease=lease, expected_version=expect
    )
    session.output.result({"version": version}, f"version {version}")


ITEM_COLUMNS = (
    ("key", lambda item: item.key),
    ("value", lambda item: item.value),
    ("version", lambda item: item.version),
    ("expires", lambda item: shown_time(item.expires_ns) if item.expires_ns else None),
    ("lease", lambda item: str(item.lease_id) if item.lease_id else None),
)


@command(app, reads=True)
def get(
    session: Session,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="The keys.")],
    *,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Print the bytes of the value and nothing else, no newline."),
    ] = False,
    details: Annotated[
        bool, typer.Option("--details", help="Show version, expiry and lease as well.")
    ] = False,
    escaped: Escaped = False,
) -> None:
    """Print the value of a key, or a table of several; exits with 3 if one does not exist.

    \b
    Examples:
      onelog kv get greeting
      onelog kv get config --raw > settings-copy.json
      onelog kv get greeting today --json
      onelog kv get greeting --details
      onelog kv get greeting --stale
    """
    session.output.check_raw(raw, details)
    if raw and len(keys) > 1:
        raise CommandFailed("USAGE", "--raw is for one key")
    names = [to_bytes(key, escaped=escaped) for key in keys]
    found = session.client.kv.get_many(names, read=session.read)
    there = [item for item in found if item is not None]
    output = session.output
    if len(names) == 1 and there and not details and not output.as_json:
        (output.raw if raw else output.value)(there[0].value)
    elif len(names) == 1 and there:
        item = there[0]
        output.listing(item, [(title, value(item)) for title, value in ITEM_COLUMNS])
    else:
        output.table(there, ITEM_COLUMNS)
    missing = [name for name, item in zip(names, found, strict=True) if item is None]
    if missing:
        shown = ", ".join(map(to_text, missing[:3])) + (", …" if len(missing) > 3 else "")
        raise CommandFailed("KEY_NOT_FOUND", f"there is no key {shown}", EXIT_NOT_FOUND)


@command(app)
def delete(
    session: Session,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="The keys.")],
    *,
    expect: Expected = None,
    escaped: Escaped = False,
) -> None:
    """Delete keys; prints how many there were, and exits with 3 if there was none.

    \b
    Examples:
      onelog kv delete greeting
      onelog kv delete user:5 user:6 --json
    """
    if expect is not None and len(keys) > 1:
        raise CommandFailed("USAGE", "--expect is for one key")
    kv = session.client.kv
    names = [to_bytes(key, escaped=escaped) for key in keys]
    deleted = sum(kv.delete(name, expected_version=expect) for name in names)
    session.output.result({"deleted": deleted}, f"{counted(deleted, 'key')} deleted")
    if not deleted:
        raise typer.Exit(EXIT_NOT_FOUND)


@command(app, "delete-range")
def delete_range(
    session: Session,
    prefix: Prefix = None,
    *,
    first: First = None,
    last: Last = None,
    everything: Annotated[bool, typer.Option("--all", help="All keys of the namespace.")] = False,
    routing_key: RoutingKey = "",
    escaped: Escaped = False,
) -> None:
    """Delete all keys of a range, some thousands at a time.

    \b
    Examples:
      onelog kv delete-range session:
      onelog kv delete-range --from a --to b
    """
    if (prefix is None and first is None and last is None) != everything:
        raise CommandFailed("USAGE", "give a prefix, --from and --to, or --all")
    with progress("deleting"):
        count = session.client.kv.delete_range(
            **_range(prefix, first, last, escaped),
            routing_key=to_bytes(routing_key, escaped=escaped),
        )
    session.output.result({"deleted": count}, f"{counted(count, 'key')} deleted")


@command(app, "list", reads=True)
def list_(
    session: Session,
    prefix: Prefix = None,
    *,
    first: First = None,
    last: Last = None,
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="At most N.")] = 0,
    reverse: Annotated[bool, typer.Option("--reverse", help="In descending order.")] = False,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Without values.")] = False,
    reserved: Annotated[
        bool, typer.Option("--reserved", help="Also the database's own keys: _ts:…, cg:….")
    ] = False,
    routing_key: RoutingKey = "",
    escaped: Escaped = False,
) -> None:
    """List keys in order. With --json one line each, which `kv import` accepts.

    Without a prefix or bounds, keys of the database itself are left out: settings of measurements
    and groups.

    \b
    Examples:
      onelog kv list
      onelog kv list user: --limit 10
      onelog kv list --from user:5 --to user:7 --reverse
      onelog kv list user: --keys-only --json
    """
    hides = not reserved and prefix is None and first is None and last is None
    hides = hides and limit <= U32_MAX  # the client refuses more
    items: Iterator[Item] = session.client.kv.scan(
        **_range(prefix, first, last, escaped),
        limit=0 if hides else limit,
        reverse=reverse,
        keys_only=keys_only,
        routing_key=to_bytes(routing_key, escaped=escaped),
        read=session.read,
    )
    if hides:
        items = (item for item in items if not item.key.startswith(RESERVED))
        items = islice(items, limit) if limit else items
    if keys_only:
        without = ({"key": item.key, "version": item.version} for item in items)
        columns = (("key", lambda row: row["key"]), ("version", lambda row: row["version"]))
        session.output.table(without, columns, nothing="no key is in this range")
        return
    session.output.table(items, ITEM_COLUMNS, nothing="no key is in this range")


@command(app, "import")
def import_(
    session: Session,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="JSON lines; - or nothing: stdin.")
    ] = None,
    *,
    ttl: Ttl = None,
) -> None:
    """Write many keys from JSON lines with key and value, as `kv list --json` prints them.

    Keys and values are text, or base64 under the names key_base64 and value_base64; other fields
    are ignored. Keys are written up to 1,000 at a time, all of those or none.

    \b
    Examples:
      onelog kv list user: --json | onelog kv import
      onelog kv import backup.jsonl --ttl 1h
    """
    from onelog.cli.documents import bytes_field

    def pairs() -> Iterator[tuple[bytes, bytes]]:
        for number, line in enumerate(read_lines(file), 1):
            if line.strip():
                where = f"line {number}"
                entry = parse_json(line, where)
                if not isinstance(entry, dict):
                    raise CommandFailed("JSON_INVALID", f"{where} is no object")
                yield bytes_field(entry, "key", where), bytes_field(entry, "value", where)

    count, source, kv = 0, pairs(), session.client.kv
    with progress("importing") as advance:
        while chunk := list(islice(source, IMPORT_CHUNK)):
            kv.put_many(chunk, ttl_s=ttl)
            count += len(chunk)
            advance(len(chunk))
    session.output.result({"imported": count}, f"{counted(count, 'key')} imported")


@command(app, reads=True)
def history(session: Session, key: KeyText, *, escaped: Escaped = False) -> None:
    """Show the versions of a key that are kept, newest first.

    \b
    Examples:
      onelog kv history greeting
      onelog kv history greeting --json
    """
    versions = session.client.kv.history(to_bytes(key, escaped=escaped), read=session.read)
    columns = (
        ("version", lambda past: past.version),
        ("what", lambda past: "put" if past.value is not None else
            "expired" if past.expired else "deleted"),
        ("value", lambda past: past.value),
    )  # fmt: skip
    if not session.output.table(versions, columns):
        raise CommandFailed("KEY_NOT_FOUND", f"nothing is kept of {key}", EXIT_NOT_FOUND)


@command(app)
def increment(
    session: Session,
    key: KeyText,
    *,
    by: Annotated[
        int | None, typer.Option("--by", metavar="N", help="Add N; by default 1.")
    ] = None,
    lower_to: Annotated[
        int | None, typer.Option("--lower-to", metavar="N", help="Lower it to N if it is above.")
    ] = None,
    raise_to: Annotated[
        int | None, typer.Option("--raise-to", metavar="N", help="Raise it to N if it is below.")
    ] = None,
    escaped: Escaped = False,
) -> None:
    """Change a number and print it; a key that does not exist counts as 0.

    \b
    Examples:
      onelog kv increment visits
      onelog kv increment visits --by -2
      onelog kv increment highest --raise-to 17
    """
    if sum(each is not None for each in (by, lower_to, raise_to)) > 1:
        raise CommandFailed("USAGE", "give one of --by, --lower-to and --raise-to")
    kv, name = session.client.kv, to_bytes(key, escaped=escaped)
    if lower_to is not None:
        number = kv.lower_to(name, lower_to)
    elif raise_to is not None:
        number = kv.raise_to(name, raise_to)
    else:
        number = kv.increment(name, 1 if by is None else by)
    session.output.result({"number": number}, str(number))


@command(app)
def append(
    session: Session,
    key: KeyText,
    value: ValueText = None,
    *,
    file: ValueFile = None,
    escaped: Escaped = False,
) -> None:
    """Append bytes to a value; prints its new size.

    \b
    Examples:
      onelog kv append notes 'one more'
      onelog kv append -x notes '\\n'
    """
    data = read_value(value, file, escaped=escaped)
    size = session.client.kv.append(to_bytes(key, escaped=escaped), data)
    session.output.result({"size": size}, counted(size, "byte"))


@command(app)
def touch(
    session: Session,
    key: KeyText,
    ttl: Annotated[
        float,
        typer.Argument(metavar="TIME|none", parser=lifetime_s, help="Expire this long from now."),
    ],
    *,
    expect: Expected = None,
    escaped: Escaped = False,
) -> None:
    """Change the lifetime of a key; none: it never expires.

    \b
    Examples:
      onelog kv touch greeting 1h
      onelog kv touch greeting none
    """
    version = session.client.kv.touch(
        to_bytes(key, escaped=escaped), ttl or None, expected_version=expect
    )
    session.output.result({"version": version}, f"version {version}")


@command(app)
def txn(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON; - is stdin.")],
) -> None:
    """Check conditions on keys of one shard; carry out one list of operations or another.

    The document has "when", "then" and "otherwise". Conditions: {"key", and "exists", or "version",
    or "value", and "is" for another comparison than "=="}. Operations have an "op": get, put,
    delete, touch, increment, append, set_json, delete_json. Exits with 4 if "otherwise" was done.

    \b
    Examples:
      echo '{"when": [{"key": "balance{ann}", "version": 0, "is": ">="}],
             "then": [{"op": "put", "key": "balance{ann}", "value": "9"},
                      {"op": "increment", "key": "spent{ann}", "by": 1}],
             "otherwise": [{"op": "get", "key": "balance{ann}"}]}' | onelog kv txn -
    """
    from onelog.cli import documents

    document = documents.read(read_file(file), ("when", "then", "otherwise"))
    new = session.client.kv.txn()
    documents.add_conditions(new, document["when"])
    for name, branch in (("then", new.then), ("otherwise", new.otherwise)):
        documents.add_operations(branch, document[name], name, documents.TXN_OPERATIONS)
    result = new.commit()
    what = "then" if result.succeeded else "otherwise"
    shown = "".join(f"\n  {entry['op']}: {json.dumps(each)}"
                    for entry, each in zip(document[what], documents.shown(result.results),
                                           strict=True))  # fmt: skip
    if session.output.as_json:
        session.output.result(result, "")
    else:
        for line in f"{what} was done at version {result.version}{shown}".split("\n"):
            session.output.result(None, line)
    if not result.succeeded:
        raise typer.Exit(EXIT_REFUSED)


@command(app)
def watch(
    session: Session,
    prefix: Prefix = None,
    *,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only this key.")] = None,
    cursor: Annotated[
        str | None,
        typer.Option("--from", metavar="CURSOR", help="A cursor to continue from, or start."),
    ] = None,
    previous: Annotated[
        bool, typer.Option("--previous", help="Also print the previous values.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option("--limit", min=0, metavar="N", help="Stop after N events; 0: never."),
    ] = 0,
    escaped: Escaped = False,
) -> None:
    """Print changes of keys as they happen; Ctrl-C ends it. `onelog watch` sees all models.

    \b
    Examples:
      onelog kv watch user: --from start --limit 2
      onelog kv watch --key greeting --previous
    """
    from onelog import Watched
    from onelog.cli.watch import print_events

    if prefix is not None and key is not None:
        raise CommandFailed("USAGE", "give a prefix, or --key")
    name, beginning = (
        None if text is None else to_bytes(text, escaped=escaped) for text in (key, prefix)
    )
    watched = [Watched("kv", name=name, prefix=beginning)]
    print_events(session, watched, cursor, with_previous=previous, limit=limit)
