"""Batches: all or nothing, over everything that a projection does."""

from onelog.projections.codec import SessionRef, encode_prefix
from onelog.projections.conditions import Comparison, Condition, Target
from onelog.projections.kv.commands import (
    Append,
    Delete,
    Increment,
    LeaseGrant,
    LeaseKeepalive,
    LeaseRevoke,
    Put,
    PutMany,
    Touch,
    Transaction,
    encode_command,
    put_bodies,
)
from onelog.projections.kv.commands import Command as KvCommand
from onelog.projections.kv.reads import KeyValue
from onelog.projections.namespaces import Limits
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, PENDING, Applied, Refused
from onelog.projections.system.commands import (
    TYPE_BATCH,
    Batch,
    NamespaceConfigure,
    SessionOpen,
    encode_batch,
)
from onelog.projections.system.commands import encode_command as encode_system
from onelog.ual.entry import FLAG_CONDITIONAL, OWNER_KV, Draft
from tests.projections.world import NAMESPACE, SECOND, World, replay


def batch_of(*commands: KvCommand, conditions: tuple[Condition, ...] = ()) -> list[Draft]:
    return encode_batch(
        [encode_command(command, NAMESPACE) for command in commands], conditions, NAMESPACE
    )


def test_a_batch_gives_each_operation_its_own_version_and_result() -> None:
    world = World()

    results = world.group(batch_of(Put(b"a", b"1"), Increment(b"n", 2)))

    assert results == [Applied(2, None, (APPLIED, Applied(2))), APPLIED, Applied(2)]
    assert world.state.kv.get(NAMESPACE, b"a", 2) is not None
    assert world.value(b"n") == b"2"
    assert world.notes.voids == []


def test_one_refused_operation_undoes_all_and_voids_the_range() -> None:
    world = World()
    world.put(b"a", b"before")
    before = world.state.router.state_hashes()

    results = world.group(batch_of(Put(b"a", b"1"), Delete(b"a"), Touch(b"missing", 1)))

    refused = Refused(Reason.BATCH_REFUSED, 2, Reason.KEY_NOT_FOUND)
    assert results == [refused] * 4
    assert world.state.router.state_hashes() == before
    assert world.value(b"a") == b"before"
    assert world.notes.voids == [(2, 5)]
    world.state.router.check()


def at_once(*keys: bytes, value: bytes = b"new") -> PutMany:
    return PutMany(put_bodies(keys, [value] * len(keys), None))


def test_puts_at_once_are_one_entry_of_a_batch_and_have_one_version() -> None:
    world = World()

    results = world.group(batch_of(at_once(b"a", b"b"), Put(b"a", b"2"), at_once(b"c", b"d")))

    assert results == [Applied(3, None, (APPLIED,) * 3), *[APPLIED] * 3]
    found = [world.state.kv.get(NAMESPACE, key) for key in (b"a", b"b", b"c", b"d")]
    assert [each.version for each in found if isinstance(each, KeyValue)] == [3, 2, 4, 4]
    assert world.value(b"a", as_of=2) == b"new"
    assert world.notes.voids == []


def test_a_put_of_many_that_is_refused_is_named_by_its_place_among_all_operations() -> None:
    """Whoever sent puts one by one does not know that they became one entry."""
    world = World()
    world.system(NamespaceConfigure(Limits(keys_max=4, value_size_max=2_000)), NAMESPACE)
    world.put(b"a", b"before")
    before, section = world.state.router.state_hashes(), world.sections()[OWNER_KV]
    many = at_once(b"a", b"b", b"c", value=bytes(1_500))  # compressed in the log
    for commands, position, cause in (
        ((many, Increment(b"a", 1)), 3, Reason.NOT_A_NUMBER),
        ((many, Touch(b"a", 0), at_once(b"b", b"d", b"e")), 6, Reason.NAMESPACE_FULL),
        ((Touch(b"a", 0), many, at_once(b"e", value=bytes(3_000))), 4, Reason.VALUE_TOO_LARGE),
        ((many, many, at_once(b"a", b"x", b"y", b"z")), 8, Reason.NAMESPACE_FULL),
    ):
        results = world.group(batch_of(*commands))
        refused = Refused(Reason.BATCH_REFUSED, position, cause)
        assert results == [refused] * (len(commands) + 1)
        assert world.state.router.state_hashes() == before
        assert world.sections()[OWNER_KV] == section
        assert world.notes.voids[-1] == (world.index - len(commands), world.index)
    nowhere = encode_command(at_once(b"a", b"b"), "nowhere")
    batch = encode_batch([encode_command(many, NAMESPACE), nowhere])
    refused = Refused(Reason.BATCH_REFUSED, 3, Reason.NAMESPACE_UNKNOWN)
    assert world.group(batch) == [refused] * 3
    world.state.router.check()


def test_a_failed_condition_stops_a_batch_and_is_named() -> None:
    world = World()
    version = world.put(b"a", b"1")
    good = Condition(b"a", Target.VERSION, Comparison.EQUAL, version=version)
    bad = Condition(b"b", Target.EXISTS)

    results = world.group(batch_of(Put(b"c", b""), conditions=(good, bad)))

    assert results[0] == Refused(Reason.CONDITION_FAILED, 1)
    assert world.value(b"c") is None
    assert world.notes.voids == [(2, 3)]
    assert world.group(batch_of(Put(b"c", b""), conditions=(good,)))[0] == Applied(
        1, None, (APPLIED,)
    )


def test_a_batch_without_operations_is_a_question() -> None:
    world = World()

    assert world.group(batch_of()) == [Applied(0)]
    assert world.group(batch_of(conditions=(Condition(b"a", Target.EXISTS),))) == [
        Refused(Reason.CONDITION_FAILED, 0)
    ]


def test_everything_a_key_can_have_comes_back_when_a_batch_fails() -> None:
    """Lifetimes, leases, dropped versions, purged keys, large values: nothing may stay behind."""
    world = World()
    world.system(NamespaceConfigure(Limits(versions_max=2, tombstones_max=1)), NAMESPACE)
    world.kv(LeaseGrant(9 * SECOND))
    lease = world.index
    world.kv(Put(b"leased", b"x" * 700, lease=lease))
    world.kv(Put(b"mortal", b"1", ttl_ns=SECOND))
    world.put(b"mortal2", b"1")
    for number in range(3):
        world.put(b"trimmed", b"%d" % number * 600)
    world.put(b"gone", b"")
    world.kv(Delete(b"gone"))
    world.state.router.evict(10_000)
    world.now_ns += SECOND // 2  # or a renewal would renew nothing
    before, section = world.state.router.state_hashes(), world.sections()[OWNER_KV]

    results = world.group(
        batch_of(
            LeaseKeepalive(lease),
            Touch(b"mortal", 0),
            Touch(b"mortal2", SECOND),
            Append(b"trimmed", b"y" * 600),
            Put(b"trimmed", b""),
            Delete(b"trimmed"),
            Delete(b"mortal"),
            LeaseRevoke(lease),
            LeaseGrant(SECOND),
            Put(b"gone", b"back"),
            Transaction((), (Put(b"new", b"z" * 600), Delete(b"new"))),
            Increment(b"gone", 1),
        )
    )

    assert results[0] == Refused(Reason.BATCH_REFUSED, 11, Reason.NOT_A_NUMBER)
    assert world.state.router.state_hashes() == before
    assert world.sections()[OWNER_KV] == section
    world.state.router.check()
    world.pass_time(SECOND // 2)
    assert world.value(b"mortal") is None
    assert world.value(b"leased") == b"x" * 700


def test_no_read_sees_half_of_a_batch() -> None:
    world, follower = World(), World()
    world.group(batch_of(Put(b"a", b"1"), Put(b"b", b"2")))
    head, first, last = world.entries

    assert follower.state.router.apply(head) is PENDING
    assert follower.state.router.apply(first) is PENDING
    assert follower.value(b"a") is None
    assert follower.state.router.in_batch
    assert follower.state.router.apply(last) == Applied(2, None, (APPLIED, APPLIED))
    assert follower.value(b"a") == b"1"


def test_a_batch_may_share_its_group_with_other_requests() -> None:
    world = World()
    other = encode_command(Put(b"x", b""), NAMESPACE)

    results = world.group([other, *batch_of(Put(b"a", b"1")), *batch_of(Touch(b"no", 1)), other])

    assert results == [
        APPLIED,
        Applied(1, None, (APPLIED,)),
        APPLIED,
        Refused(Reason.BATCH_REFUSED, 0, Reason.KEY_NOT_FOUND),
        Refused(Reason.BATCH_REFUSED, 0, Reason.KEY_NOT_FOUND),
        APPLIED,
    ]
    assert world.notes.voids == [(4, 5)]
    assert replay(world.entries).state.router.state_hash() == world.state.router.state_hash()


def test_a_batch_that_counts_more_than_its_group_holds_is_refused() -> None:
    world = World()
    head, only = batch_of(Put(b"a", b"1"))
    counting_two = encode_system(Batch(2), NAMESPACE)

    assert world.group([counting_two, only]) == [
        Refused(Reason.BATCH_INCOMPLETE, 2),
        Refused(Reason.BATCH_MISSING),
    ]
    assert world.value(b"a") is None
    assert world.notes.voids == [(1, 1), (2, 2)]
    assert world.group([head, only])[0] == Applied(1, None, (APPLIED,))


def test_an_entry_that_cannot_be_part_of_a_batch_refuses_it() -> None:
    world = World()
    put = encode_command(Put(b"a", b"1"), NAMESPACE)
    unmarked = [encode_system(Batch(2), NAMESPACE), put, put]
    system = encode_batch([put, encode_system(SessionOpen(9 * SECOND))])
    sessioned = encode_batch([encode_command(Put(b"a", b"1"), NAMESPACE, SessionRef(1, 1, 1))])
    broken = encode_batch([Draft(0x0101, encode_prefix(NAMESPACE))])
    unowned = encode_batch([Draft(0x0F01, encode_prefix(NAMESPACE))])

    malformed = Reason.BATCH_MALFORMED
    for drafts, position, cause in (
        (unmarked, 0, malformed),
        (system, 1, malformed),
        (sessioned, 0, malformed),
        (broken, 0, Reason.PAYLOAD_TRUNCATED),
        (unowned, 0, Reason.OWNER_UNKNOWN),
    ):
        refused = Refused(Reason.BATCH_REFUSED, position, cause)
        assert world.group(drafts) == [refused] * len(drafts)
        assert world.value(b"a") is None
    world.state.router.check()


def test_a_batch_head_that_is_wrong_starts_nothing() -> None:
    world = World()
    (_, inner) = batch_of(Put(b"a", b"1"))
    unmarked = encode_system(Batch(1), NAMESPACE)._replace(flags=0)
    garbled = Draft(TYPE_BATCH, encode_prefix("") + b"\x01", FLAG_CONDITIONAL)
    too_many = Draft(TYPE_BATCH, encode_prefix("") + b"\xff\xff\0\0", FLAG_CONDITIONAL)

    assert world.group([unmarked, inner])[0] == Refused(Reason.BATCH_MALFORMED)
    assert world.group([garbled, inner])[0] == Refused(Reason.PAYLOAD_TRUNCATED)
    assert world.group([too_many, inner])[0] == Refused(Reason.PAYLOAD_COUNT_TOO_LARGE, 65_535)
    assert world.value(b"a") is None
    assert not world.state.router.in_batch


def test_conditions_on_an_unknown_namespace_fail() -> None:
    world = World()
    drafts = encode_batch([], (Condition(b"a", Target.MISSING),), "nowhere")

    assert world.group(drafts) == [Refused(Reason.CONDITION_FAILED, 0)]
