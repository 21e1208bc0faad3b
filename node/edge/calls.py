"""What every call of the API has in common: deadlines, admission, tracing, forwarding.

A service is an object with a coroutine for each unary call and an async generator for each stream,
named as in the proto but in snake case, taking (request, call). Where both sides stream, it is a
coroutine that takes (messages, call, send). Handlers know nothing of the wire: they raise, and
node/edge/exchange.py turns the exception into a status. A unary handler runs without a task until
it waits for something other than its shard; code that needs a task, ``asyncio.timeout`` above all,
awaits ``own_task`` first (node/edge/waits.py).

* Every unary call has a deadline: the client's, within bounds, or the default. Streams have none.
* Requests under way are counted and limited (node/edge/gate.py).
* A stream whose client does not read for ``STALL_S`` is dropped (SLOW_READER). The next message is
  requested from the handler when the last one has left, so nothing piles up.
* When the node stops, new calls are refused and streams end with STOPPING; clients reconnect to
  another node.

**Forwarding.** A handler raises ``Elsewhere`` before it has done anything if another node, or
another worker of this one, leads the shard. ``run_on_leader`` then forwards the call; during an
election it waits up to ``LEADER_WAIT_S`` for the new leader. A call is forwarded only once: the
receiver of a forwarded call carries it out or answers NOT_LEADER, so that two nodes with a wrong
idea of each other do not pass it back and forth. Bytes pass through unchanged in both directions,
errors included.

Clients share the connections between nodes. To keep them apart, a forwarded call names its client
(``CLIENT_KEY``), and the receiver's limits go by that name. With TLS both marks of a forwarded call
are believed only from a caller whose certificate names a node (node/credentials.py). Answers of
unary calls are read at once, however slow the client is. Streams may use up the window of a
connection, so the streams of different clients travel on different connections, as far as
``STREAM_LANES`` go. Forwarded calls may last long, so they are spread over several connections
(onelog/spread.py).

**Costs.** A call asks for its cost in its options or in its metadata, and every answer, message of
a stream and refusal of it has one, whatever its handler does: this module adds it. ``Call.cost`` is
where those who know more, about a write or a read round, say so (node/edge/shards.py).
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

from crc32c import crc32c
from google.protobuf import message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from onelog import traceparent
from onelog.channel import Channel, RpcError
from onelog.errors import (
    InvalidArgument,
    NotLeader,
    OnelogError,
    OutcomeUnknown,
    ResourceExhausted,
    Unavailable,
)
from onelog.node.context import Kind, Method, NodeContext, Service
from onelog.node.edge.exchange import CLIENT_KEY, COST_KEY, STALL_S, Exchange
from onelog.node.edge.gate import Admission
from onelog.node.public_errors import (
    answer_too_large,
    error_of_exception,
    name_subject,
    too_large,
)
from onelog.node.tracing import Metadata, Span, with_parent
from onelog.spread import Spread
from onelog.status import error_of
from onelog.v1 import common_pb2
from onelog.wire.grpc import (
    CANCELLED,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNKNOWN,
)

FORWARDED_KEY = "onelog-forwarded"
SHARD_KEY = "onelog-shard"
# The trace that a call is part of must arrive with it, and that its cost is asked for.
PASSED_KEYS = frozenset((traceparent.KEY, COST_KEY))
RETRY_S = 0.1
# Connections for streams to one endpoint, at least; a client always uses the same.
STREAM_LANES = 256
# Statuses that the transport itself makes. They do not tell the outcome of a call.
TRANSPORT_CODES = frozenset((CANCELLED, INTERNAL, RESOURCE_EXHAUSTED, UNAVAILABLE, UNKNOWN))


class Elsewhere(Exception):
    """Nothing was done: another endpoint serves the shard, if one is known."""

    def __init__(self, shard: int, endpoint: str | None) -> None:
        super().__init__(f"shard {shard} is served by {endpoint}")
        self.shard = shard
        self.endpoint = endpoint

    def error(self) -> OnelogError:
        """Return the error for a client that has to call that endpoint itself."""
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
        self._unary: dict[str, Spread[Channel]] = {}  # by endpoint
        self._streams: dict[tuple[str, int], Spread[Channel]] = {}  # by endpoint and lane
        self.count = 0

    async def unary(
        self,
        endpoint: str,
        method: str,
        request: bytes,
        timeout_s: float,
        client: str,
        metadata: Metadata = (),
    ) -> bytes:
        """Return the bytes of the answer; raises what the other side answers."""
        self.count += 1
        spread = self._unary.get(endpoint)
        if spread is None:
            spread = self._unary[endpoint] = Spread(partial(self._connect, endpoint))
        with spread.place() as channel:
            try:
                return await channel.unary(method, request, timeout_s, _mark(client, metadata))
            except RpcError as error:
                raise _error(error) from error

    async def stream(
        self,
        endpoint: str,
        method: str,
        request: bytes,
        client: str,
        metadata: Metadata = (),
    ) -> AsyncIterator[bytes]:
        """Yield the answers, each when the one before was taken; ends the call with itself."""
        self.count += 1
        lane = endpoint, crc32c(client.encode()) % STREAM_LANES
        spread = self._streams.get(lane)
        if spread is None:
            spread = self._streams[lane] = Spread(partial(self._connect, endpoint))
        with spread.place() as channel:
            call = channel.stream(method, request, _mark(client, metadata))
            try:
                async for message in call:
                    yield message
            except RpcError as error:
                raise _error(error) from error
            finally:
                call.cancel()

    async def close(self) -> None:
        """Close the connections."""
        spreads = [*self._unary.values(), *self._streams.values()]
        self._unary, self._streams = {}, {}
        for spread in spreads:
            for channel in spread.connections:
                await channel.close()


def _mark(client: str, metadata: Metadata) -> Metadata:
    """Return the metadata of a call that is forwarded for a client."""
    return ((FORWARDED_KEY, "1"), (CLIENT_KEY, client), *metadata)


def _error(error: RpcError) -> OnelogError:
    """Return the public error of a forwarded call that failed.

    Without details it was the connection, or the leader's port. If the leader has not processed
    the request, nothing was done. Otherwise it may have been carried out, and the error must not
    say that nothing happened.
    """
    if error.details is not None or error.code not in TRANSPORT_CODES:
        return error_of(error)
    if error.is_unprocessed:
        return Unavailable(
            "the leader cannot be reached", reason="LEADER_UNREACHABLE", retry_after_s=RETRY_S
        )
    return OutcomeUnknown("the connection to the leader broke while it was asked")


# Calls

DEADLINE_DEFAULT_S = 10.0
DEADLINE_MAX_S = 300.0
# How long a request that arrives during an election waits for the winner, and in which pauses.
LEADER_WAIT_S = 1.0
PAUSE_S_MIN, PAUSE_S_MAX = 0.005, 0.05
# Reasons which prove that a node has not begun to carry out a call.
NOTHING_DONE = frozenset(
    ("NOT_LEADER", "NO_LEADER", "LEADER_UNREACHABLE", "STOPPING", "MEMBER_REMOVED")
)

_MALFORMED = "REQUEST_MALFORMED"

MessageT = TypeVar("MessageT")


class Call:
    """One call: its client, its deadline, and the metadata that forwarding needs."""

    __slots__ = (
        "arrived_s", "client", "client_deadline_s", "cost", "deadline_s", "is_forwarded",
        "metadata", "method", "only_shard", "response", "span",
    )  # fmt: skip

    def __init__(
        self, method: str, response: type[Any], client: str, arrived_s: float, deadline_s: float
    ) -> None:
        self.method = method
        self.response = response
        self.client = client
        self.arrived_s = arrived_s  # of the node's clock, like the deadline
        self.deadline_s = deadline_s
        # What the client itself said, also of a stream; None: nothing.
        self.client_deadline_s: float | None = None
        self.is_forwarded = False
        # A part of a call over all shards, asked of the node that leads this one.
        self.only_shard: int | None = None
        self.metadata: Metadata = ()
        # Where what takes long is noted, if it is traced and not a stream.
        self.span: Span | None = None
        # Its cost so far, or since the last message of a stream; None if the client does not ask.
        self.cost: common_pb2.Cost | None = None


class Calls:
    """Turns handlers into services; see the module's text. One for each process."""

    def __init__(self, context: NodeContext) -> None:
        limits = context.config.limits
        self.context = context
        self.admission = Admission(limits.concurrent_rpcs_max, limits.in_flight_bytes_max)
        credentials = context.credentials
        tls = None if credentials is None else credentials.forward
        self.forwarder = Forwarder(tls, limits.message_bytes_max)
        self.tracer = context.tracer
        self.stall_s = STALL_S
        self._streams: set[asyncio.Task[Any]] = set()
        self._ending: asyncio.Task[None] | None = None

    def service(self, descriptor: Any, handlers: object, *, is_open: bool = False) -> Service:
        """Return the service of a proto whose calls ``handlers`` carries out.

        A method that they lack is answered UNIMPLEMENTED. See ``Method`` for ``is_open``.
        """
        methods = []
        serve: Callable[..., Coroutine[Any, Any, bytes | None]]
        for method in descriptor.methods:
            handler = getattr(handlers, snake_case(method.name), None)
            if handler is None:
                continue
            request = message_factory.GetMessageClass(method.input_type)
            decode: Callable[[bytes], Any] = partial(_decode, request.FromString)
            if method.client_streaming:
                kind, serve = Kind.BOTH, self._both
            elif method.server_streaming:
                # A stream keeps the bytes of its request for as long as it lasts, and no message.
                kind, serve, decode = Kind.STREAM, partial(self._stream, decode), bytes
            else:
                kind, serve = Kind.UNARY, self._unary
            response = message_factory.GetMessageClass(method.output_type)
            methods.append(
                Method(
                    descriptor.full_name,
                    method.name,
                    kind,
                    decode,
                    partial(serve, response, handler),
                    is_open,
                )
            )
        return Service(descriptor.full_name, tuple(methods))

    async def run_on_leader(
        self,
        call: Call,
        attempt: Callable[[], Awaitable[Any]],
        forward: Callable[[Elsewhere], Awaitable[Any]],
    ) -> Any:
        """Run ``attempt`` if this node leads the shard, else ``forward``; wait out an election.

        ``attempt`` raises ``Elsewhere`` before it has done anything, and ``forward`` one of
        ``NOTHING_DONE``; so both can be repeated. Only the pauses count as waiting: a leader that
        hands over may have held a request for long, and who comes next is about to be elected.
        """
        pause_s, waited_s = PAUSE_S_MIN, 0.0
        while True:
            try:
                return await attempt()
            except Elsewhere as elsewhere:
                error = elsewhere.error()
                if call.span is not None:
                    call.span.shards.add(elsewhere.shard)
                if call.is_forwarded:
                    raise error from None
                if elsewhere.endpoint is not None:
                    try:
                        return await forward(elsewhere)
                    except OnelogError as refused:
                        if refused.reason not in NOTHING_DONE:
                            raise
                        error = refused
            if waited_s >= LEADER_WAIT_S or self.context.clock.now_s() >= call.deadline_s:
                raise error
            await asyncio.sleep(pause_s)
            waited_s += pause_s
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def forward(
        self, call: Call, elsewhere: Elsewhere, request: Message, shard: int | None = None
    ) -> bytes:
        """Forward a call to the endpoint that serves the shard; return the bytes of the answer."""
        assert elsewhere.endpoint is not None
        timeout_s = call.deadline_s - self.context.clock.now_s()
        if timeout_s <= 0:
            raise TimeoutError
        metadata = call.metadata
        if shard is not None:
            metadata = (*metadata, (SHARD_KEY, str(shard)))
        data = request.SerializeToString()
        return await self.forwarder.unary(
            elsewhere.endpoint, call.method, data, timeout_s, call.client, metadata
        )

    def begin_span(self, call: Call, parents: Sequence[str] = ()) -> Span | None:
        """Return the span of a call or a message, if it is traced; what it asks of others is too.

        ``parents``: what a message says itself, if something.
        """
        assert self.tracer is not None
        if not parents:
            parents = [value for key, value in call.metadata if key == traceparent.KEY]
        span = self.tracer.begin(call.method, parents, is_forwarded=call.is_forwarded)
        if span is not None:
            call.metadata = with_parent(call.metadata, span.traceparent)
        return span

    # What the port calls

    async def _unary(
        self, response: type[Any], handler: Any, exchange: Exchange, request: Any, size: int
    ) -> bytes:
        call = self._open(exchange, response)
        options = getattr(request, "options", None)
        if options is not None and options.with_cost and call.cost is None:
            call.cost = exchange.cost = common_pb2.Cost()
        with _Admitted(self, exchange, call, size) as call.span:
            try:
                answer = await self.run_on_leader(
                    call,
                    lambda: handler(request, call),
                    lambda elsewhere: self._forward_whole(call, elsewhere, request),
                )
            except OnelogError as error:
                name_subject(error, request)
                raise
            if call.cost is not None:
                answer = self._costed(call, answer, call.arrived_s)
            return self._fitting(answer)

    async def _forward_whole(self, call: Call, elsewhere: Elsewhere, request: Message) -> bytes:
        data = await self.forward(call, elsewhere, request)
        call.cost = None  # the answer has it
        return data

    def _costed(self, call: Call, answer: Any, since_s: float) -> Any:
        """Return an answer, or a message of a stream, with its cost."""
        if type(answer) is bytes:
            answer = call.response.FromString(answer)
        assert call.cost is not None
        elapsed_s = self.context.clock.now_s() - since_s
        fill_cost(answer, call.cost, elapsed_s)
        return answer

    async def _stream(
        self,
        decode: Callable[[bytes], Any],
        response: type[Any],
        handler: Any,
        exchange: Exchange,
        data: bytes,
        size: int,
    ) -> None:
        call = self._open(exchange, response, has_deadline=False)
        with _Admitted(self, exchange, call, size):
            try:
                request = decode(data)
                options = getattr(request, "options", None)
                if options is not None and options.with_cost and call.cost is None:
                    call.cost = exchange.cost = common_pb2.Cost()
                messages = handler(request, call)
                del request, options
                await self._send_all(messages, exchange, call)
            except OnelogError as error:
                if error.reason != _MALFORMED:
                    name_subject(error, decode(data))
                raise
            except Elsewhere as elsewhere:
                if call.is_forwarded or elsewhere.endpoint is None:
                    raise elsewhere.error() from None
                messages = self.forwarder.stream(
                    elsewhere.endpoint, call.method, data, call.client, call.metadata
                )
                await self._send_all(messages, exchange)

    async def _both(
        self, response: type[Any], handler: Any, exchange: Exchange, messages: Any, _size: int
    ) -> None:
        """Streams in both directions; what each message takes is the handler's to count."""
        call = self._open(exchange, response, has_deadline=False)
        send = partial(self.send, exchange)
        if call.cost is not None:
            send = partial(self._send_costed, exchange, call)
        await handler(messages, call, send)

    def _fitting(self, answer: Any) -> bytes:
        data = _serialize(answer)
        self.check_answer(len(data))
        return data

    def check_request(self, size: int) -> None:
        """Refuse a message of a stream that is too large; the gate does that for other calls."""
        limit = self.context.config.limits.message_bytes_max
        if size > limit:
            raise too_large(size, limit)

    def check_answer(self, size: int) -> None:
        """Refuse to send an answer that is more than a client expects."""
        limit = self.context.config.limits.message_bytes_max
        if size > limit:
            message = (
                f"an answer of {size} bytes, limit {limit}; ask for less; what it wrote is written"
            )
            raise answer_too_large(message, limit, size=size)

    async def send(self, exchange: Exchange, message: Any) -> None:
        """Send one message of a stream; drops a client that does not take it."""
        if exchange.send(_serialize(message)):
            return
        try:
            async with asyncio.timeout(self.stall_s):
                await exchange.sent()
        except TimeoutError:
            raise ResourceExhausted(
                f"nothing was read for {self.stall_s:g} s; resume from the last message",
                reason="SLOW_READER",
                retry_after_s=RETRY_S,
            ) from None

    async def _send_costed(self, exchange: Exchange, call: Call, message: Any) -> None:
        """Send one message with what it has cost since the one before."""
        cost = call.cost
        assert cost is not None
        await self.send(exchange, self._costed(call, message, call.arrived_s))
        call.arrived_s = self.context.clock.now_s()
        cost.Clear()

    async def _send_all(self, messages: Any, exchange: Exchange, call: Call | None = None) -> None:
        """Send what comes until it ends, or the node stops and this is not about the node."""
        task, stop = asyncio.current_task(), self.context.stopping
        assert task is not None
        is_open = exchange.method.is_open
        with nullcontext() if is_open else self.ending(task):
            try:
                try:
                    async for message in messages:
                        if call is None or call.cost is None:
                            await self.send(exchange, message)
                        else:
                            await self._send_costed(exchange, call, message)
                        del message  # or it would take memory until the next one is there
                        if stop.is_set() and not is_open:
                            raise stopping()
                finally:
                    await messages.aclose()
            except asyncio.CancelledError:
                # Either the client went, or the node stops.
                if is_open or not stop.is_set() or exchange.is_over:
                    raise
                task.uncancel()
                raise stopping() from None

    def ending(self, task: "asyncio.Task[Any]") -> "_Ending":
        """Cancel this task when the node stops: it would continue for ever."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_streams(), name="end-streams")
        return _Ending(self._streams, task)

    async def _end_streams(self) -> None:
        await self.context.stopping.wait()
        for task in tuple(self._streams):
            task.cancel()

    async def close(self) -> None:
        """Close the connections to other nodes."""
        if self._ending is not None:
            self._ending.cancel()
        await self.forwarder.close()

    def _open(self, exchange: Exchange, response: type[Any], *, has_deadline: bool = True) -> Call:
        method = exchange.method
        if self.context.stopping.is_set() and not method.is_open:
            raise stopping()
        now_s = self.context.clock.now_s()
        left_s, remaining_s = float("inf"), exchange.time_remaining()
        if has_deadline:
            left_s = DEADLINE_DEFAULT_S if remaining_s is None else min(remaining_s, DEADLINE_MAX_S)
        call = Call(method.path, response, exchange.client, now_s, now_s + left_s)
        if remaining_s is not None:
            call.client_deadline_s = now_s + remaining_s
        for key, value in exchange.wire.metadata:
            if type(value) is not str:
                continue
            if key == FORWARDED_KEY:
                call.is_forwarded = exchange.connection.is_node
            elif key == SHARD_KEY:
                call.only_shard = self._parse_shard(value)
            elif key in PASSED_KEYS:
                call.metadata += ((key, value),)
                if key == COST_KEY and not method.is_open:  # those are not ours to change
                    call.cost = exchange.cost = common_pb2.Cost()
        return call

    def _parse_shard(self, value: str) -> int:
        if not value.isdecimal() or int(value) >= self.context.topology.shards:
            raise InvalidArgument(f"there is no shard {value!r}", reason="SHARD_UNKNOWN")
        return int(value)


# Not generators, which take four times as much: thousands of streams are inside of both.


class _Admitted:
    """Counts a call and traces it, until it ends."""

    __slots__ = ("_call", "_calls", "_is_open", "_size", "_span")

    def __init__(self, calls: Calls, exchange: Exchange, call: Call, size: int) -> None:
        self._calls = calls
        self._call = call
        self._is_open = exchange.method.is_open
        self._size = size
        self._span: Span | None = None

    def __enter__(self) -> Span | None:
        calls, call = self._calls, self._call
        if self._is_open:
            return None
        if calls.tracer is not None:
            self._span = calls.begin_span(call)
        try:
            calls.admission.enter(call.client, self._size)
        except Exception as error:
            self._end_span(error)
            raise
        return self._span

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not self._is_open:
            self._calls.admission.leave(self._call.client, self._size)
            self._end_span(error)

    def _end_span(self, error: BaseException | None) -> None:
        """End the span, if there is one; raises the public error that the span records."""
        span = self._span
        if span is None:
            return
        try:
            if isinstance(error, Exception):
                public = error_of_exception(error)
                span.fail(public.reason, public.code)
                raise public from error
        finally:
            span.end()


class _Ending:
    """A task is one of those that are cancelled when the node stops, until it ends."""

    __slots__ = ("_task", "_tasks")

    def __init__(self, tasks: "set[asyncio.Task[Any]]", task: "asyncio.Task[Any]") -> None:
        self._tasks = tasks
        self._task = task

    def __enter__(self) -> None:
        self._tasks.add(self._task)

    def __exit__(self, *_: object) -> None:
        self._tasks.discard(self._task)


def add_cost(total: common_pb2.Cost, cost: common_pb2.Cost) -> None:
    """Add what a part of a call has cost."""
    total.wait_ns = total.wait_ns or cost.wait_ns
    total.raft_ns += cost.raft_ns
    total.fsync_ns += cost.fsync_ns
    total.round_ns += cost.round_ns
    total.scanned += cost.scanned
    total.tier = max(total.tier, cost.tier)


def fill_cost(answer: Any, cost: common_pb2.Cost, elapsed_s: float) -> None:
    """Put a cost into an answer, beside what its handler has put there.

    It belongs into the headers, or into the answer itself if it has none: then what the answer
    lists was examined.
    """
    fields = answer.DESCRIPTOR.fields_by_name
    if "header" in fields:
        targets = [answer.header]
    else:
        targets = list(answer.headers) if "headers" in fields else [answer]
    if not any(target.HasField("cost") for target in targets):
        for target in targets:
            # Of several shards each has the whole of it: the parts were done together.
            target.cost.CopyFrom(cost)
        if targets == [answer] and not cost.scanned:
            answer.cost.scanned = sum(
                len(value) for field, value in answer.ListFields() if field.is_repeated
            )
    for target in targets:
        complete_cost(target.cost, elapsed_s, cost.round_ns)


def complete_cost(found: common_pb2.Cost, elapsed_s: float, round_ns: int = 0) -> None:
    """Add the time of a call that wrote nothing, if it is not there yet."""
    if not (found.raft_ns or found.wait_ns):
        found.round_ns = found.round_ns or round_ns
        found.wait_ns = max(1, int(elapsed_s * 1e9) - found.round_ns)


def snake_case(name: str) -> str:
    """Return the name of the handler of a call."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def stopping() -> Unavailable:
    """Return the error of a call that the end of the node cuts short."""
    message = "this node is shutting down; call another one"
    return Unavailable(message, reason="STOPPING", retry_after_s=0.1)


def _serialize(message: Any) -> bytes:
    """Return the bytes of an answer; a forwarded one has them already."""
    return message if type(message) is bytes else message.SerializeToString()


def _decode(parse: Callable[[bytes], Any], data: bytes) -> Any:
    """Return a message of its bytes; refuse bytes that are none."""
    try:
        return parse(data)
    except DecodeError as error:
        message = f"the request is no message of its kind: {error}"
        raise InvalidArgument(message, reason=_MALFORMED) from None


async def gather(*parts: Awaitable[MessageT]) -> list[MessageT]:
    """Run parts of a call together; the first error ends the others, and is raised as it is."""
    if len(parts) == 1:
        return [await parts[0]]
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
