"""Keys that other projections write: real versions, out of reach for everybody else."""

import pytest

from onelog.projections.kv.commands import (
    Append,
    Delete,
    DeleteRange,
    Increment,
    Put,
    Touch,
    Transaction,
)
from onelog.projections.kv.commands import encode_command as encode_kv
from onelog.projections.kv.reads import History, Page, Range
from onelog.projections.namespaces import Limits
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Refused
from onelog.projections.system.commands import NamespaceConfigure, encode_batch
from onelog.ual.entry import TYPE_NOOP, Draft
from tests.projections.world import NAMESPACE, World

KEY = b"cg:orders:billing"


@pytest.fixture
def world() -> World:
    return World()


def write(world: World, value: bytes, key: bytes = KEY) -> int:
    """Write a derived key as part of applying an entry, which here is a no-op."""
    world.draft(Draft(TYPE_NOOP, b""))
    world.state.kv.put_derived(NAMESPACE, [(key, value)], world.index)
    return world.index


def test_a_derived_key_has_versions_like_any_other(world: World) -> None:
    first, second = write(world, b"[1]"), write(world, b"[2]")
    world.draft(Draft(TYPE_NOOP, b""))
    world.state.kv.delete_derived(NAMESPACE, KEY, world.index)

    assert world.value(KEY) is None
    assert world.value(KEY, as_of=first) == b"[1]"
    assert world.value(KEY, as_of=second) == b"[2]"
    history = world.state.kv.history(NAMESPACE, KEY)
    assert isinstance(history, History)
    assert [version.value for version in history.versions] == [None, b"[2]", b"[1]"]
    world.state.router.check()


def test_deleting_what_is_not_there_leaves_no_trace(world: World) -> None:
    before = world.state.kv.state_hash()
    world.state.kv.delete_derived(NAMESPACE, KEY, 1)

    assert world.state.kv.state_hash() == before


@pytest.mark.parametrize(
    "command",
    [
        Put(KEY, b"x"),
        Delete(KEY),
        Touch(KEY, 1),
        Increment(KEY, 1),
        Append(KEY, b"x"),
        Transaction((), (Put(KEY, b"x"),)),
    ],
)
def test_nobody_else_writes_a_reserved_key(
    world: World, command: Put | Delete | Touch | Increment | Append | Transaction
) -> None:
    write(world, b"[1]")

    assert world.kv(command) == Refused(Reason.KEY_RESERVED)
    assert world.value(KEY) == b"[1]"


def test_deleting_a_range_leaves_reserved_keys_alone(world: World) -> None:
    write(world, b"[1]")
    write(world, b"meta", b"_ts:meta:cpu")
    for key in (b"a", b"cg", b"cg;", b"z"):
        world.put(key, b"1")

    assert world.kv(DeleteRange(b"", None, 100)) == Applied(4)
    assert world.value(KEY) == b"[1]"
    assert world.value(b"_ts:meta:cpu") == b"meta"
    assert world.kv(DeleteRange(b"cg:", b"cg;", 100)) == Applied(0)
    page = world.state.kv.scan(NAMESPACE, Range(), limit=10)
    assert isinstance(page, Page)
    assert [item.key for item in page.items] == [b"_ts:meta:cpu", KEY]
    world.state.router.check()


def test_a_full_namespace_still_takes_derived_keys(world: World) -> None:
    """A limit of the user's keys must not stop a consumer group."""
    world.system(NamespaceConfigure(Limits(value_size_max=1, keys_max=1)), NAMESPACE)
    world.put(b"a", b"1")
    assert world.kv(Put(b"b", b"1")) == Refused(Reason.NAMESPACE_FULL, 1)
    write(world, b"[1,2,3]")

    assert world.value(KEY) == b"[1,2,3]"


def test_a_batch_takes_derived_keys_back(world: World) -> None:
    write(world, b"[1]")
    before = world.state.kv.state_hash()
    kv = world.state.kv
    kv.begin_batch()
    kv.put_derived(NAMESPACE, [(KEY, b"[2]"), (b"cg:orders:new", b"[9]")], world.index + 1)
    kv.delete_derived(NAMESPACE, KEY, world.index + 2)
    kv.rollback_batch()

    assert world.value(KEY) == b"[1]"
    assert world.value(b"cg:orders:new") is None
    assert kv.state_hash() == before
    world.state.router.check()


def test_the_last_of_two_writes_by_one_entry_counts(world: World) -> None:
    index = write(world, b"[1]")
    world.state.kv.put_derived(NAMESPACE, [(KEY, b"[2]")], index)

    assert world.value(KEY) == b"[2]"
    history = world.state.kv.history(NAMESPACE, KEY)
    assert isinstance(history, History)
    assert len(history.versions) == 1


def test_derived_keys_survive_a_snapshot(world: World) -> None:
    write(world, b"[1]")
    results = world.group(encode_batch([encode_kv(Put(b"a", b"1"), NAMESPACE)], (), NAMESPACE))
    assert results[1] == APPLIED

    assert world.reloaded(9).value(KEY) == b"[1]"
