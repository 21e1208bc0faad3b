"""The CPU time of one put in the service layer, without the log, in lines of JSON.

Pipelined, or in a batch: decode the message, make the entries, read the results, build the answer
and its bytes.
"""

import asyncio
import itertools
import json
import time
from types import MethodType, SimpleNamespace
from typing import Any, cast

from onelog.node.edge.operation import run_write
from onelog.node.edge.shards import Edge, Written
from onelog.node.services.executor import Message
from onelog.node.services.transact import TRANSACT
from onelog.projections.result import APPLIED, Applied
from onelog.v1 import kv_pb2, pipeline_pb2

PUTS = 1_000
ROUNDS = 200
SHARDS = 4
BATCH = 128


def main() -> None:
    measure("pipelined put, service layer", is_in_session=False)
    measure("pipelined put in a session, service layer", is_in_session=True)
    asyncio.run(measure_batch())


def measure(name: str, *, is_in_session: bool) -> None:
    edge: Any = SimpleNamespace(check_size=lambda *_: 0, request_bytes_max=1 << 30)
    edge._topology = SimpleNamespace(partitions=256, shards=1 if is_in_session else SHARDS)
    edge.find_shards = MethodType(Edge.find_shards, edge)
    budget = cast(Any, SimpleNamespace(size_max=1 << 30))
    request = pipeline_pb2.ExecuteRequest(
        operations=[
            pipeline_pb2.Operation(
                put=kv_pb2.PutRequest(key=b"key-%012d" % number, value=bytes(100))
            )
            for number in range(PUTS)
        ]
    )
    if is_in_session:
        request.session.session_id = request.session.sequence = 1
    data = request.SerializeToString()
    spent = {"decode": 0, "draft": 0, "answer": 0, "encode": 0}
    best_ns = float("inf")
    for _ in range(ROUNDS):
        times = [time.perf_counter_ns()]
        parsed = pipeline_pb2.ExecuteRequest.FromString(data)
        times.append(time.perf_counter_ns())
        message = Message(edge, parsed, budget, 0)
        message.sort()
        for (step,) in message.shards.values():
            message.make_drafts(step, None, is_certain=True)
        times.append(time.perf_counter_ns())
        for shard, (step,) in message.shards.items():
            message.fill(shard, step, cast(Any, None), [APPLIED] * len(step.drafts), 1_000_000)
        times.append(time.perf_counter_ns())
        message.answer.SerializeToString()
        times.append(time.perf_counter_ns())
        if times[-1] - times[0] < best_ns:
            best_ns = times[-1] - times[0]
            parts = [after - before for before, after in itertools.pairwise(times)]
            spent = dict(zip(spent, parts, strict=True))
    print(
        json.dumps(
            {
                "name": name,
                "us_per_put": round(best_ns / 1000 / PUTS, 2),
                **{f"{part}_us": round(ns / 1000 / PUTS, 2) for part, ns in spent.items()},
            }
        )
    )


async def measure_batch() -> None:
    """Measure a batch of puts in the service layer, before and after the log."""
    results = [Applied(1, None, (APPLIED,)), APPLIED]  # one entry for all puts

    async def write(shard: int, *_: Any) -> Written:
        return Written(shard, 1_000_000, results)

    async def bind(_shard: int, _call: Any, make: Any) -> Any:
        return make(projections, True)

    projections = cast(Any, object())  # unused
    replica = SimpleNamespace(shard=SimpleNamespace(projections=projections))
    edge = cast(
        Any,
        SimpleNamespace(
            find_shards=lambda *_, **__: [0], bind=bind, write=write, replica=lambda _: replica
        ),
    )
    request = pipeline_pb2.TransactRequest()
    request.options.session.session_id = request.options.session.sequence = 1
    for number in range(BATCH):
        request.operations.add(
            put=kv_pb2.PutRequest(key=b"{tag}-key-%06d" % number, value=bytes(100))
        )
    data = request.SerializeToString()
    best_ns = float("inf")
    for _ in range(ROUNDS):
        started_ns = time.perf_counter_ns()
        parsed = pipeline_pb2.TransactRequest.FromString(data)
        answer = await run_write(edge, TRANSACT, parsed, cast(Any, None))
        answer.SerializeToString()
        best_ns = min(best_ns, time.perf_counter_ns() - started_ns)
    spent_us = round(best_ns / 1000 / BATCH, 2)
    print(json.dumps({"name": f"put in a batch of {BATCH}, service layer", "us_per_put": spent_us}))


if __name__ == "__main__":
    main()
