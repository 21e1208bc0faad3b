"""The view ``queue_operations``: every operation of queues, with its operands as columns.

Each operation has one row; ``ack``, ``nack``, ``extend``, ``release``, ``cancel`` and
``prioritise`` have one for each message that they name, in order. Numbers are those of the entry: 0
means no limit, or the default, as docs/queue.md says. An entry does not say:

* whether an ``enqueue`` with a ``dedup_id`` was a duplicate. ``message_id`` is the entry's index,
  which is the id of the message unless it was. The same holds for a ``schedule_fire`` that came too
  late to make a message;
* which messages a ``lease`` got, a ``purge`` removed or a ``redrive`` moved: their ``message_id``
  is null;
* whether an item took effect: a stale token is refused for its message alone unless ``strict``;
* the name of a queue, except where it is created. ``queue`` comes from the names that the reader
  knows, and is null for a deleted queue.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.block import Block
from onelog.spark.columns.fields import Fields, Spans, gather
from onelog.spark.columns.headers import HEADERS
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
from onelog.spark.columns.queue_section import TENANT_WEIGHTS
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import Output, View
from onelog.ual.errors import CorruptPayload

_OWN = own_schema(
    pa.field("queue_id", pa.int64(), nullable=False),
    pa.field("queue", pa.string()),
    pa.field("message_id", pa.int64()),
    pa.field("token", pa.int64()),
    pa.field("priority", pa.int32()),
    pa.field("delay_ns", pa.int64()),
    pa.field("at_ns", pa.int64()),
    pa.field("ttl_ns", pa.int64()),
    pa.field("dedup_id", pa.binary()),
    pa.field("group", pa.binary()),
    pa.field("tenant", pa.binary()),
    pa.field("headers", HEADERS),
    pa.field("body", pa.binary()),
    pa.field("limit", pa.int64()),  # messages that a lease, purge or redrive takes at most
    pa.field("visibility_ns", pa.int64()),
    pa.field("consumer", pa.binary()),  # that a lease is pushed to
    pa.field("failure", pa.string()),  # of a nack; of a redrive: what a failure must contain
    pa.field("strict", pa.bool_()),
    pa.field("leased_too", pa.bool_()),
    pa.field("from_id", pa.int64()),  # of a purge: included
    pa.field("below_id", pa.int64()),  # of a purge: not included
    pa.field("before_ns", pa.int64()),
    pa.field("redrive_id", pa.int64()),
    pa.field("target_queue_id", pa.int64()),
    pa.field("first_id", pa.int64()),  # of a redrive: included, as the last
    pa.field("last_id", pa.int64()),
    pa.field("failed_from_ns", pa.int64()),
    pa.field("failed_until_ns", pa.int64()),
    pa.field("rate_per_s", pa.int64()),
    pa.field("cursor", pa.int64()),
    pa.field("schedule_id", pa.int64()),
    pa.field("cron", pa.string()),
    pa.field("fire_ns", pa.int64()),
    pa.field("max_deliveries", pa.int32()),
    pa.field("dead_queue_id", pa.int64()),
    pa.field("ageing_ns", pa.int64()),
    pa.field("dedup_window_ns", pa.int64()),
    pa.field("dedup_max", pa.int64()),
    pa.field("messages_max", pa.int64()),
    pa.field("backoff_ns", pa.list_(pa.int64())),
    pa.field("tenant_weights", TENANT_WEIGHTS),
)
_SPECIAL = ("queue", "headers", "body", "backoff_ns", "tenant_weights")
_PLAIN = pa.schema([field for field in _OWN if field.name not in _SPECIAL])

_STRICT = 0x01
_NACK_DELAY = 0x02
_LEASED_TOO = 0x01
_DELAY, _AT, _TTL, _DEDUP, _GROUP, _TENANT, _HEADERS = (1 << bit for bit in range(7))

_ITEM_SIZE = 16
_ITEM = {"message_id": (0, "<u8"), "token": (8, "<u8")}
_ID_SIZE = 8
_ID = {"message_id": (0, "<u8")}

_BACKOFF = "backoff"  # the span of a configuration's delays
_BACKOFF_STEP_SIZE = 8
_WEIGHTS = "weights"  # of tenants, at the end of a configuration: their number, and their span
_WEIGHTS_MAX = 100


def _enqueue(part: Part) -> None:
    part.u64("queue_id")
    part.index("message_id")
    options = part.options(0x7F)
    part.u8("priority")
    part.u64("delay_ns", has(options, _DELAY))
    part.u64("at_ns", has(options, _AT))
    part.u64("ttl_ns", has(options, _TTL))
    part.bytes8("dedup_id", has(options, _DEDUP))
    part.bytes8("group", has(options, _GROUP))
    part.bytes8("tenant", has(options, _TENANT))
    part.message(has(options, _HEADERS))


def _schedule_create(part: Part) -> None:
    part.u64("queue_id")
    part.index("schedule_id")
    options = part.options(_TTL | _GROUP | _TENANT | _HEADERS)
    part.u8("priority")
    part.bytes8("cron")
    part.u64("ttl_ns", has(options, _TTL))
    part.bytes8("group", has(options, _GROUP))
    part.bytes8("tenant", has(options, _TENANT))
    part.message(has(options, _HEADERS))


def _lease(part: Part) -> None:
    part.u64("queue_id")
    part.u16("limit")
    part.u64("visibility_ns")
    has_tail = part.fields.at < part.fields.end
    is_ended = part.ranges(has_tail) & (part.fields.at == part.fields.end)
    has_name = has_tail & ~is_ended
    if (part.name8("consumer", has_name) != has_name).any():
        raise CorruptPayload("a consumer without a name")


def _settle(part: Part) -> None:
    """Read an ack or a release."""
    _strict(part)
    part.list(_ITEM_SIZE, _ITEM)


def _nack(part: Part) -> None:
    options = _strict(part, _STRICT | _NACK_DELAY)
    part.u64("delay_ns", has(options, _NACK_DELAY))
    part.bytes16("failure")
    part.list(_ITEM_SIZE, _ITEM)


def _extend(part: Part) -> None:
    _strict(part)
    part.u64("visibility_ns")
    part.list(_ITEM_SIZE, _ITEM)


def _cancel(part: Part) -> None:
    _strict(part)
    part.list(_ID_SIZE, _ID)


def _prioritise(part: Part) -> None:
    _strict(part)
    part.u8("priority")
    part.list(_ID_SIZE, _ID)


def _strict(part: Part, known: int = _STRICT) -> NDArray[np.uint8]:
    part.u64("queue_id")
    options = part.options(known)
    part.flag("strict", options, _STRICT)
    return options


def _purge(part: Part) -> None:
    part.u64("queue_id")
    part.flag("leased_too", part.options(_LEASED_TOO), _LEASED_TOO)
    part.u64("from_id")
    part.u64("below_id")
    part.u64("before_ns")
    part.u32("limit")


def _redrive(part: Part) -> None:
    part.index("redrive_id")
    for name in (
        "queue_id", "target_queue_id", "first_id", "last_id", "failed_from_ns", "failed_until_ns",
        "limit",
    ):  # fmt: skip
        part.u64(name)
    part.u32("rate_per_s")
    part.bytes8("failure")


def _redrive_step(part: Part) -> None:
    _redrive_cancel(part)
    part.u64("cursor")


def _redrive_cancel(part: Part) -> None:
    part.u64("queue_id")
    part.u64("redrive_id")


def _schedule_delete(part: Part) -> None:
    part.u64("queue_id")
    part.u64("schedule_id")


def _schedule_fire(part: Part) -> None:
    _schedule_delete(part)
    part.index("message_id")
    part.u64("fire_ns")


def _queue_create(part: Part) -> None:
    part.index("queue_id")
    part.bytes8("queue")
    _configuration(part)


def _queue_configure(part: Part) -> None:
    part.u64("queue_id")
    _configuration(part)


def _configuration(part: Part) -> None:
    part.u16("max_deliveries")
    for name in ("dead_queue_id", "visibility_ns", "ageing_ns", "ttl_ns", "dedup_window_ns"):
        part.u64(name)
    part.u32("dedup_max")
    part.u64("messages_max")
    steps = part.fields.u8().astype(np.int64)
    part.span(_BACKOFF, part.fields.fixed(steps * _BACKOFF_STEP_SIZE))
    fields = part.fields
    has_weights = fields.at < fields.end
    counts = fields.u8(has_weights).astype(np.int64)
    if (has_weights & (counts == 0)).any() or (counts > _WEIGHTS_MAX).any():
        raise CorruptPayload(f"weights of tenants that are not 1 to {_WEIGHTS_MAX}")
    start = fields.at
    for _, each in fields.each(counts):
        each.bytes8(), each.u16()
    part.number(_WEIGHTS, counts, np.ones(len(counts), np.bool_))
    part.span(_WEIGHTS, Spans(start, fields.at))


def _queue(part: Part) -> None:
    part.u64("queue_id")


_BY_NAME: dict[str, Layout] = {
    "enqueue": _enqueue,
    "lease": _lease,
    "ack": _settle,
    "nack": _nack,
    "extend": _extend,
    "release": _settle,
    "cancel": _cancel,
    "prioritise": _prioritise,
    "purge": _purge,
    "redrive": _redrive,
    "redrive_step": _redrive_step,
    "redrive_cancel": _redrive_cancel,
    "schedule_create": _schedule_create,
    "schedule_delete": _schedule_delete,
    "schedule_fire": _schedule_fire,
    "queue_create": _queue_create,
    "queue_configure": _queue_configure,
    "queue_delete": _queue,
    "queue_pause": _queue,
    "queue_resume": _queue,
}
_LAYOUTS = {TYPES["queue", name]: layout for name, layout in _BY_NAME.items()}
_WITH_LIST = find_types("queue", "ack", "nack", "extend", "release", "cancel", "prioritise")


def _decode(block: Block, output: Output) -> None:
    operands = Operands(block, _LAYOUTS)
    operands.select(_wanted(operands, output.request.selection))
    operands.add_columns(output, _PLAIN, body="body")
    output.add("queue", lambda: _queue_names(operands, output.request.queue_names))
    output.add("backoff_ns", lambda: _backoffs(operands))
    output.add("tenant_weights", lambda: _weights(operands))


def _wanted(operands: Operands, selection: Selection) -> NDArray[np.bool_]:
    mask = operands.in_namespaces(selection)
    if selection.queues is not None:
        queues, _ = operands.number("queue_id")
        mask &= np.isin(queues, np.array(sorted(selection.queues), np.uint64))
    return mask


def _queue_names(operands: Operands, known: Mapping[int, str]) -> pa.Array:
    """Return the name of each row's queue: from its creation, or from the known names."""
    ids, place = np.unique(operands.number("queue_id")[0][operands.entries], return_inverse=True)
    names = pa.array([known.get(number) for number in ids.tolist()], pa.string())
    found = names.take(pa.array(place))
    created = operands.column("queue", pa.string())
    return created if created.null_count == 0 else pc.coalesce(created, found)


def _backoffs(operands: Operands) -> pa.Array:
    """Return the delays of each configuration as a list."""
    spans, valid = operands.span(_BACKOFF)
    here = valid[operands.entries]
    sizes = np.where(here, spans.size[operands.entries], 0) // _BACKOFF_STEP_SIZE
    ends = np.cumsum(sizes)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    at = np.repeat(spans.start[operands.entries], sizes) + within * _BACKOFF_STEP_SIZE
    delays = gather(operands.block.data, at, np.dtype("<u8"))
    return pa.ListArray.from_arrays(
        pa.array(np.append(0, ends).astype(np.int32)),
        arrays.numbers(delays),
        mask=None if here.all() else pa.array(~here),
    )


def _weights(operands: Operands) -> pa.Array:
    """Return the weights of tenants of each configuration as a map."""
    spans, valid = operands.span(_WEIGHTS)
    entries = operands.entries
    here = valid[entries]
    counts = np.where(here, operands.number(_WEIGHTS)[0][entries], 0).astype(np.int64)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    names, weights = Spans(np.zeros(total, np.int64), np.zeros(total, np.int64)), np.zeros(total)
    fields = Fields(operands.block.data, spans.start[entries], spans.end[entries])
    for number, (rows, each) in enumerate(fields.each(counts)):
        places = (ends - counts)[rows] + number
        names.start[places], names.end[places] = each.bytes8()
        weights[places] = each.u16()
    return pa.MapArray.from_arrays(
        pa.array(np.append(0, ends).astype(np.int32)),
        arrays.binary(operands.block.data, names),
        pa.array(weights.astype(np.int32)),
        type=TENANT_WEIGHTS,
        mask=None if here.all() else pa.array(~here),
    )


def _count(block: Block) -> NDArray[np.int64]:
    """Return the number of rows of each entry: one for each message that it names."""
    return list_rows(block, _LAYOUTS, _WITH_LIST)


VIEW = View("queue_operations", whole_schema(_OWN), frozenset(_LAYOUTS), _count, _decode)
