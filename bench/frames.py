"""Bulk reads of the log, as stored bytes and by Admin.ReadLog: a line of JSON for each result.

``python bench/frames.py [--nodes 1 3] [--entries N] [--seconds S] [--rounds R]``. First, the rate
at which one reader reads all entries (records of 250 bytes) and the server's CPU time for each
entry, both ways in turns. Then, puts of 64 callers together with two readers, in their own
processes, that read the log repeatedly and verify the checksums of frames: without readers, with
ReadLog, with frames, and with frames at 20 MB/s in total. Each round measures all of these; ratios
are within a round, and medians over the rounds are reported.

Readers, writer and nodes share the machine's cores. The readers' own CPU time affects the ratios of
the puts (``reader_mb_per_s`` says how much they read), but not the nodes' CPU time for each put:
that figure also holds on a machine with more cores.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import grpc  # type: ignore[import-untyped]
import numpy as np
import uvloop

from onelog import AsyncClient
from onelog.ual.segments.tables import first_bad_checksum, gather_headers
from onelog.v1 import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc, stream_pb2, stream_pb2_grpc
from tests.system.nodes import ServeProcess, nodes

VALUE_SIZE = 250
IN_MESSAGE = 1_000
CALLERS = 64
READERS = 2
LIMIT_BYTES_PER_S = 20_000_000
WARM_UP_S = 0.5
WAYS = ("log", "frames")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--entries", type=int, default=300_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--read", nargs=4, help="be a reader: WAY ENDPOINT LAST RATE")
    arguments = parser.parse_args()
    if arguments.read:
        way, endpoint, last, rate = arguments.read
        be_reader(way, endpoint, int(last), int(rate))
        return
    for count in arguments.nodes:
        with serving(count) as made:
            endpoints = [each.flags["listen"] for each in made]
            pids = [each.process.pid for each in made if each.process is not None]
            last = fill(endpoints[0], arguments.entries)
            if count == 1:
                compare_readers(endpoints[0], pids[0], last, arguments.rounds)
            compare_writers(endpoints, pids, last, arguments.seconds, arguments.rounds)


@contextmanager
def serving(count: int) -> Iterator[list[ServeProcess]]:
    """Start nodes that keep all of their log."""
    never = {"snapshot-log-bytes-min": "1TiB", "snapshot-interval-s": "1000000"}
    names = [f"n{number + 1}" for number in range(count)]
    with (
        tempfile.TemporaryDirectory(prefix="onelog-bench-") as directory,
        nodes(Path(directory), *names, shards="1", **never) as made,
    ):
        for each in made.values():
            each.start()
        for each in made.values():
            each.until_ready()
        yield list(made.values())


def connect(endpoint: str) -> Any:
    return grpc.insecure_channel(endpoint, options=(("grpc.max_receive_message_length", -1),))


def fill(endpoint: str, count: int) -> int:
    """Write records, one entry each; return the last index of the log."""
    with connect(endpoint) as channel:
        stream = stream_pb2_grpc.StreamStub(channel)  # type: ignore[no-untyped-call]
        stream.CreateStream(stream_pb2.CreateStreamRequest(stream="s"))
        rng = random.Random(1)
        for _ in range(count // IN_MESSAGE):
            new = [stream_pb2.NewRecord(value=rng.randbytes(VALUE_SIZE)) for _ in range(IN_MESSAGE)]
            stream.AppendRecords(stream_pb2.AppendRecordsRequest(stream="s", records=new))
        log = log_pb2_grpc.LogStub(channel)  # type: ignore[no-untyped-call]
        return int(log.DescribeLog(log_pb2.DescribeLogRequest()).cut_index)


def read(way: str, endpoint: str, last: int, rate: int = 0) -> Iterator[Any]:
    """Read the whole log once, page by page or frame by frame."""
    with connect(endpoint) as channel:
        if way == "log":
            admin = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
            asked = admin_pb2.ReadLogRequest(first_index=1, last_index=last)
            yield from admin.ReadLog(asked)
            return
        log = log_pb2_grpc.LogStub(channel)  # type: ignore[no-untyped-call]
        wanted = log_pb2.ReadLogFramesRequest(
            first_index=1, last_index=last, bytes_per_second_max=rate
        )
        yield from log.ReadLogFrames(wanted)


def rows(message: Any) -> int:
    if isinstance(message, log_pb2.LogFrame):
        return len(message.offsets) // 4
    return len(message.entries)


def verified_bytes(message: Any) -> int:
    """Return the size of a message; verify the checksums of entries if it is a frame."""
    if not isinstance(message, log_pb2.LogFrame):
        return int(message.ByteSize())
    starts = np.frombuffer(message.offsets, "<u4").astype(np.int64)
    crcs = gather_headers(message.data, starts)["crc"]
    ends = np.append(starts[1:], len(message.data))
    assert first_bad_checksum(message.data, starts, ends, crcs) is None
    return len(message.data)


def be_reader(way: str, endpoint: str, last: int, rate: int) -> None:
    """Read repeatedly until SIGTERM; report the start, and how much was read."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    print("reading", flush=True)
    taken, began = 0, time.perf_counter()
    while not ended.is_set():
        for message in read(way, endpoint, last, rate):
            taken += verified_bytes(message)
            if ended.is_set():
                break
    print(taken / (time.perf_counter() - began) / 1e6, flush=True)


@contextmanager
def reading(way: str, endpoints: list[str], last: int, rate: int) -> Iterator[list[float]]:
    """Run readers, each on another replica if there are several; yield what they read."""
    count = READERS if way else 0
    readers = [
        subprocess.Popen(
            [sys.executable, __file__, "--read", way, endpoints[number % len(endpoints)],
             str(last), str(rate)],
            stdout=subprocess.PIPE, text=True,
        )
        for number in range(count)
    ]  # fmt: skip
    speeds: list[float] = []
    try:
        for each in readers:
            assert each.stdout is not None
            assert each.stdout.readline() == "reading\n"
        yield speeds
        for each in readers:
            each.terminate()
        speeds += [float(each.communicate()[0]) for each in readers]
    finally:
        for each in readers:
            each.kill()
            each.wait()


def compare_readers(endpoint: str, pid: int, last: int, rounds: int) -> None:
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    costs: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            # Repeat the faster one: CPU time is counted in ticks of 10 ms.
            times = 1 if way == "log" else 10
            before, began = cpu_s(pid), time.perf_counter()
            count = sum(rows(each) for _ in range(times) for each in read(way, endpoint, last))
            took, spent = time.perf_counter() - began, cpu_s(pid) - before
            assert count >= (last - 10) * times, (count, last)
            rates[way].append(count / took)
            costs[way].append(spent / count * 1e6)
    for way in WAYS:
        tell(
            name=f"read the log, {way}",
            rows_per_s=round(median(rates[way])),
            server_us_per_row=round(median(costs[way]), 3),
            rate_to_log=ratio(rates[way], rates["log"]),
            cpu_to_log=ratio(costs[way], costs["log"]),
        )


def compare_writers(
    endpoints: list[str], pids: list[int], last: int, seconds: float, rounds: int
) -> None:
    """Measure puts without and with readers."""
    cases = {"alone": ("", 0), "log": ("log", 0), "frames": ("frames", 0)}
    cases["frames at 20 MB/s"] = ("frames", LIMIT_BYTES_PER_S // READERS)
    rates: dict[str, list[float]] = {name: [] for name in cases}
    slowest: dict[str, list[float]] = {name: [] for name in cases}
    taken: dict[str, list[float]] = {name: [] for name in cases}
    costs: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (way, rate) in cases.items():
            with reading(way, endpoints, last, rate) as speeds:
                before = sum(map(cpu_s, pids))
                found = uvloop.run(puts(endpoints, seconds))
                costs[name].append(sum(map(cpu_s, pids)) - before)
            rates[name].append(found[0])
            slowest[name].append(found[1])
            taken[name].append(sum(speeds))
    for name in cases:
        tell(
            name=f"puts on {len(endpoints)} nodes, {name}",
            puts_per_s=round(median(rates[name])),
            p99_ms=round(median(slowest[name]) * 1000, 2),
            rate_to_alone=ratio(rates[name], rates["alone"]),
            p99_to_alone=ratio(slowest[name], slowest["alone"]),
            reader_mb_per_s=round(median(taken[name])),
            nodes_cpu_s_per_s=round(median(costs[name]) / (seconds + WARM_UP_S), 2),
            nodes_us_per_put=round(
                median(
                    cost / rate / (seconds + WARM_UP_S) * 1e6
                    for cost, rate in zip(costs[name], rates[name], strict=True)
                ),
                1,
            ),
        )


async def puts(endpoints: list[str], seconds: float) -> tuple[float, float]:
    """Return the answered puts per second, and their 99th percentile."""
    value, times = os.urandom(100), []
    async with AsyncClient(endpoints, timeout_s=60) as client:
        began = time.perf_counter() + WARM_UP_S
        until = began + seconds

        async def call(number: int) -> None:
            at = time.perf_counter()
            while at < until:
                await client.kv.put(f"key-{number}", value)
                now = time.perf_counter()
                if at >= began:
                    times.append(now - at)
                at = now

        await asyncio.gather(*(call(number) for number in range(CALLERS)))
    times.sort()
    return len(times) / seconds, times[len(times) * 99 // 100]


def ratio(values: list[float], base: list[float]) -> float:
    return round(median(a / b for a, b in zip(values, base, strict=True)), 3)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tell(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
