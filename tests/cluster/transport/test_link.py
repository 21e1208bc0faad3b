"""One link over a stream that a test controls."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from onelog.cluster.raft.messages import Ack, Message, Vote
from onelog.cluster.transport import wire
from onelog.cluster.transport.link import Link, LinkEnded, PeerRefused, Traffic
from onelog.cluster.transport.outbox import OutboxLimits
from onelog.cluster.transport.wire import Reason, Refused, WireError

SESSION = 5
VOTE = wire.encode_frame(SESSION, [wire.encode_message(1, Vote(7))])


class Stream:
    """Frames in, frames out; writing can be held up."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.written: list[bytes] = []
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def read(self) -> bytes | None:
        return await self.incoming.get()

    async def write(self, frame: bytes) -> None:
        await self.may_write.wait()
        self.written.append(frame)


class Case:
    def __init__(self, limits: OutboxLimits | None = None) -> None:
        self.got: list[tuple[int, Message]] = []
        self.errors: list[Exception] = []
        self.traffic = Traffic()
        self.stream = Stream()
        self.link = Link(
            SESSION, 2, self.got.extend, self.traffic, limits or OutboxLimits(), self.errors.append
        )
        self.running = asyncio.ensure_future(self.link.run(self.stream))

    async def steps(self, count: int = 10) -> None:
        """Run everything that is ready."""
        for _ in range(count):
            await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 10))


def test_nothing_is_delivered_after_the_link_has_ended() -> None:
    """What an older session still brings may contradict what a newer one has brought."""

    async def test() -> None:
        case = Case()
        case.stream.incoming.put_nowait(VOTE)
        await case.steps()
        assert case.got == [(1, Vote(7))]
        case.link.end(WireError(Reason.BAD_GROUP, "damaged"))
        case.stream.incoming.put_nowait(VOTE)
        await case.steps()
        case.stream.incoming.put_nowait(None)
        with pytest.raises(WireError):
            await case.running

        assert case.got == [(1, Vote(7))]
        assert [type(error) for error in case.errors] == [WireError]
        refused = wire.decode_first(case.stream.written[-1])
        assert refused == Refused("BAD_GROUP", "damaged")

    run(test())


def test_the_first_reason_is_the_one_that_is_reported() -> None:
    async def test() -> None:
        case = Case()
        case.link.end(LinkEnded("first"))
        case.link.end(LinkEnded("second"))
        with pytest.raises(LinkEnded, match="first"):
            await case.running
        assert [str(error) for error in case.errors] == ["first"]

    run(test())


def test_a_refusal_by_the_other_side_ends_the_link() -> None:
    async def test() -> None:
        case = Case()
        case.stream.incoming.put_nowait(wire.encode_refusal(SESSION, "UNKNOWN_SHARD", "shard 9"))
        with pytest.raises(PeerRefused, match="shard 9"):
            await case.running
        assert case.stream.written == []  # a refusal is not answered with one

    run(test())


def test_a_peer_that_takes_nothing_loses_its_stream() -> None:
    async def test() -> None:
        case = Case(OutboxLimits(control_messages_max=10))
        case.stream.may_write.clear()
        for number in range(40):
            case.link.send(0, Vote(number))
            await case.steps(1)
        with pytest.raises(LinkEnded, match="waiting"):
            await case.running

    run(test())


def test_messages_of_one_step_leave_in_one_frame() -> None:
    async def test() -> None:
        case = Case()
        await case.steps()
        for number in range(1, 101):
            case.link.send(1, Vote(number))
        await case.steps()
        assert len(case.stream.written) == 1
        case.stream.incoming.put_nowait(None)
        with pytest.raises(LinkEnded, match="the stream ended"):
            await case.running
        assert case.traffic.sent_messages == 100

    run(test())


def test_a_cancelled_link_says_that_it_was_cut() -> None:
    async def test() -> None:
        case = Case()
        await case.steps()
        case.running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await case.running
        assert [str(error) for error in case.errors] == ["the stream was cut"]

    run(test())


def test_an_early_ack_without_company_leaves_after_a_moment() -> None:
    """Liveness and reads wait for it; the disk may take seconds."""

    async def test() -> None:
        case = Case()
        early = Ack(3, 1, 4, success=True, reset=False, received=4)
        case.link.send(1, early)
        await case.steps()
        assert not case.stream.written
        while not case.stream.written:  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.001)
        assert wire.FrameDecoder(SESSION, 2).decode(case.stream.written[0]) == [(1, early)]

        late = Ack(3, 1, 5, success=True, reset=False, received=4)
        case.link.send(1, early)
        case.link.send(1, late)
        await case.steps()
        assert wire.FrameDecoder(SESSION, 2).decode(case.stream.written[1]) == [(1, late)]
        case.stream.incoming.put_nowait(None)
        with pytest.raises(LinkEnded):
            await case.running
        assert len(case.stream.written) == 2

    run(test())
