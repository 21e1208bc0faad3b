"""Sessions: every request takes effect once, or says that nobody can tell any more."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.codec import SessionRef
from onelog.projections.conditions import Condition, Target
from onelog.projections.kv.commands import Get, Increment, Put, Transaction, encode_command
from onelog.projections.limits import (
    SESSION_RESULTS_SIZE_MAX,
    SESSION_TTL_NS_MAX,
    SESSION_TTL_NS_MIN,
)
from onelog.projections.namespaces import Limits
from onelog.projections.queue.commands import Lease, QueueCreate
from onelog.projections.queue.commands import encode_command as encode_queue
from onelog.projections.queue.message import Enqueue, QueueConfig
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Duplicate, Refused
from onelog.projections.stream.commands import Claim, Deliver
from onelog.projections.stream.commands import encode_command as encode_stream
from onelog.projections.system import sessions
from onelog.projections.system.commands import (
    NamespaceCreate,
    SessionClose,
    SessionKeepalive,
    SessionOpen,
    encode_batch,
)
from onelog.projections.system.sessions import FINGERPRINT_SIZE
from onelog.projections.system.sessions import _repeat as repeat
from onelog.ual.entry import FLAG_CONDITIONAL, FLAG_ZSTD, OWNER_SYSTEM, Draft
from tests.projections.world import NAMESPACE, SECOND, World

TTL_NS = 10 * SECOND


@pytest.fixture
def world() -> World:
    return World()


def open_session(world: World) -> int:
    assert world.system(SessionOpen(TTL_NS)) == Applied(world.index)
    return world.index


def test_a_repeated_request_gets_the_first_result_and_does_nothing(world: World) -> None:
    session = open_session(world)
    ref = SessionRef(session, 1, 0)
    assert world.kv(Increment(b"n", 5), session=ref) == Applied(5)
    first = world.index
    world.kv(Increment(b"n", 1))

    assert world.kv(Increment(b"n", 5), session=ref) == Duplicate(first, Applied(5))
    assert world.value(b"n") == b"6"
    assert world.notes.voids == [(world.index, world.index)]


def test_a_refusal_is_a_result_too_and_is_repeated(world: World) -> None:
    session = open_session(world)
    version = world.put(b"k", b"v")
    refused = Refused(Reason.ALREADY_EXISTS, version)
    ref = SessionRef(session, 1, 0)
    assert world.kv(Put(b"k", b"x", expected=0), session=ref) == refused
    first = world.index
    world.kv(Increment(b"other", 1))

    assert world.kv(Put(b"k", b"x", expected=0), session=ref) == Duplicate(first, refused)


def test_requests_may_arrive_out_of_order(world: World) -> None:
    session = open_session(world)
    for sequence in (3, 1, 2):
        assert world.kv(Increment(b"n", 1), session=SessionRef(session, sequence, 0)) != APPLIED
    assert world.value(b"n") == b"3"
    for sequence in (1, 2, 3):
        result = world.kv(Increment(b"n", 1), session=SessionRef(session, sequence, 0))
        assert isinstance(result, Duplicate)
    assert world.value(b"n") == b"3"


def test_an_unknown_session_is_never_executed(world: World) -> None:
    result = world.kv(Put(b"k", b"v"), session=SessionRef(99, 1, 0))

    assert result == Refused(Reason.SESSION_EXPIRED, 99)
    assert world.value(b"k") is None


def test_an_expired_session_is_never_executed_even_for_an_old_request(world: World) -> None:
    session = open_session(world)
    ref = SessionRef(session, 1, 0)
    world.kv(Increment(b"n", 1), session=ref)

    assert world.pass_time(TTL_NS) == [Applied(1)]

    assert world.kv(Increment(b"n", 1), session=ref) == Refused(Reason.SESSION_EXPIRED, session)
    assert world.value(b"n") == b"1"


def test_a_session_lives_while_it_is_used_or_kept_alive(world: World) -> None:
    session = open_session(world)
    world.pass_time(TTL_NS - 1)
    world.kv(Put(b"k", b"v"), session=SessionRef(session, 1, 0))
    world.pass_time(TTL_NS - 1)
    assert world.system(SessionKeepalive(session)) == APPLIED
    world.pass_time(TTL_NS - 1)

    assert world.kv(Put(b"k", b"w"), session=SessionRef(session, 2, 1)) == APPLIED


def test_a_closed_session_is_gone(world: World) -> None:
    session = open_session(world)

    assert world.system(SessionClose(session)) == APPLIED
    assert world.system(SessionClose(session)) == Refused(Reason.SESSION_EXPIRED, session)
    assert world.system(SessionKeepalive(session)) == Refused(Reason.SESSION_EXPIRED, session)
    assert world.state.router.next_deadline() is None


def test_a_session_may_close_itself_with_a_request_of_its_own(world: World) -> None:
    session = open_session(world)

    assert world.system(SessionClose(session), session=SessionRef(session, 1, 0)) == APPLIED
    world.state.router.check()


def test_an_acknowledged_result_is_forgotten_and_its_request_never_runs_again(world: World) -> None:
    session = open_session(world)
    world.kv(Increment(b"n", 1), session=SessionRef(session, 1, 0))
    world.kv(Increment(b"n", 1), session=SessionRef(session, 2, 2))

    result = world.kv(Increment(b"n", 1), session=SessionRef(session, 1, 0))

    assert result == Refused(Reason.SEQUENCE_ACKNOWLEDGED, 2)
    assert world.value(b"n") == b"2"
    held = world.state.system.sessions.get(session)
    assert held is not None
    assert list(held.results) == [2]


def test_a_request_cannot_acknowledge_itself(world: World) -> None:
    session = open_session(world)

    result = world.kv(Put(b"k", b"v"), session=SessionRef(session, 1, 2))

    assert result == Refused(Reason.SEQUENCE_INVALID, 2)
    assert world.value(b"k") is None


def test_results_that_wait_are_bounded_and_never_forgotten_silently(world: World) -> None:
    """A client that does not acknowledge is told so; its old results stay good."""
    session = open_session(world)
    world.put(b"big", b"x" * 500_000)
    read = Transaction((), (Get(b"big"),))
    sequence = 0
    while True:
        sequence += 1
        result = world.kv(read, session=SessionRef(session, sequence, 0))
        if isinstance(result, Refused):
            break
    assert result == Refused(Reason.SESSION_RESULTS_FULL, 0)
    held = world.state.system.sessions.get(session)
    assert held is not None
    assert SESSION_RESULTS_SIZE_MAX <= held.results_size < 2 * SESSION_RESULTS_SIZE_MAX

    assert isinstance(world.kv(read, session=SessionRef(session, 1, 0)), Duplicate)
    assert isinstance(world.kv(read, session=SessionRef(session, sequence, 2)), Applied)


@pytest.mark.parametrize("ttl_ns", [SESSION_TTL_NS_MIN - 1, SESSION_TTL_NS_MAX + 1])
def test_a_session_lives_between_a_second_and_a_day(world: World, ttl_ns: int) -> None:
    assert world.system(SessionOpen(ttl_ns)) == Refused(Reason.TTL_INVALID, ttl_ns)


def test_the_number_of_sessions_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onelog.projections.system.sessions.SESSIONS_MAX", 2)
    open_session(world)
    open_session(world)

    assert world.system(SessionOpen(TTL_NS)) == Refused(Reason.SESSIONS_FULL, 2)


def test_a_batch_is_one_request_of_its_session(world: World) -> None:
    session = open_session(world)
    inner = [encode_command(Increment(b"n", 1), NAMESPACE)] * 2
    batch = encode_batch(inner, (), NAMESPACE, SessionRef(session, 1, 0))
    first = world.group(batch)
    index = world.index - 2

    again = world.group(batch)

    assert again[0] == Duplicate(index, Applied(2, None, (Applied(1), Applied(2))))
    assert first[0] == again[0].first
    assert world.value(b"n") == b"2"
    assert world.notes.voids == [(world.index - 2, world.index)]


def test_a_namespace_can_be_created_exactly_once_by_a_session(world: World) -> None:
    session = open_session(world)
    ref = SessionRef(session, 1, 0)
    assert world.system(NamespaceCreate(Limits()), "orders", ref) == APPLIED
    first = world.index

    assert world.system(NamespaceCreate(Limits()), "orders", ref) == Duplicate(first, APPLIED)


@given(
    requests=st.lists(
        st.tuples(st.integers(1, 12), st.integers(0, 6), st.integers(0, 2)), max_size=60
    )
)
@settings(max_examples=60, deadline=None)
def test_exactly_once_however_requests_are_repeated_and_reordered(
    requests: list[tuple[int, int, int]],
) -> None:
    """Each sequence adds its own power of a large base, so the counter tells who ran how often."""
    world = World()
    session = open_session(world)
    ran: dict[int, int] = {}
    first_unacknowledged = 0
    for sequence, behind, way in requests:
        ref = SessionRef(session, sequence, max(0, sequence - behind))
        if way == 1:
            world = world.reloaded(37)
        result = world.kv(Increment(b"n", 5**sequence), session=ref)
        first_unacknowledged = max(first_unacknowledged, ref.first_unacknowledged)
        match result:
            case Applied():
                assert sequence not in ran, "ran twice"
                assert sequence >= first_unacknowledged
                ran[sequence] = result.number
            case Duplicate(_, first):
                assert first == Applied(ran[sequence])
            case Refused(reason):
                assert reason is Reason.SEQUENCE_ACKNOWLEDGED
                assert sequence < first_unacknowledged
            case other:
                raise AssertionError(other)
        world.state.router.check()
    total = sum(5**sequence for sequence in ran)
    assert world.value(b"n") == (b"%d" % total if ran else None)


def test_another_request_under_a_used_sequence_is_refused_and_not_executed(world: World) -> None:
    """It must not be dropped, and answered as if it had been carried out."""
    session = open_session(world)
    ref = SessionRef(session, 1, 0)
    assert world.kv(Put(b"k", b"first"), session=ref) == APPLIED
    first, held = world.index, world.state.router.state_hashes()
    reused = Refused(Reason.SEQUENCE_REUSED, 1)

    assert world.kv(Put(b"k", b"other"), session=ref) == reused
    assert world.kv(Put(b"other", b"first"), session=ref) == reused
    assert world.kv(Put(b"k", b"first", ttl_ns=SECOND), session=ref) == reused
    assert world.kv(Increment(b"k", 1), session=ref) == reused
    draft = encode_command(Put(b"k", b"first"), NAMESPACE, ref)
    assert world.draft(draft._replace(entry_type=draft.entry_type + 1)) == reused
    assert world.kv(Put(b"k", b"first"), "elsewhere", ref) == reused
    assert world.system(NamespaceCreate(Limits()), "orders", ref) == reused
    batch = encode_batch([encode_command(Put(b"k", b"first"), NAMESPACE)], (), NAMESPACE, ref)
    assert world.group(batch)[0] == reused

    assert world.kv(Put(b"k", b"first"), session=ref) == Duplicate(first, APPLIED)
    assert world.state.router.state_hashes() == held
    assert world.value(b"k") == b"first"
    world.state.router.check()


def test_a_batch_that_differs_in_one_entry_or_condition_is_another_request(world: World) -> None:
    session = open_session(world)
    ref = SessionRef(session, 1, 0)
    one, two, three = (encode_command(Increment(b"n", each), NAMESPACE) for each in (1, 2, 3))
    batch = encode_batch([one, two], (), NAMESPACE, ref)
    assert isinstance(world.group(batch)[0], Applied)

    conditions = (Condition(b"n", Target.MISSING),)
    others = [[one, three], [two, one], [one], [one, two, one]]
    for batch in [encode_batch(each, (), NAMESPACE, ref) for each in others]:
        assert world.group(batch)[0] == Refused(Reason.SEQUENCE_REUSED, 1)
    batch = encode_batch([one, two], conditions, NAMESPACE, ref)
    assert world.group(batch)[0] == Refused(Reason.SEQUENCE_REUSED, 1)
    assert world.kv(Increment(b"n", 1), session=ref) == Refused(Reason.SEQUENCE_REUSED, 1)

    assert isinstance(world.group(encode_batch([one, two], (), NAMESPACE, ref))[0], Duplicate)
    assert world.value(b"n") == b"3"


def test_a_span_is_refused_where_it_reuses_a_sequence_and_carried_out_elsewhere(
    world: World,
) -> None:
    """A span is a matter of speed: each of its requests has its own outcome."""
    session = open_session(world)

    def span(*values: bytes) -> list[Draft]:
        return [
            encode_command(Put(b"k%d" % at, value), NAMESPACE, SessionRef(session, at, 0))
            for at, value in enumerate(values, 1)
        ]

    first = world.index
    assert world.group(span(b"a", b"b")) == [APPLIED, APPLIED]
    assert world.group(span(b"a", b"other", b"c", b"d")) == [
        Duplicate(first + 1, APPLIED),
        Refused(Reason.SEQUENCE_REUSED, 2),
        APPLIED,
        APPLIED,
    ]
    assert [world.value(b"k%d" % at) for at in range(1, 5)] == [b"a", b"b", b"c", b"d"]
    again = world.group(span(b"a", b"b", b"c", b"d", b"e"))
    assert all(isinstance(each, Duplicate) for each in again[:4])
    assert again[4] == APPLIED


def test_what_is_another_request_is_known_after_a_snapshot(world: World) -> None:
    session = open_session(world)
    ref = SessionRef(session, 1, 0)
    world.kv(Put(b"k", b"first"), session=ref)
    first = world.index

    world = world.reloaded(37)

    assert world.kv(Put(b"k", b"other"), session=ref) == Refused(Reason.SEQUENCE_REUSED, 1)
    assert world.kv(Put(b"k", b"first"), session=ref) == Duplicate(first, APPLIED)


def test_results_of_a_snapshot_without_fingerprints_are_repeated_for_any_request(
    world: World,
) -> None:
    """Version 2 of the section: nobody knows any more what was asked for."""
    session = open_session(world)
    refs = [SessionRef(session, each, 0) for each in (1, 2)]
    world.kv(Put(b"k", b"first"), session=refs[0])
    first, router = world.index, world.state.router
    sections = {owner: b"".join(chunks) for owner, chunks in router.dump().items()}
    held = world.state.system.sessions.get(session)
    assert held is not None
    fingerprint = held.results[1][:FINGERPRINT_SIZE]
    assert sections[OWNER_SYSTEM].count(fingerprint) == 1
    sections[OWNER_SYSTEM] = b"\x02" + sections[OWNER_SYSTEM].replace(fingerprint, b"")[1:]
    loaded = World()
    loaded.now_ns = world.now_ns
    loaded.state.router.load({owner: [data] for owner, data in sections.items()})
    loaded.state.router.check()

    assert loaded.state.router.state_hash() == router.state_hash()
    assert loaded.kv(Put(b"k", b"other"), session=refs[0]) == Duplicate(first, APPLIED)
    assert loaded.kv(Put(b"k", b"second"), session=refs[1]) == APPLIED
    assert loaded.kv(Put(b"k", b"other"), session=refs[1]) == Refused(Reason.SEQUENCE_REUSED, 2)


def test_replicas_that_know_no_fingerprints_have_the_same_state(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rolling upgrade: they apply the same log, only the answer to reused sequences differs."""
    session = open_session(world)
    for sequence in (1, 2, 1, 3, 2, 1):
        for amount in (1, 2):
            world.kv(Increment(b"n", amount), session=SessionRef(session, sequence, sequence // 3))
    assert world.state.router.refused_counts[Reason.SEQUENCE_REUSED] > 0

    older = World()
    monkeypatch.setattr(sessions, "_repeat", lambda stored, *_: repeat(stored, 0, stored[:8]))
    results = [older.state.router.apply(entry) for entry in world.entries]

    assert Refused(Reason.SEQUENCE_REUSED, 1) not in results
    assert older.state.router.state_hash() == world.state.router.state_hash()
    assert older.notes.voids == world.notes.voids


def test_what_the_leader_adds_does_not_make_another_request(world: World) -> None:
    """Another leader may have received the repetition: it has read other ranges, or none."""
    session = open_session(world)
    queue = world.draft(encode_queue(QueueCreate("jobs", QueueConfig()), NAMESPACE))
    assert isinstance(queue, Applied)
    for _ in range(3):
        world.draft(encode_queue(Enqueue(queue.number, b"job"), NAMESPACE))
    ref = SessionRef(session, 1, 0)
    lease = Lease(queue.number, 1, 0, b"", ((1, 2),))
    assert isinstance(world.draft(encode_queue(lease, NAMESPACE, ref)), Applied)
    for passed in ((), ((7, 8), (9, 9))):
        repeated = encode_queue(replace(lease, passed=passed), NAMESPACE, ref)
        assert isinstance(world.draft(repeated), Duplicate)
    for other in (replace(lease, count=2), replace(lease, visibility_ns=SECOND)):
        result = world.draft(encode_queue(other, NAMESPACE, ref))
        assert result == Refused(Reason.SEQUENCE_REUSED, 1)

    ref = SessionRef(session, 2, 0)
    claim, deliver = Claim("s", "g", 1, 2, 0, 9), Deliver("s", "g", 1, 2, 0, 5, 6, (5,))
    first = world.draft(encode_stream(claim, NAMESPACE, ref))
    assert isinstance(first, Refused)
    fetches = [encode_stream(each, NAMESPACE) for each in (deliver, replace(deliver, partition=1))]
    assert isinstance(world.draft(encode_stream(deliver, NAMESPACE, ref)), Duplicate)
    assert isinstance(world.group(encode_batch(fetches, (), NAMESPACE, ref))[0], Duplicate)
    stranger = encode_stream(replace(deliver, member=2), NAMESPACE, ref)
    assert world.draft(stranger) == Refused(Reason.SEQUENCE_REUSED, 2)


def test_a_damaged_entry_has_a_fingerprint_too(world: World) -> None:
    """It is refused for what it is, and repeated as it was."""
    session = open_session(world)
    ref = SessionRef(session, 1, 0)
    draft = encode_queue(Lease(7, 1), NAMESPACE, ref)
    cut = Draft(draft.entry_type, draft.payload[:-3])
    assert world.draft(cut) == Refused(Reason.PAYLOAD_TRUNCATED)
    assert isinstance(world.draft(cut), Duplicate)
    assert world.draft(draft) == Refused(Reason.SEQUENCE_REUSED, 1)
    inner = encode_command(Put(b"k", b"v"), NAMESPACE)
    damaged = Draft(inner.entry_type, b"no frame", FLAG_ZSTD | FLAG_CONDITIONAL)
    batch = encode_batch([inner, damaged], (), NAMESPACE, SessionRef(session, 2, 0))
    first = world.group(batch)[0]
    assert first == Refused(Reason.BATCH_REFUSED, 1, Reason.PAYLOAD_CORRUPT)
    assert isinstance(world.group(batch)[0], Duplicate)
