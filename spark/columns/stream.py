"""The view ``stream``: one row for each record, and the offset of a record is its ``index``.

A record is an ``append``, with all that its producer sent, or a ``dead_letter``: a record of a
dead-letter stream, which has no content of its own. ``origin_offset`` is the ``append`` that it
leads to, by which the two are joined; the other columns of dead letters say where and why a group
gave up. What an entry does not say:

* the ``partition``, unless its producer chose one. It follows from the key, or from the offset, and
  the number of partitions of the stream, and is filled in for streams whose number is known to the
  reader. It is null for others, and for records of a deleted stream that had the same name;
* whether an ``append`` repeated a record: such an entry is a row, too, and no record. It has the
  ``stream``, ``producer_id``, ``epoch`` and ``sequence`` of the row that it repeats;
* whether the stream still has the record: it may have been trimmed since.

All other operations of streams are in the view ``stream_operations``.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.block import Block
from onelog.spark.columns.fields import Spans
from onelog.spark.columns.headers import HEADERS
from onelog.spark.columns.operands import Operands, Part, has, own_schema, whole_schema
from onelog.spark.columns.operations import TYPES
from onelog.spark.columns.selection import Selection, is_one_of, starts_with
from onelog.spark.columns.view import Output, View

_OWN = own_schema(
    pa.field("stream", pa.string(), nullable=False),
    pa.field("partition", pa.int32()),
    pa.field("key", pa.binary()),
    pa.field("key_text", pa.string()),
    pa.field("tag", pa.string()),
    pa.field("producer_id", pa.int64()),
    pa.field("epoch", pa.int32()),
    pa.field("sequence", pa.int64()),
    pa.field("headers", HEADERS),
    pa.field("value", pa.binary()),
    pa.field("origin_offset", pa.int64()),
    pa.field("dead_stream_id", pa.int64()),  # where the record died, and for which group
    pa.field("dead_group", pa.string()),
    pa.field("dead_partition", pa.int32()),
    pa.field("dead_offset", pa.int64()),
    pa.field("deliveries", pa.int32()),
    pa.field("failed_ns", pa.int64()),
    pa.field("failure", pa.string()),
)
_SPECIAL = ("partition", "key_text", "headers", "value")
_PLAIN = pa.schema([field for field in _OWN if field.name not in _SPECIAL])

_KEY, _HEADERS, _PRODUCER, _PARTITION, _TAG = (1 << bit for bit in range(5))

_CRC32C_POLYNOMIAL = np.uint32(0x82F63B78)  # with its bits reversed

Mask = NDArray[np.bool_]
Partitions = Mapping[tuple[str, str], tuple[int, int]]


def _append(part: Part) -> None:
    options = part.options(0x1F)
    part.bytes8("stream")
    part.u8("partition", has(options, _PARTITION))
    part.u64("producer_id", has(options, _PRODUCER))
    part.u16("epoch", has(options, _PRODUCER))
    part.u64("sequence", has(options, _PRODUCER))
    part.bytes16("key", has(options, _KEY))
    part.bytes8("tag", has(options, _TAG))
    part.message(has(options, _HEADERS))


def _dead_letter(part: Part) -> None:
    part.bytes8("stream")
    part.u64("dead_stream_id")
    part.u8("dead_partition")
    part.bytes8("dead_group")
    part.u64("dead_offset")
    part.u64("origin_offset")
    part.u16("deliveries")
    part.u64("failed_ns")
    part.bytes8("failure")


_LAYOUTS = {
    TYPES["stream", "append"]: _append,
    TYPES["stream", "dead_letter"]: _dead_letter,
}


def _decode(block: Block, output: Output) -> None:
    operands = Operands(block, _LAYOUTS)
    operands.select(_wanted(operands, output.request.selection))
    operands.add_columns(output, _PLAIN, body="value")
    known = output.request.stream_partitions
    output.add("partition", lambda: _partition_column(operands, known))
    output.add("key_text", lambda: arrays.to_text(operands.column("key", pa.binary())))


def _wanted(operands: Operands, selection: Selection) -> Mask:
    data = operands.block.data
    mask = operands.in_namespaces(selection)
    if selection.streams is not None:
        mask &= is_one_of(data, operands.span("stream")[0], selection.streams)
    if selection.key_prefix is not None:
        keys, has_key = operands.span("key")
        mask &= has_key & starts_with(data, keys, selection.key_prefix)
    return mask


def _partition_column(operands: Operands, known: Partitions) -> pa.Array:
    given, is_given = operands.row_numbers("partition")
    if not known:
        return arrays.numbers(given, pa.int32(), is_given)
    indexes = operands.block.headers["index"][operands.entries]
    counts = _partition_counts(operands, known, indexes)
    # The rule of docs/streams.md: a dead letter stays where it was, a key decides, or the offset.
    chosen = indexes.copy()
    keys, has_key = operands.span("key")
    rows = np.flatnonzero(has_key[operands.entries] & ~is_given & (counts != 0))
    chosen[rows] = crc32c_of_spans(operands.block.data, keys.take(operands.entries[rows]))
    died_in, is_dead = operands.row_numbers("dead_partition")
    chosen[is_dead] = died_in[is_dead]
    found = np.where(is_given, given, chosen % np.maximum(counts, 1))
    return arrays.numbers(found, pa.int32(), is_given | (counts != 0))


def _partition_counts(
    operands: Operands, known: Partitions, indexes: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return how many partitions the stream of each row has; 0: not known."""
    namespaces = operands.column("namespace", pa.string()).dictionary_encode()
    streams = operands.column("stream", pa.string()).dictionary_encode()
    width = max(len(streams.dictionary), 1)
    pairs = namespaces.indices.to_numpy().astype(np.int64) * width + streams.indices.to_numpy()
    distinct, place = np.unique(pairs, return_inverse=True)
    found = [
        known.get((namespaces.dictionary[pair // width].as_py(), name.as_py()), (0, 0))
        for pair, name in ((pair, streams.dictionary[pair % width]) for pair in distinct.tolist())
    ]
    table = np.array(found, np.uint64).reshape(-1, 2)
    # A stream that was created after a record has only the name of the one that the record is of.
    of_this: Mask = indexes > table[place, 0]
    counts: NDArray[np.uint64] = np.where(of_this, table[place, 1], np.uint64(0))
    return counts


def _crc32c_table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        odd = (table & np.uint32(1)) != 0
        table = (table >> np.uint32(1)) ^ np.where(odd, _CRC32C_POLYNOMIAL, np.uint32(0))
    return table


_CRC32C_TABLE = _crc32c_table()


def crc32c_of_spans(data: NDArray[np.uint8], spans: Spans) -> NDArray[np.uint32]:
    """Return the CRC-32C of each span: the first byte of all, then the second of all, and so on."""
    sums = np.full(len(spans.start), 0xFFFFFFFF, np.uint32)
    sizes = spans.size
    rows = np.flatnonzero(sizes > 0)
    step = 0
    while len(rows):
        before = sums[rows]
        low = (before ^ data[spans.start[rows] + step]) & np.uint32(0xFF)
        sums[rows] = _CRC32C_TABLE[low] ^ (before >> np.uint32(8))
        step += 1
        rows = rows[sizes[rows] > step]
    return ~sums


VIEW = View("stream", whole_schema(_OWN), frozenset(_LAYOUTS), None, _decode)
