"""Downsampling: what a leader computes is what loops compute, and every replica stores the same."""

import math
from random import Random

import numpy as np
import pytest

from projections.payload import Reader, read_prefix
from projections.reasons import Reason
from projections.result import APPLIED, Applied, Refused
from projections.ts_aggregate import Function
from projections.ts_batch import Run, encode_batch, read_batch
from projections.ts_commands import (
    CreateMeasurement,
    Delete,
    DropRule,
    Rollup,
    SetRule,
    decode_command,
)
from projections.ts_limits import BUFFER_POINTS, RULES_MAX, TIME_NS_MIN
from projections.ts_names import series_name
from projections.ts_rules import Aggregate, Progress, Rule
from projections.ts_types import Config, FieldType
from tests.projections.ts_twin import fold_window
from tests.projections.ts_world import SECOND, SeriesWorld
from ual.entry import Draft

MINUTE = 60 * SECOND
A, A_MINUTES = (series_name(name, {"host": "a"}) for name in ("cpu", "cpu_1m"))
ALL = tuple(Aggregate)


def ruled(*aggregates: Aggregate, delay_ns: int = 0, window_ns: int = MINUTE) -> SeriesWorld:
    world = SeriesWorld()
    world.now_ns = 0
    world.run(CreateMeasurement("cpu", Config()))
    rule = Rule("minutes", "cpu_1m", window_ns, delay_ns, aggregates or ALL)
    result = world.run(SetRule("cpu", rule))
    assert result == Applied(world.index)
    return world


def progress_of(world: SeriesWorld) -> Progress:
    return world.series.rooms["default"].measurements["cpu"].rules["minutes"][1]


def rollup_of(draft: Draft) -> Rollup:
    _, reader = read_prefix(draft.payload)
    command = decode_command(draft.entry_type & 0xFF, reader)
    assert isinstance(command, Rollup)
    return command


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
    ((_, result),) = world.pass_time(SECOND)
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
    monkeypatch.setattr("projections.ts_rollups.ROLLUP_POINTS_MAX", 25)
    world = ruled(Aggregate.MEAN)
    names = [series_name("cpu", {"host": f"{number:02}"}) for number in range(12)]
    times = np.arange(600) * SECOND
    world.batch(*(Run(name, "x", FieldType.F64, times, np.ones(600)) for name in names))
    world.now_ns = 600 * SECOND
    ((draft),) = world.router.due(world.now_ns, 10)
    world.draft(draft)
    assert progress_of(world).cursor == 3
    world.router.check()

    world = world.reloaded()
    done = world.work()
    assert len(done) == 3
    assert world.series.counts()["series"] == 24
    for name in names:
        target = name.replace(b"cpu", b"cpu_1m", 1)
        assert len(world.points(target, "x_mean")) == 10
    assert world.router.next_deadline() is None


def test_a_late_point_in_the_middle_of_a_run_starts_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("projections.ts_rollups.ROLLUP_POINTS_MAX", 1)
    world = ruled(Aggregate.COUNT)
    names = [series_name("cpu", {"host": str(number)}) for number in range(3)]
    for name in names:
        world.write(name, SECOND, x=1.0)
    world.now_ns = 60 * SECOND
    (draft,) = world.router.due(world.now_ns, 10)
    world.draft(draft)
    assert progress_of(world).cursor == 1

    world.write(names[0], 2 * SECOND, x=1.0)
    assert progress_of(world).cursor == 0
    assert world.draft(draft) == Applied(1)  # from the start again: it may be repeated
    world.write(names[0], 3 * SECOND, x=1.0)
    world.work()
    target = series_name("cpu_1m", {"host": "0"})
    assert world.points(target, "x_count") == [(0, 3)]


def test_a_rollup_applied_twice_is_harmless() -> None:
    world = ruled(Aggregate.COUNT)
    world.write(A, SECOND, x=1.0)
    ((draft, _),) = world.pass_time(60 * SECOND)
    before = world.series.state_hash()

    assert world.draft(draft) == Refused(Reason.ROLLUP_STALE, TIME_NS_MIN)
    assert world.series.state_hash() == before


def test_a_rollup_before_its_time_or_of_another_rule_is_refused() -> None:
    world = ruled(Aggregate.COUNT, delay_ns=SECOND)
    world.write(A, SECOND, x=1.0)
    empty = read_batch(Reader(encode_batch([])))
    created = world.series.rooms["default"].measurements["cpu"].created_index
    rule_index = progress_of(world).index
    world.now_ns = 60 * SECOND

    def rollup(to_ns: int = MINUTE, index: int = rule_index, name: str = "minutes") -> Rollup:
        return Rollup("cpu", name, created, index, TIME_NS_MIN, to_ns, 0, 0, empty)

    assert world.run(rollup()) == Refused(Reason.ROLLUP_STALE, TIME_NS_MIN)  # the delay
    world.now_ns += SECOND
    assert world.run(rollup(to_ns=MINUTE - 1)) == Refused(Reason.ROLLUP_STALE, TIME_NS_MIN)
    assert world.run(rollup(index=1)) == Refused(Reason.RULE_UNKNOWN)
    assert world.run(rollup(name="none")) == Refused(Reason.RULE_UNKNOWN)
    foreign = read_batch(Reader(encode_batch([Run(A, "x", FieldType.F64, [1], [1.0])])))
    forged = Rollup("cpu", "minutes", created, rule_index, TIME_NS_MIN, MINUTE, 0, 0, foreign)
    assert world.run(forged) == Refused(Reason.PAYLOAD_FIELD_INVALID)
    assert world.run(rollup()) == APPLIED
    assert progress_of(world).done_ns == MINUTE


def test_a_target_that_refuses_does_not_stop_the_rule() -> None:
    world = ruled(Aggregate.COUNT)
    world.run(CreateMeasurement("cpu_1m", Config(series_max=1)))
    world.write(series_name("cpu_1m", {"host": "other"}), 0, x_count=1)
    world.write(A, SECOND, x=1.0)

    ((_, result),) = world.pass_time(60 * SECOND)
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
    monkeypatch.setattr("projections.ts_rollups.ROLLUP_POINTS_MAX", 10)
    monkeypatch.setattr("projections.ts_rollups.ROLLUP_READ_POINTS_MAX", 400)
    world = ruled(Aggregate.COUNT)
    for start in range(0, 3_000, 300):
        world.batch(
            Run(A, "x", FieldType.F64, np.arange(start, start + 300) * SECOND, np.ones(300))
        )
        world.block(A, "x")
    world.now_ns = 3_000 * SECOND

    done = world.work()

    assert len(done) >= 5
    assert all(len(rollup_of(draft).batch.point_times) <= 10 for draft, _ in done)
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
    measurement = world.series.rooms["default"].measurements["cpu"]
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
