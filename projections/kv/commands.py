"""Operations on keys: commands, their bytes, what they do, and their descriptions.

Each operation is described once, in ``KV_OPERATIONS``: its command, how its body is read and
written, how it is executed. Everything else is derived from that: decoders, what a transaction
may hold, handlers, descriptions, early answers. docs/payloads.md has the tables; golden files pin
the bytes.

Decoding checks everything that does not depend on the state (sizes, counts, options, lifetimes).
Execution decides before it writes: it returns the outcome, and the version to be written, if any
(``Planned``). ``Store.write_versions`` then writes the versions of all entries of a span in one
loop, each before the next is decided. A refusal changes nothing. Time is the entry's timestamp; a
version is the entry's index.
"""

import codecs
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise, repeat
from operator import itemgetter, sub
from typing import Any, assert_never

from onelog.projections.codec import (
    I64,
    U8,
    U16,
    U32,
    U64,
    Reader,
    SessionRef,
    encode_prefix,
    encode_sized,
    read_prefix,
)
from onelog.projections.conditions import (
    COMPARE,
    Condition,
    Target,
    check_key,
    encode_conditions,
    read_conditions,
)
from onelog.projections.errors import BadDocument, BadPayload
from onelog.projections.kv.documents import Path, delete_field, encode_path, read_path, set_field
from onelog.projections.kv.store import Current, Store, Write
from onelog.projections.limits import (
    DELETE_RANGE_KEYS_MAX,
    DELETE_RANGE_VISITS_MAX,
    I64_MAX,
    I64_MIN,
    KEY_SIZE_MAX,
    KEYS_RESERVED,
    LEASE_KEYS_MAX,
    LEASES_MAX,
    PUT_MANY_KEYS_MAX,
    RESULT_SIZE_MAX,
    TRANSACTION_OPERATIONS_MAX,
    TTL_NS_MAX,
    U64_MAX,
)
from onelog.projections.projection import Operation
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Outcome, Refused, applied
from onelog.ual.entry import OWNER_KV, Draft, Entry

TYPE_PUT = OWNER_KV << 8 | 0x01
TYPE_PUT_MANY = OWNER_KV << 8 | 0x0F
TOOK_THEN = 1
TOOK_ELSE = 2

OPTION_TTL = 0x01
OPTION_LEASE = 0x02
OPTION_EXPECTED = 0x04
OPTION_VERSION = 0x08  # of a touch: its result is the version of the key
OPTION_CREATE_PARENTS = 0x01

COUNTER_DIGITS_MAX = 19
KEY_SIZES_MAX = 1024  # entries of the cache ``_KeySizes``
SHOWN_BYTES_MAX = 60  # of one key or value
OPERATIONS_SHOWN_MAX = 4  # of one list of a transaction

_OPTIONS = struct.Struct("<BH")  # options, key size
_unpack_options = _OPTIONS.unpack_from
_unpack_u16 = U16.unpack_from
_unpack_u64 = U64.unpack_from
_unpack_i64 = I64.unpack_from
_first_byte = itemgetter(0)
_RESERVED_FIRST = frozenset(prefix[0] for prefix in KEYS_RESERVED)
_APPLIED_ONE = Applied(1)
_NOT_BOUND: Current = (b"", 0, 0)

Fields = tuple[Any, ...]
"""The fields of a command, in their order."""

Planned = tuple[Outcome, Write | None]
"""The outcome of an operation, and the version that it writes, if any."""


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
    """Change the lifetime of a key (0: no expiry) without a new version."""

    key: bytes
    ttl_ns: int
    expected: int | None = None
    with_version: bool = False  # return the version; entries of older servers do not


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
    """Renew a lease: its lifetime starts again now."""

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
    """Read a key inside a transaction."""

    key: bytes


Nested = (
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
    then: tuple[Nested, ...]
    otherwise: tuple[Nested, ...] = ()


@dataclass(frozen=True, slots=True)
class PutMany:
    """Write many keys at once, with one version; all of it or nothing.

    ``bodies`` are those of puts with a lifetime or no option at all.
    """

    bodies: tuple[bytes, ...]

    def puts(self) -> list[Put]:
        """Decode the puts; raises ``BadPayload``."""
        return [Put(*_parse_one_of_many(body)) for body in self.bodies]


Command = Nested | LeaseGrant | LeaseKeepalive | LeaseRevoke | Transaction | PutMany


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the first key after all keys that start with ``prefix``; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


# Put


def encode_put(
    key: bytes, value: bytes, ttl_ns: int | None, lease: int | None, expected: int | None
) -> bytes:
    """Return the body of a put."""
    return _encode_options(key, ttl_ns, lease, expected) + key + value


PutOptions = tuple[int | None, int | None, int | None]
"""Lifetime in nanoseconds, lease and expected version of a put."""


def encode_put_heads(
    keys: Sequence[bytes], options: Iterable[PutOptions] | None = None
) -> list[bytes]:
    """Return what precedes the key in the body of each put; None: no put has options."""
    if options is not None:
        return [_encode_options(key, *each) for key, each in zip(keys, options, strict=False)]
    sizes, pack = list(map(len, keys)), _OPTIONS.pack
    heads = {size: pack(0, size) for size in set(sizes)}  # most keys are of the same size
    return list(map(heads.__getitem__, sizes))


def put_bodies(
    keys: Sequence[bytes], values: Sequence[bytes], ttl_ns: int | None
) -> tuple[bytes, ...]:
    """Return the bodies of puts without conditions that share one lifetime."""
    options = None if ttl_ns is None else repeat((ttl_ns, None, None))
    heads = encode_put_heads(keys, options)
    return tuple(map(b"".join, zip(heads, keys, values, strict=True)))


def _parse_put(data: bytes, at: int) -> Fields:
    key_at = at + _OPTIONS.size
    if len(data) < key_at:
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    options, key_size = _unpack_options(data, at)
    ttl_ns = lease = expected = None
    if options:
        if options & ~(OPTION_TTL | OPTION_LEASE | OPTION_EXPECTED):
            raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
        if options & OPTION_TTL:
            ttl_ns, key_at = _parse_u64(data, key_at), key_at + U64.size
            if not 0 < ttl_ns <= TTL_NS_MAX:
                raise BadPayload(Reason.TTL_INVALID, ttl_ns)
        if options & OPTION_LEASE:
            lease, key_at = _parse_u64(data, key_at), key_at + U64.size
        if options & OPTION_EXPECTED:
            expected, key_at = _parse_u64(data, key_at), key_at + U64.size
    value_at = key_at + key_size
    key = data[key_at:value_at]
    if len(key) != key_size:
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    return check_written(key), data[value_at:], ttl_ns, lease, expected


def _put(
    store: Store,
    index: int,
    timestamp_ns: int,
    key: bytes,
    value: bytes,
    ttl_ns: int | None,
    lease: int | None,
    expected: int | None,
) -> Planned:
    # Skip the check where it cannot refuse: below the limit of keys no put can exceed it.
    is_near_limit = len(value) > store.value_size_max or len(store.records) >= store.keys_room
    if expected is not None or is_near_limit:
        refused = _refuse_version(store, key, expected) or _refuse_growth(store, key, len(value))
        if refused is not None:
            return refused, None
    if lease is not None:
        held = store.leases.get(lease)
        if held is None:
            return Refused(Reason.LEASE_LOST, lease), None
        if len(held.keys) >= LEASE_KEYS_MAX and key not in held.keys:
            return Refused(Reason.LEASE_FULL, LEASE_KEYS_MAX), None
    expires_ns = 0 if ttl_ns is None else deadline(timestamp_ns, ttl_ns)
    return APPLIED, store.write(index, key, value, expires_ns, lease or 0)


def _describe_put(
    key: bytes, value: bytes, ttl_ns: int | None, lease: int | None, expected: int | None
) -> str:
    ttl = None if ttl_ns is None else _seconds(ttl_ns)
    rest = _options(ttl=ttl, lease=lease, expected=expected)
    return f"put {shown_bytes(key)} = {shown_bytes(value)}{rest}"


def _is_blind_put(body: bytes) -> bool:
    """Return whether a put has neither expected version nor lease, which can refuse it."""
    return bool(body) and not body[0] & (OPTION_EXPECTED | OPTION_LEASE)


class _KeySizes(dict[bytes, int]):
    """A cache from the first bytes of a put's body to the size of its key, -1 if it has options."""

    def __missing__(self, head: bytes) -> int:
        size = -1
        if len(head) == _OPTIONS.size:
            options, key_size = _OPTIONS.unpack(head)
            if not options and 1 <= key_size <= KEY_SIZE_MAX:
                size = key_size
        if len(self) >= KEY_SIZES_MAX:
            self.clear()
        self[head] = size
        return size


_KEY_SIZES = _KeySizes()


def _put_plain(
    store: Store, index: int, prefix: bytes, payloads: Sequence[bytes], *, at_once: bool
) -> bool:
    """Write puts if all are without options and must succeed; else change nothing.

    The payload of such a put is the canonical item of what it writes. ``at_once``: all belong to
    the entry at ``index``; else each is an entry of its own.
    """
    body, key_at, count = len(prefix), len(prefix) + _OPTIONS.size, len(payloads)
    heads = [payload[body:key_at] for payload in payloads]
    value_at = key_at + _KEY_SIZES[heads[0]]
    if value_at < key_at:
        return False
    is_even = heads.count(heads[0]) == count
    if is_even:
        value_ats = [value_at] * count
        keys = [payload[key_at:value_at] for payload in payloads]
    else:
        value_ats = [key_at + _KEY_SIZES[head] for head in heads]
        keys = [payload[key_at:at] for payload, at in zip(payloads, value_ats, strict=True)]
    indexes = repeat(index) if at_once else range(index, index + count)
    entry = index if at_once and len(set(keys)) < count else 0
    if is_even and not entry and store.write_over(indexes, keys, payloads, value_at):
        return True
    if is_even:
        sizes = list(map(len, payloads))
        size_min, size_max = min(sizes) - value_at, max(sizes) - value_at
    else:
        sizes = list(map(sub, map(len, payloads), value_ats))
        size_min = min(sizes) if min(value_ats) > key_at else -1
        size_max = max(sizes)
    if (
        size_min < 0
        or size_max > store.value_size_max
        or store.live_count + count > store.keys_room
        or not _RESERVED_FIRST.isdisjoint(map(_first_byte, keys))
    ):
        return False
    writes = zip(indexes, keys, payloads, value_ats, repeat(None), strict=False)
    store.write_versions(writes, is_described=True, entry=entry)
    return True


# Delete, touch


def _encode_delete(key: bytes, expected: int | None) -> bytes:
    return _encode_options(key, None, None, expected) + key


def _parse_delete(data: bytes, at: int) -> Fields:
    key_at = at + _OPTIONS.size
    if len(data) < key_at:
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    options, key_size = _unpack_options(data, at)
    if options & ~OPTION_EXPECTED:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    expected = None
    if options:
        expected, key_at = _parse_u64(data, key_at), key_at + U64.size
    left = len(data) - key_at - key_size
    if left < 0:
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    key = check_written(data[key_at : key_at + key_size])
    if left:
        raise BadPayload(Reason.PAYLOAD_TRAILING_BYTES, left)
    return key, expected


def _delete(store: Store, index: int, _time_ns: int, key: bytes, expected: int | None) -> Planned:
    refused = _refuse_version(store, key, expected)
    if refused is not None:
        return refused, None
    if not store.find_version(key):
        return APPLIED, None
    return _APPLIED_ONE, store.removal(index, key)


def _describe_delete(key: bytes, expected: int | None) -> str:
    return f"delete {shown_bytes(key)}{_options(expected=expected)}"


def _encode_touch(
    key: bytes,
    ttl_ns: int,
    expected: int | None,
    with_version: bool,  # noqa: FBT001
) -> bytes:
    head = _encode_options(key, None, None, expected)
    options = U8.pack(head[0] | (OPTION_VERSION if with_version else 0))
    return options + head[1:3] + U64.pack(ttl_ns) + head[3:] + key


def _parse_touch(data: bytes, at: int) -> Fields:
    reader = Reader(data, at)
    options, key_size = _read_options(reader, OPTION_EXPECTED | OPTION_VERSION)
    ttl_ns = _read_ttl(reader, zero_allowed=True)
    expected = reader.number(U64) if options & OPTION_EXPECTED else None
    key = check_written(reader.take(key_size))
    reader.finish()
    return key, ttl_ns, expected, bool(options & OPTION_VERSION)


def _touch(
    store: Store,
    index: int,
    timestamp_ns: int,
    key: bytes,
    ttl_ns: int,
    expected: int | None,
    with_version: bool,  # noqa: FBT001
) -> Planned:
    refused = _refuse_version(store, key, expected)
    if refused is not None:
        return refused, None
    version = store.find_version(key)
    if not version:
        return Refused(Reason.KEY_NOT_FOUND), None
    store.rebind(key, index, deadline(timestamp_ns, ttl_ns) if ttl_ns else 0)
    return Applied(version) if with_version else APPLIED, None


def _describe_touch(
    key: bytes,
    ttl_ns: int,
    expected: int | None,
    _with_version: bool,  # noqa: FBT001
) -> str:
    how_long = f"for {_seconds(ttl_ns)}" if ttl_ns else "on"
    return f"let {shown_bytes(key)} live {how_long}{_options(expected=expected)}"


# Numbers and bytes: the new value depends on the old one and keeps its lifetime and lease


def _encode_number(key: bytes, number: int) -> bytes:
    return I64.pack(number) + key


def _parse_number(data: bytes, at: int) -> Fields:
    if len(data) < at + I64.size:
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    (number,) = _unpack_i64(data, at)
    return check_written(data[at + I64.size :]), number


def _increment(store: Store, index: int, _time_ns: int, key: bytes, delta: int) -> Planned:
    found = store.current(key)
    before = _current_number(found)
    if before is None and found is not None:
        return Refused(Reason.NOT_A_NUMBER), None
    after = (before or 0) + delta
    if not I64_MIN <= after <= I64_MAX:
        return Refused(Reason.COUNTER_OVERFLOW, before or 0), None
    return _change(store, index, key, found, b"%d" % after, applied(after))


def _bound_number(
    choose: Callable[[int, int], int],
    store: Store,
    index: int,
    _time_ns: int,
    key: bytes,
    operand: int,
) -> Planned:
    found = store.current(key)
    before = _current_number(found)
    if before is None and found is not None:
        return Refused(Reason.NOT_A_NUMBER), None
    after = operand if before is None else choose(before, operand)
    if after == before:
        return applied(after), None
    return _change(store, index, key, found, b"%d" % after, applied(after))


def _current_number(found: Current | None) -> int | None:
    return None if found is None else parse_number(found[0])


def parse_number(text: bytes) -> int | None:
    """Parse the text of a counter; return None if it is no number.

    Stricter than ``int()``, which accepts spaces, underscores and digits of all scripts.
    """
    digits = text[1:] if text.startswith(b"-") else text
    if not digits.isdigit() or len(digits) > COUNTER_DIGITS_MAX:
        return None
    number = int(text)
    return number if I64_MIN <= number <= I64_MAX else None


def _encode_append(key: bytes, data: bytes) -> bytes:
    return encode_sized(U16, key) + data


def _parse_append(data: bytes, at: int) -> Fields:
    key_at = at + U16.size
    if len(data) < key_at:
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    (size,) = _unpack_u16(data, at)
    key = data[key_at : key_at + size]
    if len(key) != size:
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    return check_written(key), data[key_at + size :]


def _append(store: Store, index: int, _time_ns: int, key: bytes, data: bytes) -> Planned:
    found = store.current(key)
    after = data if found is None else found[0] + data
    return _change(store, index, key, found, after, applied(len(after)))


def _change(
    store: Store, index: int, key: bytes, found: Current | None, value: bytes, result: Applied
) -> Planned:
    """Write a changed value under the lifetime and the lease that the key had."""
    if len(value) > store.value_size_max or len(store.records) >= store.keys_room:
        refused = _refuse_growth(store, key, len(value))
        if refused is not None:
            return refused, None
    _, expires_ns, lease = found or _NOT_BOUND
    return result, store.write(index, key, value, expires_ns, lease)


# JSON documents


def _encode_json_set(key: bytes, path: Path, text: bytes, create_parents: bool) -> bytes:  # noqa: FBT001
    options = OPTION_CREATE_PARENTS if create_parents else 0
    return U8.pack(options) + encode_sized(U16, key) + encode_path(path) + text


def _parse_json_set(data: bytes, at: int) -> Fields:
    reader = Reader(data, at)
    options = reader.number(U8)
    if options & ~OPTION_CREATE_PARENTS:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    key = check_written(reader.sized(U16))
    path = read_path(reader)
    return key, path, reader.rest(), bool(options & OPTION_CREATE_PARENTS)


def _json_set(
    store: Store,
    index: int,
    _time_ns: int,
    key: bytes,
    path: Path,
    text: bytes,
    create_parents: bool,  # noqa: FBT001
) -> Planned:
    found = store.current(key)
    try:
        before = None if found is None else found[0]
        after = set_field(before, path, text, create_parents=create_parents)
    except BadDocument as error:
        return Refused(error.reason, error.detail), None
    return _change(store, index, key, found, after, APPLIED)


def _encode_json_delete(key: bytes, path: Path) -> bytes:
    return encode_sized(U16, key) + encode_path(path)


def _parse_json_delete(data: bytes, at: int) -> Fields:
    reader = Reader(data, at)
    fields = check_written(reader.sized(U16)), read_path(reader)
    reader.finish()
    return fields


def _json_delete(store: Store, index: int, _time_ns: int, key: bytes, path: Path) -> Planned:
    found = store.current(key)
    if found is None:
        return Refused(Reason.KEY_NOT_FOUND), None
    try:
        after = delete_field(found[0], path)
    except BadDocument as error:
        return Refused(error.reason, error.detail), None
    return _change(store, index, key, found, after, APPLIED)


# Ranges, leases, reads


def _encode_delete_range(start: bytes, end: bytes | None, limit: int) -> bytes:
    return U32.pack(limit) + encode_sized(U16, start) + (end or b"")


def _parse_delete_range(data: bytes, at: int) -> Fields:
    reader = Reader(data, at)
    limit = reader.number(U32)
    if not 1 <= limit <= DELETE_RANGE_KEYS_MAX:
        raise BadPayload(Reason.LIMIT_INVALID, limit)
    start, end = reader.sized(U16), reader.rest()
    if len(start) > KEY_SIZE_MAX or len(end) > KEY_SIZE_MAX:
        raise BadPayload(Reason.KEY_SIZE_INVALID, max(len(start), len(end)))
    if end and end <= start:
        raise BadPayload(Reason.RANGE_INVALID)
    return start, end or None, limit


def _delete_range(
    store: Store, index: int, _time_ns: int, start: bytes, end: bytes | None, limit: int
) -> Planned:
    doomed: list[bytes] = []
    next_key: bytes | None = None
    for visits, key in enumerate(store.order.walk(start, end)):
        if len(doomed) == limit or visits == DELETE_RANGE_VISITS_MAX:
            next_key = key
            break
        if store.find_version(key) and not key.startswith(KEYS_RESERVED):
            doomed.append(key)
    store.remove(index, doomed)
    return Applied(len(doomed), next_key), None


def _describe_delete_range(start: bytes, end: bytes | None, limit: int) -> str:
    until = "the end" if end is None else shown_bytes(end)
    return f"delete up to {limit} keys from {shown_bytes(start)} to before {until}"


def _parse_ttl(data: bytes, at: int) -> Fields:
    reader = Reader(data, at)
    ttl_ns = _read_ttl(reader)
    reader.finish()
    return (ttl_ns,)


def _parse_lease(data: bytes, at: int) -> Fields:
    reader = Reader(data, at)
    lease = reader.number(U64)
    reader.finish()
    return (lease,)


def _grant(store: Store, index: int, timestamp_ns: int, ttl_ns: int) -> Planned:
    if len(store.leases) >= LEASES_MAX:
        return Refused(Reason.LEASES_FULL, LEASES_MAX), None
    store.leases.add(index, ttl_ns, deadline(timestamp_ns, ttl_ns))
    return Applied(index), None


def _keep_alive(store: Store, _index: int, timestamp_ns: int, lease: int) -> Planned:
    held = store.leases.get(lease)
    if held is None:
        return Refused(Reason.LEASE_LOST, lease), None
    store.leases.renew(lease, deadline(timestamp_ns, held.ttl_ns))
    return APPLIED, None


def _revoke(store: Store, index: int, _time_ns: int, lease: int) -> Planned:
    if store.leases.get(lease) is None:
        return Refused(Reason.LEASE_LOST, lease), None
    return Applied(end_lease(store, lease, index)), None


def end_lease(store: Store, lease: int, index: int, flags: int = 0) -> int:
    """Delete the keys of a lease, then the lease; return the number of keys."""
    held = store.leases.get(lease)
    assert held is not None, f"no lease {lease}"
    keys = sorted(held.keys)
    store.remove(index, keys, flags)
    store.leases.remove(lease)
    return len(keys)


def _get(store: Store, _index: int, _time_ns: int, key: bytes) -> Planned:
    found = store.find(key)
    if found is None:
        return APPLIED, None
    return Applied(found[1].version, store.value(*found)), None


# Transactions: compare, then or else, over many keys of one namespace. All conditions are checked
# before anything is done. The operations of the chosen list run in order and see the effect of
# those before them. When one is refused, the undo log rolls everything back and the transaction is
# refused as a whole. In a batch it rolls back its own part only; the batch decides about the rest.


def _encode_transaction(
    conditions: tuple[Condition, ...],
    then: tuple[Nested, ...],
    otherwise: tuple[Nested, ...],
) -> bytes:
    parts = [encode_conditions(conditions)]
    for operations in (then, otherwise):
        parts.append(U16.pack(len(operations)))
        for operation in operations:
            number, body = OPERATIONS[type(operation)].number, encode_body(operation)
            parts += (U8.pack(number), encode_sized(U32, body))
    return b"".join(parts)


def _parse_transaction(data: bytes, at: int) -> Fields:
    reader = Reader(data, at)
    fields = read_conditions(reader), _read_operations(reader), _read_operations(reader)
    reader.finish()
    return fields


def _read_operations(reader: Reader) -> tuple[Nested, ...]:
    operations: list[Nested] = []
    ranged = 0  # keys that all range deletes of the list may visit
    for _ in range(reader.count(TRANSACTION_OPERATIONS_MAX)):
        kind = reader.number(U8)
        known = _BY_NUMBER.get(kind)
        if known is None or not known.nested:
            raise BadPayload(Reason.OPERATION_UNKNOWN, kind)
        operation = known.command(*known.decode(reader.sized(U32), 0))
        if isinstance(operation, DeleteRange):
            ranged += operation.limit
            if ranged > DELETE_RANGE_KEYS_MAX:
                raise BadPayload(Reason.LIMIT_INVALID, ranged)
        operations.append(operation)
    return tuple(operations)


def _transact(
    store: Store,
    index: int,
    timestamp_ns: int,
    conditions: tuple[Condition, ...],
    then: tuple[Nested, ...],
    otherwise: tuple[Nested, ...],
) -> Planned:
    """Run a transaction, all or nothing."""
    holds = first_failed(store, conditions) is None
    results: list[Outcome] = []
    size = 0
    refused: Refused | None = None
    undo = store.undo
    alone = not undo.active
    if alone:
        undo.begin()
    mark = undo.mark()
    for position, command in enumerate(then if holds else otherwise):
        execute, fields = OPERATIONS[type(command)].execute, _fields(command)
        result, write = execute(store, index, timestamp_ns, *fields)
        if isinstance(result, Refused):
            refused = Refused(Reason.TRANSACTION_REFUSED, position, result.reason)
            break
        if write is not None:
            store.write_versions((write,), entry=index, is_described=False)
        size += len(result.value or b"")
        if size > RESULT_SIZE_MAX:
            refused = Refused(Reason.RESULT_TOO_LARGE, RESULT_SIZE_MAX)
            break
        results.append(result)
    if refused is not None:
        undo.rollback_to(mark)
    if alone:
        undo.commit()
    if refused is not None:
        return refused, None
    return Applied(TOOK_THEN if holds else TOOK_ELSE, None, tuple(results)), None


def first_failed(store: Store, conditions: Sequence[Condition]) -> int | None:
    """Return the position of the first condition that does not hold."""
    for position, condition in enumerate(conditions):
        if not _holds(store, condition):
            return position
    return None


def _holds(store: Store, condition: Condition) -> bool:
    found = store.find(condition.key)
    match condition.target:
        case Target.EXISTS:
            return found is not None
        case Target.MISSING:
            return found is None
        case Target.VERSION:
            version = 0 if found is None else found[1].version
            return COMPARE[condition.comparison](version, condition.version)
        case Target.VALUE:
            if found is None:
                return False
            return COMPARE[condition.comparison](store.value(*found), condition.value)
        case _:
            assert_never(condition.target)


def _describe_transaction(
    conditions: tuple[Condition, ...],
    then: tuple[Nested, ...],
    otherwise: tuple[Nested, ...],
) -> str:
    text = f"transaction: if {len(conditions)} conditions hold, {_describe_all(then)}"
    return f"{text}, else {_describe_all(otherwise)}" if otherwise else text


# Many puts in one entry: one version, one checksum and one result for all of them. What a put costs
# besides writing its key (header, checksum, session, answer) is paid once for the entry. It is all
# or nothing: a put without condition or lease can only be refused for its own size or for the
# number of keys, so all of them are checked before the first is written. A key that is put twice
# has the last value.


def _encode_put_many(bodies: tuple[bytes, ...]) -> bytes:
    sizes = struct.pack(f"<{len(bodies)}I", *map(len, bodies))
    return b"".join((U16.pack(len(bodies)), sizes, *bodies))


def _parse_put_many(data: bytes, at: int) -> Fields:
    reader = Reader(data, at)
    count = put_count(reader)
    if not count:
        raise BadPayload(Reason.LIMIT_INVALID, 0)
    sizes = reader.fields(struct.Struct(f"<{count}I"))
    bodies = reader.take(sum(sizes))
    reader.finish()
    ends = accumulate(sizes, initial=0)
    return (tuple([bodies[start:end] for start, end in pairwise(ends)]),)


def put_count(body: Reader) -> int:
    """Count the puts in the body of a ``PutMany``."""
    return body.count(PUT_MANY_KEYS_MAX)


def _parse_one_of_many(body: bytes) -> Fields:
    """Read one of the bodies of ``PutMany``: a put without condition or lease."""
    fields = _parse_put(body, 0)
    if fields[3:] != (None, None):
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, body[0])
    return fields


def _put_many(store: Store, index: int, timestamp_ns: int, bodies: tuple[bytes, ...]) -> Planned:
    prefix = store.items.prefix
    if _put_plain(store, index, prefix, [prefix + body for body in bodies], at_once=True):
        return APPLIED, None
    writes = _judge_puts(store, index, timestamp_ns, bodies)
    if isinstance(writes, Refused):
        return writes, None
    store.write_versions(writes, is_described=True, entry=index)
    return APPLIED, None


def _judge_puts(
    store: Store, index: int, timestamp_ns: int, bodies: tuple[bytes, ...]
) -> list[Write] | Refused:
    """Return the versions that the puts of one entry write, or the refusal of one of them."""
    writes: list[Write] = []
    added: set[bytes] = set()
    room = store.keys_room - store.live_count
    for position, body in enumerate(bodies):
        key, value, ttl_ns, _, _ = _parse_one_of_many(body)
        refused: Refused | None = None
        if len(value) > store.value_size_max:
            refused = Refused(Reason.VALUE_TOO_LARGE, len(value))
        elif key not in added and not store.find_version(key):
            if len(added) >= room:
                refused = Refused(Reason.NAMESPACE_FULL, store.keys_room)
            added.add(key)
        if refused is not None:
            return Refused(Reason.TRANSACTION_REFUSED, position, refused.reason)
        expires_ns = 0 if ttl_ns is None else deadline(timestamp_ns, ttl_ns)
        writes.append(store.write(index, key, value, expires_ns))
    return writes


# Shared by several operations


def deadline(timestamp_ns: int, ttl_ns: int) -> int:
    """Return the end of a lifetime that starts now, capped to 64 bits."""
    return min(timestamp_ns + ttl_ns, U64_MAX)


def _refuse_version(store: Store, key: bytes, expected: int | None) -> Refused | None:
    if expected is None:
        return None
    version = store.find_version(key)
    if version == expected:
        return None
    reason = Reason.CONDITION_FAILED if expected else Reason.ALREADY_EXISTS
    return Refused(reason, version)


def _refuse_growth(store: Store, key: bytes, value_size: int) -> Refused | None:
    if value_size > store.value_size_max:
        return Refused(Reason.VALUE_TOO_LARGE, value_size)
    if store.live_count >= store.keys_room and not store.find_version(key):
        return Refused(Reason.NAMESPACE_FULL, store.keys_room)
    return None


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
    return _OPTIONS.pack(options, len(key)) + fields


def _read_options(reader: Reader, known: int) -> tuple[int, int]:
    options, key_size = reader.fields(_OPTIONS)
    if options & ~known:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    return options, key_size


def _parse_u64(data: bytes, at: int) -> int:
    if len(data) < at + U64.size:
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    number: int = _unpack_u64(data, at)[0]
    return number


def _read_ttl(reader: Reader, *, zero_allowed: bool = False) -> int:
    ttl_ns = reader.number(U64)
    if ttl_ns > TTL_NS_MAX or (ttl_ns == 0 and not zero_allowed):
        raise BadPayload(Reason.TTL_INVALID, ttl_ns)
    return ttl_ns


def check_written(key: bytes) -> bytes:
    """Check a key that is about to be written."""
    if key.startswith(KEYS_RESERVED):
        raise BadPayload(Reason.KEY_RESERVED)
    if not 1 <= len(key) <= KEY_SIZE_MAX:
        raise BadPayload(Reason.KEY_SIZE_INVALID, len(key))
    return key


def _fields(command: Command) -> Fields:
    return tuple([getattr(command, name) for name in command.__slots__])


def shown_bytes(data: bytes) -> str:
    """Return the beginning of some bytes: as text if they are UTF-8, else in hex."""
    begin = data[:SHOWN_BYTES_MAX]
    is_cut = len(data) > len(begin)
    try:
        # Omit a character that was cut in half at the end.
        shown = codecs.getincrementaldecoder("utf-8")().decode(begin, final=not is_cut)
    except UnicodeDecodeError:
        shown = f"0x{begin.hex()}"
    return f"{shown}…" if is_cut else shown


def _describe_all(operations: Sequence[Nested]) -> str:
    shown = [_describe(each) for each in operations[:OPERATIONS_SHOWN_MAX]]
    if len(operations) > len(shown):
        shown.append(f"and {len(operations) - len(shown)} more")
    return f"[{', '.join(shown)}]"


def _options(**options: int | str | None) -> str:
    shown = [f"{name} {value}" for name, value in options.items() if value is not None]
    return f" ({', '.join(shown)})" if shown else ""


def _shown_path(path: Path) -> str:
    steps = (f".{step}" if isinstance(step, str) else f"[{_place(step)}]" for step in path)
    return "".join(steps) or "all"


def _place(step: int | None) -> str:
    return "end" if step is None else str(step)


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1_000_000_000:g} s"


# The registry. The numbers are in logs: never change or reuse one.

KV_OPERATIONS = (
    Operation(
        0x01,
        Put,
        _parse_put,
        encode_put,
        _put,
        _describe_put,
        nested=True,
        is_blind=_is_blind_put,
        is_self_describing=True,
    ),
    Operation(0x02, Delete, _parse_delete, _encode_delete, _delete, _describe_delete, nested=True),
    Operation(0x03, Touch, _parse_touch, _encode_touch, _touch, _describe_touch, nested=True),
    Operation(
        0x04,
        Increment,
        _parse_number,
        _encode_number,
        _increment,
        lambda key, delta: f"increment {shown_bytes(key)} by {delta}",
        nested=True,
    ),
    Operation(
        0x05,
        Minimum,
        _parse_number,
        _encode_number,
        partial(_bound_number, min),
        lambda key, operand: f"lower {shown_bytes(key)} to {operand}",
        nested=True,
    ),
    Operation(
        0x06,
        Maximum,
        _parse_number,
        _encode_number,
        partial(_bound_number, max),
        lambda key, operand: f"raise {shown_bytes(key)} to {operand}",
        nested=True,
    ),
    Operation(
        0x07,
        Append,
        _parse_append,
        _encode_append,
        _append,
        lambda key, data: f"append {shown_bytes(data)} to {shown_bytes(key)}",
        nested=True,
    ),
    Operation(
        0x08,
        JsonSet,
        _parse_json_set,
        _encode_json_set,
        _json_set,
        lambda key, path, text, _: (
            f"set {_shown_path(path)} of {shown_bytes(key)} to {shown_bytes(text)}"
        ),
        nested=True,
    ),
    Operation(
        0x09,
        JsonDelete,
        _parse_json_delete,
        _encode_json_delete,
        _json_delete,
        lambda key, path: f"delete {_shown_path(path)} of {shown_bytes(key)}",
        nested=True,
    ),
    Operation(
        0x0A,
        LeaseGrant,
        _parse_ttl,
        U64.pack,
        _grant,
        lambda ttl_ns: f"grant a lease of {_seconds(ttl_ns)}",
    ),
    Operation(
        0x0B,
        LeaseKeepalive,
        _parse_lease,
        U64.pack,
        _keep_alive,
        lambda lease: f"keep lease {lease} alive",
    ),
    Operation(
        0x0C, LeaseRevoke, _parse_lease, U64.pack, _revoke, lambda lease: f"revoke lease {lease}"
    ),
    Operation(
        0x0D,
        Transaction,
        _parse_transaction,
        _encode_transaction,
        _transact,
        _describe_transaction,
        has_large_result=True,
    ),
    Operation(
        0x0E,
        DeleteRange,
        _parse_delete_range,
        _encode_delete_range,
        _delete_range,
        _describe_delete_range,
        nested=True,
        has_large_result=True,
    ),
    Operation(
        0x0F,
        PutMany,
        _parse_put_many,
        _encode_put_many,
        _put_many,
        lambda bodies: f"at once {_describe_all(PutMany(bodies).puts())}",
        is_blind=lambda _: True,
        is_self_describing=True,
        several=(TYPE_PUT, lambda body: _parse_put_many(body, 0)[0]),
    ),
    Operation(
        0x20,
        Get,
        lambda data, at: (check_key(data[at:]),),
        lambda key: key,
        _get,
        lambda key: f"get {shown_bytes(key)}",
        nested=True,
        is_entry=False,
    ),
)
OPERATIONS: dict[type[Command], Operation] = {each.command: each for each in KV_OPERATIONS}
_BY_NUMBER = {each.number: each for each in KV_OPERATIONS}


def encode_command(command: Command, namespace: str, session: SessionRef | None = None) -> Draft:
    """Return the draft of the entry that carries ``command``."""
    operation = OPERATIONS[type(command)]
    assert operation.is_entry, f"a {type(command).__name__} alone is not an entry"
    payload = encode_prefix(namespace, session) + encode_body(command)
    return Draft(OWNER_KV << 8 | operation.number, payload)


def encode_body(command: Command) -> bytes:
    """Return the body of a command: what follows the prefix."""
    body: bytes = OPERATIONS[type(command)].encode(*_fields(command))
    return body


def decode_command(operation: int, reader: Reader) -> Command:
    """Read the body of an entry with the low byte ``operation``, to its end."""
    known = _BY_NUMBER.get(operation)
    if known is None or not known.is_entry:
        raise BadPayload(Reason.OPERATION_UNKNOWN, operation)
    command: Command = known.command(*known.decode(reader.rest(), 0))
    return command


def describe_kv_entry(entry: Entry) -> str:
    """Describe an entry of owner 0x01; raise ``BadPayload`` or ``DataError``.

    Keys and values come from the log and are not escaped.
    """
    prefix, reader = read_prefix(entry.plain_payload())
    return f"{prefix.namespace}: {_describe(decode_command(entry.entry_type & 0xFF, reader))}"


def _describe(command: Command) -> str:
    text: str = OPERATIONS[type(command)].describe(*_fields(command))
    return text


def execute_span(
    operation: Operation,
    stores: Mapping[bytes, Store],
    prefix: bytes,
    index: int,
    timestamp_ns: int,
    payloads: Sequence[bytes],
) -> Sequence[Outcome]:
    """Apply a span of entries of one operation (``Handler``); ``stores`` are keyed by prefix."""
    store = stores.get(prefix)
    if (
        operation.command is Put
        and len(payloads) > 1
        and store is not None
        and _put_plain(store, index, prefix, payloads, at_once=False)
    ):
        return [APPLIED] * len(payloads)
    outcomes: list[Outcome] = []
    if store is None:
        for payload in payloads:
            try:
                operation.decode(payload, len(prefix))
                outcomes.append(Refused(Reason.NAMESPACE_UNKNOWN))
            except BadPayload as error:
                outcomes.append(Refused(error.reason, error.detail))
        return outcomes
    writes = _plan(operation, store, len(prefix), index, timestamp_ns, payloads, outcomes)
    store.write_versions(writes, is_described=operation.is_self_describing)
    return outcomes


def _plan(
    operation: Operation,
    store: Store,
    body: int,
    index: int,
    timestamp_ns: int,
    payloads: Sequence[bytes],
    outcomes: list[Outcome],
) -> Iterator[Write]:
    """Yield the versions of a span and add its outcomes; each is planned after the write before."""
    decode, execute = operation.decode, operation.execute
    for at, payload in enumerate(payloads, index):
        try:
            outcome, write = execute(store, at, timestamp_ns, *decode(payload, body))
        except BadPayload as error:
            outcome, write = Refused(error.reason, error.detail), None
        outcomes.append(outcome)
        if write is not None:
            yield write
