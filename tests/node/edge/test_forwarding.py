"""What a client is answered whose call had to be passed on, and did not come through."""

import asyncio
from collections.abc import Callable

import pytest

from onelog.errors import ConditionFailed, OnelogError, OutcomeUnknown, Unavailable
from onelog.node.edge.calls import FORWARDED_KEY, Forwarder
from onelog.node.public_errors import status_of
from onelog.wire.grpc import ErrorCode, Event, MessageReceived, Status
from tests.onelog.client.echoing import UNARY, Wired, wired
from tests.system.ports import free_addresses

REFUSAL = ConditionFailed("the version is 7", metadata={"version": "7"})


def break_off(at: Wired, _event: Event) -> None:
    at.transport.abort()


def refuse(at: Wired, event: Event) -> None:
    at.wire.cancel(event.call, ErrorCode.REFUSED_STREAM)  # type: ignore[union-attr]


def answer_no(at: Wired, event: Event) -> None:
    if type(event) is MessageReceived:
        details = status_of(REFUSAL).SerializeToString()
        at.wire.finish(event.call, Status(REFUSAL.code, REFUSAL.message, details))


async def failures_of(endpoint: str) -> list[OnelogError]:
    """Return what becomes of a call and of a stream, each on a connection of its own."""
    one, two = Forwarder(None, 1 << 20), Forwarder(None, 1 << 20)
    with pytest.raises(OnelogError) as unary:
        await one.unary(endpoint, UNARY, b"", 20.0)
    with pytest.raises(OnelogError) as stream:
        await anext(aiter(two.stream(endpoint, UNARY, b"")))
    await one.close()
    await two.close()
    return [unary.value, stream.value]


@pytest.mark.parametrize(
    ("happens", "kind", "reason"),
    [
        (break_off, OutcomeUnknown, "OUTCOME_UNKNOWN"),
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
            assert await forwarder.unary(endpoint, UNARY, b"bytes", 20.0, passed) == b"bytes"
            assert server.calls[0].metadata == ((FORWARDED_KEY, "1"), *passed)
            assert forwarder.count == 1
            await forwarder.close()

    asyncio.run(asyncio.wait_for(test(), 60))
