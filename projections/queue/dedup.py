"""The dedup window: ids that producers gave their messages, and which message came first.

It is bounded by time and by count; the oldest id goes first. Whether an id is inside the window is
decided by the timestamp of the entry that asks, so that an id that is too old but still here means
the same as one that is gone. Only an enqueue with a dedup id lets old ones go, a few at a time.

Invariants: ``_order`` names each remembered id once with its message, oldest first, and besides
only pairs that ``_messages`` no longer has; ``hash_total`` is the sum of the remembered ids.
"""

import struct
from collections import deque
from collections.abc import Iterator
from functools import partial

from onelog.projections.limits import U64_MAX
from onelog.projections.queue.limits import DEDUP_TRIM_STEP
from onelog.projections.state_hash import item_hash
from onelog.projections.undo import UndoLog

DEDUP_SIZE = 265  # bytes of an id beside its text: table slot, two numbers, a pair

_ITEM = struct.Struct("<BQQ")
_KIND = 0x02
_SHIFT = 64


class DedupWindow:
    """What one queue remembers; ``seed`` is the queue's id."""

    __slots__ = ("_messages", "_order", "_seed", "_text_size", "_undo", "hash_total")

    def __init__(self, seed: int, undo: UndoLog) -> None:
        self._seed = seed
        self._undo = undo
        self._messages: dict[bytes, int] = {}  # time << 64 | message
        self._order: deque[tuple[bytes, int]] = deque()
        self._text_size = 0
        self.hash_total = 0

    def __len__(self) -> int:
        return len(self._messages)

    def find(self, dedup: bytes, now_ns: int, window_ns: int) -> int | None:
        """Return the message that came first with this id inside the window."""
        packed = self._messages.get(dedup)
        if packed is None or (packed >> _SHIFT) + window_ns <= now_ns:
            return None
        return packed & U64_MAX

    def add(self, dedup: bytes, message_id: int, now_ns: int) -> None:
        """Remember an id that ``find`` does not find."""
        before = self._messages.get(dedup)
        if before is not None:
            self._forget(dedup, before)
        self._messages[dedup] = now_ns << _SHIFT | message_id
        self._text_size += len(dedup)
        self.hash_total += item_hash(_ITEM.pack(_KIND, now_ns, message_id) + dedup, self._seed)
        self._order.append((dedup, message_id))
        if self._undo.active:
            self._undo.note(partial(self._take_back, dedup, before))

    def trim(self, now_ns: int, window_ns: int, count_max: int) -> int:
        """Let a few ids go that are too old or too many; return how many were too many."""
        oldest, message_id = self._order[0] if self._order else (b"", 0)
        packed = self._messages.get(oldest, 0)
        if (
            packed & U64_MAX == message_id
            and (packed >> _SHIFT) + window_ns > now_ns
            and len(self._messages) <= count_max
        ):
            return 0  # as nearly always
        dropped = 0
        for _ in range(DEDUP_TRIM_STEP):
            self._drop_garbage()
            if not self._order:
                break
            dedup, _ = self._order[0]
            packed = self._messages[dedup]
            is_old = (packed >> _SHIFT) + window_ns <= now_ns
            if not is_old and len(self._messages) <= count_max:
                break
            self._order.popleft()
            self._forget(dedup, packed)
            dropped += not is_old
            if self._undo.active:
                self._undo.note(partial(self._put_back, dedup, packed))
        return dropped

    def entries(self) -> Iterator[tuple[bytes, int, int]]:
        """Iterate over (id, message, time), oldest first."""
        for dedup, message_id in self._order:
            packed = self._messages.get(dedup)
            if packed is not None and packed & U64_MAX == message_id:
                yield dedup, message_id, packed >> _SHIFT

    def memory(self) -> int:
        """Return the bytes held."""
        return self._text_size + len(self._order) * DEDUP_SIZE

    def check(self) -> None:
        """Assert the invariants of this file."""
        entries = list(self.entries())
        assert len(entries) == len({dedup for dedup, *_ in entries}) == len(self._messages)
        times = [time_ns for *_, time_ns in entries]
        assert times == sorted(times), "dedup ids out of order"
        total = sum(self._hash(dedup, self._messages[dedup]) for dedup, *_ in entries)
        assert self.hash_total == total, "the hash of the dedup window"
        assert self._text_size == sum(len(dedup) for dedup in self._messages)

    def _remember(self, dedup: bytes, packed: int) -> None:
        self._messages[dedup] = packed
        self._text_size += len(dedup)
        self.hash_total += self._hash(dedup, packed)

    def _forget(self, dedup: bytes, packed: int) -> None:
        del self._messages[dedup]
        self._text_size -= len(dedup)
        self.hash_total -= self._hash(dedup, packed)

    def _take_back(self, dedup: bytes, before: int | None) -> None:
        """Undo ``add``."""
        self._forget(dedup, self._messages[dedup])
        self._order.pop()
        if before is not None:
            self._remember(dedup, before)

    def _put_back(self, dedup: bytes, packed: int) -> None:
        """Undo one step of ``trim``."""
        self._remember(dedup, packed)
        self._order.appendleft((dedup, packed & U64_MAX))

    def _drop_garbage(self) -> None:
        """Drop pairs whose id was remembered anew since: not while they may be needed again."""
        order = self._order
        while order:
            dedup, message_id = order[0]
            packed = self._messages.get(dedup)
            if packed is not None and packed & U64_MAX == message_id:
                return
            order.popleft()
            if self._undo.active:
                self._undo.note(partial(order.appendleft, (dedup, message_id)))

    def _hash(self, dedup: bytes, packed: int) -> int:
        head = _ITEM.pack(_KIND, packed >> _SHIFT, packed & U64_MAX)
        return item_hash(head + dedup, self._seed)
