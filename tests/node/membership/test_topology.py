"""Who serves what: asked of the shards here, of the streams, and of the other workers."""

import asyncio
from collections.abc import Mapping
from uuid import UUID

import pytest

from onelog.cluster.transport.connection import Purpose, ask, connect
from onelog.cluster.transport.handshake import Identity, Introduction
from onelog.cluster.transport.link import LinkEnded
from onelog.node.membership.peer_port import (
    INTRODUCTIONS_PER_S,
    Introducer,
    PeerPort,
    decode_leaders,
    encode_leaders,
    watch_siblings,
)
from onelog.node.membership.topology import LeaderView, LiveTopology, NodeView
from onelog.ual.directory import Topology
from onelog.v1 import peer_pb2

ONE, TWO = UUID(int=1), UUID(int=2)
WAIT_S = 120.0


def node(node_id: UUID, *ports: int) -> NodeView:
    endpoints = tuple(f"h{node_id.int}:{port}" for port in ports)
    return NodeView(node_id, f"n{node_id.int}", endpoints, "", is_connected=True)


def two_nodes_of_two_workers(worker: int = 0) -> LiveTopology:
    made = LiveTopology(node(ONE, 7400, 7401), worker)
    made.found(UUID(int=9), Topology(4, 16))
    return made


def test_before_anything_is_known_there_are_no_leaders_and_one_node() -> None:
    topology = two_nodes_of_two_workers()
    assert topology.leader(0) == LeaderView(None, 0)
    assert topology.leader_endpoint(0) is None
    assert topology.endpoints(1) == ["h1:7401"]
    assert [each.node_id for each in topology.nodes()] == [ONE]


def test_leaders_and_endpoints_are_those_of_the_moment() -> None:
    topology = two_nodes_of_two_workers()
    leads = {0: LeaderView(TWO, 3), 2: LeaderView(None, 4)}
    peers = [node(TWO, 7400, 7401)]
    topology.attach(lambda: peers, leads.get)
    assert topology.is_local(0)
    assert not topology.is_local(1)
    assert topology.leader_endpoint(0) == "h2:7400"
    assert topology.leader_endpoint(2) is None
    assert topology.endpoints(2) == ["h1:7400", "h2:7400"]
    leads[0] = LeaderView(ONE, 5)
    assert topology.leader_endpoint(0) == "h1:7400"
    # A peer that has not said hello yet has no endpoint.
    peers[0] = node(TWO)
    assert topology.endpoints(2) == ["h1:7400"]


def test_what_another_worker_says_counts_for_its_shards_and_never_goes_back() -> None:
    topology = two_nodes_of_two_workers()
    topology.attach(lambda: [node(TWO, 7400, 7401)], lambda _shard: None)
    topology.learn({1: LeaderView(TWO, 5), 0: LeaderView(TWO, 5), 99: LeaderView(TWO, 5)})
    assert topology.leader_endpoint(1) == "h2:7401"
    assert topology.leader(0).leader_id is None  # this worker knows better
    topology.learn({1: LeaderView(ONE, 4)})
    assert topology.leader(1).leader_id == TWO
    topology.learn({1: LeaderView(None, 6)})
    assert topology.leader_endpoint(1) is None


def test_leaders_survive_the_way_between_workers() -> None:
    leaders = {3: LeaderView(TWO, 7, (ONE, TWO)), 5: LeaderView(None, 0)}
    assert decode_leaders(encode_leaders(leaders)) == leaders


def test_a_stranger_who_asks_without_a_pause_is_answered_seldom() -> None:
    """It waits for its own answers; workers of the node do not wait for it."""
    asked = 60

    async def main() -> None:
        introducer = Introducer(Introduction("c", "n1", ONE, 4, 16, 2, 1), {})
        port = PeerPort("127.0.0.1:0", introducer=introducer)
        await port.start()
        address, loop = f"127.0.0.1:{port.port}", asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WAIT_S):
                begin_s = loop.time()
                stranger = await connect(address, Purpose.INTRODUCE)
                for _ in range(asked):
                    await stranger.write(b"")
                question = peer_pb2.PeerLeadersRequest(node_id=ONE.bytes).SerializeToString()
                await ask(address, Purpose.LEADERS, question, None, WAIT_S)
                for _ in range(asked):
                    assert await stranger.read()
                assert asked <= 1 + 1.1 * INTRODUCTIONS_PER_S * (loop.time() - begin_s)
                for _ in range(asked):  # it leaves while these wait
                    await stranger.write(b"")
                await stranger.close()
                await ask(address, Purpose.INTRODUCE, b"", None, WAIT_S)
        finally:
            await port.stop()

    asyncio.run(main())


def test_workers_tell_each_other_and_nobody_else() -> None:
    async def main() -> None:
        introducer = Introducer(Introduction("c", "n1", ONE, 4, 16, 2, 1), {})
        identity = Identity(UUID(int=9), ONE, 4, 16, 1, node_name="n1", cluster_name="c")
        port = PeerPort("127.0.0.1:0", introducer=introducer)
        leaders = {1: LeaderView(TWO, 1)}
        port.leaders = lambda: leaders
        await port.start()
        seen: asyncio.Queue[Mapping[int, LeaderView]] = asyncio.Queue()
        address = f"127.0.0.1:{port.port}"
        watching = asyncio.create_task(
            watch_siblings({1: address}, identity, None, seen.put_nowait, 0.01)
        )
        try:
            async with asyncio.timeout(WAIT_S):
                assert await seen.get() == leaders
                leaders[1] = LeaderView(ONE, 2)
                while await seen.get() != leaders:
                    pass
            stranger = peer_pb2.PeerLeadersRequest(node_id=TWO.bytes).SerializeToString()
            for question in (stranger, b"\xff\xff"):
                with pytest.raises(LinkEnded, match="no answer"):
                    await ask(address, Purpose.LEADERS, question, None, WAIT_S)
            # Streams are closed, to come again, and what is no introduction is refused.
            stream = await connect(address, Purpose.EXCHANGE)
            assert await stream.read() is None
            await stream.close()
            data, _ = await ask(address, Purpose.INTRODUCE, b"\xff\xff", None, WAIT_S)
            answer = peer_pb2.PeerIntroductionAnswer.FromString(data)
            assert answer.refusal.reason == "UNREADABLE"
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await port.stop()

    asyncio.run(main())
