"""Random commands of the time series projection, for long histories that meet themselves.

``random_commands`` looks at what exists, so that most commands take effect: it makes duplicates,
late points, backfill into blocks, types that do not fit, deletes, rules and settings.
``answers`` asks everything that can be asked.
"""

from random import Random

import numpy as np

from onelog.projections.timeseries.aggregate import Function
from onelog.projections.timeseries.columns import make_block
from onelog.projections.timeseries.commands import (
    Command,
    ConfigureMeasurement,
    CreateMeasurement,
    Delete,
    DropMeasurement,
    DropRule,
    SetRule,
    Write,
    encode_command,
    encode_write_batch,
)
from onelog.projections.timeseries.limits import TIME_NS_MAX, TIME_NS_MIN
from onelog.projections.timeseries.names import Matcher, Operator, series_name
from onelog.projections.timeseries.point_batch import Run, encode_batch
from onelog.projections.timeseries.projection import TimeSeries
from onelog.projections.timeseries.query import Query
from onelog.projections.timeseries.read import ReadBlock
from onelog.projections.timeseries.types import Aggregate, Config, FieldType, Policy, Rule, Value
from onelog.ual.entry import Draft
from tests.projections.timeseries.ts_queries import Queries

SECOND = 1_000_000_000
MEASUREMENTS = ["cpu", "disk", "net"]
TARGETS = {name: f"{name}_1m" for name in MEASUREMENTS}
FIELDS: dict[str, FieldType] = {"f": FieldType.F64, "n": FieldType.I64, "b": FieldType.BOOL}
HOSTS = ["a", "b", "web-1", "web-2", "x,y"]
RUN_SIZE_MAX = 700  # two runs of this size fill a buffer


def random_commands(draw: Random, state: TimeSeries, namespace: str = "default") -> list[Draft]:
    """Return a few commands as drafts; most of them are writes."""
    drafts: list[Draft] = []
    for _ in range(draw.randint(1, 3)):
        chance = draw.random()
        if chance < 0.40:
            drafts.append(encode_command(_write(draw), namespace))
        elif chance < 0.75:
            runs = [_run(draw) for _ in range(draw.randint(1, 5))]
            drafts.append(encode_write_batch(encode_batch(runs), namespace))
        elif chance < 0.85:
            drafts += _block(draw, state, namespace)
        else:
            drafts.append(encode_command(_other(draw), namespace))
    return drafts


def answers(state: TimeSeries, read_block: ReadBlock | None = None) -> list[object]:
    """Return everything that can be asked; with the log also every point."""
    found: list[object] = [list(state.pinned(0, 2**63)), state.counts()]
    for namespace in sorted(state.spaces):
        measurements = state.measurements(namespace)
        assert isinstance(measurements, list), measurements
        for info in measurements:
            found += (info, state.series(namespace, info.name, limit=10_000))
            matcher = Matcher("host", Operator.MATCHES, "web-.*")
            found.append(state.series(namespace, info.name, (matcher,)))
            if read_block is None:
                continue
            queries = Queries(state, read_block)
            for field, _ in info.fields:
                for query in (
                    Query(info.name, field),
                    Query(info.name, field, function=Function.MEAN, window_ns=60 * SECOND),
                ):
                    rows = queries.query(namespace, query)
                    assert isinstance(rows, list), rows
                    found += ((r.name, r.times.tolist(), r.values.tolist()) for r in rows)
    return found


def _series(draw: Random) -> bytes:
    tags = {"host": draw.choice(HOSTS), "zone": draw.choice(["", "eu"])}
    return series_name(draw.choice(MEASUREMENTS), tags)


def _time(draw: Random) -> int:
    return draw.randint(0, 1_200) * SECOND


def _value(draw: Random, field_type: FieldType) -> Value:
    if field_type is FieldType.BOOL:
        return draw.random() < 0.5
    if field_type is FieldType.I64:
        return draw.randint(-(2**63), 2**63 - 1) if draw.random() < 0.1 else draw.randint(0, 99)
    return draw.randint(-9_999, 9_999) / 100


def _field(draw: Random) -> tuple[str, FieldType]:
    name = draw.choice(sorted(FIELDS))
    kind = FIELDS[name] if draw.random() < 0.97 else draw.choice(list(FieldType))
    return name, kind


def _write(draw: Random) -> Write:
    fields: dict[str, Value] = {}
    for _ in range(draw.randint(1, 3)):
        name, kind = _field(draw)
        fields[name] = _value(draw, kind)
    return Write(_series(draw), _time(draw), tuple(fields.items()))


def _run(draw: Random) -> Run:
    name, kind = _field(draw)
    size = draw.choice([1, draw.randint(2, 20), draw.randint(300, RUN_SIZE_MAX)])
    start = _time(draw)
    times = start + np.arange(size) * SECOND // draw.choice([1, 10])
    if draw.random() < 0.2:
        times = np.array([_time(draw) for _ in range(size)])
    return Run(_series(draw), name, kind, times, [_value(draw, kind) for _ in range(size)])


def _block(draw: Random, state: TimeSeries, namespace: str) -> list[Draft]:
    """Return a block of some buffer, as a leader might make one of any size."""
    space = state.spaces.get(namespace)
    columns = [
        (series.measurement, column)
        for series in (space.series.values() if space else ())
        for column in series.columns.values()
        if len(column)
    ]
    if not columns:
        return []
    measurement, column = draw.choice(columns)
    block = make_block(column, measurement.config.policy, measurement.config_index)
    return [encode_command(block, namespace)]


def _config(draw: Random) -> Config:
    retention_ns = draw.choice([0, 0, 100, 1_000]) * SECOND
    return Config(draw.choice(list(Policy)), retention_ns, draw.choice([4, 100, 100_000]))


def _other(draw: Random) -> Command:
    measurement = draw.choice(MEASUREMENTS)
    match draw.randrange(10):
        case 0:
            return CreateMeasurement(measurement, _config(draw))
        case 1 | 2:
            return ConfigureMeasurement(measurement, _config(draw))
        case 3:
            name = measurement if draw.random() < 0.5 else TARGETS[measurement]
            return DropMeasurement(name)
        case 4 | 5 | 6:
            operator = draw.choice(list(Operator))
            value = draw.choice(["a", "web-.*", "a|b", "none"])
            matchers = (Matcher("host", operator, value),) if draw.random() < 0.8 else ()
            if draw.random() < 0.2:
                return Delete(measurement, matchers, TIME_NS_MIN, TIME_NS_MAX)
            first_ns, last_ns = sorted((_time(draw), _time(draw)))
            return Delete(measurement, matchers, first_ns, last_ns)
        case 7 | 8:
            aggregates = tuple(sorted(draw.sample(list(Aggregate), draw.randint(1, 3))))
            window_ns = draw.choice([10, 60]) * SECOND
            target = TARGETS[measurement]
            rule = Rule("minutes", target, window_ns, draw.choice([0, 5]) * SECOND, aggregates)
            return SetRule(measurement, rule)
        case _:
            return DropRule(measurement, "minutes")
