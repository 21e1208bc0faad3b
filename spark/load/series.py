"""Rows as points of time series: a time, columns that are tags, columns that are fields.

A row with a null tag belongs to a series without that tag; a null field means no value. The points
of a chunk are one operation, which takes effect completely or not at all.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onelog.client.timeseries import to_points
from onelog.errors import InvalidArgument
from onelog.spark.load.columns import Column, Kind, check
from onelog.spark.load.targets import CHUNK_ROWS_MAX, NAME_SIZE_MAX, Target

TIME_NS_MIN = -(2**62)
TIME_NS_MAX = 2**62 - 1
TAG_VALUE_SIZE_MAX = 256
TAGS_MAX = 32
FIELDS_MAX = 1_000
# Values that one operation may have even if each row is a series of its own.
_VALUES_MAX = 20_000


class Series(Target):
    """Points of one measurement."""

    to = "series"
    is_by_row = False

    def __init__(
        self,
        namespace: str,
        measurement: str,
        *,
        time: str = "time",
        tags: Sequence[str] = (),
        fields: Sequence[str] = (),
    ) -> None:
        """Name the columns; without ``fields``, all other columns are fields."""
        super().__init__(namespace, measurement)
        self._time = time
        self._tags = tuple(tags)
        self._fields = tuple(fields)
        self.columns = {
            time: Column(Kind.TIME, is_required=True),
            **{tag: Column(Kind.TEXT) for tag in tags},
            **{field: Column(Kind.FIELD) for field in fields},
        }
        names = (time, *tags, *fields)
        if len(set(names)) < len(names):
            raise InvalidArgument("time, tags and fields must differ", reason="COLUMN_TWICE")
        if not measurement or max(len(each.encode()) for each in (measurement, *names)) > (
            NAME_SIZE_MAX
        ):
            raise InvalidArgument(
                f"measurement, tags and fields have 1 to {NAME_SIZE_MAX} bytes",
                reason="SERIES_NAME_INVALID",
            )
        if len(tags) > TAGS_MAX:
            raise InvalidArgument(f"at most {TAGS_MAX} tags", reason="SERIES_NAME_INVALID")

    @property
    def description(self) -> str:
        """See ``Target``."""
        return f"{super().description}, time {self._time!r}, tags {self._tags!r}"

    def check_schema(self, schema: pa.Schema) -> None:
        """See ``Target``; columns that are neither time nor tag are fields, at least one."""
        if not self._fields:
            others = [name for name in schema.names if name not in (self._time, *self._tags)]
            self.columns = {
                **{name: self.columns[name] for name in (self._time, *self._tags)},
                **{name: Column(Kind.FIELD) for name in others},
            }
        super().check_schema(schema)
        missing = [tag for tag in self._tags if tag not in schema.names]
        if missing:
            raise InvalidArgument(
                f"the column {missing[0]!r} is missing",
                reason="COLUMN_MISSING",
                metadata={"column": missing[0]},
            )
        count = len(self._field_names(schema))
        if not 0 < count <= FIELDS_MAX:
            raise InvalidArgument(
                f"points have 1 to {FIELDS_MAX} fields, not {count}", reason="COLUMN_MISSING"
            )
        self.chunk_rows_max = max(1, min(CHUNK_ROWS_MAX, _VALUES_MAX // count))

    def _field_names(self, schema: pa.Schema) -> list[str]:
        return [name for name in schema.names if name not in (self._time, *self._tags)]

    def check_rows(self, rows: pa.RecordBatch, first_row: int) -> None:
        """See ``Target``."""
        times = rows.column(self._time)
        beyond = pc.or_(pc.less(times, TIME_NS_MIN), pc.greater(times, TIME_NS_MAX))
        check(beyond, first_row, self._time, "is no time of 1823 to 2116", "POINT_TIME_INVALID")
        for tag in self._tags:
            sizes = pc.binary_length(rows.column(tag))
            wrong = pc.or_(pc.less(sizes, 1), pc.greater(sizes, TAG_VALUE_SIZE_MAX))
            text = f"has not 1 to {TAG_VALUE_SIZE_MAX} bytes"
            check(wrong, first_row, tag, text, "SERIES_NAME_INVALID")
        has_value = np.zeros(rows.num_rows, bool)
        for name in self._field_names(rows.schema):
            column = rows.column(name)
            has_value |= column.is_valid().to_numpy(zero_copy_only=False)
            if pa.types.is_floating(column.type):
                check(pc.invert(pc.is_finite(column)), first_row, name,
                      "is no finite number", "VALUE_NOT_FINITE")  # fmt: skip
        check(~has_value, first_row, "every field", "is null", "COLUMN_NULL")

    def fill(self, operations: Any, rows: pa.RecordBatch) -> None:
        """See ``Target``."""
        request = operations.add().write_points
        request.measurement = self.name
        fields = {name: rows.column(name) for name in self._field_names(rows.schema)}
        times = rows.column(self._time).to_numpy()
        valid = np.column_stack(
            [each.is_valid().to_numpy(zero_copy_only=False) for each in fields.values()]
        )
        values = {name: _to_numpy(each) for name, each in fields.items()}
        for tags, at in self._groups(rows, valid):
            there = valid[at[0]]
            columns = {
                name: values[name][at]
                for name, is_there in zip(values, there, strict=True)
                if is_there
            }
            # As datetime64, so that a time of 1970 is not mistaken for seconds.
            points = to_points(times[at].view("datetime64[ns]"), columns, tags)
            points.fill(request.series.add())

    def _groups(
        self, rows: pa.RecordBatch, valid: NDArray[np.bool_]
    ) -> list[tuple[dict[str, str], NDArray[np.int64]]]:
        """Group the rows by series and by the fields that they have."""
        tags = [rows.column(tag).to_pylist() for tag in self._tags]
        masks = [each.tobytes() for each in valid]
        found: dict[tuple[Any, ...], list[int]] = {}
        for row, key in enumerate(zip(masks, *tags, strict=True)):
            found.setdefault(key, []).append(row)
        return [
            (
                {
                    name: value.decode()
                    for name, value in zip(self._tags, key[1:], strict=True)
                    if value is not None
                },
                np.array(at, np.int64),
            )
            for key, at in found.items()
        ]


def _to_numpy(column: pa.Array) -> NDArray[Any]:
    zero = pa.scalar(0).cast(column.type)
    array: NDArray[Any] = pc.fill_null(column, zero).to_numpy(zero_copy_only=False)
    return array
