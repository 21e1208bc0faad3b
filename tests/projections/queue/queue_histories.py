"""Random commands for queues, drawn with a look at what exists, and every question one can ask.

``random_commands`` is for logs (replay, simulator); ``draw_command`` gives the command itself, for
the test that holds queues against a model.
"""

from random import Random

from onelog.projections.queue.commands import (
    Ack,
    Cancel,
    Command,
    Extend,
    Lease,
    Nack,
    Prioritise,
    Purge,
    QueueConfigure,
    QueueCreate,
    QueueDelete,
    QueuePause,
    QueueResume,
    Redrive,
    RedriveCancel,
    RedriveStep,
    Release,
    ScheduleDelete,
    ScheduleFire,
    encode_command,
)
from onelog.projections.queue.message import Enqueue, QueueConfig, ScheduleCreate
from onelog.projections.queue.projection import Queue
from onelog.projections.queue.reads import Peeked, QueueInfo
from onelog.projections.queue.table import LEASED, Row
from onelog.ual.entry import Draft
from tests.projections.world import NAMESPACE, SECOND

NAMES = ["dead", "jobs", "mail", "retry"]
GROUPS = [b"g1", b"g2", b"g3"]
TENANTS = [b"ada", b"bob", b"eve"]
WEIGHTS = [((b"ada", 3),), ((b"", 2), (b"bob", 4), (b"eve", 2))]
DEDUPS = [b"d%d" % number for number in range(6)]
CRONS = [b"* * * * *", b"*/2 * * * *", b"0 * * * *"]
PRIORITIES = [0, 3, 8, 8, 8, 15]
UNKNOWN = 999_999


def random_commands(rng: Random, state: Queue) -> list[Draft]:
    """Return one to four entries for the default namespace."""
    return [encode_command(draw_command(rng, state), NAMESPACE) for _ in range(rng.randint(1, 4))]


def answers(state: Queue) -> list[object]:
    """Ask everything that can be asked."""
    found: list[object] = [state.counts(), state.next_deadline()]
    for namespace in sorted(state._names):
        listed = state.list_queues(namespace)
        found.append(listed)
        assert isinstance(listed, list)
        for _, queue_id in listed:
            queue = state.queue_by_id(queue_id)
            found += (
                state.describe_queue(namespace, queue_id),
                state.peek(namespace, queue_id, limit=1_000),
                None if queue is None else queue.next_ready(),
            )
    found += (state.pinned(0, 2**63), state.due(2**63, 1_000), state.chores(2**63, 100))
    return found


def draw_command(rng: Random, state: Queue) -> Command:
    """Return a command for the default namespace, of which most take effect."""
    listed = state.list_queues(NAMESPACE)
    assert isinstance(listed, list)
    known = dict(listed)
    missing = [name for name in NAMES if name not in known]
    if missing and (len(known) < 2 or rng.random() < 0.1):
        return QueueCreate(missing[0], draw_config(rng, known, missing[0]))
    name = rng.choice(sorted(known))
    queue = known[name] if rng.random() < 0.99 else UNKNOWN
    rows = _rows(state, queue)
    chance = rng.random()
    if chance < 0.34:
        return draw_enqueue(rng, queue)
    if chance < 0.54:
        visibility_ns = rng.choice([0, 1, SECOND, 3 * SECOND])
        consumer = b"push" if visibility_ns == SECOND else b""
        # By a generator of its own, so that histories stay what they were for a seed.
        own = Random(queue * 1_000 + len(rows))
        passed = draw_ranges(own, rows) if own.random() < 0.1 else ()
        return Lease(queue, rng.choice([1, 1, 1, 2, 5, 40]), visibility_ns, consumer, passed)
    if chance < 0.80:
        return _draw_settle(rng, queue, rows)
    if chance < 0.85:
        return _draw_by_id(rng, queue, rows)
    if chance < 0.96:
        return _draw_chore(rng, state, queue, known)
    return _draw_queue_change(rng, queue, name, known)


def draw_ranges(rng: Random, rows: list[Row]) -> tuple[tuple[int, int], ...]:
    """Return ranges of entries that hold some of the bodies."""
    ends = sorted({row.body_index for row in rng.sample(rows, min(len(rows), 4))})
    if len(ends) > 1 and rng.random() < 0.3:
        return ((ends[0], ends[1]), *((each, each) for each in ends[2:]))
    return tuple((each, each) for each in ends)


def draw_config(rng: Random, known: dict[str, int], name: str) -> QueueConfig:
    """Return settings that often lead to dead letters, duplicates and full queues."""
    dead = known.get("dead", 0) if name != "dead" else known.get("retry", 0)
    if name == "dead" and rng.random() < 0.8:
        dead = 0
    return QueueConfig(
        max_deliveries=rng.randint(1, 3) if dead and rng.random() < 0.9 else 0,
        dead_queue=dead,
        visibility_ns=rng.choice([SECOND, 5 * SECOND]),
        ageing_ns=rng.choice([0, 0, SECOND, SECOND // 3]),
        ttl_ns=rng.choice([0, 0, 0, 0, 9 * SECOND]),
        dedup_window_ns=rng.choice([0, 3 * SECOND, 20 * SECOND, 20 * SECOND]),
        dedup_max=rng.choice([0, 2, 5, 5]),
        messages_max=rng.choice([0, 0, 0, 12]),
        backoff_ns=rng.choice([(), (0, SECOND), (SECOND, 2 * SECOND, 3 * SECOND)]),
        tenant_weights=rng.choice([(), (), *WEIGHTS]),
    )


def draw_enqueue(rng: Random, queue: int) -> Enqueue:
    """Return a message, plain or with some of the options."""
    body = rng.randbytes(rng.choice([0, 3, 20, 1_500]))
    if rng.random() < 0.5:
        return Enqueue(queue, body, rng.choice(PRIORITIES))
    when = rng.random()
    return Enqueue(
        queue,
        body,
        rng.choice(PRIORITIES),
        delay_ns=rng.randrange(3 * SECOND) if when < 0.2 else None,
        at_ns=1_000 * SECOND + rng.randrange(60 * SECOND) if when > 0.85 else None,
        ttl_ns=rng.randint(1, 9 * SECOND) if rng.random() < 0.2 else None,
        dedup=rng.choice(DEDUPS) if rng.random() < 0.5 else b"",
        group=rng.choice(GROUPS) if rng.random() < 0.4 else b"",
        tenant=rng.choice(TENANTS) if rng.random() < 0.4 else b"",
        headers=((b"kind", b"test"),) if rng.random() < 0.2 else (),
    )


def _rows(state: Queue, queue: int) -> list[Row]:
    peeked = state.peek(NAMESPACE, queue, limit=1_000)
    return list(peeked.messages) if isinstance(peeked, Peeked) else []


def _draw_settle(rng: Random, queue: int, rows: list[Row]) -> Command:
    leased = [(row.id, row.token) for row in rows if row.state == LEASED]
    if not leased and rng.random() < 0.9:
        return Lease(queue, rng.randint(1, 4))
    items = rng.sample(leased, min(len(leased), rng.choice([1, 1, 2, 6])))
    if not items or rng.random() < 0.05:
        wrong = rng.choice(rows).id if rows else UNKNOWN
        items = [*(item for item in items if item[0] != wrong), (wrong, rng.randint(1, 500))]
    strict = rng.random() < 0.3
    match rng.randrange(8):
        case 0 | 1 | 2:
            return Ack(queue, tuple(items), strict)
        case 3 | 4 | 5:
            delay_ns = rng.choice([None, None, 0, SECOND])
            failure = rng.choice([b"", b"timeout", b"bad input"])
            return Nack(queue, tuple(items), delay_ns, failure, strict)
        case 6:
            return Extend(queue, tuple(items), rng.choice([0, 1, 4 * SECOND]), strict)
        case _:
            return Release(queue, tuple(items), strict)


def _draw_by_id(rng: Random, queue: int, rows: list[Row]) -> Command:
    ids = tuple(row.id for row in rng.sample(rows, min(len(rows), rng.randint(1, 3))))
    if not ids or rng.random() < 0.1:
        ids = (*ids, UNKNOWN)
    strict = rng.random() < 0.2
    if rng.random() < 0.5:
        return Cancel(queue, ids, strict)
    return Prioritise(queue, ids, rng.choice(PRIORITIES), strict)


def _draw_chore(rng: Random, state: Queue, queue: int, known: dict[str, int]) -> Command:
    if rng.random() < 0.5:
        queue = known.get("dead", queue)
    info = state.describe_queue(NAMESPACE, queue)
    schedules = [each.id for each in info.schedules] if isinstance(info, QueueInfo) else []
    redrives = [each.id for each in info.redrives] if isinstance(info, QueueInfo) else []
    match rng.randrange(10):
        case 0 | 1 if not schedules:
            return ScheduleCreate(
                queue,
                rng.choice(CRONS),
                b"tick",
                ttl_ns=rng.choice([None, SECOND]),
                group=rng.choice([b"", b"g1"]),
                tenant=rng.choice([b"", b"ada"]),
            )
        case 0 if schedules:
            return ScheduleDelete(queue, rng.choice(schedules))
        case 2:
            return ScheduleFire(queue, rng.choice([*schedules, UNKNOWN]), rng.randrange(9))
        case 3 | 4 | 8 | 9 if redrives and rng.random() < 0.8:
            return RedriveCancel(queue, rng.choice(redrives))
        case 3:
            return RedriveStep(queue, rng.choice([*redrives, UNKNOWN]), rng.randrange(9))
        case 5:
            return Purge(
                queue,
                from_id=rng.choice([0, 0, 30]),
                below_id=rng.choice([0, 60, 200]),
                before_ns=rng.choice([0, 1_004 * SECOND]),
                limit=rng.choice([1, 2, 10_000]),
                leased_too=rng.random() < 0.3,
            )
        case 6 | 7:
            # Everything that is dead, and slowly: it goes on while other things happen.
            return Redrive(known.get("dead", queue), rate_per_s=rng.choice([1, 1, 3]))
        case _:
            return Redrive(
                known.get("dead", queue),
                target=rng.choice([0, 0, 0, *known.values()]),
                first_id=rng.choice([0, 0, 40]),
                last_id=rng.choice([0, 0, 100]),
                failed_from_ns=rng.choice([0, 1_002 * SECOND]),
                failed_until_ns=rng.choice([0, 0, 1_020 * SECOND]),
                limit=rng.choice([0, 0, 1, 3]),
                rate_per_s=rng.choice([0, 1, 3, 25]),
                failure=rng.choice([b"", b"", b"time"]),
            )


def _draw_queue_change(rng: Random, queue: int, name: str, known: dict[str, int]) -> Command:
    match rng.randrange(8):
        case 0:
            return QueueDelete(queue)
        case 1 | 2 | 3:
            return QueueConfigure(queue, draw_config(rng, known, name))
        case 4:
            return QueuePause(queue)
        case 5:
            return QueueCreate(name, QueueConfig())
        case _:
            return QueueResume(queue)
