"""Every call of queues, streams and series makes a request that its proto takes, and reads the
answer, without a server: what the database does with them is tested with the database."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory  # type: ignore[import-untyped]

from onelog import (
    AsyncClient,
    GroupConfig,
    MeasurementConfig,
    NewMessage,
    NewRecord,
    QueueConfig,
    Read,
    RecordFilter,
    Retention,
    Rule,
)
from onelog.client.batch import Call, Kind
from onelog.client.channels import METHODS
from onelog.client.connection import Connection
from onelog.client.values import Appended, Enqueued, Message, Record, Settled
from onelog.errors import InvalidArgument, LeaseLost, NotFound
from onelog.v1 import pipeline_pb2, queue_pb2

Answer = Callable[[Any], None]
MESSAGE = Message(5, b"body", 9)
RECORD = Record(7, b"value", partition=1)


class Sent:
    """Stands for the connection: keeps requests, answers with what a test fills in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = ""
        self.request: Any = None
        self.answer: Answer = lambda _answer: None
        sent = self

        async def call(
            _self: Connection, path: str, request: Any, _timeout_s: float, **_: Any
        ) -> Any:
            found = METHODS[path]
            service = descriptor_pool.Default().FindServiceByName(found.path.split("/")[1])
            method = service.methods_by_name[found.path.split("/")[2]]
            assert isinstance(request, message_factory.GetMessageClass(method.input_type))
            answer = found.answer()
            sent.path, sent.request = path, request
            sent.answer(answer)
            return answer

        async def write(
            _self: Connection, _name: bytes, _size: int, _s: float, fill: Any, decode: Any, **_: Any
        ) -> Any:
            operation = pipeline_pb2.Operation()
            fill(operation)
            kind = operation.WhichOneof("operation")
            sent.path, sent.request = str(kind), getattr(operation, str(kind))
            result = pipeline_pb2.OperationResult()
            kept = "settle" if kind in ("ack", "nack", "extend", "release") else kind
            getattr(result, str(kept)).header.index = 1
            sent.answer(getattr(result, str(kept)))
            return decode(result)

        monkeypatch.setattr(Connection, "call_write", call)
        monkeypatch.setattr(Connection, "call_read", call)
        monkeypatch.setattr(Connection, "write", write)


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, {}),
        ({"priority": 0}, {"priority": 0}),
        ({"delay_s": 2}, {"delay_ms": 2000}),
        ({"at_ns": 3}, {"at_ns": 3}),
        ({"ttl_s": 4}, {"ttl_ms": 4000}),
        ({"dedup_id": "d"}, {"dedup_id": b"d"}),
        ({"group": "g"}, {"group": b"g"}),
        ({"tenant": "t"}, {"tenant": b"t"}),
        ({"headers": {"h": "v"}}, {"headers": [queue_pb2.Header(name="h", value=b"v")]}),
    ],
    ids=lambda each: ",".join(each) or "none",
)
def test_a_message_goes_with_any_single_option(
    options: dict[str, Any], sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one and in a list; without an option it is sent a shorter way."""
    requests: list[queue_pb2.EnqueueRequest] = []

    class Lane:
        def call(self, kind: Kind, target: Any, payload: Any, _size: int, _s: float) -> Any:
            call = Call(kind, target, payload, asyncio.get_running_loop().create_future(), 0.0)
            operation = pipeline_pb2.Operation()
            kind.fill(operation, [call])
            requests.append(operation.enqueue)
            result = pipeline_pb2.OperationResult()
            result.enqueue.results.add().message_id = 5
            kind.answer(result, [call])
            return call.future

    async def test() -> None:
        monkeypatch.setattr(Connection, "is_clear", True)
        monkeypatch.setattr(Connection, "write_lane", lambda *_: Lane())
        queue = AsyncClient().namespace("n").queue("q")
        assert await queue.enqueue("body", **options) == Enqueued(5)
        assert await queue.enqueue_many([NewMessage("body", **options)]) == [Enqueued(5)]

    asyncio.run(test())
    message = queue_pb2.NewMessage(body=b"body", **sent)
    expected = queue_pb2.EnqueueRequest(namespace="n", queue="q", messages=[message])
    assert requests == [expected, expected]


def test_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        sent = Sent(monkeypatch)
        queue = AsyncClient().namespace("n").queue("q")
        await queue.create(QueueConfig(max_deliveries=3, dead_letter_queue="d", backoff_s=[1, 2.5]))
        assert list(sent.request.config.backoff_ms) == [1000, 2500]
        assert (sent.request.namespace, sent.request.queue) == ("n", "q")
        await queue.configure(QueueConfig(dedup_max=0))
        assert sent.request.config.HasField("dedup_max")
        sent.answer = lambda answer: setattr(answer.queue, "ready_count", 4)
        assert (await queue.info(read=Read(stale=True))).ready == 4
        sent.answer = lambda _answer: None
        await queue.pause()
        assert sent.request.paused
        await queue.resume()
        sent.answer = lambda answer: answer.messages.add(message_id=1, body=b"b", token=2)
        for wait_s, path in ((0.0, "lease"), (1.5, "Queue/Lease")):
            (message,) = await queue.lease(10, visibility_s=5, wait_s=wait_s)
            assert (message.message_id, message.body, message.token) == (1, b"b", 2)
            assert (sent.path, sent.request.count, sent.request.visibility_ms) == (path, 10, 5000)
        assert (await queue.peek(3, from_id=2))[0].message_id == 1
        sent.answer = lambda answer: answer.results.add(message_id=5)
        assert await queue.ack_many([MESSAGE]) == [Settled(5)]
        assert (sent.request.messages[0].message_id, sent.request.messages[0].token) == (5, 9)
        assert await queue.nack(MESSAGE, delay_s=0, reason="no") == Settled(5)
        assert sent.request.HasField("delay_ms")
        await queue.extend(MESSAGE, 7)
        await queue.release(MESSAGE)
        assert await queue.cancel([1, 2]) == [Settled(5)]
        assert await queue.prioritise([1], 3) == [Settled(5)]
        for reason, error in (("LEASE_LOST", LeaseLost), ("MESSAGE_NOT_FOUND", NotFound)):
            sent.answer = lambda answer, reason=reason: answer.results.add(reason=reason)  # type: ignore[misc]
            with pytest.raises(error):
                await queue.nack(MESSAGE)
        sent.answer = lambda _answer: None
        await queue.purge(below_id=3, leased_too=True)
        await queue.redrive(target="t", failure_contains="x", limit=5, rate_per_s=2)
        await queue.cancel_redrive(4)
        await queue.schedule("* * * * *", NewMessage("tick", priority=1, headers={"a": "b"}))
        assert sent.request.message.headers[0].value == b"b"
        await queue.unschedule(1)
        assert await queue.schedules() == []
        await queue.delete()

    asyncio.run(test())


def test_streams_and_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        sent = Sent(monkeypatch)
        stream = AsyncClient().stream("s")
        await stream.create(partitions=3, retention=Retention(age_s=60, count_max=10))
        assert (sent.request.partition_count, sent.request.retention.age_ms) == (3, 60_000)
        await stream.configure(Retention())
        await stream.info()
        await stream.trim(age_s=5, partition=0, past_groups=True)
        assert sent.request.WhichOneof("bound") == "age_ms"
        with pytest.raises(InvalidArgument):
            await stream.trim()

        def page(answer: Any) -> None:
            answer.header.applied_index = 20
            if sent.request.from_offset <= 7:
                answer.records.add(offset=7, value=b"v", key=b"k")
                answer.next_offset = 8
            else:
                answer.records.add().gap.first_offset = 8
                answer.next_offset = 21

        sent.answer = page
        only = RecordFilter(keys=("k",), tags=("t",), headers={"h": "x"})
        records = [each async for each in stream.read(from_offset=1, only=only)]
        assert records[0] == Record(7, b"v", b"k")
        assert records[1].gap is not None
        sent.answer = lambda _answer: None
        group = stream.group("g")
        await group.create(from_offset=0, config=GroupConfig(shared=True, max_deliveries=2))
        assert sent.request.HasField("from_offset")
        await group.configure(GroupConfig())
        await group.info()
        await group.seek(time_ns=5, partition=1)
        with pytest.raises(InvalidArgument):
            await group.seek()
        sent.answer = lambda answer: setattr(answer, "member_id", 3)
        consumer = await group.join(session_s=9)
        sent.answer = lambda answer: answer.records.add(offset=1, delivery_count=2)
        assert (await consumer.fetch(wait_s=1))[0].delivery_count == 2
        assert (sent.request.member_id, sent.request.group) == (3, "g")
        assert (await anext(consumer)).offset == 1
        assert (await consumer.claim(5))[0].offset == 1
        sent.answer = lambda _answer: None
        await consumer.ack(RECORD)
        assert (sent.request.places[0].partition, sent.request.places[0].offset) == (1, 7)
        await consumer.nack([RECORD], delay_s=1, reason="r")
        await consumer.commit([RECORD, replace(RECORD, offset=9)])
        assert sent.request.places[0].offset == 10
        await consumer.close()
        await group.delete()
        await stream.delete()

    asyncio.run(test())


def test_series(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        sent = Sent(monkeypatch)
        ts = AsyncClient().ts

        def groups(answer: Any) -> None:
            answer.groups.add(tags={"h": "a"}, times_ns=[5]).columns.add(
                field="x"
            ).doubles.values.append(2.5)

        sent.answer = groups
        (found,) = await ts.query(
            "m", "x", 0, 10, where={"h": ("=~", "a|b")}, aggregate="percentile", percentile=99,
            window_s=1.5, group_by=["h"], top=3,
        )  # fmt: skip
        assert (found.tags, found.times_ns.tolist(), found.values.tolist()) == (
            {"h": "a"}, [5], [2.5],
        )  # fmt: skip
        assert (sent.request.window_ns, sent.request.aggregate) == (1_500_000_000, 9)
        with pytest.raises(InvalidArgument):
            await ts.query("m", "x", 0, 1, aggregate="median")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            await ts.query("m", "x", 0, 1, where={"h": ("~", "a")})
        sent.answer = lambda answer: answer.series.add(tags={"h": "a"})
        assert [each async for each in ts.series("m", where={"h": "a"})] == [{"h": "a"}]
        sent.answer = lambda _answer: None
        await ts.delete("m", where={"h": "a"}, first_ns=0)
        assert sent.request.HasField("first_ns")
        await ts.create("m", MeasurementConfig("reject", 60, 5))
        assert sent.request.config.duplicates == 3
        await ts.configure("m", MeasurementConfig())
        await ts.set_rule("m", Rule("r", 60, ["mean", "max"], "m60"))
        assert list(sent.request.rule.aggregates) == [1, 5]
        await ts.delete_rule("m", "r")
        assert (await ts.info("m")).config == MeasurementConfig()
        assert [each async for each in ts.measurements()] == []
        await ts.drop("m")

    asyncio.run(test())


def test_a_batch_over_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        sent = Sent(monkeypatch)

        async def ready(_self: Connection, _timeout_s: float) -> None:
            return None

        monkeypatch.setattr(Connection, "ready", ready)
        client = AsyncClient()
        client._connection.topology.shard_count = client._connection.topology.partition_count = 1

        def results(answer: Any) -> None:
            answer.results.add().enqueue.results.add(message_id=4)
            answer.results.add().settle.results.add(message_id=5)
            answer.results.add().settle.results.add(message_id=5)
            answer.results.add().append_records.results.add(offset=6)
            answer.results.add().ack_records.acked_count = 1
            answer.results.add().write_points.written_count = 2
            answer.results.add().set_json.header.index = 1

        class Lane:
            def transact(self, request: Any, _timeout_s: float, keys: Any) -> asyncio.Future[Any]:
                assert keys is None, "it has an order"
                sent.request, answer = request, pipeline_pb2.TransactResponse()
                results(answer)
                future: asyncio.Future[Any] = asyncio.Future()
                future.set_result(answer)
                return future

        monkeypatch.setattr(Connection, "write_lane", lambda *_: Lane())
        batch = client.transact().when("k", version=3, comparison=">=")
        batch.enqueue("q", NewMessage("m", delay_s=1)).ack("q", MESSAGE)
        batch.nack("q", [MESSAGE], delay_s=2, reason="r")
        batch.append_record("s", NewRecord("v", key="k")).ack_records("s", "g", 3, [RECORD])
        batch.write_points("m", [1, 2], {"x": [1, 2]}).set_json("k", ("a", 0), {"b": 1})
        await batch.commit()
        assert batch.results == [Enqueued(4), None, None, Appended(6), 1, 2, None]
        kinds = [each.WhichOneof("operation") for each in sent.request.operations]
        assert kinds == [
            "enqueue", "ack", "nack", "append_records", "ack_records", "write_points", "set_json",
        ]  # fmt: skip
        assert sent.request.operations[1].ack.strict

    asyncio.run(test())
