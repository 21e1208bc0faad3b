"""System commands: operations that belong to no single data model, as values, bytes and text.

``encode_command`` makes the draft of an entry, ``decode_command`` reads its body, and
``describe_system_entry`` says in one line what an entry asks for. The tables are in
docs/payloads.md. ``noop`` and ``raft_config`` have no prefix and no command here: their payloads
are opaque to the projections.

Decoding checks everything that does not depend on the state, and raises ``BadPayload`` otherwise.
"""

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from onelog.projections.codec import (
    U8,
    U16,
    U64,
    Prefix,
    Reader,
    SessionRef,
    encode_sized,
    read_prefix,
)
from onelog.projections.conditions import Condition, encode_conditions, read_conditions
from onelog.projections.errors import BadPayload
from onelog.projections.limits import (
    BATCH_ENTRIES_MAX,
    EXPIRE_ID_SIZE_MAX,
    EXPIRE_IDS_MAX,
    HOLD_NAME_SIZE_MAX,
)
from onelog.projections.namespaces import LIMITS, Limits
from onelog.projections.projection import Commands, Operation
from onelog.projections.reasons import Reason
from onelog.projections.system.holds import Cause
from onelog.ual.entry import (
    FLAG_CONDITIONAL,
    OWNER_KV,
    OWNER_QUEUE,
    OWNER_STREAM,
    OWNER_SYSTEM,
    OWNER_TIMESERIES,
    TYPE_NOOP,
    Draft,
    Entry,
)

TYPE_RAFT_CONFIG = OWNER_SYSTEM << 8 | 0x02
TYPE_EXPIRE = OWNER_SYSTEM << 8 | 0x03
TYPE_NAMESPACE_DELETE = OWNER_SYSTEM << 8 | 0x09
TYPE_BATCH = OWNER_SYSTEM << 8 | 0x0A

TYPES_OPAQUE = (TYPE_NOOP, TYPE_RAFT_CONFIG)

_HOLD_NUMBERS = struct.Struct("<QQQ")  # index, ttl_ns, bytes_max
_HOLD_CREATE, _HOLD_MOVE = 1, 2


@dataclass(frozen=True, slots=True)
class Expire:
    """Items that are due, as pairs of owner and id."""

    ids: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class SessionOpen:
    """Open a session; its id is the index of the entry."""

    ttl_ns: int


@dataclass(frozen=True, slots=True)
class SessionKeepalive:
    """Renew a session: its lifetime starts again now."""

    session: int


@dataclass(frozen=True, slots=True)
class SessionClose:
    """End a session; its results are forgotten."""

    session: int


@dataclass(frozen=True, slots=True)
class NamespaceCreate:
    """Create the namespace that the prefix names."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class NamespaceConfigure:
    """Replace the limits of the namespace that the prefix names."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class NamespaceDelete:
    """Delete the namespace that the prefix names, with all that is in it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The first entry of a batch: how many follow, and what must hold."""

    entry_count: int
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class HoldSet:
    """Keep the log from an index on for a named reader: create its hold, or move it forward.

    Created with index 0, it begins at its own entry. In a move, a 0 leaves the field unchanged.
    """

    name: str
    is_move: bool
    index: int
    ttl_ns: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class HoldRelease:
    """End a hold, broken or not."""

    name: str


@dataclass(frozen=True, slots=True)
class HoldBreak:
    """Break a hold that exceeded a limit, unless it was set again since ``set_index``."""

    name: str
    cause: Cause
    set_index: int


Command = (
    Expire
    | SessionOpen
    | SessionKeepalive
    | SessionClose
    | NamespaceCreate
    | NamespaceConfigure
    | NamespaceDelete
    | Batch
    | HoldSet
    | HoldRelease
    | HoldBreak
)


def encode_command(
    command: Command, namespace: str = "", session: SessionRef | None = None
) -> Draft:
    """Return the draft of the entry that carries ``command``."""
    draft = _COMMANDS.encode(command, namespace, session)
    return _marked(draft) if isinstance(command, Batch) else draft


def encode_batch(
    drafts: Sequence[Draft],
    conditions: Sequence[Condition] = (),
    namespace: str = "",
    session: SessionRef | None = None,
) -> list[Draft]:
    """Return the drafts of a whole batch, in the order in which one group must hold them.

    Drafts that are already marked as part of a batch stay as they are.
    """
    head = encode_command(Batch(len(drafts), tuple(conditions)), namespace, session)
    return [head, *(d if d.flags & FLAG_CONDITIONAL else _marked(d) for d in drafts)]


def _marked(draft: Draft) -> Draft:
    return Draft(draft.entry_type, draft.payload, draft.flags | FLAG_CONDITIONAL)


def _encode_body(command: Command) -> bytes:
    match command:
        case Expire(ids):
            parts = [U16.pack(len(ids))]
            for owner, item in ids:
                parts += (U8.pack(owner), encode_sized(U16, item))
            return b"".join(parts)
        case SessionOpen(number) | SessionKeepalive(number) | SessionClose(number):
            return U64.pack(number)
        case NamespaceCreate(limits) | NamespaceConfigure(limits):
            return limits.encode()
        case NamespaceDelete():
            return b""
        case Batch(entry_count, conditions):
            return U16.pack(entry_count) + encode_conditions(conditions)
        case HoldSet(name, is_move, index, ttl_ns, bytes_max):
            mode = U8.pack(_HOLD_MOVE if is_move else _HOLD_CREATE)
            return mode + _encode_name(name) + _HOLD_NUMBERS.pack(index, ttl_ns, bytes_max)
        case HoldRelease(name):
            return _encode_name(name)
        case HoldBreak(name, cause, set_index):
            return _encode_name(name) + U8.pack(cause) + U64.pack(set_index)


def _encode_name(name: str) -> bytes:
    return encode_sized(U8, name.encode())


def _read_expire(reader: Reader) -> Expire:
    ids = []
    for _ in range(reader.count(EXPIRE_IDS_MAX)):
        owner, item = reader.number(U8), reader.sized(U16)
        if len(item) > EXPIRE_ID_SIZE_MAX:
            raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, len(item))
        ids.append((owner, item))
    return Expire(tuple(ids))


def _read_limits(reader: Reader) -> Limits:
    limits = Limits(*reader.fields(LIMITS))
    invalid = limits.invalid()
    if invalid is not None:
        raise BadPayload(Reason.NAMESPACE_LIMIT_INVALID, invalid.value)
    return limits


def _read_batch(reader: Reader) -> Batch:
    entry_count = reader.count(BATCH_ENTRIES_MAX)
    return Batch(entry_count, read_conditions(reader))


def _read_name(reader: Reader) -> str:
    name = reader.text(U8)
    size = len(name.encode())
    if not 1 <= size <= HOLD_NAME_SIZE_MAX:
        raise BadPayload(Reason.HOLD_NAME_INVALID, size)
    return name


def _read_hold_set(reader: Reader) -> HoldSet:
    mode = reader.number(U8)
    if mode not in (_HOLD_CREATE, _HOLD_MOVE):
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, mode)
    return HoldSet(_read_name(reader), mode == _HOLD_MOVE, *reader.fields(_HOLD_NUMBERS))


def _read_hold_break(reader: Reader) -> HoldBreak:
    name, cause = _read_name(reader), reader.number(U8)
    if cause not in tuple(Cause):
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, cause)
    return HoldBreak(name, Cause(cause), reader.number(U64))


SYSTEM_OPERATIONS = (
    Operation(0x03, Expire, _read_expire),
    Operation(0x04, SessionOpen, lambda reader: SessionOpen(reader.number(U64))),
    Operation(0x05, SessionKeepalive, lambda reader: SessionKeepalive(reader.number(U64))),
    Operation(0x06, SessionClose, lambda reader: SessionClose(reader.number(U64))),
    Operation(0x07, NamespaceCreate, lambda reader: NamespaceCreate(_read_limits(reader))),
    Operation(0x08, NamespaceConfigure, lambda reader: NamespaceConfigure(_read_limits(reader))),
    Operation(0x09, NamespaceDelete, lambda _: NamespaceDelete()),
    Operation(0x0A, Batch, _read_batch),
    Operation(0x0B, HoldSet, _read_hold_set),
    Operation(0x0C, HoldRelease, lambda reader: HoldRelease(_read_name(reader))),
    Operation(0x0D, HoldBreak, _read_hold_break),
)
_COMMANDS = Commands[Command](OWNER_SYSTEM, SYSTEM_OPERATIONS, _encode_body)
decode_command = _COMMANDS.decode  # by type, which is the number: the owner is 0


# Describe

OWNER_NAMES = {
    OWNER_SYSTEM: "sessions",
    OWNER_KV: "keys or leases",
    OWNER_QUEUE: "of queues",
    OWNER_TIMESERIES: "of time series",
    OWNER_STREAM: "of streams",
}


def describe_system_entry(entry: Entry) -> str:
    """Describe an entry of owner 0x00; raise ``BadPayload`` or ``DataError``."""
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
