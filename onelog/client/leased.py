"""Leased messages and fetched records, which settle themselves.

``message.ack()`` is ``queue.ack(message)``, and ``record.ack()`` is ``consumer.ack(record)``. There
are two classes of each, one for each client: the methods of ``AsyncLeasedMessage`` are awaited,
those of ``LeasedMessage`` block. A copy (pickled, or made by ``dataclasses.replace``) is a plain
``Message`` or ``Record`` that belongs to nobody, and so is a message that a worker passes to its
handler: the worker settles it.
"""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from onelog.client.values import Message, Record, Settled
from onelog.errors import FailedPrecondition

if TYPE_CHECKING:
    from onelog.client.group import AsyncConsumer
    from onelog.client.queue import AsyncQueue


class _Leased(Message):
    """What both classes of messages have in common."""

    __slots__ = ("_queue",)
    _queue: "AsyncQueue | None"

    def _source(self) -> "AsyncQueue":
        queue: AsyncQueue | None = getattr(self, "_queue", None)
        if queue is None:
            what = f"message {self.message_id} belongs to no queue here; a worker settles its own"
            raise FailedPrecondition(what, reason="NOT_LEASED")
        return queue

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, tuple(getattr(self, each.name) for each in fields(Message))


class AsyncLeasedMessage(_Leased):
    """A message of a queue that is leased to us until it is settled or its lease ends."""

    __slots__ = ()

    async def ack(self) -> None:
        """Acknowledge the message: it is done. LeaseLost if the lease has ended."""
        await self._source().ack(self)

    async def nack(self, *, delay_s: float | None = None, reason: str = "") -> Settled:
        """Record a failed delivery: retry after ``delay_s`` (None: the queue's backoff)."""
        return await self._source().nack(self, delay_s=delay_s, reason=reason)

    async def extend(self, visibility_s: float | None = None) -> None:
        """Extend the lease to ``visibility_s`` from now (None: the queue's setting)."""
        await self._source().extend(self, visibility_s)

    async def release(self) -> None:
        """Release the message: it is ready again as if it had not been leased."""
        await self._source().release(self)


class LeasedMessage(_Leased):
    """A message of a queue that is leased to us until it is settled or its lease ends."""

    __slots__ = ()

    def ack(self) -> None:
        """Acknowledge the message: it is done. LeaseLost if the lease has ended."""
        self._run(self._source().ack(self))

    def nack(self, *, delay_s: float | None = None, reason: str = "") -> Settled:
        """Record a failed delivery: retry after ``delay_s`` (None: the queue's backoff)."""
        found: Settled = self._run(self._source().nack(self, delay_s=delay_s, reason=reason))
        return found

    def extend(self, visibility_s: float | None = None) -> None:
        """Extend the lease to ``visibility_s`` from now (None: the queue's setting)."""
        self._run(self._source().extend(self, visibility_s))

    def release(self) -> None:
        """Release the message: it is ready again as if it had not been leased."""
        self._run(self._source().release(self))

    def _run(self, call: Any) -> Any:
        thread = self._source()._connection.thread
        assert thread is not None, "of a blocking client"
        return thread.run(call)


class _Fetched(Record):
    """What both classes of records have in common."""

    __slots__ = ("_consumer", "_generation")
    _consumer: "AsyncConsumer"
    _generation: int  # of the group, when the record was fetched

    def _source(self) -> "AsyncConsumer":
        consumer: AsyncConsumer | None = getattr(self, "_consumer", None)
        if consumer is None:
            what = f"the record at offset {self.offset} is a copy; the consumer settles it"
            raise FailedPrecondition(what, reason="NOT_LEASED")
        return consumer

    def __reduce__(self) -> tuple[Any, ...]:
        return Record, tuple(getattr(self, each.name) for each in fields(Record))


class AsyncFetchedRecord(_Fetched):
    """A record that is pending with a member of a group until it is settled."""

    __slots__ = ()

    async def ack(self) -> None:
        """Acknowledge the record: it is done."""
        await self._source().ack(self)

    async def nack(self, *, delay_s: float = 0.0, reason: str = "") -> None:
        """Record a failed delivery: retry after a delay, or move to the dead-letter stream."""
        await self._source().nack(self, delay_s=delay_s, reason=reason)


class FetchedRecord(_Fetched):
    """A record that is pending with a member of a group until it is settled."""

    __slots__ = ()

    def ack(self) -> None:
        """Acknowledge the record: it is done."""
        self._run(self._source().ack(self))

    def nack(self, *, delay_s: float = 0.0, reason: str = "") -> None:
        """Record a failed delivery: retry after a delay, or move to the dead-letter stream."""
        self._run(self._source().nack(self, delay_s=delay_s, reason=reason))

    def _run(self, call: Any) -> None:
        thread = self._source()._group._connection.thread
        assert thread is not None, "of a blocking client"
        thread.run(call)


def fetched_generation(record: Record, consumer: "AsyncConsumer") -> int:
    """Return the generation in which a consumer fetched a record; 0 of a copy or of another's."""
    if isinstance(record, _Fetched) and getattr(record, "_consumer", None) is consumer:
        return record._generation
    return 0


def detach(message: Message) -> None:
    """Take the message from its queue: something else settles it."""
    if isinstance(message, _Leased):
        message._queue = None
