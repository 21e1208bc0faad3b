"""Three real nodes in network namespaces: partitions, lost packets, and packets out of order.

A load of all four models goes on meanwhile, through the ordinary client, and in the end everything
that was acknowledged must be there, once (tests/system/mixed_load.py); reads and writes of its keys
must be linearizable, so a leader that was cut off may not have answered any.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import pytest

from onelog import AsyncClient
from onelog.errors import OnelogError
from onelog.v1 import kv_pb2, kv_pb2_grpc
from tests.faults.switch import HERE, Switch, Weather, find_problem
from tests.system.leaders import Leader, Leaders, leaders_of
from tests.system.mixed_load import WAIT_S, MixedLoad
from tests.system.nodes import ServeProcess

NAMES = ("n1", "n2", "n3")
PROBLEM = find_problem()
pytestmark = pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))
# How long an answer is awaited that must not come.
UNANSWERED_S = 3.0
POLL_S = 0.05
RAIN = Weather(loss=0.05, repeated=0.05, late=0.2)
# Retransmissions take a while: nobody should be deposed for these alone.
FLAGS = {
    "shards": "1",
    "balance-leaders": "false",
    "insecure-bind": "true",
    "log-free-bytes-min": "0",
    "raft-election-s-min": "1",
    "raft-election-s-max": "2",
    "raft-leader-silence-s-max": "2",
}


class Nodes:
    """Three nodes, each on a host of its own, and a client that reaches all of them."""

    def __init__(
        self, switch: Switch, processes: list[ServeProcess], leaders: Leaders, client: AsyncClient
    ) -> None:
        self.switch = switch
        self.processes = processes
        self.leaders = leaders
        self.client = client
        self.endpoints = [each.flags["listen"] for each in processes]

    async def leader(self, *, above: Leader | None = None) -> Leader:
        """Wait until somebody leads, and not the same any more."""
        if above is None:
            return await self.leaders.of(0)
        return await self.leaders.of(0, above_term=above.term, but=above.process)

    def part(self, leader: Leader, *, from_clients: bool = False) -> None:
        """Cut a leader off from the other nodes."""
        others = others_than(leader)
        self.switch.part([leader.process.name], [HERE, *others] if from_clients else others)

    async def until_agreed(self) -> int:
        """Wait until all follow one leader and have applied the same; return its term."""

        async def look() -> int | None:
            said = set()
            for endpoint in self.endpoints:
                try:
                    status = await self.client.admin.status(endpoint=endpoint)
                except OnelogError:
                    return None
                assert not status.alarms, status.alarms
                (shard,) = status.shards
                said.add((shard.leader_id, shard.term, shard.applied_index))
            return said.pop()[1] if len(said) == 1 and next(iter(said))[0] else None

        return await until(look)

    def check_processes(self) -> None:
        """No process has ended, or said that something is wrong with it."""
        for each in self.processes:
            assert each.is_running, each.output[-3000:]
            assert "Traceback" not in each.output, each.output[-3000:]


def others_than(leader: Leader) -> list[str]:
    return [name for name in NAMES if name != leader.process.name]


async def until(look: Callable[[], Awaitable[int | None]]) -> int:
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await look()
            if found is not None:
                return found
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Nodes]:
    with Switch(*NAMES) as switch:
        addresses = {name: switch.hosts[name].address for name in NAMES}
        initial = ",".join(f"{name}={at}:7500" for name, at in addresses.items())
        processes = []
        for name, at in addresses.items():
            ports = {"listen": 7400, "peer-listen": 7500, "http-listen": 7600}
            flags = {flag: f"{at}:{port}" for flag, port in ports.items()}
            made = ServeProcess(
                directory / name, name, FLAGS | flags | {"initial-cluster": initial}
            )
            made.prefix = switch.hosts[name].command()
            processes.append(made)
        try:
            for each in processes:
                each.start()
            for each in processes:
                await asyncio.to_thread(each.until_ready)
            endpoints = [each.flags["listen"] for each in processes]
            async with (
                leaders_of(processes) as leaders,
                AsyncClient(endpoints, timeout_s=WAIT_S) as client,
            ):
                yield Nodes(switch, processes, leaders, client)
        finally:
            for each in processes:
                each.kill()


def run(
    test: Callable[[Nodes, MixedLoad], Awaitable[None]],
    directory: Path,
    record: Callable[[str, object], None],
) -> None:
    """Carry a test out beside the load, which is verified in the end."""

    async def main() -> None:
        async with running(directory) as nodes:
            await nodes.leader()
            async with MixedLoad(nodes.endpoints, random.Random()) as load:
                await load.progress()
                await test(nodes, load)
                nodes.switch.mend()
                await load.progress()
                await load.verify()
            await nodes.until_agreed()
            nodes.check_processes()
            switch = nodes.switch
            record(
                "figures",
                f"{load.done:,} steps of clients, {switch.lost:,} of "
                f"{switch.carried + switch.lost:,} packets lost",
            )

    asyncio.run(asyncio.wait_for(main(), 6 * WAIT_S))


async def find_answered(processes: list[ServeProcess]) -> list[str]:
    """Put and get by calls of these nodes and no others; return what was answered."""

    async def ask(process: ServeProcess) -> list[str]:
        async with grpc.aio.insecure_channel(process.flags["listen"]) as channel:
            stub = kv_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]
            put = kv_pb2.PutRequest(key=b"late", value=process.name.encode())
            answers = await asyncio.gather(
                stub.Put(put, timeout=UNANSWERED_S),
                stub.Get(kv_pb2.GetRequest(key=b"late"), timeout=UNANSWERED_S),
                return_exceptions=True,
            )
        return [f"{process.name}: {each}" for each in answers if not is_refusal(each)]

    found = await asyncio.gather(*map(ask, processes))
    return [each for answered in found for each in answered]


def is_refusal(answer: object) -> bool:
    return isinstance(answer, grpc.aio.AioRpcError)


@pytest.mark.parametrize("reach", ["also from clients", "clients still reach it"])
def test_a_leader_that_is_cut_off_is_replaced_and_answers_nobody(
    reach: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The majority goes on, and the old leader follows when the network is whole again."""

    async def test(nodes: Nodes, load: MixedLoad) -> None:
        before = await nodes.leader()
        nodes.part(before, from_clients=reach == "also from clients")
        after = await nodes.leader(above=before)
        assert after.process is not before.process
        await load.progress()
        assert not await find_answered([before.process])
        await load.progress()
        nodes.switch.mend()
        await load.progress()
        assert (await nodes.leader()).term >= after.term

    run(test, tmp_path, record_property)


def test_a_follower_that_was_cut_off_comes_back_and_deposes_nobody(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async def test(nodes: Nodes, load: MixedLoad) -> None:
        leader = await nodes.leader()
        follower = others_than(leader)[0]
        nodes.switch.part([follower], [name for name in NAMES if name != follower])
        await load.progress()
        assert not await find_answered([each for each in nodes.processes if each.name == follower])
        await load.progress()
        nodes.switch.mend()
        await load.progress()
        assert (await nodes.leader()).term == leader.term

    run(test, tmp_path, record_property)


def test_a_leader_whose_packets_do_not_arrive_is_replaced(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """It hears the others, and they do not hear it: TCP acknowledges nothing."""

    async def test(nodes: Nodes, load: MixedLoad) -> None:
        before = await nodes.leader()
        nodes.switch.set_weather([before.process.name], others_than(before), Weather(loss=1.0))
        after = await nodes.leader(above=before)
        assert after.process is not before.process
        await load.progress()

    run(test, tmp_path, record_property)


def test_without_a_majority_nothing_is_acknowledged(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Each node is alone: what a client is answered then would be lost or stale."""

    async def test(nodes: Nodes, load: MixedLoad) -> None:
        for name in NAMES:
            nodes.switch.part([name], [each for each in NAMES if each != name])
        answered = await find_answered(nodes.processes)
        done = load.done  # what was on its way has been answered by now, or never is
        answered += await find_answered(nodes.processes)
        assert not answered
        assert load.done == done

    run(test, tmp_path, record_property)


def test_packets_that_are_lost_repeated_and_late_lose_and_repeat_no_write(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async def test(nodes: Nodes, load: MixedLoad) -> None:
        nodes.switch.set_weather([*NAMES], [*NAMES, HERE], RAIN)
        nodes.switch.set_weather([HERE], [*NAMES], RAIN)
        for _ in range(3):
            await load.progress()
        assert nodes.switch.lost

    run(test, tmp_path, record_property)
