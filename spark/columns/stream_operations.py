"""The view ``stream_operations``: operations on streams and consumer groups, without the records.

Each operation has one row; ``trim_to``, ``retain``, ``group_commit``, ``deliver``, ``ack`` and
``nack`` have one for each partition or record that they name, in order. A ``deliver`` that found
nothing has one row without an ``offset``. The meaning of ``offset`` depends on the operation:

* ``trim`` with cause ``request``, ``trim_to``, ``retain``: records below it are dropped;
* ``group_create``, ``group_seek``: where the group continues; 0 is the first kept record, and -1
  (``group_create`` only) the next record to arrive;
* ``group_commit``: everything below it is processed;
* ``deliver``, ``ack``, ``nack``: the record.

If an operation may name a ``partition``, null means all partitions. ``trim_to`` and ``retain`` have
only the id of their stream, so they have no row if streams are selected by name. The entry of a
``claim`` does not say which records it got.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.block import Block
from onelog.spark.columns.operands import (
    Layout,
    Operands,
    Part,
    has,
    list_rows,
    own_schema,
    whole_schema,
)
from onelog.spark.columns.operations import TYPES, find_types
from onelog.spark.columns.selection import Selection, is_one_of
from onelog.spark.columns.view import Output, View

_OWN = own_schema(
    pa.field("stream", pa.string()),
    pa.field("stream_id", pa.int64()),
    pa.field("group", pa.string()),
    pa.field("member", pa.int64()),
    pa.field("generation", pa.int64()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("from_offset", pa.int64()),
    pa.field("next_offset", pa.int64()),
    pa.field("cause", pa.string()),
    pa.field("keep", pa.int64()),  # of a trim: nanoseconds, bytes or records, by its cause
    pa.field("partition_count", pa.int32()),
    pa.field("age_ns", pa.int64()),
    pa.field("size_max", pa.int64()),
    pa.field("count_max", pa.int64()),
    pa.field("past_groups", pa.bool_()),
    pa.field("session_ns", pa.int64()),
    pa.field("delay_ns", pa.int64()),
    pa.field("idle_ns", pa.int64()),
    pa.field("limit", pa.int32()),
    pa.field("failure", pa.string()),
    pa.field("shared", pa.bool_()),
    pa.field("max_deliveries", pa.int32()),
    pa.field("dead_letter_stream", pa.string()),
    pa.field("filtered", pa.bool_()),  # whether the members of a group get some records only
    pa.field("key_hash", pa.string()),  # how keys of a stream select partitions
)
_NAMED = ("cause", "key_hash")
_PLAIN = pa.schema([field for field in _OWN if field.name not in _NAMED])

_PAST_GROUPS = 0x01
_SHARED, _FILTERED = 0x01, 0x02
_PARTITION_ANY = 0xFFFF
_CAUSES = (None, "request", "age", "size", "count", None)
_REQUEST = 1
_KEY_HASHES = ("crc32c", "mixed", None)

_PLACE_SIZE = 9
_PLACE = {"partition": (0, "<u1"), "offset": (1, "<u8")}
_CUT_SIZE = 10
_CUT = {"partition": (0, "<u1"), "cause": (1, "<u1"), "offset": (2, "<u8")}
_TRIM_CUT_SIZE = 33
_TRIM_CUT = {"partition": (0, "<u1"), "offset": (1, "<u8")}
_OFFSET_SIZE = 8
_OFFSET = {"offset": (0, "<u8")}


def _create(part: Part) -> None:
    part.index("stream_id")
    part.bytes8("stream")
    part.u16("partition_count")
    _retention(part)
    # Streams from before there was a choice have no byte for it.
    chosen = part.fields.at < part.fields.end
    part.number("key_hash", part.fields.u8(chosen), np.ones(len(chosen), np.bool_))


def _configure(part: Part) -> None:
    part.bytes8("stream")
    _retention(part)


def _retention(part: Part) -> None:
    part.u64("age_ns")
    part.u64("size_max")
    part.u64("count_max")
    part.flag("past_groups", part.options(_PAST_GROUPS), _PAST_GROUPS)


def _delete(part: Part) -> None:
    part.bytes8("stream")


def _trim(part: Part) -> None:
    part.bytes8("stream")
    causes = part.fields.u8()
    _partition_or_all(part)
    part.flag("past_groups", part.options(_PAST_GROUPS), _PAST_GROUPS)
    operands = part.fields.u64()
    by_request = causes == _REQUEST
    part.number("cause", causes, causes > 0)
    part.number("offset", operands, by_request)
    part.number("keep", operands, ~by_request)


def _partition_or_all(part: Part) -> None:
    partitions = part.fields.u16()
    part.number("partition", partitions, partitions != _PARTITION_ANY)


def _trim_to(part: Part) -> None:
    part.u64("stream_id")
    part.u8("cause")
    part.flag("past_groups", part.options(_PAST_GROUPS), _PAST_GROUPS)
    part.list(_TRIM_CUT_SIZE, _TRIM_CUT)


def _retain(part: Part) -> None:
    part.u64("stream_id")
    part.list(_CUT_SIZE, _CUT)


def _group(part: Part) -> None:
    part.bytes8("stream")
    part.bytes8("group")


def _group_create(part: Part) -> None:
    _group(part)
    part.u64("offset")
    _group_config(part)


def _group_configure(part: Part) -> None:
    _group(part)
    _group_config(part)


def _group_config(part: Part) -> None:
    options = part.options(_SHARED | _FILTERED)
    part.flag("shared", options, _SHARED)
    part.flag("filtered", options, _FILTERED)
    part.u16("max_deliveries")
    part.bytes8("dead_letter_stream")
    part.fields.bytes16(has(options, _FILTERED))


def _group_join(part: Part) -> None:
    part.index("member")
    _group(part)
    part.u64("session_ns")


def _group_member(part: Part) -> None:
    _group(part)
    part.u64("member")


def _group_fence(part: Part) -> None:
    _group_member(part)
    part.u64("generation")


def _group_commit(part: Part) -> None:
    _group_fence(part)
    part.list(_PLACE_SIZE, _PLACE)


def _group_seek(part: Part) -> None:
    _group(part)
    _partition_or_all(part)
    part.u64("offset")


def _deliver(part: Part) -> None:
    _group_fence(part)
    part.u8("partition")
    part.u64("from_offset")
    part.u64("next_offset")
    part.list(_OFFSET_SIZE, _OFFSET)


def _ack(part: Part) -> None:
    _group_member(part)
    part.list(_PLACE_SIZE, _PLACE)


def _nack(part: Part) -> None:
    _group_member(part)
    part.u64("delay_ns")
    part.bytes8("failure")
    part.list(_PLACE_SIZE, _PLACE)


def _claim(part: Part) -> None:
    _group_fence(part)
    part.u64("idle_ns")
    part.u16("limit")
    part.ranges(part.fields.at < part.fields.end)


_BY_NAME: dict[str, Layout] = {
    "create": _create,
    "configure": _configure,
    "delete": _delete,
    "trim": _trim,
    "trim_to": _trim_to,
    "retain": _retain,
    "group_create": _group_create,
    "group_configure": _group_configure,
    "group_delete": _group,
    "group_join": _group_join,
    "group_leave": _group_member,
    "group_heartbeat": _group_member,
    "group_commit": _group_commit,
    "group_seek": _group_seek,
    "deliver": _deliver,
    "ack": _ack,
    "nack": _nack,
    "claim": _claim,
}
_LAYOUTS = {TYPES["stream", name]: layout for name, layout in _BY_NAME.items()}
_WITH_LIST = find_types("stream", "trim_to", "retain", "group_commit", "deliver", "ack", "nack")


def _decode(block: Block, output: Output) -> None:
    operands = Operands(block, _LAYOUTS)
    operands.select(_wanted(operands, output.request.selection))
    operands.add_columns(output, _PLAIN)
    output.add("cause", lambda: _named(operands, "cause", _CAUSES))
    output.add("key_hash", lambda: _named(operands, "key_hash", _KEY_HASHES))


def _wanted(operands: Operands, selection: Selection) -> NDArray[np.bool_]:
    mask = operands.in_namespaces(selection)
    if selection.streams is not None:
        names, has_name = operands.span("stream")
        mask &= has_name & is_one_of(operands.block.data, names, selection.streams)
    return mask


def _named(operands: Operands, column: str, names: tuple[str | None, ...]) -> pa.Array:
    """Return a number of each row as one of ``names``; the last is that of unknown ones."""
    numbers, valid = operands.row_numbers(column)
    numbers = np.where(valid, numbers, np.uint64(len(names) - 1))
    return arrays.named(np.minimum(numbers, np.uint64(len(names) - 1)), names)


def _count(block: Block) -> NDArray[np.int64]:
    """Return the number of rows of each entry: one for each partition or record it names."""
    return list_rows(block, _LAYOUTS, _WITH_LIST)


VIEW = View("stream_operations", whole_schema(_OWN), frozenset(_LAYOUTS), _count, _decode)
