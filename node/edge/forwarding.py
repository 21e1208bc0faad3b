"""Calls that another node, or another worker of this one, has to carry out.

A call is forwarded once. Whoever receives it marked does it or says NOT_LEADER with what it knows:
two nodes that each take the other for the leader must not play ball. Bytes pass through as they
are, and so does whatever the other side answers, errors included. Forwarded calls may stay for long
like any other, so they are spread over several connections (onelog/spread.py).
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from functools import partial

from onelog import traceparent
from onelog.channel import Channel, RpcError
from onelog.errors import NotLeader, OnelogError, OutcomeUnknown, Unavailable
from onelog.spread import Spread
from onelog.status import error_of

FORWARDED_KEY = "onelog-forwarded"
SHARD_KEY = "onelog-shard"
# Who the caller is must arrive with what it wants, and the trace that it is part of.
PASSED_KEYS = frozenset(("authorization", traceparent.KEY))
RETRY_S = 0.1


class Elsewhere(Exception):
    """Nothing was done: another endpoint serves the shard, if one is known."""

    def __init__(self, shard: int, endpoint: str | None) -> None:
        super().__init__(f"shard {shard} is served by {endpoint}")
        self.shard = shard
        self.endpoint = endpoint

    def error(self) -> OnelogError:
        """Return what a client is told that has to go there itself."""
        metadata = {"shard": str(self.shard)}
        if self.endpoint is None:
            message = f"shard {self.shard} has no leader at the moment"
            return Unavailable(
                message, reason="NO_LEADER", metadata=metadata, retry_after_s=RETRY_S
            )
        metadata["leader"] = self.endpoint
        return NotLeader(f"shard {self.shard} is led elsewhere", metadata=metadata)


class Forwarder:
    """Connections to other endpoints of the API, made when they are needed."""

    def __init__(self, tls: ssl.SSLContext | None, message_bytes_max: int) -> None:
        self._connect = partial(Channel, tls=tls, message_bytes_max=message_bytes_max)
        self._channels: dict[str, Spread[Channel]] = {}
        self.count = 0

    async def unary(
        self,
        endpoint: str,
        method: str,
        request: bytes,
        timeout_s: float,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> bytes:
        """Return the bytes of the answer; raises what the other side answers."""
        self.count += 1
        with self._place(endpoint) as channel:
            try:
                return await channel.unary(
                    method, request, timeout_s, ((FORWARDED_KEY, "1"), *metadata)
                )
            except RpcError as error:
                raise _error(error) from error

    async def stream(
        self,
        endpoint: str,
        method: str,
        request: bytes,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> AsyncIterator[bytes]:
        """Yield the answers, each when the one before was taken; ends the call with itself."""
        self.count += 1
        with self._place(endpoint) as channel:
            call = channel.stream(method, request, ((FORWARDED_KEY, "1"), *metadata))
            try:
                async for message in call:
                    yield message
            except RpcError as error:
                raise _error(error) from error
            finally:
                call.cancel()

    async def close(self) -> None:
        """Close the connections."""
        channels, self._channels = self._channels, {}
        for spread in channels.values():
            for channel in spread.connections:
                await channel.close()

    def _place(self, endpoint: str) -> AbstractContextManager[Channel]:
        spread = self._channels.get(endpoint)
        if spread is None:
            spread = self._channels[endpoint] = Spread(partial(self._connect, endpoint))
        return spread.place()


def _error(error: RpcError) -> OnelogError:
    """Return what a client is told of a forwarded call that failed.

    Without details it was the connection. If the leader has not looked at the request, nothing was
    done. Otherwise it may have been carried out: nobody may say that nothing happened.
    """
    if error.details is not None or error.code != Unavailable.code:
        return error_of(error)
    if error.is_unprocessed:
        return Unavailable(
            "the leader cannot be reached", reason="LEADER_UNREACHABLE", retry_after_s=RETRY_S
        )
    return OutcomeUnknown("the connection to the leader broke while it was asked")
