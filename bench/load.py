"""Rows written exactly once, compared with plain appends and puts in turns: a line of JSON each.

    python bench/load.py [--rows N] [--turns N]

One server in its own process, one client, values of 100 bytes; medians of the turns, with the CPU
time of client and server for each row. ``append_many`` and ``put_many`` are for programs that may
write twice when they restart.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent.parent))

from onelog import Client
from onelog.spark.load.chunks import ChunkWriter
from onelog.spark.load.progress import Job
from onelog.spark.load.settings import parse_write
from tests.system.ports import free_addresses

VALUE = b"x" * 100
BATCH_ROWS = 10_000
READY_S = 60
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    rows = given.rows
    found: dict[str, list[tuple[float, ...]]] = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        serving(Path(directory)) as (endpoint, pid),
        Client(endpoint, timeout_s=READY_S) as client,
    ):
        stream = client.stream("s")
        stream.create()
        for turn in range(given.turns):
            keys = [[b"%d:%d:%d" % (way, turn, row) for row in range(rows)] for way in range(2)]
            batches = [
                pa.RecordBatch.from_pydict({"value": [VALUE] * len(part), "key": part})
                for at in range(0, rows, BATCH_ROWS)
                if (part := keys[1][at : at + BATCH_ROWS])
            ]
            values = [batch.select(["value"]) for batch in batches]
            to_stream = {"endpoint": endpoint, "to": "stream", "stream": "s"}
            to_keys = {"endpoint": endpoint, "to": "keys"}
            work: dict[str, Callable[[], object]] = {
                "append_many": lambda: stream.append_many([VALUE] * rows),
                "records, exactly once": lambda: write(to_stream, f"s{turn}", values),  # noqa: B023
                "put_many": lambda: client.kv.put_many(dict.fromkeys(keys[0], VALUE)),  # noqa: B023
                "keys, exactly once": lambda: write(to_keys, f"k{turn}", batches),  # noqa: B023
            }
            for name, call in work.items():
                found.setdefault(name, []).append(measure(call, pid, rows))
    for name, turns in found.items():
        wall_us, client_us, server_us = (statistics.median(each) for each in zip(*turns))  # noqa: B905
        row = {"case": name, "rows": rows, "turns": given.turns, "per_s": round(1e6 / wall_us)}
        row |= {"client_us": round(client_us, 1), "server_us": round(server_us, 1)}
        print(json.dumps(row))


def write(options: dict[str, str], job: str, batches: list[pa.RecordBatch]) -> None:
    settings = parse_write(options)
    with ChunkWriter(settings.target, Job(job), "0", settings.endpoints) as writer:
        for batch in batches:
            writer.write(batch)
        writer.finish()


def measure(call: Callable[[], object], pid: int, rows: int) -> tuple[float, ...]:
    """Return wall time, the client's CPU and the server's, in µs by row."""
    wall_s, client_s, server_s = time.perf_counter(), time.process_time(), cpu_s(pid)
    call()
    spent = (
        time.perf_counter() - wall_s, time.process_time() - client_s, cpu_s(pid) - server_s,
    )  # fmt: skip
    return tuple(each * 1e6 / rows for each in spent)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@contextmanager
def serving(directory: Path) -> Iterator[tuple[str, int]]:
    api, peers, http = free_addresses(3)
    flags = ["--listen", api, "--peer-listen", peers, "--http-listen", http]
    command = [sys.executable, "-m", "onelog.cli.main", "serve", "--data-dir", str(directory)]
    process = subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL)
    try:
        yield api, process.pid
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    main()
