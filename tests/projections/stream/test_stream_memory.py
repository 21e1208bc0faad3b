"""Accounts against reality: what streams say they hold, and what the process grew by."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = """
import json, resource, sys
from pathlib import Path
from onelog.projections.stream.commands import Create, Retention, encode_command
from onelog.projections.stream.commands import Deliver, GroupConfig, GroupCreate, GroupJoin
from onelog.projections.stream.commands import Append, ProducerRef
from onelog.projections.shard_state import build_projections
from onelog.ual.entry import Entry

class Notes:
    def add_record(self, stream_id, index): pass
    def add_void(self, first, last): raise AssertionError

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

state = build_projections(Notes())
shape, count = sys.argv[1], int(sys.argv[2])
index = 0
def run(command):
    global index
    index += 1
    draft = encode_command(command, "default")
    entry = Entry(draft.entry_type, 0, 1, index, index * 10**6, 0, draft.payload)
    result = state.router.apply(entry)
    assert type(result).__name__ == "Applied", result
run(Create("s"))
for number in range(2):
    run(Append("s", b"warm"))
run(GroupCreate("s", "warm", 0))
before = resident()
for number in range(count):
    if shape == "streams":
        run(Create("stream-%d" % number))
        run(Append("stream-%d" % number, b"x"))
    elif shape == "producers":
        if number % 9000 == 0:
            run(Create("p-%d" % (number // 9000)))
        for sequence in range(8):
            run(Append("p-%d" % (number // 9000), b"", producer=ProducerRef(number, 0, sequence)))
    elif shape == "groups":
        if number % 900 == 0:
            run(Create("g-%d" % (number // 900)))
        run(GroupCreate("g-%d" % (number // 900), "group-%d" % number, 0))
    elif shape == "members":
        if number % 900 == 0:
            run(Create("m-%d" % (number // 900)))
            run(GroupCreate("m-%d" % (number // 900), "g", 0))
        run(GroupJoin("m-%d" % (number // 900), "g", 10**10))
    elif shape == "pending":
        if number % 9000 == 0:
            name = "q-%d" % (number // 9000)
            run(Create(name)); begin = index + 1
            run(GroupCreate(name, "g", 0, GroupConfig(shared=True)))
            run(GroupJoin(name, "g", 10**10)); member = index
        run(Append(name, b""))
        run(Deliver(name, "g", member, 1, 0, begin, index + 1, (index,))); begin = index
    else:
        run(Append("s", b"x" * 100))
grown = resident() - before
accounted = sum(state.stream.memory().values())
keys = sum(state.kv.memory().values())
print(json.dumps([grown, accounted + keys]))
"""


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ("streams", 5_000),
        ("producers", 6_000),
        ("groups", 1_800),
        ("members", 28_800),
        ("pending", 18_000),
    ],
)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_the_accounts_are_within_a_quarter_of_the_process(shape: str, count: int) -> None:
    """Budgets are enforced by these numbers; a wrong one ends in a killed process."""
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, shape, str(count)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    grown, accounted = json.loads(finished.stdout)

    assert accounted == pytest.approx(grown, rel=0.25), (grown / count, accounted / count)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_record_leaves_nothing_behind_in_memory() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, "records", "100000"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    grown, _ = json.loads(finished.stdout)

    assert grown < 100_000, "a byte per record is one too many"
