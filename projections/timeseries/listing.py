"""What there is, for people and programs: measurements, series, tags."""

from dataclasses import dataclass

from onelog.projections.errors import BadPayload
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.timeseries.entities import Measurement, Room, Series
from onelog.projections.timeseries.limits import LIST_SERIES_MAX, TIME_NS_MIN
from onelog.projections.timeseries.names import Matcher, compile_matchers
from onelog.projections.timeseries.rules import Progress, Rule
from onelog.projections.timeseries.types import TYPE_NAMES, Config


@dataclass(frozen=True, slots=True)
class MeasurementInfo:
    """One measurement."""

    name: str
    created_index: int
    config: Config
    series_count: int
    fields: tuple[tuple[str, str], ...]  # name and type, in the order of their first write
    tags: tuple[tuple[str, int], ...]  # name and number of values
    rules: tuple[tuple[Rule, Progress], ...]
    trimmed_ns: int | None  # points before it are gone


@dataclass(frozen=True, slots=True)
class SeriesInfo:
    """One series."""

    name: bytes
    series_id: int
    created_index: int
    fields: tuple[str, ...]
    buffered_points: int  # over all fields
    blocks: int


@dataclass(frozen=True, slots=True)
class SeriesPage:
    """Some series in the order of their ids; ``after`` is where the next page goes on."""

    items: tuple[SeriesInfo, ...]
    after: int | None


def describe_measurement(measurement: Measurement) -> MeasurementInfo:
    """Return all that is known of a measurement, its series apart."""
    trimmed_ns = measurement.trimmed_ns
    return MeasurementInfo(
        name=measurement.name,
        created_index=measurement.created_index,
        config=measurement.config,
        series_count=len(measurement.series),
        fields=tuple((name, TYPE_NAMES[kind]) for name, kind in measurement.fields),
        tags=tuple(measurement.index.tags().items()),
        rules=tuple(measurement.rules[name] for name in sorted(measurement.rules)),
        trimmed_ns=None if trimmed_ns == TIME_NS_MIN else trimmed_ns,
    )


def describe_series(series: Series) -> SeriesInfo:
    """Return what is known of a series."""
    columns = [series.columns[field_id] for field_id in sorted(series.columns)]
    return SeriesInfo(
        name=series.name,
        series_id=series.series_id,
        created_index=series.created_index,
        fields=tuple(series.measurement.fields[column.field_id].name for column in columns),
        buffered_points=sum(map(len, columns)),
        blocks=sum(len(column.rows()) for column in columns),
    )


def list_series(
    room: Room, measurement: str, matchers: tuple[Matcher, ...], after: int, limit: int
) -> SeriesPage | Refused:
    """Return the matching series of a measurement with ids above ``after``."""
    if not 1 <= limit <= LIST_SERIES_MAX:
        return Refused(Reason.LIMIT_INVALID, limit)
    found = room.measurements.get(measurement)
    if found is None:
        return Refused(Reason.MEASUREMENT_UNKNOWN)
    try:
        ids = found.index.select(compile_matchers(matchers))
    except BadPayload as error:
        return Refused(error.reason, error.detail)
    ids = ids[ids > after]
    page = ids[:limit].tolist()
    more = page[-1] if len(ids) > limit else None
    return SeriesPage(tuple(describe_series(found.series[each]) for each in page), more)
