"""Holds: the log keeps the entries that a named reader has not read yet.

A hold keeps every entry from its index on. Its reader moves it forward as it reads, and releases it
at the end. A reader that disappeared must not fill the disk, so a hold has two limits: a lifetime
since it was last set, and a number of bytes of log. A hold that exceeds one of them is broken: it
keeps nothing, and stays listed until it is released.

The lifetime is checked here, by the time of the entry. Bytes and disks differ between replicas, so
the leader decides about those (node/replica/retention.py) and proposes a break. The break names the
entry that set the hold: if the hold was set again in the meantime, the break is refused.

Invariants: ``hash_total`` is the sum of the items' hashes; ``next_expiry_ns`` is the earliest of
the holds that are not broken; a hold's index is never above the entry that set it.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from onelog.projections.codec import U8, SectionReader
from onelog.projections.limits import HOLD_NAME_SIZE_MAX, HOLDS_MAX, TTL_NS_MAX, U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Outcome, Refused
from onelog.projections.state_hash import item_hash

HOLD_SIZE = 500  # bytes per hold: object, numbers, name, table slot

_KIND_HOLD = b"\x05"
_HOLD = struct.Struct(
    "<"
    "Q"  # created_index
    "Q"  # set_index
    "Q"  # index
    "Q"  # set_ns
    "Q"  # ttl_ns
    "Q"  # bytes_max
    "B"  # cause, 0: not broken
    "Q"  # broken_index
    "Q"  # broken_ns
)
_HOLD_SIZE = 65
assert _HOLD.size == _HOLD_SIZE


class Cause(IntEnum):
    """Why a hold was broken; the numbers are in entries and snapshots."""

    BYTES = 1  # it kept more of the log than its bytes_max
    TIME = 2  # it was not set again within its lifetime
    DISK = 3  # the leader's disk was short of space


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold of one shard."""

    name: str
    created_index: int  # of the entry that created it: its id
    set_index: int  # of the entry that created or moved it last
    index: int  # entries from here on are kept
    set_ns: int  # log time of the entry at ``set_index``
    ttl_ns: int
    bytes_max: int
    cause: Cause | None = None  # None: not broken
    broken_index: int = 0  # of the entry that broke it: up to here everything was kept
    broken_ns: int = 0

    @property
    def expires_ns(self) -> int:
        """The log time at which its lifetime ends."""
        return min(self.set_ns + self.ttl_ns, U64_MAX)


class Holds:
    """All holds of a shard by name."""

    __slots__ = ("_by_name", "hash_total", "next_expiry_ns")

    def __init__(self) -> None:
        self._by_name: dict[str, Hold] = {}
        self.hash_total = 0
        self.next_expiry_ns: int | None = None

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Hold]:
        """Iterate in the order of names."""
        return iter([self._by_name[name] for name in sorted(self._by_name)])

    def get(self, name: str) -> Hold | None:
        """Return the hold called ``name``."""
        return self._by_name.get(name)

    def active(self) -> list[Hold]:
        """Return the holds that are not broken, in the order of names."""
        return [hold for hold in self if hold.cause is None]

    @property
    def broken_count(self) -> int:
        """The number of broken holds."""
        return sum(hold.cause is not None for hold in self._by_name.values())

    def first_index(self) -> int | None:
        """Return the first index that is held, None if nothing is."""
        return min((hold.index for hold in self.active()), default=None)

    def set(
        self,
        name: str,
        index: int,
        ttl_ns: int,
        bytes_max: int,
        at: tuple[int, int],
        *,
        is_move: bool,
    ) -> Outcome:
        """Create a hold, or move it forward, by the entry whose index and time are ``at``."""
        judge = self.moved if is_move else self.created
        made = judge(name, index, ttl_ns, bytes_max, at)
        if isinstance(made, Refused):
            return made
        self._put(made)
        return Applied(made.index)

    def created(
        self, name: str, index: int, ttl_ns: int, bytes_max: int, at: tuple[int, int]
    ) -> Hold | Refused:
        """Return a new hold from ``index`` on (0: from its own entry on); changes nothing."""
        known = self._by_name.get(name)
        if known is not None:
            return Refused(Reason.HOLD_EXISTS, known.index)
        if len(self._by_name) >= HOLDS_MAX:
            return Refused(Reason.HOLDS_FULL, HOLDS_MAX)
        entry_index, timestamp_ns = at
        if index > entry_index:
            return Refused(Reason.INDEX_IN_FUTURE, entry_index - 1)
        if not 1 <= ttl_ns <= TTL_NS_MAX:
            return Refused(Reason.HOLD_LIMIT_INVALID, ttl_ns)
        if not bytes_max:
            return Refused(Reason.HOLD_LIMIT_INVALID, bytes_max)
        index = index or entry_index
        return Hold(name, entry_index, entry_index, index, timestamp_ns, ttl_ns, bytes_max)

    def moved(
        self, name: str, index: int, ttl_ns: int, bytes_max: int, at: tuple[int, int]
    ) -> Hold | Refused:
        """Return the moved hold with a new lifetime; a 0 keeps a field. Changes nothing."""
        known = self._by_name.get(name)
        if known is None:
            return Refused(Reason.HOLD_UNKNOWN)
        if known.cause is not None:
            return Refused(Reason.HOLD_BROKEN, known.broken_index)
        entry_index, timestamp_ns = at
        index = index or known.index
        if index < known.index:
            return Refused(Reason.HOLD_INDEX_INVALID, known.index)
        if index > entry_index:
            return Refused(Reason.INDEX_IN_FUTURE, entry_index - 1)
        if ttl_ns > TTL_NS_MAX:
            return Refused(Reason.HOLD_LIMIT_INVALID, ttl_ns)
        return replace(
            known,
            set_index=entry_index,
            index=index,
            set_ns=timestamp_ns,
            ttl_ns=ttl_ns or known.ttl_ns,
            bytes_max=bytes_max or known.bytes_max,
        )

    def release(self, name: str) -> Outcome:
        """End a hold, broken or not."""
        if name not in self._by_name:
            return Refused(Reason.HOLD_UNKNOWN)
        self._remove(name)
        self._expect_next()
        return APPLIED

    def break_(self, name: str, cause: Cause, set_index: int, at: tuple[int, int]) -> Outcome:
        """Break the hold as the entry at ``set_index`` set it, unless it was set again since."""
        known = self._by_name.get(name)
        if known is None:
            return Refused(Reason.HOLD_UNKNOWN)
        if known.cause is not None:
            return Refused(Reason.HOLD_BROKEN, known.broken_index)
        entry_index, timestamp_ns = at
        is_early = cause is Cause.TIME and timestamp_ns < known.expires_ns
        if set_index != known.set_index or is_early:
            return Refused(Reason.HOLD_BREAK_STALE, known.set_index)
        self._put(replace(known, cause=cause, broken_index=entry_index, broken_ns=timestamp_ns))
        return APPLIED

    def memory(self) -> int:
        """Return the bytes held."""
        return len(self._by_name) * HOLD_SIZE

    def dump(self) -> Iterator[bytes]:
        """Yield the encoded holds for the snapshot section, by name."""
        for hold in self:
            name = hold.name.encode()
            yield U8.pack(len(name)) + name + _encode(hold)

    def load(self, reader: SectionReader, count: int) -> None:
        """Load ``count`` holds of a section."""
        reader.expect(count <= HOLDS_MAX, f"{count} holds")
        previous = ""
        for _ in range(count):
            name = reader.text(U8)
            reader.expect(previous < name, "holds out of order")
            reader.expect(len(name.encode()) <= HOLD_NAME_SIZE_MAX, f"hold {name!r}")
            previous = name
            created, set_at, index, set_ns, ttl_ns, size, cause, *broken = reader.fields(_HOLD)
            reader.expect(cause in (0, *Cause), f"cause {cause} of hold {name!r}")
            why = Cause(cause) if cause else None
            hold = Hold(name, created, set_at, index, set_ns, ttl_ns, size, why, *broken)
            reader.expect(_is_sound(hold), f"hold {name!r}")
            self._put(hold)

    def check(self) -> None:
        """Assert the invariants of this file."""
        assert len(self._by_name) <= HOLDS_MAX, f"{len(self._by_name)} holds"
        assert self.hash_total == sum(map(_hash, self._by_name.values()))
        for name, hold in self._by_name.items():
            assert hold.name == name, f"{hold.name!r} stored as {name!r}"
            assert _is_sound(hold), hold
        active = [hold.expires_ns for hold in self.active()]
        assert self.next_expiry_ns == min(active, default=None)

    def _put(self, hold: Hold) -> None:
        if hold.name in self._by_name:
            self._remove(hold.name)
        self._by_name[hold.name] = hold
        self.hash_total += _hash(hold)
        self._expect_next()

    def _remove(self, name: str) -> None:
        self.hash_total -= _hash(self._by_name.pop(name))

    def _expect_next(self) -> None:
        self.next_expiry_ns = min((hold.expires_ns for hold in self.active()), default=None)


def _is_sound(hold: Hold) -> bool:
    """Return whether entries can have produced this hold."""
    if not 1 <= hold.index <= hold.set_index or hold.created_index > hold.set_index:
        return False
    if not 1 <= hold.ttl_ns <= TTL_NS_MAX or not hold.bytes_max:
        return False
    if hold.cause is None:
        return hold.broken_index == hold.broken_ns == 0
    return hold.broken_index > hold.set_index


def _encode(hold: Hold) -> bytes:
    return _HOLD.pack(
        hold.created_index,
        hold.set_index,
        hold.index,
        hold.set_ns,
        hold.ttl_ns,
        hold.bytes_max,
        hold.cause or 0,
        hold.broken_index,
        hold.broken_ns,
    )


def _hash(hold: Hold) -> int:
    return item_hash(_KIND_HOLD + _encode(hold) + hold.name.encode(), 0)
