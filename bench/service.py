"""The CPU time of one pipelined put in the service layer, without the log: a line of JSON.

Decode the message, make the entries, take the results, make the answer and its bytes.
"""

import itertools
import json
import time
from types import SimpleNamespace
from typing import Any, cast

from node.services.execute import _Message
from onelog.v1 import kv_pb2, pipeline_pb2
from projections.result import APPLIED

PUTS = 1_000
ROUNDS = 200
SHARDS = 4


def main() -> None:
    measure("pipelined put, service layer", is_in_session=False)
    measure("pipelined put in a session, service layer", is_in_session=True)


def measure(name: str, *, is_in_session: bool) -> None:
    topology = SimpleNamespace(partitions=256, shards=1 if is_in_session else SHARDS)
    edge = cast(Any, SimpleNamespace(context=SimpleNamespace(topology=topology)))
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
        message = _Message(edge, parsed)
        message.sort()
        times.append(time.perf_counter_ns())
        for shard, (run,) in message.shards.items():
            message.fill(shard, run, cast(Any, None), [APPLIED] * len(run.drafts), 1_000_000)
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


if __name__ == "__main__":
    main()
