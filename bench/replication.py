"""Replicated writes, synced, on loopback, compared with plain pysyncobj; one JSON line per case.

Three processes, fdatasync on, entries of 128 B (a KV put). Proposers are tasks in the leader's
process, as they are for pysyncobj: this measures replication, not the edge of a server. pysyncobj
has its own journal, in memory, and its own TCP transport, and syncs nothing; its settings are the
best of those tried. Both are measured in turns. Machines differ and are noisy: compare ratios of
one run; ``cpu_us_per_entry``, of all processes together, says what an idle machine could do.

    python bench/replication.py [--directory DIR] [--seconds S] [--profile FILE]

``--profile`` records the leader at saturation with py-spy, if that is installed.
"""

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

ENTRY_SIZE = 128
KEYS = 4096
WAIT_S = 20.0
ROUNDS = 2
# Entries in flight from one proposer, and in how many requests.
SATURATING = ((1024, 4), (4096, 8), (16_384, 16))


def report(case: str, **fields: object) -> None:
    print(json.dumps({"case": case, **fields}), flush=True)


def quantiles(latencies_s: list[float]) -> dict[str, float]:
    ordered = sorted(latencies_s) or [0.0]
    return {
        "p50_ms": round(ordered[len(ordered) // 2] * 1000, 2),
        "p99_ms": round(ordered[len(ordered) * 99 // 100] * 1000, 2),
    }


# One of our nodes, in a process of its own


async def node_main(settings: dict[str, Any]) -> None:
    from onelog.node.membership.peer_port import PeerPort
    from onelog.node.replicas import Replicas, ReplicasConfig
    from onelog.ual.directory import Topology
    from onelog.ual.files import DiskFiles
    from tests.ual.shards import make_directory

    config = ReplicasConfig(
        cluster_id=UUID(int=1),
        node_id=UUID(int=settings["node"]),
        node_name="bench",
        peers={
            UUID(int=number): address
            for number, address in enumerate(settings["addresses"], start=1)
            if number != settings["node"]
        },
        topology=Topology(1, 1),
    )
    directory = make_directory(DiskFiles(), Path(settings["data_dir"]), config.topology)
    port = PeerPort(settings["addresses"][settings["node"] - 1])
    replicas = await Replicas.open(config, directory, port, lambda *_: None)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(replicas.run())
        while line := await reader.readline():
            print(json.dumps(await node_answer(replicas, json.loads(line))), flush=True)
        await replicas.stop()


async def node_answer(replicas: Any, request: dict[str, Any]) -> dict[str, Any]:
    driver = replicas.driver[0]
    member = driver.shard.member
    before = {
        "at_s": time.monotonic(),
        "cpu_s": time.process_time(),
        "syncs": driver.syncs.count,
        "proposals": member.journal.last,
        "entries": driver.shard.log.last_index,
    }
    latencies_s: list[float] = []
    if request["op"] == "tasks":
        latencies_s = await run_tasks(driver, request["proposers"], request["seconds"])
    elif request["op"] == "saturate":
        latencies_s = await run_saturating(
            driver, request["in_flight"], request["requests"], request["seconds"]
        )
    elapsed_s = time.monotonic() - before["at_s"]
    entries = driver.shard.log.last_index - before["entries"]
    proposals = member.journal.last - before["proposals"]
    return {
        "leads": member.has_applied_noop,
        "pid": os.getpid(),
        "entries_per_s": round(entries / elapsed_s) if latencies_s else 0,
        **quantiles(latencies_s),
        "fdatasyncs_per_s": round((driver.syncs.count - before["syncs"]) / elapsed_s),
        "entries_per_group": round(entries / max(proposals, 1), 1),
        "leader_cpu": round((time.process_time() - before["cpu_s"]) / elapsed_s, 2),
    }


def make_drafts() -> list[tuple[int, bytes, int]]:
    from onelog.projections.kv import commands

    def draft(value_size: int, number: int) -> tuple[int, bytes, int]:
        value = os.urandom(value_size)
        command = commands.Put(b"key-%06d" % number, value)
        return tuple(commands.encode_command(command, "default", None))  # type: ignore[return-value]

    overhead = len(draft(0, 0)[1])
    return [draft(ENTRY_SIZE - overhead, number) for number in range(KEYS)]


async def run_tasks(driver: Any, proposers: int, seconds: float) -> list[float]:
    """Run many tasks that each propose one entry at a time."""
    drafts = make_drafts()
    latencies_s: list[float] = []
    now_s = time.monotonic
    until_s = now_s() + seconds

    async def propose(number: int) -> None:
        while now_s() < until_s:
            started_s = now_s()
            number = (number + 1) % KEYS
            outcome = await driver.propose([drafts[number]], started_s + WAIT_S)
            assert isinstance(outcome, list), outcome
            latencies_s.append(now_s() - started_s)

    await asyncio.gather(*(propose(number * 13 % KEYS) for number in range(proposers)))
    return latencies_s


async def run_saturating(driver: Any, in_flight: int, requests: int, seconds: float) -> list[float]:
    """Run one proposer that keeps ``in_flight`` entries in flight, spread over some requests."""
    drafts = make_drafts()
    size = in_flight // requests
    parts = [drafts[at : at + size] for at in range(0, KEYS, size)]
    latencies_s: list[float] = []
    now_s = time.monotonic
    until_s = now_s() + seconds
    waiting: deque[tuple[float, Any]] = deque()
    number = 0
    while waiting or now_s() < until_s:
        while len(waiting) < requests and now_s() < until_s:
            number += 1
            started_s = now_s()
            part = parts[number % len(parts)]
            waiting.append((started_s, driver.propose(part, started_s + WAIT_S)))
        started_s, future = waiting.popleft()
        outcome = await future
        assert isinstance(outcome, list), outcome
        latencies_s.append(now_s() - started_s)
    return latencies_s


# pysyncobj as it ships


def pysyncobj_main(settings: dict[str, Any]) -> None:
    import logging

    from pysyncobj import SyncObj, SyncObjConf, replicated

    logging.disable(logging.CRITICAL)

    class Store(SyncObj):  # type: ignore[misc]
        def __init__(self, own: str, others: list[str]) -> None:
            super().__init__(
                own,
                others,
                SyncObjConf(
                    appendEntriesUseBatch=True,
                    appendEntriesBatchSizeBytes=1 << 16,
                    logCompactionMinEntries=10**9,
                    logCompactionMinTime=10**9,
                ),
            )
            self.values: dict[bytes, bytes] = {}

        @replicated  # type: ignore[untyped-decorator]
        def put(self, key: bytes, value: bytes) -> None:
            self.values[key] = value

    own = settings["addresses"][settings["node"] - 1]
    store = Store(own, [each for each in settings["addresses"] if each != own])
    for line in sys.stdin:
        request = json.loads(line)
        leads = store._isLeader() and store.isReady()
        answer: dict[str, Any] = {"leads": leads, "pid": os.getpid()}
        if request["op"] == "saturate":
            answer |= pysyncobj_saturate(store, request["in_flight"], request["seconds"])
        print(json.dumps(answer), flush=True)
    os._exit(0)


def pysyncobj_saturate(store: Any, in_flight: int, seconds: float) -> dict[str, Any]:
    """Keep this many commands in flight; each answer sends the next, on pysyncobj's own thread."""
    value = os.urandom(ENTRY_SIZE)
    keys = [b"key-%06d" % number for number in range(KEYS)]
    latencies_s: list[float] = []
    failures: list[object] = []
    now_s = time.monotonic
    started_all_s = now_s()
    until_s = started_all_s + seconds
    finished = threading.Semaphore(0)

    def propose(number: int) -> None:
        started_s = now_s()

        def answered(_result: object, error: object) -> None:
            if error:
                failures.append(error)
            latencies_s.append(now_s() - started_s)
            if now_s() < until_s:
                propose(number + 1)
            else:
                finished.release()

        store.put(keys[number % KEYS], value, callback=answered)

    for number in range(in_flight):
        propose(number)
    for _ in range(in_flight):
        if not finished.acquire(timeout=WAIT_S):
            return {"stalled": "a callback never came"}
    elapsed_s = now_s() - started_all_s
    assert not failures, failures[:3]
    return {"entries_per_s": round(len(latencies_s) / elapsed_s), **quantiles(latencies_s)}


# The orchestrator


class Node:
    def __init__(self, role: str, settings: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--role", role, "--settings", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Cluster:
    """Some processes, and which of them leads."""

    def __init__(self, name: str, started: list[Node]) -> None:
        self.name = name
        self._started = started
        until_s = time.monotonic() + WAIT_S
        while True:
            leading = [node for node in started if node.ask("status")["leads"]]
            if leading:
                break
            assert time.monotonic() < until_s, "nobody leads"
            time.sleep(0.05)
        self.leader = leading[0]

    def measure(self, op: str, **fields: Any) -> dict[str, Any]:
        """Run a command on the leader; count the CPU time of all processes."""
        before_s = self._cpu_s()
        measured = self.leader.ask(op, **fields)
        spent_s = self._cpu_s() - before_s
        if measured.get("entries_per_s"):
            entries = measured["entries_per_s"] * fields["seconds"]
            measured["cpu_us_per_entry"] = round(spent_s / entries * 1e6, 1)
        return {key: measured[key] for key in measured if key not in ("leads", "pid")}

    def _cpu_s(self) -> float:
        ticks = 0
        for node in self._started:
            fields = Path(f"/proc/{node.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def nodes(role: str, count: int, directory: Path) -> Iterator[Cluster]:
    """Start a cluster, and end it."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    with tempfile.TemporaryDirectory(dir=directory) as home:
        started = [
            Node(
                role,
                {"node": number, "addresses": addresses, "data_dir": f"{home}/node-{number}"},
            )
            for number in range(1, count + 1)
        ]
        try:
            yield Cluster(f"nodes_{count}" if role == "node" else f"pysyncobj_{count}", started)
        finally:
            for node in started:
                node.stop()


def bench_tasks(cluster: Cluster, seconds: float) -> None:
    """One entry at a time from each of some proposers."""
    for proposers in (1, 16, 64, 256):
        measured = cluster.measure("tasks", proposers=proposers, seconds=seconds)
        report(f"{cluster.name}_proposers_{proposers}", **measured)


def bench_saturating(clusters: list[Cluster], seconds: float) -> list[dict[str, Any]]:
    """Everything that one proposer can push, in turns, so that noise meets all alike.

    Returns the best that each cluster reached.
    """
    best: list[dict[str, Any]] = [{"entries_per_s": 0} for _ in clusters]
    for cluster in clusters:
        cluster.measure("saturate", in_flight=1024, requests=4, seconds=1.0)  # warm up
    for in_flight, requests in SATURATING:
        reached: list[dict[str, Any]] = [{"entries_per_s": 0} for _ in clusters]
        for _ in range(ROUNDS):
            for at, cluster in enumerate(clusters):
                measured = cluster.measure(
                    "saturate", in_flight=in_flight, requests=requests, seconds=seconds
                )
                if measured.get("entries_per_s", 0) > reached[at]["entries_per_s"]:
                    reached[at] = measured
        for at, cluster in enumerate(clusters):
            report(f"{cluster.name}_saturating_{in_flight}", **reached[at])
            best[at] = max(best[at], reached[at], key=lambda each: each["entries_per_s"])
    return best


def profile_leader(leader: Node, profile: Path, seconds: float) -> None:
    """Record where the leader's time goes at saturation."""
    program = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        report("profile", skipped="py-spy is not installed")
        return
    pid = leader.ask("status")["pid"]
    command = [program, "record", "-p", str(pid), "-d", str(max(round(seconds), 1)), "-r", "500"]
    with subprocess.Popen(
        [*command, "-f", "raw", "-o", str(profile)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ):
        leader.ask("saturate", in_flight=4096, requests=8, seconds=seconds + 1)
    report("profile", file=str(profile))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="where to write; default: a temporary one")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each case")
    parser.add_argument("--profile", type=Path, help="where to write the leader's profile")
    parser.add_argument("--role", choices=["node", "pysyncobj"], help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "node":
        from onelog.node.replica.driver import run_until_complete

        run_until_complete(node_main(arguments.settings))
        return 0
    if arguments.role == "pysyncobj":
        pysyncobj_main(arguments.settings)
        return 0
    directory = arguments.directory or Path(tempfile.gettempdir())
    with nodes("node", 1, directory) as single:
        bench_tasks(single, arguments.seconds)
        bench_saturating([single], arguments.seconds)
    with nodes("node", 3, directory) as ours:
        bench_tasks(ours, arguments.seconds)
        with nodes("pysyncobj", 3, directory) as theirs:
            reached, beaten = bench_saturating([ours, theirs], arguments.seconds)
        if arguments.profile is not None:
            profile_leader(ours.leader, arguments.profile, arguments.seconds)
    report(
        "ratio",
        ratio=round(reached["entries_per_s"] / beaten["entries_per_s"], 2),
        goal=">= 2 x pysyncobj at saturation, although ours syncs",
        cpu_ratio=round(beaten["cpu_us_per_entry"] / reached["cpu_us_per_entry"], 2),
        load_average=round(os.getloadavg()[0], 1),
        cores=os.cpu_count(),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
