"""Streams through the client, against real nodes."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onelog import AsyncClient, Client, Watched
from onelog.client.values import (
    Gap,
    GroupConfig,
    NewRecord,
    Producer,
    Record,
    RecordFilter,
    Retention,
)
from onelog.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from onelog.v1 import admin_pb2
from tests.node.services.nodes import cluster, eventually, run, single


def with_client(tmp_path: Path, test: Any) -> None:
    async def main() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            await test(client)

    run(main())


async def take(tail: Any, number: int) -> list[Record]:
    async with asyncio.timeout(20):
        return [await anext(tail) for _ in range(number)]


def test_records_are_appended_and_read_again(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        stream = client.stream("events")
        stream_id = await stream.create(partitions=1, retention=Retention(count_max=10_000))
        with pytest.raises(AlreadyExists):
            await stream.create()
        first = await stream.append("a", key="k", tag="t", headers={"h": "1"})
        assert first.offset > stream_id
        many = await stream.append_many([f"{n}" for n in range(500)] + [NewRecord("last", tag="t")])
        assert [each.offset for each in many] == sorted({each.offset for each in many})
        records = [record async for record in stream.read()]
        assert len(records) == 502
        assert records[0].headers == {"h": b"1"}
        assert (records[0].key, records[0].tag, records[0].offset) == (b"k", "t", first.offset)
        for limit in (1, 300, 502, 10**6):
            assert [each async for each in stream.read(limit=limit)] == records[:limit]
        tagged = [each.value async for each in stream.read(only=RecordFilter(tags=("t",)))]
        assert tagged == [b"a", b"last"]
        part = stream.read(from_offset=many[10].offset, to_offset=many[12].offset)
        assert [each.value async for each in part] == [b"10", b"11", b"12"]
        late = stream.read(from_ns=records[-1].timestamp_ns)
        assert [each.value async for each in late][-1] == b"last"
        info = await stream.info()
        assert info.partitions[0].record_count == 502
        assert info.retention.count_max == 10_000
        await stream.trim(below_offset=many[498].offset)
        gap, *left = [record async for record in stream.read(from_offset=1)]
        assert gap.gap == Gap(stream_id + 1, many[498].offset - 1, "TRIMMED")
        assert [each.value for each in left] == [b"498", b"499", b"last"]
        await stream.configure(Retention(age_s=60))
        assert [each.stream async for each in client.streams("ev")] == ["events"]
        await stream.delete()
        with pytest.raises(NotFound):
            await stream.append("b")

    with_client(tmp_path, test)


def test_at_most_so_many_records_are_read_also_over_pages(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        stream = client.stream("long")
        await stream.create()
        await stream.append_many(map(str, range(2_500)))
        for limit, count in (
            (0, 2_500),
            (999, 999),
            (1_001, 1_001),
            (2_400, 2_400),
            (9_999, 2_500),
        ):
            assert len([each async for each in stream.read(limit=limit)]) == count
        with pytest.raises(InvalidArgument):
            await anext(stream.read(limit=-1))

    with_client(tmp_path, test)


def test_a_producer_is_exact_across_restarts_of_its_program(tmp_path: Path) -> None:
    """E9"""

    async def test(client: AsyncClient) -> None:
        stream = client.stream("events")
        await stream.create()
        first = await stream.append("1", producer=Producer(7, epoch=0, sequence=1))
        again = await stream.append("1", producer=Producer(7, epoch=0, sequence=1))
        assert (again.offset, again.duplicate) == (first.offset, True)
        with pytest.raises(FailedPrecondition):
            await stream.append("9", producer=Producer(7, epoch=0, sequence=9))
        assert len([each async for each in stream.read()]) == 1

    with_client(tmp_path, test)


def test_a_tail_goes_on_where_its_cursor_says_also_in_the_middle_of_a_page(
    tmp_path: Path,
) -> None:
    """E11"""

    async def test(client: AsyncClient) -> None:
        names = ["one", "two", "three"]
        for name in names:
            await client.stream(name).create(partitions=2)
        async with client.tail(*names) as tail:
            place = tail.cursor
        for number in range(60):
            await client.stream(names[number % 3]).append(str(number))
        found: list[Record] = []
        while len(found) < 60:
            async with client.tail(*names, cursor=place) as tail:
                found += await take(tail, min(7, 60 - len(found)))
                place = tail.cursor
        assert sorted(int(each.value) for each in found) == list(range(60))
        for name in names:
            its = [int(each.value) for each in found if each.stream == name]
            assert its == sorted(its)
        with pytest.raises(InvalidArgument, match="CURSOR_INVALID"):
            client.tail("one", cursor=b"what?")
        only = RecordFilter(keys=("k",))
        async with client.stream("one").tail(only=only) as tail:
            await client.stream("one").append("no", key="x")
            await client.stream("one").append("yes", key="k")
            assert (await anext(tail)).value == b"yes"

    with_client(tmp_path, test)


def test_a_tail_and_appends_are_exact_while_leaders_change(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            cluster(tmp_path, shards=2) as nodes,
            AsyncClient([node.endpoint for node in nodes], timeout_s=20) as client,
        ):
            names = ["a", "b", "c", "d"]
            for name in names:
                await client.stream(name).create()
            one = client.stream("a").tail()
            every = client.tail(*names)
            async with one, every:
                for number in range(60):
                    await asyncio.gather(
                        *(client.stream(name).append(f"{name}{number}") for name in names)
                    )
                    if number % 15 == 7:
                        for shard in range(2):
                            move = admin_pb2.TransferLeadershipRequest(shard=shard)
                            transfer = partial(nodes[0].admin.TransferLeadership, move, timeout=5)
                            await eventually(transfer)
                expected = [b"a%d" % number for number in range(60)]
                assert [each.value for each in await take(one, 60)] == expected
                found = await take(every, 240)
            for name in names:
                its = [each.value for each in found if each.stream == name]
                assert its == [f"{name}{number}".encode() for number in range(60)]

    run(test())


def test_members_of_a_group_fetch_acknowledge_and_give_back(tmp_path: Path) -> None:
    """E2, E3"""

    async def test(client: AsyncClient) -> None:
        stream, dead = client.stream("jobs{j}"), client.stream("dead{j}")
        await stream.create(partitions=2)
        await dead.create()
        group = stream.group("workers")
        await group.create(
            from_offset=0, config=GroupConfig(max_deliveries=2, dead_letter_stream="dead{j}")
        )
        await stream.append_many([NewRecord(f"{n}", partition=n % 2) for n in range(10)])
        async with await group.join(session_s=30) as first:
            got = await first.fetch(limit=6)
            assert len(got) == 6
            assert await first.ack(got[:5]) == 5
            assert await first.nack(got[5], reason="busy") == 1
            (again,) = await first.fetch(wait_s=5)
            assert (again.value, again.delivery_count) == (got[5].value, 2)
            await first.nack(again, reason="broken")
            async with dead.tail(from_offset=0) as letters:
                letter = await anext(letters)
            assert letter.value == again.value
            assert letter.headers["dlq.failure_reason"] == b"broken"
            async with await group.join() as second:
                assert len(second.partitions) == 1
                # The first hears of it by itself, and goes on with what is left to it.
                assert await first.fetch() == []
                assert len(first.partitions) == 1
                mine, theirs = await first.fetch(), await second.fetch()
                assert len(mine) + len(theirs) == 4
                info = await group.info()
                assert sum(each.pending_count for each in info.members) == 4
                assert await second.claim(60.0) == []
            # What the second left behind comes to the first, when it knows of its partition.
            assert await first.fetch() == []
            left = await first.fetch(wait_s=5)
            assert {each.value for each in left} == {each.value for each in theirs}
            assert await first.ack([*mine, *left]) == 4
            assert {each.lag for each in (await group.info()).partitions} == {0}
            await group.seek(offset=0)
            await first.fetch()
            everything = [await anext(first) for _ in range(10)]
            assert len({each.value for each in everything}) == 10
            await group.seek(time_ns=everything[-1].timestamp_ns + 10**12)
            await first.fetch()
            assert await first.fetch() == []
            new = await stream.append("new", partition=0)
            (record,) = await first.fetch(wait_s=5)
            assert record.offset == new.offset
            await first.commit(record)
            committed = (await group.info()).partitions[0].committed_offset
            assert committed == new.offset + 1
        assert not (await group.info()).members
        await group.configure(GroupConfig())
        await group.delete()

    with_client(tmp_path, test)


def test_a_batch_moves_records_and_cursors_together(tmp_path: Path) -> None:
    """E10"""

    async def test(client: AsyncClient) -> None:
        source, target = client.stream("in{x}"), client.stream("out{x}")
        await source.create()
        await target.create()
        group = source.group("copy")
        await group.create(from_offset=0)
        await source.append_many(["1", "2"])
        async with client.watch(Watched("stream", name="out{x}")) as watch:
            async with await group.join() as member:
                records = await member.fetch()
                async with client.transact() as batch:
                    for record in records:
                        batch.append_record("out{x}", record.value)
                    batch.ack_records("in{x}", "copy", member.member_id, records)
                    batch.put("copied{x}", "yes")
            appended = [each.offset for each in batch.results[:2]]
            assert batch.results[2:] == [2, None]
            events = [await anext(watch), await anext(watch)]
            assert [each.kind for each in events] == ["appended", "appended"]
            told = [each.record for each in events if each.record is not None]
            assert [each.value for each in told] == [b"1", b"2"]
        assert [each.offset async for each in target.read()] == appended

    with_client(tmp_path, test)


def test_an_append_that_does_not_wait_for_disks_returns_where_it_is(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        stream = client.stream("events")
        await stream.create()
        early = client.scoped(durability="async").stream("events")
        appended = [await early.append("1"), *await early.append_many(["2", "3"])]
        await stream.append("4")
        offsets = [each.offset async for each in stream.read()]
        assert offsets[:3] == [each.offset for each in appended]

    with_client(tmp_path, test)


def test_the_blocking_client_reads_tails_and_consumes(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as node:
            await asyncio.get_running_loop().run_in_executor(None, blocking, node.endpoint)

    def blocking(endpoint: str) -> None:
        with Client(endpoint) as client:
            stream = client.stream("events")
            stream.create()
            with stream.tail() as tail:
                stream.append_many(["1", "2", "3"])
                assert next(tail).value == b"1"
                place = tail.cursor
            with stream.tail(cursor=place) as tail:
                assert [next(tail).value, next(tail).value] == [b"2", b"3"]
            assert [each.value for each in stream.read()] == [b"1", b"2", b"3"]
            group = stream.group("g")
            group.create(from_offset=0)
            with group.join() as consumer:
                seen = []
                for record in consumer:
                    consumer.ack(record)
                    seen.append(record.value)
                    if len(seen) == 3:
                        break
            assert seen == [b"1", b"2", b"3"]

    run(test())
