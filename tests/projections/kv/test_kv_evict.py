"""Eviction moves values; whoever only looks at the logical state cannot tell."""

import pytest

from onelog.projections.errors import SpillLost
from onelog.projections.kv.commands import Append, Delete, Put
from onelog.projections.kv.reads import History, Page, Range
from onelog.projections.limits import EVICT_KEYS_MAX, INLINE_SIZE_MAX, SPILL_SIZE_MIN
from onelog.projections.namespaces import Limits
from onelog.projections.system.commands import NamespaceConfigure
from onelog.ual.entry import OWNER_KV
from tests.projections.world import NAMESPACE, World


def filled(count: int, value_size: int) -> World:
    world = World()
    for number in range(count):
        world.put(b"k%04d" % number, bytes((number % 256,)) * value_size)
    return world


def resident(world: World) -> int:
    memory = world.state.router.memory()[OWNER_KV]
    return memory["records"] + memory["values"]


@pytest.mark.parametrize(
    "value_size", [SPILL_SIZE_MIN, INLINE_SIZE_MAX, INLINE_SIZE_MAX + 1, 5_000]
)
def test_eviction_frees_what_it_says_and_changes_no_answer(value_size: int) -> None:
    world = filled(50, value_size)
    twin = filled(50, value_size)
    before = resident(world)

    freed = world.state.router.evict(20 * value_size)

    assert freed >= 20 * value_size
    assert before - resident(world) == pytest.approx(freed, rel=0.05)
    assert world.state.router.state_hash() == twin.state.router.state_hash()
    assert world.sections() == twin.sections()
    scan = world.state.kv.scan(NAMESPACE, Range(), limit=100)
    assert isinstance(scan, Page)
    assert scan == twin.state.kv.scan(NAMESPACE, Range(), limit=100)
    world.state.router.check()


def test_small_values_stay() -> None:
    world = filled(20, SPILL_SIZE_MIN - 1)

    assert world.state.router.evict(10**9) == 0


def test_without_a_spill_store_nothing_is_freed() -> None:
    world = World(spill=False)
    world.put(b"k", b"x" * 5_000)

    assert world.state.router.evict(10**9) == 0
    assert world.value(b"k") == b"x" * 5_000


def test_of_a_key_that_was_read_only_the_old_versions_go() -> None:
    world = World()
    assert world.spill is not None
    spilled = world.spill.values
    world.put(b"hot", b"1" * 100)
    world.put(b"hot", b"2" * 100)
    world.put(b"cold", b"3" * 100)
    assert world.value(b"hot") == b"2" * 100

    world.state.router.evict(1)
    assert list(spilled.values()) == [b"1" * 100]
    world.state.router.evict(1)
    assert list(spilled.values()) == [b"1" * 100, b"3" * 100]
    world.state.router.evict(1)  # not read since the hand came by
    assert list(spilled.values()) == [b"1" * 100, b"3" * 100, b"2" * 100]

    history = world.state.kv.history(NAMESPACE, b"hot")
    assert isinstance(history, History)
    assert [version.value for version in history.versions] == [b"2" * 100, b"1" * 100]


def test_a_value_that_nobody_needs_leaves_the_spill_store() -> None:
    world = filled(5, 1_000)
    assert world.spill is not None
    world.state.router.evict(10**9)
    assert len(world.spill.values) == 5
    world.kv(Append(b"k0000", b"!"))  # reads the value from the spill store, keeps it as history
    assert world.value(b"k0000") == b"\0" * 1_000 + b"!"
    assert len(world.spill.values) == 5

    world.system(NamespaceConfigure(Limits(versions_max=1, tombstones_max=0)), NAMESPACE)
    for number in range(5):
        world.put(b"k%04d" % number, b"small")

    assert world.spill.values == {}
    world.kv(Delete(b"k0000"))
    world.state.router.check()


def test_a_full_disk_during_eviction_loses_nothing() -> None:
    world = filled(10, 100)
    for number in range(10):
        world.put(b"k%04d" % number, b"y" * 100)
    assert world.spill is not None
    before = world.state.router.state_hash()
    world.spill.puts_left = 5

    with pytest.raises(OSError, match="no space"):
        world.state.router.evict(10**9)

    world.state.router.check()
    assert world.state.router.state_hash() == before
    world.spill.puts_left = None
    assert world.state.router.evict(10**9) > 0
    world.state.router.check()


def test_a_value_that_the_spill_store_lost_stops_the_replica() -> None:
    world = filled(1, 1_000)
    world.state.router.evict(10**9)
    assert world.spill is not None
    (value_id,) = world.spill.values
    world.spill.values[value_id] = b"short"
    with pytest.raises(SpillLost, match="5 bytes instead of 1000"):
        world.value(b"k0000")
    world.spill.values.clear()
    with pytest.raises(SpillLost):
        world.kv(Append(b"k0000", b"!"))


def test_one_call_looks_at_a_bounded_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    assert EVICT_KEYS_MAX == 50_000
    monkeypatch.setattr("onelog.projections.kv.eviction.EVICT_KEYS_MAX", 11)
    world = filled(30, 100)

    first = world.state.router.evict(10**9)
    second = world.state.router.evict(10**9)

    assert 0 < first < 2_000
    assert second > 0
    assert world.state.kv.counts()["values_spilled"] == 21


def test_bound_and_deleted_keys_survive_eviction() -> None:
    world = World()
    world.kv(Put(b"k", b"x" * 100, ttl_ns=10))
    world.put(b"gone", b"y" * 100)
    world.kv(Delete(b"gone"))

    world.state.router.evict(10**9)

    world.state.router.check()
    assert world.value(b"k") == b"x" * 100
    assert world.value(b"gone", as_of=2) == b"y" * 100
    world.pass_time(10)
    assert world.value(b"k") is None
    world.state.router.check()
