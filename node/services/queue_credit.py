"""Which messages streams of ``Consume`` hold, learned from what is applied.

A message counts against its stream's credit from when it is leased until the state says that it is
not leased with that token any more, by whatever way: settled through any call on any node, expired,
purged, its queue deleted. Entries that name messages are looked at for those; after any other that
may end leases, everything that is held in the shard is.

Invariant: ``held`` of every stream is what it was given and has not lost since, as of the last
group that was looked at.
"""

import asyncio
from collections.abc import Sequence

from onelog.node.edge.shards import Written
from onelog.node.edge.waits import Waits
from onelog.node.replica.driver import ShardDriver
from onelog.projections.codec import U64, read_prefix
from onelog.projections.queue.changes import acked_one
from onelog.projections.queue.commands import (
    OPERATIONS,
    TYPE_ACK,
    Ack,
    Nack,
    Purge,
    QueueDelete,
    Release,
    decode_command,
    named_ids,
)
from onelog.projections.queue.row import LEASED
from onelog.projections.result import Result
from onelog.projections.system.commands import TYPE_EXPIRE, TYPE_NAMESPACE_DELETE
from onelog.ual.entry import OWNER_QUEUE, Entry

_NAMING = frozenset(OWNER_QUEUE << 8 | OPERATIONS[each].number for each in (Ack, Nack, Release))
_SWEEPING = frozenset(
    (
        TYPE_EXPIRE,
        TYPE_NAMESPACE_DELETE,
        *(OWNER_QUEUE << 8 | OPERATIONS[each].number for each in (Purge, QueueDelete)),
    )
)


class Held:
    """What one stream holds: messages and the tokens of their leases, and a lease on its way."""

    __slots__ = ("by_id", "queue_id", "writing")

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.by_id: dict[int, int] = {}
        self.writing: asyncio.Future[Written] | None = None

    def __len__(self) -> int:
        return len(self.by_id)


class Credit:
    """What the streams of one shard hold. Everything happens on the loop."""

    def __init__(self, driver: ShardDriver, waits: Waits) -> None:
        self._shard = driver.shard
        self._waits = waits
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, set[Held]] = {}  # by queue
        self._entries: list[Entry] = []
        self._is_sweep_due = False
        self._is_scheduled = False

    def __len__(self) -> int:
        """Return how many streams there are."""
        return sum(map(len, self._streams.values()))

    def open(self, queue_id: int) -> Held:
        """Begin to follow what a stream holds."""
        if not self._streams:
            self._shard.listeners.append(self._on_applied)
        held = Held(queue_id)
        self._streams.setdefault(queue_id, set()).add(held)
        return held

    def close(self, held: Held) -> None:
        """Follow it no more."""
        streams = self._streams[held.queue_id]
        streams.discard(held)
        if not streams:
            del self._streams[held.queue_id]
        if not self._streams:
            self._shard.listeners.remove(self._on_applied)
            self._entries.clear()

    def _on_applied(self, entries: list[Entry], _results: list[Result]) -> None:
        """Take what matters of a group; the work is done later, outside of Raft's."""
        for entry in entries:
            if entry.entry_type in _NAMING:
                self._entries.append(entry)
            elif entry.entry_type in _SWEEPING:
                self._is_sweep_due = True
        if (self._entries or self._is_sweep_due) and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_scheduled = False
        entries, self._entries = self._entries, []
        if self._is_sweep_due:
            self._is_sweep_due = False
            for streams in self._streams.values():
                for held in streams:
                    self._drop(held, list(held.by_id))
        else:
            for entry in entries:
                self._look_at(entry)
        self._waits.look_soon()

    def _look_at(self, entry: Entry) -> None:
        payload = entry.plain_payload()
        if entry.entry_type == TYPE_ACK:  # most of all, and most name one message
            one = acked_one(payload)
            if one is not None:
                queue_id, message_id = one
                for held in self._streams.get(queue_id, ()):
                    self._drop(held, (message_id,))
                return
        _, reader = read_prefix(payload)
        start = reader.position
        queue_id = reader.number(U64)
        streams = self._streams.get(queue_id)
        if streams is None:
            return
        reader.position = start
        ids = named_ids(decode_command(entry.entry_type & 0xFF, reader))
        for held in streams:
            self._drop(held, ids)

    def _drop(self, held: Held, ids: Sequence[int]) -> None:
        """Forget those of the messages that are not leased to the stream any more."""
        queue = self._shard.projections.queue.queue_by_id(held.queue_id)
        by_id = held.by_id
        for message_id in ids:
            token = by_id.get(message_id)
            if token is None:
                continue
            row = None if queue is None else queue.table.get(message_id)
            if row is None or row.state != LEASED or row.token != token:
                del by_id[message_id]
