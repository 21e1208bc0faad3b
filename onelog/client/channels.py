"""The channels of a client (onelog/channel.py), made on first use, and the methods of the API.

One channel per endpoint carries the unary calls and the pipeline. Long-lived calls (watches, tails,
long polls) have further channels (onelog/spread.py), so that any number of them delays no others.
"""

from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from google.protobuf import message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onelog.channel import Channel, client_tls
from onelog.client.options import ClientOptions
from onelog.errors import FailedPrecondition, Internal, InvalidArgument
from onelog.spread import Spread
from onelog.v1 import (
    admin_pb2,
    kv_pb2,
    log_pb2,
    pipeline_pb2,
    queue_pb2,
    stream_pb2,
    timeseries_pb2,
)


class Method(NamedTuple):
    """One method of the API."""

    path: str  # on the wire
    answer: Any  # the class of its answers

    def parse(self, data: bytes) -> Any:
        """Parse an answer."""
        try:
            return self.answer.FromString(data)
        except DecodeError as error:
            raise Internal(f"an answer of {self.path} cannot be read: {error}") from None


_MODULES = (admin_pb2, kv_pb2, log_pb2, pipeline_pb2, queue_pb2, stream_pb2, timeseries_pb2)

# All methods, by names such as ``KV/Get``.
METHODS: dict[str, Method] = {
    f"{name}/{method.name}": Method(
        f"/{service.full_name}/{method.name}", message_factory.GetMessageClass(method.output_type)
    )
    for module in _MODULES
    for name, service in module.DESCRIPTOR.services_by_name.items()
    for method in service.methods
}


# The classes of the requests of those that have one answer.
UNARY: dict[str, Any] = {
    f"{name}/{method.name}": message_factory.GetMessageClass(method.input_type)
    for module in _MODULES
    for name, service in module.DESCRIPTOR.services_by_name.items()
    for method in service.methods
    if not method.client_streaming and not method.server_streaming
}


class Channels:
    """All channels of a client, by endpoint."""

    def __init__(self, options: ClientOptions) -> None:
        tls = options.tls
        try:
            context = None if tls is None else client_tls(tls.ca, tls.certificate, tls.key)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{error}", reason="CERTIFICATE_INVALID") from None
        self._connect = partial(
            Channel,
            tls=context,
            server_name=None if tls is None else tls.server_name,
            message_bytes_max=options.message_bytes_max,
        )
        self._by_endpoint: dict[str, Channel] = {}
        self._spread: dict[str, Spread[Channel]] = {}
        self.is_closed = False

    def of(self, endpoint: str) -> Channel:
        """Return the channel of an endpoint for short calls."""
        channel = self._by_endpoint.get(endpoint)
        if channel is None:
            self.check_open()
            channel = self._by_endpoint[endpoint] = self._connect(endpoint)
        return channel

    def place(self, endpoint: str) -> AbstractContextManager[Channel]:
        """Reserve a place for a long-lived call on a channel that has room."""
        spread = self._spread.get(endpoint)
        if spread is None:
            self.check_open()
            spread = self._spread[endpoint] = Spread(partial(self._connect, endpoint))
        return spread.place()

    def check_open(self) -> None:
        """Raise CLIENT_CLOSED if the client is closed."""
        if self.is_closed:
            raise FailedPrecondition("the client is closed", reason="CLIENT_CLOSED") from None

    async def close(self) -> None:
        """Close all channels; calls under way fail."""
        self.is_closed = True
        channels = list(self._by_endpoint.values())
        channels += [each for spread in self._spread.values() for each in spread.connections]
        self._by_endpoint, self._spread = {}, {}
        for channel in channels:
            await channel.close()
