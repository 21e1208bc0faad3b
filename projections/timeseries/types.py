"""Types of fields, policies, settings and downsampling rules, shared by all time series modules.

``Rule`` says which aggregates of a measurement's points to write, ``Progress`` how far that has
come: every window before ``done_ns`` is written. A rule progresses by slices: an entry opens one
(``slice_index``) up to ``slice_to_ns``, and only then its points are read. So a leader reads every
point of the entries before it, and every later point before ``slice_to_ns`` is noticed: the
earliest of them is ``late_ns``, and the rule returns there when the slice is written. A slice over
many columns takes several entries; ``cursor`` is the last column that was covered. Without an open
slice a late point resets the rule at once.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from onelog.projections.limits import TTL_NS_MAX, OutOfBounds, find_out_of_bounds
from onelog.projections.timeseries.limits import (
    SERIES_DEFAULT,
    SERIES_MAX,
    TIME_NS_MAX,
    TIME_NS_MIN,
)

Value = float | int | bool
"""The value of a point. Test for ``bool`` before ``int``, of which it is a subclass."""

_F64 = struct.Struct("<d")
_I64 = struct.Struct("<q")
_BITS = struct.Struct("<Q")
CONFIG = struct.Struct("<BQI")  # policy, retention_ns, series_max


class FieldType(IntEnum):
    """The type of a field's values; fixed by its first write."""

    F64 = 1
    I64 = 2
    BOOL = 3


VALUE_SIZES = {FieldType.F64: 8, FieldType.I64: 8, FieldType.BOOL: 1}
TYPE_NAMES = {FieldType.F64: "f64", FieldType.I64: "i64", FieldType.BOOL: "bool"}
EXPONENT_BITS = 0x7FF0_0000_0000_0000  # all set: not a number, or infinite


class Policy(IntEnum):
    """Which of two points of the same column and time counts."""

    LAST = 1  # the one that was written last
    FIRST = 2  # the one that was written first
    REJECT = 3  # no such points: a column accepts only times above all that it has


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a measurement."""

    policy: Policy = Policy.LAST
    retention_ns: int = 0  # points older than this may be dropped; 0: kept
    series_max: int = SERIES_DEFAULT

    def invalid(self) -> OutOfBounds | None:
        """Return the first setting that is outside its bounds, None if all are inside."""
        return find_out_of_bounds((
            ("retention_ns", self.retention_ns, 0, TTL_NS_MAX),
            ("series_max", self.series_max, 1, SERIES_MAX),
        ))  # fmt: skip

    def encode(self) -> bytes:
        """Return the bytes of docs/timeseries.md."""
        return CONFIG.pack(self.policy, self.retention_ns, self.series_max)


def to_field_type(value: Value) -> FieldType:
    """Return the type of field that takes ``value``."""
    if isinstance(value, bool):
        return FieldType.BOOL
    return FieldType.I64 if isinstance(value, int) else FieldType.F64


def value_bits(value: Value) -> int:
    """Return the 64-bit pattern of a value."""
    if isinstance(value, bool):
        return int(value)
    raw = _I64.pack(value) if isinstance(value, int) else _F64.pack(value)
    bits: int = _BITS.unpack(raw)[0]
    return bits


def bits_to_value(field_type: FieldType, bits: int) -> Value:
    """Return the value that a 64-bit pattern stands for."""
    if field_type is FieldType.BOOL:
        return bool(bits)
    layout = _F64 if field_type is FieldType.F64 else _I64
    value: Value = layout.unpack(_BITS.pack(bits))[0]
    return value


# Rules

_PROGRESS = struct.Struct("<QQqQqQHqQB")

ColumnKey = tuple[int, int]
"""A column, by the ids of its series and its field; columns are ordered by this pair."""

START: ColumnKey = (0, 0)  # before all columns: no series has the id 0
NOT_LATE = TIME_NS_MAX + 1


class Aggregate(IntEnum):
    """The aggregates of a rule. The numbers are in logs."""

    MEAN = 1
    SUM = 2
    COUNT = 3
    MIN = 4
    MAX = 5
    FIRST = 6
    LAST = 7
    STDDEV = 8


@dataclass(frozen=True, slots=True)
class Rule:
    """Write aggregates of each field per window into ``target``, as ``<field>_<aggregate>``."""

    name: str
    target: str
    window_ns: int
    delay_ns: int  # how long after its end a window waits for late points
    aggregates: tuple[Aggregate, ...]  # ascending


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rule has come."""

    index: int  # of the entry that set the rule
    moved_ns: int  # timestamp of the last entry that set the rule or advanced it
    done_ns: int = TIME_NS_MIN
    slice_index: int = 0  # of the entry that opened the slice under way; 0: there is none
    slice_to_ns: int = TIME_NS_MIN
    cursor: ColumnKey = START
    late_ns: int = NOT_LATE  # the earliest point that came for the slice since it was opened
    refused_count: int = 0  # rollups that the target refused
    refused_reason: int = 0  # of the last of them

    def encode(self) -> bytes:
        """Return the bytes of docs/timeseries.md."""
        return _PROGRESS.pack(
            self.index,
            self.moved_ns,
            self.done_ns,
            self.slice_index,
            self.slice_to_ns,
            *self.cursor,
            self.late_ns,
            self.refused_count,
            self.refused_reason,
        )

    def check(self) -> None:
        """Assert that the parts agree."""
        if self.slice_index:
            assert self.slice_to_ns > self.done_ns, self
            assert self.late_ns < self.slice_to_ns or self.late_ns == NOT_LATE, self
        else:
            closed = (self.slice_to_ns, self.cursor, self.late_ns)
            assert closed == (TIME_NS_MIN, START, NOT_LATE), self


PROGRESS_SIZE = _PROGRESS.size


def decode_progress(raw: bytes) -> Progress:
    """Read what ``Progress.encode`` returned."""
    index, moved_ns, done_ns, slice_index, slice_to_ns, series_id, field_id, *rest = (
        _PROGRESS.unpack(raw)
    )
    cursor = (series_id, field_id)
    return Progress(index, moved_ns, done_ns, slice_index, slice_to_ns, cursor, *rest)


def window_start(time_ns: int, window_ns: int) -> int:
    """Return the start of the window of a time, not before TIME_NS_MIN."""
    return max(TIME_NS_MIN, time_ns // window_ns * window_ns)


def window_after(time_ns: int, window_ns: int) -> int:
    """Return the start of the first window that begins at or after ``time_ns``."""
    return min(TIME_NS_MAX, -(-time_ns // window_ns) * window_ns)
