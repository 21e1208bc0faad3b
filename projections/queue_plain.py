"""The short way of plain messages: enqueue, lease, ack.

A plain message has id, time and priority, and nothing else. What happens to each of them is done
here in straight code: decode, execute and ``QueueState.swap`` in one. Whatever is unusual is left
to the long way, by returning None before anything has changed. That both ways agree is a test.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Mapping

from projections.projection import Position
from projections.queue_columns import DUE, MERGE_ROWS, TOKEN, Block, Table
from projections.queue_deadlines import ID_SHIFT, LEASE_ENDS, TIME_SHIFT, Wakeups
from projections.queue_limits import (
    BLOCK_ROWS,
    LEASED_MAX,
    MESSAGE_SIZE_MAX,
    PRIORITY_MAX,
    VISIBILITY_NS_MAX,
)
from projections.queue_ready import TRIM_ROWS, Level
from projections.queue_results import LEASE_HEAD, LEASE_ROW
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

_ONE = Applied(1)
_unpack_lease = struct.Struct("<HQ").unpack_from
_unpack_ack = struct.Struct("<BHQQ").unpack_from
_LEASE_TAIL = 10
_ACK_TAIL = 19
_pack_plain = PLAIN.pack
_pack_leased = LEASED_ROW.pack
_NOT_PLAIN = STATE_MASK | UNUSUAL
_META_FULL = 0xFFFF << DELIVERIES_SHIFT
_META_LOW = DELIVERY - 1
_MERGE_MASK = 31  # a block that empties is looked at now and then, and when it is empty
_TAKEN = DELIVERY | LEASED
_pack_head = LEASE_HEAD.pack
_pack_row = LEASE_ROW.pack
_join = b"".join
_new = Applied.__new__
_set_number = Applied.number.__set__  # type: ignore[misc, attr-defined]
_set_value = Applied.value.__set__  # type: ignore[misc, union-attr]
_set_results = Applied.results.__set__  # type: ignore[misc, attr-defined]
_ENQUEUED = int(Total.ENQUEUED)
_ACKED = int(Total.ACKED)


class PlainPaths:
    """Handlers for the router; ``by_head`` finds a queue by prefix and id as a payload has them."""

    __slots__ = ("_by_head", "_position", "_wakeups")

    def __init__(
        self, position: Position, by_head: Mapping[bytes, QueueState], wakeups: Wakeups
    ) -> None:
        self._position = position
        self._by_head = by_head
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
        return APPLIED

    def lease(self, index: int, payload: bytes) -> Applied | None:
        """Lease plain messages of the first priority, or return None and change nothing."""
        try:
            at = payload[2] + 11
        except IndexError:
            return None
        queue = self._by_head.get(payload[:at])
        if queue is None or len(payload) != at + _LEASE_TAIL or queue.is_paused:
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
        if level is None or level.late or not 0 < count <= len(level.ids) - level.head:
            return None
        deadline_ns = self._position.log_time_ns + (visibility_ns or config.visibility_ns)
        if count == 1:
            place = _find_plain(queue.table, level, level.head)
            if place is None:
                return None
            value = _pack_head(index, deadline_ns, 1) + _lease_row(
                queue, *place, deadline_ns, index
            )
        else:
            found = []
            for number in range(level.head, level.head + count):
                place = _find_plain(queue.table, level, number)
                if place is None:
                    return None
                found.append(place)
            rows = [_lease_row(queue, *place, deadline_ns, index) for place in found]
            value = _pack_head(index, deadline_ns, count) + _join(rows)
        level.head += count
        if level.head >= TRIM_ROWS and level.head * 2 >= len(level.ids):
            level.trim()
        queue.counts[READY] -= count
        queue.counts[LEASED] += count
        known_ns = self._wakeups.times.get(queue.id)
        if known_ns is None or deadline_ns < known_ns:
            self._wakeups.note(queue.id, deadline_ns)
        # The slots directly: the frozen constructor costs 0.5 of the 5 µs that a lease takes.
        result = _new(Applied)
        _set_number(result, count)
        _set_value(result, value)
        _set_results(result, ())
        return result

    def ack(self, index: int, payload: bytes) -> Applied | None:  # noqa: ARG002 - a fast path's
        """Acknowledge one plain message, or return None and change nothing."""
        try:
            at = payload[2] + 11
        except IndexError:
            return None
        queue = self._by_head.get(payload[:at])
        if queue is None or len(payload) != at + _ACK_TAIL:
            return None
        options, count, message_id, token = _unpack_ack(payload, at)
        table = queue.table
        if options or count != 1 or not table.blocks:
            return None
        block = table.blocks[bisect_right(table.firsts, message_id) - 1]
        ids, metas = block.ids, block.meta
        row = bisect_left(ids, message_id)
        if row == len(ids) or ids[row] != message_id:
            return None
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
        queue.deadlines.cancel(deadline_ns << TIME_SHIFT | message_id << ID_SHIFT | LEASE_ENDS)
        return _ONE


def _find_plain(table: Table, level: Level, number: int) -> tuple[Block, int] | None:
    """Return where the message of a level's entry is, if that is true and the message plain."""
    blocks = table.blocks
    if not blocks:
        return None
    message_id = level.ids[number]
    # Below the first block this finds the last one, which does not have the message either.
    block = blocks[bisect_right(table.firsts, message_id) - 1]
    ids = block.ids
    row = bisect_left(ids, message_id)
    if row == len(ids) or ids[row] != message_id:
        return None
    meta = block.meta[row]
    # Ready, of this priority, without any option, and its count of deliveries may rise.
    if meta & _META_LOW != level.meta or meta >= _META_FULL:
        return None
    return (block, row) if block.since[row] == level.since[number] else None


def _lease_row(queue: QueueState, block: Block, row: int, deadline_ns: int, token: int) -> bytes:
    """Lease the plain message at a place; return its part of the result."""
    message_id, since_ns, meta = block.ids[row], block.since[row], block.meta[row]
    after = meta + _TAKEN
    block.meta[row] = after
    columns = block.columns
    (columns[DUE] or block.column(DUE))[row] = deadline_ns
    (columns[TOKEN] or block.column(TOKEN))[row] = token
    seed = queue.id
    packed = _pack_leased(message_id, since_ns, after, deadline_ns, token)
    queue.hash_total += item_hash(packed, seed) - item_hash(
        _pack_plain(message_id, since_ns, meta), seed
    )
    queue.deadlines.add(deadline_ns << TIME_SHIFT | message_id << ID_SHIFT | LEASE_ENDS)
    return _pack_row(message_id, message_id, after & _META_FULL)
