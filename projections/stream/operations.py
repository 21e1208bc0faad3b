"""Executing commands on streams: create, configure, delete, append, trim, and what the leader asks.

Nothing is changed before all checks have passed, so a refusal leaves no trace.
"""

from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from onelog.projections.codec import Reader, namespace_of
from onelog.projections.errors import BadPayload
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Outcome, Refused, Repeated
from onelog.projections.stream.commands import Cause, Configure, Create, Delete, Retain, Trim
from onelog.projections.stream.groups import Group, split_place
from onelog.projections.stream.limits import (
    DEAD_LETTERS_MAX,
    PARTITION_ANY,
    STREAM_ID_END,
    STREAMS_MAX,
    partition_id,
)
from onelog.projections.stream.partition import Partition
from onelog.projections.stream.record import (
    OPTION_KEY,
    OPTIONS_KNOWN,
    DeadLetter,
    ProducerRef,
    parse_key,
    parse_options,
    read_append,
)
from onelog.projections.stream.state import StreamInfo, Streams, StreamState

DUPLICATE = b"\x01"
"""The value of an append's result that was made before; its number is the offset of then."""


class Moment(NamedTuple):
    """Where in the log a command stands, and how many bytes its body has."""

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
    stream = StreamState(streams.books, namespace, command.stream, moment.index)
    stream.open(StreamInfo(command.partition_count, command.retention))
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
    """Append records, unless their producers did so before (``Handler``).

    A slice of the payload finds the stream: a name that is known needs no check.
    """
    names, body, undo = streams.by_prefix.get(prefix, {}), len(prefix), streams.books.undo
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
            number = (offset if key is None else crc32c(key)) % len(partitions)
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
            # What ``add_record`` does when there is no more to it, which is nearly always.
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
    """Judge a record, and note it with its producer; None: it is to be appended."""
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
    """Return what is wrong with a record, or why there is no stream for it."""
    try:
        command = read_append(Reader(payload, len(prefix)))
    except BadPayload as error:
        return Refused(error.reason, error.detail)
    found = streams.find(namespace_of(prefix), command.stream)
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


def retain(streams: Streams, namespace: str, command: Retain, moment: Moment) -> Outcome:
    """Trim what the leader found to be due, if the policy agrees at this entry's time."""
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
    stream: StreamState, partition: Partition, before: int, cause: Cause, timestamp_ns: int
) -> bool:
    """Trim, and let go of dead letters that went with it."""
    stream.note_schedule(partition)
    if not partition.trim(before, cause, timestamp_ns):
        return False
    stream.forget_dead(partition.number, partition.first_offset)
    stream.schedule(partition)
    return True


def dead_letter(streams: Streams, namespace: str, command: DeadLetter, moment: Moment) -> Outcome:
    """Make this entry a record of the dead-letter stream, and take the original off pending."""
    source = streams.by_id.get(command.source_id)
    group = None if source is None else source.groups.get(command.group)
    if source is None or source.namespace != namespace or group is None:
        return Refused(Reason.DEAD_LETTER_STALE, command.offset)
    if command != dead_letter_of(source, group, partition_id(command.offset, command.partition)):
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


def dead_letter_of(source: StreamState, group: Group, place: int) -> DeadLetter | None:
    """Return the entry that moves a pending record, None if it is not waiting for that."""
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
    """Bring the committed cursors up to date after a change, and publish them if they moved."""
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
    streams.keys.put_derived(stream.namespace, key, value.encode(), index)


def cursor_key(stream: str, group: str) -> bytes:
    """Return the key under which KV shows the cursors of a group."""
    return f"cg:{stream}:{group}".encode()
