"""What an answer says that it cost: how much was looked at, and from where the oldest came."""

from pathlib import Path
from typing import Any

from onelog.v1 import common_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import queue_pb2 as q
from onelog.v1 import stream_pb2 as pb
from onelog.v1 import timeseries_pb2 as ts
from tests.node.services.nodes import Node, run, single
from tests.node.services.queues import Jobs
from tests.node.services.streams import S, append
from tests.node.services.test_stream_groups import Member, create, join
from tests.node.services.test_timeseries_service import FOREVER, SECOND, points, until_blocks, write

HOT, WARM = common_pb2.TIER_HOT, common_pb2.TIER_WARM
READ = common_pb2.ReadOptions(with_cost=True)
WRITE = common_pb2.WriteOptions(with_cost=True)


async def costs(node: Node, member: Member) -> dict[str, tuple[int, int]]:
    """Read something of every model; return how much each read looked at, and its tier."""
    tagged = pb.RecordFilter(tags=["b"])
    answers: dict[str, Any] = {
        "key": await node.kv.Get(kv.GetRequest(key=b"k", options=READ)),
        "records": await node.stream.ReadRecords(
            pb.ReadRecordsRequest(stream=S, filter=tagged, options=READ)
        ),
        "group": await node.stream.FetchRecords(member.asks(options=WRITE, limit=2)),
        "peek": await node.queue.Peek(q.PeekRequest(queue="jobs", options=READ)),
        "lease": await node.queue.Lease(q.LeaseRequest(queue="jobs", count=1, options=WRITE)),
        "series": await node.ts.Query(
            ts.QueryRequest(measurement="m", field="v", options=READ, **FOREVER)
        ),
    }
    found = {}
    for name, answer in answers.items():
        cost = answer.header.cost
        found[name] = int(cost.scanned), int(cost.tier)
    return found


def test_reads_of_every_model_say_how_much_they_read_and_from_where(tmp_path: Path) -> None:
    """A restart empties the memory for new entries: what was written before is in files then."""
    count = 3_000

    async def test() -> None:
        async with single(tmp_path) as node:
            await create(node)
            member = await join(node)
            await node.kv.Put(kv.PutRequest(key=b"k", value=b"v"))
            await append(node, b"1", b"2", b"3", tag="a")
            await append(node, b"4", tag="b")
            await Jobs(node).create()
            await Jobs(node).send(b"1", b"2", b"3")
            for start in range(0, count, 1_000):
                times = [at * SECOND for at in range(start, start + 1_000)]
                await write(node, "m", points(times, {"v": [float(at) for at in times]}))
            assert await until_blocks(node, "m")
            assert await costs(node, member) == {
                "key": (0, HOT),
                "records": (4, HOT),
                "group": (2, HOT),
                "peek": (3, HOT),
                "lease": (1, HOT),
                "series": (count, HOT),
            }
        async with single(tmp_path) as node:
            expected = {
                "key": (0, HOT),
                "records": (4, WARM),
                "group": (2, WARM),
                "peek": (3, WARM),
                "lease": (1, WARM),
                "series": (count, WARM),
            }
            assert await costs(node, member) == expected
            # Blocks that were opened stay in memory.
            answer = await node.ts.Query(
                ts.QueryRequest(measurement="m", field="v", options=READ, **FOREVER)
            )
            assert answer.header.cost.tier == HOT
            plain = await node.stream.ReadRecords(pb.ReadRecordsRequest(stream=S))
            assert not plain.header.HasField("cost")

    run(test())


def each(read: dict[str, Any], write: dict[str, Any]) -> list[pipeline.Operation]:
    """Return operations of all sorts, each with its options; one of them is refused."""
    message, record = q.NewMessage(body=b"2"), pb.NewRecord(value=b"r")
    operation = pipeline.Operation
    return [
        operation(put=kv.PutRequest(key=b"k", value=b"v", **write)),
        operation(get=kv.GetRequest(key=b"k", **read)),
        operation(put=kv.PutRequest(key=b"", value=b"v", **write)),
        operation(enqueue=q.EnqueueRequest(queue="jobs", messages=[message], **write)),
        operation(lease=q.LeaseRequest(queue="jobs", count=1, **write)),
        operation(append_records=pb.AppendRecordsRequest(stream=S, records=[record], **write)),
    ]


def test_operations_of_a_pipeline_say_what_they_cost_if_they_are_asked(tmp_path: Path) -> None:
    """Each for itself, or all of a message."""

    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await Jobs(node).create()
            await Jobs(node).send(b"1", b"1", b"1")
            await node.stream.CreateStream(pb.CreateStreamRequest(stream=S))

            async def asked(**message: Any) -> list[str]:
                answer = await node.pipeline.ExecuteOnce(pipeline.ExecuteRequest(**message))
                told = []
                for result in answer.results:
                    kind = result.WhichOneof("result")
                    header = getattr(getattr(result, kind), "header", None)
                    if header is not None and header.HasField("cost"):
                        assert header.cost.tier == HOT
                        assert bool(header.cost.raft_ns) == (kind != "get")
                        assert header.cost.scanned == (1 if kind == "lease" else 0)
                        told.append(kind)
                return told

            all_of_them = ["put", "get", "enqueue", "lease", "append_records"]
            plain = each({}, {})
            assert await asked(operations=plain) == []
            assert await asked(operations=plain, with_cost=True) == all_of_them
            costly = each({"options": READ}, {"options": WRITE})
            assert await asked(operations=costly) == all_of_them
            assert await asked(operations=[*costly[:2], *plain[2:]]) == all_of_them[:2]
            puts = [plain[0]] * 3
            assert await asked(operations=puts, with_cost=True) == ["put"] * 3

    run(test())
