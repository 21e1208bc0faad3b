"""Failures: backoff, dead letters, and redrive with filter and rate."""

import pytest

from onelog.projections.codec import read_prefix
from onelog.projections.queue.commands import (
    Nack,
    QueueConfigure,
    QueueCreate,
    QueueDelete,
    Redrive,
    RedriveCancel,
    RedriveStep,
    decode_command,
    plan_step,
)
from onelog.projections.queue.message import Enqueue, QueueConfig, dead_headers, decode_cursor
from onelog.projections.queue.reads import QueueInfo
from onelog.projections.queue.table import Dead
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Refused
from tests.projections.queue.queue_world import QueueWorld
from tests.projections.world import NAMESPACE, SECOND

DEAD = 1
JOBS = 2


@pytest.fixture
def world() -> QueueWorld:
    """A queue whose messages die at the second failure."""
    world = QueueWorld()
    assert world.create("dead") == DEAD
    assert world.create("jobs", QueueConfig(max_deliveries=2, dead_queue=DEAD)) == JOBS
    return world


def kill(world: QueueWorld, count: int, failure: bytes = b"no") -> list[int]:
    """Send messages and let them die."""
    ids = [world.send(Enqueue(JOBS, b"")) for _ in range(count)]
    for _ in range(2 * count):
        world.fail(JOBS, failure)
    return ids


def test_a_failure_waits_as_the_backoff_says(world: QueueWorld) -> None:
    world.queue(QueueConfigure(JOBS, QueueConfig(backoff_ns=(SECOND, 3 * SECOND))))
    message = world.send(Enqueue(JOBS, b""))
    for delay_s in (1, 3, 3):
        world.fail(JOBS)
        assert world.row(JOBS, message).due_ns == world.now_ns + delay_s * SECOND
        world.pass_time(delay_s * SECOND)
    leased = world.lease(JOBS)
    world.queue(Nack(JOBS, ((message, leased.token),), 0))
    assert world.take(JOBS) == message, "an explicit delay wins"


def test_a_message_dies_in_the_apply_of_its_last_failure(world: QueueWorld) -> None:
    message = world.send(Enqueue(JOBS, b"", priority=3, group=b"g", tenant=b"t", ttl_ns=SECOND))
    world.fail(JOBS, b"first")
    assert world.row(JOBS, message).dead is None
    world.fail(JOBS, b"second")

    assert world.rows(JOBS) == []
    row = world.row(DEAD, message)
    assert row.dead == Dead(JOBS, 2, world.now_ns, b"second")
    assert (row.priority, row.group, row.tenant) == (3, b"g", b"t")
    assert (row.expires_ns, row.deliveries) == (0, 0), "a dead letter does not expire"
    assert world.stats(JOBS).totals["dead"] == world.stats(DEAD).totals["arrived"] == 1
    assert world.state.router.pinned(0, 100) == [message]


def test_a_lease_that_runs_out_is_a_failure(world: QueueWorld) -> None:
    message = world.send(Enqueue(JOBS, b""))
    for _ in range(2):
        world.lease(JOBS, visibility_ns=SECOND)
        world.pass_time(SECOND)

    assert world.row(DEAD, message).dead == Dead(JOBS, 2, world.now_ns, b"lease expired")


def test_the_headers_of_a_dead_letter_come_with_its_lease(world: QueueWorld) -> None:
    (message,) = kill(world, 1, b"timeout")
    (letter,) = world.lease(DEAD).messages

    assert letter.dead is not None
    assert dead_headers(letter.id, letter.dead) == {
        "dlq.original_msg_id": str(message),
        "dlq.retry_count": "2",
        "dlq.failure_reason": "timeout",
        "dlq.last_failure": str(world.now_ns),
    }


def test_a_full_queue_takes_dead_letters_all_the_same(world: QueueWorld) -> None:
    world.queue(QueueConfigure(DEAD, QueueConfig(messages_max=1)))
    kill(world, 3)

    assert world.stats(DEAD).ready == 3
    assert world.queue(Enqueue(DEAD, b"")) == Refused(Reason.QUEUE_FULL, 1)


def test_there_is_always_somewhere_to_die(world: QueueWorld) -> None:
    assert world.queue(QueueDelete(DEAD)) == Refused(Reason.QUEUE_IN_USE, JOBS)
    for config in (
        QueueConfig(max_deliveries=1),
        QueueConfig(dead_queue=JOBS),
        QueueConfig(max_deliveries=1, dead_queue=999),
    ):
        refused = Refused(Reason.DEAD_QUEUE_INVALID, config.dead_queue)
        assert world.queue(QueueConfigure(JOBS, config)) == refused
    assert world.queue(QueueCreate("x", QueueConfig(dead_queue=99))) == Refused(
        Reason.DEAD_QUEUE_INVALID, 99
    )
    assert world.queue(QueueConfigure(JOBS, QueueConfig())) == APPLIED
    assert world.queue(QueueDelete(DEAD)) == APPLIED


def test_a_redrive_brings_messages_back_with_their_ids(world: QueueWorld) -> None:
    ids = kill(world, 3)
    fresh = world.send(Enqueue(JOBS, b""))
    world.now_ns += SECOND

    assert world.queue(Redrive(DEAD)) == Applied(3)
    assert world.rows(DEAD) == []
    assert world.row(JOBS, ids[0]).dead is not None, "the cause is kept"
    assert world.stats(JOBS).totals["redriven"] == world.stats(DEAD).totals["moved"] == 3
    assert world.take_all(JOBS) == [fresh, *ids], "they wait from now on"


def test_a_redriven_message_that_left_and_came_back_has_its_new_place(world: QueueWorld) -> None:
    """An outdated entry of its former stay must not serve it too early."""
    old, newer = kill(world, 2)
    world.now_ns += SECOND
    world.queue(Redrive(DEAD, last_id=old))
    world.now_ns += SECOND
    for _ in range(2):
        world.fail(JOBS)

    assert [row.id for row in world.rows(DEAD)] == [old, newer]
    assert world.take_all(DEAD) == [newer, old]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Redrive(DEAD, first_id=4), [1]),
        (Redrive(DEAD, last_id=3), [0]),
        (Redrive(DEAD, failure=b"tim"), [1]),
        (Redrive(DEAD, failed_from_ns=1_001 * SECOND), [1]),
        (Redrive(DEAD, failed_until_ns=1_000 * SECOND), [0]),
        (Redrive(DEAD, limit=1), [0]),
        (Redrive(DEAD, failure=b"nothing like it"), []),
    ],
)
def test_a_redrive_moves_what_matches(
    world: QueueWorld, wanted: Redrive, expected: list[int]
) -> None:
    ids = [*kill(world, 1, b"no")]
    world.now_ns += SECOND
    ids += kill(world, 1, b"timeout")
    assert ids[0] == 3

    assert world.queue(wanted) == Applied(len(expected))
    assert [row.id for row in world.rows(JOBS)] == [ids[number] for number in expected]


def test_a_redrive_goes_to_another_queue_if_asked(world: QueueWorld) -> None:
    other = world.create("other")
    (message,) = kill(world, 1)

    for target in (DEAD, 999):
        assert world.queue(Redrive(DEAD, target)) == Refused(Reason.QUEUE_UNKNOWN, target)
    assert world.queue(Redrive(DEAD, other)) == Applied(1)
    assert [row.id for row in world.rows(other)] == [message]


def test_letters_whose_queue_is_gone_stay(world: QueueWorld) -> None:
    kill(world, 1)
    world.queue(QueueDelete(JOBS))

    assert world.queue(Redrive(DEAD)) == Applied(0)
    assert world.stats(DEAD).ready == 1


def test_a_rate_is_kept_by_steps_in_the_log(world: QueueWorld) -> None:
    """Twenty a second: two at a time, ten times a second."""
    ids = kill(world, 5)
    result = world.queue(Redrive(DEAD, rate_per_s=20))
    redrive = world.index
    assert isinstance(result, Applied)
    assert (result.number, decode_cursor(result)) == (2, redrive)
    router = world.state.router
    assert router.next_deadline() == world.now_ns + SECOND // 10
    assert router.due(world.now_ns, 100) == []

    early = RedriveStep(DEAD, redrive, ids[2])
    due_ns = world.now_ns + SECOND // 10
    assert world.queue(early) == Refused(Reason.REDRIVE_NOT_DUE, due_ns)
    world.now_ns = due_ns
    (draft,) = router.due(world.now_ns, 100)
    command = decode_command(draft.entry_type & 0xFF, read_prefix(draft.payload)[1])
    assert command == early
    world.draft(draft)
    assert world.stats(JOBS).ready == 4
    refused = Refused(Reason.REDRIVE_NOT_DUE, world.now_ns + SECOND // 10)
    assert world.draft(draft) == refused, "the same step twice is one step"
    world.pass_time(SECOND)
    assert [row.id for row in world.rows(JOBS)] == ids
    assert router.next_deadline() is None
    assert world.draft(draft) == Refused(Reason.REDRIVE_UNKNOWN, redrive)


def test_a_redrive_can_be_stopped(world: QueueWorld) -> None:
    kill(world, 3)
    world.queue(Redrive(DEAD, rate_per_s=1))
    redrive = world.index
    info = world.state.queue.describe_queue(NAMESPACE, DEAD)
    assert isinstance(info, QueueInfo)
    assert [(each.id, each.moved_count) for each in info.redrives] == [(redrive, 1)]

    assert world.queue(RedriveCancel(DEAD, redrive)) == APPLIED
    assert world.pass_time(5 * SECOND) == []
    assert world.stats(DEAD).ready == 2
    unknown = Refused(Reason.REDRIVE_UNKNOWN, redrive)
    assert world.queue(RedriveCancel(DEAD, redrive)) == unknown


def test_a_redrive_leaves_alone_what_dies_while_it_runs(world: QueueWorld) -> None:
    """Or a message that always fails would go round and round."""
    ids = kill(world, 2)
    world.queue(Redrive(DEAD, rate_per_s=1))
    world.now_ns += SECOND // 2
    late = world.send(Enqueue(JOBS, b""))
    for _ in range(4):
        world.fail(JOBS)
    assert [row.id for row in world.rows(DEAD)] == [*ids, late]
    for _ in range(4):
        world.pass_time(SECOND)

    assert [row.id for row in world.rows(JOBS)] == [ids[1]]
    assert [row.id for row in world.rows(DEAD)] == [ids[0], late]


def test_too_many_redrives_are_refused(world: QueueWorld) -> None:
    kill(world, 40)
    for _ in range(16):
        assert isinstance(world.queue(Redrive(DEAD, rate_per_s=1)), Applied)

    assert world.queue(Redrive(DEAD, rate_per_s=1)) == Refused(Reason.REDRIVES_FULL, 16)


def test_steps_never_exceed_the_rate() -> None:
    for rate in (1, 3, 9, 10, 11, 99, 5_000, 10_000, 123_456, 2**32 - 1):
        count, interval_ns = plan_step(rate)
        assert 1 <= count <= 1_000
        assert count * SECOND <= rate * interval_ns
    assert plan_step(0) == (1_000, 0)
