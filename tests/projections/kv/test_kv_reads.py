"""Reads: now, in the past, in order, in pages."""

import pytest

from onelog.projections.kv.commands import Delete, LeaseGrant, Put
from onelog.projections.kv.reads import History, KeyValue, Page, PastVersion, Range
from onelog.projections.limits import SCAN_KEYS_MAX
from onelog.projections.namespaces import Limits
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.system.commands import NamespaceConfigure
from tests.projections.world import NAMESPACE, SECOND, World


@pytest.fixture
def world() -> World:
    """Five keys, one of them deleted again."""
    world = World()
    for key in (b"a", b"b1", b"b2", b"b3", b"c"):
        world.put(key, b"v" + key)
    world.kv(Delete(b"b2"))
    return world


def keys_of(page: Page | Refused) -> list[bytes]:
    assert isinstance(page, Page), page
    return [item.key for item in page.items]


def test_a_key_shows_what_is_bound_to_it(world: World) -> None:
    world.kv(LeaseGrant(SECOND))
    lease = world.index
    world.kv(Put(b"k", b"v", ttl_ns=SECOND, lease=lease))

    assert world.state.kv.get(NAMESPACE, b"k") == KeyValue(
        b"k", b"v", world.index, world.now_ns + SECOND, lease
    )


def test_reads_of_the_past_are_exact_or_refused(world: World) -> None:
    kv = world.state.kv
    assert world.value(b"b2", as_of=2) is None
    assert world.value(b"b2", as_of=3) == b"vb2"
    assert world.value(b"b2", as_of=5) == b"vb2"
    assert world.value(b"b2", as_of=6) is None
    assert kv.get(NAMESPACE, b"a", as_of=7) == Refused(Reason.INDEX_IN_FUTURE, 6)
    for number in range(9):
        world.put(b"a", b"%d" % number)
    assert kv.get(NAMESPACE, b"a", as_of=7) == Refused(Reason.COMPACTED, 8)
    assert world.value(b"a", as_of=8) == b"1"


def test_a_key_that_is_gone_for_good_is_refused_and_not_guessed(world: World) -> None:
    world.system(NamespaceConfigure(Limits(tombstones_max=0)), NAMESPACE)
    world.kv(Delete(b"c"))
    kv = world.state.kv

    assert kv.get(NAMESPACE, b"c") is None
    assert kv.get(NAMESPACE, b"c", as_of=5) == Refused(Reason.COMPACTED, 8)
    assert kv.get(NAMESPACE, b"never", as_of=5) == Refused(Reason.COMPACTED, 8)
    assert kv.get(NAMESPACE, b"never", as_of=8) is None
    assert kv.scan(NAMESPACE, Range(), limit=9, as_of=5) == Refused(Reason.COMPACTED, 8)
    assert kv.history(NAMESPACE, b"c") == History((), 8)


def test_history_is_newest_first_with_deletes(world: World) -> None:
    assert world.state.kv.history(NAMESPACE, b"b2") == History(
        (PastVersion(6, None), PastVersion(3, b"vb2")), 0
    )
    assert world.state.kv.history("nowhere", b"x") == Refused(Reason.NAMESPACE_UNKNOWN)


def test_several_keys_come_in_the_order_asked(world: World) -> None:
    kv = world.state.kv
    items = kv.mget(NAMESPACE, [b"c", b"b2", b"a"])
    assert isinstance(items, list)
    assert [item and item.value for item in items] == [b"vc", None, b"va"]
    assert kv.mget(NAMESPACE, [b"c"], as_of=99) == Refused(Reason.INDEX_IN_FUTURE, 6)
    too_many = [b"k"] * (SCAN_KEYS_MAX + 1)
    assert kv.mget(NAMESPACE, too_many) == Refused(Reason.LIMIT_INVALID, SCAN_KEYS_MAX + 1)
    assert kv.mget("nowhere", []) == Refused(Reason.NAMESPACE_UNKNOWN)


def test_scans_go_both_ways_over_prefixes_and_ranges(world: World) -> None:
    scan = world.state.kv.scan
    assert keys_of(scan(NAMESPACE, Range(), limit=9)) == [b"a", b"b1", b"b3", b"c"]
    assert keys_of(scan(NAMESPACE, Range.prefix(b"b"), limit=9)) == [b"b1", b"b3"]
    assert keys_of(scan(NAMESPACE, Range(b"b1", b"c"), limit=9, reverse=True)) == [b"b3", b"b1"]
    assert keys_of(scan(NAMESPACE, Range(b"b2"), limit=9)) == [b"b3", b"c"]
    assert keys_of(scan(NAMESPACE, Range(b"x", b"b"), limit=9)) == []
    assert keys_of(scan(NAMESPACE, Range(), limit=9, as_of=4)) == [b"a", b"b1", b"b2", b"b3"]


@pytest.mark.parametrize("reverse", [False, True])
def test_pages_join_to_the_whole(world: World, *, reverse: bool) -> None:
    scan = world.state.kv.scan
    found: list[bytes] = []
    token = None
    for _ in range(5):
        page = scan(NAMESPACE, Range(), limit=1, reverse=reverse, token=token)
        assert isinstance(page, Page)
        found += keys_of(page)
        token = page.next_key
        if token is None:
            break
    assert found == sorted([b"a", b"b1", b"b3", b"c"], reverse=reverse)


def test_a_page_goes_on_where_the_last_one_ended_whatever_was_written(world: World) -> None:
    scan = world.state.kv.scan
    page = scan(NAMESPACE, Range(), limit=2)
    assert isinstance(page, Page)
    assert page.next_key == b"b2"
    world.kv(Delete(b"b3"))
    world.put(b"b25", b"")

    rest = scan(NAMESPACE, Range(), limit=9, token=page.next_key)

    assert keys_of(rest) == [b"b25", b"c"]


def test_a_token_outside_of_the_range_does_not_widen_it(world: World) -> None:
    scan = world.state.kv.scan
    inside = Range(b"b", b"c")
    assert keys_of(scan(NAMESPACE, inside, limit=9, token=b"a")) == [b"b1", b"b3"]
    assert keys_of(scan(NAMESPACE, inside, limit=9, token=b"x")) == []
    assert keys_of(scan(NAMESPACE, inside, limit=9, token=b"x", reverse=True)) == [b"b3", b"b1"]
    assert keys_of(scan(NAMESPACE, inside, limit=9, token=b"a", reverse=True)) == []


@pytest.mark.parametrize("limit", [0, -1, SCAN_KEYS_MAX + 1])
def test_a_page_has_a_bounded_size(world: World, limit: int) -> None:
    refused = Refused(Reason.LIMIT_INVALID, limit)

    assert world.state.kv.scan(NAMESPACE, Range(), limit=limit) == refused


def test_a_page_ends_early_when_its_values_are_large(world: World) -> None:
    for number in range(4):
        world.put(b"large%d" % number, b"x" * 3_000_000)

    page = world.state.kv.scan(NAMESPACE, Range.prefix(b"large"), limit=9)

    assert keys_of(page) == [b"large0", b"large1"]
    assert isinstance(page, Page)
    assert page.next_key == b"large2"


def test_a_page_looks_at_a_bounded_number_of_keys(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.projections.kv.reads.SCAN_KEYS_MAX", 3)

    page = world.state.kv.scan(NAMESPACE, Range(), limit=3)

    assert keys_of(page) == [b"a", b"b1"]
    assert isinstance(page, Page)
    assert page.next_key == b"b3"
