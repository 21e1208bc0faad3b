"""The driver on a real loop: one group for many proposals, deadlines, and errors that surface."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from onelog.cluster.errors import (
    ClusterError,
    Expired,
    NotLeader,
    OutcomeUnknown,
    ProposalRefused,
    ResultNeeded,
    StaleBoundExceeded,
)
from onelog.cluster.raft.messages import Ack, Append, Vote
from onelog.node.membership.peer_port import PeerPort
from onelog.node.replica.driver import Driver, ShardDriver, Stopping, run_until_complete
from onelog.node.replica.requests import Durability, Outcome, Received, Results
from onelog.node.replica.shard import Shard
from onelog.node.replica.stale_reads import Level
from onelog.node.replicas import Replicas, ReplicasConfig
from onelog.projections.kv import commands
from onelog.projections.kv.reads import KeyValue
from onelog.projections.result import Applied
from onelog.ual.directory import Topology
from onelog.ual.entry import Draft
from onelog.ual.errors import LogFailed
from onelog.ual.files import DiskFiles, File
from onelog.ual.jobs import SyncJob
from tests.node.replica.fake_shard import FakeMember, FakeShard
from tests.ual.shards import make_directory

WAIT_S = 120.0


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * WAIT_S))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.002)


def put(number: int) -> Draft:
    command = commands.Put(b"key-%d" % number, b"value")
    return commands.encode_command(command, "default")


def soon() -> float:
    return time.monotonic() + WAIT_S


@asynccontextmanager
async def single(
    directory: Path, files: DiskFiles | None = None, shards: int = 1
) -> AsyncIterator[Replicas]:
    """A cluster of one, leading all of its shards."""
    config = ReplicasConfig(
        cluster_id=UUID(int=1),
        node_id=UUID(int=2),
        node_name="single",
        peers={},
        topology=Topology(shards, shards),
    )
    files = files or DiskFiles()
    made = make_directory(files, directory / "data", config.topology)
    replicas = await Replicas.open(config, made, PeerPort("127.0.0.1:0"), lambda *_: None, files)
    async with asyncio.TaskGroup() as group:
        group.create_task(replicas.run())
        await until(
            lambda: all(
                replicas.driver[number].shard.member.has_applied_noop for number in range(shards)
            )
        )
        yield replicas
        await replicas.stop()


def test_proposals_of_one_step_of_the_loop_become_one_group(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as replicas:
            driver = replicas.driver[0]
            journal = driver.shard.member.journal
            before = journal.last
            futures = [driver.propose([put(n), put(n + 1000)], soon()) for n in range(100)]
            outcomes = await asyncio.gather(*futures)

            assert journal.last == before + 1
            for outcome in outcomes:
                assert isinstance(outcome, list)
                assert [type(each) for each in outcome] == [Applied, Applied]
            assert await driver.read(soon()) is None
            found = driver.shard.projections.kv.get("default", b"key-1099")
            assert found is not None

    run(test())


def test_what_is_acknowledged_is_there_after_a_restart_and_groups_keep_their_limits(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with single(tmp_path) as replicas:
            driver = replicas.driver[0]
            entries_max = driver.shard.config.group_entries_max
            before = driver.shard.member.journal.last
            futures = [driver.propose([put(n)], soon()) for n in range(3 * entries_max)]
            assert all(isinstance(each, list) for each in await asyncio.gather(*futures))
            assert driver.shard.member.journal.last == before + 3
        async with single(tmp_path) as replicas:
            kv = replicas.driver[0].shard.projections.kv
            assert kv.get("default", b"key-0") is not None
            assert kv.get("default", b"key-%d" % (3 * entries_max - 1)) is not None

    run(test())


def test_each_shard_goes_its_own_way(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=3) as replicas:
            futures = [replicas.driver[n].propose([put(n)], soon()) for n in range(3)]
            await asyncio.gather(*futures)
            for number in range(3):
                kv = replicas.driver[number].shard.projections.kv
                held = [n for n in range(3) if kv.get("default", b"key-%d" % n) is not None]
                assert held == [number]

    run(test())


def test_requests_of_both_durabilities_are_answered_each_in_its_way(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as replicas:
            driver = replicas.driver[0]
            increment = commands.encode_command(commands.Increment(b"n", 1), "default")
            early = [driver.propose([put(n), put(n)], soon(), Durability.ASYNC) for n in range(3)]
            refused = driver.propose([put(8), increment], soon(), Durability.ASYNC)
            synced = driver.propose([put(9)], soon())
            outcomes = await asyncio.gather(*early)

            first = outcomes[0]
            assert isinstance(first, Received)
            index = first.first_index
            assert outcomes == [Received(index + at, index + at + 1) for at in (0, 2, 4)]
            assert isinstance(await refused, ResultNeeded)
            assert await synced == [Applied()]
            found = driver.shard.projections.kv.get("default", b"key-2")
            assert isinstance(found, KeyValue)
            assert found.version == index + 5

    run(test())


def test_stale_reads_keep_their_bound_and_wait_for_their_index(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as replicas:
            driver = replicas.driver[0]
            stale = partial(driver.read, soon(), level=Level.STALE)
            assert stale().result() is None  # at once: nobody is asked
            await until(lambda: stale(max_staleness_s=1.0).result() is None)
            assert isinstance(stale(max_staleness_s=0.0).result(), StaleBoundExceeded)
            assert driver.read(soon(), level=Level.LEASE).result() is None  # at once, too

            early = await driver.propose([put(1)], soon(), Durability.ASYNC)
            assert isinstance(early, Received)
            waiting = stale(min_index=early.last_index)
            linearizable = driver.read(soon(), min_index=early.last_index)
            assert [await waiting, await linearizable] == [None, None]
            assert driver.shard.projections.kv.get("default", b"key-1") is not None

            late = driver.read(time.monotonic() + 0.05, level=Level.STALE, min_index=10**9)
            assert isinstance(await late, Expired)
            left = stale(min_index=10**9)
        assert isinstance(await left, Stopping)

    run(test())


def test_a_request_that_is_too_large_is_refused_and_others_are_not(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as replicas:
            driver = replicas.driver[0]
            large = Draft(0x0101, bytes(driver.shard.config.request_bytes_max))
            refused, done = await asyncio.gather(
                driver.propose([large], soon()), driver.propose([put(1)], soon())
            )
            assert isinstance(refused, ProposalRefused)
            assert isinstance(done, list)

    run(test())


def test_a_request_whose_awaiter_has_left_disturbs_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as replicas:
            driver = replicas.driver[0]
            left = driver.propose([put(1)], soon())
            stays = driver.propose([put(2)], soon())
            left.cancel()
            assert isinstance(await stays, list)

    run(test())


def test_what_is_late_or_was_cancelled_before_its_pass_is_not_written(tmp_path: Path) -> None:
    """Also when it would have gone together with others that have time left."""

    async def test() -> None:
        async with single(tmp_path) as replicas:
            driver = replicas.driver[0]
            first = driver.propose([put(0)], soon())
            late = driver.propose([put(1)], time.monotonic() - 0.001)
            left = driver.propose([put(2)], soon())
            last = driver.propose([put(3)], soon())
            left.cancel()

            assert isinstance(await late, Expired)
            assert await first == [Applied()]
            assert await last == [Applied()]
            kv = driver.shard.projections.kv
            found = [kv.get("default", b"key-%d" % number) for number in range(4)]
            assert [isinstance(each, KeyValue) for each in found] == [True, False, False, True]
            assert driver.waiting == 0

    run(test())


def test_what_gets_no_outcome_ends_by_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that cannot commit, here for want of a sync, may never have an outcome."""

    async def test() -> None:
        async with single(tmp_path) as replicas:
            driver = replicas.driver[0]
            begin = driver.shard.sync_begin
            with monkeypatch.context() as patch:
                patch.setattr(driver.shard, "sync_begin", lambda: None)
                soon_over = driver.propose([put(1)], time.monotonic() + 0.05)
                later = driver.propose([put(2)], soon())
                index = driver.shard.log.last_index
                read = driver.read(time.monotonic() + 0.05, min_index=index + 1)

                assert isinstance(await soon_over, OutcomeUnknown)
                assert isinstance(await read, Expired)
                assert not later.done()
                assert driver.waiting == 1
                patch.setattr(driver.shard, "sync_begin", begin)
                assert await later == [Applied()]
                assert driver.waiting == 0

    run(test())


def test_a_closed_shard_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what was proposed, nor what came after the last pass."""

    async def test() -> None:
        async with single(tmp_path) as replicas:
            driver = replicas.driver[0]
            monkeypatch.setattr(driver.shard, "sync_begin", lambda: None)
            proposed = driver.propose([put(1)], soon())
            applied = driver.shard.log.applied_index
            await until(lambda: driver.shard.log.last_index > applied)
            pending = driver.propose([put(2)], soon())
            read = driver.read(soon(), min_index=applied + 2)
            driver.close()

            assert isinstance(proposed.result(), OutcomeUnknown)
            assert isinstance(pending.result(), Stopping)
            assert isinstance(read.result(), Stopping)
            assert driver.waiting == 0
            late = driver.propose([put(3)], soon())
            assert isinstance(late.result(), Stopping)

    run(test())


def test_a_stopping_node_refuses_and_finishes_what_it_has(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as replicas:
            driver = replicas.driver[0]
            under_way = driver.propose([put(1)], soon())
            stopping = asyncio.create_task(replicas.stop())
            await asyncio.sleep(0)
            late = await driver.propose([put(2)], soon())
            await stopping

            assert isinstance(await under_way, list)
            assert isinstance(late, Stopping)
            assert isinstance(await driver.read(soon()), Stopping)

    run(test())


class FailingFile:
    """A file whose syncs fail from some moment on."""

    def __init__(self, file: File, files: "FailingFiles") -> None:
        self._file = file
        self._files = files
        self.write, self.truncate, self.read, self.size = (
            file.write, file.truncate, file.read, file.size,
        )  # fmt: skip

    def sync(self) -> None:
        if self._files.broken:
            raise OSError(5, "the disk is gone")
        self._file.sync()


class FailingFiles(DiskFiles):
    broken = False

    def open(self, path: Path, *, create: bool = False) -> File:
        return FailingFile(super().open(path, create=create), self)


def test_a_failed_sync_ends_the_process_and_acknowledges_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        files = FailingFiles()
        outcome: Outcome | None = None
        async with single(tmp_path, files) as replicas:
            files.broken = True
            outcome = await replicas.driver[0].propose([put(1)], soon())
            assert isinstance(outcome, ClusterError)
            await until(lambda: False)

    with pytest.raises(ExceptionGroup) as caught:
        run(test())
    assert caught.group_contains(LogFailed)


# A shard that does what a test wants

APPEND = Append(1, 1, 1, 1, (), 1)
ACK = Ack(1, 1, 2, success=True, reset=False)


@asynccontextmanager
async def faked() -> AsyncIterator[tuple[FakeShard, ShardDriver]]:
    driver = Driver()
    shard = FakeShard()
    handle = driver.add(0, cast(Shard, shard))
    async with asyncio.TaskGroup() as group:
        group.create_task(driver.run())
        yield shard, handle
        await driver.stop(0)


def test_ticks_come_at_least_three_times_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    slept_s: list[float] = []
    sleep = asyncio.sleep

    async def watched_sleep(delay_s: float) -> None:
        slept_s.append(delay_s)
        await sleep(delay_s)

    async def test() -> None:
        async with faked() as (shard, _):
            await until(lambda: len(shard.ticks) >= 20)

    # What it asks for: a busy machine may let it sleep longer.
    monkeypatch.setattr(asyncio, "sleep", watched_sleep)
    run(test())
    assert max(slept_s) <= FakeMember.config.heartbeat_s / 3


def test_an_error_in_a_tick_ends_run_with_it() -> None:
    async def test() -> None:
        async with faked() as (shard, _):
            shard.error = RuntimeError("unsure of itself")
            await until(lambda: False)

    with pytest.raises(ExceptionGroup, match="unhandled") as caught:
        run(test())
    assert caught.group_contains(RuntimeError, match="unsure")


def test_what_arrives_after_the_end_changes_nothing() -> None:
    """Peers go on talking, and syncs come back, while a node closes its logs."""

    released = threading.Event()

    class Job:
        def run(self) -> None:
            released.wait()

    async def test() -> None:
        async with faked() as (shard, driver):
            shard.job = cast(SyncJob, Job())
            driver.deliver(UUID(int=9), Vote(1, pre_vote=False))
            await until(lambda: shard.job is None)
            # All in one step of the loop: a pass is scheduled, and a sync is on its way back.
            released.set()
            driver.deliver(UUID(int=9), Vote(2, pre_vote=False))
            driver.refuse_new()
            driver.close()
            shard.error = LogFailed("the log was closed")
            ticks = len(shard.ticks)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(shard.ticks) == ticks
            shard.error = None

    run(test())


def test_an_error_on_the_sync_thread_ends_run_with_it() -> None:
    class BadJob:
        def run(self) -> None:
            raise RuntimeError("not an error of the disk")

    async def test() -> None:
        async with faked() as (shard, _):
            shard.job = cast(SyncJob, BadJob())
            await until(lambda: False)

    with pytest.raises(ExceptionGroup) as caught:
        run(test())
    assert caught.group_contains(RuntimeError, match="disk")


def test_the_next_sync_is_on_its_way_before_anybody_is_answered() -> None:
    """What callers do with their answers takes as long as a sync: the disk must not wait for it."""
    syncing: list[bool] = []

    class Job:
        def run(self) -> None:
            """Take no time."""

    async def test() -> None:
        async with faked() as (shard, driver):
            future = driver.propose([put(1)], soon())
            future.proceed = lambda: syncing.append(shard.is_syncing)
            await until(lambda: shard.proposed)
            callback = shard.proposed.pop()

            def take_back(_job: SyncJob) -> None:
                shard.is_syncing = False
                if not future.done() and shard.job is None:
                    shard.job = cast(SyncJob, Job())  # what came meanwhile
                    shard.answers.append((callback, Results([Applied(1)], 7, 0.0)))

            shard.on_synced = take_back  # type: ignore[method-assign]
            shard.job = cast(SyncJob, Job())
            await future
            assert syncing == [True]

    run(test())


def test_requests_and_reads_of_one_step_are_started_once_and_messages_share_a_tick() -> None:
    async def test() -> None:
        async with faked() as (shard, driver):
            await until(lambda: shard.ticks)
            futures = [driver.propose([put(n)], soon()) for n in range(50)]
            reads = [driver.read(soon()) for _ in range(50)]
            for number in range(50):
                driver.deliver(UUID(int=1), Vote(number))
            passes = driver.passes
            assert shard.starts == 0
            await until(lambda: shard.starts)
            assert [message.term for _, message in shard.messages] == list(range(50))
            assert driver.passes <= passes + 2
            shard.answers.extend((callback, None) for callback in shard.reads)
            shard.answers.extend((callback, NotLeader(None)) for callback in shard.proposed)
            assert await asyncio.gather(*reads) == [None] * 50
            assert [type(each) for each in await asyncio.gather(*futures)] == [NotLeader] * 50
            assert shard.starts == 1

    run(test())


def test_a_pass_ticks_where_something_is_due_and_not_otherwise() -> None:
    async def test() -> None:
        driver = Driver()  # nobody runs it: no timer ticks
        shard = FakeShard()
        handle = driver.add(0, cast(Shard, shard))
        for message in (APPEND, ACK):
            handle.deliver(UUID(int=1), message)
            handle.run_pass()
        handle.propose([put(1)], soon())
        handle.run_pass()
        assert not shard.ticks
        handle.deliver(UUID(int=1), Vote(1))
        handle.run_pass()
        assert len(shard.ticks) == 1
        shard.member.is_due = True
        handle.run_pass()
        assert len(shard.ticks) == 2
        shard.member.is_due = False
        handle.tick()
        assert len(shard.ticks) == 3
        await driver.stop(0)

    run(test())


def test_a_main_coroutine_runs_on_the_fastest_loop_there_is() -> None:
    ran: list[str] = []

    async def main() -> None:
        ran.append(type(asyncio.get_running_loop()).__module__)

    run_until_complete(main())
    assert ran
