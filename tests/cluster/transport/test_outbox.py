"""What leaves first, what waits, what is dropped."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.cluster.raft.messages import Ack, Append, Message, Vote
from onelog.cluster.transport.outbox import Outbox, OutboxLimits, Stuck
from onelog.cluster.transport.wire import FRAME_SIZE_MAX, MESSAGE_SIZE_MAX, FrameDecoder, Refused
from tests.cluster.transport.wire_samples import group_of

SESSION = 3
SHARDS = 4
TERM = 5


def append(previous: int, size: int, *, term: int = TERM, round_: int = 1) -> Append:
    return Append(term, round_, previous, 1, (group_of(2, size),), previous)


def heartbeat(previous: int, *, term: int = TERM, round_: int = 1) -> Append:
    return Append(term, round_, previous, 1, (), previous)


def frames(outbox: Outbox) -> list[bytes]:
    taken = []
    while (frame := outbox.next_frame(SESSION)) is not None:
        assert len(frame) <= FRAME_SIZE_MAX
        taken.append(frame)
    return taken


def received(data: list[bytes]) -> list[tuple[int, Message]]:
    decoder = FrameDecoder(SESSION, SHARDS)
    got: list[tuple[int, Message]] = []
    for frame in data:
        decoded = decoder.decode(frame)
        assert not isinstance(decoded, Refused)
        got += decoded
    return got


sizes = st.one_of(st.integers(0, 60), st.integers(100_000, 700_000))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, SHARDS - 1), sizes, st.booleans()), max_size=12))
def test_everything_arrives_once_and_appends_in_order(
    pushed: list[tuple[int, int, bool]],
) -> None:
    outbox = Outbox()
    acks, appends = [], []
    for number, (shard, size, is_ack) in enumerate(pushed, start=1):
        message: Message
        if is_ack:
            message = Ack(TERM, number, number, success=True, reset=False)
            acks.append((shard, message))
        else:
            message = append(number, size)
            appends.append((shard, message))
        outbox.push(shard, message)

    got = received(frames(outbox))

    assert [each for each in got if isinstance(each[1], Ack)] == acks
    assert [each for each in got if isinstance(each[1], Append)] == appends
    assert len(outbox) == 0
    assert outbox._bulk_bytes == 0
    assert outbox.sent_messages == len(pushed)


def test_a_vote_and_a_heartbeat_leave_between_the_pieces_of_a_large_append() -> None:
    """An election must not come because 8 MiB were in front of a heartbeat."""
    outbox = Outbox()
    outbox.push(0, append(7, 8 << 20))
    first = outbox.next_frame(SESSION)
    outbox.push(1, heartbeat(4))
    outbox.push(2, Vote(TERM))
    second = outbox.next_frame(SESSION)
    assert first is not None
    assert second is not None

    assert received([first, second]) == [(1, heartbeat(4)), (2, Vote(TERM))]
    assert received([first, second, *frames(outbox)])[-1] == (0, append(7, 8 << 20))


def test_a_heartbeat_that_overtakes_takes_the_place_of_the_first_waiting_append() -> None:
    """Or the peer would miss the proposals in between and have everything sent again."""
    outbox = Outbox()
    outbox.push(0, append(7, 400_000))
    outbox.push(0, append(8, 100))
    outbox.push(0, heartbeat(9, round_=6))
    outbox.push(1, heartbeat(3, round_=6))

    got = received(frames(outbox))

    expected = Append(TERM, 6, 7, 1, (), 9)
    assert got == [(0, expected), (1, heartbeat(3, round_=6)), *got[2:]]
    assert [message for _, message in got[2:]] == [append(7, 400_000), append(8, 100)]


def test_a_heartbeat_takes_its_place_also_while_the_append_is_in_pieces() -> None:
    outbox = Outbox()
    outbox.push(0, append(7, 400_000))
    first = outbox.next_frame(SESSION)
    outbox.push(0, heartbeat(8, round_=2))
    assert first is not None

    got = received([first, *frames(outbox)])

    assert got == [(0, Append(TERM, 2, 7, 1, (), 8)), (0, append(7, 400_000))]


def test_of_the_heartbeats_of_a_shard_the_newest_leaves() -> None:
    outbox = Outbox()
    for round_ in range(1, 100):
        outbox.push(0, heartbeat(9, round_=round_))

    assert received(frames(outbox)) == [(0, heartbeat(9, round_=99))]


def test_appends_of_a_leadership_that_is_over_are_dropped() -> None:
    outbox = Outbox()
    outbox.push(0, append(7, 100))
    outbox.push(1, append(7, 100))
    outbox.push(0, heartbeat(9, term=TERM + 1))

    assert received(frames(outbox)) == [(0, heartbeat(9, term=TERM + 1)), (1, append(7, 100))]
    assert outbox.dropped_messages == 1


def test_when_too_many_bytes_wait_the_oldest_shards_appends_go_and_nothing_else() -> None:
    outbox = Outbox(OutboxLimits(bulk_bytes_max=MESSAGE_SIZE_MAX))
    third = MESSAGE_SIZE_MAX // 3
    outbox.push(0, append(1, third))
    outbox.next_frame(SESSION)  # its first piece has left
    outbox.push(1, append(2, third))
    outbox.push(0, append(3, 100))
    outbox.push(0, heartbeat(4))
    outbox.push(0, Vote(TERM))
    outbox.push(1, append(4, third))

    got = received(frames(outbox))

    assert outbox.dropped_messages == 2
    assert got == [
        (0, heartbeat(4)), (0, Vote(TERM)), (1, append(2, third)), (1, append(4, third)),
    ]  # fmt: skip


def test_when_too_many_messages_wait_appends_are_dropped() -> None:
    outbox = Outbox(OutboxLimits(bulk_messages_max=10))
    for number in range(1, 12):
        outbox.push(number % 2, append(number, 10))

    assert [message.term for _, message in received(frames(outbox))] == [TERM] * 6
    assert outbox.dropped_messages == 5


def test_a_peer_that_takes_no_acks_is_stuck() -> None:
    outbox = Outbox(OutboxLimits(control_messages_max=3))
    for _ in range(3):
        outbox.push(0, Vote(TERM))
    with pytest.raises(Stuck):
        outbox.push(0, Vote(TERM))


def test_limits_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="fit"):
        OutboxLimits(bulk_bytes_max=MESSAGE_SIZE_MAX - 1)
    with pytest.raises(ValueError, match="hold"):
        OutboxLimits(control_messages_max=0)


def test_acks_do_not_keep_appends_from_leaving() -> None:
    outbox = Outbox()
    outbox.push(0, append(1, 100))
    for number in range(1, 16_000):
        outbox.push(0, Ack(TERM, number, number, success=True, reset=False))
    frame = outbox.next_frame(SESSION)
    assert frame is not None

    assert any(isinstance(message, Append) for _, message in received([frame]))


def early(number: int, *, term: int = TERM) -> Ack:
    """More is written than synced."""
    return Ack(term, number, number, success=True, reset=False, received=number)


def synced(number: int) -> Ack:
    return Ack(TERM, number, number + 1, success=True, reset=False, received=number)


def test_an_early_ack_waits_for_company_or_for_its_time() -> None:
    outbox = Outbox()
    outbox.push(0, early(4))
    outbox.push(1, early(7))
    assert outbox.has_early
    assert outbox.next_frame(SESSION) is None
    outbox.push(2, Vote(TERM))
    assert received(frames(outbox)) == [(0, early(4)), (1, early(7)), (2, Vote(TERM))]
    assert not outbox.has_early

    outbox.push(0, early(5))
    frame = outbox.next_frame(SESSION, with_early=True)
    assert frame is not None
    assert received([frame]) == [(0, early(5))]


def test_an_ack_takes_the_place_of_the_early_one_of_its_shard() -> None:
    outbox = Outbox()
    outbox.push(0, early(4))
    outbox.push(0, early(5))
    outbox.push(1, early(9))
    outbox.push(0, synced(5))
    assert received(frames(outbox)) == [(1, early(9)), (0, synced(5))]


def test_a_refused_append_is_answered_at_once() -> None:
    outbox = Outbox()
    reset = Ack(TERM, 4, 2, success=False, reset=True, received=9)
    outbox.push(0, early(4))
    outbox.push(0, reset)
    assert received(frames(outbox)) == [(0, early(4)), (0, reset)]
