"""The view ``log``: one row for each entry, whatever its type, with its payload as it is.

``name`` is what the entry is about, where its payload says one name: the key of a KV operation,
the stream, the series of a single point, the measurement, and the queue where its name is known.
A transaction, a batch of points and an expiry speak of several things and have none. A selection of
measurements keeps the entries that name one of them, or have a series of one.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.block import Block
from onelog.spark.columns.fields import Fields, Spans
from onelog.spark.columns.operations import OWNERS, TYPES, types_of
from onelog.spark.columns.selection import is_one_of, starts_with
from onelog.spark.columns.timeseries import entries_with_measurement
from onelog.spark.columns.view import ENTRY_FIELDS, Output, View

_SCHEMA = pa.schema(
    [
        *ENTRY_FIELDS,
        pa.field("type", pa.int32(), nullable=False),
        pa.field("owner", pa.string()),
        pa.field("flags", pa.int32(), nullable=False),
        pa.field("group_left", pa.int32(), nullable=False),
        pa.field("namespace", pa.string()),
        pa.field("name", pa.binary()),
        pa.field("name_text", pa.string()),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)

# Operations without the common prefix: their payloads are opaque.
_OPAQUE = types_of("system", "noop", "raft_config")
_KEY_REST = types_of("kv", "increment", "min", "max")
_KEY_BYTES16 = types_of("kv", "append", "json_delete")
_STREAM_FIRST = types_of("stream") - types_of("stream", "append", "retain")
_MEASUREMENT_FIRST = types_of("timeseries") - types_of(
    "timeseries", "ts_write", "ts_write_batch", "ts_block"
)
_QUEUE_FIRST = types_of("queue") - types_of("queue", "queue_create")
_OPTION_TTL, _OPTION_LEASE, _OPTION_EXPECTED = 1, 2, 4


def _decode(block: Block, output: Output) -> None:
    names = _Names(block)
    rows = np.flatnonzero(_wanted(block, output, names))
    if len(rows) < len(block):
        block, names = block.select(rows), names.select(rows)
    count = len(block)
    every = np.arange(count)
    headers = block.headers
    output.add_entry_columns(block, every, np.zeros(count, np.int64))
    output.add("type", lambda: arrays.numbers(headers["entry_type"], pa.int32()))
    output.add("owner", lambda: arrays.named(_owners(headers), [*OWNERS, None]))
    output.add("flags", lambda: arrays.numbers(headers["flags"], pa.int32()))
    output.add("group_left", lambda: arrays.numbers(headers["group_left"], pa.int32()))
    output.add("namespace", lambda: names.namespaces())
    output.add("name", lambda: names.column(output.request.queue_names))
    output.add("name_text", lambda: arrays.to_text(names.column(output.request.queue_names)))
    output.add("payload", lambda: arrays.binary(block.data, Spans(block.start, block.end)))


def _owners(headers: NDArray[np.void]) -> NDArray[np.uint16]:
    """Return the number of each entry's owner, one more than the last for an unknown one."""
    owners: NDArray[np.uint16] = headers["entry_type"] >> np.uint16(8)
    return np.minimum(owners, np.uint16(len(OWNERS)))


def _wanted(block: Block, output: Output, names: "_Names") -> NDArray[np.bool_]:
    """Tell which entries the names in the selection want; an entry without a name, none."""
    selection = output.request.selection
    mask = np.ones(len(block), np.bool_)
    if selection.namespaces is not None:
        mask &= names.has_namespace & is_one_of(block.data, names.namespace, selection.namespaces)
    owner = block.headers["entry_type"] >> np.uint16(8)
    if selection.streams is not None:
        is_stream = (owner == OWNERS.index("stream")) & names.valid
        mask &= is_stream & is_one_of(block.data, names.name, selection.streams)
    if selection.measurements is not None:
        mask &= entries_with_measurement(block, selection.measurements)
    if selection.queues is not None:
        mask &= names.is_about_queue(selection.queues)
    if selection.key_prefix is not None:
        is_key = (owner == OWNERS.index("kv")) & names.valid
        mask &= is_key & starts_with(block.data, names.name, selection.key_prefix)
    return mask


class _Names:
    """Namespace and name of each entry of a block, as spans, and the queue that it is about."""

    def __init__(self, block: Block) -> None:
        count = len(block)
        types = block.headers["entry_type"]
        self._data = block.data
        self.has_namespace = ~np.isin(types, np.array(sorted(_OPAQUE), np.uint16))
        self.namespace = Spans(block.start.copy(), block.start.copy())
        self.name = Spans(block.start.copy(), block.start.copy())
        self.valid = np.zeros(count, np.bool_)
        self.queue = np.zeros(count, np.uint64)  # the id; 0: not about one queue
        known = np.flatnonzero(self.has_namespace)
        fields = Fields(block.data, block.start[known], block.end[known])
        namespace = fields.prefix()
        self.namespace.start[known], self.namespace.end[known] = namespace
        for kinds, find in (
            (types_of("kv", "put", "delete"), _key_of_put),
            (types_of("kv", "touch"), _key_of_touch),
            (_KEY_REST, _key_rest),
            (_KEY_BYTES16, Fields.bytes16),
            (types_of("kv", "json_set"), _key_of_json_set),
            (types_of("stream", "append"), _stream_of_append),
            (_STREAM_FIRST | _MEASUREMENT_FIRST, Fields.bytes8),
            (types_of("queue", "queue_create"), Fields.bytes8),
            (types_of("timeseries", "ts_write"), Fields.bytes16),
        ):
            among = np.flatnonzero(np.isin(types[known], np.array(sorted(kinds), np.uint16)))
            if len(among):
                rows = known[among]
                self.name.start[rows], self.name.end[rows] = find(fields.take(among))
                self.valid[rows] = True
        among = np.flatnonzero(np.isin(types[known], np.array(sorted(_QUEUE_FIRST), np.uint16)))
        self.queue[known[among]] = fields.take(among).u64()
        created = types == TYPES["queue", "queue_create"]
        self.queue[created] = block.headers["index"][created]

    def select(self, rows: NDArray[np.intp]) -> "_Names":
        chosen = _Names.__new__(_Names)
        chosen._data = self._data
        chosen.has_namespace = self.has_namespace[rows]
        chosen.namespace = self.namespace.take(rows)
        chosen.name = self.name.take(rows)
        chosen.valid = self.valid[rows]
        chosen.queue = self.queue[rows]
        return chosen

    def is_about_queue(self, queues: frozenset[int]) -> NDArray[np.bool_]:
        wanted = np.array(sorted(queues), np.uint64)
        mask: NDArray[np.bool_] = np.isin(self.queue, wanted) & (self.queue != 0)
        return mask

    def namespaces(self) -> pa.Array:
        return arrays.text(self._data, self.namespace, valid=self.has_namespace)

    def column(self, queue_names: Mapping[int, str]) -> pa.Array:
        found = arrays.binary(self._data, self.name, valid=self.valid)
        of_queues = np.flatnonzero((self.queue != 0) & ~self.valid)
        if not len(of_queues) or not queue_names:
            return found
        ids, place = np.unique(self.queue[of_queues], return_inverse=True)
        known = [queue_names.get(number) for number in ids.tolist()]
        names = pa.array([None if name is None else name.encode() for name in known], pa.binary())
        source = np.arange(len(self.queue), dtype=np.int64)
        source[of_queues] = len(source) + place
        return pa.chunked_array([found, names]).take(pa.array(source)).combine_chunks()


def _key_of_put(fields: Fields) -> Spans:
    """Find the key of a put or delete: its size stands before the optional fields."""
    options, size = fields.u8(), fields.u16()
    for option in (_OPTION_TTL, _OPTION_LEASE, _OPTION_EXPECTED):
        fields.skip(8, (options & np.uint8(option)) != 0)
    return fields.fixed(size.astype(np.int64))


def _key_of_touch(fields: Fields) -> Spans:
    options, size = fields.u8(), fields.u16()
    fields.skip(8)
    fields.skip(8, (options & np.uint8(_OPTION_EXPECTED)) != 0)
    return fields.fixed(size.astype(np.int64))


def _key_rest(fields: Fields) -> Spans:
    fields.skip(8)
    return fields.rest()


def _key_of_json_set(fields: Fields) -> Spans:
    fields.skip(1)
    return fields.bytes16()


def _stream_of_append(fields: Fields) -> Spans:
    fields.skip(1)
    return fields.bytes8()


VIEW = View("log", _SCHEMA, None, None, _decode)
