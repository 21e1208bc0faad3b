"""The time series state: measurements, their fields and series, and everything derived from them.

All changes go through ``Store``: it hashes, counts, publishes metadata as keys, notes how to undo,
and knows which columns have a full buffer. The caller decides first and then writes; nothing here
refuses.

Invariants, all asserted by ``check``:

* ``hash_total`` is the sum of all items modulo 2**64: measurements with settings, fields and
  rules, series, columns, points, blocks, deleted ranges, and ``next_series_id``;
* series ids rise and are never reused; ``series`` of a namespace and of its measurements agree;
* ``full`` holds exactly the columns with BUFFER_POINTS points or more;
* ``timed`` holds exactly the measurements with a retention or with rules;
* ``pins`` holds exactly the indexes of all blocks, ``by_id`` exactly the series.

A batch is rolled back by undoing changes from the newest to the oldest; counters and the hash are
noted once, when it begins, and restored last.

``SeriesSpace`` (the time series of one namespace), ``Measurement``, ``Series`` and ``Field`` are
plain holders with their canonical bytes and hash items; ``Store`` keeps them consistent.

``Pins`` is the set of log entries that hold blocks. Blocks come with rising indexes, so appending
keeps the list sorted. Removing one marks its place; marked places are compacted when they are more
than half, outside batches, so that undoing is unmarking. Derived data: the columns name the same
indexes.

The functions at the end say what the progress of downsampling rules means for late points and for
retention. A trim keeps what a rule has still to read, with two exceptions. A rule that has read
every point holds nothing back. And a rule that is stuck (on a block that cannot be read) is waited
for until a point was due for TRIM_GRACE_NS and the rule made no progress for as long. All of it is
computed from the state and a timestamp: by the leader when it makes a ``ts_trim``, by replicas when
they apply it.
"""

import json
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onelog.projections.codec import U8, U16, U64
from onelog.projections.projection import DerivedKeys
from onelog.projections.state_hash import HASH_MODULUS, item_hash
from onelog.projections.timeseries.columns import COLUMN_SIZE, Column, DeletedRange, Rows
from onelog.projections.timeseries.commands import encode_rule
from onelog.projections.timeseries.hashing import hash_rows
from onelog.projections.timeseries.limits import (
    BUFFER_POINTS,
    TIME_NS_MAX,
    TIME_NS_MIN,
    TRIM_GRACE_NS,
    TRIM_SLACK_DIVISOR,
    TRIM_SLACK_NS_MAX,
    TRIM_SLACK_NS_MIN,
)
from onelog.projections.timeseries.names import Tags, encode_name, parse_series
from onelog.projections.timeseries.tag_index import TagIndex
from onelog.projections.timeseries.types import (
    TYPE_NAMES,
    Config,
    FieldType,
    Progress,
    Rule,
    window_after,
    window_start,
)
from onelog.projections.undo import UndoLog

BOUNDS = struct.Struct("<qqQq")  # oldest, newest, sweep after, oldest of the sweep
_HEAD = struct.Struct("<QQq")  # created, config index, trimmed
_ITEM_MEASUREMENT = 0x12
_ITEM_SERIES = 0x13


class Field(NamedTuple):
    """A field of a measurement; its id is its position there."""

    name: str
    field_type: FieldType


class Series:
    """A series and its columns by field id."""

    __slots__ = ("columns", "created_index", "measurement", "name", "series_id")

    def __init__(
        self, measurement: "Measurement", name: bytes, series_id: int, created_index: int
    ) -> None:
        self.measurement = measurement
        self.name = name
        self.series_id = series_id
        self.created_index = created_index
        self.columns: dict[int, Column] = {}

    @property
    def tags(self) -> Tags:
        """The tags, from the name."""
        return parse_series(self.name).tags


class Measurement:
    """A measurement: settings, fields, rules with their progress, series by id."""

    __slots__ = (
        "bounds_digest", "config", "config_index", "created_index", "digest", "field_ids",
        "fields", "index", "name", "newest_ns", "oldest_ns", "rules", "seed", "series", "space",
        "sweep_after", "sweep_oldest_ns", "trimmed_ns",
    )  # fmt: skip

    def __init__(self, space: "SeriesSpace", name: str, created_index: int, undo: UndoLog) -> None:
        self.space = space
        self.name = name
        self.created_index = created_index
        self.config = Config()
        self.config_index = created_index
        self.trimmed_ns = TIME_NS_MIN  # points before it are deleted
        # Bounds of the points: from them a leader computes when there is something to do.
        self.oldest_ns = TIME_NS_MAX + 1
        self.newest_ns = TIME_NS_MIN - 1
        self.sweep_after = 0  # a trim has visited series up to this id and continues after it
        self.sweep_oldest_ns = TIME_NS_MAX + 1
        self.fields: tuple[Field, ...] = ()
        self.field_ids: dict[str, int] = {}
        self.rules: dict[str, tuple[Rule, Progress]] = {}
        self.series: dict[int, Series] = {}
        self.index = TagIndex(undo)
        self.seed = item_hash(space.raw_namespace + encode_name(name), created_index)
        self.digest = 0
        self.bounds_digest = 0

    def scalars(self) -> tuple[Any, ...]:
        """Return what ``Store.update`` may change, for ``restore``."""
        return (
            self.config, self.config_index, self.trimmed_ns, self.oldest_ns, self.newest_ns,
            self.sweep_after, self.sweep_oldest_ns, self.fields, self.rules, self.digest,
            self.bounds_digest,
        )  # fmt: skip

    def restore(self, scalars: tuple[Any, ...]) -> None:
        """Return to what ``scalars`` said."""
        (
            self.config, self.config_index, self.trimmed_ns, self.oldest_ns, self.newest_ns,
            self.sweep_after, self.sweep_oldest_ns, self.fields, self.rules, self.digest,
            self.bounds_digest,
        ) = scalars  # fmt: skip
        self.field_ids = {field.name: number for number, field in enumerate(self.fields)}

    def head(self) -> bytes:
        """Return settings, fields and rules as bytes: for the hash and for snapshots."""
        numbers = _HEAD.pack(self.created_index, self.config_index, self.trimmed_ns)
        parts = [encode_name(self.name), numbers, self.config.encode()]
        parts.append(U16.pack(len(self.fields)))
        parts += (U8.pack(field.field_type) + encode_name(field.name) for field in self.fields)
        parts.append(U8.pack(len(self.rules)))
        for name in sorted(self.rules):
            rule, progress = self.rules[name]
            parts += (encode_rule(rule), progress.encode())
        return b"".join(parts)

    def bounds(self) -> bytes:
        """Return what changes with every new point; separate, because that must be cheap."""
        return BOUNDS.pack(self.oldest_ns, self.newest_ns, self.sweep_after, self.sweep_oldest_ns)


class SeriesSpace:
    """The time series of one namespace."""

    __slots__ = ("created_index", "measurements", "namespace", "raw_namespace", "series")

    def __init__(self, namespace: str, created_index: int) -> None:
        self.namespace = namespace
        self.raw_namespace = encode_name(namespace)
        self.created_index = created_index
        self.measurements: dict[str, Measurement] = {}
        self.series: dict[bytes, Series] = {}  # by canonical name

    def in_order(self) -> Iterator[Measurement]:
        """Iterate over measurements in the order of names."""
        return (self.measurements[name] for name in sorted(self.measurements))


def measurement_item(measurement: Measurement) -> int:
    """Return the hash of a measurement without its series."""
    head = U8.pack(_ITEM_MEASUREMENT) + measurement.space.raw_namespace
    return item_hash(head + measurement.head(), 0)


def bounds_item(measurement: Measurement) -> int:
    """Return the hash of a measurement's bounds."""
    return item_hash(measurement.bounds(), measurement.seed)


def series_item(series: Series) -> int:
    """Return the hash of a series without its columns."""
    head = U8.pack(_ITEM_SERIES) + series.measurement.space.raw_namespace
    numbers = U64.pack(series.series_id) + U64.pack(series.created_index)
    return item_hash(head + numbers + series.name, 0)


# Pins

GARBAGE_MAX = 1_024


class Pins:
    """A sorted set of indexes."""

    __slots__ = ("_gone", "_indexes", "_kept", "_undo")

    def __init__(self, undo: UndoLog) -> None:
        self._undo = undo
        self._indexes = array("Q")
        self._kept = bytearray()
        self._gone = 0

    def __len__(self) -> int:
        return len(self._indexes) - self._gone

    def add(self, index: int) -> None:
        """Add an index that is above all others."""
        assert not self._indexes or index > self._indexes[-1], f"{index} is not the newest"
        self._indexes.append(index)
        self._kept.append(1)
        self._undo.note(self._take_last)

    def remove(self, indexes: Iterable[int]) -> None:
        """Remove indexes that are in the set."""
        for index in indexes:
            place = bisect_left(self._indexes, index)
            assert self._kept[place], f"{index} is not kept"
            self._kept[place] = 0
            self._gone += 1
            self._undo.note(partial(self._keep_again, place))
        self._undo.defer(self._close_up)

    def between(self, first_index: int, last_index: int) -> list[int]:
        """Return the indexes from first to last, ascending."""
        indexes, kept = self._indexes, self._kept
        places = range(bisect_left(indexes, first_index), bisect_left(indexes, last_index + 1))
        return [indexes[place] for place in places if kept[place]]

    def load(self, indexes: list[int]) -> None:
        """Load indexes in any order into an empty set."""
        assert not self._indexes, "only an empty set can be loaded"
        self._indexes = array("Q", sorted(indexes))
        self._kept = bytearray(b"\x01" * len(indexes))

    def memory(self) -> int:
        """Return the bytes held."""
        return 9 * len(self._indexes)

    def check(self, indexes: list[int]) -> None:
        """Assert that exactly these indexes are kept."""
        assert sum(self._kept) == len(self), "indexes are counted wrong"
        assert self.between(0, 2**64 - 2) == sorted(indexes), "other indexes are kept"
        assert self._gone <= len(self) + GARBAGE_MAX, "places are not closed up"

    def _close_up(self) -> None:
        if self._gone > len(self) + GARBAGE_MAX:
            self._indexes = array("Q", self.between(0, 2**64 - 2))
            self._kept = bytearray(b"\x01" * len(self._indexes))
            self._gone = 0

    def _take_last(self) -> None:
        self._indexes.pop()
        self._kept.pop()

    def _keep_again(self, place: int) -> None:
        self._kept[place] = 1
        self._gone -= 1


# Store

META_PREFIX = b"_ts:meta:"
SERIES_SIZE = 480  # bytes of a series besides its name and columns: objects and table slots
BLOCK_SIZE = 32 + 9  # bytes of a block: its row, its place among the pins
MEASUREMENT_SIZE = 1_100  # bytes of a measurement with a name of usual length: object and tables
FIELD_SIZE = 180  # of a field likewise: name, tuple, its places in two tables
RULE_SIZE = 710  # of a rule with its progress likewise


_ITEM_NEXT_ID = 0x11


class Store:
    """The time series of all namespaces, and what is derived from them."""

    __slots__ = (
        "block_count", "buffer_size", "by_id", "column_count", "full", "hash_total", "keys",
        "name_size", "next_series_id", "pins", "point_count", "spaces", "timed", "undo",
    )  # fmt: skip

    def __init__(self, keys: DerivedKeys) -> None:
        self.keys = keys
        self.undo = UndoLog()
        self.spaces: dict[str, SeriesSpace] = {}
        self.by_id: dict[int, Series] = {}
        self.pins = Pins(self.undo)
        self.full: dict[tuple[int, int], Column] = {}
        self.timed: dict[tuple[str, str], Measurement] = {}
        self.next_series_id = 1
        self.hash_total = next_id_item(1)
        self.column_count = 0
        self.block_count = 0
        self.point_count = 0  # buffered
        self.buffer_size = 0  # bytes of buffered points
        self.name_size = 0

    def scalars(self) -> tuple[int, ...]:
        """Return the counters, for ``restore``."""
        return (
            self.next_series_id, self.hash_total, self.column_count, self.block_count,
            self.point_count, self.buffer_size, self.name_size,
        )  # fmt: skip

    def restore(self, scalars: tuple[int, ...]) -> None:
        """Return to what ``scalars`` said."""
        (
            self.next_series_id, self.hash_total, self.column_count, self.block_count,
            self.point_count, self.buffer_size, self.name_size,
        ) = scalars  # fmt: skip

    def begin(self) -> None:
        """Begin a batch: from now on everything can be rolled back."""
        self.undo.begin()
        self.undo.note(partial(self.restore, self.scalars()))

    def add_hash(self, change: int) -> None:
        """Add an item, or subtract one."""
        self.hash_total = (self.hash_total + change) % HASH_MODULUS

    def set_next_series_id(self, series_id: int) -> None:
        """Set the id of the next series."""
        self.add_hash(next_id_item(series_id) - next_id_item(self.next_series_id))
        self.next_series_id = series_id

    # Rooms ---------------------------------------------------------------------------------------

    def close_space(self, namespace: str) -> None:
        """Drop everything in a namespace; KV drops its keys."""
        space = self.spaces.pop(namespace)
        for measurement in list(space.measurements.values()):
            gone = list(measurement.series.values())
            self.remove_series(measurement, gone, None)
            self.add_hash(-measurement.digest - measurement.bounds_digest)
            self._forget_measurement(measurement)

    # Measurements --------------------------------------------------------------------------------

    def create_measurement(
        self, space: SeriesSpace, name: str, config: Config, index: int
    ) -> Measurement:
        """Create a measurement whose name is free."""
        assert name not in space.measurements, f"{name!r} exists"
        measurement = Measurement(space, name, index, self.undo)
        measurement.config = config
        self.insert_measurement(measurement)
        self.undo.note(partial(self._forget_measurement, measurement))
        self.publish_measurement(measurement, index)
        return measurement

    def insert_measurement(self, measurement: Measurement) -> None:
        """Add a measurement to all tables; also for loading."""
        measurement.space.measurements[measurement.name] = measurement
        measurement.digest = measurement_item(measurement)
        measurement.bounds_digest = bounds_item(measurement)
        self.add_hash(measurement.digest + measurement.bounds_digest)
        self.refresh_timed(measurement)

    def refresh_timed(self, measurement: Measurement) -> None:
        """Note whether a measurement has deadlines."""
        key = measurement.space.namespace, measurement.name
        if measurement.config.retention_ns or measurement.rules:
            self.timed[key] = measurement
        else:
            self.timed.pop(key, None)

    def update(self, measurement: Measurement, **changes: Any) -> None:
        """Change settings, bounds, fields or rules of a measurement."""
        if self.undo.active:
            self.undo.note(partial(self._restore_measurement, measurement, measurement.scalars()))
        for name, value in changes.items():
            setattr(measurement, name, value)
        digest, bounds_digest = measurement_item(measurement), bounds_item(measurement)
        change = digest - measurement.digest + bounds_digest - measurement.bounds_digest
        self.add_hash(change)
        measurement.digest, measurement.bounds_digest = digest, bounds_digest
        self.refresh_timed(measurement)

    def widen(self, measurement: Measurement, first_ns: int, last_ns: int) -> None:
        """Widen the bounds of a measurement; ``update`` takes four times as long for it."""
        if self.undo.active:
            self.undo.note(partial(measurement.restore, measurement.scalars()))
        measurement.oldest_ns = min(measurement.oldest_ns, first_ns)
        measurement.newest_ns = max(measurement.newest_ns, last_ns)
        measurement.sweep_oldest_ns = min(measurement.sweep_oldest_ns, first_ns)
        digest = bounds_item(measurement)
        self.add_hash(digest - measurement.bounds_digest)
        measurement.bounds_digest = digest

    def _restore_measurement(self, measurement: Measurement, scalars: tuple[Any, ...]) -> None:
        measurement.restore(scalars)
        self.refresh_timed(measurement)

    def _forget_measurement(self, measurement: Measurement) -> None:
        del measurement.space.measurements[measurement.name]
        self.timed.pop((measurement.space.namespace, measurement.name), None)

    def _remember_measurement(self, measurement: Measurement) -> None:
        measurement.space.measurements[measurement.name] = measurement
        self.refresh_timed(measurement)

    def add_fields(self, measurement: Measurement, new: Iterable[Field]) -> None:
        """Add fields; their ids are their positions."""
        self.update(measurement, fields=(*measurement.fields, *new))
        measurement.field_ids = {
            field.name: number for number, field in enumerate(measurement.fields)
        }

    def remove_measurement(self, measurement: Measurement, index: int) -> None:
        """Remove a measurement that has no series."""
        assert not measurement.series, f"{measurement.name!r} has series"
        self._forget_measurement(measurement)
        self.undo.note(partial(self._remember_measurement, measurement))
        self.add_hash(-measurement.digest - measurement.bounds_digest)
        key = META_PREFIX + measurement.name.encode()
        self.keys.delete_derived(measurement.space.namespace, key, index)

    # Series and columns --------------------------------------------------------------------------

    def take_series_ids(self, count: int) -> Iterator[int]:
        """Return the ids of the next series, for ``add_series``."""
        first = self.next_series_id
        self.set_next_series_id(first + count)
        return iter(range(first, first + count))

    def add_series(
        self, measurement: Measurement, name: bytes, tags: Tags, series_id: int, index: int
    ) -> Series:
        """Add a series; ``publish_series`` publishes it once its fields exist."""
        series = Series(measurement, name, series_id, index)
        self.insert_series(series, tags)
        self.undo.note(partial(self._forget_series, series))
        return series

    def insert_series(self, series: Series, tags: Tags) -> None:
        """Add a series to all tables; also for loading."""
        measurement = series.measurement
        measurement.space.series[series.name] = series
        measurement.series[series.series_id] = series
        measurement.index.add(series.series_id, tags)
        self.by_id[series.series_id] = series
        self.add_hash(series_item(series))
        self.name_size += len(series.name)

    def add_column(self, series: Series, field_id: int) -> Column:
        """Add an empty column to a series."""
        field_type = series.measurement.fields[field_id].field_type
        column = Column(series.series_id, field_id, field_type)
        self.insert_column(series, column)
        self.add_hash(item_hash(column.head(), 0))  # the only item of an empty column
        self.undo.note(partial(self._forget_column, series, column))
        return column

    def insert_column(self, series: Series, column: Column) -> None:
        """Add a column to its series and count it; also for loading."""
        series.columns[column.field_id] = column
        self.column_count += 1
        self.point_count += len(column)
        self.buffer_size += len(column.times) + len(column.values)
        self.refresh_full(column)

    def remove_series(
        self, measurement: Measurement, gone: Sequence[Series], index: int | None
    ) -> None:
        """Remove series with everything in them; without an index their keys stay."""
        measurement.index.remove([(series.series_id, series.tags) for series in gone])
        for series in gone:
            for column in series.columns.values():
                self.add_hash(-column_hash(column))
                self._let_go(column)
                self.point_count -= len(column)
                self.buffer_size -= len(column.times) + len(column.values)
                self.column_count -= 1
            self.add_hash(-series_item(series))
            self.name_size -= len(series.name)
            self._forget_series(series)
            self.undo.note(partial(self._remember_series, series))
            if index is not None:
                key = META_PREFIX + series.name
                self.keys.delete_derived(measurement.space.namespace, key, index)

    def _let_go(self, column: Column) -> None:
        if column.blocks:
            rows = column.rows()
            self.pins.remove(rows[:, 0].tolist())
            self.block_count -= len(rows)

    def _forget_series(self, series: Series) -> None:
        measurement = series.measurement
        del measurement.space.series[series.name]
        del measurement.series[series.series_id]
        del self.by_id[series.series_id]
        for column in series.columns.values():
            self.full.pop(column.key, None)

    def _remember_series(self, series: Series) -> None:
        measurement = series.measurement
        measurement.space.series[series.name] = series
        # Ids stay in order: the order is that of the tag index, which is restored as well.
        measurement.series[series.series_id] = series
        self.by_id[series.series_id] = series
        for column in series.columns.values():
            self.refresh_full(column)

    def _forget_column(self, series: Series, column: Column) -> None:
        del series.columns[column.field_id]
        self.full.pop(column.key, None)

    # Points and blocks ---------------------------------------------------------------------------

    def refresh_full(self, column: Column) -> None:
        """Note whether the buffer of a column is full."""
        if len(column) >= BUFFER_POINTS:
            self.full[column.key] = column
        else:
            self.full.pop(column.key, None)

    def change_column(
        self,
        column: Column,
        *,
        buffer: tuple[bytearray, bytearray] | None = None,
        rows: Rows | None = None,
        deleted: tuple[DeletedRange, ...] | None = None,
    ) -> None:
        """Replace parts of a column; the old parts are not modified, as readers may hold them."""
        before = (column.times, column.values, column.base, column.blocks, column.deleted)
        if self.undo.active:
            self.undo.note(partial(self._restore_column, column, before))
        self.add_hash(-column_hash(column))
        self.point_count -= len(column)
        self.buffer_size -= len(column.times) + len(column.values)
        if buffer is not None:
            column.times, column.values = buffer
        if rows is not None:
            old, new = (set(each[:, 0].tolist()) for each in (column.rows(), rows))
            assert new <= old, "blocks are added by add_block"
            self.pins.remove(sorted(old - new))
            self.block_count -= len(old) - len(new)
            column.blocks = array("q", rows.tobytes()) if len(rows) else None
        if deleted is not None:
            column.deleted = deleted
        self.add_hash(column_hash(column))
        self.point_count += len(column)
        self.buffer_size += len(column.times) + len(column.values)
        self.refresh_full(column)

    def add_block(self, column: Column, taken: int, row: tuple[int, int, int, int]) -> None:
        """Replace the first ``taken`` points of a buffer by a block."""
        blocks = array("q") if column.blocks is None else column.blocks
        if self.undo.active:
            before = (column.times, column.values, column.base, column.blocks, column.deleted)
            self.undo.note(partial(self._restore_column, column, before))
            blocks = blocks[:]
        change = -column.prefix_hash(taken) - item_hash(column.head(), 0)
        value_size = len(column.values) // len(column)
        column.times = column.times[8 * taken :]
        column.values = column.values[value_size * taken :]
        column.base += taken
        blocks.extend(row)
        column.blocks = blocks
        change += item_hash(column.head(), 0)
        change += hash_rows(column.seed, np.array([row], dtype=np.int64))
        self.add_hash(change)
        self.pins.add(row[0])
        self.block_count += 1
        self.point_count -= taken
        self.buffer_size -= taken * (8 + value_size)
        self.refresh_full(column)

    def _restore_column(self, column: Column, before: tuple[Any, ...]) -> None:
        column.times, column.values, column.base, column.blocks, column.deleted = before
        self.refresh_full(column)

    def truncate(self, column: Column, times_size: int, values_size: int) -> None:
        """Undo an append of points to a buffer."""
        del column.times[times_size:]
        del column.values[values_size:]
        self.refresh_full(column)

    # Metadata ------------------------------------------------------------------------------------

    def publish_measurement(self, measurement: Measurement, index: int) -> None:
        """Write the key that describes a measurement."""
        config = measurement.config
        document = {
            "created": measurement.created_index,
            "policy": config.policy.name.lower(),
            "retention_ns": config.retention_ns,
            "series_max": config.series_max,
            "rules": sorted(measurement.rules),
        }
        item = META_PREFIX + measurement.name.encode(), _to_json(document).encode()
        self.keys.put_derived(measurement.space.namespace, [item], index)

    def publish_series(self, space: SeriesSpace, several: Iterable[Series], index: int) -> None:
        """Write the keys that describe series: their ids, and their fields with their types."""
        described: dict[tuple[str, tuple[int, ...]], str] = {}  # fields, which many series share
        items = []
        for series in several:
            measurement, field_ids = series.measurement, tuple(sorted(series.columns))
            fields = described.get((measurement.name, field_ids))
            if fields is None:
                present = [measurement.fields[field_id] for field_id in field_ids]
                fields = _to_json({each.name: TYPE_NAMES[each.field_type] for each in present})
                described[measurement.name, field_ids] = fields
            numbers = f'"id":{series.series_id},"created":{series.created_index}'
            value = f'{{{numbers},"fields":{fields}}}'
            items.append((META_PREFIX + series.name, value.encode()))
        self.keys.put_derived(space.namespace, items, index)

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind."""
        measurements = [m for space in self.spaces.values() for m in space.measurements.values()]
        fields = sum(len(measurement.fields) for measurement in measurements)
        rules = sum(len(measurement.rules) for measurement in measurements)
        heads = len(measurements) * MEASUREMENT_SIZE + fields * FIELD_SIZE + rules * RULE_SIZE
        return {
            "measurements": heads,
            "buffers": self.buffer_size + self.buffer_size // 16,
            "columns": self.column_count * COLUMN_SIZE,
            "series": len(self.by_id) * SERIES_SIZE + 2 * self.name_size,
            "blocks": self.block_count * BLOCK_SIZE,
            "index": sum(measurement.index.memory() for measurement in measurements),
        }


def _to_json(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def items_hash(items: Iterable[bytes]) -> int:
    """Return the sum of the hashes of some canonical bytes."""
    return sum(item_hash(item, 0) for item in items)


def column_hash(column: Column) -> int:
    """Return the sum of all items of a column."""
    return items_hash(column.items()) + column.points_hash() + column.rows_hash()


def next_id_item(next_series_id: int) -> int:
    """Return the hash of the counter of series."""
    return item_hash(U8.pack(_ITEM_NEXT_ID) + U64.pack(next_series_id), 0)


# Progress


def first_whole_ns(measurement: Measurement, rule: Rule) -> int:
    """Return the start of the first window that retention has not affected."""
    if measurement.trimmed_ns == TIME_NS_MIN:
        return TIME_NS_MIN
    return window_after(measurement.trimmed_ns, rule.window_ns)


def back_to(measurement: Measurement, rule: Rule, time_ns: int) -> int:
    """Return where a rule must continue so that the window of ``time_ns`` is written again.

    Never before what retention has trimmed: a window without all its points would be wrong.
    """
    start_ns = window_start(time_ns, rule.window_ns)
    return max(start_ns, first_whole_ns(measurement, rule))


def rules_after(measurement: Measurement, time_ns: int) -> dict[str, tuple[Rule, Progress]] | None:
    """Return the rules updated for a new point at ``time_ns``; None if it is late for none."""
    changed: dict[str, tuple[Rule, Progress]] = {}
    for name, (rule, progress) in measurement.rules.items():
        if progress.slice_index:
            if time_ns < min(progress.slice_to_ns, progress.late_ns):
                changed[name] = (rule, replace(progress, late_ns=time_ns))
        elif time_ns < progress.done_ns:
            done_ns = back_to(measurement, rule, time_ns)
            if done_ns < progress.done_ns:
                changed[name] = (rule, replace(progress, done_ns=done_ns))
    return {**measurement.rules, **changed} if changed else None


def trim_allowed_ns(measurement: Measurement, now_ns: int) -> int:
    """Return the time up to which a trim is allowed now: rules have read everything before it."""
    allowed_ns = now_ns - measurement.config.retention_ns
    for rule, progress in measurement.rules.values():
        waiting_ns = _waiting_ns(measurement, rule, progress)
        if now_ns >= progress.moved_ns + TRIM_GRACE_NS:
            waiting_ns = max(waiting_ns, now_ns - _patience_ns(rule))
        allowed_ns = min(allowed_ns, waiting_ns)
    # What was trimmed is already hidden from reads: a sweep under way continues.
    return min(max(allowed_ns, measurement.trimmed_ns), TIME_NS_MAX)


def trim_due_ns(measurement: Measurement) -> int | None:
    """Return when retention has something to drop; None if there is nothing to drop."""
    retention_ns = measurement.config.retention_ns
    if not retention_ns:
        return None
    if measurement.sweep_after:
        return 0
    if measurement.oldest_ns > TIME_NS_MAX:
        return None
    slack_ns = min(max(retention_ns // TRIM_SLACK_DIVISOR, TRIM_SLACK_NS_MIN), TRIM_SLACK_NS_MAX)
    cutoff_ns = measurement.oldest_ns + slack_ns
    due_ns = cutoff_ns + retention_ns
    for rule, progress in measurement.rules.values():
        if _waiting_ns(measurement, rule, progress) < cutoff_ns:
            due_ns = max(due_ns, cutoff_ns + _patience_ns(rule), progress.moved_ns + TRIM_GRACE_NS)
    return due_ns


def _waiting_ns(measurement: Measurement, rule: Rule, progress: Progress) -> int:
    """Return the time from which on a rule has still to read points, if there are any."""
    waiting_ns = min(progress.done_ns, window_start(progress.late_ns, rule.window_ns))
    return waiting_ns if measurement.newest_ns >= waiting_ns else TIME_NS_MAX


def _patience_ns(rule: Rule) -> int:
    """Return the age at which the rule should have read a point long ago."""
    return rule.window_ns + rule.delay_ns + TRIM_GRACE_NS
