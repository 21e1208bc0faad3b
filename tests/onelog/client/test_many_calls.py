"""A thousand watches and hundreds of long polls of one client, and calls that go ahead beside."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onelog import spread
from onelog.client.client import AsyncClient
from onelog.client.watch import AsyncWatch, Watched
from onelog.node.edge.calls import Forwarder
from onelog.spread import CALLS_PER_CONNECTION, Spread
from tests.node.services.nodes import Node, run, single, until

WATCHES = 1_000
POLLS = 200
ANSWER_S = 4.0  # for a call that waits for nothing; milliseconds where nobody else works


def test_a_thousand_watches_and_long_polls_leave_room_for_other_calls(tmp_path: Path) -> None:
    """With the settings as they are, through one client: what stays is spread over connections."""

    async def test() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint, timeout_s=60) as client:
            queue, key = client.queue("jobs"), client.kv
            await queue.create()
            watches = [client.watch(Watched("kv", name=b"k")) for _ in range(WATCHES)]
            for watch in watches:
                await watch.start()
            polls = [asyncio.ensure_future(queue.lease(wait_s=40.0)) for _ in range(POLLS)]
            calls = node.context.edge
            assert calls is not None
            await until(lambda: calls.calls.admission.requests >= WATCHES + POLLS, 60)
            async with asyncio.timeout(ANSWER_S):
                assert (await queue.info()).queue == "jobs"
            async with asyncio.timeout(ANSWER_S):
                await key.put(b"k", b"1")
            assert await asyncio.gather(*map(summarise, watches)) == [b"1"] * WATCHES
            await queue.enqueue_many(b"%d" % number for number in range(POLLS))
            leased = [each.body for messages in await asyncio.gather(*polls) for each in messages]
            assert sorted(leased) == sorted(b"%d" % number for number in range(POLLS))
            for watch in watches:
                await watch.close()
            await until(lambda: not calls.calls.admission.requests)
            assert not any(source._feeds for source in calls.sources.values())

    asyncio.run(asyncio.wait_for(test(), 180))


async def summarise(watch: AsyncWatch) -> bytes:
    """Return the value that the next event tells of."""
    async with asyncio.timeout(60):
        event = await anext(watch)
    assert event.item is not None
    return event.item.value


def test_calls_take_places_on_connections_and_give_them_back() -> None:
    made: list[int] = []

    def connect() -> int:
        made.append(len(made))
        return made[-1]

    places = Spread(connect)
    taken = [places.place() for _ in range(2 * CALLS_PER_CONNECTION + 1)]
    found = [place.__enter__() for place in taken]
    assert [found.count(each) for each in made] == [CALLS_PER_CONNECTION, CALLS_PER_CONNECTION, 1]
    for place in taken:
        place.__exit__(None, None, None)
    with places.place() as first:
        assert first == 0
    assert made == [0, 1, 2]


def test_what_is_forwarded_is_spread_over_connections_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the polls of many clients would keep the node from forwarding anything else."""
    monkeypatch.setattr(spread, "CALLS_PER_CONNECTION", 2)

    async def test() -> None:
        async with single(tmp_path) as node:
            forwarder = Forwarder(None, 1 << 20)
            streams = [forwarder.stream(node.endpoint, WATCH, b"", "client") for _ in range(5)]
            for stream in streams:
                await anext(aiter(stream))
            (lane,) = forwarder._streams.values()
            assert len(lane.connections) == 3
            assert len(peers(node)) == 3
            for stream in streams:
                await stream.aclose()  # type: ignore[attr-defined]
            await forwarder.close()

    run(test())


WATCH = "/onelog.v1.Pipeline/Watch"


def peers(node: Node) -> set[Any]:
    """Return the connections that have a call under way."""
    edge = node.context.edge
    assert edge is not None
    return set(edge.calls.admission._clients)
