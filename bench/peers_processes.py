"""Starts and stops processes of other systems and the loads on them; requests have deadlines.

No process outlives its ``with`` block. Each leads its own session, so its child processes end with
it, and Ctrl-C reaches only this program, which then stops the others in order. A process that does
not answer in time, or exits by itself, raises ``PeerFailed`` with the end of its log.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# RabbitMQ takes 15 s on an idle machine.
START_S = 120.0
POLL_S = 0.05
HTTP_S = 2.0
KILLED_S = 10.0
LOG_TAIL = 3_000
INTERRUPTED, TERMINATED = 130, 143


class PeerFailed(Exception):
    """Another system, or a load on one, did not do what it should."""


def find_exit_code(run: Callable[[], None]) -> int:
    """Run a benchmark; terminated or interrupted, it ends all of its processes first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        run()
    except PeerFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


class Running:
    """A process and the file that has all it says."""

    def __init__(
        self,
        name: str,
        command: list[str],
        directory: Path,
        environment: Mapping[str, str] | None = None,
        stdio: int = subprocess.DEVNULL,
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as log:
            try:
                self.process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=os.environ | (environment or {}),
                    stdin=stdio,
                    stdout=stdio if stdio == subprocess.PIPE else log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise PeerFailed(f"{name} cannot be started: {error}") from None

    @property
    def pid(self) -> int:
        return self.process.pid

    def failed(self, what: str) -> PeerFailed:
        """Return the error that says so, with what the process said last."""
        said = self.log.read_text(errors="replace")[-LOG_TAIL:].strip()
        return PeerFailed(f"{self.name} {what}\n{said or '(it has logged nothing)'}")

    def until(self, look: Callable[[], bool], what: str, within_s: float = START_S) -> None:
        """Look again and again, as long as the process runs and there is time."""
        until_s = time.monotonic() + within_s
        while not look():
            if (code := self.process.poll()) is not None:
                raise self.failed(f"has ended with {code} before {what}")
            if time.monotonic() > until_s:
                raise self.failed(f"runs, but {within_s:.0f} s were not enough until {what}")
            time.sleep(POLL_S)

    def kill(self) -> None:
        """End it, and what it has started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(KILLED_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextmanager
def running(
    name: str, command: list[str], directory: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Start a process, and end it."""
    made = Running(name, command, directory, environment)
    try:
        yield made
    finally:
        made.kill()


class Load(Running):
    """A process that puts load on a system: a line of JSON to it, and a line back."""

    def until_connected(self) -> None:
        """Wait for the line that it prints at the start."""
        self._answer(START_S, "is connected")

    def ask(self, within_s: float, **command: Any) -> dict[str, Any]:
        """Have something measured."""
        stdin = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(command).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise self.failed("has ended") from None
        return self._answer(within_s, f"has measured {command}")

    def _answer(self, within_s: float, what: str) -> dict[str, Any]:
        stdout = self.process.stdout
        assert stdout is not None
        # A line is written at once and there is only one, so what can be read is all of it.
        if not select.select([stdout], [], [], within_s)[0]:
            raise self.failed(f"did not answer within {within_s:.0f} s, before it {what}")
        line = stdout.readline()
        if not line:
            raise self.failed(f"has ended before it {what}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def loading(
    name: str, python: str, module: str, directory: Path, endpoints: Mapping[str, str]
) -> Iterator[Load]:
    """Start a load on nodes by their names, and end it."""
    command = [python, "-m", module, json.dumps(endpoints)]
    load = Load(f"load-{name}", command, directory, stdio=subprocess.PIPE)
    try:
        load.until_connected()
        yield load
    finally:
        load.kill()


def listens(address: str) -> bool:
    """Return whether a server accepts connections."""
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=HTTP_S):
            return True
    except OSError:
        return False


def answers(url: str) -> bool:
    """Say whether a page is there and means yes."""
    try:
        with urllib.request.urlopen(url, timeout=HTTP_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
