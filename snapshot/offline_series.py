"""What a series or a measurement was at an index: points, fields, rules."""

from dataclasses import asdict
from typing import Any

from onelog.projections.errors import BadPayload
from onelog.projections.reasons import MESSAGES
from onelog.projections.result import Refused
from onelog.projections.timeseries.blocks import CorruptBlock
from onelog.projections.timeseries.entities import Measurement, Series
from onelog.projections.timeseries.limits import TIME_NS_MAX, TIME_NS_MIN
from onelog.projections.timeseries.listing import describe_measurement
from onelog.projections.timeseries.names import SeriesName, format_series, parse_series
from onelog.projections.timeseries.read import BlockCache, read_column
from onelog.projections.timeseries.rules import Progress, Rule
from onelog.projections.timeseries.types import TYPE_NAMES
from onelog.snapshot.offline import Rebuilt
from onelog.snapshot.offline_entries import NotKept, read_entry


def parse_series_text(text: bytes) -> SeriesName:
    """Take apart the name of a series as a person writes it; raise ``ValueError`` with the rule.

    Without tags the braces may be left out.
    """
    try:
        return parse_series(text if b"{" in text else text + b"{}")
    except BadPayload as error:
        raise ValueError(
            f"{MESSAGES[error.reason].format(detail=error.detail, cause='')}: write "
            "measurement{tag=value,tag=value}, tags in ascending order, and a backslash before "
            "each of \\ , = { } in a name"
        ) from error


def ask_measurement(
    rebuilt: Rebuilt, namespace: str, name: str, limit: int
) -> dict[str, Any] | None:
    """Return all about a measurement, and its first ``limit`` series; None: it did not exist."""
    measurement = _find_measurement(rebuilt, namespace, name)
    if measurement is None:
        return None
    info = describe_measurement(measurement)
    config = info.config
    fields: dict[str, Any] = {
        "created_index": info.created_index,
        "series_count": info.series_count,
        "fields": [{"name": field, "type": kind} for field, kind in info.fields],
        "tags": [{"name": tag, "values": count} for tag, count in info.tags],
        "rules": [_rule_fields(*each) for each in info.rules],
        "trimmed_ns": info.trimmed_ns,
        "config": asdict(config) | {"policy": config.policy.name.lower()},
    }
    if limit:
        page = rebuilt.projections.series.series(namespace, name, limit=limit)
        assert not isinstance(page, Refused), page
        fields["series"] = [each.name.decode() for each in page.items]
        fields["has_more"] = page.after is not None
    return fields


def ask_series(
    rebuilt: Rebuilt, namespace: str, name: SeriesName, field: str | None
) -> dict[str, Any] | None:
    """Return the points of a series, of one field or of all; None: it did not exist."""
    room = rebuilt.projections.series.rooms.get(namespace)
    series = None if room is None else room.series.get(format_series(name))
    if series is None:
        return None
    names = [each.name for each in series.measurement.fields]
    wanted = names if field is None else [field]
    fields = [_field_fields(rebuilt, series, each) for each in wanted]
    return {
        "id": series.series_id,
        "created_index": series.created_index,
        "tags": dict(series.tags),
        "fields": [each for each in fields if each["exists"] or field is not None],
    }


def _field_fields(rebuilt: Rebuilt, series: Series, name: str) -> dict[str, Any]:
    """Return the points of one field, one per time, in the order of time."""
    measurement = series.measurement
    field_id = measurement.field_ids.get(name)
    column = None if field_id is None else series.columns.get(field_id)
    if column is None:
        return {"name": name, "exists": False}
    fields: dict[str, Any] = {
        "name": name,
        "exists": True,
        "type": TYPE_NAMES[column.field_type],
        "buffered_points": len(column),
        "blocks": len(column.rows()),
    }
    cache = BlockCache(lambda index: read_entry(rebuilt.source, index).plain_payload())
    try:
        times, values = read_column(measurement, column, TIME_NS_MIN, TIME_NS_MAX, cache)
    except (NotKept, CorruptBlock) as error:
        return fields | {"error": str(error)}
    return fields | {
        "point_count": len(times),
        "times_ns": times.tolist(),
        "values": values.tolist(),
    }


def _rule_fields(rule: Rule, progress: Progress) -> dict[str, Any]:
    return {
        "name": rule.name,
        "target": rule.target,
        "window_ns": rule.window_ns,
        "delay_ns": rule.delay_ns,
        "aggregates": [each.name.lower() for each in rule.aggregates],
        "done_ns": None if progress.done_ns == TIME_NS_MIN else progress.done_ns,
        "refused": progress.refused_count,
    }


def _find_measurement(rebuilt: Rebuilt, namespace: str, name: str) -> Measurement | None:
    room = rebuilt.projections.series.rooms.get(namespace)
    return None if room is None else room.measurements.get(name)
