"""Segments that nobody writes to any more are closed by their age, and sealed."""

from dataclasses import replace

from tests.cluster.raft.lone_shard import LOG, PEER, SECOND, LoneShard


def seal(lone: LoneShard) -> int:
    """Do what the driver does now and then; return how many files the log has."""
    job = lone.shard.seal_begin()
    if job is not None:
        job.run()
        assert lone.shard.on_sealed(job)
    lone.sync()
    return len(lone.shard.log.segments.segments)


def test_an_idle_leader_closes_its_segment_after_an_hour_and_seals_it() -> None:
    lone = LoneShard()
    lone.lead()
    lone.propose()
    lone.acknowledge()
    before = seal(lone)
    assert seal(lone) == before, "it is young"

    for _ in range(LOG.segment_age_ns_max // SECOND // 60 + 1):
        lone.clock.time_s += 60
        lone.hear(PEER, lone.ack())
    files = [seal(lone), seal(lone)]
    assert files == [before + 1, before + 1]
    assert lone.shard.log.segments.sealed_index == lone.shard.log.last_index


def test_a_full_disk_leaves_an_idle_segment_as_it_is() -> None:
    lone = LoneShard()
    lone.lead()
    lone.propose()
    lone.acknowledge()
    before = seal(lone)
    lone.clock.time_s += 2 * LOG.segment_age_ns_max / SECOND
    lone.disk.capacity = 0

    assert seal(lone) == before
    assert lone.shard.failure is None
    lone.disk.capacity = None
    assert seal(lone) == before + 1


def test_a_follower_goes_by_the_time_of_its_leader() -> None:
    lone = LoneShard()
    group = lone.next_group(b"v", term=1)
    lone.hear(PEER, lone.append([group.data], term=1))
    lone.sync()
    before = seal(lone)
    lone.clock.time_s += 10 * LOG.segment_age_ns_max / SECOND  # by itself it knows no time
    assert seal(lone) == before

    late_ns = group.last_timestamp_ns + LOG.segment_age_ns_max
    lone.hear(PEER, replace(lone.append([], term=1), log_time_ns=late_ns))
    assert seal(lone) == before + 1
