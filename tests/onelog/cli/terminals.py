"""A terminal with a program in it, as somebody sees it who sits there."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from types import TracebackType
from typing import Self

from tests.onelog.client.serving import ROOT

WITHIN_S = 60.0
SIZE = (40, 120)
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
ERASE_LINE = "\x1b[2K"


class Terminal:
    """Runs ``onelog``; ``shown`` is all that it has written so far, escapes included."""

    def __init__(self, *arguments: object) -> None:
        self.shown = ""
        self._leader, follower = pty.openpty()
        termios.tcsetwinsize(follower, SIZE)
        environment = {
            name: value
            for name, value in os.environ.items()
            # What rich takes for the truth about a terminal before it looks.
            if not name.startswith("ONELOG_") and name not in ("NO_COLOR", "COLUMNS", "LINES")
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "onelog.cli.main", *map(str, arguments)],
            stdin=follower, stdout=follower, stderr=follower,
            env=environment | {"TERM": "xterm", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        os.close(follower)

    def until(self, part: str, times: int = 1) -> None:
        """Wait until this was written so often."""
        until_s = time.monotonic() + WITHIN_S
        while self.shown.count(part) < times:
            assert self._read(until_s), f"no {part!r} in {self.shown!r}"

    def interrupt(self) -> None:
        """Do what Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Wait until the program ends; return its exit code."""
        until_s = time.monotonic() + WITHIN_S
        while self._read(until_s):
            pass
        return self._process.wait(WITHIN_S)

    def _read(self, until_s: float) -> bool:
        """Read what is there next; False if the program has ended."""
        left_s = until_s - time.monotonic()
        found, _, _ = select.select([self._leader], [], [], max(0.0, left_s))
        assert found, f"nothing more within {WITHIN_S} s: {self.shown!r}"
        try:
            data = os.read(self._leader, 1 << 16)
        except OSError:  # EIO: nobody has the other side open any more
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._leader)
