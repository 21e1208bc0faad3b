"""Downsampling rules: what to make of the points of a measurement, and how far that has come.

A rule's progress says that every window before ``done_ns`` is written. A run over many series is
cut into entries: while one is under way, ``slice_to_ns`` is where it will end and ``cursor`` the
last series that was covered. A point that arrives late takes the rule back to its window.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from projections.ts_limits import TIME_NS_MAX, TIME_NS_MIN

PROGRESS = struct.Struct("<QqqQQB")


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
    done_ns: int = TIME_NS_MIN
    slice_to_ns: int = TIME_NS_MIN
    cursor: int = 0
    refused_count: int = 0  # rollups that the target did not take
    refused_reason: int = 0  # of the last of them

    def encode(self) -> bytes:
        """Return the bytes of docs/timeseries.md."""
        return PROGRESS.pack(
            self.index,
            self.done_ns,
            self.slice_to_ns,
            self.cursor,
            self.refused_count,
            self.refused_reason,
        )


def window_start(time_ns: int, window_ns: int) -> int:
    """Return where the window of a time starts, inside of the time that there is."""
    return max(TIME_NS_MIN, time_ns // window_ns * window_ns)


def window_after(time_ns: int, window_ns: int) -> int:
    """Return where the first window starts that has no point before ``time_ns``."""
    return min(TIME_NS_MAX, -(-time_ns // window_ns) * window_ns)
