"""Transactions over keys (``client.kv.txn``) and atomic batches over all models (``transact``).

Everything in either is in one shard (names with the same ``{tag}``), takes effect together or not
at all, and has one index in the log.

A transaction does one list of operations if all of its conditions hold, else another::

    txn = client.kv.txn()
    txn.when("balance{ann}", version=7)
    txn.then.put("balance{ann}", b"90")
    txn.otherwise.get("balance{ann}")
    result = await txn.commit()

A batch holds operations of any model, and is refused with ConditionFailed if a condition does not
hold. It is committed at the end of ``with``, unless an exception is raised there::

    async with client.transact() as batch:
        batch.when("order{7}", exists=False)
        batch.put("order{7}", b"...")
        batch.enqueue("mail{7}", b"...")
        batch.append_record("audit{7}", b"...")

Batches travel like other writes: those committed at the same time share one message, in the order
of the calls, and each succeeds or fails by itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from onelog.client import values as fill
from onelog.client.arrays import ArrayLike
from onelog.client.connection import Connection
from onelog.client.group import fill_offsets, fill_places, present_records
from onelog.client.options import Scope
from onelog.client.timeseries import to_points
from onelog.client.validation import UNSENDABLE, checks_itself, refuse, refuse_unsendable
from onelog.client.values import (
    Appended,
    Enqueued,
    Item,
    Key,
    Message,
    NewMessage,
    NewRecord,
    Path,
    Producer,
    Record,
    TxnResult,
    Value,
    Written,
    milliseconds,
    to_bytes,
    to_item,
    to_written,
)
from onelog.errors import FailedPrecondition, InvalidArgument
from onelog.routing import routing_keys
from onelog.v1 import kv_pb2, pipeline_pb2


@contextmanager
def added(messages: Any) -> Iterator[Any]:
    """Yield a new message of a list; take it back if it cannot be filled in."""
    message = messages.add()
    try:
        yield message
    except BaseException:
        del messages[-1]
        raise


@refuse_unsendable
class TxnBranch:
    """Operations that are carried out together; every method returns the branch, for chaining."""

    def __init__(self, operations: Any, names: list[bytes]) -> None:
        self._operations = operations
        self._names = names
        self._kinds: list[str] = []

    def get(self, key: Key) -> Self:
        """Read a key."""
        with self._adding("get", key) as operation:
            operation.get.key = to_bytes(key)
        return self

    def put(
        self,
        key: Key,
        value: Value,
        *,
        ttl_s: float | None = None,
        lease_id: int = 0,
        expected_version: int | None = None,
    ) -> Self:
        """Write a key."""
        with self._adding("put", key) as operation:
            fill.fill_put(operation.put, key, value, ttl_s, lease_id, expected_version)
        return self

    def delete(self, key: Key, *, expected_version: int | None = None) -> Self:
        """Delete a key."""
        with self._adding("delete", key) as operation:
            fill.fill_delete(operation.delete, key, expected_version)
        return self

    def touch(self, key: Key, ttl_s: float | None) -> Self:
        """Change the lifetime of a key."""
        with self._adding("touch", key) as operation:
            fill.fill_touch(operation.touch, key, ttl_s)
        return self

    def increment(self, key: Key, by: int = 1) -> Self:
        """Add to a number."""
        with self._adding("count", key) as operation:
            fill.fill_count(operation.count, key, add=by)
        return self

    def append(self, key: Key, data: Value) -> Self:
        """Add bytes at the end of a value."""
        with self._adding("append", key) as operation:
            fill.fill_append(operation.append, key, data)
        return self

    def set_json(self, key: Key, path: Path, value: Any) -> Self:
        """Set a part of a document."""
        with self._adding("set_json", key) as operation:
            fill.fill_set_json(operation.set_json, key, path, value)
        return self

    def delete_json(self, key: Key, path: Path) -> Self:
        """Delete a part of a document."""
        with self._adding("set_json", key) as operation:
            fill.fill_delete_json(operation.set_json, key, path)
        return self

    def _convert(self, results: Any) -> list[Item | int | None]:
        """Return the results of the operations."""
        found: list[Item | int | None] = []
        for kind, result in zip(self._kinds, results, strict=True):
            if kind == "get":
                found.append(to_item(result.item) if result.HasField("item") else None)
            else:
                found.append(result.number if kind in ("count", "append", "delete") else None)
        return found

    @contextmanager
    def _adding(self, kind: str, key: Key) -> Iterator[Any]:
        name = to_bytes(key)
        with added(self._operations) as operation:
            yield operation
        self._kinds.append(kind)
        self._names.append(name)


@refuse_unsendable
class AsyncTxn:
    """A transaction under construction; ``commit`` carries it out, once."""

    def __init__(self, connection: Connection, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope
        self._request = kv_pb2.TxnRequest(namespace=scope.namespace)
        self._names: list[bytes] = []
        self._then = TxnBranch(self._request.then, self._names)
        self._otherwise = TxnBranch(self._request.otherwise, self._names)

    @property
    def then(self) -> TxnBranch:
        """The operations to carry out if all conditions hold."""
        return self._then

    @property
    def otherwise(self) -> TxnBranch:
        """The operations to carry out if a condition does not hold."""
        return self._otherwise

    def when(
        self,
        key: Key,
        *,
        exists: bool | None = None,
        version: int | None = None,
        value: Value | None = None,
        comparison: str = "==",
    ) -> Self:
        """Add a condition on a key: that it exists or not, or how version or value compare."""
        with added(self._request.conditions) as condition:
            fill.fill_condition(
                condition, key, exists=exists, version=version, value=value, comparison=comparison
            )
        self._names.append(to_bytes(key))
        return self

    async def commit(self) -> TxnResult:
        """Carry out the transaction and return the results."""
        self._scope.need_result("a transaction")
        name = await one_shard(self._connection, self._scope, self._names)
        request = self._request

        def build(operation: pipeline_pb2.Operation) -> None:
            operation.txn.CopyFrom(request)

        answer: kv_pb2.TxnResponse = await self._connection.write(
            name, request.ByteSize(), self._scope.timeout_s, build, lambda result: result.txn
        )
        branch = self._then if answer.succeeded else self._otherwise
        return TxnResult(answer.succeeded, answer.header.index, branch._convert(answer.results))


async def one_shard(connection: Connection, scope: Scope, names: list[bytes]) -> bytes:
    """Return one of the names, to route by; refuse names with different tags, as a server does.

    With one shard all names are together.
    """
    if not names:
        raise InvalidArgument("there is nothing in it", reason="BATCH_EMPTY")
    await connection.ready(scope.timeout_s)
    if connection.topology.shard_count > 1 and len(routing_keys(names)) > 1:
        text = ", ".join(sorted({name.decode(errors="replace") for name in names})[:5])
        raise InvalidArgument(
            f"these may be in different shards: {text}; only names with the same tag in braces "
            "share one, such as a{tag} and b{tag}",
            reason="SEVERAL_SHARDS",
        )
    return names[0]


# Batches over all models


@refuse_unsendable
class AsyncBatch:
    """An atomic batch under construction; every method returns the batch, for chaining.

    At the end of ``with`` it is committed, unless an exception was raised. All of it takes effect
    or nothing; names must be in one shard.
    """

    def __init__(self, connection: Connection, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope
        self._request = pipeline_pb2.TransactRequest(namespace=scope.namespace)
        self._names: list[bytes] = []
        # Only unconditional puts: then the order among batches does not matter.
        self._is_free = True
        self._written: Written | None = None
        self._answers: Any = ()  # of the operations, as received
        self._results: list[Any] | None = None  # the same, converted on first use

    @property
    def written(self) -> Written:
        """The batch's place in the log, once it is committed."""
        if self._written is None:
            raise FailedPrecondition("the batch is not committed", reason="NOT_COMMITTED")
        return self._written

    @property
    def results(self) -> list[Any]:
        """The result of each operation, in order, once the batch is committed.

        The number of an increment, the size after an append, whether a delete found the key, an
        ``Enqueued``, an ``Appended``, the count of acknowledged records or of written values; None
        for a put.
        """
        assert self.written
        if self._results is None:
            self._results = [_to_result(each) for each in self._answers]
        return self._results

    def when(
        self,
        key: Key,
        *,
        exists: bool | None = None,
        version: int | None = None,
        value: Value | None = None,
        comparison: str = "==",
    ) -> Self:
        """Add a condition on a key: that it exists or not, or how version or value compare."""
        self._refuse_committed()
        self._is_free = False
        with added(self._request.conditions) as condition:
            fill.fill_condition(
                condition, key, exists=exists, version=version, value=value, comparison=comparison
            )
        self._names.append(to_bytes(key))
        return self

    # Keys

    @checks_itself
    def put(
        self,
        key: Key,
        value: Value,
        *,
        ttl_s: float | None = None,
        lease_id: int = 0,
        expected_version: int | None = None,
    ) -> Self:
        """Write a key."""
        # The most common operation, so it is inlined; it is added only if it can be sent.
        if self._written is not None:
            self._refuse_committed()
        operations = self._request.operations
        try:
            name, data = to_bytes(key), to_bytes(value)
            if ttl_s is not None or lease_id or expected_version is not None:
                with added(operations) as operation:
                    fill.fill_put(operation.put, name, data, ttl_s, lease_id, expected_version)
                self._is_free = False
            else:
                put = operations.add().put
                put.key = name
                put.value = data
        except UNSENDABLE as error:
            refuse(error, AsyncBatch.put, locals())
            raise
        self._names.append(name)
        return self

    def delete(self, key: Key, *, expected_version: int | None = None) -> Self:
        """Delete a key."""
        with self._adding(key) as operation:
            fill.fill_delete(operation.delete, key, expected_version)
        return self

    def touch(self, key: Key, ttl_s: float | None) -> Self:
        """Change the lifetime of a key."""
        with self._adding(key) as operation:
            fill.fill_touch(operation.touch, key, ttl_s)
        return self

    def increment(self, key: Key, by: int = 1) -> Self:
        """Add to a number."""
        with self._adding(key) as operation:
            fill.fill_count(operation.count, key, add=by)
        return self

    def append(self, key: Key, data: Value) -> Self:
        """Add bytes at the end of a value."""
        with self._adding(key) as operation:
            fill.fill_append(operation.append, key, data)
        return self

    def set_json(self, key: Key, path: Path, value: Any) -> Self:
        """Set a part of a document."""
        with self._adding(key) as operation:
            fill.fill_set_json(operation.set_json, key, path, value)
        return self

    def delete_json(self, key: Key, path: Path) -> Self:
        """Delete a part of a document."""
        with self._adding(key) as operation:
            fill.fill_delete_json(operation.set_json, key, path)
        return self

    # Queues

    def enqueue(self, queue: str, message: NewMessage | Value) -> Self:
        """Put a message into a queue."""
        new = message if isinstance(message, NewMessage) else NewMessage(message)
        with self._adding(queue) as operation:
            operation.enqueue.queue = queue
            new.fill(operation.enqueue.messages.add())
        return self

    def ack(self, queue: str, messages: Message | Iterable[Message]) -> Self:
        """Acknowledge leased messages; the batch is refused if one of the leases is lost."""
        leased = _to_leased(messages)
        if leased:
            with self._adding(queue) as operation:
                _fill_leased(operation.ack, queue, leased)
        return self

    def nack(
        self,
        queue: str,
        messages: Message | Iterable[Message],
        *,
        delay_s: float | None = None,
        reason: str = "",
    ) -> Self:
        """Record failed deliveries of leased messages."""
        leased = _to_leased(messages)
        if leased:
            with self._adding(queue) as operation:
                _fill_leased(operation.nack, queue, leased)
                operation.nack.reason = reason
                if delay_s is not None:
                    operation.nack.delay_ms = milliseconds(delay_s)
        return self

    # Streams

    def append_record(
        self, stream: str, record: NewRecord | Value, *, producer: Producer | None = None
    ) -> Self:
        """Append a record to a stream; see ``AsyncStream.append`` for ``producer``."""
        new = record if isinstance(record, NewRecord) else NewRecord(record)
        with self._adding(stream) as operation:
            operation.append_records.stream = stream
            new.fill(operation.append_records.records.add())
            if producer is not None:
                producer.fill(operation.append_records.producer)
        return self

    def ack_records(
        self, stream: str, group: str, member_id: int, records: Iterable[Record]
    ) -> Self:
        """Acknowledge records of a consumer group; without records it does nothing."""
        present = present_records(records)
        if present:
            with self._adding(stream) as operation:
                request = operation.ack_records
                request.stream, request.group, request.member_id = stream, group, member_id
                fill_places(request.places, present)
        return self

    def commit_offsets(
        self,
        stream: str,
        group: str,
        records: Record | Iterable[Record],
        *,
        member_id: int = 0,
        generation: int = 0,
    ) -> Self:
        """Set the offsets of a consumer group to after these records; none: it does nothing.

        ``member_id`` and ``generation`` are those of a consumer. In a group without members the
        id is 0, and the generation that of ``group.info()``.
        """
        present = present_records(records)
        if present:
            with self._adding(stream) as operation:
                request = operation.commit_offsets
                request.stream, request.group = stream, group
                request.member_id, request.generation = member_id, generation
                fill_offsets(request.places, present)
        return self

    # Time series

    def write_points(
        self,
        measurement: str,
        times_ns: ArrayLike,
        fields: Mapping[str, ArrayLike],
        *,
        tags: Mapping[str, str] | None = None,
    ) -> Self:
        """Write points of one series."""
        with self._adding(measurement) as operation:
            operation.write_points.measurement = measurement
            to_points(times_ns, fields, tags).fill(operation.write_points.series.add())
        return self

    # The end

    async def commit(self) -> Written:
        """Carry out the batch, once; raises ConditionFailed, or the error of an operation."""
        self._refuse_committed()
        self._scope.need_result("a batch")
        name = await one_shard(self._connection, self._scope, self._names)
        lane = self._connection.write_lane(name)
        assert lane is not None
        keys = self._names if self._is_free else None
        answer = await lane.transact(self._request, self._scope.timeout_s, keys)
        self._written = to_written(answer.header)
        self._answers = answer.results
        return self._written

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None and self._written is None:
            await self.commit()

    @contextmanager
    def _adding(self, name: Key) -> Iterator[Any]:
        self._refuse_committed()
        route = to_bytes(name)
        with added(self._request.operations) as operation:
            yield operation
        self._is_free = False
        self._names.append(route)

    def _refuse_committed(self) -> None:
        if self._written is not None:
            raise FailedPrecondition("the batch is committed already", reason="COMMITTED")


def _to_leased(messages: Message | Iterable[Message]) -> Sequence[Message]:
    if isinstance(messages, Message):
        return [messages]
    leased = []
    for message in messages:
        if not isinstance(message, Message):
            raise TypeError("this is no message")  # now, while its place is known
        leased.append(message)
    return leased


def _fill_leased(request: Any, queue: str, messages: Iterable[Message]) -> None:
    request.queue = queue
    request.strict = True
    for message in messages:
        request.messages.add(message_id=message.message_id, token=message.token)


def _to_result(result: pipeline_pb2.OperationResult) -> Any:
    match result.WhichOneof("result"):
        case "delete":
            return result.delete.deleted
        case "count":
            return result.count.number
        case "append":
            return result.append.size
        case "enqueue":
            (enqueued,) = result.enqueue.results
            return Enqueued(enqueued.message_id, enqueued.deduplicated)
        case "append_records":
            (appended,) = result.append_records.results
            return Appended(appended.offset, appended.partition, appended.duplicate)
        case "ack_records":
            return result.ack_records.acked_count
        case "write_points":
            return result.write_points.written_count
        case _:
            return None
