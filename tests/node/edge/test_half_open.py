"""Calls whose request does not come, and requests that are no requests: bounded, with a reason."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from onelog import errors
from onelog.client.calls import Verdict, judge
from onelog.client.client import AsyncClient
from onelog.errors import OnelogError
from onelog.node.config.schema import LimitSettings
from onelog.node.edge import port as api_server
from onelog.status import error_of
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import kv_pb2_grpc, pipeline_pb2
from tests.node.services.nodes import Node, refusal, run, single, until

LIMITS = LimitSettings(concurrent_rpcs_max=16, message_bytes_max=64 << 10)
GET = "/onelog.v1.KV/Get"
SHARE = 4  # of 16


@asynccontextmanager
async def connection(node: Node) -> AsyncIterator[grpc.aio.Channel]:
    """A connection of its own: another client."""
    own = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(node.endpoint, options=own) as channel:
        yield channel


def half_open(channel: grpc.aio.Channel, method: str = GET) -> Any:
    """Begin a call, and send no request."""
    return channel.stream_stream(method)()


async def end_of(call: Any) -> OnelogError:
    code = await call.code()
    return error_of(
        grpc.aio.AioRpcError(
            code,
            await call.initial_metadata(),
            await call.trailing_metadata(),
            await call.details(),
        )
    )


def rpc_tasks() -> int:
    """How many calls have a task in this process."""
    return sum(task.get_name().startswith("/") for task in asyncio.all_tasks())


async def check_served(channel: grpc.aio.Channel) -> None:
    stub = kv_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]
    for _ in range(8):
        await stub.Get(kv.GetRequest(key=b"k"), timeout=5)
    health = await health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(), timeout=5
    )
    assert health.status


@pytest.mark.parametrize("method", [GET, "/onelog.v1.KV/Scan", "/grpc.health.v1.Health/Check"])
def test_half_open_calls_of_one_connection_keep_nobody_out_and_end_with_a_reason(
    tmp_path: Path, method: str
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, limits=LIMITS) as node:
            gate = node.server._gate
            gate.arrival_s = 1.5
            counts = gate.open_calls if "Health" in method else gate.arriving
            async with connection(node) as flooder, connection(node) as other:
                flood = [half_open(flooder, method) for _ in range(32)]
                await until(lambda: counts.requests == SHARE)
                await check_served(other)
                ends = await asyncio.gather(*map(end_of, flood))
                assert {judge(each) for each in ends} == {Verdict.AGAIN}
                late = [each for each in ends if each.reason == "EXPIRED"]
                assert len(late) >= SHARE
                reasons = {each.reason for each in ends}
                assert reasons <= {"EXPIRED", "TOO_MANY_REQUESTS", "STREAM_REFUSED"}
                await until(lambda: not rpc_tasks())
                assert (counts.requests, counts._clients) == (0, {})
                await check_served(flooder)

    run(test())


@pytest.mark.parametrize("method", [GET, "/grpc.health.v1.Health/Watch"])
def test_half_open_calls_of_many_connections_make_room_for_one_that_has_few(
    tmp_path: Path, method: str
) -> None:
    """A call that comes with its request waits for nothing, so it takes no place of those."""

    async def test() -> None:
        async with single(tmp_path, shards=1, limits=LIMITS) as node:
            gate = node.server._gate
            gate.arrival_s = 1.5
            async with (
                connection(node) as one,
                connection(node) as two,
                connection(node) as three,
                connection(node) as four,
                connection(node) as five,
                AsyncClient(node.endpoint) as client,
            ):
                counts = gate.open_calls if "Health" in method else gate.arriving
                flood = [
                    half_open(each, method)
                    for each in (one, two, three, four)
                    for _ in range(SHARE)
                ]
                await until(lambda: counts.requests == 16)
                await check_served(five)
                late = [half_open(five, method) for _ in range(SHARE - 1)]
                shares = [4, 3, 3, 3, 3]
                await until(lambda: sorted(map(len, counts._calls.values())) == sorted(shares))
                await client.kv.put("k", b"v")
                assert counts.requests == 16
                ends = await asyncio.gather(*map(end_of, flood))
                cut = [each for each in ends if each.reason == "TOO_MANY_REQUESTS"]
                assert len(cut) >= 3
                assert {judge(each) for each in cut} == {Verdict.AGAIN}
                assert {(await end_of(each)).reason for each in late} == {"EXPIRED"}
                await until(lambda: not counts.requests)
                await check_served(five)

    run(test())


def test_a_half_open_call_that_is_given_up_gives_its_place_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, limits=LIMITS) as node:
            gate = node.server._gate
            for _ in range(3):
                calls = [half_open(node.channel) for _ in range(SHARE)]
                await until(lambda: gate.arriving.requests == SHARE)
                for call in calls:
                    call.cancel()
                await until(lambda: not gate.arriving.requests)
            async with connection(node) as gone:
                half_open(gone)
                await until(lambda: gate.arriving.requests == 1)
            await until(lambda: not gate.arriving.requests and not rpc_tasks())

    run(test())


def test_what_grpc_itself_refuses_is_known_to_clients(tmp_path: Path) -> None:
    """Other servers and proxies answer without details: their words are pinned here."""

    async def test() -> None:
        async with single(tmp_path, shards=1, limits=LIMITS) as node:
            own = (("grpc.max_send_message_length", 1_000),)
            async with grpc.aio.insecure_channel(node.endpoint, options=own) as channel:
                error = await refusal(channel.unary_unary(GET)(bytes(2_000)))
                assert type(error) is errors.TooLarge

        server = grpc.aio.server(maximum_concurrent_rpcs=1)
        go = asyncio.Event()

        async def wait(request: bytes, _context: Any) -> bytes:
            await go.wait()
            return request

        handler = grpc.unary_unary_rpc_method_handler(wait)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("tests.Wait", {"Wait": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            calls = [channel.unary_unary("/tests.Wait/Wait")(b"") for _ in range(2)]
            done, _ = await asyncio.wait(
                map(asyncio.ensure_future, calls), return_when=asyncio.FIRST_COMPLETED
            )
            failure = done.pop().exception()
            assert isinstance(failure, grpc.aio.AioRpcError)
            error = error_of(failure)
            assert (type(error), error.reason) == (errors.ResourceExhausted, "TOO_MANY_CALLS")
            assert judge(error) is Verdict.AGAIN
            go.set()
        await server.stop(None)

    run(test())


BAD_UTF8 = b"\x0a\x02\xff\xfe"  # of the first field of a request, its namespace
TOO_LARGE = kv.PutRequest(key=b"k", value=bytes(66 << 10)).SerializeToString()
FAR_TOO_LARGE = kv.PutRequest(key=b"k", value=bytes(128 << 10)).SerializeToString()


@pytest.mark.parametrize(
    ("method", "request_bytes", "reason"),
    [
        (GET, b"\xff\xff\xff", "REQUEST_MALFORMED"),
        (GET, BAD_UTF8, "REQUEST_MALFORMED"),
        ("/onelog.v1.KV/Scan", BAD_UTF8, "REQUEST_MALFORMED"),
        ("/onelog.v1.Pipeline/Execute", b"\xff\xff\xff", "REQUEST_MALFORMED"),
        ("/onelog.v1.KV/Put", TOO_LARGE, "TOO_LARGE"),
        ("/onelog.v1.KV/Put", FAR_TOO_LARGE, "TOO_LARGE"),
        ("/onelog.v1.Pipeline/Execute", FAR_TOO_LARGE, "TOO_LARGE"),
        (GET, None, "REQUEST_MALFORMED"),
    ],
)
def test_a_request_that_is_none_is_an_invalid_argument(
    tmp_path: Path, method: str, request_bytes: bytes | None, reason: str
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, limits=LIMITS) as node:
            call = half_open(node.channel, method)
            if request_bytes is not None:
                await call.write(request_bytes)
            await call.done_writing()
            error = await end_of(call)
            assert isinstance(error, errors.InvalidArgument)
            assert error.reason == reason
            if reason == "TOO_LARGE":
                assert request_bytes is not None
                expected = {"size": str(len(request_bytes)), "limit": str(64 << 10)}
                assert error.metadata == expected
            assert judge(error) is Verdict.FINAL
            counted = node.server.metrics.registry.get_sample_value
            await until(lambda: counted("onelog_rpc_refused_total", {"reason": reason}) == 1)
            await check_served(node.channel)

    run(test())


def test_a_message_of_a_stream_that_is_too_large_is_refused_alone(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, limits=LIMITS) as node:
            large = pipeline_pb2.ExecuteRequest(request_id=1)
            large.operations.add().put.ParseFromString(TOO_LARGE)
            small = pipeline_pb2.ExecuteRequest(request_id=2)
            small.operations.add().put.key = b"k"

            async def messages() -> AsyncIterator[pipeline_pb2.ExecuteRequest]:
                yield large
                yield small

            answers = {each.request_id: each async for each in node.pipeline.Execute(messages())}
            assert answers[1].results[0].error.reason == "TOO_LARGE"
            assert answers[2].results[0].HasField("put")
            counted = node.server.metrics.registry.get_sample_value
            assert counted("onelog_rpc_refused_total", {"reason": "TOO_LARGE"}) == 1

    run(test())


class Wire:
    """A connection that can be cut without a word: nothing passes any more, and nobody is told."""

    def __init__(self, port: int) -> None:
        self.passed = 0  # pieces, in both directions
        self.is_cut = False
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for each in self._writers:
                each.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, other]
        with suppress(ConnectionError):
            await asyncio.gather(self._pass_on(reader, other), self._pass_on(other_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if not self.is_cut:
                self.passed += 1
                writer.write(data)
                await writer.drain()


def test_a_client_that_is_gone_without_a_word_loses_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "LOOK_S", 0.05)
    monkeypatch.setattr(api_server, "KEEPALIVE_S", 0.2)
    monkeypatch.setattr(api_server, "KEEPALIVE_TIMEOUT_S", 3.0)

    async def test() -> None:
        async with single(tmp_path, shards=1, limits=LIMITS) as node:
            under_way = partial(
                node.server.metrics.registry.get_sample_value, "onelog_rpc_under_way"
            )
            wire = Wire(node.server.api_port)
            async with (
                wire.listen() as port,
                grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
            ):
                watch = channel.unary_stream("/onelog.v1.Pipeline/Watch")(b"")
                await until(lambda: under_way() == 1)
                # While it is there it is left alone, however little it says but that.
                begun = wire.passed
                await until(lambda: wire.passed >= begun + 10)
                assert under_way() == 1
                wire.is_cut = True
                await until(lambda: under_way() == 0)
                watch.cancel()

    run(test())


def test_one_connection_has_a_part_of_all_calls() -> None:
    for calls_max, streams_max, expected in (
        (16_384, 1_024, 1_024),
        (16, 1_024, 8),
        (2, 1_024, 4),
        (16_384, 1, 1),
    ):
        limits = LimitSettings(concurrent_rpcs_max=calls_max, streams_max=streams_max)
        assert api_server.connection_calls_max(limits) == expected
