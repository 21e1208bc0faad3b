"""What calls pass before a service: stages of a node, limits, counting, and draining."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]

from onelog.errors import NotFound
from onelog.node.config.sources import load
from onelog.node.context import Kind, Method, NodeContext, Service
from onelog.node.edge.exchange import Exchange
from onelog.node.readiness import Stage
from onelog.node.server.server import Server

WAIT_S = 60.0
NAME = "tests.Echo"
Check = health_pb2.HealthCheckRequest  # a message that is at hand


class Echo:
    """A service that answers when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.entered = 0
        self.context: NodeContext | None = None

    def make(self, context: NodeContext) -> Service:
        self.context = context
        methods = (
            Method(NAME, "Unary", Kind.UNARY, Check.FromString, self.unary),
            Method(NAME, "Stream", Kind.STREAM, Check.FromString, self.stream),
        )
        return Service(NAME, methods)

    async def unary(self, _exchange: Exchange, request: Any, _size: int) -> bytes:
        self.entered += 1
        await self.go.wait()
        if request.service == "fail":
            raise NotFound("no")
        answer: bytes = request.SerializeToString()
        return answer

    async def stream(self, exchange: Exchange, request: Any, _size: int) -> None:
        """Go on until the node stops, as a service with streams must."""
        assert self.context is not None
        exchange.send(request.SerializeToString())
        await self.context.stopping.wait()


class World:
    """A server in this process and a client of it."""

    def __init__(self, server: Server, echo: Echo, channel: grpc.aio.Channel) -> None:
        self.server = server
        self.echo = echo
        self.channel = channel

    def call(self, text: str = "x") -> Any:
        method = self.channel.unary_unary(
            f"/{NAME}/Unary", Check.SerializeToString, Check.FromString
        )
        return method(Check(service=text), timeout=WAIT_S)

    def metric(self, name: str, **labels: str) -> float:
        return self.server.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def world(tmp_path: Path, *flags: str) -> AsyncIterator[World]:
    arguments = ["--data-dir", str(tmp_path / "data"), "--shards", "1", "--log-free-bytes-min", "0",
                 "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0",
                 "--http-listen", "127.0.0.1:0", *flags]  # fmt: skip
    echo = Echo()
    server = Server(load(arguments, {}).config, [echo.make])
    running = asyncio.create_task(server.run())
    await until(lambda: server.readiness.stage is Stage.SERVING or running.done())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.api_port}") as channel:
        try:
            yield World(server, echo, channel)
        finally:
            echo.go.set()
            server.stop()
            await running


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not look():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 2 * WAIT_S))


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Return the reason in the details of an error."""
    status = rpc_status.from_call(error)
    info = error_details_pb2.ErrorInfo()
    assert status is not None
    assert status.details[0].Unpack(info)
    assert info.domain == "onelog"
    return str(info.reason)


async def refused(call: Any, code: grpc.StatusCode) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    assert error.value.code() == code
    return reason_of(error.value)


def test_calls_are_counted_and_timed_by_method_and_outcome(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as at:
            at.echo.go.set()
            assert (await at.call("hello")).service == "hello"
            with pytest.raises(grpc.aio.AioRpcError):
                await at.call("fail")
            labels = {"service": NAME, "method": "Unary"}
            name = "onelog_rpc_seconds_count"
            # A call is counted just after its answer has left.
            await until(lambda: at.metric(name, **labels, code="NOT_FOUND") == 1)
            assert at.metric(name, **labels, code="OK") == 1
            assert at.metric("onelog_rpc_under_way") == 0
            assert at.metric("onelog_rpc_request_bytes_total") > 5

    run(main())


def test_calls_and_bytes_above_the_limits_are_refused_and_come_back(tmp_path: Path) -> None:
    async def main() -> None:
        flags = ("--limits-concurrent-rpcs-max", "2", "--limits-in-flight-bytes-max", "1MiB")
        async with world(tmp_path, *flags) as at:
            exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
            large = asyncio.ensure_future(at.call("x" * (600 << 10)))
            await until(lambda: at.echo.entered == 1)
            assert await refused(at.call("x" * (600 << 10)), exhausted) == "TOO_MANY_BYTES"
            small = asyncio.ensure_future(at.call())
            await until(lambda: at.echo.entered == 2)
            assert await refused(at.call(), exhausted) == "TOO_MANY_CALLS"
            at.echo.go.set()
            await asyncio.gather(large, small)
            await at.call()
            assert at.metric("onelog_rpc_refused_total", reason="TOO_MANY_BYTES") == 1

    run(main())


def test_a_call_that_was_cancelled_gives_its_place_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, "--limits-concurrent-rpcs-max", "1") as at:
            call = at.call()
            await until(lambda: at.echo.entered == 1)
            call.cancel()
            await until(lambda: at.metric("onelog_rpc_under_way") == 0)
            at.echo.go.set()
            await at.call()

    run(main())


def test_a_node_that_stops_finishes_calls_ends_streams_and_refuses_new_ones(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with world(tmp_path) as at:
            call = asyncio.ensure_future(at.call("last"))
            stream = at.channel.unary_stream(
                f"/{NAME}/Stream", Check.SerializeToString, Check.FromString
            )(Check())
            assert await stream.read() is not grpc.aio.EOF
            await until(lambda: at.echo.entered == 1)
            at.server.stop()
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() == grpc.StatusCode.OK
            assert await refused(at.call(), grpc.StatusCode.UNAVAILABLE) == "STOPPING"
            assert not call.done()
            at.echo.go.set()
            assert (await call).service == "last"

    run(main())


def test_calls_that_never_end_are_cut_after_the_time_to_drain(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, "--shutdown-drain-s", "0.2") as at:
            call = asyncio.ensure_future(at.call())
            await until(lambda: at.echo.entered == 1)
            at.server.stop()
            assert await refused(call, grpc.StatusCode.UNAVAILABLE) == "STOPPING"

    run(main())


def test_a_second_signal_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr("onelog.node.server.server.os._exit", codes.append)

    async def main() -> None:
        async with world(tmp_path) as at:
            at.server.stop_on_signals()
            call = asyncio.ensure_future(at.call())
            await until(lambda: at.echo.entered == 1)
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: at.server.readiness.stage is Stage.STOPPING)
            assert not codes
            os.kill(os.getpid(), signal.SIGINT)
            await until(lambda: codes)
            at.echo.go.set()
            await call

    run(main())
    assert codes == [1]


def test_health_is_told_for_each_service_and_follows_readiness(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as at:
            stub = health_pb2_grpc.HealthStub(at.channel)
            status = health_pb2.HealthCheckResponse

            async def check(name: str) -> int:
                return int((await stub.Check(Check(service=name))).status)

            async with asyncio.timeout(WAIT_S):
                while await check(NAME) != status.SERVING:
                    pass
            assert await check("") == status.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await check("tests.Nothing")
            assert error.value.code() == grpc.StatusCode.NOT_FOUND

            call = asyncio.ensure_future(at.call())
            await until(lambda: at.echo.entered == 1)
            at.server.stop()
            async with asyncio.timeout(WAIT_S):
                while await check(NAME) != status.NOT_SERVING:
                    pass
            at.echo.go.set()
            await call

    run(main())
