"""Runs the async core for programs without an event loop: in a loop in a thread of its own.

Every call of the blocking client runs a coroutine of the core in that thread while the caller
waits. The thread starts with the first call and ends with ``close``. It is a daemon, so a program
that forgets to close still ends. A forked child has no such thread, so a client made before
``fork`` refuses to work there.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Generic, Self, TypeVar

from onelog.client.tables import Rows
from onelog.errors import FailedPrecondition

T = TypeVar("T")

# How long to wait for an interrupted call to end.
CANCEL_S = 1.0
# Items that are buffered between the loop and the iterating thread.
ITEMS_AHEAD = 256


class LoopThread:
    """An event loop in a thread, for all views of one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process_id = os.getpid()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be run any more."""
        return self._is_closed

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result; cancel it if we are interrupted.

        A cancelled coroutine is waited for: what it iterated over can be closed only after that.
        """
        call: _Call[T] | None = None
        try:
            loop = self._started()
            call = _Call(coroutine)
            loop.call_soon_threadsafe(call.begin)
            return call.outcome.result()
        except BaseException:
            if call is None:
                coroutine.close()
            elif not call.outcome.done():
                loop.call_soon_threadsafe(call.cancel)
                call.ended.wait(CANCEL_S)
            raise

    def iterate(self, items: AsyncIterator[T], ahead: int = ITEMS_AHEAD) -> "Items[T]":
        """Return an iterator over an async one, which fetches up to ``ahead`` items in advance."""
        return Items(self, items, ahead)

    def forget(self, task: "asyncio.Future[Any]") -> None:
        """Cancel a task of the loop without waiting, from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed() and self._process_id == os.getpid():
            loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """End the thread; may be called more than once."""
        with self._lock:
            self._is_closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None and self._process_id == os.getpid():
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._process_id != os.getpid():
            raise FailedPrecondition(
                "a client does not work in a forked process; make one there", reason="FORKED"
            )
        with self._lock:
            if self._is_closed:
                raise FailedPrecondition("the client is closed", reason="CLIENT_CLOSED")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name="onelog client", daemon=True
                )
                self._thread.start()
            assert threading.current_thread() is not self._thread, "a blocking call in the loop"
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


class _Call(Generic[T]):
    """A coroutine that runs in the loop while another thread waits for its result.

    Unlike ``asyncio.run_coroutine_threadsafe`` it can be cancelled at any moment, also by an
    interrupt between two lines of the caller, and says when it has ended.
    """

    __slots__ = ("_coroutine", "_task", "ended", "outcome")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.outcome: Future[T] = Future()
        self.ended = threading.Event()
        self._coroutine: Coroutine[Any, Any, T] | None = coroutine
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Start it; called in the loop."""
        if self._coroutine is not None:
            self._task = asyncio.get_running_loop().create_task(self._coroutine)
            self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """Cancel it; called in the loop."""
        if self._task is not None:
            self._task.cancel()
        elif self._coroutine is not None:
            self._coroutine.close()
            self._coroutine = None
            self.ended.set()

    def _end(self, task: "asyncio.Task[T]") -> None:
        self.ended.set()
        if task.cancelled():
            self.outcome.cancel()
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


class Items(Iterator[T], Generic[T]):
    """An iterator over an async iterator; a task in the loop fetches items in advance.

    It ends after its last item, with ``close``, or when it is garbage-collected. What is left of it
    can be converted as a table.
    """

    def __init__(self, thread: LoopThread, items: AsyncIterator[T], ahead: int) -> None:
        self._thread = thread
        self._source = items
        self._ahead = ahead
        self._queue: asyncio.Queue[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._taken: list[Any] = []
        self._is_over = False

    def __next__(self) -> T:
        if self._is_over:
            raise StopIteration
        if not self._taken:
            self._taken = self._thread.run(self._take())[::-1]
        kind, item = self._taken.pop()
        if kind == "item":
            found: T = item
            return found
        self._is_over = True
        if kind == "error":
            raise item
        raise StopIteration

    def __repr__(self) -> str:
        return "an iterator over results; Rows(...) is a table of them, to_pandas() a DataFrame"

    def to_pandas(self) -> Any:
        """Read to the end and return a pandas.DataFrame, with a row for each result."""
        return Rows(self).to_pandas()

    def to_arrow(self) -> Any:
        """Read to the end and return a pyarrow.Table, with a row for each result."""
        return Rows(self).to_arrow()

    def close(self) -> None:
        """Stop fetching."""
        self._is_over = True
        if self._task is not None:
            self._thread.forget(self._task)

    def __del__(self) -> None:
        self.close()

    async def _take(self) -> list[Any]:
        """Wait for an item; return it with all others that are buffered."""
        if self._queue is None:
            self._queue = asyncio.Queue(self._ahead)
            loop = asyncio.get_running_loop()
            # The task must not refer to this object, or it would never be garbage-collected.
            self._task = loop.create_task(_fetch(self._source, self._queue), name="onelog items")
        taken = [await self._queue.get()]
        while not self._queue.empty():
            taken.append(self._queue.get_nowait())
        return taken


async def _fetch(items: AsyncIterator[Any], queue: "asyncio.Queue[Any]") -> None:
    try:
        async for item in items:
            await queue.put(("item", item))
    except asyncio.CancelledError:
        raise
    except Exception as error:  # noqa: BLE001 - raised by the one who iterates
        await queue.put(("error", error))
    else:
        await queue.put(("end", None))
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


class Facade:
    """Base of the blocking classes: an object of the core and the thread that runs it."""

    def __init__(self, core: Any, thread: LoopThread) -> None:
        self._core = core
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._core).replace("Async", "", 1)

    def _take_next(self) -> Any:
        """Return the next item of an iterator, whose pages arrive in the loop's thread."""
        while True:
            try:
                return self._core._take()
            except IndexError:
                pass
            try:
                self._thread.run(self._core._turn())
            except StopAsyncIteration:
                raise StopIteration from None

    def _same(self, core: Any) -> Any:
        """Return this object if ``core`` is its own, else a facade for that one."""
        return self if core is self._core else type(self)._of(core, self._thread)

    @classmethod
    def _of(cls, core: Any, thread: LoopThread) -> Any:
        made = object.__new__(cls)
        Facade.__init__(made, core, thread)
        return made


class PagesFacade(Facade, Generic[T]):
    """Base of the blocking classes whose core is a ``Pages``."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        found: T = self._take_next()
        return found

    def start(self) -> None:
        """Wait until it has begun: it will see every change from now on."""
        self._thread.run(self._core.start())

    def close(self) -> None:
        """End it."""
        self._thread.run(self._core.close())

    def __enter__(self) -> Self:
        self._thread.run(self._core.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(self._core.__aexit__(*error))


def unwrap(value: Any) -> Any:
    """Return the core of a blocking object; other values as they are."""
    return value._core if isinstance(value, Facade) else value
