"""The keys of one namespace: records, their order, their lifetimes, their hash.

Every change goes through ``_set``, which swaps one record for another and keeps all that follows
from it in step. It is its own inverse, and that is how batches are undone. The one exception is
the plain put (kv_plain.py), which repeats the part of ``_set`` that concerns it in straight code,
or writes over a ring (kv_ring.py) in place. What a ring takes more than the record that it stands
for, some 40 bytes, is not counted.

Invariants, all asserted by ``check``:

* ``hash_total`` is the sum of all items: versions, bindings, trimmed marks, ``purged_index``;
* ``resident_size`` is the sum of keys and records with their object headers;
* ``deadlines`` holds exactly the keys whose newest version expires, ``leases`` those it binds;
* ``tombstone_count`` keys have a tombstone as newest version.

Deleted keys keep their past until more than ``tombstones_max`` of them exist; then the one that
was deleted first goes for good, and ``purged_index`` rises to its tombstone's version: from there
on an unknown key is known to be absent, before it nothing can be said (COMPACTED). A delete lets
go of PURGE_STEP keys at most, so a lowered limit is reached by and by.
"""

import sys
from collections.abc import Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import pairwise

from projections.deadlines import Deadlines
from projections.kv_changes import Before, Change, Changes
from projections.kv_leases import Leases
from projections.kv_order import OrderedKeys
from projections.kv_record import (
    BOUND,
    EXPIRED,
    EXPIRES,
    LEASED,
    OUTSIDE,
    TOMBSTONE,
    TRIMMED,
    Items,
    Version,
    encode_reference,
    encode_version,
    read_oldest,
    read_reference,
    read_version,
    read_versions,
)
from projections.kv_ring import Record, check_ring, straight
from projections.kv_values import OBJECT_SIZE, Values
from projections.limits import INLINE_SIZE_MAX, U64_MAX
from projections.namespaces import Namespace
from projections.undo import UndoLog

RECENT_KEY_SIZE = 80  # bytes per key remembered as read: an object of its own
DEADLINE_SIZE = 200  # bytes per scheduled key: table slot, heap entry, two numbers
TOMBSTONE_SIZE = 104  # bytes per entry of the tombstone heap
Found = tuple[bytes, Version]
"""A record and its newest version."""

Taken = tuple[bytes, bytes | None, bool]
"""A key that was put: the record that it had, or the one version of a ring that was written over.
"""

GARBAGE_MAX = 1_024
PURGE_STEP = 2  # more than the one that a delete adds, so that a backlog shrinks


class Store:
    """The KV state of one namespace."""

    __slots__ = (
        "_tombstones",
        "_undo",
        "changes",
        "deadlines",
        "extra_versions",
        "hash_total",
        "inline_size_max",
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
        self._undo = undo
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
        self.recent: dict[bytes, None] = {}  # keys read lately; spared by eviction
        self.configure(namespace)

    def configure(self, namespace: Namespace) -> None:
        """Take over the limits of the namespace."""
        self.namespace = namespace
        limits = namespace.limits
        self.versions_max = limits.versions_max
        self.value_size_max = limits.value_size_max
        self.inline_size_max = min(INLINE_SIZE_MAX, limits.value_size_max)
        self.keys_room = limits.keys_max or U64_MAX  # below it no put can exceed the limit

    @property
    def live_count(self) -> int:
        """How many keys exist now."""
        return len(self.records) - self.tombstone_count

    @property
    def state_total(self) -> int:
        """The unreduced hash of everything in here."""
        return self.hash_total + self.leases.hash_total

    def record(self, key: bytes) -> bytes | None:
        """Return all versions of a key, newest first, as kv_record.py has them."""
        record = self.records.get(key)
        return record if record is None else straight(record)

    def find(self, key: bytes) -> Found | None:
        """Return record and newest version of a key that exists."""
        found = self._peek(key)
        return None if found is None or found[1].flags & TOMBSTONE else found

    def value(self, record: bytes, version: Version) -> bytes:
        """Return the value of a version, from wherever it is."""
        if version.flags & OUTSIDE:
            return self.values.get(*read_reference(record, version))
        return record[version.value_at : version.value_end]

    def put(
        self, key: bytes, index: int, value: bytes, expires_ns: int = 0, lease: int = 0
    ) -> None:
        """Write a version; ``expires_ns`` and ``lease`` bind it unless they are 0."""
        before = self._before(key)
        flags = (EXPIRES if expires_ns else 0) | (LEASED if lease else 0)
        digest = self.items.value(key, index, value)
        body = value
        if len(value) > INLINE_SIZE_MAX:
            value_id = self.values.add(value)
            self._undo.note(partial(self.values.discard, value_id))
            body = encode_reference(value_id, len(value))
            flags |= OUTSIDE
        self._write(key, index, digest, flags, expires_ns, lease, body)
        name = self.namespace.name
        self.changes.add(index, Change(name, key, value, expires_ns, lease, before=before))

    def remove(self, key: bytes, index: int, flags: int = 0) -> None:
        """Write a tombstone over a key that exists; ``flags`` may say EXPIRED."""
        before = self._before(key)
        digest = self.items.tombstone(key, index, flags)
        self._write(key, index, digest, TOMBSTONE | flags, 0, 0, b"")
        name, expired = self.namespace.name, bool(flags & EXPIRED)
        self.changes.add(index, Change(name, key, None, expired=expired, before=before))
        self._purge()

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
        """Note that all keys go: the namespace is deleted."""
        for key in self.order.walk(b"", None):
            if (before := self._before(key)) is not None:
                self.changes.add(index, Change(self.namespace.name, key, None, before=before))

    def put_back(self, taken: Sequence[Taken], change: int) -> None:
        """Take plain puts back, and what all of them did to the hash."""
        self.hash_total -= change
        for key, before, is_slot in reversed(taken):
            if is_slot:
                # Whatever became of the ring since: its newest version goes, the one that was
                # written over comes back as the oldest.
                assert before is not None, f"no version of {key!r}"
                record = self.record(key)
                assert record is not None, f"no {key!r}"
                before = record[len(before) :] + before
            found = None if before is None else (before, read_version(before))
            self._set(key, self._peek(key), found, 0)

    def replace_location(self, key: bytes, record: bytes) -> None:
        """Swap in a record of the same content whose values stand elsewhere (eviction)."""
        assert not self._undo.active, "values do not move during a batch"
        self.resident_size += len(record) - len(straight(self.records[key]))
        self.records[key] = record

    def restore(self, key: bytes, record: bytes, change: int) -> None:
        """Insert a record that a snapshot held."""
        assert key not in self.records, f"{key!r} is there already"
        self._set(key, None, (record, read_version(record)), change)

    def set_purged(self, purged_index: int) -> None:
        """Set the index from which an unknown key is known to be absent."""
        self._undo.note(partial(self.set_purged, self.purged_index))
        self.hash_total += self.items.purged(purged_index) - self.items.purged(self.purged_index)
        self.purged_index = purged_index

    def discard_all(self) -> None:
        """Free what stands in the spill store: the namespace is deleted."""
        if self.values.spilled_count:
            for record in self.records.values():
                self._retire_versions(straight(record))

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
            record = straight(kept)
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
                check_ring(kept)
        assert (self.hash_total, self.resident_size) == (total, size)
        assert (self.extra_versions, self.tombstone_count) == (extra, tombstones)
        assert len(self._tombstones) <= 2 * tombstones + GARBAGE_MAX
        self.deadlines.check()
        self.leases.check(bound)
        self.order.check()
        self.values.check(outside)

    def _write(
        self,
        key: bytes,
        index: int,
        digest: int,
        flags: int,
        expires_ns: int,
        lease: int,
        body: bytes,
    ) -> None:
        """Put a new version before those of the record and drop what is too old."""
        before = self._peek(key)
        tail = b""
        count = 1
        change = digest
        if before is not None:
            tail, newest = before
            assert newest.version <= index, f"version {index} after {newest.version}"
            count += newest.version_count
            trimmed = newest.flags & TRIMMED
            if newest.version == index:  # written before by the same entry: the last one counts
                change -= self.items.whole(key, newest)
                self._retire(tail, newest)
                tail = tail[newest.end :]
                count -= 1
            while count > self.versions_max:
                oldest = read_oldest(tail)
                change -= self.items.whole(key, oldest)
                self._retire(tail, oldest)
                tail = tail[: oldest.start]
                count -= 1
                if not trimmed:
                    trimmed = TRIMMED
                    change += self.items.trimmed(key)
            flags |= trimmed
        node = encode_version(index, digest, flags, count, expires_ns, lease, body)
        version = read_version(node)
        if flags & BOUND:
            change += self.items.binding(key, version)
        self._set(key, before, (node + tail, version), change)

    def _before(self, key: bytes) -> Before | None:
        """Return what a key is before it changes, if somebody asks for that."""
        if not self.changes.notes_all:
            return None
        found = self.find(key)
        return None if found is None else Before(self.value(*found), found[1].version)

    def _peek(self, key: bytes) -> Found | None:
        record = self.record(key)
        return None if record is None else (record, read_version(record))

    def _set(self, key: bytes, before: Found | None, after: Found | None, change: int) -> None:
        """Swap the record of ``key``; everything that follows from records is kept in step."""
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
        if self._undo.active:
            self._undo.note(partial(self._set, key, after, before, -change))

    def _push_tombstone(self, version: int, key: bytes) -> None:
        heappush(self._tombstones, (version, key))
        if len(self._tombstones) > 2 * self.tombstone_count + GARBAGE_MAX:
            # Sorted, so a heap; rolled back batches may have left twins, hence the set.
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
        """Let go of the keys that were deleted first, if there are too many."""
        left = PURGE_STEP
        while left and self.tombstone_count > self.namespace.limits.tombstones_max:
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

    def _retire(self, record: bytes, version: Version) -> None:
        """Free a value outside of a record that is about to be forgotten, at the commit."""
        if version.flags & OUTSIDE:
            value_id, _ = read_reference(record, version)
            self._undo.defer(partial(self.values.discard, value_id))
