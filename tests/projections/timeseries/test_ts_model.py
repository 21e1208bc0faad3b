"""The time series projection against a plain model, step by step.

Between two commands the machine may be saved and loaded, or be replayed from its log; blocks are
made whenever it pleases; batches are taken back. None of that may show. ``check()`` runs after
every step.

Trims and rollups are made at one time and applied at another, with anything in between, as through
a log. The model stores what a rollup brings, like a write; what it should have brought is computed
by a loop over the points that there are, whenever nothing is left to do, and before points go.
"""

import copy
from random import Random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onelog.projections.codec import read_prefix
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Refused, Result
from onelog.projections.system.commands import encode_batch
from onelog.projections.timeseries.aggregate import Function
from onelog.projections.timeseries.commands import (
    BeginRollup,
    ConfigureMeasurement,
    CreateMeasurement,
    Delete,
    DropMeasurement,
    DropRule,
    Rollup,
    SetRule,
    Trim,
    Write,
    decode_command,
    encode_command,
)
from onelog.projections.timeseries.limits import TIME_NS_MAX, TIME_NS_MIN
from onelog.projections.timeseries.names import Matcher, Operator, parse_series, series_name
from onelog.projections.timeseries.point_batch import Run, batch_runs
from onelog.projections.timeseries.projection import SeriesPage
from onelog.projections.timeseries.types import Aggregate, Config, FieldType, Policy, Rule, Value
from onelog.ual.entry import Draft
from tests.projections.timeseries import ts_histories
from tests.projections.timeseries.ts_twin import Point, Twin, TwinMeasurement, fold_window
from tests.projections.timeseries.ts_world import NAMESPACE, ROUNDS_MAX, SECOND, SeriesWorld

KINDS = {"f": FieldType.F64, "n": FieldType.I64, "b": FieldType.BOOL}
NAMES = [
    series_name(measurement, tags)
    for measurement in ("cpu", "disk")
    for tags in ({"host": "a"}, {"host": "b"}, {"host": "b", "zone": "eu"}, {})
]

names = st.sampled_from(NAMES)
times = st.integers(880, 1_010).map(lambda second: second * SECOND)
values = st.sampled_from([0.5, -0.0, 2.25, 1e300, 7, -3, 2**63 - 1, True, False])
rows = st.dictionaries(st.sampled_from(sorted(KINDS)), values, min_size=1, max_size=3)
configs = st.builds(
    Config, st.sampled_from(Policy), st.sampled_from([0, 0, 60 * SECOND]), st.just(100)
)
matchers = st.tuples() | st.tuples(
    st.builds(
        Matcher, st.just("host"), st.sampled_from(Operator), st.sampled_from(["a", "b", "[ab]", ""])
    )
)


EXACT = {Aggregate.COUNT, Aggregate.MIN, Aggregate.MAX, Aggregate.FIRST, Aggregate.LAST}
OVERTAKEN = {
    Reason.MEASUREMENT_UNKNOWN,
    Reason.ROLLUP_STALE,
    Reason.RULE_UNKNOWN,
    Reason.TRIM_EARLY,
    Reason.TRIM_STALE,
}


def target_of(measurement: str) -> str:
    return f"{measurement}_up"


class SeriesMachine(RuleBasedStateMachine):
    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.world = SeriesWorld()
        self.twin = Twin()
        self.pending: list[Draft] = []
        self.rules_set: dict[str, Rule] = {}  # by measurement
        # Times that were changed by other things than points: what was rolled up of them stays.
        self.unclear: dict[str, list[tuple[int, int]]] = {}
        if data.draw(st.booleans(), label="with a rule"):
            self.configure("cpu", Config())
            self.set_rule("cpu", 0, data)

    @rule(name=names, time=times, fields=rows)
    def write(self, name: bytes, time: int, fields: dict[str, Value]) -> None:
        self.write_both(name, time, fields)

    def write_both(self, name: bytes, time: int, fields: dict[str, Value]) -> None:
        parsed = parse_series(name)
        refused = self.twin.refuses(parsed.measurement, name, time, fields)
        result = self.world.run(Write(name, time, tuple(fields.items())))
        assert isinstance(result, Refused if refused else Applied), result
        if not refused:
            self.twin.write(parsed.measurement, name, dict(parsed.tags), time, fields)

    @rule(
        several=st.lists(
            st.tuples(names, st.sampled_from(["f", "n"]), st.lists(times, min_size=1, max_size=9)),
            min_size=1,
            max_size=5,
        ),
        seed=st.integers(0, 99),
    )
    def write_batch(self, several: list[tuple[bytes, str, list[int]]], seed: int) -> None:
        draw = Random(seed)
        before = copy.deepcopy(self.twin)
        refused = False
        runs = []
        for name, field, run_times in several:
            run_values: list[Value] = [
                draw.randint(0, 9) if field == "n" else draw.randint(0, 9) / 4 for _ in run_times
            ]
            runs.append(Run(name, field, KINDS[field], run_times, run_values))
            parsed = parse_series(name)
            for time, value in zip(run_times, run_values, strict=True):
                row = {field: value}
                refused = refused or self.twin.refuses(parsed.measurement, name, time, row)
                self.twin.write(parsed.measurement, name, dict(parsed.tags), time, row)
        result = self.world.batch(*runs)
        if refused:
            self.twin = before
            assert isinstance(result, Refused), result
        else:
            assert result == Applied(sum(len(run_times) for _, _, run_times in several))

    @rule(data=st.data())
    def make_a_block(self, data: st.DataObject) -> None:
        buffered = [
            (name, field)
            for measurement in self.twin.measurements.values()
            for name, (_, columns) in measurement.series.items()
            for field, column in columns.items()
            if column.buffer
        ]
        if buffered:
            name, field = data.draw(st.sampled_from(buffered))
            size = len(self.world.column(name, field))
            assert self.world.block(name, field) == Applied()
            self.twin.block(parse_series(name).measurement, name, field, size)

    @rule(measurement=st.sampled_from(["cpu", "disk"]), config=configs)
    def configure(self, measurement: str, config: Config) -> None:
        there = measurement in self.twin.measurements
        if there:
            assert self.world.run(ConfigureMeasurement(measurement, config)) == Applied()
            if config.policy is not self.twin.measurements[measurement].config.policy:
                self.unclear.setdefault(measurement, []).append((TIME_NS_MIN, TIME_NS_MAX))
            self.twin.measurements[measurement].config = config
            created = self.world.run(CreateMeasurement(measurement, config))
            assert isinstance(created, Refused)
            assert created.reason is Reason.MEASUREMENT_EXISTS
        else:
            result = self.world.run(CreateMeasurement(measurement, config))
            assert result == Applied(self.world.index)
            self.twin.measurements[measurement] = TwinMeasurement(config)

    @rule(measurement=st.sampled_from(["cpu", "disk"]), chosen=matchers, data=st.data())
    def delete(self, measurement: str, chosen: tuple[Matcher, ...], data: st.DataObject) -> None:
        first, last = TIME_NS_MIN, TIME_NS_MAX
        if data.draw(st.integers(0, 4), label="range"):
            first, last = sorted((data.draw(times), data.draw(times)))
        merges = data.draw(st.booleans(), label="merges")
        result = self.world.run(Delete(measurement, chosen, first, last, merges=merges))
        if measurement not in self.twin.measurements:
            assert result == Refused(Reason.MEASUREMENT_UNKNOWN)
            return
        assert isinstance(result, Applied)
        assert result.value is None
        assert result.number == self.twin.delete(measurement, chosen, first, last)
        self.unclear.setdefault(measurement, []).append((first, last))

    @rule(measurement=st.sampled_from(["cpu", "disk"]))
    def drop(self, measurement: str) -> None:
        for name in (measurement, target_of(measurement)):
            result = self.world.run(DropMeasurement(name))
            if self.twin.measurements.pop(name, None) is None:
                assert result == Refused(Reason.MEASUREMENT_UNKNOWN)
            else:
                assert isinstance(result, Applied)
        self.rules_set.pop(measurement, None)
        self.unclear.pop(measurement, None)

    @rule(
        measurement=st.sampled_from(["cpu", "disk"]), delay=st.sampled_from([0, 5]), data=st.data()
    )
    def set_rule(self, measurement: str, delay: int, data: st.DataObject) -> None:
        window = data.draw(st.sampled_from([7, 10, 60]))
        kinds = data.draw(st.sets(st.sampled_from(sorted(EXACT)), min_size=1))
        made = Rule(
            "r", target_of(measurement), window * SECOND, delay * SECOND, tuple(sorted(kinds))
        )
        result = self.world.run(SetRule(measurement, made))
        if measurement not in self.twin.measurements:
            assert result == Refused(Reason.MEASUREMENT_UNKNOWN)
            return
        assert result == Applied(self.world.index)
        self.rules_set[measurement] = made
        self.unclear.pop(measurement, None)  # it begins again

    @rule(measurement=st.sampled_from(["cpu", "disk"]))
    def drop_rule(self, measurement: str) -> None:
        result = self.world.run(DropRule(measurement, "r"))
        assert isinstance(result, Applied if measurement in self.rules_set else Refused)
        self.rules_set.pop(measurement, None)

    @rule(seconds=st.integers(0, 30))
    def make_chores(self, seconds: int) -> None:
        self.world.now_ns += seconds * SECOND
        self.pending = self.world.router.due(self.world.now_ns, 64)

    @rule()
    def apply_chores(self) -> None:
        """Apply what was made some time ago, and is refused if it does not fit any more."""
        for draft in self.pending:
            self.chore_done(draft, self.world.draft(draft))
        self.pending = []

    @precondition(lambda self: self.rules_set)
    @rule(several=st.lists(st.tuples(names, times, rows), min_size=2, max_size=6), data=st.data())
    def writes_overtake_chores(
        self, several: list[tuple[bytes, int, dict[str, Value]]], data: st.DataObject
    ) -> None:
        """Each is applied after the leader has read, and before what it made of that is applied."""
        measurement = data.draw(st.sampled_from(sorted(self.rules_set)))
        for name, time, fields in several:
            self.make_chores(1)
            tags = dict(parse_series(name).tags)
            self.write_both(series_name(measurement, tags), time, fields)
            self.apply_chores()
        self.pass_time(0)

    @rule(seconds=st.integers(0, 30))
    def pass_time(self, seconds: int) -> None:
        self.world.now_ns += seconds * SECOND
        for _ in range(ROUNDS_MAX):
            drafts = self.world.router.due(self.world.now_ns, 64)
            if not drafts:
                break
            for draft in drafts:
                result = self.world.draft(draft)
                assert isinstance(result, Applied), result
                self.chore_done(draft, result)
        else:
            raise AssertionError("what is to do does not go away")
        for measurement, each in self.rules_set.items():
            self.compare_rolled_up(measurement, each, self.world.now_ns - each.delay_ns)

    def chore_done(self, draft: Draft, result: Result) -> None:
        command = self.decoded(draft)
        assert isinstance(command, Trim | BeginRollup | Rollup), command
        if isinstance(result, Refused):
            assert result.reason in OVERTAKEN, result
        elif isinstance(command, Trim):
            if command.measurement in self.rules_set:
                made = self.rules_set[command.measurement]
                self.compare_rolled_up(command.measurement, made, command.cutoff_ns)
            self.twin.trim(command.measurement, command.cutoff_ns)
        elif isinstance(command, Rollup):
            assert isinstance(result, Applied)
            assert result.number in (0, len(command.batch.point_times))
            for run in batch_runs(command.batch) if result.number else ():
                parsed = parse_series(run.series)
                convert = bool if run.field_type is FieldType.BOOL else lambda value: value
                for time, value in zip(
                    np.asarray(run.times).tolist(), np.asarray(run.values).tolist(), strict=True
                ):
                    row = {run.field: convert(value)}
                    self.twin.write(parsed.measurement, run.series, dict(parsed.tags), time, row)

    def compare_rolled_up(self, measurement: str, made: Rule, until: int) -> None:
        """Compare all whole windows before ``until`` with loops over the points that there are."""
        space = self.world.series.spaces[NAMESPACE]
        _, progress = space.measurements[measurement].rules[made.name]
        if progress.refused_count:  # the target has a field of another type since long ago
            return
        twin = self.twin.measurements[measurement]
        unclear = self.unclear.get(measurement, [])
        for name, (_, columns) in twin.series.items():
            target = name.replace(measurement.encode(), made.target.encode(), 1)
            for key in columns:
                windows: dict[int, list[Point]] = {}
                for time, value in self.twin.points(measurement, name, key):
                    windows.setdefault(time // made.window_ns, []).append((time, value))
                for number, inside in windows.items():
                    start = number * made.window_ns
                    end = start + made.window_ns
                    if start < twin.trimmed or end > until:
                        continue
                    if any(first < end and last >= start for first, last in unclear):
                        continue
                    for kind in made.aggregates:
                        field = f"{key}_{kind.name.lower()}"
                        found = dict(self.twin.points(made.target, target, field))
                        expected = fold_window(Function[kind.name], [inside], 0.0)
                        assert found.get(start) == expected, (name, field, start)

    @staticmethod
    def decoded(draft: Draft) -> object:
        _, reader = read_prefix(draft.payload)
        return decode_command(draft.entry_type & 0xFF, reader)

    @rule(several=st.lists(st.tuples(names, times, rows), min_size=1, max_size=6))
    def a_batch_is_taken_whole_or_not_at_all(
        self, several: list[tuple[bytes, int, dict[str, Value]]]
    ) -> None:
        before = copy.deepcopy(self.twin)
        drafts = []
        refused = False
        for name, time, fields in several:
            parsed = parse_series(name)
            refused = refused or self.twin.refuses(parsed.measurement, name, time, fields)
            self.twin.write(parsed.measurement, name, dict(parsed.tags), time, fields)
            command = Write(name, time, tuple(fields.items()))
            drafts.append(encode_command(command, NAMESPACE))
        results = self.world.group(encode_batch(drafts, [], NAMESPACE))
        assert isinstance(results[0], Refused if refused else Applied), results
        if refused:
            self.twin = before

    @rule(seed=st.integers(0, 2**32))
    def a_batch_that_fails_leaves_no_trace(self, seed: int) -> None:
        """Anything may be in it: blocks, deletes, drops, rules; the last entry cannot be."""
        draw = Random(seed)
        drafts = [
            draft
            for _ in range(3)
            for draft in ts_histories.random_commands(draw, self.world.series)
        ]
        drafts += [
            encode_command(command, NAMESPACE)
            for command in (
                Delete("cpu", (), 900 * SECOND, 950 * SECOND),
                DropMeasurement("disk"),
            )
            if command.measurement in self.twin.measurements
        ]
        drafts.append(encode_command(DropMeasurement("no such thing"), NAMESPACE))
        hashes = self.world.router.state_hashes()
        section = self.world.section()
        chores = self.world.series.chores(2**60, 64)

        results = self.world.group(encode_batch(drafts, [], NAMESPACE))

        assert isinstance(results[0], Refused)
        assert self.world.router.state_hashes() == hashes
        assert self.world.section() == section
        assert self.world.series.chores(2**60, 64) == chores

    @precondition(lambda self: self.world.index)
    @rule()
    def save_and_load(self) -> None:
        section = self.world.section()
        chores = self.world.series.chores(2**60, 64)
        hashes = self.world.router.state_hash()
        self.world = self.world.reloaded()
        assert self.world.router.state_hash() == hashes
        assert self.world.section() == section
        assert self.world.series.chores(2**60, 64) == chores

    @rule()
    def replay(self) -> None:
        other = self.world.replayed()
        assert other.router.state_hash() == self.world.router.state_hash()
        assert other.section() == self.world.section()

    @invariant()
    def nothing_is_broken(self) -> None:
        if hasattr(self, "world"):
            self.world.router.check()

    @invariant()
    def every_point_is_the_same(self) -> None:
        if not hasattr(self, "world"):
            return
        for measurement, twin in self.twin.measurements.items():
            page = self.world.series.series(NAMESPACE, measurement)
            assert isinstance(page, SeriesPage)
            listed = {item.name for item in page.items}
            assert listed == set(twin.series)
            for name, (_, columns) in twin.series.items():
                for field in columns:
                    found = self.world.points(name, field)
                    expected = self.twin.points(measurement, name, field)
                    assert found == expected
                    assert list(map(repr, found)) == list(map(repr, expected))  # -0.0, True
                meta = self.world.meta(name)
                assert meta is not None
                assert all(f'"{field}":' in meta.decode() for field in columns)
        infos = self.world.series.measurements(NAMESPACE)
        assert isinstance(infos, list)
        assert [info.name for info in infos] == sorted(self.twin.measurements)


TestSeries = SeriesMachine.TestCase
TestSeries.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, print_blob=True
)
