"""Retention and downsampling of one measurement: nothing goes before it was rolled up."""

import numpy as np

from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Refused, Result
from onelog.projections.timeseries.commands import (
    ConfigureMeasurement,
    CreateMeasurement,
    DropRule,
    SetRule,
    Trim,
)
from onelog.projections.timeseries.limits import TIME_NS_MIN, TRIM_GRACE_NS
from onelog.projections.timeseries.names import series_name
from onelog.projections.timeseries.point_batch import Run
from onelog.projections.timeseries.types import Aggregate, Config, FieldType, Rule
from onelog.ual.entry import Draft
from tests.projections.timeseries.ts_rules_world import (
    A_MINUTES,
    ALL,
    MINUTE,
    A,
    decoded,
    opened,
    ruled,
)
from tests.projections.timeseries.ts_world import SECOND, SeriesWorld

DAY = 86_400 * SECOND
SHORT = Config(retention_ns=10 * MINUTE)


def trims_of(done: list[tuple[Draft, Result]]) -> list[Trim]:
    commands = [decoded(draft) for draft, _ in done]
    return [command for command in commands if isinstance(command, Trim)]


def trim_to(world: SeriesWorld, cutoff_ns: int) -> Trim:
    created = world.series.spaces["default"].measurements["cpu"].created_index
    return Trim("cpu", created, cutoff_ns, 0)


def test_retention_that_is_shortened_waits_until_a_new_rule_has_read_everything() -> None:
    """As one does it: first the rule, then the retention that makes it worth its while."""
    world = SeriesWorld()
    world.now_ns = 30 * DAY
    times = np.arange(0, 30 * DAY, 10 * MINUTE)
    names = [series_name("cpu", {"host": str(number)}) for number in range(20)]
    for name in names:
        world.batch(Run(name, "x", FieldType.F64, times, np.ones(len(times))))
    world.work()
    rule = Rule("hours", "cpu_1h", 60 * MINUTE, 0, (Aggregate.COUNT, Aggregate.MAX))
    world.run(SetRule("cpu", rule))
    world.run(ConfigureMeasurement("cpu", Config(retention_ns=DAY)))

    assert world.run(trim_to(world, SECOND)) == Refused(Reason.TRIM_EARLY, TIME_NS_MIN)
    done = world.work()

    assert [trim.cutoff_ns for trim in trims_of(done)] == [29 * DAY]
    for name in names:
        found = world.points(name.replace(b"cpu", b"cpu_1h", 1), "x_count")
        assert found == [(hour * 60 * MINUTE, 6) for hour in range(720)]
        assert len(world.points(name, "x")) == 144
    world.router.check()


def test_a_window_longer_than_the_retention_keeps_its_points_until_it_is_closed() -> None:
    world = ruled(Aggregate.COUNT, window_ns=DAY)
    world.run(ConfigureMeasurement("cpu", SHORT))
    world.write(A, SECOND, x=1.0)
    world.write(A, DAY - SECOND, x=1.0)

    assert world.pass_time(DAY - 1) == []
    done = world.pass_time(1)
    assert world.points(A_MINUTES, "x_count") == [(0, 2)]
    assert [trim.cutoff_ns for trim in trims_of(done)] == [DAY - 10 * MINUTE]


def test_a_rule_that_does_not_go_on_is_waited_for_no_longer_than_a_day() -> None:
    world = SeriesWorld(rollups=False)  # nobody reads the log, so nothing is rolled up
    world.now_ns = 0
    world.run(CreateMeasurement("cpu", SHORT))
    world.run(SetRule("cpu", Rule("minutes", "cpu_1m", MINUTE, 0, ALL)))
    world.write(A, 0, x=1.0)
    world.write(A, 3 * DAY, x=1.0)
    slack_ns = SHORT.retention_ns // 32
    deadline = TRIM_GRACE_NS + MINUTE + slack_ns

    assert world.router.next_deadline() == deadline
    world.now_ns = deadline - 1
    assert world.run(trim_to(world, MINUTE)) == Refused(Reason.TRIM_EARLY, slack_ns - 1)
    ((_, result),) = world.pass_time(1)
    assert result == APPLIED
    assert world.points(A, "x") == [(3 * DAY, 1.0)]


def test_points_that_were_due_long_after_a_rule_stood_still_are_not_given_up_early() -> None:
    """A rule has nothing to do while there are no points: that is not to stand still."""
    world = SeriesWorld(rollups=False)
    world.now_ns = 0
    world.run(CreateMeasurement("cpu", SHORT))
    world.run(SetRule("cpu", Rule("days", "cpu_1d", DAY, 0, ALL)))
    world.now_ns = 100 * DAY
    world.write(A, 100 * DAY, x=1.0)

    assert world.router.next_deadline() == 102 * DAY + SHORT.retention_ns // 32
    world.now_ns += DAY
    assert world.run(trim_to(world, 100 * DAY + 1)) == Refused(Reason.TRIM_EARLY, 99 * DAY)


def test_rules_that_are_done_or_dropped_hold_nothing_back() -> None:
    world = ruled(Aggregate.COUNT, window_ns=DAY)
    world.run(ConfigureMeasurement("cpu", SHORT))
    world.write(A, 59 * SECOND, x=1.0)  # at the end of a window, which is shorter than the slack
    world.pass_time(MINUTE)
    usual = 59 * SECOND + SHORT.retention_ns + SHORT.retention_ns // 32
    assert world.router.next_deadline() == DAY
    world.run(DropRule("cpu", "minutes"))
    assert world.router.next_deadline() == usual

    world.run(SetRule("cpu", Rule("minutes", "cpu_1m", MINUTE, 0, ALL)))
    assert len(world.work()) == 2
    assert world.router.next_deadline() == usual
    assert len(trims_of(world.pass_time(usual))) == 1


def test_a_trim_on_its_way_is_refused_when_a_rule_went_back_meanwhile() -> None:
    world = ruled(Aggregate.COUNT)
    world.batch(Run(A, "x", FieldType.F64, np.arange(20) * MINUTE, np.ones(20)))
    world.pass_time(20 * MINUTE)
    world.run(ConfigureMeasurement("cpu", SHORT))
    (draft,) = world.router.due(world.now_ns, 10)
    assert decoded(draft) == trim_to(world, 10 * MINUTE)

    world.write(A, 5 * MINUTE + 1, x=1.0)
    assert world.draft(draft) == Refused(Reason.TRIM_EARLY, 5 * MINUTE)
    world.now_ns += MINUTE
    world.work()
    assert dict(world.points(A_MINUTES, "x_count"))[5 * MINUTE] == 2
    measurement = world.series.spaces["default"].measurements["cpu"]
    assert measurement.trimmed_ns == 11 * MINUTE


def test_a_late_point_of_an_open_slice_holds_a_trim_back() -> None:
    world = ruled(Aggregate.COUNT)
    world.batch(Run(A, "x", FieldType.F64, np.arange(20) * MINUTE, np.ones(20)))
    world.pass_time(20 * MINUTE)
    world.write(A, 20 * MINUTE, x=1.0)
    world.now_ns += MINUTE
    opened(world)
    world.run(ConfigureMeasurement("cpu", SHORT))
    world.write(A, 5 * MINUTE + 1, x=1.0)

    assert world.run(trim_to(world, 6 * MINUTE)) == Refused(Reason.TRIM_EARLY, 5 * MINUTE)
    assert world.run(trim_to(world, 5 * MINUTE)) == APPLIED
    world.work()
    assert dict(world.points(A_MINUTES, "x_count"))[5 * MINUTE] == 2


def test_a_window_that_retention_has_cut_is_not_rolled_up_from_what_is_left() -> None:
    world = SeriesWorld()
    world.now_ns = 0
    world.run(CreateMeasurement("cpu", SHORT))
    world.batch(Run(A, "x", FieldType.F64, np.arange(1_200) * SECOND, np.ones(1_200)))
    world.pass_time(1_230 * SECOND)
    assert world.series.spaces["default"].measurements["cpu"].trimmed_ns == 630 * SECOND

    world.run(SetRule("cpu", Rule("minutes", "cpu_1m", MINUTE, 0, (Aggregate.COUNT,))))
    world.work()
    assert world.points(A_MINUTES, "x_count") == [(m * MINUTE, 60) for m in range(11, 20)]
