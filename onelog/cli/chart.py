"""A series as one line of a terminal."""

from collections.abc import Sequence
from itertools import pairwise

WIDTH = 60
_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Return bars for values; where there are more than fit, the mean of each stretch.

    Values that are no numbers leave a space.
    """
    scale = max((abs(each) for each in values if each - each == 0), default=0.0) or 1.0
    # Within -1 and 1 nothing that is calculated below can overflow.
    numbers = [_mean([each / scale for each in part]) for part in _stretches(values, width)]
    finite = [each for each in numbers if each is not None]
    if not finite:
        return " " * len(numbers)
    low, high = min(finite), max(finite)
    step = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join(" " if each is None else _BARS[round((each - low) / step)] for each in numbers)


def _stretches(values: Sequence[float], width: int) -> list[Sequence[float]]:
    count = min(len(values), width)
    bounds = [at * len(values) // count for at in range(count + 1)] if count else [0]
    return [values[first:last] for first, last in pairwise(bounds)]


def _mean(values: Sequence[float]) -> float | None:
    finite = [each for each in values if each - each == 0]
    return sum(finite) / len(finite) if finite else None
