"""What happens to streams, as watchers and tails are told.

A record says itself what it is, except for its partition, which follows from how many the stream
has, or had (projections/stream/gone.py). Where that is not known any more the answer is COMPACTED,
and a state of the past is asked. A dead letter is told by its own headers: the record that it leads
to is elsewhere in the log, where readers find it, at a time that is not ours. Groups have no events
here; how far they are is a key.
"""

from collections.abc import Iterable
from typing import Any

from crc32c import crc32c

from onelog.errors import OutOfRange
from onelog.node.edge.stream_records import put_record
from onelog.node.watch.happening import Happening
from onelog.projections.codec import read_prefix
from onelog.projections.result import Result
from onelog.projections.shard_state import Projections
from onelog.projections.stream import commands
from onelog.projections.stream.operations import DUPLICATE
from onelog.projections.stream.pages import Record, letter_headers, size_of
from onelog.projections.stream.record import (
    OPTION_PARTITION,
    SESSION_SIZE,
    TYPE_APPEND,
    TYPE_DEAD_LETTER,
    open_append,
)
from onelog.ual.entry import FLAG_ZSTD, OWNER_STREAM, Entry
from onelog.v1 import pipeline_pb2, stream_pb2

_Kind = pipeline_pb2.StreamEvent
APPENDED, DELETED = _Kind.APPENDED, _Kind.DELETED
_KINDS: dict[type[Any], "pipeline_pb2.StreamEvent.Kind"] = {
    commands.Create: _Kind.CREATED,
    commands.Configure: _Kind.CONFIGURED,
    commands.Delete: _Kind.DELETED,
    commands.Trim: _Kind.TRIMMED,
}
_QUIET_FROM = OWNER_STREAM << 8 | 0x07  # groups, apart from dead letters


class StreamHappening(Happening):
    """A stream was changed, or has one more record."""

    __slots__ = ("_message", "is_letter", "kind", "record")

    def __init__(
        self,
        entry: Entry,
        namespace: str,
        name: bytes,
        kind: "pipeline_pb2.StreamEvent.Kind",
        record: Record | None = None,
    ) -> None:
        size = 0 if record is None else len(name) + size_of(record)
        super().__init__(entry, OWNER_STREAM, namespace, name, size)
        self.kind = kind
        self.record = record
        self.is_letter = entry.entry_type == TYPE_DEAD_LETTER
        self._message: stream_pb2.Record | None = None

    def message(self) -> stream_pb2.Record:
        """Return the record as it is sent: made once, however many are told."""
        found = self._message
        if found is None:
            assert self.record is not None
            found = self._message = stream_pb2.Record()
            put_record(found, self.record, self.name.decode())
        return found

    def put_own(self, event: pipeline_pb2.Event, *, with_previous: bool) -> None:  # noqa: ARG002
        """See ``Happening``."""
        event.stream.stream = self.name.decode()
        event.stream.kind = self.kind
        if self.record is not None:
            event.stream.record.CopyFrom(self.message())


def is_repetition(entry: Entry, result: Result) -> bool:
    """Tell whether an entry that was applied is void: its producer had sent the record before."""
    return entry.entry_type == TYPE_APPEND and getattr(result, "value", None) == DUPLICATE


def stream_events(projections: Projections, entry: Entry) -> Iterable[Happening]:
    """Return what an entry did to a stream."""
    if entry.entry_type == TYPE_APPEND:
        return (_appended(projections, entry),)
    if entry.entry_type >= _QUIET_FROM and entry.entry_type != TYPE_DEAD_LETTER:
        return ()
    prefix, reader = read_prefix(entry.plain_payload())
    command: Any = commands.decode_command(entry.entry_type & 0xFF, reader)
    namespace, record, kind = prefix.namespace, None, _KINDS.get(type(command), _Kind.TRIMMED)
    if entry.entry_type == TYPE_DEAD_LETTER:
        name, kind = command.target, APPENDED
        stream_id, count = _shape(projections, namespace, name, entry)
        headers = letter_headers(command, _name_of(projections, command.source_id, entry))
        times = entry.index, entry.timestamp_ns
        number = command.partition % count
        record = Record(stream_id, number, *times, b"", None, headers, None, command)
    elif isinstance(command, commands.Retain):
        name = _name_of(projections, command.stream_id, entry)
    else:
        name = command.stream
    return (StreamHappening(entry, namespace, name.encode(), kind, record),)


def _appended(projections: Projections, entry: Entry) -> StreamHappening:
    """Return the event of a record; runs for each one while somebody watches."""
    index, payload = entry.index, entry.payload
    if entry.flags & FLAG_ZSTD:
        payload = entry.plain_payload()
    namespace_end = 3 + payload[2]
    namespace = payload[3:namespace_end].decode()
    options_at = namespace_end + (SESSION_SIZE if payload[1] else 0)
    name_end = options_at + 2 + payload[options_at + 1]
    name = payload[options_at + 2 : name_end]
    stream_id, count = _shape(projections, namespace, name.decode(), entry)
    key, tag, headers, value = open_append(payload)
    if payload[options_at] & OPTION_PARTITION:
        number = payload[name_end]
    else:
        number = (index if key is None else crc32c(key)) % count
    record = Record(stream_id, number, index, entry.timestamp_ns, value, key, headers, tag)
    return StreamHappening(entry, namespace, name, APPENDED, record)


def _shape(projections: Projections, namespace: str, name: str, entry: Entry) -> tuple[int, int]:
    """Return id and partitions of the stream that had a name when an entry was applied."""
    found = projections.stream.shape_at(namespace, name, entry.index)
    if found is None:
        raise _compacted(entry)
    return found


def _name_of(projections: Projections, stream_id: int, entry: Entry) -> str:
    """Return the name of a stream that was there when an entry was applied."""
    name = projections.stream.name_of(stream_id)
    if name is None:
        raise _compacted(entry)
    return name


def _compacted(entry: Entry) -> OutOfRange:
    return OutOfRange(
        f"which stream index {entry.index} was about is not known any more",
        reason="COMPACTED",
        metadata={"first_index": str(entry.index + 1)},
    )
