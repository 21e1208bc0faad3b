"""The operations on streams: which entries they become, and what their results and reads mean.

Requests are turned into commands here, and found wrong here if they are. An append of several
records is an entry for each, with a result for each; in a session each takes a sequence, from the
request's on, so that sending it again is exact however many there are.

Reads of records are not here: they wait for a disk (node/edge/messages.py).

Requests
--------
What the requests of the Stream service have in common: names, places and times that can be.

All of it is looked at before anything is written, and refused for the reason that apply has for it.

Descriptions
------------
Streams and groups as they are set up and how far they are: looks at the state of a shard.

They work on any state of the projections, the live one or one of the past.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from crc32c import crc32c

from onelog.node.edge.messages import found
from onelog.node.edge.operation import Read, RequestT, ResponseT, Write, applied
from onelog.node.edge.shards import View, invalid, namespace_of
from onelog.node.public_errors import error_of_exception, error_of_reason, put_error
from onelog.projections.codec import SessionRef, encode_prefix, read_prefix
from onelog.projections.limits import TTL_NS_MAX, U64_MAX, VALUE_SIZE_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Duplicate, Refused, Result
from onelog.projections.shard_state import Projections
from onelog.projections.stream import commands
from onelog.projections.stream import commands as groups
from onelog.projections.stream.commands import (
    OPTION_KEY,
    SESSION_SIZE,
    TYPE_APPEND,
    Append,
    ProducerRef,
    append_body,
)
from onelog.projections.stream.limits import (
    GROUP_NAME_SIZE_MAX,
    HEADERS_MAX,
    NACK_REASON_SIZE_MAX,
    OFFSETS_MAX,
    PARTITION_ANY,
    PARTITIONS_MAX,
    PRODUCER_WINDOW,
    RECORD_KEY_SIZE_MAX,
    STREAM_NAME_SIZE_MAX,
)
from onelog.projections.stream.operations import DUPLICATE, decode_assignment, decode_dead_count
from onelog.projections.stream.reads import GroupDescription, StreamDescription
from onelog.ual.entry import Draft
from onelog.v1 import queue_pb2, stream_pb2


def check_stream(name: str) -> str:
    """Return a name that a stream can have."""
    size = len(name.encode())
    if not 0 < size <= STREAM_NAME_SIZE_MAX or ":" in name:
        raise error_of_reason(Reason.STREAM_NAME_INVALID, size)
    return name


def check_group(name: str) -> str:
    """Return a name that a group can have."""
    size = len(name.encode())
    if not 0 < size <= GROUP_NAME_SIZE_MAX:
        raise error_of_reason(Reason.GROUP_NAME_INVALID, size)
    return name


def names_of(request: Any) -> tuple[str, str]:
    """Return the names of stream and group that a request holds."""
    return check_stream(request.stream), check_group(request.group)


def ns_of(milliseconds: int, reason: Reason, limit_ns: int = TTL_NS_MAX) -> int:
    """Return a time in nanoseconds; absurd ones are refused."""
    if milliseconds * 1_000_000 > limit_ns:
        raise error_of_reason(reason, milliseconds * 1_000_000)
    return milliseconds * 1_000_000


def partition_of(request: Any) -> int:
    """Return the partition that a request names, or all of them."""
    if not request.HasField("partition"):
        return PARTITION_ANY
    if request.partition >= PARTITIONS_MAX:
        raise error_of_reason(Reason.PARTITION_UNKNOWN, request.partition)
    return int(request.partition)


def limit_of(limit: int, default: int, limit_max: int) -> int:
    """Return how many are wanted."""
    if limit > limit_max:
        raise error_of_reason(Reason.LIMIT_INVALID, limit)
    return limit or default


def places_of(places: Sequence[stream_pb2.Place]) -> tuple[groups.PartitionOffset, ...]:
    """Return the places of a request in order."""
    if not 0 < len(places) <= OFFSETS_MAX:
        raise error_of_reason(Reason.LIMIT_INVALID, len(places))
    for place in places:
        if place.partition >= PARTITIONS_MAX:
            raise error_of_reason(Reason.PARTITION_UNKNOWN, place.partition)
    return tuple(sorted((place.partition, place.offset) for place in places))


def by_stream(request: Any) -> tuple[bytes, ...]:
    """Return the name that says in which shard a request belongs."""
    return (check_stream(request.stream).encode(),)


def encode_checked(
    command: commands.Command, namespace: str, session: SessionRef | None = None
) -> Draft:
    """Return the entry of a command; refuse one that apply would find unsound."""
    draft = commands.encode_command(command, namespace, session)
    _, reader = read_prefix(draft.payload)
    commands.decode_command(draft.entry_type & 0xFF, reader)
    return draft


# Operations

RECORDS_MAX = 1_000  # in one request
HEADS_KEPT = 1_024  # of streams that were appended to last, about 500 bytes each
SESSION_DEFAULT_MS = 30_000
# Sizes that the codec of a record has room for.
TAG_SIZE_MAX = 255
HEADER_NAME_SIZE_MAX = 255
HEADER_VALUE_SIZE_MAX = 65_535
HEADERS_RESERVED = "dlq."
EPOCH_MAX = 65_535
DELIVERIES_MAX = 65_535

_pack_session = struct.Struct("<QQQ").pack  # as encode_prefix has it
_pack_size = struct.Struct("<H").pack
_join = b"".join


# Records


def append_drafts(
    request: stream_pb2.AppendRecordsRequest, namespace: str, session: SessionRef | None
) -> list[Draft]:
    """Return an entry for each record.

    A record with a key or without is most of what there is: it is put together here, the others by
    the codec. This loop is what a record costs before the log.
    """
    records = request.records
    if not 0 < len(records) <= RECORDS_MAX:
        raise error_of_reason(Reason.LIMIT_INVALID, len(records))
    stream, producer = request.stream, _producer_of(request)
    prefix, plain, keyed = heads_of(namespace, stream, session is not None)
    numbers = b""
    if session is not None:
        session_id, sequence, first = session
    key_max, value_max, join, pack_size = RECORD_KEY_SIZE_MAX, VALUE_SIZE_MAX, _join, _pack_size
    drafts: list[Draft] = []
    add = drafts.append
    for position, record in enumerate(records):
        if session is not None:
            numbers = _pack_session(session_id, sequence + position, first)
        value = record.value
        if len(value) > value_max:
            raise error_of_reason(Reason.VALUE_TOO_LARGE, len(value))
        if producer is not None or record.tag or record.headers or record.HasField("partition"):
            body = append_body(_append_of(stream, record, producer, position))
            add(Draft(TYPE_APPEND, join((prefix, numbers, body))))
        elif record.HasField("key"):
            key = record.key
            size = len(key)
            if not 0 < size <= key_max:
                raise error_of_reason(Reason.KEY_SIZE_INVALID, size)
            add(Draft(TYPE_APPEND, join((prefix, numbers, keyed, pack_size(size), key, value))))
        else:
            add(Draft(TYPE_APPEND, join((prefix, numbers, plain, value))))
    return drafts


@lru_cache(HEADS_KEPT)
def heads_of(namespace: str, stream: str, has_session: bool) -> tuple[bytes, bytes, bytes]:  # noqa: FBT001
    """Return how entries of a stream begin, up to a session's numbers, and what follows those.

    That is options and name of a record that has no options, and of one that has a key.
    """
    prefix = encode_prefix(namespace, SessionRef(0, 0, 0) if has_session else None)
    if has_session:
        prefix = prefix[:-SESSION_SIZE]
    name = check_stream(stream).encode()
    name = bytes((len(name),)) + name
    return prefix, b"\x00" + name, bytes((OPTION_KEY,)) + name


def _producer_of(request: stream_pb2.AppendRecordsRequest) -> stream_pb2.Producer | None:
    if not request.HasField("producer"):
        return None
    producer = request.producer
    if producer.epoch > EPOCH_MAX or not producer.sequence:
        raise invalid("PRODUCER_INVALID", f"epochs go to {EPOCH_MAX}, sequences begin with 1")
    if len(request.records) > PRODUCER_WINDOW:
        # Of more than that not all would be known again.
        raise error_of_reason(Reason.LIMIT_INVALID, len(request.records))
    if producer.sequence + len(request.records) > U64_MAX:
        raise invalid("PRODUCER_INVALID", f"there is no sequence {producer.sequence}")
    return producer


def _append_of(
    stream: str, record: stream_pb2.NewRecord, producer: stream_pb2.Producer | None, position: int
) -> Append:
    key = record.key if record.HasField("key") else None
    if key is not None and not 0 < len(key) <= RECORD_KEY_SIZE_MAX:
        raise error_of_reason(Reason.KEY_SIZE_INVALID, len(key))
    if len(record.tag.encode()) > TAG_SIZE_MAX:
        raise invalid("TAG_INVALID", f"a tag has at most {TAG_SIZE_MAX} bytes")
    partition: int | None = partition_of(record)
    reference = None
    if producer is not None:
        # On the wire they begin with 1, because 0 is what is not set; in the log with 0.
        sequence = producer.sequence - 1 + position
        reference = ProducerRef(producer.producer_id, producer.epoch, sequence)
    return Append(
        stream,
        record.value,
        key,
        tuple(_headers_of(record.headers)),
        record.tag or None,
        None if partition == PARTITION_ANY else partition,
        reference,
    )


def _headers_of(headers: Sequence[queue_pb2.Header]) -> Iterable[tuple[str, bytes]]:
    if len(headers) > HEADERS_MAX:
        raise error_of_reason(Reason.PAYLOAD_COUNT_TOO_LARGE, len(headers))
    for header in headers:
        size = len(header.name.encode())
        is_named = 0 < size <= HEADER_NAME_SIZE_MAX and not header.name.startswith(HEADERS_RESERVED)
        if not is_named or len(header.value) > HEADER_VALUE_SIZE_MAX:
            raise error_of_reason(Reason.HEADER_INVALID, size + len(header.value))
        yield header.name, header.value


def _answer_append(
    state: Projections,
    request: stream_pb2.AppendRecordsRequest,
    answer: stream_pb2.AppendRecordsResponse,
    results: Sequence[Result],
    index: int,
) -> None:
    add = answer.results.add
    for result in results:
        target = add()
        if result is APPLIED:
            target.offset = index
        else:
            _answer_record(target, result, index)
        index += 1
    _put_partitions(state, request, answer)


def _answer_record(target: stream_pb2.AppendResult, result: Result, index: int) -> None:
    """Say what became of a record that was refused, or sent before."""
    try:
        done = applied(result)
    except Exception as error:  # noqa: BLE001 - concerns this record, not the others
        put_error(target.error, error_of_exception(error))
        return
    first_index = result.index if isinstance(result, Duplicate) else index
    target.offset = done.number or first_index
    target.duplicate = done.value == DUPLICATE


def _put_partitions(
    state: Projections,
    request: stream_pb2.AppendRecordsRequest,
    answer: stream_pb2.AppendRecordsResponse,
) -> None:
    """Say in which partitions the records are.

    A stream has its partitions for ever; one that took the place of another is younger than them.
    """
    stream = state.stream.find(namespace_of(request.namespace), request.stream)
    if isinstance(stream, Refused) or len(stream.partitions) == 1:
        return
    for record, result in zip(request.records, answer.results, strict=True):
        if result.offset <= stream.id:
            continue
        if record.HasField("partition"):
            result.partition = record.partition
        else:
            number = crc32c(record.key) if record.HasField("key") else result.offset
            result.partition = number % len(stream.partitions)


# Streams


def _retention_of(retention: stream_pb2.Retention) -> commands.Retention:
    age_ns = ns_of(retention.age_ms, Reason.STREAM_LIMIT_INVALID)
    return commands.Retention(
        age_ns, retention.size_max, retention.count_max, retention.past_groups
    )


def _create_of(request: stream_pb2.CreateStreamRequest) -> commands.Create:
    count = request.partition_count or 1
    if count > PARTITIONS_MAX:
        raise error_of_reason(Reason.STREAM_LIMIT_INVALID, count)
    return commands.Create(check_stream(request.stream), count, _retention_of(request.retention))


def _trim_of(request: stream_pb2.TrimRequest) -> commands.Trim:
    match request.WhichOneof("bound"):
        case "below_offset":
            cause, operand = commands.Cause.REQUEST, request.below_offset
        case "age_ms":
            cause, operand = commands.Cause.AGE, ns_of(request.age_ms, Reason.LIMIT_INVALID)
        case "keep_size":
            cause, operand = commands.Cause.SIZE, request.keep_size
        case "keep_count":
            cause, operand = commands.Cause.COUNT, request.keep_count
        case _:
            raise invalid("BOUND_INVALID", "below_offset, age_ms, keep_size or keep_count")
    return commands.Trim(
        check_stream(request.stream), cause, operand, partition_of(request), request.past_groups
    )


# Groups


def _config_of(config: stream_pb2.GroupConfig) -> groups.GroupConfig:
    if config.max_deliveries > DELIVERIES_MAX:
        raise error_of_reason(Reason.STREAM_LIMIT_INVALID, config.max_deliveries)
    if config.dead_letter_stream:
        check_stream(config.dead_letter_stream)
    return groups.GroupConfig(config.shared, config.max_deliveries, config.dead_letter_stream)


def _create_group_of(request: stream_pb2.CreateGroupRequest) -> groups.GroupCreate:
    """A time was turned into an offset before (node/services/stream.py)."""
    start = request.from_offset if request.HasField("from_offset") else U64_MAX
    return groups.GroupCreate(*names_of(request), start, _config_of(request.config))


def _join_of(request: stream_pb2.JoinGroupRequest) -> groups.GroupJoin:
    session_ms = request.session_ms or SESSION_DEFAULT_MS
    return groups.GroupJoin(*names_of(request), ns_of(session_ms, Reason.MEMBER_SESSION_INVALID))


def _nack_of(request: stream_pb2.NackRecordsRequest) -> groups.Nack:
    reason = request.reason.encode()
    if len(reason) > NACK_REASON_SIZE_MAX:
        raise error_of_reason(Reason.FAILURE_TOO_LARGE, len(reason))
    delay_ns = ns_of(request.delay_ms, Reason.TTL_INVALID)
    places = places_of(request.places)
    return groups.Nack(*names_of(request), request.member_id, places, delay_ns, reason)


def _commit_of(request: stream_pb2.CommitOffsetsRequest) -> groups.GroupCommit:
    member_id, generation = request.member_id, request.generation
    places = places_of(request.places)
    return groups.GroupCommit(*names_of(request), member_id, generation, places)


def _seek_of(request: stream_pb2.SeekGroupRequest) -> groups.GroupSeek:
    """A time was turned into an offset before (node/services/stream.py)."""
    if request.WhichOneof("target") != "offset":
        raise invalid("TARGET_INVALID", "seek to an offset or to a time")
    return groups.GroupSeek(*names_of(request), partition_of(request), request.offset)


def _answer_assignment(
    _state: Projections, _request: Any, answer: Any, results: Sequence[Result], _: int
) -> None:
    done = applied(results[0])
    assert done.value is not None, done
    assignment = decode_assignment(done.value)
    answer.generation = assignment.generation
    answer.partitions.extend(assignment.partitions)


def _answer_join(
    state: Projections, request: Any, answer: Any, results: Sequence[Result], index: int
) -> None:
    _answer_assignment(state, request, answer, results, index)
    answer.member_id = applied(results[0]).number


def _answer_nack(
    _state: Projections, _request: Any, answer: Any, results: Sequence[Result], _: int
) -> None:
    done = applied(results[0])
    answer.nacked_count = done.number
    answer.dead_count = decode_dead_count(done.value)


def _number(field: str) -> Any:
    """Return how the number that an entry returned becomes a field of the answer."""

    def put(
        _state: Projections, _request: Any, answer: Any, results: Sequence[Result], _: int
    ) -> None:
        setattr(answer, field, applied(results[0]).number)

    return put


# The table


def _by_both_streams(request: Any) -> tuple[bytes, ...]:
    """A group's dead letters go to a stream of the same shard."""
    dead_letter = request.config.dead_letter_stream
    return (*by_stream(request), *((dead_letter.encode(),) if dead_letter else ()))


def _write(
    response: type[ResponseT],
    command_of: Callable[[RequestT], commands.Command],
    answer: Any = None,
    names: Callable[[Any], Sequence[bytes]] = by_stream,
) -> Write[RequestT, ResponseT]:
    """Return the write of one entry."""

    def drafts(request: RequestT, namespace: str, session: SessionRef | None) -> list[Draft]:
        return [encode_checked(command_of(request), namespace, session)]

    return Write(response, names, drafts, answer or (lambda *_: None))


def _configure_of(request: stream_pb2.ConfigureStreamRequest) -> commands.Configure:
    return commands.Configure(check_stream(request.stream), _retention_of(request.retention))


def _delete_of(request: stream_pb2.DeleteStreamRequest) -> commands.Delete:
    return commands.Delete(check_stream(request.stream))


def _configure_group_of(request: stream_pb2.ConfigureGroupRequest) -> groups.GroupConfigure:
    return groups.GroupConfigure(*names_of(request), _config_of(request.config))


def _delete_group_of(request: stream_pb2.DeleteGroupRequest) -> groups.GroupDelete:
    return groups.GroupDelete(*names_of(request))


def _leave_of(request: stream_pb2.LeaveGroupRequest) -> groups.GroupLeave:
    return groups.GroupLeave(*names_of(request), request.member_id)


def _heartbeat_of(request: stream_pb2.HeartbeatGroupRequest) -> groups.GroupHeartbeat:
    return groups.GroupHeartbeat(*names_of(request), request.member_id)


def _ack_of(request: stream_pb2.AckRecordsRequest) -> groups.Ack:
    return groups.Ack(*names_of(request), request.member_id, places_of(request.places))


APPEND_RECORDS: Write[stream_pb2.AppendRecordsRequest, stream_pb2.AppendRecordsResponse]
APPEND_RECORDS = Write(
    stream_pb2.AppendRecordsResponse,
    by_stream,
    append_drafts,
    _answer_append,
    width=lambda request: max(1, len(request.records)),
)
CREATE_STREAM = _write(stream_pb2.CreateStreamResponse, _create_of, _number("stream_id"))
CONFIGURE_STREAM = _write(stream_pb2.ConfigureStreamResponse, _configure_of)
DELETE_STREAM = _write(stream_pb2.DeleteStreamResponse, _delete_of)
TRIM = _write(stream_pb2.TrimResponse, _trim_of)
CREATE_GROUP = _write(stream_pb2.CreateGroupResponse, _create_group_of, None, _by_both_streams)
CONFIGURE_GROUP = _write(
    stream_pb2.ConfigureGroupResponse, _configure_group_of, None, _by_both_streams
)
DELETE_GROUP = _write(stream_pb2.DeleteGroupResponse, _delete_group_of)
JOIN_GROUP = _write(stream_pb2.JoinGroupResponse, _join_of, _answer_join)
LEAVE_GROUP = _write(stream_pb2.LeaveGroupResponse, _leave_of)
HEARTBEAT_GROUP = _write(stream_pb2.HeartbeatGroupResponse, _heartbeat_of, _answer_assignment)
ACK_RECORDS = _write(stream_pb2.AckRecordsResponse, _ack_of, _number("acked_count"))
NACK_RECORDS = _write(stream_pb2.NackRecordsResponse, _nack_of, _answer_nack)
COMMIT_OFFSETS = _write(stream_pb2.CommitOffsetsResponse, _commit_of)
SEEK_GROUP = _write(stream_pb2.SeekGroupResponse, _seek_of)


# Descriptions


def put_stream(target: stream_pb2.StreamInfo, namespace: str, stream: StreamDescription) -> None:
    """Write how a stream is set up and what it holds."""
    target.namespace, target.stream, target.stream_id = namespace, stream.name, stream.stream_id
    retention = stream.retention
    target.retention.age_ms = retention.age_ns // 1_000_000
    target.retention.size_max = retention.size_max
    target.retention.count_max = retention.count_max
    target.retention.past_groups = retention.past_groups
    for each in stream.partitions:
        partition = target.partitions.add(partition=each.partition)
        if each.record_count_kept:
            partition.first_offset = each.first_offset
            partition.last_offset = each.end_offset - 1
            partition.record_count = each.record_count_kept
            partition.size = each.size_kept
    target.groups.extend(stream.groups)


def _look_stream(
    view: View,
    namespace: str,
    request: stream_pb2.GetStreamRequest,
    answer: stream_pb2.GetStreamResponse,
) -> None:
    name = check_stream(request.stream)
    put_stream(answer.stream, namespace, found(view.projections.stream.describe(namespace, name)))


def _look_group(
    view: View,
    namespace: str,
    request: stream_pb2.GetGroupRequest,
    answer: stream_pb2.GetGroupResponse,
) -> None:
    stream, name = check_stream(request.stream), check_group(request.group)
    group: GroupDescription = found(view.projections.stream.describe_group(namespace, stream, name))
    answer.config.shared = group.config.shared
    answer.config.max_deliveries = group.config.max_deliveries
    answer.config.dead_letter_stream = group.config.dead_letter
    answer.generation = group.generation
    for member_id, deadline_ns in group.members:
        member = answer.members.add(member_id=member_id, expires_ns=deadline_ns)
        member.pending_count = group.pending_by_member.get(member_id, 0)
        member.partitions.extend(
            number
            for number, owner in enumerate(group.owners)
            if owner == member_id or group.config.shared
        )
    for number, committed in enumerate(group.committed):
        answer.partitions.add(
            partition=number,
            committed_offset=committed,
            next_offset=group.delivered[number],
            lag=max(0, group.lags[number]),
            pending_count=group.pending_of_partitions[number],
        )


GET_STREAM = Read(stream_pb2.GetStreamResponse, by_stream, _look_stream)
GET_GROUP = Read(stream_pb2.GetGroupResponse, by_stream, _look_group)
