"""Records: all versions of one key in one bytes object; rings; and values stored outside.

A record is its versions back to back, newest first. A version in memory:

| size | type | field | meaning |
|---|---|---|---|
| 8 | u64 | version | index of the entry that wrote it |
| 8 | u64 | digest | hash of its item (namespace, key, version, value), see state_hash.py |
| 1 | u8 | flags | below |
| 1 | u8 | count | versions from here to the end; right in the newest only |
| 4 | u32 | size | of all these fields together |
| 8 | u64 | expires_ns | only with EXPIRES |
| 8 | u64 | lease | only with LEASED |
| n | | value | or, with OUTSIDE, a reference: value id u64, value size u32 |
| 4 | u32 | size | again, so that the oldest version is found from the end |

Why not a tuple or list of versions: the garbage collector tracks containers. Every full collection
walks a dict of a million keys whose values are tuples, which doubled the cost of an overwrite (7.3
against 3.4 times a bare dict put) and paused for 0.3 s. The collector does not see a dict from
bytes to bytes. It needs 26 bytes per version instead of 160, and undoing a write needs only the
old record. The price is copying the record on each write, which is why values above
INLINE_SIZE_MAX are stored outside.

Invariants: versions strictly fall from newest to oldest; 1 <= count <= VERSIONS_MAX; a tombstone
has no value, no lifetime and no lease. TRIMMED is right in the newest version only and says that
older ones were dropped, so the record answers only from its oldest version's index on.

A ring is a full record whose versions all have one size. A key that is written again and again has
as many versions as its namespace keeps, and a new version of a record copies all others. In a ring
the new version, if it has the same size, overwrites the oldest in place and nothing is copied:

| size | type | field | meaning |
|---|---|---|---|
| 1 | u8 | newest | slot of the newest version; the older ones follow it and wrap at the end |
| 1 | u8 | plain | the count, or 0 if some version is more than an inline value |
| 1 | u8 | count | number of slots, which is how many versions the namespace keeps |
| n | | slots | versions as in a record, all of the same size |

A ring is a ``bytearray``, any other record is ``bytes``; the garbage collector sees neither.
Invariant: the head of the newest version has TRIMMED and the count. Only ``Store.write_versions``
makes and writes rings; all other code converts with ``to_record``, and replaces whole records.

Measured with 1,000 keys of 16 and values of 100 bytes, eight versions: 1.9 µs for a put of a batch
that copies, 1.0 for one that does not. A server whose 20,000 such keys are in no cache spent 46
percent of its time in the loop that copied; five turns of old and new, ``put_many`` on one node:
6.4 and 4.8 µs of the node's CPU for a put, 129,000 and 163,000 puts/s.

``Values`` holds the values outside their record: large ones, and those in the spill store. A record
refers to such a value by an id that is never reused. The id is a location, not content: it is local
to this process and in no hash and no snapshot. From ``add`` until ``discard`` an id is either
resident (in memory) or spilled. Each namespace has its own ``Values``; they share one sequence of
ids, because they share the spill store.
"""

import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

from onelog.projections.codec import encode_prefix
from onelog.projections.errors import SpillLost
from onelog.projections.limits import KEYS_RESERVED
from onelog.projections.projection import SpillStore
from onelog.projections.state_hash import item_hash

TOMBSTONE = 0x01
EXPIRED = 0x02  # a tombstone that an expire entry wrote
EXPIRES = 0x04
LEASED = 0x08
OUTSIDE = 0x10
TRIMMED = 0x40

BOUND = EXPIRES | LEASED
STORED = TOMBSTONE | EXPIRED | BOUND  # the flags that a snapshot holds

HEAD = struct.Struct("<QQBBI")
FLAGS_AT = 16
COUNT_AT = 17
TRAILER = struct.Struct("<I")
NODE_OVERHEAD = HEAD.size + TRAILER.size
assert NODE_OVERHEAD == 26
_U64 = struct.Struct("<Q")
_REFERENCE = struct.Struct("<QI")

# Kind bytes of canonical items. A version with a value is hashed as the payload of the plain put
# that would write it (kind 0, its options byte), so that a put hashes its payload unchanged.
KIND_VALUE = 0x00
KIND_DELETED = 0xFF
KIND_EXPIRED = 0xFE
KIND_BINDING = 0xFD
KIND_TRIMMED = 0xFC
KIND_LEASE = 0xFB
KIND_PURGED = 0xFA
ITEM = struct.Struct("<BH")  # kind, size of the key
_BINDING = struct.Struct("<QQ")
_pack_item = ITEM.pack
_pack_binding = _BINDING.pack


class Version(NamedTuple):
    """One decoded version, at ``start`` to ``end`` in its record."""

    version: int
    digest: int
    flags: int
    version_count: int
    start: int
    end: int
    expires_ns: int
    lease: int
    value_at: int

    @property
    def value_end(self) -> int:
        """The position where the value, or the reference to it, ends."""
        return self.end - TRAILER.size


def read_version(record: bytes | bytearray, start: int = 0) -> Version:
    """Decode the version that starts at ``start``, by default the newest."""
    version, digest, flags, count, size = HEAD.unpack_from(record, start)
    at = start + HEAD.size
    expires_ns = lease = 0
    if flags & EXPIRES:
        (expires_ns,) = _U64.unpack_from(record, at)
        at += 8
    if flags & LEASED:
        (lease,) = _U64.unpack_from(record, at)
        at += 8
    return Version(version, digest, flags, count, start, start + size, expires_ns, lease, at)


def read_versions(record: bytes) -> Iterator[Version]:
    """Decode all versions, newest first."""
    start = 0
    while start < len(record):
        version = read_version(record, start)
        yield version
        start = version.end


def read_oldest(record: bytes) -> Version:
    """Decode the oldest version."""
    (size,) = TRAILER.unpack_from(record, len(record) - TRAILER.size)
    return read_version(record, len(record) - size)


def read_reference(record: bytes | bytearray, version: Version) -> tuple[int, int]:
    """Return id and size of a value that is stored outside."""
    value_id, size = _REFERENCE.unpack_from(record, version.value_at)
    return value_id, size


def encode_reference(value_id: int, size: int) -> bytes:
    """Return the reference that a record holds instead of a value."""
    return _REFERENCE.pack(value_id, size)


def encode_version(
    version: int, digest: int, flags: int, count: int, expires_ns: int, lease: int, body: bytes
) -> bytes:
    """Return the bytes of one version; ``body`` is its value or a reference."""
    bound = b""
    if flags & EXPIRES:
        bound = _U64.pack(expires_ns)
    if flags & LEASED:
        bound += _U64.pack(lease)
    size = NODE_OVERHEAD + len(bound) + len(body)
    return b"".join(
        (HEAD.pack(version, digest, flags, count, size), bound, body, TRAILER.pack(size))
    )


class Items:
    """Hashes of the canonical items of one namespace."""

    __slots__ = ("_trimmed_seed", "prefix")

    def __init__(self, namespace: str) -> None:
        self.prefix = encode_prefix(namespace)
        self._trimmed_seed = self._hash(KIND_TRIMMED, b"", b"", 0)

    def value(self, key: bytes, version: int, value: bytes) -> int:
        """Hash a version that has a value."""
        return self._hash(KIND_VALUE, key, value, version)

    def tombstone(self, key: bytes, version: int, flags: int) -> int:
        """Hash a tombstone."""
        kind = KIND_EXPIRED if flags & EXPIRED else KIND_DELETED
        return self._hash(kind, key, b"", version)

    def binding(self, key: bytes, version: Version) -> int:
        """Hash lifetime and lease of a version; 0 where it has neither.

        They are an item of their own, so that changing them does not need the value.
        """
        if not version.flags & BOUND:
            return 0
        return self.bound(key, version.version, version.expires_ns, version.lease)

    def bound(self, key: bytes, version: int, expires_ns: int, lease: int) -> int:
        """Hash that a version expires, is bound to a lease, or both."""
        head = self.prefix + _pack_item(KIND_BINDING, len(key))
        return item_hash(head + key + _pack_binding(expires_ns, lease), version)

    def whole(self, key: bytes, version: Version) -> int:
        """Return the sum of all items of a version."""
        return version.digest + self.binding(key, version)

    def trimmed(self, key: bytes) -> int:
        """Hash the fact that older versions of the key were dropped.

        The key alone is hashed, as each put of a full record needs it; the rest is in the seed.
        """
        return item_hash(key, self._trimmed_seed)

    def purged(self, purged_index: int) -> int:
        """Hash the index from which the absence of a key is known."""
        return self._hash(KIND_PURGED, b"", _U64.pack(purged_index), 0)

    def lease(self, lease: int, ttl_ns: int, deadline_ns: int) -> int:
        """Hash a lease."""
        return self._hash(KIND_LEASE, b"", _BINDING.pack(ttl_ns, deadline_ns), lease)

    def _hash(self, kind: int, key: bytes, data: bytes, seed: int) -> int:
        return item_hash(b"".join((self.prefix, ITEM.pack(kind, len(key)), key, data)), seed)


# Rings

Record = bytes | bytearray
"""All versions of a key: a record, or a ring."""

RING_HEAD_SIZE = 3
_SIZE_AT = COUNT_AT + 1
_SIZE_END = _SIZE_AT + TRAILER.size


def to_ring(key: bytes, record: bytes, size: int, count: int) -> Record:
    """Return a full record of ``count`` versions as a ring, if all are of this size.

    Reserved keys have no rings, so a put that finds a ring need not check the key.
    """
    if len(record) != size * count or key.startswith(KEYS_RESERVED):
        return record
    starts, expected = range(0, size * count, size), TRAILER.pack(size)
    if any(record[at + _SIZE_AT : at + _SIZE_END] != expected for at in starts):
        return record
    is_plain = not any(record[at + FLAGS_AT] & ~TRIMMED for at in starts)
    return bytearray((0, count * is_plain, count)) + record


def ring_size(size: int, count: int) -> int:
    """Return the size of a ring of ``count`` versions of this size."""
    return size * count + RING_HEAD_SIZE


def fits(ring: bytearray, size: int, count: int, own: bytes) -> bool:
    """Return whether a version of this size can overwrite the oldest of ``count``.

    ``own``: the version number that the newest must not have, as bytes.
    """
    if len(ring) != size * count + RING_HEAD_SIZE or ring[2] != count:
        return False
    return not own or not ring.startswith(own, RING_HEAD_SIZE + ring[0] * size)


def to_record(record: Record) -> bytes:
    """Return a record or a ring as a record: all versions, newest first."""
    if isinstance(record, bytes):
        return record
    at, _ = _newest(record)
    return bytes(record[at:] + record[RING_HEAD_SIZE:at])


def find_newest(record: Record) -> bytes:
    """Return bytes that begin with the newest version; the others may be missing."""
    if isinstance(record, bytes):
        return record
    at, size = _newest(record)
    return bytes(record[at : at + size])


def newest_at(record: Record) -> int:
    """Return the position of the newest version."""
    return 0 if isinstance(record, bytes) else _newest(record)[0]


def check_ring(key: bytes, ring: bytearray) -> None:
    """Assert the invariants of a ring."""
    assert ring[0] < ring[2], f"slot {ring[0]} of {ring[2]}"
    at, size = _newest(ring)
    again = to_ring(key, to_record(ring), size, ring[2])
    assert isinstance(again, bytearray), "a ring of versions that differ in size"
    assert ring[1] in (0, again[1]), "a ring that is mixed and does not say so"
    assert ring[at + FLAGS_AT] & TRIMMED, "a ring that has dropped nothing"
    assert ring[at + COUNT_AT] == ring[2], "a ring that is not full"


def _newest(ring: bytearray) -> tuple[int, int]:
    """Return the position of the newest version, and the size of each version."""
    size = (len(ring) - RING_HEAD_SIZE) // ring[2]
    return RING_HEAD_SIZE + ring[0] * size, size


# Values

OBJECT_SIZE = 41  # of a bytes object besides its bytes: 33, and 8 that rounding to 16 costs
ID_SIZE = 32  # of the number that is a value's id; its slot in the table is counted with that


class Values:
    """Values by id, in memory or spilled."""

    __slots__ = ("_ids", "_resident", "_spill", "resident_size", "spilled_count")

    def __init__(self, spill: SpillStore | None, ids: Iterator[int]) -> None:
        self._spill = spill
        self._ids = ids
        self._resident: dict[int, bytes] = {}
        self.resident_size = 0
        self.spilled_count = 0

    @property
    def can_spill(self) -> bool:
        """Whether there is a spill store."""
        return self._spill is not None

    def add(self, value: bytes) -> int:
        """Keep a value in memory and return its id."""
        value_id = next(self._ids)
        self._resident[value_id] = value
        self.resident_size += len(value)
        return value_id

    def add_spilled(self, value: bytes) -> int:
        """Put a value straight into the spill store and return its id."""
        assert self._spill is not None, "no spill store"
        value_id = next(self._ids)
        self._spill.put(value_id, value)
        self.spilled_count += 1
        return value_id

    def get(self, value_id: int, size: int) -> bytes:
        """Return a value of ``size`` bytes, from memory or the spill store."""
        value = self._resident.get(value_id)
        if value is None:
            assert self._spill is not None, f"value {value_id} is nowhere"
            value = self._spill.get(value_id)
            if len(value) != size:
                raise SpillLost(value_id, f"{len(value)} bytes instead of {size}")
        assert len(value) == size, f"value {value_id} has {len(value)} bytes, not {size}"
        return value

    def is_resident(self, value_id: int) -> bool:
        """Whether the value is in memory."""
        return value_id in self._resident

    def move_out(self, value_id: int) -> int:
        """Spill a resident value; return the bytes of memory freed."""
        assert self._spill is not None, "no spill store"
        value = self._resident[value_id]
        self._spill.put(value_id, value)
        del self._resident[value_id]
        self.resident_size -= len(value)
        self.spilled_count += 1
        return len(value) + OBJECT_SIZE + ID_SIZE

    def discard(self, value_id: int) -> None:
        """Delete a value that no record refers to any more."""
        value = self._resident.pop(value_id, None)
        if value is not None:
            self.resident_size -= len(value)
            return
        assert self._spill is not None, f"value {value_id} is nowhere"
        self._spill.delete(value_id)
        self.spilled_count -= 1

    def memory(self) -> int:
        """Return the bytes in memory, objects and table included."""
        objects = len(self._resident) * (OBJECT_SIZE + ID_SIZE)
        return self.resident_size + objects + sys.getsizeof(self._resident)

    def check(self, referred: dict[int, int]) -> None:
        """Assert that exactly the ids in ``referred`` (id -> size) exist, with those sizes."""
        assert self.resident_size == sum(map(len, self._resident.values()))
        assert self._resident.keys() <= referred.keys(), "a value that nobody refers to"
        assert self.spilled_count == len(referred) - len(self._resident)
        for value_id, size in referred.items():
            self.get(value_id, size)
