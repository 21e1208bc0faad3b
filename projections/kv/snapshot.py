"""The KV section of a snapshot: every namespace, its leases, its keys with all their versions.

docs/payloads.md has the table. Hashes are not saved: loading computes each from what it read, so
that a damaged value cannot keep the hash of the original. Keys are in order, hence equal states
give equal bytes, and a loaded namespace is already sorted.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping

from onelog.projections.codec import U8, U16, U32, U64, SectionReader
from onelog.projections.kv.record import (
    COUNT_AT,
    EXPIRED,
    EXPIRES,
    FLAGS_AT,
    HEAD,
    LEASED,
    NODE_OVERHEAD,
    OBJECT_SIZE,
    OUTSIDE,
    STORED,
    TOMBSTONE,
    TRAILER,
    TRIMMED,
    encode_reference,
    encode_version,
    read_version,
    read_versions,
    to_record,
)
from onelog.projections.kv.store import Store
from onelog.projections.limits import INLINE_SIZE_MAX, KEY_SIZE_MAX, VALUE_SIZE_MAX
from onelog.ual.entry import OWNER_KV

SECTION_VERSION = 1

_LEASE = struct.Struct("<QQQ")  # id, ttl_ns, deadline_ns
_KEY = struct.Struct("<BB")  # trimmed, versions; after the key
_VERSION = struct.Struct("<QBI")  # version, flags, value size
_PLAIN = struct.Struct("<BBQBI")  # _KEY and _VERSION of a key with one plain version


def dump_parts(stores: Mapping[str, Store]) -> Iterator[bytes]:
    """Yield the section in small parts."""
    yield U8.pack(SECTION_VERSION) + U16.pack(len(stores))
    for name in sorted(stores):
        store = stores[name]
        raw_name = name.encode()
        yield U8.pack(len(raw_name)) + raw_name + U64.pack(store.purged_index)
        yield U32.pack(len(store.leases))
        for lease in store.leases.ids():
            held = store.leases.get(lease)
            assert held is not None, f"no lease {lease}"
            yield _LEASE.pack(lease, held.ttl_ns, held.deadline_ns)
        yield U64.pack(len(store.records))
        yield from _dump_keys(store)


def _dump_keys(store: Store) -> Iterator[bytes]:
    records = store.records
    for key in store.order.walk(b"", None):
        record = to_record(records[key])
        key_head = U16.pack(len(key)) + key
        if record[COUNT_AT] == 1 and not record[FLAGS_AT]:
            version, _, _, _, size = HEAD.unpack_from(record)
            head = _PLAIN.pack(0, 1, version, 0, size - NODE_OVERHEAD)
            yield b"".join((key_head, head, record[HEAD.size : -TRAILER.size]))
            continue
        newest = read_version(record)
        trimmed = 1 if newest.flags & TRIMMED else 0
        parts = [key_head, _KEY.pack(trimmed, newest.version_count)]
        for node in read_versions(record):
            value = store.value(record, node)
            parts.append(_VERSION.pack(node.version, node.flags & STORED, len(value)))
            if node.flags & EXPIRES:
                parts.append(U64.pack(node.expires_ns))
            if node.flags & LEASED:
                parts.append(U64.pack(node.lease))
            parts.append(value)
        yield b"".join(parts)


def load_section(chunks: Iterable[bytes], open_store: Callable[[str], Store | None]) -> None:
    """Fill fresh stores from a section; ``open_store`` returns None for an unknown namespace."""
    reader = SectionReader(OWNER_KV, chunks)
    version = reader.number(U8)
    reader.expect(version == SECTION_VERSION, f"section version {version}")
    previous = ""
    for position in range(reader.number(U16)):
        name = reader.text(U8)
        reader.expect(position == 0 or name > previous, "namespaces out of order")
        previous = name
        store = open_store(name)
        if store is None:
            raise reader.corrupt(f"namespace {name!r} is not in the system section")
        store.set_purged(reader.number(U64))
        for _ in range(reader.number(U32)):
            lease, ttl_ns, deadline_ns = reader.fields(_LEASE)
            reader.expect(store.leases.get(lease) is None, f"lease {lease} twice")
            store.leases.add(lease, ttl_ns, deadline_ns)
        _load_keys(reader, store, reader.number(U64))
    reader.finish()


def _load_keys(reader: SectionReader, store: Store, count: int) -> None:
    """Read the keys of one namespace. Plain keys, the majority, skip the steps of bound keys."""
    records = store.records
    hash_value = store.items.value
    take, fields = reader.take, reader.fields
    previous = b""
    hash_sum = size_sum = 0
    for _ in range(count):
        (key_size,) = fields(U16)
        key = take(key_size)
        reader.expect(previous < key and key_size <= KEY_SIZE_MAX, "keys out of order")
        previous = key
        trimmed, version_count = fields(_KEY)
        reader.expect(trimmed <= 1 and version_count, "a key without versions")
        version, flags, size = fields(_VERSION)
        if flags or trimmed or version_count != 1 or size > INLINE_SIZE_MAX:
            _load_key(reader, store, key, (trimmed, version_count), (version, flags, size))
            continue
        value = take(size)
        digest = hash_value(key, version, value)
        size += NODE_OVERHEAD
        records[key] = b"".join((HEAD.pack(version, digest, 0, 1, size), value, TRAILER.pack(size)))
        hash_sum += digest
        size_sum += key_size + size + 2 * OBJECT_SIZE
    store.hash_total += hash_sum
    store.resident_size += size_sum


def _load_key(
    reader: SectionReader,
    store: Store,
    key: bytes,
    shape: tuple[int, int],
    first: tuple[int, int, int],
) -> None:
    """Read a key of any shape; its newest version's head has been read."""
    trimmed, version_count = shape
    items = store.items
    change = items.trimmed(key) if trimmed else 0
    nodes: list[bytes] = []
    previous = 0
    for left in range(version_count, 0, -1):
        version, flags, size = first if not nodes else reader.fields(_VERSION)
        reader.expect(not nodes or version < previous, f"versions of {key!r} out of order")
        reader.expect(not flags & ~STORED and size <= VALUE_SIZE_MAX, f"a bad version of {key!r}")
        previous = version
        expires_ns = reader.number(U64) if flags & EXPIRES else 0
        lease = reader.number(U64) if flags & LEASED else 0
        value = reader.take(size)
        if flags & TOMBSTONE:
            reader.expect(not size and not flags & ~(TOMBSTONE | EXPIRED), "a bad tombstone")
            digest = items.tombstone(key, version, flags)
        else:
            reader.expect(not flags & EXPIRED, "a value that has expired")
            digest = items.value(key, version, value)
        body = value
        if size > INLINE_SIZE_MAX:
            flags |= OUTSIDE
            body = encode_reference(store.values.add(value), size)
        if trimmed and not nodes:
            flags |= TRIMMED
        node = encode_version(version, digest, flags, left, expires_ns, lease, body)
        newest_lease = lease if not nodes else 0
        reader.expect(
            not newest_lease or store.leases.get(newest_lease) is not None,
            f"{key!r} is bound to lease {newest_lease}, which is not there",
        )
        change += items.whole(key, read_version(node))
        nodes.append(node)
    store.restore(key, b"".join(nodes), change)
