"""Rows of stream operations as the project's own decoder gives them, and random commands."""

from random import Random
from typing import Any

from onelog.projections.codec import SessionRef, read_prefix
from onelog.projections.stream.commands import (
    Ack,
    Append,
    Cause,
    Claim,
    Command,
    Configure,
    Create,
    DeadLetter,
    Delete,
    Deliver,
    GroupCommit,
    GroupConfig,
    GroupConfigure,
    GroupCreate,
    GroupDelete,
    GroupHeartbeat,
    GroupJoin,
    GroupLeave,
    GroupSeek,
    KeyHash,
    Nack,
    ProducerRef,
    Retain,
    Retention,
    Trim,
    TrimCut,
    TrimTo,
    decode_command,
    encode_command,
)
from onelog.projections.stream.filters import EVERYTHING, RecordFilter
from onelog.projections.stream.limits import PARTITION_ANY
from onelog.ual.entry import Draft
from tests.spark.columns.rows_of import Row, readable, signed

# The name of each operation, as docs/streams.md has it.
NAMES: dict[type[Command], str] = {
    Append: "append",
    Create: "create",
    Configure: "configure",
    Delete: "delete",
    Trim: "trim",
    TrimTo: "trim_to",
    Retain: "retain",
    GroupCreate: "group_create",
    GroupConfigure: "group_configure",
    GroupDelete: "group_delete",
    GroupJoin: "group_join",
    GroupLeave: "group_leave",
    GroupHeartbeat: "group_heartbeat",
    GroupCommit: "group_commit",
    GroupSeek: "group_seek",
    Deliver: "deliver",
    Ack: "ack",
    Nack: "nack",
    DeadLetter: "dead_letter",
    Claim: "claim",
}

U64_MAX = (1 << 64) - 1
TTL_MAX = 10**18


def is_record(draft: Draft) -> bool:
    """Tell whether an entry is a record of a stream."""
    return draft.entry_type in {0x0401, 0x0412}


def stream_rows(draft: Draft, index: int) -> list[Row]:
    """Return the rows that a payload must become, in the one view or the other."""
    prefix, reader = read_prefix(draft.payload)
    command = decode_command(draft.entry_type & 0xFF, reader)
    row: Row = {"namespace": prefix.namespace, "operation": NAMES[type(command)]}
    row |= {"index": index, "position": 0}
    match command:
        case Append():
            row |= _append(command)
        case DeadLetter():
            row |= _dead_letter(command)
        case Retain():
            row |= {"stream_id": command.stream_id}
        case TrimTo():
            row |= {"stream_id": command.stream_id, "cause": command.cause.name.lower()}
            row |= {"past_groups": command.past_groups}
        case _:
            row |= {"stream": command.stream} | _operands(command, index)
    row = {name: _shown(value) for name, value in row.items() if value is not None}
    several = _several(command)
    if not several:
        return [row]
    return [row | {"position": at} | each for at, each in enumerate(several)]


def _shown(value: object) -> object:
    if isinstance(value, bool):
        return value
    return signed(value) if isinstance(value, int) else value


def _several(command: Command) -> list[Row]:
    match command:
        case GroupCommit(places=places) | Ack(places=places) | Nack(places=places):
            return [{"partition": place[0], "offset": signed(place[1])} for place in places]
        case Deliver(offsets=offsets):
            return [{"offset": signed(offset)} for offset in offsets]
        case TrimTo(cuts=trims):
            return [{"partition": cut.partition, "offset": signed(cut.before)} for cut in trims]
        case Retain(cuts=cuts):
            return [
                {"partition": cut[0], "cause": cut[1].name.lower(), "offset": signed(cut[2])}
                for cut in cuts
            ]
        case _:
            return []


def _append(command: Append) -> Row:
    row: Row = {
        "stream": command.stream,
        "partition": command.partition,
        "key": command.key,
        "key_text": _text(command.key),
        "tag": command.tag,
        "headers": list(command.headers),
        "value": command.value,
    }
    if command.producer is not None:
        producer, epoch, sequence = command.producer
        row |= {"producer_id": producer, "epoch": epoch, "sequence": sequence}
    return row


def _text(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None


def _dead_letter(command: DeadLetter) -> Row:
    return {
        "stream": command.target,
        "origin_offset": command.origin,
        "dead_stream_id": command.source_id,
        "dead_group": command.group,
        "dead_partition": command.partition,
        "dead_offset": command.offset,
        "deliveries": command.deliveries,
        "failed_ns": command.failed_ns,
        "failure": readable(command.reason),
    }


def _operands(command: Command, index: int) -> Row:
    same = {"group", "member", "generation", "session_ns", "delay_ns", "idle_ns", "limit"}
    same |= {"from_offset", "next_offset", "partition", "partition_count", "offset", "past_groups"}
    row: Row = {name: getattr(command, name) for name in same if hasattr(command, name)}
    if row.get("partition") == PARTITION_ANY:
        del row["partition"]
    match command:
        case Create(_, _, retention, key_hash):
            row |= {"stream_id": index, "key_hash": key_hash.name.lower()} | _retention(retention)
        case Configure(_, retention):
            row |= _retention(retention)
        case Trim(_, cause, operand):
            row |= {"cause": cause.name.lower()}
            row |= {"offset" if cause is Cause.REQUEST else "keep": operand}
        case GroupCreate(_, _, start, config):
            row |= {"offset": start} | _group_config(config)
        case GroupConfigure(_, _, config):
            row |= _group_config(config)
        case GroupJoin():
            row |= {"member": index}
        case Nack():
            row |= {"failure": readable(command.reason)}
    return row


def _retention(retention: Retention) -> Row:
    names = ("age_ns", "size_max", "count_max", "past_groups")
    return {name: getattr(retention, name) for name in names}


def _group_config(config: GroupConfig) -> Row:
    return {
        "shared": config.shared,
        "max_deliveries": config.max_deliveries,
        "dead_letter_stream": config.dead_letter,
        "filtered": config.filter != EVERYTHING,
    }


class StreamDraws:
    """Random commands of every kind, with every option, whether or not they make sense."""

    def __init__(self, rng: Random, kinds: tuple[type[Command], ...] = tuple(NAMES)) -> None:
        self._rng = rng
        self._kinds = kinds

    def draft(self) -> Draft:
        """Return the next entry, of some namespace, with or without a session."""
        rng = self._rng
        session = SessionRef(*(self._number() for _ in range(3))) if rng.random() < 0.3 else None
        return encode_command(self.command(), rng.choice(("default", "", "é", "other")), session)

    def command(self) -> Command:
        """Return a command of any kind."""
        kind: Any = self._rng.choice(self._kinds)
        number = self._number
        stream = self._name()
        command: Command
        match kind.__name__:
            case "Append":
                return self._append(stream)
            case "DeadLetter":
                numbers = number(), number(), self._rng.randrange(1 << 16), number()
                place = self._rng.randrange(256)
                return DeadLetter(stream, number(), "g", place, *numbers, self._bytes(128))
            case "Create":
                key_hash = self._rng.choice(tuple(KeyHash))
                return Create(stream, self._rng.randint(1, 256), self._retention(), key_hash)
            case "Configure":
                return Configure(stream, self._retention())
            case "Delete":
                return Delete(stream)
            case "Trim":
                cause = self._rng.choice((Cause.REQUEST, Cause.AGE, Cause.SIZE, Cause.COUNT))
                operand = number() if cause is Cause.REQUEST else self._rng.randint(1, 1 << 62)
                past = self._rng.random() < 0.5
                return Trim(stream, cause, operand, self._partition(), past)
            case "TrimTo":
                trims = [
                    TrimCut(place, before, before + 1, number(), number())
                    for place in self._places()
                    for before in (self._rng.randrange(1 << 62),)
                ]
                cause = self._rng.choice((Cause.REQUEST, Cause.AGE, Cause.SIZE, Cause.COUNT))
                return TrimTo(number(), cause, tuple(trims), self._rng.random() < 0.5)
            case "Retain":
                causes = (Cause.AGE, Cause.SIZE, Cause.COUNT)
                cuts = [(place, self._rng.choice(causes), number()) for place in self._places()]
                return Retain(number(), tuple(cuts))
            case _:
                command = kind(stream, self._name(), *self._of_group(kind))
                return command

    def _of_group(self, kind: Any) -> tuple[Any, ...]:
        rng, number = self._rng, self._number
        match kind.__name__:
            case "GroupCreate":
                return number(), self._group_config()
            case "GroupConfigure":
                return (self._group_config(),)
            case "GroupDelete":
                return ()
            case "GroupJoin":
                return (rng.randint(10**9, 10**13),)
            case "GroupLeave" | "GroupHeartbeat":
                return (number(),)
            case "GroupCommit":
                return number(), number(), tuple((place, number()) for place in self._places())
            case "GroupSeek":
                return self._partition(), number()
            case "Deliver":
                offsets = sorted(rng.sample(range(1, 1 << 40), rng.choice((0, 1, 2, 30))))
                bounds = (1, 1 << 41, tuple(offsets))
                return number(), number(), rng.randrange(256), *bounds
            case "Ack":
                return number(), tuple((place, number()) for place in self._places())
            case "Nack":
                places = tuple((place, number()) for place in self._places())
                return number(), places, rng.randrange(TTL_MAX), self._bytes(128)
            case _:
                return number(), number(), number(), rng.randint(1, 1_000)

    def _append(self, stream: str) -> Append:
        rng = self._rng
        names = ("h", "trace", "ä", "", "n" * 255)
        count = rng.choice((0, 0, 1, 2, 3, 64 if rng.random() < 0.05 else 4))
        producer = ProducerRef(self._number(), rng.randrange(1 << 16), self._number())
        return Append(
            stream,
            self._bytes(40) if rng.random() < 0.9 else bytes(3_000),  # compressed
            rng.choice((None, b"user:1", b"user:2", rng.randbytes(rng.choice((1, 9, 4_096))))),
            tuple((rng.choice(names), self._bytes(20)) for _ in range(count)),
            rng.choice((None, "", "red", "ö" * 100)),
            rng.choice((None, None, rng.randrange(256))),
            rng.choice((None, producer)),
        )

    def _retention(self) -> Retention:
        rng = self._rng
        sizes = rng.randint(0, 1 << 62), rng.randint(0, 1 << 62)
        return Retention(rng.randrange(TTL_MAX), *sizes, rng.random() < 0.5)

    def _group_config(self) -> GroupConfig:
        shared = self._rng.random() < 0.5
        dead = self._rng.choice(((0, ""), (3, "dead")))
        wanted = RecordFilter(frozenset((b"k", b"")), b"k", frozenset(("t",)), (("h", None),))
        return GroupConfig(shared, *dead, self._rng.choice((EVERYTHING, wanted)))

    def _partition(self) -> int:
        return self._rng.choice((PARTITION_ANY, 0, 1, 255))

    def _places(self) -> list[int]:
        return sorted(self._rng.sample(range(256), self._rng.choice((1, 1, 2, 3, 40))))

    def _name(self) -> str:
        return self._rng.choice(("orders", "events", "é", "n" * 128))

    def _number(self) -> int:
        return self._rng.choice((0, 1, U64_MAX, self._rng.randrange(1 << 20)))

    def _bytes(self, size_max: int) -> bytes:
        rng = self._rng
        if rng.random() < 0.6:
            return b"text"[: rng.randint(0, 4)]
        return rng.randbytes(rng.choice((1, 3, size_max)))
