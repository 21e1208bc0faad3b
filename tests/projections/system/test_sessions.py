"""Sessions: every request takes effect once, or says that nobody can tell any more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.codec import SessionRef
from onelog.projections.kv.commands import Get, Increment, Put, Transaction, encode_command
from onelog.projections.limits import (
    SESSION_RESULTS_SIZE_MAX,
    SESSION_TTL_NS_MAX,
    SESSION_TTL_NS_MIN,
)
from onelog.projections.namespaces import Limits
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Duplicate, Refused
from onelog.projections.system.commands import (
    NamespaceCreate,
    SessionClose,
    SessionKeepalive,
    SessionOpen,
    encode_batch,
)
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
