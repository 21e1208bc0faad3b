"""Records: all versions of one key in one bytes object.

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

Why not a tuple or list of versions: containers are seen by the garbage collector. A dict of a
million keys whose values are tuples is walked by every full collection, which doubled the cost of
an overwrite (7.3 against 3.4 times a bare dict put) and paused for 0.3 s. A dict from bytes to
bytes is invisible to it, needs 26 bytes per version instead of 160, and an old record kept aside
is all that undoing a write needs. The price is copying the record on each write, which is why
values above INLINE_SIZE_MAX stand outside (values.py).

Invariants: versions strictly fall from newest to oldest; 1 <= count <= VERSIONS_MAX; a tombstone
has no value, no lifetime and no lease. TRIMMED is right in the newest version only and says that
older ones were dropped, so the record answers only from its oldest version's index on.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from onelog.projections.codec import encode_prefix
from onelog.projections.state_hash import item_hash

TOMBSTONE = 0x01
EXPIRED = 0x02  # a tombstone that an expire entry wrote
EXPIRES = 0x04
LEASED = 0x08
OUTSIDE = 0x10
TRIMMED = 0x40

BOUND = EXPIRES | LEASED
STORED = TOMBSTONE | EXPIRED | BOUND  # what a snapshot says of a version

HEAD = struct.Struct("<QQBBI")
FLAGS_AT = 16
COUNT_AT = 17
TRAILER = struct.Struct("<I")
NODE_OVERHEAD = HEAD.size + TRAILER.size
assert NODE_OVERHEAD == 26
_U64 = struct.Struct("<Q")
_REFERENCE = struct.Struct("<QI")

# Kind bytes of canonical items. A version with a value is hashed as the payload of the plain put
# that would write it (kind 0, its options byte), so that the put path hashes its payload as it is.
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
    """One version as it stands in a record, ``start`` to ``end``."""

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
        """Where the value, or the reference to it, ends."""
        return self.end - TRAILER.size


def read_version(record: bytes | bytearray, start: int = 0) -> Version:
    """Decode the version that starts at ``start``; the newest one unless said otherwise."""
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
    """Return id and size of a value that stands outside."""
    value_id, size = _REFERENCE.unpack_from(record, version.value_at)
    return value_id, size


def encode_reference(value_id: int, size: int) -> bytes:
    """Return what stands in a record in place of a value."""
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
    """Canonical items of one namespace, hashed."""

    __slots__ = ("_trimmed_seed", "prefix")

    def __init__(self, namespace: str) -> None:
        self.prefix = encode_prefix(namespace)
        self._trimmed_seed = self._hash(KIND_TRIMMED, b"", b"", 0)

    def value(self, key: bytes, version: int, value: bytes) -> int:
        """Hash a version that has a value."""
        return self._hash(KIND_VALUE, key, value, version)

    def tombstone(self, key: bytes, version: int, flags: int) -> int:
        """Hash a version that says the key is gone."""
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
        """Return all that a version adds to the total."""
        return version.digest + self.binding(key, version)

    def trimmed(self, key: bytes) -> int:
        """Hash the fact that older versions of the key were dropped.

        The put path needs it: what else belongs into the item is in the seed.
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
