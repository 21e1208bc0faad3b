"""What each entry of a range did to keys and messages, with their previous state: by replay.

A state right before the range moves forward entry by entry (``PastState.steps``). After each entry
that took effect, the notes of its projection (``projections/kv/changes.py``,
``projections/queue/changes.py``) say what it did; they are read and reset at once, so that none is
evicted. Refused entries and refused batches leave no notes.

Keys: every version that was written, and every new lifetime; the keys of a namespace that is
deleted are deleted one by one. ``previous`` is what the key was right before the entry, also
inside of a batch.

Messages: one event for each message. Besides the kinds that watchers get (``Kind``):

* a message that dies ``arrived`` in the queue of dead letters;
* a redrive is ``moved`` for the queue that the dead letters leave, ``redriven`` for the other one;
* a queue that is deleted with its namespace is ``deleted``.

So the events of a queue add up to its law (docs/queue.md). States are looked up after the entry;
inside of a batch, which changes everything at once, they are those at its end. What a message was
before is remembered for each live one, some 170 bytes.
"""

from collections.abc import Iterator
from typing import NamedTuple

from onelog.projections.codec import read_prefix
from onelog.projections.kv.changes import Change
from onelog.projections.limits import U64_MAX
from onelog.projections.queue.changes import Kind, Note
from onelog.projections.queue.commands import (
    Command,
    QueueConfigure,
    QueueCreate,
    Redrive,
    RedriveStep,
    decode_command,
    find_notes,
)
from onelog.projections.queue.table import (
    DELIVERIES_SHIFT,
    PRIORITY_MASK,
    PRIORITY_SHIFT,
    STATE_MASK,
    Row,
    pack_meta,
)
from onelog.projections.shard_state import Projections
from onelog.projections.system.commands import TYPE_EXPIRE, TYPE_NAMESPACE_DELETE
from onelog.snapshot.past import Entries, PastState
from onelog.ual.entry import OWNER_QUEUE, Entry

PUT, DELETE, EXPIRE, TOUCH = "put", "delete", "expire", "touch"
ARRIVED, MOVED = "arrived", "moved"

_EVENTS = {kind: kind.name.lower() for kind in Kind}
_META_BITS = 32
_SINCE_BITS = 64


class KeyChange(NamedTuple):
    """A change of one key by one entry. Of a key that is deleted, ``value`` is None."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls here
    position: int  # among the changes of the entry
    timestamp_ns: int
    entry_type: int
    transaction: int  # the entry that opens its batch; 0: none
    namespace: str
    key: bytes
    change: str  # put, delete, expire, touch
    value: bytes | None
    version: int | None
    expires_ns: int | None
    lease: int | None
    previous_value: bytes | None  # None: the key did not exist
    previous_version: int | None


class QueueEvent(NamedTuple):
    """An event of one message, or of a queue; then ``message_id`` is None."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls here
    position: int
    timestamp_ns: int
    entry_type: int
    transaction: int
    namespace: str
    queue_id: int
    queue: str
    event: str
    message_id: int | None
    # Of the message in this queue, after and before; None: it is not there.
    state: int | None
    priority: int | None
    deliveries: int | None
    since_ns: int | None
    due_ns: int | None  # the end of a lease or a delay
    previous_state: int | None
    previous_priority: int | None
    previous_deliveries: int | None
    previous_since_ns: int | None


def key_changes(past: PastState, entries: Entries, last_index: int) -> Iterator[KeyChange]:
    """Yield what the entries after a state, up to ``last_index``, did to keys, in order."""
    kv = past.projections.kv
    kv.note_all()
    changes = kv.changes
    for transaction, unit in past.steps(entries, last_index):
        if not changes.size:
            continue
        for entry in unit:
            for position, change in enumerate(changes.get(entry.index)):
                yield _key_change(entry, position, transaction, change)
        changes.reset(past.index + 1)


def _key_change(entry: Entry, position: int, transaction: int, change: Change) -> KeyChange:
    version = change.version or entry.index
    is_gone = change.value is None
    if is_gone:
        kind = EXPIRE if change.expired else DELETE
    else:
        kind = PUT if version == entry.index else TOUCH
    before = change.before
    return KeyChange(
        entry.index,
        position,
        entry.timestamp_ns,
        entry.entry_type,
        transaction,
        change.namespace,
        change.key,
        kind,
        change.value,
        None if is_gone else version,
        change.expires_ns or None,
        change.lease or None,
        None if before is None else before.value,
        None if before is None else before.version,
    )


def queue_events(past: PastState, entries: Entries, last_index: int) -> Iterator[QueueEvent]:
    """Yield what the entries after a state, up to ``last_index``, did to messages, in order."""
    changes = past.projections.queue.changes
    changes.size_max = U64_MAX
    follower = _QueueEvents(past.projections)
    for transaction, unit in past.steps(entries, last_index):
        for entry in unit:
            if entry.owner == OWNER_QUEUE or entry.entry_type == TYPE_EXPIRE:
                notes = find_notes(changes, entry)
                assert notes is not None, f"notes of {entry.index} are gone"
                yield from follower.events(entry, transaction, notes)
            elif entry.entry_type == TYPE_NAMESPACE_DELETE:
                yield from follower.events(entry, transaction, follower.gone())
        changes.reset(past.index + 1)


class _QueueEvents:
    """The queues by id and the messages as they were before the next entry."""

    def __init__(self, projections: Projections) -> None:
        self._queues = projections.queue
        self._names: dict[int, tuple[str, str]] = {}
        # By queue; a lookup in the state would show the end of a batch.
        self._dead_queues: dict[int, int] = {}
        # Of each live message: queue, since when, and what every row has, in one number.
        self._messages: dict[int, int] = {}
        for queue in projections.queue.all_queues():
            self._names[queue.id] = queue.namespace, queue.name
            self._dead_queues[queue.id] = queue.config.dead_queue
            for row in queue.table.rows():
                self._messages[row.id] = _pack(queue.id, row)

    def gone(self) -> list[Note]:
        """Return notes that queues were deleted with their namespace."""
        queues = self._queues
        missing = [each for each in sorted(self._names) if queues.queue_by_id(each) is None]
        return [Note(Kind.DELETED, queue_id, []) for queue_id in missing]

    def events(self, entry: Entry, transaction: int, notes: list[Note]) -> Iterator[QueueEvent]:
        """Yield the events of an entry."""
        head = (entry.timestamp_ns, entry.entry_type, transaction)
        position = 0
        for note in notes:
            for queue_id, event, message_id in self._split(entry, note):
                name = self._find_name(queue_id)
                place = (entry.index, position, *head, name[0], queue_id, name[1])
                states = self._states(queue_id, message_id)
                yield QueueEvent(*place, event, message_id, *states)
                position += 1
            if note.kind is Kind.DELETED:
                self._forget(note.queue)

    def _split(self, entry: Entry, note: Note) -> Iterator[tuple[int, str, int | None]]:
        """Yield queue, event and message, one by one."""
        event = _EVENTS[note.kind]
        if note.kind in (Kind.CREATED, Kind.CONFIGURED):
            command = _decode_entry_command(entry)
            assert isinstance(command, QueueCreate | QueueConfigure), command
            self._dead_queues[note.queue] = command.config.dead_queue
        if note.kind is Kind.REDRIVEN:
            command = _decode_entry_command(entry)
            assert isinstance(command, Redrive | RedriveStep), command
            if command.queue == note.queue:
                event = MOVED
        if note.kind <= Kind.RESUMED:
            yield note.queue, event, None
        for message_id in note.ids:
            yield note.queue, event, message_id
            if note.kind is Kind.DEAD:
                yield self._dead_queues[note.queue], ARRIVED, message_id

    def _find_name(self, queue_id: int) -> tuple[str, str]:
        name = self._names.get(queue_id)
        if name is None:
            name = self._queues.find_name(queue_id)
            assert name is not None, f"no queue {queue_id}"
            self._names[queue_id] = name
        return name

    def _is_in(self, message_id: int, queue_id: int) -> bool:
        known = self._messages.get(message_id)
        return known is not None and known >> _META_BITS + _SINCE_BITS == queue_id

    def _states(self, queue_id: int, message_id: int | None) -> tuple[int | None, ...]:
        """Return the present and previous state of a message in a queue; remember the present."""
        before: tuple[int | None, ...] = (None,) * 4
        if message_id is None:
            return (None,) * 9
        if self._is_in(message_id, queue_id):
            before = _unpack(self._messages.pop(message_id))
        queue = self._queues.queue_by_id(queue_id)
        row = None if queue is None else queue.table.get(message_id)
        if row is None:
            return (None,) * 5 + before
        self._messages[message_id] = _pack(queue_id, row)
        after = (row.state, row.priority, row.deliveries, row.since_ns, row.due_ns or None)
        return after + before

    def _forget(self, queue_id: int) -> None:
        del self._names[queue_id]
        del self._dead_queues[queue_id]
        shift = _META_BITS + _SINCE_BITS
        for message_id in [each for each, at in self._messages.items() if at >> shift == queue_id]:
            del self._messages[message_id]


def _decode_entry_command(entry: Entry) -> Command:
    _, reader = read_prefix(entry.plain_payload())
    return decode_command(entry.entry_type & 0xFF, reader)


def _pack(queue_id: int, row: Row) -> int:
    return (queue_id << _SINCE_BITS | row.since_ns) << _META_BITS | pack_meta(row)


def _unpack(packed: int) -> tuple[int, int, int, int]:
    meta = packed & (1 << _META_BITS) - 1
    since_ns = packed >> _META_BITS & (1 << _SINCE_BITS) - 1
    priority = meta >> PRIORITY_SHIFT & PRIORITY_MASK
    return meta & STATE_MASK, priority, meta >> DELIVERIES_SHIFT, since_ns
