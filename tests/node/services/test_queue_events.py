"""Queue events: each once and in order, the same live, later, after a restart; or COMPACTED."""

from pathlib import Path
from typing import Any

import pytest

from onelog.projections.queue import changes
from onelog.projections.queue.changes import Kind
from onelog.v1 import common_pb2, log_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import queue_pb2 as q
from tests.node.services.nodes import Node, eventually, refusal, run, single
from tests.node.services.queues import Jobs
from tests.node.watch.test_watch import Watcher

Summary = tuple[str, str, list[int]]
QUEUES = pipeline.WatchFilter(owner=log_pb2.OWNER_QUEUE)


def summarise(event: pipeline.Event) -> Summary:
    kind = pipeline.QueueEvent.Kind.Name(event.queue.kind)
    return event.queue.queue, kind, list(event.queue.message_ids)


async def collect(watcher: Watcher, count: int) -> list[Summary]:
    await watcher.collect(count)
    return [summarise(event) for event in watcher.events]


async def do_everything(jobs: Jobs) -> list[Summary]:
    """Do to queues what can be done to queues; return the events of it."""
    stub, dead = jobs.stub, jobs.other("dead")
    await dead.create()
    await jobs.create(max_deliveries=2, dead_letter_queue="dead")
    ids = await jobs.send(b"0", b"1", b"2", b"3", b"4", b"5")
    (dup,) = await jobs.send(b"d", dedup_id=b"d")
    await jobs.send(b"d again", dedup_id=b"d")
    first = await jobs.lease(6)
    await stub.Extend(q.ExtendRequest(**jobs.leased(first[:2]), visibility_ms=60_000))
    await jobs.ack(first[:1])
    await jobs.ack(first[:2])  # the first is gone
    await refusal(stub.Ack(q.AckRequest(**jobs.leased(first[:1]))))
    await stub.Release(q.ReleaseRequest(**jobs.leased(first[2:4])))
    await jobs.nack(first[4:6], delay_ms=0)
    second = await jobs.lease(1)
    await stub.Prioritise(q.PrioritiseRequest(queue="jobs", message_ids=[ids[5]], priority=0))
    third = await jobs.lease(1)
    await jobs.nack([*second, *third], reason="dead", delay_ms=0)
    await stub.Redrive(q.RedriveRequest(queue="dead"))
    await stub.Cancel(q.CancelRequest(queue="jobs", message_ids=[ids[3], ids[0]]))
    await stub.PauseQueue(q.PauseQueueRequest(queue="jobs", paused=True))
    await stub.PauseQueue(q.PauseQueueRequest(queue="jobs"))
    await stub.Purge(q.PurgeRequest(queue="jobs"))
    operations = [
        pipeline.TransactOperation(
            enqueue=q.EnqueueRequest(queue="jobs", messages=[q.NewMessage(body=b"batch")])
        )
    ]
    batch = pipeline.TransactRequest(operations=operations)
    index = (await jobs.node.pipeline.Transact(batch)).header.index
    batch.conditions.add(key=b"none", exists=True)
    await refusal(jobs.node.pipeline.Transact(batch))
    (late,) = await jobs.send(b"late", delay_ms=1)
    await eventually(lambda: _is_ready(jobs, 2))
    (short,) = await jobs.send(b"short", ttl_ms=1)
    await eventually(lambda: _is_ready(jobs, 2))
    await jobs.lease(2, visibility_ms=1)
    await eventually(lambda: _is_ready(jobs, 2))
    await stub.ConfigureQueue(q.ConfigureQueueRequest(queue="jobs"))
    await stub.DeleteQueue(q.DeleteQueueRequest(queue="jobs"))
    (moved, again) = ids[4], ids[5]
    assert [each.message_id for each in third] == [again]
    assert second[0].message_id == ids[2]
    return [
        ("dead", "CREATED", []), ("jobs", "CREATED", []),
        *(("jobs", "ENQUEUED", [each]) for each in (*ids, dup)),
        ("jobs", "LEASED", ids), ("jobs", "EXTENDED", ids[:2]), ("jobs", "ACKED", ids[:1]),
        ("jobs", "ACKED", ids[1:2]), ("jobs", "RELEASED", ids[2:4]),
        ("jobs", "FAILED", ids[4:6]), ("jobs", "LEASED", [ids[2]]),
        ("jobs", "PRIORITISED", [again]), ("jobs", "LEASED", [again]),
        ("jobs", "FAILED", [ids[2]]), ("jobs", "DEAD", [again]),
        ("dead", "REDRIVEN", [again]), ("jobs", "REDRIVEN", [again]),
        ("jobs", "CANCELLED", [ids[3]]), ("jobs", "PAUSED", []), ("jobs", "RESUMED", []),
        ("jobs", "PURGED", [ids[2], moved, again, dup]), ("jobs", "ENQUEUED", [index + 1]),
        ("jobs", "ENQUEUED", [late]), ("jobs", "DUE", [late]),
        ("jobs", "ENQUEUED", [short]), ("jobs", "EXPIRED", [short]),
        ("jobs", "LEASED", [index + 1, late]), ("jobs", "LEASE_EXPIRED", [index + 1, late]),
        ("jobs", "CONFIGURED", []), ("jobs", "DELETED", []),
    ]  # fmt: skip


async def _is_ready(jobs: Jobs, count: int) -> None:
    info = await jobs.info()
    assert (info.ready_count, info.delayed_count, info.leased_count) == (count, 0, 0)


def test_what_happens_to_queues_is_told_live_later_and_after_a_restart(tmp_path: Path) -> None:
    start = common_pb2.Cursor()
    expected: list[Summary] = []

    async def first(node: Node) -> None:
        watcher = await Watcher(node).begin()
        start.CopyFrom(watcher.cursor)
        expected.extend(await do_everything(Jobs(node)))
        assert await collect(watcher, len(expected)) == expected
        assert await collect(Watcher(node, cursor=start), len(expected)) == expected
        only = Watcher(node, cursor=start, filters=[pipeline.WatchFilter(name=b"dead")])
        assert await collect(only, 2) == [each for each in expected if each[0] == "dead"]

    async def second(node: Node) -> None:
        watcher = Watcher(node, cursor=start, filters=[QUEUES])
        assert await collect(watcher, len(expected)) == expected

    for part in (first, second):
        _on_a_node(tmp_path, part)


def _on_a_node(directory: Path, test: Any) -> None:
    async def main() -> None:
        async with single(directory, shards=1) as node:
            await test(node)

    run(main())


def test_what_nobody_can_tell_any_more_is_compacted_and_the_rest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes.QueueChanges.__init__, "__defaults__", (0,))

    async def test(node: Node) -> None:
        jobs = Jobs(node)
        start = (await Watcher(node).begin()).cursor
        await jobs.create()
        ids = await jobs.send(b"0", b"1", b"2")
        tells = Watcher(node, cursor=start, filters=[QUEUES])
        assert len(await collect(tells, 4)) == 4
        messages = await jobs.lease(3)
        behind = Watcher(node, cursor=start, filters=[QUEUES])
        error = await refusal(behind.collect(9))
        assert error.reason == "COMPACTED"
        assert int(error.metadata["first_index"]) == jobs.last_index + 1
        # From there on, and for those who watch keys, all is well.
        later = common_pb2.Cursor()
        later.positions.add(shard=0, index=jobs.last_index)
        await jobs.ack(messages[:1])
        after = Watcher(node, cursor=later, filters=[QUEUES])
        assert await collect(after, 1) == [("jobs", "ACKED", ids[:1])]
        await jobs.lease(1, visibility_ms=1)
        await node.kv.Put(kv.PutRequest(key=b"k", value=b"v"))
        keys = [pipeline.WatchFilter(owner=log_pb2.OWNER_KV)]
        told_keys = await Watcher(node, cursor=start, filters=keys).collect(1)
        assert told_keys[0][2] == b"k"

    _on_a_node(tmp_path, test)


def test_kinds_have_the_numbers_of_the_api() -> None:
    assert {kind.name: int(kind) for kind in Kind} == {
        name: number for name, number in pipeline.QueueEvent.Kind.items() if number
    }
