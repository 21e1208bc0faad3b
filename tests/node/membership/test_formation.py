"""How real processes come to be one cluster, and who is kept out of it."""

import shutil
import signal
from pathlib import Path

import pytest

from onelog.ual.directory import read_node, read_system
from onelog.ual.files import DiskFiles
from tests.system.nodes import ServeProcess, nodes, until
from tests.system.ports import free_addresses

SMALL = {"shards": "2", "partitions": "16"}


def newcomer(directory: Path, name: str, member: ServeProcess, **flags: str) -> ServeProcess:
    """Make a node that joins the cluster of another."""
    api, peers, http = free_addresses(3)
    return ServeProcess(
        directory / name,
        name,
        {
            "listen": api, "peer-listen": peers, "http-listen": http,
            "join": member.flags["peer-listen"],
            "log-ring-bytes": "1MiB", "log-free-bytes-min": "0",
            **{key.replace("_", "-"): text for key, text in flags.items()},
        },
    )  # fmt: skip


def test_three_nodes_found_one_cluster_and_one_of_them_may_be_late(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", "n3", **SMALL) as cluster:
        early = [cluster["n1"].start(), cluster["n2"].start()]
        for each in early:
            each.until_report(waiting_for="n3")
            status, report = each.ready()
            assert (status, report["ready"], report["stage"]) == (503, False, "forming")
        late = cluster["n3"].start()
        for each in (*early, late):
            each.until_ready()

        systems = [read_system(DiskFiles(), tmp_path / name / "data") for name in cluster]
        ids = {name: read_node(DiskFiles(), tmp_path / name / "data").node_id for name in cluster}
        assert len({each.cluster_id for each in systems}) == 1
        for system in systems:
            assert {each.name: each.node_id for each in system.founders} == ids
            assert system.cluster_name == "onelog"

        # They go on as the same cluster, without asking each other again.
        for each in cluster.values():
            assert each.terminate() == 0
        for each in cluster.values():
            each.start()
        for each in cluster.values():
            each.until_ready()


def test_a_node_that_was_killed_before_the_cluster_was_founded_goes_on(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", **SMALL) as cluster:
        first = cluster["n1"].start()
        first.until_report(stage="forming", waiting_for="n2")
        node = read_node(DiskFiles(), tmp_path / "n1" / "data")
        assert not (tmp_path / "n1" / "data" / "SYSTEM").exists()
        first.kill()

        for each in cluster.values():
            each.start()
        for each in cluster.values():
            each.until_ready()
        assert read_node(DiskFiles(), tmp_path / "n1" / "data") == node


def test_a_founder_that_lost_only_system_takes_it_from_the_others(tmp_path: Path) -> None:
    """As if it had been killed after the others had written theirs."""
    with nodes(tmp_path, "n1", "n2", **SMALL) as cluster:
        for each in cluster.values():
            each.start()
        for each in cluster.values():
            each.until_ready()
        late = cluster["n2"]
        late.kill()
        data = tmp_path / "n2" / "data"
        system = read_system(DiskFiles(), data)
        (data / "SYSTEM").unlink()
        for shard in ("00000", "00001"):
            shutil.rmtree(data / shard)

        late.start().until_ready()
        found = read_system(DiskFiles(), data)
        assert (found.cluster_id, found.founders) == (system.cluster_id, system.founders)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"shards": "4"}, "TOPOLOGY_MISMATCH"),
        ({"name": "n3", "initial-cluster": "n3={n2},n1={n1}"}, "FOUNDERS_MISMATCH"),
    ],
)
def test_founders_that_differ_say_so_on_both_sides_and_go_on_when_it_is_put_right(
    tmp_path: Path, flags: dict[str, str], reason: str
) -> None:
    with nodes(tmp_path, "n1", "n2", **SMALL) as cluster:
        right, wrong = cluster["n1"], cluster["n2"]
        addresses = {
            "n1": right.flags["peer-listen"],
            "n2": wrong.flags["peer-listen"],
        }
        good = dict(wrong.flags)
        wrong.flags |= {name: text.format(**addresses) for name, text in flags.items()}
        right.start()
        wrong.start()
        for each in (right, wrong):
            line = each.until_logged(f"{reason}: ")
            assert line["level"] == "warning"
            assert each.until_report(stage="forming")["ready"] is False
        assert not (tmp_path / "n1" / "data" / "SYSTEM").exists()

        assert wrong.terminate() == 0
        shutil.rmtree(tmp_path / "n2" / "data")  # the name, where that was wrong, is in NODE
        wrong.flags = good
        wrong.start()
        right.until_ready()
        wrong.until_ready()


def test_two_nodes_of_one_name_are_told_apart(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", **SMALL) as cluster:
        cluster["n2"].flags["name"] = "n1"
        for each in cluster.values():
            each.start()
        assert "looks for n2" in cluster["n2"].until_logged("WRONG_TARGET")["message"]
        cluster["n1"].until_logged("WRONG_TARGET")


def test_a_wiped_node_is_refused_and_told_what_to_do(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", "n3", **SMALL) as cluster:
        for each in cluster.values():
            each.start()
        for each in cluster.values():
            each.until_ready()
        wiped = cluster["n2"]
        wiped.kill()
        shutil.rmtree(tmp_path / "n2" / "data")

        assert wiped.start().wait() == 1
        assert "error: FORMATION_REFUSED: " in wiped.output
        assert "add it as a new member" in wiped.output.splitlines()[-1]
        refused = [*cluster["n1"].logged("NODE_REPLACED"), *cluster["n3"].logged("NODE_REPLACED")]
        assert refused
        assert not (tmp_path / "n2" / "data" / "SYSTEM").exists()


def test_a_newcomer_that_insists_on_something_else_gives_up(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", **SMALL) as cluster:
        member = cluster["n1"].start()
        member.until_ready()
        other = newcomer(tmp_path, "n2", member, cluster_name="sea")
        try:
            assert other.start().wait() == 1
            assert "error: FORMATION_REFUSED: " in other.output
            member.until_logged("CLUSTER_NAME_MISMATCH")
        finally:
            other.kill()


def test_a_newcomer_that_asks_at_a_port_for_clients_says_so_once(tmp_path: Path) -> None:
    """Whoever has mistaken one port for the other would wait for ever, and not know why."""
    with nodes(tmp_path, "n1", **SMALL) as cluster:
        member = cluster["n1"].start()
        member.until_ready()
        wrong = member.flags["listen"]
        other = newcomer(tmp_path, "n2", member, join=f"{wrong},{wrong}").start()
        try:
            said = other.until_logged("NOT_A_PEER_PORT: ")
            assert said["level"] == "warning"
            assert said["message"].startswith(f"{wrong} ")
            # /ready tells it before the second round; by then it has asked twice.
            until(lambda: "NOT_A_PEER_PORT" in other.ready()[1].get("waiting_for", ""))
            assert len(other.logged("NOT_A_PEER_PORT")) == 1
            assert other.logged(f"joining a cluster, waiting for an answer of {wrong}")
        finally:
            other.kill()


def test_a_newcomer_takes_the_topology_of_its_cluster_and_waits_to_be_added(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", **SMALL, cluster_name="lake") as cluster:
        member = cluster["n1"]
        other = newcomer(tmp_path, "n2", member).start()
        try:
            # Before there is anybody to join it waits.
            other.until_report(stage="forming")
            member.start().until_ready()
            other.until_report(stage="electing")
            ours, theirs = (
                read_system(DiskFiles(), tmp_path / name / "data") for name in ("n1", "n2")
            )
            assert (theirs.cluster_id, theirs.topology) == (ours.cluster_id, ours.topology)
            assert (theirs.founders, theirs.cluster_name) == (ours.founders, "lake")
            status, report = other.ready()
            node_id = read_node(DiskFiles(), tmp_path / "n2" / "data").node_id
            assert status == 503
            assert f"to be added as a member: {node_id} (n2)" in report["waiting_for"]
            # It counts nowhere, and goes on waiting after a restart.
            assert other.terminate() == 0
            other.start()
            other.until_report(stage="electing")
        finally:
            other.kill()


def test_a_directory_is_not_started_as_something_else(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", **SMALL) as cluster:
        node = cluster["n1"]
        node.start().until_ready()
        assert node.terminate(signal.SIGINT) == 0
        good = dict(node.flags)
        for flags, words in (
            ({"name": "n9"}, "belongs to node n1, not to n9"),
            ({"cluster-name": "other"}, "has cluster name onelog, other was asked for"),
            ({"shards": "3"}, "has shards 2, 3 was asked for"),
            ({"workers": "2"}, "of a node with one worker"),
        ):
            node.flags = good | flags
            assert node.start().wait() == 1
            assert words in node.output.splitlines()[-1]
            assert "Traceback" not in node.output
