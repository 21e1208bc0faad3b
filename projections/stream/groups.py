"""Consumer groups: cursors, members, the assignment of partitions, and pending records.

Per partition a group has *delivered* up to an offset. A delivered record that is not acknowledged
is *pending*. The *committed* cursor of a partition is its first pending record, or the delivered
offset where nothing is pending: everything below it is done. It is published as a key of KV.

Each join, leave and seek begins a new *generation*; commits and deliveries of an older one are
refused. Partitions are assigned in the same apply: a member keeps its partitions as far as the
shares stay even, the rest goes to the members with fewest.

A pending record whose member has left belongs to nobody: any member may claim it. No work is done
for it when the member leaves, because ids of members (indexes) are never reused.
"""

import struct
from collections.abc import Iterator, Sequence
from functools import partial
from heapq import heapify, heapreplace
from typing import Any, NamedTuple

from sortedcontainers import SortedList  # type: ignore[import-untyped]

from onelog.projections.state_hash import item_hash
from onelog.projections.stream.commands import GroupConfig
from onelog.projections.stream.limits import (
    MEMBERS_MAX,
    PARTITION_SHIFT,
    PENDING_MAX,
    STREAM_ID_END,
    partition_id,
)
from onelog.projections.stream.tables import Rows, StreamIndexes

GROUP_SIZE = 3_300  # bytes per group: objects and tables
CURSOR_SIZE = 160  # bytes per partition of a group
MEMBER_SIZE = 345  # bytes per member: rows, deadline, heap entry
PENDING_SIZE = 195  # bytes per pending record: row, key, sorted order

KIND_GROUP = 0x03
KIND_MEMBER = 0x04
KIND_CURSOR = 0x05
KIND_PENDING = 0x06

_GROUP = struct.Struct("<BQQQ")  # kind, stream, group, generation
_MEMBER = struct.Struct("<BQQQQ")  # kind, group, member, session_ns, deadline_ns
_CURSOR = struct.Struct("<BQQQ")  # kind, group, partition, delivered
_PENDING = struct.Struct("<BQQQQHQB")  # kind, group, place, member, since, deliveries, ready, dead


class GroupInfo(NamedTuple):
    """The properties of a group; ``owners`` has a member, or 0, per partition."""

    config: GroupConfig
    generation: int
    owners: tuple[int, ...]


class Member(NamedTuple):
    """A consumer that must send a heartbeat before its deadline."""

    session_ns: int
    deadline_ns: int


class Pending(NamedTuple):
    """A record that was delivered and is not acknowledged.

    ``member`` is 0 after a nack, and then ``ready_ns`` is when it may be claimed. A dead one was
    delivered as often as the group allows, and waits to be moved.
    """

    member: int
    since_ns: int
    deliveries: int
    ready_ns: int = 0
    reason: bytes = b""
    dead: bool = False


class _Members(Rows[int, Member]):
    """Members by id; keeps their deadlines in the indexes."""

    __slots__ = ("_group",)

    def __init__(self, indexes: StreamIndexes, group: "Group") -> None:
        super().__init__(indexes, self._hash)
        self._group = group

    def follow(self, key: int, before: Member | None, value: Member | None) -> None:
        """Schedule the deadline of a member, or cancel it."""
        indexes = self._indexes
        if value is not None:
            indexes.member_deadlines.schedule(key, value.deadline_ns)
            indexes.member_groups[key] = self._group
        elif before is not None:
            indexes.member_deadlines.cancel(key)
            del indexes.member_groups[key]

    def _hash(self, member: int, value: Member) -> int:
        return item_hash(_MEMBER.pack(KIND_MEMBER, self._group.id, member, *value), 0)


class _PendingRows(Rows[int, Pending]):
    """Pending records by place, in order; keeps the dead ones apart."""

    __slots__ = ("_group", "dead")

    rows: Any  # a SortedDict

    def __init__(self, indexes: StreamIndexes, group: "Group") -> None:
        super().__init__(indexes, self._hash, ordered=True)
        self._group = group
        self.dead: Any = SortedList()

    def follow(self, key: int, before: Pending | None, value: Pending | None) -> None:
        """Update the list of dead records, and the index of groups that have any."""
        was_dead = before is not None and before.dead
        is_dead = value is not None and value.dead
        if is_dead and not was_dead:
            self.dead.add(key)
            self._indexes.dead_groups[self._group.id] = self._group
        elif was_dead and not is_dead:
            self.dead.remove(key)
            if not self.dead:
                del self._indexes.dead_groups[self._group.id]

    def first(self, partition: int) -> int | None:
        """Return the first pending offset of a partition."""
        return next(self.places(partition), None)

    def places(self, partition: int) -> Iterator[int]:
        """Iterate over the pending offsets of a partition."""
        low = partition_id(0, partition)
        high = partition_id(STREAM_ID_END - 1, partition)
        for place in self.rows.irange(low, high):
            yield place & (STREAM_ID_END - 1)

    def _hash(self, place: int, value: Pending) -> int:
        member, since_ns, deliveries, ready_ns, reason, dead = value
        head = _PENDING.pack(
            KIND_PENDING, self._group.id, place, member, since_ns, deliveries, ready_ns, dead
        )
        return item_hash(head + reason, 0)


class Group:
    """One consumer group of one stream."""

    __slots__ = (
        "_indexes",
        "committed",
        "cursors",
        "id",
        "info",
        "members",
        "name",
        "pending",
        "stream_id",
    )

    def __init__(self, indexes: StreamIndexes, stream_id: int, group_id: int, name: str) -> None:
        self._indexes = indexes
        self.id = group_id
        self.name = name
        self.stream_id = stream_id
        self.info: Rows[int, GroupInfo] = Rows(indexes, self._hash_info)  # one row, at 0
        self.members = _Members(indexes, self)
        self.cursors: Rows[int, int] = Rows(indexes, self._hash_cursor)  # delivered, by partition
        self.pending = _PendingRows(indexes, self)
        self.committed: tuple[int, ...] = ()  # follows from cursors and pending

    @property
    def head(self) -> GroupInfo:
        """The properties of the group."""
        return self.info.rows[0]

    def committed_at(self, partition: int) -> int:
        """Compute the committed cursor of a partition."""
        first = self.pending.first(partition)
        delivered = self.cursors.rows[partition]
        return delivered if first is None else min(first, delivered)

    def set_committed(self, committed: tuple[int, ...]) -> None:
        """Replace the committed cursors."""
        if self._indexes.undo.active:
            self._indexes.undo.note(partial(self.set_committed, self.committed))
        self.committed = committed

    def owned(self, member: int) -> list[int]:
        """Return the partitions that a member may consume."""
        head = self.head
        return [p for p, owner in enumerate(head.owners) if owner == member or head.config.shared]

    def tables(self) -> tuple[Rows[int, Any], ...]:
        """Return all tables, which are what is hashed."""
        return (self.info, self.members, self.cursors, self.pending)

    def attach(self) -> None:
        """Count in the hash: the stream exists (again)."""
        for table in self.tables():
            table.attach()
        for member, value in self.members.rows.items():
            self.members.follow(member, None, value)
        if self.pending.dead:
            self._indexes.dead_groups[self.id] = self

    def detach(self) -> None:
        """Stop counting in the hash: the group or its stream is deleted."""
        for table in self.tables():
            table.detach()
        for member, value in self.members.rows.items():
            self.members.follow(member, value, None)
        self._indexes.dead_groups.pop(self.id, None)

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind."""
        return {
            "groups": GROUP_SIZE
            + CURSOR_SIZE * len(self.cursors)
            + MEMBER_SIZE * len(self.members),
            "pending": PENDING_SIZE * len(self.pending),
        }

    def check(self, first_offsets: Sequence[int]) -> None:
        """Assert the invariants of this file; the offsets are the first ones kept."""
        indexes, head = self._indexes, self.head
        for table in self.tables():
            table.check()
        partitions = range(len(head.owners))
        assert list(self.cursors) == list(partitions)
        assert self.committed == tuple(map(self.committed_at, partitions))
        assert len(self.members) <= MEMBERS_MAX
        assert len(self.pending) <= PENDING_MAX
        for member, value in self.members.rows.items():
            assert indexes.member_groups.get(member) is self
            assert indexes.member_deadlines.get(member) == value.deadline_ns
        if self.members.rows:
            shares = [head.owners.count(member) for member in self.members]
            assert sum(shares) == len(head.owners), "a partition is owned by nobody"
            assert max(shares) - min(shares) <= 1, f"uneven shares {shares}"
        else:
            assert not any(head.owners), "partitions of members that are gone"
        dead = [place for place, pending in self.pending.rows.items() if pending.dead]
        assert list(self.pending.dead) == dead
        assert (indexes.dead_groups.get(self.id) is self) == bool(dead)
        for place in self.pending.rows:
            partition, offset = split_place(place)
            # A seek to a trimmed offset keeps the dead records before it: they are not redelivered.
            end = max(self.cursors.rows[partition], first_offsets[partition])
            assert offset < end, "pending, but not delivered"

    def _hash_info(self, _: int, info: GroupInfo) -> int:
        head = _GROUP.pack(KIND_GROUP, self.stream_id, self.id, info.generation)
        owners = struct.pack(f"<{len(info.owners)}Q", *info.owners)
        return item_hash(head + owners + info.config.encode() + self.name.encode(), 0)

    def _hash_cursor(self, partition: int, delivered: int) -> int:
        return item_hash(_CURSOR.pack(KIND_CURSOR, self.id, partition, delivered), 0)


def split_place(place: int) -> tuple[int, int]:
    """Return partition and offset of the key of a pending record."""
    return place >> PARTITION_SHIFT, place & (STREAM_ID_END - 1)


def assign(owners: tuple[int, ...], members: list[int]) -> tuple[int, ...]:
    """Assign partitions to members: even shares, and as few moves as these allow.

    ``members`` ascend. Partitions are visited in order, so that every replica assigns the same.
    """
    if not members:
        return (0,) * len(owners)
    share, extra = divmod(len(owners), len(members))
    counts = dict.fromkeys(members, 0)
    assigned = [0] * len(owners)
    for partition, owner in enumerate(owners):
        if owner not in counts or counts[owner] > share or (counts[owner] == share and not extra):
            continue
        if counts[owner] == share:
            extra -= 1
        counts[owner] += 1
        assigned[partition] = owner
    fewest = [(count, member) for member, count in counts.items()]
    heapify(fewest)
    for partition, owner in enumerate(assigned):
        if not owner:
            count, member = fewest[0]
            heapreplace(fewest, (count + 1, member))
            assigned[partition] = member
    return tuple(assigned)
