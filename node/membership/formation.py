"""How a node comes to belong to a cluster: it founds one with others, joins one, or has one.

A directory with SYSTEM has one; what the settings say must fit it. Otherwise the node founds one,
alone or with the nodes of ``cluster.initial``, or takes the place of a newcomer (``cluster.join``).
``node/membership/peer_port.py`` has the rules; here are the calls, the pauses and the words for
operators.

Whatever ends the process in between loses nothing: NODE is written before the first word to others,
SYSTEM when everybody agreed, and either is found by the next start, which continues from there.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from onelog.cluster.transport.certificate import check_certificate
from onelog.cluster.transport.connection import Purpose, ask
from onelog.cluster.transport.handshake import (
    Introduction,
    IntroductionAnswer,
    decode_answer,
    encode_introduction,
)
from onelog.cluster.transport.link import LinkEnded
from onelog.cluster.transport.wire import Reason, WireError
from onelog.node.config.schema import Config
from onelog.node.config.settings import Address
from onelog.node.errors import FormationRefused
from onelog.node.membership.peer_port import Introducer, PeerPort, make_cluster_id
from onelog.ual.directory import Claim, Founder, Node, System, Topology
from onelog.ual.errors import TopologyMismatch, WrongNode

ASK_S = 2.0
# Between two questions to one node: soon at first, then less often.
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 1.0
# How often the log says which nodes are missing.
REMIND_S = 10.0
NOT_A_PEER_PORT = (
    "that port is not a peer port; is it the port for clients? Use the address of --peer-listen"
)

_log = logging.getLogger("onelog.node.formation")


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """This process as a member of a cluster: its settings, its identity and its addresses."""

    config: Config
    node: Node
    worker: int
    endpoints: tuple[str, ...]  # of this node's API, by worker
    peer_address: str  # where other nodes call worker 0

    def introduction(self) -> Introduction:
        """Return what to say before anything is known of others."""
        cluster, given = self.config.cluster, self.config.given
        # A newcomer takes from its cluster what nobody has set.
        is_joining = bool(cluster.join)
        return Introduction(
            cluster_name="" if is_joining and "cluster.name" not in given else cluster.name,
            node_name=self.node.name,
            node_id=self.node.node_id,
            shards=0 if is_joining and "cluster.shards" not in given else cluster.shards,
            partitions=(
                0 if is_joining and "cluster.partitions" not in given else cluster.partitions
            ),
            workers=self.config.node.workers,
            worker=self.worker,
            is_joining=is_joining,
            endpoints=self.endpoints,
        )


def check_system(local: LocalProcess, system: System, path: object) -> None:
    """Refuse settings that say otherwise than a directory that belongs to a cluster."""
    cluster, given = local.config.cluster, local.config.given
    if local.node.name != local.config.node.name and "node.name" in given:
        raise WrongNode(
            f"{path} belongs to node {local.node.name}, not to {local.config.node.name}; "
            "use that node's own directory, or its name"
        )
    wanted: list[tuple[str, object, object]] = [
        ("workers", system.workers, local.config.node.workers),
        ("worker", system.worker, local.worker),
    ]
    if "cluster.shards" in given:
        wanted.append(("shards", system.topology.shards, cluster.shards))
    if "cluster.partitions" in given:
        wanted.append(("partitions", system.topology.partitions, cluster.partitions))
    if "cluster.name" in given and system.cluster_name:
        wanted.append(("cluster name", system.cluster_name, cluster.name))
    for what, there, asked in wanted:
        if there != asked:
            raise TopologyMismatch(
                f"{path} has {what} {there}, {asked} was asked for; it is fixed when a cluster is "
                f"founded: ask for {there}, or start with an empty directory"
            )


class Formation:
    """Finds out which cluster a claimed directory belongs to."""

    def __init__(
        self,
        local: LocalProcess,
        claim: Claim,
        port: PeerPort,
        tls: ssl.SSLContext | None,
        say: Callable[[str], None],
    ) -> None:
        """``say`` is called with what the node is waiting for; /ready shows it."""
        self._local = local
        self._claim = claim
        self._port = port
        self._tls = tls
        self._say = say
        self._found: asyncio.Future[tuple[Introduction, tuple[Founder, ...]]] = (
            asyncio.get_running_loop().create_future()
        )
        self._refused: dict[str, str] = {}  # the last word of each that refuses

    async def run(self) -> System:
        """Return the cluster; waits for others for as long as it takes."""
        local, claim = self._local, self._claim
        system = claim.system
        if system is not None:
            check_system(local, system, claim.path)
            self._port.introducer = Introducer.founded(local.introduction(), system)
            return system
        cluster = local.config.cluster
        if cluster.join:
            introduction, founders = await self._join(cluster.join)
        elif cluster.initial:
            introduction, founders = await self._found_with_others(dict(cluster.initial))
        else:
            introduction = local.introduction()
            self._port.introducer = Introducer(introduction, {})
            founders = (Founder(local.node.node_id, local.node.name, local.peer_address),)
        cluster_id = introduction.cluster_id or make_cluster_id(
            introduction.cluster_name, [each.node_id for each in founders]
        )
        return System(
            cluster_id,
            Topology(introduction.shards, introduction.partitions),
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            introduction.cluster_name,
            founders,
            local.worker,
            local.config.node.workers,
        )

    # Founding

    async def _found_with_others(
        self, addresses: dict[str, Address]
    ) -> tuple[Introduction, tuple[Founder, ...]]:
        local = self._local
        introducer = Introducer(
            local.introduction(), {name: str(address) for name, address in addresses.items()}
        )
        self._port.introducer = introducer
        self._port.heard = self._look
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._ask_founder(introducer, name, address))
                    for name, address in addresses.items()
                    if name != local.node.name
                ]
                tasks.append(group.create_task(self._remind(introducer)))
                self._look()
                try:
                    return await self._found
                finally:
                    for task in tasks:
                        task.cancel()
        except* FormationRefused as errors:
            raise errors.exceptions[0] from None
        finally:
            self._port.heard = lambda: None
        raise AssertionError("unreachable")

    def _look(self) -> None:
        """Check whether all founders agree now."""
        introducer = self._port.introducer
        assert introducer is not None
        founders = introducer.agreed()
        if founders is not None and not self._found.done():
            self._found.set_result((introducer.mine, founders))
        self._say(self._waiting_for(introducer))

    async def _ask_founder(self, introducer: Introducer, name: str, address: Address) -> None:
        """Ask one founder until all agree."""
        at = str(address.plus(self._local.worker))
        pause_s = PAUSE_S_MIN
        while True:
            answer = await self._ask(replace(introducer.mine, target_name=name), name, at)
            if answer is not None:
                self._take(introducer, name, answer)
                self._look()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _take(self, introducer: Introducer, name: str, answer: IntroductionAnswer) -> None:
        theirs = answer.introduction
        try:
            if answer.refusal is not None:
                self._refuse(name, answer.refusal.reason, answer.refusal.detail, by="it")
                # The cluster exists and does not want this node: asking again will not help.
                if theirs is not None and theirs.is_founded:
                    raise FormationRefused(
                        answer.refusal.reason, f"{name} refuses: {answer.refusal.detail}"
                    )
                return
            assert theirs is not None, "only a refusal has no introduction"
            founders = introducer.heard(theirs, name)
        except WireError as error:
            self._refuse(name, error.reason, error.detail, by="this node")
            if theirs is not None and theirs.is_founded:
                raise FormationRefused(error.reason, error.detail) from error
            return
        self._refused.pop(name, None)
        if theirs.is_founded and founders is not None and not self._found.done():
            self._found.set_result((theirs, founders))

    def _refuse(self, name: str, reason: str, detail: str, *, by: str) -> None:
        text = f"{reason}: {detail}"
        if self._refused.get(name) != text:
            self._refused[name] = text
            _log.warning("%s and this node do not fit, says %s: %s", name, by, text)

    async def _remind(self, introducer: Introducer) -> None:
        while True:
            _log.info("founding the cluster, waiting for %s", self._waiting_for(introducer))
            await asyncio.sleep(REMIND_S)

    def _waiting_for(self, introducer: Introducer) -> str:
        return "; ".join([", ".join(introducer.unknown_names), *self._misfits()])

    def _misfits(self) -> list[str]:
        return [f"{name} does not fit: {text}" for name, text in sorted(self._refused.items())]

    # Joining

    async def _join(
        self, addresses: tuple[Address, ...]
    ) -> tuple[Introduction, tuple[Founder, ...]]:
        """Ask one member after the other until one answers."""
        introducer = Introducer(self._local.introduction(), {})
        awaited = f"an answer of {', '.join(map(str, addresses))}"
        _log.info("joining a cluster, waiting for %s", awaited)
        pause_s = PAUSE_S_MIN
        while True:
            self._say("; ".join([awaited, *self._misfits()]))
            for address in addresses:
                at = str(address.plus(self._local.worker))
                answer = await self._ask(introducer.mine, at, at)
                if answer is None:
                    continue
                refusal = answer.refusal
                if refusal is None:
                    assert answer.introduction is not None, "only a refusal has none"
                    try:
                        founders = introducer.joined(answer.introduction)
                    except WireError as error:
                        raise FormationRefused(error.reason, error.detail) from error
                    self._port.introducer = introducer
                    return answer.introduction, founders
                self._refuse(at, refusal.reason, refusal.detail, by="it")
                if refusal.reason != Reason.NOT_FOUNDED:
                    raise FormationRefused(refusal.reason, f"{at} refuses: {refusal.detail}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    # Both

    async def _ask(self, mine: Introduction, name: str, address: str) -> IntroductionAnswer | None:
        """Return the answer of another node; None without one that can be read."""
        question = encode_introduction(mine)
        try:
            data, certificate = await ask(address, Purpose.INTRODUCE, question, self._tls, ASK_S)
            answer = decode_answer(data)
            theirs = answer.introduction
            if theirs is not None:
                # A newcomer that was given no cluster takes the one that the certificate has.
                cluster_name = mine.cluster_name or theirs.cluster_name
                check_certificate(certificate, cluster_name, theirs.node_name)
        except LinkEnded as error:
            _log.debug("%s at %s does not answer: %s", name, address, error)
        except WireError as error:
            is_other = error.reason is Reason.NOT_A_PEER_PORT
            detail = NOT_A_PEER_PORT if is_other else error.detail
            self._refuse(name, error.reason, detail, by="this node")
        else:
            return answer
        return None
