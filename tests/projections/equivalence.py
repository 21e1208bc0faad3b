"""One log, many ways to apply it: all must lead to the same hashes, answers and snapshots.

``Trace`` is what a replica shows to the outside: its hash after every group, and at the end every
answer to every question and every byte of a snapshot. ``compare_replicas`` makes a random log and
holds four other replicas against the one that wrote it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from onelog.projections.kv.reads import Range
from onelog.projections.limits import SCAN_KEYS_MAX
from onelog.projections.result import Applied
from onelog.ual.entry import Entry, decode_entries
from tests.projections.histories import DOCUMENTS, KEYS, NUMBERS, Writer
from tests.projections.queue import queue_histories
from tests.projections.stream import stream_histories
from tests.projections.timeseries import ts_histories
from tests.projections.world import World
from tests.ual.shards import check_groups

ROOT = Path(__file__).parents[2]
STEPS = 220
AS_OF_COUNT = 12


@dataclass(frozen=True)
class Trace:
    """All that a replica shows."""

    hashes: list[str]
    answers: str
    sections: dict[str, str]


def groups_of(log: bytes) -> list[list[Entry]]:
    return [decode_entries(group.data) for group in check_groups(log, 1)]


def trace_of(world: World, hashes: list[str]) -> Trace:
    world.state.router.check()
    return Trace(
        hashes,
        answers_of(world),
        {str(owner): data.hex() for owner, data in world.sections().items()},
    )


def answers_of(world: World) -> str:
    """Ask everything that can be asked, now and as of some indexes."""
    kv = world.state.kv
    draw = Random(world.index)
    moments = [None, *(draw.randint(0, world.index) for _ in range(AS_OF_COUNT))]
    answers: list[object] = []
    for name in sorted(kv.stores):
        for key in [*KEYS, *NUMBERS, *DOCUMENTS]:
            answers.append(kv.history(name, key))
            answers += [kv.get(name, key, as_of) for as_of in moments]
        for as_of in moments:
            answers += [
                kv.scan(name, Range(), limit=SCAN_KEYS_MAX, reverse=reverse, as_of=as_of)
                for reverse in (False, True)
            ]
    answers += queue_histories.answers(world.state.queue)
    answers += stream_histories.answers(world.state.stream)
    answers += ts_histories.answers(world.state.series)
    answers += (world.notes.records, world.notes.voids)
    router = world.state.router
    answers += [router.next_deadline(), router.due(2**63, 1_000), world.state.system.raft_config]
    answers += world.state.system.holds
    return repr(answers)


def apply_log(log: bytes, between: Callable[[World, int], World] = lambda world, _: world) -> Trace:
    """Apply a log group by group; ``between`` may do to the replica what must not show."""
    world = World()
    hashes = []
    for number, entries in enumerate(groups_of(log)):
        world.state.router.apply_group(entries)
        hashes.append(f"{world.state.router.state_hash():016x}")
        world = between(world, number)
    return trace_of(world, hashes)


def apply_one_by_one(log: bytes) -> Trace:
    world = World()
    hashes = []
    for entries in groups_of(log):
        for entry in entries:
            world.state.router.apply(entry)
        hashes.append(f"{world.state.router.state_hash():016x}")
    return trace_of(world, hashes)


def apply_in_another_process(log: bytes, hash_seed: int, mutation: str) -> Trace:
    """Apply the log where sets and hash() have another order."""
    finished = subprocess.run(
        [sys.executable, "-m", "tests.projections.replay_process", mutation],
        input=log,
        capture_output=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
    )
    return Trace(**json.loads(finished.stdout))


def applied_types(log: bytes) -> set[int]:
    """Return the types of the entries that took effect, those in batches included."""
    router = World().state.router
    found = set()
    for entries in groups_of(log):
        results = router.apply_group(entries)
        found |= {
            entry.entry_type
            for entry, result in zip(entries, results, strict=True)
            if isinstance(result, Applied)
        }
    return found


def encode_trace(trace: Trace) -> str:
    return json.dumps(asdict(trace))


def compare_replicas(seed: int, *, mutation: str = "none") -> None:
    """Assert that a random log means the same however it is applied."""
    live = Writer(seed).write(STEPS).log
    draw = Random(seed)
    expected = apply_log(bytes(live))
    log = bytes(live)

    assert apply_one_by_one(log) == expected, f"seed {seed}: one by one"

    def reload_sometimes(world: World, _: int) -> World:
        return world.reloaded(draw.randint(1, 5_000)) if draw.random() < 0.03 else world

    assert apply_log(log, reload_sometimes) == expected, f"seed {seed}: snapshots"

    def evict_often(world: World, _: int) -> World:
        if draw.random() < 0.3:
            world.state.router.evict(draw.randint(1, 20_000))
        return world

    assert apply_log(log, evict_often) == expected, f"seed {seed}: eviction"

    hash_seed = draw.randint(1, 2**32 - 1)
    other = apply_in_another_process(log, hash_seed, mutation)
    assert other == expected, f"seed {seed}: another process, PYTHONHASHSEED={hash_seed}"


def compare_with_writer(seed: int) -> bytes:
    """Assert that the replica that wrote the log is where a replay arrives; return the log."""
    world = Writer(seed).write(STEPS)
    replayed = apply_log(bytes(world.log))
    assert replayed.hashes[-1] == f"{world.state.router.state_hash():016x}"
    assert replayed == trace_of(world, replayed.hashes)
    return bytes(world.log)
