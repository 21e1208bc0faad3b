"""What every call passes before it reaches a service: limits, readiness, metrics.

* A call begins with its headers. Its request has ``ARRIVAL_S`` to arrive. How many calls may wait
  for their request is limited, in all and per client. Beyond that, the newest of the client that
  has the most are cut for a client with few, so that half-open calls of some connections keep
  nobody out. Calls whose request comes in the same read do not count as waiting.
* A request that is too large is refused (INVALID_ARGUMENT).
* Until the node has recovered, and once it stops, calls are refused (UNAVAILABLE), so that a client
  tries another node. A node that was removed from its cluster answers only what is asked about
  itself, to inspect it.
* Calls under way and the bytes of their requests are limited for the process as a whole. Beyond
  that, calls are refused (RESOURCE_EXHAUSTED) before they cost anything more.
* A client with fewer than ``CALLS_IN_ANY_CASE`` calls gets in all the same: the newest calls of the
  client that has the most are cut for it. Otherwise a few connections with a thousand idle streams
  could keep everybody out for as long as they like. Where clients share a connection, because a
  node forwards their calls, they compete with each other first.
* Every call is counted and timed by service, method and outcome.

Open methods, health and reflection, are answered in every stage. They are counted apart from the
others, from their headers to their end, so that neither keeps the other out. Among them room is
made in the same way.

A client is a connection, or one of several behind a connection (``name_client``). No client may use
more than its share of the whole (``Admission``), so one that floods the node leaves room for the
others. Nothing queues here: a request that does not fit is refused at once with a time to retry.
"""

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from onelog.errors import OutcomeUnknown, ResourceExhausted, Unavailable
from onelog.node.config.schema import LimitSettings
from onelog.node.metrics import Metrics
from onelog.node.public_errors import member_removed, too_large
from onelog.node.readiness import Readiness, Stage

if TYPE_CHECKING:
    from onelog.node.edge.exchange import Exchange
    from onelog.node.edge.port import Connection

# One client may use a quarter of everything.
CLIENT_SHARE = 4
ADMISSION_RETRY_S = 0.05
# A pipeline, a watch, a consumer and a call.
CALLS_IN_ANY_CASE = 4


class Admission:
    """Counts requests and bytes under way. Invariant: no client without a request is kept.

    Calls that the gate has cut are counted until they have ended, so the clients for whom it made
    room with them may go beyond the limit: each with ``CALLS_IN_ANY_CASE`` requests.
    """

    in_any_case = CALLS_IN_ANY_CASE  # requests of a client that the limit of all does not refuse

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        assert requests_max > 0, requests_max
        assert bytes_max > 0, bytes_max
        self.requests_max = requests_max
        self.bytes_max = bytes_max
        self.client_requests_max = max(1, requests_max // CLIENT_SHARE)
        self.client_bytes_max = max(1, bytes_max // CLIENT_SHARE)
        self.requests = 0
        self.bytes = 0
        self.refused = 0
        self._clients: dict[str, tuple[int, int]] = {}

    def enter(self, client: str, size: int) -> None:
        """Count a request in, or refuse it."""
        requests, total = self._clients.get(client, (0, 0))
        # A request that is alone may be as large as a message may be.
        if self.requests >= self.requests_max and requests >= self.in_any_case:
            self._refuse("requests", self.requests_max)
        if requests >= self.client_requests_max:
            self._refuse("requests of one client", self.client_requests_max)
        if self.requests and self.bytes + size > self.bytes_max:
            self._refuse("bytes of requests", self.bytes_max)
        if requests and total + size > self.client_bytes_max:
            self._refuse("bytes of requests of one client", self.client_bytes_max)
        self.requests += 1
        self.bytes += size
        self._clients[client] = requests + 1, total + size

    def leave(self, client: str, size: int) -> None:
        """Count a request out that ``enter`` let in."""
        requests, total = self._clients[client]
        if requests == 1:
            assert total == size, (total, size)
            del self._clients[client]
        else:
            self._clients[client] = requests - 1, total - size
        self.requests -= 1
        self.bytes -= size

    def _refuse(self, what: str, limit: int) -> None:
        self.refused += 1
        raise ResourceExhausted(
            f"{limit} {what} are under way, which is the limit",
            reason="TOO_MANY_REQUESTS",
            metadata={"limit": str(limit), "of": what},
            retry_after_s=ADMISSION_RETRY_S,
        )


# Gate

# As long as a client may take to read a message it may take to send one.
ARRIVAL_S = 30.0
RETRY_S = 1.0
# Calls that are cut at a time, since finding the client with the most means a scan of all.
CUT_AT_ONCE, CUT_SHARE = 16, 4
_GOOD_STAGES = (Stage.ELECTING, Stage.SERVING)
# What a node that was removed from its cluster still answers, about itself.
_INSPECTING = frozenset(
    f"/onelog.v1.Admin/{name}" for name in ("GetStateHash", "GetStatus", "ListLogRanges", "ReadLog")
)


class CallShares(Admission):
    """Counts calls one by one, and makes room for a client that has few.

    What is cut has not been begun, or tells about the node: nothing has been done, and it counts
    no more.
    """

    in_any_case = 0

    def __init__(self, calls_max: int, bytes_max: int) -> None:
        super().__init__(calls_max, bytes_max)
        self._calls: dict[str, dict[Exchange, None]] = {}  # by client, in order

    def enter_call(self, exchange: "Exchange") -> None:
        """Count a call in, or refuse it."""
        client = exchange.client
        if self.requests >= self.requests_max:
            self._make_room(len(self._calls.get(client, ())))
        self.enter(client, 0)
        self._calls.setdefault(client, {})[exchange] = None

    def leave_call(self, exchange: "Exchange") -> None:
        """Count a call out, unless it was cut."""
        calls = self._calls.get(exchange.client)
        if calls is not None and exchange in calls:
            del calls[exchange]
            if not calls:
                del self._calls[exchange.client]
            self.leave(exchange.client, 0)

    def _make_room(self, own: int) -> None:
        """Cut calls of the client that has the most, for one that has this many."""
        greediest = max(self._calls.values(), key=len)
        count = len(greediest)
        if own >= CALLS_IN_ANY_CASE or count <= own:
            return
        error = ResourceExhausted(
            f"{self.requests_max} calls wait, of which this client has the most",
            reason="TOO_MANY_REQUESTS",
            retry_after_s=RETRY_S,
        )
        for exchange in list(reversed(greediest))[: max(1, min(CUT_AT_ONCE, count // CUT_SHARE))]:
            self.leave_call(exchange)
            exchange.cut(error)


class Gate:
    """See the module's text."""

    def __init__(self, readiness: Readiness, metrics: Metrics, *, limits: LimitSettings) -> None:
        self.under_way = 0
        self.bytes_under_way = 0
        self.connections: Collection[Connection] = ()  # of the port
        self._cut = 0  # calls under way that were cut and have not ended yet
        self.arrival_s = ARRIVAL_S
        self.arriving = CallShares(limits.concurrent_rpcs_max, limits.in_flight_bytes_max)
        self.open_calls = CallShares(limits.concurrent_rpcs_max, limits.in_flight_bytes_max)
        self._readiness = readiness
        self._metrics = metrics
        self._calls_max = limits.concurrent_rpcs_max
        self._bytes_max = limits.in_flight_bytes_max
        self.message_bytes_max = limits.message_bytes_max
        self._idle = asyncio.Event()
        self._idle.set()
        metrics.rpc_under_way.set_function(lambda: self.under_way)

    async def idle(self) -> None:
        """Wait until no call is under way, other than of open methods."""
        await self._idle.wait()

    def await_request(self, exchange: "Exchange") -> None:
        """Count a call that waits for its request, or refuse it."""
        if exchange.method.is_open:
            self.open_calls.enter_call(exchange)
        else:
            self._check_stage(exchange)
            self.arriving.enter_call(exchange)

    def stop_awaiting(self, exchange: "Exchange") -> None:
        """Count a call out that ``await_request`` let in."""
        waiting = self.open_calls if exchange.method.is_open else self.arriving
        waiting.leave_call(exchange)

    def enter(self, exchange: "Exchange") -> None:
        """Admit a call whose request is there, or refuse it."""
        size = exchange.size
        if size > self.message_bytes_max:
            raise too_large(size, self.message_bytes_max)
        if exchange.method.is_open:
            self.open_calls.enter_call(exchange)
            return
        self._check_stage(exchange)
        connection = exchange.connection
        if self.under_way - self._cut >= self._calls_max and not self._make_room(exchange):
            raise ResourceExhausted(
                f"{self._calls_max} calls are under way",
                reason="TOO_MANY_CALLS",
                retry_after_s=RETRY_S,
            )
        if self.bytes_under_way + size > self._bytes_max:
            raise ResourceExhausted(
                f"requests of {self.bytes_under_way} bytes are under way, limit {self._bytes_max}",
                reason="TOO_MANY_BYTES",
                retry_after_s=RETRY_S,
            )
        self.under_way += 1
        self.bytes_under_way += size
        connection.admitted[exchange] = None
        self._idle.clear()
        self._metrics.rpcs.request_bytes += size

    def leave(self, exchange: "Exchange", code: int, seconds: float) -> None:
        """Count a call out that ``enter`` let in, and measure it."""
        method = exchange.method
        if method.is_open:
            self.open_calls.leave_call(exchange)
            return
        self.under_way -= 1
        self.bytes_under_way -= exchange.size
        if exchange in exchange.connection.admitted:
            del exchange.connection.admitted[exchange]
        else:
            self._cut -= 1
        if not self.under_way:
            self._idle.set()
        self._metrics.rpcs.observe(method.service, method.name, code, seconds)

    def refuse(self, reason: str) -> None:
        """Count a call that ends with an error."""
        self._metrics.rpc_refused.labels(reason).inc()

    def _make_room(self, newcomer: "Exchange") -> bool:
        """Cut calls of the client that has the most, for one with few; tell whether it may enter.

        A connection with few calls competes with the connection that has the most. One with many,
        shared by several clients, makes room itself.
        """
        crowded = newcomer.connection
        own = sum(each.client == newcomer.client for each in crowded.admitted)
        if own >= CALLS_IN_ANY_CASE or not self.connections:
            return False
        if len(crowded.admitted) < CALLS_IN_ANY_CASE:
            crowded = max(self.connections, key=lambda each: len(each.admitted))
        counts = Counter(each.client for each in crowded.admitted)
        greediest, count = counts.most_common(1)[0] if counts else ("", 0)
        if count <= own:
            return False
        # Not a refusal: what they have begun may have been done.
        error = OutcomeUnknown(
            f"{self._calls_max} calls are under way, of which this client has the most"
        )
        newest = [each for each in reversed(crowded.admitted) if each.client == greediest]
        for exchange in newest[: max(1, min(CUT_AT_ONCE, count // CUT_SHARE))]:
            del crowded.admitted[exchange]
            self._cut += 1
            exchange.cut(error)
        return True

    def _check_stage(self, exchange: "Exchange") -> None:
        stage = self._readiness.stage
        if stage not in _GOOD_STAGES:
            if stage is Stage.REMOVED:
                if exchange.method.path in _INSPECTING:
                    return
                raise member_removed()
            is_over = stage is Stage.STOPPING
            raise Unavailable(
                "this node is shutting down" if is_over else f"this node is {stage.value}",
                reason="STOPPING" if is_over else "STARTING",
                retry_after_s=RETRY_S,
            )
