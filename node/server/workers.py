"""A node of several processes: the parent starts the workers, passes signals on, and waits.

The parent holds no data and serves nothing. It owns the directory that the workers' directories are
in, and the node's id, which all of them share.

* SIGTERM and SIGINT go to every worker, each time they arrive: the first lets them stop in order,
  the second ends them at once. The parent ends when all have ended, with 0 if all ended with 0.
* A worker that ends although nobody asked it to takes the node with it: the others are stopped in
  order, handing their leaderships over, and the parent ends with an error. Restarting is left to
  what runs the node (systemd, Kubernetes, …), as for a node of one process: one place that knows
  how often and how fast, and an operator who sees it.
* If a worker ends because the cluster has removed the node, the parent ends in the same way, with
  the exit code of that.
* Workers of a parent that was killed stop in order: they notice by their standard input, which it
  held open.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from onelog.node.config.schema import Config
from onelog.node.errors import MemberRemoved, WorkerFailed
from onelog.node.server.server import log_narrowed, new_node
from onelog.ual.directory import DataDirectory
from onelog.ual.files import DiskFiles

# After a worker was asked to stop: its own limits, and room for closing.
STOP_EXTRA_S = 10.0
EXIT_OK = 0

_log = logging.getLogger("onelog.node.workers")


class Supervisor:
    """The parent of a node's workers."""

    def __init__(self, config: Config, command: Sequence[str]) -> None:
        """``command`` starts this program with the same settings; a worker's place is added."""
        self._config = config
        self._command = tuple(command)
        self._workers: dict[int, asyncio.subprocess.Process] = {}
        self._is_stopping = False

    async def run(self) -> None:
        """Run until all workers have ended; raises ``WorkerFailed`` if one did by itself."""
        config = self._config
        claim = DataDirectory.claim(
            DiskFiles(), config.node.data_dir, new_node(config), of_workers=True
        )
        log_narrowed(claim)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._pass_on, number)
        try:
            for worker in range(config.node.workers):
                await self._start(worker, claim.node.node_id)
            await self._wait()
        finally:
            await self._end_all()
            claim.close()

    async def _start(self, worker: int, node_id: UUID) -> None:
        self._workers[worker] = await asyncio.create_subprocess_exec(
            *self._command,
            "--worker-of",
            f"{worker}:{node_id}",
            stdin=asyncio.subprocess.PIPE,
            # A session of its own: Ctrl-C on a terminal reaches the parent, which passes it on.
            start_new_session=True,
        )
        _log.info("worker %d is process %d", worker, self._workers[worker].pid)

    def _pass_on(self, number: signal.Signals) -> None:
        self._is_stopping = True
        for each in self._workers.values():
            with suppress(ProcessLookupError):
                each.send_signal(number)

    async def _wait(self) -> None:
        """Wait for all; the first that ends by itself, or badly, is the node's failure."""
        waiting = {
            asyncio.create_task(process.wait()): worker for worker, process in self._workers.items()
        }
        failed: list[str] = []
        codes: list[int] = []
        is_removed = False
        pending = set(waiting)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                code = task.result()
                if code == EXIT_OK and self._is_stopping:
                    continue
                what = f"by signal {-code}" if code < 0 else f"with exit code {code}"
                is_removed = is_removed or code == MemberRemoved.exit_code
                failed.append(f"worker {waiting[task]} ended {what}")
                codes.append(code)
                _log.error("%s", failed[-1])
                if not self._is_stopping:
                    self._pass_on(signal.SIGTERM)
        if is_removed:
            raise MemberRemoved("the cluster has removed this node; its workers say what to do")
        if failed:
            raise WorkerFailed("; ".join(failed) + "; its own messages say why", codes[0])

    async def _end_all(self) -> None:
        """Leave no process behind, whatever happened."""
        shutdown = self._config.shutdown
        running = [each for each in self._workers.values() if each.returncode is None]
        for each in running:
            with suppress(ProcessLookupError):
                each.terminate()
        limit_s = shutdown.drain_s + shutdown.transfer_s + STOP_EXTRA_S
        for each in running:
            try:
                async with asyncio.timeout(limit_s):
                    await each.wait()
            except TimeoutError:
                each.kill()
                await each.wait()


def watch_parent(stop: Callable[[], None]) -> None:
    """Stop a worker when its parent has died: its standard input ends then."""
    loop = asyncio.get_running_loop()

    def on_input() -> None:
        if not os.read(sys.stdin.fileno(), 1):
            loop.remove_reader(sys.stdin.fileno())
            _log.error("the supervisor has gone: stopping")
            stop()

    loop.add_reader(sys.stdin.fileno(), on_input)
