"""The router: order, identity, hashes, and the seam for more projections."""

import pytest

from onelog.projections.codec import SessionRef
from onelog.projections.kv.commands import Command, Delete, Increment, Put, encode_command
from onelog.projections.kv.projection import KV
from onelog.projections.namespaces import Limits
from onelog.projections.projection import Notes, Position, Projection, SpillStore
from onelog.projections.result import APPLIED, SKIPPED, Applied
from onelog.projections.router import ProjectionRouter
from onelog.projections.shard_state import build_projections
from onelog.projections.system.commands import (
    TYPE_RAFT_CONFIG,
    NamespaceConfigure,
    NamespaceCreate,
    SessionOpen,
)
from onelog.projections.system.commands import encode_command as encode_system
from onelog.projections.system.projection import System
from onelog.projections.system.sessions import Fingerprints
from onelog.ual.entry import (
    OWNER_KV,
    OWNER_QUEUE,
    OWNER_STREAM,
    OWNER_SYSTEM,
    OWNER_TIMESERIES,
    TYPE_NOOP,
    Draft,
)
from onelog.ual.segments.notes import ApplyNotes
from tests.projections.histories import Writer
from tests.projections.world import NAMESPACE, SECOND, MemorySpill, VoidNotes, World, replay


def test_an_entry_that_was_applied_is_skipped() -> None:
    world = World()
    world.kv(Increment(b"n", 1))
    world.kv(Increment(b"n", 1))
    before = world.state.router.state_hash()

    assert [world.state.router.apply(entry) for entry in world.entries] == [SKIPPED, SKIPPED]
    assert world.state.router.state_hash() == before
    assert world.state.router.counts()["skipped"] == 2


def test_a_gap_is_a_programmers_error() -> None:
    world = World()
    world.put(b"k", b"v")

    with pytest.raises(AssertionError, match="3 after 1"):
        world.state.router.apply(world.entries[0]._replace(index=3))


def test_the_hash_follows_index_time_and_content_and_nothing_else() -> None:
    world = World()
    empty = world.state.router.state_hash()
    world.draft(Draft(TYPE_NOOP, b""))
    noop = world.state.router.state_hash()
    assert noop != empty
    later = World()
    later.now_ns += 1
    later.draft(Draft(TYPE_NOOP, b""))
    assert later.state.router.state_hash() != noop
    assert later.state.router.state_hashes() == world.state.router.state_hashes()


def test_every_kind_of_content_is_in_the_hash() -> None:
    """Two worlds that differ in one thing only must differ in their hashes."""
    commands: dict[str, Command] = {
        "value": Put(b"k", b"w"),
        "key": Put(b"l", b"v"),
        "lifetime": Put(b"k", b"v", ttl_ns=5),
        "other lifetime": Put(b"k", b"v", ttl_ns=6),
        "plain": Put(b"k", b"v"),
        "deleted": Delete(b"k"),
    }
    hashes = {}
    for name, command in commands.items():
        world = World()
        world.put(b"k", b"first")
        world.kv(command)
        hashes[name] = world.state.router.state_hashes()[OWNER_KV]
    assert len(set(hashes.values())) == len(hashes)


def test_every_kind_of_system_content_is_in_the_hash() -> None:
    system = {}
    for name, draft in {
        "nothing": Draft(TYPE_NOOP, b""),
        "config": Draft(TYPE_RAFT_CONFIG, b"x"),
        "namespace": encode_system(NamespaceCreate(Limits()), "x"),
        "limits": encode_system(NamespaceConfigure(Limits(3)), NAMESPACE),
        "session": encode_system(SessionOpen(2 * SECOND)),
        "longer session": encode_system(SessionOpen(3 * SECOND)),
    }.items():
        world = World()
        world.draft(draft)
        system[name] = world.state.router.state_hashes()[OWNER_SYSTEM]
    assert len(set(system.values())) == len(system)


def test_results_of_sessions_are_in_the_hash() -> None:
    hashes = set()
    for amount in (1, 2):
        world = World()
        world.system(SessionOpen(2 * SECOND))
        world.kv(Increment(b"n", amount), session=SessionRef(1, 1, 0))
        world.kv(Put(b"n", b""))
        hashes.add(world.state.router.state_hashes()[OWNER_SYSTEM])
    assert len(hashes) == 2


def test_the_hash_does_not_depend_on_the_way() -> None:
    one, other = World(), World()
    for world, keys in ((one, (b"a", b"b")), (other, (b"b", b"a"))):
        for key in keys:
            world.kv(Put(key, b"v"))
            world.kv(Delete(key))
    assert one.state.router.state_hash() != other.state.router.state_hash()  # versions differ
    for world in (one, other):
        world.system(NamespaceConfigure(Limits(tombstones_max=0)), NAMESPACE)
        for key in (b"x", b"y"):
            world.put(key, b"")
            world.kv(Delete(key))
    assert one.state.router.state_hash() == other.state.router.state_hash()


def test_counts_and_memory_say_what_there_is() -> None:
    world = World()
    world.put(b"a", b"1")
    world.put(b"a", b"2")
    world.put(b"b", b"x" * 1_000)
    world.kv(Delete(b"b"))
    world.kv(Put(b"c", b"", ttl_ns=SECOND))
    world.kv(Put(b"c", b"", expected=99))

    counts = world.state.router.counts()
    memory = world.state.router.memory()

    assert counts["keys"] == 2
    assert counts["versions"] == 5
    assert counts["tombstones"] == counts["expiring"] == counts["refused"] == 1
    assert counts["namespaces"] == 1
    assert memory[OWNER_KV]["values"] > 1_000
    assert memory[OWNER_KV]["records"] > 0
    assert set(memory) == {OWNER_SYSTEM, OWNER_KV, OWNER_QUEUE, OWNER_TIMESERIES, OWNER_STREAM}


def test_the_notes_of_the_log_take_the_voids() -> None:
    notes = ApplyNotes()
    world = Writer(5).write(150)
    protocol: Notes = notes
    build_projections(protocol).router.apply_group(world.entries)

    void = {index for first, last in world.notes.voids for index in range(first, last + 1)}
    assert {e.index for e in world.entries if notes.is_void(e.index)} == void


def test_adding_a_projection_is_one_line_in_the_table() -> None:
    """Any class with the methods of a projection can be put behind an owner byte."""

    class Mirror(KV):
        owner = 0x07

    position = Position()
    spill: SpillStore = MemorySpill()
    kv, mirror = KV(position, spill), Mirror(position, spill)
    table: dict[int, Projection] = {OWNER_KV: kv, 0x07: mirror}
    router = ProjectionRouter(
        table,
        VoidNotes(),
        system=System(table),
        checker=kv,
        position=position,
        fingerprints=Fingerprints({}, {}),
    )
    world = World()
    draft = encode_command(Put(b"k", b"v"), NAMESPACE)
    world.draft(draft._replace(entry_type=0x0701))

    assert router.apply(world.entries[0]) == APPLIED
    assert isinstance(router.apply_group(world.entries), list)
    assert kv.get(NAMESPACE, b"k") is None
    assert mirror.get(NAMESPACE, b"k") is not None
    assert set(router.state_hashes()) == {OWNER_SYSTEM, OWNER_KV, 0x07}


def test_a_replay_gives_the_same_results() -> None:
    world = Writer(3).write(120)
    again = World()

    results = [again.state.router.apply(entry) for entry in world.entries]

    assert len(results) == len(world.entries)
    assert again.notes.voids == world.notes.voids
    assert replay(world.entries).sections() == again.sections()
    assert Applied() in results
