"""Queues through the client, against real nodes: every method, consuming, and workers."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onelog import AsyncClient, Client, Message, NewMessage, QueueConfig, Reject
from onelog.client.queue import AsyncQueue
from onelog.errors import AlreadyExists, InvalidArgument, LeaseLost, NotFound
from tests.node.services.nodes import eventually, run, single, until
from tests.onelog.client.serving import serving


def with_queue(tmp_path: Path, test: Any, **config: Any) -> None:
    async def main() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            await client.queue("dead{q}").create()
            queue = client.queue("jobs{q}")
            await queue.create(QueueConfig(**config))
            await test(client, queue)

    run(main())


def test_a_message_is_sent_leased_and_settled(tmp_path: Path) -> None:
    async def test(client: AsyncClient, queue: AsyncQueue) -> None:
        with pytest.raises(AlreadyExists):
            await queue.create()
        sent = await queue.enqueue("work", priority=2, headers={"by": "ann"}, tenant="t")
        again = await queue.enqueue("once", dedup_id="d")
        repeated = await queue.enqueue("once", dedup_id="d")
        assert (repeated.message_id, repeated.deduplicated) == (again.message_id, True)
        first, second = await queue.lease(5, visibility_s=60)
        assert (first.message_id, first.body, first.headers) == (
            sent.message_id, b"work", {"by": b"ann"},
        )  # fmt: skip
        assert (first.priority, first.tenant, first.delivery_count) == (2, b"t", 1)
        await queue.extend(first, 90)
        await queue.ack(first)
        with pytest.raises(NotFound):
            await queue.ack(first)
        assert [each.reason for each in await queue.ack_many([first])] == ["MESSAGE_UNKNOWN"]
        await queue.release(second)
        with pytest.raises(LeaseLost):
            await queue.extend(second)
        assert [each.reason for each in await queue.release_many([second])] == ["LEASE_TOKEN_STALE"]
        (second,) = await queue.lease(wait_s=1)
        assert not (await queue.nack(second, reason="no", delay_s=3600)).dead
        assert [each.state for each in await queue.peek()] == ["delayed"]
        (cancelled,) = await queue.cancel([second.message_id])
        assert not cancelled.reason
        (gone,) = await queue.cancel([second.message_id])
        assert gone.reason == "MESSAGE_UNKNOWN"
        info = await queue.info()
        assert (info.acked, info.cancelled, info.deduplicated, info.ready) == (1, 1, 1, 0)
        with pytest.raises(InvalidArgument):
            await queue.enqueue("bad", priority=16)
        assert await queue.lease() == await queue.lease(wait_s=0.02) == []
        with pytest.raises(NotFound):
            await client.queue("nowhere").lease(wait_s=5)
        names = [each.queue async for each in client.queues("jobs")]
        assert names == ["jobs{q}"]
        await queue.delete()

    with_queue(tmp_path, test)


def test_many_messages_and_what_looks_after_a_queue(tmp_path: Path) -> None:
    async def test(client: AsyncClient, queue: AsyncQueue) -> None:
        sent = await queue.enqueue_many([NewMessage("first", priority=0), *(["x"] * 2500)])
        assert len({each.message_id for each in sent}) == 2501
        (first,) = await queue.lease()
        assert first.body == b"first"
        messages = [first, *await queue.lease(1000), *await queue.lease(1000)]
        settled = await queue.ack_many([*messages, first])
        assert [each.reason for each in settled] == [""] * 2001 + ["MESSAGE_UNKNOWN"]
        (last,) = await queue.prioritise([sent[-1].message_id], 1)
        assert not last.reason
        (urgent,) = await queue.lease()
        assert (urgent.message_id, urgent.priority) == (sent[-1].message_id, 1)
        assert (await queue.nack(urgent, delay_s=0, reason="bad luck")).dead
        dead = client.queue("dead{q}")
        (letter,) = await dead.peek()
        assert letter.headers["dlq.failure_reason"] == b"bad luck"
        assert await dead.peek(failure_contains="bad") == [letter]
        assert await dead.peek(failure_contains="good") == []
        assert await dead.redrives() == []
        assert await dead.redrive(failure_contains="luck")
        assert [each.message_id for each in await queue.lease()] == [urgent.message_id]
        assert (await dead.info()).moved == 1
        await queue.pause()
        assert await queue.lease() == []
        await queue.resume()
        schedule = await queue.schedule("0 0 1 1 *", NewMessage("new year", priority=3))
        assert [each.schedule_id for each in await queue.schedules()] == [schedule]
        await queue.unschedule(schedule)
        assert await queue.purge() == 499
        early = client.scoped(durability="async").queue("jobs{q}")
        await early.enqueue_many(["soon"] * 3)
        found = await eventually(lambda: _lease(queue, 3))
        assert [each.body for each in found] == [b"soon"] * 3

    with_queue(tmp_path, test, max_deliveries=1, dead_letter_queue="dead{q}")


async def _lease(queue: AsyncQueue, count: int) -> Sequence[Message]:
    found = await queue.lease(count)
    if len(found) < count:
        await queue.release_many(found)
    assert len(found) == count
    return found


def test_consuming_goes_on_until_the_iteration_ends(tmp_path: Path) -> None:
    async def test(_client: AsyncClient, queue: AsyncQueue) -> None:
        await queue.enqueue_many([str(number) for number in range(50)])
        seen = []
        messages = queue.consume(credit=10)
        async for message in messages:
            seen.append(message.body)
            if len(seen) <= 45:
                await queue.ack(message)
            if len(seen) == 50:
                break
        assert seen == [str(number).encode() for number in range(50)]
        await messages.aclose()  # type: ignore[attr-defined]

        async def are_back() -> None:
            info = await queue.info()
            assert (info.acked, info.ready, info.leased) == (45, 5, 0)

        await eventually(are_back)

    with_queue(tmp_path, test)


def test_a_worker_works_retries_gives_up_and_stops(tmp_path: Path) -> None:
    async def test(client: AsyncClient, queue: AsyncQueue) -> None:
        await queue.enqueue_many(["ok"] * 30 + ["poison", "busy"])
        running = most = 0
        failures: list[str] = []

        async def handle(message: Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            if message.body == b"poison":
                failures.append("poison")
                raise ValueError("cannot be")
            if message.body == b"busy" and message.delivery_count == 1:
                raise Reject("later", delay_s=0.01)

        dead = client.queue("dead{q}")
        async with queue.worker(handle, concurrency=4) as worker:
            (letter,) = await dead.lease(wait_s=15)
            await until(lambda: worker.done_count == 31)
        assert letter.body == b"poison"
        assert letter.headers["dlq.failure_reason"] == b"ValueError: cannot be"
        assert len(failures) == 3
        assert most <= 4
        info = await queue.info()
        assert (info.acked, info.dead, info.ready, info.leased) == (31, 1, 0, 0)

    with_queue(tmp_path, test, max_deliveries=3, dead_letter_queue="dead{q}")


def test_a_worker_keeps_its_lease_and_gives_back_what_it_cannot_finish(tmp_path: Path) -> None:
    async def test(_client: AsyncClient, queue: AsyncQueue) -> None:
        await queue.enqueue_many(["long", "endless"])
        finish, begun = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            if message.body == b"endless":
                begun.set()
                await asyncio.Event().wait()
            await finish.wait()

        worker = queue.worker(handle, visibility_s=0.3, stop_timeout_s=0.05)
        async with worker:
            await begun.wait()
            (first,) = await queue.peek(1)

            async def is_extended_twice() -> None:
                (seen,) = await queue.peek(1)
                assert seen.lease_expires_ns > first.lease_expires_ns + 3 * 10**8

            await eventually(is_extended_twice)
            finish.set()
            await until(lambda: worker.done_count == 1)
        (back,) = await queue.lease(wait_s=5)
        assert (back.body, back.delivery_count) == (b"endless", 1)

    with_queue(tmp_path, test)


def test_queues_without_an_event_loop(tmp_path: Path) -> None:
    with serving(tmp_path) as endpoint, Client(endpoint, timeout_s=30) as client:
        queue = client.queue("jobs")
        queue.create()
        queue.enqueue_many(["1", "2", "3"])
        (first,) = queue.lease()
        queue.ack(first)
        for message in queue.consume(credit=1):
            queue.ack(message)
            if message.body == b"3":
                break
        done = threading.Event()
        with queue.worker(lambda _message: done.set(), concurrency=2):
            queue.enqueue("4")
            assert done.wait(20)
        assert queue.info().acked == 4
        assert [info.queue for info in client.queues()] == ["jobs"]


def test_a_stream_that_breaks_after_a_long_rest_is_opened_again(tmp_path: Path) -> None:
    """Its timeout counts from when it broke, not from its last message."""

    async def test() -> None:
        async with (
            single(tmp_path, shards=1) as node,
            AsyncClient([node.endpoint], timeout_s=1.0) as client,
        ):
            queue = client.queue("jobs")
            await queue.create()
            received: list[bytes] = []

            async def consume() -> None:
                async for message in queue.consume():
                    received.append(message.body)
                    await queue.ack(message)

            consuming = asyncio.create_task(consume())
            await queue.enqueue(b"1")
            await until(lambda: received == [b"1"])
            rested_s = time.monotonic() + 1.5
            await until(lambda: time.monotonic() > rested_s)
            for connection in tuple(node.server._gate.connections):
                connection.abort()
            await queue.enqueue(b"2")
            await until(lambda: received == [b"1", b"2"] or consuming.done())
            assert not consuming.done(), consuming.exception()
            consuming.cancel()

    run(test())
