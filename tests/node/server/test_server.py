"""A node as its operators see it: readiness, health, ends, spread leaders, workers."""

import json
import os
import re
import signal
import time
from pathlib import Path
from uuid import UUID

import grpc  # type: ignore[import-untyped]
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (  # type: ignore[import-untyped]
    ProtoReflectionDescriptorDatabase,
)

from onelog.node.membership.balance import chosen_leader
from onelog.projections.kv.commands import Put, encode_command
from onelog.ual.directory import DataDirectory
from onelog.ual.files import DiskFiles
from onelog.ual.recovery import open_hard_state, open_log
from tests.system.nodes import ServeProcess, get, nodes, until
from tests.system.ports import free_ports

SMALL = {"shards": "3", "partitions": "16"}
SERVING = health_pb2.HealthCheckResponse.SERVING


def health(address: str) -> int:
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5, wait_for_ready=True)
        return int(answer.status)


def leaders(node: ServeProcess) -> dict[str, str | None]:
    """Return who leads which shard in the eyes of a node."""
    _, report = node.ready()
    return {shard: each["leader_id"] for shard, each in report.get("shards", {}).items()}


def test_a_node_without_settings_is_a_database_that_says_where_it_listens(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1") as made:
        node = made["n1"].start()
        report = node.until_ready()
        assert list(report["shards"]) == ["0"], "all keys of a newcomer are transactional together"
        line = node.until_logged("serving on")
        assert (line["api"], line["http"]) == (node.flags["listen"], node.http)
        assert get(node.http, "/healthz") == (200, b"ok\n")
        assert until(lambda: health(line["api"]) == SERVING)
        with grpc.insecure_channel(line["api"]) as channel:
            services = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert "grpc.health.v1.Health" in services

        status, body = get(node.http, "/metrics")
        assert status == 200
        found = dict(re.findall(r"^(onelog_\S+) (\S+)$", body.decode(), re.MULTILINE))
        assert found["onelog_ready"] == "1.0"
        assert found['onelog_is_leader{shard="0"}'] == "1.0"
        assert float(found['onelog_sync_seconds_count{shard="0"}']) >= 1

        assert node.terminate() == 0
        messages = [json.loads(line)["message"] for line in node.output.splitlines()]
        assert messages[-2:] == ["SIGTERM: stopping", "stopped"]

        # The same directory, by another process at the same time: one of them is refused.
        node.start().until_ready()
        second = ServeProcess(tmp_path / "n1", "n1", dict(node.flags))
        assert second.start().wait() == 1
        assert "error: DIRECTORY_IN_USE" in second.output.splitlines()[-1]
        node.process.kill()  # type: ignore[union-attr]
        assert node.wait() == -signal.SIGKILL


def test_leaders_are_spread_and_a_node_that_stops_hands_its_own_over(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", "n3", **SMALL, cluster_balance_period_s="0.2") as cluster:
        for each in cluster.values():
            each.start()
        for each in cluster.values():
            each.until_ready()

        def spread() -> dict[str, str | None] | None:
            seen = [leaders(each) for each in cluster.values()]
            found = set(seen[0].values())
            if len(found) != 3 or None in found or not seen[0] == seen[1] == seen[2]:
                return None
            # Elections may spread them by chance; what lasts is the choice by number and id.
            ids = sorted(map(str, found))
            is_chosen = all(leader == ids[int(shard) % 3] for shard, leader in seen[0].items())
            return seen[0] if is_chosen else None

        before = until(spread)
        leaving = cluster["n1"]
        leaving_id = leaving.until_logged("of cluster")["message"].split("(")[1].split(")")[0]
        own = [shard for shard, leader in before.items() if leader == leaving_id]
        assert len(own) == 1
        started_s = time.monotonic()
        assert leaving.terminate() == 0
        assert leaving.logged(f"handed the leadership of shard {own[0]} to ")
        assert time.monotonic() - started_s < 10
        status, _ = cluster["n2"].ready()
        assert status == 200

        # Back again, it gets its share back.
        leaving.start().until_ready()
        until(lambda: spread() == before)


def test_clients_are_told_when_a_node_stops(tmp_path: Path) -> None:
    """A health watch is a call that never ends: it sees the change before the connection ends."""
    with nodes(tmp_path, "n1", **SMALL) as made:
        node = made["n1"].start()
        node.until_ready()
        seen: list[int] = []
        with grpc.insecure_channel(node.flags["listen"]) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=30, wait_for_ready=True)
            try:
                for answer in watch:
                    seen.append(answer.status)
                    if answer.status == SERVING and seen.count(SERVING) == 1:
                        node.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
            except grpc.RpcError:
                pass
        assert seen[-1] == health_pb2.HealthCheckResponse.NOT_SERVING
        assert node.wait() == 0


def test_a_node_that_waits_for_others_stops_when_asked(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", **SMALL) as cluster:
        node = cluster["n1"].start()
        node.until_report(waiting_for="n2")
        assert health(node.flags["listen"]) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert node.terminate(signal.SIGINT) == 0


def test_a_long_recovery_is_watched_and_can_be_stopped(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", shards="1", partitions="1") as made:
        node = made["n1"]
        node.start().until_ready()
        assert node.terminate() == 0
        write_entries(tmp_path / "n1" / "data", count=60 * 4096)

        def recovering() -> dict[str, int] | None:
            _, report = node.ready()
            if report.get("stage") == "recovering":
                found: dict[str, int] = report["shards"]["0"]["recovery"]
                return found if 0 < found["done"] < found["total"] else None
            return None

        node.start()
        first = until(recovering)
        assert first["total"] >= 60 * 4096
        assert get(node.http, "/healthz") == (200, b"ok\n")
        assert health(node.flags["listen"]) == health_pb2.HealthCheckResponse.NOT_SERVING
        later = until(lambda: at if (at := recovering()) and at["done"] > first["done"] else None)
        assert later["total"] == first["total"]
        assert node.terminate() == 0  # in the middle of it
        node.start()
        report = node.until_ready()
        assert report["shards"]["0"]["applied_index"] > 60 * 4096


def write_entries(data_dir: Path, count: int) -> None:
    """Write a log of committed entries that takes a while to replay."""
    files = DiskFiles()
    with DataDirectory.open_existing(files, data_dir, lock=True) as directory:
        paths = directory.shard_path(0)
        log, _ = open_log(files, paths, open_hard_state(files, paths), shard=0)
        for start in range(0, count, 4096):
            drafts = [
                encode_command(Put(b"key-%d" % (start + number), b"value"), "default")
                for number in range(4096)
            ]
            log.append(drafts, term=1, timestamp_ns=log.last_timestamp_ns)
        log.sync()
        log.mark_committed(log.last_index)
        log.close()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", **SMALL) as made:
        node = made["n1"].start()
        node.until_ready()
        settings = {}
        for flag, setting in (
            ("listen", "listen.api"),
            ("peer-listen", "listen.peers"),
            ("http-listen", "listen.http"),
        ):  # fmt: skip
            settings[flag] = f"{setting} (--{flag})"
            flags = node.flags | {
                "data-dir": str(tmp_path / "other"), "listen": "127.0.0.1:0",
                "peer-listen": "127.0.0.1:0", "http-listen": "127.0.0.1:0",
            }  # fmt: skip
            other = ServeProcess(tmp_path / "n2", "n1", flags | {flag: node.flags[flag]})
            assert other.start().wait() == 1
            last = other.output.splitlines()[-1]
            assert last.startswith("error: BAD_CONFIG: cannot listen")
            assert settings[flag] in last
        # And all at once: the second server on a machine is started with three other ports.
        same = node.flags | {"data-dir": str(tmp_path / "other")}
        other = ServeProcess(tmp_path / "n2", "n1", same)
        assert other.start().wait() == 1
        last = other.output.splitlines()[-1]
        assert [each in last for each in settings.values()] == [True] * 3


def test_workers_share_the_shards_and_end_together(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", **SMALL) as made:
        node = made["n1"]
        base = free_ports(9)
        node.flags |= {
            "workers": "2",
            "listen": f"127.0.0.1:{base}",
            "peer-listen": f"127.0.0.1:{base + 3}",
            "http-listen": f"127.0.0.1:{base + 6}",
        }
        node.start()
        reports = [node.until_ready(worker) for worker in range(2)]
        assert [list(each["shards"]) for each in reports] == [["0", "2"], ["1"]]
        ids = {json.loads((tmp_path / f"n1/data/{at}NODE").read_text())["node_id"]
               for at in ("", "worker-0/", "worker-1/")}  # fmt: skip
        assert len(ids) == 1
        assert node.terminate() == 0
        assert len(node.logged("stopped")) == 2

        # One that dies takes the node with it, in order.
        node.start()
        for worker in range(2):
            node.until_ready(worker)
        pid = int(node.logged("worker 1 is process")[-1]["message"].split()[-1])
        os.kill(pid, signal.SIGKILL)
        assert node.wait() == 1
        assert "error: WORKER_FAILED: worker 1 ended by signal 9" in node.output.splitlines()[-1]
        assert len(node.logged("stopped")) == 3

        node.flags["workers"] = "3"
        assert node.start().wait() == 1
        assert "has workers 2, 3 was asked for" in node.output


@pytest.mark.parametrize("voters", [1, 2, 3, 5])
def test_chosen_leaders_are_even_whoever_is_away(voters: int) -> None:
    ids = [UUID(int=number) for number in range(1, voters + 1)]
    shards = range(4 * 3 * 5 * 4)
    for away in [None, *ids]:
        present = [each for each in ids if each != away]
        chosen = [chosen_leader(shard, ids, present) for shard in shards]
        if not present:
            assert set(chosen) == {None}
            continue
        counts = [chosen.count(each) for each in present]
        assert sum(counts) == len(shards)
        assert max(counts) - min(counts) <= len(ids), counts
