"""Unary calls and server streams: sent to the right endpoint, and again if that is exact.

A read, or a write in a session, is tried again until its timeout. A write without a session is
tried again only if the server says that nothing was done. What is left at the end of the timeout is
DeadlineExceeded, or OutcomeUnknown for a write that may have got through.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from onelog.channel import Channel, RpcError
from onelog.client.channels import METHODS, Channels
from onelog.client.observing import COLLECTING, ask, take
from onelog.client.options import ClientOptions
from onelog.client.retrying import Backoff, Verdict, judge
from onelog.client.topology import Topology
from onelog.client.tracing import with_parent
from onelog.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    NotLeader,
    OnelogError,
    OutcomeUnknown,
    Unavailable,
)
from onelog.status import error_of

# Marks an error that followed an attempt whose outcome is not known.
UNCERTAIN = "uncertain"


class Calls:
    """Calls of one client."""

    def __init__(self, channels: Channels, topology: Topology, options: ClientOptions) -> None:
        self._channels = channels
        self._topology = topology
        self._options = options

    async def start(self, timeout_s: float) -> None:
        """Learn the topology, if it is not known."""
        backoff, loop = self._backoff(), asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while not self._topology.is_known:
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._topology.refresh()
            except TimeoutError:
                raise Unavailable(
                    f"none of {', '.join(self._topology.endpoints())} answered in {timeout_s:g} s",
                    reason="NOT_CONNECTED",
                ) from None
            except OnelogError as error:
                if judge(error) is Verdict.FINAL:
                    raise
                wait_s = backoff.next_s(error)
                if loop.time() + wait_s >= deadline_s:
                    raise
                await asyncio.sleep(wait_s)

    async def unary(
        self,
        path: str,
        request: Any,
        *,
        timeout_s: float,
        shard: int | None = None,
        route: Callable[[], str] | None = None,
        is_repeatable: bool = False,
        poll_s: float = 0.0,
    ) -> Any:
        """Make a call and return its answer, however many attempts that takes.

        It goes to the leader of ``shard``, to where ``route`` says, or to anyone.
        ``is_repeatable`` says that doing it twice is as good as once.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s + poll_s
        backoff, is_uncertain = self._backoff(), False
        spent = COLLECTING.get()
        if spent is not None:
            ask(request)
        while True:
            left_s = deadline_s - loop.time()
            attempt_s = left_s
            if is_repeatable and route is None:
                # A leader that is cut off answers nothing: better ask again who leads.
                attempt_s = min(left_s, max(self._options.attempt_timeout_s, left_s / 2) + poll_s)
            target = self._endpoint(shard) if route is None else route()
            try:
                if poll_s:
                    with self._channels.place(target) as channel:
                        answer = await self._attempt(channel, path, request, attempt_s)
                else:
                    channel = self._channels.of(target)
                    answer = await self._attempt(channel, path, request, attempt_s)
            except OnelogError as failure:
                error = failure
            else:
                if spent is not None:
                    take(spent, answer)
                return answer
            verdict = judge(error)
            is_uncertain = is_uncertain or verdict is Verdict.UNKNOWN
            if verdict in (Verdict.FINAL, Verdict.REOPEN):
                if is_uncertain:
                    error.metadata[UNCERTAIN] = "an earlier attempt may have had an effect"
                raise error
            if verdict is Verdict.UNKNOWN and not is_repeatable:
                raise _unknown(error)
            self.failed(shard, target, error)
            wait_s = backoff.next_s(error)
            if loop.time() + wait_s >= deadline_s:
                if is_uncertain and not isinstance(error, DeadlineExceeded):
                    raise _unknown(error)
                raise error
            await asyncio.sleep(wait_s)

    async def once(self, path: str, request: Any, *, shard: int, timeout_s: float) -> Any:
        """Make a call with one attempt."""
        channel = self._channels.of(self._endpoint(shard))
        return await self._attempt(channel, path, request, timeout_s)

    async def stream(
        self,
        path: str,
        request: Callable[[], Any],
        *,
        timeout_s: float,
        route: Callable[[], str],
        shard: int | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Yield the answers of a server stream; opens it again where it broke off.

        ``request`` makes the request for what is still wanted, and ``timeout_s`` is how long the
        stream may be without a connection that works. What is not taken here is not sent there.
        """
        loop = asyncio.get_running_loop()
        backoff, broken_s = self._backoff(), loop.time()
        while True:
            target = route()
            try:
                async with aclosing(self._stream(target, path, request())) as answers:
                    async for answer in answers:
                        yield answer
                        backoff, broken_s = self._backoff(), loop.time()
            except OnelogError as failure:
                error = failure
            else:
                return
            if judge(error) in (Verdict.FINAL, Verdict.REOPEN) and error.reason != "SLOW_READER":
                raise error
            self.failed(shard, target, error)
            wait_s = backoff.next_s(error)
            if loop.time() + wait_s >= broken_s + timeout_s:
                raise error
            await asyncio.sleep(wait_s)

    def failed(self, shard: int | None, endpoint: str, error: OnelogError) -> None:
        """Learn from an attempt that failed."""
        if isinstance(error, NotLeader) and error.leader and shard is not None:
            self._topology.redirect(shard, error.leader)
            return
        if error.reason == "NOT_CONNECTED" and shard is not None:
            self._topology.forget_leader(shard, endpoint)
        self._topology.refresh_soon()

    def _endpoint(self, shard: int | None) -> str:
        topology = self._topology
        return topology.any_endpoint() if shard is None else topology.endpoint_of(shard)

    def _backoff(self) -> Backoff:
        return Backoff(self._options.backoff_first_s, self._options.backoff_max_s)

    async def _attempt(self, channel: Channel, path: str, request: Any, timeout_s: float) -> Any:
        if timeout_s <= 0:
            raise DeadlineExceeded("no time was left for the call", reason="EXPIRED")
        if not channel.is_ready:
            await channel.ready(min(timeout_s, self._options.connect_timeout_s))
        method, data = METHODS[path], request.SerializeToString()
        try:
            metadata = with_parent(self._channels.metadata)
            answer = await channel.unary(method.path, data, timeout_s, metadata)
        except RpcError as failure:
            self._channels.check_open()
            raise error_of(failure) from None
        return method.parse(answer)

    async def _stream(self, endpoint: str, path: str, request: Any) -> AsyncGenerator[Any, None]:
        with self._channels.place(endpoint) as channel:
            await channel.ready(self._options.connect_timeout_s)
            method, data = METHODS[path], request.SerializeToString()
            call = channel.stream(method.path, data, with_parent(self._channels.metadata))
            try:
                async for answer in call:
                    yield method.parse(answer)
            except RpcError as failure:
                self._channels.check_open()
                raise error_of(failure) from None
            finally:
                call.cancel()


def raise_if_closed() -> None:
    """Tell a caller who waits for something that was cancelled, and who was not, why.

    Closing a client cancels what its calls wait for. To them that is an error like others:
    CancelledError is for a task that somebody has cancelled.
    """
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        raise FailedPrecondition("the client is closed", reason="CLIENT_CLOSED") from None


def _unknown(error: OnelogError) -> OnelogError:
    """Return the error of a write that may have got through."""
    if isinstance(error, OutcomeUnknown):
        return error
    return OutcomeUnknown(f"it may or may not have been done; the last answer was {error}")
