"""Eviction: moving values of the KV projection out of memory, never changing what it holds.

The clock algorithm: a hand goes round the keys and moves values to the spill store. Overwritten
versions are always moved, the newest one unless the key was read since the last round. The hand
keeps its position between calls, and a call visits a bounded number of keys, so it may free less
than it was asked for; the caller calls again.

The hand's position and the recently read keys differ between replicas. That is allowed because
it is not visible: values, versions, hashes and snapshots are the same wherever a value is stored.
"""

from collections.abc import Iterator, Mapping

from onelog.projections.kv.record import (
    OUTSIDE,
    TOMBSTONE,
    encode_reference,
    encode_version,
    read_reference,
    read_versions,
)
from onelog.projections.kv.store import Store
from onelog.projections.limits import EVICT_KEYS_MAX, SPILL_SIZE_MIN

ROUNDS_MAX = 2  # the second round moves what the first one spared


class Evictor:
    """The clock hand over all namespaces."""

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self._stores = stores
        self._hand: Iterator[tuple[Store, bytes]] = iter(())

    def evict(self, size: int) -> int:
        """Free about ``size`` bytes of memory; return the number freed."""
        freed = 0
        rounds = 0
        for _ in range(EVICT_KEYS_MAX):
            if freed >= size:
                break
            place = next(self._hand, None)
            if place is None:
                if rounds == ROUNDS_MAX:
                    break
                rounds += 1
                self._hand = self._go_round()
                continue
            freed += _move_values(*place)
        return freed

    def _go_round(self) -> Iterator[tuple[Store, bytes]]:
        for store in list(self._stores.values()):
            if not store.values.can_spill:
                continue
            for key in list(store.records):
                yield store, key


def _move_values(store: Store, key: bytes) -> int:
    """Move the values of one record out of memory; return the bytes freed."""
    record = store.record(key)
    if record is None:
        return 0
    values = store.values
    spare_newest = key in store.recent
    store.recent.pop(key, None)  # spared once: it must be read again before the next round
    freed = 0
    nodes: list[bytes] = []
    moved: list[int] = []
    try:
        for version in read_versions(record):
            node = record[version.start : version.end]
            size = version.value_end - version.value_at
            if spare_newest and version.start == 0:
                pass
            elif version.flags & OUTSIDE:
                value_id, _ = read_reference(record, version)
                if values.is_resident(value_id):
                    freed += values.move_out(value_id)
            elif size >= SPILL_SIZE_MIN and not version.flags & TOMBSTONE:
                value_id = values.add_spilled(record[version.value_at : version.value_end])
                moved.append(value_id)
                node = encode_version(
                    version.version,
                    version.digest,
                    version.flags | OUTSIDE,
                    version.version_count,
                    version.expires_ns,
                    version.lease,
                    encode_reference(value_id, size),
                )
            nodes.append(node)
    except BaseException:
        # A full disk: the record still holds these values, so the copies must not stay behind.
        for value_id in moved:
            values.discard(value_id)
        raise
    if moved:
        slim = b"".join(nodes)
        store.replace_location(key, slim)
        freed += len(record) - len(slim)
    return freed
