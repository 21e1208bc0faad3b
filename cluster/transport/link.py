"""One established stream to a peer, whichever side opened it.

A link lives from the end of the handshake until the stream breaks, one side refuses what the other
sent, or a newer stream of the same pair replaces it. It reads and writes at the same time; the
first that ends also ends the other. An ended link delivers nothing any more, so messages of an
older session are lost, as Raft expects of a network.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from onelog.cluster.raft.messages import Message
from onelog.cluster.transport.outbox import EARLY_S, Outbox, OutboxLimits, Stuck
from onelog.cluster.transport.wire import FrameDecoder, Refused, WireError, encode_refusal

# How long a refusal may take to leave.
REFUSAL_S_MAX = 1.0

Deliver = Callable[[list[tuple[int, Message]]], None]


class Stream(Protocol):
    """A stream of frames (cluster/transport/connection.py)."""

    async def read(self) -> bytes | None:
        """Return the next frame; None when the other side has ended the stream."""

    async def write(self, frame: bytes) -> None:
        """Send a frame; returns when the next may be sent."""


class LinkEnded(Exception):
    """Why a link ended, if nothing that was sent on it was wrong."""


class PeerRefused(LinkEnded):
    """The other side refused us; ``reason`` is stable."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"the peer refuses: {refused.reason}: {refused.detail}")
        self.reason = refused.reason


@dataclass(slots=True)
class Traffic:
    """Counters of the links of one peer."""

    sent_messages: int = 0
    sent_bytes: int = 0
    sent_frames: int = 0
    received_messages: int = 0
    received_bytes: int = 0
    received_frames: int = 0
    dropped_appends: int = 0  # the queue was full, or their leadership over
    dropped_unconnected: int = 0
    dropped_stale: int = 0  # frames of another session


class Link:
    """One established stream; see the module."""

    def __init__(
        self,
        session: int,
        shards: int,
        deliver: Deliver,
        traffic: Traffic,
        limits: OutboxLimits,
        report: Callable[[Exception], None],
    ) -> None:
        self.session = session
        self._decoder = FrameDecoder(session, shards)
        self._outbox = Outbox(limits)
        self._deliver = deliver
        self._traffic = traffic
        self._report = report
        self._loop = loop = asyncio.get_running_loop()
        self._wake: asyncio.Future[None] | None = None
        self._early_timer: asyncio.TimerHandle | None = None
        self._is_early_due = False
        self._ended: asyncio.Future[None] = loop.create_future()
        self._refusal: bytes | None = None

    def send(self, shard: int, message: Message) -> None:
        """Queue a message; it leaves when the loop gets to it, together with what follows."""
        try:
            self._outbox.push(shard, message)
        except Stuck as stuck:
            self.end(LinkEnded(str(stuck)))
            return
        if self._outbox:
            self._wake_writer()
        elif self._outbox.has_early and self._early_timer is None:
            self._early_timer = self._loop.call_later(EARLY_S, self._send_early)

    def _send_early(self) -> None:
        """Send early acks that have waited long enough for another message."""
        self._early_timer = None
        if self._outbox.has_early:
            self._is_early_due = True
            self._wake_writer()

    def end(self, error: Exception) -> None:
        """End the link for a reason; a ``WireError`` is sent to the other side."""
        if self._ended.done():
            return
        if isinstance(error, WireError):
            self._refusal = encode_refusal(self.session, error.reason, error.detail)
            self._wake_writer()
        self._ended.set_exception(error)
        self._ended.exception()  # or asyncio complains if nobody waits for it
        self._report(error)

    async def run(self, stream: Stream) -> None:
        """Carry messages until the link ends; always raises why it did."""
        reader = asyncio.ensure_future(self._read_all(stream))
        writer = asyncio.ensure_future(self._write_all(stream))
        try:
            await asyncio.wait((reader, writer, self._ended), return_when=asyncio.FIRST_COMPLETED)
            for each in (reader, writer, self._ended):
                if each.done() and not each.cancelled() and (error := each.exception()):
                    assert isinstance(error, Exception), error
                    self.end(error)  # the first is the cause
                    break
            else:
                self.end(LinkEnded("the stream ended"))
            if self._refusal is not None:
                await asyncio.wait((writer,), timeout=REFUSAL_S_MAX)
            await self._ended
        finally:
            # Cancelled, since this node stops.
            self.end(LinkEnded("the stream was cut"))
            if self._early_timer is not None:
                self._early_timer.cancel()
            self._count()
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read_all(self, stream: Stream) -> None:
        traffic, decoder = self._traffic, self._decoder
        while (frame := await stream.read()) is not None:
            if self._ended.done():
                continue  # discard what arrives after the end
            traffic.received_frames += 1
            traffic.received_bytes += len(frame)
            messages = decoder.decode(frame)
            if isinstance(messages, Refused):
                raise PeerRefused(messages)
            if messages:
                traffic.received_messages += len(messages)
                self._deliver(messages)

    async def _write_all(self, stream: Stream) -> None:
        traffic, outbox = self._traffic, self._outbox
        while self._refusal is None:
            frame = outbox.next_frame(self.session, with_early=self._is_early_due)
            self._is_early_due = False
            if frame is None:
                self._count()
                self._wake = self._loop.create_future()
                await self._wake
                continue
            await stream.write(frame)
            traffic.sent_frames += 1
            traffic.sent_bytes += len(frame)
        with suppress(Exception):  # the stream may have ended meanwhile
            await stream.write(self._refusal)

    def _wake_writer(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _count(self) -> None:
        """Move the counts of the queue to those of the peer."""
        outbox, decoder, traffic = self._outbox, self._decoder, self._traffic
        traffic.sent_messages += outbox.sent_messages
        traffic.dropped_appends += outbox.dropped_messages
        traffic.dropped_stale += decoder.dropped_frames
        outbox.sent_messages = outbox.dropped_messages = decoder.dropped_frames = 0
