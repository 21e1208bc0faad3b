"""What the time series state is made of: rooms, measurements, series, fields.

Plain holders: everything that must keep in step with them is the business of ``Store``
(store.py), through which all changes go. Here are their canonical bytes and items of the hash.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from onelog.projections.codec import U8, U16, U64
from onelog.projections.state_hash import item_hash
from onelog.projections.timeseries.columns import Column
from onelog.projections.timeseries.commands import encode_rule
from onelog.projections.timeseries.limits import TIME_NS_MAX, TIME_NS_MIN
from onelog.projections.timeseries.names import Tags, encode_name, parse_series
from onelog.projections.timeseries.rules import Progress, Rule
from onelog.projections.timeseries.tag_index import TagIndex
from onelog.projections.timeseries.types import Config, FieldType
from onelog.projections.undo import UndoLog

BOUNDS = struct.Struct("<qqQq")  # oldest, newest, sweep after, oldest of the sweep
_HEAD = struct.Struct("<QQq")  # created, config index, trimmed
_ITEM_MEASUREMENT = 0x12
_ITEM_SERIES = 0x13


class Field(NamedTuple):
    """A field of a measurement; its id is its place there."""

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
        "fields", "index", "name", "newest_ns", "oldest_ns", "room", "rules", "seed", "series",
        "sweep_after", "sweep_oldest_ns", "trimmed_ns",
    )  # fmt: skip

    def __init__(self, room: "Room", name: str, created_index: int, undo: UndoLog) -> None:
        self.room = room
        self.name = name
        self.created_index = created_index
        self.config = Config()
        self.config_index = created_index
        self.trimmed_ns = TIME_NS_MIN  # points before it do not exist any more
        # Bounds of what there is: they tell a leader when there is something to do.
        self.oldest_ns = TIME_NS_MAX + 1
        self.newest_ns = TIME_NS_MIN - 1
        self.sweep_after = 0  # a trim has looked at series up to this id and goes on behind it
        self.sweep_oldest_ns = TIME_NS_MAX + 1
        self.fields: tuple[Field, ...] = ()
        self.field_ids: dict[str, int] = {}
        self.rules: dict[str, tuple[Rule, Progress]] = {}
        self.series: dict[int, Series] = {}
        self.index = TagIndex(undo)
        self.seed = item_hash(room.raw_namespace + encode_name(name), created_index)
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
        """Return what changes with every new point: apart, because that must be cheap."""
        return BOUNDS.pack(self.oldest_ns, self.newest_ns, self.sweep_after, self.sweep_oldest_ns)


class Room:
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
    """Return the hash of a measurement, its series apart."""
    head = U8.pack(_ITEM_MEASUREMENT) + measurement.room.raw_namespace
    return item_hash(head + measurement.head(), 0)


def bounds_item(measurement: Measurement) -> int:
    """Return the hash of a measurement's bounds."""
    return item_hash(measurement.bounds(), measurement.seed)


def series_item(series: Series) -> int:
    """Return the hash of a series, its columns apart."""
    head = U8.pack(_ITEM_SERIES) + series.measurement.room.raw_namespace
    numbers = U64.pack(series.series_id) + U64.pack(series.created_index)
    return item_hash(head + numbers + series.name, 0)
