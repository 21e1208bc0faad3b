"""Certificates from files to what the ports take, and connections to other nodes.

Nodes always prove who they are to each other (mTLS); clients only where a client authority is
given. None stands for no TLS, which is for loopback and for those who asked for it.
"""

import ssl
from pathlib import Path

from onelog.channel import client_tls
from onelog.node.config.schema import SecuritySettings
from onelog.node.errors import ConfigError

ALPN = "h2"  # what clients and servers of HTTP/2 call it in TLS


def api_server_tls(security: SecuritySettings) -> ssl.SSLContext | None:
    """Return what the API port shows, and asks of clients."""
    cert, key, ca = security.api_cert, security.api_key, security.api_client_ca
    if cert is None:
        return None
    assert key is not None, "checked with the settings"
    context = _tls(ssl.PROTOCOL_TLS_SERVER, cert, key, ca)
    context.set_alpn_protocols([ALPN])
    # An authority may be given without the one that has signed it.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.options |= ssl.OP_NO_RENEGOTIATION  # RFC 9113, 9.2.1
    return context


def peer_server_tls(security: SecuritySettings) -> ssl.SSLContext | None:
    """Return what the peer port shows, and asks of other nodes."""
    return _peer_tls(security, ssl.PROTOCOL_TLS_SERVER)


def peer_client_tls(security: SecuritySettings) -> ssl.SSLContext | None:
    """Return what this node shows when it calls the peer port of another, and asks of that."""
    return _peer_tls(security, ssl.PROTOCOL_TLS_CLIENT)


def _peer_tls(security: SecuritySettings, side: int) -> ssl.SSLContext | None:
    cert, key, ca = security.peer_cert, security.peer_key, security.peer_ca
    if cert is None:
        return None
    assert key is not None and ca is not None, "checked with the settings"  # noqa: PT018
    return _tls(side, cert, key, ca)


def _tls(side: int, cert: Path, key: Path, ca: Path | None) -> ssl.SSLContext:
    """Return what shows a certificate, and asks for one that the authority has signed, if any."""
    context = ssl.SSLContext(side)  # whoever is called must have the name that it was called by
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


def forward_tls(security: SecuritySettings) -> ssl.SSLContext | None:
    """Return what this node shows when it forwards a call to the API of another.

    The others' API certificates are trusted if the authority of clients or of peers has signed
    them, or one that the system trusts.
    """
    if security.api_cert is None:
        return None
    ca = security.api_client_ca or security.peer_ca
    certificate, key = _read(security.api_cert), _read(security.api_key)
    try:
        return client_tls(None if ca is None else _read(ca), certificate, key)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{security.api_cert}, {security.api_key}, {ca}: not certificates and a key: {error}"
        ) from error


def _read(path: Path | None) -> bytes:
    assert path is not None, "checked with the settings"
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
