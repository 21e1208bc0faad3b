"""Work that may block: created on the loop, run on a thread, completed on the loop.

``JobThread`` runs jobs in the order in which they were submitted and completes each on the loop. A
thread that cannot continue reports it through ``fail``: a shard whose syncs stopped silently would
wait for ever.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from onelog.ual.errors import UalError


class ShipJob:
    """One step of shipping, receiving or repair.

    ``act`` touches nothing that the loop changes. ``done`` follows on the loop with the error that
    ``act`` ended with, if it is one that files and bytes can cause.
    """

    __slots__ = ("_act", "_done", "error")

    def __init__(self, act: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        self._act = act
        self._done = done
        self.error: Exception | None = None

    def run(self) -> None:
        """Do it."""
        try:
            self._act()
        except (OSError, UalError) as error:
            self.error = error

    def finish(self) -> None:
        """Complete the job, on the loop."""
        self._done(self.error)


# Job thread


class Job(Protocol):
    """Something that blocks. It keeps its own errors until it is completed."""

    def run(self) -> None:
        """Do it."""


JobType = TypeVar("JobType", bound=Job)


class JobThread(Generic[JobType]):
    """See the module's text."""

    def __init__(self, name: str, fail: Callable[[BaseException], None]) -> None:
        self.count = 0
        self.busy_s = 0.0
        self.last_s = 0.0  # how long the last one took
        # Called on this thread with the duration of each job.
        self.observe: Callable[[float], None] | None = None
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[tuple[JobType, Callable[[JobType], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, job: JobType, done: Callable[[JobType], None]) -> None:
        """Run a job; ``done`` follows on the loop."""
        self._jobs.put((job, done))

    def stop(self, *, waits: bool = True) -> None:
        """End the thread after its remaining jobs; if ``waits``, block until then."""
        self._jobs.put(None)
        if waits:
            self._thread.join()

    def _work(self) -> None:
        hand_back = self._loop.call_soon_threadsafe
        try:
            while (item := self._jobs.get()) is not None:
                job, done = item
                started_s = time.perf_counter()
                job.run()
                took_s = time.perf_counter() - started_s
                self.last_s = took_s
                self.busy_s += took_s
                if self.observe is not None:
                    self.observe(took_s)
                self.count += 1
                hand_back(done, job)
        except BaseException as error:  # noqa: BLE001 - the root of a thread
            if not self._loop.is_closed():
                hand_back(self._fail, error)
