"""The port that clients call: what gRPC itself is told to allow.

What a client may do is decided by the gate (node/gate.py), which gives reasons. gRPC's own limits
stand behind it, for what the gate cannot see or would see too late; whoever runs into one of them
gets a status without a reason (docs/api.md), which ``onelog.status`` knows.
"""

import grpc.aio  # type: ignore[import-untyped]

from node.config import Config, LimitSettings
from node.credentials import api_server_credentials
from node.errors import ConfigError

# A client that is gone without a word (no power, no network) is noticed after both of these: what
# its streams hold, such as the leases of a consumer, is then given back. Clients, and nodes that
# forward, look after the server in the same way.
# The answer may have to stand behind a large message on a slow line.
KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 20_000
# More often than this nobody may ask whether the server is there: else GOAWAY, too_many_pings.
# Far below what our own clients do, whatever their clocks and networks make of it.
PING_INTERVAL_MS_MIN = 1_000
# Of all calls one connection may have this part under way, and a few in any case: a pipeline, a
# watch, a consumer and a call. Further ones wait in the client.
CONNECTION_SHARE = 2
CONNECTION_CALLS_MIN = 4
# Calls under way, calls whose request has not arrived, and those that are just being refused.
RPC_KINDS = 3


def receive_bytes_max(limits: LimitSettings) -> int:
    """Return what gRPC takes in: a little more than may be, so that the gate can say why not."""
    return limits.message_bytes_max + limits.message_bytes_max // 4


def connection_calls_max(limits: LimitSettings) -> int:
    """Return how many calls one connection may have under way."""
    share = max(CONNECTION_CALLS_MIN, limits.concurrent_rpcs_max // CONNECTION_SHARE)
    return min(limits.streams_max, share)


def make_api(
    config: Config, worker: int, gate: grpc.aio.ServerInterceptor
) -> tuple[grpc.aio.Server, int]:
    """Return the server of a process for clients, and the port that it has."""
    limits = config.limits
    server = grpc.aio.server(
        interceptors=(gate,),
        options=(
            ("grpc.max_receive_message_length", receive_bytes_max(limits)),
            ("grpc.max_send_message_length", limits.message_bytes_max),
            ("grpc.max_concurrent_streams", connection_calls_max(limits)),
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            # The one above alone does nothing below a minute: gRPC waits that long for any ping.
            ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            # A stream may be silent for hours: its client is looked after as long.
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
            ("grpc.keepalive_permit_without_calls", 1),
        ),
        maximum_concurrent_rpcs=RPC_KINDS * limits.concurrent_rpcs_max,
    )
    address = str(config.listen.api.plus(worker))
    credentials = api_server_credentials(config.security)
    try:
        if credentials is None:
            port: int = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigError(
            f"cannot listen for clients on {address}: another process does, or it is not an "
            "address of this machine; change listen.api"
        ) from error
    return server, port
