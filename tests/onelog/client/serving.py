"""A server in a process of its own, for the blocking client."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.system.ports import free_addresses

ROOT = Path(__file__).parents[3]


@contextmanager
def serving(directory: Path, *settings: str) -> Iterator[str]:
    """Run ``onelog serve`` and return its endpoint; the first call waits until it is ready.

    ``settings`` are further flags.
    """
    api, peers, http = free_addresses(3)
    flags = ["--listen", api, "--peer-listen", peers, "--http-listen", http]
    command = [sys.executable, "-m", "onelog.cli.main", "serve", "--data-dir", str(directory)]
    process = subprocess.Popen([*command, *flags, *settings], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield api
    finally:
        process.terminate()
        process.wait(30)
