"""Several messages of a client under way: those whose order nobody can tell, and no others."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from onelog import AsyncClient
from onelog.client.options import ClientOptions
from onelog.client.transactions import AsyncBatch
from onelog.client.values import Message
from onelog.errors import NotLeader, OnelogError, OutcomeUnknown
from onelog.node.public_errors import fill_error
from onelog.v1 import pipeline_pb2
from tests.onelog.client.scripted import (
    QUICK,
    Reply,
    Scripted,
    carry_out,
    keys_in,
    refusing,
    run,
    scripted,
    until,
)

ONE_SHARD = "{t}"


class Gated:
    """A scripted server that answers nothing until it is let."""

    def __init__(self, server: Scripted) -> None:
        self.open = asyncio.Event()
        self.server = server
        server.script = self._script
        server.messages.clear()

    async def _script(self, server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
        await self.open.wait()
        return await carry_out(server, request)

    def counts(self) -> list[int]:
        """How many keys the messages have that have come."""
        return [len(keys_in(each)) for each in self.server.messages]


SMALL = replace(QUICK, batch_operations_max=4, messages_in_flight_max=3, attempt_timeout_s=5)


@asynccontextmanager
async def gated(options: ClientOptions) -> AsyncIterator[tuple[AsyncClient, Gated]]:
    async with (
        scripted() as world,
        AsyncClient(world.servers[0].endpoint, options=options) as client,
    ):
        await client.kv.put("warm" + ONE_SHARD, b"")
        yield client, Gated(world.servers[0])


def pairs(first: int, count: int, value: bytes = b"") -> list[tuple[str, bytes]]:
    return [(f"{number}{ONE_SHARD}", value) for number in range(first, first + count)]


def test_full_messages_of_other_keys_are_under_way_together_up_to_the_limit() -> None:
    async def test() -> None:
        async with gated(SMALL) as (client, gate):
            tasks = [
                asyncio.ensure_future(client.kv.put_many(pairs(first, 4)))
                for first in range(0, 20, 4)
            ]
            await until(lambda: len(gate.server.messages) == 3)
            await client.admin.topology()  # there and back: whatever was sent has arrived
            assert gate.counts() == [4, 4, 4]
            gate.open.set()
            versions = [version for task in tasks for version in await task]
            assert versions == sorted(versions)
            assert gate.counts() == [4] * 5

    run(test())


def test_puts_are_under_way_together_and_a_message_with_room_waits() -> None:
    async def test() -> None:
        async with gated(SMALL) as (client, gate):
            tasks = [asyncio.ensure_future(client.kv.put(*each)) for each in pairs(0, 9)]
            await until(lambda: len(gate.server.messages) == 2)
            await client.admin.topology()
            assert gate.counts() == [4, 4]
            tasks.append(asyncio.ensure_future(client.kv.put("last" + ONE_SHARD, b"")))
            gate.open.set()
            await asyncio.gather(*tasks)
            assert gate.counts() == [4, 4, 2]

    run(test())


async def _put_again(client: AsyncClient) -> object:
    return await client.kv.put_many(pairs(3, 4, b"again"))


def batch_of(client: AsyncClient, first: int, count: int, value: bytes = b"") -> AsyncBatch:
    batch = client.transact()
    for pair in pairs(first, count, value):
        batch.put(*pair)
    return batch


def test_full_messages_of_transactions_that_only_put_other_keys_are_under_way_together() -> None:
    async def test() -> None:
        async with gated(SMALL) as (client, gate):
            tasks = [
                asyncio.ensure_future(batch_of(client, first, 2).commit())
                for first in range(0, 12, 2)
            ]
            tasks.append(asyncio.ensure_future(client.kv.put_many(pairs(12, 4))))  # type: ignore[arg-type]
            tasks.append(asyncio.ensure_future(batch_of(client, 16, 2).commit()))
            await until(lambda: len(gate.server.messages) == 3)
            await client.admin.topology()
            assert gate.counts() == [4, 4, 4]
            assert [len(each.operations) for each in gate.server.messages] == [2, 2, 2]
            gate.open.set()
            await asyncio.gather(*tasks)
            assert gate.counts() == [4, 4, 4, 4, 2]

    run(test())


async def _transact_again(client: AsyncClient) -> object:
    return await batch_of(client, 3, 4, b"again").commit()


async def _transact_and_count(client: AsyncClient) -> object:
    return await batch_of(client, 20, 4).increment("n" + ONE_SHARD).commit()


async def _transact_if(client: AsyncClient) -> object:
    return await batch_of(client, 20, 4).when("n" + ONE_SHARD, exists=True).commit()


async def _transact_expecting(client: AsyncClient) -> object:
    return await batch_of(client, 20, 4).put("n" + ONE_SHARD, "", expected_version=7).commit()


async def _put_by_the_other_name(client: AsyncClient) -> object:
    return await client.namespace("default").kv.put_many(pairs(3, 4, b"again"))


async def _delete(client: AsyncClient) -> object:
    return await client.kv.delete("20" + ONE_SHARD)


@pytest.mark.parametrize(
    "later",
    [
        _put_again,
        _put_by_the_other_name,
        _delete,
        _transact_again,
        _transact_and_count,
        _transact_if,
        _transact_expecting,
    ],
)
@pytest.mark.parametrize("is_batch", [False, True])
def test_what_needs_an_order_waits_for_what_was_called_before(
    later: Callable[[AsyncClient], Coroutine[Any, Any, object]],
    is_batch: bool,  # noqa: FBT001 - what is first is a transaction
) -> None:
    async def test() -> None:
        async with gated(SMALL) as (client, gate):
            before: Coroutine[Any, Any, object] = client.kv.put_many(pairs(0, 4))
            if is_batch:
                before.close()
                before = batch_of(client, 0, 4).commit()
            first = asyncio.ensure_future(before)
            await until(lambda: len(gate.server.messages) == 1)
            second = asyncio.ensure_future(later(client))
            third = asyncio.ensure_future(client.kv.put_many(pairs(30, 4)))
            await client.admin.topology()
            assert len(gate.server.messages) == 1, "and nothing overtakes it"
            gate.open.set()
            await asyncio.gather(first, second, third)
            assert keys_in(gate.server.messages[-1]) == [key.encode() for key, _ in pairs(30, 4)]

    run(test())


def test_the_same_key_in_two_namespaces_needs_no_order() -> None:
    async def test() -> None:
        async with gated(SMALL) as (client, gate):
            tasks = [
                asyncio.ensure_future(each.kv.put_many(pairs(0, 4)))
                for each in (client, client.namespace("other"))
            ]
            await until(lambda: len(gate.server.messages) == 2)
            gate.open.set()
            await asyncio.gather(*tasks)

    run(test())


def acked(request: pipeline_pb2.ExecuteRequest) -> list[int]:
    return [each.message_id for each in request.operations[0].ack.messages]


def test_acks_leave_while_others_are_under_way() -> None:
    async def test() -> None:
        async with gated(SMALL) as (client, gate):

            async def settle(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                await gate.open.wait()
                response = pipeline_pb2.ExecuteResponse(request_id=request.request_id)
                for operation in request.operations:
                    result = response.results.add().settle
                    for each in operation.ack.messages:
                        result.results.add().message_id = each.message_id
                return response

            gate.server.script = settle
            jobs = client.queue("jobs" + ONE_SHARD)
            tasks = []
            for number in range(5):
                message = Message(number + 1, b"", 7)
                tasks.append(asyncio.ensure_future(jobs.ack(message)))
                await client.admin.topology()
            assert [acked(each) for each in gate.server.messages] == [[1], [2], [3]]
            gate.open.set()
            await asyncio.gather(*tasks)
            assert [acked(each) for each in gate.server.messages] == [[1], [2], [3], [4, 5]]

    run(test())


@pytest.mark.parametrize(
    "error", [NotLeader("elsewhere", reason="NOT_LEADER"), OutcomeUnknown("lost")]
)
def test_messages_that_fail_together_are_done_once_each(error: OnelogError) -> None:
    async def test() -> None:
        async with (
            scripted() as world,
            AsyncClient(world.servers[0].endpoint, options=SMALL) as client,
        ):
            effect = isinstance(error, OutcomeUnknown)
            world.servers[0].script = refusing(error, 3, effect=effect)
            await asyncio.gather(*(client.kv.put_many(pairs(n, 4)) for n in range(0, 24, 4)))
            assert len(world.effects) == 24
            assert set(world.effects.values()) == {1}

    run(test())


@pytest.mark.parametrize("seed", range(20))
def test_writes_of_a_key_take_effect_in_the_order_of_the_calls_whatever_fails(seed: int) -> None:
    """Messages are refused, lost or late as chance wants; calls of all kinds share a few keys."""
    chance = random.Random(seed)

    async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
        fate = chance.random()
        await asyncio.sleep(chance.random() * 0.004)
        if fate < 0.2:
            return NotLeader("elsewhere", reason="NOT_LEADER")
        answer = await carry_out(server, request)
        for operation in request.operations:
            note(operation, request)
        return OutcomeUnknown("lost") if fate < 0.3 else answer

    written: dict[bytes, list[int]] = {}
    done: set[tuple[int, int]] = set()

    def note(operation: pipeline_pb2.Operation, request: pipeline_pb2.ExecuteRequest) -> None:
        at = list(request.operations).index(operation)
        place = (request.session.session_id, request.session.sequence + at)
        if place in done:
            return
        done.add(place)
        put = operation.batch_put
        if operation.HasField("put"):
            written.setdefault(operation.put.key, []).append(int(operation.put.value))
        for key, value in zip(put.keys, put.values, strict=True):
            written.setdefault(key, []).append(int(value))
        for part in operation.transact.operations:
            written.setdefault(part.put.key, []).append(int(part.put.value))

    async def test() -> None:
        async with (
            scripted() as world,
            AsyncClient(world.servers[0].endpoint, options=SMALL) as client,
        ):
            await client.kv.put("warm" + ONE_SHARD, b"0")
            world.servers[0].script = script
            tasks: list[asyncio.Future[Any]] = []
            number = 0
            for _ in range(60):
                for _ in range(chance.randrange(6)):
                    number += 1
                    value = b"%d" % number
                    key = f"{chance.randrange(12)}{ONE_SHARD}"
                    match chance.randrange(6):
                        case 0:
                            keys = chance.sample(range(12), 4)
                            call = client.kv.put_many([(f"{k}{ONE_SHARD}", value) for k in keys])
                            tasks.append(asyncio.ensure_future(call))
                        case 1:
                            tasks.append(asyncio.ensure_future(client.kv.put(key, value, ttl_s=9)))
                        case 2:
                            batch = client.transact()
                            for each in chance.sample(range(12), chance.randrange(1, 5)):
                                batch.put(f"{each}{ONE_SHARD}", value)
                            if chance.random() < 0.3:
                                batch.when(key, exists=True)
                            tasks.append(asyncio.ensure_future(batch.commit()))
                        case _:
                            tasks.append(asyncio.ensure_future(client.kv.put(key, value)))
                await asyncio.sleep(0)
            await asyncio.gather(*tasks)
            assert any(len(values) > 2 for values in written.values())
            for values in written.values():
                assert values == sorted(values)

    run(test())


def test_what_is_left_of_a_message_that_needed_an_order_needs_it_still() -> None:
    """Without a session the answered part is left out of a retry; the rest is no freer by that."""

    async def test() -> None:
        async with gated(replace(SMALL, sessions=False)) as (client, gate):
            again = asyncio.Event()

            async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                if len(server.messages) > 1:
                    await again.wait()
                    return await carry_out(server, request)
                answer = await carry_out(server, request)
                assert isinstance(answer, pipeline_pb2.ExecuteResponse)
                error = NotLeader("elsewhere", reason="NOT_LEADER")
                fill_error(answer.results[1].error, error)
                return answer

            gate.server.script = script
            tasks = [
                asyncio.ensure_future(client.kv.put_many(pairs(0, 3))),
                asyncio.ensure_future(client.kv.delete("9" + ONE_SHARD)),
            ]
            await until(lambda: len(gate.server.messages) == 2)
            tasks.append(asyncio.ensure_future(client.kv.put_many(pairs(7, 4))))
            await client.admin.topology()
            assert len(gate.server.messages) == 2, "the put of a key overtook its delete"
            again.set()
            await asyncio.gather(*tasks)

    run(test())
