"""Deletes and retention: bounded work per entry, nothing that comes back, nothing too much."""

import random

import numpy as np
import pytest

from onelog.projections.codec import U64
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Refused
from onelog.projections.system.commands import encode_batch
from onelog.projections.timeseries.commands import (
    Command,
    ConfigureMeasurement,
    CreateMeasurement,
    Delete,
    DropMeasurement,
    Trim,
    Write,
    encode_command,
)
from onelog.projections.timeseries.limits import (
    DELETED_RANGES_MAX,
    TIME_NS_MAX,
    UNMERGED_RANGES_MAX,
)
from onelog.projections.timeseries.names import Matcher, Operator, series_name
from onelog.projections.timeseries.point_batch import Run
from onelog.projections.timeseries.types import Config, FieldType
from tests.projections.timeseries.ts_world import NAMESPACE, SECOND, SeriesWorld

A = series_name("cpu", {"host": "a"})
B = series_name("cpu", {"host": "b"})
ONLY_A = (Matcher("host", Operator.EQUAL, "a"),)


def filled(points: int = 10) -> SeriesWorld:
    world = SeriesWorld()
    for name in (A, B):
        run = Run(name, "f", FieldType.F64, np.arange(points) * SECOND, np.arange(points))
        world.batch(run)
    return world


def times_of(world: SeriesWorld, name: bytes) -> list[int]:
    return [time // SECOND for time, _ in world.points(name, "f")]


@pytest.mark.parametrize("in_block", [False, True])
def test_a_range_is_deleted_wherever_its_points_are(in_block: bool) -> None:  # noqa: FBT001
    world = filled()
    if in_block:
        world.block(A, "f")

    assert world.run(Delete("cpu", ONLY_A, 3 * SECOND, 5 * SECOND)) == Applied(1)
    assert times_of(world, A) == [0, 1, 2, 6, 7, 8, 9]
    assert times_of(world, B) == list(range(10))
    world.router.check()


def test_a_point_that_is_written_again_after_its_delete_is_there() -> None:
    world = filled()
    world.block(A, "f")
    world.run(Delete("cpu", (), 3 * SECOND, 5 * SECOND))
    world.write(A, 4 * SECOND, f=44.0)
    world.block(A, "f")

    assert times_of(world, A) == [0, 1, 2, 4, 6, 7, 8, 9]
    reloaded = world.reloaded()
    assert reloaded.points(A, "f") == world.points(A, "f")


def test_a_block_inside_of_the_range_is_let_go() -> None:
    world = filled()
    world.block(A, "f")
    block = world.index
    world.write(A, 20 * SECOND, f=1.0)
    assert list(world.series.pinned(0, world.index)) == [block]

    world.run(Delete("cpu", ONLY_A, 0, 9 * SECOND))
    assert not world.series.pinned(0, world.index)
    assert world.column(A, "f").deleted == ()
    assert times_of(world, A) == [20]


def test_a_series_without_points_goes() -> None:
    world = filled()
    world.run(Delete("cpu", ONLY_A, 0, 9 * SECOND))

    assert A not in world.series.spaces["default"].series
    assert world.meta(A) is None
    assert world.meta(B) is not None


@pytest.mark.parametrize("merges", [False, True])
def test_a_column_keeps_so_many_deleted_ranges_and_no_more(
    monkeypatch: pytest.MonkeyPatch, *, merges: bool
) -> None:
    """Entries that do not merge are of older logs, which must replay to the same state."""
    monkeypatch.setattr("onelog.projections.timeseries.deletes.DELETED_RANGES_MAX", 80)
    limit = 80 if merges else UNMERGED_RANGES_MAX
    world = filled(200)
    world.block(A, "f")
    for number in range(limit):
        time = 2 * number * SECOND
        assert world.run(Delete("cpu", ONLY_A, time, time, merges=merges)) == Applied(1)

    time = 199 * SECOND
    full = Refused(Reason.SERIES_DELETES_FULL, limit)
    assert world.run(Delete("cpu", ONLY_A, time, time, merges=merges)) == full
    assert len(times_of(world, A)) == 200 - limit
    wide = Delete("cpu", ONLY_A, 0, 190 * SECOND, merges=merges)  # takes the others in
    assert world.run(wide) == Applied(1)
    assert len(world.column(A, "f").deleted) == 1
    assert times_of(world, A) == list(range(191, 200))
    world.router.check()


def test_a_thousand_random_deletes_leave_what_a_plain_model_leaves() -> None:
    """In blocks and in the buffer, with points written again in between."""
    draw = random.Random(7)
    world, model = SeriesWorld(), dict[int, float]()
    most = 0
    for number in range(1000):
        if number % 10 == 0:
            times = sorted(draw.sample(range(20_000), 300))
            world.batch(Run(A, "f", FieldType.F64, np.array(times) * SECOND, np.array(times) / 8))
            model |= {time: time / 8 for time in times}
        if number % 20 == 0:
            world.block(A, "f")
        first = draw.randrange(20_000)
        last = first + draw.choice((0, 0, 0, 1, 5, 40, 900 if number % 97 == 0 else 2))
        result = world.run(Delete("cpu", ONLY_A, first * SECOND, last * SECOND, merges=True))
        assert isinstance(result, Applied), result
        model = {time: value for time, value in model.items() if not first <= time <= last}
        most = max(most, len(world.column(A, "f").deleted))
        if number % 100 == 99:
            found = {time // SECOND: value for time, value in world.points(A, "f")}
            assert found == model
            world.router.check()
            assert world.reloaded().points(A, "f") == world.points(A, "f")
    assert UNMERGED_RANGES_MAX < most <= DELETED_RANGES_MAX


def test_deletes_of_adjacent_times_stay_one_range_and_let_go_of_the_block() -> None:
    world = filled(100)
    world.block(A, "f")
    world.write(A, 200 * SECOND, f=1.0)
    for time in (*range(99, 59, -1), *range(60)):
        world.run(Delete("cpu", ONLY_A, time * SECOND, (time + 1) * SECOND - 1, merges=True))
        assert len(world.column(A, "f").deleted) <= 2
    assert world.column(A, "f").deleted == ()
    assert not world.series.pinned(0, world.index)
    assert times_of(world, A) == [200]


def test_ranges_are_not_merged_over_points_that_were_written_again() -> None:
    """The older range does not delete them, and must not once it is part of a newer one."""
    world = filled(10)
    world.block(A, "f")
    world.run(Delete("cpu", ONLY_A, 2 * SECOND, 5 * SECOND, merges=True))
    world.write(A, 3 * SECOND, f=33.0)
    world.block(A, "f")
    world.run(Delete("cpu", ONLY_A, 5 * SECOND, 7 * SECOND, merges=True))
    assert times_of(world, A) == [0, 1, 3, 8, 9]
    assert len(world.column(A, "f").deleted) == 2
    world.router.check()


def test_a_delete_stops_after_so_many_ranges_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onelog.projections.timeseries.deletes.DELETE_RANGES_MAX", 1)
    world = filled(200)
    for name in (A, B):
        world.block(name, "f")
    for number in range(UNMERGED_RANGES_MAX + 1):
        time = 2 * number * SECOND
        world.run(Delete("cpu", (), time, time, merges=True))
    result = world.run(Delete("cpu", (), 199 * SECOND, 199 * SECOND, merges=True))
    assert isinstance(result, Applied)
    assert result.number == 1
    assert result.value is not None
    after = U64.unpack(result.value)[0]
    rest = world.run(Delete("cpu", (), 199 * SECOND, 199 * SECOND, after, merges=True))
    assert rest == Applied(1)
    assert times_of(world, A) == times_of(world, B)
    assert 199 not in times_of(world, A)


def test_a_delete_goes_on_where_the_last_one_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onelog.projections.timeseries.deletes.DELETE_VISITS_MAX", 10)
    monkeypatch.setattr("onelog.projections.timeseries.deletes.DELETE_SERIES_MAX", 3)
    world = SeriesWorld()
    for number in range(40):
        tags = {"host": f"h{number:02}", "odd": str(number % 2)}
        world.write(series_name("cpu", tags), 1, f=1.0)
    odd = (Matcher("odd", Operator.MATCHES, "1"),)

    deleted, rounds = 0, 0
    after: int | None = 0
    while after is not None:
        result = world.run(Delete("cpu", odd, after=after))
        assert isinstance(result, Applied)
        assert result.number <= 3
        deleted += result.number
        rounds += 1
        after = None if result.value is None else U64.unpack(result.value)[0]
        world.router.check()
    assert (deleted, rounds) == (20, 7)
    assert world.series.counts()["series"] == 20


def test_a_measurement_is_dropped_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onelog.projections.timeseries.deletes.DELETE_SERIES_MAX", 3)
    world = SeriesWorld()
    for number in range(8):
        world.write(series_name("cpu", {"host": str(number)}), 1, f=1.0)

    results = [world.run(DropMeasurement("cpu")) for _ in range(4)]
    assert [isinstance(r, Applied) and r.value is None for r in results[:3]] == [
        False,
        False,
        True,
    ]
    assert results[3] == Refused(Reason.MEASUREMENT_UNKNOWN)
    assert world.series.measurements("default") == []
    assert world.meta(b"cpu") is None
    world.router.check()


@pytest.mark.parametrize(
    "command",
    [
        Delete("cpu", ONLY_A),
        Delete("cpu", (), 2 * SECOND, 5 * SECOND),
        DropMeasurement("cpu"),
        ConfigureMeasurement("cpu", Config(retention_ns=SECOND)),
    ],
)
def test_a_change_in_a_batch_that_fails_leaves_no_trace(command: Command) -> None:
    world = filled()
    world.block(A, "f")
    world.write(A, 20 * SECOND, f=1.0, n=2)
    world.run(Delete("cpu", ONLY_A, 0, SECOND))
    hashes, section = world.router.state_hashes(), world.section()
    bad = DropMeasurement("none")
    more = Write(B, SECOND, (("g", True),))
    drafts = [encode_command(each, NAMESPACE) for each in (more, command, bad)]

    refused = world.group(encode_batch(drafts, [], NAMESPACE))[0]

    assert refused == Refused(Reason.BATCH_REFUSED, 2, Reason.MEASUREMENT_UNKNOWN)
    assert world.router.state_hashes() == hashes
    assert world.section() == section
    world.router.check()
    assert world.router.next_deadline() is None


# Retention ---------------------------------------------------------------------------------------


def kept(retention_s: int) -> SeriesWorld:
    world = SeriesWorld()
    world.run(CreateMeasurement("cpu", Config(retention_ns=retention_s * SECOND)))
    return world


def test_retention_drops_points_and_blocks_by_entries() -> None:
    world = kept(100)
    run = Run(A, "f", FieldType.F64, np.arange(900, 1_000) * SECOND, np.zeros(100))
    world.batch(run)
    world.block(A, "f")
    world.write(A, 1_000 * SECOND, f=1.0)
    assert world.pass_time(SECOND) == []  # 900 s is 101 s old: within the slack

    ((_, result),) = world.pass_time(50 * SECOND)
    assert result == APPLIED
    assert times_of(world, A) == list(range(951, 1_001))
    assert world.series.pinned(0, world.index)  # half of the block still counts
    world.pass_time(100 * SECOND)
    assert not world.series.pinned(0, world.index)
    assert A not in world.series.spaces["default"].series
    assert world.router.next_deadline() is None
    world.router.check()


def test_a_point_behind_the_trim_is_refused() -> None:
    world = kept(100)
    world.write(A, 900 * SECOND, f=1.0)
    world.pass_time(20 * SECOND)
    cutoff = 920 * SECOND

    assert world.write(A, cutoff - 1, f=1.0) == Refused(Reason.POINT_TOO_OLD, cutoff)
    assert world.write(B, cutoff - 1, f=1.0) == Refused(Reason.POINT_TOO_OLD, cutoff)
    run = Run(B, "f", FieldType.F64, [cutoff, cutoff - 1], [1.0, 1.0])
    assert world.batch(run) == Refused(Reason.POINT_TOO_OLD, cutoff)
    assert world.write(A, cutoff, f=1.0) == APPLIED


def test_a_trim_is_checked_against_the_clock_of_the_log() -> None:
    world = kept(100)
    world.write(A, 900 * SECOND, f=1.0)
    created = world.find(A).measurement.created_index
    allowed = world.now_ns - 100 * SECOND

    early = world.run(Trim("cpu", created, allowed + 1, 0))
    assert early == Refused(Reason.TRIM_EARLY, allowed)
    assert world.run(Trim("cpu", created, allowed, 7)) == Refused(Reason.TRIM_STALE, 0)
    other = world.run(Trim("cpu", created + 1, allowed, 0))
    assert other == Refused(Reason.MEASUREMENT_UNKNOWN)
    assert world.run(Trim("cpu", created, allowed, 0)) == APPLIED
    world.run(ConfigureMeasurement("cpu", Config()))
    assert world.run(Trim("cpu", created, allowed, 0)) == Refused(Reason.TRIM_EARLY, 0)


def test_a_sweep_over_many_series_takes_several_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onelog.projections.timeseries.deletes.TRIM_COLUMNS_MAX", 3)
    world = kept(100)
    for number in range(10):
        name = series_name("cpu", {"host": str(number)})
        world.write(name, (900 + number) * SECOND, f=1.0)
    world.now_ns += 10 * SECOND
    drafts = world.router.due(world.now_ns, 10)
    assert len(drafts) == 1
    world.draft(drafts[0])
    world.router.check()

    world = world.reloaded()  # a new leader goes on with the sweep
    assert world.router.next_deadline() == 0
    done = world.work()
    assert len(done) == 3
    assert world.series.counts()["series"] == 0
    world.router.check()


def test_a_point_for_a_series_that_a_sweep_has_passed_is_trimmed_in_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sweep says in the end how old the oldest point is that it left: this one as well."""
    monkeypatch.setattr("onelog.projections.timeseries.deletes.TRIM_COLUMNS_MAX", 1)
    hour = 3_600 * SECOND
    world = SeriesWorld()
    world.now_ns = 0
    world.run(CreateMeasurement("cpu", Config(retention_ns=hour)))
    for name in (A, B):
        world.write(name, SECOND, f=1.0)
        world.write(name, 2 * hour, f=1.0)
    world.now_ns = 2 * hour
    (draft,) = world.router.due(world.now_ns, 10)
    world.draft(draft)
    measurement = world.find(A).measurement
    assert measurement.sweep_after == 1

    late_ns = hour + 5 * SECOND
    assert world.write(A, late_ns, f=9.0) == APPLIED
    assert world.batch(Run(A, "f", FieldType.F64, [late_ns - SECOND], [9.0])) == Applied(1)
    world.router.check()
    world.work()

    assert measurement.oldest_ns == late_ns - SECOND
    world.router.check()
    world.pass_time(hour)
    assert times_of(world, A) == [7_200]


def test_retention_is_ruled_out_by_none() -> None:
    world = SeriesWorld()
    world.write(A, 0, f=1.0)

    assert world.router.due(TIME_NS_MAX, 10) == []
    assert world.router.next_deadline() is None
    world.run(ConfigureMeasurement("cpu", Config(retention_ns=SECOND)))
    assert len(world.router.due(2**63 + 5, 10)) == 1


def test_a_pattern_that_is_slow_on_purpose_stops_after_so_much_work() -> None:
    """The pattern is as bad as they get: every text of a's and b's takes it through new states."""
    world = SeriesWorld()
    draw = np.random.default_rng(3)
    texts = ["".join(draw.choice(["a", "b"], 250)) for _ in range(12)]
    for text in texts:
        world.write(series_name("m", {"host": text}), SECOND, f=1.0)
    slow = (Matcher("host", Operator.MATCHES, "(a|b)*a[ab]{190}"),)
    after, entries, changed = 0, 0, 0
    while True:
        result = world.run(Delete("m", slow, after=after))
        assert isinstance(result, Applied)
        entries += 1
        changed += result.number
        if result.value is None:
            break
        (cursor,) = U64.unpack(result.value)
        assert cursor > after
        after = cursor

    assert entries > 2
    assert changed == sum(text[-191] == "a" for text in texts)
    world.router.check()
