"""What a stranger, an operator or the machine can take from a node, and what it does about it.

Real processes: the HTTP port and the peer port under attack, open files, the data directory, and
memory. An innocent client goes on meanwhile, and none of its calls may fail. Nothing here depends
on how fast the machine is.
"""

import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest

from onelog.cluster.transport.accepting import LINE_S, LINES_AT_ONCE
from onelog.v1 import admin_pb2, admin_pb2_grpc
from tests.attacks.ports import HTTP, PEERS
from tests.system.innocent import Busy, Innocent
from tests.system.leaders import leaders_of
from tests.system.nodes import ServeProcess, get, nodes, until
from tests.system.processes import ROOT

ATTACK_S = 8.0
# Longer than a busy machine keeps a leader from a core, shorter than an attack.
PATIENT = {
    "shards": "1",
    "balance_leaders": "false",
    "raft_election_s_min": "3",
    "raft_election_s_max": "4",
    "raft_leader_silence_s_max": "4",
}
# What logs lines about callers: each may log some at once, then one in a while.
PORTS = 3
PROBES = 14
FILES_MAX = 1024
IDLE = 1100
# Keys are held in memory, whatever is done with values.
KEY_BYTES, PUTS_MAX, REFUSALS_MAX = 1000, 1_000_000, 100


NO_MEMORY = "no memory for the call"


def begin(module: str, name: str, address: str, **how: object) -> "subprocess.Popen[str]":
    flags = [part for key, value in how.items() for part in (f"--{key}", str(value))]
    return subprocess.Popen(
        [sys.executable, "-m", module, name, address, *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def outcome(attacker: "subprocess.Popen[str]") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(attacker.communicate()[0].splitlines()[-1])
    return found


def port_of(node: ServeProcess, name: str) -> str:
    return node.http if name in HTTP else node.flags["peer-listen"]


async def find_leader(processes: list[ServeProcess]) -> tuple[ServeProcess, int]:
    async with leaders_of(processes) as leaders:
        found = await leaders.of(0)
        return found.process, found.term


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServeProcess]]:
    directory = tmp_path_factory.mktemp("three")
    with nodes(directory, "a", "b", "c", **PATIENT) as made:
        found = [each.start() for each in made.values()]
        for each in found:
            each.until_ready()
        yield found


@pytest.mark.parametrize("name", [*HTTP, *PEERS])
def test_a_leader_whose_other_ports_are_flooded_stays_one_and_serves(
    name: str, three: list[ServeProcess]
) -> None:
    """One connection of pipelined requests held the loop for ten seconds."""
    leader, term = asyncio.run(find_leader(three))
    lines, begin_s = len(leader.output.splitlines()), time.monotonic()
    with Busy(leader.flags["listen"]) as innocent:
        module = "tests.attacks.ports"
        attacker = begin(module, name, port_of(leader, name), seconds=ATTACK_S, connections=3)
        probes = []
        while attacker.poll() is None:
            probes.append(get(leader.http, "/ready")[0])
        found = outcome(attacker)
    assert innocent.failure is None, innocent.failure
    assert found["sent_bytes"] or name == "callers that say nothing", found
    assert probes
    assert set(probes) == {200}, probes
    assert asyncio.run(find_leader(three)) == (leader, term)
    assert not any("Traceback" in each.output for each in three)
    more = len(leader.output.splitlines()) - lines
    assert more <= PORTS * (LINES_AT_ONCE + (time.monotonic() - begin_s) / LINE_S)


def test_a_probe_is_answered_beside_any_number_of_slow_connections(
    three: list[ServeProcess],
) -> None:
    leader, _ = asyncio.run(find_leader(three))
    attacker = begin(
        "tests.attacks.ports", "slow heads", leader.http, seconds=ATTACK_S, connections=200
    )
    try:
        probes = [
            get(leader.http, path)[0] for _ in range(PROBES) for path in ("/ready", "/healthz")
        ]
    finally:
        attacker.communicate()
    assert probes == [200] * (2 * PROBES)
    # Only probes have room of their own: the page may have to wait for the end of the attack.
    limit = b'onelog_connections_max{port="http"} 64.0'
    until(lambda: limit in get(leader.http, "/metrics")[1])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServeProcess]:
    """A node whose segments are small: it opens files now and then."""
    with nodes(tmp_path, "a", shards="1", log_segment_bytes_max="64KiB") as made:
        yield made["a"]


def limited(node: ServeProcess, limits: str) -> ServeProcess:
    """Start a node with limits of the shell."""
    command = node.command
    node.prefix = ["sh", "-c", f'ulimit {limits}; exec "$@"', "sh"]
    assert node.command[-len(command) :] == command
    return node.start()


@pytest.mark.parametrize("port", ["listen", "peer-listen", "http-listen"])
def test_idle_connections_use_up_no_descriptor_that_the_node_needs(
    port: str, node: ServeProcess
) -> None:
    """More of them than the process may have files, from one address, before they say anything."""
    limited(node, f"-n {FILES_MAX}").until_ready()
    assert node.logged("the limit of open files leaves room")
    with Busy(node.flags["listen"]) as innocent:
        attacker = begin(
            "tests.attacks.clients", "connections without a preface", node.flags[port],
            times=IDLE, seconds=3.0,
        )  # fmt: skip
        while attacker.poll() is None:
            # A new client of another address gets in, and a probe does.
            client = Innocent(node.flags["listen"])
            client.put(b"key", bytes(1 << 15))
            client.close()
            assert get(node.http, "/ready")[0] == 200
        assert outcome(attacker)["connections"] == IDLE
    assert innocent.failure is None, innocent.failure
    assert node.is_running, node.output[-3000:]
    assert "Too many open files" not in node.output
    refused = b"onelog_connections_refused_total{port="
    assert until(lambda: refused in get(node.http, "/metrics")[1])


def put_until_it_fails(client: Innocent, written: list[bytes], value: bytes) -> None:
    """Put one key after the other; ``written`` has those that were acknowledged."""
    while True:
        key = b"%d" % len(written)
        client.put(key, value)
        written.append(key)


def alarms_of(stub: Any) -> set[str]:
    answer = stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=20)
    return {each.reason for each in answer.alarms}


def test_a_node_that_may_open_no_more_files_refuses_alarms_and_goes_on(node: ServeProcess) -> None:
    node.start().until_ready()
    assert node.process is not None
    pid = node.process.pid
    client = Innocent(node.flags["listen"])
    client.put(b"before", b"1")
    with grpc.insecure_channel(node.flags["listen"]) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        assert "TOO_MANY_OPEN_FILES" not in alarms_of(stub)
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
        written: list[bytes] = []
        with pytest.raises(AssertionError, match="Too many open files"):
            put_until_it_fails(client, written, os.urandom(8000))
        assert written
        assert "TOO_MANY_OPEN_FILES" in alarms_of(stub)
        for key in written:
            assert len(client.get(key)) == 8000
        assert node.is_running, node.output[-3000:]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        client.put(b"after", b"2")
        assert "TOO_MANY_OPEN_FILES" not in alarms_of(stub)
    client.close()
    assert node.terminate() == 0


def test_a_removed_data_directory_ends_the_node_before_another_put_is_acknowledged(
    node: ServeProcess,
) -> None:
    node.start().until_ready()
    client = Innocent(node.flags["listen"])
    client.put(b"before", b"1")
    shutil.rmtree(node.flags["data-dir"])
    with pytest.raises((AssertionError, ConnectionError)):
        client.put(b"after", b"2")
    client.close()
    assert node.wait() == 1
    assert "error: DIRECTORY_LOST: " in node.output.splitlines()[-1]

    node.flags["require-data"] = "true"
    assert node.start().wait() == 1
    assert "error: NOT_A_DATA_DIRECTORY: " in node.output.splitlines()[-1]
    assert not Path(node.flags["data-dir"]).exists()


def test_a_replaced_data_directory_ends_the_node_and_what_it_moved_is_whole(
    node: ServeProcess, tmp_path: Path
) -> None:
    node.start().until_ready()
    own, moved = Path(node.flags["data-dir"]), tmp_path / "moved"
    client = Innocent(node.flags["listen"])
    written: list[bytes] = []
    own.rename(moved)
    shutil.copytree(moved, own)
    with pytest.raises((AssertionError, ConnectionError)):
        put_until_it_fails(client, written, b"value")
    client.close()
    assert node.wait() == 1
    assert "error: DIRECTORY_LOST: " in node.output.splitlines()[-1]

    node.flags["data-dir"] = str(moved)
    node.start().until_ready()
    client = Innocent(node.flags["listen"])
    assert all(client.get(key) == b"value" for key in written)
    client.close()


def test_a_member_that_lost_its_directory_is_not_let_in_under_its_name(
    three: list[ServeProcess], tmp_path: Path
) -> None:
    """Neither as a founder nor as a newcomer, before an operator has removed it."""
    leader, _ = asyncio.run(find_leader(three))
    lost = next(each for each in three if each is not leader)
    lost.kill()
    for flags in (
        {"initial-cluster": lost.flags["initial-cluster"]},
        {"join": leader.flags["peer-listen"]},
    ):
        kept = {key: text for key, text in lost.flags.items() if key != "initial-cluster"}
        again = ServeProcess(tmp_path / next(iter(flags)), lost.name, kept | flags)
        again.flags["data-dir"] = str(again.directory / "data")
        assert again.start().wait() == 1
        last = again.output.splitlines()[-1]
        assert "error: FORMATION_REFUSED: " in last
        assert "remove the old member" in last
    lost.start().until_ready()


def test_a_node_without_memory_says_what_it_held_and_the_next_start_has_everything(
    node: ServeProcess,
) -> None:
    """A call may be refused for it; what the replicas need ends the process, in words."""
    node.start().until_ready()
    assert node.process is not None
    pid = node.process.pid
    client = Innocent(node.flags["listen"])
    written, refusals = list[bytes](), list[str]()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), -1))
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    for number in range(PUTS_MAX):
        if len(refusals) == REFUSALS_MAX:  # a call needs more than a replica: it refuses for good
            break
        key = b"%d" % number + bytes(KEY_BYTES)
        try:
            client.put(key, b"")
        except AssertionError as error:
            refusals.append(str(error))
            if NO_MEMORY not in refusals[-1]:
                break  # the replica has stopped, and soon the process will
        except ConnectionError:
            break
        else:
            written.append(key)
    if len(refusals) == REFUSALS_MAX:
        resource.prlimit(pid, resource.RLIMIT_AS, (-1, before[1]))
        client.put(b"after", b"")
        assert node.terminate() == 0
    else:
        assert node.wait() == 1
        last = node.output.splitlines()[-1]
        assert "error: OUT_OF_MEMORY: no more memory: " in last, node.output[-3000:]
        assert "keys" in last
    client.close()
    assert "please report" not in node.output

    node.start().until_ready()
    client = Innocent(node.flags["listen"])
    assert all(client.get(key) == b"" for key in written)
    client.close()
