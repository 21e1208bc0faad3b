"""The CPU time that a node spends on a record, through gRPC: a line of JSON for each way.

A server in its own process, and a client made from the protos alone. Reported is the server's CPU
time (user and system, all threads) for each record, everything synced. Keys have 16 bytes, values
100, and messages 1,000 records.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

from onelog.v1 import pipeline_pb2, pipeline_pb2_grpc, stream_pb2, stream_pb2_grpc

RECORDS = 1_000  # in a message
MESSAGES = 60
TAILS = 10
ADDRESS = "127.0.0.1:17499"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as process:
        channel = grpc.insecure_channel(ADDRESS, options=(("grpc.max_receive_message_length", -1),))
        stream = stream_pb2_grpc.StreamStub(channel)  # type: ignore[no-untyped-call]
        pipeline = pipeline_pb2_grpc.PipelineStub(channel)  # type: ignore[no-untyped-call]
        wait(lambda: stream.CreateStream(stream_pb2.CreateStreamRequest(stream="s")))
        session_id = pipeline.OpenSession(pipeline_pb2.OpenSessionRequest()).session_id
        new = [
            stream_pb2.NewRecord(key=b"key-%012d" % number, value=bytes(100))
            for number in range(RECORDS)
        ]
        many = stream_pb2.AppendRecordsRequest(stream="s", records=new)
        single = pipeline_pb2.ExecuteRequest()
        for record in new:
            single.operations.add().append_records.MergeFrom(
                stream_pb2.AppendRecordsRequest(stream="s", records=[record])
            )
        single.session.session_id, single.session.sequence = session_id, 1

        def append_many() -> None:
            stream.AppendRecords(many)

        def append_single() -> None:
            single.session.first_unacknowledged = single.session.sequence
            pipeline.ExecuteOnce(single)
            single.session.sequence += RECORDS

        measure("append, 1,000 records in a request", process.pid, append_many)
        measure("append, 1,000 operations in a session", process.pid, append_single)
        start = stream_pb2.TailStart(stream="s")
        for count in (1, TAILS):
            tails = [stream.Tail(stream_pb2.TailRequest(streams=[start])) for _ in range(count)]
            for tail in tails:
                next(tail)

            def append_and_read(tails: Any = tails) -> None:
                stream.AppendRecords(many)
                for tail in tails:
                    left = RECORDS
                    while left > 0:
                        left -= len(next(tail).records)

            measure(f"append, and {count} tails that keep up", process.pid, append_and_read)
            for tail in tails:
                tail.cancel()
        start.from_offset = 0
        past = stream.Tail(stream_pb2.TailRequest(streams=[start]))

        def read_past() -> None:
            left = RECORDS
            while left > 0:
                left -= len(next(past).records)

        measure("tail of the past", process.pid, read_past)
        past.cancel()
        page = stream_pb2.ReadRecordsRequest(stream="s", limit=RECORDS)

        def read_page() -> None:
            page.from_offset = stream.ReadRecords(page).next_offset

        measure("read, 1,000 records in a page", process.pid, read_page)


def measure(name: str, pid: int, work: Callable[[], None]) -> None:
    work()
    before, began = cpu_s(pid), time.perf_counter()
    for _ in range(MESSAGES):
        work()
    spent, took = cpu_s(pid) - before, time.perf_counter() - began
    count = MESSAGES * RECORDS
    figures = {"name": name, "cpu_us": round(spent / count * 1e6, 2), "rate": round(count / took)}
    print(json.dumps(figures))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait(call: Callable[[], Any]) -> None:
    for _ in range(300):
        try:
            call()
        except grpc.RpcError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError


@contextmanager
def serving(directory: Path) -> Iterator["subprocess.Popen[bytes]"]:
    flags = ["--listen", ADDRESS, "--peer-listen", "127.0.0.1:17498", "--http-listen"]
    command = [sys.executable, "-m", "onelog.cli.main", "serve", "--data-dir", str(directory)]
    process = subprocess.Popen([*command, *flags, "127.0.0.1:17497"], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    main()
