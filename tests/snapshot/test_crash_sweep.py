"""A shard with snapshots, crashed after every file operation of theirs, under every policy.

The workload appends, syncs, commits, seals, builds and keeps snapshots, two or more, and drops the
log below the oldest one. After each operation of a snapshot, and after some of the others
(tests/faults crashes those one by one), the disk is forked as a crash would leave it and the shard
restarted. Then:

* the state is the one that the live shard had at that index, and going on to the end of what was
  synced gives the state it had there;
* everything that was durable is there, and a snapshot that was kept once is never gone back on;
* there is no file in snaps/ that MANIFEST does not list, and restarting again finds nothing to do;
* what is sealed afterwards has the streams and voids that apply gave.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from onelog.projections.shard_state import Projections, build_projections
from onelog.snapshot.state import State, StateT
from onelog.snapshot.store import KeepConfig
from onelog.ual.entry import Draft
from onelog.ual.segments.notes import ApplyNotes
from onelog.ual.segments.sealed import SealedSegment
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.snapshot.live import SMALL, LiveShard, Work
from tests.snapshot.toys import TYPE_RECORD, VOID_SIZE, Toy, stream_of, toy_drafts
from tests.ual.shards import close_active, drop_before, seal_closed

STEPS = 24
DEEP_EVERY = 3  # crashes after which everything is sealed too, which costs most of the time
OTHERS_EVERY = 6  # operations that are not a snapshot's
SEEDS = [int(seed) for seed in os.environ.get("CRASH_SEEDS", "1").split(",")]
# A segment or two between snapshots, so that the log is dropped below the older one.
CONFIG = replace(SMALL, segment_bytes_max=500, segment_entries_max=10)


class Sweep:
    """A live shard, what it promised, and the crashes that it is held against."""

    def __init__(
        self,
        seed: int,
        make_state: Callable[[ApplyNotes], StateT],
        check_notes: Callable[[SealedSegment], None],
        keep: KeepConfig | None = None,
    ) -> None:
        self.keep = keep
        self.rng = Random(seed)
        self.crashes = Random(seed * 7919)
        self.make_state: Callable[[ApplyNotes], State] = make_state
        self.check_notes = check_notes
        self.disk = SimDisk(page_size=self.crashes.choice([64, 512]), tear_writes=True)
        self.live: LiveShard[State] = LiveShard(
            self.disk, self.make_state, config=CONFIG, keep=keep
        )
        self.hashes = {0: self.live.state_hash}
        self.durable_index = 0
        self.kept_index = 0
        self.is_snapshotting = False
        self.points = self.snapshots = self.most_kept = 0

    def append(self, drafts: list[Draft]) -> None:
        self.live.write(drafts)

    def sync_and_commit(self) -> None:
        self.live.log.sync()
        self.durable_index = self.live.log.durable_index
        # Group by group: each end is an index at which a restart may stand.
        log = self.live.log
        for proposal in range(log.first_proposal, log.last_proposal + 1):
            _, last = log.proposals.indexes(proposal)
            if last > log.applied_index:
                self.live.commit(last)
                self.hashes[last] = self.live.state_hash

    def snapshot(self, meanwhile: list[Draft]) -> None:
        live, newest = self.live, self.live.store.newest
        if live.log.applied_index > (newest.index if newest else 0):
            self.is_snapshotting = True
            result, capture = live.build()
            job = live.store.accept_begin(
                result.record, capture.state_hash, needed_from=capture.index + 1
            )
            assert job is not None
            self.append(meanwhile)
            if self.rng.random() < 0.5:
                self.sync_and_commit()
            job.run()
            self.kept_index = result.record.index
            self.snapshots += 1
            self.most_kept = max(self.most_kept, len(live.store.records))
            live.log.manifest_file.finish(job)
            self.is_snapshotting = False

    def crash_here(self, operation: str) -> None:
        if not self.is_snapshotting and self.disk.operations % OTHERS_EVERY:
            return
        for policy in (CrashPolicy.LOST, CrashPolicy.KEPT, CrashPolicy.RANDOM, CrashPolicy.RANDOM):
            self.points += 1
            crash_seed = self.crashes.getrandbits(32)
            crashed = self.disk.crash(policy, Random(crash_seed))
            try:
                self.check(crashed)
            except BaseException as error:
                error.add_note(f"{operation}, {policy}, crash seed {crash_seed}")
                raise

    def check(self, crashed: SimDisk) -> None:
        again: LiveShard[State] = LiveShard(crashed, self.make_state, config=CONFIG, keep=self.keep)
        log, store = again.log, again.store
        assert again.recovered.rejected == (), "a listed snapshot was not whole"
        assert again.state_hash == self.hashes[log.applied_index]
        assert log.last_index >= self.durable_index, "a synced entry is gone"
        assert log.applied_index >= self.kept_index, "a kept snapshot is gone"
        listed = [record.file for record in store.records]
        assert crashed.list(store.directory) == listed
        assert crashed.crash(CrashPolicy.LOST).list(store.directory) == listed
        assert log.first_index <= store.keep_from_index, "the log begins behind the oldest snapshot"
        if self.keep is not None and log.first_index > 1:
            old_ns = store.log_time_ns(store.records[-1]) - self.keep.past_ns
            assert store.log_time_ns(store.records[0]) <= old_ns, "the past is too short"
        if self.points % DEEP_EVERY:
            return
        # Whatever was appended and has survived may turn out to be committed.
        again.commit()
        if log.last_index in self.hashes:
            assert again.state_hash == self.hashes[log.last_index]
        close_active(log)
        seal_closed(log)
        for segment in log.segments.segments:
            if isinstance(segment, SealedSegment):
                self.check_notes(segment)


def run(sweep: Sweep, next_group: Callable[[int], list[Draft]]) -> None:
    rng, live = sweep.rng, sweep.live
    sweep.disk.after_operation = sweep.crash_here
    for _ in range(STEPS):
        sweep.append(next_group(live.log.last_index + 1))
        match rng.randrange(7):
            case 0 | 1 | 2:
                sweep.sync_and_commit()
            case 3:
                seal_closed(live.log)
            case 6 if sweep.keep is not None:
                sweep.snapshot(next_group(live.log.last_index + 1))
            case 4:
                sweep.snapshot(next_group(live.log.last_index + 1))
            case 5:
                drop_before(live.log, live.store.keep_from_index)
    for _ in range(2):
        sweep.append(next_group(live.log.last_index + 1))
        sweep.sync_and_commit()
        close_active(live.log)
        seal_closed(live.log)
        sweep.snapshot(next_group(live.log.last_index + 1))
    drop_before(live.log, live.store.keep_from_index)


def report(sweep: Sweep, name: str, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(  # noqa: T201 - the number of crash points is part of the result
            f"\nsnapshot crash sweep, {name}, seed {seed}: {sweep.points} crash points at "
            f"{sweep.disk.operations} operations, {sweep.live.log.last_index} entries from "
            f"{sweep.live.log.first_index}, newest snapshot at {sweep.kept_index}"
        )
    assert sweep.points > 200
    assert sweep.live.log.first_index > 1, "the log was never shortened"
    if sweep.keep is None:
        assert len(sweep.live.store.records) == 2
    else:
        assert sweep.snapshots > sweep.most_kept > 2


def check_toy_notes(segment: SealedSegment) -> None:
    streams: dict[int, list[int]] = {}
    voids: list[int] = []
    for entry in segment.entries(segment.first_index, segment.last_index):
        if len(entry.payload) == VOID_SIZE:
            voids.append(entry.index)
        elif entry.entry_type == TYPE_RECORD:
            streams.setdefault(stream_of(entry.index), []).append(entry.index)
    notes = segment.notes()
    assert {key: value.tolist() for key, value in notes.streams.items()} == streams
    assert [at for first, last in notes.voids.tolist() for at in range(first, last + 1)] == voids


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_after_any_file_operation_loses_nothing(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep(seed, Toy, check_toy_notes)
    run(sweep, lambda first: toy_drafts(sweep.rng.randint(1, 6), first))
    report(sweep, "toy", seed, capsys)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_loses_nothing_while_more_snapshots_are_kept_for_the_past(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group is a second after the one before it, so the past has a third of the workload."""
    sweep = Sweep(seed, Toy, check_toy_notes, KeepConfig(past_s_min=STEPS / 3))
    run(sweep, lambda first: toy_drafts(sweep.rng.randint(1, 6), first))
    report(sweep, "toy with a past", seed, capsys)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_of_the_real_router_after_any_file_operation_loses_nothing(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Work(seed)

    def make(notes: ApplyNotes) -> Projections:
        return build_projections(notes)

    sweep = Sweep(seed, make, lambda segment: segment.check_file())
    run(sweep, work.group)
    report(sweep, "router", seed, capsys)


def test_notes_are_not_lost_with_the_name_of_a_segment_that_was_just_sealed() -> None:
    """Seal and build run side by side. A new name that is not durable yet may vanish in a crash,

    and then the snapshot must have the notes of entries that looked sealed when it was made.
    """
    disk = SimDisk()
    live = LiveShard(disk, Toy)
    for number in range(8):
        live.do(toy_drafts(7, 7 * number))
    assert len(live.log.segments.segments) > 1, "there is nothing to seal"
    snapshots: list[int] = []

    def build_now(operation: str) -> None:
        if operation.startswith("rename") and operation.endswith(".flseg") and not snapshots:
            snapshots.append(live.snapshot().record.index)
            raise KeyboardInterrupt  # and the power fails

    disk.after_operation = build_now
    with pytest.raises(KeyboardInterrupt):
        seal_closed(live.log)
    again = LiveShard(disk.crash(CrashPolicy.LOST), Toy)
    assert again.log.segments.sealed_index == 0, "the new name was durable after all"
    assert again.recovered.snapshot is not None
    assert again.recovered.snapshot.record.index == snapshots[0]
    close_active(again.log)
    assert seal_closed(again.log) > 1
    for segment in again.log.segments.segments[:-1]:
        assert isinstance(segment, SealedSegment)
        check_toy_notes(segment)
