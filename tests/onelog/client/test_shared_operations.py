"""Calls made together are one operation, with answers of their own: acks, enqueues, points, …"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onelog import AsyncClient, MeasurementConfig, NewMessage, NewRecord, costs, traced
from onelog.client.batch import Batch
from onelog.client.pipeline_stream import Pipe
from onelog.client.values import Appended, Message
from onelog.errors import (
    InvalidArgument,
    LeaseLost,
    NotFound,
    Unavailable,
)
from onelog.v1 import pipeline_pb2
from tests.node.services.otlp import PARENT
from tests.onelog.client.test_kv_client import with_client


def sent_operations(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a client sends from now on, by the kinds of its operations."""
    kinds: list[str] = []
    send = Pipe.send

    def note(self: Pipe, batch: Batch, owner: Any) -> None:
        kinds.extend(str(each.WhichOneof("operation")) for each in batch.request.operations)
        send(self, batch, owner)

    monkeypatch.setattr(Pipe, "send", note)
    return kinds


def test_acks_share_an_operation_and_each_has_its_own_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: AsyncClient) -> None:
        jobs, other = client.queue("jobs{t}"), client.queue("other{t}")
        for queue in (jobs, other):
            await queue.create()
            await queue.enqueue_many([b"1", b"2", b"3", b"4"])
        first, second, third, fourth = await jobs.lease(4)
        elsewhere = (await other.lease(1))[0]
        kinds = sent_operations(client, monkeypatch)
        results = await asyncio.gather(
            jobs.ack(first),
            jobs.ack(replace(second, token=second.token + 1)),
            jobs.ack(replace(third, message_id=10**9)),
            other.ack(elsewhere),
            jobs.ack(third),
            jobs.enqueue(b"5"),
            jobs.ack(fourth),
            return_exceptions=True,
        )
        assert kinds == ["ack", "ack", "ack", "enqueue", "ack"]
        assert isinstance(results[1], LeaseLost)
        assert isinstance(results[2], NotFound)
        assert [results[at] for at in (0, 3, 4, 6)] == [None] * 4
        info = await jobs.info()
        assert (info.leased, info.ready) == (1, 1)
        with pytest.raises(LeaseLost):
            await jobs.ack(replace(fourth, message_id=second.message_id, token=9))

    with_client(tmp_path, test)


def test_an_ack_that_cannot_be_sent_does_not_concern_the_others(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        jobs = client.queue("jobs")
        await jobs.create()
        await jobs.enqueue_many([b"1", b"2", b"3"])
        first, second, third = await jobs.lease(3)
        results = await asyncio.gather(
            jobs.ack(first),
            jobs.ack(replace(second, token=-1)),
            jobs.ack(third),
            return_exceptions=True,
        )
        assert isinstance(results[1], InvalidArgument)
        assert (results[0], results[2]) == (None, None)
        assert (await jobs.info()).leased == 1

    with_client(tmp_path, test)


def test_acks_of_a_queue_that_is_not_there_are_all_refused(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        messages = [Message(number, b"", 1) for number in (1, 2)]
        jobs = client.queue("nobody")
        results = await asyncio.gather(*map(jobs.ack, messages), return_exceptions=True)
        assert [getattr(each, "reason", "") for each in results] == ["QUEUE_UNKNOWN"] * 2

    with_client(tmp_path, test)


def lose_answers(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Lose a third of the answers to operations of a kind."""
    answer, count = Pipe._answer, 0

    def lose(self: Pipe, response: pipeline_pb2.ExecuteResponse) -> None:
        nonlocal count
        count += 1
        if count % 3 == 1 and response.results[0].HasField(kind):
            batch, owner = self._batches.pop(response.request_id)
            owner.failed(batch, Unavailable("lost"))
        else:
            answer(self, response)

    monkeypatch.setattr(Pipe, "_answer", lose)


def test_appends_share_an_operation_and_stand_in_the_order_of_the_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: AsyncClient) -> None:
        events, other = client.stream("events{t}"), client.stream("other{t}")
        for stream in (events, other):
            await stream.create()
        kinds = sent_operations(client, monkeypatch)
        appended = await asyncio.gather(
            events.append("a"),
            events.append(b"b"),
            events.append("c", key="k", headers={"h": "1"}),
            events.append("d"),
            other.append("elsewhere"),
            events.append("e"),
            client.kv.put("x{t}", "1"),
            events.append("f"),
            events.append("g"),
        )
        assert kinds == ["append_records"] * 5 + ["put", "append_records"]
        records = [record async for record in events.read()]
        assert [record.value for record in records] == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
        told = [each.offset for each in appended if isinstance(each, Appended)]
        assert sorted(told) == told
        assert [record.offset for record in records] == [*told[:4], *told[5:]]

    with_client(tmp_path, test)


def test_appends_take_a_sequence_each_so_none_is_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are lost now and then, and what was sent is sent again."""

    async def test(client: AsyncClient) -> None:
        events = client.stream("events")
        await events.create(partitions=4)
        lose_answers(monkeypatch, "append_records")
        told = []
        for turn in range(9):
            calls = [events.append(f"{turn}-{number}") for number in range(20)]
            told += await asyncio.gather(*calls, client.stream("events").append("one more"))
        assert len({each.offset for each in told}) == len(told)
        found = {}
        for partition in range(4):
            async for record in events.read(partition=partition):
                found[record.offset] = (record.partition, record.value)
        assert {each.offset: each.partition for each in told} == {
            offset: partition for offset, (partition, _) in found.items()
        }
        values = [value for _, (_, value) in sorted(found.items()) if b"-" in value]
        assert values == [b"%d-%d" % (turn, n) for turn in range(9) for n in range(20)]

    with_client(tmp_path, test)


def test_appends_that_are_refused_or_cannot_be_sent_do_not_concern_the_others(
    tmp_path: Path,
) -> None:
    async def test(client: AsyncClient) -> None:
        nowhere = client.stream("nobody")
        results = await asyncio.gather(
            nowhere.append("a"), nowhere.append("b"), return_exceptions=True
        )
        assert [getattr(each, "reason", "") for each in results] == ["STREAM_UNKNOWN"] * 2
        events = client.stream("events")
        await events.create()
        odd: Any = 5
        large = bytes(8 << 20)
        _, refused, too_large, _ = await asyncio.gather(
            events.append("a"),
            events.append(odd),
            events.append(large),
            events.append("b"),
            return_exceptions=True,
        )
        assert isinstance(refused, InvalidArgument)
        assert getattr(too_large, "reason", "") == "VALUE_TOO_LARGE"
        assert [each.value async for each in events.read()] == [b"a", b"b"]

    with_client(tmp_path, test)


def test_enqueues_share_an_operation_and_each_has_its_own_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: AsyncClient) -> None:
        jobs, other = client.queue("jobs{t}"), client.queue("other{t}")
        for queue in (jobs, other):
            await queue.create()
        kinds = sent_operations(client, monkeypatch)
        told = await asyncio.gather(
            jobs.enqueue("a"),
            jobs.enqueue(b"b"),
            jobs.enqueue("c", priority=0),
            jobs.enqueue("d"),
            other.enqueue("elsewhere"),
            jobs.enqueue("e"),
            jobs.enqueue(bytes(100_000)),
            jobs.enqueue("f"),
        )
        assert kinds == ["enqueue"] * 7
        ids = [each.message_id for each in told]
        assert sorted(set(ids)) == ids
        messages = {each.message_id: each.body for each in await jobs.lease(20)}
        bodies = [b"a", b"b", b"c", b"d", b"e", bytes(100_000), b"f"]
        assert messages == dict(zip([*ids[:4], *ids[5:]], bodies, strict=True))
        nowhere = client.queue("nobody")
        refused = await asyncio.gather(
            nowhere.enqueue("a"), nowhere.enqueue("b"), return_exceptions=True
        )
        assert [getattr(each, "reason", "") for each in refused] == ["QUEUE_UNKNOWN"] * 2

    with_client(tmp_path, test)


def test_enqueues_take_a_sequence_each_so_none_is_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: AsyncClient) -> None:
        jobs = client.queue("jobs")
        await jobs.create()
        lose_answers(monkeypatch, "enqueue")
        told = []
        for turn in range(9):
            calls = [jobs.enqueue(f"{turn}-{number}") for number in range(20)]
            told += await asyncio.gather(*calls)
        leased = await jobs.lease(1000)
        assert [each.message_id for each in leased] == [each.message_id for each in told]
        assert [each.body for each in leased] == [
            b"%d-%d" % (turn, number) for turn in range(9) for number in range(20)
        ]

    with_client(tmp_path, test)


def test_calls_that_are_traced_or_whose_cost_is_asked_for_share_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: AsyncClient) -> None:
        kv = client.kv
        await kv.put("warm{t}", b"")
        kinds = sent_operations(client, monkeypatch)
        with traced(PARENT):
            await asyncio.gather(kv.put("0{t}", b""), kv.put("1{t}", b""))
        with costs() as spent:
            await asyncio.gather(kv.put("2{t}", b""), kv.put("3{t}", b""))
        assert kinds == ["put"] * 4
        assert len(spent) == 2
        await asyncio.gather(kv.put("4{t}", b""), kv.put("5{t}", b""))
        assert kinds[4:] == ["batch_put"]

    with_client(tmp_path, test)


def test_what_a_caller_changes_afterwards_is_not_sent(tmp_path: Path) -> None:
    """Operations are filled when their message leaves, but callers keep their values."""

    async def test(client: AsyncClient) -> None:
        jobs, events = client.queue("jobs"), client.stream("events")
        await asyncio.gather(jobs.create(), events.create())
        headers: dict[str, str] = {}

        def numbered(kind: Any) -> Iterator[Any]:
            for number in range(3):
                headers["n"] = str(number)
                yield kind(b"", headers=headers)

        await jobs.enqueue_many(numbered(NewMessage))
        await events.append_many(numbered(NewRecord))
        leased = await jobs.lease(3)
        assert [each.headers["n"] for each in leased] == [b"0", b"1", b"2"]
        assert [each.headers["n"] async for each in events.read()] == [b"0", b"1", b"2"]
        document: dict[str, int] = {"n": 0}
        setting = asyncio.create_task(client.kv.json("d").set((), document))
        await asyncio.sleep(0)
        document["n"] = 1
        await setting
        assert await client.kv.json("d").get(()) == {"n": 0}

    with_client(tmp_path, test)


def test_points_share_an_operation_and_a_bad_one_concerns_no_other_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written all or none, so those that were refused with it are resent by themselves."""

    async def test(client: AsyncClient) -> None:
        await client.ts.create("cpu", MeasurementConfig(series_max=3))
        kinds = sent_operations(client, monkeypatch)

        async def write(host: str, *times_ns: int) -> int:
            values = [float(each) for each in times_ns]
            return await client.ts.write("cpu", times_ns, {"busy": values}, tags={"host": host})

        counts = await asyncio.gather(write("a", 1), write("b", 1, 2), write("a", 3, 4, 5))
        assert list(counts) == [1, 2, 3]
        assert kinds == ["write_points"]
        kinds.clear()
        results = await asyncio.gather(
            write("a", 6), write("c", 6), write("d", 6), write("b", 6, 7), return_exceptions=True
        )
        assert [results[at] for at in (0, 1, 3)] == [1, 1, 2]
        assert getattr(results[2], "reason", "") == "SERIES_FULL"
        assert kinds == ["write_points"] * 5, "once together, then each by itself"
        found = await client.ts.query("cpu", "busy", 0, 100)
        points = {each.tags["host"]: each.times_ns.tolist() for each in found}
        assert points == {"a": [1, 3, 4, 5, 6], "b": [1, 2, 6, 7], "c": [6]}

    with_client(tmp_path, test)


def test_points_of_two_measurements_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: AsyncClient) -> None:
        kinds = sent_operations(client, monkeypatch)
        names = ["cpu{t}", "cpu{t}", "ram{t}", "cpu{t}"]
        counts = await asyncio.gather(
            *(client.ts.write(name, 1, {"v": float(at)}) for at, name in enumerate(names))
        )
        assert counts == [1] * 4
        assert kinds == ["write_points"] * 4
        (found,) = await client.ts.query("cpu{t}", "v", 0, 10)
        assert found.fields["v"].tolist() == [3.0], "the last write counts"

    with_client(tmp_path, test)
