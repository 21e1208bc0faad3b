"""Certificates from files to gRPC's credentials.

Nodes always prove who they are to each other (mTLS); clients only where a client authority is
given. None stands for no TLS, which is for loopback and for those who asked for it.
"""

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


def peer_server_credentials(security: SecuritySettings) -> grpc.ServerCredentials | None:
    """Return what the peer port shows, and asks of other nodes."""
    if security.peer_cert is None:
        return None
    return grpc.ssl_server_credentials(
        [(_read(security.peer_key), _read(security.peer_cert))],
        _read(security.peer_ca),
        require_client_auth=True,
    )


def peer_channel_credentials(security: SecuritySettings) -> grpc.ChannelCredentials | None:
    """Return what this node shows when it calls the peer port of another."""
    if security.peer_cert is None:
        return None
    return grpc.ssl_channel_credentials(
        _read(security.peer_ca), _read(security.peer_key), _read(security.peer_cert)
    )


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
