"""The async client: ``from onelog import AsyncClient``."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Self

from onelog.client.admin import AsyncAdmin
from onelog.client.channels import UNARY
from onelog.client.connection import Connection
from onelog.client.kv import AsyncKV
from onelog.client.log import AsyncLog
from onelog.client.options import (
    DEFAULT_ENDPOINT,
    ClientOptions,
    Durability,
    Scope,
    Tls,
    parse_endpoint,
    to_route,
)
from onelog.client.queue import AsyncQueue
from onelog.client.stream import AsyncStream
from onelog.client.tail import AsyncTail
from onelog.client.times import Time, to_nanoseconds
from onelog.client.timeseries import AsyncTimeSeries
from onelog.client.transactions import AsyncBatch
from onelog.client.validation import refuse_unsendable
from onelog.client.values import (
    Key,
    QueueInfo,
    Read,
    RecordFilter,
    StreamInfo,
    to_bytes,
    to_queue_info,
    to_stream_info,
)
from onelog.client.watch import AsyncWatch, Watched
from onelog.errors import InvalidArgument
from onelog.v1 import admin_pb2, queue_pb2, stream_pb2


@refuse_unsendable
class AsyncClient:
    """A client of a onelog database: keys, queues, streams, time series.

    It connects on the first call, or at the start of ``with``. An async client belongs to the event
    loop of that call; a blocking one may be used from many threads. Views made with ``namespace``
    and ``scoped`` share its connections; closing one closes all. A client does not survive
    ``fork``: make one in each process.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        timeout_s: float | None = None,
        tls: Tls | None = None,
        options: ClientOptions | None = None,
    ) -> None:
        """Make a client for one or several endpoints, ``host:port``; the port is 7400 if left out.

        One endpoint is enough: the client learns the others from it. ``timeout_s`` is for a whole
        call with its retries. ``options`` has all settings; the other arguments override it.
        """
        found = options or ClientOptions()
        if timeout_s is not None:
            found = replace(found, timeout_s=timeout_s)
        if tls is not None:
            found = replace(found, tls=tls)
        listed = [endpoints] if isinstance(endpoints, str) else list(endpoints)
        if not listed:
            raise InvalidArgument("a client needs an endpoint", reason="ENDPOINT_INVALID")
        self._attach(
            Connection(map(parse_endpoint, listed), found), Scope(timeout_s=found.timeout_s)
        )

    def _attach(self, connection: Connection, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope
        self._kv = AsyncKV(connection, scope)
        self._ts = AsyncTimeSeries(connection, scope)
        self._log = AsyncLog(connection, scope)
        self._admin = AsyncAdmin(connection, scope)

    @property
    def kv(self) -> AsyncKV:
        """Keys: read, write, scan, transactions, documents, leases and locks."""
        return self._kv

    @property
    def ts(self) -> AsyncTimeSeries:
        """Time series: write and query points, downsampling rules."""
        return self._ts

    @property
    def log(self) -> AsyncLog:
        """The log and snapshots as they are stored, for bulk readers."""
        return self._log

    @property
    def admin(self) -> AsyncAdmin:
        """Operations on the cluster: status, members, leadership, snapshots, namespaces, holds."""
        return self._admin

    def queue(self, name: str) -> AsyncQueue:
        """Return the queue with this name; makes no call to the server."""
        return AsyncQueue(self._connection, self._scope, name)

    def stream(self, name: str) -> AsyncStream:
        """Return the stream with this name; makes no call to the server."""
        return AsyncStream(self._connection, self._scope, name)

    async def queues(
        self, prefix: str = "", *, routing_key: Key = b"", read: Read | None = None
    ) -> AsyncIterator[QueueInfo]:
        """Yield the queues whose name begins with ``prefix``.

        With ``routing_key`` only those in its shard. A read with an index (``min_index``,
        ``as_of_index``) needs one, because an index belongs to one shard.
        """
        request = queue_pb2.ListQueuesRequest(
            namespace=self._scope.namespace, prefix=prefix, routing_key=to_bytes(routing_key)
        )
        pages = self._connection.pages("Queue/ListQueues", request, self._scope.timeout_s, read)
        async for page in pages:
            for each in page.queues:
                yield to_queue_info(each)

    async def streams(
        self, prefix: str = "", *, routing_key: Key = b"", read: Read | None = None
    ) -> AsyncIterator[StreamInfo]:
        """Yield the streams whose name begins with ``prefix``.

        With ``routing_key`` only those in its shard. A read with an index (``min_index``,
        ``as_of_index``) needs one, because an index belongs to one shard.
        """
        request = stream_pb2.ListStreamsRequest(
            namespace=self._scope.namespace, prefix=prefix, routing_key=to_bytes(routing_key)
        )
        pages = self._connection.pages("Stream/ListStreams", request, self._scope.timeout_s, read)
        async for page in pages:
            for each in page.streams:
                yield to_stream_info(each)

    def transact(self) -> AsyncBatch:
        """Begin an atomic batch over all models: all of it takes effect, or nothing.

        Names must be in one shard, as those with the same ``{tag}`` are.
        """
        return AsyncBatch(self._connection, self._scope)

    def watch(
        self,
        *watched: Watched,
        cursor: bytes | None = None,
        from_start: bool = False,
        with_previous: bool = False,
        progress_s: float = 0.0,
    ) -> AsyncWatch:
        """Return an iterator over events: what changed, in the order of each shard's log.

        ``watched`` says which models and names of this namespace; without it the watch covers
        everything in all namespaces. It begins now, after the ``cursor`` of an earlier watch, or
        with ``from_start`` at the first entry, or, if that is not kept, behind the oldest kept
        snapshot. ``with_previous`` adds the value that a key had before. ``progress_s`` is how
        often the cursor advances without events.
        """
        return AsyncWatch(
            self._connection,
            self._scope,
            watched,
            cursor=cursor,
            from_start=from_start,
            with_previous=with_previous,
            progress_s=progress_s,
        )

    def tail(
        self,
        *streams: str,
        from_start: bool = False,
        from_ns: Time = 0,
        only: RecordFilter | None = None,
        cursor: bytes | None = None,
    ) -> AsyncTail:
        """Return an iterator over the records of any of these streams as they are appended.

        It begins with new records, with ``from_start`` at the first that are kept, or at a time.
        With ``cursor`` it continues where an earlier tail of the same streams stopped.
        """
        if from_start and from_ns:
            raise InvalidArgument("from the start, or from a time", reason="START_INVALID")
        start_ns = to_nanoseconds(from_ns, "from_ns")
        starts = [stream_pb2.TailStart(stream=name, from_ns=start_ns) for name in streams]
        for start in starts if from_start else ():
            start.from_offset = 0
        return AsyncTail(self._connection, self._scope, starts, only, cursor)

    def namespace(self, name: str) -> Self:
        """Return a view of this client whose calls use another namespace."""
        to_bytes(name)  # refuses a name that cannot be sent, before any call uses it
        return self._view(replace(self._scope, namespace=name))

    def scoped(
        self, *, timeout_s: float | None = None, durability: Durability | None = None
    ) -> Self:
        """Return a view of this client with another timeout or durability.

        With the durability ``async`` a put, an enqueue, an append or a write of points returns when
        a majority has received it, and may be lost if a majority loses power at once. Such writes
        have no session: if the outcome is not known, OutcomeUnknown is raised. A write of data
        whose answer needs its result (a delete, a counter, a condition, a transaction) is refused
        with ASYNC_NEEDS_RESULT; with ``prefer-async`` it is sync. Leases, settling messages and
        records, and settings are always sync.
        """
        scope = self._scope
        if timeout_s is not None:
            scope = replace(scope, timeout_s=timeout_s)
        if durability is not None:
            scope = replace(scope, durability=durability)
        return self._view(scope)

    async def connect(self, *, refused_s: float | None = None) -> None:
        """Connect now instead of on the first call.

        While no endpoint accepts a connection it tries again, since a server may be starting: for
        ``refused_s``, or a fifth of the timeout.
        """
        await self._connection.ready(self._scope.timeout_s, refused_s)

    async def ping(self, *, endpoint: str | None = None) -> float:
        """Ask a node for an answer and return how long that took, in seconds.

        ``endpoint`` says which node; without it, any. Connecting is not counted.
        """
        await self.connect()
        began_s = monotonic()
        await self._connection.calls.unary(
            "Admin/GetTopology",
            admin_pb2.GetTopologyRequest(),
            timeout_s=self._scope.timeout_s,
            route=to_route(endpoint),
            is_repeatable=True,
        )
        return monotonic() - began_s

    async def call(self, method: str, request: Any, *, shard: int | None = None) -> Any:
        """Make one call of the API by its name, such as ``Pipeline/ExecuteOnce``; for the unusual.

        Request and answer are protobuf messages. It goes to the leader of ``shard``, or to any
        node. It is repeated only if the server says that nothing was done, since the request may
        write and has only the session that it names itself. Calls with streams are not made here.
        """
        known = UNARY.get(method)
        if known is None or not isinstance(request, known):
            what = "is no call with one answer" if known is None else f"takes a {known.__name__}"
            raise InvalidArgument(f"{method} {what}", reason="TYPE_INVALID")
        await self.connect()
        calls, timeout_s = self._connection.calls, self._scope.timeout_s
        return await calls.unary(method, request, timeout_s=timeout_s, shard=shard)

    async def close(self) -> None:
        """Close all connections; calls under way fail with CLIENT_CLOSED."""
        await self._connection.close()

    def __repr__(self) -> str:
        namespace = self._scope.namespace
        shown = ", ".join(map(repr, self._connection.topology.endpoints()))
        return f"AsyncClient({shown}{f', namespace={namespace!r}' if namespace else ''})"

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _view(self, scope: Scope) -> Self:
        view = object.__new__(type(self))
        view._attach(self._connection, scope)
        return view
