"""Transactions of a client that are committed together: one message, and each its own end."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onelog import AsyncClient
from onelog.client.transactions import AsyncBatch
from onelog.client.values import Written
from onelog.errors import (
    ConditionFailed,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotLeader,
    OnelogError,
    OutcomeUnknown,
    TooLarge,
)
from onelog.v1 import pipeline_pb2
from tests.node.services.nodes import cluster, run, single
from tests.onelog.client.scripted import QUICK, Reply, Scripted, refusing, scripted, until


def batch_of(client: AsyncClient, *keys: str) -> AsyncBatch:
    batch = client.transact()
    for key in keys:
        batch.put(key + "{t}", key)
    return batch


def kinds(message: pipeline_pb2.ExecuteRequest) -> list[str]:
    return [str(each.WhichOneof("operation")) for each in message.operations]


def test_transactions_that_are_committed_together_are_one_message_in_the_order_of_the_calls() -> (
    None
):
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            await client.kv.put("warm{t}", b"")
            messages = world.servers[0].messages
            messages.clear()
            await asyncio.gather(
                client.kv.put("a{t}", "1"),
                batch_of(client, "a", "b").when("a{t}", exists=True).commit(),
                client.kv.increment("n{t}"),
                batch_of(client, "c").commit(),
                batch_of(client, *map(str, range(128))).commit(),
                client.kv.put("a{t}", "2"),
            )
            (message,) = messages
            assert kinds(message) == ["put", "transact", "count", "transact", "transact", "put"]
            assert message.HasField("session")
            sizes = [len(each.transact.operations) for each in message.operations]
            assert sizes == [0, 2, 0, 1, 128, 0]
            assert len(message.operations[1].transact.conditions) == 1

    run(test())


def test_a_transaction_that_fails_concerns_its_own_caller_alone(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node, AsyncClient(node.endpoint) as client:
            await client.kv.put("a", "text")
            before = batch_of(client, "1", "2")
            unheld = client.transact().when("a", exists=False).put("no", "")
            refused = client.transact().put("no", "").put("b", "").increment("a")
            unplaced = client.transact().put("no", "").enqueue("nowhere", "m")
            unsound = client.transact().when("a", exists=True)
            after = batch_of(client, "3").increment("n", 5)
            found = await asyncio.gather(
                *(each.commit() for each in (before, unheld, refused, unplaced, unsound, after)),
                return_exceptions=True,
            )
            ends: list[Any] = [
                (each.reason, type(each)) if isinstance(each, OnelogError) else type(each)
                for each in found
            ]
            assert ends[:2] == [Written, ("CONDITION_FAILED", ConditionFailed)]
            assert ends[2] == ("BATCH_REFUSED", FailedPrecondition)
            assert isinstance(found[2], OnelogError)
            assert found[2].metadata == {"position": "2", "cause": "NOT_A_NUMBER"}
            assert ends[3][0] == "QUEUE_UNKNOWN"
            assert ends[4] == ("LIMIT_INVALID", InvalidArgument)
            assert ends[5] is Written
            assert (before.results, after.results) == ([None, None], [None, 5])
            assert before.written.index < after.written.index
            assert await client.kv.get("no") is None
            # What is wrong with one may be right later.
            await client.kv.delete("a")
            assert await unheld.commit()
            with pytest.raises(FailedPrecondition, match="COMMITTED"):
                await unheld.commit()

    run(test())


def test_transactions_among_appends_have_numbers_of_their_own_in_the_session(
    tmp_path: Path,
) -> None:
    """Appends that travel as one operation take a sequence for each record."""

    async def test() -> None:
        async with single(tmp_path, shards=1) as node, AsyncClient(node.endpoint) as client:
            stream = client.stream("s")
            await stream.create()
            for turn in range(1, 6):
                first, second = (client.transact().increment("n") for _ in range(2))
                await asyncio.gather(
                    *(stream.append(f"{number}") for number in range(5)),
                    first.append_record("s", "mine").commit(),
                    *(stream.append(f"{number}") for number in range(3)),
                    second.commit(),
                )
                assert (first.results[0], second.results) == (2 * turn - 1, [2 * turn])
            info = await stream.info()
            assert info.partitions[0].record_count == 5 * 9

    run(test())


@pytest.mark.parametrize("sessions", [True, False])
@pytest.mark.parametrize(
    "error", [NotLeader("elsewhere", reason="NOT_LEADER"), OutcomeUnknown("lost")]
)
def test_transactions_are_tried_again_and_done_once(
    error: OnelogError,
    sessions: bool,  # noqa: FBT001
) -> None:
    """Without a session nobody can tell whether one is done: it is the caller's to know."""
    is_unknown = isinstance(error, OutcomeUnknown)

    async def test() -> None:
        options = replace(QUICK, sessions=sessions)
        async with (
            scripted() as world,
            AsyncClient(world.servers[0].endpoint, options=options) as client,
        ):
            world.servers[0].script = refusing(error, 2, effect=is_unknown)
            found = await asyncio.gather(
                *(batch_of(client, f"{n}", f"{n}-").commit() for n in range(9)),
                return_exceptions=True,
            )
            expected = OutcomeUnknown if is_unknown and not sessions else Written
            assert {type(each) for each in found} == {expected}
            assert len(world.effects) == 18
            assert set(world.effects.values()) == {1}

    run(test())


def test_transactions_are_exact_while_leaders_move(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            endpoints = [each.endpoint for each in nodes]
            async with AsyncClient(endpoints, timeout_s=30) as client:
                done = asyncio.Event()
                committed = 0

                async def commit(number: int) -> None:
                    nonlocal committed
                    mine = 0
                    while not done.is_set():
                        batch = client.transact().increment("all").increment(f"n{number}")
                        batch.put(f"k{number}", f"{mine}")
                        await batch.commit()
                        mine += 1
                        committed += 1
                        assert batch.results[1] == mine

                tasks = [asyncio.create_task(commit(number)) for number in range(8)]
                for _ in range(3):
                    before = committed
                    await until(lambda before=before: committed > before + 50)  # type: ignore[misc]
                    await client.admin.transfer_leadership(0)
                done.set()
                await asyncio.gather(*tasks)
                found = await client.kv.get("all")
                assert found is not None
                assert int(found.value) == committed

    run(test())


def test_a_transaction_that_is_not_answered_in_time_says_what_is_known() -> None:
    async def test() -> None:
        async with (
            scripted() as world,
            AsyncClient(world.servers[0].endpoint, options=QUICK) as client,
        ):
            await client.kv.put("warm{t}", b"")
            server, gate = world.servers[0], asyncio.Event()

            async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                await gate.wait()
                return server.world.carry_out(request)

            server.script = script
            server.messages.clear()
            hasty = client.scoped(timeout_s=0.2)
            patient = asyncio.ensure_future(batch_of(client, "patient").commit())
            await until(lambda: server.messages)
            # It has an order, so it waits for the one before, and was never sent.
            with pytest.raises(DeadlineExceeded, match="EXPIRED"):
                await batch_of(hasty, "kept").increment("n{t}").commit()
            assert not patient.done()
            gate.set()
            await patient
            gate.clear()
            with pytest.raises(OutcomeUnknown):
                await batch_of(hasty, "sent").commit()
            gate.set()
            await batch_of(client, "last").commit()
            assert b"kept{t}" not in world.effects
            assert world.effects[b"patient{t}"] == world.effects[b"last{t}"] == 1

    run(test())


def test_a_transaction_that_no_message_can_hold_is_refused_before_it_is_sent() -> None:
    async def test() -> None:
        async with scripted() as world, AsyncClient(world.servers[0].endpoint) as client:
            await client.kv.put("warm{t}", b"")
            large = client.transact().put("a{t}", bytes(9 << 20)).put("b{t}", bytes(9 << 20))
            ends = await asyncio.gather(
                batch_of(client, "1").commit(),
                large.commit(),
                batch_of(client, "2").commit(),
                return_exceptions=True,
            )
            assert [type(each) for each in ends] == [Written, TooLarge, Written]
            assert set(world.effects) == {b"warm{t}", b"1{t}", b"2{t}"}

    run(test())
