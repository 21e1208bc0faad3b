"""The workloads of a benchmark, and how they are run and measured.

A workload prepares what it needs and returns a step, which every caller repeats; a step returns its
number of operations. All of them use the ordinary calls of the Python client. ``onelog bench`` and
``bench/api.py`` measure the same ones.

A ``Run`` lets callers repeat a step and records counts, durations and errors. Its size does not
depend on its length: durations are counted in buckets that grow by GROWTH, which bounds the error
of a percentile. A call that fails with an error of the API is counted by its reason, and its caller
continues after a pause; any other error ends the run.
"""

import asyncio
import itertools
import math
import random
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from onelog import AsyncClient, Read
from onelog.client.queue import AsyncQueue
from onelog.client.stream import AsyncStream
from onelog.errors import AlreadyExists, OnelogError

# Bytes of keys and values that are prepared for reads.
READY_MAX = 20_000
READY_BYTES_MAX = 64 << 20
# Values that are sent at a time during preparation.
FILL_BYTES_MAX = 4 << 20
# Values are cut from noise of NOISE_SIZE bytes, NOISE_STEP apart.
NOISE_SIZE, NOISE_STEP = 1 << 20, 4_099
VALUES_MIN, VALUES_MAX, VALUES_BYTES_MAX = 8, 4_096, 8 << 20
# One in this many calls of ``mixed`` is a write.
MIXED_WRITE_EVERY = 5
QUERY_SERIES, QUERY_POINTS, QUERY_WINDOW_S = 16, 3_600, 60
STALE = Read(stale=True)
START_NS = 1_700_000_000_000_000_000
STEP_NS = 10**9

Step = Callable[[int], Awaitable[int]]


@cache
def _keys(count: int) -> list[bytes]:
    return [b"key-%012d" % number for number in range(count)]


@cache
def _values(size: int) -> list[bytes]:
    noise = random.Random(0).randbytes(NOISE_SIZE + size)  # noqa: S311 - not a secret
    count = min(max(VALUES_BYTES_MAX // max(size, 1), VALUES_MIN), VALUES_MAX)
    starts = [number * NOISE_STEP % NOISE_SIZE for number in range(count)]
    return [noise[at : at + size] for at in starts]


def _turn(items: list[bytes], first: int, count: int) -> list[bytes]:
    """Return ``count`` items from ``first`` on, starting over at the end."""
    at = first % len(items)
    part = items[at : at + count]
    while len(part) < count:
        part += items[: count - len(part)]
    return part


@dataclass
class Load:
    """A client, and the sizes of what a workload does with it."""

    client: AsyncClient
    value: bytes
    # Operations per call, if a call can have several.
    batch: int = 1
    # The number of keys, messages or records that are prepared for reads.
    amount: int = READY_MAX
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def key(self) -> bytes:
        """Return the next key; keys are spread over all shards."""
        return b"key-%012d" % (next(self.numbers) % self.amount)

    def values(self, count: int) -> list[bytes]:
        """Return different values that cannot be compressed.

        They were made in advance, so that making them is not measured.
        """
        return _turn(_values(len(self.value)), next(self.numbers) * count, count)

    def pairs(self, count: int) -> Iterable[tuple[bytes, bytes]]:
        """Return the next keys, each with a value."""
        first, values = next(self.numbers) * count, _values(len(self.value))
        keys = _turn(_keys(self.amount), first, count)
        return zip(keys, _turn(values, first, count), strict=True)

    def portions(self) -> Iterator[int]:
        """Yield how many values to send at a time, until all are sent."""
        most = max(1, FILL_BYTES_MAX // max(1, len(self.value)))
        for first in range(0, self.amount, most):
            yield min(most, self.amount - first)

    async def queue(self, name: str) -> AsyncQueue:
        """Return a queue; create it if needed."""
        queue = self.client.queue(name)
        with suppress(AlreadyExists):
            await queue.create()
        return queue

    async def stream(self, name: str) -> AsyncStream:
        """Return a stream; create it if needed."""
        stream = self.client.stream(name)
        with suppress(AlreadyExists):
            await stream.create()
        return stream


@dataclass(frozen=True)
class Workload:
    """A workload that can be measured."""

    # Prepares what is needed, and returns the step.
    begin: Callable[[Load], Awaitable[Step]]
    # The default number of operations per call.
    batch: int = 1


# Keys


async def put(load: Load) -> Step:
    """Write keys, over and over the same ones."""
    kv, key, value, batch = load.client.kv, load.key, load.value, load.batch
    if batch > 1:
        load.pairs(batch)  # made in advance: the first ones take long

    async def step(_caller: int) -> int:
        if batch == 1:
            await kv.put(key(), value)
        else:
            await kv.put_many(load.pairs(batch))
        return batch

    return step


async def get(load: Load) -> Step:
    """Read keys, the newest values."""
    return await _reads(load, None)


async def get_stale(load: Load) -> Step:
    """Read keys from any replica."""
    return await _reads(load, STALE)


async def _reads(load: Load, read: Read | None) -> Step:
    numbers = itertools.count()
    for portion in load.portions():
        keys = [b"key-%012d" % next(numbers) for _ in range(portion)]
        await load.client.kv.put_many(zip(keys, load.values(len(keys)), strict=True))
    kv, key, batch = load.client.kv, load.key, load.batch

    async def step(_caller: int) -> int:
        # Another replica may not have a key yet.
        if batch == 1:
            assert await kv.get(key(), read=read) is not None or read is not None
        else:
            found = await kv.get_many([key() for _ in range(batch)], read=read)
            assert None not in found or read is not None
        return batch

    return step


async def mixed(load: Load) -> Step:
    """One write in MIXED_WRITE_EVERY calls, reads otherwise."""
    read, write = await get(load), await put(load)
    calls = itertools.count()

    async def step(caller: int) -> int:
        is_write = next(calls) % MIXED_WRITE_EVERY == 0
        return await (write(caller) if is_write else read(caller))

    return step


# Queues


async def enqueue(load: Load) -> Step:
    """Put messages into one queue."""
    jobs = await load.queue("enqueued")
    value, batch = load.value, load.batch

    async def step(_caller: int) -> int:
        if batch == 1:
            await jobs.enqueue(value)
        else:
            await jobs.enqueue_many([value] * batch)
        return batch

    return step


async def lease_and_ack(load: Load) -> Step:
    """Lease many messages at a time and acknowledge them; refill the queue when it is empty."""
    jobs = await load.queue("leased")
    for portion in load.portions():
        await jobs.enqueue_many([load.value] * portion)
    value, batch = load.value, load.batch

    async def step(_caller: int) -> int:
        messages = await jobs.lease(batch)
        if messages:
            await jobs.ack_many(messages)
        else:
            await jobs.enqueue_many([value] * batch)
        return len(messages)

    return step


# Streams


async def append(load: Load) -> Step:
    """Append records to one stream."""
    events = await load.stream("appended")
    value, batch = load.value, load.batch

    async def step(_caller: int) -> int:
        if batch == 1:
            await events.append(value)
        else:
            await events.append_many([value] * batch)
        return batch

    return step


async def tail(load: Load) -> Step:
    """Read from the start, again and again; a call is one batch of records."""
    events = await load.stream("tailed")
    for portion in load.portions():
        await events.append_many([load.value] * portion)
    wanted = min(load.batch, load.amount)

    async def step(_caller: int) -> int:
        count = 0
        async with events.tail(from_offset=0) as records:
            async for _ in records:
                count += 1
                if count == wanted:
                    break
        return count

    return step


# Time series


async def write_points(load: Load) -> Step:
    """Write points, each caller to a series of its own."""
    ts, batch = load.client.ts, load.batch
    with suppress(AlreadyExists):
        await ts.create("written")
    values = np.arange(batch, dtype=np.float64)
    offsets = np.arange(batch, dtype=np.int64) * STEP_NS
    numbers = itertools.count()

    async def step(caller: int) -> int:
        first_ns = START_NS + next(numbers) * batch * STEP_NS
        await ts.write("written", first_ns + offsets, {"load": values}, tags={"host": str(caller)})
        return batch

    return step


async def query(load: Load) -> Step:
    """Means of each minute of an hour of points of each of some series."""
    ts = load.client.ts
    with suppress(AlreadyExists):
        await ts.create("queried")
    times = START_NS + np.arange(QUERY_POINTS, dtype=np.int64) * STEP_NS
    for host in range(QUERY_SERIES):
        await ts.write("queried", times, {"load": times % 97 * 0.5}, tags={"host": str(host)})
    end_ns = START_NS + QUERY_POINTS * STEP_NS

    async def step(_caller: int) -> int:
        groups = await ts.query(
            "queried", "load", START_NS, end_ns, aggregate="mean", window_s=QUERY_WINDOW_S
        )
        assert groups
        return 1

    return step


WORKLOADS = {
    "put": Workload(put),
    "get": Workload(get),
    "get-stale": Workload(get_stale),
    "mixed": Workload(mixed),
    "enqueue": Workload(enqueue),
    "lease-ack": Workload(lease_and_ack, batch=256),
    "append": Workload(append),
    "tail": Workload(tail, batch=1_000),
    "ts-write": Workload(write_points, batch=100),
    "ts-query": Workload(query),
}


# Runs and measurements

GROWTH = 1.01
# From a microsecond to an hour.
_FIRST_S, _LAST_S = 1e-6, 3600.0
_PER_E = 1 / math.log(GROWTH)
_CELLS = int(math.log(_LAST_S / _FIRST_S) * _PER_E) + 2
_AFTER_ERROR_S = 0.05
_NEW_MAX = 4096


class Durations:
    """A histogram of durations, of fixed size."""

    def __init__(self) -> None:
        self._cells = np.zeros(_CELLS, np.int64)
        self._new = array("d")  # not in their buckets yet: many at a time cost less

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._cells.sum()) + len(self._new)

    def add(self, duration_s: float) -> None:
        """Count one."""
        self._new.append(duration_s)
        if len(self._new) >= _NEW_MAX:
            self._count_new()

    def _count_new(self) -> None:
        durations_s = np.maximum(np.frombuffer(self._new), _FIRST_S)
        cells = (np.log(durations_s / _FIRST_S) * _PER_E).astype(np.int64)
        self._cells += np.bincount(np.minimum(cells, _CELLS - 1), minlength=_CELLS)
        self._new = array("d")

    def percentile_s(self, part: float) -> float:
        """Return the percentile ``part`` (0 to 1) in seconds; 0 if there are no durations."""
        if self._new:
            self._count_new()
        wanted = max(1, math.ceil(part * self.count))
        for at, count in enumerate(self._cells.tolist()):
            wanted -= count
            if count and wanted <= 0:
                return _FIRST_S * math.exp((at + 0.5) / _PER_E)
        return 0.0


class Run:
    """A run under way, or its result."""

    def __init__(self) -> None:
        self.done = 0
        self.durations = Durations()
        self.errors: Counter[str] = Counter()
        self.took_s = 0.0
        self._started_s = time.perf_counter()

    @property
    def per_s(self) -> float:
        """Operations per second, so far or in total."""
        took_s = self.took_s or time.perf_counter() - self._started_s
        return self.done / took_s if took_s else 0.0

    async def repeat(
        self, step: Step, callers: int, *, seconds: float, calls: int | None = None
    ) -> None:
        """Run callers that repeat a step for a time, or for a number of calls; at least once.

        Calls that are under way at the end are awaited.
        """
        self._started_s = time.perf_counter()
        turns = self._turns(calls, self._started_s + seconds)
        async with asyncio.TaskGroup() as group:
            for caller in range(callers):
                group.create_task(self._call(step, caller, turns))
        self.took_s = time.perf_counter() - self._started_s

    def _turns(self, calls: int | None, until_s: float) -> Iterator[None]:
        for number in itertools.count():
            if number == calls or (number and time.perf_counter() >= until_s):
                return
            yield

    async def _call(self, step: Step, caller: int, turns: Iterator[None]) -> None:
        now_s = time.perf_counter
        for _ in turns:
            begun_s = now_s()
            try:
                done = await step(caller)
            except OnelogError as error:
                self.errors[error.reason] += 1
                await asyncio.sleep(_AFTER_ERROR_S)
                continue
            self.durations.add(now_s() - begun_s)
            self.done += done
