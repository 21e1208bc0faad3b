"""Commands of consumer groups, as values and as bytes; the dispatch is in commands.py.

Each body opens with the names of stream and group. Decoding checks all that can be said without
the state, so that executing a command starts from sound values.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from onelog.projections.codec import U8, U16, U64, Reader, encode_sized
from onelog.projections.errors import BadPayload
from onelog.projections.limits import SESSION_TTL_NS_MAX, SESSION_TTL_NS_MIN, TTL_NS_MAX
from onelog.projections.reasons import Reason
from onelog.projections.stream.limits import OFFSETS_MAX, PARTITION_ANY, PARTITIONS_MAX
from onelog.projections.stream.record import read_group_name, read_nack_reason, read_stream_name

GROUP_SHARED = 0x01

_CONFIG = struct.Struct("<BH")  # options, max_deliveries
_SEEK = struct.Struct("<HQ")  # partition, offset
_FENCE = struct.Struct("<QQ")  # member, generation
_DELIVER = struct.Struct("<BQQ")  # partition, from_offset, next_offset
_CLAIM = struct.Struct("<QQQH")  # member, generation, idle_ns, limit
_PLACE = struct.Struct("<BQ")  # partition, offset

Place = tuple[int, int]
"""A partition and an offset in it."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """What a group does with records that fail: ``max_deliveries`` 0 tries for ever."""

    shared: bool = False  # any member may take from any partition
    max_deliveries: int = 0
    dead_letter: str = ""  # a stream of the same namespace

    def encode(self) -> bytes:
        """Return the bytes of docs/streams.md."""
        options = GROUP_SHARED if self.shared else 0
        return _CONFIG.pack(options, self.max_deliveries) + encode_sized(
            U8, self.dead_letter.encode()
        )


@dataclass(frozen=True, slots=True)
class GroupCreate:
    """Create a group that starts at ``start``: 0 the first record kept, U64_MAX the next one."""

    stream: str
    group: str
    start: int
    config: GroupConfig = GroupConfig()


@dataclass(frozen=True, slots=True)
class GroupConfigure:
    """Replace what a group does with records that fail."""

    stream: str
    group: str
    config: GroupConfig


@dataclass(frozen=True, slots=True)
class GroupDelete:
    """Delete a group, its cursors and what is pending."""

    stream: str
    group: str


@dataclass(frozen=True, slots=True)
class GroupJoin:
    """Become a member, whose id is the entry's index, for as long as heartbeats come."""

    stream: str
    group: str
    session_ns: int


@dataclass(frozen=True, slots=True)
class GroupLeave:
    """Stop being a member."""

    stream: str
    group: str
    member: int


@dataclass(frozen=True, slots=True)
class GroupHeartbeat:
    """Stay a member; the answer tells generation and partitions."""

    stream: str
    group: str
    member: int


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """Everything below these offsets is done; ``member`` 0 for a group without members."""

    stream: str
    group: str
    member: int
    generation: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class GroupSeek:
    """Go on from ``offset`` in one partition or all (PARTITION_ANY); 0 is the first one kept."""

    stream: str
    group: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand records to a member: all wanted ones from ``from_offset`` to before ``next_offset``.

    Who proposes it has read the offsets from the log; ``from_offset`` proves that nothing was
    delivered in between.
    """

    stream: str
    group: str
    member: int
    generation: int
    partition: int
    from_offset: int
    next_offset: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """These records, which the member holds, are done."""

    stream: str
    group: str
    member: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Nack:
    """Give records back, for somebody to claim after ``delay_ns``."""

    stream: str
    group: str
    member: int
    places: tuple[Place, ...]
    delay_ns: int = 0
    reason: bytes = b""


@dataclass(frozen=True, slots=True)
class Claim:
    """Take over up to ``limit`` pending records that nobody holds, or for ``idle_ns`` already."""

    stream: str
    group: str
    member: int
    generation: int
    idle_ns: int
    limit: int


GroupCommand = (
    GroupCreate
    | GroupConfigure
    | GroupDelete
    | GroupJoin
    | GroupLeave
    | GroupHeartbeat
    | GroupCommit
    | GroupSeek
    | Deliver
    | Ack
    | Nack
    | Claim
)


def group_body(command: GroupCommand) -> bytes:
    """Return what follows the prefix."""
    names = encode_sized(U8, command.stream.encode()) + encode_sized(U8, command.group.encode())
    match command:
        case GroupCreate(_, _, start, config):
            return names + U64.pack(start) + config.encode()
        case GroupConfigure(_, _, config):
            return names + config.encode()
        case GroupDelete():
            return names
        case GroupJoin(_, _, number) | GroupLeave(_, _, number) | GroupHeartbeat(_, _, number):
            return names + U64.pack(number)
        case GroupCommit(_, _, member, generation, places):
            return names + _FENCE.pack(member, generation) + encode_places(places)
        case GroupSeek(_, _, partition, offset):
            return names + _SEEK.pack(partition, offset)
        case Deliver(_, _, member, generation, partition, from_offset, next_offset, offsets):
            head = _FENCE.pack(member, generation)
            head += _DELIVER.pack(partition, from_offset, next_offset)
            return names + head + U16.pack(len(offsets)) + b"".join(map(U64.pack, offsets))
        case Ack(_, _, member, places):
            return names + U64.pack(member) + encode_places(places)
        case Nack(_, _, member, places, delay_ns, reason):
            head = U64.pack(member) + U64.pack(delay_ns) + encode_sized(U8, reason)
            return names + head + encode_places(places)
        case Claim(_, _, member, generation, idle_ns, limit):
            return names + _CLAIM.pack(member, generation, idle_ns, limit)


def encode_places(places: Sequence[Place]) -> bytes:
    """Return a count and that many pairs of partition and offset."""
    return U16.pack(len(places)) + b"".join(_PLACE.pack(*place) for place in places)


def read_create(reader: Reader) -> GroupCreate:
    """Read the body of a group's creation."""
    stream, group = _names(reader)
    return GroupCreate(stream, group, reader.number(U64), _read_config(reader))


def read_configure(reader: Reader) -> GroupConfigure:
    """Read the body of a group's configuration."""
    return GroupConfigure(*_names(reader), _read_config(reader))


def read_delete(reader: Reader) -> GroupDelete:
    """Read the body of a group's deletion."""
    return GroupDelete(*_names(reader))


def read_join(reader: Reader) -> GroupJoin:
    """Read the body of a join."""
    names, session_ns = _names(reader), reader.number(U64)
    if not SESSION_TTL_NS_MIN <= session_ns <= SESSION_TTL_NS_MAX:
        raise BadPayload(Reason.MEMBER_SESSION_INVALID, session_ns)
    return GroupJoin(*names, session_ns)


def read_leave(reader: Reader) -> GroupLeave:
    """Read the body of a leave."""
    return GroupLeave(*_names(reader), reader.number(U64))


def read_heartbeat(reader: Reader) -> GroupHeartbeat:
    """Read the body of a heartbeat."""
    return GroupHeartbeat(*_names(reader), reader.number(U64))


def read_commit(reader: Reader) -> GroupCommit:
    """Read the body of a commit: one offset for each of some partitions."""
    names = _names(reader)
    member, generation = reader.fields(_FENCE)
    places = _read_places(reader, PARTITIONS_MAX)
    for before, after in pairwise(places):
        if after[0] <= before[0]:
            raise BadPayload(Reason.OFFSETS_INVALID, after[1])
    return GroupCommit(*names, member, generation, places)


def read_seek(reader: Reader) -> GroupSeek:
    """Read the body of a seek."""
    names = _names(reader)
    partition, offset = reader.fields(_SEEK)
    if partition >= PARTITIONS_MAX and partition != PARTITION_ANY:
        raise BadPayload(Reason.PARTITION_UNKNOWN, partition)
    return GroupSeek(*names, partition, offset)


def read_deliver(reader: Reader) -> Deliver:
    """Read the body of a delivery."""
    names = _names(reader)
    member, generation = reader.fields(_FENCE)
    partition, from_offset, next_offset = reader.fields(_DELIVER)
    count = reader.count(OFFSETS_MAX)
    offsets = reader.fields(struct.Struct(f"<{count}Q"))
    for before, after in pairwise((from_offset - 1, *offsets, next_offset)):
        if after <= before:
            raise BadPayload(Reason.OFFSETS_INVALID, after)
    return Deliver(*names, member, generation, partition, from_offset, next_offset, offsets)


def read_ack(reader: Reader) -> Ack:
    """Read the body of an acknowledgement."""
    names, member = _names(reader), reader.number(U64)
    return Ack(*names, member, _read_ascending(reader))


def read_nack(reader: Reader) -> Nack:
    """Read the body of a return."""
    names, member = _names(reader), reader.number(U64)
    delay_ns = reader.number(U64)
    if delay_ns > TTL_NS_MAX:
        raise BadPayload(Reason.TTL_INVALID, delay_ns)
    reason = read_nack_reason(reader)
    return Nack(*names, member, _read_ascending(reader), delay_ns, reason)


def read_claim(reader: Reader) -> Claim:
    """Read the body of a claim."""
    names = _names(reader)
    member, generation, idle_ns, limit = reader.fields(_CLAIM)
    if not 1 <= limit <= OFFSETS_MAX:
        raise BadPayload(Reason.LIMIT_INVALID, limit)
    return Claim(*names, member, generation, idle_ns, limit)


def _names(reader: Reader) -> tuple[str, str]:
    return read_stream_name(reader), read_group_name(reader)


def _read_config(reader: Reader) -> GroupConfig:
    options, max_deliveries = reader.fields(_CONFIG)
    if options & ~GROUP_SHARED:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    dead_letter = reader.text(U8)
    # A record that is given up must go somewhere: losing it in silence is not on offer.
    if bool(max_deliveries) != bool(dead_letter):
        raise BadPayload(Reason.STREAM_LIMIT_INVALID, max_deliveries)
    return GroupConfig(bool(options & GROUP_SHARED), max_deliveries, dead_letter)


def _read_places(reader: Reader, count_max: int) -> tuple[Place, ...]:
    count = reader.count(count_max)
    if not count:
        raise BadPayload(Reason.LIMIT_INVALID, 0)
    places: list[Place] = []
    for _ in range(count):
        partition, offset = reader.fields(_PLACE)
        places.append((partition, offset))
    return tuple(places)


def _read_ascending(reader: Reader) -> tuple[Place, ...]:
    """Read places in order, so that none can be named twice."""
    places = _read_places(reader, OFFSETS_MAX)
    for before, after in pairwise(places):
        if after <= before:
            raise BadPayload(Reason.OFFSETS_INVALID, after[1])
    return places
