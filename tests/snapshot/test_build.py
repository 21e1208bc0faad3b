"""Building a snapshot from files while the shard goes on."""

import errno
from dataclasses import asdict

import pytest

from onelog.projections.shard_state import Projections, build_projections
from onelog.snapshot.build import BuildRequest, BuildResult, Capture, build_in_process, plan_build
from onelog.snapshot.errors import LogGap, StateMismatch
from onelog.snapshot.progress import Phase
from onelog.snapshot.reader import SnapshotReader
from onelog.ual.errors import DiskFull, IndexDropped
from tests.simulation.disk import SimDisk
from tests.snapshot.live import LiveShard, Work, accept, put
from tests.snapshot.toys import Toy, toy_drafts
from tests.ual.shards import close_active, drop_before, seal_closed


def planned(live: LiveShard[Projections] | LiveShard[Toy]) -> BuildRequest:
    return plan_build(
        Capture.of(live.state.router),
        live.log,
        live.store,
        data_dir=live.data_dir,
        shard=0,
        created_s=5,
    )


def test_the_header_says_where_in_the_log_the_state_stands() -> None:
    live = LiveShard(SimDisk(), Toy)
    for number in range(9):
        live.do(toy_drafts(3, number), term=2 + number // 3)
        if number == 4:
            live.snapshot()
    result = live.snapshot()
    header = SnapshotReader.open(live.files, live.store.path(result.record)).header
    last = live.log.read(live.log.last_index)
    assert (header.shard, header.index, header.term) == (0, last.index, 4)
    assert header.timestamp_ns == last.timestamp_ns
    assert header.proposal == result.proposal == live.log.last_proposal == 9
    assert (result.base_index, result.entry_count) == (15, 12)
    assert result.counts == {"payloads": len(live.state.payloads)}


@pytest.mark.parametrize("seed", range(6))
def test_a_snapshot_of_a_snapshot_is_the_snapshot_of_the_whole_log(seed: int) -> None:
    """Equal states give equal files, whichever way they were reached."""
    disk = SimDisk()
    live = LiveShard(disk, build_projections)
    work = Work(seed)
    for number in range(40):
        live.do(work.group(live.log.last_index + 1))
        if number % 9 == 8:
            live.snapshot()
    request = planned(live)
    built = build_in_process(disk, request, build_projections)
    bytes_built = disk.contents(live.store.path(built.record))
    whole = BuildRequest(**{**asdict(request), "snapshots": (), "created_s": 6})
    from_start = build_in_process(disk, whole, build_projections)
    assert (built.base_index > 0, from_start.base_index) == (True, 0)
    assert from_start.record.state_hash == built.record.state_hash == live.state_hash
    assert disk.contents(live.store.path(from_start.record)) == bytes_built


def test_the_shard_goes_on_while_its_snapshot_is_built() -> None:
    """Appends, seals, cuts, closes and drops between any two steps of the builder."""
    disk = SimDisk()
    live = LiveShard(disk, Toy)
    for number in range(12):
        live.do(toy_drafts(9, 9 * number))
        if number == 3:
            live.snapshot()
    capture, request = Capture.of(live.state), planned(live)
    steps = 0

    def go_on(_phase: Phase, _done: int, _total: int) -> None:
        nonlocal steps
        steps += 1
        live.write(toy_drafts(5, 1000 + steps))
        if steps % 2:
            live.log.sync()
            live.commit()
            seal_closed(live.log)
        else:
            live.log.truncate_from(live.log.last_index - 4)
        drop_before(live.log, live.store.keep_from_index)

    result = build_in_process(disk, request, Toy, go_on)

    assert steps > 5
    assert live.log.last_index > capture.index
    accept(live.log, live.store, result.record, capture.state_hash)
    again = LiveShard(disk, Toy)
    assert again.recovered.snapshot is not None
    assert again.recovered.snapshot.record.index == capture.index


def test_a_file_that_is_sealed_while_it_is_being_read_is_found_again() -> None:
    disk = SimDisk()
    live = LiveShard(disk, Toy)
    for number in range(14):
        live.do(toy_drafts(9, 9 * number))
    capture, request = Capture.of(live.state), planned(live)
    assert live.log.segments.sealed_index == 0

    class SealingToy(Toy):
        """Lets the server seal after the first group was read."""

        def apply(self, entry, /):  # type: ignore[no-untyped-def]
            if entry.index == 1:
                assert seal_closed(live.log) > 1
            super().apply(entry)

    result = build_in_process(disk, request, SealingToy)
    accept(live.log, live.store, result.record, capture.state_hash)


def test_a_damaged_base_is_reported_and_the_older_one_used() -> None:
    live = LiveShard(SimDisk(), Toy)
    for number in range(3):
        live.do(toy_drafts(5, 10 * number))
        if number < 2:
            live.snapshot()
    assert isinstance(live.files, SimDisk)
    older, newest = live.store.records
    live.files.flip(live.store.path(newest), 1000)
    result = live.snapshot()
    assert result.base_index == older.index
    assert len(result.rejected) == 1
    assert newest.file in result.rejected[0]


def test_a_builder_that_computes_another_state_is_found_out() -> None:
    live = LiveShard(SimDisk(), Toy)
    live.do(toy_drafts(6, 0))

    class WrongToy(Toy):
        def apply(self, entry, /):  # type: ignore[no-untyped-def]
            super().apply(entry._replace(payload=entry.payload + b"!"))

    capture = Capture.of(live.state)
    result = build_in_process(live.files, planned(live), WrongToy)
    with pytest.raises(StateMismatch, match="the live state says"):
        accept(live.log, live.store, result.record, capture.state_hash)
    assert live.files.list(live.paths.snapshots) == []


def test_a_target_inside_a_group_is_refused() -> None:
    live = LiveShard(SimDisk(), Toy)
    live.do(toy_drafts(6, 0))
    request = BuildRequest(**{**asdict(planned(live)), "target_index": 4, "snapshots": ()})
    with pytest.raises(LogGap):
        build_in_process(live.files, request, Toy)
    assert live.files.list(live.paths.snapshots) == []


def test_without_a_base_the_beginning_of_the_log_must_be_there() -> None:
    live = LiveShard(SimDisk(), Toy)
    for number in range(3):
        live.do(toy_drafts(9, 10 * number))
        close_active(live.log)
        seal_closed(live.log)
        if number < 2:
            live.snapshot()
    drop_before(live.log, live.store.keep_from_index)
    request = BuildRequest(**{**asdict(planned(live)), "snapshots": ()})
    with pytest.raises(IndexDropped):
        build_in_process(live.files, request, Toy)


def test_a_stopped_build_leaves_nothing_behind() -> None:
    live = LiveShard(SimDisk(), build_projections)
    for number in range(20):
        live.do([put(b"%d" % number, bytes(300))])
    for phase in (Phase.REPLAY, Phase.WRITE):

        def stop(at: Phase, _done: int, _total: int, last: Phase = phase) -> None:
            if at is last:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            live.build(stop)
        assert live.files.list(live.paths.snapshots) == []


def test_a_full_disk_ends_a_build_and_nothing_else() -> None:
    live = LiveShard(SimDisk(), Toy)
    live.do(toy_drafts(6, 0))
    assert isinstance(live.files, SimDisk)
    live.files.fail("write", errno.ENOSPC, path_contains=".fsnap")
    with pytest.raises(DiskFull):
        live.build()
    assert live.files.list(live.paths.snapshots) == []
    live.do(toy_drafts(6, 10))
    live.snapshot()


def test_requests_and_results_come_back_from_their_json() -> None:
    live = LiveShard(SimDisk(), Toy)
    live.do(toy_drafts(6, 0))
    result = live.snapshot()
    live.do(toy_drafts(6, 10))
    request = planned(live)
    assert BuildRequest.decode(request.encode()) == request
    assert "\n" not in request.encode()
    assert BuildResult.decode(asdict(result)) == result
