"""Who is believed that says that a node was removed: real sockets and certificates."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from onelog.cluster.transport.certificate import node_uri
from onelog.cluster.transport.connection import Purpose, ask
from onelog.cluster.transport.handshake import Introduction
from onelog.cluster.transport.link import LinkEnded
from onelog.cluster.transport.peers import PeerTransport
from onelog.node.membership.peer_port import Introducer, PeerPort
from onelog.node.membership.removal import SILENCE_S, RemovalWatch, describe_membership
from onelog.ual.entry import Group
from onelog.v1 import peer_pb2
from tests.cluster.raft.lone_shard import ME, OTHER, PEER, STRANGER, LoneShard
from tests.cluster.transport.pairs import identity
from tests.cluster.transport.test_transport_tls import BOTH_USES, tls
from tests.system.certificates import authority, signed

CLUSTER = "c"
NAMES = {PEER: "n2", OTHER: "n3"}
WAIT_S = 120.0


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, WAIT_S))


def certificates(directory: Path, *names: str) -> None:
    ca = authority(directory, "ca")
    for name in names:
        signed(directory, name, ca, names=(f"URI:{node_uri(CLUSTER, name)}",), uses=BOTH_USES)


def leading(*founders: UUID) -> LoneShard:
    """Return a shard of these members that leads and has applied two proposals."""
    shard = LoneShard(founders=founders)
    shard.lead()
    shard.propose()
    shard.acknowledge()
    return shard


def shut_out(*founders: UUID) -> LoneShard:
    """Return a shard of the third node that hears no leader."""
    shard = LoneShard(founders=founders, me=OTHER)
    shard.pass_time(1.0)
    assert not shard.member.hears_leader
    return shard


@asynccontextmanager
async def answering(shard: LoneShard, server_tls: Any = None) -> AsyncIterator[str]:
    """Answer as the second node does, whose replica this is; yield the address."""
    mine = Introduction(CLUSTER, "n2", PEER, 1, 1, 1, cluster_id=identity(PEER).cluster_id)
    port = PeerPort("localhost:0", server_tls, Introducer(mine, {}))
    port.describe_membership = partial(describe_membership, {0: shard.member})
    await port.start()
    try:
        yield f"localhost:{port.port}"
    finally:
        await port.stop()


async def find_removed(mine: LoneShard, address: str, client_tls: Any = None) -> set[int]:
    """Return of which shards the third node believes that it is no member, after it has asked."""
    who = identity(OTHER, cluster_name=CLUSTER, node_name=NAMES[OTHER])
    transport = PeerTransport(who, lambda _sender, _messages: None, tls=client_tls)
    transport.set_peers({PEER: address}, NAMES)
    watch = RemovalWatch({0: mine.member}, transport, client_tls, mine.clock.now_s)
    mine.clock.time_s += SILENCE_S
    await watch.look()
    return watch.removed


def test_a_member_believes_a_newer_answer_of_one_that_hears_a_leader() -> None:
    async def test() -> None:
        async with answering(leading(ME, PEER)) as address:
            assert await find_removed(shut_out(ME, PEER, OTHER), address) == {0}
            # One that waits to be added hears the same, and was never a member.
            assert await find_removed(shut_out(ME, PEER), address) == set()
        async with answering(leading(ME, PEER, OTHER)) as address:
            assert await find_removed(shut_out(ME, PEER, OTHER), address) == set()
        alone = leading(ME, PEER)
        alone.pass_time(5.0)  # it hears nobody, and leads no more
        async with answering(alone) as address:
            assert await find_removed(shut_out(ME, PEER, OTHER), address) == set()

    run(test())


def test_an_answer_that_is_older_than_what_the_node_has_applied_is_not_believed() -> None:
    async def test() -> None:
        ahead = LoneShard(founders=(ME, PEER, OTHER), me=OTHER)
        groups: list[Group] = []
        for number in range(5):
            group = ahead.next_group(b"%d" % number, term=1)
            ahead.hear(ME, ahead.append([group.data], term=1))
            groups.append(group)
        ahead.hear(ME, replace(ahead.append([], term=1), commit=5))
        ahead.tick()
        assert ahead.member.applied == 5
        ahead.pass_time(1.0)
        behind = leading(ME, PEER)
        assert behind.member.applied < 5
        async with answering(behind) as address:
            assert await find_removed(ahead, address) == set()
            while behind.member.applied <= 5:
                behind.propose()
                behind.acknowledge()
            assert await find_removed(ahead, address) == {0}

    run(test())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")
def test_with_tls_only_the_member_that_was_asked_is_believed(tmp_path: Path) -> None:
    """Another process at its address, with a good certificate of the same authority, is not."""
    certificates(tmp_path, "n1", "n2", "n3")

    async def test() -> None:
        client_tls = tls(tmp_path, "n3")["client_tls"]
        for name, removed in (("n1", set()), ("n2", {0})):
            async with answering(leading(ME, PEER), tls(tmp_path, name)["server_tls"]) as address:
                found = await find_removed(shut_out(ME, PEER, OTHER), address, client_tls)
                assert found == removed, name

    run(test())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")
def test_who_asks_proves_with_tls_who_it_is_and_of_which_cluster(tmp_path: Path) -> None:
    certificates(tmp_path, "n1", "n2", "n3")
    question = peer_pb2.PeerMembershipRequest(
        cluster_id=identity(OTHER).cluster_id.bytes, node_id=OTHER.bytes, node_name="n3"
    )

    async def is_answered(address: str, own: str, **changes: Any) -> bool:
        asked = peer_pb2.PeerMembershipRequest()
        asked.CopyFrom(question)
        for name, value in changes.items():
            setattr(asked, name, value)
        context = tls(tmp_path, own)["client_tls"]
        data = asked.SerializeToString()
        try:
            await ask(address, Purpose.MEMBERSHIP, data, context, WAIT_S)
        except LinkEnded:
            return False
        return True

    async def test() -> None:
        async with answering(leading(ME, PEER), tls(tmp_path, "n2")["server_tls"]) as address:
            assert await is_answered(address, "n3")
            assert not await is_answered(address, "n1")
            assert not await is_answered(address, "n3", cluster_id=STRANGER.bytes)
            assert not await is_answered(address, "n3", node_id=b"short")

    run(test())
