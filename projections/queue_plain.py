"""The short way of plain messages: enqueue, lease, ack.

A plain message has id, time and priority, and nothing else. What happens to each of them is done
here in straight code: decode, execute and ``QueueState.swap`` in one. Whatever is unusual is left
to the long way, by returning None before anything has changed. That both ways agree is a test. In a
batch, which may be taken back, only enqueue goes this way.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from functools import partial

from projections.projection import Position
from projections.queue_changes import QueueChanges
from projections.queue_columns import DUE, MERGE_ROWS, TOKEN, Block, Table
from projections.queue_commands import OPTION_STRICT, Items
from projections.queue_deadlines import LEASE_ENDS, Wakeups
from projections.queue_limits import (
    BLOCK_ROWS,
    ITEMS_MAX,
    LEASED_MAX,
    MESSAGE_SIZE_MAX,
    PRIORITY_MAX,
    VISIBILITY_NS_MAX,
)
from projections.queue_ready import TRIM_ROWS, Level
from projections.queue_results import ACKED, LEASE_HEAD, LEASE_ROW
from projections.queue_row import (
    DELIVERIES_SHIFT,
    DELIVERY,
    LEASED,
    LEASED_ROW,
    PLAIN,
    PRIORITY_SHIFT,
    READY,
    STATE_MASK,
    UNUSUAL,
)
from projections.queue_store import QueueState, Total
from projections.result import APPLIED, Applied
from projections.state_hash import item_hash

_unpack_lease = struct.Struct("<HQ").unpack_from
_unpack_ack = struct.Struct("<BHQQ").unpack_from
_LEASE_TAIL = 10
_ACK_TAIL = 19
_COUNTED = struct.Struct("<BH")  # options, count
_ITEM_SIZE = 16
_pack_plain = PLAIN.pack
_pack_leased = LEASED_ROW.pack
_NOT_PLAIN = STATE_MASK | UNUSUAL
_META_FULL = 0xFFFF << DELIVERIES_SHIFT
_META_LOW = DELIVERY - 1
_MERGE_MASK = 31  # a block that empties is looked at now and then, and when it is empty
_TAKEN = DELIVERY | LEASED
_pack_row = LEASE_ROW.pack
_pack_one = struct.Struct(LEASE_HEAD.format + LEASE_ROW.format.removeprefix("<")).pack
_join = b"".join
_new = Applied.__new__
_set_number = Applied.number.__set__  # type: ignore[misc, attr-defined]
_set_value = Applied.value.__set__  # type: ignore[misc, union-attr]
_set_results = Applied.results.__set__  # type: ignore[misc, attr-defined]
_ENQUEUED = int(Total.ENQUEUED)
_ACKED = int(Total.ACKED)


Span = tuple[Block, int, int]
"""Rows of one block, from the first to before the last number."""


class PlainPaths:
    """Handlers for the router; ``by_head`` finds a queue by prefix and id as a payload has them."""

    __slots__ = ("_by_head", "_changes", "_position", "_wakeups")

    def __init__(
        self,
        position: Position,
        by_head: Mapping[bytes, QueueState],
        wakeups: Wakeups,
        changes: QueueChanges,
    ) -> None:
        self._position = position
        self._by_head = by_head
        self._changes = changes
        self._wakeups = wakeups

    def enqueue(self, index: int, payload: bytes) -> Applied | None:
        """Apply an enqueue without options, or return None and change nothing."""
        try:
            at = payload[2] + 11
            queue = self._by_head.get(payload[:at])
            if queue is None or payload[at]:
                return None
            priority = payload[at + 1]
        except IndexError:
            return None
        config = queue.config
        if (
            priority > PRIORITY_MAX
            or config.ttl_ns
            or config.messages_max
            or len(payload) - at - 2 > MESSAGE_SIZE_MAX
        ):
            return None
        level = queue.ready.plain.levels[priority]
        if level is None:
            return None
        now_ns = self._position.log_time_ns
        blocks = queue.table.blocks
        block = blocks[-1] if blocks else queue.table.append_block(index)
        if len(block.ids) >= BLOCK_ROWS:
            block = queue.table.append_block(index)
        meta = priority << PRIORITY_SHIFT
        block.ids.append(index)
        block.since.append(now_ns)
        block.meta.append(meta)
        if block.has_columns:
            for column in block.columns:
                if column is not None:
                    column.append(0)
        queue.counts[READY] += 1
        queue.totals[_ENQUEUED] += 1
        queue.hash_total += item_hash(_pack_plain(index, now_ns, meta), queue.id)
        level.last_ns = now_ns
        level.last_id = index
        level.ids.append(index)
        level.since.append(now_ns)
        if queue.undo.active:
            queue.undo.note(partial(queue.take_back_plain, index))
        return APPLIED

    def lease(self, index: int, payload: bytes) -> Applied | None:
        """Lease plain messages of the first priority, or return None and change nothing."""
        try:
            at = payload[2] + 11
        except IndexError:
            return None
        queue = self._by_head.get(payload[:at])
        if (
            queue is None
            or len(payload) != at + _LEASE_TAIL
            or queue.is_paused
            or queue.undo.active
        ):
            return None
        count, visibility_ns = _unpack_lease(payload, at)
        config = queue.config
        ready = queue.ready
        plain = ready.plain
        if (
            len(ready.active) != 1
            or not plain.priorities
            or config.ageing_ns
            or queue.last_tenant
            or visibility_ns > VISIBILITY_NS_MAX
            or queue.counts[LEASED] + count > LEASED_MAX
        ):
            return None
        level = plain.levels[plain.priorities[0]]
        if level is None or level.late or not 0 < count <= ITEMS_MAX:
            return None
        if count > len(level.ids) - level.head:
            return None
        deadline_ns = self._position.log_time_ns + (visibility_ns or config.visibility_ns)
        take = _lease_one if count == 1 else _lease_several
        value = take(queue, level, count, deadline_ns, index)
        if value is None:
            return None
        level.head += count
        if level.head >= TRIM_ROWS and level.head * 2 >= len(level.ids):
            level.trim()
        counts = queue.counts
        counts[READY] -= count
        counts[LEASED] += count
        known_ns = self._wakeups.times.get(queue.id)
        if known_ns is None or deadline_ns < known_ns:
            self._wakeups.note(queue.id, deadline_ns)
        self._changes.add_lease(index, queue.id, value)
        # The slots directly: the frozen constructor costs 0.5 of the 4 µs that a lease takes.
        result = _new(Applied)
        _set_number(result, count)
        _set_value(result, value)
        _set_results(result, ())
        return result

    def ack(self, index: int, payload: bytes) -> Applied | None:  # noqa: ARG002 - a fast path's
        """Acknowledge plain messages, or return None and change nothing."""
        try:
            at = payload[2] + 11
        except IndexError:
            return None
        queue = self._by_head.get(payload[:at])
        if queue is None or not queue.table.blocks or queue.undo.active:
            return None
        if len(payload) != at + _ACK_TAIL:
            return _ack_several(queue, payload, at)
        options, count, message_id, token = _unpack_ack(payload, at)
        if options > OPTION_STRICT or count != 1:
            return None
        table = queue.table
        block, row = table.blocks[0], 0
        ids = block.ids
        if ids[0] != message_id:  # most messages are done in the order in which they came
            block = table.blocks[bisect_right(table.firsts, message_id) - 1]
            ids = block.ids
            row = bisect_left(ids, message_id)
            if row == len(ids) or ids[row] != message_id:
                return None
        metas = block.meta
        meta = metas[row]
        if meta & _NOT_PLAIN != LEASED:
            return None
        columns = block.columns
        due, tokens = columns[DUE], columns[TOKEN]
        assert due is not None and tokens is not None  # noqa: PT018
        if tokens[row] != token:
            return None
        deadline_ns = due[row]
        packed = _pack_leased(message_id, block.since[row], meta, deadline_ns, token)
        queue.hash_total -= item_hash(packed, queue.id)
        del ids[row]
        del block.since[row]
        del metas[row]
        del due[row]
        del tokens[row]
        if block.is_wide:
            for column in columns[TOKEN + 1 :]:
                if column is not None:
                    del column[row]
        left = len(ids)
        if left < MERGE_ROWS and not left & _MERGE_MASK:
            table.shrink(block)
        queue.counts[LEASED] -= 1
        queue.totals[_ACKED] += 1
        queue.deadlines.cancel(deadline_ns, message_id, LEASE_ENDS)
        return ACKED

    def ack_items(self, queue: QueueState, items: Items) -> Applied | None:
        """Acknowledge plain messages of a command, or return None and change nothing.

        For acks that come the long way though their messages are plain: no handler is asked about
        a payload that is compressed, and with 64 items that of an ack is large enough to be.
        """
        if len(items) < 2 or queue.undo.active:
            return None
        ids, tokens = zip(*items, strict=True)
        return _ack_rows(queue, array("Q", ids), array("Q", tokens))


def _lease_one(
    queue: QueueState,
    level: Level,
    count: int,  # noqa: ARG001 - one
    deadline_ns: int,
    token: int,
) -> bytes | None:
    """Lease the first message of a level and return the result, if it is there and plain."""
    blocks = queue.table.blocks
    message_id = level.ids[level.head]
    try:
        block, row = blocks[level.near_block], level.near_row
        if block.ids[row] != message_id:
            row += 1
        is_found = block.ids[row] == message_id
    except IndexError:
        is_found = False
    if not is_found:
        if not blocks:
            return None
        # Below the first block this finds the last one, which does not have the message either.
        number = bisect_right(queue.table.firsts, message_id) - 1
        block = blocks[number]
        row = bisect_left(block.ids, message_id)
        if row == len(block.ids) or block.ids[row] != message_id:
            return None
        level.near_block = number
    metas = block.meta
    meta, since_ns = metas[row], block.since[row]
    # Ready, of this priority, without any option, and its count of deliveries may rise. Such a
    # message has waited since it came, so the entry of the level is true.
    if meta & _META_LOW != level.meta or meta >= _META_FULL:
        return None
    level.near_row = row
    after = metas[row] = meta + _TAKEN
    columns = block.columns
    (columns[DUE] or block.column(DUE))[row] = deadline_ns
    (columns[TOKEN] or block.column(TOKEN))[row] = token
    seed = queue.id
    packed = _pack_leased(message_id, since_ns, after, deadline_ns, token)
    queue.hash_total += item_hash(packed, seed) - item_hash(
        _pack_plain(message_id, since_ns, meta), seed
    )
    queue.deadlines.add(deadline_ns, message_id, LEASE_ENDS)
    return _pack_one(token, deadline_ns, 1, message_id, message_id, after & _META_FULL)


def _lease_several(
    queue: QueueState, level: Level, count: int, deadline_ns: int, token: int
) -> bytes | None:
    """Lease the first messages of a level and return the result, if all are there and plain."""
    spans = []
    parts = [LEASE_HEAD.pack(token, deadline_ns, count)]
    change = 0
    seed = queue.id
    start, end = level.head, level.head + count
    while start < end:
        span = _span(queue.table, level.ids[start:end])
        if span is None:
            return None
        block, first, last = span
        rows = zip(
            block.ids[first:last], block.since[first:last], block.meta[first:last], strict=True
        )
        for message_id, since_ns, meta in rows:
            if meta & _META_LOW != level.meta or meta >= _META_FULL:
                return None
            after = meta + _TAKEN
            packed = _pack_leased(message_id, since_ns, after, deadline_ns, token)
            change += item_hash(packed, seed)
            change -= item_hash(_pack_plain(message_id, since_ns, meta), seed)
            parts.append(_pack_row(message_id, message_id, after & _META_FULL))
        spans.append(span)
        start += last - first
    for block, first, last in spans:
        size = last - first
        block.meta[first:last] = array("I", [meta + _TAKEN for meta in block.meta[first:last]])
        block.column(DUE)[first:last] = array("Q", (deadline_ns,)) * size
        block.column(TOKEN)[first:last] = array("Q", (token,)) * size
        queue.deadlines.add_all(deadline_ns, block.ids[first:last], LEASE_ENDS)
    queue.hash_total += change
    return _join(parts)


def _ack_several(queue: QueueState, payload: bytes, at: int) -> Applied | None:
    """Acknowledge plain messages as a payload names them, or return None and change nothing."""
    count = (len(payload) - at - _COUNTED.size) // _ITEM_SIZE
    if not 1 < count <= ITEMS_MAX or len(payload) != at + _COUNTED.size + _ITEM_SIZE * count:
        return None
    options, promised = _COUNTED.unpack_from(payload, at)
    if options > OPTION_STRICT or promised != count:
        return None
    numbers = struct.unpack_from(f"<{2 * count}Q", payload, at + _COUNTED.size)
    return _ack_rows(queue, array("Q", numbers[::2]), array("Q", numbers[1::2]))


def _ack_rows(queue: QueueState, ids: "array[int]", tokens: "array[int]") -> Applied | None:
    """Acknowledge plain messages that are leased with these tokens, all of them or none."""
    count = len(ids)
    if len(set(ids)) != count:
        return None
    spans = []
    total = 0
    seed = queue.id
    start = 0
    while start < count:
        span = _span(queue.table, ids[start:])
        if span is None:
            return None
        block, first, last = span
        due, column = block.columns[DUE], block.columns[TOKEN]
        given = tokens[start : start + last - first]
        if due is None or column is None or column[first:last] != given:
            return None
        for fields in zip(
            block.ids[first:last],
            block.since[first:last],
            block.meta[first:last],
            due[first:last],
            given,
            strict=True,
        ):
            if fields[2] & _NOT_PLAIN != LEASED:
                return None
            total += item_hash(_pack_leased(*fields), seed)
        spans.append(span)
        start += last - first
    _remove(queue, spans)
    queue.hash_total -= total
    queue.counts[LEASED] -= count
    queue.totals[_ACKED] += count
    return Applied(count)


def _remove(queue: QueueState, spans: list[Span]) -> None:
    """Take rows that are leased out of the columns, with their deadlines."""
    for block, first, last in spans:
        due = block.columns[DUE]
        assert due is not None
        queue.deadlines.cancel_all(due[first:last], block.ids[first:last], LEASE_ENDS)
    # From the end: so neither rows nor blocks that are still to come change their places.
    spans.sort(key=lambda span: (span[0].first, span[1]), reverse=True)
    for block, first, last in spans:
        block.delete(first, last)
    for block in dict.fromkeys(block for block, _, _ in spans):
        if len(block.ids) < MERGE_ROWS:
            queue.table.shrink(block)


def _span(table: Table, ids: "array[int]") -> Span | None:
    """Return where the first of ``ids`` is, with as many of the next as follow it directly."""
    place = table.find(ids[0])
    if place is None:
        return None
    block, first = place
    found = block.ids[first : first + len(ids)]
    size = len(found)
    if found != ids[:size]:
        size = next(at for at in range(size) if found[at] != ids[at])
    return block, first, first + size
