"""Batches in spans and entry by entry: nobody may tell them apart."""

from random import Random
from unittest.mock import patch

import pytest

from onelog.projections import router
from onelog.projections.codec import SessionRef
from onelog.projections.conditions import Condition, Target
from onelog.projections.kv import commands as kv
from onelog.projections.kv.reads import Range
from onelog.projections.namespaces import Limits
from onelog.projections.queue import commands as queues
from onelog.projections.queue.message import Enqueue, QueueConfig, decode_leased
from onelog.projections.queue.reads import Peeked
from onelog.projections.result import Applied, Duplicate, Refused, Result
from onelog.projections.stream import commands as streams
from onelog.projections.stream.commands import Append
from onelog.projections.system.commands import NamespaceConfigure, SessionOpen, encode_batch
from onelog.projections.system.commands import encode_command as encode_system
from onelog.ual.entry import Draft, decode_entries, encode_group
from tests.projections.world import NAMESPACE, SECOND, World

KEYS = [b"k%d" % number for number in range(300)]
KEYS_BUSY = 4
STREAM = "events"
HOUR = 3_600 * SECOND


class Twins:
    """Two worlds that get the same entries; in one of them every span has one entry."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.spans, self.single = World(), World()
        self.sequence = 0
        self.last: list[Draft] = []
        limits = Limits(versions_max=3, value_size_max=2_000, keys_max=150, tombstones_max=2)
        self.send([encode_system(NamespaceConfigure(limits), NAMESPACE)])
        self.send([encode_system(SessionOpen(HOUR))])
        self.session = self.spans.index
        self.send([queues.encode_command(queues.QueueCreate("q", QueueConfig()), NAMESPACE)])
        self.queue = self.spans.index
        retention = streams.Retention(count_max=40)
        self.send([streams.encode_command(streams.Create(STREAM, 2, retention), NAMESPACE)])
        self.leased: list[tuple[int, int]] = []

    def send(self, drafts: list[Draft]) -> list[Result]:
        """Apply a group in both worlds; everything that can be seen is the same afterwards."""
        results = self.spans.group(drafts)
        with patch.object(router, "SPAN_ENTRIES_MAX", 1):
            assert results == self.single.group(drafts), drafts
        spans, single = self.spans.state, self.single.state
        assert spans.router.state_hashes() == single.router.state_hashes(), drafts
        assert self.spans.notes.voids == self.single.notes.voids
        assert self.spans.notes.records == self.single.notes.records
        last = self.spans.index
        for index in range(last - len(drafts) + 1, last + 1):
            if not self.is_void(index):
                assert spans.kv.changes.get(index) == single.kv.changes.get(index)
                assert spans.queue.changes.get(index) == single.queue.changes.get(index)
        return results

    def is_void(self, index: int) -> bool:
        return any(first <= index <= last for first, last in self.spans.notes.voids)

    def lease(self) -> None:
        """Lease what there is, to be acknowledged in batches."""
        (result,) = self.send(
            [queues.encode_command(queues.Lease(self.queue, self.draw.randrange(1, 4)), NAMESPACE)]
        )
        assert isinstance(result, Applied)
        if result.value is not None:
            leased = decode_leased(result)
            self.leased += [(message.id, leased.token) for message in leased.messages]

    def key(self) -> bytes:
        """Return one of the few keys that are written often, or any."""
        return self.draw.choice(KEYS[: self.draw.choice((KEYS_BUSY, len(KEYS)))])

    def operation(self) -> Draft:
        """Return an operation as batches have them: mostly plain ones."""
        draw, key = self.draw, self.key()
        value = bytes(draw.choice((0, 3, 100, 700)))
        kind = draw.randrange(18)
        if kind < 6:
            return kv.encode_command(kv.Put(key, value), NAMESPACE)
        if kind > 15:
            keys = [self.key() for _ in range(draw.randrange(1, 6))]
            many = kv.PutMany(kv.put_bodies(keys, [value] * len(keys), None))
            return kv.encode_command(many, NAMESPACE)
        if kind < 8:
            return queues.encode_command(Enqueue(self.queue, value, draw.choice((3, 8))), NAMESPACE)
        if kind < 11:
            record = Append(STREAM, value, key=draw.choice((b"", b"a", b"b")))
            return streams.encode_command(record, NAMESPACE)
        if kind == 11 and self.leased:
            item = draw.choice(self.leased)
            return queues.encode_command(queues.Ack(self.queue, (item,), strict=True), NAMESPACE)
        if kind == 12:
            return queues.encode_command(queues.Lease(self.queue), NAMESPACE)
        command: kv.Command = draw.choice(
            (
                kv.Delete(key),
                kv.Put(key, value, ttl_ns=HOUR),
                kv.Put(key, b"5", expected=draw.choice((None, 0))),
                kv.Increment(key, 1),
            )
        )
        return kv.encode_command(command, NAMESPACE)

    def batch(self) -> list[Draft]:
        """Return a batch, now and then one that was sent before."""
        draw = self.draw
        if self.last and draw.random() < 0.1:
            return self.last
        conditions: tuple[Condition, ...] = ()
        if draw.random() < 0.2:
            conditions = (Condition(self.key(), draw.choice(list(Target)[:2])),)
        session = None
        if draw.random() < 0.5:
            self.sequence += 1
            session = SessionRef(self.session, self.sequence, max(1, self.sequence - 2))
        drafts = [self.operation() for _ in range(draw.randrange(1, 9))]
        self.last = encode_batch(drafts, conditions, NAMESPACE, session)
        return self.last


@pytest.mark.parametrize("seed", range(4))
def test_random_batches_do_the_same_in_spans_and_entry_by_entry(seed: int) -> None:
    twins = Twins(seed)
    seen: dict[type, int] = {Applied: 0, Refused: 0, Duplicate: 0}
    for _ in range(250):
        single = [twins.operation()] if twins.draw.random() < 0.3 else []
        results = twins.send([*single, *twins.batch(), *single])
        seen[type(results[len(single)])] += 1
        if twins.draw.random() < 0.2:
            twins.lease()
        if twins.draw.random() < 0.1:  # from now on its order is kept up to date
            for world in (twins.spans, twins.single):
                world.state.kv.scan(NAMESPACE, Range(), limit=3)

    assert min(seen.values()) > 2, seen
    assert twins.spans.sections() == twins.single.sections()
    for world in (twins.spans, twins.single):
        world.state.router.check()


def test_each_entry_of_a_batch_has_its_own_time() -> None:
    """The groups of a leader have one time, but the format allows more."""
    twins = Twins(0)
    drafts = encode_batch(
        [queues.encode_command(Enqueue(twins.queue, b""), NAMESPACE) for _ in range(3)]
    )
    first, now_ns = twins.spans.index + 1, twins.spans.now_ns
    group = encode_group(drafts, term=1, first_index=first, timestamp_ns=now_ns)
    entries = [
        entry._replace(timestamp_ns=now_ns + number)
        for number, entry in enumerate(decode_entries(group.data))
    ]

    assert isinstance(twins.spans.state.router.apply_group(entries)[0], Applied)

    found = twins.spans.state.queue.peek(NAMESPACE, twins.queue, limit=10, from_id=first)
    assert isinstance(found, Peeked)
    times = {entry.index: entry.timestamp_ns for entry in entries[1:]}
    assert {row.id: row.since_ns for row in found.messages} == times
