"""Runs: calls of one kind that were made together and travel as one operation.

A call costs a server most where it is an operation of its own: an entry with its header, checksum
and session, and an answer.

* **Puts** that depend on nothing, one by one or many at once. A message that holds nothing but
  such puts, of keys of one namespace that differ, is one ``batch_put``: one entry, and one version
  for all. That is all or nothing; if it is refused (one value is too large for the namespace, say),
  its calls are sent again as operations of their own, before anything that was called later, and
  each has its own answer.
* **Acks** of one queue that follow each other, whatever else the message holds, are one ``ack``,
  **enqueues** of bodies one ``enqueue``, and **appends** of values to one stream one
  ``append_records``. Each message and each record of it has its own answer.

Measured with three nodes and one shard, old and new in turns: puts from 64 callers 135 and 103 us
of CPU over all processes, from 256 callers 65 and 42 (docs/performance.md).
"""

from asyncio import Future
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from onelog.client.queue_values import (
    MESSAGES_MAX,
    REASONS_OF_ONE,
    error_of_settled,
    settled_of,
)
from onelog.client.values import Appended, Enqueued, Message, Settled
from onelog.errors import Internal, OnelogError
from onelog.status import error_of_result
from onelog.v1 import pipeline_pb2, queue_pb2, stream_pb2

# As many keys as a server takes at once.
KEYS_MAX = 1_000
# What a server refuses whatever its state is never with others.
KEY_SIZE_MAX = 4_096
VALUE_SIZE_MAX = 64 << 10
KEYS_RESERVED = (b"cg:", b"_ts:")
_RESERVED_FIRST = frozenset(prefix[0] for prefix in KEYS_RESERVED)
_first_byte = itemgetter(0)


class Run:
    """Who waits for the calls of a run; to those who answer it is like one future."""

    __slots__ = ("members",)

    def __init__(self) -> None:
        self.members: list[tuple[Future[Any], float]] = []  # and by when it is wanted

    def done(self) -> bool:
        """Tell whether nobody waits any more."""
        return all(future.done() for future, _ in self.members)

    def set_result(self, result: Any) -> None:
        """Tell all what came of their calls."""
        raise NotImplementedError

    def set_exception(self, error: OnelogError) -> None:
        """Tell all what went wrong."""
        for future, _ in self.members:
            if not future.done():
                future.set_exception(error)

    def expire(self, now_s: float, late: Callable[[], OnelogError]) -> float:
        """Give those whose time is over an error; return when the next one's is."""
        earliest_s = float("inf")
        for future, deadline_s in self.members:
            if future.done():
                continue
            if deadline_s <= now_s:
                future.set_exception(late())
            elif deadline_s < earliest_s:
                earliest_s = deadline_s
        return earliest_s


class PutRun(Run):
    """Puts, by key; a member is a call of one of them, or of many."""

    __slots__ = ("counts", "namespace", "pairs")

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self.namespace = namespace
        self.pairs: dict[bytes, bytes] = {}
        self.counts: dict[int, int] = {}  # of the puts of a member, where it called many

    def takes(self, namespace: str, key: bytes, value: bytes) -> bool:
        """Tell whether a put can go with the others."""
        return (
            namespace == self.namespace
            and type(key) is bytes
            and type(value) is bytes
            and key not in self.pairs
            and 0 < len(key) <= KEY_SIZE_MAX
            and len(value) <= VALUE_SIZE_MAX
            and not key.startswith(KEYS_RESERVED)
        )

    def add_many(
        self,
        namespace: str,
        keys: Sequence[bytes],
        values: Sequence[bytes],
        future: Future[Any],
        deadline_s: float,
    ) -> bool:
        """Let one more call put many keys; False if they cannot go with the others."""
        pairs = dict(zip(keys, values, strict=True))
        if (
            namespace != self.namespace
            or not pairs.keys().isdisjoint(self.pairs)
            or not 0 < min(map(len, keys)) <= max(map(len, keys)) <= KEY_SIZE_MAX
            or max(map(len, values)) > VALUE_SIZE_MAX
            or _is_reserved_among(keys)
        ):
            return False
        self.counts[len(self.members)] = len(pairs)
        self.pairs.update(pairs)
        self.members.append((future, deadline_s))
        return True

    def calls(self) -> Iterator[tuple[Future[Any], float, list[tuple[bytes, bytes]]]]:
        """Yield who waits, until when, and for which keys and values."""
        pairs = iter(self.pairs.items())
        for at, (future, deadline_s) in enumerate(self.members):
            yield future, deadline_s, list(islice(pairs, self.counts.get(at, 1)))

    def set_result(self, result: int) -> None:
        """Tell all the version of their keys."""
        for future, _ in self.members:
            if not future.done():
                future.set_result(result)


def _is_reserved_among(keys: Sequence[bytes]) -> bool:
    """Tell whether one of these keys is reserved; most are told apart by their first byte."""
    if _RESERVED_FIRST.isdisjoint(map(_first_byte, keys)):
        return False
    return any(key.startswith(KEYS_RESERVED) for key in keys)


class AckRun(Run):
    """Acks of one queue; ``request`` grows with each."""

    __slots__ = ("request",)

    def __init__(self, request: queue_pb2.AckRequest) -> None:
        super().__init__()
        self.request = request

    def takes(self, namespace: str, queue: str) -> bool:
        """Tell whether an ack can go with the others."""
        request = self.request
        return (
            queue == request.queue
            and namespace == request.namespace
            and len(self.members) < MESSAGES_MAX
        )

    def add(self, message: Message, future: Future[Any], deadline_s: float) -> None:
        """Let a message be acked, too."""
        items = self.request.messages
        item = items.add()
        try:
            item.message_id, item.token = message.message_id, message.token
        except BaseException:
            del items[-1]
            raise
        self.members.append((future, deadline_s))

    def set_result(self, result: Sequence[queue_pb2.SettleResult]) -> None:
        """Tell each what became of its message."""
        if len(result) != len(self.members):
            self.set_exception(Internal(f"{len(result)} results for {len(self.members)} messages"))
            return
        for (future, _), settled in zip(self.members, result, strict=True):
            if future.done():
                continue
            if settled.reason:
                future.set_exception(error_of_settled(settled_of(settled)))
            else:
                future.set_result(None)

    def set_exception(self, error: OnelogError) -> None:
        """Tell all what went wrong; the only message of a request has its refusal as an error."""
        if len(self.members) == 1 and error.reason in REASONS_OF_ONE:
            (item,) = self.request.messages
            error = error_of_settled(Settled(item.message_id, error.reason))
        super().set_exception(error)


class WritesRun(Run):
    """Writes to one queue or stream, each with a result of its own."""

    __slots__ = ("name", "namespace")

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__()
        self.namespace = namespace
        self.name = name

    def takes(self, namespace: str, name: str) -> bool:
        """Tell whether a write can go with the others."""
        return (
            name == self.name and namespace == self.namespace and len(self.members) < MESSAGES_MAX
        )

    def set_result(self, result: Sequence[Any]) -> None:
        """Tell each what became of its write."""
        if len(result) != len(self.members):
            self.set_exception(Internal(f"{len(result)} results for {len(self.members)} writes"))
            return
        for (future, _), found in zip(self.members, result, strict=True):
            if future.done():
                continue
            if found.HasField("error"):
                future.set_exception(error_of_result(found.error))
            else:
                future.set_result(self.value_of(found))

    def add(self, data: bytes, future: Future[Any], deadline_s: float) -> None:
        """Let one more be written."""
        raise NotImplementedError

    def value_of(self, found: Any) -> Any:
        """Return what a caller is given of a result."""
        raise NotImplementedError


class EnqueueRun(WritesRun):
    """Enqueues to one queue; ``request`` grows with each."""

    __slots__ = ("request",)

    def __init__(self, request: queue_pb2.EnqueueRequest) -> None:
        super().__init__(request.namespace, request.queue)
        self.request = request

    def add(self, data: bytes, future: Future[Any], deadline_s: float) -> None:
        """Let a body be enqueued, too."""
        self.request.messages.add().body = data
        self.members.append((future, deadline_s))

    def value_of(self, found: queue_pb2.EnqueueResult) -> Enqueued:
        """Return the id of a message."""
        return Enqueued(found.message_id, found.deduplicated)


class AppendRun(WritesRun):
    """Appends to one stream; ``request`` grows with each."""

    __slots__ = ("request",)

    def __init__(self, request: stream_pb2.AppendRecordsRequest) -> None:
        super().__init__(request.namespace, request.stream)
        self.request = request

    def add(self, data: bytes, future: Future[Any], deadline_s: float) -> None:
        """Let a value be appended, too."""
        self.request.records.add().value = data
        self.members.append((future, deadline_s))

    def value_of(self, found: stream_pb2.AppendResult) -> Appended:
        """Return where a record stands."""
        return Appended(found.offset, found.partition, found.duplicate)


Joinable = AckRun | EnqueueRun | AppendRun
"""Runs that calls may join while theirs is the last operation of a message."""


def put_version(result: pipeline_pb2.OperationResult) -> Any:
    """Return the version that a put has written."""
    return result.put.header.index


def batch_put_version(result: pipeline_pb2.OperationResult) -> Any:
    """Return the version that many puts have written."""
    return result.batch_put.header.index


def records_appended(result: pipeline_pb2.OperationResult) -> Any:
    """Return what became of the records of an operation."""
    return result.append_records.results


def messages_enqueued(result: pipeline_pb2.OperationResult) -> Any:
    """Return what became of the messages of an operation."""
    return result.enqueue.results
