"""The Pipeline service of a real node: many operations at once, batches, sessions."""

import asyncio
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any, cast

import grpc.aio  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from onelog import errors
from onelog.node.edge.operation import result_field
from onelog.node.edge.shards import Edge
from onelog.node.replica.requests import Durability
from onelog.node.services.executor import OPERATIONS, Message
from onelog.node.services.transact import BATCHED
from onelog.projections.codec import SessionRef
from onelog.projections.kv.commands import Put, encode_command
from onelog.v1 import common_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import queue_pb2 as q
from tests.node.services.nodes import Node, refusal, run, single

Operation = pipeline.Operation
ASYNC = common_pb2.WriteOptions(durability=common_pb2.DURABILITY_ASYNC)


def put(key: bytes, value: bytes = b"v", **fields: Any) -> pipeline.Operation:
    return Operation(put=kv.PutRequest(key=key, value=value, **fields))


def count(key: bytes, add: int = 1) -> pipeline.Operation:
    return Operation(count=kv.CountRequest(key=key, add=add))


def get(key: bytes, **fields: Any) -> pipeline.Operation:
    return Operation(get=kv.GetRequest(key=key, **fields))


def message(*operations: pipeline.Operation, **fields: Any) -> pipeline.ExecuteRequest:
    return pipeline.ExecuteRequest(operations=operations, **fields)


def a_fake_edge(shards: int) -> Any:
    edge = SimpleNamespace(check_size=lambda *_: 0, request_bytes_max=1 << 30)
    edge._topology = SimpleNamespace(partitions=16, shards=shards)
    edge.find_shards = MethodType(Edge.find_shards, edge)
    return edge


keys = st.binary(min_size=1, max_size=40) | st.from_regex(rb"a\{[a-z]{0,3}\}.{0,4}", fullmatch=True)
options = st.fixed_dictionaries(
    {},
    optional={
        "ttl_ms": st.integers(1, 9),
        "lease_id": st.integers(1, 9),
        "expected_version": st.integers(0, 9),
    },
)


@given(
    st.lists(
        st.tuples(
            keys,
            st.binary(max_size=60),
            st.sampled_from(["", "default", "other"]),
            st.just({}) | options,
        )
    ),
    st.integers(1, 5),
    st.booleans(),
)
def test_puts_of_a_message_become_the_entries_of_their_commands(
    puts: list[tuple[bytes, bytes, str, dict[str, int]]],
    shards: int,
    in_session: bool,  # noqa: FBT001 - hypothesis gives it
) -> None:
    """Whatever shards, namespaces and options make of the message's spans."""
    shards = 1 if in_session else shards
    puts = [each for each in puts if not each[0].startswith((b"cg:", b"_ts:"))]
    request = message(*(put(key, value, namespace=name, **more) for key, value, name, more in puts))
    if in_session:
        request.session.CopyFrom(
            common_pb2.Session(session_id=9, sequence=70, first_unacknowledged=60)
        )
    edge = a_fake_edge(shards)
    made = Message(edge, request, cast(Any, None), 0)
    made.sort()

    seen = []
    for shard, (step,) in made.shards.items():
        assert step.durability is Durability.SYNC
        made.make_drafts(step, None, is_certain=True)
        assert step.positions == sorted(step.positions)
        for position, draft in zip(step.positions, step.drafts, strict=True):
            key, value, name, more = puts[position]
            ttl_ns = more["ttl_ms"] * 1_000_000 if "ttl_ms" in more else None
            command = Put(key, value, ttl_ns, more.get("lease_id"), more.get("expected_version"))
            session = SessionRef(9, 70 + position, 60) if in_session else None
            expected = encode_command(command, name or "default", session)
            assert draft == (expected.entry_type, expected.payload, 0)
            assert edge.find_shards([(key,)]) == [shard]
            seen.append(position)
    assert sorted(seen) == list(range(len(puts)))


def test_every_operation_of_the_protos_is_known() -> None:
    """The tables are made from the protos; a proto's operation that nobody has ends the import."""
    oneof = pipeline.Operation.DESCRIPTOR.oneofs_by_name["operation"]
    assert {each.name for each in oneof.fields} == set(OPERATIONS)
    results = pipeline.OperationResult.DESCRIPTOR.fields_by_name
    for operation in OPERATIONS.values():
        message_type = results[result_field(operation.response)].message_type
        assert message_type is operation.response.DESCRIPTOR
    assert {each.name for each in pipeline.TransactOperation.DESCRIPTOR.fields} == set(BATCHED)


def test_operations_of_a_message_take_effect_in_order_and_fail_alone(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as node:
            answer = await node.pipeline.ExecuteOnce(
                message(
                    put(b"{x}", b"1"), get(b"{x}"), count(b"{x}", 5), get(b"{x}"),
                    put(b"", b""), put(b"{x}", b"2", expected_version=1), Operation(),
                    put(b"{x}", b"3", options=ASYNC),
                    put(b"{x}", b"4"), get(b"{x}"),
                    Operation(delete=kv.DeleteRequest(key=b"{x}")), get(b"{x}"),
                    put(b"k", b"v", namespace="nowhere"),
                    request_id=9,
                )
            )  # fmt: skip
            assert answer.request_id == 9
            results = answer.results
            assert results[1].get.item.value == b"1"
            assert results[2].count.number == 6
            assert results[3].get.item.value == b"6"
            assert results[4].error.reason == "KEY_SIZE_INVALID"
            assert results[5].error.reason == "CONDITION_FAILED"
            assert results[6].error.reason == "OPERATION_MISSING"
            assert results[7].put.header.index
            assert results[9].get.item.value == b"4"
            assert results[9].get.item.version == results[8].put.header.index
            assert results[10].delete.deleted
            assert not results[11].get.HasField("item")
            assert results[12].error.reason == "NAMESPACE_UNKNOWN"

    run(test())


def test_a_message_of_puts_is_one_proposal_for_each_shard(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=2) as node:
            journals = [each.shard.member.journal for each in node.context.drivers.values()]
            before = [journal.last for journal in journals]
            request = message(*(put(b"%d" % number) for number in range(1000)))
            answer = await node.pipeline.ExecuteOnce(request)
            assert [journal.last - was for journal, was in zip(journals, before, strict=True)] == [
                1, 1,
            ]  # fmt: skip
            places = {(each.put.header.shard, each.put.header.index) for each in answer.results}
            assert len(places) == 1000
            listed = await node.kv.List(kv.ListRequest(limit=10_000))
            versions = {(item.key, item.version) for item in listed.items}
            assert versions == {
                (b"%d" % number, each.put.header.index)
                for number, each in enumerate(answer.results)
            }

    run(test())


def test_a_stream_answers_every_message_and_refuses_alone_what_is_wrong(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as node:
            call = node.pipeline.Execute()

            async def send() -> None:
                for number in range(200):
                    operations = [count(b"n"), put(b"%d" % number)]
                    await call.write(message(*operations, request_id=number))
                await call.write(message(*[put(b"x")] * 10_001, request_id=200))
                await call.done_writing()

            sending = asyncio.create_task(send())
            answers: dict[int, Any] = {}
            while (answer := await call.read()) is not grpc.aio.EOF:
                assert answer.request_id not in answers
                answers[answer.request_id] = answer
            await sending
            assert set(answers) == set(range(201))
            numbers = sorted(answers[number].results[0].count.number for number in range(200))
            assert numbers == list(range(1, 201))
            assert {each.error.reason for each in answers[200].results} == {"LIMIT_INVALID"}
            assert len(answers[200].results) == 10_001

    run(test())


def test_messages_that_travel_together_are_answered_each(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as node:
            call = node.pipeline.Execute()
            alone = message(count(b"n"), request_id=1)
            together = message(count(b"n"), request_id=2)
            together.more.extend(message(count(b"n"), request_id=number) for number in (3, 4))
            # One level deep, and not outside of a stream.
            nested = message(count(b"n"), request_id=5)
            nested.more.add(request_id=6).more.add(request_id=7)
            nested.more[0].operations.add(count=count(b"n").count)
            for each in (alone, together, nested):
                await call.write(each)
            await call.done_writing()
            answers = {}
            while (outer := await call.read()) is not grpc.aio.EOF:
                for answer in (outer, *outer.more):
                    assert answer.request_id not in answers
                    assert not answer.forwarded
                    answers[answer.request_id] = answer.results
            assert set(answers) == {1, 2, 3, 4, 5, 6}
            assert answers[6][0].error.reason == "MORE_INVALID"
            numbers = sorted(answers[each][0].count.number for each in (1, 2, 3, 4, 5))
            assert numbers == [1, 2, 3, 4, 5]
            assert (await refusal(node.pipeline.ExecuteOnce(together))).reason == "MORE_INVALID"

            call = node.pipeline.Execute()
            many = message(count(b"n"), request_id=1)
            many.more.extend([message(count(b"n"))] * 65)
            await call.write(many)
            assert (await refusal(call.read())).reason == "LIMIT_INVALID"

    run(test())


def test_a_message_in_a_session_takes_effect_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as node:
            edge = node.context.edge
            assert edge is not None
            shard = edge.find_shard(b"t")
            opened = await node.pipeline.OpenSession(pipeline.OpenSessionRequest(shard=shard))
            session = common_pb2.Session(session_id=opened.session_id, sequence=1)
            request = message(
                count(b"{t}n"), get(b"{t}n"), put(b"", b""), count(b"{t}n"), put(b"{t}p"),
                session=session,
            )  # fmt: skip
            first = (await node.pipeline.ExecuteOnce(request)).results
            again = (await node.pipeline.ExecuteOnce(request)).results
            assert [first[0].count.number, first[3].count.number] == [1, 2]
            assert first[2].error.reason == "KEY_SIZE_INVALID"
            for before, after in ((first[0].count, again[0].count), (first[4].put, again[4].put)):
                assert after.header.duplicate
                assert not before.header.duplicate
                assert after.header.index == before.header.index
            assert again[1].get.item.value == b"2"
            # The refused one has a number of its own: what follows keeps its place.
            session.sequence, session.first_unacknowledged = 5, 5
            later = await node.pipeline.ExecuteOnce(message(count(b"{t}n"), session=session))
            assert later.results[0].count.number == 3
            many = message(*(put(b"%d" % n) for n in range(20)), session=session)
            assert (await refusal(node.pipeline.ExecuteOnce(many))).reason == "SEVERAL_SHARDS"

    run(test())


def test_another_request_under_a_used_sequence_is_refused_whichever_way_it_comes(
    tmp_path: Path,
) -> None:
    """Two processes that share a session, or a client that lost its count: nothing is dropped."""

    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            opened = await node.pipeline.OpenSession(pipeline.OpenSessionRequest())

            def used(sequence: int = 1) -> common_pb2.Session:
                return common_pb2.Session(session_id=opened.session_id, sequence=sequence)

            options = common_pb2.WriteOptions(session=used())
            first = await node.kv.Put(kv.PutRequest(key=b"k", value=b"v", options=options))
            await node.queue.CreateQueue(q.CreateQueueRequest(queue="jobs"))
            job = q.NewMessage(body=b"job")
            await node.queue.Enqueue(q.EnqueueRequest(queue="jobs", messages=[job]))
            other = kv.PutRequest(key=b"k", value=b"other", options=options)
            batch = pipeline.TransactRequest(operations=transact_operations(), options=options)
            for call in (
                node.kv.Put(other),
                node.kv.Delete(kv.DeleteRequest(key=b"k", options=options)),
                node.queue.Lease(q.LeaseRequest(queue="jobs", options=options)),
                node.pipeline.Transact(batch),
            ):
                error = await refusal(call)
                assert type(error) is errors.FailedPrecondition
                assert error.reason == "SEQUENCE_REUSED"
            enqueue = q.EnqueueRequest(queue="jobs", messages=[job, job], options=options)
            answer = (await node.queue.Enqueue(enqueue)).results
            # Each of its messages is a request, and only the first has a used sequence.
            assert [each.error.reason for each in answer] == ["SEQUENCE_REUSED", ""]

            both = message(put(b"k", b"other"), put(b"k2"), session=used())
            stream = node.pipeline.Execute()
            await stream.write(both)
            for answer in (await node.pipeline.ExecuteOnce(both), await stream.read()):
                reasons = [each.error.reason for each in answer.results]
                assert reasons == ["SEQUENCE_REUSED", "SEQUENCE_REUSED"]
            stream.cancel()

            batch.options.session.sequence = 5
            done = await node.pipeline.Transact(batch)
            assert (await node.pipeline.Transact(batch)).results == done.results
            batch.operations[1].count.add += 1
            assert (await refusal(node.pipeline.Transact(batch))).reason == "SEQUENCE_REUSED"

            again = await node.kv.Put(kv.PutRequest(key=b"k", value=b"v", options=options))
            assert (again.header.index, again.header.duplicate) == (first.header.index, True)
            found = await node.kv.Get(kv.GetRequest(key=b"k"))
            assert (found.item.value, found.item.version) == (b"v", first.header.index)

    run(test())


def test_a_session_is_kept_closed_and_then_gone(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            opened = await node.pipeline.OpenSession(pipeline.OpenSessionRequest(ttl_ms=60_000))
            name = {"session_id": opened.session_id}
            await node.pipeline.KeepSession(pipeline.KeepSessionRequest(**name))
            await node.pipeline.CloseSession(pipeline.CloseSessionRequest(**name))
            options = common_pb2.WriteOptions(
                session=common_pb2.Session(session_id=opened.session_id, sequence=1)
            )
            for call in (
                node.pipeline.KeepSession(pipeline.KeepSessionRequest(**name)),
                node.pipeline.CloseSession(pipeline.CloseSessionRequest(**name)),
                node.kv.Put(kv.PutRequest(key=b"a", options=options)),
            ):
                error = await refusal(call)
                assert (type(error), error.reason) == (errors.SessionExpired, "SESSION_EXPIRED")

    run(test())


def transact_operations() -> list[pipeline.TransactOperation]:
    return [
        pipeline.TransactOperation(put=kv.PutRequest(key=b"{t}a", value=b"1")),
        pipeline.TransactOperation(count=kv.CountRequest(key=b"{t}n", add=2)),
        pipeline.TransactOperation(append=kv.AppendRequest(key=b"{t}b", data=b"xy")),
        pipeline.TransactOperation(delete=kv.DeleteRequest(key=b"{t}a")),
    ]


def test_a_batch_is_done_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as node:
            edge = node.context.edge
            assert edge is not None
            opened = await node.pipeline.OpenSession(
                pipeline.OpenSessionRequest(shard=edge.find_shard(b"t"))
            )
            options = common_pb2.WriteOptions(
                session=common_pb2.Session(session_id=opened.session_id, sequence=1)
            )
            request = pipeline.TransactRequest(
                conditions=[kv.Condition(key=b"{t}n", exists=False)],
                operations=transact_operations(),
                options=options,
            )
            done = await node.pipeline.Transact(request)
            index = done.header.index
            assert [each.WhichOneof("result") for each in done.results] == [
                "put", "count", "append", "delete",
            ]  # fmt: skip
            assert done.results[0].put.header.index == index + 1
            assert done.results[1].count.number == 2
            assert done.results[2].append.size == 2
            assert done.results[3].delete.deleted
            again = await node.pipeline.Transact(request)
            assert again.header.duplicate
            assert again.header.index == index
            assert again.results[1].count.number == 2
            assert again.results[1].count.header.index == index + 2
            # The condition does not hold any more: nothing is done.
            request.ClearField("options")
            error = await refusal(node.pipeline.Transact(request))
            assert type(error) is errors.ConditionFailed
            # One of the operations is refused: nothing is done.
            request.ClearField("conditions")
            request.operations.append(
                pipeline.TransactOperation(put=kv.PutRequest(key=b"{t}n", expected_version=1))
            )
            error = await refusal(node.pipeline.Transact(request))
            assert error.reason == "BATCH_REFUSED"
            cause = {"position": "4", "cause": "CONDITION_FAILED"}
            assert error.metadata == cause | {"key": "{t}n"}
            got = await node.kv.Get(kv.GetRequest(key=b"{t}n"))
            assert (got.item.value, got.item.version) == (b"2", index + 2)

    run(test())


LONG_NAME = "n" * 129
BAD: list[tuple[str, Any, str]] = [
    ("Transact", pipeline.TransactRequest(), "LIMIT_INVALID"),
    (
        "Transact",
        pipeline.TransactRequest(operations=transact_operations() * 251),
        "LIMIT_INVALID",
    ),
    (
        "Transact",
        pipeline.TransactRequest(operations=transact_operations(), namespace=LONG_NAME),
        "NAMESPACE_NAME_INVALID",
    ),
    (
        "Transact",
        pipeline.TransactRequest(operations=[pipeline.TransactOperation()]),
        "OPERATION_MISSING",
    ),
    (
        "Transact",
        pipeline.TransactRequest(
            operations=[
                pipeline.TransactOperation(put=kv.PutRequest(key=b"%d" % n)) for n in range(20)
            ]
        ),
        "SEVERAL_SHARDS",
    ),
    (
        "Transact",
        pipeline.TransactRequest(
            operations=transact_operations(), conditions=[kv.Condition(key=b"{t}a")]
        ),
        "CONDITION_INVALID",
    ),
    (
        "Transact",
        pipeline.TransactRequest(
            operations=[
                pipeline.TransactOperation(put=kv.PutRequest(key=b"{t}", value=bytes(3 << 20)))
            ]
            * 3
        ),
        "TOO_LARGE",
    ),
    ("OpenSession", pipeline.OpenSessionRequest(shard=99), "SHARD_UNKNOWN"),
    ("OpenSession", pipeline.OpenSessionRequest(ttl_ms=999), "TTL_INVALID"),
    ("OpenSession", pipeline.OpenSessionRequest(ttl_ms=86_400_001), "TTL_INVALID"),
    ("OpenSession", pipeline.OpenSessionRequest(ttl_ms=2**64 - 1), "TTL_INVALID"),
    ("KeepSession", pipeline.KeepSessionRequest(shard=99), "SHARD_UNKNOWN"),
    ("CloseSession", pipeline.CloseSessionRequest(shard=99), "SHARD_UNKNOWN"),
    ("ExecuteOnce", message(*[put(b"k")] * 10_001), "LIMIT_INVALID"),
    ("ExecuteOnce", message(put(b"k"), session=common_pb2.Session()), "SESSION_INVALID"),
    (
        "ExecuteOnce",
        message(put(b"k"), session=common_pb2.Session(session_id=1)),
        "SEQUENCE_INVALID",
    ),
]


def test_a_message_that_no_group_could_hold_is_several_proposals(tmp_path: Path) -> None:
    """Its operations are independent, so that no client has to know how large a group may be."""

    async def main() -> None:
        async with single(tmp_path, shards=1) as node:
            large = [
                put(b"a", bytes(1 << 20)),
                *[put(b"k%d" % n, bytes(1 << 20)) for n in range(9)],
            ]
            answer = await node.pipeline.ExecuteOnce(message(*large, count(b"n"), put(b"", b"")))
            results = list(answer.results)
            assert [each.error.reason for each in results] == [*[""] * 11, "KEY_SIZE_INVALID"]
            indexes = [each.put.header.index for each in results[:10]]
            assert indexes == list(range(indexes[0], indexes[0] + 10))
            assert results[10].count.header.index == indexes[-1] + 1

    run(main())


def test_bad_input_is_refused_with_a_reason_and_nothing_is_written(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        logs = [driver.shard.log for driver in node.context.drivers.values()]
        before = [log.last_index for log in logs]
        for method, request, reason in BAD:
            error = await refusal(getattr(node.pipeline, method)(request))
            assert error.reason == reason, (method, error)
            assert isinstance(error, errors.InvalidArgument)
        assert [log.last_index for log in logs] == before

    async def main() -> None:
        async with single(tmp_path) as node:
            await test(node)

    run(main())
