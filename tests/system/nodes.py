"""Real ``onelog serve`` processes: started with flags, watched over HTTP and by what they log."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.system.ports import free_addresses
from tests.system.processes import ROOT

WAIT_S = 120.0
POLL_S = 0.02

T = TypeVar("T")


class ServeProcess:
    """One ``onelog serve``; knows how to start it again with the same flags."""

    def __init__(self, directory: Path, name: str, flags: dict[str, str]) -> None:
        self.name = name
        self.directory = directory
        self.flags = {"name": name, "data-dir": str(directory / "data"), **flags}
        self.prefix: list[str] = []  # a program that starts it
        self.module = "onelog.cli.main"
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(exist_ok=True)

    @property
    def command(self) -> list[str]:
        flags = [part for name, text in self.flags.items() for part in (f"--{name}", text)]
        return [
            *self.prefix,
            sys.executable,
            "-m",
            self.module,
            "serve",
            "--logging-format",
            "json",
            *flags,
        ]

    @property
    def http(self) -> str:
        return self.flags["http-listen"]

    def start(self) -> "ServeProcess":
        assert self.process is None
        with (self.directory / "output").open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.directory,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait until it ends by itself; return its exit code."""
        assert self.process is not None
        code = self.process.wait(timeout=WAIT_S)
        self.process = None
        return code

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def rss_mib(self) -> float:
        """The memory that it has now."""
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / (1 << 20)

    @property
    def cpu_s(self) -> float:
        """The time of a core that it has used since it was started."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def output(self) -> str:
        return (self.directory / "output").read_text()

    def logged(self, part: str) -> list[dict[str, Any]]:
        """Return the log lines whose message has ``part``."""
        lines = [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]
        return [line for line in lines if part in line["message"]]

    def ready(self, port_plus: int = 0) -> tuple[int, dict[str, Any]]:
        """Return status and report of /ready; 0 if nobody answers."""
        status, body = get(self.http, "/ready", port_plus)
        return status, json.loads(body) if status in (200, 503) else {}

    def until_ready(self, port_plus: int = 0) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            assert self.is_running, self.output[-3000:]
            status, report = self.ready(port_plus)
            return report if status == 200 else None

        return until(look)

    def until_report(self, **fields: object) -> dict[str, Any]:
        """Wait until /ready says this, ready or not."""

        def look() -> dict[str, Any] | None:
            assert self.is_running, self.output[-3000:]
            _, report = self.ready()
            return report if report and fields.items() <= report.items() else None

        return until(look)

    def until_logged(self, part: str) -> dict[str, Any]:
        return until(lambda: self.logged(part) or None)[-1]


def get(address: str, path: str, port_plus: int = 0) -> tuple[int, bytes]:
    """Return status and body of a page; 0 if nobody answers."""
    host, port = address.rsplit(":", 1)
    url = f"http://{host}:{int(port) + port_plus}{path}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 0, b""


def until(look: Callable[[], T | None], within_s: float = WAIT_S) -> T:
    """Look again and again until there is something."""
    until_s = time.monotonic() + within_s
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        assert time.monotonic() < until_s, f"not within {within_s} s"
        time.sleep(POLL_S)


@contextmanager
def nodes(directory: Path, *names: str, **flags: str) -> Iterator[dict[str, ServeProcess]]:
    """Make nodes that found a cluster together; whatever happens, none is left running."""
    addresses = free_addresses(3 * len(names))
    peers = dict(zip(names, addresses, strict=False))
    initial = ",".join(f"{name}={at}" for name, at in peers.items())
    made = {}
    for number, name in enumerate(names):
        made[name] = ServeProcess(
            directory / name,
            name,
            {
                "listen": addresses[len(names) + number],
                "peer-listen": peers[name],
                "http-listen": addresses[2 * len(names) + number],
                "log-ring-bytes": "1MiB",
                "log-free-bytes-min": "0",
                **({"initial-cluster": initial} if len(names) > 1 else {}),
                **{key.replace("_", "-"): text for key, text in flags.items()},
            },
        )
    try:
        yield made
    finally:
        for each in made.values():
            each.kill()
