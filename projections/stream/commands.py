"""Stream commands: what clients and the leader ask of streams, as values and as bytes.

``encode_command`` makes the draft of an entry, ``decode_command`` reads its body. The tables are
in docs/streams.md; golden files pin the bytes. Records are in record.py, consumer groups
in group_commands.py.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

from onelog.projections.codec import (
    U8,
    U16,
    U64,
    Reader,
    SessionRef,
    encode_prefix,
    encode_sized,
    read_prefix,
)
from onelog.projections.errors import BadPayload
from onelog.projections.limits import TTL_NS_MAX
from onelog.projections.projection import Operation
from onelog.projections.reasons import Reason
from onelog.projections.stream import group_commands as groups
from onelog.projections.stream.group_commands import GroupCommand, group_body
from onelog.projections.stream.limits import COUNT_MAX, PARTITION_ANY, PARTITIONS_MAX
from onelog.projections.stream.record import (
    OPTION_PRODUCER,
    Append,
    DeadLetter,
    append_body,
    dead_letter_body,
    read_append,
    read_dead_letter,
    read_stream_name,
)
from onelog.ual.entry import OWNER_STREAM, Draft, Entry
from onelog.ual.errors import CorruptPayload, PayloadTooLarge

PAST_GROUPS = 0x01

_RETENTION = struct.Struct("<QQQB")  # age_ns, size_max, count_max, options
_TRIM = struct.Struct("<BHBQ")  # cause, partition, options, operand
_CUT = struct.Struct("<BBQ")  # partition, cause, before
RETENTION_SIZE = 25
assert _RETENTION.size == RETENTION_SIZE


class Cause(IntEnum):
    """Why records were trimmed; readers who lost some are told."""

    REQUEST = 1  # somebody asked for it, up to an offset
    AGE = 2
    SIZE = 3
    COUNT = 4
    SEVERAL = 5  # of these, too long ago to tell which


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a stream keeps its records, per partition; 0 is no limit."""

    age_ns: int = 0
    size_max: int = 0
    count_max: int = 0
    past_groups: bool = False  # whether records go that a consumer group has not done yet

    def encode(self) -> bytes:
        """Return the 25 bytes of docs/streams.md."""
        options = PAST_GROUPS if self.past_groups else 0
        return _RETENTION.pack(self.age_ns, self.size_max, self.count_max, options)


@dataclass(frozen=True, slots=True)
class Create:
    """Create a stream, whose id is the entry's index; the number of partitions is for ever."""

    stream: str
    partition_count: int = 1
    retention: Retention = Retention()


@dataclass(frozen=True, slots=True)
class Configure:
    """Replace the retention of a stream."""

    stream: str
    retention: Retention


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a stream with its groups; its records are no longer kept."""

    stream: str


@dataclass(frozen=True, slots=True)
class Trim:
    """Trim now: below an offset, or down to an age, a size or a count.

    ``operand`` is the offset for REQUEST, else nanoseconds, bytes or records to keep.
    """

    stream: str
    cause: Cause
    operand: int
    partition: int = PARTITION_ANY
    past_groups: bool = False


@dataclass(frozen=True, slots=True)
class Retain:
    """The leader's entry: trim what the policy lets go, as (partition, cause, before) each."""

    stream_id: int
    cuts: tuple[tuple[int, Cause, int], ...]


Command = Append | Create | Configure | Delete | Trim | Retain | GroupCommand | DeadLetter


def encode_command(command: Command, namespace: str, session: SessionRef | None = None) -> Draft:
    """Return the draft of the entry that carries ``command``."""
    payload = encode_prefix(namespace, session) + encode_body(command)
    return Draft(OWNER_STREAM << 8 | OPERATIONS[type(command)], payload)


def decode_command(operation: int, reader: Reader) -> Command:
    """Read the body of an entry with the low byte ``operation``, to its end."""
    known = _BY_NUMBER.get(operation)
    if known is None:
        raise BadPayload(Reason.OPERATION_UNKNOWN, operation)
    command: Command = known.decode(reader)
    reader.finish()
    return command


def describe_stream_command(entry: Entry) -> str:
    """Return one line about an entry of a stream, for people; total, whatever it holds."""
    try:
        prefix, reader = read_prefix(entry.plain_payload())
        command = decode_command(entry.entry_type & 0xFF, reader)
    except (BadPayload, CorruptPayload, PayloadTooLarge) as error:
        return f"not a stream command: {error}"
    if isinstance(command, Append):
        shown = f"key {command.key!r}, " if command.key is not None else ""
        return f"append to {prefix.namespace}/{command.stream}: {shown}{len(command.value)} bytes"
    return f"{prefix.namespace}: {command}"


def encode_body(command: Command) -> bytes:
    """Return the body of a command: what follows the prefix."""
    match command:
        case Append():
            return append_body(command)
        case DeadLetter():
            return dead_letter_body(command)
        case Create(stream, partition_count, retention):
            return _name(stream) + U16.pack(partition_count) + retention.encode()
        case Configure(stream, retention):
            return _name(stream) + retention.encode()
        case Delete(stream):
            return _name(stream)
        case Trim(stream, cause, operand, partition, past_groups):
            options = PAST_GROUPS if past_groups else 0
            return _name(stream) + _TRIM.pack(cause, partition, options, operand)
        case Retain(stream_id, cuts):
            rows = b"".join(_CUT.pack(*cut) for cut in cuts)
            return U64.pack(stream_id) + U16.pack(len(cuts)) + rows
        case _:
            return group_body(command)


def read_retention(age_ns: int, size_max: int, count_max: int, options: int) -> Retention | int:
    """Return a policy, or the field that is outside its bounds."""
    if age_ns > TTL_NS_MAX:
        return age_ns
    if size_max > COUNT_MAX or count_max > COUNT_MAX:
        return max(size_max, count_max)
    if options & ~PAST_GROUPS:
        return options
    return Retention(age_ns, size_max, count_max, bool(options & PAST_GROUPS))


def _name(name: str) -> bytes:
    return encode_sized(U8, name.encode())


def _read_retention(reader: Reader) -> Retention:
    age_ns, size_max, count_max, options = reader.fields(_RETENTION)
    retention = read_retention(age_ns, size_max, count_max, options)
    if isinstance(retention, int):
        raise BadPayload(Reason.STREAM_LIMIT_INVALID, retention)
    return retention


def _read_create(reader: Reader) -> Create:
    stream, partition_count = read_stream_name(reader), reader.number(U16)
    if not 1 <= partition_count <= PARTITIONS_MAX:
        raise BadPayload(Reason.STREAM_LIMIT_INVALID, partition_count)
    return Create(stream, partition_count, _read_retention(reader))


def _read_trim(reader: Reader) -> Trim:
    stream = read_stream_name(reader)
    cause, partition, options, operand = reader.fields(_TRIM)
    if not Cause.REQUEST <= cause <= Cause.COUNT or options & ~PAST_GROUPS:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, cause)
    if partition >= PARTITIONS_MAX and partition != PARTITION_ANY:
        raise BadPayload(Reason.PARTITION_UNKNOWN, partition)
    # Nothing to keep is a delete, which is asked for by an offset; so 0 is a mistake.
    if cause != Cause.REQUEST and not 1 <= operand <= COUNT_MAX:
        raise BadPayload(Reason.LIMIT_INVALID, operand)
    return Trim(stream, Cause(cause), operand, partition, bool(options))


def _read_retain(reader: Reader) -> Retain:
    stream_id = reader.number(U64)
    cuts: list[tuple[int, Cause, int]] = []
    for _ in range(reader.count(PARTITIONS_MAX)):
        partition, cause, before = reader.fields(_CUT)
        if not Cause.AGE <= cause <= Cause.COUNT:
            raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, cause)
        cuts.append((partition, Cause(cause), before))
    if not cuts or any(after[0] <= before[0] for before, after in pairwise(cuts)):
        raise BadPayload(Reason.OFFSETS_INVALID, len(cuts))
    return Retain(stream_id, tuple(cuts))


def _is_blind_append(body: bytes) -> bool:
    """A record without a producer, who may have sent it before; its offset is its index."""
    return bool(body) and not body[0] & OPTION_PRODUCER


# The numbers are in logs: never change or reuse one.
STREAM_OPERATIONS = (
    Operation(0x01, Append, read_append, is_blind=_is_blind_append),
    Operation(0x02, Create, _read_create),
    Operation(
        0x03,
        Configure,
        lambda reader: Configure(read_stream_name(reader), _read_retention(reader)),
    ),
    Operation(0x04, Delete, lambda reader: Delete(read_stream_name(reader))),
    Operation(0x05, Trim, _read_trim),
    Operation(0x06, Retain, _read_retain),
    Operation(0x07, groups.GroupCreate, groups.read_create),
    Operation(0x08, groups.GroupConfigure, groups.read_configure),
    Operation(0x09, groups.GroupDelete, groups.read_delete),
    Operation(0x0A, groups.GroupJoin, groups.read_join, has_large_result=True),
    Operation(0x0B, groups.GroupLeave, groups.read_leave),
    Operation(0x0C, groups.GroupHeartbeat, groups.read_heartbeat, has_large_result=True),
    Operation(0x0D, groups.GroupCommit, groups.read_commit),
    Operation(0x0E, groups.GroupSeek, groups.read_seek),
    Operation(0x0F, groups.Deliver, groups.read_deliver),
    Operation(0x10, groups.Ack, groups.read_ack),
    Operation(0x11, groups.Nack, groups.read_nack),
    Operation(0x12, DeadLetter, read_dead_letter),
    Operation(0x13, groups.Claim, groups.read_claim, has_large_result=True),
)
OPERATIONS = {each.command: each.number for each in STREAM_OPERATIONS}
_BY_NUMBER = {each.number: each for each in STREAM_OPERATIONS}
