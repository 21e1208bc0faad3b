"""Which entries and rows a reader wants: the options of a read that prune, checked before.

Owners, types and times are decided by headers alone, before a payload is looked at. Names are
decided by each view, which knows where its operations hold them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onelog.spark.columns.fields import Spans

TIME_NS_MAX = (1 << 64) - 1


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

    def wants_headers(self, headers: NDArray[np.void]) -> NDArray[np.bool_]:
        """Tell which entries are wanted as far as headers tell."""
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
    for step, byte in enumerate(prefix):
        rows = np.flatnonzero(mask)
        mask[rows] = data[spans.start[rows] + step] == byte
    return mask


def is_one_of(
    data: NDArray[np.uint8], spans: Spans, values: frozenset[bytes] | None
) -> NDArray[np.bool_]:
    """Tell which spans are equal to one of some values; all of them if ``values`` is None."""
    if values is None:
        return np.ones(len(spans.start), np.bool_)
    mask = np.zeros(len(spans.start), np.bool_)
    for value in values:
        mask |= (spans.size == len(value)) & starts_with(data, spans, value)
    return mask
