"""Headers of messages and records as columns of maps.

They are read in steps: the first header of every payload, then the second of every payload, and so
on. A map keeps the headers in their order; a name that a producer gave twice is in it twice. Names
are text: bytes that are not UTF-8 become replacement characters, as in the answers of the API.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.fields import Fields, Spans
from onelog.ual.errors import CorruptPayload

HEADERS = pa.map_(pa.string(), pa.binary())
HEADERS_MAX = 64  # in a message or a record (docs/queue.md, docs/streams.md)
HEADER_SIZE_MIN = 3  # an empty name and an empty value

Mask = NDArray[np.bool_]


class Headers(NamedTuple):
    """The headers of some payloads, payload after payload."""

    counts: NDArray[np.int64]  # of each payload
    names: Spans
    values: Spans


def read_headers(fields: Fields, where: Mask) -> Headers:
    """Read the headers of the payloads that have some; leave the cursors behind them."""
    counts = fields.u16(where).astype(np.int64)
    if (counts[where] == 0).any() or (counts > HEADERS_MAX).any():
        raise CorruptPayload(f"headers that are not 1 to {HEADERS_MAX}")
    # Check before allocating: a damaged count must not decide how much.
    if (counts * HEADER_SIZE_MIN > fields.end - fields.at).any():
        raise CorruptPayload("headers cross the end of their payload")
    firsts = np.cumsum(counts) - counts
    bounds = np.zeros((4, int(counts.sum())), np.int64)
    for number in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > number)
        those = fields.take(rows)
        places = firsts[rows] + number
        bounds[0, places], bounds[1, places] = those.bytes8()
        bounds[2, places], bounds[3, places] = those.bytes16()
        fields.at[rows] = those.at  # written in place: reading the counts has made a new array
    return Headers(counts, Spans(bounds[0], bounds[1]), Spans(bounds[2], bounds[3]))


def map_column(
    data: NDArray[np.uint8], headers: Headers, rows: NDArray[np.intp], row_count: int
) -> pa.Array:
    """Return a column of maps; ``rows``: the row of each payload. Other rows are null."""
    sizes = np.zeros(row_count, np.int32)
    sizes[rows] = headers.counts
    offsets = np.zeros(row_count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    absent = np.ones(row_count, np.bool_)
    absent[rows] = False
    return pa.MapArray.from_arrays(
        pa.array(offsets),
        arrays.to_readable(arrays.binary(data, headers.names)),
        arrays.binary(data, headers.values),
        type=HEADERS,
        mask=pa.array(absent) if absent.any() else None,
    )
