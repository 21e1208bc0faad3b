"""The view ``log``: one row for each entry, whatever its type, with its payload as it is.

``name`` is what the entry concerns, if its payload has one name: the key of a KV operation, the
stream, the series of a single point, the measurement, or the queue if its name is known. A
transaction, a batch of points and an expiry concern several things and have no name.

A selection by names keeps the entries that have one of them. ``key_prefix`` keeps an entry if any
of its keys has the prefix (kv.py); ``measurements`` keeps one that concerns a measurement as a
whole, or any of its series (timeseries.py).
"""

from collections.abc import Mapping
from functools import cache, cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.block import Block
from onelog.spark.columns.fields import Fields, Mask, Spans
from onelog.spark.columns.kv import SINGLE_KEY_TYPES, entries_with_prefix, read_keys
from onelog.spark.columns.operations import OWNERS, TYPES, find_types
from onelog.spark.columns.selection import Selection, is_one_of
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

# Operations whose payloads lack the common prefix and are opaque.
_OPAQUE = find_types("system", "noop", "raft_config")
_STREAM_FIRST = find_types("stream") - find_types("stream", "append", "retain", "trim_to")
_MEASUREMENT_FIRST = find_types("timeseries") - find_types(
    "timeseries", "ts_write", "ts_write_batch", "ts_block"
)
_QUEUE_FIRST = find_types("queue") - find_types("queue", "queue_create")


def _decode(block: Block, output: Output) -> None:
    names = _Names(block)
    is_wanted = _wanted(block, output.request.selection, names)
    if is_wanted is not None and not is_wanted.all():
        block = block.select(np.flatnonzero(is_wanted))
        names = _Names(block)
    count = len(block)
    every = np.arange(count)
    headers = block.headers
    output.add_entry_columns(block, every, np.zeros(count, np.int64))
    output.add("type", lambda: arrays.numbers(headers["entry_type"], pa.int32()))
    output.add("owner", lambda: arrays.named(_owners(headers), [*OWNERS, None]))
    output.add("flags", lambda: arrays.numbers(headers["flags"], pa.int32()))
    output.add("group_left", lambda: arrays.numbers(headers["group_left"], pa.int32()))
    output.add("namespace", lambda: names.namespaces())
    column = cache(lambda: names.column(output.request.queue_names))
    output.add("name", column)
    output.add("name_text", lambda: arrays.to_text(column()))
    output.add("payload", lambda: arrays.binary(block.data, Spans(block.start, block.end)))


def _owners(headers: NDArray[np.void]) -> NDArray[np.uint16]:
    """Return the number of each entry's owner; an unknown owner is one above the last known."""
    owners: NDArray[np.uint16] = headers["entry_type"] >> np.uint16(8)
    return np.minimum(owners, np.uint16(len(OWNERS)))


def _wanted(block: Block, selection: Selection, names: "_Names") -> Mask | None:
    """Tell which entries the names in a selection keep; None: it has no names."""
    masks: list[Mask] = []
    if selection.namespaces is not None:
        is_in = is_one_of(block.data, names.namespace, selection.namespaces)
        masks.append(names.has_namespace & is_in)
    owner = block.headers["entry_type"] >> np.uint16(8)
    if selection.streams is not None:
        is_about = is_one_of(block.data, names.name, selection.streams)
        masks.append((owner == OWNERS.index("stream")) & names.valid & is_about)
    if selection.measurements is not None:
        masks.append(entries_with_measurement(block, selection.measurements))
    if selection.queues is not None:
        masks.append(names.are_about_queues(selection.queues))
    if selection.key_prefix is not None:
        masks.append(entries_with_prefix(block, selection.key_prefix))
    return np.logical_and.reduce(masks) if masks else None


class _Names:
    """The namespace and name of each entry of a block, and the queue that it concerns.

    Each is read when it is first asked for: a reader of headers needs none.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._types = block.headers["entry_type"]
        self.has_namespace = ~np.isin(self._types, _numbers(_OPAQUE))

    @cached_property
    def _behind_prefix(self) -> tuple[Fields, Spans]:
        """Cursors behind the prefixes, for entries that have one, and the namespaces."""
        block, known = self._block, self.has_namespace
        fields = Fields(block.data, block.start[known], block.end[known])
        return fields, fields.prefix()

    @cached_property
    def namespace(self) -> Spans:
        """Where each namespace is; an empty span for an entry without one."""
        spans = self._nowhere()
        spans.start[self.has_namespace], spans.end[self.has_namespace] = self._behind_prefix[1]
        return spans

    @property
    def name(self) -> Spans:
        """Where each name is, for the entries that are ``valid``."""
        return self._named[0]

    @property
    def valid(self) -> Mask:
        """Which entries have exactly one name."""
        return self._named[1]

    @cached_property
    def _named(self) -> tuple[Spans, Mask]:
        name, valid = self._nowhere(), np.zeros(len(self._block), np.bool_)
        for kinds, read in (
            (find_types("stream", "append"), _read_stream_of_append),
            (_STREAM_FIRST | _MEASUREMENT_FIRST, Fields.bytes8),
            (find_types("queue", "queue_create"), Fields.bytes8),
            (find_types("timeseries", "ts_write"), Fields.bytes16),
        ):
            rows, fields = self._among(kinds)
            if len(rows):
                name.start[rows], name.end[rows] = read(fields)
                valid[rows] = True
        rows, fields = self._among(SINGLE_KEY_TYPES)
        if len(rows):
            name.start[rows], name.end[rows] = read_keys(self._types[rows], fields)
            valid[rows] = True
        return name, valid

    @cached_property
    def queue(self) -> NDArray[np.uint64]:
        """The id of the queue that each entry concerns; 0: none."""
        found = np.zeros(len(self._block), np.uint64)
        rows, fields = self._among(_QUEUE_FIRST)
        found[rows] = fields.u64()
        created = self._types == TYPES["queue", "queue_create"]
        found[created] = self._block.headers["index"][created]
        return found

    def are_about_queues(self, queues: frozenset[int]) -> Mask:
        """Tell which entries concern one of some queues."""
        mask: Mask = np.isin(self.queue, np.array(sorted(queues), np.uint64)) & (self.queue != 0)
        return mask

    def namespaces(self) -> pa.Array:
        """Return the column of namespaces."""
        return arrays.text(self._block.data, self.namespace, valid=self.has_namespace)

    def column(self, queue_names: Mapping[int, str]) -> pa.Array:
        """Return the column of names."""
        found = arrays.binary(self._block.data, self.name, valid=self.valid)
        of_queues = np.flatnonzero((self.queue != 0) & ~self.valid)
        if not len(of_queues) or not queue_names:
            return found
        ids, place = np.unique(self.queue[of_queues], return_inverse=True)
        known = [queue_names.get(number) for number in ids.tolist()]
        names = pa.array([None if name is None else name.encode() for name in known], pa.binary())
        source = np.arange(len(self.queue), dtype=np.int64)
        source[of_queues] = len(source) + place
        return pa.chunked_array([found, names]).take(pa.array(source)).combine_chunks()

    def _among(self, kinds: frozenset[int]) -> tuple[NDArray[np.intp], Fields]:
        """Return the entries of some types, with cursors behind their prefixes."""
        fields, _ = self._behind_prefix
        known = np.flatnonzero(self.has_namespace)
        among = np.flatnonzero(np.isin(self._types[known], _numbers(kinds)))
        return known[among], fields.take(among)

    def _nowhere(self) -> Spans:
        return Spans(self._block.start.copy(), self._block.start.copy())


def _numbers(types: frozenset[int]) -> NDArray[np.uint16]:
    return np.array(sorted(types), np.uint16)


def _read_stream_of_append(fields: Fields) -> Spans:
    fields.skip(1)
    return fields.bytes8()


VIEW = View("log", _SCHEMA, None, None, _decode)
