"""Streams between peers over mutual TLS, with the contexts that a server makes of its settings."""

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from onelog.cluster.raft.messages import Vote
from onelog.cluster.transport.connection import Purpose, connect
from onelog.cluster.transport.link import LinkEnded
from onelog.node.config.schema import SecuritySettings
from onelog.node.credentials import peer_client_tls, peer_server_tls
from onelog.node.errors import ConfigError
from tests.cluster.transport.pairs import LARGE, SMALL, WAIT_S, connected, endpoint, identity, until

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


def tls(directory: Path, own: str, trusted: str) -> dict[str, Any]:
    security = SecuritySettings(
        peer_cert=directory / f"{own}.crt",
        peer_key=directory / f"{own}.key",
        peer_ca=directory / f"{trusted}.crt",
    )
    return {"server_tls": peer_server_tls(security), "client_tls": peer_client_tls(security)}


def test_peers_with_certificates_talk_and_one_with_a_foreign_certificate_does_not(
    tmp_path: Path,
) -> None:
    certificate(tmp_path, "known")
    certificate(tmp_path, "foreign")

    async def talk() -> None:
        ours = tls(tmp_path, "known", "known")
        async with (
            endpoint(identity(SMALL), **ours) as one,
            endpoint(identity(LARGE), **ours) as two,
        ):
            await connected(one, two)
            one.transport.send(LARGE, 0, Vote(1))
            await until(lambda: two.got == [(SMALL, 0, Vote(1))])

    async def refuse() -> None:
        # It trusts the server, but the server does not trust it.
        ours, theirs = tls(tmp_path, "known", "known"), tls(tmp_path, "foreign", "known")
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


def test_a_certificate_for_another_name_is_not_believed(tmp_path: Path) -> None:
    """Who is called must have the name that it was called by."""
    certificate(tmp_path, "known")  # for localhost

    async def test() -> None:
        ours = tls(tmp_path, "known", "known")
        async with endpoint(identity(LARGE), **ours) as two:
            address = two.address.replace("localhost", "127.0.0.1")
            with pytest.raises(LinkEnded, match="no TLS"):
                await connect(address, Purpose.EXCHANGE, ours["client_tls"])
            with pytest.raises(LinkEnded):  # and without TLS nobody is heard
                await connect(address, Purpose.EXCHANGE, None)

    asyncio.run(asyncio.wait_for(test(), 2 * WAIT_S))


@pytest.mark.parametrize("part", ["crt", "key", "ca"])
def test_files_that_are_no_certificates_are_named(tmp_path: Path, part: str) -> None:
    certificate(tmp_path, "known")
    certificate(tmp_path, "authority")
    wrong = tmp_path / ("authority.crt" if part == "ca" else f"known.{part}")
    wrong.write_text("nothing of use")
    with pytest.raises(ConfigError, match=wrong.name):
        tls(tmp_path, "known", "authority")
