"""Transactions over keys of one shard: if all conditions hold one list of operations, else another.

::

    txn = client.kv.txn()
    txn.when("balance{ann}", version=7)
    txn.then.put("balance{ann}", b"90")
    txn.otherwise.get("balance{ann}")
    result = await txn.commit()
"""

from typing import Any, Self

from onelog.client import kv_requests as fill
from onelog.client.connection import Connection
from onelog.client.kv_requests import Path
from onelog.client.options import Scope
from onelog.client.routing import routing_keys
from onelog.client.validation import refuse_unsendable
from onelog.client.values import Item, Key, TxnResult, Value, item_of, to_bytes
from onelog.errors import InvalidArgument
from onelog.v1 import kv_pb2, pipeline_pb2


class TxnBranch:
    """Operations that are done together; every method returns the branch, to be chained."""

    def __init__(self, operations: Any, names: list[bytes]) -> None:
        self._operations = operations
        self._names = names
        self._kinds: list[str] = []

    def get(self, key: Key) -> Self:
        """Read a key."""
        self._add("get", key).get.key = to_bytes(key)
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
        put = self._add("put", key).put
        fill.fill_put(put, key, value, ttl_s, lease_id, expected_version)
        return self

    def delete(self, key: Key, *, expected_version: int | None = None) -> Self:
        """Delete a key."""
        fill.fill_delete(self._add("delete", key).delete, key, expected_version)
        return self

    def touch(self, key: Key, ttl_s: float | None) -> Self:
        """Change the lifetime of a key."""
        fill.fill_touch(self._add("touch", key).touch, key, ttl_s)
        return self

    def increment(self, key: Key, by: int = 1) -> Self:
        """Add to a number."""
        fill.fill_count(self._add("count", key).count, key, add=by)
        return self

    def append(self, key: Key, data: Value) -> Self:
        """Add bytes at the end of a value."""
        fill.fill_append(self._add("append", key).append, key, data)
        return self

    def set_json(self, key: Key, path: Path, value: Any) -> Self:
        """Set a part of a document."""
        fill.fill_set_json(self._add("set_json", key).set_json, key, path, value)
        return self

    def delete_json(self, key: Key, path: Path) -> Self:
        """Delete a part of a document."""
        fill.fill_delete_json(self._add("set_json", key).set_json, key, path)
        return self

    def results_of(self, results: Any) -> list[Item | int | None]:
        """Return what the server says the operations did."""
        found: list[Item | int | None] = []
        for kind, result in zip(self._kinds, results, strict=True):
            if kind == "get":
                found.append(item_of(result.item) if result.HasField("item") else None)
            else:
                found.append(result.number if kind in ("count", "append", "delete") else None)
        return found

    def _add(self, kind: str, key: Key) -> Any:
        self._kinds.append(kind)
        self._names.append(to_bytes(key))
        return self._operations.add()


@refuse_unsendable
class AsyncTxn:
    """A transaction that is being put together; ``commit`` carries it out, once."""

    def __init__(self, connection: Connection, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope
        self._request = kv_pb2.TxnRequest(namespace=scope.namespace)
        self._names: list[bytes] = []
        self._then = TxnBranch(self._request.then, self._names)
        self._otherwise = TxnBranch(self._request.otherwise, self._names)

    @property
    def then(self) -> TxnBranch:
        """What is done if all conditions hold."""
        return self._then

    @property
    def otherwise(self) -> TxnBranch:
        """What is done if one of them does not."""
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
        fill.put_condition(
            self._request.conditions.add(),
            key,
            exists=exists,
            version=version,
            value=value,
            comparison=comparison,
        )
        self._names.append(to_bytes(key))
        return self

    async def commit(self) -> TxnResult:
        """Carry it out and return what was done."""
        name = await one_shard(self._connection, self._scope, self._names)
        request = self._request

        def build(operation: pipeline_pb2.Operation) -> None:
            operation.txn.CopyFrom(request)

        answer: kv_pb2.TxnResponse = await self._connection.write(
            name, request.ByteSize(), self._scope.timeout_s, build, lambda result: result.txn
        )
        branch = self._then if answer.succeeded else self._otherwise
        return TxnResult(answer.succeeded, answer.header.index, branch.results_of(answer.results))


async def one_shard(connection: Connection, scope: Scope, names: list[bytes]) -> bytes:
    """Return a name that stands for all of them; refuses names of several shards."""
    if not names:
        raise InvalidArgument("there is nothing in it", reason="BATCH_EMPTY")
    await connection.ready(scope.timeout_s)
    # A routing key is its own.
    shards = {connection.topology.shard_of(key) for key in routing_keys(names)}
    if len(shards) > 1:
        text = ", ".join(sorted({name.decode(errors="replace") for name in names})[:5])
        raise InvalidArgument(
            f"these are in {len(shards)} shards: {text}; names with the same {{tag}} share one",
            reason="SEVERAL_SHARDS",
        )
    return names[0]
