"""Times and durations as people and programs write them.

A time is nanoseconds since 1970, a ``datetime`` with a zone, a ``numpy.datetime64`` (which is UTC),
or a text: RFC 3339, ``now``, ``now-1h``. A number that only makes sense as seconds, milliseconds or
microseconds of today is refused: as nanoseconds it would silently be in 1970.
"""

import math
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

from onelog.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Time: TypeAlias = int | str | datetime | np.datetime64
else:
    Time = Any

UNITS_NS = {
    "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9,
    "d": 86_400 * 10**9, "w": 604_800 * 10**9,
}  # fmt: skip
I64_MAX = (1 << 63) - 1
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h|d|w)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_RELATIVE = re.compile(r"now(?:([+-])(.+))?")
_DIGITS = re.compile(r"-?[0-9]{1,20}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# Between these numbers of a unit are the years 2001 to 2033; nanoseconds in between are the second
# after the first, the 17 minutes after the 17th, and the 11 days after the 12th of 1970.
_MISTAKEN = (
    (10**9, 2 * 10**9, "seconds", 10**9),
    (10**12, 2 * 10**12, "milliseconds", 10**6),
    (10**15, 2 * 10**15, "microseconds", 10**3),
)


def to_nanoseconds(value: Time, name: str) -> int:
    """Return a time in nanoseconds since 1970; ``name`` says which one in an error."""
    if isinstance(value, str):
        try:
            found = parse_time_ns(value)
        except InvalidArgument as error:
            raise InvalidArgument(f"{name}: {error.message}", reason=error.reason) from None
        return _checked(found, name)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise _invalid(f"{name} is {value.isoformat()} without a zone; add one, such as UTC")
        # A pandas.Timestamp is a datetime with nanoseconds.
        return (value - _EPOCH) // _MICROSECOND * 1000 + int(getattr(value, "nanosecond", 0))
    numpy = sys.modules.get("numpy")  # who has a datetime64 has imported it
    if numpy is not None and isinstance(value, numpy.datetime64):
        from onelog.client.arrays import to_times

        return int(to_times(value, name)[0])
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _invalid(
            f"{name} is {value!r} ({type(value).__name__}); it must be nanoseconds as an integer, "
            "a datetime, a numpy.datetime64 or a text like now-1h"
        )
    return _checked(int(value), name)


def _checked(found: int, name: str) -> int:
    if not -I64_MAX - 1 <= found <= I64_MAX:
        raise _invalid(f"{name} is {found} ns, which 64 bits do not hold")
    refuse_mistaken(found, found, name)
    return found


def refuse_mistaken(first: int, last: int, name: str) -> None:
    """Raise InvalidArgument if all times between these are seconds and the like by mistake."""
    if found := find_mistaken(first, last):
        unit, factor = found
        raise _invalid(
            f"{name} is {first}, which looks like {unit}; times are nanoseconds since 1970, "
            f"so multiply by {factor:,}, or pass a datetime. If 1970 is meant: "
            f"numpy.datetime64({first}, 'ns')"
        )


def find_mistaken(first: int, last: int) -> tuple[str, int] | None:
    """Return the unit that all times between these seem to have, and its nanoseconds."""
    for low, high, unit, factor in _MISTAKEN:
        if low < first and last < high:
            return unit, factor
    return None


def may_be_mistaken(firsts: "npt.NDArray[np.int64]", lasts: "npt.NDArray[np.int64]") -> bool:
    """Return whether ``find_mistaken`` finds a unit for any of these ranges."""
    return any(bool(((low < firsts) & (lasts < high)).any()) for low, high, _, _ in _MISTAKEN)


def parse_time_ns(text: str) -> int:
    """Parse a time: RFC 3339, ``now``, ``now-1h``, or nanoseconds since 1970."""
    if _DIGITS.fullmatch(text):
        return int(text)
    if relative := _RELATIVE.fullmatch(text):
        sign, distance = relative.groups()
        shift_ns = parse_duration_ns(distance) if distance else 0
        return time.time_ns() + (-shift_ns if sign == "-" else shift_ns)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _invalid(
            f"'{text}' is no time like 2026-11-16T12:00:00Z, now-1h, or nanoseconds"
        ) from None
    if moment.tzinfo is None:
        raise _invalid(f"'{text}' has no zone; {moment.isoformat()}Z is UTC")
    seconds = (moment.replace(microsecond=0) - _EPOCH) // timedelta(seconds=1)
    fraction = re.search(r"[.,](\d+)", text)
    return seconds * 10**9 + (int(fraction[1].ljust(9, "0")[:9]) if fraction else 0)


def parse_duration_ns(text: str) -> int:
    """Parse ``1h30m``, ``250ms``, …; return nanoseconds. A number without a unit is seconds."""
    if _SECONDS.fullmatch(text):
        text += "s"
    if not _DURATION.fullmatch(text):
        what = f"'{text}' is no duration like 30s, 5m, 100ms, 1h30m, or 30 for seconds"
        raise InvalidArgument(what, reason="DURATION_INVALID")
    found = sum(float(count) * UNITS_NS[unit] for count, unit in _PART.findall(text))
    if math.isinf(found):
        raise InvalidArgument(f"'{text}' is longer than any duration", reason="DURATION_INVALID")
    return round(found)


def _invalid(what: str) -> InvalidArgument:
    return InvalidArgument(what, reason="TIME_INVALID")
