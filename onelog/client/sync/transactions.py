"""``onelog/client/transactions.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Self

from onelog.client.arrays import ArrayLike
from onelog.client.blocking import Facade
from onelog.client.transactions import TxnBranch
from onelog.client.values import (
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
)


class Txn(Facade):
    """A transaction under construction; ``commit`` carries it out, once."""

    @property
    def then(self) -> TxnBranch:
        """The operations to carry out if all conditions hold."""
        found: TxnBranch = self._core.then
        return found

    @property
    def otherwise(self) -> TxnBranch:
        """The operations to carry out if a condition does not hold."""
        found: TxnBranch = self._core.otherwise
        return found

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
        found: Self = self._same(
            self._core.when(key, exists=exists, version=version, value=value, comparison=comparison)
        )
        return found

    def commit(self) -> TxnResult:
        """Carry out the transaction and return the results."""
        found: TxnResult = self._thread.run(self._core.commit())
        return found


class Batch(Facade):
    """An atomic batch under construction; every method returns the batch, for chaining.

    At the end of ``with`` it is committed, unless an exception was raised. All of it takes effect
    or nothing; names must be in one shard.
    """

    @property
    def written(self) -> Written:
        """The batch's place in the log, once it is committed."""
        found: Written = self._core.written
        return found

    @property
    def results(self) -> list[Any]:
        """The result of each operation, in order, once the batch is committed.

        The number of an increment, the size after an append, whether a delete found the key, an
        ``Enqueued``, an ``Appended``, the count of acknowledged records or of written values; None
        for a put.
        """
        found: list[Any] = self._core.results
        return found

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
        found: Self = self._same(
            self._core.when(key, exists=exists, version=version, value=value, comparison=comparison)
        )
        return found

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
        found: Self = self._same(
            self._core.put(
                key, value, ttl_s=ttl_s, lease_id=lease_id, expected_version=expected_version
            )
        )
        return found

    def delete(self, key: Key, *, expected_version: int | None = None) -> Self:
        """Delete a key."""
        found: Self = self._same(self._core.delete(key, expected_version=expected_version))
        return found

    def touch(self, key: Key, ttl_s: float | None) -> Self:
        """Change the lifetime of a key."""
        found: Self = self._same(self._core.touch(key, ttl_s))
        return found

    def increment(self, key: Key, by: int = 1) -> Self:
        """Add to a number."""
        found: Self = self._same(self._core.increment(key, by))
        return found

    def append(self, key: Key, data: Value) -> Self:
        """Add bytes at the end of a value."""
        found: Self = self._same(self._core.append(key, data))
        return found

    def set_json(self, key: Key, path: Path, value: Any) -> Self:
        """Set a part of a document."""
        found: Self = self._same(self._core.set_json(key, path, value))
        return found

    def delete_json(self, key: Key, path: Path) -> Self:
        """Delete a part of a document."""
        found: Self = self._same(self._core.delete_json(key, path))
        return found

    def enqueue(self, queue: str, message: NewMessage | Value) -> Self:
        """Put a message into a queue."""
        found: Self = self._same(self._core.enqueue(queue, message))
        return found

    def ack(self, queue: str, messages: Message | Iterable[Message]) -> Self:
        """Acknowledge leased messages; the batch is refused if one of the leases is lost."""
        found: Self = self._same(self._core.ack(queue, messages))
        return found

    def nack(
        self,
        queue: str,
        messages: Message | Iterable[Message],
        *,
        delay_s: float | None = None,
        reason: str = "",
    ) -> Self:
        """Record failed deliveries of leased messages."""
        found: Self = self._same(self._core.nack(queue, messages, delay_s=delay_s, reason=reason))
        return found

    def append_record(
        self, stream: str, record: NewRecord | Value, *, producer: Producer | None = None
    ) -> Self:
        """Append a record to a stream; see ``AsyncStream.append`` for ``producer``."""
        found: Self = self._same(self._core.append_record(stream, record, producer=producer))
        return found

    def ack_records(
        self, stream: str, group: str, member_id: int, records: Iterable[Record]
    ) -> Self:
        """Acknowledge records of a consumer group; without records it does nothing."""
        found: Self = self._same(self._core.ack_records(stream, group, member_id, records))
        return found

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
        found: Self = self._same(
            self._core.commit_offsets(
                stream, group, records, member_id=member_id, generation=generation
            )
        )
        return found

    def write_points(
        self,
        measurement: str,
        times_ns: ArrayLike,
        fields: Mapping[str, ArrayLike],
        *,
        tags: Mapping[str, str] | None = None,
    ) -> Self:
        """Write points of one series."""
        found: Self = self._same(self._core.write_points(measurement, times_ns, fields, tags=tags))
        return found

    def commit(self) -> Written:
        """Carry out the batch, once; raises ConditionFailed, or the error of an operation."""
        found: Written = self._thread.run(self._core.commit())
        return found

    def __enter__(self) -> Self:
        self._thread.run(self._core.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(self._core.__aexit__(*error))
