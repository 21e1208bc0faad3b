"""Holds through the API of real nodes whose logs are snapshotted and trimmed."""

import asyncio
import logging
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from onelog import AsyncClient, errors
from onelog.node.config.schema import LogSettings, SnapshotSettings
from onelog.node.replica.driver import ShardDriver
from onelog.node.replica.retention import Holding
from onelog.node.server.snapshot_schedule import SnapshotSchedule
from onelog.v1 import admin_pb2 as admin
from onelog.v1 import kv_pb2 as kv
from tests.node.services.nodes import (
    Node,
    cluster,
    eventually,
    is_ready,
    parse_config,
    refusal,
    run,
    single,
    start,
    until,
)

LOG = LogSettings(segment_bytes_max=64 << 10, free_bytes_min=0)
NEVER = SnapshotSettings(interval_s=3600.0)
DEADLINE_S = 120.0


def set_hold(name: str = "export", **fields: Any) -> admin.SetHoldRequest:
    return admin.SetHoldRequest(name=name, **fields)


def release(name: str = "export") -> admin.ReleaseHoldRequest:
    return admin.ReleaseHoldRequest(name=name)


async def holds_of(node: Node) -> list[admin.Hold]:
    return list((await node.admin.ListHolds(admin.ListHoldsRequest())).holds)


async def alarms_of(node: Node) -> list[tuple[str, int]]:
    status = await node.admin.GetStatus(admin.GetStatusRequest())
    return [(alarm.reason, alarm.shard) for alarm in status.alarms]


async def fill(node: Node, count: int = 100) -> None:
    """Write about a hundred kilobytes to one key: the state stays small."""
    many = kv.BatchPutRequest(keys=[b"k%d" % n for n in range(10)], values=[os.urandom(1_000)] * 10)
    for _ in range(count // 10):
        await node.kv.BatchPut(many)


def log_of(node: Node, shard: int = 0) -> Any:
    return node.context.drivers[shard].shard.log


def all_hold(states: list[Any]) -> bool:
    return all(len(state.holds) == 1 for state in states)


async def write_until(node: Node, condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await fill(node)
            await asyncio.sleep(0.02)


async def trimmed(node: Node, snapshots: int = 2) -> int:
    """Trim the log after new snapshots; return where it begins."""
    driver, log = node.context.drivers[0], log_of(node)
    for _ in range(snapshots):
        await fill(node)
        await node.admin.TakeSnapshot(admin.TakeSnapshotRequest(shard=0), timeout=DEADLINE_S)
    await fill(node)
    await until(lambda: log.segments.sealed_index > driver.shard.snapshots.keep_from_index)
    schedule = SnapshotSchedule(node.context)
    first_index = 0
    while log.first_index > first_index:
        first_index = log.first_index
        await schedule.trim_now(driver)
    return first_index


async def entries_from(node: Node, index: int) -> list[int]:
    request = admin.ReadLogRequest(shard=0, first_index=index, with_voids=True)
    return [entry.index async for page in node.admin.ReadLog(request) for entry in page.entries]


def test_a_log_keeps_what_is_held_and_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, log=LOG, snapshot=NEVER) as node:
            log = log_of(node)
            first_index = await trimmed(node)
            assert first_index > 1
            error = await refusal(node.admin.SetHold(set_hold(indexes={0: 1})))
            assert (type(error), error.reason) == (errors.OutOfRange, "COMPACTED")
            assert error.metadata["first_index"] == str(first_index)
            assert await holds_of(node) == []

            index = log.applied_index
            with node.context.holding.asking(0, index):  # as a call does while its entry is made
                assert await trimmed(node) <= index
                request = set_hold(indexes={0: index}, bytes_max=1 << 30)
                assert dict((await node.admin.SetHold(request)).indexes) == {0: index}
            assert await trimmed(node, 0) <= index
            end = log.applied_index
            assert await entries_from(node, index) == list(range(index, end + 1))
            (hold,) = await holds_of(node)
            assert (hold.name, hold.shard, hold.index) == ("export", 0, index)
            assert hold.kept_index == index
            assert 64 << 10 < hold.bytes < hold.bytes_max == 1 << 30
            assert hold.ttl_ms == 7 * 86_400_000
            assert hold.expires_ns > 0
            assert hold.cause == admin.HOLD_CAUSE_UNSPECIFIED
            status = await node.admin.GetStatus(admin.GetStatusRequest())
            named = [(each.name, each.index) for each in status.shards[0].holds]
            assert named == [("export", index)]
            assert not status.alarms
            page = generate_latest(node.server.metrics.registry).decode()
            assert 'onelog_holds{shard="0"} 1.0' in page
            assert 'onelog_holds_broken{shard="0"} 0.0' in page
            held_bytes = re.search(r'^onelog_held_bytes\{shard="0"\} (.+)$', page, re.MULTILINE)
            assert held_bytes is not None
            assert float(held_bytes[1]) > 64 << 10

            moved = await node.admin.SetHold(set_hold(move=True, indexes={0: end}))
            assert dict(moved.indexes) == {0: end}
            assert index < await trimmed(node, 0) <= end
            await node.admin.ReleaseHold(release())
            assert await holds_of(node) == []
            assert await trimmed(node) > end

    run(test())


def test_a_hold_that_is_too_large_breaks_with_an_alarm_until_it_is_released(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, log=LOG, snapshot=NEVER) as node:
            answer = await node.admin.SetHold(set_hold("big", bytes_max=300_000))
            index = answer.indexes[0]
            assert await alarms_of(node) == []
            state = node.context.drivers[0].shard.projections.system.holds
            await write_until(node, lambda: not state.active())
            (hold,) = await holds_of(node)
            assert hold.cause == admin.HOLD_CAUSE_BYTES
            assert hold.index == index < hold.broken_index
            assert hold.bytes == 0
            assert await alarms_of(node) == [("HOLD_BROKEN", 0)]
            status = await node.admin.GetStatus(admin.GetStatusRequest())
            assert "hold big" in status.alarms[0].message
            await until(lambda: "hold big" in caplog.text)
            error = await refusal(node.admin.SetHold(set_hold("big", move=True)))
            assert (type(error), error.reason) == (errors.FailedPrecondition, "HOLD_BROKEN")
            assert (await refusal(node.admin.SetHold(set_hold("big")))).reason == "HOLD_EXISTS"
            assert await trimmed(node) > index
            await node.admin.ReleaseHold(release("big"))
            assert await alarms_of(node) == []
            await node.admin.SetHold(set_hold("big"))

    with caplog.at_level(logging.WARNING, "onelog.node.holds"):
        run(test())


def test_a_hold_that_nobody_moves_breaks_at_the_end_of_its_lifetime(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, log=LOG, snapshot=NEVER) as node:
            await node.admin.SetHold(set_hold("short", ttl_ms=1))
            await node.admin.SetHold(set_hold("long", ttl_ms=3_600_000))

            async def is_over() -> None:
                assert ("HOLD_BROKEN", 0) in await alarms_of(node)

            await eventually(is_over)
            causes = {hold.name: hold.cause for hold in await holds_of(node)}
            assert causes == {
                "short": admin.HOLD_CAUSE_TIME,
                "long": admin.HOLD_CAUSE_UNSPECIFIED,
            }

    run(test())


def test_a_disk_that_runs_short_breaks_the_hold_and_takes_no_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, log=LOG, snapshot=NEVER) as node:
            log = log_of(node)
            index = (await node.admin.SetHold(set_hold())).indexes[0]
            assert await trimmed(node) <= index
            # As if all that is free were needed, on a replica that cannot propose to break it.
            with monkeypatch.context() as patch:
                patch.setattr("onelog.node.replica.retention.breaks", lambda _shard: [])
                patch.setattr("onelog.node.replica.retention.RESERVE_BYTES", 1 << 60)
                patch.setattr("onelog.node.replica.shipping.LAST_BYTES", 1 << 60)
                await until(lambda: log.first_index > index, DEADLINE_S)  # without a snapshot
                assert await alarms_of(node) == [("HOLD_NOT_KEPT", 0)]
                (hold,) = await holds_of(node)
                assert hold.kept_index == log.first_index > hold.index == index
                error = await refusal(node.admin.SetHold(set_hold("another")))
                assert (type(error), error.reason) == (errors.ResourceExhausted, "DISK_FULL")
                # Whoever looks after holds trims at once, and waits for no turn.
                trims: list[int] = []

                async def trim(driver: ShardDriver) -> None:
                    trims.append(driver.number)

                context = node.context
                looking = asyncio.create_task(Holding(context.drivers, context.clock).run(trim))
                await until(lambda: trims)
                looking.cancel()
                assert trims[0] == 0
            # What it had to let go is broken as soon as that can be proposed, room or not.
            state = node.context.drivers[0].shard.projections.system.holds
            await until(lambda: not state.active())
            (hold,) = await holds_of(node)
            assert (hold.name, hold.cause) == ("export", admin.HOLD_CAUSE_DISK)
            assert await alarms_of(node) == [("HOLD_BROKEN", 0)]

    run(test())


def test_holds_are_in_every_shard_and_half_made_ones_are_finished(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=2, snapshot=NEVER) as nodes:
            # Somebody came as far as shard 1.
            leader = next(node for node in nodes if node.leads(1))
            half = await leader.admin.SetHold(set_hold(), metadata=(("onelog-shard", "1"),))
            assert set(half.indexes) == {1}
            await nodes[0].kv.Put(kv.PutRequest(key=b"a", value=b"1"))
            answer = await nodes[0].admin.SetHold(set_hold())
            assert [header.shard for header in answer.headers] == [0]
            assert answer.indexes[1] == half.indexes[1]
            for node in nodes:
                found = [(hold.name, hold.shard, hold.index) for hold in await holds_of(node)]
                assert found == [("export", shard, answer.indexes[shard]) for shard in (0, 1)]
                error = await refusal(node.admin.SetHold(set_hold()))
                assert (type(error), error.reason) == (errors.AlreadyExists, "HOLD_EXISTS")
            # A move is the same however often; where no index is named it stays and lives on.
            move = set_hold(move=True, indexes={0: answer.indexes[0] + 1}, ttl_ms=5_000_000)
            for node in nodes:
                moved = await node.admin.SetHold(move)
                assert dict(moved.indexes) == {
                    0: answer.indexes[0] + 1,
                    1: answer.indexes[1],
                }
            assert {hold.ttl_ms for hold in await holds_of(nodes[1])} == {5_000_000}
            # All replicas have it, and all keep it when they lead.
            for node in nodes:
                states = [
                    driver.shard.projections.system for driver in node.context.drivers.values()
                ]
                await until(partial(all_hold, states))
            for node in nodes:
                target = str(node.context.node_id)
                request = admin.TransferLeadershipRequest(shard=0, node_id=target)
                await eventually(partial(nodes[0].admin.TransferLeadership, request))
                await until(partial(node.leads, 0))
                index = next(hold.index for hold in await holds_of(node) if hold.shard == 0)
                assert index == answer.indexes[0] + 1
            half_released = await eventually(
                lambda: next(node for node in nodes if node.leads(0)).admin.ReleaseHold(
                    release(), metadata=(("onelog-shard", "0"),)
                )
            )
            assert [header.shard for header in half_released.headers] == [0]
            rest = await nodes[2].admin.ReleaseHold(release())
            assert [header.shard for header in rest.headers] == [1]
            error = await refusal(nodes[2].admin.ReleaseHold(release()))
            assert (type(error), error.reason) == (errors.NotFound, "HOLD_UNKNOWN")

    run(test())


def test_bad_input_is_refused_with_a_reason_and_no_shard_is_changed(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=2, log=LOG, snapshot=NEVER) as node:
            await node.admin.SetHold(set_hold("there", from_start=True))
            before = [log_of(node, shard).last_index for shard in (0, 1)]
            far = before[1] + 2
            wrong: list[tuple[Any, type[errors.OnelogError], str]] = [
                (set_hold(""), errors.InvalidArgument, "HOLD_NAME_INVALID"),
                (set_hold("x" * 129), errors.InvalidArgument, "HOLD_NAME_INVALID"),
                (set_hold("a\nb"), errors.InvalidArgument, "HOLD_NAME_INVALID"),
                (set_hold(indexes={2: 1}), errors.InvalidArgument, "SHARD_UNKNOWN"),
                (set_hold(indexes={0: 0}), errors.InvalidArgument, "HOLD_INDEX_INVALID"),
                (set_hold(indexes={1: far}), errors.OutOfRange, "INDEX_IN_FUTURE"),
                (set_hold(ttl_ms=1 << 62), errors.InvalidArgument, "HOLD_LIMIT_INVALID"),
                (set_hold("there"), errors.AlreadyExists, "HOLD_EXISTS"),
                (
                    set_hold("there", move=True, from_start=True),
                    errors.InvalidArgument,
                    "FROM_START_INVALID",
                ),
                (set_hold(validate_only=True, move=True), errors.NotFound, "HOLD_UNKNOWN"),
                (
                    set_hold("there", move=True, indexes={1: far}),
                    errors.OutOfRange,
                    "INDEX_IN_FUTURE",
                ),
            ]
            for request, kind, reason in wrong:
                error = await refusal(node.admin.SetHold(request))
                assert (type(error), error.reason) == (kind, reason), request
            # A move that one shard refuses may have been made in the other, which is harmless.
            after = [log_of(node, shard).last_index for shard in (0, 1)]
            assert after in (before, [before[0] + 1, before[1]])
            tried = await node.admin.SetHold(set_hold("tried", validate_only=True))
            assert dict(tried.indexes) == {0: after[0] + 1, 1: after[1] + 1}
            assert {hold.name for hold in await holds_of(node)} == {"there"}

    run(test())


def test_holds_survive_a_restart_and_the_python_client_moves_them(tmp_path: Path) -> None:
    async def test() -> None:
        config = parse_config(tmp_path / "n1", shards=1, log=LOG, snapshot=NEVER)
        node = await start(config)
        await until(lambda: is_ready([node]))
        async with AsyncClient(node.endpoint) as client:
            assert await client.admin.set_hold("export", from_start=True, ttl_s=90.5) == {0: 1}
            await client.kv.put("a", b"1")
        await node.stop()
        node = await start(config)
        try:
            await until(lambda: is_ready([node]))
            async with AsyncClient(node.endpoint) as client:
                (hold,) = await client.admin.list_holds()
                assert (hold.name, hold.index, hold.ttl_ms) == ("export", 1, 90_500)
                assert await client.admin.set_hold("export", move=True, indexes={0: 3}) == {0: 3}
                await client.admin.release_hold("export")
                with pytest.raises(errors.NotFound, match="no hold of that name"):
                    await client.admin.release_hold("export")
        finally:
            await node.stop()

    run(test())
