"""What there is: measurements, their fields and series, and everything that must keep in step.

All changes go through ``Store``: it hashes, counts, publishes metadata as keys, notes how to take
things back, and knows which columns have a full buffer. The order of a change is decide, then
write; nothing here refuses.

Invariants, all asserted by ``check``:

* ``hash_total`` is the sum of all items modulo 2**64: measurements with settings, fields and
  rules, series, columns, points, blocks, deleted ranges, and ``next_series_id``;
* series ids rise and are never used again; ``series`` of a room and of its measurements agree;
* ``full`` holds exactly the columns with BUFFER_POINTS points or more;
* ``timed`` holds exactly the measurements with a retention or with rules;
* ``pins`` holds exactly the indexes of all blocks, ``by_id`` exactly the series.

A batch is taken back by undoing changes from the newest to the oldest; counters and the hash are
noted once, when it begins, and restored last.
"""

import json
from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from onelog.projections.codec import U8, U64
from onelog.projections.projection import DerivedKeys
from onelog.projections.state_hash import HASH_MODULUS, item_hash
from onelog.projections.timeseries.columns import COLUMN_SIZE, Column, DeletedRange, Rows
from onelog.projections.timeseries.entities import (
    Field,
    Measurement,
    Room,
    Series,
    bounds_item,
    measurement_item,
    series_item,
)
from onelog.projections.timeseries.hashing import hash_rows
from onelog.projections.timeseries.limits import BUFFER_POINTS
from onelog.projections.timeseries.names import Tags
from onelog.projections.timeseries.pins import Pins
from onelog.projections.timeseries.types import TYPE_NAMES, Config
from onelog.projections.undo import UndoLog

META_PREFIX = b"_ts:meta:"
SERIES_SIZE = 480  # bytes of a series besides its name and columns: objects and table slots
BLOCK_SIZE = 32 + 9  # bytes of a block: its row, its place among the pins
MEASUREMENT_SIZE = 1_100  # bytes of a measurement with a name of usual length: object and tables
FIELD_SIZE = 180  # of a field likewise: name, tuple, its places in two tables
RULE_SIZE = 710  # of a rule with its progress likewise


_ITEM_NEXT_ID = 0x11


class Store:
    """All rooms, and what follows from them."""

    __slots__ = (
        "block_count", "buffer_size", "by_id", "column_count", "full", "hash_total", "keys",
        "name_size", "next_series_id", "pins", "point_count", "rooms", "timed", "undo",
    )  # fmt: skip

    def __init__(self, keys: DerivedKeys) -> None:
        self.keys = keys
        self.undo = UndoLog()
        self.rooms: dict[str, Room] = {}
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
        """Begin a batch: from now on everything can be taken back."""
        self.undo.begin()
        self.undo.note(partial(self.restore, self.scalars()))

    def add_hash(self, change: int) -> None:
        """Add an item, or subtract one."""
        self.hash_total = (self.hash_total + change) % HASH_MODULUS

    def set_next_series_id(self, series_id: int) -> None:
        """Say which id the next series gets."""
        self.add_hash(next_id_item(series_id) - next_id_item(self.next_series_id))
        self.next_series_id = series_id

    # Rooms ---------------------------------------------------------------------------------------

    def close_room(self, namespace: str) -> None:
        """Let go of everything in a namespace; its keys go with it."""
        room = self.rooms.pop(namespace)
        for measurement in list(room.measurements.values()):
            gone = list(measurement.series.values())
            self.remove_series(measurement, gone, None)
            self.add_hash(-measurement.digest - measurement.bounds_digest)
            self._forget_measurement(measurement)

    # Measurements --------------------------------------------------------------------------------

    def create_measurement(self, room: Room, name: str, config: Config, index: int) -> Measurement:
        """Create a measurement whose name is free."""
        assert name not in room.measurements, f"{name!r} exists"
        measurement = Measurement(room, name, index, self.undo)
        measurement.config = config
        self.insert_measurement(measurement)
        self.undo.note(partial(self._forget_measurement, measurement))
        self.publish_measurement(measurement, index)
        return measurement

    def insert_measurement(self, measurement: Measurement) -> None:
        """Put a measurement into all tables; also for loading."""
        measurement.room.measurements[measurement.name] = measurement
        measurement.digest = measurement_item(measurement)
        measurement.bounds_digest = bounds_item(measurement)
        self.add_hash(measurement.digest + measurement.bounds_digest)
        self.refresh_timed(measurement)

    def refresh_timed(self, measurement: Measurement) -> None:
        """Note whether time makes work for a measurement."""
        key = measurement.room.namespace, measurement.name
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
        del measurement.room.measurements[measurement.name]
        self.timed.pop((measurement.room.namespace, measurement.name), None)

    def _remember_measurement(self, measurement: Measurement) -> None:
        measurement.room.measurements[measurement.name] = measurement
        self.refresh_timed(measurement)

    def add_fields(self, measurement: Measurement, new: Iterable[Field]) -> None:
        """Add fields; their ids are their places."""
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
        self.keys.delete_derived(measurement.room.namespace, key, index)

    # Series and columns --------------------------------------------------------------------------

    def add_series(self, measurement: Measurement, name: bytes, tags: Tags, index: int) -> Series:
        """Add a series; its fields are published by ``publish_series`` when they are there."""
        series_id = self.next_series_id
        self.set_next_series_id(series_id + 1)
        series = Series(measurement, name, series_id, index)
        self.insert_series(series, tags)
        self.undo.note(partial(self._forget_series, series))
        return series

    def insert_series(self, series: Series, tags: Tags) -> None:
        """Put a series into all tables; also for loading."""
        measurement = series.measurement
        measurement.room.series[series.name] = series
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
        self.add_hash(items_hash(column.items()))
        self.undo.note(partial(self._forget_column, series, column))
        return column

    def insert_column(self, series: Series, column: Column) -> None:
        """Put a column into its series and count it; also for loading."""
        series.columns[column.field_id] = column
        self.column_count += 1
        self.point_count += len(column)
        self.buffer_size += len(column.times) + len(column.values)
        self.refresh_full(column)

    def remove_series(
        self, measurement: Measurement, gone: Sequence[Series], index: int | None
    ) -> None:
        """Remove series with all that they hold; without an index their keys stay."""
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
                self.keys.delete_derived(measurement.room.namespace, key, index)

    def _let_go(self, column: Column) -> None:
        if column.blocks:
            rows = column.rows()
            self.pins.remove(rows[:, 0].tolist())
            self.block_count -= len(rows)

    def _forget_series(self, series: Series) -> None:
        measurement = series.measurement
        del measurement.room.series[series.name]
        del measurement.series[series.series_id]
        del self.by_id[series.series_id]
        for column in series.columns.values():
            self.full.pop(column.key, None)

    def _remember_series(self, series: Series) -> None:
        measurement = series.measurement
        measurement.room.series[series.name] = series
        # Ids stay in order: it is that of the index, to which others were put back as well.
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
        base: int | None = None,
        rows: Rows | None = None,
        deleted: tuple[DeletedRange, ...] | None = None,
    ) -> None:
        """Replace parts of a column by others; the old ones are left as they are."""
        before = (column.times, column.values, column.base, column.blocks, column.deleted)
        if self.undo.active:
            self.undo.note(partial(self._restore_column, column, before))
        self.add_hash(-column_hash(column))
        self.point_count -= len(column)
        self.buffer_size -= len(column.times) + len(column.values)
        if buffer is not None:
            column.times, column.values = buffer
        if base is not None:
            column.base = base
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
        """Swap the first ``taken`` points of a buffer for a block."""
        blocks = array("q") if column.blocks is None else column.blocks
        if self.undo.active:
            before = (column.times, column.values, column.base, column.blocks, column.deleted)
            self.undo.note(partial(self._restore_column, column, before))
            blocks = blocks[:]
        change = -column.prefix_hash(taken) - item_hash(column.items()[0], 0)
        value_size = len(column.values) // len(column)
        column.times = column.times[8 * taken :]
        column.values = column.values[value_size * taken :]
        column.base += taken
        blocks.extend(row)
        column.blocks = blocks
        change += item_hash(column.items()[0], 0)
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
        """Take back points that were appended to a buffer."""
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
        self._publish(measurement.room, measurement.name.encode(), document, index)

    def publish_series(self, series: Series, index: int) -> None:
        """Write the key that describes a series: its id and its fields with their types."""
        fields = series.measurement.fields
        document = {
            "id": series.series_id,
            "created": series.created_index,
            "fields": {
                fields[field_id].name: TYPE_NAMES[fields[field_id].field_type]
                for field_id in sorted(series.columns)
            },
        }
        self._publish(series.measurement.room, series.name, document, index)

    def _publish(self, room: Room, name: bytes, document: dict[str, Any], index: int) -> None:
        value = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
        self.keys.put_derived(room.namespace, META_PREFIX + name, value, index)

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind."""
        measurements = [m for room in self.rooms.values() for m in room.measurements.values()]
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


def items_hash(items: Iterable[bytes]) -> int:
    """Return the sum of the hashes of some canonical bytes."""
    return sum(item_hash(item, 0) for item in items)


def column_hash(column: Column) -> int:
    """Return the sum of all items of a column."""
    return items_hash(column.items()) + column.points_hash() + column.rows_hash()


def next_id_item(next_series_id: int) -> int:
    """Return the hash of the counter of series."""
    return item_hash(U8.pack(_ITEM_NEXT_ID) + U64.pack(next_series_id), 0)
