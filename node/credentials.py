"""Certificates from files to what the ports take, and connections to other nodes.

Nodes always prove to each other which node they are (cluster/transport/certificate.py); clients
prove who they are only where an authority for clients is given. None stands for no TLS, which is
for loopback and for those who asked for it.

* **Before anything starts** every file is read: a key that does not belong to its certificate, a
  key that others can read, a certificate that is not for its purpose or not this node's end the
  start, each with a reason of its own (node/errors.py).
* **While the node runs** the files are looked at every ``LOOK_S``. Files that changed are checked
  in the same way and used for new connections; existing connections stay. Files that cannot be
  used are an alarm, and the certificates in use stay: an operator may have written one file and not
  yet the other.
* **Expiry** is a metric, from ``WARN_S`` before on an alarm and a warning in the log once a day.

The API port believes what a caller says about others, on whose behalf it calls, only if the caller
is a node: its certificate names one. Where clients need no certificate, the port asks for one that
the authority of the peers has signed, which nodes have and clients may leave out.
"""

import logging
import os
import ssl
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onelog.channel import client_tls
from onelog.cluster.transport.certificate import Certificate, parse_certificate
from onelog.node.config.schema import SecuritySettings
from onelog.node.errors import CertificateUnfit, ConfigError, KeyExposed, KeyMismatch

ALPN = "h2"  # what clients and servers of HTTP/2 call it in TLS
LOOK_S = 2.0
DAY_S = 86_400.0
WARN_S = 30 * DAY_S
FILE_SIZE_MAX = 1 << 20

_FILES = ("api_cert", "api_key", "api_client_ca", "peer_cert", "peer_key", "peer_ca")

_log = logging.getLogger("onelog.node.certificates")


class LiveContext(ssl.SSLContext):
    """A context that ports and channels keep; each new connection uses ``current``."""

    current: ssl.SSLContext

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """See ``ssl.SSLContext``; asyncio and uvloop begin every connection with it."""
        return self.current.wrap_bio(*arguments, **options)


@dataclass(slots=True)
class _Loaded:
    """What the files hold, checked."""

    contexts: dict[str, ssl.SSLContext] = field(default_factory=dict)
    expires_s: dict[str, float] = field(default_factory=dict)  # by setting, since 1970
    own: dict[str, Certificate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CertificateAlarm:
    """What is wrong with a certificate; ``setting`` says which file."""

    reason: str
    setting: str
    message: str


class Credentials:
    """The certificates of one process; see the module's text."""

    def __init__(self, security: SecuritySettings, now_s: Callable[[], float] = time.time) -> None:
        """Read and check all files; raises ``ConfigError``."""
        self._security = security
        self._now_s = now_s
        self._identity = ("", "")  # of the cluster and the node, once they are known
        # The nodes of the cluster, by name; the API port believes those.
        self.node_names: Callable[[], Iterable[str]] = tuple
        self._failure = ""
        self._warned: dict[str, float] = {}
        self._stamps = self._stamp()
        self._loaded = _load(security)
        self._live = {name: LiveContext(each.protocol) for name, each in self._contexts.items()}
        self._use(self._loaded)

    @property
    def _contexts(self) -> dict[str, ssl.SSLContext]:
        return self._loaded.contexts

    @property
    def is_used(self) -> bool:
        """Whether there is any certificate."""
        return bool(self._live)

    @property
    def api_server(self) -> ssl.SSLContext | None:
        """What the API port shows, and asks of clients."""
        return self._live.get("api_server")

    @property
    def peer_server(self) -> ssl.SSLContext | None:
        """What the peer port shows, and asks of other nodes."""
        return self._live.get("peer_server")

    @property
    def peer_client(self) -> ssl.SSLContext | None:
        """What this node shows when it calls the peer port of another, and asks of that."""
        return self._live.get("peer_client")

    @property
    def forward(self) -> ssl.SSLContext | None:
        """What this node shows when it forwards a call to the API of another."""
        return self._live.get("forward")

    @property
    def expires_s(self) -> dict[str, float]:
        """When each certificate expires, by its setting, in seconds since 1970."""
        return self._loaded.expires_s

    def bind(self, cluster_name: str, node_name: str) -> None:
        """Say which node this is; refuses a certificate that names another one.

        A newcomer that was not given the name of its cluster has none at first.
        """
        if self._identity == (cluster_name, node_name):
            return
        self._identity = cluster_name, node_name
        self._check_identity(self._loaded)
        forwards_as = self._loaded.own.get("api_cert")
        is_asked = self._security.api_client_ca is not None and "peer_cert" in self._loaded.own
        if is_asked and forwards_as is not None and not forwards_as.names_node(*self._identity):
            _log.warning(
                "%s does not name this node: calls that it forwards count elsewhere as those of "
                "one client",
                self._security.api_cert,
            )

    def is_node(self, certificate: Certificate | None) -> bool:
        """Tell whether a caller of the API is a node, which forwards the calls of its clients.

        Without TLS there are no proofs, and every caller that says so counts as a node.
        """
        if self.api_server is None:
            return True
        return certificate is not None and certificate.names_any(
            self._identity[0], self.node_names()
        )

    def look(self) -> None:
        """Use files that have changed, if they can be used, and warn of those that expire."""
        stamps = self._stamp()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                loaded = _load(self._security)
                self._check_identity(loaded)
            except ConfigError as error:
                self._failure = f"{error.reason}: {error}"
                _log.error("certificates have changed and cannot be used: %s", self._failure)
            else:
                self._failure = ""
                self._use(loaded)
                _log.info("certificates have changed and are used for new connections")
        for alarm in self.alarms():
            now_s = self._now_s()
            if alarm.setting and now_s - self._warned.get(alarm.setting, -DAY_S) >= DAY_S:
                self._warned[alarm.setting] = now_s
                _log.warning("%s: %s", alarm.reason, alarm.message)

    def alarms(self) -> Iterator[CertificateAlarm]:
        """Yield what needs attention."""
        if self._failure:
            yield CertificateAlarm("CERTIFICATE_UNUSABLE", "", f"not loaded: {self._failure}")
        now_s = self._now_s()
        for setting, expires_s in self._loaded.expires_s.items():
            if expires_s - now_s > WARN_S:
                continue
            at = datetime.fromtimestamp(expires_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            path = getattr(self._security, setting)
            if expires_s > now_s:
                days = int((expires_s - now_s) / DAY_S)
                text = f"{path} expires in {days} days, at {at}"
                yield CertificateAlarm("CERTIFICATE_EXPIRES", setting, text)
            else:
                text = f"{path} has expired at {at}; others refuse it"
                yield CertificateAlarm("CERTIFICATE_EXPIRED", setting, text)

    def _check_identity(self, loaded: _Loaded) -> None:
        own, (cluster_name, node_name) = loaded.own.get("peer_cert"), self._identity
        if own is not None and node_name and not own.names_node(cluster_name, node_name):
            raise CertificateUnfit(
                f"{self._security.peer_cert} is not the certificate of node {node_name} of cluster "
                f"{cluster_name or '(any)'}, but of {own}; see docs/security.md, or make one: "
                "onelog cluster certs"
            )

    def _use(self, loaded: _Loaded) -> None:
        self._loaded = loaded
        for name, context in loaded.contexts.items():
            self._live[name].current = context

    def _stamp(self) -> dict[str, tuple[int, int, int] | None]:
        """Return what changes when a file does."""
        stamps: dict[str, tuple[int, int, int] | None] = {}
        for name in _FILES:
            path: Path | None = getattr(self._security, name)
            if path is None:
                continue
            try:
                found = path.stat()
            except OSError:
                stamps[name] = None
            else:
                stamps[name] = found.st_mtime_ns, found.st_size, found.st_ino
        return stamps


# Loading


def _load(security: SecuritySettings) -> _Loaded:
    """Return everything that the files hold; raises a ``ConfigError`` that names the bad one."""
    loaded = _Loaded()
    if security.api_cert is not None:
        assert security.api_key is not None, "checked with the settings"
        own = _read_pair(security.api_cert, security.api_key, "api_cert", loaded)
        if not own.is_for_servers:
            raise CertificateUnfit(
                f"{security.api_cert} is for {own}; clients need one that allows serverAuth"
            )
        _read_authority(security.api_client_ca, "api_client_ca", loaded)
    if security.peer_cert is not None:
        assert security.peer_key is not None, "checked with the settings"
        own = _read_pair(security.peer_cert, security.peer_key, "peer_cert", loaded)
        if not (own.is_for_servers and own.is_for_clients):
            raise CertificateUnfit(
                f"{security.peer_cert} is for {own}; nodes dial and are dialled, and need one that "
                "allows serverAuth and clientAuth"
            )
        _read_authority(security.peer_ca, "peer_ca", loaded)
    loaded.contexts = {
        name: context
        for name, make in (
            ("api_server", _api_server),
            ("peer_server", _peer_server),
            ("peer_client", _peer_client),
            ("forward", _forward),
        )
        if (context := make(security)) is not None
    }
    return loaded


def _read_pair(cert: Path, key: Path, setting: str, loaded: _Loaded) -> Certificate:
    """Check a certificate and its key; return what the certificate says."""
    # Imported with the first certificate: a node without TLS starts without it.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    chain = _read_certificates(cert)
    _check_private(key)
    try:
        private = load_pem_private_key(_read(key), password=None)
        public = chain[0].public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a password
        raise ConfigError(
            f"{cert}, {key}: not a certificate and a private key without a password: {error}"
        ) from error
    if private.public_key() != public:
        raise KeyMismatch(
            f"{key} is not the key of {cert}: give the key that the certificate was made for"
        )
    loaded.expires_s[setting] = min(each.not_valid_after_utc.timestamp() for each in chain)
    own = loaded.own[setting] = parse_certificate(chain[0].public_bytes(Encoding.DER))
    return own


def _read_authority(ca: Path | None, setting: str, loaded: _Loaded) -> None:
    """Note until when an authority can be used: of several, until the last of them expires."""
    if ca is not None:
        found = _read_certificates(ca)
        loaded.expires_s[setting] = max(each.not_valid_after_utc.timestamp() for each in found)


def _read_certificates(path: Path) -> list[Any]:
    from cryptography import x509

    try:
        return list(x509.load_pem_x509_certificates(_read(path)))
    except ValueError as error:
        raise ConfigError(f"{path}: not certificates in PEM: {error}") from error


def _check_private(key: Path) -> None:
    """Refuse a key that others can read: they could speak as this node.

    A key of root may be for a group of which this process is, as secrets of containers are.
    """
    try:
        found = key.stat()
    except OSError as error:
        raise ConfigError(f"{key}: {error.strerror or error}") from error
    is_roots = found.st_uid == 0 and os.geteuid() != 0
    exposed = stat.S_IMODE(found.st_mode) & (0o037 if is_roots else 0o077)
    if exposed:
        raise KeyExposed(
            f"{key} has mode {stat.S_IMODE(found.st_mode):04o}, so that others can read it: "
            f"chmod 600 {key}; if it was readable for long, make a new key"
        )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(FILE_SIZE_MAX)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


# Contexts


def _api_server(security: SecuritySettings) -> ssl.SSLContext | None:
    cert, key, ca = security.api_cert, security.api_key, security.api_client_ca
    if cert is None or key is None:
        return None
    context = _tls(ssl.PROTOCOL_TLS_SERVER, cert, key, ca or security.peer_ca)
    if ca is None and security.peer_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
    context.set_alpn_protocols([ALPN])
    # An authority may be given without the one that has signed it.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.options |= ssl.OP_NO_RENEGOTIATION  # RFC 9113, 9.2.1
    return context


def _peer_server(security: SecuritySettings) -> ssl.SSLContext | None:
    cert, key, ca = security.peer_cert, security.peer_key, security.peer_ca
    if cert is None or key is None:
        return None
    context = _tls(ssl.PROTOCOL_TLS_SERVER, cert, key, ca)
    # A resumed session would show a certificate that may have expired or be trusted no more.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    return context


def _peer_client(security: SecuritySettings) -> ssl.SSLContext | None:
    cert, key, ca = security.peer_cert, security.peer_key, security.peer_ca
    if cert is None or key is None:
        return None
    return _tls(ssl.PROTOCOL_TLS_CLIENT, cert, key, ca)


def _tls(side: int, cert: Path, key: Path, ca: Path | None) -> ssl.SSLContext:
    """Return what shows a certificate, and asks for one that the authority has signed, if any."""
    context = ssl.SSLContext(side)  # a client also checks that the server has the name it called
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # ssl's own are of this kind, too
        raise ConfigError(f"{cert}, {key}: not a certificate and its key: {error}") from error
    if ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(ca)
        except OSError as error:
            raise ConfigError(f"{ca}: not certificates of an authority: {error}") from error
    return context


def _forward(security: SecuritySettings) -> ssl.SSLContext | None:
    """Return what this node shows when it forwards a call to the API of another.

    The others' API certificates are trusted if the authority of clients or of peers has signed
    them, or one that the system trusts. The others ask for what the authority of clients has
    signed, else of peers: it shows its certificate for the API, else the one for peers.
    """
    if security.api_cert is None:
        return None
    ca = security.api_client_ca or security.peer_ca
    cert, key = security.peer_cert, security.peer_key
    if security.api_client_ca is not None or cert is None:
        cert, key = security.api_cert, security.api_key
    assert cert is not None and key is not None, "checked with the settings"  # noqa: PT018
    try:
        context = client_tls(None if ca is None else _read(ca), _read(cert), _read(key))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{cert}, {key}, {ca}: not certificates and a key: {error}") from error
    context.set_alpn_protocols([ALPN])
    return context
