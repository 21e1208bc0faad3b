"""The cases of bench/api.py: the workloads of ``onelog bench``, and a few more.

A case is a step that every caller repeats; a step returns its number of operations. Goals are, by
number of nodes, the rates or times that other systems reach on such a machine, times the factor
that we promise.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc.aio  # type: ignore[import-untyped]

from onelog.cli.bench.workloads import (
    Load,
    Step,
    append,
    enqueue,
    get,
    get_stale,
    lease_and_ack,
    put,
    query,
    tail,
    write_points,
)
from onelog.v1 import kv_pb2, kv_pb2_grpc

VALUE = bytes(100)
BATCH = 128
LEASED = 256
# How many messages a consumer settles at a time, and how many it may have unsettled. In six turns
# 23,500 messages a second, and 15,200 with 256 and 1,024: larger leases need fewer rounds.
SETTLED = 512
CREDIT = 4096
POINTS = 100


@dataclass
class Bench(Load):
    """A load, with additions that only the cases here need."""

    stubs: dict[str, kv_pb2_grpc.KVStub] = field(default_factory=dict)
    channels: list[grpc.aio.Channel] = field(default_factory=list)
    streams: list[Any] = field(default_factory=list)

    def stub(self, key: bytes) -> kv_pb2_grpc.KVStub:
        """Return a plain stub of the node that leads a key, as a program without our client has it.

        Our client only finds the leader.
        """
        topology = self.client._connection.topology
        endpoint = topology.find_endpoint(topology.find_shard(key))
        stub = self.stubs.get(endpoint)
        if stub is None:
            channel = grpc.aio.insecure_channel(endpoint)
            self.channels.append(channel)
            stub = self.stubs[endpoint] = kv_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]
        return stub

    async def close(self) -> None:
        for stream in self.streams:
            await stream.aclose()
        for channel in self.channels:
            await channel.close()


@dataclass(frozen=True)
class Case:
    """One row of the result."""

    name: str
    callers: int
    # Prepares the case and returns its step.
    begin: Callable[[Any], Awaitable[Step]]
    # Operations of one call; None: as many as are available.
    batch: int | None = 1
    # How many times the usual amount is stored beforehand, so that it lasts: the case measures how
    # fast it is consumed, not how fast it is produced.
    stock: int = 1
    # How long it runs before it is measured: puts until each key has all its versions.
    warm_up_s: float = 0.3
    # By the number of nodes: operations per second at least, or milliseconds at most.
    goal_per_s: Mapping[int, int] = field(default_factory=dict)
    goal_p50_ms: Mapping[int, float] = field(default_factory=dict)


async def put_unary(bench: Bench) -> Step:
    async def step(_caller: int) -> int:
        key = bench.key()
        await bench.stub(key).Put(kv_pb2.PutRequest(key=key, value=bench.value))
        return 1

    return step


async def get_unary(bench: Bench) -> Step:
    async def step(_caller: int) -> int:
        key = bench.key()
        await bench.stub(key).Get(kv_pb2.GetRequest(key=key))
        return 1

    return step


async def transact(bench: Bench) -> Step:
    async def step(caller: int) -> int:
        async with bench.client.transact() as batch:
            for number in range(BATCH):
                batch.put(b"{batch-%d}%d" % (caller, number), bench.value)
        return BATCH

    return step


async def consume_and_ack(bench: Bench) -> Step:
    """Push messages to one consumer, which settles each by its own call, many concurrently."""
    jobs = await bench.queue("consumed")
    left = 0
    for portion in bench.portions():
        await jobs.enqueue_many([bench.value] * portion)
        left += portion
    messages = jobs.consume(credit=CREDIT)
    bench.streams.append(messages)
    turn = asyncio.Lock()  # one caller settles while the next ones receive

    async def step(_caller: int) -> int:
        nonlocal left
        async with turn:
            if left < SETTLED:
                await jobs.enqueue_many([bench.value] * SETTLED)
                left += SETTLED
            taken = [await anext(messages) for _ in range(SETTLED)]
            left -= SETTLED
        await asyncio.gather(*map(jobs.ack, taken))
        return SETTLED

    return step


CASES = (
    Case("put", 1, put, goal_p50_ms={3: 3.0}),
    Case("put", 64, put, goal_per_s={3: 14_700}),
    Case("put", 256, put, goal_per_s={3: 26_000}),
    Case("put", 1024, put),
    Case("put, unary", 1, put_unary),
    Case("put, unary", 64, put_unary),
    Case("put_many of 128", 16, put, BATCH, goal_per_s={3: 50_000}, warm_up_s=2.0),
    Case("put_many of 128", 64, put, BATCH),
    Case("transact of 128", 16, transact, BATCH, goal_per_s={3: 50_000}),
    Case("get", 1, get),
    Case("get", 64, get, goal_per_s={3: 15_600}),
    Case("get", 256, get),
    Case("get, stale", 64, get_stale),
    Case("get, stale", 1024, get_stale),
    Case("get, unary", 64, get_unary),
    Case("enqueue", 1024, enqueue, goal_per_s={3: 16_000}),
    Case("lease 256 and ack", 8, lease_and_ack, LEASED, stock=4, goal_per_s={3: 20_000}),
    Case("consume and ack", 4, consume_and_ack, stock=4, goal_per_s={3: 20_000}),
    Case("append", 1024, append, goal_per_s={3: 24_000}),
    Case("tail", 1, tail, None),
    Case("ts write of 100", 64, write_points, POINTS),
    Case("ts query", 4, query),
)
