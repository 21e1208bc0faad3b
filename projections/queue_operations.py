"""What each command does to queues. A refusal changes nothing.

What happens to every message (enqueue, lease and the four ways to settle one) is applied by a
loop over a span of entries, on rows as they stand in the columns; the rest one command at a time.

Commands that name several messages answer for each of them. One that names a single message, or
is ``strict``, is refused as a whole when it cannot be done as a whole; the others do what they can
and tell per message why not.
"""

import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from sys import byteorder
from typing import NamedTuple

from projections.errors import BadPayload
from projections.limits import U64_MAX
from projections.payload import U64, Reader, namespace_of
from projections.queue_changes import Kind, QueueChanges
from projections.queue_columns import DUE, TOKEN, Span, Table
from projections.queue_commands import (
    OPERATIONS,
    OPTION_STRICT,
    Ack,
    Cancel,
    Command,
    Extend,
    Lease,
    Nack,
    Prioritise,
    Purge,
    QueueCreate,
    Release,
    ScheduleDelete,
    ScheduleFire,
    decode_command,
)
from projections.queue_dead import fail
from projections.queue_limits import (
    CRON_DAYS_MAX,
    DELAY_NS_MAX,
    GROUPS_MAX,
    ITEMS_MAX,
    LEASED_MAX,
    MESSAGE_SIZE_MAX,
    PRIORITY_MAX,
    PURGE_VISITS_MAX,
    SCHEDULES_MAX,
    TENANTS_MAX,
    VISIBILITY_NS_MAX,
)
from projections.queue_message import Enqueue, ScheduleCreate, scan_enqueue
from projections.queue_reads import QueueReads
from projections.queue_results import (
    ACKED,
    LEASE_HEAD,
    decode_verdicts,
    encode_cursor,
    encode_verdicts,
)
from projections.queue_row import (
    DELAYED,
    DELIVERY,
    HAS_EXPIRES,
    HAS_GROUP,
    HAS_TENANT,
    LEASED,
    PRIORITY_MASK,
    PRIORITY_SHIFT,
    READY,
    STATE_MASK,
    Row,
)
from projections.queue_schedule import BadCron, parse_cron
from projections.queue_store import QueueState, Schedule, Total
from projections.reasons import Reason
from projections.result import APPLIED, Applied, Outcome, Refused

_unpack_lease = struct.Struct("<HQ").unpack_from  # count, visibility
_LEASE_SIZE = 10
_COUNTED = struct.Struct("<BH")  # options, count
_ITEM_SIZE = 16
_unpack_item = struct.Struct("<QQ").unpack_from
_ONE = _COUNTED.pack(0, 1), _COUNTED.pack(OPTION_STRICT, 1)
_BODY_AT = 2  # behind options and priority
_TAKEN = DELIVERY | LEASED
_PRIORITY_BITS = PRIORITY_MASK << PRIORITY_SHIFT
_new = Applied.__new__
_set_number = Applied.number.__set__  # type: ignore[misc, attr-defined]
_set_value = Applied.value.__set__  # type: ignore[misc, union-attr]
_set_results = Applied.results.__set__  # type: ignore[misc, attr-defined]


class Moment(NamedTuple):
    """When a command is applied."""

    log_index: int
    now_ns: int


class QueueWrites(QueueReads):
    """The handlers of what happens to messages."""

    changes: QueueChanges
    _by_head: dict[bytes, QueueState]  # by prefix and queue of a payload

    def enqueue(
        self, prefix: bytes, index: int, now_ns: int, payloads: Sequence[bytes]
    ) -> list[Outcome]:
        """Add messages, or find those that were added with the same dedup ids."""
        outcomes: list[Outcome] = []
        at = len(prefix) + U64.size
        queue: QueueState | None = None
        head, added, is_limited = b"", 0, False
        for message_id, payload in enumerate(payloads, index):
            if queue is None or not payload.startswith(head):
                if queue is not None and added:
                    queue.count(Total.ENQUEUED, added)
                head, added = payload[:at], 0
                queue = self._by_head.get(head)
                if queue is None:
                    outcomes.append(self._refuse(Enqueue, prefix, payload))
                    continue
                is_limited = bool(queue.config.ttl_ns or queue.config.messages_max)
            body_size = len(payload) - at - _BODY_AT
            if (
                is_limited
                or not 0 <= body_size <= MESSAGE_SIZE_MAX
                or payload[at]
                or payload[at + 1] > PRIORITY_MAX
            ):
                outcome = self._enqueue_unusual(queue, message_id, now_ns, payload, at)
                added += outcome is APPLIED
                outcomes.append(outcome)
            else:
                queue.append(message_id, now_ns, payload[at + 1] << PRIORITY_SHIFT)
                added += 1
                outcomes.append(APPLIED)
        if queue is not None and added:
            queue.count(Total.ENQUEUED, added)
        return outcomes

    def _enqueue_unusual(
        self, queue: QueueState, message_id: int, now_ns: int, payload: bytes, at: int
    ) -> Outcome:
        try:
            sent = scan_enqueue(payload, at)
        except BadPayload as error:
            return Refused(error.reason, error.detail)
        priority, delay_ns, at_ns, ttl_ns, dedup, group, tenant, _, _ = sent
        config = queue.config
        has_dedup = bool(dedup and config.dedup_max)
        if has_dedup:
            first = queue.dedup.find(dedup, now_ns, config.dedup_window_ns)
            if first is not None:
                queue.count(Total.DUPLICATES)
                self.changes.add_nothing(message_id)
                return Applied(first)
        ready_ns = now_ns + (delay_ns or 0) if at_ns is None else at_ns
        if ready_ns - now_ns > DELAY_NS_MAX:
            return Refused(Reason.DELAY_INVALID, ready_ns - now_ns)
        if config.messages_max or group or tenant:
            full = _lack_of_room(queue, group, tenant)
            if full is not None:
                return full
        if has_dedup:
            queue.dedup.add(dedup, message_id, now_ns)
            dropped = queue.dedup.trim(now_ns, config.dedup_window_ns, config.dedup_max)
            if dropped:
                queue.count(Total.DEDUP_DROPPED, dropped)
        if ttl_ns is None:
            ttl_ns = config.ttl_ns
        meta = priority << PRIORITY_SHIFT
        if ready_ns > now_ns:
            meta |= DELAYED
        else:
            ready_ns = 0
        expires_ns = now_ns + ttl_ns if ttl_ns else 0
        if not (ready_ns or expires_ns or group or tenant):
            queue.append(message_id, now_ns, meta)
            return APPLIED
        if expires_ns:
            meta |= HAS_EXPIRES
        if group:
            meta |= HAS_GROUP
        if tenant:
            meta |= HAS_TENANT
        more = ready_ns, 0, expires_ns, 0, group, tenant, None
        queue.append(message_id, ready_ns or now_ns, meta, more)
        return APPLIED

    def lease(
        self, prefix: bytes, index: int, now_ns: int, payloads: Sequence[bytes]
    ) -> list[Outcome]:
        """Lease the messages whose turn it is; their token is the entry's index."""
        outcomes: list[Outcome] = []
        at = len(prefix) + U64.size
        while (done := len(outcomes)) < len(payloads):
            payload, stop = payloads[done], done + 1
            while stop < len(payloads) and payloads[stop] == payload:
                stop += 1
            queue, first = self._by_head.get(payload[:at]), index + done
            if queue is None or len(payload) != at + _LEASE_SIZE:
                outcomes += [self._refuse(Lease, prefix, payload)] * (stop - done)
                continue
            count, visibility_ns = _unpack_lease(payload, at)
            if not 0 < count <= ITEMS_MAX or visibility_ns > VISIBILITY_NS_MAX:
                outcomes += [self._refuse(Lease, prefix, payload)] * (stop - done)
            elif queue.is_paused:
                outcomes += [Refused(Reason.QUEUE_PAUSED, queue.id)] * (stop - done)
            else:
                deadline_ns = now_ns + (visibility_ns or queue.config.visibility_ns)
                outcomes += self._lease_all(queue, first, stop - done, count, deadline_ns)
        return outcomes

    def _lease_all(
        self, queue: QueueState, index: int, entry_count: int, count: int, deadline_ns: int
    ) -> list[Outcome]:
        """Lease up to ``count`` messages for each of some entries, the first at ``index``."""
        outcomes: list[Outcome] = []
        room = LEASED_MAX - queue.counts[LEASED]
        if count * entry_count > room:
            if room <= 0:
                return [Refused(Reason.QUEUE_LEASES_FULL, LEASED_MAX)] * entry_count
            for token in range(index, index + entry_count):
                room = LEASED_MAX - queue.counts[LEASED]
                outcomes += self._lease_all(queue, token, 1, min(count, room) or 1, deadline_ns)
            return outcomes
        tokens: Sequence[int] = range(index, index + entry_count)
        if entry_count == 1:
            tokens = (index,) if count == 1 else array("Q", (index,)) * count
        elif count > 1:
            tokens = array("Q", [token for token in tokens for _ in range(count)])
        rows = queue.lease(tokens, deadline_ns)
        for at in range(0, entry_count * count, count):
            part = rows if entry_count == 1 else rows[at : at + count]
            if not part:
                outcomes.append(APPLIED)
                continue
            token = tokens[at]
            value = LEASE_HEAD.pack(token, deadline_ns, len(part)) + b"".join(part)
            self.changes.add_lease(token, queue.id, value)
            # The slots directly: the frozen constructor costs a tenth of a lease.
            result = _new(Applied)
            _set_number(result, len(part))
            _set_value(result, value)
            _set_results(result, ())
            outcomes.append(result)
        return outcomes

    def ack(
        self,
        prefix: bytes,
        index: int,
        now_ns: int,  # noqa: ARG002 - a handler's
        payloads: Sequence[bytes],
    ) -> list[Outcome]:
        """Take out leased messages that are done."""
        outcomes: list[Outcome] = []
        items_at = len(prefix) + U64.size + _COUNTED.size
        one_size, entry_count = items_at + _ITEM_SIZE, len(payloads)
        while (at := len(outcomes)) < entry_count:
            payload = payloads[at]
            if len(payload) != one_size or payload[items_at - _COUNTED.size : items_at] not in _ONE:
                outcomes.append(self._ack_several(prefix, index + at, payload))
                continue
            opening, stop = payload[:items_at], at + 1
            while (
                stop < entry_count
                and len(payloads[stop]) == one_size
                and payloads[stop].startswith(opening)
            ):
                stop += 1
            queue = self._by_head.get(opening[: -_COUNTED.size])
            if queue is None:
                outcomes += [self._refuse(Ack, prefix, payload)] * (stop - at)
            elif stop - at == 1:
                outcomes.append(_ack_one(queue, *_unpack_item(payload, items_at)))
            else:
                outcomes += _ack_each(queue, [each[items_at:] for each in payloads[at:stop]])
        return outcomes

    def _ack_several(self, prefix: bytes, index: int, payload: bytes) -> Outcome:
        at = len(prefix) + U64.size
        queue = self._by_head.get(payload[:at])
        items_size = len(payload) - at - _COUNTED.size
        if queue is None or items_size <= 0:
            return self._refuse(Ack, prefix, payload)
        options, count = _COUNTED.unpack_from(payload, at)
        if count * _ITEM_SIZE != items_size or options > OPTION_STRICT or count > ITEMS_MAX:
            return self._refuse(Ack, prefix, payload)
        ids, tokens = _split(payload[at + _COUNTED.size :])
        outcome = _settle(queue, ids, tokens, queue.remove, is_strict=bool(options))
        if isinstance(outcome, Applied):
            queue.count(Total.ACKED, outcome.number)
            self._note_part(index, Kind.ACKED, queue, ids, outcome)
        return outcome

    def settle(
        self, queue: QueueState, command: Nack | Extend | Release, moment: Moment
    ) -> Outcome:
        """Fail, extend or release leased messages."""
        index, now_ns = moment
        ids, tokens = (array("Q", each) for each in zip(*command.items, strict=True))
        dead: set[int] = set()
        match command:
            case Nack(_, _, delay_ns, failure):

                def act(spans: list[Span]) -> None:
                    dead.update(fail(self._queues, queue, spans, failure, now_ns, delay_ns))

            case Extend(_, _, visibility_ns):
                deadline_ns = now_ns + (visibility_ns or queue.config.visibility_ns)

                def act(spans: list[Span]) -> None:
                    for span in spans:
                        queue.change_rows(span, span[0].meta[span[1] : span[2]], deadline_ns)

            case Release():

                def act(spans: list[Span]) -> None:
                    for span in spans:
                        metas = span[0].meta[span[1] : span[2]]
                        queue.change_rows(span, [meta - _TAKEN for meta in metas], 0, 0)

        outcome = _settle(queue, ids, tokens, act, is_strict=command.strict)
        if not isinstance(command, Nack):
            kind = Kind.EXTENDED if isinstance(command, Extend) else Kind.RELEASED
            self._note_part(index, kind, queue, ids, outcome)
        elif isinstance(outcome, Applied):
            for message_id in _done(ids, outcome):
                kind = Kind.DEAD if message_id in dead else Kind.FAILED
                self.changes.add(index, kind, queue.id, [message_id])
        return outcome

    def cancel(self, queue: QueueState, command: Cancel, moment: Moment) -> Outcome:
        """Remove messages by id."""

        def judge(message_id: int) -> Refused | None:
            place = queue.table.find(message_id)
            if place is None:
                return Refused(Reason.MESSAGE_UNKNOWN, message_id)
            block, at = place
            is_leased = block.meta[at] & STATE_MASK == LEASED
            return Refused(Reason.MESSAGE_LEASED, message_id) if is_leased else None

        def act(span: Span) -> None:
            queue.remove([span])
            queue.count(Total.CANCELLED)

        outcome = _each(queue.table, command.ids, judge, act, is_strict=command.strict)
        self._note_part(moment.log_index, Kind.CANCELLED, queue, command.ids, outcome)
        return outcome

    def prioritise(self, queue: QueueState, command: Prioritise, moment: Moment) -> Outcome:
        """Change the priority of messages by id."""
        priority = command.priority << PRIORITY_SHIFT

        def judge(message_id: int) -> Refused | None:
            is_here = queue.table.find(message_id) is not None
            return None if is_here else Refused(Reason.MESSAGE_UNKNOWN, message_id)

        def act(span: Span) -> None:
            block, at, _ = span
            meta = block.meta[at] & ~_PRIORITY_BITS | priority
            if meta != block.meta[at]:
                queue.change_rows(span, [meta], block.value(DUE, at))

        outcome = _each(queue.table, command.ids, judge, act, is_strict=command.strict)
        self._note_part(moment.log_index, Kind.PRIORITISED, queue, command.ids, outcome)
        return outcome

    def purge(self, queue: QueueState, command: Purge, moment: Moment) -> Outcome:
        """Remove what is in the range, as much as one entry may; tell where to go on."""
        below_id = command.below_id or U64_MAX
        before_ns = command.before_ns or U64_MAX
        spans: list[Span] = []
        ids: list[int] = []
        next_id: int | None = None
        for visits, (block, at) in enumerate(queue.table.places(command.from_id)):
            message_id, state = block.ids[at], block.meta[at] & STATE_MASK
            if message_id >= below_id:
                break
            if visits == PURGE_VISITS_MAX or len(ids) == command.limit:
                next_id = message_id
                break
            if block.since[at] < before_ns and (state != LEASED or command.leased_too):
                ids.append(message_id)
                before, first, last = spans[-1] if spans else (None, 0, 0)
                if before is block and last == at and block.meta[first] & STATE_MASK == state:
                    spans[-1] = block, first, at + 1
                else:
                    spans.append((block, at, at + 1))
        if ids:
            queue.remove(spans)
            queue.count(Total.PURGED, len(ids))
            self.changes.add(moment.log_index, Kind.PURGED, queue.id, ids)
        return Applied(len(ids), None if next_id is None else encode_cursor(next_id))

    def create_schedule(
        self, queue: QueueState, command: ScheduleCreate, moment: Moment
    ) -> Outcome:
        """Add a schedule; its id is the index of the entry, which also holds the body."""
        index, now_ns = moment
        if len(queue.schedules) >= SCHEDULES_MAX:
            return Refused(Reason.SCHEDULES_FULL, SCHEDULES_MAX)
        try:
            cron = parse_cron(command.cron)
        except BadCron as error:
            return Refused(Reason.CRON_INVALID, error.field)
        next_ns = cron.next_after(now_ns)
        if next_ns is None:
            return Refused(Reason.CRON_NEVER, CRON_DAYS_MAX)
        ttl_ns = queue.config.ttl_ns if command.ttl_ns is None else command.ttl_ns
        schedule = Schedule(
            index,
            command.cron,
            cron,
            command.priority,
            ttl_ns,
            command.group,
            command.tenant,
            next_ns,
        )
        queue.put(queue.schedules, index, schedule)
        return Applied(index)

    def delete_schedule(
        self, queue: QueueState, command: ScheduleDelete, _moment: Moment
    ) -> Outcome:
        """Stop a schedule."""
        if command.schedule not in queue.schedules:
            return Refused(Reason.SCHEDULE_UNKNOWN, command.schedule)
        queue.put(queue.schedules, command.schedule, None)
        return APPLIED

    def fire(self, queue: QueueState, command: ScheduleFire, moment: Moment) -> Outcome:
        """Let a schedule make its message: one entry, one message, one id.

        Times that passed meanwhile are not made up for: the next one is the first after now. A
        queue without room misses the firing, or the leader would propose it again and again.
        """
        index, now_ns = moment
        schedule = queue.schedules.get(command.schedule)
        if schedule is None:
            return Refused(Reason.SCHEDULE_UNKNOWN, command.schedule)
        if schedule.next_ns != command.fire_ns or schedule.next_ns > now_ns:
            return Refused(Reason.SCHEDULE_NOT_DUE, schedule.next_ns)
        next_ns = schedule.cron.next_after(now_ns)
        after = None if next_ns is None else replace(schedule, next_ns=next_ns)
        queue.put(queue.schedules, schedule.id, after)
        group, tenant = schedule.group, schedule.tenant
        if _lack_of_room(queue, group, tenant) is not None:
            queue.count(Total.MISSED)
            self.changes.add(index, Kind.ENQUEUED, queue.id, [])
            return APPLIED
        expires_ns = now_ns + schedule.ttl_ns if schedule.ttl_ns else 0
        queue.insert(
            Row(
                index,
                now_ns,
                READY,
                schedule.priority,
                expires_ns=expires_ns,
                body=schedule.id,
                group=group,
                tenant=tenant,
            )
        )
        queue.count(Total.ENQUEUED)
        self.changes.add(index, Kind.ENQUEUED, queue.id, [index])
        return Applied(index)

    def _refuse(self, command: type[Command], prefix: bytes, payload: bytes) -> Refused:
        """Tell why an entry can do nothing: its body is malformed, or its queue is not there."""
        reader = Reader(payload, len(prefix))
        try:
            asked = decode_command(OPERATIONS[command], reader)
        except BadPayload as error:
            return Refused(error.reason, error.detail)
        if namespace_of(prefix) not in self._names:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        assert not isinstance(asked, QueueCreate), "it names no queue"
        return Refused(Reason.QUEUE_UNKNOWN, asked.queue)

    def _note_part(
        self, index: int, kind: Kind, queue: QueueState, ids: Sequence[int], outcome: Outcome
    ) -> None:
        """Note which messages a command concerned if it could not do all that it says."""
        if isinstance(outcome, Applied) and outcome.value is not None:
            self.changes.add(index, kind, queue.id, _done(ids, outcome))


def _done(ids: Sequence[int], outcome: Applied) -> list[int]:
    """Return the messages for which a command took effect."""
    verdicts = decode_verdicts(outcome, len(ids))
    return [message_id for message_id, verdict in zip(ids, verdicts, strict=True) if not verdict]


def _split(items: bytes) -> tuple["array[int]", "array[int]"]:
    """Return the ids and the tokens of items as a payload has them."""
    numbers = array("Q", items)
    if byteorder == "big":
        numbers.byteswap()
    return numbers[::2], numbers[1::2]


def _ack_one(queue: QueueState, message_id: int, token: int) -> Outcome:
    table = queue.table
    if table.blocks and table.blocks[0].ids[0] == message_id:  # most are done as they came
        block, at = table.blocks[0], 0
    else:
        place = table.find(message_id)
        if place is None:
            return Refused(Reason.MESSAGE_UNKNOWN, message_id)
        block, at = place
    held = block.columns[TOKEN]
    if not token or held is None or held[at] != token:  # a row without a token is not leased
        return Refused(Reason.LEASE_TOKEN_STALE, block.value(TOKEN, at))
    queue.remove([(block, at, at + 1)])
    queue.count(Total.ACKED)
    return ACKED


def _ack_each(queue: QueueState, items: list[bytes]) -> list[Outcome]:
    """Acknowledge messages, each for itself."""
    ids, tokens = _split(b"".join(items))
    if len(set(ids)) < len(ids):  # the second finds what the first did
        return [_ack_one(queue, *each) for each in zip(ids, tokens, strict=True)]
    spans, wrong = _find_leased(queue.table, ids, tokens)
    if spans:
        queue.remove(spans)
        queue.count(Total.ACKED, len(ids) - len(wrong))
    outcomes: list[Outcome] = [ACKED] * len(ids)
    for at, refused in wrong.items():
        outcomes[at] = refused
    return outcomes


def _settle(
    queue: QueueState,
    ids: "array[int]",
    tokens: "array[int]",
    act: Callable[[list[Span]], None],
    *,
    is_strict: bool,
) -> Outcome:
    """Act on messages that are leased with these tokens; on all or none if ``is_strict``."""
    table, count = queue.table, len(ids)
    if len(set(ids)) == count:
        spans, wrong = _find_leased(table, ids, tokens)
        if not wrong:
            act(spans)
            return Applied(count)
        if is_strict or count == 1:
            return next(iter(wrong.values()))
        act(spans)
    else:
        again = next(at for at, each in enumerate(ids) if each in ids[:at])
        if is_strict:
            _, wrong = _find_leased(table, ids[: again + 1], tokens[: again + 1])
            unknown = Refused(Reason.MESSAGE_UNKNOWN, ids[again])
            return next(iter(wrong.values()), unknown)
        # One after the other: what the first did to a message, the second finds.
        wrong = {}
        for at in range(count):
            spans, refused = _find_leased(table, ids[at : at + 1], tokens[at : at + 1])
            act(spans)
            if refused:
                wrong[at] = refused[0]
    reasons = [wrong[at].reason if at in wrong else None for at in range(count)]
    return Applied(count - len(wrong), encode_verdicts(reasons))


def _find_leased(
    table: Table, ids: "array[int]", tokens: "array[int]"
) -> tuple[list[Span], dict[int, Refused]]:
    """Return where messages are that are leased with these tokens.

    Return besides, by position, what is wrong with the others.
    """
    spans: list[Span] = []
    wrong: dict[int, Refused] = {}
    at, count = 0, len(ids)
    while at < count:
        span = table.find_span(ids, at)
        if span is None:
            wrong[at] = Refused(Reason.MESSAGE_UNKNOWN, ids[at])
            at += 1
            continue
        block, first, last = span
        given, held = tokens[at : at + last - first], block.columns[TOKEN]
        # A row without a token is not leased.
        if held is not None and held[first:last] == given and 0 not in given:
            spans.append(span)
        else:
            for row, token in enumerate(given, first):
                holder = block.value(TOKEN, row)
                if holder and holder == token:
                    spans.append((block, row, row + 1))
                else:
                    wrong[at + row - first] = Refused(Reason.LEASE_TOKEN_STALE, holder)
        at += last - first
    return spans, wrong


def _each(
    table: Table,
    ids: Sequence[int],
    judge: Callable[[int], Refused | None],
    act: Callable[[Span], None],
    *,
    is_strict: bool,
) -> Outcome:
    """Act on each message that ``judge`` lets pass; on all or none if ``is_strict``."""
    if is_strict or len(ids) == 1:
        seen: set[int] = set()
        for message_id in ids:
            refused = judge(message_id)
            if refused is not None:
                return refused
            if message_id in seen:
                return Refused(Reason.MESSAGE_UNKNOWN, message_id)
            seen.add(message_id)
    reasons: list[Reason | None] = []
    for message_id in ids:
        refused = judge(message_id)
        if refused is None:
            place = table.find(message_id)
            assert place is not None, f"no message {message_id}"
            act((*place, place[1] + 1))
        reasons.append(None if refused is None else refused.reason)
    return Applied(reasons.count(None), encode_verdicts(reasons))


def _lack_of_room(queue: QueueState, group: bytes, tenant: bytes) -> Refused | None:
    messages_max, table = queue.config.messages_max, queue.table
    if messages_max and queue.live_count >= messages_max:
        return Refused(Reason.QUEUE_FULL, messages_max)
    if group and len(table.groups) >= GROUPS_MAX and group not in table.groups:
        return Refused(Reason.GROUPS_FULL, GROUPS_MAX)
    if tenant and len(table.tenants) >= TENANTS_MAX and tenant not in table.tenants:
        return Refused(Reason.TENANTS_FULL, TENANTS_MAX)
    return None
