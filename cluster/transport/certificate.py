"""What a certificate says about its holder: which node of which cluster it is.

TLS proves that the other side holds the key of a certificate that a trusted authority has signed.
The same authority may sign certificates of clients, so that alone makes nobody a node. A
certificate is a node's if both of these hold:

* **Its name.** Among its subject alternative names is the URI ``onelog://<cluster>/<node>`` with
  the names of the cluster and of the node, percent-encoded. A certificate without any
  ``onelog://`` URI names a node by a DNS name that equals the node's name. The common name never
  counts: it is where the names of clients and of people stand.
* **Its purpose.** Nodes dial and are dialled. If the certificate restricts its use (extended key
  usage), it must allow both ``serverAuth`` and ``clientAuth``. TLS itself checks the one that the
  direction of the connection needs.

Without TLS there is no certificate, and nothing to check.
"""

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from onelog.cluster.transport.wire import Reason, WireError

SCHEME = "onelog://"
# Names that are shown of a stranger's certificate, in a log.
SHOWN_NAMES_MAX = 4


def node_uri(cluster_name: str, node_name: str) -> str:
    """Return the URI that names a node in its certificate."""
    return f"{SCHEME}{quote(cluster_name, safe='')}/{quote(node_name, safe='')}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """What matters of a certificate that was verified."""

    uris: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    is_for_servers: bool = False
    is_for_clients: bool = False

    def names_node(self, cluster_name: str, node_name: str) -> bool:
        """Tell whether it proves that its holder is this node.

        Without ``cluster_name`` any cluster will do: a newcomer does not know it yet.
        """
        if not (self.is_for_servers and self.is_for_clients and node_name):
            return False
        uris = [each for each in self.uris if each.startswith(SCHEME)]
        if not uris:
            return node_name in self.dns_names
        if cluster_name:
            return node_uri(cluster_name, node_name) in uris
        named = quote(node_name, safe="")
        return any(each.removeprefix(SCHEME).partition("/")[2] == named for each in uris)

    def names_any(self, cluster_name: str, node_names: Iterable[str]) -> bool:
        """Tell whether it proves that its holder is one of these nodes."""
        return any(self.names_node(cluster_name, each) for each in node_names)

    def __str__(self) -> str:
        names = [*self.uris, *self.dns_names]
        shown = ", ".join(ascii(each)[1:-1] for each in names[:SHOWN_NAMES_MAX]) or "no name"
        uses = [
            name
            for name, is_allowed in (
                ("serverAuth", self.is_for_servers),
                ("clientAuth", self.is_for_clients),
            )
            if is_allowed
        ]
        return f"{shown} for {' and '.join(uses) or 'other purposes'}"


def parse_certificate(der: bytes) -> Certificate:
    """Return what a certificate says; one that cannot be read says nothing."""
    # Imported with the first certificate: a node without TLS starts without it.
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        extensions = x509.load_der_x509_certificate(der).extensions
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return Certificate()
    uris: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    is_for_servers = is_for_clients = True
    for each in extensions:
        value = each.value
        if isinstance(value, x509.SubjectAlternativeName):
            uris = tuple(value.get_values_for_type(x509.UniformResourceIdentifier))
            dns_names = tuple(value.get_values_for_type(x509.DNSName))
        elif isinstance(value, x509.ExtendedKeyUsage):
            is_for_servers = ExtendedKeyUsageOID.SERVER_AUTH in value
            is_for_clients = ExtendedKeyUsageOID.CLIENT_AUTH in value
    return Certificate(uris, dns_names, is_for_servers, is_for_clients)


def peer_certificate(secured: ssl.SSLObject | None) -> Certificate | None:
    """Return the other side's certificate; None without TLS, an empty one if it shows none."""
    if secured is None:
        return None
    der = secured.getpeercert(binary_form=True)
    return Certificate() if der is None else parse_certificate(der)


def check_certificate(certificate: Certificate | None, cluster_name: str, node_name: str) -> None:
    """Refuse a process whose certificate does not prove that it is this node.

    The refusal says nothing of the cluster: it may go to a stranger.
    """
    if certificate is not None and not certificate.names_node(cluster_name, node_name):
        raise WireError(
            Reason.CERTIFICATE_MISMATCH, "the certificate is not that of the node it is used for"
        )
