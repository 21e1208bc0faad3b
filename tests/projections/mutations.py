"""Mistakes that would break determinism, to be smuggled into a replica by a test.

Each of them is a thing somebody might write. A test of equivalence that does not notice them
proves nothing.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from onelog.projections.kv.record import read_oldest, read_version
from onelog.projections.kv.store import OrderedKeys, Store
from onelog.projections.queue.store import QueueState
from onelog.projections.stream.groups import Group
from onelog.projections.stream.operations import Moment

Mutation = Callable[[pytest.MonkeyPatch], None]


def wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Lifetimes start at the replica's own clock."""
    patch.setattr(
        "onelog.projections.kv.commands.deadline", lambda _, ttl_ns: time.time_ns() + int(ttl_ns)
    )


def unordered_iteration(patch: pytest.MonkeyPatch) -> None:
    """Deleting a range goes through a set, whose order differs between processes."""
    _walk_ranges(patch, set)


def dict_order(patch: pytest.MonkeyPatch) -> None:
    """Deleting a range goes through a dict, whose order is another one after a snapshot."""
    _walk_ranges(patch, list)


def _walk_ranges(
    patch: pytest.MonkeyPatch, arrange: Callable[[Iterable[bytes]], Iterable[bytes]]
) -> None:
    ordered = OrderedKeys.walk

    def walk(self: OrderedKeys, start: bytes, end: bytes | None, **options: Any) -> Iterator[bytes]:
        if options or end is None:  # scans and snapshots are left alone
            return ordered(self, start, end, **options)
        return iter([key for key in arrange(self._records) if start <= key < end])

    patch.setattr(OrderedKeys, "walk", walk)


def builtin_hash(patch: pytest.MonkeyPatch) -> None:
    """Items are hashed with hash(), which every process salts."""

    def item_hash(data: bytes, seed: int) -> int:
        return hash((data, seed)) % 2**64

    patch.setattr("onelog.projections.kv.record.item_hash", item_hash)
    patch.setattr("onelog.projections.kv.store.item_hash", item_hash)


def dropping_eviction(patch: pytest.MonkeyPatch) -> None:
    """Eviction drops the oldest version instead of moving it, and tidies its tracks."""

    def drop(store: Store, key: bytes) -> int:
        record = store.record(key)
        if record is None or read_version(record).version_count == 1:
            return 0
        oldest = read_oldest(record)
        newest = read_version(record)
        shorter = bytearray(record[: oldest.start])
        shorter[17] = newest.version_count - 1
        store._retire(record, oldest)
        store.extra_versions -= 1
        store.hash_total -= store.items.whole(key, oldest)
        store.replace_location(key, bytes(shorter))
        return len(record) - len(shorter)

    patch.setattr("onelog.projections.kv.eviction._move_values", drop)


def queue_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Leases end by the replica's own clock."""
    lease = QueueState.lease

    def by_own_clock(
        queue: QueueState, tokens: Any, deadline_ns: int, passed: Any = ()
    ) -> list[bytes]:
        return lease(queue, tokens, deadline_ns + time.time_ns() % 1_000_003, passed)

    patch.setattr(QueueState, "lease", by_own_clock)


def stream_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Members and pending records live by the replica's own clock."""
    patch.setattr(
        "onelog.projections.stream.projection.Moment",
        lambda index, now_ns, size: Moment(index, now_ns + time.time_ns() % 1_000_003, size),
    )


def stream_half_undo(patch: pytest.MonkeyPatch) -> None:
    """A refused batch leaves the committed cursors of a group where it had put them."""
    patch.setattr(Group, "set_committed", lambda self, cursors: setattr(self, "committed", cursors))


def stream_builtin_hash(patch: pytest.MonkeyPatch) -> None:
    """A record's partition is chosen by hash() of its key."""
    patch.setattr("onelog.projections.stream.commands.crc32c", hash)


def series_builtin_hash(patch: pytest.MonkeyPatch) -> None:
    """Columns are told apart by hash() of a text, which every process salts."""
    patch.setattr(
        "onelog.projections.timeseries.columns.column_seed",
        lambda series_id, field_id: hash(f"{series_id}/{field_id}") % 2**64,
    )


def none(patch: pytest.MonkeyPatch) -> None:
    """No mistake."""


MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        none,
        wall_clock,
        unordered_iteration,
        dict_order,
        builtin_hash,
        dropping_eviction,
        queue_wall_clock,
        stream_builtin_hash,
        stream_wall_clock,
        stream_half_undo,
        series_builtin_hash,
    )
}
