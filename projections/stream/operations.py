"""Executing commands on streams and consumer groups.

The first half creates, configures, deletes, appends and trims, and moves dead letters; the second
half executes the commands of consumer groups. Every function checks everything before it changes
anything, so a refusal leaves no trace. Time is the entry's: a claim sees what is idle or ready at
that moment.

Lists of records are accepted whole or refused whole: if a consumer acknowledges ten records and one
was claimed by another member, the refusal names that one and none of the ten is done.

A dead record must reach the dead-letter stream: commit and seek leave it pending until it is moved,
unless the seek redelivers it.
"""

import struct
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from onelog.projections.codec import Ranges, Reader, is_within, parse_namespace
from onelog.projections.errors import BadPayload, BadResult
from onelog.projections.limits import U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Outcome, Refused, Repeated
from onelog.projections.stream import commands
from onelog.projections.stream.commands import (
    OPTION_KEY,
    OPTIONS_KNOWN,
    Cause,
    Configure,
    Create,
    DeadLetter,
    Delete,
    ProducerRef,
    Retain,
    Trim,
    TrimCut,
    TrimTo,
    choose_partition,
    parse_key,
    parse_options,
    read_append,
)
from onelog.projections.stream.groups import Group, GroupInfo, Member, Pending, assign, split_place
from onelog.projections.stream.limits import (
    DEAD_LETTERS_MAX,
    GROUPS_MAX,
    MEMBERS_MAX,
    PARTITION_ANY,
    PENDING_MAX,
    STREAM_ID_END,
    STREAMS_MAX,
    partition_id,
)
from onelog.projections.stream.partition import Partition
from onelog.projections.stream.state import StreamInfo, Streams, StreamState

DUPLICATE = b"\x01"
"""The value of the result of a repeated append; its number is the first append's offset."""


class Moment(NamedTuple):
    """Index and log time of a command, and the size of its body."""

    index: int  # type: ignore[assignment]  # hides tuple.index(), which nobody wants here
    timestamp_ns: int
    size: int


def create(streams: Streams, namespace: str, command: Create, moment: Moment) -> Outcome:
    """Create a stream."""
    names = streams.names.get(namespace)
    if names is None:
        return Refused(Reason.NAMESPACE_UNKNOWN)
    existing = names.get(command.stream)
    if existing is not None:
        return Refused(Reason.STREAM_EXISTS, existing.id)
    if len(names) >= STREAMS_MAX or moment.index >= STREAM_ID_END:
        return Refused(Reason.STREAMS_FULL, len(names))
    stream = StreamState(streams.indexes, namespace, command.stream, moment.index)
    stream.open(StreamInfo(command.partition_count, command.retention, command.key_hash))
    streams.add(stream)
    return Applied(stream.id)


def configure(streams: Streams, namespace: str, command: Configure) -> Outcome:
    """Replace the policy of a stream."""
    stream = streams.find(namespace, command.stream)
    if isinstance(stream, Refused):
        return stream
    stream.configure(command.retention)
    return Applied(stream.id)


def delete(streams: Streams, namespace: str, command: Delete, moment: Moment) -> Outcome:
    """Delete a stream and the published cursors of its groups."""
    stream = streams.find(namespace, command.stream)
    if isinstance(stream, Refused):
        return stream
    for name in sorted(stream.groups):
        streams.keys.delete_derived(namespace, cursor_key(stream.name, name), moment.index)
    streams.remove(stream)
    return Applied(stream.id)


def append_span(
    streams: Streams, prefix: bytes, index: int, timestamp_ns: int, payloads: Sequence[bytes]
) -> Sequence[Outcome]:
    """Append records, except those that their producers appended before (``Handler``).

    A slice of the payload is the key of the stream's lookup: a known name needs no check.
    """
    names, body, undo = streams.by_prefix.get(prefix, {}), len(prefix), streams.indexes.undo
    outcomes: list[Outcome] = []
    for offset, payload in enumerate(payloads, index):
        number = producer = key = None
        try:
            options, at = payload[body], body + 2 + payload[body + 1]
            stream = None if options & ~OPTIONS_KNOWN else names.get(payload[body + 1 : at])
            if options == OPTION_KEY:
                key, at = parse_key(payload, at)
            elif options:
                number, producer, key, _, _, at = parse_options(payload, at, options)
        except (IndexError, BadPayload):
            stream = None
        if stream is None:
            outcomes.append(_refuse_append(streams, prefix, payload))
            continue
        size, partitions = len(payload), stream.partitions
        if number is None:
            count = len(partitions)
            if key is None or count == 1:  # as ``choose_partition``, without a call
                number = offset % count
            else:
                number = choose_partition(key, offset, count, stream.key_hash)
        if producer or number >= len(partitions) or size - at > stream.value_size_max:
            answer = _admit(stream, number, producer, size - at, offset)
            if answer is not None:
                outcomes.append(answer)
                continue
        partition = partitions[number]
        if (
            undo.active
            or partition.count >= partition.close_count
            or partition.size >= partition.close_size
            or timestamp_ns >= partition.close_ns
        ):
            streams.add_record(stream, number, (offset, timestamp_ns, size - body))
        else:
            # The usual case of ``add_record``, inlined.
            partition.last_offset = offset
            partition.last_ns = timestamp_ns
            partition.count += 1
            partition.size += size - body
            if not partition.dirty:
                partition.touch()
            streams.notes.add_record(partition.id, offset)
        outcomes.append(APPLIED)
    return outcomes


def _admit(
    stream: StreamState, number: int, producer: ProducerRef | None, value_size: int, offset: int
) -> Outcome | None:
    """Check a record, and note it with its producer; None: append it."""
    if value_size > stream.value_size_max:
        return Refused(Reason.VALUE_TOO_LARGE, value_size)
    if number >= len(stream.partitions):
        return Refused(Reason.PARTITION_UNKNOWN, number)
    if producer is not None:
        verdict = stream.producers.admit(producer)
        if isinstance(verdict, Refused):
            return verdict
        if verdict is not None:
            return Repeated(verdict, DUPLICATE)
        stream.producers.record(producer, offset)
    return None


def _refuse_append(streams: Streams, prefix: bytes, payload: bytes) -> Refused:
    """Return why a record is refused: it is malformed, or there is no stream for it."""
    try:
        command = read_append(Reader(payload, len(prefix)))
    except BadPayload as error:
        return Refused(error.reason, error.detail)
    found = streams.find(parse_namespace(prefix), command.stream)
    assert isinstance(found, Refused), f"a sound record of {command.stream} was not taken"
    return found


def trim(streams: Streams, namespace: str, command: Trim, moment: Moment) -> Outcome:
    """Trim one partition or all, now."""
    stream = streams.find(namespace, command.stream)
    if isinstance(stream, Refused):
        return stream
    if command.partition == PARTITION_ANY:
        partitions = stream.partitions
    elif command.partition < len(stream.partitions):
        partitions = [stream.partitions[command.partition]]
    else:
        return Refused(Reason.PARTITION_UNKNOWN, command.partition)
    cuts: list[tuple[Partition, int]] = []
    for partition in partitions:
        slowest = stream.slowest(partition.number)
        if command.cause == Cause.REQUEST:
            before = min(command.operand, partition.end_offset)
            if before > slowest and not command.past_groups:
                return Refused(Reason.TRIM_BLOCKED, slowest)
        else:
            before = partition.cut(command.cause, command.operand, moment.timestamp_ns)
            if not command.past_groups:
                before = partition.hold_at(before, slowest)
        cuts.append((partition, before))
    trimmed = 0
    for partition, before in cuts:
        trimmed += trim_partition(stream, partition, before, command.cause, moment.timestamp_ns)
    return Applied(trimmed)


def trim_to(streams: Streams, namespace: str, command: TrimTo, moment: Moment) -> Outcome:
    """Trim at the offsets that the leader has found, if groups still allow it."""
    stream = streams.by_id.get(command.stream_id)
    if stream is None or stream.namespace != namespace:
        return Refused(Reason.STREAM_UNKNOWN)
    for cut in command.cuts:
        if cut.partition >= len(stream.partitions):
            return Refused(Reason.PARTITION_UNKNOWN, cut.partition)
        partition, slowest = stream.partitions[cut.partition], stream.slowest(cut.partition)
        if cut.before > slowest and not command.past_groups:
            return Refused(Reason.TRIM_BLOCKED, slowest)
        if not partition.admits(cut):
            return Refused(Reason.OFFSETS_INVALID, cut.before)
    trimmed = 0
    for cut in command.cuts:
        partition = stream.partitions[cut.partition]
        trimmed += trim_partition(
            stream, partition, cut.before, command.cause, moment.timestamp_ns, cut
        )
    return Applied(trimmed)


def retain(streams: Streams, namespace: str, command: Retain, moment: Moment) -> Outcome:
    """Trim what the leader found to be due, if the policy allows it at this entry's time."""
    stream = streams.by_id.get(command.stream_id)
    if stream is None or stream.namespace != namespace:
        return Refused(Reason.STREAM_UNKNOWN)
    for number, cause, before in command.cuts:
        if number >= len(stream.partitions):
            return Refused(Reason.PARTITION_UNKNOWN, number)
        partition = stream.partitions[number]
        allowed = {rule: cut for cut, rule in partition.policy_cuts(moment.timestamp_ns)}
        limit = partition.hold_at(allowed.get(cause, partition.first_offset), stream.floor(number))
        if before > limit:
            return Refused(Reason.TRIM_NOT_DUE, limit)
    trimmed = 0
    for number, cause, before in command.cuts:
        partition = stream.partitions[number]
        trimmed += trim_partition(stream, partition, before, cause, moment.timestamp_ns)
    return Applied(trimmed)


def due_cuts(stream: StreamState, partition: Partition, now_ns: int) -> tuple[int, Cause] | None:
    """Return the largest trim that the policy allows now, None if it allows none."""
    floor = stream.floor(partition.number)
    found = [
        (partition.hold_at(before, floor), cause) for before, cause in partition.policy_cuts(now_ns)
    ]
    best = max(found, default=(0, Cause.AGE))
    return best if best[0] > partition.first_offset else None


def trim_partition(
    stream: StreamState,
    partition: Partition,
    before: int,
    cause: Cause,
    timestamp_ns: int,
    exact: TrimCut | None = None,
) -> bool:
    """Trim a partition, and drop the dead letters that were trimmed."""
    stream.note_schedule(partition)
    if not partition.trim(before, cause, timestamp_ns, exact):
        return False
    stream.forget_dead(partition.number, partition.first_offset)
    stream.schedule(partition)
    return True


def dead_letter(streams: Streams, namespace: str, command: DeadLetter, moment: Moment) -> Outcome:
    """Make this entry a record of the dead-letter stream, and remove the original from pending."""
    source = streams.by_id.get(command.source_id)
    group = None if source is None else source.groups.get(command.group)
    if source is None or source.namespace != namespace or group is None:
        return Refused(Reason.DEAD_LETTER_STALE, command.offset)
    if command != find_dead_letter(source, group, partition_id(command.offset, command.partition)):
        return Refused(Reason.DEAD_LETTER_STALE, command.offset)
    target = streams.find(namespace, command.target)
    if isinstance(target, Refused):
        return Refused(Reason.DEAD_LETTER_STREAM_UNKNOWN)
    if len(target.dead) >= DEAD_LETTERS_MAX:
        return Refused(Reason.DEAD_LETTERS_FULL, DEAD_LETTERS_MAX)
    number = command.partition % len(target.partitions)
    group.pending.set(partition_id(command.offset, command.partition), None)
    target.dead.set(partition_id(moment.index, number), command.origin)
    streams.add_record(target, number, moment)
    refresh_cursors(streams, source, group, (command.partition,), moment.index)
    return APPLIED


def find_dead_letter(source: StreamState, group: Group, place: int) -> DeadLetter | None:
    """Return the command that moves a dead record, None if the record is not dead."""
    pending = group.pending.get(place)
    if pending is None or not pending.dead:
        return None
    partition, offset = split_place(place)
    return DeadLetter(
        group.head.config.dead_letter,
        source.id,
        group.name,
        partition,
        offset,
        source.dead.get(place) or offset,
        pending.deliveries,
        pending.since_ns,
        pending.reason,
    )


def refresh_cursors(
    streams: Streams,
    stream: StreamState,
    group: Group,
    partitions: tuple[int, ...] | range,
    index: int,
) -> None:
    """Update the committed cursors after a change, and publish them if they moved."""
    cursors = list(group.committed)
    moved: list[Partition] = []
    for number in partitions:
        committed = group.committed_at(number)
        if committed != cursors[number]:
            cursors[number] = committed
            moved.append(stream.partitions[number])
    if moved:
        for partition in moved:
            stream.note_schedule(partition)
        group.set_committed(tuple(cursors))
        publish(streams, stream, group, index)
        for partition in moved:
            stream.schedule(partition)


def publish(streams: Streams, stream: StreamState, group: Group, index: int) -> None:
    """Write the committed cursors as a JSON array, in the order of partitions."""
    value = "[" + ",".join(map(str, group.committed)) + "]"
    key = cursor_key(stream.name, group.name)
    streams.keys.put_derived(stream.namespace, [(key, value.encode())], index)


def cursor_key(stream: str, group: str) -> bytes:
    """Return the key in KV that holds the cursors of a group."""
    return f"cg:{stream}:{group}".encode()


# Consumer groups

_ASSIGNMENT = struct.Struct("<QH")  # generation, partitions
_CLAIMED = struct.Struct("<BQH")  # partition, offset, deliveries
_COUNT = struct.Struct("<H")


class Assignment(NamedTuple):
    """The result of a join or a heartbeat."""

    generation: int
    partitions: tuple[int, ...]


class Claimed(NamedTuple):
    """A claimed record, with its number of deliveries."""

    partition: int
    offset: int
    deliveries: int


Found = tuple[StreamState, Group]


def execute(
    streams: Streams, namespace: str, command: commands.GroupCommand, moment: Moment
) -> Outcome:
    """Execute a command of a group."""
    stream = streams.find(namespace, command.stream)
    if isinstance(stream, Refused):
        return stream
    if isinstance(command, commands.GroupCreate):
        return _create(streams, stream, command, moment)
    group = stream.groups.get(command.group)
    if group is None:
        return Refused(Reason.GROUP_UNKNOWN)
    match command:
        case commands.GroupConfigure(_, _, config):
            return _configure(streams, stream, group, config)
        case commands.GroupDelete():
            return _delete(streams, stream, group, moment)
        case commands.GroupJoin(_, _, session_ns):
            return _join(group, session_ns, moment)
        case commands.GroupLeave(_, _, member):
            return _leave(group, member)
        case commands.GroupHeartbeat(_, _, member):
            return _heartbeat(group, member, moment)
        case commands.GroupCommit():
            return _commit(streams, (stream, group), command, moment)
        case commands.GroupSeek():
            return _seek(streams, (stream, group), command, moment)
        case commands.Deliver():
            return _deliver(streams, (stream, group), command, moment)
        case commands.Ack():
            return _ack(streams, (stream, group), command, moment)
        case commands.Nack():
            return _nack(group, command, moment)
        case commands.Claim():
            return _claim((stream, group), command, moment)


def remove_member(group: Group, member: int) -> None:
    """Remove a member; its partitions go to the others, its pending records belong to nobody."""
    group.members.set(member, None)
    _rebalance(group)


def decode_assignment(value: bytes) -> Assignment:
    """Read the value of the result of a join or a heartbeat."""
    try:
        generation, count = _ASSIGNMENT.unpack_from(value)
        partitions = struct.unpack_from(f"<{count}B", value, _ASSIGNMENT.size)
    except struct.error as error:
        raise BadResult(f"{len(value)} bytes are not an assignment") from error
    return Assignment(generation, partitions)


def decode_claimed(value: bytes) -> list[Claimed]:
    """Read the value of the result of a claim."""
    try:
        (count,) = _COUNT.unpack_from(value)
        return [
            Claimed(*_CLAIMED.unpack_from(value, _COUNT.size + _CLAIMED.size * number))
            for number in range(count)
        ]
    except struct.error as error:
        raise BadResult(f"{len(value)} bytes are not claimed records") from error


def decode_dead_count(value: bytes | None) -> int:
    """Read the value of the result of a nack: how many of the records are dead now."""
    if value is None:
        return 0
    if len(value) != _COUNT.size:
        raise BadResult(f"{len(value)} bytes are not a count of dead records")
    (count,) = _COUNT.unpack(value)
    return int(count)


def start_offset(partition: Partition, offset: int) -> int:
    """Return the cursor of a group that is set to ``offset``.

    0 is the first kept record. A trimmed offset stays as it is, so that the reader sees the gap.
    """
    if offset == 0:
        return partition.first_offset
    return min(max(offset, partition.stream_id + 1), partition.end_offset)


def _create(
    streams: Streams, stream: StreamState, command: commands.GroupCreate, moment: Moment
) -> Outcome:
    existing = stream.groups.get(command.group)
    if existing is not None:
        return Refused(Reason.GROUP_EXISTS, existing.id)
    if len(stream.groups) >= GROUPS_MAX:
        return Refused(Reason.STREAM_GROUPS_FULL, GROUPS_MAX)
    refused = _check_config(streams, stream, command.config)
    if refused is not None:
        return refused
    count = len(stream.partitions)
    group = Group(streams.indexes, stream.id, moment.index, command.group)
    group.info.set(0, GroupInfo(command.config, 0, (0,) * count))
    for partition in stream.partitions:
        group.cursors.set(partition.number, start_offset(partition, command.start))
        stream.note_schedule(partition)
    group.set_committed(tuple(map(group.committed_at, range(count))))
    stream.add_group(group)
    publish(streams, stream, group, moment.index)
    stream.schedule_all()
    return Applied(group.id)


def _check_config(
    streams: Streams, stream: StreamState, config: commands.GroupConfig
) -> Refused | None:
    if not config.max_deliveries:
        return None
    target = streams.find(stream.namespace, config.dead_letter)
    if isinstance(target, Refused) or target is stream:
        return Refused(Reason.DEAD_LETTER_STREAM_UNKNOWN)
    return None


def _configure(
    streams: Streams, stream: StreamState, group: Group, config: commands.GroupConfig
) -> Outcome:
    refused = _check_config(streams, stream, config)
    if refused is not None:
        return refused
    if group.pending.dead and not config.max_deliveries:
        # The new settings have no dead-letter stream: retry the dead records.
        for place in list(group.pending.dead):
            group.pending.set(place, group.pending.rows[place]._replace(dead=False))
    group.info.set(0, group.head._replace(config=config))
    return Applied(group.id)


def _delete(streams: Streams, stream: StreamState, group: Group, moment: Moment) -> Outcome:
    for partition in stream.partitions:
        stream.note_schedule(partition)
    stream.remove_group(group.name)
    key = cursor_key(stream.name, group.name)
    streams.keys.delete_derived(stream.namespace, key, moment.index)
    stream.schedule_all()
    return Applied(group.id)


def _join(group: Group, session_ns: int, moment: Moment) -> Outcome:
    if len(group.members) >= MEMBERS_MAX:
        return Refused(Reason.MEMBERS_FULL, MEMBERS_MAX)
    group.members.set(moment.index, Member(session_ns, moment.timestamp_ns + session_ns))
    _rebalance(group)
    return Applied(moment.index, _encode_assignment(group, moment.index))


def _leave(group: Group, member: int) -> Outcome:
    if group.members.get(member) is None:
        return Refused(Reason.MEMBER_UNKNOWN, member)
    remove_member(group, member)
    return APPLIED


def _heartbeat(group: Group, member: int, moment: Moment) -> Outcome:
    held = group.members.get(member)
    if held is None:
        return Refused(Reason.MEMBER_UNKNOWN, member)
    group.members.set(member, held._replace(deadline_ns=moment.timestamp_ns + held.session_ns))
    return Applied(member, _encode_assignment(group, member))


def _commit(
    streams: Streams, found: Found, command: commands.GroupCommit, moment: Moment
) -> Outcome:
    stream, group = found
    head = group.head
    if command.generation != head.generation:
        return Refused(Reason.GENERATION_STALE, head.generation)
    if (command.member or group.members.rows) and group.members.get(command.member) is None:
        return Refused(Reason.MEMBER_UNKNOWN, command.member)
    for number, offset in command.places:
        if number >= len(stream.partitions):
            return Refused(Reason.PARTITION_UNKNOWN, number)
        if command.member and not head.config.shared and head.owners[number] != command.member:
            return Refused(Reason.PARTITION_NOT_OWNED, number)
        if offset < group.committed[number]:
            return Refused(Reason.CURSOR_BEHIND, group.committed[number])
        if offset > max(stream.partitions[number].end_offset, group.committed[number]):
            return Refused(Reason.OFFSET_IN_FUTURE, stream.partitions[number].end_offset)
    for number, offset in command.places:
        for done in list(group.pending.places(number)):
            if done >= offset:
                break
            place = partition_id(done, number)
            if not group.pending.rows[place].dead:
                group.pending.set(place, None)
        if offset > group.cursors.rows[number]:
            group.cursors.set(number, offset)
    numbers = tuple(number for number, _ in command.places)
    refresh_cursors(streams, stream, group, numbers, moment.index)
    return APPLIED


def _seek(streams: Streams, found: Found, command: commands.GroupSeek, moment: Moment) -> Outcome:
    stream, group = found
    count = len(stream.partitions)
    if command.partition != PARTITION_ANY and command.partition >= count:
        return Refused(Reason.PARTITION_UNKNOWN, command.partition)
    all_of_them = command.partition == PARTITION_ANY
    numbers = range(count) if all_of_them else range(command.partition, command.partition + 1)
    for number in numbers:
        partition = stream.partitions[number]
        start = start_offset(partition, command.offset)
        for offset in list(group.pending.places(number)):
            place = partition_id(offset, number)
            comes_again = offset >= max(start, partition.first_offset)
            if comes_again or not group.pending.rows[place].dead:
                group.pending.set(place, None)
        group.cursors.set(number, start)
    # Current consumers have read from elsewhere: their commits must not undo the seek.
    group.info.set(0, group.head._replace(generation=group.head.generation + 1))
    refresh_cursors(streams, stream, group, numbers, moment.index)
    return Applied(group.head.generation)


def _deliver(streams: Streams, found: Found, command: commands.Deliver, moment: Moment) -> Outcome:
    stream, group = found
    if command.partition >= len(stream.partitions):
        return Refused(Reason.PARTITION_UNKNOWN, command.partition)
    refused = refuse_member(group, command.member, command.generation)
    if refused is not None:
        return refused
    if command.partition not in group.owned(command.member):
        return Refused(Reason.PARTITION_NOT_OWNED, command.partition)
    delivered = group.cursors.rows[command.partition]
    if command.from_offset != delivered:
        return Refused(Reason.DELIVERY_STALE, delivered)
    partition = stream.partitions[command.partition]
    if command.next_offset > partition.end_offset:
        return Refused(Reason.OFFSET_IN_FUTURE, partition.end_offset)
    if command.offsets and command.offsets[0] < partition.first_offset:
        # Trimmed since they were read: the log no longer keeps them for this group.
        return Refused(Reason.DELIVERY_STALE, delivered)
    if len(group.pending) + len(command.offsets) > PENDING_MAX:
        return Refused(Reason.PENDING_FULL, len(group.pending))
    for offset in command.offsets:
        place = partition_id(offset, command.partition)
        group.pending.set(place, Pending(command.member, moment.timestamp_ns, 1))
    group.cursors.set(command.partition, command.next_offset)
    refresh_cursors(streams, stream, group, (command.partition,), moment.index)
    return Applied(len(command.offsets))


def _ack(streams: Streams, found: Found, command: commands.Ack, moment: Moment) -> Outcome:
    stream, group = found
    held = _held(group, command.member, command.places)
    if isinstance(held, Refused):
        return held
    for place, _ in held:
        group.pending.set(place, None)
    numbers = tuple(sorted({number for number, _ in command.places}))
    refresh_cursors(streams, stream, group, numbers, moment.index)
    return Applied(len(held))


def _nack(group: Group, command: commands.Nack, moment: Moment) -> Outcome:
    held = _held(group, command.member, command.places)
    if isinstance(held, Refused):
        return held
    limit = group.head.config.max_deliveries
    ready_ns = moment.timestamp_ns + command.delay_ns
    dead_count = 0
    for place, pending in held:
        dead = bool(limit) and pending.deliveries >= limit
        dead_count += dead
        after = Pending(0, moment.timestamp_ns, pending.deliveries, ready_ns, command.reason, dead)
        group.pending.set(place, after)
    return Applied(len(held), _COUNT.pack(dead_count) if dead_count else None)


def _claim(found: Found, command: commands.Claim, moment: Moment) -> Outcome:
    stream, group = found
    refused = refuse_member(group, command.member, command.generation)
    if refused is not None:
        return refused
    limit = group.head.config.max_deliveries
    claimed: list[Claimed] = []
    for number in group.owned(command.member):
        for offset in list(group.pending.places(number)):
            if len(claimed) == command.limit:
                break
            place = partition_id(offset, number)
            pending = group.pending.rows[place]
            if not is_claimable(group, pending, command.idle_ns, moment.timestamp_ns):
                continue
            if command.passed and _is_passed(stream, place, command.passed):
                continue
            if limit and pending.deliveries >= limit:
                group.pending.set(place, pending._replace(member=0, dead=True))
                continue
            deliveries = min(pending.deliveries + 1, 0xFFFF)
            after = Pending(command.member, moment.timestamp_ns, deliveries, 0, pending.reason)
            group.pending.set(place, after)
            claimed.append(Claimed(number, offset, deliveries))
    value = _COUNT.pack(len(claimed)) + b"".join(_CLAIMED.pack(*each) for each in claimed)
    return Applied(len(claimed), value)


def _find_entries(stream: StreamState, place: int) -> set[int]:
    """Return the entries of a record: its own, and of a dead letter that of the original."""
    _, offset = split_place(place)
    return {offset, stream.dead.get(place) or offset}


def _is_passed(stream: StreamState, place: int, passed: Ranges) -> bool:
    return any(is_within(passed, index) for index in _find_entries(stream, place))


def list_claimable(
    found: Found, member: int, idle_ns: int, limit: int, timestamp_ns: int
) -> list[int]:
    """Return the entries of the records that a claim would take at that time."""
    stream, group = found
    places = (
        partition_id(offset, number)
        for number in group.owned(member)
        for offset in group.pending.places(number)
    )
    rows = group.pending.rows
    claimable = (each for each in places if is_claimable(group, rows[each], idle_ns, timestamp_ns))
    chosen = [_find_entries(stream, place) for place in islice(claimable, limit)]
    return sorted(set[int]().union(*chosen))


def is_claimable(group: Group, pending: Pending, idle_ns: int, timestamp_ns: int) -> bool:
    """Return whether a pending record may be claimed at that time."""
    if pending.dead:
        return False
    if not pending.member:
        return pending.ready_ns <= timestamp_ns
    if pending.member not in group.members.rows:
        return True
    return timestamp_ns - pending.since_ns >= idle_ns


def claimable_from(
    found: Found, idle_ns: int, partitions: Collection[int] | None = None, passed: Ranges = ()
) -> int | None:
    """Return the earliest log time at which something may be claimed; None if nothing ever.

    Only of these partitions, if some are named, and nothing that is passed over.
    """
    stream, group = found
    times = [
        0
        if pending.member and pending.member not in group.members.rows
        else (pending.since_ns + idle_ns if pending.member else pending.ready_ns)
        for place, pending in group.pending.rows.items()
        if not pending.dead
        and (partitions is None or split_place(place)[0] in partitions)
        and not (passed and _is_passed(stream, place, passed))
    ]
    first = min(times, default=U64_MAX)
    return None if first >= U64_MAX else first


def refuse_member(group: Group, member: int, generation: int) -> Refused | None:
    """Refuse a client that is no member, and a member with an old assignment."""
    if group.members.get(member) is None:
        return Refused(Reason.MEMBER_UNKNOWN, member)
    head = group.head
    if generation != head.generation and not head.config.shared:
        return Refused(Reason.GENERATION_STALE, head.generation)
    return None


def _held(
    group: Group, member: int, places: Iterable[commands.PartitionOffset]
) -> list[tuple[int, Pending]] | Refused:
    """Return the pending records at ``places``, all of which the member must hold."""
    if group.members.get(member) is None:
        return Refused(Reason.MEMBER_UNKNOWN, member)
    held: list[tuple[int, Pending]] = []
    for number, offset in places:
        # An offset of 2**56 or more would spill into the partition's bits.
        place = partition_id(offset, number)
        pending = group.pending.get(place) if split_place(place) == (number, offset) else None
        if pending is None or pending.member != member or pending.dead:
            return Refused(Reason.RECORD_NOT_PENDING, offset)
        held.append((place, pending))
    return held


def _rebalance(group: Group) -> None:
    head = group.head
    owners = assign(head.owners, list(group.members))
    group.info.set(0, head._replace(generation=head.generation + 1, owners=owners))


def _encode_assignment(group: Group, member: int) -> bytes:
    partitions = group.owned(member)
    return _ASSIGNMENT.pack(group.head.generation, len(partitions)) + bytes(partitions)
