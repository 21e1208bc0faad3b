"""What happens to streams, as watchers and tails are told.

A record says itself what it is, except for its partition, which follows from how many the stream
has. So of a stream that was deleted since, an event tells that there was a record, and no more. A
dead letter is told by its own headers: the record that it leads to is elsewhere in the log, where
readers find it, at a time that is not ours. Groups have no events here; how far they are is a key.
"""

from collections.abc import Iterable
from typing import Any

from crc32c import crc32c

from node.happening import Happening
from node.stream_records import put_record
from onelog.v1 import pipeline_pb2, stream_pb2
from projections import stream_commands as commands
from projections.payload import read_prefix
from projections.result import Refused, Result
from projections.stream_operations import DUPLICATE
from projections.stream_pages import Record, letter_headers
from projections.stream_record import (
    OPTION_PARTITION,
    SESSION_SIZE,
    TYPE_APPEND,
    TYPE_DEAD_LETTER,
    open_append,
)
from projections.stream_state import StreamState
from projections.table import Projections
from ual.entry import FLAG_ZSTD, OWNER_STREAM, Entry

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
        super().__init__(entry, OWNER_STREAM, namespace, name, len(entry.payload))
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
        stream = _stream_at(projections, namespace, name, entry.index)
        if stream is not None:
            source = projections.stream.find_by_id(command.source_id)
            headers = letter_headers(command, "" if source is None else source.name)
            number = command.partition % len(stream.partitions)
            times = entry.index, entry.timestamp_ns
            record = Record(stream.id, number, *times, b"", None, headers, None, command)
    elif isinstance(command, commands.Retain):
        trimmed = projections.stream.find_by_id(command.stream_id)
        if trimmed is None:
            return ()
        name = trimmed.name
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
    record = None
    stream = _stream_at(projections, namespace, name.decode(), index)
    if stream is not None:
        key, tag, headers, value = open_append(payload)
        count = len(stream.partitions)
        if payload[options_at] & OPTION_PARTITION:
            number = payload[name_end]
        else:
            number = (index if key is None else crc32c(key)) % count
        record = Record(stream.id, number, index, entry.timestamp_ns, value, key, headers, tag)
    return StreamHappening(entry, namespace, name, APPENDED, record)


def _stream_at(
    projections: Projections, namespace: str, name: str, index: int
) -> StreamState | None:
    """Return the stream that had the name at an index, if it is still there."""
    stream = projections.stream.find(namespace, name)
    return None if isinstance(stream, Refused) or stream.id > index else stream
