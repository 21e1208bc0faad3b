"""From a full file to the next: appends go on, and nothing is called durable too early."""

from pathlib import Path

from onelog.ual.entry import HEADER_SIZE
from onelog.ual.log import Log
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.shards import append_one, close_active, make_shard, new_log, open_shard, seal_closed


def roll(log: Log) -> None:
    """Append until a next file has begun; sync nothing of it."""
    count = len(log.segments.segments)
    while len(log.segments.segments) == count:
        append_one(log, b"x" * 60)


def names_of(log: Log, disk: SimDisk) -> list[str]:
    return [Path(name).suffix for name in disk.list(log.segments.segments[0].path.parent)]


def test_appends_go_on_while_the_change_to_the_next_file_is_synced() -> None:
    disk = SimDisk()
    log = new_log(disk)
    roll(log)
    first = log.segments.segments[-1].first_index
    assert names_of(log, disk) == [".tmp", ".next"]
    assert log.durable_index < first - 1

    job = log.sync_begin()
    covered = append_one(log) - 1
    job.run()
    assert names_of(log, disk) == [".tmp", ".tmp"]
    assert log.durable_index < first - 1, "told by nobody yet"
    log.sync_finish(job)
    log.check()

    assert log.durable_index == covered
    assert log.unsynced_bytes == HEADER_SIZE + len(b"x")
    assert log.segments.read(covered + 1).payload == b"x"


def test_a_sync_that_began_before_the_next_file_covers_only_its_own() -> None:
    log = new_log()
    for _ in range(14):
        append_one(log, b"x" * 60)
        log.sync()
    append_one(log, b"x" * 60)
    job = log.sync_begin()
    covered = log.last_index
    roll(log)
    before = log.unsynced_bytes
    job.run()
    log.sync_finish(job)

    assert log.durable_index == covered
    assert log.unsynced_bytes < before
    assert log.needs_sync
    log.check()


def test_who_cannot_wait_for_the_change_to_the_next_file_finishes_it() -> None:
    """A cut, a second change, or an append that would be too much; the sync on its way is late."""
    for act in (
        lambda log: log.truncate_from(log.last_index),
        roll,
        lambda log: [append_one(log, b"y" * 60) for _ in range(9)],
        close_active,
    ):
        disk = SimDisk()
        log = new_log(disk)
        roll(log)
        job = log.sync_begin()
        act(log)
        log.check()
        generation, durable = log.generation, log.durable_index
        job.run()
        log.sync_finish(job)
        log.check()
        assert (log.generation, log.durable_index) == (generation, durable)
        log.sync()
        assert set(names_of(log, disk)) == {".tmp"}
        reopened, found = open_shard(disk.crash(CrashPolicy.LOST), make_shard(disk))
        assert (reopened.last_index, found.actions) == (log.last_index, [])


def test_a_file_that_is_not_synced_to_its_end_is_not_sealed() -> None:
    log = new_log()
    roll(log)
    end = log.segments.segments[-1].first_index - 1
    log.mark_committed(end)
    log.mark_applied(end)

    assert log.seal_begin() is None
    log.sync()
    assert seal_closed(log) == 1
