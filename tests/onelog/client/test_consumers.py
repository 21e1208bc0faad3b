"""Consumers: members that join again, what is nothing to do, offsets and producers in batches, and
tails over several streams."""

import asyncio
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from onelog import AsyncClient, Client, GroupConfig, NewRecord, RecordFilter, Watched
from onelog.client.values import Producer, Record
from onelog.errors import ConditionFailed, FailedPrecondition, InvalidArgument
from tests.node.services.nodes import Node, eventually, run, single
from tests.onelog.client.serving import serving


def with_client(tmp_path: Path, test: Any, **settings: Any) -> None:
    async def main() -> None:
        async with single(tmp_path, **settings) as node, AsyncClient(node.endpoint) as client:
            await test(client)

    run(main())


async def end_session(group: Any, member_id: int) -> None:
    """Remove a member behind its back, as the server does when its session runs out."""
    await (await group.rejoin(member_id)).close()


# Members


def test_a_member_whose_session_ran_out_joins_again_and_goes_on(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        stream = client.stream("s")
        await stream.create(partitions=2)
        group = stream.group("g")
        await group.create(from_offset=0)
        await stream.append_many([NewRecord(str(n), partition=n % 2) for n in range(6)])
        async with await group.join(session_s=600) as member:
            first_id = member.member_id
            held = await member.fetch(limit=2)
            await end_session(group, first_id)
            again = await member.fetch()
            assert member.member_id != first_id
            assert member.partitions == (0, 1)
            assert {record.value for record in held} <= {record.value for record in again}
            with pytest.raises(FailedPrecondition) as failure:
                await member.ack([*again, Record(10**6, b"", partition=0)])
            assert failure.value.reason == "RECORD_NOT_PENDING"
            assert await member.ack(again) == len(again)
            left = [] if len(again) == 6 else await member.fetch()
            assert await member.ack(left) == 6 - len(again)
            await end_session(group, member.member_id)
            assert await member.claim(0.001) == []
            await end_session(group, member.member_id)
        assert not (await group.info()).members

    with_client(tmp_path, test)


def test_what_a_lost_member_held_is_not_acknowledged_by_the_new_one(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        stream = client.stream("s")
        await stream.create()
        group = stream.group("g")
        await group.create(from_offset=0)
        await stream.append_many(["a", "b"])
        member = await group.join(session_s=600)
        iterated = [await anext(member)]
        await end_session(group, member.member_id)
        async with await group.join(session_s=600) as other:
            taken = await other.fetch()
            assert [record.value for record in taken] == [b"a", b"b"]
            # What it had fetched and not handed out belongs to the other, too.
            await stream.append("c")
            await other.ack(taken)
            await member.fetch()
            with pytest.raises(FailedPrecondition):
                await member.ack(iterated)
        await member.close()

    with_client(tmp_path, test)


def test_who_settles_after_its_session_ran_out_joins_again_and_is_told(tmp_path: Path) -> None:
    """Its loop goes on: the record comes again, whichever call was the first to notice."""

    async def test(client: AsyncClient) -> None:
        stream = client.stream("s")
        await stream.create()
        group = stream.group("g")
        await group.create(from_offset=0)
        await stream.append_many(["a", "b"])
        async with await group.join(session_s=600) as member:
            for settle in (member.ack, member.nack):
                lost = await anext(member)
                assert lost.value == b"a"
                lost_id = member.member_id
                await end_session(group, lost_id)
                with pytest.raises(FailedPrecondition) as failure:
                    await settle(lost)
                assert failure.value.reason == "RECORD_NOT_PENDING"
                assert member.member_id != lost_id
            await end_session(group, member.member_id)
            with pytest.raises(ConditionFailed) as stale:
                await member.commit(lost)
            assert stale.value.reason == "GENERATION_STALE"
            again = [await anext(member), await anext(member)]
            assert [record.value for record in again] == [b"a", b"b"]
            assert await member.ack(again) == 2

    with_client(tmp_path, test)


def test_a_commit_is_of_the_generation_that_fetched_its_records(tmp_path: Path) -> None:
    """Whatever the member has learned since, or whether it has joined again."""

    async def test(client: AsyncClient) -> None:
        stream = client.stream("s")
        await stream.create()
        group = stream.group("g")
        await group.create(from_offset=0)
        await stream.append_many(["a", "b", "c"])

        async def refuse(*records: Record) -> None:
            with pytest.raises(ConditionFailed) as stale:
                await member.commit(records)
            assert stale.value.reason == "GENERATION_STALE"

        async with await group.join(session_s=600) as member:
            (lost,) = await member.fetch(limit=1)
            lost_id = member.member_id
            await end_session(group, lost_id)
            (again,) = await member.claim(0.0)
            assert (again.value, member.member_id != lost_id) == (b"a", True)
            await refuse(lost)
            # Its one partition stays when another member joins, but a commit cannot know that.
            other = await group.join(session_s=600)
            assert await member.fetch() == []
            assert member.generation == other.generation
            await refuse(again)
            (newer,) = await member.fetch(limit=1)
            await refuse(again, newer)
            assert (await group.info()).partitions[0].committed_offset == lost.offset
            await member.commit(newer)
            (newest,) = await member.fetch()
            assert (await group.info()).partitions[0].committed_offset == newest.offset
            # A copy is not known to be of any generation.
            await other.close()
            assert await member.fetch() == []
            await refuse(newest)
            await member.commit(replace(newest))
            assert (await group.info()).partitions[0].lag == 0

    with_client(tmp_path, test)


def test_a_fetched_record_settles_itself(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        stream = client.stream("s")
        await stream.create()
        group = stream.group("g")
        await group.create(from_offset=0, config=GroupConfig(shared=True))
        await stream.append_many(["a", "b", "c"])
        async with await group.join(session_s=600) as member:
            acked, nacked = await member.fetch(limit=2)
            iterated = await anext(member)
            await asyncio.gather(acked.ack(), iterated.ack())
            await nacked.nack(reason="busy")
            (again,) = await member.fetch()
            assert (again.value, again.delivery_count) == (b"b", 2)
            async with await group.join(session_s=600) as other:
                (claimed,) = await other.claim(0.0)
                await claimed.ack()
            with pytest.raises(FailedPrecondition) as failure:
                await again.ack()
            assert failure.value.reason == "RECORD_NOT_PENDING"
            assert (await group.info()).partitions[0].lag == 0

    with_client(tmp_path, test)


def test_a_fetched_record_settles_itself_without_a_loop_and_a_copy_does_not(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as endpoint, Client(endpoint, timeout_s=60) as client:
        stream = client.stream("s")
        stream.create()
        group = stream.group("g")
        group.create(from_offset=0)
        stream.append_many(["a", "b", "c"])
        with group.join(session_s=600) as member:
            (first,) = member.fetch(limit=1)
            first.ack()
            second, third = next(member), next(member)
            second.nack(reason="busy", delay_s=600)
            copy = pickle.loads(pickle.dumps(third))
            assert type(copy) is Record
            assert copy == Record(*(getattr(third, each.name) for each in fields(Record)))
            with pytest.raises(FailedPrecondition) as failure:
                replace(third, tag="").ack()
            assert failure.value.reason == "NOT_LEASED"
            member.ack(copy)
            (part,) = group.info().partitions
            assert part.pending_count == 1


def test_the_heartbeat_joins_again_also_if_nothing_is_fetched(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        stream = client.stream("s")
        await stream.create(partitions=2)
        group = stream.group("g")
        await group.create()
        async with await group.join(session_s=1) as member:
            first_id = member.member_id
            await end_session(group, first_id)

            async def is_back() -> None:
                found = [each.member_id for each in (await group.info()).members]
                assert found == [member.member_id] != [first_id]

            await eventually(is_back)

    with_client(tmp_path, test)


def test_a_fetch_is_a_sign_of_life(tmp_path: Path) -> None:
    async def test(node: Node, client: AsyncClient) -> None:
        stream = client.stream("s")
        await stream.create()
        group = stream.group("g")
        await group.create()
        member = await group.join(session_s=3_600)
        (before,) = (await group.info()).members
        await member.fetch()
        (same,) = (await group.info()).members
        assert same.expires_ns == before.expires_ns  # it has just joined
        clock = node.context.drivers[0].shard.log_time
        clock._now_ns += 1_300 * 10**9  # more than a third of the session later
        await member.fetch()
        (after,) = (await group.info()).members
        assert after.expires_ns >= before.expires_ns + 1_300 * 10**9
        await member.fetch()
        assert (await group.info()).members == (after,)
        await member.close()

    async def main() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            await test(node, client)

    run(main())


def test_nothing_to_settle_is_nothing_to_do(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        queue, stream = client.queue("q{x}"), client.stream("s{x}")
        await queue.create()
        await stream.create()
        group = stream.group("g")
        await group.create(from_offset=0)
        assert await queue.ack_many([]) == await queue.nack_many([]) == []
        assert [await queue.enqueue_many([]), await stream.append_many([])] == [[], []]
        assert [await client.kv.put_many({}), await client.kv.get_many([])] == [[], []]
        assert await client.ts.write("m", [], {"v": []}) == 0
        assert await client.ts.write_many("m", []) == 0
        await group.commit([])
        async with await group.join() as member:
            assert await member.ack([]) == await member.nack([]) == 0
            await member.commit([])
            async with client.transact() as batch:
                batch.put("k{x}", "1").ack("q{x}", []).nack("q{x}", [])
                batch.ack_records("s{x}", "g", member.member_id, [])
                batch.commit_offsets("s{x}", "g", [])
            assert batch.results == [None]

    with_client(tmp_path, test)


def test_more_records_than_a_request_may_hold_are_settled_in_parts(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        stream = client.stream("s")
        await stream.create()
        group = stream.group("g")
        await group.create(from_offset=0)
        await stream.append_many([str(n) for n in range(2_500)])
        async with await group.join() as member:
            records: list[Record] = []
            while len(records) < 2_500:
                records += await member.fetch(limit=1_000)
            assert await member.nack(records[:1_200]) == 1_200
            assert await member.ack(records[1_200:]) == 1_300
            again: list[Record] = []
            while len(again) < 1_200:
                again += await member.fetch(limit=1_000, wait_s=5)
            assert await member.ack(again) == 1_200
        (partition,) = (await group.info()).partitions
        assert (partition.lag, partition.pending_count) == (0, 0)

    with_client(tmp_path, test)


# Many at once


def test_what_cannot_be_sent_among_many_hurts_no_other(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        queue, stream = client.queue("q"), client.stream("s")
        await queue.create()
        await stream.create()
        kv: Any = client.kv
        mixed: Any = ["a", 5, "c", "\ud800"]
        for call in (queue.enqueue_many, stream.append_many):
            with pytest.raises(InvalidArgument) as failure:
                await call(mixed)
            assert "[1] is 5 (int)" in failure.value.message
        with pytest.raises(InvalidArgument) as failure:
            await queue.enqueue_many(["d", bytes(17 << 20)])
        assert failure.value.reason == "TOO_LARGE"
        assert "1 of 2 operations failed" in failure.value.__notes__
        with pytest.raises(InvalidArgument, match=r"items\[1\]\[1\] is 5"):
            await kv.put_many([("a", "1"), ("b", 5), ("c", "3")])
        with pytest.raises(InvalidArgument, match=r"items\[1\] has 1 elements"):
            await kv.put_many([("d", "1"), ("e",)])
        assert [each.body for each in await queue.peek()] == [b"a", b"c", b"d"]
        assert [each.value async for each in stream.read()] == [b"a", b"c"]
        found = await client.kv.get_many(["a", "b", "c"])
        assert [None if each is None else each.value for each in found] == [b"1", None, b"3"]

    with_client(tmp_path, test)


# Producers and offsets


def test_many_records_of_a_producer_are_appended_once(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        stream = client.stream("s")
        await stream.create()
        producer = Producer(producer_id=7, epoch=1, sequence=1)
        first = await stream.append_many([str(n) for n in range(30)], producer=producer)
        assert not any(each.duplicate for each in first)
        # The program was restarted before it noted the last six of them.
        again = await stream.append_many(
            [str(n) for n in range(24, 40)], producer=producer.after(24)
        )
        assert [each.duplicate for each in again] == [True] * 6 + [False] * 10
        assert [each.offset for each in again[:6]] == [each.offset for each in first[24:]]
        assert [each.value async for each in stream.read()] == [b"%d" % n for n in range(40)]

    with_client(tmp_path, test)


def test_a_batch_commits_offsets_and_appends_for_a_producer(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        source, target = client.stream("in{x}"), client.stream("out{x}")
        await source.create()
        await target.create()
        group = source.group("copy")
        await group.create(from_offset=0)
        await source.append_many(["1", "2", "3"])
        records = [record async for record in source.read()]
        generation = (await group.info()).generation

        def copy(producer: Producer) -> Any:
            batch = client.transact()
            batch.append_record("out{x}", records[0].value, producer=producer)
            return batch.commit_offsets("in{x}", "copy", records[:2], generation=generation)

        batch = copy(Producer(1, 1, 1))
        await batch.commit()
        assert not batch.results[0].duplicate
        (partition,) = (await group.info()).partitions
        assert partition.committed_offset == records[1].offset + 1
        again = client.transact().append_record("out{x}", "1", producer=Producer(1, 1, 1))
        await again.commit()
        assert again.results[0].duplicate
        async with await group.join() as member:
            (last,) = await member.fetch()
            batch = client.transact()
            batch.commit_offsets(
                "in{x}", "copy", last, member_id=member.member_id, generation=member.generation
            )
            await batch.commit()
            (partition,) = (await group.info()).partitions
            assert partition.committed_offset == last.offset + 1
            late = client.transact().put("k{x}", "1")
            late.commit_offsets("in{x}", "copy", last, generation=generation)
            with pytest.raises(ConditionFailed):
                await late.commit()
        assert await client.kv.get("k{x}") is None
        assert [record.value async for record in target.read()] == [b"1"]

    with_client(tmp_path, test)


# Tails over several streams


async def take(tail: Any, number: int) -> list[tuple[str, bytes]]:
    async with asyncio.timeout(20):
        found = [await anext(tail) for _ in range(number)]
    return [(record.stream, record.value) for record in found]


def test_a_tail_over_streams_of_all_shards_begins_at_the_start_or_at_a_time(
    tmp_path: Path,
) -> None:
    async def test(client: AsyncClient) -> None:
        names = [f"s{number}" for number in range(6)]
        shards = {client._connection.topology.find_shard(name.encode()) for name in names}
        assert len(shards) > 1
        for name in names:
            await client.stream(name).create()
            await client.stream(name).append_many([f"{name}-{n}" for n in range(10)])
        expected = {(name, f"{name}-{n}".encode()) for name in names for n in range(10)}
        async with client.tail(*names, from_start=True) as tail:
            found = await take(tail, 25)
            place = tail.cursor
        # Another one continues in the middle, and has nothing twice.
        async with client.tail(*names, from_start=True, cursor=place) as tail:
            found += await take(tail, 35)
        assert set(found) == expected
        assert len(found) == len(expected)
        for name in names:
            mine = [value for stream, value in found if stream == name]
            assert mine == [f"{name}-{n}".encode() for n in range(10)]

        start_ns = [record async for record in client.stream("s2").read()][5].timestamp_ns
        for name in names:
            await client.stream(name).append("late", tag="late")
        late = [(name, b"late") for name in names]
        since = {
            (name, record.value)
            for name in names
            async for record in client.stream(name).read()
            if record.timestamp_ns >= start_ns
        }
        async with client.tail(*names, from_ns=start_ns) as tail:
            assert set(await take(tail, len(since))) == since
        async with client.tail(*names, from_start=True, only=RecordFilter(tags=("late",))) as tail:
            assert sorted(await take(tail, 6)) == late
        async with client.tail(*names) as tail:
            await client.stream("s1").append("new")
            assert await take(tail, 1) == [("s1", b"new")]
        with pytest.raises(InvalidArgument) as failure:
            client.tail("s0", from_start=True, from_ns="now-1h")
        assert failure.value.reason == "START_INVALID"

    with_client(tmp_path, test, shards=4)


def test_the_blocking_client_tails_several_streams_from_a_time(tmp_path: Path) -> None:
    with serving(tmp_path) as endpoint, Client(endpoint, timeout_s=60) as client:
        for name in ("a", "b"):
            client.stream(name).create()
            client.stream(name).append(f"in {name}")
        with client.tail("a", "b", from_ns="now-1h") as tail:
            found = {next(tail).value, next(tail).value}
        assert found == {b"in a", b"in b"}


def test_a_blocking_client_may_stop_in_the_middle_of_a_page(tmp_path: Path) -> None:
    """Records and events cross threads in pages, but are taken one by one."""
    with serving(tmp_path) as endpoint, Client(endpoint, timeout_s=60) as client:
        stream = client.stream("s")
        stream.create()
        values = [str(n).encode() for n in range(1_500)]
        stream.append_many(values)
        place, found = None, []
        for _ in range(3):
            with stream.tail(from_offset=0, cursor=place) as tail:
                found += [next(tail).value for _ in range(500)]
                place = tail.cursor
            assert list(tail) == []  # it has ended
        assert found == values
        seen: list[Record | None] = []
        place = None
        for _ in range(3):
            watched = Watched("stream", name="s")
            with client.watch(watched, cursor=place, from_start=place is None) as watch:
                seen += [next(watch).record for _ in range(500)]
                place = watch.cursor
            assert list(watch) == []
        assert [each.value for each in seen if each is not None] == values[:1_499]
        group = stream.group("g")
        group.create(from_offset=0)
        with group.join(limit=400) as member:
            consumed = []
            for record in member:
                consumed.append(record.value)
                member.ack(record)
                if len(consumed) == 1_500:
                    break
        assert consumed == values
        assert list(member) == []
