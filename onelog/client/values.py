"""What calls take and return: small values, the same in the async client and the blocking one.

Names of units are part of the names: ``_s`` seconds, ``_ns`` nanoseconds since 1970-01-01 UTC.
A version, an index or an offset is a position in the log of one shard.

Queue values
------------
Settings and state of queues, and messages as they are sent and received.

Stream values
-------------
Settings and state of streams and groups, and records as they are sent and received.

Kv requests
-----------
Operations on keys as they are sent: filled in here for calls, transactions and batches alike.
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

# What a field has room for, less what a float may be above it; some 300 million years.
MILLISECONDS_MAX = (1 << 63) - 1


def to_bytes(value: str | bytes) -> bytes:
    """Return a key, name or value as it is sent: text is UTF-8."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidArgument(f"bytes or str are expected, not {type(value).__name__}")


def milliseconds(seconds: float | None) -> int:
    """Return a duration as it is sent; a positive one never becomes 0, which means none."""
    if not seconds:
        return 0
    if not 0 < seconds * 1000 <= MILLISECONDS_MAX:
        raise InvalidArgument(f"a duration of {seconds} s", reason="DURATION_INVALID")
    return max(1, round(seconds * 1000))


@dataclass(frozen=True, slots=True)
class Read:
    """What a read may miss; by default nothing that was acknowledged before it began."""

    # Ask any replica: anything may be missing that has not reached it.
    stale: bool = False

    # With ``stale``: refuse an answer that may be older than this.
    max_staleness_s: float | None = None

    # Wait until the replica has this index: a version that a write returned, so that one's own
    # writes are read.
    min_index: int = 0

    # The state as it was at this index; 0: now.
    as_of_index: int = 0

    # Let the leader answer by its lease, without asking the others whether it still leads. Nothing
    # is missing as long as the clocks of the servers run alike within a fifth.
    by_lease: bool = False

    @property
    def takes_long(self) -> bool:
        """Whether the answer may have to wait for something, and others are not to wait with it."""
        return bool(self.min_index or self.as_of_index)

    def put(self, options: common_pb2.ReadOptions) -> None:
        """Write it into a request."""
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
    """A key as a read finds it."""

    key: bytes
    value: bytes
    version: int
    expires_ns: int = 0
    lease_id: int = 0

    @property
    def text(self) -> str:
        """The value as text."""
        return self.value.decode()

    def json(self) -> Any:
        """Return the value as a document."""
        return json.loads(self.value)


def item_of(found: kv_pb2.KeyValue) -> Item:
    """Return a key as the server sends it."""
    return Item(found.key, found.value, found.version, found.expires_ns, found.lease_id)


class Version(NamedTuple):
    """A past version of a key; the value is None where it was deleted."""

    version: int
    value: bytes | None
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """Where a write stands in the log."""

    shard: int
    index: int
    duplicate: bool = False


def written_of(header: common_pb2.WriteHeader) -> Written:
    """Return where a write stands as the server says it."""
    return Written(header.shard, header.index, header.duplicate)


class TxnResult(NamedTuple):
    """What a transaction did: one result for each operation of the branch that was taken.

    A get has an ``Item`` or None, a counter its number, an append the size, a delete the count.
    """

    succeeded: bool
    version: int
    results: list[Item | int | None]


class LeaseInfo(NamedTuple):
    """A lease and the keys that go with it."""

    ttl_s: float
    expires_ns: int
    keys: list[bytes]


class Enqueued(NamedTuple):
    """A message that is in its queue; ``deduplicated``: it was there already."""

    message_id: int
    deduplicated: bool = False


class Message(NamedTuple):
    """A message of a queue, leased or looked at; ``token`` settles it."""

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
    """What became of a message that was to be settled; no reason: it is done."""

    message_id: int
    reason: str = ""
    dead: bool = False


class Appended(NamedTuple):
    """Where a record stands; ``duplicate``: the producer had sent it before."""

    offset: int
    partition: int = 0
    duplicate: bool = False


class Gap(NamedTuple):
    """Records that are gone, and why."""

    first_offset: int
    last_offset: int
    reason: str


class Record(NamedTuple):
    """A record of a stream; with ``gap`` it stands for records that are gone."""

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


# Queue values

_STATES = {
    queue_pb2.MESSAGE_STATE_READY: "ready",
    queue_pb2.MESSAGE_STATE_DELAYED: "delayed",
    queue_pb2.MESSAGE_STATE_LEASED: "leased",
}
# What the server takes in one request.
MESSAGES_MAX = 1_000
# What a message takes in a request to settle it, about.
ITEM_SIZE = 24
# Why a single message cannot be settled, and the others of its request can.
REASONS_OF_ONE = frozenset(("LEASE_TOKEN_STALE", "MESSAGE_UNKNOWN", "MESSAGE_LEASED"))
# Codes of google.rpc for refusals of single messages.
_NOT_FOUND = 5
_FAILED_PRECONDITION = 9


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """What a queue is set to do; the defaults are those of the server."""

    # Failures after which a message is dead (0: never), and the queue that takes it then.
    max_deliveries: int = 0
    dead_letter_queue: str = ""

    # Length of a lease that asks for none.
    visibility_s: float = 30.0

    # Waiting that makes up for one step of priority; 0: priority is strict.
    ageing_s: float = 0.0

    # Lifetime of a message that brings none; 0: none.
    ttl_s: float = 0.0

    # How long a dedup id is remembered, and how many of them; 0 of them: no dedup.
    dedup_window_s: float = 300.0
    dedup_max: int = 100_000

    # Messages that the queue may hold; 0: no limit.
    messages_max: int = 0

    # Delay after the first, second, … failure; the last repeats.
    backoff_s: Sequence[float] = ()

    def put(self, config: queue_pb2.QueueConfig) -> None:
        """Write it into a request."""
        config.max_deliveries = self.max_deliveries
        config.dead_letter_queue = self.dead_letter_queue
        config.visibility_ms = milliseconds(self.visibility_s)
        config.ageing_ms = milliseconds(self.ageing_s)
        config.ttl_ms = milliseconds(self.ttl_s)
        config.dedup_window_ms = milliseconds(self.dedup_window_s)
        config.dedup_max = self.dedup_max
        config.messages_max = self.messages_max
        config.backoff_ms.extend(milliseconds(each) for each in self.backoff_s)


def config_of(config: queue_pb2.QueueConfig) -> QueueConfig:
    """Return settings as the server sends them."""
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
    """A queue and how it is doing: what is there now, and what has been since it was created."""

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

    # Of a queue that takes dead letters: those that came, and those that were redriven.
    arrived: int
    moved: int


def info_of(info: queue_pb2.QueueInfo) -> QueueInfo:
    """Return a queue as the server describes it."""
    return QueueInfo(
        info.queue, info.queue_id, config_of(info.config), info.paused,
        info.ready_count, info.delayed_count, info.leased_count, info.oldest_ns,
        info.enqueued_count, info.redriven_count, info.acked_count, info.expired_count,
        info.dead_count, info.cancelled_count, info.purged_count, info.deduplicated_count,
        info.arrived_count, info.moved_count,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be enqueued."""

    body: Value

    # 0 is the most urgent, 15 the least.
    priority: int = 8

    # When it is given out: after a delay, or at a time.
    delay_s: float = 0.0
    at_ns: int = 0

    # How long it lives; 0: as the queue says.
    ttl_s: float = 0.0

    # Two messages with the same id within the queue's window are one.
    dedup_id: Value = b""

    # Messages of one group are given out in order, one at a time.
    group: Value = b""

    # Tenants have equal shares of what is given out.
    tenant: Value = b""
    headers: Mapping[str, Value] = field(default_factory=dict)

    def put(self, message: queue_pb2.NewMessage) -> None:
        """Write it into a request."""
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
    """A message that a queue sends itself; the cron expression is in UTC."""

    schedule_id: int
    cron: str
    next_ns: int


def message_of(found: queue_pb2.Message) -> Message:
    """Return a message as the server sends it."""
    return Message(
        found.message_id,
        found.body,
        found.token,
        found.delivery_count,
        headers_of(found.headers),
        found.priority,
        found.group,
        found.tenant,
        found.enqueued_ns,
        found.lease_expires_ns,
        _STATES.get(found.state, ""),
        found.due_ns,
    )


def headers_of(headers: Any) -> Mapping[str, bytes]:
    """Return headers as a mapping."""
    return {header.name: header.value for header in headers} if headers else {}


def settled_of(result: queue_pb2.SettleResult) -> Settled:
    """Return what became of a message."""
    return Settled(result.message_id, result.reason, result.dead)


def settled_in(result: pipeline_pb2.OperationResult) -> Sequence[queue_pb2.SettleResult]:
    """Return what became of the messages of an operation."""
    results: Sequence[queue_pb2.SettleResult] = result.settle.results
    return results


def to_enqueued(found: queue_pb2.EnqueueResult) -> Enqueued:
    """Return what came of a message; raises if it was refused."""
    if found.HasField("error"):
        raise error_of_result(found.error)
    return Enqueued(found.message_id, found.deduplicated)


def error_of_settled(settled: Settled) -> OnelogError:
    """Return why a message could not be settled."""
    reason, message = settled.reason, f"message {settled.message_id} is not settled"
    if reason in ("LEASE_LOST", "LEASE_TOKEN_STALE"):
        return LeaseLost(message, reason=reason)
    is_missing = reason.endswith(("_NOT_FOUND", "_UNKNOWN"))
    return make_error(_NOT_FOUND if is_missing else _FAILED_PRECONDITION, message, reason)


# Stream values


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


# Kv requests

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
    """Fill in a change of a number; exactly one of the changes is given."""
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
    put_path(request.path, path)
    request.json = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    request.create_parents = create_parents


def fill_delete_json(request: kv_pb2.SetJsonRequest, key: Key, path: Path) -> None:
    """Fill in the removal of a part of a document."""
    request.key = to_bytes(key)
    put_path(request.path, path)


def put_path(message: kv_pb2.JsonPath, path: Path) -> None:
    """Write the way into a document: member names and element numbers."""
    for step in (path,) if isinstance(path, str | int) else path:
        if isinstance(step, str):
            message.steps.add().member = step
        else:
            message.steps.add().element = step


def put_range(
    message: kv_pb2.KeyRange, prefix: Key | None, start: Key | None, end: Key | None
) -> None:
    """Write a range of keys: those with a prefix, or from ``start`` to before ``end``."""
    if prefix is not None and (start is not None or end is not None):
        raise InvalidArgument("a range is a prefix, or start and end", reason="RANGE_INVALID")
    if prefix is not None:
        message.prefix = to_bytes(prefix)
    if start is not None:
        message.start = to_bytes(start)
    if end is not None:
        message.end = to_bytes(end)


def put_condition(
    message: kv_pb2.Condition,
    key: Key,
    *,
    exists: bool | None = None,
    version: int | None = None,
    value: Value | None = None,
    comparison: str = "==",
) -> None:
    """Write a condition; exactly one test is given."""
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
