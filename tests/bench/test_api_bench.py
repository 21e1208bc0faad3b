"""The benchmark of the API works: what it prints decides what is worth doing next."""

import json
import subprocess
import sys

from tests.system.processes import ROOT

WAIT_S = 120


def test_a_quick_run_has_a_row_for_every_case() -> None:
    done = subprocess.run(
        [sys.executable, "bench/api.py", "--quick", "--nodes", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    measured = {(row["case"], row.get("callers")): row for row in rows if "per_s" in row}
    assert {("put", 1), ("put", 64), ("get", 64), ("transact of 128", 16)} <= set(measured)
    for row in measured.values():
        assert row["per_s"] > 0, row
        assert 0 < row["p50_ms"] <= row["p99_ms"], row
        assert row["client_us"] > 0, row
