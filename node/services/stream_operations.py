"""The operations on streams: which entries they become, and what their results and reads mean.

Requests become commands here, and invalid ones are refused here, for the reason that apply has for
it. An append of several records is an entry for each, with a result for each; in a session each
takes a sequence, from the request's on, so that sending it again is exact however many there are.

Streams and groups are described from any state of the projections, live or of the past. Reads of
records are not here: they wait for a disk (node/edge/messages.py).
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
from typing import Any

from onelog.node.edge.messages import fill_filter, found, parse_filter
from onelog.node.edge.operation import (
    Look,
    Operations,
    Read,
    RequestT,
    ResponseT,
    Write,
    answer_each,
    answer_number,
    applied,
    one_entry_each,
)
from onelog.node.edge.shards import View, invalid, parse_namespace
from onelog.node.public_errors import (
    error_of_bounds,
    error_of_exception,
    error_of_reason,
    fill_error,
)
from onelog.projections.codec import SessionRef, encode_prefixes, read_prefix
from onelog.projections.limits import (
    SESSION_TTL_NS_MAX,
    SESSION_TTL_NS_MIN,
    TTL_NS_MAX,
    U64_MAX,
    VALUE_SIZE_MAX,
)
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Duplicate, Refused, Result
from onelog.projections.shard_state import Projections
from onelog.projections.stream import commands
from onelog.projections.stream import commands as groups
from onelog.projections.stream.commands import (
    OPTION_KEY,
    TYPE_APPEND,
    Append,
    KeyHash,
    ProducerRef,
    append_body,
    choose_partition,
)
from onelog.projections.stream.filters import EVERYTHING, RecordFilter
from onelog.projections.stream.limits import (
    COUNT_MAX,
    GROUP_FILTER_SIZE_MAX,
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
from onelog.projections.stream.reads import (
    GroupDescription,
    PartitionDescription,
    StreamDescription,
)
from onelog.projections.stream.state import StreamState
from onelog.ual.entry import Draft
from onelog.v1 import queue_pb2, stream_pb2


def check_stream(name: str) -> str:
    """Return a name that a stream can have."""
    size = len(name.encode())
    if not 0 < size <= STREAM_NAME_SIZE_MAX or ":" in name:
        raise error_of_reason(Reason.STREAM_NAME_INVALID, size)
    return name


def check_group(name: str) -> str:
    """Return the name of a group; refuse an invalid one."""
    size = len(name.encode())
    if not 0 < size <= GROUP_NAME_SIZE_MAX:
        raise error_of_reason(Reason.GROUP_NAME_INVALID, size)
    return name


def parse_names(request: Any) -> tuple[str, str]:
    """Return the names of stream and group that a request holds."""
    return check_stream(request.stream), check_group(request.group)


def parse_ns(what: str, milliseconds: int, reason: Reason) -> int:
    """Return a time in nanoseconds; absurd ones are refused."""
    if milliseconds * 1_000_000 > TTL_NS_MAX:
        raise error_of_bounds(reason, what, milliseconds, TTL_NS_MAX // 1_000_000, 0)
    return milliseconds * 1_000_000


def parse_partition(request: Any) -> int:
    """Return the partition that a request names, or all of them."""
    if not request.HasField("partition"):
        return PARTITION_ANY
    if request.partition >= PARTITIONS_MAX:
        most, reason = PARTITIONS_MAX - 1, Reason.PARTITION_UNKNOWN
        raise error_of_bounds(reason, "partition", request.partition, most, 0)
    return int(request.partition)


def parse_limit(limit: int, default: int, limit_max: int) -> int:
    """Return the limit of a request, or the default; refuse one that is too large."""
    if limit > limit_max:
        raise error_of_bounds(Reason.LIMIT_INVALID, "limit", limit, limit_max)
    return limit or default


def parse_places(places: Sequence[stream_pb2.Place]) -> tuple[groups.PartitionOffset, ...]:
    """Return the places of a request in order."""
    if not 0 < len(places) <= OFFSETS_MAX:
        what = "the number of places"
        raise error_of_bounds(Reason.LIMIT_INVALID, what, len(places), OFFSETS_MAX)
    for place in places:
        if place.partition >= PARTITIONS_MAX:
            most, reason = PARTITIONS_MAX - 1, Reason.PARTITION_UNKNOWN
            raise error_of_bounds(reason, "partition", place.partition, most, 0)
    return tuple(sorted((place.partition, place.offset) for place in places))


_stream_name = attrgetter("stream")


def by_stream(requests: Sequence[Any]) -> Sequence[Sequence[bytes]]:
    """Return the names that say in which shards requests belong."""
    names = list(map(_stream_name, requests))
    routed = {name: (check_stream(name).encode(),) for name in set(names)}
    return list(map(routed.__getitem__, names))


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

_pack_size = struct.Struct("<H").pack
_join = b"".join
_new = tuple.__new__  # makes a Draft in a third of the time of its own constructor


# Records


def _append(
    _state: Any,
    requests: Sequence[stream_pb2.AppendRecordsRequest],
    namespace: str,
    session: SessionRef | None,
) -> list[Draft]:
    """Return an entry for each record.

    A record with a key or without is most of what there is: it is put together here, the others by
    the codec. This loop is what a record costs before the log.
    """
    for count in set(count_records(requests)):
        if not 0 < count <= RECORDS_MAX:
            what = "the number of records"
            raise error_of_bounds(Reason.LIMIT_INVALID, what, count, RECORDS_MAX)
    prefixes = encode_prefixes(namespace, session)
    key_max, value_max, join, pack_size = RECORD_KEY_SIZE_MAX, VALUE_SIZE_MAX, _join, _pack_size
    no_producers: Iterator[ProducerRef | None] = repeat(None)
    new = _new
    drafts: list[Draft] = []
    add = drafts.append
    for request in requests:
        stream = request.stream
        plain, keyed = encode_heads(stream)
        producers = _parse_producers(request) if request.HasField("producer") else no_producers
        for record, producer in zip(request.records, producers, strict=False):
            value = record.value
            if len(value) > value_max:
                what, size = "the size of a value", len(value)
                raise error_of_bounds(Reason.VALUE_TOO_LARGE, what, size, value_max, 0)
            if producer is not None or record.tag or record.headers or record.HasField("partition"):
                body = append_body(_parse_append(stream, record, producer))
                payload = join((next(prefixes), body))
            elif record.HasField("key"):
                key = record.key
                size = len(key)
                if not 0 < size <= key_max:
                    raise error_of_reason(Reason.KEY_SIZE_INVALID, size)
                payload = join((next(prefixes), keyed, pack_size(size), key, value))
            else:
                payload = join((next(prefixes), plain, value))
            add(new(Draft, (TYPE_APPEND, payload, 0)))
    return drafts


def count_records(requests: Sequence[stream_pb2.AppendRecordsRequest]) -> list[int]:
    """Return how many records each request has."""
    return [len(request.records) for request in requests]


@lru_cache(HEADS_KEPT)
def encode_heads(stream: str) -> tuple[bytes, bytes]:
    """Return options and name of a record that has no options, and of one that has a key."""
    name = check_stream(stream).encode()
    name = bytes((len(name),)) + name
    return b"\x00" + name, bytes((OPTION_KEY,)) + name


def _parse_producers(request: stream_pb2.AppendRecordsRequest) -> Iterator[ProducerRef]:
    """Return the idempotent producer's reference of each record."""
    producer, record_count = request.producer, len(request.records)
    if producer.epoch > EPOCH_MAX:
        message = f"the producer's epoch is {producer.epoch}; allowed: 0 to {EPOCH_MAX}"
        raise invalid("PRODUCER_INVALID", message)
    if not producer.sequence:
        raise invalid("PRODUCER_INVALID", "the producer's sequence is 0; they begin with 1")
    if record_count > PRODUCER_WINDOW:
        # Of more than that not all would be known again.
        what = "the number of records of a producer"
        raise error_of_bounds(Reason.LIMIT_INVALID, what, record_count, PRODUCER_WINDOW)
    if producer.sequence + record_count > U64_MAX:
        message = f"sequences end before {U64_MAX}; the first record has {producer.sequence}"
        raise invalid("PRODUCER_INVALID", message)
    # On the wire they begin with 1, because 0 is what is not set; in the log with 0.
    first = producer.sequence - 1
    return (
        ProducerRef(producer.producer_id, producer.epoch, first + number)
        for number in range(record_count)
    )


def _parse_append(
    stream: str, record: stream_pb2.NewRecord, producer: ProducerRef | None
) -> Append:
    key = record.key if record.HasField("key") else None
    if key is not None and not 0 < len(key) <= RECORD_KEY_SIZE_MAX:
        raise error_of_reason(Reason.KEY_SIZE_INVALID, len(key))
    _check_tag(record.tag)
    partition: int | None = parse_partition(record)
    return Append(
        stream,
        record.value,
        key,
        tuple(_parse_headers(record.headers)),
        record.tag or None,
        None if partition == PARTITION_ANY else partition,
        producer,
    )


def _parse_headers(headers: Sequence[queue_pb2.Header]) -> Iterable[tuple[str, bytes]]:
    if len(headers) > HEADERS_MAX:
        what, reason = "the number of headers", Reason.PAYLOAD_COUNT_TOO_LARGE
        raise error_of_bounds(reason, what, len(headers), HEADERS_MAX, 0)
    for header in headers:
        name, size = header.name, len(header.name.encode())
        if name.startswith(HEADERS_RESERVED):
            words = f"headers that begin with {HEADERS_RESERVED} are written by the server only"
            raise error_of_reason(Reason.HEADER_INVALID, size, words)
        if not 0 < size <= HEADER_NAME_SIZE_MAX:
            what = "the size of a header's name"
            raise error_of_bounds(Reason.HEADER_INVALID, what, size, HEADER_NAME_SIZE_MAX)
        if len(header.value) > HEADER_VALUE_SIZE_MAX:
            what, size = "the size of a header's value", len(header.value)
            raise error_of_bounds(Reason.HEADER_INVALID, what, size, HEADER_VALUE_SIZE_MAX, 0)
        yield header.name, header.value


def _answer_append(
    state: Projections,
    requests: Sequence[stream_pb2.AppendRecordsRequest],
    answers: Sequence[stream_pb2.AppendRecordsResponse],
    results: Sequence[Result],
    indexes: Sequence[int],
) -> None:
    entries = zip(indexes, results, strict=True)
    namespace = parse_namespace(requests[0].namespace)
    streams = {
        name: state.stream.find(namespace, name) for name in set(map(_stream_name, requests))
    }
    for request, answer in zip(requests, answers, strict=True):
        add = answer.results.add
        for _ in range(len(request.records)):
            index, result = next(entries)
            if result is APPLIED:
                add().offset = index
            else:
                _answer_record(add(), result, index)
        stream = streams[request.stream]
        if not isinstance(stream, Refused) and len(stream.partitions) > 1:
            _fill_partitions(stream, request, answer)


def _answer_record(target: stream_pb2.AppendResult, result: Result, index: int) -> None:
    """Say what became of a record that was refused, or sent before."""
    try:
        done = applied(result)
    except Exception as error:  # noqa: BLE001 - concerns this record, not the others
        fill_error(target.error, error_of_exception(error))
        return
    first_index = result.index if isinstance(result, Duplicate) else index
    target.offset = done.number or first_index
    target.duplicate = done.value == DUPLICATE


def _fill_partitions(
    stream: StreamState,
    request: stream_pb2.AppendRecordsRequest,
    answer: stream_pb2.AppendRecordsResponse,
) -> None:
    """Say in which partitions the records are.

    A stream keeps its partitions for ever. One that took the place of another is younger than the
    records of the other.
    """
    for record, result in zip(request.records, answer.results, strict=True):
        if result.offset <= stream.id:
            continue
        if record.HasField("partition"):
            result.partition = record.partition
        else:
            key = record.key if record.HasField("key") else None
            count = len(stream.partitions)
            result.partition = choose_partition(key, result.offset, count, stream.key_hash)


# Streams


def _parse_retention(retention: stream_pb2.Retention) -> commands.Retention:
    reason = Reason.STREAM_LIMIT_INVALID
    age_ns = parse_ns("age_ms", retention.age_ms, reason)
    for what in ("size_max", "count_max"):
        if (value := getattr(retention, what)) > COUNT_MAX:
            raise error_of_bounds(reason, what, value, COUNT_MAX, 0)
    return commands.Retention(
        age_ns, retention.size_max, retention.count_max, retention.past_groups
    )


def _parse_create(request: stream_pb2.CreateStreamRequest) -> commands.Create:
    count = request.partition_count or 1
    if count > PARTITIONS_MAX:
        what, reason = "partition_count", Reason.STREAM_LIMIT_INVALID
        raise error_of_bounds(reason, what, count, PARTITIONS_MAX)
    name, retention = check_stream(request.stream), _parse_retention(request.retention)
    return commands.Create(name, count, retention, KeyHash.MIXED)


# Groups


def _parse_config(request: Any) -> groups.GroupConfig:
    config = request.config
    most, target, reason = (
        config.max_deliveries,
        config.dead_letter_stream,
        Reason.STREAM_LIMIT_INVALID,
    )
    if most > DELIVERIES_MAX:
        raise error_of_bounds(reason, "max_deliveries", most, DELIVERIES_MAX, 0)
    if most and not target:
        message = f"max_deliveries is {most}, which needs a dead_letter_stream"
        raise error_of_reason(reason, most, message)
    if target:
        check_stream(target)
        if target == request.stream:
            message = f"{target!r} cannot take its own dead letters; name another stream"
            raise error_of_reason(Reason.DEAD_LETTER_STREAM_UNKNOWN, 0, message)
        if not most:
            message = f"dead_letter_stream is {target!r}, which needs max_deliveries"
            raise error_of_reason(reason, most, message)
    return groups.GroupConfig(
        config.shared,
        config.max_deliveries,
        config.dead_letter_stream,
        _parse_group_filter(config.filter),
    )


def _parse_group_filter(wanted: stream_pb2.RecordFilter) -> RecordFilter:
    """Return the filter of a group, all of which has a place in the codec."""
    found = parse_filter(wanted)
    for key in found.keys:
        if not 0 < len(key) <= RECORD_KEY_SIZE_MAX:
            raise error_of_bounds(
                Reason.KEY_SIZE_INVALID, "the key of a filter", len(key), RECORD_KEY_SIZE_MAX
            )
    for tag in found.tags:
        _check_tag(tag)
    for name, value in found.headers:
        size, value_size = len(name.encode()), len(value or b"")
        if not 0 < size <= HEADER_NAME_SIZE_MAX or value_size > HEADER_VALUE_SIZE_MAX:
            raise error_of_reason(Reason.HEADER_INVALID, size + value_size)
    size = len(found.encode())
    if size > GROUP_FILTER_SIZE_MAX:
        what = "the encoded filter of a group"
        raise error_of_bounds(Reason.FILTER_TOO_LARGE, what, size, GROUP_FILTER_SIZE_MAX, 0)
    return found


def _check_tag(tag: str) -> None:
    size = len(tag.encode())
    if size > TAG_SIZE_MAX:
        raise invalid("TAG_INVALID", f"the tag has {size} bytes; allowed: 0 to {TAG_SIZE_MAX}")


def _parse_create_group(request: stream_pb2.CreateGroupRequest) -> groups.GroupCreate:
    """A time was turned into an offset before (node/services/stream.py)."""
    start = request.from_offset if request.HasField("from_offset") else U64_MAX
    return groups.GroupCreate(*parse_names(request), start, _parse_config(request))


def _parse_join(request: stream_pb2.JoinGroupRequest) -> groups.GroupJoin:
    session_ms = request.session_ms or SESSION_DEFAULT_MS
    session_ns, reason = session_ms * 1_000_000, Reason.MEMBER_SESSION_INVALID
    if not SESSION_TTL_NS_MIN <= session_ns <= SESSION_TTL_NS_MAX:
        most, least = SESSION_TTL_NS_MAX // 1_000_000, SESSION_TTL_NS_MIN // 1_000_000
        raise error_of_bounds(reason, "session_ms", session_ms, most, least)
    return groups.GroupJoin(*parse_names(request), session_ns)


def _parse_nack(request: stream_pb2.NackRecordsRequest) -> groups.Nack:
    reason = request.reason.encode()
    if len(reason) > NACK_REASON_SIZE_MAX:
        what = "the size of reason"
        raise error_of_bounds(Reason.FAILURE_TOO_LARGE, what, len(reason), NACK_REASON_SIZE_MAX, 0)
    delay_ns = parse_ns("delay_ms", request.delay_ms, Reason.TTL_INVALID)
    places = parse_places(request.places)
    return groups.Nack(*parse_names(request), request.member_id, places, delay_ns, reason)


def _parse_commit(request: stream_pb2.CommitOffsetsRequest) -> groups.GroupCommit:
    member_id, generation = request.member_id, request.generation
    places = parse_places(request.places)
    return groups.GroupCommit(*parse_names(request), member_id, generation, places)


def _parse_seek(request: stream_pb2.SeekGroupRequest) -> groups.GroupSeek:
    """A time was turned into an offset before (node/services/stream.py)."""
    if request.WhichOneof("target") != "offset":
        raise invalid("TARGET_INVALID", "neither offset nor time_ns is given")
    return groups.GroupSeek(*parse_names(request), parse_partition(request), request.offset)


def _answer_assignment(_request: Any, answer: Any, done: Applied) -> None:
    assert done.value is not None, done
    assignment = decode_assignment(done.value)
    answer.generation = assignment.generation
    answer.partitions.extend(assignment.partitions)


def _answer_join(request: Any, answer: stream_pb2.JoinGroupResponse, done: Applied) -> None:
    _answer_assignment(request, answer, done)
    answer.member_id = done.number


def _answer_nack(_request: Any, answer: stream_pb2.NackRecordsResponse, done: Applied) -> None:
    answer.nacked_count = done.number
    answer.dead_count = decode_dead_count(done.value)


# The table


def _by_both_streams(requests: Sequence[Any]) -> Sequence[Sequence[bytes]]:
    """A group's dead letters go to a stream of the same shard."""
    named = []
    for request, own in zip(requests, by_stream(requests), strict=True):
        dead_letter = request.config.dead_letter_stream
        named.append((*own, dead_letter.encode()) if dead_letter else own)
    return named


def _write(
    response: type[ResponseT],
    parse_command: Callable[[RequestT], commands.Command],
    answer: Any = None,
    names: Callable[[Sequence[Any]], Sequence[Sequence[bytes]]] = by_stream,
) -> Write[RequestT, ResponseT]:
    """Return the write of one entry."""

    def make(_state: Any, request: RequestT, namespace: str, session: SessionRef | None) -> Draft:
        return encode_checked(parse_command(request), namespace, session)

    return Write(response, names, one_entry_each(make), answer, nouns="streams")


def _parse_configure(request: stream_pb2.ConfigureStreamRequest) -> commands.Configure:
    return commands.Configure(check_stream(request.stream), _parse_retention(request.retention))


def _parse_delete(request: stream_pb2.DeleteStreamRequest) -> commands.Delete:
    return commands.Delete(check_stream(request.stream))


def _parse_configure_group(request: stream_pb2.ConfigureGroupRequest) -> groups.GroupConfigure:
    return groups.GroupConfigure(*parse_names(request), _parse_config(request))


def _parse_delete_group(request: stream_pb2.DeleteGroupRequest) -> groups.GroupDelete:
    return groups.GroupDelete(*parse_names(request))


def _parse_leave(request: stream_pb2.LeaveGroupRequest) -> groups.GroupLeave:
    return groups.GroupLeave(*parse_names(request), request.member_id)


def _parse_heartbeat(request: stream_pb2.HeartbeatGroupRequest) -> groups.GroupHeartbeat:
    return groups.GroupHeartbeat(*parse_names(request), request.member_id)


def _parse_ack(request: stream_pb2.AckRecordsRequest) -> groups.Ack:
    return groups.Ack(*parse_names(request), request.member_id, parse_places(request.places))


APPEND_RECORDS: Write[stream_pb2.AppendRecordsRequest, stream_pb2.AppendRecordsResponse]
APPEND_RECORDS = Write(
    stream_pb2.AppendRecordsResponse,
    by_stream,
    _append,
    _answer_append,
    counts=count_records,
)
CREATE_STREAM = _write(stream_pb2.CreateStreamResponse, _parse_create, answer_number("stream_id"))
CONFIGURE_STREAM = _write(stream_pb2.ConfigureStreamResponse, _parse_configure)
DELETE_STREAM = _write(stream_pb2.DeleteStreamResponse, _parse_delete)
CREATE_GROUP = _write(stream_pb2.CreateGroupResponse, _parse_create_group, None, _by_both_streams)
CONFIGURE_GROUP = _write(
    stream_pb2.ConfigureGroupResponse, _parse_configure_group, None, _by_both_streams
)
DELETE_GROUP = _write(stream_pb2.DeleteGroupResponse, _parse_delete_group)
JOIN_GROUP = _write(stream_pb2.JoinGroupResponse, _parse_join, answer_each(_answer_join))
LEAVE_GROUP = _write(stream_pb2.LeaveGroupResponse, _parse_leave)
HEARTBEAT_GROUP = _write(
    stream_pb2.HeartbeatGroupResponse, _parse_heartbeat, answer_each(_answer_assignment)
)
ACK_RECORDS = _write(stream_pb2.AckRecordsResponse, _parse_ack, answer_number("acked_count"))
NACK_RECORDS = _write(stream_pb2.NackRecordsResponse, _parse_nack, answer_each(_answer_nack))
COMMIT_OFFSETS = _write(stream_pb2.CommitOffsetsResponse, _parse_commit)
SEEK_GROUP = _write(stream_pb2.SeekGroupResponse, _parse_seek)


# Descriptions

_KEY_HASHES = {
    KeyHash.CRC32C: stream_pb2.KEY_HASH_CRC32C,
    KeyHash.MIXED: stream_pb2.KEY_HASH_MIXED,
}


def fill_stream(target: stream_pb2.StreamInfo, namespace: str, stream: StreamDescription) -> None:
    """Write how a stream is set up and what it holds."""
    target.namespace, target.stream, target.stream_id = namespace, stream.name, stream.stream_id
    retention = stream.retention
    target.retention.age_ms = retention.age_ns // 1_000_000
    target.retention.size_max = retention.size_max
    target.retention.count_max = retention.count_max
    target.retention.past_groups = retention.past_groups
    target.key_hash = _KEY_HASHES[stream.key_hash]
    for each in stream.partitions:
        fill_partition(target.partitions.add(), each)
    target.groups.extend(stream.groups)


def fill_partition(target: stream_pb2.PartitionInfo, partition: PartitionDescription) -> None:
    """Write what a partition holds."""
    target.partition = partition.partition
    if partition.record_count_kept:
        target.first_offset = partition.first_record
        target.last_offset = partition.end_offset - 1
        target.record_count = partition.record_count_kept
        target.size = partition.size_kept


def _get_stream(
    view: View, namespace: str
) -> Look[stream_pb2.GetStreamRequest, stream_pb2.GetStreamResponse]:
    reads = view.projections.stream

    def look(request: stream_pb2.GetStreamRequest, answer: stream_pb2.GetStreamResponse) -> None:
        described = found(reads.describe(namespace, check_stream(request.stream)))
        fill_stream(answer.stream, namespace, described)

    return look


def _get_group(
    view: View, namespace: str
) -> Look[stream_pb2.GetGroupRequest, stream_pb2.GetGroupResponse]:
    reads = view.projections.stream

    def look(request: stream_pb2.GetGroupRequest, answer: stream_pb2.GetGroupResponse) -> None:
        fill_group(answer, found(reads.describe_group(namespace, *parse_names(request))))

    return look


def fill_group(answer: stream_pb2.GetGroupResponse, group: GroupDescription) -> None:
    """Show how a consumer group is set up and how far it is."""
    answer.config.shared = group.config.shared
    answer.config.max_deliveries = group.config.max_deliveries
    answer.config.dead_letter_stream = group.config.dead_letter
    if group.config.filter != EVERYTHING:
        fill_filter(answer.config.filter, group.config.filter)
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


GET_STREAM = Read(stream_pb2.GetStreamResponse, by_stream, _get_stream)
GET_GROUP = Read(stream_pb2.GetGroupResponse, by_stream, _get_group)

OPERATIONS: Operations = {
    "create_stream": CREATE_STREAM,
    "configure_stream": CONFIGURE_STREAM,
    "delete_stream": DELETE_STREAM,
    "get_stream": GET_STREAM,
    "append_records": APPEND_RECORDS,
    "create_group": CREATE_GROUP,
    "configure_group": CONFIGURE_GROUP,
    "delete_group": DELETE_GROUP,
    "get_group": GET_GROUP,
    "join_group": JOIN_GROUP,
    "leave_group": LEAVE_GROUP,
    "heartbeat_group": HEARTBEAT_GROUP,
    "ack_records": ACK_RECORDS,
    "nack_records": NACK_RECORDS,
    "commit_offsets": COMMIT_OFFSETS,
    "seek_group": SEEK_GROUP,
}
