"""Reading keys: now, or as of an index, without the log.

A read as of an index returns exactly what a read would have returned when that entry had just been
applied, or refuses with COMPACTED and the first index that can be read: never a wrong answer.
A key's record holds its versions. Before its oldest version nothing is known if older ones were
dropped (TRIMMED); otherwise the key was absent, back to the namespace's ``purged_index``.

A read of the past shows the lifetime and lease that were last set for that version. Each entry of
a batch has its own index, so a read as of an index inside a batch sees the part up to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onelog.projections.kv.commands import prefix_end
from onelog.projections.kv.record import (
    EXPIRED,
    EXPIRES,
    LEASED,
    TOMBSTONE,
    TRIMMED,
    Version,
    find_newest,
    read_oldest,
    read_version,
    read_versions,
)
from onelog.projections.kv.store import Store
from onelog.projections.limits import RECENT_KEYS_MAX, SCAN_KEYS_MAX, SCAN_SIZE_MAX
from onelog.projections.projection import Position
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as a read finds it."""

    key: bytes
    value: bytes
    version: int
    expires_ns: int | None = None
    lease: int | None = None


@dataclass(frozen=True, slots=True)
class PastVersion:
    """One version in a key's history; ``value`` is None where the key was deleted."""

    version: int
    value: bytes | None
    expired: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """Versions of a key, newest first; nothing is known of the time before ``complete_from``."""

    versions: tuple[PastVersion, ...]
    complete_from: int


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a scan; ``next_key`` is the token to continue with, None at the end."""

    items: tuple[KeyValue, ...]
    next_key: bytes | None


@dataclass(frozen=True, slots=True)
class Range:
    """Keys from ``start`` to before ``end`` (None: to the last one)."""

    start: bytes = b""
    end: bytes | None = None

    @classmethod
    def prefix(cls, prefix: bytes) -> "Range":
        """Return the range of all keys that start with ``prefix``."""
        return cls(prefix, prefix_end(prefix))


class KvReads:
    """The reads of the KV projection, which inherits from this."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._stores: dict[str, Store] = {}

    @property
    def stores(self) -> Mapping[str, Store]:
        """The stores by namespace, for checks and snapshots."""
        return self._stores

    def get(
        self, namespace: str, key: bytes, as_of: int | None = None
    ) -> KeyValue | Refused | None:
        """Return the key, None if it does not exist."""
        store = self._open(namespace, as_of)
        return store if isinstance(store, Refused) else _read(store, key, as_of)

    def mget(
        self,
        namespace: str,
        keys: Sequence[bytes],
        as_of: int | None = None,
        size_max: int | None = None,
    ) -> list[KeyValue | None] | Refused:
        """Return several keys, in the order asked.

        Stops after the key with which keys and values exceed ``size_max`` bytes.
        """
        if len(keys) > SCAN_KEYS_MAX:
            return Refused(Reason.LIMIT_INVALID, len(keys))
        store = self._open(namespace, as_of)
        if isinstance(store, Refused):
            return store
        items: list[KeyValue | None] = []
        for key in keys:
            item = _read(store, key, as_of)
            if isinstance(item, Refused):
                return item
            items.append(item)
            if size_max is not None and item is not None:
                size_max -= len(item.key) + len(item.value)
                if size_max < 0:
                    break
        return items

    def history(self, namespace: str, key: bytes) -> History | Refused:
        """Return the versions of a key that are kept, newest first."""
        store = self._open(namespace, None)
        if isinstance(store, Refused):
            return store
        record = store.record(key)
        if record is None:
            return History((), store.purged_index)
        versions = []
        for version in read_versions(record):
            gone = version.flags & TOMBSTONE
            value = None if gone else store.value(record, version)
            versions.append(PastVersion(version.version, value, bool(version.flags & EXPIRED)))
        return History(tuple(versions), _complete_from(store, record))

    def scan(
        self,
        namespace: str,
        keys: Range,
        *,
        limit: int,
        reverse: bool = False,
        token: bytes | None = None,
        as_of: int | None = None,
    ) -> Page | Refused:
        """Return up to ``limit`` keys of a range in order; ``token`` is a page's ``next_key``."""
        if not 1 <= limit <= SCAN_KEYS_MAX:
            return Refused(Reason.LIMIT_INVALID, limit)
        store = self._open_range(namespace, as_of)
        if isinstance(store, Refused):
            return store
        items: list[KeyValue] = []
        size = 0
        for visits, key in enumerate(_walk(store, keys, token, reverse=reverse)):
            if len(items) == limit or size >= SCAN_SIZE_MAX or visits == SCAN_KEYS_MAX:
                return Page(tuple(items), key)
            item = _read(store, key, as_of)
            if isinstance(item, Refused):
                return item
            if item is not None:
                items.append(item)
                size += len(key) + len(item.value)
        return Page(tuple(items), None)

    def _open(self, namespace: str, as_of: int | None) -> Store | Refused:
        applied_index = self._position.applied_index
        if as_of is not None and as_of > applied_index:
            return Refused(Reason.INDEX_IN_FUTURE, applied_index)
        return self._stores.get(namespace) or Refused(Reason.NAMESPACE_UNKNOWN)

    def _open_range(self, namespace: str, as_of: int | None) -> Store | Refused:
        store = self._open(namespace, as_of)
        if isinstance(store, Store) and as_of is not None and as_of < store.purged_index:
            # A purged key may have been anywhere in the range.
            return Refused(Reason.COMPACTED, store.purged_index)
        return store


def _walk(store: Store, keys: Range, token: bytes | None, *, reverse: bool) -> Iterator[bytes]:
    start, end = keys.start, keys.end
    if end is not None and end <= start:
        return iter(())
    if token is None:
        return store.order.walk(start, end, reverse=reverse)
    if reverse:
        if end is not None and token >= end:
            return store.order.walk(start, end, reverse=True)
        if token < start:
            return iter(())
        return store.order.walk(start, token, reverse=True, end_included=True)
    token = max(token, start)
    if end is not None and token >= end:
        return iter(())
    return store.order.walk(token, end)


def _find(store: Store, key: bytes, as_of: int | None) -> tuple[bytes, Version] | Refused | None:
    """Return the requested version, and the record that holds it."""
    if as_of is None:
        kept = store.records.get(key)
        if kept is None:
            return None
        record = find_newest(kept)
        version = read_version(record)
        return None if version.flags & TOMBSTONE else (record, version)
    versions = store.record(key)
    if versions is None:
        known_from = store.purged_index
    else:
        for version in read_versions(versions):
            if version.version <= as_of:
                return None if version.flags & TOMBSTONE else (versions, version)
        known_from = _complete_from(store, versions)
    return None if as_of >= known_from else Refused(Reason.COMPACTED, known_from)


def _complete_from(store: Store, record: bytes) -> int:
    if read_version(record).flags & TRIMMED:
        return read_oldest(record).version
    return store.purged_index


def _read(store: Store, key: bytes, as_of: int | None) -> KeyValue | Refused | None:
    found = _find(store, key, as_of)
    if found is None or isinstance(found, Refused):
        return found
    recent = store.recent
    if len(recent) >= RECENT_KEYS_MAX:
        recent.clear()
    recent[key] = None
    record, version = found
    return KeyValue(
        key,
        store.value(record, version),
        version.version,
        version.expires_ns if version.flags & EXPIRES else None,
        version.lease if version.flags & LEASED else None,
    )
