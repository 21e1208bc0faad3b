"""The codec between processes: what goes in comes out, and nothing else gets through."""

from contextlib import suppress
from dataclasses import replace
from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.cluster.raft.messages import Ack, Append, Message, Vote
from onelog.cluster.transport import wire
from onelog.cluster.transport.wire import Encoded, FrameDecoder, Hello, Reason, Refused, WireError
from onelog.ual.entry import GROUP_SIZE_MAX
from onelog.v1 import peer_pb2
from tests.cluster.transport.wire_samples import (
    BY_KIND,
    SHARDS,
    group_of,
    messages,
    numbers,
    shards,
)

SESSION = 7
HELLO = Hello(1, 3, UUID(int=1), UUID(int=2), UUID(int=3), 4, 256, 99, SESSION)


def decoder() -> FrameDecoder:
    return FrameDecoder(SESSION, SHARDS)


def framed(message: peer_pb2.PeerMessage) -> bytes:
    frame = peer_pb2.PeerFrame(session=SESSION, messages=[message])
    return bytes(frame.SerializeToString())


def reason_of(data: bytes) -> Reason:
    with pytest.raises(WireError) as caught:
        decoder().decode(data)
    return caught.value.reason


def test_every_kind_of_message_is_known_to_the_codec() -> None:
    """A kind that is added to the messages but not to the codec would be lost in production."""
    assert set(get_args(Message)) == set(BY_KIND)


@given(st.lists(st.tuples(shards, messages), max_size=5))
def test_messages_come_out_as_they_went_in_and_in_order(sent: list[tuple[int, Message]]) -> None:
    encoded = [wire.encode_message(shard, message) for shard, message in sent]

    assert decoder().decode(wire.encode_frame(SESSION, encoded)) == sent


@given(shards, messages)
def test_the_bytes_are_what_the_generated_code_would_write(shard: int, message: Message) -> None:
    """Appends are framed by hand for speed; any other implementation must read them."""
    encoded = wire.encode_message(shard, message)
    data = b"".join(encoded.parts)

    parsed = peer_pb2.PeerMessage()
    parsed.ParseFromString(data)

    assert len(data) == encoded.size
    assert parsed.SerializeToString() == data


@given(st.binary(max_size=200))
def test_no_bytes_make_the_codec_raise_anything_but_its_own_error(data: bytes) -> None:
    for decode in (decoder().decode, wire.decode_first):
        with suppress(WireError):
            decode(data)


@settings(max_examples=200)
@given(st.lists(st.tuples(shards, messages), min_size=1, max_size=3), st.data())
def test_a_flipped_byte_is_refused_or_gives_valid_messages(
    sent: list[tuple[int, Message]], data: st.DataObject
) -> None:
    encoded = [wire.encode_message(shard, message) for shard, message in sent]
    frame = bytearray(wire.encode_frame(SESSION, encoded))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    try:
        got = decoder().decode(bytes(frame))
    except WireError:
        return
    for shard, message in [] if isinstance(got, Refused) else got:
        assert 0 <= shard < SHARDS
        assert 0 <= message.term <= wire.NUMBER_MAX


def test_an_unknown_shard_or_kind_is_refused() -> None:
    vote = peer_pb2.PeerVote()
    assert reason_of(framed(peer_pb2.PeerMessage(shard=SHARDS, term=1, vote=vote))) == (
        Reason.UNKNOWN_SHARD
    )
    assert reason_of(framed(peer_pb2.PeerMessage(shard=0, term=1))) == Reason.UNKNOWN_KIND
    # Field 15, length-delimited, empty: a kind of a newer version.
    newer = peer_pb2.PeerMessage(shard=0, term=1).SerializeToString() + b"\x7a\x00"
    frame = wire.encode_frame(SESSION, [Encoded((newer,), len(newer))])
    assert reason_of(frame) == Reason.UNKNOWN_KIND


@pytest.mark.parametrize(
    "message",
    [
        peer_pb2.PeerMessage(term=wire.NUMBER_MAX + 1, vote=peer_pb2.PeerVote()),
        peer_pb2.PeerMessage(term=1, ack=peer_pb2.PeerAck(next=0)),
        peer_pb2.PeerMessage(term=1, ack=peer_pb2.PeerAck(next=2**64 - 1)),
        peer_pb2.PeerMessage(term=1, ack=peer_pb2.PeerAck(next=1, success=True, reset=True)),
        peer_pb2.PeerMessage(term=1, ack=peer_pb2.PeerAck(next=1, received=2**64 - 1)),
        peer_pb2.PeerMessage(term=1, ack=peer_pb2.PeerAck(next=1, stamp=2**64 - 1)),
        peer_pb2.PeerMessage(term=1, ack=peer_pb2.PeerAck(next=1, promise_ms=600_001)),
        peer_pb2.PeerMessage(term=1, append=peer_pb2.PeerAppend(echo=2**64 - 1)),
        peer_pb2.PeerMessage(
            state_report=peer_pb2.PeerStateReport(
                index=2**64 - 1, rows=[peer_pb2.PeerStateRow(node_id=bytes(16))]
            )
        ),
        peer_pb2.PeerMessage(term=1, append=peer_pb2.PeerAppend(commit=2**64 - 1)),
        peer_pb2.PeerMessage(term=1, append=peer_pb2.PeerAppend(previous_term=2)),
        peer_pb2.PeerMessage(term=0, append=peer_pb2.PeerAppend()),
        peer_pb2.PeerMessage(term=3, vote_request=peer_pb2.PeerVoteRequest(last_term=4)),
        peer_pb2.PeerMessage(term=0, vote_request=peer_pb2.PeerVoteRequest()),
    ],
    ids=lambda message: str(message).replace("\n", " "),
)
def test_numbers_that_cannot_be_are_refused(message: peer_pb2.PeerMessage) -> None:
    assert reason_of(framed(message)) == Reason.BAD_NUMBER


@pytest.mark.parametrize(
    ("previous_term", "groups"),
    [
        (1, [b"short"]),
        (1, [b""]),
        (3, [group_of(2)]),  # before the proposal that it follows
        (1, [group_of(3), group_of(2)]),
        (1, [group_of(6)]),  # from the future
        (1, [group_of(1)] * (wire.APPEND_GROUPS_MAX + 1)),
    ],
)
def test_groups_that_cannot_be_are_refused(previous_term: int, groups: list[bytes]) -> None:
    """The log asserts that terms never fall: a peer must not be able to trip that."""
    append = peer_pb2.PeerAppend(previous_term=previous_term, groups=groups)
    message = peer_pb2.PeerMessage(term=5, append=append)
    with pytest.raises(WireError) as caught:
        wire.decode_message(message, SHARDS)
    assert caught.value.reason == Reason.BAD_GROUP


ROW = peer_pb2.PeerStateRow(node_id=bytes(16))
HASH = peer_pb2.PeerStateHash(owner=1, hash=1)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [ROW, ROW],
        [peer_pb2.PeerStateRow(node_id=bytes([at] * 16)) for at in range(19)],
        [peer_pb2.PeerStateRow(node_id=bytes(15))],
        [peer_pb2.PeerStateRow(node_id=bytes(16), hashes=[HASH, HASH])],
        [peer_pb2.PeerStateRow(node_id=bytes(16), hashes=[peer_pb2.PeerStateHash(owner=256)])],
    ],
)
def test_state_reports_that_cannot_be_are_refused(rows: list[peer_pb2.PeerStateRow]) -> None:
    report = peer_pb2.PeerStateReport(index=1, rows=rows)
    assert reason_of(framed(peer_pb2.PeerMessage(term=1, state_report=report))) == (
        Reason.BAD_STATE_REPORT
    )


def test_an_oversized_frame_is_refused_before_it_is_parsed() -> None:
    assert reason_of(bytes(wire.FRAME_SIZE_MAX + 1)) == Reason.FRAME_TOO_LARGE


def test_too_many_messages_are_refused() -> None:
    stale = wire.encode_message(0, Vote(1))
    frame = wire.encode_frame(SESSION, [stale] * (wire.FRAME_MESSAGES_MAX + 1))
    assert reason_of(frame) == Reason.TOO_MANY_MESSAGES


def test_a_frame_of_another_session_is_dropped() -> None:
    taken = decoder()
    frame = wire.encode_frame(SESSION - 1, [wire.encode_message(0, Vote(1))])

    assert taken.decode(frame) == []
    assert taken.dropped_frames == 1


# Fragments


def pieces_of(data: bytes, size: int, number: int = 1) -> list[bytes]:
    view = memoryview(data)
    return [
        wire.encode_frame(
            SESSION, [], wire.encode_fragment(number, at, len(data), view[at : at + size])
        )
        for at in range(0, len(data), size)
    ]


@given(shards, messages, st.integers(1, 50), messages)
def test_a_message_in_pieces_is_put_together_and_others_pass_in_between(
    shard: int, large: Message, size: int, urgent: Message
) -> None:
    frames = pieces_of(b"".join(wire.encode_message(shard, large).parts), size)
    between = wire.encode_frame(SESSION, [wire.encode_message(1, urgent)])
    taken = decoder()
    got: list[tuple[int, Message]] = []
    for frame in frames:
        for each in (between, frame):
            decoded = taken.decode(each)
            assert not isinstance(decoded, Refused)
            got += decoded

    assert got == [(1, urgent)] * len(frames) + [(shard, large)]


def test_an_abandoned_message_is_forgotten_when_the_next_begins() -> None:
    message = Append(5, 1, 2, 1, (group_of(2, 64),), 1)
    data = b"".join(wire.encode_message(0, message).parts)
    taken = decoder()
    for frame in [*pieces_of(data, 30)[:-1], *pieces_of(data, 20, number=2)[:-1]]:
        assert taken.decode(frame) == []

    assert taken.decode(pieces_of(data, 20, number=2)[-1]) == [(0, message)]


@pytest.mark.parametrize(
    ("number", "offset", "total", "size"),
    [
        (1, 10, 100, 10),  # does not begin at the beginning
        (2, 0, 100, 101),  # more than announced
        (2, 0, 100, 0),  # nothing
        (0, 0, 100, 10),  # numbers begin at 1
    ],
)
def test_a_fragment_that_does_not_fit_is_refused(
    number: int, offset: int, total: int, size: int
) -> None:
    piece = wire.encode_fragment(number, offset, total, memoryview(bytes(size)))
    assert reason_of(wire.encode_frame(SESSION, [], piece)) == Reason.BAD_FRAGMENT


@pytest.mark.parametrize("order", [(0, 2), (0, 0), (1,), (0, 1, 1)])
def test_fragments_out_of_order_are_refused(order: tuple[int, ...]) -> None:
    """A stream cannot do this; whoever does is not to be believed."""
    message = Append(5, 1, 2, 1, (group_of(2, 60), group_of(2, 60)), 1)
    frames = pieces_of(b"".join(wire.encode_message(0, message).parts), 60)
    assert len(frames) > 2
    taken = decoder()
    for at in order[:-1]:
        assert taken.decode(frames[at]) == []
    with pytest.raises(WireError, match="BAD_FRAGMENT"):
        taken.decode(frames[order[-1]])


def test_a_repeated_last_fragment_is_refused() -> None:
    data = b"".join(wire.encode_message(0, Vote(1)).parts)
    taken = decoder()
    (frame,) = pieces_of(data, 100)
    assert taken.decode(frame) == [(0, Vote(1))]
    with pytest.raises(WireError):
        taken.decode(frame)


def test_an_announced_size_above_the_limit_is_refused_at_once() -> None:
    piece = wire.encode_fragment(1, 0, wire.MESSAGE_SIZE_MAX + 1, memoryview(b"x"))
    assert reason_of(wire.encode_frame(SESSION, [], piece)) == Reason.MESSAGE_TOO_LARGE


def test_the_largest_group_fits_a_message() -> None:
    message = Append(5, 1, 2, 1, (group_of(2), group_of(2, GROUP_SIZE_MAX - 64)), 1)
    encoded = wire.encode_message(0, message)
    assert encoded.size <= wire.MESSAGE_SIZE_MAX


def test_garbage_in_pieces_is_refused() -> None:
    taken = decoder()
    first, second = pieces_of(b"\xff" * 40, 20)
    assert taken.decode(first) == []
    with pytest.raises(WireError, match="UNREADABLE"):
        taken.decode(second)


# The handshake's frames


def test_a_hello_comes_out_as_it_went_in() -> None:
    assert wire.decode_first(wire.encode_hello(HELLO)) == HELLO


@given(numbers)
def test_a_hello_in_the_middle_of_a_stream_is_refused(session: int) -> None:
    assert reason_of(wire.encode_hello(HELLO)) == Reason.UNEXPECTED_HELLO


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cluster_id": b"x"}, Reason.BAD_ID),
        ({"node_id": bytes(17)}, Reason.BAD_ID),
        ({"target_id": b""}, Reason.BAD_ID),
        ({"protocol_min": 0}, Reason.BAD_NUMBER),
        ({"protocol_min": 4}, Reason.BAD_NUMBER),
        ({"shards": 0}, Reason.BAD_NUMBER),
        ({"shards": 2**32 - 1}, Reason.BAD_NUMBER),
        ({"partitions": 0}, Reason.BAD_NUMBER),
        ({"session": 0}, Reason.BAD_NUMBER),
    ],
)
def test_a_hello_that_cannot_be_is_refused(change: dict[str, object], reason: Reason) -> None:
    frame = peer_pb2.PeerFrame()
    frame.ParseFromString(wire.encode_hello(HELLO))
    for field, value in change.items():
        setattr(frame.hello, field, value)
    with pytest.raises(WireError) as caught:
        wire.decode_first(frame.SerializeToString())
    assert caught.value.reason == reason


def test_messages_before_the_hello_are_refused() -> None:
    with pytest.raises(WireError, match="HELLO_EXPECTED"):
        wire.decode_first(wire.encode_frame(SESSION, [wire.encode_message(0, Vote(1))]))


def test_a_refusal_is_reported_without_what_could_forge_a_log_line() -> None:
    data = wire.encode_refusal(SESSION, "CLUSTER_MISMATCH", "a\nb\x1b[31m" + "x" * 10_000)
    got = wire.decode_first(data)

    assert isinstance(got, Refused)
    assert got.reason == "CLUSTER_MISMATCH"
    assert got.detail.startswith("a?b?[31m")
    assert len(got.detail) <= wire.DETAIL_SIZE_MAX
    assert decoder().decode(data) == got


def test_an_ack_is_small() -> None:
    """Each append is answered at once and again after the sync."""
    ack = Ack(2, 9, 1_000_000, success=True, reset=False, received=1_000_010)
    assert wire.encode_message(3, replace(ack, stamp=1 << 54)).size < 40
