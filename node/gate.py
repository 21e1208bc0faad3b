"""What every call of a client passes before it reaches a service.

* Until the node has recovered, and once it stops, calls are refused (UNAVAILABLE), so that a client
  tries another node. Health and reflection are always answered.
* The calls under way and the bytes of their requests are bounded, for the process as a whole:
  above that calls are refused (RESOURCE_EXHAUSTED) before they cost anything more.
* Every call is counted and timed by service, method and outcome.

A refusal has the form ``REASON: words``, and its details are a ``google.rpc.Status`` with that
reason, as for every other error of the API.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from google.protobuf import any_pb2, duration_pb2  # type: ignore[import-untyped]
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]

from node.metrics import Metrics
from node.readiness import Readiness, Stage

OPEN_SERVICES = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")
ERROR_DOMAIN = "onelog"
_RETRY_S = 1
# A context knows its code as a number, or as what it was set to.
_CODES: dict[Any, str] = {
    key: code.name for code in grpc.StatusCode for key in (code, code.value[0])
} | {None: "OK"}
_GOOD_STAGES = (Stage.ELECTING, Stage.SERVING)


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """See the module's text."""

    def __init__(
        self, readiness: Readiness, metrics: Metrics, *, calls_max: int, bytes_max: int
    ) -> None:
        self.under_way = 0
        self.bytes_under_way = 0
        self._readiness = readiness
        self._metrics = metrics
        self._calls_max = calls_max
        self._bytes_max = bytes_max
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
        service, _, name = method.removeprefix("/").partition("/")
        if handler is None or service in OPEN_SERVICES:
            return handler
        # Handlers never change, and only methods that exist get here: this cannot grow.
        wrapped = self._handlers[method] = self._wrap(handler, service, name)
        return wrapped

    def _wrap(self, handler: Any, service: str, name: str) -> Any:
        make, behaviour = {
            (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
        }[handler.request_streaming, handler.response_streaming]
        size_of = _no_size if handler.request_streaming else _size_of
        if handler.response_streaming:

            async def answer_many(request: Any, context: Any) -> None:
                async with _Call(self, service, name, context, size_of(request)):
                    answers = behaviour(request, context)
                    if not hasattr(answers, "__aiter__"):
                        await answers  # it writes by itself
                        return
                    async for each in answers:
                        await context.write(each)

            return make(answer_many, handler.request_deserializer, handler.response_serializer)

        async def answer(request: Any, context: Any) -> Any:
            async with _Call(self, service, name, context, size_of(request)):
                return await behaviour(request, context)

        return make(answer, handler.request_deserializer, handler.response_serializer)

    async def enter(self, context: Any, size: int) -> None:
        """Let a call in, or refuse it."""
        stage = self._readiness.stage
        if stage not in _GOOD_STAGES:
            is_over = stage is Stage.STOPPING
            words = "this node is shutting down" if is_over else f"this node is {stage.value}"
            await self._refuse(
                context, grpc.StatusCode.UNAVAILABLE, "STOPPING" if is_over else "STARTING", words
            )
        if self.under_way >= self._calls_max:
            await self._refuse(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "TOO_MANY_CALLS",
                f"{self._calls_max} calls are under way",
            )
        if self.bytes_under_way + size > self._bytes_max:
            await self._refuse(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "TOO_MANY_BYTES",
                f"requests of {self.bytes_under_way} bytes are under way, limit {self._bytes_max}",
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

    async def _refuse(self, context: Any, code: grpc.StatusCode, reason: str, words: str) -> None:
        self._metrics.rpc_refused.labels(reason).inc()
        info, retry = any_pb2.Any(), any_pb2.Any()
        info.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=ERROR_DOMAIN))
        retry.Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=_RETRY_S)))
        message = f"{reason}: {words}"
        status = status_pb2.Status(code=code.value[0], message=message, details=[info, retry])
        await context.abort(code, message, rpc_status.to_status(status).trailing_metadata)


class _Call:
    """One call: let in, counted, timed."""

    __slots__ = ("_context", "_gate", "_name", "_service", "_size", "_started_s")

    def __init__(self, gate: Gate, service: str, name: str, context: Any, size: int) -> None:
        self._gate = gate
        self._service = service
        self._name = name
        self._context = context
        self._size = size
        self._started_s = time.perf_counter()

    async def __aenter__(self) -> None:
        await self._gate.enter(self._context, self._size)

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._gate.leave(self._size)
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            code = "CANCELLED"
        else:
            code = _CODES.get(self._context.code(), "UNKNOWN")
            if error is not None and code == "OK":
                code = "UNKNOWN"
        seconds = time.perf_counter() - self._started_s
        self._gate.observe(self._service, self._name, code, seconds)


def _no_size(_request: object) -> int:
    return 0


def _size_of(request: Any) -> int:
    return int(request.ByteSize())
