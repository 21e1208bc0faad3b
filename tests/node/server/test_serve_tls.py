"""Real nodes with certificates: who gets in, on the peer port and on the API's."""

import shutil
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from tests.system.certificates import authority, signed
from tests.system.nodes import ServeProcess, nodes, until
from tests.system.ports import free_addresses

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")
SMALL = {"shards": "1", "partitions": "1"}


def tls_flags(directory: Path, name: str, trusted: str) -> dict[str, str]:
    at = {part: str(directory / f"{name}.{part}") for part in ("crt", "key")}
    return {
        "tls-cert": at["crt"], "tls-key": at["key"],
        "peer-tls-cert": at["crt"], "peer-tls-key": at["key"],
        "peer-tls-ca": str(directory / f"{trusted}.crt"),
    }  # fmt: skip


def check(address: str, credentials: grpc.ChannelCredentials | None) -> int:
    with (
        grpc.insecure_channel(address)
        if credentials is None
        else grpc.secure_channel(address, credentials)
    ) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status)


def by_name(address: str) -> str:
    return address.replace("127.0.0.1", "localhost")


def test_nodes_with_certificates_form_and_a_foreign_one_gets_no_answer(tmp_path: Path) -> None:
    """With certificates that people have already, which name a node by DNS."""
    ca = authority(tmp_path, "ca")
    known = ca.chain.read_bytes()
    for name in ("n1", "n2"):
        signed(tmp_path, name, ca, names=(f"DNS:{name}",))
    signed(tmp_path, "n3", authority(tmp_path, "foreign"), names=("DNS:n3",))
    with nodes(tmp_path, "n1", "n2", **SMALL) as cluster:
        for each in cluster.values():
            each.flags |= tls_flags(tmp_path, each.name, "ca")
            each.flags["initial-cluster"] = by_name(each.flags["initial-cluster"])
            each.start()
        for each in cluster.values():
            each.until_ready()

        api = by_name(cluster["n1"].flags["listen"])
        trusting = grpc.ssl_channel_credentials(known)
        until(lambda: check(api, trusting) == health_pb2.HealthCheckResponse.SERVING)
        with pytest.raises(grpc.RpcError):
            check(api, None)

        listen, peers, http = free_addresses(3)
        stranger = ServeProcess(
            tmp_path / "n3",
            "n3",
            {
                **tls_flags(tmp_path, "n3", "ca"),
                "listen": listen, "peer-listen": peers, "http-listen": http,
                "join": by_name(cluster["n1"].flags["peer-listen"]),
                "logging-level": "debug",
            },
        ).start()  # fmt: skip
        try:
            stranger.until_logged("does not answer")
            assert stranger.until_report(stage="forming")["ready"] is False
            assert stranger.terminate() == 0
            assert not (tmp_path / "n3" / "data" / "SYSTEM").exists()
        finally:
            stranger.kill()
