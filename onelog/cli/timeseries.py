"""``onelog ts``: time series, and the rules that downsample them.

Points are read from lines, as other databases have them, or from CSV. A line is
``MEASUREMENT,TAG=VALUE FIELD=VALUE,FIELD=VALUE [TIME]``. Numbers are floats, ``3i`` is an integer,
``true`` and ``false`` are bools. A backslash escapes a space, a comma or an equals sign. The
default time is now.

An error names its line. Points are written in chunks of bounded size; those of one series with the
same fields become arrays.
"""

import csv
import io
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from onelog.cli.command import IfMissing, RoutingKey, Session, command, create_or_find, group
from onelog.cli.failure import EXIT_NOT_FOUND, CommandFailed
from onelog.cli.output import cell, counted, note, progress
from onelog.cli.values import duration_s, read_lines, shown_duration, shown_time, time_ns

if TYPE_CHECKING:
    from onelog import Rule
    from onelog.client.timeseries import SeriesData

rule_app = group(
    "Downsampling: write aggregates of each window to another measurement.",
    "onelog ts rule set 'cpu{m}' daily --window 1d -a mean --into 'cpu_daily{m}'",
    "onelog ts rule delete 'cpu{m}' daily",
)

MeasurementName = Annotated[str, typer.Argument(metavar="MEASUREMENT", help="The measurement.")]
RuleName = Annotated[str, typer.Argument(metavar="RULE", help="The rule.")]


def shown_rule(rule: "Rule") -> str:
    """Describe a rule in one line."""
    names = ", ".join(rule.aggregates)
    return f"{names} of {shown_duration(rule.window_s)} into {rule.target_measurement}"


@command(rule_app, "set")
def set_(
    session: Session,
    measurement: MeasurementName,
    name: RuleName,
    *,
    window: Annotated[
        float,
        typer.Option(
            "--window", metavar="TIME", parser=duration_s, help="Length of a window, like 1m."
        ),
    ],
    aggregates: Annotated[
        list[str],
        typer.Option("--aggregate", "-a", metavar="NAME", help="mean, max, …; repeatable."),
    ],
    target: Annotated[str, typer.Option("--into", metavar="MEASUREMENT", help="The target.")],
) -> None:
    """Set a rule: a field f becomes f_mean, f_max, … of each window, in another measurement.

    \b
    Examples:
      onelog ts rule set 'cpu{m}' hourly --window 1h -a mean -a max --into 'cpu_hourly{m}'
    """
    from onelog import Rule

    chosen: Any = tuple(aggregates)
    rule = Rule(name, window, chosen, target)
    session.client.ts.set_rule(measurement, rule)
    session.output.result(rule, f"rule {name} set: {shown_rule(rule)}")


@command(rule_app, "list", reads=True)
def rule_list_(session: Session, measurement: MeasurementName) -> None:
    """List the rules of a measurement.

    \b
    Examples:
      onelog ts rule list 'cpu{m}'
    """
    columns = (
        ("rule", lambda rule: rule.name),
        ("window", lambda rule: shown_duration(rule.window_s)),
        ("aggregates", lambda rule: list(rule.aggregates)),
        ("into", lambda rule: rule.target_measurement),
    )
    rules = session.client.ts.info(measurement, read=session.read).rules
    session.output.table(rules, columns, nothing="there is no rule")


@command(rule_app, "delete")
def rule_delete(session: Session, measurement: MeasurementName, name: RuleName) -> None:
    """Delete a rule; the points that it wrote stay.

    \b
    Examples:
      onelog ts rule delete 'cpu{m}' hourly
    """
    session.client.ts.delete_rule(measurement, name)
    session.output.result({"rule": name}, f"rule {name} deleted")


# Commands

app = group(
    "Time series: write, import, query, downsample.",
    "onelog ts write 'load,host=a one=0.5 now-2m' 'load,host=a one=0.9 now-1m'",
    "onelog ts query load one --from now-1h --chart",
    "onelog ts query load one --by host -a mean --window 1m",
)
app.add_typer(rule_app, name="rule")

_MATCHER = re.compile(r"([^!=~]+)(=~|!~|!=|=)(.*)", re.DOTALL)

Duplicates = Annotated[
    str | None,
    typer.Option(
        "--duplicates",
        metavar="last|first|reject",
        help="Which of two points at the same time to keep.",
    ),
]
Retention = Annotated[
    float | None,
    typer.Option(
        "--keep", metavar="TIME", parser=duration_s, help="Delete points older than this; 0: never."
    ),
]
SeriesMax = Annotated[
    int | None,
    typer.Option("--series-max", min=0, metavar="N", help="The most series; 0: 100,000."),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where", metavar="TAG=VALUE", help="Also !=, and =~ and !~ (regex); repeatable."
    ),
]


def parse_matchers(texts: Sequence[str] | None) -> dict[str, tuple[str, str]]:
    """Parse conditions on tags; return each tag's operator and value."""
    matchers: dict[str, tuple[str, str]] = {}
    for text in texts or ():
        found = _MATCHER.fullmatch(text)
        if found is None or found[1] in matchers:
            raise CommandFailed("USAGE", f"'{text}' is not TAG=VALUE, once for each tag")
        matchers[found[1]] = (found[2], found[3])
    return matchers


def _config(old: Any, duplicates: str | None, keep: float | None, series_max: int | None) -> Any:
    if duplicates not in (None, "last", "first", "reject"):
        raise CommandFailed("USAGE", f"'{duplicates}' is none of last, first and reject")
    given = {"duplicates": duplicates, "retention_s": keep, "series_max": series_max}
    return replace(old, **{name: each for name, each in given.items() if each is not None})


@command(app)
def create(
    session: Session,
    measurement: MeasurementName,
    *,
    duplicates: Duplicates = None,
    keep: Retention = None,
    series_max: SeriesMax = None,
    if_missing: IfMissing = False,
) -> None:
    """Create a measurement with these settings; a first write creates one with defaults.

    \b
    Examples:
      onelog ts create disk --keep 30d --duplicates last
      onelog ts create disk --if-missing
    """
    from onelog import MeasurementConfig

    config = _config(MeasurementConfig(), duplicates, keep, series_max)
    _, what = create_or_find(partial(session.client.ts.create, measurement, config), if_missing)
    session.output.result({"measurement": measurement}, f"measurement {measurement} {what}")


@command(app)
def configure(
    session: Session,
    measurement: MeasurementName,
    *,
    duplicates: Duplicates = None,
    keep: Retention = None,
    series_max: SeriesMax = None,
) -> None:
    """Change settings of a measurement; those that are not given stay.

    \b
    Examples:
      onelog ts configure cpu --keep 90d
    """
    old = session.client.ts.info(measurement).config
    config = _config(old, duplicates, keep, series_max)
    session.client.ts.configure(measurement, config)
    session.output.result(
        {"measurement": measurement, "config": config}, f"measurement {measurement} configured"
    )


@command(app)
def delete(session: Session, measurement: MeasurementName) -> None:
    """Delete a measurement with all of its series.

    \b
    Examples:
      onelog ts delete old-cpu
    """
    session.client.ts.drop(measurement)
    session.output.result({"measurement": measurement}, f"measurement {measurement} deleted")


@command(app, "list", reads=True)
def list_(
    session: Session,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only names with this prefix.")
    ] = "",
    *,
    routing_key: RoutingKey = "",
) -> None:
    """List measurements.

    \b
    Examples:
      onelog ts list
      onelog ts list cpu --json
    """
    columns = (
        ("measurement", lambda info: info.measurement),
        ("series", lambda info: info.series_count),
        ("fields", lambda info: info.fields),
        ("kept", lambda info: _kept(info.config.retention_s)),
        ("rules", lambda info: [rule.name for rule in info.rules]),
    )
    found = session.client.ts.measurements(prefix, routing_key=routing_key, read=session.read)
    session.output.table(found, columns, nothing="there is no such measurement")


def _kept(retention_s: float) -> str:
    return shown_duration(retention_s) if retention_s else "for ever"


@command(app, reads=True)
def show(session: Session, measurement: MeasurementName) -> None:
    """Show a measurement: settings, fields and their types, rules.

    \b
    Examples:
      onelog ts show cpu
      onelog ts show cpu --json
    """
    info = session.client.ts.info(measurement, read=session.read)
    rows: list[tuple[str, Any]] = [
        ("measurement", info.measurement),
        ("series", info.series_count),
        ("series at most", info.config.series_max or 100_000),
        ("fields", info.fields),
        ("kept", _kept(info.config.retention_s)),
        ("of two points", info.config.duplicates),
        *((f"rule {rule.name}", shown_rule(rule)) for rule in info.rules),
    ]
    session.output.listing(info, rows)


@command(app)
def write(
    session: Session,
    points: Annotated[
        list[str] | None,
        typer.Argument(metavar="POINT...", help="'cpu,host=a load=0.5 TIME'; - or none: stdin."),
    ] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read them from a file.")
    ] = None,
) -> None:
    """Write points, one in each argument or line.

    A point is MEASUREMENT[,TAG=VALUE...] FIELD=VALUE[,FIELD=VALUE...] [TIME]. Numbers are floats,
    3i is an integer, true and false are bools. TIME is RFC 3339, now-1h, or nanoseconds; by default
    now. A backslash escapes spaces, commas and equals signs.

    \b
    Examples:
      onelog ts write 'cpu,host=a load=0.5,cores=8i'
      onelog ts write 'cpu,host=b load=0.7 now-1m' 'cpu,host=b load=0.9 2026-11-16T12:00:00Z'
      printf 'cpu,host=c load=1\\ncpu,host=c load=2\\n' | onelog ts write
    """

    if points and file is not None:
        raise CommandFailed("USAGE", "give points, or --file")
    now_ns = time.time_ns()
    if points and points != ["-"]:
        texts: Iterable[str] = points
    else:
        texts = (line.decode("utf-8", "replace") for line in read_lines(file))
    source = (
        # Points without a time get different ones, else they would replace each other.
        parse_point(text, f"point {number}", now_ns + number)
        for number, text in enumerate(texts, 1)
        if text.strip() and not text.startswith("#")
    )
    first = next(source, None)
    if first is None:
        raise CommandFailed("USAGE", "there is no point to write; give some, or lines on stdin")
    _write(session, chain((first,), source))


@command(app, "import")
def import_(
    session: Session,
    measurement: MeasurementName,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="CSV; - or nothing: stdin.")
    ] = None,
    *,
    time_column: Annotated[
        str, typer.Option("--time", metavar="COLUMN", help="The column of times.")
    ] = "time",
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="COLUMN", help="A tag; repeatable.")
    ] = None,
    integers: Annotated[
        list[str] | None, typer.Option("--integer", metavar="COLUMN", help="Whole numbers.")
    ] = None,
) -> None:
    """Write the points of a CSV file with a header. Columns other than time and tags are fields.

    Fields are floats unless they are named with --integer, or are true or false. An empty cell is
    skipped.

    \b
    Examples:
      printf 'time,host,load\\nnow-2m,a,0.5\\nnow-1m,a,0.6\\n' | onelog ts import cpu --tag host
      onelog ts import cpu loads.csv --tag host
    """

    points = parse_csv(read_lines(file), measurement, time_column, tags or (), integers or ())
    _write(session, points)


def _write(session: Session, points: "Iterable[Point]") -> None:

    point_count = value_count = 0
    with progress("writing") as advance:
        for measurement, count, series in chunks(points):
            value_count += session.client.ts.write_many(measurement, series)
            point_count += count
            advance(count)
    session.output.result(
        {"points": point_count, "values": value_count},
        f"{counted(value_count, 'value')} of {counted(point_count, 'point')} written",
    )


@command(app, reads=True)
def query(
    session: Session,
    measurement: MeasurementName,
    field: Annotated[str, typer.Argument(metavar="FIELD", help="The field.")],
    *,
    first: Annotated[
        int, typer.Option("--from", metavar="WHEN", parser=time_ns, help="From this time on.")
    ] = "now-1h",  # type: ignore[assignment] # typer parses it
    last: Annotated[
        int, typer.Option("--to", metavar="WHEN", parser=time_ns, help="To before this time.")
    ] = "now+1s",  # type: ignore[assignment] # typer parses it
    where: Where = None,
    aggregate: Annotated[
        str,
        typer.Option(
            "--aggregate", "-a", metavar="NAME",
            help="mean, sum, count, min, max, first, last, stddev, percentile, rate, delta.",
        ),
    ] = "",
    percentile: Annotated[
        float | None,
        typer.Option("--percentile", min=0, max=100, metavar="P", help="Which percentile."),
    ] = None,
    window: Annotated[
        float,
        typer.Option("--window", metavar="TIME", parser=duration_s, help="Length of a window."),
    ] = "0",  # type: ignore[assignment] # typer parses it
    by: Annotated[
        list[str] | None, typer.Option("--by", metavar="TAG", help="One result per value.")
    ] = None,
    by_series: Annotated[
        bool, typer.Option("--by-series", help="One result per series.")
    ] = False,
    top: Annotated[int, typer.Option("--top", min=0, metavar="N", help="Only the N largest.")] = 0,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="At most N points of each result.")
    ] = 0,
    chart: Annotated[bool, typer.Option("--chart", help="Only the charts, no points.")] = False,
) -> None:  # fmt: skip
    """Print points, or aggregates of time windows, with a chart; by default of the last hour.

    Exits with 3 if nothing matches. With --json one line for each result.

    \b
    Examples:
      onelog ts query cpu load
      onelog ts query cpu load --from now-1d -a mean --window 10m --by host --chart
      onelog ts query cpu load -a percentile --percentile 99 --where host=~a.* --json
    """
    if last and last <= first:
        raise CommandFailed("USAGE", "--to is not after --from: the range ends before it begins")
    kind: Any = "percentile" if percentile is not None and not aggregate else aggregate
    results = session.client.ts.query(
        measurement, field, first, last, where=parse_matchers(where), aggregate=kind,
        percentile=percentile, window_s=window, group_by=by or (), by_series=by_series, top=top,
        limit=limit, read=session.read,
    )  # fmt: skip
    filled = [each for each in results if len(each)]
    for number, result in enumerate(filled):
        if session.output.as_json:
            found = {"tags": result.tags, "times_ns": result.times_ns, "values": result.values}
            session.output.line(found)
        else:
            _print_result(session, result, is_first=not number, with_points=not chart)
    if not filled:
        raise CommandFailed("NO_POINTS", "nothing matches in this time", EXIT_NOT_FOUND)


def _print_result(
    session: Session, result: "SeriesData", *, is_first: bool, with_points: bool
) -> None:
    from onelog.cli.output import sparkline

    if not is_first:
        typer.echo()
    values = result.values.tolist()
    span = f"{cell(min(values))} to {cell(max(values))}, last {cell(values[-1])}"
    title = cell(result.tags) or "all"
    session.output.result(None, f"{title}  {sparkline(values)}  {span}")
    if with_points:
        rows = list(zip(result.times_ns.tolist(), values, strict=True))
        session.output.table(
            rows, (("time", lambda row: shown_time(row[0])), ("value", lambda row: row[1]))
        )


@command(app, reads=True)
def series(session: Session, measurement: MeasurementName, *, where: Where = None) -> None:
    """List the series of a measurement by their tags.

    \b
    Examples:
      onelog ts series cpu
      onelog ts series cpu --where host=a --json
    """
    found = session.client.ts.series(measurement, where=parse_matchers(where), read=session.read)
    rows = ({"tags": tags} for tags in found)
    session.output.table(
        rows, (("tags", lambda row: row["tags"] or "no tags"),), nothing="no series matches"
    )


@command(app, "delete-points")
def delete_points(
    session: Session,
    measurement: MeasurementName,
    *,
    where: Where = None,
    first: Annotated[
        int | None, typer.Option("--from", metavar="WHEN", parser=time_ns, help="From this time.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--to", metavar="WHEN", parser=time_ns, help="Up to this time.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All series, if no time or tag is given.")
    ] = False,
) -> None:
    """Delete points of matching series; without a time the whole series.

    \b
    Examples:
      onelog ts delete-points cpu --to now-30d
      onelog ts delete-points cpu --where host=c
    """
    if (where is None and first is None and last is None) != everything:
        raise CommandFailed("USAGE", "give --where, --from, --to, or --all")
    count = session.client.ts.delete(
        measurement, where=parse_matchers(where), first_ns=first, last_ns=last
    )
    session.output.result({"series": count}, f"points of {counted(count, 'series')} deleted")
    if not count:
        note("no series matches")


# Points input

CHUNK_POINTS = 5_000

_ESCAPED = re.compile(r"\\([ ,=\\])")
_BOOLS = {"true": True, "t": True, "false": False, "f": False}
_I64 = 1 << 63


class Point(NamedTuple):
    """One point: values of several fields at a time."""

    measurement: str
    tags: tuple[tuple[str, str], ...]
    fields: dict[str, float | int | bool]
    time_ns: int


def parse_point(text: str, where: str, now_ns: int) -> Point:
    """Parse the point of a line."""
    parts = [part for part in _split(text, " ") if part]
    if len(parts) not in (2, 3):
        raise _wrong(where, f"'{text}' is not MEASUREMENT[,TAG=VALUE] FIELD=VALUE [TIME]")
    name, *tags = _split(parts[0], ",")
    fields = {field: _value(value, where) for field, value in _pairs(_split(parts[1], ","), where)}
    at = parse_time(parts[2], where) if len(parts) == 3 else now_ns
    return Point(_plain(name), tuple(sorted(_pairs(tags, where))), fields, at)


def parse_csv(
    lines: Iterable[bytes],
    measurement: str,
    time_column: str,
    tag_columns: Sequence[str],
    integer_columns: Sequence[str],
) -> Iterator[Point]:
    """Yield the points of a CSV file; empty cells are skipped."""
    rows = _rows(lines)
    _, columns = next(rows, (0, []))
    if not columns:
        raise CommandFailed("POINTS_INVALID", "nothing was read; the first line names the columns")
    for column in (time_column, *tag_columns, *integer_columns):
        if column not in columns:
            raise CommandFailed(
                "POINTS_INVALID", f"there is no column '{column}' in {', '.join(columns)}"
            )
    others = [each for each in columns if each not in (time_column, *tag_columns)]
    for number, cells in rows:
        where = f"line {number}"
        if len(cells) != len(columns):
            raise _wrong(where, f"does not have {counted(len(columns), 'column')}")
        row = dict(zip(columns, cells, strict=True))
        fields = {
            name: _value(row[name] + "i" * (name in integer_columns), where)
            for name in others
            if row[name]
        }
        if fields:
            tags = tuple(sorted((name, row[name]) for name in tag_columns if row[name]))
            yield Point(measurement, tags, fields, parse_time(row[time_column], where))


def _rows(lines: Iterable[bytes]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file that are not empty, each with the number of its line."""
    rows = csv.reader(line.decode("utf-8-sig", "replace") for line in lines)
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:
        raise _wrong(f"line {rows.line_num}", str(error)) from None


def chunks(points: Iterable[Point]) -> Iterator[tuple[str, int, "list[SeriesData]"]]:
    """Yield points in chunks: a measurement, the number of points, and arrays by series."""
    from onelog.client.timeseries import SeriesData

    source = iter(points)
    while chunk := list(islice(source, CHUNK_POINTS)):
        by_measurement: dict[str, dict[Any, list[Point]]] = {}
        for point in chunk:
            shape = (point.tags, tuple((name, type(each)) for name, each in point.fields.items()))
            by_measurement.setdefault(point.measurement, {}).setdefault(shape, []).append(point)
        for measurement, series in by_measurement.items():
            arrays = [_arrays(same, SeriesData) for same in series.values()]
            yield measurement, sum(map(len, series.values())), arrays


def _arrays(points: Sequence[Point], make: Any) -> Any:
    import numpy as np

    first = points[0]
    return make(
        dict(first.tags),
        np.array([point.time_ns for point in points], dtype=np.int64),
        {name: np.array([point.fields[name] for point in points]) for name in first.fields},
    )


def parse_time(text: str, where: str) -> int:
    """Parse a time of the input."""
    try:
        found = time_ns(text)
    except typer.BadParameter as error:
        raise _wrong(where, error.message) from None
    if found >= _I64:
        raise _wrong(where, f"{text} is too late a time")
    return found


def _value(text: str, where: str) -> float | int | bool:
    if text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    try:
        if text.endswith("i"):
            number = int(text[:-1])
            if -_I64 <= number < _I64:
                return number
        return float(text)
    except ValueError:
        raise _wrong(
            where, f"'{text}' is no number, no integer like 3i, no true or false"
        ) from None


def _split(text: str, separator: str) -> list[str]:
    """Split at separators that are not escaped; escapes stay."""
    parts, at = [io.StringIO()], 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            parts[-1].write(text[at : at + 2])
            at += 2
            continue
        if text[at] == separator:
            parts.append(io.StringIO())
        else:
            parts[-1].write(text[at])
        at += 1
    return [part.getvalue() for part in parts]


def _pairs(texts: Sequence[str], where: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        parts = _split(text, "=")
        if len(parts) != 2 or not all(parts):
            raise _wrong(where, f"'{text}' is not NAME=VALUE")
        pairs.append((_plain(parts[0]), _plain(parts[1])))
    return pairs


def _plain(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)


def _wrong(where: str, why: str) -> CommandFailed:
    return CommandFailed("POINTS_INVALID", f"{where}: {why}")
