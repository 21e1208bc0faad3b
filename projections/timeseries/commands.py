"""Time series commands as values, bytes and text.

``encode_command`` makes the draft of an entry, ``decode_command`` reads its body, and
``describe_timeseries_command`` says in one line what an entry asks for. The tables are in
docs/timeseries.md; golden files pin the bytes. Decoding checks everything that does not depend on
the state, and raises ``BadPayload`` otherwise. Batches (point_batch.py) and blocks (columns.py)
have their own codecs for their arrays.
"""

import struct
from dataclasses import dataclass
from typing import assert_never

from onelog.projections.codec import (
    I64,
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
from onelog.projections.projection import Commands, Operation
from onelog.projections.reasons import Reason
from onelog.projections.state_hash import item_hash
from onelog.projections.timeseries.limits import (
    BLOCK_BODY_SIZE_MAX,
    BLOCK_POINTS_MAX,
    CHORE_SIZE_MAX,
    RULE_AGGREGATES_MAX,
    RULE_WINDOW_NS_MAX,
    RULE_WINDOW_NS_MIN,
    TIME_NS_MAX,
    TIME_NS_MIN,
    WRITE_FIELDS_MAX,
)
from onelog.projections.timeseries.names import (
    Matcher,
    Operator,
    encode_matchers,
    encode_name,
    read_matchers,
    read_name,
)
from onelog.projections.timeseries.point_batch import (
    WriteBatch,
    batch_runs,
    encode_batch,
    read_batch,
)
from onelog.projections.timeseries.types import (
    CONFIG,
    EXPONENT_BITS,
    START,
    Aggregate,
    ColumnKey,
    Config,
    FieldType,
    Policy,
    Rule,
    Value,
    bits_to_value,
    to_field_type,
    value_bits,
)
from onelog.ual.entry import OWNER_TIMESERIES, Draft, Entry
from onelog.ual.errors import DataError

_BLOCK = struct.Struct("<QHQQIIqqQQ")
_ROLLUP_BEGIN = struct.Struct("<QQq")  # created, rule index, to
_ROLLUP = struct.Struct("<QQQqqQHQH")  # created, rule index, slice, from, to, after, last
_TRIM = struct.Struct("<QqQ")  # created, cutoff, after
_RANGE = struct.Struct("<qqQ")  # first, last, after
_RULE = struct.Struct("<QQ")  # window, delay


@dataclass(frozen=True, slots=True)
class Write:
    """Write one row: fields of one series at one time."""

    series: bytes
    time_ns: int
    fields: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Replace the first ``taken`` buffered points of a column by this entry (leader only)."""

    series_id: int
    field_id: int
    config_index: int  # the settings under which duplicates were resolved
    base: int  # the place of the first point in the order of arrival
    taken: int  # points that leave the buffer
    points: int  # points in the block: fewer, if some had the same time
    first_ns: int
    last_ns: int
    source_hash: int  # of the points that leave
    body: bytes


@dataclass(frozen=True, slots=True)
class CreateMeasurement:
    """Create a measurement with settings; a write to a missing one uses the defaults."""

    measurement: str
    config: Config


@dataclass(frozen=True, slots=True)
class ConfigureMeasurement:
    """Replace the settings of a measurement."""

    measurement: str
    config: Config


@dataclass(frozen=True, slots=True)
class DropMeasurement:
    """Delete series of a measurement, and the measurement when none is left.

    With ``before_index``: only a measurement that was created before that entry.
    """

    measurement: str
    before_index: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete points from ``first_ns`` to ``last_ns`` of matching series with ids above ``after``.

    With the default range the series themselves are deleted.

    ``merges``: ranges that a column keeps are merged, and it keeps ``DELETED_RANGES_MAX`` of them.
    Entries without it are older, and replay as they were applied: up to ``UNMERGED_RANGES_MAX``.
    ``before_index``: only of series that were created before that entry, if it is not 0.
    """

    measurement: str
    matchers: tuple[Matcher, ...] = ()
    first_ns: int = TIME_NS_MIN
    last_ns: int = TIME_NS_MAX
    after: int = 0
    merges: bool = False
    before_index: int = 0


@dataclass(frozen=True, slots=True)
class SetRule:
    """Set a downsampling rule of a measurement; one of the same name is replaced."""

    measurement: str
    rule: Rule


@dataclass(frozen=True, slots=True)
class DropRule:
    """Drop a downsampling rule; the points that it has written stay."""

    measurement: str
    rule: str


@dataclass(frozen=True, slots=True)
class Trim:
    """Drop what is older than ``cutoff_ns`` of series with ids above ``after`` (leader only)."""

    measurement: str
    created_index: int
    cutoff_ns: int
    after: int


@dataclass(frozen=True, slots=True)
class BeginRollup:
    """Open a slice of a rule: from its progress to before ``to_ns`` (leader only)."""

    measurement: str
    rule: str
    created_index: int
    rule_index: int
    to_ns: int


@dataclass(frozen=True, slots=True)
class Rollup:
    """Write the aggregates of a rule from ``from_ns`` to before ``to_ns`` (leader only).

    It covers columns after ``after`` up to ``last``; START as last means all remaining ones. The
    first entry of a slice may shorten it.
    """

    measurement: str
    rule: str
    created_index: int
    rule_index: int
    slice_index: int  # of the entry that opened the slice: points were read after it was applied
    from_ns: int
    to_ns: int
    after: ColumnKey
    last: ColumnKey
    batch: WriteBatch


Command = (
    Write
    | WriteBatch
    | Block
    | CreateMeasurement
    | ConfigureMeasurement
    | DropMeasurement
    | Delete
    | SetRule
    | DropRule
    | Trim
    | BeginRollup
    | Rollup
)


def encode_chore(command: Command, namespace: str) -> Draft:
    """Return the draft of an entry that a leader proposes by itself.

    No client sees a refusal of it: a leader that makes an invalid entry would retry for ever, and
    so would its successors. So the callers keep within all limits of the format, and this function
    asserts that.
    """
    draft = encode_command(command, namespace)
    assert len(draft.payload) <= CHORE_SIZE_MAX, (type(command), len(draft.payload))
    try:
        _, reader = read_prefix(draft.payload)
        decode_command(draft.entry_type & 0xFF, reader)
    except BadPayload as error:
        raise AssertionError(f"a {type(command).__name__} that nobody can apply") from error
    return draft


def encode_write_batch(body: bytes, namespace: str, session: SessionRef | None = None) -> Draft:
    """Return the draft of a batch, given the body from ``encode_batch``."""
    return Draft(TYPE_WRITE_BATCH, encode_prefix(namespace, session) + body)


def encode_body(command: Command) -> bytes:
    """Return the body of a command: what follows the prefix."""
    match command:
        case Write(series, time_ns, fields):
            parts = [encode_sized(U16, series), I64.pack(time_ns), U16.pack(len(fields))]
            for name, value in fields:
                bits = U64.pack(value_bits(value))
                parts.append(U8.pack(to_field_type(value)) + encode_name(name) + bits)
            return b"".join(parts)
        case WriteBatch():
            return encode_batch(batch_runs(command))
        case Block():
            return _encode_block(command)
        case CreateMeasurement(name, config) | ConfigureMeasurement(name, config):
            return encode_name(name) + config.encode()
        case DropMeasurement(name, before_index):
            return encode_name(name) + _encode_bound(before_index)
        case Delete(name, matchers, first_ns, last_ns, after, merges, before_index):
            times = _RANGE.pack(first_ns, last_ns, after) + _encode_bound(before_index)
            return encode_name(name) + encode_matchers(matchers, is_marked=merges) + times
        case SetRule(name, rule):
            return encode_name(name) + encode_rule(rule)
        case DropRule(name, rule_name):
            return encode_name(name) + encode_name(rule_name)
        case Trim(name, created_index, cutoff_ns, after):
            return encode_name(name) + _TRIM.pack(created_index, cutoff_ns, after)
        case BeginRollup(name, rule_name, created_index, rule_index, to_ns):
            names = encode_name(name) + encode_name(rule_name)
            return names + _ROLLUP_BEGIN.pack(created_index, rule_index, to_ns)
        case Rollup():
            return _encode_rollup(command)


def encode_rule(rule: Rule) -> bytes:
    """Return the bytes of a rule."""
    aggregates = bytes(rule.aggregates)
    head = encode_name(rule.name) + encode_name(rule.target)
    return head + _RULE.pack(rule.window_ns, rule.delay_ns) + encode_sized(U8, aggregates)


def read_rule(reader: Reader) -> Rule:
    """Read a rule and check it."""
    name, target = read_name(reader), read_name(reader)
    window_ns, delay_ns = reader.fields(_RULE)
    if not RULE_WINDOW_NS_MIN <= window_ns <= RULE_WINDOW_NS_MAX:
        raise BadPayload(Reason.RULE_INVALID, window_ns)
    if delay_ns > RULE_WINDOW_NS_MAX:
        raise BadPayload(Reason.RULE_INVALID, delay_ns)
    kinds = reader.sized(U8)
    if not 1 <= len(kinds) <= RULE_AGGREGATES_MAX or sorted(set(kinds)) != list(kinds):
        raise BadPayload(Reason.RULE_INVALID, len(kinds))
    if kinds[0] < 1 or kinds[-1] > len(Aggregate):
        raise BadPayload(Reason.RULE_INVALID, kinds[-1])
    return Rule(name, target, window_ns, delay_ns, tuple(map(Aggregate, kinds)))


def read_config(reader: Reader) -> Config:
    """Read the settings of a measurement and check them."""
    policy, retention_ns, series_max = reader.fields(CONFIG)
    if not 1 <= policy <= len(Policy):
        raise BadPayload(Reason.MEASUREMENT_CONFIG_INVALID, policy)
    config = Config(Policy(policy), retention_ns, series_max)
    invalid = config.invalid()
    if invalid is not None:
        raise BadPayload(Reason.MEASUREMENT_CONFIG_INVALID, invalid.value)
    return config


def _encode_block(block: Block) -> bytes:
    head = _BLOCK.pack(
        block.series_id,
        block.field_id,
        block.config_index,
        block.base,
        block.taken,
        block.points,
        block.first_ns,
        block.last_ns,
        block.source_hash,
        item_hash(block.body, 0),
    )
    return head + block.body


def _encode_rollup(rollup: Rollup) -> bytes:
    head = _ROLLUP.pack(
        rollup.created_index,
        rollup.rule_index,
        rollup.slice_index,
        rollup.from_ns,
        rollup.to_ns,
        *rollup.after,
        *rollup.last,
    )
    names = encode_name(rollup.measurement) + encode_name(rollup.rule)
    return names + head + encode_batch(batch_runs(rollup.batch))


def _read_write(reader: Reader) -> Write:
    series, time_ns = reader.sized(U16), reader.number(I64)
    if not TIME_NS_MIN <= time_ns <= TIME_NS_MAX:
        raise BadPayload(Reason.POINT_TIME_INVALID, time_ns)
    count = reader.count(WRITE_FIELDS_MAX)
    if not count:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID)
    fields: dict[str, Value] = {}
    for position in range(count):
        kind = reader.number(U8)
        if not 1 <= kind <= len(FieldType):
            raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, kind)
        name, bits = read_name(reader), reader.number(U64)
        if kind == FieldType.F64 and bits & EXPONENT_BITS == EXPONENT_BITS:
            raise BadPayload(Reason.VALUE_NOT_FINITE, position)
        if (kind == FieldType.BOOL and bits > 1) or name in fields:
            raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, position)
        fields[name] = bits_to_value(FieldType(kind), bits)
    return Write(series, time_ns, tuple(fields.items()))


def _read_block(reader: Reader) -> Block:
    series_id, field_id, config_index, base, taken, points, *times = reader.fields(_BLOCK)
    first_ns, last_ns, source_hash, body_hash = times
    block = Block(
        series_id=series_id,
        field_id=field_id,
        config_index=config_index,
        base=base,
        taken=taken,
        points=points,
        first_ns=first_ns,
        last_ns=last_ns,
        source_hash=source_hash,
        body=reader.rest(),
    )
    if not 1 <= block.points <= block.taken <= BLOCK_POINTS_MAX:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, block.taken)
    if not TIME_NS_MIN <= block.first_ns <= block.last_ns <= TIME_NS_MAX:
        raise BadPayload(Reason.POINT_TIME_INVALID, block.first_ns)
    if len(block.body) > BLOCK_BODY_SIZE_MAX or item_hash(block.body, 0) != body_hash:
        raise BadPayload(Reason.PAYLOAD_CORRUPT)
    return block


def _read_delete(reader: Reader) -> Delete:
    name, (matchers, merges) = read_name(reader), read_matchers(reader)
    first_ns, last_ns, after = reader.fields(_RANGE)
    if not TIME_NS_MIN <= first_ns <= last_ns <= TIME_NS_MAX:
        raise BadPayload(Reason.RANGE_INVALID)
    return Delete(name, matchers, first_ns, last_ns, after, merges, _read_bound(reader))


def _read_drop(reader: Reader) -> DropMeasurement:
    return DropMeasurement(read_name(reader), _read_bound(reader))


def _encode_bound(before_index: int) -> bytes:
    """Return the optional last field of what continues a deletion."""
    return U64.pack(before_index) if before_index else b""


def _read_bound(reader: Reader) -> int:
    if not reader.left:
        return 0
    before_index = reader.number(U64)
    if not before_index:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, before_index)
    return before_index


def _read_trim(reader: Reader) -> Trim:
    name = read_name(reader)
    created_index, cutoff_ns, after = reader.fields(_TRIM)
    if not TIME_NS_MIN <= cutoff_ns <= TIME_NS_MAX:
        raise BadPayload(Reason.POINT_TIME_INVALID, cutoff_ns)
    return Trim(name, created_index, cutoff_ns, after)


def _read_rollup_begin(reader: Reader) -> BeginRollup:
    name, rule = read_name(reader), read_name(reader)
    created_index, rule_index, to_ns = reader.fields(_ROLLUP_BEGIN)
    if not TIME_NS_MIN <= to_ns <= TIME_NS_MAX:
        raise BadPayload(Reason.POINT_TIME_INVALID, to_ns)
    return BeginRollup(name, rule, created_index, rule_index, to_ns)


def _read_rollup(reader: Reader) -> Rollup:
    name, rule = read_name(reader), read_name(reader)
    created_index, rule_index, slice_index, from_ns, to_ns, *places = reader.fields(_ROLLUP)
    if not TIME_NS_MIN <= from_ns < to_ns <= TIME_NS_MAX:
        raise BadPayload(Reason.POINT_TIME_INVALID, to_ns)
    after, last = (places[0], places[1]), (places[2], places[3])
    if last != START and last <= after:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, places[2])
    return Rollup(
        measurement=name,
        rule=rule,
        created_index=created_index,
        rule_index=rule_index,
        slice_index=slice_index,
        from_ns=from_ns,
        to_ns=to_ns,
        after=after,
        last=last,
        batch=read_batch(reader),
    )


# The numbers are in logs: never change or reuse one.
TS_OPERATIONS = (
    Operation(0x01, Write, _read_write),
    # The result is the number of points, which the sender knows.
    Operation(0x02, WriteBatch, read_batch, is_blind=lambda _: True),
    Operation(0x03, Block, _read_block),
    Operation(
        0x04,
        CreateMeasurement,
        lambda reader: CreateMeasurement(read_name(reader), read_config(reader)),
    ),
    Operation(
        0x05,
        ConfigureMeasurement,
        lambda reader: ConfigureMeasurement(read_name(reader), read_config(reader)),
    ),
    Operation(0x06, DropMeasurement, _read_drop),
    Operation(0x07, Delete, _read_delete),
    Operation(0x08, SetRule, lambda reader: SetRule(read_name(reader), read_rule(reader))),
    Operation(0x09, DropRule, lambda reader: DropRule(read_name(reader), read_name(reader))),
    Operation(0x0A, Trim, _read_trim),
    Operation(0x0B, Rollup, _read_rollup),
    Operation(0x0C, BeginRollup, _read_rollup_begin),
)
_COMMANDS = Commands[Command](OWNER_TIMESERIES, TS_OPERATIONS, encode_body)
encode_command = _COMMANDS.encode
decode_command = _COMMANDS.decode
TYPE_WRITE_BATCH = OWNER_TIMESERIES << 8 | 0x02
TYPE_BLOCK = OWNER_TIMESERIES << 8 | 0x03


# Descriptions

_SIGNS = {
    Operator.EQUAL: "=",
    Operator.NOT_EQUAL: "!=",
    Operator.MATCHES: "=~",
    Operator.MATCHES_NOT: "!~",
}


def describe_timeseries_command(entry: Entry) -> str:
    """Describe an entry of owner 0x03; names come from the log and are not escaped."""
    try:
        prefix, reader = read_prefix(entry.plain_payload())
        command = decode_command(entry.entry_type & 0xFF, reader)
    except BadPayload as error:
        return f"not a time series command: {error.reason.name}"
    except DataError as error:
        return f"payload unreadable: {error}"
    return f"{prefix.namespace}: {_describe(command)}"


def _describe(command: Command) -> str:
    match command:
        case Write(series, time_ns, fields):
            values = ", ".join(f"{name}={value!r}" for name, value in fields)
            return f"write {series.decode(errors='replace')} at {time_ns}: {values}"
        case WriteBatch():
            return f"write batch of {_count(command)}"
        case Block():
            return (
                f"block of series {command.series_id} field {command.field_id}: "
                f"{command.taken} points become {command.points}, {len(command.body)} bytes, "
                f"times {command.first_ns} to {command.last_ns}"
            )
        case CreateMeasurement(name, config):
            return f"create measurement {name}: {config}"
        case ConfigureMeasurement(name, config):
            return f"configure measurement {name}: {config}"
        case DropMeasurement(name, _):
            return f"drop measurement {name}"
        case Delete(name, matchers, first_ns, last_ns, after, _, _):
            whole = (first_ns, last_ns) == (TIME_NS_MIN, TIME_NS_MAX)
            what = "series" if whole else f"points {first_ns} to {last_ns}"
            return f"delete {what} of {name}{_matchers(matchers)} behind series {after}"
        case SetRule(name, rule):
            return f"set rule {rule.name} of {name}: {rule.window_ns} ns into {rule.target}"
        case DropRule(name, rule_name):
            return f"drop rule {rule_name} of {name}"
        case Trim(name, _, cutoff_ns, after):
            return f"trim {name} before {cutoff_ns} behind series {after}"
        case BeginRollup(name, rule_name, _, _, to_ns):
            return f"begin rollup {rule_name} of {name} to {to_ns}"
        case Rollup():
            return (
                f"rollup {command.rule} of {command.measurement}, "
                f"{command.from_ns} to {command.to_ns}: {_count(command.batch)}"
            )
        case _:
            assert_never(command)


def _count(batch: WriteBatch) -> str:
    return f"{len(batch.point_times)} points, {len(batch.series)} series"


def _matchers(matchers: tuple[Matcher, ...]) -> str:
    inside = ",".join(f"{each.tag}{_SIGNS[each.operator]}{each.value!r}" for each in matchers)
    return f"{{{inside}}}"
