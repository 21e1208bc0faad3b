"""What each KV command does to the keys of its namespace.

Every function decides first and writes last: once the store is changed, nothing can refuse any
more. Time is the entry's timestamp; a version is the entry's index.
"""

from typing import assert_never

from projections.errors import BadDocument
from projections.kv_commands import (
    Append,
    Delete,
    DeleteRange,
    Get,
    Increment,
    JsonDelete,
    JsonSet,
    LeaseGrant,
    LeaseKeepalive,
    LeaseRevoke,
    Maximum,
    Minimum,
    Operation,
    Put,
    Touch,
)
from projections.kv_json import delete_field, set_field
from projections.kv_record import TOMBSTONE, read_version
from projections.kv_ring import newest_of
from projections.kv_store import Found, Store
from projections.limits import (
    DELETE_RANGE_VISITS_MAX,
    I64_MAX,
    I64_MIN,
    KEYS_RESERVED,
    LEASE_KEYS_MAX,
    LEASES_MAX,
    U64_MAX,
)
from projections.reasons import Reason
from projections.result import APPLIED, Applied, Outcome, Refused

COUNTER_DIGITS_MAX = 19


def execute(
    store: Store,
    command: Operation | LeaseGrant | LeaseKeepalive | LeaseRevoke,
    index: int,
    timestamp_ns: int,
) -> Outcome:
    """Run one command that is not a transaction."""
    match command:
        case Put():
            return _put(store, command, index, timestamp_ns)
        case Delete():
            return _delete(store, command, index)
        case Touch():
            return _touch(store, command, index, timestamp_ns)
        case Increment() | Minimum() | Maximum():
            return _change_number(store, command, index)
        case Append():
            return _append(store, command, index)
        case JsonSet() | JsonDelete():
            return _change_document(store, command, index)
        case DeleteRange():
            return _delete_range(store, command, index)
        case Get(key):
            found = store.find(key)
            if found is None:
                return APPLIED
            return Applied(found[1].version, store.value(*found))
        case LeaseGrant(ttl_ns):
            if len(store.leases) >= LEASES_MAX:
                return Refused(Reason.LEASES_FULL, LEASES_MAX)
            store.leases.add(index, ttl_ns, deadline(timestamp_ns, ttl_ns))
            return Applied(index)
        case LeaseKeepalive(lease):
            held = store.leases.get(lease)
            if held is None:
                return Refused(Reason.LEASE_LOST, lease)
            store.leases.renew(lease, deadline(timestamp_ns, held.ttl_ns))
            return APPLIED
        case LeaseRevoke(lease):
            if store.leases.get(lease) is None:
                return Refused(Reason.LEASE_LOST, lease)
            return Applied(end_lease(store, lease, index))
        case _:
            assert_never(command)


def deadline(timestamp_ns: int, ttl_ns: int) -> int:
    """Return when a lifetime that starts now ends; never more than 64 bits hold."""
    return min(timestamp_ns + ttl_ns, U64_MAX)


def end_lease(store: Store, lease: int, index: int, flags: int = 0) -> int:
    """Delete the keys of a lease, then the lease; return the number of keys."""
    held = store.leases.get(lease)
    assert held is not None, f"no lease {lease}"
    keys = sorted(held.keys)
    for key in keys:
        store.remove(key, index, flags)
    store.leases.remove(lease)
    return len(keys)


def _put(store: Store, command: Put, index: int, timestamp_ns: int) -> Outcome:
    key = command.key
    found = store.find(key)
    refused = _refuse_version(found, command.expected) or _refuse_growth(
        store, found, len(command.value)
    )
    if refused is not None:
        return refused
    if command.lease is not None:
        held = store.leases.get(command.lease)
        if held is None:
            return Refused(Reason.LEASE_LOST, command.lease)
        if len(held.keys) >= LEASE_KEYS_MAX and key not in held.keys:
            return Refused(Reason.LEASE_FULL, LEASE_KEYS_MAX)
    expires_ns = 0 if command.ttl_ns is None else deadline(timestamp_ns, command.ttl_ns)
    store.put(key, index, command.value, expires_ns, command.lease or 0)
    return APPLIED


def _delete(store: Store, command: Delete, index: int) -> Outcome:
    found = store.find(command.key)
    refused = _refuse_version(found, command.expected)
    if refused is not None:
        return refused
    if found is None:
        return APPLIED
    store.remove(command.key, index)
    return Applied(1)


def _touch(store: Store, command: Touch, index: int, timestamp_ns: int) -> Outcome:
    found = store.find(command.key)
    refused = _refuse_version(found, command.expected)
    if refused is not None:
        return refused
    if found is None:
        return Refused(Reason.KEY_NOT_FOUND)
    expires_ns = deadline(timestamp_ns, command.ttl_ns) if command.ttl_ns else 0
    store.rebind(command.key, index, expires_ns)
    return APPLIED


def _change_number(store: Store, command: Increment | Minimum | Maximum, index: int) -> Outcome:
    found = store.find(command.key)
    before = None if found is None else parse_number(store.value(*found))
    if found is not None and before is None:
        return Refused(Reason.NOT_A_NUMBER)
    match command:
        case Increment(_, delta):
            after = (before or 0) + delta
        case Minimum(_, operand):
            after = operand if before is None else min(before, operand)
        case Maximum(_, operand):
            after = operand if before is None else max(before, operand)
    if not I64_MIN <= after <= I64_MAX:
        return Refused(Reason.COUNTER_OVERFLOW, before or 0)
    if after == before and not isinstance(command, Increment):
        return Applied(after)
    return _keep_binding(store, command.key, found, index, b"%d" % after, Applied(after))


def parse_number(text: bytes) -> int | None:
    """Return the number that a counter's text says; None for any other text.

    Stricter than ``int()``, which takes spaces, underscores and digits of all scripts.
    """
    digits = text[1:] if text.startswith(b"-") else text
    if not digits.isdigit() or len(digits) > COUNTER_DIGITS_MAX:
        return None
    number = int(text)
    return number if I64_MIN <= number <= I64_MAX else None


def _append(store: Store, command: Append, index: int) -> Outcome:
    found = store.find(command.key)
    before = b"" if found is None else store.value(*found)
    after = before + command.data
    return _keep_binding(store, command.key, found, index, after, Applied(len(after)))


def _change_document(store: Store, command: JsonSet | JsonDelete, index: int) -> Outcome:
    found = store.find(command.key)
    before = None if found is None else store.value(*found)
    try:
        match command:
            case JsonSet(_, path, text, create_parents):
                after = set_field(before, path, text, create_parents=create_parents)
            case JsonDelete(_, path):
                if before is None:
                    return Refused(Reason.KEY_NOT_FOUND)
                after = delete_field(before, path)
    except BadDocument as error:
        return Refused(error.reason, error.detail)
    return _keep_binding(store, command.key, found, index, after, APPLIED)


def _keep_binding(
    store: Store, key: bytes, found: Found | None, index: int, value: bytes, result: Applied
) -> Outcome:
    """Write a changed value under the lifetime and the lease that the key had."""
    refused = _refuse_growth(store, found, len(value))
    if refused is not None:
        return refused
    if found is None:
        store.put(key, index, value)
    else:
        newest = found[1]
        store.put(key, index, value, newest.expires_ns, newest.lease)
    return result


def _delete_range(store: Store, command: DeleteRange, index: int) -> Outcome:
    records = store.records
    doomed: list[bytes] = []
    next_key: bytes | None = None
    for visits, key in enumerate(store.order.walk(command.start, command.end)):
        if len(doomed) == command.limit or visits == DELETE_RANGE_VISITS_MAX:
            next_key = key
            break
        is_there = not read_version(newest_of(records[key])).flags & TOMBSTONE
        if is_there and not key.startswith(KEYS_RESERVED):
            doomed.append(key)
    for key in doomed:
        store.remove(key, index)
    return Applied(len(doomed), next_key)


def _refuse_version(found: Found | None, expected: int | None) -> Refused | None:
    if expected is None:
        return None
    version = 0 if found is None else found[1].version
    if version == expected:
        return None
    reason = Reason.CONDITION_FAILED if expected else Reason.ALREADY_EXISTS
    return Refused(reason, version)


def _refuse_growth(store: Store, found: Found | None, value_size: int) -> Refused | None:
    if value_size > store.value_size_max:
        return Refused(Reason.VALUE_TOO_LARGE, value_size)
    if found is None and store.live_count >= store.keys_room:
        return Refused(Reason.NAMESPACE_FULL, store.keys_room)
    return None
