"""Queues by example: what a producer and a consumer may rely on."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.codec import SessionRef
from onelog.projections.kv.commands import Put
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
    Release,
    encode_command,
)
from onelog.projections.queue.message import Enqueue, QueueConfig, decode_cursor, decode_verdicts
from onelog.projections.queue.table import DELAYED, LEASED, READY
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Refused
from onelog.projections.system.commands import (
    NamespaceCreate,
    NamespaceDelete,
    SessionOpen,
    encode_batch,
)
from onelog.ual.entry import OWNER_QUEUE, Draft
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


def tenants_of(world: QueueWorld, queue: int, ids: Sequence[int]) -> str:
    rows = {row.id: row for row in world.rows(queue)}
    return " ".join(rows[each].tenant.decode() or "-" for each in ids)


def send_all(world: QueueWorld, queue: int, counts: dict[bytes, int]) -> None:
    for tenant, count in counts.items():
        for _ in range(count):
            world.send(Enqueue(queue, b"", tenant=tenant))


def test_a_tenant_with_a_weight_gets_as_many_messages_in_its_turn(world: QueueWorld) -> None:
    """Whatever is leased at once, and across a restart."""
    weights = ((b"", 2), (b"bob", 3))
    queue = world.create("jobs", QueueConfig(tenant_weights=weights))
    send_all(world, queue, {b"": 5, b"ada": 3, b"bob": 7})
    order = "ada bob bob bob - - ada bob bob bob - - ada bob -"

    for count in (1, 2, 4, 5, 100):
        other = world.reloaded(50)
        found = ""
        while True:
            held = other.state.queue.queue_by_id(queue)
            assert held is not None
            next_id = held.next_ready()
            ids = [each.id for each in other.lease(queue, count).messages]
            assert next_id == next(iter(ids), None)
            if not ids:
                break
            found += tenants_of(other, queue, ids) + " "
            if count < 3:
                other = other.reloaded(50)
        assert found.strip() == order, count
        other.state.router.check()


def test_a_turn_ends_early_when_nothing_of_its_tenant_can_be_delivered(world: QueueWorld) -> None:
    queue = world.create("jobs", QueueConfig(tenant_weights=((b"ada", 3),)))
    for _ in range(2):
        world.send(Enqueue(queue, b"", tenant=b"ada", group=b"one at a time"))
    send_all(world, queue, {b"ada": 1, b"bob": 2})
    ids = [each.id for each in world.lease(queue, 3).messages]
    assert tenants_of(world, queue, ids) == "ada ada bob"
    send_all(world, queue, {b"ada": 4})
    ids = [each.id for each in world.lease(queue, 9).messages]
    assert tenants_of(world, queue, ids) == "ada ada ada bob ada"
    # What was left of a turn is nothing for the next tenant.
    other = world.create("other", QueueConfig(tenant_weights=((b"ada", 3), (b"bob", 3))))
    send_all(world, other, {b"ada": 2, b"bob": 4})
    world.lease(other, 3)
    send_all(world, other, {b"ada": 4})
    ids = [each.id for each in world.lease(other, 9).messages]
    assert tenants_of(world, other, ids) == "bob bob ada ada ada bob ada"


def test_weights_and_turns_are_in_the_state_hash_if_there_are_any(world: QueueWorld) -> None:
    """Then replicas that differ are found. Others have the hash that they had before weights."""

    def hashes(first: int, *, weight: int) -> int:
        world = QueueWorld()
        queue = world.create("jobs", QueueConfig(tenant_weights=((b"ada", weight),)))
        send_all(world, queue, {b"ada": 4})
        held = world.state.queue.queue_by_id(queue)
        assert held is not None
        held.change("turn_count", first)
        return world.state.queue.state_hash()

    assert len({hashes(0, weight=2), hashes(1, weight=2), hashes(0, weight=3)}) == 3


def test_a_log_without_weights_has_the_state_hashes_of_older_versions(world: QueueWorld) -> None:
    """Otherwise snapshots would be refused, and replicas differ while a cluster is upgraded."""
    world.system(SessionOpen(60 * SECOND))
    queue = world.create("jobs", QueueConfig(backoff_ns=(SECOND,)))
    for tenant in (b"ada", b"bob", b""):
        session = SessionRef(1, world.index, 0)
        message = Enqueue(queue, b"job", tenant=tenant)
        world.draft(encode_command(message, NAMESPACE, session))
    world.draft(encode_command(Lease(queue, 2), NAMESPACE, SessionRef(1, 9, 3)))
    world.kv(Put(b"k", b"v"), session=SessionRef(1, 10, 3))

    assert world.state.router.state_hashes() == {
        0: 0xF84D58739AF76F16,
        1: 0x4A26DE922F87D81F,
        2: 0x1675BC232157DE27,
        3: 0x18029BCEE66EFB7C,
        4: 0,
    }


def test_new_weights_count_from_the_next_message_on(world: QueueWorld) -> None:
    queue = world.create("jobs", QueueConfig(tenant_weights=((b"ada", 4),)))
    plain = world.create("plain")
    for each in (queue, plain):
        send_all(world, each, {b"ada": 9, b"bob": 9})

    def lease(count: int, each: int = queue) -> str:
        return tenants_of(world, each, [one.id for one in world.lease(each, count).messages])

    assert (lease(2), lease(2, plain)) == ("ada ada", "ada bob")
    world.queue(QueueConfigure(queue, QueueConfig(tenant_weights=((b"ada", 3), (b"bob", 2)))))
    assert lease(4) == "ada bob bob ada"
    world.queue(QueueConfigure(queue, QueueConfig()))
    assert lease(3) == "bob ada bob"
    held = world.state.queue.queue_by_id(queue)
    assert held is not None
    assert held.turn_count == 0


@given(
    weights=st.dictionaries(st.sampled_from([b"", b"a", b"b", b"c"]), st.integers(1, 7)),
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    ageing_ns=st.sampled_from([0, SECOND]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_over_a_backlog_each_tenant_gets_its_share_and_none_starves(
    weights: dict[bytes, int], counts: list[int], ageing_ns: int, seed: int
) -> None:
    world, rng = QueueWorld(), Random(seed)
    config = QueueConfig(ageing_ns=ageing_ns, tenant_weights=tuple(sorted(weights.items())))
    queue = world.create("jobs", config)
    names = [b"", b"a", b"b", b"c"]
    share = {name: weights.get(name, 1) for name in names}
    whole, wanted = sum(share.values()), sum(counts)
    send = [name for name in names for _ in range(wanted * share[name] // whole + share[name] + 1)]
    rng.shuffle(send)
    for name in send:
        world.send(Enqueue(queue, b"", priority=rng.randrange(16), tenant=name))
    tenants = {row.id: row.tenant for row in world.rows(queue)}
    got = [tenants[m.id] for count in counts for m in world.lease(queue, count).messages]

    assert len(got) == wanted
    for first in range(len(got)):
        for last in (first + whole, min(first + 7 * whole, len(got))):
            part = got[first:last]
            rounds = len(part) / whole
            for name in names:
                assert abs(part.count(name) - rounds * share[name]) <= share[name]
            if len(part) >= whole:
                assert set(part) == set(names)


def test_a_snapshot_without_weights_is_still_read(world: QueueWorld) -> None:
    """Version 1 of the section; a queue without weights has the same hash in both."""
    queue = world.create("jobs", QueueConfig(backoff_ns=(SECOND,)))
    send_all(world, queue, {b"ada": 2, b"bob": 2})
    world.lease(queue)
    held = world.state.queue.queue_by_id(queue)
    assert held is not None
    head, shares = held.encode_head(), held.encode_shares()
    assert shares == bytes(3)
    sections = {owner: b"".join(chunks) for owner, chunks in world.state.router.dump().items()}
    old = sections[OWNER_QUEUE]
    assert old.count(head + shares) == 1
    sections[OWNER_QUEUE] = b"\x01" + old.replace(head + shares, head)[1:]
    loaded = QueueWorld()
    loaded.state.router.load({owner: [data] for owner, data in sections.items()})

    assert loaded.state.router.state_hash() == world.state.router.state_hash()
    loaded.state.router.check()
    assert loaded.take_all(queue) == world.take_all(queue)


@pytest.mark.parametrize(
    "tail",
    [
        b"\x00",  # none, which has no bytes
        b"\x02\x01b\x02\x00\x01a\x02\x00",  # out of order
        b"\x02\x01a\x02\x00\x01a\x02\x00",  # twice
        b"\x01\x01a\x00\x00",
        b"\x01\x01a\xe9\x03",
        b"\x01\x81" + bytes(129) + b"\x02\x00",
        bytes([101]) + b"".join(b"\x02%02x\x02\x00" % number for number in range(101)),
    ],
)
def test_weights_that_cannot_be_are_refused(world: QueueWorld, tail: bytes) -> None:
    draft = encode_command(QueueCreate("jobs", QueueConfig()), NAMESPACE)
    refused = world.draft(Draft(draft.entry_type, draft.payload + tail))
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.QUEUE_CONFIG_INVALID


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
