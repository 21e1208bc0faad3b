"""``onelog/client/client.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from collections.abc import Iterator, Sequence
from typing import Self

from onelog.client.blocking import Facade, LoopThread
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
from onelog.client.values import Key, QueueInfo, Read, StreamInfo
from onelog.client.watch import Watched


class Client(Facade):
    """A database, as programs see it.

    It connects with its first call. An async client belongs to the loop of that call; a blocking
    one may be used from many threads. Views made with ``namespace`` and ``scoped`` share its
    connections; closing one closes all. A client does not survive ``fork``: make one in each
    process.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        timeout_s: float | None = None,
        token: str | None = None,
        tls: Tls | None = None,
        options: ClientOptions | None = None,
    ) -> None:
        """Endpoints are ``host:port``, one or several; ``options`` has all that can be set."""
        super().__init__(
            AsyncClient(endpoints, timeout_s=timeout_s, token=token, tls=tls, options=options),
            LoopThread(),
        )

    @property
    def kv(self) -> "KV":
        """Keys."""
        return KV(self._core.kv, self._thread)

    @property
    def ts(self) -> "TimeSeries":
        """Time series."""
        return TimeSeries(self._core.ts, self._thread)

    @property
    def log(self) -> "Log":
        """The log and snapshots as they are stored."""
        return Log(self._core.log, self._thread)

    @property
    def admin(self) -> "Admin":
        """What operators ask."""
        return Admin(self._core.admin, self._thread)

    def queue(self, name: str) -> "Queue":
        """Return a queue."""
        return Queue(self._core.queue(name), self._thread)

    def stream(self, name: str) -> "Stream":
        """Return a stream."""
        return Stream(self._core.stream(name), self._thread)

    def queues(
        self, prefix: str = "", *, routing_key: Key = b"", read: Read | None = None
    ) -> Iterator[QueueInfo]:
        """Yield the queues whose name begins with ``prefix``.

        With ``routing_key`` only those of its shard. A read with an index needs it: one is of one
        shard.
        """
        return self._thread.iterate(self._core.queues(prefix, routing_key=routing_key, read=read))

    def streams(
        self, prefix: str = "", *, routing_key: Key = b"", read: Read | None = None
    ) -> Iterator[StreamInfo]:
        """Yield the streams whose name begins with ``prefix``, as ``queues`` does."""
        return self._thread.iterate(self._core.streams(prefix, routing_key=routing_key, read=read))

    def transact(self) -> "Batch":
        """Begin an atomic batch over all models."""
        return Batch(self._core.transact(), self._thread)

    def watch(
        self,
        *watched: Watched,
        cursor: bytes | None = None,
        from_start: bool = False,
        with_previous: bool = False,
        progress_s: float = 0.0,
    ) -> "Watch":
        """Return an iterator over what happens, in all models unless some are named.

        From now on, from the ``cursor`` of an earlier watch, or with ``from_start`` from the oldest
        entries that are kept. Without names it is all namespaces.
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

    def tail(self, *streams: str, cursor: bytes | None = None) -> "Tail":
        """Return an iterator over what is appended to any of several streams from now on."""
        return Tail(self._core.tail(*streams, cursor=cursor), self._thread)

    def namespace(self, name: str) -> Self:
        """Return a view of another namespace."""
        found: Self = self._same(self._core.namespace(name))
        return found

    def scoped(
        self, *, timeout_s: float | None = None, durability: Durability | None = None
    ) -> Self:
        """Return a view whose calls have another timeout, or whose writes are answered earlier.

        With ``async`` a put, an enqueue, an append or a write of points returns when a majority
        has received it, and may be lost if a majority loses power at once. Such writes have no
        session: one whose outcome is not known raises OutcomeUnknown. Others are as always.
        """
        found: Self = self._same(self._core.scoped(timeout_s=timeout_s, durability=durability))
        return found

    def connect(self) -> None:
        """Connect now instead of with the first call."""
        self._thread.run(self._core.connect())

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
