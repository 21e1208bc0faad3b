"""Certificates of one process: checked when they are loaded, and again when their files change."""

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from onelog.cli.cluster.certificates import Authority, NodeRequest
from onelog.cluster.transport.certificate import Certificate
from onelog.node.config.schema import SecuritySettings
from onelog.node.credentials import DAY_S, WARN_S, Credentials
from onelog.node.errors import CertificateUnfit, ConfigError, KeyExposed

DAYS = 100.0


def authority(path: Path) -> Authority:
    made = Authority(path, "c")
    made.issue_node(NodeRequest("n1", ("localhost",)), DAYS)
    return made


def settings(path: Path) -> SecuritySettings:
    cert, key, ca = (path / name for name in ("n1.crt", "n1.key", "ca.crt"))
    return SecuritySettings(
        api_cert=cert, api_key=key, api_client_ca=ca, peer_cert=cert, peer_key=key, peer_ca=ca
    )


def reasons(found: Credentials) -> list[str]:
    return sorted(each.reason for each in found.alarms())


@pytest.mark.parametrize("name", ["n1.crt", "n1.key", "ca.crt"])
@pytest.mark.parametrize("is_gone", [True, False])
def test_files_that_cannot_be_used_leave_those_in_use_and_are_an_alarm(
    tmp_path: Path, name: str, *, is_gone: bool
) -> None:
    authority(tmp_path)
    found = Credentials(settings(tmp_path))
    found.bind("c", "n1")
    in_use = found.peer_client
    before = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if not is_gone:
        (tmp_path / name).write_bytes(b"nothing of use")
        (tmp_path / name).chmod(0o600)
    found.look()
    assert reasons(found) == ["CERTIFICATE_UNUSABLE"]
    assert found.peer_client is in_use
    (tmp_path / name).write_bytes(before)
    (tmp_path / name).chmod(0o600)
    found.look()
    assert reasons(found) == []


def test_a_new_certificate_must_be_this_nodes_as_the_first_one(tmp_path: Path) -> None:
    made = authority(tmp_path)
    found = Credentials(settings(tmp_path))
    found.bind("c", "n1")
    made.issue_node(NodeRequest("n2", ("localhost",)), DAYS)
    for end in ("key", "crt"):
        (tmp_path / f"n2.{end}").replace(tmp_path / f"n1.{end}")
    found.look()
    (alarm,) = found.alarms()
    assert alarm.reason == "CERTIFICATE_UNUSABLE"
    assert "onelog://c/n2" in alarm.message
    with pytest.raises(CertificateUnfit):
        Credentials(settings(tmp_path)).bind("c", "n1")


def test_expiry_is_an_alarm_from_thirty_days_before(tmp_path: Path) -> None:
    authority(tmp_path)
    first = Credentials(settings(tmp_path))
    expires_s = first.expires_s["peer_cert"]
    for left_s, expected in (
        (WARN_S + DAY_S, []),
        (WARN_S - DAY_S, ["CERTIFICATE_EXPIRES"] * 2),
        (-1.0, ["CERTIFICATE_EXPIRED"] * 2),
    ):
        found = Credentials(settings(tmp_path), now_s=lambda at=expires_s - left_s: at)  # type: ignore[misc]
        assert reasons(found) == expected


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    authority(tmp_path)
    (tmp_path / "n1.key").chmod(mode)
    with pytest.raises(KeyExposed, match=r"n1\.key has mode 0"):
        Credentials(settings(tmp_path))


def test_a_key_of_root_may_be_for_a_group_but_not_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets of containers belong to root, and the server is in their group."""
    if os.geteuid() != 0:
        pytest.skip("only root makes files of root")
    authority(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    (tmp_path / "n1.key").chmod(0o640)
    Credentials(settings(tmp_path))
    (tmp_path / "n1.key").chmod(0o644)
    with pytest.raises(KeyExposed):
        Credentials(settings(tmp_path))


def test_a_key_with_a_password_is_named(tmp_path: Path) -> None:
    authority(tmp_path)
    path = tmp_path / "n1.key"
    key = load_pem_private_key(path.read_bytes(), password=None)
    hidden = BestAvailableEncryption(b"secret")
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
    with pytest.raises(ConfigError, match=r"n1\.key"):
        Credentials(settings(tmp_path))


def test_only_members_are_nodes_to_the_api_and_without_tls_everybody_is(tmp_path: Path) -> None:
    authority(tmp_path)
    found = Credentials(settings(tmp_path))
    found.bind("c", "n1")
    found.node_names = lambda: ["n1", "n2"]

    def shows(*uris: str) -> Certificate:
        return Certificate(uris, (), is_for_servers=True, is_for_clients=True)

    assert found.is_node(shows("onelog://c/n2"))
    assert not found.is_node(shows("onelog://c/n3"))
    assert not found.is_node(shows("onelog://d/n2"))
    assert not found.is_node(shows())
    assert not found.is_node(None)
    assert Credentials(SecuritySettings()).is_node(None)
