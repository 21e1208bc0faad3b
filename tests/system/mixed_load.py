"""Programs that use all four models at once through the ordinary client, and what they must find.

Each writes things that can be told apart and remembers what it was told. Nothing here retries: what
the client cannot do within its timeout is an error of the test. ``check`` compares with what the
database holds in the end.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from onelog import AsyncClient
from onelog.client.watch import Event
from onelog.errors import ConditionFailed, LeaseLost, NotFound
from tests.simulation.linearizability import Operation, is_linearizable

KEYS = 3
BRIEF = "brief-"
BRIEF_S = 0.3
# What every program has to get done between two faults, and within what time.
STEPS = 8
WAIT_S = 60.0
MINUTE_NS = 60_000_000_000
BEGIN_NS = 1_700_000_000_000_000_000


def register(state: Any, argument: Any) -> tuple[Any, Any]:
    """Model one key: a read, a put, or a put of a value where another one is expected."""
    match argument:
        case ("get",):
            return state, state
        case ("put", value):
            return value, True
        case ("swap", expected, value):
            return (value, True) if state == expected else (state, False)
    raise AssertionError(argument)


class Program:
    """One user of the database; ``run`` goes on until it is told to stop."""

    def __init__(self, client: AsyncClient, name: str, chance: random.Random) -> None:
        self.client = client
        self.name = name
        self.chance = chance
        self.done = 0
        self.is_stopping = False

    async def set_up(self) -> None:
        """Create what is needed."""

    async def run(self) -> None:
        """Work."""
        while not self.is_stopping:
            await self.step()
            self.done += 1

    async def step(self) -> None:
        """Do one thing."""
        raise NotImplementedError

    async def check(self) -> None:
        """Compare what was said with what is there."""


class Registers(Program):
    """Reads, puts and swaps of few keys by many callers: the history must be linearizable."""

    def __init__(
        self,
        client: AsyncClient,
        number: int,
        chance: random.Random,
        history: dict[str, list[Operation]],
    ) -> None:
        super().__init__(client, f"registers {number}", chance)
        self.number = number
        self.history = history

    async def step(self) -> None:
        key = f"register-{self.chance.randrange(KEYS)}"
        value = f"{self.number}.{self.done}".encode()
        kind = self.chance.choice(("get", "put", "swap"))
        kv = self.client.kv
        if kind == "get":
            argument: tuple[Any, ...] = ("get",)
        elif kind == "put":
            argument = ("put", value)
        else:
            seen = await kv.get(key)
            argument = ("swap", None if seen is None else seen.value, value)
        operation = Operation(self.number, argument, time.monotonic())
        self.history.setdefault(key, []).append(operation)
        if kind == "get":
            found = await kv.get(key)
            operation.result = None if found is None else found.value
        elif kind == "put":
            await kv.put(key, value)
            operation.result = True
        else:
            expected = argument[1]
            txn = kv.txn()
            txn = txn.when(key, exists=False) if expected is None else txn.when(key, value=expected)
            txn.then.put(key, value)
            operation.result = (await txn.commit()).succeeded
        operation.ended_s = time.monotonic()

    async def check(self) -> None:
        for key, operations in self.history.items():
            assert is_linearizable(operations, register, None), f"{key}: {operations}"


class Brief(Program):
    """Puts keys that live for a moment: each goes by itself."""

    async def step(self) -> None:
        await self.client.kv.put(f"{BRIEF}{self.done}", "", ttl_s=BRIEF_S)

    async def check(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while [each async for each in self.client.kv.scan(prefix=BRIEF)]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


class Producer(Program):
    """Enqueues numbered messages, in a session: each is there once, whatever failed meanwhile."""

    async def set_up(self) -> None:
        await self.client.queue("jobs").create()

    async def step(self) -> None:
        await self.client.queue("jobs").enqueue(str(self.done))


class Consumer(Program):
    """Leases and settles messages: what was acknowledged was acknowledged once."""

    def __init__(
        self, client: AsyncClient, number: int, chance: random.Random, acked: Counter[int]
    ) -> None:
        super().__init__(client, f"consumer {number}", chance)
        self.acked = acked

    async def step(self) -> None:
        queue = self.client.queue("jobs")
        for message in await queue.lease(5, visibility_s=20, wait_s=0.2):
            try:
                if self.chance.random() < 0.1:
                    await queue.nack(message, delay_s=0.05, reason="not now")
                    continue
                await queue.ack(message)
            except (LeaseLost, NotFound):
                continue  # it took too long, and somebody else has it
            self.acked[int(message.body)] += 1


class Appender(Program):
    """Appends numbered records of its own key: all of them are there, in order, once."""

    async def set_up(self) -> None:
        await self.client.stream("events").create()

    async def step(self) -> None:
        await self.client.stream("events").append(str(self.done), key=self.name)

    async def check(self) -> None:
        records = [each async for each in self.client.stream("events").read()]
        numbers = [int(each.value) for each in records if each.key == self.name.encode()]
        assert numbers == list(range(self.done)), self.name


class Gauge(Program):
    """Writes one point after the other."""

    async def step(self) -> None:
        times = [BEGIN_NS + MINUTE_NS * self.done]
        await self.client.ts.write("load", times, {"value": [self.done]}, tags={"by": self.name})

    async def check(self) -> None:
        query = self.client.ts.query
        end_ns = BEGIN_NS + MINUTE_NS * self.done
        (found,) = await query("load", "value", 0, end_ns, where={"by": self.name}, by_series=True)
        assert found.fields["value"].tolist() == list(range(self.done))


class Mover(Program):
    """Moves a message, a record, a point and a key in one batch: all of it or nothing."""

    async def set_up(self) -> None:
        for create in (self.client.queue("{all}-jobs").create, self.client.stream("{all}").create):
            await create()

    async def step(self) -> None:
        number = str(self.done)
        batch = self.client.transact().put("{all}-last", number)
        batch.enqueue("{all}-jobs", number).append_record("{all}", number)
        batch.write_points("{all}", [BEGIN_NS + MINUTE_NS * self.done], {"value": [self.done]})
        if self.chance.random() < 0.1:
            batch.when("{all}-never", exists=True)
            try:
                await batch.commit()
            except ConditionFailed:
                self.done -= 1  # the next step does it
            else:
                raise AssertionError("a batch whose condition does not hold took effect")
            return
        await batch.commit()

    async def check(self) -> None:
        expected = list(range(self.done))
        last = await self.client.kv.get("{all}-last")
        assert last is not None
        assert int(last.value) == expected[-1]
        info = await self.client.queue("{all}-jobs").info()
        assert info.ready == len(expected)
        records = [int(each.value) async for each in self.client.stream("{all}").read()]
        assert records == expected
        end_ns = BEGIN_NS + MINUTE_NS * self.done
        (found,) = await self.client.ts.query("{all}", "value", 0, end_ns)
        assert found.fields["value"].tolist() == expected


class Watcher:
    """Hears of everything from the beginning: each event once, in the order of its shard."""

    def __init__(self, client: AsyncClient) -> None:
        self.watch = client.watch(progress_s=0.2)
        self.last: dict[int, int] = {}  # the last index, by shard
        self.events: list[Event] = []

    async def run(self) -> None:
        """Take events until cancelled."""
        async for event in self.watch:
            index = self.last.get(event.shard, 0)
            assert event.index >= index, f"{event} after {index}"
            self.last[event.shard] = event.index
            self.events.append(event)

    def heard(self, model: str, kind: str, name: str) -> list[Event]:
        """Return the events of one kind and name, in order."""
        return [
            each
            for each in self.events
            if (each.model, each.kind, each.name) == (model, kind, name.encode())
        ]

    def missing(
        self,
        history: dict[str, list[Operation]],
        enqueued: int,
        appenders: list[Appender],
        gauge: Gauge,
    ) -> str:
        """Return what is not told yet, or nothing; raise if something was told twice."""
        for key, operations in history.items():
            values = [each.item.value for each in self.heard("kv", "put", key) if each.item]
            assert len(values) == len(set(values)), f"{key}: told twice"
            puts = {
                each.argument[-1]
                for each in operations
                if each.argument[0] != "get" and each.result is True
            }
            assert set(values) <= puts, f"{key}: told of what nobody did"
            if len(values) < len(puts):
                return key
        ids = [
            each for event in self.heard("queue", "enqueued", "jobs") for each in event.message_ids
        ]
        assert len(ids) == len(set(ids)) <= enqueued, "messages: told twice"
        if len(ids) < enqueued:
            return f"messages: {len(ids)} of {enqueued}"
        records = [each.record for each in self.heard("stream", "appended", "events")]
        for appender in appenders:
            own = appender.name.encode()
            numbers = [int(each.value) for each in records if each and each.key == own]
            assert numbers == list(range(len(numbers))), f"{appender.name}: {numbers}"
            if len(numbers) < appender.done:
                return appender.name
        written = [
            int(value)
            for event in self.heard("ts", "written", "load")
            for points in event.points
            for value in points.fields["value"]
        ]
        assert written == list(range(len(written))), written
        return "" if len(written) == gauge.done else "points"

    def still_there(self, brief: Brief) -> str:
        """Return a key whose end is not told yet, or nothing; raise if one was told twice."""
        told: dict[bytes, list[str]] = {}
        for event in self.events:
            if event.model == "kv" and event.name.startswith(BRIEF.encode()):
                told.setdefault(event.name, []).append(event.kind)
        assert set(told) <= {f"{BRIEF}{number}".encode() for number in range(brief.done)}
        for name, kinds in told.items():
            assert kinds in (["put"], ["put", "expired"]), (name, kinds)
        ended = sum(len(kinds) == len(("put", "expired")) for kinds in told.values())
        return "" if ended == brief.done else f"expiries: {ended} of {brief.done}"


def told_alike(watchers: Sequence[Watcher]) -> None:
    """Raise unless all were told the same of each shard, as far as they have come."""
    shards = {event.shard for each in watchers for event in each.events}
    for shard in shards:
        heard = [
            [
                (each.index, each.model, each.kind, each.name)
                for each in watcher.events
                if each.shard == shard
            ]
            for watcher in watchers
        ]
        length = min(map(len, heard))
        assert length
        assert all(each[:length] == heard[0][:length] for each in heard)


class MixedLoad:
    """All of the programs above and two watchers, from ``async with`` to its end.

    ``progress`` waits until everybody has got something done; ``verify`` ends the programs and
    compares what was said with what is there. What a program raises is raised there, too.
    """

    def __init__(self, endpoints: Sequence[str], chance: random.Random) -> None:
        self.clients = [AsyncClient(list(endpoints), timeout_s=WAIT_S) for _ in range(4)]
        self._history: dict[str, list[Operation]] = {}
        self._acked: Counter[int] = Counter()
        clients = self.clients
        self._producer = Producer(clients[1], "producer", chance)
        self._appenders = [Appender(clients[each], f"appender {each}", chance) for each in (1, 2)]
        self._gauge = Gauge(clients[2], "gauge", chance)
        self._brief = Brief(clients[0], "brief", chance)
        self._mover = Mover(clients[0], "mover", chance)
        self._consumers = [Consumer(clients[each], each, chance, self._acked) for each in (2, 3)]
        self.programs: list[Program] = [
            *(Registers(each, at, chance, self._history) for at, each in enumerate(clients)),
            self._producer,
            *self._consumers,
            *self._appenders,
            self._gauge,
            self._brief,
            self._mover,
        ]
        self._watchers = [Watcher(clients[each]) for each in (0, 3)]
        self._tasks: list[asyncio.Task[None]] = []
        self._watching: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "MixedLoad":
        try:
            for watcher in self._watchers:
                await watcher.watch.start()
            for each in (self._producer, self._appenders[0], self._mover):
                await each.set_up()
        except BaseException:
            await self._close()
            raise
        self._tasks = [asyncio.create_task(each.run()) for each in self.programs]
        self._watching = [asyncio.create_task(each.run()) for each in self._watchers]
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._close()

    @property
    def done(self) -> int:
        """How many steps of programs were answered."""
        return sum(each.done for each in self.programs)

    async def progress(self, steps: int = STEPS) -> None:
        """Wait until every program has got something done."""
        before = [each.done for each in self.programs]
        async with asyncio.timeout(WAIT_S):
            while any(
                now.done < then + steps for now, then in zip(self.programs, before, strict=True)
            ):
                self._raise_failures(*self._tasks, *self._watching)
                await asyncio.sleep(0.02)

    async def verify(self) -> None:
        """End the programs, the consumers last, and compare."""
        await self._settle()
        for each in self.programs:
            await each.check()
        for watcher, task in zip(self._watchers, self._watching, strict=True):
            async with asyncio.timeout(WAIT_S):
                while missing := (
                    watcher.missing(
                        self._history, self._producer.done, self._appenders, self._gauge
                    )
                    or watcher.still_there(self._brief)
                ):
                    assert not task.done(), (task.exception(), missing)
                    await asyncio.sleep(0.05)
            task.cancel()
        told_alike(self._watchers)

    async def _settle(self) -> None:
        """End the programs, and check that every message was acknowledged once."""
        for each in self.programs:
            each.is_stopping = each not in self._consumers
        ending = [
            task
            for each, task in zip(self.programs, self._tasks, strict=True)
            if each not in self._consumers
        ]
        await asyncio.gather(*ending)
        async with asyncio.timeout(WAIT_S):
            while len(self._acked) < self._producer.done:
                self._raise_failures(*self._tasks)
                await asyncio.sleep(0.02)
        for consumer in self._consumers:
            consumer.is_stopping = True
        await asyncio.gather(*self._tasks)
        assert self._acked == Counter(range(self._producer.done))
        info = await self._producer.client.queue("jobs").info()
        assert (info.enqueued, info.acked) == (self._producer.done, self._producer.done)

    @staticmethod
    def _raise_failures(*tasks: "asyncio.Task[None]") -> None:
        for task in tasks:
            if task.done():
                task.result()

    async def _close(self) -> None:
        for task in (*self._tasks, *self._watching):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._watching, return_exceptions=True)
        for client in self.clients:
            await client.close()
