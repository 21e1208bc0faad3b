"""A server that says what a test wants: for failures that real ones do not have on demand.

It answers the topology, sessions and pipelines. By default every operation of a message succeeds,
once for each (session, sequence) as a real one would have it, so tests can count effects.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from onelog.client.options import ClientOptions
from onelog.errors import OnelogError
from onelog.node.public_errors import fill_error, to_rpc_status
from onelog.v1 import admin_pb2, pipeline_pb2

WAIT_S = 120.0
SHARDS = 2

Reply = OnelogError | pipeline_pb2.ExecuteResponse | None
Script = Callable[["Scripted", pipeline_pb2.ExecuteRequest], Awaitable[Reply]]

# Short waits, so that tests of retries are short.
QUICK = ClientOptions(
    timeout_s=10.0, backoff_first_s=0.002, backoff_max_s=0.02, attempt_timeout_s=0.1
)


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 3 * WAIT_S))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.002)


class World:
    """What the scripted servers of one cluster share: who leads, and what took effect."""

    def __init__(self) -> None:
        self.servers: list[Scripted] = []
        self.leaders: dict[int, Scripted] = {}
        self.effects: dict[bytes, int] = {}
        self.answers: dict[tuple[int, int], int] = {}
        self.sessions: set[int] = set()
        self.term = 1
        self.last_session = 0
        self.last_index = 0

    def carry_out(self, request: pipeline_pb2.ExecuteRequest) -> pipeline_pb2.ExecuteResponse:
        """Do every put of a message, each (session, sequence) once."""
        response = pipeline_pb2.ExecuteResponse(request_id=request.request_id)
        for number, operation in enumerate(request.operations):
            if operation.WhichOneof("operation") == "get":
                response.results.add().get.header.applied_index = self.last_index
                continue
            kind = operation.WhichOneof("operation")
            header = getattr(response.results.add(), kind or "put").header
            place = (request.session.session_id, request.session.sequence + number)
            if request.HasField("session") and place in self.answers:
                header.index, header.duplicate = self.answers[place], True
                continue
            self.last_index += 1
            header.index = self.answers[place] = self.last_index
            for key in keys_of(operation):
                self.effects[key] = self.effects.get(key, 0) + 1
        return response


def keys_of(operation: pipeline_pb2.Operation) -> list[bytes]:
    """Return the keys that an operation puts."""
    if operation.HasField("batch_put"):
        return list(operation.batch_put.keys)
    if operation.HasField("transact"):
        return [each.put.key for each in operation.transact.operations if each.HasField("put")]
    return [operation.put.key] if operation.HasField("put") else []


def keys_in(request: pipeline_pb2.ExecuteRequest) -> list[bytes]:
    """Return the keys that a message puts, in order."""
    return [key for operation in request.operations for key in keys_of(operation)]


class Scripted:
    """One server; ``script`` decides about each message, None: it is carried out."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.script: Script = carry_out
        self.messages: list[pipeline_pb2.ExecuteRequest] = []
        self.is_silent = False
        self.port = 0
        self._server: Any = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            (
                _service("Admin", admin_pb2, {"GetTopology": self._topology}),
                _service(
                    "Pipeline",
                    pipeline_pb2,
                    {
                        "OpenSession": self._open,
                        "KeepSession": self._keep,
                        "CloseSession": self._close,
                        "Execute": self._execute,
                    },
                ),
            )
        )
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def _topology(self, _request: Any, _context: Any) -> admin_pb2.GetTopologyResponse:
        if self.is_silent:
            await asyncio.Event().wait()
        answer = admin_pb2.GetTopologyResponse(
            cluster_id="c", shard_count=SHARDS, partition_count=16
        )
        for shard in range(SHARDS):
            leader = self.world.leaders.get(shard)
            answer.shards.add(
                shard=shard,
                term=self.world.term,
                leader_endpoint=leader.endpoint if leader else "",
                endpoints=[each.endpoint for each in self.world.servers],
            )
        for each in self.world.servers:
            answer.nodes.add(endpoints=[each.endpoint])
        return answer

    async def _open(self, request: Any, _context: Any) -> Any:
        if self.is_silent:
            await asyncio.Event().wait()
        self.world.last_session += 1
        self.world.sessions.add(self.world.last_session)
        return pipeline_pb2.OpenSessionResponse(session_id=self.world.last_session)

    async def _keep(self, request: Any, _context: Any) -> Any:
        return pipeline_pb2.KeepSessionResponse()

    async def _close(self, request: Any, _context: Any) -> Any:
        self.world.sessions.discard(request.session_id)
        return pipeline_pb2.CloseSessionResponse()

    async def _execute(self, requests: Any, context: Any) -> None:
        """Answer messages side by side, as a real server does."""
        writing = asyncio.Lock()
        is_broken = False

        async def answer(request: pipeline_pb2.ExecuteRequest) -> None:
            nonlocal is_broken
            reply = await self.script(self, request)
            async with writing:
                if is_broken:
                    return  # with the stream, for all that are under way
                if isinstance(reply, pipeline_pb2.ExecuteResponse):
                    await context.write(reply)
                elif isinstance(reply, OnelogError):
                    is_broken = True
                    with suppress(grpc.aio.AbortError):  # nobody asks how this task ended
                        await _abort(context, reply)

        tasks = set()
        async for message in requests:
            self.messages.append(message)
            tasks.add(asyncio.create_task(answer(message)))
        await asyncio.gather(*tasks, return_exceptions=True)


async def carry_out(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
    return server.world.carry_out(request)


def refusing(error: OnelogError, times: int, *, effect: bool = False) -> Script:
    """A script that refuses every operation of the first messages; ``effect``: but does them."""
    left = times

    async def script(server: Scripted, request: pipeline_pb2.ExecuteRequest) -> Reply:
        nonlocal left
        done = server.world.carry_out(request) if effect or left <= 0 else None
        left -= 1
        if left < 0:
            return done
        refused = pipeline_pb2.ExecuteResponse(request_id=request.request_id)
        for _ in request.operations:
            fill_error(refused.results.add().error, error)
        return refused

    return script


async def _abort(context: Any, error: OnelogError) -> None:
    status = to_rpc_status(error)
    code = next(each for each in grpc.StatusCode if each.value[0] == error.code)
    details = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(code, error.message, details)


def _service(name: str, module: Any, handlers: dict[str, Any]) -> Any:
    methods = {}
    for each in module.DESCRIPTOR.services_by_name[name].methods:
        if each.name not in handlers:
            continue
        kind = (
            grpc.stream_stream_rpc_method_handler
            if each.client_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        methods[each.name] = kind(
            handlers[each.name],
            request_deserializer=getattr(module, each.input_type.name).FromString,
            response_serializer=getattr(module, each.output_type.name).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(f"onelog.v1.{name}", methods)


@asynccontextmanager
async def scripted(count: int = 1) -> AsyncIterator[World]:
    """Some servers of one cluster; the first leads all shards."""
    world = World()
    for _ in range(count):
        server = Scripted(world)
        await server.start()
        world.servers.append(server)
    world.leaders = dict.fromkeys(range(SHARDS), world.servers[0])
    try:
        yield world
    finally:
        for each in world.servers:
            await each.stop()
