"""One line about a time series entry, for people who look into a log."""

from typing import assert_never

from onelog.projections.codec import read_prefix
from onelog.projections.errors import BadPayload
from onelog.projections.timeseries.commands import (
    BeginRollup,
    Block,
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
)
from onelog.projections.timeseries.limits import TIME_NS_MAX, TIME_NS_MIN
from onelog.projections.timeseries.names import Matcher, Operator
from onelog.projections.timeseries.point_batch import WriteBatch
from onelog.ual.entry import Entry
from onelog.ual.errors import DataError

_SIGNS = {
    Operator.EQUAL: "=",
    Operator.NOT_EQUAL: "!=",
    Operator.MATCHES: "=~",
    Operator.MATCHES_NOT: "!~",
}


def describe_timeseries_command(entry: Entry) -> str:
    """Return what an entry of owner 0x03 asks for; names come from the log and are not escaped."""
    try:
        prefix, reader = read_prefix(entry.plain_payload())
        command = decode_command(entry.entry_type & 0xFF, reader)
    except BadPayload as error:
        return f"not a time series command: {error.reason.name}"
    except DataError as error:
        return f"payload unreadable: {error}"
    return f"{prefix.namespace}: {_describe(command)}"


def _describe(command: Command) -> str:
    match command:
        case Write(series, time_ns, fields):
            values = ", ".join(f"{name}={value!r}" for name, value in fields)
            return f"write {series.decode(errors='replace')} at {time_ns}: {values}"
        case WriteBatch():
            return f"write batch of {_count(command)}"
        case Block():
            return (
                f"block of series {command.series_id} field {command.field_id}: "
                f"{command.taken} points become {command.points}, {len(command.body)} bytes, "
                f"times {command.first_ns} to {command.last_ns}"
            )
        case CreateMeasurement(name, config):
            return f"create measurement {name}: {config}"
        case ConfigureMeasurement(name, config):
            return f"configure measurement {name}: {config}"
        case DropMeasurement(name):
            return f"drop measurement {name}"
        case Delete(name, matchers, first_ns, last_ns, after):
            whole = (first_ns, last_ns) == (TIME_NS_MIN, TIME_NS_MAX)
            what = "series" if whole else f"points {first_ns} to {last_ns}"
            return f"delete {what} of {name}{_matchers(matchers)} behind series {after}"
        case SetRule(name, rule):
            return f"set rule {rule.name} of {name}: {rule.window_ns} ns into {rule.target}"
        case DropRule(name, rule_name):
            return f"drop rule {rule_name} of {name}"
        case Trim(name, _, cutoff_ns, after):
            return f"trim {name} before {cutoff_ns} behind series {after}"
        case BeginRollup(name, rule_name, _, _, to_ns):
            return f"begin rollup {rule_name} of {name} to {to_ns}"
        case Rollup():
            return (
                f"rollup {command.rule} of {command.measurement}, "
                f"{command.from_ns} to {command.to_ns}: {_count(command.batch)}"
            )
        case _:
            assert_never(command)


def _count(batch: WriteBatch) -> str:
    return f"{len(batch.point_times)} points, {len(batch.series)} series"


def _matchers(matchers: tuple[Matcher, ...]) -> str:
    inside = ",".join(f"{each.tag}{_SIGNS[each.operator]}{each.value!r}" for each in matchers)
    return f"{{{inside}}}"
