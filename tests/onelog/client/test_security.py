"""Connections with TLS: which servers a client trusts."""

import shutil
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import pytest

from onelog import AsyncClient, Tls
from onelog.errors import InvalidArgument, Unavailable
from onelog.v1 import admin_pb2
from tests.cluster.transport.test_transport_tls import certificate
from tests.onelog.client.scripted import run

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")


async def serve(certificates: tuple[bytes, bytes]) -> tuple[Any, int]:
    """Start a server that wants TLS."""

    async def topology(_request: Any, _context: Any) -> admin_pb2.GetTopologyResponse:
        return admin_pb2.GetTopologyResponse(cluster_id="c", shard_count=1, partition_count=1)

    handler = grpc.unary_unary_rpc_method_handler(
        topology,
        request_deserializer=admin_pb2.GetTopologyRequest.FromString,
        response_serializer=admin_pb2.GetTopologyResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("onelog.v1.Admin", {"GetTopology": handler}),)
    )
    key, chain = certificates
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, chain)]))
    await server.start()
    return server, port


def test_a_client_trusts_what_it_was_told_to(tmp_path: Path) -> None:
    async def test() -> None:
        key, chain = certificate(tmp_path, "server")
        _, foreign = certificate(tmp_path, "foreign")
        server, port = await serve((key, chain))
        endpoint = f"127.0.0.1:{port}"
        trusted = Tls(ca=chain, server_name="localhost")
        async with AsyncClient(endpoint, tls=trusted) as client:
            assert client._connection.topology.shard_count == 1
        for tls in (Tls(ca=foreign, server_name="localhost"), None):
            with pytest.raises(Unavailable):
                await AsyncClient(endpoint, tls=tls, timeout_s=0.5).connect()
        await server.stop(None)

    run(test())


def test_certificates_that_are_none_are_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    """A server that is down and a file that is wrong need other hands."""
    key, chain = certificate(tmp_path, "server")
    for tls in (Tls(ca=b"no PEM"), Tls(ca=chain, certificate=chain), Tls(certificate=key, key=key)):
        with pytest.raises(InvalidArgument, match="CERTIFICATE_INVALID"):
            AsyncClient("127.0.0.1:1", tls=tls)
