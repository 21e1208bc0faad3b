"""The short way of plain puts, which are most of what a database does.

``run`` is the straight-line form of decode, execute, ``Store.put`` and ``Store._set`` for puts
without options whose keys have nothing bound to them. Whatever is unusual it leaves to the long
way, by ending before it has changed anything. That both ways agree is a test.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import partial

from projections.kv_record import (
    BOUND,
    EXPIRED,
    FLAGS_AT,
    HEAD,
    NODE_OVERHEAD,
    OUTSIDE,
    TOMBSTONE,
    TRAILER,
    TRIMMED,
)
from projections.kv_store import Store
from projections.kv_values import OBJECT_SIZE
from projections.limits import KEY_SIZE_MAX, KEYS_RESERVED
from projections.payload import U64
from projections.result import APPLIED, Applied
from projections.state_hash import item_hash
from projections.undo import UndoLog

# The put path counts its name lookups: these are bound once.
_PUT_HEAD_SIZE = 3
_unpack_put_head = struct.Struct("<BH").unpack  # options, size of the key
_unpack_oldest = struct.Struct("<8xQB").unpack_from  # digest and flags, from a version's start
_unpack_size = TRAILER.unpack_from
_pack_head = HEAD.pack
_pack_size = TRAILER.pack
_pack_version = U64.pack  # what a version begins with
_join = b"".join
_KEY_OVERHEAD = 2 * OBJECT_SIZE
_RESERVED_FIRST = bytes({prefix[0] for prefix in KEYS_RESERVED})
_UNUSUAL_NEWEST = TOMBSTONE | EXPIRED | BOUND
_UNUSUAL_OLDEST = BOUND | OUTSIDE


class PlainPuts:
    """The fast path of puts; ``by_prefix`` finds a store by the prefix that payloads have."""

    __slots__ = ("_by_prefix", "_undo")

    def __init__(self, by_prefix: Mapping[bytes, Store], undo: UndoLog) -> None:
        self._by_prefix = by_prefix
        self._undo = undo

    def __call__(self, index: int, payload: bytes) -> Applied | None:
        """Apply a put that has no options, or return None and change nothing."""
        if len(payload) < 3:
            return None
        done = self.run(index, payload[: payload[2] + 3], (payload,))
        return APPLIED if done else None

    def run(self, index: int, prefix: bytes, payloads: Sequence[bytes]) -> int:
        """Apply puts up to the first that is unusual; return how many (``RunPath``).

        A payload is the canonical item of what it writes, so it is hashed as it stands.
        """
        return self._run(index, 1, prefix, payloads)

    def run_at_once(self, index: int, prefix: bytes, payloads: Sequence[bytes]) -> int:
        """Do the same with puts of one entry; a key that it has written before is unusual."""
        return self._run(index, 0, prefix, payloads)

    def _run(self, index: int, step: int, prefix: bytes, payloads: Sequence[bytes]) -> int:
        store = self._by_prefix.get(prefix)
        if store is None:
            return 0
        body, key_at = len(prefix), len(prefix) + _PUT_HEAD_SIZE
        records, pending = store.records, store.order.pending
        size_max, versions_max = store.inline_size_max, store.versions_max
        taken: list[tuple[bytes, bytes | None, int]] | None = [] if self._undo.active else None
        own_version = b"" if step else _pack_version(index)
        done = grown = extra_versions = total = 0
        # What most have in common with the one before them: the sizes of key and value.
        head, key_size, trailer, trailer_size = b"", 0, b"", 0
        for payload in payloads:
            if payload[body:key_at] != head:
                head = payload[body:key_at]
                key_size = _plain_key_size(head)
            value_at = key_at + key_size
            size = len(payload) - value_at
            if not key_size or not 0 <= size <= size_max:
                break
            if payload[key_at] in _RESERVED_FIRST and payload.startswith(KEYS_RESERVED, key_at):
                break
            key = payload[key_at:value_at]
            record = records.get(key)
            size += NODE_OVERHEAD
            flags = change = 0
            if record is None:
                if len(records) >= store.keys_room:
                    break
                version_count, tail = 1, b""
                grown += size + key_size + _KEY_OVERHEAD
                if pending is not None:
                    pending.append(key)
            else:
                flags, version_count = record[FLAGS_AT], record[FLAGS_AT + 1]
                if flags & _UNUSUAL_NEWEST or (own_version and record.startswith(own_version)):
                    break
                if version_count < versions_max:
                    version_count += 1
                    extra_versions += 1
                    tail = record
                    grown += size
                else:
                    end = len(record)
                    cut = end - _unpack_size(record, end - 4)[0]
                    change, oldest_flags = _unpack_oldest(record, cut)
                    if version_count > versions_max or oldest_flags & _UNUSUAL_OLDEST:
                        break
                    if not flags & TRIMMED:
                        flags = TRIMMED
                        change -= store.items.trimmed(key)
                    tail = record[:cut]
                    grown += size + cut - end
            if size != trailer_size:
                trailer, trailer_size = _pack_size(size), size
            digest = item_hash(payload, index)
            fields = _pack_head(index, digest, flags & TRIMMED, version_count, size)
            records[key] = _join((fields, payload[value_at:], trailer, tail))
            change = digest - change
            total += change
            if taken is not None:
                taken.append((key, record, change))
            index += step
            done += 1
        store.resident_size += grown
        store.extra_versions += extra_versions
        store.hash_total += total
        if taken:
            self._undo.note(partial(store.put_back, taken))
        return done


def _plain_key_size(head: bytes) -> int:
    """Return how long the key of a put without options is; 0 if it is none, or no key."""
    if len(head) < _PUT_HEAD_SIZE:
        return 0
    options, size = _unpack_put_head(head)
    return 0 if options or size > KEY_SIZE_MAX else size
