"""Benchmarks as processes, as short as they can be."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.system.processes import ROOT

WAIT_S = 120


def lines_of(script: str, *arguments: str | Path) -> list[dict[str, Any]]:
    """Return what a quick run of a benchmark prints."""
    done = subprocess.run(
        [sys.executable, script, "--quick", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
