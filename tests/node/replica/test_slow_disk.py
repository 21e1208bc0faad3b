"""A disk that takes its time: what a leader does meanwhile never waits for it."""

from collections.abc import Callable
from typing import Any

import pytest

from onelog.cluster.raft.membership import Membership
from tests.cluster.raft.lone_shard import LOG, ME, OTHER, PEER, SHARD, LoneShard
from tests.simulation.disk import SimDisk, SimFile


@pytest.fixture
def lone(monkeypatch: pytest.MonkeyPatch) -> LoneShard:
    """A leader that fails if it syncs anything by itself."""
    lone = LoneShard()
    lone.lead()
    is_allowed = False

    def by_a_job(act: Callable[..., None]) -> Callable[..., None]:
        def sync(*arguments: Any) -> None:
            assert is_allowed, "a sync on the loop"
            act(*arguments)

        return sync

    run_sync = lone.sync

    def allowed() -> None:
        nonlocal is_allowed
        is_allowed = True
        run_sync()
        is_allowed = False

    monkeypatch.setattr(SimFile, "sync", by_a_job(SimFile.sync))
    monkeypatch.setattr(SimDisk, "sync_directory", by_a_job(SimDisk.sync_directory))
    monkeypatch.setattr(lone, "sync", allowed)
    return lone


def test_what_the_log_has_no_room_for_waits_for_the_next_sync(lone: LoneShard) -> None:
    total = 3 * LOG.unsynced_bytes_max
    size = SHARD.group_bytes_max - 200
    count = total // size
    for number in range(count):
        lone.propose(bytes([number]) * size)
    log = lone.shard.log
    assert LOG.unsynced_bytes_max - SHARD.request_bytes_max < log.unsynced_bytes
    assert log.unsynced_bytes <= LOG.unsynced_bytes_max

    syncs = 0
    while len(lone.outcomes) < count:
        lone.tick()
        lone.acknowledge()
        syncs += 1
        assert syncs < count
    assert all(isinstance(each, list) for each in lone.outcomes), lone.outcomes
    assert lone.value() == bytes([count - 1]) * size


def test_a_change_of_members_counts_at_once_and_is_promised_when_it_is_synced(
    lone: LoneShard,
) -> None:
    outcomes: list[Any] = []
    lone.shard.change_membership(
        Membership.of([ME, PEER]), lone.clock.time_s + 5.0, outcomes.append
    )
    assert lone.member.membership.voters == (ME, PEER)
    lone.hear(PEER, lone.ack())
    lone.hear(OTHER, lone.ack())
    lone.tick()
    assert outcomes == []

    lone.acknowledge()
    assert isinstance(outcomes[0], list), outcomes
