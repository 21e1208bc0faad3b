"""KV commands: what clients ask of keys, as values and as bytes.

``encode_command`` makes the draft of an entry, ``decode_command`` reads its body. The tables are
in docs/payloads.md; golden files pin the bytes. Decoding checks all that can be said without the
state (sizes, counts, options, lifetimes), so that executing a command starts from sound values.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from projections.conditions import (
    Condition,
    check_key,
    encode_conditions,
    read_conditions,
)
from projections.errors import BadPayload
from projections.kv_json import Path, encode_path, read_path
from projections.limits import (
    DELETE_RANGE_KEYS_MAX,
    KEY_SIZE_MAX,
    KEYS_RESERVED,
    PUT_MANY_KEYS_MAX,
    TRANSACTION_OPERATIONS_MAX,
    TTL_NS_MAX,
)
from projections.payload import (
    I64,
    U8,
    U16,
    U32,
    U64,
    Reader,
    SessionRef,
    encode_prefix,
    encode_sized,
)
from projections.reasons import Reason
from ual.entry import OWNER_KV, Draft

TYPE_PUT = OWNER_KV << 8 | 0x01
TYPE_PUT_MANY = OWNER_KV << 8 | 0x0F

_OPTIONS = struct.Struct("<BH")  # options, key size

OPTION_TTL = 0x01
OPTION_LEASE = 0x02
OPTION_EXPECTED = 0x04
OPTION_CREATE_PARENTS = 0x01


@dataclass(frozen=True, slots=True)
class Put:
    """Write a value; ``expected`` is the version to overwrite, 0 for none."""

    key: bytes
    value: bytes
    ttl_ns: int | None = None
    lease: int | None = None
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key, if it has the expected version where one is given."""

    key: bytes
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Touch:
    """Change the lifetime of a key (0: it lives on) without a new version."""

    key: bytes
    ttl_ns: int
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Increment:
    """Add to a counter."""

    key: bytes
    delta: int


@dataclass(frozen=True, slots=True)
class Minimum:
    """Lower a number to the operand, if that is smaller."""

    key: bytes
    operand: int


@dataclass(frozen=True, slots=True)
class Maximum:
    """Raise a number to the operand, if that is larger."""

    key: bytes
    operand: int


@dataclass(frozen=True, slots=True)
class Append:
    """Add bytes at the end of a value."""

    key: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class JsonSet:
    """Set one field of a JSON document."""

    key: bytes
    path: Path
    text: bytes
    create_parents: bool = False


@dataclass(frozen=True, slots=True)
class JsonDelete:
    """Delete one field of a JSON document."""

    key: bytes
    path: Path


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """Grant a lease; its id is the index of the entry."""

    ttl_ns: int


@dataclass(frozen=True, slots=True)
class LeaseKeepalive:
    """Let a lease live for its lifetime from now on."""

    lease: int


@dataclass(frozen=True, slots=True)
class LeaseRevoke:
    """End a lease and delete its keys."""

    lease: int


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Delete up to ``limit`` keys from ``start`` to before ``end`` (None: to the last)."""

    start: bytes
    end: bytes | None
    limit: int


@dataclass(frozen=True, slots=True)
class Get:
    """Read a key inside of a transaction."""

    key: bytes


Operation = (
    Put
    | Delete
    | Touch
    | Increment
    | Minimum
    | Maximum
    | Append
    | JsonSet
    | JsonDelete
    | DeleteRange
    | Get
)


@dataclass(frozen=True, slots=True)
class Transaction:
    """If all conditions hold do ``then``, else do ``otherwise``; all of it or nothing."""

    conditions: tuple[Condition, ...]
    then: tuple[Operation, ...]
    otherwise: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class PutMany:
    """Write many keys at once, with one version; all of it or nothing.

    ``bodies`` are those of puts with a lifetime or no option at all. They are read one by one when
    they are executed: most of them go a way that needs no command (kv_plain.py).
    """

    bodies: tuple[bytes, ...]

    def puts(self) -> list[Put]:
        """Return what is to be put; raises ``BadPayload``."""
        return [read_one_of_many(body) for body in self.bodies]


Command = Operation | LeaseGrant | LeaseKeepalive | LeaseRevoke | Transaction | PutMany


def encode_command(command: Command, namespace: str, session: SessionRef | None = None) -> Draft:
    """Return the draft of the entry that carries ``command``."""
    operation = OPERATIONS[type(command)]
    assert operation != OPERATION_GET, "a read alone is not an entry"
    payload = encode_prefix(namespace, session) + encode_body(command)
    return Draft(OWNER_KV << 8 | operation, payload)


def decode_command(operation: int, reader: Reader) -> Command:
    """Read the body of an entry with the low byte ``operation``, to its end."""
    decoder = _DECODERS.get(operation)
    if decoder is None or operation == OPERATION_GET:
        raise BadPayload(Reason.OPERATION_UNKNOWN, operation)
    command = decoder(reader)
    reader.finish()
    return command


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the first key behind all keys that start with ``prefix``; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


def encode_body(command: Command) -> bytes:
    """Return the body of a command: what follows the prefix."""
    match command:
        case Put(key, value, ttl_ns, lease, expected):
            return _encode_options(key, ttl_ns, lease, expected) + key + value
        case Delete(key, expected):
            return _encode_options(key, None, None, expected) + key
        case Touch(key, ttl_ns, expected):
            head = _encode_options(key, None, None, expected)
            return head[:3] + U64.pack(ttl_ns) + head[3:] + key
        case Increment(key, number) | Minimum(key, number) | Maximum(key, number):
            return I64.pack(number) + key
        case Append(key, data):
            return encode_sized(U16, key) + data
        case JsonSet(key, path, text, create_parents):
            options = OPTION_CREATE_PARENTS if create_parents else 0
            return U8.pack(options) + encode_sized(U16, key) + encode_path(path) + text
        case JsonDelete(key, path):
            return encode_sized(U16, key) + encode_path(path)
        case LeaseGrant(number) | LeaseKeepalive(number) | LeaseRevoke(number):
            return U64.pack(number)
        case DeleteRange(start, end, limit):
            return U32.pack(limit) + encode_sized(U16, start) + (end or b"")
        case Get(key):
            return key
        case Transaction(conditions, then, otherwise):
            lists = (_encode_operations(operations) for operations in (then, otherwise))
            return encode_conditions(conditions) + b"".join(lists)
        case PutMany(bodies):
            sizes = struct.pack(f"<{len(bodies)}I", *map(len, bodies))
            return b"".join((U16.pack(len(bodies)), sizes, *bodies))


def _encode_options(
    key: bytes, ttl_ns: int | None, lease: int | None, expected: int | None
) -> bytes:
    options = 0
    fields = b""
    for option, field in (
        (OPTION_TTL, ttl_ns),
        (OPTION_LEASE, lease),
        (OPTION_EXPECTED, expected),
    ):
        if field is not None:
            options |= option
            fields += U64.pack(field)
    return U8.pack(options) + U16.pack(len(key)) + fields


def _encode_operations(operations: tuple[Operation, ...]) -> bytes:
    parts = [U16.pack(len(operations))]
    for operation in operations:
        parts.append(U8.pack(OPERATIONS[type(operation)]))
        parts.append(encode_sized(U32, encode_body(operation)))
    return b"".join(parts)


def _read_put(reader: Reader) -> Put:
    options, key_size = _read_options(reader, OPTION_TTL | OPTION_LEASE | OPTION_EXPECTED)
    ttl_ns = _read_ttl(reader) if options & OPTION_TTL else None
    lease = reader.number(U64) if options & OPTION_LEASE else None
    expected = reader.number(U64) if options & OPTION_EXPECTED else None
    key = _check_written(reader.take(key_size))
    return Put(key, reader.rest(), ttl_ns, lease, expected)


def put_bodies(
    keys: Sequence[bytes], values: Sequence[bytes], ttl_ns: int | None
) -> tuple[bytes, ...]:
    """Return the bodies of puts that have nothing but a lifetime in common."""
    join, pack = b"".join, _OPTIONS.pack
    if ttl_ns is not None:
        heads = (_encode_options(key, ttl_ns, None, None) for key in keys)
        return tuple(map(join, zip(heads, keys, values, strict=True)))
    sizes = list(map(len, keys))
    plain = {size: pack(0, size) for size in set(sizes)}  # most are alike
    return tuple(map(join, zip(map(plain.__getitem__, sizes), keys, values, strict=True)))


def read_one_of_many(body: bytes) -> Put:
    """Read one of the bodies of ``PutMany``: a put that depends on nothing."""
    put = _read_put(Reader(body))
    if put.lease is not None or put.expected is not None:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, body[0])
    return put


def _read_delete(reader: Reader) -> Delete:
    options, key_size = _read_options(reader, OPTION_EXPECTED)
    expected = reader.number(U64) if options & OPTION_EXPECTED else None
    return Delete(_check_written(reader.take(key_size)), expected)


def _read_touch(reader: Reader) -> Touch:
    options, key_size = _read_options(reader, OPTION_EXPECTED)
    ttl_ns = _read_ttl(reader, zero_allowed=True)
    expected = reader.number(U64) if options & OPTION_EXPECTED else None
    return Touch(_check_written(reader.take(key_size)), ttl_ns, expected)


def _read_number(
    command: type[Increment] | type[Minimum] | type[Maximum],
) -> Callable[[Reader], Increment | Minimum | Maximum]:
    def read(reader: Reader) -> Increment | Minimum | Maximum:
        number = reader.number(I64)
        return command(_check_written(reader.rest()), number)

    return read


def _read_append(reader: Reader) -> Append:
    return Append(_check_written(reader.sized(U16)), reader.rest())


def _read_json_set(reader: Reader) -> JsonSet:
    options = reader.number(U8)
    if options & ~OPTION_CREATE_PARENTS:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    key = _check_written(reader.sized(U16))
    path = read_path(reader)
    return JsonSet(key, path, reader.rest(), bool(options & OPTION_CREATE_PARENTS))


def _read_json_delete(reader: Reader) -> JsonDelete:
    return JsonDelete(_check_written(reader.sized(U16)), read_path(reader))


def _read_delete_range(reader: Reader) -> DeleteRange:
    limit = reader.number(U32)
    if not 1 <= limit <= DELETE_RANGE_KEYS_MAX:
        raise BadPayload(Reason.LIMIT_INVALID, limit)
    start, end = reader.sized(U16), reader.rest()
    if len(start) > KEY_SIZE_MAX or len(end) > KEY_SIZE_MAX:
        raise BadPayload(Reason.KEY_SIZE_INVALID, max(len(start), len(end)))
    if end and end <= start:
        raise BadPayload(Reason.RANGE_INVALID)
    return DeleteRange(start, end or None, limit)


def _read_transaction(reader: Reader) -> Transaction:
    conditions = read_conditions(reader)
    return Transaction(conditions, _read_operations(reader), _read_operations(reader))


def _read_put_many(reader: Reader) -> PutMany:
    count = put_count(reader)
    if not count:
        raise BadPayload(Reason.LIMIT_INVALID, 0)
    sizes = reader.fields(struct.Struct(f"<{count}I"))
    bodies = reader.part(sum(sizes)).rest()
    ends = accumulate(sizes, initial=0)
    return PutMany(tuple([bodies[start:end] for start, end in pairwise(ends)]))


def put_count(body: Reader) -> int:
    """Return how many puts the body of a ``PutMany`` holds."""
    return body.count(PUT_MANY_KEYS_MAX)


def _read_operations(reader: Reader) -> tuple[Operation, ...]:
    operations: list[Operation] = []
    ranged = 0  # keys that the list may delete by range: bounded for all of them together
    for _ in range(reader.count(TRANSACTION_OPERATIONS_MAX)):
        kind = reader.number(U8)
        if kind not in _NESTED:
            raise BadPayload(Reason.OPERATION_UNKNOWN, kind)
        body = reader.part(reader.number(U32))
        operation = _NESTED[kind](body)
        body.finish()
        if isinstance(operation, DeleteRange):
            ranged += operation.limit
            if ranged > DELETE_RANGE_KEYS_MAX:
                raise BadPayload(Reason.LIMIT_INVALID, ranged)
        operations.append(operation)
    return tuple(operations)


def _read_options(reader: Reader, known: int) -> tuple[int, int]:
    options, key_size = reader.fields(_OPTIONS)
    if options & ~known:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    return options, key_size


def _read_ttl(reader: Reader, *, zero_allowed: bool = False) -> int:
    ttl_ns = reader.number(U64)
    if ttl_ns > TTL_NS_MAX or (ttl_ns == 0 and not zero_allowed):
        raise BadPayload(Reason.TTL_INVALID, ttl_ns)
    return ttl_ns


def _check_written(key: bytes) -> bytes:
    """Check a key that is about to be written."""
    if key.startswith(KEYS_RESERVED):
        raise BadPayload(Reason.KEY_RESERVED)
    return check_key(key)


OPERATION_GET = 0x20

# The numbers are in logs: never change or reuse one.
OPERATIONS: dict[type[Command], int] = {
    Put: 0x01,
    Delete: 0x02,
    Touch: 0x03,
    Increment: 0x04,
    Minimum: 0x05,
    Maximum: 0x06,
    Append: 0x07,
    JsonSet: 0x08,
    JsonDelete: 0x09,
    LeaseGrant: 0x0A,
    LeaseKeepalive: 0x0B,
    LeaseRevoke: 0x0C,
    Transaction: 0x0D,
    DeleteRange: 0x0E,
    PutMany: 0x0F,
    Get: OPERATION_GET,
}

# What a transaction may hold, by the same numbers.
_NESTED: dict[int, Callable[[Reader], Operation]] = {
    0x01: _read_put,
    0x02: _read_delete,
    0x03: _read_touch,
    0x04: _read_number(Increment),
    0x05: _read_number(Minimum),
    0x06: _read_number(Maximum),
    0x07: _read_append,
    0x08: _read_json_set,
    0x09: _read_json_delete,
    0x0E: _read_delete_range,
    OPERATION_GET: lambda reader: Get(check_key(reader.rest())),
}

_DECODERS: dict[int, Callable[[Reader], Command]] = {
    **_NESTED,
    0x0A: lambda reader: LeaseGrant(_read_ttl(reader)),
    0x0B: lambda reader: LeaseKeepalive(reader.number(U64)),
    0x0C: lambda reader: LeaseRevoke(reader.number(U64)),
    0x0D: _read_transaction,
    0x0F: _read_put_many,
}

OPERATION_NUMBERS = tuple(number for number in _DECODERS if number != OPERATION_GET)
# Types whose results have what was read, or a key.
LARGE_RESULTS = frozenset(OWNER_KV << 8 | OPERATIONS[kind] for kind in (Transaction, DeleteRange))
