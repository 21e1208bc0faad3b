"""Starts, watches and stops the builder's process.

``poll`` handles the messages that have arrived and returns at once; ``wait`` blocks its thread.

However it ends, nothing is left: after an error, a timeout, a cancel or a death, the process is
killed and the file that it was writing is removed. A result is returned only when the file is
durable under its name; keeping it is the caller's next step (``SnapshotStore.accept_begin``).
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from onelog.snapshot.build import BuildRequest, BuildResult
from onelog.snapshot.errors import BuilderCancelled, BuilderError, BuilderFailed, BuilderTimeout
from onelog.snapshot.format import temporary_name
from onelog.snapshot.progress import Phase
from onelog.ual.errors import CorruptFile
from onelog.ual.files import Files

TIMEOUT_S = 3_600.0
NICENESS = 10  # that a builder has beyond its server's
MESSAGE_SIZE_MAX = 1 << 20  # of one line; the builder's are far shorter
_READ_SIZE = 64 << 10
# numpy's linear algebra is not needed here, but would start a spinning thread for each core: a
# tenth of the processor time that a builder takes to start.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
_ROOT = Path(__file__).parents[2]


class BuilderProcess:
    """One running build. One thread uses it."""

    def __init__(
        self,
        files: Files,
        request: BuildRequest,
        *,
        timeout_s: float = TIMEOUT_S,
        module: str = "onelog.snapshot.build",
    ) -> None:
        """Start the process; ``module`` is what it runs."""
        self.request = request
        self.progress: tuple[Phase, int, int] | None = None
        self._files = files
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._waiting = b""
        self._result: BuildResult | None = None
        self._failure: BuilderError | None = None
        # The packages may be importable only because of where this process was started.
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **_ENVIRONMENT},
        )
        # Set from here: the builder's imports alone take most of a second.
        with contextlib.suppress(ProcessLookupError):  # it has ended at once
            os.setpriority(os.PRIO_PROCESS, self._process.pid, os.nice(0) + NICENESS)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        # A builder that died at once does not read; ``poll`` reports that.
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(request.encode().encode() + b"\n")
            self._stdin.flush()

    def poll(self) -> BuildResult | None:
        """Return the result if the build is done, None while it is running.

        Raises ``BuilderFailed``, ``BuilderTimeout`` or ``BuilderCancelled`` after cleaning up, and
        again at each call.
        """
        if self._failure is not None:
            raise self._failure
        while self._result is None:
            try:
                data = os.read(self._stdout.fileno(), _READ_SIZE)
            except BlockingIOError:
                break
            if not data:
                code = self._process.wait()
                self._fail(BuilderFailed("DIED", f"it ended with code {code} without a result"))
            self._waiting += data
            self._take_lines()
        if self._result is None and time.monotonic() >= self._deadline:
            self._fail(BuilderTimeout(f"the builder took more than {self._timeout_s:g} s"))
        return self._result

    def wait(self, stop: int | None = None) -> BuildResult:
        """Block until the build is done, failed or out of time.

        It is cancelled when the descriptor ``stop`` becomes readable, which the end of a pipe does
        when the other end is closed.
        """
        # Not ``select.select``, which knows no descriptors beyond 1,023: a busy node has those.
        watched = select.poll()
        watched.register(self._stdout.fileno(), select.POLLIN)
        if stop is not None:
            watched.register(stop, select.POLLIN)
        while (result := self.poll()) is None:
            left_s = max(self._deadline - time.monotonic(), 0)
            if stop in [descriptor for descriptor, _ in watched.poll(left_s * 1000)]:
                self.cancel()
        return result

    def cancel(self) -> None:
        """Stop the build; its file is removed when this returns.

        After a result the file belongs to the caller, and this does nothing.
        """
        if self._result is None and self._failure is None:
            self._give_up(BuilderCancelled("the build was cancelled"))

    def _take_lines(self) -> None:
        *lines, self._waiting = self._waiting.split(b"\n")
        if len(self._waiting) > MESSAGE_SIZE_MAX:
            self._fail(BuilderFailed("NOT_UNDERSTOOD", "a line without end"))
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            fields = json.loads(line)
            if "phase" in fields:
                self.progress = Phase(fields["phase"]), fields["done"], fields["total"]
                return
            if "error" in fields:
                error, damage = fields["error"], None
                if "path" in error:
                    damage = CorruptFile(error["path"], error["rule"])
                failure = BuilderFailed(error["reason"], error["message"], damage)
            else:
                failure, self._result = None, BuildResult.decode(fields["result"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            failure = BuilderFailed("NOT_UNDERSTOOD", f"{line[:200]!r}: {error}")
        if failure is not None:
            self._fail(failure)
        self._end()

    def _fail(self, failure: BuilderError) -> NoReturn:
        self._give_up(failure)
        raise failure

    def _give_up(self, failure: BuilderError) -> None:
        self._failure = failure
        self._end()
        self._remove_files()

    def _end(self) -> None:
        """Make sure that the process is gone, and its pipes with it."""
        self._process.kill()
        self._process.wait()
        self._stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def _remove_files(self) -> None:
        directory, name = self.request.directory, self.request.file_name
        found = [
            path
            for path in (directory / temporary_name(name), directory / name)
            if self._files.exists(path)
        ]
        for path in found:
            self._files.remove(path)
        if found:
            self._files.sync_directory(directory)
