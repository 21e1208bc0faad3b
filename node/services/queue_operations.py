"""The operations on queues: which entries they become, and what their results and reads mean.

The API names queues by names, the log by ids. Names are looked up in the state of the leader right
before an entry is proposed; a queue that was deleted and created again meanwhile refuses what was
meant for the first. Requests that are invalid whatever the state are refused here.

Rows and results of leases name the entry that holds a body. The caller reads those entries
(``Edge.entries``), and ``fill_rows`` puts as many in as the answer has room for. What a lease got
beyond that is released at once, as if it had not been taken.

A body that cannot be read, because its file is damaged here, is no failure of a worker: the message
is released and named, a peek shows it without its body, and later leases pass over it until it can
be read (``parse_lease``). So a damaged message is handed to nobody, no delivery of it is counted,
and it stays where it is: which messages are unreadable is a fact about this node's disk, and
another leader may deliver them.
"""

import logging
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

from onelog.errors import InvalidArgument, NotFound, OnelogError
from onelog.node.edge.operation import (
    AnswerBudget,
    Content,
    Look,
    Operations,
    Read,
    Write,
    answer_each,
    answer_number,
    applied,
    one_entry_each,
)
from onelog.node.edge.shards import View, invalid, parse_namespace
from onelog.node.public_errors import (
    error_of_bounds,
    error_of_reason,
    error_of_refusal,
    error_of_setting,
    fill_error,
)
from onelog.projections.codec import (
    FLAG_SESSION,
    SESSION_SIZE,
    Ranges,
    SessionRef,
    bound_ranges,
    encode_prefixes,
    read_prefix,
)
from onelog.projections.limits import TTL_NS_MAX, U64_MAX
from onelog.projections.queue import commands
from onelog.projections.queue.commands import (
    TYPE_ACK,
    Command,
    Items,
    Release,
    encode_body,
    encode_command,
)
from onelog.projections.queue.cron import BadCron, parse_cron
from onelog.projections.queue.limits import (
    CRON_DAYS_MAX,
    CRON_SIZE_MAX,
    DEDUP_ENTRIES_DEFAULT,
    DEDUP_WINDOW_NS_DEFAULT,
    DELAY_NS_MAX,
    FAILURE_SIZE_MAX,
    HEADER_NAME_SIZE_MAX,
    HEADER_VALUE_SIZE_MAX,
    HEADERS_MAX,
    HEADERS_RESERVED,
    ITEMS_MAX,
    MESSAGE_KEY_SIZE_MAX,
    MESSAGE_SIZE_MAX,
    PEEK_MESSAGES_MAX,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    QUEUE_NAME_SIZE_MAX,
    VISIBILITY_NS_DEFAULT,
    VISIBILITY_NS_MAX,
)
from onelog.projections.queue.message import (
    ACKED,
    TYPE_ENQUEUE,
    Enqueue,
    Headers,
    Leased,
    QueueConfig,
    ScheduleCreate,
    dead_headers,
    decode_leased,
    decode_verdicts,
    encode_enqueue,
    read_enqueue,
    read_schedule,
)
from onelog.projections.queue.reads import Peeked, QueueInfo
from onelog.projections.queue.store import QueueState
from onelog.projections.queue.table import (
    DELAYED,
    LEASED,
    PRIORITY_MASK,
    PRIORITY_SHIFT,
    READY,
    Dead,
)
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Duplicate, Refused, Result
from onelog.projections.shard_state import Projections
from onelog.ual.entry import Draft, Entry
from onelog.v1 import queue_pb2

_log = logging.getLogger("onelog.node.queues")

WAIT_MS_MAX = 60_000
MS_NS = 1_000_000

_pack_plain = struct.Struct("<QBB").pack  # queue, no options, priority
_pack_ack = struct.Struct("<QBHQQ").pack  # queue, options, one item: id, token
_join = b"".join
_new = tuple.__new__  # a tuple's own constructor makes a Draft in 0.15 instead of 0.5 µs


def check_name(name: str) -> bytes:
    """Return a queue's name whose size is allowed, as it is routed by."""
    encoded = name.encode()
    if not 0 < len(encoded) <= QUEUE_NAME_SIZE_MAX:
        raise error_of_reason(Reason.QUEUE_NAME_INVALID, len(encoded))
    return encoded


def find_queue(state: Projections, namespace: str, name: str) -> QueueState:
    """Return the queue that a request names."""
    queue = state.queue.get_queue(namespace, name)
    if isinstance(queue, QueueState):
        return queue
    if queue.reason is not Reason.QUEUE_UNKNOWN:
        raise error_of_refusal(queue)
    words = f"there is no queue {name!r}; create it first"
    raise NotFound(words, reason=queue.reason.name, metadata={"queue": name})


def check_count(count: int) -> int:
    """Return how many messages a request names or wants, if that is allowed."""
    if not 0 < count <= ITEMS_MAX:
        what = "the number of messages"
        raise error_of_bounds(Reason.LIMIT_INVALID, what, count, ITEMS_MAX)
    return count


def parse_visibility_ns(visibility_ms: int) -> int:
    """Return the length of a lease; 0: as the queue says."""
    visibility_ns = visibility_ms * MS_NS
    if visibility_ns > VISIBILITY_NS_MAX:
        most = VISIBILITY_NS_MAX // MS_NS
        raise error_of_bounds(Reason.VISIBILITY_INVALID, "visibility_ms", visibility_ms, most)
    return visibility_ns


def parse_items(messages: Sequence[queue_pb2.Leased]) -> Items:
    """Return which messages are settled, with their tokens."""
    check_count(len(messages))
    return tuple((each.message_id, each.token) for each in messages)


def parse_ids(message_ids: Sequence[int]) -> tuple[int, ...]:
    """Return which messages are meant."""
    check_count(len(message_ids))
    return tuple(message_ids)


def parse_priority(priority: int) -> int:
    """Return a priority that there is."""
    if priority > PRIORITY_MAX:
        raise error_of_bounds(Reason.PRIORITY_INVALID, "priority", priority, PRIORITY_MAX, 0)
    return priority


def parse_delay_ns(delay_ms: int) -> int:
    """Return a delay; absurd ones are refused."""
    delay_ns = delay_ms * MS_NS
    if delay_ns > DELAY_NS_MAX:
        most = DELAY_NS_MAX // MS_NS
        raise error_of_bounds(Reason.DELAY_INVALID, "delay_ms", delay_ms, most, 0)
    return delay_ns


# Messages


def find_queue_ids(state: Projections, namespace: str, requests: Sequence[Any]) -> dict[str, int]:
    """Return the ids of the queues that requests name, by their names."""
    return {name: find_queue(state, namespace, name).id for name in set(map(_queue_name, requests))}


def _enqueue(
    state: Projections,
    requests: Sequence[queue_pb2.EnqueueRequest],
    namespace: str,
    session: SessionRef | None,
) -> list[Draft]:
    """Return an entry for each message. This loop is what a message costs before the log."""
    for count in set(count_messages(requests)):
        check_count(count)
    ids, prefixes = find_queue_ids(state, namespace, requests), encode_prefixes(namespace, session)
    pack_plain, join, new = _pack_plain, _join, _new
    drafts: list[Draft] = []
    add = drafts.append
    for request in requests:
        queue_id = ids[request.queue]
        for message in request.messages:
            body = message.body
            priority = message.priority if message.HasField("priority") else PRIORITY_DEFAULT
            if (
                message.delay_ms
                or message.at_ns
                or message.ttl_ms
                or message.dedup_id
                or message.group
                or message.tenant
                or message.headers
                or priority > PRIORITY_MAX
                or len(body) > MESSAGE_SIZE_MAX
            ):
                try:
                    command = _parse_enqueue(state, queue_id, message)
                except OnelogError as error:
                    error.metadata["position"] = str(list(request.messages).index(message))
                    raise
                payload = join((next(prefixes), encode_enqueue(command)))
            else:
                payload = join((next(prefixes), pack_plain(queue_id, 0, priority), body))
            add(new(Draft, (TYPE_ENQUEUE, payload, 0)))
    return drafts


def count_messages(requests: Sequence[Any]) -> list[int]:
    """Return how many messages each request has."""
    return [len(request.messages) for request in requests]


def _parse_enqueue(state: Projections, queue_id: int, message: queue_pb2.NewMessage) -> Enqueue:
    if message.delay_ms and message.at_ns:
        raise invalid("DELAY_INVALID", "both delay_ms and at_ns are given; a message has one delay")
    ahead_ns = message.at_ns - state.router.log_time_ns
    if ahead_ns > DELAY_NS_MAX:
        most = state.router.log_time_ns + DELAY_NS_MAX
        raise error_of_bounds(Reason.DELAY_INVALID, "at_ns", message.at_ns, most, 0)
    return Enqueue(
        queue_id,
        _parse_body(message),
        _parse_priority(message),
        parse_delay_ns(message.delay_ms) or None,
        message.at_ns or None,
        _parse_ttl_ns(message),
        _parse_key("dedup_id", message.dedup_id),
        _parse_key("group", message.group),
        _parse_key("tenant", message.tenant),
        _parse_headers(message.headers),
    )


def _parse_schedule(
    state: Projections, namespace: str, request: queue_pb2.CreateScheduleRequest
) -> ScheduleCreate:
    queue_id = find_queue(state, namespace, request.queue).id
    message, cron = request.message, request.cron.encode()
    if message.delay_ms or message.at_ns or message.dedup_id:
        words = "delay_ms, at_ns and dedup_id are not for the messages of schedules"
        raise invalid("SCHEDULE_MESSAGE_INVALID", words)
    if len(cron) > CRON_SIZE_MAX:
        what = "the size of the cron expression"
        raise error_of_bounds(Reason.CRON_INVALID, what, len(cron), CRON_SIZE_MAX)
    try:
        next_ns = parse_cron(cron).next_after(state.router.log_time_ns)
    except BadCron as error:
        raise error_of_reason(Reason.CRON_INVALID, error.field, str(error)) from None
    if next_ns is None:
        raise error_of_reason(Reason.CRON_NEVER, CRON_DAYS_MAX)
    return ScheduleCreate(
        queue_id,
        cron,
        _parse_body(message),
        _parse_priority(message),
        _parse_ttl_ns(message),
        _parse_key("group", message.group),
        _parse_key("tenant", message.tenant),
        _parse_headers(message.headers),
    )


def _parse_body(message: queue_pb2.NewMessage) -> bytes:
    if len(message.body) > MESSAGE_SIZE_MAX:
        what = "the size of a body"
        raise error_of_bounds(
            Reason.MESSAGE_TOO_LARGE, what, len(message.body), MESSAGE_SIZE_MAX, 0
        )
    return message.body


def _parse_priority(message: queue_pb2.NewMessage) -> int:
    return parse_priority(message.priority) if message.HasField("priority") else PRIORITY_DEFAULT


def _parse_ttl_ns(message: queue_pb2.NewMessage) -> int | None:
    ttl_ns = message.ttl_ms * MS_NS
    if ttl_ns > TTL_NS_MAX:
        most = TTL_NS_MAX // MS_NS
        raise error_of_bounds(Reason.TTL_INVALID, "ttl_ms", message.ttl_ms, most)
    return ttl_ns or None


def _parse_key(name: str, key: bytes) -> bytes:
    if len(key) > MESSAGE_KEY_SIZE_MAX:
        what = f"the size of {name}"
        raise error_of_bounds(Reason.MESSAGE_KEY_INVALID, what, len(key), MESSAGE_KEY_SIZE_MAX)
    return key


def _parse_headers(headers: Sequence[queue_pb2.Header]) -> Headers:
    if len(headers) > HEADERS_MAX:
        raise invalid("HEADER_INVALID", f"{len(headers)} headers, limit {HEADERS_MAX}")
    found = []
    for header in headers:
        name, value = header.name.encode(), header.value
        if not 0 < len(name) <= HEADER_NAME_SIZE_MAX or name.startswith(HEADERS_RESERVED):
            raise error_of_reason(Reason.HEADER_INVALID, len(name), _words_of_header(name))
        if len(value) > HEADER_VALUE_SIZE_MAX:
            what, most = "the size of a header's value", HEADER_VALUE_SIZE_MAX
            raise error_of_bounds(Reason.HEADER_INVALID, what, len(value), most, 0)
        found.append((name, value))
    return tuple(found)


def _words_of_header(name: bytes) -> str:
    if name.startswith(HEADERS_RESERVED):
        return f"headers that begin with {HEADERS_RESERVED.decode()} are written by the server only"
    return f"the name of a header has {len(name)} bytes; allowed: 1 to {HEADER_NAME_SIZE_MAX}"


# Leases


def parse_lease(
    state: Projections,
    queue: QueueState,
    request: queue_pb2.LeaseRequest,
    consumer: bytes = b"",
) -> commands.Lease:
    """Return the command of a request, which passes over what cannot be read here.

    ``consumer`` is the client that the messages are pushed to, if it names itself.
    """
    if request.wait_ms > WAIT_MS_MAX:
        raise invalid("WAIT_INVALID", f"wait_ms is {request.wait_ms}; allowed: 0 to {WAIT_MS_MAX}")
    count, visibility_ns = (
        check_count(request.count or 1),
        parse_visibility_ns(request.visibility_ms),
    )
    return commands.Lease(queue.id, count, visibility_ns, consumer, find_passed(state, queue))


def find_passed(state: Projections, queue: QueueState) -> Ranges:
    """Return the ranges of entries that leases of a queue pass over: where its bodies may be."""
    unreadable = state.queue.unreadable
    if not unreadable:
        return ()
    return bound_ranges([each for each in unreadable if queue.may_pin(*each)])


def was_answered(state: Projections, session: SessionRef) -> bool:
    """Whether a request is a repetition, or its session has ended: then apply has to decide."""
    found = state.system.sessions.get(session.session)
    return (
        found is None
        or session.sequence < found.first_unacknowledged
        or session.sequence in found.results
    )


def _ack(
    state: Projections,
    requests: Sequence[queue_pb2.AckRequest],
    namespace: str,
    session: SessionRef | None,
) -> list[Draft]:
    """Return the entry of each request; most of them name one message."""
    ids, prefixes = find_queue_ids(state, namespace, requests), encode_prefixes(namespace, session)
    pack, new = _pack_ack, _new
    drafts: list[Draft] = []
    add = drafts.append
    for request in requests:
        queue_id, messages, is_strict = ids[request.queue], request.messages, request.strict
        if len(messages) == 1:
            one = messages[0]
            body = pack(queue_id, is_strict, 1, one.message_id, one.token)
        else:
            body = encode_body(commands.Ack(queue_id, parse_items(messages), is_strict))
        add(new(Draft, (TYPE_ACK, next(prefixes) + body, 0)))
    return drafts


def parse_nack(queue_id: int, request: queue_pb2.NackRequest) -> commands.Nack:
    """Return the command of a request."""
    failure = request.reason.encode()
    if len(failure) > FAILURE_SIZE_MAX:
        what = "the size of reason"
        raise error_of_bounds(Reason.FAILURE_TOO_LARGE, what, len(failure), FAILURE_SIZE_MAX, 0)
    delay_ns = parse_delay_ns(request.delay_ms) if request.HasField("delay_ms") else None
    return commands.Nack(queue_id, parse_items(request.messages), delay_ns, failure, request.strict)


# Queues


def parse_config(state: Projections, namespace: str, config: queue_pb2.QueueConfig) -> QueueConfig:
    """Return settings as the log has them."""
    found = QueueConfig(
        config.max_deliveries,
        _find_dead_queue(state, namespace, config),
        config.visibility_ms * MS_NS or VISIBILITY_NS_DEFAULT,
        config.ageing_ms * MS_NS,
        config.ttl_ms * MS_NS,
        config.dedup_window_ms * MS_NS or DEDUP_WINDOW_NS_DEFAULT,
        config.dedup_max if config.HasField("dedup_max") else DEDUP_ENTRIES_DEFAULT,
        config.messages_max,
        tuple(each * MS_NS for each in config.backoff_ms),
        _parse_weights(config),
    )
    wrong = found.invalid()
    if wrong is not None:
        raise error_of_setting(Reason.QUEUE_CONFIG_INVALID, wrong)
    return found


def _parse_weights(config: queue_pb2.QueueConfig) -> tuple[tuple[bytes, int], ...]:
    """Return the weights of tenants that are not 1, in the order of names."""
    weights = sorted((each.tenant, each.weight) for each in config.tenant_weights)
    for (before, _), (after, _) in pairwise(weights):
        if before == after:
            message = f"tenant {before!r:.140} has two weights"
            raise error_of_reason(Reason.QUEUE_CONFIG_INVALID, len(weights), message)
    return tuple(each for each in weights if each[1] != 1)


def _find_dead_queue(state: Projections, namespace: str, config: queue_pb2.QueueConfig) -> int:
    name = config.dead_letter_queue
    if not name and not config.max_deliveries:
        return 0
    queue = state.queue.get_queue(namespace, name)
    if isinstance(queue, Refused):
        words = f"there is no queue {name!r} for dead letters; create it first"
        if not name:
            words = f"max_deliveries is {config.max_deliveries}, which needs a dead_letter_queue"
        raise InvalidArgument(words, reason="DEAD_QUEUE_INVALID", metadata={"queue": name})
    return queue.id


def parse_redrive(
    state: Projections, namespace: str, request: queue_pb2.RedriveRequest
) -> commands.Redrive:
    """Return the command of a request."""
    failure = _parse_failure(request)
    target = request.target_queue
    return commands.Redrive(
        find_queue(state, namespace, request.queue).id,
        find_queue(state, namespace, target).id if target else 0,
        request.first_id,
        request.last_id,
        request.failed_from_ns,
        request.failed_until_ns,
        request.limit,
        request.rate_per_s,
        failure,
    )


def _parse_failure(request: queue_pb2.RedriveRequest | queue_pb2.PeekRequest) -> bytes:
    """Return the text that the failure reasons of dead letters have to contain."""
    failure = request.failure_contains.encode()
    if len(failure) > MESSAGE_KEY_SIZE_MAX:
        what, most = "the size of failure_contains", MESSAGE_KEY_SIZE_MAX
        raise error_of_bounds(Reason.FAILURE_TOO_LARGE, what, len(failure), most, 0)
    return failure


# Content

_STATES = {
    READY: queue_pb2.MESSAGE_STATE_READY,
    DELAYED: queue_pb2.MESSAGE_STATE_DELAYED,
    LEASED: queue_pb2.MESSAGE_STATE_LEASED,
}
_HEAD_SIZE = 10  # of an enqueue: queue, options, priority
_OPTIONS_AT = 8
# What a message takes in an answer besides its body and headers, at most.
MESSAGE_OVERHEAD = 400


def fill_leased(
    state: Projections,
    request: queue_pb2.LeaseRequest,
    answer: queue_pb2.LeaseResponse | queue_pb2.ConsumeResponse,
    leased: Leased,
) -> Sequence[int]:
    """Show what a lease got; return the entries that hold the bodies."""
    queue = state.queue.get_queue(parse_namespace(request.namespace), request.queue)
    add, token, deadline_ns = answer.messages.add, leased.token, leased.deadline_ns
    indexes = []
    for each in leased.messages:
        message = add()
        message.message_id = each.id
        message.token = token
        message.lease_expires_ns = deadline_ns
        message.delivery_count = each.deliveries
        if each.dead is not None:
            _fill_death(message, each.id, each.dead)
        if not isinstance(queue, Refused):
            _fill_place(message, queue, each.id, each.body_index)
        indexes.append(each.body_index)
    return indexes


def _fill_place(
    message: queue_pb2.Message, queue: QueueState, message_id: int, body_index: int
) -> None:
    """Show what only the state knows: a priority that was changed, when a schedule fired."""
    place = queue.table.find(message_id)
    if place is not None:
        block, at = place
        message.priority = block.meta[at] >> PRIORITY_SHIFT & PRIORITY_MASK
        if body_index != message_id:
            message.enqueued_ns = block.since[at]


def fill_peeked(answer: queue_pb2.PeekResponse, peeked: Peeked) -> Sequence[int]:
    """Show messages without taking them; return the entries that hold the bodies."""
    for row in peeked.messages:
        message = answer.messages.add()
        message.message_id = row.id
        message.priority = row.priority
        message.delivery_count = row.deliveries
        message.state = _STATES[row.state]
        if row.state == LEASED:
            message.token, message.lease_expires_ns = row.token, row.due_ns
        elif row.state == DELAYED:
            message.due_ns = row.due_ns
        if row.dead is not None:
            _fill_death(message, row.id, row.dead)
        if row.body:
            message.enqueued_ns = row.since_ns
    answer.next_id = peeked.next_id or 0
    return [row.body_index for row in peeked.messages]


def _fill_death(message: queue_pb2.Message, message_id: int, dead: Dead) -> None:
    for name, value in dead_headers(message_id, dead).items():
        message.headers.add(name=name, value=value.encode())


def fill_rows(
    state: Projections,
    request: queue_pb2.LeaseRequest | queue_pb2.PeekRequest,
    answer: queue_pb2.LeaseResponse | queue_pb2.ConsumeResponse | queue_pb2.PeekResponse,
    entries: Sequence[Entry | None],
    budget: AnswerBudget,
) -> Sequence[Draft]:
    """Put bodies and headers in; cut what there is no room for, and release its leases."""
    messages, is_peek = answer.messages, isinstance(answer, queue_pb2.PeekResponse)
    fitting, unreadable = 0, list[queue_pb2.Message]()
    for message, entry in zip(messages, entries, strict=False):
        if entry is None:
            unreadable.append(message)
            message.unreadable = True
        else:
            payload = entry.plain_payload()
            if not budget.take(len(payload) + MESSAGE_OVERHEAD):
                break
            _fill_body(message, entry, payload)
        fitting += 1
    if fitting == len(messages) and (is_peek or not unreadable):
        return ()
    cut = messages[fitting:]
    del messages[fitting:]
    if is_peek:
        answer.next_id = cut[0].message_id
        return ()
    namespace = parse_namespace(request.namespace)
    items = tuple((message.message_id, message.token) for message in (*unreadable, *cut))
    if unreadable:
        ids = [message.message_id for message in unreadable]
        _log.error("queue %s: the bodies of messages %s cannot be read", request.queue, ids)
        answer.unreadable_ids.extend(ids)
        for at in reversed(range(len(messages))):
            if messages[at].unreadable:
                del messages[at]
    queue = state.queue.get_queue(namespace, request.queue)
    if isinstance(queue, Refused):
        return ()
    return [encode_command(Release(queue.id, items), namespace)]


def find_lease_wait_s(
    state: Projections, answer: queue_pb2.LeaseResponse | queue_pb2.ConsumeResponse
) -> float:
    """Return how long messages that are leased already may wait: half of their lease."""
    left_ns: int = answer.messages[0].lease_expires_ns - state.router.log_time_ns
    return max(left_ns, 0) / 2e9


def _fill_body(message: queue_pb2.Message, entry: Entry, payload: bytes) -> None:
    """Put what an entry holds into a message."""
    at = 3 + payload[2] + (SESSION_SIZE if payload[1] & FLAG_SESSION else 0)
    if not message.enqueued_ns:
        message.enqueued_ns = entry.timestamp_ns
    if entry.entry_type == TYPE_ENQUEUE and not payload[at + _OPTIONS_AT]:
        message.body = payload[at + _HEAD_SIZE :]
        return
    _, reader = read_prefix(payload)
    is_sent = entry.entry_type == TYPE_ENQUEUE
    sent: Enqueue | ScheduleCreate = read_enqueue(reader) if is_sent else read_schedule(reader)
    message.body, message.group, message.tenant = sent.body, sent.group, sent.tenant
    for name, value in sent.headers:
        message.headers.add(name=name.decode(errors="replace"), value=value)


# Operations

PEEK_LIMIT_DEFAULT = 10

# Why all messages of a request are refused, whatever is in them.
_OF_THE_REQUEST = frozenset(
    (Reason.QUEUE_UNKNOWN, Reason.NAMESPACE_UNKNOWN, Reason.SESSION_EXPIRED)
)


_queue_name = attrgetter("queue")


def _by_queue(requests: Sequence[Any]) -> Sequence[Sequence[bytes]]:
    names = list(map(_queue_name, requests))
    routed = {name: (check_name(name),) for name in set(names)}
    return list(map(routed.__getitem__, names))


def _by_queue_and(other: Callable[[Any], str]) -> Callable[[Sequence[Any]], Any]:
    """Return the names of requests that may name another queue, which ``other`` returns."""

    def names(requests: Sequence[Any]) -> Sequence[Sequence[bytes]]:
        return [
            (*own, check_name(other(request))) if other(request) else own
            for request, own in zip(requests, _by_queue(requests), strict=True)
        ]

    return names


# Answers


def _answer_enqueue(
    _state: Projections,
    requests: Sequence[queue_pb2.EnqueueRequest],
    answers: Sequence[queue_pb2.EnqueueResponse],
    results: Sequence[Result],
    indexes: Sequence[int],
) -> None:
    entries = zip(indexes, results, strict=True)
    for request, answer in zip(requests, answers, strict=True):
        add = answer.results.add
        for _ in range(len(request.messages)):
            message_id, result = next(entries)
            if result is APPLIED:
                add().message_id = message_id
            else:
                _fill_enqueued(add(), message_id, result)


def _fill_enqueued(target: queue_pb2.EnqueueResult, message_id: int, result: Result) -> None:
    """Say what happened to a message that was refused, is a duplicate, or was sent before."""
    if isinstance(result, Duplicate):
        message_id, result = result.index, result.first
    if isinstance(result, Refused):
        fill_error(target.error, error_of_refusal(result))
        return
    assert isinstance(result, Applied), result
    target.message_id = result.number or message_id
    target.deduplicated = bool(result.number)


def _answer_lease(
    state: Projections,
    requests: Sequence[queue_pb2.LeaseRequest],
    answers: Sequence[queue_pb2.LeaseResponse],
    results: Sequence[Result],
    _indexes: Sequence[int],
) -> Sequence[Sequence[int]]:
    return [
        fill_leased(state, request, answer, decode_leased(applied(result)))
        for request, answer, result in zip(requests, answers, results, strict=True)
    ]


def _answer_settle(
    state: Projections,
    requests: Sequence[Any],
    answers: Sequence[queue_pb2.SettleResponse],
    results: Sequence[Result],
    indexes: Sequence[int],
) -> None:
    """Say what happened to each message, and which of those nacked are dead."""
    kind = type(requests[0])
    has_ids = kind is queue_pb2.CancelRequest or kind is queue_pb2.PrioritiseRequest
    for request, answer, result, index in zip(requests, answers, results, indexes, strict=True):
        add = answer.results.add
        if result is ACKED:  # all of them are done
            for each in request.messages:
                add().message_id = each.message_id
            continue
        ids = request.message_ids if has_ids else [each.message_id for each in request.messages]
        verdicts = decode_verdicts(applied(result), len(ids))
        dead = frozenset[int]()
        if kind is queue_pb2.NackRequest:
            first_index = result.index if isinstance(result, Duplicate) else index
            dead = state.queue.changes.dead_at(first_index)
        for message_id, verdict in zip(ids, verdicts, strict=True):
            target = add()
            target.message_id = message_id
            if verdict is not None:
                target.reason = verdict.name
            elif message_id in dead:
                target.dead = True


def _answer_redrive(
    _request: queue_pb2.RedriveRequest, answer: queue_pb2.RedriveResponse, _done: Applied
) -> None:
    answer.redrive_id = answer.header.index


# Writes

CommandOf = Callable[[Projections, str, Any], Command]


def _write(
    response: Any, parse_command: CommandOf, names: Any = _by_queue, answer: Any = None
) -> Any:
    """Return the write of one entry, whose command needs the state for the ids of queues."""

    def make(state: Projections, request: Any, namespace: str, session: SessionRef | None) -> Draft:
        return encode_command(parse_command(state, namespace, request), namespace, session)

    return Write(response, names, one_entry_each(make), answer, needs_state=True, nouns="queues")


def _of_queue(make: Callable[[int, Any], Command]) -> CommandOf:
    """Return how a request becomes a command that needs of the state the id of its queue alone."""

    def parse_command(state: Projections, namespace: str, request: Any) -> Command:
        return make(find_queue(state, namespace, request.queue).id, request)

    return parse_command


_dead_queue = attrgetter("config.dead_letter_queue")


def _parse_create(
    state: Projections, namespace: str, request: queue_pb2.CreateQueueRequest
) -> commands.QueueCreate:
    config = parse_config(state, namespace, request.config)
    return commands.QueueCreate(request.queue, config)


def _parse_configure(
    state: Projections, namespace: str, request: queue_pb2.ConfigureQueueRequest
) -> commands.QueueConfigure:
    config = parse_config(state, namespace, request.config)
    queue = find_queue(state, namespace, request.queue)
    if config.dead_queue == queue.id:
        words = f"{queue.name!r} cannot take its own dead letters; name another queue"
        raise InvalidArgument(words, reason="DEAD_QUEUE_INVALID", metadata={"queue": queue.name})
    return commands.QueueConfigure(queue.id, config)


def _why_not_deleted(state: Projections, refused: Refused) -> OnelogError:
    """Return why a queue was not deleted; entries have only the id of the queue that uses it."""
    error = error_of_refusal(refused)
    user = state.queue.queue_by_id(refused.detail)
    if refused.reason is Reason.QUEUE_IN_USE and user is not None:
        error.message = f"the queue {user.name!r} sends its dead letters there"
    return error


def _parse_pause(queue: int, request: queue_pb2.PauseQueueRequest) -> Command:
    return commands.QueuePause(queue) if request.paused else commands.QueueResume(queue)


def _is_nothing_ready(
    state: Projections,
    request: queue_pb2.LeaseRequest,
    namespace: str,
    session: SessionRef | None,
) -> bool:
    """Whether a lease would get nothing, and is not the repetition of one that did."""
    queue = find_queue(state, namespace, request.queue)
    # Refuses what is wrong, though nothing is written.
    command = _parse_pipelined_lease(state, namespace, request)
    if session is not None and was_answered(state, session):
        return False
    return queue.is_paused or queue.next_ready(command.passed) is None


def _parse_pipelined_lease(
    state: Projections, namespace: str, request: queue_pb2.LeaseRequest
) -> commands.Lease:
    if request.wait_ms:
        raise invalid("WAIT_INVALID", "a long poll is a call of its own: others would wait for it")
    return parse_lease(state, find_queue(state, namespace, request.queue), request)


_Settle = Write[Any, queue_pb2.SettleResponse]


def _settle(make: Callable[[int, Any], Command]) -> _Settle:
    found: _Settle = _write(queue_pb2.SettleResponse, _of_queue(make), answer=_answer_settle)
    return found


CREATE_QUEUE: Write[queue_pb2.CreateQueueRequest, queue_pb2.CreateQueueResponse]
CREATE_QUEUE = _write(
    queue_pb2.CreateQueueResponse,
    _parse_create,
    _by_queue_and(_dead_queue),
    answer_number("queue_id"),
)
CONFIGURE_QUEUE: Write[queue_pb2.ConfigureQueueRequest, queue_pb2.ConfigureQueueResponse]
CONFIGURE_QUEUE = _write(
    queue_pb2.ConfigureQueueResponse, _parse_configure, _by_queue_and(_dead_queue)
)
DELETE_QUEUE: Write[queue_pb2.DeleteQueueRequest, queue_pb2.DeleteQueueResponse]
DELETE_QUEUE = replace(
    _write(queue_pb2.DeleteQueueResponse, _of_queue(lambda queue, _: commands.QueueDelete(queue))),
    error_of=_why_not_deleted,
)
PAUSE_QUEUE: Write[queue_pb2.PauseQueueRequest, queue_pb2.PauseQueueResponse]
PAUSE_QUEUE = _write(queue_pb2.PauseQueueResponse, _of_queue(_parse_pause))
ENQUEUE: Write[queue_pb2.EnqueueRequest, queue_pb2.EnqueueResponse]
ENQUEUE = Write(
    queue_pb2.EnqueueResponse,
    _by_queue,
    _enqueue,
    _answer_enqueue,
    needs_state=True,
    counts=count_messages,
    is_refused_by=lambda refused: refused.reason in _OF_THE_REQUEST,
)
LEASE: Write[queue_pb2.LeaseRequest, queue_pb2.LeaseResponse]
LEASE = replace(
    _write(queue_pb2.LeaseResponse, _parse_pipelined_lease, answer=_answer_lease),
    content=Content(fill_rows, find_lease_wait_s),
    returns_data=True,
    is_idle=_is_nothing_ready,
)
ACK: _Settle = Write(queue_pb2.SettleResponse, _by_queue, _ack, _answer_settle, needs_state=True)
NACK = _settle(parse_nack)
EXTEND = _settle(
    lambda queue, request: commands.Extend(
        queue,
        parse_items(request.messages),
        parse_visibility_ns(request.visibility_ms),
        request.strict,
    )
)
RELEASE = _settle(
    lambda queue, request: commands.Release(queue, parse_items(request.messages), request.strict)
)
CANCEL = _settle(
    lambda queue, request: commands.Cancel(queue, parse_ids(request.message_ids), request.strict)
)
PRIORITISE = _settle(
    lambda queue, request: commands.Prioritise(
        queue, parse_ids(request.message_ids), parse_priority(request.priority), request.strict
    )
)
REDRIVE: Write[queue_pb2.RedriveRequest, queue_pb2.RedriveResponse]
REDRIVE = _write(
    queue_pb2.RedriveResponse,
    parse_redrive,
    _by_queue_and(attrgetter("target_queue")),
    answer_each(_answer_redrive),
)
CANCEL_REDRIVE: Write[queue_pb2.CancelRedriveRequest, queue_pb2.CancelRedriveResponse]
CANCEL_REDRIVE = _write(
    queue_pb2.CancelRedriveResponse,
    _of_queue(lambda queue, request: commands.RedriveCancel(queue, request.redrive_id)),
)
CREATE_SCHEDULE: Write[queue_pb2.CreateScheduleRequest, queue_pb2.CreateScheduleResponse]
CREATE_SCHEDULE = _write(
    queue_pb2.CreateScheduleResponse, _parse_schedule, answer=answer_number("schedule_id")
)
DELETE_SCHEDULE: Write[queue_pb2.DeleteScheduleRequest, queue_pb2.DeleteScheduleResponse]
DELETE_SCHEDULE = _write(
    queue_pb2.DeleteScheduleResponse,
    _of_queue(lambda queue, request: commands.ScheduleDelete(queue, request.schedule_id)),
)


# Reads


def _get_queue(
    view: View, namespace: str
) -> Look[queue_pb2.GetQueueRequest, queue_pb2.GetQueueResponse]:
    state = view.projections

    def look(request: queue_pb2.GetQueueRequest, answer: queue_pb2.GetQueueResponse) -> None:
        fill_info(state, answer.queue, find_queue(state, namespace, request.queue))

    return look


def fill_info(state: Projections, target: queue_pb2.QueueInfo, queue: QueueState) -> None:
    """Show a queue."""
    info = state.queue.describe_queue(queue.namespace, queue.id)
    assert isinstance(info, QueueInfo), info
    stats, totals = info.stats, info.stats.totals
    target.namespace, target.queue, target.queue_id = info.namespace, info.name, info.id
    target.paused = info.is_paused
    target.ready_count, target.delayed_count = stats.ready, stats.delayed
    target.leased_count, target.oldest_ns = stats.leased, stats.oldest_ready_ns or 0
    target.enqueued_count = totals["enqueued"]
    target.redriven_count = totals["redriven"]
    target.arrived_count = totals["arrived"]
    target.acked_count = totals["acked"]
    target.expired_count = totals["expired"]
    target.dead_count = totals["dead"]
    target.cancelled_count = totals["cancelled"]
    target.purged_count = totals["purged"]
    target.moved_count = totals["moved"]
    target.deduplicated_count = totals["duplicates"]
    if state.queue.unreadable:
        target.unreadable_count = queue.count_within(state.queue.unreadable)
    config, shown = info.config, target.config
    dead_queue = state.queue.queue_by_id(config.dead_queue)
    shown.max_deliveries = config.max_deliveries
    shown.dead_letter_queue = "" if dead_queue is None else dead_queue.name
    shown.visibility_ms = config.visibility_ns // MS_NS
    shown.ageing_ms, shown.ttl_ms = config.ageing_ns // MS_NS, config.ttl_ns // MS_NS
    shown.dedup_window_ms = config.dedup_window_ns // MS_NS
    shown.dedup_max, shown.messages_max = config.dedup_max, config.messages_max
    shown.backoff_ms.extend(delay_ns // MS_NS for delay_ns in config.backoff_ns)
    for tenant, weight in config.tenant_weights:
        shown.tenant_weights.add(tenant=tenant, weight=weight)


def _peek(view: View, namespace: str) -> Look[queue_pb2.PeekRequest, queue_pb2.PeekResponse]:
    state = view.projections

    def look(request: queue_pb2.PeekRequest, answer: queue_pb2.PeekResponse) -> Sequence[int]:
        limit = request.limit or PEEK_LIMIT_DEFAULT
        if limit > PEEK_MESSAGES_MAX:
            raise error_of_bounds(Reason.LIMIT_INVALID, "limit", limit, PEEK_MESSAGES_MAX)
        failure = _parse_failure(request)
        queue = find_queue(state, namespace, request.queue)
        peeked = state.queue.peek(
            namespace,
            queue.id,
            limit=limit,
            from_id=request.from_id,
            from_ns=request.from_ns,
            failure=failure,
        )
        if isinstance(peeked, Refused):
            raise error_of_refusal(peeked)
        return fill_peeked(answer, peeked)

    return look


def _list_redrives(
    view: View, namespace: str
) -> Look[queue_pb2.ListRedrivesRequest, queue_pb2.ListRedrivesResponse]:
    state = view.projections

    def look(
        request: queue_pb2.ListRedrivesRequest, answer: queue_pb2.ListRedrivesResponse
    ) -> None:
        queue = find_queue(state, namespace, request.queue)
        for redrive, remaining, is_partial in state.queue.list_redrives(queue):
            target = state.queue.queue_by_id(redrive.target)
            answer.redrives.add(
                redrive_id=redrive.id,
                target_queue="" if target is None else target.name,
                target_queue_id=redrive.target,
                last_id=redrive.last_id if redrive.last_id < U64_MAX else 0,
                failed_from_ns=redrive.failed_from_ns,
                failed_until_ns=redrive.failed_until_ns if redrive.failed_until_ns < U64_MAX else 0,
                failure_contains=redrive.failure.decode(errors="replace"),
                limit=redrive.left + redrive.moved_count if redrive.left else 0,
                rate_per_s=redrive.rate_per_s,
                started_ns=redrive.started_ns,
                next_ns=redrive.next_ns,
                next_id=redrive.cursor,
                moved_count=redrive.moved_count,
                skipped_count=redrive.skipped_count,
                remaining_count=remaining,
                remaining_is_partial=is_partial,
            )

    return look


def _list_schedules(
    view: View, namespace: str
) -> Look[queue_pb2.ListSchedulesRequest, queue_pb2.ListSchedulesResponse]:
    def look(
        request: queue_pb2.ListSchedulesRequest, answer: queue_pb2.ListSchedulesResponse
    ) -> None:
        schedules = find_queue(view.projections, namespace, request.queue).schedules
        for schedule_id in sorted(schedules):
            schedule = schedules[schedule_id]
            answer.schedules.add(
                schedule_id=schedule.id, cron=schedule.cron_text.decode(), next_ns=schedule.next_ns
            )

    return look


GET_QUEUE = Read(queue_pb2.GetQueueResponse, _by_queue, _get_queue)
PEEK = Read(queue_pb2.PeekResponse, _by_queue, _peek, Content(fill_rows))
LIST_REDRIVES = Read(queue_pb2.ListRedrivesResponse, _by_queue, _list_redrives)
LIST_SCHEDULES = Read(queue_pb2.ListSchedulesResponse, _by_queue, _list_schedules)

OPERATIONS: Operations = {
    "create_queue": CREATE_QUEUE,
    "configure_queue": CONFIGURE_QUEUE,
    "delete_queue": DELETE_QUEUE,
    "get_queue": GET_QUEUE,
    "pause_queue": PAUSE_QUEUE,
    "enqueue": ENQUEUE,
    "lease": LEASE,
    "ack": ACK,
    "nack": NACK,
    "extend": EXTEND,
    "release": RELEASE,
    "cancel": CANCEL,
    "prioritise": PRIORITISE,
    "peek": PEEK,
    "redrive": REDRIVE,
    "cancel_redrive": CANCEL_REDRIVE,
    "list_redrives": LIST_REDRIVES,
    "create_schedule": CREATE_SCHEDULE,
    "delete_schedule": DELETE_SCHEDULE,
    "list_schedules": LIST_SCHEDULES,
}
