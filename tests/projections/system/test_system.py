"""Namespaces, membership, and time as entries."""

import pytest

from onelog.projections.codec import U8, U64, Reader, encode_sized, read_prefix
from onelog.projections.kv.commands import Delete, LeaseGrant, LeaseKeepalive, Put, Touch
from onelog.projections.kv.projection import EXPIRE_KEY, EXPIRE_LEASE
from onelog.projections.kv.reads import History, PastVersion
from onelog.projections.limits import EXPIRE_IDS_MAX, U64_MAX, VALUE_SIZE_MAX
from onelog.projections.namespaces import Limits
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Refused
from onelog.projections.system.commands import (
    TYPE_EXPIRE,
    Expire,
    NamespaceConfigure,
    NamespaceCreate,
    NamespaceDelete,
    SessionOpen,
    decode_command,
)
from onelog.ual.entry import OWNER_KV, OWNER_SYSTEM, Draft
from tests.projections.world import NAMESPACE, SECOND, World


@pytest.fixture
def world() -> World:
    return World()


def key_id(key: bytes, version: int, namespace: str = NAMESPACE) -> tuple[int, bytes]:
    name = encode_sized(U8, namespace.encode())
    return OWNER_KV, U8.pack(EXPIRE_KEY) + name + U64.pack(version) + key


def lease_id(lease: int) -> tuple[int, bytes]:
    name = encode_sized(U8, NAMESPACE.encode())
    return OWNER_KV, U8.pack(EXPIRE_LEASE) + name + U64.pack(lease)


def ids_of(draft: Draft) -> tuple[tuple[int, bytes], ...]:
    _, reader = read_prefix(draft.payload)
    command = decode_command(draft.entry_type, reader)
    assert isinstance(command, Expire)
    return command.ids


def test_an_expired_key_leaves_a_tombstone_that_says_so(world: World) -> None:
    """Watchers and readers of history see an expiry as an event at an index."""
    world.kv(Put(b"k", b"v", ttl_ns=SECOND))

    assert world.pass_time(SECOND) == [Applied(1)]

    assert world.state.kv.history(NAMESPACE, b"k") == History(
        (PastVersion(2, None, expired=True), PastVersion(1, b"v")), 0
    )
    assert world.value(b"k", as_of=1) == b"v"


def test_a_key_that_is_not_due_at_the_entry_time_stays(world: World) -> None:
    world.kv(Put(b"k", b"v", ttl_ns=SECOND))
    world.now_ns += SECOND - 1

    assert world.system(Expire((key_id(b"k", 1),))) == Applied(0)
    assert world.value(b"k") == b"v"
    assert world.state.router.counts()["expire_skipped"] == 1


def test_a_key_that_was_written_again_is_not_expired_by_its_old_version(world: World) -> None:
    """The leader may have proposed the expiry before it saw the write."""
    world.kv(Put(b"k", b"v", ttl_ns=SECOND))
    world.now_ns += SECOND
    world.kv(Put(b"k", b"w", ttl_ns=1))
    world.now_ns += SECOND

    assert world.system(Expire((key_id(b"k", 1),))) == Applied(0)
    assert world.system(Expire((key_id(b"k", 2), key_id(b"k", 2)))) == Applied(1)


def test_a_key_or_lease_that_was_renewed_is_not_expired(world: World) -> None:
    world.kv(Put(b"k", b"v", ttl_ns=SECOND))
    version = world.index
    world.kv(LeaseGrant(SECOND))
    lease = world.index
    world.now_ns += SECOND
    world.kv(Touch(b"k", SECOND))
    world.kv(LeaseKeepalive(lease))

    assert world.system(Expire((key_id(b"k", version), lease_id(lease)))) == Applied(0)


@pytest.mark.parametrize(
    "item",
    [
        (OWNER_SYSTEM, b""),
        (OWNER_SYSTEM, U64.pack(77)),
        (OWNER_KV, b""),
        (OWNER_KV, b"\x09\x00" + U64.pack(1)),
        (OWNER_KV, b"\x01\x02\xff\xff" + U64.pack(1)),
        (7, b"anything"),
        key_id(b"missing", 1),
        key_id(b"k", 1, "nowhere"),
        lease_id(5),
        (OWNER_KV, lease_id(1)[1] + b"trailing"),
    ],
)
def test_an_expire_entry_with_ids_of_nothing_does_nothing(
    world: World, item: tuple[int, bytes]
) -> None:
    world.put(b"k", b"v")
    before = world.state.router.state_hashes()

    assert world.system(Expire((item,))) == Applied(0)
    assert world.state.router.state_hashes() == before


def test_the_next_deadline_is_the_earliest_of_all_kinds(world: World) -> None:
    router = world.state.router
    assert router.next_deadline() is None
    world.system(SessionOpen(9 * SECOND))
    assert router.next_deadline() == world.now_ns + 9 * SECOND
    world.kv(LeaseGrant(5 * SECOND))
    assert router.next_deadline() == world.now_ns + 5 * SECOND
    world.kv(Put(b"k", b"", ttl_ns=SECOND))
    assert router.next_deadline() == world.now_ns + SECOND
    world.kv(Delete(b"k"))
    assert router.next_deadline() == world.now_ns + 5 * SECOND


def test_due_things_are_proposed_earliest_first_in_entries_of_bounded_size(world: World) -> None:
    for number in range(EXPIRE_IDS_MAX + 5):
        world.kv(Put(b"k%04d" % number, b"", ttl_ns=SECOND + number))
    world.now_ns += 2 * SECOND

    drafts = world.state.router.due(world.now_ns, 10_000)

    assert [len(ids_of(draft)) for draft in drafts] == [EXPIRE_IDS_MAX, 5]
    assert ids_of(drafts[0])[0] == key_id(b"k0000", 1)
    assert all(draft.entry_type == TYPE_EXPIRE for draft in drafts)
    assert len(ids_of(world.state.router.due(world.now_ns, 3)[0])) == 3
    assert world.state.router.due(world.now_ns - 2 * SECOND, 10) == []


def test_leases_with_many_keys_are_spread_over_entries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entry must not delete a million keys, however few ids it names."""
    monkeypatch.setattr("onelog.projections.router.EXPIRE_WEIGHT_MAX", 10)
    leases = []
    for _ in range(3):
        world.kv(LeaseGrant(SECOND))
        leases.append(world.index)
    for lease in leases:
        for number in range(5):
            world.kv(Put(b"%d-%d" % (lease, number), b"", lease=lease))
    world.now_ns += SECOND

    drafts = world.state.router.due(world.now_ns, 10)

    assert [len(ids_of(draft)) for draft in drafts] == [1, 1, 1]


def test_a_deadline_beyond_64_bits_is_the_last_moment(world: World) -> None:
    world.now_ns = U64_MAX - 1
    world.kv(Put(b"k", b"", ttl_ns=10 * SECOND))

    assert world.state.router.next_deadline() == U64_MAX
    world.state.router.check()


def test_a_namespace_is_created_once_and_deleted_with_its_keys(world: World) -> None:
    assert world.system(NamespaceCreate(Limits()), "orders") == APPLIED
    assert world.system(NamespaceCreate(Limits()), "orders") == Refused(Reason.NAMESPACE_EXISTS, 1)
    world.put(b"k", b"x" * 900, "orders")
    world.kv(LeaseGrant(SECOND), "orders")
    before = world.state.router.state_hashes()[OWNER_KV]
    world.state.router.evict(10_000)

    assert world.system(NamespaceDelete(), "orders") == APPLIED
    assert world.system(NamespaceDelete(), "orders") == Refused(Reason.NAMESPACE_UNKNOWN)
    assert world.kv(Put(b"k", b""), "orders") == Refused(Reason.NAMESPACE_UNKNOWN)
    assert world.state.router.next_deadline() is None
    assert world.state.router.state_hashes()[OWNER_KV] != before
    assert world.spill is not None
    assert world.spill.values == {}


def test_a_namespace_created_again_is_a_new_one(world: World) -> None:
    world.system(NamespaceCreate(Limits()), "orders")
    world.put(b"k", b"old", "orders")
    world.system(NamespaceDelete(), "orders")
    world.system(NamespaceCreate(Limits()), "orders")

    assert world.value(b"k", "orders") is None
    assert world.state.kv.get("orders", b"k", as_of=2) == Refused(Reason.COMPACTED, 4)
    assert world.value(b"k", "orders", as_of=4) is None


def test_the_default_namespace_stays(world: World) -> None:
    assert world.system(NamespaceDelete(), NAMESPACE) == Refused(Reason.NAMESPACE_PROTECTED)
    assert world.system(NamespaceConfigure(Limits(1)), NAMESPACE) == APPLIED
    assert world.system(NamespaceConfigure(Limits(1)), "nowhere") == Refused(
        Reason.NAMESPACE_UNKNOWN
    )


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (Limits(versions_max=0), 0),
        (Limits(value_size_max=VALUE_SIZE_MAX + 1), VALUE_SIZE_MAX + 1),
        (Limits(tombstones_max=2**32 - 1), 2**32 - 1),
    ],
)
def test_limits_have_limits(world: World, limits: Limits, field: int) -> None:
    refused = Refused(Reason.NAMESPACE_LIMIT_INVALID, field)

    assert world.system(NamespaceCreate(limits), "orders") == refused


def test_a_namespace_needs_a_name_of_bounded_size(world: World) -> None:
    long = b"\x01\x00\x81" + b"x" * 129 + Limits().encode()

    assert world.system(NamespaceCreate(Limits())) == Refused(Reason.PAYLOAD_FIELD_INVALID, 0)
    assert world.draft(Draft(0x0007, long)) == Refused(Reason.PAYLOAD_FIELD_INVALID, 129)


def test_the_number_of_namespaces_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onelog.projections.system.projection.NAMESPACES_MAX", 2)
    world.system(NamespaceCreate(Limits()), "one")

    assert world.system(NamespaceCreate(Limits()), "two") == Refused(Reason.NAMESPACES_FULL, 2)


def test_fewer_versions_are_kept_from_the_next_write_on(world: World) -> None:
    for number in range(5):
        world.put(b"k", b"%d" % number)
    world.system(NamespaceConfigure(Limits(versions_max=2)), NAMESPACE)
    assert world.value(b"k", as_of=1) == b"0"

    world.put(b"k", b"5")

    assert world.state.kv.get(NAMESPACE, b"k", as_of=4) == Refused(Reason.COMPACTED, 5)
    assert world.value(b"k", as_of=5) == b"4"
    world.state.router.check()


def test_a_reader_of_expire_ids_stops_at_the_end() -> None:
    reader = Reader(b"\x01")
    assert reader.number(U8) == 1
    assert reader.left == 0
