"""What every call of a client passes before it reaches a service.

* A call begins with its headers. Its request has ``ARRIVAL_S`` to arrive; how many calls may be
  waiting for theirs is bounded, in all and for one connection, so that half-open calls keep nobody
  out. Health is counted apart: it is answered whatever else goes on.
* A request that is too large, or is no message of its kind, is refused (INVALID_ARGUMENT).
* Until the node has recovered, and once it stops, calls are refused (UNAVAILABLE), so that a client
  tries another node. Health and reflection are always answered.
* The calls under way and the bytes of their requests are bounded, for the process as a whole:
  above that calls are refused (RESOURCE_EXHAUSTED) before they cost anything more.
* Every call is counted and timed by service, method and outcome.

To gRPC every method is one whose requests are a stream: of those the handler is called when the
headers are there. Otherwise gRPC would wait for the request by itself, for ever, and for one that
it cannot decode it would answer UNKNOWN.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from node.admission import Admission
from node.config import LimitSettings
from node.metrics import Metrics
from node.readiness import Readiness, Stage
from node.status_mapping import abort, too_large
from onelog.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted, Unavailable

OPEN_SERVICES = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")
# As long as a client may take to read a message it may take to send one.
ARRIVAL_S = 30.0
RETRY_S = 1.0
# A context knows its code as a number, or as what it was set to.
_CODES: dict[Any, str] = {
    key: code.name for code in grpc.StatusCode for key in (code, code.value[0])
} | {None: "OK"}
_GOOD_STAGES = (Stage.ELECTING, Stage.SERVING)

Decode = Callable[[bytes], Any]


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """See the module's text."""

    def __init__(self, readiness: Readiness, metrics: Metrics, *, limits: LimitSettings) -> None:
        self.under_way = 0
        self.bytes_under_way = 0
        self.arrival_s = ARRIVAL_S
        self.arriving = Admission(limits.concurrent_rpcs_max, limits.in_flight_bytes_max)
        self.arriving_open = Admission(limits.concurrent_rpcs_max, limits.in_flight_bytes_max)
        self._readiness = readiness
        self._metrics = metrics
        self._calls_max = limits.concurrent_rpcs_max
        self._bytes_max = limits.in_flight_bytes_max
        self._message_bytes_max = limits.message_bytes_max
        self._handlers: dict[str, Any] = {}
        self._children: dict[tuple[str, str, str], Any] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until no call is under way."""
        await self._idle.wait()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """See gRPC's ``ServerInterceptor``."""
        method: str = details.method
        known = self._handlers.get(method)
        if known is not None:
            return known
        handler = await continuation(details)
        if handler is None:
            return None
        service, _, name = method.removeprefix("/").partition("/")
        # Handlers never change, and only methods that exist get here: this cannot grow.
        wrapped = self._handlers[method] = self._wrap(handler, service, name)
        return wrapped

    def _wrap(self, handler: Any, service: str, name: str) -> Any:
        """Return a handler that gRPC calls when a call begins."""
        is_open = service in OPEN_SERVICES
        if handler.request_streaming and is_open:
            return handler
        decode = _decoder(handler.request_deserializer)
        if handler.response_streaming:
            behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
            make = grpc.stream_stream_rpc_method_handler
        else:
            assert not handler.request_streaming, "no method takes a stream and returns one answer"
            behaviour, make = handler.unary_unary, grpc.stream_unary_rpc_method_handler

        async def carry_out(request: Any, context: Any) -> Any:
            answer = behaviour(request, context)
            if not hasattr(answer, "__aiter__"):
                return await answer  # the one, or it writes by itself
            async for each in answer:
                await context.write(each)
            return None

        async def serve(messages: Any, context: Any) -> Any:
            request, size = messages, 0
            try:
                if not handler.request_streaming:
                    data = await self._arrival(context, is_open=is_open)
                    request, size = decode(data), len(data)
                if not is_open:
                    self.enter(size)
            except Exception as error:  # noqa: BLE001 - the root of a call
                await abort(context, error, self._metrics.rpc_refused)
            if is_open:
                return await carry_out(request, context)
            with _Call(self, service, name, context, size):
                return await carry_out(request, context)

        # Of a stream gRPC decodes the messages as they come.
        return make(
            serve, decode if handler.request_streaming else None, handler.response_serializer
        )

    async def _arrival(self, context: Any, *, is_open: bool) -> bytes:
        """Return the bytes of a request when they are there."""
        if not is_open:
            self._check_stage()
        client, arriving = context.peer(), self.arriving_open if is_open else self.arriving
        arriving.enter(client, 0)
        try:
            async with asyncio.timeout(self.arrival_s):
                data: Any = await context.read()
        except TimeoutError:
            message = f"its headers came, and no request in {self.arrival_s:g} s"
            raise DeadlineExceeded(message, reason="EXPIRED") from None
        finally:
            arriving.leave(client, 0)
        if data is grpc.aio.EOF:
            await asyncio.sleep(0)  # if the client went this task is cancelled now
            raise InvalidArgument("the call ended without a request", reason="REQUEST_MALFORMED")
        if len(data) > self._message_bytes_max:
            raise too_large(len(data), self._message_bytes_max)
        found: bytes = data
        return found

    def _check_stage(self) -> None:
        stage = self._readiness.stage
        if stage not in _GOOD_STAGES:
            is_over = stage is Stage.STOPPING
            raise Unavailable(
                "this node is shutting down" if is_over else f"this node is {stage.value}",
                reason="STOPPING" if is_over else "STARTING",
                retry_after_s=RETRY_S,
            )

    def enter(self, size: int) -> None:
        """Let a call in, or refuse it."""
        self._check_stage()
        if self.under_way >= self._calls_max:
            raise ResourceExhausted(
                f"{self._calls_max} calls are under way",
                reason="TOO_MANY_CALLS",
                retry_after_s=RETRY_S,
            )
        if self.bytes_under_way + size > self._bytes_max:
            raise ResourceExhausted(
                f"requests of {self.bytes_under_way} bytes are under way, limit {self._bytes_max}",
                reason="TOO_MANY_BYTES",
                retry_after_s=RETRY_S,
            )
        self.under_way += 1
        self.bytes_under_way += size
        self._idle.clear()
        self._metrics.rpc_under_way.inc()
        self._metrics.rpc_request_bytes.inc(size)

    def leave(self, size: int) -> None:
        """Count a call that has ended."""
        self.under_way -= 1
        self.bytes_under_way -= size
        self._metrics.rpc_under_way.dec()
        if not self.under_way:
            self._idle.set()

    def observe(self, service: str, name: str, code: str, seconds: float) -> None:
        """Measure a call that has ended."""
        key = service, name, code
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._metrics.rpc_seconds.labels(*key)
        child.observe(seconds)


class _Call:
    """One call that was let in: counted until it ends, timed."""

    __slots__ = ("_context", "_gate", "_name", "_service", "_size", "_started_s")

    def __init__(self, gate: Gate, service: str, name: str, context: Any, size: int) -> None:
        self._gate = gate
        self._service = service
        self._name = name
        self._context = context
        self._size = size
        self._started_s = time.perf_counter()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._gate.leave(self._size)
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            code = "CANCELLED"
        else:
            code = _CODES.get(self._context.code(), "UNKNOWN")
            if error is not None and code == "OK":
                code = "UNKNOWN"
        seconds = time.perf_counter() - self._started_s
        self._gate.observe(self._service, self._name, code, seconds)


def _decoder(deserialize: Decode) -> Decode:
    """Return what makes a message of bytes, and refuses bytes that are none."""

    def decode(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            raise InvalidArgument(
                f"the request is no message of its kind: {error}", reason="REQUEST_MALFORMED"
            ) from None

    return decode
