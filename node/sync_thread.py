"""The one thread of a shard that may block on its disk.

Jobs run in the order in which they were handed in, each is handed back on the loop, and a job that
raises is handed to ``fail``: a shard whose syncs silently stopped would wait for ever.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from ual.jobs import SyncJob


class SyncThread:
    """See the module's text."""

    def __init__(
        self,
        name: str,
        done: Callable[[SyncJob], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.count = 0
        self.busy_s = 0.0
        self._done = done
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[SyncJob | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, job: SyncJob) -> None:
        """Run a job; ``done`` follows on the loop."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Let the thread end after the jobs that it has; blocks until then."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        hand_back = self._loop.call_soon_threadsafe
        try:
            while (job := self._jobs.get()) is not None:
                started_s = time.perf_counter()
                job.run()
                self.busy_s += time.perf_counter() - started_s
                self.count += 1
                hand_back(self._done, job)
        except BaseException as error:  # noqa: BLE001 - the root of a thread
            if not self._loop.is_closed():
                hand_back(self._fail, error)
