"""Reading streams: what there is, from the state; records, from a log that is handed in.

How records are read is in pages.py; here is from which partitions and from where on.

All partitions of a shard count in the same offsets. So one number is enough to resume a tail over
any number of streams: the offset up to which everything was seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onelog.projections.projection import Position
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.stream.commands import Retention
from onelog.projections.stream.group_commands import GroupConfig
from onelog.projections.stream.group_operations import claimable_from
from onelog.projections.stream.groups import Group, split_place
from onelog.projections.stream.limits import LIST_MAX, READ_RECORDS_MAX
from onelog.projections.stream.pages import (
    EVERYTHING,
    Page,
    PageRead,
    Record,
    RecordFilter,
    RecordLog,
    open_record,
)
from onelog.projections.stream.partition import Partition
from onelog.projections.stream.state import Streams, StreamState


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition: readable from first to before end; counts of what is kept are upper bounds."""

    partition: int
    partition_id: int
    first_offset: int
    end_offset: int
    record_count: int
    record_count_kept: int
    size_kept: int


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """A stream as it is set up, and what it holds."""

    name: str
    stream_id: int
    retention: Retention
    partitions: tuple[PartitionDescription, ...]
    groups: tuple[str, ...]
    producer_count: int
    dead_letter_count: int


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
    pending_of_members: Mapping[int, int]  # 0: of nobody; who has none is not in it
    pending_of_partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """A record that was delivered and not acknowledged; ``member`` 0 holds nobody's."""

    partition: int
    offset: int
    member: int
    since_ns: int
    deliveries: int
    ready_ns: int
    reason: bytes
    dead: bool


class StreamReads:
    """The reading half of the projection."""

    def __init__(self, position: Position, streams: Streams) -> None:
        self._position = position
        self._streams = streams
        self.gone = streams.gone

    def namespaces(self) -> tuple[str, ...]:
        """Return the namespaces in order."""
        return tuple(sorted(self._streams.names))

    def list_streams(
        self, namespace: str, *, prefix: str = "", after: str = "", limit: int = LIST_MAX
    ) -> tuple[str, ...] | Refused:
        """Return names of streams in order, those behind ``after``, at most ``limit``."""
        names = self._streams.names.get(namespace)
        if names is None:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        if not 1 <= limit <= LIST_MAX:
            return Refused(Reason.LIMIT_INVALID, limit)
        found = sorted(name for name in names if name.startswith(prefix) and name > after)
        return tuple(found[:limit])

    def describe(self, namespace: str, name: str) -> StreamDescription | Refused:
        """Return how a stream is set up and what it holds."""
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

    def list_pending(
        self,
        namespace: str,
        name: str,
        group: str,
        *,
        after: tuple[int, int] = (0, 0),
        limit: int = LIST_MAX,
    ) -> tuple[PendingRecord, ...] | Refused:
        """Return pending records in order, those behind the place ``after``."""
        found = self.find_group(namespace, name, group)
        if isinstance(found, Refused):
            return found
        if not 1 <= limit <= LIST_MAX:
            return Refused(Reason.LIMIT_INVALID, limit)
        rows: list[PendingRecord] = []
        for place, pending in found[1].pending.rows.items():
            if len(rows) == limit:
                break
            if split_place(place) > after:
                rows.append(PendingRecord(*split_place(place), *pending))
        return tuple(rows)

    def claimable_from(
        self, namespace: str, name: str, group: str, idle_ns: int
    ) -> int | Refused | None:
        """Return the log time from which a claim finds something; None if nothing is pending."""
        found = self.find_group(namespace, name, group)
        return found if isinstance(found, Refused) else claimable_from(found[1], idle_ns)

    def read(
        self,
        log: RecordLog,
        namespace: str,
        name: str,
        partition: int,
        offset: int | None = None,
        *,
        limit: int = READ_RECORDS_MAX,
        wanted: RecordFilter = EVERYTHING,
    ) -> Page | Refused:
        """Return records of one partition from ``offset`` on (None: the first one kept)."""
        stream = self._streams.find(namespace, name)
        if isinstance(stream, Refused):
            return stream
        if partition >= len(stream.partitions):
            return Refused(Reason.PARTITION_UNKNOWN, partition)
        chosen = stream.partitions[partition]
        start = chosen.first_offset if offset is None else offset
        return self._read(log, [chosen], start, limit, wanted)

    def read_many(
        self,
        log: RecordLog,
        namespace: str,
        names: Sequence[str],
        offset: int,
        *,
        limit: int = READ_RECORDS_MAX,
        wanted: RecordFilter = EVERYTHING,
    ) -> Page | Refused:
        """Return records of all partitions of some streams, in the order of the log.

        ``next_offset`` is all that is needed to go on, also after a restart of either side.
        """
        partitions: list[Partition] = []
        for name in dict.fromkeys(names):
            stream = self._streams.find(namespace, name)
            if isinstance(stream, Refused):
                return stream
            partitions += stream.partitions
        return self._read(log, partitions, offset, limit, wanted)

    def read_pending(
        self, log: RecordLog, namespace: str, name: str, partition: int, offsets: Sequence[int]
    ) -> tuple[Record, ...] | Refused:
        """Return records that a group has pending: they are kept, trimmed or not."""
        stream = self._streams.find(namespace, name)
        if isinstance(stream, Refused):
            return stream
        return tuple(open_record(log, log.read(offset), stream.id, partition) for offset in offsets)

    def next_offsets(
        self,
        log: RecordLog,
        namespace: str,
        name: str,
        group: str,
        partition: int,
        *,
        limit: int,
        wanted: RecordFilter = EVERYTHING,
    ) -> Page | Refused:
        """Return what a delivery to a member of the group would hold.

        The proposer of ``Deliver`` takes ``from_offset`` from the group's description, the offsets
        of the records and ``next_offset`` from here.
        """
        found = self.find_group(namespace, name, group)
        if isinstance(found, Refused):
            return found
        stream, state = found
        if partition >= len(stream.partitions):
            return Refused(Reason.PARTITION_UNKNOWN, partition)
        start = state.cursors.rows[partition]
        chosen = stream.partitions[partition]
        page = self._read(log, [chosen], start, limit, wanted)
        if isinstance(page, Refused):
            return page
        return replace(page, next_offset=min(page.next_offset, chosen.end_offset))

    def offset_at_time(
        self, log: RecordLog, namespace: str, name: str, timestamp_ns: int
    ) -> int | Refused:
        """Return the offset from which on records are at least as new as a log time.

        It is the same for all partitions. To seek a group by time, seek to this offset.
        """
        stream = self._streams.find(namespace, name)
        if isinstance(stream, Refused):
            return stream
        index = log.seek_time(timestamp_ns)
        end = min(self._position.applied_index, log.applied_index) + 1
        return max(stream.id + 1, end if index is None else min(index, end))

    def _read(
        self,
        log: RecordLog,
        partitions: Sequence[Partition],
        offset: int,
        limit: int,
        wanted: RecordFilter,
    ) -> Page | Refused:
        if not 1 <= limit <= READ_RECORDS_MAX:
            return Refused(Reason.LIMIT_INVALID, limit)
        return self.page_read(log, [(each, 0) for each in partitions], offset, wanted).run(
            log, limit
        )

    def page_read(
        self,
        log: RecordLog,
        partitions: Sequence[tuple[Partition, int]],
        offset: int,
        wanted: RecordFilter = EVERYTHING,
    ) -> PageRead:
        """Return the read of partitions of this state, each from its own offset on at least."""
        # The log is told after the state, and a batch notes its records at its end: only what
        # both have done is sure to be complete.
        end = min(self._position.applied_index, log.applied_index)
        return PageRead(partitions, offset, end, wanted)

    def find(self, namespace: str, name: str) -> StreamState | Refused:
        """Return a stream, for a look at its state."""
        return self._streams.find(namespace, name)

    def find_by_id(self, stream_id: int) -> StreamState | None:
        """Return the stream that was created at this index, if it is still there."""
        return self._streams.by_id.get(stream_id)

    def name_of(self, stream_id: int) -> str | None:
        """Return the name of the stream that was created at this index, as far as it is known."""
        stream = self.find_by_id(stream_id) or self.gone.by_id(stream_id)
        return None if stream is None else stream.name

    def shape_at(self, namespace: str, name: str, index: int) -> tuple[int, int] | None:
        """Return id and partitions of the stream that had a name at an index, if it is known."""
        stream = self._streams.find(namespace, name)
        if not isinstance(stream, Refused) and stream.id < index:
            return stream.id, len(stream.partitions)
        gone = self.gone.at(namespace, name, index)
        return None if gone is None else (gone.id, gone.partition_count)

    def find_group(
        self, namespace: str, name: str, group: str
    ) -> tuple[StreamState, Group] | Refused:
        """Return a group and its stream, for a look at their state."""
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
        partition.end_offset,
        partition.count,
        count,
        size,
    )
