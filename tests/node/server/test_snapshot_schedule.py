"""Snapshots that a running server makes by itself, and the log that it lets go of."""

import asyncio
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from onelog import AsyncClient, Client, Read
from onelog.errors import OutOfRange
from onelog.node.config.schema import LogSettings, SnapshotSettings
from onelog.node.replica.requests import Results
from onelog.node.replica.retention import log_bytes_behind
from onelog.node.server.snapshot_schedule import SnapshotSchedule
from onelog.node.snapshots.taking import BuilderLimits, Snapshots
from onelog.projections.kv import commands as kv_commands
from onelog.projections.queue import commands as queue_commands
from onelog.projections.queue.message import Enqueue, QueueConfig, decode_message
from onelog.snapshot.builder_process import BuilderProcess
from onelog.snapshot.errors import BuilderFailed, BuilderTimeout, StateMismatch
from onelog.ual.entry import Draft
from onelog.v1 import admin_pb2 as admin
from onelog.v1 import kv_pb2 as kv
from tests.node.services.nodes import Node, run, single, until
from tests.system.nodes import get, nodes
from tests.system.nodes import until as look_until

NAMESPACE = "default"
LOG = LogSettings(segment_bytes_max=64 << 10, free_bytes_min=0)
BY_SIZE = SnapshotSettings(log_bytes_min=64 << 10, interval_s=3600.0)
NEVER = SnapshotSettings(interval_s=3600.0)
SLOW = partial(BuilderProcess, module="tests.snapshot.slow_builder")
DEADLINE_S = 120.0
KEYS = 10


async def write(node: Node, *drafts: Draft) -> Any:
    """Write entries as one request; return their results and the index of the first."""
    driver = node.context.drivers[0]
    outcome = await driver.propose(drafts, node.context.clock.now_s() + DEADLINE_S)
    assert isinstance(outcome, Results), outcome
    return outcome


async def fill(node: Node, first: int = 0, count: int = 100) -> None:
    """Write about a hundred kilobytes, to a few keys: the state stays small."""
    await write(
        node,
        *(
            kv_commands.encode_command(
                kv_commands.Put(b"k%d" % (number % KEYS), b"%01000d" % number), NAMESPACE
            )
            for number in range(first, first + count)
        ),
    )


def sample(node: Node, name: str) -> float:
    """Return a metric of shard 0."""
    page = generate_latest(node.server.metrics.registry).decode()
    found = re.search(rf'^onelog_{name}\{{shard="0"\}} (.+)$', page, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def find_shard(node: Node) -> Any:
    return node.context.drivers[0].shard


def report_of(node: Node) -> Any:
    return node.context.snapshots.report(0)


def test_a_log_that_grows_is_snapshotted_and_trimmed_and_a_restart_replays_only_the_rest(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, log=LOG, snapshot=BY_SIZE) as node:
            report, shard = report_of(node), find_shard(node)
            async with asyncio.timeout(DEADLINE_S):
                while report.taken < 3 or shard.log.first_index == 1:
                    await fill(node)
                    await asyncio.sleep(0.05)
            newest = shard.snapshots.newest
            assert sample(node, "snapshots_total") >= 3
            assert sample(node, "snapshot_index") == newest.index
            assert sample(node, "snapshot_bytes") == newest.size
            assert sample(node, "snapshot_failures_total") == 0
            assert sample(node, "trims_total") > 0
            before = shard.snapshots.records
            status = (await node.admin.GetStatus(admin.GetStatusRequest())).shards[0]
            # Another one may have been accepted meanwhile.
            known = (before, shard.snapshots.records)
            assert status.snapshots.taken >= 3
            assert status.snapshots.size in {each[-1].size for each in known}
            assert status.snapshots.trimmed_segments > 0
            assert status.snapshots.first_as_of_index in {each[0].index for each in known}
            assert status.first_index > 1
            async with AsyncClient(node.endpoint) as client:
                assert (await anext(client.admin.read_log(0))).index >= status.first_index
        async with single(tmp_path, shards=1, log=LOG, snapshot=NEVER) as node:
            recovered = find_shard(node).recovered
            assert recovered.snapshot is not None
            newest_index = recovered.snapshot.record.index
            assert newest_index >= newest.index
            assert newest_index + recovered.replayed.entry_count == shard.log.applied_index
            for number in range(KEYS):
                got = await node.kv.Get(kv.GetRequest(key=b"k%d" % number))
                assert got.item.value == b"%01000d" % (100 - KEYS + number)

    run(test())


async def write_and_snapshot(client: AsyncClient, first: int, count: int) -> dict[int, bytes]:
    """Write a key and much else and take a snapshot, again and again; return key and indexes."""
    written: dict[int, bytes] = {}
    for number in range(first, first + count):
        value = b"%d" % number
        written[await client.kv.put("seen", value)] = value
        for _ in range(4):  # more versions than a key keeps, and more than a segment
            await client.kv.put("seen", os.urandom(20_000))
        await client.admin.take_snapshot(0)
    return written


def test_snapshots_in_a_row_do_not_shorten_the_past_and_a_restart_neither(tmp_path: Path) -> None:
    """Of twenty only some are kept. Without the setting two are, and the past begins there."""

    async def test() -> None:
        keep = SnapshotSettings(interval_s=3600.0, past_s_min=3600.0)
        async with (
            single(tmp_path, shards=1, log=LOG, snapshot=keep) as node,
            AsyncClient(node.endpoint) as client,
        ):
            written = await write_and_snapshot(client, 0, 20)
        async with single(tmp_path, shards=1, log=LOG, snapshot=keep) as node:
            async with AsyncClient(node.endpoint) as client:
                written |= await write_and_snapshot(client, 20, 2)
                for index, value in written.items():
                    found = await client.kv.get("seen", read=Read(as_of_index=index))
                    assert found is not None
                    assert found.value == value, index
                status = (await client.admin.status()).shards[0]
            assert status.snapshots.first_as_of_index == status.first_index == 1
            assert 0 < status.snapshots.first_as_of_ns <= status.log_time_ns
            assert status.snapshots.kept == sample(node, "snapshots_kept") == 3
            assert status.snapshots.kept_bytes == sample(node, "snapshots_kept_bytes") > 0
            assert sample(node, "past_first_index") == 1
            assert sample(node, "past_seconds") > 0
        async with single(tmp_path, shards=1, log=LOG, snapshot=NEVER) as node:
            async with AsyncClient(node.endpoint) as client:
                await write_and_snapshot(client, 30, 2)
                await until(lambda: find_shard(node).log.first_index > 1)
                with pytest.raises(OutOfRange) as caught:
                    await client.kv.get("seen", read=Read(as_of_index=min(written)))
                status = (await client.admin.status()).shards[0]
            first_index = status.snapshots.first_as_of_index
            assert caught.value.metadata["first_index"] == str(first_index)
            assert status.snapshots.kept == 2
            assert sample(node, "past_first_index") == first_index > max(written)

    run(test())


def test_what_a_state_of_the_past_refers_to_is_kept_with_it(tmp_path: Path) -> None:
    """A body from before the oldest kept snapshot, which was acknowledged after it."""

    async def test() -> None:
        def draft(command: queue_commands.Command) -> Draft:
            return queue_commands.encode_command(command, NAMESPACE)

        keep = SnapshotSettings(log_bytes_min=64 << 10, interval_s=0.2, past_s_min=3.0)
        async with single(tmp_path, shards=1, log=LOG, snapshot=keep) as node:
            shard, report = find_shard(node), report_of(node)
            await fill(node)
            made = await write(node, draft(queue_commands.QueueCreate("jobs", QueueConfig())))
            queue = made[0].number
            message = (await write(node, draft(Enqueue(queue, b"body")))).first_index
            while not shard.snapshots.records or shard.snapshots.records[0].index <= message:
                await fill(node)
                await asyncio.sleep(0.05)
            token = (await write(node, draft(queue_commands.Lease(queue)))).first_index
            await write(node, draft(queue_commands.Ack(queue, ((message, token),))))
            acked, taken = shard.log.applied_index, report.taken
            while shard.snapshots.records[0].index < acked:
                assert shard.log.first_index <= message
                await fill(node)
                await asyncio.sleep(0.05)
            assert report.taken > taken + 1, "nothing was trimmed meanwhile"
            log, records = shard.log, shard.snapshots
            # Whole segments are trimmed: that of the message may reach beyond the snapshot yet.
            while (
                log.first_index <= message
                and records.records[0].index < log.segments.covering(message).last_index
            ):
                await fill(node)
                await asyncio.sleep(0.05)
            await until(lambda: log.first_index > message)

    run(test())


def test_the_log_is_trimmed_as_snapshots_get_older_than_the_past_that_is_kept(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        keep = SnapshotSettings(log_bytes_min=64 << 10, interval_s=0.2, past_s_min=0.5)
        async with single(tmp_path, shards=1, log=LOG, snapshot=keep) as node:
            shard = find_shard(node)
            while shard.log.first_index == 1:
                await fill(node)
                await asyncio.sleep(0.05)
            records = shard.snapshots.records
            first_ns, last_ns = (shard.snapshots.log_time_ns(records[at]) for at in (0, -1))
            assert first_ns <= last_ns - int(0.5e9)
            assert shard.log.first_index <= records[0].index + 1

    run(test())


def test_the_past_gives_way_when_the_disk_is_short_of_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        keep = SnapshotSettings(interval_s=0.5, kept_min=5, past_s_min=3600.0)
        async with single(tmp_path, shards=1, log=LOG, snapshot=keep) as node:
            shard = find_shard(node)
            async with AsyncClient(node.endpoint) as client:
                await write_and_snapshot(client, 0, 6)
            assert shard.log.first_index == 1
            assert len(shard.snapshots.records) >= 5
            monkeypatch.setattr("onelog.snapshot.store.RESERVE_BYTES", 1 << 60)
            await until(lambda: len(shard.snapshots.records) == 2 and shard.log.first_index > 1)

    run(test())


def test_a_trickle_is_snapshotted_by_age_and_silence_is_not(tmp_path: Path) -> None:
    async def test() -> None:
        settings = SnapshotSettings(interval_s=0.1)
        async with single(tmp_path, shards=2, log=LOG, snapshot=settings) as node:
            await node.kv.Put(kv.PutRequest(key=b"k", value=b"v"))
            shards = [each.shard for each in node.context.drivers.values()]
            await until(
                lambda: all(
                    each.snapshots.newest is not None
                    and each.snapshots.newest.index == each.log.applied_index
                    for each in shards
                )
            )
            schedule = SnapshotSchedule(node.context)
            assert [schedule.due(each) for each in node.context.drivers.values()] == [None, None]

    run(test())


def test_what_a_queue_still_needs_is_not_trimmed_and_goes_when_it_is_done(tmp_path: Path) -> None:
    async def test() -> None:
        def draft(command: queue_commands.Command) -> Draft:
            return queue_commands.encode_command(command, NAMESPACE)

        settings = SnapshotSettings(log_bytes_min=64 << 10, interval_s=0.5)
        async with single(tmp_path, shards=1, log=LOG, snapshot=settings) as node:
            shard, report = find_shard(node), report_of(node)
            await fill(node)
            made = await write(node, draft(queue_commands.QueueCreate("jobs", QueueConfig())))
            queue = made[0].number
            message = (await write(node, draft(Enqueue(queue, b"body")))).first_index
            while report.taken < 3 or not report.trims:
                await fill(node)
                await asyncio.sleep(0.05)
            keep_from = shard.snapshots.keep_from_index
            assert 1 < shard.log.first_index <= message < keep_from
            assert decode_message(shard.log.read(message)).body == b"body"
            token = (await write(node, draft(queue_commands.Lease(queue)))).first_index
            await write(node, draft(queue_commands.Ack(queue, ((message, token),))))
            await until(lambda: shard.log.first_index > message)

    run(test())


def test_a_builder_that_fails_is_reported_and_tried_again(tmp_path: Path) -> None:
    """The directory of the snapshots is gone for a while: a real error of a real process."""

    async def test() -> None:
        settings = SnapshotSettings(interval_s=0.1, retry_s=0.1)
        async with single(tmp_path, shards=1, log=LOG, snapshot=settings) as node:
            report, shard = report_of(node), find_shard(node)
            directory = shard.snapshots.directory
            away = directory.with_name("away")
            directory.rename(away)
            directory.write_bytes(b"no directory")
            await fill(node)
            await until(lambda: report.failures >= 2)
            assert sample(node, "snapshot_failing") == 1
            status = (await node.admin.GetStatus(admin.GetStatusRequest())).shards[0]
            assert status.snapshots.failures >= 2
            assert "NotADirectory" in status.snapshots.failure
            await fill(node)  # the shard goes on
            directory.unlink()
            away.rename(directory)
            await until(lambda: report.taken > 0)
            assert shard.snapshots.newest is not None
            assert (report.failure, report.failed_s) == ("", None)

    run(test())


def test_a_builder_that_hangs_is_killed_and_leaves_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, log=LOG, snapshot=NEVER) as node:
            await fill(node)
            limits = BuilderLimits(seconds_max=0.3)
            snapshots = Snapshots(node.context.clock, limits, start=SLOW)
            with pytest.raises(BuilderTimeout):
                await snapshots.take(node.context.drivers[0])
            assert snapshots.report(0).failures == 1
            assert os.listdir(find_shard(node).snapshots.directory) == []
            snapshots.close()

    run(test())


def test_a_build_that_is_cancelled_ends_its_process_and_leaves_nothing(tmp_path: Path) -> None:
    """That is what stopping a node does."""

    async def test() -> None:
        async with single(tmp_path, shards=1, log=LOG, snapshot=NEVER) as node:
            await fill(node)
            started: list[BuilderProcess] = []

            def start(*arguments: Any, **options: Any) -> BuilderProcess:
                started.append(SLOW(*arguments, **options))
                return started[-1]

            snapshots = Snapshots(node.context.clock, start=start)
            directory = find_shard(node).snapshots.directory
            taking = asyncio.create_task(snapshots.take(node.context.drivers[0]))
            await until(lambda: os.listdir(directory))
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            assert os.listdir(directory) == []
            with pytest.raises(ProcessLookupError):
                os.kill(started[0]._process.pid, 0)
            snapshots.close()

    run(test())


def test_a_builder_gets_no_more_memory_than_it_is_allowed(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, log=LOG, snapshot=NEVER) as node:
            for number in range(40):
                put = kv_commands.Put(b"large-%d" % number, os.urandom(500_000))
                await write(node, kv_commands.encode_command(put, NAMESPACE))
            snapshots = Snapshots(node.context.clock, BuilderLimits(memory_bytes_max=8 << 20))
            with pytest.raises(BuilderFailed) as failed:
                await snapshots.take(node.context.drivers[0])
            assert failed.value.cause == "MemoryError"
            snapshots.close()
            assert (await node.context.snapshots.take(node.context.drivers[0])).size > 20_000_000

    run(test())


def test_a_snapshot_that_differs_from_the_live_state_is_an_alarm_and_is_not_kept(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, log=LOG, snapshot=NEVER) as node:
            await fill(node)
            store = find_shard(node).projections.kv.stores[NAMESPACE]
            store.hash_total += 1  # as if a put had been applied wrongly
            snapshots = node.context.snapshots
            with pytest.raises(StateMismatch):
                await snapshots.take(node.context.drivers[0])
            assert find_shard(node).snapshots.records == ()
            assert os.listdir(find_shard(node).snapshots.directory) == []
            status = await node.admin.GetStatus(admin.GetStatusRequest())
            assert [each.reason for each in status.alarms] == ["STATE_MISMATCH"]
            assert sample(node, "snapshot_mismatch") == 1
            store.hash_total -= 1
            await snapshots.take(node.context.drivers[0])
            status = await node.admin.GetStatus(admin.GetStatusRequest())
            assert list(status.alarms) == []

    run(test())


def test_a_kept_snapshot_that_was_damaged_is_reported_and_not_counted_any_more(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, log=LOG, snapshot=NEVER) as node:
            shard, driver = find_shard(node), node.context.drivers[0]
            for _ in range(2):
                await fill(node)
                await node.context.snapshots.take(driver)
            older, newer = shard.snapshots.records
            path = shard.snapshots.path(newer)
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
            await fill(node)
            taken = await node.context.snapshots.take(driver)
            assert shard.snapshots.records == (older, taken)
            assert not path.exists()
            status = await node.admin.GetStatus(admin.GetStatusRequest())
            assert [each.reason for each in status.alarms] == ["SNAPSHOT_DAMAGED"]

    run(test())


def test_the_bytes_behind_an_index_are_about_those_that_were_written_since(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, log=LOG, snapshot=NEVER) as node:
            await fill(node)
            log = find_shard(node).log
            index = log.last_index
            assert log_bytes_behind(log, index) == 0
            await fill(node, count=30)
            assert 30_000 < log_bytes_behind(log, index) < 40_000
            assert 130_000 < log_bytes_behind(log, 0) < 150_000

    run(test())


def test_a_server_killed_right_after_a_trim_recovers_everything(tmp_path: Path) -> None:
    flags = {
        "shards": "1",
        "snapshot_log_bytes_min": "64KiB",
        "log_segment_bytes_max": "64KiB",
    }
    with nodes(tmp_path, "n1", **flags) as made:
        server = made["n1"].start()
        server.until_ready()
        written = 0

        def trims() -> int:
            _, page = get(server.http, "/metrics")
            found = re.search(rb'onelog_trims_total\{shard="0"\} ([0-9]+)', page)
            return int(found[1]) if found else 0

        for kill in range(2):
            with Client(server.flags["listen"]) as client:

                def fill_until_trimmed(before: int, client: Client = client) -> bool:
                    nonlocal written
                    for _ in range(20):
                        client.kv.put(f"k{written}", os.urandom(1_000).hex())
                        written += 1
                    return trims() > before

                look_until(partial(fill_until_trimmed, 0))
            server.kill()
            server.start().until_ready()
            with Client(server.flags["listen"]) as client:
                for number in range(0, written, 7):
                    found = client.kv.get(f"k{number}")
                    assert found is not None, (kill, number)
                    assert len(found.text) == 2_000
