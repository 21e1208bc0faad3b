"""The KV projection: versioned keys in namespaces, owner 0x01.

The operations are in commands.py, reads in reads.py, the keys of one namespace in store.py.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count

from onelog.projections.codec import U8, U64, Reader, chunked, encode_sized
from onelog.projections.conditions import Condition
from onelog.projections.errors import BadPayload
from onelog.projections.kv.changes import Changes
from onelog.projections.kv.commands import KV_OPERATIONS, end_lease, execute_span, first_failed
from onelog.projections.kv.eviction import Evictor
from onelog.projections.kv.reads import KvReads
from onelog.projections.kv.record import EXPIRED, EXPIRES, HEAD, Values, find_newest
from onelog.projections.kv.snapshot import dump_parts, load_section
from onelog.projections.kv.store import Store
from onelog.projections.limits import KEYS_RESERVED, U64_MAX
from onelog.projections.namespaces import Namespace
from onelog.projections.projection import Due, Handler, Position, Projection, SpillStore
from onelog.projections.state_hash import reduce_total
from onelog.projections.undo import UndoLog
from onelog.ual.entry import OWNER_KV

# Entry types whose payload says what they write, so apply need not note it for watches.
SELF_DESCRIBING_TYPES = frozenset(
    OWNER_KV << 8 | each.number for each in KV_OPERATIONS if each.is_self_describing
)
EXPIRE_KEY = 1
EXPIRE_LEASE = 2


class KV(KvReads, Projection):
    """The state of all keys."""

    owner = OWNER_KV
    operations = KV_OPERATIONS  # results of some hold values that were read, or a key

    def __init__(self, position: Position, spill: SpillStore | None = None) -> None:
        super().__init__(position)
        self._spill = spill
        self._value_ids = count(1)
        self._undo = UndoLog()
        self._by_prefix: dict[bytes, Store] = {}  # the same stores, by the prefix of a payload
        self._evictor = Evictor(self._stores)
        self.changes = Changes()

    def note_all(self) -> None:
        """Note every change of a key from now on, with its previous value.

        For a replay that reports all changes; the caller removes the notes after each entry.
        """
        self.changes.notes_all = True
        self.changes.size_max = U64_MAX

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each operation."""
        return {
            self.owner << 8 | each.number: partial(execute_span, each, self._by_prefix)
            for each in KV_OPERATIONS
            if each.is_entry
        }

    def put_derived(self, namespace: str, items: Iterable[tuple[bytes, bytes]], index: int) -> None:
        """Write keys for another projection; the limits of the namespace do not apply."""
        store, writes = self._stores[namespace], []
        for key, value in items:
            assert key.startswith(KEYS_RESERVED), key
            writes.append(store.write(index, key, value))
        store.write_versions(writes, entry=index, is_described=False)

    def delete_derived(self, namespace: str, key: bytes, index: int) -> None:
        """Delete a key of another projection, if it exists."""
        assert key.startswith(KEYS_RESERVED), key
        store = self._stores[namespace]
        if store.find_version(key):
            store.write_versions((store.removal(index, key),), entry=index, is_described=False)

    def first_failed(self, namespace: str, conditions: Sequence[Condition]) -> int | None:
        """Return the position of the first condition that does not hold."""
        store = self._stores.get(namespace)
        if store is None:
            return 0 if conditions else None
        return first_failed(store, conditions)

    def namespace_created(self, namespace: Namespace) -> None:
        """Open an empty store."""
        values = Values(self._spill, self._value_ids)
        store = Store(namespace, values, self._undo, self.changes)
        self._stores[namespace.name] = store
        self._by_prefix[store.items.prefix] = store

    def namespace_configured(self, namespace: Namespace) -> None:
        """Apply new limits."""
        self._stores[namespace.name].configure(namespace)

    def namespace_deleted(self, namespace: Namespace) -> None:
        """Drop all keys."""
        store = self._stores.pop(namespace.name)
        del self._by_prefix[store.items.prefix]
        if self.changes.notes_all:
            store.note_end(self._position.applied_index)
        store.discard_all()

    def next_deadline(self) -> int | None:
        """Return the time at which the next key or lease is due."""
        deadlines = [
            first_ns
            for store in self._stores.values()
            for first_ns in (store.deadlines.first(), store.leases.deadlines.first())
            if first_ns is not None
        ]
        return min(deadlines, default=None)

    def due(self, now_ns: int, limit: int) -> list[Due]:
        """Return keys and leases that are due, earliest first."""
        found: list[Due] = []
        for name, store in self._stores.items():
            raw_name = encode_sized(U8, name.encode())
            for deadline_ns, key in store.deadlines.due(now_ns, limit):
                version, *_ = HEAD.unpack_from(find_newest(store.records[key]))
                item = U8.pack(EXPIRE_KEY) + raw_name + U64.pack(version) + key
                found.append(Due(deadline_ns, OWNER_KV, item, 1))
            for deadline_ns, lease in store.leases.deadlines.due(now_ns, limit):
                held = store.leases.get(lease)
                assert held is not None, f"no lease {lease}"
                item = U8.pack(EXPIRE_LEASE) + raw_name + U64.pack(lease)
                found.append(Due(deadline_ns, OWNER_KV, item, 1 + len(held.keys)))
        return sorted(found)[:limit]

    def expire(self, item: bytes, index: int, timestamp_ns: int) -> bool:
        """Expire a key or a lease if it is due; ignore anything else."""
        try:
            reader = Reader(item)
            kind, name, number = reader.number(U8), reader.text(U8), reader.number(U64)
        except BadPayload:
            return False
        store = self._stores.get(name)
        if store is None:
            return False
        if kind == EXPIRE_LEASE and not reader.left:
            deadline_ns = store.leases.deadlines.get(number)
            if deadline_ns is None or deadline_ns > timestamp_ns:
                return False
            end_lease(store, number, index, EXPIRED)
            return True
        if kind != EXPIRE_KEY:
            return False
        key = reader.rest()
        found = store.find(key)
        if found is None:
            return False
        newest = found[1]
        due = newest.flags & EXPIRES and newest.expires_ns <= timestamp_ns
        if not due or newest.version != number:
            return False
        store.remove(index, (key,), EXPIRED)
        return True

    def state_hash(self) -> int:
        """Return the hash of all namespaces' content."""
        return reduce_total(sum(store.state_total for store in self._stores.values()))

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind, over all namespaces."""
        total: dict[str, int] = {"changes": self.changes.size}
        for store in self._stores.values():
            for kind, size in store.memory().items():
                total[kind] = total.get(kind, 0) + size
        return total

    def evict(self, size: int) -> int:
        """Move values to the spill store."""
        assert not self._undo.active, "values do not move during a batch"
        return self._evictor.evict(size)

    def counts(self) -> dict[str, int]:
        """Return the number of objects, by kind."""
        stores = self._stores.values()
        return {
            "keys": sum(store.live_count for store in stores),
            "versions": sum(len(store.records) + store.extra_versions for store in stores),
            "tombstones": sum(store.tombstone_count for store in stores),
            "expiring": sum(len(store.deadlines) for store in stores),
            "leases": sum(len(store.leases) for store in stores),
            "values_spilled": sum(store.values.spilled_count for store in stores),
        }

    def dump(self) -> Iterator[bytes]:
        """Yield the snapshot section."""
        return chunked(dump_parts(self._stores))

    def load(self, chunks: Iterable[bytes]) -> None:
        """Load a section; the namespaces exist already."""
        load_section(chunks, self._stores.get)
        self.changes.reset(self._position.applied_index + 1)

    def check(self) -> None:
        """Assert every invariant."""
        assert not self._undo.active, "a batch is open"
        assert [store.items.prefix for store in self._stores.values()] == list(self._by_prefix)
        for store in self._stores.values():
            store.check()
