"""A client that poses as the leader: with its certificate it says hello to other nodes as that one.

It is a process of its own that knows what any client can find out: the ids, names and addresses of
the nodes. It holds a certificate of the cluster's authority, but none of a node. To each node it
introduces itself as the leader, asks for the leaders as one of its workers would, and says hello as
the leader with an endpoint of its own, where it would answer forwarded calls; if that is accepted,
it sends appends of rising terms, which no leader survives. It tries for some seconds and prints one
JSON object: how often it tried, and which answers it got how often::

    python -m tests.attacks.impersonate CERTS CA OWN CLUSTER_ID SHARDS PARTITIONS SECONDS \
        LEADER_ID LEADER_NAME  NODE_ID=HOST:PORT ...

Answers: ``REFUSED reason``; ``TOLD`` if an introduction or a list of leaders came back;
``ACCEPTED`` if a hello was; ``CLOSED`` if the node ended the connection without a word.
"""

import asyncio
import json
import ssl
import sys
import time
from collections import Counter
from pathlib import Path
from uuid import UUID

from onelog.cluster.raft.messages import Append
from onelog.cluster.transport.connection import Connection, Purpose, connect
from onelog.cluster.transport.handshake import (
    Identity,
    Introduction,
    decode_answer,
    encode_introduction,
)
from onelog.cluster.transport.link import LinkEnded
from onelog.cluster.transport.outbox import Outbox, OutboxLimits
from onelog.cluster.transport.wire import Refused, WireError, decode_first, encode_hello
from onelog.v1 import peer_pb2
from tests.system.certificates import client_context

ENDPOINT = "127.0.0.1:9"  # where the attacker would answer forwarded calls
ASK_S = 5.0
TERM_FIRST = 1_000
PAUSE_S = 0.01


class Impostor:
    """Somebody who says that it is the leader."""

    def __init__(self, tls: ssl.SSLContext, leader: Identity) -> None:
        self._tls = tls
        self._leader = leader
        self._session = 0
        self.answers: Counter[str] = Counter()

    async def attack(self, target: UUID, address: str) -> None:
        """Try everything once."""
        for name, attempt in (
            ("introduce", self._introduce),
            ("leaders", self._ask_for_leaders),
            ("hello", self._say_hello),
        ):
            try:
                async with asyncio.timeout(ASK_S):
                    answer = await attempt(target, address)
            except LinkEnded:
                answer = "CLOSED"
            except (WireError, TimeoutError) as error:
                answer = type(error).__name__
            self.answers[f"{name}: {answer}"] += 1

    async def _introduce(self, _target: UUID, address: str) -> str:
        leader = self._leader
        mine = Introduction(
            leader.cluster_name, leader.node_name, leader.node_id, leader.shards,
            leader.partitions, 1, is_joining=True,
        )  # fmt: skip
        answer = decode_answer(
            await self._ask(address, Purpose.INTRODUCE, encode_introduction(mine))
        )
        if answer.introduction is not None or answer.refusal is None:
            return "TOLD"
        return f"REFUSED {answer.refusal.reason}"

    async def _ask_for_leaders(self, target: UUID, address: str) -> str:
        question = peer_pb2.PeerLeadersRequest(node_id=target.bytes).SerializeToString()
        await self._ask(address, Purpose.LEADERS, question)
        return "TOLD"

    async def _ask(self, address: str, purpose: Purpose, question: bytes) -> bytes:
        connection = await connect(address, purpose, self._tls)
        try:
            await connection.write(question)
            answer = await connection.read()
        finally:
            await connection.close()
        if answer is None:
            raise LinkEnded("no answer")
        return answer

    async def _say_hello(self, target: UUID, address: str) -> str:
        self._session += 1
        connection = await connect(address, Purpose.EXCHANGE, self._tls)
        try:
            await connection.write(encode_hello(self._leader.hello(target, self._session)))
            frame = await connection.read()
            if frame is None:
                raise LinkEnded("no answer")
            answer = decode_first(frame)
            if isinstance(answer, Refused):
                return f"REFUSED {answer.reason}"
            await self._append(connection)
            return "ACCEPTED"
        finally:
            await connection.close()

    async def _append(self, connection: Connection) -> None:
        """Send heartbeats of a term that is above every real one."""
        outbox = Outbox(OutboxLimits())
        for shard in range(self._leader.shards):
            term = TERM_FIRST + self._session
            outbox.push(shard, Append(term, 1, 0, 0, (), 0))
        frame = outbox.next_frame(self._session, with_early=True)
        if frame is not None:
            await connection.write(frame)


async def run(arguments: list[str]) -> None:
    """Attack for the time that was asked for."""
    certs, ca, own, cluster_id, shards, partitions, seconds, leader_id, leader_name = arguments[:9]
    nodes = dict(each.split("=") for each in arguments[9:])
    leader = Identity(
        UUID(cluster_id), UUID(leader_id), int(shards), int(partitions), incarnation=1,
        node_name=leader_name, endpoints=(ENDPOINT,), cluster_name="onelog",
    )  # fmt: skip
    impostor = Impostor(client_context(Path(certs), ca, own), leader)
    until_s, rounds = time.monotonic() + float(seconds), 0
    while time.monotonic() < until_s or not rounds:
        for node_id, address in nodes.items():
            await impostor.attack(UUID(node_id), address)
        rounds += 1
        await asyncio.sleep(PAUSE_S)
    sys.stdout.write(json.dumps({"rounds": rounds, "answers": impostor.answers}) + "\n")


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
