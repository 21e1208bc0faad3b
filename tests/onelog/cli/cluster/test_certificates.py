"""``onelog cluster certs`` and ``up --tls``: certificates for people who have none."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography import x509

from onelog.cli.cluster.certificates import RENEW_BEFORE, Authority, NodeRequest, Pair, is_lasting
from onelog.cli.main import run
from onelog.cluster.transport.certificate import parse_certificate
from onelog.node.config.schema import SecuritySettings
from onelog.node.credentials import Credentials
from tests.documents import blocks_of

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="asks it")


def certs(*arguments: object) -> int:
    return run(["cluster", "certs", *map(str, arguments)])


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def der(path: Path) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return load(path).public_bytes(Encoding.DER)


def test_the_command_of_the_document_makes_what_servers_and_clients_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The block of docs/security.md, as it stands there."""
    (block,) = blocks_of("docs/security.md", "sh")
    monkeypatch.chdir(tmp_path)
    assert run(block.text.split()[1:]) == 0
    made = tmp_path / "certs"
    assert "made certs/n1.crt and certs/n1.key" in capsys.readouterr().out
    node = parse_certificate(der(made / "n1.crt"))
    assert node.names_node("onelog", "n1")
    assert node.dns_names == ("db1.example.com",)
    client = parse_certificate(der(made / "client-reports.crt"))
    assert (client.is_for_clients, client.is_for_servers) == (True, False)
    found = Credentials(
        SecuritySettings(
            api_cert=made / "n1.crt", api_key=made / "n1.key", api_client_ca=made / "ca.crt",
            peer_cert=made / "n1.crt", peer_key=made / "n1.key", peer_ca=made / "ca.crt",
        )
    )  # fmt: skip
    found.bind("onelog", "n1")


@needs_openssl
def test_another_program_takes_the_certificates_for_their_purposes_only(tmp_path: Path) -> None:
    assert certs(tmp_path / "c", "--node", "n1=localhost", "--client", "app") == 0

    def verify(name: str, purpose: str) -> bool:
        ca, own = (str(tmp_path / "c" / f"{each}.crt") for each in ("ca", name))
        command = ["openssl", "verify", "-CAfile", ca, "-x509_strict", "-purpose", purpose, own]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    assert verify("n1", "sslserver")
    assert verify("n1", "sslclient")
    assert verify("client-app", "sslclient")
    assert not verify("client-app", "sslserver")


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o022])
def test_private_keys_are_for_their_owner_alone_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        assert certs(tmp_path / "c", "--node", "n1=localhost", "--client", "app") == 0
    finally:
        os.umask(before)
    found = {each.name: each.stat().st_mode & 0o777 for each in (tmp_path / "c").iterdir()}
    assert found == {
        "ca.crt": 0o644, "ca.key": 0o600, "n1.crt": 0o644, "n1.key": 0o600,
        "client-app.crt": 0o644, "client-app.key": 0o600,
    }  # fmt: skip
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700


def test_certificates_are_renewed_by_the_authority_that_is_there(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    assert certs(directory, "--node", "n1=localhost", "--days", 1) == 0
    first, ca = load(directory / "n1.crt"), (directory / "ca.crt").read_bytes()
    assert not is_lasting(Pair.at(directory, "n1"))
    assert certs(directory, "--node", "n1=localhost", "--days", RENEW_BEFORE.days + 1) == 0
    second = load(directory / "n1.crt")
    assert second.serial_number != first.serial_number
    assert second.public_key() != first.public_key()
    assert (directory / "ca.crt").read_bytes() == ca
    second.verify_directly_issued_by(load(directory / "ca.crt"))
    assert is_lasting(Pair.at(directory, "n1"))
    assert not is_lasting(Pair.at(directory, "n2"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--node", "n1"], "USAGE"),
        (["--node", "n1=,"], "USAGE"),
        (["--node", "../n1=localhost"], "USAGE"),
        (["--node", "ca=localhost"], "USAGE"),
        (["--node", "n1=schön"], "USAGE"),
        (["--client", ""], "USAGE"),
        (["--days", "-1"], "USAGE"),
    ],
)
def test_names_that_cannot_be_are_refused(
    tmp_path: Path, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs(tmp_path / "c", *arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {reason}: ")
    assert {each.name for each in tmp_path.rglob("*.key")} <= {"ca.key"}


def test_half_an_authority_is_not_made_whole_by_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new key beside the old certificate, or the reverse, would lock every node out."""
    Authority(tmp_path, "onelog").issue_node(NodeRequest("n1", ("localhost",)), 1)
    (tmp_path / "ca.key").rename(tmp_path / "safe")
    assert certs(tmp_path, "--node", "n1=localhost") == 1
    assert capsys.readouterr().err.startswith("error: AUTHORITY_INCOMPLETE: ")
    (tmp_path / "ca.key").write_text("nothing of use")
    assert certs(tmp_path, "--node", "n1=localhost") == 1
    assert capsys.readouterr().err.startswith("error: CERTIFICATE_INVALID: ")
