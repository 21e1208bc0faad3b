"""Spans: where a group is cut into spans makes no difference to results or state."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest

from onelog.projections.codec import SessionRef
from onelog.projections.conditions import Condition, Target
from onelog.projections.kv import commands as kv
from onelog.projections.kv.projection import KV
from onelog.projections.kv.reads import Range
from onelog.projections.limits import KEYS_RESERVED
from onelog.projections.namespaces import Limits
from onelog.projections.projection import Handler
from onelog.projections.queue import commands as queues
from onelog.projections.queue.message import Enqueue, QueueConfig
from onelog.projections.reasons import Reason
from onelog.projections.result import (
    APPLIED,
    PENDING,
    Applied,
    Duplicate,
    Outcome,
    Refused,
    Result,
    Skipped,
)
from onelog.projections.router import SPAN_ENTRIES_MAX
from onelog.projections.stream import commands as streams
from onelog.projections.stream.commands import Append
from onelog.projections.system.commands import (
    NamespaceConfigure,
    NamespaceCreate,
    SessionClose,
    SessionOpen,
    encode_batch,
)
from onelog.projections.system.commands import encode_command as encode_system
from onelog.ual.entry import (
    FLAG_CONDITIONAL,
    FLAG_ZSTD,
    TYPE_NOOP,
    Draft,
    Entry,
    decode_entries,
    encode_group,
)
from tests.projections.world import NAMESPACE, SECOND, World

OTHER = "other"
KEYS = [b"k%d" % number for number in range(60)]
HOUR = 3_600 * SECOND
GROUPS = 60
NOTHING = Draft(TYPE_NOOP, b"")


@dataclass
class Caller:
    """A session, and what it has sent."""

    session: int
    sequence: int = 0
    first: int = 1


class Twins:
    """Two worlds that get the same entries: in groups, and one by one."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.grouped, self.single = self.worlds = World(), World()
        self.now_ns = self.grouped.now_ns
        self.entries: list[Entry] = []
        self.sent: list[Draft] = []
        self.seen: Counter[object] = Counter()
        limits = Limits(versions_max=3, value_size_max=1_500, keys_max=50, tombstones_max=2)
        self.send([encode_system(NamespaceConfigure(limits), NAMESPACE)])
        self.send([encode_system(NamespaceCreate(Limits()), OTHER)])
        self.callers = [self.open(HOUR), self.open(HOUR), self.open(2 * SECOND)]
        self.send([queues.encode_command(queues.QueueCreate("q", QueueConfig()), NAMESPACE)])
        self.queue = self.grouped.index
        for name, partitions in (("s", 1), ("wide", 3)):
            create = streams.Create(name, partitions)
            self.send([streams.encode_command(create, NAMESPACE)])

    def open(self, ttl_ns: int) -> Caller:
        self.send([encode_system(SessionOpen(ttl_ns))])
        return Caller(self.grouped.index)

    def send(self, drafts: list[Draft], *, again: int = 0, slips_at: int | None = None) -> None:
        """Apply a group; everything that can be seen is the same afterwards.

        ``again``: so many entries of before come with it. ``slips_at``: there its time goes on.
        """
        first = self.grouped.index + 1
        group = encode_group(drafts, term=1, first_index=first, timestamp_ns=self.now_ns)
        new = decode_entries(group.data)
        if slips_at is not None:
            self.now_ns += 1
            new[slips_at:] = [each._replace(timestamp_ns=self.now_ns) for each in new[slips_at:]]
        entries = [*(self.entries[-again:] if again else ()), *new]
        self.entries += new
        results = self.grouped.state.router.apply_group(entries)
        assert one_by_one(self.single, entries) == results
        for result in results:
            self.seen[result.reason if isinstance(result, Refused) else type(result)] += 1
        self.compare(range(first, first + len(new)))

    def compare(self, indexes: range) -> None:
        expected, router = self.grouped, self.grouped.state.router
        single, other = self.single, self.single.state.router
        assert other.state_hash() == router.state_hash()
        assert other.state_hashes() == router.state_hashes()
        assert other.counts() == router.counts()
        assert other.next_deadline() == router.next_deadline()
        assert single.notes.voids == expected.notes.voids
        assert single.notes.records == expected.notes.records
        for index in indexes:
            if not any(first <= index <= last for first, last in expected.notes.voids):
                found = single.state.kv.changes.get(index)
                assert found == expected.state.kv.changes.get(index)
        assert other.memory() == router.memory()

    def put(self, *, is_plain: bool = False) -> tuple[kv.Command, str]:
        draw = self.draw
        key = draw.choice(KEYS[: draw.choice((4, len(KEYS)))])
        value = draw.randbytes(draw.choice((0, 5, 100)))
        if is_plain or draw.random() < 0.9:
            return kv.Put(key, value), NAMESPACE
        return draw.choice(
            (
                (kv.Put(key, value), OTHER),
                (kv.Put(key, value), "unknown"),
                (kv.Put(key, draw.randbytes(900)), NAMESPACE),
                (kv.Put(key, bytes(1_400)), NAMESPACE),  # compressed in the log
                (kv.Put(key, draw.randbytes(1_600)), NAMESPACE),  # too large
                (kv.Put(key, value, ttl_ns=HOUR), NAMESPACE),
                (kv.Put(key, value, expected=0), NAMESPACE),
                (kv.Put(KEYS_RESERVED[0] + b"k", value), NAMESPACE),
                (kv.Delete(key), NAMESPACE),
                (kv.Increment(key, 1), NAMESPACE),
            )
        )

    def request(self, model: str, ref: SessionRef) -> Draft:
        """Return a request in a session, to one of the models."""
        draw = self.draw
        body, is_plain = draw.randbytes(draw.choice((0, 5, 100))), draw.random() < 0.9
        if model == "queue":
            message = Enqueue(self.queue, body, draw.randrange(3))
            if not is_plain:
                dedup = draw.choice((b"", b"d1", b"d2"))
                message = Enqueue(draw.choice((self.queue, 9)), body, delay_ns=5, dedup=dedup)
            return queues.encode_command(message, NAMESPACE, ref)
        if model == "stream":
            record = Append("s", body)
            if not is_plain:
                name = draw.choice(("s", "wide", "nobody"))
                key, tag = draw.choice((None, b"k1", b"k2")), draw.choice(("", "t"))
                record = Append(name, body, key, tag=tag)
            return streams.encode_command(record, NAMESPACE, ref)
        command, namespace = self.put()
        return kv.encode_command(command, namespace, ref)

    def in_session(self, caller: Caller, model: str = "kv") -> Draft:
        """Return a request as clients send them, and now and then one that no client should."""
        draw = self.draw
        chance = draw.random()
        if chance < 0.02 and self.sent:
            return draw.choice(self.sent[-60:])
        caller.sequence += draw.choice((1, 1, 1, 1, 1, 2))
        if draw.random() < 0.04:
            caller.first = max(caller.first, caller.sequence - draw.choice((0, 5, 30)))
        sequence, first = caller.sequence, caller.first
        if chance < 0.04:
            sequence -= draw.randrange(8)
        elif chance < 0.05:
            first = sequence + 1
        elif chance < 0.06:
            sequence = first = caller.first - 1  # acknowledged
        session = 10**6 if chance > 0.99 else caller.session
        draft = self.request(model, SessionRef(session, max(sequence, 0), first))
        if chance > 0.98:
            draft = draft._replace(payload=draft.payload[: draw.randrange(len(draft.payload))])
        if chance > 0.97:
            draft = draft._replace(flags=FLAG_CONDITIONAL)  # of no batch
        self.sent.append(draft)
        return draft

    def part(self) -> list[Draft]:
        """Return a few entries of one kind."""
        draw = self.draw
        kind = draw.randrange(10)
        count = draw.choice((1, 2, 5, 20))
        if kind < 5:
            caller = draw.choice(self.callers)
            again = self.sent[-count:] if draw.random() < 0.15 else []
            model = draw.choice(("kv", "kv", "queue", "stream"))
            return [*again, *(self.in_session(caller, model) for _ in range(count))]
        if kind < 7:
            return [kv.encode_command(*self.put()) for _ in range(count)]
        if kind == 7:
            return [queues.encode_command(Enqueue(self.queue, b"m"), NAMESPACE)] * count
        inner = [kv.encode_command(*self.put(is_plain=draw.random() < 0.9)) for _ in range(count)]
        conditions = (Condition(KEYS[0], draw.choice(list(Target)[:2])),) * draw.randrange(2)
        caller = draw.choice(self.callers)
        caller.sequence += 1
        ref = SessionRef(caller.session, caller.sequence, caller.first)
        batch = encode_batch(inner, conditions, NAMESPACE, draw.choice((None, ref)))
        if draw.random() < 0.1:
            batch[-1] = batch[-1]._replace(flags=0)
        return batch * draw.choice((1, 1, 2))


def one_by_one(world: World, entries: list[Entry]) -> list[Result]:
    """Return the results of entries that are applied by themselves, as those of a group."""
    results: list[Result] = []
    waiting = 0
    for entry in entries:
        result = world.state.router.apply(entry)
        if result is PENDING:
            waiting += 1
            continue
        results.append(result)
        if waiting:
            results += result.results if isinstance(result, Applied) else [result] * waiting
            waiting = 0
    assert not waiting, "a batch is half there"
    return results


@pytest.fixture
def small_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that are soon full, by count or by size."""
    monkeypatch.setattr("onelog.projections.system.sessions.SESSION_RESULTS_MAX", 30)
    monkeypatch.setattr("onelog.projections.system.sessions.SESSION_RESULTS_SIZE_MAX", 600)


@pytest.mark.usefixtures("small_sessions")
@pytest.mark.parametrize("seed", range(6))
def test_random_groups_do_the_same_as_their_entries_one_by_one(seed: int) -> None:
    worlds = Twins(seed)
    draw = worlds.draw
    for _ in range(GROUPS):
        drafts = [draft for _ in range(draw.randrange(1, 8)) for draft in worlds.part()]
        worlds.send(
            drafts,
            again=draw.choice((0, 0, 0, 3)) if worlds.entries[-1].flags == 0 else 0,
            slips_at=draw.choice((None, None, draw.randrange(len(drafts)))),
        )
        chance = draw.random()
        if chance < 0.1:
            worlds.callers[2] = worlds.open(2 * SECOND)
        elif chance < 0.2:
            worlds.now_ns += 3 * SECOND
            worlds.send([*worlds.grouped.state.router.due(worlds.now_ns, 100), NOTHING])
        elif chance < 0.25:
            worlds.send([encode_system(SessionClose(worlds.callers[0].session))])
            worlds.callers[0] = worlds.open(HOUR)
        elif chance < 0.3:  # from now on the order of keys is kept up to date
            for world in worlds.worlds:
                world.state.kv.scan(NAMESPACE, Range(), limit=3)

    for world in worlds.worlds:
        world.state.router.check()
        assert world.sections() == worlds.grouped.sections()
    assert worlds.seen[Applied] > 500
    unusual = {Duplicate, Skipped, Reason.SESSION_EXPIRED, Reason.SESSION_RESULTS_FULL}
    unusual |= {Reason.SEQUENCE_ACKNOWLEDGED, Reason.CONDITION_FAILED, Reason.NAMESPACE_UNKNOWN}
    assert worlds.seen.keys() >= unusual


def test_a_span_ends_where_an_entry_is_not_like_the_others() -> None:
    """What chance seldom meets: a gap that is filled, any cut, a time that goes on."""
    worlds = Twins(0)
    session = worlds.callers[0].session

    def request(sequence: int) -> Draft:
        ref = SessionRef(session, sequence, 1)
        return kv.encode_command(kv.Put(b"k", b"v%d" % sequence), NAMESPACE, ref)

    worlds.send([request(1), request(2), request(4), request(7)])
    worlds.send([request(3), request(4), request(5), request(6), request(7), request(8)])
    assert worlds.seen[Duplicate] == 2
    size = len(request(9).payload)
    for cut in range(size):
        first, second, third, fourth = (request(10 + 4 * cut + n) for n in range(4))
        worlds.send([first, second, third._replace(payload=third.payload[:cut]), fourth])
    plain = kv.encode_command(kv.Put(b"k", b"v"), NAMESPACE)
    for last in (plain, request(10 + 4 * size)):
        worlds.send([last, last, last], slips_at=2)


@pytest.fixture
def span_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many payloads each span of puts has."""
    sizes: list[int] = []
    handlers = KV.handlers

    def noted(self: KV) -> dict[int, Handler]:
        found = dict(handlers(self))
        put = found[kv.TYPE_PUT]

        def note(
            prefix: bytes, index: int, time_ns: int, payloads: Sequence[bytes]
        ) -> Sequence[Outcome]:
            sizes.append(len(payloads))
            return put(prefix, index, time_ns, payloads)

        found[kv.TYPE_PUT] = note
        return found

    monkeypatch.setattr(KV, "handlers", noted)
    return sizes


@pytest.mark.parametrize("ttl_ns", [None, HOUR])
def test_puts_of_a_group_go_in_spans(ttl_ns: int | None, span_sizes: list[int]) -> None:
    """The comparison above is worth something only if there are spans."""
    world = World()
    world.system(SessionOpen(HOUR))
    session = world.index
    count = SPAN_ENTRIES_MAX + 10
    puts = [kv.Put(b"%d" % n, b"", ttl_ns) for n in range(count)]
    plain = [kv.encode_command(put, NAMESPACE) for put in puts]
    in_session = [
        kv.encode_command(put, NAMESPACE, SessionRef(session, n, 1))
        for n, put in enumerate(puts, 1)
    ]
    for drafts in (plain, in_session, encode_batch(plain)):
        span_sizes.clear()

        assert world.group(drafts)[-count:] == [APPLIED] * count
        assert span_sizes == [SPAN_ENTRIES_MAX, 10]


def test_compressed_payloads_are_part_of_a_span(span_sizes: list[int]) -> None:
    world = World()
    values = [bytes(1_400), b"short", bytes(1_400)]
    drafts = [kv.encode_command(kv.Put(b"k", value), NAMESPACE) for value in values]

    assert world.group(drafts) == [APPLIED] * 3
    assert [entry.flags for entry in world.entries] == [FLAG_ZSTD, 0, FLAG_ZSTD]
    assert span_sizes == [3]


def test_a_result_that_fills_a_session_keeps_out_the_next_request_of_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How large a result is, is known when it is there: so such requests share no span."""
    monkeypatch.setattr("onelog.projections.system.sessions.SESSION_RESULTS_SIZE_MAX", 1_000)
    world = World()
    world.put(b"k", bytes(600))
    world.system(SessionOpen(HOUR))
    session = world.index
    read = kv.Transaction((), (kv.Get(b"k"),))
    drafts = [
        kv.encode_command(read, NAMESPACE, SessionRef(session, number, 1)) for number in range(1, 4)
    ]

    first, second, third = world.group(drafts)

    assert isinstance(first, Applied)
    assert isinstance(second, Applied)
    assert third == Refused(Reason.SESSION_RESULTS_FULL, 1)


def test_requests_of_a_span_acknowledge_results_of_those_before_them() -> None:
    worlds = Twins(0)
    session = worlds.callers[0].session
    put = kv.Put(b"k", b"v")
    firsts = (1, 1, 3, 2, 5)
    worlds.send(
        [
            kv.encode_command(put, NAMESPACE, SessionRef(session, number, first))
            for number, first in enumerate(firsts, 1)
        ]
    )

    kept = worlds.grouped.state.system.sessions.get(session)
    assert kept is not None
    assert (kept.first_unacknowledged, list(kept.results)) == (5, [5])
