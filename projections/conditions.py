"""Conditions on keys: what must hold for a transaction or a batch to take effect.

| size | type | field | meaning |
|---|---|---|---|
| 1 | u8 | target | exists, missing, version, value |
| 1 | u8 | comparison | 0 for exists and missing |
| 2+n | bytes16 | key | |
| 8 or 4+n | u64 or bytes32 | operand | for version and value |

A missing key has version 0. Values compare as bytes, and no comparison with the value of a
missing key holds, not even ``!=``: "missing or different" needs two conditions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from onelog.projections.codec import U8, U16, U32, U64, Reader, encode_sized
from onelog.projections.errors import BadPayload
from onelog.projections.limits import CONDITIONS_MAX, KEY_SIZE_MAX
from onelog.projections.reasons import Reason


class Target(IntEnum):
    """Which property of a key is compared."""

    EXISTS = 1
    MISSING = 2
    VERSION = 3
    VALUE = 4


class Comparison(IntEnum):
    """How the property must relate to the operand."""

    NONE = 0
    EQUAL = 1
    NOT_EQUAL = 2
    LESS = 3
    LESS_OR_EQUAL = 4
    GREATER = 5
    GREATER_OR_EQUAL = 6


COMPARE: dict[Comparison, Callable[[Any, Any], bool]] = {
    Comparison.EQUAL: eq,
    Comparison.NOT_EQUAL: ne,
    Comparison.LESS: lt,
    Comparison.LESS_OR_EQUAL: le,
    Comparison.GREATER: gt,
    Comparison.GREATER_OR_EQUAL: ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; ``version`` or ``value`` is the operand for the target of the same name."""

    key: bytes
    target: Target
    comparison: Comparison = Comparison.NONE
    version: int = 0
    value: bytes = b""


def read_key(reader: Reader) -> bytes:
    """Read a key that is preceded by its size."""
    return check_key(reader.sized(U16))


def check_key(key: bytes) -> bytes:
    """Return ``key`` if its size is allowed."""
    if not 1 <= len(key) <= KEY_SIZE_MAX:
        raise BadPayload(Reason.KEY_SIZE_INVALID, len(key))
    return key


def read_conditions(reader: Reader) -> tuple[Condition, ...]:
    """Read a counted list of conditions."""
    return tuple(_read_condition(reader) for _ in range(reader.count(CONDITIONS_MAX)))


def encode_conditions(conditions: Sequence[Condition]) -> bytes:
    """Return the bytes of a counted list of conditions."""
    parts = [U16.pack(len(conditions))]
    for condition in conditions:
        parts.append(bytes((condition.target, condition.comparison)))
        parts.append(encode_sized(U16, condition.key))
        if condition.target is Target.VERSION:
            parts.append(U64.pack(condition.version))
        elif condition.target is Target.VALUE:
            parts.append(encode_sized(U32, condition.value))
    return b"".join(parts)


def _read_condition(reader: Reader) -> Condition:
    target_code, comparison_code = reader.number(U8), reader.number(U8)
    if not Target.EXISTS <= target_code <= Target.VALUE:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, target_code)
    if comparison_code > Comparison.GREATER_OR_EQUAL:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, comparison_code)
    target, comparison = Target(target_code), Comparison(comparison_code)
    compares = target in (Target.VERSION, Target.VALUE)
    if compares != (comparison is not Comparison.NONE):
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, comparison_code)
    key = read_key(reader)
    if target is Target.VERSION:
        return Condition(key, target, comparison, version=reader.number(U64))
    if target is Target.VALUE:
        return Condition(key, target, comparison, value=reader.sized(U32))
    return Condition(key, target)
