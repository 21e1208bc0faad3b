"""Reading columns: blocks and buffer are joined to one sorted array of points.

Decoded blocks are kept in an LRU cache bounded in bytes: a block never changes, so nothing can
become stale. The joined blocks of a column are cached as well, as long as they are the same blocks,
with room after them for the points of the buffer: a mean per minute over 100 series of 10,000
points takes 17 ms with it and 24 without (medians of one run, busy CPU).

The caller passes ``read_block``, which returns the plain payload of the entry at an index
(``log.read(index).plain_payload()``): nothing here does I/O by itself.

Points of a column come in the order of arrival: blocks by their index, then the buffer. Where they
overlap they are sorted by time, and the measurement's policy says which of equal times counts.

Many columns have few points each, all of them in the buffer. Those are read together, into one
array: 10,000 columns of 20 points take 5 ms, and 49 one by one.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onelog.projections.timeseries.columns import (
    DTYPES,
    START,
    Column,
    ColumnCut,
    CorruptBlock,
    Cuts,
    DeletedRange,
    Rows,
    Times,
    Values,
    decode_block,
    find_counting,
    find_starts,
    resolve,
)
from onelog.projections.timeseries.limits import BUFFER_POINTS, CACHE_SIZE_MAX
from onelog.projections.timeseries.store import Measurement
from onelog.projections.timeseries.types import FieldType, Policy

ReadBlock = Callable[[int], bytes]
Points = tuple[Times, Values]
_Mark = tuple[bytes, tuple[DeletedRange, ...], Policy]  # indexes of the blocks first

_ENTRY_SIZE = 400  # bytes of a cached block besides its points
BUNDLE_POINTS = 1 << 18  # of buffers that are read together


class Joined(NamedTuple):
    """Joined blocks: the first ``points`` elements are theirs, the rest is scratch space."""

    mark: _Mark
    times: Times
    values: Values
    points: int


class Bundle(NamedTuple):
    """The points of one or several columns, one column after the other, sorted by time in each."""

    columns: NDArray[np.int64]  # their numbers, ascending; those without points are omitted
    starts: NDArray[np.int64]  # where the points of each begin
    times: Times
    values: Values

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of points of each column."""
        return np.diff(self.starts, append=len(self.times))


class BlockCache:
    """Decoded blocks by the index of their entry, and joined ones by their column."""

    __slots__ = (
        "_blocks", "_joined", "_read_block", "_size", "_size_max", "hit_count", "miss_count",
    )  # fmt: skip

    def __init__(self, read_block: ReadBlock, size_max: int = CACHE_SIZE_MAX) -> None:
        self._read_block = read_block
        self._size_max = size_max
        self._blocks: OrderedDict[int, Points] = OrderedDict()
        self._joined: OrderedDict[tuple[int, int], Joined] = OrderedDict()
        self._size = 0
        self.hit_count = 0
        self.miss_count = 0

    @property
    def size(self) -> int:
        """The bytes held."""
        return self._size

    def get(self, index: int, column: ColumnCut, points: int) -> Points:
        """Return the points of a block; raise ``CorruptBlock`` if the entry holds no such block."""
        found = self._blocks.get(index)
        if found is not None:
            self._blocks.move_to_end(index)
            self.hit_count += 1
            return found
        self.miss_count += 1
        payload = self._read_block(index)
        found = decode_block(index, payload, column.field_type, *column.key)
        times, values = found
        if len(times) != points or not bool((times[1:] > times[:-1]).all()):
            raise CorruptBlock(index, f"{len(times)} points, or out of order")
        times.flags.writeable = values.flags.writeable = False
        self._blocks[index] = found
        self._size += _size(found)
        while self._size > self._size_max and len(self._blocks) > 1:
            _, dropped = self._blocks.popitem(last=False)
            self._size -= _size(dropped)
        return found

    def join(self, column: ColumnCut, rows: Rows, policy: Policy) -> "Joined":
        """Return the points of some blocks together, sorted and one per time."""
        mark = (rows[:, 0].tobytes(), column.deleted, policy)
        kept = self._joined.get(column.key)
        if kept is not None:
            if kept.mark == mark:
                self._joined.move_to_end(column.key)
                return kept
            del self._joined[column.key]
            self._size -= _size((kept.times, kept.values))
        parts = []
        deleted = np.array(column.deleted, dtype=np.int64).reshape(-1, 3)
        for index, _, _, points in rows.tolist():
            times, values = self.get(index, column, points)
            if len(deleted):
                times, values = _without_deleted(times, values, deleted, index)
            parts.append((times, values))
        times, values = resolve(*_concatenate(parts), policy)
        count = len(times)
        joined = Joined(mark, _with_room(times), _with_room(values), count)
        size = _size((joined.times, joined.values))
        if size > self._size_max // 2:  # it would evict everything else
            return joined
        self._joined[column.key] = joined
        self._size += size
        while self._size > self._size_max and len(self._joined) > 1:
            _, dropped = self._joined.popitem(last=False)
            self._size -= _size((dropped.times, dropped.values))
        return joined

    def clear(self) -> None:
        """Drop all blocks."""
        self._blocks.clear()
        self._joined.clear()
        self._size = 0


def read_column(
    measurement: Measurement, column: Column, first_ns: int, last_ns: int, cache: BlockCache
) -> Points:
    """Return the points of a column as it is now; see ``read_cut``."""
    first_ns = max(first_ns, measurement.trimmed_ns)
    return read_cut(column.cut(), first_ns, last_ns, measurement.config.policy, cache)


def read_cut(
    column: ColumnCut, first_ns: int, last_ns: int, policy: Policy, cache: BlockCache
) -> Points:
    """Return the points from ``first_ns`` to ``last_ns`` in the order of time, one per time.

    The arrays are valid until the same column is read again.
    """
    joined: Joined | None = None
    if column.block_count:
        rows = column.rows()
        rows = rows[(rows[:, 1] <= last_ns) & (rows[:, 2] >= first_ns)]
        if len(rows):
            joined = cache.join(column, rows, policy)
    newest: Points | None = None
    if column.point_count:
        times, bits = column.buffered()
        points = resolve(times, _typed(column.field_type, bits), policy)
        newest = _inside(points, first_ns, last_ns)
    if joined is None:
        if newest is None:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=DTYPES[column.field_type])
        return newest
    end = joined.points
    older = _inside((joined.times[:end], joined.values[:end]), first_ns, last_ns)
    if newest is None or not len(newest[0]):
        return older
    together = end + len(newest[0])
    if end and newest[0][0] > joined.times[end - 1] and together <= len(joined.times):
        joined.times[end:together] = newest[0]
        joined.values[end:together] = newest[1]
        return _inside((joined.times[:together], joined.values[:together]), first_ns, last_ns)
    return resolve(*_concatenate([older, newest]), policy)


def read_bundles(
    cuts: Cuts,
    places: Sequence[int],
    between: tuple[int, int],
    policy: Policy,
    cache: BlockCache,
    pause: Callable[[], None],
) -> Iterator[Bundle]:
    """Yield the points of the columns at these places of ``cuts``, which number them from 0.

    A column with blocks is a bundle of its own, to be used before it is read again; the others
    come together, later than those with blocks that are between them.
    """
    buffers: list[int] = []
    size = 0
    for number, place in enumerate(places):
        if cuts.block_counts[place]:
            pause()
            times, values = read_cut(cuts[place], *between, policy, cache)
            if len(times):
                yield Bundle(np.array([number]), START, times, values)
            continue
        buffers.append(number)
        size += cuts.counts[place]
        if size >= BUNDLE_POINTS:
            pause()
            yield _read_buffers(cuts, places, buffers, between, policy)
            buffers, size = [], 0
    if buffers:
        pause()
        yield _read_buffers(cuts, places, buffers, between, policy)


def _read_buffers(
    cuts: Cuts, places: Sequence[int], numbers: list[int], between: tuple[int, int], policy: Policy
) -> Bundle:
    """Return the points of columns that have no blocks."""
    chosen = [places[number] for number in numbers]
    times, values = cuts.buffered(chosen)
    columns = np.repeat(np.array(numbers), [cuts.counts[place] for place in chosen])
    counting = find_counting(times, policy, columns)
    if counting is not None:
        times, values, columns = times[counting], values[counting], columns[counting]
    first_ns, last_ns = between
    is_inside = (times >= first_ns) & (times <= last_ns)
    if not bool(is_inside.all()):
        times, values, columns = times[is_inside], values[is_inside], columns[is_inside]
    starts = find_starts(columns)
    return Bundle(columns[starts], starts, times, values)


def _inside(points: Points, first_ns: int, last_ns: int) -> Points:
    """Return the points from first to last out of sorted ones."""
    times, values = points
    if not len(times) or (times[0] >= first_ns and times[-1] <= last_ns):
        return points
    start, end = np.searchsorted(times, (first_ns, last_ns + 1)).tolist()
    return times[start:end], values[start:end]


def _with_room(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy with room for a buffer after it."""
    roomy = np.empty(len(array) + 2 * BUFFER_POINTS, dtype=array.dtype)
    roomy[: len(array)] = array
    return roomy


def _concatenate(parts: list[Points]) -> Points:
    if len(parts) == 1:
        return parts[0]
    times = np.concatenate([times for times, _ in parts])
    return times, np.concatenate([values for _, values in parts])


def points_between(column: ColumnCut, first_ns: int, last_ns: int) -> int:
    """Return an upper bound for the points that a read of this range touches."""
    rows = column.rows()
    overlapping = rows[(rows[:, 1] <= last_ns) & (rows[:, 2] >= first_ns)]
    return column.point_count + int(overlapping[:, 3].sum())


def _typed(field_type: FieldType, bits: NDArray[np.uint64]) -> Values:
    if field_type is FieldType.BOOL:
        return bits.astype(np.bool_)
    return bits.view(DTYPES[field_type])


def _without_deleted(
    times: Times, values: Values, deleted: NDArray[np.int64], index: int
) -> tuple[Times, NDArray[Any]]:
    spans = deleted[index < deleted[:, 2]]
    if not len(spans):
        return times, values
    # Sorted by where they begin, with how far any of those up to there reaches: a time is deleted
    # if the last range that begins at or before it, or one before that, reaches it.
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    before = np.searchsorted(spans[:, 0], times, side="right") - 1
    kept = (before < 0) | (reach[before] < times)
    return (times, values) if bool(kept.all()) else (times[kept], values[kept])


def _size(points: Points) -> int:
    return points[0].nbytes + points[1].nbytes + _ENTRY_SIZE
