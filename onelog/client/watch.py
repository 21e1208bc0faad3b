"""One watch over all models: ``client.watch()``.

Events arrive once and in the order of each shard's log, across reconnects and leader changes. After
each event ``cursor`` is where to continue; another process can store it and continue there.

The server sends a cursor with each answer: everything up to it was sent. But a user may stop in the
middle of an answer. So a ``ResumePoint`` is the cursor of the previous answer, and for each shard
the number of its events taken since; a reader that resumes there skips that many. The order within
a shard is always the same, so no event is lost or repeated.
"""

import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onelog.client.connection import Connection
from onelog.client.options import Scope
from onelog.client.pages import Pages
from onelog.client.tables import Row
from onelog.client.timeseries import SeriesData, to_series_data
from onelog.client.validation import check_fields, refuse_unsendable
from onelog.client.values import Item, Key, Record, milliseconds, to_bytes, to_item, to_record
from onelog.errors import InvalidArgument, OutOfRange
from onelog.v1 import admin_pb2, common_pb2, log_pb2, pipeline_pb2

# Version, number of shards; then of each shard its number and how many to skip; then the cursor.
_HEAD = struct.Struct("<BH")
_SKIP = struct.Struct("<IQ")
_VERSION = 1


def token_at(indexes: Mapping[int, int]) -> bytes:
    """Return the token that continues after an index of each shard; 0: from the oldest entry."""
    point = ResumePoint()
    positions = [common_pb2.Position(shard=shard, index=at) for shard, at in indexes.items()]
    point.arrive(common_pb2.Cursor(positions=positions))
    return point.token()


class ResumePoint:
    """The position of a reader of several shards: a server's cursor, and events taken since."""

    def __init__(self, token: bytes | None = None) -> None:
        self._cursor = common_pb2.Cursor()
        self._taken: dict[int, int] = {}
        self._skip: dict[int, int] = {}
        if token is not None:
            self._read(token)

    def reopen(self, cursor: common_pb2.Cursor) -> None:
        """Fill in the cursor of a request that continues here."""
        cursor.CopyFrom(self._cursor)
        # The server repeats everything after its cursor.
        self._skip = dict(self._taken)

    def is_repeated(self, shard: int) -> bool:
        """Return whether the next event of a shard was taken before, and count it."""
        left = self._skip.get(shard, 0)
        if left:
            self._skip[shard] = left - 1
        return left > 0

    def take(self, shard: int) -> None:
        """Take an event of a shard that is not a repeated one."""
        self._taken[shard] = self._taken.get(shard, 0) + 1

    def arrive(self, cursor: common_pb2.Cursor) -> None:
        """Advance to the cursor of an answer whose events were all taken."""
        if cursor.positions:
            self._cursor.CopyFrom(cursor)
            # Events taken before the stream broke and not repeated yet are after this cursor.
            self._taken = {shard: left for shard, left in self._skip.items() if left}

    def token(self) -> bytes:
        """Return the position as bytes, to be stored."""
        taken = sorted(self._taken.items())
        skips = b"".join(_SKIP.pack(shard, count) for shard, count in taken)
        cursor: bytes = self._cursor.SerializeToString()
        return _HEAD.pack(_VERSION, len(taken)) + skips + cursor

    def _read(self, token: bytes) -> None:
        try:
            version, count = _HEAD.unpack_from(token)
            end = _HEAD.size + count * _SKIP.size
            self._taken = dict(_SKIP.iter_unpack(token[_HEAD.size : end]))
            self._cursor = common_pb2.Cursor.FromString(token[end:])
        except (struct.error, DecodeError) as error:
            raise InvalidArgument("this is no cursor", reason="CURSOR_INVALID") from error
        if version != _VERSION or len(self._taken) != count:
            raise InvalidArgument("this is no cursor", reason="CURSOR_INVALID")
        self._skip = dict(self._taken)


# Watch

# A node may drop its oldest entries after it was asked for them and before the watch begins.
START_TRIES = 5

Model = Literal["kv", "queue", "stream", "ts"]

_OWNERS: dict[Model, log_pb2.Owner] = {
    "kv": log_pb2.OWNER_KV,
    "queue": log_pb2.OWNER_QUEUE,
    "stream": log_pb2.OWNER_STREAM,
    "ts": log_pb2.OWNER_TIME_SERIES,
}


@dataclass(frozen=True, slots=True)
class Watched:
    """What to watch: all of a model, one name, or the names with a prefix."""

    model: Model
    name: Key | None = None
    prefix: Key | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.model not in _OWNERS:
            what = f"model is {self.model!r}; it must be kv, queue, stream or ts"
            raise InvalidArgument(what, reason="MODEL_INVALID")


@dataclass(frozen=True, slots=True)
class Event(Row):
    """A change: ``kind`` says what happened to ``name`` in ``model``.

    Kinds of kv are put, deleted, expired; the others are those of the protos in lower case.
    """

    model: Model
    kind: str
    name: bytes
    namespace: str
    shard: int
    index: int
    timestamp_ns: int

    # For kv: the key after the change, and before it if the watch asked for that.
    item: Item | None = None
    previous: Item | None = None

    # For a queue, a stream, a measurement.
    message_ids: tuple[int, ...] = ()
    record: Record | None = None
    points: tuple[SeriesData, ...] = field(default=())


@refuse_unsendable
class AsyncWatch(Pages[Event]):
    """An iterator over events. Ends when it is closed, or at the end of ``with``."""

    def __init__(
        self,
        connection: Connection,
        scope: Scope,
        watched: tuple[Watched, ...],
        *,
        cursor: bytes | None,
        from_start: bool,
        with_previous: bool,
        progress_s: float,
    ) -> None:
        if from_start and cursor is not None:
            raise InvalidArgument("a cursor, or from the start", reason="CURSOR_INVALID")
        super().__init__()
        self._connection = connection
        self._from_start = from_start
        self._scope = scope
        self._point = ResumePoint(cursor)
        self._request = pipeline_pb2.WatchRequest(
            with_previous=with_previous, progress_ms=milliseconds(progress_s)
        )
        for each in watched:
            added = self._request.filters.add(namespace=scope.namespace, owner=_OWNERS[each.model])
            if each.prefix is not None:
                added.name, added.is_prefix = to_bytes(each.prefix), True
            elif each.name is not None:
                added.name = to_bytes(each.name)

    @property
    def cursor(self) -> bytes:
        """Where to continue after the last event: pass it to another watch."""
        return self._point.token()

    def _take(self) -> Event:
        """Take the next event of the page; IndexError if there is none."""
        event = self._page.popleft()
        self._point.take(event.shard)
        return to_event(event)

    async def _run(self) -> AsyncGenerator[None, None]:
        """Yield when the watch has begun, then after each page."""
        await self._connection.ready(self._scope.timeout_s)
        for tries_left in reversed(range(START_TRIES)):
            target = await self._find_start() if self._from_start else None
            has_begun = False
            try:
                async with aclosing(self._follow(target)) as pages:
                    async for _ in pages:
                        has_begun = True
                        yield
            except OutOfRange:
                # The node dropped its oldest entries meanwhile; another node keeps others.
                if has_begun or not self._from_start or not tries_left:
                    raise
            else:
                return

    async def _find_start(self) -> str:
        """Set the position to the oldest entries that a node can replay; return its endpoint."""
        connection = self._connection
        target = connection.topology.any_endpoint()
        status = await connection.calls.unary(
            "Admin/GetStatus",
            admin_pb2.GetStatusRequest(),
            timeout_s=self._scope.timeout_s,
            route=lambda: target,
            is_repeatable=True,
        )
        # A log that is still complete replays from its first entry, else from the oldest snapshot.
        kept = {
            each.shard: each.snapshots.first_as_of_index if each.first_index > 1 else 0
            for each in status.shards
        }
        shards = range(connection.topology.shard_count)
        self._point = ResumePoint(token_at({shard: kept.get(shard, 0) for shard in shards}))
        return target

    async def _follow(self, first: str | None) -> AsyncGenerator[None, None]:
        connection, point = self._connection, self._point

        def request() -> pipeline_pb2.WatchRequest:
            point.reopen(self._request.cursor)
            return self._request

        def route() -> str:
            nonlocal first
            chosen, first = first, None
            return chosen or connection.topology.any_endpoint()

        answers = connection.calls.stream(
            "Pipeline/Watch", request, timeout_s=self._scope.timeout_s, route=route
        )
        has_begun = False
        async with aclosing(answers):
            async for answer in answers:
                if not has_begun:
                    has_begun = True
                    if not answer.events:  # it only says where the watch begins
                        point.arrive(answer.cursor)
                    yield
                self._page.extend(
                    event for event in answer.events if not point.is_repeated(event.shard)
                )
                yield
                point.arrive(answer.cursor)


def to_event(event: pipeline_pb2.Event) -> Event:
    """Convert an event from protobuf."""
    place = (event.namespace, event.shard, event.index, event.timestamp_ns)
    match event.WhichOneof("event"):
        case "key":
            key = event.key
            item = to_item(key.item) if key.HasField("item") else None
            previous = to_item(key.previous) if key.HasField("previous") else None
            kind = "put" if item is not None else "expired" if key.expired else "deleted"
            return Event("kv", kind, key.key, *place, item=item, previous=previous)
        case "queue":
            queue = event.queue
            kind = _kind(pipeline_pb2.QueueEvent.Kind, queue.kind)
            ids = tuple(queue.message_ids)
            return Event("queue", kind, queue.queue.encode(), *place, message_ids=ids)
        case "stream":
            stream = event.stream
            kind = _kind(pipeline_pb2.StreamEvent.Kind, stream.kind)
            record = to_record(stream.record, Record) if stream.HasField("record") else None
            return Event("stream", kind, stream.stream.encode(), *place, record=record)
        case _:
            series = event.series
            kind = _kind(pipeline_pb2.SeriesEvent.Kind, series.kind)
            points = tuple(to_series_data(series.points))
            return Event("ts", kind, series.measurement.encode(), *place, points=points)


def _kind(enum: Any, value: int) -> str:
    name: str = enum.Name(value)
    return name.lower()
