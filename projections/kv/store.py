"""The keys of one namespace: records, order, lifetimes, leases and hash.

``Store.write_versions`` is the only code that writes new versions: a loop over many keys, in which
a plain value costs least and every option adds its step. ``_set`` replaces one record by another
where no version is written (a new lifetime, a purge, a snapshot, a rollback). Both update
everything that is derived from records. The 40 bytes that a ring (record.py) takes more than its
record are not counted.

Invariants, all asserted by ``check``:

* ``hash_total`` is the sum of all items: versions, bindings, trimmed marks, ``purged_index``;
* ``resident_size`` is the sum of keys and records with their object headers;
* ``deadlines`` holds exactly the keys whose newest version expires, ``leases`` those it binds;
* ``tombstone_count`` keys have a tombstone as newest version.

Deleted keys keep their history until more than ``tombstones_max`` of them exist. Then the key that
was deleted first is purged, and ``purged_index`` rises to its tombstone's version: from there on an
unknown key is known to be absent, before it nothing can be said (COMPACTED). A delete purges
PURGE_STEP keys at most, so a lowered limit is reached step by step.

``Leases`` are lifetimes shared by many keys. A lease is granted for a time and renewed by its
holder; when it is revoked or expires, its keys are deleted. Its id is the index of the entry that
granted it. Invariants:

* ``keys`` of a lease are exactly the keys whose newest version is bound to it (the store calls
  ``attach`` and ``detach`` whenever that changes);
* every lease has its deadline scheduled; ``hash_total`` is the sum of the leases' items.

The keys of a lease are a set; code that iterates over them sorts first.

``OrderedKeys`` is the sorted index of the keys. Most keys are never scanned, so a write does not
pay for sorting. Until the first scan there is no index at all. After it, new keys wait in
``pending`` and the next scan merges them. Measured at a million keys on a busy machine where a dict
put takes 0.5 µs: a SortedDict costs 4.9 µs on each new key; the pending list 0.4 µs, and 4 to 17 µs
more only if a scan follows. The first scan sorts for 1.2 s, or 0.1 s where a snapshot was loaded,
which is sorted already.

Purged keys stay in the index as garbage: a scan looks each key up in the records anyway.
Invariants: every key of the records is in the sorted list or pending, unless the index is not
built; garbage is at most half of the keys plus GARBAGE_MAX, or the index is dropped and rebuilt.
"""

import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import pairwise
from operator import itemgetter
from typing import Any

from sortedcontainers import SortedList  # type: ignore[import-untyped]

from onelog.projections.codec import U64
from onelog.projections.deadlines import Deadlines
from onelog.projections.kv.changes import Before, Change, Changes
from onelog.projections.kv.record import (
    BOUND,
    COUNT_AT,
    EXPIRED,
    EXPIRES,
    FLAGS_AT,
    HEAD,
    ITEM,
    KIND_DELETED,
    KIND_EXPIRED,
    KIND_VALUE,
    LEASED,
    NODE_OVERHEAD,
    OBJECT_SIZE,
    OUTSIDE,
    RING_HEAD_SIZE,
    TOMBSTONE,
    TRAILER,
    TRIMMED,
    Items,
    Record,
    Values,
    Version,
    check_ring,
    encode_reference,
    encode_version,
    find_newest,
    fits,
    newest_at,
    read_oldest,
    read_reference,
    read_version,
    read_versions,
    ring_size,
    to_record,
    to_ring,
)
from onelog.projections.limits import INLINE_SIZE_MAX, U64_MAX
from onelog.projections.namespaces import Namespace
from onelog.projections.state_hash import item_hash
from onelog.projections.undo import UndoLog

LEASE_SIZE = 600  # bytes per lease: object, set, table slots, heap entry
LEASE_KEY_SIZE = 48  # bytes per attached key: its slot in the set


@dataclass(slots=True)
class Lease:
    """One lease."""

    ttl_ns: int
    deadline_ns: int
    keys: set[bytes] = field(default_factory=set)


class Leases:
    """All leases of a namespace by id."""

    __slots__ = ("_by_id", "_items", "_undo", "attached_count", "deadlines", "hash_total")

    def __init__(self, items: Items, undo: UndoLog) -> None:
        self._items = items
        self._undo = undo
        self._by_id: dict[int, Lease] = {}
        self.deadlines: Deadlines[int] = Deadlines()
        self.hash_total = 0
        self.attached_count = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, lease: int) -> Lease | None:
        """Return the lease with that id."""
        return self._by_id.get(lease)

    def ids(self) -> list[int]:
        """Return all ids, ascending."""
        return sorted(self._by_id)

    def add(self, lease: int, ttl_ns: int, deadline_ns: int) -> None:
        """Grant a lease."""
        assert lease not in self._by_id, f"lease {lease} exists"
        self._insert(lease, Lease(ttl_ns, deadline_ns))

    def renew(self, lease: int, deadline_ns: int) -> None:
        """Move the deadline of a lease."""
        held = self._by_id[lease]
        self._undo.note(partial(self.renew, lease, held.deadline_ns))
        before = self._items.lease(lease, held.ttl_ns, held.deadline_ns)
        held.deadline_ns = deadline_ns
        self.hash_total += self._items.lease(lease, held.ttl_ns, deadline_ns) - before
        self.deadlines.schedule(lease, deadline_ns)

    def remove(self, lease: int) -> None:
        """Remove a lease whose keys are deleted already."""
        held = self._by_id.pop(lease)
        assert not held.keys, f"lease {lease} still has {len(held.keys)} keys"
        self.hash_total -= self._items.lease(lease, held.ttl_ns, held.deadline_ns)
        self.deadlines.cancel(lease)
        self._undo.note(partial(self._insert, lease, held))

    def attach(self, lease: int, key: bytes) -> None:
        """Note that the newest version of ``key`` is bound to the lease."""
        self._by_id[lease].keys.add(key)
        self.attached_count += 1

    def detach(self, lease: int, key: bytes) -> None:
        """Note that the newest version of ``key`` is no longer bound to the lease."""
        self._by_id[lease].keys.remove(key)
        self.attached_count -= 1

    def memory(self) -> int:
        """Return the bytes held."""
        return len(self._by_id) * LEASE_SIZE + self.attached_count * LEASE_KEY_SIZE

    def check(self, bound: dict[bytes, int]) -> None:
        """Assert the invariants, given the lease to which each key is bound."""
        total = 0
        attached: dict[bytes, int] = {}
        for lease, held in self._by_id.items():
            total += self._items.lease(lease, held.ttl_ns, held.deadline_ns)
            assert self.deadlines.get(lease) == held.deadline_ns, f"lease {lease} not scheduled"
            attached.update(dict.fromkeys(held.keys, lease))
        assert attached == bound, "leases and keys disagree"
        assert self.attached_count == len(attached)
        assert self.hash_total == total
        assert len(self.deadlines) == len(self._by_id)
        self.deadlines.check()

    def _insert(self, lease: int, held: Lease) -> None:
        self._by_id[lease] = held
        self.hash_total += self._items.lease(lease, held.ttl_ns, held.deadline_ns)
        self.deadlines.schedule(lease, held.deadline_ns)
        self._undo.note(partial(self.remove, lease))


# The sorted index

GARBAGE_MAX = 1_024


class OrderedKeys:
    """Keys of ``records`` in order, merged lazily."""

    __slots__ = ("_garbage_count", "_records", "_sorted", "pending")

    def __init__(self, records: Mapping[bytes, object]) -> None:
        self._records = records
        self._sorted: Any = None  # SortedList[bytes]; the library has no types
        self.pending: list[bytes] | None = None  # None until built; write_versions appends to it
        self._garbage_count = 0

    def add(self, key: bytes) -> None:
        """Note a key that is new in the records."""
        if self.pending is not None:
            self.pending.append(key)

    def removed(self) -> None:
        """Note that a key was removed from the records."""
        if self.pending is None:
            return
        self._garbage_count += 1
        if self._garbage_count > len(self._records) // 2 + GARBAGE_MAX:
            self._sorted = self.pending = None
            self._garbage_count = 0

    def walk(
        self, start: bytes, end: bytes | None, *, reverse: bool = False, end_included: bool = False
    ) -> Iterator[bytes]:
        """Yield the keys from ``start`` to ``end`` (None: the last key), in order.

        The records must not change while the iterator is in use.
        """
        keys = self._merged()
        records = self._records
        for key in keys.irange(start, end, (True, end_included), reverse):
            if key in records:
                yield key

    def memory(self) -> int:
        """Return the memory of the index in bytes, without that of the keys."""
        if self.pending is None:
            return 0
        # The list of sublists costs a pointer per key and some slack at each sublist's end.
        return len(self._sorted) * 9 + sys.getsizeof(self.pending)

    def check(self) -> None:
        """Assert the invariants of this file."""
        if self.pending is None:
            assert self._sorted is None, "keys are pending nowhere"
            return
        known = set(self._sorted) | set(self.pending)
        assert known >= self._records.keys(), "the index misses a key"
        assert len(known) - len(self._records) <= self._garbage_count, "unknown garbage"
        assert all(a < b for a, b in zip(self._sorted, self._sorted[1:], strict=False))

    def _merged(self) -> Any:
        if self.pending is None:
            self._sorted = SortedList(self._records)
            self.pending = []
        elif self.pending:
            fresh = sorted(set(self.pending))
            if self._garbage_count:  # a purged key may have been written again
                fresh = [key for key in fresh if key not in self._sorted]
            self._sorted.update(fresh)
            self.pending.clear()
        return self._sorted


# Store

RECENT_KEY_SIZE = 80  # bytes per key remembered as read: an object of its own
DEADLINE_SIZE = 200  # bytes per scheduled key: table slot, heap entry, two numbers
TOMBSTONE_SIZE = 104  # bytes per entry of the tombstone heap
Found = tuple[bytes, Version]
"""A record, and its newest version, decoded."""

Binding = tuple[int, int, int]
"""Flags of a version besides TRIMMED and OUTSIDE, its expiry time, and its lease; 0: none."""

Write = tuple[int, bytes, bytes, int, Binding | None]
"""A version to be written: its number, its key, its canonical item (record.py), the position of the
value in the item, and its binding; None for a plain value."""

Current = tuple[bytes, int, int]
"""The value of a key, its expiry time, and its lease; 0: none."""

Overwritten = tuple[bytes, bytes | None, bool]
"""What undoes the write of a key: the key, its former record or the version of a ring that was
overwritten, and which of both."""

# Bound once, because name lookups count in the loop over versions.
_unpack_version = struct.Struct("<Q8xB").unpack_from  # version and flags, from a version's start
_unpack_digest = struct.Struct("<8xQ").unpack_from
_unpack_oldest = struct.Struct("<8xQB").unpack_from  # digest and flags
_unpack_size = TRAILER.unpack_from
_pack_head = HEAD.pack
_unpack_head = HEAD.unpack_from
_pack_size = TRAILER.pack
_pack_index = U64.pack  # the first field of a version
_pack_item = ITEM.pack
_join = b"".join
_change = partial(tuple.__new__, Change)  # half the time of ``Change(...)``
_UNBOUND: Binding = (0, 0, 0)
_TRAILER_SIZE = TRAILER.size
_HOLDS = BOUND | OUTSIDE  # a version with such a flag has further items or a value outside
_UNUSUAL = TOMBSTONE | BOUND  # a newest version with such a flag has entries in other tables
_KEY_OVERHEAD = 2 * OBJECT_SIZE
_BYTEARRAYS = {bytearray}
_plain_count = itemgetter(1)  # of a ring: how many slots it has, 0 if they are mixed

PURGE_STEP = 2  # above one, which a delete adds, so that a backlog shrinks


class _Slots(dict[int, Callable[..., None]]):
    """From the size of a version to the function that packs it into a ring."""

    def __missing__(self, size: int) -> Callable[..., None]:
        layout = struct.Struct(f"{HEAD.format}{size - NODE_OVERHEAD}sI")
        assert layout.size == size, (layout.size, size)
        pack = self[size] = layout.pack_into
        return pack


_SLOTS = _Slots()


class Store:
    """The KV state of one namespace."""

    __slots__ = (
        "_tombstones",
        "changes",
        "deadlines",
        "extra_versions",
        "hash_total",
        "items",
        "keys_room",
        "leases",
        "namespace",
        "order",
        "purged_index",
        "recent",
        "records",
        "resident_size",
        "tombstone_count",
        "tombstones_max",
        "undo",
        "value_size_max",
        "values",
        "versions_max",
    )

    def __init__(
        self, namespace: Namespace, values: Values, undo: UndoLog, changes: Changes
    ) -> None:
        self.namespace = namespace
        self.changes = changes
        self.items = Items(namespace.name)
        self.values = values
        self.undo = undo
        self.records: dict[bytes, Record] = {}
        self.order = OrderedKeys(self.records)
        self.deadlines: Deadlines[bytes] = Deadlines()
        self.leases = Leases(self.items, undo)
        self._tombstones: list[tuple[int, bytes]] = []  # heap of (version, key), with garbage
        self.tombstone_count = 0
        self.extra_versions = 0  # versions besides the newest of each key
        self.resident_size = 0
        self.purged_index = namespace.created_index
        self.hash_total = self.items.purged(self.purged_index)
        self.recent: dict[bytes, None] = {}  # recently read keys, spared by eviction
        self.configure(namespace)

    def configure(self, namespace: Namespace) -> None:
        """Apply the limits of the namespace."""
        self.namespace = namespace
        limits = namespace.limits
        self.versions_max = limits.versions_max
        self.value_size_max = limits.value_size_max
        self.tombstones_max = limits.tombstones_max
        self.keys_room = limits.keys_max or U64_MAX  # below it no put can exceed the limit

    @property
    def live_count(self) -> int:
        """The number of keys that exist."""
        return len(self.records) - self.tombstone_count

    @property
    def state_total(self) -> int:
        """The unreduced hash of the store."""
        return self.hash_total + self.leases.hash_total

    def record(self, key: bytes) -> bytes | None:
        """Return all versions of a key, newest first, as a record (record.py)."""
        record = self.records.get(key)
        return record if record is None else to_record(record)

    def find(self, key: bytes) -> Found | None:
        """Return the record and the newest version of a key that exists."""
        kept = self.records.get(key)
        if kept is None:
            return None
        record = find_newest(kept)
        version = read_version(record)
        return None if version.flags & TOMBSTONE else (record, version)

    def value(self, record: Record, version: Version) -> bytes:
        """Return the value of a version, inline or outside."""
        if version.flags & OUTSIDE:
            return self.values.get(*read_reference(record, version))
        return bytes(record[version.value_at : version.value_end])

    def find_version(self, key: bytes) -> int:
        """Return the version of a key, 0 if it does not exist."""
        kept = self.records.get(key)
        if kept is None:
            return 0
        version, flags = _unpack_version(kept, 0 if type(kept) is bytes else newest_at(kept))
        return 0 if flags & TOMBSTONE else version

    def current(self, key: bytes) -> Current | None:
        """Return value, expiry time and lease of a key that exists."""
        kept = self.records.get(key)
        if kept is None:
            return None
        at = 0 if type(kept) is bytes else newest_at(kept)
        _, _, flags, _, size = _unpack_head(kept, at)
        if not flags & ~TRIMMED:
            return bytes(kept[at + HEAD.size : at + size - TRAILER.size]), 0, 0
        if flags & TOMBSTONE:
            return None
        newest = read_version(kept, at)
        return self.value(kept, newest), newest.expires_ns, newest.lease

    def write(
        self, index: int, key: bytes, value: bytes, expires_ns: int = 0, lease: int = 0
    ) -> Write:
        """Prepare the write of a value; ``expires_ns`` and ``lease`` bind it unless they are 0."""
        item = _join((self.items.prefix, _pack_item(KIND_VALUE, len(key)), key, value))
        value_at = len(item) - len(value)
        if not expires_ns and not lease:
            return index, key, item, value_at, None
        flags = (EXPIRES if expires_ns else 0) | (LEASED if lease else 0)
        return index, key, item, value_at, (flags, expires_ns, lease)

    def removal(self, index: int, key: bytes, flags: int = 0) -> Write:
        """Prepare the write of a tombstone over a key that exists; ``flags`` may be EXPIRED."""
        kind = KIND_EXPIRED if flags & EXPIRED else KIND_DELETED
        item = _join((self.items.prefix, _pack_item(kind, len(key)), key))
        return index, key, item, len(item), (TOMBSTONE | flags, 0, 0)

    def remove(self, index: int, keys: Iterable[bytes], flags: int = 0) -> None:
        """Delete keys that exist, each once."""
        writes = (self.removal(index, key, flags) for key in keys)
        self.write_versions(writes, is_described=False, entry=index)

    def write_over(
        self, indexes: Iterable[int], keys: Sequence[bytes], items: Sequence[bytes], value_at: int
    ) -> bool:
        """Overwrite rings in place with plain values, if each key has a ring and all values fit.

        It checks all keys together where ``write_versions`` checks each. A key may come twice only
        with rising indexes. Returns False, having changed nothing, if a value does not fit; a
        value that is too large never fits.
        """
        slots, value_size, find = self.versions_max, len(items[0]) - value_at, self.records.get
        size = value_size + NODE_OVERHEAD
        if type(find(keys[0])) is not bytearray:
            return False
        rings: list[Any] = list(map(find, keys))
        if (
            set(map(type, rings)) != _BYTEARRAYS
            or value_size > self.value_size_max
            or set(map(len, items)) != {len(items[0])}
            or set(map(len, rings)) != {ring_size(size, slots)}
            or set(map(_plain_count, rings)) != {slots}
            or self.changes.notes_all
        ):
            return False
        taken: list[Overwritten] | None = [] if self.undo.active else None
        total, pack_slot, digests = 0, _SLOTS[size], map(item_hash, items, indexes)
        for index, key, ring, item, digest in zip(  # noqa: B905 - repeat has no end
            indexes, keys, rings, items, digests
        ):
            slot = (ring[0] or slots) - 1
            at = slot * size + RING_HEAD_SIZE
            if taken is not None:
                taken.append((key, bytes(ring[at : at + size]), True))
            total += digest - _unpack_digest(ring, at)[0]
            pack_slot(ring, at, index, digest, TRIMMED, slots, size, item[value_at:], size)
            ring[0] = slot
        self._settle(total, taken)
        return True

    def write_versions(
        self, writes: Iterable[Write], *, is_described: bool, entry: int = 0
    ) -> None:
        """Write new versions of keys; each is written before the next is taken from ``writes``.

        ``is_described``: the payload says what the entry writes, so no note for watches is needed.
        ``entry``: the version of all of them, if some key may have that version already.
        """
        records, slots, pending = self.records, self.versions_max, self.order.pending
        taken: list[Overwritten] | None = [] if self.undo.active else None
        is_noted = not is_described or self.changes.notes_all
        own = _pack_index(entry) if entry else b""
        grown = extra = total = 0
        for index, key, item, value_at, binding in writes:
            body, flags = item[value_at:], 0
            if is_noted:
                self._note(index, key, body, binding)
            if binding is not None or len(body) > INLINE_SIZE_MAX:
                body, flags = self._bind(body, binding)
            size = len(body) + NODE_OVERHEAD
            digest = item_hash(item, index)
            kept = records.get(key)
            was = lease = 0  # flags and lease of the version that was the newest
            if type(kept) is bytearray and fits(kept, size, slots, own):
                at, dropped, was, lease = self._next_slot(key, kept, size, flags)
                if taken is not None:
                    taken.append((key, bytes(kept[at : at + size]), True))
                _SLOTS[size](kept, at, index, digest, flags | TRIMMED, slots, size, body, size)
            else:
                record, tail, count, dropped, trimmed = None, b"", 1, 0, 0
                if kept is None:
                    grown += len(key) + _KEY_OVERHEAD
                    if pending is not None:
                        pending.append(key)
                else:
                    record = tail = kept if type(kept) is bytes else to_record(kept)
                    was, count = record[FLAGS_AT], record[COUNT_AT] + 1
                    trimmed = was & TRIMMED
                    grown -= len(record)
                    if was & LEASED:
                        lease = read_version(record).lease
                    if count > slots + 1 or (own and record.startswith(own)):
                        tail, count, trimmed, dropped = self._shorten(key, record, own)
                    elif count > slots:
                        cut = len(record) - _unpack_size(record, len(record) - _TRAILER_SIZE)[0]
                        dropped, old = _unpack_oldest(record, cut)
                        if old & _HOLDS:
                            dropped = self._forget(key, record, read_version(record, cut))
                        if not trimmed:
                            trimmed = TRIMMED
                            dropped -= self.items.trimmed(key)
                        tail, count = record[:cut], slots
                    extra += count - record[COUNT_AT]
                fields = _pack_head(index, digest, flags | trimmed, count, size)
                after = _join((fields, body, _pack_size(size), tail))
                grown += len(after)
                is_even = trimmed and len(after) == size * slots
                records[key] = to_ring(key, after, size, slots) if is_even else after
                if taken is not None:
                    taken.append((key, record, False))
            total += digest - dropped
            if flags or was & _UNUSUAL:
                total += self._follow(key, index, flags, binding, was, lease)
                if flags & TOMBSTONE and self.tombstone_count > self.tombstones_max:
                    self._settle(total, taken)
                    total, taken = 0, None if taken is None else []
                    self._purge()
        self.resident_size += grown
        self.extra_versions += extra
        self._settle(total, taken)

    def rebind(self, key: bytes, index: int, expires_ns: int) -> None:
        """Change when the newest version of a key expires (0: never), without a new version."""
        before = self._peek(key)
        assert before is not None, f"no {key!r}"
        record, newest = before
        flags = newest.flags & ~EXPIRES | (EXPIRES if expires_ns else 0)
        body = record[newest.value_at : newest.value_end]
        node = encode_version(
            newest.version,
            newest.digest,
            flags,
            newest.version_count,
            expires_ns,
            newest.lease,
            body,
        )
        after = node + record[newest.end :], read_version(node)
        change = self.items.binding(key, after[1]) - self.items.binding(key, newest)
        self._set(key, before, after, change)
        if (known := self._before(key)) is not None:
            fields = (self.namespace.name, key, known.value, expires_ns, newest.lease)
            noted = Change(*fields, version=newest.version, before=known)
            self.changes.add(index, noted)

    def note_end(self, index: int) -> None:
        """Note the deletion of all keys: the namespace is deleted."""
        for key in self.order.walk(b"", None):
            if (before := self._before(key)) is not None:
                self.changes.add(index, Change(self.namespace.name, key, None, before=before))

    def undo_writes(self, taken: Sequence[Overwritten], change: int) -> None:
        """Undo writes, and their change of the hash."""
        self.hash_total -= change
        for key, before, is_slot in reversed(taken):
            if is_slot:
                # Even if the ring has become a record since: remove its newest version, and
                # restore the overwritten one as the oldest.
                assert before is not None, f"no version of {key!r}"
                record = self.record(key)
                assert record is not None, f"no {key!r}"
                before = record[len(before) :] + before
            found = None if before is None else (before, read_version(before))
            self._set(key, self._peek(key), found, 0)

    def replace_location(self, key: bytes, record: bytes) -> None:
        """Replace a record by one with the same content whose values were moved (eviction)."""
        assert not self.undo.active, "values do not move during a batch"
        self.resident_size += len(record) - len(to_record(self.records[key]))
        self.records[key] = record

    def restore(self, key: bytes, record: bytes, change: int) -> None:
        """Insert a record that a snapshot held."""
        assert key not in self.records, f"{key!r} is there already"
        self._set(key, None, (record, read_version(record)), change)

    def set_purged(self, purged_index: int) -> None:
        """Set the index from which on an unknown key is known to be absent."""
        self.undo.note(partial(self.set_purged, self.purged_index))
        self.hash_total += self.items.purged(purged_index) - self.items.purged(self.purged_index)
        self.purged_index = purged_index

    def discard_all(self) -> None:
        """Free the spilled values: the namespace is deleted."""
        if self.values.spilled_count:
            for record in self.records.values():
                self._retire_versions(to_record(record))

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind."""
        return {
            "records": self.resident_size,
            "values": self.values.memory(),
            "tables": sys.getsizeof(self.records),
            "recent": sys.getsizeof(self.recent) + len(self.recent) * RECENT_KEY_SIZE,
            "order": self.order.memory(),
            "deadlines": len(self.deadlines) * DEADLINE_SIZE,
            "leases": self.leases.memory(),
            "tombstones": len(self._tombstones) * TOMBSTONE_SIZE,
        }

    def check(self) -> None:
        """Assert the invariants of this file."""
        items = self.items
        total = items.purged(self.purged_index)
        size = extra = tombstones = 0
        bound: dict[bytes, int] = {}
        outside: dict[int, int] = {}
        purgeable = set(self._tombstones)
        for key, kept in self.records.items():
            record = to_record(kept)
            versions = list(read_versions(record))
            newest = versions[0]
            assert newest.version_count == len(versions), f"{key!r} counts its versions wrong"
            assert versions[-1] == read_oldest(record), f"{key!r} has a wrong end"
            assert all(a.version > b.version for a, b in pairwise(versions))
            for version in versions:
                if version.flags & TOMBSTONE:
                    assert version.value_at == version.value_end, f"{key!r}: tombstone with value"
                    assert version.digest == items.tombstone(key, version.version, version.flags)
                else:
                    value = self.value(record, version)
                    assert version.digest == items.value(key, version.version, value)
                total += items.whole(key, version)
                if version.flags & OUTSIDE:
                    value_id, value_size = read_reference(record, version)
                    assert value_id not in outside, f"value {value_id} is referred to twice"
                    outside[value_id] = value_size
            if newest.flags & TRIMMED:
                total += items.trimmed(key)
            if newest.flags & LEASED:
                bound[key] = newest.lease
            expires_ns = newest.expires_ns if newest.flags & EXPIRES else None
            assert self.deadlines.get(key) == expires_ns, f"{key!r} is scheduled wrong"
            if newest.flags & TOMBSTONE:
                tombstones += 1
                assert (newest.version, key) in purgeable, f"{key!r} is never purged"
            extra += len(versions) - 1
            size += len(key) + len(record) + 2 * OBJECT_SIZE
            if isinstance(kept, bytearray):
                check_ring(key, kept)
        assert (self.hash_total, self.resident_size) == (total, size)
        assert (self.extra_versions, self.tombstone_count) == (extra, tombstones)
        assert len(self._tombstones) <= 2 * tombstones + GARBAGE_MAX
        self.deadlines.check()
        self.leases.check(bound)
        self.order.check()
        self.values.check(outside)

    def _settle(self, change: int, taken: Sequence[Overwritten] | None) -> None:
        """Add the change of the hash, and note how to undo the writes."""
        self.hash_total += change
        if taken:
            self.undo.note(partial(self.undo_writes, taken, change))

    def _bind(self, value: bytes, binding: Binding | None) -> tuple[bytes, int]:
        """Return the body of a version, which is what follows its head, and its flags."""
        flags, expires_ns, lease = binding or _UNBOUND
        if len(value) > INLINE_SIZE_MAX:
            value_id = self.values.add(value)
            self.undo.note(partial(self.values.discard, value_id))
            value = encode_reference(value_id, len(value))
            flags |= OUTSIDE
        if flags & LEASED:
            value = _pack_index(lease) + value
        if flags & EXPIRES:
            value = _pack_index(expires_ns) + value
        return value, flags

    def _shorten(self, key: bytes, record: bytes, own: bytes) -> tuple[bytes, int, int, int]:
        """Make room for a version: drop what the same entry wrote, and versions above the limit.

        Return the rest, the number of versions including the new one, the flag TRIMMED, and what
        the dropped ones added to the hash.
        """
        trimmed, count, dropped, end = (
            record[FLAGS_AT] & TRIMMED,
            record[COUNT_AT] + 1,
            0,
            len(record),
        )
        start = 0
        if own and record.startswith(own):
            newest = read_version(record)
            dropped = self._forget(key, record, newest)
            start = newest.end
            count -= 1
        while count > self.versions_max:
            end -= _unpack_size(record, end - TRAILER.size)[0]
            dropped += self._forget(key, record, read_version(record, end))
            count -= 1
            if not trimmed:
                trimmed = TRIMMED
                dropped -= self.items.trimmed(key)
        return record[start:end], count, trimmed, dropped

    def _next_slot(
        self, key: bytes, ring: bytearray, size: int, flags: int
    ) -> tuple[int, int, int, int]:
        """Make the oldest slot of a ring the newest, for a version with these flags.

        Return its position, what the version in it added to the hash, and flags and lease of the
        version that was the newest.
        """
        slot = (ring[0] or ring[2]) - 1
        at = slot * size + RING_HEAD_SIZE
        if not flags and ring[1]:
            ring[0] = slot
            return at, _unpack_digest(ring, at)[0], 0, 0
        first = ring[0] * size + RING_HEAD_SIZE
        was = ring[first + FLAGS_AT]
        lease = read_version(ring, first).lease if was & LEASED else 0
        dropped, oldest = _unpack_oldest(ring, at)
        if oldest & _HOLDS:
            dropped = self._forget(key, ring, read_version(ring, at))
        ring[0], ring[1] = slot, 0
        return at, dropped, was, lease

    def _forget(self, key: bytes, record: Record, version: Version) -> int:
        """Free what a version refers to before it is dropped; return what it added to the hash."""
        self._retire(record, version)
        return self.items.whole(key, version)

    def _follow(
        self,
        key: bytes,
        index: int,
        flags: int,
        binding: Binding | None,
        old_flags: int,
        old_lease: int,
    ) -> int:
        """Update lifetimes, leases and tombstones after a version was written.

        Return what its binding adds to the hash.
        """
        _, expires_ns, lease = binding or _UNBOUND
        if old_flags & TOMBSTONE:
            self.tombstone_count -= 1
        if flags & TOMBSTONE:
            self.tombstone_count += 1
            self._push_tombstone(index, key)
        if flags & EXPIRES:
            self.deadlines.schedule(key, expires_ns)
        elif old_flags & EXPIRES:
            self.deadlines.cancel(key)
        if old_lease != lease:
            if old_lease:
                self.leases.detach(old_lease, key)
            if lease:
                self.leases.attach(lease, key)
        return self.items.bound(key, index, expires_ns, lease) if flags & BOUND else 0

    def _note(self, index: int, key: bytes, value: bytes, binding: Binding | None) -> None:
        """Note a version that is about to be written, for watches."""
        changes, name = self.changes, self.namespace.name
        before = self._before(key) if changes.notes_all else None
        if binding is None:
            changes.add(index, _change((name, key, value, 0, 0, False, 0, before)))
            return
        flags, expires_ns, lease = binding
        noted, expired = None if flags & TOMBSTONE else value, bool(flags & EXPIRED)
        changes.add(index, _change((name, key, noted, expires_ns, lease, expired, 0, before)))

    def _before(self, key: bytes) -> Before | None:
        """Return the state of a key before it changes, if ``notes_all`` is set."""
        if not self.changes.notes_all:
            return None
        found = self.find(key)
        return None if found is None else Before(self.value(*found), found[1].version)

    def _peek(self, key: bytes) -> Found | None:
        record = self.record(key)
        return None if record is None else (record, read_version(record))

    def _set(self, key: bytes, before: Found | None, after: Found | None, change: int) -> None:
        """Replace the record of ``key``, and update everything that is derived from records."""
        self.hash_total += change
        old_flags = old_lease = new_flags = new_lease = 0
        if before is not None:
            record, version = before
            old_flags, old_lease = version.flags, version.lease
            self.resident_size -= len(key) + len(record) + 2 * OBJECT_SIZE
            self.extra_versions -= version.version_count - 1
            if old_flags & TOMBSTONE:
                self.tombstone_count -= 1
        if after is None:
            del self.records[key]
            self.order.removed()
        else:
            record, version = after
            new_flags, new_lease = version.flags, version.lease
            self.records[key] = record
            if before is None:
                self.order.add(key)
            self.resident_size += len(key) + len(record) + 2 * OBJECT_SIZE
            self.extra_versions += version.version_count - 1
            if new_flags & TOMBSTONE:
                self.tombstone_count += 1
                self._push_tombstone(version.version, key)
            if new_flags & EXPIRES:
                self.deadlines.schedule(key, version.expires_ns)
        if old_flags & EXPIRES and not new_flags & EXPIRES:
            self.deadlines.cancel(key)
        if old_lease != new_lease:
            if old_lease:
                self.leases.detach(old_lease, key)
            if new_lease:
                self.leases.attach(new_lease, key)
        if self.undo.active:
            self.undo.note(partial(self._set, key, after, before, -change))

    def _push_tombstone(self, version: int, key: bytes) -> None:
        heappush(self._tombstones, (version, key))
        if len(self._tombstones) > 2 * self.tombstone_count + GARBAGE_MAX:
            # A sorted list is a heap. Rolled back batches may have left duplicates, hence the set.
            self._tombstones = sorted(
                {entry for entry in self._tombstones if self._is_tombstone(*entry)}
            )

    def _is_tombstone(self, version: int, key: bytes) -> bool:
        found = self._peek(key)
        if found is None:
            return False
        newest = found[1]
        return newest.version == version and bool(newest.flags & TOMBSTONE)

    def _purge(self) -> None:
        """Purge the keys that were deleted first, if there are too many."""
        left = PURGE_STEP
        while left and self.tombstone_count > self.tombstones_max:
            version, key = heappop(self._tombstones)
            if not self._is_tombstone(version, key):
                continue
            left -= 1
            before = self._peek(key)
            assert before is not None, f"no {key!r}"
            record, newest = before
            change = -self.items.trimmed(key) if newest.flags & TRIMMED else 0
            for node in read_versions(record):
                change -= self.items.whole(key, node)
            self._retire_versions(record)
            self._set(key, before, None, change)
            self.set_purged(max(version, self.purged_index))

    def _retire_versions(self, record: bytes) -> None:
        for version in read_versions(record):
            self._retire(record, version)

    def _retire(self, record: Record, version: Version) -> None:
        """Free, at the commit, the outside value of a version that is dropped."""
        if version.flags & OUTSIDE:
            value_id, _ = read_reference(record, version)
            self.undo.defer(partial(self.values.discard, value_id))
