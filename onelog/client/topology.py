"""Where to send a call: from a name to its shard, and from a shard to the endpoint of its leader.

The shard of a name follows from the name (``onelog.routing``).

Who leads which shard is learnt from the servers, and refreshed when something fails. It may be out
of date at any moment, and that is no error: a server that does not lead forwards the request or
says who does. The numbers of partitions and shards never change while a cluster lives. An endpoint
that answers for another cluster is refused: it has other data.
"""

import asyncio
import random
from collections.abc import Callable, Iterable

from onelog.channel import MISTAKES, NOT_ONELOG, RpcError
from onelog.client.channels import METHODS, Channels
from onelog.client.options import ClientOptions
from onelog.errors import (
    FailedPrecondition,
    NotFound,
    OnelogError,
    Unavailable,
    Unimplemented,
)
from onelog.routing import find_shard
from onelog.status import error_of
from onelog.v1 import admin_pb2

# The topology is refreshed at most this often, whatever fails.
REFRESH_INTERVAL_S_MIN = 0.05

# How long to wait for one endpoint before another one is asked as well.
HEDGE_S = 0.2


class Topology:
    """The endpoints of a cluster: who leads each shard, its replicas, and all nodes."""

    def __init__(self, seeds: Iterable[str], channels: Channels, options: ClientOptions) -> None:
        self._channels = channels
        self._options = options
        self._seeds = tuple(seeds)
        self._nodes: tuple[str, ...] = ()
        self._turn = self._refreshes = random.randrange(len(self._seeds))  # noqa: S311 - spreads load, hides nothing
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_s = float("-inf")
        self._listeners: list[Callable[[], None]] = []
        self.cluster_id = ""
        self.shard_count = 0
        self.partition_count = 0
        # By shard; None if no leader is known.
        self.leaders: list[str | None] = []
        self.replicas: list[tuple[str, ...]] = []
        # The term of each leader: an older answer must not replace a newer one.
        self._terms: list[int] = []

    @property
    def is_known(self) -> bool:
        """Whether a server has answered yet."""
        return self.shard_count > 0

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each refresh."""
        self._listeners.append(listener)

    def find_shard(self, name: bytes) -> int:
        """Return the shard of a key or name."""
        return find_shard(name, self.partition_count, self.shard_count)

    def find_endpoint(self, shard: int) -> str:
        """Return the endpoint of a shard's leader, or of any node if none is known."""
        try:
            return self.leaders[shard] or self.any_endpoint()
        except IndexError:
            raise NotFound(f"there is no shard {shard}", reason="SHARD_UNKNOWN") from None

    def find_replica(self, shard: int) -> str:
        """Return a replica of a shard, another one each time."""
        replicas = self.replicas[shard]
        if not replicas:
            return self.find_endpoint(shard)
        self._turn += 1
        return replicas[self._turn % len(replicas)]

    def any_endpoint(self) -> str:
        """Return an endpoint of the cluster, another one each time."""
        endpoints = self.endpoints()
        self._turn += 1
        return endpoints[self._turn % len(endpoints)]

    def endpoints(self) -> tuple[str, ...]:
        """Return all endpoints: those of the nodes, then the ones the user gave."""
        return tuple(dict.fromkeys((*self._nodes, *self._seeds)))

    def redirect(self, shard: int, endpoint: str) -> None:
        """Set the leader of a shard, as a server says."""
        if endpoint and shard < self.shard_count:
            self.leaders[shard] = endpoint

    def forget_leader(self, shard: int, endpoint: str) -> None:
        """Forget a leader that does not answer; until the next refresh any node is asked."""
        if shard < self.shard_count and self.leaders[shard] == endpoint:
            self.leaders[shard] = None

    def refresh_soon(self) -> None:
        """Refresh the topology in the background, unless that was just done."""
        now_s = asyncio.get_running_loop().time()
        if self._refreshing is None and now_s - self._refreshed_s >= REFRESH_INTERVAL_S_MIN:
            self._start()

    async def refresh(self) -> None:
        """Refresh the topology now; raises Unavailable if no endpoint answers."""
        await asyncio.shield(self._refreshing or self._start())

    def _start(self) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._refresh(), name="onelog topology")
        self._refreshing = task
        task.add_done_callback(self._refreshed)
        return task

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        self._refreshed_s = asyncio.get_running_loop().time()
        if not task.cancelled():
            task.exception()  # marks it as retrieved; those who wait for the task raise it

    async def _refresh(self) -> None:
        """Ask the endpoints in turn, the next as soon as one is slow; use the first answer."""
        errors: list[OnelogError] = []
        endpoints = list(self.endpoints())
        # A separate counter: if refreshes and calls shared one, then with two endpoints all
        # refreshes would go to one and all calls to the other.
        self._refreshes += 1
        first = self._refreshes % len(endpoints)
        left = endpoints[first:] + endpoints[:first]
        loop = asyncio.get_running_loop()
        asked: set[asyncio.Task[admin_pb2.GetTopologyResponse]] = set()
        try:
            while left or asked:
                if left:
                    asked.add(loop.create_task(self._ask(left.pop(0)), name="onelog topology"))
                done, asked = await asyncio.wait(
                    asked,
                    timeout=HEDGE_S if left else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    try:
                        self._learn(task.result())
                    except Unavailable as unavailable:
                        errors.append(unavailable)
                    except RpcError as failure:
                        errors.append(error_of(failure))
                    else:
                        return
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise _merge(errors)

    async def _ask(self, endpoint: str) -> admin_pb2.GetTopologyResponse:
        channel = self._channels.of(endpoint)
        await channel.ready(self._options.connect_timeout_s)
        method = METHODS["Admin/GetTopology"]
        try:
            data = await channel.unary(method.path, b"", self._options.connect_timeout_s)
        except RpcError as failure:
            if failure.code == Unimplemented.code:
                what = f"no connection to {endpoint}: what answers there is not a server of onelog"
                raise Unavailable(what, reason=NOT_ONELOG) from None
            raise
        answer: admin_pb2.GetTopologyResponse = method.parse(data)
        return answer

    def _learn(self, answer: admin_pb2.GetTopologyResponse) -> None:
        if not answer.shard_count or not answer.partition_count:
            raise Unavailable("the server does not know its topology yet", reason="NO_TOPOLOGY")
        known = (self.cluster_id, self.shard_count, self.partition_count)
        found = (answer.cluster_id, answer.shard_count, answer.partition_count)
        if self.is_known and known != found:
            raise FailedPrecondition(
                f"an endpoint answers for cluster {found}, the client speaks with {known}",
                reason="TOPOLOGY_MISMATCH",
            )
        if not self.is_known:
            self.leaders = [None] * answer.shard_count
            self.replicas = [()] * answer.shard_count
            self._terms = [0] * answer.shard_count
        self.cluster_id, self.shard_count, self.partition_count = found
        for shard in answer.shards:
            if shard.shard < self.shard_count and shard.term >= self._terms[shard.shard]:
                self._terms[shard.shard] = shard.term
                self.leaders[shard.shard] = shard.leader_endpoint or None
                self.replicas[shard.shard] = tuple(shard.endpoints)
        nodes = (endpoint for node in answer.nodes for endpoint in node.endpoints)
        self._nodes = tuple(nodes) or self._nodes
        for listener in self._listeners:
            listener()

    async def close(self) -> None:
        """Cancel a refresh under way."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)


def _merge(errors: list[OnelogError]) -> OnelogError:
    """Return the error for endpoints that all failed: a mistake only if each is one."""
    first = next((each for each in errors if each.reason not in MISTAKES), errors[0])
    if len(errors) > 1:
        text = "; ".join(dict.fromkeys(each.message for each in errors))
        return type(first)(text, reason=first.reason, retry_after_s=first.retry_after_s)
    return first
