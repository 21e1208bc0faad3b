"""A node whose state is wrong says so, with an exit code of its own; the others name it as well."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from onelog import Client
from onelog.cli.failure import EXIT_STATE_DIVERGED
from onelog.v1 import admin_pb2, log_pb2
from tests.system.nodes import ServeProcess, get, nodes, until
from tests.system.tls_nodes import PATIENT, status

NAMES = ("n1", "n2", "n3")


def connect(processes: Sequence[ServeProcess]) -> Client:
    return Client([each.flags["listen"] for each in processes], timeout_s=30.0)


def metric(process: ServeProcess, name: str, shard: int) -> float:
    """Return a metric of a shard, from the worker that has it."""
    worker = shard % int(process.flags["workers"])
    _, text = get(process.http, "/metrics", worker)
    start = f'{name}{{shard="{shard}"}} '
    line = next(each for each in text.decode().splitlines() if each.startswith(start))
    return float(line.rsplit(" ", 1)[1])


def shows_agreement(process: ServeProcess, shard: int, after_index: int) -> bool:
    """Return whether the page, which may be a second old, shows that states agree again."""
    agreed_index = metric(process, "onelog_state_agreed_index", shard)
    return agreed_index > after_index and not metric(process, "onelog_states_differ", shard)


def differing(client: Client, process: ServeProcess) -> admin_pb2.ShardStatus | None:
    """Return the shard whose states differ, once the replica that is wrong is known."""
    shards: Sequence[admin_pb2.ShardStatus] = status(client, process).shards
    for shard in shards:
        if shard.states.HasField("difference") and shard.states.difference.has_majority:
            return shard
    return None


def check_named(client: Client, process: ServeProcess) -> tuple[int, admin_pb2.StateDifference]:
    """Wait until a member names the replica that is wrong, everywhere; return shard and what."""
    shard = until(lambda: differing(client, process))
    number, found = shard.shard, shard.states.difference
    assert found.projections == [log_pb2.OWNER_KV]
    replicas = {each.node_name: each for each in found.replicas}
    assert {name for name, each in replicas.items() if each.has_stopped} == {"n3"}
    assert replicas["n1"].hashes == replicas["n2"].hashes != replicas["n3"].hashes
    (message,) = diverged(client, process)
    assert f"at index {found.index} in kv" in message
    assert f"n3 ({replicas['n3'].node_id}) stops" in message
    for name, each in replicas.items():
        assert f"{name} ({each.node_id}) has kv {each.hashes[0]:016x}" in message
    assert process.logged("STATE_DIVERGED")[-1]["level"] == "error"
    # The page may be a second old.
    until(lambda: metric(process, "onelog_states_differ", number) == 1)
    until(lambda: metric(process, "onelog_state_comparisons_total", number) > 0)
    return number, found


def diverged(client: Client, process: ServeProcess) -> list[str]:
    """Return the alarms of a node about states."""
    alarms = status(client, process).alarms
    return [each.message for each in alarms if each.reason == "STATE_DIVERGED"]


@pytest.mark.parametrize(("who", "workers"), [("leader", 1), ("follower", 1), ("follower", 2)])
def test_a_node_with_a_wrong_state_ends_and_is_named_by_all_until_states_agree(
    tmp_path: Path, who: str, workers: int
) -> None:
    flags = {"shards": str(workers), "partitions": str(workers), "shard_hash_index_step": "4"}
    with nodes(tmp_path, *NAMES, workers=str(workers), **flags, **PATIENT) as cluster:
        wrong, others = cluster["n3"], [cluster["n1"], cluster["n2"]]
        wrong.module = "tests.system.lying_node"
        for each in cluster.values():
            each.start()
        for each in cluster.values():
            each.until_ready()
        with connect(others) as client:
            wrong_id = status(client, wrong).node_id
            for each in status(client, wrong).shards:
                if who == "leader":
                    client.admin.transfer_leadership(each.shard, wrong_id)
                elif each.leader_id == wrong_id:
                    client.admin.transfer_leadership(each.shard)
            for number in range(8):
                client.kv.put(b"key", b"%d" % number)
            assert wrong.wait() == EXIT_STATE_DIVERGED
            lines = [
                each for each in wrong.output.splitlines() if "error: STATE_DIVERGED: " in each
            ]
            assert "Traceback" not in wrong.output
            assert "INTERNAL" not in wrong.output

            for process in others:
                number, found = check_named(client, process)
            # What it says itself, in its last line: the same index, hashes and replica.
            assert len(lines) == 1
            for part in (
                f"at index {found.index} in kv",
                *(f"{each.node_id} has kv {each.hashes[0]:016x}" for each in found.replicas),
                f"{wrong_id} stops",
            ):
                assert part in lines[0]

            # On a good machine its log gives the right state.
            wrong.module = "onelog.cli.main"
            wrong.start().until_ready()

            def agree() -> bool:
                client.kv.put(b"key", b"again")
                # While a worker is starting its node shows the shards of the others.
                shown = {
                    name: each.states
                    for name, process in cluster.items()
                    for each in status(client, process).shards
                    if each.shard == number
                }
                return shown.keys() == cluster.keys() and all(
                    not each.HasField("difference") and each.agreed_index > found.index
                    for each in shown.values()
                )

            until(agree)
            for process in cluster.values():
                assert not diverged(client, process)
                until(partial(shows_agreement, process, number, found.index))
