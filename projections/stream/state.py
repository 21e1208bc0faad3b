"""Streams and how they are found: by namespace and name, by id, by the head of a payload.

``StreamState`` is one stream with its partitions, producers, dead letters and groups. ``Streams``
holds all of them. It alone writes to the outside: to the log (which entries are records) and to KV
(the published cursors of groups). Notes in the log cannot be rolled back, so inside a batch they
wait for its commit. Invariants: a stream is in all three indexes or in none; for each attached
partition the scheduled time is not after the one at which its policy allows a trim.

``Producers`` makes appends idempotent. A producer numbers its records from 0 in each epoch. The
next number is accepted; a number that was used gets the offset that it got then; a number beyond
the next is a gap; an epoch below the known one belongs to a producer that was replaced. Per
producer the last PRODUCER_WINDOW offsets are kept, per stream PRODUCERS_MAX producers. Above that,
those that wrote longest ago are dropped; one of them that comes back is refused and begins again.

``GoneStreams`` remembers deleted streams, for readers of old entries. A record's entry says
everything except its partition, which depends on the number of partitions of its stream, and
retention names a stream by its id. This is not state: a replica that began with a snapshot knows
only what was deleted since, and readers then use a past state (node/watch/past.py). Invariant: a
dropped stream was deleted before every remembered one. So of the streams with one name the newest
are known, and the one that had it at an index is never mistaken for another.
"""

import struct
from collections import OrderedDict
from functools import partial
from heapq import nsmallest
from typing import Any, NamedTuple

from onelog.projections.codec import U8, encode_prefix, encode_sized
from onelog.projections.limits import U64_MAX
from onelog.projections.namespaces import Namespace
from onelog.projections.projection import DerivedKeys, Notes
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.state_hash import item_hash
from onelog.projections.stream.commands import KeyHash, ProducerRef, Retention
from onelog.projections.stream.groups import Group
from onelog.projections.stream.limits import (
    DEAD_LETTERS_MAX,
    GROUPS_MAX,
    PRODUCER_WINDOW,
    PRODUCERS_FORGOTTEN,
    PRODUCERS_MAX,
    STREAMS_MAX,
    partition_id,
)
from onelog.projections.stream.partition import Partition
from onelog.projections.stream.tables import Rows, StreamIndexes

GONE_STREAMS_MAX = 10_000  # 300 bytes each


class GoneStream(NamedTuple):
    """A deleted stream."""

    id: int
    namespace: str
    name: str
    partition_count: int
    key_hash: KeyHash = KeyHash.CRC32C


class GoneStreams:
    """The streams of a shard that were deleted last."""

    __slots__ = ("_by_id", "_ids", "streams_max")

    def __init__(self) -> None:
        # In the order of deletion; a plain dict would walk over the slots of dropped ones.
        self._by_id: OrderedDict[int, GoneStream] = OrderedDict()
        self._ids: dict[tuple[str, str], list[int]] = {}  # by namespace and name, rising
        self.streams_max = GONE_STREAMS_MAX

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, stream: GoneStream) -> None:
        """Remember a stream that is deleted."""
        self._by_id[stream.id] = stream
        self._ids.setdefault((stream.namespace, stream.name), []).append(stream.id)
        while len(self._by_id) > self.streams_max:
            self.forget(next(iter(self._by_id)))

    def forget(self, stream_id: int) -> None:
        """Drop a stream, if it is known: its deletion was rolled back, or is too long ago."""
        stream = self._by_id.pop(stream_id, None)
        if stream is None:
            return
        name = stream.namespace, stream.name
        self._ids[name].remove(stream_id)
        if not self._ids[name]:
            del self._ids[name]

    def by_id(self, stream_id: int) -> GoneStream | None:
        """Return the stream that was created at an index."""
        return self._by_id.get(stream_id)

    def at(self, namespace: str, name: str, index: int) -> GoneStream | None:
        """Return the newest stream of a name that was created before an index."""
        ids = self._ids.get((namespace, name), ())
        newest = max((each for each in ids if each < index), default=None)
        return None if newest is None else self._by_id[newest]

    def check(self) -> None:
        """Assert that both indexes know the same."""
        named = {each: name for name, ids in self._ids.items() for each in ids}
        assert named == {each.id: (each.namespace, each.name) for each in self._by_id.values()}
        assert all(ids == sorted(ids) and ids for ids in self._ids.values())
        assert len(self._by_id) <= self.streams_max


# Producers

PRODUCER_SIZE = 500  # bytes per producer: table slot, two tuples, numbers
KIND_PRODUCER = 0x02

# Kind, stream, producer, epoch, sequence and the offsets, by how many there are.
_ITEMS = [struct.Struct(f"<BQQHQ{count}Q") for count in range(PRODUCER_WINDOW + 1)]


class Producer(NamedTuple):
    """The newest sequence of a producer, and the offsets of the last ones, ascending."""

    epoch: int
    sequence: int
    offsets: tuple[int, ...]


class Producers(Rows[int, Producer]):
    """All producers of one stream by id."""

    __slots__ = ("_stream_id",)

    def __init__(self, indexes: StreamIndexes, stream_id: int) -> None:
        super().__init__(indexes, self._hash)
        self._stream_id = stream_id

    def admit(self, ref: ProducerRef) -> Refused | int | None:
        """Check a record: None accepts it, a number is the offset that it got before."""
        known = self.rows.get(ref.producer)
        if known is None or ref.epoch > known.epoch:
            if ref.sequence:
                reason = Reason.PRODUCER_UNKNOWN if known is None else Reason.PRODUCER_SEQUENCE_GAP
                return Refused(reason)
            return None
        if ref.epoch < known.epoch:
            return Refused(Reason.PRODUCER_FENCED, known.epoch)
        back = known.sequence - ref.sequence
        if back == -1:
            return None
        if back < 0:
            return Refused(Reason.PRODUCER_SEQUENCE_GAP, known.sequence + 1)
        if back < len(known.offsets):
            return known.offsets[-1 - back]
        oldest = known.sequence - len(known.offsets) + 1
        return Refused(Reason.PRODUCER_SEQUENCE_FORGOTTEN, oldest)

    def record(self, ref: ProducerRef, offset: int) -> None:
        """Note a record that was admitted."""
        known = self.rows.get(ref.producer)
        offsets: tuple[int, ...] = ()
        if known is not None and known.epoch == ref.epoch:
            offsets = known.offsets[1 - PRODUCER_WINDOW :]
        elif known is None and len(self.rows) >= PRODUCERS_MAX:
            self._forget()
        self.set(ref.producer, Producer(ref.epoch, ref.sequence, (*offsets, offset)))

    def memory(self) -> int:
        """Return the bytes held."""
        return len(self.rows) * PRODUCER_SIZE

    def check(self) -> None:
        """Assert the invariants of this file."""
        super().check()
        assert len(self.rows) <= PRODUCERS_MAX
        for producer in self.rows.values():
            assert 1 <= len(producer.offsets) <= min(PRODUCER_WINDOW, producer.sequence + 1)
            assert list(producer.offsets) == sorted(set(producer.offsets))

    def _forget(self) -> None:
        # Last offsets differ between producers, so which ones are oldest has one answer.
        oldest = nsmallest(
            PRODUCERS_FORGOTTEN, self.rows.items(), key=lambda item: item[1].offsets[-1]
        )
        for producer, _ in oldest:
            self.set(producer, None)

    def _hash(self, producer: int, value: Producer) -> int:
        epoch, sequence, offsets = value
        pack = _ITEMS[len(offsets)].pack
        return item_hash(
            pack(KIND_PRODUCER, self._stream_id, producer, epoch, sequence, *offsets), 0
        )


# State

STREAM_SIZE = 3_100  # bytes per stream: objects, tables, names in three indexes
DEAD_SIZE = 150  # bytes per dead letter: row, key, sorted order
KIND_STREAM = 0x07
KIND_DEAD = 0x08
KIND_STREAM_MIXED = 0x09  # a stream whose keys are hashed and mixed

_STREAM = struct.Struct("<BQHB")  # kind, id, partitions, size of the namespace's name
_DEAD = struct.Struct("<BQQQ")  # kind, stream, place, origin


class StreamInfo(NamedTuple):
    """The settings of a stream."""

    partition_count: int
    retention: Retention
    key_hash: KeyHash = KeyHash.CRC32C


class StreamState:
    """One stream."""

    __slots__ = (
        "_indexes",
        "dead",
        "groups",
        "id",
        "info",
        "key_hash",
        "name",
        "namespace",
        "partitions",
        "producers",
        "value_size_max",
    )

    def __init__(self, indexes: StreamIndexes, namespace: str, name: str, stream_id: int) -> None:
        self._indexes = indexes
        self.id = stream_id
        self.namespace = namespace
        self.name = name
        self.value_size_max = 0
        self.key_hash = KeyHash.CRC32C  # that of ``info``, for each append
        self.info: Rows[int, StreamInfo] = Rows(indexes, self._hash_info)  # one row, at 0
        self.partitions: list[Partition] = []
        self.producers = Producers(indexes, stream_id)
        # Dead letters that are records here, by place: the offset of the original append.
        self.dead: Rows[int, int] = Rows(indexes, self._hash_dead, ordered=True)
        self.groups: dict[str, Group] = {}

    def open(self, info: StreamInfo) -> None:
        """Set up a fresh stream."""
        self.info.set(0, info)
        self.key_hash = info.key_hash
        self.partitions = [
            Partition(self._indexes, self.id, number, info.retention)
            for number in range(info.partition_count)
        ]

    def configure(self, retention: Retention) -> None:
        """Replace the policy."""
        self._indexes.undo.note(partial(self._set_policy, self.info.rows[0].retention))
        self.info.set(0, self.info.rows[0]._replace(retention=retention))
        self._set_policy(retention)

    def floor(self, partition: int) -> int:
        """Return the offset from which on some group still needs everything."""
        if self.info.rows[0].retention.past_groups or not self.groups:
            return U64_MAX
        return self.slowest(partition)

    def slowest(self, partition: int) -> int:
        """Return the lowest committed cursor in a partition."""
        cursors = [group.committed[partition] for group in self.groups.values()]
        return min(cursors, default=U64_MAX)

    def note_schedule(self, partition: Partition) -> None:
        """Before a change: after a rollback of it, schedule the partition again."""
        if self._indexes.undo.active:
            self._indexes.undo.note(partial(self.schedule, partition))

    def schedule(self, partition: Partition) -> None:
        """Schedule the next trim that the policy of a partition allows."""
        due_ns = partition.due_ns(self.floor(partition.number))
        retention = self._indexes.retention
        if due_ns is not None:
            retention.schedule(partition.id, due_ns)
        elif retention.get(partition.id) is not None:
            retention.cancel(partition.id)

    def forget_dead(self, partition: int, before: int) -> None:
        """Drop the dead letters that were trimmed.

        One that is pending in a group still needs its original; a later trim drops it.
        """
        rows: Any = self.dead.rows  # a SortedDict
        low, high = partition_id(0, partition), partition_id(before, partition)
        for place in list(rows.irange(low, high, (True, False))):
            if not any(place in group.pending.rows for group in self.groups.values()):
                self.dead.set(place, None)

    def add_group(self, group: Group) -> None:
        """Add a group whose tables are hashed already."""
        assert group.name not in self.groups, f"group {group.name!r} exists"
        self.groups[group.name] = group
        self._indexes.undo.note(partial(self._drop_group, group.name))

    def remove_group(self, name: str) -> Group:
        """Remove a group."""
        group = self.groups.pop(name)
        group.detach()
        self._indexes.undo.note(partial(self._put_group, group))
        return group

    def attach(self) -> None:
        """Count in the hash of all streams, and enter the indexes across streams."""
        for table in (self.info, self.producers, self.dead):
            table.attach()
        for partition in self.partitions:
            partition.attach()
        for group in self.groups.values():
            group.attach()
        self.schedule_all()

    def detach(self) -> None:
        """Leave the hash and the indexes: the stream is deleted."""
        for table in (self.info, self.producers, self.dead):
            table.detach()
        for partition in self.partitions:
            partition.detach()
            if self._indexes.retention.get(partition.id) is not None:
                self._indexes.retention.cancel(partition.id)
        for group in self.groups.values():
            group.detach()

    def schedule_all(self) -> None:
        """Schedule the next trim of each partition."""
        for partition in self.partitions:
            self.schedule(partition)

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind."""
        sizes = {
            "streams": STREAM_SIZE + sum(partition.memory() for partition in self.partitions),
            "producers": self.producers.memory(),
            "dead_letters": len(self.dead) * DEAD_SIZE,
            "groups": 0,
            "pending": 0,
        }
        for group in self.groups.values():
            for kind, size in group.memory().items():
                sizes[kind] += size
        return sizes

    def check(self) -> None:
        """Assert the invariants of this file."""
        info = self.info.rows[0]
        self.info.check()
        self.dead.check()
        self.producers.check()
        assert len(self.partitions) == info.partition_count
        assert self.key_hash == info.key_hash
        for number, partition in enumerate(self.partitions):
            assert (partition.number, partition.stream_id) == (number, self.id)
            assert partition.retention == info.retention
            partition.check()
            due_ns = partition.due_ns(self.floor(number))
            scheduled_ns = self._indexes.retention.get(partition.id)
            assert due_ns is None or (scheduled_ns is not None and scheduled_ns <= due_ns)
            assert self._indexes.partitions.get(partition.id) is partition
        assert len(self.dead) <= DEAD_LETTERS_MAX
        assert len(self.groups) <= GROUPS_MAX
        for name, group in self.groups.items():
            assert (group.name, group.stream_id) == (name, self.id)
            assert len(group.head.owners) == info.partition_count
            group.check([partition.first_offset for partition in self.partitions])

    def _set_policy(self, retention: Retention) -> None:
        for partition in self.partitions:
            partition.set_limits(retention)
        self.schedule_all()

    def _drop_group(self, name: str) -> None:
        """Undo an addition; the tables undo their rows by themselves."""
        del self.groups[name]

    def _put_group(self, group: Group) -> None:
        self.groups[group.name] = group
        group.attach()

    def _hash_info(self, _: int, info: StreamInfo) -> int:
        namespace = self.namespace.encode()
        kind = KIND_STREAM_MIXED if info.key_hash else KIND_STREAM
        head = _STREAM.pack(kind, self.id, info.partition_count, len(namespace))
        return item_hash(head + info.retention.encode() + namespace + self.name.encode(), 0)

    def _hash_dead(self, place: int, origin: int) -> int:
        return item_hash(_DEAD.pack(KIND_DEAD, self.id, place, origin), 0)


class Streams:
    """All streams of a shard."""

    __slots__ = ("by_id", "by_prefix", "gone", "indexes", "keys", "limits", "names", "notes")

    def __init__(self, notes: Notes, keys: DerivedKeys) -> None:
        self.indexes = StreamIndexes()
        self.keys = keys
        self.notes = notes
        self.names: dict[str, dict[str, StreamState]] = {}  # by namespace and name
        self.limits: dict[str, int] = {}  # bytes that a value may have, by namespace
        self.by_id: dict[int, StreamState] = {}
        self.gone = GoneStreams()
        # By the prefix of a payload, then by size and name as an append has them.
        self.by_prefix: dict[bytes, dict[bytes, StreamState]] = {}

    def find(self, namespace: str, name: str) -> StreamState | Refused:
        """Return the stream of that name, or why there is none."""
        names = self.names.get(namespace)
        if names is None:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        stream = names.get(name)
        return Refused(Reason.STREAM_UNKNOWN) if stream is None else stream

    def add(self, stream: StreamState) -> None:
        """Add a stream to the indexes; its tables are filled and hashed already."""
        self._index(stream)
        for partition in stream.partitions:
            partition.attach()
        stream.schedule_all()
        self.indexes.undo.note(partial(self._unindex_detached, stream))

    def remove(self, stream: StreamState) -> None:
        """Remove a stream with everything in it."""
        self._unindex(stream)
        stream.detach()
        count = len(stream.partitions)
        gone = GoneStream(stream.id, stream.namespace, stream.name, count, stream.key_hash)
        self.gone.add(gone)
        self.indexes.undo.note(partial(self._put_back, stream))

    def configure_namespace(self, namespace: Namespace) -> None:
        """Apply the limits of a namespace, which may be new."""
        self.limits[namespace.name] = namespace.limits.value_size_max
        for stream in self.names.setdefault(namespace.name, {}).values():
            stream.value_size_max = namespace.limits.value_size_max

    def remove_namespace(self, namespace: Namespace) -> None:
        """Remove all streams of a namespace."""
        for stream in list(self.names[namespace.name].values()):
            self.remove(stream)
        del self.names[namespace.name]
        del self.limits[namespace.name]

    def add_record(self, stream: StreamState, number: int, moment: tuple[int, int, int]) -> None:
        """Count a record of (index, time, size), and note it in the log."""
        index, timestamp_ns, size = moment
        partition = stream.partitions[number]
        undo = self.indexes.undo
        if undo.active:
            undo.note(partial(stream.schedule, partition))
            undo.defer(partial(self.notes.add_record, partition.id, index))
        else:
            self.notes.add_record(partition.id, index)
        if partition.add(index, timestamp_ns, size):
            stream.schedule(partition)

    def check(self) -> None:
        """Assert the invariants of this file."""
        found = [stream for names in self.names.values() for stream in names.values()]
        assert {stream.id: stream for stream in found} == self.by_id
        assert sum(map(len, self.by_prefix.values())) == len(found)
        assert list(self.limits) == list(self.names)
        total = 0
        indexes = self.indexes
        indexes.settle()
        for stream in found:
            assert self.names[stream.namespace][stream.name] is stream
            assert self.by_prefix[encode_prefix(stream.namespace)][_raw_name(stream)] is stream
            assert stream.value_size_max == self.limits[stream.namespace]
            stream.check()
            total += stream.info.total + stream.producers.total + stream.dead.total
            total += sum(partition.digest for partition in stream.partitions)
            for group in stream.groups.values():
                total += sum(table.total for table in group.tables())
        assert all(len(names) <= STREAMS_MAX for names in self.names.values())
        assert indexes.total == total, "something is hashed that is not there"
        partitions = sum(len(stream.partitions) for stream in found)
        members = sum(len(g.members) for stream in found for g in stream.groups.values())
        assert len(indexes.partitions) == partitions
        assert len(indexes.member_groups) == len(indexes.member_deadlines) == members
        indexes.member_deadlines.check()
        indexes.retention.check()
        self.gone.check()

    def _index(self, stream: StreamState) -> None:
        self.names[stream.namespace][stream.name] = stream
        self.by_id[stream.id] = stream
        prefix = encode_prefix(stream.namespace)
        self.by_prefix.setdefault(prefix, {})[_raw_name(stream)] = stream
        stream.value_size_max = self.limits[stream.namespace]

    def _unindex(self, stream: StreamState) -> None:
        del self.names[stream.namespace][stream.name]
        del self.by_id[stream.id]
        prefix = encode_prefix(stream.namespace)
        del self.by_prefix[prefix][_raw_name(stream)]
        if not self.by_prefix[prefix]:
            del self.by_prefix[prefix]

    def _unindex_detached(self, stream: StreamState) -> None:
        """Undo an addition; the tables undo their rows by themselves."""
        self._unindex(stream)
        for partition in stream.partitions:
            partition.detach()
            if self.indexes.retention.get(partition.id) is not None:
                self.indexes.retention.cancel(partition.id)

    def _put_back(self, stream: StreamState) -> None:
        self.gone.forget(stream.id)
        self._index(stream)
        stream.attach()


def _raw_name(stream: StreamState) -> bytes:
    return encode_sized(U8, stream.name.encode())
