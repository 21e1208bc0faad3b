"""Connections to endpoints, made when they are first needed.

One channel carries the unary calls to its endpoint and the one pipeline. What stays (watches,
tails, long polls) has channels of its own (onelog/spread.py): however many there are, other calls
go ahead. gRPC opens a connection again when it breaks, so a channel lives as long as its client.
"""

import asyncio
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from google.protobuf import message_factory  # type: ignore[import-untyped]

from onelog.client.options import ClientOptions, Tls
from onelog.errors import Unavailable
from onelog.spread import OWN_CONNECTION, Spread
from onelog.v1 import (
    admin_pb2,
    kv_pb2,
    log_pb2,
    pipeline_pb2,
    queue_pb2,
    stream_pb2,
    timeseries_pb2,
)

# A peer that is gone without a word is noticed after both of these. The answer to a ping may have
# to stand behind a large message on a slow line.
KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 20_000

# gRPC's own waiting between connection attempts is made as short as ours.
RECONNECT_MS_MIN = 50
RECONNECT_MS_MAX = 1_000

_READY = grpc.ChannelConnectivity.READY
_FAILED = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)

_SERVICES: dict[str, Any] = {
    name: service
    for module in (
        admin_pb2,
        kv_pb2,
        log_pb2,
        pipeline_pb2,
        queue_pb2,
        stream_pb2,
        timeseries_pb2,
    )
    for name, service in module.DESCRIPTOR.services_by_name.items()
}


class Channel:
    """The connection to one endpoint."""

    def __init__(self, endpoint: str, options: ClientOptions) -> None:
        self.endpoint = endpoint
        self._grpc = _open(endpoint, options)
        self._methods: dict[str, Any] = {}
        self.metadata: tuple[tuple[str, str], ...] = ()
        if options.token is not None:
            self.metadata = (("authorization", f"Bearer {options.token}"),)

    def method(self, path: str) -> Any:
        """Return the callable of a method such as ``KV/Get``."""
        method = self._methods.get(path)
        if method is None:
            method = self._methods[path] = self._make(path)
        return method

    def _make(self, path: str) -> Any:
        """Return the callable of a method, from the proto alone."""
        service, _, name = path.partition("/")
        method = _SERVICES[service].methods_by_name[name]
        kind = {
            (False, False): self._grpc.unary_unary,
            (False, True): self._grpc.unary_stream,
            (True, True): self._grpc.stream_stream,
        }[method.client_streaming, method.server_streaming]
        request = message_factory.GetMessageClass(method.input_type)
        response = message_factory.GetMessageClass(method.output_type)
        return kind(
            f"/{_SERVICES[service].full_name}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )

    async def ready(self, timeout_s: float) -> None:
        """Wait until there is a connection; raises Unavailable, and nothing was sent then."""
        state = self._grpc.get_state(try_to_connect=True)
        if state is _READY:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while state is not _READY:
                    if state in _FAILED:
                        raise self._not_connected("refused or broken")
                    await self._grpc.wait_for_state_change(state)
                    state = self._grpc.get_state(try_to_connect=True)
        except TimeoutError:
            raise self._not_connected(f"not in {timeout_s:g} s") from None

    def _not_connected(self, why: str) -> Unavailable:
        return Unavailable(f"no connection to {self.endpoint}: {why}", reason="NOT_CONNECTED")

    async def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        await self._grpc.close(None)


class Channels:
    """All connections of a client, by endpoint."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._by_endpoint: dict[str, Channel] = {}
        self._spread: dict[str, Spread[Channel]] = {}

    def of(self, endpoint: str) -> Channel:
        """Return the channel of an endpoint for calls that are answered at once."""
        channel = self._by_endpoint.get(endpoint)
        if channel is None:
            channel = self._by_endpoint[endpoint] = Channel(endpoint, self._options)
        return channel

    def place(self, endpoint: str) -> AbstractContextManager[Channel]:
        """Take a place for a call that stays, on a channel that has one."""
        spread = self._spread.get(endpoint)
        if spread is None:
            connect = partial(Channel, endpoint, self._options)
            spread = self._spread[endpoint] = Spread(connect)
        return spread.place()

    async def close(self) -> None:
        """Close all of them."""
        channels = list(self._by_endpoint.values())
        channels += [each for spread in self._spread.values() for each in spread.connections]
        self._by_endpoint, self._spread = {}, {}
        for channel in channels:
            await channel.close()


def _open(endpoint: str, options: ClientOptions) -> Any:
    arguments: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", options.message_bytes_max),
        ("grpc.max_receive_message_length", options.message_bytes_max),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        # The one above alone does nothing below a minute: gRPC waits that long for any ping.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        # A watch may be silent for hours, and must notice that its server is gone.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_MIN),
        ("grpc.min_reconnect_backoff_ms", RECONNECT_MS_MIN),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
        # Two clients of one process as well: closing one leaves the other.
        OWN_CONNECTION,
        # A proxy of the environment is for the web, not for a database next door.
        ("grpc.enable_http_proxy", 0),
        # We know better than gRPC what may be sent again.
        ("grpc.enable_retries", 0),
    ]
    if options.tls is None:
        return grpc.aio.insecure_channel(endpoint, arguments)
    if options.tls.server_name is not None:
        arguments.append(("grpc.ssl_target_name_override", options.tls.server_name))
    return grpc.aio.secure_channel(endpoint, _credentials(options.tls), arguments)


def _credentials(tls: Tls) -> Any:
    return grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
