"""Accounts of queues against reality: what they say they hold, and what the process grew by."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
sys.path.insert(0, ".")
from bench.models_queue import fill_and_report
fill_and_report(sys.argv[1], int(sys.argv[2]))
"""


# So many that a megabyte, which imports leave free in the process, makes no difference.
@pytest.mark.parametrize(
    ("shape", "messages"),
    [("plain", 250_000), ("leased", 250_000), ("ttl", 250_000), ("group of 1", 80_000)],
)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_the_accounts_are_near_what_the_process_grew_by(shape: str, messages: int) -> None:
    """Budgets are enforced by these numbers; a plain message has 64 bytes at most."""
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, shape, str(messages)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    figures = json.loads(finished.stdout)

    assert figures["accounted"] == pytest.approx(figures["rss"], rel=0.3)
    assert figures["rss"] <= 64 or shape != "plain"
