"""Leases of one namespace: a lifetime shared by many keys.

A lease is granted for a time, kept alive by its holder, and takes its keys with it when it is
revoked or expires. Its id is the index of the entry that granted it. Invariants:

* ``keys`` of a lease are exactly the keys whose newest version is bound to it (the store calls
  ``attach`` and ``detach`` whenever that changes);
* every lease has its deadline scheduled; ``hash_total`` is the sum of the leases' items.

The keys of a lease are a set; whoever goes through them sorts first.
"""

from dataclasses import dataclass, field
from functools import partial

from onelog.projections.deadlines import Deadlines
from onelog.projections.kv.record import Items
from onelog.projections.undo import UndoLog

LEASE_SIZE = 600  # bytes per lease: object, set, table slots, heap entry
LEASE_KEY_SIZE = 48  # bytes per attached key: its slot in the set


@dataclass(slots=True)
class Lease:
    """One lease."""

    ttl_ns: int
    deadline_ns: int
    keys: set[bytes] = field(default_factory=set)


class Leases:
    """All leases of a namespace by id."""

    __slots__ = ("_by_id", "_items", "_undo", "attached_count", "deadlines", "hash_total")

    def __init__(self, items: Items, undo: UndoLog) -> None:
        self._items = items
        self._undo = undo
        self._by_id: dict[int, Lease] = {}
        self.deadlines: Deadlines[int] = Deadlines()
        self.hash_total = 0
        self.attached_count = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, lease: int) -> Lease | None:
        """Return the lease with that id."""
        return self._by_id.get(lease)

    def ids(self) -> list[int]:
        """Return all ids, ascending."""
        return sorted(self._by_id)

    def add(self, lease: int, ttl_ns: int, deadline_ns: int) -> None:
        """Grant a lease."""
        assert lease not in self._by_id, f"lease {lease} exists"
        self._insert(lease, Lease(ttl_ns, deadline_ns))

    def renew(self, lease: int, deadline_ns: int) -> None:
        """Move the deadline of a lease."""
        held = self._by_id[lease]
        self._undo.note(partial(self.renew, lease, held.deadline_ns))
        before = self._items.lease(lease, held.ttl_ns, held.deadline_ns)
        held.deadline_ns = deadline_ns
        self.hash_total += self._items.lease(lease, held.ttl_ns, deadline_ns) - before
        self.deadlines.schedule(lease, deadline_ns)

    def remove(self, lease: int) -> None:
        """Take away a lease whose keys are gone already."""
        held = self._by_id.pop(lease)
        assert not held.keys, f"lease {lease} still has {len(held.keys)} keys"
        self.hash_total -= self._items.lease(lease, held.ttl_ns, held.deadline_ns)
        self.deadlines.cancel(lease)
        self._undo.note(partial(self._insert, lease, held))

    def attach(self, lease: int, key: bytes) -> None:
        """The newest version of ``key`` is bound to the lease now."""
        self._by_id[lease].keys.add(key)
        self.attached_count += 1

    def detach(self, lease: int, key: bytes) -> None:
        """The newest version of ``key`` is no longer bound to the lease."""
        self._by_id[lease].keys.remove(key)
        self.attached_count -= 1

    def memory(self) -> int:
        """Return the bytes held."""
        return len(self._by_id) * LEASE_SIZE + self.attached_count * LEASE_KEY_SIZE

    def check(self, bound: dict[bytes, int]) -> None:
        """Assert the invariants, given the lease to which each key is bound."""
        total = 0
        attached: dict[bytes, int] = {}
        for lease, held in self._by_id.items():
            total += self._items.lease(lease, held.ttl_ns, held.deadline_ns)
            assert self.deadlines.get(lease) == held.deadline_ns, f"lease {lease} not scheduled"
            attached.update(dict.fromkeys(held.keys, lease))
        assert attached == bound, "leases and keys disagree"
        assert self.attached_count == len(attached)
        assert self.hash_total == total
        assert len(self.deadlines) == len(self._by_id)
        self.deadlines.check()

    def _insert(self, lease: int, held: Lease) -> None:
        self._by_id[lease] = held
        self.hash_total += self._items.lease(lease, held.ttl_ns, held.deadline_ns)
        self.deadlines.schedule(lease, held.deadline_ns)
        self._undo.note(partial(self.remove, lease))
