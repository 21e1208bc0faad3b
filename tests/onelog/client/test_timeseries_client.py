"""Time series through the client, against real nodes: arrays in, arrays out."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onelog import AsyncClient, Client, MeasurementConfig, Read, Rule, SeriesData, Watched
from onelog.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
)
from onelog.v1 import admin_pb2
from tests.node.services.nodes import cluster, eventually, run, single
from tests.onelog.client.serving import serving

SECOND = 10**9
HOUR = 3_600 * SECOND
TRANSFER = admin_pb2.TransferLeadershipRequest(shard=0)


def with_client(tmp_path: Path, test: Any) -> None:
    async def main() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            await test(client)

    run(main())


def test_arrays_and_lists_come_back_as_arrays_of_their_type(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        draw = np.random.default_rng(7)
        times = np.sort(draw.integers(0, 2**60, 5_000))
        fields = {
            "f": draw.normal(0, 1e9, 5_000),
            "i": draw.integers(-(2**63), 2**63 - 1, 5_000),
            "b": draw.random(5_000) < 0.5,
        }
        assert await client.ts.write("m", times, fields, tags={"host": "a"}) == 15_000
        for name, values in fields.items():
            (found,) = await client.ts.query("m", name, 0, 2**62)
            assert found.tags == {"host": "a"}
            np.testing.assert_array_equal(found.times_ns, times)
            np.testing.assert_array_equal(found.values, values)
            assert found.values.dtype == values.dtype
        await client.ts.write("small", [3, 1, 2], {"v": [3, 1, 2]})
        await client.ts.write("small", 4, {"v": 4})
        await client.ts.write("small", np.datetime64("1970-01-01T00:00:00", "s"), {"v": 0})
        (found,) = await client.ts.query("small", "v", 0, 10)
        assert (found.times_ns.tolist(), found.values.tolist()) == (
            [0, 1, 2, 3, 4],
            [0, 1, 2, 3, 4],
        )
        assert found.values.dtype == np.int64

    with_client(tmp_path, test)


def test_many_series_are_written_at_once_and_asked_in_groups(tmp_path: Path) -> None:
    """F2, F3."""

    async def test(client: AsyncClient) -> None:
        times = np.arange(0, 600) * SECOND
        series = [
            SeriesData({"host": f"h{n}", "zone": "xy"[n % 2]}, times, {"v": times / 1e9 * (n + 1)})
            for n in range(10)
        ]
        assert await client.ts.write_many("m", series) == 6_000
        ask = client.ts.query
        groups = await ask(
            "m", "v", 0, HOUR, aggregate="mean", window_s=300, group_by=["zone"],
            where={"host": ("!=", "h0")},
        )  # fmt: skip
        assert [group.tags for group in groups] == [{"zone": "x"}, {"zone": "y"}]
        assert groups[0].times_ns.tolist() == [0, 300 * SECOND]
        np.testing.assert_allclose(groups[0].values, [149.5 * 6, 449.5 * 6])  # 3, 5, 7 and 9 times
        (all_of_them,) = await ask("m", "v", 0, HOUR, aggregate="percentile", percentile=50)
        assert all_of_them.tags == {}
        stacked = np.concatenate([each.fields["v"] for each in series])
        np.testing.assert_allclose(all_of_them.values, [np.percentile(stacked, 50)])
        (rate,) = await ask("m", "v", 0, HOUR, aggregate="rate", where={"host": "h4"})
        np.testing.assert_allclose(rate.values, [5.0])
        top = await ask("m", "v", 0, HOUR, aggregate="max", by_series=True, top=3)
        assert [each.tags["host"] for each in top] == ["h9", "h8", "h7"]
        some = await ask("m", "v", 0, HOUR, where={"host": ("=~", "h[12]")}, limit=2)
        assert [(each.tags["host"], len(each)) for each in some] == [("h1", 2), ("h2", 2)]
        assert await ask("m", "v", 0, HOUR, where={"host": "none"}, read=Read(stale=True)) == []

    with_client(tmp_path, test)


def test_series_and_measurements_are_listed_deleted_and_configured(tmp_path: Path) -> None:
    """F7."""

    async def test(client: AsyncClient) -> None:
        ts = client.ts
        config = MeasurementConfig("reject", retention_s=0.0, series_max=1_200)
        await ts.create("m", config)
        data = [
            SeriesData({"n": str(n)}, np.array([5]), {"v": np.array([1.0])}) for n in range(1_200)
        ]
        await ts.write_many("m", data)
        with pytest.raises(ResourceExhausted):
            await ts.write("m", 5, {"v": 1.0}, tags={"n": "more"})
        with pytest.raises(FailedPrecondition):
            await ts.write("m", 5, {"v": 1.0}, tags={"n": "1"})
        listed = [each["n"] async for each in ts.series("m")]
        assert listed == [str(n) for n in range(1_200)]
        assert await ts.delete("m", where={"n": ("=~", "1.*")}) == 311
        assert [each async for each in ts.series("m", where={"n": "100"})] == []
        assert await ts.delete("m", where={"n": "2"}, first_ns=0, last_ns=4) == 1
        assert len(await ts.query("m", "v", 0, 10)) == 889
        info = await ts.info("m")
        assert (info.config, info.fields, info.series_count) == (config, {"v": "f64"}, 889)
        await ts.configure("m", MeasurementConfig())
        assert (await ts.info("m")).config == MeasurementConfig(series_max=100_000)
        for number in range(3):
            await ts.write(f"other{number}", 1, {"v": True})
        names = [each.measurement async for each in ts.measurements()]
        assert names == ["m", "other0", "other1", "other2"]
        assert [each.measurement async for each in ts.measurements("other1")] == ["other1"]
        await ts.drop("m")
        with pytest.raises(NotFound):
            await ts.info("m")
        for wrong in ({"v": [float("nan")]}, {"": [1.0]}, {"v": ["text"]}, {"v": [1.0, 2.0]}):
            with pytest.raises(InvalidArgument):
                await ts.write("m", [1], wrong)
        with pytest.raises(InvalidArgument):
            await ts.query("other0", "v", 5, 4)
        with pytest.raises(InvalidArgument):
            await ts.query("other0", "v", 0, 4, where={"x": ("=~", "(")})

    with_client(tmp_path, test)


def test_rules_work_and_are_shown_and_watchers_get_arrays(tmp_path: Path) -> None:
    """F4."""

    async def test(client: AsyncClient) -> None:
        ts = client.ts
        rule = Rule("down", 10, ("mean", "max"), "ten{cpu}")
        await ts.create("cpu")
        await ts.set_rule("cpu", rule)
        assert (await ts.info("cpu")).rules == (rule,)
        async with client.watch(Watched("ts", name="ten{cpu}")) as watch:
            times = 1_000 * SECOND + np.arange(20) * SECOND
            await ts.write("cpu", times, {"v": np.arange(20.0)})
            event = await anext(watch)
        assert (event.kind, event.name) == ("written", b"ten{cpu}")
        points = {
            name: values.tolist() for each in event.points for name, values in each.fields.items()
        }
        assert points == {"v_mean": [4.5, 14.5], "v_max": [9.0, 19.0]}
        (found,) = await ts.query("ten{cpu}", "v_max", 0, 2**62)
        assert found.times_ns.tolist() == [1_000 * SECOND, 1_010 * SECOND]
        await ts.delete_rule("cpu", "down")
        assert (await ts.info("cpu")).rules == ()
        with pytest.raises(InvalidArgument):
            await ts.set_rule("cpu", Rule("far", 10, ("mean",), "elsewhere0"))
        await ts.configure("cpu", MeasurementConfig(retention_s=1))

        async def is_gone() -> None:
            assert await ts.query("cpu", "v", 0, 2**62) == []

        await eventually(is_gone)
        with pytest.raises(OutOfRange):
            await ts.write("cpu", times, {"v": np.arange(20.0)})

    with_client(tmp_path, test)


def test_writes_through_a_leader_change_are_there_once(tmp_path: Path) -> None:
    """F8."""

    async def main() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            endpoints = [node.endpoint for node in nodes]
            async with AsyncClient(endpoints) as client:
                await client.ts.create("m", MeasurementConfig("reject"))

                async def writer(host: str) -> None:
                    # Rising times only: a write that took effect twice would be refused.
                    for number in range(40):
                        await client.ts.write("m", number + 1, {"v": number}, tags={"host": host})

                writers = [asyncio.create_task(writer(f"h{number}")) for number in range(5)]
                for _ in range(2):
                    await eventually(lambda: nodes[0].admin.TransferLeadership(TRANSFER))
                await asyncio.gather(*writers)
                groups = await client.ts.query("m", "v", 0, 100)
                assert [group.values.tolist() for group in groups] == [list(range(40))] * 5

    run(main())


def test_one_series_is_filled_as_fast_as_a_loop_can(tmp_path: Path) -> None:
    """Its blocks are made meanwhile; where they are not yet, the client waits and tries again."""

    async def test(client: AsyncClient) -> None:
        count, step = 600_000, 20_000
        times = np.arange(count) * SECOND
        for first in range(0, count, step):
            part = slice(first, first + step)
            assert await client.ts.write("loop", times[part], {"v": times[part]}) == step
        assert await client.ts.write("call", times, {"v": times, "w": times / 2}) == 2 * count
        many = [SeriesData({"h": str(n)}, times[:4_000], {"v": times[:4_000]}) for n in range(50)]
        assert await client.ts.write_many("many", many) == 200_000
        for measurement, field, expected in (
            ("loop", "v", count), ("call", "v", count), ("call", "w", count), ("many", "v", 200_000)
        ):  # fmt: skip
            (found,) = await client.ts.query(measurement, field, 0, 2**62, aggregate="count")
            assert found.values.tolist() == [expected]

    with_client(tmp_path, test)


def test_a_write_in_parts_says_how_far_it_came(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        await client.ts.create("m", MeasurementConfig("reject"))
        times = np.arange(250_000) * SECOND
        times[210_000] = 0  # not newer than those before it
        with pytest.raises(FailedPrecondition) as failure:
            await client.ts.write("m", times, {"v": times})
        assert failure.value.reason == "POINT_NOT_NEWER"
        assert failure.value.metadata["written_count"] == "200000"
        (found,) = await client.ts.query("m", "v", 0, 2**62, aggregate="count")
        assert found.values.tolist() == [200_000]
        wrong = np.append(times[:150_000].astype(float), np.nan)
        with pytest.raises(InvalidArgument, match="position 150000"):
            await client.ts.write("never", np.arange(150_001), {"v": wrong})
        with pytest.raises(NotFound):
            await client.ts.info("never")

    with_client(tmp_path, test)


def test_the_client_without_a_loop_does_the_same(tmp_path: Path) -> None:
    with serving(tmp_path) as endpoint, Client(endpoint, timeout_s=30) as client:
        times = np.arange(100) * SECOND
        client.ts.write("m", times, {"v": np.arange(100.0)}, tags={"host": "a"})
        (found,) = client.ts.query("m", "v", 0, HOUR, aggregate="sum", window_s=50)
        np.testing.assert_allclose(found.values, [1225.0, 3725.0])
        assert list(client.ts.series("m")) == [{"host": "a"}]
        assert [each.measurement for each in client.ts.measurements()] == ["m"]
        with client.transact() as batch:
            batch.put("{m}k", "1")
            batch.write_points("m", [HOUR], {"v": [1.0]}, tags={"host": "a"})
        assert client.ts.delete("m", first_ns=0, last_ns=HOUR - 1) == 1
        (found,) = client.ts.query("m", "v", 0, 2 * HOUR)
        assert found.times_ns.tolist() == [HOUR]


def test_a_thousand_deletes_leave_what_they_should_also_after_a_restart(tmp_path: Path) -> None:
    """From blocks that are made meanwhile, in one series."""
    draw = np.random.default_rng(3)
    start_ns = 1_700_000_000 * SECOND
    times = start_ns + np.arange(20_000) * SECOND
    firsts = draw.integers(0, 20_000, 1_000)
    lasts = firsts + draw.integers(0, 6, 1_000)
    is_kept = np.ones(len(times), dtype=bool)
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        is_kept[first : last + 1] = False

    async def check(client: AsyncClient) -> None:
        (found,) = await client.ts.query("m", "v", start_ns, start_ns + 20_000 * SECOND)
        np.testing.assert_array_equal(found.times_ns, times[is_kept])

    async def delete(client: AsyncClient, at: int) -> None:
        first_ns, last_ns = (start_ns + int(each[at]) * SECOND for each in (firsts, lasts))
        assert await client.ts.delete("m", first_ns=first_ns, last_ns=last_ns) == 1

    async def main() -> None:
        async with single(tmp_path, shards=1) as node, AsyncClient(node.endpoint) as client:
            await client.ts.write("m", times, {"v": times / 1e9}, tags={"host": "a"})
            for at in range(0, 1_000, 50):
                await asyncio.gather(*(delete(client, each) for each in range(at, at + 50)))
            await check(client)
            await client.admin.take_snapshot(0)
        async with single(tmp_path, shards=1) as node, AsyncClient(node.endpoint) as client:
            await check(client)

    run(main())
