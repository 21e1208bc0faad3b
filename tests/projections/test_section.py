"""Snapshot sections: equal states are equal bytes, and damage is found."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.codec import U8, U16, U32, U64, SectionReader, chunked
from onelog.projections.errors import CorruptSection
from onelog.projections.kv.commands import Delete, Put
from onelog.projections.limits import CHUNK_SIZE_MAX
from onelog.ual.entry import OWNER_KV, OWNER_SYSTEM
from tests.projections.histories import Writer
from tests.projections.world import NAMESPACE, World, cut


@given(parts=st.lists(st.integers(0, 3 * CHUNK_SIZE_MAX), max_size=6))
@settings(max_examples=40, deadline=None)
def test_chunks_are_bounded_and_join_to_the_whole(parts: list[int]) -> None:
    data = [bytes((number,)) * size for number, size in enumerate(parts)]

    chunks = list(chunked(data))

    assert b"".join(chunks) == b"".join(data)
    assert all(0 < len(chunk) <= CHUNK_SIZE_MAX for chunk in chunks)
    assert all(len(chunk) == CHUNK_SIZE_MAX for chunk in chunks[:-1])


@given(chunk_size=st.integers(1, 30))
def test_fields_are_read_across_any_cut(chunk_size: int) -> None:
    data = U8.pack(1) + U64.pack(2) + U16.pack(3) + b"abc" + U32.pack(2) + "é".encode()
    reader = SectionReader(1, cut(data, chunk_size))

    assert (reader.number(U8), reader.number(U64)) == (1, 2)
    assert reader.sized(U16) == b"abc"
    assert reader.text(U32) == "é"
    reader.finish()


def test_a_reader_says_where_a_section_ends_or_goes_on() -> None:
    with pytest.raises(CorruptSection, match="0x01: the section ends"):
        SectionReader(1, [b"\x09"]).sized(U8)
    with pytest.raises(CorruptSection, match="not UTF-8"):
        SectionReader(1, [b"\x01\xff"]).text(U8)
    for rest in ([b"x"], [b"", b"x"]):
        with pytest.raises(CorruptSection, match="behind"):
            SectionReader(1, rest).finish()
    SectionReader(1, [b"", b""]).finish()


def test_a_loaded_state_is_the_same_in_every_way() -> None:
    world = Writer(21).write(500)

    other = world.reloaded(313)

    assert other.sections() == world.sections()
    assert other.state.router.state_hash() == world.state.router.state_hash()
    assert other.state.router.applied_index == world.index
    assert other.state.router.log_time_ns == world.state.router.log_time_ns
    assert (
        other.state.router.memory()[OWNER_KV]["records"]
        == (world.state.router.memory()[OWNER_KV]["records"])
    )
    other.state.router.check()


def test_an_empty_state_can_be_saved_too() -> None:
    world = World()

    assert world.reloaded(1).sections() == world.sections()


def test_chunks_of_a_dump_are_bounded_however_large_a_value_is() -> None:
    world = World()
    world.put(b"k", b"x" * 3_000_000)

    chunks = list(world.state.router.dump()[OWNER_KV])

    assert max(map(len, chunks)) <= CHUNK_SIZE_MAX


def small_world() -> World:
    world = World()
    world.put(b"a", b"1")
    world.put(b"a", b"2")
    world.kv(Put(b"b", b"x" * 600, ttl_ns=9))
    world.put(b"c", b"")
    world.kv(Delete(b"c"))
    return world


def load_damaged(sections: dict[int, bytes]) -> None:
    World().state.router.load({owner: [data] for owner, data in sections.items()})


@pytest.mark.parametrize("owner", [OWNER_SYSTEM, OWNER_KV])
def test_a_section_cut_at_any_byte_is_refused(owner: int) -> None:
    sections = small_world().sections()
    load_damaged(sections)
    for end in range(len(sections[owner])):
        with pytest.raises(CorruptSection):
            load_damaged({**sections, owner: sections[owner][:end]})


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_flipped_bit_is_refused_or_shows_in_the_hash(data: st.DataObject) -> None:
    """The file's checksum finds it first; here even a router without one must not believe it.

    Index and time at the section's start are not covered by the promised hashes: they are part
    of the total, which the snapshot's keeper compares.
    """
    world = small_world()
    sections = world.sections()
    owner = data.draw(st.sampled_from([OWNER_SYSTEM, OWNER_KV]))
    damaged = bytearray(sections[owner])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    other = World()

    try:
        other.state.router.load({**{k: [v] for k, v in sections.items()}, owner: [bytes(damaged)]})
    except CorruptSection:
        return
    assert owner == OWNER_SYSTEM
    assert other.state.router.state_hash() != world.state.router.state_hash()


@given(owner=st.sampled_from([OWNER_SYSTEM, OWNER_KV]), junk=st.binary(max_size=80))
@settings(max_examples=150, deadline=None)
def test_random_bytes_are_not_a_section(owner: int, junk: bytes) -> None:
    with pytest.raises(CorruptSection):
        load_damaged({**small_world().sections(), owner: b"\x01" + junk})


def test_a_missing_or_foreign_section_is_refused() -> None:
    sections = small_world().sections()

    with pytest.raises(CorruptSection, match="missing"):
        load_damaged({OWNER_SYSTEM: sections[OWNER_SYSTEM]})
    with pytest.raises(CorruptSection, match="nobody answers"):
        load_damaged({**sections, 9: b""})


def test_a_damaged_value_cannot_keep_the_old_hash() -> None:
    sections = small_world().sections()
    at = sections[OWNER_KV].index(b"xxx")
    forged = bytearray(sections[OWNER_KV])
    forged[at] ^= 1

    with pytest.raises(CorruptSection, match="is not as written"):
        load_damaged({**sections, OWNER_KV: bytes(forged)})


def test_only_a_fresh_router_loads() -> None:
    world = small_world()
    sections = {owner: [data] for owner, data in world.sections().items()}

    with pytest.raises(AssertionError, match="fresh"):
        world.state.router.load(sections)


def test_a_loaded_namespace_scans_in_order() -> None:
    other = small_world().reloaded(7)

    assert list(other.state.kv.stores[NAMESPACE].order.walk(b"", None)) == [b"a", b"b", b"c"]
