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
from typing import Any, NamedTuple

from onelog.errors import InvalidArgument, LeaseLost, OnelogError, make_error
from onelog.status import error_of_result
from onelog.v1 import common_pb2, kv_pb2, pipeline_pb2, queue_pb2, stream_pb2

Key = str | bytes
Value = str | bytes

STALE = common_pb2.READ_LEVEL_STALE
LEASE = common_pb2.READ_LEVEL_LEASE
ASYNC = common_pb2.DURABILITY_ASYNC

# The largest int64; about 300 million years.
MILLISECONDS_MAX = (1 << 63) - 1


def to_bytes(value: str | bytes) -> bytes:
    """Return a key, name or value as bytes; text is encoded as UTF-8."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidArgument(f"bytes or str are expected, not {type(value).__name__}")


def milliseconds(seconds: float | None) -> int:
    """Return a duration in milliseconds; a positive one never becomes 0, which means none."""
    if not seconds:
        return 0
    if not 0 < seconds * 1000 <= MILLISECONDS_MAX:
        raise InvalidArgument(f"a duration of {seconds} s", reason="DURATION_INVALID")
    return max(1, round(seconds * 1000))


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

    @property
    def takes_long(self) -> bool:
        """Whether the answer may have to wait; such a read does not share a message with others."""
        return bool(self.min_index or self.as_of_index)

    def put(self, options: common_pb2.ReadOptions) -> None:
        """Fill in the protobuf message."""
        if self.stale and self.by_lease:
            raise InvalidArgument("a stale read needs no lease", reason="LEVEL_INVALID")
        if self.by_lease:
            options.level = LEASE
        if self.stale:
            options.level = STALE
            options.max_staleness_ms = milliseconds(self.max_staleness_s)
        elif self.max_staleness_s is not None:
            raise InvalidArgument("a staleness is for stale reads", reason="STALENESS_INVALID")
        if self.min_index:
            options.min_index = self.min_index
        if self.as_of_index:
            options.as_of_index = self.as_of_index


class Item(NamedTuple):
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


class Version(NamedTuple):
    """A past version of a key; the value is None if it was deleted or has expired."""

    version: int
    value: bytes | None
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """A write's place in the log; ``duplicate``: it was a retry of an earlier write."""

    shard: int
    index: int
    duplicate: bool = False


def to_written(header: common_pb2.WriteHeader) -> Written:
    """Convert a write's place in the log from protobuf."""
    return Written(header.shard, header.index, header.duplicate)


class TxnResult(NamedTuple):
    """What a transaction did: one result for each operation of the branch that was carried out.

    A get has an ``Item`` or None, an increment its number, an append the size, a delete the count.
    ``succeeded`` says whether all conditions held.
    """

    succeeded: bool
    version: int
    results: list[Item | int | None]


class LeaseInfo(NamedTuple):
    """A lease: its lifetime, when it expires, and its keys."""

    ttl_s: float
    expires_ns: int
    keys: list[bytes]


class Enqueued(NamedTuple):
    """The id of an enqueued message; ``deduplicated``: it is that of an earlier one."""

    message_id: int
    deduplicated: bool = False


class Message(NamedTuple):
    """A message of a queue, leased or peeked at; ``token`` is needed to settle it."""

    message_id: int
    body: bytes
    token: int = 0
    delivery_count: int = 0
    headers: Mapping[str, bytes] = {}
    priority: int = 8
    group: bytes = b""
    tenant: bytes = b""
    enqueued_ns: int = 0
    lease_expires_ns: int = 0
    state: str = ""
    due_ns: int = 0

    def json(self) -> Any:
        """Return the body as a document."""
        return json.loads(self.body)


class Settled(NamedTuple):
    """The outcome of settling a message: ``reason`` is empty if it was settled.

    ``dead``: it has failed too often and is not retried.
    """

    message_id: int
    reason: str = ""
    dead: bool = False


class Appended(NamedTuple):
    """The place of an appended record; ``duplicate``: the producer had sent it before."""

    offset: int
    partition: int = 0
    duplicate: bool = False


class Gap(NamedTuple):
    """A range of records that were deleted, and why."""

    first_offset: int
    last_offset: int
    reason: str


class Record(NamedTuple):
    """A record of a stream; with ``gap`` it stands for records that were deleted."""

    offset: int
    value: bytes
    key: bytes | None = None
    partition: int = 0
    headers: Mapping[str, bytes] = {}
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

    def put(self, config: queue_pb2.QueueConfig) -> None:
        """Fill in the protobuf message."""
        config.max_deliveries = self.max_deliveries
        config.dead_letter_queue = self.dead_letter_queue
        config.visibility_ms = milliseconds(self.visibility_s)
        config.ageing_ms = milliseconds(self.ageing_s)
        config.ttl_ms = milliseconds(self.ttl_s)
        config.dedup_window_ms = milliseconds(self.dedup_window_s)
        config.dedup_max = self.dedup_max
        config.messages_max = self.messages_max
        config.backoff_ms.extend(milliseconds(each) for each in self.backoff_s)


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
    )


@dataclass(frozen=True, slots=True)
class QueueInfo:
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


def to_queue_info(info: queue_pb2.QueueInfo) -> QueueInfo:
    """Convert a queue's state from protobuf."""
    return QueueInfo(
        info.queue, info.queue_id, to_queue_config(info.config), info.paused,
        info.ready_count, info.delayed_count, info.leased_count, info.oldest_ns,
        info.enqueued_count, info.redriven_count, info.acked_count, info.expired_count,
        info.dead_count, info.cancelled_count, info.purged_count, info.deduplicated_count,
        info.arrived_count, info.moved_count,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be enqueued, with everything that can be set for it."""

    body: Value

    # 0 is the most urgent, 15 the least.
    priority: int = 8

    # Deliver it after a delay, or at a time.
    delay_s: float = 0.0
    at_ns: int = 0

    # Expire after this long; 0: the queue's setting.
    ttl_s: float = 0.0

    # A second message with the same id within the queue's window is dropped.
    dedup_id: Value = b""

    # Messages of one group are delivered in order, one at a time.
    group: Value = b""

    # Tenants get equal shares of deliveries.
    tenant: Value = b""
    headers: Mapping[str, Value] = field(default_factory=dict)

    def put(self, message: queue_pb2.NewMessage) -> None:
        """Fill in the protobuf message."""
        message.body = to_bytes(self.body)
        if self.priority != 8:
            message.priority = self.priority
        if self.delay_s:
            message.delay_ms = milliseconds(self.delay_s)
        if self.at_ns:
            message.at_ns = self.at_ns
        if self.ttl_s:
            message.ttl_ms = milliseconds(self.ttl_s)
        if self.dedup_id:
            message.dedup_id = to_bytes(self.dedup_id)
        if self.group:
            message.group = to_bytes(self.group)
        if self.tenant:
            message.tenant = to_bytes(self.tenant)
        for name, value in self.headers.items():
            message.headers.add(name=name, value=to_bytes(value))


@dataclass(frozen=True, slots=True)
class Schedule:
    """A message that a queue enqueues by itself, when the cron expression (UTC) says so."""

    schedule_id: int
    cron: str
    next_ns: int


def to_message(found: queue_pb2.Message) -> Message:
    """Convert a message from protobuf."""
    return Message(
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

    def put(self, retention: stream_pb2.Retention) -> None:
        """Fill in the protobuf message."""
        retention.age_ms = milliseconds(self.age_s)
        retention.size_max = self.size_max
        retention.count_max = self.count_max
        retention.past_groups = self.past_groups


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition: its lowest and highest offset (0: it is empty), records and bytes."""

    partition: int
    first_offset: int
    last_offset: int
    record_count: int
    size: int


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream: its retention, partitions and consumer groups."""

    stream: str
    stream_id: int
    retention: Retention
    partitions: tuple[PartitionInfo, ...]
    groups: tuple[str, ...]


def to_stream_info(info: stream_pb2.StreamInfo) -> StreamInfo:
    """Convert a stream's state from protobuf."""
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
    """A record to be appended; records with the same key are in the same partition."""

    value: Value
    key: Value | None = None
    headers: Mapping[str, Value] = field(default_factory=dict)
    tag: str = ""
    partition: int | None = None

    def put(self, record: stream_pb2.NewRecord) -> None:
        """Fill in the protobuf message."""
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
    """Identifies a producer across restarts, so that no record is appended twice.

    Each start of the program raises the epoch and counts sequences from 1.
    """

    producer_id: int
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Selects records: one of the keys, one of the tags and all headers must match, if given."""

    keys: tuple[Value, ...] = ()
    tags: tuple[str, ...] = ()
    headers: Mapping[str, Value] = field(default_factory=dict)

    def put(self, message: stream_pb2.RecordFilter) -> None:
        """Fill in the protobuf message."""
        message.keys.extend(to_bytes(key) for key in self.keys)
        message.tags.extend(self.tags)
        for name, value in self.headers.items():
            message.headers.add(name=name, value=to_bytes(value))


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Settings of a consumer group."""

    # Any member may fetch from any partition; otherwise each partition belongs to one member.
    shared: bool = False

    # Deliveries after which a record goes to the dead-letter stream; 0: never.
    max_deliveries: int = 0
    dead_letter_stream: str = ""

    def put(self, config: stream_pb2.GroupConfig) -> None:
        """Fill in the protobuf message."""
        config.shared = self.shared
        config.max_deliveries = self.max_deliveries
        config.dead_letter_stream = self.dead_letter_stream


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member of a consumer group."""

    member_id: int
    partitions: tuple[int, ...]
    expires_ns: int
    pending_count: int


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """The progress of a consumer group in one partition."""

    partition: int
    committed_offset: int
    next_offset: int
    lag: int
    pending_count: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group: its settings, members and progress."""

    config: GroupConfig
    generation: int
    members: tuple[GroupMember, ...]
    partitions: tuple[GroupPartition, ...]


def to_group_info(answer: stream_pb2.GetGroupResponse) -> GroupInfo:
    """Convert a consumer group's state from protobuf."""
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


def to_record(found: stream_pb2.Record) -> Record:
    """Convert a record from protobuf."""
    gap = None
    if found.HasField("gap"):
        gap = Gap(found.gap.first_offset, found.gap.last_offset, found.gap.reason)
    return Record(
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
    if ttl_s:
        request.ttl_ms = milliseconds(ttl_s)
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
    request.ttl_ms = milliseconds(ttl_s)
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
    request.json = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    request.create_parents = create_parents


def fill_delete_json(request: kv_pb2.SetJsonRequest, key: Key, path: Path) -> None:
    """Fill in the removal of a part of a document."""
    request.key = to_bytes(key)
    fill_path(request.path, path)


def fill_path(message: kv_pb2.JsonPath, path: Path) -> None:
    """Fill in a path into a document: member names and element numbers."""
    for step in (path,) if isinstance(path, str | int) else path:
        if isinstance(step, str):
            message.steps.add().member = step
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
