"""What recent entries did to keys, for watches and replays. It is a cache, not state.

Most changes can be read from the log: a put itself says what it wrote. Only apply knows a counter's
new value, which keys a range, a lease or an expiry removed, and which list of a transaction ran, so
it notes these here. Values are referenced, not copied. Nothing here is hashed or saved; a replay
makes it again, and ``complete_from`` is the index from which on nothing is missing.

Entries that were rolled back (a refused batch or transaction) may have left notes. They are void in
the log, and readers skip void entries.

With ``notes_all`` (``KV.note_all``) every change is noted, puts and new lifetimes included, with
the previous value of the key. A replay uses that, and removes the notes after each entry.
"""

from collections import OrderedDict
from typing import NamedTuple

# Bytes of keys and values that one shard remembers, and the overhead of each note.
CHANGES_SIZE_MAX = 8 << 20
CHANGE_OVERHEAD = 250


class Before(NamedTuple):
    """Value and version of a key before it changed."""

    value: bytes
    version: int


class Change(NamedTuple):
    """A version that an entry wrote; ``value`` is None where it deleted the key.

    With ``notes_all`` also a new lifetime of an existing version, which ``version`` names then.
    """

    namespace: str
    key: bytes
    value: bytes | None
    expires_ns: int = 0
    lease: int = 0
    expired: bool = False
    version: int = 0  # 0: the entry wrote it
    before: Before | None = None  # None: the key did not exist, or not ``notes_all``


class Changes:
    """Changes by index, of the newest entries."""

    __slots__ = ("_by_index", "_size", "complete_from", "notes_all", "size_max")

    def __init__(self, size_max: int = CHANGES_SIZE_MAX) -> None:
        # Rising indexes; a plain dict would walk over deleted slots to find the oldest one.
        self._by_index: OrderedDict[int, list[Change]] = OrderedDict()
        self._size = 0
        self.size_max = size_max
        self.complete_from = 1
        self.notes_all = False

    def __len__(self) -> int:
        return len(self._by_index)

    @property
    def size(self) -> int:
        """The bytes that the notes refer to."""
        return self._size

    def add(self, index: int, change: Change) -> None:
        """Note what the entry at ``index`` did; drop the oldest notes above the limit."""
        known = self._by_index.get(index)
        if known is None:
            self._by_index[index] = [change]
        else:
            known.append(change)
        # Key and value by position, which is faster than by name.
        self._size += CHANGE_OVERHEAD + len(change[1]) + len(change[2] or b"")
        while self._size > self.size_max:
            oldest, changes = self._by_index.popitem(last=False)
            for each in changes:
                self._size -= CHANGE_OVERHEAD + len(each[1]) + len(each[2] or b"")
            self.complete_from = oldest + 1

    def get(self, index: int) -> list[Change]:
        """Return the final change of each key by the entry, in the order of first change."""
        changes = self._by_index.get(index)
        if changes is None:
            return []
        if len(changes) == 1:
            return changes
        found: dict[tuple[str, bytes], Change] = {}
        for each in changes:
            first = found.setdefault((each.namespace, each.key), each)
            if first is not each:
                found[each.namespace, each.key] = each._replace(before=first.before)
        return list(found.values())

    def reset(self, complete_from: int) -> None:
        """Drop all notes; they are complete from this index on."""
        self._by_index.clear()
        self._size = 0
        self.complete_from = complete_from
