"""The operations on queues: which entries they become, and what their results and reads mean.

Requests become commands, what messages carry is put into answers, and a ``Write`` or ``Read`` for
each call connects both.

Requests
--------
Requests about queues as commands: found wrong here if they are wrong whatever the state.

Queues are named by names in the API and by ids in the log. Names are looked up in the state of the
leader right before an entry is proposed; one that was deleted and created again meanwhile refuses
what was meant for the first.

Content
-------
Messages as answers show them: numbers from the state, body and headers from the log.

Rows and results of leases name the entry that holds a body; whoever answers reads those entries
(``Edge.entries``) and ``put_rows`` puts them in, as many as there is room for. What a lease got
beyond that is given back at once, as if it had not been taken.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onelog.errors import InvalidArgument, NotFound, OnelogError
from onelog.node.edge.operation import Content, Read, Room, Write, applied
from onelog.node.edge.shards import View, invalid, namespace_of
from onelog.node.public_errors import error_of_reason, error_of_refusal, put_error
from onelog.projections.codec import FLAG_SESSION, SessionRef, encode_prefix, read_prefix
from onelog.projections.limits import TTL_NS_MAX
from onelog.projections.queue import commands
from onelog.projections.queue.commands import TYPE_ACK, Command, Items, Release, encode_command
from onelog.projections.queue.cron import BadCron, parse_cron
from onelog.projections.queue.limits import (
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

WAIT_MS_MAX = 60_000
MS_NS = 1_000_000
SESSION_SIZE = 24

_pack_session = struct.Struct("<QQQ").pack  # as encode_prefix has it
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


def queue_of(state: Projections, namespace: str, name: str) -> QueueState:
    """Return the queue that a request names."""
    queue = state.queue.get_queue(namespace, name)
    if isinstance(queue, QueueState):
        return queue
    if queue.reason is not Reason.QUEUE_UNKNOWN:
        raise error_of_refusal(queue)
    raise NotFound(
        f"there is no queue {name!r}", reason=queue.reason.name, metadata={"queue": name}
    )


def draft_of(command: Command, namespace: str, session: SessionRef | None) -> list[Draft]:
    """Return the entry of a command."""
    return [encode_command(command, namespace, session)]


def check_count(count: int) -> int:
    """Return how many messages a request names or wants, if that is allowed."""
    if not 0 < count <= ITEMS_MAX:
        raise error_of_reason(Reason.LIMIT_INVALID, count)
    return count


def visibility_ns_of(visibility_ms: int) -> int:
    """Return the length of a lease; 0: as the queue says."""
    visibility_ns = visibility_ms * MS_NS
    if visibility_ns > VISIBILITY_NS_MAX:
        raise error_of_reason(Reason.VISIBILITY_INVALID, visibility_ns)
    return visibility_ns


def items_of(messages: Sequence[queue_pb2.Leased]) -> Items:
    """Return which messages are settled, with their tokens."""
    check_count(len(messages))
    return tuple((each.message_id, each.token) for each in messages)


def ids_of(message_ids: Sequence[int]) -> tuple[int, ...]:
    """Return which messages are meant."""
    check_count(len(message_ids))
    return tuple(message_ids)


def priority_of(priority: int) -> int:
    """Return a priority that there is."""
    if priority > PRIORITY_MAX:
        raise error_of_reason(Reason.PRIORITY_INVALID, priority)
    return priority


def delay_ns_of(delay_ms: int) -> int:
    """Return a delay; absurd ones are refused."""
    delay_ns = delay_ms * MS_NS
    if delay_ns > DELAY_NS_MAX:
        raise error_of_reason(Reason.DELAY_INVALID, delay_ns)
    return delay_ns


# Messages


def enqueue_drafts(
    state: Projections,
    request: queue_pb2.EnqueueRequest,
    namespace: str,
    session: SessionRef | None,
) -> list[Draft]:
    """Return the entries of a request."""
    check_count(len(request.messages))
    return message_drafts(state, request.queue, request.messages, namespace, session)


def message_drafts(
    state: Projections,
    queue: str,
    messages: Iterable[queue_pb2.NewMessage],
    namespace: str,
    session: SessionRef | None,
) -> list[Draft]:
    """Return an entry for each message; in a session they take one sequence after the other.

    This loop is what a pipelined message costs before the log.
    """
    queue_id = queue_of(state, namespace, queue).id
    prefix, numbers = encode_prefix(namespace, session), b""
    if session is not None:
        prefix = prefix[:-SESSION_SIZE]  # of each message its own follows
    drafts = []
    for position, message in enumerate(messages):
        if session is not None:
            session_id, sequence, first = session
            numbers = _pack_session(session_id, sequence + position, first)
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
                command = _enqueue_of(state, queue_id, message)
            except OnelogError as error:
                error.metadata["position"] = str(position)
                raise
            payload = _join((prefix, numbers, encode_enqueue(command)))
        else:
            payload = _join((prefix, numbers, _pack_plain(queue_id, 0, priority), body))
        drafts.append(_new(Draft, (TYPE_ENQUEUE, payload, 0)))
    return drafts


def _enqueue_of(state: Projections, queue_id: int, message: queue_pb2.NewMessage) -> Enqueue:
    if message.delay_ms and message.at_ns:
        raise invalid("DELAY_INVALID", "a delay or a time, not both")
    ahead_ns = message.at_ns - state.router.log_time_ns
    if ahead_ns > DELAY_NS_MAX:
        raise error_of_reason(Reason.DELAY_INVALID, ahead_ns)
    return Enqueue(
        queue_id,
        _body_of(message),
        _priority_of(message),
        delay_ns_of(message.delay_ms) or None,
        message.at_ns or None,
        _ttl_ns_of(message),
        _key_of(message.dedup_id),
        _key_of(message.group),
        _key_of(message.tenant),
        _headers_of(message.headers),
    )


def schedule_of(queue_id: int, request: queue_pb2.CreateScheduleRequest) -> ScheduleCreate:
    """Return the command of a request."""
    message, cron = request.message, request.cron.encode()
    if message.delay_ms or message.at_ns or message.dedup_id:
        raise invalid("SCHEDULE_MESSAGE_INVALID", "delay, time and dedup id are not for schedules")
    if len(cron) > CRON_SIZE_MAX:
        raise error_of_reason(Reason.CRON_INVALID)
    try:
        parse_cron(cron)
    except BadCron as error:
        raise error_of_reason(Reason.CRON_INVALID, error.field) from None
    return ScheduleCreate(
        queue_id,
        cron,
        _body_of(message),
        _priority_of(message),
        _ttl_ns_of(message),
        _key_of(message.group),
        _key_of(message.tenant),
        _headers_of(message.headers),
    )


def _body_of(message: queue_pb2.NewMessage) -> bytes:
    if len(message.body) > MESSAGE_SIZE_MAX:
        raise error_of_reason(Reason.MESSAGE_TOO_LARGE, len(message.body))
    return message.body


def _priority_of(message: queue_pb2.NewMessage) -> int:
    return priority_of(message.priority) if message.HasField("priority") else PRIORITY_DEFAULT


def _ttl_ns_of(message: queue_pb2.NewMessage) -> int | None:
    ttl_ns = message.ttl_ms * MS_NS
    if ttl_ns > TTL_NS_MAX:
        raise error_of_reason(Reason.TTL_INVALID, ttl_ns)
    return ttl_ns or None


def _key_of(key: bytes) -> bytes:
    if len(key) > MESSAGE_KEY_SIZE_MAX:
        raise error_of_reason(Reason.MESSAGE_KEY_INVALID, len(key))
    return key


def _headers_of(headers: Sequence[queue_pb2.Header]) -> Headers:
    if len(headers) > HEADERS_MAX:
        raise invalid("HEADER_INVALID", f"{len(headers)} headers, limit {HEADERS_MAX}")
    found = []
    for header in headers:
        name, value = header.name.encode(), header.value
        if not 0 < len(name) <= HEADER_NAME_SIZE_MAX or name.startswith(HEADERS_RESERVED):
            raise error_of_reason(Reason.HEADER_INVALID, len(name))
        if len(value) > HEADER_VALUE_SIZE_MAX:
            raise error_of_reason(Reason.HEADER_INVALID, len(value))
        found.append((name, value))
    return tuple(found)


# Leases


def lease_of(queue_id: int, request: queue_pb2.LeaseRequest) -> commands.Lease:
    """Return the command of a request."""
    if request.wait_ms > WAIT_MS_MAX:
        raise invalid("WAIT_INVALID", f"a wait of {request.wait_ms} ms, limit {WAIT_MS_MAX}")
    return commands.Lease(
        queue_id, check_count(request.count or 1), visibility_ns_of(request.visibility_ms)
    )


def was_answered(state: Projections, session: SessionRef) -> bool:
    """Whether a request came before, or its session is over: then the log has to tell."""
    found = state.system.sessions.get(session.session)
    return (
        found is None
        or session.sequence < found.first_unacknowledged
        or session.sequence in found.results
    )


def ack_drafts(
    state: Projections, request: queue_pb2.AckRequest, namespace: str, session: SessionRef | None
) -> list[Draft]:
    """Return the entry of a request; most of them name one message."""
    queue_id = queue_of(state, namespace, request.queue).id
    messages = request.messages
    if len(messages) != 1:
        items = items_of(messages)
        return draft_of(commands.Ack(queue_id, items, request.strict), namespace, session)
    one = messages[0]
    body = _pack_ack(queue_id, request.strict, 1, one.message_id, one.token)
    return [Draft(TYPE_ACK, encode_prefix(namespace, session) + body)]


def single_ack_drafts(
    state: Projections,
    queue: str,
    messages: Iterable[queue_pb2.Leased],
    namespace: str,
    session: SessionRef | None,
) -> list[Draft]:
    """Return an entry for each message; in a session they take one sequence after the other."""
    queue_id = queue_of(state, namespace, queue).id
    prefix, numbers = encode_prefix(namespace, session), b""
    if session is not None:
        prefix = prefix[:-SESSION_SIZE]  # of each ack its own follows
    drafts = []
    for position, message in enumerate(messages):
        if session is not None:
            session_id, sequence, first = session
            numbers = _pack_session(session_id, sequence + position, first)
        body = _pack_ack(queue_id, 0, 1, message.message_id, message.token)
        drafts.append(_new(Draft, (TYPE_ACK, prefix + numbers + body, 0)))
    return drafts


def nack_of(queue_id: int, request: queue_pb2.NackRequest) -> commands.Nack:
    """Return the command of a request."""
    failure = request.reason.encode()
    if len(failure) > FAILURE_SIZE_MAX:
        raise error_of_reason(Reason.FAILURE_TOO_LARGE, len(failure))
    delay_ns = delay_ns_of(request.delay_ms) if request.HasField("delay_ms") else None
    return commands.Nack(queue_id, items_of(request.messages), delay_ns, failure, request.strict)


# Queues


def config_of(state: Projections, namespace: str, config: queue_pb2.QueueConfig) -> QueueConfig:
    """Return settings as the log has them."""
    found = QueueConfig(
        config.max_deliveries,
        _dead_queue_of(state, namespace, config),
        config.visibility_ms * MS_NS or VISIBILITY_NS_DEFAULT,
        config.ageing_ms * MS_NS,
        config.ttl_ms * MS_NS,
        config.dedup_window_ms * MS_NS or DEDUP_WINDOW_NS_DEFAULT,
        config.dedup_max if config.HasField("dedup_max") else DEDUP_ENTRIES_DEFAULT,
        config.messages_max,
        tuple(each * MS_NS for each in config.backoff_ms),
    )
    wrong = found.invalid()
    if wrong is not None:
        raise error_of_reason(Reason.QUEUE_CONFIG_INVALID, wrong)
    return found


def _dead_queue_of(state: Projections, namespace: str, config: queue_pb2.QueueConfig) -> int:
    name = config.dead_letter_queue
    if not name and not config.max_deliveries:
        return 0
    queue = state.queue.get_queue(namespace, name)
    if isinstance(queue, Refused):
        words = f"there is no queue {name!r} for dead letters" if name else "dead letters need one"
        raise InvalidArgument(words, reason="DEAD_QUEUE_INVALID", metadata={"queue": name})
    return queue.id


def redrive_of(
    state: Projections, namespace: str, request: queue_pb2.RedriveRequest
) -> commands.Redrive:
    """Return the command of a request."""
    failure = request.failure_contains.encode()
    if len(failure) > MESSAGE_KEY_SIZE_MAX:
        raise error_of_reason(Reason.FAILURE_TOO_LARGE, len(failure))
    target = request.target_queue
    return commands.Redrive(
        queue_of(state, namespace, request.queue).id,
        queue_of(state, namespace, target).id if target else 0,
        request.first_id,
        request.last_id,
        request.failed_from_ns,
        request.failed_until_ns,
        request.limit,
        request.rate_per_s,
        failure,
    )


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


def put_leased(
    state: Projections,
    request: queue_pb2.LeaseRequest,
    answer: queue_pb2.LeaseResponse | queue_pb2.ConsumeResponse,
    leased: Leased,
) -> Sequence[int]:
    """Show what a lease got; return the entries that hold the bodies."""
    queue = state.queue.get_queue(namespace_of(request.namespace), request.queue)
    add, token, deadline_ns = answer.messages.add, leased.token, leased.deadline_ns
    indexes = []
    for each in leased.messages:
        message = add()
        message.message_id = each.id
        message.token = token
        message.lease_expires_ns = deadline_ns
        message.delivery_count = each.deliveries
        if each.dead is not None:
            _put_death(message, each.id, each.dead)
        if not isinstance(queue, Refused):
            _put_place(message, queue, each.id, each.body_index)
        indexes.append(each.body_index)
    return indexes


def _put_place(
    message: queue_pb2.Message, queue: QueueState, message_id: int, body_index: int
) -> None:
    """Show what only the state knows: a priority that was changed, when a schedule fired."""
    place = queue.table.find(message_id)
    if place is not None:
        block, at = place
        message.priority = block.meta[at] >> PRIORITY_SHIFT & PRIORITY_MASK
        if body_index != message_id:
            message.enqueued_ns = block.since[at]


def put_peeked(answer: queue_pb2.PeekResponse, peeked: Peeked) -> Sequence[int]:
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
            _put_death(message, row.id, row.dead)
        if row.body:
            message.enqueued_ns = row.since_ns
    answer.next_id = peeked.next_id or 0
    return [row.body_index for row in peeked.messages]


def _put_death(message: queue_pb2.Message, message_id: int, dead: Dead) -> None:
    for name, value in dead_headers(message_id, dead).items():
        message.headers.add(name=name, value=value.encode())


def put_rows(
    state: Projections,
    request: queue_pb2.LeaseRequest | queue_pb2.PeekRequest,
    answer: queue_pb2.LeaseResponse | queue_pb2.ConsumeResponse | queue_pb2.PeekResponse,
    entries: Sequence[Entry],
    room: Room,
) -> Sequence[Draft]:
    """Put bodies and headers in; cut what there is no room for, and give leases of it back."""
    messages = answer.messages
    fitting = 0
    for message, entry in zip(messages, entries, strict=False):
        payload = entry.plain_payload()
        if not room.take(len(payload) + MESSAGE_OVERHEAD):
            break
        _put_body(message, entry, payload)
        fitting += 1
    if fitting == len(messages):
        return ()
    cut = messages[fitting:]
    del messages[fitting:]
    if isinstance(answer, queue_pb2.PeekResponse):
        answer.next_id = cut[0].message_id
        return ()
    namespace = namespace_of(request.namespace)
    queue = state.queue.get_queue(namespace, request.queue)
    if isinstance(queue, Refused):
        return ()
    items = tuple((message.message_id, message.token) for message in cut)
    return [encode_command(Release(queue.id, items), namespace)]


def _put_body(message: queue_pb2.Message, entry: Entry, payload: bytes) -> None:
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


def _by_queue(request: Any) -> tuple[bytes]:
    return (check_name(request.queue),)


def _by_queue_and(field: str) -> Callable[[Any], tuple[bytes, ...]]:
    """Return how a request says its shard that names another queue besides."""

    def names(request: Any) -> tuple[bytes, ...]:
        other = request.config.dead_letter_queue if field == "config" else getattr(request, field)
        own = check_name(request.queue)
        return (own, check_name(other)) if other else (own,)

    return names


# Answers


def _answer_enqueue(
    _state: Projections,
    _request: queue_pb2.EnqueueRequest,
    answer: queue_pb2.EnqueueResponse,
    results: Sequence[Result],
    index: int,
) -> None:
    first = results[0]
    if isinstance(first, Refused) and first.reason in _OF_THE_REQUEST:
        raise error_of_refusal(first)
    add = answer.results.add
    for message_id, result in enumerate(results, index):
        target = add()
        if result is APPLIED:
            target.message_id = message_id
            continue
        outcome = result
        if isinstance(outcome, Duplicate):
            message_id, outcome = outcome.index, outcome.first
        if isinstance(outcome, Refused):
            put_error(target.error, error_of_refusal(outcome))
            continue
        assert isinstance(outcome, Applied), outcome
        target.message_id = outcome.number or message_id
        target.deduplicated = bool(outcome.number)


def _answer_lease(
    state: Projections,
    request: queue_pb2.LeaseRequest,
    answer: queue_pb2.LeaseResponse,
    results: Sequence[Result],
    _: int,
) -> Sequence[int]:
    return put_leased(state, request, answer, decode_leased(applied(results[0])))


def _answer_settle(
    state: Projections,
    request: Any,
    answer: queue_pb2.SettleResponse,
    results: Sequence[Result],
    index: int,
) -> None:
    """Say what became of each message, and of a nack which of them are dead."""
    outcome = results[0]
    if isinstance(outcome, Duplicate):
        index = outcome.index
    kind = type(request)
    if kind is queue_pb2.CancelRequest or kind is queue_pb2.PrioritiseRequest:
        ids = list(request.message_ids)
    else:
        ids = [each.message_id for each in request.messages]
    add, done = answer.results.add, applied(outcome)
    if kind is queue_pb2.AckRequest and done.value is None:  # most of all: all of them are done
        for message_id in ids:
            add().message_id = message_id
        return
    verdicts = decode_verdicts(done, len(ids))
    dead = frozenset[int]()
    if kind is queue_pb2.NackRequest:
        dead = state.queue.changes.dead_at(index)
    for message_id, verdict in zip(ids, verdicts, strict=True):
        target = add()
        target.message_id = message_id
        if verdict is not None:
            target.reason = verdict.name
        elif message_id in dead:
            target.dead = True


def _number(field: str) -> Any:
    """Return how the number that an entry returned becomes a field of the answer."""

    def put(
        _state: Projections, _request: Any, answer: Any, results: Sequence[Result], _: int
    ) -> None:
        setattr(answer, field, applied(results[0]).number)

    return put


def _answer_redrive(
    _state: Projections,
    _request: queue_pb2.RedriveRequest,
    answer: queue_pb2.RedriveResponse,
    _results: Sequence[Result],
    _: int,
) -> None:
    answer.redrive_id = answer.header.index


# Writes

CommandOf = Callable[[Projections, str, Any], Command]


def _write(response: Any, command_of: CommandOf, names: Any = _by_queue, answer: Any = None) -> Any:
    """Return the write of one entry, whose command needs the state for the ids of queues."""

    def drafts(
        state: Projections, request: Any, namespace: str, session: SessionRef | None
    ) -> list[Draft]:
        return draft_of(command_of(state, namespace, request), namespace, session)

    return Write(response, names, drafts, answer or (lambda *_: None), needs_state=True)


def _of_queue(make: Callable[[int, Any], Command]) -> CommandOf:
    """Return how a request becomes a command that needs of the state the id of its queue alone."""

    def command_of(state: Projections, namespace: str, request: Any) -> Command:
        return make(queue_of(state, namespace, request.queue).id, request)

    return command_of


def _create_of(
    state: Projections, namespace: str, request: queue_pb2.CreateQueueRequest
) -> commands.QueueCreate:
    config = config_of(state, namespace, request.config)
    return commands.QueueCreate(request.queue, config)


def _configure_of(
    state: Projections, namespace: str, request: queue_pb2.ConfigureQueueRequest
) -> commands.QueueConfigure:
    config = config_of(state, namespace, request.config)
    queue = queue_of(state, namespace, request.queue)
    return commands.QueueConfigure(queue.id, config)


def _pause_of(queue: int, request: queue_pb2.PauseQueueRequest) -> Command:
    return commands.QueuePause(queue) if request.paused else commands.QueueResume(queue)


def _is_nothing_ready(
    state: Projections,
    request: queue_pb2.LeaseRequest,
    namespace: str,
    session: SessionRef | None,
) -> bool:
    """Whether a lease would get nothing, and is not the repetition of one that did."""
    queue = queue_of(state, namespace, request.queue)
    _pipelined_lease_of(queue.id, request)  # refuses what is wrong, though nothing is written
    if session is not None and was_answered(state, session):
        return False
    return queue.is_paused or queue.next_ready() is None


def _pipelined_lease_of(queue: int, request: queue_pb2.LeaseRequest) -> commands.Lease:
    if request.wait_ms:
        raise invalid("WAIT_INVALID", "a long poll is a call of its own: others would wait for it")
    return lease_of(queue, request)


_Settle = Write[Any, queue_pb2.SettleResponse]


def _settle(make: Callable[[int, Any], Command]) -> _Settle:
    found: _Settle = _write(queue_pb2.SettleResponse, _of_queue(make), answer=_answer_settle)
    return found


CREATE_QUEUE: Write[queue_pb2.CreateQueueRequest, queue_pb2.CreateQueueResponse]
CREATE_QUEUE = _write(
    queue_pb2.CreateQueueResponse, _create_of, _by_queue_and("config"), _number("queue_id")
)
CONFIGURE_QUEUE: Write[queue_pb2.ConfigureQueueRequest, queue_pb2.ConfigureQueueResponse]
CONFIGURE_QUEUE = _write(queue_pb2.ConfigureQueueResponse, _configure_of, _by_queue_and("config"))
DELETE_QUEUE: Write[queue_pb2.DeleteQueueRequest, queue_pb2.DeleteQueueResponse]
DELETE_QUEUE = _write(
    queue_pb2.DeleteQueueResponse, _of_queue(lambda queue, _: commands.QueueDelete(queue))
)
PAUSE_QUEUE: Write[queue_pb2.PauseQueueRequest, queue_pb2.PauseQueueResponse]
PAUSE_QUEUE = _write(queue_pb2.PauseQueueResponse, _of_queue(_pause_of))
ENQUEUE: Write[queue_pb2.EnqueueRequest, queue_pb2.EnqueueResponse]
ENQUEUE = Write(
    queue_pb2.EnqueueResponse,
    _by_queue,
    enqueue_drafts,
    _answer_enqueue,
    needs_state=True,
    width=lambda request: max(1, len(request.messages)),
)
LEASE: Write[queue_pb2.LeaseRequest, queue_pb2.LeaseResponse]
LEASE = replace(
    _write(queue_pb2.LeaseResponse, _of_queue(_pipelined_lease_of), answer=_answer_lease),
    content=Content(put_rows),
    is_idle=_is_nothing_ready,
)
ACK: _Settle = Write(
    queue_pb2.SettleResponse, _by_queue, ack_drafts, _answer_settle, needs_state=True
)
NACK = _settle(nack_of)
EXTEND = _settle(
    lambda queue, request: commands.Extend(
        queue,
        items_of(request.messages),
        visibility_ns_of(request.visibility_ms),
        request.strict,
    )
)
RELEASE = _settle(
    lambda queue, request: commands.Release(queue, items_of(request.messages), request.strict)
)
CANCEL = _settle(
    lambda queue, request: commands.Cancel(queue, ids_of(request.message_ids), request.strict)
)
PRIORITISE = _settle(
    lambda queue, request: commands.Prioritise(
        queue, ids_of(request.message_ids), priority_of(request.priority), request.strict
    )
)
REDRIVE: Write[queue_pb2.RedriveRequest, queue_pb2.RedriveResponse]
REDRIVE = _write(
    queue_pb2.RedriveResponse, redrive_of, _by_queue_and("target_queue"), _answer_redrive
)
CANCEL_REDRIVE: Write[queue_pb2.CancelRedriveRequest, queue_pb2.CancelRedriveResponse]
CANCEL_REDRIVE = _write(
    queue_pb2.CancelRedriveResponse,
    _of_queue(lambda queue, request: commands.RedriveCancel(queue, request.redrive_id)),
)
CREATE_SCHEDULE: Write[queue_pb2.CreateScheduleRequest, queue_pb2.CreateScheduleResponse]
CREATE_SCHEDULE = _write(
    queue_pb2.CreateScheduleResponse, _of_queue(schedule_of), answer=_number("schedule_id")
)
DELETE_SCHEDULE: Write[queue_pb2.DeleteScheduleRequest, queue_pb2.DeleteScheduleResponse]
DELETE_SCHEDULE = _write(
    queue_pb2.DeleteScheduleResponse,
    _of_queue(lambda queue, request: commands.ScheduleDelete(queue, request.schedule_id)),
)


# Reads


def _queue_in(view: View, namespace: str, name: str) -> QueueState:
    """Return the queue that a read names, in the state that it reads."""
    return queue_of(view.projections, namespace, name)


def _get_queue(
    view: View,
    namespace: str,
    request: queue_pb2.GetQueueRequest,
    answer: queue_pb2.GetQueueResponse,
) -> None:
    queue = _queue_in(view, namespace, request.queue)
    put_info(view.projections, answer.queue, queue)


def put_info(state: Projections, target: queue_pb2.QueueInfo, queue: QueueState) -> None:
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
    config, shown = info.config, target.config
    dead_queue = state.queue.queue_by_id(config.dead_queue)
    shown.max_deliveries = config.max_deliveries
    shown.dead_letter_queue = "" if dead_queue is None else dead_queue.name
    shown.visibility_ms = config.visibility_ns // MS_NS
    shown.ageing_ms, shown.ttl_ms = config.ageing_ns // MS_NS, config.ttl_ns // MS_NS
    shown.dedup_window_ms = config.dedup_window_ns // MS_NS
    shown.dedup_max, shown.messages_max = config.dedup_max, config.messages_max
    shown.backoff_ms.extend(delay_ns // MS_NS for delay_ns in config.backoff_ns)


def _peek(
    view: View, namespace: str, request: queue_pb2.PeekRequest, answer: queue_pb2.PeekResponse
) -> Sequence[int]:
    limit = request.limit or PEEK_LIMIT_DEFAULT
    if limit > PEEK_MESSAGES_MAX:
        raise error_of_reason(Reason.LIMIT_INVALID, limit)
    queue = _queue_in(view, namespace, request.queue)
    peeked = view.projections.queue.peek(
        namespace, queue.id, limit=limit, from_id=request.from_id, from_ns=request.from_ns
    )
    if isinstance(peeked, Refused):
        raise error_of_refusal(peeked)
    return put_peeked(answer, peeked)


def _list_schedules(
    view: View,
    namespace: str,
    request: queue_pb2.ListSchedulesRequest,
    answer: queue_pb2.ListSchedulesResponse,
) -> None:
    schedules = _queue_in(view, namespace, request.queue).schedules
    for schedule_id in sorted(schedules):
        schedule = schedules[schedule_id]
        answer.schedules.add(
            schedule_id=schedule.id, cron=schedule.cron_text.decode(), next_ns=schedule.next_ns
        )


GET_QUEUE = Read(queue_pb2.GetQueueResponse, _by_queue, _get_queue)
PEEK = Read(queue_pb2.PeekResponse, _by_queue, _peek, Content(put_rows))
LIST_SCHEDULES = Read(queue_pb2.ListSchedulesResponse, _by_queue, _list_schedules)

# In pipelines, by their names in the proto.
OPERATIONS: dict[str, Write[Any, Any] | Read[Any, Any]] = {
    "enqueue": ENQUEUE,
    "lease": LEASE,
    "ack": ACK,
    "nack": NACK,
    "extend": EXTEND,
    "release": RELEASE,
}

# The names of results in the proto where they differ from those of the operations.
ANSWERS: Mapping[str, str] = {
    "ack": "settle",
    "nack": "settle",
    "extend": "settle",
    "release": "settle",
}
