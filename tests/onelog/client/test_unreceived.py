"""Messages that were leased for somebody who has left meanwhile are ready again at once.

The server is held in the moment that matters: the lease is in the log, its answer is not sent.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import onelog.node.services.executor
import onelog.node.services.queue
from onelog import AsyncClient, ClientOptions, Message
from onelog.client.queue import AsyncQueue
from onelog.client.values import QueueInfo
from tests.node.services.nodes import run, single


class Held:
    """Holds the first answer of a server until it is let go, or its call is cancelled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.has_come, self.may_go = asyncio.Event(), asyncio.Event()
        original: Callable[..., Awaitable[Any]] = getattr(module, name)

        async def held(*arguments: Any, **more: Any) -> Any:
            if not self.has_come.is_set():
                self.has_come.set()
                await self.may_go.wait()
            return await original(*arguments, **more)

        monkeypatch.setattr(module, name, held)


def poll(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch, onelog.node.services.queue, "answer_written")


def in_pipeline(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch, onelog.node.services.executor, "fill_content")


def with_messages(directory: Path, test: Any, **options: Any) -> None:
    async def main() -> None:
        async with (
            single(directory) as server,
            AsyncClient(server.endpoint, options=ClientOptions(**options)) as client,
            AsyncClient(server.endpoint) as other,
        ):
            queue = client.queue("jobs")
            await queue.create()
            await queue.enqueue_many(["a", "b", "c"])
            await test(client, queue, other.queue("jobs"))

    run(main())


def counts(info: QueueInfo) -> tuple[int, int]:
    return info.ready, info.leased


async def handle(_message: Message) -> None:
    raise AssertionError("nothing reaches a handler")


def test_a_cancelled_poll_gives_back_what_it_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: AsyncClient, queue: AsyncQueue, other: AsyncQueue) -> None:
        held = poll(monkeypatch)
        leasing = asyncio.create_task(queue.lease(2, wait_s=30))
        await held.has_come.wait()
        assert counts(await other.info()) == (1, 2)
        leasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leasing
        assert counts(await other.info()) == (3, 0)
        assert [each.delivery_count for each in await queue.lease(3, wait_s=5)] == [1, 1, 1]

    with_messages(tmp_path, test)


def test_a_cancelled_poll_without_a_session_is_given_back_by_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: AsyncClient, queue: AsyncQueue, other: AsyncQueue) -> None:
        held = poll(monkeypatch)
        leasing = asyncio.create_task(queue.lease(2, wait_s=30))
        await held.has_come.wait()
        leasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leasing
        assert len(await other.lease(3, wait_s=5)) > 0

    with_messages(tmp_path, test, sessions=False)


def test_a_cancelled_poll_that_got_nothing_leaves_what_comes_later_to_others(
    tmp_path: Path,
) -> None:
    async def test(client: AsyncClient, queue: AsyncQueue, other: AsyncQueue) -> None:
        await queue.purge()
        leasing = asyncio.create_task(queue.lease(2, wait_s=30))
        await asyncio.sleep(0)
        leasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leasing
        await queue.enqueue("later")
        assert [each.body for each in await other.lease(3)] == [b"later"]

    with_messages(tmp_path, test)


@pytest.mark.parametrize("sessions", [True, False])
def test_a_cancelled_lease_in_a_pipeline_gives_back_what_it_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sessions: bool
) -> None:
    async def test(client: AsyncClient, queue: AsyncQueue, other: AsyncQueue) -> None:
        held = in_pipeline(monkeypatch)
        leasing = asyncio.create_task(queue.lease(2))
        await held.has_come.wait()
        leasing.cancel()
        held.may_go.set()
        with pytest.raises(asyncio.CancelledError):
            await leasing
        assert counts(await other.info()) == (3, 0)

    with_messages(tmp_path, test, sessions=sessions)


def test_closing_waits_for_what_nobody_waits_for_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: AsyncClient, queue: AsyncQueue, other: AsyncQueue) -> None:
        held = in_pipeline(monkeypatch)
        leasing = asyncio.create_task(queue.lease(2))
        await held.has_come.wait()
        for _ in range(2):  # the second time it does not wait for the messages to be released
            leasing.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await leasing
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        held.may_go.set()
        await closing
        assert counts(await other.info()) == (3, 0)

    with_messages(tmp_path, test)


def test_a_worker_that_stops_gives_back_what_its_lease_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: AsyncClient, queue: AsyncQueue, other: AsyncQueue) -> None:
        held = poll(monkeypatch)
        async with queue.worker(handle, concurrency=2):
            await held.has_come.wait()
            assert counts(await other.info()) == (1, 2)
        assert counts(await other.info()) == (3, 0)

    with_messages(tmp_path, test)
