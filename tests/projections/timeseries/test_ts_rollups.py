"""Downsampling: what a leader computes is what loops compute, and every replica stores the same."""

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from onelog.projections.codec import Reader
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Refused
from onelog.projections.timeseries.aggregate import Function
from onelog.projections.timeseries.commands import (
    BeginRollup,
    CreateMeasurement,
    Delete,
    DropRule,
    Rollup,
    SetRule,
)
from onelog.projections.timeseries.limits import (
    BATCH_FIELDS_MAX,
    BATCH_SERIES_MAX,
    BUFFER_POINTS,
    ROLLUP_NAMES_SIZE_MAX,
    RULES_MAX,
    TIME_NS_MIN,
)
from onelog.projections.timeseries.names import series_name
from onelog.projections.timeseries.point_batch import Run, encode_batch, read_batch
from onelog.projections.timeseries.types import START, Aggregate, Config, FieldType, Rule
from tests.projections.timeseries.ts_rules_world import (
    A_MINUTES,
    ALL,
    MINUTE,
    A,
    opened,
    progress_of,
    rollups_of,
    ruled,
    step,
)
from tests.projections.timeseries.ts_twin import fold_window
from tests.projections.timeseries.ts_world import SECOND, SeriesWorld


@pytest.mark.parametrize("kind", [FieldType.F64, FieldType.I64, FieldType.BOOL])
def test_every_aggregate_is_that_of_a_loop(kind: FieldType) -> None:
    world = ruled()
    draw = Random(int(kind))
    times = sorted(draw.sample(range(3_000), 1_500))
    values = [
        {1: draw.uniform(-9, 9), 2: draw.randint(-9, 9), 3: draw.random() < 0.5}[int(kind)]
        for _ in times
    ]
    world.batch(Run(A, "x", kind, np.array(times) * SECOND, values))
    world.pass_time(3_000 * SECOND)

    for aggregate in ALL:
        name = f"x_{aggregate.name.lower()}"
        found = dict(world.points(A_MINUTES, name))
        for start in range(0, 3_000, 60):
            inside = [
                (time * SECOND, value)
                for time, value in zip(times, values, strict=True)
                if start <= time < start + 60
            ]
            expected = fold_window(Function[aggregate.name], [inside], 0.0)
            assert expected is not None
            assert math.isclose(found.pop(start * SECOND), expected, abs_tol=1e-9), name
        assert found == {}
    assert progress_of(world).done_ns == 3_000 * SECOND
    world.router.check()


def test_a_window_waits_until_it_is_closed_and_late_points_had_their_time() -> None:
    world = ruled(Aggregate.COUNT, delay_ns=10 * SECOND)
    world.write(A, 30 * SECOND, x=1.0)
    assert world.router.next_deadline() == 70 * SECOND

    assert world.pass_time(69 * SECOND) == []
    world.write(A, 40 * SECOND, x=1.0)
    (_, (_, result)) = world.pass_time(SECOND)
    assert result == Applied(1)
    assert world.points(A_MINUTES, "x_count") == [(0, 2)]
    assert world.router.next_deadline() is None  # nothing waits


def test_a_point_that_comes_late_corrects_its_window() -> None:
    world = ruled(Aggregate.SUM)
    world.batch(Run(A, "x", FieldType.F64, np.arange(600) * SECOND, np.ones(600)))
    world.pass_time(600 * SECOND)
    assert dict(world.points(A_MINUTES, "x_sum"))[120 * SECOND] == 60.0

    world.write(A, 150 * SECOND + 1, x=5.0)
    assert progress_of(world).done_ns == 120 * SECOND
    world.work()
    assert dict(world.points(A_MINUTES, "x_sum"))[120 * SECOND] == 65.0
    assert len(world.points(A_MINUTES, "x_sum")) == 10
    world.router.check()


def test_many_series_take_several_entries_and_a_new_leader_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("onelog.projections.timeseries.rollups.ROLLUP_POINTS_MAX", 25)
    world = ruled(Aggregate.MEAN)
    names = [series_name("cpu", {"host": f"{number:02}"}) for number in range(12)]
    times = np.arange(600) * SECOND
    world.batch(*(Run(name, "x", FieldType.F64, times, np.ones(600)) for name in names))
    world.now_ns = 600 * SECOND
    assert isinstance(step(world), BeginRollup)
    skip = step(world)  # several entries are needed: first to where the points start
    assert isinstance(skip, Rollup)
    assert (skip.to_ns, skip.last, len(skip.batch.series)) == (0, START, 0)
    assert isinstance(step(world), BeginRollup)
    assert isinstance(step(world), Rollup)
    assert progress_of(world).cursor == (2, 0)
    world.router.check()

    world = world.reloaded()
    done = world.work()
    assert len(done) == 5
    assert world.series.counts()["series"] == 24
    for name in names:
        target = name.replace(b"cpu", b"cpu_1m", 1)
        assert len(world.points(target, "x_mean")) == 10
    assert world.router.next_deadline() is None


def test_a_late_point_in_the_middle_of_a_slice_has_its_window_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not at once: were a slice given up for each late point, it might never come to its end."""
    monkeypatch.setattr("onelog.projections.timeseries.rollups.ROLLUP_POINTS_MAX", 1)
    world = ruled(Aggregate.COUNT)
    names = [series_name("cpu", {"host": str(number)}) for number in range(3)]
    for name in names:
        for start in (0, MINUTE):
            world.write(name, start + SECOND, x=1.0)
    world.now_ns = 2 * MINUTE
    for _ in range(4):
        step(world)
    assert progress_of(world).cursor == (1, 0)

    world.write(names[0], 2 * SECOND, x=1.0)
    world.write(names[0], MINUTE + 2 * SECOND, x=1.0)  # behind the slice: one window fits
    assert (progress_of(world).cursor, progress_of(world).late_ns) == ((1, 0), 2 * SECOND)
    world = world.reloaded()
    step(world)
    world.write(names[0], 3 * SECOND, x=1.0)
    step(world)
    assert (progress_of(world).slice_index, progress_of(world).done_ns) == (0, 0)
    world.work()
    target = series_name("cpu_1m", {"host": "0"})
    assert world.points(target, "x_count") == [(0, 3), (MINUTE, 2)]
    world.router.check()


def test_points_on_their_way_while_a_leader_reads_are_in_their_windows() -> None:
    """What is applied between making a rollup and applying it must not be in no window."""
    world = ruled(Aggregate.COUNT)
    world.write(A, SECOND, x=1.0)
    world.now_ns = MINUTE
    (begin,) = world.router.due(world.now_ns, 10)
    world.write(A, 2 * SECOND, x=1.0)
    assert world.draft(begin) == APPLIED
    (rollup,) = world.router.due(world.now_ns, 10)
    world.write(A, 3 * SECOND, x=1.0)
    world.write(A, MINUTE + SECOND, x=1.0)
    assert world.draft(rollup) == Applied(1)
    assert progress_of(world).done_ns == 0

    world.work()
    assert world.points(A_MINUTES, "x_count") == [(0, 3)]
    world.pass_time(MINUTE)
    assert world.points(A_MINUTES, "x_count") == [(0, 3), (MINUTE, 1)]


def test_a_slice_whose_past_is_written_meanwhile_goes_back_there() -> None:
    world = ruled(Aggregate.COUNT)
    world.write(A, 5 * MINUTE, x=1.0)
    world.pass_time(6 * MINUTE)
    world.write(A, 6 * MINUTE, x=1.0)
    world.now_ns = 7 * MINUTE
    draft = opened(world)

    world.write(A, 2 * MINUTE + 1, x=1.0)
    assert progress_of(world).done_ns == 6 * MINUTE
    world.draft(draft)
    assert progress_of(world).done_ns == 2 * MINUTE
    world.work()
    assert world.points(A_MINUTES, "x_count") == [(m * MINUTE, 1) for m in (2, 5, 6)]


def test_a_rollup_of_more_series_than_a_batch_may_have_takes_several_entries() -> None:
    world = ruled(Aggregate.COUNT)
    names = [series_name("cpu", {"host": str(number)}) for number in range(BATCH_SERIES_MAX + 7)]
    for some in (names[:3_000], names[3_000:]):
        world.batch(*(Run(name, "x", FieldType.F64, [SECOND], [1.0]) for name in some))

    done = rollups_of(world.pass_time(MINUTE))

    assert [len(each.batch.series) for each in done] == [0, BATCH_SERIES_MAX, 7]
    assert world.series.counts()["series"] == 2 * len(names)
    assert progress_of(world).refused_count == 0
    assert progress_of(world).done_ns == MINUTE


def test_a_series_with_more_aggregates_than_a_batch_may_have_fields_takes_several_entries() -> None:
    """The target takes as many fields as there may be; the rest is refused, and counted."""
    world = ruled()
    fields = [f"f{number:03}" for number in range(130)]
    world.batch(*(Run(A, field, FieldType.F64, [SECOND], [1.0]) for field in fields))

    done = rollups_of(world.pass_time(MINUTE))

    assert [len(each.batch.fields) for each in done] == [0, BATCH_FIELDS_MAX, 40]
    assert [each.last for each in done] == [START, (1, 124), START]
    progress = progress_of(world)
    assert (progress.refused_count, progress.refused_reason) == (1, Reason.FIELDS_FULL)
    assert world.points(A_MINUTES, "f124_count") == [(0, 1)]
    assert progress.done_ns == MINUTE


def test_long_names_do_not_make_an_entry_that_is_too_large() -> None:
    """5,000 names of 4,000 bytes would be more than a group of the log takes."""
    world = ruled(Aggregate.COUNT)
    tags = {f"tag{number:02}": "v" * 240 for number in range(15)}
    names = [series_name("cpu", {**tags, "host": str(number)}) for number in range(400)]
    world.batch(*(Run(name, "x", FieldType.F64, [SECOND], [1.0]) for name in names))

    done = world.pass_time(MINUTE)

    assert max(len(draft.payload) for draft, _ in done) < ROLLUP_NAMES_SIZE_MAX + 50_000
    assert len(rollups_of(done)) == 3
    assert world.series.counts()["series"] == 800


def test_points_that_come_during_a_slice_of_several_entries_add_no_windows_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Backfill before the first point must not make a column larger than an entry."""
    monkeypatch.setattr("onelog.projections.timeseries.rollups.ROLLUP_POINTS_MAX", 10)
    world = ruled(Aggregate.COUNT)
    names = [series_name("cpu", {"host": str(number)}) for number in range(3)]
    times = (1_000 + np.arange(10)) * MINUTE
    for name in names:
        world.batch(Run(name, "x", FieldType.F64, times, np.ones(10)))
    world.now_ns = 1_010 * MINUTE
    while progress_of(world).cursor == START:
        step(world)
    world.batch(Run(names[2], "x", FieldType.F64, np.arange(900) * MINUTE, np.ones(900)))

    for _ in range(1_000):
        if not world.router.due(world.now_ns, 10):
            break
        command = step(world)
        assert not isinstance(command, Rollup) or len(command.batch.point_times) <= 10
    target = series_name("cpu_1m", {"host": "2"})
    assert len(world.points(target, "x_count")) == 910


def test_the_first_window_of_all_time_is_rolled_up() -> None:
    """Time does not start at a multiple of most windows."""
    world = ruled(Aggregate.COUNT, window_ns=7 * MINUTE)
    world.write(A, TIME_NS_MIN, x=1.0)
    world.pass_time(7 * MINUTE)
    assert world.points(A_MINUTES, "x_count") == [(TIME_NS_MIN, 1)]


def test_a_rollup_applied_twice_is_harmless() -> None:
    world = ruled(Aggregate.COUNT)
    world.write(A, SECOND, x=1.0)
    done = world.pass_time(60 * SECOND)
    assert len(done) == 2
    before = world.series.state_hash()

    for (draft, _), detail in zip(done, (MINUTE, TIME_NS_MIN), strict=True):
        assert world.draft(draft) == Refused(Reason.ROLLUP_STALE, detail)
    assert world.series.state_hash() == before


def test_a_rollup_before_its_time_or_of_another_rule_is_refused() -> None:
    world = ruled(Aggregate.COUNT, delay_ns=SECOND)
    world.write(A, SECOND, x=1.0)
    empty = read_batch(Reader(encode_batch([])))
    created = world.series.spaces["default"].measurements["cpu"].created_index
    rule_index = progress_of(world).index
    world.now_ns = 60 * SECOND

    def begin(to_ns: int = MINUTE, index: int = rule_index, name: str = "minutes") -> BeginRollup:
        return BeginRollup("cpu", name, created, index, to_ns)

    assert world.run(begin()) == Refused(Reason.ROLLUP_STALE, MINUTE)  # the delay
    world.now_ns += SECOND
    assert world.run(begin(to_ns=MINUTE - 1)) == Refused(Reason.ROLLUP_STALE, MINUTE - 1)
    assert world.run(begin(index=1)) == Refused(Reason.RULE_UNKNOWN)
    assert world.run(begin(name="none")) == Refused(Reason.RULE_UNKNOWN)
    rollup = Rollup(
        "cpu", "minutes", created, rule_index, 0, TIME_NS_MIN, MINUTE, START, START, empty
    )
    stale = Refused(Reason.ROLLUP_STALE, TIME_NS_MIN)
    assert world.run(rollup) == stale  # of no slice
    assert world.run(begin()) == APPLIED
    assert world.run(begin()) == Refused(Reason.ROLLUP_STALE, MINUTE)
    slice_index = progress_of(world).slice_index
    assert world.run(rollup) == stale
    rollup = replace(rollup, slice_index=slice_index)
    assert world.run(replace(rollup, after=(1, 0))) == stale
    assert world.run(replace(rollup, to_ns=2 * MINUTE)) == stale
    assert world.run(replace(rollup, to_ns=MINUTE - 1)) == stale
    assert world.run(replace(rollup, rule_index=1)) == Refused(Reason.RULE_UNKNOWN)
    foreign = read_batch(Reader(encode_batch([Run(A, "x", FieldType.F64, [1], [1.0])])))
    forged = replace(rollup, batch=foreign)
    assert world.run(forged) == Refused(Reason.PAYLOAD_FIELD_INVALID)
    assert world.run(rollup) == APPLIED
    assert progress_of(world).done_ns == MINUTE


def test_a_target_that_refuses_does_not_stop_the_rule() -> None:
    world = ruled(Aggregate.COUNT)
    world.run(CreateMeasurement("cpu_1m", Config(series_max=1)))
    world.write(series_name("cpu_1m", {"host": "other"}), 0, x_count=1)
    world.write(A, SECOND, x=1.0)

    (_, (_, result)) = world.pass_time(60 * SECOND)
    assert result == Applied(0)
    progress = progress_of(world)
    assert (progress.refused_count, progress.refused_reason) == (1, Reason.SERIES_FULL)
    assert world.router.next_deadline() is None
    world.router.check()


def test_blocks_and_buffers_are_rolled_up_alike() -> None:
    world = ruled(Aggregate.SUM)
    points = 2 * BUFFER_POINTS + 100
    for start in range(0, points, 500):
        times = np.arange(start, min(start + 500, points))
        world.batch(Run(A, "x", FieldType.I64, times * SECOND, np.ones(len(times))))
        world.pass_time(500 * SECOND)

    found = world.points(A_MINUTES, "x_sum")
    assert sum(value for _, value in found) == points
    assert world.series.counts()["series_blocks"] >= 1


def test_a_long_past_is_caught_up_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onelog.projections.timeseries.rollups.ROLLUP_POINTS_MAX", 10)
    monkeypatch.setattr("onelog.projections.timeseries.rollups.ROLLUP_READ_POINTS_MAX", 400)
    world = ruled(Aggregate.COUNT)
    for start in range(0, 3_000, 300):
        world.batch(
            Run(A, "x", FieldType.F64, np.arange(start, start + 300) * SECOND, np.ones(300))
        )
        world.block(A, "x")
    world.now_ns = 3_000 * SECOND

    done = world.work()

    assert len(done) >= 5
    assert all(len(rollup.batch.point_times) <= 10 for rollup in rollups_of(done))
    assert [value for _, value in world.points(A_MINUTES, "x_count")] == [60] * 50


def test_rules_have_limits_and_no_chains() -> None:
    world = ruled(Aggregate.COUNT)
    for number in range(RULES_MAX - 1):
        rule = Rule(f"r{number}", f"t{number}", MINUTE, 0, ALL)
        assert isinstance(world.run(SetRule("cpu", rule)), Applied)
    world.run(CreateMeasurement("cpu_1m", Config()))

    more = Rule("more", "t", MINUTE, 0, ALL)
    assert world.run(SetRule("cpu", more)) == Refused(Reason.RULES_FULL, RULES_MAX)
    assert world.run(SetRule("none", more)) == Refused(Reason.MEASUREMENT_UNKNOWN)
    assert world.run(SetRule("cpu_1m", more)) == Refused(Reason.RULE_INVALID, 2)
    itself = Rule("minutes", "cpu", MINUTE, 0, ALL)
    assert world.run(SetRule("cpu", itself)) == Refused(Reason.RULE_INVALID, 1)
    world.run(CreateMeasurement("other", Config()))
    chained = Rule("minutes", "cpu", MINUTE, 0, ALL)
    assert world.run(SetRule("other", chained)) == Refused(Reason.RULE_INVALID, 1)
    short = Rule("minutes", "t", 10, 0, ALL)
    assert world.run(SetRule("cpu", short)) == Refused(Reason.RULE_INVALID, 10)
    assert world.run(DropRule("cpu", "none")) == Refused(Reason.RULE_UNKNOWN)
    assert world.run(DropRule("cpu", "minutes")) == APPLIED
    meta = world.meta(b"cpu")
    assert meta is not None
    assert b'"rules":["r0","r1"' in meta


def test_late_points_do_not_reopen_what_retention_has_cut() -> None:
    """A window that lost points to retention must not be written again from what is left."""
    world = ruled(Aggregate.COUNT)
    measurement = world.series.spaces["default"].measurements["cpu"]
    world.batch(Run(A, "x", FieldType.F64, np.arange(600) * SECOND, np.ones(600)))
    world.pass_time(600 * SECOND)
    world.series._store.update(measurement, trimmed_ns=150 * SECOND)

    world.write(A, 150 * SECOND, x=1.0)
    assert progress_of(world).done_ns == 180 * SECOND


def test_deleted_points_are_not_rolled_up() -> None:
    world = ruled(Aggregate.COUNT)
    world.batch(Run(A, "x", FieldType.F64, np.arange(120) * SECOND, np.ones(120)))
    world.block(A, "x")
    world.run(Delete("cpu", (), 30 * SECOND, 89 * SECOND))
    world.pass_time(120 * SECOND)

    assert world.points(A_MINUTES, "x_count") == [(0, 30), (MINUTE, 30)]


def test_without_the_log_nobody_rolls_up() -> None:
    world = SeriesWorld(rollups=False)
    world.run(CreateMeasurement("cpu", Config()))
    world.run(SetRule("cpu", Rule("minutes", "cpu_1m", MINUTE, 0, ALL)))
    world.write(A, SECOND, x=1.0)

    assert world.router.due(2**60, 10) == []
    assert world.router.next_deadline() is None
