"""Open files: how many this process may have, and how they are shared among its ports.

Every connection is an open file, and so are the log's files, snapshots on their way, and the pipes
of a process that builds one. A node whose connections took them all could not write its log. So
the limit of open files is raised as far as the system allows, some are kept for the node itself,
and the ports share the rest. Each port refuses what exceeds its share
(cluster/transport/accepting.py).
"""

import resource
from contextlib import suppress
from dataclasses import dataclass

from onelog.cluster.transport.connection import CONNECTIONS_MAX as PEER_CONNECTIONS_MAX
from onelog.node.config.schema import Config
from onelog.node.errors import ConfigError

# For the node itself: sockets to other nodes, snapshots, streams of the log, builders.
RESERVED = 128
# And for each shard: its segment and the next one, RAFT, MANIFEST, what is sealed and shipped.
RESERVED_PER_SHARD = 16
# What is left for connections at the least, and the parts of the HTTP port and of the peer port.
SHARED_MIN = 64
HTTP_SHARE, PEER_SHARE = 8, 4


@dataclass(frozen=True, slots=True)
class Shares:
    """How many connections each port may have."""

    api: int
    http: int
    peers: int


def raise_limit() -> None:
    """Raise the limit of open files as far as this process may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # where the most is without a limit, it may not be set
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def share(config: Config, shards: int) -> Shares:
    """Return the share of each port; ``ConfigError`` if the limit leaves nothing to share."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return Shares(
            config.limits.connections_max, config.http.connections_max, PEER_CONNECTIONS_MAX
        )
    reserved = RESERVED + RESERVED_PER_SHARD * shards
    shared = limit - reserved
    if shared < SHARED_MIN:
        raise ConfigError(
            f"this process may open {limit} files, and needs {reserved + SHARED_MIN} with {shards} "
            "shards; raise the limit (ulimit -n, or LimitNOFILE of systemd)"
        )
    http = min(config.http.connections_max, shared // HTTP_SHARE)
    peers = min(PEER_CONNECTIONS_MAX, shared // PEER_SHARE)
    return Shares(min(config.limits.connections_max, shared - http - peers), http, peers)
