"""Streams between peers over mutual TLS: the transport takes credentials and asks no more."""

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest

from cluster.messages import Vote
from tests.cluster.pairs import LARGE, SMALL, WAIT_S, connected, endpoint, identity, until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")


def certificate(directory: Path, name: str) -> tuple[bytes, bytes]:
    """Make a self-signed certificate for localhost; return key and certificate."""
    key, made = directory / f"{name}.key", directory / f"{name}.crt"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "1", "-subj", f"/CN={name}",
            "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", made,
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return key.read_bytes(), made.read_bytes()


def credentials(own: tuple[bytes, bytes], trusted: bytes) -> dict[str, Any]:
    key, made = own
    return {
        "server_credentials": grpc.ssl_server_credentials(
            [(key, made)], root_certificates=trusted, require_client_auth=True
        ),
        "channel_credentials": grpc.ssl_channel_credentials(trusted, key, made),
    }


def test_peers_with_certificates_talk_and_one_with_a_foreign_certificate_does_not(
    tmp_path: Path,
) -> None:
    known, foreign = certificate(tmp_path, "known"), certificate(tmp_path, "foreign")

    async def talk() -> None:
        ours = credentials(known, known[1])
        async with (
            endpoint(identity(SMALL), **ours) as one,
            endpoint(identity(LARGE), **ours) as two,
        ):
            await connected(one, two)
            one.transport.send(LARGE, 0, Vote(1))
            await until(lambda: two.got == [(SMALL, 0, Vote(1))])

    async def refuse() -> None:
        # It trusts the server, but the server does not trust it.
        ours, theirs = credentials(known, known[1]), credentials(foreign, known[1])
        async with (
            endpoint(identity(SMALL), **theirs) as one,
            endpoint(identity(LARGE), **ours) as two,
        ):
            one.transport.set_peers({LARGE: two.address})
            two.transport.set_peers({SMALL: one.address})
            status = one.transport.status()[LARGE]
            await until(lambda: status.attempts > 2 and status.last_error)
            assert status.sessions == 0
            assert two.transport.status()[SMALL].sessions == 0
            assert two.transport.refused_callers == 0  # it did not even get to say hello

    for test in (talk(), refuse()):
        asyncio.run(asyncio.wait_for(test, 2 * WAIT_S))
