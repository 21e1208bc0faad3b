"""One line about a system entry, for people who look into a log."""

from collections import Counter
from typing import assert_never

from onelog.projections.codec import Prefix, read_prefix
from onelog.projections.system.commands import (
    TYPE_RAFT_CONFIG,
    TYPES_OPAQUE,
    Batch,
    Command,
    Expire,
    HoldBreak,
    HoldRelease,
    HoldSet,
    NamespaceConfigure,
    NamespaceCreate,
    NamespaceDelete,
    SessionClose,
    SessionKeepalive,
    SessionOpen,
    decode_command,
)
from onelog.ual.entry import (
    OWNER_KV,
    OWNER_QUEUE,
    OWNER_STREAM,
    OWNER_SYSTEM,
    OWNER_TIMESERIES,
    Entry,
)

OWNER_NAMES = {
    OWNER_SYSTEM: "sessions",
    OWNER_KV: "keys or leases",
    OWNER_QUEUE: "of queues",
    OWNER_TIMESERIES: "of time series",
    OWNER_STREAM: "of streams",
}


def describe_system_entry(entry: Entry) -> str:
    """Return what an entry of owner 0x00 says; raise ``BadPayload`` or ``DataError``."""
    payload = entry.plain_payload()
    if entry.entry_type in TYPES_OPAQUE:
        is_config = entry.entry_type == TYPE_RAFT_CONFIG
        return f"members of the Raft group, {len(payload)} bytes" if is_config else "no operation"
    prefix, reader = read_prefix(payload)
    return _describe(prefix, decode_command(entry.entry_type, reader))


def _describe(prefix: Prefix, command: Command) -> str:
    name = prefix.namespace
    match command:
        case Expire(ids):
            counts = Counter(owner for owner, _ in ids)
            shown = (f"{counts[o]} {OWNER_NAMES.get(o, f'of owner {o}')}" for o in sorted(counts))
            return f"expire {', '.join(shown) or 'nothing'}"
        case SessionOpen(ttl_ns):
            return f"open a session of {ttl_ns / 1_000_000_000:g} s"
        case SessionKeepalive(session):
            return f"keep session {session} alive"
        case SessionClose(session):
            return f"close session {session}"
        case NamespaceCreate(limits):
            return f"create namespace {name}: {limits}"
        case NamespaceConfigure(limits):
            return f"configure namespace {name}: {limits}"
        case NamespaceDelete():
            return f"delete namespace {name}"
        case Batch(entry_count, conditions):
            when = f" if {len(conditions)} conditions hold" if conditions else ""
            return f"batch of the next {entry_count} entries{when}"
        case HoldSet():
            return _describe_hold(command)
        case HoldRelease(hold):
            return f"release hold {hold}"
        case HoldBreak(hold, cause, set_index):
            return f"break hold {hold}, set at {set_index}: {cause.name.lower()}"
        case _:
            assert_never(command)


def _describe_hold(command: HoldSet) -> str:
    limits = []
    if command.ttl_ns:
        limits.append(f"{command.ttl_ns / 1_000_000_000:g} s")
    if command.bytes_max:
        limits.append(f"{command.bytes_max} bytes")
    verb, place = ("move", "where it is") if command.is_move else ("set", "here")
    if command.index:
        place = f"index {command.index}"
    within = f", at most {' and '.join(limits)}" if limits else ""
    return f"{verb} hold {command.name} to {place}{within}"
