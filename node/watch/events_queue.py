"""What happened to queues and their messages, as watchers are told.

An entry that took effect did what it says, unless apply has noted otherwise
(``projections/queue/changes.py``). Where the notes are gone and the entry alone does not tell, the
answer is COMPACTED.

A redrive is an event of the queue that the dead letters leave and of each that they go to; a death
is one of the queue in which a message died. Schedules and redrives that begin or end are no events.
"""

from collections.abc import Iterable, Sequence

from onelog.errors import OutOfRange
from onelog.node.watch.happening import Happening
from onelog.projections.codec import read_prefix
from onelog.projections.queue.changes import Kind, Note
from onelog.projections.queue.commands import notes_of
from onelog.projections.shard_state import Projections
from onelog.projections.system.commands import Expire
from onelog.projections.system.commands import decode_command as decode_system
from onelog.ual.entry import OWNER_QUEUE, Entry
from onelog.v1 import pipeline_pb2

ID_SIZE_MAX = 10  # of a message's id, where it is sent


class QueueHappening(Happening):
    """Something happened to a queue, or to messages of it."""

    __slots__ = ("_ids", "_kind", "_queue")

    def __init__(
        self, entry: Entry, namespace: str, queue: str, kind: Kind, ids: Sequence[int]
    ) -> None:
        super().__init__(entry, OWNER_QUEUE, namespace, queue.encode(), ID_SIZE_MAX * len(ids))
        self._queue = queue
        self._kind = kind
        self._ids = ids

    def put_own(self, event: pipeline_pb2.Event, *, with_previous: bool) -> None:  # noqa: ARG002
        """See ``Happening``."""
        event.queue.queue = self._queue
        event.queue.kind = int(self._kind)  # type: ignore[assignment]  # the same numbers
        event.queue.message_ids.extend(self._ids)


def queue_events(projections: Projections, entry: Entry) -> Iterable[Happening]:
    """Return what an entry of the queue model did."""
    notes = notes_of(projections.queue.changes, entry)
    if notes is None:
        raise _compacted(projections, entry)
    return [_happening(projections, entry, note) for note in notes]


def expiry_events(projections: Projections, entry: Entry) -> Iterable[Happening]:
    """Return what an expiry did to messages: leases, delays and lifetimes that ended."""
    notes = notes_of(projections.queue.changes, entry)
    if notes is None:
        if _concerns_queues(entry):
            raise _compacted(projections, entry)
        return ()
    return [_happening(projections, entry, note) for note in notes]


def _concerns_queues(entry: Entry) -> bool:
    _, reader = read_prefix(entry.plain_payload())
    command = decode_system(entry.entry_type, reader)
    assert isinstance(command, Expire), command
    return any(owner == OWNER_QUEUE for owner, _ in command.ids)


def _happening(projections: Projections, entry: Entry, note: Note) -> QueueHappening:
    name = projections.queue.name_of(note.queue)
    if name is None:
        raise _compacted(projections, entry)
    return QueueHappening(entry, *name, note.kind, note.ids)


def _compacted(projections: Projections, entry: Entry) -> OutOfRange:
    first_index = max(projections.queue.changes.complete_from, entry.index + 1)
    return OutOfRange(
        f"what index {entry.index} did to messages is not known any more",
        reason="COMPACTED",
        metadata={"first_index": str(first_index)},
    )
