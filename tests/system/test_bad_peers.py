"""Peers that must not be listened to, against real processes: refused with a reason on both sides.

Nodes 2 and 3 of three run and have a leader. Node 1 is played by processes that belong elsewhere,
and by the test itself, which says what no member would. Then the cluster must serve as before.
"""

import asyncio
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from onelog.cluster.raft.messages import Append, Message, Vote, VoteRequest
from onelog.cluster.transport import wire
from onelog.cluster.transport.handshake import Identity
from onelog.cluster.transport.wire import Reason
from onelog.ual.entry import TYPE_NOOP, Draft, encode_group
from onelog.v1 import peer_pb2
from tests.cluster.transport.pairs import heard
from tests.system.processes import Cluster, Process, cluster, until

CLUSTER_ID = UUID(int=1000)
TEST_S_MAX = 60.0


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, TEST_S_MAX))


async def still_serves(nodes: Cluster, value: str) -> None:
    nodes.assert_running(2, 3)

    async def written() -> bool | None:
        leader, _ = await nodes.leader()
        answer = await nodes.connections[leader].ask(
            "propose", commands=[{"kind": "put", "key": "alive", "value": value}]
        )
        return "results" in answer or None

    await until(written)


def test_processes_that_belong_elsewhere_are_refused_and_both_sides_say_why(
    tmp_path: Path,
) -> None:
    odd: list[tuple[dict[str, Any], Reason]] = [
        ({"cluster": 1001}, Reason.CLUSTER_MISMATCH),
        ({"shards": 2, "partitions": 2}, Reason.TOPOLOGY_MISMATCH),
        ({"protocol": [2, 3]}, Reason.PROTOCOL_TOO_NEW),
    ]

    async def test() -> None:
        async with cluster(tmp_path, start=False) as nodes:
            nodes.start(2, 3)
            leader, before = await nodes.leader()
            for change, reason in odd:
                stranger = nodes.processes[1]
                home = tmp_path / f"stranger-{reason}"
                home.mkdir()
                settings = stranger.settings | change | {"data_dir": str(home / "data")}
                process = Process(1, settings, home)
                nodes.processes[1] = process
                process.start()
                await until(lambda reason=reason: both_report(nodes, reason))  # type: ignore[misc]
                process.kill()
                assert str(reason) in process.output
                nodes.processes[1] = stranger
            await still_serves(nodes, "after strangers")
            after = await nodes.statuses()
            # A vote, or a message of a higher term, would have shown here.
            assert {status["term"] for status in after.values()} == {before["term"]}
            assert after[leader]["leads"]

    run(test())


async def both_report(nodes: Cluster, reason: Reason) -> bool | None:
    statuses = await nodes.statuses()
    if set(statuses) != {1, 2, 3}:
        return None
    there = [statuses[1]["peers"][node]["last_reason"] for node in ("2", "3")]
    here = [statuses[node]["peers"]["1"]["last_reason"] for node in (2, 3)]
    sessions = [statuses[node]["peers"]["1"]["sessions"] for node in (2, 3)]
    assert sessions == [0, 0]
    return {*there, *here} == {str(reason)} or None


class Impostor:
    """Says what it likes in the name of node 1."""

    def __init__(self, nodes: Cluster, target: int) -> None:
        self._address = nodes.peer_addresses[target]
        self._target_id = UUID(int=target)
        self._session = 0
        self._incarnation = time.time_ns() % wire.NUMBER_MAX

    async def say(self, *frames: bytes, **change: Any) -> str:
        """Say hello, then frames; return the reason of the refusal."""
        self._session += 1
        node_id = change.pop("node_id", UUID(int=1))
        identity = Identity(CLUSTER_ID, node_id, 1, 1, self._incarnation, **change)
        hello = wire.encode_hello(identity.hello(self._target_id, self._session))
        return (await heard(self._address, hello, *frames)).reason

    def frame(self, message: Message, shard: int = 0) -> bytes:
        """Return a message as a frame of the session that the next ``say`` opens."""
        return wire.encode_frame(self._session + 1, [wire.encode_message(shard, message)])


def test_forged_and_oversized_messages_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, start=False) as nodes:
            nodes.start(2, 3)
            leader, before = await nodes.leader()
            follower = 5 - leader
            liar = Impostor(nodes, follower)
            high = before["term"] + 7
            vote_request = VoteRequest(high, 10**6, high - 1)
            cases: list[tuple[list[bytes], dict[str, Any], Reason]] = [
                ([liar.frame(vote_request)], {"node_id": UUID(int=0)}, Reason.UNKNOWN_NODE),
                ([], {"protocol_min": 7, "protocol_max": 9}, Reason.PROTOCOL_TOO_NEW),
                ([liar.frame(Vote(high), shard=1)], {}, Reason.UNKNOWN_SHARD),
                ([b"\xff\xff\xff"], {}, Reason.UNREADABLE),
                ([bytes(wire.FRAME_SIZE_MAX + 1)], {}, Reason.FRAME_TOO_LARGE),
                ([announced(1 << 31)], {}, Reason.MESSAGE_TOO_LARGE),
                ([liar.frame(VoteRequest(2**60, 1, 1))], {}, Reason.BAD_NUMBER),
            ]
            for frames, change, reason in cases:
                # Sessions count up: make the frames for the one that this attempt opens.
                frames = [renumbered(liar, frame) for frame in frames]
                assert await liar.say(*frames, **change) == reason
            status = await nodes.status(follower)
            assert status["term"] == before["term"]
            assert status["peers"]["1"]["last_reason"] == Reason.BAD_NUMBER
            assert Reason.UNKNOWN_NODE in status["refusals"]
            await still_serves(nodes, "after forgeries")

    run(test())


def announced(size: int) -> bytes:
    """Return a piece of a message that claims to be so large."""
    frame = peer_pb2.PeerFrame(fragment=peer_pb2.PeerFragment(number=1, total_size=size, data=b"x"))
    return bytes(frame.SerializeToString())


def renumbered(liar: Impostor, frame: bytes) -> bytes:
    parsed = peer_pb2.PeerFrame()
    try:
        parsed.ParseFromString(frame)
    except Exception:  # noqa: BLE001 - it is meant to be garbage
        return frame
    if len(frame) > wire.FRAME_SIZE_MAX:
        return frame
    parsed.session = liar._session + 1
    return bytes(parsed.SerializeToString())


@pytest.mark.parametrize("damage", ["checksum", "cut"])
def test_a_group_with_damaged_bytes_is_refused_and_nothing_is_lost(
    tmp_path: Path, damage: str
) -> None:
    """The sender has the right to send; what it sends must still be proved."""

    async def test() -> None:
        async with cluster(tmp_path, start=False) as nodes:
            nodes.start(2, 3)
            await still_serves(nodes, "before")
            leader, _ = await nodes.leader()
            liar = Impostor(nodes, 5 - leader)
            before = (await nodes.settled())[5 - leader]
            group = encode_group(
                [Draft(TYPE_NOOP, b"x" * 100)],
                term=before["term"] + 1,
                first_index=before["applied_index"] + 1,
                timestamp_ns=2**62,
            ).data
            broken = group[:-1] + b"y" if damage == "checksum" else group[:-9]
            append = Append(
                before["term"] + 1, 1, before["last"], before["term"], (broken,), before["last"]
            )
            assert await liar.say(liar.frame(append)) == Reason.BAD_GROUP

            status = await nodes.status(5 - leader)
            assert status["bad_messages"] == 1
            assert status["last"] >= before["last"]
            await still_serves(nodes, "after")
            leader, _ = await nodes.leader()
            answer = await nodes.connections[leader].ask("read", keys=["alive"])
            assert answer["values"] == {"alive": "after"}

    run(test())
