"""Unary calls and server streams: sent to the right endpoint, and retried if that is safe.

Three facts decide whether a failed attempt is retried: whether the error is temporary, whether the
attempt may have had an effect, and whether repeating it is harmless. ``judge`` answers the first
two. A read, or a write in a session, is harmless and is retried until its timeout. A write without
a session is retried only if the server says that nothing was done. At the timeout the call fails
with DeadlineExceeded, or with OutcomeUnknown if it is a write that may have taken effect.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from enum import Enum
from typing import Any

from onelog.channel import MISTAKES, NOT_CONNECTED, UNREACHED, Channel, RpcError
from onelog.client.channels import METHODS, Channels
from onelog.client.observing import COLLECTING, ask_for_cost, collect_cost, observing_metadata
from onelog.client.options import ClientOptions
from onelog.client.topology import Topology
from onelog.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    NotLeader,
    OnelogError,
    OutcomeUnknown,
    ResourceExhausted,
    SessionExpired,
    Unavailable,
)
from onelog.status import error_of

# Reasons of the transport when a connection breaks or a server goes away during a call. The
# database has reasons of its own; with these it is not known how far the call got.
_OF_THE_CONNECTION = frozenset(("UNAVAILABLE", "INTERNAL", "CANCELLED", "UNKNOWN"))


class Verdict(Enum):
    """What an error means for the next attempt."""

    FINAL = 0
    AGAIN = 1  # nothing was done: retry
    UNKNOWN = 2  # it may have been done
    REOPEN = 3  # the session has ended; this attempt did nothing


def judge(error: OnelogError) -> Verdict:
    """Return what an error means for the next attempt."""
    match error:
        case NotLeader():
            return Verdict.AGAIN
        case SessionExpired():
            return Verdict.REOPEN
        case OutcomeUnknown():
            return Verdict.UNKNOWN
        case DeadlineExceeded(reason="EXPIRED"):
            return Verdict.AGAIN
        case DeadlineExceeded():
            return Verdict.UNKNOWN
        case OnelogError(reason=reason) if reason in _OF_THE_CONNECTION and not error.metadata:
            return Verdict.UNKNOWN
        case Unavailable():
            return Verdict.AGAIN
        case ResourceExhausted() if error.retry_after_s is not None:
            return Verdict.AGAIN
        case _:
            return Verdict.FINAL


def is_refusal(error: OnelogError) -> bool:
    """Return whether this is the result of the operation, which a session keeps.

    The operation had no effect, and a repeated request is answered the same: it can be tried again
    only as a new one.
    """
    return "detail" in error.metadata or "cause" in error.metadata


class Backoff:
    """Waiting times before retries: doubled each time up to a limit, each with jitter."""

    __slots__ = ("_first_s", "_limit_s", "_random", "attempts")

    def __init__(
        self,
        first_s: float,
        limit_s: float,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._random = uniform
        self.attempts = 0

    def next_s(self, error: OnelogError | None = None) -> float:
        """Return how long to wait now; the server's ``retry_after_s`` is a lower bound.

        A redirect is followed at once, but only once in a row: two nodes that redirect to each
        other must not be asked in a tight loop.
        """
        self.attempts += 1
        if self.attempts == 1 and isinstance(error, NotLeader) and error.leader:
            return 0.0
        ceiling_s = min(self._limit_s, self._first_s * 2.0 ** min(self.attempts - 1, 20))
        wait_s = self._random(ceiling_s / 2, ceiling_s)
        hint_s = error.retry_after_s if error is not None else None
        return wait_s if hint_s is None else max(wait_s, hint_s * self._random(1.0, 1.25))


# Calls

# How much of its timeout the first call of a client waits for somebody to listen. A server that is
# about to start is there sooner; a wrong endpoint should not cost all of the time.
REFUSED_SHARE = 0.2

# Marks an error that followed an attempt whose outcome is not known.
UNCERTAIN = "uncertain"


class Calls:
    """Makes the unary calls and server streams of one client."""

    def __init__(self, channels: Channels, topology: Topology, options: ClientOptions) -> None:
        self._channels = channels
        self._topology = topology
        self._options = options

    async def start(self, timeout_s: float, refused_s: float | None = None) -> None:
        """Learn the topology, if it is not known.

        While nobody can be reached ask again, for ``refused_s``, or a part of the timeout.
        """
        backoff, loop = self._backoff(), asyncio.get_running_loop()
        began_s, last = loop.time(), None
        deadline_s = began_s + timeout_s
        refused_s = timeout_s * REFUSED_SHARE if refused_s is None else refused_s
        while not self._topology.is_known:
            asked_s = loop.time()
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._topology.refresh()
            except TimeoutError:
                raise last or Unavailable(
                    f"none of {', '.join(self._topology.endpoints())} answered in {timeout_s:g} s",
                    reason=NOT_CONNECTED,
                ) from None
            except OnelogError as error:
                last = error
                if judge(error) is Verdict.FINAL or error.reason in MISTAKES:
                    raise
                wait_s = backoff.next_s(error)
                # Otherwise a server did not answer, and may only be slow.
                is_refused = loop.time() - asked_s < self._options.connect_timeout_s
                if error.reason in UNREACHED and is_refused:
                    deadline_s = min(deadline_s, began_s + refused_s)
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
        renew: Callable[[], None] | None = None,
    ) -> Any:
        """Make a call and return its answer, with as many attempts as the timeout allows.

        It goes to the leader of ``shard``, to the endpoint that ``route`` returns, or to any node.
        ``is_repeatable`` says that repeating it is harmless. ``renew`` makes it a new request: the
        session keeps the refusal of the last one.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s + poll_s
        backoff, is_uncertain = self._backoff(), False
        spent = COLLECTING.get()
        if spent is not None:
            ask_for_cost(request)
        while True:
            left_s = deadline_s - loop.time()
            attempt_s = left_s
            if is_repeatable and route is None:
                # A leader that is cut off does not answer: ask who leads now.
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
                    collect_cost(spent, answer)
                return answer
            verdict = judge(error)
            is_uncertain = is_uncertain or verdict is Verdict.UNKNOWN
            if verdict in (Verdict.FINAL, Verdict.REOPEN):
                if is_uncertain:
                    error.metadata[UNCERTAIN] = "an earlier attempt may have had an effect"
                if spent is not None:
                    collect_cost(spent, error)
                raise error
            if verdict is Verdict.UNKNOWN and not is_repeatable:
                raise _unknown(error)
            if is_refusal(error):
                is_uncertain = False
                if renew is not None:
                    renew()
            self.failed(shard, target, error)
            wait_s = backoff.next_s(error)
            if loop.time() + wait_s >= deadline_s:
                if is_uncertain and not isinstance(error, DeadlineExceeded):
                    raise _unknown(error)
                raise error
            await asyncio.sleep(wait_s)

    async def once(self, path: str, request: Any, *, shard: int, timeout_s: float) -> Any:
        """Make a call without retries."""
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
        """Yield the answers of a server stream; after a break reopen it where it stopped.

        ``request`` returns the request for what is still missing. ``timeout_s`` is how long the
        stream may be without a working connection. Flow control stops the server while the caller
        does not take answers.
        """
        loop = asyncio.get_running_loop()
        backoff, broken_s = self._backoff(), loop.time()
        while True:
            target, begun_s, has_answered = route(), loop.time(), False
            try:
                async with aclosing(self._stream(target, path, request())) as answers:
                    async for answer in answers:
                        yield answer
                        has_answered = True
            except OnelogError as failure:
                error = failure
            else:
                return
            # It worked until now; how long ago the last answer came does not matter.
            if has_answered or loop.time() - begun_s >= timeout_s:
                backoff, broken_s = self._backoff(), loop.time()
            if judge(error) in (Verdict.FINAL, Verdict.REOPEN):
                spent = COLLECTING.get()
                if spent is not None:
                    collect_cost(spent, error)
                raise error
            self.failed(shard, target, error)
            wait_s = backoff.next_s(error)
            if loop.time() + wait_s >= broken_s + timeout_s:
                raise error
            await asyncio.sleep(wait_s)

    def failed(self, shard: int | None, endpoint: str, error: OnelogError) -> None:
        """Update the topology after a failed attempt."""
        if isinstance(error, NotLeader) and error.leader and shard is not None:
            self._topology.redirect(shard, error.leader)
            return
        if error.reason in UNREACHED and shard is not None:
            self._topology.forget_leader(shard, endpoint)
        self._topology.refresh_soon()

    def _endpoint(self, shard: int | None) -> str:
        topology = self._topology
        return topology.any_endpoint() if shard is None else topology.find_endpoint(shard)

    def _backoff(self) -> Backoff:
        return Backoff(self._options.backoff_first_s, self._options.backoff_max_s)

    async def _attempt(self, channel: Channel, path: str, request: Any, timeout_s: float) -> Any:
        if timeout_s <= 0:
            raise DeadlineExceeded("no time was left for the call", reason="EXPIRED")
        if not channel.is_ready:
            await channel.ready(min(timeout_s, self._options.connect_timeout_s))
        method, data = METHODS[path], request.SerializeToString()
        try:
            metadata = observing_metadata()
            answer = await channel.unary(method.path, data, timeout_s, metadata)
        except RpcError as failure:
            self._channels.check_open()
            raise error_of(failure) from None
        return method.parse(answer)

    async def _stream(self, endpoint: str, path: str, request: Any) -> AsyncGenerator[Any, None]:
        with self._channels.place(endpoint) as channel:
            await channel.ready(self._options.connect_timeout_s)
            method, data = METHODS[path], request.SerializeToString()
            call, spent = channel.stream(method.path, data, observing_metadata()), COLLECTING.get()
            try:
                async for each in call:
                    answer = method.parse(each)
                    if spent is not None:
                        collect_cost(spent, answer)
                    yield answer
            except RpcError as failure:
                self._channels.check_open()
                raise error_of(failure) from None
            finally:
                call.cancel()


def raise_if_closed() -> None:
    """Raise CLIENT_CLOSED if the awaited task was cancelled, but not the caller itself.

    Closing a client cancels what its calls wait for. Their callers should see an error like any
    other: CancelledError is only for a caller whose own task was cancelled.
    """
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        raise FailedPrecondition("the client is closed", reason="CLIENT_CLOSED") from None


def _unknown(error: OnelogError) -> OnelogError:
    """Return the error for a write that may have taken effect."""
    if isinstance(error, OutcomeUnknown):
        return error
    return OutcomeUnknown(f"it may or may not have been done; the last answer was {error}")
