"""Real nodes on this loop: real files, real sockets, and clients made of the protos alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from onelog.errors import OnelogError
from onelog.node.config.schema import (
    AdvertiseSettings,
    ClusterSettings,
    Config,
    ListenSettings,
    NodeSettings,
)
from onelog.node.config.settings import Address
from onelog.node.context import NodeContext
from onelog.node.server.server import Server
from onelog.node.services import SERVICES
from onelog.status import error_of
from onelog.v1 import (
    admin_pb2_grpc,
    kv_pb2_grpc,
    log_pb2_grpc,
    pipeline_pb2_grpc,
    queue_pb2_grpc,
    stream_pb2_grpc,
    timeseries_pb2_grpc,
)
from tests.system.ports import free_addresses

WAIT_S = 60.0


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 3 * WAIT_S))


async def until(condition: Callable[[], object], wait_s: float = WAIT_S) -> None:
    async with asyncio.timeout(wait_s):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)


async def eventually(attempt: Callable[[], Awaitable[Any]], wait_s: float = WAIT_S) -> Any:
    """Return the answer of the first attempt that is not refused."""
    async with asyncio.timeout(wait_s):
        while True:
            try:
                return await attempt()
            except (grpc.aio.AioRpcError, AssertionError):
                await asyncio.sleep(0.02)


async def refusal(call: Awaitable[Any]) -> OnelogError:
    """Return the error that a call ends with."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return error_of(error)
    raise AssertionError(f"not refused: {answer}")


@dataclass
class Node:
    """A server and a client of it."""

    server: Server
    task: "asyncio.Task[None]"
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def context(self) -> NodeContext:
        assert self.server.context is not None
        return self.server.context

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.server.api_port}"

    async def connect(self) -> "Node":
        self.channel = await self.stack.enter_async_context(
            grpc.aio.insecure_channel(
                self.endpoint,
                options=(
                    ("grpc.max_send_message_length", -1),
                    ("grpc.max_receive_message_length", -1),
                    ("grpc.use_local_subchannel_pool", 1),
                ),
            )
        )
        self.kv = kv_pb2_grpc.KVStub(self.channel)  # type: ignore[no-untyped-call]
        self.queue = queue_pb2_grpc.QueueStub(self.channel)  # type: ignore[no-untyped-call]
        self.log = log_pb2_grpc.LogStub(self.channel)  # type: ignore[no-untyped-call]
        self.admin = admin_pb2_grpc.AdminStub(self.channel)  # type: ignore[no-untyped-call]
        self.stream = stream_pb2_grpc.StreamStub(self.channel)  # type: ignore[no-untyped-call]
        self.ts = timeseries_pb2_grpc.TimeSeriesStub(self.channel)  # type: ignore[no-untyped-call]
        self.pipeline = pipeline_pb2_grpc.PipelineStub(self.channel)  # type: ignore[no-untyped-call]
        return self

    def leads(self, shard: int) -> bool:
        driver = self.context.drivers.get(shard)
        return driver is not None and driver.shard.member.has_applied_noop

    async def stop(self) -> None:
        await self.stack.aclose()
        self.server.stop()
        await self.task


def parse_config(directory: Path, **changes: Any) -> Config:
    any_port = Address("127.0.0.1", 0)
    config = Config(
        node=NodeSettings(name=changes.pop("name", "n1"), data_dir=directory),
        listen=ListenSettings(api=any_port, peers=any_port, http=any_port),
        advertise=AdvertiseSettings(),
        cluster=ClusterSettings(
            shards=changes.pop("shards", 2), partitions=16, balance_leaders=False
        ),
    )
    return replace(config, **changes)


async def start(config: Config) -> Node:
    server = Server(config, SERVICES)
    node = Node(server, asyncio.create_task(server.run()))
    await until(lambda: node.task.done() or server.api_port)
    if node.task.done():
        node.task.result()
    return await node.connect()


def is_ready(nodes: Sequence[Node]) -> bool:
    for node in nodes:
        if node.task.done():
            node.task.result()
    shards = nodes[0].server.config.cluster.shards
    return all(
        node.server.context and len(node.context.drivers) == shards for node in nodes
    ) and all(
        any(node.leads(shard) for node in nodes)
        and all(node.context.topology.leader_endpoint(shard) for node in nodes)
        for shard in range(shards)
    )


@asynccontextmanager
async def single(directory: Path, **changes: Any) -> AsyncIterator[Node]:
    """A cluster of one."""
    node = await start(parse_config(directory / "n1", **changes))
    try:
        await until(lambda: is_ready([node]))
        yield node
    finally:
        await node.stop()


@asynccontextmanager
async def cluster(directory: Path, **changes: Any) -> AsyncIterator[list[Node]]:
    """Three nodes that know each other, with leaders."""
    addresses = [Address("127.0.0.1", int(each.rpartition(":")[2])) for each in free_addresses(3)]
    initial = tuple((f"n{number}", each) for number, each in enumerate(addresses, start=1))
    nodes: list[Node] = []
    try:
        for name, address in initial:
            config = parse_config(directory / name, name=name, **dict(changes))
            config = replace(
                config,
                listen=replace(config.listen, peers=address),
                cluster=replace(config.cluster, initial=initial),
            )
            nodes.append(await start(config))
        await until(lambda: is_ready(nodes))
        yield nodes
    finally:
        for node in nodes:
            if not node.task.done():
                await node.stop()
