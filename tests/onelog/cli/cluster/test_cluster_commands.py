"""``onelog cluster``: real servers, started, killed and stopped by the commands alone."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onelog import Client
from onelog.cli.cluster.commands import SHARDS_MAX
from onelog.cli.cluster.processes import (
    PortBlock,
    ProcessIdentity,
    find_ports,
    hold_ports,
    send,
    wait_for_end,
)
from onelog.cli.cluster.state import NODES_MAX, ClusterDirectory
from onelog.cli.failure import CommandFailed
from onelog.cli.main import run
from onelog.cluster.raft.membership import VOTERS_MAX
from onelog.ual.directory import SHARDS_MAX as SERVER_SHARDS_MAX
from tests.onelog.cli.forking import forking
from tests.onelog.cli.log.models import Result
from tests.onelog.cli.terminals import ERASE_LINE, HIDE_CURSOR, SHOW_CURSOR, Terminal
from tests.system.nodes import until
from tests.system.processes import ROOT

TIMEOUT_S = 120
BLOCK = 300

Command = Callable[..., Result]


def free_base(blocks: int = 1) -> int:
    """Return the first port of a free block, or of several in a row.

    From a range of this worker's own: between this look and the start others must not come first.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    with ExitStack() as held:
        first = 10_000 + worker % 7 * 3_000
        hold = partial(hold_ports, NODES_MAX, asked=None, remembered=None)
        found = held.enter_context(hold(first=first)).base
        for number in range(1, blocks):
            assert held.enter_context(hold(first=found)).base == found + number * BLOCK
        return found


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[ClusterDirectory]:
    """A directory for a cluster, none of whose nodes outlives the test."""
    made = ClusterDirectory(tmp_path / "cluster")
    yield made
    found = made.find()
    processes = [] if found is None else [node.process for node in found.nodes if node.process]
    for process in processes:
        send(process, signal.SIGKILL)
    assert wait_for_end(processes, TIMEOUT_S) == []


@pytest.fixture
def cluster(
    directory: ClusterDirectory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Command:
    """Run a command of ``onelog cluster`` on the directory."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def ask(command: str, *arguments: object) -> Result:
        code = run(["cluster", command, "--dir", str(directory.path), *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "INTERNAL" not in err, err
        assert "\x1b" not in out + err
        return Result(code, out, err)

    return ask


def status(cluster: Command) -> Any:
    asked = cluster("status", "--json")
    assert asked.code == (0 if asked.json["whole"] else 3)
    return asked.json


def until_led(cluster: Command) -> Any:
    """Return how the cluster is once somebody leads: on a busy machine there may be elections."""
    return until(lambda: found if (found := status(cluster))["shards"][0]["leader"] else None)


def until_equal(client: Client, endpoints: list[str]) -> None:
    """Wait until all replicas of the only shard have the same state."""

    def look() -> bool:
        found = [client.admin.state_hash(0, endpoint=each) for each in endpoints]
        return len({(each.index, each.state_hash) for each in found}) == 1

    until(look)


def test_a_cluster_goes_on_without_its_leader_and_takes_it_back(
    cluster: Command, directory: ClusterDirectory
) -> None:
    """What one wants to see before one believes in failover."""
    started = cluster("up", "--detach", "--shards", 1, "--port", free_base())
    assert started.code == 0, started
    assert f"cluster {directory.path} is up: 3 nodes, clients call 127.0.0.1:" in started.out
    assert "export ONELOG_ENDPOINTS=127.0.0.1:" in started.out
    before = until_led(cluster)
    assert [node["state"] for node in before["nodes"]] == ["serving"] * 3
    leader = before["shards"][0]["leader"]
    refused = cluster("up", "--detach")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: ALREADY_UP: 3 of 3 nodes")

    with Client(before["endpoints"], timeout_s=TIMEOUT_S) as client:
        client.kv.put("written", "before")
        pid = before["nodes"][leader - 1]["pid"]
        assert cluster("kill", leader).out == f"node {leader} was killed, process {pid}\n"
        assert "stopping" not in cluster("logs", leader).out, "a crash says nothing"
        client.kv.put("written", "without its leader")
        without = until_led(cluster)
        assert without["nodes"][leader - 1]["state"] == "down"
        assert without["shards"][0]["leader"] != leader
        again = cluster("kill", leader)
        assert again.code == 1
        assert again.err.startswith(f"error: NOT_RUNNING: node {leader} ")

        assert f"node {leader} is ready" in cluster("restart", leader).out
        until_equal(client, before["endpoints"])
        after = until_led(cluster)
        assert after["whole"]
        assert set(after["shards"][0]["behind"].values()) == {0}
        item = client.kv.get("written")
        assert item is not None
        assert item.value == b"without its leader"

    running = [node.process for node in directory.load().running]
    assert cluster("down").out == "3 nodes have ended\n"
    assert [process.is_running for process in running if process] == [False] * 3
    assert cluster("down").out == "no node was running\n"
    (line,) = cluster("status", "--watch", "--json").out.splitlines()  # it ends with the cluster
    assert (json.loads(line)["up"], json.loads(line)["events"]) == (False, [])
    # As people see it, and what the nodes said: they were asked to stop, and did.
    shown = cluster("status")
    assert (shown.code, len(re.findall(r"^\d +down +- +127", shown.out, re.MULTILINE))) == (3, 3)
    for number in (1, 2, 3):
        said = cluster("logs", number, "--lines", 10).out
        assert "SIGTERM: stopping" in said
        assert "onelog.node.server: stopped" in said


def test_a_node_that_was_removed_does_not_count_and_is_not_waited_for(
    cluster: Command, directory: ClusterDirectory
) -> None:
    flags = ("--raft-election-s-min", "2", "--raft-election-s-max", "4")
    started = cluster("up", "--detach", "--shards", 1, "--port", free_base(), "--", *flags)
    assert started.code == 0, started
    endpoints = status(cluster)["endpoints"]
    with Client(endpoints[:2], timeout_s=TIMEOUT_S) as client:
        ids = {each.node_name: each.node_id for each in client.admin.topology().nodes}
        assert cluster("kill", 3).code == 0
        assert cluster("status").code == 3
        client.admin.remove_member(ids["n3"])

        # It was down when that happened, so it does not know.
        def seen() -> Any:
            found = status(cluster)
            return found if found["whole"] else None

        found = until(seen)
        assert [node["state"] for node in found["nodes"]][2] == "removed"
        assert found["endpoints"] == endpoints[:2]
        assert "2 of 2 nodes serve" in cluster("status").out
        again = cluster("restart", 3)
        assert (again.code, again.out) == (1, "")
        assert again.err.startswith("error: MEMBER_REMOVED: node 3 was removed")
        assert cluster("down").code == 0
        up = cluster("up", "--detach")
        assert up.code == 0, up
        assert "is up: 2 nodes, clients call" in up.out
        assert "note: node 3 was removed from the cluster" in up.err

        # Taken back, it counts again.
        peers = directory.load().node(3).peer_address
        client.admin.add_member(ids["n3"], "n3", peers)
        assert cluster("restart", 3).code == 0
        assert status(cluster)["endpoints"] == endpoints
    assert cluster("down").code == 0


def test_a_cluster_comes_back_after_a_crash_and_no_stranger_is_signalled(
    cluster: Command, directory: ClusterDirectory
) -> None:
    """A machine that lost its power leaves a file that names processes of its last life."""
    base = free_base()
    assert cluster("up", "-d", "--nodes", 1, "--shards", 1, "--port", base).code == 0
    with Client(f"127.0.0.1:{base}", timeout_s=TIMEOUT_S) as client:
        client.kv.put("kept", "yes")
    (node,) = directory.load().nodes
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGKILL)
    assert wait_for_end([node.process], TIMEOUT_S) == []
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        with directory.changing():
            stale = ProcessIdentity(bystander.pid, node.process.started)
            directory.save(directory.load().with_process(1, stale))
        assert status(cluster)["nodes"][0]["state"] == "down"
        assert cluster("kill", 1).err.startswith("error: NOT_RUNNING")

        # The old port is taken meanwhile: the node moves.
        with socket.create_server(("127.0.0.1", base)):
            refused = cluster("up", "--detach", "--port", base)
            assert refused.err.startswith(f"error: PORT_TAKEN: port {base} is taken; ")
            back = cluster("up", "--detach", "--port", free_base())
            assert back.code == 0, back
            assert "was not brought down last time; its nodes recover" in back.err
            (moved,) = status(cluster)["endpoints"]
            assert moved != f"127.0.0.1:{base}"
            with Client(moved, timeout_s=TIMEOUT_S) as client:
                item = client.kv.get("kept")
                assert item is not None
                assert item.value == b"yes"
        assert cluster("down").out == "1 node has ended\n"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_view_tells_what_happens_and_brings_all_down_with_it(
    cluster: Command, directory: ClusterDirectory, tmp_path: Path
) -> None:
    """Without a terminal it writes a line for each event; Ctrl-C is SIGINT."""
    view = subprocess.Popen(
        [
            *(sys.executable, "-m", "onelog.cli.main", "cluster", "up"),
            *("--dir", directory.path, "--shards", "1", "--port", str(free_base())),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert view.stdout is not None
        assert " is up: 3 nodes" in view.stdout.readline()
        until_led(cluster)
        # The leader that the view knows: it says "moved" only after it has seen who led before.
        while not (led := re.search(r"node (\d) leads shard 0", view.stdout.readline())):
            assert view.poll() is None, view.communicate()
        leader = int(led[1])
        assert cluster("kill", leader).code == 0
        awaited = {f"node {leader} down\n", "leader of shard 0 moved to node"}
        while awaited:
            line = view.stdout.readline()
            assert line, (awaited, view.communicate())
            awaited = {part for part in awaited if part not in line}
        pids = [node.pid for node in directory.load().running]
        assert len(pids) == 2
        view.send_signal(signal.SIGINT)
        _, errors = view.communicate(timeout=TIMEOUT_S)
        assert view.returncode == 0, errors
        assert directory.load().running == ()
        assert not directory.load().is_up
    finally:
        view.kill()
        view.wait()


def test_views_on_a_terminal_replace_themselves_and_end_with_an_interrupt(
    directory: ClusterDirectory,
) -> None:
    place = ("--dir", directory.path)
    one = ("--nodes", 1, "--shards", 1, "--port", free_base())
    with Terminal("cluster", "up", *place, *one) as owner:
        owner.until("Ctrl-C brings all down.")
        with Terminal("cluster", "status", "--watch", *place) as guest:
            guest.until("Ctrl-C ends the view.", times=2)
            guest.interrupt()
            assert guest.end() == 0
        assert len(directory.load().running) == 1
        owner.interrupt()
        assert owner.end() == 0
    assert directory.load().running == ()
    for shown in (owner.shown, guest.shown):
        assert shown.count(HIDE_CURSOR) == shown.count(SHOW_CURSOR) >= 1
        assert ERASE_LINE in shown
        assert "1 of 1 nodes serve" in shown
        assert "Traceback" not in shown
    assert "starting 1 node in" in owner.shown
    assert "all nodes have ended" in owner.shown.rpartition(SHOW_CURSOR)[2]


def test_a_node_that_cannot_start_is_told_in_one_line_and_nothing_is_left(
    cluster: Command, directory: ClusterDirectory
) -> None:
    wrong = ("--", "--raft-heartbeat-s", "99")
    failed = cluster("up", "-d", "--nodes", 2, "--port", free_base(), *wrong)
    assert (failed.code, failed.out) == (1, "")
    (line,) = failed.err.splitlines()
    assert re.match(r"error: NODE_ENDED: node \d ended while it started: error: BAD_CONFIG: ", line)
    assert directory.load().running == ()
    # What was remembered of it does not bind the next one beyond its shape.
    assert directory.load().flags == ()
    other = cluster("up", "-d", "--nodes", 3)
    assert other.err.startswith("error: TOPOLOGY_MISMATCH: ")
    assert "--nodes 2" in other.err


def test_a_node_that_cannot_start_keeps_the_others_from_nothing(
    cluster: Command, directory: ClusterDirectory
) -> None:
    """One damaged disk must not take down a cluster that has a majority without it."""
    base = free_base()
    assert cluster("up", "-d", "--shards", 1, "--port", base).code == 0
    with Client(f"127.0.0.1:{base}", timeout_s=TIMEOUT_S) as client:
        client.kv.put("kept", "yes")
    assert cluster("down").code == 0
    segments = directory.node_path(2) / "data" / "00000" / "segs"
    path, *_ = sorted(segments.glob("*.flseg.tmp"))  # the first one has entries
    data = bytearray(path.read_bytes())
    data[100] ^= 0x10
    path.write_bytes(data)

    lame = cluster("up", "-d")
    assert lame.code == 3, lame
    assert "is up: 2 nodes, " in lame.out
    assert f"127.0.0.1:{base + 1}" not in lame.out
    (warning,) = lame.err.splitlines()
    said = "warning: node 2 did not start: error: SHARD_DAMAGED: shard 0 cannot start: "
    assert warning.startswith(said)
    assert str(path) in warning
    assert [node["state"] for node in status(cluster)["nodes"]] == ["serving", "down", "serving"]
    with Client(f"127.0.0.1:{base}", timeout_s=TIMEOUT_S) as client:
        item = client.kv.get("kept")
        assert item is not None
        assert item.value == b"yes"
    assert cluster("down").out == "2 nodes have ended\n"


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("status",), 1, "NO_CLUSTER"),
        (("kill", "1"), 1, "NO_CLUSTER"),
        (("logs", "1"), 1, "NO_CLUSTER"),
        (("down",), 1, "NO_CLUSTER"),
        (("kill", "one"), 2, "USAGE"),
        (("up", "--nodes", "0"), 2, "USAGE"),
        (("up", "--nodes", "10"), 2, "USAGE"),
        (("up", "--", "--name", "x"), 2, "USAGE"),
        (("up", "--", "--data-dir=/tmp"), 2, "USAGE"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    cluster: Command, arguments: tuple[str, ...], code: int, reason: str
) -> None:
    done = cluster(*arguments)
    assert (done.code, done.out) == (code, "")
    (line,) = done.err.splitlines()
    assert line.startswith(f"error: {reason}: ")


def test_nodes_that_do_not_exist_and_files_that_are_damaged_are_named(
    cluster: Command, directory: ClusterDirectory
) -> None:
    directory.path.mkdir()
    state = directory.path / "cluster.json"
    document = {
        "version": 1, "is_up": False, "base_port": 7400, "shards": 1, "flags": [],
        "processes": [None, None, None],
    }  # fmt: skip
    state.write_text(json.dumps(document))
    for command in ("kill", "restart", "logs"):
        done = cluster(command, 7)
        assert done.code == 1
        assert done.err == "error: UNKNOWN_NODE: there is no node 7; they are 1 to 3\n"
    assert cluster("restart", 1).err.startswith("error: NOT_RUNNING: the cluster in ")
    for damage in ("", "{}", "[]", '{"version": 2}', json.dumps(document | {"processes": []})):
        state.write_text(damage)
        done = cluster("status")
        assert done.code == 1
        assert done.err.startswith(f"error: CLUSTER_FILE_DAMAGED: {state}: ")
    state.unlink()


def test_a_block_with_a_taken_port_is_passed_over() -> None:
    base = free_base(3)
    with socket.create_server(("127.0.0.1", find_ports(base, 2).http)):
        with hold_ports(2, asked=None, remembered=None, first=base) as block:
            assert block.base == base + BLOCK
            # While they are held nobody else gets them, and another cluster none of the block.
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("127.0.0.1", block.base))
            block.hand_over(1)
            block.hand_over(2)
            with hold_ports(2, asked=None, remembered=base + BLOCK, first=base) as other:
                assert other.base == base + 2 * BLOCK
        with pytest.raises(CommandFailed, match=f"port {base + 201} is taken"):
            hold_ports(2, asked=base, remembered=None).__enter__()
    with PortBlock(base, 2):  # what was refused holds nothing
        pass


def test_limits_of_the_command_are_those_of_the_server() -> None:
    """The client's side knows nothing of the server, so they are written down twice."""
    assert NODES_MAX == VOTERS_MAX
    assert SHARDS_MAX == SERVER_SHARDS_MAX


def test_the_blocks_of_the_document_work_when_pasted(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    section = text[text.index("## A cluster on this machine") : text.index("## Containers")]
    (block,) = re.findall(r"^```sh\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
    assert "onelog cluster up --detach" in block
    script = block.replace("up --detach", f"up --detach --port {free_base()}")
    with forking(tmp_path) as programs:
        done = subprocess.run(
            ["bash", "-ec", f"trap 'onelog cluster down --stop-within 1 >&2' EXIT\n{script}"],
            cwd=tmp_path,
            env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in ("is up: 3 nodes", "node 1 was killed", "exit code 3", "node 1 is ready"):
        assert expected in done.stdout
    assert done.stderr == "no node was running\n"


def test_a_cluster_with_tls_serves_those_with_its_certificates_until_told_otherwise(
    cluster: Command, directory: ClusterDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = cluster("up", "--tls", "--detach", "--", "--cluster-name", "other")
    assert refused.err.startswith("error: USAGE: --cluster-name is decided")
    asked = cluster("up", "--tls", "--detach", "--nodes", 3, "--shards", 1, "--port", free_base())
    assert asked.code == 0, asked
    found = status(cluster)
    assert found["whole"]
    flags = asked.out.splitlines()[-1].removeprefix("with ").split()
    endpoints = ",".join(found["endpoints"])
    assert run(["kv", "put", "x", "1", "--endpoint", endpoints, *flags]) == 0
    capsys.readouterr()
    plain = ["kv", "get", "x", "--endpoint", endpoints]
    assert run([*plain, "--timeout", "3s"]) == 5
    assert run([*plain, "--timeout", "3s", *flags[:2]]) == 5  # it trusts the nodes: not enough
    capsys.readouterr()
    assert cluster("down").code == 0

    assert cluster("up", "--detach").code == 0  # as last time
    assert run([*plain, *flags]) == 0
    assert capsys.readouterr().out == "1\n"
    assert cluster("down").code == 0

    assert cluster("up", "--no-tls", "--detach").code == 0
    assert run(plain) == 0
    assert capsys.readouterr().out == "1\n"
    assert cluster("down").code == 0
    assert directory.certificates.stat().st_mode & 0o777 == 0o700
