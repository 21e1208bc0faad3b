"""What a view of a cluster makes of what it sees: events, rates, tables. No server is needed."""

import asyncio
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
from rich.console import Console

from onelog.cli.cluster import status as cluster_status
from onelog.cli.cluster.processes import find_ports
from onelog.cli.cluster.state import ClusterDirectory, LocalNode
from onelog.cli.cluster.status import (
    DOWN,
    RATE_LOOKS,
    SERVING,
    ClusterStatus,
    History,
    NodeStatus,
    Observer,
    Replica,
)
from onelog.cli.cluster.view import as_json, render, watching_hint
from onelog.v1 import admin_pb2


def node(number: int, *replicas: Replica) -> NodeStatus:
    return NodeStatus(
        number,
        f"127.0.0.1:{7399 + number}",
        SERVING,
        is_ready=True,
        pid=1000 + number,
        uptime_s=61.0,
        replicas=replicas,
    )


def replica(role: str, term: int, applied: int, commit: int | None = None) -> Replica:
    return Replica(0, role, term, applied if commit is None else commit, applied)


class Looks:
    """A cluster of one shard as a series of looks."""

    def __init__(self) -> None:
        self.observer = Observer(ClusterDirectory(Path("nowhere")))
        self.history = History()
        self.status = ClusterStatus(True, 0.0, (), ())

    def see(self, at_s: float, *nodes: NodeStatus) -> list[str]:
        shard = self.observer.combine(nodes, 1)
        self.status = ClusterStatus(True, at_s, nodes, shard)
        return [event.text for event in self.history.add(self.status)]

    def shown(self) -> str:
        console = Console(file=io.StringIO(), width=120, highlight=False, markup=False)
        console.print(render(Path("onelog-cluster"), self.status, self.history))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()


def down(number: int) -> NodeStatus:
    return NodeStatus(number, f"127.0.0.1:{7399 + number}", DOWN)


def test_a_failover_is_told_as_it_happens() -> None:
    looks = Looks()
    leader, follower = replica("leader", 1, 100), replica("follower", 1, 100)
    first = looks.see(0.0, node(1, leader), node(2, follower), node(3, follower))
    assert first == ["node 1 leads shard 0"]
    without = replica("follower", 1, 100)
    assert looks.see(0.5, down(1), node(2, without), node(3, without)) == [
        "node 1 down",
        "shard 0 has no leader",
    ]
    elected, other = replica("leader", 2, 130), replica("follower", 2, 120, 130)
    assert looks.see(1.0, down(1), node(2, elected), node(3, other)) == [
        "leader of shard 0 moved to node 2"
    ]
    (shard,) = looks.status.shards
    assert (shard.leader, shard.term, shard.commit_index) == (2, 2, 130)
    assert shard.behind == {1: 30, 2: 0, 3: 10}, "the dead one is where it was last seen"
    starting = replace(down(1), state="recovering", pid=7)
    assert looks.see(1.5, starting, node(2, elected), node(3, other)) == [
        "node 1 started, process 7"
    ]
    late = replica("follower", 2, 110)
    assert looks.see(2.0, node(1, late), node(2, elected), node(3, other)) == ["node 1 serving"]
    back = replica("follower", 2, 130)
    assert looks.see(2.5, node(1, back), node(2, elected), node(3, other)) == [
        "node 1 has caught up"
    ]


def test_what_nobody_tells_is_shown_as_unknown() -> None:
    looks = Looks()
    looks.see(0.0, down(1), down(2))
    rows = [line.split() for line in looks.shown().splitlines()]
    assert ["0", "none", "?", "?", "?", "-", "?", "?"] in rows
    (shard,) = as_json(Path("onelog-cluster"), looks.status, looks.history)["shards"]
    assert [shard[name] for name in ("term", "commit_index", "applied_index")] == [None] * 3


def test_a_leader_of_an_older_term_is_none() -> None:
    """It was cut off, and does not know yet that another one was elected."""
    looks = Looks()
    looks.see(0.0, node(1, replica("leader", 1, 5)), node(2, replica("follower", 2, 5)))
    assert looks.status.shards[0].leader is None
    looks.see(0.5, node(1, replica("leader", 1, 5)), node(2, replica("leader", 2, 5)))
    assert looks.status.shards[0].leader == 2


def test_a_leader_that_has_joined_from_elsewhere_is_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks()
    nodes = (node(1, replica("follower", 2, 5)),)
    looks.see(0.0, *nodes)
    assert not looks.status.is_whole
    topology = admin_pb2.GetTopologyResponse()
    topology.shards.add(shard=0, leader_endpoint="10.0.0.4:7400")
    client = SimpleNamespace(admin=SimpleNamespace(topology=AsyncMock(return_value=topology)))
    monkeypatch.setattr(looks.observer, "_client", lambda _: client)
    found = asyncio.run(looks.observer._look_elsewhere(nodes, looks.status.shards))
    looks.status = replace(looks.status, shards=found)
    assert looks.status.is_whole
    assert "10.0.0.4:7400" in looks.shown()
    # What one node believes of another one of ours says nothing: that one was asked itself.
    topology.shards[0].leader_endpoint = nodes[0].endpoint
    found = asyncio.run(looks.observer._look_elsewhere(nodes, looks.status.shards))
    assert [shard.leader_name for shard in found] == [None]


def test_a_node_that_waits_for_leaders_is_not_said_to_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready = {"stage": SERVING, "ready": False, "waiting_for": "a leader of shard 2"}
    monkeypatch.setattr(cluster_status, "_ask_ready", lambda _: ready)
    status = AsyncMock(return_value=admin_pb2.GetStatusResponse())
    looks = Looks()
    client = SimpleNamespace(admin=SimpleNamespace(status=status))
    monkeypatch.setattr(looks.observer, "_client", lambda _: client)
    process = Mock(pid=7, is_running=True)
    asked = asyncio.run(looks.observer._node(LocalNode(1, find_ports(7000, 1), process)))
    looks.see(0.0, asked)
    first, *others = looks.shown().splitlines()
    assert first.endswith("0 of 1 nodes serve")
    assert not any("serving" in line for line in others)
    assert any("waiting" in line and "waits for a leader of shard 2" in line for line in others)


def test_hints_name_the_directory_that_they_are_about() -> None:
    assert ClusterDirectory(Path("onelog-cluster")).line("up") == "onelog cluster up"
    other = ClusterDirectory(Path("a b"))
    assert other.line("restart 2") == "onelog cluster restart 2 --dir 'a b'"
    assert other.line("status") in watching_hint(other, is_owner=True)


def test_a_rate_is_what_was_applied_in_the_last_looks() -> None:
    looks = Looks()
    looks.see(0.0, node(1, replica("leader", 1, 1_000_000)))
    assert looks.history.entries_per_s(0) is None
    for look in range(1, RATE_LOOKS + 1):
        looks.see(look / 2, node(1, replica("leader", 1, 1_000_000 + 100 * look)))
    assert looks.history.entries_per_s(0) == 200
    looks.see(9.0, down(1))
    assert looks.history.entries_per_s(0) == 200, "a look without an answer says nothing"


def test_people_see_who_is_down_and_scripts_see_the_same() -> None:
    looks = Looks()
    looks.see(0.0, node(1, replica("leader", 3, 1234)), node(2, replica("follower", 3, 1234)))
    looks.see(0.5, node(1, replica("leader", 3, 2234)), down(2))
    lines = looks.shown().splitlines()
    assert lines[0] == "cluster onelog-cluster  1 of 2 nodes serve"
    rows = [line.split() for line in lines]
    assert ["1", "serving", "1001", "127.0.0.1:7400", "0", "0:01:01"] in rows
    assert ["2", "down", "-", "127.0.0.1:7401", "-", "-"] in rows
    assert ["0", "node", "1", "3", "2,234", "2,234", "2,000", "0", "1,000"] in rows
    assert lines[-1].endswith("  node 2 down")
    document = as_json(Path("onelog-cluster"), looks.status, looks.history)
    assert document["whole"] is False
    assert document["nodes"][1]["state"] == "down"
    assert document["shards"][0]["behind"] == {"1": 0, "2": 1000}
    assert document["shards"][0]["entries_per_s"] == 2000


def test_holds_are_shown_as_the_leader_sees_them() -> None:
    held = admin_pb2.Hold(
        name="nightly", index=12, bytes=3 << 20, bytes_max=16 << 30, age_ms=61_000
    )
    broken = admin_pb2.Hold(name="old", index=3, cause="HOLD_CAUSE_TIME", broken_index=99)
    looks = Looks()
    looks.see(
        0.0,
        node(1, replace(replica("leader", 1, 100), holds=(held, broken))),
        node(2, replace(replica("follower", 1, 100), holds=(held,))),
    )
    lines = looks.shown().splitlines()
    shown = "from index 12 on, 3 MiB of 16 GiB, set 1m1s ago"
    assert f"hold nightly in shard 0: {shown}" in lines
    assert "hold old in shard 0: broken by time at index 99" in lines
    document = as_json(Path("onelog-cluster"), looks.status, looks.history)
    assert [each["name"] for each in document["shards"][0]["holds"]] == ["nightly", "old"]


def test_names_from_servers_cannot_move_the_cursor() -> None:
    looks = Looks()
    looks.see(0.0, replace(node(1, replica("leader", 1, 1)), alarms=("BAD: \x1b[2J",)))
    assert "\x1b" not in looks.shown()
