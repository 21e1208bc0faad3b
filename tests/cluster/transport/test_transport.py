"""Real streams on loopback: order, sessions, refusals that both sides report, reconnection."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any
from uuid import UUID

import pytest

from onelog.cluster.raft.messages import Ack, Append, Chunk, Message, Vote
from onelog.cluster.transport import wire
from onelog.cluster.transport.connection import Connection, Listener, Purpose, connect
from onelog.cluster.transport.link import LinkEnded
from onelog.cluster.transport.wire import Reason, WireError
from onelog.v1 import peer_pb2
from tests.cluster.transport.pairs import (
    LARGE,
    SMALL,
    WAIT_S,
    connected,
    endpoint,
    heard,
    identity,
    introduce,
    until,
)
from tests.cluster.transport.wire_samples import group_of


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 3 * WAIT_S))


def append(previous: int, size: int) -> Append:
    return Append(5, 1, previous, 1, (group_of(2, size),), 1)


def test_messages_of_all_shards_arrive_in_order_both_ways() -> None:
    async def test() -> None:
        async with endpoint(identity(SMALL)) as one, endpoint(identity(LARGE)) as two:
            await connected(one, two)
            sent: list[tuple[int, Message]] = [
                (number % 4, append(number, 500_000 if number % 10 == 0 else 20))
                for number in range(1, 60)
            ]
            for shard, message in sent:
                one.transport.send(LARGE, shard, message)
                two.transport.send(SMALL, shard, message)
            await until(lambda: len(one.got) == len(two.got) == len(sent))

            assert two.got == [(SMALL, *each) for each in sent]
            assert one.got == [(LARGE, *each) for each in sent]
            traffic = one.transport.status()[LARGE].traffic
            assert traffic.received_messages == len(sent)
            await until(lambda: traffic.sent_messages == len(sent))
            assert traffic.sent_frames < len(sent)  # small ones travel together

    run(test())


def chunk(size: int) -> Chunk:
    return Chunk(3, True, 1, 9, 0, 5, 9, size, 1, bytes(size))


def test_chunks_arrive_both_ways_on_a_stream_of_their_own() -> None:
    async def test() -> None:
        async with endpoint(identity(SMALL)) as one, endpoint(identity(LARGE)) as two:
            await connected(one, two)
            peers = (one.transport._peers[LARGE], two.transport._peers[SMALL])
            await until(lambda: all(peer.ship.link for peer in peers))
            one.transport.send(LARGE, 1, chunk(200_000))
            two.transport.send(SMALL, 2, chunk(100))
            await until(lambda: one.got and two.got)
            assert (one.got, two.got) == ([(LARGE, 2, chunk(100))], [(SMALL, 1, chunk(200_000))])

            for peer in peers:
                assert peer.ship.link is not None
                peer.ship.link.end(LinkEnded("by a test"))
            one.transport.send(LARGE, 1, chunk(100))
            one.transport.send(LARGE, 1, Vote(1))
            await until(lambda: len(two.got) == 2)
            status = one.transport.status()[LARGE]
            assert (status.is_connected, status.sessions) == (True, 1)
            assert two.got[1] == (SMALL, 1, Vote(1)), "votes need only the first stream"
            await until(lambda: all(peer.ship.sessions == 2 for peer in peers))
            assert status.last_error == ""

    run(test())


def test_a_message_to_a_peer_that_is_away_is_dropped_and_counted() -> None:
    async def test() -> None:
        async with endpoint(identity(SMALL)) as one:
            one.transport.set_peers({LARGE: "localhost:1"})
            one.transport.send(LARGE, 0, Vote(1))
            one.transport.send(UUID(int=77), 0, Vote(1))
            status = one.transport.status()[LARGE]
            await until(lambda: status.last_error)

            assert status.traffic.dropped_unconnected == 1
            assert "cannot connect to localhost:1" in status.last_error
            assert status.last_reason == ""

    run(test())


@pytest.mark.parametrize("restarted", [SMALL, LARGE])
def test_a_pair_finds_together_again_after_a_restart(restarted: UUID) -> None:
    async def test() -> None:
        stays = LARGE if restarted == SMALL else SMALL
        async with endpoint(identity(stays)) as one:
            async with endpoint(identity(restarted)) as two:
                await connected(one, two)
            status = one.transport.status()[restarted]
            await until(lambda: not status.is_connected)
            async with endpoint(identity(restarted), address=two.address) as again:
                await connected(one, again)
                one.transport.send(restarted, 1, Vote(3))
                again.transport.send(stays, 1, Vote(4))
                await until(lambda: one.got and again.got)

                assert status.sessions == 2
                assert again.got == [(stays, 1, Vote(3))]
                assert one.got == [(restarted, 1, Vote(4))]

    run(test())


def test_a_peer_that_was_removed_and_is_back_is_not_taken_for_an_old_stream() -> None:
    """The other side was never told of it, and remembers the last session."""

    async def test() -> None:
        async with endpoint(identity(SMALL)) as one, endpoint(identity(LARGE)) as two:
            await connected(one, two)
            address = one.transport.status()[LARGE].address
            one.transport.set_peers({})
            await until(lambda: not two.transport.status()[SMALL].is_connected)
            one.transport.set_peers({LARGE: address})
            status = one.transport.status()[LARGE]
            await until(lambda: status.is_connected)

            assert (status.attempts, status.last_reason) == (1, "")

    run(test())


REFUSED = [
    ({"cluster_id": UUID(int=101)}, Reason.CLUSTER_MISMATCH),
    ({"shards": 8}, Reason.TOPOLOGY_MISMATCH),
    ({"partitions": 512}, Reason.TOPOLOGY_MISMATCH),
    ({"protocol_min": 2, "protocol_max": 3}, Reason.PROTOCOL_TOO_NEW),
]


@pytest.mark.parametrize("odd", [SMALL, LARGE], ids=["the caller", "the called"])
@pytest.mark.parametrize(("change", "reason"), REFUSED, ids=lambda value: str(value))
def test_a_peer_that_does_not_fit_is_refused_and_both_sides_say_why(
    change: dict[str, Any], reason: Reason, odd: UUID
) -> None:
    async def test() -> None:
        other = LARGE if odd == SMALL else SMALL
        async with endpoint(identity(odd, **change)) as one, endpoint(identity(other)) as two:
            introduce(one, two)
            ends = one.transport.status()[other], two.transport.status()[odd]
            await until(lambda: all(end.last_reason for end in ends))

            # The called side always judges first. Seen from there, too new here is too old there.
            expected = {str(reason)}
            if reason == Reason.PROTOCOL_TOO_NEW and odd == LARGE:
                expected = {Reason.PROTOCOL_TOO_OLD}
            assert {end.last_reason for end in ends} == expected
            assert not any(end.is_connected or end.sessions for end in ends)
            assert one.got == two.got == []

    run(test())


def test_a_called_node_that_judges_wrongly_is_refused_by_the_caller() -> None:
    """The caller does not rely on the other side's check."""

    async def test() -> None:
        async with endpoint(identity(SMALL)) as one:
            frames: list[bytes] = []
            answers = wire.encode_hello(identity(LARGE, shards=8).hello(SMALL, 1))

            async def answer(purpose: Purpose, connection: Connection) -> None:
                if purpose is Purpose.SHIP:
                    return
                while (frame := await connection.read()) is not None:
                    frames.append(frame)
                    if len(frames) == 1:
                        await connection.write(answers)

            listener = Listener("127.0.0.1:0", None, answer)
            await listener.start()
            port = listener.port
            one.transport.set_peers({LARGE: f"localhost:{port}"})
            status = one.transport.status()[LARGE]
            await until(lambda: status.last_reason and len(frames) >= 2)

            assert status.last_reason == Reason.TOPOLOGY_MISMATCH
            refusal = wire.decode_first(frames[1])
            assert isinstance(refusal, wire.Refused)
            assert refusal.reason == Reason.TOPOLOGY_MISMATCH
            assert status.sessions == 0
            await listener.stop()

    run(test())


# A caller that is not a transport of ours


def hello(node_id: UUID = SMALL, session: int = 1, **change: Any) -> bytes:
    return wire.encode_hello(identity(node_id, **change).hello(LARGE, session))


def framed(message: peer_pb2.PeerMessage, session: int = 1) -> bytes:
    frame = peer_pb2.PeerFrame(session=session, messages=[message])
    return bytes(frame.SerializeToString())


def test_what_is_no_chunk_is_refused_on_the_stream_of_the_chunks() -> None:
    async def test() -> None:
        async with endpoint(identity(LARGE)) as two:
            two.transport.set_peers({SMALL: "localhost:1"})
            vote = peer_pb2.PeerMessage(shard=1, term=9, vote=peer_pb2.PeerVote())
            refused = await heard(two.address, hello(), framed(vote), purpose=Purpose.SHIP)
            assert refused.reason == Reason.UNKNOWN_KIND
            stranger = await heard(two.address, hello(UUID(int=55)), purpose=Purpose.SHIP)
            assert stranger.reason == Reason.UNKNOWN_NODE
            assert two.got == []
            assert two.transport.status()[SMALL].sessions == 0

    run(test())


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"\xff garbage"], Reason.UNREADABLE),
        ([wire.encode_frame(1, [])], Reason.HELLO_EXPECTED),
        ([hello(UUID(int=55))], Reason.UNKNOWN_NODE),
        ([hello(LARGE)], Reason.UNKNOWN_NODE),
        ([hello(UUID(int=9))], Reason.WRONG_DIRECTION),
        ([wire.encode_hello(identity(SMALL).hello(SMALL, 1))], Reason.WRONG_TARGET),
        ([hello(cluster_id=UUID(int=5))], Reason.CLUSTER_MISMATCH),
        ([hello(), hello()], Reason.UNEXPECTED_HELLO),
        ([hello(), b"\xff garbage"], Reason.UNREADABLE),
        ([hello(), bytes(wire.FRAME_SIZE_MAX + 1)], Reason.FRAME_TOO_LARGE),
        (
            [hello(), framed(peer_pb2.PeerMessage(shard=4, term=9, vote=peer_pb2.PeerVote()))],
            Reason.UNKNOWN_SHARD,
        ),
        ([hello(), framed(peer_pb2.PeerMessage(term=9))], Reason.UNKNOWN_KIND),
        (
            [hello(), framed(peer_pb2.PeerMessage(term=2**63, vote=peer_pb2.PeerVote()))],
            Reason.BAD_NUMBER,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_caller_is_told_why_and_nothing_it_sent_is_delivered(
    frames: list[bytes], reason: Reason
) -> None:
    async def test() -> None:
        async with endpoint(identity(LARGE)) as target:
            target.transport.set_peers({SMALL: "localhost:1", UUID(int=9): "localhost:1"})
            refused = await heard(target.address, *frames)

            assert refused.reason == reason
            assert target.got == []
            status = target.transport.status()[SMALL]
            if len(frames) == 1:
                assert target.transport.refusals[-1].reason == reason
                assert target.transport.refused_callers == 1
            else:
                await until(lambda: status.last_reason == reason)

    run(test())


def test_much_more_than_a_frame_ends_the_stream_with_a_reason_and_nothing_else() -> None:
    async def test() -> None:
        async with endpoint(identity(LARGE)) as target:
            target.transport.set_peers({SMALL: "localhost:1"})
            refused = await heard(target.address, hello(), bytes(8 << 20))
            assert refused.reason == Reason.FRAME_TOO_LARGE
            status = target.transport.status()[SMALL]
            await until(lambda: not status.is_connected)

            # It still answers.
            refused = await heard(target.address, hello(session=2), b"\xff")
            assert refused.reason == Reason.UNREADABLE

    run(test())


def test_a_caller_that_says_nothing_is_let_go() -> None:
    async def test() -> None:
        async with endpoint(identity(LARGE)) as target:
            refused = await heard(target.address)
            assert refused.reason == Reason.HANDSHAKE_TIMEOUT

    run(test())


def test_an_older_session_is_refused_and_a_newer_one_takes_the_streams_place() -> None:
    """What a stream still brings after its successor has begun must not be believed."""

    async def test() -> None:
        async with endpoint(identity(LARGE)) as target:
            target.transport.set_peers({SMALL: "localhost:1"})
            vote = wire.encode_message(0, Vote(7))
            streams = []
            for session in (4, 5):
                stream = await connect(target.address, Purpose.EXCHANGE)
                await stream.write(hello(session=session))
                await stream.read()
                streams.append(stream)
            status = target.transport.status()[SMALL]
            await until(lambda: status.session == 5)
            with suppress(LinkEnded):
                await streams[0].write(wire.encode_frame(4, [vote]))
            await streams[1].write(wire.encode_frame(4, [vote]))
            await streams[1].write(wire.encode_frame(5, [wire.encode_message(0, Vote(8))]))
            await until(lambda: target.got)

            assert target.got == [(SMALL, 0, Vote(8))]
            refused = await heard(target.address, hello(session=4))
            assert refused.reason == Reason.STALE_SESSION
            assert status.is_connected
            for stream in streams:
                await stream.close()
            await until(lambda: not status.is_connected)
            assert status.traffic.dropped_stale == 1

    run(test())


def test_a_message_found_bad_after_delivery_ends_the_stream_with_a_reason_on_both_sides() -> None:
    async def test() -> None:
        async with endpoint(identity(SMALL)) as one, endpoint(identity(LARGE)) as two:
            await connected(one, two)
            two.transport.refuse(SMALL, WireError(Reason.BAD_GROUP, "checksum"))
            ends = one.transport.status()[LARGE], two.transport.status()[SMALL]
            await until(lambda: all(end.last_reason == Reason.BAD_GROUP for end in ends))
            await until(lambda: all(end.sessions == 2 and end.is_connected for end in ends))

    run(test())


def test_a_peer_that_is_removed_loses_its_stream() -> None:
    async def test() -> None:
        async with endpoint(identity(SMALL)) as one, endpoint(identity(LARGE)) as two:
            await connected(one, two)
            one.transport.set_peers({})
            status = two.transport.status()[SMALL]
            await until(lambda: status.last_reason == Reason.UNKNOWN_NODE)

            assert one.transport.status() == {}

    run(test())


def test_heartbeats_pass_while_large_appends_are_on_their_way() -> None:
    async def test() -> None:
        async with endpoint(identity(SMALL)) as one, endpoint(identity(LARGE)) as two:
            await connected(one, two)
            for number in range(3):
                one.transport.send(LARGE, 0, append(number, 8 << 20))
            one.transport.send(LARGE, 1, Ack(5, 1, 1, success=True, reset=False))
            await until(lambda: len(two.got) == 4)

            assert isinstance(two.got[0][2], Ack)

    run(test())


def test_three_nodes_form_three_pairs() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(endpoint(identity(UUID(int=number))))
                for number in (1, 2, 3)
            ]
            await connected(*nodes)
            for each in nodes:
                for other in nodes:
                    if other is not each:
                        each.transport.send(other.node_id, 0, Vote(each.node_id.int))
            await until(lambda: all(len(each.got) == 2 for each in nodes))

    run(test())
