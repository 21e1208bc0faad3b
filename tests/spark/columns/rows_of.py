"""Drafts as a piece of a log, and the rows that a view makes of it."""

import os
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from onelog.spark.columns.block import Block, Transactions, cut_blocks
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import ENTRY_FIELDS, Request, View
from onelog.ual.entry import Draft, encode_group

Row = dict[str, object]

SHARD = 3
TERM = 7
FIRST_INDEX = 1_000
TIME_NS = 1_700_000_000_123_456_789
GROUP_DRAFTS = 1_000

EVERYTHING = Request()
ENTRY_NAMES = frozenset(field.name for field in ENTRY_FIELDS) - {"index", "position", "operation"}

# How many random payloads are compared; a million once in a while.
PAYLOADS = int(os.environ.get("SPARK_PAYLOADS", "10000"))


def blocks_of(
    drafts: Sequence[Draft], first_index: int = FIRST_INDEX, selection: Selection | None = None
) -> Iterator[Block]:
    """Yield the blocks of a log that has these entries."""
    data = bytearray()
    offsets: list[int] = []
    for first in range(0, len(drafts), GROUP_DRAFTS):
        group = encode_group(
            drafts[first : first + GROUP_DRAFTS],
            term=TERM,
            first_index=first_index + first,
            timestamp_ns=TIME_NS,
        )
        offsets += (len(data) + offset for offset in group.offsets)
        data += group.data
    yield from cut_blocks(
        SHARD,
        bytes(data),
        np.array(offsets, np.int64),
        voids=np.empty((0, 2), np.uint64),
        selection=selection or Selection(),
        transactions=Transactions(),
    )


def batches_of(
    view: View, drafts: Sequence[Draft], request: Request = EVERYTHING
) -> list[pa.RecordBatch]:
    """Return what a view makes of those of these entries that it is for."""
    found = []
    for block in blocks_of(drafts, selection=Selection(types=view.types)):
        for batch in view.batches(block, request):
            batch.validate(full=True)
            found.append(batch)
    return found


def rows_of(view: View, drafts: Sequence[Draft], request: Request = EVERYTHING) -> list[Row]:
    """Return the rows without what is null in them and what is the same in all entries here."""
    return [
        {name: value for name, value in row.items() if value is not None}
        for batch in batches_of(view, drafts, request)
        for row in batch.drop_columns(
            [name for name in batch.schema.names if name in ENTRY_NAMES]
        ).to_pylist()
    ]


def signed(number: int) -> int:
    """Return an unsigned number of 64 bits as Spark shows it."""
    return number - (1 << 64) if number >> 63 else number


def readable(data: bytes) -> str:
    """Return bytes as text that always is some."""
    return data.decode(errors="replace")
