"""Columns: the points of one field of one series, in a buffer and in blocks.

A column's newest points are in its buffer, in the order of arrival, as raw little-endian bytes:
times and values apart, so that a run of points is appended by two copies and numpy reads it in
place. Older points are in blocks, which are entries of the log; the column holds their indexes with
first and last time and number of points (``BLOCK_WORDS``). The place of a buffered point in the
order of arrival is ``base`` plus its position; points that leave the buffer advance ``base``.

Deleted ranges are kept for blocks only (buffered points are removed at once): a range applies to
the blocks that existed when it was deleted, which are those with a lower index.

Invariants: times and values have the same number of points; block indexes ascend; each deleted
range overlaps at least one older block.

A block holds sorted, compressed points of one column. The leader makes it of the first points of a
buffer: sorted by time, one point per time as the measurement's policy says, times and values
compressed with pcodec (booleans as bits). Every replica replaces the same points by the index of
the entry: apply compares ``base`` and the hash of the points that would leave, and refuses the
block if anything has changed since it was made (BLOCK_STALE). So making a block twice is harmless,
and only the leader compresses.

Apply does not check that the body decodes to those points: decoding in apply would tie the meaning
of an entry to a release of the codec. The leader decodes each block before it proposes it; a
checksum ensures that the body is the one that the leader made.
"""

import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pcodec import ChunkConfig, standalone  # type: ignore[import-untyped]

from onelog.projections.codec import U32, read_prefix
from onelog.projections.errors import BadPayload, ProjectionError
from onelog.projections.timeseries.commands import TYPE_BLOCK, Block, decode_command
from onelog.projections.timeseries.hashing import (
    U64Array,
    column_seed,
    hash_rows,
    hash_run,
    run_seed,
)
from onelog.projections.timeseries.limits import BLOCK_POINTS_MAX, TIME_NS_MIN
from onelog.projections.timeseries.types import VALUE_SIZES, FieldType, Policy

Times = NDArray[np.int64]
Rows = NDArray[np.int64]

BLOCK_WORDS = 4  # index, first time, last time, points
COLUMN_SIZE = 280  # bytes of an empty column: object, two buffers, numbers, its place in tables
START: NDArray[np.int64] = np.zeros(1, dtype=np.int64)  # the only series, or where it begins
_NO_ROWS = np.empty((0, BLOCK_WORDS), dtype=np.int64)
_RANGE = struct.Struct("<BQHqqQ")
_HEAD = struct.Struct("<BQHQ")


class DeletedRange(NamedTuple):
    """Times from first to last of blocks older than ``before_index`` are deleted."""

    first_ns: int
    last_ns: int
    before_index: int


class Column:
    """One field of one series."""

    __slots__ = (
        "base",
        "blocks",
        "deleted",
        "field_id",
        "field_type",
        "seed",
        "series_id",
        "times",
        "values",
    )

    def __init__(self, series_id: int, field_id: int, field_type: FieldType) -> None:
        self.series_id = series_id
        self.field_id = field_id
        self.field_type = field_type
        self.seed = column_seed(series_id, field_id)
        self.base = 0
        self.times = bytearray()
        self.values = bytearray()
        self.blocks: array[int] | None = None
        self.deleted: tuple[DeletedRange, ...] = ()

    def __len__(self) -> int:
        return len(self.times) >> 3

    @property
    def key(self) -> tuple[int, int]:
        """The sort key of columns."""
        return self.series_id, self.field_id

    @property
    def empty(self) -> bool:
        """Whether the column has no point, neither in the buffer nor in a block."""
        return not self.times and not self.blocks

    def buffered(self, count: int | None = None, skip: int = 0) -> tuple[Times, U64Array]:
        """Return copies of ``count`` buffered times and value bits (None: all) after ``skip``.

        Copies, because a buffer cannot grow while a view of it exists.
        """
        length = len(self) - skip if count is None else count
        times = np.frombuffer(self.times, dtype=np.int64, count=length, offset=8 * skip).copy()
        return times, raw_to_bits(self.field_type, self.values, length, skip)

    def rows(self) -> Rows:
        """Return the blocks as rows of (index, first time, last time, points)."""
        if not self.blocks:
            return _NO_ROWS
        return np.frombuffer(self.blocks, dtype=np.int64).reshape(-1, BLOCK_WORDS).copy()

    def cut(self) -> "ColumnCut":
        """Return the column at this moment, for reads on any thread."""
        return Cuts([self])[0]

    def points_hash(self) -> int:
        """Return the hash of the buffered points."""
        times, bits = self.buffered()
        return hash_run(run_seed(self.seed, self.base), times.view(np.uint64), bits)

    def prefix_hash(self, count: int, skip: int = 0) -> int:
        """Return the hash of the first ``count`` buffered points after ``skip``."""
        times, bits = self.buffered(count, skip)
        return hash_run(run_seed(self.seed, self.base + skip), times.view(np.uint64), bits)

    def rows_hash(self) -> int:
        """Return the hash of the blocks."""
        return hash_rows(self.seed, self.rows()) if self.blocks else 0

    def head(self) -> bytes:
        """Return the first item: what a column has that is neither point, block nor range."""
        return _HEAD.pack(0x14, self.series_id, self.field_id, self.base)

    def items(self) -> list[bytes]:
        """Return the canonical bytes of everything except points and blocks."""
        items = [self.head()]
        items += (_RANGE.pack(0x15, self.series_id, self.field_id, *each) for each in self.deleted)
        return items

    def newest_ns(self) -> int:
        """Return the latest time of any point; without points, the time before all times."""
        newest = TIME_NS_MIN - 1
        if self.times:
            newest = int(np.frombuffer(self.times, dtype=np.int64).max())
        if self.blocks:
            newest = max(newest, int(self.rows()[:, 2].max()))
        return newest

    def check(self) -> None:
        """Assert the invariants of this file."""
        assert len(self.times) % 8 == 0, "half a time"
        assert len(self.values) == len(self) * VALUE_SIZES[self.field_type], "times and values"
        rows = self.rows()
        assert bool((np.diff(rows[:, 0]) > 0).all()), "blocks out of order"
        assert bool((rows[:, 1] <= rows[:, 2]).all()), "a block that ends before it starts"
        assert bool((rows[:, 3] > 0).all()), "an empty block"
        assert self.blocks is None or len(self.blocks), "an empty list of blocks"
        assert self.deleted == useful_ranges(self.deleted, rows), "a range that deletes nothing"


class ColumnCut(NamedTuple):
    """A column at one moment: references only, however many points the column holds.

    Buffers and lists of blocks are only appended to or replaced; what a rollback removes was never
    visible to another thread. So the bytes up to the size at that moment stay the same. They are
    copied by one slice, which the interpreter does not interrupt: a buffer cannot grow while a view
    of it exists, and apply would fail.
    """

    series_id: int
    field_id: int
    field_type: FieldType
    deleted: tuple[DeletedRange, ...]
    times: bytearray
    values: bytearray
    point_count: int  # in the buffer
    blocks: "array[int] | None"
    block_count: int

    @property
    def key(self) -> tuple[int, int]:
        """The sort key of columns."""
        return self.series_id, self.field_id

    def buffered(self) -> tuple[Times, U64Array]:
        """Return the buffered times and value bits."""
        count = self.point_count
        times = np.frombuffer(self.times[: 8 * count], dtype=np.int64)
        size = count * VALUE_SIZES[self.field_type]
        return times, raw_to_bits(self.field_type, self.values[:size], count)

    def rows(self) -> Rows:
        """Return the blocks as rows of (index, first time, last time, points)."""
        if self.blocks is None:
            return _NO_ROWS
        words = self.blocks[: BLOCK_WORDS * self.block_count]
        return np.frombuffer(words, dtype=np.int64).reshape(-1, BLOCK_WORDS)


class Cuts:
    """Cuts of many columns, taken together and read on any thread.

    Parallel lists of references instead of an object each: 20,000 columns take 5 ms, and three
    times that with objects, mostly because the garbage collector walks over them.
    """

    __slots__ = ("_blocks", "_columns", "_deleted", "_times", "_values", "block_counts", "counts")

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns  # for their constant fields
        self._times = [column.times for column in columns]
        self.counts = [len(times) >> 3 for times in self._times]  # points in the buffers
        self._values = [column.values for column in columns]
        self._deleted = [column.deleted for column in columns]
        self._blocks = [column.blocks for column in columns]
        self.block_counts = [
            0 if blocks is None else len(blocks) // BLOCK_WORDS for blocks in self._blocks
        ]

    def __getitem__(self, place: int) -> ColumnCut:
        column = self._columns[place]
        return ColumnCut(
            column.series_id,
            column.field_id,
            column.field_type,
            self._deleted[place],
            self._times[place],
            self._values[place],
            self.counts[place],
            self._blocks[place],
            self.block_counts[place],
        )

    def buffered(self, places: Sequence[int]) -> tuple[Times, "Values"]:
        """Return the buffered points of some columns of one type, one column after the other."""
        field_type = self._columns[places[0]].field_type
        size = VALUE_SIZES[field_type]
        counts, times, values = self.counts, self._times, self._values
        raw_times = b"".join([times[place][: 8 * counts[place]] for place in places])
        raw_values = b"".join([values[place][: size * counts[place]] for place in places])
        return np.frombuffer(raw_times, np.int64), np.frombuffer(raw_values, DTYPES[field_type])


def raw_to_bits(
    field_type: FieldType, values: bytes | bytearray | memoryview, count: int, skip: int = 0
) -> U64Array:
    """Return ``count`` raw values after the first ``skip`` as 64-bit patterns."""
    if field_type is FieldType.BOOL:
        found = np.frombuffer(values, dtype=np.uint8, count=count, offset=skip)
        return found.astype(np.uint64)
    return np.frombuffer(values, dtype=np.uint64, count=count, offset=8 * skip).copy()


def raw_values(field_type: FieldType, bits: U64Array) -> bytes:
    """Return 64-bit patterns as the bytes of a buffer."""
    return (bits.astype(np.uint8) if field_type is FieldType.BOOL else bits).tobytes()


# Ranges times blocks that are compared at a time.
_CELLS_MAX = 1 << 20


def rows_outside(rows: Rows, first_ns: int, last_ns: int) -> Rows:
    """Return the blocks that have times outside of a range, or might."""
    return rows[(rows[:, 1] < first_ns) | (rows[:, 2] > last_ns)]


def merge_range(
    ranges: tuple[DeletedRange, ...], rows: Rows, new: DeletedRange
) -> tuple[tuple[DeletedRange, ...], Rows]:
    """Return the ranges with one that is newer than all blocks, and the blocks that remain.

    A range that touches the new one becomes a part of it, unless a block that is newer than the
    older range has points there: the older one does not delete these.
    """
    left = rows_outside(rows, new.first_ns, new.last_ns)
    others = list(ranges)
    count = 0
    while count != len(others):  # what has been merged may touch others
        count, kept = len(others), []
        for each in others:
            if each.first_ns > new.last_ns + 1 or each.last_ns < new.first_ns - 1:
                kept.append(each)
            elif _is_newer_block_in(each, left):
                if each.first_ns < new.first_ns or each.last_ns > new.last_ns:
                    kept.append(each)
            else:
                first_ns, last_ns = min(each.first_ns, new.first_ns), max(each.last_ns, new.last_ns)
                new = DeletedRange(first_ns, last_ns, new.before_index)
        others = kept
    left = rows_outside(left, new.first_ns, new.last_ns)
    # Blocks went that are inside of the new range, so only ranges that overlap it may be useless.
    apart = [each for each in others if each.first_ns > new.last_ns or each.last_ns < new.first_ns]
    near = tuple(
        each for each in others if each.first_ns <= new.last_ns and each.last_ns >= new.first_ns
    )
    return (*apart, *useful_ranges((*near, new), left)), left


def _is_newer_block_in(each: DeletedRange, rows: Rows) -> bool:
    index, first, last = rows[:, 0], rows[:, 1], rows[:, 2]
    newer = (index >= each.before_index) & (first <= each.last_ns) & (last >= each.first_ns)
    return bool(newer.any())


def useful_ranges(ranges: tuple[DeletedRange, ...], rows: Rows) -> tuple[DeletedRange, ...]:
    """Return the ranges that still overlap an older block."""
    if not ranges or not len(rows):
        return ()
    index, first, last = rows[:, 0], rows[:, 1], rows[:, 2]
    table = np.array(ranges, dtype=np.int64)
    useful: list[DeletedRange] = []
    step = max(1, _CELLS_MAX // len(rows))
    for at in range(0, len(ranges), step):
        firsts, lasts, befores = (part[:, None] for part in table[at : at + step].T)
        overlap = (index < befores) & (first <= lasts) & (last >= firsts)
        found = overlap.any(axis=1).tolist()
        useful += (each for each, is_useful in zip(ranges[at:], found, strict=False) if is_useful)
    return tuple(useful)


# Blocks

# Level 4 against the default of 8, for 1,024 points of a jittered gauge: 0.19 against 0.52 ms to
# make, and 0.1 % more bytes.
COMPRESSION_LEVEL = 4
_CONFIG = ChunkConfig(compression_level=COMPRESSION_LEVEL)

Values = NDArray[Any]
DTYPES: dict[FieldType, Any] = {
    FieldType.F64: np.dtype(np.float64),
    FieldType.I64: np.dtype(np.int64),
    FieldType.BOOL: np.dtype(np.bool_),
}


class CorruptBlock(ProjectionError):
    """The entry at ``index`` does not hold the block that the state refers to."""

    def __init__(self, index: int, rule: str) -> None:
        super().__init__(f"block {index}: {rule}")
        self.index = index
        self.rule = rule


def resolve(times: Times, bits: NDArray[Any], policy: Policy) -> tuple[Times, NDArray[Any]]:
    """Sort points from the order of arrival to the order of time, and keep one per time."""
    chosen = find_counting(times, policy)
    return (times, bits) if chosen is None else (times[chosen], bits[chosen])


def find_counting(
    times: Times, policy: Policy, columns: NDArray[np.int64] | None = None
) -> NDArray[np.int64] | None:
    """Return the positions of the points that count, in the order of time; None for all, in order.

    ``columns`` has the column of each point, ascending, if there are several.
    """
    is_later = times[1:] > times[:-1]
    if columns is not None:
        is_later |= columns[1:] != columns[:-1]
    if bool(is_later.all()):
        return None
    order: NDArray[np.int64]
    if columns is None:
        order = np.argsort(times, kind="stable")
    else:
        order = np.lexsort((times, columns))
        columns = columns[order]
    times = times[order]
    differs = times[1:] != times[:-1]
    if columns is not None:
        differs |= columns[1:] != columns[:-1]
    kept = np.ones(len(times), dtype=bool)
    (kept[1:] if policy is Policy.FIRST else kept[:-1])[:] = differs
    return order[kept]


def find_starts(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each distinct number begins among sorted ones."""
    if len(numbers) and numbers[0] == numbers[-1]:
        return START
    is_first = np.empty(len(numbers), dtype=bool)
    is_first[:1] = True
    np.not_equal(numbers[1:], numbers[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)


def make_block(column: Column, policy: Policy, config_index: int, skip: int = 0) -> Block:
    """Make the block that a leader proposes for a column's buffer.

    ``skip`` points are in blocks that are proposed before it.
    """
    taken = min(len(column) - skip, BLOCK_POINTS_MAX)
    times, bits = resolve(*column.buffered(taken, skip), policy)
    body = encode_points(column.field_type, times, bits)
    decoded_times, decoded = decode_points(column.field_type, body, len(times))
    assert bool((decoded_times == times).all()), "times do not come back"
    assert bool((values_to_bits(decoded) == bits).all()), "values do not come back"
    return Block(
        series_id=column.series_id,
        field_id=column.field_id,
        config_index=config_index,
        base=column.base + skip,
        taken=taken,
        points=len(times),
        first_ns=int(times[0]),
        last_ns=int(times[-1]),
        source_hash=column.prefix_hash(taken, skip),
        body=body,
    )


def encode_points(field_type: FieldType, times: Times, bits: U64Array) -> bytes:
    """Return the body of a block: size of the times u32, times, values."""
    packed_times = bytes(standalone.simple_compress(times, _CONFIG))
    if field_type is FieldType.BOOL:
        packed_values = np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()
    else:
        packed_values = bytes(standalone.simple_compress(bits.view(DTYPES[field_type]), _CONFIG))
    return U32.pack(len(packed_times)) + packed_times + packed_values


def decode_points(field_type: FieldType, body: bytes, count: int) -> tuple[Times, Values]:
    """Decode times and values of a body; raise ``ValueError`` if it is malformed.

    Decoding fills arrays of the announced size, so that no body takes more memory than that.
    """
    if len(body) < U32.size:
        raise ValueError("no times")
    (times_size,) = U32.unpack_from(body)
    values_at = U32.size + times_size
    times = np.empty(count, dtype=np.int64)
    _decompress(body[U32.size : values_at], times)
    if field_type is FieldType.BOOL:
        packed = np.frombuffer(body[values_at:], dtype=np.uint8)
        if len(packed) * 8 < count:
            raise ValueError("too few values")
        return times, np.unpackbits(packed, count=count, bitorder="little").astype(np.bool_)
    values = np.empty(count, dtype=DTYPES[field_type])
    _decompress(body[values_at:], values)
    return times, values


def decode_block(
    index: int, payload: bytes, field_type: FieldType, series_id: int, field_id: int
) -> tuple[Times, Values]:
    """Decode the points of a block's plain payload; raise ``CorruptBlock`` for another block."""
    try:
        _, reader = read_prefix(payload)
        block = decode_command(TYPE_BLOCK & 0xFF, reader)
        assert isinstance(block, Block), block
        if (block.series_id, block.field_id) != (series_id, field_id):
            raise CorruptBlock(index, f"it is of column {block.series_id}.{block.field_id}")
        return decode_points(field_type, block.body, block.points)
    except (BadPayload, ValueError) as error:
        raise CorruptBlock(index, str(error)) from error


def values_to_bits(values: Values) -> U64Array:
    """Return values as 64-bit patterns."""
    if values.dtype == np.bool_:
        return values.astype(np.uint64)
    return values.view(np.uint64)


def _decompress(data: bytes, target: NDArray[Any]) -> None:
    try:
        progress = standalone.simple_decompress_into(data, target)
    except (RuntimeError, TypeError) as error:
        raise ValueError(str(error)) from error
    if progress.n_processed != len(target) or not progress.finished:
        raise ValueError(f"{progress.n_processed} points where {len(target)} were announced")
