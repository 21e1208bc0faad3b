"""Settings and state of streams and groups, and records as they are sent and received."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onelog.client.queue_values import headers_of
from onelog.client.values import Appended, Gap, Record, Value, milliseconds, to_bytes
from onelog.status import error_of_result
from onelog.v1 import stream_pb2


@dataclass(frozen=True, slots=True)
class Retention:
    """What of a stream is kept; 0: no bound."""

    age_s: float = 0.0
    size_max: int = 0
    count_max: int = 0

    # Whether records go that a consumer group has not done yet.
    past_groups: bool = False

    def put(self, retention: stream_pb2.Retention) -> None:
        """Write it into a request."""
        retention.age_ms = milliseconds(self.age_s)
        retention.size_max = self.size_max
        retention.count_max = self.count_max
        retention.past_groups = self.past_groups


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition: the lowest offset that is kept and the newest one; 0: there is none."""

    partition: int
    first_offset: int
    last_offset: int
    record_count: int
    size: int


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream and what is in it."""

    stream: str
    stream_id: int
    retention: Retention
    partitions: tuple[PartitionInfo, ...]
    groups: tuple[str, ...]


def stream_info_of(info: stream_pb2.StreamInfo) -> StreamInfo:
    """Return a stream as the server describes it."""
    kept = info.retention
    return StreamInfo(
        info.stream,
        info.stream_id,
        Retention(kept.age_ms / 1000, kept.size_max, kept.count_max, kept.past_groups),
        tuple(
            PartitionInfo(
                each.partition, each.first_offset, each.last_offset, each.record_count, each.size
            )
            for each in info.partitions
        ),
        tuple(info.groups),
    )


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be appended: records of one key are in one partition."""

    value: Value
    key: Value | None = None
    headers: Mapping[str, Value] = field(default_factory=dict)
    tag: str = ""
    partition: int | None = None

    def put(self, record: stream_pb2.NewRecord) -> None:
        """Write it into a request."""
        record.value = to_bytes(self.value)
        if self.key is not None:
            record.key = to_bytes(self.key)
        if self.tag:
            record.tag = self.tag
        if self.partition is not None:
            record.partition = self.partition
        for name, value in self.headers.items():
            record.headers.add(name=name, value=to_bytes(value))


@dataclass(frozen=True, slots=True)
class Producer:
    """Who appends, across restarts: each start raises the epoch, and counts sequences from 1."""

    producer_id: int
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records are wanted; everything that is given must fit."""

    keys: tuple[Value, ...] = ()
    tags: tuple[str, ...] = ()
    headers: Mapping[str, Value] = field(default_factory=dict)

    def put(self, message: stream_pb2.RecordFilter) -> None:
        """Write it into a request."""
        message.keys.extend(to_bytes(key) for key in self.keys)
        message.tags.extend(self.tags)
        for name, value in self.headers.items():
            message.headers.add(name=name, value=to_bytes(value))


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """What a consumer group is set to do."""

    # Any member may take from any partition; otherwise each partition has one member.
    shared: bool = False

    # Deliveries after which a record goes to the dead-letter stream; 0: never.
    max_deliveries: int = 0
    dead_letter_stream: str = ""

    def put(self, config: stream_pb2.GroupConfig) -> None:
        """Write it into a request."""
        config.shared = self.shared
        config.max_deliveries = self.max_deliveries
        config.dead_letter_stream = self.dead_letter_stream


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member of a group."""

    member_id: int
    partitions: tuple[int, ...]
    expires_ns: int
    pending_count: int


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """How far a group is in one partition."""

    partition: int
    committed_offset: int
    next_offset: int
    lag: int
    pending_count: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group and how far it is."""

    config: GroupConfig
    generation: int
    members: tuple[GroupMember, ...]
    partitions: tuple[GroupPartition, ...]


def group_info_of(answer: stream_pb2.GetGroupResponse) -> GroupInfo:
    """Return a group as the server describes it."""
    config = answer.config
    return GroupInfo(
        GroupConfig(config.shared, config.max_deliveries, config.dead_letter_stream),
        answer.generation,
        tuple(
            GroupMember(each.member_id, tuple(each.partitions), each.expires_ns, each.pending_count)
            for each in answer.members
        ),
        tuple(
            GroupPartition(
                each.partition,
                each.committed_offset,
                each.next_offset,
                each.lag,
                each.pending_count,
            )
            for each in answer.partitions
        ),
    )


def record_of(found: stream_pb2.Record) -> Record:
    """Return a record as the server sends it."""
    gap = None
    if found.HasField("gap"):
        gap = Gap(found.gap.first_offset, found.gap.last_offset, found.gap.reason)
    return Record(
        found.offset,
        found.value,
        found.key if found.HasField("key") else None,
        found.partition,
        headers_of(found.headers),
        found.tag,
        found.timestamp_ns,
        found.stream,
        found.delivery_count,
        gap,
    )


def to_appended(found: stream_pb2.AppendResult) -> Appended:
    """Return where a record stands; raises if it was refused."""
    if found.HasField("error"):
        raise error_of_result(found.error)
    return Appended(found.offset, found.partition, found.duplicate)
