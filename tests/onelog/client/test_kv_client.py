"""Keys through the client, against a real node."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onelog import AsyncClient, Read, Watched
from onelog.client.values import Item
from onelog.errors import (
    AlreadyExists,
    ConditionFailed,
    DeadlineExceeded,
    InvalidArgument,
    LeaseLost,
    NotFound,
    OutOfRange,
)
from onelog.v1 import admin_pb2
from tests.node.services.nodes import run, single, until


def with_client(tmp_path: Path, test: Any) -> None:
    async def main() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            await test(client)

    run(main())


def test_a_key_is_written_read_and_deleted(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        version = await kv.put("a", "1")
        assert await kv.get("a") == Item(b"a", b"1", version)
        assert await kv.put("a", b"2", expected_version=version) > version
        with pytest.raises(ConditionFailed):
            await kv.put("a", b"3", expected_version=version)
        with pytest.raises(AlreadyExists):
            await kv.put("a", b"3", expected_version=0)
        assert await kv.exists("a")
        assert await kv.delete("a")
        assert not await kv.delete("a")
        assert await kv.get("a") is None
        values = [each.value for each in await kv.history("a")]
        assert values == [None, b"2", b"1"]
        with pytest.raises(InvalidArgument):
            await kv.put("", b"")

    with_client(tmp_path, test)


def test_many_keys_come_back_in_the_order_of_the_question(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        pairs = [(f"k{n:03}", f"v{n}") for n in range(200)]
        versions = await kv.put_many(pairs)
        assert len(versions) == 200
        found = await kv.get_many([key for key, _ in pairs] + ["nothing"])
        assert [each and each.text for each in found] == [value for _, value in pairs] + [None]
        with pytest.raises(InvalidArgument) as failure:
            await kv.put_many([("ok{t}", b""), ("", b""), ("bad{t}", b"")])
        assert failure.value.reason == "KEY_SIZE_INVALID"

    with_client(tmp_path, test)


def test_many_keys_are_written_in_parts_that_each_have_one_version(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        versions = await kv.put_many((f"k{n}{{t}}", b"") for n in range(2_500))
        assert [versions.count(each) for each in sorted(set(versions))] == [1_000, 1_000, 500]
        large = await kv.put_many((f"big{n}{{t}}", bytes(100_000)) for n in range(5))
        assert [large.count(each) for each in sorted(set(large))] == [2, 2, 1]
        twice = await kv.put_many([("twice", b"1"), ("twice", b"2")])
        assert len(set(twice)) == 1
        assert (await kv.get("twice")) == Item(b"twice", b"2", twice[0])
        assert await kv.put_many({}) == []

    with_client(tmp_path, test)


def test_many_keys_can_be_written_without_waiting_for_their_apply(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        early = client.scoped(durability="async").kv
        versions = await early.put_many({f"k{n}{{t}}": f"{n}" for n in range(9)})
        read = Read(min_index=max(versions))
        found = await client.kv.get_many([f"k{n}{{t}}" for n in range(9)], read=read)
        assert [each and each.version for each in found] == versions

    with_client(tmp_path, test)


def test_of_many_keys_those_of_a_part_that_is_refused_are_not_written(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        keys = [f"k{n}{{t}}" for n in range(1_000)]
        with pytest.raises(InvalidArgument) as failure:
            await kv.put_many([*((key, b"") for key in keys), ("ok{t}", b""), ("cg:x{t}", b"")])
        assert failure.value.reason == "KEY_RESERVED"
        assert failure.value.__notes__ == ["1 of 2 operations failed"]
        assert await kv.exists(keys[-1])
        assert not await kv.exists("ok{t}")

    with_client(tmp_path, test)


def test_answers_above_what_a_message_holds_are_asked_for_in_parts(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        kv, value = client.kv, bytes(200_000)
        await kv.put_many((f"big{n}", value) for n in range(150))
        reading = asyncio.create_task(kv.get_many([f"big{n}" for n in range(150)]))
        await asyncio.sleep(0)
        # The answer breaks the stream that this one uses, too.
        numbers = await asyncio.gather(*(kv.increment("n") for _ in range(20)))
        assert sorted(numbers) == list(range(1, 21))
        assert [each and len(each.value) for each in await reading] == [200_000] * 150

    with_client(tmp_path, test)


def test_scans_are_in_order_bounded_and_reversible(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        await kv.put_many((f"s{n:04}", b"v") for n in range(2_500))
        keys = [item.key async for item in kv.scan("s")]
        assert keys == [b"s%04d" % n for n in range(2_500)]
        back = [item.key async for item in kv.scan("s", reverse=True, limit=3)]
        assert back == [b"s2499", b"s2498", b"s2497"]
        part = [item.key async for item in kv.scan(start="s0010", end="s0012", keys_only=True)]
        assert part == [b"s0010", b"s0011"]
        with pytest.raises(InvalidArgument):
            await anext(kv.scan("a", start="b"))
        assert await kv.delete_range("s1") == 1_000
        assert len([1 async for _ in kv.scan("s")]) == 1_500

    with_client(tmp_path, test)


def test_numbers_bytes_and_documents_change_in_place(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        assert await kv.increment("n") == 1
        assert await kv.increment("n", -5) == -4
        assert await kv.raise_to("n", 10) == 10
        assert await kv.lower_to("n", 7) == 7
        assert await kv.append("b", "ab") == 2
        assert await kv.append("b", b"c") == 3
        document = kv.json("d")
        assert await document.get() is None
        await document.set((), {"user": {"tags": ["x"]}})
        await document.set(("user", "name"), "Ann")
        await document.set(("user", "tags", -1), "y")
        await document.set(("deep", "er"), 1)
        await document.delete("deep")
        assert await document.get() == {"user": {"tags": ["x", "y"], "name": "Ann"}}
        assert await document.get(("user", "tags", 1)) == "y"

    with_client(tmp_path, test)


def test_a_transaction_takes_one_branch_or_the_other(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        version = await kv.put("a{t}", "1")
        txn = kv.txn().when("a{t}", version=version)
        txn.then.put("a{t}", "2").increment("n{t}", 3).get("a{t}").delete("gone{t}")
        txn.otherwise.get("a{t}")
        result = await txn.commit()
        assert result.succeeded
        assert result.results[1] == 3
        assert isinstance(result.results[2], Item)
        assert result.results[2].value == b"2"
        again = kv.txn().when("a{t}", value="1")
        again.then.delete("a{t}")
        again.otherwise.get("a{t}").get("none{t}")
        result = await again.commit()
        assert not result.succeeded
        assert [each and each.value for each in result.results if not isinstance(each, int)] == [
            b"2", None,
        ]  # fmt: skip
        apart = kv.txn()
        for number in range(20):
            apart.then.put(f"{number}", b"")
        with pytest.raises(InvalidArgument, match="SEVERAL_SHARDS"):
            await apart.commit()

    with_client(tmp_path, test)


def test_leases_take_their_keys_with_them(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        async with await kv.lease(30, key="a{l}") as lease:
            await kv.put("a{l}", "1", lease=lease)
            assert (await lease.info()).keys == [b"a{l}"]
            await lease.keep()
            assert not lease.is_lost
        assert lease.is_lost
        assert await kv.get("a{l}") is None
        with pytest.raises(LeaseLost):
            await lease.keep()

    with_client(tmp_path, test)


def test_a_lock_is_held_by_one_and_its_tokens_rise(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        tokens, inside = [], 0

        async def work() -> None:
            nonlocal inside
            async with client.kv.lock("l", ttl_s=10) as lock:
                inside += 1
                assert inside == 1
                tokens.append(lock.token)
                await client.kv.get("l")
                inside -= 1

        await asyncio.gather(*(work() for _ in range(6)))
        assert tokens == sorted(set(tokens))
        assert len(tokens) == 6
        lock, other = client.kv.lock("l"), client.kv.lock("l")
        assert await lock.try_acquire()
        assert not await other.try_acquire()
        with pytest.raises(DeadlineExceeded):
            await other.acquire(timeout_s=0.1)
        await client.kv.delete("l")  # somebody breaks the lock: the next one may have it
        assert await other.acquire() > lock.token
        await other.release()
        with pytest.raises(LeaseLost):
            _ = other.token
        await lock.release()

    with_client(tmp_path, test)


def test_reads_may_be_stale_bounded_wait_for_a_write_or_look_back(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        first = await kv.put("a", "1")
        second = await kv.put("a", "2")
        for read in (
            Read(stale=True),
            Read(stale=True, max_staleness_s=60),
            Read(stale=True, min_index=second),
            Read(min_index=second),
        ):
            found = await kv.get("a", read=read)
            assert found is not None
            assert found.version >= first
        for read in (Read(by_lease=True), Read(by_lease=True, min_index=second)):
            found = await kv.get("a", read=read)
            assert found is not None
            assert found.version == second
        with pytest.raises(InvalidArgument):
            await kv.get("a", read=Read(stale=True, by_lease=True))
        old = await kv.get("a", read=Read(as_of_index=first))
        assert old is not None
        assert old.value == b"1"
        with pytest.raises(InvalidArgument):
            await kv.get("a", read=Read(max_staleness_s=1))
        with pytest.raises(OutOfRange):
            await kv.get("a", read=Read(as_of_index=second + 10**6))

    with_client(tmp_path, test)


@pytest.mark.parametrize("read", [Read(min_index=10**9), Read(stale=True, min_index=10**9)])
def test_a_read_that_waits_holds_up_no_other(tmp_path: Path, read: Read) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        keys = [f"k{number}" for number in range(100)]
        await kv.put_many([(key, key) for key in keys])
        waiting = [
            asyncio.create_task(kv.get("k0", read=read)),
            asyncio.create_task(kv.get_many(keys, read=read)),
        ]
        for other in (None, Read(stale=True)):
            async with asyncio.timeout(5):  # the others wait for longer
                assert [item and item.text for item in await kv.get_many(keys, read=other)] == keys
        assert not any(each.done() for each in waiting)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    with_client(tmp_path, test)


def test_many_keys_are_read_as_they_were(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        await kv.put_many([(f"{{x}}{number}", "old") for number in range(100)])
        index = await kv.put("{x}last", "old")
        keys = [f"{{x}}{number}" for number in range(100)] + ["{x}none"]
        await kv.put_many([(key, "new") for key in keys])
        items = await kv.get_many(keys, read=Read(as_of_index=index))
        assert [item.text if item else None for item in items] == ["old"] * 100 + [None]

    with_client(tmp_path, test)


def test_namespaces_are_apart_and_durability_is_a_view(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        with pytest.raises(NotFound):
            await client.namespace("x").kv.put("a", "1")
        await client.admin.create_namespace("x", admin_pb2.NamespaceLimits(versions_max=2))
        view = client.namespace("x")
        await view.kv.put("a", "1")
        assert await client.kv.get("a") is None
        assert "x" in await client.admin.namespaces()
        quick = view.scoped(durability="async", timeout_s=5)
        version = await quick.kv.put("b", "2")
        found = await view.kv.get("b", read=Read(min_index=version))
        assert found is not None
        assert found.text == "2"

    with_client(tmp_path, test)


def test_a_touch_returns_the_version_of_the_key_and_makes_none(tmp_path: Path) -> None:
    """The version can be used as the expected one of the next write."""

    async def test(client: AsyncClient) -> None:
        kv = client.kv
        version = await kv.put("a{t}", "1")
        assert await kv.touch("a{t}", 60) == version
        assert await kv.touch("a{t}", None, expected_version=version) == version
        found = await kv.get("a{t}")
        assert found is not None
        assert (found.version, found.expires_ns) == (version, 0)
        later = await kv.put("a{t}", "2", expected_version=version)
        assert await kv.touch("a{t}", 60) == later > version
        txn = kv.txn()
        txn.then.touch("a{t}", 30)
        assert (await txn.commit()).results == [None]
        with pytest.raises(NotFound):
            await kv.touch("none", 60)

    with_client(tmp_path, test)


def test_a_key_with_a_lifetime_goes_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            await client.kv.put("a", "1", ttl_s=0.05)
            await client.kv.put("b", "1", ttl_s=0.05)
            await client.kv.touch("b", None)
            gone = asyncio.Event()

            async def look() -> None:
                async with client.watch(Watched("kv", name="a")) as watch:
                    while await client.kv.exists("a"):
                        assert (await anext(watch)).kind == "expired"
                gone.set()

            task = asyncio.create_task(look())
            await until(gone.is_set)
            await task
            assert await client.kv.exists("b")

    run(main())
