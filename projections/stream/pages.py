"""Pages of records: what to read is decided on the state, reading needs the log alone.

Records are found through the log's stream tables, by offset (an index of the log). A reader whose
offset was trimmed is told so in band, by a ``Gap`` with the exact range and the cause, and reads on
behind it. A dead letter is shown as the record that it refers to, with headers that say what
happened to it.

The state changes with each entry and belongs to one thread; reading the log may wait for a disk. So
a ``PageRead`` holds everything that a read needs of the state, and any thread may ``run`` it. What
it was decided on may be trimmed before it has run: ``is_current`` tells, on the thread of the
state. A page that was read for nothing is read again, or its reader would miss a gap.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import NamedTuple, Protocol

from onelog.projections.stream.commands import Cause
from onelog.projections.stream.limits import READ_SIZE_MAX, READ_VISITS_MAX
from onelog.projections.stream.partition import Partition
from onelog.projections.stream.record import (
    TYPE_APPEND,
    Append,
    DeadLetter,
    decode_record,
    open_append,
)
from onelog.projections.stream.state import StreamState
from onelog.ual.entry import FLAG_ZSTD, Entry

# What a record, and each of its headers, takes besides its bytes: numbers, tags and lengths.
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

    def scan(
        self, first_index: int, last_index: int | None = None, *, stream_id: int | None = None
    ) -> Iterator[Entry]:
        """Yield the records of a stream in order, up to what is applied."""

    def seek_time(self, timestamp_ns: int) -> int | None:
        """Return the first index with at least this timestamp."""


class Record(NamedTuple):
    """A record as a reader gets it; ``dead_letter`` says why it is in this stream.

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
    """Offsets from first to last were trimmed before the reader came to them."""

    stream_id: int
    partition: int
    first_offset: int
    last_offset: int
    cause: Cause
    trimmed_ns: int


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a read; the next one begins at ``next_offset``, whether more is there or not."""

    items: tuple[Record | Gap, ...]
    next_offset: int
    # Records that were looked at, wanted or not, and the first of them.
    visit_count: int = 0
    first_visited: int | None = None


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records a reader wants: those that meet every condition that is set."""

    keys: frozenset[bytes] = frozenset()
    key_prefix: bytes = b""
    tags: frozenset[str] = frozenset()
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())  # None: any value

    def wants(self, record: Record) -> bool:
        """Tell whether the record meets all conditions."""
        if self.keys and record.key not in self.keys:
            return False
        if self.key_prefix and not (record.key or b"").startswith(self.key_prefix):
            return False
        if self.tags and record.tag not in self.tags:
            return False
        return all(
            any(name == each and value in (None, found) for each, found in record.headers)
            for name, value in self.headers
        )


EVERYTHING = RecordFilter()


class _Source(NamedTuple):
    """A partition as it was when the read was decided, and from where its records are wanted."""

    partition: Partition
    first_offset: int
    offset: int


class PageRead:
    """A read of some partitions, decided on the state; see the module's text."""

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
        """Tell whether nothing of it was trimmed or deleted since; not for other threads."""
        return all(
            partition.attached and partition.first_offset <= max(first_offset, offset)
            for partition, first_offset, offset in self._sources
        )

    def is_whole(self, find: Callable[[int], StreamState | None], first_index: int) -> bool:
        """Tell of a past state whether the log, which begins at an index, still had all of it.

        ``find`` looks for a stream in the state of now: what that one keeps is in the log.
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
        records = found[0] if len(found) == 1 else merge(*found, key=lambda each: each[0].index)
        wanted = self._wanted
        count = size = visits = 0
        first_visited: int | None = None
        next_offset = max(self.offset, self.last_index + 1)
        for entry, partition in records:
            if count == limit or visits == READ_VISITS_MAX or size >= size_max:
                next_offset = entry.index
                break
            if not visits:
                first_visited = entry.index
            visits += 1
            record = open_record(log, entry, partition.stream_id, partition.number)
            size += size_of(record)
            if wanted is EVERYTHING or wanted.wants(record):
                items.append(record)
                count += 1
        return Page(tuple(items), next_offset, visits, first_visited)

    def _records(self, log: RecordLog, source: _Source) -> Iterator[tuple[Entry, Partition]]:
        # A segment goes when nobody needs anything of it, so the log may begin behind the first
        # offset that is kept: then no record is in between.
        first = max(source.offset, source.first_offset, log.first_index)
        if first <= self.last_index:
            for entry in log.scan(first, self.last_index, stream_id=source.partition.id):
                yield entry, source.partition


def gaps(partition: Partition, offset: int) -> list[Gap]:
    """Return what a reader that comes from ``offset`` has lost, in order."""
    found: list[Gap] = []
    first = max(offset, partition.stream_id + 1)
    for before, cause, when_ns in partition.trims:
        if before > first:
            found.append(
                Gap(partition.stream_id, partition.number, first, before - 1, cause, when_ns)
            )
            first = before
    return found


def open_record(log: RecordLog, entry: Entry, stream_id: int, partition: int) -> Record:
    """Return the record that an entry is, or leads to."""
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


def size_of(record: Record) -> int:
    """Return how many bytes a record takes, at most, where it is sent."""
    size = RECORD_OVERHEAD + len(record.value)
    if record.key is not None:
        size += len(record.key)
    if record.tag is not None:
        size += CHARACTER_SIZE_MAX * len(record.tag)
    for name, value in record.headers:
        size += HEADER_OVERHEAD + CHARACTER_SIZE_MAX * len(name) + len(value)
    return size


def letter_headers(letter: DeadLetter, stream: str) -> tuple[tuple[str, bytes], ...]:
    """Return what a dead letter says of itself, besides the record of ``stream`` that it was."""
    return (
        (HEADER_OFFSET, str(letter.origin).encode()),
        (HEADER_STREAM, stream.encode()),
        (HEADER_GROUP, letter.group.encode()),
        (HEADER_RETRIES, str(letter.deliveries).encode()),
        (HEADER_REASON, letter.reason),
        (HEADER_FAILED, str(letter.failed_ns).encode()),
    )
