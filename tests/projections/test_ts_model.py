"""The time series projection against a plain model, step by step.

Between two commands the machine may be saved and loaded, or be replayed from its log; blocks are
made whenever it pleases; batches are taken back. None of that may show. ``check()`` runs after
every step.
"""

import copy
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from projections.payload import read_prefix
from projections.reasons import Reason
from projections.result import Applied, Refused
from projections.system_commands import encode_batch
from projections.ts_batch import Run
from projections.ts_commands import (
    ConfigureMeasurement,
    CreateMeasurement,
    Delete,
    DropMeasurement,
    Trim,
    Write,
    decode_command,
    encode_command,
)
from projections.ts_limits import TIME_NS_MAX, TIME_NS_MIN
from projections.ts_listing import SeriesPage
from projections.ts_names import Matcher, Operator, parse_series, series_name
from projections.ts_types import Config, FieldType, Policy, Value
from tests.projections import ts_histories
from tests.projections.ts_twin import Twin, TwinMeasurement
from tests.projections.ts_world import NAMESPACE, SECOND, SeriesWorld
from ual.entry import Draft

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


class SeriesMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = SeriesWorld()
        self.twin = Twin()

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
        result = self.world.run(Delete(measurement, chosen, first, last))
        if measurement not in self.twin.measurements:
            assert result == Refused(Reason.MEASUREMENT_UNKNOWN)
            return
        assert isinstance(result, Applied)
        assert result.value is None
        assert result.number == self.twin.delete(measurement, chosen, first, last)

    @rule(measurement=st.sampled_from(["cpu", "disk"]))
    def drop(self, measurement: str) -> None:
        result = self.world.run(DropMeasurement(measurement))
        if self.twin.measurements.pop(measurement, None) is None:
            assert result == Refused(Reason.MEASUREMENT_UNKNOWN)
        else:
            assert isinstance(result, Applied)

    @rule(seconds=st.integers(0, 30))
    def pass_time(self, seconds: int) -> None:
        for draft, _ in self.world.pass_time(seconds * SECOND):
            command = self.decoded(draft)
            assert isinstance(command, Trim), command
            self.twin.trim(command.measurement, command.cutoff_ns)

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
