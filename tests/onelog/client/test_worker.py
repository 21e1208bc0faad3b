"""A worker settles each message by what became of it, keeps its lease, and stops in good order."""

import asyncio
import threading
from collections import deque
from typing import Any

import pytest

from onelog import Message, Reject
from onelog.client.values import Settled
from onelog.client.worker import AsyncWorker
from onelog.errors import LeaseLost, NotFound, Unavailable
from tests.onelog.client.scripted import run, until


class Memory:
    """A queue in memory: what a worker does with it is the test's to see."""

    def __init__(self, bodies: list[bytes]) -> None:
        self.ready = deque(Message(number, body, number) for number, body in enumerate(bodies, 1))
        self.acked: list[int] = []
        self.failed: dict[int, tuple[str, float | None]] = {}
        self.extended: list[int] = []
        self.released: list[int] = []
        self.lost: set[int] = set()
        self.errors: list[Exception] = []
        self.came = asyncio.Event()
        self.is_waited_for = False

    async def lease(
        self, count: int = 1, *, visibility_s: float | None = None, wait_s: float = 0.0
    ) -> list[Message]:
        if self.errors:
            raise self.errors.pop(0)
        if not self.ready:
            self.is_waited_for = True
            await self.came.wait()
            self.came.clear()
        return [self.ready.popleft() for _ in range(min(count, len(self.ready)))]

    async def ack(self, message: Message) -> None:
        self._check(message)
        self.acked.append(message.message_id)

    async def nack(
        self, message: Message, *, delay_s: float | None = None, reason: str = ""
    ) -> Settled:
        self._check(message)
        self.failed[message.message_id] = reason, delay_s
        return Settled(message.message_id)

    async def extend(self, message: Message, visibility_s: float | None = None) -> None:
        self._check(message)
        self.extended.append(message.message_id)

    async def release(self, message: Message) -> None:
        self.released.append(message.message_id)

    def _check(self, message: Message) -> None:
        if message.message_id in self.lost:
            raise LeaseLost("somebody else has it")


def worker_of(queue: Memory, handler: Any, **changes: Any) -> AsyncWorker:
    settings = {"concurrency": 4, "visibility_s": 30.0, "stop_timeout_s": 5.0} | changes
    return AsyncWorker(queue, handler, **settings)


def test_messages_are_acknowledged_or_fail_with_the_reason() -> None:
    async def test() -> None:
        queue = Memory([b"ok", b"bad", b"later", b"ok"])

        async def handle(message: Message) -> None:
            if message.body == b"bad":
                raise ValueError("no good")
            if message.body == b"later":
                raise Reject("busy", delay_s=7)

        async with worker_of(queue, handle) as worker:
            await until(lambda: len(queue.acked) + len(queue.failed) == 4)
        assert sorted(queue.acked) == [1, 4]
        assert queue.failed == {2: ("ValueError: no good", None), 3: ("busy", 7)}
        assert (worker.done_count, worker.failed_count) == (2, 2)

    run(test())


def test_no_more_handlers_run_than_allowed_and_plain_functions_run_in_threads() -> None:
    async def test() -> None:
        queue = Memory([b""] * 40)
        lock, running, most = threading.Lock(), 0, 0
        threads = set()

        def handle(_message: Message) -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
                threads.add(threading.current_thread())
            with lock:
                running -= 1

        async with worker_of(queue, handle, concurrency=3):
            await until(lambda: len(queue.acked) == 40)
        assert most <= 3
        assert threading.main_thread() not in threads

    run(test())


def test_a_long_handler_keeps_its_lease_and_is_cancelled_when_it_is_lost() -> None:
    async def test() -> None:
        queue = Memory([b"long"])
        cancelled = asyncio.Event()

        async def handle(_message: Message) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with worker_of(queue, handle, visibility_s=0.03):
            await until(lambda: len(queue.extended) >= 3)
            queue.lost.add(1)
            await until(cancelled.is_set)
        assert queue.acked == queue.released == []

    run(test())


def test_stopping_lets_handlers_finish_and_gives_back_what_takes_too_long() -> None:
    async def test() -> None:
        queue = Memory([b"quick", b"endless"])
        begun, finish = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            if message.body == b"endless":
                begun.set()
                await asyncio.Event().wait()
            await finish.wait()

        worker = worker_of(queue, handle, stop_timeout_s=0.2)
        running = asyncio.create_task(worker.run())
        await until(begun.is_set)
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        finish.set()
        await stopping
        await running
        assert queue.acked == [1]
        assert queue.released == [2]

    run(test())


def test_a_worker_that_is_cancelled_gives_back_what_it_was_just_given() -> None:
    async def test() -> None:
        queue = Memory([])

        async def handle(_message: Message) -> None:
            raise AssertionError("it was cancelled before")

        running = asyncio.create_task(worker_of(queue, handle).run())
        await until(lambda: queue.is_waited_for)
        queue.ready.extend([Message(1, b"", 1), Message(2, b"", 2)])
        queue.came.set()
        while queue.ready:  # noqa: ASYNC110 - cancelled in the very step in which it has them
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert sorted(queue.released) == [1, 2]

    run(test())


def test_trouble_is_waited_out_but_a_missing_queue_is_raised() -> None:
    async def test() -> None:
        queue = Memory([b"x"])
        queue.errors = [Unavailable("an election", reason="NO_LEADER")]

        async def handle(_message: Message) -> None:
            return None

        async with worker_of(queue, handle):
            await until(lambda: queue.acked == [1])
        queue.errors = [NotFound("no such queue", reason="QUEUE_UNKNOWN")]
        with pytest.raises(NotFound):
            await worker_of(queue, handle).run()

    run(test())
