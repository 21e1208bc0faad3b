"""Events: what applied entries did, as watchers receive it.

An entry that says itself what it did (a put, a record, points) is decoded. What only apply knew
(which keys a range deleted, the new value of a counter) was noted when it was applied, and is
available as far back as notes are kept (``projections/kv/changes.py``,
``projections/queue/changes.py``). If neither can tell, the answer is COMPACTED, never a wrong
event; a state of the past that replays the entry may still know (node/watch/past.py). So an event
is the same whether it is made at once, later from the log, or by another replica, except for the
previous value, which is included if the state still has it.

* Keys: a change of a lifetime (Touch) makes no version and no event. Deleting a whole namespace
  makes no event for each key.
* Queues: a redrive is an event of the queue that the dead letters leave and of each queue that they
  go to; a death is one of the queue in which the message died. Schedules, and the start and end of
  a redrive, are no events.
* Time series: points are reported as they were written, by clients and by downsampling rules alike.
  A block, the start of a rollup, and a measurement that its first write creates are no events. A
  deletion names the measurement: the entry has matchers and times, not the points they met. If it
  takes several entries, each is an event. Setting or deleting a rule configures its measurement.
* Streams: a record says what it is, except for its partition, which depends on how many the stream
  has or had (projections/stream/state.py). A dead letter is reported by its own headers; the record
  that it refers to is elsewhere in the log. Consumer groups have no events: their progress is a
  key.

``Event.size`` is an upper bound for the bytes of an event in a message: pages and the buffers
of watchers are bounded by it. A new model adds its function to ``MAKERS``, by the owner of its
entries.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from onelog.errors import OutOfRange
from onelog.node.edge.messages import fill_item, fill_record, pack_runs
from onelog.projections.codec import read_prefix
from onelog.projections.kv.changes import Change
from onelog.projections.kv.commands import (
    OPERATIONS,
    LeaseGrant,
    LeaseKeepalive,
    Put,
    PutMany,
    Touch,
    deadline,
)
from onelog.projections.kv.commands import decode_command as decode_kv
from onelog.projections.kv.projection import SELF_DESCRIBING_TYPES
from onelog.projections.kv.reads import KeyValue
from onelog.projections.queue.changes import Kind, Note
from onelog.projections.queue.commands import find_notes
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Refused, Result
from onelog.projections.shard_state import Projections
from onelog.projections.stream import commands
from onelog.projections.stream.commands import (
    OPTION_PARTITION,
    SESSION_SIZE,
    TYPE_APPEND,
    TYPE_DEAD_LETTER,
    TYPE_TRIM_TO,
    choose_partition,
    open_append,
)
from onelog.projections.stream.operations import DUPLICATE
from onelog.projections.stream.reads import Record, Shape, estimate_size, letter_headers
from onelog.projections.system.commands import TYPE_EXPIRE, Expire
from onelog.projections.system.commands import decode_command as decode_system
from onelog.projections.timeseries.commands import (
    BeginRollup,
    Block,
    ConfigureMeasurement,
    CreateMeasurement,
    Delete,
    DropMeasurement,
    DropRule,
    Rollup,
    SetRule,
    Trim,
    Write,
    decode_command,
)
from onelog.projections.timeseries.point_batch import Run, WriteBatch, batch_runs
from onelog.projections.timeseries.types import to_field_type
from onelog.ual.entry import (
    FLAG_ZSTD,
    OWNER_KV,
    OWNER_QUEUE,
    OWNER_STREAM,
    OWNER_SYSTEM,
    OWNER_TIMESERIES,
    Entry,
)
from onelog.v1 import pipeline_pb2, stream_pb2

# Numbers, tags and lengths of an event, the value before included.
EVENT_OVERHEAD = 200


class Event:
    """One event, before it is matched to watchers. Subclasses fill in their model's part."""

    __slots__ = ("index", "name", "namespace", "owner", "size", "timestamp_ns")

    def __init__(self, entry: Entry, owner: int, namespace: str, name: bytes, size: int) -> None:
        """``size``: bytes of what the event holds besides namespace and name."""
        self.index = entry.index
        self.timestamp_ns = entry.timestamp_ns
        self.owner = owner
        self.namespace = namespace
        self.name = name
        self.size = EVENT_OVERHEAD + len(namespace) + len(name) + size

    def fill(self, event: pipeline_pb2.Event, *, with_previous: bool) -> None:
        """Write the event."""
        event.index = self.index
        event.timestamp_ns = self.timestamp_ns
        event.namespace = self.namespace
        self.fill_own(event, with_previous=with_previous)

    def settle(self, *, with_previous: bool) -> bool:  # noqa: ARG002
        """Look up the previous value and drop the state; False if the state has forgotten it."""
        return True

    def fill_own(self, event: pipeline_pb2.Event, *, with_previous: bool) -> None:
        """Write the part of the model."""
        raise NotImplementedError


# Queues

ID_SIZE_MAX = 10  # of a message's id, where it is sent


class QueueEvent(Event):
    """An event of a queue or of its messages."""

    __slots__ = ("_ids", "_kind", "_queue")

    def __init__(
        self, entry: Entry, namespace: str, queue: str, kind: Kind, ids: Sequence[int]
    ) -> None:
        super().__init__(entry, OWNER_QUEUE, namespace, queue.encode(), ID_SIZE_MAX * len(ids))
        self._queue = queue
        self._kind = kind
        self._ids = ids

    def fill_own(self, event: pipeline_pb2.Event, *, with_previous: bool) -> None:  # noqa: ARG002
        """See ``Event``."""
        event.queue.queue = self._queue
        event.queue.kind = int(self._kind)  # type: ignore[assignment]  # the same numbers
        event.queue.message_ids.extend(self._ids)


def queue_events(projections: Projections, entry: Entry) -> Iterable[Event]:
    """Return what an entry of the queue model did."""
    notes = find_notes(projections.queue.changes, entry)
    if notes is None:
        raise _compacted(projections, entry)
    return [_make_event(projections, entry, note) for note in notes]


def expiry_events(projections: Projections, entry: Entry) -> Iterable[Event]:
    """Return what an expiry did to messages: leases, delays and lifetimes that ended."""
    notes = find_notes(projections.queue.changes, entry)
    if notes is None:
        if _concerns_queues(entry):
            raise _compacted(projections, entry)
        return ()
    return [_make_event(projections, entry, note) for note in notes]


def _concerns_queues(entry: Entry) -> bool:
    _, reader = read_prefix(entry.plain_payload())
    command = decode_system(entry.entry_type, reader)
    assert isinstance(command, Expire), command
    return any(owner == OWNER_QUEUE for owner, _ in command.ids)


def _make_event(projections: Projections, entry: Entry, note: Note) -> QueueEvent:
    name = projections.queue.find_name(note.queue)
    if name is None:
        raise _compacted(projections, entry)
    return QueueEvent(entry, *name, note.kind, note.ids)


def _compacted(projections: Projections, entry: Entry) -> OutOfRange:
    first_index = max(projections.queue.changes.complete_from, entry.index + 1)
    return OutOfRange(
        f"what index {entry.index} did to messages is not known any more",
        reason="COMPACTED",
        metadata={"first_index": str(first_index)},
    )


# Time series

_KINDS: dict[type, "pipeline_pb2.SeriesEvent.Kind"] = {
    CreateMeasurement: pipeline_pb2.SeriesEvent.CREATED,
    ConfigureMeasurement: pipeline_pb2.SeriesEvent.CONFIGURED,
    SetRule: pipeline_pb2.SeriesEvent.CONFIGURED,
    DropRule: pipeline_pb2.SeriesEvent.CONFIGURED,
    DropMeasurement: pipeline_pb2.SeriesEvent.DELETED,
    Delete: pipeline_pb2.SeriesEvent.POINTS_DELETED,
    Trim: pipeline_pb2.SeriesEvent.POINTS_DELETED,
}


class SeriesEvent(Event):
    """An event of a measurement."""

    __slots__ = ("_data",)

    def __init__(self, entry: Entry, namespace: str, event: pipeline_pb2.SeriesEvent) -> None:
        self._data = event.SerializeToString()
        name = event.measurement.encode()
        super().__init__(entry, OWNER_TIMESERIES, namespace, name, len(self._data))

    def fill_own(self, event: pipeline_pb2.Event, *, with_previous: bool) -> None:  # noqa: ARG002
        """See ``Event``."""
        event.series.MergeFromString(self._data)


def series_events(_projections: Projections, entry: Entry) -> Iterable[Event]:
    """Return what an entry did to series."""
    prefix, reader = read_prefix(entry.plain_payload())
    command = decode_command(entry.entry_type & 0xFF, reader)
    match command:
        case Block() | BeginRollup():
            return ()
        case WriteBatch():
            return _written(entry, prefix.namespace, batch_runs(command))
        case Rollup(batch=batch):
            return _written(entry, prefix.namespace, batch_runs(batch))
        case Write(series=series, time_ns=time_ns, fields=fields):
            runs = [
                Run(series, name, to_field_type(value), [time_ns], [value])
                for name, value in fields
            ]
            return _written(entry, prefix.namespace, runs)
        case _:
            event = pipeline_pb2.SeriesEvent(
                measurement=command.measurement, kind=_KINDS[type(command)]
            )
            return (SeriesEvent(entry, prefix.namespace, event),)


def _written(entry: Entry, namespace: str, runs: Iterable[Run]) -> list[Event]:
    """Return one event for each measurement that points were written to."""
    events: dict[str, pipeline_pb2.SeriesEvent] = {}
    for measurement, points in pack_runs(runs):
        event = events.get(measurement)
        if event is None:
            event = events[measurement] = pipeline_pb2.SeriesEvent(
                measurement=measurement, kind=pipeline_pb2.SeriesEvent.WRITTEN
            )
        event.points.append(points)
    return [SeriesEvent(entry, namespace, event) for event in events.values()]


# Streams

_Kind = pipeline_pb2.StreamEvent
APPENDED, DELETED = _Kind.APPENDED, _Kind.DELETED
_EVENTS_STREAM_KINDS: dict[type[Any], "pipeline_pb2.StreamEvent.Kind"] = {
    commands.Create: _Kind.CREATED,
    commands.Configure: _Kind.CONFIGURED,
    commands.Delete: _Kind.DELETED,
    commands.Trim: _Kind.TRIMMED,
}
_QUIET_FROM = OWNER_STREAM << 8 | 0x07  # groups
_LOUD = frozenset((TYPE_DEAD_LETTER, TYPE_TRIM_TO))  # after these, and not of groups


class StreamEvent(Event):
    """An event of a stream: a change of it, or a new record."""

    __slots__ = ("_message", "is_letter", "kind", "record")

    def __init__(
        self,
        entry: Entry,
        namespace: str,
        name: bytes,
        kind: "pipeline_pb2.StreamEvent.Kind",
        record: Record | None = None,
    ) -> None:
        size = 0 if record is None else len(name) + estimate_size(record)
        super().__init__(entry, OWNER_STREAM, namespace, name, size)
        self.kind = kind
        self.record = record
        self.is_letter = entry.entry_type == TYPE_DEAD_LETTER
        self._message: stream_pb2.Record | None = None

    def message(self) -> stream_pb2.Record:
        """Return the record as it is sent: made once for all watchers."""
        found = self._message
        if found is None:
            assert self.record is not None
            found = self._message = stream_pb2.Record()
            fill_record(found, self.record, self.name.decode())
        return found

    def fill_own(self, event: pipeline_pb2.Event, *, with_previous: bool) -> None:  # noqa: ARG002
        """See ``Event``."""
        event.stream.stream = self.name.decode()
        event.stream.kind = self.kind
        if self.record is not None:
            event.stream.record.CopyFrom(self.message())


def is_repetition(entry: Entry, result: Result) -> bool:
    """Tell whether an entry that was applied is void: its producer had sent the record before."""
    return entry.entry_type == TYPE_APPEND and getattr(result, "value", None) == DUPLICATE


def stream_events(projections: Projections, entry: Entry) -> Iterable[Event]:
    """Return what an entry did to a stream."""
    if entry.entry_type == TYPE_APPEND:
        return (_appended(projections, entry),)
    if entry.entry_type >= _QUIET_FROM and entry.entry_type not in _LOUD:
        return ()
    prefix, reader = read_prefix(entry.plain_payload())
    command: Any = commands.decode_command(entry.entry_type & 0xFF, reader)
    namespace, record, kind = (
        prefix.namespace,
        None,
        _EVENTS_STREAM_KINDS.get(type(command), _Kind.TRIMMED),
    )
    if entry.entry_type == TYPE_DEAD_LETTER:
        name, kind = command.target, APPENDED
        stream_id, count, _ = _shape(projections, namespace, name, entry)
        headers = letter_headers(command, _find_name(projections, command.source_id, entry))
        times = entry.index, entry.timestamp_ns
        number = command.partition % count
        record = Record(stream_id, number, *times, b"", None, headers, None, command)
    elif isinstance(command, commands.Retain | commands.TrimTo):
        name = _find_name(projections, command.stream_id, entry)
    else:
        name = command.stream
    return (StreamEvent(entry, namespace, name.encode(), kind, record),)


def _appended(projections: Projections, entry: Entry) -> StreamEvent:
    """Return the event of a record; runs for each one while somebody watches."""
    index, payload = entry.index, entry.payload
    if entry.flags & FLAG_ZSTD:
        payload = entry.plain_payload()
    namespace_end = 3 + payload[2]
    namespace = payload[3:namespace_end].decode()
    options_at = namespace_end + (SESSION_SIZE if payload[1] else 0)
    name_end = options_at + 2 + payload[options_at + 1]
    name = payload[options_at + 2 : name_end]
    stream_id, count, key_hash = _shape(projections, namespace, name.decode(), entry)
    key, tag, headers, value = open_append(payload)
    if payload[options_at] & OPTION_PARTITION:
        number = payload[name_end]
    else:
        number = choose_partition(key, index, count, key_hash)
    record = Record(stream_id, number, index, entry.timestamp_ns, value, key, headers, tag)
    return StreamEvent(entry, namespace, name, APPENDED, record)


def _shape(projections: Projections, namespace: str, name: str, entry: Entry) -> Shape:
    """Return what places records in the stream that had a name when an entry was applied."""
    found = projections.stream.shape_at(namespace, name, entry.index)
    if found is None:
        raise _events_stream_compacted(entry)
    return found


def _find_name(projections: Projections, stream_id: int, entry: Entry) -> str:
    """Return the name of a stream that was there when an entry was applied."""
    name = projections.stream.find_name(stream_id)
    if name is None:
        raise _events_stream_compacted(entry)
    return name


def _events_stream_compacted(entry: Entry) -> OutOfRange:
    return OutOfRange(
        f"which stream index {entry.index} was about is not known any more",
        reason="COMPACTED",
        metadata={"first_index": str(entry.index + 1)},
    )


# Keys, and all models

# Operations on keys that write no version.
_QUIET = frozenset(
    OWNER_KV << 8 | OPERATIONS[each].number for each in (Touch, LeaseGrant, LeaseKeepalive)
)


class KeyEvent(Event):
    """An event of a key: a new version, or its deletion."""

    __slots__ = ("_change", "_previous", "_projections")

    def __init__(self, entry: Entry, change: Change, projections: Projections) -> None:
        size = 0 if change.value is None else len(change.key) + len(change.value)
        super().__init__(entry, OWNER_KV, change.namespace, change.key, size)
        self._change = change
        self._projections: Projections | None = projections  # None: settled
        self._previous: KeyValue | None = None

    def settle(self, *, with_previous: bool) -> bool:
        """See ``Event``."""
        projections, change = self._projections, self._change
        if projections is None:
            return True
        if with_previous:
            kv = projections.kv
            found = kv.get(change.namespace, change.key, as_of=self.index - 1)
            if isinstance(found, KeyValue):
                self._previous = found
                self.size += len(found.key) + len(found.value)
            elif _is_forgotten(found) and kv.stores[change.namespace].versions_max > 1:
                return False  # where one version is kept, no state ever knows the one before
        self._projections = None
        return True

    def fill_own(self, event: pipeline_pb2.Event, *, with_previous: bool) -> None:
        """See ``Event``."""
        change, target = self._change, event.key
        target.key = change.key
        if change.value is not None:
            item = target.item
            item.key, item.value, item.version = change.key, change.value, self.index
            item.expires_ns, item.lease_id = change.expires_ns, change.lease
        target.expired = change.expired
        if with_previous:
            self.settle(with_previous=True)
            if self._previous is not None:
                fill_item(target.previous, self._previous)


def _is_forgotten(found: object) -> bool:
    return isinstance(found, Refused) and found.reason is Reason.COMPACTED


Maker = Callable[[Projections, Entry], Iterable[Event]]


def _key_events(projections: Projections, entry: Entry) -> Iterable[Event]:
    """Return what puts did; everything else that is done to keys was noted."""
    if entry.entry_type not in SELF_DESCRIBING_TYPES:
        return ()
    prefix, reader = read_prefix(entry.plain_payload())
    command: Any = decode_kv(entry.entry_type & 0xFF, reader)
    puts: list[Put] = command.puts() if isinstance(command, PutMany) else [command]
    changes: dict[bytes, Change] = {}  # the last word on each key, in the order of first touch
    for put in puts:
        expires_ns = 0 if put.ttl_ns is None else deadline(entry.timestamp_ns, put.ttl_ns)
        changes[put.key] = Change(prefix.namespace, put.key, put.value, expires_ns, put.lease or 0)
    return [KeyEvent(entry, change, projections) for change in changes.values()]


MAKERS: dict[int, Maker] = {
    OWNER_KV: _key_events,
    OWNER_QUEUE: queue_events,
    OWNER_STREAM: stream_events,
    OWNER_TIMESERIES: series_events,
}


def make_events(projections: Projections, entry: Entry, owners: Container[int]) -> list[Event]:
    """Return the events of an entry that took effect, of the watched models."""
    found: list[Event] = []
    maker = MAKERS.get(entry.owner) if entry.owner in owners else None
    if maker is not None:
        found += maker(projections, entry)
    if entry.entry_type == TYPE_EXPIRE and OWNER_QUEUE in owners:
        found += expiry_events(projections, entry)
    if OWNER_KV in owners and entry.entry_type not in SELF_DESCRIBING_TYPES:
        changes = projections.kv.changes
        if entry.index < changes.complete_from and _may_change_keys(entry):
            raise OutOfRange(
                f"what index {entry.index} did to keys is not known any more",
                reason="COMPACTED",
                metadata={"first_index": str(changes.complete_from)},
            )
        for change in changes.get(entry.index):
            found.append(KeyEvent(entry, change, projections))
    return found


def took_effect(entry: Entry, result: Result) -> bool:
    """Tell whether an entry did something, as the log's voids will tell those who read it later."""
    return isinstance(result, Applied) and not is_repetition(entry, result)


def _may_change_keys(entry: Entry) -> bool:
    if entry.owner == OWNER_SYSTEM:
        return entry.entry_type == TYPE_EXPIRE
    return entry.entry_type not in _QUIET
