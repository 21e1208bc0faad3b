"""Downsampling rules: what to make of the points of a measurement, and how far that has come.

A rule's progress says that every window before ``done_ns`` is written. It goes on by slices: an
entry opens one (``slice_index``) up to ``slice_to_ns``, and only then its points are read. So what
a leader reads has every point of the entries before, and each point that comes later for a time
before ``slice_to_ns`` is seen coming: the earliest of them is ``late_ns``, and the rule goes back
there when the slice is written. A slice over many columns is cut into entries; ``cursor`` is the
last column that was covered. Without an open slice a late point takes the rule back at once.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from onelog.projections.timeseries.limits import TIME_NS_MAX, TIME_NS_MIN

_PROGRESS = struct.Struct("<QQqQqQHqQB")

Place = tuple[int, int]
"""A column by the ids of its series and its field: columns have an order, that of these."""

START: Place = (0, 0)  # before all columns: no series has the id 0
NOT_LATE = TIME_NS_MAX + 1


class Aggregate(IntEnum):
    """What a rule can make of a window. The numbers are in logs."""

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
    moved_ns: int  # timestamp of the last entry that set it or brought it on
    done_ns: int = TIME_NS_MIN
    slice_index: int = 0  # of the entry that opened the slice under way; 0: there is none
    slice_to_ns: int = TIME_NS_MIN
    cursor: Place = START
    late_ns: int = NOT_LATE  # the earliest point that came for the slice since it was opened
    refused_count: int = 0  # rollups that the target did not take
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
    """Return where the window of a time starts, inside of the time that there is."""
    return max(TIME_NS_MIN, time_ns // window_ns * window_ns)


def window_after(time_ns: int, window_ns: int) -> int:
    """Return where the first window starts that has no point before ``time_ns``."""
    return min(TIME_NS_MAX, -(-time_ns // window_ns) * window_ns)
