"""Which entries and rows a reader wants: the options of a read that prune, already checked.

Owners, types and times are compared with headers, before any payload is read. Names are compared
by each view, which knows where its operations hold them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onelog.spark.columns.fields import Spans, gather
from onelog.spark.columns.operations import find_types

TIME_NS_MAX = (1 << 64) - 1
RECORD_TYPES = find_types("stream", "append", "dead_letter")
# Bytes that are compared at once: rows that differ early cost one step.
_STEP_BYTES = 32


@dataclass(frozen=True, slots=True)
class Selection:
    """What is wanted; None is no limit. Immutable and small: it travels with every task."""

    types: frozenset[int] | None = None  # entry types
    owners: frozenset[int] | None = None
    from_time_ns: int = 0
    to_time_ns: int = TIME_NS_MAX  # included
    namespaces: frozenset[bytes] | None = None
    key_prefix: bytes | None = None
    streams: frozenset[bytes] | None = None
    queues: frozenset[int] | None = None  # ids: entries hold no names
    measurements: frozenset[bytes] | None = None

    @property
    def only_records(self) -> bool:
        """Whether only records of streams are wanted, which files list by stream."""
        return self.types is not None and self.types <= RECORD_TYPES

    def can_be_within(
        self, first_timestamp_ns: int, last_timestamp_ns: int, owner_counts: Sequence[int]
    ) -> bool:
        """Tell whether a file with these times and owners can have wanted entries."""
        if last_timestamp_ns < self.from_time_ns or first_timestamp_ns > self.to_time_ns:
            return False
        owners = {number for number, count in enumerate(owner_counts) if count}
        if self.owners is not None:
            owners &= self.owners
        if self.types is not None:
            owners &= {number >> 8 for number in self.types}
        return bool(owners)

    def wants_headers(self, headers: NDArray[np.void]) -> NDArray[np.bool_]:
        """Tell which entries are wanted, by their headers alone."""
        mask = np.ones(len(headers), np.bool_)
        if self.types is not None:
            mask &= np.isin(headers["entry_type"], np.array(sorted(self.types), np.uint16))
        if self.owners is not None:
            owner = headers["entry_type"] >> np.uint16(8)
            mask &= np.isin(owner, np.array(sorted(self.owners), np.uint16))
        if self.from_time_ns > 0:
            mask &= headers["timestamp_ns"] >= np.uint64(self.from_time_ns)
        if self.to_time_ns < TIME_NS_MAX:
            mask &= headers["timestamp_ns"] <= np.uint64(self.to_time_ns)
        return mask


def starts_with(data: NDArray[np.uint8], spans: Spans, prefix: bytes) -> NDArray[np.bool_]:
    """Tell which spans begin with ``prefix``."""
    mask: NDArray[np.bool_] = spans.size >= len(prefix)
    for step in range(0, len(prefix), _STEP_BYTES):
        part = prefix[step : step + _STEP_BYTES]
        rows = np.flatnonzero(mask)
        mask[rows] = _texts(data, spans.start[rows] + step, len(part)) == part
    return mask


def is_one_of(
    data: NDArray[np.uint8], spans: Spans, values: frozenset[bytes] | None
) -> NDArray[np.bool_]:
    """Tell which spans equal one of some values; all do if ``values`` is None."""
    if values is None:
        return np.ones(len(spans.start), np.bool_)
    mask = np.zeros(len(spans.start), np.bool_)
    sizes = spans.size
    for size in sorted({len(value) for value in values}):
        rows = np.flatnonzero(sizes == size)
        alike = np.array([value for value in values if len(value) == size], f"S{size or 1}")
        mask[rows] = np.isin(_texts(data, spans.start[rows], size), alike)
    return mask


def compare(data: NDArray[np.uint8], spans: Spans, value: bytes) -> NDArray[np.int8]:
    """Compare each span with ``value`` as bytes: -1 if it is less, 0 if equal, 1 if greater."""
    order = np.zeros(len(spans.start), np.int8)
    rows = np.arange(len(order))
    for step, byte in enumerate(value):
        ended = spans.size[rows] <= step
        order[rows[ended]] = -1
        rows = rows[~ended]
        found = data[spans.start[rows] + step]
        order[rows] = np.where(found < byte, np.int8(-1), np.int8(found > byte))
        rows = rows[found == byte]
        if not len(rows):
            return order
    order[rows] = spans.size[rows] > len(value)
    return order


def _texts(data: NDArray[np.uint8], at: NDArray[np.int64], size: int) -> NDArray[np.bytes_]:
    """Return ``size`` bytes at each of some positions.

    Numpy ignores zeros at the end of such items, on both sides of a comparison. Items of one size
    still differ if their bytes do.
    """
    if not size or not len(at):
        return np.zeros(len(at), "S1")
    return gather(data, at, np.dtype(f"S{size}"))
