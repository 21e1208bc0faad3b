"""Aggregates over windows of time, for many series at a time.

A series is sorted by time, so its windows are stretches of it: one pass finds where they start,
and numpy's ``reduceat`` folds each stretch. Series that stand one after the other in one array are
folded together: a stretch ends where the window or the series does. The results of several series
of a group are combined from those partial results (``combine``), all groups at once; only
percentiles read all points again.

What each function means, per window and group:

* count, sum, mean, min, max, stddev (of the population), percentile (linear between neighbours):
  over all points of all series of the group;
* first, last: the value of the earliest and the latest point; of several series with a point at
  that time the first in the order of names;
* delta: last minus first value of each series with two points or more, summed over the series;
* rate: increase per second of each such series, summed. The increase is the sum of the steps from
  point to point; a step down is a counter that restarted at zero, so its new value counts.

Everything is computed in f64, except that count is an i64 and min, max, first and last keep the
type of the field.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onelog.projections.timeseries.columns import START, Times, Values, find_starts

Floats = NDArray[np.float64]
_NS_PER_SECOND = 1e9


class Function(StrEnum):
    """The aggregates that a query can compute of a window."""

    MEAN = "mean"
    SUM = "sum"
    COUNT = "count"
    MIN = "min"
    MAX = "max"
    FIRST = "first"
    LAST = "last"
    STDDEV = "stddev"
    PERCENTILE = "percentile"
    RATE = "rate"
    DELTA = "delta"


class Partial(NamedTuple):
    """Results of series, or of groups of them: one element per window with points."""

    owners: NDArray[np.int64]  # the number of the series or group, ascending
    windows: NDArray[np.int64]  # numbers of the windows, ascending for each owner
    values: NDArray[Any]
    weights: NDArray[Any]  # counts; for first and last the time of the point
    spread: Floats | None = None  # stddev: sum of squared distances from the mean


@dataclass(frozen=True, slots=True)
class Windows:
    """How time is split: window n starts at ``offset_ns + n * size_ns``; size 0: one window."""

    size_ns: int
    offset_ns: int = 0

    def numbers(self, times: Times) -> NDArray[np.int64]:
        """Return the number of the window of each time."""
        if not self.size_ns:
            return np.zeros(len(times), dtype=np.int64)
        if not self.offset_ns:
            return times // self.size_ns
        return (times - self.offset_ns) // self.size_ns

    def starts(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the time at which each window starts."""
        return numbers * self.size_ns + self.offset_ns


class Stretches(NamedTuple):
    """The positions of each window's points among sorted times, for windows with points."""

    owners: NDArray[np.int64]  # the number of the series, ascending
    windows: NDArray[np.int64]  # their numbers, ascending for each series
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    counts: NDArray[np.int64]


def stretches(
    windows: Windows,
    times: Times,
    series: NDArray[np.int64] = START,
    firsts: NDArray[np.int64] = START,
) -> Stretches:
    """Find the windows of the times of some series: their numbers, and where each begins."""
    if windows.size_ns:
        numbers = windows.numbers(times)
        is_first = np.empty(len(times), dtype=bool)
        np.not_equal(numbers[1:], numbers[:-1], out=is_first[1:])
        is_first[firsts] = True
        starts = np.flatnonzero(is_first)
        numbers = numbers[starts]
        owners = series[np.searchsorted(firsts, starts, side="right") - 1]
    else:
        numbers, starts, owners = np.zeros(len(firsts), dtype=np.int64), firsts, series
    ends = np.append(starts[1:], len(times))
    return Stretches(owners, numbers, starts, ends, ends - starts)


def aggregate(function: Function, found: Stretches, times: Times, values: Values) -> Partial:
    """Aggregate the points of some series; there is at least one point."""
    owners, numbers, starts, ends, counts = found
    match function:
        case Function.COUNT:
            return Partial(owners, numbers, counts, counts)
        case Function.MIN:
            return Partial(owners, numbers, np.minimum.reduceat(values, starts), counts)
        case Function.MAX:
            return Partial(owners, numbers, np.maximum.reduceat(values, starts), counts)
        case Function.FIRST:
            return Partial(owners, numbers, values[starts], times[starts])
        case Function.LAST:
            return Partial(owners, numbers, values[ends - 1], times[ends - 1])
        case Function.DELTA | Function.RATE:
            return _differences(function, found, times, values)
    floats = values.astype(np.float64, copy=False)
    sums = np.add.reduceat(floats, starts)
    if function is not Function.STDDEV:
        return Partial(owners, numbers, sums, counts)
    means = sums / counts
    distances = floats - np.repeat(means, counts)
    distances *= distances
    return Partial(owners, numbers, sums, counts, np.add.reduceat(distances, starts))


def _differences(function: Function, found: Stretches, times: Times, values: Values) -> Partial:
    enough = found.counts >= 2
    owners, numbers, starts, ends, counts = (each[enough] for each in found)
    floats = values.astype(np.float64, copy=False)
    if not len(starts) or function is Function.DELTA:
        return Partial(owners, numbers, floats[ends - 1] - floats[starts], counts)
    steps = np.empty(len(floats), dtype=np.float64)
    steps[0] = 0.0
    np.subtract(floats[1:], floats[:-1], out=steps[1:])
    fallen = steps < 0.0
    steps[fallen] = floats[fallen]
    steps[starts] = 0.0  # the step into a window belongs to none
    totals = np.add.reduceat(steps, _bounds(starts, ends, len(steps)))[::2][: len(starts)]
    seconds = (times[ends - 1] - times[starts]) / _NS_PER_SECOND
    return Partial(owners, numbers, totals / seconds, counts)


def _bounds(starts: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Interleave starts and ends, for a ``reduceat`` of which every second result is used."""
    bounds = np.stack((starts, ends), axis=1).ravel()
    return bounds[:-1] if bounds[-1] == size else bounds


def finish(function: Function, partial: Partial) -> NDArray[Any]:
    """Return the values of what was aggregated."""
    if function is Function.MEAN:
        return np.asarray(partial.values / partial.weights)
    if function is Function.STDDEV:
        return np.asarray(np.sqrt(_spread(partial) / partial.weights))
    return partial.values


def combine(
    function: Function,
    partials: list[Partial],
    groups: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> list[Partial]:
    """Combine the results of the series of each group; return those of all groups, in order.

    ``groups`` has the group of each series, ascending; ``sizes`` says how many series with points
    each group has.
    """
    ends = [(int(each.owners[0]), int(each.owners[-1])) for each in partials if len(each.owners)]
    if any(after[0] < before[1] for before, after in pairwise(ends)):
        partials = [_join(partials)]
    owners = [groups[each.owners] for each in partials]
    if int(sizes.max()) <= 1:
        return [each._replace(owners=own) for each, own in zip(partials, owners, strict=True)]
    slots, found_groups, windows = _find_slots(
        owners, [each.windows for each in partials], len(sizes)
    )
    if function in (Function.FIRST, Function.LAST):
        chosen, taken = _choose_edges(function, np.concatenate(slots), _join(partials))
        return [Partial(found_groups[taken], windows[taken], *chosen)]
    fold = _FOLDS.get(function, np.add)
    dtype = partials[0].values.dtype
    counts = np.zeros(len(windows), dtype=np.int64)
    totals = np.full(len(windows), _neutral(fold, dtype), dtype=dtype)
    for slot, each in zip(slots, partials, strict=True):
        np.add.at(counts, slot, each.weights)
        fold.at(totals, slot, each.values)
    # The result of a group's only series stays as it is: 0 plus -0.0 would be 0.0, for example.
    alone = [np.flatnonzero(sizes[each] == 1) for each in owners] if 1 in sizes else []
    for slot, each, only in zip(slots, partials, alone, strict=False):
        totals[slot[only]] = each.values[only]
    spread = None
    if function is Function.STDDEV:
        # Chan, Golub and LeVeque: squared distances from each mean, plus those between the means.
        spread = np.zeros(len(windows), dtype=np.float64)
        for slot, each in zip(slots, partials, strict=True):
            apart = each.values / each.weights - totals[slot] / counts[slot]
            np.add.at(spread, slot, _spread(each) + each.weights * apart * apart)
        for slot, each, only in zip(slots, partials, alone, strict=False):
            spread[slot[only]] = _spread(each)[only]
    found = np.flatnonzero(counts)
    spread = None if spread is None else spread[found]
    return [Partial(found_groups[found], windows[found], totals[found], counts[found], spread)]


def _join(partials: list[Partial]) -> Partial:
    """Return the results of several series as one, in the order of the series."""
    if len(partials) == 1:
        return partials[0]
    owners, windows, values, weights = (
        np.concatenate([each[field] for each in partials]) for field in range(4)
    )
    spread = None
    if partials[0].spread is not None:
        spread = np.concatenate([_spread(each) for each in partials])
    if bool((owners[1:] >= owners[:-1]).all()):
        return Partial(owners, windows, values, weights, spread)
    order = np.argsort(owners, kind="stable")
    spread = None if spread is None else spread[order]
    return Partial(owners[order], windows[order], values[order], weights[order], spread)


def _choose_edges(
    function: Function, slots: NDArray[np.int64], partial: Partial
) -> tuple[tuple[NDArray[Any], NDArray[Any]], NDArray[np.int64]]:
    """Return the first or last value of each slot with its time, and the slots."""
    keys = partial.weights if function is Function.FIRST else -partial.weights
    order = np.lexsort((keys, slots))  # stable: of equal times the first series comes first
    chosen = order[find_starts(slots[order])]
    return (partial.values[chosen], partial.weights[chosen]), slots[chosen]


_FOLDS: dict[Function, np.ufunc] = {Function.MIN: np.minimum, Function.MAX: np.maximum}


def _neutral(fold: np.ufunc, dtype: np.dtype[Any]) -> Any:
    """Return the neutral element of a sum, a minimum or a maximum."""
    if fold is np.add:
        return 0
    smallest = fold is np.minimum
    if dtype == np.bool_:
        return smallest
    if dtype == np.int64:
        limits = np.iinfo(np.int64)
        return limits.max if smallest else limits.min
    return np.inf if smallest else -np.inf


def _spread(partial: Partial) -> Floats:
    assert partial.spread is not None, "stddev without distances"
    return partial.spread


def _find_slots(
    owners: list[NDArray[np.int64]], windows: list[NDArray[np.int64]], owner_count: int
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64], NDArray[np.int64]]:
    """Return the slot of each element, and the owner and the window of each slot, ascending.

    Where most windows have points there is a slot for each, found without sorting.
    """
    dense_max = 4 * sum(map(len, windows)) + 1_024
    low = min((int(each.min()) for each in windows if len(each)), default=0)
    span = max((int(each.max()) for each in windows if len(each)), default=0) - low + 1
    if span > dense_max:
        numbers, windows = _number(windows)
        low, span = 0, len(numbers)
    else:
        numbers = np.arange(low, low + span)
    slots = [owner * span + (each - low) for owner, each in zip(owners, windows, strict=True)]
    if owner_count * span > dense_max:
        keys, slots = _number(slots)
    else:
        keys = np.arange(owner_count * span)
    return slots, keys // span, numbers[keys % span]


def _number(parts: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Return the distinct values of all parts, ascending, and for each value its place in them."""
    values, places = np.unique(np.concatenate(parts), return_inverse=True)
    return values, np.split(places, np.cumsum([len(each) for each in parts])[:-1])


def percentile(
    windows: Windows,
    owners: NDArray[np.int64],
    owner_count: int,
    times: Times,
    values: Values,
    percent: float,
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Return owners and windows with points, ascending, and the percentile of each.

    ``owners`` has the owner of each point, ascending; there is at least one point.
    """
    floats = values.astype(np.float64, copy=False)
    (slots,), found_owners, numbers = _find_slots([owners], [windows.numbers(times)], owner_count)
    # By value, then by slot. Numbers of few bytes are sorted by their digits, in an eighth of the
    # time. Which of equal values comes first does not matter.
    slots = slots.astype(np.min_scalar_type(len(numbers)))
    order = np.argsort(floats)
    order = order[np.argsort(slots[order], kind="stable")]
    slots, floats = slots[order], floats[order]
    starts = find_starts(slots)
    counts = np.append(starts[1:], len(slots)) - starts
    ranks = (counts - 1) * (percent / 100.0)
    below = np.floor(ranks).astype(np.int64)
    above = np.minimum(below + 1, counts - 1)
    share = ranks - below
    low, high = floats[starts + below], floats[starts + above]
    with np.errstate(over="ignore", invalid="ignore"):
        step = high - low  # infinite where they are further apart than a float can say
        between = np.where(np.isfinite(step), low + step * share, low * (1 - share) + high * share)
    found = slots[starts].astype(np.int64)
    return found_owners[found], numbers[found], between
