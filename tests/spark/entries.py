"""Bytes of a log for the tests of columns: drafts as entries, entries as blocks, blocks as rows."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onelog.spark.columns.block import Block, Transactions, cut_blocks
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import Request, View
from onelog.ual.entry import Draft, encode_group
from onelog.ual.segments.tables import ENTRY_DTYPE

SHARD = 3
TERM = 2
START_NS = 1_767_225_600_123_456_789
NO_VOIDS = np.empty((0, 2), np.uint64)
GROUP_ENTRIES = 1_000

Row = dict[str, Any]


def encode(drafts: Sequence[Draft], first_index: int = 1) -> tuple[bytes, NDArray[np.int64]]:
    """Return drafts as groups of entries, and where each entry starts."""
    parts: list[bytes] = []
    offsets: list[int] = []
    size = 0
    for first in range(0, len(drafts), GROUP_ENTRIES):
        group = encode_group(
            drafts[first : first + GROUP_ENTRIES],
            term=TERM,
            first_index=first_index + first,
            timestamp_ns=START_NS + first,
        )
        parts.append(group.data)
        offsets += [size + offset for offset in group.offsets]
        size += len(group.data)
    return b"".join(parts), np.array(offsets, np.int64)


def cut(
    data: bytes, offsets: NDArray[np.int64], selection: Selection | None = None
) -> Iterator[Block]:
    """Yield the blocks of some entries, none of them void."""
    return cut_blocks(
        SHARD,
        data,
        offsets,
        voids=NO_VOIDS,
        selection=selection or Selection(),
        transactions=Transactions(),
    )


def rows_of(view: View, blocks: Iterable[Block], request: Request | None = None) -> list[Row]:
    """Return the rows of some blocks in a view."""
    return [
        row
        for block in blocks
        for batch in view.batches(block, request or Request())
        for row in batch.to_pylist()
    ]


def payload_block(
    payloads: Sequence[bytes], entry_types: int | Sequence[int], filler: bytes = b""
) -> Block:
    """Return payloads as they are, as a block: with ``filler`` around each of them."""
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    end = np.cumsum(sizes + len(filler))
    data = filler + b"".join(payload + filler for payload in payloads)
    headers = np.zeros(len(payloads), ENTRY_DTYPE)
    headers["entry_type"] = entry_types
    headers["index"] = np.arange(1, len(payloads) + 1)
    return Block(
        SHARD,
        np.frombuffer(data, np.uint8),
        end - sizes,
        end,
        headers,
        np.zeros(len(payloads), np.uint64),
    )
