"""Blocks: made by a leader, verified by everybody, read back from the log."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.codec import read_prefix
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Refused
from onelog.projections.system.commands import encode_batch as encode_transaction
from onelog.projections.timeseries.columns import (
    CorruptBlock,
    decode_block,
    decode_points,
    encode_points,
    make_block,
    resolve,
    values_to_bits,
)
from onelog.projections.timeseries.commands import (
    TYPE_BLOCK,
    Block,
    ConfigureMeasurement,
    Delete,
    DropMeasurement,
    decode_command,
    encode_command,
)
from onelog.projections.timeseries.limits import BLOCK_POINTS_MAX, BUFFER_POINTS
from onelog.projections.timeseries.names import series_name
from onelog.projections.timeseries.point_batch import Run
from onelog.projections.timeseries.types import Config, FieldType, Policy
from tests.projections.timeseries.ts_world import NAMESPACE, SECOND, SeriesWorld

A = series_name("cpu", {"host": "a"})
KINDS = list(FieldType)


def bits_of_kind(kind: FieldType) -> st.SearchStrategy[int]:
    if kind is FieldType.BOOL:
        return st.integers(0, 1)
    if kind is FieldType.I64:
        return st.integers(0, 2**64 - 1)
    floats = st.floats(allow_nan=False, allow_infinity=False)
    return floats.map(lambda number: int(np.float64(number).view(np.uint64)))


@given(kind=st.sampled_from(KINDS), data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_bit_of_a_point_comes_back(kind: FieldType, data: st.DataObject) -> None:
    """Lossless, signs of zeros and the smallest numbers included."""
    times = data.draw(st.lists(st.integers(-(2**62), 2**62 - 1), min_size=1, unique=True))
    bits = data.draw(st.lists(bits_of_kind(kind), min_size=len(times), max_size=len(times)))
    time_array = np.array(sorted(times), dtype=np.int64)
    bit_array = np.array(bits, dtype=np.uint64)

    body = encode_points(kind, time_array, bit_array)

    found_times, values = decode_points(kind, body, len(times))
    assert found_times.tolist() == sorted(times)
    assert values_to_bits(values).tolist() == bits


@given(
    points=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), min_size=1),
    policy=st.sampled_from(Policy),
)
def test_one_point_per_time_is_left(points: list[tuple[int, int]], policy: Policy) -> None:
    found: dict[int, int] = {}
    for time, value in points:
        found[time] = found.get(time, value) if policy is Policy.FIRST else value
    times, values = zip(*points, strict=True)

    resolved = resolve(np.array(times), np.array(values, dtype=np.uint64), policy)

    assert list(zip(*(each.tolist() for each in resolved), strict=True)) == sorted(found.items())


def filled(points: int = BUFFER_POINTS) -> SeriesWorld:
    world = SeriesWorld()
    values = np.round(20 + np.arange(points) % 7 / 100, 2)
    world.batch(Run(A, "f", FieldType.F64, np.arange(points) * 10 * SECOND, values))
    return world


def made(world: SeriesWorld) -> Block:
    measurement = world.find(A).measurement
    return make_block(world.column(A, "f"), measurement.config.policy, measurement.config_index)


def test_a_full_buffer_becomes_a_block_and_the_points_stay() -> None:
    world = filled()
    before = world.points(A, "f")
    assert world.router.next_deadline() == 0

    ((draft, result),) = world.work()

    assert (draft.entry_type, result) == (TYPE_BLOCK, APPLIED)
    assert len(world.column(A, "f")) == 0
    assert world.points(A, "f") == before
    assert list(world.series.pinned(1, world.index)) == [world.index]
    assert list(world.series.pinned(1, world.index - 1)) == []
    assert world.router.next_deadline() is None


def test_a_buffer_that_is_not_full_makes_no_work() -> None:
    world = filled(BUFFER_POINTS - 1)

    assert world.router.due(2**60, 100) == []
    assert world.router.next_deadline() is None


def test_a_slow_gauge_takes_less_than_three_bytes_a_point() -> None:
    world = filled(BLOCK_POINTS_MAX)
    draws = np.random.default_rng(7)
    values = np.round(20 + np.cumsum(draws.normal(0, 0.05, BUFFER_POINTS)), 2)
    world.batch(Run(A, "g", FieldType.F64, np.arange(BUFFER_POINTS) * 10 * SECOND, values))

    sizes = [len(draft.payload) for draft in world.series.chores(0, 10)]

    assert sizes[0] / BLOCK_POINTS_MAX < 3
    assert sizes[1] / BUFFER_POINTS < 3


def test_the_same_block_twice_is_harmless() -> None:
    world = filled()
    block = made(world)
    assert world.run(block) == APPLIED
    before = world.series.state_hash()

    assert world.run(block) == Refused(Reason.BLOCK_STALE)
    assert world.series.state_hash() == before
    world.router.check()


def test_points_that_came_meanwhile_stay_in_the_buffer() -> None:
    world = filled()
    block = made(world)
    world.write(A, 5, f=1.0)

    assert world.run(block) == APPLIED
    assert len(world.column(A, "f")) == 1
    assert len(world.points(A, "f")) == BUFFER_POINTS + 1
    world.router.check()


def test_a_block_of_points_that_changed_is_refused() -> None:
    for change in (
        Delete("cpu", (), 50 * SECOND, 60 * SECOND),
        Delete("cpu"),
        DropMeasurement("cpu"),
        ConfigureMeasurement("cpu", Config(Policy.FIRST)),
    ):
        world = filled()
        block = made(world)
        world.run(change)

        assert world.run(block) == Refused(Reason.BLOCK_STALE), change
        world.router.check()


@pytest.mark.parametrize("field", ["series_id", "field_id", "config_index", "base", "source_hash"])
def test_a_block_that_names_something_else_is_refused(field: str) -> None:
    world = filled()
    block = made(world)
    other = replace(block, **{field: getattr(block, field) + 1})

    assert world.run(other) == Refused(Reason.BLOCK_STALE)
    assert world.run(replace(block, taken=block.taken - 1)) in (
        Refused(Reason.BLOCK_STALE),
        Refused(Reason.PAYLOAD_FIELD_INVALID, block.taken - 1),
    )
    assert world.run(block, "default") == APPLIED


def test_a_damaged_body_is_refused() -> None:
    world = filled()
    draft = encode_command(made(world), NAMESPACE)
    damaged = draft.payload[:-1] + bytes((draft.payload[-1] ^ 1,))

    assert world.draft(draft._replace(payload=damaged)) == Refused(Reason.PAYLOAD_CORRUPT)


def test_a_body_that_is_no_block_is_an_error_of_the_reader_alone() -> None:
    """The leader vouches for the body: a replica keeps it, and a query says that it is bad."""
    world = filled()
    block = made(world)
    assert world.run(replace(block, body=b"\x00\x00\x00\x00nothing")) == APPLIED

    with pytest.raises(CorruptBlock):
        world.points(A, "f")


@given(body=st.binary(max_size=60), kind=st.sampled_from(KINDS), count=st.integers(1, 4_096))
def test_any_body_decodes_or_is_refused(body: bytes, kind: FieldType, count: int) -> None:
    block = Block(1, 0, 0, 0, count, count, 0, 0, 0, body)
    payload = encode_command(block, NAMESPACE).payload
    try:
        times, values = decode_block(9, payload, kind, 1, 0)
    except CorruptBlock as error:
        assert error.index == 9  # noqa: PT017
        return
    assert len(times) == len(values) == count


def test_asking_twice_gives_the_same_blocks_without_making_them_again() -> None:
    world = filled()
    first = world.series.chores(0, 64)

    second = world.series.chores(0, 64)
    assert first == second
    assert first[0] is second[0]
    world.write(A, 5, f=1.0)
    assert world.series.chores(0, 64) != first


def test_one_call_makes_a_bounded_number_of_blocks() -> None:
    world = SeriesWorld()
    names = [series_name("cpu", {"host": str(number)}) for number in range(40)]
    times, values = np.arange(BUFFER_POINTS), np.zeros(BUFFER_POINTS)
    world.batch(*(Run(name, "f", FieldType.F64, times, values) for name in names))

    assert len(world.series.chores(0, 64)) == 32
    assert len(world.series.chores(0, 5)) == 5
    assert len(world.work()) == 40
    assert world.series.counts()["series_blocks"] == 40


def test_a_large_buffer_is_taken_block_by_block() -> None:
    world = filled(3 * BLOCK_POINTS_MAX + 10)

    blocks = world.work()

    assert len(blocks) == 3
    assert len(world.column(A, "f")) == 10
    assert len(world.points(A, "f")) == 3 * BLOCK_POINTS_MAX + 10


def test_a_long_buffer_is_taken_in_one_call_as_by_many() -> None:
    """A loop that fills one column must not be faster than its blocks are made."""
    length = 15 * BLOCK_POINTS_MAX + BUFFER_POINTS
    world, one_by_one = filled(length), filled(length)

    drafts = world.series.chores(0, 64)

    assert len(drafts) == 15
    assert [world.draft(draft) for draft in drafts] == [APPLIED] * 15
    assert len(world.column(A, "f")) == BUFFER_POINTS
    for _ in range(15):
        (draft,) = one_by_one.series.chores(0, 1)
        assert one_by_one.draft(draft) == APPLIED
    assert one_by_one.series.state_hash() == world.series.state_hash()
    assert [len(world.work()), len(one_by_one.work())] == [1, 1]
    assert len(world.points(A, "f")) == length


def test_every_full_buffer_gets_a_block_before_a_long_one_gets_its_second() -> None:
    world = SeriesWorld()
    names = [series_name("cpu", {"host": str(number)}) for number in range(20)]
    for at, name in enumerate(names):
        length = 10 * BLOCK_POINTS_MAX if at in (3, 7) else BUFFER_POINTS
        world.batch(Run(name, "f", FieldType.F64, np.arange(length), np.zeros(length)))
    drafts = world.series.chores(0, 64)
    assert len(drafts) == 32
    for draft in drafts:
        assert world.draft(draft) == APPLIED
    left = [len(world.column(name, "f")) // BLOCK_POINTS_MAX for name in names]
    assert sorted(left) == [0] * 19 + [6]


def test_a_block_in_a_batch_can_be_taken_back() -> None:
    world = filled()
    block = encode_command(made(world), NAMESPACE)
    before, section = world.series.state_hash(), world.section()
    bad = encode_command(DropMeasurement("none"), NAMESPACE)

    refused = world.group(encode_transaction([block, bad], [], NAMESPACE))[0]

    assert isinstance(refused, Refused)
    assert world.series.state_hash() == before
    assert world.section() == section
    assert not world.series.pinned(0, world.index)
    world.router.check()
    assert world.draft(block) == APPLIED


def test_what_a_block_says_is_read_back() -> None:
    world = filled()
    block = made(world)
    _, reader = read_prefix(encode_command(block, NAMESPACE).payload)

    assert decode_command(TYPE_BLOCK & 0xFF, reader) == block
