"""Puts called together, one by one or many at once, are one operation."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onelog import AsyncClient
from onelog.errors import (
    DeadlineExceeded,
    InvalidArgument,
    OnelogError,
    OutcomeUnknown,
    Unavailable,
)
from onelog.v1 import admin_pb2, pipeline_pb2
from tests.onelog.client.scripted import (
    QUICK,
    Reply,
    Scripted,
    keys_in,
    refusing,
    run,
    scripted,
    until,
)
from tests.onelog.client.test_kv_client import with_client


def test_keys_that_differ_share_an_operation_and_a_version() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            keys = [f"{n}{{t}}" for n in range(1_500)]
            versions = await asyncio.gather(*(client.kv.put(key, b"") for key in keys))
            messages = world.servers[0].messages
            assert [len(each.operations) for each in messages] == [1, 1]
            assert [len(keys_in(each)) for each in messages] == [1_000, 500]
            assert versions == [1] * 1_000 + [2] * 500
            assert list(world.effects) == [key.encode() for key in keys]

    run(test())


def test_no_more_keys_share_an_operation_than_a_server_takes() -> None:
    async def test() -> None:
        options = replace(QUICK, batch_operations_max=2_000)
        async with (
            scripted() as world,
            AsyncClient(world.servers[0].endpoint, options=options) as client,
        ):
            await asyncio.gather(*(client.kv.put(f"{n}{{t}}", b"") for n in range(1_500)))
            assert [len(keys_in(each)) for each in world.servers[0].messages] == [1_000, 500]

    run(test())


def test_one_put_alone_is_a_put() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            await client.kv.put("a", b"1")
            (message,) = world.servers[0].messages
            assert message.operations[0].put.value == b"1"

    run(test())


@pytest.mark.parametrize("between", ["ttl", "delete", "again", "large", "many", "namespace"])
def test_what_is_called_in_between_takes_its_turn(tmp_path: Path, between: str) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        calls: list[Any] = [kv.put(f"{n}{{t}}", b"old") for n in range(3)]
        match between:
            case "ttl":
                calls.append(kv.put("1{t}", b"between", ttl_s=60))
            case "delete":
                calls.append(kv.delete("1{t}"))
            case "again":
                calls.append(kv.put("1{t}", b"between"))
            case "large":
                calls.append(kv.put("1{t}", bytes(100_000)))
            case "many":
                calls.append(kv.put_many({"1{t}": b"between"}))
            case "namespace":
                await client.admin.create_namespace("other")
                calls.append(client.namespace("other").kv.put("1{t}", b"elsewhere"))
        calls += [kv.put(f"{n}{{t}}", b"new") for n in range(1, 4)]
        await asyncio.gather(*calls)

        found = await kv.get_many([f"{n}{{t}}" for n in range(4)])
        assert [each and each.value for each in found] == [b"old", b"new", b"new", b"new"]
        history = [each.value for each in await kv.history("1{t}")]
        last = {"delete": None, "large": bytes(100_000)}.get(between, b"between")
        assert history == [b"new", *([] if between == "namespace" else [last]), b"old"]

    with_client(tmp_path, test)


def test_one_that_is_refused_does_not_concern_the_others_nor_their_order(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        limits = admin_pb2.NamespaceLimits(value_size_max=3)
        await client.admin.create_namespace("small", limits)
        kv = client.namespace("small").kv
        puts = (kv.put(f"{n}{{t}}", b"1234" if n == 1 else b"1") for n in range(3))
        first, refused, last = await asyncio.gather(*puts, return_exceptions=True)
        assert isinstance(refused, OnelogError)
        assert refused.reason == "VALUE_TOO_LARGE"
        assert isinstance(first, int)
        assert isinstance(last, int)
        assert await kv.exists("2{t}")
        assert not await client.kv.exists("2{t}")

    with_client(tmp_path, test)


def test_puts_share_nothing_in_a_message_that_holds_something_else(tmp_path: Path) -> None:
    """Refused together and sent again, they would be done after it, or it would be done twice."""

    async def test(client: AsyncClient) -> None:
        limits = admin_pb2.NamespaceLimits(value_size_max=3)
        await client.admin.create_namespace("small", limits)
        kv = client.namespace("small").kv
        first, refused, number, deleted = await asyncio.gather(
            kv.put("0{t}", b"1"),
            kv.put("1{t}", b"1234"),
            kv.increment("n{t}"),
            kv.delete("0{t}"),
            return_exceptions=True,
        )
        assert isinstance(first, int)
        assert isinstance(refused, OnelogError)
        assert (number, deleted) == (1, True)
        assert await kv.increment("n{t}", 0) == 1
        assert not await kv.exists("0{t}")

    with_client(tmp_path, test)


def test_puts_that_are_refused_together_are_sent_again_one_by_one_before_what_came_later() -> None:
    async def test() -> None:
        options = replace(QUICK, batch_operations_max=3)
        async with (
            scripted() as world,
            AsyncClient(world.servers[0].endpoint, options=options) as client,
        ):
            server = world.servers[0]
            gate = asyncio.Event()
            refuse = refusing(InvalidArgument("too large", reason="TRANSACTION_REFUSED"), 1)

            async def script(scripted: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                await gate.wait()
                return await refuse(scripted, request)

            server.script = script
            tasks = [asyncio.create_task(client.kv.put(f"{n}{{t}}", b"1")) for n in range(3)]
            await until(lambda: server.messages)
            # One message waits behind it, and another one is open.
            tasks += [asyncio.create_task(client.kv.put(f"{n}{{t}}", b"2")) for n in range(4)]
            await asyncio.sleep(0)
            gate.set()
            await asyncio.gather(*tasks)
            first = [b"0{t}", b"1{t}", b"2{t}"]
            assert [keys_in(each) for each in server.messages] == [first, first, first, [b"3{t}"]]
            assert [len(each.operations) for each in server.messages] == [1, 3, 1, 1]
            sequences = [each.session.sequence for each in server.messages]
            assert sequences == [1, 2, 5, 6], "what was refused is never asked for again"

    run(test())


def test_a_call_that_fails_before_its_message_leaves_is_not_done() -> None:
    """DeadlineExceeded with EXPIRED says that nothing was done, and that has to stay true."""

    async def test() -> None:
        async with (
            scripted() as world,
            AsyncClient(world.servers[0].endpoint, options=QUICK) as client,
        ):
            server, gate = world.servers[0], asyncio.Event()

            async def script(scripted: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                await gate.wait()
                return scripted.world.carry_out(request)

            server.script = script
            first = asyncio.create_task(client.kv.put("first{t}", b""))
            await until(lambda: server.messages)
            hasty = asyncio.create_task(client.scoped(timeout_s=0.05).kv.put("hasty{t}", b""))
            patient = asyncio.create_task(client.kv.put("patient{t}", b""))
            with pytest.raises(DeadlineExceeded, match="EXPIRED"):
                await hasty
            gate.set()
            await asyncio.gather(first, patient)
            assert set(world.effects) == {b"first{t}", b"patient{t}"}

    run(test())


def test_puts_are_tried_again_as_they_were() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            server = world.servers[0]
            server.script = refusing(Unavailable("busy", reason="NO_LEADER", retry_after_s=0), 2)
            await asyncio.gather(*(client.kv.put(f"{n}{{t}}", b"") for n in range(3)))
            assert [len(each.operations) for each in server.messages] == [1, 1, 1]
            assert len({each.session.sequence for each in server.messages}) == 1
            assert set(world.effects.values()) == {1}

    run(test())


def test_puts_that_may_have_been_done_are_not_split() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            errors = iter([OutcomeUnknown("proposed"), InvalidArgument("no", reason="REFUSED")])

            async def script(scripted: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                return await refusing(next(errors), 1, effect=True)(scripted, request)

            world.servers[0].script = script
            puts = (client.kv.put(f"{n}{{t}}", b"") for n in range(3))
            results = await asyncio.gather(*puts, return_exceptions=True)
            assert [getattr(each, "reason", "") for each in results] == ["REFUSED"] * 3
            assert len(world.servers[0].messages) == 2
            assert set(world.effects.values()) == {1}

    run(test())


def test_who_leaves_leaves_the_others_alone() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            tasks = [asyncio.create_task(client.kv.put(f"{n}{{t}}", b"")) for n in range(3)]
            await asyncio.sleep(0)
            tasks[1].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results[1], asyncio.CancelledError)
            assert results[0] == results[2] == 1
            (message,) = world.servers[0].messages
            assert keys_in(message) == [b"0{t}", b"2{t}"], "nobody waits for the other one"

    run(test())


def test_calls_of_many_puts_share_an_operation_with_each_other_and_with_single_ones() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            kv, messages = client.kv, world.servers[0].messages
            calls = [kv.put_many({f"{n}{{t}}": b"", f"{n + 1}{{t}}": b""}) for n in (0, 2)]
            found = await asyncio.gather(*calls, kv.put("4{t}", b""))
            assert found == [[1, 1], [1, 1], 1]
            assert [keys_in(each) for each in messages] == [[b"%d{t}" % n for n in range(5)]]
            assert len(messages[0].operations) == 1
            # So many keys as a server takes, and no call is divided for it.
            parts = [{f"{n}-{m}{{t}}": b"" for m in range(400)} for n in range(5)]
            await asyncio.gather(*map(kv.put_many, parts))
            assert [len(keys_in(each)) for each in messages[1:]] == [800, 800, 400]

    run(test())


def test_many_puts_of_a_key_that_was_put_before_take_their_turn(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        await asyncio.gather(
            kv.put_many({"0{t}": b"old", "1{t}": b"old"}),
            kv.put_many([("1{t}", b"lost"), ("1{t}", b"between"), ("2{t}", b"between")]),
            kv.put_many({"2{t}": b"new", "1{t}": b"new"}),
        )
        history = [each.value for each in await kv.history("1{t}")]
        assert history == [b"new", b"between", b"old"]

    with_client(tmp_path, test)


def test_many_puts_that_want_something_else_go_by_themselves(tmp_path: Path) -> None:
    """What is asked of one call holds for no other, and a key stays in its namespace."""

    async def test(client: AsyncClient) -> None:
        kv = client.kv
        await client.admin.create_namespace("other")
        other = client.namespace("other").kv
        for special in (
            other.put_many({"2{t}": b"2", "3{t}": b"3"}),
            kv.put_many({"4{t}": b"4", "5{t}": b"5"}, ttl_s=60),
            kv.put_many({"6{t}": b"6", "cg:{t}": b"7"}),
        ):
            first, done, last = await asyncio.gather(
                kv.put_many({"0{t}": b"0", "1{t}": b"1"}),
                special,
                kv.put_many({"8{t}": b"8", "9{t}": b"9"}),
                return_exceptions=True,
            )
            assert isinstance(first, list)
            assert isinstance(last, list)
        assert isinstance(done, OnelogError), "of the last one, which has a reserved key"
        keys = [f"{n}{{t}}" for n in range(10)]
        found = await kv.get_many(keys)
        assert [n for n, each in enumerate(found) if each] == [0, 1, 4, 5, 8, 9]
        assert [n for n, each in enumerate(found) if each and each.expires_ns] == [4, 5]
        elsewhere = await other.get_many(keys)
        assert [n for n, each in enumerate(elsewhere) if each] == [2, 3]

    with_client(tmp_path, test)


def test_many_puts_that_are_early_are_not_with_those_that_are_not() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            early = client.scoped(durability="async").kv
            await asyncio.gather(
                client.kv.put_many({"0{t}": b"", "1{t}": b""}),
                early.put_many({"2{t}": b"", "3{t}": b""}),
            )
            found = {
                tuple(each.batch_put.keys): bool(each.batch_put.options.durability)
                for message in world.servers[0].messages
                for each in message.operations
            }
            assert found == {(b"0{t}", b"1{t}"): False, (b"2{t}", b"3{t}"): True}

    run(test())


def test_a_call_of_many_puts_that_is_refused_leaves_the_others_alone(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        limits = admin_pb2.NamespaceLimits(value_size_max=3)
        await client.admin.create_namespace("small", limits)
        kv = client.namespace("small").kv
        first, refused, single, last = await asyncio.gather(
            kv.put_many({"0{t}": b"1", "1{t}": b"1"}),
            kv.put_many({"2{t}": b"1", "3{t}": b"1234"}),
            kv.put("4{t}", b"1"),
            kv.put_many({"5{t}": b"1", "6{t}": b"1"}),
            return_exceptions=True,
        )
        assert isinstance(refused, OnelogError)
        assert isinstance(first, list)
        assert isinstance(last, list)
        assert first[0] == first[1] < single < last[0] == last[1]  # type: ignore[operator]
        found = await kv.get_many([f"{n}{{t}}" for n in range(7)])
        assert [each is not None for each in found] == [True, True, False, False, True, True, True]

    with_client(tmp_path, test)
