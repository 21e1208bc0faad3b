"""The server's CPU time for one message through ``Pipeline.Execute``, in lines of JSON.

One node in a process of its own, everything synced; messages of 1,000 operations without the
client's own work: requests are built before the clock starts. The figure is the CPU of the
server process, including log and projection.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import grpc  # type: ignore[import-untyped]

from onelog.v1 import pipeline_pb2, pipeline_pb2_grpc, queue_pb2, queue_pb2_grpc
from tests.system.ports import free_addresses

OPERATIONS = 1_000
BODY = bytes(100)
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=40_000)
    count = parser.parse_args().messages // OPERATIONS
    api, peers, http = free_addresses(3)
    with tempfile.TemporaryDirectory() as directory:
        flags = ["--listen", api, "--peer-listen", peers, "--http-listen", http]
        command = [sys.executable, "-m", "onelog.cli.main", "serve", "--data-dir", directory]
        process = subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL)
        try:
            with grpc.insecure_channel(
                api,
                (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)),
            ) as channel:
                measure(channel, process.pid, count)
        finally:
            process.terminate()
            process.wait(30)


def measure(channel: grpc.Channel, pid: int, count: int) -> None:
    """Enqueue, then lease and acknowledge, each through one stream."""
    queue = queue_pb2_grpc.QueueStub(channel)  # type: ignore[no-untyped-call]
    create = queue_pb2.CreateQueueRequest(queue="jobs")
    queue.CreateQueue(create, wait_for_ready=True, timeout=30)
    pipeline = pipeline_pb2_grpc.PipelineStub(channel)  # type: ignore[no-untyped-call]
    opened = pipeline.OpenSession(pipeline_pb2.OpenSessionRequest())
    message = queue_pb2.NewMessage(body=BODY)
    request = queue_pb2.EnqueueRequest(queue="jobs", messages=[message])
    together = queue_pb2.EnqueueRequest(queue="jobs", messages=[message] * OPERATIONS)
    operation = pipeline_pb2.Operation
    enqueues = pipeline_pb2.ExecuteRequest(operations=[operation(enqueue=request)] * OPERATIONS)
    run("enqueue, one operation each", pid, pipeline, [enqueues] * count)
    in_session = []
    for number in range(count):
        each = pipeline_pb2.ExecuteRequest(operations=enqueues.operations)
        each.session.session_id = opened.session_id
        each.session.sequence = each.session.first_unacknowledged = number * OPERATIONS + 1
        in_session.append(each)
    run("enqueue in a session, one operation each", pid, pipeline, in_session)
    batches = pipeline_pb2.ExecuteRequest(operations=[operation(enqueue=together)])
    run("enqueue, 1,000 in one operation", pid, pipeline, [batches] * count)
    for size in (1, 10, 1000):
        lease = queue_pb2.LeaseRequest(queue="jobs", count=size)
        leases = pipeline_pb2.ExecuteRequest(
            operations=[operation(lease=lease)] * (OPERATIONS // size)
        )
        name = f"lease, {size} in an operation"
        answers = run(name, pid, pipeline, [leases] * (count // 2))
        acks = []
        for answer in answers:
            ack = pipeline_pb2.ExecuteRequest()
            for result in answer.results:
                items = [
                    queue_pb2.Leased(message_id=each.message_id, token=each.token)
                    for each in result.lease.messages
                ]
                ack.operations.add(ack=queue_pb2.AckRequest(queue="jobs", messages=items))
            acks.append(ack)
        run(f"ack, {size} in an operation", pid, pipeline, acks)


def run(name: str, pid: int, pipeline: Any, requests: list[Any]) -> list[Any]:
    """Send messages, and show what each operation's message cost the server."""
    before_s, start_s = cpu_s(pid), time.perf_counter()
    answers = list(pipeline.Execute(iter(requests)))
    spent_s, took_s = cpu_s(pid) - before_s, time.perf_counter() - start_s
    for answer in answers:
        assert not any(result.HasField("error") for result in answer.results), answer.results[0]
    messages = len(requests) * OPERATIONS
    print(
        json.dumps(
            {
                "name": name,
                "messages": messages,
                "server_us_per_message": round(spent_s / messages * 1e6, 2),
                "messages_per_s": round(messages / took_s),
            }
        ),
        flush=True,
    )
    return answers


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


if __name__ == "__main__":
    main()
