"""Settings and state of queues, and messages as they are sent and received."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onelog.client.values import Enqueued, Message, Settled, Value, milliseconds, to_bytes
from onelog.errors import LeaseLost, OnelogError, make_error
from onelog.status import error_of_result
from onelog.v1 import pipeline_pb2, queue_pb2

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
