"""A server in a process of its own, for the blocking client."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from tests.system.ports import free_addresses

ROOT = Path(__file__).parents[3]
LISTENING_S = 120.0
LOOK_S = 0.05


def wait_for_listener(address: str, process: "subprocess.Popen[bytes]") -> None:
    """Wait until somebody listens there; a server that ended instead is seen by its clients."""
    host, _, port = address.rpartition(":")
    until_s = monotonic() + LISTENING_S
    while process.poll() is None and monotonic() < until_s:
        with socket.socket() as probe:
            if not probe.connect_ex((host, int(port))):
                return
        sleep(LOOK_S)


@contextmanager
def serving(directory: Path, *settings: str) -> Iterator[str]:
    """Run ``onelog serve`` and return its endpoint once it listens.

    ``settings`` are further flags.
    """
    api, peers, http = free_addresses(3)
    flags = ["--listen", api, "--peer-listen", peers, "--http-listen", http]
    command = [sys.executable, "-m", "onelog.cli.main", "serve", "--data-dir", str(directory)]
    process = subprocess.Popen([*command, *flags, *settings], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_for_listener(api, process)
        yield api
    finally:
        process.terminate()
        process.wait(30)
