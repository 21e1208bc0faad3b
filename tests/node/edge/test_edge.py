"""The edge: any node takes any request, once; what is too much is refused."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import pytest

from onelog import errors
from onelog.cluster.raft.member import Transfer
from onelog.node.config.schema import Config, ShutdownSettings
from onelog.node.edge import calls
from onelog.node.edge.calls import FORWARDED_KEY, SHARD_KEY
from onelog.node.edge.shards import parse_namespace
from onelog.v1 import admin_pb2 as admin
from onelog.v1 import common_pb2, kv_pb2_grpc
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from tests.node.services.nodes import WAIT_S, Node, cluster, eventually, refusal, run, single, until

SHARDS = 3
FORWARDED = ((FORWARDED_KEY, "1"),)


def key_of(node: Node, shard: int, number: int = 0) -> bytes:
    """Return a key that lives in a shard."""
    edge = node.context.edge
    assert edge is not None
    found = (b"%d-%d" % (number, each) for each in range(10_000))
    return next(key for key in found if edge.find_shard(key) == shard)


def on_three(directory: Path, test: Callable[[list[Node]], Awaitable[None]]) -> None:
    async def main() -> None:
        async with cluster(directory, shards=SHARDS) as nodes:
            await test(nodes)

    run(main())


def test_any_node_carries_out_any_request(tmp_path: Path) -> None:
    async def test(nodes: list[Node]) -> None:
        keys = [key_of(nodes[0], shard) for shard in range(SHARDS)]
        for number, node in enumerate(nodes):
            for shard, key in enumerate(keys):
                value = b"%d" % number
                put = await node.kv.Put(kv.PutRequest(key=key, value=value))
                assert put.header.shard == shard
                for other in nodes:
                    got = await other.kv.Get(kv.GetRequest(key=key))
                    assert (got.item.value, got.item.version) == (value, put.header.index)
        for node in nodes:
            listed = await node.kv.List(kv.ListRequest())
            assert [item.key for item in listed.items] == sorted(keys)
            assert [header.shard for header in listed.headers] == list(range(SHARDS))
            got = await node.kv.BatchGet(kv.BatchGetRequest(keys=keys[::-1]))
            assert [item.key for item in got.items] == keys[::-1]
            scanned = [
                item.key async for page in node.kv.Scan(kv.ListRequest()) for item in page.items
            ]
            assert scanned == sorted(keys)
            error = await refusal(node.kv.Put(kv.PutRequest(key=keys[0], expected_version=1)))
            assert type(error) is errors.ConditionFailed
        edges = [node.context.edge for node in nodes]
        assert sum(edge.calls.forwarder.count for edge in edges if edge is not None) > 0

    on_three(tmp_path, test)


def test_a_message_of_many_operations_is_split_over_the_leaders(tmp_path: Path) -> None:
    async def test(nodes: list[Node]) -> None:
        operations = []
        for number in range(30):
            key = key_of(nodes[0], number % SHARDS, number)
            operations.append(pipeline.Operation(put=kv.PutRequest(key=key, value=b"v")))
            operations.append(pipeline.Operation(count=kv.CountRequest(key=key + b"n", add=1)))
            operations.append(pipeline.Operation(get=kv.GetRequest(key=key)))
        operations.append(pipeline.Operation(put=kv.PutRequest()))
        request = pipeline.ExecuteRequest(request_id=5, operations=operations)
        for round_number, node in enumerate(nodes, start=1):
            answer = await node.pipeline.ExecuteOnce(request)
            kinds = [each.WhichOneof("result") for each in answer.results]
            assert kinds == ["put", "count", "get"] * 30 + ["error"]
            assert {each.count.number for each in answer.results[1:-1:3]} == {round_number}
            assert {each.get.item.value for each in answer.results[2:-1:3]} == {b"v"}
            for put, get in zip(answer.results[0:-1:3], answer.results[2:-1:3], strict=True):
                assert put.put.header.index == get.get.item.version
                assert put.put.header.shard == get.get.header.shard

    on_three(tmp_path, test)


def test_a_forwarded_request_is_not_forwarded_again_but_told_where_to_go(tmp_path: Path) -> None:
    async def test(nodes: list[Node]) -> None:
        leader = next(node for node in nodes if node.leads(0))
        follower = next(node for node in nodes if not node.leads(0))
        key = key_of(leader, 0)
        for call in (
            follower.kv.Put(kv.PutRequest(key=key, value=b"1"), metadata=FORWARDED),
            follower.kv.Get(kv.GetRequest(key=key), metadata=FORWARDED),
        ):
            error = await refusal(call)
            assert isinstance(error, errors.NotLeader)
            assert error.leader == leader.endpoint
            assert error.metadata["shard"] == "0"
        stale = common_pb2.ReadOptions(level=common_pb2.READ_LEVEL_STALE)
        request = kv.GetRequest(key=key, options=stale)
        assert not (await follower.kv.Get(request, metadata=FORWARDED)).HasField("item")
        answer = await follower.pipeline.ExecuteOnce(
            pipeline.ExecuteRequest(
                operations=[pipeline.Operation(put=kv.PutRequest(key=key, value=b"1"))]
            ),
            metadata=FORWARDED,
        )
        assert answer.results[0].error.reason == "NOT_LEADER"
        assert answer.results[0].error.metadata["leader"] == leader.endpoint
        part = (*FORWARDED, (SHARD_KEY, "0"))
        listed = await leader.kv.List(kv.ListRequest(), metadata=part)
        assert [header.shard for header in listed.headers] == [0]
        error = await refusal(leader.kv.List(kv.ListRequest(), metadata=((SHARD_KEY, "99"),)))
        assert error.reason == "SHARD_UNKNOWN"

    on_three(tmp_path, test)


def test_requests_go_on_when_a_leader_stops_and_a_session_makes_retries_exact(
    tmp_path: Path,
) -> None:
    async def test(nodes: list[Node]) -> None:
        leader = next(node for node in nodes if node.leads(0))
        others = [node for node in nodes if node is not leader]
        key = key_of(leader, 0)
        session = await others[0].pipeline.OpenSession(pipeline.OpenSessionRequest(shard=0))

        def count(node: Node, sequence: int) -> Any:
            options = common_pb2.WriteOptions(
                session=common_pb2.Session(session_id=session.session_id, sequence=sequence)
            )
            return node.kv.Count(kv.CountRequest(key=key, add=1, options=options), timeout=2)

        first = await count(others[0], 1)
        assert (first.number, first.header.duplicate) == (1, False)
        stopping = asyncio.create_task(leader.stop())
        second = await eventually(lambda: count(others[0], 2))
        assert second.number == 2
        for node in others:
            again = await eventually(partial(count, node, 1))
            assert (again.number, again.header.duplicate) == (1, True)
            assert again.header.index == first.header.index
        await stopping

    on_three(tmp_path, test)


def test_a_message_in_a_session_takes_effect_once_through_whichever_node(tmp_path: Path) -> None:
    async def test(nodes: list[Node]) -> None:
        opened = await nodes[0].pipeline.OpenSession(pipeline.OpenSessionRequest(shard=1))
        key = key_of(nodes[0], 1)
        tag = b"{" + key + b"}"
        count = pipeline.Operation(count=kv.CountRequest(key=tag + b"n", add=1))
        request = pipeline.ExecuteRequest(
            operations=[
                pipeline.Operation(put=kv.PutRequest(key=tag + b"p", value=b"v")),
                count,
                pipeline.Operation(put=kv.PutRequest()),
                pipeline.Operation(get=kv.GetRequest(key=tag + b"n")),
                count,
            ],
            session=common_pb2.Session(session_id=opened.session_id, sequence=1),
        )
        first = (await nodes[0].pipeline.ExecuteOnce(request)).results
        assert [first[1].count.number, first[4].count.number] == [1, 2]
        for node in nodes[1:]:
            again = (await node.pipeline.ExecuteOnce(request)).results
            assert [again[1].count.number, again[4].count.number] == [1, 2]
            assert again[0].put.header.duplicate
            assert again[4].count.header.duplicate
            assert again[4].count.header.index == first[4].count.header.index
            assert again[2].error.reason == "KEY_SIZE_INVALID"
            assert again[3].get.item.value == b"2"

    on_three(tmp_path, test)


def test_a_leadership_that_moves_is_a_pause_and_no_error(tmp_path: Path) -> None:
    async def test(nodes: list[Node]) -> None:
        done = asyncio.Event()
        key = key_of(nodes[0], 0)
        counts = [0, 0]

        async def count(node: Node) -> None:
            while not done.is_set():
                await node.kv.Count(kv.CountRequest(key=key, add=1), timeout=10)
                counts[0] += 1

        async def execute(node: Node) -> None:
            operation = pipeline.Operation(count=kv.CountRequest(key=key, add=1))
            request = pipeline.ExecuteRequest(operations=[operation])
            while not done.is_set():
                answer = await node.pipeline.ExecuteOnce(request, timeout=10)
                assert answer.results[0].WhichOneof("result") == "count", answer
                counts[1] += 1

        callers = [asyncio.create_task(each(node)) for node in nodes for each in (count, execute)]

        def has_moved_on(before: list[int]) -> bool:
            return counts[0] > before[0] and counts[1] > before[1]

        for _ in range(6):
            await until(partial(has_moved_on, counts.copy()))
            request = admin.TransferLeadershipRequest(shard=0)
            await eventually(partial(nodes[0].admin.TransferLeadership, request, timeout=5))
        done.set()
        await asyncio.gather(*callers)
        got = await nodes[0].kv.Get(kv.GetRequest(key=key))
        assert int(got.item.value) == sum(counts)

    on_three(tmp_path, test)


def test_a_call_that_a_leader_held_for_long_still_waits_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LEADER_WAIT_S", 0.4)
    monkeypatch.setattr(Transfer, "_later_s", lambda _: float("inf"))

    async def test(nodes: list[Node]) -> None:
        key = key_of(nodes[0], 0)
        leader = next(node for node in nodes if node.leads(0))
        target, third = (node for node in nodes if node is not leader)
        driver, shard = leader.context.drivers[0], target.context.drivers[0].shard
        member, target_id = driver.shard.member, shard.member.self_id
        # Without a sync the target lacks what the others have, and the leader waits for it.
        with monkeypatch.context() as patch:
            patch.setattr(shard, "sync_begin", lambda: None)
            await third.kv.Count(kv.CountRequest(key=key, add=1))
            await until(lambda: member.find_match(target_id) < member.journal.last)
            request = admin.TransferLeadershipRequest(shard=0, node_id=str(target_id))
            moving = leader.admin.TransferLeadership(request)
            await until(lambda: driver.shard._transfer is not None)
            held = [node.kv.Count(kv.CountRequest(key=key, add=1), timeout=20) for node in nodes]
            await until(lambda: driver.waiting == len(held))
            clock = leader.context.clock
            over_s = clock.now_s() + 1.5 * calls.LEADER_WAIT_S
            await until(lambda: clock.now_s() > over_s)
            assert not any(call.done() for call in held)
        await moving
        numbers = [(await call).number for call in held]
        assert sorted(numbers) == [2, 3, 4]

    on_three(tmp_path, test)


def test_a_flood_of_one_client_is_refused_and_another_client_served(tmp_path: Path) -> None:
    async def test() -> None:
        limits = replace(Config().limits, concurrent_rpcs_max=16)
        async with single(tmp_path, limits=limits) as node:
            never = common_pb2.ReadOptions(level=common_pb2.READ_LEVEL_STALE, min_index=10**9)
            waiting = [
                node.kv.Get(kv.GetRequest(key=b"a", options=never), timeout=20) for _ in range(4)
            ]
            edge = node.context.edge
            assert edge is not None
            await until(lambda: edge.calls.admission.requests == 4)
            error = await refusal(node.kv.Get(kv.GetRequest(key=b"a")))
            assert type(error) is errors.ResourceExhausted
            assert error.retry_after_s
            async with grpc.aio.insecure_channel(
                node.endpoint, options=(("grpc.use_local_subchannel_pool", 1),)
            ) as channel:
                other = channel.unary_unary(
                    "/onelog.v1.KV/Get",
                    request_serializer=kv.GetRequest.SerializeToString,
                    response_deserializer=kv.GetResponse.FromString,
                )
                await other(kv.GetRequest(key=b"a"))
            for call in waiting:
                call.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await until(lambda: not edge.calls.admission.requests)
            await node.kv.Get(kv.GetRequest(key=b"a"))

    run(test())


def test_a_stream_that_nobody_reads_is_dropped_with_a_reason(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            for number in range(24):
                await node.kv.Put(kv.PutRequest(key=b"%d" % number, value=bytes(1 << 20)))
            edge = node.context.edge
            assert edge is not None
            edge.calls.stall_s = 0.2
            # A channel that widens its window may take in all of it before anybody reads.
            fixed = await node.stack.enter_async_context(
                grpc.aio.insecure_channel(
                    node.endpoint,
                    options=(
                        ("grpc.http2.bdp_probe", 0),
                        ("grpc.max_receive_message_length", -1),
                        ("grpc.use_local_subchannel_pool", 1),
                    ),
                )
            )
            stub = kv_pb2_grpc.KVStub(fixed)  # type: ignore[no-untyped-call]
            call = stub.Scan(kv.ListRequest())
            await call.read()
            await until(lambda: edge.calls.admission.requests)
            await until(lambda: not edge.calls.admission.requests)

            async def read_on() -> None:
                while await call.read() is not grpc.aio.EOF:
                    pass

            error = await refusal(read_on())
            assert error.reason == "SLOW_READER"

    run(test())


def test_streams_end_with_a_word_when_the_node_stops(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as node:
            call = node.pipeline.Watch(pipeline.WatchRequest())
            await call.read()
            node.server.stop()
            error = await refusal(call.read())
            assert (type(error), error.reason) == (errors.Unavailable, "STOPPING")

    run(test())


def test_a_pipeline_that_nobody_uses_holds_up_no_stop(tmp_path: Path) -> None:
    """Every client has one open; a stop that waited for it would take as long as it may."""

    async def test() -> None:
        patient = ShutdownSettings(drain_s=10 * WAIT_S)
        async with single(tmp_path, shutdown=patient) as node:
            call = node.pipeline.Execute()
            put = pipeline.Operation(put=kv.PutRequest(key=b"k", value=b"v"))
            await call.write(pipeline.ExecuteRequest(operations=[put]))
            assert (await call.read()).results[0].put.header.index
            node.server.stop()
            error = await refusal(call.read())
            assert (type(error), error.reason) == (errors.Unavailable, "STOPPING")
            await node.task

    run(test())


@pytest.mark.parametrize("name", ["", "a", "n" * 128, "é" * 64])
def test_names_of_namespaces_are_at_most_128_bytes(name: str) -> None:
    assert parse_namespace(name) == (name or "default")
    with pytest.raises(errors.InvalidArgument):
        parse_namespace("é" * 65)
