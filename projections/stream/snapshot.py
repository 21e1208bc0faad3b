"""The stream section of a snapshot: streams with partitions, producers, dead letters and groups.

docs/streams.md has the table. Records are not saved: they are in the log. Hashes are not saved
either: loading computes each from what it read. Streams are in the order of namespace and id,
everything else in the order of its keys, so equal states give equal bytes.
"""

import struct
from array import array
from collections.abc import Iterable, Iterator

from onelog.projections.codec import U8, U16, U32, U64, SectionReader, encode_sized
from onelog.projections.errors import BadPayload
from onelog.projections.limits import SESSION_TTL_NS_MAX
from onelog.projections.stream.commands import (
    GROUP_FILTERED,
    GROUP_OPTIONS_KNOWN,
    GROUP_SHARED,
    Cause,
    GroupConfig,
    KeyHash,
    Retention,
    read_retention,
)
from onelog.projections.stream.filters import EVERYTHING, parse_filter
from onelog.projections.stream.groups import Group, GroupInfo, Member, Pending, split_place
from onelog.projections.stream.limits import (
    MARKS_MAX,
    PARTITIONS_MAX,
    PENDING_MAX,
    PRODUCER_WINDOW,
    STREAM_ID_END,
    TRIMS_MAX,
    partition_id,
)
from onelog.projections.stream.partition import MARK_ROW, Partition, TrimRecord
from onelog.projections.stream.state import Producer, StreamInfo, Streams, StreamState
from onelog.ual.entry import OWNER_STREAM

SECTION_VERSION = 2
SECTION_VERSION_WITHOUT_FILTERS = 1  # nor the hash of keys

_RETENTION = struct.Struct("<QQQB")
_PARTITION = struct.Struct("<QQQQQBB")  # first, last, last_ns, count, size, trims, marks
_TRIM = struct.Struct("<QBQ")  # before, cause, when
_MARK = struct.Struct("<4Q")
_PRODUCER = struct.Struct("<QHQB")  # id, epoch, sequence, offsets
_DEAD = struct.Struct("<QQ")  # place, origin
_GROUP = struct.Struct("<QQBH")  # id, generation, options, max_deliveries
_MEMBER = struct.Struct("<QQQ")  # id, session_ns, deadline_ns
_PENDING = struct.Struct("<QQQHQB")  # place, member, since, deliveries, ready, dead


def dump_parts(streams: Streams) -> Iterator[bytes]:
    """Yield the section in small parts."""
    yield U8.pack(SECTION_VERSION) + U16.pack(len(streams.names))
    for namespace in sorted(streams.names):
        names = streams.names[namespace]
        yield encode_sized(U8, namespace.encode()) + U32.pack(len(names))
        for stream in sorted(names.values(), key=lambda each: each.id):
            yield from _dump_stream(stream)


def _dump_stream(stream: StreamState) -> Iterator[bytes]:
    info = stream.info.rows[0]
    yield U64.pack(stream.id) + encode_sized(U8, stream.name.encode())
    yield U16.pack(info.partition_count) + info.retention.encode() + U8.pack(info.key_hash)
    for partition in stream.partitions:
        yield _dump_partition(partition)
    yield U32.pack(len(stream.producers))
    for producer in stream.producers:
        epoch, sequence, offsets = stream.producers.rows[producer]
        head = _PRODUCER.pack(producer, epoch, sequence, len(offsets))
        yield head + struct.pack(f"<{len(offsets)}Q", *offsets)
    yield U32.pack(len(stream.dead))
    for place in stream.dead:
        yield _DEAD.pack(place, stream.dead.rows[place])
    yield U32.pack(len(stream.groups))
    for name in sorted(stream.groups):
        yield from _dump_group(stream.groups[name])


def _dump_partition(partition: Partition) -> bytes:
    marks = partition.marks
    head = _PARTITION.pack(
        partition.first_offset,
        partition.last_offset,
        partition.last_ns,
        partition.count,
        partition.size,
        len(partition.trims),
        len(marks) // MARK_ROW,
    )
    trims = b"".join(_TRIM.pack(*trim) for trim in partition.trims)
    return head + trims + struct.pack(f"<{len(marks)}Q", *marks)


def _dump_group(group: Group) -> Iterator[bytes]:
    config, generation, owners = group.head
    yield encode_sized(U8, group.name.encode())
    yield _GROUP.pack(group.id, generation, config.options, config.max_deliveries)
    yield encode_sized(U8, config.dead_letter.encode()) + config.encode_filter()
    cursors = [group.cursors.rows[number] for number in range(len(owners))]
    yield struct.pack(f"<{2 * len(owners)}Q", *owners, *cursors)
    yield U16.pack(len(group.members))
    for member in group.members:
        yield _MEMBER.pack(member, *group.members.rows[member])
    yield U16.pack(len(group.pending))
    for place, pending in group.pending.rows.items():
        member, since_ns, deliveries, ready_ns, reason, dead = pending
        head = _PENDING.pack(place, member, since_ns, deliveries, ready_ns, dead)
        yield head + encode_sized(U8, reason)


def load_section(chunks: Iterable[bytes], streams: Streams) -> None:
    """Load a section into fresh streams; the namespaces exist already."""
    reader = SectionReader(OWNER_STREAM, chunks)
    version = reader.number(U8)
    known = (SECTION_VERSION_WITHOUT_FILTERS, SECTION_VERSION)
    reader.expect(version in known, f"section version {version}")
    previous = ""
    for position in range(reader.number(U16)):
        namespace = reader.text(U8)
        reader.expect(position == 0 or namespace > previous, "namespaces out of order")
        reader.expect(namespace in streams.names, f"namespace {namespace!r} is not known")
        previous = namespace
        previous_id = 0
        for _ in range(reader.number(U32)):
            stream = _load_stream(reader, streams, namespace, version)
            reader.expect(stream.id > previous_id, "streams out of order")
            previous_id = stream.id
    reader.finish()


def _load_stream(
    reader: SectionReader, streams: Streams, namespace: str, version: int
) -> StreamState:
    stream_id = reader.number(U64)
    name = reader.text(U8)
    known = stream_id in streams.by_id or name in streams.names[namespace]
    reader.expect(stream_id < STREAM_ID_END and not known, f"stream {name!r} twice")
    stream = StreamState(streams.indexes, namespace, name, stream_id)
    partition_count = reader.number(U16)
    reader.expect(1 <= partition_count <= PARTITIONS_MAX, f"{partition_count} partitions")
    retention = _load_retention(reader)
    key_hash = reader.number(U8) if version >= SECTION_VERSION else 0
    reader.expect(key_hash <= KeyHash.MIXED, f"hash of keys {key_hash}")
    stream.open(StreamInfo(partition_count, retention, KeyHash(key_hash)))
    for partition in stream.partitions:
        _load_partition(reader, partition)
    for _ in range(reader.number(U32)):
        producer, epoch, sequence, count = reader.fields(_PRODUCER)
        reader.expect(1 <= count <= PRODUCER_WINDOW, f"producer {producer}")
        reader.expect(stream.producers.get(producer) is None, f"producer {producer} twice")
        offsets = reader.fields(struct.Struct(f"<{count}Q"))
        stream.producers.set(producer, Producer(epoch, sequence, offsets))
    for _ in range(reader.number(U32)):
        place, origin = reader.fields(_DEAD)
        reader.expect(stream.dead.get(place) is None, f"dead letter {place} twice")
        stream.dead.set(place, origin)
    for _ in range(reader.number(U32)):
        _load_group(reader, streams, stream)
    streams.add(stream)
    return stream


def _load_retention(reader: SectionReader) -> Retention:
    retention = read_retention(*reader.fields(_RETENTION))
    if isinstance(retention, int):
        raise reader.corrupt(f"a retention of {retention}")
    return retention


def _load_partition(reader: SectionReader, partition: Partition) -> None:
    first, last, last_ns, count, size, trim_count, mark_count = reader.fields(_PARTITION)
    reader.expect(trim_count <= TRIMS_MAX and mark_count <= MARKS_MAX, "too many trims or marks")
    trims: list[TrimRecord] = []
    for _ in range(trim_count):
        before, cause, when_ns = reader.fields(_TRIM)
        reader.expect(Cause.REQUEST <= cause <= Cause.SEVERAL, f"a trim with cause {cause}")
        trims.append(TrimRecord(before, Cause(cause), when_ns))
    marks = array("Q")
    for _ in range(mark_count):
        marks.extend(reader.fields(_MARK))
    partition.restore(first, last, last_ns, (count, size), marks, tuple(trims))


def _load_group(reader: SectionReader, streams: Streams, stream: StreamState) -> None:
    name = reader.text(U8)
    reader.expect(name not in stream.groups, f"group {name!r} twice")
    group_id, generation, options, max_deliveries = reader.fields(_GROUP)
    reader.expect(not options & ~GROUP_OPTIONS_KNOWN, f"options of group {name!r}")
    dead_letter, wanted = reader.text(U8), EVERYTHING
    if options & GROUP_FILTERED:
        try:
            wanted = parse_filter(reader.sized(U16))
        except BadPayload as error:
            raise reader.corrupt(f"filter of group {name!r}") from error
    config = GroupConfig(bool(options & GROUP_SHARED), max_deliveries, dead_letter, wanted)
    count = len(stream.partitions)
    group = Group(streams.indexes, stream.id, group_id, name)
    numbers = reader.fields(struct.Struct(f"<{2 * count}Q"))
    group.info.set(0, GroupInfo(config, generation, numbers[:count]))
    for number, delivered in enumerate(numbers[count:]):
        group.cursors.set(number, delivered)
    for _ in range(reader.number(U16)):
        member, session_ns, deadline_ns = reader.fields(_MEMBER)
        known = member in streams.indexes.member_groups
        reader.expect(not known and session_ns <= SESSION_TTL_NS_MAX, f"member {member}")
        group.members.set(member, Member(session_ns, deadline_ns))
    pending_count = reader.number(U16)
    reader.expect(pending_count <= PENDING_MAX, f"{pending_count} pending records")
    for _ in range(pending_count):
        place, member, since_ns, deliveries, ready_ns, dead = reader.fields(_PENDING)
        partition, offset = split_place(place)
        reader.expect(partition < count and dead <= 1, f"a pending record at {place}")
        reader.expect(group.pending.get(partition_id(offset, partition)) is None, "twice pending")
        value = Pending(member, since_ns, deliveries, ready_ns, reader.sized(U8), bool(dead))
        group.pending.set(place, value)
    group.set_committed(tuple(map(group.committed_at, range(count))))
    stream.add_group(group)
