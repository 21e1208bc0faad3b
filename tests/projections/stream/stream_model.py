"""Streams as plain dicts and lists: every record is there, nothing is derived or saved up.

What the projection may choose within a promise (where a coarse trim ends, which partition moves to
which member) the model takes over from it, after checking the promise.
"""

from dataclasses import dataclass, field

from crc32c import crc32c

from onelog.projections.limits import U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Outcome, Refused
from onelog.projections.stream.commands import (
    Append,
    Cause,
    Command,
    Configure,
    Create,
    DeadLetter,
    Delete,
    GroupCommand,
    KeyHash,
    ProducerRef,
    Retain,
    Retention,
    Trim,
    TrimCut,
    TrimTo,
)
from onelog.projections.stream.limits import PARTITION_ANY
from onelog.projections.stream.projection import Stream
from onelog.projections.stream.reads import StreamDescription
from tests.projections.stream.stream_group_model import ModelGroup, apply_group
from tests.projections.stream.stream_model_rows import ModelRecord, Turn

NAMESPACE = "default"


@dataclass
class ModelPartition:
    kept_from: int
    records: list[ModelRecord] = field(default_factory=list)
    # Whether what is kept is counted exactly: trims below an offset were not, in former times.
    is_counted: bool = True

    @property
    def end(self) -> int:
        return max(self.kept_from, self.records[-1].offset + 1 if self.records else 0)

    def kept(self) -> list[ModelRecord]:
        return [record for record in self.records if record.offset >= self.kept_from]


@dataclass
class ModelStream:
    stream_id: int
    retention: Retention
    partitions: list[ModelPartition]
    key_hash: KeyHash = KeyHash.CRC32C
    producers: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    groups: dict[str, ModelGroup] = field(default_factory=dict)

    def slowest(self, partition: int) -> int:
        cursors = [group.committed(partition) for group in self.groups.values()]
        return min(cursors, default=U64_MAX)


class StreamModel:
    """All streams of the default namespace."""

    def __init__(self) -> None:
        self.streams: dict[str, ModelStream] = {}
        self.cursor_keys: dict[tuple[str, str], list[int]] = {}

    def apply(self, command: Command, turn: Turn, state: Stream) -> Outcome:
        """Return what the command should answer; ``state`` has applied it already."""
        match command:
            case Create():
                return self.create(command, turn)
            case TrimTo():
                return self.trim_to(command)
            case Retain(stream_id, cuts):
                named = [name for name, s in self.streams.items() if s.stream_id == stream_id]
                assert named, "only the leader sends these, and it knows"
                return self.retain(named[0], cuts, turn)
            case DeadLetter():
                return self.dead_letter(command, turn)
        assert not isinstance(command, Create | TrimTo | Retain | DeadLetter)
        stream = self.streams.get(command.stream)
        if stream is None:
            return Refused(Reason.STREAM_UNKNOWN)
        match command:
            case Append():
                return self.append(stream, command, turn)
            case Configure(_, retention):
                stream.retention = retention
                return Applied(stream.stream_id)
            case Delete(name):
                del self.streams[name]
                self.cursor_keys = {k: v for k, v in self.cursor_keys.items() if k[0] != name}
                return Applied(stream.stream_id)
            case Trim():
                return self.trim(stream, command, turn, state)
            case _:
                return self.group(stream, command, turn, state)

    def group(
        self, stream: ModelStream, command: GroupCommand, turn: Turn, state: Stream
    ) -> Outcome:
        bounds = [
            (stream.stream_id + 1, partition.kept_from, partition.end)
            for partition in stream.partitions
        ]
        targets = set(self.streams) - {command.stream}
        described = state.describe_group(NAMESPACE, command.stream, command.group)
        outcome = apply_group(stream.groups, command, turn, bounds, targets, described)
        self.publish(command.stream, command.group)
        return outcome

    def publish(self, stream: str, group: str) -> None:
        found = self.streams[stream].groups.get(group)
        if found is None:
            self.cursor_keys.pop((stream, group), None)
        else:
            cursors = [found.committed(number) for number in range(len(found.delivered))]
            self.cursor_keys[stream, group] = cursors

    def create(self, command: Create, turn: Turn) -> Outcome:
        name = command.stream
        if name in self.streams:
            return Refused(Reason.STREAM_EXISTS, self.streams[name].stream_id)
        partitions = [ModelPartition(turn.index + 1) for _ in range(command.partition_count)]
        created = ModelStream(turn.index, command.retention, partitions, command.key_hash)
        self.streams[name] = created
        return Applied(turn.index)

    def append(self, stream: ModelStream, command: Append, turn: Turn) -> Outcome:
        count = len(stream.partitions)
        number = turn.index % count
        if command.key is not None:
            number = hash_key(command.key, stream.key_hash) % count
        if command.partition is not None:
            number = command.partition
        if number >= count:
            return Refused(Reason.PARTITION_UNKNOWN, number)
        if command.producer is not None:
            verdict = judge(stream.producers, command.producer, turn.index)
            if verdict is not None:
                return verdict
        record = ModelRecord(turn.index, turn.now_ns, turn.size, command.value, command)
        stream.partitions[number].records.append(record)
        return Applied()

    def trim(self, stream: ModelStream, command: Trim, turn: Turn, state: Stream) -> Outcome:
        numbers = range(len(stream.partitions))
        if command.partition != PARTITION_ANY:
            if command.partition not in numbers:
                return Refused(Reason.PARTITION_UNKNOWN, command.partition)
            numbers = range(command.partition, command.partition + 1)
        if command.cause is Cause.REQUEST and not command.past_groups:
            for number in numbers:
                slowest = stream.slowest(number)
                if min(command.operand, stream.partitions[number].end) > slowest:
                    return Refused(Reason.TRIM_BLOCKED, slowest)
        moved = 0
        for number in numbers:
            partition = stream.partitions[number]
            before = partition.kept_from
            if command.cause is Cause.REQUEST:
                partition.kept_from = max(before, min(command.operand, partition.end))
                partition.is_counted &= partition.kept_from == before
            else:
                described = state.describe(NAMESPACE, command.stream)
                assert isinstance(described, StreamDescription)
                chosen = described.partitions[number].first_offset
                keep = Retention(
                    command.operand if command.cause is Cause.AGE else 0,
                    command.operand if command.cause is Cause.SIZE else 0,
                    command.operand if command.cause is Cause.COUNT else 0,
                    command.past_groups,
                )
                check_promise(stream, number, chosen, keep, turn.now_ns)
                partition.kept_from = chosen
            moved += partition.kept_from > before
        return Applied(moved)

    def trim_to(self, command: TrimTo) -> Outcome:
        """The world computes the counts from this model, so they are right."""
        (stream,) = (s for s in self.streams.values() if s.stream_id == command.stream_id)
        for cut in command.cuts:
            slowest = stream.slowest(cut.partition)
            if cut.before > slowest and not command.past_groups:
                return Refused(Reason.TRIM_BLOCKED, slowest)
        moved = 0
        for cut in command.cuts:
            partition = stream.partitions[cut.partition]
            before = partition.kept_from
            partition.kept_from = max(before, min(cut.before, partition.end))
            if partition.kept_from > before:
                moved += 1
                partition.is_counted = True
        return Applied(moved)

    def retain(self, name: str, cuts: tuple[tuple[int, Cause, int], ...], turn: Turn) -> Outcome:
        stream = self.streams[name]
        for number, cause, before in cuts:
            retention = stream.retention
            keep = Retention(
                retention.age_ns if cause is Cause.AGE else 0,
                retention.size_max if cause is Cause.SIZE else 0,
                retention.count_max if cause is Cause.COUNT else 0,
                retention.past_groups,
            )
            check_promise(stream, number, before, keep, turn.now_ns)
            assert before > stream.partitions[number].kept_from, "a trim that does nothing"
            stream.partitions[number].kept_from = before
        return Applied(len(cuts))

    def dead_letter(self, letter: DeadLetter, turn: Turn) -> Outcome:
        """Only the leader's letters come here, so they must be right."""
        source = {s.stream_id: name for name, s in self.streams.items()}[letter.source_id]
        group = self.streams[source].groups[letter.group]
        pending = group.pending.pop((letter.partition, letter.offset))
        assert pending.dead
        assert (pending.deliveries, pending.since_ns) == (letter.deliveries, letter.failed_ns)
        assert (pending.reason, group.config.dead_letter) == (letter.reason, letter.target)
        original = self.original(source, letter)
        assert original.offset == letter.origin
        target = self.streams[letter.target]
        number = letter.partition % len(target.partitions)
        record = ModelRecord(
            turn.index, turn.now_ns, turn.size, original.value, original.command, original
        )
        target.partitions[number].records.append(record)
        self.publish(source, letter.group)
        return Applied()

    def original(self, source: str, letter: DeadLetter) -> ModelRecord:
        for record in self.streams[source].partitions[letter.partition].records:
            if record.offset == letter.offset:
                return record.original or record
        raise AssertionError(f"{letter.offset} was never a record of {source}")


def hash_key(key: bytes, key_hash: KeyHash) -> int:
    """The finaliser of MurmurHash3, in the words of its author, over the checksum."""
    h = crc32c(key)
    if key_hash is KeyHash.CRC32C:
        return h
    h ^= h >> 33
    h = (h * 0xFF51AFD7ED558CCD) % 2**64
    h ^= h >> 33
    h = (h * 0xC4CEB9FE1A85EC53) % 2**64
    return h ^ h >> 33


def exact_cut(stream: ModelStream, number: int, before: int) -> TrimCut:
    """Return the cut of a trim below an offset, counted."""
    partition = stream.partitions[number]
    gone = [record for record in partition.records if record.offset < before]
    left = [record.offset for record in partition.records if record.offset >= before]
    first = left[0] if left else max(partition.end, before)
    return TrimCut(number, before, first, len(gone), sum(record.size for record in gone))


def judge(
    producers: dict[int, tuple[int, list[int]]], ref: ProducerRef, index: int
) -> Outcome | None:
    """Return the answer to a record that is not taken; note one that is."""
    epoch, offsets = producers.get(ref.producer, (-1, []))
    if ref.epoch > epoch:
        if ref.sequence:
            unknown = epoch == -1
            return Refused(Reason.PRODUCER_UNKNOWN if unknown else Reason.PRODUCER_SEQUENCE_GAP)
        producers[ref.producer] = (ref.epoch, [index])
        return None
    if ref.epoch < epoch:
        return Refused(Reason.PRODUCER_FENCED, epoch)
    if ref.sequence > len(offsets):
        return Refused(Reason.PRODUCER_SEQUENCE_GAP, len(offsets))
    if ref.sequence == len(offsets):
        offsets.append(index)
        return None
    if ref.sequence < len(offsets) - 8:
        return Refused(Reason.PRODUCER_SEQUENCE_FORGOTTEN, len(offsets) - 8)
    return Applied(offsets[ref.sequence], b"\x01")


def check_promise(
    stream: ModelStream, number: int, before: int, keep: Retention, now_ns: int
) -> None:
    """Assert that a coarse trim leaves all that it must leave."""
    partition = stream.partitions[number]
    gone = [record for record in partition.kept() if record.offset < before]
    left = [record for record in partition.records if record.offset >= before]
    if gone:
        assert not keep.age_ns or gone[-1].timestamp_ns + keep.age_ns <= now_ns
        assert not keep.count_max or len(left) >= keep.count_max
        assert not keep.size_max or sum(record.size for record in left) >= keep.size_max
    if before > partition.kept_from and not keep.past_groups:
        assert before <= stream.slowest(number), "a group still needs it"
