"""Types of fields, policies, settings: the small values that all time series files share."""

import struct
from dataclasses import dataclass
from enum import IntEnum

from onelog.projections.limits import TTL_NS_MAX
from onelog.projections.timeseries.limits import SERIES_DEFAULT, SERIES_MAX

Value = float | int | bool
"""What a point holds. ``bool`` before ``int`` before ``float`` when telling them apart."""

_F64 = struct.Struct("<d")
_I64 = struct.Struct("<q")
_BITS = struct.Struct("<Q")
CONFIG = struct.Struct("<BQI")  # policy, retention_ns, series_max


class FieldType(IntEnum):
    """What the values of a field are; fixed by its first write."""

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
    REJECT = 3  # neither can be: a column takes only times above all that it has


@dataclass(frozen=True, slots=True)
class Config:
    """What a measurement was told."""

    policy: Policy = Policy.LAST
    retention_ns: int = 0  # points older than this may be dropped; 0: kept
    series_max: int = SERIES_DEFAULT

    def invalid(self) -> int | None:
        """Return the first setting that is outside its bounds, None if all are inside."""
        if self.retention_ns > TTL_NS_MAX:
            return self.retention_ns
        if not 1 <= self.series_max <= SERIES_MAX:
            return self.series_max
        return None

    def encode(self) -> bytes:
        """Return the bytes of docs/timeseries.md."""
        return CONFIG.pack(self.policy, self.retention_ns, self.series_max)


def type_of(value: Value) -> FieldType:
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


def value_of(field_type: FieldType, bits: int) -> Value:
    """Return the value that a 64-bit pattern stands for."""
    if field_type is FieldType.BOOL:
        return bool(bits)
    layout = _F64 if field_type is FieldType.F64 else _I64
    value: Value = layout.unpack(_BITS.pack(bits))[0]
    return value
