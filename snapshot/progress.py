"""Progress reports of long steps: the phase, how much is done, and the total.

A callback may raise to stop the step: no file is left, and the error passes through. It is called
often enough for a progress bar and seldom enough to cost nothing.
"""

from collections.abc import Callable
from enum import Enum


class Phase(Enum):
    """A part of loading, replaying or building."""

    VERIFY = "verify"  # bytes of a snapshot whose checksums were compared
    LOAD = "load"  # bytes of a snapshot that were taken into the state
    REPLAY = "replay"  # entries
    WRITE = "write"  # bytes of a new snapshot; how many there will be is not known (total 0)


Progress = Callable[[Phase, int, int], None]


def no_progress(_phase: Phase, _done: int, _total: int) -> None:
    """Ignore the report."""
