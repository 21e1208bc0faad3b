"""The time series section of a snapshot: measurements, series, buffers, and references to blocks.

docs/timeseries.md has the table. Everything is in one order (namespaces and measurements by name,
series and columns by id), hence equal states give equal bytes. Hashes, the tag index and counters
are not saved: loading computes them from what it read. A damaged section raises
``CorruptSection``.

``check_store`` asserts every invariant of the time series state; it is slow, for tests and
verification.
"""

import struct
from array import array
from collections.abc import Iterable, Iterator

from onelog.projections.codec import U8, U16, U32, U64, Reader, SectionReader
from onelog.projections.errors import BadPayload
from onelog.projections.reasons import Reason
from onelog.projections.state_hash import HASH_MODULUS
from onelog.projections.timeseries.columns import BLOCK_WORDS, Column, DeletedRange
from onelog.projections.timeseries.commands import read_config, read_rule
from onelog.projections.timeseries.limits import (
    BATCH_POINTS_MAX,
    BUFFER_POINTS,
    BUFFER_POINTS_MAX,
    DELETED_RANGES_MAX,
    FIELDS_MAX,
    RULES_MAX,
    TIME_NS_MAX,
)
from onelog.projections.timeseries.names import format_series, parse_series, read_name
from onelog.projections.timeseries.store import (
    BOUNDS,
    Field,
    Measurement,
    Series,
    SeriesSpace,
    Store,
    bounds_item,
    column_hash,
    measurement_item,
    next_id_item,
    series_item,
)
from onelog.projections.timeseries.types import (
    PROGRESS_SIZE,
    VALUE_SIZES,
    FieldType,
    Progress,
    Rule,
    decode_progress,
)
from onelog.ual.entry import OWNER_TIMESERIES

SECTION_VERSION = 1

_HEAD = struct.Struct("<QQq")  # created, config index, trimmed
_SERIES = struct.Struct("<QQ")  # id, created
_COLUMN = struct.Struct("<HQIIH")  # field, base, points, blocks, deleted ranges
_DELETED = struct.Struct("<qqQ")


def dump_parts(store: Store) -> Iterator[bytes]:
    """Yield the section in small parts."""
    yield U8.pack(SECTION_VERSION) + U64.pack(store.next_series_id) + U16.pack(len(store.spaces))
    for name in sorted(store.spaces):
        space = store.spaces[name]
        yield space.raw_namespace + U32.pack(len(space.measurements))
        for measurement in space.in_order():
            head = measurement.head()
            count = U64.pack(len(measurement.series))
            yield U32.pack(len(head)) + head + measurement.bounds() + count
            for series_id in measurement.index.ids:
                yield from _dump_series(measurement.series[series_id])


def _dump_series(series: Series) -> Iterator[bytes]:
    head = _SERIES.pack(series.series_id, series.created_index)
    yield head + U16.pack(len(series.name)) + series.name + U16.pack(len(series.columns))
    for field_id in sorted(series.columns):
        column = series.columns[field_id]
        blocks = b"" if column.blocks is None else column.blocks.tobytes()
        yield _COLUMN.pack(
            field_id,
            column.base,
            len(column),
            len(blocks) // (8 * BLOCK_WORDS),
            len(column.deleted),
        )
        yield bytes(column.times)
        yield bytes(column.values)
        yield blocks
        yield b"".join(_DELETED.pack(*each) for each in column.deleted)


def load_section(store: Store, chunks: Iterable[bytes], applied_index: int) -> None:
    """Load a section into a fresh store whose namespaces are open; raise ``CorruptSection``."""
    reader = SectionReader(OWNER_TIMESERIES, chunks)
    version = reader.number(U8)
    reader.expect(version == SECTION_VERSION, f"section version {version}")
    store.set_next_series_id(reader.number(U64))
    indexes: list[int] = []
    previous = ""
    for position in range(reader.number(U16)):
        namespace = reader.text(U8)
        reader.expect(position == 0 or namespace > previous, "namespaces out of order")
        previous = namespace
        space = store.spaces.get(namespace)
        if space is None:
            raise reader.corrupt(f"namespace {namespace!r} is not in the system section")
        for _ in range(reader.number(U32)):
            _load_measurement(reader, store, space, indexes)
    reader.finish()
    reader.expect(len(set(indexes)) == len(indexes), "a block of two columns")
    reader.expect(max(indexes, default=0) <= applied_index, "a block from the future")
    store.pins.load(indexes)
    store.block_count = len(indexes)


def _load_measurement(
    reader: SectionReader, store: Store, space: SeriesSpace, indexes: list[int]
) -> None:
    try:
        measurement = _read_head(Reader(reader.sized(U32)), store, space)
    except BadPayload as error:
        raise reader.corrupt(f"a measurement of {space.namespace!r}: {error}") from error
    (
        measurement.oldest_ns,
        measurement.newest_ns,
        measurement.sweep_after,
        measurement.sweep_oldest_ns,
    ) = reader.fields(BOUNDS)
    last_name = max(space.measurements, default="")
    reader.expect(measurement.name > last_name, "measurements out of order")
    store.insert_measurement(measurement)
    previous = 0
    for _ in range(reader.number(U64)):
        series_id, created_index = reader.fields(_SERIES)
        name = reader.sized(U16)
        reader.expect(previous < series_id < store.next_series_id, "series out of order")
        reader.expect(series_id not in store.by_id and name not in space.series, "a series twice")
        previous = series_id
        try:
            parsed = parse_series(name)
        except BadPayload as error:
            raise reader.corrupt(f"series {series_id}: {error}") from error
        reader.expect(parsed.measurement == measurement.name, f"series {series_id} is elsewhere")
        series = Series(measurement, name, series_id, created_index)
        store.insert_series(series, parsed.tags)
        last_field = -1
        for _ in range(reader.number(U16)):
            column = _load_column(reader, series, indexes)
            reader.expect(column.field_id > last_field, "columns out of order")
            last_field = column.field_id
            store.insert_column(series, column)
            store.add_hash(column_hash(column))


def _read_head(reader: Reader, store: Store, space: SeriesSpace) -> Measurement:
    name = read_name(reader)
    created_index, config_index, trimmed_ns = reader.fields(_HEAD)
    measurement = Measurement(space, name, created_index, store.undo)
    measurement.config_index = config_index
    measurement.trimmed_ns = trimmed_ns
    measurement.config = read_config(reader)
    fields: list[Field] = []
    for _ in range(reader.count(FIELDS_MAX)):
        kind = reader.number(U8)
        if not 1 <= kind <= len(FieldType):
            raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, kind)
        fields.append(Field(read_name(reader), FieldType(kind)))
    measurement.fields = tuple(fields)
    measurement.field_ids = {field.name: number for number, field in enumerate(fields)}
    rule_count = reader.number(U8)
    if rule_count > RULES_MAX or len(measurement.field_ids) < len(fields):
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, rule_count)
    rules: dict[str, tuple[Rule, Progress]] = {}
    for _ in range(rule_count):
        rule = read_rule(reader)
        if rules and rule.name <= max(rules):
            raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, len(rules))
        rules[rule.name] = (rule, decode_progress(reader.take(PROGRESS_SIZE)))
    measurement.rules = rules
    reader.finish()
    return measurement


def _load_column(reader: SectionReader, series: Series, indexes: list[int]) -> Column:
    field_id, base, points, blocks, deleted_count = reader.fields(_COLUMN)
    fields = series.measurement.fields
    reader.expect(field_id < len(fields), f"field {field_id} does not exist")
    reader.expect(points < BUFFER_POINTS_MAX + BATCH_POINTS_MAX, "a buffer that is too large")
    reader.expect(deleted_count <= DELETED_RANGES_MAX, "too many deleted ranges")
    column = Column(series.series_id, field_id, fields[field_id].field_type)
    column.base = base
    column.times = bytearray(reader.take(8 * points))
    column.values = bytearray(reader.take(VALUE_SIZES[column.field_type] * points))
    if blocks:
        column.blocks = array("q", reader.take(8 * BLOCK_WORDS * blocks))
        indexes += column.blocks[::BLOCK_WORDS]
    ranges = [DeletedRange(*reader.fields(_DELETED)) for _ in range(deleted_count)]
    column.deleted = tuple(ranges)
    try:
        column.check()
    except AssertionError as error:
        raise reader.corrupt(f"column {column.key}: {error}") from error
    return column


# Verification


def check_store(store: Store) -> None:
    """Assert that all parts of a store agree."""
    assert not store.undo.active, "a batch is open"
    total = next_id_item(store.next_series_id)
    indexes: list[int] = []
    full: set[tuple[int, int]] = set()
    timed: set[tuple[str, str]] = set()
    ids: set[int] = set()
    columns = points = size = names = 0
    for namespace, space in store.spaces.items():
        assert space.namespace == namespace, f"{space.namespace!r} stored as {namespace!r}"
        found = {}
        for measurement in space.in_order():
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
        assert found == space.series, "a space knows other series"
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
