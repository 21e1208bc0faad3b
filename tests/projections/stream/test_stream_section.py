"""The stream section of snapshots, and the bookkeeping of retention."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.errors import CorruptSection
from onelog.projections.limits import CHUNK_SIZE_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.stream.commands import Cause, Configure, Retention, Trim
from onelog.projections.stream.limits import MARKS_MAX, TRIMS_MAX
from onelog.projections.stream.partition import MARK_ROW
from onelog.projections.stream.reads import Gap
from onelog.ual.entry import OWNER_STREAM
from tests.projections.stream.stream_histories import answers, random_commands
from tests.projections.stream.stream_world import StreamWorld
from tests.projections.world import NAMESPACE, SECOND


def busy_world(seed: int = 5, steps: int = 80) -> StreamWorld:
    world, rng = StreamWorld(), Random(seed)
    for _ in range(steps):
        world.group(random_commands(rng, world.stream))
        if rng.random() < 0.1:
            world.pass_time(SECOND)
    return world


def load_damaged(world: StreamWorld, data: bytes) -> None:
    sections = {owner: [each] for owner, each in world.sections().items()}
    StreamWorld().state.router.load({**sections, OWNER_STREAM: [data]})


def test_a_loaded_state_is_the_same_in_every_way() -> None:
    world = busy_world()
    other = world.reloaded(313)

    assert other.sections() == world.sections()
    assert answers(other.stream) == answers(world.stream)
    assert other.stream.memory() == world.stream.memory()
    other.state.router.check()
    assert all(len(chunk) <= CHUNK_SIZE_MAX for chunk in world.stream.dump())


def test_a_section_cut_at_any_byte_is_refused() -> None:
    world = busy_world(3, 25)
    data = world.sections()[OWNER_STREAM]
    assert len(data) > 300
    for end in range(0, len(data), 7):
        with pytest.raises(CorruptSection):
            load_damaged(world, data[:end])


@given(data=st.data())
@settings(max_examples=250, deadline=None)
def test_a_flipped_bit_is_refused(data: st.DataObject) -> None:
    world = busy_world(data.draw(st.integers(1, 3)), 40)
    damaged = bytearray(world.sections()[OWNER_STREAM])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises(CorruptSection):
        load_damaged(world, bytes(damaged))


@given(junk=st.binary(max_size=80))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_not_a_section(junk: bytes) -> None:
    world = busy_world(1, 10)
    with pytest.raises(CorruptSection):
        load_damaged(world, b"\x01" + junk)


def test_marks_stay_few_and_recent_ones_close_together() -> None:
    """Without a policy a stream of any length has at most so many marks."""
    world = StreamWorld()
    world.create("s")
    for _ in range(2_000):
        world.now_ns += 61 * SECOND  # each record begins a run
        world.append("s")
    (partition,) = world.stream._indexes.partitions.values()
    offsets = partition.marks[::MARK_ROW]

    assert MARKS_MAX // 2 <= len(offsets) <= MARKS_MAX
    assert world.index - offsets[-2] <= 2
    assert offsets[0] == 2
    world.state.router.check()
    keep = 100
    world.run(Trim("s", Cause.COUNT, keep))
    kept = len(world.values("s"))
    assert keep <= kept <= keep + world.index // 16


def test_trims_are_remembered_one_by_one_until_they_are_too_many() -> None:
    world = StreamWorld()
    world.create("s", retention=Retention(count_max=1))
    first = world.index + 1
    for number in range(30):
        world.append("s")
        world.append("s")
        if number % 2:
            world.run(Trim("s", Cause.REQUEST, world.index))
        else:
            world.pass_time(SECOND)

    gaps = [gap for gap in world.read("s", 0, 0) if isinstance(gap, Gap)]
    assert len(gaps) == TRIMS_MAX
    assert gaps[0].cause is Cause.SEVERAL
    assert {gap.cause for gap in gaps[1:]} == {Cause.REQUEST, Cause.COUNT}
    assert gaps[0].first_offset == first
    for before, after in pairwise(gaps):
        assert before.last_offset + 1 == after.first_offset
    world.state.router.check()


def test_a_policy_that_comes_later_works_on_what_is_there() -> None:
    world = StreamWorld()
    stream_id = world.create("s")
    for _ in range(5_000):
        world.append("s")
    world.run(Configure("s", Retention(count_max=1_000)))
    assert world.state.router.next_deadline() == 0
    world.pass_time(SECOND)

    kept = len(world.values("s"))
    assert 1_000 <= kept <= 1_000 + 2 * 1_024
    for _ in range(5_000):
        world.append("s")
        world.pass_time(0)
    assert 1_000 <= len(world.values("s")) <= 1_000 + 2 * 32
    assert world.stream.kept_streams()[stream_id] > 5_000


def test_pages_say_when_their_limit_is_wrong() -> None:
    world = StreamWorld()
    world.create("s")
    refused = Refused(Reason.LIMIT_INVALID, 0)
    assert world.stream.list_streams(NAMESPACE, limit=0) == refused
