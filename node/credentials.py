"""Certificates from files to what gRPC and the connections between nodes take.

Nodes always prove who they are to each other (mTLS); clients only where a client authority is
given. None stands for no TLS, which is for loopback and for those who asked for it.
"""

import ssl
from pathlib import Path

import grpc  # type: ignore[import-untyped]

from node.config import SecuritySettings
from node.errors import ConfigError


def api_server_credentials(security: SecuritySettings) -> grpc.ServerCredentials | None:
    """Return what the API port shows, and asks of clients."""
    if security.api_cert is None:
        return None
    ca = security.api_client_ca
    return grpc.ssl_server_credentials(
        [(_read(security.api_key), _read(security.api_cert))],
        None if ca is None else _read(ca),
        require_client_auth=ca is not None,
    )


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
    context = ssl.SSLContext(side)  # whoever is called must have the name that it was called by
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # ssl's own are of this kind, too
        raise ConfigError(f"{cert}, {key}: not a certificate and its key: {error}") from error
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        raise ConfigError(f"{ca}: not certificates of an authority: {error}") from error
    return context


def forward_channel_credentials(security: SecuritySettings) -> grpc.ChannelCredentials | None:
    """Return what this node shows when it forwards a call to the API of another.

    The others' API certificates are trusted if the authority of clients or of peers has signed
    them, or one that the system trusts.
    """
    if security.api_cert is None:
        return None
    ca = security.api_client_ca or security.peer_ca
    return grpc.ssl_channel_credentials(
        None if ca is None else _read(ca), _read(security.api_key), _read(security.api_cert)
    )


def _read(path: Path | None) -> bytes:
    assert path is not None, "checked with the settings"
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
