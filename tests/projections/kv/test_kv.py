"""What each KV command does, one fact per test."""

import pytest

from onelog.projections.conditions import Comparison, Condition, Target
from onelog.projections.kv.commands import (
    Append,
    Command,
    Delete,
    DeleteRange,
    Get,
    Increment,
    LeaseGrant,
    LeaseKeepalive,
    LeaseRevoke,
    Maximum,
    Minimum,
    Put,
    PutMany,
    Touch,
    Transaction,
    encode_body,
    prefix_end,
    put_bodies,
)
from onelog.projections.kv.reads import History, KeyValue
from onelog.projections.limits import I64_MAX, KEY_SIZE_MAX, LEASE_KEYS_MAX, TTL_NS_MAX
from onelog.projections.namespaces import Limits
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Refused
from onelog.projections.system.commands import NamespaceConfigure, NamespaceCreate
from tests.projections.world import NAMESPACE, SECOND, World


@pytest.fixture
def world() -> World:
    return World()


def test_the_version_of_a_put_is_the_index_of_its_entry(world: World) -> None:
    assert world.kv(Put(b"k", b"v")) == APPLIED

    assert world.state.kv.get(NAMESPACE, b"k") == KeyValue(b"k", b"v", world.index)


def test_a_put_expects_a_version_or_is_refused_with_the_one_there_is(world: World) -> None:
    first = world.put(b"k", b"1")

    assert world.kv(Put(b"k", b"2", expected=first + 7)) == Refused(Reason.CONDITION_FAILED, first)
    assert world.kv(Put(b"k", b"2", expected=first)) == APPLIED
    assert world.value(b"k") == b"2"


def test_create_if_absent_refuses_an_existing_key_and_takes_a_deleted_one(world: World) -> None:
    first = world.put(b"k", b"1")
    assert world.kv(Put(b"k", b"2", expected=0)) == Refused(Reason.ALREADY_EXISTS, first)

    world.kv(Delete(b"k"))

    assert world.kv(Put(b"k", b"2", expected=0)) == APPLIED


def test_a_delete_says_whether_there_was_something_to_delete(world: World) -> None:
    world.put(b"k", b"1")

    assert world.kv(Delete(b"k")) == Applied(1)
    assert world.kv(Delete(b"k")) == Applied(0)
    assert world.value(b"k") is None


def test_a_delete_with_the_wrong_version_deletes_nothing(world: World) -> None:
    first = world.put(b"k", b"1")

    assert world.kv(Delete(b"k", expected=99)) == Refused(Reason.CONDITION_FAILED, first)
    assert world.value(b"k") == b"1"
    assert world.kv(Delete(b"missing", expected=99)) == Refused(Reason.CONDITION_FAILED, 0)


def test_a_key_lives_until_its_expiry_is_applied_however_late_it_is(world: World) -> None:
    world.kv(Put(b"k", b"v", ttl_ns=SECOND))
    world.now_ns += 100 * SECOND
    world.put(b"other", b"")
    assert world.value(b"k") == b"v"

    world.pass_time(0)

    assert world.value(b"k") is None


def test_a_touch_renews_a_key_without_a_new_version(world: World) -> None:
    world.kv(Put(b"k", b"v", ttl_ns=SECOND))
    version = world.index

    assert world.kv(Touch(b"k", 5 * SECOND, expected=version)) == APPLIED
    world.pass_time(3 * SECOND)
    assert world.state.kv.get(NAMESPACE, b"k") == KeyValue(
        b"k", b"v", version, expires_ns=world.now_ns + 2 * SECOND
    )
    world.pass_time(2 * SECOND)
    assert world.value(b"k") is None


def test_a_touch_with_no_lifetime_lets_a_key_live_for_ever(world: World) -> None:
    world.kv(Put(b"k", b"v", ttl_ns=SECOND))
    world.kv(Touch(b"k", 0))

    world.pass_time(10 * SECOND)

    assert world.value(b"k") == b"v"
    assert world.state.router.next_deadline() is None


def test_a_touch_of_a_missing_key_or_of_another_version_is_refused(world: World) -> None:
    version = world.put(b"k", b"v")

    assert world.kv(Touch(b"missing", SECOND)) == Refused(Reason.KEY_NOT_FOUND)
    assert world.kv(Touch(b"k", SECOND, expected=99)) == Refused(Reason.CONDITION_FAILED, version)


def test_a_put_takes_away_the_lifetime_and_an_increment_keeps_it(world: World) -> None:
    world.kv(Put(b"gone", b"1", ttl_ns=SECOND))
    world.kv(Increment(b"gone", 1))
    world.kv(Put(b"kept", b"1", ttl_ns=SECOND))
    world.put(b"kept", b"1")

    world.pass_time(SECOND)

    assert world.value(b"gone") is None
    assert world.value(b"kept") == b"1"


def test_an_increment_counts_from_zero_in_decimal_text(world: World) -> None:
    assert world.kv(Increment(b"n", 5)) == Applied(5)
    assert world.kv(Increment(b"n", -7)) == Applied(-2)
    assert world.value(b"n") == b"-2"


def test_an_increment_beyond_64_bits_is_refused_and_changes_nothing(world: World) -> None:
    world.kv(Increment(b"n", I64_MAX))

    assert world.kv(Increment(b"n", 1)) == Refused(Reason.COUNTER_OVERFLOW, I64_MAX)
    assert world.value(b"n") == b"%d" % I64_MAX


@pytest.mark.parametrize(
    "text", [b"", b"-", b"1.0", b" 1", b"1_0", b"+1", b"0x1", b"9" * 19, "٣".encode()]
)
def test_an_increment_of_anything_but_a_decimal_number_is_refused(
    world: World, text: bytes
) -> None:
    world.put(b"n", text)

    assert world.kv(Increment(b"n", 1)) == Refused(Reason.NOT_A_NUMBER)
    assert world.value(b"n") == text


def test_minimum_and_maximum_write_only_when_the_value_changes(world: World) -> None:
    assert world.kv(Maximum(b"n", 3)) == Applied(3)
    version = world.index

    assert world.kv(Maximum(b"n", 2)) == Applied(3)
    assert world.kv(Minimum(b"n", 4)) == Applied(3)
    assert world.state.kv.get(NAMESPACE, b"n") == KeyValue(b"n", b"3", version)
    assert world.kv(Minimum(b"n", -1)) == Applied(-1)
    assert world.value(b"n") == b"-1"


def test_an_append_grows_a_value_up_to_the_namespace_limit(world: World) -> None:
    world.system(NamespaceCreate(Limits(value_size_max=4)), "small")

    assert world.kv(Append(b"k", b"abc"), "small") == Applied(3)
    assert world.kv(Append(b"k", b"d"), "small") == Applied(4)
    assert world.kv(Append(b"k", b"e"), "small") == Refused(Reason.VALUE_TOO_LARGE, 5)
    assert world.value(b"k", "small") == b"abcd"


def test_a_namespace_with_a_key_limit_refuses_new_keys_and_takes_overwrites(world: World) -> None:
    world.system(NamespaceCreate(Limits(keys_max=2)), "small")
    world.put(b"a", b"", "small")
    world.put(b"b", b"", "small")

    assert world.kv(Put(b"c", b""), "small") == Refused(Reason.NAMESPACE_FULL, 2)
    assert world.kv(Put(b"a", b"again"), "small") == APPLIED
    world.kv(Delete(b"b"), "small")
    assert world.kv(Put(b"c", b""), "small") == APPLIED


@pytest.mark.parametrize("key", [b"", b"x" * (KEY_SIZE_MAX + 1)])
def test_keys_have_between_one_and_4096_bytes(world: World, key: bytes) -> None:
    assert world.kv(Put(key, b"v")) == Refused(Reason.KEY_SIZE_INVALID, len(key))


def test_the_longest_key_is_taken(world: World) -> None:
    world.put(b"x" * KEY_SIZE_MAX, b"v")

    assert world.value(b"x" * KEY_SIZE_MAX) == b"v"


@pytest.mark.parametrize("key", [b"cg:stream:group", b"_ts:meta:cpu", b"cg:"])
def test_names_of_other_projections_cannot_be_written(world: World, key: bytes) -> None:
    """The put path looks at the first byte only, so its neighbours must still be writable."""
    commands: list[Command] = [Put(key, b"v"), Delete(key), Increment(key, 1), Append(key, b"v")]
    for command in commands:
        assert world.kv(command) == Refused(Reason.KEY_RESERVED)
    assert world.kv(Put(key[:2], b"v")) == APPLIED


@pytest.mark.parametrize("ttl_ns", [0, TTL_NS_MAX + 1])
def test_a_lifetime_is_between_a_nanosecond_and_a_century(world: World, ttl_ns: int) -> None:
    assert world.kv(Put(b"k", b"v", ttl_ns=ttl_ns)) == Refused(Reason.TTL_INVALID, ttl_ns)


def test_a_lease_takes_its_keys_with_it_when_it_is_revoked(world: World) -> None:
    assert world.kv(LeaseGrant(SECOND)) == Applied(world.index)
    lease = world.index
    world.kv(Put(b"a", b"", lease=lease))
    world.kv(Put(b"b", b"", lease=lease))
    world.put(b"c", b"")

    assert world.kv(LeaseRevoke(lease)) == Applied(2)
    assert [world.value(key) for key in (b"a", b"b", b"c")] == [None, None, b""]
    assert world.kv(LeaseKeepalive(lease)) == Refused(Reason.LEASE_LOST, lease)
    assert world.kv(Put(b"a", b"", lease=lease)) == Refused(Reason.LEASE_LOST, lease)


def test_a_lease_that_is_kept_alive_does_not_expire(world: World) -> None:
    world.kv(LeaseGrant(3 * SECOND))
    lease = world.index
    world.kv(Put(b"a", b"", lease=lease))
    for _ in range(3):
        world.pass_time(2 * SECOND)
        world.kv(LeaseKeepalive(lease))
    assert world.value(b"a") == b""

    world.pass_time(3 * SECOND)

    assert world.value(b"a") is None


def test_a_key_that_is_put_again_without_its_lease_outlives_it(world: World) -> None:
    world.kv(LeaseGrant(SECOND))
    world.kv(Put(b"a", b"", lease=world.index))
    world.put(b"a", b"free")

    world.pass_time(SECOND)

    assert world.value(b"a") == b"free"


def test_a_lease_holds_a_bounded_number_of_keys(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LEASE_KEYS_MAX == 10_000
    monkeypatch.setattr("onelog.projections.kv.commands.LEASE_KEYS_MAX", 2)
    world.kv(LeaseGrant(SECOND))
    lease = world.index
    for key in (b"a", b"b"):
        assert world.kv(Put(key, b"", lease=lease)) == APPLIED

    assert world.kv(Put(b"c", b"", lease=lease)) == Refused(Reason.LEASE_FULL, 2)
    assert world.kv(Put(b"a", b"again", lease=lease)) == APPLIED


def test_a_range_is_deleted_in_order_up_to_its_limit(world: World) -> None:
    for key in (b"a1", b"a2", b"a3", b"b"):
        world.put(key, b"")

    assert world.kv(DeleteRange(b"a", prefix_end(b"a"), 2)) == Applied(2, b"a3")
    assert [world.value(key) for key in (b"a1", b"a2", b"a3", b"b")] == [None, None, b"", b""]
    assert world.kv(DeleteRange(b"a", prefix_end(b"a"), 2)) == Applied(1, None)
    assert world.kv(DeleteRange(b"", None, 10)) == Applied(1, None)


def test_the_end_of_a_prefix_skips_bytes_that_cannot_grow() -> None:
    assert prefix_end(b"a") == b"b"
    assert prefix_end(b"a\xff\xff") == b"b"
    assert prefix_end(b"\xff") is None
    assert prefix_end(b"") is None


def test_a_transaction_takes_then_or_else(world: World) -> None:
    swap = Transaction(
        (Condition(b"lock", Target.MISSING),),
        (Put(b"lock", b"me"), Get(b"lock")),
        (Get(b"lock"),),
    )
    taken = world.kv(swap)
    version = world.index
    lost = world.kv(swap)

    assert taken == Applied(1, None, (APPLIED, Applied(version, b"me")))
    assert lost == Applied(2, None, (Applied(version, b"me"),))


def test_a_refused_operation_undoes_the_whole_transaction(world: World) -> None:
    world.put(b"text", b"not a number")
    before = world.state.kv.state_hash()
    refused = world.kv(
        Transaction((), (Put(b"new", b"1"), Delete(b"text"), Increment(b"x", 1), Touch(b"y", 1)))
    )

    assert refused == Refused(Reason.TRANSACTION_REFUSED, 3, Reason.KEY_NOT_FOUND)
    assert world.state.kv.state_hash() == before
    world.state.kv.check()
    assert world.value(b"new") is None
    assert world.value(b"text") == b"not a number"
    world.state.router.check()


def test_a_key_written_twice_by_a_transaction_has_one_version(world: World) -> None:
    world.kv(Transaction((), (Put(b"k", b"1"), Put(b"k", b"2" * 600), Append(b"k", b"3"))))

    assert world.value(b"k") == b"2" * 600 + b"3"
    assert world.state.kv.counts()["versions"] == 1
    world.state.router.check()


def test_a_large_read_inside_of_a_transaction_is_refused(world: World) -> None:
    world.put(b"k", b"x" * 600_000)

    refused = world.kv(Transaction((), (Put(b"n", b""), Get(b"k"), Get(b"k"))))

    assert refused == Refused(Reason.RESULT_TOO_LARGE, 1 << 20)
    assert world.value(b"n") is None


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (Condition(b"k", Target.EXISTS), True),
        (Condition(b"m", Target.EXISTS), False),
        (Condition(b"m", Target.MISSING), True),
        (Condition(b"k", Target.MISSING), False),
        (Condition(b"k", Target.VERSION, Comparison.EQUAL, version=1), True),
        (Condition(b"k", Target.VERSION, Comparison.LESS, version=2), True),
        (Condition(b"k", Target.VERSION, Comparison.GREATER_OR_EQUAL, version=2), False),
        (Condition(b"m", Target.VERSION, Comparison.EQUAL, version=0), True),
        (Condition(b"k", Target.VALUE, Comparison.EQUAL, value=b"m"), True),
        (Condition(b"k", Target.VALUE, Comparison.NOT_EQUAL, value=b"m"), False),
        (Condition(b"k", Target.VALUE, Comparison.GREATER, value=b"lzz"), True),
        (Condition(b"k", Target.VALUE, Comparison.LESS_OR_EQUAL, value=b"m"), True),
        (Condition(b"m", Target.VALUE, Comparison.NOT_EQUAL, value=b""), False),
    ],
)
def test_conditions_compare_what_they_say(
    world: World, condition: Condition, *, holds: bool
) -> None:
    world.put(b"k", b"m")

    result = world.kv(Transaction((condition,), ()))

    assert result == Applied(1 if holds else 2)


def test_an_unknown_namespace_refuses_every_command(world: World) -> None:
    assert world.kv(Put(b"k", b"v"), "nowhere") == Refused(Reason.NAMESPACE_UNKNOWN)
    assert world.kv(LeaseGrant(SECOND), "nowhere") == Refused(Reason.NAMESPACE_UNKNOWN)
    assert world.notes.voids == [(1, 1), (2, 2)]


def at_once(*pairs: tuple[bytes, bytes], ttl_ns: int | None = None) -> PutMany:
    keys, values = zip(*pairs, strict=True)
    return PutMany(put_bodies(keys, values, ttl_ns))


def test_keys_put_at_once_have_one_version_and_the_last_of_their_values(world: World) -> None:
    world.put(b"b", b"0")

    assert world.kv(at_once((b"a", b"1"), (b"b", b"2"), (b"d", b"3"), (b"b", b"4"))) == APPLIED

    for key, value in ((b"a", b"1"), (b"b", b"4"), (b"d", b"3")):
        assert world.state.kv.get(NAMESPACE, key) == KeyValue(key, value, world.index)
    history = world.state.kv.history(NAMESPACE, b"b")
    assert isinstance(history, History)
    assert [each.value for each in history.versions] == [b"4", b"0"]


def test_keys_put_at_once_can_have_a_lifetime(world: World) -> None:
    world.kv(at_once((b"a", b"1"), (b"b", b"2"), ttl_ns=5 * SECOND))

    world.pass_time(6 * SECOND)

    assert world.value(b"a") is None
    assert world.value(b"b") is None


@pytest.mark.parametrize("plain_before", [0, 1, 3])
def test_one_put_that_is_refused_takes_back_all_that_were_put_with_it(plain_before: int) -> None:
    world = World()
    world.system(NamespaceConfigure(Limits(value_size_max=3)), NAMESPACE)
    world.put(b"k0", b"0")
    before = world.state.kv.state_hash()
    pairs = [(b"k%d" % number, b"new") for number in range(plain_before)]

    refused = world.kv(at_once(*pairs, (b"x", b"long"), (b"y", b"")))

    assert refused == Refused(Reason.TRANSACTION_REFUSED, plain_before, Reason.VALUE_TOO_LARGE)
    assert world.state.kv.state_hash() == before
    world.state.kv.check()
    assert world.value(b"k0") == b"0"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (PutMany(()), Reason.LIMIT_INVALID),
        (PutMany((b"",)), Reason.PAYLOAD_TRUNCATED),
        (at_once((b"a", b""), (b"cg:a", b"")), Reason.KEY_RESERVED),
        (at_once((b"a", b""), (b"", b"")), Reason.KEY_SIZE_INVALID),
        (PutMany((encode_body(Put(b"a", b"", expected=0)),)), Reason.PAYLOAD_FIELD_INVALID),
        (PutMany((encode_body(Put(b"a", b"", lease=1)),)), Reason.PAYLOAD_FIELD_INVALID),
        (at_once(*[(b"a", b"")] * 1_001), Reason.PAYLOAD_COUNT_TOO_LARGE),
    ],
)
def test_unsound_puts_at_once_are_refused_and_change_nothing(
    world: World, command: PutMany, reason: Reason
) -> None:
    result = world.kv(command)

    assert isinstance(result, Refused)
    assert result.reason is reason
    assert world.value(b"a") is None
