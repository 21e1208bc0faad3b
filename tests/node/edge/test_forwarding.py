"""What a client is answered whose call had to be passed on, and did not come through."""

import asyncio
from collections.abc import Callable

import pytest

from onelog.errors import ConditionFailed, OnelogError, OutcomeUnknown, Unavailable
from onelog.node.edge.calls import FORWARDED_KEY, Forwarder
from onelog.node.edge.exchange import CLIENT_KEY
from onelog.node.public_errors import to_rpc_status
from onelog.wire.grpc import ErrorCode, Event, MessageReceived, Status
from tests.onelog.client.echoing import UNARY, Wired, wired
from tests.system.ports import free_addresses

CLIENT = "127.0.0.1:1234"
REFUSAL = ConditionFailed("the version is 7", metadata={"version": "7"})


def break_off(at: Wired, _event: Event) -> None:
    at.transport.abort()


def refuse(at: Wired, event: Event) -> None:
    at.wire.cancel(event.call, ErrorCode.REFUSED_STREAM)  # type: ignore[union-attr]


def reset(at: Wired, event: Event) -> None:
    at.wire.cancel(event.call, ErrorCode.ENHANCE_YOUR_CALM)  # type: ignore[union-attr]


def answer_no(at: Wired, event: Event) -> None:
    if type(event) is MessageReceived:
        details = to_rpc_status(REFUSAL).SerializeToString()
        at.wire.finish(event.call, Status(REFUSAL.code, REFUSAL.message, details))


async def failures_of(endpoint: str) -> list[OnelogError]:
    """Return what becomes of a call and of a stream, each on a connection of its own."""
    one, two = Forwarder(None, 1 << 20), Forwarder(None, 1 << 20)
    with pytest.raises(OnelogError) as unary:
        await one.unary(endpoint, UNARY, b"", 20.0, CLIENT)
    with pytest.raises(OnelogError) as stream:
        await anext(aiter(two.stream(endpoint, UNARY, b"", CLIENT)))
    await one.close()
    await two.close()
    return [unary.value, stream.value]


@pytest.mark.parametrize(
    ("happens", "kind", "reason"),
    [
        (break_off, OutcomeUnknown, "OUTCOME_UNKNOWN"),
        (reset, OutcomeUnknown, "OUTCOME_UNKNOWN"),
        (refuse, Unavailable, "LEADER_UNREACHABLE"),
        (answer_no, ConditionFailed, "CONDITION_FAILED"),
        (None, Unavailable, "LEADER_UNREACHABLE"),
    ],
)
def test_nothing_was_done_is_said_only_if_it_is_certain(
    happens: Callable[[Wired, Event], None] | None, kind: type[OnelogError], reason: str
) -> None:
    """A client repeats what was not done, also where it has no session."""

    async def test() -> None:
        if happens is None:
            (endpoint,) = free_addresses(1)
            failures = await failures_of(endpoint)
        else:
            async with wired() as (endpoint, server):
                server.handle = happens
                failures = await failures_of(endpoint)
        assert [(type(each), each.reason) for each in failures] == [(kind, reason)] * 2
        if happens is answer_no:
            assert all(each.metadata == REFUSAL.metadata for each in failures)

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_forwarded_call_is_marked_and_keeps_what_it_carries() -> None:
    async def test() -> None:
        async with wired() as (endpoint, server):
            forwarder = Forwarder(None, 1 << 20)
            passed = (("authorization", "Bearer secret"),)
            answer = await forwarder.unary(endpoint, UNARY, b"bytes", 20.0, CLIENT, passed)
            assert answer == b"bytes"
            marks = (FORWARDED_KEY, "1"), (CLIENT_KEY, CLIENT)
            assert server.calls[0].metadata == (*marks, *passed)
            assert forwarder.count == 1
            await forwarder.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_streams_that_nobody_reads_hold_up_no_other_client() -> None:
    """They use up the window of their connection, which other clients must not share."""

    def answer(at: Wired, event: Event) -> None:
        if type(event) is not MessageReceived:
            return
        at.wire.send(event.call, event.data)
        if event.data == b"endless":
            at.wire.send(event.call, bytes(4 << 20))  # 30 of them are more than a connection keeps
        else:
            at.wire.finish(event.call)

    async def test() -> None:
        async with wired() as (endpoint, server):
            server.handle = answer
            forwarder = Forwarder(None, 16 << 20)
            unread = [forwarder.stream(endpoint, UNARY, b"endless", "one") for _ in range(30)]
            firsts = [asyncio.ensure_future(anext(each)) for each in unread]
            async with asyncio.timeout(20):
                while not server.connections or (  # noqa: ASYNC110 - nobody says so
                    server.connections[0].wire.unsent_bytes < 8 << 20
                ):
                    await asyncio.sleep(0.001)
            found = [each async for each in forwarder.stream(endpoint, UNARY, b"x", "another")]
            assert found == [b"x"]
            assert await forwarder.unary(endpoint, UNARY, b"y", 20.0, "one") == b"y"
            for first in firsts:
                first.cancel()
            await asyncio.gather(*firsts, return_exceptions=True)
            for each in unread:
                await each.aclose()  # type: ignore[attr-defined]
            await forwarder.close()

    asyncio.run(asyncio.wait_for(test(), 60))
