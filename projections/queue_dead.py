"""Failures: backoff, death, and the way back.

A delivery that failed (a nack, or a lease that ran out) makes the message wait as the backoff
says. After ``max_deliveries`` of them it moves to the queue of dead letters, in the same apply,
with the reason. It keeps its id for life: ids are indexes of the log, which are unique, and moving
makes no second message. The queue that takes dead letters cannot be full, be deleted while it is
in use, or let them expire.

A redrive walks over the dead letters in the order of ids. What one entry may move is bounded; the
rest is done by ``redrive_step`` entries that the leader proposes, at the rate that was asked for.
"""

from collections.abc import Mapping
from dataclasses import replace

from projections.limits import U64_MAX
from projections.queue_changes import Kind, QueueChanges
from projections.queue_columns import Span
from projections.queue_commands import Redrive, RedriveCancel, RedriveStep
from projections.queue_limits import (
    REDRIVE_STEP_MAX,
    REDRIVE_STEPS_PER_S,
    REDRIVE_VISITS_MAX,
    REDRIVES_MAX,
    SECOND_NS,
)
from projections.queue_results import encode_cursor
from projections.queue_row import (
    DELAYED,
    DELIVERIES_SHIFT,
    LEASED,
    READY,
    STATE_MASK,
    Dead,
    Row,
)
from projections.queue_store import QueueState, RunningRedrive, Total
from projections.reasons import Reason
from projections.result import APPLIED, Applied, Outcome, Refused

FAILURE_LEASE_EXPIRED = b"lease expired"

Queues = Mapping[int, QueueState]


def fail(
    queues: Queues,
    queue: QueueState,
    spans: list[Span],
    failure: bytes,
    now_ns: int,
    delay_ns: int | None,
) -> list[int]:
    """Record failed deliveries of leased messages: each waits for its backoff, or is dead.

    Return those that are dead.
    """
    config, dying = queue.config, list[Span]()
    for block, first, last in spans:
        start = first
        while start < last:
            meta = block.meta[start]
            stop = start + 1
            while stop < last and block.meta[stop] == meta:
                stop += 1
            span, deliveries = (block, start, stop), meta >> DELIVERIES_SHIFT
            start = stop
            if config.max_deliveries and deliveries >= config.max_deliveries:
                dying.append(span)
                continue
            wait_ns = config.backoff_after(deliveries) if delay_ns is None else delay_ns
            after = meta & ~STATE_MASK | (DELAYED if wait_ns else READY)
            queue.change_rows(
                span, [after] * (stop - span[1]), now_ns + wait_ns if wait_ns else 0, 0
            )
    if not dying:
        return []
    target = queues[config.dead_queue]
    rows = queue.take_out(dying)
    queue.count(Total.DEAD, len(rows))
    for row in rows:
        target.insert(_moved(row, now_ns, Dead(queue.id, row.deliveries, now_ns, failure)))
    target.count(Total.ARRIVED, len(rows))
    return [row.id for row in rows]


def _moved(row: Row, now_ns: int, dead: Dead | None) -> Row:
    """Return a message as it arrives in another queue: at the end, fresh, without a lifetime."""
    return Row(
        row.id,
        now_ns,
        READY,
        row.priority,
        body=row.body,
        group=row.group,
        tenant=row.tenant,
        dead=dead,
    )


def start_redrive(
    queues: Queues,
    queue: QueueState,
    command: Redrive,
    index: int,
    now_ns: int,
    changes: QueueChanges,
) -> Outcome:
    """Start a redrive and do its first step."""
    if command.target:
        target = queues.get(command.target)
        if target is None or target.namespace != queue.namespace or target is queue:
            return Refused(Reason.QUEUE_UNKNOWN, command.target)
    if len(queue.redrives) >= REDRIVES_MAX:
        return Refused(Reason.REDRIVES_FULL, REDRIVES_MAX)
    redrive = RunningRedrive(
        index,
        command.target,
        command.last_id or U64_MAX,
        command.failed_from_ns,
        command.failed_until_ns or U64_MAX,
        command.limit,
        command.rate_per_s,
        now_ns,
        command.first_id,
        now_ns,
        0,
        0,
        command.failure,
    )
    queue.put(queue.redrives, index, redrive)
    return _step(queues, queue, redrive, index, now_ns, changes)


def go_on(
    queues: Queues,
    queue: QueueState,
    command: RedriveStep,
    index: int,
    now_ns: int,
    changes: QueueChanges,
) -> Outcome:
    """Do the next step of a redrive, if it is due and this is the one."""
    redrive = queue.redrives.get(command.redrive)
    if redrive is None:
        return Refused(Reason.REDRIVE_UNKNOWN, command.redrive)
    if redrive.cursor != command.cursor or redrive.next_ns > now_ns:
        return Refused(Reason.REDRIVE_NOT_DUE, redrive.next_ns)
    return _step(queues, queue, redrive, index, now_ns, changes)


def cancel_redrive(queue: QueueState, command: RedriveCancel) -> Outcome:
    """Stop a redrive; what was moved stays moved."""
    if command.redrive not in queue.redrives:
        return Refused(Reason.REDRIVE_UNKNOWN, command.redrive)
    queue.put(queue.redrives, command.redrive, None)
    return APPLIED


def step_of(rate_per_s: int) -> tuple[int, int]:
    """Return how many messages one step may move, and how long the next one has to wait."""
    if not rate_per_s:
        return REDRIVE_STEP_MAX, 0
    count = min(REDRIVE_STEP_MAX, max(1, rate_per_s // REDRIVE_STEPS_PER_S))
    return count, -(-count * SECOND_NS // rate_per_s)


def _step(
    queues: Queues,
    queue: QueueState,
    redrive: RunningRedrive,
    index: int,
    now_ns: int,
    changes: QueueChanges,
) -> Outcome:
    """Move what matches. The cursor only rises, so a step that comes twice finds it elsewhere."""
    count_max, interval_ns = step_of(redrive.rate_per_s)
    if redrive.left:
        count_max = min(count_max, redrive.left)
    matching: list[tuple[Row, QueueState]] = []
    skipped = visits = 0
    cursor: int | None = None
    for row in queue.table.rows(redrive.cursor):
        if row.id > redrive.last_id:
            break
        if visits == REDRIVE_VISITS_MAX or len(matching) == count_max:
            cursor = row.id
            break
        visits += 1
        if not _matches(row, redrive):
            continue
        assert row.dead is not None
        target = queues.get(redrive.target or row.dead.source)
        if target is None or target is queue:
            skipped += 1
            continue
        matching.append((row, target))
    for row, target in matching:
        place = queue.table.find(row.id)
        assert place is not None, f"no message {row.id}"
        queue.remove([(*place, place[1] + 1)])
        queue.count(Total.MOVED)
        target.insert(_moved(row, now_ns, row.dead))
        target.count(Total.REDRIVEN)
    # Those who watch the one queue hear that they left, those of the other that they came.
    moved: dict[int, list[int]] = {queue.id: [row.id for row, _ in matching]}
    for row, target in matching:
        moved.setdefault(target.id, []).append(row.id)
    for queue_id, ids in moved.items():
        changes.add(index, Kind.REDRIVEN, queue_id, ids)
    left = redrive.left - len(matching)
    if cursor is None or (redrive.left and not left):
        queue.put(queue.redrives, redrive.id, None)
        return Applied(len(matching))
    after = replace(
        redrive,
        left=left if redrive.left else 0,
        cursor=cursor,
        next_ns=now_ns + interval_ns,
        moved_count=redrive.moved_count + len(matching),
        skipped_count=redrive.skipped_count + skipped,
    )
    queue.put(queue.redrives, redrive.id, after)
    return Applied(len(matching), encode_cursor(redrive.id))


def _matches(row: Row, redrive: RunningRedrive) -> bool:
    """Whether a dead letter is to be moved: nobody holds it, and it died before the redrive."""
    dead = row.dead
    if dead is None or row.state == LEASED or row.since_ns > redrive.started_ns:
        return False
    if not redrive.failed_from_ns <= dead.failed_ns <= redrive.failed_until_ns:
        return False
    return redrive.failure in dead.failure
