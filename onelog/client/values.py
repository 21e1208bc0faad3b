"""Arguments and results of calls, the same in the async and the blocking client.

Names end in their units: ``_s`` seconds, ``_ns`` nanoseconds since 1970-01-01 UTC. A version, an
index or an offset is a position in the log of one shard.

In order: values of all models and of keys; settings, state and messages of queues; settings, state
and records of streams and consumer groups; functions that fill in requests about keys, for calls,
transactions and batches alike.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, TypeVar

from onelog.client.tables import Row
from onelog.client.times import Time, to_nanoseconds
from onelog.client.validation import check_fields, make_number_error
from onelog.errors import InvalidArgument, LeaseLost, OnelogError, make_error
from onelog.status import error_of_result
from onelog.v1 import common_pb2, kv_pb2, pipeline_pb2, queue_pb2, stream_pb2

Key = str | bytes
Value = str | bytes

STALE = common_pb2.READ_LEVEL_STALE
LEASE = common_pb2.READ_LEVEL_LEASE
ASYNC = common_pb2.DURABILITY_ASYNC

# The largest int64.
DURATION_MAX = (1 << 63) - 1


# No dedup id, group or tenant. Compared by identity: what else is empty may be a mistake.
NOTHING = b""


def to_bytes(value: str | bytes) -> bytes:
    """Return a key, name or value as bytes; text is encoded as UTF-8."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    what = f"bytes or str are expected, not {type(value).__name__}"
    raise InvalidArgument(what, reason="TYPE_INVALID")


def milliseconds(seconds: float | None) -> int:
    """Return a duration in milliseconds; a positive one never becomes 0, which means none."""
    if seconds is None or seconds == 0:
        return 0
    if not 0 < seconds * 1000 <= DURATION_MAX:
        expected = f"0 to {DURATION_MAX // 1000} seconds"
        raise make_number_error(seconds, expected, "DURATION_INVALID")
    return max(1, round(seconds * 1000))


def nanoseconds(seconds: float) -> int:
    """Return a duration in nanoseconds; a positive one never becomes 0, which means none."""
    if seconds == 0:
        return 0
    if not 0 < seconds * 10**9 <= DURATION_MAX:
        expected = f"0 to {DURATION_MAX // 10**9} seconds"
        raise make_number_error(seconds, expected, "DURATION_INVALID")
    return max(1, round(seconds * 10**9))


def positive_ms(seconds: float | None) -> int:
    """Return a duration in milliseconds that is not 0, which on the wire means the default."""
    if seconds is not None and seconds == 0 and not isinstance(seconds, bool):
        raise make_number_error(seconds, "above 0 seconds", "DURATION_INVALID")
    return milliseconds(seconds)


@dataclass(frozen=True, slots=True)
class Read:
    """How fresh a read is; by default it sees every write acknowledged before it began."""

    # Ask any replica; the answer may lack writes that have not reached it.
    stale: bool = False

    # With ``stale``: fail rather than return an answer that may be older than this.
    max_staleness_s: float | None = None

    # Wait until the replica has applied this index. Pass the version that a write returned to read
    # your own writes.
    min_index: int = 0

    # Read the state as it was at this index; 0: now.
    as_of_index: int = 0

    # The leader answers under its lease, without asking the others whether it still leads. The
    # answer is complete as long as the speeds of the servers' clocks differ by less than a fifth.
    by_lease: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def takes_long(self) -> bool:
        """Whether the answer may have to wait; such a read does not share a message with others."""
        return bool(self.min_index or self.as_of_index)

    def fill(self, options: common_pb2.ReadOptions) -> None:
        """Fill in the protobuf message."""
        if self.stale and self.by_lease:
            raise InvalidArgument("a stale read needs no lease", reason="LEVEL_INVALID")
        if self.by_lease:
            options.level = LEASE
        if self.stale:
            options.level = STALE
            options.max_staleness_ms = positive_ms(self.max_staleness_s)
        elif self.max_staleness_s is not None:
            raise InvalidArgument("a staleness is for stale reads", reason="STALENESS_INVALID")
        if self.min_index:
            options.min_index = self.min_index
        if self.as_of_index:
            options.as_of_index = self.as_of_index


@dataclass(slots=True, unsafe_hash=True)
class Item(Row):
    """A key with its value and version; ``expires_ns`` 0: never, ``lease_id`` 0: no lease."""

    key: bytes
    value: bytes
    version: int
    expires_ns: int = 0
    lease_id: int = 0

    @property
    def text(self) -> str:
        """The value as text (UTF-8)."""
        return self.value.decode()

    def json(self) -> Any:
        """Return the value as a document."""
        return json.loads(self.value)


def to_item(found: kv_pb2.KeyValue) -> Item:
    """Return a key as the server sends it."""
    return Item(found.key, found.value, found.version, found.expires_ns, found.lease_id)


@dataclass(slots=True, unsafe_hash=True)
class Version(Row):
    """A past version of a key; the value is None if it was deleted or has expired."""

    version: int
    value: bytes | None
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Written(Row):
    """A write's place in the log; ``duplicate``: it was a retry of an earlier write."""

    shard: int
    index: int
    duplicate: bool = False


def to_written(header: common_pb2.WriteHeader) -> Written:
    """Convert a write's place in the log from protobuf."""
    return Written(header.shard, header.index, header.duplicate)


@dataclass(slots=True, unsafe_hash=True)
class TxnResult(Row):
    """What a transaction did: one result for each operation of the branch that was carried out.

    A get has an ``Item`` or None, an increment its number, an append the size, a delete the count.
    ``succeeded`` says whether all conditions held.
    """

    succeeded: bool
    version: int
    results: list[Item | int | None]


@dataclass(slots=True, unsafe_hash=True)
class LeaseInfo(Row):
    """A lease: its lifetime, when it expires, and its keys."""

    ttl_s: float
    expires_ns: int
    keys: list[bytes]


@dataclass(slots=True, unsafe_hash=True)
class Enqueued(Row):
    """The id of an enqueued message; ``deduplicated``: it is that of an earlier one."""

    message_id: int
    deduplicated: bool = False


@dataclass(slots=True, unsafe_hash=True)
class Message(Row):
    """A message of a queue, leased or peeked at; ``token`` is needed to settle it."""

    message_id: int
    body: bytes
    token: int = 0
    delivery_count: int = 0
    headers: Mapping[str, bytes] = field(default_factory=dict)
    priority: int = 8
    group: bytes = b""
    tenant: bytes = b""
    enqueued_ns: int = 0
    lease_expires_ns: int = 0
    state: str = ""
    due_ns: int = 0

    # Only of ``peek``: body and headers are missing, because the server cannot read them now.
    unreadable: bool = False

    def json(self) -> Any:
        """Return the body as a document."""
        return json.loads(self.body)


@dataclass(slots=True, unsafe_hash=True)
class Settled(Row):
    """The outcome of settling a message: ``reason`` is empty if it was settled.

    ``dead``: it has failed too often and is not retried.
    """

    message_id: int
    reason: str = ""
    dead: bool = False


@dataclass(slots=True, unsafe_hash=True)
class Appended(Row):
    """The place of an appended record; ``duplicate``: the producer had sent it before."""

    offset: int
    partition: int = 0
    duplicate: bool = False


@dataclass(slots=True, unsafe_hash=True)
class Gap(Row):
    """A range of records that were deleted, and why."""

    first_offset: int
    last_offset: int
    reason: str


@dataclass(slots=True, unsafe_hash=True)
class Record(Row):
    """A record of a stream; with ``gap`` it stands for records that were deleted."""

    offset: int
    value: bytes
    key: bytes | None = None
    partition: int = 0
    headers: Mapping[str, bytes] = field(default_factory=dict)
    tag: str = ""
    timestamp_ns: int = 0
    stream: str = ""
    delivery_count: int = 0
    gap: Gap | None = None

    def json(self) -> Any:
        """Return the value as a document."""
        return json.loads(self.value)


# Queues

_STATES = {
    queue_pb2.MESSAGE_STATE_READY: "ready",
    queue_pb2.MESSAGE_STATE_DELAYED: "delayed",
    queue_pb2.MESSAGE_STATE_LEASED: "leased",
}
# Messages that the server accepts in one request.
MESSAGES_MAX = 1_000
# About the bytes that a message takes in a request to settle it.
ITEM_SIZE = 24
# Reasons that concern one message of a request; the others are settled.
REASONS_OF_ONE = frozenset(("LEASE_TOKEN_STALE", "MESSAGE_UNKNOWN", "MESSAGE_LEASED"))
# google.rpc codes for refusals of single messages.
_NOT_FOUND = 5
_FAILED_PRECONDITION = 9


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Settings of a queue; the defaults are those of the server."""

    # Failed deliveries after which a message is dead (0: never), and the queue it then goes to.
    max_deliveries: int = 0
    dead_letter_queue: str = ""

    # Length of a lease if the consumer does not say otherwise.
    visibility_s: float = 30.0

    # Waiting this long counts as one step of priority; 0: priority is strict.
    ageing_s: float = 0.0

    # Lifetime of a message that does not say its own; 0: no limit.
    ttl_s: float = 0.0

    # How long a dedup id is remembered, and how many at most; 0 of them: no deduplication.
    dedup_window_s: float = 300.0
    dedup_max: int = 100_000

    # The most messages that the queue may hold; 0: no limit.
    messages_max: int = 0

    # Delay after the first, second, … failed delivery; the last value repeats.
    backoff_s: Sequence[float] = ()

    # Messages that a tenant gets in its turn, 1 to 1,000; a tenant that is not here gets 1.
    tenant_weights: Mapping[Value, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

    def fill(self, config: queue_pb2.QueueConfig) -> None:
        """Fill in the protobuf message."""
        config.max_deliveries = self.max_deliveries
        config.dead_letter_queue = self.dead_letter_queue
        config.visibility_ms = positive_ms(self.visibility_s)
        config.ageing_ms = milliseconds(self.ageing_s)
        config.ttl_ms = milliseconds(self.ttl_s)
        config.dedup_window_ms = positive_ms(self.dedup_window_s)
        config.dedup_max = self.dedup_max
        config.messages_max = self.messages_max
        config.backoff_ms.extend(milliseconds(each) for each in self.backoff_s)
        for tenant, weight in self.tenant_weights.items():
            config.tenant_weights.add(tenant=to_bytes(tenant), weight=weight)


def to_queue_config(config: queue_pb2.QueueConfig) -> QueueConfig:
    """Convert a queue's settings from protobuf."""
    default = QueueConfig()
    return QueueConfig(
        config.max_deliveries,
        config.dead_letter_queue,
        config.visibility_ms / 1000 or default.visibility_s,
        config.ageing_ms / 1000,
        config.ttl_ms / 1000,
        config.dedup_window_ms / 1000 or default.dedup_window_s,
        config.dedup_max if config.HasField("dedup_max") else default.dedup_max,
        config.messages_max,
        tuple(each / 1000 for each in config.backoff_ms),
        {each.tenant: each.weight for each in config.tenant_weights},
    )


@dataclass(frozen=True, slots=True)
class QueueInfo(Row):
    """A queue: its settings, what it holds now, and counts since it was created."""

    queue: str
    queue_id: int
    config: QueueConfig
    paused: bool
    ready: int
    delayed: int
    leased: int
    oldest_ns: int
    enqueued: int
    redriven: int
    acked: int
    expired: int
    dead: int
    cancelled: int
    purged: int
    deduplicated: int

    # For a dead-letter queue: messages that arrived, and those that were redriven.
    arrived: int
    moved: int

    # Of the ready ones, those that are not delivered because their bodies cannot be read.
    unreadable: int = 0


def to_queue_info(info: queue_pb2.QueueInfo) -> QueueInfo:
    """Convert a queue's state from protobuf."""
    return QueueInfo(
        info.queue, info.queue_id, to_queue_config(info.config), info.paused,
        info.ready_count, info.delayed_count, info.leased_count, info.oldest_ns,
        info.enqueued_count, info.redriven_count, info.acked_count, info.expired_count,
        info.dead_count, info.cancelled_count, info.purged_count, info.deduplicated_count,
        info.arrived_count, info.moved_count, info.unreadable_count,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be enqueued, with everything that can be set for it."""

    body: Value

    # 0 is the most urgent, 15 the least.
    priority: int = 8

    # Deliver it after a delay, or at a time.
    delay_s: float = 0.0
    at_ns: Time = 0

    # Expire after this long; 0: the queue's setting.
    ttl_s: float = 0.0

    # A second message with the same id within the queue's window is dropped.
    dedup_id: Value = b""

    # Messages of one group are delivered in order, one at a time.
    group: Value = b""

    # Tenants get equal shares of deliveries, or those of ``QueueConfig.tenant_weights``.
    tenant: Value = b""
    headers: Mapping[str, Value] = field(default_factory=dict)

    def fill(self, message: queue_pb2.NewMessage) -> None:
        """Fill in the protobuf message."""
        message.body = to_bytes(self.body)
        if self.priority != 8:
            message.priority = self.priority
        if self.delay_s != 0:
            message.delay_ms = milliseconds(self.delay_s)
        if self.at_ns != 0:
            message.at_ns = to_nanoseconds(self.at_ns, "at_ns")
        if self.ttl_s != 0:
            message.ttl_ms = milliseconds(self.ttl_s)
        message.dedup_id = to_bytes(self.dedup_id)
        message.group = to_bytes(self.group)
        message.tenant = to_bytes(self.tenant)
        for name, value in self.headers.items():
            message.headers.add(name=name, value=to_bytes(value))


@dataclass(frozen=True, slots=True)
class Schedule(Row):
    """A message that a queue enqueues by itself, when the cron expression (UTC) says so."""

    schedule_id: int
    cron: str
    next_ns: int


@dataclass(frozen=True, slots=True)
class Redrive(Row):
    """A running redrive: what it moves, and how far it is."""

    redrive_id: int
    target: str  # empty: the queue in which each died
    target_id: int  # with an empty ``target``: it was deleted, and nothing more is moved
    last_id: int
    failed_from_ns: int
    failed_until_ns: int
    failure_contains: str
    limit: int
    rate_per_s: int
    started_ns: int
    next_ns: int
    next_id: int
    moved: int
    skipped: int
    remaining: int
    remaining_is_partial: bool  # more may remain than were counted


def to_redrive(found: queue_pb2.RunningRedrive) -> Redrive:
    """Convert a running redrive from protobuf."""
    return Redrive(
        found.redrive_id, found.target_queue, found.target_queue_id, found.last_id,
        found.failed_from_ns, found.failed_until_ns, found.failure_contains, found.limit,
        found.rate_per_s, found.started_ns, found.next_ns, found.next_id, found.moved_count,
        found.skipped_count, found.remaining_count, found.remaining_is_partial,
    )  # fmt: skip


MessageT = TypeVar("MessageT", bound=Message)


def to_message(found: queue_pb2.Message, kind: type[MessageT]) -> MessageT:
    """Convert a message from protobuf."""
    return kind(
        found.message_id,
        found.body,
        found.token,
        found.delivery_count,
        to_headers(found.headers),
        found.priority,
        found.group,
        found.tenant,
        found.enqueued_ns,
        found.lease_expires_ns,
        _STATES.get(found.state, ""),
        found.due_ns,
        found.unreadable,
    )


def to_headers(headers: Any) -> Mapping[str, bytes]:
    """Convert headers from protobuf."""
    return {header.name: header.value for header in headers} if headers else {}


def to_settled(result: queue_pb2.SettleResult) -> Settled:
    """Convert the outcome of settling a message from protobuf."""
    return Settled(result.message_id, result.reason, result.dead)


def settled_in(result: pipeline_pb2.OperationResult) -> Sequence[queue_pb2.SettleResult]:
    """Return the outcomes for the messages of a settling operation."""
    results: Sequence[queue_pb2.SettleResult] = result.settle.results
    return results


def to_enqueued(found: queue_pb2.EnqueueResult) -> Enqueued:
    """Convert the result of an enqueue from protobuf; raise if the message was refused."""
    if found.HasField("error"):
        raise error_of_result(found.error)
    return Enqueued(found.message_id, found.deduplicated)


def to_settle_error(settled: Settled) -> OnelogError:
    """Return the exception for a message that could not be settled."""
    reason, message = settled.reason, f"message {settled.message_id} is not settled"
    if reason in ("LEASE_LOST", "LEASE_TOKEN_STALE"):
        return LeaseLost(message, reason=reason)
    is_missing = reason.endswith(("_NOT_FOUND", "_UNKNOWN"))
    return make_error(_NOT_FOUND if is_missing else _FAILED_PRECONDITION, message, reason)


# Streams


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of a stream is kept: by age, bytes and records; 0: no bound."""

    age_s: float = 0.0
    size_max: int = 0
    count_max: int = 0

    # Whether to delete records that a consumer group has not processed yet.
    past_groups: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def fill(self, retention: stream_pb2.Retention) -> None:
        """Fill in the protobuf message."""
        retention.age_ms = milliseconds(self.age_s)
        retention.size_max = self.size_max
        retention.count_max = self.count_max
        retention.past_groups = self.past_groups


@dataclass(frozen=True, slots=True)
class PartitionInfo(Row):
    """One partition: its lowest and highest offset (0: it is empty), records and bytes."""

    partition: int
    first_offset: int
    last_offset: int
    record_count: int
    size: int


def _to_partition_info(found: stream_pb2.PartitionInfo) -> PartitionInfo:
    return PartitionInfo(
        found.partition, found.first_offset, found.last_offset, found.record_count, found.size
    )


@dataclass(frozen=True, slots=True)
class TrimmedPartition:
    """What a trim has left of a partition, and the group that ended it early ("": none)."""

    left: PartitionInfo
    kept_for_group: str


def to_trimmed(answer: stream_pb2.TrimResponse) -> tuple[TrimmedPartition, ...]:
    """Convert the answer to a trim from protobuf."""
    return tuple(
        TrimmedPartition(_to_partition_info(each.left), each.kept_for_group)
        for each in answer.partitions
    )


@dataclass(frozen=True, slots=True)
class StreamInfo(Row):
    """A stream: its retention, partitions and consumer groups."""

    stream: str
    stream_id: int
    retention: Retention
    partitions: tuple[PartitionInfo, ...]
    groups: tuple[str, ...]

    # How keys select partitions: "mixed", or "crc32c" of the oldest streams.
    key_hash: str = "mixed"


def to_stream_info(info: stream_pb2.StreamInfo) -> StreamInfo:
    """Convert a stream's state from protobuf."""
    kept = info.retention
    return StreamInfo(
        info.stream,
        info.stream_id,
        Retention(kept.age_ms / 1000, kept.size_max, kept.count_max, kept.past_groups),
        tuple(map(_to_partition_info, info.partitions)),
        tuple(info.groups),
        stream_pb2.KeyHash.Name(info.key_hash).removeprefix("KEY_HASH_").lower(),
    )


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be appended; records with the same key are in the same partition."""

    value: Value
    key: Value | None = None
    headers: Mapping[str, Value] = field(default_factory=dict)
    tag: str = ""
    partition: int | None = None

    def fill(self, record: stream_pb2.NewRecord) -> None:
        """Fill in the protobuf message."""
        record.value = to_bytes(self.value)
        if self.key is not None:
            record.key = to_bytes(self.key)
        record.tag = self.tag
        if self.partition is not None:
            record.partition = self.partition
        for name, value in self.headers.items():
            record.headers.add(name=name, value=to_bytes(value))


@dataclass(frozen=True, slots=True)
class Producer:
    """Identifies a producer across restarts, so that no record is appended twice.

    Each start of the program raises the epoch and counts sequences from 1.
    """

    producer_id: int
    epoch: int
    sequence: int

    def __post_init__(self) -> None:
        check_fields(self)

    def after(self, count: int) -> "Producer":
        """Return the producer as it is after ``count`` more records."""
        return Producer(self.producer_id, self.epoch, self.sequence + count)

    def fill(self, message: stream_pb2.Producer) -> None:
        """Fill in the protobuf message."""
        message.producer_id = self.producer_id
        message.epoch = self.epoch
        message.sequence = self.sequence


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Selects records: one of the keys, one of the tags and all headers must match, if given.

    A header that is None may have any value.
    """

    keys: tuple[Value, ...] = ()
    tags: tuple[str, ...] = ()
    headers: Mapping[str, Value | None] = field(default_factory=dict)
    key_prefix: Value = b""

    def __post_init__(self) -> None:
        check_fields(self)

    def fill(self, message: stream_pb2.RecordFilter) -> None:
        """Fill in the protobuf message."""
        message.keys.extend(to_bytes(key) for key in self.keys)
        message.key_prefix = to_bytes(self.key_prefix)
        message.tags.extend(self.tags)
        for name, value in self.headers.items():
            if value is None:
                message.header_names.append(name)
            else:
                message.headers.add(name=name, value=to_bytes(value))


def to_record_filter(found: stream_pb2.RecordFilter) -> RecordFilter:
    """Convert a filter from protobuf."""
    headers: dict[str, Value | None] = {each.name: each.value for each in found.headers}
    headers |= dict.fromkeys(found.header_names)
    return RecordFilter(tuple(found.keys), tuple(found.tags), headers, found.key_prefix)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Settings of a consumer group."""

    # Any member may fetch from any partition; otherwise each partition belongs to one member.
    shared: bool = False

    # Deliveries after which a record goes to the dead-letter stream; 0: never.
    max_deliveries: int = 0
    dead_letter_stream: str = ""

    # Members get only these records; all others count as done.
    only: RecordFilter | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def fill(self, config: stream_pb2.GroupConfig) -> None:
        """Fill in the protobuf message."""
        config.shared = self.shared
        config.max_deliveries = self.max_deliveries
        config.dead_letter_stream = self.dead_letter_stream
        if self.only is not None:
            self.only.fill(config.filter)


@dataclass(frozen=True, slots=True)
class GroupMember(Row):
    """One member of a consumer group."""

    member_id: int
    partitions: tuple[int, ...]
    expires_ns: int
    pending_count: int


@dataclass(frozen=True, slots=True)
class GroupPartition(Row):
    """The progress of a consumer group in one partition."""

    partition: int
    committed_offset: int
    next_offset: int
    lag: int
    pending_count: int


@dataclass(frozen=True, slots=True)
class GroupInfo(Row):
    """A consumer group: its settings, members and progress."""

    config: GroupConfig
    generation: int
    members: tuple[GroupMember, ...]
    partitions: tuple[GroupPartition, ...]


def to_group_info(answer: stream_pb2.GetGroupResponse) -> GroupInfo:
    """Convert a consumer group's state from protobuf."""
    config = answer.config
    return GroupInfo(
        GroupConfig(
            config.shared,
            config.max_deliveries,
            config.dead_letter_stream,
            to_record_filter(config.filter) if config.HasField("filter") else None,
        ),
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


RecordT = TypeVar("RecordT", bound=Record)


def to_record(found: stream_pb2.Record, kind: type[RecordT]) -> RecordT:
    """Convert a record from protobuf."""
    gap = None
    if found.HasField("gap"):
        gap = Gap(found.gap.first_offset, found.gap.last_offset, found.gap.reason)
    return kind(
        found.offset,
        found.value,
        found.key if found.HasField("key") else None,
        found.partition,
        to_headers(found.headers),
        found.tag,
        found.timestamp_ns,
        found.stream,
        found.delivery_count,
        gap,
    )


def to_appended(found: stream_pb2.AppendResult) -> Appended:
    """Convert the result of an append from protobuf; raise if the record was refused."""
    if found.HasField("error"):
        raise error_of_result(found.error)
    return Appended(found.offset, found.partition, found.duplicate)


# Requests about keys

Path = str | int | Sequence[str | int]

_COMPARISONS: dict[str, kv_pb2.Comparison] = {
    "==": kv_pb2.COMPARISON_EQUAL,
    "!=": kv_pb2.COMPARISON_NOT_EQUAL,
    "<": kv_pb2.COMPARISON_LESS,
    "<=": kv_pb2.COMPARISON_LESS_OR_EQUAL,
    ">": kv_pb2.COMPARISON_GREATER,
    ">=": kv_pb2.COMPARISON_GREATER_OR_EQUAL,
}


def fill_put(
    request: kv_pb2.PutRequest,
    key: Key,
    value: Value,
    ttl_s: float | None = None,
    lease_id: int = 0,
    expected_version: int | None = None,
) -> None:
    """Fill in a put."""
    request.key = to_bytes(key)
    request.value = to_bytes(value)
    if ttl_s is not None:
        request.ttl_ms = positive_ms(ttl_s)
    if lease_id:
        request.lease_id = lease_id
    if expected_version is not None:
        request.expected_version = expected_version


def fill_delete(
    request: kv_pb2.DeleteRequest, key: Key, expected_version: int | None = None
) -> None:
    """Fill in a delete."""
    request.key = to_bytes(key)
    if expected_version is not None:
        request.expected_version = expected_version


def fill_touch(
    request: kv_pb2.TouchRequest,
    key: Key,
    ttl_s: float | None,
    expected_version: int | None = None,
) -> None:
    """Fill in a touch."""
    request.key = to_bytes(key)
    request.ttl_ms = positive_ms(ttl_s)
    if expected_version is not None:
        request.expected_version = expected_version


def fill_count(
    request: kv_pb2.CountRequest,
    key: Key,
    *,
    add: int | None = None,
    lower_to: int | None = None,
    raise_to: int | None = None,
) -> None:
    """Fill in a change of a number; exactly one change must be given."""
    request.key = to_bytes(key)
    if add is not None:
        request.add = add
    if lower_to is not None:
        request.lower_to = lower_to
    if raise_to is not None:
        request.raise_to = raise_to


def fill_append(request: kv_pb2.AppendRequest, key: Key, data: Value) -> None:
    """Fill in an append."""
    request.key = to_bytes(key)
    request.data = to_bytes(data)


def fill_set_json(
    request: kv_pb2.SetJsonRequest, key: Key, path: Path, value: Any, *, create_parents: bool = True
) -> None:
    """Fill in a change of a part of a document."""
    request.key = to_bytes(key)
    fill_path(request.path, path)
    request.json = to_json(value)
    request.create_parents = create_parents


def fill_delete_json(request: kv_pb2.SetJsonRequest, key: Key, path: Path) -> None:
    """Fill in the removal of a part of a document."""
    request.key = to_bytes(key)
    fill_path(request.path, path)


def to_json(value: Any) -> bytes:
    """Return a document as JSON text; a tuple is an array.

    Raises InvalidArgument (JSON_INVALID) for what JSON cannot hold: NaN, infinities, names of
    members that are no text. Python would write them as something else.
    """
    try:
        _refuse_other_names(value)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"no document: {error}", reason="JSON_INVALID") from None
    return text.encode()


def _refuse_other_names(value: Any) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise TypeError(f"the name of a member is {name!r}, not str")
            _refuse_other_names(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _refuse_other_names(inner)


def fill_path(message: kv_pb2.JsonPath, path: Path) -> None:
    """Fill in a path into a document: member names and element numbers."""
    steps: Any = path if not isinstance(path, str) and hasattr(path, "__len__") else (path,)
    for step in steps:
        if isinstance(step, str):
            message.steps.add().member = step
        elif isinstance(step, Integral) and not -(2**31) <= int(step) < 2**31:
            expected = "-2147483648 to 2147483647"
            raise make_number_error(int(step), expected, "NUMBER_INVALID")
        else:
            message.steps.add().element = step


def fill_range(
    message: kv_pb2.KeyRange, prefix: Key | None, start: Key | None, end: Key | None
) -> None:
    """Fill in a range of keys: those with a prefix, or from ``start`` to before ``end``."""
    if prefix is not None and (start is not None or end is not None):
        raise InvalidArgument("a range is a prefix, or start and end", reason="RANGE_INVALID")
    if prefix is not None:
        message.prefix = to_bytes(prefix)
    if start is not None:
        message.start = to_bytes(start)
    if end is not None:
        message.end = to_bytes(end)


def fill_condition(
    message: kv_pb2.Condition,
    key: Key,
    *,
    exists: bool | None = None,
    version: int | None = None,
    value: Value | None = None,
    comparison: str = "==",
) -> None:
    """Fill in a condition; exactly one test must be given."""
    if comparison not in _COMPARISONS:
        raise InvalidArgument(
            f"{comparison!r} is none of {' '.join(_COMPARISONS)}", reason="COMPARISON_INVALID"
        )
    if (exists is not None) + (version is not None) + (value is not None) != 1:
        raise InvalidArgument(
            "a condition is about existence, version or value", reason="CONDITION_INVALID"
        )
    message.key = to_bytes(key)
    if exists is not None:
        message.exists = exists
    if version is not None:
        message.version.comparison = _COMPARISONS[comparison]
        message.version.version = version
    if value is not None:
        message.value.comparison = _COMPARISONS[comparison]
        message.value.value = to_bytes(value)
