"""The view ``stream``: one row for each record; the offset of a record is its ``index``.

A record is an ``append``, with all that its producer sent, or a ``dead_letter``: a record of a
dead-letter stream, which has no content of its own. Its ``origin_offset`` is the offset of the
``append`` that failed, for a join; the other columns of dead letters say where and why a group gave
up. An entry does not say:

* the ``partition``, unless its producer chose one: it follows from the key or the offset, and from
  the stream's number of partitions (docs/streams.md);
* whether an ``append`` in a transaction was a duplicate: such an entry may have a row although it
  is no record. It has the same ``stream``, ``producer_id``, ``epoch`` and ``sequence`` as the
  original. Outside a transaction a duplicate is refused and has no row;
* whether the stream still has the record: it may have been trimmed since.

All other operations of streams are in the view ``stream_operations``.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.block import Block
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
_SPECIAL = ("key_text", "headers", "value")
_PLAIN = pa.schema([field for field in _OWN if field.name not in _SPECIAL])

_KEY, _HEADERS, _PRODUCER, _PARTITION, _TAG = (1 << bit for bit in range(5))

Mask = NDArray[np.bool_]


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


VIEW = View("stream", whole_schema(_OWN), frozenset(_LAYOUTS), None, _decode)
