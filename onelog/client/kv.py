"""Keys: ``client.kv``.

Some things need several calls and are objects: ``json(key)`` is a JSON document, read and changed
in parts; ``txn()`` a transaction; ``lease()`` a lifetime that keys share; ``lock()`` a lock.

The client's own CPU time (bench/client.py, 100-byte values): ``put`` from 64
tasks 7.6 us an operation, from 256 tasks 4.7 us; ``get`` from 256 tasks 4.3 us; ``put_many``
0.9 us. From one task a put takes 120 us and a get 80, with uvloop 70 and 45: each is one write and
one read of the socket.
"""

import json
from asyncio import Future, Semaphore, ensure_future
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from typing import Any

from onelog.client import values as fill
from onelog.client.batch import GET, KEYS_MAX, PUT, PUT_WITH, SINGLE, Single, gather_results
from onelog.client.connection import Connection
from onelog.client.lanes import WriteLane
from onelog.client.leases import AsyncLease, AsyncLock
from onelog.client.options import Scope
from onelog.client.tables import Rows
from onelog.client.transactions import AsyncTxn
from onelog.client.validation import (
    UNSENDABLE,
    check_element,
    checks_itself,
    explain_element,
    refuse,
    refuse_unsendable,
)
from onelog.client.values import (
    ASYNC,
    Item,
    Key,
    Path,
    Read,
    Value,
    Version,
    positive_ms,
    to_bytes,
    to_item,
)
from onelog.v1 import kv_pb2, pipeline_pb2


@refuse_unsendable
class AsyncDocument:
    """A JSON document in a key, read and changed in parts.

    A path is a member name, an element number, or a sequence of these; () is the whole document.
    """

    def __init__(self, connection: Connection, scope: Scope, key: Key) -> None:
        self._connection = connection
        self._scope = scope
        self._key = to_bytes(key)

    async def get(self, path: Path = (), *, read: Read | None = None) -> Any:
        """Return a part of the document; None if the key does not exist."""
        request = kv_pb2.GetJsonRequest(namespace=self._scope.namespace, key=self._key)
        fill.fill_path(request.path, path)
        if read is not None:
            read.fill(request.options)
        answer = await self._connection.call_read(
            "KV/GetJson",
            request,
            self._scope.timeout_s,
            name=self._key,
            is_stale=read is not None and read.stale,
        )
        return json.loads(answer.json) if answer.HasField("json") else None

    async def set(self, path: Path, value: Any, *, create_parents: bool = True) -> int:
        """Set a part of the document and return the key's new version."""
        request = kv_pb2.SetJsonRequest()
        fill.fill_set_json(request, self._key, path, value, create_parents=create_parents)
        return await self._change(request)

    async def delete(self, path: Path) -> int:
        """Delete a part of the document and return the key's new version."""
        request = kv_pb2.SetJsonRequest()
        fill.fill_delete_json(request, self._key, path)
        return await self._change(request)

    async def _change(self, request: kv_pb2.SetJsonRequest) -> int:
        self._scope.need_result("a change of a document")
        request.namespace = self._scope.namespace
        version: int = await self._connection.write(
            self._key,
            len(self._key),
            self._scope.timeout_s,
            lambda operation: operation.set_json.CopyFrom(request),
            lambda result: result.set_json.header.index,
        )
        return version


# Keys

# Slow reads (see ``Read.takes_long``) of one ``get_many`` that are under way at the same time.
LONG_READS_MAX = 32
# Bytes that ``put_many`` writes with one operation.
PART_BYTES_MAX = 256 << 10


@refuse_unsendable
class AsyncKV:
    """Keys with versions, lifetimes, leases, counters and documents."""

    def __init__(self, connection: Connection, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope
        self._namespace = scope.namespace
        self._timeout_s = scope.timeout_s
        self._is_async = scope.is_early
        self._lane_of = connection.early_lane if self._is_async else connection.write_lane

    # One key

    @checks_itself
    async def put(
        self,
        key: Key,
        value: Value,
        *,
        ttl_s: float | None = None,
        lease: AsyncLease | int = 0,
        expected_version: int | None = None,
    ) -> int:
        """Write a key and return its new version.

        The key expires after ``ttl_s``, or with its ``lease``. With ``expected_version`` it is
        written only if that is its version (else ConditionFailed); 0: only if the key does not
        exist (else AlreadyExists).
        """
        try:
            key = key.encode() if isinstance(key, str) else key
            value = value.encode() if isinstance(value, str) else value
            lane = self._lane_of(key)
            if lane is None:
                await self._connection.ready(self._timeout_s)
                lane = self._lane_of(key)
                assert lane is not None
            size = len(key) + len(value)
            if (
                ttl_s is not None
                or lease
                or expected_version is not None
                or self._is_async
                or type(key) is not bytes
                or type(value) is not bytes
            ):
                lease_id = lease if isinstance(lease, int) else lease.lease_id
                put = to_bytes(key), to_bytes(value), ttl_s, lease_id, expected_version
                is_early = self._is_async
                if is_early and (lease_id or expected_version is not None):
                    self._scope.need_result("a put with an expected version or a lease")
                    is_early, lane = False, self._connection.write_lane(put[0])
                    assert lane is not None
                target = self._namespace, is_early
                answer = lane.call(PUT_WITH, target, put, size, self._timeout_s)
            else:
                pairs = (key,), (value,)
                answer = lane.call(PUT, self._namespace, pairs, size, self._timeout_s)
            version: int = await answer
        except UNSENDABLE as error:
            refuse(error, AsyncKV.put, locals())
            raise
        return version

    async def put_many(
        self,
        items: Mapping[str, Value] | Mapping[bytes, Value] | Iterable[tuple[Key, Value]],
        *,
        ttl_s: float | None = None,
    ) -> list[int]:
        """Write many keys and return their versions in the same order.

        Keys of one shard are written together, up to 1,000 keys or 256 KiB at a time: all of these
        with one version, or none. If a key is given twice, the last value counts. All keys are
        tried; if some fail, the first error is raised, with a note of how many failed.
        """
        ttl_ms, lane_of = positive_ms(ttl_s), self._lane_of
        connection = self._connection
        if not connection.is_clear:
            await connection.ready(self._timeout_s)
        options = connection.options
        keys_max = min(KEYS_MAX, options.batch_operations_max)
        size_max = min(PART_BYTES_MAX, options.batch_bytes_max)
        parts: dict[WriteLane, _Part] = {}
        answers: list[Future[Any]] = []
        sent: list[_Part] = []
        places: list[_Part] = []
        failed = 0
        for pair in items.items() if isinstance(items, Mapping) else items:
            # Inlined for speed: 0.55 us for a key, 0.73 with three function calls.
            try:
                if type(pair) is not tuple:
                    check_element(AsyncKV.put_many, "items", len(places) + failed, pair)
                key, value = pair
                name = key if type(key) is bytes else to_bytes(key)
                data = value if type(value) is bytes else to_bytes(value)
            except UNSENDABLE as error:
                at = len(places) + failed
                wrong = explain_element(error, AsyncKV.put_many, "items", at, pair)
                answers.append(connection.make_failed(wrong))
                sent.append(_Part())
                failed += 1
                continue
            lane = lane_of(name)
            if lane is None:
                await self._connection.ready(self._timeout_s)
                lane = lane_of(name)
                assert lane is not None
            part = parts.get(lane)
            size = len(name) + len(data)
            if part is None or len(part.keys) >= keys_max or part.size + size > size_max:
                if part is not None:
                    answers.append(self._put_part(lane, part, ttl_ms))
                    sent.append(part)
                part = parts[lane] = _Part()
            part.keys.append(name)
            part.values.append(data)
            part.size += size
            places.append(part)
        for lane, part in parts.items():
            answers.append(self._put_part(lane, part, ttl_ms))
            sent.append(part)
        for part, version in zip(sent, await gather_results(answers), strict=True):
            part.version = version
        return [part.version for part in places]

    def _put_part(self, lane: WriteLane, part: "_Part", ttl_ms: int) -> Future[Any]:
        keys, values, namespace = part.keys, part.values, self._namespace
        part.keys, part.values = [], []  # the lane owns the old lists until they are sent
        if not ttl_ms and not self._is_async:
            pairs = keys, values
            return lane.call(PUT, namespace, pairs, part.size, self._timeout_s, len(keys))

        def build(operation: pipeline_pb2.Operation) -> None:
            put = operation.batch_put
            put.namespace, put.ttl_ms = namespace, ttl_ms
            put.keys.extend(keys)
            put.values.extend(values)
            if self._is_async:
                put.options.durability = ASYNC

        single = Single(build, lambda result: result.batch_put.header.index, keys)
        return lane.call(SINGLE, namespace, single, part.size, self._timeout_s, len(keys))

    @checks_itself
    async def get(self, key: Key, *, read: Read | None = None) -> Item | None:
        """Return a key, or None if it does not exist."""
        item: Item | None
        try:
            name = key if type(key) is bytes else to_bytes(key)
            if read is not None and read.takes_long:
                item = await self._get_apart(name, read)
                return item
            if not self._connection.is_clear:
                await self._connection.ready(self._timeout_s)
            item = await self._get_soon(name, read)
        except UNSENDABLE as error:
            refuse(error, AsyncKV.get, locals())
            raise
        return item

    async def get_many(self, keys: Iterable[Key], *, read: Read | None = None) -> Rows[Item | None]:
        """Return many keys in the same order; None where one does not exist."""
        if read is not None and read.takes_long:
            return await self._get_many_apart(map(to_bytes, keys), read)
        connection = self._connection
        answers = []
        for key in keys:
            if not connection.is_clear:
                await connection.ready(self._timeout_s)
            answers.append(self._get_soon(to_bytes(key), read))
        return await gather_results(answers, "keys")

    async def exists(self, key: Key, *, read: Read | None = None) -> bool:
        """Return whether a key exists."""
        return await self.get(key, read=read) is not None

    async def delete(self, key: Key, *, expected_version: int | None = None) -> bool:
        """Delete a key; return whether it existed.

        With ``expected_version`` it is deleted only if that is its version (else ConditionFailed).
        """

        def build(operation: pipeline_pb2.Operation) -> None:
            fill.fill_delete(operation.delete, key, expected_version)
            self._fill_scope(operation.delete)

        deleted: bool = await self._write(key, 0, build, lambda result: result.delete.deleted)
        return deleted

    async def touch(
        self, key: Key, ttl_s: float | None, *, expected_version: int | None = None
    ) -> int:
        """Make a key expire ``ttl_s`` from now (None: never); return its version, which stays."""

        def build(operation: pipeline_pb2.Operation) -> None:
            fill.fill_touch(operation.touch, key, ttl_s, expected_version)
            self._fill_scope(operation.touch)

        version: int = await self._write(key, 0, build, lambda result: result.touch.version)
        return version

    async def increment(self, key: Key, by: int = 1) -> int:
        """Add to a number and return the new value; a missing key counts as 0."""
        return await self._count(key, add=by)

    async def lower_to(self, key: Key, limit: int) -> int:
        """Lower a number to ``limit`` if it is above it; return the new value."""
        return await self._count(key, lower_to=limit)

    async def raise_to(self, key: Key, limit: int) -> int:
        """Raise a number to ``limit`` if it is below it; return the new value."""
        return await self._count(key, raise_to=limit)

    async def append(self, key: Key, data: Value) -> int:
        """Append bytes to a value and return its new size."""

        def build(operation: pipeline_pb2.Operation) -> None:
            fill.fill_append(operation.append, key, data)
            self._fill_scope(operation.append)

        size: int = await self._write(key, len(data), build, lambda result: result.append.size)
        return size

    async def history(self, key: Key, *, read: Read | None = None) -> Rows[Version]:
        """Return the versions of a key that are kept, newest first."""
        name = to_bytes(key)
        request = kv_pb2.GetHistoryRequest(namespace=self._namespace, key=name)
        if read is not None:
            read.fill(request.options)
        answer = await self._connection.call_read(
            "KV/GetHistory",
            request,
            self._timeout_s,
            name=name,
            is_stale=read is not None and read.stale,
        )
        return Rows(
            Version(each.version, each.value if each.HasField("value") else None, each.expired)
            for each in answer.versions
        )

    # Several keys

    async def scan(
        self,
        prefix: Key | None = None,
        *,
        start: Key | None = None,
        end: Key | None = None,
        limit: int = 0,
        reverse: bool = False,
        keys_only: bool = False,
        routing_key: Key = b"",
        read: Read | None = None,
    ) -> AsyncIterator[Item]:
        """Yield keys in order: those with a prefix, or from ``start`` to before ``end``.

        Pages are fetched as the caller needs them; after a broken connection the scan resumes. With
        ``routing_key`` only keys in its shard, and then all from one state unless it had to resume.
        """
        request = kv_pb2.ListRequest(
            namespace=self._namespace,
            limit=limit,
            reverse=reverse,
            keys_only=keys_only,
            routing_key=to_bytes(routing_key),
        )
        fill.fill_range(request.range, prefix, start, end)
        if read is not None:
            read.fill(request.options)
        connection, topology = self._connection, self._connection.topology
        await connection.ready(self._timeout_s)
        shard = topology.find_shard(request.routing_key) if request.routing_key else None

        def route() -> str:
            if shard is None:
                return topology.any_endpoint()
            is_stale = read is not None and read.stale
            return topology.find_replica(shard) if is_stale else topology.find_endpoint(shard)

        count = 0
        pages = connection.calls.stream(
            "KV/Scan", lambda: request, timeout_s=self._timeout_s, route=route, shard=shard
        )
        async with aclosing(pages):
            async for page in pages:
                # Where to resume if the stream breaks before the next page.
                request.page_token = page.next_page_token
                for item in page.items:
                    count += 1
                    if limit:
                        request.limit = limit - count
                    yield to_item(item)
                if not page.next_page_token or (limit and count >= limit):
                    return

    async def delete_range(
        self,
        prefix: Key | None = None,
        *,
        start: Key | None = None,
        end: Key | None = None,
        routing_key: Key = b"",
    ) -> int:
        """Delete all keys of a range, some thousands at a time; return how many were deleted."""
        self._scope.need_result("a delete")
        request = kv_pb2.DeleteRangeRequest(
            namespace=self._namespace, routing_key=to_bytes(routing_key)
        )
        fill.fill_range(request.range, prefix, start, end)
        connection, count, has_more = self._connection, 0, True
        while has_more:
            if request.routing_key:
                answer = await connection.call_write(
                    "KV/DeleteRange", request, self._timeout_s, name=request.routing_key
                )
            else:
                await connection.ready(self._timeout_s)
                answer = await connection.calls.unary(
                    "KV/DeleteRange", request, timeout_s=self._timeout_s
                )
            count += answer.deleted_count
            has_more = answer.has_more
        return count

    # Objects that make several calls

    def json(self, key: Key) -> AsyncDocument:
        """Return the JSON document in a key; makes no call to the server."""
        return AsyncDocument(self._connection, self._scope, key)

    def txn(self) -> AsyncTxn:
        """Begin a transaction: if all conditions hold one list of operations, else another."""
        return AsyncTxn(self._connection, self._scope)

    async def lease(self, ttl_s: float, *, key: Key) -> AsyncLease:
        """Grant a lease for keys in the shard of ``key``; they are deleted when it ends."""
        return await AsyncLease.grant(self._connection, self._scope, ttl_s, key)

    async def find_lease(self, lease_id: int, *, key: Key) -> AsyncLease:
        """Return a lease that another process was granted for ``key``; LeaseLost if it has ended.

        ``is_lost`` is true until the first ``keep``: before that this client cannot tell how long
        the lease lasts.
        """
        return await AsyncLease.find(self._connection, self._scope, lease_id, key)

    def lock(self, name: Key, *, ttl_s: float = 10.0) -> AsyncLock:
        """Return a lock that all clients share; its holder renews it within ``ttl_s``."""
        return AsyncLock(self._connection, self._scope, name, ttl_s)

    # Parts

    async def _count(self, key: Key, **change: int) -> int:
        def build(operation: pipeline_pb2.Operation) -> None:
            fill.fill_count(operation.count, key, **change)
            self._fill_scope(operation.count)

        number: int = await self._write(key, 0, build, lambda result: result.count.number)
        return number

    async def _write(self, key: Key, size: int, build: Any, decode: Any) -> Any:
        self._scope.need_result("a write that depends on what is there")
        name = to_bytes(key)
        size += len(name)
        return await self._connection.write(name, size, self._timeout_s, build, decode)

    async def _get_apart(self, name: bytes, read: Read) -> Any:
        """Read a key with a unary call: in a pipeline message others would wait for it."""
        request = kv_pb2.GetRequest(namespace=self._namespace, key=name)
        read.fill(request.options)
        answer = await self._connection.call_read(
            "KV/Get", request, self._timeout_s, name=name, is_stale=read.stale
        )
        return to_item(answer.item) if answer.HasField("item") else None

    async def _get_many_apart(self, names: Iterable[bytes], read: Read) -> Rows[Any]:
        room = Semaphore(LONG_READS_MAX)

        async def get(name: bytes) -> Any:
            async with room:
                return await self._get_apart(name, read)

        return await gather_results([ensure_future(get(name)) for name in names])

    def _get_soon(self, name: bytes, read: Read | None) -> Future[Any]:
        connection = self._connection
        topology = connection.topology
        shard = topology.find_shard(name)
        is_stale = read is not None and read.stale
        endpoint = topology.find_replica(shard) if is_stale else topology.find_endpoint(shard)
        payload = self._namespace, name, read
        lane = connection.read_lane(endpoint)
        return lane.call(GET, shard, payload, len(name), self._timeout_s)

    def _fill_scope(self, request: Any) -> None:
        if self._namespace:
            request.namespace = self._namespace


class _Part:
    """Keys of ``put_many`` that are written with one operation."""

    __slots__ = ("keys", "size", "values", "version")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.size = 0  # bytes of keys and values together
        self.version = 0
