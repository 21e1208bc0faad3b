"""Queues by example: what a producer and a consumer may rely on."""

import pytest

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
    QueueDelete,
    QueuePause,
    QueueResume,
    Release,
    encode_command,
)
from onelog.projections.queue.message import Enqueue, QueueConfig, decode_cursor, decode_verdicts
from onelog.projections.queue.table import DELAYED, LEASED, READY
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Refused
from onelog.projections.system.commands import NamespaceCreate, NamespaceDelete, encode_batch
from tests.projections.queue.queue_world import QueueWorld
from tests.projections.world import NAMESPACE, SECOND


@pytest.fixture
def world() -> QueueWorld:
    return QueueWorld()


def test_a_message_is_leased_once_and_gone_when_acknowledged(world: QueueWorld) -> None:
    queue = world.create("jobs")
    message = world.send(Enqueue(queue, b"work"))
    leased = world.lease(queue)

    assert [(m.id, m.body_index, m.deliveries) for m in leased.messages] == [(message, message, 1)]
    assert leased.token == world.index
    assert leased.deadline_ns == world.now_ns + 30 * SECOND
    assert world.lease(queue).messages == ()
    assert world.queue(Ack(queue, ((message, leased.token),))) == Applied(1)
    assert world.rows(queue) == []
    assert world.stats(queue).totals["acked"] == 1


def test_a_late_acknowledgement_is_a_clear_error(world: QueueWorld) -> None:
    """The worker that lost its lease must learn that somebody else has the message."""
    queue = world.create("jobs")
    message = world.send(Enqueue(queue, b"work"))
    first = world.lease(queue, visibility_ns=SECOND)
    world.pass_time(2 * SECOND)

    late = Ack(queue, ((message, first.token),))
    assert world.queue(late) == Refused(Reason.LEASE_TOKEN_STALE, 0)
    second = world.lease(queue)
    assert second.messages[0].deliveries == 2
    assert world.queue(late) == Refused(Reason.LEASE_TOKEN_STALE, second.token)
    assert world.queue(Ack(queue, ((message, second.token),))) == Applied(1)
    assert world.queue(late) == Refused(Reason.MESSAGE_UNKNOWN, message)


def test_a_lease_holds_until_its_end_is_in_the_log(world: QueueWorld) -> None:
    queue = world.create("jobs")
    message = world.send(Enqueue(queue, b"work"))
    leased = world.lease(queue, visibility_ns=SECOND)
    world.now_ns += 5 * SECOND

    assert world.queue(Ack(queue, ((message, leased.token),))) == Applied(1)


def test_an_extended_lease_ends_later(world: QueueWorld) -> None:
    queue = world.create("jobs")
    message = world.send(Enqueue(queue, b"work"))
    leased = world.lease(queue, visibility_ns=SECOND)

    assert world.queue(Extend(queue, ((message, leased.token),), 9 * SECOND)) == Applied(1)
    world.pass_time(8 * SECOND)
    assert world.row(queue, message).state == LEASED
    world.pass_time(SECOND)
    assert world.row(queue, message).state == READY


def test_a_released_message_was_never_delivered(world: QueueWorld) -> None:
    queue = world.create("jobs")
    message = world.send(Enqueue(queue, b"work"))
    leased = world.lease(queue)

    assert world.queue(Release(queue, ((message, leased.token),))) == Applied(1)
    assert world.row(queue, message).deliveries == 0
    assert world.lease(queue).messages[0].deliveries == 1


def test_several_messages_are_answered_one_by_one(world: QueueWorld) -> None:
    queue = world.create("jobs")
    for _ in range(2):
        world.send(Enqueue(queue, b""))
    leased = world.lease(queue, 2)
    first, second = (message.id for message in leased.messages)
    items = ((first, leased.token), (999, 1), (second, 1), (first, leased.token))

    result = world.queue(Ack(queue, items))
    assert isinstance(result, Applied)
    assert result.number == 1
    assert decode_verdicts(result, 4) == [
        None,
        Reason.MESSAGE_UNKNOWN,
        Reason.LEASE_TOKEN_STALE,
        Reason.MESSAGE_UNKNOWN,
    ]


def test_a_strict_command_does_all_or_nothing(world: QueueWorld) -> None:
    queue = world.create("jobs")
    for _ in range(2):
        world.send(Enqueue(queue, b""))
    leased = world.lease(queue, 2)
    items = tuple((message.id, leased.token) for message in leased.messages)

    wrong = (*items, (999, 1))
    assert world.queue(Ack(queue, wrong, strict=True)) == Refused(Reason.MESSAGE_UNKNOWN, 999)
    twice = (*items, items[0])
    for command in (Ack(queue, twice, strict=True), Extend(queue, twice, 5, strict=True)):
        assert world.queue(command) == Refused(Reason.MESSAGE_UNKNOWN, items[0][0])
    assert world.stats(queue).leased == 2
    assert world.queue(Ack(queue, items, strict=True)) == Applied(2)


def test_priority_comes_first_and_age_inside_a_priority(world: QueueWorld) -> None:
    queue = world.create("jobs")
    low, high, low_too, high_too = (
        world.send(Enqueue(queue, b"", priority=priority)) for priority in (9, 1, 9, 1)
    )

    assert world.take_all(queue) == [high, high_too, low, low_too]


def test_ageing_ends_the_wait_of_a_low_priority(world: QueueWorld) -> None:
    """A second of waiting makes up for one step, so eight steps take eight seconds."""
    queue = world.create("jobs", QueueConfig(ageing_ns=SECOND))
    low = world.send(Enqueue(queue, b"", priority=8))
    world.now_ns += 7 * SECOND
    early = world.send(Enqueue(queue, b"", priority=0))
    world.now_ns += 2 * SECOND
    late = world.send(Enqueue(queue, b"", priority=0))

    assert world.take_all(queue) == [early, low, late]


def test_a_message_that_comes_back_keeps_its_place(world: QueueWorld) -> None:
    queue = world.create("jobs")
    first, second = (world.send(Enqueue(queue, b"")) for _ in range(2))
    leased = world.lease(queue)
    world.queue(Nack(queue, ((first, leased.token),)))

    assert world.take_all(queue) == [first, second]


def test_tenants_are_served_in_turn(world: QueueWorld) -> None:
    """One tenant's flood does not delay another one's message, whatever their priorities."""
    queue = world.create("jobs")
    flood = [world.send(Enqueue(queue, b"", priority=0, tenant=b"ada")) for _ in range(4)]
    bob = [world.send(Enqueue(queue, b"", priority=9, tenant=b"bob")) for _ in range(2)]
    nobody = world.send(Enqueue(queue, b""))

    order = [flood[0], bob[0], nobody, flood[1], bob[1], flood[2], flood[3]]
    assert world.take_all(queue) == order


def test_a_group_is_in_order_with_one_in_flight(world: QueueWorld) -> None:
    queue = world.create("jobs")
    a1, a2, b1 = (world.send(Enqueue(queue, b"", group=key)) for key in (b"a", b"a", b"b"))
    leased = world.lease(queue, 10)

    assert [message.id for message in leased.messages] == [a1, b1]
    world.queue(Nack(queue, ((a1, leased.token),), 5 * SECOND))
    assert world.lease(queue).messages == (), "a retry that waits holds up its group"
    world.pass_time(5 * SECOND)
    assert world.take_all(queue) == [a1, a2]


def test_a_group_goes_on_when_its_first_message_is_cancelled(world: QueueWorld) -> None:
    queue = world.create("jobs")
    first, second = (world.send(Enqueue(queue, b"", group=b"a")) for _ in range(2))

    assert world.queue(Cancel(queue, (first,))) == Applied(1)
    assert world.take_all(queue) == [second]


def test_a_group_remembers_that_its_offer_was_withdrawn(world: QueueWorld) -> None:
    """Found by the model: a rolled back cancel had offered the second message of a group."""
    queue = world.create("jobs")
    first = world.send(Enqueue(queue, b"", group=b"a", delay_ns=SECOND))
    second = world.send(Enqueue(queue, b"", group=b"a"))
    batch = [encode_command(each, NAMESPACE) for each in (Cancel(queue, (first,)), Lease(999))]
    world.group(encode_batch(batch, [], NAMESPACE))

    assert world.lease(queue).messages == ()
    assert world.queue(Cancel(queue, (first,))) == Applied(1)
    assert world.take_all(queue) == [second]


def test_a_delayed_message_is_ready_when_its_time_is_in_the_log(world: QueueWorld) -> None:
    queue = world.create("jobs")
    later = world.send(Enqueue(queue, b"", delay_ns=5 * SECOND))
    at = world.send(Enqueue(queue, b"", at_ns=world.now_ns + 3 * SECOND))
    past = world.send(Enqueue(queue, b"", at_ns=1))

    assert [world.row(queue, each).state for each in (later, at, past)] == [DELAYED, DELAYED, READY]
    assert world.state.router.next_deadline() == world.now_ns + 3 * SECOND
    world.pass_time(10 * SECOND)
    assert world.take_all(queue) == [past, at, later], "by the time at which they were due"


def test_a_message_expires_unless_it_is_leased(world: QueueWorld) -> None:
    queue = world.create("jobs", QueueConfig(ttl_ns=2 * SECOND))
    held = world.send(Enqueue(queue, b""))
    leased = world.lease(queue)
    gone = world.send(Enqueue(queue, b"", ttl_ns=SECOND))
    world.pass_time(3 * SECOND)

    assert [row.id for row in world.rows(queue)] == [held]
    world.queue(Release(queue, ((held, leased.token),)))
    world.pass_time(0)
    assert world.rows(queue) == []
    assert world.stats(queue).totals["expired"] == 2
    assert gone


def test_an_expiry_that_comes_too_late_changes_nothing(world: QueueWorld) -> None:
    """The leader may propose it, and something else be applied before it."""
    queue = world.create("jobs")
    mortal = world.send(Enqueue(queue, b"", ttl_ns=SECOND))
    world.now_ns += SECOND
    (lifetime,) = world.state.router.due(world.now_ns, 10)
    leased = world.lease(queue, visibility_ns=SECOND)
    assert world.draft(lifetime) == Applied(0), "it is leased now"
    world.now_ns += SECOND
    (end,) = world.state.router.due(world.now_ns, 10)
    world.queue(Extend(queue, ((mortal, leased.token),), SECOND))
    assert world.draft(end) == Applied(0), "the lease was extended"
    world.queue(Ack(queue, ((mortal, leased.token),)))
    assert world.draft(end) == Applied(0), "it is gone"


def test_a_dedup_id_returns_the_first_message_until_its_window_ends(world: QueueWorld) -> None:
    queue = world.create("jobs", QueueConfig(dedup_window_ns=5 * SECOND))
    first = world.send(Enqueue(queue, b"", dedup=b"order-1"))
    assert world.take(queue) == first

    assert world.send(Enqueue(queue, b"", dedup=b"order-1")) == first, "even when it is done"
    assert world.stats(queue).totals["duplicates"] == 1
    world.now_ns += 5 * SECOND
    assert world.send(Enqueue(queue, b"", dedup=b"order-1")) == world.index


def test_the_dedup_window_drops_the_oldest_id_and_counts_it(world: QueueWorld) -> None:
    queue = world.create("jobs", QueueConfig(dedup_max=2))
    first = [world.send(Enqueue(queue, b"", dedup=b"%d" % number)) for number in range(3)]

    assert world.stats(queue).dedup_ids == 2
    assert world.stats(queue).totals["dedup_dropped"] == 1
    assert world.send(Enqueue(queue, b"", dedup=b"1")) == first[1]
    assert world.send(Enqueue(queue, b"", dedup=b"0")) == world.index


def test_a_paused_queue_takes_messages_and_gives_none(world: QueueWorld) -> None:
    queue = world.create("jobs")
    assert world.queue(QueuePause(queue)) == APPLIED
    message = world.send(Enqueue(queue, b""))

    assert world.queue(Lease(queue)) == Refused(Reason.QUEUE_PAUSED, queue)
    world.queue(QueueResume(queue))
    assert world.take(queue) == message


def test_a_message_can_be_cancelled_and_prioritised_by_id(world: QueueWorld) -> None:
    queue = world.create("jobs")
    first, second, third = (world.send(Enqueue(queue, b"")) for _ in range(3))

    assert world.queue(Prioritise(queue, (third,), 0)) == Applied(1)
    leased = world.lease(queue)
    assert leased.messages[0].id == third
    assert world.queue(Cancel(queue, (third,))) == Refused(Reason.MESSAGE_LEASED, third)
    result = world.queue(Cancel(queue, (first, third, 999)))
    assert isinstance(result, Applied)
    verdicts = [None, Reason.MESSAGE_LEASED, Reason.MESSAGE_UNKNOWN]
    assert decode_verdicts(result, 3) == verdicts
    assert world.take_all(queue) == [second]


def test_a_purge_goes_on_where_it_stopped(world: QueueWorld) -> None:
    queue = world.create("jobs")
    ids = [world.send(Enqueue(queue, b"")) for _ in range(5)]
    leased = world.lease(queue)

    result = world.queue(Purge(queue, limit=2))
    assert isinstance(result, Applied)
    assert (result.number, decode_cursor(result)) == (2, ids[3])
    assert world.queue(Purge(queue, from_id=ids[3], below_id=ids[4])) == Applied(1)
    assert [row.id for row in world.rows(queue)] == [ids[0], ids[4]]
    assert world.queue(Purge(queue, before_ns=world.now_ns + 1, leased_too=True)) == Applied(2)
    late = Ack(queue, ((ids[0], leased.token),))
    assert world.queue(late) == Refused(Reason.MESSAGE_UNKNOWN, ids[0])


def test_a_deleted_queue_is_not_the_one_that_takes_its_name(world: QueueWorld) -> None:
    queue = world.create("jobs")
    world.send(Enqueue(queue, b""))
    world.lease(queue)
    assert world.queue(QueueDelete(queue)) == APPLIED
    again = world.create("jobs")

    assert world.queue(Enqueue(queue, b"")) == Refused(Reason.QUEUE_UNKNOWN, queue)
    assert world.rows(again) == []
    assert world.state.router.next_deadline() is None


def test_a_namespace_takes_its_queues_with_it(world: QueueWorld) -> None:
    world.system(NamespaceCreate(world.state.system.namespaces.get("default").limits), "other")  # type: ignore[union-attr]
    queue = world.create("jobs")
    message = world.send(Enqueue(queue, b""))

    assert world.queue(Enqueue(queue, b""), "other") == Refused(Reason.QUEUE_UNKNOWN, queue)
    assert world.queue(Enqueue(queue, b""), "none") == Refused(Reason.NAMESPACE_UNKNOWN)
    assert world.state.queue.describe_queue("other", queue) == Refused(Reason.QUEUE_UNKNOWN, queue)
    world.system(NamespaceDelete(), "other")
    assert world.take(queue) == message


def test_a_batch_that_is_refused_leaves_no_trace(world: QueueWorld) -> None:
    queue = world.create("jobs")
    held = world.send(Enqueue(queue, b"", group=b"g", tenant=b"t", dedup=b"d"))
    leased = world.lease(queue)
    before = world.state.router.state_hashes(), world.sections()[2]
    commands: list[Command] = [
        Enqueue(queue, b"", group=b"g", tenant=b"u", dedup=b"e"),
        Ack(queue, ((held, leased.token),)),
        Lease(queue),
        QueueConfigure(queue, QueueConfig(dedup_max=1)),
        QueuePause(queue),
        Purge(queue, leased_too=True),
        QueueDelete(queue),
        Lease(queue),
    ]
    results = world.group(
        encode_batch([encode_command(each, NAMESPACE) for each in commands], [], NAMESPACE)
    )

    assert results[0] == Refused(Reason.BATCH_REFUSED, 7, Reason.QUEUE_UNKNOWN)
    assert (world.state.router.state_hashes(), world.sections()[2]) == before
    world.state.router.check()
    assert world.queue(Ack(queue, ((held, leased.token),))) == Applied(1)


def test_bodies_pin_the_log_until_their_messages_are_gone(world: QueueWorld) -> None:
    queue = world.create("jobs")
    first, second = (world.send(Enqueue(queue, b"")) for _ in range(2))
    router = world.state.router

    assert router.pinned(0, 100) == [first, second]
    assert world.take(queue) == first
    assert router.pinned(0, 100) == [second]
    assert router.pinned(second + 1, 100) == []
    assert world.take(queue) == second
    assert router.pinned(0, 100) == []


def test_stats_tell_depth_and_age(world: QueueWorld) -> None:
    queue = world.create("jobs")
    world.send(Enqueue(queue, b"", delay_ns=9 * SECOND))
    oldest = world.now_ns
    world.send(Enqueue(queue, b""))
    world.now_ns += 4 * SECOND
    world.send(Enqueue(queue, b"", tenant=b"t", group=b"g"))
    stats = world.stats(queue)

    assert (stats.ready, stats.delayed, stats.leased) == (2, 1, 0)
    assert (stats.oldest_ready_ns, stats.oldest_age_ns) == (oldest, 4 * SECOND)
    assert (stats.groups, stats.tenants) == (1, 1)
    assert world.state.router.counts()["messages_ready"] == 2
