"""Reading streams: descriptions from the state; records from a log that the caller passes in.

All partitions of a shard share one sequence of offsets (indexes of the log). So one number is
enough to resume a tail over any number of streams: the offset up to which everything was seen.

A page of records is planned on the state and read from the log alone. The state changes with each
entry and belongs to one thread; reading the log may wait for a disk. So a ``PageRead`` holds
everything that a read needs from the state, and any thread may ``run`` it. Records may be trimmed
between planning and running: ``is_current`` tells, on the thread of the state. A page that is not
current is read again, or its reader would miss a gap.

Records are found through the log's stream tables, by offset. A reader whose offset was trimmed gets
a ``Gap`` in the page, with the exact range and the cause, and continues after it. So does one whose
record cannot be read, because the log's file is damaged; the page then names the entries as well,
for who may wait for their repair. A dead letter is shown as the record that it refers to, with
headers that say what happened to it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from typing import NamedTuple, Protocol

from onelog.projections.projection import Position
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.stream.commands import (
    TYPE_APPEND,
    Append,
    Cause,
    DeadLetter,
    GroupConfig,
    KeyHash,
    Retention,
    decode_record,
    open_append,
)
from onelog.projections.stream.filters import EVERYTHING, RecordFilter
from onelog.projections.stream.groups import Group, split_place
from onelog.projections.stream.limits import (
    LIST_MAX,
    READ_SIZE_MAX,
    READ_VISITS_MAX,
)
from onelog.projections.stream.partition import Partition
from onelog.projections.stream.state import Streams, StreamState
from onelog.ual.entry import FLAG_ZSTD, Entry, Unreadable
from onelog.ual.errors import EntriesDamaged

# The overhead of a record, and of each of its headers: numbers, tags and lengths.
RECORD_OVERHEAD = 64
HEADER_OVERHEAD = 16
CHARACTER_SIZE_MAX = 4  # bytes

HEADER_OFFSET = "dlq.original_offset"
HEADER_STREAM = "dlq.original_stream"
HEADER_GROUP = "dlq.group"
HEADER_RETRIES = "dlq.retry_count"
HEADER_REASON = "dlq.failure_reason"
HEADER_FAILED = "dlq.last_failure"


class RecordLog(Protocol):
    """The part of a log that reading streams needs (``onelog.ual.log.Log`` has it)."""

    @property
    def first_index(self) -> int:
        """The first index that is kept."""

    @property
    def applied_index(self) -> int:
        """The index up to which the stream tables are complete."""

    def read(self, index: int) -> Entry:
        """Return one entry."""

    def scan_readable(
        self, first_index: int, last_index: int | None = None, *, stream_id: int | None = None
    ) -> Iterator[Entry | Unreadable]:
        """Yield the records of a stream in order, and in its place what cannot be read."""

    def seek_time(self, timestamp_ns: int) -> int | None:
        """Return the first index with at least this timestamp."""


class Record(NamedTuple):
    """A record as a reader gets it; ``dead_letter`` is set for a dead letter.

    A tuple, not a dataclass: reading builds one per record, and a frozen dataclass of nine fields
    costs five times as much to build (3.5 against 0.7 µs).
    """

    stream_id: int
    partition: int
    offset: int
    timestamp_ns: int
    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    tag: str | None = None
    dead_letter: DeadLetter | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets from first to last, which were trimmed before the reader reached them.

    Without a cause: they cannot be read; if a file is damaged as a whole, there may be none.
    """

    stream_id: int
    partition: int
    first_offset: int
    last_offset: int
    cause: Cause | None
    trimmed_ns: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a read; the next page begins at ``next_offset``, whether there is more or not."""

    items: tuple[Record | Gap, ...]
    next_offset: int
    # Records that were visited, wanted or not, and the first of them.
    visit_count: int = 0
    first_visited: int | None = None
    unreadable: tuple[Unreadable, ...] = ()  # entries for which there are gaps without a cause

    def before_damage(self) -> "Page":
        """Return the page up to the first record that cannot be read."""
        for at, item in enumerate(self.items):
            if isinstance(item, Gap) and item.cause is None:
                return replace(self, items=self.items[:at], next_offset=item.first_offset)
        return self


class _Source(NamedTuple):
    """A partition when the read was planned, and the offset to read it from."""

    partition: Partition
    first_offset: int
    offset: int


class PageRead:
    """A planned read of some partitions; see the module's docstring."""

    __slots__ = ("_gaps", "_sources", "_wanted", "last_index", "offset")

    def __init__(
        self,
        partitions: Sequence[tuple[Partition, int]],
        offset: int,
        last_index: int,
        wanted: RecordFilter = EVERYTHING,
    ) -> None:
        """``partitions`` are read from their own offset on, or from ``offset`` if that is higher.

        Nothing above ``last_index`` is read: up to there stream tables and state are complete.
        """
        self.offset = offset
        self.last_index = last_index
        self._wanted = wanted
        self._gaps: list[Gap] = []
        self._sources: list[_Source] = []
        for partition, its_offset in partitions:
            start = max(offset, its_offset)
            self._gaps += gaps(partition, start)
            self._sources.append(_Source(partition, partition.first_offset, start))

    def is_current(self) -> bool:
        """Return whether nothing of it was trimmed or deleted since; on the state's thread only."""
        return all(
            partition.attached and partition.first_offset <= max(first_offset, offset)
            for partition, first_offset, offset in self._sources
        )

    def is_whole(self, find: Callable[[int], StreamState | None], first_index: int) -> bool:
        """Return, for a past state, whether the log still holds all of its records.

        The log begins at ``first_index``; ``find`` returns a stream of the present state, whose
        kept records are in the log.
        """
        for partition, first_offset, offset in self._sources:
            start = max(first_offset, offset)
            if start < first_index:
                stream = find(partition.stream_id)
                if stream is None or stream.partitions[partition.number].first_offset > start:
                    return False
        return True

    def run(self, log: RecordLog, limit: int, size_max: int = READ_SIZE_MAX) -> Page:
        """Read up to ``limit`` records and about ``size_max`` bytes, from any thread."""
        items: list[Record | Gap] = list(self._gaps)
        found = [self._records(log, source) for source in self._sources]
        # Two records of a shard never share an index, so partitions are not compared.
        records = found[0] if len(found) == 1 else merge(*found, key=lambda each: each[0])
        wanted = self._wanted
        count = size = visits = 0
        first_visited: int | None = None
        unreadable: list[Unreadable] = []
        next_offset = max(self.offset, self.last_index + 1)
        for offset, entry, partition in records:
            if count == limit or visits == READ_VISITS_MAX or size >= size_max:
                next_offset = offset
                break
            if not visits:
                first_visited = offset
            visits += 1
            record = read_record(log, entry, partition.stream_id, partition.number)
            if isinstance(record, LostRecord):
                unreadable.append(record.entries)
                items.append(record.gap)
                size += RECORD_OVERHEAD
                continue
            size += estimate_size(record)
            if wanted is EVERYTHING or wanted.wants(record):
                items.append(record)
                count += 1
        return Page(tuple(items), next_offset, visits, first_visited, tuple(unreadable))

    def _records(
        self, log: RecordLog, source: _Source
    ) -> Iterator[tuple[int, Entry | Unreadable, Partition]]:
        # A segment is deleted when nothing in it is needed, so the log may begin after the first
        # kept offset: then no record is in between.
        first = max(source.offset, source.first_offset, log.first_index)
        if first <= self.last_index:
            for entry in log.scan_readable(first, self.last_index, stream_id=source.partition.id):
                offset = entry.first_index if isinstance(entry, Unreadable) else entry.index
                yield offset, entry, source.partition


def gaps(partition: Partition, offset: int) -> list[Gap]:
    """Return the gaps that a reader at ``offset`` must see, in order."""
    found: list[Gap] = []
    first = max(offset, partition.stream_id + 1)
    for before, cause, when_ns in partition.trims:
        if before > first:
            found.append(
                Gap(partition.stream_id, partition.number, first, before - 1, cause, when_ns)
            )
            first = before
    return found


class LostRecord(NamedTuple):
    """A record that cannot be read: its gap, and the entries that are damaged."""

    gap: Gap
    entries: Unreadable


def read_record(
    log: RecordLog, entry: Entry | Unreadable, stream_id: int, partition: int
) -> Record | LostRecord:
    """Return the record of an entry, or what stands in its place if that cannot be read."""
    if isinstance(entry, Unreadable):
        return LostRecord(Gap(stream_id, partition, *entry, None), entry)
    try:
        return open_record(log, entry, stream_id, partition)
    except EntriesDamaged as error:  # of the original of a dead letter
        entries = Unreadable(error.first_index, error.last_index)
        return LostRecord(Gap(stream_id, partition, entry.index, entry.index, None), entries)


def read_at(log: RecordLog, offset: int, stream_id: int, partition: int) -> Record | LostRecord:
    """Return the record at an offset, or what stands in its place if that cannot be read."""
    try:
        entry: Entry | Unreadable = log.read(offset)
    except EntriesDamaged as error:
        entry = Unreadable(error.first_index, error.last_index)
    return read_record(log, entry, stream_id, partition)


def open_record(log: RecordLog, entry: Entry, stream_id: int, partition: int) -> Record:
    """Return the record of an append, or the original of a dead letter."""
    entry_type, flags, _, offset, timestamp_ns, _, payload = entry
    if flags & FLAG_ZSTD:
        payload = entry.plain_payload()
    if entry_type == TYPE_APPEND:
        key, tag, headers, value = open_append(payload)
        return Record(stream_id, partition, offset, timestamp_ns, value, key, headers, tag)
    letter = decode_record(entry)
    assert isinstance(letter, DeadLetter), f"{offset} is no record"
    original = decode_record(log.read(letter.origin))
    assert isinstance(original, Append), f"{letter.origin} is no append"
    headers = (*original.headers, *letter_headers(letter, original.stream))
    return Record(
        stream_id,
        partition,
        offset,
        timestamp_ns,
        original.value,
        original.key,
        headers,
        original.tag,
        letter,
    )


def estimate_size(record: Record) -> int:
    """Return an upper bound of a record's size on the wire."""
    size = RECORD_OVERHEAD + len(record.value)
    if record.key is not None:
        size += len(record.key)
    if record.tag is not None:
        size += CHARACTER_SIZE_MAX * len(record.tag)
    for name, value in record.headers:
        size += HEADER_OVERHEAD + CHARACTER_SIZE_MAX * len(name) + len(value)
    return size


def letter_headers(letter: DeadLetter, stream: str) -> tuple[tuple[str, bytes], ...]:
    """Return the headers that a dead letter has besides those of its original in ``stream``."""
    return (
        (HEADER_OFFSET, str(letter.origin).encode()),
        (HEADER_STREAM, stream.encode()),
        (HEADER_GROUP, letter.group.encode()),
        (HEADER_RETRIES, str(letter.deliveries).encode()),
        (HEADER_REASON, letter.reason),
        (HEADER_FAILED, str(letter.failed_ns).encode()),
    )


# Reads


class Shape(NamedTuple):
    """What says in which partition a record is that names none."""

    stream_id: int
    partition_count: int
    key_hash: KeyHash


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition: readable from first to before end, and what it holds (``Partition.kept``)."""

    partition: int
    partition_id: int
    first_offset: int
    first_record: int
    end_offset: int
    record_count: int
    record_count_kept: int
    size_kept: int


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """The settings and the content of a stream."""

    name: str
    stream_id: int
    retention: Retention
    partitions: tuple[PartitionDescription, ...]
    groups: tuple[str, ...]
    producer_count: int
    dead_letter_count: int
    key_hash: KeyHash


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group; ``lags`` count offsets, not records, from the cursor to the end."""

    name: str
    group_id: int
    config: GroupConfig
    generation: int
    members: tuple[tuple[int, int], ...]  # id, deadline_ns
    owners: tuple[int, ...]
    delivered: tuple[int, ...]
    committed: tuple[int, ...]
    lags: tuple[int, ...]
    pending_count: int
    dead_count: int
    pending_by_member: Mapping[int, int]  # by member, 0: of nobody; only counts above 0
    pending_of_partitions: tuple[int, ...]


class StreamReads:
    """The reading half of the projection."""

    def __init__(self, position: Position, streams: Streams) -> None:
        self._position = position
        self._streams = streams
        self.gone = streams.gone

    def all_streams(self) -> Iterable[StreamState]:
        """Return the streams of all namespaces, for reading."""
        return self._streams.by_id.values()

    def list_streams(
        self, namespace: str, *, prefix: str = "", after: str = "", limit: int = LIST_MAX
    ) -> tuple[str, ...] | Refused:
        """Return up to ``limit`` names of streams after ``after``, in order."""
        names = self._streams.names.get(namespace)
        if names is None:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        if not 1 <= limit <= LIST_MAX:
            return Refused(Reason.LIMIT_INVALID, limit)
        found = sorted(name for name in names if name.startswith(prefix) and name > after)
        return tuple(found[:limit])

    def describe(self, namespace: str, name: str) -> StreamDescription | Refused:
        """Describe a stream: its settings and what it holds."""
        stream = self._streams.find(namespace, name)
        if isinstance(stream, Refused):
            return stream
        return StreamDescription(
            name,
            stream.id,
            stream.info.rows[0].retention,
            tuple(map(_describe_partition, stream.partitions)),
            tuple(sorted(stream.groups)),
            len(stream.producers),
            len(stream.dead),
            stream.key_hash,
        )

    def describe_group(self, namespace: str, name: str, group: str) -> GroupDescription | Refused:
        """Return cursors, members and counts of a group."""
        found = self.find_group(namespace, name, group)
        if isinstance(found, Refused):
            return found
        stream, state = found
        config, generation, owners = state.head
        ends = [partition.end_offset for partition in stream.partitions]
        of_members: dict[int, int] = {}
        of_partitions = [0] * len(owners)
        for place, pending in state.pending.rows.items():
            of_members[pending.member] = of_members.get(pending.member, 0) + 1
            of_partitions[split_place(place)[0]] += 1
        return GroupDescription(
            group,
            state.id,
            config,
            generation,
            tuple((member, state.members.rows[member].deadline_ns) for member in state.members),
            owners,
            tuple(state.cursors.rows[number] for number in range(len(owners))),
            state.committed,
            tuple(end - cursor for end, cursor in zip(ends, state.committed, strict=True)),
            len(state.pending),
            len(state.pending.dead),
            of_members,
            tuple(of_partitions),
        )

    def offset_at_time(
        self, log: RecordLog, namespace: str, name: str, timestamp_ns: int
    ) -> int | Refused:
        """Return the first offset whose log time is at or after ``timestamp_ns``.

        It is the same for all partitions. To seek a group by time, seek to this offset.
        """
        stream = self._streams.find(namespace, name)
        if isinstance(stream, Refused):
            return stream
        index = log.seek_time(timestamp_ns)
        end = min(self._position.applied_index, log.applied_index) + 1
        return max(stream.id + 1, end if index is None else min(index, end))

    def page_read(
        self,
        log: RecordLog,
        partitions: Sequence[tuple[Partition, int]],
        offset: int,
        wanted: RecordFilter = EVERYTHING,
    ) -> PageRead:
        """Plan a read of partitions of this state, each from its own offset on at least."""
        # The log learns of records after the state does, and a batch notes its records at its
        # end: only up to the lower of both indexes everything is complete.
        end = min(self._position.applied_index, log.applied_index)
        return PageRead(partitions, offset, end, wanted)

    def find(self, namespace: str, name: str) -> StreamState | Refused:
        """Return a stream, for reading."""
        return self._streams.find(namespace, name)

    def find_by_id(self, stream_id: int) -> StreamState | None:
        """Return the stream that was created at this index, if it still exists."""
        return self._streams.by_id.get(stream_id)

    def find_name(self, stream_id: int) -> str | None:
        """Return the name of the stream that was created at this index, if it is known."""
        stream = self.find_by_id(stream_id) or self.gone.by_id(stream_id)
        return None if stream is None else stream.name

    def shape_at(self, namespace: str, name: str, index: int) -> Shape | None:
        """Return what places records in the stream with a name at an index, if known."""
        stream = self._streams.find(namespace, name)
        if not isinstance(stream, Refused) and stream.id < index:
            return Shape(stream.id, len(stream.partitions), stream.key_hash)
        gone = self.gone.at(namespace, name, index)
        return None if gone is None else Shape(gone.id, gone.partition_count, gone.key_hash)

    def find_group(
        self, namespace: str, name: str, group: str
    ) -> tuple[StreamState, Group] | Refused:
        """Return a group and its stream, for reading."""
        stream = self._streams.find(namespace, name)
        if isinstance(stream, Refused):
            return stream
        state = stream.groups.get(group)
        return Refused(Reason.GROUP_UNKNOWN) if state is None else (stream, state)


def _describe_partition(partition: Partition) -> PartitionDescription:
    count, size = partition.kept
    return PartitionDescription(
        partition.number,
        partition.id,
        partition.first_offset,
        partition.first_record,
        partition.end_offset,
        partition.count,
        count,
        size,
    )
