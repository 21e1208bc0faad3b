"""Every invariant of the time series state, asserted; slow, for tests and verification."""

from onelog.projections.state_hash import HASH_MODULUS
from onelog.projections.timeseries.entities import (
    Measurement,
    bounds_item,
    measurement_item,
    series_item,
)
from onelog.projections.timeseries.limits import (
    BATCH_POINTS_MAX,
    BUFFER_POINTS,
    BUFFER_POINTS_MAX,
    TIME_NS_MAX,
)
from onelog.projections.timeseries.names import format_series, parse_series
from onelog.projections.timeseries.store import Store, column_hash, next_id_item


def check_store(store: Store) -> None:
    """Assert that all parts of a store agree."""
    assert not store.undo.active, "a batch is open"
    total = next_id_item(store.next_series_id)
    indexes: list[int] = []
    full: set[tuple[int, int]] = set()
    timed: set[tuple[str, str]] = set()
    ids: set[int] = set()
    columns = points = size = names = 0
    for namespace, room in store.rooms.items():
        assert room.namespace == namespace, f"{room.namespace!r} stored as {namespace!r}"
        found = {}
        for measurement in room.in_order():
            total += _check_measurement(measurement)
            if measurement.config.retention_ns or measurement.rules:
                timed.add((namespace, measurement.name))
            for series_id, series in measurement.series.items():
                assert series.measurement is measurement, f"series {series_id} is elsewhere"
                assert series.series_id == series_id < store.next_series_id, series_id
                ids.add(series_id)
                found[series.name] = series
                names += len(series.name)
                total += series_item(series)
                for field_id, column in series.columns.items():
                    assert column.key == (series_id, field_id), column.key
                    kind = measurement.fields[field_id].field_type
                    assert column.field_type is kind, f"{column.key} has another type"
                    column.check()
                    assert len(column) < BUFFER_POINTS_MAX + BATCH_POINTS_MAX, "too many points"
                    total += column_hash(column)
                    columns += 1
                    points += len(column)
                    size += len(column.times) + len(column.values)
                    indexes += column.rows()[:, 0].tolist()
                    if len(column) >= BUFFER_POINTS:
                        full.add(column.key)
                        assert store.full.get(column.key) is column, "another column is full"
        assert found == room.series, "a room knows other series"
    assert ids == set(store.by_id), "other ids are known"
    assert full == set(store.full), "other buffers are full"
    assert timed == set(store.timed), "other measurements have deadlines"
    assert store.hash_total == total % HASH_MODULUS, "the hash is wrong"
    assert (store.column_count, store.point_count) == (columns, points)
    assert (store.buffer_size, store.name_size) == (size, names)
    assert store.block_count == len(indexes), "blocks are counted wrong"
    store.pins.check(indexes)


def _check_measurement(measurement: Measurement) -> int:
    """Check a measurement without its series; return its item."""
    names = {name: number for number, (name, _) in enumerate(measurement.fields)}
    assert names == measurement.field_ids, "fields and their ids differ"
    assert measurement.digest == measurement_item(measurement), "a stale digest"
    assert measurement.bounds_digest == bounds_item(measurement), "stale bounds"
    tags = []
    for series_id in sorted(measurement.series):
        name = measurement.series[series_id].name
        parsed = parse_series(name)
        assert format_series(parsed) == name, f"{name!r} is not canonical"
        assert parsed.measurement == measurement.name, f"{name!r} is elsewhere"
        tags.append((series_id, parsed.tags))
    measurement.index.check(tags)
    assert measurement.config.invalid() is None, measurement.config
    for rule_name, (rule, progress) in measurement.rules.items():
        assert rule.name == rule_name, f"{rule.name!r} stored as {rule_name!r}"
        progress.check()
    for series in measurement.series.values():
        for column in series.columns.values():
            if not column.empty:
                assert column.newest_ns() <= measurement.newest_ns, "newer than the newest"
                assert _first_droppable(column.key, measurement) >= measurement.oldest_ns
    return measurement.digest + measurement.bounds_digest


def _first_droppable(key: tuple[int, int], measurement: Measurement) -> int:
    column = measurement.series[key[0]].columns[key[1]]
    times, _ = column.buffered()
    lasts = [*times.tolist(), *column.rows()[:, 2].tolist()]
    return min(lasts, default=TIME_NS_MAX + 1)
