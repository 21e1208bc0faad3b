"""The shell of ``onelog demo``: a directory, a program ``onelog`` in its path, and what it started.

Every line gets a session of its own, so that it can be ended with all that it has started. When the
shell is closed nothing of it runs any more and its directory is gone, whatever happened before:
signals that ask a process to end are interrupts here. Only after SIGKILL something is left, a
directory ``onelog-demo-…`` among the temporary ones and the processes in it.

The environment is that of the caller without the settings of onelog: the tour talks to its own
server, never to the one that somebody works with.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import onelog
from onelog.cli.failure import CommandFailed

LINE_S_MAX = 60.0
STOP_S_MAX = 30.0
OUTPUT_BYTES_MAX = 1 << 20
PROGRAM = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m onelog.cli.main "$@"\n'
_POLL_S = 0.1
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class DemoShell:
    """Runs lines, one at a time, and keeps those in the background."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """The settings are variables for all lines."""
        self.directory = Path(tempfile.mkdtemp(prefix="onelog-demo-"))
        self._jobs: list[subprocess.Popen[bytes]] = []
        self._handlers: dict[signal.Signals, Any] = {}
        programs = self.directory / "bin"
        programs.mkdir()
        program = programs / "onelog"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        kept = {name: text for name, text in os.environ.items() if not name.startswith("ONELOG_")}
        loaded_from = str(Path(onelog.__file__).parents[1])
        self._environment = kept | {
            "PATH": os.pathsep.join((str(programs), os.environ.get("PATH", os.defpath))),
            "PYTHONPATH": os.pathsep.join(filter(None, (loaded_from, kept.get("PYTHONPATH")))),
            "XDG_CONFIG_HOME": str(self.directory),
            **settings,
        }

    def __enter__(self) -> Self:
        self._handlers = {each: signal.signal(each, _interrupt) for each in _ENDING_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        # Somebody who is impatient must not keep this from being tidied up.
        for each in (*_ENDING_SIGNALS, signal.SIGINT):
            self._handlers.setdefault(each, signal.signal(each, signal.SIG_IGN))
        try:
            for job in self._jobs:
                _end(job)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
            for each, handler in self._handlers.items():
                signal.signal(each, handler)

    def run(self, line: str) -> tuple[int, str]:
        """Run a line until it ends; return its exit code, and what it wrote to both outputs."""
        with tempfile.TemporaryFile() as output:
            process = self._start(line, output.fileno())
            try:
                code = process.wait(LINE_S_MAX)
            except subprocess.TimeoutExpired:
                raise CommandFailed(
                    "DEMO_FAILED", f"no end after {LINE_S_MAX:g} s: {line}"
                ) from None
            finally:
                _end(process)
            output.seek(0)
            return code, output.read(OUTPUT_BYTES_MAX).decode(errors="replace").rstrip("\n")

    def start(self, line: str) -> None:
        """Run a line in the background."""
        with (self.directory / f"job-{len(self._jobs) + 1}.log").open("wb") as output:
            # Its program takes the place of the shell, so that signals reach it.
            self._jobs.append(self._start(f"exec {line}", output.fileno()))

    def stop(self, number: int) -> None:
        """Ask a line in the background to end, and wait for that; the first one is 1."""
        job = self._jobs[number - 1]
        job.terminate()
        try:
            code = job.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            raise CommandFailed(
                "DEMO_FAILED", f"no end after {STOP_S_MAX:g} s: %{number}"
            ) from None
        if code:
            raise CommandFailed(
                "DEMO_FAILED", f"%{number} ended with {code}: {self._last_words(number)}"
            )

    def wait_a_little(self) -> None:
        """Wait before something is tried again; fails if a job has ended meanwhile."""
        time.sleep(_POLL_S)
        for number, job in enumerate(self._jobs, 1):
            if (code := job.poll()) is not None:
                said = self._last_words(number)
                raise CommandFailed("DEMO_FAILED", f"%{number} ended with {code}: {said}")

    def _last_words(self, number: int) -> str:
        lines = (self.directory / f"job-{number}.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"

    def _start(self, line: str, output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - the lines are our own
            ["/bin/sh", "-c", line],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a line and all that it has started, if nobody has seen it end yet.

    Until then its number, which is that of its session, cannot be anybody else's.
    """
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
