"""What bench/api.py lets callers do: each model through the ordinary calls of the Python client.

A case is a step that every caller repeats; it returns how many operations it was. Goals are rates
or times that others reach on such a machine, times what is promised, by the number of nodes.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
import numpy as np

from onelog import AsyncClient, Read
from onelog.client.queue import AsyncQueue
from onelog.client.stream import AsyncStream
from onelog.errors import AlreadyExists
from onelog.v1 import kv_pb2, kv_pb2_grpc

VALUE = bytes(100)
BATCH = 128
# What consumers take at a time, and what is pushed to one before it has settled some.
LEASED = 256
CREDIT = 1024
POINTS = 100
STALE = Read(stale=True)
START_NS = 1_700_000_000_000_000_000
STEP_NS = 10**9

Step = Callable[[int], Awaitable[int]]


@dataclass
class Bench:
    """A client, and what the cases have made in its cluster so far."""

    client: AsyncClient
    # Keys, and messages and records that are there before they are read.
    amount: int
    numbers: Any = field(default_factory=itertools.count)
    stubs: dict[str, kv_pb2_grpc.KVStub] = field(default_factory=dict)
    channels: list[grpc.aio.Channel] = field(default_factory=list)
    streams: list[Any] = field(default_factory=list)

    def key(self) -> bytes:
        """Return the next of the keys, which are spread over all shards."""
        return b"key-%012d" % (next(self.numbers) % self.amount)

    async def queue(self, name: str) -> AsyncQueue:
        """Return a queue that exists."""
        queue = self.client.queue(name)
        with suppress(AlreadyExists):
            await queue.create()
        return queue

    async def stream(self, name: str) -> AsyncStream:
        """Return a stream that exists."""
        stream = self.client.stream(name)
        with suppress(AlreadyExists):
            await stream.create()
        return stream

    def stub(self, key: bytes) -> kv_pb2_grpc.KVStub:
        """Return a plain stub of the node that leads a key: what a program without our client has.

        The client is only asked who that is.
        """
        topology = self.client._connection.topology
        endpoint = topology.endpoint_of(topology.shard_of(key))
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
    # Makes ready, and returns the step.
    begin: Callable[[Bench], Awaitable[Step]]
    # By the number of nodes: operations per second at least, or milliseconds at most.
    goal_per_s: Mapping[int, int] = field(default_factory=dict)
    goal_p50_ms: Mapping[int, float] = field(default_factory=dict)


# Keys


async def put(bench: Bench) -> Step:
    kv, key = bench.client.kv, bench.key

    async def step(_caller: int) -> int:
        await kv.put(key(), VALUE)
        return 1

    return step


async def get(bench: Bench) -> Step:
    await bench.client.kv.put_many((b"key-%012d" % n, VALUE) for n in range(bench.amount))
    kv, key = bench.client.kv, bench.key

    async def step(_caller: int) -> int:
        assert await kv.get(key()) is not None
        return 1

    return step


async def get_stale(bench: Bench) -> Step:
    kv, key = bench.client.kv, bench.key

    async def step(_caller: int) -> int:
        await kv.get(key(), read=STALE)
        return 1

    return step


async def put_unary(bench: Bench) -> Step:
    async def step(_caller: int) -> int:
        key = bench.key()
        await bench.stub(key).Put(kv_pb2.PutRequest(key=key, value=VALUE))
        return 1

    return step


async def get_unary(bench: Bench) -> Step:
    async def step(_caller: int) -> int:
        key = bench.key()
        await bench.stub(key).Get(kv_pb2.GetRequest(key=key))
        return 1

    return step


async def put_many(bench: Bench) -> Step:
    kv, key = bench.client.kv, bench.key

    async def step(_caller: int) -> int:
        await kv.put_many([(key(), VALUE) for _ in range(BATCH)])
        return BATCH

    return step


async def transact(bench: Bench) -> Step:
    async def step(caller: int) -> int:
        async with bench.client.transact() as batch:
            for number in range(BATCH):
                batch.put(b"{batch-%d}%d" % (caller, number), VALUE)
        return BATCH

    return step


# Queues


async def enqueue(bench: Bench) -> Step:
    jobs = await bench.queue("enqueued")

    async def step(_caller: int) -> int:
        await jobs.enqueue(VALUE)
        return 1

    return step


async def lease_and_ack(bench: Bench) -> Step:
    """Take many at a time and settle them; refilled when it is empty."""
    jobs = await bench.queue("leased")
    await jobs.enqueue_many([VALUE] * bench.amount)

    async def step(_caller: int) -> int:
        messages = await jobs.lease(LEASED)
        if messages:
            await jobs.ack_many(messages)
        else:
            await jobs.enqueue_many([VALUE] * LEASED)
        return len(messages)

    return step


async def consume_and_ack(bench: Bench) -> Step:
    """Messages pushed to one consumer, who settles each by a call of its own, many at a time."""
    jobs = await bench.queue("consumed")
    messages = jobs.consume(credit=CREDIT)
    bench.streams.append(messages)
    left = 0

    async def step(_caller: int) -> int:
        nonlocal left
        if left < LEASED:
            await jobs.enqueue_many([VALUE] * bench.amount)
            left += bench.amount
        taken = [await anext(messages) for _ in range(LEASED)]
        await asyncio.gather(*map(jobs.ack, taken))
        left -= LEASED
        return LEASED

    return step


# Streams


async def append(bench: Bench) -> Step:
    events = await bench.stream("appended")

    async def step(_caller: int) -> int:
        await events.append(VALUE)
        return 1

    return step


async def tail(bench: Bench) -> Step:
    """Read from the start, again and again."""
    events = await bench.stream("tailed")
    await events.append_many([VALUE] * bench.amount)

    async def step(_caller: int) -> int:
        count = 0
        async with events.tail(from_offset=0) as records:
            async for _ in records:
                count += 1
                if count == bench.amount:
                    break
        return count

    return step


# Time series


async def write_points(bench: Bench) -> Step:
    ts = bench.client.ts
    with suppress(AlreadyExists):
        await ts.create("written")
    values = np.arange(POINTS, dtype=np.float64)
    offsets = np.arange(POINTS, dtype=np.int64) * STEP_NS

    async def step(caller: int) -> int:
        first_ns = START_NS + next(bench.numbers) * POINTS * STEP_NS
        await ts.write("written", first_ns + offsets, {"load": values}, tags={"host": str(caller)})
        return POINTS

    return step


async def query(bench: Bench) -> Step:
    """Means of an hour of points of each of some series."""
    ts = bench.client.ts
    with suppress(AlreadyExists):
        await ts.create("queried")
    times = START_NS + np.arange(3_600, dtype=np.int64) * STEP_NS
    for host in range(16):
        await ts.write("queried", times, {"load": times % 97 * 0.5}, tags={"host": str(host)})

    async def step(_caller: int) -> int:
        groups = await ts.query(
            "queried", "load", START_NS, START_NS + 3_600 * STEP_NS, aggregate="mean", window_s=60
        )
        assert groups
        return 1

    return step


CASES = (
    Case("put", 1, put, goal_p50_ms={3: 3.0}),
    Case("put", 64, put, goal_per_s={3: 14_700}),
    Case("put", 256, put, goal_per_s={3: 26_000}),
    Case("put", 1024, put),
    Case("put, unary", 1, put_unary),
    Case("put, unary", 64, put_unary),
    Case("put_many of 128", 16, put_many, goal_per_s={3: 50_000}),
    Case("transact of 128", 16, transact, goal_per_s={3: 50_000}),
    Case("get", 1, get),
    Case("get", 64, get, goal_per_s={3: 15_600}),
    Case("get", 256, get),
    Case("get, stale", 64, get_stale),
    Case("get, stale", 1024, get_stale),
    Case("get, unary", 64, get_unary),
    Case("enqueue", 1024, enqueue, goal_per_s={3: 24_000}),
    Case("lease 256 and ack", 8, lease_and_ack, goal_per_s={3: 20_000}),
    Case("consume and ack", 1, consume_and_ack, goal_per_s={3: 20_000}),
    Case("append", 1024, append),
    Case("tail", 1, tail),
    Case("ts write of 100", 64, write_points),
    Case("ts query", 4, query),
)
