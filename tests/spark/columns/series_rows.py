"""Time series entries for tests of columns: blocks of drafts, random commands, and their rows.

``expected_rows`` makes the rows of a draft with the decoders of the projection, one by one.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np

from onelog.projections.codec import Reader, SessionRef, read_prefix
from onelog.projections.timeseries.commands import (
    _SIGNS,
    BeginRollup,
    Command,
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
from onelog.projections.timeseries.commands import Block as PointBlock
from onelog.projections.timeseries.limits import TIME_NS_MAX, TIME_NS_MIN
from onelog.projections.timeseries.names import Matcher, Operator, parse_series, series_name
from onelog.projections.timeseries.point_batch import Run, WriteBatch, encode_batch, read_batch
from onelog.projections.timeseries.types import (
    TYPE_NAMES,
    Aggregate,
    Config,
    FieldType,
    Policy,
    Rule,
    Value,
    bits_to_value,
    to_field_type,
)
from onelog.spark.columns.block import Block, Transactions, cut_blocks
from onelog.spark.columns.selection import Selection
from onelog.ual.entry import Draft, encode_group

SHARD = 3
TERM = 7
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMP_NS = 1_700_000_000_123_456_789
NO_VOIDS = np.empty((0, 2), np.uint64)
GROUP_ENTRIES = 1_000

_LETTERS = ["a", "b", "é", "日", ",", "=", "{", "}", "\\", " ", "0", "z"]

Row = dict[str, Any]


def blocks_of(drafts: Sequence[Draft], selection: Selection | None = None) -> list[Block]:
    """Return drafts as blocks of entries from index 1 on, through the bytes of the log."""
    data = bytearray()
    offsets = []
    for first in range(0, len(drafts), GROUP_ENTRIES):
        part = drafts[first : first + GROUP_ENTRIES]
        group = encode_group(part, term=TERM, first_index=first + 1, timestamp_ns=TIMESTAMP_NS)
        offsets += [len(data) + offset for offset in group.offsets]
        data += group.data
    return list(
        cut_blocks(
            SHARD,
            bytes(data),
            np.array(offsets, np.int64),
            voids=NO_VOIDS,
            selection=selection or Selection(),
            transactions=Transactions(),
        )
    )


def micros(moment: datetime) -> int:
    """Return a moment as whole microseconds since 1970, without a float in between."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def expected_rows(index: int, operation: str, draft: Draft) -> Iterator[Row]:
    """Yield what the view must show of a draft; what is null is left out."""
    prefix, reader = read_prefix(draft.payload)
    command = decode_command(draft.entry_type & 0xFF, reader)
    for position, values in enumerate(_rows(command)):
        yield {
            "shard": SHARD,
            "index": index,
            "position": position,
            "term": TERM,
            "timestamp_ns": TIMESTAMP_NS,
            "operation": operation,
            "namespace": prefix.namespace,
            **{name: value for name, value in values.items() if value is not None},
        }


def _rows(command: Command) -> Iterator[Row]:
    match command:
        case Write(series, time_ns, fields):
            for name, value in fields:
                yield _point(series, name, to_field_type(value), time_ns, value)
        case WriteBatch():
            yield from _points(command)
        case Rollup():
            operands = {
                "source": command.measurement,
                "rule": command.rule,
                "created_index": command.created_index,
                "rule_index": command.rule_index,
                "slice_index": command.slice_index,
                "from_ns": command.from_ns,
                "to_ns": command.to_ns,
                "after_series": command.after[0],
                "after_field": command.after[1],
                "last_series": command.last[0],
                "last_field": command.last[1],
            }
            yield from ({**operands, **point} for point in _points(command.batch))
        case _:
            yield _operands(command)


def _operands(command: Command) -> Row:
    names = {
        slot: getattr(command, slot)
        for slot in type(command).__slots__
        if isinstance(getattr(command, slot), str | int) and slot not in ("merges", "before_index")
    }
    match command:
        case PointBlock():
            del names["source_hash"]
        case CreateMeasurement(_, config) | ConfigureMeasurement(_, config):
            names["policy"] = config.policy.name.lower()
            names["retention_ns"] = config.retention_ns
            names["series_max"] = config.series_max
        case Delete(_, matchers):
            names["after_series"] = names.pop("after")
            names["matchers"] = ",".join(
                f"{each.tag}{_SIGNS[each.operator]}{json.dumps(each.value, ensure_ascii=False)}"
                for each in matchers
            )
        case SetRule(_, rule):
            names |= {"rule": rule.name, "target": rule.target}
            names |= {"window_ns": rule.window_ns, "delay_ns": rule.delay_ns}
            names["aggregates"] = [each.name.lower() for each in rule.aggregates]
        case Trim():
            names["after_series"] = names.pop("after")
    return names


def _points(batch: WriteBatch) -> Iterator[Row]:
    if not len(batch.point_times):
        yield {}
    for run in range(len(batch.run_series)):
        name, kind = batch.fields[batch.run_fields[run]]
        start, size = int(batch.starts[run]), int(batch.sizes[run])
        times = batch.point_times[start : start + size].tolist()
        bits = batch.bits[start : start + size].tolist()
        series = batch.series[batch.run_series[run]]
        for time_ns, value in zip(times, bits, strict=True):
            yield _point(series, name, kind, time_ns, bits_to_value(kind, value))


def _point(series: bytes, field: str, kind: FieldType, time_ns: int, value: Value) -> Row:
    name = parse_series(series)
    return {
        "measurement": name.measurement,
        "series": series.decode(),
        "tags": list(name.tags),
        "field": field,
        "time_ns": time_ns,
        "value_type": TYPE_NAMES[kind],
        "value": float(value),
        "value_long": value if kind is FieldType.I64 else None,
        "value_bool": value if kind is FieldType.BOOL else None,
    }


def random_draft(draw: Random) -> Draft:
    """Return any command, of names with every special character."""
    session = SessionRef(draw.randrange(2**63), 5, 2) if draw.random() < 0.3 else None
    chance = draw.random()
    if chance < 0.35:
        command: Command = _write(draw)
    elif chance < 0.6:
        command = read_batch(Reader(_batch(draw)))
    else:
        command = _other(draw)
    return encode_command(command, draw.choice(["default", "", "räume"]), session)


def name_of(draw: Random) -> str:
    return "".join(draw.choices(_LETTERS, k=draw.choice([1, 2, 5])))


def series_of(draw: Random) -> bytes:
    tags = {name_of(draw): name_of(draw) for _ in range(draw.randrange(4))}
    return series_name(name_of(draw), tags)


def time_of(draw: Random) -> int:
    return draw.choice([TIME_NS_MIN, TIME_NS_MAX, -1, 0, draw.randint(-(2**60), 2**61)])


def _value(draw: Random, kind: FieldType) -> Value:
    if kind is FieldType.BOOL:
        return draw.random() < 0.5
    if kind is FieldType.I64:
        return draw.choice([draw.randint(-(2**63), 2**63 - 1), draw.randint(-9, 9)])
    return draw.choice([draw.uniform(-1e9, 1e9), -0.0, 5e-324])


def _write(draw: Random) -> Write:
    names = {name_of(draw) for _ in range(draw.choice([1, 2, 7]))}
    fields = [(name, _value(draw, draw.choice(list(FieldType)))) for name in sorted(names)]
    return Write(series_of(draw), time_of(draw), tuple(fields))


def _batch(draw: Random) -> bytes:
    series = [series_of(draw) for _ in range(draw.randint(1, 4))]
    times = [
        [time_of(draw) for _ in range(draw.choice([1, 3, 40]))] for _ in range(draw.randint(1, 3))
    ]
    runs = []
    for _ in range(draw.choice([0, 1, 3, 9])):
        kind, at = draw.choice(list(FieldType)), draw.choice(times)
        values = [_value(draw, kind) for _ in at]
        runs.append(Run(draw.choice(series), name_of(draw), kind, at, values))
    return encode_batch(runs)


def _other(draw: Random) -> Command:
    name, number = name_of(draw), draw.randrange(2**63)
    first_ns, last_ns = sorted((time_of(draw), time_of(draw)))
    config = Config(draw.choice(list(Policy)), draw.randrange(2**40), draw.randint(1, 10**7))
    aggregates = tuple(sorted(draw.sample(list(Aggregate), draw.randint(1, 8))))
    matchers = tuple(
        Matcher(name_of(draw), draw.choice([Operator.EQUAL, Operator.NOT_EQUAL]), name_of(draw))
        for _ in range(draw.randrange(4))
    )
    rule = Rule(name_of(draw), name_of(draw), draw.randint(10**6, 10**15), 5, aggregates)
    batch = read_batch(Reader(_batch(draw)))
    taken = draw.randint(2, 4_096)
    every: list[Command] = [
        PointBlock(number, 9, 8, 7, taken, taken - 1, first_ns, last_ns, 6, b"body"),
        CreateMeasurement(name, config),
        ConfigureMeasurement(name, config),
        DropMeasurement(name),
        Delete(name, matchers, first_ns, last_ns, number),
        SetRule(name, rule),
        DropRule(name, rule.name),
        Trim(name, number, first_ns, 4),
        BeginRollup(name, rule.name, number, 3, last_ns),
        Rollup(name, rule.name, number, 3, 2, -5, 5, (1, 2), (number + 2, 3), batch),
    ]
    return draw.choice(every)
