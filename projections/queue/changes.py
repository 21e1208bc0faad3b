"""What recent entries did to messages, for watches. It is a cache, not state.

Most changes can be read from the log: an enqueue itself says which message it added, an ack of one
message which one it removed. Only apply knows which messages a lease got, which of several could be
settled, which became dead letters, and what an expiry, a purge or a redrive touched, so it notes
these here. Nothing here is hashed or saved; a replay makes it again, and ``complete_from`` is the
index from which on nothing is missing.

Entries refer to queues by id, events by name. So the names of the queues that were deleted last are
kept as well.

Entries that were rolled back (a refused batch) may have left notes. They are void in the log, and
readers skip void entries.
"""

import struct
from collections import OrderedDict
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from onelog.projections.codec import FLAG_SESSION, SESSION_SIZE, U64
from onelog.projections.queue.message import decode_leased
from onelog.projections.queue.store import QueueState
from onelog.projections.result import Applied

# Bytes that one shard remembers, and the overhead of each note.
CHANGES_SIZE_MAX = 8 << 20
NOTE_OVERHEAD = 250
NAMES_MAX = 10_000

_ACK_OF_ONE = struct.Struct("<QBHQQ")  # queue, options, count, id, token
TRIM_SHARE = 32  # above the limit, 1/32 of the notes is dropped at once


class Kind(IntEnum):
    """What can happen to a queue and its messages; the numbers are those of the API's events."""

    CREATED = 1
    CONFIGURED = 2
    DELETED = 3
    PAUSED = 4
    RESUMED = 5
    ENQUEUED = 6
    LEASED = 7
    ACKED = 8
    FAILED = 9
    DEAD = 10
    EXPIRED = 11
    CANCELLED = 12
    PURGED = 13
    RELEASED = 14
    REDRIVEN = 15
    LEASE_EXPIRED = 16
    DUE = 17
    EXTENDED = 18
    PRIORITISED = 19


class Note(NamedTuple):
    """What an entry did to messages of one queue."""

    kind: Kind
    queue: int
    ids: list[int]


class QueueChanges:
    """Notes of the newest entries, by index. An entry without a note did what its payload says."""

    __slots__ = ("_by_index", "_gone", "_size", "complete_from", "size_max")

    def __init__(self, size_max: int = CHANGES_SIZE_MAX) -> None:
        # Rising indexes; for a lease of plain messages: its queue and its result. A plain dict
        # finds its oldest key by walking over the slots of deleted ones.
        self._by_index: OrderedDict[int, list[Note] | tuple[int, bytes]] = OrderedDict()
        # Namespace and name by id, oldest first.
        self._gone: OrderedDict[int, tuple[str, str]] = OrderedDict()
        self._size = 0
        self.size_max = size_max
        self.complete_from = 1

    @property
    def size(self) -> int:
        """The bytes held."""
        return self._size

    def add(self, index: int, kind: Kind, queue: int, ids: Sequence[int]) -> None:
        """Note what the entry at ``index`` did; consecutive notes of one kind are joined."""
        notes = self._by_index.get(index)
        if notes is None:
            notes = self._by_index[index] = []
            self._size += NOTE_OVERHEAD
        assert isinstance(notes, list), "a lease does nothing else"
        last = notes[-1] if notes else None
        if last is not None and last.kind is kind and last.queue == queue:
            last.ids.extend(ids)
        elif ids:
            notes.append(Note(kind, queue, list(ids)))
        self._size += U64.size * len(ids)
        self._trim()

    def add_nothing(self, index: int) -> None:
        """Note that the entry did nothing to messages, whatever its payload says."""
        self._by_index[index] = []
        self._size += NOTE_OVERHEAD
        self._trim()

    def add_lease(self, index: int, queue: int, value: bytes) -> None:
        """Note the encoded result of a lease; it is decoded only on demand."""
        self._by_index[index] = queue, value
        self._size += NOTE_OVERHEAD + len(value)
        if self._size > self.size_max:
            self._trim()

    def get(self, index: int) -> list[Note] | None:
        """Return the notes of the entry, in order; None: there is none."""
        notes = self._by_index.get(index)
        if isinstance(notes, tuple):
            queue, value = notes
            leased = decode_leased(Applied(0, value)).messages
            return [Note(Kind.LEASED, queue, [message.id for message in leased])]
        return notes

    def dead_at(self, index: int) -> frozenset[int]:
        """Return the messages that the entry made dead letters, as far as that is known."""
        notes = self.get(index) or ()
        return frozenset(each for note in notes if note.kind is Kind.DEAD for each in note.ids)

    def queue_removed(self, queue: QueueState) -> None:
        """Remember the name of a queue that is deleted."""
        self._gone[queue.id] = queue.namespace, queue.name
        if len(self._gone) > NAMES_MAX:
            self._gone.popitem(last=False)

    def find_name(self, queue: int) -> tuple[str, str] | None:
        """Return namespace and name of a deleted queue."""
        return self._gone.get(queue)

    def reset(self, complete_from: int) -> None:
        """Drop all notes; they are complete from this index on."""
        self._by_index.clear()
        self._gone.clear()
        self._size = 0
        self.complete_from = complete_from

    def _trim(self) -> None:
        if self._size <= self.size_max:
            return
        size, kept_max = self._size, self.size_max - self.size_max // TRIM_SHARE
        pop = self._by_index.popitem
        oldest = 0
        while size > kept_max:
            oldest, notes = pop(last=False)
            if isinstance(notes, tuple):
                size -= NOTE_OVERHEAD + len(notes[1])
            else:
                size -= NOTE_OVERHEAD + U64.size * sum(len(note.ids) for note in notes)
        self._size = size
        self.complete_from = oldest + 1


def acked_one(payload: bytes) -> tuple[int, int] | None:
    """Parse queue and message of an ack of one message; None if the payload may be another.

    Most acks name one message, and this takes a seventh of the time of ``decode_command``.
    """
    at = 3 + payload[2] + (SESSION_SIZE if payload[1] & FLAG_SESSION else 0)
    if len(payload) != at + _ACK_OF_ONE.size:
        return None
    queue, _, count, message_id, _ = _ACK_OF_ONE.unpack_from(payload, at)
    return (queue, message_id) if count == 1 else None
