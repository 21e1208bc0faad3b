"""What a follower does first: its leader waits for a sync and an ack, and nobody for its state."""

import asyncio
import threading
from typing import cast
from uuid import UUID

from onelog.cluster.raft.messages import Ack, Append, Message
from onelog.node.replica.driver import Driver
from onelog.node.replica.shard import UNAPPLIED_MAX, Shard
from onelog.ual.files import File
from onelog.ual.jobs import SyncJob
from tests.cluster.raft.lone_shard import put
from tests.node.replica.fake_shard import FakeShard
from tests.node.replica.group import Group, Node

WAIT_S = 120.0


def a_group_and_its_successor(group: Group) -> tuple[Node, Append]:
    """Return a follower that has a group, and the append that says that it is committed."""
    leader = group.elect()
    group.until(group.is_settled)
    follower = next(each for each in group.nodes.values() if each is not leader)
    kept: list[Append] = []

    def keep(_source: UUID, target: UUID, message: Message) -> Message | None:
        """Pass on the first of the two groups, but not the second, nor a heartbeat."""
        if target == follower.node_id and isinstance(message, Append):
            is_second = message.previous > follower.shard.member.applied
            if message.groups and is_second:
                kept.append(message)
            if is_second or (not message.groups and message.commit > message.previous - 1):
                return None
        return message

    group.filter = keep
    for _ in range(2):
        deadline_s = leader.clock.time_s + 60.0
        leader.shard.propose([put(b"key", b"value")], deadline_s, group.outcomes.append)
        group.until(lambda: bool(group.outcomes))
    group.until(lambda: bool(kept))
    return follower, kept[0]


def test_a_follower_acks_what_it_has_synced_before_it_applies_what_that_committed() -> None:
    """Apply takes longer than a sync, and would be a part of every write of a cluster."""
    group = Group()
    follower, append = a_group_and_its_successor(group)
    shard, number = follower.shard, append.previous
    assert shard.member.applied < number <= append.commit
    group.queue.clear()

    shard.on_message(group.leader.node_id, append)
    assert shard.member.applied < number, "applied before the sync had begun"
    assert not shard.is_due
    job = shard.sync_begin()
    assert job is not None
    assert not shard.is_due
    job.run()
    shard.on_synced(job)
    assert acked(group) == number + 1
    assert shard.member.applied < number, "applied before the ack could leave"

    assert shard.is_due
    shard.tick()
    assert shard.member.applied == number


def test_a_follower_whose_sync_takes_long_falls_behind_by_one_group() -> None:
    """Others commit without it; what it has to apply must not grow with the load."""
    group = Group()
    leader = group.elect()
    group.until(group.is_settled)
    follower = next(each for each in group.nodes.values() if each is not leader)
    work, shard = group.work, follower.shard
    group.work = lambda node: None if node is follower else work(node)  # type: ignore[method-assign]
    shard.tick()
    waited = False
    for _ in range(8):
        before = len(group.outcomes)
        leader.shard.propose([put(b"k", b"v")], leader.clock.time_s + 60, group.outcomes.append)
        shard.sync_begin()  # and it does not come back
        for _ in range(6):  # without a timer: what others do, and what this one is told
            for node in group.nodes.values():
                group.work(node)
            deliver_everywhere(group)
            waited = waited or shard.member.applied < shard.member.commit
            while shard.is_due:
                shard.tick()
            assert shard.member.commit - shard.member.applied <= UNAPPLIED_MAX
        assert len(group.outcomes) > before
    assert waited
    assert shard.member.applied >= leader.shard.member.applied - 1 - UNAPPLIED_MAX


def test_a_follower_that_has_nothing_to_sync_applies_at_once() -> None:
    group = Group()
    follower, append = a_group_and_its_successor(group)
    shard = follower.shard
    heartbeat = Append(
        append.term,
        append.round,
        append.previous,
        append.previous_term,
        (),
        append.previous,
        append.echo,
        append.log_time_ns,
    )
    shard.on_message(group.leader.node_id, heartbeat)
    assert shard.is_due
    shard.tick()
    assert shard.member.applied == append.previous
    assert not shard.is_due


def test_a_leader_applies_what_an_ack_has_committed_within_the_message() -> None:
    """Somebody waits for its answer."""
    group = Group(2)
    leader = group.elect()
    group.until(group.is_settled)
    before = leader.shard.member.applied
    leader.shard.propose([put(b"key", b"value")], leader.clock.time_s + 60, group.outcomes.append)
    group.work(leader)
    (follower,) = (each for each in group.nodes.values() if each is not leader)
    deliver_all(group, follower.shard)
    group.work(follower)
    deliver_all(group, leader.shard)
    assert leader.shard.member.applied == before + 1
    leader.shard.deliver()
    assert isinstance(group.outcomes[-1], list)


def test_what_waits_for_a_sync_is_done_when_it_is_back_though_the_next_one_runs() -> None:
    """A follower whose syncs follow each other without a gap has to apply at some time."""

    class WaitingFile:
        def __init__(self) -> None:
            self.may_end = threading.Event()

        def sync(self) -> None:
            assert self.may_end.wait(WAIT_S)

    files = [WaitingFile(), WaitingFile()]

    async def test() -> None:
        driver = Driver()  # nobody runs it: no timer ticks
        shard = FakeShard()
        handle = driver.add(0, cast(Shard, shard))
        shard.job = SyncJob(cast(File, files[0]), 0, 0, 0)
        handle.run_pass()
        shard.member.is_due = True
        handle.run_pass()
        assert not shard.ticks, "it did not wait for the sync"
        shard.job = SyncJob(cast(File, files[1]), 0, 0, 0)
        files[0].may_end.set()
        async with asyncio.timeout(WAIT_S):
            while not shard.ticks:  # noqa: ASYNC110 - what is waited for sets no event
                await asyncio.sleep(0.002)
        assert shard.is_syncing  # the second time
        shard.member.is_due = False
        files[1].may_end.set()
        await driver.stop(0)

    asyncio.run(test())


def deliver_everywhere(group: Group) -> None:
    queue, group.queue = group.queue, []
    for source, target, message in queue:
        group.nodes[target].shard.on_message(source, message)


def deliver_all(group: Group, shard: Shard) -> None:
    queue, group.queue = group.queue, []
    for source, target, message in queue:
        if target == shard.member.self_id:
            shard.on_message(source, message)


def acked(group: Group) -> int:
    """Return the last proposal that an ack on its way calls durable."""
    return max(
        message.next - 1
        for _, _, message in group.queue
        if isinstance(message, Ack) and message.success
    )
