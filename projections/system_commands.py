"""System commands: what concerns no single data model, as values and as bytes.

The tables are in docs/payloads.md. ``noop`` and ``raft_config`` have no prefix and no command
here: their payloads are opaque to the projections.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from projections.conditions import Condition, encode_conditions, read_conditions
from projections.errors import BadPayload
from projections.limits import BATCH_ENTRIES_MAX, EXPIRE_ID_SIZE_MAX, EXPIRE_IDS_MAX
from projections.namespaces import LIMITS, Limits
from projections.payload import U8, U16, U64, Reader, SessionRef, encode_prefix, encode_sized
from projections.reasons import Reason
from ual.entry import FLAG_CONDITIONAL, OWNER_SYSTEM, TYPE_NOOP, Draft

TYPE_RAFT_CONFIG = OWNER_SYSTEM << 8 | 0x02
TYPE_EXPIRE = OWNER_SYSTEM << 8 | 0x03
TYPE_SESSION_OPEN = OWNER_SYSTEM << 8 | 0x04
TYPE_SESSION_KEEPALIVE = OWNER_SYSTEM << 8 | 0x05
TYPE_SESSION_CLOSE = OWNER_SYSTEM << 8 | 0x06
TYPE_NAMESPACE_CREATE = OWNER_SYSTEM << 8 | 0x07
TYPE_NAMESPACE_CONFIGURE = OWNER_SYSTEM << 8 | 0x08
TYPE_NAMESPACE_DELETE = OWNER_SYSTEM << 8 | 0x09
TYPE_BATCH = OWNER_SYSTEM << 8 | 0x0A

TYPES_OPAQUE = (TYPE_NOOP, TYPE_RAFT_CONFIG)


@dataclass(frozen=True, slots=True)
class Expire:
    """Things whose time has come: (owner, id) each."""

    ids: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class SessionOpen:
    """Open a session; its id is the index of the entry."""

    ttl_ns: int


@dataclass(frozen=True, slots=True)
class SessionKeepalive:
    """Let a session live for its lifetime from now on."""

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


Command = (
    Expire
    | SessionOpen
    | SessionKeepalive
    | SessionClose
    | NamespaceCreate
    | NamespaceConfigure
    | NamespaceDelete
    | Batch
)


def encode_command(
    command: Command, namespace: str = "", session: SessionRef | None = None
) -> Draft:
    """Return the draft of the entry that carries ``command``."""
    flags = FLAG_CONDITIONAL if isinstance(command, Batch) else 0
    payload = encode_prefix(namespace, session) + _encode_body(command)
    return Draft(_TYPES[type(command)], payload, flags)


def encode_batch(
    drafts: Sequence[Draft],
    conditions: Sequence[Condition] = (),
    namespace: str = "",
    session: SessionRef | None = None,
) -> list[Draft]:
    """Return the drafts of a whole batch, in the order in which one group must hold them.

    Those that are marked as part of a batch already are taken as they are.
    """
    head = encode_command(Batch(len(drafts), tuple(conditions)), namespace, session)
    return [head, *(d if d.flags & FLAG_CONDITIONAL else _marked(d) for d in drafts)]


def _marked(draft: Draft) -> Draft:
    return Draft(draft.entry_type, draft.payload, draft.flags | FLAG_CONDITIONAL)


def decode_command(entry_type: int, reader: Reader) -> Command:
    """Read the body of a system entry, to its end."""
    decoder = _DECODERS.get(entry_type)
    if decoder is None:
        raise BadPayload(Reason.OPERATION_UNKNOWN, entry_type & 0xFF)
    command = decoder(reader)
    reader.finish()
    return command


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
        raise BadPayload(Reason.NAMESPACE_LIMIT_INVALID, invalid)
    return limits


def _read_batch(reader: Reader) -> Batch:
    entry_count = reader.count(BATCH_ENTRIES_MAX)
    return Batch(entry_count, read_conditions(reader))


_TYPES: dict[type[Command], int] = {
    Expire: TYPE_EXPIRE,
    SessionOpen: TYPE_SESSION_OPEN,
    SessionKeepalive: TYPE_SESSION_KEEPALIVE,
    SessionClose: TYPE_SESSION_CLOSE,
    NamespaceCreate: TYPE_NAMESPACE_CREATE,
    NamespaceConfigure: TYPE_NAMESPACE_CONFIGURE,
    NamespaceDelete: TYPE_NAMESPACE_DELETE,
    Batch: TYPE_BATCH,
}

_DECODERS: dict[int, Callable[[Reader], Command]] = {
    TYPE_EXPIRE: _read_expire,
    TYPE_SESSION_OPEN: lambda reader: SessionOpen(reader.number(U64)),
    TYPE_SESSION_KEEPALIVE: lambda reader: SessionKeepalive(reader.number(U64)),
    TYPE_SESSION_CLOSE: lambda reader: SessionClose(reader.number(U64)),
    TYPE_NAMESPACE_CREATE: lambda reader: NamespaceCreate(_read_limits(reader)),
    TYPE_NAMESPACE_CONFIGURE: lambda reader: NamespaceConfigure(_read_limits(reader)),
    TYPE_NAMESPACE_DELETE: lambda _: NamespaceDelete(),
    TYPE_BATCH: _read_batch,
}
