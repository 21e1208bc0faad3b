"""``client.log``: frames and snapshots, from whichever replica has them."""

import asyncio
import random
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from onelog import AsyncClient, Client, errors
from onelog.client.options import ClientOptions
from onelog.node.services.log import LogService
from onelog.v1 import log_pb2
from tests.node.services.nodes import Node, cluster, run, single, until
from tests.node.snapshots.test_as_of import SMALL_LOG, put, snapshot, trim, write
from tests.onelog.client.serving import serving
from tests.ual.shards import drop_before

# A stream of this rate has not ended before something happens to it.
SLOW = 200_000
QUICK = ClientOptions(timeout_s=20, backoff_first_s=0.002, backoff_max_s=0.02)


async def filled(nodes: list[Node], count: int = 20) -> tuple[int, bytes]:
    """Write entries of 10 KiB at the leader; return the last index and the value of one."""
    leader = next(node for node in nodes if node.leads(0))
    last, value = 0, b""
    for number in range(count):
        value = random.Random(number).randbytes(10 << 10)
        last = await write(leader, put(b"k", value))
    for node in nodes:
        log = node.context.drivers[0].shard.log
        await until(lambda log=log: log.applied_index >= last)  # type: ignore[misc]
    return last, value


def endpoints(nodes: list[Node]) -> list[str]:
    return [node.endpoint for node in nodes]


async def read(client: AsyncClient, first: int, last: int, **options: Any) -> bytes:
    found, at = b"", first
    async for frame in client.log.frames(0, first, last, **options):
        assert frame.first_index == at
        at = frame.last_index + 1
        found += frame.data
    assert at == last + 1
    return found


def test_frames_continue_on_another_replica_where_one_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = LogService._wanted

    def noted(service: LogService, request: log_pb2.ReadLogFramesRequest) -> Any:
        asked.append(service._edge.context.node_name)
        return real(service, request)

    monkeypatch.setattr(LogService, "_wanted", noted)

    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            last, value = await filled(nodes)
            async with AsyncClient(endpoints(nodes), options=QUICK) as client:
                whole = await read(client, 1, last)
                assert value in whole
                asked.clear()
                found, at = b"", 1
                frames = client.log.frames(0, 1, last, bytes_per_second_max=SLOW)
                async with aclosing(frames):  # type: ignore[type-var]
                    async for frame in frames:
                        assert frame.first_index == at
                        found, at = found + frame.data, frame.last_index + 1
                        if len(asked) == 1 and len(found) > 50_000:
                            serving = next(
                                node for node in nodes if node.context.node_name == asked[0]
                            )
                            await serving.stop()
                assert at == last + 1
                assert found == whole
                assert len(set(asked)) > 1

    run(test())


def test_frames_that_one_replica_lacks_come_from_another(tmp_path: Path) -> None:
    """Each replica trims its log by itself: one may keep what another one has dropped."""

    async def test() -> None:
        async with cluster(tmp_path, shards=1, log=SMALL_LOG) as nodes:
            last, _ = await filled(nodes)
            poor = next(node for node in nodes if not node.leads(0))
            log = poor.context.drivers[0].shard.log
            leader = next(node for node in nodes if node.leads(0))
            for _ in range(2):
                index = await write(leader, put(b"k", b""))
                await until(lambda index=index: log.applied_index >= index)  # type: ignore[misc]
                await snapshot(poor)
            await until(lambda: trim(poor) or log.first_index > 1)
            async with AsyncClient(endpoints(nodes), options=QUICK) as client:
                whole = await read(client, 1, last, endpoint=leader.endpoint)
                for _ in nodes:  # each is the first to be asked in its turn
                    assert await read(client, 1, last) == whole
                with pytest.raises(errors.OutOfRange) as caught:
                    await read(client, 1, last, endpoint=poor.endpoint)
                assert caught.value.metadata["first_index"] == str(log.first_index)
                for node in nodes:
                    node_log = node.context.drivers[0].shard.log
                    drop_before(node_log, 10)
                with pytest.raises(errors.OutOfRange) as caught:
                    await read(client, 1, last)
                assert caught.value.reason == "COMPACTED"

    run(test())


def test_what_cannot_be_had_is_refused_within_the_timeout(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            last, _ = await filled([node], 3)
            async with AsyncClient(node.endpoint, timeout_s=5) as client:
                assert (await client.log.describe(0)).cut_index >= last
                for first, end, reason in (
                    (1, 0, "RANGE_INVALID"),
                    (3, 2, "RANGE_INVALID"),
                    (1, last + 1_000, "INDEX_IN_FUTURE"),
                ):
                    with pytest.raises(errors.OnelogError) as caught:
                        await read(client, first, end)
                    assert caught.value.reason == reason
                with pytest.raises(errors.NotFound, match="shard 7"):
                    await client.log.describe(7)
                with pytest.raises(errors.InvalidArgument) as invalid:
                    await read(client, -1, 1)
                assert invalid.value.reason == "NUMBER_INVALID"
                with pytest.raises(errors.NotFound) as unknown:
                    _ = [each async for each in client.log.snapshot(0)]
                assert unknown.value.reason == "SNAPSHOT_UNKNOWN"
                index = await snapshot(node)
                data = b"".join([each async for each in client.log.snapshot(0, index)])
                store = node.context.drivers[0].shard.snapshots
                assert data == store.path(store.records[0]).read_bytes()

    run(test())


def test_a_snapshot_that_breaks_off_is_not_continued_in_the_middle(tmp_path: Path) -> None:
    """Another node's snapshot of the same index has other bytes."""

    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            for number in range(24):
                value = random.Random(number).randbytes(1 << 20)
                await write(node, put(b"large-%d" % number, value))
            await snapshot(node)
            async with AsyncClient(node.endpoint, options=QUICK) as client:
                chunks = client.log.snapshot(0)
                await anext(chunks)
                stopping = asyncio.create_task(node.stop())
                with pytest.raises(errors.FailedPrecondition) as caught:
                    _ = [each async for each in chunks]
                assert caught.value.reason == "SNAPSHOT_INTERRUPTED"
                await stopping

    run(test())


def test_the_blocking_client_has_the_same(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "data", "--shards", "1") as endpoint,
        Client(endpoint, timeout_s=60) as client,
    ):
        client.kv.put("a", b"1" * 100)
        cut = client.log.describe(0).cut_index
        frames = list(client.log.frames(0, 1, cut, owners=[log_pb2.OWNER_KV]))
        assert sum(len(each.offsets) for each in frames) == 4
        assert b"1" * 100 in b"".join(each.data for each in frames)
        client.admin.take_snapshot(0)
        assert b"".join(client.log.snapshot(0)).startswith(b"FLO_SNP\0")
