"""Operations that are called together travel together, within limits, and in order."""

import asyncio
from dataclasses import replace

import pytest

from onelog import AsyncClient
from onelog.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
)
from onelog.v1 import pipeline_pb2
from tests.onelog.client.scripted import (
    QUICK,
    WAIT_S,
    Reply,
    Scripted,
    carry_out,
    keys_in,
    run,
    scripted,
    until,
)

ONE_SHARD = "{t}"


def test_puts_of_one_iteration_are_one_message_for_each_shard() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            await asyncio.gather(*(client.kv.put(f"k{n}", b"v") for n in range(500)))

            messages = world.servers[0].messages
            assert len(messages) == 2
            assert sum(len(keys_in(each)) for each in messages) == 500
            assert [len(each.operations) for each in messages] == [1, 1]
            assert len(world.effects) == 500

    run(test())


def test_answers_that_come_together_reach_all_who_wait() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            waiting: list[pipeline_pb2.ExecuteResponse] = []

            async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                waiting.append(server.world.carry_out(request))
                if len(waiting) < 2:
                    return None
                first, second = waiting
                first.more.append(second)
                return first

            world.servers[0].script = script
            versions = await asyncio.gather(*(client.kv.put(f"k{n}", b"") for n in range(50)))
            assert set(versions) == {1, 2}

    run(test())


def test_those_who_were_just_answered_go_with_the_next_message() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:

            async def put_twice(number: int) -> None:
                for _ in range(2):
                    await client.kv.put(f"{number}{ONE_SHARD}", b"")

            async def put_once() -> None:
                await client.kv.put(f"other{ONE_SHARD}", b"")

            gate = asyncio.Event()

            async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                await gate.wait()
                return await carry_out(server, request)

            server = world.servers[0]
            server.script = script
            callers = [asyncio.create_task(put_twice(number)) for number in range(20)]
            await until(lambda: server.messages)
            # Another one comes while they wait for their answers.
            callers.append(asyncio.create_task(put_once()))
            await asyncio.sleep(0)
            gate.set()
            await asyncio.gather(*callers)
            assert [len(keys_in(each)) for each in server.messages] == [20, 21]

    run(test())


def test_an_answer_that_another_node_had_to_give_makes_the_client_ask_who_leads() -> None:
    async def test() -> None:
        async with scripted(2) as world, AsyncClient(world.servers[0].endpoint) as client:
            await client.kv.put("a" + ONE_SHARD, b"")
            old, new = world.servers
            world.leaders = dict.fromkeys(world.leaders, new)
            world.term += 1

            async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                answer = server.world.carry_out(request)
                answer.forwarded = True
                return answer

            old.script = script
            async with asyncio.timeout(WAIT_S):
                while not new.messages:
                    await client.kv.put("a" + ONE_SHARD, b"")

    run(test())


def test_reads_of_all_shards_of_an_endpoint_are_one_message() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            await asyncio.gather(*(client.kv.get(f"k{n}") for n in range(500)))
            assert [len(each.operations) for each in world.servers[0].messages] == [500]
            assert not world.servers[0].messages[0].HasField("session")

    run(test())


def test_a_message_has_no_more_operations_and_bytes_than_it_may() -> None:
    async def test() -> None:
        options = replace(QUICK, batch_operations_max=10, batch_bytes_max=10_000)
        async with (
            scripted() as world,
            AsyncClient(world.servers[0].endpoint, options=options) as client,
        ):
            await client.kv.put_many((f"{n}{ONE_SHARD}", b"v") for n in range(95))
            counts = [len(keys_in(each)) for each in world.servers[0].messages]
            assert counts == [10] * 9 + [5]

            world.servers[0].messages.clear()
            await client.kv.put_many((f"{n}{ONE_SHARD}", bytes(4_000)) for n in range(9))
            sizes = [each.ByteSize() for each in world.servers[0].messages]
            assert len(sizes) == 5, sizes
            assert max(sizes) < 10_000

    run(test())


def test_one_message_of_a_shard_is_under_way_at_a_time_and_order_is_kept() -> None:
    """What comes meanwhile waits, and goes together."""

    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            gate = asyncio.Event()

            async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                await gate.wait()
                return await carry_out(server, request)

            server = world.servers[0]
            server.script = script
            first = asyncio.create_task(client.kv.put("a" + ONE_SHARD, b""))
            await until(lambda: len(server.messages) == 1)
            more = [asyncio.create_task(client.kv.put(f"{n}{ONE_SHARD}", b"")) for n in range(20)]
            await client.admin.topology()  # there and back: whatever was sent has arrived
            assert len(server.messages) == 1
            gate.set()
            versions = await asyncio.gather(first, *more)

            assert len(server.messages) == 2
            assert versions == sorted(versions)
            assert keys_in(server.messages[1]) == [f"{n}{ONE_SHARD}".encode() for n in range(20)]

    run(test())


def test_callers_wait_for_room_and_are_told_when_there_is_none() -> None:
    async def test() -> None:
        options = replace(
            QUICK, pending_operations_max=20, batch_operations_max=5, attempt_timeout_s=5
        )
        async with (
            scripted() as world,
            AsyncClient(world.servers[0].endpoint, options=options) as client,
        ):
            gate = asyncio.Event()

            async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                await gate.wait()
                return await carry_out(server, request)

            world.servers[0].script = script
            flood = asyncio.create_task(
                client.kv.put_many((f"{n}{ONE_SHARD}", b"") for n in range(200))
            )
            await until(lambda: not client._connection.is_clear)
            with pytest.raises(DeadlineExceeded, match="no room"):
                await client.scoped(timeout_s=0.05).kv.put("late", b"")
            gate.set()
            assert len(await flood) == 200
            assert len(world.effects) == 200

    run(test())


def test_an_operation_that_is_not_answered_in_time_fails_and_the_others_do_not() -> None:
    async def test() -> None:
        async with (
            scripted() as world,
            AsyncClient(world.servers[0].endpoint, options=QUICK) as client,
        ):
            gate = asyncio.Event()

            async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                await gate.wait()
                return await carry_out(server, request)

            await client.kv.put("warm" + ONE_SHARD, b"")
            world.servers[0].script = script
            patient = asyncio.create_task(client.kv.put("p" + ONE_SHARD, b""))
            hasty = asyncio.create_task(client.scoped(timeout_s=0.1).kv.put("h" + ONE_SHARD, b""))
            reading = asyncio.create_task(client.scoped(timeout_s=0.1).kv.get("h"))
            with pytest.raises(OutcomeUnknown):
                await hasty
            with pytest.raises(DeadlineExceeded) as failure:
                await reading
            assert not isinstance(failure.value, OutcomeUnknown)
            assert not patient.done()
            gate.set()
            await patient

    run(test())


def test_a_wrong_argument_hurts_nobody_else() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            good = asyncio.create_task(client.kv.put("a" + ONE_SHARD, b""))
            bad = asyncio.create_task(client.kv.put("b" + ONE_SHARD, b"", ttl_s=-1))
            worse = asyncio.create_task(client.kv.put("c" + ONE_SHARD, 7))  # type: ignore[arg-type]
            last = asyncio.create_task(client.kv.put("d" + ONE_SHARD, b""))
            await asyncio.gather(good, last)
            with pytest.raises(InvalidArgument):
                await bad
            with pytest.raises(InvalidArgument, match="value is 7"):
                await worse
            assert set(world.effects) == {b"a{t}", b"d{t}"}
            with pytest.raises(TooLarge):
                await client.kv.put("huge", bytes(17 << 20))

    run(test())


def test_a_cancelled_call_leaves_the_others_alone() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            tasks = [asyncio.create_task(client.kv.put(f"{n}{ONE_SHARD}", b"")) for n in range(9)]
            await asyncio.sleep(0)
            tasks[4].cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert [isinstance(each, int) for each in done] == [n != 4 for n in range(9)]

    run(test())


def test_closing_fails_what_is_under_way_and_everything_after() -> None:
    async def test() -> None:
        async with scripted() as world:
            client = AsyncClient(world.servers[0].endpoint)
            gate = asyncio.Event()

            async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                await gate.wait()
                return None

            await client.kv.put("warm" + ONE_SHARD, b"")
            world.servers[0].script = script
            pending = [asyncio.create_task(client.kv.put(f"{n}{ONE_SHARD}", b"")) for n in range(3)]
            await until(lambda: len(world.servers[0].messages) == 2)
            pending.append(asyncio.create_task(client.kv.put("z" + ONE_SHARD, b"")))
            await asyncio.sleep(0)
            await client.close()
            for each in pending:
                with pytest.raises(Unavailable, match="CLIENT_CLOSED"):
                    await each
            with pytest.raises(FailedPrecondition, match="CLIENT_CLOSED"):
                await client.kv.put("x", b"")
            gate.set()
            assert not world.sessions, "sessions are closed with the client"

    run(test())


def test_closing_is_an_error_and_no_cancellation_for_those_who_wait() -> None:
    async def test() -> None:
        async with scripted() as world:
            world.servers[0].is_silent = True
            client = AsyncClient(world.servers[0].endpoint, options=QUICK)
            connecting = asyncio.create_task(client.kv.put("a", b""))
            await asyncio.sleep(0.05)
            await client.close()
            with pytest.raises(FailedPrecondition, match="CLIENT_CLOSED"):
                await connecting

            world.servers[0].is_silent = False
            other = AsyncClient(world.servers[0].endpoint, options=QUICK)
            await other.connect()
            world.servers[0].is_silent = True
            calling = asyncio.create_task(other.admin.topology())
            opening = asyncio.create_task(other._connection.sessions.open(0, 5))
            await asyncio.sleep(0.05)
            await other.close()
            for task in (calling, opening):
                with pytest.raises(FailedPrecondition, match="CLIENT_CLOSED"):
                    await task

    run(test())


def test_a_caller_that_is_cancelled_while_it_connects_is_cancelled() -> None:
    async def test() -> None:
        async with scripted() as world:
            world.servers[0].is_silent = True
            client = AsyncClient(world.servers[0].endpoint, options=QUICK)
            calling = asyncio.create_task(client.kv.put("a", b""))
            await asyncio.sleep(0.05)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            await client.close()

    run(test())
