"""The stream projection, owner 0x04: append-only sequences of records with consumer groups.

Records are entries of the log and stay there: a record's offset is its index, and applying it
updates a few counters and notes in the log that the entry is a record. The state holds streams,
producers and groups; reads are in reads.py and take the log as an argument.

Records are appended in one loop over a span; other commands are decoded and executed one by one
(operations.py).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from onelog.projections.codec import U64, Reader, chunked
from onelog.projections.namespaces import Namespace
from onelog.projections.projection import (
    DerivedKeys,
    Due,
    Handler,
    Notes,
    Position,
    Projection,
    one_by_one,
)
from onelog.projections.result import Outcome
from onelog.projections.state_hash import reduce_total
from onelog.projections.stream import commands, operations
from onelog.projections.stream.commands import (
    STREAM_OPERATIONS,
    TYPE_APPEND,
    Append,
    DeadLetter,
    Retain,
    TrimTo,
    decode_command,
    encode_command,
)
from onelog.projections.stream.groups import Group, split_place
from onelog.projections.stream.limits import (
    DEAD_LETTERS_MAX,
    PARTITIONS_MAX,
)
from onelog.projections.stream.operations import (
    Moment,
    due_cuts,
    execute,
    find_dead_letter,
    remove_member,
)
from onelog.projections.stream.reads import StreamReads
from onelog.projections.stream.snapshot import dump_parts, load_section
from onelog.projections.stream.state import Streams, StreamState
from onelog.ual.entry import OWNER_STREAM, Draft

EXPIRE_MEMBER = 1  # the first byte of an item that may expire; the member's id follows
_TRIMS_DUE_MAX = 1_000  # partitions that one call of chores visits


class Stream(StreamReads, Projection):
    """The state of all streams."""

    owner = OWNER_STREAM
    operations = STREAM_OPERATIONS  # results of some list partitions or records

    def __init__(self, position: Position, notes: Notes, keys: DerivedKeys) -> None:
        super().__init__(position, Streams(notes, keys))
        self._notes = notes
        self._indexes = self._streams.indexes
        self._undo = self._indexes.undo

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each operation."""
        found = {
            OWNER_STREAM << 8 | each.number: one_by_one(partial(self._apply, each.number))
            for each in STREAM_OPERATIONS
        }
        return {**found, TYPE_APPEND: partial(operations.append_span, self._streams)}

    def _apply(
        self, number: int, namespace: str, reader: Reader, index: int, timestamp_ns: int
    ) -> Outcome:
        moment = Moment(index, timestamp_ns, reader.left)
        command = decode_command(number, reader)
        streams = self._streams
        match command:
            case Append():
                raise AssertionError("appends have a handler of their own")
            case commands.Create():
                return operations.create(streams, namespace, command, moment)
            case commands.Configure():
                return operations.configure(streams, namespace, command)
            case commands.Delete():
                return operations.delete(streams, namespace, command, moment)
            case commands.Trim():
                return operations.trim(streams, namespace, command, moment)
            case TrimTo():
                return operations.trim_to(streams, namespace, command, moment)
            case Retain():
                return operations.retain(streams, namespace, command, moment)
            case DeadLetter():
                return operations.dead_letter(streams, namespace, command, moment)
            case _:
                return execute(streams, namespace, command, moment)

    def namespace_created(self, namespace: Namespace) -> None:
        """Prepare an empty namespace."""
        self._streams.configure_namespace(namespace)

    def namespace_configured(self, namespace: Namespace) -> None:
        """Apply new limits."""
        self._streams.configure_namespace(namespace)

    def namespace_deleted(self, namespace: Namespace) -> None:
        """Drop all streams; KV drops their keys."""
        self._streams.remove_namespace(namespace)

    def next_deadline(self) -> int | None:
        """Return when the next member expires, or 0 while there is something to move or trim."""
        if any(
            self._find_dead_letter_stream(group) for group in self._indexes.dead_groups.values()
        ):
            return 0
        deadlines = (self._indexes.member_deadlines.first(), self._first_trim_ns())
        return min((each for each in deadlines if each is not None), default=None)

    def due(self, now_ns: int, limit: int) -> list[Due]:
        """Return the members whose session is over, earliest first."""
        groups = self._indexes.member_groups
        return [
            Due(
                deadline_ns,
                OWNER_STREAM,
                bytes((EXPIRE_MEMBER,)) + U64.pack(member),
                _weight(groups[member]),
            )
            for deadline_ns, member in self._indexes.member_deadlines.due(now_ns, limit)
        ]

    def expire(self, item: bytes, index: int, timestamp_ns: int) -> bool:  # noqa: ARG002
        """Remove a member whose session is over; ignore anything else."""
        if len(item) != 1 + U64.size or item[0] != EXPIRE_MEMBER:
            return False
        (member,) = U64.unpack_from(item, 1)
        deadline_ns = self._indexes.member_deadlines.get(member)
        if deadline_ns is None or deadline_ns > timestamp_ns:
            return False
        remove_member(self._indexes.member_groups[member], member)
        return True

    def chores(self, now_ns: int, limit: int) -> list[Draft]:
        """Return the trims that policies require, and the moves of dead letters."""
        drafts: list[Draft] = []
        for stream, cuts in self._due_trims(now_ns, limit):
            drafts.append(encode_command(Retain(stream.id, tuple(cuts)), stream.namespace))
        for group_id in sorted(self._indexes.dead_groups):
            group = self._indexes.dead_groups[group_id]
            target = self._find_dead_letter_stream(group)
            if target is None:
                continue
            source = self._streams.by_id[group.stream_id]
            room = min(limit - len(drafts), DEAD_LETTERS_MAX - len(target.dead))
            for place in list(group.pending.dead[:room]):
                letter = find_dead_letter(source, group, place)
                assert letter is not None, f"{place} is not dead"
                drafts.append(encode_command(letter, source.namespace))
        return drafts

    def pinned(self, first_index: int, last_index: int) -> Sequence[int]:
        """Return the records below ``kept_streams`` that are still needed.

        These are the originals of dead letters, and pending records that were trimmed.
        """
        return sorted({each for each in self._pinned() if first_index <= each <= last_index})

    def kept_streams(self) -> dict[int, int]:
        """Return, by partition id, the offset from which on its records must be kept.

        With a segment's stream table this gives the entries to keep.
        """
        return {
            partition.id: partition.first_offset for partition in self._indexes.partitions.values()
        }

    def state_hash(self) -> int:
        """Return the hash of all streams."""
        return reduce_total(self._indexes.settle())

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind."""
        total: dict[str, int] = {}
        for stream in self._streams.by_id.values():
            for kind, size in stream.memory().items():
                total[kind] = total.get(kind, 0) + size
        return total

    def counts(self) -> dict[str, int]:
        """Return the number of objects, by kind."""
        streams = self._streams.by_id.values()
        groups = [group for stream in streams for group in stream.groups.values()]
        return {
            "streams": len(streams),
            "stream_partitions": len(self._indexes.partitions),
            "stream_records_appended": sum(
                each.count for each in self._indexes.partitions.values()
            ),
            "stream_producers": sum(len(stream.producers) for stream in streams),
            "stream_groups": len(groups),
            "stream_members": len(self._indexes.member_groups),
            "stream_pending": sum(len(group.pending) for group in groups),
            "stream_dead_letters": sum(len(stream.dead) for stream in streams),
        }

    def dump(self) -> Iterator[bytes]:
        """Yield the snapshot section."""
        return chunked(dump_parts(self._streams))

    def load(self, chunks: Iterable[bytes]) -> None:
        """Load a section; the namespaces exist already."""
        load_section(chunks, self._streams)

    def check(self) -> None:
        """Assert every invariant."""
        assert not self._indexes.undo.active, "a batch is open"
        self._streams.check()

    def _find_dead_letter_stream(self, group: Group) -> StreamState | None:
        """Return the dead-letter stream of a group, if it can take one more record."""
        namespace = self._streams.by_id[group.stream_id].namespace
        target = self._streams.names[namespace].get(group.head.config.dead_letter)
        return target if target is not None and len(target.dead) < DEAD_LETTERS_MAX else None

    def _first_trim_ns(self) -> int | None:
        """Return the time of the next trim, correcting scheduled times that are too early."""
        retention = self._indexes.retention
        while True:
            first_ns = retention.first()
            if first_ns is None:
                return None
            ((_, partition_id),) = retention.due(first_ns, 1)
            if not self._correct(partition_id, first_ns):
                return first_ns

    def _correct(self, partition_id: int, scheduled_ns: int) -> bool:
        """Correct the scheduled time of a partition; return whether it was wrong."""
        partition = self._indexes.partitions[partition_id]
        stream = self._streams.by_id[partition.stream_id]
        if partition.due_ns(stream.floor(partition.number)) == scheduled_ns:
            return False
        stream.schedule(partition)
        return True

    def _due_trims(
        self, now_ns: int, limit: int
    ) -> list[tuple[StreamState, list[tuple[int, commands.Cause, int]]]]:
        retention = self._indexes.retention
        first_ns = retention.first()
        if first_ns is None or first_ns > now_ns:
            return []
        while True:
            due = retention.due(now_ns, _TRIMS_DUE_MAX)
            wrong = [self._correct(partition_id, due_ns) for due_ns, partition_id in due]
            if not any(wrong):
                break
        cuts: dict[int, list[tuple[int, commands.Cause, int]]] = {}
        for _, partition_id in due:
            partition = self._indexes.partitions[partition_id]
            stream = self._streams.by_id[partition.stream_id]
            best = due_cuts(stream, partition, now_ns)
            assert best is not None, f"nothing to trim in {partition_id}"
            cuts.setdefault(stream.id, []).append((partition.number, best[1], best[0]))
        assert all(len(each) <= PARTITIONS_MAX for each in cuts.values())
        chosen = list(cuts.items())[:limit]
        return [(self._streams.by_id[stream_id], sorted(each)) for stream_id, each in chosen]

    def _pinned(self) -> Iterator[int]:
        for stream in self._streams.by_id.values():
            yield from stream.dead.rows.values()
            for group in stream.groups.values():
                for place in group.pending.rows:
                    number, offset = split_place(place)
                    if offset < stream.partitions[number].first_offset:
                        yield offset


def _weight(group: Group) -> int:
    """Return the cost of removing a member: all members and partitions are visited."""
    return 1 + (len(group.members) + len(group.head.owners)) // 8
