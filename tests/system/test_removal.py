"""A node that its cluster has removed: it finds out, refuses every call, and ends or stays."""

import asyncio
from contextlib import suppress
from pathlib import Path

from onelog import Client
from onelog.channel import Channel, RpcError
from onelog.client.channels import METHODS
from onelog.node.edge.calls import SHARD_KEY
from onelog.node.errors import MemberRemoved
from onelog.status import error_of
from onelog.ual.directory import read_node
from onelog.ual.files import DiskFiles
from onelog.v1 import admin_pb2
from tests.node.membership.test_formation import SMALL, newcomer
from tests.system.nodes import ServeProcess, nodes, until
from tests.system.tls_nodes import PATIENT, connect, tls_nodes


def started(cluster: dict[str, ServeProcess]) -> list[ServeProcess]:
    processes = [each.start() for each in cluster.values()]
    for each in processes:
        each.until_ready()
    return processes


def find_id(process: ServeProcess) -> str:
    return str(read_node(DiskFiles(), process.directory / "data").node_id)


def shards(client: Client) -> list[admin_pb2.ShardMembers]:
    return list(client.admin.members().shards)


def find_members(client: Client) -> set[str]:
    return {each.node_id for shard in shards(client) for each in shard.members}


async def remove_from_shard(endpoint: str, shard: int, node_id: str) -> None:
    """Ask for the part of a removal that one shard does, as a node asks another."""
    channel = Channel(endpoint)
    request = admin_pb2.RemoveMemberRequest(node_id=node_id).SerializeToString()
    metadata = ((SHARD_KEY, str(shard)),)
    with suppress(RpcError):  # during an election, for example
        await channel.unary("/onelog.v1.Admin/RemoveMember", request, 10.0, metadata)
    await channel.close()


def remove(client: Client, process: ServeProcess) -> str:
    """Remove a node, whoever leads meanwhile; return its id."""
    node_id = find_id(process)

    def is_gone() -> bool | None:
        client.admin.remove_member(node_id)
        return node_id not in find_members(client) or None

    until(is_gone)
    return node_id


async def find_refusals(endpoint: str) -> dict[str, str]:
    """Call every method of the API; return the reasons of the refusals, empty of an answer."""
    reasons = {}
    channel = Channel(endpoint)
    for name, method in METHODS.items():
        try:
            async for _ in channel.stream(method.path, b""):
                break
        except RpcError as error:
            reasons[name] = error_of(error).reason
        else:
            reasons[name] = ""
    await channel.close()
    return reasons


def assert_ended_as_removed(process: ServeProcess) -> None:
    assert process.wait() == MemberRemoved.exit_code == 4
    last = process.output.splitlines()[-1]
    assert last.startswith("error: MEMBER_REMOVED: "), last
    assert "--join" in last


def test_a_removed_node_ends_with_its_own_exit_code_and_again_when_it_is_started(
    tmp_path: Path,
) -> None:
    with nodes(tmp_path, "n1", "n2", "n3", **SMALL, **PATIENT) as cluster:
        *others, removed = started(cluster)
        waiting = newcomer(tmp_path, "n4", others[0]).start()
        try:
            waiting.until_report(stage="electing")
            with Client([each.flags["listen"] for each in others], timeout_s=30) as client:
                node_id = remove(client, removed)
                assert_ended_as_removed(removed)
                assert_ended_as_removed(removed.start())

                # It is taken back as it is: its log tells it nothing of the removal.
                client.admin.add_member(node_id, "n3", removed.flags["peer-listen"])
                removed.start().until_ready()
                client.kv.put("k", "v")
            # One that was never added heard the same from the members all the time.
            assert waiting.is_running
            assert waiting.ready()[1]["stage"] == "electing"
        finally:
            waiting.kill()


def test_a_removed_node_that_is_kept_refuses_every_call_but_those_about_itself(
    tmp_path: Path,
) -> None:
    flags = {**SMALL, **PATIENT, "keep-after-removal": "true"}
    with nodes(tmp_path, "n1", "n2", "n3", **flags) as cluster:
        *others, removed = started(cluster)
        endpoint = removed.flags["listen"]
        with Client([each.flags["listen"] for each in others], timeout_s=30) as client:
            client.kv.put("k", "v")
            node_id = remove(client, removed)
            report = removed.until_report(stage="removed")
            assert report["ready"] is False
            assert "removed" in report["waiting_for"]
            assert removed.logged("stays for inspection")
            assert client.admin.status(endpoint=endpoint).node_id == node_id
            assert client.admin.state_hash(0, endpoint=endpoint).state_hash
        reasons = asyncio.run(find_refusals(endpoint))
        answered = {"GetStatus", "GetStateHash", "ListLogRanges", "ReadLog"}
        assert reasons == {
            name: "" if name.split("/")[1] in answered else "MEMBER_REMOVED" for name in METHODS
        }
        assert removed.is_running
        assert removed.terminate() == 0


def test_with_tls_a_removed_node_believes_a_member(tmp_path: Path) -> None:
    with tls_nodes(tmp_path, "n1", "n2", "n3") as cluster:
        *others, removed = started(cluster)
        with connect(tmp_path / "certs", *others) as client:
            remove(client, removed)
            assert_ended_as_removed(removed)


def test_a_node_that_only_some_shards_have_removed_says_which_and_goes_on(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", "n3", **SMALL, **PATIENT) as cluster:
        *others, removed = started(cluster)
        with Client([each.flags["listen"] for each in others], timeout_s=30) as client:
            node_id = find_id(removed)

            def is_half_gone() -> bool | None:
                asyncio.run(remove_from_shard(others[0].flags["listen"], 0, node_id))
                members = [{each.node_id for each in shard.members} for shard in shards(client)]
                assert node_id in members[1]
                return node_id not in members[0] or None

            until(is_half_gone)

            def is_said() -> bool | None:
                status, report = removed.ready()
                return (status == 503 and "from shard 0 only" in report["waiting_for"]) or None

            until(is_said)
            assert removed.is_running
            assert removed.ready()[1]["stage"] == "serving"
            remove(client, removed)
            assert_ended_as_removed(removed)


def test_a_removed_node_of_several_processes_ends_as_one(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", workers="2", **SMALL, **PATIENT) as cluster:
        other, removed = started(cluster)
        with Client([other.flags["listen"]], timeout_s=30) as client:
            remove(client, removed)
            assert removed.wait() == MemberRemoved.exit_code
            assert removed.output.splitlines()[-1].startswith("error: MEMBER_REMOVED: ")
            client.kv.put("k", "v")
