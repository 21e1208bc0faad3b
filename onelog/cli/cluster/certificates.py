"""Certificates for people who have none: an authority, its nodes and its clients, as PEM files.

::

    ca.crt  ca.key            the authority; whoever has its key can be any node
    n1.crt  n1.key            node n1: dials and is dialled, and serves clients
    client-app.crt  .key      the client app

An authority that is there is used again, so that the command can renew certificates and add nodes.
A key is written before its certificate and both replace what was there, each at once: a server that
looks in between sees a pair that does not fit, keeps what it has, and looks again.

The ``cryptography`` package comes with ``onelogdb[server]``; it is imported when it is needed.
"""

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onelog.cli.failure import CommandFailed

if TYPE_CHECKING:
    from cryptography import x509

CA_DAYS = 3650
DAYS_DEFAULT = 365
DAYS_MAX = 3650
# Clocks of machines differ a little.
EARLIER = timedelta(minutes=5)
# A certificate that lasts for less is made anew; servers warn from then on.
RENEW_BEFORE = timedelta(days=30)
CA_NAME = "ca"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path

    @classmethod
    def at(cls, directory: Path, name: str) -> "Pair":
        """Return the files of this name."""
        return cls(directory / f"{name}.crt", directory / f"{name}.key")


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A node that needs a certificate, and the names and addresses that others call it by."""

    name: str
    hosts: tuple[str, ...]


def parse_node(text: str) -> NodeRequest:
    """Parse ``NAME=HOST,HOST``."""
    name, _, hosts = text.partition("=")
    found = tuple(each.strip() for each in hosts.split(",") if each.strip())
    if not found:
        raise CommandFailed("USAGE", f"--node '{text}' is not NAME=HOST, or several with commas")
    return NodeRequest(name.strip(), found)


class Authority:
    """A directory with an authority, which signs certificates."""

    def __init__(self, directory: Path, cluster_name: str) -> None:
        """Open the authority in a directory, or make one."""
        self._directory = directory
        self._cluster_name = cluster_name
        files = self.pair
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if files.certificate.exists() != files.key.exists():
            raise CommandFailed(
                "AUTHORITY_INCOMPLETE",
                f"{directory} has only one of {files.certificate.name} and {files.key.name}; "
                "bring the other one back, or choose another directory",
            )
        if not files.key.exists():
            self._make()
        self._certificate = _read_certificate(files.certificate)
        self._key = _read_key(files.key)

    @property
    def pair(self) -> Pair:
        """The authority's own files."""
        return Pair.at(self._directory, CA_NAME)

    def issue_node(self, node: NodeRequest, days: float) -> Pair:
        """Make the certificate of a node, for both directions of connections between nodes."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        from onelog.cluster.transport.certificate import node_uri

        uri = x509.UniformResourceIdentifier(node_uri(self._cluster_name, node.name))
        names: list[x509.GeneralName] = [uri, *map(_host_name, node.hosts)]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(node.name, node.name, uses, names, days)

    def issue_client(self, name: str, days: float) -> Pair:
        """Make the certificate of a client, which no node takes for another node."""
        from cryptography.x509.oid import ExtendedKeyUsageOID

        return self._issue(f"client-{name}", name, [ExtendedKeyUsageOID.CLIENT_AUTH], [], days)

    def _issue(
        self,
        file_name: str,
        common_name: str,
        uses: Sequence[Any],
        names: Sequence["x509.GeneralName"],
        days: float,
    ) -> Pair:
        from cryptography import x509

        if not _NAME.fullmatch(common_name) or file_name == CA_NAME:
            raise CommandFailed(
                "USAGE",
                f"the name '{common_name}' cannot be that of a file here: use letters, digits, "
                f"'.', '_' and '-', and not '{CA_NAME}'",
            )
        key = _make_key()
        builder = _builder(common_name, key.public_key(), days)
        builder = builder.issuer_name(self._certificate.subject)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        pair = Pair.at(self._directory, file_name)
        _write_pair(pair, key, self._sign(builder))
        return pair

    def _make(self) -> None:
        from cryptography import x509

        self._key = key = _make_key()
        builder = _builder(f"onelog {self._cluster_name} authority", key.public_key(), CA_DAYS)
        builder = builder.issuer_name(_name(f"onelog {self._cluster_name} authority"))
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = builder.add_extension(usage, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        _write_pair(self.pair, key, self._sign(builder))

    def _sign(self, builder: "x509.CertificateBuilder") -> "x509.Certificate":
        from cryptography.hazmat.primitives import hashes

        return builder.sign(self._key, hashes.SHA256())


def is_lasting(pair: Pair) -> bool:
    """Tell whether a certificate is there and need not be renewed yet."""
    if not pair.certificate.exists() or not pair.key.exists():
        return False
    expires = _read_certificate(pair.certificate).not_valid_after_utc
    return bool(expires - datetime.now(UTC) > RENEW_BEFORE)


def _host_name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise CommandFailed("USAGE", f"'{host}' is neither a host name nor an address") from None


def _make_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(common_name: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    # A common name has at most 64 characters.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _builder(common_name: str, public_key: Any, days: float) -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(common_name))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=days))
    )


def _read_certificate(path: Path) -> "x509.Certificate":
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise CommandFailed("CERTIFICATE_INVALID", f"{path}: {error}") from error


def _read_key(path: Path) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise CommandFailed("CERTIFICATE_INVALID", f"{path}: {error}") from error


def _write_pair(pair: Pair, key: Any, certificate: "x509.Certificate") -> None:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _replace(pair.key, data, 0o600)
    _replace(pair.certificate, certificate.public_bytes(Encoding.PEM), 0o644)


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Write a file at once, with this mode whatever the umask."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
