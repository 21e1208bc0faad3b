"""Batches over models, watching, and administration through the client, against real nodes."""

import asyncio
from pathlib import Path

import pytest

from onelog import AsyncClient, Watched
from onelog.errors import AlreadyExists, ConditionFailed, FailedPrecondition, InvalidArgument
from tests.node.services.nodes import cluster, run, single, until


def test_a_batch_happens_wholly_or_not_at_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            async with client.transact() as batch:
                batch.when("order{7}", exists=False)
                batch.put("order{7}", "new").increment("count{7}", 2).append("log{7}", "abc")
                batch.delete("none{7}")
            assert batch.results == [None, 2, 3, False]
            assert batch.written.index > 0
            with pytest.raises(ConditionFailed):
                async with client.transact() as again:
                    again.when("order{7}", exists=False).increment("count{7}", 2)
            with pytest.raises(FailedPrecondition, match="NOT_COMMITTED"):
                _ = again.results
            with pytest.raises(InvalidArgument, match="a condition is about"):
                async with client.transact() as left:
                    left.increment("count{7}", 2).when("count{7}")
            with pytest.raises(InvalidArgument):
                await client.transact().commit()
            found = await client.kv.get("count{7}")
            assert found is not None
            assert found.text == "2"

    run(main())


def test_a_batch_of_many_puts_does_each_of_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            async with client.transact() as batch:
                for number in range(300):
                    batch.put(f"{number}{{t}}", b"%d" % number)
                with pytest.raises(InvalidArgument):
                    batch.put("wrong{t}", 5)  # type: ignore[arg-type]
                batch.put("mortal{t}", "soon", ttl_s=60).put("0{t}", "again")
                batch.put("new{t}", "1", expected_version=0)
            assert batch.results == [None] * 303
            found = await client.kv.get_many([f"{number}{{t}}" for number in range(300)])
            assert [each and each.text for each in found[1:]] == [str(n) for n in range(1, 300)]
            assert {each and each.version for each in found[1:]} == {batch.written.index + 1}
            mortal, again, new, wrong = await client.kv.get_many(
                ["mortal{t}", "0{t}", "new{t}", "wrong{t}"]
            )
            assert mortal is not None
            assert mortal.expires_ns
            assert again is not None
            assert (again.text, again.version) == ("again", batch.written.index + 3)
            assert new is not None
            assert new.version == batch.written.index + 4
            assert wrong is None
            with pytest.raises(AlreadyExists) as refused:
                async with client.transact() as other:
                    other.put("1{t}", "no").put("2{t}", "no").put("new{t}", "2", expected_version=0)
            assert refused.value.metadata["position"] == "2"
            kept = await client.kv.get("1{t}")
            assert kept is not None
            assert kept.text == "1"

    run(main())


def test_a_watch_sees_each_change_once_also_when_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            kv = client.kv
            async with client.watch(Watched("kv", prefix="w"), with_previous=True) as watch:
                await kv.put_many((f"w{n}", f"{n}") for n in range(50))
                await kv.put("other", "")
                await kv.put("w1", "again")
                await kv.delete("w1")
                names = [(await anext(watch)).name for _ in range(20)]
            async with client.watch(
                Watched("kv", prefix="w"), cursor=watch.cursor, with_previous=True
            ) as rest:
                events = [await anext(rest) for _ in range(32)]
                names += [each.name for each in events]
            assert sorted(names) == sorted([b"w%d" % n for n in range(50)] + [b"w1", b"w1"])
            changed = [each for each in events if each.name == b"w1"][-2:]
            assert [each.kind for each in changed] == ["put", "deleted"]
            assert changed[0].previous is not None
            assert changed[0].previous.value == b"1"
            assert changed[1].previous is not None
            assert changed[1].previous.value == b"again"

    run(main())


def test_counts_are_exact_and_watched_once_while_leaders_move(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as nodes:
            endpoints = [each.endpoint for each in nodes]
            async with AsyncClient(endpoints, timeout_s=30) as client:
                done = asyncio.Event()
                counted = 0
                seen: list[int] = []

                async def count(number: int) -> None:
                    nonlocal counted
                    while not done.is_set():
                        await client.kv.increment(f"n{number}")
                        counted += 1

                async def look(first: asyncio.Event) -> None:
                    async with client.watch(Watched("kv", prefix="n")) as watch:
                        first.set()
                        async for event in watch:
                            assert event.item is not None
                            seen.append(event.shard << 48 | event.index)

                first = asyncio.Event()
                watching = asyncio.create_task(look(first))
                await first.wait()
                tasks = [asyncio.create_task(count(number)) for number in range(16)]
                for turn in range(4):
                    before = counted
                    await until(lambda before=before: counted > before + 100)  # type: ignore[misc]
                    shard = turn % 2
                    try:
                        await client.admin.transfer_leadership(shard)
                    except FailedPrecondition:
                        continue
                done.set()
                await asyncio.gather(*tasks)
                found = await client.kv.get_many([f"n{number}" for number in range(16)])
                assert sum(int(each.value) for each in found if each is not None) == counted
                await until(lambda: len(seen) >= counted)
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                assert len(seen) == len(set(seen)) == counted

    run(main())


def test_a_node_that_stops_is_survived(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as nodes:
            client = AsyncClient([each.endpoint for each in nodes], timeout_s=30)
            async with client:
                await client.kv.put_many((f"a{n}", b"") for n in range(50))
                leader = next(each for each in nodes if each.leads(0))
                stopping = asyncio.create_task(leader.stop())
                await client.kv.put_many((f"b{n}", b"") for n in range(50))
                await stopping
                found = await client.kv.get_many([f"b{n}" for n in range(50)])
                assert all(found)
                assert len([1 async for _ in client.kv.scan("a")]) == 50

    run(main())


def test_an_operator_sees_the_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            await client.kv.put("a", "1")
            status = await client.admin.status()
            assert [each.shard for each in status.shards] == [0, 1]
            topology = await client.admin.topology()
            assert {each.leader_endpoint for each in topology.shards} == {node.endpoint}
            assert len((await client.admin.members()).shards) == 2
            shard = client._connection.topology.find_shard(b"a")
            entries = [entry async for entry in client.admin.read_log(shard)]
            assert [entry.index for entry in entries] == list(range(1, len(entries) + 1))
            assert (await client.admin.state_hash(shard)).index >= len(entries)
            assert (await client.admin.log_ranges(shard)).ranges

    run(main())
