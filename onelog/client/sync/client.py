"""``onelog/client/client.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from collections.abc import Sequence
from typing import Any, Self

from onelog.client.blocking import Facade, Items, LoopThread
from onelog.client.client import AsyncClient
from onelog.client.options import DEFAULT_ENDPOINT, ClientOptions, Durability, Tls
from onelog.client.sync.admin import Admin
from onelog.client.sync.kv import KV
from onelog.client.sync.log import Log
from onelog.client.sync.queue import Queue
from onelog.client.sync.stream import Stream
from onelog.client.sync.tail import Tail
from onelog.client.sync.timeseries import TimeSeries
from onelog.client.sync.transactions import Batch
from onelog.client.sync.watch import Watch
from onelog.client.times import Time
from onelog.client.values import Key, QueueInfo, Read, RecordFilter, StreamInfo
from onelog.client.watch import Watched


class Client(Facade):
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
        super().__init__(
            AsyncClient(endpoints, timeout_s=timeout_s, tls=tls, options=options), LoopThread()
        )
        self._core._connection.thread = self._thread

    @property
    def kv(self) -> "KV":
        """Keys: read, write, scan, transactions, documents, leases and locks."""
        return KV(self._core.kv, self._thread)

    @property
    def ts(self) -> "TimeSeries":
        """Time series: write and query points, downsampling rules."""
        return TimeSeries(self._core.ts, self._thread)

    @property
    def log(self) -> "Log":
        """The log and snapshots as they are stored, for bulk readers."""
        return Log(self._core.log, self._thread)

    @property
    def admin(self) -> "Admin":
        """Operations on the cluster: status, members, leadership, snapshots, namespaces, holds."""
        return Admin(self._core.admin, self._thread)

    def queue(self, name: str) -> "Queue":
        """Return the queue with this name; makes no call to the server."""
        return Queue(self._core.queue(name), self._thread)

    def stream(self, name: str) -> "Stream":
        """Return the stream with this name; makes no call to the server."""
        return Stream(self._core.stream(name), self._thread)

    def queues(
        self, prefix: str = "", *, routing_key: Key = b"", read: Read | None = None
    ) -> Items[QueueInfo]:
        """Yield the queues whose name begins with ``prefix``.

        With ``routing_key`` only those in its shard. A read with an index (``min_index``,
        ``as_of_index``) needs one, because an index belongs to one shard.
        """
        return self._thread.iterate(self._core.queues(prefix, routing_key=routing_key, read=read))

    def streams(
        self, prefix: str = "", *, routing_key: Key = b"", read: Read | None = None
    ) -> Items[StreamInfo]:
        """Yield the streams whose name begins with ``prefix``.

        With ``routing_key`` only those in its shard. A read with an index (``min_index``,
        ``as_of_index``) needs one, because an index belongs to one shard.
        """
        return self._thread.iterate(self._core.streams(prefix, routing_key=routing_key, read=read))

    def transact(self) -> "Batch":
        """Begin an atomic batch over all models: all of it takes effect, or nothing.

        Names must be in one shard, as those with the same ``{tag}`` are.
        """
        return Batch(self._core.transact(), self._thread)

    def watch(
        self,
        *watched: Watched,
        cursor: bytes | None = None,
        from_start: bool = False,
        with_previous: bool = False,
        progress_s: float = 0.0,
    ) -> "Watch":
        """Return an iterator over events: what changed, in the order of each shard's log.

        ``watched`` says which models and names of this namespace; without it the watch covers
        everything in all namespaces. It begins now, after the ``cursor`` of an earlier watch, or
        with ``from_start`` at the first entry, or, if that is not kept, behind the oldest kept
        snapshot. ``with_previous`` adds the value that a key had before. ``progress_s`` is how
        often the cursor advances without events.
        """
        return Watch(
            self._core.watch(
                *watched,
                cursor=cursor,
                from_start=from_start,
                with_previous=with_previous,
                progress_s=progress_s,
            ),
            self._thread,
        )

    def tail(
        self,
        *streams: str,
        from_start: bool = False,
        from_ns: Time = 0,
        only: RecordFilter | None = None,
        cursor: bytes | None = None,
    ) -> "Tail":
        """Return an iterator over the records of any of these streams as they are appended.

        It begins with new records, with ``from_start`` at the first that are kept, or at a time.
        With ``cursor`` it continues where an earlier tail of the same streams stopped.
        """
        return Tail(
            self._core.tail(
                *streams, from_start=from_start, from_ns=from_ns, only=only, cursor=cursor
            ),
            self._thread,
        )

    def namespace(self, name: str) -> Self:
        """Return a view of this client whose calls use another namespace."""
        found: Self = self._same(self._core.namespace(name))
        return found

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
        found: Self = self._same(self._core.scoped(timeout_s=timeout_s, durability=durability))
        return found

    def connect(self, *, refused_s: float | None = None) -> None:
        """Connect now instead of on the first call.

        While no endpoint accepts a connection it tries again, since a server may be starting: for
        ``refused_s``, or a fifth of the timeout.
        """
        self._thread.run(self._core.connect(refused_s=refused_s))

    def ping(self, *, endpoint: str | None = None) -> float:
        """Ask a node for an answer and return how long that took, in seconds.

        ``endpoint`` says which node; without it, any. Connecting is not counted.
        """
        found: float = self._thread.run(self._core.ping(endpoint=endpoint))
        return found

    def call(self, method: str, request: Any, *, shard: int | None = None) -> Any:
        """Make one call of the API by its name, such as ``Pipeline/ExecuteOnce``; for the unusual.

        Request and answer are protobuf messages. It goes to the leader of ``shard``, or to any
        node. It is repeated only if the server says that nothing was done, since the request may
        write and has only the session that it names itself. Calls with streams are not made here.
        """
        found: Any = self._thread.run(self._core.call(method, request, shard=shard))
        return found

    def close(self) -> None:
        """Close all connections; calls under way fail with CLIENT_CLOSED."""
        if self._thread.is_closed:
            return
        try:
            self._thread.run(self._core.close())
        finally:
            self._thread.close()

    def __enter__(self) -> Self:
        self._thread.run(self._core.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
