"""One workload, crashed after every single file operation, under every crash policy.

The workload does everything a log does to its files: appends, syncs, closes, seals, suffix cuts
and prefix drops. After each of its operations the disk is forked as a crash would leave it and
recovered. What must hold, at every point:

* everything that a sync had covered is there, byte for byte;
* nothing else is: what is recovered is a prefix of what was written, and what was cut stays cut;
* indexes are dense, streams and voids of sealed files are the ones apply gave;
* recovering again finds the same log and nothing to tidy, even if the power fails in between.
"""

import os
from dataclasses import dataclass, field
from random import Random

import pytest

from onelog.ual.directory import ShardPaths
from onelog.ual.entry import Entry
from onelog.ual.log import Log
from onelog.ual.segments.sealed import SealedSegment
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.shards import close_active, make_shard, open_shard, seal_closed

EPOCHS = 6
STEPS_PER_EPOCH = 25
RANDOM_CRASHES_PER_POINT = 2
SEEDS = [int(seed) for seed in os.environ.get("CRASH_SEEDS", "1,2,3").split(",")]


@dataclass
class Promise:
    """What a recovery must and may find at this moment."""

    entries: list[Entry] = field(default_factory=list)  # index i at position i - 1
    durable_index: int = 0  # what was promised to survive
    first_index_max: int = 1  # the start may be this high: an unfinished drop counts as done


class Workload:
    """Random operations on a log, with a plain list as its twin."""

    def __init__(self, disk: SimDisk, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = disk
        self.paths = make_shard(disk)
        self.log, _ = open_shard(disk, self.paths)
        self.promise = Promise()
        self.clock_ns = 0
        self.term = 1

    def restart(self, disk: SimDisk) -> None:
        """Go on from a crashed disk, with whatever survived."""
        self.disk = disk
        self.log, _ = open_shard(disk, self.paths)
        entries = self.promise.entries[: self.log.last_index]
        self.promise = Promise(entries, self.log.durable_index, self.log.first_index)
        self.clock_ns = self.log.last_timestamp_ns
        self.term = self.log.last_term + 1

    def close_active(self) -> None:
        close_active(self.log)

    def step(self) -> None:
        actions = [
            (30, self.append), (12, self.sync), (6, self.overlapped_sync), (14, self.commit),
            (12, self.apply), (3, self.close_active), (8, self.seal), (4, self.truncate),
            (5, self.drop), (2, self.log.checkpoint),
        ]  # fmt: skip
        weights = [weight for weight, _ in actions]
        ((_, action),) = self.rng.choices(actions, weights)
        action()
        self.log.check()

    def append(self) -> None:
        rng, log = self.rng, self.log
        self.clock_ns += rng.choice([0, 1, 10**9, 3 * 10**9])
        self.term += rng.random() < 0.1
        payloads = [rng.randbytes(rng.choice([0, 5, 30, 90])) for _ in range(rng.randint(1, 5))]
        drafts = [(rng.choice([0x0101, 0x0201, 0x0401]), payload, 0) for payload in payloads]
        # A roll inside append syncs; until it returns, only what was promised before counts.
        first = log.last_index + 1
        added = [
            Entry(kind, 0, self.term, first + at, self.clock_ns, len(drafts) - at - 1, payload)
            for at, (kind, payload, _) in enumerate(drafts)
        ]
        self.promise.entries = self.promise.entries + added
        log.append(drafts, term=self.term, timestamp_ns=self.clock_ns)
        self.promise.durable_index = log.durable_index

    def sync(self) -> None:
        self.log.sync()
        self.promise.durable_index = self.log.durable_index

    def overlapped_sync(self) -> None:
        """The next group fills while a sync is in flight: it must not be covered by it."""
        job = self.log.sync_begin()
        covered = self.log.last_index
        if self.rng.random() < 0.5:
            job.run()
            self.append()
        else:
            self.append()
            job.run()
        self.log.sync_finish(job)
        assert self.log.durable_index >= covered
        self.promise.durable_index = self.log.durable_index

    def commit(self) -> None:
        # Raft commits what a quorum holds; this replica may be behind with its own sync.
        # In small steps, so that cuts find several files above the commit index.
        index = min(self.log.commit_index + self.rng.randint(1, 12), self.log.last_index)
        self.log.mark_committed(index)

    def apply(self) -> None:
        index = self.rng.randint(self.log.applied_index, self.log.commit_index)
        for entry in self.promise.entries[self.log.applied_index : index]:
            if is_void(entry):
                self.log.notes.add_void(entry.index, entry.index)
            elif entry.entry_type == 0x0401:
                self.log.notes.add_record(stream_of(entry), entry.index)
        self.log.mark_applied(index)

    def seal(self) -> None:
        seal_closed(self.log)

    def truncate(self) -> None:
        log, promise = self.log, self.promise
        starts = [
            entry.index
            for before, entry in zip([None, *promise.entries], promise.entries, strict=False)
            if entry.index > log.commit_index and (before is None or before.group_left == 0)
        ]
        if not starts:
            return
        index = self.rng.choice(starts)
        promise.durable_index = min(promise.durable_index, index - 1)
        log.truncate_from(index)
        promise.entries = promise.entries[: index - 1]
        promise.durable_index = log.durable_index
        self.clock_ns = log.last_timestamp_ns
        self.term = max(self.term, log.last_term) + 1

    def drop(self) -> None:
        index = max(1, self.log.applied_index - self.rng.choice([0, 0, 10, 30]))
        self.promise.first_index_max = max(self.promise.first_index_max, index)
        job = self.log.drop_begin(index)
        if job is None:
            return
        # MANIFEST is replaced and files are removed beside all this; some of it cannot wait.
        meanwhile = [self.append, self.sync, self.seal, self.truncate, self.log.checkpoint]
        for action in self.rng.choices(meanwhile, k=self.rng.randrange(3)):
            action()
        job.run()
        for action in self.rng.choices(meanwhile, k=self.rng.randrange(3)):
            action()
        self.log.manifest_file.finish(job)
        self.promise.first_index_max = self.log.first_index


def stream_of(entry: Entry) -> int:
    return 1 + entry.term % 3


def is_void(entry: Entry) -> bool:
    return len(entry.payload) == 5


def contents(log: Log) -> tuple[int, list[Entry]]:
    first = log.first_index
    return first, [log.segments.read(index) for index in range(first, log.last_index + 1)]


def check_recovered(disk: SimDisk, paths: ShardPaths, promise: Promise) -> SimDisk:
    """Recover a crashed disk and hold it against the promise; return the recovered disk."""
    log, _ = open_shard(disk, paths)
    log.check()
    first, entries = contents(log)
    assert entries == promise.entries[first - 1 : log.last_index], "not what was written"
    assert log.last_index >= promise.durable_index, "a synced entry is gone"
    assert first <= promise.first_index_max, "a kept entry was dropped"
    assert not entries or entries[-1].group_left == 0, "half a group"
    assert log.durable_index == log.last_index
    for segment in log.segments.segments:
        if isinstance(segment, SealedSegment):
            check_notes(segment, promise.entries[segment.first_index - 1 : segment.last_index])
    return disk


def check_notes(segment: SealedSegment, entries: list[Entry]) -> None:
    segment.check_file()
    for entry in entries:
        assert segment.is_void(entry.index) == is_void(entry)
    records = [e.index for e in entries if e.entry_type == 0x0401 and not is_void(e)]
    found = [index for stream in (1, 2, 3) for index in segment.stream_records(stream).tolist()]
    assert sorted(found) == records


def check_twice(disk: SimDisk, paths: ShardPaths, promise: Promise) -> None:
    recovered = check_recovered(disk, paths, promise)
    again = recovered.crash(CrashPolicy.LOST)
    log, found = open_shard(again, paths)
    assert found.actions == [], "the first recovery left something to tidy"
    before, _ = open_shard(recovered.crash(CrashPolicy.KEPT), paths)
    assert contents(log) == contents(before), "what recovery called durable was not"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_after_any_file_operation_loses_nothing_that_was_synced(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The promise of the whole log, at each of thousands of moments.

    Now and then the workload itself goes on from one of the crashes: what recovery left on the
    disk must not come back to life behind what is written next.
    """
    points = operations = files = 0
    crashes = Random(seed * 7919)
    disk = SimDisk(page_size=crashes.choice([64, 256, 512]), tear_writes=True)
    workload = Workload(disk, seed)

    def crash_here(operation: str) -> None:
        nonlocal points
        random_crashes = [CrashPolicy.RANDOM] * RANDOM_CRASHES_PER_POINT
        for policy in [CrashPolicy.LOST, CrashPolicy.KEPT, *random_crashes]:
            points += 1
            crash_seed = crashes.getrandbits(32)
            crashed = workload.disk.crash(policy, Random(crash_seed))
            try:
                check_twice(crashed, workload.paths, workload.promise)
            except BaseException as error:
                error.add_note(f"seed {seed}, {operation}, {policy}, crash seed {crash_seed}")
                raise

    for _ in range(EPOCHS):
        workload.disk.after_operation = crash_here
        for _ in range(STEPS_PER_EPOCH):
            workload.step()
        operations += workload.disk.operations
        files += len(workload.log.segments.segments)
        workload.restart(workload.disk.crash(CrashPolicy.RANDOM, crashes))
    cuts = workload.log.generation
    with capsys.disabled():
        print(  # noqa: T201 - the number of crash points is part of the result
            f"\ncrash sweep, seed {seed}: {points} crash points at {operations} operations, "
            f"{workload.log.last_index} entries, {cuts} cuts, {files} files, "
            f"first index {workload.log.first_index}"
        )
    assert points > 1000
    assert cuts > 0


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_over_many_files_is_finished_after_a_crash_at_any_point(seed: int) -> None:
    """Removals may reach the disk in any order: without the recorded intent, that is a hole."""
    crashes = Random(seed)
    disk = SimDisk(page_size=256, tear_writes=True)
    workload = Workload(disk, seed)
    while len(workload.log.segments.segments) < 6:
        workload.append()
    workload.sync()
    index = workload.log.proposals.indexes(crashes.randint(1, 4))[0]
    promise = workload.promise

    def crash_here(_operation: str) -> None:
        for _ in range(12):
            crashed = disk.crash(CrashPolicy.RANDOM, Random(crashes.getrandbits(32)))
            check_recovered(crashed, workload.paths, promise)

    promise.durable_index = index - 1
    disk.after_operation = crash_here
    workload.log.truncate_from(index)
    promise.entries = promise.entries[: index - 1]
    crash_here("after the cut")
