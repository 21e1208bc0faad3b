"""The API from outside: real nodes, the Python client in this process, everything synced.

``python bench/api.py [--nodes 1 3] [--only NAME] [--seconds S] [--quick]``: one line of JSON for
each case: operations per second, p50 and p99 of a call, microseconds of CPU of the client and of
each node per operation, and the goal. On a busy machine the CPU times say more than the rates.

bench/peers.py measures other systems and a bare gRPC server in turns with ours.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import uvloop

from bench.api_cases import CASES, VALUE, Bench, Case
from onelog import AsyncClient
from onelog.cli.bench.workloads import Run, Step
from onelog.errors import Unimplemented
from tests.system.nodes import ServeProcess, nodes

SECONDS = 2.0
AMOUNT = 20_000
QUICK_S, QUICK_AMOUNT = 0.02, 600


@dataclass
class Cluster:
    """Processes whose CPU time is measured."""

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
    """Run ``count`` nodes; stop them at the end."""
    names = [f"n{number + 1}" for number in range(count)]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onelog-bench-")))
        # Balance the leaders before anything is measured, not during the first cases.
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


async def bench_cluster(cluster: Cluster, cases: list[Case], seconds: float, amount: int) -> None:
    """Run the cases."""
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
        finally:
            await bench.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--only", action="append", help="only cases whose names begin with this")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each case")
    parser.add_argument("--quick", action="store_true", help="only check that everything works")
    arguments = parser.parse_args()
    seconds = QUICK_S if arguments.quick else arguments.seconds
    amount = QUICK_AMOUNT if arguments.quick else AMOUNT
    only = tuple(arguments.only or ("",))
    cases = [case for case in CASES if case.name.startswith(only)]
    for count in arguments.nodes:
        with serving(count, arguments.shards) as cluster:
            uvloop.run(bench_cluster(cluster, cases, seconds, amount))
    return 0


if __name__ == "__main__":
    sys.exit(main())
