"""Messages as answers show them: numbers from the state, body and headers from the log.

Rows and results of leases name the entry that holds a body; whoever answers reads those entries
(``Edge.entries``) and ``put_rows`` puts them in, as many as there is room for. What a lease got
beyond that is given back at once, as if it had not been taken.
"""

from collections.abc import Sequence

from onelog.node.edge.operation import Room
from onelog.node.edge.shards import namespace_of
from onelog.projections.codec import FLAG_SESSION, read_prefix
from onelog.projections.queue.commands import Release, encode_command
from onelog.projections.queue.message import (
    TYPE_ENQUEUE,
    Enqueue,
    ScheduleCreate,
    read_enqueue,
    read_schedule,
)
from onelog.projections.queue.reads import Peeked
from onelog.projections.queue.results import Leased, dead_headers
from onelog.projections.queue.row import DELAYED, LEASED, PRIORITY_MASK, PRIORITY_SHIFT, READY, Dead
from onelog.projections.queue.store import QueueState
from onelog.projections.result import Refused
from onelog.projections.shard_state import Projections
from onelog.ual.entry import Draft, Entry
from onelog.v1 import queue_pb2

_STATES = {
    READY: queue_pb2.MESSAGE_STATE_READY,
    DELAYED: queue_pb2.MESSAGE_STATE_DELAYED,
    LEASED: queue_pb2.MESSAGE_STATE_LEASED,
}
SESSION_SIZE = 24
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
