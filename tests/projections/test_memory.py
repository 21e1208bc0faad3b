"""Accounts against reality: what the projection says it holds, and what the process grew by."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEYS = 200_000
PROGRAM = """
import json, resource, sys
from pathlib import Path
from onelog.projections.kv.commands import Put, encode_command
from onelog.projections.shard_state import build_projections
from onelog.projections.kv.reads import Range
from onelog.ual.entry import Entry

class Notes:
    def add_record(self, stream_id, index): raise AssertionError
    def add_void(self, first, last): raise AssertionError

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

state = build_projections(Notes())
shape, keys = sys.argv[1], int(sys.argv[2])
before = resident()
index = 0
for round in range(3 if shape == "versions" else 1):
    for number in range(keys):
        index += 1
        size = 64 + number % 65 if shape != "large" else 600 + number % 1_000
        key = b"%016d" % (number * 7_919 % 1_000_003)
        ttl_ns = 10**12 + number if shape == "mortal" else None
        draft = encode_command(Put(key, bytes((number % 256,)) * size, ttl_ns), "default")
        state.router.apply(Entry(draft.entry_type, 0, 1, index, 1, 0, draft.payload))
if shape == "scanned":
    state.kv.scan("default", Range(), limit=1)
grown = resident() - before
accounted = sum(sum(kinds.values()) for kinds in state.router.memory().values())
print(json.dumps([grown, accounted]))
"""


@pytest.mark.parametrize(
    ("shape", "keys"),
    [
        ("plain", KEYS),
        ("versions", KEYS // 4),
        ("large", KEYS // 8),
        ("mortal", KEYS // 4),
        ("scanned", KEYS // 2),
    ],
)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_the_accounts_are_within_a_fifth_of_the_process(shape: str, keys: int) -> None:
    """Budgets are enforced by these numbers; a wrong one ends in a killed process."""
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, shape, str(keys)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    grown, accounted = json.loads(finished.stdout)

    assert accounted == pytest.approx(grown, rel=0.2)
