"""Times and values of points as arrays of the types that are stored: int64, float64, bool.

Nothing is changed on the way: a value that its stored type does not hold exactly is refused, with
its position. numpy itself would wrap it around, round it, or forget that it is masked.

numpy is imported with the first points: the import takes a quarter of a second of CPU, which
programs and commands without points should not pay.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from onelog.client.times import I64_MAX, may_be_mistaken, refuse_mistaken, to_nanoseconds
from onelog.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"
ArrayLike: TypeAlias = "npt.ArrayLike"

# The times that series have: half of what 64 bits hold.
TIME_NS_MIN, TIME_NS_MAX = -(2**62), 2**62 - 1

_SHOWN_MAX = 60  # characters of a value in a message


def to_times(times: Any, name: str = "times_ns") -> "npt.NDArray[np.int64]":
    """Return times as int64 nanoseconds: of any kind of time, or of a single one.

    Raises InvalidArgument (TIME_INVALID) for a time that is none, or out of range.
    """
    import numpy as np

    array = _to_array(times, name, "TIME_INVALID")
    if array.ndim != 1:
        raise _wrong(f"{name} has {array.ndim} dimensions; it must have one", "TIME_INVALID")
    if array.dtype.kind == "M":
        return _to_nanoseconds(array, name)
    if not len(array):
        return array.astype("<i8")  # an empty list has no type of its own
    if array.dtype.kind == "T":
        array = array.astype(object)
    is_clear = array.dtype.kind == "U" or (
        array.dtype.kind == "O" and all(isinstance(each, datetime | str) for each in array)
    )
    if is_clear:
        found = [to_nanoseconds(each, f"{name}[{at}]") for at, each in enumerate(array.tolist())]
        array = np.array(found, dtype=object)
    elif array.dtype.kind not in "iu":
        what = "integers, datetime64, datetimes with a zone or texts like now-1h"
        raise _make_type_error(name, array, "iu", what, "TIME_INVALID")
    first, last = int(array.min()), int(array.max())
    if not TIME_NS_MIN <= first <= last <= TIME_NS_MAX:
        outside = (array < TIME_NS_MIN) | (array > TIME_NS_MAX)
        what = f"{name}: {{}} ns at position {{}} is outside 1823 to 2116"
        _refuse(outside, array, what, "TIME_INVALID")
    if not is_clear:
        refuse_mistaken(first, last, name)
    return array.astype("<i8", copy=False)


def are_plain_times(several: Sequence[Any]) -> bool:
    """Return whether ``to_times`` would return each of these as it is; checks all of them at once.

    For thousands of short arrays, of which each costs ``to_times`` some calls of numpy.
    """
    import numpy as np

    if not _are_plain(several, np.dtype(np.int64)):
        return False
    times = np.concatenate(several)
    sizes = np.array([len(each) for each in several])
    starts = np.cumsum(sizes) - sizes
    firsts, lasts = np.minimum.reduceat(times, starts), np.maximum.reduceat(times, starts)
    is_inside = int(firsts.min()) >= TIME_NS_MIN and int(lasts.max()) <= TIME_NS_MAX
    return is_inside and not may_be_mistaken(firsts, lasts)


def are_plain_columns(several: Sequence[Any]) -> bool:
    """Return whether ``to_column`` would return each of these as it is: all are finite floats."""
    import numpy as np

    plain = _are_plain(several, np.dtype(np.float64))
    return plain and bool(np.isfinite(np.concatenate(several)).all())


def _are_plain(several: Sequence[Any], dtype: "np.dtype[Any]") -> bool:
    """Return whether these are arrays of one dimension and this type, none of them empty."""
    import numpy as np

    return bool(several) and all(
        type(each) is np.ndarray and each.dtype == dtype and each.ndim == 1 and len(each)
        for each in several
    )


def _to_nanoseconds(array: Array, name: str) -> "npt.NDArray[np.int64]":
    import numpy as np

    _refuse(np.isnat(array), array, f"{name}: {{}} at position {{}} is no time", "TIME_INVALID")
    found = array.astype("datetime64[ns]")
    # What is too far away wraps around, and what is finer than a nanosecond is cut off.
    changed = found.astype(array.dtype) != array
    what = f"{name}: {{}} at position {{}} is not a number of nanoseconds in 1823 to 2116"
    _refuse(changed, array, what, "TIME_INVALID")
    plain = found.astype("<i8")
    _refuse((plain < TIME_NS_MIN) | (plain > TIME_NS_MAX), array, what, "TIME_INVALID")
    return plain


def to_column(values: Any, name: str) -> Array:
    """Return the values of a field as float64, int64 or bool; ``name`` is that of the field.

    Raises InvalidArgument: FIELDS_INVALID, or VALUE_NOT_FINITE for NaN and infinities.
    """
    import numpy as np

    column = _to_array(values, f"field {name}", "FIELDS_INVALID")
    kind = column.dtype.kind
    if kind == "b":
        return column
    begin = f"field {name}: {{}} at position {{}} is "
    if kind == "i":
        return column.astype("<i8", copy=False)
    if kind == "u":
        _refuse(column > I64_MAX, column, begin + "above 2**63 - 1", "FIELDS_INVALID")
        return column.astype("<i8")
    if kind != "f":
        what = "floats, integers of 64 bits or bools"
        raise _make_type_error(f"field {name}", column, "iufb", what, "FIELDS_INVALID")
    _refuse(~np.isfinite(column), column, begin + "not finite", "VALUE_NOT_FINITE")
    with np.errstate(over="ignore"):
        found = column.astype("<f8", copy=False)
    if column.dtype.itemsize > 8:
        _refuse(found != column, column, begin + "not a float64", "FIELDS_INVALID")
    elif isinstance(values, list | tuple):
        # numpy makes floats of a list with both, and rounds large integers.
        wrong = [isinstance(each, int) and float(each) != each for each in values]
        exact = np.array(values, dtype=object)
        _refuse(np.array(wrong), exact, begin + "not a float64", "FIELDS_INVALID")
    return found


def _to_array(values: Any, name: str, reason: str) -> Array:
    import numpy as np

    if isinstance(values, np.ma.MaskedArray):
        masked, values = np.ma.getmaskarray(values), values.data
        _refuse(masked, values, f"{name}: {{}} at position {{}} is masked", reason)
    try:
        return np.atleast_1d(np.asarray(values))
    except (TypeError, ValueError, OverflowError) as error:
        raise _wrong(f"{name} is no array: {error}", reason) from None


def _refuse(wrong: Any, values: Any, text: str, reason: str) -> None:
    """Raise InvalidArgument for the first value that is wrong; ``text`` names it and its place."""
    import numpy as np

    if np.any(wrong):
        at = int(np.argmax(np.atleast_1d(wrong)))
        raise _wrong(text.format(np.atleast_1d(values)[at], at), reason)


def _make_type_error(
    name: str, array: Array, kinds: str, expected: str, reason: str
) -> InvalidArgument:
    """Return the error for an array of a wrong type, with its first element that has one."""
    import numpy as np

    text = f"{name}: {expected}, not {array.dtype}"
    for at, each in enumerate(array.tolist()):
        if array.dtype.kind != "O" or np.asarray(each).dtype.kind not in kinds:
            shown = f"{each!r:.{_SHOWN_MAX}}"
            return _wrong(f"{text}: {shown} at position {at}", reason)
    return _wrong(text, reason)


def _wrong(what: str, reason: str) -> InvalidArgument:
    return InvalidArgument(what, reason=reason)
