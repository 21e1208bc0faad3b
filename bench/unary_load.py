"""One unary gRPC call, repeated by h2load: what was answered, how fast, and at what cost.

h2load (nghttp2's load tool) takes hardly any CPU for a call, so the server is measured and not a
client. It knows HTTP/2 and no gRPC: an error is an answer with status 200 to it. So each
measurement begins with the same call by grpcio, which fails unless grpc-status is 0, and ends with
two controls. An error has no message, so the bytes of all answers show whether one was among them,
and a put is counted by the system itself, as a version of its key.
"""

import base64
import json
import os
import re
import shutil
import struct
import subprocess
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import grpc  # type: ignore[import-untyped]

from bench.api import Cluster
from bench.peers_load_echo import UNARY_METHOD
from bench.peers_processes import PeerFailed
from onelog.v1 import admin_pb2, admin_pb2_grpc, common_pb2, kv_pb2

KEY, VALUE = b"unary", bytes(100)
CALL_S = 20.0
# Besides the time that is measured.
LOAD_S = 30.0
PREFIX = struct.Struct(
    ">"  # network order
    "B"  # not compressed
    "I"  # bytes of the message
)
INSTALL = "h2load is not installed: apt-get install nghttp2-client"
_SUMMARY = re.compile(
    r"requests: \d+ total, \d+ started, (?P<done>\d+) done, (?P<succeeded>\d+) succeeded.*?"
    r"status codes: \d+ 2xx, (?P<of_3xx>\d+) 3xx, (?P<of_4xx>\d+) 4xx, (?P<of_5xx>\d+) 5xx.*?"
    r"traffic: .*?headers.*?\((?P<data>\d+)\) data",
    re.DOTALL,
)


def missing() -> str | None:
    """Return what has to be installed, if something has."""
    return None if shutil.which("h2load") else INSTALL


@dataclass(frozen=True)
class Request:
    """A call with its message, ready to be sent."""

    path: str
    message: bytes


@dataclass(frozen=True)
class System:
    """A cluster, its calls, and how the writes of the key are counted."""

    name: str
    cluster: Cluster
    requests: dict[str, Request]
    leader: Callable[[], str]
    # How often the key was written, or a number that grows with each write; None: nothing is kept.
    writes: Callable[[str], int] | None

    def cpu_s(self) -> float:
        return sum(self.cluster.cpu_s().values())


def onelog(cluster: Cluster) -> System:
    """One shard, and linearizable reads, which are the default of a get."""
    level = common_pb2.ReadOptions(level=common_pb2.READ_LEVEL_LINEARIZABLE)
    get = kv_pb2.GetRequest(key=KEY, options=level).SerializeToString()
    put = kv_pb2.PutRequest(key=KEY, value=VALUE).SerializeToString()

    def leader() -> str:
        with grpc.insecure_channel(cluster.endpoints[0]) as channel:
            stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
            topology = stub.GetTopology(admin_pb2.GetTopologyRequest(), timeout=CALL_S)
        return str(topology.shards[0].leader_endpoint)

    def version(address: str) -> int:
        answer = call(address, requests["get"])
        return int(kv_pb2.GetResponse.FromString(answer).item.version)

    requests = {
        "put": Request("/onelog.v1.KV/Put", put),
        "get": Request("/onelog.v1.KV/Get", get),
    }
    return System("onelog", cluster, requests, leader, version)


def etcd(cluster: Cluster) -> System:
    """Requests made by hand: both have their key in field 1, the put its value in field 2."""

    def field(number: int, data: bytes) -> bytes:
        assert len(data) < 128, "a longer one has a longer length"
        return bytes((number << 3 | 2, len(data))) + data

    def leader() -> str:
        for address in cluster.endpoints:
            status = ask(address, "maintenance/status")
            if status["header"]["member_id"] == status["leader"]:
                return address
        raise PeerFailed("no node of etcd says that it leads")

    def version(address: str) -> int:
        found = ask(address, "kv/range", key=base64.b64encode(KEY).decode())
        return int(found["kvs"][0]["version"])

    requests = {
        "put": Request("/etcdserverpb.KV/Put", field(1, KEY) + field(2, VALUE)),
        "get": Request("/etcdserverpb.KV/Range", field(1, KEY)),
    }
    return System("etcd", cluster, requests, leader, version)


def ask(address: str, path: str, **fields: str) -> Any:
    """Return what etcd's gateway for JSON answers."""
    request = urllib.request.Request(f"http://{address}/v3/{path}", json.dumps(fields).encode())
    with urllib.request.urlopen(request, timeout=CALL_S) as answer:
        return json.load(answer)


def echo(cluster: Cluster) -> System:
    """The cost of grpc.aio without a service: it returns the bytes of a put in every case."""
    message = kv_pb2.PutRequest(key=KEY, value=VALUE).SerializeToString()
    request = Request(UNARY_METHOD, message)
    (address,) = cluster.endpoints
    return System("echo", cluster, {"put": request, "get": request}, lambda: address, None)


def call(address: str, request: Request) -> bytes:
    """Make a call by grpcio and return the bytes of its answer; what is not OK raises."""
    with grpc.insecure_channel(address) as channel:
        try:
            answer: bytes = channel.unary_unary(request.path)(request.message, timeout=CALL_S)
        except grpc.RpcError as error:
            raise PeerFailed(f"{request.path}: {error.code().name}: {error.details()}") from None
    return answer


@dataclass(frozen=True)
class Summary:
    """What h2load says in the end."""

    done: int
    succeeded: int
    # Answers by their HTTP status. Those of 2xx may be more than are done: a call is counted when
    # its answer begins, also in the moment when the time is over.
    of_3xx: int
    of_4xx: int
    of_5xx: int
    # Bytes of all answers.
    data: int

    @property
    def has_failures(self) -> bool:
        return self.succeeded < self.done or self.of_3xx + self.of_4xx + self.of_5xx > 0


def parse_summary(text: str) -> Summary:
    """Read h2load's report."""
    found = _SUMMARY.search(text)
    if found is None:
        raise PeerFailed(f"h2load says something else than it used to:\n{text}")
    return Summary(**{name: int(number) for name, number in found.groupdict().items()})


def load(
    address: str, request: Request, callers: int, connections: int, seconds: float, directory: Path
) -> tuple[Summary, list[int]]:
    """Repeat a call; return the summary and the microseconds of each call, sorted."""
    body, log = directory / "body", directory / "log"
    body.write_bytes(PREFIX.pack(0, len(request.message)) + request.message)
    log.unlink(missing_ok=True)  # h2load would add to it
    command = [
        *("h2load", f"--duration={round(seconds * 1e3)}ms", f"--clients={connections}"),
        *(f"--max-concurrent-streams={callers // connections}", f"--data={body}"),
        *("--header=content-type: application/grpc", "--header=te: trailers"),
        *(f"--log-file={log}", f"http://{address}{request.path}"),
    ]
    try:
        # No proxy of the environment is meant for this.
        done = subprocess.run(
            command,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            capture_output=True,
            text=True,
            timeout=seconds + LOAD_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"h2load did not end: {command}") from None
    if done.returncode:
        raise PeerFailed(f"h2load failed: {done.stdout}{done.stderr}")
    with log.open() as lines:
        return parse_summary(done.stdout), sorted(int(line.split("\t")[2]) for line in lines)


def measure(
    system: System, case: str, callers: int, connections: int, seconds: float, warm_up_s: float,
    directory: Path,
) -> dict[str, Any]:  # fmt: skip
    """Measure one turn of one system; every answer was OK, or this raises."""
    request, address = system.requests[case], system.leader()
    repeat = partial(load, address, request, callers, connections, directory=directory)
    repeat(seconds=warm_up_s)
    size = PREFIX.size + len(call(address, request))
    before = system.writes(address) if system.writes is not None else 0
    cpu_s = system.cpu_s()
    summary, durations_us = repeat(seconds=seconds)
    cpu_s = system.cpu_s() - cpu_s
    done = summary.done
    if summary.has_failures or not 0 < done == len(durations_us):
        raise PeerFailed(f"{system.name}: not every {case} was answered: {summary}")
    if summary.data < done * size:
        raise PeerFailed(f"{system.name}: a {case} failed; {size} bytes a call wanted: {summary}")
    if case == "put" and system.writes is not None:
        written = system.writes(address) - before
        if written < done:
            raise PeerFailed(f"{system.name}: {done} puts were answered, {written} written")
    cuts = quantiles(durations_us, n=100, method="inclusive") if done > 1 else durations_us * 99
    return {
        "per_s": round(done / seconds),
        "p50_ms": round(cuts[49] / 1e3, 3),
        "p99_ms": round(cuts[98] / 1e3, 3),
        "cpu_us": round(cpu_s / done * 1e6, 1),
    }
