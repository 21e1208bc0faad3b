"""A worker: leases messages of a queue, runs a handler for each, and settles them.

When the handler returns, the message is acknowledged. When it raises, the delivery has failed, with
the exception as the reason; ``Reject`` also sets the delay before the next one. The lease is
extended while the handler runs. If it is lost nevertheless, the handler is cancelled. A handler in
a thread cannot be cancelled; settling its message then fails with ``LeaseLost``, which the worker
logs.

``stop`` leases no more messages, gives handlers ``stop_timeout_s`` to finish, then cancels them and
releases their messages. Messages that no handler received are released too, so they are ready
again when ``stop`` returns.

Handlers are coroutine functions, or plain functions, which run in threads. Delivery is at least
once: a handler may see a message twice and must be able to cope with that.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, Self

from onelog.client.calls import Backoff
from onelog.client.leased import detach
from onelog.client.values import Message, Settled
from onelog.errors import InvalidArgument, LeaseLost, NotFound, OnelogError

_log = logging.getLogger("onelog.worker")

POLL_S = 10.0
EXTENSIONS = 3  # in the length of one lease: one may be lost
REASON_SIZE_MAX = 256


class Reject(Exception):
    """Raise it in a handler to fail the delivery: the message is retried after ``delay_s``.

    Without ``delay_s`` the queue's backoff applies. After ``max_deliveries`` failures the message
    goes to the dead-letter queue.
    """

    def __init__(self, reason: str = "", delay_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay_s = delay_s


class Source(Protocol):
    """The methods of a queue that a worker uses."""

    async def lease(
        self, count: int = 1, *, visibility_s: float | None = None, wait_s: float = 0.0
    ) -> Sequence[Message]:
        """Lease messages."""

    async def ack(self, message: Message) -> None:
        """Acknowledge a message."""

    async def nack(
        self, message: Message, *, delay_s: float | None = None, reason: str = ""
    ) -> Settled:
        """Record a failed delivery."""

    async def extend(self, message: Message, visibility_s: float | None = None) -> None:
        """Extend a lease."""

    async def release(self, message: Message) -> None:
        """Release a message, so that it is ready again."""


class AsyncWorker:
    """Runs a handler for each message of a queue and settles it by the outcome.

    A handler that returns acknowledges its message; one that raises fails the delivery, with
    ``Reject`` after a delay of its choice. Leases are extended while handlers run. Call ``run``,
    which returns after ``stop``, or use the worker in ``with``. Delivery is at least once.
    """

    def __init__(
        self,
        queue: Source,
        handler: Callable[[Message], Awaitable[Any] | Any],
        *,
        concurrency: int,
        visibility_s: float,
        stop_timeout_s: float,
        limit: int = 0,
    ) -> None:
        if concurrency < 1 or visibility_s <= 0:
            what = f"{concurrency} handlers, leases of {visibility_s} s"
            raise InvalidArgument(what, reason="WORKER_INVALID")
        self._queue = queue
        self._handler = handler
        self._concurrency = concurrency
        self._visibility_s = visibility_s
        self._stop_timeout_s = stop_timeout_s
        self._left = limit or None  # messages that may still be leased
        self._stopping = asyncio.Event()
        self._slots = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._running: asyncio.Task[None] | None = None
        self._done_count = 0
        self._failed_count = 0

    @property
    def done_count(self) -> int:
        """The number of messages that were acknowledged."""
        return self._done_count

    @property
    def failed_count(self) -> int:
        """The number of messages whose handler failed."""
        return self._failed_count

    async def run(self) -> None:
        """Work until ``stop`` or until ``limit`` messages are settled; NotFound without a queue."""
        if not inspect.iscoroutinefunction(self._handler):
            self._threads = ThreadPoolExecutor(self._concurrency, "onelog worker")
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await self._take(stopping)
        finally:
            stopping.cancel()
            await self._finish()
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)

    async def stop(self) -> None:
        """Lease no more messages; return when those under way are settled."""
        self._stopping.set()
        if self._running is not None:
            await self._running

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._running = loop.create_task(self.run(), name="onelog worker")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _take(self, stopping: "asyncio.Future[Any]") -> None:
        """Lease messages for free slots until the worker is to stop."""
        backoff = Backoff(0.1, 5.0)
        while not self._stopping.is_set() and self._left != 0:
            if not await _unless(stopping, self._slots.acquire()):
                return
            free, wanted = 1, min(self._concurrency, self._left or self._concurrency)
            while not self._slots.locked() and free < wanted:
                await self._slots.acquire()
                free += 1
            messages: Sequence[Message] = ()
            leasing = asyncio.ensure_future(
                self._queue.lease(
                    free, visibility_s=self._visibility_s, wait_s=min(POLL_S, self._visibility_s)
                )
            )
            try:
                messages = await _unless(stopping, leasing) or ()
                backoff.attempts = 0
            except asyncio.CancelledError:
                self._give_back(leasing)
                raise
            except OnelogError as error:
                if isinstance(error, NotFound) or error.code in (3, 7, 12, 16):
                    raise
                _log.warning("no messages could be leased: %s", error)
                await _unless(stopping, asyncio.sleep(backoff.next_s(error)))
            for _ in range(free - len(messages)):
                self._slots.release()
            if self._left is not None:
                self._left -= len(messages)
            for message in messages:
                detach(message)
                self._start(message)

    def _start(self, message: Message) -> None:
        self._add(self._work(message), message)

    def _give_back(self, leasing: "asyncio.Future[Sequence[Message]]") -> None:
        """Release messages that were leased just as ``run`` was cancelled."""
        if leasing.done() and not leasing.cancelled() and leasing.exception() is None:
            for message in leasing.result():
                self._add(self._settle(self._queue.release(message), message), message)

    def _add(self, work: Coroutine[Any, Any, Any], message: Message) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(work, name=f"onelog message {message.message_id}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._slots.release()
        if not task.cancelled() and task.exception() is not None:
            _log.error("a message could not be settled", exc_info=task.exception())

    async def _work(self, message: Message) -> None:
        loop = asyncio.get_running_loop()
        handling = asyncio.ensure_future(self._call(message))
        lease = loop.create_task(self._keep(message, handling), name="onelog lease")
        try:
            await handling
        except asyncio.CancelledError:
            if lease.done():  # lost: the message belongs to somebody else
                return
            await asyncio.shield(self._settle(self._queue.release(message), message))
            raise
        except Reject as reject:
            self._failed_count += 1
            nack = self._queue.nack(message, delay_s=reject.delay_s, reason=_text(reject.reason))
            await self._settle(nack, message)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises fails its message
            self._failed_count += 1
            _log.warning("message %d failed", message.message_id, exc_info=error)
            reason = _text(f"{type(error).__name__}: {error}")
            await self._settle(self._queue.nack(message, reason=reason), message)
        else:
            if await self._settle(self._queue.ack(message), message):
                self._done_count += 1
        finally:
            lease.cancel()

    async def _call(self, message: Message) -> None:
        if self._threads is None:
            await self._handler(message)
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._handler, message)

    async def _keep(self, message: Message, handling: "asyncio.Future[None]") -> None:
        """Extend the lease until it is lost."""
        while True:
            await asyncio.sleep(self._visibility_s / EXTENSIONS)
            try:
                await self._queue.extend(message, self._visibility_s)
            except (LeaseLost, NotFound):
                _log.warning("the lease of message %d is lost", message.message_id)
                asyncio.get_running_loop().call_soon(handling.cancel)
                return
            except OnelogError as error:
                _log.warning("message %d: lease not extended: %s", message.message_id, error)

    async def _settle(self, settling: Awaitable[Any], message: Message) -> bool:
        try:
            await settling
        except (LeaseLost, NotFound) as error:
            _log.warning("message %d is settled too late: %s", message.message_id, error)
            return False
        return True

    async def _finish(self) -> None:
        """Wait for the handlers; cancel those that take too long."""
        if not self._tasks:
            return
        await asyncio.wait(self._tasks, timeout=self._stop_timeout_s)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _unless(stopping: "asyncio.Future[Any]", waiting: Awaitable[Any]) -> Any:
    """Return the result of ``waiting``, or None if the worker is to stop first."""
    task = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None


def _text(reason: str) -> str:
    """Cut a reason to the size that the server accepts."""
    return reason.encode()[:REASON_SIZE_MAX].decode(errors="ignore")
