"""The two ends of a gRPC stream of frames, made alike (``cluster.link.Stream``).

Whatever gRPC raises when a stream is no more becomes ``LinkEnded``, or ``PeerRefused`` where the
other side said why.
"""

import asyncio
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from cluster.link import LinkEnded, PeerRefused
from cluster.wire import DETAIL_SIZE_MAX, REASON_SIZE_MAX, Refused, printable

# What gRPC raises when a stream is no more.
_BROKEN = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class DialledStream:
    """The end of a stream that opened it."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> bytes | None:
        """See ``Stream.read``."""
        try:
            frame = await self._call.read()
        except _BROKEN as error:
            raise _why(error) from error
        return None if frame is grpc.aio.EOF else frame

    async def write(self, frame: bytes) -> None:
        """See ``Stream.write``."""
        try:
            await self._call.write(frame)
        except _BROKEN as error:
            # A write that met the end of the call does not know why it ended; its status does.
            raise _ended(await self._call.code(), await self._call.details()) from error

    async def finish(self) -> None:
        """Say that nothing follows, and wait until the other side has seen it."""
        try:
            await self._call.done_writing()
            while await self._call.read() is not grpc.aio.EOF:
                pass
        except _BROKEN:
            return


class AnsweredStream:
    """The end of a stream that answered it."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def read(self) -> bytes | None:
        """See ``Stream.read``."""
        try:
            frame = await self._context.read()
        except _BROKEN as error:
            raise _why(error) from error
        return None if frame is grpc.aio.EOF else frame

    async def write(self, frame: bytes) -> None:
        """See ``Stream.write``."""
        try:
            await self._context.write(frame)
        except _BROKEN as error:
            raise _why(error) from error


def _why(error: Exception) -> LinkEnded:
    """Return what a broken stream means."""
    if isinstance(error, grpc.aio.AioRpcError):
        return _ended(error.code(), error.details())
    return LinkEnded(str(error) or type(error).__name__)


def _ended(code: grpc.StatusCode, details: str | None) -> LinkEnded:
    """Return what the status of a stream means; a refusal has its reason in the details."""
    if code == grpc.StatusCode.FAILED_PRECONDITION:
        reason, _, detail = (details or "").partition(": ")
        return PeerRefused(
            Refused(printable(reason, REASON_SIZE_MAX), printable(detail, DETAIL_SIZE_MAX))
        )
    return LinkEnded(f"{code.name}: {details}")
