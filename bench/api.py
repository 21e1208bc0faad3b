"""The API from outside: real nodes, the Python client in this process, everything synced.

``python bench/api.py [--nodes 1 3] [--only NAME] [--seconds S] [--quick]``: one line of JSON for
each case: operations per second, p50 and p99 of a call, microseconds of CPU of the client and of
each node per operation, and the goal beside it. On a machine that does other things at the same
time the CPU times say more than the rates.

The echo is a bare gRPC server in another process that gives the bytes of the same batches back:
what gRPC for Python alone can do here, in the same run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import grpc.aio  # type: ignore[import-untyped]
import uvloop

from bench.api_cases import BATCH, CASES, VALUE, Bench, Case
from onelog import AsyncClient
from onelog.cli.bench_load import Run
from onelog.cli.bench_workloads import Step
from onelog.errors import Unimplemented
from onelog.v1 import pipeline_pb2
from tests.system.nodes import ServeProcess, nodes
from tests.system.ports import free_addresses

SECONDS = 2.0
AMOUNT = 20_000
QUICK_S, QUICK_AMOUNT = 0.02, 600
ECHO_METHOD = "/echo.Echo/Echo"
# Callers of the batches that the echo is compared with, and so many of its messages in flight.
ECHO_CALLERS = (16, 64)
MESSAGE_SIZE_MAX = 16 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_SIZE_MAX),
    ("grpc.max_send_message_length", MESSAGE_SIZE_MAX),
)


@dataclass
class Cluster:
    """Processes whose CPU time is looked at."""

    name: str
    pids: dict[str, int]
    endpoints: list[str]
    size: int

    def cpu_s(self) -> dict[str, float]:
        """Return what each process has used so far."""
        ticks = os.sysconf("SC_CLK_TCK")
        spent = {}
        for name, pid in self.pids.items():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            spent[name] = (int(fields[11]) + int(fields[12])) / ticks
        return spent


@contextmanager
def serving(count: int, shards: int) -> Iterator[Cluster]:
    """Start so many nodes, and end them."""
    names = [f"n{number + 1}" for number in range(count)]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onelog-bench-")))
        # Leaderships go where they belong before something is measured, not in the first cases.
        flags = {"shards": str(shards), "cluster_balance_period_s": "0.1"}
        made: dict[str, ServeProcess] = stack.enter_context(
            nodes(directory, *names, log_ring_bytes="64MiB", **flags)
        )
        for each in made.values():
            each.start()
        for each in made.values():
            each.until_ready()
        pids = {name: each.process.pid for name, each in made.items() if each.process is not None}
        endpoints = [each.flags["listen"] for each in made.values()]
        yield Cluster(f"nodes_{count}", pids, endpoints, count)


async def measure(
    cluster: Cluster, name: str, callers: int, step: Step, seconds: float, warm_up_s: float = 0.3
) -> Any:
    """Return a row of the result."""
    await Run().repeat(step, callers, seconds=min(warm_up_s, seconds))
    before_s, client_s = cluster.cpu_s(), time.process_time()
    run = Run()
    await run.repeat(step, callers, seconds=seconds)
    client_s = time.process_time() - client_s
    after_s = cluster.cpu_s()
    assert not run.errors, run.errors
    done = max(run.done, 1)

    def per_operation(spent_s: float) -> float:
        return round(spent_s / done * 1e6, 1)

    return {
        "cluster": cluster.name,
        "case": name,
        "callers": callers,
        "per_s": round(run.per_s),
        "p50_ms": round(run.durations.percentile_s(0.5) * 1e3, 2),
        "p99_ms": round(run.durations.percentile_s(0.99) * 1e3, 2),
        "client_us": per_operation(client_s),
        "nodes_us": {each: per_operation(after_s[each] - before_s[each]) for each in after_s},
        "all_us": per_operation(client_s + sum(after_s.values()) - sum(before_s.values())),
    }


def report(row: dict[str, Any], case: Case | None = None, size: int = 0) -> None:
    """Print a row with its goal."""
    if case is not None and (rate := case.goal_per_s.get(size)):
        row |= {"goal_per_s": rate, "reached": row["per_s"] >= rate}
    if case is not None and (limit_ms := case.goal_p50_ms.get(size)):
        row |= {"goal_p50_ms": limit_ms, "reached": row["p50_ms"] <= limit_ms}
    print(json.dumps(row), flush=True)


async def bench_cluster(
    cluster: Cluster, cases: list[Case], seconds: float, amount: int
) -> dict[str, int]:
    """Run the cases; return the rates by name and callers."""
    reached = {}
    async with AsyncClient(cluster.endpoints) as client:
        bench = Bench(client, VALUE, amount=amount)
        try:
            for case in cases:
                bench.batch, bench.amount = case.batch or amount, amount * case.stock
                try:
                    step = await case.begin(bench)
                except Unimplemented:
                    print(json.dumps({"case": case.name, "skipped": "the server has it not"}))
                    continue
                row = await measure(cluster, case.name, case.callers, step, seconds, case.warm_up_s)
                report(row, case, cluster.size)
                reached[f"{case.name} {case.callers}"] = row["per_s"]
        finally:
            await bench.close()
    return reached


# The echo


async def echo_main(address: str) -> None:
    """Give every message of a stream back, as bytes."""

    async def echo(_requests: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    server = grpc.aio.server(options=_OPTIONS)
    handler = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("echo.Echo", {"Echo": handler}),)
    )
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


@contextmanager
def echoing() -> Iterator[Cluster]:
    """Start the echo, and end it."""
    (address,) = free_addresses(1)
    with subprocess.Popen([sys.executable, __file__, "--role", "echo", address]) as process:
        try:
            yield Cluster("echo", {"echo": process.pid}, [address], 1)
        finally:
            process.terminate()


async def bench_echo(cluster: Cluster, count: int, callers: int, seconds: float) -> int:
    """Send batches of so many puts and read them back; return operations per second."""
    request = pipeline_pb2.ExecuteRequest(request_id=1)
    for number in range(count):
        operation = request.operations.add()
        operation.put.key = b"key-%012d" % number
        operation.put.value = VALUE
    data = request.SerializeToString()
    async with grpc.aio.insecure_channel(cluster.endpoints[0], options=_OPTIONS) as channel:
        await channel.channel_ready()
        calls = [channel.stream_stream(ECHO_METHOD)() for _ in range(callers)]

        async def step(caller: int) -> int:
            await calls[caller].write(data)
            await calls[caller].read()
            return count

        row = await measure(cluster, f"echo of {count}", callers, step, seconds)
        for call in calls:
            call.cancel()
    report(row)
    return int(row["per_s"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--only", action="append", help="cases whose names begin so")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each case")
    parser.add_argument("--quick", action="store_true", help="see only that everything works")
    parser.add_argument("--role", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role is not None:
        uvloop.run(echo_main(arguments.role[1]))
        return 0
    seconds = QUICK_S if arguments.quick else arguments.seconds
    amount = QUICK_AMOUNT if arguments.quick else AMOUNT
    only = tuple(arguments.only or ("",))
    cases = [case for case in CASES if case.name.startswith(only)]
    reached: dict[str, int] = {}
    with echoing() as echo:
        echoed = {
            callers: uvloop.run(bench_echo(echo, BATCH, callers, seconds))
            for callers in ECHO_CALLERS
        }
    for count in arguments.nodes:
        with serving(count, arguments.shards) as cluster:
            rates = uvloop.run(bench_cluster(cluster, cases, seconds, amount))
        if count == 1:
            reached = rates
    for callers, per_s in echoed.items():
        batches = reached.get(f"put_many of {BATCH} {callers}")
        if batches is not None:
            row = {"case": "part of the echo", "callers": callers, "goal": 0.2}
            print(json.dumps(row | {"part": round(batches / per_s, 3)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
