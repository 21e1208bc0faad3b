"""What each command does to a queue. A refusal changes nothing.

Commands that name several messages answer for each of them. One that names a single message, or
is ``strict``, is refused as a whole when it cannot be done as a whole; the others do what they can
and tell per message why not.
"""

from collections.abc import Callable, Sequence

from projections.limits import U64_MAX
from projections.queue_changes import Kind, QueueChanges
from projections.queue_commands import (
    Ack,
    Cancel,
    Extend,
    Lease,
    Nack,
    Prioritise,
    Purge,
    Release,
    ScheduleDelete,
    ScheduleFire,
    Settle,
)
from projections.queue_dead import Queues, fail
from projections.queue_limits import (
    CRON_DAYS_MAX,
    DELAY_NS_MAX,
    DELIVERIES_MAX,
    GROUPS_MAX,
    LEASED_MAX,
    PURGE_VISITS_MAX,
    SCHEDULES_MAX,
    TENANTS_MAX,
)
from projections.queue_message import Enqueue, ScheduleCreate
from projections.queue_results import encode_cursor, encode_leased, encode_verdicts
from projections.queue_row import DELAYED, LEASED, READY, Row
from projections.queue_schedule import BadCron, parse_cron
from projections.queue_store import QueueState, Schedule, Total
from projections.reasons import Reason
from projections.result import APPLIED, Applied, Outcome, Refused


def enqueue(queue: QueueState, command: Enqueue, index: int, now_ns: int) -> Outcome:
    """Add a message, or find the one that was added with the same dedup id."""
    config = queue.config
    has_dedup = bool(command.dedup and config.dedup_max)
    if has_dedup:
        first = queue.dedup.find(command.dedup, now_ns, config.dedup_window_ns)
        if first is not None:
            queue.count(Total.DUPLICATES)
            return Applied(first)
    ready_ns = now_ns + (command.delay_ns or 0) if command.at_ns is None else command.at_ns
    if ready_ns - now_ns > DELAY_NS_MAX:
        return Refused(Reason.DELAY_INVALID, ready_ns - now_ns)
    full = _lack_of_room(queue, command.group, command.tenant)
    if full is not None:
        return full
    if has_dedup:
        queue.dedup.add(command.dedup, index, now_ns)
        dropped = queue.dedup.trim(now_ns, config.dedup_window_ns, config.dedup_max)
        if dropped:
            queue.count(Total.DEDUP_DROPPED, dropped)
    ttl_ns = config.ttl_ns if command.ttl_ns is None else command.ttl_ns
    is_delayed = ready_ns > now_ns
    row = Row(
        index,
        max(ready_ns, now_ns),
        DELAYED if is_delayed else READY,
        command.priority,
        due_ns=ready_ns if is_delayed else 0,
        expires_ns=now_ns + ttl_ns if ttl_ns else 0,
        group=command.group,
        tenant=command.tenant,
    )
    queue.swap(None, row)
    queue.count(Total.ENQUEUED)
    return APPLIED


def lease(queue: QueueState, command: Lease, index: int, now_ns: int) -> Outcome:
    """Lease the messages whose turn it is; their token is the entry's index."""
    if queue.is_paused:
        return Refused(Reason.QUEUE_PAUSED, queue.id)
    room = LEASED_MAX - queue.counts[LEASED]
    if not room:
        return Refused(Reason.QUEUE_LEASES_FULL, LEASED_MAX)
    deadline_ns = now_ns + (command.visibility_ns or queue.config.visibility_ns)
    taken: list[Row] = []
    for _ in range(min(command.count, room)):
        found = queue.next_ready()
        if found is None:
            break
        row, tenant = found
        queue.ready.take(row.id, row.since_ns, row.priority, tenant)
        after = row._replace(
            state=LEASED,
            deliveries=min(row.deliveries + 1, DELIVERIES_MAX),
            due_ns=deadline_ns,
            token=index,
        )
        queue.swap(row, after)
        if tenant != queue.last_tenant:
            queue.change("last_tenant", tenant)
        taken.append(after)
    if not taken:
        return APPLIED
    return Applied(len(taken), encode_leased(index, deadline_ns, taken))


def settle(queues: Queues, queue: QueueState, command: Settle, now_ns: int) -> Outcome:
    """Acknowledge, fail, extend or release leased messages."""

    def judge(item: tuple[int, int]) -> Row | Refused:
        message_id, token = item
        row = queue.table.get(message_id)
        if row is None:
            return Refused(Reason.MESSAGE_UNKNOWN, message_id)
        if row.state != LEASED or row.token != token:
            return Refused(Reason.LEASE_TOKEN_STALE, row.token)
        return row

    return _each(command.items, judge, _deed(queues, queue, command, now_ns), strict=command.strict)


def _deed(queues: Queues, queue: QueueState, command: Settle, now_ns: int) -> Callable[[Row], None]:
    """Return what a command does to each message: decided once, not once per message."""
    swap = queue.swap
    match command:
        case Ack():

            def act(row: Row) -> None:
                swap(row, None)
                queue.count(Total.ACKED)

        case Nack(_, _, delay_ns, failure):

            def act(row: Row) -> None:
                fail(queues, queue, row, failure, now_ns, delay_ns)

        case Extend(_, _, visibility_ns):
            deadline_ns = now_ns + (visibility_ns or queue.config.visibility_ns)

            def act(row: Row) -> None:
                swap(row, row._replace(due_ns=deadline_ns))

        case Release():

            def act(row: Row) -> None:
                deliveries = row.deliveries - 1
                swap(row, row._replace(state=READY, due_ns=0, token=0, deliveries=deliveries))

    return act


def cancel(queue: QueueState, command: Cancel) -> Outcome:
    """Remove messages by id."""

    def judge(message_id: int) -> Row | Refused:
        row = queue.table.get(message_id)
        if row is None:
            return Refused(Reason.MESSAGE_UNKNOWN, message_id)
        return Refused(Reason.MESSAGE_LEASED, message_id) if row.state == LEASED else row

    def act(row: Row) -> None:
        queue.swap(row, None)
        queue.count(Total.CANCELLED)

    return _each(command.ids, judge, act, strict=command.strict)


def prioritise(queue: QueueState, command: Prioritise) -> Outcome:
    """Change the priority of messages by id."""

    def judge(message_id: int) -> Row | Refused:
        row = queue.table.get(message_id)
        return Refused(Reason.MESSAGE_UNKNOWN, message_id) if row is None else row

    def act(row: Row) -> None:
        if row.priority != command.priority:
            queue.swap(row, row._replace(priority=command.priority))

    return _each(command.ids, judge, act, strict=command.strict)


def purge(queue: QueueState, command: Purge, index: int, changes: QueueChanges) -> Outcome:
    """Remove what is in the range, as much as one entry may; tell where to go on."""
    below_id = command.below_id or U64_MAX
    before_ns = command.before_ns or U64_MAX
    matching: list[Row] = []
    next_id: int | None = None
    for visits, row in enumerate(queue.table.rows(command.from_id)):
        if row.id >= below_id:
            break
        if visits == PURGE_VISITS_MAX or len(matching) == command.limit:
            next_id = row.id
            break
        if row.since_ns < before_ns and (row.state != LEASED or command.leased_too):
            matching.append(row)
    for row in matching:
        queue.swap(row, None)
    if matching:
        queue.count(Total.PURGED, len(matching))
        changes.add(index, Kind.PURGED, queue.id, [row.id for row in matching])
    return Applied(len(matching), None if next_id is None else encode_cursor(next_id))


def create_schedule(queue: QueueState, command: ScheduleCreate, index: int, now_ns: int) -> Outcome:
    """Add a schedule; its id is the index of the entry, which also holds the body."""
    if len(queue.schedules) >= SCHEDULES_MAX:
        return Refused(Reason.SCHEDULES_FULL, SCHEDULES_MAX)
    try:
        cron = parse_cron(command.cron)
    except BadCron as error:
        return Refused(Reason.CRON_INVALID, error.field)
    next_ns = cron.next_after(now_ns)
    if next_ns is None:
        return Refused(Reason.CRON_NEVER, CRON_DAYS_MAX)
    ttl_ns = queue.config.ttl_ns if command.ttl_ns is None else command.ttl_ns
    schedule = Schedule(
        index,
        command.cron,
        cron,
        command.priority,
        ttl_ns,
        command.group,
        command.tenant,
        next_ns,
    )
    queue.put(queue.schedules, index, schedule)
    return Applied(index)


def delete_schedule(queue: QueueState, command: ScheduleDelete) -> Outcome:
    """Stop a schedule."""
    if command.schedule not in queue.schedules:
        return Refused(Reason.SCHEDULE_UNKNOWN, command.schedule)
    queue.put(queue.schedules, command.schedule, None)
    return APPLIED


def fire(queue: QueueState, command: ScheduleFire, index: int, now_ns: int) -> Outcome:
    """Let a schedule make its message: one entry, one message, one id.

    Times that passed meanwhile are not made up for: the next one is the first after now. A queue
    without room misses the firing, or the leader would propose it again and again.
    """
    schedule = queue.schedules.get(command.schedule)
    if schedule is None:
        return Refused(Reason.SCHEDULE_UNKNOWN, command.schedule)
    if schedule.next_ns != command.fire_ns or schedule.next_ns > now_ns:
        return Refused(Reason.SCHEDULE_NOT_DUE, schedule.next_ns)
    next_ns = schedule.cron.next_after(now_ns)
    if next_ns is None:
        queue.put(queue.schedules, schedule.id, None)
    else:
        after = Schedule(
            schedule.id,
            schedule.cron_text,
            schedule.cron,
            schedule.priority,
            schedule.ttl_ns,
            schedule.group,
            schedule.tenant,
            next_ns,
        )
        queue.put(queue.schedules, schedule.id, after)
    if _lack_of_room(queue, schedule.group, schedule.tenant) is not None:
        queue.count(Total.MISSED)
        return APPLIED
    row = Row(
        index,
        now_ns,
        READY,
        schedule.priority,
        expires_ns=now_ns + schedule.ttl_ns if schedule.ttl_ns else 0,
        body=schedule.id,
        group=schedule.group,
        tenant=schedule.tenant,
    )
    queue.swap(None, row)
    queue.count(Total.ENQUEUED)
    return Applied(index)


def _lack_of_room(queue: QueueState, group: bytes, tenant: bytes) -> Refused | None:
    messages_max = queue.config.messages_max
    if messages_max and queue.live_count >= messages_max:
        return Refused(Reason.QUEUE_FULL, messages_max)
    if group and group not in queue.groups and len(queue.groups) >= GROUPS_MAX:
        return Refused(Reason.GROUPS_FULL, GROUPS_MAX)
    tenants = queue.table.tenants
    if tenant and len(tenants) >= TENANTS_MAX and not tenants.knows(tenant):
        return Refused(Reason.TENANTS_FULL, TENANTS_MAX)
    return None


def _each(
    items: Sequence[object],
    judge: Callable[..., Row | Refused],
    act: Callable[[Row], None],
    *,
    strict: bool,
) -> Outcome:
    """Act on each item that ``judge`` lets pass."""
    if strict or len(items) == 1:
        return _all(items, judge, act)
    verdicts: list[Reason | None] = []
    for item in items:
        row = judge(item)
        if isinstance(row, Refused):
            verdicts.append(row.reason)
        else:
            act(row)
            verdicts.append(None)
    return Applied(verdicts.count(None), encode_verdicts(verdicts))


def _all(
    items: Sequence[object],
    judge: Callable[..., Row | Refused],
    act: Callable[[Row], None],
) -> Outcome:
    """Act on all items or on none."""
    rows: dict[int, Row] = {}
    for item in items:
        row = judge(item)
        if isinstance(row, Refused):
            return row
        if row.id in rows:
            return Refused(Reason.MESSAGE_UNKNOWN, row.id)
        rows[row.id] = row
    for row in rows.values():
        act(row)
    return Applied(len(rows))
