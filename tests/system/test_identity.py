"""Who may speak as a node: real nodes with TLS, attackers with certificates, files that change."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from onelog import Client, Tls
from onelog.channel import Channel, RpcError, client_tls
from onelog.cli.cluster.certificates import Authority, NodeRequest
from onelog.errors import InvalidArgument, OnelogError
from onelog.node.edge.exchange import CLIENT_KEY
from onelog.v1 import kv_pb2, pipeline_pb2
from tests.attacks.impersonate import ENDPOINT, TERM_FIRST
from tests.system.certificates import Certificate, signed
from tests.system.nodes import ServeProcess, get, until
from tests.system.ports import free_addresses
from tests.system.processes import ROOT
from tests.system.tls_nodes import (
    CLIENT,
    HOSTS,
    Putting,
    connect,
    make_certificates,
    status,
    tls_flags,
    tls_nodes,
)

ATTACK_S = "3"
ATTACK_S_MAX = 120.0
EXPIRED_DAYS = -0.001
NOT_FOR_LONG_DAYS = 10.0
CALLS_MAX = 64  # of all clients; one may have a quarter of them


def started(cluster: dict[str, ServeProcess]) -> list[ServeProcess]:
    for each in cluster.values():
        each.start()
    for each in cluster.values():
        each.until_ready()
    return list(cluster.values())


def test_a_client_that_poses_as_the_leader_is_refused_and_told_nothing(tmp_path: Path) -> None:
    """A follower believed it and forwarded calls to it: acknowledged puts were never written."""
    certs = tmp_path / "certs"
    with tls_nodes(tmp_path, "n1", "n2", "n3") as cluster:
        processes = started(cluster)
        with connect(certs, *processes) as client:
            topology = client.admin.topology()
            leader_id = topology.shards[0].leader_id
            leader = next(each for each in topology.nodes if each.node_id == leader_id)
            targets = [
                f"{each.node_id}={cluster[each.node_name].flags['peer-listen']}"
                for each in topology.nodes
                if each.node_id != leader_id
            ]
            command = [
                sys.executable, "-m", "tests.attacks.impersonate", certs, "ca", f"client-{CLIENT}",
                topology.cluster_id, "1", "1", ATTACK_S, leader_id, leader.node_name, *targets,
            ]  # fmt: skip
            with Putting(client) as putting:
                attack = subprocess.run(
                    command, cwd=ROOT, capture_output=True, timeout=ATTACK_S_MAX, check=True
                )
            found = json.loads(attack.stdout)
            tried = found["rounds"] * len(targets)
            assert found["answers"] == {
                "introduce: REFUSED CERTIFICATE_MISMATCH": tried,
                "leaders: CLOSED": tried,
                "hello: REFUSED CERTIFICATE_MISMATCH": tried,
            }
            for each in processes:
                with connect(certs, each) as other:
                    assert known_nodes(other) == known_nodes(client)
            assert ENDPOINT not in str(known_nodes(client))
            # There may be an election on a busy machine, but none of the attacker's terms.
            terms = [status(client, each).shards[0].term for each in processes]
            assert max(terms) < TERM_FIRST
            putting.verify()


def known_nodes(client: Client) -> dict[str, tuple[str, ...]]:
    """Return where a node says that the nodes can be called."""
    return {each.node_name: tuple(each.endpoints) for each in client.admin.topology().nodes}


def test_certificates_and_authorities_are_replaced_while_puts_go_on(tmp_path: Path) -> None:
    """In three steps: trust both authorities, show certificates of the new one, trust it alone."""
    certs, names = tmp_path / "certs", ("n1", "n2", "n3")
    with tls_nodes(tmp_path, *names) as cluster:
        processes = started(cluster)
        old_client = tmp_path / "old"
        shutil.copytree(certs, old_client)
        make_certificates(tmp_path / "new", *names)
        both = (certs / "ca.crt").read_bytes() + (tmp_path / "new" / "ca.crt").read_bytes()
        replace(certs / "ca.crt", both)
        with connect(certs, *processes) as client:
            with Putting(client) as putting:
                until_reloaded(processes, 1)
                for name in (*names, f"client-{CLIENT}"):
                    for end in ("key", "crt"):  # a server may look in between
                        data = (tmp_path / "new" / f"{name}.{end}").read_bytes()
                        replace(certs / f"{name}.{end}", data)
                until_reloaded(processes, 2)
                # New connections, in both directions, with the new certificates.
                processes[0].kill()
                processes[0].start().until_ready()
            putting.verify()
        with connect(certs, *processes) as client:
            with Putting(client) as putting:
                known = {each.name: reloads(each) for each in processes}
                replace(certs / "ca.crt", (tmp_path / "new" / "ca.crt").read_bytes())
                for each in processes:
                    until_reloaded([each], known[each.name] + 1)
                processes[1].kill()
                processes[1].start().until_ready()
            putting.verify()
        shutil.copy(certs / "ca.crt", old_client / "ca.crt")
        with pytest.raises(OnelogError):  # the authority of before is trusted no more
            connect(old_client, *processes, timeout_s=3.0).connect()


def reloads(process: ServeProcess) -> int:
    return len(process.logged("are used for new connections"))


def until_reloaded(processes: list[ServeProcess], times: int) -> None:
    for each in processes:
        until(lambda each=each: reloads(each) >= times or None)  # type: ignore[misc]


def replace(path: Path, data: bytes) -> None:
    """Replace a file at once; a key stays one that others cannot read."""
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(data)
    temporary.chmod(0o600)
    temporary.replace(path)


def alarms(process: ServeProcess, certs: Path) -> list[str]:
    with connect(certs, process) as client:
        return sorted({each.reason for each in status(client, process).alarms})


def expiry_s(process: ServeProcess, certificate: str) -> float:
    _, text = get(process.http, "/metrics")
    name = f'onelog_certificate_expiry_timestamp_seconds{{certificate="{certificate}"}}'
    line = next(each for each in text.decode().splitlines() if each.startswith(name))
    return float(line.rsplit(" ", 1)[1])


def test_a_certificate_that_expires_is_a_metric_a_warning_and_an_alarm(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    with tls_nodes(tmp_path, "n1") as cluster:
        (node,) = cluster.values()
        authority = make_certificates(certs, "n1", days=NOT_FOR_LONG_DAYS)
        node.start().until_ready()
        assert alarms(node, certs) == ["CERTIFICATE_EXPIRES"]
        line = node.until_logged("CERTIFICATE_EXPIRES")
        assert line["level"] == "warning"
        assert "n1.crt expires in 9 days" in line["message"]
        for name in ("api_cert", "peer_cert"):
            left_s = expiry_s(node, name) - time.time()
            assert 0 < left_s < (NOT_FOR_LONG_DAYS + 1) * 86_400
        assert expiry_s(node, "peer_ca") > time.time() + 86_400 * 1_000

        authority.issue_node(NodeRequest("n1", HOSTS), 90)
        until(lambda: reloads(node) or None)
        assert alarms(node, certs) == []
        until(lambda: expiry_s(node, "peer_cert") > time.time() + 86_400 * 60)

        # What cannot be used is not used, and said.
        (certs / "n1.key").write_text("no key")
        until(lambda: alarms(node, certs) == ["CERTIFICATE_UNUSABLE"] or None)
        authority.issue_node(NodeRequest("n1", HOSTS), 90)
        until(lambda: alarms(node, certs) == [] or None)


def test_an_expired_certificate_is_refused_by_the_others_until_it_is_replaced(
    tmp_path: Path,
) -> None:
    certs = tmp_path / "certs"
    with tls_nodes(tmp_path, "n1", "n2", "n3") as cluster:
        authority = Authority(certs, "onelog")
        authority.issue_node(NodeRequest("n3", HOSTS), EXPIRED_DAYS)
        for each in cluster.values():
            each.start()
        cluster["n3"].until_logged("CERTIFICATE_EXPIRED")
        for name in ("n1", "n2"):
            cluster[name].until_report(stage="forming")
        authority.issue_node(NodeRequest("n3", HOSTS), 90)
        for each in cluster.values():
            each.until_ready()


def fails_with(process: ServeProcess, reason: str) -> str:
    """Start a node that cannot start; return what it says."""
    process.start()
    assert process.wait() == 1
    assert f"error: {reason}: " in process.output
    return process.output


def test_bad_keys_and_certificates_are_named_before_anything_starts(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    with tls_nodes(tmp_path, "n1") as cluster:
        (node,) = cluster.values()
        data = Path(node.flags["data-dir"])

        (certs / "n1.key").chmod(0o640)
        assert f"chmod 600 {certs / 'n1.key'}" in fails_with(node, "KEY_EXPOSED")
        (certs / "n1.key").chmod(0o600)

        node.flags["peer-tls-key"] = str(certs / f"client-{CLIENT}.key")
        fails_with(node, "KEY_MISMATCH")
        node.flags |= tls_flags(certs, "n1")

        ca = Certificate(certs / "ca.key", certs / "ca.crt")
        for uses in ("serverAuth", "clientAuth"):
            signed(certs, "short", ca, names=("URI:onelog://onelog/n1",), uses=uses)
            node.flags |= {
                "peer-tls-cert": str(certs / "short.crt"),
                "peer-tls-key": str(certs / "short.key"),
            }
            fails_with(node, "CERTIFICATE_UNFIT")
        assert not data.exists()

        Authority(certs, "onelog").issue_node(NodeRequest("n2", HOSTS), 90)
        node.flags |= tls_flags(certs, "n2")
        assert "onelog://onelog/n2" in fails_with(node, "CERTIFICATE_UNFIT")
        Authority(certs, "other").issue_node(NodeRequest("n1", HOSTS), 90)
        node.flags |= tls_flags(certs, "n1")
        fails_with(node, "CERTIFICATE_UNFIT")  # of a node of another cluster
        Authority(certs, "onelog").issue_node(NodeRequest("n1", HOSTS), 90)
        node.start().until_ready()


def test_a_new_member_is_added_by_the_name_that_its_certificate_has(tmp_path: Path) -> None:
    """The name is in the log: every member knows whose certificate belongs to the new id."""
    certs = tmp_path / "certs"
    with tls_nodes(tmp_path, "n1", "n2", "n3") as cluster:
        processes = started(cluster)
        make_certificates(certs, "n4")
        listen, peers, http = free_addresses(3)
        newcomer = ServeProcess(
            tmp_path / "n4",
            "n4",
            {
                **tls_flags(certs, "n4"),
                "listen": listen, "peer-listen": peers, "http-listen": http,
                "join": processes[0].flags["peer-listen"], "log-free-bytes-min": "0",
            },
        )  # fmt: skip
        try:
            newcomer.start()
            node_id = newcomer.until_logged("node n4 (")["message"].split("(")[1][:36]
            with connect(certs, *processes) as client:
                for name in ("", "n1"):
                    with pytest.raises(InvalidArgument, match="NODE_NAME_INVALID"):
                        client.admin.add_member(node_id, name, peers)
                client.admin.add_member(node_id, "n5", peers)
                until(lambda: refused_as_mismatch(client, processes[0], node_id) or None)
                client.admin.remove_member(node_id)
                client.admin.add_member(node_id, "n4", peers)
                newcomer.until_ready()
                for each in processes:
                    until(lambda each=each: is_connected(client, each, node_id) or None)  # type: ignore[misc]
        finally:
            newcomer.kill()


def refused_as_mismatch(client: Any, process: ServeProcess, node_id: str) -> bool:
    """Tell whether either side has said that the newcomer's certificate has another name."""
    return bool(process.logged("CERTIFICATE_MISMATCH")) and not is_connected(
        client, process, node_id
    )


def is_connected(client: Any, process: ServeProcess, node_id: str) -> bool:
    return any(each.node_id == node_id and each.connected for each in status(client, process).peers)


def test_a_client_is_not_believed_that_it_calls_for_others(tmp_path: Path) -> None:
    """Limits count by client: one that names a new client with each call would have none."""
    certs = tmp_path / "certs"

    async def open_calls(process: ServeProcess, own: str) -> int:
        """Open streams for as many clients as there may be calls; return how many are let in."""
        parts = ((certs / name).read_bytes() for name in ("ca.crt", f"{own}.crt", f"{own}.key"))
        channel = Channel(process.flags["listen"], tls=client_tls(*parts))
        request = pipeline_pb2.WatchRequest(progress_ms=1_000).SerializeToString()
        calls = [
            channel.stream(
                "/onelog.v1.Pipeline/Watch", request, ((CLIENT_KEY, f"client-{number}"),)
            )
            for number in range(CALLS_MAX // 2)
        ]

        async def is_refused(call: Any) -> bool:
            try:
                async for _ in call:
                    return False
            except RpcError as error:
                return b"TOO_MANY_REQUESTS" in (error.details or b"")
            return False

        waiting = [asyncio.create_task(is_refused(call)) for call in calls]
        try:
            return [await each for each in waiting].count(False)
        finally:
            await channel.close()

    with tls_nodes(tmp_path, "n1", limits_concurrent_rpcs_max=str(CALLS_MAX)) as cluster:
        (node,) = cluster.values()
        node.start().until_ready()
        assert asyncio.run(open_calls(node, f"client-{CLIENT}")) == CALLS_MAX // 4
        assert asyncio.run(open_calls(node, "n1")) == CALLS_MAX // 2


def test_clients_need_no_certificate_where_no_authority_for_them_is_given(tmp_path: Path) -> None:
    """Nodes still know each other: they show the certificate for peers when they forward calls."""
    certs = tmp_path / "certs"
    with tls_nodes(tmp_path, "n1", "n2", "n3", shards="3", partitions="3") as cluster:
        for each in cluster.values():
            del each.flags["tls-client-ca"]
        processes = started(cluster)
        trusting = Tls(ca=(certs / "ca.crt").read_bytes())
        for each in processes:
            request = kv_pb2.PutRequest(value=b"1")
            with Client(each.flags["listen"], timeout_s=30, tls=trusting) as client:
                assert len(client.admin.topology().nodes) == len(processes)
            for key in (b"a", b"b", b"c", b"d", b"e", b"f"):
                request.key = key
                asyncio.run(call(each, "/onelog.v1.KV/Put", request.SerializeToString(), certs))


async def call(process: ServeProcess, path: str, request: bytes, certs: Path) -> bytes:
    """Call one node without a certificate, whoever leads."""
    channel = Channel(
        process.flags["listen"], tls=client_tls((certs / "ca.crt").read_bytes(), None, None)
    )
    try:
        return await channel.unary(path, request, 30.0)
    finally:
        await channel.close()


def test_the_workers_of_a_node_know_each_other_by_its_certificate(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    flags = {"shards": "2", "partitions": "2", "workers": "2"}
    with tls_nodes(tmp_path, "n1", **flags) as cluster:
        (node,) = cluster.values()
        node.start().until_ready()
        node.until_ready(port_plus=1)
        with connect(certs, node) as client:
            for number in range(8):
                client.kv.put(f"k{number}", "1")
            until(lambda: len(status(client, node).shards) == 2 or None)
            assert not status(client, node).alarms
            known = {each.shard: each.leader_endpoint for each in client.admin.topology().shards}
            assert len(set(known.values())) == 2
