"""The operations on queues: which entries they become, and what their results and reads mean.

Requests become commands in node/services/queue_requests.py; what messages carry is put into answers
by node/services/queue_content.py. Here is what connects both, a ``Write`` or ``Read`` for each
call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onelog.node.edge.operation import Content, Read, Write, applied
from onelog.node.edge.shards import View, invalid
from onelog.node.public_errors import error_of_reason, error_of_refusal, put_error
from onelog.node.services import queue_requests as ask
from onelog.node.services.queue_content import put_leased, put_peeked, put_rows
from onelog.projections.codec import SessionRef
from onelog.projections.queue import commands
from onelog.projections.queue.commands import Command
from onelog.projections.queue.limits import PEEK_MESSAGES_MAX
from onelog.projections.queue.reads import QueueInfo
from onelog.projections.queue.results import decode_leased, decode_verdicts
from onelog.projections.queue.store import QueueState
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Duplicate, Refused, Result
from onelog.projections.shard_state import Projections
from onelog.ual.entry import Draft
from onelog.v1 import queue_pb2

PEEK_LIMIT_DEFAULT = 10

# Why all messages of a request are refused, whatever is in them.
_OF_THE_REQUEST = frozenset(
    (Reason.QUEUE_UNKNOWN, Reason.NAMESPACE_UNKNOWN, Reason.SESSION_EXPIRED)
)


def _by_queue(request: Any) -> tuple[bytes]:
    return (ask.check_name(request.queue),)


def _by_queue_and(field: str) -> Callable[[Any], tuple[bytes, ...]]:
    """Return how a request says its shard that names another queue besides."""

    def names(request: Any) -> tuple[bytes, ...]:
        other = request.config.dead_letter_queue if field == "config" else getattr(request, field)
        own = ask.check_name(request.queue)
        return (own, ask.check_name(other)) if other else (own,)

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
        return ask.draft_of(command_of(state, namespace, request), namespace, session)

    return Write(response, names, drafts, answer or (lambda *_: None), needs_state=True)


def _of_queue(make: Callable[[int, Any], Command]) -> CommandOf:
    """Return how a request becomes a command that needs of the state the id of its queue alone."""

    def command_of(state: Projections, namespace: str, request: Any) -> Command:
        return make(ask.queue_of(state, namespace, request.queue).id, request)

    return command_of


def _create_of(
    state: Projections, namespace: str, request: queue_pb2.CreateQueueRequest
) -> commands.QueueCreate:
    config = ask.config_of(state, namespace, request.config)
    return commands.QueueCreate(request.queue, config)


def _configure_of(
    state: Projections, namespace: str, request: queue_pb2.ConfigureQueueRequest
) -> commands.QueueConfigure:
    config = ask.config_of(state, namespace, request.config)
    queue = ask.queue_of(state, namespace, request.queue)
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
    queue = ask.queue_of(state, namespace, request.queue)
    _pipelined_lease_of(queue.id, request)  # refuses what is wrong, though nothing is written
    if session is not None and ask.was_answered(state, session):
        return False
    return queue.is_paused or queue.next_ready() is None


def _pipelined_lease_of(queue: int, request: queue_pb2.LeaseRequest) -> commands.Lease:
    if request.wait_ms:
        raise invalid("WAIT_INVALID", "a long poll is a call of its own: others would wait for it")
    return ask.lease_of(queue, request)


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
    ask.enqueue_drafts,
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
    queue_pb2.SettleResponse, _by_queue, ask.ack_drafts, _answer_settle, needs_state=True
)
NACK = _settle(ask.nack_of)
EXTEND = _settle(
    lambda queue, request: commands.Extend(
        queue,
        ask.items_of(request.messages),
        ask.visibility_ns_of(request.visibility_ms),
        request.strict,
    )
)
RELEASE = _settle(
    lambda queue, request: commands.Release(queue, ask.items_of(request.messages), request.strict)
)
CANCEL = _settle(
    lambda queue, request: commands.Cancel(queue, ask.ids_of(request.message_ids), request.strict)
)
PRIORITISE = _settle(
    lambda queue, request: commands.Prioritise(
        queue, ask.ids_of(request.message_ids), ask.priority_of(request.priority), request.strict
    )
)
REDRIVE: Write[queue_pb2.RedriveRequest, queue_pb2.RedriveResponse]
REDRIVE = _write(
    queue_pb2.RedriveResponse, ask.redrive_of, _by_queue_and("target_queue"), _answer_redrive
)
CANCEL_REDRIVE: Write[queue_pb2.CancelRedriveRequest, queue_pb2.CancelRedriveResponse]
CANCEL_REDRIVE = _write(
    queue_pb2.CancelRedriveResponse,
    _of_queue(lambda queue, request: commands.RedriveCancel(queue, request.redrive_id)),
)
CREATE_SCHEDULE: Write[queue_pb2.CreateScheduleRequest, queue_pb2.CreateScheduleResponse]
CREATE_SCHEDULE = _write(
    queue_pb2.CreateScheduleResponse, _of_queue(ask.schedule_of), answer=_number("schedule_id")
)
DELETE_SCHEDULE: Write[queue_pb2.DeleteScheduleRequest, queue_pb2.DeleteScheduleResponse]
DELETE_SCHEDULE = _write(
    queue_pb2.DeleteScheduleResponse,
    _of_queue(lambda queue, request: commands.ScheduleDelete(queue, request.schedule_id)),
)


# Reads


def _queue_in(view: View, namespace: str, name: str) -> QueueState:
    """Return the queue that a read names, in the state that it reads."""
    return ask.queue_of(view.projections, namespace, name)


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
    shown.visibility_ms = config.visibility_ns // ask.MS_NS
    shown.ageing_ms, shown.ttl_ms = config.ageing_ns // ask.MS_NS, config.ttl_ns // ask.MS_NS
    shown.dedup_window_ms = config.dedup_window_ns // ask.MS_NS
    shown.dedup_max, shown.messages_max = config.dedup_max, config.messages_max
    shown.backoff_ms.extend(delay_ns // ask.MS_NS for delay_ns in config.backoff_ns)


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
