"""Leaders that change, connections that break, sessions that end: what is retried, and how often
it takes effect."""

import asyncio
from dataclasses import replace

import pytest

from onelog import AsyncClient
from onelog.errors import (
    ConditionFailed,
    DeadlineExceeded,
    FailedPrecondition,
    NotLeader,
    OnelogError,
    OutcomeUnknown,
    ResourceExhausted,
    SessionExpired,
    Unavailable,
)
from onelog.v1 import pipeline_pb2
from tests.onelog.client.scripted import (
    QUICK,
    Reply,
    Scripted,
    World,
    carry_out,
    refusing,
    run,
    scripted,
    until,
)

KEY = "a{t}"


def client_of(world: World, **changes: object) -> AsyncClient:
    options = replace(QUICK, **changes)  # type: ignore[arg-type]
    return AsyncClient([each.endpoint for each in world.servers], options=options)


@pytest.mark.parametrize(
    ("error", "effect"),
    [
        (Unavailable("an election", reason="NO_LEADER", retry_after_s=0.001), "undone"),
        (OutcomeUnknown("it was proposed"), "done"),
        (OutcomeUnknown("it was proposed"), "undone"),
        (DeadlineExceeded("too late", reason="EXPIRED"), "undone"),
        (ResourceExhausted("full", retry_after_s=0.001), "undone"),
        (
            ResourceExhausted("of answers", reason="SESSION_RESULTS_FULL", retry_after_s=0.01),
            "undone",
        ),
    ],
)
def test_a_write_is_tried_again_in_its_session_and_takes_effect_once(
    error: OnelogError, effect: str
) -> None:
    async def test() -> None:
        async with scripted() as world, client_of(world) as client:
            server = world.servers[0]
            server.script = refusing(error, 3, effect=effect == "done")
            await asyncio.gather(*(client.kv.put(f"{n}{{t}}", b"") for n in range(10)))

            assert set(world.effects.values()) == {1}
            assert len(world.effects) == 10
            assert len(server.messages) == 4
            assert len({each.session.sequence for each in server.messages}) == 1

    run(test())


@pytest.mark.parametrize("was_lost", [False, True])
def test_a_refusal_that_a_session_keeps_is_tried_again_as_a_new_write(*, was_lost: bool) -> None:
    """The same request would be answered the same, for as long as the session lives."""

    async def test() -> None:
        async with scripted() as world, client_of(world) as client:
            server = world.servers[0]
            full = ResourceExhausted(
                "of points", reason="SERIES_BUFFER_FULL", metadata={"detail": "9"}, retry_after_s=0
            )
            refuse_one = refusing(full, 1)
            kept: dict[int, Reply] = {}

            async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                sequence = request.session.sequence
                if was_lost and not kept:
                    kept[sequence] = await refuse_one(server, request)
                    return OutcomeUnknown("the answer is lost")
                if sequence not in kept:
                    kept[sequence] = await refuse_one(server, request)
                answer = kept[sequence]
                assert isinstance(answer, pipeline_pb2.ExecuteResponse)
                answer.request_id = request.request_id
                return answer

            server.script = script
            await asyncio.gather(*(client.kv.put(f"{n}{{t}}", b"") for n in range(10)))
            assert set(world.effects.values()) == {1}
            assert len(world.effects) == 10
            sequences = [each.session.sequence for each in server.messages]
            assert len(sequences) == 2 + was_lost
            assert sequences[-1] > sequences[-2]

    run(test())


def test_writes_keep_their_order_while_one_of_them_is_tried_again() -> None:
    async def test() -> None:
        async with scripted() as world, client_of(world) as client:
            error = Unavailable("an election", reason="NO_LEADER", retry_after_s=0.01)
            world.servers[0].script = refusing(error, 3)
            tasks = []
            for number in range(5):
                tasks.append(asyncio.create_task(client.kv.put(f"{number}{{t}}", b"")))
                await client.admin.topology()
            await asyncio.gather(*tasks)
            assert list(world.effects) == [b"%d{t}" % number for number in range(5)]

    run(test())


def test_a_stream_that_breaks_after_the_work_was_done_loses_and_repeats_nothing() -> None:
    async def test() -> None:
        async with scripted() as world, client_of(world) as client:
            broken = 0

            async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                nonlocal broken
                done = server.world.carry_out(request)
                broken += 1
                return Unavailable("gone") if broken % 2 else done

            world.servers[0].script = script
            for number in range(5):
                await client.kv.put(f"{number}{{t}}", b"")
            assert set(world.effects.values()) == {1}
            assert len(world.effects) == 5

    run(test())


def test_a_redirect_is_followed_at_once_and_remembered() -> None:
    async def test() -> None:
        async with scripted(2) as world, client_of(world) as client:
            old, new = world.servers
            error = NotLeader("moved", metadata={"leader": new.endpoint})
            old.script = refusing(error, 1_000)
            await client.kv.put(KEY, b"")
            await client.kv.put(KEY, b"")
            assert len(old.messages) == 1
            assert len(new.messages) == 2
            assert world.effects == {KEY.encode(): 2}

    run(test())


def test_a_leader_that_is_gone_is_replaced_by_what_the_others_say() -> None:
    async def test() -> None:
        async with scripted(2) as world, client_of(world) as client:
            await client.kv.put(KEY, b"")
            old, new = world.servers
            world.leaders = dict.fromkeys(world.leaders, new)
            await old.stop()
            await client.kv.put(KEY, b"")
            assert len(new.messages) == 1
            await client.kv.get(KEY)

    run(test())


def test_a_leader_that_is_silent_is_left_when_somebody_else_leads() -> None:
    """Cut off, it answers nothing; in a session it is exact to ask elsewhere."""

    async def test() -> None:
        async with scripted(2) as world, client_of(world) as client:
            old, new = world.servers

            async def silent(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                if request.operations[0].HasField("put"):
                    server.world.carry_out(request)
                return None

            await client.kv.put(KEY, b"")
            old.script = silent
            writing = asyncio.create_task(client.kv.put(KEY, b""))
            reading = asyncio.create_task(client.kv.get(KEY))
            await until(lambda: len(old.messages) == 3)
            world.leaders = dict.fromkeys(world.leaders, new)
            await writing
            await reading
            assert world.effects == {KEY.encode(): 2}

    run(test())


def test_a_leader_that_was_replaced_and_does_not_know_is_not_believed() -> None:
    async def test() -> None:
        async with scripted(2) as world, client_of(world) as client:
            topology = client._connection.topology
            old, new = world.servers
            world.leaders, world.term = dict.fromkeys(world.leaders, new), 7
            await topology.refresh()
            world.leaders, world.term = dict.fromkeys(world.leaders, old), 6
            await topology.refresh()
            assert topology.leaders == [new.endpoint] * 2
            world.term = 8
            await topology.refresh()
            assert topology.leaders == [old.endpoint] * 2

    run(test())


def test_a_silent_endpoint_does_not_hold_up_the_topology() -> None:
    async def test() -> None:
        async with scripted(2) as world, client_of(world) as client:
            silent = world.servers[1]
            silent.is_silent = True
            for _ in range(3):
                async with asyncio.timeout(1.5):
                    await client._connection.topology.refresh()

    run(test())


def test_a_read_that_is_tried_again_and_again_ends_in_time() -> None:
    async def test() -> None:
        async with scripted() as world, client_of(world) as client:
            error = Unavailable("an election", reason="NO_LEADER", retry_after_s=0.01)
            world.servers[0].script = refusing(error, 1_000_000)
            with pytest.raises(DeadlineExceeded, match="an election"):
                await client.scoped(timeout_s=0.3).kv.get(KEY)
            assert len(world.servers[0].messages) > 1

    run(test())


def test_without_sessions_an_unknown_outcome_is_the_callers_to_know() -> None:
    async def test() -> None:
        async with scripted() as world, client_of(world, sessions=False) as client:
            world.servers[0].script = refusing(OutcomeUnknown("proposed"), 1, effect=True)
            with pytest.raises(OutcomeUnknown):
                await client.kv.put(KEY, b"")
            assert world.effects == {KEY.encode(): 1}
            world.servers[0].script = refusing(Unavailable("no", reason="NO_LEADER"), 2)
            await client.kv.put(KEY, b"")
            assert world.effects == {KEY.encode(): 2}
            assert not any(each.HasField("session") for each in world.servers[0].messages)

    run(test())


def test_without_sessions_only_what_was_refused_is_sent_again() -> None:
    async def test() -> None:
        async with scripted() as world, client_of(world, sessions=False) as client:
            first = True

            async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                nonlocal first
                answer = server.world.carry_out(request)
                if first:
                    first = False
                    refused = answer.results[1]
                    refused.Clear()
                    refused.error.code, refused.error.reason = 14, "NO_LEADER"
                    world.effects.pop(b"1{t}")
                return answer

            world.servers[0].script = script
            puts = (client.kv.put(f"{n}{{t}}", b"", ttl_s=9) for n in range(3))
            await asyncio.gather(*puts)
            assert set(world.effects.values()) == {1}
            assert [len(each.operations) for each in world.servers[0].messages] == [3, 1]

    run(test())


def test_a_session_that_ended_unused_is_opened_again() -> None:
    async def test() -> None:
        async with scripted() as world, client_of(world) as client:
            await client.kv.put(KEY, b"")
            world.servers[0].script = refusing(SessionExpired("idle for too long"), 1)
            await client.kv.put(KEY, b"")
            first, _, again = world.servers[0].messages
            assert again.session.session_id != first.session.session_id
            assert world.effects == {KEY.encode(): 2}

    run(test())


def test_a_session_that_ended_with_an_unknown_outcome_is_told() -> None:
    """Nobody can say whether the first attempt had an effect: another session must not try."""

    async def test() -> None:
        async with scripted() as world, client_of(world) as client:
            errors = iter([OutcomeUnknown("proposed"), SessionExpired("over")])

            async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
                error = next(errors, None)
                return await (refusing(error, 1) if error else carry_out)(server, request)

            world.servers[0].script = script
            with pytest.raises(SessionExpired):
                await client.kv.put(KEY, b"")
            assert world.effects == {}
            await client.kv.put(KEY, b"")
            assert world.effects == {KEY.encode(): 1}

    run(test())


def test_a_refusal_is_raised_and_not_repeated() -> None:
    async def test() -> None:
        async with scripted() as world, client_of(world) as client:
            world.servers[0].script = refusing(ConditionFailed("it is 7"), 1)
            with pytest.raises(ConditionFailed, match="it is 7"):
                await client.kv.put(KEY, b"", expected_version=3)
            assert len(world.servers[0].messages) == 1

    run(test())


def test_what_is_answered_is_confirmed_with_the_next_request() -> None:
    """The server forgets the answers below it: all of them, when nothing is outstanding."""

    async def test() -> None:
        async with scripted() as world, client_of(world) as client:
            for count in (3, 1, 5):
                await asyncio.gather(
                    *(client.kv.put(f"{n}{{t}}", b"", ttl_s=9) for n in range(count))
                )
            sessions = [each.session for each in world.servers[0].messages]
            assert [each.sequence for each in sessions] == [1, 4, 5]
            assert [each.first_unacknowledged for each in sessions] == [1, 4, 5]

    run(test())


def test_nobody_there_is_said_in_time_and_the_next_call_tries_again() -> None:
    async def test() -> None:
        async with scripted() as world:
            server = world.servers[0]
            await server.stop()
            client = AsyncClient(server.endpoint, options=replace(QUICK, timeout_s=0.3))
            with pytest.raises(Unavailable, match="NOT_CONNECTED"):
                await client.kv.put(KEY, b"")
            await server.start()
            await client.scoped(timeout_s=10).kv.put(KEY, b"")
            await client.close()

    run(test())


def test_an_endpoint_of_another_cluster_is_refused() -> None:
    async def test() -> None:
        async with scripted() as one, scripted() as other:
            for server in other.servers:
                server.world = other
            async with client_of(one) as client:
                client._connection.topology.cluster_id = "somebody else's"
                with pytest.raises(FailedPrecondition, match="TOPOLOGY_MISMATCH"):
                    await client._connection.topology.refresh()

    run(test())
